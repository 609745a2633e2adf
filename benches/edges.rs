//! Cost of an edge: source, map, filter, shuffle(1000), batch(100) over a million integers (W5),
//! compared with a hand-written loop of the same work and with peers; and by a loader that is built
//! each time, over up to a hundred million.
//!
//! `cargo bench --bench edges [-- --json]`. One line a case: items a second, those of the other in
//! the same run, the ratio and its goal.

mod support;

use datapipes::{DataLoader, Graph, Rng};
use futures::StreamExt;
use support::{Lines, case, peer_case};

const N: u64 = 1_000_000;

fn graph(items: u64) -> Graph<Vec<u64>> {
    Graph::range(0..items)
        .map(|v| v + 1)
        .filter(|v| v % 2 == 0)
        .shuffle(1000)
        .batch(100)
}

fn sums(batch: &[u64]) -> (u64, u64) {
    (batch.len() as u64, batch.iter().sum())
}

fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1 + b.1)
}

fn epoch(loader: &DataLoader<Vec<u64>>) -> (u64, u64) {
    loader
        .epoch(0)
        .blocking()
        .map(|batch| sums(&batch.expect("integers do not fail")))
        .fold((0, 0), add)
}

/// Reads an epoch as a stream, with the graph running on other threads.
fn streamed(loader: &DataLoader<Vec<u64>>) -> (u64, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let batches = loader
        .epoch(0)
        .map(|batch| sums(&batch.expect("integers do not fail")));
    runtime.block_on(batches.fold((0, 0), async |a, b| add(a, b)))
}

/// Does the work of the graph in a plain loop: the floor.
fn by_hand() -> (u64, u64) {
    let mut rng = Rng::from_key([0, 0, 1, 2]);
    let mut buffer: Vec<u64> = Vec::with_capacity(1000);
    let mut total = (0, 0);
    let mut batch = Vec::with_capacity(100);
    let mut put = |value: u64, batch: &mut Vec<u64>| {
        batch.push(value);
        if batch.len() == 100 {
            total = add(
                total,
                sums(&std::mem::replace(batch, Vec::with_capacity(100))),
            );
        }
    };
    for v in 0..std::hint::black_box(N) {
        let mut v = v + 1;
        if v % 2 != 0 {
            continue;
        }
        if buffer.len() < 1000 {
            buffer.push(v);
            continue;
        }
        let place = rng.below(1000) as usize;
        std::mem::swap(&mut v, &mut buffer[place]);
        put(v, &mut batch);
    }
    rng.shuffle(&mut buffer);
    buffer.into_iter().for_each(|v| put(v, &mut batch));
    add(total, sums(&batch))
}

fn build(items: u64, workers: usize) -> DataLoader<Vec<u64>> {
    DataLoader::builder(graph(items))
        .workers(workers)
        .build()
        .expect("a right graph")
}

fn main() {
    // A queue has to pay for itself: workers cost at most a tenth.
    let tenth = 1.0 / 1.1;
    let (inline, one, two) = (build(N, 0), build(N, 1), build(N, 2));
    assert_eq!(epoch(&inline), by_hand());
    assert_eq!(epoch(&two), by_hand());
    let lines = Lines::new("W5: 1e6 integers", "items/s");
    let items = N as f64;
    let mut cases = vec![
        case("hand-written loop (floor)", by_hand),
        case("no workers", || epoch(&inline)),
    ];
    lines.beside("no workers", items, 21, &mut cases, (1.0 / 3.0, 0.0));
    for (name, loader) in [("1 worker", &one), ("2 workers", &two)] {
        let mut cases = vec![
            case("no workers", || epoch(&inline)),
            case(name, || epoch(loader)),
        ];
        lines.beside(name, items, 21, &mut cases, (tenth, 0.0));
    }
    let name = "2 workers, as a stream";
    let mut cases = vec![
        case("no workers", || epoch(&inline)),
        case(name, || streamed(&two)),
    ];
    lines.beside(name, items, 21, &mut cases, (0.0, 0.0));
    for (items, rounds) in [(N, 21), (10 * N, 7), (100 * N, 3)] {
        for workers in [1, 2] {
            let name = format!("{items:.0e}, {workers} workers, built each time");
            let mut cases = vec![
                case("no workers", || epoch(&build(items, 0))),
                case(&*name, || epoch(&build(items, workers))),
            ];
            lines.beside(&name, items as f64, rounds, &mut cases, (tenth, 0.0));
        }
    }

    let n = N.to_string();
    let peers = [
        ("Python generators", "generators.py"),
        ("WebDataset", "webdataset_w5.py"),
    ];
    let mut cases = vec![
        case("no workers", || epoch(&inline)),
        case("2 workers", || epoch(&two)),
    ];
    cases.extend(
        peers
            .iter()
            .filter_map(|(name, script)| peer_case(name, script, vec![n.clone()])),
    );
    if cases.len() > 2 {
        lines.beside("2 workers", items, 5, &mut cases, (tenth, 20.0));
    }
}
