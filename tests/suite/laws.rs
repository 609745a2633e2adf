//! The laws of the design (see `docs/src/internals/where.md`), over generated graphs.

use std::collections::{BTreeMap, BTreeSet};

use datapipes::loader::{Cause, NodeStats};
use datapipes::{DataLoader, ErrorKind, Graph, Item, OnError, Order, Uneven};
use proptest::prelude::*;

use crate::graphs::{
    Outcome, Run, Spec, Step, config, items, same_outcome, spec, strict_run, uneven,
};
use crate::kit;
use crate::structure::{product, tests_of_the_workspace};
use crate::user_pipes::{Dealer, dealt};

proptest! {
    #![proptest_config(config(200))]

    /// Law 1: the sequence is that of one thread running the graph inline: values, origins and
    /// errors.
    #[test]
    fn law_1_parallel_equals_sequential(spec in spec(), run in strict_run()) {
        same_sequence(&spec, &run)?;
    }

    /// Law 1, second half: other orders give the same multiset, unless a step groups neighbours and
    /// no step below it needs order.
    #[test]
    fn law_1_other_orders_give_the_same_items(
        spec in spec(),
        run in strict_run(),
        order in loose_order(),
    ) {
        same_items(&spec, &run, order)?;
    }

    /// Rows 39 and 40: a second epoch, and two at once, give what each gives inline.
    #[test]
    fn epochs_one_after_the_other_and_at_once_are_whole(spec in spec(), run in strict_run()) {
        whole_epochs(&spec, &run)?;
    }

    /// Bounded order: an item moves by at most W places.
    #[test]
    fn bounded_order_is_bounded(
        items in 0u64..400, places in 0usize..50, pieces in 1usize..80, workers in 1usize..4, rounds in 1u64..3000,
    ) {
        let graph = Graph::range(0..items)
            .map(move |n| { (0..rounds * (n % 13)).fold(0, |a, b| std::hint::black_box(a ^ b)); n })
            .concurrency(pieces);
        let loader = DataLoader::builder(graph).workers(workers).order(Order::Bounded(places)).build().unwrap();
        for (place, n) in loader.epoch(0).blocking().enumerate() {
            let moved = (n.unwrap() as i64 - place as i64).unsigned_abs();
            prop_assert!(moved <= places as u64, "moved by {moved}, {places} allowed");
        }
    }

    /// Law 3: randomness belongs to the item, node, seed and epoch.
    #[test]
    fn law_3_randomness_belongs_to_the_item(items in 1u64..200, seed in any::<u64>(), epoch in 0u64..5) {
        let draw = |graph: Graph<u64>, workers, seed, epoch, name: &str| {
            let graph = graph.map_with_rng(|n, rng| (n, rng.next_u64())).named(name);
            let loader = DataLoader::builder(graph).seed(seed).workers(workers).build().unwrap();
            let mut all: Vec<_> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
            all.sort();
            all
        };
        let numbers = || Graph::range(0..items);
        let plain = draw(numbers(), 0, seed, epoch, "draw");
        prop_assert_eq!(&draw(numbers(), 2, seed, epoch, "draw"), &plain);
        // Other nodes above change the order, not the numbers.
        prop_assert_eq!(&draw(numbers().shuffle(17).filter(|_| true), 2, seed, epoch, "draw"), &plain);
        for (seed, epoch, name) in [(seed ^ 1, epoch, "draw"), (seed, epoch + 1, "draw"), (seed, epoch, "other")] {
            prop_assert_ne!(&draw(numbers(), 0, seed, epoch, name), &plain);
        }
        let distinct: BTreeSet<u64> = plain.iter().map(|(_, drawn)| *drawn).collect();
        prop_assert_eq!(distinct.len(), plain.len(), "two items draw the same");
    }

    /// Law 3 over generated graphs: whatever stands above, an item that is still there draws what
    /// it draws alone.
    #[test]
    fn law_3_whatever_stands_above(spec in spec(), run in strict_run()) {
        same_draws(&spec, &run)?;
    }

    /// A batch that can be made again in parts is made as it was, and its bad sample is found.
    #[test]
    fn a_bad_sample_is_found_in_the_batches_of_any_graph(
        spec in spec(), run in strict_run(), size in 1usize..9, place in 0usize..9,
    ) {
        bad_sample_is_found(&spec, &run, size, place)?;
    }

    /// Law 4: what goes into a node comes out, is dropped on purpose and counted, or failed and is
    /// counted; and the figures of a node whose output is used to its end do not depend on how the
    /// graph is run.
    #[test]
    fn law_4_the_ledger_adds_up(spec in spec(), run in strict_run()) {
        ledger_adds_up(&spec, &run)?;
    }

    /// Law 10: the plan is a function of graph and settings, and names every node.
    #[test]
    fn law_10_the_plan_is_stable_and_names_every_node(spec in spec(), run in strict_run()) {
        plan_is_stable(&spec, &run)?;
    }

    /// Law 1 over ranks: what all ranks get together does not depend on how each is run, and no
    /// item comes twice.
    #[test]
    fn every_rank_of_a_generated_graph_gets_its_part(
        spec in spec(), run in strict_run(), at in 0usize..8, dealt in dealt(), world in 1usize..5,
    ) {
        every_rank(&spec, &run, at, dealt, world)?;
    }
}

