//! The fault matrix: faults in user code, in the consumer, and in corner cases. The name of a test
//! contains its row in `tests/FAULTS.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes::pipes::{Batch, Fork, Stop, TryMap, Zip};
use datapipes::{
    Arity, Context, DataLoader, ErrorKind, Graph, Hints, Items, OnError, Order, Pipe, Uneven, Work,
    testing,
};
use futures::StreamExt;

const WORKERS: [usize; 4] = [0, 1, 2, 8];

/// Work that is expensive enough to be sent to a worker.
fn spin(n: u64) -> u64 {
    (0..20_000).fold(n, |n, i| std::hint::black_box(n ^ i)) ^ n ^ n
}

fn loader<T: Send + 'static>(graph: Graph<T>, workers: usize) -> DataLoader<T> {
    DataLoader::builder(graph)
        .workers(workers)
        .build()
        .expect("a right graph")
}

fn run<T: Send + 'static>(graph: Graph<T>, workers: usize) -> Result<Vec<T>, datapipes::Error> {
    loader(graph, workers).epoch(0).blocking().collect()
}

#[test]
fn row_1_a_panic_arrives_with_node_item_and_message() {
    for workers in WORKERS {
        for at in [0, 1, 25, 49] {
            let graph = Graph::range(0..50)
                .map(move |n| {
                    if n == at {
                        panic!("it is {n}")
                    } else {
                        spin(n)
                    }
                })
                .named("bad");
            let mut epoch = loader(graph, workers).epoch(0).blocking();
            let good: Vec<_> = epoch.by_ref().take_while(Result::is_ok).collect();
            assert_eq!(
                good.len() as u64,
                at,
                "what came before the panic is delivered"
            );
            assert!(epoch.next().is_none(), "the epoch has ended");
            let error = run(
                Graph::range(at..50)
                    .map(|n| -> u64 { panic!("it is {n}") })
                    .named("bad"),
                workers,
            )
            .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Panic);
            assert_eq!(error.to_string(), format!("bad: 0:0: panicked: it is {at}"));
        }
    }
}

#[test]
fn row_1_a_panic_is_never_skipped_and_the_loader_survives() {
    let graph = Graph::range(0..50).map(|n| if n == 20 { panic!("no") } else { spin(n) });
    let loader = DataLoader::builder(graph)
        .workers(2)
        .on_error(OnError::skip(1000))
        .build()
        .unwrap();
    for epoch in 0..20 {
        let results: Vec<_> = loader.epoch(epoch).blocking().collect();
        assert_eq!(results.len(), 21);
        assert_eq!(results[20].as_ref().unwrap_err().kind(), ErrorKind::Panic);
    }
}

#[test]
fn row_2_a_pipe_that_panics_outside_of_an_item_ends_its_stream_with_an_error() {
    for workers in WORKERS {
        let graph = Graph::range(0..50).through(|items: Items<u64>| {
            let mut seen = 0;
            items.inspect(move |_| {
                seen += 1;
                assert!(seen < 10, "ten");
            })
        });
        let results: Vec<_> = loader(graph.named("odd"), workers)
            .epoch(0)
            .blocking()
            .collect();
        let error = results.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.to_string(), "odd: panicked: ten");
        // A pipe that panics when it is applied.
        let graph = Graph::range(0..5)
            .through(|_: Items<u64>| -> Items<u64> { panic!("apply") })
            .named("odd");
        assert_eq!(
            run(graph, workers).unwrap_err().to_string(),
            "odd: panicked: apply"
        );
    }
}

#[test]
fn row_3_a_payload_or_item_that_panics_when_dropped_does_not_hang() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("dropped");
            }
        }
    }
    for workers in WORKERS {
        let graph = Graph::range(0..50).map(|n| {
            if n == 9 {
                std::panic::panic_any(Bomb)
            } else {
                spin(n)
            }
        });
        assert_eq!(run(graph, workers).unwrap_err().kind(), ErrorKind::Panic);
        let graph = Graph::range(0..50)
            .map(|n| (n == 9).then_some(Bomb))
            .filter(|bomb| bomb.is_none())
            .map(|_| ());
        assert!(run(graph, workers).is_err());
    }
}

