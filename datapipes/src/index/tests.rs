//! The index side as a whole, compared with the same steps on streams.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::pipes::{Batch, Stop};
use crate::{DataLoader, Error, ErrorKind, Graph, Item, OnError, Order, Revision, Uneven};

/// Samples that start at an index, so that data sets differ.
fn data(from: u64, len: u64) -> Indexed<u64> {
    Indexed::from_vec((from..from + len).collect())
}

fn both(indexed: Indexed<u64>, stream: Graph<u64>) {
    assert_eq!(
        indexed.len(),
        stream.clone().collect().unwrap().len() as u64,
        "{indexed:?}"
    );
    assert_eq!(
        indexed.clone().fetch().collect().unwrap(),
        stream.collect().unwrap(),
        "{indexed:?}"
    );
}

#[test]
fn each_step_gives_what_it_gives_on_streams() {
    for (a, b, c) in [(5, 3, 4), (0, 2, 1), (1, 0, 0), (10, 10, 10), (40, 1, 7)] {
        let graphs =
            || [(0, a), (100, b), (200, c)].map(|(from, len)| Graph::range(from..from + len));
        let all = || [(0, a), (100, b), (200, c)].map(|(from, len)| data(from, len));
        let [x, y, _] = all();
        let [s, t, _] = graphs();
        both(x.clone().map(|n| n * 3), s.clone().map(|n| n * 3));
        both(Indexed::concat(all()), Graph::concat(graphs()));
        both(
            x.clone().zip(y).map(|(a, b)| a * 1000 + b),
            s.clone().zip(t).map(|(a, b)| a * 1000 + b),
        );
        both(x.clone().repeat(3), s.clone().repeat(3));
        both(x.clone().subset(0..a / 2), s.clone().take(a / 2));
        both(x.clone().subset(a / 2..a), s.clone().skip(a / 2));
        let sum = |batch: Vec<u64>| batch.iter().fold(7, |sum, n| sum * 31 + n);
        both(x.clone().batch(3).map(sum), s.clone().batch(3).map(sum));
        let drop_last = s.batch(Batch::new(3).drop_last());
        both(
            x.batch(Batch::new(3).drop_last()).map(sum),
            drop_last.map(sum),
        );
        for weights in [
            [1.0, 1.0, 1.0],
            [0.5, 0.2, 0.3],
            [7.0, 1.0, 2.0],
            [1e-3, 1.0, 5.0],
        ] {
            both(
                Indexed::mix(all().into_iter().zip(weights)),
                Graph::mix(graphs().into_iter().zip(weights)),
            );
            both(
                Indexed::mix_to_first(all().into_iter().zip(weights)),
                Graph::mix_until(Stop::FirstExhausted, graphs().into_iter().zip(weights)),
            );
        }
    }
}

#[test]
fn steps_follow_each_other_in_any_way() {
    let mixed = Indexed::mix([
        (data(0, 7).repeat(2), 2.0),
        (Indexed::concat([data(20, 3), data(30, 2)]), 1.0),
    ]);
    let pairs = mixed
        .clone()
        .zip(mixed.clone().subset(1..10).batch(2).subset(vec![3, 0]))
        .repeat(2);
    let seen = pairs.clone().fetch().collect().unwrap();
    assert_eq!(seen.len() as u64, pairs.len());
    let flat = mixed.fetch().collect().unwrap();
    assert_eq!(
        seen[..2],
        [
            (flat[0], vec![flat[7], flat[8]]),
            (flat[1], vec![flat[1], flat[2]])
        ]
    );
    assert_eq!(seen[2..], seen[..2]);
}

fn run<T: Send + 'static>(
    graph: Graph<T>,
    epoch: u64,
    rank: (usize, usize),
    uneven: Uneven,
) -> Vec<(T, String)> {
    let loader = DataLoader::builder(graph)
        .workers(0)
        .rank(rank.0, rank.1)
        .uneven(uneven)
        .build()
        .unwrap();
    let items = loader.epoch(epoch).blocking().items().map(Result::unwrap);
    items
        .map(|item: Item<T>| {
            let (value, origin) = item.into_parts();
            (value, origin.to_string())
        })
        .collect()
}

