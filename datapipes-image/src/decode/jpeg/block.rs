//! One block of a sequential scan: its coefficients, or its end.

use super::bits::Bits;
use super::huffman::Huffman;
use super::stream::Bad;
use super::tables::ORDER;

/// Coefficients of a block, by rows, as they are coded: without dequantisation.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Block(pub(super) [i16; 64]);

impl Block {
    pub(super) const ZERO: Block = Block([0; 64]);

    /// Stores a coefficient by its index in the order of the file.
    #[inline(always)]
    pub(super) fn put(&mut self, n: usize, value: i32) {
        self.0[usize::from(ORDER[n & 127]) & 63] = value as i16;
    }
}

/// Takes the difference to the last DC coefficient, and adds it to `last`.
#[inline(always)]
pub(super) fn dc(bits: &mut Bits<'_>, table: &Huffman, last: &mut i32) -> Result<(), Bad> {
    bits.refill();
    let entry = table.look(bits);
    let difference = match entry.number() {
        0 => {
            let size = table.symbol_of(entry, bits)?;
            bits.number(size.into())
        }
        number => {
            bits.skip(entry.len());
            number
        }
    };
    *last += difference;
    if i32::from(*last as i16) == *last {
        Ok(())
    } else {
        Err(Bad::Range)
    }
}

/// Reads a block, which must be zero before. Returns the place of its last coefficient that is not
/// zero.
#[inline(always)]
pub(super) fn read(
    bits: &mut Bits<'_>,
    (dc_table, ac_table): (&Huffman, &Huffman),
    last_dc: &mut i32,
    block: &mut Block,
) -> Result<u8, Bad> {
    dc(bits, dc_table, last_dc)?;
    block.0[0] = *last_dc as i16;
    let (mut n, mut last) = (1, 0);
    macro_rules! put {
        ($zeros:expr, $number:expr) => {
            n += $zeros;
            block.put(n, $number);
            last = n;
            n += 1;
            if n >= 64 {
                break;
            }
        };
    }
    loop {
        bits.refill();
        let mut entry = ac_table.look(bits);
        if entry.number() != 0 {
            bits.skip(entry.len());
            put!(entry.zeros(), entry.number());
            entry = ac_table.look(bits);
            if entry.number() != 0 {
                bits.skip(entry.len());
                put!(entry.zeros(), entry.number());
                entry = ac_table.look(bits);
                if entry.number() != 0 {
                    bits.skip(entry.len());
                    put!(entry.zeros(), entry.number());
                    continue;
                }
            }
        }
        // At most 20 of 56 bits are used; code and number have at most 31.
        match ac_table.symbol_of(entry, bits)? {
            0x00 => return Ok(last as u8),
            0xf0 => {
                n += 16;
                if n >= 64 {
                    break;
                }
            }
            symbol if symbol & 15 == 0 => return Err(Bad::Symbol),
            symbol => {
                let number = bits.number(u32::from(symbol & 15));
                put!(usize::from(symbol >> 4), number);
            }
        }
    }
    if n > 64 {
        Err(Bad::Block)
    } else {
        Ok(last as u8)
    }
}

/// Skips a block except for its DC coefficient.
#[inline(always)]
pub(super) fn pass(
    bits: &mut Bits<'_>,
    (dc_table, ac_table): (&Huffman, &Huffman),
    last_dc: &mut i32,
) -> Result<(), Bad> {
    dc(bits, dc_table, last_dc)?;
    let mut n = 1;
    macro_rules! far {
        ($otherwise:expr) => {
            let (taken, places, ends) = ac_table.pass(bits);
            // Bits after a block's 64th coefficient do not belong to the block.
            if taken != 0 && n + places < 64 {
                bits.skip(taken);
                n += places;
                if ends {
                    return Ok(());
                }
            } else {
                $otherwise
            }
        };
    }
    'block: while n < 64 {
        bits.refill();
        'close: {
            far!(break 'close);
            far!(break 'close);
            far!(continue 'block);
            continue 'block;
        }
        // At most 12 of 56 bits are used; code and number have at most 31.
        match ac_table.symbol(bits)? {
            0x00 => return Ok(()),
            0xf0 => n += 16,
            symbol if symbol & 15 == 0 => return Err(Bad::Symbol),
            symbol => {
                bits.skip(u32::from(symbol & 15));
                n += usize::from(symbol >> 4) + 1;
            }
        }
    }
    if n > 64 { Err(Bad::Block) } else { Ok(()) }
}
