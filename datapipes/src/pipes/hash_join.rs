//! Joins the items of two inputs that have the same key, with one input in memory.

use std::collections::{HashMap, hash_map};
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;

use futures::StreamExt;

use crate::{Context, Error, ErrorKind, Facts, Graph, Item, Items, Join, Origin};

/// Returns the key of an item.
pub(super) type Key<T, K> = Arc<dyn Fn(&T) -> K + Send + Sync>;

/// Default bound on the items of a table.
const ITEMS: usize = 1 << 20;

/// Looks up each item of its first input, by key, in a table made of its second; see
/// [`Graph::join_by_key`].
///
/// # Examples
/// An item that is not in the table is an error:
/// ```
/// use datapipes::{Graph, pipes::HashJoin};
/// let images = Graph::from_vec(vec![("b.jpg", 20), ("c.jpg", 30)]);
/// let labels = Graph::from_vec(vec![("a.jpg", 'a'), ("b.jpg", 'b')]);
/// let by_name = HashJoin::new(|image: &(&'static str, i32)| image.0, |label: &(&'static str, char)| label.0);
/// let error = Graph::join((images, labels), by_name.strict()).collect().unwrap_err();
/// assert_eq!(error.to_string(), "join_by_key: 0:1: not found: no partner with the key \"c.jpg\"");
/// ```
pub struct HashJoin<A, B, K> {
    keys: (Key<A, K>, Key<B, K>),
    items: usize,
    bytes: Option<usize>,
    weigh: Arc<dyn Fn(&B) -> usize + Send + Sync>,
    strict: bool,
}

impl<A, B, K> HashJoin<A, B, K> {
    /// Joins by these keys, with a table of up to 1,048,576 items.
    pub fn new(
        left: impl Fn(&A) -> K + Send + Sync + 'static,
        right: impl Fn(&B) -> K + Send + Sync + 'static,
    ) -> Self {
        let keys: (Key<A, K>, Key<B, K>) = (Arc::new(left), Arc::new(right));
        HashJoin {
            keys,
            items: ITEMS,
            bytes: None,
            weigh: Arc::new(|_| 0),
            strict: false,
        }
    }

    /// Bounds the table to this many items.
    pub fn items(self, most: usize) -> Self {
        HashJoin {
            items: most,
            ..self
        }
    }

    /// Bounds the table to this many bytes, besides the bound in items; `weigh` returns the bytes
    /// that an item keeps alive.
    pub fn bytes(self, most: usize, weigh: impl Fn(&B) -> usize + Send + Sync + 'static) -> Self {
        HashJoin {
            bytes: Some(most),
            weigh: Arc::new(weigh),
            ..self
        }
    }

    /// Makes an item of the first input that has no partner an error in its place. By default the
    /// item is left out, and counted as dropped.
    pub fn strict(self) -> Self {
        HashJoin {
            strict: true,
            ..self
        }
    }

    /// Keeps every item of the first input: an item without a partner comes with `None`.
    pub fn left(self) -> LeftJoin<Self> {
        LeftJoin(self)
    }
}

impl<A, B, K> Debug for HashJoin<A, B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HashJoin {
            items,
            bytes,
            strict,
            ..
        } = self;
        let mut fields = f.debug_struct("HashJoin");
        fields
            .field("items", items)
            .field("bytes", bytes)
            .field("strict", strict)
            .finish_non_exhaustive()
    }
}

/// Keeps every item of the first input of a join by key; see [`HashJoin::left`] and
/// [`MergeJoin::left`](super::MergeJoin::left).
#[derive(Debug)]
pub struct LeftJoin<J>(pub(super) J);

/// Makes the output of a pair; `None` if it needs a partner and has none.
pub(super) type Pair<A, B, Out> = fn(A, Option<B>) -> Option<Out>;

pub(super) fn inner<A, B>(left: A, right: Option<B>) -> Option<(A, B)> {
    right.map(|right| (left, right))
}

