//! Law 12: the thread of an async runtime runs no functions of the graph. Also loaders inside of
//! their own functions, and of each other's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use datapipes::index::{Drawn, Draws, Sampler};
use datapipes::pipes::{Demux, Retry, Stop, TryMap};
use datapipes::{
    Arity, BoxError, Checkpoint, Context, DataLoader, ErrorKind, Graph, Hints, Indexed, Items,
    Join, Order, Pipe, Rng, Source, Uneven, testing,
};
use futures::{FutureExt, StreamExt};
use proptest::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::graphs::{Run, Spec, config, spec, strict_run};
use crate::resume::resumable;
use crate::user_pipes::Dealer;

/// The threads on which each function ran.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<&'static str, Vec<ThreadId>>>>);

impl Seen {
    fn at(&self, what: &'static str) {
        let mut seen = self.0.lock().unwrap();
        let threads = seen.entry(what).or_default();
        let here = std::thread::current().id();
        if !threads.contains(&here) {
            threads.push(here);
        }
    }

    /// Notes that `what` runs, where it is called.
    fn note(&self, what: &'static str) -> impl Fn() + Clone + Send + Sync + 'static {
        let seen = self.clone();
        move || seen.at(what)
    }

    /// Functions that ran on this thread.
    fn here(&self) -> Vec<&'static str> {
        let here = std::thread::current().id();
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, on)| on.contains(&here))
            .map(|(what, _)| *what)
            .collect()
    }

    fn all(&self) -> BTreeSet<&'static str> {
        self.0.lock().unwrap().keys().copied().collect()
    }
}

/// Notes where it is dropped, and what is alive.
struct Dropped(Seen, &'static str, Arc<AtomicU64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.at(self.1);
        self.2.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A source, a pipe and a join of a user, which note where they are applied, polled and dropped.
struct Own {
    seen: Seen,
    shardable: bool,
    alive: Arc<AtomicU64>,
}

impl Own {
    fn noted(&self, items: Items<u64>, cx: &Context) -> Items<u64> {
        self.seen.at("apply");
        self.alive.fetch_add(1, Ordering::SeqCst);
        let (seen, held) = (
            self.seen.clone(),
            Dropped(self.seen.clone(), "drop", self.alive.clone()),
        );
        items.each(cx, move |item| {
            let _ = &held;
            seen.at("poll");
            Some(Ok(item))
        })
    }
}

impl Pipe<u64> for Own {
    type Out = u64;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
        self.noted(input, cx)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_shardable(self.shardable)
            .arity(Arity::One)
            .is_resumable(true)
    }
}

impl Source for Own {
    type Out = u64;

    fn open(&self, cx: &Context) -> Items<u64> {
        let numbers = (0..60u64)
            .map(|n| Ok(datapipes::Item::new(n, cx.origin(n))))
            .collect::<Vec<_>>();
        self.noted(Items::from_results(numbers), cx)
    }
}

impl Join<(u64, u64)> for Own {
    type Out = u64;

    fn join(&self, (a, b): (Items<u64>, Items<u64>), cx: &Context) -> Items<u64> {
        let both = a
            .zip(b)
            .map(|(a, b)| Ok(a?.map(|n| n ^ b.map_or(0, |b| *b))));
        self.noted(Items::from_stream(both), cx)
    }
}

#[derive(Clone)]
struct Noted(Seen);

impl std::fmt::Debug for Noted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Noted")
    }
}

impl Sampler for Noted {
    fn len(&self, len: u64) -> u64 {
        len
    }
    fn start(&self, _: u64, _: &mut Rng) -> Draws {
        self.0.at("sampler");
        let seen = self.0.clone();
        Box::new(move |position| {
            seen.at("draw");
            Drawn::once(position)
        })
    }
}

