//! Any bytes from file to row: the result is the same as that of the single steps, if these steps
//! succeed.
#![no_main]

use datapipes::Rng;
use datapipes_image::{
    DecodeImage, ImageRows, RandomResizedCrop, random_resized_crop, to_tensor_u8,
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let decode = DecodeImage::new().max_pixels(1 << 20).max_bytes(32 << 20);
    let (crop, rng) = (RandomResizedCrop::new(8, 8), || {
        Rng::from_key([data.len() as u64; 4])
    });
    let rows = ImageRows::random_resized_crop(crop).decoder(decode.clone());
    let row = rows.tensor(data, &mut rng());
    drop(rows.scaled().tensor(data, &mut rng()));
    if let Ok(image) = decode.decode(data) {
        let image = random_resized_crop(&image, crop, &mut rng()).unwrap();
        assert!(row.unwrap() == to_tensor_u8(&image).unwrap());
    }
});
