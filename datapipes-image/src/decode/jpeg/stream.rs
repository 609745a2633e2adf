//! Compressed data of a scan: one stretch between restart markers after another.

use datapipes::Result;

use super::bits::{At, Bits, PAD, unstuff};
use super::header::corrupt;
use super::huffman::NoCode;

/// Errors in compressed data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bad {
    /// Bits that are no code.
    Code,
    /// More coefficients than a block has.
    Block,
    /// A coefficient out of range.
    Range,
    /// A symbol that has no meaning here.
    Symbol,
}

datapipes::conversions! {
    |_: NoCode| -> Bad { Bad::Code }
}

impl Bad {
    #[cold]
    pub(super) fn at<T>(self, row: usize) -> Result<T> {
        let what = match self {
            Bad::Code => "bits that are no code, or data that ends early",
            Bad::Block => "a block of more than 64 coefficients",
            Bad::Range => "a coefficient out of range",
            Bad::Symbol => "a symbol without meaning",
        };
        corrupt(&format!("damaged data: {what} in row {row} of blocks"))
    }
}

/// Reads the compressed data of one scan.
#[derive(Default)]
pub(super) struct Stream {
    /// Data of this stretch, followed by ones.
    data: Vec<u8>,
    len: usize,
    at: At,
    /// Offset of the marker after this stretch.
    marker: usize,
    /// Number of restart markers so far.
    restarts: usize,
}

impl Stream {
    /// Begins with the data that starts here.
    pub(super) fn begin(&mut self, bytes: &[u8], start: usize) {
        self.restarts = 0;
        self.fill(bytes, start);
    }

    fn fill(&mut self, bytes: &[u8], start: usize) {
        (self.marker, self.len) = unstuff(bytes, start, &mut self.data);
        self.at = At::default();
    }

    /// Returns a reader of the next bits; call [`keep`](Stream::keep) to record how many were
    /// taken.
    #[inline(always)]
    pub(super) fn bits(&self) -> Bits<'_> {
        Bits::new(&self.data[..self.len + PAD], self.at)
    }

    pub(super) fn keep(&mut self, at: At) {
        self.at = at;
    }

    /// Fails if more bits were taken than there are.
    pub(super) fn check(&self, row: usize) -> Result<()> {
        if self.at.taken() > self.len * 8 {
            return Bad::Code.at(row);
        }
        Ok(())
    }

    /// Skips the rest of this stretch.
    pub(super) fn pass(&mut self) {
        self.at = At::at_byte(self.len);
    }

    /// Continues after the restart marker, which has to be here.
    pub(super) fn restart(&mut self, bytes: &[u8], row: usize) -> Result<()> {
        self.check(row)?;
        let left = self.len - self.at.taken().div_ceil(8);
        if left > 0 {
            return corrupt(&format!(
                "damaged data: {left} bytes too many before a restart, in row {row} of blocks"
            ));
        }
        let expected = 0xd0 + (self.restarts % 8) as u8;
        if bytes.get(self.marker + 1) != Some(&expected) {
            return corrupt(&format!(
                "restart marker {expected:02x} is missing in row {row} of blocks"
            ));
        }
        self.restarts += 1;
        self.fill(bytes, self.marker + 2);
        Ok(())
    }

    /// Returns the number of bytes that are kept.
    pub(super) fn capacity(&self) -> usize {
        self.data.capacity()
    }
}
