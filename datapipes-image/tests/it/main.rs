//! Tests of the public API, by topic.

mod augment;
mod colour;
mod damage;
mod decode;
mod formats;
mod geometry;
mod geometry_draws;
mod graph;
mod hostile;
mod masks;
mod named;
mod part;
mod resize;
mod rows;

use std::path::Path;

use datapipes_image::{Image, decode};

/// Reads a file that `tests/data/make.py` made.
fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Decodes a file that `tests/data/make.py` made.
fn picture(name: &str) -> Image {
    decode(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the largest difference of any channel of any pixel.
fn difference(a: &Image, b: &Image) -> u8 {
    assert_eq!(
        (a.width(), a.height(), a.channels()),
        (b.width(), b.height(), b.channels())
    );
    a.data()
        .iter()
        .zip(b.data())
        .map(|(a, b)| a.abs_diff(*b))
        .max()
        .unwrap_or(0)
}

/// A generator of numbers that are the same in every run.
struct Random(u64);

impl Random {
    /// Returns a number below `count`.
    fn below(&mut self, count: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % count
    }
}

/// Makes a photo-like image: gradients and grain.
fn photo(width: u16, height: u16) -> Vec<u8> {
    let pixel = |x: u32, y: u32| {
        let grain =
            (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503_123)).wrapping_mul(97) >> 28;
        [
            (x * 255 / u32::from(width)) as u8,
            (y * 200 / u32::from(height) + grain) as u8,
            (90 + grain * 3) as u8,
        ]
    };
    (0..u32::from(height))
        .flat_map(|y| (0..u32::from(width)).flat_map(move |x| pixel(x, y)))
        .collect()
}

/// Encodes a photo-like image as JPEG.
fn jpeg(
    width: u16,
    height: u16,
    configure: impl FnOnce(&mut jpeg_encoder::Encoder<&mut Vec<u8>>),
) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, 92);
    configure(&mut encoder);
    encoder
        .encode(
            &photo(width, height),
            width,
            height,
            jpeg_encoder::ColorType::Rgb,
        )
        .unwrap();
    file
}
