//! Batches of a number of tokens instead of a number of items.

use datapipes::{Context, Error, Graph, Held, Hints, Item, Items, Pipe};

/// Groups items into batches whose number of tokens, padding included, has a limit; see
/// [`TokenBatchGraphExt::token_batch`].
#[derive(Clone, Debug)]
#[must_use]
pub struct TokenBudget<F> {
    budget: usize,
    length: F,
    window: usize,
    max_items: usize,
}

impl<F> TokenBudget<F> {
    /// Makes batches whose longest item times their number of items is at most `budget`.
    pub fn new(budget: usize, length: F) -> Self {
        TokenBudget {
            budget,
            length,
            window: 1024,
            max_items: usize::MAX,
        }
    }

    datapipes::setters! {
        /// Sets the number of items that are sorted by length together. Defaults to 1024. A larger
        /// window has less padding and holds more items.
        window(items: usize) => window = items;

        /// Sets the maximum number of items in a batch. Defaults to no limit.
        max_items(items: usize) => max_items = items;
    }

    /// Groups the items of a window, with their lengths.
    fn group<T>(&self, mut window: Vec<(usize, Held<T>)>) -> Vec<Vec<Held<T>>> {
        window.sort_by_key(|&(length, _)| length);
        let mut batches: Vec<Vec<Held<T>>> = Vec::new();
        for (length, item) in window {
            // Lengths ascend, so this item is the longest.
            let has_room = |batch: &Vec<Held<T>>| {
                batch.len() < self.max_items
                    && length.saturating_mul(batch.len() + 1) <= self.budget
            };
            match batches.last_mut() {
                Some(batch) if has_room(batch) => batch.push(item),
                _ => batches.push(vec![item]),
            }
        }
        batches
    }
}

