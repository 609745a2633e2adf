use super::*;
use crate::ErrorKind;
use crate::pipes::{Batch, BucketBatch};
use crate::{Graph, Indexed, Item, Uneven};

/// Bits of a random number, so that a sample shows its draw.
fn drawn(n: u64, rng: &mut crate::Rng) -> (u64, u64) {
    (n, rng.next_u64())
}

fn loader<T: Send + 'static>(graph: Graph<T>) -> DataLoader<T> {
    DataLoader::builder(graph)
        .seed(5)
        .workers(2)
        .build()
        .unwrap()
}

/// The most tries for one bad sample of a batch of this size.
fn most(size: usize) -> usize {
    size.next_power_of_two().ilog2() as usize + 1
}

fn batches<T: Send + 'static>(loader: &DataLoader<T>, epoch: u64) -> Vec<Item<T>> {
    let items = loader.epoch(epoch).blocking().items();
    items.map(Result::unwrap).collect()
}

/// Plants each sample of an epoch as the bad one, and finds it. A batch without a bad sample is
/// made again as it was.
fn each_is_found<S, T>(graph: Graph<T>, samples: impl Fn(&T) -> Vec<S>)
where
    S: PartialEq + fmt::Debug,
    T: PartialEq + fmt::Debug + Send + 'static,
{
    found_by(&loader(graph), samples);
}

fn found_by<S, T>(loader: &DataLoader<T>, samples: impl Fn(&T) -> Vec<S>)
where
    S: PartialEq + fmt::Debug,
    T: PartialEq + fmt::Debug + Send + 'static,
{
    let all = batches(loader, 1);
    assert!(!all.is_empty());
    for batch in all {
        let values = samples(&batch);
        assert_eq!(values.len(), batch.origin().parts().len());
        for (place, bad) in values.iter().enumerate() {
            let is_bad = |part: T| samples(&part).contains(bad);
            let found = loader.bisect(1, batch.origin(), is_bad).unwrap();
            assert!(found.tries <= most(values.len()), "{found}");
            assert_eq!(found.samples(), &batch.origin().parts()[place..=place]);
            let Cause::Sample { place: at, .. } = found.cause else {
                panic!("{found}");
            };
            assert_eq!(at, place);
        }
        let mut last = None;
        let never = |part: T| {
            last = Some(part);
            false
        };
        let found = loader.bisect(1, batch.origin(), never).unwrap();
        assert!(matches!(found.cause, Cause::Nothing), "{found}");
        assert_eq!(last.as_ref(), Some(&*batch), "the whole batch comes last");
        if values.len() > 1 {
            let whole = |part: T| samples(&part).len() == values.len();
            let found = loader.bisect(1, batch.origin(), whole).unwrap();
            let Cause::Together(part) = &found.cause else {
                panic!("{found}");
            };
            assert_eq!(*part, 0..values.len());
        }
    }
}

#[test]
fn the_bad_sample_is_found_in_batches_of_any_size() {
    let samples = Graph::range(0..40).map_with_rng(drawn).shuffle(15);
    for size in [1, 2, 3, 7, 8, 40] {
        each_is_found(samples.clone().batch(size), Vec::clone);
    }
    let full = Batch::new(9).drop_last();
    each_is_found(samples.batch(full), Vec::clone);
}

#[test]
fn the_bad_sample_is_found_after_and_before_steps_of_many_kinds() {
    let each = |batch: &Vec<(u64, u64)>| batch.clone();
    let members = Graph::range(0..9).flat_map(|n| (0..n % 4).map(move |k| 10 * n + k));
    let members = members.filter(|n| n % 5 != 1).map_with_rng(drawn);
    // Random numbers of a whole batch are those of the epoch.
    let salted = members
        .clone()
        .shuffle(6)
        .batch(4)
        .map_with_rng(|batch, rng| {
            let salt = rng.next_u64();
            (batch, salt)
        });
    each_is_found(salted, |(batch, _)| batch.clone());
    each_is_found(members.clone().repeat(3).batch(5), each);
    each_is_found(members.clone().batch(5).repeat(2).shuffle(3), each);
    each_is_found(
        members.clone().batch(5).repeat(2).map(|b| b).repeat(2),
        each,
    );
    let mixed = [members.clone(), Graph::range(100..109).map_with_rng(drawn)];
    each_is_found(Graph::mux(mixed.clone()).batch(6), each);
    let batches = mixed.map(|part| part.batch(3));
    each_is_found(Graph::mix(batches.into_iter().zip([2.0, 1.0])), each);
    let buckets = BucketBatch::new(|n: &(u64, u64)| n.0 as usize, [20, 50], [2, 3, 4]);
    each_is_found(members.clone().pipe(buckets.clone()), each);
    each_is_found(members.clone().pipe(buckets.drop_last()), each);
    let fetched = Indexed::range(30).map(|n| n * 3).shuffle().fetch();
    each_is_found(fetched.map_with_rng(drawn).batch(7), each);
    let padded = Graph::range(1..20).map(|n| vec![n; n as usize % 3 + 1]);
    each_is_found(padded.padded_batch(4, 0), |(ids, lengths)| {
        let ids = ids.as_slice::<u64>().unwrap();
        let count = lengths.as_slice::<i64>().unwrap().len();
        ids.chunks(ids.len() / count).map(|row| row[0]).collect()
    });
}

