//! Repetition of an order.

use std::sync::{Arc, Mutex, OnceLock};

use super::{Course, Entry, Indices, check_position, each, order_hints};
use crate::{Context, Hints, Items, Pipe, lock, mix_bits};

/// Repeats the order upstream.
pub(super) struct Repeat {
    pub rounds: u64,
}

impl Pipe<Indices> for Repeat {
    type Out = Indices;

    fn apply(&self, input: Items<Indices>, cx: &Context) -> Items<Indices> {
        let (rounds, context) = (self.rounds, cx.clone());
        each(input, cx, move |first| {
            // The dropped samples of the first round are counted where they are left out.
            context.count_dropped(first.dropped().saturating_mul(rounds.saturating_sub(1)));
            Ok(Rounds::start(rounds, first, context.round()))
        })
    }
    fn name(&self) -> String {
        "index_repeat".to_owned()
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        input.checked_mul(self.rounds)
    }
    fn hints(&self) -> Hints {
        let problem = (self.rounds == 0).then_some("a repeat of zero rounds");
        order_hints().settings(self.rounds).problem(problem)
    }
}

struct Rounds {
    rounds: u64,
    /// Order of the first round.
    above: Indices,
    /// Round of an enclosing repeat.
    outer: u64,
    first: Indices,
    later: Box<[OnceLock<Indices>]>,
    /// Last round used of those that are not kept.
    last: Mutex<Option<(u64, Indices)>>,
}

/// Number of rounds that are kept, besides the last one used of the others. A position of a
/// shuffled mix of more rounds starts its round again, which is cheap for all but a few samplers.
const KEPT: u64 = 64;

impl Rounds {
    fn start(rounds: u64, above: Indices, outer: u64) -> Indices {
        let first = if outer == 0 {
            above.clone()
        } else {
            above.again(mix_bits(outer))
        };
        let later = (1..rounds.min(KEPT)).map(|_| OnceLock::new()).collect();
        Arc::new(Rounds {
            rounds,
            above,
            outer,
            first,
            later,
            last: Mutex::default(),
        })
    }

    fn last(&self, round: u64) -> Indices {
        let mut last = lock(&self.last);
        match &*last {
            Some((kept, order)) if *kept == round => order.clone(),
            _ => last.insert((round, self.later(round))).1.clone(),
        }
    }

    /// Returns a later round. Nested rounds are numbered as those of
    /// [`Graph::repeat`](crate::Graph::repeat).
    fn later(&self, round: u64) -> Indices {
        self.above.again(if self.outer == 0 {
            round
        } else {
            mix_bits(self.outer).wrapping_add(round)
        })
    }
}

impl Course for Rounds {
    fn len(&self) -> u64 {
        self.first.len().saturating_mul(self.rounds)
    }
    fn at(&self, position: u64) -> Entry {
        check_position(position, self.len());
        let (round, position) = (position / self.first.len(), position % self.first.len());
        match round.checked_sub(1) {
            None => self.first.at(position),
            Some(later) => match self.later.get(later as usize) {
                Some(kept) => kept.get_or_init(|| self.later(round)).at(position),
                None => self.last(round).at(position),
            },
        }
    }
    fn again(&self, round: u64) -> Indices {
        Rounds::start(self.rounds, self.above.clone(), round)
    }
    fn dropped(&self) -> u64 {
        self.first.dropped().saturating_mul(self.rounds)
    }
}
