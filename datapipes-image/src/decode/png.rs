//! PNG: a walk over the chunks, then the `image` crate.
//!
//! The walk detects a file without its end chunk, and finds the size before anything is allocated.

use datapipes::Result;
use image::codecs::png::PngDecoder;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, Limits};

use super::checked::{Checked, chunk};
use super::{ImageFormat::Png, format};
use crate::Image;

/// Contents of the chunks.
pub(super) struct Header {
    pub width: u32,
    pub height: u32,
    pub orientation: Option<Orientation>,
    /// Number of bits in a value.
    pub depth: u8,
    /// 0 is gray, 2 RGB, 3 a palette; 4 and 6 are gray and RGB with alpha.
    pub color: u8,
    /// Maximum number of bytes of a pixel once it is expanded.
    pixel: u64,
    /// Error in the rest of the chunks, if any.
    pub ends: Result<()>,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Header> {
        let (kind, body, mut at) = chunk(bytes, format::PNG.len())?;
        let (b"IHDR", &[w3, w2, w1, w0, h3, h2, h1, h0, depth, color, ..]) = (kind, body) else {
            return Png.corrupt("it does not begin with its header");
        };
        let (width, height) = (
            u32::from_be_bytes([w3, w2, w1, w0]),
            u32::from_be_bytes([h3, h2, h1, h0]),
        );
        if width == 0 || height == 0 {
            return Png.corrupt(&format!("its size is {width}x{height}"));
        }
        // Gray or colour; a transparent colour adds a channel.
        let channels = if matches!(color, 0 | 4) { 2 } else { 4 };
        let pixel = if (depth, color) == (8, 2) {
            3
        } else {
            3 + channels * if depth == 16 { 2 } else { 1 }
        };
        let mut header = Header {
            width,
            height,
            orientation: None,
            depth,
            color,
            pixel,
            ends: Ok(()),
        };
        loop {
            match chunk(bytes, at) {
                Ok((b"IEND", ..)) => return Ok(header),
                Ok((kind, body, next)) => {
                    if kind == b"eXIf" && header.orientation.is_none() {
                        header.orientation = Orientation::from_exif_chunk(body);
                    }
                    at = next;
                }
                Err(error) => {
                    header.ends = Err(error);
                    return Ok(header);
                }
            }
        }
    }

    /// Returns about how much memory decoding takes.
    pub(super) fn memory(&self) -> u64 {
        // An edge has up to 31 bits, so the product may need 64 and more.
        (u64::from(self.width) * u64::from(self.height)).saturating_mul(self.pixel)
    }
}

pub(super) fn decode(bytes: &[u8], header: Header, max_bytes: u64) -> Result<Image> {
    header.ends?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(max_bytes);
    let bytes = Checked::new(bytes, max_bytes);
    let decoder = PngDecoder::with_limits(bytes, limits).map_err(|error| Png.failed(error))?;
    if decoder.color_type() == ColorType::Rgb8 {
        let mut image = Image::black(header.width, header.height, 3);
        decoder
            .read_image(image.data_mut())
            .map_err(|error| Png.failed(error))?;
        return Ok(image);
    }
    let image = DynamicImage::from_decoder(decoder).map_err(|error| Png.failed(error))?;
    Image::new(header.width, header.height, 3, image.into_rgb8().into_raw())
}
