//! Cost of looking: epochs while a trace of each level or a report is written, and while the figures
//! are read ten times a second, beside the same epochs without. Images (W2), and integers at their cheapest (W5).
//!
//! The counters are always on, so there is no epoch without. Their cost has an upper bound: that of
//! nodes which do nothing but be counted, timed and called.
//!
//! The shards are those of `$BENCH_DATA/wds`, or those that the quickstart example makes. That the
//! counters do not become more expensive is held by `cargo bench --bench instructions`.

#[path = "../examples/support/mod.rs"]
mod examples;
mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datapipes::loader::{TraceLevel, TraceSummary};
use datapipes::{Arity, BoxError, Context, DataLoader, Graph, Hints, Items, Pipe};
use examples::{images, shards};
use support::{case, compare};

/// Levels of a trace, from few events to many; see [`TraceLevel`].
const LEVELS: [(&str, TraceLevel); 3] = [
    ("batches", TraceLevel::Batch),
    ("morsels", TraceLevel::Morsel),
    ("items", TraceLevel::Item),
];

/// Number of nodes that do nothing, in an epoch that has more of them.
const IDLE: usize = 16;

/// Does nothing.
struct Idle;

impl<T: Send + 'static> Pipe<T> for Idle {
    type Out = T;

    fn apply(&self, input: Items<T>, _: &Context) -> Items<T> {
        input
    }
    fn hints(&self) -> Hints {
        let hints = Hints::shardable().arity(Arity::One);
        hints.weighs_by_type(true)
    }
}

fn with_idle<T: Send + 'static>(graph: Graph<T>, nodes: usize) -> Graph<T> {
    (0..nodes).fold(graph, |graph, _| graph.pipe(Idle))
}

/// Runs an epoch of each kind in turn and prints their ratios. The graph has this many idle nodes
/// where it has most items.
fn measure<T: Send + 'static>(
    title: &str,
    (units, unit): (f64, &str),
    rounds: usize,
    goal: u32,
    graph: impl Fn(usize) -> Graph<T>,
) -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let loader_with = |idle| DataLoader::builder(graph(idle)).workers(2).build();
    let loader = || loader_with(0);
    let (plain, traced, watched, reported) = (loader()?, loader()?, loader()?, loader()?);
    let counted = loader_with(IDLE)?;
    let run = |loader: &DataLoader<T>| {
        let batches = loader.epoch(0).blocking();
        batches
            .map(|batch| batch.expect("good data"))
            .for_each(drop);
    };
    let mut written = LEVELS.map(|_| TraceSummary::default());
    let (traced, path) = (&traced, &folder.path().join("epoch.json.gz"));
    let traces = LEVELS.iter().zip(&mut written);
    let traces = traces.map(|((name, level), written)| {
        case(format!("a trace of {name}, compressed"), move || {
            let trace = traced.trace_at(*level, path);
            let trace = trace.expect("a new file");
            run(traced);
            *written = trace.finish().expect("a file that can be written");
        })
    });
    let mut cases = vec![
        case("without", || run(&plain)),
        case(format!("{IDLE} nodes more that do nothing"), || {
            run(&counted)
        }),
    ];
    cases.extend(traces);
    cases.extend([
        case("a report", || {
            let report = reported.report(folder.path().join("report.html"));
            let report = report.expect("a new file");
            run(&reported);
            report.finish().expect("a file that can be written");
        }),
        case("figures read ten times a second", || {
            let ended = AtomicBool::new(false);
            /// Ends the watcher, also if the epoch panics.
            struct End<'a>(&'a AtomicBool);
            impl Drop for End<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            std::thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        std::hint::black_box(watched.stats());
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                });
                let end = End(&ended);
                run(&watched);
                drop(end);
                watcher.thread().unpark();
            });
        }),
    ]);
    let ratios = compare(title, units, unit, rounds, cases);
    let nodes = plain.stats().map_or(0, |stats| stats.nodes.len());
    let share = (ratios[1] - 1.0) / IDLE as f64 * nodes as f64;
    println!(
        "counters of its {nodes} nodes: at most {:.1} % of the time (goal {goal} %)",
        1e2 * share
    );
    for ((name, _), TraceSummary { events, lost, .. }) in LEVELS.iter().zip(written) {
        println!("{events} events in a trace of {name}, {lost} lost");
    }
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let dir = match std::env::var_os("BENCH_DATA") {
        Some(data) => PathBuf::from(data).join("wds"),
        None => shards::quickstart_shards(2000)?,
    };
    let encoded = || images::from_shards(&dir, 1000, 500);
    measure("W2: images", (2000.0, "images"), 7, 1, |idle| {
        images::training_batches(with_idle(encoded(), idle), 224, 64)
    })?;
    measure("W5: integers", (1e7, "items"), 11, 3, |idle| {
        let even = with_idle(Graph::range(0..10_000_000), idle)
            .map(|v| v + 1)
            .filter(|v| v % 2 == 0);
        even.shuffle(1000).batch(100)
    })
}
