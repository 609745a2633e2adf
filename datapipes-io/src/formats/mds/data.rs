//! An MDS data set in a store, by index.

use async_trait::async_trait;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::index::MapPipe;
use datapipes::{Error, Result};

use super::cache::{Cache, Loaded};
use super::index::Shard;
use super::shards::place;
use super::table::Table;
use super::{MdsIndex, MdsSample};
use crate::stores::{Get, Store, reads_store};

/// An MDS data set in a store, read by index in any order.
///
/// - For an uncompressed shard, the offsets of its samples are read once, and each sample by a
///   request for a range.
/// - A compressed shard is read and decompressed whole, which is efficient only if most of its
///   samples are needed soon: read such data in the order of its shards, make [`cache`](Mds::cache)
///   as large as the shards that a shuffle spreads over, or read whole shards by
///   [`MdsShards`](super::MdsShards).
/// - The most recently used data stay in the cache, as far as they fit. Values of bytes and
///   pictures are slices of their sample, or of their decompressed shard, which they keep in memory
///   even after eviction.
/// - Sizes, offsets and numbers of samples must match the index. Of the hashes in the index, xxh64
///   is checked, if a whole file is read: for compressed shards.
///
/// # Errors
/// For a sample: `Truncated` and `Corrupt` if a shard does not match its index; the errors of the
/// store. Errors name shard, sample and byte.
///
/// # Examples
/// ```
/// use datapipes::index::Indexed;
/// use datapipes_io::formats::Mds;
/// use datapipes_io::stores::local::Local;
/// # futures::executor::block_on(async {
/// let store = Local::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"));
/// let data = Indexed::new(Mds::open(store, "mds-raw").await?);
/// let ids = data.shuffle().fetch().try_map(|sample| sample.int("id"));
/// let mut ids = ids.collect()?;
/// ids.sort_unstable();
/// assert_eq!(ids, (0..40).collect::<Vec<_>>());
/// # datapipes::Ok(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use]
pub struct Mds {
    store: Arc<dyn Store>,
    prefix: String,
    index: MdsIndex,
    pub(super) cache: Cache,
    most: u64,
}

impl Mds {
    /// Reads the index of the data set below `prefix` (which may be empty).
    ///
    /// # Errors
    /// The errors of the store and of [`MdsIndex::parse`].
    pub async fn open(store: impl Store, prefix: &str) -> Result<Mds> {
        let key = below(prefix, "index.json");
        let json = store.read(&key).await?;
        let index = MdsIndex::parse(&json).map_err(|error| error.within(store.url_of(&key)))?;
        Ok(Mds::new(store, prefix, index))
    }

    /// Returns the data set below `prefix`, with a known index.
    pub fn new(store: impl Store, prefix: &str, index: MdsIndex) -> Mds {
        Mds {
            store: Arc::new(store),
            prefix: prefix.to_owned(),
            index,
            cache: Cache::new(1 << 30),
            most: 1 << 30,
        }
    }

    datapipes::setters! {
        /// Sets the size of the cache in bytes; the last shard is cached in any case. Defaults to 1
        /// GiB.
        cache(bytes: usize) => cache = Cache::new(bytes);

        /// Refuses compressed shards that decompress to more than `bytes` (`Limit`). Defaults to 1 GiB.
        max_shard(bytes: u64) => most = bytes;
    }

    /// Returns the index.
    pub fn index(&self) -> &MdsIndex {
        &self.index
    }

    async fn load(&self, shard: &Shard, key: &str) -> Result<Loaded> {
        let here = |error: Error| error.within(self.store.url_of(key));
        let Some((packing, bytes)) = shard.packed else {
            let want = Table::size(shard.samples);
            let head = self
                .store
                .get(key, Get::range(0..want))
                .await?
                .bytes()
                .await?;
            if head.len() as u64 != want {
                let what = format!("its head has {} of {want} bytes", head.len());
                return Err(here(Error::truncated(what)));
            }
            let table = shard.table(&head).map_err(here)?;
            return Ok(Loaded { table, data: None });
        };
        if bytes > self.most {
            let what = format!(
                "it inflates to {bytes} bytes, at most {} are allowed",
                self.most
            );
            return Err(here(Error::limit(what)));
        }
        // Requests one byte more than expected, to check that it does not exist.
        let packed = self
            .store
            .get(key, Get::range(0..shard.bytes.saturating_add(1)))
            .await?
            .bytes()
            .await?;
        let stated = shard.clone();
        let inflate = move || {
            stated
                .check(&packed)
                .and_then(|()| packing.inflate(&packed, bytes))
        };
        let data = datapipes::blocking(inflate).await?.map_err(here)?;
        let table = shard.table(&data).map_err(here)?;
        Ok(Loaded {
            table,
            data: Some(data),
        })
    }
}

fn below(prefix: &str, name: &str) -> String {
    match prefix.trim_end_matches('/') {
        "" => name.to_owned(),
        prefix => format!("{prefix}/{name}"),
    }
}

#[async_trait]
impl MapPipe for Mds {
    type Out = MdsSample;

    fn len(&self) -> u64 {
        self.index.len()
    }
    async fn get(&self, index: u64) -> Result<MdsSample> {
        let Some((at, number)) = self.index.place(index) else {
            let folder = self.store.url_of(&self.prefix);
            let what = format!("{folder}: no sample {index} of {}", self.index.len());
            return Err(Error::not_found(what));
        };
        let shard = &self.index.shards[at];
        let key = below(&self.prefix, &shard.file);
        let loaded = self.cache.get(at, self.load(shard, &key)).await?;
        let range = loaded.table.sample(number);
        let (begin, want) = (range.start, range.end - range.start);
        let data = match loaded.data {
            Some(data) => data.slice(range.start as usize..range.end as usize),
            // Not every store supports empty ranges.
            None if want == 0 => Bytes::new(),
            None => {
                self.store
                    .get(&key, Get::range(range))
                    .await?
                    .bytes()
                    .await?
            }
        };
        let here = |error: Error| {
            error
                .within(place(number as u64, begin))
                .within(self.store.url_of(&key))
        };
        if data.len() as u64 != want {
            let what = format!("{} of {want} bytes", data.len());
            return Err(here(Error::truncated(what)));
        }
        shard.columns.decode(data).map_err(here)
    }
    reads_store!(store);
    fn name(&self) -> String {
        "mds".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        let (shard, number) = self.index.place(index)?;
        let key = below(&self.prefix, &self.index.shards[shard].file);
        Some(format!("{key}/{number}").into())
    }
    fn weigh(&self, sample: &MdsSample) -> Option<usize> {
        Some(sample.weight())
    }
}
