//! The length of an epoch during iteration: the hint is never more or less than the items that
//! arrive.

use std::pin::pin;

use bytes::Bytes;
use datapipes::pipes::{Batch, Shuffle, Stop};
use datapipes::{BoxError, DataLoader, Edited, Graph, OnError, Result, Uneven};
use datapipes_io::formats::Lines;
use datapipes_io::prelude::*;
use datapipes_io::stores::InMemory;
use futures::{Stream, StreamExt};
use proptest::prelude::*;

use crate::graphs::{Spec, Step, config, spec, strict_run};

/// A size hint, and how many steps are left.
type Said = ((usize, Option<usize>), Option<u64>);

/// The hints before each item and after the last, and whether each item was no error.
#[derive(Default)]
struct Heard {
    said: Vec<Said>,
    items: Vec<bool>,
}

impl Heard {
    fn of<I: Iterator<Item = Result<u64>>>(
        mut epoch: I,
        left: impl Fn(&I) -> Option<u64>,
        most: usize,
    ) -> (Heard, I) {
        let mut heard = Heard::default();
        loop {
            heard.said.push((epoch.size_hint(), left(&epoch)));
            if heard.items.len() == most {
                break;
            }
            let Some(item) = epoch.next() else { break };
            heard.items.push(item.is_ok());
        }
        (heard, epoch)
    }

    fn of_stream<S: Stream<Item = Result<u64>>>(epoch: S) -> Heard {
        let (mut heard, mut epoch) = (Heard::default(), pin!(epoch));
        loop {
            heard.said.push((epoch.size_hint(), None));
            let Some(item) = futures::executor::block_on(epoch.next()) else {
                return heard;
            };
            heard.items.push(item.is_ok());
        }
    }

    /// Checks the hints of an epoch that gave `more` further items. `exact` if nothing failed and
    /// nothing was skipped, and skipped items could not have made it longer.
    fn is_true(&self, more: usize, exact: bool) -> Result<(), TestCaseError> {
        for (at, &((least, most), steps)) in self.said.iter().enumerate() {
            let left = self.items.len() - at + more;
            prop_assert!(
                least <= left,
                "{left} came, at least {least} were said at {at}"
            );
            prop_assert!(
                most.is_none_or(|most| left <= most),
                "{left} came, at most {most:?} were said at {at}"
            );
            if exact {
                prop_assert!(
                    steps.is_none_or(|steps| steps == left as u64),
                    "{left} came, {steps:?} were said at {at}"
                );
                // With room for the one error that may end it.
                prop_assert!(
                    steps.is_none_or(|steps| most.is_some_and(|most| most as u64 <= steps + 1))
                );
            }
        }
        Ok(())
    }
}

/// Returns true if the graph continues for as long as its data are not empty, which only the run
/// finds out.
fn cycles(spec: &Spec) -> bool {
    spec.any(&|step| {
        matches!(
            step,
            Step::Cycle(_) | Step::Mix(Stop::CycleUntilAll | Stop::CycleForever, ..)
        )
    })
}

/// Returns true if errors that are skipped can make the graph give more items.
fn takes_turns(spec: &Spec) -> bool {
    spec.any(&|step| match step {
        Step::Mix(..) | Step::Mux(..) => step.ends_early(),
        step => matches!(step, Step::Own(_)),
    })
}

