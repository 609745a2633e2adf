//! Law 5: bytes that a loader promised to stay within, counted by items that know how many of them are alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::loader::Builder;
use crate::{DataLoader, Error, Graph, Order};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes that are alive, and the most that were so at once.
#[derive(Clone, Debug, Default)]
struct Meter(Arc<(AtomicUsize, AtomicUsize)>);

impl Meter {
    fn item(&self, bytes: usize) -> Counted {
        let now = self.0.0.fetch_add(bytes, SeqCst) + bytes;
        self.0.1.fetch_max(now, SeqCst);
        Counted { bytes, meter: self.clone() }
    }

    fn most(&self) -> usize {
        self.0.1.load(SeqCst)
    }
}

/// An item that counts as so many bytes, for as long as it lives.
#[derive(Debug)]
struct Counted {
    bytes: usize,
    meter: Meter,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.meter.0.0.fetch_sub(self.bytes, SeqCst);
    }
}

/// Small ones first, then large ones.
fn growing(n: u64) -> usize {
    if n < 300 { KIB } else { MIB }
}

fn drain(loader: &DataLoader<Counted>, epoch: u64, items: usize) {
    let seen = loader.epoch(epoch).blocking().map(Result::unwrap).count();
    assert_eq!(seen, items);
}

/// The most that was alive in two epochs of a loader that promised 16 MiB, less one item.
fn two_epochs(graph: impl Fn(Meter) -> Graph<Counted>, set: impl Fn(Builder<Counted>) -> Builder<Counted>) -> usize {
    let meter = Meter::default();
    let graph = graph(meter.clone()).weighed(|item| item.bytes);
    let loader = set(DataLoader::builder(graph).workers(2).memory(16 * MIB)).build().unwrap();
    drain(&loader, 0, 900);
    let first = meter.most();
    drain(&loader, 1, 900);
    eprintln!("epoch 0: {} KiB, both: {} KiB", first / KIB, meter.most() / KIB);
    meter.most().saturating_sub(MIB)
}

fn read(meter: Meter, size: fn(u64) -> usize) -> Graph<Counted> {
    Graph::range(0..900).map_async(move |n| {
        let meter = meter.clone();
        async move {
            tokio::task::yield_now().await;
            Ok::<_, Error>(meter.item(size(n)))
        }
    })
}

fn compute(meter: Meter, size: fn(u64) -> usize) -> Graph<Counted> {
    Graph::range(0..900).map(move |n| meter.item(size(n)))
}

const ORDERS: [Order; 3] = [Order::Strict, Order::Bounded(16), Order::Arrival];

#[test]
fn memory_bounds_items_that_grow_over_io_in_every_epoch() {
    for order in ORDERS {
        let most = two_epochs(|meter| read(meter, growing), |builder| builder.order(order));
        assert!(most <= 16 * MIB, "{order}: {} KiB", most / KIB);
    }
}

#[test]
fn memory_bounds_items_that_grow_over_the_cpu_in_every_epoch() {
    for order in ORDERS {
        let most = two_epochs(|meter| compute(meter, growing), |builder| builder.order(order));
        assert!(most <= 16 * MIB, "{order}: {} KiB", most / KIB);
        let fixed = two_epochs(|meter| compute(meter, growing).concurrency(64), |builder| builder.order(order));
        assert!(fixed <= 16 * MIB, "{order}, concurrency: {} KiB", fixed / KIB);
    }
}

#[test]
fn memory_bounds_what_a_number_in_flight_asks_for() {
    for order in ORDERS {
        let most = two_epochs(|meter| read(meter, growing), |builder| builder.order(order).in_flight(256));
        assert!(most <= 16 * MIB, "{order}, in_flight: {} KiB", most / KIB);
        let most = two_epochs(|meter| read(meter, |_| MIB).concurrency(256), |builder| builder.order(order));
        assert!(most <= 16 * MIB, "{order}, concurrency: {} KiB", most / KIB);
    }
}
