//! Generated graphs over integers, for property tests. They contain every built-in pipe, and graphs
//! as second inputs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use datapipes::index::{
    ClassBalanced, Indexed, LengthGrouped, Random, Replacement, Sequential, Subset, Weighted,
    WeightedOnce,
};
use datapipes::loader::Stats;
use datapipes::pipes::{
    Batch, BucketBatch, Demux, Digest, Fork, HashJoin, Interleave, MergeJoin, Mux, Retry, Schedule,
    Shuffle, Stop, TryMap, Zip,
};
use datapipes::{
    Arity, Context, Crossing, DataLoader, Error, Graph, Hints, Items, Join, Lookup, OnError, Order,
    Padding, Pipe, Result, Tensor, Uneven, Wire, async_trait, testing,
};
use proptest::prelude::*;

use crate::user_pipes::{
    Alternate, Dealer, GoesOn, Numbers, Own, Pair, Ranges, Twice, goes_on, own,
};

/// Addresses of rows that were filled.
pub type Places = Arc<Mutex<HashSet<usize>>>;

/// A pair of each integer and its successor, as a row. Those in `fails` are errors.
#[derive(Clone, Default)]
pub struct Pairs {
    pub filled: Places,
    pub fails: &'static [u64],
}

impl Pipe<u64> for Pairs {
    type Out = Tensor;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Tensor> {
        let (this, rows) = (self.clone(), cx.clone());
        input.each(cx, move |item| {
            Some(item.try_map(|n| {
                let mut row = rows.row::<u64>([2])?;
                if this.fails.contains(&n) {
                    return Err(Error::user("unlucky"));
                }
                // So that a worker pays for itself.
                let n = (0..2000).fold(n, |n, i| std::hint::black_box(n ^ i ^ i));
                row.as_mut_slice::<u64>()?
                    .copy_from_slice(&[n, n.wrapping_add(1)]);
                this.filled
                    .lock()
                    .unwrap()
                    .insert(row.as_bytes().as_ptr() as usize);
                Ok(row)
            }))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).rows(true)
    }
}

/// The source of a generated graph.
#[derive(Clone, Debug)]
pub enum Start {
    Range,
    Vector,
    Iterator,
    Stream,
    /// A user-defined source, in which some numbers fail.
    Own(GoesOn),
    /// A user-defined source of whole columns.
    Ranges,
    /// Data by index, and what is done to it before it is fetched.
    Indexed(Vec<IndexStep>),
    /// The indices that a sampler chooses, fetched as keys, or as batches of this size.
    Keys(Choice, Option<usize>),
}

/// One step of data that is read by index.
#[derive(Clone, Debug)]
pub enum IndexStep {
    Shuffle,
    Sampled(Choice),
    Repeat(u64),
    /// Followed by other data of this length if true, otherwise by itself.
    Concat(u64, bool),
    Mix(u64, u8, bool),
    /// A shuffle of itself.
    Zip,
    Batch(usize, bool),
    Map,
    MapAsync,
    Fail(u64),
    Cache(usize),
}

/// A sampler.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    Sequential,
    Random,
    Replacement,
    Weighted,
    WeightedOnce,
    ClassBalanced,
    LengthGrouped(usize),
    /// Every n-th index.
    Subset(u64),
}

/// One node, or a few, of a generated graph. What gives other things than integers is followed by a
/// `map` that makes an integer of them.
#[derive(Clone, Debug)]
pub enum Step {
    Map(u64),
    Spin(u64),
    Random,
    /// Fails with a chance of one in this many, drawn at random.
    TryRandom(u64),
    /// Fails for items divisible by this.
    Fail(u64),
    /// Fails for items divisible by this, and retries.
    Retry(u64),
    /// Yields to the runtime up to two times this number.
    MapAsync(u64),
    Filter(u64),
    FlatMap(u64),
    /// Ends after this many items, if a limit is given.
    Scan(Option<u64>),
    Inspect,
    Digest,
    Enumerate,
    Through,
    Take(u64),
    Skip(u64),
    Batch {
        size: usize,
        drop_last: bool,
    },
    Padded(usize),
    /// Sequences with labels.
    PaddedPairs(usize),
    /// Scratch memory that is left as it was; fails for items divisible by this.
    MapInit(u64),
    MapInitRandom,
    Bucket {
        boundary: usize,
        sizes: [usize; 2],
        drop_last: bool,
    },
    /// Makes batches and takes them apart.
    Rebatch(usize),
    Collate(usize),
    /// Batches whose rows are filled in place.
    Rows(usize),
    CollateWith(usize),
    Shuffle(usize),
    /// Sorts this many items at a time by their remainder.
    SortWindow(usize, u64),
    Prefetch(usize),
    Repeat(u64),
    /// Cycles without end, and takes this many items.
    Cycle(u64),
    Cache(usize),
    /// Repeats, a cache of this many items, and repeats of that.
    RepeatCached(u64, usize),
    Sample(usize),
    /// A probability in percent.
    SampleWith(u32),
    Zip(Box<Spec>, bool),
    Zip3(Box<Spec>, Box<Spec>),
    /// Joins by key, with this many keys.
    JoinByKey(Box<Spec>, u64, Partner),
    /// Joins by keys that are sorted for the most part.
    MergeJoin(Box<Spec>, u64, Partner),
    Concat(Vec<Spec>),
    Interleave(Vec<Spec>, usize, usize),
    Mux(Vec<Spec>, bool),
    Mix(Stop, Weights, Vec<(Spec, u8)>),
    /// Joins with an empty input, so that the order is defined.
    Greedy,
    /// Splits into this many outputs, which are concatenated or read in turn.
    Demux(usize, bool),
    /// A fork and a zip, with a filter in one branch if a divisor is given.
    ForkZip(Option<u64>),
    /// A fork with a map in one branch; the branches are read in turn.
    ForkMux,
    /// A fork with a cache of this many items in one branch; the branches are concatenated or read in
    /// turn.
    ForkCached(usize, bool),
    /// A fork, or a demux if true, whose outputs go through steps of their own.
    Branches(bool, Vec<Spec>, Read),
    /// Some steps in processes of their own.
    InProcesses(Part),
    /// A pipe that asks for processes by itself.
    Apart(u64),
    /// A user-defined pipe.
    Own(Own),
    /// User-defined joins.
    Pair(Box<Spec>),
    Alternate(Box<Spec>, u64),
    /// A user-defined split, whose outputs are read in turn or concatenated.
    Twice(bool),
}

/// The way in which the branches of a fork are read.
#[derive(Clone, Copy, Debug)]
pub enum Read {
    Mux,
    Concat,
    Interleave(usize, usize),
    Mix,
    Zip,
}

impl Read {
    fn join(self, branches: Vec<Graph<u64>>) -> Graph<u64> {
        match self {
            Read::Mux => Graph::mux(branches),
            Read::Concat => Graph::concat(branches),
            Read::Interleave(cycle, block) => {
                let interleave = Interleave::new(branches.len(), cycle, block);
                Graph::join(branches, interleave)
            }
            Read::Mix => Graph::mix(branches.into_iter().zip([3.0, 1.0, 2.0])),
            Read::Zip => {
                let pair = |a: Graph<u64>, b| a.zip(b).map(|(a, b)| a.rotate_left(1) ^ b);
                branches
                    .into_iter()
                    .reduce(pair)
                    .expect("there are branches")
            }
        }
    }
}

