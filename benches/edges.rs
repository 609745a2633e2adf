//! Cost of an edge: source, map, filter, shuffle(1000), batch(100) over a million integers (W5),
//! compared with a hand-written loop of the same work and with peers.

mod support;

use datapipes::{DataLoader, Graph, Rng};
use futures::StreamExt;
use support::{bar, case, compare, peer_case};

const N: u64 = 1_000_000;

fn graph() -> Graph<Vec<u64>> {
    Graph::range(0..N)
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

fn main() {
    let build = |workers| {
        DataLoader::builder(graph())
            .workers(workers)
            .build()
            .expect("a right graph")
    };
    let (inline, one, two) = (build(0), build(1), build(2));
    assert_eq!(epoch(&inline), by_hand());
    assert_eq!(epoch(&two), by_hand());
    let ratios = compare(
        "W5: 1e6 integers",
        N as f64,
        "items",
        21,
        vec![
            case("hand-written loop (floor)", by_hand),
            case("inline", || epoch(&inline)),
            case("1 worker", || epoch(&one)),
            case("2 workers", || epoch(&two)),
            case("2 workers, loader built each time", || epoch(&build(2))),
            case("2 workers, as a stream", || streamed(&two)),
        ],
    );
    bar("inline over the loop", ratios[1], 3.0, false);
    bar("2 workers over inline", ratios[3] / ratios[1], 1.1, false);

    let n = N.to_string();
    let peers = [
        ("Python generators", "generators.py"),
        ("WebDataset", "webdataset_w5.py"),
    ];
    let mut cases = vec![case("2 workers", || epoch(&two))];
    cases.extend(
        peers
            .iter()
            .filter_map(|(name, script)| peer_case(name, script, vec![n.clone()])),
    );
    if cases.len() > 1 {
        let ratios = compare("W5 beside peers", N as f64, "items", 5, cases);
        let fastest = ratios[1..].iter().copied().fold(f64::INFINITY, f64::min);
        bar("items/s over the fastest Python peer", fastest, 20.0, true);
    }
    println!("\n{}", two.stats().expect("it ran"));
}
