//! Ready items are delivered: an item that takes for ever withholds none of those before it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::watch;

use crate::items::{Chunks, Demand};
use crate::testing::some_of;
use crate::{Chunk, Context, DataLoader, Error, Graph, Items, Order, Pipe};

/// A gate that blocks until it is opened.
#[derive(Clone)]
struct Gate(Arc<(Mutex<bool>, Condvar)>, watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Gate(Arc::default(), watch::Sender::new(false))
    }
}

impl Gate {
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

    /// Returns a receiver for tasks that wait without blocking.
    fn async_open(&self) -> watch::Receiver<bool> {
        self.1.subscribe()
    }
}

const ORDERS: [Order; 3] = [Order::Strict, Order::Bounded(8), Order::Arrival];
const ITEMS: u64 = 200;
/// Bytes of an item that is made by itself, since a thousand times as many do not fit. All items
/// together do: a worker whose morsel waits for bytes goes on with a later one, where it may block.
const LARGE: usize = 20_000;
const MEMORY: usize = 64 << 20;
/// Items that stand still.
const STUCK: [u64; 4] = [0, 1, 50, 63];
/// Numbers of items that the loader keeps ready, and true if it is polled as a stream. Neighbours
/// take turns.
const READERS: [(Option<usize>, bool); 4] = [
    (None, false),
    (None, true),
    (Some(0), false),
    (Some(8), true),
];

/// Takes the items before number `stuck`, which stands still; opens the gate; and takes the rest.
/// Then does the same with full batches after a queue.
fn takes_what_is_before(what: &str, graph: impl Fn(u64, Gate) -> Graph<u64>) {
    takes_groups_before(what, 1, &graph, |n| vec![n]);
    takes_groups_before(
        &format!("{what}, batch"),
        5,
        |stuck, gate| graph(stuck, gate).prefetch(2).batch(5),
        |batch| batch,
    );
}

/// Does the same for outputs that are made of `size` numbers each.
fn takes_groups_before<T: Send + 'static>(
    what: &str,
    size: u64,
    graph: impl Fn(u64, Gate) -> Graph<T>,
    numbers: fn(T) -> Vec<u64>,
) {
    let settings = [0, 1, 2]
        .into_iter()
        .flat_map(|workers| ORDERS.map(|order| (workers, order)));
    let cases = settings.flat_map(|settings| STUCK.map(|stuck| (settings, stuck)));
    for (number, ((workers, order), stuck)) in some_of(cases.enumerate()) {
        // Two readers for each case, by turns: one of each kind.
        for (prefetch, polled) in READERS.into_iter().skip(number % 2).step_by(2) {
            let gate = Gate::default();
            let mut builder = DataLoader::builder(graph(stuck, gate.clone()))
                .workers(workers)
                .order(order);
            if let Some(prefetch) = prefetch {
                builder = builder.prefetch(prefetch);
            }
            let loader = builder.build().unwrap();
            let (send, receive) = std::sync::mpsc::channel();
            let opens = gate.clone();
            std::thread::spawn(move || {
                let mut epoch = loader.epoch(0);
                let mut epoch: Box<dyn Iterator<Item = crate::Result<T>>> = match polled {
                    true => Box::new(std::iter::from_fn(move || {
                        crate::run::block_on(epoch.next())
                    })),
                    false => Box::new(epoch.blocking()),
                };
                let first: Vec<u64> = epoch
                    .by_ref()
                    .take((stuck / size) as usize)
                    .flat_map(|item| numbers(item.unwrap()))
                    .collect();
                send.send(first).unwrap();
                opens.open();
                send.send(epoch.flat_map(|item| numbers(item.unwrap())).collect())
                    .unwrap();
            });
            let next = || {
                receive.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| {
                    gate.open();
                    panic!(
                        "{what}: item {stuck} withholds others: {workers} workers, {order}, {prefetch:?}, polled: {polled}"
                    )
                })
            };
            let (mut first, rest): (Vec<u64>, Vec<u64>) = (next(), next());
            if order == Order::Strict {
                assert_eq!(first, Vec::from_iter(0..stuck / size * size), "{what}");
            }
            first.extend(rest);
            first.sort_unstable();
            assert_eq!(first, Vec::from_iter(0..ITEMS), "{what}");
        }
    }
}

