//! Corner cases that a review found.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datapipes::pipes::{Demux, Fork};
use datapipes::{
    Context, DataLoader, Error, ErrorKind, Graph, Hints, Items, Order, Uneven, Work, testing,
};

/// Runs in a thread of its own, so that what hangs fails.
fn in_time<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(f()));
    receive
        .recv_timeout(Duration::from_secs(10))
        .expect("it hangs")
}

fn outcome(graph: Graph<u64>, workers: usize) -> Result<Vec<u64>, ErrorKind> {
    let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
    in_time(move || {
        loader
            .epoch(0)
            .blocking()
            .collect::<Result<Vec<_>, Error>>()
            .map_err(|e| e.kind())
    })
}

fn forked(buffer: usize) -> [Graph<u64>; 2] {
    let split = Graph::range(0..2000).split(Fork::new(2).buffer(buffer));
    split.try_into().unwrap_or_else(|_| unreachable!())
}

fn add(graph: Graph<(u64, u64)>) -> Graph<u64> {
    graph.through(|items: Items<(u64, u64)>| {
        futures::StreamExt::map(items, |item| item.map(|item| item.map(|(a, b)| a + b)))
    })
}

#[test]
fn a_segment_that_was_refused_asks_again_once_somebody_waits() {
    for workers in [0, 2] {
        let [a, b] = forked(10);
        let graph = Graph::concat([a.map(|n| n).concurrency(4), b]);
        assert_eq!(
            outcome(graph, workers),
            Err(ErrorKind::Config),
            "{workers} workers"
        );
    }
}

#[test]
fn a_queue_that_was_refused_asks_again_once_somebody_waits() {
    for workers in [0, 2] {
        let [a, b] = forked(10);
        assert_eq!(
            outcome(Graph::concat([a.prefetch(8), b]), workers),
            Err(ErrorKind::Config)
        );
    }
}

#[test]
fn an_output_that_nobody_polls_is_not_waited_for() {
    for workers in [0, 2] {
        let [a, b] = forked(10);
        let rare = a.through(|items: Items<u64>| {
            futures::StreamExt::filter(items, |n| {
                std::future::ready(n.as_ref().map_or(true, |n| **n % 1000 == 0))
            })
        });
        let graph = add(rare.zip(b.map(|n| n).concurrency(4)));
        assert_eq!(
            outcome(graph, workers),
            Err(ErrorKind::Config),
            "{workers} workers"
        );
    }
}

#[test]
fn what_runs_ahead_through_a_batch_may_be_refused_but_does_not_fail() {
    let [a, b] = forked(100);
    let graph = a
        .batch(10)
        .map(|b| b[0])
        .concurrency(64)
        .zip(b.batch(10).map(|b| b[0]));
    let graph = add(graph);
    let expected = outcome(graph.clone(), 0);
    assert_eq!(expected.as_ref().map(Vec::len), Ok(200));
    for workers in [1, 2, 4] {
        assert_eq!(
            outcome(graph.clone(), workers),
            expected,
            "{workers} workers"
        );
    }
}

#[test]
fn what_runs_ahead_through_other_pipes_may_be_refused_but_does_not_fail() {
    let graphs: Vec<fn(Graph<u64>) -> Graph<u64>> = vec![
        |a| a.take(1900).prefetch(50),
        |a| a.take(1900).map(|n| n).concurrency(50),
        |a| a.shuffle(5).prefetch(50),
        |a| a.flat_map(|n| [n]).concurrency(2).prefetch(50),
        |a| a.map(|n| n).concurrency(2).prefetch(50),
        |a| a.through(|items: Items<u64>| items).prefetch(50),
        |a| Graph::concat([a.take(1900)]).prefetch(50),
        |a| {
            let [c, d]: [Graph<u64>; 2] = a.fork();
            add(c.zip(d)).prefetch(50)
        },
    ];
    for (number, way) in graphs.into_iter().enumerate() {
        let [a, b] = forked(10);
        let graph = add(way(a).zip(b));
        let expected = outcome(graph.clone(), 0);
        assert!(expected.is_ok(), "graph {number}: {expected:?}");
        for workers in testing::some_of([1, 2, 4]) {
            for _ in 0..2 {
                assert_eq!(
                    outcome(graph.clone(), workers),
                    expected,
                    "graph {number}, {workers} workers"
                );
            }
        }
    }
}

