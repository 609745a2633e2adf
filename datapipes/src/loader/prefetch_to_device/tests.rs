//! The device stage: the same sequence, one thread, one batch ahead, and clean ends.

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
    DataLoader::builder(graph)
        .seed(7)
        .workers(workers)
        .build()
        .unwrap()
}

fn numbers(len: u64) -> DataLoader<u64> {
    DataLoader::builder(Graph::range(0..len))
        .workers(2)
        .build()
        .unwrap()
}

/// Polls the condition without sleeping, for as long as a slow machine may need.
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
        let device = loader
            .prefetch_to_device(Ok::<_, BoxError>)
            .device_depth(depth);
        for epoch in 0..3 {
            let wanted: Vec<Vec<u64>> = loader
                .epoch(epoch)
                .blocking()
                .collect::<Result<_>>()
                .unwrap();
            let got: Vec<_> = device
                .epoch(epoch)
                .blocking()
                .collect::<Result<_>>()
                .unwrap();
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
            // No more than `depth` are ready, besides the batch that was asked for.
            let asked = seen.load(SeqCst);
            if n >= asked + depth {
                return Err(format!("upload {n} began with {asked} asked for"));
            }
            // The receiver may be gone before the last item.
            let _ = send.send(n);
            Ok(n)
        };
        let device = numbers(50)
            .prefetch_to_device(upload)
            .device_depth(depth as usize);
        let mut epoch = device.epoch(0).blocking();
        for n in 0..50 {
            asked.store(n + 1, SeqCst);
            assert_eq!(epoch.next().unwrap().unwrap(), n);
            // While `n` is held here, the next items come in. Otherwise it would wait for ever.
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
    // Two epochs at once take turns, and neither waits for the other's end.
    let (mut one, mut other) = (device.epoch(3).blocking(), device.epoch(4).blocking());
    for _ in 0..5 {
        assert!(one.next().is_some() && other.next().is_some());
    }
    drop((device, one, other));
    let ids: Vec<ThreadId> = seen.iter().collect();
    assert_eq!(ids.len(), 25);
    assert!(
        ids.iter()
            .all(|&id| id == ids[0] && id != thread::current().id())
    );
}

#[test]
fn an_upload_that_fails_names_the_batch_and_ends_the_epoch() {
    let graph = Graph::range(0..100).batch(4);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .on_error(OnError::skip(9))
        .build()
        .unwrap();
    let device = loader.prefetch_to_device(|batch: Vec<u64>| match batch[0] {
        8 => Err("out of memory"),
        first => Ok(first),
    });
    for epoch in 0..2 {
        let mut epoch = device.epoch(epoch).blocking();
        let before: Vec<u64> = epoch.by_ref().take(2).collect::<Result<_>>().unwrap();
        assert_eq!(before, [0, 4]);
        let error = epoch.next().unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::User, Some("prefetch_to_device"))
        );
        assert_eq!(
            error.to_string(),
            "prefetch_to_device: [0:8, 0:9, 0:10, 0:11]: out of memory"
        );
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
        assert_eq!(
            epoch.by_ref().take(3).collect::<Result<Vec<_>>>().unwrap(),
            [0, 1, 2]
        );
        let error = epoch.next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panic);
        assert_eq!(
            error.to_string(),
            "prefetch_to_device: 0:3: panicked: no device 3"
        );
        assert!(epoch.next().is_none());
    }
}

