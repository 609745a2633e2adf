//! Instructions per item, on one thread, so that a change that makes a hot path slower shows on any
//! machine.
//!
//! Each case runs in a process of its own under `valgrind --tool=callgrind`, once with `n` items
//! and once with `2n`: the difference is the cost of `n` items without the cost of starting. The
//! figures depend on the compiler and hardly on the machine; the budgets are in `instructions.txt`.
//!
//! - `cargo bench -p datapipes --bench instructions`: prints them beside the budgets.
//! - `… -- --check`: fails if one is exceeded by more than the tolerance, or has no budget. For the
//!   gate.
//! - `… -- --bless`: writes them into `instructions.txt`. A change that needs this says why in its
//!   commit.
//! - `… -- shuffle`: only the cases whose name has this in it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::process::{Command, ExitCode};

use datapipes::loader::Builder;
use datapipes::{DataLoader, Graph, Items};
use futures::StreamExt;

/// Share by which a case may exceed its budget.
const TOLERANCE: f64 = 0.10;
const BUDGETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");

/// A name, the number of items to start from, and the work for a given number of items. A new case
/// needs one line here, a function below for its work, and one `--bless`.
const CASES: &[Case] = &[
    ("range", 100_000, |n| drain(range(n))),
    ("map", 100_000, |n| drain(range(n).map(|v| v + 1))),
    ("filter", 100_000, |n| {
        drain(range(n).filter(|v| v % 2 == 0))
    }),
    ("map_random", 50_000, |n| {
        drain(range(n).map_with_rng(|v, rng| v + rng.below(10)))
    }),
    ("shuffle_1000", 50_000, |n| drain(range(n).shuffle(1000))),
    ("batch_100", 100_000, |n| drain(range(n).batch(100))),
    ("through", 50_000, |n| drain(range(n).through(item_by_item))),
    ("w5", 100_000, |n| drain(w5(n))),
    // The cost of being resumable.
    ("w5_resumable", 100_000, |n| {
        run(DataLoader::builder(w5(n)).resumable())
    }),
];

type Case = (&'static str, u64, fn(u64));

fn range(n: u64) -> Graph<u64> {
    Graph::range(0..black_box(n))
}

/// A user-written pipe: a function from stream to stream that maps each item.
fn item_by_item(
    input: Items<u64>,
) -> impl futures::Stream<Item = datapipes::Result<datapipes::Item<u64>>> {
    input.map(|item| item.map(|item| item.map(|v| v + 1)))
}

fn w5(n: u64) -> Graph<Vec<u64>> {
    range(n)
        .map(|v| v + 1)
        .filter(|v| v % 2 == 0)
        .shuffle(1000)
        .batch(100)
}

fn drain<T: Send + 'static>(graph: Graph<T>) {
    run(DataLoader::builder(graph));
}

fn run<T: Send + 'static>(builder: Builder<T>) {
    let loader = builder.workers(0).build().expect("a right graph");
    for item in loader.epoch(0).blocking() {
        black_box(item.expect("integers do not fail"));
    }
}

fn main() -> ExitCode {
    // Cargo adds `--bench`, which is no argument of ours.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    if let [hidden, name, items] = &args[..]
        && hidden == "case"
    {
        let (_, _, run) = CASES
            .iter()
            .find(|(known, ..)| known == name)
            .expect("the parent knows the cases");
        run(items.parse().expect("the parent gives a number"));
        return ExitCode::SUCCESS;
    }
    let (flags, wanted): (Vec<_>, Vec<_>) = args.iter().partition(|arg| arg.starts_with("--"));
    if let Some(unknown) = flags
        .iter()
        .find(|flag| !matches!(flag.as_str(), "--check" | "--bless"))
    {
        eprintln!("`{unknown}` is no option: --check or --bless");
        return ExitCode::FAILURE;
    }
    let (check, bless) = (
        flags.iter().any(|flag| *flag == "--check"),
        flags.iter().any(|flag| *flag == "--bless"),
    );
    if cfg!(debug_assertions) {
        println!("skipped: this build is not optimised; use `cargo bench`");
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return ExitCode::SUCCESS;
    }

    let mut budgets = budgets();
    let mut problems = Vec::new();
    println!(
        "{:<20} {:>12} {:>12} {:>8}",
        "instructions an item", "is", "budget", "ratio"
    );
    for &(name, items, _) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let is = match count(name, 2 * items)
            .and_then(|two| Ok((two - count(name, items)?) / items as f64))
        {
            Ok(is) => is,
            Err(problem) => {
                problems.push(format!("{name}: {problem}"));
                continue;
            }
        };
        match budgets.get(name) {
            Some(budget) => println!("{name:<20} {is:>12.1} {budget:>12.1} {:>8.2}", is / budget),
            None => println!("{name:<20} {is:>12.1} {:>12} {:>8}", "-", "-"),
        }
        match budgets.get(name) {
            _ if bless => drop(budgets.insert(name.to_owned(), is)),
            None => problems.push(format!(
                "{name}: no budget in benches/instructions.txt; add it by `--bless`"
            )),
            Some(budget) if is > budget * (1.0 + TOLERANCE) => problems.push(format!(
                "{name}: {is:.1} instructions an item, {budget:.1} allowed (and {:.0} % more)",
                TOLERANCE * 100.0
            )),
            Some(_) => {}
        }
    }
    if bless && problems.is_empty() {
        write(&budgets);
    }
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    if (check || bless) && !problems.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Returns the instructions of a whole process that runs one case.
fn count(name: &str, items: u64) -> Result<f64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--error-exitcode=1",
        ])
        .arg(this)
        .args(["case", name, &items.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    let log = String::from_utf8_lossy(&output.stderr);
    let collected = log
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    match collected {
        Some(instructions) if output.status.success() => Ok(instructions),
        _ => Err(format!(
            "valgrind could not run it ({}):\n{log}",
            output.status
        )),
    }
}

fn budgets() -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(BUDGETS).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(char::is_whitespace))
        .map(|(name, number)| {
            (
                name.to_owned(),
                number.trim().parse().expect("a budget is a number"),
            )
        })
        .collect()
}

fn write(budgets: &BTreeMap<String, f64>) {
    let mut text = "# Instructions an item; see instructions.rs. Written by `cargo bench -p datapipes --bench instructions -- --bless`.\n"
        .to_owned();
    for (name, ..) in CASES {
        if let Some(budget) = budgets.get(*name) {
            writeln!(text, "{name:<20} {budget:.1}").expect("a string takes what it gets");
        }
    }
    std::fs::write(BUDGETS, text).expect("the budgets can be written");
}

/// A clock for this process that stands still, except for the 25 ns that reading it takes.
///
/// The library derives the number of items it takes at once from measured time, and valgrind makes
/// everything about fifty times slower. With this clock every run takes the same decisions, which
/// are those of a fast machine.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod clock {
    use std::sync::atomic::{AtomicI64, Ordering};

    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }

    static NOW_NS: AtomicI64 = AtomicI64::new(1_000_000_000);

    // SAFETY: has the name and the signature of the C library's function, and stands before it for
    // this executable.
    #[unsafe(no_mangle)]
    extern "C" fn clock_gettime(_clock: i32, time: *mut Time) -> i32 {
        let now = NOW_NS.fetch_add(25, Ordering::Relaxed);
        // SAFETY: the caller passes a valid place for the time, as the C library's documentation
        // requires.
        unsafe {
            time.write(Time {
                seconds: now / 1_000_000_000,
                nanoseconds: now % 1_000_000_000,
            })
        };
        0
    }
}
