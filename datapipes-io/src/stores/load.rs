//! Reads whole files, from this machine or from a store.

use std::sync::Arc;

use datapipes::{Arity, Chunk, Context, Error, Hints, Item, Items, Pipe, Result, Work};
use futures::{StreamExt, stream};

use super::local::read::{Content, FileReader};
use super::local::{Buffers, MOST_IDLE, failed};
use super::pieces::pooled;
use crate::file::readable;
use crate::stores::{Get, Store};
use crate::{File, FileRef};

/// Reads files whole; see [`FileGraphExt::load_files`](crate::FileGraphExt::load_files).
///
/// - A file is read in one pass into memory of its own. While reads end without waiting, as in the
///   page cache, the workers read, each a few files at a time. Once reads wait for a disk or a
///   network, threads of their own read, and the executor chooses how many files are read at once.
/// - Files of at least 1 KiB, and objects of stores of 16 KiB to 64 MiB whose length is announced, are
///   read into buffers that return to a pool when the last slice of the file is dropped, so that a
///   stream of files causes no page faults. The
///   pool holds at most [`idle_bytes`](LoadFiles::idle_bytes) that are idle, and lives as long as
///   the graph. Buffers that are idle for some seconds while files are read go back to the system.
/// - On Linux, files of one folder that come one after another are opened in that folder, which is
///   opened for a few of them at a time.
/// - A file whose length or modification time changes during the read is `Corrupt`: its content may
///   be a mix. A file that is replaced by a rename is read as it was when it was opened.
///   On Linux, the times of a file of up to 16 KiB tell that after the read alone, if nobody has changed
///   it for 5 seconds, or for 10 minutes where it is not on a device of this machine, such as on a network
///   file system, whose server's clock may be late.
/// - An object of a [store](FileRef::store) is read by that store, with adaptive concurrency; an
///   object whose size differs from the listed size is `Changed`. The next points are about local
///   files.
/// - Symbolic links are followed. A path that is not a regular file is refused without waiting for
///   it. A file of length 0 is read nevertheless, since files of `/proc` report that length.
/// - Errors of a failing device and stale network handles are retried once; if too many files are
///   open, the read waits up to 10 seconds.
#[derive(Clone, Debug)]
#[must_use]
pub struct LoadFiles {
    buffers: Arc<Buffers>,
}

impl Default for LoadFiles {
    fn default() -> Self {
        LoadFiles {
            buffers: Buffers::new(MOST_IDLE),
        }
    }
}

impl LoadFiles {
    /// Returns the pipe with up to 256 MiB of idle buffers.
    pub fn new() -> Self {
        LoadFiles::default()
    }

    /// Sets the maximum number of bytes in idle buffers; 0 for none.
    pub fn idle_bytes(self, bytes: usize) -> Self {
        LoadFiles {
            buffers: Buffers::new(bytes),
        }
    }
}

impl Pipe<FileRef> for LoadFiles {
    type Out = File;

    fn apply(&self, input: Items<FileRef>, cx: &Context) -> Items<File> {
        loaded(
            input,
            Loading {
                buffers: self.buffers.clone(),
                most: u64::MAX,
                cx: cx.clone(),
            },
            |loaded| {
                let Loaded::Whole(file) = loaded else {
                    unreachable!("no file is too large")
                };
                file
            },
        )
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
    fn expected_weight(&self, file: &FileRef) -> Option<usize> {
        file.size.map(|size| size as usize)
    }
}

/// A file that was loaded, or is too large to be loaded.
#[derive(Clone, Debug)]
pub(crate) enum Loaded {
    Whole(File),
    Large(FileRef),
}

/// A pipe that loads files up to a size, and passes on the size of larger files, if it can be
/// known.
#[derive(Clone, Debug)]
pub(crate) struct OpenFiles {
    load: LoadFiles,
    most: u64,
}

impl OpenFiles {
    pub(crate) fn up_to(most: u64) -> Self {
        OpenFiles {
            load: LoadFiles::new(),
            most,
        }
    }
}

impl Pipe<FileRef> for OpenFiles {
    type Out = Loaded;

    fn apply(&self, input: Items<FileRef>, cx: &Context) -> Items<Loaded> {
        let (buffers, cx) = (self.load.buffers.clone(), cx.clone());
        loaded(
            input,
            Loading {
                buffers,
                most: self.most,
                cx,
            },
            |loaded| loaded,
        )
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
            .settings(format_args!("whole up to {} bytes", self.most))
    }
    fn weigh(&self, loaded: &Loaded) -> Option<usize> {
        Some(match loaded {
            Loaded::Whole(file) => file.weight(),
            Loaded::Large(_) => size_of::<Loaded>(),
        })
    }
    fn expected_weight(&self, file: &FileRef) -> Option<usize> {
        let loaded = |size| if size > self.most { 0 } else { size };
        file.size.map(|size| loaded(size) as usize)
    }
}

/// Settings for loading files.
#[derive(Clone)]
struct Loading {
    buffers: Arc<Buffers>,
    /// Files above this size are not loaded.
    most: u64,
    cx: Context,
}

fn loaded<T: Send + 'static>(
    mut input: Items<FileRef>,
    loading: Loading,
    made: fn(Loaded) -> T,
) -> Items<T> {
    Items::generate(async move |out| {
        // Files that are requested together share one task on a blocking thread.
        while let Some(files) = input.next_chunk(out.wanted_together().min(TOGETHER)).await {
            if files.values().iter().any(|file| file.store().is_some()) {
                // The wait for each file runs concurrently; together they take as long as the
                // slowest.
                let wanted = out.wanted();
                let loads = files.into_iter().map(|item| loading.clone().load_any(item));
                let mut files = stream::iter(loads).buffered(wanted);
                while let Some(file) = files.next().await {
                    out.emit(file.map(|file| file.map(made))).await;
                }
                continue;
            }
            let here = loading.clone();
            let read = loading.cx.blocking(move || here.load_local(files, made));
            match read.await {
                Err(error) => out.emit(Err(error)).await,
                Ok(files) => out.emit_chunk(files).await,
            }
        }
    })
}

