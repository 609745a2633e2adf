//! Golden orders of iteration, and checkpoints written by older versions.
//!
//! `tests/golden/orders.txt` has, for each graph here, its first items and a hash of all items. A
//! change of a line is a change of iteration order, which breaks published results and stopped runs
//! of users; see `CONTRIBUTING.md`. The files in `tests/golden/states/` were written by the
//! versions that their folders are named after, and are never rewritten.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use datapipes::index::Weighted;
use datapipes::pipes::{Shuffle, Stop};
use datapipes::{Checkpoint, DataLoader, Epoch, Error, Graph, Indexed, OnError, Order, Uneven};
use datapipes_io::formats::TarWriter;
use datapipes_io::prelude::*;
use datapipes_io::stores::InMemory;

type Make = fn() -> Graph<u64>;

/// Number of items of `skipped` that fail, each of which has two copies.
const FAILURES: u64 = 27;

/// Each with a name that stays.
const GRAPHS: &[(&str, Make)] = &[
    ("shuffle", || Graph::range(0..1000).shuffle(100)),
    ("full_shuffle", || Graph::range(0..300).shuffle(1000)),
    ("archives", || {
        let names = Graph::range(0..50).shuffle(20);
        names
            .flat_map(|shard| (0..20 + shard % 7).map(move |member| shard * 100 + member))
            .shuffle(150)
    }),
    ("filtered", || {
        Graph::range(0..3000)
            .filter(|n| n % 3 != 1)
            .shuffle(64)
            .map_with_rng(|n, rng| n * 10 + rng.below(10))
    }),
    ("batches", || {
        Graph::range(0..1000)
            .shuffle(50)
            .batch(7)
            .map(|batch| batch.into_iter().sum())
    }),
    ("indexed", || Indexed::range(777).shuffle().fetch()),
    ("weighted", || {
        Indexed::range(100)
            .sampled(Weighted::new((1..=100).map(f64::from), 500))
            .fetch()
    }),
    ("repeated", || {
        Graph::range(0..60).shuffle(17).repeat(5).shuffle(9)
    }),
    ("mixed", || {
        let parts = [
            (Graph::range(0..90).shuffle(9), 2.0),
            (Graph::range(1000..1030).shuffle(5), 1.0),
        ];
        Graph::mix_until(Stop::CycleUntilAll, parts)
    }),
    ("forked", || {
        let [a, b] = Graph::range(0..200).shuffle(30).fork();
        a.zip(b.filter(|n| n % 2 == 0)).map(|(a, b)| a * 1000 + b)
    }),
    // Both outputs have each error, and one is ahead, so that a checkpoint has copies that are still to come.
    ("skipped", || {
        let numbers = Graph::range(0..300).shuffle(20).try_map(|n| match n % 11 {
            3 => Err(Error::corrupt("a bad number")),
            _ => datapipes::Ok(n),
        });
        let [a, b] = numbers.demux(|n| usize::from(n % 3 == 0));
        Graph::mix([(a, 3.0), (b, 1.0)])
    }),
    ("sampled", || {
        Graph::range(0..500)
            .sample_with(0.3)
            .skip(5)
            .take(100)
            .shuffle(10)
    }),
    (RANK, || {
        Graph::range(0..500)
            .filter(|n| n % 5 != 2)
            .shuffle(40)
            .sharding_filter()
            .map(|n| n + 1)
    }),
    ("bucketed", || {
        let buckets = Graph::range(0..400).shuffle(30).bucket_batch(
            |n| *n as usize % 50,
            [10, 30],
            [8, 4, 2],
        );
        buckets.map(|batch| batch.into_iter().fold(0, |all, n| all * 31 + n))
    }),
    ("interleaved", || {
        let parts =
            [70, 0, 25, 110, 40].map(|len| Graph::range(1000 * len..1001 * len).shuffle(12));
        Graph::interleave(parts, 3, 4)
    }),
    ("cached", || {
        Graph::range(0..80)
            .filter(|n| n % 4 != 1)
            .cache(100)
            .shuffle(15)
            .repeat(4)
    }),
    ("scanned", || {
        let sums = |sum: &mut u64, n: u64| {
            *sum += n;
            Some(*sum)
        };
        Graph::range(0..300)
            .shuffle(25)
            .scan_resumable(0, sums)
            .map_with_rng(|n, rng| n * 10 + rng.below(10))
    }),
    // In processes, where there are any: the order is that of threads.
    ("apart", || {
        let part = |numbers: Graph<u64>| numbers.map_with_rng(|n, rng| n * 10 + rng.below(10));
        Graph::range(0..400)
            .shuffle(30)
            .in_processes(2, part)
            .shuffle(12)
    }),
    ("apart_in_pieces", || {
        let part = |numbers: Graph<u64>| {
            numbers
                .filter(|n| n % 3 != 1)
                .flat_map(|n| (0..n % 4).map(move |k| n + k))
        };
        Graph::range(0..500)
            .shuffle(20)
            .in_processes(2, part)
            .shuffle(25)
            .batch(3)
            .map(|batch| batch.into_iter().sum())
    }),
    ("listed", || {
        let files = (0..90).map(|n| (format!("{}/{}.txt", n % 4, n * 37 % 90), n.to_string()));
        InMemory::from_iter(files)
            .list_files("*/*.txt")
            .shuffle(25)
            .load_files()
            .try_map(|file| number(&file.data))
    }),
    ("tars", || {
        let files = tars().list_files("*.tar").shuffle(6);
        files
            .stream_untar()
            .samples()
            .shuffle(20)
            .try_map(|sample| number(sample.get("txt")?))
    }),
];