#[test]
fn row_3_a_state_that_panics_when_dropped_costs_no_item() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("dropped");
            }
        }
    }
    struct Armed;
    impl Pipe<u64> for Armed {
        type Out = u64;
        fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
            let bomb = Bomb;
            input.each(cx, move |item| {
                let _ = &bomb;
                Some(Ok(item))
            })
        }
        fn hints(&self) -> Hints {
            Hints::shardable().work(Work::Io).arity(Arity::One)
        }
    }
    // No item is lost: the panic at the end of a morsel comes once its items are delivered.
    let graph = Graph::range(0..50).pipe(Armed);
    assert_eq!(run(graph, 2).unwrap(), Vec::from_iter(0..50));
}

#[test]
fn row_22_a_consumer_that_panics_while_it_holds_a_batch() {
    for workers in WORKERS {
        let loader = loader(Graph::range(0..1000).map(spin).batch(10), workers);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for batch in loader.epoch(0).blocking() {
                assert!(batch.unwrap()[0] < 50, "the consumer's own");
            }
        }));
        assert_eq!(
            panicked.unwrap_err().downcast_ref::<&str>(),
            Some(&"the consumer's own")
        );
        assert_eq!(
            loader.epoch(0).blocking().count(),
            100,
            "the next epoch is whole"
        );
    }
}

#[test]
fn rows_23_and_24_a_slow_consumer_holds_the_source_back() {
    for workers in WORKERS {
        let made = Arc::new(AtomicU64::new(0));
        let counter = made.clone();
        let graph = Graph::from_iter_with(move || {
            let counter = counter.clone();
            (0u64..).inspect(move |_| {
                counter.fetch_add(1, Ordering::SeqCst);
            })
        });
        let loader = DataLoader::builder(graph.map(spin).concurrency(16).batch(4))
            .workers(workers)
            .prefetch(3)
            .build();
        let mut epoch = loader.unwrap().epoch(0).blocking();
        for taken in 1..50 {
            epoch.next().unwrap().unwrap();
            // At most this is ahead: the queue and one batch after it, the batch being filled, the
            // pieces in flight, and the chunk in each of two hands. A source of the user's is read
            // on a thread of its own, through a queue that grows by one for every four items taken.
            let made = made.load(Ordering::SeqCst);
            let (ahead, feed) = (made.saturating_sub(4 * taken), (1 + made / 4).min(1024));
            assert!(
                ahead <= 4 * (3 + 1 + 1) + 16 + 2 * 16 + feed,
                "{ahead} ahead with {workers} workers"
            );
        }
    }
}

#[test]
fn row_25_works_in_and_out_of_any_runtime() {
    let graph = || Graph::range(0..300).map(spin).batch(7);
    let whole = run(graph(), 0).unwrap();
    for workers in WORKERS {
        let loader = loader(graph(), workers);
        let stream = |loader: DataLoader<Vec<u64>>| async move {
            loader
                .epoch(0)
                .map(Result::unwrap)
                .collect::<Vec<_>>()
                .await
        };
        // Without a runtime, in one of one thread, in one of several.
        assert_eq!(futures::executor::block_on(stream(loader.clone())), whole);
        let single = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        assert_eq!(single.block_on(stream(loader.clone())), whole);
        let several = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        assert_eq!(several.block_on(stream(loader.clone())), whole);
        // The blocking iterator inside a runtime, and an epoch and its loader dropped inside one.
        single.block_on(async {
            assert_eq!(
                loader
                    .epoch(0)
                    .blocking()
                    .map(Result::unwrap)
                    .collect::<Vec<_>>(),
                whole
            );
            let mut half = loader.epoch(0);
            half.next().await.unwrap().unwrap();
            drop(half);
            drop(loader);
        });
    }
    // Moved to another thread half-way.
    let mut epoch = loader(graph(), 2).epoch(0).blocking();
    let first = epoch.next().unwrap().unwrap();
    let rest = std::thread::spawn(move || epoch.map(Result::unwrap).collect::<Vec<_>>())
        .join()
        .unwrap();
    assert_eq!((first, rest.len()), (whole[0].clone(), whole.len() - 1));
}