/// Laws of graphs of which some parts run in processes of their own.
#[cfg(target_os = "linux")]
mod apart {
    use super::*;
    use crate::graphs::{cases_apart, spec_apart};

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases_apart(24), ..ProptestConfig::default() })]

        #[test]
        fn law_1_processes_equal_sequential(spec in spec_apart(), run in strict_run()) {
            same_sequence(&spec, &run)?;
        }

        #[test]
        fn law_1_other_orders_of_processes_give_the_same_items(
            spec in spec_apart(), run in strict_run(), order in loose_order(),
        ) {
            same_items(&spec, &run, order)?;
        }

        #[test]
        fn epochs_of_processes_one_after_the_other_and_at_once_are_whole(
            spec in spec_apart(), run in strict_run(),
        ) {
            whole_epochs(&spec, &run)?;
        }

        #[test]
        fn law_3_whatever_stands_above_in_processes(spec in spec_apart(), run in strict_run()) {
            same_draws(&spec, &run)?;
        }

        #[test]
        fn law_4_the_ledger_of_processes_adds_up(spec in spec_apart(), run in strict_run()) {
            ledger_adds_up(&spec, &run)?;
        }

        #[test]
        fn law_10_the_plan_with_processes_is_stable_and_names_every_node(
            spec in spec_apart(), run in strict_run(),
        ) {
            plan_is_stable(&spec, &run)?;
        }

        #[test]
        fn every_rank_of_a_graph_with_processes_gets_its_part(
            spec in spec_apart(), run in strict_run(), at in 0usize..8, dealt in dealt(), world in 1usize..4,
        ) {
            every_rank(&spec, &run, at, dealt, world)?;
        }

        /// Law 3 with the draw itself in other processes.
        #[test]
        fn law_3_a_child_draws_what_a_thread_draws(items in 1u64..200, seed in any::<u64>(), epoch in 0u64..5) {
            let draw = |workers, processes: usize| {
                let graph = Graph::range(0..items).in_processes(processes, |numbers| {
                    numbers.map_with_rng(|n, rng| (n, rng.next_u64())).named("draw")
                });
                let loader = DataLoader::builder(graph).seed(seed).workers(workers).build().unwrap();
                loader.epoch(epoch).blocking().map(Result::unwrap).collect::<Vec<_>>()
            };
            let threads = draw(0, 1);
            prop_assert_eq!(&draw(1, 1), &threads);
            prop_assert_eq!(&draw(2, 3), &threads);
        }
    }
}