/// A graph with a function of each kind, and whose items note where they are dropped that never
/// reach the consumer.
fn everything(seen: &Seen, alive: &Arc<AtomicU64>) -> Graph<u64> {
    let own = |shardable| Own {
        seen: seen.clone(),
        shardable,
        alive: alive.clone(),
    };
    let [at, at2, at3, at4, at5] =
        ["make", "iterator", "map", "try_map", "map_random"].map(|what| seen.note(what));
    let numbers = Graph::from_iter_with(move || {
        at();
        let at = at2.clone();
        (0..60u64).inspect(move |_| at())
    });
    let numbers = numbers
        .map(move |n| {
            at3();
            n
        })
        .try_map(move |n| {
            at4();
            Ok::<_, BoxError>(n)
        })
        .map_with_rng(move |n, rng| {
            at5();
            n ^ (rng.next_u64() & 1)
        });
    let [at, at2, at3, at4, at5] =
        ["filter", "flat_map", "map_async", "future", "weighed"].map(|what| seen.note(what));
    let numbers = numbers
        .filter(move |_| {
            at();
            true
        })
        .flat_map(move |n| {
            at2();
            [n]
        })
        .map_async(move |n| {
            at3();
            let at = at4.clone();
            async move {
                at();
                tokio::task::yield_now().await;
                Ok::<_, BoxError>(n)
            }
        })
        .weighed(move |_| {
            at5();
            8
        });
    let [at, at2, at3, at4, at5] =
        ["through", "stream", "scan", "inspect", "bucket"].map(|what| seen.note(what));
    let numbers = numbers
        .pipe(own(true))
        .pipe(own(false))
        .through(move |items: Items<u64>| {
            at();
            let at = at2.clone();
            items.inspect(move |_| at())
        })
        .scan(0, move |_, n| {
            at3();
            Some(n)
        })
        .inspect(move |_| at4())
        .bucket_batch(
            move |n| {
                at5();
                *n as usize
            },
            [30],
            [3, 3],
        )
        .unbatch();
    let [at, at2, at3, at4, at5] =
        ["collate_with", "retry", "demux", "mix_by", "indexed"].map(|what| seen.note(what));
    let tried = Retry::new(
        TryMap::new(move |n: u64| {
            at2();
            Ok::<_, BoxError>(n)
        }),
        2,
    );
    let numbers = numbers
        .batch(3)
        .collate_with(move |batch| {
            at();
            Ok::<_, BoxError>(batch.into_iter().sum::<u64>())
        })
        .pipe(tried);
    let dealt = numbers.split(Demux::new(2, move |n: &u64| {
        at3();
        (*n % 2) as usize
    }));
    let mixed = Graph::mix_by(Stop::AllExhausted, dealt, move |_| {
        at4();
        vec![1.0, 1.0]
    });
    let at = seen.note("index map");
    let read = Indexed::from_fn(40, move |n| {
        at5();
        async move { Ok::<_, BoxError>(n) }
    })
    .sampled(Noted(seen.clone()));
    let read = read.map(move |n| {
        at();
        n
    });
    let joined = Graph::join((Graph::source(own(false)), read.fetch()), own(false));
    let all = Graph::concat([mixed, joined]).repeat(2);
    // Items that are dropped on their way, or when the epoch is.
    let (seen, alive) = (seen.clone(), alive.clone());
    let held = all.map(move |n| {
        alive.fetch_add(1, Ordering::SeqCst);
        (n, Some(Dropped(seen.clone(), "item", alive.clone())))
    });
    held.prefetch(2).map(|(n, held)| {
        drop(held);
        n
    })
}

const EVERYTHING: [&str; 25] = [
    "apply",
    "bucket",
    "collate_with",
    "demux",
    "draw",
    "drop",
    "filter",
    "flat_map",
    "future",
    "index map",
    "indexed",
    "inspect",
    "item",
    "iterator",
    "make",
    "map",
    "map_async",
    "map_random",
    "mix_by",
    "poll",
    "retry",
    "sampler",
    "scan",
    "stream",
    "through",
];

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn several() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Polls with a deadline.
fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "not after 20 s: {what}"
        );
        std::thread::yield_now();
    }
}

/// Runs it on a thread of its own, for so long at most: what hangs fails.
fn in_time<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || send.send(run()));
    match receive.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sent nothing"))
        }
    }
}

