//! The work of W2 on images in memory.

use bytes::Bytes;
use datapipes::{Graph, Rng, Tensor};
use datapipes_image::prelude::*;
use datapipes_image::{Image, resize};

/// Makes images of about 500x375, as JPEG files in memory.
pub fn pictures(count: usize) -> Vec<Bytes> {
    let mut rng = Rng::from_key([7; 4]);
    let picture = |_| Bytes::from(picture(&mut rng, 500, 375));
    (0..count).map(picture).collect()
}

/// Makes a JPEG file with a photograph's spectrum and about as many bits per pixel.
pub fn picture(rng: &mut Rng, width: u32, height: u32) -> Vec<u8> {
    let coarse: Vec<u8> = (0..40 * 30 * 3).map(|_| rng.below(256) as u8).collect();
    let coarse = Image::new(40, 30, 3, coarse).expect("of this size");
    let mut image = resize(&coarse, width, height, ResizeFilter::CatmullRom).expect("a fine size");
    image
        .data_mut()
        .iter_mut()
        .for_each(|v| *v = v.saturating_add(rng.below(24) as u8));
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, 87);
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::F_2_2);
    let (width, height) = (width as u16, height as u16);
    encoder
        .encode(image.data(), width, height, jpeg_encoder::ColorType::Rgb)
        .expect("a fine picture");
    file
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
