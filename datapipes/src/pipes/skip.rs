//! Leaves out the first items.

use crate::{Arity, Context, Facts, Graph, Items, Pipe};

/// Leaves out the first items; see [`Graph::skip`].
#[derive(Clone, Debug)]
pub struct Skip(u64);

impl Skip {
    /// The first `items`.
    pub fn new(items: u64) -> Self {
        Skip(items)
    }
}

impl<T: Send + 'static> Pipe<T> for Skip {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (mut left, context) = (self.0, cx.clone());
        input.each(cx, move |item| {
            if left == 0 {
                return Some(Ok(item));
            }
            left -= 1;
            context.count_dropped(1);
            None
        })
    }
    fn arity(&self) -> Arity {
        Arity::AtMostOne
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input.saturating_sub(self.0))
    }
    fn facts(&self) -> Facts {
        Facts::default().with_settings(self.0).with_selection()
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Leaves out the first `items` items, which are made and counted as dropped. Errors pass and do not count, so
    /// `take(n)` and `skip(n)` are the two parts of one stream.
    ///
    /// Runs in one place and holds nothing. Used to go on where an epoch stopped, it makes all items before that place
    /// again.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(datapipes::Graph::range(0..5).skip(3).collect().unwrap(), [3, 4]);
    /// ```
    pub fn skip(self, items: u64) -> Graph<T> {
        self.pipe(Skip::new(items))
    }
}
