//! Files that are cut, damaged, or malicious.

use std::time::{Duration, Instant};

use datapipes::{ErrorKind, Result};
use datapipes_image::{DecodeImage, Image, decode, dimensions};
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use jpeg_encoder::SamplingFactor;

use crate::{file, jpeg};

const WHOLE: [&str; 13] = [
    "rgb444.jpg",
    "rgb422.jpg",
    "rgb420.jpg",
    "progressive.jpg",
    "restarts.jpg",
    "gray.jpg",
    "cmyk.jpg",
    "adobe_rgb.jpg",
    "exif6.jpg",
    "rgb420.expected.png",
    "png.interlaced.png",
    "png.palette.png",
    "bits_png.1.png",
];

fn must_fail(what: &str, decoded: Result<Image>) -> ErrorKind {
    match decoded {
        Ok(image) => panic!("{what} was decoded to {image:?}"),
        Err(error) => {
            let expected = matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Corrupt);
            assert!(expected, "{what}: {error}");
            error.kind()
        }
    }
}

#[test]
fn row_108_a_cut_file_is_an_error_wherever_it_is_cut() {
    for name in WHOLE {
        let bytes = file(name);
        assert!(decode(&bytes).is_ok());
        for end in 0..bytes.len() {
            let kind = must_fail(&format!("{name} cut at {end}"), decode(&bytes[..end]));
            assert_eq!(kind, ErrorKind::Truncated, "{name} cut at {end}");
        }
    }
}

#[test]
fn row_108_a_large_jpeg_cut_at_every_percent_is_an_error() {
    for progressive in [false, true] {
        for sampling in [SamplingFactor::F_1_1, SamplingFactor::F_2_2] {
            let bytes = jpeg(321, 240, |e| {
                e.set_progressive(progressive);
                e.set_sampling_factor(sampling);
            });
            for percent in 0..100 {
                let end = bytes.len() * percent / 100;
                assert_eq!(
                    must_fail("a cut file", decode(&bytes[..end])),
                    ErrorKind::Truncated
                );
            }
        }
    }
}

/// The end marker is there, but the data before it is missing, as after a careless repair.
#[test]
fn row_108_a_short_scan_with_an_end_marker_is_an_error() {
    for (sampling, restart) in [
        (SamplingFactor::F_1_1, 0),
        (SamplingFactor::F_2_2, 0),
        (SamplingFactor::F_2_2, 5),
    ] {
        let bytes = jpeg(321, 240, |e| {
            e.set_sampling_factor(sampling);
            e.set_restart_interval(restart);
        });
        let scan = bytes.windows(2).position(|w| w == [0xff, 0xda]).unwrap() + 14;
        for percent in 0..100 {
            let end = scan + (bytes.len() - scan) * percent / 100;
            let end = if bytes[end - 1] == 0xff { end - 1 } else { end };
            let mut cut = bytes[..end].to_vec();
            cut.extend([0xff, 0xd9]);
            must_fail(
                &format!("{sampling:?} restart {restart} cut at {percent} %"),
                decode(&cut),
            );
        }
    }
}

