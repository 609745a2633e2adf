//! A training run that is killed at random batches, resumes each time, and has seen exactly the
//! same batches as an uninterrupted run.
//!
//! `cargo run --release --no-default-features --example resume [--n SAMPLES] [--kills N] [--every
//! N]`
//!
//! The run is a child process, which this process starts again whenever it has ended. It logs each
//! batch that it was given, saves its checkpoint every few batches, and aborts at a random batch.
//! Each time it has another number of workers.

mod support;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Instant, SystemTime};

use datapipes::{BoxError, Checkpoint, DataLoader, Graph};
use support::args::Args;

const USAGE: &str = "resume [--n SAMPLES] [--kills N] [--every N]";

/// Returns a graph of archives of some members each, shuffled, decoded with random numbers, in
/// batches.
fn graph(samples: u64) -> Graph<Vec<u64>> {
    Graph::range(0..samples / 100)
        .shuffle(100)
        .flat_map(|archive| (0..100).map(move |member| archive * 100 + member))
        .shuffle(2000)
        .filter(|sample| sample % 13 != 5)
        .map_with_rng(|sample, rng| sample * 1000 + rng.below(1000))
        .batch(32)
}

fn loader(samples: u64, workers: usize) -> Result<DataLoader<Vec<u64>>, BoxError> {
    Ok(DataLoader::builder(graph(samples))
        .seed(42)
        .workers(workers)
        .resumable()
        .build()?)
}

/// Formats a batch as a line.
fn line(batch: &[u64]) -> String {
    let numbers: Vec<String> = batch.iter().map(u64::to_string).collect();
    numbers.join(" ") + "\n"
}

fn main() -> ExitCode {
    let args = Args::parse("", "n kills every run-in die-at workers", USAGE);
    let samples = args.get("n").unwrap_or(100_000);
    let every = args.get("every").unwrap_or(25);
    let done = match args.get::<String>("run-in") {
        Some(folder) => {
            let (workers, die_at) = (args.get("workers").unwrap_or(2), args.get("die-at"));
            train(Path::new(&folder), samples, every, workers, die_at)
        }
        None => supervise(samples, every, args.get("kills").unwrap_or(6)),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs from the existing checkpoint, or from the beginning.
fn train(
    folder: &Path,
    samples: u64,
    every: u64,
    workers: usize,
    die_at: Option<u64>,
) -> Result<ExitCode, BoxError> {
    let (state_file, log_file) = (folder.join("state"), folder.join("log"));
    let loader = loader(samples, workers)?;
    let (mut epoch, behind) = match state_file.exists() {
        true => {
            let state = Checkpoint::load(&state_file)?;
            (loader.resume(&state)?.blocking(), state.delivered())
        }
        false => (loader.epoch(0).blocking(), 0),
    };
    // Batches after the checkpoint come again, like the steps of a model that were not saved.
    let log = fs::read_to_string(&log_file).unwrap_or_default();
    let kept: String = log.split_inclusive('\n').take(behind as usize).collect();
    fs::write(&log_file, kept)?;
    let mut log = OpenOptions::new().append(true).open(&log_file)?;
    let mut step = behind;
    while let Some(batch) = epoch.next() {
        log.write_all(line(&batch?).as_bytes())?;
        step += 1;
        if step.is_multiple_of(every) {
            epoch.checkpoint()?.save(&state_file)?;
        }
        if die_at == Some(step - behind) {
            // Ends like SIGKILL: nothing is closed, nothing is reported.
            std::process::abort();
        }
    }
    epoch.checkpoint()?.save(&state_file)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the run again until it is complete, and checks the batches that it has seen.
fn supervise(samples: u64, every: u64, kills: u64) -> Result<ExitCode, BoxError> {
    let mut whole = String::new();
    for batch in loader(samples, 0)?.epoch(0).blocking() {
        whole += &line(&batch?);
    }
    let batches = whole.lines().count() as u64;
    println!("{samples} samples, {batches} batches; a state every {every} batches");

    let folder = tempfile::tempdir()?;
    let mut entropy = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)?
        .as_nanos() as u64;
    for run in 0.. {
        let workers = [2, 0, 1, 4][run as usize % 4];
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("--run-in")
            .arg(folder.path())
            .args(["--n", &samples.to_string()]);
        command.args([
            "--every",
            &every.to_string(),
            "--workers",
            &workers.to_string(),
        ]);
        if run < kills {
            entropy = entropy
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let most = (batches / kills).max(1);
            command.args(["--die-at", &(1 + (entropy >> 33) % most).to_string()]);
        }
        // The message of an abort is not needed.
        let begun = Instant::now();
        let output = command.output()?;
        let state = Checkpoint::load(folder.path().join("state")).ok();
        let place = state.as_ref().map_or(0, Checkpoint::delivered);
        let size = state.as_ref().map_or(0, |state| state.to_bytes().len());
        let seen = fs::read_to_string(folder.path().join("log"))?
            .lines()
            .count();
        let how = if output.status.success() {
            "came to the end"
        } else {
            "was killed"
        };
        println!(
            "run {run}, {workers} workers: {how} after {:.0?} at batch {seen}; the state ({size} bytes) is of batch {place}",
            begun.elapsed()
        );
        if output.status.success() {
            break;
        }
        if output.status.code().is_some() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
    }
    let seen = fs::read_to_string(folder.path().join("log"))?;
    if seen != whole {
        println!("the batches are NOT those of a run in one go");
        return Ok(ExitCode::FAILURE);
    }
    println!("all {batches} batches are those of a run in one go, one by one");
    Ok(ExitCode::SUCCESS)
}