#[test]
fn law_12_an_epoch_polled_as_a_stream_runs_no_function_of_the_user_on_the_thread_that_polls() {
    for runtime in [single(), several()] {
        for workers in testing::some_of([1, 2, 8]) {
            for prefetch in [None, Some(0), Some(1)] {
                let (seen, alive) = (Seen::default(), Arc::<AtomicU64>::default());
                let graph = everything(&seen, &alive);
                let builder = DataLoader::builder(graph).workers(workers);
                let builder = prefetch.map_or(
                    DataLoader::builder(everything(&seen, &alive)).workers(workers),
                    |items| builder.prefetch(items),
                );
                let loader = builder.build().unwrap();
                runtime.block_on(async {
                    for (number, most) in
                        [(0, usize::MAX), (1, usize::MAX), (2, 0), (3, 1), (4, 30)]
                    {
                        let mut epoch = loader.epoch(number);
                        let mut taken = 0;
                        while taken < most
                            && let Some(item) = epoch.next().await
                        {
                            item.unwrap();
                            taken += 1;
                        }
                        drop(epoch);
                        assert_eq!(
                            seen.here(),
                            [""; 0],
                            "on the thread that polls, epoch {number}"
                        );
                    }
                });
                soon("all that was made is dropped", || {
                    alive.load(Ordering::SeqCst) == 0
                });
                assert_eq!(seen.here(), [""; 0], "on the thread that polls");
                let missed: Vec<_> = EVERYTHING
                    .iter()
                    .filter(|what| !seen.all().contains(*what))
                    .collect();
                assert!(
                    missed.is_empty(),
                    "never ran: {missed:?} of {:?}",
                    seen.all()
                );
            }
        }
    }
}

/// Adds two pipes after a graph, before the consumer. They note where they are applied, polled and
/// dropped.
fn watched(spec: &Spec, seen: &Seen, alive: &Arc<AtomicU64>, sharded: bool) -> Graph<u64> {
    let own = |shardable| Own {
        seen: seen.clone(),
        shardable,
        alive: alive.clone(),
    };
    let graph = if sharded {
        spec.sharded(0, Dealer::FilterPadded)
    } else {
        spec.graph()
    };
    graph.pipe(own(true)).pipe(own(false))
}

proptest! {
    #![proptest_config(config(60))]

    /// Law 12 over generated graphs: first epochs and later ones, such as are dropped, resumed
    /// ones, and ranks in turn.
    #[test]
    fn law_12_over_generated_graphs(
        spec in resumable(spec()), run in strict_run(), stop in 0usize..60, runtime in any::<bool>(),
    ) {
        let run = Run { workers: run.workers.max(1), ..run };
        let (seen, alive) = (Seen::default(), Arc::<AtomicU64>::default());
        let runtime = if runtime { single() } else { several() };
        let build = |rank: Option<usize>| {
            let builder = run.builder(watched(&spec, &seen, &alive, rank.is_some())).resumable();
            match rank {
                None => builder,
                Some(rank) => builder.rank(rank, 2).uneven(Uneven::Pad),
            }
            .build()
        };
        let text = |item: datapipes::Result<u64>| item.map_err(|error| error.to_string());
        let plain: Vec<_> = run.loader(&spec).epoch(run.epoch).blocking().map(text).collect();
        let loader = build(None).unwrap();
        runtime.block_on(async {
            let streamed: Vec<_> = loader.epoch(run.epoch).map(text).collect().await;
            assert_eq!(streamed, plain);
            let mut epoch = loader.epoch(run.epoch);
            let first: Vec<_> = epoch.by_ref().take(stop).map(text).collect().await;
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            let rest: Vec<_> = loader.resume(&state).unwrap().map(text).collect().await;
            if first.iter().all(Result::is_ok) {
                assert_eq!([first, rest].concat(), plain);
            }
            // The rest of two ranks, in turn.
            let mut states = Vec::new();
            // Not every graph resumes that can be dealt to ranks.
            for rank in [0, 1].into_iter().filter_map(|rank| build(Some(rank)).ok()) {
                let mut epoch = rank.epoch(run.epoch);
                epoch.by_ref().take(stop / 3).for_each(|_| async {}).await;
                states.push(epoch.checkpoint().unwrap());
            }
            if let Ok(merged) = Checkpoint::merge(&states) {
                let alone = run.builder(watched(&spec, &seen, &alive, true)).resumable().build().unwrap();
                if let Ok(epoch) = alone.resume(&merged) {
                    epoch.for_each(|_| async {}).await;
                }
            }
        });
        drop(loader);
        soon("all is dropped", || alive.load(Ordering::SeqCst) == 0);
        prop_assert_eq!(seen.here(), [""; 0]);
        prop_assert!(spec.items == 0 || !seen.all().is_empty());
    }
}

