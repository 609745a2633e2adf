use std::sync::Mutex;

use super::*;
use crate::ErrorKind;
use crate::pipes::Stop;
use crate::{
    Arity, Context, Error as Failure, Graph, Hints, Indexed, Item, Items, Order, Pipe, Tensor,
    Uneven,
};

fn loader<T: Send + 'static>(graph: Graph<T>) -> DataLoader<T> {
    DataLoader::builder(graph)
        .seed(11)
        .workers(0)
        .build()
        .unwrap()
}

/// Replays every item of an epoch, each alone.
fn each_again<T: Send + PartialEq + fmt::Debug + 'static>(graph: Graph<T>) -> usize {
    let loader = loader(graph);
    let items: Vec<_> = loader
        .epoch(3)
        .blocking()
        .items()
        .map(Result::unwrap)
        .collect();
    for item in &items {
        let replay = loader.replay(3, item.origin()).unwrap();
        assert_eq!(
            replay.items::<T>(),
            std::slice::from_ref(item),
            "{}",
            item.origin()
        );
    }
    items.len()
}

fn names(replay: &Replay) -> Vec<(&str, bool)> {
    replay
        .steps()
        .iter()
        .map(|step| (step.node(), step.is_run()))
        .collect()
}

#[test]
fn random_augmentation_is_as_it_was() {
    let random = |n: u64, rng: &mut crate::Rng| (n, rng.next_u64());
    assert_eq!(
        each_again(Graph::range(0..50).map_with_rng(random).shuffle(20)),
        50
    );
    assert_eq!(
        each_again(
            Graph::from_iter_with(|| 5..25u64)
                .sample_with(0.5)
                .map_with_rng(random)
        ),
        {
            let kept = Graph::from_iter_with(|| 5..25u64).sample_with(0.5);
            loader(kept).epoch(3).blocking().count()
        }
    );
    // In every round, and in rounds of rounds.
    assert_eq!(
        each_again(Graph::range(0..7).map_with_rng(random).repeat(3).shuffle(9)),
        21
    );
    assert_eq!(
        each_again(
            Graph::range(0..4)
                .map_with_rng(random)
                .repeat(3)
                .map_with_rng(|a, rng| (a, rng.next_u64()))
                .repeat(2)
        ),
        24
    );
    let loader = loader(Graph::range(0..9).map_with_rng(random));
    let of = |epoch| {
        loader
            .replay(epoch, &Origin::root(0, 4))
            .unwrap()
            .items::<(u64, u64)>()
            .remove(0)
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn a_child_of_a_fan_out() {
    let members = |n: u64| (0..n).map(move |k| (n, k));
    let graph = || {
        Graph::range(0..8)
            .flat_map(members)
            .map_with_rng(|m, rng| (m, rng.next_u64()))
    };
    assert_eq!(each_again(graph().shuffle(5).sharding_filter()), 28);
    let replay = loader(graph())
        .replay(0, &Origin::root(0, 6).child(2))
        .unwrap();
    assert_eq!(
        names(&replay),
        [("range", true), ("flat_map", true), ("map_random", true)]
    );
    assert_eq!(replay.steps()[1].origins(), [Origin::root(0, 6).child(2)]);
    // All children of an item.
    let all = loader(graph()).replay(0, &Origin::root(0, 6)).unwrap();
    assert_eq!(all.steps()[1].origins().len(), 6);
    // And in a later round of a repeat.
    let twice = loader(graph().repeat(2));
    let items: Vec<_> = twice
        .epoch(0)
        .blocking()
        .items()
        .map(Result::unwrap)
        .skip(28)
        .collect();
    for item in items {
        assert_eq!(twice.replay(0, item.origin()).unwrap().items(), [item]);
    }
}

#[test]
fn an_error_is_shown_where_it_arises() {
    let graph = Graph::range(0..9)
        .map(|n| n + 1)
        .try_map(|n| if n == 5 { Err("five") } else { Ok(n) })
        .named("check")
        .map(|n| n * 2)
        .shuffle(4);
    let loader = loader(graph);
    let error = loader.epoch(0).blocking().find_map(Result::err).unwrap();
    let replay = loader.replay(0, error.item().unwrap()).unwrap();
    let failed = replay.failed().unwrap();
    assert_eq!(
        (failed.node(), failed.errors()),
        ("check", &[error.to_string()][..])
    );
    assert_eq!(
        names(&replay),
        [("range", true), ("map", true), ("check", true)]
    );
    assert_eq!(replay.steps()[1].shown(), ["5"]);
    assert!(
        replay.to_string().contains("failed") && replay.to_string().contains("check: 0:4: five"),
        "{replay}"
    );
    assert!(replay.items::<u64>().is_empty());
    // A panic likewise.
    let panics = Graph::range(0..3).map(|n| if n == 1 { panic!("one") } else { n });
    let replay = super::tests::loader(panics)
        .replay(0, &Origin::root(0, 1))
        .unwrap();
    assert_eq!(
        replay.failed().unwrap().errors(),
        ["map: 0:1: panicked: one"]
    );
}

#[test]
fn the_image_that_gave_the_nan() {
    let graph = Graph::range(0..20)
        .map_with_rng(|n, rng| {
            let values = vec![
                n as f32,
                if n == 13 { 0.0 } else { 1.0 },
                rng.range(1.0, 5.0) as f32,
            ];
            Tensor::from_vec(values, [3]).unwrap()
        })
        .named("decode")
        .try_map(|image| {
            let values: Vec<f32> = image
                .as_slice::<f32>()?
                .iter()
                .map(|x| (x / x) + 1.0)
                .collect();
            Tensor::from_vec(values, [3])
        })
        .named("normalize")
        .shuffle(8)
        .batch(6);
    let loader = loader(graph);
    let is_nan = |image: &Tensor| image.as_slice::<f32>().unwrap().iter().any(|x| x.is_nan());
    let batch = loader
        .epoch(2)
        .blocking()
        .items()
        .map(Result::unwrap)
        .find(|batch| {
            batch.iter().any(is_nan) && batch.origin().parts().contains(&Origin::root(0, 13))
        })
        .unwrap();
    let mut found = Vec::new();
    let replay = loader
        .replay_with(2, batch.origin(), |step, values| {
            let value = values.first().and_then(|value| value.downcast_ref());
            if step.is_run() && value.is_some_and(is_nan) {
                found.push((step.node().to_owned(), step.part().clone()));
            }
        })
        .unwrap();
    assert!(found.contains(&("normalize".to_owned(), Origin::root(0, 13))));
    assert!(found.iter().all(|(node, _)| node == "normalize"));
    // Each part of the batch, in order, as it was.
    assert_eq!(replay.steps().len(), batch.origin().parts().len() * 5);
    assert_eq!(
        replay.steps()[4].why_not(),
        Some("it looks at the stream as a whole")
    );
    let shown = replay.to_string();
    assert!(
        shown.contains("F32 [3]") && shown.contains(", 1 NaN"),
        "{shown}"
    );
    let again: Vec<_> = replay.items::<Tensor>();
    for ((again, tensor), origin) in again.iter().zip(&**batch).zip(batch.origin().parts()) {
        assert_eq!(again.origin(), origin);
        let bits = |tensor: &Tensor| {
            tensor
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|x| x.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(again), bits(tensor));
    }
}

#[test]
fn what_is_not_there_is_an_error_with_what_there_is() {
    let graph = Graph::range(0..10).flat_map(|n| vec![n; 3]).shuffle(4);
    let loader = loader(graph);
    let fails = |origin: Origin| {
        let error = loader.replay(0, &origin).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        error.to_string()
    };
    assert_eq!(
        fails(Origin::root(0, 12)),
        "not found: no item 0:12: `range` gave 10 from 0:0 to 0:9"
    );
    assert_eq!(
        fails(Origin::root(0, 4).child(7)),
        "not found: no item 0:4/7: `flat_map` made 3 from 0:4/0 to 0:4/2"
    );
    assert_eq!(
        fails(Origin::root(3, 0)),
        "not found: no item 3:0: the sources of the graph have the numbers 0 (`range`)"
    );
    assert_eq!(
        fails(Origin::root(0, 4).child(1).child(0)),
        "not found: no item 0:4/1/0: no node made children of 0:4"
    );
    assert!(fails(Origin::joined(vec![], 0)).contains("made of none"));
    let once = Graph::from_channel(futures::stream::iter([1, 2]));
    let error = super::tests::loader(once)
        .replay(0, &Origin::root(0, 0))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn data_by_index_is_found_by_the_order_of_the_epoch() {
    let random = |n: u64, rng: &mut crate::Rng| (n, rng.next_u64());
    let samples = || Indexed::range(40).map(|n| n * 3);
    assert_eq!(
        each_again(samples().shuffle().fetch().map_with_rng(random)),
        40
    );
    assert_eq!(
        each_again(
            samples()
                .shuffle()
                .repeat(3)
                .fetch()
                .map_with_rng(random)
                .shuffle(7)
        ),
        120
    );
    assert_eq!(
        each_again(samples().subset(vec![3, 5, 7]).shuffle().fetch()),
        3
    );
    let two = [samples(), Indexed::range(9).map(|n| 1000 + n)];
    assert_eq!(
        each_again(Indexed::concat(two.clone()).shuffle().fetch()),
        49
    );
    assert_eq!(
        each_again(Indexed::mix(two.into_iter().zip([2.0, 1.0])).fetch()),
        49
    );
    assert_eq!(each_again(samples().shuffle().zip(samples()).fetch()), 40);
    // Not in this part, so not in this epoch.
    let part = loader(samples().subset(vec![3, 5, 7]).fetch());
    let error = part.replay(0, &Origin::root(0, 4)).unwrap_err();
    assert!(
        error.to_string().contains("no item 0:4: `indices` gave"),
        "{error}"
    );
    // A rank's part, with padding.
    let ranks = |index| {
        let graph = Indexed::range(5)
            .shuffle()
            .shard()
            .fetch()
            .map_with_rng(random);
        DataLoader::builder(graph)
            .rank(index, 3)
            .uneven(Uneven::Pad)
            .workers(0)
            .build()
            .unwrap()
    };
    for rank in 0..3 {
        for item in ranks(rank).epoch(1).blocking().items().map(Result::unwrap) {
            assert_eq!(
                ranks(rank).replay(1, item.origin()).unwrap().items(),
                [item]
            );
        }
    }
}

#[test]
fn ways_that_part_and_meet() {
    let random = |n: u64, rng: &mut crate::Rng| (n, rng.next_u64());
    let parts = || {
        [
            Graph::range(0..6).map_with_rng(random),
            Graph::range(10..15).map_with_rng(random),
        ]
    };
    assert_eq!(each_again(Graph::concat(parts())), 11);
    assert_eq!(each_again(Graph::mux(parts())), 11);
    assert_eq!(each_again(Graph::interleave(parts(), 2, 3)), 11);
    assert_eq!(
        each_again(Graph::mux(
            Graph::range(0..9).demux::<3>(|n| *n as usize % 3)
        )),
        9
    );
    for stop in [
        Stop::FirstExhausted,
        Stop::AllExhausted,
        Stop::CycleUntilAll,
    ] {
        each_again(Graph::mix_until(stop, parts().into_iter().zip([3.0, 1.0])));
    }
    let cycled = parts().map(|part| part.shuffle(4));
    let forever = Graph::mix_until(Stop::CycleForever, cycled.into_iter().zip([3.0, 1.0]));
    assert_eq!(each_again(forever.take(60)), 60);
    let [a, b] = Graph::range(0..4).fork::<2>();
    let loader = loader(a.map(|n| n + 1).zip(b.map(|n| n * 10)));
    let pair = loader.epoch(0).blocking().items().nth(2).unwrap().unwrap();
    let replay = loader.replay(0, pair.origin()).unwrap();
    assert_eq!(
        names(&replay),
        [
            ("range", true),
            ("fork", true),
            ("map", true),
            ("map#2", true),
            ("zip", false)
        ]
    );
    assert_eq!(
        replay
            .items::<u64>()
            .iter()
            .map(|item| **item)
            .collect::<Vec<_>>(),
        [3, 20]
    );
}

#[test]
fn what_workers_and_other_orders_gave_is_the_same() {
    let graph = Graph::range(0..64)
        .map_async(|n| async move { Ok::<_, Failure>(n + 1) })
        .map_with_rng(|n, rng| (n, rng.next_u64()))
        .cache(100)
        .prefetch(3);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .order(Order::Arrival)
        .build()
        .unwrap();
    for item in loader.epoch(0).blocking().items().map(Result::unwrap) {
        assert_eq!(loader.replay(0, item.origin()).unwrap().items(), [item]);
    }
}

#[test]
fn a_later_round_of_a_users_cache_is_found() {
    struct OwnCache(Arc<Mutex<Vec<Item<u64>>>>);
    impl Pipe<u64> for OwnCache {
        type Out = u64;
        fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
            let (items, round) = (self.0.clone(), cx.round());
            if round == 0 {
                return input.each(cx, move |item| {
                    items.lock().unwrap().push(item.clone());
                    Some(Ok(item))
                });
            }
            Items::generate(async move |out| {
                let items = items.lock().unwrap().clone();
                for item in items {
                    let (value, origin) = item.into_parts();
                    out.emit(Ok(Item::new(value, origin.child(round)))).await;
                }
            })
        }
        fn hints(&self) -> Hints {
            Hints::default()
                .arity(Arity::One)
                .selects(true)
                .renames(true)
        }
    }
    let twice = |graph: Graph<u64>| graph.flat_map(|n| [n, n + 1]);
    let ours = twice(Graph::range(0..4)).cache(100).repeat(2);
    let own = twice(Graph::range(0..4)).pipe(OwnCache(Arc::default()));
    let [ours, own] = [ours, own.repeat(2)].map(|graph| {
        let loader = DataLoader::builder(graph).workers(0).build().unwrap();
        let items = loader.epoch(0).blocking().items().map(Result::unwrap);
        let items: Vec<_> = items.collect();
        assert_eq!(items.len(), 16);
        let replays = items.iter().map(|item| loader.replay(0, item.origin()));
        let replays = replays.map(|replay| replay.map(|replay| replay.items::<u64>().to_vec()));
        replays.map(Result::unwrap).collect::<Vec<_>>()
    });
    assert_eq!(own, ours);
}

#[test]
fn a_sample_that_is_left_out_says_where() {
    let replay = loader(Graph::range(0..9).filter(|n| n % 2 == 0).map(|n| n))
        .replay(0, &Origin::root(0, 3))
        .unwrap();
    assert_eq!(names(&replay), [("range", true), ("filter", true)]);
    assert!(
        replay.to_string().contains("filter  nothing came out"),
        "{replay}"
    );
    // A position is known as long as one output comes for each input.
    let names_of = |graph: Graph<(u64, u64)>| {
        let replay = loader(graph).replay(0, &Origin::root(0, 4)).unwrap();
        replay
            .steps()
            .iter()
            .map(|step| (step.node().to_owned(), step.is_run()))
            .collect::<Vec<_>>()
    };
    assert!(
        names_of(Graph::range(0..9).map(|n| n).enumerate())
            .last()
            .unwrap()
            .1
    );
    assert!(
        !names_of(Graph::range(0..9).filter(|_| true).enumerate())
            .last()
            .unwrap()
            .1
    );
    assert_eq!(
        each_again(
            Graph::range(5..9)
                .map(|n| n)
                .enumerate()
                .map_with_rng(|n, rng| (n, rng.next_u64()))
        ),
        4
    );
}

/// Pairs the children of a parent, as samples are made of the members of an archive.
struct Pairs;

impl Pipe<u64> for Pairs {
    type Out = (u64, u64);

    fn apply(&self, mut input: Items<u64>, _: &Context) -> Items<(u64, u64)> {
        Items::generate(async move |out| {
            let mut first: Option<Item<u64>> = None;
            while let Some(item) = out.next_from(&mut input).await {
                match first.take() {
                    Some(one) if one.origin().parent() == item.origin().parent() => {
                        let pair = one.map(|one| (one, *item));
                        out.emit(Ok(pair)).await;
                    }
                    _ => first = Some(item),
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::default().is_shardable_by_parent(true)
    }
}

#[test]
fn siblings_come_along_where_they_are_grouped() {
    let graph = Graph::range(0..5)
        .flat_map(|n| (0..2 * n).map(move |k| 100 * n + k))
        .map(|n| n)
        .pipe(Pairs);
    let graph = graph.map_with_rng(|pair, rng| (pair, rng.next_u64()));
    assert_eq!(each_again(graph.clone().shuffle(3)), 10);
    // The second of a pair is in it, and has no origin of its own.
    let error = loader(graph)
        .replay(0, &Origin::root(0, 2).child(1))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("not found: no item 0:2/1: `pairs` made 2"),
        "{error}"
    );
}

#[test]
fn random_numbers_are_those_of_the_item_in_the_epoch() {
    let seen = Arc::<Mutex<Vec<(u64, [u32; 4])>>>::default();
    let drawn = seen.clone();
    let graph = Graph::range(0..20)
        .map(|n| n)
        .named("plain")
        .try_map_with_rng(move |n, rng| {
            let words = std::array::from_fn(|_| rng.next_u32());
            drawn.lock().unwrap().push((n, words));
            crate::Ok(n)
        })
        .named("draw")
        .shuffle(5)
        .batch(4);
    let loader = DataLoader::builder(graph).seed(3).build().unwrap();
    let mut batches = loader.epoch(2).blocking().items();
    let batch = batches.nth(1).unwrap().unwrap();
    drop(batches);
    let then: Vec<_> = std::mem::take(&mut *seen.lock().unwrap());
    let replay = loader.replay(2, batch.origin()).unwrap();
    for (n, part) in batch.iter().zip(batch.origin().parts()) {
        let draws = |name: &str| {
            let is_it = |step: &&Step| step.part() == part && step.node() == name;
            replay.steps().iter().find(is_it).unwrap().draws()
        };
        assert!(draws("plain").is_empty());
        let words = then.iter().find(|(of, _)| of == n).unwrap().1;
        assert_eq!(draws("draw"), words);
    }
    let text = replay.to_string();
    assert_eq!(text.matches("; draws 0.").count(), 4, "{text}");
}

#[test]
fn the_random_numbers_of_an_item_are_known_among_many_siblings() {
    let graph = Graph::range(0..1)
        .flat_map(|_| 0..10_000u64)
        .map_with_rng(|n, rng| n ^ u64::from(rng.next_u32()))
        .named("draw")
        .pipe(Pairs);
    let replay = loader(graph).replay(0, &Origin::root(0, 0).child(9_000));
    let replay = replay.unwrap();
    let step = replay.steps().iter().find(|step| step.node() == "draw");
    let word = step.unwrap().draws()[0];
    assert_eq!(replay.items::<(u64, u64)>()[0].0, 9_000 ^ u64::from(word));
}
