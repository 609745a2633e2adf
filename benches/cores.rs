//! Rates by the number of workers, up to one for each core: tar shards (W1), images in threads and in
//! processes (W2), integers (W5), and work of 10, 100 and 1,000 µs an item. `waits` has items that
//! sleep, so that up to 256 workers need few cores: what is left is what the executor itself does, the
//! lock of the pool, the order and the consumer's thread.
//!
//! `cargo bench --bench cores [-- --json] [CASE...]`, with W1, W2, W5, work or waits. One line a case and
//! number of workers. The floor is the same work on as many bare threads, each with its share; that of
//! W5 is the loader without workers.

mod support;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datapipes::{BoxError, DType, DataLoader, Graph, Rng, Tensor};
use datapipes_io::list_files;
use datapipes_io::prelude::*;
use support::pictures::{decoded, pictures, rows};
use support::{Lines, again, case, write_tar};

/// Rounds of which a line shows the median.
const ROUNDS: usize = 5;
/// Shards of 11.5 MB that a bare thread keeps in memory.
const RING: usize = 4;
/// Images that one worker decodes in a round.
const IMAGES: usize = 500;
/// Images of a batch.
const BATCH: usize = 64;

fn main() -> Result<(), BoxError> {
    datapipes::worker::init();
    let cases: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let wanted = |name: &str| cases.is_empty() || cases.iter().any(|case| case == name);
    let cores = std::thread::available_parallelism()?.get();
    let numbers: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
        .take_while(|n| *n <= cores)
        .collect();
    let lines = Lines::new(&format!("workers, of {cores} cores"), "items/s");
    if wanted("W1") {
        w1(&lines, &numbers)?;
    }
    if wanted("W2") {
        w2(&lines, &numbers)?;
    }
    if wanted("W5") {
        w5(&lines, &numbers)?;
    }
    if wanted("work") {
        for micros in [1000, 100, 10] {
            let units = units(micros);
            let work = move |_| {
                std::hint::black_box(spin(units));
            };
            let name = format!("work of {micros} µs an item");
            alike(&lines, &name, &numbers, 200_000 / micros, work)?;
        }
    }
    if wanted("waits") {
        for millis in [10, 2] {
            // Half of the time, or half more, so that results come out of order.
            let wait = move |n: u64| {
                let share = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                sleep(Duration::from_micros(
                    1000 * millis / 2 + ((1000 * millis * share) >> 32),
                ));
            };
            let name = format!("waits of {millis} ms an item");
            alike(&lines, &name, &[8, 32, 128, 256], 500 / millis, wait)?;
        }
    }
    Ok(())
}

/// Runs a closure on this number of threads, with the number of each.
fn threads(count: usize, run: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..count {
            let run = &run;
            scope.spawn(move || run(number));
        }
    });
}

/// Writes eight shards for each of the workers, of 100 members of 115 kB.
fn make(folder: &Path, shards: usize) -> std::io::Result<Vec<PathBuf>> {
    let mut rng = Rng::from_key([1; 4]);
    let noise: Vec<u8> = (0..115_000).map(|_| rng.next_u32() as u8).collect();
    let mut paths = Vec::new();
    for shard in 0..shards {
        let path = folder.join(format!("{shard:03}.tar"));
        let members = (0..100).map(|member| (format!("{member:04}.bin"), &noise));
        write_tar(File::create(&path)?, members)?;
        paths.push(path);
    }
    Ok(paths)
}

fn w1(lines: &Lines, numbers: &[usize]) -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let most = numbers.last().copied().unwrap_or(1);
    let paths = make(folder.path(), 8 * most)?;
    for &workers in numbers {
        let read = || {
            threads(workers, |thread| {
                // A loader cannot use the memory of a shard again while batches have its members.
                let mut ring = [const { Vec::new() }; RING];
                for (n, path) in paths.iter().skip(thread).step_by(workers).enumerate() {
                    let buffer = &mut ring[n % RING];
                    buffer.clear();
                    let file = File::open(path).and_then(|mut file| file.read_to_end(buffer));
                    file.expect("the shard is there");
                    std::hint::black_box(&buffer);
                }
            });
        };
        let graph = list_files(folder.path(), "*.tar").stream_untar().samples();
        let loader = DataLoader::builder(graph.batch(256))
            .workers(workers)
            .build()?;
        let mut cases = [case("read() of the shards", read), again("loader", loader)];
        let name = format!("W1, members of shards, {workers} workers");
        lines.beside(
            &name,
            (100 * paths.len()) as f64,
            ROUNDS,
            &mut cases,
            (0.8, 0.0),
        );
    }
    Ok(())
}

