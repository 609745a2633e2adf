//! Orders that are pinned, and states that older versions wrote.
//!
//! `tests/golden/orders.txt` has, for each graph here, its first items and a hash of all. A change of a line is a change of
//! iteration order, which breaks what users have published and stopped runs; see `CONTRIBUTING.md`. The files in
//! `tests/golden/states/` were written by the versions that their folders are named after, and are never written anew.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use datapipes::index::Weighted;
use datapipes::pipes::Stop;
use datapipes::{DataLoader, Graph, Indexed, Order, State, Uneven};

type Make = fn() -> Graph<u64>;

/// Each with a name that stays.
const GRAPHS: &[(&str, Make)] = &[
    ("shuffle", || Graph::range(0..1000).shuffle(100)),
    ("full_shuffle", || Graph::range(0..300).shuffle(1000)),
    ("archives", || {
        let names = Graph::range(0..50).shuffle(20);
        names.flat_map(|shard| (0..20 + shard % 7).map(move |member| shard * 100 + member)).shuffle(150)
    }),
    ("filtered", || {
        Graph::range(0..3000).filter(|n| n % 3 != 1).shuffle(64).map_random(|n, rng| n * 10 + rng.below(10))
    }),
    ("batches", || Graph::range(0..1000).shuffle(50).batch(7).map(|batch| batch.into_iter().sum())),
    ("indexed", || Indexed::range(777).shuffle().fetch()),
    ("weighted", || Indexed::range(100).sampled(Weighted::new((1..=100).map(f64::from), 500)).fetch()),
    ("repeated", || Graph::range(0..60).shuffle(17).repeat(5).shuffle(9)),
    ("mixed", || {
        let parts = [(Graph::range(0..90).shuffle(9), 2.0), (Graph::range(1000..1030).shuffle(5), 1.0)];
        Graph::mix_until(Stop::CycleUntilAll, parts)
    }),
    ("forked", || {
        let [a, b] = Graph::range(0..200).shuffle(30).fork();
        a.zip(b.filter(|n| n % 2 == 0)).map(|(a, b)| a * 1000 + b)
    }),
    ("sampled", || Graph::range(0..500).sample_with(0.3).skip(5).take(100).shuffle(10)),
    (RANK, || Graph::range(0..500).filter(|n| n % 5 != 2).shuffle(40).sharding_filter().map(|n| n + 1)),
    ("bucketed", || {
        let buckets =
            Graph::range(0..400).shuffle(30).bucket_batch(|n| *n as usize % 50, [10, 30], [8, 4, 2]);
        buckets.map(|batch| batch.into_iter().fold(0, |all, n| all * 31 + n))
    }),
    ("interleaved", || {
        let parts = [70, 0, 25, 110, 40].map(|len| Graph::range(1000 * len..1001 * len).shuffle(12));
        Graph::interleave(parts, 3, 4)
    }),
    ("cached", || Graph::range(0..80).filter(|n| n % 4 != 1).cache(100).shuffle(15).repeat(4)),
    ("scanned", || {
        let sums = |sum: &mut u64, n: u64| {
            *sum += n;
            Some(*sum)
        };
        Graph::range(0..300).shuffle(25).scan_kept(0, sums).map_random(|n, rng| n * 10 + rng.below(10))
    }),
];

/// The graph that is read as rank 1 of 3.
const RANK: &str = "rank";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn loader(name: &str, make: Make, workers: usize, order: Order) -> DataLoader<u64> {
    let builder = DataLoader::builder(make()).seed(42).workers(workers).order(order).resumable();
    let builder = if name == RANK { builder.rank(1, 3).uneven(Uneven::Drop) } else { builder };
    builder.build().unwrap()
}

/// Items, whatever their order.
fn sorted(mut items: Vec<u64>) -> Vec<u64> {
    items.sort_unstable();
    items
}

fn hash(items: &[u64]) -> u64 {
    let bytes = items.iter().flat_map(|item| item.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Row 124: with any number of threads, on any machine, in any version that keeps the promise.
#[test]
fn row_124_orders_are_pinned() {
    let mut lines = String::new();
    for (name, make) in GRAPHS {
        let items: Vec<u64> =
            loader(name, *make, 2, Order::Strict).epoch(3).blocking().map(Result::unwrap).collect();
        let first: Vec<String> = items.iter().take(8).map(u64::to_string).collect();
        writeln!(lines, "{name}: {} … {} items, {:016x}", first.join(" "), items.len(), hash(&items))
            .unwrap();
    }
    let pinned = fs::read_to_string(folder().join("orders.txt")).unwrap_or_default();
    assert_eq!(pinned, lines, "iteration order has changed, which is a breaking change; see CONTRIBUTING.md");
}

/// What had been delivered before a state of items in any order, one number a line, if that is written beside it.
fn delivered(state: &Path) -> Option<Vec<u64>> {
    let text = fs::read_to_string(state.with_extension("delivered")).ok()?;
    Some(text.lines().map(|line| line.parse().expect("a number")).collect())
}

/// What each version's states go on with is what comes today.
#[test]
fn states_of_older_versions_go_on() {
    let mut read = 0;
    for version in
        fs::read_dir(folder().join("states")).expect("kept states").map(|entry| entry.unwrap().path())
    {
        for (name, make) in GRAPHS {
            let whole: Vec<u64> =
                loader(name, *make, 0, Order::Strict).epoch(3).blocking().map(Result::unwrap).collect();
            for path in
                [version.join(format!("{name}.state")), version.join(format!("{name}.any-order.state"))]
            {
                // A graph that is newer than the version has none.
                let Ok(bytes) = fs::read(&path) else { continue };
                let state =
                    State::from_bytes(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                for workers in [0, 2] {
                    let rest: Vec<u64> = loader(name, *make, workers, Order::Strict)
                        .resume(&state)
                        .unwrap()
                        .blocking()
                        .map(Result::unwrap)
                        .collect();
                    assert_eq!(
                        rest.len() as u64 + state.delivered(),
                        whole.len() as u64,
                        "{}",
                        path.display()
                    );
                    if !path.to_string_lossy().contains("any-order") {
                        assert_eq!(rest, whole[state.delivered() as usize..], "{}", path.display());
                    } else if let Some(first) = delivered(&path) {
                        // What was delivered before and what comes behind is everything, once.
                        let all = first.into_iter().chain(rest).collect();
                        assert_eq!(sorted(all), sorted(whole.clone()), "{}", path.display());
                    }
                }
                read += 1;
            }
        }
    }
    assert!(read >= GRAPHS.len(), "{read} states");
}

/// Writes the states of this version, where there are none yet: for who raises the version of the format.
#[test]
#[ignore = "writes files"]
fn write_states_of_this_version() {
    let folder = folder().join("states").join(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(&folder).unwrap();
    for (name, make) in GRAPHS {
        for (kind, order) in [("", Order::Strict), (".any-order", Order::Arrival)] {
            let path = folder.join(format!("{name}{kind}.state"));
            let loader = loader(name, *make, 2, order);
            let len = loader.epoch(3).blocking().count();
            let mut epoch = loader.epoch(3).blocking();
            let first: Vec<u64> = epoch.by_ref().take(len * 2 / 3).map(Result::unwrap).collect();
            if !path.exists() {
                fs::write(&path, epoch.state().unwrap().to_bytes()).unwrap();
                if order != Order::Strict {
                    let lines: String = sorted(first).iter().map(|item| format!("{item}\n")).collect();
                    fs::write(path.with_extension("delivered"), lines).unwrap();
                }
            }
        }
    }
}
