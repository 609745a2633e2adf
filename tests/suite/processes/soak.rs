//! Children that are killed and stopped again and again, at random times, while epochs run.
//!
//! The test takes a second, or three in the gate; `DATAPIPES_SOAK=seconds` sets another time. It runs in a process
//! of its own, so that leftovers can be counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datapipes::testing::Resources;
use datapipes::{DataLoader, Graph, OnError, Order, Processes, Tensor};

use super::crimes::{children, is_gone, soon, work};
use super::parents::this_test;

const SECONDS: &str = "DATAPIPES_SOAK";
const RUNS: &str = "DATAPIPES_TEST_SOAK_RUNS";

#[test]
fn rows_4_5_and_9_whatever_is_killed_whenever_every_item_is_accounted_for_and_nothing_is_left() {
    let mut soak = this_test("processes::soak::a_soak");
    let output = soak
        .env(RUNS, "yes")
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let wrong: Vec<&str> = errors
        .lines()
        .filter(|line| !line.starts_with('['))
        .collect();
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        wrong.join("\n")
    );
    said.lines()
        .filter(|line| line.contains("soak: "))
        .for_each(|line| println!("{line}"));
}

/// The children of a loader, for as long as it is there.
type Victims = Arc<Mutex<BTreeMap<usize, Box<dyn Fn() -> Vec<u32> + Send>>>>;

#[derive(Default)]
struct Figures {
    epochs: AtomicU64,
    delivered: AtomicU64,
    named: AtomicU64,
    /// Epochs that ended since too many children were killed one after the other.
    given_up: AtomicU64,
    left_early: AtomicU64,
}

#[test]
#[ignore = "what another test starts"]
fn a_soak() {
    if std::env::var_os(RUNS).is_none() {
        return;
    }
    let seconds = std::env::var(SECONDS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(datapipes::testing::cases(3) as u64);
    // Memory that is made once and stays.
    let victims = Victims::default();
    let figures = Arc::new(Figures::default());
    for kind in 0..3 {
        some_epochs(kind, 0, &victims, &figures);
    }
    let before = settled();

    let stop = Arc::new(AtomicBool::new(false));
    let runners: Vec<_> = (0..3)
        .map(|kind| {
            let (victims, figures, stop) = (victims.clone(), figures.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    some_epochs(kind, round, &victims, &figures);
                }
            })
        })
        .collect();
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let kills = kill(Duration::from_secs(seconds), seed, &victims);
    stop.store(true, Ordering::Relaxed);
    runners
        .into_iter()
        .for_each(|runner| runner.join().unwrap());

    soon("nothing is left", || {
        let now = left();
        now.0 <= before.0 && now.1 <= before.1 && (now.2, now.3) == (0, 0)
    });
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "soak: {seconds} s, {} killed, {} stopped; {} epochs, of which {} were left early and {} given up; {} items delivered, {} named; \
         left over: {:?}",
        kills.0,
        kills.1,
        read(&figures.epochs),
        read(&figures.left_early),
        read(&figures.given_up),
        read(&figures.delivered),
        read(&figures.named),
        left(),
    );
    assert!(kills.0 + kills.1 >= 8 * seconds, "{kills:?} are few");
}

/// Ends or stops children at random times; how many it ended, and stopped.
fn kill(time: Duration, mut random: u64, victims: &Victims) -> (u64, u64) {
    println!("soak: seed {random}");
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let signals = [
        libc::SIGKILL,
        libc::SIGSEGV,
        libc::SIGSTOP,
        libc::SIGTERM,
        libc::SIGABRT,
        libc::SIGBUS,
    ];
    let (begun, mut ended, mut stopped) = (Instant::now(), 0, 0);
    let mut known = BTreeMap::new();
    while begun.elapsed() < time {
        std::thread::sleep(Duration::from_micros(next(20_000)));
        let victims = victims.lock().unwrap();
        let all: Vec<u32> = victims.values().flat_map(|children| children()).collect();
        if all.is_empty() {
            continue;
        }
        let child = all[next(all.len() as u64) as usize];
        let signal = signals[next(signals.len() as u64) as usize];
        let since = *known.entry(child).or_insert_with(Instant::now);
        // One that is stopped before it has begun is waited for much longer than the limit.
        let young = since.elapsed() < Duration::from_millis(200);
        if (signal == libc::SIGSTOP && young) || !is_ours(child) {
            continue;
        }
        // SAFETY: a signal to a child of this process.
        unsafe { libc::kill(child as i32, signal) };
        *if signal == libc::SIGSTOP {
            &mut stopped
        } else {
            &mut ended
        } += 1;
        known.retain(|_, since| since.elapsed() < Duration::from_secs(60));
    }
    (ended, stopped)
}

fn is_ours(process: u32) -> bool {
    parent_of(process) == Some(std::process::id()) && !is_gone(process)
}

