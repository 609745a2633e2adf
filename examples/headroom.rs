//! Measures what faster loading could give two training loops over the same images: one whose step
//! takes longer than a batch takes to load, and one whose step is short.
//!
//! `cargo run --release --no-default-features --example headroom` makes 200 photo-like images (once,
//! about 22 MB in a cache folder). `cargo run --release --example headroom -- PATH` runs on your own
//! tar shards, or on a folder with a folder of images for each class.
//!
//! Options: `--slow MS` and `--fast MS` (time of a step of each loop, 40 and 2), `--steps N` (to
//! measure, 30), `--batch N`, `--size PIXELS`, `--workers N`, `--trace FILE` (for `ui.perfetto.dev`).

mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use datapipes::loader::{Headroom, PartKind};
use datapipes::{BoxError, DataLoader};
use support::args::Args;
use support::trace::Trace;
use support::{images, shards};

const USAGE: &str = "headroom [PATH] [--slow MS] [--fast MS] [--steps N] [--batch N] [--size PIXELS] [--workers N] \
                     [--trace FILE]";

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let known = "slow fast steps batch size workers trace";
    let args = Args::parse("", known, USAGE);
    let path = match args.words.first() {
        Some(path) => PathBuf::from(path),
        None => shards::quickstart_shards(200)?,
    };
    let encoded = match images::has_shards(&path)? {
        true => images::from_shards(&path, 10_000, 100),
        false => images::from_folder(&path, 1_000_000)?,
    };
    let (size, batch) = (args.get("size"), args.get("batch"));
    let graph = images::training_batches(encoded, size.unwrap_or(224), batch.unwrap_or(8));
    let mut builder = DataLoader::builder(graph).seed(42);
    if let Some(workers) = args.get("workers") {
        builder = builder.workers(workers);
    }
    let loader = builder.build()?;
    let trace = Trace::begin(args.get("trace"), &loader)?;

    for (name, time) in [("slow", 40), ("fast", 2)] {
        let step = Duration::from_millis(args.get(name).unwrap_or(time));
        let headroom = loader.headroom(args.get("steps").unwrap_or(30), |_batch| {
            // A training step on a GPU would be here, for which the CPU waits.
            std::thread::sleep(step);
            datapipes::Ok(())
        })?;
        println!("the {name} consumer, with a step of {step:?}:\n{headroom}");
        println!("{}\n", meaning(&headroom));
    }
    trace.finish()?;
    Ok(())
}

/// Returns what the figures mean for the one who trains.
fn meaning(headroom: &Headroom) -> String {
    let gain = headroom.gain();
    let mut parts = headroom.parts.iter();
    match parts.find(|part| part.kind != PartKind::Consumer) {
        Some(slowest) if gain >= 1.1 => format!(
            "=> The step waits for data, {:.0} % of the time: begin with what is the slowest, {}.",
            100.0 * (1.0 - 1.0 / gain),
            slowest.part
        ),
        _ => "=> The data are there when the step wants them: faster loading would give little."
            .to_owned(),
    }
}
