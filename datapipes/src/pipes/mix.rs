//! Mixes inputs by weight, in exact shares.

use futures::StreamExt;

use crate::pipe::Upstream;
use crate::{Context, Facts, Graph, Item, Items, Join, Origin, Rerun};

/// Mixes inputs by weight, in exact shares; see [`Graph::mix`].
#[derive(Clone, Debug)]
pub struct Mix {
    weights: Vec<f64>,
    stop: Stop,
}

/// When a [`Mix`] ends; see [`Graph::mix_until`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// When it is the turn of an input that is exhausted. The shares are exact to the end; what the other inputs
    /// have left is not asked for.
    FirstExhausted,
    /// When all inputs are exhausted. Every item comes once; an input that is exhausted is left out, and the others
    /// share its part. The default. (Others call it "all exhausted without replacement".)
    #[default]
    AllExhausted,
    /// When every input was exhausted at least once; those that are exhausted before start again.
    CycleUntilAll,
    /// Never: an input that is exhausted starts again, unless it has no items at all.
    CycleForever,
}

impl Stop {
    fn cycles(self) -> bool {
        matches!(self, Stop::CycleUntilAll | Stop::CycleForever)
    }
}

impl Mix {
    /// With one weight for each input.
    pub fn new(weights: impl Into<Vec<f64>>) -> Self {
        Mix { weights: weights.into(), stop: Stop::default() }
    }

    fn facts(&self) -> Facts {
        let problem = if self.weights.is_empty() {
            Some("no inputs")
        } else if !self.weights.iter().all(|&weight| weight > 0.0 && weight.is_finite()) {
            Some("a weight that is not a positive number")
        } else if self.weights.iter().any(|weight| weight / least(&self.weights) > MOST) {
            Some("weights more than a billion times apart")
        } else {
            None
        };
        let settings = format!("weights {:?}, {:?}", self.weights, self.stop);
        Facts { needs_order: self.stop != Stop::AllExhausted, ..Facts::default() }
            .with_settings(settings)
            .with_problem(problem)
    }
}