pub(super) fn outer<A, B>(left: A, right: Option<B>) -> Option<(A, Option<B>)> {
    Some((left, right))
}

/// Pairs an item with its partner. The origin does not depend on order, so that a table needs no
/// order.
pub(super) fn paired<A, B, K: Debug, Out>(
    cx: &Context,
    (left, key): (Item<A>, &K),
    right: Option<Item<B>>,
    (pair, strict): (Pair<A, B, Out>, bool),
) -> Option<crate::Result<Item<Out>>> {
    let (left, origin) = left.into_parts();
    let mut parts = vec![origin];
    let right = right.map(|right| {
        let (right, origin) = right.into_parts();
        parts.push(origin);
        right
    });
    match pair(left, right) {
        Some(pair) => Some(Ok(Item::new(pair, Origin::joined(parts, 0)))),
        None if strict => {
            let error = Error::new(
                ErrorKind::NotFound,
                format!("no partner with the key {key:?}"),
            );
            Some(Err(error.of(&parts[0])))
        }
        None => {
            cx.count_dropped(1);
            None
        }
    }
}

pub(super) fn twice<K: Debug>(key: &K, item: &Origin) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("input 1 has the key {key:?} more than once"),
    )
    .of(item)
}

/// The entry of a table for a key.
enum Entry<B> {
    /// An item, and true if it was a partner.
    One(Item<B>, bool),
    /// Order decides which of them came first, so none of them is taken.
    Several,
}

impl<B> Entry<B> {
    fn into_item(self) -> Option<Item<B>> {
        match self {
            Entry::One(item, _) => Some(item),
            Entry::Several => None,
        }
    }
}

struct Table<K, B> {
    entries: HashMap<K, Entry<B>>,
    bytes: usize,
    most: (usize, Option<usize>),
}

impl<K: Hash + Eq + Debug, B> Table<K, B> {
    /// Inserts an item. Returns an error for each item that cannot be a partner now, or an error
    /// that ends the stream.
    fn insert(&mut self, key: K, item: Item<B>, bytes: usize) -> Vec<Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        let full = match self.most {
            (_, Some(most)) if self.bytes > most => Some((most, "bytes")),
            (most, _) if self.entries.len() >= most && !self.entries.contains_key(&key) => {
                Some((most, "items"))
            }
            _ => None,
        };
        if let Some((most, what)) = full {
            let message = format!(
                "input 1 has more than {most} {what}, the most that the table holds; raise `HashJoin::{what}`, let the smaller \
                 input be the second, or sort both and use `merge_join_by_key`"
            );
            return vec![Error::new(ErrorKind::Config, message).of(item.origin())];
        }
        match self.entries.entry(key) {
            hash_map::Entry::Vacant(place) => {
                place.insert(Entry::One(item, false));
                Vec::new()
            }
            hash_map::Entry::Occupied(mut place) => {
                let first = place.insert(Entry::Several);
                let all = [first.into_item(), Some(item)].into_iter().flatten();
                all.map(|item| twice(place.key(), item.origin())).collect()
            }
        }
    }

    fn get(&mut self, key: &K) -> Option<&Item<B>> {
        match self.entries.get_mut(key)? {
            Entry::One(item, used) => {
                *used = true;
                Some(item)
            }
            Entry::Several => None,
        }
    }

    fn unused(&self) -> u64 {
        self.entries
            .values()
            .filter(|entry| matches!(entry, Entry::One(_, false)))
            .count() as u64
    }
}

