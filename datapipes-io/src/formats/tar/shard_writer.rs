//! Writes samples into shards: files of limited size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use datapipes::{Error, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::sample_writer::{SampleWriter, check, encoded_len};
use super::writer::END;
use crate::formats::Sample;

/// A writer of samples to tar archives of limited size in a local folder, one after the other.
///
/// - The name of a shard is a pattern with the shard's number in it: `train-%06d.tar` or
///   `train-{:06}.tar`, from 0 on. With `.gz` or `.tgz` at its end, shards are compressed by gzip.
/// - A new shard begins before the sample with which the current one would have more than
///   [`max_count`](ShardWriter::max_count) samples or [`max_bytes`](ShardWriter::max_bytes) bytes.
///   A larger sample has a shard of its own.
/// - A shard is written under another name (`.NAME.PROCESS-N.tmp`), synced to the disk and renamed
///   when it is full or the writer finished, and replaces an existing file. Under its name there is
///   therefore a whole shard or none. A writer that is dropped removes the current shard, and
///   leaves the earlier shards.
/// - The same samples make the same bytes. See [`SampleWriter`] for the samples it accepts.
///
/// All operations block.
///
/// # Examples
/// ```
/// use datapipes_io::Sample;
/// use datapipes_io::formats::ShardWriter;
/// # let dir = tempfile::tempdir()?;
/// # let folder = dir.path();
/// let mut shards = ShardWriter::new(folder.join("train-%04d.tar"))?.max_count(100);
/// for n in 0..250 {
///     shards.write(&Sample::new(format!("{n:06}")).with("cls", n.to_string()))?;
/// }
/// let shards = shards.finish()?;
/// assert_eq!(shards.iter().map(|shard| shard.samples).collect::<Vec<_>>(), [100, 100, 50]);
/// assert_eq!(shards[2].path, folder.join("train-0002.tar"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the last shard is there when it is finished"]
pub struct ShardWriter {
    pattern: Pattern,
    max_count: u64,
    max_bytes: u64,
    open: Option<Open>,
    shards: Vec<Shard>,
}

/// A shard that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shard {
    /// Path of the file.
    pub path: PathBuf,
    /// Number of samples.
    pub samples: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl ShardWriter {
    /// Returns a writer of shards whose paths are made from `pattern`, with up to 100 000 samples
    /// and 3 GB each, as WebDataset's writer makes them. The folder must exist.
    ///
    /// # Errors
    /// `Config` for a pattern without a number or with several, with a number in the name of a
    /// folder, with another compression than gzip in its name, or that is not UTF-8.
    pub fn new(pattern: impl AsRef<Path>) -> Result<Self> {
        let pattern = Pattern::new(pattern.as_ref())?;
        Ok(ShardWriter {
            pattern,
            max_count: 100_000,
            max_bytes: 3_000_000_000,
            open: None,
            shards: Vec::new(),
        })
    }

    datapipes::setters! {
        /// Limits the number of samples in a shard; a shard has at least one sample.
        max_count(max_count: u64) => max_count = max_count;

        /// Limits the size of a shard in bytes, before gzip; a shard has at least one sample.
        max_bytes(max_bytes: u64) => max_bytes = max_bytes;
    }

    /// Adds a sample.
    ///
    /// # Errors
    /// The errors of [`SampleWriter::write`]; errors of the system, with the path. After an error
    /// of the system the current shard cannot be finished.
    pub fn write(&mut self, sample: &Sample) -> Result<()> {
        check(sample)?;
        let len = encoded_len(sample)?;
        if self.open.as_ref().is_some_and(|open| {
            let archive = &open.archive;
            archive.count() >= self.max_count || archive.len() + len + END as u64 > self.max_bytes
        }) {
            self.close()?;
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open::new(
                self.pattern.path(self.shards.len()),
                self.pattern.gzip,
            )?),
        };
        open.archive
            .write(sample)
            .map_err(|error| error.within(open.path.display()))
    }

    /// Returns the shards that are finished so far.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Finishes the current shard, and returns all shards, in their order; none if there was no
    /// sample.
    ///
    /// # Errors
    /// The errors of the system, with the path. The earlier shards stay.
    pub fn finish(mut self) -> Result<Vec<Shard>> {
        self.close()?;
        Ok(self.shards)
    }

    fn close(&mut self) -> Result<()> {
        if let Some(open) = self.open.take().filter(|open| open.archive.count() > 0) {
            self.shards.push(open.finish()?);
        }
        Ok(())
    }
}