proptest! {
    #![proptest_config(config(1000))]

    /// Rows 32 and 123: the parts of all ranks are disjoint and complete, less what the policy
    /// drops, and of one size where that is promised.
    #[test]
    fn rows_32_and_123_ranks_share_out_every_item(
        items in 0u64..40, world in 1usize..=8, uneven in uneven(), workers in 0usize..2, batch in 1usize..5,
    ) {
        let parts: Vec<Outcome> = (0..world).map(|rank| {
            let graph = Graph::from_iter_with(move || 0..items).sharding_filter_padded().batch(batch).unbatch();
            let run = Run { workers, ..Run::inline(0, 0) };
            run.outcome_of(graph, |builder| builder.rank(rank, world).uneven(uneven))
        }).collect();
        let given = |rank: usize| parts[rank].items.iter().flatten().map(|item| item.0).collect::<Vec<_>>();
        let (count, rest) = (items / world as u64, items % world as u64);
        let mut all = Vec::new();
        for (rank, part) in parts.iter().enumerate() {
            let own = Vec::from_iter((rank as u64..items).step_by(world));
            if items < world as u64 && world > 1 && uneven != Uneven::Allow {
                // Some rank would have none, so all hear of it.
                let said = format!("fewer items than ranks: {items} for {world}");
                let last = part.items.last().unwrap().as_ref().unwrap_err();
                prop_assert!(last.contains(&said), "{}", last);
                return Ok(());
            }
            let here = given(rank);
            let equal = match uneven {
                Uneven::Drop => count,
                Uneven::Pad if items > 0 => count + u64::from(rest > 0),
                // The error comes before a last batch that is not full.
                Uneven::Error if rest > 0 => (own.len() / batch * batch) as u64,
                _ => own.len() as u64,
            };
            prop_assert_eq!(here.len() as u64, equal, "rank {} of {}", rank, world);
            let kept = own.len().min(here.len());
            prop_assert_eq!(&here[..kept], &own[..kept]);
            let failed = part.items.iter().filter(|item| item.is_err()).count();
            let left_over = usize::from(uneven == Uneven::Error && rest > 0);
            prop_assert_eq!(failed, left_over, "{:?}", part.items);
            all.extend(here);
        }
        if uneven == Uneven::Error && rest > 0 {
            return Ok(());
        }
        let lost = if uneven == Uneven::Drop { rest } else { 0 };
        if uneven != Uneven::Pad {
            prop_assert_eq!(all.len() as u64, items - lost, "an item came twice, or not at all");
        }
        all.sort();
        all.dedup();
        prop_assert_eq!(all, Vec::from_iter(0..items - lost));
    }
}

#[test]
fn an_item_that_may_move_by_no_place_is_in_strict_order() {
    let plan = |order| {
        let graph = Graph::range(0..9).map(|n| n + 1).batch(2);
        let loader = DataLoader::builder(graph).workers(2).order(order).build();
        loader.unwrap().explain()
    };
    assert_eq!(plan(Order::Bounded(0)), plan(Order::Strict));
    assert_ne!(plan(Order::Bounded(1)), plan(Order::Strict));
}

fn loose_order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Arrival), (0usize..100).prop_map(Order::Bounded)]
}

/// The sequence is that of one thread running the graph inline: values, origins and errors.
fn same_sequence(spec: &Spec, run: &Run) -> Result<(), TestCaseError> {
    let inline = Run::inline(run.seed, run.epoch).outcome(spec);
    prop_assert_eq!(run.outcome(spec), inline);
    Ok(())
}

/// Other orders give the same multiset, unless a step groups neighbours and no step below it needs
/// order.
fn same_items(spec: &Spec, run: &Run, order: Order) -> Result<(), TestCaseError> {
    prop_assume!(!spec.groups());
    let strict = Run::inline(run.seed, run.epoch).outcome(spec).sorted();
    let mut other = Run {
        order,
        ..run.clone()
    }
    .outcome(spec)
    .sorted();
    if strict.skipped.len() >= 1000 {
        // Only the first thousand skipped items are recorded, and these may differ.
        prop_assert_eq!(other.skipped.len(), strict.skipped.len());
        other.skipped.clone_from(&strict.skipped);
    }
    same_outcome(other, strict)
}

