//! Tests of the loader on the CPU, by both ways, and on a GPU if there is one.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::thread;

use candle_core::{DType, Storage, Tensor};
use datapipes::{Graph, OnError};
use futures::executor::block_on;
use futures::{Stream, StreamExt};

use super::*;

type Pair = (datapipes::Tensor, datapipes::Tensor);

fn loader() -> DataLoader<Pair> {
    let samples = Graph::range(0..50)
        .shuffle(50)
        .map(|n| ([n as f32; 3], n as i64));
    DataLoader::builder(samples.batch(8).collate())
        .seed(3)
        .workers(2)
        .build()
        .unwrap()
}

/// A loader that uploads by the stage's thread whatever the device is.
fn staged<T>(loader: &DataLoader<T>, device: &Device) -> CandleLoader<T::Batch>
where
    T: IntoCandle<Batch: Send + 'static> + Send + 'static,
{
    CandleLoader::ahead(loader, device, T::into_candle)
}

fn values((x, y): &(Tensor, Tensor)) -> (Vec<Vec<f32>>, Vec<i64>) {
    (x.to_vec2().unwrap(), y.to_vec1().unwrap())
}

#[test]
fn batches_are_the_loaders_by_every_way() {
    let loader = loader();
    for device in [Device::Cpu, Device::cuda_if_available(0).unwrap()] {
        if device.is_cpu() {
            println!("on the CPU");
        }
        for candle in [
            CandleLoader::new(&loader, &device),
            staged(&loader, &device).depth(2),
        ] {
            assert_eq!(candle.len_hint(), Some(7));
            for epoch in 0..2 {
                let mut wanted = loader.epoch(epoch).blocking();
                let streamed: Vec<_> = block_on(candle.epoch(epoch).collect());
                for (batch, streamed) in candle.epoch(epoch).blocking().zip(streamed) {
                    let (x, y) = wanted.next().unwrap().unwrap();
                    let batch = batch.unwrap();
                    assert!(
                        batch.0.device().same_device(&device)
                            && batch.1.device().same_device(&device)
                    );
                    let (got_x, got_y) = values(&batch);
                    assert_eq!((batch.0.dtype(), batch.1.dtype()), (DType::F32, DType::I64));
                    assert_eq!(got_x.concat(), x.as_slice::<f32>().unwrap());
                    assert_eq!(got_y, y.as_slice::<i64>().unwrap());
                    assert_eq!(values(&streamed.unwrap()), (got_x, got_y));
                }
                assert!(wanted.next().is_none());
            }
        }
    }
}

#[test]
fn a_for_loop_over_an_epoch_works_and_its_length_is_known() {
    let loader = loader();
    for candle in [
        CandleLoader::new(&loader, &Device::Cpu),
        staged(&loader, &Device::Cpu),
    ] {
        assert_eq!(
            (candle.epoch(0).steps_left(), candle.epoch(0).size_hint()),
            (Some(7), (0, Some(8)))
        );
        let mut count = 0;
        for batch in candle.epoch(0) {
            count += usize::from(batch.is_ok());
        }
        assert_eq!(count, 7);
        let mut epoch = candle.epoch(0).blocking();
        assert_eq!(
            (
                epoch.by_ref().take(3).count(),
                epoch.steps_left(),
                epoch.size_hint()
            ),
            (3, Some(4), (0, Some(5)))
        );
        let agreed = candle.epoch(0).blocking().agreed(Ok);
        assert_eq!(agreed.size_hint(), (0, Some(9)));
    }
}

#[test]
fn on_the_cpu_a_batch_keeps_its_address() {
    let (send, made) = channel();
    let graph = Graph::range(0..20)
        .map(|n| [n as f32; 3])
        .batch(8)
        .collate()
        .map(move |batch| {
            let numbers = batch.as_slice::<f32>().unwrap();
            send.send((numbers[0] as usize, numbers.as_ptr() as usize))
                .unwrap();
            batch
        });
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    let mut given = BTreeMap::new();
    for batch in CandleLoader::new(&loader, &Device::Cpu).epoch(0).blocking() {
        let batch: Tensor = batch.unwrap();
        let (storage, _) = batch.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            panic!("not on the CPU")
        };
        let numbers = storage.as_slice::<f32>().unwrap();
        given.insert(numbers[0] as usize, numbers.as_ptr() as usize);
    }
    // Two workers make the batches, so they are compared by their numbers, not in order.
    assert_eq!(given, made.try_iter().collect());
    assert_eq!(given.len(), 3);
}

