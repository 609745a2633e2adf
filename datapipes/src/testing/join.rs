//! Checks of the contract of any join.

use std::fmt::Debug;

use super::feed::JoinInputs;
use super::node::Node;
use super::stopped::check_stopped;
use crate::pipe::Inputs;
use crate::{Context, Join};

/// Checks that a join keeps the contract of [`Join`], on inputs of some length: best of unequal
/// lengths, some items each.
///
/// - *Lazy*: joining polls none of its inputs.
/// - *Reusable*: a second application gives the same, also while the first is half-way.
/// - *Patient*: inputs that pause, or come in other chunks, give the same; so do other demands. A
///   join whose order depends on timing, such as [`GreedyJoin`](crate::pipes::GreedyJoin), does not
///   pass.
/// - *Empty*: without items, in one input or in all of them, the output ends.
/// - *Errors pass through, in their place*: an error that was taken of an input comes out, once,
///   after the items that come before it without an error. If the join passes its inputs on, and
///   its output depends on no order ([`Hints`](crate::Hints)), the error costs no item.
/// - *Drop releases*: dropping the output at any point drops all inputs.
/// - *Panics arrive*: a panic of an input is not swallowed.
/// - *Resumable*, if it is declared: stopped after any item, also if its reader held some of the
///   last items, twice, and resumed from its snapshot, the join gives the same as without a stop.
/// - *Length hint*: if there is one, it equals the number of items.
///
/// The check raises a panic of its own on the way, which the panic hook prints even if all is well;
/// the message says so.
///
/// # Panics
/// Panics if one of these properties does not hold; the message names it.
///
/// # Examples
/// ```
/// use datapipes::pipes::{Mux, Zip};
/// use datapipes::testing::check_join;
///
/// check_join(&Mux::new(2), vec![vec![1, 2, 3, 4], vec![10, 20]]);
/// check_join(&Zip::new(), (vec![1, 2, 3], vec!["a", "b", "c", "d"]));
/// ```
pub fn check_join<I, J>(join: &J, inputs: I)
where
    I: JoinInputs,
    J: Join<I::Items>,
    J::Out: PartialEq + Debug,
{
    let lengths = check_but_len(join, inputs);
    if let Some((lengths, whole)) = lengths {
        super::node::check_len(&lengths, whole, |inputs| join.len_hint(inputs));
    }
}

/// Checks all but the length hint. Returns the numbers of items of the inputs and of the output,
/// unless an error was among them.
pub fn check_but_len<I, J>(join: &J, inputs: I) -> Option<(Vec<u64>, u64)>
where
    I: JoinInputs,
    J: Join<I::Items>,
    J::Out: PartialEq + Debug,
{
    let apply = |inputs, cx: &Context| vec![join.join(<I::Items as Inputs>::restore(inputs), cx)];
    let feeds = inputs.feeds();
    let node = Node {
        feeds,
        outputs: 1,
        hints: join.hints(),
        apply: &apply,
        context: Context::default(),
        held: &|_| None,
    };
    let (whole, ways) = node.whole();
    node.check_plain(&whole, &ways);
    node.check_errors(&whole, ways[0]);
    if node.hints.is_resumable {
        check_stopped(&node, &ways, "it is resumable");
    }
    let lengths = node.feeds.iter().map(|feed| feed.len() as u64).collect();
    whole[0]
        .iter()
        .all(Result::is_ok)
        .then(|| (lengths, whole[0].len() as u64))
}
