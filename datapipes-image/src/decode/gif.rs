//! GIF: a walk over the blocks, then the `image` crate for the first frame alone.
//!
//! The frame is put into a file of its own, without other blocks: neither comments nor later frames
//! cost anything, and only the frame is decoded, not the screen. If the screen is larger, it is
//! filled as Pillow does: with the transparent colour if there is one, otherwise with the first
//! colour of the palette.

use std::io::Cursor;

use datapipes::Result;
use image::ImageDecoder;
use image::codecs::gif::GifDecoder;

use super::{ImageFormat::Gif, take};
use crate::{Image, Rect};

/// Blocks before the first frame's pixels.
pub(super) struct Header<'a> {
    /// Width of the screen, or of the frame if that reaches further, as with Pillow.
    pub width: u32,
    pub height: u32,
    /// Position of the frame.
    left: u32,
    top: u32,
    /// Size of the frame.
    frame: (u32, u32),
    interlaced: bool,
    palette: &'a [u8],
    transparent: Option<u8>,
    /// Offset of the compressed data.
    data: usize,
}

const EXTENSION: u8 = 0x21;
const IMAGE: u8 = 0x2c;
const TRAILER: u8 = 0x3b;
const GRAPHIC_CONTROL: u8 = 0xf9;

/// Colours of a file without a palette: gray, as with Pillow.
static GRAY: [u8; 768] = {
    let mut gray = [0; 768];
    let mut i = 0;
    while i < 768 {
        gray[i] = (i / 3) as u8;
        i += 1;
    }
    gray
};

impl Header<'_> {
    pub(super) fn read(bytes: &[u8]) -> Result<Header<'_>> {
        let screen = take(bytes, 6, 7, "GIF")?;
        let (width, height) = (u16_at(screen, 0), u16_at(screen, 2));
        let (global, mut at) = palette(bytes, 13, screen[4])?;
        let mut transparent = None;
        loop {
            match take(bytes, at, 1, "GIF")?[0] {
                EXTENSION => {
                    let head = take(bytes, at + 1, 2, "GIF")?;
                    if head[0] == GRAPHIC_CONTROL && head[1] >= 4 {
                        let body = take(bytes, at + 3, 4, "GIF")?;
                        transparent = (body[0] & 1 != 0).then_some(body[3]);
                    }
                    at = blocks_end(bytes, at + 2)?;
                }
                IMAGE => break,
                TRAILER => return Gif.corrupt("it ends without an image"),
                // A superfluous empty block between blocks.
                0 => at += 1,
                byte => return Gif.corrupt(&format!("a block of type {byte:02x} at byte {at}")),
            }
        }
        let place = take(bytes, at + 1, 9, "GIF")?;
        let (left, top, frame) = (
            u16_at(place, 0),
            u16_at(place, 2),
            (u16_at(place, 4), u16_at(place, 6)),
        );
        let (local, data) = palette(bytes, at + 10, place[8])?;
        if frame.0 == 0 || frame.1 == 0 {
            return Gif.corrupt(&format!("its frame is {}x{}", frame.0, frame.1));
        }
        Ok(Header {
            width: width.max(left + frame.0),
            height: height.max(top + frame.1),
            left,
            top,
            frame,
            interlaced: place[8] & 0x40 != 0,
            palette: local.or(global).unwrap_or(&GRAY),
            transparent,
            data,
        })
    }

    /// Returns about how much memory decoding takes: indexes, RGBA and RGB of the frame, and RGB of
    /// the screen.
    pub(super) fn memory(&self) -> u64 {
        let (width, height) = self.frame;
        8 * u64::from(width) * u64::from(height)
            + 3 * u64::from(self.width) * u64::from(self.height)
    }

    fn is_whole(&self) -> bool {
        (self.width, self.height) == self.frame
    }

    /// Makes a file of the first frame alone, at the corner of a screen of its size.
    fn alone(&self, data: &[u8]) -> Vec<u8> {
        let size: Vec<u8> = [self.frame.0, self.frame.1]
            .iter()
            .flat_map(|&edge| (edge as u16).to_le_bytes())
            .collect();
        let mut file = Vec::with_capacity(24 + self.palette.len() + data.len());
        file.extend(b"GIF89a");
        file.extend(&size);
        // The palette has a power of two of colours, at least two.
        let bits = (self.palette.len() / 3).trailing_zeros() as u8;
        file.extend([0x80 | (bits - 1), 0, 0]);
        file.extend(self.palette);
        file.extend([IMAGE, 0, 0, 0, 0]);
        file.extend(&size);
        file.push(if self.interlaced { 0x40 } else { 0 });
        file.extend(data);
        file.push(TRAILER);
        file
    }
}

