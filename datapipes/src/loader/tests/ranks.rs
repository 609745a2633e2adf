//! Tests of ranks together.

use super::*;
use crate::pipes::Batch;
use crate::{Indexed, Rank, Uneven};

pub(super) const POLICIES: [Uneven; 3] = [Uneven::Drop, Uneven::Pad, Uneven::Allow];

/// The way in which a graph divides its items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Deal {
    Filter,
    Index,
    Contiguous,
}

pub(super) fn dealt(deal: Deal, items: u64) -> Graph<u64> {
    match deal {
        Deal::Filter => Graph::range(0..items).shuffle(7).sharding_filter_padded(),
        Deal::Index => Indexed::range(items).shuffle().shard().fetch(),
        Deal::Contiguous => Indexed::range(items).shuffle().shard_contiguous().fetch(),
    }
}

pub(super) fn loader<T: Send + 'static>(
    graph: Graph<T>,
    rank: usize,
    world: usize,
    uneven: Uneven,
) -> DataLoader<T> {
    let loader = DataLoader::builder(graph)
        .seed(3)
        .workers(0)
        .rank(rank, world)
        .uneven(uneven);
    loader.build().unwrap()
}

pub(super) fn all<T: Send + 'static>(loader: &DataLoader<T>) -> Vec<T> {
    loader.epoch(1).blocking().map(Result::unwrap).collect()
}

pub(super) fn range() -> Graph<u64> {
    Indexed::range(48).shard().fetch()
}

fn rng() -> crate::Rng {
    crate::Rng::from_key([1, 2, 3, 4])
}

#[test]
fn row_123_shares_are_disjoint_and_complete() {
    let mut rng = rng();
    for _ in 0..10_000 {
        let (items, world) = (rng.below(5000), 1 + rng.below(300) as usize);
        let shares = |uneven| -> Vec<u64> {
            (0..world)
                .map(|index| Rank { index, world }.share(items, uneven))
                .collect()
        };
        let (drop, pad, allow) = (
            shares(Uneven::Drop),
            shares(Uneven::Pad),
            shares(Uneven::Allow),
        );
        let sum = |shares: &[u64]| shares.iter().sum::<u64>();
        assert!(
            drop.iter().all(|&share| share == drop[0]) && pad.iter().all(|&share| share == pad[0])
        );
        assert!(sum(&drop) <= items && items - sum(&drop) < world as u64);
        assert!(sum(&pad) >= items && sum(&pad) - items < world as u64);
        assert!(
            sum(&allow) == items
                && allow[0] - allow[world - 1] <= 1
                && allow.is_sorted_by(|a, b| a >= b)
        );
        assert_eq!(shares(Uneven::Error), allow);
    }
}

#[test]
fn row_123_steps_are_those_of_all_ranks() {
    let mut rng = rng();
    for case in 0..300 {
        let (world, batch) = (1 + rng.below(6) as usize, 1 + rng.below(5) as usize);
        let items = world as u64 + rng.below(60);
        let uneven = POLICIES[rng.below(3) as usize];
        let deal = [Deal::Filter, Deal::Index, Deal::Contiguous][case % 3];
        let drop_last = rng.chance(0.5);
        let of = |rank| {
            let batches = if drop_last {
                Batch::new(batch).drop_last()
            } else {
                Batch::new(batch)
            };
            loader(dealt(deal, items).pipe(batches), rank, world, uneven)
        };
        let what =
            format!("{deal:?}: {items} items, {world} ranks, {uneven:?}, {batch}, {drop_last}");
        let counts: Vec<u64> = (0..world)
            .map(|rank| {
                let loader = of(rank);
                let count = all(&loader).len() as u64;
                assert_eq!(loader.len_hint(), Some(count), "{what}");
                count
            })
            .collect();
        let steps = of(0).steps().unwrap();
        assert_eq!(*steps.start(), *counts.iter().min().unwrap(), "{what}");
        assert_eq!(*steps.end(), *counts.iter().max().unwrap(), "{what}");
        assert!(
            uneven == Uneven::Allow || steps.start() == steps.end(),
            "{what}"
        );

        let parts: Vec<Vec<u64>> = (0..world)
            .map(|rank| all(&loader(dealt(deal, items), rank, world, uneven)))
            .collect();
        let mut seen = parts.concat();
        seen.sort();
        let taken = seen.len() as u64;
        seen.dedup();
        match uneven {
            Uneven::Drop => {
                assert_eq!(
                    (taken, seen.len() as u64),
                    (items / world as u64 * world as u64, taken),
                    "{what}"
                )
            }
            _ => assert_eq!(seen, Vec::from_iter(0..items), "{what}"),
        }
        assert!(uneven != Uneven::Allow || taken == items, "{what}");
        if deal == Deal::Contiguous && uneven == Uneven::Allow {
            let whole = all(&loader(
                Indexed::range(items).named("samples").shuffle().fetch(),
                0,
                1,
                uneven,
            ));
            assert_eq!(parts.concat(), whole, "{what}");
        }
    }
}