/// Maximum number of files read in one task.
pub(super) const TOGETHER: usize = 32;

/// Returns the file with a name in its origin, which errors of this step and of later steps show,
/// and its own name.
pub(super) fn named(file: Item<FileRef>) -> (Item<FileRef>, Arc<str>) {
    let name = file.name();
    let (name, is_named) = match file.origin().shared_name() {
        // A listed file has its name already.
        Some(known) if **known == *name => (known.clone(), true),
        known => (name.into(), known.is_some()),
    };
    match is_named {
        true => (file, name),
        false => (file.named(name.clone()), name),
    }
}

impl Loading {
    /// Loads a file, local or of a store.
    async fn load_any(self, item: Result<Item<FileRef>>) -> Result<Item<Loaded>> {
        let item = item?;
        let Some(store) = item.store().cloned() else {
            let cx = self.cx.clone();
            let file = Chunk::from_iter([Ok(item)]);
            let loaded = cx
                .blocking(move || self.load_local(file, |file| file))
                .await?;
            return loaded.into_iter().next().expect("as many as were given");
        };
        let (item, name) = named(item);
        let outcome = self.load_stored(&item, name, &store).await;
        item.try_map(|_| outcome)
    }

    /// Loads an object of a store.
    async fn load_stored(
        &self,
        file: &FileRef,
        name: Arc<str>,
        store: &Arc<dyn Store>,
    ) -> Result<Loaded> {
        let large = |size| Ok(Loaded::Large(file.clone().with_size(size)));
        let data = match file.size {
            Some(size) if size > self.most => return large(Some(size)),
            None if self.most < u64::MAX => {
                // One request, whose answer contains the size.
                let object = store.get(&name, Get::default()).await?;
                match object.len() {
                    Some(size) if size <= self.most => {
                        pooled(&self.buffers, object.bytes()).await?
                    }
                    size => return large(size),
                }
            }
            _ => pooled(&self.buffers, store.read(&name)).await?,
        };
        match file.size {
            Some(listed) if listed != data.len() as u64 => Err(Error::changed(format!(
                "{}: listed with {listed} bytes, has {}",
                store.url_of(&name),
                data.len()
            ))),
            _ => Ok(Loaded::Whole(File::new(name, data))),
        }
    }

    /// Loads local files.
    fn load_local<T>(&self, files: Chunk<FileRef>, made: fn(Loaded) -> T) -> Chunk<T> {
        let mut reader = FileReader::new(&self.buffers, self.most, &self.cx);
        let mut loaded = Chunk::with_capacity(files.len());
        let mut files = files.into_iter();
        while let Some(item) = files.next() {
            let load = |item| {
                let (item, name) = named(item);
                item.try_map(|file| load(&mut reader, file, name, files.values()).map(made))
            };
            loaded.push(item.and_then(load));
        }
        loaded
    }
}

/// Loads a local file. `later` are the files that follow.
fn load(
    reader: &mut FileReader<'_>,
    file: FileRef,
    name: Arc<str>,
    later: &[FileRef],
) -> Result<Loaded> {
    match reader.read(&file.path, later) {
        Ok(Ok(Content::Whole(data))) => Ok(Loaded::Whole(File::new(name, data))),
        Ok(Ok(Content::Large(size))) => Ok(Loaded::Large(file.with_size(Some(size)))),
        Ok(Err((kind, what))) => {
            let path = readable(file.path.as_os_str().as_encoded_bytes());
            Err(Error::new(kind, format!("{path}: {what}")))
        }
        Err(error) => Err(failed(&file.path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use datapipes::{DataLoader, Graph};

    use super::*;
    use crate::prelude::*;
    use crate::stores::Store;
    use crate::testing::{Reaction, Scripted};

    #[test]
    fn without_workers_one_object_of_a_store_is_requested_after_the_other() {
        let store = Scripted::new();
        store.usual(Reaction::default().after(Duration::from_micros(100)));
        let keys = (0..40).map(|n| n.to_string());
        keys.clone().for_each(|key| store.put(key.clone(), key));
        let shared: Arc<dyn Store> = Arc::new(store.clone());
        let files = keys
            .clone()
            .map(|key| FileRef::stored(shared.clone(), key, None));
        let graph = Graph::from_vec(files.collect()).load_files().batch(16);
        let loader = DataLoader::builder(graph).workers(0).build().unwrap();
        let batches: Vec<Vec<File>> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        let names = batches
            .concat()
            .into_iter()
            .map(|file| file.name.to_string());
        assert!(names.eq(keys));
        assert_eq!(store.most_in_flight(), 1);
    }
}