#[test]
fn errors_above_the_upload_are_the_loaders() {
    let graph = Graph::range(0..6).try_map(|n| if n == 2 { Err("odd") } else { Ok(n) });
    let failing = DataLoader::builder(graph.clone()).build().unwrap();
    let skipping = DataLoader::builder(graph)
        .on_error(OnError::skip(1))
        .build()
        .unwrap();

    let device = failing.prefetch_to_device(Ok::<_, BoxError>);
    let mut epoch = device.epoch(0).blocking();
    assert_eq!(
        epoch.by_ref().take(2).collect::<Result<Vec<_>>>().unwrap(),
        [0, 1]
    );
    assert_eq!(
        epoch.next().unwrap().unwrap_err().to_string(),
        "try_map: 0:2: odd"
    );
    assert!(epoch.next().is_none());

    let device = skipping.prefetch_to_device(Ok::<_, BoxError>);
    assert_eq!(
        device
            .epoch(0)
            .blocking()
            .collect::<Result<Vec<_>>>()
            .unwrap(),
        [0, 1, 3, 4, 5]
    );
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
    let device = numbers(u64::MAX >> 20)
        .prefetch_to_device(move |_| Ok::<_, BoxError>(given.clone()))
        .device_depth(3);
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
    // The drop returns though the upload does not.
    drop((epoch, device));
    assert_eq!(Arc::strong_count(&gone), 2);
    drop::<Sender<()>>(release);
    eventually("the thread ends when the upload does", || {
        Arc::strong_count(&gone) == 1
    });
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
    assert_eq!(
        block_on(epoch.by_ref().map(Result::unwrap).collect::<Vec<_>>()).len(),
        10
    );
    let stats = epoch.stats().unwrap();
    let at_device = stats.device.as_ref().unwrap();
    assert_eq!(
        (stats.delivered, at_device.uploaded, at_device.depth),
        (10, 10, 1)
    );
    assert!(stats.waited > Duration::ZERO && at_device.busy > Duration::ZERO);
    assert!(
        stats.to_string().contains("\ndevice: 10 uploaded in "),
        "{stats}"
    );
    // The loader's figures are those of the same epoch.
    assert_eq!(loader.stats().unwrap().waited, stats.waited);
    // Read without the stage, the epoch has none.
    assert_eq!(loader.epoch(0).blocking().count(), 10);
    assert!(loader.stats().unwrap().device.is_none());
}

/// The checkpoint is that of the delivered items, however much the stage has read; the epoch
/// resumes with or without the stage.
#[test]
fn row_121_what_is_on_the_device_already_comes_again() {
    let graph = || {
        Graph::range(0..60)
            .try_map(|n| if n % 9 == 4 { Err("bad") } else { Ok(n) })
            .shuffle(7)
            .filter(|n| n % 4 != 0)
            .batch(3)
    };
    let loader = |workers| {
        let builder = DataLoader::builder(graph())
            .seed(3)
            .workers(workers)
            .on_error(OnError::skip(1000));
        builder.resumable().build().unwrap()
    };
    let mut plain = loader(0).epoch(1).blocking();
    let mut states = vec![plain.checkpoint().unwrap()];
    let mut whole = Vec::new();
    while let Some(batch) = plain.next() {
        whole.push(batch.unwrap());
        states.push(plain.checkpoint().unwrap());
    }
    let end = plain.checkpoint().unwrap();
    assert!(whole.len() > 8);
    for (workers, depth) in [(0, 1), (2, 3)] {
        let (loader, again) = (loader(workers), loader(2 - workers));
        let device = loader
            .prefetch_to_device(Ok::<_, BoxError>)
            .device_depth(depth);
        for stop in 0..=whole.len() + 1 {
            let mut epoch = device.epoch(1).blocking();
            let mut seen: Vec<_> = epoch.by_ref().take(stop).map(Result::unwrap).collect();
            if stop > 0 && stop < whole.len() {
                // The stage has gone on.
                eventually("a batch ahead", || {
                    epoch.stats().unwrap().device.unwrap().uploaded > stop as u64
                });
            }
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            assert_eq!(state.delivered(), stop.min(whole.len()) as u64);
            assert_eq!(state.is_finished(), stop > whole.len());
            let plain = if stop > whole.len() {
                &end
            } else {
                &states[stop]
            };
            assert_eq!(
                (state.epoch(), state.skipped()),
                (plain.epoch(), plain.skipped())
            );
            let rest = match stop % 2 {
                0 => again
                    .resume(&state)
                    .unwrap()
                    .blocking()
                    .collect::<Result<Vec<_>>>(),
                _ => device.resume(&state).unwrap().blocking().collect(),
            };
            seen.extend(rest.unwrap());
            assert_eq!(
                seen, whole,
                "stopped at {stop}, {workers} workers, depth {depth}"
            );
            // Without the stage, and again after two more.
            let mut epoch = device.resume(plain).unwrap().blocking();
            assert_eq!(epoch.checkpoint().unwrap().delivered(), plain.delivered());
            let mut seen = whole[..stop.min(whole.len())].to_vec();
            seen.extend(epoch.by_ref().take(2).map(Result::unwrap));
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            seen.extend(again.resume(&state).unwrap().blocking().map(Result::unwrap));
            assert_eq!(
                seen, whole,
                "stopped at {stop} and after two more, {workers} workers"
            );
        }
    }
}