/// Generates a rank, the number of ranks, and the policy for ranks that do not come out even.
fn ranks() -> impl Strategy<Value = Option<(usize, usize, Uneven)>> {
    let uneven =
        prop::sample::select(&[Uneven::Drop, Uneven::Pad, Uneven::Allow, Uneven::Error][..]);
    let ranks = (1usize..4).prop_flat_map(|world| (0..world, Just(world)));
    prop::option::weighted(
        0.4,
        (ranks, uneven).prop_map(|((rank, world), uneven)| (rank, world, uneven)),
    )
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn a_size_hint_never_lies(
        spec in spec(), run in strict_run(), ranks in ranks(), budget in prop::option::weighted(0.3, 0u64..60),
        skip in prop::option::of(0u64..30), drop_last in any::<bool>(), stop in 0usize..80,
    ) {
        let graph = || {
            let graph = spec.graph();
            let graph = if ranks.is_some() { graph.sharding_filter_padded() } else { graph };
            let batch = Batch::new(3);
            let batch = if drop_last { batch.drop_last() } else { batch };
            graph.batch(batch).map(|batch| batch.into_iter().fold(0, |sum, n| sum ^ n))
        };
        let policy = skip.map_or_else(OnError::fail, OnError::skip);
        let build = |resumable| {
            let builder = run.builder(graph()).on_error(policy.clone());
            let builder = if resumable { builder.resumable() } else { builder };
            let builder = match ranks {
                Some((rank, world, uneven)) => builder.rank(rank, world).uneven(uneven),
                None => builder,
            };
            match budget {
                Some(steps) => builder.max_steps(steps).build(),
                None => builder.build(),
            }
        };
        // Too few items for the ranks are found where the length is known.
        let Ok(loader) = build(false) else { return Ok(()) };
        let epoch = loader.epoch(run.epoch).into_iter();
        let (all, _) = Heard::of(epoch, |epoch| epoch.steps_left(), usize::MAX);
        let skipped = loader.stats().is_some_and(|stats| stats.skipped > 0);
        let longer = skip.is_some() && (takes_turns(&spec) || ranks.is_some());
        let exact = !all.items.contains(&false) && !skipped && !cycles(&spec) && !longer;
        all.is_true(0, exact)?;

        Heard::of_stream(loader.epoch(run.epoch)).is_true(0, false)?;
        let on_device = loader.prefetch_to_device(Ok::<_, BoxError>);
        let epoch = on_device.epoch(run.epoch).into_iter();
        Heard::of(epoch, |epoch| epoch.steps_left(), usize::MAX).0.is_true(0, exact)?;
        Heard::of_stream(on_device.epoch(run.epoch)).is_true(0, false)?;
        // Ranks of which another has fewer, or that cannot be asked.
        let agree = |steps: usize| {
            let mut left = steps + 1;
            move |mine| {
                left -= 1;
                match left {
                    0 if steps.is_multiple_of(2) => Err(datapipes::Error::user("no connection")),
                    _ => Ok(mine && left > 0),
                }
            }
        };
        Heard::of(loader.epoch(run.epoch).blocking().agreed(agree(stop)), |_| None, usize::MAX).0.is_true(0, false)?;
        let mut agree = agree(stop);
        let agreed = loader.epoch(run.epoch).agreed(move |mine| std::future::ready(agree(mine)));
        Heard::of_stream(agreed).is_true(0, false)?;

        // Stopped and resumed, and with a graph that might be another.
        let Ok(resumable) = build(true) else { return Ok(()) };
        let epoch = resumable.epoch(run.epoch).into_iter();
        let (before, epoch) = Heard::of(epoch, |epoch| epoch.steps_left(), stop);
        let state = epoch.checkpoint().unwrap();
        let epoch = resumable.resume(&state).unwrap().into_iter();
        let (behind, _) = Heard::of(epoch, |epoch| epoch.steps_left(), usize::MAX);
        // An error that ended the first part comes again in the second.
        let once = if before.items.last() == Some(&false) { 0 } else { behind.items.len() };
        before.is_true(once, exact)?;
        behind.is_true(0, exact)?;
        let epoch = resumable.resume_edited(&state, Edited::Matching).unwrap().into_iter();
        Heard::of(epoch, |epoch| epoch.steps_left(), usize::MAX).0.is_true(0, exact)?;
    }
}

