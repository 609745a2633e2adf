//! Checks the contract for any join.

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
/// - *Reusable*: a second one gives the same, also while the first is half-way.
/// - *Patient*: inputs that pause, or come in other chunks, give the same; so do other demands. So
///   a join whose order depends on timing, such as [`GreedyJoin`](crate::pipes::GreedyJoin), does
///   not pass.
/// - *Empty*: without items, in one input or in all of them, it gives an end.
/// - *Errors pass by, in their place*: an error that was taken of an input comes out, once, behind
///   what comes before it without an error. Where it passes on what it gets, and which items come
///   out depends on no order ([`Facts`](crate::Facts)), the error costs none of them.
/// - *Drop releases*: dropping the output at any point drops all inputs.
/// - *Panics arrive*: a panic of an input is not swallowed.
/// - *Resumable*, if it says so: stopped after any item, also where what reads it held some of the
///   last items, twice, and resumed from what it kept, it gives what it gives in one go.
/// - *Its hint of the length*, if it gives one, counts what comes.
///
/// It raises a panic of its own on the way, which the panic hook prints also where all is well; it
/// says so.
///
/// # Panics
/// If one of them does not hold; the message says which.
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

/// Without the hint of the length. Gives how many items the inputs had, and what came, unless there
/// was an error among it.
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
        facts: join.facts(),
        apply: &apply,
        context: Context::default(),
    };
    let (whole, ways) = node.whole();
    node.check_plain(&whole, &ways);
    node.check_errors(&whole, ways[0]);
    if join.is_resumable() {
        check_stopped(&node, &ways, "it is resumable");
    }
    let lengths = node.feeds.iter().map(|feed| feed.len() as u64).collect();
    whole[0]
        .iter()
        .all(Result::is_ok)
        .then(|| (lengths, whole[0].len() as u64))
}
