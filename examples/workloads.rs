//! Runs a workload and prints one JSON line, in the format of common loader benchmarks, for
//! comparison with other loaders.
//!
//! `cargo run --release --example workloads -- w5|w1|w2|w3|w7 [--workers N] [--batch N] [--epochs
//! N] [--n N] [--order ORDER] [--data DIR] [--src wds|folder] [--url URL] [--keys FILE]
//! [--in-flight N] [--processes N] [--tokenizer FILE] [--stats] [--trace FILE] --json`; options
//! may also be given as `key=value`. A trace is a timeline for `ui.perfetto.dev`.
//!
//! - `w5`: integers → +1 → keep even → shuffle(1000) → batch(100); the cost of an item.
//! - `w1`: bytes of images from tar shards or a folder, page cache warm, batches of 256.
//! - `w2`: read → decode → random resized crop to 224 → flip → f32 CHW normalized → batches of 64;
//!   with `--scaled`, decoded at a lower scale if that suffices; with `--processes`, decoded in
//!   this number of child processes instead of on threads.
//! - `w3`: single remote files, without decoding, in batches of 256: all below `--url` (`http://`,
//!   `s3://`, …; needs `--features http` or `cloud`), or those named in `--keys`, one on each line.
//! - `w7` (`--features text`): shards of JSON lines, gzip → the field `text` → byte-level BPE →
//!   concatenated into rows of 2,048 → batches of 8, in tokens a second. It reads
//!   `DIR/text/docs-*.jsonl.gz` and `--tokenizer`, or `DIR/text/tokenizer.json`; without `--data`
//!   100,000 documents (`--n`) that it makes once. `cargo bench --features text --bench w7` has the
//!   tokenizer alone and other loaders beside it.
//!
//! `w1` and `w2` read `DIR/wds/*.tar` (or `DIR/img/train/CLASS/*.jpg`); the default of `--data` is
//! `$BENCH_DATA`, else the shards that the quickstart example makes.

mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use datapipes::{BoxError, DataLoader, Graph, Order, Tensor};
use datapipes_image::prelude::*;
use datapipes_io::list_files;
use datapipes_io::prelude::*;
use datapipes_io::stores;
use support::args::Args;
use support::trace::Trace;
use support::usage::{cpu_seconds, memory_mb};
use support::{images, shards};

const USAGE: &str = "workloads w5|w1|w2|w3|w7 [--workers N] [--batch N] [--epochs N] [--n N] [--order ORDER] [--data DIR] \
                     [--src wds|folder] [--url URL] [--keys FILE] [--in-flight N] [--processes N] \
                     [--scaled] [--tokenizer FILE] [--stats] [--trace FILE] [--json]";