fn number(bytes: &[u8]) -> Result<u64, Error> {
    std::str::from_utf8(bytes)
        .map_err(Error::user)?
        .parse()
        .map_err(Error::user)
}

/// Archives of several sizes, of which each sample has a number and something beside it.
fn tars() -> InMemory {
    InMemory::from_iter((0..15).map(|shard| {
        let mut archive = TarWriter::new(Vec::new());
        for sample in 0..5 + shard % 4 {
            let (key, number) = (format!("{shard}-{sample}"), shard * 100 + sample);
            archive.append(&format!("{key}.bin"), &[7; 700]).unwrap();
            archive
                .append(&format!("{key}.txt"), number.to_string().as_bytes())
                .unwrap();
        }
        (format!("{shard:02}.tar"), archive.finish().unwrap())
    }))
}

type MakeRanked = fn(usize) -> Graph<Vec<u64>>;

/// Graphs of a job with ranks, by how many there are; whether the global batches are the same for
/// any number.
const RANKED: &[(&str, bool, MakeRanked)] = &[
    ("merged", false, |_| {
        let own = Graph::range(0..700)
            .shuffle(40)
            .sharding_filter()
            .filter(|n| n % 5 != 3);
        own.shuffle(Shuffle::new(9).within_rank()).batch(3)
    }),
    ("merged_elastic", true, |world| {
        Indexed::range(480)
            .shuffle()
            .shard()
            .fetch()
            .map(|n| n * 2)
            .batch(24 / world)
    }),
];

/// Number of ranks in the merged checkpoints, and number of steps that each rank had taken.
const RANKS: usize = 4;
const STEPS: usize = 7;

fn ranked(make: MakeRanked, rank: usize, world: usize, workers: usize) -> DataLoader<Vec<u64>> {
    let builder = DataLoader::builder(make(world))
        .seed(42)
        .workers(workers)
        .rank(rank, world);
    builder
        .uneven(Uneven::Drop)
        .ranks_agree()
        .resumable()
        .build()
        .unwrap()
}

fn batches(epoch: Epoch<Vec<u64>>) -> Vec<Vec<u64>> {
    epoch.blocking().map(Result::unwrap).collect()
}

/// The graph that is read as rank 1 of 3.
const RANK: &str = "rank";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn loader(name: &str, make: Make, workers: usize, order: Order) -> DataLoader<u64> {
    let builder = DataLoader::builder(make())
        .seed(42)
        .workers(workers)
        .order(order)
        .resumable();
    let builder = if name == RANK {
        builder.rank(1, 3).uneven(Uneven::Drop)
    } else {
        builder.on_error(OnError::skip(FAILURES))
    };
    builder.build().unwrap()
}

/// Items, whatever their order.
fn sorted(mut items: Vec<u64>) -> Vec<u64> {
    items.sort_unstable();
    items
}

