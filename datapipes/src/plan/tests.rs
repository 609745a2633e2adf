//! Tests of the planner, which run nothing.

use super::*;
use crate::graph::Flow;
use crate::{Context, DataLoader, Graph, Hints, Items, Pipe};

/// Reads slowly.
struct Read;

impl Pipe<u64> for Read {
    type Out = u64;

    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        input
    }
    fn hints(&self) -> Hints {
        Hints::shardable().work(Work::Io).arity(Arity::One)
    }
}

fn plan(graph: &Graph<u64>, settings: &Settings) -> (Flow, Plan) {
    let flow = Flow::new(&graph.root());
    let plan = Plan::new(&flow, settings);
    (flow, plan)
}

fn settings(workers: usize) -> Settings {
    let mut settings = Settings::default();
    (settings.workers, settings.memory) = (workers, Some(1000));
    settings
}

fn names(flow: &Flow, segment: &SegmentPlan) -> Vec<String> {
    segment
        .nodes
        .iter()
        .map(|&id| flow.nodes[id].name.to_string())
        .collect()
}

#[test]
fn neighbours_of_one_kind_of_work_are_one_segment() {
    let graph = Graph::range(0..9)
        .pipe(Read)
        .map(|n| n)
        .filter(|_| true)
        .shuffle(3)
        .map(|n| n + 1);
    let (flow, plan) = plan(&graph, &settings(4));
    let segments: Vec<_> = plan
        .segments
        .iter()
        .map(|s| (names(&flow, s), s.work, s.arity))
        .collect();
    assert_eq!(
        segments,
        [
            (vec!["read".to_owned()], Work::Io, Arity::One),
            (
                vec!["map".to_owned(), "filter".to_owned()],
                Work::Cpu,
                Arity::AtMostOne
            ),
            (vec!["map#2".to_owned()], Work::Cpu, Arity::One),
        ]
    );
    assert_eq!(
        plan.segments.iter().map(|s| s.depth).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(plan.places[4], Placement::Inline);
}

/// Gives the sum of each so many items.
struct Sums(usize, Arity);

impl Pipe<u64> for Sums {
    type Out = u64;

    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        input
    }
    fn hints(&self) -> Hints {
        Hints::default().arity(self.1).buffered(self.0)
    }
}

#[test]
fn requests_begin_for_all_items_that_the_first_output_is_made_of() {
    let starts = |graph: Graph<u64>| {
        let (_, plan) = plan(&graph, &settings(2));
        plan.segments
            .iter()
            .map(|segment| segment.start)
            .collect::<Vec<_>>()
    };
    let read = || Graph::range(0..99).pipe(Read);
    assert_eq!(starts(read()), [1]);
    assert_eq!(
        starts(read().filter(|_| true).pipe(Sums(0, Arity::AtMostOne)))[0],
        1
    );
    for arity in [Arity::AtMostOne, Arity::Any] {
        assert_eq!(starts(read().pipe(Sums(7, arity))), [7]);
    }
}

#[test]
fn without_workers_everything_is_inline() {
    let graph = Graph::range(0..9).pipe(Read).map(|n| n);
    let (_, plan) = plan(&graph, &settings(0));
    assert!(plan.segments.is_empty());
    assert!(plan.places.iter().all(|place| *place == Placement::Inline));
    assert_eq!(plan.prefetch.items, 0);
}

#[test]
fn order_is_kept_above_whoever_needs_it() {
    let relaxed = Settings {
        order: Order::Bounded(8),
        ..settings(2)
    };
    let through = |graph: Graph<u64>| graph.through(|items: Items<u64>| items);
    let graph = through(Graph::range(0..9).map(|n| n))
        .map(|n| n)
        .shuffle(2)
        .map(|n| n);
    let (_, plan) = plan(&graph, &relaxed);
    let orders: Vec<_> = plan.segments.iter().map(|s| s.order).collect();
    // A given bound is divided among the segments that may use it.
    assert_eq!(
        orders,
        [Order::Strict, Order::Bounded(4), Order::Bounded(4)]
    );
}

#[test]
fn the_memory_budget_is_divided_among_the_edges() {
    let graph = Graph::range(0..9).pipe(Read).shuffle(5).map(|n| n);
    let (_, plan) = plan(&graph, &settings(2));
    assert_eq!(
        plan.segments.iter().map(|s| s.bytes).collect::<Vec<_>>(),
        [333, 333]
    );
    assert!(plan.bytes() <= 1000);
}

