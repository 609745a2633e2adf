//! Scaled images, compared with Pillow's.

use datapipes_image::{Rect, ResizeFilter, resize, resized_crop};

use crate::picture;

#[test]
fn pictures_are_scaled_as_by_pillow() {
    let source = picture("resize.source.png");
    for (name, filter) in [
        ("bilinear", ResizeFilter::Bilinear),
        ("catmull_rom", ResizeFilter::CatmullRom),
        ("lanczos3", ResizeFilter::Lanczos3),
    ] {
        for (width, height) in [(11, 9), (31, 27)] {
            let expected = picture(&format!("resize.{name}.{width}x{height}.png"));
            let image = resize(&source, width, height, filter).unwrap();
            assert!(
                image.data() == expected.data(),
                "{name} to {width}x{height}"
            );
        }
    }
}

#[test]
fn a_part_is_scaled_without_what_is_beside_it() {
    let part = Rect {
        x: 3,
        y: 2,
        width: 17,
        height: 13,
    };
    let image = resized_crop(
        &picture("resize.source.png"),
        part,
        9,
        9,
        ResizeFilter::Bilinear,
    )
    .unwrap();
    assert!(image.data() == picture("resize.crop.png").data());
}