#[test]
fn bounded_order_above_a_fan_out_is_bounded() {
    let graph = Graph::range(0..60)
        .map_async(|n| async move {
            tokio::time::sleep(Duration::from_micros(if n % 7 == 0 { 3000 } else { 100 })).await;
            Ok::<_, Error>(n)
        })
        .concurrency(16)
        .flat_map(|n| (0..10).map(move |k| 10 * n + k))
        .concurrency(16);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .order(Order::Bounded(8))
        .build()
        .unwrap();
    for (place, n) in loader.epoch(0).blocking().enumerate() {
        let moved = (n.unwrap() as i64 - place as i64).unsigned_abs();
        assert!(moved <= 8, "moved by {moved}");
    }
}

#[test]
fn what_a_fan_out_makes_stays_within_the_bytes() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    struct Heavy;
    impl Drop for Heavy {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    // Heavy ones weigh 1000 bytes each.
    let graph = Graph::range(0..64)
        .flat_map(|_| {
            (0..200).map(|_| {
                MOST.fetch_max(ALIVE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                Heavy
            })
        })
        .weighed(|_| 1000)
        .concurrency(64);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .memory(400_000)
        .prefetch(1)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    let mut count = 0;
    for item in epoch.by_ref() {
        drop(item.unwrap());
        count += 1;
        std::thread::sleep(Duration::from_micros(20));
    }
    assert_eq!(count, 64 * 200);
    let most = MOST.load(Ordering::SeqCst);
    assert!(most < 2 * 400, "{most} kB alive where 400 kB may wait");
}

#[test]
fn few_archives_may_feed_many_ranks_where_their_members_are_sharded() {
    let graph = Graph::range(0..3)
        .flat_map(|n| (0..100).map(move |k| 100 * n + k))
        .sharding_filter();
    let loader = DataLoader::builder(graph)
        .rank(5, 8)
        .uneven(Uneven::Drop)
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 37);
}

#[test]
fn an_iterator_that_ended_is_left_alone() {
    struct Unfused(u64);
    impl Iterator for Unfused {
        type Item = u64;
        fn next(&mut self) -> Option<u64> {
            self.0 += 1;
            (!self.0.is_multiple_of(50)).then_some(self.0)
        }
    }
    let graph = Graph::from_iter_with(|| Unfused(0)).map(|n| n);
    for workers in [0, 2] {
        let seen = outcome(graph.clone().take(1000), workers);
        assert_eq!(seen, Ok(Vec::from_iter(1..50)));
    }
}

#[test]
fn what_came_before_a_panic_is_delivered() {
    let graphs: Vec<Graph<u64>> = vec![
        Graph::range(0..500).scan((), |_, n| if n == 333 { panic!("no") } else { Some(n) }),
        Graph::range(0..500).through(|items: Items<u64>| {
            futures::StreamExt::map(items, |item| {
                assert!(item.as_ref().map_or(true, |n| **n != 333), "no");
                item
            })
        }),
        Graph::from_iter_with(|| (0..500).inspect(|n| assert!(*n != 333, "no"))),
    ];
    for (number, graph) in graphs.into_iter().enumerate() {
        for workers in [0, 1, 2] {
            for tail in [graph.clone(), graph.clone().map(|n| n).concurrency(3)] {
                let loader = DataLoader::builder(tail).workers(workers).build().unwrap();
                let seen: Vec<_> = loader.epoch(0).blocking().map_while(Result::ok).collect();
                assert_eq!(seen.len(), 333, "graph {number}, {workers} workers");
            }
        }
    }
}

#[test]
fn many_diamonds_are_planned_at_once() {
    let mut graph = Graph::range(0..4);
    for _ in 0..60 {
        graph = Graph::mux(graph.demux::<2>(|n| (*n % 2) as usize));
    }
    in_time(move || {
        DataLoader::builder(graph.map(|n| n))
            .workers(2)
            .build()
            .map(|_| ())
            .unwrap()
    });
}

/// Gives three items for each, and then waits for ever.
struct Subscribe;

impl datapipes::Pipe<u64> for Subscribe {
    type Out = u64;
    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        Items::from_stream(futures::StreamExt::flat_map(input, |item| {
            let item = item.unwrap();
            let some = (0..3).map(move |k| Ok(item.child(k, 10 * *item + k)));
            futures::StreamExt::chain(futures::stream::iter(some), futures::stream::pending())
        }))
    }
    fn hints(&self) -> Hints {
        datapipes::Hints::shardable().work(Work::Io)
    }
}

#[test]
fn what_is_there_is_delivered_before_its_morsel_is_through() {
    for workers in [0, 2] {
        let graph = Graph::range(0..100)
            .pipe(Subscribe)
            .concurrency(16)
            .batch(3);
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        let first = in_time(move || loader.epoch(0).blocking().next().unwrap().unwrap());
        assert_eq!(first, [0, 1, 2], "{workers} workers");
    }
}