/// Cheap items are made together, one more for every 64 that came: so many may wait with an item
/// that never completes.
#[test]
fn late_items_are_withheld_by_at_most_a_sixty_fourth() {
    const LATE: u64 = 5_000;
    for (workers, order) in [0, 1, 2].into_iter().flat_map(|n| ORDERS.map(|o| (n, o))) {
        let gate = Gate::default();
        let opens = gate.clone();
        let graph = Graph::range(0..2 * LATE).map(move |n| {
            pass_at(LATE, n, &gate);
            n
        });
        let loader = DataLoader::builder(graph)
            .workers(workers)
            .order(order)
            .build()
            .unwrap();
        let before = LATE - LATE / 64 - 1;
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut epoch = loader.epoch(0).blocking();
            let first = epoch.by_ref().take(before as usize).count();
            send.send(first).unwrap();
            // The rest is dropped, while one worker still stands at its item.
        });
        let first = receive.recv_timeout(Duration::from_secs(20));
        opens.open();
        assert_eq!(first, Ok(before as usize), "{workers} workers, {order}");
    }
}

/// Makes a source that stands still at one of its items, and blocks the thread that reads it.
fn source(stuck: u64, gate: Gate) -> Graph<u64> {
    Graph::from_iter_with(move || {
        let gate = gate.clone();
        (0..ITEMS).inspect(move |n| pass_at(stuck, *n, &gate))
    })
}

fn pass_at(stuck: u64, n: u64, gate: &Gate) {
    if n == stuck {
        gate.pass();
    }
}

/// Answers a request at once.
async fn request(n: u64) -> crate::Result<u64> {
    Ok(n)
}

#[test]
fn ready_items_are_delivered_before_a_source_that_blocks() {
    takes_what_is_before("source, map", |stuck, gate| source(stuck, gate).map(|n| n));
    takes_what_is_before("source, map, concurrency", |stuck, gate| {
        source(stuck, gate).map(|n| n).concurrency(4)
    });
    takes_what_is_before("source, request", |stuck, gate| {
        source(stuck, gate).map_async(request)
    });
    takes_what_is_before("source, batch, map", |stuck, gate| {
        source(stuck, gate)
            .batch(1)
            .map(|batch| batch[0])
            .concurrency(2)
    });
}

#[test]
fn ready_items_are_delivered_before_a_cheap_step_above_requests_that_blocks() {
    takes_what_is_before("map, request", |stuck, gate| {
        Graph::range(0..ITEMS)
            .inspect(move |n| pass_at(stuck, *n, &gate))
            .map_async(request)
    });
    takes_what_is_before("filter, request", |stuck, gate| {
        let kept = Graph::range(0..ITEMS).filter(move |n| {
            pass_at(stuck, *n, &gate);
            true
        });
        kept.map_async(request)
    });
}

/// Adds a step that looks at its input as a whole, and stands still at one item.
fn scanned(above: Graph<u64>, stuck: u64, gate: Gate) -> Graph<u64> {
    above.scan((), move |(), n| {
        pass_at(stuck, n, &gate);
        Some(n)
    })
}

#[test]
fn ready_items_are_delivered_before_a_step_in_one_place_that_blocks() {
    let expensive = || Graph::range(0..ITEMS).map(|n| n).concurrency(4);
    takes_what_is_before("map, scan", |stuck, gate| scanned(expensive(), stuck, gate));
    takes_what_is_before("map, scan, map", |stuck, gate| {
        scanned(expensive(), stuck, gate).map(|n| n).concurrency(2)
    });
    takes_what_is_before("request, scan, map", |stuck, gate| {
        scanned(Graph::range(0..ITEMS).map_async(request), stuck, gate).map(|n| n)
    });
    takes_what_is_before("map, through, request", |stuck, gate| {
        let passed = expensive().scan((), |(), n| Some(n)).through(move |input| {
            let gate = gate.clone();
            input.map(move |item| {
                if let Ok(item) = &item {
                    pass_at(stuck, **item, &gate);
                }
                item
            })
        });
        passed.map_async(request)
    });
}

#[test]
fn ready_items_are_delivered_before_a_map_that_blocks() {
    takes_what_is_before("map", |stuck, gate| {
        Graph::range(0..ITEMS).map(move |n| {
            if n == stuck {
                gate.pass();
            }
            n
        })
    });
    takes_what_is_before("map, concurrency", |stuck, gate| {
        let map = Graph::range(0..ITEMS).map(move |n| {
            if n == stuck {
                gate.pass();
            }
            n
        });
        map.concurrency(4).map(|n| n)
    });
}

