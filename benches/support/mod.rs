//! Helpers of the benches: paired runs, medians, ratios, peers.
#![allow(dead_code, unused_imports, reason = "each bench uses its part")]
#![allow(
    clippy::duplicate_mod,
    reason = "some benches use the examples' modules, too"
)]

#[path = "../../examples/support/archive.rs"]
mod archive;
pub mod gpu;
pub mod pictures;
#[path = "../../examples/support/usage.rs"]
pub mod usage;

use std::borrow::Borrow;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

pub use archive::write_tar;
use datapipes::DataLoader;
pub use usage::{cpu_seconds, memory_mb};

/// A case to time. Its closure returns the duration of the part that counts.
pub struct Case<'a> {
    pub name: String,
    pub run: Box<dyn FnMut() -> Duration + 'a>,
}

/// Makes a case that times the whole of a closure.
pub fn case<'a, R>(name: impl Into<String>, mut run: impl FnMut() -> R + 'a) -> Case<'a> {
    let run = move || {
        let begun = Instant::now();
        black_box(run());
        begun.elapsed()
    };
    Case {
        name: name.into(),
        run: Box::new(run),
    }
}

/// Makes a case that times one epoch, after an epoch that starts threads and processes.
pub fn again<'a, T: Send + 'static>(
    name: &str,
    loader: impl Borrow<DataLoader<T>> + 'a,
) -> Case<'a> {
    let mut epoch = 0;
    case(name, move || {
        epoch += 1;
        let items = loader.borrow().epoch(epoch).blocking();
        items.for_each(|item| drop(black_box(item.expect("no failures"))));
    })
}

/// Runs the cases in turn, A B C A B C …, so that a change of the machine's speed affects all of
/// them. Prints the median of each case and its ratio to the first, as the median of the ratios of
/// paired runs. One run does `units` of work.
pub fn compare(
    title: &str,
    units: f64,
    unit: &str,
    rounds: usize,
    mut cases: Vec<Case<'_>>,
) -> Vec<f64> {
    let times = seconds(rounds, &mut cases);
    println!("\n{title} (medians of {rounds} rounds in turn; ratio is time over the first line's)");
    println!(
        "{:<52} {:>12} {:>16} {:>8}",
        "",
        "time",
        format!("{unit}/s"),
        "ratio"
    );
    let base = times[0].clone();
    let mut ratios = Vec::new();
    for (case, times) in cases.iter().zip(&times) {
        let ratio = median(times.iter().zip(&base).map(|(a, b)| a / b).collect());
        let time = median(times.clone());
        println!(
            "{:<52} {:>9.3} ms {:>16.0} {:>8.2}",
            case.name,
            time * 1e3,
            units / time,
            ratio
        );
        ratios.push(ratio);
    }
    ratios
}

/// Runs the cases in turn, each once before that, and returns the seconds of each round.
pub fn seconds(rounds: usize, cases: &mut [Case<'_>]) -> Vec<Vec<f64>> {
    for case in &mut *cases {
        (case.run)();
    }
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            times.push((case.run)().as_secs_f64());
        }
    }
    times
}

/// Prints one line a case: the figure, what it is compared with, their ratio, and the goal of that.
/// As JSON if the program was started with `--json`.
pub struct Lines {
    json: bool,
    unit: &'static str,
}

impl Lines {
    /// Begins lines of figures in this unit.
    pub fn new(title: &str, unit: &'static str) -> Lines {
        let json = std::env::args().any(|arg| arg == "--json");
        if !json {
            println!(
                "{title:<44} {unit:>10} {:>26} {:>10} {:>6} {:>6}",
                "beside", unit, "ratio", "goal"
            );
        }
        Lines { json, unit }
    }

    /// Says why a bench prints no lines.
    pub fn skip(why: &str) {
        match std::env::args().any(|arg| arg == "--json") {
            true => println!("{}", serde_json::json!({ "skipped": why })),
            false => println!("skipped: {why}"),
        }
    }

    /// Times the second of the cases beside each of the others, with so many items in a run, and
    /// returns its rate. Goals are those beside the first, and beside peers.
    pub fn beside(
        &self,
        name: &str,
        items: f64,
        rounds: usize,
        cases: &mut [Case<'_>],
        (first, peers): (f64, f64),
    ) -> f64 {
        let times = seconds(rounds, cases);
        let rate = |times: &[f64]| items / median(times.to_vec());
        for (place, (other, beside)) in cases.iter().zip(&times).enumerate() {
            let goal = if place == 0 { first } else { peers };
            let ratio = median(beside.iter().zip(&times[1]).map(|(b, a)| b / a).collect());
            if place != 1 {
                self.print(
                    name,
                    rate(&times[1]),
                    (&other.name, rate(beside)),
                    ratio,
                    goal,
                );
            }
        }
        rate(&times[1])
    }

    /// Prints a line.
    pub fn print(&self, case: &str, is: f64, (name, other): (&str, f64), ratio: f64, goal: f64) {
        let unit = self.unit;
        if self.json {
            let line = serde_json::json!({
                "case": case, "unit": unit, "is": is, "beside": name, "other": other,
                "ratio": ratio, "goal": goal,
            });
            return println!("{line}");
        }
        let sign = if ratio >= goal { "" } else { "  MISS" };
        println!("{case:<44} {is:>10.0} {name:>26} {other:>10.0} {ratio:>6.2} {goal:>6.2}{sign}");
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints whether a figure reaches its bar. Bars are goals of the project; a missed bar is no
/// failure, since machines differ.
pub fn bar(what: &str, is: f64, wanted: f64, at_least: bool) {
    let good = if at_least { is >= wanted } else { is <= wanted };
    let sign = if at_least { "≥" } else { "≤" };
    println!(
        "{} {what}: {is:.2} (wanted {sign} {wanted})",
        if good { "ok  " } else { "MISS" }
    );
}

/// Runs a peer of `benches/peers/` with the interpreter that `DATAPIPES_PEERS` names (`python3`
/// otherwise), and returns the seconds that it reports. If the peer is not installed, prints the
/// reason and returns `None`.
pub fn peer(script: &str, args: &[&str]) -> Option<f64> {
    peer_line(script, args)?.trim().parse().ok()
}

/// Runs a peer that reports CPU seconds as well: returns wall time and CPU time. See [`peer`].
pub fn peer_figures(script: &str, args: &[&str]) -> Option<(f64, f64)> {
    let line = peer_line(script, args)?;
    let (wall, cpu) = line.trim().split_once(' ')?;
    Some((wall.parse().ok()?, cpu.parse().ok()?))
}

fn peer_line(script: &str, args: &[&str]) -> Option<String> {
    let python = std::env::var("DATAPIPES_PEERS").unwrap_or_else(|_| "python3".to_owned());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/").to_owned() + script;
    let output = Command::new(python).arg(path).args(args).output();
    let text = match &output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            eprintln!(
                "peer {script}: did not run ({})",
                stderr.lines().last().unwrap_or_default()
            );
            return None;
        }
        Err(error) => {
            eprintln!("peer {script}: did not run ({error})");
            return None;
        }
    };
    text.lines().last().map(str::to_owned)
}

/// Makes a case of a peer, if the peer is installed.
pub fn peer_case(name: &str, script: &'static str, args: Vec<String>) -> Option<Case<'static>> {
    let run = move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        peer(script, &args).map(Duration::from_secs_f64)
    };
    run()?;
    Some(Case {
        name: name.to_owned(),
        run: Box::new(move || run().unwrap_or(Duration::MAX)),
    })
}