impl<T, F> Pipe<T> for TokenBudget<F>
where
    T: Send + 'static,
    F: Fn(&T) -> usize + Clone + Send + Sync + 'static,
{
    type Out = Vec<T>;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<Vec<T>> {
        let mut index = datapipes::or_fail!(cx.restored()).unwrap_or(0);
        let (this, cx) = (self.clone(), cx.clone());
        Items::generate(async move |out| {
            loop {
                // Only between windows: a window that has begun is sorted as a whole again.
                out.snapshot(&cx, || index);
                let mut window = Vec::new();
                let mut ended = false;
                while window.len() < this.window && !ended {
                    let Some(item) = out.hold_from(&cx, &mut input).await else {
                        ended = true;
                        continue;
                    };
                    let length = (this.length)(&item);
                    if length <= this.budget {
                        window.push((length, item));
                        continue;
                    }
                    let message = format!(
                        "{length} tokens, more than a batch's budget of {}",
                        this.budget
                    );
                    let (item, place) = item.into_parts();
                    let error = cx.fail(&item, Error::limit(message));
                    out.emit_of([place], Err(error)).await;
                }
                let mut batches = this.group(window);
                // By the items alone, so that short and long batches come mixed, and everywhere the same.
                batches.sort_by_cached_key(|batch| cx.rng(batch[0].origin()).next_u64());
                for batch in batches {
                    let (items, places): (Vec<_>, Vec<_>) =
                        batch.into_iter().map(Held::into_parts).unzip();
                    out.emit_of(places, Ok(Item::gather(items, index))).await;
                    index += 1;
                    if cx.lineage().is_some() {
                        out.snapshot(&cx, || index);
                    }
                }
                if ended {
                    return;
                }
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        // An endless stream gives an endless number; the number of others depends on their lengths.
        (input == u64::MAX).then_some(input)
    }
    fn hints(&self) -> Hints {
        let mut settings = format!("budget {}, window {}", self.budget, self.window);
        if self.max_items < usize::MAX {
            settings += &format!(", at most {} items", self.max_items);
        }
        let none = self.budget == 0 || self.window == 0 || self.max_items == 0;
        Hints::any_order()
            .is_resumable(true)
            .lineage(true)
            .buffered(self.window)
            .settings(settings)
            .problem(none.then_some("no room for a single item"))
    }
}

/// Batches of tokens, for a graph of anything with a length. Import it with the
/// [`prelude`](crate::prelude).
pub trait TokenBatchGraphExt<T>: crate::sealed::Sealed {
    /// Groups items of similar length into batches of at most `budget` tokens once padded: the
    /// longest item times their number. Settings: [`TokenBudget`], by
    /// [`pipe`](datapipes::Graph::pipe).
    ///
    /// Sorts 1024 items at a time by length (a stable sort), cuts them into batches, and gives these
    /// in a random order that depends on seed, epoch and items alone. Runs in one place; holds a
    /// window. To make tensors of the batches add [`pad`](datapipes::Graph::pad).
    ///
    /// Each rank plans for itself, so ranks may have different numbers of batches: an
    /// [`Uneven`](datapipes::Uneven) policy says what then happens.
    /// [`TokenStore::token_batches`](crate::TokenStore::token_batches) has one plan for all ranks.
    ///
    /// # Errors
    /// `Limit` in place of an item that is longer than the budget.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_text::prelude::*;
    ///
    /// let documents = Graph::from_vec([3, 1, 8, 2, 4].map(|n| vec![n as u32; n]).to_vec());
    /// let mut batches = documents.token_batch(8, Vec::len).collect()?;
    /// batches.sort_by_key(|batch| batch[0].len());
    /// assert_eq!(batches, [
    ///     vec![vec![1], vec![2; 2]], // with the next, 3 × 3 tokens
    ///     vec![vec![3; 3], vec![4; 4]],
    ///     vec![vec![8; 8]],
    /// ]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn token_batch(
        self,
        budget: usize,
        length: impl Fn(&T) -> usize + Clone + Send + Sync + 'static,
    ) -> Graph<Vec<T>>;
}

impl<T: Send + 'static> TokenBatchGraphExt<T> for Graph<T> {
    fn token_batch(
        self,
        budget: usize,
        length: impl Fn(&T) -> usize + Clone + Send + Sync + 'static,
    ) -> Graph<Vec<T>> {
        self.pipe(TokenBudget::new(budget, length))
    }
}

#[cfg(test)]
mod tests {
    use datapipes::testing::check_pipe;
    use datapipes::{DataLoader, OnError, Order};

    use super::*;

    fn length(n: &u64) -> usize {
        (*n as usize * 7) % 11
    }

    #[test]
    fn keeps_the_contract() {
        check_pipe(&TokenBudget::new(12, length).window(6), (0..20).collect());
        check_pipe(&TokenBudget::new(9, length).max_items(2), (0..20).collect());
    }

    #[test]
    fn batches_keep_the_budget_and_every_item_comes_once() {
        for order in [Order::Strict, Order::Arrival] {
            let graph = Graph::range(0..500)
                .map(|n| n)
                .pipe(TokenBudget::new(60, length).window(50).max_items(9));
            let loader = DataLoader::builder(graph)
                .order(order)
                .workers(2)
                .resumable()
                .build()
                .unwrap();
            let mut epoch = loader.epoch(0).blocking();
            let mut batches: Vec<Vec<u64>> = epoch
                .by_ref()
                .take(20)
                .map(|batch| batch.unwrap())
                .collect();
            let checkpoint = epoch.checkpoint().unwrap();
            drop(epoch);
            batches.extend(
                loader
                    .resume(&checkpoint)
                    .unwrap()
                    .blocking()
                    .map(|batch| batch.unwrap()),
            );
            for batch in &batches {
                let longest = batch.iter().map(length).max().unwrap();
                assert!(longest * batch.len() <= 60 && batch.len() <= 9, "{batch:?}");
            }
            let mut all = batches.concat();
            all.sort_unstable();
            assert_eq!(all, Vec::from_iter(0..500));
            assert!(batches.len() < 75, "{} batches", batches.len());
        }
    }

    #[test]
    fn an_item_longer_than_the_budget_is_named() {
        let graph = Graph::from_vec(vec![1usize, 9, 2]).token_batch(5, |n| *n);
        let loader = DataLoader::builder(graph.clone())
            .on_error(OnError::skip(1))
            .build()
            .unwrap();
        let batches: Vec<_> = loader
            .epoch(0)
            .blocking()
            .map(|batch| batch.unwrap())
            .collect();
        assert_eq!(batches, [[1, 2]]);
        let error = graph.collect().unwrap_err().to_string();
        assert_eq!(
            error,
            "token_budget: 0:1: limit reached: 9 tokens, more than a batch's budget of 5"
        );
        let none = Graph::from_vec(vec![1usize])
            .token_batch(0, |n| *n)
            .collect()
            .unwrap_err();
        assert!(
            none.to_string().contains("no room for a single item"),
            "{none}"
        );
    }
}
