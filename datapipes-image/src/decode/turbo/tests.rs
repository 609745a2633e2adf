//! Tests that parts are those of the whole image, which is Pillow's, and that errors are reported
//! and leave no state.

use std::path::Path;

use datapipes::Rng;
use jpeg_encoder::SamplingFactor::{F_1_1, F_1_2, F_1_4, F_2_1, F_2_2, F_4_1, F_4_2};
use jpeg_encoder::{ColorType, Encoder};

use super::*;

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
    let channels = match color {
        ColorType::Luma => 1,
        ColorType::Rgb => 3,
        _ => 4,
    };
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

/// Checks random parts of a file at every scale, in pixels that were used before.
fn check_parts(what: &str, bytes: &[u8], times: usize, rng: &mut Rng, pixels: &mut Pixels) {
    for scale in [1, 2, 4, 8] {
        let image = whole(bytes, scale).unwrap_or_else(|error| panic!("{what}: {error}"));
        for _ in 0..times {
            let of = any_part(image.width(), image.height(), rng);
            part(bytes, scale, of, pixels)
                .unwrap_or_else(|error| panic!("{what} 1/{scale} {of:?}: {error}"));
            let expected = crate::crop(&image, of).unwrap();
            assert_eq!((pixels.width, pixels.height), (of.width, of.height));
            assert!(
                pixels.data == expected.data(),
                "{what} of {image:?} at 1/{scale}: {of:?}"
            );
        }
    }
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
        // The expected pictures are stored one below the other.
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
fn row_112_a_part_is_that_of_the_whole_picture() {
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
        for sampling in [F_1_1, F_2_1, F_1_2, F_2_2, F_4_1, F_1_4, F_4_2] {
            for (progressive, restart) in [(false, 0), (false, 3), (true, 0)] {
                for color in [ColorType::Rgb, ColorType::CmykAsYcck] {
                    let bytes = noise(width, height, color, |encoder| {
                        encoder.set_sampling_factor(sampling);
                        encoder.set_progressive(progressive);
                        encoder.set_restart_interval(restart);
                    });
                    if Header::read(&bytes).is_ok() {
                        let what =
                            format!("{color:?} {sampling:?} progressive {progressive} {restart}");
                        check_parts(&what, &bytes, 5, &mut rng, &mut pixels);
                    }
                }
            }
        }
        let gray = noise(width, height, ColorType::Luma, |_| {});
        check_parts("gray", &gray, 20, &mut rng, &mut pixels);
    }
    for name in [
        "flat411",
        "flat_mixed",
        "flat_gray",
        "adobe_rgb",
        "cmyk",
        "restarts",
        "rgb422",
    ] {
        check_parts(
            name,
            &file(&format!("{name}.jpg")),
            50,
            &mut rng,
            &mut pixels,
        );
    }
}

/// Without its last scans, an image is smoothed across blocks.
#[test]
fn row_112_a_part_of_what_came_first_of_a_progressive_picture_is_right_too() {
    let (mut rng, mut pixels) = (Rng::from_key([112, 1, 0, 0]), Pixels::default());
    for sampling in [F_1_1, F_2_1, F_2_2] {
        let bytes = noise(161, 120, ColorType::Rgb, |encoder| {
            encoder.set_sampling_factor(sampling);
            encoder.set_progressive(true);
        });
        let scans: Vec<usize> = (0..bytes.len())
            .filter(|&at| bytes[at..].starts_with(&[0xff, SOS]))
            .collect();
        assert!(scans.len() > 3);
        let mut smoothed = 0;
        for &end in &scans[1..] {
            let first = [&bytes[..end], &[0xff, 0xd9]].concat();
            smoothed += usize::from(whole(&first, 1).unwrap() != whole(&bytes, 1).unwrap());
            check_parts("the first scans", &first, 40, &mut rng, &mut pixels);
        }
        assert!(smoothed > 0);
    }
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

/// The result is that of Pillow and of the decoder in Rust, though libjpeg warns.
#[test]
fn row_112_a_harmless_warning_costs_no_picture() {
    let good = file("rgb420.jpg");
    let at = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what).unwrap();
    let (revision, end) = (at(&good, b"JFIF\0") + 5, good.len() - 2);
    let mut jfif = good.clone();
    jfif[revision] = 0;
    for rubbish in [&[0; 228][..], &[7; 1000], b"\0", b"12\xff\0\xff\0abc"] {
        for start in [&good, &jfif] {
            let bytes = [&start[..end], rubbish, &start[end..]].concat();
            assert_eq!(
                whole(&bytes, 1).unwrap(),
                whole(&good, 1).unwrap(),
                "{rubbish:?}"
            );
        }
    }

    // Three components with a transform of 5 are YCbCr, as with a transform of 1.
    let mut adobe = file("adobe_rgb.jpg");
    let (segment, frame, scan) = (
        at(&adobe, b"Adobe"),
        at(&adobe, &[0xff, 0xc0]),
        at(&adobe, &[0xff, SOS]),
    );
    for component in 0..3 {
        adobe[frame + 10 + 3 * component] = component as u8 + 1;
        adobe[scan + 5 + 2 * component] = component as u8 + 1;
    }
    let mut with = |transform| {
        adobe[segment + 11] = transform;
        whole(&adobe, 1).unwrap()
    };
    assert_eq!(with(5), with(1));
    assert_ne!(with(5), with(0));

    let restarts = file("restarts.jpg");
    let second = at(&restarts, &[0xff, 0xd1]);
    let bytes = [&restarts[..second], &[0], &restarts[second..]].concat();
    let error = whole(&bytes, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "corrupt: a JPEG: Corrupt JPEG data: 1 extraneous bytes before marker 0xd1"
    );
}

/// Coefficients are kept for whole blocks, here more than thirty times as many as there are pixels.
#[test]
fn row_110_long_and_thin_pictures_keep_within_the_limit_of_memory() {
    for (width, height) in [(1, 65500), (65500, 1)] {
        for sampling in [F_2_2, F_4_2, F_1_4] {
            let bytes = noise(width, height, ColorType::CmykAsYcck, |encoder| {
                encoder.set_sampling_factor(sampling);
                encoder.set_progressive(true);
            });
            if Header::read(&bytes).is_ok() {
                let image = whole(&bytes, 1).unwrap();
                assert_eq!(
                    (image.width(), image.height()),
                    (width.into(), height.into())
                );
            }
        }
    }
    let error = whole(&noise(1, 65501, ColorType::Luma, |_| {}), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "limit reached: a JPEG: Maximum supported image dimension is 65500 pixels"
    );
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