#[test]
fn row_27_the_first_error_in_order_is_the_one_that_arrives() {
    for workers in WORKERS {
        let graph = Graph::range(0..100)
            .try_map(|n| if n == 60 { Err("late") } else { Ok(spin(n)) })
            .try_map(|n| if n == 30 { Err("early") } else { Ok(n) });
        assert_eq!(
            run(graph, workers).unwrap_err().to_string(),
            "try_map#2: 0:30: early"
        );
    }
}

#[test]
fn row_29_an_error_of_the_last_item_comes_before_the_end() {
    for workers in WORKERS {
        let graph = Graph::range(0..100)
            .try_map(|n| if n == 99 { Err("last") } else { Ok(spin(n)) })
            .batch(10);
        let results: Vec<_> = loader(graph, workers).epoch(0).blocking().collect();
        assert_eq!(results.len(), 10, "nine batches and the error");
        assert!(results[9].is_err());
    }
}

#[test]
fn rows_30_31_and_34_no_item_and_one_item_and_sizes_beyond_the_data() {
    for workers in WORKERS {
        for n in [0, 1, 2] {
            let graph = Graph::range(0..n).map(spin).shuffle(100).batch(50);
            let sizes: Vec<usize> = run(graph, workers).unwrap().iter().map(Vec::len).collect();
            assert_eq!(sizes, if n == 0 { vec![] } else { vec![n as usize] });
            let dropped = run(
                Graph::range(0..n).batch(Batch::new(50).drop_last()),
                workers,
            )
            .unwrap();
            assert!(dropped.is_empty());
            let buckets = Graph::range(0..n).bucket_batch(|_| 1, [1], [usize::MAX; 2]);
            let sizes: Vec<usize> = run(buckets, workers)
                .unwrap()
                .iter()
                .map(Vec::len)
                .collect();
            assert_eq!(sizes, if n == 0 { vec![] } else { vec![n as usize] });
        }
    }
}

#[test]
fn row_32_more_workers_than_items() {
    for items in 0..20 {
        for workers in [1, 3, 32] {
            let out = run(Graph::range(0..items).map(spin).concurrency(64), workers).unwrap();
            assert_eq!(out, Vec::from_iter(0..items));
        }
    }
}

#[test]
fn row_38_a_source_that_never_ends() {
    for workers in WORKERS {
        let loader = loader(Graph::from_iter_with(|| 0u64..).map(spin).batch(3), workers);
        let some: Vec<_> = loader
            .epoch(0)
            .blocking()
            .take(5)
            .map(Result::unwrap)
            .collect();
        assert_eq!(some.concat(), Vec::from_iter(0..15));
    }
}

#[test]
fn rows_39_and_40_epochs_side_by_side_are_whole_and_do_not_mix() {
    for workers in WORKERS {
        let loader = loader(
            Graph::range(0..200)
                .map(spin)
                .map_with_rng(|n, rng| (n, rng.next_u32())),
            workers,
        );
        let whole: Vec<Vec<_>> = (0..2)
            .map(|epoch| loader.epoch(epoch).blocking().map(Result::unwrap).collect())
            .collect();
        let pairs = loader.epoch(0).blocking().zip(loader.epoch(1).blocking());
        let (a, b): (Vec<_>, Vec<_>) = pairs.map(|(a, b)| (a.unwrap(), b.unwrap())).unzip();
        assert_eq!([&a, &b], [&whole[0], &whole[1]]);
        for restarts in 0..50 {
            let mut half = loader.epoch(0).blocking();
            for expected in &whole[0][..restarts % 7] {
                assert_eq!(half.next().unwrap().unwrap(), *expected);
            }
        }
        assert_eq!(
            loader
                .epoch(1)
                .blocking()
                .map(Result::unwrap)
                .collect::<Vec<_>>(),
            whole[1]
        );
    }
}

