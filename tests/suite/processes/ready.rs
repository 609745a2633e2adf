//! Ready items are delivered: an item of a child that takes for ever withholds few of those before
//! it.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use datapipes::{DataLoader, Graph, Order};

/// Number of the item that never completes.
const LATE: u64 = 1500;

/// A part whose item [`LATE`] never completes. Each of the others takes `micros`.
fn part(numbers: Graph<u64>, micros: &u64) -> Graph<u64> {
    let micros = *micros;
    numbers.map(move |n| {
        if n == LATE {
            loop {
                std::thread::park();
            }
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(micros) {}
        n
    })
}

#[test]
fn late_items_of_a_child_are_withheld_by_at_most_a_sixty_fourth() {
    // Cheap items are made together. Those of more than 0.2 ms are not, however many came.
    let withheld = |micros| if micros == 0 { LATE / 64 + 1 } else { 0 };
    let orders = [Order::Strict, Order::Bounded(8), Order::Arrival];
    let cases = orders
        .into_iter()
        .flat_map(|order| [(1, order, 0), (2, order, 0), (1, order, 250)]);
    for (processes, order, micros) in cases {
        let graph = Graph::range(0..2 * LATE).in_processes_with(processes, micros, part);
        let loader = DataLoader::builder(graph).order(order).build().unwrap();
        let before = LATE - withheld(micros);
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut epoch = loader.epoch(0).blocking();
            let first = epoch.by_ref().take(before as usize);
            send.send(first.filter(Result::is_ok).count() as u64)
                .unwrap();
            // The rest is dropped, and with it the child that stands at its item.
        });
        let first = receive.recv_timeout(Duration::from_secs(20));
        assert_eq!(
            first,
            Ok(before),
            "{processes} processes, {order}, {micros} us an item"
        );
    }
}

#[test]
fn full_batches_of_a_child_are_not_withheld_by_an_item_after_them() {
    // Items of more than 0.2 ms, which come together if one batch needs them.
    for size in [7, 64] {
        let graph = Graph::range(0..2 * LATE).in_processes_with(2, 250, part);
        let loader = DataLoader::builder(graph.batch(size)).build().unwrap();
        let before = LATE as usize / size;
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut epoch = loader.epoch(0).blocking();
            let first = epoch.by_ref().take(before);
            send.send(first.filter(Result::is_ok).count()).unwrap();
        });
        let first = receive.recv_timeout(Duration::from_secs(20));
        assert_eq!(first, Ok(before), "batches of {size}");
    }
}
