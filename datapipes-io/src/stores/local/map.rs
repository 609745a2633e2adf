//! Maps files into memory instead of reading them.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, Hints, Items, Pipe, Result, Work};
use memmap2::MmapOptions;

use super::read::{open, read_unsized};
use super::{failed, retried};
use crate::file::readable;
use crate::stores::load::{TOGETHER, named};
use crate::{File, FileRef};

/// Maps local files into memory; see [`FileGraphExt::map_files`](crate::FileGraphExt::map_files).
///
/// - A file is opened and mapped off the threads that compute; a page is read when a thread touches
///   it, by that thread. The file stays mapped until its last slice is dropped, even if its name is
///   removed.
/// - Symbolic links are followed. A path that is not a regular file is refused without waiting for
///   it. A file of length 0 is read instead, since files of `/proc` report that length.
/// - A queue with a limit in bytes counts only the name of a mapped file: its pages belong to the
///   system, which reclaims them when it needs to.
#[derive(Clone, Debug, Default)]
pub struct MapFiles;

impl Pipe<FileRef> for MapFiles {
    type Out = File;

    fn apply(&self, mut input: Items<FileRef>, cx: &Context) -> Items<File> {
        let cx = cx.clone();
        Items::generate(async move |out| {
            // Files that are requested together share one task on a blocking thread.
            while let Some(files) = input.next_chunk(out.wanted().min(TOGETHER)).await {
                let (files, context) = (files.into_iter().collect::<Vec<_>>(), cx.clone());
                let mapped = cx.blocking(move || {
                    let map = |item: datapipes::Item<FileRef>| {
                        let (item, name) = named(item);
                        item.try_map(|file| load(&file, name, &context))
                    };
                    files
                        .into_iter()
                        .map(|item| item.and_then(map))
                        .collect::<Vec<_>>()
                });
                match mapped.await {
                    Err(error) => out.emit(Err(error)).await,
                    Ok(files) => {
                        for file in files {
                            out.emit(file).await;
                        }
                    }
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.name.len() + size_of::<File>())
    }
}

/// Maps a file.
#[cfg(feature = "arrow")]
pub(crate) fn map_file(file: &FileRef) -> Result<File> {
    load(file, file.name().into(), &Context::default())
}

fn load(file: &FileRef, name: Arc<str>, cx: &Context) -> Result<File> {
    if let Some(store) = file.store() {
        return Err(Error::unsupported(format!(
            "{}: only files of this machine can be mapped",
            store.url_of(&file.name())
        )));
    }
    match retried(cx, || map(file)) {
        Ok(Ok(data)) => Ok(File::new(name, data)),
        Ok(Err(what)) => {
            let path = readable(file.path.as_os_str().as_encoded_bytes());
            Err(Error::unsupported(format!("{path}: {what}")))
        }
        Err(error) => Err(failed(&file.path, error)),
    }
}

/// Returns the content, or a problem with the file itself.
fn map(file: &FileRef) -> io::Result<Result<Bytes, &'static str>> {
    let handle = open(&file.path)?;
    let meta = handle.metadata()?;
    if !meta.is_file() {
        return Ok(Err(if meta.is_dir() {
            "a folder, not a file"
        } else {
            "not a regular file"
        }));
    }
    if meta.len() == 0 {
        return read_unsized(&handle).map(Ok);
    }
    let Ok(len) = usize::try_from(meta.len()) else {
        return Ok(Err("too large to be mapped"));
    };
    // SAFETY: the map is read-only and of exactly the file's length. This code cannot know that
    // nobody else writes to or truncates the file while it is mapped; `map_files` requires it of
    // its caller, and mapping is therefore not the default.
    let map = unsafe { MmapOptions::new().len(len).map(&handle)? };
    Ok(Ok(Bytes::from_owner(map)))
}

#[cfg(test)]
mod tests {
    use datapipes::{DataLoader, Graph, OnError};

    use super::*;
    use crate::stores::InMemory;
    use crate::{FileGraphExt, StoreExt};

    #[test]
    fn files_are_mapped_and_what_is_none_is_an_error_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "some text").unwrap();
        std::fs::write(path("empty"), "").unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        let store = Arc::new(InMemory::from_iter([("key", "stored")]));
        let files = vec![
            FileRef::new(path("a")),
            FileRef::new(path("folder")),
            FileRef::new(path("empty")),
            FileRef::new(path("none")),
            FileRef::stored(store, "key", None),
            FileRef::new(path("a")),
        ];
        for workers in [0, 2] {
            let loader = DataLoader::builder(Graph::from_vec(files.clone()).map_files())
                .workers(workers)
                .on_error(OnError::skip(10))
                .build()
                .unwrap();
            let read: Vec<Bytes> = loader
                .epoch(0)
                .blocking()
                .map(|file| file.unwrap().data)
                .collect();
            assert_eq!(read, ["some text", "", "some text"]);
            let errors: Vec<String> = loader
                .stats()
                .unwrap()
                .skipped_items
                .into_iter()
                .map(|skipped| skipped.error)
                .collect();
            assert_eq!(errors.len(), 3);
            for (error, what) in errors.iter().zip([
                "folder: a folder, not a file",
                "none: not found",
                "key: only files of this machine",
            ]) {
                assert!(error.contains(what), "{error}");
            }
        }
    }

    #[test]
    fn a_mapped_file_outlives_its_name_and_its_graph() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let file = Graph::from_vec(vec![FileRef::new(&path)])
            .map_files()
            .collect()
            .unwrap()
            .remove(0);
        let slice = file.data.slice(1_000_000..);
        std::fs::remove_file(&path).unwrap();
        drop(file);
        assert!(slice.iter().all(|&byte| byte == 7));
        assert_eq!(slice.len(), (1 << 20) - 1_000_000);
    }

    #[test]
    fn keeps_the_contract() {
        let dir = tempfile::tempdir().unwrap();
        let files = (0..7).map(|n| {
            let path = dir.path().join(n.to_string());
            std::fs::write(&path, n.to_string()).unwrap();
            FileRef::new(path)
        });
        datapipes::testing::check_pipe(&MapFiles, files.collect());
    }

    #[test]
    fn arrays_of_a_mapped_file_are_views_of_it() {
        let array = include_bytes!("../../../tests/data/numpy-f4.npy");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.npy"), array).unwrap();
        let files = crate::stores::local::Local::new(dir.path())
            .files(["a.npy"])
            .map_files();
        let array = files
            .read_as(crate::formats::Npy::new())
            .collect()
            .unwrap()
            .remove(0);
        if cfg!(target_endian = "little") {
            assert_eq!(
                array.tensor().unwrap().as_bytes().as_ptr(),
                array.data().as_ptr()
            );
        }
        assert_eq!(array.tensor().unwrap().as_slice::<f32>().unwrap()[1], 6.5);
    }
}