/// Checkpoints are taken before, while and after the epoch is wired.
#[test]
fn a_state_of_a_stream_is_right_at_any_time() {
    let graph = || Graph::range(0..500).shuffle(50).map(|n| n * 3).batch(4);
    let loader = DataLoader::builder(graph())
        .workers(2)
        .resumable()
        .build()
        .unwrap();
    let whole: Vec<_> = loader.epoch(3).blocking().map(Result::unwrap).collect();
    single().block_on(async {
        let mut state = loader.epoch(3).checkpoint().unwrap();
        let mut all: Vec<Vec<u64>> = Vec::new();
        for stop in [0, 1, 0, 0, 7, 30] {
            let mut epoch = loader.resume(&state).unwrap();
            // Polled once, so that it begins.
            if stop == 0
                && let Some(item) = epoch.next().now_or_never()
            {
                all.push(item.unwrap().unwrap());
            }
            for _ in 0..stop {
                all.push(epoch.next().await.unwrap().unwrap());
            }
            state = epoch.checkpoint().unwrap();
            assert_eq!(all, whole[..all.len()]);
        }
        let rest: Vec<_> = loader
            .resume(&state)
            .unwrap()
            .map(Result::unwrap)
            .collect()
            .await;
        assert_eq!([all, rest].concat(), whole);
    });
}

/// The case: a closure that takes long, under a timeout of the consumer's.
#[test]
fn a_function_that_takes_long_does_not_hold_up_the_runtime_and_times_out() {
    for (several_threads, dropped) in [(false, false), (false, true), (true, false), (true, true)] {
        in_time("a timeout", move || {
            let runtime = if several_threads { several() } else { single() };
            let (release, wait) = mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            let graph = Graph::range(0..4).map(move |n| {
                if n == 0 {
                    // Until the sender is gone.
                    let _ = wait.lock().unwrap().recv();
                }
                n
            });
            let loader = DataLoader::builder(graph).workers(1).build().unwrap();
            runtime.block_on(async {
                let mut epoch = loader.epoch(0);
                let timed = tokio::time::timeout(Duration::from_millis(20), epoch.next()).await;
                assert!(timed.is_err(), "it gave an item");
                if dropped {
                    // Neither does dropping all wait for the function.
                    drop((epoch, loader));
                    drop(release);
                } else {
                    drop(release);
                    let rest: Vec<_> = epoch.map(Result::unwrap).collect().await;
                    assert_eq!(rest, [0, 1, 2, 3]);
                }
            });
        });
    }
}

/// The second case, 25 of 25.
#[test]
fn block_on_in_a_function_works_under_any_runtime() {
    for runtime in [single(), several()] {
        for workers in [1, 2, 8] {
            let handle = runtime.handle().clone();
            let graph = Graph::range(0..40)
                .map(|n| Handle::current().block_on(async move { n + 1 }))
                .map(move |n| {
                    handle.block_on(async move {
                        tokio::task::yield_now().await;
                        n + 1
                    })
                })
                .scan(0, |_, n| {
                    Some(Handle::current().block_on(async move { n + 1 }))
                })
                .batch(3)
                .collate_with(|batch| {
                    Ok::<_, BoxError>(Handle::current().block_on(async { batch.len() }))
                });
            let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
            for epoch in 0..3 {
                let sizes: Vec<_> =
                    runtime.block_on(loader.epoch(epoch).map(Result::unwrap).collect::<Vec<_>>());
                assert_eq!(sizes.iter().sum::<usize>(), 40);
            }
        }
    }
}

/// The thread of a device stage is the consumer.
#[test]
fn law_12_with_a_device_stage() {
    let runtime = single();
    for workers in [0, 1, 2] {
        let (seen, alive) = (Seen::default(), Arc::<AtomicU64>::default());
        let loader = DataLoader::builder(everything(&seen, &alive))
            .workers(workers)
            .build()
            .unwrap();
        let (upload, count) = (seen.clone(), alive.clone());
        let on_device = loader.prefetch_to_device(move |n| {
            upload.at("upload");
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, BoxError>((n, Dropped(upload.clone(), "uploaded", count.clone())))
        });
        runtime.block_on(async {
            for most in [0, 1, 5] {
                let mut epoch = on_device.epoch(0);
                for _ in 0..most {
                    // The consumer's own, to be dropped where it likes.
                    let (_, mut taken) = epoch.next().await.unwrap().unwrap();
                    taken.1 = "taken";
                }
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                if let std::task::Poll::Ready(Some(Ok((_, mut taken)))) =
                    epoch.poll_next_unpin(&mut cx)
                {
                    taken.1 = "taken";
                }
                drop(epoch);
            }
        });
        drop((on_device, loader));
        soon("all is dropped", || alive.load(Ordering::SeqCst) == 0);
        let here: Vec<_> = seen
            .here()
            .into_iter()
            .filter(|what| *what != "taken")
            .collect();
        assert_eq!(here, [""; 0], "{workers} workers");
        assert!(seen.all().contains("upload"));
    }
}

