//! Decoding of images: detection of the format, limits, orientation.

mod bmp;
mod checked;
mod classes;
mod directory;
mod format;
mod gif;
mod jpeg;
mod part;
mod pixels;
mod png;
mod tiff;
#[cfg(feature = "turbo")]
mod turbo;
mod turn;
mod webp;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, Hints, Items, Pipe, Result, catch_panic};
use image::metadata::Orientation;

pub(crate) use self::classes::{Classes, classes};
use self::format::sniff;
#[cfg(not(feature = "turbo"))]
use self::jpeg::decode_part as part_of_jpeg;
pub(crate) use self::part::{Memory, Wanted};
use self::pixels::Pixels;
#[cfg(feature = "turbo")]
use self::turbo::decode_part as part_of_jpeg;
use self::turn::Turn;
use crate::image::MAX_PIXELS;
use crate::{Image, Rect};

pub use self::format::ImageFormat;

/// Decodes an image of any [`ImageFormat`] to RGB with the default settings; see [`DecodeImage`].
///
/// ```
/// # let mut file = Vec::new();
/// # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
/// let image = datapipes_image::decode(&file)?;
/// assert_eq!((image.width(), image.height(), image.channels()), (64, 48, 3));
/// assert_eq!(datapipes_image::dimensions(&file)?, (64, 48));
///
/// let error = datapipes_image::decode(b"<!DOCTYPE html>").unwrap_err();
/// assert_eq!(error.kind(), datapipes::ErrorKind::Unsupported);
/// assert!(error.to_string().contains(r#"it starts with 3c 21 44 4f 43 54 59 50, "<!DOCTYP""#), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`DecodeImage::decode`].
pub fn decode(bytes: &[u8]) -> Result<Image> {
    DecodeImage::new().decode(bytes)
}

