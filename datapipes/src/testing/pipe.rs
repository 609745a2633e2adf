//! The check of a pipe.

use std::fmt::Debug;

use super::feed::Feed;
use super::node::Node;
use super::stopped::check_stopped;
use super::{MARK, Outcome, assert_same, collect, lineage, numbered, rescaled, steady};
use crate::graph::{AnyItems, typed};
use crate::{Arity, Context, Error, ErrorKind, Item, Items, Pipe, Result};

/// Checks that a pipe keeps the contract of [`Pipe`], on an input of some length (ten or more items
/// show most).
///
/// - *Lazy*: applying the pipe polls nothing.
/// - *Reusable*: a second application gives the same, also while the first is half-way.
/// - *Patient*: an input that pauses, or comes in other chunks, gives the same; so do other
///   demands.
/// - *Empty*: an empty input gives an empty output.
/// - *Errors pass through*: an error in the input comes out, once, and all other output stays as it
///   is without the error; a pipe that goes [by position](method@crate::Hints::by_position) gives
///   as many items, since an error has a position, too.
/// - *Drop releases*: dropping the output at any point drops the input.
/// - *Panics arrive*: a panic of the input is not swallowed.
/// - *Shardable*, if it is declared: cut at any point, the outputs of the pieces are the output of
///   the whole.
/// - *Resumable*, if it is declared (and the pipe is not shardable): stopped after any item, twice,
///   and resumed from its snapshot, the pipe gives the same as without a stop. If it goes by
///   position, it gives the item at each position. The check has inputs with few and with many
///   errors between the items, which a loader may skip.
/// - *Lineage*, if it [is declared](crate::Hints::lineage): with the input in other orders, stopped
///   after any item, twice, and resumed with the items that were not delivered, the pipe gives each
///   item once, by their origins.
/// - *Dealing*, if it is declared to be [in turn](crate::Dealing::InTurn): each of several ranks
///   gets the items whose turn is its.
/// - *Computed snapshots*, if it [tells them](Pipe::snapshot_at): it goes on from each of them as
///   from its own.
/// - *Arity*, as declared.
///
/// The check raises a panic of its own on the way, which the panic hook prints even if all is well;
/// the message says so.
///
/// # Panics
/// Panics if one of these properties does not hold; the message names it.
pub fn check_pipe<In, P>(pipe: &P, input: Vec<In>)
where
    In: Clone + Debug + Send + 'static,
    P: Pipe<In>,
    P::Out: PartialEq + Debug,
{
    let items: Vec<Item<In>> = numbered(&input);
    let apply = |mut inputs: Vec<AnyItems>, cx: &Context| {
        let input: Items<In> = typed(inputs.pop().expect("a pipe has one input"));
        vec![pipe.apply(input, cx)]
    };
    let mut node = Node {
        feeds: vec![Feed::new(input, 0)],
        outputs: 1,
        hints: pipe.hints(),
        apply: &apply,
        context: Context::default(),
        held: &|cx| pipe.held(cx),
    };
    let (whole, ways) = node.whole();
    node.check_plain(&whole, &ways);
    let whole = &whole[0];
    check_input_errors(pipe, &items, whole);
    node.check_panic(ways[0], 0);
    let hints = pipe.hints();
    if hints.is_resumable && !hints.is_shardable {
        match hints.by_position {
            true => node.check_positions(),
            false => check_stopped(&node, &ways, "it is resumable"),
        }
        if hints.lineage && hints.ignores_order {
            lineage::check_lineage(pipe, &items);
        }
    }
    if hints.is_shardable {
        check_cuts(pipe, &items, whole);
    }
    rescaled::check_rescaled(pipe, &mut node, &items);
    check_arity(hints.arity, &items, whole);
    if let Some(expected) = pipe.len_hint(items.len() as u64) {
        assert_eq!(
            whole.len() as u64,
            expected,
            "its hint of the length is wrong"
        );
    }
}

/// Checks that errors of the input come out, once each, and change no other item, unless it goes by
/// the position.
fn check_input_errors<In, P>(pipe: &P, items: &[Item<In>], whole: &Outcome<P::Out>)
where
    In: Clone + Send + 'static,
    P: Pipe<In, Out: PartialEq + Debug>,
{
    let by_position = pipe.hints().by_position;
    let failed = || Err(Error::new(ErrorKind::User, MARK));
    for at in [0, items.len() / 2, items.len()] {
        let mut input: Vec<Result<Item<In>>> = items.iter().cloned().map(Ok).collect();
        input.insert(at, failed());
        let (errors, rest) = with_errors(pipe, input);
        let what = format!("an error in the input, before item {at},");
        assert_eq!(errors, 1, "{what} came out {errors} times: {rest:?}");
        assert_eq!(rest.len(), whole.len(), "{what} costs other items");
        if !by_position {
            assert_same(&rest, whole, &what);
        }
    }
    // As many errors as items, so that some are within any group that a pipe makes.
    let input = items.iter().cloned().flat_map(|item| [Ok(item), failed()]);
    let (errors, rest) = with_errors(pipe, input.collect());
    let what = "as many errors as items in the input";
    assert_eq!(errors, items.len(), "of {what} {errors} came out");
    assert_eq!(rest.len(), whole.len(), "{what} cost other items");
    if !by_position {
        assert_same(&rest, whole, what);
    }
}

/// Applies a pipe to items and errors of the kit, and returns the number of those errors that came
/// out, and the rest of the output.
fn with_errors<In, P>(pipe: &P, input: Vec<Result<Item<In>>>) -> (usize, Outcome<P::Out>)
where
    In: Send + 'static,
    P: Pipe<In>,
{
    let mut output = collect(pipe.apply(Items::from_results(input), &Context::default()));
    let all = output.len();
    output.retain(|item| !matches!(item, Err(text) if text.contains(MARK)));
    (all - output.len(), output)
}

/// Checks that the outputs of two pieces of the input are the output of the whole.
fn check_cuts<In, P>(pipe: &P, items: &[Item<In>], whole: &Outcome<P::Out>)
where
    In: Clone + Send + 'static,
    P: Pipe<In, Out: PartialEq + Debug>,
{
    let cx = Context::default();
    for cut in 0..=items.len() {
        let mut pieces = collect(pipe.apply(steady(&items[..cut]), &cx));
        pieces.extend(collect(pipe.apply(steady(&items[cut..]), &cx)));
        let what = "says that it is shardable, but cut into two pieces";
        assert_same(&pieces, whole, what);
    }
}

/// Checks the number of outputs, and their origins if there is one for each input.
fn check_arity<In, Out>(arity: Arity, items: &[Item<In>], whole: &Outcome<Out>) {
    match arity {
        Arity::Any => {}
        Arity::AtMostOne => assert!(
            whole.len() <= items.len(),
            "says at most one for one, and gives more"
        ),
        Arity::One => {
            assert_eq!(whole.len(), items.len(), "says one for one");
            for (out, item) in whole.iter().zip(items) {
                if let Ok((_, origin)) = out {
                    let what = "says one for one, and does not keep origins";
                    assert_eq!(origin, item.origin(), "{what}");
                }
            }
        }
    }
}
