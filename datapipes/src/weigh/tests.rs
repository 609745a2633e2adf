//! Weights that types, steps and joined items tell, and those that nobody tells.

use super::*;
use crate::{Context, DataLoader, Graph, Hints, Items, Pipe};

fn weight<T: Send + 'static>(graph: Graph<T>) -> usize {
    let items = graph.clone().collect().unwrap();
    graph.weigher()(&items)
}

#[test]
fn values_that_tell_by_their_type_are_weighed_without_a_word() {
    let one = Graph::range(0..1);
    assert!(weight(one.clone().map(|_| vec![0u8; 5000])) >= 5000);
    assert!(weight(one.clone().map(|_| "x".repeat(5000))) >= 5000);
    assert!(weight(one.clone().map(|_| Bytes::from(vec![0; 5000]))) >= 5000);
    assert!(weight(one.clone().map(|n| (vec![0f32; 5000], n))) >= 20_000);
    assert!(weight(one.clone().map(|n| (n as i64, vec![0u8; 5000]))) >= 5000);
    assert!(
        weight(
            one.clone()
                .map(|_| vec![0u8; 5000])
                .filter(|_| true)
                .batch(2)
                .map(|batch| batch)
        ) >= 5000
    );
    assert_eq!(weight(one.clone().map(|n| [n; 4])), 32);
    assert!(weight(Graph::from_vec(vec![vec![0u8; 5000]])) >= 5000);
}

#[test]
fn explain_names_steps_whose_bytes_are_unknown() {
    let graph = Graph::range(0..9)
        .map(|n| Mine(Box::new(n)))
        .named("mine")
        .shuffle(3);
    let explain = |graph| {
        DataLoader::builder(graph)
            .workers(2)
            .build()
            .unwrap()
            .explain()
    };
    let said = explain(graph.clone());
    let line = said.lines().find(|line| line.contains("mine")).unwrap();
    assert!(
        line.contains("bytes unknown: `weighed` tells them"),
        "{said}"
    );
    let said = explain(graph.weighed(|_| 8).map(|mine| mine).weighed(|_| 8));
    assert!(
        said.lines()
            .find(|line| line.contains("map"))
            .is_some_and(|line| !line.contains("unknown")),
        "{said}"
    );
    let known = DataLoader::builder(Graph::range(0..9).map(|n| vec![n]))
        .workers(2)
        .build()
        .unwrap();
    assert!(!known.explain().contains("unknown"), "{}", known.explain());
}

struct Mine(#[expect(dead_code, reason = "it only has to own something")] Box<u64>);

/// Returns true if the plan says that bytes are unknown: before the first epoch, and after it.
fn says(graph: Graph<Mine>) -> [bool; 2] {
    let loader = DataLoader::builder(graph.named("step")).workers(2);
    let loader = loader.build().unwrap();
    let says = || {
        loader
            .explain()
            .lines()
            .any(|line| line.contains("bytes unknown"))
    };
    let before = says();
    assert!(loader.epoch(0).blocking().all(|item| item.is_ok()));
    [before, says()]
}

#[test]
fn explain_names_every_step_of_a_function_whose_bytes_are_unknown() {
    let mine = |n| Mine(Box::new(n));
    let numbers = || Graph::range(0..9);
    assert_eq!(
        says(numbers().map_init(|| (), move |(), n| mine(n))),
        [true; 2]
    );
    assert_eq!(
        says(numbers().scan(0, move |_, n| Some(mine(n)))),
        [true; 2]
    );
    assert_eq!(says(numbers().flat_map(move |n| [mine(n)])), [true; 2]);
    assert_eq!(
        says(numbers().map_async(move |n| async move { crate::Ok(mine(n)) })),
        [true; 2]
    );
    assert_eq!(
        says(Graph::from_iter_with(move || (0..9).map(mine))),
        [true; 2]
    );
    let collated = numbers()
        .batch(3)
        .collate_with(move |all| crate::Ok(mine(all[0])));
    assert_eq!(says(collated), [true; 2]);
    // A batch of items whose weight is unknown, all in one segment.
    let batches = numbers().map_init(|| (), move |(), n| mine(n)).batch(3);
    let plan = DataLoader::builder(batches)
        .workers(2)
        .build()
        .unwrap()
        .explain();
    assert!(plan.contains("bytes unknown"), "{plan}");
}

/// Makes items that own something; `WEIGHS` if it tells their weight.
struct Own<const WEIGHS: bool>;

impl<const WEIGHS: bool> Pipe<u64> for Own<WEIGHS> {
    type Out = Mine;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Mine> {
        input.each(cx, |item| Some(Ok(item.map(|n| Mine(Box::new(n))))))
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
    }
    fn weigh(&self, _: &Mine) -> Option<usize> {
        WEIGHS.then_some(16)
    }
}

#[test]
fn explain_finds_that_a_pipe_of_ones_own_does_not_weigh() {
    assert_eq!(says(Graph::range(0..9).pipe(Own::<false>)), [false, true]);
    assert_eq!(says(Graph::range(0..9).pipe(Own::<true>)), [false; 2]);
}

#[test]
fn joined_items_weigh_what_their_parts_do() {
    let heavy = || {
        Graph::range(0..1)
            .map(|n| Mine(Box::new(n)))
            .weighed(|_| 5000)
    };
    let plain = || Graph::range(0..1);
    assert!(weight(heavy().zip(plain())) >= 5000);
    assert!(weight(plain().zip3(heavy(), heavy())) >= 10_000);
    assert!(weight(heavy().enumerate()) >= 5000);
    assert!(weight(Graph::concat([heavy(), heavy()])) >= 10_000);
    assert!(weight(Graph::mux([heavy(), heavy()])) >= 10_000);
}
