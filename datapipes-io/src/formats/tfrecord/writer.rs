//! Writes TFRecord files.

use std::io::Write;

use datapipes::{Error, Result};

use super::{TfRecordIndex, masked_crc};

/// A writer of TFRecord files that also makes their index.
///
/// The same records make the same bytes. To compress the file, pass a writer that compresses, such
/// as flate2's `GzEncoder`; the index is then useless.
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
    /// Returns a writer to `out`, which should be buffered.
    pub fn new(out: W) -> Self {
        TfRecordWriter {
            out,
            index: TfRecordIndex::default(),
            offset: 0,
        }
    }

    /// Writes a record, and returns the position at which it begins.
    ///
    /// # Errors
    /// The errors of the underlying writer. The file is then incomplete and must not be used.
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

    /// Flushes the written records, and returns the underlying writer and the index.
    ///
    /// # Errors
    /// The errors of the underlying writer.
    pub fn finish(mut self) -> Result<(W, TfRecordIndex)> {
        self.out.flush().map_err(Error::io)?;
        Ok((self.out, self.index))
    }
}
