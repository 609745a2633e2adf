//! Common checks of sources, joins and splits: a node, run in every way that its readers may.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::feed::{Feed, Opening};
use super::{Gauge, Outcome, outcome};
use crate::checkpoint::NodeState;
use crate::graph::AnyItems;
use crate::items::Demand;
use crate::{Arity, Chunk, Context, ErrorKind, Hints, Items, Wanted};

/// Makes the streams of a node.
pub(super) type Apply<'a, T> = &'a dyn Fn(Vec<AnyItems>, &Context) -> Vec<Items<T>>;

/// A node without the types of its inputs.
pub(super) struct Node<'a, T> {
    pub feeds: Vec<Feed>,
    pub outputs: usize,
    pub hints: Hints,
    pub apply: Apply<'a, T>,
    pub context: Context,
    /// The input positions that a pipe holds, if it says so itself.
    pub held: &'a dyn Fn(&Context) -> Option<Vec<u64>>,
}

/// The sequence in which outputs are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// Some items of each, by turns.
    Turns,
    /// One after the other, the first first.
    Forwards,
    /// One after the other, the last first.
    Backwards,
    Random(u64),
}

/// Number of items above which a node is not stopped after each of them.
const MOST: usize = 4096;
/// Time after which a node that has not woken its reader is taken to hang.
const HANG_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns empty outcomes for all outputs.
pub(super) fn nothing<T>(outputs: usize) -> Vec<Outcome<T>> {
    (0..outputs).map(|_| Vec::new()).collect()
}

/// Outputs that are read in some sequence.
pub(super) struct Reading<T> {
    /// The outputs; `None` for an output that was dropped.
    pub outputs: Vec<Option<Items<T>>>,
    ended: Vec<bool>,
    way: Way,
    turn: u64,
    /// True if one ran so far ahead of the others that its buffers were too small.
    pub overrun: bool,
}

impl<T: Send + 'static> Reading<T> {
    pub fn new(outputs: Vec<Items<T>>, way: Way) -> Self {
        let ended = vec![false; outputs.len()];
        let outputs = outputs.into_iter().map(Some).collect();
        Reading {
            outputs,
            ended,
            way,
            turn: 0,
            overrun: false,
        }
    }

    /// Returns the output whose turn it is, of those that may have more.
    fn turn(&mut self) -> Option<usize> {
        let open: Vec<usize> = (0..self.ended.len())
            .filter(|&at| !self.ended[at] && self.outputs[at].is_some())
            .collect();
        self.turn += 1;
        let last = open.len().checked_sub(1)?;
        let at = match self.way {
            Way::Turns => self.turn as usize % open.len(),
            Way::Forwards => 0,
            Way::Backwards => last,
            Way::Random(seed) => crate::mix_bits(seed ^ self.turn) as usize % open.len(),
        };
        Some(open[at])
    }

    /// Returns the next chunk, and its output; `None` if all have ended.
    pub fn next(&mut self, chunk: usize) -> Option<(usize, Chunk<T>)> {
        loop {
            let at = self.turn()?;
            match next_chunk(
                self.outputs[at].as_mut().expect("it is open"),
                chunk,
                HANG_TIMEOUT,
            ) {
                None => self.ended[at] = true,
                Some(chunk) => return Some((at, chunk)),
            }
        }
    }

    /// Reads up to this many items and errors of all outputs together.
    pub fn read(&mut self, most: usize, chunk: usize) -> Vec<Outcome<T>> {
        let (mut seen, mut left) = (nothing(self.outputs.len()), most);
        while left > 0
            && let Some((at, chunk)) = self.next(chunk)
        {
            for item in chunk.into_iter().take(left) {
                self.overrun |= is_overrun(&item);
                seen[at].push(outcome(item));
                left -= 1;
            }
            assert!(
                seen[at].len() <= MOST,
                "it gives more than {MOST} items: check it on less, since it is stopped after each of them"
            );
        }
        seen
    }
}

