//! Tests that pixels and errors are those of the decoder of this library, and that errors leave no
//! state.

use std::path::Path;

use datapipes::{ErrorKind, Rng};
use jpeg_encoder::SamplingFactor::{F_1_1, F_1_2, F_1_4, F_2_1, F_2_2, F_4_1};
use jpeg_encoder::{ColorType, Encoder};

use super::*;
use crate::Image;

type Decode = fn(&[u8], &Header, u32, Rect, &mut Pixels) -> Result<()>;

const SOS: u8 = 0xda;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name),
    )
    .unwrap()
}

/// An image whose pixels all have different colours, so that a missing neighbour is detected.
fn noise(
    width: u16,
    height: u16,
    color: ColorType,
    configure: impl FnOnce(&mut Encoder<&mut Vec<u8>>),
) -> Vec<u8> {
    let mut rng = Rng::from_key([width.into(), height.into(), 0, 0]);
    let channels = if color == ColorType::Luma { 1 } else { 3 };
    let len = usize::from(width) * usize::from(height) * channels;
    let pixels: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 80);
    configure(&mut encoder);
    encoder.encode(&pixels, width, height, color).unwrap();
    file
}

fn part(bytes: &[u8], scale: u32, part: Rect, pixels: &mut Pixels) -> Result<()> {
    decode_part(bytes, &Header::read(bytes)?, scale, part, pixels)
}

fn whole(bytes: &[u8], scale: u32) -> Result<Image> {
    let header = Header::read(bytes)?;
    let (width, height) = (header.width.div_ceil(scale), header.height.div_ceil(scale));
    let mut pixels = Pixels::default();
    decode_part(
        bytes,
        &header,
        scale,
        Rect {
            x: 0,
            y: 0,
            width,
            height,
        },
        &mut pixels,
    )?;
    Image::new(pixels.width, pixels.height, 3, pixels.data)
}

/// Returns any part, with short edges as often as with long ones.
fn any_part(width: u32, height: u32, rng: &mut Rng) -> Rect {
    let mut edge = |whole: u32| {
        let most = if rng.chance(0.5) { whole } else { whole.min(9) };
        let len = 1 + rng.below(most.into()) as u32;
        let start = rng.below(u64::from(whole - len) + 1) as u32;
        (if rng.chance(0.2) { 0 } else { start }, len)
    };
    let ((x, width), (y, height)) = (edge(width), edge(height));
    Rect {
        x,
        y,
        width,
        height,
    }
}

/// Checks random parts of a file at every scale, in pixels that were used before. Returns how many
/// of them libjpeg-turbo decoded, each to the pixels of the decoder of this library.
fn check_parts(bytes: &[u8], times: usize, rng: &mut Rng, pixels: &mut Pixels) -> usize {
    let (header, mut expected) = (Header::read(bytes).unwrap(), Pixels::default());
    let mut by_turbo = 0;
    for scale in [1, 2, 4, 8] {
        let (width, height) = (header.width.div_ceil(scale), header.height.div_ceil(scale));
        for _ in 0..times {
            let of = any_part(width, height, rng);
            if fast(bytes, &header, scale, of, pixels).is_some() {
                by_turbo += 1;
                jpeg::decode_part(bytes, &header, scale, of, &mut expected).unwrap();
                assert_eq!((pixels.width, pixels.height), (of.width, of.height));
                assert!(pixels.data == expected.data, "1/{scale}: {of:?}");
            }
        }
    }
    by_turbo
}

#[test]
fn row_112_scaled_pictures_are_pillows() {
    for name in [
        "rgb444",
        "rgb422",
        "rgb420",
        "progressive",
        "gray",
        "cmyk",
        "adobe_rgb",
        "flat411",
        "flat_mixed",
    ] {
        // The expected images are stored one below the other.
        let expected = crate::decode(&file(&format!("{name}.scaled.png"))).unwrap();
        let mut y = 0;
        for scale in [2, 4, 8] {
            let image = whole(&file(&format!("{name}.jpg")), scale).unwrap();
            let (width, height) = (image.width(), image.height());
            let of = Rect {
                x: 0,
                y,
                width,
                height,
            };
            assert!(
                image == crate::crop(&expected, of).unwrap(),
                "{name} at 1/{scale}"
            );
            y += height;
        }
    }
}

