//! PNG: a walk over the chunks, then the `image` crate.
//!
//! The walk is what makes a file without its end chunk an error, and finds the size before anything is allocated.

use std::io::Cursor;

use datapipes::{Error, ErrorKind, Result};
use image::codecs::png::PngDecoder;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageError, Limits};

use super::take;
use crate::Image;

/// What the chunks say.
pub(super) struct Header {
    pub width: u32,
    pub height: u32,
    pub orientation: Option<Orientation>,
    /// Most bytes a pixel has once it is expanded.
    pixel: u64,
    /// What is wrong with the rest of the chunks.
    ends: Result<()>,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Header> {
        let (kind, body, mut at) = chunk(bytes, super::PNG.len())?;
        let (b"IHDR", &[w3, w2, w1, w0, h3, h2, h1, h0, depth, color, ..]) = (kind, body) else {
            return corrupt("it does not begin with its header");
        };
        let (width, height) = (u32::from_be_bytes([w3, w2, w1, w0]), u32::from_be_bytes([h3, h2, h1, h0]));
        if width == 0 || height == 0 {
            return corrupt(&format!("its size is {width}x{height}"));
        }
        // Gray or colour; a transparent colour adds a channel.
        let channels = if matches!(color, 0 | 4) { 2 } else { 4 };
        let pixel = if (depth, color) == (8, 2) { 3 } else { 3 + channels * if depth == 16 { 2 } else { 1 } };
        let mut header = Header { width, height, orientation: None, pixel, ends: Ok(()) };
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

    /// About how much memory decoding takes.
    pub(super) fn memory(&self) -> u64 {
        // An edge has up to 31 bits, so the product may need 64 and more.
        (u64::from(self.width) * u64::from(self.height)).saturating_mul(self.pixel)
    }
}

pub(super) fn decode(bytes: &[u8], header: Header, max_bytes: u64) -> Result<Image> {
    header.ends?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(max_bytes);
    let decoder = PngDecoder::with_limits(Cursor::new(bytes), limits).map_err(failed)?;
    if decoder.color_type() == ColorType::Rgb8 {
        let mut image = Image::black(header.width, header.height, 3);
        decoder.read_image(image.data_mut()).map_err(failed)?;
        return Ok(image);
    }
    let image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    Image::new(header.width, header.height, 3, image.into_rgb8().into_raw())
}

/// A chunk's type, its body, and where the next one starts.
fn chunk(bytes: &[u8], at: usize) -> Result<(&[u8; 4], &[u8], usize)> {
    let head = take(bytes, at, 8, "PNG")?;
    let (len, kind) = head.split_at(4);
    let len = u32::from_be_bytes(len.try_into().expect("half of 8 bytes")) as usize;
    // The checksum behind the body is the decoder's to look at.
    take(bytes, at + 8, len.saturating_add(4), "PNG")?;
    let kind = kind.try_into().expect("the other half of 8 bytes");
    Ok((kind, &bytes[at + 8..at + 8 + len], at + 12 + len))
}

fn failed(error: ImageError) -> Error {
    let kind = match &error {
        ImageError::Unsupported(_) => ErrorKind::Unsupported,
        ImageError::Limits(_) => ErrorKind::Limit,
        ImageError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => ErrorKind::Truncated,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, "a PNG").with_source(error)
}

fn corrupt<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Corrupt, format!("a PNG: {what}")))
}