pub(super) fn decode(bytes: &[u8], header: &Header<'_>) -> Result<Image> {
    let end = blocks_end(bytes, header.data + 1)?;
    ends(bytes, end)?;
    let file = header.alone(&bytes[header.data..end]);
    let decoder =
        GifDecoder::new(Cursor::new(file.as_slice())).map_err(|error| Gif.failed(error))?;
    let mut rgba = vec![0; header.frame.0 as usize * header.frame.1 as usize * 4];
    decoder
        .read_image(&mut rgba)
        .map_err(|error| Gif.failed(error))?;

    // The file for the decoder has no transparent colour. Pixels that it left untouched have no
    // colour in the palette.
    let color = |index: u8| header.palette.chunks_exact(3).nth(index.into());
    let outside = header
        .transparent
        .is_some_and(|index| color(index).is_none());
    if !outside && rgba.as_chunks::<4>().0.iter().any(|pixel| pixel[3] == 0) {
        let colors = header.palette.len() / 3;
        return Gif.corrupt(&format!(
            "a pixel's colour is not one of the {colors} in its palette"
        ));
    }
    let mut image = Image::black(header.width, header.height, 3);
    if !header.is_whole() {
        let fill = color(header.transparent.unwrap_or(0)).unwrap_or(&[0; 3]);
        image
            .data_mut()
            .as_chunks_mut::<3>()
            .0
            .iter_mut()
            .for_each(|pixel| pixel.copy_from_slice(fill));
    }
    let at = Rect {
        x: header.left,
        y: header.top,
        width: header.frame.0,
        height: header.frame.1,
    };
    image.paste(&rgba, at);
    Ok(image)
}

/// Checks that the blocks from here on end with the trailer.
fn ends(bytes: &[u8], mut at: usize) -> Result<()> {
    loop {
        at = match take(bytes, at, 1, "GIF")?[0] {
            TRAILER => return Ok(()),
            EXTENSION => blocks_end(bytes, at + 2)?,
            IMAGE => {
                let flags = take(bytes, at + 1, 9, "GIF")?[8];
                let (_, data) = palette(bytes, at + 10, flags)?;
                blocks_end(bytes, data + 1)?
            }
            0 => at + 1,
            byte => return Gif.corrupt(&format!("a block of type {byte:02x} at byte {at}")),
        };
    }
}

/// Returns the palette that flags announce at `at`, and the offset after it.
fn palette(bytes: &[u8], at: usize, flags: u8) -> Result<(Option<&[u8]>, usize)> {
    if flags & 0x80 == 0 {
        return Ok((None, at));
    }
    let len = 3 << ((flags & 7) + 1);
    Ok((Some(take(bytes, at, len, "GIF")?), at + len))
}

/// Returns the end of the data blocks that start here, after the empty block.
fn blocks_end(bytes: &[u8], mut at: usize) -> Result<usize> {
    loop {
        let len = usize::from(take(bytes, at, 1, "GIF")?[0]);
        at += 1 + len;
        if len == 0 {
            return Ok(at);
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u32 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]]).into()
}
