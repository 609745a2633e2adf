//! The number of items of a mix, computed without taking the turns.

use super::fair_share::{shares, turns_of_each};
use super::turns::Stages;
use super::{Mix, Stop};

/// Number of items above which a stream is endless: origins have as many bits.
const MOST: u64 = 1 << 48;

impl Mix {
    /// Returns the number of items for inputs of these lengths (of one round, if inputs start
    /// again); `u64::MAX` for an endless mix. The number is known if the stop rule makes it a
    /// function of these numbers, the weights and the schedule.
    pub(super) fn count(&self, inputs: &[Option<u64>]) -> Option<u64> {
        if self.by.is_some() || self.schedule.problem(inputs.len()).is_some() {
            return None;
        }
        let stages: Stages = self
            .schedule
            .stages
            .iter()
            .map(|(from, weights)| (*from, shares(weights)))
            .collect();
        let last = &stages.last()?.1;
        let lengths: Option<Vec<u64>> = inputs.iter().copied().collect();
        match self.stop {
            // In the last stage all have turns, until all are exhausted.
            Stop::AllExhausted if last.iter().all(|&share| share > 0) => {
                match inputs.contains(&Some(u64::MAX)) {
                    true => Some(u64::MAX),
                    false => Some(lengths?.into_iter().fold(0, u64::saturating_add)),
                }
            }
            Stop::AllExhausted => None,
            Stop::FirstExhausted => {
                let lengths = lengths?;
                Some(first_turn(&stages, |turns| {
                    turns.iter().zip(&lengths).any(|(turns, len)| turns > len)
                }))
            }
            Stop::CycleUntilAll => {
                // An input without items is left out, from its first turn on, and the shares change
                // from there.
                let lengths = lengths.filter(|lengths| !lengths.contains(&0))?;
                Some(first_turn(&stages, |turns| {
                    turns.iter().zip(&lengths).all(|(turns, len)| turns > len)
                }))
            }
            Stop::CycleForever => {
                let goes_on = |(len, share): (&Option<u64>, &u64)| {
                    len.is_some_and(|len| len > 0) && *share > 0
                };
                if inputs.iter().zip(last).any(goes_on) {
                    return Some(u64::MAX);
                }
                lengths
                    .filter(|lengths| lengths.iter().all(|&len| len == 0))
                    .map(|_| 0)
            }
        }
    }
}

/// Returns the number of the first turn with which `done` holds for the turns that each input has
/// had, if none is left out before; `u64::MAX` if that never happens. Once `done` holds it has to
/// go on holding.
fn first_turn(stages: &Stages, done: impl Fn(&[u64]) -> bool) -> u64 {
    let mut before = vec![0u64; stages[0].1.len()];
    for (at, (from, shares)) in stages.iter().enumerate() {
        let until = stages
            .get(at + 1)
            .map_or(MOST, |(next, _)| (*next).min(MOST));
        let Some(turns) = until.checked_sub(*from).filter(|&turns| turns > 0) else {
            break;
        };
        let had = |turns: u64| -> Vec<u64> {
            before
                .iter()
                .zip(turns_of_each(shares, turns))
                .map(|(before, turns)| before + turns)
                .collect()
        };
        let (mut low, mut high) = (0, turns);
        if !done(&had(high)) {
            before = had(high);
            continue;
        }
        // It does not hold for `low` turns, and does for `high`.
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if done(&had(middle)) {
                high = middle
            } else {
                low = middle
            }
        }
        return from + high - 1;
    }
    u64::MAX
}
