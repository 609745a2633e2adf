//! Checks of errors and panics in the inputs of a node.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::node::{Node, Reading, Way};
use super::{Gauge, MARK, Outcome};
use crate::Origin;

impl<T: PartialEq + Debug + Send + 'static> Node<'_, T> {
    /// Checks that errors of its inputs, and a panic, come out.
    pub fn check_errors(&self, whole: &[Outcome<T>], way: Way) {
        for input in 0..self.feeds.len() {
            let len = self.feeds[input].len();
            for before in [0, len / 2, len] {
                self.check_error(whole, way, (input, before));
            }
            self.check_panic(way, input);
        }
    }

    /// Checks that a panic of an input arrives.
    pub fn check_panic(&self, way: Way, input: usize) {
        let gauge = Gauge::default();
        let seen = catch_unwind(AssertUnwindSafe(|| {
            let inputs = self.open(&self.clean(), |at, opening| {
                if at == input {
                    opening.sequence.clear();
                    (opening.panics, opening.gauge) = (true, Some(gauge.clone()));
                }
            });
            Reading::new(self.apply(inputs, &self.context), way).read(usize::MAX, 1)
        }));
        let arrived = seen.map_or(true, |seen| seen.iter().flatten().any(is_mark));
        assert!(
            arrived || gauge.polls() == 0,
            "a panic of input {input} is swallowed"
        );
    }

    fn check_error(&self, whole: &[Outcome<T>], way: Way, (input, before): (usize, usize)) {
        let mut sequences = self.clean();
        sequences[input] = self.feeds[input].failing(&[before]);
        let taken = Arc::new(AtomicU64::new(0));
        let inputs = self.open(&sequences, |at, opening| {
            opening.taken = (at == input).then(|| taken.clone());
        });
        let mut reading = Reading::new(self.apply(inputs, &self.context), way);
        let mut seen = reading.read(usize::MAX, 1);
        if reading.overrun && self.outputs > 1 {
            // With an additional error one output is too far ahead of the others.
            return;
        }
        let place = format!("an error in input {input}, before its item {before}");
        let errors: Vec<usize> = seen
            .iter()
            .map(|seen| seen.iter().filter(|item| is_mark(item)).count())
            .collect();
        let was_taken = taken.load(Ordering::Relaxed) > before as u64;
        assert!(
            !was_taken || errors.iter().any(|&errors| errors > 0),
            "{place}, was taken, and did not come out"
        );
        for (at, seen) in seen.iter_mut().enumerate() {
            let errors = errors[at];
            assert!(errors <= 1, "{place}, came out {errors} times: {seen:?}");
            let Some(first) = seen.iter().position(is_mark) else {
                continue;
            };
            assert!(
                whole[at].starts_with(&seen[..first]),
                "{place}, came out of its place: before it there is {:?}, and without it {:?}",
                &seen[..first],
                whole[at]
            );
            let behind = |item: &std::result::Result<(T, Origin), String>| {
                let (_, origin) = item.as_ref().ok()?;
                index_in(origin, input).filter(|&index| index >= before as u64)
            };
            // A node that keeps the order of an input passes its errors on before later items.
            let keeps_order = whole[at]
                .iter()
                .filter_map(|item| index_in(&item.as_ref().ok()?.1, input))
                .is_sorted();
            let late = seen[..first]
                .iter()
                .find_map(behind)
                .filter(|_| keeps_order);
            assert!(
                late.is_none(),
                "{place}, came out of its place: after item {late:?} of that input"
            );
            seen.retain(|item| !is_mark(item));
            // A node that passes its inputs on has lost nothing; a node that pairs items may have
            // to leave out a partner.
            if self.hints.selects && self.hints.ignores_order {
                let lost = whole[at].iter().find(|item| !seen.contains(item));
                assert!(
                    lost.is_none() && seen.len() == whole[at].len(),
                    "{place}, costs another: {lost:?}"
                );
            }
        }
    }
}

/// Returns the index of the last item of an input that an item is made of.
fn index_in(origin: &Origin, input: usize) -> Option<u64> {
    match (origin.parts(), origin.parent()) {
        ([], None) => (origin.source() == u16::try_from(input).ok()).then(|| origin.index()),
        ([], Some(parent)) => index_in(parent, input),
        (parts, _) => parts.iter().filter_map(|part| index_in(part, input)).max(),
    }
}

/// Returns true if it is the error that was put into an input.
fn is_mark<T>(item: &std::result::Result<T, String>) -> bool {
    item.as_ref().is_err_and(|text| text.contains(MARK))
}
