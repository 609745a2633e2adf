//! Positions of the samples of a shard.

use std::ops::Range;

use bytes::Bytes;
use datapipes::{Error, Result};

/// The head of a shard: the number of samples, and the offset of each. It is validated once, as a
/// whole.
#[derive(Clone, Debug)]
pub(super) struct Table(Bytes);

impl Table {
    /// Returns the size in bytes of the head of a shard with this number of samples.
    pub(super) fn size(samples: u32) -> u64 {
        4 * (u64::from(samples) + 2)
    }

    /// Parses the first bytes of a shard, or the whole shard, of which the size is known.
    pub(super) fn parse(data: &Bytes, shard: u64) -> Result<Table> {
        let there = data.len() as u64;
        let cut = |want: u64| {
            Error::truncated(format!("the head of the shard has {there} of {want} bytes"))
        };
        let Some(samples) = data
            .first_chunk::<4>()
            .map(|samples| u32::from_le_bytes(*samples))
        else {
            return Err(cut(8));
        };
        let size = Table::size(samples);
        if size > there {
            return Err(cut(size));
        }
        let table = Table(data.slice(..size as usize));
        let mut last = size;
        for (number, offset) in table.offsets().enumerate() {
            if offset < last {
                let what = format!("sample {number} begins at byte {offset}, before byte {last}");
                return Err(Error::corrupt(what));
            }
            last = offset;
        }
        match last.cmp(&shard) {
            std::cmp::Ordering::Equal => Ok(table),
            std::cmp::Ordering::Greater => {
                let what = format!("{samples} samples end at byte {last}, the shard at {shard}");
                Err(Error::truncated(what))
            }
            std::cmp::Ordering::Less => Err(Error::corrupt(format!(
                "{samples} samples end at byte {last}, {} bytes follow",
                shard - last
            ))),
        }
    }

    fn words(&self) -> &[[u8; 4]] {
        self.0.as_chunks().0
    }

    /// Returns the begin of each sample, and the end of the last one.
    fn offsets(&self) -> impl Iterator<Item = u64> {
        self.words()[1..]
            .iter()
            .map(|word| u32::from_le_bytes(*word).into())
    }

    pub(super) fn samples(&self) -> usize {
        self.words().len() - 2
    }

    /// Returns the range of an existing sample.
    pub(super) fn sample(&self, number: usize) -> Range<u64> {
        let at = |place: usize| u64::from(u32::from_le_bytes(self.words()[place]));
        at(number + 1)..at(number + 2)
    }

    /// Returns the range between the head and the first sample.
    pub(super) fn config(&self) -> Range<u64> {
        self.0.len() as u64..u64::from(u32::from_le_bytes(self.words()[1]))
    }

    pub(super) fn weight(&self) -> usize {
        self.0.len()
    }
}
