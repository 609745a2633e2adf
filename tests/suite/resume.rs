//! Law 8 over generated graphs: a stopped epoch is resumed exactly, wherever it was stopped and
//! however it runs afterwards.

use datapipes::{Checkpoint, DataLoader, Epoch, Graph, Indexed, OnError, Order, Uneven};
use proptest::prelude::*;

use crate::graphs::{
    Outcome, Run, Spec, Step, config, items, same_outcome, skipped, spec, strict_run,
};
use crate::user_pipes::{Dealer, dealt};

proptest! {
    #![proptest_config(config(200))]

    /// Law 8: values, origins and errors, element by element; stopped twice, with other workers,
    /// queues and limits each time.
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

proptest! {
    #![proptest_config(config(60))]

    /// Law 8 over ranks: each resumes, and fewer share what is left of all.
    #[test]
    fn law_8_with_ranks(
        spec in streamed(resumable(spec())), runs in [strict_run(), strict_run()], stop in stops(),
        at in 0usize..8, (dealer, uneven) in dealt(),
        worlds in prop::sample::select(&[[1, 1], [2, 2], [2, 1], [3, 1], [4, 2], [4, 1]][..]),
    ) {
        Ranks { spec: &spec, at, dealer, uneven }.go_on(&runs, stop[0], worlds)?;
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
        fn law_8_with_processes_and_ranks(
            spec in streamed(resumable(spec_apart())), runs in [strict_run(), strict_run()], stop in stops(),
            at in 0usize..8,
        ) {
            Ranks { spec: &spec, at, dealer: Dealer::Filter, uneven: Uneven::Drop }.go_on(&runs, stop[0], [2, 1])?;
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

/// Graphs without functions over the stream, which keep nothing.
pub fn resumable(spec: impl Strategy<Value = Spec>) -> impl Strategy<Value = Spec> {
    spec.prop_filter("cannot be resumed", |spec| {
        !spec.any(&|step| matches!(step, Step::Through))
    })
}

/// Those that begin with a stream, of which the generator makes no other where there are ranks.
fn streamed(spec: impl Strategy<Value = Spec>) -> impl Strategy<Value = Spec> {
    spec.prop_filter("data by index", |spec| !spec.is_by_index())
}

/// Numbers of items after which it is stopped, and stopped again: anywhere, at the beginning, or
/// late.
fn stops() -> impl Strategy<Value = [usize; 2]> {
    let stop = || prop_oneof![1 => Just(0usize), 4 => 0usize..40, 2 => 0usize..500];
    [stop(), stop()]
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        Just(Order::Strict),
        Just(Order::Arrival),
        (0usize..100).prop_map(Order::Bounded)
    ]
}

/// An epoch of a graph, its parts one after the other.
struct Trip<'a> {
    spec: &'a Spec,
    skipped: Vec<String>,
    items: Vec<Result<(u64, String), String>>,
    state: Option<Checkpoint>,
}

impl<'a> Trip<'a> {
    fn new(spec: &'a Spec) -> Self {
        Trip {
            spec,
            skipped: Vec::new(),
            items: Vec::new(),
            state: None,
        }
    }

    fn loader(&self, run: &Run) -> DataLoader<u64> {
        let builder = run
            .builder(self.spec.graph())
            .on_error(OnError::skip(u64::MAX))
            .resumable();
        builder.build().expect("generated graphs are right")
    }

    /// Resumes the trip for at most `most` items.
    fn go(&mut self, run: &Run, most: usize) {
        if self.items.last().is_some_and(Result::is_err) {
            // It has ended; resumed, it would end so again.
            return;
        }
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
        let state = epoch.checkpoint().expect("a state");
        // Asked for twice, it is the same.
        assert_eq!(
            epoch.checkpoint().expect("a state").delivered(),
            state.delivered()
        );
        self.skipped.extend(skipped(epoch.stats()));
        self.state = Some(carried(&state));
    }

    fn outcome(mut self) -> Outcome {
        self.skipped.sort();
        Outcome {
            items: self.items,
            skipped: self.skipped,
        }
    }
}

/// Sends a checkpoint through bytes and through text, as if to another process.
fn carried(state: &Checkpoint) -> Checkpoint {
    let read = Checkpoint::from_bytes(&state.to_bytes()).expect("the same state");
    assert!(read == *state);
    let text = serde_json::to_string(&read).expect("it can be written");
    let read: Checkpoint =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(
        read == *state && read.to_bytes() == state.to_bytes(),
        "{text}"
    );
    read
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
        // The end is a checkpoint, too: no items follow it, and the next epoch is whole.
        let loader = Trip::new(spec).loader(&runs[1]);
        prop_assert_eq!(loader.resume(&end).unwrap().blocking().count(), 0);
        let next = items(loader.epoch(end.epoch() + 1));
        prop_assert_eq!(
            next,
            Run::inline(inline.seed, inline.epoch + 1)
                .outcome(spec)
                .items
        );
    }
    let mut outcome = trip.outcome();
    if whole.skipped.len() >= 1000 {
        // Only the first thousand skipped items of each part are recorded.
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
    let mut whole = Run::inline(runs[0].seed, runs[0].epoch)
        .outcome(spec)
        .sorted();
    let mut trip = Trip::new(spec);
    for (at, most) in [stops[0], stops[1], usize::MAX].into_iter().enumerate() {
        trip.go(
            &Run {
                order: orders[at],
                ..runs[at].clone()
            },
            most,
        );
    }
    let mut outcome = trip.outcome().sorted();
    if whole.skipped.len() >= 1000 {
        outcome.skipped.clear();
        whole.skipped.clear();
    }
    same_outcome(outcome, whole)
}

type Given = Vec<Result<(u64, String), String>>;

/// A graph for several ranks.
struct Ranks<'a> {
    spec: &'a Spec,
    /// Number of the step before which items are dealt to ranks.
    at: usize,
    dealer: Dealer,
    uneven: Uneven,
}

impl Ranks<'_> {
    /// Runs one rank for at most `most` items. Returns the items, and a checkpoint after them.
    fn run(
        &self,
        run: &Run,
        rank: usize,
        world: usize,
        from: Option<&Checkpoint>,
        most: usize,
    ) -> (Given, Checkpoint) {
        let builder = run
            .builder(self.spec.sharded(self.at, self.dealer))
            .rank(rank, world);
        let loader = builder
            .uneven(self.uneven)
            .resumable()
            .build()
            .expect("generated graphs are right");
        let epoch = from.map_or_else(
            || loader.epoch(run.epoch),
            |state| loader.resume(state).expect("it fits"),
        );
        let mut epoch = epoch.blocking();
        let mut given = Vec::new();
        while given.len() < most
            && let Some(item) = epoch.next_item()
        {
            let shown = item.map(|item| (*item, item.origin().to_string()));
            given.push(shown.map_err(|error| error.to_string()));
        }
        let state = epoch.checkpoint().expect("a state");
        (given, carried(&state))
    }

    fn go_on(
        &self,
        runs: &[Run; 2],
        stop: usize,
        [then, now]: [usize; 2],
    ) -> Result<(), TestCaseError> {
        let (one, other) = (
            &runs[0],
            &Run {
                seed: runs[0].seed,
                epoch: runs[0].epoch,
                ..runs[1].clone()
            },
        );
        let inline = &Run::inline(one.seed, one.epoch);
        let whole = |world| -> Vec<Given> {
            (0..world)
                .map(|rank| self.run(inline, rank, world, None, usize::MAX).0)
                .collect()
        };
        let all = whole(then);
        let (first, states): (Vec<_>, Vec<_>) = (0..then)
            .map(|rank| self.run(one, rank, then, None, stop))
            .unzip();
        for (rank, state) in states.iter().enumerate() {
            prop_assert_eq!(&first[rank], &all[rank][..stop.min(all[rank].len())]);
            if first[rank].last().is_none_or(Result::is_ok) {
                let rest = self.run(other, rank, then, Some(state), usize::MAX).0;
                prop_assert_eq!(
                    rest,
                    &all[rank][first[rank].len()..],
                    "rank {} of {}",
                    rank,
                    then
                );
            }
        }
        // A rank that has ended in an error has no rest, and ranks at different steps cannot be
        // merged.
        let Ok(state) = Checkpoint::merge(&states) else {
            return Ok(());
        };
        let state = carried(&state);
        if first
            .iter()
            .any(|given| given.last().is_some_and(Result::is_err))
        {
            return Ok(());
        }
        let rests: Vec<Given> = (0..now)
            .map(|rank| self.run(other, rank, now, Some(&state), usize::MAX).0)
            .collect();
        let in_turn: Vec<Given> = (0..now)
            .map(|rank| {
                let parts = (rank..then)
                    .step_by(now)
                    .map(|rank| all[rank][first[rank].len()..].iter());
                in_turn(parts.collect())
            })
            .collect();
        if rests != in_turn {
            // If positions follow from the number of steps, ranks share all items anew.
            let anew = whole(now);
            let from = first[0].len() * then / now;
            let anew: Vec<_> = anew
                .iter()
                .map(|given| given[from.min(given.len())..].to_vec())
                .collect();
            prop_assert_eq!(rests, anew, "{} to {} ranks; or {:?}", then, now, in_turn);
        }
        Ok(())
    }
}