#[test]
fn row_112_a_part_is_that_of_our_decoder() {
    let (mut rng, mut pixels) = (Rng::from_key([112, 0, 0, 0]), Pixels::default());
    for (width, height) in [
        (1, 1),
        (3, 50),
        (50, 3),
        (16, 16),
        (33, 17),
        (100, 75),
        (161, 120),
    ] {
        for sampling in [F_1_1, F_2_1, F_1_2, F_2_2, F_4_1, F_1_4] {
            for restart in [0, 3] {
                let bytes = noise(width, height, ColorType::Rgb, |encoder| {
                    encoder.set_sampling_factor(sampling);
                    encoder.set_restart_interval(restart);
                });
                let by_turbo = check_parts(&bytes, 5, &mut rng, &mut pixels);
                assert_eq!(by_turbo, 20, "{sampling:?} {restart} {width}x{height}");
            }
        }
        let gray = noise(width, height, ColorType::Luma, |_| {});
        assert_eq!(check_parts(&gray, 20, &mut rng, &mut pixels), 80);
    }
    for name in ["flat411", "flat_gray", "adobe_rgb", "restarts", "rgb422"] {
        let bytes = file(&format!("{name}.jpg"));
        assert_eq!(
            check_parts(&bytes, 50, &mut rng, &mut pixels),
            200,
            "{name}"
        );
    }
}

/// Several scans, four components, warnings and errors: nothing depends on the feature.
#[test]
fn row_112_what_is_unusual_is_decoded_by_our_decoder() {
    let whole_of = |bytes: &[u8], pixels: &mut Pixels, by: Decode| {
        let header = Header::read(bytes)?;
        let (x, y, width, height) = (0, 0, header.width, header.height);
        by(
            bytes,
            &header,
            1,
            Rect {
                x,
                y,
                width,
                height,
            },
            pixels,
        )
    };
    let (mut pixels, mut expected) = (Pixels::default(), Pixels::default());
    let mut check = |bytes: &[u8]| {
        let result = whole_of(bytes, &mut pixels, decode_part);
        let wanted = whole_of(bytes, &mut expected, jpeg::decode_part);
        match (result, wanted) {
            (Ok(()), Ok(())) => assert!(pixels.data == expected.data),
            (result, wanted) => assert_eq!(
                result.unwrap_err().to_string(),
                wanted.unwrap_err().to_string()
            ),
        }
    };

    let progressive = file("progressive.jpg");
    check(&progressive);
    check(&file("cmyk.jpg"));
    // Without its last scans: libjpeg-turbo would smooth it.
    let scans: Vec<usize> = (0..progressive.len())
        .filter(|&at| progressive[at..].starts_with(&[0xff, SOS]))
        .collect();
    assert!(scans.len() > 3);
    scans[1..]
        .iter()
        .for_each(|&end| check(&[&progressive[..end], &[0xff, 0xd9]].concat()));

    // It warns of these, and they have all of their pixels.
    let good = file("rgb420.jpg");
    let at = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what).unwrap();
    let end = good.len() - 2;
    let mut jfif = good.clone();
    jfif[at(&good, b"JFIF\0") + 5] = 0;
    check(&jfif);
    for rubbish in [&[0; 228][..], b"\0", b"12\xff\0\xff\0abc"] {
        check(&[&good[..end], rubbish, &good[end..]].concat());
    }
    assert_eq!(whole(&jfif, 1).unwrap(), whole(&good, 1).unwrap());

    // It has no edges over 65500.
    check(&noise(1, 65501, ColorType::Luma, |_| {}));
    // Cut at any byte.
    (0..good.len()).for_each(|end| check(&good[..end]));
}

