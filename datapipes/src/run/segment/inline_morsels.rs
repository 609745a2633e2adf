//! Runs a chain inline in morsels, so that the input of each output is known.

use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::SegmentLog;
use crate::graph::{AnyItems, Edge, Gate, SharedGate};
use crate::sync::lock;

/// Least work of a morsel that is worth its start.
const MORSEL_NS: u128 = 200_000;
/// Maximum number of items in a morsel.
const MOST: usize = 1 << 14;

/// Applies a chain that distributes over concatenation to one morsel of its input after another.
/// `apply` makes a stream of a morsel, given the number of its first item.
pub(in crate::run) fn inline_morsels(
    above: AnyItems,
    input: &Arc<dyn Edge>,
    output: &Arc<dyn Edge>,
    log: Arc<SegmentLog>,
    mut apply: impl FnMut(AnyItems, u64) -> AnyItems + Send + 'static,
) -> AnyItems {
    let gate = SharedGate::default();
    let inputs = input.morsel_inputs(above, gate.clone(), log.clone());
    let (mut size, mut first, mut begun) = (1, 0, None::<Instant>);
    let next = move |given: u64| {
        if let Some(begun) = begun {
            let Gate { left, taken, ended } = std::mem::take(&mut *lock(&gate));
            log.push(taken, given);
            first += taken;
            if ended || left > 0 {
                // The input has ended, or the chain ended by itself.
                return None;
            }
            let quick = begun.elapsed().as_nanos() < MORSEL_NS;
            size = if quick {
                (size * 2).min(MOST)
            } else {
                (size / 2).max(1)
            };
        }
        begun = Some(Instant::now());
        lock(&gate).left = size.min(log.limit());
        Some(apply(inputs.open(), first))
    };
    output.one_by_one(Box::new(next))
}
