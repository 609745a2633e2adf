//! Lists of files: the position at which they resume, and lists that changed since the checkpoint.

use datapipes::{DataLoader, ErrorKind, Graph};
use datapipes_io::prelude::*;
use datapipes_io::stores::InMemory;
use datapipes_io::{FileRef, list_files};

use super::{Counting, all, begun, goes_on, loader};

fn names(graph: Graph<FileRef>) -> Graph<String> {
    graph.map(|file| file.name().into_owned())
}

fn store(count: usize) -> InMemory {
    InMemory::from_iter((0..count).map(|n| (format!("{n:03}.txt"), n.to_string())))
}

#[test]
fn row_116_lists_of_files_go_on() {
    let folder = tempfile::tempdir().unwrap();
    (0..40).for_each(|n| {
        std::fs::write(folder.path().join(format!("{n:03}.txt")), n.to_string()).unwrap()
    });
    goes_on(&names(list_files(folder.path(), "*.txt")));
    goes_on(
        &list_files(folder.path(), "*.txt")
            .shuffle(9)
            .load_files()
            .map(|file| file.data)
            .batch(3),
    );
    goes_on(&names(store(40).list_files("*.txt")));
    goes_on(&names(
        store(40).files((0..40).map(|n| format!("{:03}.txt", 39 - n))),
    ));
}

/// A resumed epoch does not read files that are known by name again.
#[test]
fn row_116_named_files_go_on_by_position() {
    let store = Counting::new(store(100));
    let files = store.clone().files((0..100).map(|n| format!("{n:03}.txt")));
    let graph = files.load_files().map(|file| file.data);
    let (_, state) = begun(&loader(&graph, 0), 90);
    store.counted();
    assert_eq!(all(loader(&graph, 0).resume(&state).unwrap()).len(), 10);
    assert_eq!(store.counted(), (10, 10));
}

/// Resumes an epoch over another list, and returns the remaining items or the error.
fn resumed(
    before: &Graph<String>,
    stop: usize,
    now: &Graph<String>,
    workers: usize,
) -> Result<Vec<String>, String> {
    let (_, state) = begun(&loader(before, 0), stop);
    let epoch = loader(now, workers)
        .resume(&state)
        .map_err(|error| error.to_string())?;
    epoch
        .blocking()
        .collect::<datapipes::Result<_>>()
        .map_err(|error| {
            assert_eq!(error.kind(), ErrorKind::Config, "no policy skips it");
            error.to_string()
        })
}

#[test]
fn row_119_files_that_were_added_or_removed_are_told() {
    let list = |store: &InMemory| names(store.clone().list_files("*.txt"));
    let before = store(300);
    let changed = "those that had been given: files were added, removed, renamed or changed since";
    for workers in [0, 2] {
        let check = |change: &dyn Fn(&InMemory), says: &str| {
            let now = store(300);
            change(&now);
            let error = resumed(&list(&before), 200, &list(&now), workers).unwrap_err();
            assert!(error.starts_with("list_files: "), "{error}");
            assert!(error.contains(says), "{error}");
        };
        check(&|store| store.remove("000.txt"), changed);
        check(&|store| store.put("0000.txt", "new"), changed);
        check(&|store| store.put("005.txt", "longer"), changed);
        check(
            &|store| (3..300).for_each(|n| store.remove(&format!("{n:03}.txt"))),
            "3 files are listed, of which",
        );
        // The checkpoint covers only the files before its position: later changes are not detected.
        let now = store(300);
        now.remove("250.txt");
        now.put("300.txt", "new");
        let rest = resumed(&list(&before), 200, &list(&now), workers).unwrap();
        assert_eq!((rest.len(), &*rest[99]), (100, "300.txt"));
    }

    let folder = tempfile::tempdir().unwrap();
    let write = |n: usize| std::fs::write(folder.path().join(format!("{n:03}.txt")), "").unwrap();
    (0..300).for_each(write);
    let graph = names(list_files(folder.path(), "*.txt"));
    let (_, state) = begun(&loader(&graph, 0), 200);
    std::fs::remove_file(folder.path().join("007.txt")).unwrap();
    let error = loader(&graph, 2)
        .resume(&state)
        .unwrap()
        .blocking()
        .next()
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains(changed), "{error}");
    write(7);
    assert_eq!(all(loader(&graph, 2).resume(&state).unwrap()).len(), 100);
}

#[test]
fn row_119_other_names_are_another_graph() {
    let files = |names: [&str; 3]| names.map(str::to_owned);
    let graph = |list| names(store(9).files(files(list)));
    let (first, other) = (
        graph(["001.txt", "002.txt", "003.txt"]),
        graph(["001.txt", "003.txt", "002.txt"]),
    );
    let error = resumed(&first, 1, &other, 0).unwrap_err();
    assert!(
        error.contains("the checkpoint is of another run: `files` was files(3 files, digest "),
        "{error}"
    );
}

/// A list of a store gives the same names with and without a digest for checkpoints.
#[test]
fn a_list_that_can_go_on_is_the_same_list() {
    let graph = names(store(50).list_files("*1*.txt"));
    let plain = DataLoader::builder(graph.clone()).seed(11).build().unwrap();
    assert_eq!(all(plain.epoch(1)), all(loader(&graph, 2).epoch(1)));
}
