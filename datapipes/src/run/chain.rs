//! The chain of pipes that a segment applies to each piece of its input.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch_buffer::{RowCursor, Rows};
use crate::context::Offload;
use crate::graph::{AnyChunk, AnyItems, AnyPipe, Claim, Edge, Len};
use crate::{Arity, Context, Error, Hints};

/// The chain of a segment, through which every morsel passes.
pub(crate) struct Chain {
    pub links: Vec<Link>,
    /// Edge upstream of the first node.
    pub input: Arc<dyn Edge>,
}

pub(crate) struct Link {
    pub pipe: Arc<dyn AnyPipe>,
    pub context: Context,
    pub edge: Arc<dyn Edge>,
    /// Rows of batches that the chain fills.
    pub rows: Option<Arc<Rows>>,
    /// Number of outputs, as the pipe says.
    pub arity: Arity,
    pub len: Len,
}

/// Counts the input of a pipe whose number of outputs is checked.
pub(super) fn claimed(
    (arity, len): (Arity, Len),
    above: &Arc<dyn Edge>,
    input: AnyItems,
) -> (AnyItems, Option<Claim>) {
    match Claim::of(arity, len) {
        Some((claim, inputs)) => (above.counted_as(input, inputs), Some(claim)),
        None => (input, None),
    }
}

/// Returns the number of outputs that a pipe says it gives, beyond its arity.
pub(super) fn len_of(pipe: &Arc<dyn AnyPipe>, hints: &Hints) -> Len {
    let pipe = pipe.clone();
    Len::of_pipe(hints, move |inputs| pipe.len_hint(inputs))
}

impl Chain {
    /// Has blocking work of all pipes done by this.
    pub(super) fn offload_to(&mut self, offload: Arc<dyn Offload>) {
        for link in &mut self.links {
            link.context = link.context.with_offload(offload.clone());
        }
    }

    /// Applies the chain to items. Their first one is number `first` of the segment's input.
    pub(super) fn apply(&self, mut items: AnyItems, first: u64) -> AnyItems {
        let mut above = &self.input;
        for Link {
            pipe,
            context,
            edge,
            rows,
            arity,
            len,
        } in &self.links
        {
            let claim;
            (items, claim) = claimed((*arity, len.clone()), above, items);
            above = edge;
            let output = match rows {
                None => pipe.apply(items, context),
                Some(rows) => pipe.apply(
                    items,
                    &context.with_rows(RowCursor::new(rows.clone(), first)),
                ),
            };
            items = edge.instrument(output, context.clone(), claim);
        }
        items
    }

    /// Applies the chain inside a poll. A panic of a pipe while it is applied becomes an error.
    pub(super) fn apply_caught(&self, items: AnyItems, first: u64) -> AnyItems {
        catch_unwind(AssertUnwindSafe(|| self.apply(items, first)))
            .unwrap_or_else(|payload| self.output().fail(self.name(Error::panic(payload))))
    }

    /// Returns the weight of what a piece of the input becomes, if its items tell.
    pub(super) fn expected_weight(&self, input: &AnyChunk) -> Option<usize> {
        let first = &self.links[0].pipe;
        catch_unwind(AssertUnwindSafe(|| first.expected_weight(input))).unwrap_or(None)
    }

    pub(super) fn name(&self, error: Error) -> Error {
        error.at(self.links[0].context.node())
    }

    pub(super) fn output(&self) -> &Arc<dyn Edge> {
        &self.links.last().expect("a segment has a node").edge
    }
}