#[test]
fn a_number_in_flight_is_kept_to() {
    let graph = Graph::range(0..9)
        .map(|n| n)
        .concurrency(3)
        .map(|n| n)
        .concurrency(3)
        .map(|n| n)
        .concurrency(5);
    let (flow, plan) = plan(&graph, &settings(2));
    let segments: Vec<_> = plan
        .segments
        .iter()
        .map(|s| (names(&flow, s).len(), s.concurrency, s.set_by_user))
        .collect();
    assert_eq!(segments, [(2, 3, true), (1, 5, true)]);
}

/// Law 10: the plan is a pure function, and prints.
#[test]
fn explains_itself() {
    let graph = Graph::range(0..1000)
        .pipe(Read)
        .shuffle(100)
        .map(|n| n)
        .named("double")
        .batch(10);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .seed(7)
        .memory(64 << 20)
        .build()
        .unwrap();
    let expected = "\
loader: seed 7, 2 workers, order strict, rank 0 of 1
at most 63 MiB and one item wait between steps or are in work; pipes hold at most 110 items besides
consumer ← queue, up to 4 ready, filled by its own thread
└─ batch(10)
   └─ double  [segment B: CPU, 2 workers, up to 64 morsels in flight, strict order]
      └─ shuffle(100)
         └─ read  [segment A: I/O, 110 in flight at first and up to 2048 as it pays, strict order]
            └─ range(0..1000)
";
    assert_eq!(loader.explain(), expected);
    assert_eq!(loader.explain(), expected);
}

/// Groups siblings.
struct Group;

impl Pipe<u64> for Group {
    type Out = u64;

    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        input
    }
    fn hints(&self) -> Hints {
        Hints::default().is_shardable_by_parent(true)
    }
}

/// Fans out.
struct Members;

impl Pipe<u64> for Members {
    type Out = u64;

    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        input
    }
    fn hints(&self) -> Hints {
        crate::Hints::shardable().children(true)
    }
}

#[test]
fn what_groups_siblings_stands_below_their_fan_out_or_alone() {
    let relaxed = Settings {
        order: Order::Arrival,
        ..settings(2)
    };
    let below = Graph::range(0..9)
        .map(|n| n)
        .pipe(Members)
        .map(|n| n)
        .pipe(Group)
        .map(|n| n);
    let (flow, plan_below) = plan(&below, &relaxed);
    assert_eq!(plan_below.segments.len(), 1);
    assert_eq!(
        names(&flow, &plan_below.segments[0]),
        ["map", "members", "map#2", "group", "map#3"]
    );
    assert_eq!(plan_below.segments[0].order, Order::Arrival);
    let alone = Graph::range(0..9).map(|n| n).pipe(Group).map(|n| n);
    let (_, plan_alone) = plan(&alone, &relaxed);
    assert_eq!(plan_alone.places[2], Placement::Inline);
    assert_eq!(
        plan_alone
            .segments
            .iter()
            .map(|s| s.order)
            .collect::<Vec<_>>(),
        [Order::Strict, Order::Arrival]
    );
}

/// A pipe of any crate is read on the thread that wants its output if it says that it never blocks
/// one.
#[test]
fn what_never_blocks_is_read_without_a_thread_of_its_own() {
    struct Every(u64, bool);
    impl Pipe<u64> for Every {
        type Out = u64;
        fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
            let (step, mut n) = (self.0, 0);
            input.each(cx, move |item| {
                n += 1;
                (n % step == 0).then_some(Ok(item))
            })
        }
        fn hints(&self) -> Hints {
            Hints::default().never_blocks(self.1)
        }
    }
    for never_blocks in [false, true] {
        let graph = Graph::range(0..9).pipe(Every(2, never_blocks)).map(|n| n);
        let (_, plan) = plan(&graph, &settings(2));
        assert_eq!(plan.segments[0].fed, !never_blocks);
    }
}

/// Weights follow the items: they pass through if the type stays, and add up in batches.
#[test]
fn weights_follow_the_items() {
    let heavy = Graph::from_vec(vec![vec![0u8; 10]; 4])
        .weighed(Vec::len)
        .shuffle(2)
        .filter(|_| true);
    assert_eq!(heavy.weigher()(&[vec![0u8; 10], vec![0u8; 5]]), 15);
    let batches = heavy.batch(2);
    assert_eq!(batches.weigher()(&[vec![vec![0u8; 10], vec![0u8; 7]]]), 17);
    let tensors = Graph::range(0..4).batch(4).collate();
    let tensor = tensors.clone().collect().unwrap().remove(0);
    assert_eq!(
        tensors.weigher()(&[tensor]),
        size_of::<crate::Tensor>() + 32
    );
}
