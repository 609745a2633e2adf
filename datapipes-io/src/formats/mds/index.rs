//! The index of an MDS data set: its shards, and their content.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::VERSION;
use super::columns::{Columns, Said};
use super::hash::xxh64;
use super::packing::Packing;
use super::table::Table;

/// The index of an MDS data set, `index.json`: its shards, with the number and the columns of their
/// samples.
///
/// ```
/// use datapipes_io::formats::MdsIndex;
/// let index = MdsIndex::parse(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mds-zstd/index.json")))?;
/// assert_eq!((index.len(), index.files().next()), (40, Some("shard.00000.mds.zstd")));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MdsIndex {
    pub(super) shards: Vec<Shard>,
    /// Number of the first sample of each shard, and the total number of samples.
    pub(super) starts: Vec<u64>,
}

/// A shard in the index.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    /// Name of the file that is read.
    pub(super) file: Box<str>,
    /// Size of that file in bytes.
    pub(super) bytes: u64,
    /// xxHash64 of the file, if there is one.
    hash: Option<u64>,
    /// Compression, and decompressed size in bytes.
    pub(super) packed: Option<(Packing, u64)>,
    pub(super) samples: u32,
    pub(super) columns: Arc<Columns>,
}

#[derive(Deserialize)]
struct SaidIndex {
    version: u64,
    #[serde(default)]
    shards: Vec<SaidShard>,
}

#[derive(Deserialize)]
struct SaidShard {
    version: u64,
    format: String,
    compression: Option<String>,
    raw_data: Option<SaidFile>,
    zip_data: Option<SaidFile>,
    samples: u64,
    #[serde(flatten)]
    columns: Said,
}

#[derive(Deserialize)]
struct SaidFile {
    basename: String,
    bytes: u64,
    #[serde(default)]
    hashes: HashMap<String, String>,
}

impl MdsIndex {
    /// Parses the content of `index.json`.
    ///
    /// # Errors
    /// `Corrupt` for other JSON, for a file name that is not plain (it must not leave the folder),
    /// and for impossible numbers. `Unsupported` for another version or format, a compression other
    /// than `zstd`, `gz` and `bz2`, and an encoding of a column that is unknown, or is `pkl`.
    /// Errors name shard and column.
    pub fn parse(json: &[u8]) -> Result<MdsIndex> {
        let said: SaidIndex = serde_json::from_slice(json)
            .map_err(|error| Error::corrupt("the index cannot be read").with_source(error))?;
        if said.version != VERSION {
            let what = format!("version {} of the index, not {VERSION}", said.version);
            return Err(Error::unsupported(what));
        }
        let mut index = MdsIndex {
            shards: Vec::with_capacity(said.shards.len()),
            starts: vec![0],
        };
        let mut total = 0u64;
        // Usually all shards have the same columns, and share them.
        let mut last: Option<(Said, Arc<Columns>)> = None;
        for (number, shard) in said.shards.into_iter().enumerate() {
            let shard = Shard::new(shard, &mut last)
                .map_err(|error| error.within(format!("shard {number}")))?;
            total += u64::from(shard.samples);
            index.starts.push(total);
            index.shards.push(shard);
        }
        Ok(index)
    }

    /// Returns the number of samples.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns true if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the files of the shards, in order; of compressed shards, the compressed files. The
    /// names are plain, below the folder of the index.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.shards.iter().map(|shard| &*shard.file)
    }

    /// Returns the names of the columns of the first shard. All shards usually have the same.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.shards
            .first()
            .into_iter()
            .flat_map(|shard| shard.columns.names())
    }

    /// Returns the shard of a sample, and the number of the sample in it.
    pub(super) fn place(&self, sample: u64) -> Option<(usize, usize)> {
        if sample >= self.len() {
            return None;
        }
        let shard = self.starts.partition_point(|start| *start <= sample) - 1;
        Some((shard, (sample - self.starts[shard]) as usize))
    }
}

impl Shard {
    fn new(said: SaidShard, last: &mut Option<(Said, Arc<Columns>)>) -> Result<Shard> {
        let corrupt = |what: String| Err(Error::corrupt(what));
        if said.format != "mds" || said.version != VERSION {
            let what = format!("version {} of format {:?}", said.version, said.format);
            return Err(Error::unsupported(what));
        }
        let Some(raw) = said.raw_data else {
            return corrupt("it has no raw_data".to_owned());
        };
        let samples = u32::try_from(said.samples).unwrap_or(u32::MAX);
        // Offsets have 32 bits.
        if raw.bytes > u64::from(u32::MAX)
            || said.samples > samples.into()
            || Table::size(samples) > raw.bytes
        {
            return corrupt(format!("{} samples in {} bytes", said.samples, raw.bytes));
        }
        let (file, packed) = match (said.zip_data, said.compression) {
            (Some(zip), Some(packing)) => (zip, Some((Packing::parse(&packing)?, raw.bytes))),
            (None, None) => (raw, None),
            (Some(_), None) => return corrupt("zip_data without a compression".to_owned()),
            (None, Some(packing)) => {
                return corrupt(format!("compression {packing:?} without zip_data"));
            }
        };
        if !is_plain(&file.basename) {
            return corrupt(format!("{:?} is not a plain file name", file.basename));
        }
        let hash = match file
            .hashes
            .get("xxh64")
            .map(|hash| u64::from_str_radix(hash, 16))
        {
            None => None,
            Some(Ok(hash)) => Some(hash),
            Some(Err(_)) => return corrupt("its xxh64 is no number of 64 bits".to_owned()),
        };
        let columns = match last {
            Some((said_last, columns)) if *said_last == said.columns => columns.clone(),
            _ => {
                let columns = Arc::new(Columns::new(said.columns.clone())?);
                *last = Some((said.columns, columns.clone()));
                columns
            }
        };
        Ok(Shard {
            file: file.basename.into(),
            bytes: file.bytes,
            hash,
            packed,
            samples,
            columns,
        })
    }

    /// Checks that a file matches the index.
    pub(super) fn check(&self, file: &[u8]) -> Result<()> {
        let (got, want) = (file.len() as u64, self.bytes);
        if got != want {
            let kind = if got < want {
                ErrorKind::Truncated
            } else {
                ErrorKind::Corrupt
            };
            return Err(Error::new(
                kind,
                format!("the file has {got} bytes, the index says {want}"),
            ));
        }
        match self.hash.map(|want| (xxh64(file), want)) {
            Some((got, want)) if got != want => {
                let what =
                    format!("the xxh64 of the file is {got:016x}, the index says {want:016x}");
                Err(Error::corrupt(what))
            }
            _ => Ok(()),
        }
    }

    /// Parses the head of the shard from the whole shard or its beginning.
    pub(super) fn table(&self, data: &Bytes) -> Result<Table> {
        let stated = data
            .first_chunk::<4>()
            .map_or(0, |samples| u32::from_le_bytes(*samples));
        if stated != self.samples {
            let what = format!("it has {stated} samples, the index says {}", self.samples);
            return Err(Error::corrupt(what));
        }
        Table::parse(data, self.packed.map_or(self.bytes, |(_, bytes)| bytes))
    }
}

/// Returns true if a name stays below its folder, on any system. Merged indexes contain the folder
/// of each part.
fn is_plain(name: &str) -> bool {
    let plain = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.contains(|letter: char| matches!(letter, '\\' | ':') || letter.is_control())
    };
    name.split('/').all(plain)
}