/// Waits for the next chunk, but not for ever.
fn next_chunk<T: Send + 'static>(
    items: &mut Items<T>,
    most: usize,
    hang_timeout: Duration,
) -> Option<Chunk<T>> {
    struct Woken(std::thread::Thread, AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::Release);
            self.0.unpark();
        }
    }
    let woken = Arc::new(Woken(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut cx = task::Context::from_waker(&waker);
    loop {
        if let Poll::Ready(chunk) = items.poll_chunk(&mut cx, Demand::up_to(most)) {
            assert!(
                chunk.as_ref().is_none_or(|chunk| !chunk.is_empty()),
                "an empty chunk"
            );
            return chunk;
        }
        let begun = Instant::now();
        while !woken.1.swap(false, Ordering::Acquire) {
            let left = hang_timeout.saturating_sub(begun.elapsed());
            assert!(
                !left.is_zero(),
                "it is pending, and nobody wakes its reader: it would wait for ever"
            );
            std::thread::park_timeout(left);
        }
    }
}

impl<T: Send + 'static> Node<'_, T> {
    pub fn clean(&self) -> Vec<Vec<Option<usize>>> {
        self.feeds.iter().map(Feed::clean).collect()
    }

    /// Returns sequences of the inputs without errors, and with few and many of them between the items.
    pub fn sequences(&self) -> Vec<Vec<Vec<Option<usize>>>> {
        if self.feeds.is_empty() {
            return vec![Vec::new()];
        }
        let errors: [&dyn Fn(usize) -> Vec<usize>; 4] = [
            &|_| Vec::new(),
            &|len| vec![len, len / 2, len / 3, 0],
            // One before each item.
            &|len| (0..=len).collect(),
            &|len| (1..=len).step_by(3).flat_map(|at| [at, at]).collect(),
        ];
        let failing = |errors: &dyn Fn(usize) -> Vec<usize>| {
            let feeds = self.feeds.iter();
            feeds
                .map(|feed| feed.failing(&errors(feed.len())))
                .collect()
        };
        errors.map(failing).into()
    }

    /// Opens its inputs, which have these items and errors, each as `how` sets.
    pub fn open(
        &self,
        sequences: &[Vec<Option<usize>>],
        mut how: impl FnMut(usize, &mut Opening),
    ) -> Vec<AnyItems> {
        let inputs = self
            .feeds
            .iter()
            .zip(sequences)
            .enumerate()
            .map(|(at, (feed, sequence))| {
                let mut opening = Opening::all(sequence.clone());
                how(at, &mut opening);
                feed.open(&opening)
            });
        inputs.collect()
    }

    /// Returns its outputs for these inputs.
    pub fn apply(&self, inputs: Vec<AnyItems>, cx: &Context) -> Vec<Items<T>> {
        let outputs = (self.apply)(inputs, cx);
        assert_eq!(
            outputs.len(),
            self.outputs,
            "says that it has {} outputs, and makes another number",
            self.outputs
        );
        outputs
    }

    /// Returns its outputs for its inputs without errors.
    fn plain(&self, how: impl FnMut(usize, &mut Opening)) -> Vec<Items<T>> {
        self.apply(self.open(&self.clean(), how), &self.context)
    }

    /// Returns the ways to read that make a difference.
    pub fn ways(&self) -> &'static [Way] {
        match self.outputs {
            1 => &[Way::Turns],
            _ => &[
                Way::Turns,
                Way::Forwards,
                Way::Backwards,
                Way::Random(1),
                Way::Random(2),
            ],
        }
    }
}

impl<T: PartialEq + Debug + Send + 'static> Node<'_, T> {
    /// Returns its outputs, and the ways to read them that its buffers have room for.
    pub fn whole(&self) -> (Vec<Outcome<T>>, Vec<Way>) {
        let (mut whole, mut ways) = (None, Vec::new());
        for &way in self.ways() {
            let mut reading = Reading::new(self.plain(|_, _| ()), way);
            let seen = reading.read(usize::MAX, 1);
            if reading.overrun && self.outputs > 1 {
                continue;
            }
            ways.push(way);
            match &whole {
                None => whole = Some(seen),
                Some(whole) => assert_eq!(
                    &seen, whole,
                    "its outputs give something else, read in another sequence ({way:?})"
                ),
            }
        }
        let whole = whole.expect(
            "no sequence of reading its outputs ends without an error: more has to wait in them",
        );
        (whole, ways)
    }

    /// Checks that the node is lazy, reusable and patient, and ends without inputs; and that its
    /// resources are released when its outputs are dropped.
    pub fn check_plain(&self, whole: &[Outcome<T>], ways: &[Way]) {
        let gauges = || {
            self.feeds
                .iter()
                .map(|_| Gauge::default())
                .collect::<Vec<_>>()
        };
        let watched = gauges();
        let lazy = self.plain(|at, opening| opening.gauge = Some(watched[at].clone()));
        assert!(
            watched.iter().all(|gauge| gauge.polls() == 0),
            "making its outputs polls its inputs"
        );
        drop(lazy);
        let held = watched.iter().position(|gauge| !gauge.dropped());
        assert!(
            held.is_none(),
            "dropping the output before the first poll keeps input {held:?} alive"
        );

        let total: usize = whole.iter().map(Vec::len).sum();
        for &way in ways {
            for taken in 0..=total {
                let watched = gauges();
                let outputs = self.plain(|at, opening| opening.gauge = Some(watched[at].clone()));
                let mut reading = Reading::new(outputs, way);
                reading.read(taken, 1);
                self.assert_whole(
                    whole,
                    self.plain(|_, _| ()),
                    (way, 1),
                    "a second one, beside a first",
                );
                drop(reading);
                let held = watched.iter().position(|gauge| !gauge.dropped());
                assert!(
                    held.is_none(),
                    "dropping the output after {taken} items keeps input {held:?} alive"
                );
                self.check_dropped_one(whole, way, taken);
            }
            for demand in [1, 2, 7, 1000] {
                let what = "asked for other amounts at once";
                self.assert_whole(whole, self.plain(|_, _| ()), (way, demand), what);
            }
            for seed in 0..8 {
                let paused =
                    self.plain(|at, opening| opening.pausing = Some(seed + 100 * at as u64));
                self.assert_whole(whole, paused, (way, 64), "an input that pauses");
            }
        }
        // Without items it has to come to an end.
        for empty in 0..=self.feeds.len() {
            let none = |at| at == empty || empty == self.feeds.len();
            let inputs = self.open(&self.clean(), |at, opening| {
                if none(at) {
                    opening.sequence.clear();
                }
            });
            Reading::new(self.apply(inputs, &self.context), ways[0]).read(usize::MAX, 64);
        }
    }

