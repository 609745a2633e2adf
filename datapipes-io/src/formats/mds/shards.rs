//! Reads whole MDS shards as a stream.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, Error, Result};
use serde::Deserialize;

use super::columns::{Columns, Said};
use super::index::Shard;
use super::table::Table;
use super::{MdsIndex, MdsSample, VERSION};
use crate::File;
use crate::formats::compression::{Codec, Expansion, content};
use crate::formats::{FileEntries, FileEntry, Format};

/// Reads whole shards of MDS, sample by sample, with their index or without. [`Mds`](super::Mds)
/// reads single samples.
///
/// - A compressed shard is recognized by its first bytes and decompressed as a whole.
/// - Values of bytes and pictures are slices of the shard, and keep it in memory; see
///   [`MdsValue`](super::MdsValue).
/// - The head is checked before the first sample is yielded: a shard that is cut, that has more
///   data after its last sample, or whose offsets decrease is refused as a whole. A sample that
///   cannot be decoded is an error in its place.
/// - Only known column encodings are accepted; `pkl` is refused, since unpickling runs code that is
///   in the data.
/// - With an index ([`of`](MdsShards::of)) each file must match it in size, xxh64 (if present;
///   other hashes are not checked) and number of samples.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::{File, formats::MdsShards, prelude::*};
///
/// let shard = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mds-raw/shard.00000.mds"));
/// let shards = Graph::from_vec(vec![File::new("shard.00000.mds", &shard[..])]);
/// let texts = shards.read_as(MdsShards::new()).try_map(|sample| sample.text("text").map(str::to_owned));
/// assert_eq!(texts.collect()?[1], "sample 1 ab");
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MdsShards {
    expansion: Expansion,
    index: Option<Arc<HashMap<Box<str>, Shard>>>,
}

impl MdsShards {
    /// Reads any shards, with the default limits of [`max_expansion`](MdsShards::max_expansion).
    pub fn new() -> Self {
        MdsShards::default()
    }

    /// Reads the shards of an index, found by the last part of their names: any other file is
    /// `NotFound`. `store.files(index.files())` yields the shards in the order of the index.
    pub fn of(index: &MdsIndex) -> Self {
        let shards = index
            .shards
            .iter()
            .map(|shard| (shard.file.clone(), shard.clone()));
        MdsShards {
            index: Some(Arc::new(shards.collect())),
            ..MdsShards::default()
        }
    }

    /// Refuses a compressed shard that decompresses to more than `bytes`, or to more than `ratio`
    /// times its own size once it is past 1 MiB. Defaults to 8 GiB and 1100 times, which is more
    /// than gzip can reach.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.expansion.limit(bytes, ratio);
        self
    }
}

/// The JSON in a shard.
#[derive(Deserialize)]
struct Config {
    version: u64,
    format: String,
    #[serde(flatten)]
    columns: Said,
}

fn columns(config: &[u8]) -> Result<Columns> {
    let config: Config = serde_json::from_slice(config)
        .map_err(|error| Error::corrupt("the JSON of the shard").with_source(error))?;
    if config.version != VERSION || config.format != "mds" {
        let what = format!("version {} of format {:?}", config.version, config.format);
        return Err(Error::unsupported(what));
    }
    Columns::new(config.columns)
}

impl Format for MdsShards {
    type Item = MdsSample;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<MdsSample>> {
        let shard = match &self.index {
            None => None,
            Some(index) => {
                // The folder of the file is not in the index, though a part of it may be.
                let name = &*file.name;
                let below = name
                    .match_indices(['/', '\\'])
                    .map(|(at, _)| &name[at + 1..]);
                let shard = std::iter::once(name)
                    .chain(below)
                    .find_map(|name| index.get(name));
                let shard = shard
                    .ok_or_else(|| Error::not_found(format!("no shard {name:?} in the index")))?;
                shard.check(&file.data)?;
                Some(shard)
            }
        };
        let whole = |data: &Bytes| Table::parse(data, data.len() as u64);
        let (data, table) = match (whole(&file.data), Codec::of_magic(&file.data)) {
            (Ok(table), _) => (file.data, table),
            (Err(error), None) => return Err(error),
            (Err(_), Some(_)) => {
                let data = content(file.data, self.expansion, cx)?;
                let table = whole(&data)?;
                (data, table)
            }
        };
        if let Some(shard) = shard {
            shard.table(&data)?;
        }
        let slice = |range: std::ops::Range<u64>| range.start as usize..range.end as usize;
        let columns = Arc::new(columns(&data[slice(table.config())])?);
        Ok(Box::new((0..table.samples()).map(move |number| {
            let range = table.sample(number);
            let begin = range.start;
            let sample = columns.decode(data.slice(slice(range)));
            FileEntry::from_result(
                sample.map_err(|error| error.within(place(number as u64, begin))),
            )
        })))
    }
    fn weigh(&self, sample: &MdsSample) -> Option<usize> {
        Some(sample.weight())
    }
}

/// Formats the number of a sample, and its position.
pub(super) fn place(number: u64, offset: u64) -> String {
    format!("sample {number} at byte {offset}")
}