/// A second epoch, and two at once, give what each gives inline.
fn whole_epochs(spec: &Spec, run: &Run) -> Result<(), TestCaseError> {
    let inline = Run::inline(run.seed, 0).loader(spec);
    let whole = [0, 1, 2].map(|epoch| items(inline.epoch(epoch)));
    let loader = run.loader(spec);
    prop_assert_eq!(&items(loader.epoch(0)), &whole[0]);
    prop_assert_eq!(&items(loader.epoch(1)), &whole[1]);
    let mut at_once = [
        loader.epoch(1).blocking().items(),
        loader.epoch(2).blocking().items(),
    ];
    let mut seen = [vec![], vec![]];
    let mut open = true;
    while open {
        open = false;
        for (epoch, seen) in at_once.iter_mut().zip(&mut seen) {
            let Some(item) = epoch.next() else { continue };
            open = true;
            let item = item.map(|item: Item<u64>| (*item, item.origin().to_string()));
            seen.push(item.map_err(|error| error.to_string()));
        }
    }
    prop_assert_eq!(&seen[..], &whole[1..]);
    Ok(())
}

/// Whatever stands above, an item that is still there draws what it draws alone.
fn same_draws(spec: &Spec, run: &Run) -> Result<(), TestCaseError> {
    let draw = |graph: Graph<u64>| graph.map_with_rng(|_, rng| rng.next_u64()).named("draw");
    let alone = Graph::range(0..spec.items);
    let alone: BTreeMap<String, u64> = Run::inline(run.seed, run.epoch)
        .outcome_of(draw(alone), |builder| builder)
        .items
        .into_iter()
        .map(|item| item.map(|(drawn, origin)| (origin, drawn)).unwrap())
        .collect();
    for item in run.outcome_of(draw(spec.graph()), |builder| builder).items {
        let Ok((drawn, origin)) = item else { continue };
        if let Some(expected) = alone.get(&origin) {
            prop_assert_eq!(&drawn, expected, "{}", origin);
        }
    }
    Ok(())
}

/// Bisects the first batches of an epoch, with the sample at a place as the bad one.
fn bad_sample_is_found(
    spec: &Spec,
    run: &Run,
    size: usize,
    place: usize,
) -> Result<(), TestCaseError> {
    // Epoch 0 fills the caches of later epochs.
    let epoch = 0;
    let graph = spec.graph().batch(size).map_with_rng(|batch, rng| {
        let salt = rng.next_u64();
        (batch, salt)
    });
    let builder = DataLoader::builder(graph)
        .seed(run.seed)
        .workers(run.workers);
    let loader = builder.on_error(OnError::skip(u64::MAX)).build().unwrap();
    let batches: Vec<_> = loader.epoch(epoch).blocking().items().take(2).collect();
    for batch in batches {
        let Ok(batch) = batch else { continue };
        let samples = &batch.0;
        let bad = samples[place % samples.len()];
        let mut seen = None;
        let found = loader.bisect(epoch, batch.origin(), |part| {
            seen = Some(part);
            false
        });
        match found {
            Err(error) if error.kind() == ErrorKind::Unsupported => continue,
            // A mix that repeats data by index has rounds that a replay does not find.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut parts = batch.origin().parts().iter();
                prop_assert!(parts.any(|part| loader.replay(epoch, part).is_err()));
                continue;
            }
            found => prop_assert!(matches!(found.unwrap().cause, Cause::Nothing)),
        }
        prop_assert_eq!(seen.as_ref(), Some(&*batch));
        let found = loader.bisect(epoch, batch.origin(), |(part, _)| part.contains(&bad));
        let found = found.unwrap();
        prop_assert!(found.tries <= size.next_power_of_two().ilog2() as usize + 1);
        match found.cause {
            Cause::Sample { place, .. } => prop_assert_eq!(samples[place], bad),
            other => prop_assert!(false, "{:?}", other),
        }
    }
    Ok(())
}

