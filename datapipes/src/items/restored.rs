//! The error of a snapshot that a node cannot read, in place of what the node makes without it.

use std::task::{self, Poll};

use super::{Chunks, Demand};
use crate::{Chunk, Context, Items};

impl<T: Send + 'static> Items<T> {
    /// Gives the error of [`Context::restored`], if it comes to one, in place of all items.
    pub(crate) fn unless_refused(self, cx: &Context) -> Self {
        match cx.snapshot_to_restore() {
            Some(_) => Items::from_chunks(UnlessRefused {
                items: self,
                cx: Some(cx.clone()),
            }),
            None => self,
        }
    }
}

struct UnlessRefused<T> {
    items: Items<T>,
    /// None once an item has come: the snapshot is restored before.
    cx: Option<Context>,
}

impl<T: Send + 'static> Chunks<T> for UnlessRefused<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        let chunk = self.items.poll_chunk(cx, demand);
        if let Some(error) = self.cx.as_ref().and_then(Context::take_refused) {
            self.items = Items::fail(error);
            return self.items.poll_chunk(cx, demand);
        }
        if chunk.is_ready() {
            self.cx = None;
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::NodeState;
    use crate::codec::pack;
    use crate::{Item, Origin, testing};

    #[test]
    fn a_snapshot_of_another_type_is_one_error() {
        let given = |state: Vec<u8>| {
            let cx = Context::default().with_node_state(NodeState {
                state: Some(state.into()),
                ..NodeState::default()
            });
            let context = cx.clone();
            let items: Items<u32> = Items::generate(async move |out| {
                let first: u32 = context.restored().unwrap_or_default();
                out.emit(Ok(Item::new(first, Origin::root(0, 0)))).await;
            });
            let given = testing::collect(items.unless_refused(&cx)).into_iter();
            given
                .map(|one| one.map(|(n, _)| n))
                .collect::<Vec<Result<u32, String>>>()
        };
        assert_eq!(given(pack(&7u32).unwrap()), [Ok(7)]);
        let refused = given(pack(&"seven".to_owned()).unwrap());
        assert!(
            matches!(&refused[..], [Err(error)] if error.contains("something else for it")),
            "{refused:?}"
        );
    }
}
