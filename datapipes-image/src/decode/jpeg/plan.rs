//! Data to be decoded for a part of the image at a scale: blocks, samples, and their conversion to
//! pixels.

use datapipes::{Error, Result};

use super::header::{Color, Component, Header};
use crate::Rect;

/// Upsampling method of a component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Method {
    /// A sample for each pixel.
    #[default]
    Full,
    /// Each sample is repeated.
    Repeat,
    /// Two for one in a row, weighted by distance.
    Across,
    /// Two rows for one, weighted by distance.
    Down,
    /// Two for one in both directions.
    Both,
}

/// One component.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// Number of its quantisation table.
    pub(super) quant: usize,
    /// Number of blocks in a unit (MCU), across and down.
    pub(super) h: usize,
    pub(super) v: usize,
    /// Number of blocks that hold samples of the image, across and down.
    pub(super) across: usize,
    pub(super) down: usize,
    /// Number of samples in an edge of a block: 8, or fewer if it is scaled.
    pub(super) size: usize,
    /// Number of samples of the whole image, across and down.
    pub(super) width: usize,
    pub(super) height: usize,
    /// Number of pixels for a sample, across and down.
    pub(super) wide: usize,
    pub(super) high: usize,
    pub(super) method: Method,
    /// First sample of a row that is decoded, and the end of the decoded samples.
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Part {
    /// Plans a component of blocks that have at least this many samples in an edge. Its range of
    /// decoded samples is empty.
    fn new(header: &Header, component: &Component, least: usize) -> Part {
        let (whole_width, whole_height) = (header.width as usize, header.height as usize);
        let (h, v) = header.sampling();
        let (ch, cv) = (component.h, component.v);
        // As libjpeg: rather scaled less than scaled up again.
        let mut size = least;
        while size < 8
            && (h * least).is_multiple_of(ch * size * 2)
            && (v * least).is_multiple_of(cv * size * 2)
        {
            size *= 2;
        }
        let (wide, high) = (h * least / (ch * size), v * least / (cv * size));
        let width = (whole_width * ch * size).div_ceil(h * 8);
        let smooth = least > 1;
        let method = match (wide, high) {
            (1, 1) => Method::Full,
            (2, 1) if smooth && width > 2 => Method::Across,
            (1, 2) if smooth => Method::Down,
            (2, 2) if smooth && width > 2 => Method::Both,
            _ => Method::Repeat,
        };
        Part {
            quant: component.quant,
            h: ch,
            v: cv,
            across: (whole_width * ch).div_ceil(h * 8),
            down: (whole_height * cv).div_ceil(v * 8),
            size,
            width,
            height: (whole_height * cv * size).div_ceil(v * 8),
            wide,
            high,
            method,
            from: 0,
            to: 0,
        }
    }

    /// Returns the rows of samples for a row of pixels: the near one, and the far one.
    pub(super) fn rows(&self, y: usize) -> (usize, usize) {
        let near = y / self.high;
        match self.method {
            Method::Down | Method::Both if y.is_multiple_of(2) => (near, near.saturating_sub(1)),
            Method::Down | Method::Both => (near, (near + 1).min(self.height - 1)),
            _ => (near, near),
        }
    }
}

/// Data to be decoded.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) color: Color,
    parts: [Part; 4],
    count: usize,
    /// Number of units in a row of the whole image.
    pub(super) across: usize,
    /// Number of rows of units in the whole image.
    pub(super) down: usize,
    /// First needed unit of a row.
    pub(super) left: usize,
    /// End of the needed units of a row.
    pub(super) right: usize,
    /// First needed row of units.
    pub(super) top: usize,
    /// End of the needed rows of units.
    pub(super) bottom: usize,
    /// Number of rows of pixels in a unit.
    pub(super) unit_height: usize,
    /// True if a row of pixels needs samples of the row below it.
    pub(super) looks_down: bool,
    /// First pixel of a row that has samples.
    pub(super) from: usize,
    /// Number of pixel rows of the scaled image.
    pub(super) height: usize,
    /// Requested columns of pixels.
    pub(super) x: std::ops::Range<usize>,
    /// Requested rows of pixels.
    pub(super) y: std::ops::Range<usize>,
}

impl Plan {
    pub(super) fn new(header: &Header, scale: u32, rect: Rect) -> Result<Plan> {
        let Some(least) = [8, 4, 2, 1]
            .into_iter()
            .find(|least| *least * scale as usize == 8)
        else {
            return Err(Error::config(format!(
                "a JPEG cannot be decoded at 1/{scale}"
            )));
        };
        let (width, height) = (header.width.div_ceil(scale), header.height.div_ceil(scale));
        rect.check_within(width, height)?;
        let (x, y) = (
            rect.x as usize..(rect.x + rect.width) as usize,
            rect.y as usize..(rect.y + rect.height) as usize,
        );
        let (h, v) = header.sampling();
        let across = (header.width as usize).div_ceil(8 * h);
        let down = (header.height as usize).div_ceil(8 * v);
        let none = Part {
            wide: 1,
            high: 1,
            ..Part::default()
        };
        let mut parts = [none; 4];
        for (part, component) in parts.iter_mut().zip(header.components()) {
            *part = Part::new(header, component, least);
        }
        let count = header.components().len();
        // Units that hold the needed samples; weighting needs one more at each edge.
        let (mut left, mut right, mut top, mut bottom) = (across, 0, down, 0);
        for part in &parts[..count] {
            let beside = usize::from(matches!(part.method, Method::Across | Method::Both));
            let beyond = usize::from(matches!(part.method, Method::Down | Method::Both));
            left = left.min((x.start / part.wide).saturating_sub(beside) / (part.h * part.size));
            right = right.max((x.end.div_ceil(part.wide) + beside).div_ceil(part.h * part.size));
            top = top.min((y.start / part.high).saturating_sub(beyond) / (part.v * part.size));
            bottom = bottom.max((y.end.div_ceil(part.high) + beyond).div_ceil(part.v * part.size));
        }
        let (right, bottom) = (right.min(across), bottom.min(down));
        for part in &mut parts[..count] {
            part.from = left * part.h * part.size;
            part.to = (right * part.h * part.size).min(part.width);
        }
        Ok(Plan {
            color: header.color,
            parts,
            count,
            across,
            down,
            left,
            right,
            top,
            bottom,
            unit_height: v * least,
            looks_down: parts
                .iter()
                .any(|part| matches!(part.method, Method::Down | Method::Both)),
            from: left * h * least,
            height: height as usize,
            x,
            y,
        })
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }
}
