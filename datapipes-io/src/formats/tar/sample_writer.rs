//! Writes samples into tar archives.

use std::collections::HashSet;
use std::io::Write;

use datapipes::{Error, Result};

use super::writer::{TarWriter, len_of};
use crate::formats::{Sample, Samples};

/// A writer of samples to a tar archive in the form of WebDataset's shards: each field is a member
/// `KEY.FIELD`, in the order of the fields, one sample after the other.
///
/// The samples are read back unchanged by [`Samples`] with all fields and by WebDataset; a sample
/// that would be read differently is refused, and none of it is written. Holds the keys in memory.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::SampleWriter;
/// use datapipes_io::{File, Sample, prelude::*};
///
/// let sample = Sample::new("train/17").with("jpg", vec![0xff, 0xd8]).with("cls", "3");
/// let mut shard = SampleWriter::new(Vec::new());
/// shard.write(&sample)?;
/// let shard = File::new("0.tar", shard.finish()?);
/// assert_eq!(Graph::from_vec(vec![shard]).untar().samples().collect()?, [sample]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an archive without its end is cut"]
pub struct SampleWriter<W> {
    archive: TarWriter<W>,
    keys: HashSet<String>,
}

impl<W: Write> SampleWriter<W> {
    /// Returns a writer of a shard to `out`, which gets small and large pieces: best a
    /// [`BufWriter`](std::io::BufWriter).
    pub fn new(out: W) -> Self {
        SampleWriter::over(TarWriter::new(out))
    }

    /// Returns a writer to an archive with its own settings, or with existing members.
    pub fn over(archive: TarWriter<W>) -> Self {
        SampleWriter {
            archive,
            keys: HashSet::new(),
        }
    }

    /// Adds a sample.
    ///
    /// # Errors
    /// `Unsupported` for a sample that would be read back differently, of which nothing is written:
    ///
    /// - It has no fields, or its key was written before.
    /// - The last part of its key is empty or contains a dot, or readers leave out its name.
    /// - The name of a field is empty, contains a slash or upper-case letters, or is `__key__` or
    ///   `__url__`.
    /// - Its field `__bad__` is not empty.
    ///
    /// An error of the output is final.
    pub fn write(&mut self, sample: &Sample) -> Result<()> {
        check(sample)?;
        if self.keys.contains(sample.key()) {
            return Err(refused(sample, "its key was there before"));
        }
        // A name that the archive refuses is found before the first field is written.
        encoded_len(sample)?;
        for (field, data) in sample.fields() {
            self.archive.append(&name(sample, field), data)?;
        }
        self.keys.insert(sample.key().to_owned());
        Ok(())
    }

    /// Returns the number of samples written.
    pub fn count(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Returns the number of bytes written.
    pub fn len(&self) -> u64 {
        self.archive.len()
    }

    /// Returns true if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.archive.is_empty()
    }

    /// Writes the end, and returns the output, flushed.
    ///
    /// # Errors
    /// The errors of the output, including earlier ones.
    pub fn finish(self) -> Result<W> {
        self.archive.finish()
    }
}

fn name(sample: &Sample, field: &str) -> String {
    format!("{}.{field}", sample.key())
}

/// Returns the number of bytes that a sample takes in an archive.
pub(super) fn encoded_len(sample: &Sample) -> Result<u64> {
    sample
        .fields()
        .map(|(field, data)| len_of(&name(sample, field), data.len() as u64))
        .sum()
}

/// Checks that a sample is read back unchanged.
pub(super) fn check(sample: &Sample) -> Result<()> {
    if sample.fields().len() == 0 {
        return Err(refused(sample, "it has no fields"));
    }
    let readers = Samples::new();
    for (field, data) in sample.fields() {
        let name = name(sample, field);
        match readers.place(&name) {
            _ if field.is_empty() => return Err(refused(sample, "a field without a name")),
            Some((key, suffix)) if key == sample.key() && suffix == field => {}
            Some((key, suffix)) => {
                let what = format!("{name:?} is read as field {suffix:?} of sample {key:?}");
                return Err(refused(sample, &what));
            }
            None => return Err(refused(sample, &format!("{name:?} is left out by readers"))),
        }
        if Samples::is_reserved(field) {
            return Err(refused(
                sample,
                &format!("a field named {field:?}, which readers make"),
            ));
        }
        if field == "__bad__" && !data.is_empty() {
            return Err(refused(sample, "readers leave out what has a \"__bad__\""));
        }
    }
    Ok(())
}

fn refused(sample: &Sample, what: &str) -> Error {
    Error::unsupported(format!(
        "sample {:?} cannot be written: {what}",
        sample.key()
    ))
}