/// Each input item of a node is delivered, dropped on purpose and counted, or failed and counted.
/// The figures of a node whose output is read to its end do not depend on how the graph is run.
fn ledger_adds_up(spec: &Spec, run: &Run) -> Result<(), TestCaseError> {
    let ledger = |run: &Run| {
        let loader = run.loader(spec);
        let items: Vec<_> = loader.epoch(run.epoch).blocking().collect();
        (items, loader)
    };
    let (items, loader) = ledger(run);
    // What an epoch that ends in an error has used of its inputs is a matter of time.
    prop_assume!(items.iter().all(Result::is_ok));
    let delivered = items.len() as u64;
    let tree = Tree::of(&loader.explain());
    let nodes: BTreeMap<String, NodeStats> = loader
        .stats()
        .unwrap()
        .nodes
        .into_iter()
        .map(|node| (node.name.clone(), node))
        .collect();
    let stats = loader.stats().unwrap();
    let root = &nodes[&tree.root];
    // Outputs of a demux have echoes of errors above it, which do not count.
    let has_echoes = nodes.keys().any(|name| name.starts_with("demux"));
    let counted = match has_echoes {
        true => stats.skipped.min(root.errors),
        false => root.errors,
    };
    prop_assert_eq!(
        (stats.delivered, stats.skipped),
        (delivered, counted),
        "{}",
        stats
    );
    prop_assert_eq!(root.items, delivered, "{}", stats);

    let repeats = spec.any(&|step| {
        matches!(
            step,
            Step::Repeat(_) | Step::RepeatCached(..) | Step::Cycle(_) | Step::Mix(..)
        )
    });
    for (name, line) in &tree.lines {
        let (kind, node) = (kind(name), &nodes[name]);
        let above: Option<Vec<&NodeStats>> = line
            .inputs
            .iter()
            .map(|input| {
                (!matches!(self::kind(input), "fork" | "demux" | "twice")).then(|| &nodes[input])
            })
            .collect();
        // The outputs of a split are counted together.
        let Some(above) = above else { continue };
        let into = above
            .iter()
            .map(|node| node.items + node.errors)
            .sum::<u64>();
        let out = node.items + node.dropped + node.errors;
        let one_for_one = match kind {
            "cache" => !repeats,
            "map" | "apart" | "try_map" | "map_random" | "map_async" | "filter" | "inspect"
            | "enumerate" | "skip" | "sample" | "sample_with" | "shuffle" | "prefetch" | "pass"
            | "retry" | "repeat" | "concat" | "interleave" | "greedy_join" | "digest"
            | "sort_window" | "exchange" | "count" => true,
            "mux" | "mix" | "mix_by_size" | "alternate" | "scan" | "take" => !line.ends_early,
            _ => continue,
        };
        if one_for_one && line.used_up {
            prop_assert_eq!(into, out, "{} in\n{}", name, stats);
        } else if kind != "cache" && !repeats {
            prop_assert!(into >= out, "{} in\n{}", name, stats);
        }
    }

    let (_, inline) = ledger(&Run::inline(run.seed, run.epoch));
    for node in inline.stats().unwrap().nodes {
        let other = &nodes[&node.name];
        if tree.lines[&node.name].used_up {
            let figures = |node: &NodeStats| (node.items, node.dropped, node.errors);
            prop_assert_eq!(
                figures(other),
                figures(&node),
                "{} in\n{}\n{}",
                node.name,
                stats,
                inline.explain()
            );
        }
    }
    Ok(())
}

/// The plan is a function of graph and settings, and names every node.
fn plan_is_stable(spec: &Spec, run: &Run) -> Result<(), TestCaseError> {
    let loader = run.loader(spec);
    let plan = loader.explain();
    prop_assert_eq!(&plan, &run.loader(spec).explain());
    loader.epoch(0).blocking().take(3).for_each(drop);
    let tree = Tree::of(&plan);
    let (named, are): (BTreeSet<String>, BTreeSet<String>) = (
        tree.lines.into_keys().collect(),
        loader
            .stats()
            .unwrap()
            .nodes
            .into_iter()
            .map(|node| node.name)
            .collect(),
    );
    prop_assert_eq!(named, are, "{}", plan);
    Ok(())
}