/// The samples of all ranks together are those of a single rank, position by position, with the
/// same origins, except for what the policy adds or removes.
#[test]
fn row_32_every_rank_gets_every_so_manieth_of_one_order() {
    let chains: [fn(u64) -> Indexed<u64>; 4] = [
        |len| data(0, len).shuffle(),
        |len| data(0, len).repeat(2).shuffle(),
        |len| Indexed::concat([data(0, len), data(100, len / 2)]).shuffle(),
        |len| data(0, len).sampled(Replacement::new(len)),
    ];
    for chain in chains {
        for len in [1u64, 2, 7, 12, 25] {
            for epoch in 0..2 {
                let whole = run(chain(len).fetch(), epoch, (0, 1), Uneven::Allow);
                let total = whole.len();
                for world in 2..6usize {
                    // Fewer samples than ranks are refused unless `Allow` is set.
                    let policies: &[Uneven] = match total < world {
                        true => &[Uneven::Allow],
                        false => &[Uneven::Allow, Uneven::Drop, Uneven::Pad],
                    };
                    for &uneven in policies {
                        let mut origins = BTreeSet::new();
                        for rank in 0..world {
                            let part =
                                run(chain(len).shard().fetch(), epoch, (rank, world), uneven);
                            let own: Vec<_> =
                                whole.iter().skip(rank).step_by(world).cloned().collect();
                            let rank = crate::Rank { index: rank, world };
                            assert_eq!(part.len() as u64, chain(len).shard().len_for(rank, uneven));
                            let (common, more) = part.split_at(part.len().min(own.len()));
                            assert_eq!(*common, own[..common.len()]);
                            match uneven {
                                Uneven::Drop => assert_eq!(part.len(), total / world),
                                Uneven::Pad => assert_eq!(part.len(), total.div_ceil(world)),
                                _ => assert_eq!(part.len(), own.len()),
                            }
                            // Padding comes from the start of the order.
                            assert!(
                                more.iter().all(|(value, _)| whole[..world]
                                    .iter()
                                    .any(|(w, _)| w == value))
                            );
                            assert!(
                                part.into_iter().all(|(_, origin)| origins.insert(origin)),
                                "an origin twice"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn no_samples_are_an_empty_epoch_of_a_single_rank_with_and_without_sharding() {
    for graph in [data(0, 0).fetch(), data(0, 0).shard().fetch()] {
        assert!(graph.collect().unwrap().is_empty());
    }
}

#[test]
fn what_ranks_leave_out_is_counted_and_uneven_can_be_an_error() {
    let loader = |graph: Graph<u64>, rank, uneven| {
        DataLoader::builder(graph)
            .workers(0)
            .rank(rank, 3)
            .uneven(uneven)
            .build()
    };
    let dropped = |graph: Graph<u64>, rank| -> u64 {
        let loader = loader(graph, rank, Uneven::Drop).unwrap();
        assert!(loader.epoch(0).blocking().all(|item| item.is_ok()));
        loader
            .stats()
            .unwrap()
            .nodes
            .iter()
            .map(|node| node.dropped)
            .sum()
    };
    assert_eq!(
        [0, 1, 2].map(|rank| dropped(data(0, 8).shard().fetch(), rank)),
        [1, 1, 0]
    );
    assert_eq!(
        [0, 1, 2].map(|rank| dropped(data(0, 8).shard().repeat(4).fetch(), rank)),
        [4, 4, 0]
    );
    assert_eq!(
        data(0, 8)
            .batch(Batch::new(3).drop_last())
            .fetch()
            .collect()
            .unwrap()
            .len(),
        2
    );

    let error = loader(data(0, 8).shard().fetch(), 0, Uneven::Error)
        .err()
        .unwrap();
    assert_eq!(
        error.problems(),
        ["index_shard: 8 items do not divide among 3 ranks: 2 are left over"]
    );
    let joined = Indexed::concat([data(0, 4), data(4, 4)]).shard().fetch();
    let error = loader(joined, 0, Uneven::Error).err().unwrap();
    assert_eq!(
        error.problems(),
        ["index_shard: 8 items do not divide among 3 ranks: 2 are left over"]
    );
}

#[test]
fn no_two_draws_of_an_epoch_have_one_origin() {
    let part = || data(0, 10).shuffle();
    let chains = [
        part().repeat(3),
        part().repeat(2).shuffle().repeat(2),
        part().repeat(3).repeat(3).repeat(3),
        part().sampled(Replacement::new(200)),
        part()
            .repeat(70)
            .sampled(Weighted::new((0..700).map(f64::from), 300))
            .repeat(2),
        part().subset(vec![1, 1, 2]).repeat(2),
        Indexed::concat([part(), part().repeat(2)]),
        {
            let part = part();
            Indexed::concat([part.clone(), part.clone().repeat(2), part])
        },
        {
            let part = part();
            Indexed::mix([(part.clone(), 1.0), (part.repeat(2), 2.0)])
        },
        part()
            .sampled(ClassBalanced::new((0..10).map(|n| n / 9), 60))
            .repeat(2),
        part().zip(part()).map(|(a, _)| a).repeat(2),
    ];
    for chain in chains {
        let all = run(chain.clone().fetch(), 0, (0, 1), Uneven::Allow);
        let origins: BTreeSet<&String> = all.iter().map(|(_, origin)| origin).collect();
        assert_eq!(origins.len(), all.len(), "{chain:?}");
        assert_eq!(all.len() as u64, chain.len());
    }
}

/// An item of a shuffle keeps its sample's origin, so that augmentation does not depend on order.
#[test]
fn a_sample_keeps_its_origin_wherever_it_comes() {
    for (value, origin) in run(
        data(0, 50).shuffle().subset(10..40).fetch(),
        3,
        (0, 1),
        Uneven::Allow,
    ) {
        assert_eq!(origin, format!("0:{value}"));
    }
    let again: Vec<_> = run(data(0, 2).repeat(2).fetch(), 0, (0, 1), Uneven::Allow);
    assert_eq!(
        again
            .iter()
            .map(|(_, origin)| origin.as_str())
            .collect::<Vec<_>>(),
        ["0:0", "0:1", "0:0/1", "0:1/1"]
    );
}

#[test]
fn orders_change_with_seed_epoch_and_name_and_with_nothing_else() {
    let order = |graph: Graph<u64>, seed, epoch| -> Vec<u64> {
        let loader = DataLoader::builder(graph)
            .seed(seed)
            .workers(0)
            .build()
            .unwrap();
        loader.epoch(epoch).blocking().map(Result::unwrap).collect()
    };
    let shuffled = || data(0, 100).shuffle();
    let first = order(shuffled().fetch(), 0, 0);
    for (seed, epoch, name) in [
        (1, 0, "index_shuffle"),
        (0, 1, "index_shuffle"),
        (0, 0, "other"),
    ] {
        assert_ne!(order(shuffled().named(name).fetch(), seed, epoch), first);
    }
    assert_eq!(
        order(shuffled().named("index_shuffle").fetch(), 0, 0),
        first
    );
    assert_eq!(
        order(
            shuffled().map(|n| n + 1).cache(1000).map(|n| n - 1).fetch(),
            0,
            0
        ),
        first
    );
    assert_eq!(
        order(data(0, 100).map(|n| n).shuffle().fetch(), 0, 0),
        first
    );
    // Rounds of a repeat, inside and outside, have orders of their own.
    let rounds = order(shuffled().repeat(80).fetch(), 0, 0);
    let distinct: BTreeSet<&[u64]> = rounds.chunks(100).collect();
    assert_eq!((distinct.len(), &rounds[..100]), (80, &first[..]));
    let nested = order(shuffled().repeat(3).repeat(3).fetch().repeat(3), 0, 0);
    assert_eq!(nested.chunks(100).collect::<BTreeSet<_>>().len(), 27);
    let nested = run(
        shuffled().repeat(3).repeat(3).fetch().repeat(3),
        0,
        (0, 1),
        Uneven::Allow,
    );
    assert_eq!(
        nested
            .iter()
            .map(|(_, origin)| origin)
            .collect::<BTreeSet<_>>()
            .len(),
        2700
    );
    let outside = order(shuffled().fetch().repeat(2), 0, 0);
    assert_ne!(outside[..100], outside[100..]);
}

/// A change of this order is a breaking change.
#[test]
fn the_order_of_a_shuffle_is_pinned() {
    assert_eq!(
        Indexed::range(12).shuffle().fetch().collect().unwrap(),
        [0, 10, 9, 7, 1, 11, 8, 3, 5, 2, 6, 4]
    );
    let large = Indexed::range(1_000_003)
        .shuffle()
        .fetch()
        .take(5)
        .collect()
        .unwrap();
    assert_eq!(large, [572167, 156197, 198174, 503151, 642007]);
}

#[test]
fn a_handle_used_twice_is_one_order_in_a_zip() {
    let shuffled = data(0, 50).shuffle();
    let pairs = shuffled
        .clone()
        .map(|n| n * 2)
        .zip(shuffled.clone().map(|n| n * 3));
    assert!(
        pairs
            .fetch()
            .collect()
            .unwrap()
            .into_iter()
            .all(|(double, triple)| double * 3 == triple * 2)
    );
    let halves = shuffled
        .clone()
        .subset(0..25)
        .zip(shuffled.clone().subset(25..50));
    let all: BTreeSet<u64> = halves
        .fetch()
        .collect()
        .unwrap()
        .into_iter()
        .flat_map(|(a, b)| [a, b])
        .collect();
    assert_eq!(all.len(), 50);
    // Each use in a concat is data of its own.
    let twice = Indexed::concat([shuffled.clone(), shuffled])
        .fetch()
        .collect()
        .unwrap();
    assert_ne!(twice[..50], twice[50..]);
    let paired = data(0, 50)
        .zip(data(0, 50).shuffle())
        .fetch()
        .collect()
        .unwrap();
    assert!(paired.iter().filter(|(a, b)| a == b).count() < 8);
}

#[test]
fn any_number_of_samples_starts_at_once() {
    let big = Indexed::range(1 << 44)
        .shuffle()
        .repeat(1000)
        .shuffle()
        .shard();
    let all = Indexed::mix([
        (big.clone(), 3.0),
        (
            Indexed::concat([big.clone(), Indexed::range(50).shard()]),
            1.0,
        ),
    ]);
    let loader = DataLoader::builder(all.clone().fetch())
        .rank(3, 7)
        .uneven(Uneven::Pad)
        .build()
        .unwrap();
    assert_eq!(
        loader
            .epoch(0)
            .blocking()
            .take(1000)
            .filter(Result::is_ok)
            .count(),
        1000
    );
    assert!(all.len() > 1 << 53);
}

#[test]
fn law_9_wrong_orders_do_not_start() {
    let built = |indexed: Indexed<u64>, world: usize, uneven: Option<Uneven>| {
        let builder = DataLoader::builder(indexed.fetch()).rank(0, world);
        let builder = match uneven {
            Some(uneven) => builder.uneven(uneven),
            None => builder,
        };
        builder
            .build()
            .err()
            .map(|error| error.problems().join("; "))
            .unwrap_or_default()
    };
    let drop = Some(Uneven::Drop);
    let wrong = [
        (
            "samples: no `sharding_filter` between it and the consumer (for data by index `Indexed::shard`)",
            built(data(0, 9).shuffle(), 2, drop),
        ),
        (
            "samples#2: no `sharding_filter`",
            built(Indexed::concat([data(0, 9).shard(), data(0, 9)]), 2, drop),
        ),
        (
            "index_shard#2: shards a second time",
            built(data(0, 9).shard().shard(), 2, drop),
        ),
        (
            "index_shuffle: shuffles after the sharding filter only",
            built(data(0, 9).shard().shuffle(), 2, drop),
        ),
        (
            "index_shard: fewer items than ranks: 3 for 4",
            built(data(0, 3).shard(), 4, drop),
        ),
        (
            "2 ranks, and nothing says",
            built(data(0, 9).shard(), 2, None),
        ),
        (
            "index_subset: index 9, where there are 9 samples",
            built(data(0, 9).subset(vec![0, 9]), 1, None),
        ),
        (
            "index_subset: index 9, where",
            built(data(0, 9).shuffle().subset(3..10), 1, None),
        ),
        (
            "index_weighted: 2 weights for 9 samples",
            built(data(0, 9).sampled(Weighted::new([1.0; 2], 1)), 1, None),
        ),
        (
            "index_weighted: a weight that is negative",
            built(data(0, 1).sampled(Weighted::new([-1.0], 1)), 1, None),
        ),
        (
            "index_repeat: a repeat of zero rounds",
            built(data(0, 9).repeat(0), 1, None),
        ),
        (
            "index_concat: no inputs",
            built(Indexed::concat([]), 1, None),
        ),
        ("index_mix: no inputs", built(Indexed::mix([]), 1, None)),
        (
            "index_mix: a weight that is not a positive number",
            built(Indexed::mix([(data(0, 9), 0.0)]), 1, None),
        ),
        (
            "index_mix: weights more than a billion",
            built(
                Indexed::mix([(data(0, 9), 1e-5), (data(0, 9), 1e5)]),
                1,
                None,
            ),
        ),
        (
            "index_batch: a batch size of zero",
            built(data(0, 9).batch(0).map(|_| 0), 1, None),
        ),
        (
            "samples: more than 2^48 samples",
            built(Indexed::range((1 << 48) + 1), 1, None),
        ),
        (
            "twice: 2 nodes have this name",
            built(
                data(0, 9).shuffle().named("twice").shuffle().named("twice"),
                1,
                None,
            ),
        ),
        (
            "fetch: a concurrency of zero",
            built(data(0, 9).concurrency(0), 1, None),
        ),
    ];
    for (problem, found) in wrong {
        assert!(found.starts_with(problem), "{problem}, but: {found}");
    }
    let right = data(0, 9)
        .shuffle()
        .shard()
        .sampled(Random::new().within_rank());
    assert_eq!(built(right, 2, drop), "");
}

/// The length of a subset that is known only if the rank is known.
#[test]
fn a_sampler_that_does_not_fit_a_ranks_part_is_an_error_of_its_node() {
    let graph = data(0, 9).shard().subset(0..5).fetch();
    let loader = DataLoader::builder(graph)
        .workers(0)
        .rank(0, 2)
        .uneven(Uneven::Drop)
        .build()
        .unwrap();
    let error = loader.epoch(0).blocking().next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "index_subset: 0:0: wrong configuration: index 4, where there are 4 samples"
    );
}

#[test]
fn a_sampler_that_panics_or_lies_ends_the_epoch_with_its_error() {
    struct Liar;
    impl Sampler for Liar {
        fn len(&self, len: u64) -> u64 {
            len
        }
        fn start(&self, len: u64, _: &mut crate::Rng) -> Draws {
            Box::new(move |position| Drawn::once(if position == 3 { len } else { position }))
        }
    }
    for workers in [0, 2] {
        let loader = DataLoader::builder(data(0, 9).sampled(Liar).fetch()).workers(workers);
        let loader = loader.on_error(OnError::skip(100)).build().unwrap();
        let seen: Vec<_> = loader.epoch(0).blocking().collect();
        assert_eq!(seen.len(), 4, "{workers}");
        let error = seen[3].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panic);
        assert_eq!(error.to_string(), "indices: panicked: index 9 of 9 samples");
    }
}

#[test]
fn errors_and_panics_cost_a_sample_and_name_it_wherever_they_happen() {
    let get = |index: u64| async move {
        tokio::task::yield_now().await;
        match index {
            3 => Err(Error::not_found("three")),
            5 => panic!("five"),
            index => Ok(index),
        }
    };
    let flaky = || Indexed::from_fn(9, get);
    let fails = |indexed: Indexed<u64>, workers| -> Vec<String> {
        let loader = DataLoader::builder(indexed.fetch())
            .workers(workers)
            .on_error(OnError::skip(100))
            .build()
            .unwrap();
        let items = loader.epoch(0).blocking().items();
        items
            .map(|item| item.map_or_else(|error| error.to_string(), |item| item.to_string()))
            .collect()
    };
    for workers in [0, 2] {
        let seen = fails(flaky(), workers);
        assert_eq!(seen[..4], ["0", "1", "2", "4"], "{workers}");
        assert_eq!(seen[4], "fetch: 0:5: panicked: five");
    }
    let chains: Vec<(Indexed<u64>, &str)> = vec![
        (
            flaky().map_async(|n| async move { Ok::<_, Error>(n) }),
            "fetch: 0:3: not found: three",
        ),
        (
            flaky().zip(data(0, 9)).map(|(a, _)| a),
            "fetch: 0:3: not found: three",
        ),
        (
            data(0, 9).zip(flaky()).map(|(a, _)| a),
            "fetch: 0:3: not found: three",
        ),
        (
            Indexed::concat([flaky(), data(0, 2)]),
            "fetch: 0:3: not found: three",
        ),
        (flaky().cache(1000), "fetch: 0:3: not found: three"),
        (
            flaky().batch(3).map(|batch| batch[0]),
            "fetch: [0:3, 0:4, 0:5]: not found: sample 3: three",
        ),
        (
            data(0, 9).try_map(|n| if n == 3 { Err("three") } else { Ok(n) }),
            "try_map: 0:3: three",
        ),
        (
            data(0, 9)
                .try_map(|n| if n == 3 { Err("three") } else { Ok(n) })
                .cache(9),
            "fetch: 0:3: three",
        ),
    ];
    for (indexed, expected) in chains {
        let graph = indexed.fetch();
        let error = DataLoader::builder(graph)
            .workers(1)
            .build()
            .unwrap()
            .epoch(0)
            .blocking()
            .find_map(Result::err);
        assert_eq!(error.unwrap().to_string(), expected);
    }
}

#[test]
fn orders_other_than_strict_give_the_same_samples() {
    let slow = |n: u64| async move {
        for _ in 0..n * 37 % 11 {
            tokio::task::yield_now().await;
        }
        Ok::<_, Error>(n)
    };
    let graph = Indexed::from_fn(300, slow).shuffle().repeat(2).fetch();
    let run = |order, workers| -> Vec<u64> {
        let loader = DataLoader::builder(graph.clone())
            .order(order)
            .workers(workers)
            .build()
            .unwrap();
        loader.epoch(0).blocking().map(Result::unwrap).collect()
    };
    let strict = run(Order::Strict, 0);
    assert_eq!(run(Order::Strict, 2), strict);
    let sorted = |mut all: Vec<u64>| {
        all.sort();
        all
    };
    for order in [Order::Arrival, Order::Bounded(20)] {
        assert_eq!(sorted(run(order, 2)), sorted(strict.clone()));
    }
}

#[test]
fn the_plan_shows_each_step() {
    let graph = data(0, 1000)
        .map(|n| n + 1)
        .shuffle()
        .shard()
        .subset(0..10)
        .concurrency(7)
        .fetch();
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    assert_eq!(loader.len_hint(), Some(10));
    let plan = loader.explain();
    for line in [
        "map",
        "fetch  [segment",
        "up to 7 in flight",
        "indices",
        "index_subset(0..10)",
        "index_shard",
        "index_shuffle",
        "samples(1000)",
    ] {
        assert!(plan.contains(line), "{line} is not in\n{plan}");
    }
    let loader = DataLoader::builder(data(0, 10).shuffle().shard().fetch().batch(2))
        .rank(2, 3)
        .uneven(Uneven::Pad);
    assert_eq!(loader.build().unwrap().len_hint(), Some(2));
}

/// Samples with names. The last cannot be read.
struct NamedSamples;

#[async_trait]
impl MapPipe for NamedSamples {
    type Out = u64;

    fn len(&self) -> u64 {
        4
    }
    async fn get(&self, index: u64) -> Result<u64> {
        match index {
            3 => Err(Error::corrupt("cut")),
            _ => Ok(index),
        }
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{index}.jpg").into())
    }
}

#[test]
fn data_by_index_keeps_the_contract() {
    crate::testing::check_map_pipe(&NamedSamples);
    crate::testing::check_map_pipe(&sources::FromVec(vec![5, 6, 7]));
}

#[test]
#[should_panic(expected = "sample 1 by `get_many`")]
fn samples_in_another_order_are_found() {
    struct Mixed;

    #[async_trait]
    impl MapPipe for Mixed {
        type Out = u64;
        fn len(&self) -> u64 {
            2
        }
        async fn get(&self, index: u64) -> Result<u64> {
            Ok(index)
        }
        async fn get_many(&self, indices: &[u64]) -> Vec<Result<u64>> {
            let mut sorted = indices.to_vec();
            sorted.sort_unstable();
            sorted.into_iter().map(Ok).collect()
        }
    }
    crate::testing::check_map_pipe(&Mixed);
}

#[test]
fn origins_and_errors_have_the_name_of_the_sample() {
    let three = || Indexed::new(NamedSamples).subset(0..3);
    let names = |graph: Graph<()>| {
        let loader = DataLoader::builder(graph).build().unwrap();
        let items = loader.epoch(0).blocking().items();
        items
            .map(|item| item.unwrap().origin().to_string())
            .collect::<Vec<_>>()
    };
    let plain = ["0.jpg", "1.jpg", "2.jpg"];
    assert_eq!(names(three().map(drop).fetch()), plain);
    assert_eq!(names(three().cache(1000).fetch().map(drop)), plain);
    let tested = three().weighed(|_| 1).map_async(async |_| crate::Ok(()));
    assert_eq!(names(tested.fetch()), plain);
    assert_eq!(
        names(
            Indexed::concat([Indexed::range(0), three()])
                .fetch()
                .map(drop)
        ),
        plain
    );
    assert_eq!(
        names(Indexed::range(3).zip(three()).fetch().map(drop)),
        plain
    );
    assert_eq!(names(three().zip(three()).fetch().map(drop)), plain);
    assert_eq!(
        names(three().zip(three().subset(1..3)).fetch().map(drop)),
        ["0.jpg + 1.jpg", "1.jpg + 2.jpg"]
    );
    assert_eq!(
        names(three().subset(0..1).repeat(2).fetch().map(drop)),
        ["0.jpg", "0.jpg/1"]
    );
    let keys = Graph::from_vec(vec![1_u64]).flat_map(|key| vec![key]);
    assert_eq!(
        names(keys.fetch(Arc::new(NamedSamples)).map(drop)),
        ["0:0/1.jpg"]
    );

    let all = Indexed::new(NamedSamples);
    for (graph, said) in [
        (all.clone().fetch().map(drop), "fetch: 3.jpg: corrupt: cut"),
        (all.batch(4).fetch().map(drop), "corrupt: 3.jpg: cut"),
    ] {
        let error = graph.collect().unwrap_err().to_string();
        assert!(error.ends_with(said), "{error}");
    }
}

/// Counts reads, and holds every read back until it is released.
#[derive(Default)]
struct Held {
    reads: AtomicU64,
    open: AtomicBool,
    fails: AtomicBool,
}

#[async_trait]
impl MapPipe for Held {
    type Out = Vec<u8>;

    fn len(&self) -> u64 {
        100
    }
    async fn get(&self, index: u64) -> Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        if self.fails.load(Ordering::SeqCst) {
            Err(Error::new(ErrorKind::Io, "down"))
        } else {
            Ok(vec![index as u8; 100])
        }
    }
    fn weigh(&self, sample: &Vec<u8>) -> Option<usize> {
        Some(sample.len())
    }
}

fn cached(bytes: usize) -> (Arc<Held>, cached::Cached<Vec<u8>>) {
    let held = Arc::new(Held::default());
    (
        held.clone(),
        cached::Cached::new(Arc::new(sources::Samples(held)), bytes),
    )
}

#[tokio::test]
async fn a_cache_reads_once_what_is_asked_for_at_the_same_time() {
    let (held, cache) = cached(1 << 20);
    let ask = || cache.get(order::Index::One(7));
    let all = futures::future::join_all((0..10).map(|_| ask()));
    let (all, ()) = futures::future::join(all, async {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        held.open.store(true, Ordering::SeqCst);
    })
    .await;
    assert!(
        all.into_iter()
            .all(|sample| sample.unwrap() == vec![7; 100])
    );
    assert_eq!(
        (
            held.reads.load(Ordering::SeqCst),
            ask().await.unwrap().len()
        ),
        (1, 100)
    );
    assert_eq!(held.reads.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_cache_outlives_a_reader_that_gives_up_and_one_that_fails() {
    let (held, cache) = cached(1 << 20);
    let ask = || cache.get(order::Index::One(7));
    let mut first = ask();
    let mut second = ask();
    assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
    assert_eq!(held.reads.load(Ordering::SeqCst), 1);
    drop(first);
    held.open.store(true, Ordering::SeqCst);
    held.fails.store(true, Ordering::SeqCst);
    assert_eq!(second.await.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(cache.entries(), 0, "an error is kept");
    held.fails.store(false, Ordering::SeqCst);
    assert!(ask().await.is_ok() && ask().await.is_ok());
    assert_eq!((held.reads.load(Ordering::SeqCst), cache.entries()), (3, 1));
}

#[tokio::test]
async fn a_cache_is_bounded_in_bytes() {
    let (held, cache) = cached(1000);
    held.open.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        for index in 0..100 {
            assert_eq!(
                cache.get(order::Index::One(index)).await.unwrap()[0],
                index as u8
            );
        }
    }
    let kept = cache.entries() as u64;
    assert!(
        (3..10).contains(&kept),
        "{kept} of 100 bytes and more are kept"
    );
    assert_eq!(held.reads.load(Ordering::SeqCst), 200 - kept);
}

#[test]
fn weights_pass_through_every_step() {
    let held = || Indexed::shared(Arc::new(Held::default()));
    let weigh = |indexed: Indexed<Vec<u8>>| indexed.fetch().weigher()(&[vec![0; 50]]);
    assert_eq!(weigh(held()), 50);
    assert_eq!(weigh(held().cache(100).shuffle()), 50);
    assert_eq!(weigh(Indexed::concat([held(), held()])), 50);
    assert_eq!(
        weigh(
            Indexed::from_vec(vec![vec![0u8]])
                .weighed(Vec::len)
                .cache(10)
        ),
        50
    );
    let pairs = held().zip(Indexed::range(5)).fetch();
    assert_eq!(pairs.weigher()(&[(vec![0; 50], 1)]), 58);
    let batches = held().batch(2).fetch();
    assert_eq!(batches.weigher()(&[vec![vec![0; 50], vec![0; 20]]]), 70);
}

#[test]
fn a_map_pipe_is_looked_up_by_index() {
    let held = Arc::new(Held {
        open: true.into(),
        ..Held::default()
    });
    let keys = Graph::from_vec(vec![3u64, 1]);
    let firsts = keys.fetch(held).map(|sample| sample[0]).collect().unwrap();
    assert_eq!(firsts, [3, 1]);
}

#[test]
fn wrong_weights_are_found_when_the_loader_is_built_however_many_inputs_there_are() {
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300] {
        for inputs in 1..8u64 {
            let rest = (0..inputs).map(|n| (data(100 * n, 10), 0.3));
            let mixed = Indexed::mix(rest.chain([(data(0, 10), wrong)]));
            // The length is read before anything is checked.
            let graph = mixed.clone().shuffle().fetch();
            assert!(
                DataLoader::builder(graph).build().is_err(),
                "{wrong} and {inputs} others"
            );
            mixed.len();
        }
    }
}

#[test]
fn hundreds_of_data_sets_are_mixed_at_once() {
    let begun = std::time::Instant::now();
    let inputs = (0..300).map(|n| (data(1000 * n, 1 + n % 97), 1.0 + (n % 13) as f64));
    let mixed = Indexed::mix(inputs);
    let all: u64 = (0..300).map(|n| 1 + n % 97).sum();
    assert_eq!(mixed.len(), all);
    let seen: BTreeSet<u64> = mixed.fetch().collect().unwrap().into_iter().collect();
    assert_eq!(seen.len() as u64, all);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn an_error_in_a_batch_says_which_sample_it_was_in_any_data() {
    let some = Indexed::from_fn(4, |n| async move {
        if n == 2 {
            Err(Error::not_found("gone"))
        } else {
            Ok(n)
        }
    });
    let said = |batches: Graph<Vec<u64>>| batches.collect().unwrap_err().to_string();
    let both = Indexed::concat([data(0, 3), some.clone()]);
    assert!(said(both.batch(4).fetch()).ends_with("not found: sample 2 of input 1: gone"));
    let pairs = some.zip(data(0, 9)).map(|(a, b)| a + b);
    let said = said(pairs.batch(4).fetch());
    assert!(said.ends_with("not found: sample (2, 2): gone"), "{said}");
}

#[test]
fn a_batch_weighs_what_its_samples_take() {
    // One sample takes 3200 bytes, which do not fit, so it is read in each round.
    let reads = Arc::new(AtomicU64::new(0));
    let count = reads.clone();
    let data = Indexed::from_fn(8, move |n| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Error>([n; 100]) }
    });
    let batches = data.batch(4).cache(3000).repeat(2);
    assert_eq!(batches.fetch().collect().unwrap().len(), 4);
    assert_eq!(reads.load(Ordering::SeqCst), 16);
}

/// Tests the most positions that can be counted, whose last row goes past the end.
#[test]
fn the_last_positions_of_all_that_can_be_counted_are_padded() {
    let whole = data(0, 10).repeat(u64::MAX);
    assert_eq!(whole.len(), u64::MAX);
    let last = u64::MAX / 7;
    for rank in 0..7 {
        let graph = whole.clone().shard().subset(vec![0, last]).fetch();
        let seen = run(graph, 0, (rank, 7), Uneven::Pad);
        // The last position is number u64::MAX - 1; the position after it starts from the
        // beginning.
        let expected = if rank == 0 {
            (u64::MAX - 1) % 10
        } else {
            rank as u64 - 1
        };
        assert_eq!(
            seen.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
            [rank as u64, expected]
        );
    }
}

#[test]
fn each_of_many_rounds_is_started_once() {
    /// Counts the passes.
    struct Counted(Arc<AtomicU64>);
    impl Sampler for Counted {
        fn len(&self, len: u64) -> u64 {
            len
        }
        fn start(&self, len: u64, rng: &mut crate::Rng) -> Draws {
            self.0.fetch_add(1, Ordering::SeqCst);
            Random::new().start(len, rng)
        }
    }
    let passes = Arc::new(AtomicU64::new(0));
    let seen = data(0, 20)
        .sampled(Counted(passes.clone()))
        .repeat(200)
        .fetch()
        .collect()
        .unwrap();
    assert_eq!(seen.len(), 4000);
    let passes = passes.load(Ordering::SeqCst);
    assert!(passes <= 200, "{passes} passes");
}

/// Joins of orders have as many positions as they return.
#[test]
fn joins_by_index_are_known_before_they_run() {
    let steps = |data: Indexed<u64>| {
        let graph = data.shuffle().shard().fetch().batch(2);
        let loader = DataLoader::builder(graph)
            .workers(0)
            .uneven(Uneven::Allow)
            .build()
            .unwrap();
        let counted = loader.epoch(0).blocking().map(Result::unwrap).count() as u64;
        assert_eq!(loader.len_hint(), Some(counted));
        counted
    };
    let data = Indexed::range;
    assert_eq!(steps(Indexed::concat([data(5), data(0), data(4)])), 5);
    assert_eq!(steps(data(5).zip(data(9)).map(|(n, _)| n)), 3);
    for (a, b) in [(5, 9), (9, 5), (0, 3), (7, 7), (1, 20)] {
        steps(Indexed::mix([(data(a), 2.0), (data(b), 0.7)]));
        steps(Indexed::mix_to_first([(data(a), 2.0), (data(b), 0.7)]));
    }
}

/// A data set of a repository.
struct At(Revision);

#[async_trait]
impl MapPipe for At {
    type Out = u64;

    fn len(&self) -> u64 {
        4
    }
    async fn get(&self, index: u64) -> Result<u64> {
        Ok(index)
    }
    fn revision(&self) -> Revision {
        self.0.clone()
    }
}

#[test]
fn an_epoch_is_resumed_only_on_the_revision_that_it_began_with() {
    let at = |commit: &str| Indexed::new(At(Revision::Fixed(format!("commit {commit}"))));
    let makers: [fn(Indexed<u64>) -> Graph<u64>; 5] = [
        |data| data.shuffle().fetch(),
        |data| data.map(|n| n + 1).cache(1 << 10).fetch(),
        |data| data.zip(Indexed::range(4)).fetch().map(|(n, _)| n),
        |data| Indexed::concat([Indexed::new(At(Revision::Unknown)), data]).fetch(),
        |data| data.batch(2).weighed(|_| 8).fetch().map(|batch| batch[0]),
    ];
    for graph in makers {
        let loader = |data| {
            let loader = DataLoader::builder(graph(data)).seed(7).resumable();
            loader.build().unwrap()
        };
        let first = loader(at("a1"));
        let mut epoch = first.epoch(0).blocking();
        epoch.next().unwrap().unwrap();
        let checkpoint = epoch.checkpoint().unwrap();
        let rest: Vec<u64> = epoch.map(Result::unwrap).collect();
        let error = loader(at("b2"))
            .resume(&checkpoint)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("commit a1") && error.contains("commit b2"),
            "{error}"
        );
        let resumed = loader(at("a1")).resume(&checkpoint).unwrap().blocking();
        assert_eq!(resumed.map(Result::unwrap).collect::<Vec<_>>(), rest);
    }
}

#[test]
fn many_files_of_one_revision_name_it_once() {
    let file = || Indexed::new(At(Revision::Fixed("commit a1".into())));
    let graph = Indexed::concat([file(), file(), file()]).fetch();
    let plan = DataLoader::builder(graph).build().unwrap().explain();
    assert_eq!(plan.matches("commit a1").count(), 1, "{plan}");
}

#[test]
fn data_that_may_move_is_refused_where_an_epoch_has_to_be_resumable() {
    let moving = || At(Revision::Moving("a branch may move; name a commit".into()));
    let data = || Indexed::new(moving());
    let graphs = [
        data().fetch(),
        Indexed::concat([Indexed::range(2), data()]).fetch(),
        data().zip(Indexed::range(4)).fetch().map(|(n, _)| n),
        Graph::range(0..4)
            .map(|n| vec![n])
            .fetch_batches(moving())
            .unbatch(),
    ];
    for graph in graphs {
        let loader = DataLoader::builder(graph.clone()).resumable();
        let error = loader.build().unwrap_err().to_string();
        assert!(
            error
                .contains("an epoch could go on with other data: a branch may move; name a commit"),
            "{error}"
        );
        assert_eq!(graph.collect().unwrap().len() % 2, 0);
    }
}

/// Names of the threads that do its blocking work.
struct Threads {
    seldom_waits: bool,
}

#[async_trait]
impl MapPipe for Threads {
    type Out = String;

    fn len(&self) -> u64 {
        20
    }
    async fn get(&self, _: u64) -> Result<String> {
        let name = || std::thread::current().name().unwrap_or_default().to_owned();
        crate::blocking(name).await
    }
    fn seldom_waits(&self) -> bool {
        self.seldom_waits
    }
}

#[test]
fn workers_do_the_blocking_work_of_data_that_seldom_waits() {
    type Make = fn(Indexed<String>) -> Graph<Vec<String>>;
    let makers: [Make; 5] = [
        |data| data.shuffle().batch(3).fetch(),
        |data| data.cache(1 << 20).batch(3).fetch(),
        |data| data.map(|name| name).weighed(|_| 8).fetch().batch(2),
        |data| Indexed::concat([data.clone(), data]).fetch().batch(3),
        |data| data.clone().zip(data).fetch().map(|(a, b)| vec![a, b]),
    ];
    for (number, graph) in makers.into_iter().enumerate() {
        for seldom_waits in [false, true] {
            let graph = graph(Indexed::new(Threads { seldom_waits }));
            let loader = DataLoader::builder(graph).workers(2).build().unwrap();
            let names = loader.epoch(0).blocking().flat_map(Result::unwrap);
            for name in names {
                let is_worker = name.starts_with("datapipes-cpu-");
                assert_eq!(is_worker, seldom_waits, "{number}: {name}");
            }
        }
    }
}
