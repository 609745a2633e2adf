//! Decodes pictures: which format it is, what is allowed, which way is up.

mod jpeg;
mod pixels;
mod png;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, ErrorKind, Facts, Items, Pipe, Result};
use image::DynamicImage;
use image::metadata::Orientation;

use self::pixels::Pixels;
use crate::image::MAX_PIXELS;
use crate::{Image, Rect};

/// Decodes a JPEG or PNG to RGB with the usual settings; see [`DecodeImage`].
///
/// ```
/// # let mut file = Vec::new();
/// # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
/// let image = datapipes_image::decode(&file)?;
/// assert_eq!((image.width(), image.height(), image.channels()), (64, 48, 3));
/// assert_eq!(datapipes_image::dimensions(&file)?, (64, 48));
///
/// let error = datapipes_image::decode(b"<!DOCTYPE html>").unwrap_err();
/// assert_eq!(error.to_string(), r#"corrupt: not an image: it starts with 3c 21 44 4f 43 54 59 50, "<!DOCTYP""#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`DecodeImage::decode`].
pub fn decode(bytes: &[u8]) -> Result<Image> {
    DecodeImage::new().decode(bytes)
}

/// Decodes a part of a JPEG, scaled by 1/`scale`, which is 1, 2, 4 or 8, as it is stored: EXIF orientation is not applied.
///
/// The scaled picture has its width and height divided by `scale` and rounded up; `part` lies in that. The pixels are
/// those of libjpeg-turbo at that scale (Pillow's `draft`), whatever the part is. Compressed data is read down to the
/// part's last row of blocks, so damage behind that is not found, but for a missing end of the file; left and right of
/// the part it is only parsed. The limits are those of [`DecodeImage::new`]. Between pictures, a thread keeps its
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
/// As [`DecodeImage::decode`]; [`ErrorKind::Unsupported`] if it is not a JPEG, [`ErrorKind::Config`] for another
/// scale, [`ErrorKind::Shape`] if the part is empty or not inside the scaled picture.
pub fn decode_jpeg_part(bytes: &[u8], scale: u32, part: Rect) -> Result<Image> {
    let format = sniff(bytes)?;
    if format != ImageFormat::Jpeg {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("only a JPEG is decoded in part, not a {format}"),
        ));
    }
    let header = jpeg::Header::read(bytes)?;
    DecodeImage::new().check(header.width, header.height, header.memory(), "JPEG")?;
    let mut pixels = Pixels::default();
    jpeg::decode_part(bytes, &header, scale, part, &mut pixels)?;
    Image::new(pixels.width, pixels.height, 3, pixels.data)
}

/// The width and height that [`decode`] would give, from the headers alone.
///
/// # Errors
/// As [`DecodeImage::decode`], but nothing behind the headers is looked at.
pub fn dimensions(bytes: &[u8]) -> Result<(u32, u32)> {
    DecodeImage::new().dimensions(bytes)
}

/// Decodes JPEG and PNG files to RGB; a pipe over [`Bytes`].
///
/// The format is told by the first bytes, never by a name. What comes out is always 8-bit RGB:
///
/// - gray becomes three equal channels, a palette its colours, 16 bits the nearest 8;
/// - **alpha is dropped**, not composited, as Pillow's `convert("RGB")` does;
/// - CMYK and YCCK JPEGs by Adobe's convention become RGB without a colour profile, as with Pillow; those
///   without an Adobe marker, and all else whose pixels could come out wrong, are [`ErrorKind::Unsupported`];
/// - the EXIF orientation is applied, unless [`ignore_orientation`](DecodeImage::ignore_orientation) is set; an
///   orientation out of range counts as upright. Colour profiles and gamma are not applied.
///
/// Of an animated PNG, the first picture is decoded.
///
/// **JPEGs** come out with libjpeg-turbo's pixels, to the bit, as with Pillow: its accurate integer transform, its
/// weighted ("fancy") upsampling of chroma, its colours. All of baseline, extended and progressive Huffman coding with 8
/// bits is read: 1, 3 or 4 components, scans in any order, restart markers, all sampling factors of which each divides
/// the largest. It is stricter: where libjpeg fills in gray with a warning, or says nothing of a block of too many
/// coefficients, there is an error; so there is for a progressive picture some of whose coefficients are not told to
/// the last bit, which libjpeg smooths. Arithmetic and lossless coding, 12 bits and a height that is told late are
/// [`ErrorKind::Unsupported`]. Between pictures each thread keeps up to some 16 MiB of buffers, so that the pixels are
/// all that is allocated.
#[derive(Clone, Debug)]
pub struct DecodeImage {
    max_pixels: u64,
    max_bytes: u64,
    orient: bool,
}

