//! Sorts items within windows.

use crate::{Context, Graph, Held, Hints, Items, Pipe};

/// Sorts items within windows; see [`Graph::sort_window`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SortWindow<F> {
    items: usize,
    key: F,
}

impl<F> SortWindow<F> {
    /// Sorts so many items at a time by a key.
    pub fn new(items: usize, key: F) -> Self {
        SortWindow { items, key }
    }
}

impl<T, K, F> Pipe<T> for SortWindow<F>
where
    T: Send + 'static,
    K: Ord + Send + 'static,
    F: Fn(&T) -> K + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        let (this, cx) = (self.clone(), cx.clone());
        Items::generate(async move |out| {
            let mut ended = false;
            while !ended {
                // Only between windows: a window that has begun is sorted as a whole again.
                out.snapshot(&cx, || ());
                let mut window: Vec<(K, Held<T>)> = Vec::new();
                while window.len() < this.items && !ended {
                    match out.hold_from(&cx, &mut input).await {
                        Some(item) => window.push(((this.key)(&item), item)),
                        None => ended = true,
                    }
                }
                window.sort_by(|(a, _), (b, _)| a.cmp(b));
                for (_, item) in window {
                    let (item, place) = item.into_parts();
                    out.emit_of([place], Ok(item)).await;
                    if cx.lineage().is_some() {
                        out.snapshot(&cx, || ());
                    }
                }
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_resumable(true)
            .selects(true)
            .lineage(true)
            .buffered(self.items)
            .settings(format_args!("{} items", self.items))
            .problem((self.items == 0).then_some("a window of no items"))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Sorts `items` items at a time by a key, such as their length before a
    /// [`padded_batch`](Graph::padded_batch): neighbours are similar, and the order stays random on
    /// the whole. Items with equal keys stay in their order (a stable sort).
    ///
    /// Needs the whole stream, so it runs in one place; holds a window. Errors of the input come
    /// in their place before the window that they are in.
    ///
    /// # Examples
    /// ```
    /// let numbers = datapipes::Graph::from_vec(vec![3, 1, 2, 9, 7, 8, 0]).sort_window(3, |n| *n);
    /// assert_eq!(numbers.collect().unwrap(), [1, 2, 3, 7, 8, 9, 0]);
    /// ```
    pub fn sort_window<K: Ord + Send + 'static>(
        self,
        items: usize,
        key: impl Fn(&T) -> K + Clone + Send + Sync + 'static,
    ) -> Graph<T> {
        self.pipe(SortWindow::new(items, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, Order, testing};

    #[test]
    fn keeps_the_contract() {
        let key = |n: &u64| n * 7 % 5;
        for window in [1, 4, 100] {
            testing::check_pipe(&SortWindow::new(window, key), (0..20).collect());
        }
    }

    #[test]
    fn equal_keys_stay_in_their_order() {
        let graph = Graph::range(0..10).sort_window(6, |n| n % 2);
        assert_eq!(graph.collect().unwrap(), [0, 2, 4, 1, 3, 5, 6, 8, 7, 9]);
        let none = Graph::range(0..1)
            .sort_window(0, |n| *n)
            .collect()
            .unwrap_err();
        assert!(none.to_string().contains("a window of no items"), "{none}");
    }

    #[test]
    fn a_stopped_epoch_in_any_order_has_every_item_once() {
        let graph = Graph::range(0..100)
            .map(|n| n)
            .sort_window(16, |n| n * 37 % 101);
        let loader = DataLoader::builder(graph)
            .order(Order::Arrival)
            .workers(2)
            .resumable();
        let loader = loader.build().unwrap();
        for stop in [0, 7, 16, 99] {
            let mut epoch = loader.epoch(0).blocking();
            let mut all: Vec<u64> = epoch.by_ref().take(stop).map(|n| n.unwrap()).collect();
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            all.extend(
                loader
                    .resume(&state)
                    .unwrap()
                    .blocking()
                    .map(|n| n.unwrap()),
            );
            all.sort_unstable();
            assert_eq!(all, Vec::from_iter(0..100), "stopped at {stop}");
        }
    }
}