fn main() -> Result<(), BoxError> {
    datapipes::worker::init();
    let known =
        "workers batch epochs n order data src url keys in-flight processes tokenizer trace";
    let args = Args::parse("json scaled stats", known, USAGE);
    match args.words.first().map(|w| w.to_lowercase()).as_deref() {
        Some("w5") => w5(&args),
        Some("w1") => w1(&args),
        Some("w2") => w2(&args),
        Some("w3") => w3(&args),
        #[cfg(feature = "text")]
        Some("w7") => text::w7(&args),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}

fn w5(args: &Args) -> Result<(), BoxError> {
    let (n, batch) = (
        args.get("n").unwrap_or(1_000_000),
        args.get("batch").unwrap_or(100),
    );
    let graph = Graph::range(0..n)
        .map(|v| v + 1)
        .filter(|v| v % 2 == 0)
        .shuffle(1000)
        .batch(batch);
    let settings = serde_json::json!({ "n": n, "batch": batch });
    let mut sum = 0;
    let mut meter = Meter::new("W5", args, settings);
    meter.run(graph, |batch| {
        sum += batch.iter().sum::<u64>();
        (0, 0)
    })?;
    meter.items = n * meter.epochs_s.len() as u64;
    let even = n / 2;
    assert_eq!(
        sum,
        even * (even + 1) * meter.epochs_s.len() as u64,
        "every item once"
    );
    meter.print()
}

fn w1(args: &Args) -> Result<(), BoxError> {
    let batch = args.get("batch").unwrap_or(256);
    let (data, folder) = data(args)?;
    let images = if folder {
        list_files(data, "**/*.{jpg,jpeg,png}")
            .load_files()
            .map(|file| file.data)
    } else {
        let samples = list_files(data, "**/*.tar").stream_untar().samples();
        samples.try_map(|mut sample| sample.take("jpg"))
    };
    let mut meter = Meter::new(
        "W1",
        args,
        serde_json::json!({ "batch": batch, "src": source(folder) }),
    );
    meter.run(images.batch(batch), |batch| {
        (
            batch.len() as u64,
            batch.iter().map(|b| b.len() as u64).sum(),
        )
    })?;
    meter.print()
}

fn w2(args: &Args) -> Result<(), BoxError> {
    let batch = args.get("batch").unwrap_or(64);
    let (data, folder) = data(args)?;
    let images = if folder {
        images::from_folder(&data, 100_000)?
    } else {
        images::from_shards(&data, 1000, 500)
    };
    let scaled = args.has("scaled");
    let rows = match args.get::<usize>("processes") {
        None => image_rows(images, &scaled),
        Some(processes) => images.in_processes_with(processes, scaled, image_rows),
    };
    let graph = rows.batch(batch).collate();
    let bytes = bytes_below(&data)?;
    let mut params = serde_json::json!({ "batch": batch, "src": source(folder) });
    params["processes"] = args.get::<usize>("processes").into();
    let mut meter = Meter::new("W2", args, params);
    meter.run(graph, |(images, labels)| {
        assert_eq!(images.shape()[1..], [3, 224, 224]);
        (labels.len() as u64, 0)
    })?;
    meter.bytes = bytes * meter.epochs_s.len() as u64;
    meter.print()
}

/// Returns the part of W2 that may run in child processes.
fn image_rows(images: Graph<(Bytes, u32)>, scaled: &bool) -> Graph<(Tensor, u32)> {
    let rows = images::training(224);
    images.image_rows(if *scaled { rows.scaled() } else { rows })
}

fn w3(args: &Args) -> Result<(), BoxError> {
    let batch = args.get("batch").unwrap_or(256);
    let url: String = args.get("url").ok_or("w3 needs --url")?;
    let store = stores::open(&url)?;
    let shown = store.url().to_owned();
    let files = match args.get::<PathBuf>("keys") {
        Some(path) => store.files(std::fs::read_to_string(path)?.lines()),
        None => store.list_files("**"),
    };
    let bytes = files.load_files().map(|file| file.data);
    let mut meter = Meter::new(
        "W3",
        args,
        serde_json::json!({ "batch": batch, "url": shown }),
    );
    meter.run(bytes.batch(batch), |batch| {
        (
            batch.len() as u64,
            batch.iter().map(|b| b.len() as u64).sum(),
        )
    })?;
    meter.print()
}

fn source(folder: bool) -> &'static str {
    if folder { "folder" } else { "wds" }
}

#[cfg(feature = "text")]
mod text {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use datapipes_io::formats::JsonLines;
    use datapipes_text::{HfTokenizer, Pack, Tokenize, Tokenizer, prelude::*};
    use serde::Deserialize;

    use super::support::texts;
    use super::*;

    const LENGTH: usize = 2048;

    #[derive(Deserialize)]
    struct Line {
        text: String,
    }

    pub fn w7(args: &Args) -> Result<(), BoxError> {
        let batch = args.get("batch").unwrap_or(8);
        let folder = match root(args) {
            Some(root) => root.join("text"),
            None => texts::corpus(args.get("n").unwrap_or(100_000))?,
        };
        let json: PathBuf = args
            .get("tokenizer")
            .unwrap_or(folder.join("tokenizer.json"));
        let tokenizer = Arc::new(HfTokenizer::from_file(&json)?);
        let end = tokenizer.token_to_id(texts::END);
        let end = end.ok_or_else(|| format!("the tokenizer has no {}", texts::END))?;

        let lines =
            list_files(&folder, "docs-*.jsonl.gz").stream_as(JsonLines::<Line>::new(), 256 << 10);
        let texts = lines.map(|line| line.text);
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = texts.map({
            let bytes = bytes.clone();
            move |text| {
                bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
                text
            }
        });
        let graph = counted
            .tokenize(Tokenize::new(tokenizer).end(texts::END))
            .pack(Pack::concat(LENGTH))
            .batch(batch)
            .collate();

        let mut meter = Meter::new("W7", args, serde_json::json!({ "batch": batch }));
        let mut tokens = 0;
        meter.run(graph, |batch| {
            let of_documents = batch.document.as_slice::<u32>();
            let filled = of_documents.map_or(0, |d| d.iter().filter(|&&d| d > 0).count());
            tokens += filled as u64;
            let ids = batch.ids.as_slice::<u32>().unwrap_or_default();
            // Padding has other ids or the same one, but is after all documents.
            let ends = ids[..filled].iter().filter(|&&id| id == end).count();
            (ends as u64, 0)
        })?;
        meter.bytes = bytes.load(Ordering::Relaxed);
        let rate = round(tokens as f64 / meter.wall_s, 1);
        meter.more = HashMap::from([
            ("unit", "documents".into()),
            ("tokens", tokens.into()),
            ("tokens_per_s", rate.into()),
        ]);
        meter.print()
    }
}

