//! Where a decoder writes.

/// RGB, interleaved, rows from the top; used again for the next picture.
#[derive(Debug, Default)]
pub(crate) struct Pixels {
    pub width: u32,
    pub height: u32,
    pub data: Vec<u8>,
}

impl Pixels {
    /// Sets the size. What the pixels are then is not said; memory is kept, and grows where it has to.
    pub fn set_size(&mut self, width: u32, height: u32) {
        (self.width, self.height) = (width, height);
        self.set_len(width as usize * height as usize * 3);
    }

    /// As many bytes, of whatever they are.
    pub fn set_len(&mut self, len: usize) {
        if len > self.data.capacity() {
            self.data = vec![0; len];
        } else {
            self.data.resize(len, 0);
        }
    }
}