/// The use that a mix makes of its weights.
#[derive(Clone, Copy, Debug)]
pub enum Weights {
    OfItems,
    /// Weights of the sum of this remainder of the items.
    OfSizes(u64),
    /// Two stages, of which the second begins at this step and has the weights in reverse. Each
    /// leaves out an input, if one is given.
    Scheduled(u64, Option<usize>),
    /// A function of the step that leaves out another input after every so many steps.
    ByStep(u64),
}

impl Weights {
    fn mix(self, stop: Stop, inputs: Vec<Graph<u64>>, weights: Vec<f64>) -> Graph<u64> {
        let without = |mut weights: Vec<f64>, input: usize| {
            let inputs = weights.len();
            weights[input % inputs] = 0.0;
            weights
        };
        match self {
            Weights::OfItems => Graph::mix_until(stop, inputs.into_iter().zip(weights)),
            Weights::OfSizes(k) => {
                let size = move |n: &u64| (n % k) as usize;
                Graph::mix_by_size(stop, inputs.into_iter().zip(weights), size)
            }
            Weights::Scheduled(from, left_out) => {
                let mut stages = [weights.clone(), weights.into_iter().rev().collect()];
                if let Some(input) = left_out {
                    stages = [
                        without(stages[0].clone(), input + 1),
                        without(stages[1].clone(), input),
                    ];
                }
                let [first, then] = stages;
                Graph::mix_scheduled(stop, inputs, Schedule::new(first).then(from, then))
            }
            Weights::ByStep(every) => Graph::mix_by(stop, inputs, move |step| {
                without(weights.clone(), (step / every) as usize)
            }),
        }
    }

    /// Returns true if a mix may end before an input is exhausted, whatever the stop rule.
    fn leave_out(self) -> bool {
        matches!(self, Weights::Scheduled(_, Some(_)) | Weights::ByStep(_))
    }
}

/// Treatment of an item that has no partner.
#[derive(Clone, Copy, Debug)]
pub enum Partner {
    Dropped,
    Fails,
    Left,
}

/// Steps that run in processes of their own: the settings of a part, from which a child makes it
/// again.
#[derive(Clone, Debug, Wire)]
pub struct Part {
    pub processes: usize,
    pub crosses: Crosses,
    pub steps: Vec<Inside>,
    /// True if its nodes have names of their own. The names contain `number`, which no other part
    /// has.
    pub named: bool,
    pub number: u64,
    /// Maximum number of input items, and whether the graph is for several ranks.
    most: u64,
    ranked: bool,
}

/// The kind of items that enter and leave a part.
#[derive(Clone, Debug, Wire)]
pub enum Crosses {
    Numbers,
    /// Tensors of more than 64 KiB, so that they go through shared memory.
    Large,
    /// Batches of this many enter, and are taken apart inside.
    Batches(usize),
}

/// A step of a part.
#[derive(Clone, Debug, Wire)]
pub enum Inside {
    Map(u64),
    Spin(u64),
    Random,
    TryRandom(u64),
    Fail(u64),
    Retry(u64),
    MapAsync(u64),
    Filter(u64),
    FlatMap(u64),
    Inspect,
    /// Makes a list of up to this many items of each item, and takes the list apart.
    Unbatch(u64),
    /// Tensors as they would be the rows of batches.
    Rows,
    /// Waits for a timer, for at most this many times 50 µs.
    Wait(u64),
    /// Work on a blocking thread.
    Blocking,
    /// A large tensor in between.
    Large,
    MapInit(u64),
    MapInitRandom,
    Apart(u64),
}

/// A pipe that wants to be in processes of its own.
#[derive(Wire)]
pub struct Apart(u64);

impl Pipe<u64> for Apart {
    type Out = u64;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
        let Apart(k) = *self;
        input.each(cx, move |item| {
            Some(item.try_map(|n| {
                if n.is_multiple_of(k) {
                    Err(Error::corrupt(format!("{n} of {k}")))
                } else {
                    Ok(n ^ k)
                }
            }))
        })
    }
    fn crossing(&self) -> Option<Crossing<u64, u64>> {
        Some(Crossing::of(self))
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .is_separate_process(true)
            .arity(Arity::One)
            .settings(self.0)
    }
}

fn large(n: u64) -> Tensor {
    Tensor::from_vec(vec![n; 9000], [90, 100]).expect("as many")
}

/// Returns the number that the tensor was made of by [`large`]. Panics if the tensor is damaged.
fn small(tensor: Tensor) -> u64 {
    let values = tensor.as_slice::<u64>().expect("of integers");
    assert!(
        tensor.shape() == [90, 100] && values.iter().all(|value| *value == values[0]),
        "damaged"
    );
    values[0]
}

impl Part {
    /// Appends the part to `graph`, in processes.
    fn behind(&self, graph: Graph<u64>, most: u64, ranked: bool) -> (Graph<u64>, u64) {
        let part = Part {
            most,
            ranked,
            ..self.clone()
        };
        let (processes, most) = (part.processes, part.after());
        let graph = match part.crosses {
            Crosses::Numbers => {
                graph.in_processes_with(processes, part, |graph, part| part.grow(graph))
            }
            Crosses::Large => graph
                .map(large)
                .in_processes_with(processes, part, |graph, part| {
                    part.grow(graph.map(small)).map(large)
                })
                .map(small),
            Crosses::Batches(size) => {
                graph
                    .batch(size)
                    .in_processes_with(processes, part, |graph, part| part.grow(graph.unbatch()))
            }
        };
        (graph, most)
    }

    /// Maximum number of items that leave the part.
    fn after(&self) -> u64 {
        self.steps
            .iter()
            .fold(self.most, |most, step| step.after(most).unwrap_or(most))
    }

    /// Adds the steps: here, or in a child.
    fn grow(&self, mut graph: Graph<u64>) -> Graph<u64> {
        let mut most = self.most;
        for (place, step) in self.steps.iter().enumerate() {
            let after = step.after(most);
            graph = match after {
                Some(_) => step.add(graph, most, self.ranked),
                // A part without a step is refused.
                None => graph.filter(|_| true),
            };
            most = after.unwrap_or(most);
            if self.named {
                graph = graph.named(format!("part{}.{place}", self.number));
            }
        }
        graph
    }
}

impl Inside {
    /// Maximum number of output items for this many input items; `None` if there are too many.
    fn after(&self, most: u64) -> Option<u64> {
        match self {
            Inside::FlatMap(k) | Inside::Unbatch(k) => {
                Some(most * k).filter(|after| *after <= MOST)
            }
            _ => Some(most),
        }
    }

    fn add(&self, graph: Graph<u64>, most: u64, ranked: bool) -> Graph<u64> {
        let step = match *self {
            Inside::Map(k) => Step::Map(k),
            Inside::Spin(rounds) => Step::Spin(rounds),
            Inside::Random => Step::Random,
            Inside::TryRandom(k) => Step::TryRandom(k),
            Inside::Fail(k) => Step::Fail(k),
            Inside::Retry(k) => Step::Retry(k),
            Inside::MapAsync(times) => Step::MapAsync(times),
            Inside::Filter(k) => Step::Filter(k),
            Inside::FlatMap(k) => Step::FlatMap(k),
            Inside::Inspect => Step::Inspect,
            Inside::Apart(k) => Step::Apart(k),
            Inside::MapInit(k) => Step::MapInit(k),
            Inside::MapInitRandom => Step::MapInitRandom,
            Inside::Unbatch(k) => {
                return graph
                    .map(move |n| Vec::from_iter((0..n % (k + 1)).map(|i| n ^ i)))
                    .unbatch();
            }
            Inside::Rows => {
                let values = |pair: Tensor| fold(pair.into_vec::<u64>().expect("of integers"));
                return graph.pipe(Pairs::default()).map(values);
            }
            Inside::Wait(times) => {
                return graph.map_async(move |n| async move {
                    if n.is_multiple_of(3) {
                        tokio::time::sleep(std::time::Duration::from_micros(
                            50 * (n % (times + 1)),
                        ))
                        .await;
                    }
                    Ok::<_, Error>(n.rotate_left(1))
                });
            }
            Inside::Blocking => {
                return graph.map_async(|n| datapipes::blocking(move || n.wrapping_mul(3)));
            }
            Inside::Large => return graph.map(large).map(small),
        };
        step.add(graph, most, ranked).0
    }
}