impl<A, B, K> HashJoin<A, B, K>
where
    A: Send + 'static,
    B: Clone + Send + 'static,
    K: Hash + Eq + Debug + Send + 'static,
{
    fn run<Out: Send + 'static>(
        &self,
        (mut left, mut right): (Items<A>, Items<B>),
        cx: &Context,
        pair: Pair<A, B, Out>,
    ) -> Items<Out> {
        // The number of errors that came of the table, if it was made before a stop.
        let failed: Option<u64> = match cx.restored() {
            Ok(kept) => kept,
            Err(error) => return Items::fail(error),
        };
        let ((left_key, right_key), weigh) = (self.keys.clone(), self.weigh.clone());
        let (strict, cx) = (self.strict, cx.clone());
        let mut table = Table {
            entries: HashMap::new(),
            bytes: 0,
            most: (self.items, self.bytes),
        };
        Items::generate(async move |out| {
            let (begin, mut errors) = (cx.position(1), 0);
            while let Some(item) = right.next().await {
                let found = match item {
                    Err(error) => vec![error],
                    Ok(item) => {
                        let bytes = weigh(&item);
                        table.insert(right_key(&item), item, bytes)
                    }
                };
                for error in found {
                    let ends = !error.kind().is_about_an_item();
                    errors += 1;
                    if ends || failed.is_none() {
                        out.emit(Err(error)).await;
                    }
                    if ends {
                        return;
                    }
                }
            }
            if failed.is_some_and(|failed| failed != errors) {
                let message =
                    "input 1 has not the same errors as before the stop, so its table is another";
                return out.emit(Err(Error::new(ErrorKind::Config, message))).await;
            }
            loop {
                out.snapshot_with(&cx, |keep| {
                    // A resumed epoch makes the table again. To make this possible, `right` is not
                    // dropped before the end.
                    keep.take_again(1, begin);
                    errors
                });
                let item = match left.next().await {
                    None => break,
                    Some(Err(error)) => {
                        out.emit(Err(error)).await;
                        continue;
                    }
                    Some(Ok(item)) => item,
                };
                let key = left_key(&item);
                let partner = table.get(&key).cloned();
                if let Some(pair) = paired(&cx, (item, &key), partner, (pair, strict)) {
                    out.emit(pair).await;
                }
            }
            cx.count_dropped(table.unused());
        })
    }

    fn settings(&self) -> Facts {
        let bytes = self
            .bytes
            .map_or(String::new(), |bytes| format!(" and {bytes} bytes"));
        let strict = if self.strict { ", strict" } else { "" };
        Facts::any_order()
            .with_lookup()
            .with_buffered(self.items)
            .with_settings(format_args!("table of {} items{bytes}{strict}", self.items))
            .with_problem((self.items == 0).then_some("a table of zero items"))
    }
}

impl<A, B, K> Join<(A, B)> for HashJoin<A, B, K>
where
    A: Send + 'static,
    B: Clone + Send + 'static,
    K: Hash + Eq + Debug + Send + 'static,
{
    type Out = (A, B);

    fn join(&self, inputs: (Items<A>, Items<B>), cx: &Context) -> Items<(A, B)> {
        self.run(inputs, cx, inner)
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        inputs[0].filter(|_| self.strict)
    }
    fn name(&self) -> String {
        "join_by_key".to_owned()
    }
    fn facts(&self) -> Facts {
        self.settings()
    }
}

impl<A, B, K> Join<(A, B)> for LeftJoin<HashJoin<A, B, K>>
where
    A: Send + 'static,
    B: Clone + Send + 'static,
    K: Hash + Eq + Debug + Send + 'static,
{
    type Out = (A, Option<B>);

    fn join(&self, inputs: (Items<A>, Items<B>), cx: &Context) -> Items<(A, Option<B>)> {
        self.0.run(inputs, cx, outer)
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        inputs[0]
    }
    fn name(&self) -> String {
        "left_join_by_key".to_owned()
    }
    fn facts(&self) -> Facts {
        self.0.settings()
    }
}

