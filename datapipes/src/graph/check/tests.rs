//! Law 9: wrong graphs do not start, and all problems are reported at once, by node name.

use crate::{DataLoader, Graph, Uneven};

fn problems<T: Send + 'static>(builder: crate::loader::Builder<T>) -> Vec<String> {
    builder
        .build()
        .map(|_| ())
        .map_err(|e| e.problems().to_vec())
        .unwrap_err()
}

#[test]
fn all_mistakes_are_found_at_once() {
    let graph = Graph::range(0..10)
        .shuffle(0)
        .map(|n| n)
        .named("x")
        .map(|n| n)
        .named("x")
        .concurrency(0)
        .batch(0);
    let found = problems(
        DataLoader::builder(graph)
            .rank(3, 2)
            .memory(0)
            .concurrency(0),
    );
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
fn no_repeat_runs_what_a_cache_keeps_past_the_cache() {
    let halves = |repeated: bool| {
        let numbers = Graph::range(0..9).shuffle(9);
        let numbers = if repeated { numbers.repeat(2) } else { numbers };
        let [cached, past] = numbers.fork();
        Graph::concat([cached.cache(9), past])
    };
    let found = problems(DataLoader::builder(halves(false).map(|n| n).repeat(2)));
    assert_eq!(
        found,
        [
            "cache: keeps what comes of `fork`, which `repeat` runs again past the cache; put the cache above `fork`, or \
             the repeat above both, or give each its own source"
        ]
    );
    let allowed = [
        halves(false),
        halves(true),
        halves(false).cache(18).repeat(2),
    ];
    for graph in allowed {
        assert!(DataLoader::builder(graph).build().is_ok());
    }
}

#[test]
fn a_repeat_in_one_branch_of_a_fork_cannot_be_resumed() {
    let branches = || Graph::range(0..9).fork::<2>();
    let graph = |repeated: bool| {
        let [a, b] = branches();
        Graph::mux([a, if repeated { b.repeat(2).cache(18) } else { b }])
    };
    assert_eq!(
        problems(DataLoader::builder(graph(true)).resumable()),
        [
            "fork: an epoch cannot be resumed in the middle of its outputs, since `repeat` runs one of them again and not \
             another; put it above `fork`, or below where they are joined, or give each its own source"
        ]
    );
    assert!(DataLoader::builder(graph(true)).build().is_ok());
    let joined = graph(false).repeat(2).cache(36);
    assert!(DataLoader::builder(joined).resumable().build().is_ok());
}

#[test]
fn ranks_without_a_sharding_filter_would_see_duplicates() {
    let found = problems(DataLoader::builder(Graph::range(0..10)).rank(0, 2));
    assert_eq!(found.len(), 2);
    assert!(
        found[0].starts_with("range: no `sharding_filter` between"),
        "{found:?}"
    );
    assert!(found[1].contains("call `Builder::uneven`"), "{found:?}");
    let few = Graph::range(0..10).shuffle(5).sharding_filter();
    let found = problems(DataLoader::builder(few).rank(0, 16).uneven(Uneven::Drop));
    assert_eq!(
        found,
        ["sharding_filter: fewer items than ranks: 10 for 16"]
    );
}

/// The reported case: 171 against 170 batches.
#[test]
fn a_step_below_the_shard_that_changes_the_number_of_items_is_named_with_agreed_and_max_steps() {
    let dealt = || Graph::range(0..1000).sharding_filter_padded();
    let uneven: [(&str, Graph<u64>); 8] = [
        ("filter", dealt().filter(|n| n % 3 != 0)),
        ("flat_map", dealt().flat_map(|n| vec![n; n as usize % 3])),
        ("unbatch", dealt().batch(3).unbatch()),
        (
            "odd",
            dealt()
                .through(|items: crate::Items<u64>| items)
                .named("odd"),
        ),
        (
            "filter",
            dealt()
                .filter(|n| n % 3 != 0)
                .batch(7)
                .map(|batch| batch[0]),
        ),
        ("sample_with", dealt().sample_with(0.5)),
        (
            "filter, unbatch",
            dealt().filter(|n| n % 3 != 0).batch(7).unbatch().take(100),
        ),
        (
            "bucket_batch",
            dealt()
                .bucket_batch(|n| *n as usize, [500], [2, 3])
                .map(|batch| batch[0]),
        ),
    ];
    for (name, graph) in uneven {
        let builder = || DataLoader::builder(graph.clone()).rank(0, 6);
        for policy in [Uneven::Drop, Uneven::Pad] {
            let found = problems(builder().uneven(policy));
            let [problem] = &found[..] else {
                panic!("{name}: {found:?}")
            };
            assert!(
                problem.starts_with(&format!("{name}: how many items come out")),
                "{problem}"
            );
            assert!(
                ["`agreed`", "`ranks_agree`", "`max_steps`"]
                    .iter()
                    .all(|way| problem.contains(way))
            );
            // Each of the remedies that the message names.
            builder().uneven(policy).ranks_agree().build().unwrap();
            builder().uneven(policy).max_steps(10).build().unwrap();
        }
        builder().uneven(Uneven::Allow).build().unwrap();
        // One rank goes in step with itself.
        DataLoader::builder(graph.clone())
            .uneven(Uneven::Drop)
            .build()
            .unwrap();
    }
}

#[test]
fn steps_whose_number_of_items_is_arithmetic_or_has_no_end_are_none_of_them() {
    use crate::pipes::{Batch, Stop};
    let all = || Graph::from_iter_with(|| 0..1000u64);
    let dealt = || all().sharding_filter();
    let right: Vec<Graph<u64>> = vec![
        // The filter comes before the shard, so it does not matter.
        all()
            .filter(|n| n % 3 != 0)
            .flat_map(|n| [n, n])
            .batch(2)
            .unbatch()
            .sharding_filter(),
        dealt()
            .map(|n| n)
            .map_with_rng(|n, _| n)
            .batch(7)
            .map(|batch| batch[0])
            .take(50)
            .skip(3),
        dealt()
            .batch(Batch::new(7).drop_last())
            .map(|batch| batch[0])
            .repeat(3),
        dealt()
            .map_async(|n| async move { Ok::<_, crate::Error>(n) })
            .prefetch(3)
            .enumerate()
            .map(|(n, _)| n),
        dealt().zip(dealt()).map(|(a, _)| a),
        Graph::concat([dealt(), dealt()]),
        Graph::mix_until(Stop::AllExhausted, [(dealt(), 1.0), (dealt(), 2.0)]),
        crate::Indexed::range(1000)
            .shuffle()
            .shard()
            .repeat(2)
            .fetch(),
        // No rank comes to the end of an endless stream, except after a step that ends by number.
        dealt().cycle().filter(|n| n % 3 != 0).batch(4).unbatch(),
        dealt()
            .cycle()
            .flat_map(|n| vec![n; n as usize % 3])
            .take(90),
    ];
    for graph in right {
        for uneven in [Uneven::Drop, Uneven::Error] {
            let built = DataLoader::builder(graph.clone())
                .rank(1, 4)
                .uneven(uneven)
                .build();
            built.unwrap_or_else(|error| panic!("{graph:?}: {error}"));
        }
    }
}

#[test]
fn items_that_may_be_skipped_on_one_rank_are_such_a_step() {
    let builder = || {
        let graph = Graph::range(0..1000).sharding_filter().batch(8);
        DataLoader::builder(graph)
            .rank(0, 2)
            .uneven(Uneven::Drop)
            .on_error(crate::OnError::skip(7))
    };
    let found = problems(builder());
    assert!(
        found[0].starts_with("on_error: up to 7 items may be skipped on each rank, so"),
        "{found:?}"
    );
    builder().ranks_agree().build().unwrap();
    builder().on_error(crate::OnError::skip(0)).build().unwrap();
    builder().on_error(crate::OnError::fail()).build().unwrap();
}

/// A number of steps that not every rank has is no cure, and the error says this when it shows.
#[test]
fn a_rank_that_ends_before_max_steps_says_so() {
    let loader = |steps| {
        let graph = Graph::range(0..100)
            .sharding_filter()
            .filter(|n| n % 7 != 0)
            .batch(4);
        let builder = DataLoader::builder(graph)
            .rank(1, 2)
            .uneven(Uneven::Drop)
            .max_steps(steps);
        builder.resumable().workers(0).build().unwrap()
    };
    assert!(loader(10).epoch(0).blocking().all(|batch| batch.is_ok()));
    let short = loader(15);
    let mut epoch = short.epoch(0).blocking();
    let batches: Vec<_> = epoch.by_ref().collect();
    assert_eq!(batches.len(), 12);
    let said = batches[11].as_ref().unwrap_err().to_string();
    assert!(
        said.contains("rank 1 has 11 of the 15 steps that `max_steps` gives each rank; filter: "),
        "{said}"
    );
    assert!(epoch.next().is_none() && epoch.checkpoint().unwrap().is_finished());
    // Ranks that agree find out in time.
    let agreed = || short.epoch(0).blocking().agreed(Ok);
    assert_eq!(agreed().map(Result::unwrap).count(), 11);
    let on_device = short.prefetch_to_device(Ok::<_, crate::BoxError>);
    assert_eq!(
        on_device
            .epoch(0)
            .blocking()
            .agreed(Ok)
            .map(Result::unwrap)
            .count(),
        11
    );
    let streamed = futures::StreamExt::collect::<Vec<_>>(
        short.epoch(0).agreed(|mine| async move { Ok(mine) }),
    );
    assert_eq!(crate::run::block_on(streamed).len(), 11);
}
