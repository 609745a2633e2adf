//! Writes `.npz` archives.

use std::fmt;
use std::io::{Seek, Write};

use datapipes::{Error, Result};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::Array;

/// Alignment in the archive of the values of stored arrays.
const ALIGN: u16 = 64;

/// A writer of arrays to an `.npz` archive, which NumPy can read.
///
/// The values of stored arrays are aligned in the archive, so that they are read without a copy.
/// The same arrays make the same bytes. An archive past 4 GiB is a zip64 archive.
///
/// # Examples
/// ```
/// use datapipes::Tensor;
/// use datapipes_io::formats::{Array, NpzWriter};
///
/// let mut npz = NpzWriter::new(std::io::Cursor::new(Vec::new())).deflated();
/// npz.add("zeros", &Array::from_tensor(&Tensor::from_vec(vec![0u8; 10_000], [100, 100])?)?)?;
/// assert!(npz.finish()?.into_inner().len() < 1000);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[must_use]
pub struct NpzWriter<W: Write + Seek> {
    zip: ZipWriter<W>,
    method: CompressionMethod,
}

impl<W: Write + Seek> NpzWriter<W> {
    /// Begins an archive whose arrays are stored uncompressed, as `numpy.savez` does.
    pub fn new(to: W) -> Self {
        NpzWriter {
            zip: ZipWriter::new(to),
            method: CompressionMethod::Stored,
        }
    }

    /// Compresses the arrays that are added from here on, as `numpy.savez_compressed` does.
    pub fn deflated(mut self) -> Self {
        self.method = CompressionMethod::Deflated;
        self
    }

    /// Adds an array under a name, to which `.npy` is added.
    ///
    /// # Errors
    /// `Unsupported` for a duplicate name; the errors of the writer.
    pub fn add(&mut self, name: &str, array: &Array) -> Result<()> {
        // Near the limit of 4 GiB the compressed array may be larger than the array.
        let is_large = array.data().len() as u64 > 0xf000_0000;
        let mut options = SimpleFileOptions::default()
            .compression_method(self.method)
            .large_file(is_large);
        if self.method == CompressionMethod::Stored {
            options = options.with_alignment(ALIGN);
        }
        self.zip
            .start_file(format!("{name}.npy"), options)
            .map_err(|error| failed(error).within(format!("array {name:?}")))?;
        array.write_npy(&mut self.zip)
    }

    /// Writes the directory, and returns the output.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn finish(self) -> Result<W> {
        self.zip.finish().map_err(failed)
    }
}

impl<W: Write + Seek> fmt::Debug for NpzWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NpzWriter")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

fn failed(error: zip::result::ZipError) -> Error {
    match error {
        zip::result::ZipError::Io(error) => Error::io(error),
        error => Error::unsupported("").with_source(error),
    }
}