#[test]
fn row_44_a_function_that_blocks_does_not_stop_the_others() {
    // An item blocks until a later item has passed. The pool must continue meanwhile.
    let (send, receive) = std::sync::mpsc::channel();
    let (send, receive) = (std::sync::Mutex::new(send), std::sync::Mutex::new(receive));
    let pair = Arc::new((send, receive));
    let graph = Graph::range(0..64).map(spin).map(move |n| {
        match n {
            3 => pair
                .1
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(10))
                .expect("the others go on"),
            40 => pair.0.lock().unwrap().send(()).expect("somebody waits"),
            _ => {}
        }
        n
    });
    let loader = DataLoader::builder(graph.concurrency(64))
        .workers(2)
        .order(Order::Strict)
        .build()
        .unwrap();
    assert_eq!(
        loader
            .epoch(0)
            .blocking()
            .map(Result::unwrap)
            .collect::<Vec<_>>(),
        Vec::from_iter(0..64)
    );
}

#[test]
fn row_46_an_item_larger_than_its_edge_passes_alone() {
    let graph = Graph::range(0..20)
        .map(|n| vec![n as u8; 1 << 20])
        .weighed(Vec::len)
        .concurrency(8);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .memory(1000)
        .build()
        .unwrap();
    assert_eq!(
        loader
            .epoch(0)
            .blocking()
            .map(|v| v.unwrap().len())
            .sum::<usize>(),
        20 << 20
    );
}

#[test]
fn a_skip_budget_ends_with_an_error_that_says_so() {
    for workers in WORKERS {
        let graph = Graph::range(0..100)
            .try_map(|n| {
                if n % 10 == 0 {
                    Err("tenth")
                } else {
                    Ok(spin(n))
                }
            })
            .batch(9);
        let loader = DataLoader::builder(graph)
            .workers(workers)
            .on_error(OnError::skip(3))
            .build()
            .unwrap();
        let results: Vec<_> = loader.epoch(0).blocking().collect();
        let error = results.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        let text =
            "limit reached: 4 items failed where 3 may be skipped; the last: try_map: 0:30: tenth";
        assert_eq!(error.to_string(), text);
        let names: Vec<String> = loader
            .stats()
            .unwrap()
            .skipped_items
            .iter()
            .map(|s| s.item.as_ref().unwrap().to_string())
            .collect();
        assert_eq!(names, ["0:0", "0:10", "0:20"]);
        assert!(
            results[..results.len() - 1]
                .iter()
                .all(|batch| batch.as_ref().unwrap().len() == 9),
            "never shortened"
        );
    }
}

#[test]
fn a_runtime_that_is_shut_down_under_an_epoch_is_an_error_not_an_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    struct Wait;
    impl datapipes::Pipe<u64> for Wait {
        type Out = u64;
        fn apply(&self, input: Items<u64>, _: &datapipes::Context) -> Items<u64> {
            Items::from_stream(input.then(|item| async move {
                if item.as_ref().is_ok_and(|n| **n >= 5) {
                    std::future::pending::<()>().await;
                }
                item
            }))
        }
        fn hints(&self) -> Hints {
            datapipes::Hints::shardable().work(datapipes::Work::Io)
        }
    }
    let loader = loader(
        Graph::range(0..100).pipe(Wait).named("wait").concurrency(4),
        2,
    );
    let mut epoch = loader.epoch(0);
    runtime.block_on(async {
        for n in 0..5 {
            assert_eq!(epoch.next().await.unwrap().unwrap(), n);
        }
    });
    runtime.shutdown_background();
    let error = futures::executor::block_on(epoch.next())
        .unwrap()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("wait: wrong configuration: the async runtime was shut down"),
        "{error}"
    );
}

