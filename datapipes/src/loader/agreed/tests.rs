//! Ranks end with the same step, however they read their epochs; and items that were ready then do
//! not count.

use futures::StreamExt;
use std::collections::VecDeque;
use std::sync::{Arc, Barrier, Mutex};

use super::*;
use crate::pipes::Shuffle;
use crate::run::block_on;
use crate::{BoxError, DataLoader, ErrorKind, Graph, Uneven};

/// Makes a loader of a rank's part of archives of unequal sizes, with a budget of steps.
fn loader(rank: usize, world: usize, workers: usize, steps: Option<u64>) -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..7)
        .sharding_filter()
        .flat_map(|n| (0..2 * n).map(move |m| 100 * n + m));
    let builder = DataLoader::builder(graph.shuffle(Shuffle::new(5).within_rank()).batch(2))
        .seed(5)
        .workers(workers)
        .resumable();
    let builder = builder.rank(rank, world).uneven(Uneven::Allow);
    match steps {
        Some(steps) => builder.max_steps(steps),
        None => builder,
    }
    .build()
    .unwrap()
}

/// Returns all items of an agreed epoch, and its checkpoint afterwards.
fn blocking<T, F>(mut epoch: Agreed<T, Error, F>) -> (Vec<Result<T>>, Checkpoint)
where
    T: Send + 'static,
    F: FnMut(bool) -> Result<bool>,
{
    let seen = epoch.by_ref().collect();
    assert!(epoch.next().is_none());
    (seen, epoch.checkpoint().unwrap())
}

fn streamed<T, F, A>(mut epoch: Agreed<T, Error, F, A>) -> (Vec<Result<T>>, Checkpoint)
where
    T: Send + 'static,
    F: FnMut(bool) -> A,
    A: Future<Output = Result<bool>>,
{
    let seen = block_on(epoch.by_ref().collect());
    assert!(block_on(epoch.next()).is_none());
    (seen, epoch.checkpoint().unwrap())
}

/// Reads an agreed epoch in each of the possible ways.
fn read(
    way: usize,
    loader: &DataLoader<Vec<u64>>,
    from: Option<&Checkpoint>,
    mut agree: impl FnMut(bool) -> Result<bool>,
) -> (Vec<Result<Vec<u64>>>, Checkpoint) {
    let device = loader.prefetch_to_device(Ok::<_, BoxError>).device_depth(3);
    let here = || from.map_or_else(|| loader.epoch(1), |state| loader.resume(state).unwrap());
    let there = || from.map_or_else(|| device.epoch(1), |state| device.resume(state).unwrap());
    match way {
        0 => blocking(here().blocking().agreed(agree)),
        1 => blocking(there().blocking().agreed(agree)),
        2 => streamed(here().agreed(|mine| std::future::ready(agree(mine)))),
        _ => streamed(there().agreed(|mine| std::future::ready(agree(mine)))),
    }
}

fn items(seen: Vec<Result<Vec<u64>>>) -> Vec<Vec<u64>> {
    seen.into_iter().map(Result::unwrap).collect()
}

#[test]
fn all_ranks_end_with_the_one_that_has_least() {
    // Rank r of 3 has archives r, r + 3, ...: 18, 10 and 14 members.
    let least = 5;
    for way in 0..4 {
        for workers in [0, 2] {
            let (barrier, ready) = (Barrier::new(3), Mutex::new(0));
            let all_have = |mine: bool| {
                *ready.lock().unwrap() += usize::from(mine);
                barrier.wait();
                let all = *ready.lock().unwrap() == 3;
                if barrier.wait().is_leader() {
                    *ready.lock().unwrap() = 0;
                }
                barrier.wait();
                Ok(all)
            };
            let run = |rank| {
                let (seen, state) = read(way, &loader(rank, 3, workers, None), None, all_have);
                assert!(state.is_finished());
                assert_eq!(state.delivered(), least, "what was ready does not count");
                let whole = loader(rank, 3, 0, None).epoch(1).blocking();
                let whole: Vec<_> = whole.take(least as usize).map(Result::unwrap).collect();
                assert_eq!(items(seen), whole);
                // Nothing comes after the end.
                assert_eq!(
                    loader(rank, 3, workers, None)
                        .resume(&state)
                        .unwrap()
                        .blocking()
                        .count(),
                    0
                );
            };
            std::thread::scope(|scope| {
                (1..3).for_each(|rank| drop(scope.spawn(move || run(rank))));
                run(0);
            });
        }
    }
}