/// A generated graph: `items` integers through some steps. `fixed` gives each step a number in
/// flight, so that it runs on workers however cheap it is.
#[derive(Clone, Debug)]
pub struct Spec {
    pub start: Start,
    pub items: u64,
    pub steps: Vec<Step>,
    pub fixed: Option<usize>,
}

/// Approximate maximum number of items in a graph. Steps that would make more are left out.
const MOST: u64 = 500;
/// Capacity for all data of these tests.
const BUFFER: usize = 1 << 20;

pub fn fold(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(7, |a, b| a.wrapping_mul(33) ^ b)
}

impl Choice {
    fn sample(self, data: Indexed<u64>) -> Indexed<u64> {
        let len = data.len();
        match self {
            Choice::Sequential => data.sampled(Sequential),
            Choice::Random => data.sampled(Random::new().within_rank()),
            // Of no samples nothing can be drawn.
            Choice::Replacement => data.sampled(Replacement::new(len + len.min(5))),
            Choice::Weighted if len > 0 => {
                data.sampled(Weighted::new((1..=len).map(|n| n as f64), len))
            }
            Choice::WeightedOnce if len > 0 => data.sampled(WeightedOnce::new(
                (1..=len).map(|n| n as f64),
                len.div_ceil(2),
            )),
            Choice::Weighted | Choice::WeightedOnce => data,
            Choice::ClassBalanced => {
                data.sampled(ClassBalanced::new((0..len).map(|n| n % 7 / 3), len))
            }
            Choice::LengthGrouped(group) => {
                data.sampled(LengthGrouped::new((0..len).map(|n| n * 31 % 17), group).stretch(3))
            }
            Choice::Subset(every) => {
                data.subset((0..len).step_by(every as usize).collect::<Subset>())
            }
        }
    }
}

impl IndexStep {
    fn add(&self, data: Indexed<u64>) -> Indexed<u64> {
        let few = data.len() * 3 <= MOST;
        // Plain data, whose numbers are its own.
        let other = |len: u64| Indexed::range(len).map(|n| n + 1_000_000);
        match *self {
            IndexStep::Shuffle => data.sampled(Random::new().within_rank()),
            IndexStep::Sampled(choice) => choice.sample(data),
            IndexStep::Repeat(rounds) if few => data.repeat(rounds),
            IndexStep::Concat(len, true) if few => Indexed::concat([data, other(len)]),
            IndexStep::Concat(_, false) if few => Indexed::concat([data.clone(), data]),
            IndexStep::Mix(len, weight, true) => {
                Indexed::mix([(data, 1.0), (other(len), f64::from(weight))])
            }
            IndexStep::Mix(len, weight, false) => {
                Indexed::mix_to_first([(data, f64::from(weight)), (other(len), 1.0)])
            }
            IndexStep::Zip => data
                .clone()
                .zip(data.sampled(Random::new().within_rank()))
                .map(|(a, b)| a.rotate_left(1) ^ b),
            IndexStep::Batch(size, false) => data.batch(size).map(fold),
            IndexStep::Batch(size, true) => data.batch(Batch::new(size).drop_last()).map(fold),
            IndexStep::Map => data.map(|n| n.wrapping_mul(31)),
            IndexStep::MapAsync => data.map_async(|n| async move {
                for _ in 0..n % 3 {
                    tokio::task::yield_now().await;
                }
                Ok::<_, Error>(n ^ 9)
            }),
            IndexStep::Fail(k) => data.try_map(move |n| {
                if n.is_multiple_of(k) {
                    Err(format!("{n} fails"))
                } else {
                    Ok(n)
                }
            }),
            IndexStep::Cache(bytes) => data.cache(bytes),
            IndexStep::Repeat(_) | IndexStep::Concat(..) => data,
        }
    }
}

impl Start {
    /// The graph, and how many items come out of it.
    fn graph(&self, items: u64) -> (Graph<u64>, u64) {
        let graph = match *self {
            Start::Indexed(ref steps) => {
                let data = Indexed::from_fn(items, |index| async move {
                    for _ in 0..index % 3 {
                        tokio::task::yield_now().await;
                    }
                    Ok::<_, Error>(index)
                });
                let data = steps.iter().fold(data, |data, step| step.add(data));
                let len = data.len();
                return (data.fetch(), len);
            }
            Start::Keys(choice, batch) => {
                let keys = choice.sample(Indexed::range(items));
                let len = keys.len();
                let graph = match batch {
                    None => keys.fetch().fetch(Squares),
                    Some(size) => keys.fetch().batch(size).fetch_batches(Squares).map(fold),
                };
                return (graph, len);
            }
            Start::Range => Graph::range(0..items),
            Start::Vector => Graph::from_vec(Vec::from_iter(0..items)),
            Start::Iterator => Graph::from_iter_with(move || 0..items),
            Start::Own(goes_on) => Graph::source(Numbers { items, goes_on }),
            Start::Ranges => Graph::source(Ranges(items)),
            Start::Stream => Graph::from_stream_with(move || {
                use futures::StreamExt;
                Ok(futures::stream::iter(0..items).then(|n| async move {
                    if n.is_multiple_of(5) {
                        tokio::task::yield_now().await;
                    }
                    Ok(n)
                }))
            }),
        };
        (graph, items)
    }
}

/// Squares, and no answer for some.
struct Squares;

#[async_trait]
impl Lookup<u64> for Squares {
    type Out = u64;

    async fn get(&self, key: u64) -> Result<u64> {
        if key % 4 == 1 {
            tokio::task::yield_now().await;
        }
        if key % 23 == 7 {
            Err(Error::not_found(format!("no {key}")))
        } else {
            Ok(key * key)
        }
    }
}

impl Spec {
    pub fn graph(&self) -> Graph<u64> {
        self.grown(None, false).0
    }

    /// Returns the graph with a sharding filter after step number `at`, or after the last step that
    /// has other inputs if that comes later.
    pub fn sharded(&self, at: usize, dealer: Dealer) -> Graph<u64> {
        let joins = self
            .steps
            .iter()
            .rposition(|step| step.has_inputs())
            .map_or(0, |place| place + 1);
        self.grown(Some((at.min(self.steps.len()).max(joins), dealer)), true)
            .0
    }

    /// The graph, and how many items come out of it at most.
    fn grown(&self, shard: Option<(usize, Dealer)>, ranked: bool) -> (Graph<u64>, u64) {
        let start = match &self.start {
            // A source that says it has fewer items than there are ranks is refused.
            Start::Range | Start::Vector | Start::Ranges if ranked => &Start::Iterator,
            start => start,
        };
        let (mut graph, mut most) = start.graph(self.items);
        if ranked && matches!(start, Start::Indexed(_) | Start::Keys(..)) {
            graph = graph.through(|items: Items<u64>| items);
        }
        for place in 0..=self.steps.len() {
            if let Some((_, dealer)) = shard.filter(|&(at, _)| at == place) {
                graph = dealer.add(graph);
            }
            let Some(step) = self.steps.get(place) else {
                break;
            };
            (graph, most) = self.add(step, (graph, most), ranked);
        }
        (graph, most)
    }

