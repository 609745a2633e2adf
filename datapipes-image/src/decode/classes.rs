//! Classes of a mask in a PNG: indices and gray values as they are stored.
//!
//! The decoder of the `image` crate looks up colours and spreads gray values over 8 bits. It is
//! therefore given the same pixels under a gray header, without a palette, and the spread values
//! are divided back, which is exact.

use datapipes::{Error, Result};
use image::codecs::png::PngDecoder;
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, Limits};

use super::checked::{Checked, chunk};
use super::format::{self, sniff};
use super::png::Header;
use super::{DecodeImage, ImageFormat, guarded};

const GRAY: u8 = 0;
const PALETTE: u8 = 3;

/// Values as they are stored: up to 8 bits, or 16.
pub(crate) enum Classes {
    Bytes(Vec<u8>),
    Words(Vec<u16>),
}

/// Returns width, height and values of a PNG that is gray or has a palette; the limits are those of
/// [`DecodeImage::new`].
pub(crate) fn classes(bytes: &[u8]) -> Result<(u32, u32, Classes)> {
    guarded(|| read(bytes))
}

fn read(bytes: &[u8]) -> Result<(u32, u32, Classes)> {
    let png = ImageFormat::Png;
    let format = sniff(bytes)?;
    if format != png {
        return Err(Error::unsupported(format!(
            "a mask is read from a PNG, not a {format}, which changes classes or has colours for them"
        )));
    }
    let header = Header::read(bytes)?;
    match header.color {
        GRAY | PALETTE => {}
        2 => {
            return png
                .unsupported("colours for a mask: classes are gray values or a palette's indices");
        }
        4 | 6 => {
            return png.unsupported(
                "an alpha channel for a mask: classes are gray values or a palette's indices",
            );
        }
        other => return png.corrupt(&format!("its colour type is {other}")),
    }
    if !matches!(
        (header.color, header.depth),
        (_, 1 | 2 | 4 | 8) | (GRAY, 16)
    ) {
        return png.corrupt(&format!(
            "it has {} bits of colour type {}",
            header.depth, header.color
        ));
    }
    let settings = DecodeImage::new();
    let (width, height) = (header.width, header.height);
    settings.check(width, height, header.memory(), ImageFormat::Png)?;
    if header
        .orientation
        .is_some_and(|orientation| orientation != Orientation::NoTransforms)
    {
        return png.unsupported("an EXIF orientation for a mask");
    }
    let depth = header.depth;
    header.ends?;

    let file = as_gray(bytes)?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(settings.max_bytes);
    let failed = |error| png.failed(error);
    let decoder =
        PngDecoder::with_limits(Checked::new(&file, settings.max_bytes), limits).map_err(failed)?;
    let wanted = if depth == 16 {
        ColorType::L16
    } else {
        ColorType::L8
    };
    if decoder.color_type() != wanted {
        return png.corrupt(&format!(
            "gray of {depth} bits became {:?}",
            decoder.color_type()
        ));
    }
    // The size has been checked.
    let mut values = vec![0; decoder.total_bytes() as usize];
    decoder.read_image(&mut values).map_err(failed)?;
    if depth == 16 {
        let words = values
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&word| u16::from_ne_bytes(word))
            .collect();
        return Ok((width, height, Classes::Words(words)));
    }
    if depth < 8 {
        let step = 255 / ((1 << depth) - 1);
        values.iter_mut().for_each(|value| *value /= step);
    }
    Ok((width, height, Classes::Bytes(values)))
}

/// Makes a PNG of the same pixels as gray values, without other chunks.
fn as_gray(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut at = format::PNG.len();
    let mut file = Vec::with_capacity(bytes.len());
    file.extend(format::PNG);
    loop {
        let (kind, body, next) = chunk(bytes, at)?;
        match kind {
            b"IHDR" if at == format::PNG.len() => {
                // The decoder will check only the checksum of the new chunk.
                if bytes[next - 4..next] != crc32fast::hash(&bytes[at + 4..next - 4]).to_be_bytes()
                {
                    return ImageFormat::Png.corrupt("the checksum of its header is wrong");
                }
                let [size @ .., depth, _, compression, filter, interlace] = body else {
                    return ImageFormat::Png.corrupt("its header is short");
                };
                let start = file.len();
                file.extend(&bytes[at..at + 8]);
                file.extend(size);
                file.extend([*depth, GRAY, *compression, *filter, *interlace]);
                let sum = crc32fast::hash(&file[start + 4..]);
                file.extend(sum.to_be_bytes());
            }
            b"IDAT" | b"IEND" => file.extend(&bytes[at..next]),
            _ => {}
        }
        if kind == b"IEND" {
            return Ok(file);
        }
        at = next;
    }
}
