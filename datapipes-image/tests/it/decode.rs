//! Correct pixels: those that Pillow decodes from the same file.

use std::io::Cursor;

use datapipes::ErrorKind;
use datapipes_image::{DecodeImage, Image, decode, dimensions};
use image::ImageEncoder;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use crate::{difference, file, jpeg, photo, picture};

#[test]
fn row_112_jpegs_decode_to_pillows_pixels() {
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
        let image = picture(&format!("{name}.jpg"));
        assert_eq!(
            difference(&image, &picture(&format!("{name}.expected.png"))),
            0,
            "{name}"
        );
        assert_eq!(
            dimensions(&file(&format!("{name}.jpg"))).unwrap(),
            (image.width(), image.height())
        );
    }
}

#[test]
fn row_112_pngs_of_every_kind_decode_to_their_pixels() {
    for (kind, files) in [
        (
            "png",
            &[
                "rgba8",
                "rgb16",
                "rgba16",
                "interlaced",
                "palette",
                "palette_trns",
            ][..],
        ),
        ("gray_png", &["8", "alpha", "16"]),
        ("bits_png", &["1"]),
    ] {
        let expected = picture(&format!("{kind}.expected.png"));
        for name in files {
            let name = format!("{kind}.{name}.png");
            assert_eq!(difference(&picture(&name), &expected), 0, "{name}");
            assert_eq!(
                dimensions(&file(&name)).unwrap(),
                (expected.width(), expected.height())
            );
        }
    }
}

#[test]
fn row_113_exif_orientation_is_applied_unless_told_otherwise() {
    let stored = DecodeImage::new().ignore_orientation();
    for n in 1..=8 {
        let bytes = file(&format!("exif{n}.jpg"));
        let image = decode(&bytes).unwrap();
        assert_eq!(
            difference(&image, &picture(&format!("exif{n}.expected.png"))),
            0,
            "orientation {n}"
        );
        assert_eq!(
            (image.width(), image.height()),
            if n < 5 { (11, 7) } else { (7, 11) }
        );
        assert_eq!(dimensions(&bytes).unwrap(), (image.width(), image.height()));
        assert_eq!(stored.decode(&bytes).unwrap(), picture("exif1.jpg"));
        assert_eq!(stored.dimensions(&bytes).unwrap(), (11, 7));
    }
}

#[test]
fn row_113_an_orientation_out_of_range_is_upright() {
    let six = file("exif6.jpg");
    let entry = six
        .windows(2)
        .position(|w| w == [0x01, 0x12] || w == [0x12, 0x01])
        .unwrap();
    for n in [0, 9, 255] {
        let mut bytes = six.clone();
        for value in &mut bytes[entry + 8..entry + 10] {
            *value = if *value == 6 { n } else { *value };
        }
        assert_ne!(bytes, six);
        assert_eq!(decode(&bytes).unwrap(), picture("exif1.jpg"), "{n}");
    }
}

#[test]
fn row_113_orientation_is_the_same_in_png() {
    // Big-endian TIFF with one entry: orientation 6.
    let exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::png::PngEncoder::new(Cursor::new(&mut bytes));
    encoder.set_exif_metadata(exif.to_vec()).unwrap();
    encoder
        .write_image(&[1, 1, 1, 2, 2, 2], 2, 1, image::ExtendedColorType::Rgb8)
        .unwrap();
    let image = decode(&bytes).unwrap();
    assert_eq!(image, Image::new(1, 2, 3, vec![1, 1, 1, 2, 2, 2]).unwrap());
    assert_eq!(dimensions(&bytes).unwrap(), (1, 2));
    assert_eq!(
        DecodeImage::new()
            .ignore_orientation()
            .dimensions(&bytes)
            .unwrap(),
        (2, 1)
    );
}

/// Files with the same coefficients give the same pixels, in every kind of scan.
#[test]
fn row_112_scans_of_all_sorts_give_the_same_pixels() {
    use SamplingFactor::{F_1_1, F_1_2, F_1_4, F_2_1, F_2_2, F_2_4, F_4_1, F_4_2};
    for (width, height) in [(1, 1), (8, 8), (17, 33), (100, 75), (161, 120)] {
        for sampling in [F_1_1, F_2_1, F_1_2, F_2_2, F_4_1, F_4_2, F_1_4, F_2_4] {
            let write = |progressive, non_interleaved, restart| {
                jpeg(width, height, |e| {
                    e.set_sampling_factor(sampling);
                    e.set_progressive(progressive);
                    // The encoder optimises tables by writing a scan for each component.
                    e.set_optimized_huffman_tables(non_interleaved);
                    e.set_restart_interval(restart);
                })
            };
            let expected = decode(&write(true, false, 0)).unwrap();
            for (progressive, non_interleaved, restart) in [
                (true, true, 0),
                (true, false, 2),
                (false, false, 0),
                (false, false, 3),
                (false, true, 0),
            ] {
                let image = decode(&write(progressive, non_interleaved, restart)).unwrap();
                assert!(
                    image == expected,
                    "{width}x{height} {sampling:?} {progressive} {non_interleaved} {restart}"
                );
            }
        }
    }
}

