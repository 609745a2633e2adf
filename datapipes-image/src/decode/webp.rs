//! WebP: a walk over the chunks, then the `image` crate for the first image alone.
//!
//! The image's bit stream is put into a file of its own, without alpha plane, profile and later
//! frames: none of them changes the pixels, and none can cost memory. If the first frame of an
//! animation is smaller than its canvas, the rest is black, as with Pillow, which does not use the
//! background colour either.

use std::io::Cursor;
use std::ops::Range;

use datapipes::Result;
use image::ImageDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;

use super::{ImageFormat::WebP, take};
use crate::{Image, Rect};

/// Contents of the chunks.
pub(super) struct Header {
    /// Width of the canvas.
    pub width: u32,
    pub height: u32,
    pub orientation: Option<Orientation>,
    /// Image that is decoded, or the error in the chunks.
    first: Result<First>,
}

struct First {
    lossless: bool,
    /// Range of its bit stream.
    body: Range<usize>,
    size: (u32, u32),
    left: u32,
    top: u32,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Header> {
        let size = take(bytes, 4, 4, "WebP")?;
        let end =
            (u32::from_le_bytes(size.try_into().expect("4 bytes")) as usize).saturating_add(8);
        let kind = take(bytes, 12, 8, "WebP")?[..4]
            .first_chunk::<4>()
            .expect("4 of 8 bytes");
        let (width, height) = match kind {
            b"VP8X" => {
                let body = take(bytes, 20, 10, "WebP")?;
                (u24(body, 4) + 1, u24(body, 7) + 1)
            }
            b"VP8 " => lossy_size(&bytes[20..])?,
            b"VP8L" => lossless_size(&bytes[20..])?,
            _ => {
                return WebP.corrupt(&format!(
                    "its first chunk is {:?}",
                    kind.escape_ascii().to_string()
                ));
            }
        };
        let mut header = Header {
            width,
            height,
            orientation: None,
            first: Ok(First::NONE),
        };
        header.first = header.walk(bytes, end);
        Ok(header)
    }

    /// Finds the first image, and checks that all chunks are there.
    fn walk(&mut self, bytes: &[u8], end: usize) -> Result<First> {
        let (mut at, mut found) = (12, None);
        let extended = bytes[12..].starts_with(b"VP8X");
        let animated = extended && bytes[20] & 2 != 0;
        while at < end {
            let (kind, body) = chunk(bytes, at)?;
            if body.end > end {
                return WebP.corrupt(&format!(
                    "a chunk ends at byte {}, after its end at {end}",
                    body.end
                ));
            }
            at = body.end + (body.len() & 1);
            match kind {
                b"VP8 " | b"VP8L" if found.is_none() && !animated => {
                    found = Some(First::at(bytes, kind, body, (0, 0))?);
                    if !extended {
                        break;
                    }
                }
                b"ANMF" if found.is_none() && animated => {
                    found = Some(First::of_frame(bytes, body)?)
                }
                b"EXIF" if self.orientation.is_none() => {
                    let exif = &bytes[body];
                    self.orientation = Orientation::from_exif_chunk(
                        exif.strip_prefix(b"Exif\0\0").unwrap_or(exif),
                    );
                }
                _ => {}
            }
        }
        take(bytes, 0, end, "WebP")?;
        let Some(first) = found else {
            return WebP.corrupt("it has no image");
        };
        let canvas = (self.width, self.height);
        let (right, bottom) = (first.left + first.size.0, first.top + first.size.1);
        if right > canvas.0 || bottom > canvas.1 || (!animated && first.size != canvas) {
            let ((x, y), (w, h)) = ((first.left, first.top), first.size);
            let (width, height) = canvas;
            return WebP.corrupt(&format!(
                "an image of {w}x{h} at ({x}, {y}) on a canvas of {width}x{height}"
            ));
        }
        Ok(first)
    }

    /// Returns about how much memory decoding takes: the planes or RGBA, RGB, and the decoder's own
    /// buffers.
    pub(super) fn memory(&self) -> u64 {
        let frame = self.first.as_ref().map_or((0, 0), |first| first.size);
        let canvas = if frame == (self.width, self.height) {
            0
        } else {
            3
        };
        8 * u64::from(frame.0) * u64::from(frame.1)
            + canvas * u64::from(self.width) * u64::from(self.height)
    }
}

impl First {
    const NONE: First = First {
        lossless: false,
        body: 0..0,
        size: (0, 0),
        left: 0,
        top: 0,
    };