#[test]
fn fewer_items_than_ranks_are_refused_with_both_numbers() {
    for uneven in [Uneven::Drop, Uneven::Pad, Uneven::Error] {
        let build = |graph: Graph<u64>| {
            DataLoader::builder(graph)
                .rank(3, 4)
                .uneven(uneven)
                .workers(0)
                .build()
        };
        let said = build(Graph::range(0..3).sharding_filter_padded())
            .unwrap_err()
            .to_string();
        assert!(said.contains("fewer items than ranks: 3 for 4"), "{said}");
        let zipped = Indexed::range(3).zip(Indexed::range(5)).map(|(n, _)| n);
        for graph in [
            zipped.clone().shard().fetch(),
            zipped.shard_contiguous().fetch(),
        ] {
            let said = build(graph).unwrap_err().to_string();
            assert!(said.contains("fewer items than ranks: 3 for 4"), "{said}");
        }
        // The number of items is found on the way.
        let loader = build(Graph::from_iter_with(|| 0..3u64).sharding_filter_padded()).unwrap();
        let all: Vec<_> = loader.epoch(0).blocking().collect();
        let error = all.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(error.contains("fewer items than ranks: 3 for 4"), "{error}");
    }
    let few = Graph::from_iter_with(|| 0..3u64).sharding_filter();
    assert!(all(&loader(few, 3, 4, Uneven::Allow)).is_empty());
}

#[test]
fn fingerprints_tell_other_settings_apart_and_ranks_not() {
    let print = |graph: Graph<Vec<u64>>, seed, rank, world, uneven| {
        let loader = DataLoader::builder(graph)
            .seed(seed)
            .rank(rank, world)
            .uneven(uneven);
        loader.build().unwrap().fingerprint()
    };
    let graph = || range().batch(2);
    let one = print(graph(), 1, 0, 4, Uneven::Drop);
    assert_eq!(one, print(graph(), 1, 3, 4, Uneven::Drop));
    let others = [
        print(graph(), 2, 0, 4, Uneven::Drop),
        print(graph(), 1, 0, 3, Uneven::Drop),
        print(graph(), 1, 0, 4, Uneven::Pad),
        print(range().batch(3), 1, 0, 4, Uneven::Drop),
        print(
            Indexed::range(49).shard().fetch().batch(2),
            1,
            0,
            4,
            Uneven::Allow,
        ),
        print(range().map(|n| n).batch(2), 1, 0, 4, Uneven::Drop),
        print(range().batch(2).named("batches"), 1, 0, 4, Uneven::Drop),
    ];
    assert!(others.iter().all(|other| *other != one), "{one} {others:?}");
    // Ranks that stop at other steps would wait for each other.
    let budget = |steps| {
        DataLoader::builder(range())
            .max_steps(steps)
            .build()
            .unwrap()
            .fingerprint()
    };
    assert_ne!(budget(3), budget(4));
}

/// A collective of threads: true if all of them have something.
struct Exchange(std::sync::Barrier, std::sync::atomic::AtomicUsize, usize);

impl Exchange {
    fn new(world: usize) -> Self {
        Exchange(std::sync::Barrier::new(world), Default::default(), world)
    }

    fn all(&self, mine: bool) -> Result<bool> {
        use std::sync::atomic::Ordering::SeqCst;
        self.1.fetch_add(usize::from(mine), SeqCst);
        self.0.wait();
        let all = self.1.load(SeqCst) == self.2;
        if self.0.wait().is_leader() {
            self.1.store(0, SeqCst);
        }
        self.0.wait();
        Ok(all)
    }
}

#[test]
fn ranks_that_agree_end_at_the_same_step() {
    // Rank r of 3 gets archives r, r + 3, ...; archive n has n members, and that of one fails in
    // one of the cases.
    for failing in [None, Some(4)] {
        let exchange = Exchange::new(3);
        let run = |rank| {
            let graph = Graph::range(0..9)
                .sharding_filter()
                .flat_map(|n| vec![n; n as usize]);
            let graph = graph
                .try_map(move |n| {
                    if Some(n) == failing {
                        Err("bad")
                    } else {
                        Ok(n)
                    }
                })
                .batch(2);
            let loader = DataLoader::builder(graph)
                .workers(0)
                .rank(rank, 3)
                .uneven(Uneven::Drop)
                .resumable();
            let loader = loader.ranks_agree().build().unwrap();
            let mut epoch = loader.epoch(0).blocking().agreed(|mine| exchange.all(mine));
            let seen: Vec<_> = epoch.by_ref().collect();
            assert!(epoch.next().is_none());
            let state = epoch.checkpoint().unwrap();
            let steps = seen.iter().filter(|batch| batch.is_ok()).count();
            assert_eq!(state.delivered(), steps as u64);
            (
                steps,
                seen.last().is_some_and(|last| last.is_err()),
                state.is_finished(),
            )
        };
        let ends = std::thread::scope(|scope| {
            let others = [scope.spawn(|| run(1)), scope.spawn(|| run(2))];
            let mut ends = vec![run(0)];
            ends.extend(others.map(|other| other.join().unwrap()));
            ends
        });
        match failing {
            // Rank 0 has 0 + 3 + 6 members, the others more.
            None => assert_eq!(ends, [(5, false, true); 3]),
            // The fourth step of all is the one that rank 1 cannot take... it has 1 member before
            // those that fail.
            Some(_) => assert_eq!(ends, [(0, false, true), (0, true, false), (0, false, true)]),
        }
    }
}

#[test]
fn an_exchange_that_fails_or_contradicts_is_an_error() {
    let epoch = || {
        loader(Graph::range(0..2).sharding_filter(), 0, 1, Uneven::Drop)
            .epoch(0)
            .blocking()
    };
    let mut failing = epoch().agreed(|_| Err(crate::Error::new(crate::ErrorKind::Io, "gone")));
    assert_eq!(
        failing.next().unwrap().unwrap_err().to_string(),
        "I/O error: gone"
    );
    assert!(failing.next().is_none());
    let mut wrong = epoch().agreed(|_| Ok(true));
    let seen: Vec<_> = wrong.by_ref().collect();
    assert!(seen[..2].iter().all(Result::is_ok) && seen.len() == 3);
    assert!(
        seen[2]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("ranks went on with a step")
    );
}
