//! Writes PNG files: 8 bits, gray or RGB.

use std::io::Write;

use datapipes_image::Image;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// Encodes an image as a PNG, with unfiltered rows.
pub fn encode(image: &Image) -> Vec<u8> {
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::default());
    for row in image
        .data()
        .chunks_exact(image.width() as usize * usize::from(image.channels()))
    {
        pixels
            .write_all(&[0])
            .and_then(|()| pixels.write_all(row))
            .expect("memory does not fail");
    }
    let colour = if image.channels() == 1 { 0 } else { 2 };
    let mut header = [image.width().to_be_bytes(), image.height().to_be_bytes()].concat();
    header.extend([8, colour, 0, 0, 0]);
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut png, b"IHDR", &header);
    chunk(
        &mut png,
        b"IDAT",
        &pixels.finish().expect("memory does not fail"),
    );
    chunk(&mut png, b"IEND", &[]);
    png
}

fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend((data.len() as u32).to_be_bytes());
    let mut sum = Crc::new();
    for part in [kind, data] {
        sum.update(part);
        png.extend(part);
    }
    png.extend(sum.sum().to_be_bytes());
}
