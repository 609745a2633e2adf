//! The order of turns in a mix.

use std::sync::Arc;

use super::fair_share::{self, shares};
use super::schedule::{Schedule, problem};
use crate::{Error, Result};

/// Returns the weights for a step.
pub(super) type ByStep = Arc<dyn Fn(u64) -> Vec<f64> + Send + Sync>;

/// First step and shares of each stage, ascending.
pub(super) type Stages = Vec<(u64, Vec<u64>)>;

/// The snapshot of turns: the step, the number of turns since the shares changed last, the inputs
/// that are not left out; and the shares from the present stage on.
pub(super) type TurnsState = ((u64, u64, Vec<bool>), (Stages, bool));

/// Returns the stage that a step is in.
fn at(stages: &Stages, step: u64) -> usize {
    stages.partition_point(|(from, _)| *from <= step).max(1) - 1
}

/// The turns of a mix: Grain's arithmetic, which gives input `i` its exact share of any number of
/// turns, to less than one turn for each input, from each change of the shares on.
pub(super) struct Turns {
    stages: Stages,
    by: Option<ByStep>,
    /// Present stage.
    stage: usize,
    /// True for inputs that are not left out.
    open: Vec<bool>,
    /// Share of each input that is open.
    shares: Vec<u64>,
    turn: u64,
    step: u64,
}

impl Turns {
    pub(super) fn new(schedule: &Schedule, by: Option<ByStep>, inputs: usize) -> Result<Self> {
        if let Some(problem) = schedule.problem(inputs) {
            return Err(Error::config(problem));
        }
        let stages = schedule
            .stages
            .iter()
            .map(|(from, weights)| (*from, shares(weights)))
            .collect();
        let open = vec![true; inputs];
        let mut turns = Turns {
            stages,
            by,
            stage: 0,
            open,
            shares: Vec::new(),
            turn: 0,
            step: 0,
        };
        turns.ask()?;
        turns.enter();
        Ok(turns)
    }

    /// Returns true if the current weights begin, or have begun, at some step of the stages in a
    /// snapshot: a change with which the epoch was resumed before. It stays where it was.
    fn begins_in(&self, then: &Stages) -> bool {
        (1..then.len()).any(|change| {
            let (step, shares) = &then[change];
            let now = &self.stages[at(&self.stages, *step)..];
            now[0].0 != *step && now[0].1 == *shares && now[1..] == then[change + 1..]
        })
    }

    /// Restores the turns in the middle. The first `used` items are given as before, with the old
    /// weights; later items with the current weights.
    pub(super) fn resume(&mut self, state: TurnsState, used: u64) -> Result<()> {
        let ((step, turn, open), (then, by)) = state;
        let inputs = self.open.len();
        let sound = open.len() == inputs
            && !then.is_empty()
            && then.is_sorted_by(|a, b| a.0 < b.0)
            && then.iter().all(|(_, shares)| shares.len() == inputs);
        if !sound {
            return Err(Error::config(
                "the snapshot of a mix does not fit its inputs",
            ));
        }
        if by != self.by.is_some() {
            let message = "weights by a function of the step cannot take the place of others, nor others of those";
            return Err(Error::config(message));
        }
        (self.step, self.open) = (step.min(u64::MAX / 2), open);
        let mut turn = turn.min(u64::MAX / 2);
        if by || self.begins_in(&then) {
            self.stages = then;
        } else if self.ahead() != then {
            let change = self.step.saturating_add(used);
            let (old, new) = (at(&then, change), at(&self.stages, change));
            let mut stages = then[..=old].to_vec();
            if stages[old].1 != self.stages[new].1 {
                stages.retain(|(from, _)| *from < change);
                stages.push((change, self.stages[new].1.clone()));
                turn = if used == 0 { 0 } else { turn };
            }
            stages.extend_from_slice(&self.stages[new + 1..]);
            self.stages = stages;
        }
        self.enter();
        self.turn = turn;
        Ok(())
    }

    pub(super) fn state(&self) -> TurnsState {
        (
            (self.step, self.turn, self.open.clone()),
            (self.ahead(), self.by.is_some()),
        )
    }

    /// Returns the stages from the step on, as far as they will be gone through.
    fn ahead(&self) -> Stages {
        let (since, stage) = (at(&self.stages, self.step), self.stage_of_step());
        let mut ahead = self.stages[stage..].to_vec();
        // This stage is the present one even if those before it were left early.
        ahead[0].0 = self.stages[since].0;
        ahead
    }

