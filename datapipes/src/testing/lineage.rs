//! Checks that a pipe tells the inputs of its outputs, run as a loader runs it if items come in any
//! order.

use std::fmt::Debug;
use std::sync::Arc;

use super::stopped::saved;
use super::{MARK, Outcome, block_on, outcome};
use crate::checkpoint::{
    ByPosition, Cursor, InputCursor, Lineage, NodeState, Point, Trim, Unordered,
};
use crate::{Context, Error, ErrorKind, Item, Items, Origin, Pipe, Wanted};

const NODE: &str = "pipe";

/// Input of a pipe; `None` stands for an error.
type Input<In> = [Option<Item<In>>];

/// Stops at every place, with the input in several orders, goes on, stops again, and goes on to the
/// end.
pub(super) fn check_lineage<In, P>(pipe: &P, items: &[Item<In>])
where
    In: Clone + Debug + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    for seed in 0..4u64 {
        let mut mixed = items.to_vec();
        // As it came, and in other orders.
        mixed.sort_by_key(|item| crate::mix_bits(seed ^ item.origin().index()) * seed.min(1));
        for input in with_errors(&mixed) {
            for chunk in [1, 3, 64] {
                check(pipe, &input, chunk);
            }
        }
    }
}

fn check<In, P>(pipe: &P, input: &Input<In>, chunk: usize)
where
    In: Clone + Debug + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    let start = |stopped| Running::start(pipe, input, stopped, chunk);
    let plain = Items::from_results(pipe_input(input));
    let whole = made_of(&super::collect(pipe.apply(plain, &Context::default())));
    let mut in_one_go = start(None);
    let seen = in_one_go.read(usize::MAX);
    assert_eq!(
        made_of(&seen),
        whole,
        "where it says what its outputs are made of, it gives something else"
    );
    for (place, (item, inputs)) in seen.iter().zip(in_one_go.unordered.recorded()).enumerate() {
        let Ok((value, origin)) = item else { continue };
        let mut named = Vec::new();
        roots(origin, &mut named);
        let mut recorded: Vec<String> = Vec::new();
        inputs
            .iter()
            .filter_map(|&at| input[at as usize].as_ref())
            .for_each(|item| roots(item.origin(), &mut recorded));
        named.sort();
        recorded.sort();
        assert_eq!(
            recorded, named,
            "says that its output {place}, {value:?}, is made of something else than its origin names (see `Item::gather`)"
        );
    }
    let (_, cursor) = in_one_go.stop();
    let InputCursor { held, .. } = &cursor.inputs[0];
    assert!(
        held.is_empty(),
        "says which inputs its outputs are made of, and at its end there are some of which it said nothing: at {held:?}; see \
         `Context::leave_out`"
    );
    for stop in 0..=seen.len() {
        let mut run = start(None);
        let mut seen = run.read(stop);
        for some in [2, 5, usize::MAX] {
            run = start(Some(run.stop()));
            seen.extend(run.read(some));
        }
        let all = made_of(&seen);
        let missing: Vec<_> = left(&whole, &all);
        let again: Vec<_> = left(&all, &whole);
        assert!(
            missing.is_empty() && again.is_empty(),
            "says which inputs its outputs are made of, but stopped after {stop} items, where items come in any order, it \
             loses {missing:?} and gives {again:?} again or instead"
        );
    }
}

fn pipe_input<In: Clone + Send + 'static>(input: &Input<In>) -> Vec<crate::Result<Item<In>>> {
    use futures::StreamExt;
    block_on(given(input, &Wanted::since(0)).collect())
}

/// Returns the elements of `one` that are not in `other`, both in order.
fn left(one: &[String], other: &[String]) -> Vec<String> {
    let mut other = other.iter().peekable();
    let mut left = Vec::new();
    for item in one {
        while other.next_if(|next| *next < item).is_some() {}
        if other.next_if_eq(&item).is_none() {
            left.push(item.clone());
        }
    }
    left
}

/// Returns the items of the input that everything is made of, and the errors; in order.
fn made_of<T>(all: &Outcome<T>) -> Vec<String> {
    let mut names = Vec::new();
    for item in all {
        match item {
            Ok((_, origin)) => roots(origin, &mut names),
            Err(text) if text.contains(MARK) => names.push("an error of its input".to_owned()),
            Err(text) => names.push(text.clone()),
        }
    }
    names.sort();
    names
}

fn roots(origin: &Origin, names: &mut Vec<String>) {
    match (origin.parts(), origin.parent()) {
        ([], Some(parent)) => roots(parent, names),
        ([], None) => names.push(format!("item {origin}")),
        (parts, _) => parts.iter().for_each(|part| roots(part, names)),
    }
}

/// A running pipe.
struct Running<T> {
    items: Items<T>,
    unordered: Arc<Unordered>,
    position: u64,
    chunk: usize,
}

impl<T: Send + 'static> Running<T> {
    fn start<In, P>(
        pipe: &P,
        input: &Input<In>,
        stopped: Option<(u64, Cursor)>,
        chunk: usize,
    ) -> Self
    where
        In: Clone + Send + 'static,
        P: Pipe<In, Out = T>,
    {
        let (position, cursor) = stopped.unzip();
        let wanted = cursor
            .as_ref()
            .map_or(Wanted::since(0), |cursor| cursor.inputs[0].wanted());
        let above = given(input, &wanted);
        let trace = Arc::new(ByPosition("input".into()));
        let marks = (false, false);
        let unordered = Unordered::new(
            NODE.into(),
            trace,
            marks,
            Trim::default(),
            wanted,
            cursor.as_ref(),
        );
        let above = above.counted(Some(unordered.counter().clone()), None);
        let state = cursor.map(|cursor| cursor.state.into());
        let node_state = NodeState {
            state,
            lineage: Some(Lineage::new(unordered.clone())),
            ..NodeState::default()
        };
        let items = pipe.apply(above, &Context::default().with_node_state(node_state));
        let items = items.counted(None, Some(unordered.produced().clone()));
        Running {
            items,
            unordered,
            position: position.unwrap_or(0),
            chunk,
        }
    }

    fn read(&mut self, most: usize) -> Outcome<T> {
        let mut seen = Vec::new();
        while seen.len() < most
            && let Some(some) = block_on(self.items.next_chunk(self.chunk.min(most - seen.len())))
        {
            seen.extend(some.into_iter().map(outcome));
            if let Some(error) = self.unordered.unrecorded() {
                panic!("{error}");
            }
        }
        self.position += seen.len() as u64;
        seen
    }

    /// Returns its cursor.
    fn stop(self) -> (u64, Cursor) {
        let cursor = saved(&*self.unordered, Point::at(self.position), NODE);
        (self.position, cursor)
    }
}

/// Returns the items alone, and with errors between them: some, one after each, and several in a
/// row, so that some are within any group that a pipe makes.
fn with_errors<In: Clone>(items: &[Item<In>]) -> Vec<Vec<Option<Item<In>>>> {
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
fn given<In: Clone + Send + 'static>(input: &Input<In>, wanted: &Wanted) -> Items<In> {
    let end = input.len() as u64;
    let items = wanted.positions(end).map(|at| match &input[at as usize] {
        Some(item) => Ok(item.clone()),
        None => Err(Error::new(ErrorKind::User, MARK)),
    });
    Items::from_results(items.collect::<Vec<_>>())
}
