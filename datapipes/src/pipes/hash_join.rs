//! Joins the items of two inputs that have the same key, with one input in memory.

use std::collections::{HashMap, hash_map};
use std::fmt::Debug;
use std::hash::Hash;
use std::mem::needs_drop;
use std::slice::from_ref;
use std::sync::Arc;

use futures::StreamExt;

use crate::{Context, Error, Graph, Hints, Item, Items, Join, Origin};

/// Returns the key of an item.
pub(super) type Key<T, K> = Arc<dyn Fn(&T) -> K + Send + Sync>;

/// Default bounds on the items of a table, and on their bytes.
const ITEMS: usize = 1 << 20;
const BYTES: usize = 1 << 30;

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
#[must_use]
pub struct HashJoin<A, B, K> {
    keys: (Key<A, K>, Key<B, K>),
    items: usize,
    /// The bound in bytes, if it is not the default one.
    bytes: Option<usize>,
    weigh: Arc<dyn Fn(&B) -> usize + Send + Sync>,
    strict: bool,
}

impl<A, B, K> HashJoin<A, B, K> {
    /// Joins by these keys, with a table of up to 1,048,576 items and 1 GiB, where an item counts as
    /// the size of its type.
    pub fn new(
        left: impl Fn(&A) -> K + Send + Sync + 'static,
        right: impl Fn(&B) -> K + Send + Sync + 'static,
    ) -> Self {
        let keys: (Key<A, K>, Key<B, K>) = (Arc::new(left), Arc::new(right));
        HashJoin {
            keys,
            items: ITEMS,
            bytes: None,
            weigh: Arc::new(|_| size_of::<B>()),
            strict: false,
        }
    }

    /// Weighs items of the table as the graph that they come from does.
    fn weighed_by(self, table: &Graph<B>) -> Self
    where
        B: Send + 'static,
    {
        let weigh = table.weigher();
        HashJoin {
            weigh: Arc::new(move |item| weigh(from_ref(item))),
            ..self
        }
    }

    /// Bounds the table to this many items.
    pub fn items(mut self, most: usize) -> Self {
        self.items = most;
        self
    }

    /// Bounds the table to this many bytes instead of 1 GiB, besides the bound in items; `weigh`
    /// returns the bytes that an item keeps alive.
    pub fn bytes(
        mut self,
        most: usize,
        weigh: impl Fn(&B) -> usize + Send + Sync + 'static,
    ) -> Self {
        self.bytes = Some(most);
        self.weigh = Arc::new(weigh);
        self
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

opaque_debug!(HashJoin<A, B, K> { items, bytes, strict });

/// Sets the weight of items that are made of other items: by these, where items may own something.
/// Others weigh the size of their type, which costs nothing.
pub(super) fn weighed_by_parts<T: Send + 'static>(
    graph: Graph<T>,
    weigh: impl Fn(&T) -> usize + Send + Sync + 'static,
) -> Graph<T> {
    if needs_drop::<T>() {
        graph.weighed(weigh)
    } else {
        graph
    }
}

/// Returns a function that weighs pairs of the items of two graphs.
pub(super) fn pair_weigher<A: Send + 'static, B: Send + 'static>(
    a: &Graph<A>,
    b: &Graph<B>,
) -> impl Fn(&A, Option<&B>) -> usize + Send + Sync + 'static {
    let (a, b) = (a.weigher(), b.weigher());
    move |left, right| a(from_ref(left)) + right.map_or(size_of::<B>(), |right| b(from_ref(right)))
}

/// Keeps every item of the first input of a join by key; see [`HashJoin::left`] and
/// [`MergeJoin::left`](super::MergeJoin::left).
#[derive(Debug)]
pub struct LeftJoin<J>(pub(super) J);

/// Makes the output of a pair; `None` if it needs a partner and has none.
pub(super) type Pair<A, B, Out> = fn(A, Option<B>) -> Option<Out>;

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
            let error = Error::not_found(format!("no partner with the key {key:?}"));
            Some(Err(error.of(&parts[0])))
        }
        None => {
            cx.count_dropped(1);
            None
        }
    }
}

/// Returns the error of a join without a pair, with a key of each input.
pub(super) fn no_pair<K: Debug>(key: &K, other: &K) -> Error {
    let message = format!(
        "no item has a partner: a key of input 0 is {key:?}, and one of input 1 is {other:?}"
    );
    Error::not_found(message).fatal()
}

pub(super) fn twice<K: Debug>(key: &K, item: &Origin) -> Error {
    Error::corrupt(format!("input 1 has the key {key:?} more than once")).of(item)
}