/// Decodes a part of a JPEG, scaled by 1/`scale`, which is 1, 2, 4 or 8. The pixels are those
/// stored in the file: the EXIF orientation is not applied.
///
/// The scaled image has its width and height divided by `scale` and rounded up; `part` lies in the
/// scaled image. The pixels are those of libjpeg-turbo at that scale (Pillow's `draft`), whatever
/// the part is. Compressed data is read down to the part's last row of blocks, so later damage is
/// not found, except for a missing end of the file. Data to the left and right of the part is only
/// parsed. The limits are those of [`DecodeImage::new`]. Between images, a thread keeps its
/// buffers.
///
/// ```
/// # use datapipes_image::{Rect, crop, decode, decode_jpeg_part};
/// # let mut file = Vec::new();
/// # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
/// let part = Rect { x: 9, y: 5, width: 30, height: 20 };
/// assert_eq!(decode_jpeg_part(&file, 1, part)?, crop(&decode(&file)?, part)?);
/// let small = decode_jpeg_part(&file, 8, Rect { x: 0, y: 0, width: 8, height: 6 })?;
/// assert_eq!((small.width(), small.height()), (8, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`DecodeImage::decode`]; [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) if the file is not a JPEG,
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) for another scale, [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the part is empty or not inside
/// the scaled image.
pub fn decode_jpeg_part(bytes: &[u8], scale: u32, part: Rect) -> Result<Image> {
    guarded(|| part_of_file(bytes, scale, part))
}

fn part_of_file(bytes: &[u8], scale: u32, part: Rect) -> Result<Image> {
    if !matches!(scale, 1 | 2 | 4 | 8) {
        let message = format!("a JPEG cannot be scaled by 1/{scale}, only by 1, 1/2, 1/4 and 1/8");
        return Err(Error::config(message));
    }
    let format = sniff(bytes)?;
    if format != ImageFormat::Jpeg {
        return Err(Error::unsupported(format!(
            "only a JPEG is decoded in part, not a {format}"
        )));
    }
    let header = jpeg::Header::read(bytes)?;
    DecodeImage::new().check(header.width, header.height, header.memory(), format)?;
    image_of_jpeg(bytes, &header, scale, part)
}

fn image_of_jpeg(bytes: &[u8], header: &jpeg::Header, scale: u32, part: Rect) -> Result<Image> {
    let mut pixels = Pixels::default();
    part_of_jpeg(bytes, header, scale, part, &mut pixels)?;
    Image::new(pixels.width, pixels.height, 3, pixels.data)
}

/// Returns the width and height of the result of [`decode`], from the headers alone.
///
/// # Errors
/// As [`DecodeImage::decode`], but nothing after the headers is read.
pub fn dimensions(bytes: &[u8]) -> Result<(u32, u32)> {
    DecodeImage::new().dimensions(bytes)
}

/// Decodes image files to RGB; a pipe over [`Bytes`].
///
/// The format is detected by the first bytes, never by a name. The result is always 8-bit RGB:
///
/// - gray becomes three equal channels, palette indices become their colours, 16 bits become the
///   nearest 8;
/// - **alpha is dropped**, not composited, as Pillow's `convert("RGB")` does;
/// - CMYK and YCCK JPEGs by Adobe's convention become RGB without a colour profile, as with Pillow;
///   those without an Adobe marker, and all other files whose pixels could be wrong, are
///   [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported);
/// - the EXIF orientation is applied, unless
///   [`ignore_orientation`](DecodeImage::ignore_orientation) is set; an orientation out of range
///   counts as upright. Colour profiles and gamma are not applied.
///
/// If a file has several images, the first is decoded.
///
/// | format | read | not read: [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) | as Pillow 13 |
/// |---|---|---|---|
/// | JPEG | baseline, progressive; gray, YCbCr, RGB, CMYK, YCCK; all samplings by whole factors | arithmetic, lossless, 12 bits, odd sampling | equal |
/// | PNG | 1 to 16 bits, palette, interlaced, alpha; the first image of an animation | | equal |
/// | WebP | lossy, lossless, alpha; the first frame of an animation, on black | | equal |
/// | GIF | the first frame; a larger screen gets the transparent colour, else the palette's first | | equal |
/// | BMP | 1 to 32 bits, masks, RLE4 and RLE8, rows from the top | run lengths with gaps, a JPEG or PNG in it, OS/2 headers | equal; 16 bits: within 1 |
/// | TIFF | gray of 1, 8 and 16 bits, RGB of 8 and 16 with alpha or without, palette and CMYK of 8; strips, tiles, planes in strips; LZW, deflate, PackBits; BigTIFF; the first page | floats, signed, other bits, gray with alpha, YCbCr, JPEG, fax, planes in tiles | equal |
///
/// Pillow does not round 16 bits but truncates them to the upper 8, so it is 1 below at times, and
/// it turns 16-bit gray above 255 to white. In all other respects, the results were equal for the
/// 660 files that both read, from Pillow's own tests, an operating system and photographs; every
/// WebP, including lossy ones, was equal.
///
/// The orientation is read from the EXIF data of JPEG, PNG (`eXIf`), WebP (`EXIF`) and TIFF (tag
/// 274), not from XMP.
///
/// **JPEGs** are decoded to libjpeg-turbo's pixels, to the bit, as with Pillow: its accurate
/// integer transform, its weighted ("fancy") upsampling of chroma, its colours. Baseline, extended
/// and progressive Huffman coding with 8 bits are supported completely: 1, 3 or 4 components, scans
/// in any order, restart markers, all sampling factors of which each divides the largest. This
/// decoder is stricter than libjpeg: if libjpeg fills in gray with a warning, or silently accepts a
/// block of too many coefficients, the result is an error. A progressive image with coefficients
/// that are not known to the last bit is an error, too; libjpeg smooths it. Arithmetic and lossless
/// coding and 12 bits are [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported). Between images each thread keeps up to some
/// 16 MiB of buffers, so that only the pixels are allocated.
///
/// With the feature `turbo`, libjpeg-turbo itself decodes JPEGs of one scan, gray or of three
/// components, to the same pixels. If it warns or fails, the result is that of this decoder, pixels
/// or error. Damage that it accepts without a warning, such as a block of too many coefficients, is
/// an error only without the feature.
#[derive(Clone, Debug)]
#[must_use]
pub struct DecodeImage {
    max_pixels: u64,
    max_bytes: u64,
    orient: bool,
}

impl Default for DecodeImage {
    fn default() -> Self {
        DecodeImage {
            max_pixels: MAX_PIXELS,
            max_bytes: 512 << 20,
            orient: true,
        }
    }
}

impl DecodeImage {
    /// Makes a decoder with the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    datapipes::setters! {
        /// Refuses images with more pixels. Defaults to 178,956,970, as with Pillow.
        max_pixels(pixels: u64) => max_pixels = pixels;

        /// Refuses images whose decoding needs more memory. Defaults to 512 MiB.
        max_bytes(bytes: u64) => max_bytes = bytes;

        /// Leaves pixels as they are stored, whatever the EXIF orientation is.
        ignore_orientation() => orient = false;
    }

    /// Decodes one file.
    ///
    /// # Errors
    /// - [`ErrorKind::Truncated`](datapipes::ErrorKind::Truncated) if the file ends early, also if all pixels are there but the end
    ///   is not: the end marker of a JPEG or GIF, a later frame or page, or data that the chunks of
    ///   a PNG or WebP announce.
    /// - [`ErrorKind::Corrupt`](datapipes::ErrorKind::Corrupt) if it is a damaged image. Damage inside compressed data often
    ///   decodes to pixels: only PNG has checksums, of its chunks and of the stream of pixels
    ///   inside them. Both are compared.
    /// - [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) if it is of no [`ImageFormat`], be it another image format or
    ///   something else, or uses an unsupported feature.
    /// - [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if it has too many pixels, needs too much memory, or has over 100
    ///   scans. Sizes are checked before anything is allocated.
    pub fn decode(&self, bytes: &[u8]) -> Result<Image> {
        guarded(|| self.decode_unguarded(bytes))
    }

    fn decode_unguarded(&self, bytes: &[u8]) -> Result<Image> {
        let (format, header) = Header::read(bytes)?;
        let HeaderFacts {
            width,
            height,
            memory,
            orientation,
        } = header.facts();
        self.check(width, height, memory, format)?;
        let image = match header {
            Header::Jpeg(header) => {
                let whole = Rect {
                    x: 0,
                    y: 0,
                    width,
                    height,
                };
                image_of_jpeg(bytes, &header, 1, whole)?
            }
            Header::Png(header) => png::decode(bytes, header, self.max_bytes)?,
            Header::WebP(header) => webp::decode(bytes, header)?,
            Header::Gif(header) => gif::decode(bytes, &header)?,
            Header::Bmp(header) => bmp::decode(bytes, &header)?,
            Header::Tiff(header) => tiff::decode(&header, self.max_bytes)?,
        };
        self.turned(image, self.turn(orientation))
    }

    /// Returns the turn that makes an image upright, unless it is to stay as it is stored.
    fn turn(&self, orientation: Option<Orientation>) -> Turn {
        orientation
            .filter(|_| self.orient)
            .map_or(Turn::default(), Turn::from)
    }

    /// Turns an image by its EXIF orientation.
    fn turned(&self, image: Image, turn: Turn) -> Result<Image> {
        if turn.is_none() {
            return Ok(image);
        }
        self.check_turn(image.width(), image.height())?;
        let (mut stored, mut upright) = (Pixels::default(), Pixels::default());
        stored.take(image);
        turn.apply(&stored, &mut upright);
        Image::new(upright.width, upright.height, 3, upright.data)
    }

    /// Checks the limit for turning, which takes a copy.
    fn check_turn(&self, width: u32, height: u32) -> Result<()> {
        let bytes = 6 * u64::from(width) * u64::from(height);
        if bytes > self.max_bytes {
            let limit = self.max_bytes;
            return Err(Error::limit(format!(
                "turning an image of {width}x{height} needs {bytes} bytes, more than {limit}"
            )));
        }
        Ok(())
    }

    /// Returns the width and height of the result of [`decode`](DecodeImage::decode), from the
    /// headers alone. Limits do not apply.
    ///
    /// # Errors
    /// As [`decode`](DecodeImage::decode), but nothing after the headers is read.
    pub fn dimensions(&self, bytes: &[u8]) -> Result<(u32, u32)> {
        guarded(|| self.dimensions_unguarded(bytes))
    }

    fn dimensions_unguarded(&self, bytes: &[u8]) -> Result<(u32, u32)> {
        let (_, header) = Header::read(bytes)?;
        let facts = header.facts();
        Ok(self.turn(facts.orientation).size(facts.width, facts.height))
    }

    fn check(&self, width: u32, height: u32, memory: u64, format: ImageFormat) -> Result<()> {
        let format = format.name();
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.max_pixels {
            let limit = self.max_pixels;
            let message =
                format!("a {format} of {width}x{height} has {pixels} pixels, more than {limit}");
            return Err(Error::limit(message));
        }
        if memory > self.max_bytes {
            let limit = self.max_bytes;
            let message =
                format!("a {format} of {width}x{height} needs {memory} bytes, more than {limit}");
            return Err(Error::limit(message));
        }
        Ok(())
    }
}

