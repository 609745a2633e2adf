//! The methods that every store has.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::index::{Indexed, MapPipe};
use datapipes::{Backoff, Context, Graph, Hints, Item, Items, Result, Revision, Source};

use super::local::{ListFiles, is_inside};
use super::names::Names;
use super::wrappers::{
    DiskCache, Evict, Expected, Hedge, HedgePolicy, InFlight, Limit, Locked, MemoryCache,
    PerSecond, Prefix, Rate, Retry, TimeLimits, Timeout, Verify,
};
use super::{ListStore, Lockfile, Store, reads_store};
use crate::{File, FileRef};

/// Methods of every store, in addition to those of [`Store`]: graphs that begin with it, and
/// [wrappers](super::wrappers) around it.
///
/// # Examples
/// ```
/// use datapipes::Backoff;
/// use datapipes_io::stores::wrappers::InFlight;
/// use datapipes_io::stores::{InMemory, Store, StoreExt};
/// # futures::executor::block_on(async {
/// let far = InMemory::from_iter([("train/1.txt", "one"), ("test/1.txt", "two")]);
/// let store = far.prefix("train").limit(InFlight::Adaptive { most: 256 }).retry(Backoff::default());
/// assert_eq!(store.url_of("1.txt"), "memory:///train/1.txt");
/// assert_eq!(store.read("1.txt").await?, "one");
/// # datapipes::Ok(()) }).unwrap();
/// ```
pub trait StoreExt: Store + Sized {
    /// Lists the objects whose keys match `pattern`, in the order in which the store lists them.
    ///
    /// The syntax of patterns is that of [`list_files`](crate::list_files()). The listing streams:
    /// pages are requested when they are needed, and only below the fixed beginning of the pattern.
    ///
    /// # Errors
    /// An invalid pattern is an error when the loader is built. `NotFound` if nothing matches, and
    /// the errors of the store.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::prelude::*;
    /// use datapipes_io::stores::InMemory;
    /// let store = InMemory::from_iter([("train/1.txt", "one"), ("train/2.txt", "two"), ("notes", "")]);
    /// let texts = store.list_files("train/*.txt").load_files().map(|file| file.data);
    /// assert_eq!(texts.collect()?, ["one", "two"]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn list_files(self, pattern: &str) -> Graph<FileRef> {
        match self.folder() {
            Some(folder) => Graph::source(ListFiles::new(folder, pattern)),
            None => Graph::source(ListStore::new(Arc::new(self), pattern)),
        }
    }

    /// Yields references to the objects with the given keys, in that order, without listing the
    /// store.
    ///
    /// # Errors
    /// A key that the store refuses, for example a path that leaves the folder, is an error when
    /// the object is loaded.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::prelude::*;
    /// use datapipes_io::stores::InMemory;
    /// let store = InMemory::from_iter([("1", "one"), ("2", "two")]);
    /// let texts = store.files(["2", "1"]).load_files().map(|file| file.data);
    /// assert_eq!(texts.collect()?, ["two", "one"]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn files<K: Into<String>>(self, keys: impl IntoIterator<Item = K>) -> Graph<FileRef> {
        let store: Arc<dyn Store> = Arc::new(self);
        let file = |key: K| match (store.folder(), key.into()) {
            (Some(folder), key) if is_inside(&key) => FileRef::below(folder, Path::new(&key)),
            // The store itself refuses a key that leaves the folder, when the object is read.
            (_, key) => FileRef::stored(store.clone(), key, None),
        };
        Graph::source(Files {
            files: keys.into_iter().map(file).collect(),
            revision: store.known_revision(),
        })
    }

    /// Returns the objects with the given keys as data that is read by index: it can be shuffled as
    /// a whole, sharded, split and mixed before any object is read. Holds the keys in memory.
    ///
    /// # Errors
    /// Errors of the store, in place of the sample.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::prelude::*;
    /// use datapipes_io::stores::InMemory;
    /// let store = InMemory::from_iter((0..100).map(|n| (format!("{n}.txt"), n.to_string())));
    /// let files = store.index((0..100).map(|n| format!("{n}.txt")));
    /// let (train, test) = (files.clone().subset(0..80).shuffle().fetch(), files.subset(80..100).fetch());
    /// assert_eq!((train.collect()?.len(), &*test.collect()?[0].name), (80, "80.txt"));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn index<K: Into<String>>(self, keys: impl IntoIterator<Item = K>) -> Indexed<File> {
        Indexed::new(Objects {
            store: Arc::new(self),
            keys: keys.into_iter().map(Into::into).collect(),
        })
    }

    /// Retries transient errors, and resumes bodies that were cut.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::Backoff;
    /// # use datapipes_io::stores::{InMemory, Store, StoreExt};
    /// # futures::executor::block_on(async {
    /// let store = InMemory::from_iter([("k", "v")]).retry(Backoff { tries: 3, ..Backoff::default() });
    /// assert_eq!(store.read("k").await?, "v");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn retry(self, backoff: Backoff) -> Retry<Self> {
        Retry::new(self, backoff)
    }

    /// Ends requests that make no progress: no answer, a stall, a trickle.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::{prelude::*, stores::{InMemory, wrappers::TimeLimits}};
    /// # use std::time::Duration;
    /// let limits = TimeLimits { first: Duration::from_secs(5), ..TimeLimits::default() };
    /// let texts = InMemory::from_iter([("k", "v")]).timeout(limits).files(["k"]).load_files();
    /// assert_eq!(texts.collect()?[0].data, "v"); // an error if there is no answer in 5 s
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn timeout(self, limits: TimeLimits) -> Timeout<Self> {
        Timeout::new(self, limits)
    }

    /// Limits the number of requests in flight, to a fixed or an adaptive number.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::stores::{InMemory, Store, StoreExt, wrappers::InFlight};
    /// # futures::executor::block_on(async {
    /// let store = InMemory::from_iter([("k", "v")]).limit(InFlight::Fixed(2));
    /// assert_eq!(store.read("k").await?, "v");
    /// assert_eq!((store.in_flight(), store.most()), (0, 2));
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn limit(self, most: InFlight) -> Limit<Self> {
        Limit::new(self, most)
    }

    /// Makes a second request for the slowest reads.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::{prelude::*, stores::{InMemory, wrappers::HedgePolicy}};
    /// let store = InMemory::from_iter([("k", "v")]).hedge(HedgePolicy { extra: 0.02, ..HedgePolicy::default() });
    /// let texts = store.files(["k"]).load_files(); // at most one second request in fifty
    /// assert_eq!(texts.collect()?[0].data, "v");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn hedge(self, policy: HedgePolicy) -> Hedge<Self> {
        Hedge::new(self, policy)
    }

    /// Limits the requests and bytes per second.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::{prelude::*, stores::{InMemory, wrappers::PerSecond}};
    /// let most = PerSecond { requests: 100.0, ..PerSecond::default() };
    /// let texts = InMemory::from_iter([("k", "v")]).rate(most).files(["k"]).load_files();
    /// assert_eq!(texts.collect()?[0].data, "v");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn rate(self, most: PerSecond) -> Rate<Self> {
        Rate::new(self, most)
    }

    /// Returns the part of the store whose keys begin with `prefix` and a `/`, with the rest of
    /// each key as the key.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::stores::{InMemory, Store, StoreExt};
    /// # futures::executor::block_on(async {
    /// let store = InMemory::from_iter([("train/1", "one"), ("test/1", "two")]).prefix("train");
    /// assert_eq!(store.read("1").await?, "one");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn prefix(self, prefix: &str) -> Prefix<Self> {
        Prefix::new(self, prefix)
    }

    /// Returns only objects with the size and the hash that a manifest contains for their key.
    ///
    /// # Examples
    /// ```
    /// # use std::collections::HashMap;
    /// # use datapipes::ErrorKind;
    /// # use datapipes_io::stores::{InMemory, Store, StoreExt, wrappers::Expected};
    /// # futures::executor::block_on(async {
    /// let three = Expected { size: Some(3), ..Expected::default() };
    /// let manifest = HashMap::from(["a", "b"].map(|key| (key.to_owned(), three.clone())));
    /// let store = InMemory::from_iter([("a", "one"), ("b", "four")]).verify(manifest);
    /// assert_eq!(store.read("a").await?, "one");
    /// assert_eq!(store.read("b").await.unwrap_err().kind(), ErrorKind::Corrupt);
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn verify(self, manifest: HashMap<String, Expected>) -> Verify<Self> {
        Verify::new(self, manifest)
    }

    /// Returns the store as it was when it was locked: files that have changed, are missing or are
    /// new since are refused by name. See [`Lockfile`].
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::{prelude::*, stores::{Lockfile, InMemory}};
    ///
    /// let store = InMemory::from_iter([("a.txt", "one"), ("b.txt", "two")]);
    /// let lock = Lockfile::of(store.clone(), "*.txt", false)?;
    /// let texts = || store.clone().locked(&lock).list_files("*.txt").load_files();
    /// assert_eq!(texts().collect()?.len(), 2);
    ///
    /// store.put("c.txt", "three");
    /// let error = texts().collect().unwrap_err().to_string();
    /// assert!(error.ends_with("c.txt (file 2 now) is new, first used by step 2"), "{error}");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn locked(self, lock: &Lockfile) -> Locked<Self> {
        Locked::new(self, lock)
    }

    /// Caches whole objects in memory, up to `limit` bytes.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::stores::{InMemory, Store, StoreExt, wrappers::Evict};
    /// # futures::executor::block_on(async {
    /// let far = InMemory::from_iter([("k", "v")]);
    /// let store = far.clone().cache_in_memory(1 << 30, Evict::Never);
    /// store.read("k").await?;
    /// far.remove("k");
    /// assert_eq!(store.read("k").await?, "v");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn cache_in_memory(self, limit: u64, evict: Evict) -> MemoryCache<Self> {
        MemoryCache::new(self, limit, evict)
    }

    /// Caches objects in a folder, up to `limit` bytes, for this run and later ones.
    ///
    /// # Errors
    /// `Denied` if the folder is not private to this user; `Io` and others if it cannot be created
    /// or read.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_io::stores::{InMemory, Store, StoreExt};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// let folder = dir.path().join("cache");
    /// let far = InMemory::from_iter([("k", "v")]);
    /// far.clone().cache_on_disk(&folder, 10 << 30)?.read("k").await?;
    /// far.remove("k");
    /// assert_eq!(far.cache_on_disk(&folder, 10 << 30)?.read("k").await?, "v");
    /// # datapipes::Ok(()) }).unwrap();
    /// ```
    fn cache_on_disk(self, folder: impl AsRef<Path>, limit: u64) -> Result<DiskCache<Self>> {
        DiskCache::new(self, folder, limit)
    }
}

