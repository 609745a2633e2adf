//! Huffman codes: lookup tables for the next bits.

use datapipes::Result;

use super::bits::{Bits, extend};
use super::header::corrupt;

/// Number of bits that index the table of codes and numbers.
const LOOK: u32 = 11;
/// Number of bits that index the table for skipping.
const FAR: u32 = 12;

/// A Huffman code whose symbols have the number of zeros before a number (high half), and the
/// number of bits of that number (low half).
pub(super) struct Huffman {
    /// Number of codes of each length, and their symbols: the definition of the code.
    counts: [u8; 16],
    symbols: [u8; 256],
    /// Table by the next bits: length, symbol or zeros before, number; see [`Entry`].
    near: [Entry; 1 << LOOK],
    /// Table by the next bits: the bits to skip at once; made when it is first needed.
    far: [u16; 1 << FAR],
    has_far: bool,
    /// First 16 bits, by length, that are no code of this or a smaller length.
    limit: [u32; 17],
    /// Offset, by length, from a code to its symbol's place.
    offset: [i32; 17],
}

/// Beginning of the next bits. With a number (high 16 bits, never zero): the zeros before it (byte
/// 1), the bits of code and number (byte 0). Otherwise the symbol (byte 1), the bits of the code
/// (byte 0, zero if the code is longer than the table's index).
#[derive(Clone, Copy)]
pub(super) struct Entry(u32);

impl Entry {
    #[inline(always)]
    pub(super) fn number(self) -> i32 {
        self.0 as i32 >> 16
    }

    #[inline(always)]
    pub(super) fn zeros(self) -> usize {
        (self.0 >> 8) as usize & 0xff
    }

    #[inline(always)]
    pub(super) fn len(self) -> u32 {
        self.0 & 0xff
    }
}

/// The bits are no code.
pub(super) struct NoCode;

impl Huffman {
    /// A table without codes.
    pub(super) const EMPTY: Huffman = Huffman {
        counts: [0; 16],
        symbols: [0; 256],
        near: [Entry(0); 1 << LOOK],
        far: [0; 1 << FAR],
        has_far: false,
        limit: [0; 17],
        offset: [0; 17],
    };

    /// Sets the number of codes of each length, and their symbols. Does nothing if they are the
    /// same as before.
    pub(super) fn set(&mut self, counts: &[u8; 16], symbols: &[u8]) -> Result<()> {
        if *counts == self.counts && *symbols == self.symbols[..symbols.len()] {
            return Ok(());
        }
        // The code is invalid until it is complete.
        self.counts = [0; 16];
        self.has_far = false;
        self.near.fill(Entry(0));
        let (mut code, mut place) = (0u32, 0usize);
        for len in 1..=16u32 {
            let count = u32::from(counts[len as usize - 1]);
            // No code consists of ones only.
            if count > 0 && code + count >= 1 << len {
                return corrupt("a Huffman table has too many codes");
            }
            self.offset[len as usize] = place as i32 - code as i32;
            for _ in 0..count {
                let symbol = *symbols
                    .get(place)
                    .expect("the caller brings as many symbols as codes");
                if len <= LOOK {
                    let first = (code << (LOOK - len)) as usize;
                    let entries = &mut self.near[first..first + (1 << (LOOK - len))];
                    for (rest, entry) in entries.iter_mut().enumerate() {
                        *entry = entry_of(symbol, len, rest as u32);
                    }
                }
                code += 1;
                place += 1;
            }
            self.limit[len as usize] = code << (16 - len);
            code <<= 1;
        }
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        self.counts = *counts;
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts == [0; 16]
    }

    /// Returns the largest symbol.
    pub(super) fn largest(&self) -> u8 {
        let count: usize = self.counts.iter().map(|&count| usize::from(count)).sum();
        self.symbols[..count.min(256)]
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
    }

    /// Returns the entry for the next bits.
    #[inline(always)]
    pub(super) fn look(&self, bits: &Bits<'_>) -> Entry {
        self.near[bits.peek(LOOK)]
    }

    /// Takes the code of an entry without a number.
    #[inline(always)]
    pub(super) fn symbol_of(&self, entry: Entry, bits: &mut Bits<'_>) -> Result<u8, NoCode> {
        if entry.len() != 0 {
            bits.skip(entry.len());
            return Ok(entry.zeros() as u8);
        }
        // Only the bits are passed, so that the reader stays in registers.
        let (len, symbol) = self.long(bits.peek(16) as u32)?;
        bits.skip(len);
        Ok(symbol)
    }

    /// Returns the length and the symbol of a code that is longer than the table's index.
    #[cold]
    #[inline(never)]
    fn long(&self, next: u32) -> Result<(u32, u8), NoCode> {
        for len in LOOK + 1..=16 {
            if next < self.limit[len as usize] {
                let place = (next >> (16 - len)) as i32 + self.offset[len as usize];
                return self
                    .symbols
                    .get(place as usize)
                    .map(|&symbol| (len, symbol))
                    .ok_or(NoCode);
            }
        }
        Err(NoCode)
    }

    /// Takes the next code, of up to 16 available bits.
    #[inline(always)]
    pub(super) fn symbol(&self, bits: &mut Bits<'_>) -> Result<u8, NoCode> {
        let entry = self.look(bits);
        if entry.number() != 0 {
            // The number's bits are still to be read.
            let size = entry.number().unsigned_abs().ilog2() + 1;
            bits.skip(entry.len() - size);
            return Ok((entry.zeros() as u8) << 4 | size as u8);
        }
        self.symbol_of(entry, bits)
    }