/// Each rank that is read in turn has its own part left.
#[test]
fn a_size_hint_never_lies_where_fewer_ranks_go_on() {
    let loader = |rank, world| {
        let graph = Graph::range(0..101).sharding_filter();
        // With a shuffle downstream of the filter a checkpoint cannot be divided anew, so that one
        // rank reads the remainders of several ranks in turn.
        let graph = graph
            .shuffle(Shuffle::new(5).within_rank())
            .batch(4)
            .map(|batch| batch.len() as u64);
        let builder = DataLoader::builder(graph)
            .rank(rank, world)
            .uneven(Uneven::Allow)
            .workers(0);
        builder.resumable().build().unwrap()
    };
    for stop in [0, 1, 5, 8, 9] {
        let states = (0..3).map(|rank| {
            let mut epoch = loader(rank, 3).epoch(0).blocking();
            epoch.by_ref().take(stop).for_each(drop);
            epoch.checkpoint().unwrap()
        });
        let state = datapipes::Checkpoint::merge(&Iterator::collect::<Vec<_>>(states)).unwrap();
        let epoch = loader(0, 1).resume(&state).unwrap().into_iter();
        let (heard, _) = Heard::of(epoch, |epoch| epoch.steps_left(), usize::MAX);
        heard.is_true(0, true).unwrap();
    }
}

/// A batch is filled up in the place of an item that fails, and the error takes a turn of the mix
/// downstream: the other input has one turn more.
#[test]
fn a_size_hint_has_no_end_where_skipped_items_take_turns() {
    let numbers = Graph::range(0..9).try_map(|n| match n {
        0 | 1 => Err("a bad number"),
        n => Ok(n),
    });
    let inputs = [(numbers.batch(3), 1.0), (Graph::range(0..90).batch(1), 1.0)];
    let graph = Graph::mix_until(Stop::FirstExhausted, inputs).map(|batch| batch.len() as u64);
    let builder = DataLoader::builder(graph).on_error(OnError::skip(2));
    let loader = builder.workers(0).build().unwrap();
    let (heard, _) = Heard::of(loader.epoch(0).into_iter(), |_| None, usize::MAX);
    // Three batches and two errors, and an item of the other input after each.
    assert_eq!(heard.items.len(), 3 + 5);
    heard.is_true(0, false).unwrap();
}

/// A stream has a `map` of its own, and `filter`, `zip`, `collect`: none of them is in doubt
/// because of the `for` loop.
#[test]
fn a_for_loop_over_an_epoch_works_and_takes_no_name_from_streams() {
    let loader = DataLoader::builder(Graph::range(0..10).batch(4))
        .build()
        .unwrap();
    let mut sizes = Vec::new();
    for batch in loader.epoch(0) {
        sizes.push(batch.unwrap().len());
    }
    assert_eq!(sizes, [4, 4, 2]);
    for (step, batch) in loader
        .prefetch_to_device(Ok::<_, BoxError>)
        .epoch(0)
        .into_iter()
        .enumerate()
    {
        assert_eq!(batch.unwrap()[0], 4 * step as u64);
    }
    let streamed = loader
        .epoch(0)
        .map(|batch| batch.unwrap().len())
        .filter(|len| std::future::ready(*len > 2));
    assert_eq!(
        futures::executor::block_on(streamed.zip(loader.epoch(1)).collect::<Vec<_>>()).len(),
        2
    );
}

/// Files and records stay endless on their way, so the number of steps is what is left.
#[test]
fn a_cycle_of_files_with_max_steps_has_that_length() {
    let store = InMemory::from_iter([("a", b"0\n1\n2\n".to_vec()), ("b", b"3\n".to_vec())]);
    let files = || store.clone().files(["a", "b"]).cycle();
    let text = |line: Bytes| String::from_utf8(line.into()).unwrap();
    let graphs = [
        files().read_as(Lines::new().bytes()).map(text),
        files().stream_as(Lines::new().bytes(), 0).map(text),
        #[cfg(feature = "text")]
        {
            use datapipes_text::prelude::*;
            let texts = Graph::from_vec(vec!["a", "b", "a", "c"]).cycle();
            let texts = texts.map(str::to_owned);
            texts.distinct(9, |text| text.as_bytes())
        },
    ];
    for graph in graphs {
        let loader = DataLoader::builder(graph).max_steps(3).build().unwrap();
        assert_eq!((loader.len_hint(), loader.steps()), (Some(3), Some(3..=3)));
        assert_eq!(loader.epoch(0).blocking().map(Result::unwrap).count(), 3);
    }
}
