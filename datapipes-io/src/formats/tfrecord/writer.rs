//! Writes TFRecord files.

use std::io::Write;

use datapipes::{Error, Result};

use super::{TfRecordIndex, masked_crc};

/// Writes TFRecord files, and their index on the way.
///
/// What is written is the same for the same records. To compress it, give it a writer that does,
/// such as flate2's `GzEncoder`; the index then means nothing.
///
/// # Examples
/// ```
/// use datapipes_io::formats::{TfRecordIndex, TfRecordWriter};
/// let mut writer = TfRecordWriter::new(Vec::new());
/// writer.write(b"one")?;
/// writer.write(b"three")?;
/// let (file, index) = writer.finish()?;
/// assert_eq!(index, TfRecordIndex::of(&file)?);
/// assert_eq!(index.to_string(), "0 19\n19 21\n");
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Debug)]
pub struct TfRecordWriter<W> {
    out: W,
    index: TfRecordIndex,
    offset: u64,
}

impl<W: Write> TfRecordWriter<W> {
    /// Writes to `out`, best a buffered one.
    pub fn new(out: W) -> Self {
        TfRecordWriter {
            out,
            index: TfRecordIndex::default(),
            offset: 0,
        }
    }

    /// Writes a record, and tells at which byte it begins.
    ///
    /// # Errors
    /// Those of the writer beneath. The file is then cut, and good for nothing more.
    pub fn write(&mut self, record: &[u8]) -> Result<u64> {
        let length = (record.len() as u64).to_le_bytes();
        let parts = [
            &length[..],
            &masked_crc(&length).to_le_bytes(),
            record,
            &masked_crc(record).to_le_bytes(),
        ];
        for part in parts {
            self.out.write_all(part).map_err(Error::io)?;
        }
        let begin = self.offset;
        let whole: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.index.push(begin, whole);
        self.offset = begin + whole;
        Ok(begin)
    }

    /// Flushes what was written, and gives the writer beneath and the index back.
    ///
    /// # Errors
    /// Those of the writer beneath.
    pub fn finish(mut self) -> Result<(W, TfRecordIndex)> {
        self.out.flush().map_err(Error::io)?;
        Ok((self.out, self.index))
    }
}
