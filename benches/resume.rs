//! Cost of resuming: during an epoch that can be resumed, when a checkpoint is made, and when an
//! epoch is resumed.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes::{Checkpoint, DataLoader, Graph, Indexed};
use support::{bar, case, compare, median};

const N: u64 = 1_000_000;
const BUFFER: usize = 10_000;

/// Times W5 plain, resumable, and with a checkpoint after each batch.
fn on_the_way() {
    let graph = || {
        Graph::range(0..N)
            .map(|v| v + 1)
            .filter(|v| v % 2 == 0)
            .shuffle(1000)
            .batch(100)
    };
    let build = |workers| DataLoader::builder(graph()).workers(workers);
    let epoch = |loader: &DataLoader<Vec<u64>>| {
        loader
            .epoch(0)
            .blocking()
            .map(|batch| batch.expect("integers do not fail").len())
            .sum::<usize>()
    };
    let asking = |loader: &DataLoader<Vec<u64>>| {
        let mut epoch = loader.epoch(0).blocking();
        let mut bytes = 0;
        while let Some(batch) = epoch.next() {
            bytes += batch.expect("integers do not fail").len();
            bytes += epoch.checkpoint().expect("a state").epoch() as usize;
        }
        bytes
    };
    for workers in [0, 2] {
        let plain = build(workers).build().expect("a right graph");
        let resumable = build(workers).resumable().build().expect("a right graph");
        let ratios = compare(
            &format!("W5, {workers} workers"),
            N as f64,
            "items",
            21,
            vec![
                case("plain", || epoch(&plain)),
                case("resumable", || epoch(&resumable)),
                case("a state at each of 5000 batches", || asking(&resumable)),
            ],
        );
        bar("resumable over plain", ratios[1], 1.02, false);
    }
}

/// Reads members of archives through a large shuffle buffer, and counts the archives that are read.
fn archives(reads: &Arc<AtomicU64>, irregular: bool) -> Graph<u64> {
    let reads = reads.clone();
    let members = Graph::range(0..2000).flat_map(move |archive| {
        reads.fetch_add(1, Ordering::Relaxed);
        (0..1000).map(move |member| archive * 1000 + member)
    });
    let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
    match irregular {
        true => members
            .filter(move |&n| hash(n) != 3)
            .map(|n| n)
            .shuffle(BUFFER),
        false => members.shuffle(BUFFER),
    }
}

fn of_archives(title: &str, irregular: bool) {
    let reads = Arc::new(AtomicU64::new(0));
    let build = || {
        DataLoader::builder(archives(&reads, irregular))
            .workers(2)
            .resumable()
            .build()
    };
    let loader = build().expect("a right graph");
    let mut epoch = loader.epoch(0).blocking();
    let mut times = Vec::new();
    for sample in (&mut epoch).take(400_000) {
        sample.expect("integers do not fail");
    }
    for _ in 0..300 {
        epoch
            .by_ref()
            .take(100)
            .for_each(|sample| _ = sample.expect("integers do not fail"));
        let begun = Instant::now();
        let state = epoch.checkpoint().expect("a state");
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        drop(state);
    }
    let state = epoch.checkpoint().expect("a state");
    let bytes = state.to_bytes().len();
    println!(
        "\n{title}: {BUFFER} samples in the buffer, {} delivered",
        state.delivered()
    );
    bar(
        "bytes of a checkpoint",
        bytes as f64,
        if irregular {
            12.0 * BUFFER as f64
        } else {
            4096.0
        },
        false,
    );
    bar("to make it, in µs", median(times), 50.0, false);
    let wanted = epoch.next().expect("more").expect("integers do not fail");
    drop(epoch);

    let before = reads.load(Ordering::Relaxed);
    let begun = Instant::now();
    let loader = build().expect("a right graph");
    let state = Checkpoint::from_bytes(&state.to_bytes()).expect("the same state");
    let mut epoch = loader.resume(&state).expect("the same graph").blocking();
    let first = epoch.next().expect("more").expect("integers do not fail");
    let (took, again) = (begun.elapsed(), reads.load(Ordering::Relaxed) - before);
    assert_eq!(first, wanted);
    println!(
        "the next batch came {took:.1?} after it; {again} archives of {} were read for that",
        before
    );
}

/// Resumes data by index, far into an epoch.
fn by_index() {
    let steps = 1_000_000u64;
    let graph = || {
        Indexed::range(steps * 64)
            .shuffle()
            .fetch()
            .map(|n| n)
            .batch(32)
    };
    let loader = DataLoader::builder(graph())
        .workers(2)
        .resumable()
        .build()
        .expect("a right graph");
    // Half of the epoch's two million batches are taken before the checkpoint: the position after
    // them can be computed, so resuming should not take longer than after a few.
    let mut state = None;
    let mut times = Vec::new();
    let mut epoch = loader.epoch(0).blocking();
    epoch
        .by_ref()
        .take(steps as usize)
        .for_each(|batch| _ = batch.expect("integers do not fail"));
    let wanted = {
        state.replace(epoch.checkpoint().expect("a state"));
        epoch.next().expect("more").expect("integers do not fail")
    };
    let state = state.expect("made above");
    println!(
        "\ndata by index, {} samples, stopped after {} batches of 32: {} bytes",
        steps * 64,
        state.delivered(),
        state.to_bytes().len()
    );
    for _ in 0..21 {
        let loader = DataLoader::builder(graph())
            .workers(2)
            .resumable()
            .build()
            .expect("a right graph");
        let begun = Instant::now();
        let mut epoch = loader.resume(&state).expect("the same graph").blocking();
        let first = epoch.next().expect("more").expect("integers do not fail");
        times.push(begun.elapsed());
        assert_eq!(first, wanted);
    }
    let fresh: Vec<f64> = (0..21)
        .map(|_| {
            let loader = DataLoader::builder(graph())
                .workers(2)
                .resumable()
                .build()
                .expect("a right graph");
            let begun = Instant::now();
            loader
                .epoch(0)
                .blocking()
                .next()
                .expect("one")
                .expect("integers do not fail");
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    let took = median(times.iter().map(Duration::as_secs_f64).collect()) * 1e3;
    bar("to the first batch after it, in ms", took, 10.0, false);
    println!("an epoch that begins: {:.2} ms", median(fresh));
}

fn main() {
    on_the_way();
    of_archives("archives", false);
    of_archives("archives, some members left out", true);
    by_index();
}