#[test]
fn row_108_what_is_no_picture_of_a_known_kind_is_unsupported_and_named_by_its_first_bytes() {
    for (bytes, kind, text) in [
        (&b""[..], ErrorKind::Truncated, "0 bytes"),
        (b"\xff\xd8", ErrorKind::Truncated, "2 bytes"),
        (b"\x89PNG\r\n", ErrorKind::Truncated, "6 bytes"),
        (b"\xff\xd8\xff", ErrorKind::Truncated, "JPEG"),
        (b"\x89PNG\r\n\x1a\n", ErrorKind::Truncated, "PNG"),
        (
            &[0; 1000],
            ErrorKind::Unsupported,
            "00 00 00 00 00 00 00 00",
        ),
        (
            b"<!DOCTYPE html><html>",
            ErrorKind::Unsupported,
            "\"<!DOCTYP\"",
        ),
        (b"x", ErrorKind::Unsupported, "78, \"x\""),
        (b"<svg xmlns=", ErrorKind::Unsupported, "\"<svg.xml\""),
        (b"\0\0\0\x18ftypheic", ErrorKind::Unsupported, "HEIF"),
        (
            b"\x89PNG\n\x1a\n\0\0\0\rIHDR",
            ErrorKind::Corrupt,
            "a PNG: its first bytes are damaged",
        ),
        (
            b"\xff\xd8\0\x10JFIF",
            ErrorKind::Corrupt,
            "a JPEG: its first bytes are damaged",
        ),
        (
            b"GIF88a..",
            ErrorKind::Corrupt,
            "a GIF: its first bytes are damaged",
        ),
        (b"GIF8", ErrorKind::Truncated, "4 bytes"),
        (b"GIF89a...", ErrorKind::Truncated, "GIF"),
        (b"RIFF\x10\0\0\0WEB", ErrorKind::Truncated, "11 bytes"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", ErrorKind::Truncated, "WebP"),
        (b"RIFF\x10\0\0\0WAVEfmt ", ErrorKind::Unsupported, "RIFF"),
        (b"BM\x10\0\0\0\0\0\0\0\x36\0", ErrorKind::Truncated, "BMP"),
        (b"BM is not a picture", ErrorKind::Unsupported, "BM.is"),
        (b"II*\0", ErrorKind::Truncated, "TIFF"),
        (b"MM\0*\0\0\0\x08", ErrorKind::Truncated, "TIFF"),
        (b"8BPS\0\x01", ErrorKind::Unsupported, "Photoshop"),
        (b"\0\0\0\x0cJXL \r\n", ErrorKind::Unsupported, "JPEG XL"),
        (b"\xff\x0a\0\0", ErrorKind::Unsupported, "JPEG XL"),
        (b"\0\0\0\x0cjP  \r\n", ErrorKind::Unsupported, "JPEG 2000"),
        (b"\0\0\0\x20ftypavif", ErrorKind::Unsupported, "AVIF"),
        (b"\xff\xd8\xff\xd9", ErrorKind::Corrupt, "without a scan"),
    ] {
        for error in [decode(bytes).unwrap_err(), dimensions(bytes).unwrap_err()] {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
    let error = decode(b"\x1b[2J\x07evil").unwrap_err();
    assert!(!error.to_string().chars().any(char::is_control), "{error}");
}

#[test]
fn row_109_a_changed_byte_of_a_png_is_found() {
    let bytes = file("rgb420.expected.png");
    let data = bytes.windows(4).position(|w| w == b"IDAT").unwrap() + 4;
    for at in (data..bytes.len() - 12).step_by(7) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x20;
        must_fail(&format!("a PNG changed at {at}"), decode(&bytes));
    }
}

/// A JPEG has no checksums, so that a file with a changed byte may decode. Decoding takes bounded
/// time and does not panic.
#[test]
fn row_109_changed_bytes_of_a_jpeg_do_not_panic() {
    let begun = Instant::now();
    for name in WHOLE {
        let bytes = file(name);
        let mut state = 1u64;
        for _ in 0..400 {
            let mut bytes = bytes.clone();
            for _ in 0..3 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8;
            }
            let settings = DecodeImage::new().max_pixels(1 << 20);
            if let Ok(image) = settings.decode(&bytes) {
                assert_eq!(
                    settings.dimensions(&bytes).unwrap(),
                    (image.width(), image.height())
                );
            }
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(120));
}

#[test]
fn row_110_huge_pictures_are_refused_from_their_headers() {
    let begun = Instant::now();
    let mut png = file("png.interlaced.png");
    png[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
    let error = decode(&png).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert_eq!(
        error.to_string(),
        "limit reached: a PNG of 100000x100000 has 10000000000 pixels, more than 178956970"
    );
    png[16..24].fill(0xff);
    assert_eq!(decode(&png).unwrap_err().kind(), ErrorKind::Limit);
    png[16..20].fill(0);
    assert_eq!(decode(&png).unwrap_err().kind(), ErrorKind::Corrupt);

    let mut jpeg = file("rgb444.jpg");
    let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xff);
    let error = decode(&jpeg).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains("65535x65535"), "{error}");
    assert_eq!(dimensions(&jpeg).unwrap(), (65535, 65535));
    jpeg[frame + 5..frame + 9].fill(0);
    assert_eq!(decode(&jpeg).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn row_110_limits_are_the_users_too() {
    let pixels = 49 * 35;
    for name in ["rgb420.jpg", "rgb420.expected.png"] {
        let bytes = file(name);
        assert!(DecodeImage::new().max_pixels(pixels).decode(&bytes).is_ok());
        let error = DecodeImage::new()
            .max_pixels(pixels - 1)
            .decode(&bytes)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(
            error.to_string().contains("1715 pixels, more than 1714"),
            "{error}"
        );
        let error = DecodeImage::new()
            .max_bytes(3 * pixels - 1)
            .decode(&bytes)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("needs 5145 bytes"), "{error}");
    }
    assert!(
        DecodeImage::new()
            .max_bytes(3 * pixels)
            .decode(&file("rgb420.jpg"))
            .is_ok()
    );
    // Progressive images keep their coefficients.
    let progressive = file("progressive.jpg");
    assert!(
        DecodeImage::new()
            .max_bytes(3 * 25 * 18)
            .decode(&progressive)
            .is_err()
    );
}

#[test]
fn row_111_a_thousand_scans_are_refused() {
    let bytes = file("progressive.jpg");
    let scans: Vec<usize> = (0..bytes.len() - 1)
        .filter(|&i| bytes[i..].starts_with(&[0xff, 0xda]))
        .collect();
    let last = *scans.last().unwrap();
    let mut bomb = bytes[..last].to_vec();
    for _ in 0..1000 {
        bomb.extend(&bytes[last..bytes.len() - 2]);
    }
    bomb.extend([0xff, 0xd9]);
    let error = decode(&bomb).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains("more than 100 scans"), "{error}");
}

/// 64 MiB of zeros in a few kilobytes.
#[test]
fn row_111_a_png_that_expands_a_thousandfold_is_refused() {
    let (zeros, mut bytes) = (vec![0u8; 64 << 20], Vec::new());
    let encoder = PngEncoder::new(&mut bytes);
    encoder
        .write_image(&zeros, 8 << 10, 8 << 10, ExtendedColorType::L8)
        .unwrap();
    assert!(bytes.len() < 1 << 20);
    let error = DecodeImage::new()
        .max_bytes(32 << 20)
        .decode(&bytes)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}