#[test]
fn behind_an_error_the_state_is_the_place_before_it() {
    let loader = DataLoader::builder(Graph::range(0..10))
        .workers(0)
        .resumable()
        .build()
        .unwrap();
    let device = loader.prefetch_to_device(|n| if n == 4 { Err("full") } else { Ok(n) });
    let mut epoch = device.epoch(0).blocking();
    assert_eq!(epoch.by_ref().filter(Result::is_ok).count(), 4);
    let state = epoch.checkpoint().unwrap();
    assert_eq!((state.delivered(), state.is_finished()), (4, false));
    let rest: Vec<u64> = loader
        .resume(&state)
        .unwrap()
        .blocking()
        .collect::<Result<_>>()
        .unwrap();
    assert_eq!(rest, [4, 5, 6, 7, 8, 9]);

    let graph = Graph::range(0..10).try_map(|n| if n == 6 { Err("bad") } else { Ok(n) });
    let loader = DataLoader::builder(graph)
        .workers(0)
        .resumable()
        .build()
        .unwrap();
    let mut epoch = loader
        .prefetch_to_device(Ok::<_, BoxError>)
        .epoch(0)
        .blocking();
    assert_eq!(epoch.by_ref().filter(Result::is_ok).count(), 6);
    assert_eq!(epoch.checkpoint().unwrap().delivered(), 6);

    let error = numbers(3)
        .prefetch_to_device(Ok::<_, BoxError>)
        .epoch(0)
        .checkpoint()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("call `resumable`"), "{error}");
}

/// Logs are trimmed according to the items that the consumer has, not those that the stage has
/// read.
#[test]
fn long_epochs_are_saved_where_the_consumer_is() {
    let graph = Graph::range(0..20_000)
        .filter(|n| n % 3 != 0)
        .shuffle(4)
        .flat_map(|n| [n, n + 1]);
    let loader = DataLoader::builder(graph)
        .workers(0)
        .resumable()
        .build()
        .unwrap();
    let device = loader
        .prefetch_to_device(Ok::<_, BoxError>)
        .device_depth(400);
    let whole: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
    let mut epoch = device.epoch(0).blocking();
    for stop in [300, 2_000, 9_999, 20_000] {
        let taken = epoch.checkpoint().unwrap().delivered() as usize;
        let some: Vec<u64> = epoch
            .by_ref()
            .take(stop - taken)
            .map(Result::unwrap)
            .collect();
        assert_eq!(some, whole[taken..stop]);
        let state = epoch.checkpoint().unwrap();
        let rest: Vec<u64> = loader
            .resume(&state)
            .unwrap()
            .blocking()
            .take(50)
            .map(Result::unwrap)
            .collect();
        assert_eq!(rest, whole[stop..stop + 50], "{stop}");
    }
}

