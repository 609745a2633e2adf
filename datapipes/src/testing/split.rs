//! Checks of the contract of any split.

use std::fmt::Debug;

use super::feed::Feed;
use super::node::Node;
use super::stopped::check_stopped;
use crate::pipe::Split;
use crate::{Context, Items};

/// Checks that a split keeps the contract of [`Split`], on an input of some length (ten or some
/// more items show most).
///
/// Its outputs are read by turns, one after the other, and in two irregular sequences. If one
/// output runs further ahead of the others than its buffers hold, which is an error of kind
/// `Config`, that sequence is left out.
///
/// - *Lazy*: making the outputs polls nothing, and their number is the declared one.
/// - *Reusable*: a second application gives the same, also while the first is half-way.
/// - *Patient*: each output gives the same in whatever sequence they are read, if the input pauses,
///   or comes in other chunks, and with other demands; no reader waits for ever.
/// - *Dropping an output* at any point takes nothing from the others, and holds up none; dropping
///   all drops the input.
/// - *Empty*: an empty input gives empty outputs.
/// - *Errors pass through, in their place*: an error in the input comes out of one output at least,
///   and of each once at most. If the split declares that it [selects](crate::Hints::selects), the
///   error costs no item.
/// - *Panics arrive*: a panic of the input is not swallowed.
/// - *Resumable*, if it is declared: stopped anywhere, also if the reader of an output held some of
///   its last items, twice, and resumed from its snapshot, each output gives the same as without a
///   stop.
/// - *Length hint*: if there is one, it equals the number of items of each output.
///
/// The check raises a panic of its own on the way, which the panic hook prints even if all is well;
/// the message says so.
///
/// # Panics
/// Panics if one of these properties does not hold; the message names it.
///
/// # Examples
/// ```
/// use datapipes::pipes::{Demux, Fork};
/// use datapipes::testing::check_split;
///
/// check_split(&Fork::new(2), (0..10u64).collect());
/// check_split(&Demux::new(2, |n: &u64| (n % 3 == 0) as usize), (0..10).collect());
/// ```
pub fn check_split<In, S>(split: &S, input: Vec<In>)
where
    In: Clone + Send + 'static,
    S: Split<In>,
    S::Out: PartialEq + Debug,
{
    let apply = |mut inputs: Vec<crate::graph::AnyItems>, cx: &Context| {
        let input: Items<In> = crate::graph::typed(inputs.pop().expect("a split has one input"));
        split.split(input, cx)
    };
    let (feeds, outputs) = (vec![Feed::new(input, 0)], split.outputs());
    assert!(outputs > 0, "says that it has no outputs");
    let node = Node {
        feeds,
        outputs,
        hints: split.hints(),
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
    let lengths = [node.feeds[0].len() as u64];
    for whole in whole.iter().filter(|whole| whole.iter().all(Result::is_ok)) {
        super::node::check_len(&lengths, whole.len() as u64, |inputs| {
            inputs[0].and_then(|len| split.len_hint(len))
        });
    }
}
