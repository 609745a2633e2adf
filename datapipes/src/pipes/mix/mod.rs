//! Mixes inputs by weight, in exact shares.

mod count;
pub(crate) mod fair_share;
mod schedule;
mod sized;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;

use futures::StreamExt;

pub use schedule::Schedule;
pub use sized::MixBySize;

use super::repeat::run_rounds;
use crate::{
    Context, Graph, Hints, Item, Items, Join, Origin, Rerun, Result, Role, Upstream, Wire,
};
use turns::{ByStep, Turns, TurnsState};

/// Mixes inputs by weight, in exact shares; see [`Graph::mix`].
#[derive(Clone)]
pub struct Mix {
    schedule: Schedule,
    by: Option<ByStep>,
    stop: Stop,
    inputs: usize,
}

/// The rule by which a [`Mix`] ends; see [`Graph::mix_until`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// Ends at the turn of an input that is exhausted. The shares are exact to the end; the
    /// remaining items of the other inputs are not asked for.
    FirstExhausted,
    /// Ends when all inputs are exhausted. Every item comes once; an exhausted input is left out,
    /// and the others share its part. The default. Also
    /// [`WITHOUT_REPLACEMENT`](Stop::WITHOUT_REPLACEMENT).
    #[default]
    AllExhausted,
    /// Ends when every input was exhausted at least once; inputs that are exhausted before start
    /// again.
    CycleUntilAll,
    /// Endless: an exhausted input starts again, unless it has no items at all.
    CycleForever,
}

impl Stop {
    /// Gives every item once: another name for [`AllExhausted`](Stop::AllExhausted), as in Hugging
    /// Face's `interleave_datasets` ("all exhausted without replacement").
    pub const WITHOUT_REPLACEMENT: Stop = Stop::AllExhausted;

    fn cycles(self) -> bool {
        matches!(self, Stop::CycleUntilAll | Stop::CycleForever)
    }
}

impl Mix {
    /// Mixes with one weight for each input, or a [`Schedule`] of weights.
    pub fn new(weights: impl Into<Schedule>) -> Self {
        let schedule = weights.into();
        Mix {
            inputs: schedule.stages[0].1.len(),
            schedule,
            by: None,
            stop: Stop::default(),
        }
    }
}

opaque_debug!(Mix { schedule, stop });

/// An order of turns.
trait Takes<T>: Send + 'static {
    type State: Wire;

    fn state(&self) -> Self::State;
    /// Returns the input whose turn it is, if there is one.
    fn next(&mut self) -> Option<usize>;
    /// Returns the size of an item, before it is given out.
    fn measure(&self, item: &T) -> u64;
    /// Records that an item of a size came, or an error in its place.
    fn gave(&mut self, input: usize, size: u64) -> Result<()>;
    /// Leaves out an input; the shares of the others keep their proportions from here on.
    fn leave_out(&mut self, input: usize);
    /// Returns true for an input that is not left out.
    fn has(&self, input: usize) -> bool;
}

impl<T> Takes<T> for Turns {
    type State = TurnsState;

    fn state(&self) -> TurnsState {
        self.state()
    }
    fn next(&mut self) -> Option<usize> {
        self.next()
    }
    fn measure(&self, _: &T) -> u64 {
        1
    }
    fn gave(&mut self, _: usize, _: u64) -> Result<()> {
        self.gave()
    }
    fn leave_out(&mut self, input: usize) {
        self.leave_out(input);
    }
    fn has(&self, input: usize) -> bool {
        self.has(input)
    }
}

/// A mix, which gives its inputs turns.
trait Mixes<T: Send + 'static>: Join<Vec<T>, Out = T> {
    type Turns: Takes<T>;

    /// Returns the turns, restored from the snapshot if there is one, and the inputs that were not
    /// exhausted yet, as the snapshot has them.
    fn turns(&self, cx: &Context, inputs: usize) -> Result<(Self::Turns, Vec<bool>)>;
    fn stop(&self) -> Stop;

    /// Adds the mix to its inputs, which start again if its rule says so.
    fn of(self, inputs: Vec<Graph<T>>) -> Graph<T>
    where
        Self: Sized,
    {
        if !self.stop().cycles() {
            return Graph::join(inputs, self);
        }
        let cycled: Vec<Graph<Option<T>>> =
            inputs.into_iter().map(|input| input.rerun(Cycle)).collect();
        Graph::join(cycled, Cycled(self))
    }
}

