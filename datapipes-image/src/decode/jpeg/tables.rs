//! Tables in segments between the scans: quantisation and Huffman codes.

use datapipes::Result;

use super::header::corrupt;
use super::huffman::Huffman;

/// Places of a block in the order of the coefficients, by rows. They are followed by places for a
/// run of zeros that leads out of the block, which is detected afterwards.
pub(super) const ORDER: [u8; 128] = {
    let (mut order, mut n, mut diagonal) = ([63; 128], 0, 0);
    while diagonal < 15 {
        let mut step = 0;
        while step <= diagonal {
            let (x, y) = if diagonal % 2 == 1 {
                (diagonal - step, step)
            } else {
                (step, diagonal - step)
            };
            if x < 8 && y < 8 {
                order[n] = (y * 8 + x) as u8;
                n += 1;
            }
            step += 1;
        }
        diagonal += 1;
    }
    order
};

/// All tables, at one position of the file.
pub(super) struct Tables {
    /// Quantisation tables, by rows.
    quant: [Option<[u16; 64]>; 4],
    pub(super) dc: [Huffman; 4],
    pub(super) ac: [Huffman; 4],
    /// Number of units between restart markers; 0 for none.
    pub(super) interval: usize,
}

impl Tables {
    /// Empty tables.
    pub(super) const EMPTY: Tables = Tables {
        quant: [None; 4],
        dc: [Huffman::EMPTY; 4],
        ac: [Huffman::EMPTY; 4],
        interval: 0,
    };

    /// Prepares for the next file. Codes stay in memory: most files have the same.
    pub(super) fn begin(&mut self) {
        self.quant = [None; 4];
        self.interval = 0;
    }

    pub(super) fn read_interval(&mut self, body: &[u8]) -> Result<()> {
        let [high, low] = *body else {
            return corrupt("its restart interval is not well described");
        };
        self.interval = u16::from_be_bytes([high, low]).into();
        Ok(())
    }

    pub(super) fn read_quant(&mut self, mut body: &[u8]) -> Result<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let (wide, id) = (kind >> 4 != 0, usize::from(kind & 15));
            let len = if wide { 128 } else { 64 };
            let (Some((values, rest)), true) = (rest.split_at_checked(len), id < 4) else {
                return corrupt("a quantisation table is not well described");
            };
            let table = self.quant[id].insert([0; 64]);
            for (n, &place) in ORDER[..64].iter().enumerate() {
                table[usize::from(place)] = match wide {
                    true => u16::from_be_bytes([values[2 * n], values[2 * n + 1]]),
                    false => values[n].into(),
                };
            }
            body = rest;
        }
        Ok(())
    }

    pub(super) fn quant(&self, id: usize) -> Result<[u16; 64]> {
        match self.quant.get(id) {
            Some(Some(table)) => Ok(*table),
            _ => corrupt(&format!("it has no quantisation table {id}")),
        }
    }
}

/// Huffman tables that the file has defined so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Brought {
    dc: [bool; 4],
    ac: [bool; 4],
}

impl Brought {
    pub(super) fn read(&mut self, mut body: &[u8], tables: &mut Tables) -> Result<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let (class, id) = (kind >> 4, usize::from(kind & 15));
            let split = rest.split_first_chunk::<16>().and_then(|(counts, rest)| {
                let count = counts.iter().map(|&count| usize::from(count)).sum();
                let (symbols, rest) = rest.split_at_checked(count)?;
                (count <= 256 && class < 2 && id < 4).then_some((counts, symbols, rest))
            });
            let Some((counts, symbols, rest)) = split else {
                return corrupt("a Huffman table is not well described");
            };
            let (brought, table) = match class {
                0 => (&mut self.dc[id], &mut tables.dc[id]),
                _ => (&mut self.ac[id], &mut tables.ac[id]),
            };
            table.set(counts, symbols)?;
            *brought = true;
            body = rest;
        }
        Ok(())
    }

    /// Fails unless this table is defined and valid for differences of DC coefficients.
    pub(super) fn check_dc(&self, id: usize, tables: &Tables) -> Result<()> {
        if !self.dc[id] || tables.dc[id].is_empty() {
            return corrupt(&format!("it has no Huffman table {id} for DC coefficients"));
        }
        if tables.dc[id].largest() > 15 {
            return corrupt("a Huffman table for DC coefficients has numbers of more than 15 bits");
        }
        Ok(())
    }

    /// Fails unless this table is defined.
    pub(super) fn check_ac(&self, id: usize, tables: &Tables) -> Result<()> {
        if !self.ac[id] || tables.ac[id].is_empty() {
            return corrupt(&format!("it has no Huffman table {id} for AC coefficients"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_zigzag() {
        assert_eq!(ORDER[..12], [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25]);
        assert_eq!(ORDER[58..63], [61, 54, 47, 55, 62]);
        assert_eq!(ORDER[63..], [63; 65]);
        let mut all = ORDER[..64].to_vec();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..64));
    }
}