/// Decodes the images into the rows of a batch.
fn bare(files: &[Bytes]) {
    let rows = rows();
    let row = |_| Tensor::zeros(DType::F32, rows.shape()).expect("a fine size");
    let mut batch: Vec<Tensor> = (0..BATCH).map(row).collect();
    for number in 0..IMAGES {
        let mut rng = Rng::from_key([number as u64; 4]);
        let filled = rows.fill(
            &files[number % files.len()],
            &mut rng,
            &mut batch[number % BATCH],
        );
        filled.expect("a fine picture");
    }
}

fn w2(lines: &Lines, numbers: &[usize]) -> Result<(), BoxError> {
    let files = pictures(100);
    for &workers in numbers {
        let images = IMAGES * workers;
        let source = Graph::from_vec(
            (0..images)
                .map(|n| files[n % files.len()].clone())
                .collect(),
        );
        let floor = || threads(workers, |_| bare(&files));
        let in_threads = decoded(source.clone()).batch(BATCH).collate();
        let in_processes = source.in_processes(workers, decoded).batch(BATCH).collate();
        for (graph, place, goal) in [
            (in_threads, "workers", 0.95),
            (in_processes, "processes", 0.9),
        ] {
            let loader = DataLoader::builder(graph).workers(workers).build()?;
            let mut cases = [case("bare threads", floor), again("loader", loader)];
            let name = format!("W2, images, {workers} {place}");
            lines.beside(&name, images as f64, ROUNDS, &mut cases, (goal, 0.0));
        }
    }
    Ok(())
}

fn w5(lines: &Lines, numbers: &[usize]) -> Result<(), BoxError> {
    const N: u64 = 5_000_000;
    let loader = |workers| {
        let graph = Graph::range(0..N).map(|v| v + 1).filter(|v| v % 2 == 0);
        DataLoader::builder(graph.shuffle(1000).batch(100))
            .workers(workers)
            .build()
    };
    for &workers in numbers {
        let mut cases = [
            again("no workers", loader(0)?),
            again("loader", loader(workers)?),
        ];
        let name = format!("W5, integers, {workers} workers");
        lines.beside(&name, N as f64, ROUNDS, &mut cases, (0.9, 0.0));
    }
    Ok(())
}

/// Does work of so many units, so that waiting for a core does not count as work.
fn spin(units: u64) -> u64 {
    (0..units).fold(1u64, |x, i| {
        std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(i))
    })
}

/// Returns the units of work that take so long.
fn units(micros: u64) -> u64 {
    const UNITS: u64 = 50_000_000;
    let begun = Instant::now();
    std::hint::black_box(spin(UNITS));
    (micros as f64 * 1e-6 * UNITS as f64 / begun.elapsed().as_secs_f64()) as u64
}

/// Does something for each of so many items a worker.
fn alike(
    lines: &Lines,
    name: &str,
    numbers: &[usize],
    each: u64,
    act: impl Fn(u64) + Copy + Send + Sync + 'static,
) -> Result<(), BoxError> {
    for &workers in numbers {
        let items = workers as u64 * each;
        let graph = Graph::range(0..items).map(act);
        let loader = DataLoader::builder(graph).workers(workers).build()?;
        let floor = || {
            threads(workers, |thread| {
                (0..each).for_each(|n| act(thread as u64 * each + n))
            })
        };
        let mut cases = [case("bare threads", floor), again("loader", loader)];
        let name = format!("{name}, {workers} workers");
        lines.beside(&name, items as f64, ROUNDS, &mut cases, (0.95, 0.0));
    }
    Ok(())
}