/// The items of each rank do not depend on how the rank is run.
fn every_rank(
    spec: &Spec,
    run: &Run,
    at: usize,
    (dealer, uneven): (Dealer, Uneven),
    world: usize,
) -> Result<(), TestCaseError> {
    for rank in 0..world {
        let ranked = |run: &Run| {
            run.outcome_of(spec.sharded(at, dealer), |builder| {
                builder.rank(rank, world).uneven(uneven)
            })
        };
        prop_assert_eq!(
            ranked(run),
            ranked(&Run::inline(run.seed, run.epoch)),
            "rank {} of {}",
            rank,
            world
        );
    }
    Ok(())
}

/// A printed plan, read again.
struct Tree {
    root: String,
    lines: BTreeMap<String, Line>,
}

#[derive(Debug)]
struct Line {
    inputs: Vec<String>,
    /// True if the node may end before its inputs do.
    ends_early: bool,
    /// True if all its output is used.
    used_up: bool,
}

fn kind(name: &str) -> &str {
    name.split('#').next().unwrap_or(name)
}

impl Tree {
    fn of(plan: &str) -> Tree {
        let mut tree = Tree {
            root: String::new(),
            lines: BTreeMap::new(),
        };
        let mut path: Vec<String> = Vec::new();
        for line in plan.lines() {
            let Some((indent, rest)) = line.split_once("─ ") else {
                continue;
            };
            let depth = indent.chars().count() / 3;
            let name = rest.split(['(', ' ']).next().unwrap().to_owned();
            let ends_early = match kind(&name) {
                "take"
                | "scan"
                | "zip"
                | "pair"
                | "alternate"
                | "merge_join_by_key"
                | "left_merge_join_by_key" => true,
                "mux" => rest.contains("stop at first"),
                // A mix by step may give an input no more turns.
                "mix" | "mix_by_size" => {
                    !rest.contains("AllExhausted")
                        || rest.contains("0.0")
                        || rest.contains("by a function")
                }
                _ => false,
            };
            path.truncate(depth);
            let used_up = match path.last() {
                Some(below) => {
                    let below = tree.lines.get_mut(below).unwrap();
                    if !below.inputs.contains(&name) {
                        below.inputs.push(name.clone());
                    }
                    below.used_up && !below.ends_early
                }
                None => {
                    tree.root = name.clone();
                    true
                }
            };
            // A split is printed under each of its readers.
            let entry = tree.lines.entry(name.clone()).or_insert(Line {
                inputs: vec![],
                ends_early,
                used_up,
            });
            entry.used_up &= used_up;
            path.push(name);
        }
        tree
    }
}

