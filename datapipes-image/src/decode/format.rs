//! Detection of image formats by the first bytes of a file.

use datapipes::{Error, ErrorKind, Result};
use image::ImageError;

/// An image format that [`DecodeImage`](crate::DecodeImage) reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
    /// GIF.
    Gif,
    /// Windows bitmaps.
    Bmp,
    /// TIFF.
    Tiff,
}

impl ImageFormat {
    /// Returns the format of a file that begins with these bytes; `None` for formats that are not
    /// read.
    ///
    /// ```
    /// use datapipes_image::ImageFormat;
    /// assert_eq!(ImageFormat::of(b"\xff\xd8\xff\xe0").map(|format| format.to_string()).as_deref(), Some("jpeg"));
    /// assert_eq!(ImageFormat::of(b"GIF89a"), Some(ImageFormat::Gif));
    /// assert_eq!(ImageFormat::of(b"\0\0\0\x20ftypavif"), None);
    /// ```
    pub fn of(bytes: &[u8]) -> Option<ImageFormat> {
        sniff(bytes).ok()
    }

    /// Returns the name of the format in errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::Png => "PNG",
            ImageFormat::WebP => "WebP",
            ImageFormat::Gif => "GIF",
            ImageFormat::Bmp => "BMP",
            ImageFormat::Tiff => "TIFF",
        }
    }

    /// Converts an error of the `image` crate.
    pub(super) fn failed(self, error: ImageError) -> Error {
        let kind = match &error {
            ImageError::Unsupported(_) => ErrorKind::Unsupported,
            ImageError::Limits(_) => ErrorKind::Limit,
            // An error of this crate that passed through the decoder.
            ImageError::IoError(io) if io.get_ref().is_some_and(|inner| inner.is::<Error>()) => {
                let ImageError::IoError(io) = error else {
                    unreachable!("matched above")
                };
                return Error::io(io).within(format_args!("a {}", self.name()));
            }
            ImageError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => {
                ErrorKind::Truncated
            }
            _ => ErrorKind::Corrupt,
        };
        Error::new(kind, format!("a {}", self.name())).with_source(error)
    }

    pub(super) fn corrupt<T>(self, what: &str) -> Result<T> {
        Err(Error::corrupt(format!("a {}: {what}", self.name())))
    }

    pub(super) fn unsupported<T>(self, what: &str) -> Result<T> {
        Err(Error::unsupported(format!("a {} with {what}", self.name())))
    }
}

datapipes::formatted! { Display |format: ImageFormat| "{}", format.name().to_ascii_lowercase(); }

const JPEG: &[u8] = b"\xff\xd8\xff";
pub(super) const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const GIF: [&[u8]; 2] = [b"GIF87a", b"GIF89a"];
const TIFF: [&[u8]; 4] = [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"];

/// Detects the format by the first bytes.
pub(super) fn sniff(bytes: &[u8]) -> Result<ImageFormat> {
    let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
    let begins = |magics: &[&[u8]]| magics.iter().any(|magic| bytes.starts_with(magic));
    if begins(&[JPEG]) {
        return Ok(ImageFormat::Jpeg);
    }
    if begins(&[PNG]) {
        return Ok(ImageFormat::Png);
    }
    if begins(&GIF) {
        return Ok(ImageFormat::Gif);
    }
    if begins(&TIFF) {
        return Ok(ImageFormat::Tiff);
    }
    if part(0..4) == b"RIFF" && part(8..12) == b"WEBP" {
        return Ok(ImageFormat::WebP);
    }
    // Two letters prove little; the bytes after the size have to be zero as well.
    if part(0..2) == b"BM" && part(6..10) == [0; 4] {
        return Ok(ImageFormat::Bmp);
    }
    let cut = |magic: &[u8]| magic.starts_with(bytes);
    let cut_riff =
        bytes.starts_with(b"RIFF") && b"WEBP".starts_with(part(8..bytes.len())) && bytes.len() < 12;
    let cut_bmp = bytes.starts_with(b"BM")
        && part(6..bytes.len()).iter().all(|&b| b == 0)
        && bytes.len() < 10;
    if [JPEG, PNG, b"RIFF", b"BM"]
        .into_iter()
        .chain(GIF)
        .chain(TIFF)
        .any(cut)
        || cut_riff
        || cut_bmp
    {
        let message = format!("{} bytes are not an image", bytes.len());
        return Err(Error::truncated(message));
    }
    // A signature that was changed on its way, for example by a conversion of line ends: the
    // signature of PNG is designed to show that.
    for (begin, format) in [
        (&b"\x89PNG"[..], ImageFormat::Png),
        (b"\xff\xd8", ImageFormat::Jpeg),
        (b"GIF8", ImageFormat::Gif),
    ] {
        if bytes.starts_with(begin) {
            return format.corrupt("its first bytes are damaged");
        }
    }
    let other = match part(0..4) {
        b"\0\0\0\x0c" if part(4..8) == b"JXL " => "JPEG XL".to_owned(),
        b"\0\0\0\x0c" if part(4..8) == b"jP  " => "JPEG 2000".to_owned(),
        b"\xff\x4f\xff\x51" => "JPEG 2000".to_owned(),
        b"8BPS" => "Photoshop".to_owned(),
        _ if part(4..8) == b"ftyp" => "AVIF or HEIF".to_owned(),
        _ if part(0..2) == b"\xff\x0a" => "JPEG XL".to_owned(),
        _ => {
            let start = &bytes[..bytes.len().min(8)];
            let hex: Vec<String> = start.iter().map(|byte| format!("{byte:02x}")).collect();
            let text: String = start
                .iter()
                .map(|&b| if b.is_ascii_graphic() { b.into() } else { '.' })
                .collect();
            format!(
                "not an image of a known kind: it starts with {}, {text:?}; that",
                hex.join(" ")
            )
        }
    };
    let message = format!("{other} is not read, only JPEG, PNG, WebP, GIF, BMP and TIFF");
    Err(Error::unsupported(message))
}
