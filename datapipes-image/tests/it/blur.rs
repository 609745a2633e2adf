//! Blurred pictures: those that torchvision makes.

use datapipes_image::{Image, gaussian_blur};

use crate::{difference, picture};

#[test]
fn pictures_are_blurred_as_by_torchvision() {
    let rgb = picture("resize.source.png");
    let green = rgb.data().iter().skip(1).step_by(3).copied().collect();
    let gray = Image::new(rgb.width(), rgb.height(), 1, green).unwrap();
    for (kernel, sigma) in [((3, 3), (0.5, 0.5)), ((9, 5), (1.7, 0.9)), ((23, 39), (4.0, 7.0))] {
        let expected = picture(&format!("blur.rgb.{}x{}.png", kernel.0, kernel.1));
        let off = difference(&gaussian_blur(&rgb, kernel, sigma).unwrap(), &expected);
        assert!(off <= 1, "{kernel:?} is off by {off}");

        let expected = picture(&format!("blur.gray.{}x{}.png", kernel.0, kernel.1));
        let expected: Vec<u8> = expected.data().iter().step_by(3).copied().collect();
        let blurred = gaussian_blur(&gray, kernel, sigma).unwrap();
        let off = blurred.data().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
        assert_eq!((expected.len(), off <= Some(1)), (blurred.data().len(), true), "{kernel:?}: {off:?}");
    }
}