fn hash(items: &[u64]) -> u64 {
    let bytes = items.iter().flat_map(|item| item.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Row 124: with any number of threads, on any machine, in any version that keeps the promise.
#[test]
fn row_124_orders_are_pinned() {
    let mut lines = String::new();
    for (name, make) in GRAPHS {
        let items: Vec<u64> = loader(name, *make, 2, Order::Strict)
            .epoch(3)
            .blocking()
            .map(Result::unwrap)
            .collect();
        let first: Vec<String> = items.iter().take(8).map(u64::to_string).collect();
        writeln!(
            lines,
            "{name}: {} … {} items, {:016x}",
            first.join(" "),
            items.len(),
            hash(&items)
        )
        .unwrap();
    }
    let pinned = fs::read_to_string(folder().join("orders.txt")).unwrap_or_default();
    for (name, _, make) in RANKED {
        for rank in 0..RANKS {
            let items = batches(ranked(*make, rank, RANKS, 2).epoch(3)).concat();
            let first: Vec<String> = items.iter().take(8).map(u64::to_string).collect();
            writeln!(
                lines,
                "{name} {rank}/{RANKS}: {} … {} items, {:016x}",
                first.join(" "),
                items.len(),
                hash(&items)
            )
            .unwrap();
        }
    }
    assert_eq!(
        pinned, lines,
        "iteration order has changed, which is a breaking change; see CONTRIBUTING.md"
    );
}

/// Items delivered before a checkpoint of an epoch in any order, if they are recorded in a file
/// next to the checkpoint: one number on each line.
fn delivered(state: &Path) -> Option<Vec<u64>> {
    let text = fs::read_to_string(state.with_extension("delivered")).ok()?;
    Some(
        text.lines()
            .map(|line| line.parse().expect("a number"))
            .collect(),
    )
}

/// A checkpoint of any version resumes with the items of the present version.
#[test]
fn states_of_older_versions_go_on() {
    let mut read = 0;
    for version in fs::read_dir(folder().join("states"))
        .expect("kept states")
        .map(|entry| entry.unwrap().path())
    {
        for (name, make) in GRAPHS {
            let whole: Vec<u64> = loader(name, *make, 0, Order::Strict)
                .epoch(3)
                .blocking()
                .map(Result::unwrap)
                .collect();
            for path in [
                version.join(format!("{name}.state")),
                version.join(format!("{name}.any-order.state")),
            ] {
                // A graph that is newer than the version has none.
                let Ok(bytes) = fs::read(&path) else { continue };
                let state = Checkpoint::from_bytes(&bytes)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
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
                        assert_eq!(
                            rest,
                            whole[state.delivered() as usize..],
                            "{}",
                            path.display()
                        );
                    } else if let Some(first) = delivered(&path) {
                        // The items before and after the checkpoint are all items, once.
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

/// The merged checkpoint of all ranks of a job resumes with as many ranks or with fewer: each rank
/// reads the remainders of some of the former ranks in turn. If the global batches are the same for
/// any number of ranks, it resumes with any number, as if the job had always had that number.
#[test]
fn merged_states_of_older_versions_go_on() {
    let mut read = 0;
    for version in fs::read_dir(folder().join("states"))
        .expect("kept states")
        .map(|entry| entry.unwrap().path())
    {
        for (name, elastic, make) in RANKED {
            // A graph that is newer than the version has none.
            let Ok(bytes) = fs::read(version.join(format!("{name}.state"))) else {
                continue;
            };
            let state =
                Checkpoint::from_bytes(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(state.delivered(), (RANKS * STEPS) as u64, "{name}");
            let rests: Vec<_> = (0..RANKS)
                .map(|rank| batches(ranked(*make, rank, RANKS, 0).epoch(3)).split_off(STEPS))
                .collect();
            for now in [1, 2, 3, 4, 8] {
                for (rank, workers) in (0..now).zip([0, 2].into_iter().cycle()) {
                    let resumed = ranked(*make, rank, now, workers).resume(&state);
                    if !elastic && !RANKS.is_multiple_of(now) {
                        assert!(resumed.is_err(), "{name}, {now} ranks");
                        continue;
                    }
                    let expected = match elastic {
                        true => batches(ranked(*make, rank, now, 0).epoch(3)).split_off(STEPS),
                        false => in_turn(rests.iter().skip(rank).step_by(now)),
                    };
                    assert_eq!(
                        batches(resumed.unwrap()),
                        expected,
                        "{name}, rank {rank} of {now}"
                    );
                }
            }
            read += 1;
        }
    }
    assert!(read >= RANKED.len(), "{read} states");
}

/// One of each after the other, as long as there are any.
fn in_turn<'a>(rests: impl Iterator<Item = &'a Vec<Vec<u64>>> + Clone) -> Vec<Vec<u64>> {
    let longest = rests.clone().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|step| {
            rests
                .clone()
                .filter_map(move |rest| rest.get(step).cloned())
        })
        .collect()
}

/// Writes the checkpoints of this version that do not exist yet. Run it after a change of the
/// format's version.
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
            let first: Vec<u64> = epoch
                .by_ref()
                .take(len * 2 / 3)
                .map(Result::unwrap)
                .collect();
            if !path.exists() {
                fs::write(&path, epoch.checkpoint().unwrap().to_bytes()).unwrap();
                if order != Order::Strict {
                    let lines: String = sorted(first)
                        .iter()
                        .map(|item| format!("{item}\n"))
                        .collect();
                    fs::write(path.with_extension("delivered"), lines).unwrap();
                }
            }
        }
    }
    for (name, _, make) in RANKED {
        let path = folder.join(format!("{name}.state"));
        let states: Vec<Checkpoint> = (0..RANKS)
            .map(|rank| {
                let mut epoch = ranked(*make, rank, RANKS, 2).epoch(3).blocking();
                assert_eq!(
                    epoch.by_ref().take(STEPS).map(Result::unwrap).count(),
                    STEPS
                );
                epoch.checkpoint().unwrap()
            })
            .collect();
        if !path.exists() {
            fs::write(&path, Checkpoint::merge(&states).unwrap().to_bytes()).unwrap();
        }
    }
}