    /// Makes the table that [`pass`](Huffman::pass) needs.
    pub(super) fn look_far(&mut self) {
        if self.has_far {
            return;
        }
        for (next, far) in self.far.iter_mut().enumerate() {
            let (mut taken, mut places, mut ends) = (0, 0, 0);
            while taken < FAR && ends == 0 {
                let entry = self.near[(next << taken & ((1 << FAR) - 1)) >> (FAR - LOOK)];
                let (bits, step) = match (entry.number(), entry.zeros()) {
                    (0, 0x00) => (entry.len(), 0),
                    (0, 0xf0) => (entry.len(), 16),
                    // Not of the format.
                    (0, symbol) if symbol & 15 == 0 => break,
                    (0, symbol) => (entry.len() + (symbol as u32 & 15), (symbol >> 4) + 1),
                    (_, zeros) => (entry.len(), zeros + 1),
                };
                if entry.len() == 0 || taken + bits > FAR || places + step > 63 {
                    break;
                }
                taken += bits;
                places += step;
                ends = u16::from(step == 0);
            }
            *far = ends << 15 | (places as u16) << 4 | taken as u16;
        }
        self.has_far = true;
    }

    /// Returns the bits to skip (0: decode one by one), the number of places in the block, and true
    /// if the block ends.
    #[inline(always)]
    pub(super) fn pass(&self, bits: &Bits<'_>) -> (u32, usize, bool) {
        let far = self.far[bits.peek(FAR)];
        (
            u32::from(far & 15),
            usize::from(far >> 4 & 0x7f),
            far >> 15 != 0,
        )
    }
}

fn entry_of(symbol: u8, len: u32, rest: u32) -> Entry {
    let size = u32::from(symbol & 15);
    if size == 0 || len + size > LOOK {
        return Entry(u32::from(symbol) << 8 | len);
    }
    let bits = rest >> (LOOK - len - size);
    let number = extend(bits as i32, size);
    Entry((number as u32) << 16 | u32::from(symbol >> 4) << 8 | (len + size))
}

#[cfg(test)]
mod tests {
    use super::super::bits::{At, PAD, unstuff};
    use super::*;

    /// One code of each length, the last of 16 bits, for symbols of all sorts.
    fn staircase() -> (Huffman, [u8; 16]) {
        let symbols = [
            0x01, 0x00, 0x12, 0x05, 0xf0, 0x33, 0x0a, 0x21, 0x41, 0x77, 0x02, 0x63, 0xa1, 0xf3,
            0x11, 0x84,
        ];
        let mut table = Huffman::EMPTY;
        table.set(&[1; 16], &symbols).unwrap();
        (table, symbols)
    }

    #[test]
    fn what_is_no_code_is_refused() {
        let mut table = Huffman::EMPTY;
        // Two codes of one bit: the second would consist of ones only.
        assert!(
            table
                .set(
                    &std::array::from_fn(|n| if n == 0 { 2 } else { 0 }),
                    &[1, 2]
                )
                .is_err()
        );
        assert!(table.is_empty());
        assert!(
            table
                .set(
                    &std::array::from_fn(|n| if n == 1 { 5 } else { 0 }),
                    &[1, 2, 3, 4, 5]
                )
                .is_err()
        );
        assert!(
            table
                .set(
                    &std::array::from_fn(|n| if n == 1 { 3 } else { 0 }),
                    &[1, 2, 3]
                )
                .is_ok()
        );
        assert_eq!(table.largest(), 3);
    }

    #[test]
    fn codes_of_every_length_are_read_and_passed_by() {
        let (mut table, symbols) = staircase();
        table.look_far();
        for (n, &symbol) in symbols.iter().enumerate() {
            let size = u32::from(symbol & 15);
            for number in [0, (1 << size) >> 1, (1 << size) - 1] {
                // A row of ones and a zero, then the number, then a code without a number.
                let text = format!(
                    "{}0{}10",
                    "1".repeat(n),
                    &format!("{number:016b}")[16 - size as usize..]
                );
                let padded = format!("{text:0<64}");
                let bytes: Vec<u8> = padded
                    .as_bytes()
                    .chunks(8)
                    .flat_map(|bits| {
                        let byte = bits.iter().fold(0, |byte, bit| byte << 1 | (bit - b'0'));
                        [byte, 0].into_iter().take(if byte == 0xff { 2 } else { 1 })
                    })
                    .collect();
                let mut data = Vec::new();
                let (_, len) = unstuff(&bytes, 0, &mut data);
                let mut bits = Bits::new(&data[..len + PAD], At::default());
                bits.refill();
                let (entry, (taken, places, ends)) = (table.look(&bits), table.pass(&bits));
                if entry.number() != 0 {
                    assert_eq!(entry.number(), extend(number, size), "{text}");
                    assert_eq!(
                        (entry.zeros() as u8, entry.len()),
                        (symbol >> 4, n as u32 + 1 + size)
                    );
                }
                if taken > 0 && symbol != 0 && symbol != 0xf0 {
                    assert!(places > usize::from(symbol >> 4), "{text}");
                    assert!(taken > n as u32 + size && taken <= FAR);
                    assert!(!ends || taken as usize >= text.len());
                }
                assert_eq!(table.symbol(&mut bits).ok(), Some(symbol), "{text}");
                assert_eq!(bits.number(size), extend(number, size));
                assert_eq!(table.symbol(&mut bits).ok(), Some(0));
                assert_eq!(bits.at().taken(), text.len());
            }
        }
        let data = [0xff; 64];
        let mut bits = Bits::new(&data, At::default());
        bits.refill();
        assert!(table.symbol(&mut bits).is_err());
    }
}