/// Joins streams. `value` opens an item; there is none where an input that cycles starts again.
fn join<T: Send + 'static, U: Send + 'static>(
    mix: &impl Mixes<T>,
    mut inputs: Vec<Items<U>>,
    cx: &Context,
    value: fn(U) -> Option<T>,
) -> Items<T> {
    let (turns, stop) = (mix.turns(cx, inputs.len()), mix.stop());
    let cx = cx.clone();
    Items::generate(async move |out| {
        let (mut turns, mut unfinished) = match turns {
            Ok(turns) => turns,
            Err(error) => return out.emit(Err(error)).await,
        };
        // A list of the inputs that have not ended yet is needed, and saved in checkpoints, only if inputs
        // start again.
        unfinished.resize(if stop.cycles() { inputs.len() } else { 0 }, true);
        for (number, input) in inputs.iter_mut().enumerate() {
            if !turns.has(number) {
                *input = Items::empty();
            }
        }
        loop {
            out.snapshot(&cx, || (turns.state(), unfinished.clone()));
            let Some(turn) = turns.next() else { return };
            loop {
                let item = match inputs[turn].next().await {
                    Some(Err(error)) => Some(Err(error)),
                    Some(Ok(item)) => {
                        let (inner, origin) = item.into_parts();
                        value(inner).map(|value| Ok(Item::new(value, origin)))
                    }
                    None if stop == Stop::FirstExhausted => return,
                    None => {
                        inputs[turn] = Items::empty();
                        turns.leave_out(turn);
                        None
                    }
                };
                if let Some(item) = item {
                    let size = item.as_ref().map_or(1, |item| turns.measure(item));
                    out.emit(item).await;
                    if let Err(error) = turns.gave(turn, size) {
                        return out.emit(Err(error)).await;
                    }
                    break;
                }
                if let Some(unfinished) = unfinished.get_mut(turn) {
                    *unfinished = false;
                }
                if stop == Stop::CycleUntilAll && !unfinished.contains(&true) {
                    return;
                }
                if !turns.has(turn) {
                    break;
                }
            }
        }
    })
}

impl<T: Send + 'static> Mixes<T> for Mix {
    type Turns = Turns;

    fn turns(&self, cx: &Context, inputs: usize) -> Result<(Turns, Vec<bool>)> {
        let mut turns = Turns::new(&self.schedule, self.by.clone(), inputs)?;
        let Some((restored, rest)) = cx.restored()? else {
            return Ok((turns, vec![true; inputs]));
        };
        turns.resume(restored, cx.used_outputs())?;
        Ok((turns, rest))
    }
    fn stop(&self) -> Stop {
        self.stop
    }
}

/// Joins streams that must not cycle: [`Stop::FirstExhausted`] or [`Stop::AllExhausted`].
impl<T: Send + 'static> Join<Vec<T>> for Mix {
    type Out = T;

    fn join(&self, inputs: Vec<Items<T>>, cx: &Context) -> Items<T> {
        join(self, inputs, cx, Some)
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        self.count(inputs)
    }
    fn hints(&self) -> Hints {
        let problem = self.schedule.problem(self.inputs);
        let settings = match &self.by {
            None => format!("{:?}, weights {}", self.stop, self.schedule),
            Some(_) => format!("{:?}, by a function of the step", self.stop),
        };
        // The order of an input decides which of its items come before its last turn.
        let may_leave_out = self.by.is_some() || self.schedule.leaves_out();
        Hints::default()
            .ignores_order(self.stop == Stop::AllExhausted && !may_leave_out)
            .is_resumable(true)
            .selects(true)
            .role(Role::Scatter)
            .settings(settings)
            .may_change("weights")
            .problem(problem.as_deref())
    }
}

/// A mix of inputs that signal by `None` that they start again; see [`Cycle`].
struct Cycled<M>(M);

impl<T: Send + 'static, M: Mixes<T>> Join<Vec<Option<T>>> for Cycled<M> {
    type Out = T;

    fn join(&self, inputs: Vec<Items<Option<T>>>, cx: &Context) -> Items<T> {
        join(&self.0, inputs, cx, |value| value)
    }
    forward! { self.0 =>
        fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64>;
        fn name(&self) -> String;
        fn hints(&self) -> Hints;
    }
}

/// Runs everything upstream without end, and signals by `None` that it starts again. Ends if a
/// round has no items.
struct Cycle;