    /// Adds the steps to a graph of at most so many items.
    fn grown_on(&self, graph: (Graph<u64>, u64), ranked: bool) -> (Graph<u64>, u64) {
        let steps = self.steps.iter();
        steps.fold(graph, |graph, step| self.add(step, graph, ranked))
    }

    fn add(
        &self,
        step: &Step,
        (graph, most): (Graph<u64>, u64),
        ranked: bool,
    ) -> (Graph<u64>, u64) {
        let (graph, most) = step.add(graph, most, ranked);
        match self.fixed {
            Some(pieces) => (graph.concurrency(pieces), most),
            None => (graph, most),
        }
    }

    /// Returns true if the output, as a multiset, depends on the order of the input. The output may
    /// then differ where the loader is not asked for strict order. A step that needs order makes
    /// everything upstream of it strict.
    pub fn groups(&self) -> bool {
        let loose = |groups, step: &Step| !step.needs_order() && (groups || step.groups());
        self.steps.iter().fold(false, loose)
    }

    /// Returns true if `found` is true of any step here or in a graph that is an input.
    pub fn any(&self, found: &dyn Fn(&Step) -> bool) -> bool {
        self.steps
            .iter()
            .any(|step| found(step) || step.inputs().any(|input| input.any(found)))
    }

    /// Returns true if the graph begins with data that is read by index.
    pub fn is_by_index(&self) -> bool {
        matches!(self.start, Start::Indexed(_) | Start::Keys(..))
            || self
                .steps
                .iter()
                .any(|step| step.inputs().any(Spec::is_by_index))
    }

    /// Returns true if a cache is read again in the same epoch after a pass that was not read to
    /// its end. Timing decides then if the cache has seen the end of that pass.
    fn caches_by_chance(&self) -> bool {
        let again = |step: &Step| {
            let mixed = |stop: &Stop| matches!(stop, Stop::CycleUntilAll | Stop::CycleForever);
            matches!(
                step,
                Step::Repeat(_) | Step::RepeatCached(..) | Step::Cycle(_)
            ) || matches!(step, Step::Mix(stop, ..) if mixed(stop))
        };
        self.any(&|step| {
            matches!(
                step,
                Step::Cache(_) | Step::RepeatCached(..) | Step::ForkCached(..)
            )
        }) && self.any(&again)
            && self.any(&Step::ends_early)
    }

    /// Returns true if a fork of which one branch has a cache is read again past the cache in the same
    /// epoch, which `build` refuses. `repeated` if this graph is.
    fn passes_cache_by(&self, mut repeated: bool) -> bool {
        self.steps.iter().rev().any(|step| {
            let cycled = matches!(
                step,
                Step::Mix(Stop::CycleUntilAll | Stop::CycleForever, ..)
            );
            let refused = match step {
                Step::Repeat(_) | Step::Cycle(_) | Step::RepeatCached(..) => {
                    repeated = true;
                    false
                }
                Step::Cache(_) => {
                    repeated = false;
                    false
                }
                Step::ForkCached(..) => repeated,
                _ => false,
            };
            repeated |= cycled;
            refused || step.inputs().any(|input| input.passes_cache_by(repeated))
        })
    }
}

impl Spec {
    /// Gives each part a number of its own.
    fn number(&mut self, next: &mut u64) {
        for step in &mut self.steps {
            if let Step::InProcesses(part) = step {
                part.number = *next;
                *next += 1;
            }
            step.inputs_mut()
                .into_iter()
                .for_each(|input| input.number(next));
        }
    }
}

impl Step {
    fn inputs_mut(&mut self) -> Vec<&mut Spec> {
        match self {
            Step::Zip(a, _)
            | Step::Pair(a)
            | Step::Alternate(a, _)
            | Step::JoinByKey(a, ..)
            | Step::MergeJoin(a, ..) => vec![a],
            Step::Zip3(a, b) => vec![a, b],
            Step::Concat(inputs) | Step::Interleave(inputs, ..) | Step::Mux(inputs, _) => {
                inputs.iter_mut().collect()
            }
            Step::Mix(_, _, inputs) => inputs.iter_mut().map(|(input, _)| input).collect(),
            Step::Branches(_, branches, _) => branches.iter_mut().collect(),
            _ => vec![],
        }
    }

    /// The graphs that are second inputs.
    fn inputs(&self) -> impl Iterator<Item = &Spec> {
        let inputs: Vec<&Spec> = match self {
            Step::Zip(a, _)
            | Step::Pair(a)
            | Step::Alternate(a, _)
            | Step::JoinByKey(a, ..)
            | Step::MergeJoin(a, ..) => vec![a],
            Step::Zip3(a, b) => vec![a, b],
            Step::Concat(inputs) | Step::Interleave(inputs, ..) | Step::Mux(inputs, _) => {
                inputs.iter().collect()
            }
            Step::Mix(_, _, inputs) => inputs.iter().map(|(input, _)| input).collect(),
            Step::Branches(_, branches, _) => branches.iter().collect(),
            _ => vec![],
        };
        inputs.into_iter()
    }

    fn has_inputs(&self) -> bool {
        self.inputs().next().is_some() || matches!(self, Step::Greedy)
    }

    /// Returns true if the step makes the planner use strict order upstream of it.
    fn needs_order(&self) -> bool {
        use Step::*;
        match self {
            Batch { drop_last, .. } | Bucket { drop_last, .. } => *drop_last,
            Mux(_, stop_at_first) => *stop_at_first,
            Mix(_, Weights::OfSizes(_), _) => true,
            Mix(..) => self.ends_early(),
            Scan(_) | Enumerate | Through | Take(_) | Skip(_) | Cycle(_) | Sample(_) => true,
            // RepeatCached and ForkCached may be left out, where they would make too many items.
            Cache(_) => true,
            Zip(..) | Zip3(..) | MergeJoin(..) | ForkZip(_) | Pair(_) | Alternate(..) => true,
            Branches(_, _, Read::Zip) => true,
            Own(own) => own.needs_order(),
            _ => false,
        }
    }

    /// Returns true if the output depends on which items are neighbours.
    fn groups(&self) -> bool {
        use Step::*;
        matches!(
            self,
            Batch { .. }
                | Bucket { .. }
                | Padded(_)
                | PaddedPairs(_)
                | Collate(_)
                | Rows(_)
                | CollateWith(_)
        ) || matches!(self, Own(own) if own.groups())
            || self.inputs().any(Spec::groups)
    }

    /// Returns true if the step may end before its inputs do, so that some of their items are never
    /// used.
    pub fn ends_early(&self) -> bool {
        use Step::*;
        match self {
            Scan(most) => most.is_some(),
            Mux(_, stop_at_first) => *stop_at_first,
            Mix(stop, weights, _) => *stop != Stop::AllExhausted || weights.leave_out(),
            Take(_) | Cycle(_) | Zip(..) | Zip3(..) | MergeJoin(..) | ForkZip(_) => true,
            Pair(_) | Alternate(..) | Branches(_, _, Read::Zip) => true,
            _ => false,
        }
    }

