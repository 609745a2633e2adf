//! Orders mixed by weight, in exact shares.

use std::sync::Arc;

use super::{Course, Entry, Index, Indices, check_position, join, order_hints};
use crate::pipes::fair_share;
use crate::{Context, Hints, Items, Join, Role};

/// Orders mixed by weight, in exact shares: as [`Graph::mix`](crate::Graph::mix), position by
/// position.
#[derive(Clone)]
pub(in crate::index) struct Mix {
    pub weights: Vec<f64>,
    pub rule: Rule,
}

/// End condition of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Rule {
    /// The mix ends at the turn of an input that is exhausted.
    FirstExhausted,
    /// The mix ends when all inputs are exhausted; the others divide the share of an exhausted
    /// input.
    AllExhausted,
}

impl Join<Vec<Indices>> for Mix {
    type Out = Indices;

    fn join(&self, inputs: Vec<Items<Indices>>, cx: &Context) -> Items<Indices> {
        let (shares, rule) = (shares(&self.weights), self.rule);
        join(inputs, cx, move |inputs| {
            Ok(Arc::new(Mixed::of(inputs, shares, rule)))
        })
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        let lengths = inputs.iter().copied().collect::<Option<Vec<u64>>>()?;
        fair_share::problem(&self.weights, false)
            .is_none()
            .then(|| self.len(&lengths))
    }
    fn name(&self) -> String {
        "index_mix".to_owned()
    }
    fn hints(&self) -> Hints {
        let settings = format!("weights {:?}, {:?}", self.weights, self.rule);
        order_hints()
            .role(Role::Scatter)
            .settings(settings)
            .problem(fair_share::problem(&self.weights, false))
    }
}

impl Mix {
    /// Returns the number of positions over inputs of these lengths.
    pub(super) fn len(&self, lengths: &[u64]) -> u64 {
        phases(&shares(&self.weights), lengths, self.rule)
            .last()
            .map_or(0, |last| last.end)
    }
}

/// Returns the shares of the weights. Invalid weights have none; no loader is built with them.
fn shares(weights: &[f64]) -> Vec<u64> {
    match fair_share::problem(weights, false) {
        Some(_) => vec![0; weights.len()],
        None => fair_share::shares(weights),
    }
}

/// Positions up to the turn at which an input is exhausted, with the inputs that share them.
struct MixPhase {
    begin: u64,
    end: u64,
    /// Share of each input; 0 for an input that is left out.
    shares: Vec<u64>,
    /// Number of positions of each input before the phase.
    before: Vec<u64>,
}

fn phases(shares: &[u64], lengths: &[u64], rule: Rule) -> Vec<MixPhase> {
    let mut phases = Vec::new();
    let (mut begin, mut shares, mut before) = (0u64, shares.to_vec(), vec![0u64; lengths.len()]);
    while shares.iter().any(|&share| share > 0) {
        // The least number of turns that needs more samples of the input than are left, minus one:
        // the count grows one by one.
        let missed = |turns: u64| {
            let turns = fair_share::turns_of_each(&shares, turns).zip(lengths.iter().zip(&before));
            turns
                .enumerate()
                .find(|(_, (turns, (len, before)))| turns > &(*len - *before))
        };
        let (mut low, mut high) = (0u64, u64::MAX - begin);
        while low < high {
            let middle = low + (high - low) / 2;
            if missed(middle).is_some() {
                high = middle
            } else {
                low = middle + 1
            }
        }
        let exhausted = missed(low).map(|(input, _)| input);
        let turns = low.saturating_sub(1);
        let end = begin + turns;
        let counts: Vec<u64> = fair_share::turns_of_each(&shares, turns).collect();
        phases.push(MixPhase {
            begin,
            end,
            shares: shares.clone(),
            before: before.clone(),
        });
        // Without an exhausted input there are more samples than can be counted.
        let Some(input) = exhausted.filter(|_| rule == Rule::AllExhausted) else {
            break;
        };
        before
            .iter_mut()
            .zip(counts)
            .for_each(|(before, count)| *before += count);
        (begin, shares[input]) = (end, 0);
    }
    phases
}

struct Mixed {
    inputs: Vec<Indices>,
    /// At most one phase for each input.
    phases: Arc<[MixPhase]>,
}

impl Mixed {
    fn of(inputs: Vec<Indices>, shares: Vec<u64>, rule: Rule) -> Mixed {
        let lengths: Vec<u64> = inputs.iter().map(|input| input.len()).collect();
        Mixed {
            phases: phases(&shares, &lengths, rule).into(),
            inputs,
        }
    }
}

impl Course for Mixed {
    fn len(&self) -> u64 {
        self.phases.last().map_or(0, |last| last.end)
    }
    fn at(&self, position: u64) -> Entry {
        check_position(position, self.len());
        let phase = &self.phases[self.phases.partition_point(|phase| phase.end <= position)];
        let (input, turn) = fair_share::whose(&phase.shares, position - phase.begin)
            .expect("the last input takes what is left");
        let Entry { index, origin } = self.inputs[input].at(phase.before[input] + turn);
        Entry {
            index: Index::In(input, Box::new(index)),
            origin,
        }
    }
    fn again(&self, round: u64) -> Indices {
        // The lengths, and therefore the turns, are the same in every round.
        let inputs = self.inputs.iter().map(|input| input.again(round)).collect();
        Arc::new(Mixed {
            inputs,
            phases: self.phases.clone(),
        })
    }
    fn dropped(&self) -> u64 {
        self.inputs.iter().map(|input| input.dropped()).sum()
    }
}