/// Returns the folder of all data, if one is named.
fn root(args: &Args) -> Option<PathBuf> {
    args.get::<PathBuf>("data")
        .or_else(|| std::env::var_os("BENCH_DATA").map(PathBuf::from))
}

/// Returns the path of the data, and true if it is a folder of images.
fn data(args: &Args) -> Result<(PathBuf, bool), BoxError> {
    let folder = args.get::<String>("src").is_some_and(|src| src == "folder");
    Ok(match root(args) {
        Some(root) if folder => (root.join("img/train"), true),
        Some(root) => (root.join("wds"), false),
        None => (shards::quickstart_shards(2000)?, false),
    })
}

fn bytes_below(path: &std::path::Path) -> Result<u64, BoxError> {
    let files = list_files(path, "**/*.{tar,jpg,jpeg,png}").collect()?;
    Ok(files
        .iter()
        .map(|file| file.path.metadata().map_or(0, |m| m.len()))
        .sum())
}

/// Meter that times epochs and prints the line.
struct Meter {
    workload: &'static str,
    params: serde_json::Value,
    workers: usize,
    order: Order,
    in_flight: Option<usize>,
    trace: Option<PathBuf>,
    epochs: u64,
    stats: bool,
    json: bool,
    startup: Instant,
    items: u64,
    bytes: u64,
    wall_s: f64,
    cpu_s: f64,
    ttfb_s: f64,
    epochs_s: Vec<f64>,
    /// Further fields of the line.
    more: HashMap<&'static str, serde_json::Value>,
}

impl Meter {
    fn new(workload: &'static str, args: &Args, mut params: serde_json::Value) -> Meter {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = args.get("workers").unwrap_or(cores);
        let order: Order = args.get("order").unwrap_or_default();
        params["workers"] = workers.into();
        params["order"] = order.to_string().into();
        let epochs = args.get("epochs").unwrap_or(1);
        params["epochs"] = epochs.into();
        Meter {
            workload,
            params,
            workers,
            order,
            in_flight: args.get("in-flight"),
            trace: args.get("trace"),
            epochs,
            stats: args.has("stats"),
            json: args.has("json"),
            startup: Instant::now(),
            items: 0,
            bytes: 0,
            wall_s: 0.0,
            cpu_s: 0.0,
            ttfb_s: 0.0,
            epochs_s: Vec::new(),
            more: HashMap::new(),
        }
    }

    fn run<T: Send + 'static>(
        &mut self,
        graph: Graph<T>,
        mut count: impl FnMut(&T) -> (u64, u64),
    ) -> Result<(), BoxError> {
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        let mut builder = DataLoader::builder(graph)
            .workers(self.workers)
            .order(self.order);
        if let Some(in_flight) = self.in_flight {
            builder = builder.concurrency(in_flight);
        }
        let loader = builder.build()?;
        let trace = Trace::begin(self.trace.take(), &loader)?;
        for epoch in 0..self.epochs {
            let started = Instant::now();
            for batch in loader.epoch(epoch).blocking() {
                let batch = batch?;
                if self.ttfb_s == 0.0 {
                    self.ttfb_s = begun.elapsed().as_secs_f64();
                }
                let (items, bytes) = count(&batch);
                self.items += items;
                self.bytes += bytes;
            }
            self.epochs_s.push(started.elapsed().as_secs_f64());
        }
        self.wall_s = begun.elapsed().as_secs_f64();
        self.cpu_s = cpu_seconds() - cpu;
        trace.finish()?;
        if self.stats {
            eprintln!(
                "{}\n{}",
                loader.explain(),
                loader.stats().expect("an epoch ran")
            );
        }
        Ok(())
    }

    fn print(&self) -> Result<(), BoxError> {
        let mb = self.bytes as f64 / 1e6;
        let mut line = serde_json::json!({
            "peer": "datapipes",
            "workload": self.workload,
            "params": self.params,
            "items": self.items,
            "mb": round(mb, 3),
            "wall_s": round(self.wall_s, 4),
            "cpu_s": round(self.cpu_s, 3),
            "ttfb_s": round(self.ttfb_s, 4),
            "items_per_s": round(self.items as f64 / self.wall_s, 2),
            "mb_per_s": round(mb / self.wall_s, 2),
            "startup_s": round(self.startup.elapsed().as_secs_f64() - self.wall_s, 3),
            "rss_self_mb": round(memory_mb("VmHWM"), 1),
        });
        for (name, value) in &self.more {
            line[*name] = value.clone();
        }
        if self.epochs_s.len() > 1 {
            line["epochs_s"] = self.epochs_s.iter().map(|s| round(*s, 4)).collect();
        }
        if self.json {
            println!("{line}");
        } else {
            println!(
                "{}: {} items in {:.3} s, {:.1}/s",
                self.workload,
                self.items,
                self.wall_s,
                self.items as f64 / self.wall_s
            );
        }
        Ok(())
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}