    /// Checks sets of wanted positions: all from each place on, and some of those before.
    pub fn check_positions(&self) {
        for sequences in &self.sequences() {
            let run = |wanted: &Wanted, chunk: usize| {
                let inputs = self.open(sequences, |_, opening| {
                    if self.hints.arity == Arity::One {
                        opening.wanted = wanted.clone();
                    }
                });
                let node_state = NodeState {
                    wanted: Some(wanted.clone()),
                    ..NodeState::default()
                };
                let outputs = self.apply(inputs, &self.context.with_node_state(node_state));
                Reading::new(outputs, Way::Turns)
                    .read(usize::MAX, chunk)
                    .swap_remove(0)
            };
            let whole = run(&Wanted::since(0), 1);
            for from in 0..=whole.len() as u64 {
                for (every, chunk) in [(usize::MAX, 1), (1, 1), (3, 1), (3, 64), (2, 7)] {
                    let wanted = Wanted::new((0..from).step_by(every).collect(), from);
                    let places = wanted.positions(whole.len() as u64);
                    let expected: Vec<_> = places.map(|at| &whole[at as usize]).collect();
                    let seen = run(&wanted, chunk);
                    assert!(
                        seen.iter().eq(expected.iter().copied()),
                        "says that it goes by position; of {wanted:?} it gives {seen:?}, and not {expected:?}"
                    );
                }
            }
        }
    }

    fn assert_whole(
        &self,
        whole: &[Outcome<T>],
        outputs: Vec<Items<T>>,
        (way, chunk): (Way, usize),
        what: &str,
    ) {
        let mut reading = Reading::new(outputs, way);
        let seen = reading.read(usize::MAX, chunk);
        // With another demand an output may run further ahead of the others than the buffers hold.
        if !(reading.overrun && self.outputs > 1) {
            assert_eq!(seen, whole, "{what}, gives something else");
        }
    }

    /// Checks that an output that is dropped holds up none of the others, and takes nothing from
    /// them.
    fn check_dropped_one(&self, whole: &[Outcome<T>], way: Way, taken: usize) {
        for dropped in (0..self.outputs).filter(|_| self.outputs > 1) {
            let mut reading = Reading::new(self.plain(|_, _| ()), way);
            let mut seen = reading.read(taken, 1);
            reading.outputs[dropped] = None;
            let rest = reading.read(usize::MAX, 1);
            seen.iter_mut()
                .zip(rest)
                .for_each(|(seen, rest)| seen.extend(rest));
            for at in (0..self.outputs).filter(|&at| at != dropped && !reading.overrun) {
                assert_eq!(
                    seen[at], whole[at],
                    "output {at} gives something else where output {dropped} was dropped after {taken} items"
                );
            }
        }
    }
}

/// Checks a length hint for inputs of these lengths, and with one of them unknown.
pub(super) fn check_len(lengths: &[u64], whole: u64, hint: impl Fn(&[Option<u64>]) -> Option<u64>) {
    for unknown in 0..=lengths.len() {
        let mut inputs: Vec<Option<u64>> = lengths.iter().copied().map(Some).collect();
        inputs
            .iter_mut()
            .skip(unknown)
            .take(1)
            .for_each(|len| *len = None);
        if let Some(said) = hint(&inputs) {
            assert_eq!(
                whole, said,
                "its hint of the length is wrong, for inputs of {inputs:?}"
            );
        }
    }
}

/// Returns true if one output ran so far ahead of the others that their buffers were too small.
pub(super) fn is_overrun<T>(item: &crate::Result<T>) -> bool {
    item.as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::Config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "nobody wakes its reader")]
    fn who_waits_for_ever_is_found_out() {
        let mut never = Items::<u8>::from_stream(futures::stream::pending());
        next_chunk(&mut never, 1, Duration::from_millis(1));
    }
}