impl Default for DecodeImage {
    fn default() -> Self {
        DecodeImage { max_pixels: MAX_PIXELS, max_bytes: 512 << 20, orient: true }
    }
}

impl DecodeImage {
    /// The usual settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses pictures with more pixels. By default 178,956,970, as Pillow.
    pub fn max_pixels(self, pixels: u64) -> Self {
        DecodeImage { max_pixels: pixels, ..self }
    }

    /// Refuses pictures whose decoding needs more memory. By default 512 MiB.
    pub fn max_bytes(self, bytes: u64) -> Self {
        DecodeImage { max_bytes: bytes, ..self }
    }

    /// Leaves pixels as they are stored, whatever the EXIF orientation says.
    pub fn ignore_orientation(self) -> Self {
        DecodeImage { orient: false, ..self }
    }

    /// Decodes one file.
    ///
    /// # Errors
    /// - [`ErrorKind::Truncated`] if the file ends early; also if a JPEG has all of its pixels but not its end
    ///   marker.
    /// - [`ErrorKind::Corrupt`] if it is not an image, or a damaged one. Damage inside a JPEG's compressed data
    ///   often decodes to something: the format has no checksum. In a PNG it is found.
    /// - [`ErrorKind::Unsupported`] if it is another format, or uses a feature that is not read.
    /// - [`ErrorKind::Limit`] if it has too many pixels, needs too much memory, or has over 100 scans. Sizes are
    ///   checked before anything is allocated.
    pub fn decode(&self, bytes: &[u8]) -> Result<Image> {
        // A decoder that panics on one picture has said something of that picture, and keeps nothing between two.
        std::panic::catch_unwind(|| self.decode_unguarded(bytes)).unwrap_or_else(|payload| {
            let what = format!("the decoder panicked: {}", Error::panic(payload));
            Err(Error::new(ErrorKind::Corrupt, what))
        })
    }

    fn decode_unguarded(&self, bytes: &[u8]) -> Result<Image> {
        let (image, orientation) = match sniff(bytes)? {
            ImageFormat::Jpeg => {
                let header = jpeg::Header::read(bytes)?;
                self.check(header.width, header.height, header.memory(), "JPEG")?;
                (jpeg::decode(bytes, &header)?, header.orientation)
            }
            ImageFormat::Png => {
                let header = png::Header::read(bytes)?;
                self.check(header.width, header.height, header.memory(), "PNG")?;
                let orientation = header.orientation;
                (png::decode(bytes, header, self.max_bytes)?, orientation)
            }
        };
        match orientation {
            Some(orientation) if self.orient => orient(image, orientation),
            _ => Ok(image),
        }
    }

    /// The width and height that [`decode`](DecodeImage::decode) would give, from the headers alone. Limits do not
    /// apply.
    ///
    /// # Errors
    /// As [`decode`](DecodeImage::decode), but nothing behind the headers is looked at.
    pub fn dimensions(&self, bytes: &[u8]) -> Result<(u32, u32)> {
        let (width, height, orientation) = match sniff(bytes)? {
            ImageFormat::Jpeg => {
                let header = jpeg::Header::read(bytes)?;
                (header.width, header.height, header.orientation)
            }
            ImageFormat::Png => {
                let header = png::Header::read(bytes)?;
                (header.width, header.height, header.orientation)
            }
        };
        use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
        match orientation {
            Some(Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH) if self.orient => Ok((height, width)),
            _ => Ok((width, height)),
        }
    }

    fn check(&self, width: u32, height: u32, memory: u64, format: &str) -> Result<()> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.max_pixels {
            let limit = self.max_pixels;
            let message = format!("a {format} of {width}x{height} has {pixels} pixels, more than {limit}");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        if memory > self.max_bytes {
            let limit = self.max_bytes;
            let message = format!("a {format} of {width}x{height} needs {memory} bytes, more than {limit}");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        Ok(())
    }
}

impl Pipe<Bytes> for DecodeImage {
    type Out = Image;