impl<T: Send + 'static> Rerun<T> for Cycle {
    type Out = Option<T>;

    fn rerun(&self, upstream: Upstream<T>, cx: &Context) -> Items<Option<T>> {
        let starts_again = |round| Some(Item::new(None, Origin::joined(Vec::new(), round)));
        run_rounds(upstream, cx, u64::MAX, |item| item.map(Some), starts_again)
    }
    /// Returns the length of one round, since the mix downstream, its only reader, counts by
    /// rounds.
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        // Its items are passed unchanged to the mix downstream.
        Hints::any_order().is_resumable(true).selects(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Mixes graphs by weight until all are exhausted, as [`mix_until`](Graph::mix_until) does with
    /// [`Stop::AllExhausted`]. The shares hold until the first input is exhausted; the others then go
    /// on without it.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let graph = Graph::mix([(Graph::range(0..6), 3.0), (Graph::range(10..12), 1.0)]);
    /// assert_eq!(graph.collect().unwrap(), [0, 1, 2, 10, 3, 4, 5, 11]);
    /// ```
    pub fn mix(inputs: impl IntoIterator<Item = (Graph<T>, f64)>) -> Graph<T> {
        Graph::mix_until(Stop::default(), inputs)
    }

    /// Mixes graphs by weight, in exact shares: of the first `n` items, for any `n`, each input has
    /// its share, to within one item for each input. The mix uses no random numbers: shuffle
    /// downstream for that.
    ///
    /// For batches of one input each, mix graphs that were batched before; the
    /// [source](crate::Origin::source) of their parts tells the input of a batch, or a number that
    /// a `map` adds to each input. A resumed epoch may have other weights:
    /// [`resume_edited`](crate::DataLoader::resume_edited).
    ///
    /// Weights need not add up to 1. Whole numbers are exact, others are rounded to a millionth of
    /// the smallest. `stop` decides what happens when an input is exhausted; the cycling rules run
    /// everything upstream of an input again, as [`repeat`](Graph::repeat) does, with other random
    /// numbers. An item that fails uses up its turn. Runs in one place, in order, and holds
    /// nothing.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Graph, pipes::Stop};
    /// let inputs = || [(Graph::range(0..3), 1.0), (Graph::range(10..12), 1.0)];
    /// let first = Graph::mix_until(Stop::FirstExhausted, inputs());
    /// assert_eq!(first.collect().unwrap(), [0, 10, 1, 11, 2]);
    /// let all = Graph::mix_until(Stop::CycleUntilAll, inputs());
    /// assert_eq!(all.collect().unwrap(), [0, 10, 1, 11, 2, 10]);
    ///
    /// // Batches, each of one input, and from which they are.
    /// let batches = (0..).zip(inputs()).map(|(input, (graph, weight))| {
    ///     (graph.batch(2).map(move |batch| (input, batch)), weight)
    /// });
    /// let mixed = Graph::mix(batches).collect().unwrap();
    /// assert_eq!(mixed, [(0, vec![0, 1]), (1, vec![10, 11]), (0, vec![2])]);
    /// ```
    pub fn mix_until(stop: Stop, inputs: impl IntoIterator<Item = (Graph<T>, f64)>) -> Graph<T> {
        let (inputs, weights): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
        mixed(stop, inputs, Schedule::new(weights), None)
    }

    /// Mixes graphs by weights that change with the step (the number of items that the mix gave),
    /// by a [`Schedule`]: a curriculum. Shares are exact in each stage, from its first step on.
    /// Everything else is as in [`mix_until`](Graph::mix_until).
    ///
    /// A weight may be zero in a stage, though not in all: the input then has no turn. If no input
    /// with a weight is left, the next stage in which one has a weight begins early; if there is
    /// none, the mix ends.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Graph, pipes::{Schedule, Stop}};
    ///
    /// let (easy, hard) = (Graph::range(0..8), Graph::range(100..108));
    /// let schedule = Schedule::new([1.0, 0.0]).then(3, [2.0, 1.0]).then(6, [0.0, 1.0]);
    /// let graph = Graph::mix_scheduled(Stop::FirstExhausted, [easy, hard], schedule);
    /// assert_eq!(graph.take(9).collect().unwrap(), [0, 1, 2, 3, 4, 100, 101, 102, 103]);
    /// ```
    pub fn mix_scheduled(
        stop: Stop,
        inputs: impl IntoIterator<Item = Graph<T>>,
        schedule: Schedule,
    ) -> Graph<T> {
        mixed(stop, inputs.into_iter().collect(), schedule, None)
    }

    /// Mixes graphs by weights that a function of the step returns, one for each input: a
    /// curriculum that is no list of stages. Shares are exact from each change on; a function that
    /// changes them at every step therefore has no exact shares: let it use `step / 100`. Weights
    /// are as in [`mix_scheduled`](Graph::mix_scheduled), which is preferable: a checkpoint holds
    /// its stages, but assumes that the function is the same in a resumed epoch.
    ///
    /// # Errors
    /// Weights that are not one for each input, or not positive or zero, or all zero, are an error
    /// that ends the stream.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Graph, pipes::Stop};
    ///
    /// let inputs = [Graph::range(0..50), Graph::range(100..150)];
    /// let more_and_more = |step: u64| vec![4.0, (step / 10) as f64];
    /// let mixed = Graph::mix_by(Stop::FirstExhausted, inputs, more_and_more).take(30).collect().unwrap();
    /// let hard = |step: usize| mixed[step..step + 10].iter().filter(|&&n| n >= 100).count();
    /// assert_eq!([hard(0), hard(10), hard(20)], [0, 2, 3]);
    /// ```
    pub fn mix_by<F>(stop: Stop, inputs: impl IntoIterator<Item = Graph<T>>, weights: F) -> Graph<T>
    where
        F: Fn(u64) -> Vec<f64> + Send + Sync + 'static,
    {
        let inputs: Vec<_> = inputs.into_iter().collect();
        let schedule = Schedule::new(vec![1.0; inputs.len()]);
        mixed(stop, inputs, schedule, Some(Arc::new(weights)))
    }
}

fn mixed<T: Send + 'static>(
    stop: Stop,
    inputs: Vec<Graph<T>>,
    schedule: Schedule,
    by: Option<ByStep>,
) -> Graph<T> {
    let mix = Mix {
        schedule,
        by,
        stop,
        inputs: inputs.len(),
    };
    mix.of(inputs)
}
