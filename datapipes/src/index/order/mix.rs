//! Orders mixed by weight, in exact shares.

use std::sync::Arc;

use super::{Course, Index, Indices, Place, facts, join};
use crate::{Context, Facts, Items, Join};

/// Orders mixed by weight, in exact shares: as [`Graph::mix`](crate::Graph::mix), position by position.
pub(super) struct Mix {
    pub weights: Vec<f64>,
    pub rule: Rule,
}

/// When a mix ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Rule {
    /// When it is the turn of an input that is exhausted.
    FirstExhausted,
    /// When all are exhausted; the others share the part of one that is.
    AllExhausted,
}

/// The largest weight, in terms of the least.
const MOST: f64 = 1e9;
/// The least weight as an integer, where the weights are none.
const SCALE: f64 = 1e6;

impl Join<Vec<Indices>> for Mix {
    type Out = Indices;

    fn join(&self, inputs: Vec<Items<Indices>>, cx: &Context) -> Items<Indices> {
        let (shares, rule) = (shares(&self.weights), self.rule);
        join(inputs, cx, move |inputs| Ok(Arc::new(Mixed::of(inputs, shares, rule))))
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        let lens = inputs.iter().copied().collect::<Option<Vec<u64>>>()?;
        problem(&self.weights).is_none().then(|| self.len(&lens))
    }
    fn name(&self) -> String {
        "index_mix".to_owned()
    }
    fn facts(&self) -> Facts {
        let settings = format!("weights {:?}, {:?}", self.weights, self.rule);
        facts().with_settings(settings).with_problem(problem(&self.weights))
    }
}

impl Mix {
    /// How many positions there are over inputs of these lengths.
    pub(super) fn len(&self, lens: &[u64]) -> u64 {
        phases(&shares(&self.weights), lens, self.rule).last().map_or(0, |last| last.end)
    }
}

/// What is wrong with some weights.
fn problem(weights: &[f64]) -> Option<&'static str> {
    if weights.is_empty() {
        Some("no inputs")
    } else if !weights.iter().all(|&weight| weight > 0.0 && weight.is_finite()) {
        Some("a weight that is not a positive number")
    } else if weights.iter().any(|weight| weight / least(weights) > MOST) {
        Some("weights more than a billion times apart")
    } else {
        None
    }
}

fn least(weights: &[f64]) -> f64 {
    weights.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Whole weights are taken as they are, others to a millionth of the least. None has a share of wrong weights, with which
/// no loader is built.
fn shares(weights: &[f64]) -> Vec<u64> {
    if problem(weights).is_some() {
        return vec![0; weights.len()];
    }
    let least = least(weights);
    let whole = weights.iter().all(|&weight| weight.fract() == 0.0 && weight <= MOST * SCALE);
    let share = |&weight: &f64| if whole { weight as u64 } else { (weight / least * SCALE).round() as u64 };
    weights.iter().map(share).collect()
}

/// Whose turn number `turn` is, and the how manieth of its turns that is: Grain's arithmetic, with products of 128 bits.
///
/// Of the turns `0..k` that the inputs from `i` on share, those behind `i` get `k * (rest - share) / rest`. Turn `k` is
/// that of `i` if this number does not grow from `k` to `k + 1`.
fn whose(shares: &[u64], turn: u64) -> (usize, u64) {
    let (mut from, mut to) = (u128::from(turn), u128::from(turn) + 1);
    let mut rest: u128 = shares.iter().map(|&share| u128::from(share)).sum();
    for (input, &share) in shares.iter().enumerate().filter(|&(_, &share)| share > 0) {
        let others = rest - u128::from(share);
        let (from_others, to_others) = (from * others / rest, to * others / rest);
        if from - from_others != to - to_others {
            return (input, (from - from_others) as u64);
        }
        (from, to, rest) = (from_others, to_others, others);
    }
    unreachable!("the last input takes what is left")
}

/// How many of the turns `0..turns` are those of each input.
fn turns_of_each(shares: &[u64], turns: u64) -> impl Iterator<Item = u64> {
    let mut turns = u128::from(turns);
    let mut rest: u128 = shares.iter().map(|&share| u128::from(share)).sum();
    shares.iter().map(move |&share| {
        if share == 0 {
            return 0;
        }
        let others = rest - u128::from(share);
        let left = turns * others / rest;
        let own = turns - left;
        (turns, rest) = (left, others);
        own as u64
    })
}

/// The positions up to the turn at which an input is exhausted, and who shares them.
struct Phase {
    begin: u64,
    end: u64,
    /// Each input's share; 0 for one that is left out.
    shares: Vec<u64>,
    /// How many positions of each input lie before.
    before: Vec<u64>,
}

fn phases(shares: &[u64], lens: &[u64], rule: Rule) -> Vec<Phase> {
    let mut phases = Vec::new();
    let (mut begin, mut shares, mut before) = (0u64, shares.to_vec(), vec![0u64; lens.len()]);
    while shares.iter().any(|&share| share > 0) {
        // The least number of turns of which one has more than are left, less one: they grow one by one.
        let missed = |turns: u64| {
            let turns = turns_of_each(&shares, turns).zip(lens.iter().zip(&before));
            turns.enumerate().find(|(_, (turns, (len, before)))| turns > &(*len - *before))
        };
        let (mut low, mut high) = (0u64, u64::MAX - begin);
        while low < high {
            let middle = low + (high - low) / 2;
            if missed(middle).is_some() { high = middle } else { low = middle + 1 }
        }
        let exhausted = missed(low).map(|(input, _)| input);
        let turns = low.saturating_sub(1);
        let end = begin + turns;
        let counts: Vec<u64> = turns_of_each(&shares, turns).collect();
        phases.push(Phase { begin, end, shares: shares.clone(), before: before.clone() });
        // Without one there are more samples than can be counted.
        let Some(input) = exhausted.filter(|_| rule == Rule::AllExhausted) else { break };
        before.iter_mut().zip(counts).for_each(|(before, count)| *before += count);
        (begin, shares[input]) = (end, 0);
    }
    phases
}

struct Mixed {
    inputs: Vec<Indices>,
    /// One for each input, at most.
    phases: Arc<[Phase]>,
}

impl Mixed {
    fn of(inputs: Vec<Indices>, shares: Vec<u64>, rule: Rule) -> Mixed {
        let lens: Vec<u64> = inputs.iter().map(|input| input.len()).collect();
        Mixed { phases: phases(&shares, &lens, rule).into(), inputs }
    }
}

impl Course for Mixed {
    fn len(&self) -> u64 {
        self.phases.last().map_or(0, |last| last.end)
    }
    fn at(&self, position: u64) -> Place {
        assert!(position < self.len(), "position {position} of {}", self.len());
        let phase = &self.phases[self.phases.partition_point(|phase| phase.end <= position)];
        let (input, turn) = whose(&phase.shares, position - phase.begin);
        let Place { index, origin } = self.inputs[input].at(phase.before[input] + turn);
        Place { index: Index::In(input, Box::new(index)), origin }
    }
    fn again(&self, round: u64) -> Indices {
        // The lengths are the same in every round, and so are the turns.
        let inputs = self.inputs.iter().map(|input| input.again(round)).collect();
        Arc::new(Mixed { inputs, phases: self.phases.clone() })
    }
    fn dropped(&self) -> u64 {
        self.inputs.iter().map(|input| input.dropped()).sum()
    }
}