/// Code that converts items may fail.
#[test]
fn an_item_that_was_of_no_use_comes_again() {
    let graph = Graph::range(0..40)
        .try_map(|n| if n == 11 { Err("bad") } else { Ok(n) })
        .shuffle(6);
    let loader = |workers| {
        let builder = DataLoader::builder(graph.clone())
            .workers(workers)
            .on_error(OnError::skip(9));
        builder.resumable().build().unwrap()
    };
    let whole: Vec<u64> = loader(0).epoch(0).blocking().map(Result::unwrap).collect();
    for workers in [0, 2] {
        for stop in 1..=whole.len() {
            let mut epoch = loader(workers).epoch(0).blocking();
            assert_eq!(
                epoch
                    .by_ref()
                    .take(stop)
                    .map(Result::unwrap)
                    .collect::<Vec<_>>(),
                whole[..stop]
            );
            epoch.fail_last();
            epoch.fail_last();
            assert!(epoch.next().is_none());
            let state = epoch.checkpoint().unwrap();
            let rest = loader(2 - workers).resume(&state).unwrap().blocking();
            assert_eq!(
                rest.map(Result::unwrap).collect::<Vec<_>>(),
                whole[stop - 1..],
                "{stop}"
            );
        }
    }
}

/// A budget of steps too: a larger one leaves more items.
#[test]
fn a_budget_of_steps_ends_a_device_epoch() {
    let loader = |steps| {
        let graph = Graph::range(0..40).shuffle(6);
        DataLoader::builder(graph)
            .workers(2)
            .resumable()
            .max_steps(steps)
            .build()
            .unwrap()
    };
    let whole: Vec<u64> = loader(40).epoch(0).blocking().map(Result::unwrap).collect();
    let mut epoch = loader(15)
        .prefetch_to_device(Ok::<_, BoxError>)
        .epoch(0)
        .blocking();
    assert_eq!(
        epoch.by_ref().map(Result::unwrap).collect::<Vec<_>>(),
        whole[..15]
    );
    let state = epoch.checkpoint().unwrap();
    assert!(state.is_finished());
    assert_eq!(loader(15).resume(&state).unwrap().blocking().count(), 0);
    let device = loader(25).prefetch_to_device(Ok::<_, BoxError>);
    let rest: Vec<u64> = device
        .resume(&state)
        .unwrap()
        .blocking()
        .map(Result::unwrap)
        .collect();
    assert_eq!(rest, whole[15..25]);
    // The last item of a budget can be given back as any other.
    let mut epoch = loader(15).epoch(0).blocking();
    assert_eq!(epoch.by_ref().take(15).count(), 15);
    epoch.fail_last();
    let rest = loader(15)
        .resume(&epoch.checkpoint().unwrap())
        .unwrap()
        .blocking();
    assert_eq!(rest.map(Result::unwrap).collect::<Vec<_>>(), whole[14..15]);
}

