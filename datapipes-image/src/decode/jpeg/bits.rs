//! Compressed data: the bytes without their stuffing, and a reader of their bits.

/// Number of bytes after the data, so that reading ahead needs no checks. They are ones, which are
/// not the beginning of any code.
pub(super) const PAD: usize = 32;

/// Copies compressed data up to the next marker, without the zero that follows each `0xff`. Returns
/// the offset of the marker, and the length of the data; ones follow the data.
pub(super) fn unstuff(bytes: &[u8], mut at: usize, data: &mut Vec<u8>) -> (usize, usize) {
    const BLOCK: usize = 32;
    let room = bytes.len() - at + BLOCK + PAD;
    if data.len() < room {
        data.resize(room, 0);
    }
    let mut len = 0;
    loop {
        // In blocks, which compiles to vector instructions.
        while let Some(block) = bytes[at..].first_chunk::<BLOCK>() {
            data[len..len + BLOCK].copy_from_slice(block);
            if block
                .iter()
                .fold(false, |found, &byte| found | (byte == 0xff))
            {
                break;
            }
            at += BLOCK;
            len += BLOCK;
        }
        let rest = &bytes[at..];
        let Some(ff) = rest.iter().position(|&byte| byte == 0xff) else {
            data[len..len + rest.len()].copy_from_slice(rest);
            at = bytes.len();
            len += rest.len();
            break;
        };
        data[len..len + ff].copy_from_slice(&rest[..ff]);
        at += ff;
        len += ff;
        match bytes.get(at + 1) {
            Some(0x00) => {
                data[len] = 0xff;
                at += 2;
                len += 1;
            }
            Some(0xff) => at += 1,
            _ => break,
        }
    }
    data[len..len + PAD].fill(0xff);
    (at, len)
}

/// Position of a reader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At {
    /// Next byte to load.
    byte: usize,
    /// Next bits, from the highest on.
    buffer: u64,
    /// Number of valid bits in the buffer.
    left: u32,
}

impl At {
    /// Returns the position right before this byte.
    pub(super) fn at_byte(byte: usize) -> At {
        At {
            byte,
            buffer: 0,
            left: 0,
        }
    }

    /// Returns the number of bits taken.
    pub(super) fn taken(self) -> usize {
        self.byte * 8 - self.left as usize
    }
}

/// Reads bits, the highest of a byte first.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: At,
}

impl<'a> Bits<'a> {
    #[inline(always)]
    pub(super) fn new(data: &'a [u8], at: At) -> Self {
        Bits { data, at }
    }

    #[inline(always)]
    pub(super) fn at(&self) -> At {
        self.at
    }

    /// Makes at least 56 bits available. Far after the data there are only ones.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let next = match self
            .data
            .get(self.at.byte..)
            .and_then(|rest| rest.first_chunk())
        {
            Some(&bytes) => u64::from_be_bytes(bytes),
            None => u64::MAX,
        };
        self.at.buffer |= next >> self.at.left;
        self.at.byte += ((63 - self.at.left) >> 3) as usize;
        self.at.left |= 56;
    }

    /// Returns true if no available bit is left.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.at.left == 0
    }

    /// Returns the next bits, 1 to 32 of them, without taking them.
    #[inline(always)]
    pub(super) fn peek(&self, count: u32) -> usize {
        (self.at.buffer >> (64 - count)) as usize
    }

    /// Skips bits, no more than are available.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        self.at.buffer <<= count;
        self.at.left -= count;
    }

    /// Takes bits, up to 32.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32) -> u32 {
        // In two steps, for a count of 0.
        let bits = (self.at.buffer >> 1) >> (63 - count);
        self.skip(count);
        bits as u32
    }

    /// Takes a number of `size` bits, up to 15: half of the numbers are negative.
    #[inline(always)]
    pub(super) fn number(&mut self, size: u32) -> i32 {
        let bits = self.take(size) as i32;
        extend(bits, size)
    }
}

/// Returns the number that `size` bits stand for.
#[inline(always)]
pub(super) fn extend(bits: i32, size: u32) -> i32 {
    let half = (1 << size) >> 1;
    if bits < half {
        bits - (1 << size) + 1
    } else {
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuffing_goes_and_markers_end_it() {
        for before in [0, 1, 30, 31, 32, 33, 100] {
            let mut bytes = vec![7; before];
            bytes.extend([0xff, 0x00, 1, 0xff, 0x00, 0xff, 0x00]);
            let marker = bytes.len();
            bytes.extend([0xff, 0xff, 0xd9, 5]);
            let mut data = Vec::new();
            let (at, len) = unstuff(&bytes, 0, &mut data);
            assert_eq!(at, marker + 1);
            assert_eq!(data[..before], vec![7; before]);
            assert_eq!(data[before..len], [0xff, 1, 0xff, 0xff]);
            assert_eq!(data[len..len + PAD], [0xff; PAD]);
            let (at, len) = unstuff(&bytes[..marker], 0, &mut data);
            assert_eq!((at, len), (marker, before + 4));
        }
    }

    #[test]
    fn bits_come_highest_first_and_ones_behind_them() {
        let mut data = Vec::new();
        let bytes: Vec<u8> = (1..40).collect();
        let (_, len) = unstuff(&bytes, 0, &mut data);
        let mut bits = Bits::new(&data[..len + PAD], At::default());
        let mut seen = String::new();
        for n in 0..80 {
            bits.refill();
            let count = n % 9;
            let peeked = if count > 0 { bits.peek(count) } else { 0 };
            let taken = bits.take(count);
            assert_eq!(peeked, taken as usize);
            if count > 0 {
                seen += &format!("{taken:0count$b}", count = count as usize);
            }
            assert_eq!(bits.at().taken(), seen.len());
        }
        let all: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
        assert!(seen.len() > len * 8);
        assert_eq!(seen[..len * 8], all);
        assert!(seen[len * 8..].bytes().all(|bit| bit == b'1'));
        for _ in 0..1000 {
            bits.refill();
            assert_eq!(bits.take(32), u32::MAX);
        }
    }

    #[test]
    fn numbers_are_those_of_the_standard() {
        // Annex F, table F.1.
        for (bits, size, number) in [
            (0, 0, 0),
            (0, 1, -1),
            (1, 1, 1),
            (0, 2, -3),
            (1, 2, -2),
            (3, 2, 3),
            (0, 15, -32767),
        ] {
            assert_eq!(extend(bits, size), number);
        }
    }
}
