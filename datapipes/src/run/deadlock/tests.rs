//! Consumers that stand in their own way, and such that only wait.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};

use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::ErrorKind;
use crate::run::block_on;
use crate::{BoxError, DataLoader, Graph};

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A graph that is fed by a task of the surrounding runtime, which sends five numbers.
fn fed(slow: Duration) -> Graph<u64> {
    let (mut send, receive) = mpsc::channel::<u64>(1);
    #[expect(clippy::disallowed_methods, reason = "a user's own task")]
    let _detached = tokio::spawn(async move {
        tokio::time::sleep(slow).await;
        for n in 0..5 {
            send.send(n).await.unwrap();
        }
    });
    Graph::from_channel(receive).map(|n| n * 2)
}

#[test]
fn blocking_on_a_runtime_of_one_thread_says_that_its_producer_cannot_run() {
    for workers in [0, 1, 2] {
        for device in [false, true] {
            single().block_on(async {
                let loader = DataLoader::builder(fed(Duration::ZERO))
                    .workers(workers)
                    .build()
                    .unwrap();
                let on_device = loader.prefetch_to_device(Ok::<_, BoxError>);
                let mut epoch: Box<dyn Iterator<Item = crate::Result<u64>> + Send> = match device {
                    false => Box::new(loader.epoch(0).blocking()),
                    true => Box::new(on_device.epoch(0).blocking()),
                };
                let error = epoch.next().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Config);
                let said = error.to_string();
                assert!(
                    said.contains("has one thread, this one: 1 of its tasks cannot run"),
                    "{said}"
                );
                // Nothing is lost: on a thread of its own the iterator receives all numbers.
                let rest = crate::blocking(move || epoch.collect::<crate::Result<Vec<_>>>());
                assert_eq!(rest.await.unwrap().unwrap(), [0, 2, 4, 6, 8]);
            });
        }
    }
}

/// Wakes that bring nothing do not put off the report.
#[test]
fn a_consumer_that_is_woken_in_vain_is_told_as_well() {
    single().block_on(async {
        let waker = Arc::new(std::sync::Mutex::new(None::<std::task::Waker>));
        let told = waker.clone();
        let (mut send, mut numbers) = mpsc::channel::<u64>(1);
        #[expect(clippy::disallowed_methods, reason = "a user's own task")]
        let _detached = tokio::spawn(async move { send.send(7).await });
        let graph = Graph::from_channel(futures::stream::poll_fn(move |cx| {
            *told.lock().unwrap() = Some(cx.waker().clone());
            numbers.poll_next_unpin(cx)
        }));
        let (stop, stopped) = channel::<()>();
        std::thread::spawn(move || {
            while stopped.recv_timeout(QUIET / 4).is_err() {
                let waker = waker.lock().unwrap().take();
                waker.into_iter().for_each(std::task::Waker::wake);
            }
        });
        let loader = DataLoader::builder(graph).workers(0).build().unwrap();
        let begun = Instant::now();
        let error = loader.epoch(0).blocking().next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(begun.elapsed() < 20 * (QUIET + REPORT_AFTER));
        stop.send(()).unwrap();
    });
}

#[test]
fn what_is_slow_but_not_held_up_is_waited_for() {
    let slow = 3 * (QUIET + REPORT_AFTER);
    let runtime = single();
    runtime.block_on(async {
        // The runtime runs on while another thread waits.
        let loader = DataLoader::builder(fed(slow)).workers(1).build().unwrap();
        let all = crate::blocking(move || {
            loader
                .epoch(0)
                .blocking()
                .collect::<crate::Result<Vec<_>>>()
        });
        assert_eq!(all.await.unwrap().unwrap(), [0, 2, 4, 6, 8]);
        // The runtime stands still and has a task, while work is in progress.
        #[expect(clippy::disallowed_methods, reason = "a user's own task")]
        let other = tokio::spawn(async {});
        let graphs: [Graph<u64>; 3] = [
            Graph::range(0..3).map(move |n| {
                std::thread::sleep(if n == 1 { slow } else { Duration::ZERO });
                n
            }),
            Graph::range(0..3).map_async(move |n| async move {
                tokio::time::sleep(if n == 1 { slow } else { Duration::ZERO }).await;
                Ok::<_, BoxError>(n)
            }),
            Graph::range(0..3).map_async(move |n| {
                crate::blocking(move || {
                    std::thread::sleep(if n == 1 { slow } else { Duration::ZERO });
                    n
                })
            }),
        ];
        for graph in graphs {
            for workers in [0, 1, 2] {
                let loader = DataLoader::builder(graph.clone())
                    .workers(workers)
                    .build()
                    .unwrap();
                let all: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
                assert_eq!(all, [0, 1, 2]);
            }
        }
        other.await.unwrap();
    });
}

