//! The laws of the design, over generated graphs.

use datapipes::{DataLoader, Graph, Order};
use proptest::prelude::*;

use crate::graphs::{Run, Step, spec, strict_run};

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Law 1: the sequence is that of one thread running the graph inline.
    #[test]
    fn law_1_parallel_equals_sequential(spec in spec(), run in strict_run()) {
        let inline = Run::inline(run.seed, run.epoch).outcome(&spec);
        prop_assert_eq!(run.outcome(&spec), inline);
    }

    /// Law 1, second half: other orders give the same multiset.
    #[test]
    fn law_1_other_orders_give_the_same_items(
        spec in spec(),
        run in strict_run(),
        order in prop_oneof![Just(Order::Arrival), (0usize..100).prop_map(Order::Bounded)],
    ) {
        prop_assume!(spec.steps.iter().all(Step::keeps_the_multiset));
        let (mut strict, skipped) = Run::inline(run.seed, run.epoch).outcome(&spec);
        let (mut other, other_skipped) = Run { order, ..run }.outcome(&spec);
        strict.sort();
        other.sort();
        prop_assert_eq!(other, strict);
        prop_assert_eq!(other_skipped, skipped);
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

    /// Law 3: randomness belongs to the item, seed and epoch.
    #[test]
    fn law_3_randomness_belongs_to_the_item(items in 1u64..200, seed in any::<u64>(), epoch in 0u64..5) {
        let draw = |graph: Graph<u64>, workers| {
            let graph = graph.map_random(|n, rng| (n, rng.next_u64())).named("draw");
            let loader = DataLoader::builder(graph).seed(seed).workers(workers).build().unwrap();
            let mut all: Vec<_> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
            all.sort();
            all
        };
        let numbers = || Graph::range(0..items);
        let plain = draw(numbers(), 0);
        prop_assert_eq!(&draw(numbers(), 2), &plain);
        // Other nodes above change the order, not the numbers.
        prop_assert_eq!(&draw(numbers().shuffle(17).filter(|_| true), 2), &plain);
        let other = DataLoader::builder(numbers().map_random(|n, rng| (n, rng.next_u64())).named("draw"))
            .seed(seed.wrapping_add(1)).workers(0).build().unwrap();
        prop_assert_ne!(other.epoch(epoch).blocking().map(Result::unwrap).collect::<Vec<_>>(), plain);
    }

    /// Law 4: what a source gives is delivered, dropped on purpose and counted, or failed and counted.
    #[test]
    fn law_4_the_ledger_adds_up(spec in spec(), run in strict_run()) {
        let loader = run.loader(&spec);
        let delivered = loader.epoch(run.epoch).blocking().map(Result::unwrap).count() as u64;
        let stats = loader.stats().unwrap();
        prop_assert_eq!(stats.delivered, delivered);
        for (above, node) in stats.nodes.iter().zip(&stats.nodes[1..]) {
            if !node.name.starts_with("batch") {
                let new_errors = node.errors - above.errors;
                prop_assert_eq!(above.items, node.items + node.dropped + new_errors, "{}", stats);
            }
        }
        prop_assert_eq!(stats.skipped, stats.nodes.last().unwrap().errors);
    }

}
