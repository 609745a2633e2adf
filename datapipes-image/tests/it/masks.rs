//! Masks from files: the classes that were written.

use datapipes::ErrorKind;
use datapipes_image::Mask;

use crate::{Random, file};

#[test]
fn classes_are_read_as_they_were_written() {
    let expected = String::from_utf8(file("masks/expected.txt")).unwrap();
    assert_eq!(expected.lines().count(), 13);
    for line in expected.lines() {
        let (name, numbers) = line.split_once(' ').unwrap();
        let numbers: Vec<u16> = numbers
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        let (width, values) = (u32::from(numbers[0]), &numbers[1..]);
        let bytes = file(&format!("masks/{name}"));
        let mask = Mask::<u16>::decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (mask.width(), mask.height() * width),
            (width, values.len() as u32),
            "{name}"
        );
        assert_eq!(mask.values(), values, "{name}");
        if name == "gray16.png" {
            let error = Mask::<u8>::decode(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("19x7 with 16 bits"), "{error}");
        } else {
            let mask = Mask::<u8>::decode(&bytes).unwrap();
            assert!(
                mask.values()
                    .iter()
                    .map(|&class| u16::from(class))
                    .eq(values.iter().copied()),
                "{name}"
            );
        }
    }
}

#[test]
fn what_has_no_classes_says_why() {
    for (name, text) in [
        ("masks/rgb.unread.png", "a PNG with colours"),
        ("masks/rgba.unread.png", "a PNG with an alpha channel"),
        ("masks/la.unread.png", "a PNG with an alpha channel"),
        ("masks/turned.unread.png", "a PNG with an EXIF orientation"),
        ("masks/gray.unread.gif", "from a PNG, not a gif"),
        ("rgb420.jpg", "from a PNG, not a jpeg"),
    ] {
        let error = Mask::<u8>::decode(&file(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.to_string().contains(text), "{name}: {error}");
    }
    assert_eq!(
        Mask::<u8>::decode(b"<html>").unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn row_110_a_mask_cut_anywhere_is_an_error() {
    for name in ["masks/palette4.png", "masks/gray16.png"] {
        let whole = file(name);
        for len in 0..whole.len() {
            assert!(
                Mask::<u16>::decode(&whole[..len]).is_err(),
                "{name} cut to {len} bytes"
            );
        }
        let error = Mask::<u16>::decode(&whole[..whole.len() - 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated);
    }
}

#[test]
fn damage_is_an_error_or_changes_no_class() {
    let whole = file("masks/palette8.png");
    let mask = Mask::<u8>::decode(&whole).unwrap();
    let mut random = Random(1);
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << random.below(8);
        if let Ok(other) = Mask::<u8>::decode(&damaged) {
            assert_eq!(other, mask, "byte {at}");
        }
    }
    // Invalid header values: a palette with 16 bits, and a size that exceeds any memory.
    for (at, value, text) in [
        (24, 16, "16 bits of colour type 3"),
        (25, 7, "colour type is 7"),
        (16, 127, "pixels"),
    ] {
        let mut wrong = whole.clone();
        wrong[at] = value;
        let error = Mask::<u8>::decode(&wrong).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}
