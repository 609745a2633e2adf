//! The work of W2 on images in memory.

use bytes::Bytes;
use datapipes::{Graph, Rng, Tensor};
use datapipes_image::prelude::*;
use datapipes_image::{Image, resize};

/// Makes images of about 500x375, as JPEG files in memory.
pub fn pictures(count: usize) -> Vec<Bytes> {
    let mut rng = Rng::from_key([7; 4]);
    let mut picture = || {
        let coarse: Vec<u8> = (0..40 * 30 * 3).map(|_| rng.below(256) as u8).collect();
        let coarse = Image::new(40, 30, 3, coarse).expect("of this size");
        let mut image = resize(&coarse, 500, 375, ResizeFilter::CatmullRom).expect("a fine size");
        image
            .data_mut()
            .iter_mut()
            .for_each(|v| *v = v.saturating_add(rng.below(24) as u8));
        let mut file = Vec::new();
        let encoder = jpeg_encoder::Encoder::new(&mut file, 87);
        encoder
            .encode(image.data(), 500, 375, jpeg_encoder::ColorType::Rgb)
            .expect("a fine picture");
        Bytes::from(file)
    };
    (0..count).map(|_| picture()).collect()
}

/// Does the work of W2 on each image.
pub fn decoded(files: Graph<Bytes>) -> Graph<Tensor> {
    files.image_rows(rows())
}

/// Returns the processing of an image in W2.
pub fn rows() -> ImageRows {
    ImageRows::random_resized_crop(224)
        .random_hflip(0.5)
        .normalize(Normalize::IMAGENET)
}