/// Conversions in a row, inline and ahead, count the items that the consumer has, and no more.
#[test]
fn conversions_after_one_another_go_on_where_the_consumer_was() {
    let builder = DataLoader::builder(Graph::range(0..40).shuffle(7)).workers(2);
    let loader = builder
        .on_error(OnError::skip(9))
        .resumable()
        .build()
        .unwrap();
    let double = |n: u64| if n == 13 { Err("thirteen") } else { Ok(2 * n) };
    let text = |n: u64| Ok::<_, BoxError>(n.to_string());
    let ways = [
        loader.convert("double", double).prefetch_to_device(text),
        loader.prefetch_to_device(double).convert("text", text),
        loader
            .prefetch_to_device(double)
            .device_depth(2)
            .prefetch_to_device(text),
        loader.convert("double", double).convert("text", text),
    ];
    let numbers: Vec<u64> = loader.epoch(1).blocking().map(Result::unwrap).collect();
    let place = numbers.iter().position(|&n| n == 13).unwrap();
    let whole: Vec<_> = numbers[..place]
        .iter()
        .map(|n| (2 * n).to_string())
        .collect();
    for (way, converted) in ways.iter().enumerate() {
        for stop in [0, place / 2, place] {
            let mut epoch = converted.epoch(1).blocking();
            let mut seen: Vec<_> = epoch.by_ref().take(stop).map(Result::unwrap).collect();
            assert_eq!(
                epoch.checkpoint().unwrap().delivered(),
                stop as u64,
                "way {way}"
            );
            // A last item that was given back comes again on another path.
            epoch.fail_last();
            seen.truncate(stop.saturating_sub(1));
            let state = epoch.checkpoint().unwrap();
            assert_eq!(state.delivered(), seen.len() as u64, "way {way}");
            let mut rest = ways[3 - way].resume(&state).unwrap().blocking();
            let error = rest
                .by_ref()
                .find_map(|text| text.map(|text| seen.push(text)).err())
                .unwrap();
            assert!(error.to_string().ends_with(": 0:13: thirteen"), "{error}");
            assert_eq!(seen, whole, "way {way}");
            assert!(rest.next().is_none());
            assert_eq!(
                rest.checkpoint().unwrap().delivered(),
                place as u64,
                "way {way}"
            );
        }
        let mut streamed = converted.epoch(1);
        let seen: Vec<_> = block_on(
            streamed
                .by_ref()
                .filter_map(|text| async { text.ok() })
                .collect(),
        );
        assert_eq!(
            (seen, streamed.checkpoint().unwrap().delivered()),
            (whole.clone(), place as u64),
            "way {way}"
        );
        let others = (place / 2) as u64;
        let mut step = 0;
        let mut agreed = converted.epoch(1).blocking().agreed(|mine| {
            step += 1;
            Ok(mine && step <= others)
        });
        assert_eq!(agreed.by_ref().map(Result::unwrap).count() as u64, others);
        let state = agreed.checkpoint().unwrap();
        assert_eq!(
            (state.delivered(), state.is_finished()),
            (others, true),
            "way {way}"
        );
    }
}

/// A value that belongs to the consumer's thread is made there, one batch at a time, without a
/// device stage.
#[test]
fn what_is_converted_is_made_on_the_thread_that_takes_it() {
    let loader = numbers(9);
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    let here = loader.convert("id", move |n| {
        count.fetch_add(1, SeqCst);
        Ok::<_, BoxError>((n, thread::current().id()))
    });
    let mut epoch = here
        .epoch(0)
        .with_errors(|error| error.to_string())
        .into_iter();
    assert_eq!(
        (epoch.steps_left(), epoch.size_hint()),
        (Some(9), (0, Some(10)))
    );
    for n in 0..9 {
        assert_eq!(epoch.next().unwrap().unwrap(), (n, thread::current().id()));
        assert_eq!(made.load(SeqCst), n + 1);
    }
    assert!(epoch.next().is_none() && epoch.stats().unwrap().device.is_none());
    assert!(epoch.checkpoint().unwrap_err().contains("call `resumable`"));
}

#[test]
fn converted_batches_polled_as_a_stream_go_on_where_the_consumer_was() {
    let graph = Graph::range(0..50).shuffle(50).map(|n| n).batch(8);
    let builder = DataLoader::builder(graph).seed(3).workers(2);
    let loader = builder.resumable().build().unwrap();
    let converted = loader.convert("same", Ok::<Vec<u64>, BoxError>);
    let whole: Vec<_> = loader.epoch(1).blocking().map(Result::unwrap).collect();
    for stop in 0..=whole.len() {
        let mut epoch = converted.epoch(1);
        let begun = epoch.by_ref().take(stop).map(Result::unwrap).collect();
        let mut seen: Vec<_> = block_on(begun);
        let rest = loader.resume(&epoch.checkpoint().unwrap()).unwrap();
        seen.extend(rest.blocking().map(Result::unwrap));
        assert_eq!(seen, whole, "stopped at {stop}");
    }
}
