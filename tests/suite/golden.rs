//! Orders that are pinned, and states that older versions wrote.
//!
//! `tests/golden/orders.txt` has, for each graph here, its first items and a hash of all. A change of a line is a change of
//! iteration order, which breaks what users have published and stopped runs; see `CONTRIBUTING.md`. The files in
//! `tests/golden/states/` were written by the versions that their folders are named after, and are never written anew.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use datapipes::index::Weighted;
use datapipes::pipes::Stop;
use datapipes::{DataLoader, Graph, Indexed, Order, State};

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
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn loader(make: Make, workers: usize) -> DataLoader<u64> {
    DataLoader::builder(make()).seed(42).workers(workers).resumable().build().unwrap()
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
        let items: Vec<u64> = loader(*make, 2).epoch(3).blocking().map(Result::unwrap).collect();
        let first: Vec<String> = items.iter().take(8).map(u64::to_string).collect();
        writeln!(lines, "{name}: {} … {} items, {:016x}", first.join(" "), items.len(), hash(&items))
            .unwrap();
    }
    let pinned = fs::read_to_string(folder().join("orders.txt")).unwrap_or_default();
    assert_eq!(pinned, lines, "iteration order has changed, which is a breaking change; see CONTRIBUTING.md");
}

/// What each version's states go on with is what comes today.
#[test]
fn states_of_older_versions_go_on() {
    let mut read = 0;
    for version in
        fs::read_dir(folder().join("states")).expect("kept states").map(|entry| entry.unwrap().path())
    {
        for (name, make) in GRAPHS {
            let whole: Vec<u64> = loader(*make, 0).epoch(3).blocking().map(Result::unwrap).collect();
            for path in
                [version.join(format!("{name}.state")), version.join(format!("{name}.any-order.state"))]
            {
                // A graph that is newer than the version has none.
                let Ok(bytes) = fs::read(&path) else { continue };
                let state =
                    State::from_bytes(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                for workers in [0, 2] {
                    let rest: Vec<u64> = loader(*make, workers)
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
            let builder = DataLoader::builder(make()).seed(42).workers(2).order(order).resumable();
            let loader = builder.build().unwrap();
            let mut epoch = loader.epoch(3).blocking();
            let len = loader.epoch(3).blocking().count();
            epoch.by_ref().take(len * 2 / 3).for_each(|item| _ = item.unwrap());
            if !path.exists() {
                fs::write(path, epoch.state().unwrap().to_bytes()).unwrap();
            }
        }
    }
}
