//! Checks that a pipe goes on where it was stopped, run as a resumable loader runs it.

use std::fmt::Debug;
use std::sync::Arc;

use super::{MARK, Outcome, block_on, outcome};
use crate::checkpoint::{
    ByPosition, Cursor, History, NodeState, Point, Recorder, Saving, SnapshotHistory, Trim,
};
use crate::{Arity, Context, Error, ErrorKind, Item, Items, Pipe, Wanted};

/// Input of a pipe; `None` stands for an error.
pub(super) type Input<In> = [Option<Item<In>>];

/// Stops at every place, goes on, stops again, and goes on to the end.
pub(super) fn check_resumed<In, P>(pipe: &P, items: &[Item<In>])
where
    In: Clone + Debug + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    for input in &with_errors(items) {
        for (chunk, always) in [(1, true), (1, false), (3, true), (64, false)] {
            match pipe.hints().by_position {
                true => check_positions(pipe, input, chunk),
                false => check_recorded(pipe, input, chunk, always),
            }
        }
    }
}

/// Returns the items alone, and with errors between them: some, one after each, and several in a
/// row, so that some are within any group that a pipe makes.
pub(super) fn with_errors<In: Clone>(items: &[Item<In>]) -> Vec<Vec<Option<Item<In>>>> {
    let few = [items.len(), items.len() / 2, items.len() / 3, 0];
    let densities: [&dyn Fn(usize) -> usize; 4] = [
        &|_| 0,
        &|at| few.iter().filter(|&&error| error == at).count(),
        &|_| 1,
        &|at| {
            if at % 3 == 1 { 2 } else { 0 }
        },
    ];
    let failing = |errors: &dyn Fn(usize) -> usize| {
        let some = |at: usize| {
            std::iter::repeat_n(None, errors(at))
                .chain(items.get(at).map(|item| Some(item.clone())))
        };
        (0..=items.len()).flat_map(some).collect()
    };
    densities.into_iter().map(failing).collect()
}

/// Returns the input at these positions.
pub(super) fn given<In: Clone + Send + 'static>(input: &Input<In>, wanted: &Wanted) -> Items<In> {
    let end = input.len() as u64;
    let items = wanted.positions(end).map(|at| match &input[at as usize] {
        Some(item) => Ok(item.clone()),
        None => Err(Error::new(ErrorKind::User, MARK)),
    });
    Items::from_results(items.collect::<Vec<_>>())
}

/// Reads up to `most` items and errors, asking for `chunk` at once.
fn read<T: Send + 'static>(items: &mut Items<T>, most: usize, chunk: usize) -> Outcome<T> {
    let mut seen = Vec::new();
    while seen.len() < most
        && let Some(some) = block_on(items.next_chunk(chunk))
    {
        seen.extend(some.into_iter().map(outcome));
    }
    seen.truncate(most);
    seen
}

/// Returns the cursor of a node that leads to a point of a stream.
pub(super) fn saved(history: &dyn History, point: Point, node: &str) -> Cursor {
    let mut saving = Saving::all(history, point);
    if let Some(problem) = saving.problem {
        panic!("cannot take a snapshot: {problem}");
    }
    let cursor = saving.cursors.remove(node);
    cursor.expect("a node that runs has a place")
}

fn check_positions<In, P>(pipe: &P, input: &Input<In>, chunk: usize)
where
    In: Clone + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    let run = |wanted: Wanted| {
        let whole = Wanted::since(0);
        let above = given(
            input,
            if pipe.hints().arity == Arity::One {
                &wanted
            } else {
                &whole
            },
        );
        let node_state = NodeState {
            wanted: Some(wanted),
            ..NodeState::default()
        };
        read(
            &mut pipe.apply(above, &Context::default().with_node_state(node_state)),
            usize::MAX,
            chunk,
        )
    };
    let whole = run(Wanted::since(0));
    for from in 0..=whole.len() as u64 {
        for every in [usize::MAX, 1, 3] {
            let wanted = Wanted::new((0..from).step_by(every).collect(), from);
            let places = wanted.positions(whole.len() as u64);
            let expected: Vec<_> = places.map(|at| &whole[at as usize]).collect();
            let seen = run(wanted.clone());
            assert!(
                seen.iter().eq(expected.iter().copied()),
                "says that it goes by position; of {wanted:?} it gives {seen:?}, and not {expected:?}"
            );
        }
    }
}

/// A running pipe.
pub(super) struct Running<T> {
    items: Items<T>,
    recorder: Arc<Recorder>,
    position: u64,
    chunk: usize,
}