/// Law 9: each of these is wrong, and is refused with the name of the node.
#[test]
fn law_9_wrong_graphs_do_not_start() {
    use datapipes::pipes::*;
    let n = || Graph::range(0..100);
    let none = Vec::<Graph<u64>>::new;
    let wrong: Vec<(&str, Graph<u64>)> = vec![
        ("batch: a batch size of zero", n().batch(0).unbatch()),
        (
            "batch: a batch size of zero",
            n().map(|n| vec![n]).padded_batch(0, 0u64).map(|_| 0),
        ),
        ("shuffle: a shuffle buffer of zero", n().shuffle(0)),
        ("prefetch: a prefetch of zero items", n().prefetch(0)),
        ("sample: a sample of zero items", n().sample(0)),
        (
            "sample_with: a probability outside 0 to 1",
            n().sample_with(1.5),
        ),
        (
            "sample_with: a probability outside 0 to 1",
            n().sample_with(f64::NAN),
        ),
        ("repeat: a repeat of zero rounds", n().repeat(0)),
        (
            "bucket_batch: a batch size of zero",
            n().bucket_batch(|n| *n as usize, [5], [1, 0]).unbatch(),
        ),
        (
            "bucket_batch: the boundaries must increase",
            n().bucket_batch(|_| 0, [5, 5], [1, 1, 1]).unbatch(),
        ),
        (
            "bucket_batch: there must be one batch size more than boundaries",
            n().bucket_batch(|_| 0, [5], [1]).unbatch(),
        ),
        (
            "batch: is tried again item by item",
            n().retry(1, Batch::new(2)).unbatch(),
        ),
        ("concat: no inputs", Graph::concat(none())),
        ("mux: no inputs", Graph::mux(none())),
        ("interleave: no inputs", Graph::interleave(none(), 1, 1)),
        (
            "interleave: a cycle length of zero",
            Graph::interleave([n()], 0, 1),
        ),
        (
            "interleave: a block length of zero",
            Graph::interleave([n()], 1, 0),
        ),
        ("greedy_join: no inputs", Graph::greedy_join(none())),
        ("mix: no inputs", Graph::mix([])),
        (
            "mix: a weight that is not a positive number",
            Graph::mix([(n(), 0.0)]),
        ),
        (
            "mix: a weight that is not a positive number",
            Graph::mix_until(Stop::CycleForever, [(n(), -1.0)]),
        ),
        (
            "mix: weights more than a billion times apart",
            Graph::mix([(n(), 1.0), (n(), 1e10)]),
        ),
        (
            "fork: a buffer of zero items",
            Graph::mux(n().split(Fork::new(2).buffer(0))),
        ),
        (
            "demux: a buffer of zero items",
            Graph::mux(n().split(Demux::new(2, |_: &u64| 0).buffer(0))),
        ),
        (
            "fork: nobody reads its output 1",
            n().fork::<2>()[0].clone(),
        ),
        ("map: a concurrency of zero", n().map(|n| n).concurrency(0)),
        ("a node with an empty name", n().map(|n| n).named("")),
        (
            "twice: 2 nodes have this name",
            n().map(|n| n).named("twice").map(|n| n).named("twice"),
        ),
        ("a: feeds 2 nodes", {
            let a = n().named("a");
            Graph::concat([a.clone(), a])
        }),
    ];
    for (problem, graph) in wrong {
        let error = DataLoader::builder(graph)
            .build()
            .err()
            .unwrap_or_else(|| panic!("runs, though {problem}"));
        assert!(
            error.problems().iter().any(|p| p.starts_with(problem)),
            "{error}\n  should be: {problem}"
        );
    }

    type Set = fn(datapipes::loader::Builder<u64>) -> datapipes::loader::Builder<u64>;
    let settings: Vec<(&str, Graph<u64>, Set)> = vec![
        ("a memory budget of zero bytes", n(), |b| b.memory(0)),
        (
            "items of 11 bytes (`largest_item`), and a memory budget of 10",
            n(),
            |b| b.memory(10).largest_item(11),
        ),
        (
            "items of 18446744073709551615 bytes (`largest_item`), and a memory budget of",
            n(),
            |b| b.memory(usize::MAX).largest_item(usize::MAX),
        ),
        ("18446744073709551615 workers: there may be", n(), |b| {
            b.workers(usize::MAX)
        }),
        (
            "shuffle: an epoch cannot be resumed in the middle of its output, since it does not save its state; a \
             buffer of at most 4294967295 items does",
            n().shuffle(usize::MAX),
            |b| b.resumable(),
        ),
        ("zero requests in flight", n(), |b| b.concurrency(0)),
        (
            "rank 2 of 2: there is no such rank",
            n().sharding_filter(),
            |b| b.rank(2, 2).uneven(Uneven::Drop),
        ),
        (
            "rank 0 of 0: there is no such rank",
            n().sharding_filter(),
            |b| b.rank(0, 0).uneven(Uneven::Drop),
        ),
        ("range: no `sharding_filter` between", n(), |b| {
            b.rank(0, 2).uneven(Uneven::Drop)
        }),
        (
            "range#2: no `sharding_filter` between",
            Graph::concat([n().sharding_filter(), n()]),
            |b| b.rank(0, 2).uneven(Uneven::Drop),
        ),
        ("2 ranks, and nothing says", n().sharding_filter(), |b| {
            b.rank(0, 2)
        }),
        (
            "sharding_filter#2: shards a second time",
            n().sharding_filter().sharding_filter(),
            |b| b.rank(0, 2).uneven(Uneven::Drop),
        ),
        ("sharding_filter: cannot pad", n().sharding_filter(), |b| {
            b.rank(0, 2).uneven(Uneven::Pad)
        }),
        (
            "shuffle: shuffles after the sharding filter only",
            n().sharding_filter().shuffle(9),
            |b| b.rank(0, 2).uneven(Uneven::Drop),
        ),
        (
            "sharding_filter: fewer items than ranks: 100 for 200",
            n().sharding_filter(),
            |b| b.rank(0, 200).uneven(Uneven::Drop),
        ),
    ];
    for (problem, graph, set) in settings {
        let built = set(DataLoader::builder(graph)).build();
        let error = built
            .err()
            .unwrap_or_else(|| panic!("runs, though {problem}"));
        assert!(
            error.problems().iter().any(|p| p.starts_with(problem)),
            "{error}\n  should be: {problem}"
        );
    }
}

