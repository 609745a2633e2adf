//! JPEG by libjpeg-turbo, which decodes at 1/2, 1/4 and 1/8 of the size, and only the needed rows
//! and columns.
//!
//! It interpolates chroma from neighbouring pixels, and at the edges of the requested region it
//! acts as if there were no neighbours. This module therefore requests a few columns more, and
//! copies the part out. For rows, libjpeg-turbo reads the neighbours itself. Its warnings are
//! errors: it would fill in missing pixels with grey.

mod decompressor;
mod harmless;

use std::borrow::Cow;
use std::cell::RefCell;

use datapipes::{Error, ErrorKind, Result};

use self::decompressor::Decompressor;
use super::jpeg::{self, Header};
use super::pixels::Pixels;
use crate::{Image, Rect};

/// Greatest number of harmless warnings about an image, each of which costs time. There are three
/// kinds.
const MOST_HARMLESS: usize = 3;

/// Decodes the whole image.
pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<Image> {
    let mut pixels = Pixels::default();
    let whole = Rect {
        x: 0,
        y: 0,
        width: header.width,
        height: header.height,
    };
    decode_part(bytes, header, 1, whole, &mut pixels)?;
    Image::new(pixels.width, pixels.height, 3, pixels.data)
}

/// Decodes a part of the image at 1/`scale` of its size, where `scale` is 1, 2, 4 or 8 and edges
/// are rounded up. The result is equal to the same part of the whole image at that scale.
///
/// Rows below the part are not decoded, unless the image has several scans: damage there is not
/// detected.
pub(crate) fn decode_part(
    bytes: &[u8],
    header: &Header,
    scale: u32,
    part: Rect,
    pixels: &mut Pixels,
) -> Result<()> {
    thread_local!(static DECOMPRESSOR: RefCell<Option<Decompressor>> = const { RefCell::new(None) });

    part.check_within(header.width.div_ceil(scale), header.height.div_ceil(scale))?;
    // Cut after the end marker, so that no later bytes are taken for the image.
    let mut bytes = Cow::Borrowed(&bytes[..jpeg::end_of_image(bytes, header)? + 2]);
    let mut harmless = 0;
    loop {
        let decoded = DECOMPRESSOR.with_borrow_mut(|kept| {
            // A decompressor that failed is not used again: it keeps the parsed header.
            let mut decompressor = kept.take().map_or_else(Decompressor::new, Ok)?;
            decode_with(&mut decompressor, &bytes, header, scale, part, pixels)?;
            *kept = Some(decompressor);
            Ok(())
        });
        let Err(error) = decoded else { return Ok(()) };
        bytes = match harmless::without(&error, &bytes, header) {
            Some(bytes) if harmless < MOST_HARMLESS => Cow::Owned(bytes),
            _ => return Err(error),
        };
        harmless += 1;
    }
}

fn decode_with(
    decompressor: &mut Decompressor,
    bytes: &[u8],
    header: &Header,
    scale: u32,
    part: Rect,
    pixels: &mut Pixels,
) -> Result<()> {
    let opened = decompressor.open(bytes, header.memory())?;
    if (opened.width, opened.height) != (header.width, header.height) {
        let (is, was) = ((opened.width, opened.height), (header.width, header.height));
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("a JPEG with two sizes, {is:?} and {was:?}"),
        ));
    }
    let (width, height) = (header.width.div_ceil(scale), header.height.div_ceil(scale));
    // It decodes parts only of samplings that it has a name for.
    let decoded = match opened.has_parts {
        true => around(part, header, scale, width),
        false => Rect {
            x: 0,
            y: 0,
            width,
            height,
        },
    };
    let channels = if header.components().len() == 4 { 4 } else { 3 };
    pixels.set_len(decoded.width as usize * decoded.height as usize * channels as usize);
    opened.decode(scale, decoded, channels, &mut pixels.data)?;

    let inside = Rect {
        x: part.x - decoded.x,
        y: part.y - decoded.y,
        ..part
    };
    match channels {
        4 => cmyk_to_rgb(&mut pixels.data, decoded.width, inside),
        _ if decoded != part => cut_out(&mut pixels.data, decoded.width, inside),
        _ => {}
    }
    pixels.set_size(part.width, part.height);
    Ok(())
}

/// Returns the region to decode so that the pixels of `part` are those of the whole image.
fn around(part: Rect, header: &Header, scale: u32, width: u32) -> Rect {
    // Parts begin where the blocks of all components do.
    let block = 8 / scale;
    let step = if header.components().len() == 1 {
        block
    } else {
        block * header.sampling().0 as u32
    };
    let margin = if header.many_scans() {
        // If the last scans are missing, blocks are smoothed by two neighbours on each side.
        3 * step
    } else if step > block && scale < 8 {
        // Chroma of half the width takes one neighbour on each side, which is two columns.
        2
    } else {
        0
    };
    let start = part.x.saturating_sub(margin) / step * step;
    let end = width.min(part.x + part.width + margin);
    Rect {
        x: start,
        width: end - start,
        ..part
    }
}

/// Moves a part of rows of `width` RGB pixels to the front.
fn cut_out(data: &mut [u8], width: u32, part: Rect) {
    let (row, len) = (width as usize * 3, part.width as usize * 3);
    for y in 0..part.height as usize {
        let start = (part.y as usize + y) * row + part.x as usize * 3;
        data.copy_within(start..start + len, y * len);
    }
}

/// Moves a part of rows of `width` CMYK pixels to the front and converts it to RGB, as Pillow does.
/// Adobe stores inks inverted, 255 for none.
fn cmyk_to_rgb(data: &mut [u8], width: u32, part: Rect) {
    let mut to = 0;
    for y in part.y..part.y + part.height {
        let start = (y as usize * width as usize + part.x as usize) * 4;
        for from in (start..start + part.width as usize * 4).step_by(4) {
            let [c, m, y, k] = [0, 1, 2, 3].map(|i| data[from + i]);
            for no_ink in [c, m, y] {
                // The rounded quotient by 255.
                let product = u32::from(255 - no_ink) * u32::from(k) + 128;
                let ink = (product + (product >> 8)) >> 8;
                data[to] = k - ink as u8;
                to += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
