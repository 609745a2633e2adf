//! Cost of looking: epochs while a trace of each level or a report is written, and while the figures
//! are read ten times a second, beside the same epochs without. Images (W2), and integers at their cheapest (W5).
//!
//! The counters are always on, so there is no epoch without. Their cost has an upper bound: that of
//! nodes which do nothing but be counted, timed and called.
//!
//! Times are medians. The cost is that in CPU time, the least of all rounds, which other work on the
//! machine disturbs less. The goal of a trace of morsels is 2 % of W2.
//!
//! The shards are those of `$BENCH_DATA/wds`, or those that the quickstart example makes. That the
//! counters do not become more expensive is held by `cargo bench -p datapipes --bench instructions`.

#[path = "../examples/support/mod.rs"]
mod examples;
mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes::loader::{TraceLevel, TraceSummary};
use datapipes::{Arity, BoxError, Context, DataLoader, Graph, Hints, Items, Pipe};
use examples::{images, shards};
use support::{cpu_seconds, median};

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

/// A kind of epoch: its name, and what runs one.
type Case<'a> = (String, Box<dyn FnMut() + 'a>);

fn case<'a>(name: &str, run: impl FnMut() + 'a) -> Case<'a> {
    (name.to_owned(), Box::new(run))
}

/// Runs the cases in turn, prints what each costs beside the first, and returns their CPU time as
/// multiples of the first's.
fn compare(
    title: &str,
    (units, unit): (f64, &str),
    rounds: usize,
    mut cases: Vec<Case<'_>>,
) -> Vec<f64> {
    let mut times = vec![[Vec::new(), Vec::new()]; cases.len()];
    // Each runs once before it counts.
    for round in 0..=rounds {
        for ((_, run), [wall, cpu]) in cases.iter_mut().zip(&mut times) {
            let (begun, used) = (Instant::now(), cpu_seconds());
            run();
            if round > 0 {
                wall.push(begun.elapsed().as_secs_f64());
                cpu.push(cpu_seconds() - used);
            }
        }
    }
    println!("\n{title} ({rounds} rounds in turn)");
    println!(
        "{:<40} {:>12} {:>14} {:>8} {:>12} {:>9}",
        "",
        "time",
        format!("{unit}/s"),
        "ratio",
        "CPU time",
        "cost"
    );
    let least = |cpu: &[f64]| cpu.iter().copied().fold(f64::INFINITY, f64::min);
    let [first, first_cpu] = times[0].clone();
    let figures = cases.iter().zip(times);
    let print = |((name, _), [wall, cpu]): (&Case<'_>, [Vec<f64>; 2])| {
        let ratio = median(
            wall.iter()
                .zip(&first)
                .map(|(is, first)| is / first)
                .collect(),
        );
        let (time, cpu) = (median(wall), least(&cpu));
        let of_cpu = cpu / least(&first_cpu);
        println!(
            "{name:<40} {:>9.1} ms {:>14.0} {ratio:>8.2} {:>9.1} ms {:>7.1} %",
            time * 1e3,
            units / time,
            cpu * 1e3,
            (of_cpu - 1.0) * 1e2
        );
        of_cpu
    };
    figures.map(print).collect()
}

/// Runs an epoch of each kind in turn and prints their ratios. The graph has this many idle nodes
/// where it has most items.
fn measure<T: Send + 'static>(
    title: &str,
    units: (f64, &str),
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
        let run = move || {
            let trace = traced.trace_at(*level, path);
            let trace = trace.expect("a new file");
            run(traced);
            *written = trace.finish().expect("a file that can be written");
        };
        case(&format!("a trace of {name}, compressed"), run)
    });
    let mut cases = vec![
        case("without", || run(&plain)),
        case(&format!("{IDLE} nodes more that do nothing"), || {
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
    let costs = compare(title, units, rounds, cases);
    let nodes = plain.stats().map_or(0, |stats| stats.nodes.len());
    let share = (costs[1] - 1.0) / IDLE as f64 * nodes as f64;
    println!(
        "counters of its {nodes} nodes: at most {:.2} % of the CPU time (goal {goal} %)",
        1e2 * share
    );
    for (((name, _), written), cost) in LEVELS.iter().zip(written).zip(&costs[2..]) {
        let TraceSummary { events, lost, .. } = written;
        println!(
            "{events} events in a trace of {name}, {lost} lost, {:.1} % of the CPU time",
            1e2 * (cost - 1.0)
        );
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
