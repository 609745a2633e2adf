//! A decoded part of a JPEG, scaled or not, equals that part of the whole image.

use datapipes::ErrorKind;
use datapipes_image::{Image, Rect, crop, decode, decode_jpeg_part, dimensions};
use jpeg_encoder::SamplingFactor;

use crate::{Random, file, jpeg, picture};

const SCALES: [u32; 4] = [1, 2, 4, 8];

/// Decodes the whole image at a scale.
fn whole(bytes: &[u8], scale: u32) -> Image {
    let (width, height) = dimensions(bytes).unwrap();
    let part = Rect {
        x: 0,
        y: 0,
        width: width.div_ceil(scale),
        height: height.div_ceil(scale),
    };
    decode_jpeg_part(bytes, scale, part).unwrap()
}

/// Draws a part of an image of this size: often a thin or a small one, often at an edge.
fn part(random: &mut Random, width: u32, height: u32) -> Rect {
    let mut span = |edge: u32| {
        let start = if random.below(3) == 0 {
            0
        } else {
            random.below(edge)
        };
        let len = match random.below(3) {
            0 => 1,
            1 => 1 + random.below(edge - start),
            _ => edge - start,
        };
        (start, len)
    };
    let ((x, width), (y, height)) = (span(width), span(height));
    Rect {
        x,
        y,
        width,
        height,
    }
}

#[test]
fn row_112_scaled_jpegs_are_pillows() {
    for name in [
        "rgb444",
        "rgb422",
        "rgb420",
        "progressive",
        "restarts",
        "gray",
        "cmyk",
        "adobe_rgb",
        "flat411",
        "flat_mixed",
        "flat_gray",
    ] {
        let bytes = file(&format!("{name}.jpg"));
        // The expected images are stored one below the other.
        let (expected, mut y) = (picture(&format!("{name}.scaled.png")), 0);
        for scale in [2, 4, 8] {
            let image = whole(&bytes, scale);
            let part = Rect {
                x: 0,
                y,
                width: image.width(),
                height: image.height(),
            };
            assert!(
                image == crop(&expected, part).unwrap(),
                "{name} at 1/{scale}"
            );
            y += image.height();
        }
        assert_eq!(y, expected.height());
        assert_eq!(whole(&bytes, 1), decode(&bytes).unwrap());
    }
}

