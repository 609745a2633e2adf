//! Joins the items of two sorted inputs that have the same key, holding one item.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;

use super::hash_join::{
    Key, LeftJoin, Pair, joins_by_key, no_pair, pair_weigher, paired, twice, weighed_by_parts,
};
use crate::{Context, Error, Graph, Hints, Item, Items, Join, Origin};

/// Pairs the items of two inputs that are sorted by key; see [`Graph::merge_join_by_key`].
#[must_use]
pub struct MergeJoin<A, B, K> {
    keys: (Key<A, K>, Key<B, K>),
    strict: bool,
}

impl<A, B, K> MergeJoin<A, B, K> {
    /// Joins by these keys.
    pub fn new(
        left: impl Fn(&A) -> K + Send + Sync + 'static,
        right: impl Fn(&B) -> K + Send + Sync + 'static,
    ) -> Self {
        MergeJoin {
            keys: (Arc::new(left), Arc::new(right)),
            strict: false,
        }
    }

    /// Makes an item of the first input that has no partner an error in its place. By default the
    /// item is left out, and counted as dropped.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Keeps every item of the first input: an item without a partner comes with `None`.
    pub fn left(self) -> LeftJoin<Self> {
        LeftJoin(self)
    }
}

opaque_debug! { MergeJoin<A, B, K> { strict } }

/// The second input, and its last item, which may be a partner once more.
struct Right<B, K> {
    items: Items<B>,
    key_of: Key<B, K>,
    current: Option<Current<B, K>>,
    ended: bool,
}

struct Current<B, K> {
    key: K,
    item: Item<B>,
    place: u64,
    used: bool,
}

impl<B: Clone, K: Ord + Debug> Right<B, K> {
    /// Returns true if a partner of this key may only be among the next items.
    fn is_before(&self, key: &K) -> bool {
        let current = self.current.as_ref();
        !self.ended && current.is_none_or(|current| current.key < *key)
    }

    /// Replaces the current item by the next one, unless that is in the wrong place. Returns true if
    /// the item before had no partner.
    fn take(&mut self, item: Item<B>, place: u64) -> crate::Result<bool> {
        let key = (self.key_of)(&item);
        if let Some(current) = &self.current {
            match key.cmp(&current.key) {
                Ordering::Less => return Err(unsorted(1, &key, &current.key, item.origin())),
                Ordering::Equal => return Err(twice(&key, item.origin())),
                Ordering::Greater => {}
            }
        }
        let passed = self.current.replace(Current {
            key,
            item,
            place,
            used: false,
        });
        Ok(passed.is_some_and(|passed| !passed.used))
    }

    fn partner(&mut self, key: &K) -> Option<Item<B>> {
        let current = self.current.as_mut();
        let current = current.filter(|current| current.key == *key)?;
        current.used = true;
        Some(current.item.clone())
    }
}

fn unsorted<K: Debug>(input: usize, key: &K, last: &K, item: &Origin) -> Error {
    let message = format!(
        "input {input} is not sorted: the key {key:?} comes after {last:?}; sort it, or use `join_by_key`"
    );
    Error::corrupt(message).of(item)
}

