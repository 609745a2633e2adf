//! Generated graphs over integers, for property tests.

use datapipes::{DataLoader, Error, Graph, Order};
use proptest::prelude::*;

/// One node, or a few, of a generated graph.
#[derive(Clone, Debug)]
pub enum Step {
    Map(u64),
    Spin(u64),
    Random,
    Filter(u64),
    /// Fails for items divisible by this.
    Fail(u64),
    Shuffle(usize),
    Batch(usize),
}

/// A generated graph: so many integers through some steps. `fixed` gives each step a number in flight, so that it
/// runs on workers however cheap it is.
#[derive(Clone, Debug)]
pub struct Spec {
    pub items: u64,
    pub steps: Vec<Step>,
    pub fixed: Option<usize>,
}

impl Spec {
    pub fn graph(&self) -> Graph<u64> {
        let mut graph = Graph::range(0..self.items);
        for step in &self.steps {
            graph = step.add(graph);
            if let Some(pieces) = self.fixed {
                graph = graph.concurrency(pieces);
            }
        }
        graph
    }
}

impl Step {
    fn add(&self, graph: Graph<u64>) -> Graph<u64> {
        match *self {
            Step::Map(k) => graph.map(move |n| n.wrapping_mul(31).wrapping_add(k)),
            Step::Spin(rounds) => graph.map(move |n| {
                (0..rounds * (1 + n % 7)).fold(n, |n, i| std::hint::black_box(n.rotate_left(3) ^ i))
            }),
            Step::Random => graph.map_random(|n, rng| n ^ rng.below(1 << 20)),
            Step::Filter(k) => graph.filter(move |n| n % k != 0),
            Step::Fail(k) => graph.try_map(move |n| match n % k {
                0 => Err(format!("{n} is divisible by {k}")),
                _ => Ok(n),
            }),
            Step::Shuffle(buffer) => graph.shuffle(buffer),
            Step::Batch(size) => {
                graph.batch(size).map(|batch| batch.iter().fold(7u64, |a, b| a.wrapping_mul(33) ^ b))
            }
        }
    }

    /// Whether the multiset of what comes out does not depend on the order of what goes in.
    pub fn keeps_the_multiset(&self) -> bool {
        !matches!(self, Step::Batch(_))
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u64..1000).prop_map(Step::Map),
        2 => (1u64..2000).prop_map(Step::Spin),
        2 => Just(Step::Random),
        2 => (2u64..6).prop_map(Step::Filter),
        1 => (2u64..40).prop_map(Step::Fail),
        2 => (1usize..50).prop_map(Step::Shuffle),
        1 => (1usize..12).prop_map(Step::Batch),
    ]
}

pub fn spec() -> impl Strategy<Value = Spec> {
    (0u64..300, prop::collection::vec(step(), 0..7), prop::option::of(1usize..40))
        .prop_map(|(items, steps, fixed)| Spec { items, steps, fixed })
}

/// How a graph is run.
#[derive(Clone, Debug)]
pub struct Run {
    pub workers: usize,
    pub prefetch: usize,
    pub order: Order,
    pub seed: u64,
    pub epoch: u64,
}

impl Run {
    pub fn inline(seed: u64, epoch: u64) -> Run {
        Run { workers: 0, prefetch: 0, order: Order::Strict, seed, epoch }
    }

    pub fn loader(&self, spec: &Spec) -> DataLoader<u64> {
        DataLoader::builder(spec.graph())
            .workers(self.workers)
            .prefetch(self.prefetch)
            .order(self.order)
            .seed(self.seed)
            .on_error(datapipes::OnError::skip(u64::MAX))
            .build()
            .expect("generated graphs are right")
    }

    /// What comes out, with origins; and what was skipped, in order of origin.
    pub fn outcome(&self, spec: &Spec) -> (Vec<(u64, String)>, Vec<String>) {
        let policy = datapipes::OnError::skip(u64::MAX);
        let loader = DataLoader::builder(spec.graph())
            .workers(self.workers)
            .prefetch(self.prefetch)
            .order(self.order)
            .seed(self.seed)
            .on_error(policy.clone())
            .build()
            .expect("generated graphs are right");
        let items = loader.epoch(self.epoch).blocking().items();
        let out = items.map(|item| item.map(|item| (*item, item.origin().to_string())));
        let out = out.collect::<Result<Vec<_>, Error>>().expect("errors are skipped");
        let mut skipped: Vec<String> = policy.skipped().into_iter().map(|s| s.error).collect();
        skipped.sort();
        (out, skipped)
    }
}

pub fn strict_run() -> impl Strategy<Value = Run> {
    (prop_oneof![Just(1usize), Just(2), Just(8)], 1usize..=64, 0u64..4, 0u64..3).prop_map(
        |(workers, prefetch, seed, epoch)| Run { workers, prefetch, order: Order::Strict, seed, epoch },
    )
}