    fn apply(&self, input: Items<Bytes>, cx: &Context) -> Items<Image> {
        let this = self.clone();
        input.each(cx, move |item| Some(item.try_map(|bytes| this.decode(&bytes))))
    }
    fn is_shardable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::One
    }
    fn facts(&self) -> Facts {
        let DecodeImage { max_pixels, max_bytes, orient } = self;
        let stored = if *orient { "" } else { ", as stored" };
        Facts::any_order().with_settings(format_args!("{max_pixels} pixels, {max_bytes} bytes{stored}"))
    }
    fn weigh(&self, image: &Image) -> Option<usize> {
        Some(image.data().len())
    }
}

/// A format of pictures that [`DecodeImage`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
}

impl ImageFormat {
    /// The format of a file that begins with these bytes; `None` for what is not read.
    ///
    /// ```
    /// use datapipes_image::ImageFormat;
    /// assert_eq!(ImageFormat::of(b"\xff\xd8\xff\xe0").map(|format| format.to_string()).as_deref(), Some("jpeg"));
    /// assert_eq!(ImageFormat::of(b"GIF89a"), None);
    /// ```
    pub fn of(bytes: &[u8]) -> Option<ImageFormat> {
        sniff(bytes).ok()
    }
}

impl std::fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ImageFormat::Jpeg => "jpeg",
            ImageFormat::Png => "png",
        })
    }
}

const JPEG: &[u8] = b"\xff\xd8\xff";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Which format it is, by its first bytes.
fn sniff(bytes: &[u8]) -> Result<ImageFormat> {
    if bytes.starts_with(JPEG) {
        return Ok(ImageFormat::Jpeg);
    }
    if bytes.starts_with(PNG) {
        return Ok(ImageFormat::Png);
    }
    if JPEG.starts_with(bytes) || PNG.starts_with(bytes) {
        let message = format!("{} bytes are not an image", bytes.len());
        return Err(Error::new(ErrorKind::Truncated, message));
    }
    let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
    let other = match part(0..4) {
        b"GIF8" => "GIF",
        b"RIFF" if part(8..12) == b"WEBP" => "WebP",
        b"II*\0" | b"MM\0*" => "TIFF",
        b"\0\0\0\x0c" if part(4..8) == b"JXL " => "JPEG XL",
        b"\0\0\0\x0c" if part(4..8) == b"jP  " => "JPEG 2000",
        b"8BPS" => "Photoshop",
        _ if part(4..8) == b"ftyp" => "AVIF or HEIF",
        _ if part(0..2) == b"\xff\x0a" => "JPEG XL",
        // Two letters are little; what follows the size has to be zero as well.
        _ if part(0..2) == b"BM" && part(6..10) == [0; 4] => "BMP",
        _ => {
            let start = &bytes[..bytes.len().min(8)];
            let hex: Vec<String> = start.iter().map(|byte| format!("{byte:02x}")).collect();
            let text: String =
                start.iter().map(|&b| if b.is_ascii_graphic() { b.into() } else { '.' }).collect();
            let message = format!("not an image: it starts with {}, {text:?}", hex.join(" "));
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
    };
    Err(Error::new(ErrorKind::Unsupported, format!("{other} is not read, only JPEG and PNG")))
}

/// Turns a picture as its EXIF data says.
fn orient(image: Image, orientation: Orientation) -> Result<Image> {
    if orientation == Orientation::NoTransforms {
        return Ok(image);
    }
    let (width, height) = (image.width(), image.height());
    let buffer = image::RgbImage::from_raw(width, height, image.into_data());
    let mut image = DynamicImage::ImageRgb8(buffer.expect("decoders make images that fit their size"));
    image.apply_orientation(orientation);
    let (width, height) = (image.width(), image.height());
    Image::new(width, height, 3, image.into_rgb8().into_raw())
}

/// Bytes from `start` on, or an error that the file ends there.
fn take<'a>(bytes: &'a [u8], start: usize, len: usize, format: &str) -> Result<&'a [u8]> {
    let end = start.checked_add(len).filter(|&end| end <= bytes.len());
    end.map(|end| &bytes[start..end]).ok_or_else(|| {
        let message =
            format!("a {format} of {} bytes ends before byte {}", bytes.len(), start.saturating_add(len));
        Error::new(ErrorKind::Truncated, message)
    })
}
