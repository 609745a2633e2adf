//! Colour pixels in blocks of planes, so that loops over them become vector instructions.

use crate::Image;

/// Number of pixels in a block: it fits in the nearest cache.
pub(crate) const BLOCK: usize = 64;

/// Red, green and blue, from 0 to 255.
pub(crate) type Block = [[f32; BLOCK]; 3];

/// Runs a function over all pixels of an RGB image, in place. Its results are clamped to 0 to 255
/// and truncated to whole numbers. The last block may have values that belong to no pixel.
pub(crate) fn by_blocks(image: &mut Image, f: impl Fn(&mut Block)) {
    debug_assert_eq!(image.channels(), 3);
    let (mut block, mut bytes) = ([[0.0; BLOCK]; 3], [[0; BLOCK]; 3]);
    for pixels in image.data_mut().as_chunks_mut::<3>().0.chunks_mut(BLOCK) {
        let [r, g, b] = &mut block;
        for (((pixel, r), g), b) in pixels.iter().zip(r).zip(g).zip(b) {
            [*r, *g, *b] = pixel.map(f32::from);
        }
        f(&mut block);
        for (to, value) in bytes
            .as_flattened_mut()
            .iter_mut()
            .zip(block.as_flattened())
        {
            *to = value.clamp(0.0, 255.0) as i32 as u8;
        }
        let [r, g, b] = &bytes;
        for (((pixel, r), g), b) in pixels.iter_mut().zip(r).zip(g).zip(b) {
            *pixel = [*r, *g, *b];
        }
    }
}