/// One of each part after the other, until there are none, or to the first error.
fn in_turn(mut parts: Vec<std::slice::Iter<'_, Result<(u64, String), String>>>) -> Given {
    let mut given: Given = Vec::new();
    while parts.iter().any(|part| part.len() > 0) {
        for item in parts.iter_mut().filter_map(Iterator::next) {
            given.push(item.clone());
            if item.is_err() {
                return given;
            }
        }
    }
    given
}

/// Graphs whose cache holds what was drawn at random: an order and numbers.
fn cached(rounds: Option<u64>) -> Graph<u64> {
    let graph = Graph::range(0..40)
        .shuffle(40)
        .map_with_rng(|n, rng| n * 1000 + rng.below(1000))
        .cache(100);
    match rounds {
        Some(rounds) => graph.repeat(rounds),
        None => graph,
    }
}

/// Takes an epoch of a loader that has run earlier epochs, up to a place, and the rest of it by a
/// loader of a new process, whose cache is empty.
fn goes_on_in_a_new_process(make: impl Fn() -> Graph<u64>, epoch: u64, place: usize) {
    for workers in [0, 2] {
        let loader = |graph| {
            let builder = DataLoader::builder(graph).seed(7).workers(workers);
            builder.resumable().build().unwrap()
        };
        let first = loader(make());
        let whole = |epoch| items(first.epoch(epoch));
        let earlier: Vec<_> = (0..=epoch).map(whole).collect();
        let all = earlier.last().unwrap();
        let mut stopped = first.epoch(epoch).blocking();
        assert_eq!(stopped.by_ref().take(place).count(), place);
        let state = carried(&stopped.checkpoint().unwrap());
        let rest = items(loader(make()).resume(&state).unwrap());
        assert_eq!(rest, all[place..], "{workers} workers");
    }
}

