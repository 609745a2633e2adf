//! Tar archives that a resumed epoch reads.

use std::fs;
use std::io::Write;

use datapipes::Graph;
use datapipes::index::Indexed;
use datapipes_io::formats::{IndexedTar, TarWriter};
use datapipes_io::prelude::*;
use datapipes_io::stores::InMemory;
use datapipes_io::{File, Sample, list_files};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::executor::block_on;

use super::{Counting, all, begun, goes_on, loader};

const SHARDS: usize = 20;
const EACH: usize = 6;

/// Returns `SHARDS` archives of `EACH` samples, with files between the samples that belong to none,
/// and some damage if `damaged`, by their names.
fn archives(damaged: bool) -> impl Iterator<Item = (String, Vec<u8>)> {
    let archive = move |shard: usize| {
        let mut archive = TarWriter::new(Vec::new());
        for sample in 0..EACH {
            let key = format!("{shard:02}-{sample}");
            archive
                .append(&format!("{key}.jpg"), key.repeat(9).as_bytes())
                .unwrap();
            if sample % 3 == 0 {
                archive.append("README", b"of no sample").unwrap();
            }
            if damaged && sample == 2 {
                archive
                    .append(&format!("{key}.jpg"), b"a second one, which is an error")
                    .unwrap();
            }
            archive
                .append(&format!("{key}.cls"), sample.to_string().as_bytes())
                .unwrap();
        }
        let mut archive = archive.finish().unwrap();
        if damaged && shard % 4 == 1 {
            archive.truncate(archive.len() / 2);
        }
        archive
    };
    (0..SHARDS).map(move |shard| (format!("train/{shard:02}.tar"), archive(shard)))
}

fn shards(damaged: bool) -> Counting {
    Counting::new(InMemory::from_iter(archives(damaged)))
}

fn keys(graph: Graph<Sample>) -> Graph<(String, Vec<String>)> {
    graph.map(|sample| {
        (
            sample.key().to_owned(),
            sample.fields().map(|(name, _)| name.to_owned()).collect(),
        )
    })
}

#[test]
fn row_116_shards_go_on_in_the_middle() {
    for damaged in [false, true] {
        let files = || shards(damaged).list_files("train/*.tar").shuffle(8);
        goes_on(&keys(files().load_files().untar().samples()).batch(4));
        goes_on(&keys(files().stream_untar().samples().shuffle(7)).batch(4));
    }
}

/// Workers read local archives, some of them compressed and some damaged.
#[test]
fn row_116_local_shards_go_on_in_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("train")).unwrap();
    for (n, (name, archive)) in archives(true).enumerate() {
        let mut file = fs::File::create(folder.path().join(name)).unwrap();
        match n % 3 {
            0 => GzEncoder::new(file, Compression::fast()).write_all(&archive),
            _ => file.write_all(&archive),
        }
        .unwrap();
    }
    let files = list_files(folder.path(), "train/*.tar").shuffle(8);
    goes_on(&keys(files.stream_untar().samples().shuffle(7)).batch(4));
}

#[test]
fn row_116_samples_of_files_that_are_in_no_archive_go_on() {
    let store =
        InMemory::from_iter((0..30).map(|n| (format!("{:02}.{}", n / 3, n % 3), n.to_string())));
    goes_on(&keys(store.clone().list_files("*").load_files().samples()));
    let shuffled = store.list_files("*").load_files().samples().shuffle(4);
    goes_on(&keys(shuffled).shuffle(3));
}

