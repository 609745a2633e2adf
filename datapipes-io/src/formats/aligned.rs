//! Memory whose first byte is aligned for every type of number.

use bytes::Bytes;
use datapipes::{Error, Result};

/// Size of a cache line, and the alignment that NumPy and Arrow use.
const ALIGN: usize = 64;
/// Size above which an allocation is first tried without aborting.
const ASK: usize = 1 << 30;

/// A buffer that is filled once. Bytes before `at` are padding.
#[derive(Debug)]
pub(super) struct Aligned {
    buffer: Vec<u8>,
    at: usize,
}

impl Aligned {
    /// Returns an empty buffer with room for `len` bytes.
    pub(super) fn with_capacity(len: usize) -> Result<Aligned> {
        let mut buffer = Vec::new();
        let room = len.checked_add(ALIGN);
        room.and_then(|room| buffer.try_reserve_exact(room).ok())
            .ok_or_else(|| no_memory(len))?;
        let at = padding(&buffer);
        buffer.resize(at, 0);
        Ok(Aligned { buffer, at })
    }

    /// Returns a buffer of zeros, which cost nothing in fresh memory from the system.
    pub(super) fn zeroed(len: usize) -> Result<Aligned> {
        let room = len.checked_add(ALIGN).ok_or_else(|| no_memory(len))?;
        if room > ASK {
            Vec::<u8>::new()
                .try_reserve_exact(room)
                .map_err(|_| no_memory(len))?;
        }
        let mut buffer = vec![0; room];
        let at = padding(&buffer);
        buffer.truncate(at + len);
        Ok(Aligned { buffer, at })
    }

    /// Returns a copy of the bytes.
    pub(super) fn copy(data: &[u8]) -> Result<Aligned> {
        let mut copy = Aligned::with_capacity(data.len())?;
        copy.buffer.extend_from_slice(data);
        Ok(copy)
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.buffer.len() - self.at
    }

    /// Returns the bytes from `from` on.
    pub(super) fn part_mut(&mut self, from: usize) -> &mut [u8] {
        &mut self.buffer[self.at + from..]
    }

    /// Appends bytes. Nothing moves within the reserved room.
    pub(super) fn extend(&mut self, data: &[u8]) {
        debug_assert!(self.buffer.len() + data.len() <= self.buffer.capacity());
        self.buffer.extend_from_slice(data);
    }

    /// Returns the buffer, so that its spare room can be filled without clearing it first.
    #[cfg(feature = "zip")]
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns the bytes without a copy.
    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::from(self.buffer).slice(self.at..)
    }
}

fn padding(buffer: &[u8]) -> usize {
    buffer.as_ptr().align_offset(ALIGN).min(ALIGN)
}

fn no_memory(len: usize) -> Error {
    Error::limit(format!("no memory for {len} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn the_first_byte_is_aligned_and_nothing_moves() {
        for len in [0, 1, 63, 64, 4097] {
            let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let copy = Aligned::copy(&data).unwrap().into_bytes();
            assert_eq!(copy, data);
            let mut zeroed = Aligned::zeroed(len).unwrap();
            assert_eq!(
                (
                    zeroed.len(),
                    zeroed.part_mut(0).iter().any(|&byte| byte != 0)
                ),
                (len, false)
            );
            let bytes = zeroed.into_bytes();
            assert_eq!(bytes.len(), len);
            if len > 0 {
                assert_eq!(
                    (
                        copy.as_ptr().align_offset(ALIGN),
                        bytes.as_ptr().align_offset(ALIGN)
                    ),
                    (0, 0)
                );
            }
        }
    }

    #[test]
    fn more_than_there_is_memory_is_refused() {
        for len in [usize::MAX, usize::MAX / 4] {
            assert_eq!(
                Aligned::with_capacity(len).unwrap_err().kind(),
                ErrorKind::Limit
            );
            assert_eq!(Aligned::zeroed(len).unwrap_err().kind(), ErrorKind::Limit);
        }
    }
}
