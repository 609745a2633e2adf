//! Decodes only the wanted part of an image, in memory that is used again.

use datapipes::Result;

use super::format::sniff;
use super::pixels::Pixels;
use super::{DecodeImage, ImageFormat, guarded, jpeg, part_of_jpeg};
use crate::Rect;
use crate::resize::{Part, View};

/// Maximum memory that is kept after an image.
const KEPT: usize = 16 << 20;

/// Memory that is used again from image to image.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pixels: Pixels,
    turned: Pixels,
}

/// Wanted part of an image.
pub(crate) struct Wanted {
    /// Part of the upright image.
    pub part: Rect,
    /// Least size of the part: it may be decoded at a lower scale that is not smaller than this
    /// width and height.
    pub least: Option<(u32, u32)>,
}

impl Wanted {
    /// Returns the divisor, out of 1, 2, 4 and 8, by which the image may be scaled.
    fn scale(&self) -> u32 {
        let Some((width, height)) = self.least else {
            return 1;
        };
        let fits =
            |scale: &u32| self.part.width / scale >= width && self.part.height / scale >= height;
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }
}

/// Pixels that were wanted: RGB.
#[derive(Debug)]
pub(crate) struct Decoded<'a> {
    pub view: View<'a>,
    /// Part of the view that was asked for: all of it, unless the pixels of a scaled image do not
    /// end where the part does.
    pub part: Part,
}

impl DecodeImage {
    /// Decodes the part that `choose` returns for the size of the upright image. Decoders of other
    /// formats than JPEG decode the whole image, in memory of their own.
    ///
    /// # Errors
    /// As [`DecodeImage::decode`]; errors of `choose`;
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the part is not inside the image.
    pub(crate) fn decode_part<'m>(
        &self,
        bytes: &[u8],
        memory: &'m mut Memory,
        choose: impl FnOnce(u32, u32) -> Result<Wanted>,
    ) -> Result<Decoded<'m>> {
        // All remains of the last image are written over.
        guarded(|| self.decode_part_unguarded(bytes, memory, choose))
    }

    fn decode_part_unguarded<'m>(
        &self,
        bytes: &[u8],
        memory: &'m mut Memory,
        choose: impl FnOnce(u32, u32) -> Result<Wanted>,
    ) -> Result<Decoded<'m>> {
        let Memory { pixels, turned } = memory;
        pixels.release(KEPT);
        turned.release(KEPT);
        if sniff(bytes)? != ImageFormat::Jpeg {
            let image = self.decode_unguarded(bytes)?;
            let Wanted { part, .. } = choose(image.width(), image.height())?;
            pixels.take(image);
            let view = pixels.view()?.crop(part)?;
            return Ok(Decoded {
                view,
                part: view.whole(),
            });
        }
        let header = jpeg::Header::read(bytes)?;
        self.check(
            header.width,
            header.height,
            header.memory(),
            ImageFormat::Jpeg,
        )?;
        let turn = self.turn(header.orientation);
        let (width, height) = turn.size(header.width, header.height);
        let wanted = choose(width, height)?;
        wanted.part.check_within(width, height)?;
        let scale = wanted.scale();
        let part = turn.stored(wanted.part, header.width, header.height);
        // All pixels of the scaled image that the part touches.
        let (x, y) = (part.x / scale, part.y / scale);
        let (right, bottom) = (
            (part.x + part.width).div_ceil(scale),
            (part.y + part.height).div_ceil(scale),
        );
        let touched = Rect {
            x,
            y,
            width: right - x,
            height: bottom - y,
        };
        part_of_jpeg(bytes, &header, scale, touched, pixels)?;
        let within = |start: u32, len: u32, from: u32| {
            (
                f64::from(start) / f64::from(scale) - f64::from(from),
                f64::from(len) / f64::from(scale),
            )
        };
        let ((left, width), (top, height)) = (
            within(part.x, part.width, x),
            within(part.y, part.height, y),
        );
        let part = Part {
            left,
            top,
            width,
            height,
        };
        if turn.is_none() {
            return Ok(Decoded {
                view: pixels.view()?,
                part,
            });
        }
        self.check_turn(touched.width, touched.height)?;
        turn.apply(pixels, turned);
        let part = turn.upright(part, f64::from(touched.width), f64::from(touched.height));
        Ok(Decoded {
            view: turned.view()?,
            part,
        })
    }
}
