//! Parts of graphs in processes of their own, compared with threads: images that become 600 kB
//! tensors, values of 100 bytes, the start, and a crash. Peers are Python's loaders with processes
//! (`benches/peers/processes.py`) that are installed.
//!
//! `cargo bench --bench processes [-- --json]`. One line a case: items a second of two processes,
//! those of two threads or of a peer in the same run, the ratio and its goal.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use datapipes::{DataLoader, Graph, OnError, Tensor};
use datapipes_io::{FileGraphExt, FileRef};
use support::pictures::{decoded, pictures};
use support::{Lines, again, median, peer_case};

const CHILDREN: usize = 2;
const BATCH: usize = 64;
/// Size of a large item in bytes: an image of 224x224, three channels, as `f32`.
const LARGE: usize = 3 * 224 * 224 * 4;

fn large(numbers: Graph<u64>) -> Graph<Tensor> {
    numbers.map(|n| Tensor::from_vec(vec![n as u8; LARGE], [LARGE]).expect("so many"))
}

fn small(numbers: Graph<u64>) -> Graph<[u8; 100]> {
    numbers.map(|n| [n as u8; 100])
}

/// Reads the files where they are decoded, so that only their names travel.
fn read_and_decoded(files: Graph<FileRef>) -> Graph<Tensor> {
    decoded(files.load_files().map(|file| file.data))
}

fn loader<T: Send + 'static>(graph: Graph<T>) -> DataLoader<T> {
    DataLoader::builder(graph)
        .workers(CHILDREN)
        .build()
        .expect("a right graph")
}

/// Returns the seconds from making a loader to its first batch, in a process that has done nothing
/// before.
fn first_batch() -> f64 {
    let begun = Instant::now();
    let loader = loader(
        Graph::range(0..10_000)
            .in_processes(CHILDREN, small)
            .batch(BATCH),
    );
    assert_eq!(
        loader
            .epoch(0)
            .blocking()
            .next()
            .expect("a batch")
            .expect("no failure")
            .len(),
        BATCH
    );
    begun.elapsed().as_secs_f64()
}

/// Returns the longest pause of an epoch in seconds, where one item in 500 ends two processes; and
/// the number of items given up.
fn crashes() -> (f64, usize) {
    let graph = Graph::range(0..5000).in_processes(CHILDREN, |numbers| {
        numbers.map(|n| {
            if n % 500 == 250 {
                std::process::abort();
            }
            // Takes as long as decoding an image.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(200) {}
            n
        })
    });
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(100))
        .build()
        .expect("a right graph");
    let mut last = Instant::now();
    let mut longest: f64 = 0.0;
    for (place, item) in loader.epoch(0).blocking().enumerate() {
        item.expect("skipped");
        // The first item waits for the processes to start, so it does not count.
        longest = longest.max(if place > 0 {
            last.elapsed().as_secs_f64()
        } else {
            0.0
        });
        last = Instant::now();
    }
    let stats = loader.stats().expect("an epoch ran");
    (longest, stats.skipped_items.len())
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    datapipes::worker::init();
    if std::env::args().nth(1).as_deref() == Some("first") {
        println!("{}", first_batch());
        return Ok(());
    }

    let lines = Lines::new("two processes", "items/s");
    let files = pictures(512);
    let source = || Graph::from_vec(files.clone());
    let apart = || source().in_processes(CHILDREN, decoded);
    let mut cases = vec![
        again("2 threads", loader(decoded(source()))),
        again("2 processes", loader(apart())),
    ];
    let count = files.len() as f64;
    lines.beside(
        "500x375 to 600 kB, one by one",
        count,
        9,
        &mut cases,
        (0.95, 0.0),
    );
    let mut cases = vec![
        again(
            "2 threads",
            loader(decoded(source()).batch(BATCH).collate()),
        ),
        again("2 processes", loader(apart().batch(BATCH).collate())),
    ];
    lines.beside(
        "the same in batches of 64",
        count,
        9,
        &mut cases,
        (0.95, 0.0),
    );

    let dir = tempfile::tempdir()?;
    let mut named = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let path = dir.path().join(format!("{number:03}.jpg"));
        std::fs::write(&path, file)?;
        named.push(FileRef::new(path));
    }
    let source = || Graph::from_vec(named.clone());
    let batches = |images: Graph<Tensor>| loader(images.batch(BATCH).collate());
    let apart = source().in_processes(CHILDREN, read_and_decoded);
    let mut cases = vec![
        again("2 threads", batches(read_and_decoded(source()))),
        again("2 processes", batches(apart)),
    ];
    lines.beside(
        "the same, files read in the part",
        count,
        9,
        &mut cases,
        (0.95, 0.0),
    );

    let peers = [
        ("PyTorch DataLoader", "torch"),
        ("multiprocessing.Pool.imap", "pool"),
    ];
    let with = |cases: &mut Vec<support::Case<'_>>, size: &str, count: u64| {
        cases.extend(peers.iter().filter_map(|(name, peer)| {
            let args = [*peer, size, &count.to_string()].map(str::to_owned);
            peer_case(name, "processes.py", args.into())
        }));
    };
    let count = 4000u64;
    let range = || Graph::range(0..count);
    let mut cases = vec![
        again("2 threads", loader(large(range()))),
        again("2 processes", loader(range().in_processes(CHILDREN, large))),
    ];
    with(&mut cases, "large", count);
    lines.beside(
        "600 kB, filled and no more",
        count as f64,
        5,
        &mut cases,
        (0.0, 5.0),
    );
    let count = 100_000u64;
    let range = || Graph::range(0..count);
    let mut cases = vec![
        again("2 threads", loader(small(range()))),
        again("2 processes", loader(range().in_processes(CHILDREN, small))),
    ];
    with(&mut cases, "small", count);
    let rate = lines.beside(
        "values of 100 bytes",
        count as f64,
        5,
        &mut cases,
        (0.0, 5.0),
    );
    let least = 300_000.0;
    lines.print(
        "values of 100 bytes",
        rate,
        ("at least", least),
        rate / least,
        1.0,
    );

    let lines = Lines::new("", "ms");
    let this = std::env::current_exe()?;
    let mut starts = Vec::new();
    for _ in 0..9 {
        let output = Command::new(&this).arg("first").output()?;
        starts.push(String::from_utf8(output.stdout)?.trim().parse::<f64>()?);
    }
    let at_most = |case: &str, seconds: f64, most: f64| {
        let ms = seconds * 1e3;
        lines.print(case, ms, ("at most", most), most / ms, 1.0);
    };
    at_most(
        "first batch, with 2 processes to start",
        median(starts),
        100.0,
    );
    let pauses = (0..5).map(|_| {
        let (longest, given_up) = crashes();
        assert_eq!(given_up, 10);
        longest
    });
    at_most(
        "longest pause, with 10 items that crash",
        median(pauses.collect()),
        100.0,
    );
    Ok(())
}