/// The sampling factor of a single component has no effect.
#[test]
fn row_112_gray_has_one_sampling() {
    let mut bytes = file("gray.jpg");
    let frame = bytes.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    for sampling in [0x21, 0x12, 0x22, 0x41] {
        bytes[frame + 11] = sampling;
        assert_eq!(
            decode(&bytes).unwrap(),
            picture("gray.jpg"),
            "{sampling:#x}"
        );
    }
}

fn mean_difference(a: &Image, b: &Image) -> f64 {
    difference(a, b);
    let sum: u64 = a
        .data()
        .iter()
        .zip(b.data())
        .map(|(a, b)| u64::from(a.abs_diff(*b)))
        .sum();
    sum as f64 / a.data().len() as f64
}

#[test]
fn row_112_four_components_are_right_or_refused() {
    // Cyan, magenta, yellow and black inks, inverted as Adobe stores them.
    let (width, height) = (32u16, 24u16);
    let inks: Vec<u8> = photo(width, height)
        .chunks_exact(3)
        .flat_map(|p| [p[0], p[1], p[2], 200])
        .collect();
    let mut ycck = Vec::new();
    Encoder::new(&mut ycck, 95)
        .encode(&inks, width, height, ColorType::CmykAsYcck)
        .unwrap();
    let mut cmyk = Vec::new();
    Encoder::new(&mut cmyk, 95)
        .encode(&inks, width, height, ColorType::Cmyk)
        .unwrap();
    let (a, b) = (decode(&ycck).unwrap(), decode(&cmyk).unwrap());
    assert!(mean_difference(&a, &b) < 4.0, "{}", mean_difference(&a, &b));
    let adobe = cmyk.windows(5).position(|w| w == b"Adobe").unwrap();
    cmyk[adobe] = b'a';
    let error = decode(&cmyk).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        error.to_string(),
        "unsupported: a JPEG with four components without an Adobe marker"
    );
}

#[test]
fn row_112_features_that_are_not_read_are_named() {
    let bytes = jpeg(16, 16, |e| e.set_sampling_factor(SamplingFactor::F_2_2));
    let frame = bytes.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    for (at, value, feature) in [
        (1, 0xc9, "arithmetic"),
        (1, 0xc3, "lossless"),
        (1, 0xc5, "hierarchical"),
        (4, 12, "12 bits"),
        (9, 2, "2 components"),
        // Luma has 2/3 of chroma's resolution.
        (14, 0x31, "sampling"),
    ] {
        let mut bytes = bytes.clone();
        bytes[frame + at] = value;
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(feature), "{error}");
    }
}

/// Three components are RGB without a transform if Adobe's marker, their names, or both say so.
#[test]
fn row_112_rgb_without_a_transform_is_right_however_it_is_told() {
    let bytes = file("adobe_rgb.jpg");
    let find = |pattern: &[u8]| {
        bytes
            .windows(pattern.len())
            .position(|w| w == pattern)
            .unwrap()
    };
    let (adobe, frame) = (find(b"Adobe"), find(&[0xff, 0xc0]));
    let scan = find(&[0xff, 0xda]);
    let expected = picture("adobe_rgb.jpg");

    let mut names_only = bytes.clone();
    names_only[adobe] = b'a';
    assert_eq!(decode(&names_only).unwrap(), expected);

    let mut adobe_only = bytes.clone();
    for component in 0..3 {
        adobe_only[frame + 10 + 3 * component] = component as u8 + 1;
        adobe_only[scan + 5 + 2 * component] = component as u8 + 1;
    }
    assert_eq!(decode(&adobe_only).unwrap(), expected);

    // Adobe's marker takes precedence over the names, as in libjpeg.
    let mut two_ways = bytes.clone();
    two_ways[adobe + 11] = 1;
    assert_ne!(decode(&two_ways).unwrap(), expected);
}

/// Bytes after the image are not part of it: a second image, a preview, a film.
#[test]
fn bytes_behind_the_end_are_ignored() {
    for name in ["rgb420.jpg", "progressive.jpg", "png.expected.png"] {
        let mut bytes = file(name);
        bytes.extend(file("gray.jpg"));
        bytes.extend(b"\xff\xd9 and more");
        assert_eq!(decode(&bytes).unwrap(), picture(name));
    }
}