    fn add(&self, graph: Graph<u64>, most: u64, ranked: bool) -> (Graph<u64>, u64) {
        let fails = |k: u64| {
            move |n: u64| {
                if n.is_multiple_of(k) {
                    Err(format!("{n} is divisible by {k}"))
                } else {
                    Ok(n)
                }
            }
        };
        // If ranks share the graph, the filter is downstream of the join, and inputs are not
        // sharded themselves.
        let others = |specs: &[Spec]| -> (Vec<Graph<u64>>, u64) {
            let grown: Vec<_> = specs.iter().map(|spec| spec.grown(None, ranked)).collect();
            let most = grown.iter().map(|(_, most)| most).sum();
            (grown.into_iter().map(|(graph, _)| graph).collect(), most)
        };
        let graph = match *self {
            Step::Map(k) => graph.map(move |n| n.wrapping_mul(31).wrapping_add(k)),
            Step::Spin(rounds) => graph.map(move |n| {
                (0..rounds * (1 + n % 7)).fold(n, |n, i| std::hint::black_box(n.rotate_left(3) ^ i))
            }),
            Step::Random => graph.map_with_rng(|n, rng| n ^ rng.below(1 << 20)),
            Step::TryRandom(k) => graph.try_map_with_rng(move |n, rng| {
                if rng.below(k) == 0 {
                    Err("unlucky")
                } else {
                    Ok(n)
                }
            }),
            Step::Fail(k) => graph.try_map(fails(k)),
            Step::Retry(k) => graph.pipe(Retry::new(TryMap::new(fails(k)), 2)),
            Step::MapAsync(times) => graph.map_async(move |n| async move {
                for _ in 0..times * (n % 3) {
                    tokio::task::yield_now().await;
                }
                Ok::<_, Error>(n ^ 5)
            }),
            Step::Filter(k) => graph.filter(move |n| n % k != 0),
            Step::FlatMap(k) if most * k <= MOST => {
                return (
                    graph.flat_map(move |n| (0..n % (k + 1)).map(move |i| n ^ i)),
                    most * k,
                );
            }
            Step::Scan(limit) => graph.scan_resumable((0u64, 0u64), move |(sum, seen), n| {
                (*sum, *seen) = (sum.wrapping_mul(3) ^ n, *seen + 1);
                limit.is_none_or(|limit| *seen <= limit).then_some(*sum)
            }),
            Step::Inspect => graph.inspect(|n| _ = std::hint::black_box(*n)),
            Step::Digest => graph.digest(&Digest::new(), |n| n.to_le_bytes()),
            Step::Enumerate => graph.enumerate().map(|(k, n)| n.rotate_left(9) ^ k),
            Step::Through => graph.through(|items: Items<u64>| items),
            Step::Take(items) => graph.take(items),
            Step::Skip(items) => graph.skip(items),
            Step::Batch {
                size,
                drop_last: false,
            } => graph.batch(size).map(fold),
            Step::Batch {
                size,
                drop_last: true,
            } => graph.batch(Batch::new(size).drop_last()).map(fold),
            Step::Padded(size) => {
                let sequences = graph.map(|n| vec![n; (n % 4) as usize]);
                sequences.padded_batch(size, 1u64).map(|(batch, lengths)| {
                    let lengths = lengths.as_bytes().iter().map(|&byte| byte.into());
                    fold(
                        batch
                            .into_vec::<u64>()
                            .expect("of integers")
                            .into_iter()
                            .chain(lengths),
                    )
                })
            }
            Step::PaddedPairs(size) => {
                let pairs = graph.map(|n| (vec![n; (n % 4) as usize], n));
                let padding = Padding::new(1).multiple_of(3);
                pairs
                    .padded_batch(size, (padding, ()))
                    .map(|((batch, lengths), labels)| {
                        assert_eq!(batch.shape()[0], lengths.len());
                        let values = [batch, labels]
                            .map(|tensor| tensor.into_vec::<u64>().expect("of integers"));
                        fold(values.concat())
                    })
            }
            Step::MapInit(k) => graph.try_map_init(
                || Ok::<_, Error>(Vec::new()),
                move |seen: &mut Vec<u64>, n: u64| {
                    seen.push(n);
                    fails(k)(n)
                },
            ),
            Step::MapInitRandom => graph.map_init_with_rng(
                || 0,
                |sum, n, rng| {
                    *sum ^= n;
                    n ^ rng.below(1 << 20)
                },
            ),
            Step::JoinByKey(ref other, keys, partner) => {
                let inputs = (graph, other.grown(None, ranked).0);
                let join = HashJoin::new(move |n: &u64| n % keys, move |n: &u64| n % keys);
                joined(inputs, partner, join, HashJoin::strict, HashJoin::left)
            }
            Step::MergeJoin(ref other, keys, partner) => {
                let inputs = (graph, other.grown(None, ranked).0);
                let join = MergeJoin::new(move |n: &u64| n / keys, move |n: &u64| n / keys);
                joined(inputs, partner, join, MergeJoin::strict, MergeJoin::left)
            }
            Step::Bucket {
                boundary,
                sizes,
                drop_last,
            } => {
                let pipe = BucketBatch::new(|n: &u64| (n % 20) as usize, [boundary], sizes);
                graph
                    .pipe(if drop_last { pipe.drop_last() } else { pipe })
                    .map(fold)
            }
            Step::Rebatch(size) => graph.batch(size).unbatch(),
            Step::Collate(size) => graph
                .batch(size)
                .collate()
                .map(|tensor| fold(tensor.into_vec::<u64>().expect("of integers"))),
            Step::Rows(size) => graph
                .pipe(Pairs::default())
                .batch(size)
                .collate()
                .map(|tensor| fold(tensor.into_vec::<u64>().expect("of integers"))),
            Step::CollateWith(size) => graph
                .batch(size)
                .collate_with(|batch| Ok::<_, Error>(fold(batch))),
            Step::Shuffle(buffer) if ranked => graph.shuffle(Shuffle::new(buffer).within_rank()),
            Step::Shuffle(buffer) => graph.shuffle(buffer),
            Step::SortWindow(items, k) => graph.sort_window(items, move |n| n % k),
            Step::Prefetch(items) => graph.prefetch(items),
            Step::Repeat(rounds) if most * rounds <= MOST => {
                return (graph.repeat(rounds), most * rounds);
            }
            Step::Cycle(items) => return (graph.cycle().take(items), items),
            Step::Cache(items) => graph.cache(items),
            Step::RepeatCached(rounds, items) if 2 * rounds * most <= MOST => {
                return (
                    graph.repeat(rounds).cache(items).repeat(2),
                    2 * rounds * most,
                );
            }
            Step::Sample(items) => graph.sample(items),
            Step::SampleWith(percent) => graph.sample_with(f64::from(percent) / 100.0),
            Step::Zip(ref other, strict) => {
                let inputs = (graph, other.grown(None, ranked).0);
                let zip = if strict {
                    Zip::new().strict()
                } else {
                    Zip::new()
                };
                Graph::join(inputs, zip).map(|(a, b)| a.rotate_left(1) ^ b)
            }
            Step::Own(own) if most * own.times() <= MOST => {
                return (own.add(graph, ranked), most * own.times().max(1));
            }
            Step::Pair(ref other) => Graph::join((graph, other.grown(None, ranked).0), Pair),
            Step::Alternate(ref other, every) => {
                let (other, more) = other.grown(None, ranked);
                return (Graph::join((graph, other), Alternate(every)), most + more);
            }
            Step::Zip3(ref b, ref c) => {
                let (b, c) = (b.grown(None, ranked).0, c.grown(None, ranked).0);
                graph
                    .zip3(b, c)
                    .map(|(a, b, c)| a.rotate_left(1) ^ b ^ c.rotate_left(2))
            }
            Step::Concat(ref inputs) => {
                let (others, more) = others(inputs);
                return (
                    Graph::concat(std::iter::once(graph).chain(others)),
                    most + more,
                );
            }
            Step::Interleave(ref inputs, cycle, block) => {
                let (others, more) = others(inputs);
                let inputs = Vec::from_iter(std::iter::once(graph).chain(others));
                let interleave = Interleave::new(inputs.len(), cycle, block);
                return (Graph::join(inputs, interleave), most + more);
            }
            Step::Mux(ref inputs, stop_at_first) => {
                let (others, more) = others(inputs);
                let inputs = Vec::from_iter(std::iter::once(graph).chain(others));
                let mux = Mux::new(inputs.len());
                let mux = if stop_at_first {
                    mux.stop_at_first()
                } else {
                    mux
                };
                return (Graph::join(inputs, mux), most + more);
            }
            Step::Mix(stop, how, ref inputs) => {
                let (specs, weights): (Vec<Spec>, Vec<u8>) = inputs.iter().cloned().unzip();
                let (others, more) = others(&specs);
                let weights = std::iter::once(1.0).chain(weights.into_iter().map(f64::from));
                let inputs = std::iter::once(graph).chain(others).collect();
                let mixed = how.mix(stop, inputs, weights.collect());
                return match stop {
                    Stop::FirstExhausted | Stop::AllExhausted => (mixed, most + more),
                    _ => (mixed.take(MOST / 2), MOST / 2),
                };
            }
            Step::Greedy => Graph::greedy_join([Graph::from_iter_with(|| 0..0), graph]),
            Step::Demux(outputs, in_turn) => {
                let demux = Demux::new(outputs, move |n: &u64| (n % outputs as u64) as usize)
                    .buffer(BUFFER);
                let outputs = graph.split(demux);
                if in_turn {
                    Graph::mux(outputs)
                } else {
                    Graph::concat(outputs)
                }
            }
            Step::ForkZip(filter) => {
                let mut outputs = graph.split(Fork::new(2).buffer(BUFFER));
                let (b, a) = (
                    outputs.pop().expect("two outputs"),
                    outputs.pop().expect("two outputs"),
                );
                let b = match filter {
                    Some(k) => b.filter(move |n| n % k != 0),
                    None => b.map(|n| n ^ 77),
                };
                a.zip(b).map(|(a, b)| a.rotate_left(1) ^ b)
            }
            Step::Twice(in_turn) if 2 * most <= MOST => {
                let mut outputs = graph.split(Twice);
                let b = outputs.pop().expect("two outputs").map(|n| n ^ 77);
                outputs.push(b);
                let read = if in_turn { Graph::mux } else { Graph::concat };
                return (read(outputs), 2 * most);
            }
            Step::ForkMux if 2 * most <= MOST => {
                let [a, b] = graph.fork();
                return (Graph::mux([a, b.map(|n| n ^ 77)]), 2 * most);
            }
            Step::ForkCached(items, in_turn) if 2 * most <= MOST => {
                let mut outputs = graph.split(Fork::new(2).buffer(BUFFER));
                let past = outputs.pop().expect("two outputs").map(|n| n ^ 77);
                let cached = outputs.pop().expect("two outputs").cache(items);
                let read = if in_turn { Graph::mux } else { Graph::concat };
                return (read(vec![cached, past]), 2 * most);
            }
            Step::Branches(deals, ref branches, read) if branches.len() as u64 * most <= MOST => {
                let count = branches.len();
                let outputs = match deals {
                    true => {
                        let class = move |n: &u64| (n % count as u64) as usize;
                        graph.split(Demux::new(count, class).buffer(BUFFER))
                    }
                    false => graph.split(Fork::new(count).buffer(BUFFER)),
                };
                let grown = branches.iter().zip(outputs);
                let grown = grown.map(|(branch, output)| branch.grown_on((output, most), ranked));
                let (branches, most): (Vec<_>, Vec<u64>) = grown.unzip();
                return (read.join(branches), most.into_iter().sum());
            }
            Step::InProcesses(ref part) => return part.behind(graph, most, ranked),
            Step::Apart(k) => graph.pipe(Apart(k)),
            Step::FlatMap(_) | Step::Repeat(_) | Step::ForkMux | Step::Twice(_) | Step::Own(_) => {
                graph
            }
            Step::RepeatCached(..) | Step::ForkCached(..) | Step::Branches(..) => graph,
        };
        (graph, most)
    }
}