#[test]
fn row_112_a_part_is_that_of_the_whole_at_every_scale() {
    use SamplingFactor::{F_1_1, F_1_2, F_1_4, F_2_1, F_2_2, F_2_4, F_4_1, F_4_2};
    let mut random = Random(1);
    for sampling in [F_1_1, F_2_1, F_1_2, F_2_2, F_4_1, F_4_2, F_1_4, F_2_4] {
        for (progressive, non_interleaved, restart) in [
            (false, false, 0),
            (false, false, 3),
            (false, true, 0),
            (true, false, 0),
            (true, false, 2),
        ] {
            let (width, height) = (1 + random.below(90), 1 + random.below(90));
            let bytes = jpeg(width as u16, height as u16, |e| {
                e.set_sampling_factor(sampling);
                e.set_progressive(progressive);
                e.set_optimized_huffman_tables(non_interleaved);
                e.set_restart_interval(restart);
            });
            for scale in SCALES {
                let whole = whole(&bytes, scale);
                for _ in 0..8 {
                    let part = part(&mut random, whole.width(), whole.height());
                    let image = decode_jpeg_part(&bytes, scale, part).unwrap();
                    assert!(
                        image == crop(&whole, part).unwrap(),
                        "{sampling:?} {progressive} {non_interleaved} {restart}, \
                         {width}x{height} at 1/{scale}, {part:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn row_112_parts_of_every_kind_of_file() {
    let mut random = Random(2);
    for name in [
        "gray",
        "cmyk",
        "adobe_rgb",
        "restarts",
        "flat411",
        "flat_mixed",
        "flat_gray",
    ] {
        let bytes = file(&format!("{name}.jpg"));
        for scale in SCALES {
            let whole = whole(&bytes, scale);
            for _ in 0..10 {
                let part = part(&mut random, whole.width(), whole.height());
                let image = decode_jpeg_part(&bytes, scale, part).unwrap();
                assert!(
                    image == crop(&whole, part).unwrap(),
                    "{name} at 1/{scale}, {part:?}"
                );
            }
        }
    }
}

#[test]
fn a_part_is_of_the_picture_as_it_is_stored() {
    let part = Rect {
        x: 0,
        y: 0,
        width: 11,
        height: 7,
    };
    assert_eq!(
        decode_jpeg_part(&file("exif6.jpg"), 1, part).unwrap(),
        picture("exif1.jpg")
    );
}

#[test]
fn what_cannot_be_is_an_error_with_numbers() {
    let bytes = file("rgb420.jpg");
    let fits = Rect {
        x: 0,
        y: 0,
        width: 1,
        height: 1,
    };
    for scale in [0, 3, 5, 16, u32::MAX] {
        let error = decode_jpeg_part(&bytes, scale, fits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(&format!("1/{scale}")), "{error}");
    }
    // At 1/2, the image has 25x18 pixels.
    for (x, y, width, height) in [
        (0, 0, 26, 1),
        (0, 18, 1, 1),
        (5, 5, 0, 3),
        (5, 5, 3, 0),
        (u32::MAX, 0, 2, 1),
        (1, 1, u32::MAX, 1),
    ] {
        let error = decode_jpeg_part(
            &bytes,
            2,
            Rect {
                x,
                y,
                width,
                height,
            },
        )
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.to_string().contains("25x18"), "{error}");
    }
    let error = decode_jpeg_part(&file("png.expected.png"), 1, fits).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unsupported: only a JPEG is decoded in part, not a png"
    );
}

#[test]
fn row_108_a_part_of_a_cut_file_is_an_error_even_above_the_cut() {
    for name in ["rgb420", "restarts", "progressive"] {
        let bytes = file(&format!("{name}.jpg"));
        let part = Rect {
            x: 0,
            y: 0,
            width: 1,
            height: 1,
        };
        assert!(decode_jpeg_part(&bytes, 8, part).is_ok());
        for end in 0..bytes.len() {
            let error = decode_jpeg_part(&bytes[..end], 8, part).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::Truncated,
                "{name} cut at {end}: {error}"
            );
        }
    }
}

/// The end marker is there, but the data before it is missing.
#[test]
fn row_108_a_part_whose_rows_are_missing_is_an_error() {
    let bytes = jpeg(160, 160, |e| e.set_sampling_factor(SamplingFactor::F_2_2));
    let scan = bytes.windows(2).position(|w| w == [0xff, 0xda]).unwrap() + 14;
    let end = scan + (bytes.len() - scan) / 2;
    let end = if bytes[end - 1] == 0xff { end - 1 } else { end };
    let mut cut = bytes[..end].to_vec();
    cut.extend([0xff, 0xd9]);
    let row = |y| Rect {
        x: 2,
        y,
        width: 10,
        height: 1,
    };
    for scale in SCALES {
        let below = decode_jpeg_part(&cut, scale, row(150 / scale));
        assert!(matches!(
            below.unwrap_err().kind(),
            ErrorKind::Truncated | ErrorKind::Corrupt
        ));
    }
    // Rows before the cut are decoded; nothing after them is read.
    let rows = decode_jpeg_part(&cut, 1, row(10)).unwrap();
    assert_eq!(rows, crop(&decode(&bytes).unwrap(), row(10)).unwrap());
}

/// A damaged file decodes to some image or is an error; a part never differs from the whole, if
/// the whole is decoded.
#[test]
fn row_109_parts_of_damaged_files_are_those_of_the_whole() {
    let mut random = Random(3);
    let mut decoded = 0;
    for name in [
        "rgb444",
        "rgb422",
        "rgb420",
        "restarts",
        "progressive",
        "gray",
        "cmyk",
        "flat411",
        "flat_mixed",
    ] {
        let sound = file(&format!("{name}.jpg"));
        for _ in 0..100 {
            let mut bytes = sound.clone();
            for _ in 0..1 + random.below(3) {
                let at = 2 + random.below(bytes.len() as u32 - 2) as usize;
                bytes[at] = random.below(256) as u8;
            }
            let Ok((width, height)) = dimensions(&bytes) else {
                continue;
            };
            if width * height > 1 << 14 {
                continue;
            }
            let scale = SCALES[random.below(4) as usize];
            let (width, height) = (width.div_ceil(scale), height.div_ceil(scale));
            let part = part(&mut random, width, height);
            let of_part = decode_jpeg_part(&bytes, scale, part);
            if let Ok(whole) = decode_jpeg_part(
                &bytes,
                scale,
                Rect {
                    x: 0,
                    y: 0,
                    width,
                    height,
                },
            ) {
                assert!(
                    of_part.unwrap() == crop(&whole, part).unwrap(),
                    "{name} at 1/{scale}, {part:?}"
                );
                decoded += 1;
            }
        }
    }
    assert!(decoded > 100, "only {decoded}");
}

/// Random bytes after a valid header.
#[test]
fn row_109_noise_is_an_error_or_a_picture_and_ends() {
    let mut random = Random(4);
    for name in ["rgb420.jpg", "progressive.jpg", "restarts.jpg", "cmyk.jpg"] {
        let sound = file(name);
        let scan = sound.windows(2).position(|w| w == [0xff, 0xda]).unwrap();
        let data = scan + 2 + usize::from(sound[scan + 3]);
        for _ in 0..50 {
            let mut bytes = sound[..data].to_vec();
            bytes.extend((0..random.below(3000)).map(|_| random.below(256) as u8));
            bytes.extend([0xff, 0xd9]);
            let part = Rect {
                x: 3,
                y: 1,
                width: 2,
                height: 1,
            };
            if let Ok(image) = decode_jpeg_part(&bytes, 4, part) {
                assert_eq!((image.width(), image.height()), (2, 1));
            }
        }
    }
}