    fn at(
        bytes: &[u8],
        kind: &[u8; 4],
        body: Range<usize>,
        (left, top): (u32, u32),
    ) -> Result<First> {
        let lossless = kind == b"VP8L";
        let stream = &bytes[body.clone()];
        let size = if lossless {
            lossless_size(stream)?
        } else {
            lossy_size(stream)?
        };
        Ok(First {
            lossless,
            body,
            size,
            left,
            top,
        })
    }

    /// Reads a frame of an animation.
    fn of_frame(bytes: &[u8], frame: Range<usize>) -> Result<First> {
        let place = take(&bytes[..frame.end], frame.start, 16, "WebP")?;
        let told = (u24(place, 6) + 1, u24(place, 9) + 1);
        let mut at = frame.start + 16;
        loop {
            let (kind, body) = chunk(&bytes[..frame.end], at)?;
            at = body.end + (body.len() & 1);
            if matches!(kind, b"VP8 " | b"VP8L") {
                let first = First::at(bytes, kind, body, (2 * u24(place, 0), 2 * u24(place, 3)))?;
                if first.size != told {
                    let ((w, h), (width, height)) = (first.size, told);
                    return WebP.corrupt(&format!(
                        "a frame of {width}x{height} holds an image of {w}x{h}"
                    ));
                }
                return Ok(first);
            }
        }
    }

    /// Makes a file of the image alone.
    fn alone(&self, bytes: &[u8]) -> Vec<u8> {
        let stream = &bytes[self.body.clone()];
        let padding = stream.len() & 1;
        let mut file = Vec::with_capacity(20 + stream.len() + padding);
        file.extend(b"RIFF");
        file.extend((12 + stream.len() + padding).to_le_bytes().iter().take(4));
        file.extend(b"WEBP");
        file.extend(if self.lossless { b"VP8L" } else { b"VP8 " });
        file.extend(stream.len().to_le_bytes().iter().take(4));
        file.extend(stream);
        file.resize(file.len() + padding, 0);
        file
    }
}

pub(super) fn decode(bytes: &[u8], header: Header) -> Result<Image> {
    let first = header.first?;
    let file = first.alone(bytes);
    let decoder =
        WebPDecoder::new(Cursor::new(file.as_slice())).map_err(|error| WebP.failed(error))?;
    let (width, height) = first.size;
    let channels = decoder.color_type().channel_count();
    let mut frame = vec![0; width as usize * height as usize * usize::from(channels)];
    decoder
        .read_image(&mut frame)
        .map_err(|error| WebP.failed(error))?;
    if channels == 3 && first.size == (header.width, header.height) {
        return Image::new(width, height, 3, frame);
    }
    let mut canvas = Image::black(header.width, header.height, 3);
    let at = Rect {
        x: first.left,
        y: first.top,
        width,
        height,
    };
    canvas.paste(&frame, at);
    Ok(canvas)
}

/// Returns a chunk's type, and the range of its body.
fn chunk(bytes: &[u8], at: usize) -> Result<(&[u8; 4], Range<usize>)> {
    let head = take(bytes, at, 8, "WebP")?;
    let (kind, len) = head
        .split_first_chunk::<4>()
        .expect("8 bytes are more than 4");
    let len = u32::from_le_bytes(len.try_into().expect("half of 8 bytes")) as usize;
    take(bytes, at + 8, len, "WebP")?;
    Ok((kind, at + 8..at + 8 + len))
}

fn lossy_size(stream: &[u8]) -> Result<(u32, u32)> {
    let head = take(stream, 0, 10, "WebP")?;
    if head[0] & 1 != 0 || head[3..6] != [0x9d, 0x01, 0x2a] {
        return WebP.corrupt("its bit stream does not begin with a key frame");
    }
    let edge = |at: usize| u32::from(u16::from_le_bytes([head[at], head[at + 1]]) & 0x3fff);
    let (width, height) = (edge(6), edge(8));
    if width == 0 || height == 0 {
        return WebP.corrupt(&format!("its size is {width}x{height}"));
    }
    Ok((width, height))
}

fn lossless_size(stream: &[u8]) -> Result<(u32, u32)> {
    let head = take(stream, 0, 5, "WebP")?;
    let bits = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    if head[0] != 0x2f || bits >> 29 != 0 {
        return WebP.corrupt("its bit stream does not begin as a lossless one");
    }
    Ok(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
}

fn u24(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], 0])
}