/// A pipe that panics when it is applied is an error that names it, wherever it is applied.
#[test]
fn a_pipe_that_panics_when_it_is_wired_is_an_error_in_a_stream_and_in_an_iterator() {
    struct Broken(bool);
    impl Pipe<u64> for Broken {
        type Out = u64;

        fn apply(&self, _: Items<u64>, _: &Context) -> Items<u64> {
            panic!("apply")
        }
        fn hints(&self) -> Hints {
            Hints::default().is_shardable(self.0).arity(Arity::One)
        }
    }
    for shardable in [false, true] {
        for workers in [0, 1, 2] {
            let graph = Graph::range(0..5).pipe(Broken(shardable)).named("odd");
            let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
            let plain = loader.epoch(0).blocking().next().unwrap().unwrap_err();
            let streamed = single()
                .block_on(loader.epoch(0).next())
                .unwrap()
                .unwrap_err();
            assert_eq!(
                [plain, streamed].map(|error| error.to_string()),
                ["odd: panicked: apply"; 2]
            );
        }
    }
}

/// Cheap work may, with the blocking iterator, stay on its caller's thread, and no thread is
/// started for it.
#[test]
fn the_blocking_iterator_runs_what_is_cheap_where_it_is_called() {
    let seen = Seen::default();
    let at = seen.note("map");
    let graph = Graph::range(0..100).map(move |n| {
        at();
        n
    });
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    assert!(loader.epoch(0).blocking().next().unwrap().is_ok());
    assert_eq!(seen.here(), ["map"]);
}

/// A loader that its own functions know.
type Late<T> = Arc<OnceLock<DataLoader<T>>>;

fn says_so<T: std::fmt::Debug>(inner: &datapipes::Result<T>) {
    let error = inner.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error
            .to_string()
            .contains("inside a function of the same loader"),
        "{error}"
    );
}

/// Reads the first item of an epoch of a loader inside one of the loader's own functions, in each
/// way to ask for it.
#[test]
fn an_epoch_inside_a_function_of_its_own_loader_is_an_error_and_no_deadlock() {
    type Make = fn(Late<u64>, mpsc::Sender<datapipes::Result<u64>>) -> Graph<u64>;
    fn inner(late: &Late<u64>) -> datapipes::Result<u64> {
        late.get().unwrap().epoch(1).blocking().next().unwrap()
    }
    fn expensive(n: u64) -> u64 {
        (0..20_000).fold(n, |n, i| std::hint::black_box(n ^ i)) ^ n ^ n
    }
    let graphs: [(&str, Make); 9] = [
        ("map", |late, send| {
            Graph::range(0..9).map(move |n| {
                let _ = send.send(inner(&late));
                n
            })
        }),
        ("map on workers", |late, send| {
            let graph = Graph::range(0..99).map(move |n| {
                if n == 50 {
                    let _ = send.send(inner(&late));
                }
                expensive(n)
            });
            graph.concurrency(4)
        }),
        ("filter", |late, send| {
            Graph::range(0..9).filter(move |_| {
                let _ = send.send(inner(&late));
                true
            })
        }),
        ("map_async, blocking", |late, send| {
            Graph::range(0..9).map_async(move |n| {
                let (late, send) = (late.clone(), send.clone());
                async move {
                    let _ = send.send(inner(&late));
                    Ok::<_, BoxError>(n)
                }
            })
        }),
        ("map_async, polled", |late, send| {
            Graph::range(0..9).map_async(move |n| {
                let (late, send) = (late.clone(), send.clone());
                async move {
                    let _ = send.send(late.get().unwrap().epoch(1).next().await.unwrap());
                    Ok::<_, BoxError>(n)
                }
            })
        }),
        ("blocking work", |late, send| {
            Graph::range(0..9).map_async(move |n| {
                let (late, send) = (late.clone(), send.clone());
                datapipes::blocking(move || {
                    let _ = send.send(inner(&late));
                    n
                })
            })
        }),
        ("block_on", |late, send| {
            Graph::range(0..9).map(move |n| {
                let mut epoch = late.get().unwrap().epoch(1);
                let _ = send.send(Handle::current().block_on(epoch.next()).unwrap());
                n
            })
        }),
        ("source", |late, send| {
            Graph::from_iter_with(move || {
                let (late, send) = (late.clone(), send.clone());
                (0..9).inspect(move |_| drop(send.send(inner(&late))))
            })
        }),
        ("device", |late, send| {
            Graph::range(0..9).map(move |n| {
                let on_device = late.get().unwrap().prefetch_to_device(Ok::<_, BoxError>);
                let _ = send.send(on_device.epoch(1).blocking().next().unwrap());
                n
            })
        }),
    ];
    for (name, make) in graphs {
        for workers in [0, 1, 2] {
            for streamed in [false, true] {
                if name == "block_on" && workers == 0 && streamed {
                    // Without workers all runs on the runtime's thread, which may not wait so.
                    continue;
                }
                in_time(name, move || {
                    let (late, (send, said)) = (Late::default(), mpsc::channel());
                    let loader = DataLoader::builder(make(late.clone(), send))
                        .workers(workers)
                        .build()
                        .unwrap();
                    assert!(late.set(loader.clone()).is_ok());
                    // The outer epoch is whole.
                    let outer: Vec<_> = match streamed {
                        false => loader.epoch(0).blocking().map(Result::unwrap).collect(),
                        true => single().block_on(loader.epoch(0).map(Result::unwrap).collect()),
                    };
                    assert!(outer.iter().copied().eq(0..outer.len() as u64) && outer.len() >= 9);
                    let inner: Vec<_> = said.try_iter().collect();
                    assert!(!inner.is_empty(), "{name}");
                    inner.iter().for_each(says_so);
                });
            }
        }
    }
}

