//! What is ready is delivered: an item that takes for ever withholds none of those before it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::{DataLoader, Error, Graph, Order};

/// What blocks until it is opened.
#[derive(Clone)]
struct Door(Arc<(Mutex<bool>, Condvar)>, watch::Sender<bool>);

impl Default for Door {
    fn default() -> Self {
        Door(Arc::default(), watch::Sender::new(false))
    }
}

impl Door {
    fn pass(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
        self.1.send_replace(true);
    }

    /// For those who wait without blocking.
    fn async_open(&self) -> watch::Receiver<bool> {
        self.1.subscribe()
    }
}

const ORDERS: [Order; 3] = [Order::Strict, Order::Bounded(8), Order::Arrival];
const ITEMS: u64 = 200;
/// Which item stands still.
const STUCK: [u64; 4] = [0, 1, 50, 63];

/// Takes the items before number `stuck`, which stands still; opens the door; and takes the rest.
fn takes_what_is_before(what: &str, graph: impl Fn(u64, Door) -> Graph<u64>) {
    takes_numbers_before(what, graph, |n| n);
}

/// The same, of items that have numbers.
fn takes_numbers_before<T: Send + 'static>(
    what: &str,
    graph: impl Fn(u64, Door) -> Graph<T>,
    number: impl Fn(T) -> u64 + Copy + Send + 'static,
) {
    let settings = [1, 2]
        .into_iter()
        .flat_map(|workers| ORDERS.map(|order| (workers, order)));
    for ((workers, order), stuck) in
        settings.flat_map(|settings| STUCK.map(|stuck| (settings, stuck)))
    {
        for prefetch in [None, Some(0), Some(8)] {
            let door = Door::default();
            let mut builder = DataLoader::builder(graph(stuck, door.clone()))
                .workers(workers)
                .order(order);
            if let Some(prefetch) = prefetch {
                builder = builder.prefetch(prefetch);
            }
            let what = format!("{what}: {workers} workers, {order}, {prefetch:?}");
            let (first, rest) = takes_first(&what, builder.build().unwrap(), door, stuck);
            let (mut first, rest): (Vec<u64>, Vec<u64>) = (
                first.into_iter().map(number).collect(),
                rest.into_iter().map(number).collect(),
            );
            if order == Order::Strict {
                assert_eq!(first, Vec::from_iter(0..stuck), "{what}");
            }
            first.extend(rest);
            first.sort_unstable();
            assert_eq!(first, Vec::from_iter(0..ITEMS), "{what}");
        }
    }
}

/// Takes so many items while the door is shut, and those that come when it is open.
fn takes_first<T: Send + 'static>(
    what: &str,
    loader: DataLoader<T>,
    door: Door,
    count: u64,
) -> (Vec<T>, Vec<T>) {
    let (send, receive) = std::sync::mpsc::channel();
    let opens = door.clone();
    std::thread::spawn(move || {
        let mut epoch = loader.epoch(0).blocking().map(|item| item.unwrap());
        send.send(epoch.by_ref().take(count as usize).collect())
            .unwrap();
        opens.open();
        send.send(epoch.collect()).unwrap();
    });
    let next = || {
        receive
            .recv_timeout(Duration::from_secs(20))
            .unwrap_or_else(|_| {
                door.open();
                panic!("{what}: fewer than {count} come before what blocks")
            })
    };
    (next(), next())
}

#[test]
fn ready_items_are_delivered_before_a_map_that_blocks() {
    takes_what_is_before("map", |stuck, door| {
        Graph::range(0..ITEMS).map(move |n| {
            if n == stuck {
                door.pass();
            }
            n
        })
    });
    takes_what_is_before("map, concurrency", |stuck, door| {
        let map = Graph::range(0..ITEMS).map(move |n| {
            if n == stuck {
                door.pass();
            }
            n
        });
        map.concurrency(4).map(|n| n)
    });
}

#[test]
fn ready_items_are_delivered_before_a_filter_that_blocks() {
    takes_what_is_before("filter", |stuck, door| {
        let kept = Graph::range(0..ITEMS).map(|n| n).filter(move |n| {
            if *n == stuck {
                door.pass();
            }
            true
        });
        kept.try_map(Ok::<_, Error>)
    });
}

#[test]
fn ready_items_are_delivered_before_a_fan_out_that_blocks() {
    takes_what_is_before("flat_map", |stuck, door| {
        Graph::range(0..ITEMS / 4).flat_map(move |n| {
            let door = door.clone();
            (4 * n..4 * n + 4).inspect(move |n| {
                if *n == stuck {
                    door.pass();
                }
            })
        })
    });
}

#[test]
fn ready_items_are_delivered_before_a_request_that_waits() {
    takes_what_is_before("map_async", |stuck, door| {
        Graph::range(0..ITEMS).map_async(move |n| {
            let waits = (n == stuck).then(|| door.async_open());
            async move {
                if let Some(mut open) = waits {
                    open.wait_for(|open| *open).await.map_err(Error::user)?;
                }
                Ok::<_, Error>(n)
            }
        })
    });
}

/// Batches that are full are delivered, too: those who wake their consumer for many items do so for
/// no more than it needs.
#[test]
fn full_batches_are_delivered_before_an_item_that_blocks() {
    let batches = |stuck, door: Door| {
        let numbers = Graph::range(0..ITEMS).map(move |n| {
            if n == stuck {
                door.pass();
            }
            n
        });
        numbers.concurrency(4).batch(1)
    };
    takes_numbers_before("batch", batches, |batch| batch[0]);
}

/// Where many come of one piece, the consumer of a batch is not woken for each of them, but for
/// those that make it full.
#[test]
fn full_batches_of_a_fan_out_are_delivered_before_an_item_that_blocks() {
    const FAN: u64 = 100;
    for (order, stuck) in ORDERS
        .into_iter()
        .flat_map(|order| [10, 55, 450].map(|stuck| (order, stuck)))
    {
        let door = Door::default();
        let passes = door.clone();
        let numbers = Graph::range(0..10).flat_map(move |n| {
            let passes = passes.clone();
            (FAN * n..FAN * (n + 1)).inspect(move |n| {
                if *n == stuck {
                    passes.pass();
                }
            })
        });
        // One worker, so that no later items are made meanwhile: at item n at most n/64 wait for
        // it.
        let loader = DataLoader::builder(numbers.batch(10))
            .workers(1)
            .order(order)
            .build()
            .unwrap();
        let what = format!("item {stuck}, {order}");
        let (first, rest) = takes_first(&what, loader, door, (stuck - stuck / 64) / 10);
        let mut all: Vec<u64> = first.into_iter().chain(rest).flatten().collect();
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter(0..10 * FAN), "{what}");
    }
}