#[test]
fn dropping_an_epoch_with_work_in_hand_is_quick() {
    let graph = Graph::range(0..10_000).map(|n| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1) {}
        n
    });
    let loader = loader(graph.batch(100), 2);
    let mut epoch = loader.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let begun = Instant::now();
    drop(epoch);
    drop(loader);
    // 9900 items of 1 ms would be five seconds.
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}

/// Polls a stream `times` times without waiting, and returns the items that were ready.
fn poll_times<T: Send + 'static>(epoch: &mut datapipes::Epoch<T>, times: usize) -> Vec<T> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut ready = Vec::new();
    for _ in 0..times {
        match epoch.poll_next_unpin(&mut cx) {
            std::task::Poll::Ready(Some(item)) => ready.push(item.expect("nothing fails here")),
            std::task::Poll::Ready(None) => break,
            std::task::Poll::Pending => std::thread::yield_now(),
        }
    }
    ready
}

#[test]
fn row_26_a_batch_cancelled_half_way_is_dropped_and_no_item_twice() {
    /// Counts itself when made and when dropped.
    struct Token(Arc<[AtomicU64; 2]>);
    impl Drop for Token {
        fn drop(&mut self) {
            self.0[1].fetch_add(1, Ordering::SeqCst);
        }
    }
    for workers in [0, 2] {
        for polls in 0..60 {
            let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let make = counts.clone();
            let graph = Graph::range(0..40)
                .map_async(|n| async move {
                    tokio::task::yield_now().await;
                    Ok::<_, datapipes::Error>(n)
                })
                .map(move |_| {
                    make[0].fetch_add(1, Ordering::SeqCst);
                    Token(make.clone())
                })
                .batch(4);
            let loader = loader(graph, workers);
            let mut epoch = loader.epoch(0);
            let batches = poll_times(&mut epoch, polls);
            assert!(
                batches.iter().all(|batch| batch.len() == 4),
                "only whole batches before the end"
            );
            drop((epoch, loader, batches));
            let begun = Instant::now();
            let count = |which: usize| counts[which].load(Ordering::SeqCst);
            while count(1) < count(0) && begun.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
            }
            assert_eq!(
                count(1),
                count(0),
                "each item is dropped once, after {polls} polls"
            );
        }
    }
}