#[test]
fn errors_keep_node_item_and_cause_and_end_the_epoch() {
    let graph = Graph::range(0..6).try_map(|n| if n == 4 { Err("odd one") } else { Ok(n as f32) });
    let loader = DataLoader::builder(graph.batch(2).collate())
        .build()
        .unwrap();
    let mut epoch = CandleLoader::new(&loader, &Device::Cpu).epoch(0).blocking();
    assert!(epoch.next().unwrap().is_ok() && epoch.next().unwrap().is_ok());
    assert_eq!(
        epoch.next().unwrap().unwrap_err().to_string(),
        "try_map: 0:4: odd one"
    );
    assert!(epoch.next().is_none());

    // An error of the conversion is not a bad item that a policy skips.
    let loader = DataLoader::builder(Graph::range(0..6).batch(2).collate());
    let loader = loader.on_error(OnError::skip(9)).build().unwrap();
    let said = "[0:0, 0:1]: candle has no tensors of u64; ";
    let (here, ahead) = (
        CandleLoader::new(&loader, &Device::Cpu),
        staged(&loader, &Device::Cpu),
    );
    for (candle, node) in [(here, "to_candle"), (ahead, "prefetch_to_device")] {
        let mut epoch = candle.epoch(0).blocking();
        let error = epoch.next().unwrap().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{node}: {said}")), "{error}");
        assert!(epoch.next().is_none());
        let streamed: Vec<_> = block_on(candle.epoch(0).collect());
        assert_eq!(streamed.len(), 1);
        assert_eq!(streamed[0].as_ref().unwrap_err().to_string(), error);
    }
}

#[test]
fn uploads_run_on_one_thread_ahead_of_the_step() {
    let loader = loader();
    let device = Device::cuda_if_available(0).unwrap();
    if device.is_cpu() {
        println!("no GPU: the stage runs on the CPU");
    }
    let (send, uploads) = channel();
    let candle = CandleLoader::ahead(&loader, &device, move |batch: Pair, device| {
        let moved = batch.into_candle(device)?;
        // The receiver may be gone before the last one.
        let _ = send.send(thread::current().id());
        Ok(moved)
    });
    let mut threads = Vec::new();
    for epoch in 0..2 {
        let mut batches = candle.epoch(epoch).blocking();
        let mut sum = batches.next().unwrap().unwrap().0.sum_all().unwrap();
        // While the first batch is worked on, the second is uploaded; otherwise this waits for
        // ever.
        threads.extend([uploads.recv().unwrap(), uploads.recv().unwrap()]);
        for batch in batches {
            sum = (sum + batch.unwrap().0.sum_all().unwrap()).unwrap();
        }
        threads.extend(uploads.try_iter());
        assert_eq!(sum.to_scalar::<f32>().unwrap(), 3.0 * (49.0 * 50.0 / 2.0));
    }
    assert_eq!(threads.len(), 14);
    assert!(
        threads
            .iter()
            .all(|&id| id == threads[0] && id != thread::current().id())
    );
    let device = candle.loader().stats().unwrap().device.unwrap();
    assert_eq!(device.uploaded, 7);
}

/// An epoch resumes after the batches that were taken, in every way of reading.
#[test]
fn an_epoch_goes_on_behind_what_was_taken() {
    let samples = Graph::range(0..50)
        .shuffle(50)
        .map(|n| ([n as f32; 3], n as i64));
    let builder = DataLoader::builder(samples.batch(8).collate())
        .seed(3)
        .workers(2);
    let loader = builder.resumable().build().unwrap();
    let ways = || {
        [
            CandleLoader::new(&loader, &Device::Cpu),
            staged(&loader, &Device::Cpu).depth(2),
        ]
    };
    let whole: Vec<_> = ways()[0]
        .epoch(1)
        .blocking()
        .map(|batch| values(&batch.unwrap()))
        .collect();
    for (candle, other) in ways().into_iter().zip(ways().into_iter().rev()) {
        for stop in 0..=whole.len() + 1 {
            let mut epoch = candle.epoch(1).blocking();
            let mut seen: Vec<_> = epoch
                .by_ref()
                .take(stop)
                .map(|batch| values(&batch.unwrap()))
                .collect();
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            assert_eq!(state.is_finished(), stop > whole.len());
            let mut epoch = other.resume(&state).unwrap();
            if let Some(batch) = block_on(epoch.next()) {
                seen.push(values(&batch.unwrap()));
            }
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            let rest = candle
                .resume_edited(&state, Edited::Matching)
                .unwrap()
                .blocking();
            seen.extend(rest.map(|batch| values(&batch.unwrap())));
            assert_eq!(seen, whole, "stopped at {stop}");
        }
    }
    let state = DataLoader::builder(Graph::range(0..3))
        .resumable()
        .build()
        .unwrap()
        .epoch(0)
        .checkpoint()
        .unwrap();
    let error = ways()[0].resume(&state).unwrap_err().to_string();
    assert!(
        error.contains("the checkpoint is of another run"),
        "{error}"
    );
}