#[test]
fn where_the_exchange_fails_the_item_comes_again() {
    let whole: Vec<_> = loader(0, 1, 0, None)
        .epoch(1)
        .blocking()
        .map(Result::unwrap)
        .collect();
    for way in 0..4 {
        for workers in [0, 2] {
            for fails_at in [0, 1, 4, whole.len()] {
                let mut step = 0;
                let agree = |mine| {
                    step += 1;
                    if step > fails_at {
                        Err(Error::new(ErrorKind::Io, "gone"))
                    } else {
                        Ok(mine)
                    }
                };
                let (mut seen, state) = read(way, &loader(0, 1, workers, None), None, agree);
                let last = seen.pop().unwrap().unwrap_err();
                assert_eq!(last.to_string(), "I/O error: gone");
                assert_eq!(state.delivered(), fails_at as u64, "way {way}");
                assert_eq!(state.is_finished(), fails_at == whole.len());
                assert_eq!(items(seen), whole[..fails_at]);
                let (rest, _) = read(3 - way, &loader(0, 1, workers, None), Some(&state), Ok);
                assert_eq!(
                    items(rest),
                    whole[fails_at..],
                    "way {way}, failed at {fails_at}"
                );
            }
        }
    }
}

#[test]
fn ranks_that_go_on_without_this_one_are_an_error() {
    for way in 0..4 {
        let (mut seen, state) = read(way, &loader(0, 1, 0, None), None, |_| Ok(true));
        let last = seen.pop().unwrap().unwrap_err();
        assert_eq!(last.kind(), ErrorKind::Config);
        assert!(
            last.to_string().contains("ranks went on with a step"),
            "{last}"
        );
        assert!(state.is_finished() && seen.iter().all(Result::is_ok));
    }
}

#[test]
fn a_budget_of_steps_is_no_end_of_the_data() {
    let whole: Vec<_> = loader(0, 1, 0, None)
        .epoch(1)
        .blocking()
        .map(Result::unwrap)
        .collect();
    for way in 0..4 {
        let (seen, state) = read(way, &loader(0, 1, 2, Some(4)), None, Ok);
        assert_eq!(items(seen), whole[..4]);
        assert!(state.is_finished());
        let (rest, state) = read(way, &loader(0, 1, 2, Some(9)), Some(&state), Ok);
        assert_eq!(items(rest), whole[4..9], "way {way}");
        // If others end at the budget's last step, the data has ended.
        assert!(state.is_finished());
        let (rest, state) = read(way, &loader(0, 1, 2, Some(10)), Some(&state), |_| Ok(false));
        assert!(rest.is_empty() && state.is_finished());
        assert_eq!(state.delivered(), 9);
        assert_eq!(
            loader(0, 1, 0, None)
                .resume(&state)
                .unwrap()
                .blocking()
                .count(),
            0
        );
    }
}

/// A checkpoint taken while the ranks still agree is from before the item that is ready.
#[test]
fn while_ranks_agree_the_item_does_not_count() {
    let whole: Vec<_> = loader(0, 1, 0, None)
        .epoch(1)
        .blocking()
        .map(Result::unwrap)
        .collect();
    let answers: Arc<Mutex<VecDeque<bool>>> = Arc::default();
    let agree = |mine: bool| {
        let answers = answers.clone();
        std::future::poll_fn(move |_| match answers.lock().unwrap().pop_front() {
            Some(answer) => Poll::Ready(Ok(answer && mine)),
            None => Poll::Pending,
        })
    };
    type Answers = Mutex<VecDeque<bool>>;
    fn check<F, A>(mut epoch: Agreed<Vec<u64>, Error, F, A>, answers: &Answers, whole: &[Vec<u64>])
    where
        F: FnMut(bool) -> A,
        A: Future<Output = Result<bool>>,
    {
        for step in 0..4 {
            // Until the epoch waits for the ranks.
            let begun = std::time::Instant::now();
            while epoch.asked.is_none() {
                assert!(
                    epoch
                        .poll_next_unpin(&mut task::Context::from_waker(task::Waker::noop()))
                        .is_pending()
                );
                assert!(begun.elapsed().as_secs() < 30);
                std::thread::yield_now();
            }
            let state = epoch.checkpoint().unwrap();
            assert_eq!(state.delivered(), step as u64);
            let rest = loader(0, 1, 0, None).resume(&state).unwrap().blocking();
            assert_eq!(rest.map(Result::unwrap).collect::<Vec<_>>(), whole[step..]);
            answers.lock().unwrap().push_back(true);
            assert_eq!(block_on(epoch.next()).unwrap().unwrap(), whole[step]);
            assert_eq!(epoch.checkpoint().unwrap().delivered(), step as u64 + 1);
        }
    }
    check(
        loader(0, 1, 2, None).epoch(1).agreed(agree),
        &answers,
        &whole,
    );
    let device = loader(0, 1, 2, None).prefetch_to_device(Ok::<_, BoxError>);
    check(device.epoch(1).agreed(agree), &answers, &whole);
}
