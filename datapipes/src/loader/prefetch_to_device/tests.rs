//! The device stage: the same sequence, one thread, one batch ahead, and ends that are clean.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures::StreamExt;

use crate::run::block_on;
use crate::{BoxError, DataLoader, Error, ErrorKind, Graph, OnError, Result};

fn loader(workers: usize) -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..100).shuffle(30).map(|n| n * n).batch(8);
    DataLoader::builder(graph).seed(7).workers(workers).build().unwrap()
}

fn numbers(len: u64) -> DataLoader<u64> {
    DataLoader::builder(Graph::range(0..len)).workers(2).build().unwrap()
}

/// No sleep: asks again and again, for as long as a slow machine may need.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        thread::yield_now();
    }
}

#[test]
fn uploads_are_the_loaders_batches_in_order() {
    for (workers, depth) in [(0, 1), (0, 3), (2, 1), (2, 3)] {
        let loader = loader(workers);
        let device = loader.prefetch_to_device(Ok::<_, BoxError>).depth(depth);
        for epoch in 0..3 {
            let wanted: Vec<Vec<u64>> = loader.epoch(epoch).blocking().collect::<Result<_>>().unwrap();
            let got: Vec<_> = device.epoch(epoch).blocking().collect::<Result<_>>().unwrap();
            assert_eq!(got, wanted, "{workers} workers");
            let streamed: Vec<_> = block_on(device.epoch(epoch).map(Result::unwrap).collect());
            assert_eq!(streamed, wanted, "{workers} workers");
        }
    }
    let nothing = numbers(0).prefetch_to_device(Ok::<_, BoxError>);
    assert_eq!(nothing.epoch(0).blocking().count(), 0);
    let mut ended = nothing.epoch(0).blocking();
    assert!(ended.next().is_none() && ended.next().is_none());
}

#[tokio::test]
async fn uploads_in_a_runtime_of_one_thread_do_not_block_it() {
    let device = loader(2).prefetch_to_device(|batch| Ok::<_, BoxError>(batch.len()));
    let mut epoch = device.epoch(0);
    let mut count = 0;
    while let Some(len) = epoch.next().await {
        count += len.unwrap();
    }
    assert_eq!(count, 100);
}

#[test]
fn the_next_upload_is_done_while_a_batch_is_held() {
    for depth in [1, 2, 4] {
        let (send, uploaded) = channel();
        let asked = Arc::new(AtomicU64::new(0));
        let seen = asked.clone();
        let upload = move |n: u64| {
            // Not more than `depth` are ready, besides what was asked for.
            let asked = seen.load(SeqCst);
            if n >= asked + depth {
                return Err(format!("upload {n} began with {asked} asked for"));
            }
            // The receiver may be gone before the last one.
            let _ = send.send(n);
            Ok(n)
        };
        let device = numbers(50).prefetch_to_device(upload).depth(depth as usize);
        let mut epoch = device.epoch(0).blocking();
        for n in 0..50 {
            asked.store(n + 1, SeqCst);
            assert_eq!(epoch.next().unwrap().unwrap(), n);
            // While `n` is held here, the next ones come in. It would wait for ever if they did not.
            if n == 0 {
                for ahead in 0..=depth {
                    assert_eq!(uploaded.recv().unwrap(), ahead);
                }
            }
        }
        assert!(epoch.next().is_none());
    }
}

#[test]
fn uploads_of_all_epochs_run_on_one_thread() {
    let (send, seen) = channel();
    let device = numbers(5).prefetch_to_device(move |_| {
        send.send(thread::current().id()).unwrap();
        Ok::<_, BoxError>(())
    });
    for epoch in 0..3 {
        assert_eq!(device.clone().epoch(epoch).blocking().count(), 5);
    }
    // Two at once take turns, and neither waits for the other's end.
    let (mut one, mut other) = (device.epoch(3).blocking(), device.epoch(4).blocking());
    for _ in 0..5 {
        assert!(one.next().is_some() && other.next().is_some());
    }
    drop((device, one, other));
    let ids: Vec<ThreadId> = seen.iter().collect();
    assert_eq!(ids.len(), 25);
    assert!(ids.iter().all(|&id| id == ids[0] && id != thread::current().id()));
}

#[test]
fn an_upload_that_fails_names_the_batch_and_ends_the_epoch() {
    let graph = Graph::range(0..100).batch(4);
    let loader = DataLoader::builder(graph).workers(2).on_error(OnError::skip(9)).build().unwrap();
    let device = loader.prefetch_to_device(|batch: Vec<u64>| match batch[0] {
        8 => Err("out of memory"),
        first => Ok(first),
    });
    for epoch in 0..2 {
        let mut epoch = device.epoch(epoch).blocking();
        let before: Vec<u64> = epoch.by_ref().take(2).collect::<Result<_>>().unwrap();
        assert_eq!(before, [0, 4]);
        let error = epoch.next().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.node()), (ErrorKind::User, Some("prefetch_to_device")));
        assert_eq!(error.to_string(), "prefetch_to_device: [0:8, 0:9, 0:10, 0:11]: out of memory");
        assert!(epoch.next().is_none());
    }
}