/// A batch that could not be converted comes again, in every way of reading.
#[test]
fn a_batch_that_could_not_be_moved_comes_again() {
    let loader = DataLoader::builder(Graph::range(0..10))
        .workers(0)
        .resumable()
        .build()
        .unwrap();
    let convert = |n: u64, _: &Device| match n {
        4 => Err(Error::Msg("four".to_owned())),
        n => Ok(n),
    };
    let ahead = CandleLoader::ahead(&loader, &Device::Cpu, convert);
    for candle in [ahead, CandleLoader::with(&loader, &Device::Cpu, convert)] {
        let mut epoch = candle.epoch(0).blocking();
        assert_eq!(epoch.by_ref().map_while(Result::ok).count(), 4);
        assert!(epoch.next().is_none());
        assert_eq!(epoch.checkpoint().unwrap().delivered(), 4);
        let mut epoch = candle.epoch(0);
        assert_eq!(
            block_on(
                epoch
                    .by_ref()
                    .filter(|n| std::future::ready(n.is_ok()))
                    .count()
            ),
            4
        );
        let rest = loader
            .resume(&epoch.checkpoint().unwrap())
            .unwrap()
            .blocking();
        assert_eq!(
            rest.map(|n| n.unwrap()).collect::<Vec<_>>(),
            [4, 5, 6, 7, 8, 9]
        );
    }
}

/// Ranks end together in both ways of reading, ready batches do not count, and batches whose
/// exchange failed come again.
#[test]
fn ranks_that_agree_end_together() {
    let samples = Graph::range(0..50)
        .shuffle(50)
        .map(|n| ([n as f32; 3], n as i64));
    let loader = DataLoader::builder(samples.batch(8).collate())
        .seed(3)
        .workers(2)
        .resumable()
        .build()
        .unwrap();
    let whole: Vec<_> = loader_values(&CandleLoader::new(&loader, &Device::Cpu));
    for candle in [
        CandleLoader::new(&loader, &Device::Cpu),
        staged(&loader, &Device::Cpu).depth(2),
    ] {
        for others in [0, 1, 4, 9] {
            let mut step = 0;
            let mut epoch = candle.epoch(0).blocking().agreed(|mine| {
                step += 1;
                Ok(mine && step <= others)
            });
            let seen: Vec<_> = epoch
                .by_ref()
                .map(|batch| values(&batch.unwrap()))
                .collect();
            assert_eq!(seen, whole[..others.min(7)]);
            assert!(epoch.next().is_none() && epoch.checkpoint().unwrap().is_finished());
            assert_eq!(
                epoch.checkpoint().unwrap().delivered(),
                others.min(7) as u64
            );

            let mut step = 0;
            let mut epoch = candle.epoch(0).blocking().agreed(|mine| {
                step += 1;
                if step > others {
                    Err(Error::Msg("gone".into()))
                } else {
                    Ok(mine)
                }
            });
            let mut seen: Vec<_> = epoch.by_ref().collect();
            if others < 7 {
                assert_eq!(seen.pop().unwrap().unwrap_err().to_string(), "gone");
            }
            let mut seen: Vec<_> = seen
                .into_iter()
                .map(|batch| values(&batch.unwrap()))
                .collect();
            let rest = candle
                .resume(&epoch.checkpoint().unwrap())
                .unwrap()
                .blocking();
            seen.extend(rest.map(|batch| values(&batch.unwrap())));
            assert_eq!(seen, whole, "failed at {others}");
        }
        let wrong = candle
            .epoch(0)
            .blocking()
            .agreed(|_| Ok(true))
            .last()
            .unwrap()
            .unwrap_err();
        assert!(
            wrong.to_string().contains("ranks went on with a step"),
            "{wrong}"
        );
    }
}

fn loader_values(loader: &CandleLoader<(Tensor, Tensor)>) -> Vec<(Vec<Vec<f32>>, Vec<i64>)> {
    loader
        .epoch(0)
        .blocking()
        .map(|batch| values(&batch.unwrap()))
        .collect()
}