/// The scan ends early, but has an end marker: existing pixels are decoded, missing ones are an
/// error, and none is grey.
#[test]
fn row_108_a_part_of_a_short_scan_is_right_or_an_error() {
    let bytes = noise(161, 120, ColorType::Rgb, |encoder| {
        encoder.set_sampling_factor(F_2_2)
    });
    let image = whole(&bytes, 1).unwrap();
    let scan = bytes.windows(2).position(|w| w == [0xff, SOS]).unwrap() + 14;
    let (mut rng, mut pixels) = (Rng::from_key([108, 0, 0, 0]), Pixels::default());
    let (mut right, mut errors) = (0, 0);
    for percent in 0..100 {
        let end = scan + (bytes.len() - scan) * percent / 100;
        let end = if bytes[end - 1] == 0xff { end - 1 } else { end };
        let cut = [&bytes[..end], &[0xff, 0xd9]].concat();
        for _ in 0..20 {
            let of = any_part(161, 120, &mut rng);
            match part(&cut, 1, of, &mut pixels) {
                Ok(()) => {
                    assert!(
                        pixels.data == crate::crop(&image, of).unwrap().data(),
                        "{percent} %, {of:?}"
                    );
                    right += 1;
                }
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated),
                        "{error}"
                    );
                    errors += 1;
                }
            }
        }
    }
    assert!(right > 100 && errors > 100, "{right} {errors}");
}

#[test]
fn row_109_an_error_is_forgotten_with_the_next_picture() {
    let good = file("rgb420.jpg");
    let image = whole(&good, 1).unwrap();
    // Huffman tables with more codes than possible, in the header; and a marker within the data.
    let table = good.windows(2).position(|w| w == [0xff, 0xc4]).unwrap();
    let scan = good.windows(2).position(|w| w == [0xff, SOS]).unwrap();
    for (at, damage) in [(table + 5, &[0xfe; 16][..]), (scan + 40, &[0xff, 0xd0])] {
        let mut bad = good.clone();
        bad[at..at + damage.len()].copy_from_slice(damage);
        let error = whole(&bad, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(
            error.to_string().starts_with("corrupt: a JPEG: "),
            "{error}"
        );
        assert_eq!(whole(&good, 1).unwrap(), image);
    }
}

#[test]
fn a_part_outside_or_empty_is_an_error_and_so_is_another_scale() {
    let (bytes, mut pixels) = (file("rgb420.jpg"), Pixels::default());
    for (scale, x, y, width, height) in [
        (1, 0, 0, 50, 35),
        (1, 49, 0, 1, 1),
        (1, 0, 35, 1, 1),
        (1, 0, 0, 0, 1),
        (1, 0, 0, 1, 0),
        (2, 0, 0, 26, 18),
        (8, 7, 0, 1, 1),
        (8, u32::MAX, 0, 2, 1),
    ] {
        let error = part(
            &bytes,
            scale,
            Rect {
                x,
                y,
                width,
                height,
            },
            &mut pixels,
        )
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    }
    // The last pixel of edges that are rounded up.
    part(
        &bytes,
        8,
        Rect {
            x: 6,
            y: 4,
            width: 1,
            height: 1,
        },
        &mut pixels,
    )
    .unwrap();
}

#[test]
fn pixels_are_used_again() {
    let (bytes, mut pixels) = (file("rgb420.jpg"), Pixels::default());
    part(
        &bytes,
        1,
        Rect {
            x: 0,
            y: 0,
            width: 49,
            height: 35,
        },
        &mut pixels,
    )
    .unwrap();
    let start = pixels.data.as_ptr();
    for edge in [3, 30, 17, 35] {
        part(
            &bytes,
            1,
            Rect {
                x: 2,
                y: 0,
                width: edge,
                height: edge,
            },
            &mut pixels,
        )
        .unwrap();
        assert_eq!(pixels.data.as_ptr(), start);
    }
}