#[test]
fn a_later_epoch_of_a_cache_goes_on_in_a_new_process() {
    goes_on_in_a_new_process(|| cached(None), 2, 13);
}

#[test]
fn a_later_round_of_a_cache_goes_on_in_a_new_process() {
    goes_on_in_a_new_process(|| cached(Some(3)), 0, 53);
    goes_on_in_a_new_process(|| cached(Some(3)), 1, 53);
}

#[test]
fn rounds_in_a_cache_differ() {
    let make = || Graph::range(0..20).shuffle(20).repeat(2).cache(100);
    let all = make().collect().unwrap();
    assert_ne!(all[..20], all[20..]);
    goes_on_in_a_new_process(make, 2, 27);
}

#[test]
fn a_later_round_of_a_cache_of_rounds_goes_on_in_a_new_process() {
    let make = || cached(None).repeat(2).cache(100).repeat(2);
    goes_on_in_a_new_process(make, 1, 107);
    let make = || {
        Graph::range(0..20)
            .shuffle(20)
            .repeat(2)
            .cache(100)
            .repeat(2)
    };
    goes_on_in_a_new_process(make, 1, 67);
}

#[test]
fn a_later_epoch_of_a_fork_with_a_cache_in_one_branch_goes_on_in_a_new_process() {
    for place in [13, 51] {
        let make = || {
            let random = |n, rng: &mut datapipes::Rng| n * 1000 + rng.below(1000);
            let [cached, past] = Graph::range(0..40).shuffle(40).map_with_rng(random).fork();
            Graph::concat([cached.cache(100), past.map(|n| n + 1_000_000)])
        };
        goes_on_in_a_new_process(make, 2, place);
    }
}

#[test]
fn a_later_epoch_of_a_cache_of_data_by_index_goes_on_in_a_new_process() {
    let make = || Indexed::range(20).shuffle().repeat(2).fetch().cache(100);
    let all = make().collect().unwrap();
    assert_ne!(all[..20], all[20..]);
    goes_on_in_a_new_process(make, 2, 27);
    goes_on_in_a_new_process(move || make().repeat(2), 1, 67);
}

#[cfg(target_os = "linux")]
#[test]
fn a_later_epoch_of_a_cache_of_what_processes_drew_goes_on_in_a_new_process() {
    let make = || {
        let drawn = Graph::range(0..20).in_processes(1, |numbers| {
            numbers.map_with_rng(|n, rng| n * 1000 + rng.below(1000))
        });
        drawn.cache(100)
    };
    goes_on_in_a_new_process(make, 1, 7);
}

#[test]
fn a_cache_that_keeps_nothing_changes_no_item() {
    let epochs = |most| {
        let graph = Graph::range(0..40).shuffle(40).cache(most);
        let loader = DataLoader::builder(graph).seed(7).build().unwrap();
        [0, 1, 2].map(|epoch| items(loader.epoch(epoch)))
    };
    assert_eq!(epochs(39), epochs(40));
}