/// Joins by key, and makes an integer of each pair.
fn joined<J, L>(
    inputs: (Graph<u64>, Graph<u64>),
    partner: Partner,
    join: J,
    strict: fn(J) -> J,
    left: fn(J) -> L,
) -> Graph<u64>
where
    J: Join<(u64, u64), Out = (u64, u64)>,
    L: Join<(u64, u64), Out = (u64, Option<u64>)>,
{
    let pair = |(a, b): (u64, u64)| a.rotate_left(1) ^ b;
    match partner {
        Partner::Dropped => Graph::join(inputs, join).map(pair),
        Partner::Fails => Graph::join(inputs, strict(join)).map(pair),
        Partner::Left => {
            Graph::join(inputs, left(join)).map(|(a, b)| a.rotate_left(1) ^ b.unwrap_or(77))
        }
    }
}

/// A step; the graphs that are its inputs nest so deep. With `apart` some run in processes.
fn step(depth: u32, apart: bool) -> BoxedStrategy<Step> {
    let alone = prop_oneof![
        3 => (0u64..1000).prop_map(Step::Map),
        2 => (1u64..500).prop_map(Step::Spin),
        2 => Just(Step::Random),
        1 => (2u64..40).prop_map(Step::TryRandom),
        2 => (2u64..40).prop_map(Step::Fail),
        1 => (2u64..40).prop_map(Step::Retry),
        2 => (0u64..3).prop_map(Step::MapAsync),
        2 => (1u64..6).prop_map(Step::Filter),
        2 => (1u64..4).prop_map(Step::FlatMap),
        1 => prop::option::of(0u64..200).prop_map(Step::Scan),
        1 => Just(Step::Inspect),
        1 => Just(Step::Digest),
        1 => Just(Step::Enumerate),
        1 => Just(Step::Through),
        1 => (0u64..200).prop_map(Step::Take),
        1 => (0u64..50).prop_map(Step::Skip),
        1 => (1usize..12, any::<bool>()).prop_map(|(size, drop_last)| Step::Batch { size, drop_last }),
        1 => (1usize..12).prop_map(Step::Padded),
        1 => (1usize..12).prop_map(Step::PaddedPairs),
        1 => (2u64..40).prop_map(Step::MapInit),
        1 => Just(Step::MapInitRandom),
        1 => (0usize..20, 1usize..6, 1usize..6, any::<bool>())
            .prop_map(|(boundary, a, b, drop_last)| Step::Bucket { boundary, sizes: [a, b], drop_last }),
        2 => (1usize..12).prop_map(Step::Rebatch),
        1 => (1usize..12).prop_map(Step::Collate),
        1 => (1usize..12).prop_map(Step::Rows),
        1 => (1usize..12).prop_map(Step::CollateWith),
        3 => (1usize..50).prop_map(Step::Shuffle),
        1 => (1usize..50, 1u64..40).prop_map(|(items, k)| Step::SortWindow(items, k)),
        2 => (1usize..20).prop_map(Step::Prefetch),
        1 => (1u64..4).prop_map(Step::Repeat),
        1 => (0u64..300).prop_map(Step::Cycle),
        1 => (0usize..400).prop_map(Step::Cache),
        1 => (1u64..3, 0usize..400).prop_map(|(rounds, items)| Step::RepeatCached(rounds, items)),
        1 => (0usize..400, any::<bool>()).prop_map(|(items, in_turn)| Step::ForkCached(items, in_turn)),
        1 => (1usize..100).prop_map(Step::Sample),
        1 => (0u32..=100).prop_map(Step::SampleWith),
        1 => Just(Step::Greedy),
        1 => (1usize..4, any::<bool>()).prop_map(|(outputs, in_turn)| Step::Demux(outputs, in_turn)),
        1 => prop::option::of(1u64..5).prop_map(Step::ForkZip),
        1 => Just(Step::ForkMux),
        1 => any::<bool>().prop_map(Step::Twice),
        8 => own().prop_map(Step::Own),
    ];
    let alone = if apart {
        prop_oneof![
            30 => alone,
            5 => part().prop_map(Step::InProcesses),
            3 => (2u64..40).prop_map(Step::Apart),
        ]
        .boxed()
    } else {
        alone.boxed()
    };
    if depth == 0 {
        return alone;
    }
    let input = || small_spec(depth - 1, apart);
    let inputs = || prop::collection::vec(input(), 1..3);
    let partner = || {
        prop_oneof![
            Just(Partner::Dropped),
            Just(Partner::Fails),
            Just(Partner::Left)
        ]
    };
    let stop = prop_oneof![
        Just(Stop::FirstExhausted),
        Just(Stop::AllExhausted),
        Just(Stop::CycleUntilAll),
        Just(Stop::CycleForever)
    ];
    let weights = prop_oneof![
        2 => Just(Weights::OfItems),
        1 => (1u64..20).prop_map(Weights::OfSizes),
        1 => (1u64..60, prop::option::of(0usize..3))
            .prop_map(|(from, left_out)| Weights::Scheduled(from, left_out)),
        1 => (1u64..20).prop_map(Weights::ByStep),
    ];
    prop_oneof![
        24 => alone,
        1 => (input(), any::<bool>()).prop_map(|(other, strict)| Step::Zip(Box::new(other), strict)),
        1 => input().prop_map(|other| Step::Pair(Box::new(other))),
        1 => (input(), 0u64..5).prop_map(|(other, every)| Step::Alternate(Box::new(other), every)),
        1 => (input(), input()).prop_map(|(b, c)| Step::Zip3(Box::new(b), Box::new(c))),
        1 => (input(), 1u64..60, partner()).prop_map(|(other, keys, partner)| {
            Step::JoinByKey(Box::new(other), keys, partner)
        }),
        1 => (input(), 1u64..4, partner()).prop_map(|(other, keys, partner)| {
            Step::MergeJoin(Box::new(other), keys, partner)
        }),
        3 => (any::<bool>(), prop::collection::vec(branch(), 1..4), read())
            .prop_map(|(deals, branches, read)| Step::Branches(deals, branches, read)),
        1 => inputs().prop_map(Step::Concat),
        1 => (inputs(), 1usize..4, 1usize..5).prop_map(|(inputs, cycle, block)| {
            Step::Interleave(inputs, cycle, block)
        }),
        1 => (inputs(), any::<bool>()).prop_map(|(inputs, stop)| Step::Mux(inputs, stop)),
        4 => (stop, weights, prop::collection::vec((input(), 1u8..4), 1..3))
            .prop_map(|(stop, weights, inputs)| Step::Mix(stop, weights, inputs)),
    ]
    .boxed()
}

