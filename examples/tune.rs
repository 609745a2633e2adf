//! Finds the number of workers and the length of the queue with which a loader is fastest: by the
//! grid of the paper *DataLoader Parameter Tuner*, and by a search that repeats its runs. Then runs
//! an epoch with the settings file.
//!
//! `cargo run --release --no-default-features --example tune` makes 200 photo-like images (once,
//! about 22 MB in a cache folder). `cargo run --release --example tune -- PATH` runs on your own tar
//! shards, or on a folder with a folder of images for each class.
//!
//! Options: `--out DIR` (folder for `settings.json` and `heat.svg`; without it both go into a
//! temporary folder that is removed at the end), `--cores N` and `--gpus N` (most workers, and their
//! step), `--prefetch N` (longest queue, 3), `--batch N`, `--batches N` (of each run), `--size
//! PIXELS`, `--memory MIB` (bound of the items held), `--step MS` (time of a training step), `--report
//! FILE` (a page for a browser about that epoch, with the grid), `--trace FILE` (its timeline, for
//! `ui.perfetto.dev`).

mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use datapipes::loader::tune::Tuner;
use datapipes::{BoxError, DataLoader};
use support::args::Args;
use support::trace::Trace;
use support::{images, shards};

const USAGE: &str = "tune [PATH] [--out DIR] [--cores N] [--gpus N] [--prefetch N] [--batch N] [--batches N] [--size PIXELS] \
                     [--memory MIB] [--step MS] [--report FILE] [--trace FILE]";

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let known = "out cores gpus prefetch batch batches size memory step report trace";
    let args = Args::parse("", known, USAGE);
    let (path, batches) = match args.words.first() {
        Some(path) => (PathBuf::from(path), 100),
        None => (shards::quickstart_shards(200)?, 24),
    };
    let temporary = tempfile::tempdir()?;
    let out = args.get::<PathBuf>("out");
    let folder = out.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("{}: cannot make the folder: {error}", folder.display()))?;

    let encoded = match images::has_shards(&path)? {
        true => images::from_shards(&path, 10_000, 100),
        false => images::from_folder(&path, 1_000_000)?,
    };
    let (size, batch) = (args.get("size").unwrap_or(224), args.get("batch"));
    let graph = images::training_batches(encoded, size, batch.unwrap_or(8));
    let builder = || DataLoader::builder(graph.clone()).seed(42);

    let step = Duration::from_millis(args.get("step").unwrap_or(0));
    let mut tuner = Tuner::new(builder)
        .gpus(args.get("gpus").unwrap_or(1))
        .most_prefetch(args.get("prefetch").unwrap_or(3))
        .batches(args.get("batches").unwrap_or(batches))
        .step(|_| {
            // A training step on a GPU would be here, for which the CPU waits.
            std::thread::sleep(step);
            datapipes::Ok(())
        });
    if let Some(cores) = args.get("cores") {
        tuner = tuner.cores(cores);
    }
    if let Some(bound) = args.get::<u64>("memory") {
        tuner = tuner.memory(bound << 20);
    }
    let grid = tuner.grid()?;
    println!("{grid}\n");
    let search = tuner.search()?;
    println!("{search}\n");

    let settings = folder.join("settings.json");
    search.save(&settings)?;
    let picture = folder.join("heat.svg");
    std::fs::write(&picture, grid.heat_map())
        .map_err(|error| format!("{}: cannot write: {error}", picture.display()))?;
    if out.is_some() {
        println!(
            "settings in {}, the grid in {}",
            settings.display(),
            picture.display()
        );
    }

    // This line is all that a training program needs.
    let loader = builder().settings_from(&settings)?.build()?;
    let report = args.get::<PathBuf>("report");
    let page = report
        .as_ref()
        .map(|path| loader.report(path))
        .transpose()?;
    let trace = Trace::begin(args.get("trace"), &loader)?;
    let begun = Instant::now();
    let mut count = 0;
    for result in loader.epoch(0).blocking() {
        let (_images, labels) = result?;
        count += labels.len();
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "an epoch with the settings file ({}): {count} images in {seconds:.2} s, {:.0} images/s",
        search.best,
        count as f64 / seconds
    );
    trace.finish()?;
    if let (Some(path), Some(mut page)) = (report, page) {
        page.tuning(&grid);
        page.finish()?;
        println!("a report of it is in {}", path.display());
    }
    Ok(())
}