/// The current shard.
#[derive(Debug)]
struct Open {
    archive: SampleWriter<Out>,
    path: PathBuf,
    temporary: Temporary,
}

impl Open {
    fn new(path: PathBuf, gzip: bool) -> Result<Self> {
        let (file, temporary) =
            Temporary::beside(&path).map_err(|error| Error::io(error).within(path.display()))?;
        let file = BufWriter::with_capacity(1 << 18, file);
        let out = if gzip {
            Out::Gzip(GzEncoder::new(file, Compression::default()).into())
        } else {
            Out::Plain(file)
        };
        Ok(Open {
            archive: SampleWriter::new(out),
            path,
            temporary,
        })
    }

    fn finish(self) -> Result<Shard> {
        let Open {
            archive,
            path,
            temporary,
        } = self;
        let samples = archive.count();
        let write = || {
            let file = match archive.finish()? {
                Out::Plain(file) => file,
                Out::Gzip(packed) => packed.finish()?,
            };
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            temporary.rename(&path)?;
            Ok(bytes)
        };
        let bytes = write().map_err(|error: Error| error.within(path.display()))?;
        Ok(Shard {
            path,
            samples,
            bytes,
        })
    }
}

/// A file that is removed on drop, unless it was renamed.
#[derive(Debug)]
struct Temporary(Option<PathBuf>);

impl Temporary {
    /// Creates a new file beside `path`, with a unique name. It has the first 40 characters of that of
    /// `path`, so that it is not too long for the file system.
    fn beside(path: &Path) -> io::Result<(File, Temporary)> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().take(40).collect();
        let mut n = 0;
        loop {
            let other = path.with_file_name(format!(".{name}.{}-{n}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&other) {
                Ok(file) => return Ok((file, Temporary(Some(other)))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n < 1000 => n += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn rename(mut self, path: &Path) -> io::Result<()> {
        if let Some(own) = &self.0 {
            fs::rename(own, path)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

#[derive(Debug)]
enum Out {
    Plain(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
}

impl Write for Out {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Out::Plain(out) => out.write(data),
            Out::Gzip(out) => out.write(data),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Plain(out) => out.flush(),
            // The encoder writes its buffered bytes at its end; flushing them now would cost bytes.
            Out::Gzip(_) => Ok(()),
        }
    }
}

/// Pattern of the names of shards.
#[derive(Debug)]
struct Pattern {
    folder: PathBuf,
    before: String,
    width: usize,
    after: String,
    gzip: bool,
}

impl Pattern {
    fn new(path: &Path) -> Result<Self> {
        let wrong = |what: &str| Error::config(format!("{}: {what}", path.display()));
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| wrong("not the name of a file in UTF-8"))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut found = numbers(name);
        let (Some((from, to, width)), None) = (found.next(), found.next()) else {
            return Err(wrong(
                "a pattern has one number in the name of the file, such as %06d or {:06}",
            ));
        };
        drop(found);
        if numbers(&folder.to_string_lossy()).next().is_some() {
            return Err(wrong("a number in the name of a folder"));
        }
        let after = &name[to..];
        if let Some(other) = [".zst", ".xz", ".bz2", ".lz4"]
            .iter()
            .find(|ending| after.ends_with(**ending))
        {
            return Err(wrong(&format!("{other} is not written, but .gz")));
        }
        Ok(Pattern {
            folder: folder.to_owned(),
            before: name[..from].to_owned(),
            width,
            after: after.to_owned(),
            gzip: after.ends_with(".gz") || after.ends_with(".tgz"),
        })
    }

    fn path(&self, number: usize) -> PathBuf {
        let Pattern {
            folder,
            before,
            width,
            after,
            ..
        } = self;
        folder.join(format!("{before}{number:0width$}{after}"))
    }
}

/// Returns the numbers in a pattern, `%06d` or `{:06}`: start, end, and minimum number of digits.
fn numbers(name: &str) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    name.char_indices().filter_map(|(from, c)| {
        let rest = &name[from..];
        let (digits, to) = match c {
            '%' => rest[1..]
                .split_once('d')
                .map(|(digits, _)| (digits, digits.len() + 2))?,
            '{' => rest[1..].split_once('}').map(|(inner, _)| {
                (
                    inner
                        .strip_prefix(':')
                        .unwrap_or(if inner.is_empty() { "" } else { "x" }),
                    inner.len() + 2,
                )
            })?,
            _ => return None,
        };
        let is_plain = digits.len() <= 3 && digits.bytes().all(|digit| digit.is_ascii_digit());
        let width = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        (is_plain && width <= 64).then_some((from, from + to, width))
    })
}