/// A branch of a fork: steps alone. Where each runs its upstream anew, or keeps it, snapshots of the
/// fork cannot be told apart.
fn branch() -> impl Strategy<Value = Spec> {
    let again = |step: &Step| {
        matches!(
            step,
            Step::Repeat(_)
                | Step::Cycle(_)
                | Step::Cache(_)
                | Step::RepeatCached(..)
                | Step::ForkCached(..)
        )
    };
    let step = step(0, false).prop_filter("runs the fork again", move |step| !again(step));
    (
        prop::collection::vec(step, 0..3),
        prop::option::weighted(0.3, 1usize..20),
    )
        .prop_map(|(steps, fixed)| Spec {
            start: Start::Range,
            items: 0,
            steps,
            fixed,
        })
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        Just(Read::Mux),
        Just(Read::Concat),
        (1usize..4, 1usize..5).prop_map(|(cycle, block)| Read::Interleave(cycle, block)),
        Just(Read::Mix),
        Just(Read::Zip),
    ]
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        3 => Just(Start::Range),
        1 => Just(Start::Vector),
        1 => Just(Start::Iterator),
        1 => Just(Start::Stream),
        2 => goes_on().prop_map(Start::Own),
        1 => Just(Start::Ranges),
        3 => prop::collection::vec(index_step(), 0..6).prop_map(Start::Indexed),
        1 => (choice(), prop::option::of(1usize..9)).prop_map(|(choice, batch)| Start::Keys(choice, batch)),
    ]
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        Just(Choice::Sequential),
        Just(Choice::Random),
        Just(Choice::Replacement),
        Just(Choice::Weighted),
        Just(Choice::WeightedOnce),
        Just(Choice::ClassBalanced),
        (1usize..9).prop_map(Choice::LengthGrouped),
        (1u64..4).prop_map(Choice::Subset),
    ]
}