impl Pipe<Bytes> for DecodeImage {
    type Out = Image;

    fn apply(&self, input: Items<Bytes>, cx: &Context) -> Items<Image> {
        let this = self.clone();
        input.each(cx, move |item| {
            Some(item.try_map(|bytes| this.decode(&bytes)))
        })
    }
    fn hints(&self) -> Hints {
        let DecodeImage {
            max_pixels,
            max_bytes,
            orient,
        } = self;
        let stored = if *orient { "" } else { ", as stored" };
        Hints::shardable().arity(Arity::One).settings(format_args!(
            "{max_pixels} pixels, {max_bytes} bytes{stored}"
        ))
    }
    fn weigh(&self, image: &Image) -> Option<usize> {
        Some(datapipes::Weigh::weigh(image))
    }
}

/// The header of a file, by its format.
enum Header<'a> {
    Jpeg(jpeg::Header),
    Png(png::Header),
    WebP(webp::Header),
    Gif(gif::Header<'a>),
    Bmp(bmp::Header),
    Tiff(tiff::Header<'a>),
}

/// Facts that the header of any format tells.
struct HeaderFacts {
    width: u32,
    height: u32,
    /// Bytes that decoding needs.
    memory: u64,
    orientation: Option<Orientation>,
}

impl<'a> Header<'a> {
    fn read(bytes: &'a [u8]) -> Result<(ImageFormat, Self)> {
        let format = sniff(bytes)?;
        let header = match format {
            ImageFormat::Jpeg => Header::Jpeg(jpeg::Header::read(bytes)?),
            ImageFormat::Png => Header::Png(png::Header::read(bytes)?),
            ImageFormat::WebP => Header::WebP(webp::Header::read(bytes)?),
            ImageFormat::Gif => Header::Gif(gif::Header::read(bytes)?),
            ImageFormat::Bmp => Header::Bmp(bmp::Header::read(bytes)?),
            ImageFormat::Tiff => Header::Tiff(tiff::Header::read(bytes)?),
        };
        Ok((format, header))
    }

    fn facts(&self) -> HeaderFacts {
        let (width, height, memory, orientation) = match self {
            Header::Jpeg(h) => (h.width, h.height, h.memory(), h.orientation),
            Header::Png(h) => (h.width, h.height, h.memory(), h.orientation),
            Header::WebP(h) => (h.width, h.height, h.memory(), h.orientation),
            Header::Gif(h) => (h.width, h.height, h.memory(), None),
            Header::Bmp(h) => (h.width, h.height, h.memory(), None),
            Header::Tiff(h) => (h.width, h.height, h.memory(), h.orientation),
        };
        HeaderFacts {
            width,
            height,
            memory,
            orientation,
        }
    }
}

/// Calls a decoder. A panic becomes an error of the image; the decoder keeps no state between two
/// images.
fn guarded<R>(decode: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_panic(decode).unwrap_or_else(|panic| Err(Error::corrupt(format!("the decoder {panic}"))))
}

/// Returns bytes from `start` on, or an error that the file ends there.
fn take<'a>(bytes: &'a [u8], start: usize, len: usize, format: &str) -> Result<&'a [u8]> {
    let end = start.checked_add(len).filter(|&end| end <= bytes.len());
    end.map(|end| &bytes[start..end]).ok_or_else(|| {
        Error::truncated(format!(
            "a {format} of {} bytes ends before byte {}",
            bytes.len(),
            start.saturating_add(len)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn row_114_a_decoders_panic_is_an_error_about_the_picture() {
        let error = guarded::<Image>(|| panic!("index out of bounds")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.kind().is_about_an_item(), "a policy may skip it");
        assert!(
            error.to_string().contains("the decoder panicked: "),
            "{error}"
        );
        assert!(error.to_string().contains("index out of bounds"), "{error}");
    }

    /// The part of the test below that runs as its child; does nothing otherwise.
    #[test]
    #[ignore = "a child of the next test"]
    fn child() {
        guarded::<Image>(|| panic!("index out of bounds")).unwrap_err();
    }

    #[test]
    fn row_114_a_decoders_panic_prints_nothing() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "decode::tests::child",
            ])
            .output()
            .unwrap();
        let (out, said) = (
            String::from_utf8_lossy(&child.stdout),
            String::from_utf8_lossy(&child.stderr),
        );
        assert!(child.status.success() && out.contains("1 passed"), "{out}");
        assert_eq!(said, "");
    }
}
