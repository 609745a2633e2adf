//! Time to the first batch (W6), and memory use over epochs. The batch has 64 images from tar
//! shards in the page cache: decoded, cropped, flipped, normalised and collated, by a new loader in a
//! process that has had one before, and in a process that has done nothing before.
//!
//! `cargo bench --bench first_batch [-- --json]`. One line a case: milliseconds, those of the goal
//! in the same run, which are the time to decode the batch on two threads (the floor) and 15 or 25
//! more, and the ratio.
//!
//! The shards are those of `$BENCH_DATA/wds`, or those that the quickstart example makes.

#[path = "../examples/support/mod.rs"]
mod examples;
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use datapipes::{DataLoader, Tensor};
use examples::{images, shards};
use support::{Lines, median, memory_mb, peer};

const BATCH: usize = 64;
const ROUNDS: usize = 9;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn loader(dir: &Path, workers: usize) -> DataLoader<(Tensor, Tensor)> {
    // The shuffle buffer must be full before the first sample comes out; here it holds one batch.
    let graph = images::training_batches(images::from_shards(dir, 1000, BATCH), 224, BATCH);
    DataLoader::builder(graph)
        .workers(workers)
        .build()
        .expect("a right graph")
}

/// Returns the seconds to decode and transform one batch on one thread, without a loader. Divided
/// by the number of cores, this is the floor.
fn bare_batch(dir: &Path) -> f64 {
    let encoded = images::from_shards(dir, 1000, BATCH)
        .take(BATCH as u64)
        .collect()
        .expect("good shards");
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        for (bytes, _) in &encoded {
            let image = datapipes_image::decode(bytes).expect("good images");
            let mut rng = datapipes::Rng::from_key([7; 4]);
            let crop =
                datapipes_image::random_resized_crop(&image, 224, &mut rng).expect("a right size");
            let tensor = datapipes_image::to_tensor(&crop, &datapipes_image::Normalize::IMAGENET);
            std::hint::black_box(tensor.expect("finite constants"));
        }
        times.push(begun.elapsed().as_secs_f64());
    }
    median(times)
}

/// Returns the seconds from making a loader to its first batch.
fn first_batch(dir: &Path, workers: usize) -> Result<f64, Error> {
    let begun = Instant::now();
    let loader = loader(dir, workers);
    let first = loader.epoch(0).blocking().next().ok_or("no batch")??;
    assert_eq!(first.0.shape(), [BATCH, 3, 224, 224]);
    Ok(begun.elapsed().as_secs_f64())
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench" && arg != "--json");
    if args.next().as_deref() == Some("child") {
        let (dir, workers) = (
            PathBuf::from(args.next().unwrap_or_default()),
            args.next().unwrap_or_default(),
        );
        println!("{}", first_batch(&dir, workers.parse()?)?);
        return Ok(());
    }
    let dir = match std::env::var_os("BENCH_DATA") {
        Some(data) => PathBuf::from(data).join("wds"),
        None => shards::quickstart_shards(2000)?,
    };
    // Floor, warm and fresh process take turns, so that all see the same machine.
    let (mut floors, mut warm, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let floor = bare_batch(&dir) / 2.0;
        let again = first_batch(&dir, 2)?;
        let child = Command::new(std::env::current_exe()?)
            .arg("child")
            .arg(&dir)
            .arg("2")
            .output()?;
        // The first round warms this process up.
        if round > 0 {
            floors.push(floor);
            warm.push(again);
            fresh.push(String::from_utf8(child.stdout)?.trim().parse::<f64>()?);
        }
    }
    let lines = Lines::new("first batch of 64 images, 2 workers", "ms");
    for (case, times, spare) in [
        ("warm process", &warm, 15.0),
        ("fresh process", &fresh, 25.0),
    ] {
        let goals = floors.iter().map(|floor| floor * 1e3 + spare);
        let ratios = goals
            .clone()
            .zip(times)
            .map(|(goal, time)| goal / (time * 1e3));
        let ratio = median(ratios.collect());
        let beside = format!("its decoding and {spare} ms");
        let time = median(times.clone()) * 1e3;
        lines.print(case, time, (&beside, median(goals.collect())), ratio, 1.0);
    }
    let (warm, floor) = (median(warm) * 1e3, median(floors) * 1e3);
    lines.print(
        "warm process",
        warm,
        ("its decoding (floor)", floor),
        floor / warm,
        0.0,
    );
    if let Some(seconds) = peer("torch_first_batch.py", &[&dir.display().to_string()]) {
        let (time, torch) = (median(fresh) * 1e3, seconds * 1e3);
        let name = "PyTorch, without imports";
        lines.print("fresh process", time, (name, torch), torch / time, 1.0);
    }

    let loader = loader(&dir, 2);
    let mut seen = Vec::new();
    for epoch in 0..5 {
        loader
            .epoch(epoch)
            .blocking()
            .try_for_each(|batch| batch.map(drop))?;
        seen.push(memory_mb("VmRSS"));
    }
    let (growth, most) = ((seen[4] - seen[1]).max(0.1), 16.0);
    let lines = Lines::new("memory", "MB");
    let case = "growth from epoch 1 to 4";
    lines.print(case, growth, ("at most", most), most / growth, 1.0);
    let (held, peak) = (seen[4], memory_mb("VmHWM"));
    lines.print("held after epoch 4", held, ("peak", peak), peak / held, 0.0);
    Ok(())
}
