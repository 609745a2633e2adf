//! Law 9: wrong graphs do not start, and all that is wrong is said at once, by node name.

use crate::{DataLoader, Graph, Uneven};

fn problems<T: Send + 'static>(builder: crate::loader::Builder<T>) -> Vec<String> {
    builder.build().map(|_| ()).map_err(|e| e.problems().to_vec()).unwrap_err()
}

#[test]
fn all_mistakes_are_found_at_once() {
    let graph =
        Graph::range(0..10).shuffle(0).map(|n| n).named("x").map(|n| n).named("x").concurrency(0).batch(0);
    let found = problems(DataLoader::builder(graph).rank(3, 2).memory(0).in_flight(0));
    assert_eq!(
        found,
        [
            "shuffle: a shuffle buffer of zero",
            "x: a concurrency of zero",
            "batch: a batch size of zero",
            "x: 2 nodes have this name",
            "rank 3 of 2: there is no such rank",
            "a memory budget of zero bytes",
            "zero requests in flight",
        ]
    );
}

#[test]
fn ranks_without_a_sharding_filter_would_see_duplicates() {
    let found = problems(DataLoader::builder(Graph::range(0..10)).rank(0, 2));
    assert_eq!(found.len(), 2);
    assert!(found[0].starts_with("range: no `sharding_filter` between"), "{found:?}");
    assert!(found[1].contains("call `uneven`"), "{found:?}");
    let few = Graph::range(0..10).shuffle(5).sharding_filter();
    let found = problems(DataLoader::builder(few).rank(0, 16).uneven(Uneven::Drop));
    assert_eq!(found, ["sharding_filter: there are 10 items for 16 ranks"]);
}
