//! Weights by the step of a mix, as plain data.

use super::fair_share;

/// Weights of a mix by its step, the number of items that it gave before: a curriculum as plain
/// data. See [`Graph::mix_scheduled`](crate::Graph::mix_scheduled).
///
/// ```
/// use datapipes::pipes::Schedule;
///
/// // At first easy ones alone, hard ones from step 1000 on, and in equal parts from 5000 on.
/// let schedule = Schedule::new([1.0, 0.0]).then(1000, [3.0, 1.0]).then(5000, [1.0, 1.0]);
/// assert_eq!(schedule.weights(1200), [3.0, 1.0]);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Schedule {
    /// First step and weights of each stage, ascending; the first from 0 on.
    pub(super) stages: Vec<(u64, Vec<f64>)>,
}

impl Schedule {
    /// Sets these weights from the beginning.
    pub fn new(weights: impl Into<Vec<f64>>) -> Self {
        Schedule {
            stages: vec![(0, weights.into())],
        }
    }

    /// Sets other weights from a step on, which has to come after those of the stages before.
    pub fn then(mut self, step: u64, weights: impl Into<Vec<f64>>) -> Self {
        self.stages.push((step, weights.into()));
        self
    }

    /// Returns the weights at a step.
    pub fn weights(&self, step: u64) -> &[f64] {
        let stages = self.stages.partition_point(|(from, _)| *from <= step);
        &self.stages[stages.max(1) - 1].1
    }

    /// Returns true if an input has no turns in the last stage, so that it may never be exhausted.
    pub(super) fn leaves_out(&self) -> bool {
        self.stages
            .last()
            .is_some_and(|(_, weights)| weights.contains(&0.0))
    }

    /// Returns the problem with the schedule for this number of inputs, if there is one.
    pub(super) fn problem(&self, inputs: usize) -> Option<String> {
        if !self.stages.is_sorted_by(|a, b| a.0 < b.0) {
            return Some("stages that do not begin one after the other".to_owned());
        }
        let zeros = self.stages.len() > 1;
        if let Some(problem) = self
            .stages
            .iter()
            .find_map(|(_, weights)| problem(weights, inputs, zeros))
        {
            return Some(problem);
        }
        let unused =
            (0..inputs).find(|&input| self.stages.iter().all(|(_, weights)| weights[input] == 0.0));
        unused.map(|input| format!("input {input} has no weight in any stage"))
    }
}

impl<const N: usize> From<[f64; N]> for Schedule {
    fn from(weights: [f64; N]) -> Self {
        Schedule::new(weights)
    }
}

conversions! {
    |weights: Vec<f64>| -> Schedule { Schedule::new(weights) }
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (from, weights) in &self.stages {
            match from {
                0 => write!(f, "{weights:?}")?,
                _ => write!(f, ", from {from} {weights:?}")?,
            }
        }
        Ok(())
    }
}

/// Returns the problem with some weights.
pub(super) fn problem(weights: &[f64], inputs: usize, zeros: bool) -> Option<String> {
    if !weights.is_empty() && weights.len() != inputs {
        return Some(format!("{} weights for {inputs} inputs", weights.len()));
    }
    fair_share::problem(weights, zeros).map(str::to_owned)
}