impl<A, B, K> MergeJoin<A, B, K>
where
    A: Send + 'static,
    B: Clone + Send + 'static,
    K: Ord + Debug + Send + 'static,
{
    fn run<Out: Send + 'static>(
        &self,
        (mut left, right): (Items<A>, Items<B>),
        cx: &Context,
        pair: Pair<A, B, Out>,
    ) -> Items<Out> {
        // True if the last item of each input comes again, the first for its key alone; true if the
        // second was a partner; and true if there was a pair.
        let restored: Option<(bool, bool, bool, bool)> = or_fail!(cx.restored());
        let (has_last, has_current, used, mut has_pairs) = restored.unwrap_or_default();
        // Another rank may have the pairs.
        has_pairs |= cx.rank().world > 1;
        let ((left_key, key_of), strict, cx) = (self.keys.clone(), self.strict, cx.clone());
        let mut right = Right {
            items: right,
            key_of,
            current: None,
            ended: false,
        };
        Items::generate(async move |out| {
            // The greatest key of the first input so far, and its position.
            let mut last: Option<(K, u64)> = None;
            if has_last {
                let place = cx.position(0);
                match again(left.next().await) {
                    Ok(item) => last = Some((left_key(&item), place)),
                    Err(error) => return out.emit(Err(error)).await,
                }
            }
            if has_current {
                let place = cx.position(1);
                match again(right.items.next().await) {
                    Ok(item) => {
                        right.current = Some(Current {
                            key: (right.key_of)(&item),
                            item,
                            place,
                            used,
                        })
                    }
                    Err(error) => return out.emit(Err(error)).await,
                }
            }
            loop {
                out.snapshot_with(&cx, |held| {
                    let current = right.current.as_ref();
                    held.hold_of(0, last.iter().map(|(_, place)| *place));
                    held.hold_of(1, current.iter().map(|current| current.place));
                    (
                        last.is_some(),
                        current.is_some(),
                        current.is_some_and(|current| current.used),
                        has_pairs,
                    )
                });
                let place = cx.position(0);
                let item = match left.next().await {
                    None => break,
                    Some(Err(error)) => {
                        out.emit(Err(error)).await;
                        continue;
                    }
                    Some(Ok(item)) => item,
                };
                let key = left_key(&item);
                let less = last.as_ref().filter(|(last, _)| key < *last);
                if let Some(error) = less.map(|(last, _)| unsorted(0, &key, last, item.origin())) {
                    out.emit(Err(error)).await;
                    continue;
                }
                while right.is_before(&key) {
                    let place = cx.position(1);
                    let taken = match right.items.next().await {
                        None => {
                            right.ended = true;
                            break;
                        }
                        Some(item) => item.and_then(|item| right.take(item, place)),
                    };
                    match taken {
                        Ok(unused) => cx.count_dropped(unused.into()),
                        Err(error) => out.emit(Err(error)).await,
                    }
                }
                let partner = right.partner(&key);
                if let Some(pair) = paired(&cx, (item, &key), partner, (pair, strict)) {
                    has_pairs = true;
                    out.emit(pair).await;
                }
                last = Some((key, place));
            }
            let current = right.current;
            let unused = current.as_ref().is_some_and(|current| !current.used);
            cx.count_dropped(unused.into());
            if let (false, Some((key, _)), Some(other)) = (has_pairs, last, current) {
                out.emit(Err(no_pair(&key, &other.key))).await;
            }
        })
    }

    fn own_hints(&self) -> Hints {
        Hints::default()
            .is_resumable(true)
            .looks_up(true)
            .buffered(1)
            .settings(if self.strict { "strict" } else { "" })
    }
}

/// Returns an item that was held when the epoch was stopped. Without it nothing is known about the
/// following items.
fn again<T>(item: Option<crate::Result<Item<T>>>) -> crate::Result<Item<T>> {
    let message = "an item that it held cannot be had again";
    match item {
        Some(Ok(item)) => Ok(item),
        Some(Err(error)) => Err(Error::config(message).with_source(error)),
        None => Err(Error::config(message)),
    }
}

joins_by_key!(MergeJoin: "merge_join_by_key", "left_merge_join_by_key", Ord);

