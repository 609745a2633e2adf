//! Time to the first batch (W6), and memory use over epochs. The batch has 64 images from tar
//! shards in the page cache: decoded, cropped, flipped, normalised and collated, in a process that
//! has done nothing before.
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
use support::{bar, median, memory_mb, peer};

const BATCH: usize = 64;

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

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    if args.next().as_deref() == Some("child") {
        let (dir, workers) = (
            PathBuf::from(args.next().unwrap_or_default()),
            args.next().unwrap_or_default(),
        );
        let begun = Instant::now();
        let loader = loader(&dir, workers.parse()?);
        let first = loader.epoch(0).blocking().next().ok_or("no batch")??;
        assert_eq!(first.0.shape(), [BATCH, 3, 224, 224]);
        println!("{}", begun.elapsed().as_secs_f64());
        return Ok(());
    }
    let dir = match std::env::var_os("BENCH_DATA") {
        Some(data) => PathBuf::from(data).join("wds"),
        None => shards::quickstart_shards(2000)?,
    };
    // Floor and fresh process take turns, so that both see the same machine.
    let (mut floors, mut times) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        floors.push(bare_batch(&dir) / 2.0);
        let child = Command::new(std::env::current_exe()?)
            .arg("child")
            .arg(&dir)
            .arg("2")
            .output()?;
        times.push(String::from_utf8(child.stdout)?.trim().parse::<f64>()?);
    }
    let over = median(
        times
            .iter()
            .zip(&floors)
            .map(|(time, floor)| time - floor)
            .collect(),
    );
    let (floor, time) = (median(floors), median(times));
    println!("\nW6: first batch of {BATCH} in a fresh process, 2 workers (medians of 9, in turn)");
    println!(
        "decoding that batch on two threads (floor)   {:>8.1} ms",
        floor * 1e3
    );
    println!(
        "first batch after                            {:>8.1} ms",
        time * 1e3
    );
    bar("ms over the floor", over * 1e3, 20.0, false);
    if let Some(seconds) = peer("torch_first_batch.py", &[&dir.display().to_string()]) {
        println!(
            "PyTorch, 2 forked workers, imports not counted {:>6.1} ms",
            seconds * 1e3
        );
    }

    let loader = loader(&dir, 2);
    print!("\nmemory over epochs, MB:");
    let mut seen = Vec::new();
    for epoch in 0..5 {
        loader
            .epoch(epoch)
            .blocking()
            .try_for_each(|batch| batch.map(drop))?;
        seen.push(memory_mb("VmRSS"));
        print!(" {:.0}", seen[seen.len() - 1]);
    }
    println!("; at most {:.0}", memory_mb("VmHWM"));
    bar(
        "growth from epoch 1 to 4, MB",
        seen[4] - seen[1],
        16.0,
        false,
    );
    Ok(())
}