impl<A: Send + 'static> Graph<A> {
    /// Joins each item with the item of another graph that has the same key: images from one store,
    /// labels from a table.
    ///
    /// The other graph is read to its end first, into a table in memory (a hash join); then the
    /// items of this graph are looked up, one by one, in their order. The other graph should
    /// therefore be the smaller one. The table holds up to 1,048,576 items; more are an error,
    /// never more memory. [`HashJoin`] sets the bound, in items and in bytes. If both graphs are
    /// sorted by key, [`merge_join_by_key`](Graph::merge_join_by_key) holds one item only. Runs in
    /// one place.
    ///
    /// - *Many to one*: several items may have the same key, and each gets a clone of the partner.
    ///   Make large partners cheap to clone ([`Tensor::into_shared`](crate::Tensor::into_shared),
    ///   `Arc`).
    /// - *A key twice in the table* is an error of all items that have it, and none of them is a
    ///   partner: to have all, group them by key first.
    /// - *Without a partner*, an item is left out and counted as dropped; so are, at the end, items
    ///   of the table that were not asked for. [`HashJoin::strict`] makes an item without a partner
    ///   an error, [`left_join_by_key`](Graph::left_join_by_key) keeps it.
    /// - *Ranks*: the sharding filter belongs upstream of this step in this graph, or downstream of
    ///   the join. Each rank reads the table whole.
    /// - *Origins*: a pair has those of both.
    /// - *Resume*: a resumed epoch makes the table again, from the beginning of the other graph,
    ///   which has to give the same items then.
    ///
    /// To pair items by position, see [`zip`](Graph::zip).
    ///
    /// # Errors
    /// Errors of the table come before all items. [`ErrorKind::Config`], which no policy skips, if
    /// the table is too large, with the bound.
    ///
    /// # Panics
    /// A panic of a function becomes an error that names the node, and ends the stream.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    ///
    /// // Pictures as a store lists them, and a CSV file of labels in an order of its own.
    /// let images = Graph::from_vec(vec![("cat/1.jpg", [1u8; 4]), ("new.jpg", [2; 4]),
    /// ("dog/7.jpg", [3; 4])]); let csv = "dog/7.jpg,1\ncat/1.jpg,0\ncat/2.jpg,0"; let labels =
    /// Graph::from_iter_with(move || csv.lines()).try_map(|line| {
    ///     let (name, label) = line.split_once(',').ok_or("a line without a comma")?;
    ///     Ok::<_, datapipes::BoxError>((name.to_owned(), label.parse::<u32>()?))
    /// });
    ///
    /// let samples = images
    ///     .shuffle(100)
    ///     .join_by_key(labels, |(name, _)| name.to_string(), |(name, _)| name.clone())
    ///     .map(|((_, pixels), (_, label))| (pixels, label));
    /// let mut samples = samples.collect()?;
    /// samples.sort();
    /// assert_eq!(samples, [([1; 4], 0), ([3; 4], 1)]); // `new.jpg` has no label
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn join_by_key<B, K>(
        self,
        other: Graph<B>,
        key: impl Fn(&A) -> K + Send + Sync + 'static,
        other_key: impl Fn(&B) -> K + Send + Sync + 'static,
    ) -> Graph<(A, B)>
    where
        B: Clone + Send + 'static,
        K: Hash + Eq + Debug + Send + 'static,
    {
        Graph::join((self, other), HashJoin::new(key, other_key))
    }

    /// Does the same as [`join_by_key`](Graph::join_by_key), but keeps an item without a partner,
    /// with `None`.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let labels = Graph::from_vec(vec![(1, "one"), (3, "three")]);
    /// let named = Graph::range(1..4).left_join_by_key(labels, |n| *n, |label| label.0);
    /// let named = named.map(|(n, label)| (n, label.map_or("?", |label| label.1)));
    /// assert_eq!(named.collect().unwrap(), [(1, "one"), (2, "?"), (3, "three")]);
    /// ```
    pub fn left_join_by_key<B, K>(
        self,
        other: Graph<B>,
        key: impl Fn(&A) -> K + Send + Sync + 'static,
        other_key: impl Fn(&B) -> K + Send + Sync + 'static,
    ) -> Graph<(A, Option<B>)>
    where
        B: Clone + Send + 'static,
        K: Hash + Eq + Debug + Send + 'static,
    {
        Graph::join((self, other), HashJoin::new(key, other_key).left())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, OnError, Uneven, testing};

    fn by(modulus: u64) -> HashJoin<u64, (u64, &'static str), u64> {
        HashJoin::new(move |n: &u64| n % modulus, |entry: &(u64, _)| entry.0)
    }

    fn names() -> Vec<(u64, &'static str)> {
        vec![(2, "two"), (0, "zero"), (9, "nine"), (1, "one")]
    }

    #[test]
    fn keeps_the_contract() {
        let numbers = || Vec::from_iter(0..12u64);
        for modulus in [1, 3, 4, 20] {
            testing::check_join(&by(modulus), (numbers(), names()));
            testing::check_join(&by(modulus).strict(), (numbers(), names()));
            testing::check_join(&by(modulus).left(), (numbers(), names()));
        }
        let twice = || [names(), vec![(1, "uno"), (5, "five"), (1, "un")]].concat();
        testing::check_join(&by(4), (numbers(), twice()));
        testing::check_join(&by(4).strict(), (numbers(), twice()));
    }

    #[test]
    fn join_by_key_pairs_what_has_the_same_key_in_the_order_of_its_first_input() {
        let numbers = || Graph::from_vec(vec![4, 2, 7, 1, 2]);
        let joined = numbers().join_by_key(Graph::from_vec(names()), |n| *n, |entry| entry.0);
        let loader = DataLoader::builder(joined).build().unwrap();
        let items: Vec<_> = loader
            .epoch(0)
            .blocking()
            .items()
            .map(Result::unwrap)
            .collect();
        let shown: Vec<_> = items
            .iter()
            .map(|item| (item.0, item.1.1, item.origin().to_string()))
            .collect();
        let expected = [
            (2, "two", "[0:1, 1:0]"),
            (1, "one", "[0:3, 1:3]"),
            (2, "two", "[0:4, 1:0]"),
        ];
        assert_eq!(
            shown,
            expected.map(|(n, name, origin)| (n, name, origin.to_owned()))
        );
        // 4 and 7 of the first input, `zero` and `nine` of the second.
        assert_eq!(loader.stats().unwrap().nodes.last().unwrap().dropped, 4);
    }

    #[test]
    fn a_key_twice_in_the_table_is_an_error_of_all_that_have_it() {
        let table = Graph::from_vec(vec![(1, "a"), (2, "b"), (1, "c"), (1, "d")]);
        let joined = Graph::range(1..3).join_by_key(table, |n| *n, |entry| entry.0);
        let policy = OnError::skip(9);
        let loader = DataLoader::builder(joined)
            .workers(0)
            .on_error(policy.clone())
            .build()
            .unwrap();
        let pairs: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(pairs, [(2, (2, "b"))]);
        let skipped: Vec<String> = policy
            .skipped()
            .into_iter()
            .map(|skipped| skipped.error)
            .collect();
        let expected = ["1:0", "1:2", "1:3"].map(|item| {
            format!("join_by_key: {item}: corrupt: input 1 has the key 1 more than once")
        });
        assert_eq!(skipped, expected);
    }

    #[test]
    fn a_table_is_bounded_in_items_and_in_bytes() {
        let run = |join: HashJoin<u64, u64, u64>, items| {
            let graph = Graph::join((Graph::range(0..3), Graph::range(0..items)), join);
            let loader = DataLoader::builder(graph)
                .on_error(OnError::skip(99))
                .build()
                .unwrap();
            loader
                .epoch(0)
                .blocking()
                .collect::<crate::Result<Vec<_>>>()
        };
        let join = || HashJoin::new(|n: &u64| *n, |n: &u64| *n);
        assert_eq!(run(join().items(5), 5).unwrap().len(), 3);
        let error = run(join().items(5), 6).unwrap_err().to_string();
        assert!(
            error.starts_with("join_by_key: 1:5: wrong configuration: input 1 has more than 5 items, the most that the table holds")
                && error.contains("raise `HashJoin::items`"),
            "{error}"
        );
        assert_eq!(run(join().bytes(50, |_| 10), 5).unwrap().len(), 3);
        let error = run(join().bytes(50, |_| 10), 6).unwrap_err().to_string();
        assert!(
            error.contains("1:5: wrong configuration: input 1 has more than 50 bytes"),
            "{error}"
        );
        let none = Graph::join((Graph::range(0..3), Graph::range(0..3)), join().items(0));
        let problems = DataLoader::builder(none).build().unwrap_err().to_string();
        assert!(
            problems.contains("join_by_key: a table of zero items"),
            "{problems}"
        );
    }

    #[test]
    fn ranks_read_a_table_whole_and_share_the_rest() {
        let table = || Graph::from_vec(names());
        let rank = |graph: Graph<(u64, (u64, &'static str))>, index| {
            DataLoader::builder(graph)
                .rank(index, 2)
                .uneven(Uneven::Allow)
                .build()
        };
        let shared = || Graph::range(0..10).sharding_filter();
        let mut all = Vec::new();
        for index in 0..2 {
            let graph = shared().join_by_key(table(), |n| n % 4, |entry| entry.0);
            all.extend(
                rank(graph, index)
                    .unwrap()
                    .epoch(0)
                    .blocking()
                    .map(|pair| pair.unwrap().0),
            );
        }
        all.sort();
        assert_eq!(all, [0, 1, 2, 4, 5, 6, 8, 9]);

        let below = Graph::range(0..10)
            .join_by_key(table(), |n| n % 4, |entry| entry.0)
            .sharding_filter();
        assert!(rank(below, 0).is_ok());
        let unshared = Graph::range(0..10).join_by_key(table(), |n| *n, |entry| entry.0);
        let problems = rank(unshared, 0).unwrap_err().to_string();
        assert!(
            problems.contains("range: no `sharding_filter`") && !problems.contains("from_vec"),
            "{problems}"
        );
        let wrong = shared().join_by_key(table().sharding_filter(), |n| *n, |entry| entry.0);
        let problems = rank(wrong, 0).unwrap_err().to_string();
        assert!(
            problems.contains("join_by_key: its input 1 is sharded"),
            "{problems}"
        );
    }

    #[test]
    fn a_stopped_join_makes_its_table_again() {
        let graph = || {
            let table = Graph::range(0..50)
                .shuffle(20)
                .map_async(|n| async move { crate::Ok(n * 2) });
            let table = table.try_map(|n| if n == 8 { Err("eight") } else { Ok(n) });
            Graph::range(0..200)
                .shuffle(30)
                .join_by_key(table, |n| n % 120, |n| *n)
                .map(|(a, b)| (a, b))
                .shuffle(5)
        };
        for workers in [0, 2] {
            let build = || {
                let builder = DataLoader::builder(graph())
                    .workers(workers)
                    .on_error(OnError::skip(99));
                builder.resumable().build().unwrap()
            };
            let whole: Vec<_> = build().epoch(3).blocking().map(Result::unwrap).collect();
            assert_eq!(whole.len(), 2 * 49 - 10);
            for stop in [0, 1, 40, 87, 88] {
                let loader = build();
                let mut epoch = loader.epoch(3).blocking();
                let mut seen: Vec<_> = epoch.by_ref().take(stop).map(Result::unwrap).collect();
                let state = epoch.checkpoint().unwrap();
                drop(epoch);
                seen.extend(
                    build()
                        .resume(&state)
                        .unwrap()
                        .blocking()
                        .map(Result::unwrap),
                );
                assert_eq!(seen, whole, "stopped after {stop} with {workers} workers");
            }
        }
    }
}