impl<S: Store> StoreExt for S {}

/// References to objects of a store, in this order.
struct Files {
    files: Arc<[FileRef]>,
    revision: Revision,
}

impl Source for Files {
    type Out = FileRef;

    fn open(&self, cx: &Context) -> Items<FileRef> {
        let (files, cx) = (self.files.clone(), cx.clone());
        let len = files.len() as u64;
        let places: Box<dyn Iterator<Item = u64> + Send> = match cx.wanted() {
            Some(wanted) => Box::new(wanted.positions(len)),
            None => Box::new(0..len),
        };
        Items::from_results(places.map(move |place| {
            let file = files[place as usize].clone();
            let origin = cx.origin(place).named(&*file.name());
            Ok(Item::new(file, origin))
        }))
    }
    fn len_hint(&self) -> Option<u64> {
        Some(self.files.len() as u64)
    }
    /// The names are part of the settings, so that a checkpoint of a graph with other names is
    /// refused.
    fn hints(&self) -> Hints {
        let mut names = Names::default();
        self.files
            .iter()
            .for_each(|file| names.add(&file.name(), None));
        Hints::any_order()
            .settings(&names)
            .revision(self.revision.clone())
            .by_position(true)
            .never_blocks(true)
    }
}

/// Objects of a store by index.
struct Objects {
    store: Arc<dyn Store>,
    keys: Vec<String>,
}