/// A resumed epoch reads only the shards of unfinished morsels again.
#[test]
fn row_116_grouping_goes_on_where_it_is() {
    let store = shards(false);
    let graph = store
        .clone()
        .list_files("train/*.tar")
        .load_files()
        .untar()
        .samples();
    for workers in [0, 2] {
        let stop = EACH * (SHARDS - 2) + 1;
        let whole = all(loader(&graph, workers).epoch(1));
        let (first, state) = begun(&loader(&graph, workers), stop);
        store.counted();
        let rest = all(loader(&graph, workers).resume(&state).unwrap());
        assert_eq!([first, rest].concat(), whole);
        // The shard that had been begun, the last one, and those of the same morsel, which is long
        // where shards arrive quickly.
        let (_, read) = store.counted();
        assert!(
            (2..=SHARDS / 2).contains(&read),
            "{read} shards read, {workers} workers"
        );
    }
}

/// A resumed epoch reads the shards that the buffer spans, and those after them.
#[test]
fn a_resume_loads_the_shards_that_the_buffer_spans() {
    let store = shards(false);
    let files = store.clone().list_files("train/*.tar").shuffle(SHARDS);
    let samples = files.load_files().untar().samples().shuffle(EACH);
    let graph = samples.batch(3);
    let whole = all(loader(&graph, 0).epoch(1));
    for workers in [0, 2] {
        for stop in [0, 5, 13, 21, 27, 30, 36, 39, whole.len()] {
            let (first, state) = begun(&loader(&graph, workers), stop);
            let held = state.to_bytes().len();
            assert!(held < 700, "{held} bytes");
            store.counted();
            let mut epoch = loader(&graph, workers).resume(&state).unwrap().blocking();
            let next = epoch.next().transpose().unwrap();
            drop(epoch);
            let (_, at_once) = store.counted();
            let rest = all(loader(&graph, workers).resume(&state).unwrap());
            assert_eq!(next.as_ref(), rest.first());
            assert_eq!([first, rest].concat(), whole);
            let (_, read) = store.counted();
            // Samples that have left the graph or are in the buffer, all of which came out of
            // archives.
            let through = (3 * stop + EACH).min(EACH * SHARDS);
            let left = SHARDS - through / EACH;
            // Each item in the buffer may be of another shard. Where items arrive as quickly as
            // here, snapshots of the buffer are rare, but there is one after at least half of the
            // samples: a resumed epoch replays from there.
            let again = 3 * stop / 2 / EACH + 1;
            let most = (left + EACH + 1 + again).min(SHARDS);
            assert!(
                read <= most,
                "{read} shards read for {left} that were left, {workers} workers, {stop}"
            );
            if stop >= 39 {
                assert!(most < SHARDS);
            }
            if workers == 0 {
                let most = EACH + 2 + again;
                assert!(
                    at_once <= most,
                    "{at_once} shards read for the next batch, stopped at {stop}"
                );
            }
        }
    }
}

/// A resumed epoch reads no file of an indexed archive again, by number or as samples.
#[test]
fn row_116_an_index_is_read_where_it_goes_on() {
    let store = shards(false);
    let archive = block_on(IndexedTar::open(store.clone(), "train/03.tar")).unwrap();
    let members: Graph<File> = Indexed::new(archive.clone()).shuffle().fetch();
    goes_on(&members.clone().map(|file| file.name.to_string()));
    for workers in [0, 2] {
        let whole = all(loader(&members, workers).epoch(1));
        let stop = whole.len() - 3;
        // Without workers, since then the position is exact: workers resume at a morsel's start.
        let (_, state) = begun(&loader(&members, 0), stop);
        store.counted();
        assert_eq!(
            all(loader(&members, workers).resume(&state).unwrap()),
            whole[stop..]
        );
        let (reads, _) = store.counted();
        assert_eq!(reads, 3, "{workers} workers");
    }
    let samples = Indexed::new(archive.samples()).shuffle().fetch().batch(2);
    let whole = all(loader(&samples, 0).epoch(1));
    let (_, state) = begun(&loader(&samples, 0), 2);
    store.counted();
    assert_eq!(all(loader(&samples, 2).resume(&state).unwrap()), whole[2..]);
    assert_eq!(store.counted().0, 2 * 2, "two samples of two members each");
}