/// The streams must not cycle: [`Stop::FirstExhausted`] or [`Stop::AllExhausted`].
impl<T: Send + 'static> Join<Vec<T>> for Mix {
    type Out = T;

    fn join(&self, mut inputs: Vec<Items<T>>, cx: &Context) -> Items<T> {
        let (mut turns, stop) = (Turns::new(&self.weights), self.stop);
        match cx.kept::<(u64, Vec<bool>)>() {
            Ok(Some((turn, open))) => turns.go_on(turn, &open),
            Ok(None) => {}
            Err(error) => return Items::fail(error),
        }
        turns.left_out().for_each(|input| inputs[input] = Items::empty());
        let cx = cx.clone();
        Items::generate(async move |out| {
            loop {
                out.keep(&cx, || (turns.turn, turns.open()));
                let Some(turn) = turns.next() else { return };
                match inputs[turn].next().await {
                    Some(item) => out.emit(item).await,
                    None if stop == Stop::FirstExhausted => return,
                    None => {
                        inputs[turn] = Items::empty();
                        turns.leave_out(turn);
                    }
                }
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Mix::facts(self)
    }
}

/// A mix of inputs that say by `None` that they start again; see [`Cycle`].
struct MixCycled(Mix);

impl<T: Send + 'static> Join<Vec<Option<T>>> for MixCycled {
    type Out = T;

    fn join(&self, mut inputs: Vec<Items<Option<T>>>, cx: &Context) -> Items<T> {
        let Mix { weights, stop } = &self.0;
        let (mut turns, until_all) = (Turns::new(weights), *stop == Stop::CycleUntilAll);
        let mut unfinished = vec![true; inputs.len()];
        match cx.kept::<(u64, Vec<bool>, Vec<bool>)>() {
            Ok(Some((turn, open, left))) => {
                turns.go_on(turn, &open);
                unfinished.iter_mut().zip(left).for_each(|(unfinished, left)| *unfinished = left);
            }
            Ok(None) => {}
            Err(error) => return Items::fail(error),
        }
        turns.left_out().for_each(|input| inputs[input] = Items::empty());
        let cx = cx.clone();
        Items::generate(async move |out| {
            loop {
                out.keep(&cx, || (turns.turn, turns.open(), unfinished.clone()));
                let Some(turn) = turns.next() else { return };
                loop {
                    let item = match inputs[turn].next().await {
                        Some(Err(error)) => Some(Err(error)),
                        Some(Ok(item)) => {
                            let (value, origin) = item.into_parts();
                            value.map(|value| Ok(Item::new(value, origin)))
                        }
                        None => {
                            inputs[turn] = Items::empty();
                            turns.leave_out(turn);
                            None
                        }
                    };
                    if let Some(item) = item {
                        out.emit(item).await;
                        break;
                    }
                    unfinished[turn] = false;
                    if until_all && !unfinished.contains(&true) {
                        return;
                    }
                    if !turns.has(turn) {
                        break;
                    }
                }
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        "mix".to_owned()
    }
    fn facts(&self) -> Facts {
        self.0.facts()
    }
}

/// Runs what is above without end, and says by `None` where it starts again. Ends if a round has no items.
struct Cycle;

impl<T: Send + 'static> Rerun<T> for Cycle {
    type Out = Option<T>;

    fn rerun(&self, mut upstream: Upstream<T>, cx: &Context) -> Items<Option<T>> {
        let (first, mut nothing) = match cx.kept() {
            Ok(kept) => kept.unwrap_or((0, true)),
            Err(error) => return Items::fail(error),
        };
        let cx = cx.clone();
        Items::generate(async move |out| {
            for round in first.. {
                let mut input = upstream(round);
                loop {
                    out.keep(&cx, || (round, nothing));
                    let Some(item) = out.next_from(&mut input).await else { break };
                    nothing = false;
                    out.emit(Ok(item.map(Some))).await;
                }
                if nothing || cx.is_cancelled() {
                    return;
                }
                nothing = true;
                out.emit(Ok(Item::new(None, Origin::joined(Vec::new(), round)))).await;
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::any_order()
    }
}

/// The largest weight, in terms of the least.
const MOST: f64 = 1e9;
/// The least weight as an integer, where the weights are none.
const SCALE: f64 = 1e6;

fn least(weights: &[f64]) -> f64 {
    weights.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Whose turn it is: Grain's arithmetic, which gives input `i` its exact share of any number of turns, to less than
/// one turn for each input.
struct Turns {
    /// Each input's share; 0 for one that is left out.
    shares: Vec<u64>,
    turn: u64,
}

impl Turns {
    fn new(weights: &[f64]) -> Self {
        let least = least(weights);
        let whole = weights.iter().all(|&weight| weight.fract() == 0.0 && weight <= MOST * SCALE);
        let share =
            |&weight: &f64| if whole { weight as u64 } else { (weight / least * SCALE).round() as u64 };
        Turns { shares: weights.iter().map(share).collect(), turn: 0 }
    }

    /// The shares of the others stay as they are to each other, from here on.
    fn leave_out(&mut self, input: usize) {
        self.shares[input] = 0;
        self.turn = 0;
    }

    /// As it was in the middle: which inputs were not left out, and how many turns there had been since the last was.
    fn go_on(&mut self, turn: u64, open: &[bool]) {
        self.shares.iter_mut().zip(open).filter(|(_, open)| !**open).for_each(|(share, _)| *share = 0);
        self.turn = turn.min(u64::MAX / 2);
    }

    fn open(&self) -> Vec<bool> {
        self.shares.iter().map(|&share| share > 0).collect()
    }

    fn left_out(&self) -> impl Iterator<Item = usize> {
        self.shares.iter().enumerate().filter(|&(_, &share)| share == 0).map(|(input, _)| input)
    }

    fn has(&self, input: usize) -> bool {
        self.shares[input] > 0
    }

    /// Of the turns `0..k` that the inputs from `i` on share, those behind `i` get `k * (rest - share) / rest`. Turn
    /// `k` is that of `i` if this number does not grow from `k` to `k + 1`.
    fn next(&mut self) -> Option<usize> {
        let (mut from, mut to) = (u128::from(self.turn), u128::from(self.turn) + 1);
        self.turn += 1;
        let mut rest: u128 = self.shares.iter().map(|&share| u128::from(share)).sum();
        for (input, &share) in self.shares.iter().enumerate().filter(|&(_, &share)| share > 0) {
            let others = rest - u128::from(share);
            let (from_others, to_others) = (from * others / rest, to * others / rest);
            if from - from_others != to - to_others {
                return Some(input);
            }
            (from, to, rest) = (from_others, to_others, others);
        }
        None
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Mixes graphs by weight until all are exhausted; as [`mix_until`](Graph::mix_until) with
    /// [`Stop::AllExhausted`].
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

    /// Mixes graphs by weight, in exact shares: of any `n` items in a row from the start, input `i` has its part of
    /// the weights, to within one item for each input. No random numbers: shuffle below for that.
    ///
    /// Whole numbers are taken as they are, others to a millionth of the least. `stop` says what happens when an
    /// input is exhausted; the cycling rules run what is above an input again, as [`repeat`](Graph::repeat) does,
    /// with other random numbers. An item that fails uses up its turn. Runs in one place, in order, and holds
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
    /// ```
    pub fn mix_until(stop: Stop, inputs: impl IntoIterator<Item = (Graph<T>, f64)>) -> Graph<T> {
        let (inputs, weights): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
        let mix = Mix { weights, stop };
        if !stop.cycles() {
            return Graph::join(inputs, mix);
        }
        let cycled: Vec<Graph<Option<T>>> = inputs.into_iter().map(|input| input.rerun(Cycle)).collect();
        Graph::join(cycled, MixCycled(mix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_at_every_point() {
        for weights in
            [vec![1.0], vec![0.7, 0.3], vec![5.0, 1.0, 3.0], vec![1.0, 1e6], vec![0.1, 0.2, 0.3, 0.4]]
        {
            let total: f64 = weights.iter().sum();
            let mut turns = Turns::new(&weights);
            let mut counts = vec![0u64; weights.len()];
            for n in 1..5000u32 {
                counts[turns.next().unwrap()] += 1;
                for (count, weight) in counts.iter().zip(&weights) {
                    let due = f64::from(n) * weight / total;
                    let off = (*count as f64 - due).abs();
                    assert!(off < weights.len() as f64, "{weights:?}: {counts:?} after {n}");
                }
            }
        }
    }

    #[test]
    fn who_is_next_is_pinned() {
        let turns = |weights: &[f64]| {
            let mut turns = Turns::new(weights);
            (0..12).map(|_| turns.next().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(turns(&[0.5, 0.25, 0.25]), [0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2]);
        assert_eq!(turns(&[1.0, 2.0]), [0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]);
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        let mut turns = Turns::new(&vec![1e15; 1000]);
        turns.turn = u64::MAX - 1;
        assert!(turns.next().is_some());
    }

    #[test]
    fn row_37_stop_rules_with_an_empty_input() {
        let inputs = || [(0, 1.0), (3, 2.0), (1, 1.0)].map(|(n, weight)| (Graph::range(0..n), weight));
        let mix = |stop| Graph::mix_until(stop, inputs()).take(9).collect().unwrap();
        assert_eq!(mix(Stop::FirstExhausted), []);
        assert_eq!(mix(Stop::AllExhausted), [0, 1, 0, 2]);
        assert_eq!(mix(Stop::CycleUntilAll), [0, 1, 0, 2, 0]);
        assert_eq!(mix(Stop::CycleForever), [0, 1, 0, 2, 0, 0, 1, 2, 0]);
        let nothing = Graph::mix_until(Stop::CycleForever, [(Graph::range(0..0), 1.0)]);
        assert_eq!(nothing.collect().unwrap(), []);
    }

    #[test]
    fn wrong_weights_do_not_build() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e10] {
            let inputs = [(Graph::range(0..1), weight), (Graph::range(0..1), 1.0)];
            assert!(Graph::mix(inputs).collect().is_err(), "{weight}");
        }
        assert!(Graph::<u8>::mix([]).collect().is_err());
    }
}