fn some_epochs(kind: usize, round: u64, victims: &Victims, figures: &Figures) {
    let processes = Processes::new(2).time_limit(Duration::from_millis(100));
    match kind {
        0 => {
            // Items that come one by one, in order; large slices, too.
            fn part(numbers: Graph<u64>) -> Graph<Tensor> {
                numbers.try_map(|n| {
                    work(200);
                    Tensor::from_vec(
                        vec![n as u32; if n % 5 == 0 { 40_000 } else { 10 }],
                        [if n % 5 == 0 { 40_000 } else { 10 }],
                    )
                })
            }
            let graph = Graph::range(0..300).in_processes(processes, part);
            run(
                kind,
                round,
                graph,
                Order::Strict,
                300,
                1,
                victims,
                figures,
                |tensor| {
                    let values = tensor.as_slice::<u32>().unwrap();
                    assert!(values.iter().all(|value| *value == values[0]));
                    u64::from(values[0])
                },
            );
        }
        1 => {
            // Hundreds to a piece, of which some are left out; as they come.
            fn part(numbers: Graph<u64>) -> Graph<u64> {
                numbers.map(|n| n + 1).map(|n| n - 1)
            }
            let graph = Graph::range(0..60_000).in_processes(processes, part);
            run(
                kind,
                round,
                graph,
                Order::Arrival,
                60_000,
                1,
                victims,
                figures,
                |n| *n,
            );
        }
        _ => {
            // Many at once in a child, each of which becomes many.
            fn part(numbers: Graph<u64>) -> Graph<u64> {
                let read = numbers.map_async(|n| async move {
                    tokio::time::sleep(Duration::from_micros(n % 7 * 300)).await;
                    datapipes::Ok(n)
                });
                read.flat_map(|n| (0..400).map(move |place| n * 400 + place))
            }
            let graph = Graph::range(0..300).in_processes(processes, part);
            run(
                kind,
                round,
                graph,
                Order::Strict,
                300,
                400,
                victims,
                figures,
                |n| *n,
            );
        }
    }
}

/// Runs some epochs. Of `items` each becomes `many`.
#[expect(clippy::too_many_arguments, reason = "one caller with three shapes")]
fn run<T: Send + 'static>(
    kind: usize,
    round: u64,
    graph: Graph<T>,
    order: Order,
    items: u64,
    many: u64,
    victims: &Victims,
    figures: &Figures,
    number: fn(&T) -> u64,
) {
    for epoch in 0..3 {
        // The figures of an epoch have a thousand names.
        let builder = DataLoader::builder(graph.clone())
            .order(order)
            .on_error(OnError::skip(1000));
        let loader = builder.build().unwrap();
        let seen_by_killer = loader.clone();
        victims
            .lock()
            .unwrap()
            .insert(kind, Box::new(move || children(&seen_by_killer)));
        for epoch in 3 * epoch..3 * epoch + 3 {
            let leaves = (round + epoch) % 5 == 4;
            let most = if leaves {
                items as usize * many as usize / 3
            } else {
                usize::MAX
            };
            let mut all = Vec::new();
            let mut given_up = false;
            for item in loader.epoch(epoch).blocking().take(most) {
                match item {
                    Ok(item) => all.push(number(&item)),
                    Err(error) => {
                        assert_eq!(error.kind(), datapipes::ErrorKind::Worker, "{error}");
                        given_up = true;
                    }
                }
            }
            figures.epochs.fetch_add(1, Ordering::Relaxed);
            figures
                .delivered
                .fetch_add(all.len() as u64, Ordering::Relaxed);
            if order == Order::Strict {
                assert!(
                    all.is_sorted_by(|a, b| a < b),
                    "kind {kind}: in order, and once"
                );
            } else {
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), count, "kind {kind}: once");
            }
            let named: Vec<u64> = loader
                .stats()
                .unwrap()
                .skipped_items
                .iter()
                .map(|bad| bad.item.as_ref().expect("an error of an item").index())
                .collect();
            figures
                .named
                .fetch_add(named.len() as u64, Ordering::Relaxed);
            figures
                .given_up
                .fetch_add(given_up.into(), Ordering::Relaxed);
            figures
                .left_early
                .fetch_add(leaves.into(), Ordering::Relaxed);
            if leaves || given_up {
                continue;
            }
            let mut delivered = all.iter().copied().peekable();
            for n in 0..items {
                let mut of_it = 0;
                while delivered.next_if(|out| out / many == n).is_some() {
                    of_it += 1;
                }
                // Of one that becomes many all may have come, and the end of it not.
                let right = match named.contains(&n) {
                    true => of_it == 0 || many > 1,
                    false => of_it == many,
                };
                assert!(
                    right,
                    "kind {kind}: item {n} came {of_it} times of {many}; {} are named",
                    named.len()
                );
            }
            assert_eq!(delivered.next(), None, "kind {kind}");
        }
        victims.lock().unwrap().remove(&kind);
    }
}

/// Resources of this process: descriptors, threads, children, mappings of shared memory.
type Left = (usize, usize, usize, usize);

fn left() -> Left {
    let count = |folder| std::fs::read_dir(folder).unwrap().count();
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let children = all
        .filter(|&process| parent_of(process) == Some(std::process::id()))
        .count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:")).count();
    (
        count("/proc/self/fd"),
        count("/proc/self/task"),
        children,
        shared,
    )
}

/// Returns the parent of a process, even if the process is a zombie.
fn parent_of(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Waits until nothing ends any more, and returns the resources that are left. A thread may have
/// reported its end and still hold its descriptors.
fn settled() -> Left {
    soon("no children and no threads of ours are left", || {
        let now = left();
        (now.2, now.3, Resources::now().threads) == (0, 0, 0)
    });
    left()
}
