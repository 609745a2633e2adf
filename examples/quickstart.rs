//! Turns tar shards of JPEGs into shuffled, augmented, batched tensors, on all cores; then prints
//! the plan and the figures.
//!
//! `cargo run --release --example quickstart` makes 4000 photo-like images (once, about 450 MB in
//! a cache folder) and runs an epoch over them. `cargo run --release --example quickstart -- PATH`
//! runs on your own tar shards, or on a folder with a folder of images for each class.
//!
//! Options: `--epochs N`, `--batch N`, `--workers N`, `--order strict|bounded(N)|arrival`, `--size
//! PIXELS`, `--seed N`, `--images N` (number of pictures to make), `--skip N` (maximum number of
//! bad images to skip), `--progress` (a progress bar), `--report FILE` (a page for a browser with
//! what limits the loader), `--svg DIR` (its pictures as files of their own, for papers), `--trace FILE`
//! (a timeline for `ui.perfetto.dev`, compressed if the name ends in `.gz`).
//!
//! The program also answers `datapipes tune --out settings.json -- target/release/examples/quickstart`.

mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use datapipes::{BoxError, DataLoader, OnError, Order};
use support::args::Args;
use support::trace::Trace;
use support::{images, shards};

const USAGE: &str = "quickstart [PATH] [--epochs N] [--batch N] [--workers N] [--order strict|bounded(N)|arrival] \
                     [--size PIXELS] [--seed N] [--images N] [--skip N] [--progress] [--report FILE] [--svg DIR] \
                     [--trace FILE]";

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let known = "epochs batch workers order size seed images skip report svg trace";
    let args = Args::parse("progress", known, USAGE);
    let (batch, size) = (
        args.get("batch").unwrap_or(64),
        args.get("size").unwrap_or(224),
    );
    let path = match args.words.first() {
        Some(path) => PathBuf::from(path),
        None => shards::quickstart_shards(args.get("images").unwrap_or(4000).max(1))?,
    };

    // Describe: the processing of an item, without threads.
    let encoded = match images::has_shards(&path)? {
        true => images::from_shards(&path, 10_000, 1000),
        false => images::from_folder(&path, 1_000_000)?,
    };
    let graph = images::training_batches(encoded, size, batch);

    // Check and plan. Nothing has been read yet.
    let mut builder = DataLoader::builder(graph)
        .seed(args.get("seed").unwrap_or(42))
        .on_error(args.get("skip").map_or_else(OnError::fail, OnError::skip));
    if let Some(workers) = args.get("workers") {
        builder = builder.workers(workers);
    }
    let loader = builder
        .order(args.get::<Order>("order").unwrap_or_default())
        .build()?;
    if loader.answer_tune()? {
        return Ok(());
    }

    let trace = Trace::begin(args.get("trace"), &loader)?;
    let pictures = args.get::<PathBuf>("svg");
    let report = args.get::<PathBuf>("report");
    let report = match (report, &pictures) {
        // The pictures are those of a page, which is written beside them.
        (None, Some(folder)) => {
            std::fs::create_dir_all(folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
            Some(folder.join("report.html"))
        }
        (report, _) => report,
    };
    let mut page = report
        .as_ref()
        .map(|path| loader.report(path))
        .transpose()?;
    if let (Some(page), Some(folder)) = (&mut page, &pictures) {
        page.svgs(folder)?;
    }

    // Run and consume.
    for epoch in 0..args.get("epochs").unwrap_or(1) {
        let batches = loader.epoch(epoch).blocking();
        let batches: Box<dyn Iterator<Item = _>> = if args.has("progress") {
            Box::new(batches.progress())
        } else {
            Box::new(batches)
        };
        let begun = Instant::now();
        let (mut count, mut first, mut mean) = (0, None, 0.0);
        for result in batches {
            let (images, labels) = result?;
            first.get_or_insert_with(|| begun.elapsed());
            // A training step would be here. Reading one value of each image shows that the
            // images are there.
            let pixels = images.as_slice::<f32>()?;
            mean += pixels
                .iter()
                .step_by(3 * (size * size) as usize)
                .sum::<f32>();
            count += labels.len();
        }
        let wall = begun.elapsed().as_secs_f64();
        println!(
            "epoch {epoch}: {count} images in {wall:.2} s, {:.0} images/s; first batch after {:.0} ms; mean of the first \
             pixels {:.3}",
            count as f64 / wall,
            first.unwrap_or_default().as_secs_f64() * 1e3,
            mean / count.max(1) as f32
        );
    }
    trace.finish()?;
    if let (Some(path), Some(page)) = (&report, page) {
        page.finish()?;
        println!(
            "a report of what limits the loader is in {}",
            path.display()
        );
    }
    println!("\n{}", loader.explain());
    if let Some(stats) = loader.stats() {
        for skipped in &stats.skipped_items {
            println!("skipped: {}", skipped.error);
        }
        println!("{stats}");
    }
    Ok(())
}