/// A runs B, whose function runs A.
#[test]
fn loaders_inside_of_each_other_are_an_error_and_one_inside_the_other_is_none() {
    for workers in [0, 1, 2] {
        for streamed in [false, true] {
            in_time("A in B in A", move || {
                let late = Late::<u64>::default();
                let (again, (send, said)) = (late.clone(), mpsc::channel());
                let inner = Graph::range(0..5).map(move |n| {
                    let _ = send.send(again.get().unwrap().epoch(1).blocking().next().unwrap());
                    n
                });
                let inner = DataLoader::builder(inner).workers(workers).build().unwrap();
                let outer = Graph::range(0..3)
                    .map(move |n| n + inner.epoch(n).blocking().map(Result::unwrap).sum::<u64>());
                let outer = DataLoader::builder(outer).workers(workers).build().unwrap();
                assert!(late.set(outer.clone()).is_ok());
                let sums: Vec<_> = match streamed {
                    false => outer.epoch(0).blocking().map(Result::unwrap).collect(),
                    true => several().block_on(outer.epoch(0).map(Result::unwrap).collect()),
                };
                assert_eq!(sums, [10, 11, 12]);
                let inner: Vec<_> = said.try_iter().collect();
                assert_eq!(inner.len(), 15);
                inner.iter().for_each(says_so);
            });
        }
    }
}

/// Another loader inside a function works, wherever it is asked: on a worker, on the runtime's only
/// thread, as blocking work.
#[test]
fn another_loader_inside_a_function_works() {
    for workers in [0, 1, 2] {
        for inner_workers in [0, 1, 2] {
            in_time("another loader", move || {
                let graph = Graph::range(0..20)
                    .map_async(|n| async move {
                        tokio::task::yield_now().await;
                        Ok::<_, BoxError>(n)
                    })
                    .map(|n| n * 2)
                    .batch(3);
                let inner = DataLoader::builder(graph)
                    .workers(inner_workers)
                    .build()
                    .unwrap();
                let sum = |inner: &DataLoader<Vec<u64>>| {
                    inner
                        .epoch(0)
                        .blocking()
                        .map(|batch| batch.unwrap().iter().sum::<u64>())
                        .sum::<u64>()
                };
                let [a, b, c, d] = [(); 4].map(|()| inner.clone());
                let outer = Graph::range(0..6)
                    .map(move |n| n + sum(&a))
                    .map_async(move |n| {
                        let n = n + sum(&b);
                        async move { Ok::<_, BoxError>(n) }
                    })
                    .map_async(move |n| {
                        let c = c.clone();
                        datapipes::blocking(move || n + sum(&c))
                    })
                    .map_async(move |n| {
                        let epoch = d.epoch(0);
                        async move {
                            let all: Vec<_> = epoch.map(Result::unwrap).concat().await;
                            Ok::<_, BoxError>(n + all.iter().sum::<u64>())
                        }
                    });
                let outer = DataLoader::builder(outer).workers(workers).build().unwrap();
                let expected = Vec::from_iter((0..6).map(|n| n + 4 * 380));
                assert_eq!(
                    outer
                        .epoch(0)
                        .blocking()
                        .map(Result::unwrap)
                        .collect::<Vec<_>>(),
                    expected
                );
                for runtime in [single(), several()] {
                    let sums: Vec<_> =
                        runtime.block_on(outer.epoch(1).map(Result::unwrap).collect());
                    assert_eq!(sums, expected);
                }
            });
        }
    }
}