impl<A: Send + 'static> Graph<A> {
    /// Joins each item with the item of another graph that has the same key, if both are sorted by
    /// key, ascending.
    ///
    /// Both graphs are read side by side, and one item of the other graph is held, however long
    /// they are (a merge join). Everything else is as for [`join_by_key`](Graph::join_by_key),
    /// which needs no sorting and holds the other graph in memory: several items of this graph may
    /// have one key, the other may have each only once. Items without a partner are left out and
    /// counted as dropped, on either side, except for the rest of the other graph at the end, which
    /// is not asked for. [`MergeJoin::strict`] makes an item without a partner an error,
    /// [`MergeJoin::left`] keeps it. Runs in one place, in order.
    ///
    /// # Errors
    /// An item whose key is less than the greatest key before it is an error in its place, with
    /// both keys, and has no partner. The same holds for an item of the other graph whose key was
    /// there already.
    ///
    /// # Panics
    /// A panic of a function becomes an error that names the node, and ends the stream.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let prices = Graph::from_vec(vec![(1, 9.5), (2, 7.0), (5, 1.0)]);
    /// let sold = Graph::from_vec(vec![(1, "a"), (1, "b"), (3, "c"), (5, "d")]);
    /// let joined = sold.merge_join_by_key(prices, |sale| sale.0, |price| price.0).map(|(sale, price)| (sale.1, price.1));
    /// assert_eq!(joined.collect().unwrap(), [("a", 9.5), ("b", 9.5), ("d", 1.0)]);
    ///
    /// let unsorted = Graph::from_vec(vec![2, 1]).merge_join_by_key(Graph::range(0..9), |n| *n, |n| *n);
    /// assert_eq!(
    ///     unsorted.collect().unwrap_err().to_string(),
    ///     "merge_join_by_key: 0:1: corrupt: input 0 is not sorted: the key 1 comes after 2; sort it, or use `join_by_key`"
    /// );
    /// ```
    pub fn merge_join_by_key<B, K>(
        self,
        other: Graph<B>,
        key: impl Fn(&A) -> K + Send + Sync + 'static,
        other_key: impl Fn(&B) -> K + Send + Sync + 'static,
    ) -> Graph<(A, B)>
    where
        B: Clone + Send + 'static,
        K: Ord + Debug + Send + 'static,
    {
        let weigh = pair_weigher(&self, &other);
        let joined = Graph::join((self, other), MergeJoin::new(key, other_key));
        weighed_by_parts(joined, move |(a, b)| weigh(a, Some(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, OnError, testing};

    fn merge() -> MergeJoin<u64, u64, u64> {
        MergeJoin::new(|n: &u64| n / 10, |n: &u64| n / 10)
    }

    #[test]
    fn keeps_the_contract() {
        let left = || vec![1, 2, 11, 30, 31, 32, 50, 90];
        for right in testing::some_of([
            vec![3, 12, 22, 33, 60],
            vec![],
            vec![0],
            vec![91, 100],
            vec![0, 13, 14, 5, 30, 95],
        ]) {
            for left in [left(), vec![11, 5, 12, 40, 3, 41]] {
                testing::check_join(&merge(), (left.clone(), right.clone()));
                testing::check_join(&merge().strict(), (left.clone(), right.clone()));
                testing::check_join(&merge().left(), (left, right.clone()));
            }
        }
    }

    #[test]
    fn what_is_not_sorted_is_an_error_with_both_keys() {
        let graph = Graph::join(
            (
                Graph::from_vec(vec![10, 30, 20, 31, 50]),
                Graph::from_vec(vec![11, 12, 32, 13, 51]),
            ),
            merge(),
        );
        let loader = DataLoader::builder(graph)
            .workers(0)
            .on_error(OnError::skip(9))
            .build()
            .unwrap();
        let pairs: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(pairs, [(10, 11), (30, 32), (31, 32), (50, 51)]);
        let skipped: Vec<String> = loader
            .stats()
            .unwrap()
            .skipped_items
            .into_iter()
            .map(|skipped| skipped.error)
            .collect();
        assert_eq!(
            skipped,
            [
                "merge_join_by_key: 1:1: corrupt: input 1 has the key 1 more than once",
                "merge_join_by_key: 0:2: corrupt: input 0 is not sorted: the key 2 comes after 3; sort it, or use `join_by_key`",
                "merge_join_by_key: 1:3: corrupt: input 1 is not sorted: the key 1 comes after 3; sort it, or use `join_by_key`",
            ]
        );
    }

    #[test]
    fn keys_of_two_forms_are_an_error_and_no_empty_data_set() {
        let joined = |rows: Vec<u64>| {
            Graph::range(5..9).merge_join_by_key(Graph::from_vec(rows), |n| *n, |n| *n)
        };
        assert_eq!(
            joined(vec![1, 2, 10]).collect().unwrap_err().to_string(),
            "merge_join_by_key: not found: no item has a partner: a key of input 0 is 8, and one of input 1 is 10"
        );
        assert!(joined(vec![]).collect().unwrap().is_empty());
        assert_eq!(joined(vec![1, 8]).collect().unwrap(), [(8, 8)]);
    }

    #[test]
    fn a_merge_join_gives_what_a_hash_join_does_and_counts_what_has_no_partner() {
        let inputs = || {
            (
                Graph::range(0..300).filter(|n| n % 3 != 0),
                Graph::range(0..100).map(|n| 7 * n).take(40),
            )
        };
        let key = |n: &u64| *n;
        let (left, right) = inputs();
        let merged = DataLoader::builder(left.merge_join_by_key(right, key, key))
            .build()
            .unwrap();
        let (left, right) = inputs();
        let hashed = left.join_by_key(right, key, key).collect().unwrap();
        let pairs: Vec<_> = merged.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(pairs, hashed);
        assert_eq!(pairs.len(), 26);
        // 200 and 40 came in; the last of the second input is 273, and all of it was asked for.
        assert_eq!(
            merged.stats().unwrap().nodes.last().unwrap().dropped,
            200 - 26 + 40 - 26
        );
    }
}
