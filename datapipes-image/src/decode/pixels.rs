//! Pixels that are kept between pictures, so that none is allocated for each.

/// Interleaved RGB, eight bits a channel, row by row.
#[derive(Debug, Default)]
pub(crate) struct Pixels {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// `width * height * 3` bytes.
    pub(crate) data: Vec<u8>,
}

impl Pixels {
    /// Gives it a size, and the place for its pixels: what stands there is left over from before. Allocates only
    /// what is missing.
    pub(crate) fn set_size(&mut self, width: u32, height: u32) -> &mut [u8] {
        (self.width, self.height) = (width, height);
        self.data.resize(width as usize * height as usize * 3, 0);
        &mut self.data
    }
}