fn index_step() -> impl Strategy<Value = IndexStep> {
    prop_oneof![
        2 => Just(IndexStep::Shuffle),
        2 => choice().prop_map(IndexStep::Sampled),
        1 => (1u64..4).prop_map(IndexStep::Repeat),
        1 => (0u64..40, any::<bool>()).prop_map(|(len, other)| IndexStep::Concat(len, other)),
        1 => (0u64..40, 1u8..5, any::<bool>()).prop_map(|(len, weight, all)| IndexStep::Mix(len, weight, all)),
        1 => Just(IndexStep::Zip),
        1 => (1usize..6, any::<bool>()).prop_map(|(size, drop_last)| IndexStep::Batch(size, drop_last)),
        1 => Just(IndexStep::Map),
        1 => Just(IndexStep::MapAsync),
        1 => (2u64..40).prop_map(IndexStep::Fail),
        1 => (0usize..20_000).prop_map(IndexStep::Cache),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    let inside = prop_oneof![
        2 => (0u64..1000).prop_map(Inside::Map),
        2 => (1u64..500).prop_map(Inside::Spin),
        1 => (5000u64..20_000).prop_map(Inside::Spin),
        2 => Just(Inside::Random),
        1 => (2u64..40).prop_map(Inside::TryRandom),
        2 => (2u64..40).prop_map(Inside::Fail),
        1 => (2u64..40).prop_map(Inside::Retry),
        1 => (0u64..3).prop_map(Inside::MapAsync),
        2 => (1u64..6).prop_map(Inside::Filter),
        2 => (1u64..4).prop_map(Inside::FlatMap),
        1 => Just(Inside::Inspect),
        1 => (1u64..4).prop_map(Inside::Unbatch),
        1 => Just(Inside::Rows),
        1 => (1u64..4).prop_map(Inside::Wait),
        1 => Just(Inside::Blocking),
        1 => Just(Inside::Large),
        1 => (2u64..40).prop_map(Inside::MapInit),
        1 => Just(Inside::MapInitRandom),
        1 => (2u64..40).prop_map(Inside::Apart),
    ];
    let crosses = prop_oneof![
        4 => Just(Crosses::Numbers),
        1 => Just(Crosses::Large),
        2 => (1usize..12).prop_map(Crosses::Batches),
    ];
    let steps = prop::collection::vec(inside, 1..5);
    (1usize..4, crosses, steps, any::<bool>()).prop_map(|(processes, crosses, steps, named)| Part {
        processes,
        crosses,
        steps,
        named,
        number: 0,
        most: 0,
        ranked: false,
    })
}

/// A graph that is the input of another.
fn small_spec(depth: u32, apart: bool) -> BoxedStrategy<Spec> {
    (
        start(),
        0u64..40,
        prop::collection::vec(step(depth, apart), 0..3),
    )
        .prop_map(|(start, items, steps)| Spec {
            start,
            items,
            steps,
            fixed: None,
        })
        .boxed()
}

pub fn spec() -> impl Strategy<Value = Spec> {
    (
        start(),
        0u64..200,
        prop::collection::vec(step(2, false), 0..7),
        prop::option::of(1usize..40),
    )
        .prop_map(|(start, items, steps, fixed)| Spec {
            start,
            items,
            steps,
            fixed,
        })
        .prop_filter(
            "whether a pass comes to its end unseen is a matter of time",
            |spec| !spec.caches_by_chance() && !spec.passes_cache_by(false),
        )
}

/// Generates graphs as [`spec`] does, with at least one part in processes of its own.
pub fn spec_apart() -> impl Strategy<Value = Spec> {
    let steps = || prop::collection::vec(step(1, true), 0..3);
    let part =
        prop_oneof![4 => part().prop_map(Step::InProcesses), 1 => (2u64..40).prop_map(Step::Apart)];
    (
        start(),
        0u64..150,
        (steps(), part, steps()),
        prop::option::weighted(0.3, 1usize..40),
    )
        .prop_map(|(start, items, (above, part, below), fixed)| {
            let steps = above.into_iter().chain([part]).chain(below).collect();
            let mut spec = Spec {
                start,
                items,
                steps,
                fixed,
            };
            spec.number(&mut 0);
            spec
        })
        .prop_filter(
            "whether a pass comes to its end unseen is a matter of time",
            |spec| !spec.caches_by_chance() && !spec.passes_cache_by(false),
        )
}

/// Configures a property that is tried on so many graphs in the gate; see [`cases`].
pub fn config(usual: u32) -> ProptestConfig {
    let cases = cases(usual, "PROPTEST_CASES");
    // Some tell nothing: there may be more of these where there are more in all.
    ProptestConfig {
        cases,
        max_global_rejects: cases.max(256) * 4,
        ..ProptestConfig::default()
    }
}

/// Number of graphs with processes to try. Each of them starts processes in every run.
pub fn cases_apart(usual: u32) -> u32 {
    cases(usual, "DATAPIPES_PROCESS_CASES")
}

/// Number of graphs to try: what the variable says, otherwise as in all long tests; other ones in
/// each run.
fn cases(usual: u32, variable: &str) -> u32 {
    let said = std::env::var(variable).ok();
    let said = said.and_then(|cases| cases.parse().ok());
    said.unwrap_or_else(|| testing::cases(usual as usize) as u32)
}

/// Settings with which a graph is run.
#[derive(Clone, Debug)]
pub struct Run {
    pub workers: usize,
    pub prefetch: usize,
    pub order: Order,
    pub seed: u64,
    pub epoch: u64,
    /// Requests in flight, and bytes on all edges.
    pub limits: Option<(usize, usize)>,
}

/// The result of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Items with their origins, and the error at the end, if there was one.
    pub items: Vec<Result<(u64, String), String>>,
    /// Skipped errors, sorted by their text.
    pub skipped: Vec<String>,
}

impl Outcome {
    /// Returns the outcome with sorted items.
    pub fn sorted(mut self) -> Outcome {
        self.items.sort();
        self
    }
}

/// Both are the same. Where an error ends the epoch, another order may have given other items before.
pub fn same_outcome(other: Outcome, strict: Outcome) -> Result<(), TestCaseError> {
    let ends = |outcome: &Outcome| outcome.items.iter().any(Result::is_err);
    match ends(&strict) {
        true => prop_assert!(ends(&other), "no error ends {other:?}"),
        false => prop_assert_eq!(other, strict),
    }
    Ok(())
}

impl Run {
    pub fn inline(seed: u64, epoch: u64) -> Run {
        Run {
            workers: 0,
            prefetch: 0,
            order: Order::Strict,
            seed,
            epoch,
            limits: None,
        }
    }

    pub fn builder(&self, graph: Graph<u64>) -> datapipes::loader::Builder<u64> {
        let builder = DataLoader::builder(graph)
            .workers(self.workers)
            .prefetch(self.prefetch)
            .order(self.order)
            .seed(self.seed)
            .processes(2)
            .on_error(OnError::skip(u64::MAX))
            .ranks_agree();
        match self.limits {
            Some((in_flight, memory)) => builder.concurrency(in_flight).memory(memory),
            None => builder,
        }
    }

    pub fn loader(&self, spec: &Spec) -> DataLoader<u64> {
        self.builder(spec.graph())
            .build()
            .expect("generated graphs are right")
    }

    /// Runs one epoch of a fresh graph.
    pub fn outcome(&self, spec: &Spec) -> Outcome {
        self.outcome_of(spec.graph(), |builder| builder)
    }

    /// Runs one epoch of any graph, with more settings.
    pub fn outcome_of(
        &self,
        graph: Graph<u64>,
        set: impl FnOnce(datapipes::loader::Builder<u64>) -> datapipes::loader::Builder<u64>,
    ) -> Outcome {
        let loader = set(self.builder(graph).on_error(OnError::skip(u64::MAX))).build();
        let loader = loader.expect("generated graphs are right");
        let items = items(loader.epoch(self.epoch));
        let mut skipped = skipped(loader.stats());
        skipped.sort();
        Outcome { items, skipped }
    }
}

/// Returns the errors of the items that an epoch skipped.
pub fn skipped(stats: Option<Stats>) -> Vec<String> {
    let skipped = stats.map(|stats| stats.skipped_items).unwrap_or_default();
    skipped.into_iter().map(|item| item.error).collect()
}

/// The items of an epoch with their origins; an error as text.
pub fn items(epoch: datapipes::Epoch<u64>) -> Vec<Result<(u64, String), String>> {
    let shown = |item: datapipes::Item<u64>| (*item, item.origin().to_string());
    epoch
        .blocking()
        .items()
        .map(|item| item.map(shown).map_err(|error| error.to_string()))
        .collect()
}

pub fn strict_run() -> impl Strategy<Value = Run> {
    let workers = prop_oneof![1 => Just(0usize), 3 => Just(1), 3 => Just(2), 3 => Just(8)];
    let limits = prop::option::weighted(0.3, (1usize..10, 1usize..5000));
    (workers, 1usize..=64, 0u64..4, 0u64..3, limits).prop_map(
        |(workers, prefetch, seed, epoch, limits)| Run {
            workers,
            prefetch,
            order: Order::Strict,
            seed,
            epoch,
            limits,
        },
    )
}

/// Any policy for ranks that do not come out even.
pub fn uneven() -> impl Strategy<Value = Uneven> {
    prop_oneof![
        Just(Uneven::Drop),
        Just(Uneven::Pad),
        Just(Uneven::Allow),
        Just(Uneven::Error)
    ]
}