#[async_trait]
impl MapPipe for Objects {
    type Out = File;

    fn len(&self) -> u64 {
        self.keys.len() as u64
    }
    async fn get(&self, index: u64) -> Result<File> {
        let key = &*self.keys[index as usize];
        Ok(File::new(key, self.store.read(key).await?))
    }
    fn name(&self) -> String {
        "load_files".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(self.keys.get(index as usize)?.as_str().into())
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
    reads_store!(store);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileGraphExt;
    use crate::stores::local::Local;
    use datapipes::{Error, ErrorKind};

    #[test]
    fn files_of_several_stores_stand_in_one_graph_and_errors_name_them() {
        let store = crate::stores::InMemory::from_iter([("a.tar", "no tar")]);
        let graph = Graph::concat([store.clone().files(["a.tar"]), store.files(["a.tar"])])
            .load_files()
            .untar();
        let error = graph.collect().unwrap_err().to_string();
        assert!(error.starts_with("untar: a.tar: truncated"), "{error}");
    }

    #[test]
    fn files_by_index_have_their_names_in_errors_of_later_steps() {
        let store = crate::stores::InMemory::from_iter([("a.txt", "1"), ("b.txt", "x")]);
        let numbers = store.index(["a.txt", "b.txt"]).fetch().try_map(|file| {
            let text = std::str::from_utf8(&file.data).map_err(Error::user)?;
            datapipes::Ok(text.parse::<u32>().map_err(Error::user)?)
        });
        let error = numbers.collect().unwrap_err().to_string();
        assert_eq!(error, "try_map: b.txt: invalid digit found in string");
    }

    #[test]
    fn keys_that_leave_a_folder_are_refused_as_by_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out.txt"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&outside, "secret").unwrap();
        std::fs::write(inside.join("a.txt"), "a").unwrap();
        let read = |key: &str| Local::new(&inside).files([key]).load_files().collect();
        assert_eq!(read("a.txt").unwrap()[0].data, "a");
        for key in ["../out.txt", outside.to_str().unwrap(), "", "./a.txt"] {
            assert_eq!(
                read(key).unwrap_err().kind(),
                ErrorKind::Unsupported,
                "{key}"
            );
        }
    }
}
