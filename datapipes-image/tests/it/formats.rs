//! WebP, GIF, BMP and TIFF: the pixels that Pillow decodes from the same files, by several writers.

use datapipes::ErrorKind;
use datapipes_image::{DecodeImage, Image, ImageFormat, decode, decode_tensor, dimensions};

use crate::{difference, file, picture};

/// Returns the files made by `tests/data/make_formats.py`, each with the file of its expected
/// pixels.
pub fn files() -> Vec<(String, String)> {
    let list = String::from_utf8(file("formats/expected.txt")).unwrap();
    let pair = |line: &str| {
        let (name, expected) = line.split_once(' ').unwrap();
        (format!("formats/{name}"), format!("formats/{expected}"))
    };
    list.lines().map(pair).collect()
}

#[test]
fn row_112_every_variant_gives_pillows_pixels() {
    let files = files();
    assert!(files.len() > 70, "{}", files.len());
    for (name, expected) in &files {
        let (bytes, expected) = (file(name), picture(expected));
        let image = decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Five bits become eight by rounding to the nearest value; Pillow truncates.
        let tolerance = u8::from(name.ends_with("555.bmp") || name.ends_with("565.bmp"));
        assert!(
            difference(&image, &expected) <= tolerance,
            "{name} is off by {}",
            difference(&image, &expected)
        );
        assert_eq!(
            dimensions(&bytes).unwrap(),
            (image.width(), image.height()),
            "{name}"
        );
    }
}

#[test]
fn row_112_what_a_tiff_may_be_and_is_not_read_is_named() {
    for (name, feature) in [
        ("float", "floating point"),
        ("signed", "signed"),
        ("ycbcr", "YCbCr"),
        ("jpeg", "JPEG"),
        ("fax", "fax"),
        ("gray_alpha", "2 samples a pixel, of 8 bits"),
        ("planes_of_tiles", "planes of tiles"),
    ] {
        let bytes = file(&format!("formats/{name}.unread.tif"));
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(feature), "{error}");
        // The size is known even so.
        assert_eq!(dimensions(&bytes).unwrap(), (23, 17));
    }
}

#[test]
fn row_106_the_format_is_told_by_the_first_bytes() {
    for (name, format) in [
        ("lossy.webp", ImageFormat::WebP),
        ("gif87.gif", ImageFormat::Gif),
        ("rgb24.bmp", ImageFormat::Bmp),
        ("big_endian.tif", ImageFormat::Tiff),
        ("big_tiff.tif", ImageFormat::Tiff),
    ] {
        let bytes = file(&format!("formats/{name}"));
        assert_eq!(ImageFormat::of(&bytes), Some(format));
        // The format is recognised without a name.
        let tensor = decode_tensor(&bytes).unwrap();
        let (width, height) = dimensions(&bytes).unwrap();
        assert_eq!(tensor.shape(), [height as usize, width as usize, 3]);
        for cut in 0..4 {
            assert_eq!(ImageFormat::of(&bytes[..cut.min(1)]), None);
        }
    }
}

#[test]
fn row_113_orientation_is_the_same_in_webp_and_tiff() {
    let upright = picture("formats/rgb_none.tif");
    let turned = picture("exif6.jpg");
    assert_eq!((turned.width(), turned.height()), (7, 11));
    for name in ["formats/exif6.webp", "formats/exif6.tif"] {
        let bytes = file(name);
        assert_eq!(dimensions(&bytes).unwrap(), (17, 23), "{name}");
        let stored = DecodeImage::new().ignore_orientation();
        assert_eq!(stored.decode(&bytes).unwrap(), upright, "{name}");
        assert_eq!(stored.dimensions(&bytes).unwrap(), (23, 17), "{name}");
        // The entry: tag 274, one number of two bytes.
        let at = bytes
            .windows(8)
            .position(|w| w == [0x12, 1, 3, 0, 1, 0, 0, 0])
            .map(|at| at + 8);
        let big = bytes
            .windows(8)
            .position(|w| w == [1, 0x12, 0, 3, 0, 0, 0, 1])
            .map(|at| at + 9);
        let at = at.or(big).unwrap();
        assert_eq!(bytes[at], 6);
        for n in 0..=9 {
            let mut bytes = bytes.clone();
            bytes[at] = n;
            let image = decode(&bytes).unwrap();
            assert_eq!(image, oriented(&upright, n), "{name} as {n}");
            assert_eq!(dimensions(&bytes).unwrap(), (image.width(), image.height()));
        }
    }
}

/// Applies an orientation by the standard's definition: where stored row 0 and column 0 are shown.
fn oriented(image: &Image, n: u8) -> Image {
    let (w, h) = (image.width(), image.height());
    let (width, height) = if (5..9).contains(&n) { (h, w) } else { (w, h) };
    let from = |x, y| match n {
        2 => (w - 1 - x, y),
        3 => (w - 1 - x, h - 1 - y),
        4 => (x, h - 1 - y),
        5 => (y, x),
        6 => (y, h - 1 - x),
        7 => (w - 1 - y, h - 1 - x),
        8 => (w - 1 - y, x),
        _ => (x, y),
    };
    let mut data = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let (x, y) = from(x, y);
            data.extend(image.pixel(x, y));
        }
    }
    Image::new(width, height, 3, data).unwrap()
}

/// Bytes after the end of an image are ignored.
#[test]
fn bytes_behind_the_end_are_ignored() {
    for name in [
        "lossy.webp",
        "lossless.webp",
        "animated.webp",
        "animated.gif",
        "rgb24.bmp",
        "rle8.bmp",
        "strips.tif",
    ] {
        let name = format!("formats/{name}");
        let mut bytes = file(&name);
        bytes.extend(b"and more \xff\xd8\xff");
        assert_eq!(decode(&bytes).unwrap(), picture(&name), "{name}");
    }
}