/// The entry of a table for a key.
enum TableEntry<B> {
    /// An item, and true if it was a partner.
    One(Item<B>, bool),
    /// Order decides which of them came first, so none of them is taken.
    Several,
}

impl<B> TableEntry<B> {
    fn into_item(self) -> Option<Item<B>> {
        match self {
            TableEntry::One(item, _) => Some(item),
            TableEntry::Several => None,
        }
    }
}

struct Table<K, B> {
    entries: HashMap<K, TableEntry<B>>,
    bytes: usize,
    /// Bounds in items and in bytes.
    most: (usize, usize),
}

impl<K: Hash + Eq + Debug, B> Table<K, B> {
    /// Inserts an item. Returns an error for each item that cannot be a partner now, or an error
    /// that ends the stream.
    fn insert(&mut self, key: K, item: Item<B>, bytes: usize) -> Vec<Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        let full = match self.most {
            (_, most) if self.bytes > most => Some((most, "bytes")),
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
            return vec![Error::config(message).of(item.origin())];
        }
        match self.entries.entry(key) {
            hash_map::Entry::Vacant(place) => {
                place.insert(TableEntry::One(item, false));
                Vec::new()
            }
            hash_map::Entry::Occupied(mut place) => {
                let first = place.insert(TableEntry::Several);
                let all = [first.into_item(), Some(item)].into_iter().flatten();
                all.map(|item| twice(place.key(), item.origin())).collect()
            }
        }
    }

    fn get(&mut self, key: &K) -> Option<&Item<B>> {
        match self.entries.get_mut(key)? {
            TableEntry::One(item, used) => {
                *used = true;
                Some(item)
            }
            TableEntry::Several => None,
        }
    }

    fn unused(&self) -> u64 {
        self.entries
            .values()
            .filter(|entry| matches!(entry, TableEntry::One(_, false)))
            .count() as u64
    }

    /// Returns the error of a join in which the first input had a key like this, and no key of the
    /// second.
    fn no_pair(&self, key: &K) -> Option<Error> {
        let items = self.entries.iter().filter_map(|(key, entry)| match entry {
            TableEntry::One(item, _) => Some((item.origin(), key)),
            TableEntry::Several => None,
        });
        let (_, other) = items.min_by(|(a, _), (b, _)| a.cmp(b))?;
        Some(no_pair(key, other))
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
        let failed: Option<u64> = or_fail!(cx.restored());
        let ((left_key, right_key), weigh) = (self.keys.clone(), self.weigh.clone());
        let (strict, cx) = (self.strict, cx.clone());
        let mut table = Table {
            entries: HashMap::new(),
            bytes: 0,
            most: (self.items, self.most_bytes()),
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
                    let ends = !error.is_about_an_item();
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
                return out.emit(Err(Error::config(message))).await;
            }
            // The first key without a partner, until an item has one: keys of two forms are a mistake
            // that would otherwise look like an empty data set. Another rank may have pairs.
            let (mut lone, mut has_pairs) = (None, failed.is_some() || cx.rank().world > 1);
            loop {
                out.snapshot_with(&cx, |held| {
                    // A resumed epoch makes the table again. To make this possible, `right` is not
                    // dropped before the end.
                    held.take_again(1, begin);
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
                match paired(&cx, (item, &key), partner, (pair, strict)) {
                    Some(pair) => {
                        has_pairs = true;
                        out.emit(pair).await;
                    }
                    None => _ = lone.get_or_insert(key),
                }
            }
            cx.count_dropped(table.unused());
            if let Some(error) = lone
                .filter(|_| !has_pairs)
                .and_then(|key| table.no_pair(&key))
            {
                out.emit(Err(error)).await;
            }
        })
    }

    fn most_bytes(&self) -> usize {
        self.bytes.unwrap_or(BYTES)
    }

    fn own_hints(&self) -> Hints {
        // Checkpoints hold this text, and the default bound is younger than some.
        let bytes = self
            .bytes
            .map_or(String::new(), |bytes| format!(" and {bytes} bytes"));
        let strict = if self.strict { ", strict" } else { "" };
        Hints::any_order()
            .is_resumable(true)
            .looks_up(true)
            .buffered(self.items)
            .buffered_bytes(self.most_bytes())
            .settings(format_args!("table of {} items{bytes}{strict}", self.items))
            .problem((self.items == 0).then_some("a table of zero items"))
            .problem((self.bytes == Some(0)).then_some("a table of zero bytes"))
    }
}