#[test]
fn an_upload_that_panics_is_an_error_that_names_the_batch() {
    let device = numbers(100).prefetch_to_device(|n| {
        assert!(n != 3, "no device {n}");
        Ok::<_, BoxError>(n)
    });
    for epoch in 0..2 {
        let mut epoch = device.epoch(epoch).blocking();
        assert_eq!(epoch.by_ref().take(3).collect::<Result<Vec<_>>>().unwrap(), [0, 1, 2]);
        let error = epoch.next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panic);
        assert_eq!(error.to_string(), "prefetch_to_device: 0:3: panicked: no device 3");
        assert!(epoch.next().is_none());
    }
}

#[test]
fn errors_above_the_upload_are_the_loaders() {
    let graph = Graph::range(0..6).try_map(|n| if n == 2 { Err("odd") } else { Ok(n) });
    let failing = DataLoader::builder(graph.clone()).build().unwrap();
    let skipping = DataLoader::builder(graph).on_error(OnError::skip(1)).build().unwrap();

    let device = failing.prefetch_to_device(Ok::<_, BoxError>);
    let mut epoch = device.epoch(0).blocking();
    assert_eq!(epoch.by_ref().take(2).collect::<Result<Vec<_>>>().unwrap(), [0, 1]);
    assert_eq!(epoch.next().unwrap().unwrap_err().to_string(), "try_map: 0:2: odd");
    assert!(epoch.next().is_none());

    let device = skipping.prefetch_to_device(Ok::<_, BoxError>);
    assert_eq!(device.epoch(0).blocking().collect::<Result<Vec<_>>>().unwrap(), [0, 1, 3, 4, 5]);
}

#[test]
fn without_a_poll_no_upload_begins() {
    let loader = numbers(3);
    let device = loader.prefetch_to_device(|_| -> Result<()> { panic!("nobody asked") });
    let epoch = device.epoch(0);
    assert!(epoch.stats().is_none() && loader.stats().is_none());
    drop((epoch, device));
    assert!(loader.stats().is_none());
}

#[test]
fn a_drop_cancels_the_uploads_and_frees_what_is_ready() {
    let held = Arc::new(());
    let given = held.clone();
    let device =
        numbers(u64::MAX >> 20).prefetch_to_device(move |_| Ok::<_, BoxError>(given.clone())).depth(3);
    for epoch in 0..3 {
        let mut epoch = device.epoch(epoch).blocking();
        assert!(epoch.next().is_some());
        drop(epoch);
        eventually("batches are freed", || Arc::strong_count(&held) == 2);
    }
    drop(device);
    eventually("the upload is freed", || Arc::strong_count(&held) == 1);
}

#[test]
fn a_drop_does_not_wait_for_an_upload_that_hangs() {
    let (begun, began) = channel();
    let (release, wait) = channel::<()>();
    let gone = Arc::new(());
    let held = gone.clone();
    let device = numbers(9).prefetch_to_device(move |n| {
        let _held = &held;
        begun.send(n).unwrap();
        // Until the other end is dropped.
        let _ = wait.recv();
        Ok::<_, BoxError>(n)
    });
    let mut epoch = device.epoch(0);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(epoch.poll_next_unpin(&mut cx).is_pending());
    assert_eq!(began.recv().unwrap(), 0);
    // Comes back though the upload does not.
    drop((epoch, device));
    assert_eq!(Arc::strong_count(&gone), 2);
    drop::<Sender<()>>(release);
    eventually("the thread ends when the upload does", || Arc::strong_count(&gone) == 1);
}

#[test]
fn figures_tell_uploads_and_how_long_the_consumer_waited() {
    let loader = numbers(10);
    let (go, wait) = channel::<()>();
    let device = loader.prefetch_to_device(move |n| {
        wait.recv().map_err(Error::user)?;
        Ok::<_, Error>(n)
    });
    let mut epoch = device.epoch(0);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(epoch.poll_next_unpin(&mut cx).is_pending());
    (0..10).for_each(|_| go.send(()).unwrap());
    assert_eq!(block_on(epoch.by_ref().map(Result::unwrap).collect::<Vec<_>>()).len(), 10);
    let stats = epoch.stats().unwrap();
    let at_device = stats.device.as_ref().unwrap();
    assert_eq!((stats.delivered, at_device.uploaded, at_device.depth), (10, 10, 1));
    assert!(stats.waited > Duration::ZERO && at_device.busy > Duration::ZERO);
    assert!(stats.to_string().contains("\ndevice: 10 uploaded in "), "{stats}");
    // The loader's figures are the same epoch's.
    assert_eq!(loader.stats().unwrap().waited, stats.waited);
    // Read without the stage, it has none.
    assert_eq!(loader.epoch(0).blocking().count(), 10);
    assert!(loader.stats().unwrap().device.is_none());
}
