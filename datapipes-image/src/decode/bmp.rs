//! BMP: a walk over the header and run lengths, then the `image` crate.
//!
//! The decoder paints pixels black that run lengths leave out, or that have no colour in the
//! palette. Other programs paint other colours; here both are errors. The presence of all bytes of
//! the pixels is checked before anything is allocated.

use std::io::Cursor;

use datapipes::{Error, Result};
use image::DynamicImage;
use image::codecs::bmp::BmpDecoder;

use super::{ImageFormat::Bmp, take};
use crate::Image;

/// Contents of the headers.
pub(super) struct Header {
    pub width: u32,
    pub height: u32,
    bits: u16,
    compression: u32,
    /// Offset of the pixels.
    offset: usize,
    /// Number of colours in the palette.
    colors: usize,
}

const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BITFIELDS: u32 = 3;
/// Maximum edge that the decoder accepts.
const MAX_EDGE: u32 = 0xffff;

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Header> {
        let file = take(bytes, 0, 18, "BMP")?;
        let (offset, size) = (u32_at(file, 10) as usize, u32_at(file, 14) as usize);
        let info = match size {
            12 | 40 | 52 | 56 | 108 | 124 => take(bytes, 14, size, "BMP")?,
            0..12 => return Bmp.corrupt(&format!("its header has {size} bytes")),
            _ => return Bmp.unsupported(&format!("a header of {size} bytes")),
        };
        let core = size == 12;
        let edges = if core {
            (i64::from(u16_at(info, 4)), i64::from(u16_at(info, 6)))
        } else {
            (
                i64::from(u32_at(info, 4) as i32),
                i64::from(u32_at(info, 8) as i32),
            )
        };
        let bits = u16_at(info, if core { 10 } else { 14 });
        let compression = if core { 0 } else { u32_at(info, 16) };
        // A negative height means rows from the top.
        let (width, height) = (
            u32::try_from(edges.0).unwrap_or(0),
            edges.1.unsigned_abs() as u32,
        );
        if width == 0 || height == 0 {
            return Bmp.corrupt(&format!("its size is {}x{}", edges.0, edges.1));
        }
        let named = match (compression, bits) {
            (0, 1 | 2 | 4 | 8 | 16 | 24 | 32) | (RLE8, 8) | (RLE4, 4) | (BITFIELDS, 16 | 32) => {
                None
            }
            (4, _) => Some("a JPEG in it".to_owned()),
            (5, _) => Some("a PNG in it".to_owned()),
            _ => Some(format!("compression {compression} of {bits} bits a pixel")),
        };
        if let Some(feature) = named {
            return Bmp.unsupported(&feature);
        }
        let masks = if compression == BITFIELDS && size == 40 {
            12
        } else {
            0
        };
        let headers = 14 + size + masks;
        if offset < headers {
            return Bmp.corrupt(&format!(
                "its pixels begin at byte {offset}, within its headers"
            ));
        }
        let mut colors = 0;
        if bits <= 8 {
            let told = if core { 0 } else { u32_at(info, 32) as usize };
            let most = 1 << bits;
            if told > most {
                return Bmp.corrupt(&format!("a palette of {told} colours for {bits} bits"));
            }
            let room = (offset - headers) / if core { 3 } else { 4 };
            colors = room.min(if told == 0 { most } else { told });
        }
        Ok(Header {
            width,
            height,
            bits,
            compression,
            offset,
            colors,
        })
    }

    /// Returns about how much memory decoding takes: RGBA and RGB.
    pub(super) fn memory(&self) -> u64 {
        let pixel = if self.compression == BITFIELDS { 7 } else { 3 };
        pixel * u64::from(self.width) * u64::from(self.height)
    }

    fn is_compressed(&self) -> bool {
        matches!(self.compression, RLE8 | RLE4)
    }

    /// Checks that every pixel is present, and has a colour.
    fn check(&self, bytes: &[u8]) -> Result<()> {
        if self.width > MAX_EDGE || self.height > MAX_EDGE {
            return Err(Error::unsupported(format!(
                "a BMP of {}x{} has an edge over {MAX_EDGE}",
                self.width, self.height
            )));
        }
        if self.is_compressed() {
            return self.check_runs(bytes);
        }
        let row = (usize::from(self.bits) * self.width as usize).div_ceil(32) * 4;
        let pixels = take(bytes, self.offset, row * self.height as usize, "BMP")?;
        if self.bits > 8 || self.colors == 1 << self.bits {
            return Ok(());
        }
        let (bits, mask) = (usize::from(self.bits), (1u16 << self.bits) - 1);
        for row in pixels.chunks_exact(row) {
            for x in 0..self.width as usize {
                let byte = u16::from(row[x * bits / 8]);
                self.check_index((byte >> (8 - bits - x * bits % 8) & mask) as u8)?;
            }
        }
        Ok(())
    }

    /// Walks over the run lengths, as the decoder does.
    fn check_runs(&self, bytes: &[u8]) -> Result<()> {
        let (width, mut at, mut ended) = (self.width as usize, self.offset, false);
        for y in 0..self.height {
            let mut x = 0;
            loop {
                let pair = take(bytes, at, 2, "BMP")?;
                at += 2;
                match (pair[0], pair[1]) {
                    (0, end @ (0 | 1)) => {
                        if x < width {
                            let end = if end == 0 { "row" } else { "image" };
                            return Bmp.corrupt(&format!(
                                "row {y} has {x} of {width} pixels before the {end} ends"
                            ));
                        }
                        if end == 1 && y + 1 < self.height {
                            return Bmp.corrupt(&format!(
                                "it ends after {} of {} rows",
                                y + 1,
                                self.height
                            ));
                        }
                        ended = end == 1;
                        break;
                    }
                    (0, 2) => return Bmp.unsupported("run lengths that leave pixels out"),
                    (0, count) => {
                        let count = usize::from(count);
                        let len = if self.compression == RLE4 {
                            count.div_ceil(2)
                        } else {
                            count
                        };
                        let body = take(bytes, at, len + (len & 1), "BMP")?;
                        at += body.len();
                        for i in 0..count {
                            self.check_index(if self.compression == RLE8 {
                                body[i]
                            } else {
                                body[i / 2] >> (4 * (1 - i % 2)) & 15
                            })?;
                        }
                        x += count;
                    }
                    (count, index) => {
                        if self.compression == RLE8 {
                            self.check_index(index)?;
                        } else {
                            self.check_index(index >> 4)?;
                            self.check_index(if count > 1 { index & 15 } else { 0 })?;
                        }
                        // ImageMagick ends each row with a pixel too many; the decoder stops at the
                        // edge, as Pillow does.
                        let over = self.compression == RLE8 && (x < width || count == 1);
                        x += usize::from(count);
                        x = if over { x.min(width) } else { x };
                    }
                }
                if x > width {
                    return Bmp.corrupt(&format!("row {y} has {x} pixels, more than {width}"));
                }
            }
        }
        // The end of the last row may precede the end of the image.
        if !ended && take(bytes, at, 2, "BMP")? != [0, 1] {
            return Bmp.corrupt(&format!("it goes on after {} rows", self.height));
        }
        Ok(())
    }

    fn check_index(&self, index: u8) -> Result<()> {
        if usize::from(index) < self.colors {
            return Ok(());
        }
        Bmp.corrupt(&format!(
            "a pixel's colour is {index}, of {} in its palette",
            self.colors
        ))
    }
}

pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<Image> {
    header.check(bytes)?;
    let decoder = BmpDecoder::new(Cursor::new(bytes)).map_err(|error| Bmp.failed(error))?;
    let image = DynamicImage::from_decoder(decoder).map_err(|error| Bmp.failed(error))?;
    Image::new(header.width, header.height, 3, image.into_rgb8().into_raw())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