/// A function that uploads may read the loader, but not its own device stage: the function occupies
/// the only thread of that stage.
#[test]
fn a_device_stage_inside_its_own_upload_is_an_error_and_no_deadlock() {
    for streamed in [false, true] {
        in_time("a device stage", move || {
            let loader = DataLoader::builder(Graph::range(0..3))
                .workers(1)
                .build()
                .unwrap();
            let late = Arc::<OnceLock<datapipes::DataLoader<u64>>>::default();
            let (own, (send, said)) = (late.clone(), mpsc::channel());
            let plain = loader.clone();
            let on_device = loader.prefetch_to_device(move |n| {
                let own = own.get().unwrap();
                let _ = send.send(own.epoch(1).blocking().next().unwrap());
                Ok::<_, BoxError>(n + plain.epoch(1).blocking().map(Result::unwrap).sum::<u64>())
            });
            assert!(late.set(on_device.clone()).is_ok());
            let all: Vec<_> = match streamed {
                false => on_device.epoch(0).blocking().map(Result::unwrap).collect(),
                true => single().block_on(on_device.epoch(0).map(Result::unwrap).collect()),
            };
            assert_eq!(all, [3, 4, 5]);
            let said: Vec<_> = said.try_iter().collect();
            assert_eq!(said.len(), 3);
            said.iter().for_each(says_so);
        });
    }
}

/// An epoch may run in the body of a loop over another of the same loader: that is no function of
/// its graph.
#[test]
fn epochs_of_one_loader_may_be_nested_in_loops() {
    for workers in [0, 1, 2] {
        let loader = DataLoader::builder(Graph::range(0..5).map(|n| n + 1))
            .workers(workers)
            .build()
            .unwrap();
        let count = || loader.epoch(1).blocking().map(Result::unwrap).count();
        assert!(
            loader
                .epoch(0)
                .blocking()
                .all(|n| n.is_ok() && count() == 5)
        );
        let streamed = single().block_on(
            loader
                .epoch(0)
                .map(|n| n.is_ok() && count() == 5)
                .collect::<Vec<_>>(),
        );
        assert_eq!(streamed, [true; 5]);
    }
}

static INSIDE: OnceLock<DataLoader<u64>> = OnceLock::new();

/// A part in processes that makes the loader again, in the child.
#[cfg(target_os = "linux")]
#[test]
fn a_loader_inside_a_function_of_its_own_in_a_process_does_not_hang() {
    fn loader() -> datapipes::Result<DataLoader<u64>> {
        let graph = Graph::range(0..4).in_processes(1, |numbers| {
            numbers.try_map(|n| -> Result<u64, BoxError> {
                let own = match INSIDE.get() {
                    Some(own) => own.clone(),
                    None => loader()?,
                };
                Ok(n + own.epoch(1).blocking().next().unwrap()?)
            })
        });
        let built = DataLoader::builder(graph).workers(1).build();
        built.map_err(|error| datapipes::Error::config(error.to_string()))
    }
    in_time("a loader in a child", || {
        let first = loader().unwrap().epoch(0).blocking().next().unwrap();
        let said = first.unwrap_err().to_string();
        assert!(said.contains("this process is a child itself"), "{said}");
    });
}

/// The order does not depend on how an epoch is read.
#[test]
fn a_stream_gives_what_the_iterator_gives_in_any_order_of_arrival() {
    for order in [Order::Strict, Order::Bounded(8), Order::Arrival] {
        let graph = Graph::range(0..5000)
            .filter(|n| n % 3 != 0)
            .map(|n| n + 1)
            .batch(7)
            .unbatch();
        let loader = DataLoader::builder(graph)
            .workers(2)
            .order(order)
            .build()
            .unwrap();
        let mut streamed: Vec<_> = single().block_on(loader.epoch(0).map(Result::unwrap).collect());
        let mut plain: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        if order != Order::Strict {
            streamed.sort();
            plain.sort();
        }
        assert_eq!(streamed, plain);
    }
}

