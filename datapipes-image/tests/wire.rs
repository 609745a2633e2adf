//! Transfer of images and their targets to another process.

use std::fmt::Debug;

use datapipes::testing::{sent, wire_bytes, wire_from};
use datapipes::{ErrorKind, Wire};
use datapipes_image::{Boxes, Image, Keypoint, Keypoints, Mask, Rect, Visibility};

/// Checks that the value makes the round trip, that each cut of its bytes is an error, and that
/// each flipped bit gives a value or an error.
fn check<T: Wire + PartialEq + Debug>(value: T) {
    assert_eq!(sent(&value).unwrap(), value);
    let whole = wire_bytes(&value).unwrap();
    if whole.len() > 1000 {
        return;
    }
    for len in 0..whole.len() {
        assert_eq!(
            wire_from::<T>(&whole[..len], &[]).unwrap_err().kind(),
            ErrorKind::Protocol
        );
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            if let Err(error) = wire_from::<T>(&bytes, &[]) {
                assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
            }
        }
    }
}

#[test]
fn pictures() {
    check(Image::new(2, 3, 3, (0..18).collect()).unwrap());
    check(Image::new(400, 300, 1, vec![7; 120_000]).unwrap());
    check(Rect {
        x: 1,
        y: 2,
        width: 3,
        height: 4,
    });
}

#[test]
fn a_picture_of_another_size_than_its_pixels_is_damage() {
    let mut bytes = wire_bytes(&Image::new(2, 3, 3, vec![0; 18]).unwrap()).unwrap();
    bytes[0] = 3;
    let error = wire_from::<Image>(&bytes, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(
        error.to_string().contains("18 bytes for an image of 3x3x3"),
        "{error}"
    );
}

#[test]
fn masks() {
    check(Mask::new(2, 2, vec![1u8, 2, 3, 4]).unwrap().outside(255));
    check(Mask::new(1, 3, vec![1u16, 2, 300]).unwrap());
    check(Mask::new(300, 100, vec![9u32; 30_000]).unwrap());
}

#[test]
fn boxes_points_and_what_was_kept() {
    let boxes = Boxes::new(10, 10, vec![[0.0, 0.0, 10.0, 10.0], [1.5, 2.5, 1.5, 3.0]]).unwrap();
    check(boxes.clone());
    check(Boxes::new(1, 1, vec![]).unwrap());
    let (_, kept) = boxes.sanitize(1.0, 1.0).unwrap();
    check(kept);
    let point = |x, y, visibility| Keypoint { x, y, visibility };
    check(point(-1.0, 5e9, Visibility::Absent));
    let points = vec![
        point(1.0, 2.0, Visibility::Visible),
        point(90.0, 2.0, Visibility::Hidden),
    ];
    check(Keypoints::new(10, 10, points).unwrap());
}
