//! Leaves out the first items.

use crate::{Arity, Context, Graph, Hints, Items, Pipe, Result};

/// Leaves out the first items; see [`Graph::skip`].
#[derive(Clone, Debug)]
pub struct Skip(u64);

impl Skip {
    /// Leaves out the first `items`.
    pub fn new(items: u64) -> Self {
        Skip(items)
    }
}

impl<T: Send + 'static> Pipe<T> for Skip {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let mut left = or_fail!(cx.restored()).unwrap_or(self.0);
        let context = cx.clone();
        input.each_chunk(cx, move |chunk| {
            let chunk = match left {
                0 => chunk,
                _ => {
                    let before = left;
                    let mut stays = |item: &Result<_>| {
                        let skipped = left > 0 && item.is_ok();
                        left -= u64::from(skipped);
                        !skipped
                    };
                    let chunk = chunk.into_iter().filter(|item| stays(item)).collect();
                    context.count_dropped(before - left);
                    chunk
                }
            };
            context.snapshot_after(chunk.len(), || left);
            chunk
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input.saturating_sub(self.0))
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::AtMostOne)
            .is_resumable(true)
            .settings(self.0)
            .selects(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Leaves out the first `items` items, which are made and counted as dropped. Errors pass and
    /// do not count, so `take(n)` and `skip(n)` are the two parts of one stream.
    ///
    /// Runs in one place and holds nothing. As a way to continue a stopped epoch, it makes all
    /// items before that place again.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(datapipes::Graph::range(0..5).skip(3).collect().unwrap(), [3, 4]);
    /// ```
    pub fn skip(self, items: u64) -> Graph<T> {
        self.pipe(Skip::new(items))
    }
}
