//! A scan's data for a block, when blocks are put together from several scans.

use super::bits::Bits;
use super::block::{self, Block};
use super::huffman::Huffman;
use super::stream::Bad;
use super::tables::{ORDER, Tables};

/// Reads a block's data from a scan.
pub(super) trait Coder {
    /// Reads the data of one block. `held` has a bit for each coefficient except the first that is
    /// not zero, in the file's order.
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        component: usize,
        block: &mut Block,
        held: &mut u64,
    ) -> Result<(), Bad>;

    /// Resets the state, at a restart marker.
    fn restart(&mut self);
}

/// Reads all coefficients at once.
pub(super) struct Whole<'a> {
    pub(super) tables: &'a Tables,
    /// Huffman tables by component.
    pub(super) coded: [(usize, usize); 4],
    pub(super) means: [i32; 4],
}

impl Coder for Whole<'_> {
    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        component: usize,
        block: &mut Block,
        held: &mut u64,
    ) -> Result<(), Bad> {
        let (dc, ac) = self.coded[component & 3];
        let tables = (&self.tables.dc[dc & 3], &self.tables.ac[ac & 3]);
        let last = block::read(bits, tables, &mut self.means[component & 3], block)?;
        // A single bit is enough to record that there are other coefficients.
        *held = u64::from(last > 0) << 63;
        Ok(())
    }

    fn restart(&mut self) {
        self.means = [0; 4];
    }
}

/// Reads the high bits of DC coefficients.
pub(super) struct FirstDc<'a> {
    pub(super) tables: &'a Tables,
    pub(super) coded: [(usize, usize); 4],
    pub(super) means: [i32; 4],
    pub(super) low: u32,
}

impl Coder for FirstDc<'_> {
    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        component: usize,
        block: &mut Block,
        _: &mut u64,
    ) -> Result<(), Bad> {
        let table = &self.tables.dc[self.coded[component & 3].0 & 3];
        let mean = &mut self.means[component & 3];
        block::dc(bits, table, mean)?;
        block.0[0] = i16::try_from(*mean << self.low).map_err(|_| Bad::Range)?;
        Ok(())
    }

    fn restart(&mut self) {
        self.means = [0; 4];
    }
}

/// Reads one more bit of DC coefficients.
pub(super) struct MoreDc {
    pub(super) low: u32,
}

impl Coder for MoreDc {
    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        _: usize,
        block: &mut Block,
        _: &mut u64,
    ) -> Result<(), Bad> {
        bits.refill();
        block.0[0] |= (bits.take(1) << self.low) as i16;
        Ok(())
    }

    fn restart(&mut self) {}
}

/// Reads the high bits of some AC coefficients.
pub(super) struct FirstAc<'a> {
    pub(super) table: &'a Huffman,
    /// First and last coefficient.
    pub(super) band: (usize, usize),
    pub(super) low: u32,
    /// Number of blocks without further coefficients, from the next one on.
    pub(super) empty: u32,
}

impl Coder for FirstAc<'_> {
    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        _: usize,
        block: &mut Block,
        held: &mut u64,
    ) -> Result<(), Bad> {
        if self.empty > 0 {
            self.empty -= 1;
            return Ok(());
        }
        let (mut n, last) = self.band;
        while n <= last {
            bits.refill();
            let entry = self.table.look(bits);
            let (zeros, number) = if entry.number() != 0 {
                bits.skip(entry.len());
                (entry.zeros(), entry.number())
            } else {
                let symbol = self.table.symbol_of(entry, bits)?;
                let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
                if size == 0 && zeros == 15 {
                    n += 16;
                    continue;
                }
                if size == 0 {
                    self.empty = (1 << zeros) - 1 + bits.take(zeros as u32);
                    return Ok(());
                }
                (zeros, bits.number(size))
            };
            n += zeros;
            if n > last {
                return Err(Bad::Block);
            }
            let value = i16::try_from(number << self.low).map_err(|_| Bad::Range)?;
            block.put(n, value.into());
            *held |= 1 << n;
            n += 1;
        }
        // A run of zeros that ends with the band is skipped.
        if n > last + 1 {
            Err(Bad::Block)
        } else {
            Ok(())
        }
    }

    fn restart(&mut self) {
        self.empty = 0;
    }
}

/// Reads one more bit of some AC coefficients.
pub(super) struct MoreAc<'a> {
    pub(super) table: &'a Huffman,
    pub(super) band: (usize, usize),
    pub(super) low: u32,
    pub(super) empty: u32,
}

impl MoreAc<'_> {
    /// Reads the next bit of each of these coefficients, which are not zero.
    #[inline(always)]
    fn correct(&self, bits: &mut Bits<'_>, block: &mut Block, mut which: u64) {
        while which != 0 {
            let n = which.trailing_zeros() as usize;
            which &= which - 1;
            if bits.is_empty() {
                bits.refill();
            }
            let value = &mut block.0[usize::from(ORDER[n]) & 63];
            let (one, sign) = (1i16 << self.low, *value >> 15);
            // Away from zero; not if that bit is known already, which is damage.
            let told = i16::from(*value & one == 0) & bits.take(1) as i16;
            *value = value.wrapping_add(((told << self.low) ^ sign).wrapping_sub(sign));
        }
    }
}

impl Coder for MoreAc<'_> {
    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        _: usize,
        block: &mut Block,
        held: &mut u64,
    ) -> Result<(), Bad> {
        let (mut n, last) = self.band;
        let upto = u64::MAX >> (63 - last);
        if self.empty == 0 {
            while n <= last {
                bits.refill();
                let symbol = self.table.symbol(bits)?;
                let (zeros, size) = (symbol >> 4, symbol & 15);
                let value = match size {
                    0 if zeros < 15 => {
                        self.empty = (1 << zeros) + bits.take(zeros.into());
                        break;
                    }
                    0 => 0,
                    1 if bits.take(1) != 0 => 1i32 << self.low,
                    1 => -1i32 << self.low,
                    _ => return Err(Bad::Symbol),
                };
                // After this many zeros; nonzero coefficients between them do not count.
                let rest = u64::MAX << n & upto;
                let mut free = !*held & rest;
                for _ in 0..zeros {
                    free &= free.wrapping_sub(1);
                }
                let (place, before) = match free {
                    0 => (last + 1, rest),
                    _ => (
                        free.trailing_zeros() as usize,
                        rest & ((free & free.wrapping_neg()) - 1),
                    ),
                };
                self.correct(bits, block, *held & before);
                if value != 0 {
                    if place > last {
                        return Err(Bad::Block);
                    }
                    block.put(place, value);
                    *held |= 1 << place;
                }
                n = place + 1;
            }
        }
        if self.empty > 0 {
            if n <= last {
                self.correct(bits, block, *held & u64::MAX << n & upto);
            }
            self.empty -= 1;
        }
        Ok(())
    }

    fn restart(&mut self) {
        self.empty = 0;
    }
}