impl<T: Send + 'static> Running<T> {
    pub(super) fn start<In, P>(
        pipe: &P,
        cx: &Context,
        input: &Input<In>,
        stopped: Option<(u64, Cursor)>,
        how: (usize, bool),
    ) -> Self
    where
        In: Clone + Send + 'static,
        P: Pipe<In, Out = T>,
    {
        let (chunk, always) = how;
        let (position, cursor) = stopped.unzip();
        let state = cursor.as_ref().map(|cursor| cursor.state.clone().into());
        let node_state = NodeState {
            state,
            ..NodeState::default()
        };
        let mut wanted = cursor
            .as_ref()
            .map_or(Wanted::since(0), |cursor| cursor.inputs[0].wanted());
        if cursor.is_some()
            && let Some(held) = pipe.held(&cx.with_node_state(node_state.clone()))
        {
            wanted = Wanted::new(held, wanted.from());
        }
        let above = given(input, &wanted);
        let trace = Arc::new(ByPosition("input".into()));
        let inputs = vec![(wanted, trace as _)];
        let recorder = Recorder::new(
            NODE.into(),
            0,
            1,
            Trim::default(),
            inputs,
            cursor.as_ref(),
            false,
        );
        if always {
            recorder.always();
        }
        let node_state = NodeState {
            recorder: Some(recorder.clone()),
            ..node_state
        };
        let above = above.counted(Some(recorder.taken(0)), None);
        let items = pipe.apply(above, &cx.with_node_state(node_state));
        let mut items = items.counted(None, Some(recorder.produced(0).clone()));
        // Repeated outputs are left out downstream.
        let position = position.unwrap_or(0);
        let again = position - cursor.map_or(0, |cursor| cursor.outputs[0]);
        let seen = read(&mut items, again as usize, 1).len() as u64;
        assert_eq!(
            seen, again,
            "an epoch that goes on ends before the place where it was stopped"
        );
        Running {
            items,
            recorder,
            position,
            chunk,
        }
    }

    pub(super) fn read(&mut self, most: usize) -> Outcome<T> {
        let seen = read(&mut self.items, most, self.chunk);
        self.position += seen.len() as u64;
        seen
    }

    /// Returns its cursor.
    pub(super) fn stop(self) -> (u64, Cursor) {
        let cursor = saved(
            &SnapshotHistory(self.recorder, 0),
            Point::at(self.position),
            NODE,
        );
        assert!(
            cursor.outputs[0] <= self.position,
            "it was recorded too late"
        );
        (self.position, cursor)
    }
}

const NODE: &str = "pipe";

fn check_recorded<In, P>(pipe: &P, input: &Input<In>, chunk: usize, always: bool)
where
    In: Clone + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    let cx = Context::default();
    let start = |stopped| Running::start(pipe, &cx, input, stopped, (chunk, always));
    let whole = start(None).read(usize::MAX);
    let plain = read(
        &mut pipe.apply(given(input, &Wanted::since(0)), &cx),
        usize::MAX,
        1,
    );
    assert_eq!(
        whole, plain,
        "in an epoch that may be stopped it gives something else"
    );
    for stop in 0..=whole.len() {
        let mut run = start(None);
        let mut seen = run.read(stop);
        for some in [2, 5, usize::MAX] {
            run = start(Some(run.stop()));
            seen.extend(run.read(some));
        }
        assert_eq!(
            seen,
            whole,
            "says that it is resumable, but stopped after {stop} items gives something else{}",
            if input.iter().any(Option::is_none) {
                " (its input has errors)"
            } else {
                ""
            }
        );
        let mut over = start(Some(run.stop()));
        assert_eq!(over.read(usize::MAX), [], "goes on after its end");
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_pipe;
    use super::*;
    use crate::pipes::*;

    #[test]
    fn pipes_of_the_library_go_on() {
        let numbers = || (0..20u64).collect::<Vec<_>>();
        for count in super::super::some_of([0, 1, 7, 20, 30]) {
            // Errors after its end do not come out of it.
            check_resumed(&Take::new(count), &super::super::numbered(&numbers()));
            check_pipe(&Skip::new(count), numbers());
            check_pipe(&Sample::new(count.max(1) as usize), numbers());
        }
        check_pipe(&Enumerate::new(), numbers());
        check_pipe(&Prefetch::new(3), numbers());
        check_pipe(&ShardingFilter::new(), numbers());
        check_pipe(&ShardingFilterPadded::new(), numbers());
        check_pipe(&SampleWith::new(0.5), numbers());
        check_pipe(&Unbatch::new(), vec![vec![1, 2], vec![], vec![3]]);
        let length = |n: &u64| *n as usize % 7;
        check_pipe(&BucketBatch::new(length, [2, 4], [3, 2, 4]), numbers());
        let sum = |sum: &mut u64, n: u64| {
            *sum += n;
            Some(*sum)
        };
        check_pipe(&Scan::new(0, sum).resumable(), numbers());
    }

    /// Adds numbers up; declares that it is resumable, and its snapshot is too small for that.
    struct Sums {
        keeps: bool,
    }

    impl Pipe<u64> for Sums {
        type Out = u64;
        fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<u64> {
            let (cx, keeps) = (cx.clone(), self.keeps);
            Items::generate(async move |out| {
                let mut sum = cx.restored().ok().flatten().unwrap_or(0u64);
                loop {
                    out.snapshot(&cx, || if keeps { sum } else { 0 });
                    let Some(item) = out.next_from(&mut input).await else {
                        return;
                    };
                    sum += *item;
                    out.emit(Ok(item.map(|_| sum))).await;
                }
            })
        }
        fn hints(&self) -> crate::Hints {
            crate::Hints::default().is_resumable(true)
        }
    }

    /// Numbers its items, and wrongly declares that it does so by position.
    struct Counts;

    impl Pipe<u64> for Counts {
        type Out = u64;
        fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
            let mut count = 0;
            input.each(cx, move |item| {
                count += 1;
                Some(Ok(item.map(|_| count)))
            })
        }
        fn hints(&self) -> crate::Hints {
            crate::Hints::default()
                .arity(Arity::One)
                .is_resumable(true)
                .by_position(true)
        }
    }

    #[test]
    fn a_pipe_that_loses_its_state_is_found_out() {
        check_pipe(&Sums { keeps: true }, (0..12).collect());
        let lost =
            std::panic::catch_unwind(|| check_pipe(&Sums { keeps: false }, (0..12).collect()));
        let text = lost.unwrap_err().downcast::<String>().unwrap();
        assert!(
            text.contains("says that it is resumable, but stopped after"),
            "{text}"
        );
        let counts = std::panic::catch_unwind(|| check_pipe(&Counts, (0..12).collect()));
        let text = counts.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("says that it goes by position"), "{text}");
    }
}