    /// Calls the function, if there is one.
    fn ask(&mut self) -> Result<()> {
        let Some(by) = &self.by else { return Ok(()) };
        let weights = by(self.step);
        if let Some(problem) = problem(&weights, self.open.len(), true) {
            return Err(Error::config(format!("{problem}, at step {}", self.step)));
        }
        let now = shares(&weights);
        match self.stages.first() {
            Some((_, then)) if *then == now => {}
            _ => {
                self.stages = vec![(self.step, now)];
                self.stage = usize::MAX;
            }
        }
        Ok(())
    }

    /// Returns the stage of the step, or the next in which an open input has a share: a function of
    /// the step, and of the open inputs.
    fn stage_of_step(&self) -> usize {
        let since = at(&self.stages, self.step);
        let mut stages = self.stages[since..].iter();
        let has_turns = |(_, shares): &(u64, Vec<u64>)| {
            shares
                .iter()
                .zip(&self.open)
                .any(|(&share, &open)| open && share > 0)
        };
        stages.position(has_turns).map_or(since, |at| since + at)
    }

    fn enter(&mut self) {
        let stage = self.stage_of_step();
        if self.stage != stage {
            (self.stage, self.turn) = (stage, 0);
        }
        let shares = self.stages[stage].1.iter().zip(&self.open);
        self.shares = shares
            .map(|(&share, &open)| if open { share } else { 0 })
            .collect();
    }

    /// Leaves out an input; the shares of the others keep their proportions from here on.
    pub(super) fn leave_out(&mut self, input: usize) {
        self.open[input] = false;
        self.turn = 0;
        self.enter();
    }

    /// Records that an item came, or an error in its place.
    pub(super) fn gave(&mut self) -> Result<()> {
        self.step += 1;
        if self.by.is_some() {
            self.ask()?;
            self.enter();
        } else if self
            .stages
            .get(self.stage + 1)
            .is_some_and(|(from, _)| *from <= self.step)
        {
            self.enter();
        }
        Ok(())
    }

    pub(super) fn has(&self, input: usize) -> bool {
        self.open[input]
    }

    /// Returns the input whose turn it is, if there is one.
    pub(super) fn next(&mut self) -> Option<usize> {
        let whose = fair_share::whose(&self.shares, self.turn);
        self.turn += 1;
        whose.map(|(input, _)| input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn turns(weights: &[f64]) -> Turns {
        Turns::new(&Schedule::new(weights), None, weights.len()).unwrap()
    }

    #[test]
    fn shares_are_exact_at_every_point() {
        for weights in [
            vec![1.0],
            vec![0.7, 0.3],
            vec![5.0, 1.0, 3.0],
            vec![1.0, 1e6],
            vec![0.1, 0.2, 0.3, 0.4],
        ] {
            let total: f64 = weights.iter().sum();
            let mut turns = turns(&weights);
            let mut counts = vec![0u64; weights.len()];
            for n in 1..5000u32 {
                counts[turns.next().unwrap()] += 1;
                turns.gave().unwrap();
                for (count, weight) in counts.iter().zip(&weights) {
                    let due = f64::from(n) * weight / total;
                    let off = (*count as f64 - due).abs();
                    assert!(
                        off < weights.len() as f64,
                        "{weights:?}: {counts:?} after {n}"
                    );
                }
            }
        }
    }

    #[test]
    fn who_is_next_is_pinned() {
        let twelve = |weights: &[f64]| {
            let mut turns = turns(weights);
            (0..12).map(|_| turns.next().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(
            twelve(&[0.5, 0.25, 0.25]),
            [0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2]
        );
        assert_eq!(twelve(&[1.0, 2.0]), [0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]);
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        let mut turns = turns(&vec![1e15; 1000]);
        turns.turn = u64::MAX - 1;
        assert!(turns.next().is_some());
    }

    #[test]
    fn a_snapshot_that_does_not_fit_is_refused() {
        let wrong: [TurnsState; 4] = [
            ((0, 0, vec![true]), (vec![(0, vec![1, 1])], false)),
            ((0, 0, vec![true; 2]), (vec![], false)),
            ((0, 0, vec![true; 2]), (vec![(0, vec![1])], false)),
            (
                (9, 0, vec![true; 2]),
                (vec![(5, vec![1, 1]), (5, vec![1, 2])], false),
            ),
        ];
        for state in wrong {
            assert_eq!(
                turns(&[1.0, 2.0]).resume(state, 0).unwrap_err().kind(),
                ErrorKind::Config
            );
        }
        let by = ((0, 0, vec![true; 2]), (vec![(0, vec![1, 2])], true));
        assert_eq!(
            turns(&[1.0, 2.0]).resume(by, 0).unwrap_err().kind(),
            ErrorKind::Config
        );
    }
}
