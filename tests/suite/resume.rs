//! Law 8 over generated graphs: a stopped epoch goes on exactly, wherever it was stopped and however it is run then.

use datapipes::{DataLoader, Epoch, OnError, Order, State};
use proptest::prelude::*;

use crate::graphs::{Outcome, Run, Spec, Step, items, spec, strict_run};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Law 8: values, origins and errors, element by element; stopped twice, with other workers, queues and limits each time.
    #[test]
    fn law_8_a_stopped_epoch_goes_on(
        spec in resumable(spec()), runs in [strict_run(), strict_run(), strict_run()], stops in stops(),
    ) {
        goes_on(&spec, &runs, stops)?;
    }

    /// Law 8 in any order: everything comes once.
    #[test]
    fn law_8_in_any_order(
        spec in resumable(spec()), runs in [strict_run(), strict_run(), strict_run()], stops in stops(),
        orders in [order(), order(), order()],
    ) {
        goes_on_in_any_order(&spec, &runs, stops, orders)?;
    }
}

#[cfg(target_os = "linux")]
mod apart {
    use super::*;
    use crate::graphs::{cases_apart, spec_apart};

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases_apart(24), ..ProptestConfig::default() })]

        #[test]
        fn law_8_with_processes(
            spec in resumable(spec_apart()), runs in [strict_run(), strict_run(), strict_run()], stops in stops(),
        ) {
            goes_on(&spec, &runs, stops)?;
        }

        #[test]
        fn law_8_with_processes_in_any_order(
            spec in resumable(spec_apart()), runs in [strict_run(), strict_run(), strict_run()], stops in stops(),
            orders in [order(), order(), order()],
        ) {
            goes_on_in_any_order(&spec, &runs, stops, orders)?;
        }
    }
}

/// Without functions over the stream, which keep nothing; and without caches of what is random in rounds of one epoch, which
/// another process fills in another round.
fn resumable(spec: impl Strategy<Value = Spec>) -> impl Strategy<Value = Spec> {
    let again = |step: &Step| matches!(step, Step::Repeat(_) | Step::Cycle(_) | Step::Mix(..));
    spec.prop_filter("cannot be resumed", move |spec| {
        let through = spec.any(&|step| matches!(step, Step::Through));
        !(through || spec.freezes() && spec.any(&again))
    })
}

/// After how many items it is stopped, and stopped again: anywhere, at the beginning, or late.
fn stops() -> impl Strategy<Value = [usize; 2]> {
    let stop = || prop_oneof![1 => Just(0usize), 4 => 0usize..40, 2 => 0usize..500];
    [stop(), stop()]
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Strict), Just(Order::Arrival), (0usize..100).prop_map(Order::Bounded)]
}

/// An epoch of a graph, its parts one after the other.
struct Trip<'a> {
    spec: &'a Spec,
    policy: OnError,
    items: Vec<Result<(u64, String), String>>,
    state: Option<State>,
}

impl<'a> Trip<'a> {
    fn new(spec: &'a Spec) -> Self {
        Trip { spec, policy: OnError::skip(u64::MAX), items: Vec::new(), state: None }
    }

    fn loader(&self, run: &Run) -> DataLoader<u64> {
        let builder = run.builder(self.spec.graph()).on_error(self.policy.clone()).resumable();
        builder.build().expect("generated graphs are right")
    }

    /// Goes on for so many items.
    fn go(&mut self, run: &Run, most: usize) {
        let loader = self.loader(run);
        let epoch = match &self.state {
            None => loader.epoch(run.epoch),
            Some(state) => loader.resume(state).expect("a state of this graph"),
        };
        self.take(epoch, most);
    }

    fn take(&mut self, epoch: Epoch<u64>, most: usize) {
        let mut epoch = epoch.blocking();
        for _ in 0..most {
            let Some(item) = epoch.next_item() else { break };
            let shown = item.map(|item| (*item, item.origin().to_string()));
            self.items.push(shown.map_err(|error| error.to_string()));
        }
        let state = epoch.state().expect("a state");
        // Through bytes, as to another process; asked for twice, it is the same.
        assert_eq!(epoch.state().expect("a state").delivered(), state.delivered());
        self.state = Some(State::from_bytes(&state.to_bytes()).expect("the same state"));
    }

    fn outcome(self) -> Outcome {
        let mut skipped: Vec<String> = self.policy.skipped().into_iter().map(|s| s.error).collect();
        skipped.sort();
        Outcome { items: self.items, skipped }
    }
}

/// One after the other with the same seed and epoch.
fn alike(runs: &[Run; 3]) -> [Run; 3] {
    let Run { seed, epoch, .. } = runs[0];
    runs.clone().map(|run| Run { seed, epoch, ..run })
}

fn goes_on(spec: &Spec, runs: &[Run; 3], stops: [usize; 2]) -> Result<(), TestCaseError> {
    let runs = alike(runs);
    let inline = Run::inline(runs[0].seed, runs[0].epoch);
    let mut whole = inline.outcome(spec);
    let mut trip = Trip::new(spec);
    trip.go(&runs[0], stops[0]);
    trip.go(&runs[1], stops[1]);
    trip.go(&runs[2], usize::MAX);
    let end = trip.state.clone().expect("a state");
    let ended = !trip.items.last().is_some_and(Result::is_err);
    prop_assert_eq!(end.is_finished(), ended);
    if ended {
        // The end is a value: nothing comes behind it, and the next epoch is whole.
        let loader = Trip::new(spec).loader(&runs[1]);
        prop_assert_eq!(loader.resume(&end).unwrap().blocking().count(), 0);
        if !spec.freezes() {
            let next = items(loader.epoch(end.epoch() + 1));
            prop_assert_eq!(next, Run::inline(inline.seed, inline.epoch + 1).outcome(spec).items);
        }
    }
    let mut outcome = trip.outcome();
    if whole.skipped.len() >= 1000 {
        // Only the first thousand of each part are kept.
        outcome.skipped.clear();
        whole.skipped.clear();
    }
    prop_assert_eq!(outcome, whole);
    Ok(())
}

fn goes_on_in_any_order(
    spec: &Spec,
    runs: &[Run; 3],
    stops: [usize; 2],
    orders: [Order; 3],
) -> Result<(), TestCaseError> {
    prop_assume!(!spec.groups());
    let runs = alike(runs);
    let mut whole = Run::inline(runs[0].seed, runs[0].epoch).outcome(spec).sorted();
    let mut trip = Trip::new(spec);
    for (at, most) in [stops[0], stops[1], usize::MAX].into_iter().enumerate() {
        trip.go(&Run { order: orders[at], ..runs[at].clone() }, most);
    }
    let mut outcome = trip.outcome().sorted();
    if whole.skipped.len() >= 1000 {
        outcome.skipped.clear();
        whole.skipped.clear();
    }
    prop_assert_eq!(outcome, whole);
    Ok(())
}