/// Graphs whose parts wait in each way that tokio knows: by tasks and timers, in a channel that has a
/// share of polls, and by yields of a pipe that is taken for a computation.
fn waiting_graphs(items: u64) -> [(&'static str, Graph<u64>); 4] {
    let (send, mut receive) = tokio::sync::mpsc::channel(2);
    std::thread::spawn(move || (0..items).all(|n| send.blocking_send(n).is_ok()));
    let fed = Graph::from_channel(futures::stream::poll_fn(move |cx| receive.poll_recv(cx)));
    let requests = Graph::range(0..items).map_async(|n| async move {
        if n % 50 == 7 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::yield_now().await;
        Ok::<_, BoxError>(n)
    });
    let yields = Graph::range(0..items).through(|numbers: Items<u64>| {
        Items::from_stream(numbers.then(|n| async move {
            tokio::task::yield_now().await;
            n
        }))
    });
    let costly = Graph::range(0..items).map(|n| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(50) {}
        n
    });
    [
        ("a channel", fed),
        ("requests", requests),
        ("yields", yields),
        ("work", costly),
    ]
}

const IN_A_RUNTIME: u64 = 300;

fn is_whole(numbers: Vec<u64>) {
    assert!(numbers.iter().copied().eq(0..IN_A_RUNTIME), "{numbers:?}");
}

/// Reads a loader's epoch inside a runtime, in each place that a runtime has.
fn read_inside(
    what: String,
    loader: DataLoader<u64>,
    place: &'static str,
    read: impl FnOnce(DataLoader<u64>) -> Vec<u64> + Send + 'static,
) {
    in_time(&what, move || {
        let numbers = match place {
            "one thread" => single().block_on(async { read(loader) }),
            "several" => several().block_on(async { read(loader) }),
            "a task" => {
                let runtime = several();
                let task = runtime.spawn(async { read(loader) });
                runtime.block_on(task).unwrap()
            }
            _ => {
                let local = tokio::task::LocalSet::new();
                local.block_on(&single(), async {
                    tokio::task::spawn_local(async { read(loader) })
                        .await
                        .unwrap()
                })
            }
        };
        is_whole(numbers);
    });
}

/// On a thread of a runtime a task has a share of polls, after which tokio refuses all, and wakes
/// are put off until the thread is free: a loop over an epoch never gives it back.
#[test]
fn a_loop_on_a_thread_of_a_runtime_gets_everything() {
    for place in ["one thread", "several", "a task", "a local task"] {
        for workers in [0, 1, 2] {
            for (name, graph) in waiting_graphs(IN_A_RUNTIME) {
                let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
                let what = format!("{name} on {place} with {workers} workers");
                read_inside(what, loader, place, |loader| {
                    loader.epoch(0).blocking().map(Result::unwrap).collect()
                });
            }
        }
    }
}

/// The same, if the loop begins elsewhere.
#[test]
fn a_loop_that_moves_to_a_thread_of_a_runtime_gets_everything() {
    for place in ["one thread", "a task"] {
        for workers in [0, 1, 2] {
            for (name, graph) in waiting_graphs(IN_A_RUNTIME) {
                let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
                let what = format!("{name} moved to {place} with {workers} workers");
                let mut epoch = loader.epoch(0).blocking();
                let mut numbers = Vec::from_iter(epoch.by_ref().take(40).map(Result::unwrap));
                read_inside(what, loader, place, move |_| {
                    numbers.extend(epoch.map(Result::unwrap));
                    numbers
                });
            }
        }
    }
}

/// The same graphs as streams, with timers and I/O of the loader's own runtime.
#[test]
fn a_stream_in_a_runtime_without_drivers_gets_everything() {
    for workers in [0, 1, 2] {
        for (name, graph) in waiting_graphs(IN_A_RUNTIME) {
            let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
            in_time(name, move || {
                let plain = Builder::new_current_thread().build().unwrap();
                is_whole(plain.block_on(loader.epoch(0).map(Result::unwrap).collect()));
            });
        }
    }
}