/// The generator reaches every pipe, ours and those of users: what no graph contains no law is held
/// for.
#[test]
fn generated_graphs_contain_every_node() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    let mut grouped = 0;
    for _ in 0..400 {
        let spec: Spec = spec().new_tree(&mut runner).unwrap().current();
        grouped += usize::from(spec.groups());
        let plan = DataLoader::builder(spec.graph())
            .on_error(OnError::fail())
            .build()
            .unwrap()
            .explain();
        seen.extend(
            Tree::of(&plan)
                .lines
                .into_keys()
                .map(|name| kind(&name).to_owned()),
        );
    }
    assert!(
        grouped < 200,
        "{grouped} of 400 tell little about other orders"
    );
    let sources = tests_of_the_workspace();
    let nodes = kit::nodes(product(&sources).filter(|file| {
        [
            "datapipes/src/pipes/",
            "datapipes/src/index/",
            "tests/suite/user_pipes.rs",
        ]
        .iter()
        .any(|path| file.path.starts_with(path))
    }));
    let types: BTreeSet<&str> = nodes.iter().map(|(of, _)| &**of).collect();
    let unread: Vec<String> = kit::exported()
        .into_iter()
        .filter(|name| !kit::is_no_pipe(name) && !types.contains(&**name))
        .collect();
    assert!(unread.is_empty(), "the sources of {unread:?} were not read");

    let names: BTreeSet<&str> = nodes.iter().map(|(_, name)| &**name).collect();
    let not_generated: BTreeSet<&str> = NOT_GENERATED.iter().map(|(name, _)| *name).collect();
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !seen.contains(**name) && !not_generated.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "{missing:?} in none of 400 graphs, only {seen:?}"
    );
    let generated: Vec<_> = not_generated
        .iter()
        .filter(|name| seen.contains(**name) || !names.contains(*name))
        .collect();
    assert!(generated.is_empty(), "no longer exceptions: {generated:?}");
}

/// Nodes that are in no generated graph, with the reason.
const NOT_GENERATED: [(&str, &str); 9] = [
    ("cycled", "has the name of the mix that cycles its inputs"),
    ("deal", "for several ranks: `Spec::sharded` adds it"),
    ("every", "for several ranks: `Spec::sharded` adds it"),
    ("index_shard", "for several ranks, which share streams here"),
    (
        "index_shard_contiguous",
        "for several ranks, which share streams here",
    ),
    ("retry", "has the name of the pipe that it tries again"),
    ("sampled", "has the name of its sampler"),
    (
        "sharding_filter",
        "for several ranks: `Spec::sharded` adds it",
    ),
    (
        "sharding_filter_padded",
        "for several ranks: `Spec::sharded` adds it",
    ),
];