/// Adds up what consecutive items of one parent are.
struct Family;

impl datapipes::Pipe<u64> for Family {
    type Out = u64;
    fn apply(&self, mut input: Items<u64>, _: &Context) -> Items<u64> {
        Items::generate(async move |out| {
            let mut sum: Option<datapipes::Item<u64>> = None;
            while let Some(item) = out.next_from(&mut input).await {
                match &mut sum {
                    Some(sum) if sum.origin().parent() == item.origin().parent() => **sum += *item,
                    _ => {
                        if let Some(sum) = sum.replace(item) {
                            out.emit(Ok(sum)).await;
                        }
                    }
                }
            }
            if let Some(sum) = sum {
                out.emit(Ok(sum)).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        datapipes::Hints::default().is_shardable_by_parent(true)
    }
}

#[test]
fn siblings_that_a_batch_has_cut_apart_are_grouped_in_one_place() {
    let members = Graph::range(0..50).flat_map(|n| (0..3).map(move |k| 10 * n + k));
    let graph = members
        .batch(4)
        .map(|batch| batch)
        .unbatch()
        .concurrency(8)
        .pipe(Family);
    let expected = outcome(graph.clone(), 0);
    assert_eq!(expected.as_ref().map(Vec::len), Ok(50));
    for workers in [1, 3] {
        assert_eq!(
            outcome(graph.clone(), workers),
            expected,
            "{workers} workers"
        );
    }
}

#[test]
fn what_a_queue_keeps_ready_stays_within_the_bytes() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    struct Heavy;
    impl Drop for Heavy {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let graph = Graph::from_iter_with(|| {
        (0..3000).map(|_| {
            MOST.fetch_max(ALIVE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            Heavy
        })
    });
    // Heavy ones weigh 1000 bytes each; 20 may wait.
    let graph = graph.weighed(|_| 1000).prefetch(1000);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .memory(40_000)
        .prefetch(100)
        .build()
        .unwrap();
    let count = loader
        .epoch(0)
        .blocking()
        .inspect(|_| std::thread::sleep(Duration::from_micros(50)))
        .count();
    assert_eq!(count, 3000);
    let most = MOST.load(Ordering::SeqCst);
    assert!(most < 100, "{most} kB alive where 40 kB may wait");
}

#[test]
fn what_is_through_is_delivered_though_the_others_wait_for_it_to_be_dropped() {
    for (permits, in_flight) in [(1, 64), (1, 200), (3, 200)] {
        let free = std::sync::Arc::new(tokio::sync::Semaphore::new(permits));
        let graph = Graph::range(0..100)
            .map_async(move |n| {
                let free = free.clone();
                async move { Ok::<_, Error>((n, free.acquire_owned().await.unwrap())) }
            })
            .concurrency(in_flight);
        let loader = DataLoader::builder(graph)
            .workers(2)
            .order(Order::Arrival)
            .build()
            .unwrap();
        let mut seen = in_time(move || {
            loader
                .epoch(0)
                .blocking()
                .map(|item| item.unwrap().0)
                .collect::<Vec<_>>()
        });
        seen.sort_unstable();
        assert_eq!(seen, Vec::from_iter(0..100), "{permits} of {in_flight}");
    }
}

#[test]
fn a_branch_of_a_fork_that_a_full_cache_does_not_read_holds_up_no_other() {
    for workers in [0, 2] {
        let [cached, past] = forked(10);
        let graph = Graph::mux([cached.repeat(1).cache(2000), past]);
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        for epoch in 0..3 {
            let all = loader
                .epoch(epoch)
                .blocking()
                .collect::<Result<Vec<_>, _>>();
            assert_eq!(all.unwrap(), Vec::from_iter((0..2000).flat_map(|n| [n, n])));
        }
    }
}

#[test]
fn a_branch_that_is_read_once_holds_up_no_other_that_is_read_in_rounds() {
    for workers in [0, 2] {
        let demux = Demux::new(2, |n: &u64| (n % 2) as usize).buffer(10);
        let mut branches = Graph::range(0..2000).split(demux);
        branches[0] = branches[0].clone().repeat(3);
        let all = outcome(Graph::mux(branches), workers).unwrap();
        let even = all.iter().filter(|n| n.is_multiple_of(2)).count();
        assert_eq!((even, all.len() - even), (3000, 1000));
    }
}
