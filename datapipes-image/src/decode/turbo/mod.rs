//! JPEG by libjpeg-turbo, which decodes at 1/2, 1/4 and 1/8 of the size, and only the needed rows
//! and columns.
//!
//! It interpolates chroma from neighbouring pixels, and at the edges of the requested region it
//! acts as if there were no neighbours. This module therefore requests a few columns more, and
//! copies the part out. For rows, libjpeg-turbo reads the neighbours itself. It stops at its first
//! warning: it would fill in missing pixels with grey.

mod decompressor;

use std::cell::RefCell;

use datapipes::Result;

use self::decompressor::Decompressor;
use super::jpeg::{self, Header};
use super::pixels::Pixels;
use crate::Rect;

/// Decodes a part of an image as [`jpeg::decode_part`] does.
///
/// libjpeg-turbo gets only images of one scan, gray or of three components. If it warns or fails,
/// the decoder of this library decodes the image again, so that its pixels and errors do not depend
/// on the feature.
pub(crate) fn decode_part(
    bytes: &[u8],
    header: &Header,
    scale: u32,
    part: Rect,
    pixels: &mut Pixels,
) -> Result<()> {
    let is_usual = !header.many_scans() && matches!(header.components().len(), 1 | 3);
    if is_usual && fast(bytes, header, scale, part, pixels).is_some() {
        return Ok(());
    }
    jpeg::decode_part(bytes, header, scale, part, pixels)
}

/// Decodes a part by libjpeg-turbo, if it does so without a warning.
fn fast(bytes: &[u8], header: &Header, scale: u32, part: Rect, pixels: &mut Pixels) -> Option<()> {
    thread_local!(static DECOMPRESSOR: RefCell<Option<Decompressor>> = const { RefCell::new(None) });

    let (width, height) = (header.width.div_ceil(scale), header.height.div_ceil(scale));
    part.check_within(width, height).ok()?;
    // Cut after the end marker, so that no later bytes are taken for the image.
    let bytes = &bytes[..jpeg::end_of_image(bytes, header).ok()? + 2];
    let decoded = around(part, header, scale, width);
    let data = pixels.set_size(decoded.width, decoded.height);
    DECOMPRESSOR.with_borrow_mut(|kept| {
        // A decompressor that failed is not used again: it keeps the parsed header.
        let mut decompressor = kept.take().or_else(Decompressor::new)?;
        let opened = decompressor.open(bytes)?;
        if (opened.width, opened.height) != (header.width, header.height) {
            return None;
        }
        opened.decode(scale, decoded, data)?;
        *kept = Some(decompressor);
        Some(())
    })?;
    if decoded != part {
        cut_out(data, decoded.width, part.x - decoded.x, part);
    }
    pixels.set_size(part.width, part.height);
    Some(())
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
    let margin = if step > block && scale < 8 {
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

/// Moves the columns of a part, from column `left` on, to the front of rows of `width` RGB pixels.
fn cut_out(data: &mut [u8], width: u32, left: u32, part: Rect) {
    let (row, len) = (width as usize * 3, part.width as usize * 3);
    for y in 0..part.height as usize {
        let start = y * row + left as usize * 3;
        data.copy_within(start..start + len, y * len);
    }
}

#[cfg(test)]
mod tests;