#[test]
fn row_28_what_fails_behind_the_last_item_wanted_is_not_seen() {
    for workers in WORKERS {
        for order in [Order::Strict, Order::Arrival, Order::Bounded(20)] {
            for panics in [false, true] {
                let graph = Graph::range(0..200).map(spin).try_map(move |n| match n {
                    50.. if panics => panic!("behind"),
                    50.. => Err("behind"),
                    n => Ok(n),
                });
                let graph = graph.concurrency(16);
                for graph in [graph.clone().take(50), graph.prefetch(7).take(50)] {
                    let builder = DataLoader::builder(graph).workers(workers).order(order);
                    let loader = builder.build().unwrap();
                    let out: datapipes::Result<Vec<u64>> = loader.epoch(0).blocking().collect();
                    assert_eq!(out.unwrap(), Vec::from_iter(0..50));
                }
            }
        }
        // A consumer that stops by itself does not see it, either.
        let graph =
            Graph::range(0..20).try_map(|n| if n < 5 { Ok(spin(n)) } else { Err("behind") });
        let loader = loader(graph, workers);
        let first: datapipes::Result<Vec<u64>> = loader.epoch(0).blocking().take(5).collect();
        assert_eq!(first.unwrap(), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn row_32_more_ranks_than_items() {
    for items in [0, 1, 7, 19] {
        for world in [1, 2, 7, 8] {
            for workers in [0, 1, 8] {
                let part = |rank| {
                    let graph = Graph::from_iter_with(move || 0..items)
                        .sharding_filter()
                        .map(spin);
                    let builder = DataLoader::builder(graph.concurrency(4).batch(3).unbatch());
                    let builder = builder
                        .workers(workers)
                        .rank(rank, world)
                        .uneven(Uneven::Allow);
                    let part: datapipes::Result<Vec<u64>> =
                        builder.build().unwrap().epoch(0).blocking().collect();
                    part.unwrap()
                };
                let mut all: Vec<u64> = (0..world).flat_map(part).collect();
                all.sort();
                assert_eq!(all, Vec::from_iter(0..items));
            }
        }
    }
    // A rank that would be empty is refused where that can be known.
    let graph = Graph::range(0..3).sharding_filter();
    let error = DataLoader::builder(graph)
        .rank(0, 4)
        .uneven(Uneven::Drop)
        .build()
        .unwrap_err();
    assert_eq!(
        error.problems(),
        ["sharding_filter: fewer items than ranks: 3 for 4"]
    );
}

#[test]
fn row_33_a_length_of_one_on_every_edge_and_none_of_zero() {
    let graph = |length: usize| {
        let mut outputs = Graph::range(0..300)
            .map(spin)
            .concurrency(length)
            .split(Fork::new(2).buffer(length));
        let (b, a) = (outputs.pop().unwrap(), outputs.pop().unwrap());
        let numbers = a
            .zip(b.map(|n| n + 1).concurrency(length))
            .map(|(a, b)| a * b)
            .prefetch(length);
        let waited = numbers.map_async(|n| async move {
            tokio::task::yield_now().await;
            Ok::<_, datapipes::Error>(n)
        });
        waited
            .concurrency(length)
            .flat_map(|n| n..n + n % 4)
            .concurrency(length)
            .prefetch(length)
            .batch(7)
    };
    let whole = run(graph(1000), 0).unwrap();
    for workers in WORKERS {
        for order in testing::some_of([Order::Strict, Order::Arrival, Order::Bounded(1)]) {
            let builder = DataLoader::builder(graph(1)).workers(workers).order(order);
            let loader = builder
                .prefetch(1)
                .concurrency(1)
                .memory(1)
                .build()
                .unwrap();
            let out: datapipes::Result<Vec<Vec<u64>>> = loader.epoch(0).blocking().collect();
            let mut out = out.unwrap();
            if order != Order::Strict {
                out = sorted_again(out, &whole);
            }
            assert_eq!(out, whole, "{workers} workers, {order} order");
        }
        let loader = DataLoader::builder(graph(2))
            .workers(workers)
            .prefetch(0)
            .build()
            .unwrap();
        let out: datapipes::Result<Vec<Vec<u64>>> = loader.epoch(0).blocking().collect();
        assert_eq!(
            out.unwrap(),
            whole,
            "without a queue in front of the consumer"
        );
    }
    let error = DataLoader::builder(graph(0))
        .concurrency(0)
        .memory(0)
        .build()
        .unwrap_err();
    let refused = [
        "map: a concurrency of zero",
        "fork: a buffer of zero items",
        "prefetch: a prefetch of zero items",
        "prefetch#2: a prefetch of zero items",
        "map#2: a concurrency of zero",
        "map_async: a concurrency of zero",
        "flat_map: a concurrency of zero",
        "a memory budget of zero bytes",
        "zero requests in flight",
    ];
    for problem in refused {
        assert!(
            error.problems().iter().any(|p| p == problem),
            "{problem} is not in: {error}"
        );
    }
}

/// Returns `like` if the batches contain the same numbers in any order, otherwise the batches.
fn sorted_again(batches: Vec<Vec<u64>>, like: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let (mut all, mut should) = (batches.concat(), like.concat());
    all.sort();
    should.sort();
    if all == should {
        like.to_vec()
    } else {
        batches
    }
}

#[test]
fn row_36_a_diamond_with_a_slow_or_filtering_branch() {
    for workers in WORKERS {
        for buffer in testing::some_of([1, 2, 10, 200]) {
            let fork = || {
                let mut outputs = Graph::range(0..200).split(Fork::new(2).buffer(buffer));
                let b = outputs.pop().unwrap();
                (outputs.pop().unwrap(), b)
            };
            let (a, b) = fork();
            let pairs = run(a.map(spin).concurrency(8).zip(b), workers).unwrap();
            assert_eq!(pairs, (0..200).map(|n| (n, n)).collect::<Vec<_>>());
            let (a, b) = fork();
            let pairs = run(Graph::join((a, b.map(spin)), Zip::new().strict()), workers).unwrap();
            assert_eq!(pairs.len(), 200);

            // A branch that filters makes the other wait: it is right, or an error that says who
            // waits for whom.
            for k in [2, 5, 300] {
                let (a, b) = fork();
                let filtered = b.filter(move |n| n % k == k - 1);
                match run(a.zip(filtered), workers) {
                    Ok(pairs) => {
                        let kept = (0..200).filter(|n| n % k == k - 1);
                        assert_eq!(pairs, (0..200).zip(kept).collect::<Vec<_>>());
                    }
                    Err(error) => {
                        assert!(buffer < 200, "{error}");
                        assert_eq!(error.kind(), ErrorKind::Config);
                        assert!(
                            error.to_string().contains("items ahead of output"),
                            "{error}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn row_37_interleave_and_mix_with_an_input_that_is_empty_failing_or_endless() {
    let empty = || Graph::range(0..0);
    let failing =
        || Graph::range(10..14).try_map(|n| if n % 2 == 0 { Err("even") } else { Ok(spin(n)) });
    let endless = || Graph::from_iter_with(|| 100..).map(spin);
    let mixed = |stop, last: Graph<u64>| {
        Graph::mix_until(
            stop,
            [(empty(), 1.0), (failing(), 1.0), (last.map(spin), 1.0)],
        )
    };
    let few = || Graph::range(100..103);
    let cases: Vec<(Graph<u64>, &[u64], u64)> = vec![
        (
            Graph::interleave([empty(), failing(), endless()], 3, 2).take(5),
            &[11, 100, 101, 13, 102],
            2,
        ),
        (
            Graph::interleave([failing(), empty(), endless()], 1, 9).take(4),
            &[11, 13, 100, 101],
            2,
        ),
        (
            Graph::interleave([endless(), failing()], 1, 1).take(3),
            &[100, 101, 102],
            0,
        ),
        (mixed(Stop::FirstExhausted, endless()), &[], 0),
        (
            mixed(Stop::AllExhausted, few()),
            &[100, 11, 101, 102, 13],
            2,
        ),
        (
            mixed(Stop::CycleForever, endless()).take(4),
            &[100, 11, 101, 102],
            2,
        ),
        (
            mixed(Stop::CycleForever, empty()).take(5),
            &[11, 13, 11, 13, 11],
            5,
        ),
    ];
    for (number, (graph, expected, failed)) in cases.into_iter().enumerate() {
        for workers in WORKERS {
            let builder = DataLoader::builder(graph.clone())
                .workers(workers)
                .on_error(OnError::skip(99));
            let loader = builder.build().unwrap();
            let out: datapipes::Result<Vec<u64>> = loader.epoch(0).blocking().collect();
            let out = out.unwrap();
            let skipped = loader.stats().unwrap().skipped;
            assert_eq!(
                (&out[..], skipped),
                (expected, failed),
                "case {number}, {workers} workers"
            );
        }
    }
}

#[test]
fn row_42_an_error_while_another_node_waits_in_a_full_queue() {
    for workers in WORKERS {
        for panics in [false, true] {
            let begun = Instant::now();
            // The nodes upstream of the failing node fill all their queues, and so does the other
            // input.
            let full = Graph::from_iter_with(|| 0u64..)
                .map(spin)
                .concurrency(4)
                .prefetch(2)
                .prefetch(1);
            let other = Graph::from_iter_with(|| 0u64..)
                .map(spin)
                .concurrency(4)
                .prefetch(1);
            let failing = full.try_map(move |n| match n {
                30 if panics => panic!("thirty"),
                30 => Err("thirty"),
                n => Ok(n),
            });
            let loader = loader(failing.zip(other).batch(10), workers);
            let results: Vec<_> = loader.epoch(0).blocking().collect();
            assert_eq!(results.len(), 4, "three batches and the error");
            let error = results[3].as_ref().unwrap_err().to_string();
            assert!(
                error.starts_with("try_map: 0:30: ") && error.ends_with("thirty"),
                "{error}"
            );
            drop(loader);
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "{:?}",
                begun.elapsed()
            );
        }
    }
}

#[test]
fn row_45_a_filter_that_drops_everything_ends_and_can_be_cancelled() {
    for workers in WORKERS {
        for pieces in [None, Some(8)] {
            let graph = Graph::range(0..20_000).filter(|_| false);
            let graph = match pieces {
                Some(pieces) => graph.concurrency(pieces),
                None => graph,
            };
            let loader = loader(graph.shuffle(10).batch(4), workers);
            assert_eq!(loader.epoch(0).blocking().count(), 0);
            let stats = loader.stats().unwrap();
            assert_eq!((stats.nodes[1].items, stats.nodes[1].dropped), (0, 20_000));
        }
        // Without end: whoever polls it is not held, and may drop it.
        let loader = loader(
            Graph::from_iter_with(|| 0u64..).filter(|_| false).batch(4),
            workers,
        );
        let mut epoch = loader.epoch(0);
        let begun = Instant::now();
        assert!(poll_times(&mut epoch, 50).is_empty());
        drop((epoch, loader));
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn row_49_a_log_that_panics_costs_no_item() {
    use tracing::span;
    struct Bad;
    impl tracing::Subscriber for Bad {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            panic!("the log is broken");
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    for workers in WORKERS {
        let odd = TryMap::new(|n: u64| if n == 3 { Err("three") } else { Ok(n) });
        // Each of these steps says something: it tries again, it has no room, an item is skipped.
        let graph = Graph::range(0..10).retry(2, odd).cache(4);
        let builder = DataLoader::builder(graph)
            .workers(workers)
            .on_error(OnError::skip(5));
        let loader = builder.build().unwrap();
        let out: datapipes::Result<Vec<u64>> =
            tracing::subscriber::with_default(Bad, || loader.epoch(0).blocking().collect());
        assert_eq!(out.unwrap(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    }
}

#[test]
fn row_50_the_same_value_twice_is_two_items() {
    for workers in WORKERS {
        let keys = Graph::from_vec(vec!["a", "b", "a", "a"])
            .map(|key| (key, spin(1)))
            .shuffle(2);
        let items: Vec<_> = loader(keys, workers)
            .epoch(0)
            .blocking()
            .items()
            .map(Result::unwrap)
            .collect();
        let mut origins: Vec<String> = items.iter().map(|item| item.origin().to_string()).collect();
        origins.sort();
        assert_eq!(origins, ["0:0", "0:1", "0:2", "0:3"]);
        assert_eq!(items.iter().filter(|item| item.0 == "a").count(), 3);
    }
}

/// A cycle cannot be written down, and stages whose types do not fit do not compile.
#[test]
fn row_35_two_consumers_of_one_edge_are_refused_by_name() {
    let numbers = Graph::range(0..3).named("numbers");
    let error = DataLoader::builder(numbers.clone().zip(numbers))
        .build()
        .unwrap_err();
    assert!(
        error.problems()[0].starts_with("numbers: feeds 2 nodes; use `fork`"),
        "{error}"
    );
}

/// Polled by one task and then awaited by another, item for item: the latest waker is the one that
/// counts.
#[test]
fn row_43_a_waker_that_moves_between_tasks_loses_no_wake() {
    for workers in WORKERS {
        let mut epoch = loader(
            Graph::range(0..200).map(spin).concurrency(4).batch(3),
            workers,
        )
        .epoch(0);
        let mut all = Vec::new();
        loop {
            let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
            let next = match epoch.poll_next_unpin(&mut nobody) {
                std::task::Poll::Ready(next) => next,
                std::task::Poll::Pending => futures::executor::block_on(epoch.next()),
            };
            match next {
                Some(batch) => all.extend(batch.unwrap()),
                None => break,
            }
        }
        assert_eq!(all, Vec::from_iter(0..200));
    }
}
