//! Any bytes as the header of an image, of any format.
#![no_main]

use datapipes_image::{DecodeImage, ImageFormat, dimensions};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok((width, height)) = dimensions(data) {
        assert!(width > 0 && height > 0 && ImageFormat::of(data).is_some());
        let (w, h) = DecodeImage::new()
            .ignore_orientation()
            .dimensions(data)
            .unwrap();
        assert!((w, h) == (width, height) || (h, w) == (width, height));
    }
});