#[test]
fn ready_items_are_delivered_before_a_filter_that_blocks() {
    takes_what_is_before("filter", |stuck, gate| {
        let kept = Graph::range(0..ITEMS).map(|n| n).filter(move |n| {
            if *n == stuck {
                gate.pass();
            }
            true
        });
        kept.try_map(Ok::<_, Error>)
    });
}

#[test]
fn ready_items_are_delivered_before_a_fan_out_that_blocks() {
    takes_what_is_before("flat_map", |stuck, gate| {
        Graph::range(0..ITEMS / 4).flat_map(move |n| {
            let gate = gate.clone();
            (4 * n..4 * n + 4).inspect(move |n| {
                if *n == stuck {
                    gate.pass();
                }
            })
        })
    });
}

#[test]
fn ready_items_are_delivered_before_a_request_that_waits() {
    takes_what_is_before("map_async", |stuck, gate| {
        Graph::range(0..ITEMS).map_async(move |n| {
            let waits = (n == stuck).then(|| gate.async_open());
            async move {
                if let Some(mut open) = waits {
                    open.wait_for(|open| *open).await.map_err(Error::user)?;
                }
                Ok::<_, Error>(n)
            }
        })
    });
}

/// The consumer of a batch is not woken for each of the many items of a piece, but for those that
/// fill the batch.
#[test]
fn full_batches_of_a_fan_out_are_delivered_before_an_item_that_blocks() {
    const FAN: u64 = 100;
    // Large items are made one by one, since each has to have its bytes first.
    for ((order, stuck), weight) in ORDERS
        .into_iter()
        .flat_map(|order| [10, 55, 450].map(|stuck| (order, stuck)))
        .flat_map(|case| [8, LARGE].map(|weight| (case, weight)))
    {
        let gate = Gate::default();
        let passes = gate.clone();
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
        let loader = DataLoader::builder(numbers.weighed(move |_| weight).batch(10))
            .memory(MEMORY)
            .workers(1)
            .order(order)
            .build()
            .unwrap();
        let what = format!("item {stuck} of {weight} bytes, {order}");
        let (first, rest) = takes_first(&what, loader, gate, (stuck - stuck / 64) / 10);
        let mut all: Vec<u64> = first.into_iter().chain(rest).flatten().collect();
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter(0..10 * FAN), "{what}");
    }
}

/// Takes this many items while the gate is shut, and the rest when it is open.
fn takes_first<T: Send + 'static>(
    what: &str,
    loader: DataLoader<T>,
    gate: Gate,
    count: u64,
) -> (Vec<T>, Vec<T>) {
    let (send, receive) = std::sync::mpsc::channel();
    let opens = gate.clone();
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
                gate.open();
                panic!("{what}: fewer than {count} come before what blocks")
            })
    };
    (next(), next())
}

/// Gives what comes as it comes, and notes how much comes at once.
struct Note(Arc<AtomicUsize>);

impl Pipe<u64> for Note {
    type Out = u64;

    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        Items::from_chunks(Noted(input, self.0.clone()))
    }
}

struct Noted(Items<u64>, Arc<AtomicUsize>);

impl Chunks<u64> for Noted {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, _: Demand) -> Poll<Option<Chunk<u64>>> {
        let chunk = self.0.poll_chunk(cx, Demand::up_to(64));
        if let Poll::Ready(Some(chunk)) = &chunk {
            self.1.fetch_max(chunk.len(), Ordering::Relaxed);
        }
        chunk
    }
}

/// To hand on each by itself costs more than to make it.
#[test]
fn large_items_of_a_fan_out_come_together_though_they_are_made_one_by_one() {
    let most = Arc::<AtomicUsize>::default();
    let numbers = Graph::range(0..2).flat_map(|n| 1000 * n..1000 * (n + 1));
    let graph = numbers.weighed(|_| LARGE).pipe(Note(most.clone()));
    let loader = DataLoader::builder(graph).memory(MEMORY).workers(1).build();
    let loader = loader.unwrap();
    let begun = Instant::now();
    // Items that take long, as on a busy machine, come one by one.
    while most.load(Ordering::Relaxed) <= 1 && begun.elapsed() < Duration::from_secs(20) {
        let all: Vec<u64> = loader.epoch(0).blocking().map(|n| n.unwrap()).collect();
        assert_eq!(all, Vec::from_iter(0..2000));
    }
    assert!(most.load(Ordering::Relaxed) > 1);
}