/// Implements a join by key, whose items without a partner are left out or kept.
macro_rules! joins_by_key {
    ($type:ident: $inner:literal, $left:literal, $($bounds:tt)+) => {
        impl<A, B, K> Join<(A, B)> for $type<A, B, K>
        where
            A: Send + 'static,
            B: Clone + Send + 'static,
            K: $($bounds)+ + Debug + Send + 'static,
        {
            type Out = (A, B);

            fn join(&self, inputs: (Items<A>, Items<B>), cx: &Context) -> Items<(A, B)> {
                self.run(inputs, cx, |left, right| Some((left, right?)))
            }
            fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
                // Without `strict` the number depends on the keys, but an endless stream stays endless.
                inputs[0].filter(|&len| self.strict || len == u64::MAX)
            }
            fn name(&self) -> String {
                $inner.to_owned()
            }
            fn hints(&self) -> Hints {
                self.own_hints()
            }
        }

        impl<A, B, K> Join<(A, B)> for LeftJoin<$type<A, B, K>>
        where
            A: Send + 'static,
            B: Clone + Send + 'static,
            K: $($bounds)+ + Debug + Send + 'static,
        {
            type Out = (A, Option<B>);

            fn join(&self, inputs: (Items<A>, Items<B>), cx: &Context) -> Items<(A, Option<B>)> {
                self.0.run(inputs, cx, |left, right| Some((left, right)))
            }
            fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
                inputs[0]
            }
            fn name(&self) -> String {
                $left.to_owned()
            }
            fn hints(&self) -> Hints {
                self.0.own_hints()
            }
        }
    };
}
pub(super) use joins_by_key;

joins_by_key!(HashJoin: "join_by_key", "left_join_by_key", Hash + Eq);

impl<A: Send + 'static> Graph<A> {
    /// Joins each item with the one of another graph that has the same key: images from one store,
    /// labels from a table.
    ///
    /// The other graph is read to its end first, into a table in memory (a hash join); then the
    /// items of this one are looked up, one by one, in their order. So let the other be the smaller
    /// one. The table holds up to 1,048,576 items and 1 GiB of them, as [`weighed`](Graph::weighed);
    /// more are an error, never more memory. [`HashJoin`] sets the bound, in items and in bytes. Where both are sorted by key,
    /// [`merge_join_by_key`](Graph::merge_join_by_key) holds one item only. Runs in one place.
    ///
    /// - *Many to one*: several items may have the same key, and each gets a clone of the partner.
    ///   Make large partners cheap to clone ([`Tensor::into_shared`](crate::Tensor::into_shared),
    ///   `Arc`).
    /// - *A key twice in the table* is an error of all items that have it, and none of them is a
    ///   partner: to have all, group them by key first.
    /// - *Without a partner*, an item is left out and counted as dropped; so is, at the end, what
    ///   is in the table and was not asked for. [`HashJoin::strict`] makes it an error,
    ///   [`left_join_by_key`](Graph::left_join_by_key) keeps it. No item with a partner, in an epoch of a
    ///   single rank that was not resumed, is an error at the end, which no policy skips.
    /// - *Ranks*: the sharding filter belongs above this graph, or below the join. Each rank reads
    ///   the table whole.
    /// - *Origins*: a pair has the origins of both items.
    /// - *Resume*: a resumed epoch makes the table again, from the beginning of the other graph,
    ///   which has to give the same then.
    ///
    /// To pair items by their places, see [`zip`](Graph::zip).
    ///
    /// # Errors
    /// Errors of the table come before all items. [`ErrorKind::Config`](crate::ErrorKind::Config), which no policy skips, if
    /// it is too large, with the bound.
    ///
    /// # Panics
    /// A panic of a function becomes an error that names the node, and ends the stream.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    ///
    /// // Pictures as a store lists them, and a CSV file of labels in an order of its own.
    /// let images = Graph::from_vec(vec![("cat/1.jpg", [1u8; 4]), ("new.jpg", [2; 4]), ("dog/7.jpg", [3; 4])]);
    /// let csv = "dog/7.jpg,1\ncat/1.jpg,0\ncat/2.jpg,0";
    /// let labels = Graph::from_iter_with(move || csv.lines()).try_map(|line| {
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
        let weigh = pair_weigher(&self, &other);
        let join = HashJoin::new(key, other_key).weighed_by(&other);
        let joined = Graph::join((self, other), join);
        weighed_by_parts(joined, move |(a, b)| weigh(a, Some(b)))
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
        let weigh = pair_weigher(&self, &other);
        let join = HashJoin::new(key, other_key).weighed_by(&other);
        let joined = Graph::join((self, other), join.left());
        weighed_by_parts(joined, move |(a, b)| weigh(a, b.as_ref()))
    }
}

#[cfg(test)]
mod tests;
