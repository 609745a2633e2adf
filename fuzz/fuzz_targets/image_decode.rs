//! Any bytes as an image, of any format.
#![no_main]

use datapipes_image::DecodeImage;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let settings = DecodeImage::new().max_pixels(1 << 20).max_bytes(32 << 20);
    if let Ok(image) = settings.decode(data) {
        assert_eq!(
            settings.dimensions(data).unwrap(),
            (image.width(), image.height())
        );
    }
});