/// Time that makes a function too expensive for the thread of the consumer.
const WORK: Duration = Duration::from_millis(1);

/// Functions of an epoch read another one on threads that they wait for, so that no worker is
/// left for it.
#[test]
fn an_epoch_on_a_thread_that_a_function_waits_for_is_an_error_in_bounded_time() {
    for workers in [1, 2] {
        let own: Arc<OnceLock<DataLoader<String>>> = Arc::default();
        let (mine, nested) = (own.clone(), Arc::new(AtomicUsize::new(0)));
        let read = move |n| {
            std::thread::sleep(WORK);
            // The first item is made on the consumer's thread.
            if n < 2 || nested.fetch_add(1, Ordering::Relaxed) >= workers {
                return String::new();
            }
            let mine = mine.clone();
            let inner = std::thread::spawn(move || {
                let mut inner = mine.get().unwrap().epoch(1).blocking();
                inner.find_map(Result::err).map(|error| error.to_string())
            });
            inner.join().unwrap().unwrap_or_default()
        };
        let graph = Graph::range(0..8).map(read).named("nested");
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        let loader = own.get_or_init(|| loader);
        let all: Vec<String> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(all.len(), 8);
        let said = "all workers of the loader have been in the same functions (nested)";
        assert!(
            all.iter().any(|item| item.contains(said)),
            "{workers}: {all:?}"
        );
    }
}

/// A loader with one worker, an item of which says when it has begun. It then takes long, or
/// until the returned sender is dropped, if somebody listens.
fn with_a_slow_item() -> (DataLoader<u64>, Receiver<()>, Sender<()>) {
    let (begun, begins) = channel();
    let (free, held) = channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let graph = Graph::range(0..5).inspect(move |n| {
        std::thread::sleep(WORK);
        if *n == 2 && begun.send(()).is_ok() {
            let _ended = held.lock().unwrap().recv_timeout(3 * HELD);
        }
    });
    let loader = DataLoader::builder(graph).workers(1).build().unwrap();
    (loader, begins, free)
}

#[test]
fn an_epoch_that_gets_no_worker_waits_on_after_it_was_told() {
    let (loader, begins, free) = with_a_slow_item();
    let all = |epoch| loader.epoch(epoch).blocking().map(Result::unwrap).collect();
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| -> Vec<u64> { all(0) });
        begins.recv().unwrap();
        let (mut held, mut seen, mut told) = (Some((free, begins)), Vec::new(), Vec::new());
        for item in loader.epoch(1) {
            match item {
                Ok(n) => seen.push(n),
                Err(error) => {
                    told.push((error.kind(), error.to_string()));
                    held = None;
                }
            }
        }
        assert!(held.is_none());
        assert_eq!((seen, told.len()), (vec![0, 1, 2, 3, 4], 1));
        assert_eq!(told[0].0, ErrorKind::Config);
        assert!(told[0].1.ends_with("the next call waits on"), "{told:?}");
        first.join().unwrap()
    });
    assert_eq!(first, [0, 1, 2, 3, 4]);
}

#[test]
fn a_long_item_of_an_epoch_that_was_dropped_is_waited_for() {
    let (loader, begins, _free) = with_a_slow_item();
    let mut first = loader.epoch(0);
    for n in 0..2 {
        assert_eq!(block_on(first.next()).unwrap().unwrap(), n);
    }
    begins.recv().unwrap();
    drop((first, begins));
    let second = loader.epoch(1).blocking();
    assert_eq!(
        second.map(Result::unwrap).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4]
    );
}