#[test]
fn the_bad_sample_is_found_on_a_rank_and_after_a_resume() {
    let graph = Graph::range(0..60).shuffle(20).sharding_filter();
    let builder = DataLoader::builder(graph.map_with_rng(drawn).batch(8));
    let loader = builder.rank(1, 2).uneven(Uneven::Drop).resumable();
    let loader = loader.build().unwrap();
    found_by(&loader, Vec::clone);

    let mut epoch = loader.epoch(1).blocking();
    epoch.next().unwrap().unwrap();
    let state = epoch.checkpoint().unwrap();
    let mut resumed = loader.resume(&state).unwrap().blocking();
    let batch = resumed.next_item().unwrap().unwrap();
    let bad = batch[5];
    let found = loader.bisect(1, batch.origin(), |part| part.contains(&bad));
    let found = found.unwrap();
    assert_eq!(found.samples(), &batch.origin().parts()[5..6]);
    assert!(
        found.to_string().starts_with("sample 5 of 8 is bad: 0:"),
        "{found}"
    );
}

#[test]
fn of_several_bad_samples_one_is_found() {
    let loader = loader(Graph::range(0..16).batch(16));
    let batch = batches(&loader, 0).remove(0);
    let is_bad = |part: Vec<u64>| part.iter().any(|n| [3, 9, 10].contains(n));
    let found = loader.bisect(0, batch.origin(), is_bad).unwrap();
    assert_eq!((found.samples()[0].index(), found.tries), (3, 5));
}

#[test]
fn samples_that_are_bad_together_are_narrowed_down() {
    let loader = loader(Graph::range(0..16).batch(16));
    let batch = batches(&loader, 0).remove(0);
    for (a, b, part) in [
        (0, 15, 0..16),
        (8, 12, 8..16),
        (9, 10, 8..12),
        (14, 15, 14..16),
    ] {
        let both = |part: Vec<u64>| part.contains(&a) && part.contains(&b);
        let found = loader.bisect(0, batch.origin(), both).unwrap();
        let Cause::Together(range) = &found.cause else {
            panic!("{found}");
        };
        assert_eq!((range, found.tries <= 11), (&part, true), "{found}");
    }
}

#[test]
fn a_judge_that_changes_its_mind_is_noticed() {
    let loader = loader(Graph::range(0..8).batch(8));
    let batch = batches(&loader, 0).remove(0);
    for first in 1..12 {
        // Bad until some call, good from then on.
        let mut calls = 0;
        let fickle = |_| {
            calls += 1;
            calls <= first
        };
        let found = loader.bisect(0, batch.origin(), fickle).unwrap();
        match (first, &found.cause) {
            (1..=3, Cause::Changing(_)) => {}
            (4.., Cause::Sample { place: 0, .. }) => {}
            (_, other) => panic!("{other:?} after {first}"),
        }
    }
}

/// Returns the error of bisecting the first batch.
fn refused<T: Send + 'static>(loader: &DataLoader<T>) -> String {
    let batch = batches(loader, 0).remove(0);
    let error = loader.bisect(0, batch.origin(), |_| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    error.to_string()
}

#[test]
fn a_graph_whose_batches_cannot_be_made_in_parts_says_which_node_prevents_it() {
    let range = || Graph::range(0..12);
    assert!(refused(&loader(range())).contains("no batch"));
    let pairs = range().zip(range()).batch(4);
    assert!(refused(&loader(pairs)).starts_with("zip: "));
    let sums = range().scan(0, |sum: &mut u64, n| {
        *sum += n;
        Some(*sum)
    });
    assert!(refused(&loader(sums.batch(4))).starts_with("scan: "));
    let rebatched = range().batch(4).unbatch().batch(3);
    let text = refused(&loader(rebatched));
    assert!(text.starts_with("batch#2: "), "{text}");
    let nested = range().batch(2).batch(2);
    assert!(refused(&loader(nested)).starts_with("batch: "));
    let joined = range().batch(2).zip(range().batch(3));
    let text = refused(&loader(joined));
    assert!(
        text.starts_with("batch") || text.starts_with("zip"),
        "{text}"
    );
    let filtered = range().batch(4).filter(|batch| batch.len() == 4);
    let text = refused(&loader(filtered));
    assert!(
        text.starts_with("filter: ") && text.contains("0 items"),
        "{text}"
    );
    let [once, again] = range().fork();
    let copied = Graph::mux([once, again.map(|n| n + 100)]).batch(4);
    assert!(refused(&loader(copied)).contains("a fork copies them"));
    let copies = range().through(|input: crate::Items<u64>| {
        use futures::StreamExt;
        let copies = |item: crate::Item<u64>| [item.child(0, *item), item.child(1, *item)];
        input.flat_map(move |item| futures::stream::iter(copies(item.unwrap()).map(Ok)))
    });
    let text = refused(&loader(copies.batch(4)));
    assert!(text.contains("at the stream as a whole"), "{text}");
    let by_index = Indexed::range(12).batch(4).fetch();
    assert!(refused(&loader(by_index)).contains("no node makes a batch"));
}

#[test]
fn a_sample_that_fails_now_is_an_error() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let gone = Arc::<AtomicBool>::default();
    let seen = gone.clone();
    let graph = Graph::range(0..8).try_map(move |n| match n == 5 && seen.load(Ordering::Relaxed) {
        true => Err("the file has gone"),
        false => Ok(n),
    });
    let loader = loader(graph.batch(8));
    let batch = batches(&loader, 0).remove(0);
    gone.store(true, Ordering::Relaxed);
    let error = loader.bisect(0, batch.origin(), |_| false).unwrap_err();
    assert_eq!(error.to_string(), "try_map: 0:5: the file has gone");
    assert_eq!(error.item(), Some(&Origin::root(0, 5)));
}

#[test]
fn a_converted_loader_is_refused() {
    let loader = loader(Graph::range(0..8).batch(8)).convert("len", |batch| crate::Ok(batch.len()));
    assert!(refused(&loader).contains("converted"));
}
