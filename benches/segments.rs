//! Speed-up of a CPU segment by workers: 100 µs per item, in each order; also where 1 item in 50
//! takes 20 times as long.

mod support;

use std::time::{Duration, Instant};

use datapipes::{DataLoader, Graph, Order};
use support::{bar, case, compare};

const N: u64 = 2000;

fn spin(us: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(us) {
        std::hint::spin_loop();
    }
}

/// Does calibrated work. It is counted in units, so that waiting for a core does not count as work.
fn work(units: u64) -> u64 {
    (0..units).fold(1u64, |x, i| {
        std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(i))
    })
}

fn loader(workers: usize, order: Order, units: u64, stragglers: bool) -> DataLoader<u64> {
    let graph = Graph::range(0..N).map(move |n| {
        std::hint::black_box(work(if stragglers && n % 50 == 49 {
            20 * units
        } else {
            units
        }));
        n
    });
    DataLoader::builder(graph)
        .workers(workers)
        .order(order)
        .build()
        .expect("a right graph")
}

fn epoch(loader: &DataLoader<u64>) -> u64 {
    loader
        .epoch(0)
        .blocking()
        .map(|n| n.expect("integers do not fail"))
        .sum()
}

fn main() {
    spin(200_000);
    let begun = Instant::now();
    std::hint::black_box(work(10_000_000));
    let units = (100e-6 / (begun.elapsed().as_secs_f64() / 1e7)) as u64;
    println!("100 µs are {units} units of work here");

    for stragglers in [false, true] {
        let total = if stragglers { N / 50 * (49 + 20) } else { N };
        let build = |workers, order| loader(workers, order, units, stragglers);
        let one = build(1, Order::Strict);
        let two = [Order::Strict, Order::Bounded(64), Order::Arrival]
            .map(|order| (order, build(2, order)));
        // Two plain threads with half of the work each show what the machine can do at this moment.
        let halves = || {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        (0..total / 2).for_each(|_| {
                            std::hint::black_box(work(units));
                        })
                    });
                }
            });
        };
        let mut cases = vec![
            case("1 worker, strict", || epoch(&one)),
            case("the work on two bare threads (floor for 2)", halves),
        ];
        cases.extend(
            two.iter()
                .map(|(order, loader)| case(format!("2 workers, {order}"), move || epoch(loader))),
        );
        let what = if stragglers {
            "100 µs an item, 1 in 50 takes 20 times as long"
        } else {
            "100 µs an item"
        };
        let ratios = compare(what, N as f64, "items", 7, cases);
        bar("strict, 2 workers over 1", 1.0 / ratios[2], 1.9, true);
        bar(
            "bounded, time over two bare threads",
            ratios[3] / ratios[1],
            1.05,
            false,
        );
        bar(
            "arrival, time over two bare threads",
            ratios[4] / ratios[1],
            1.05,
            false,
        );
    }
}
