//! Writes RecordIO files.

use std::io::Write;

use datapipes::{Error, Result};

use super::{LENGTH_BITS, MAGIC, RecordIoIndex};

/// A writer of RecordIO files that also makes their index; records that contain the magic are cut
/// into parts, as dmlc-core does.
///
/// # Examples
/// ```
/// use datapipes_io::formats::RecordIoWriter;
/// let mut writer = RecordIoWriter::new(Vec::new());
/// writer.write(b"one")?;
/// writer.write(b"two")?;
/// let (file, index) = writer.finish()?;
/// assert_eq!((file.len(), &*index.to_string()), (24, "0\t0\n1\t12\n"));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Debug)]
pub struct RecordIoWriter<W> {
    out: W,
    index: RecordIoIndex,
    offset: u64,
}

impl<W: Write> RecordIoWriter<W> {
    /// Returns a writer to `out`, which should be buffered.
    pub fn new(out: W) -> Self {
        RecordIoWriter {
            out,
            index: RecordIoIndex::default(),
            offset: 0,
        }
    }

    /// Writes a record, and returns the position at which it begins. Its key in the index is its
    /// number.
    ///
    /// # Errors
    /// `Limit` for a record of 512 MiB or more, before any of it is written. The errors of the
    /// underlying writer; the file is then incomplete and must not be used.
    pub fn write(&mut self, record: &[u8]) -> Result<u64> {
        if record.len() >= 1 << LENGTH_BITS {
            return Err(Error::limit(format!(
                "a record of {} bytes, where 2^{LENGTH_BITS} is too many",
                record.len()
            )));
        }
        let begin = self.offset;
        let mut from = 0;
        for (word, at) in record.as_chunks::<4>().0.iter().zip((0..).step_by(4)) {
            if *word == MAGIC.to_le_bytes() {
                self.part(if from == 0 { 1 } else { 2 }, &record[from..at])?;
                from = at + 4;
            }
        }
        self.part(if from == 0 { 0 } else { 3 }, &record[from..])?;
        self.index.push(self.index.len().to_string(), begin);
        Ok(begin)
    }

    fn part(&mut self, flag: u32, data: &[u8]) -> Result<()> {
        let word = flag << LENGTH_BITS | data.len() as u32;
        let padding = &[0; 3][..data.len().next_multiple_of(4) - data.len()];
        for part in [&MAGIC.to_le_bytes()[..], &word.to_le_bytes(), data, padding] {
            self.out.write_all(part).map_err(Error::io)?;
            self.offset += part.len() as u64;
        }
        Ok(())
    }

    /// Flushes the written records, and returns the underlying writer and the index.
    ///
    /// # Errors
    /// The errors of the underlying writer.
    pub fn finish(mut self) -> Result<(W, RecordIoIndex)> {
        self.out.flush().map_err(Error::io)?;
        Ok((self.out, self.index))
    }
}
