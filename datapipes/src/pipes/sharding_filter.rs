//! Keeps this rank's part of the items.

use crate::{
    Context, Dealing, Error, Graph, Hints, Item, Items, Pipe, PipeSnapshot, Rank, Result, Role,
    Uneven,
};
use futures::StreamExt;

/// Keeps this rank's part of the items; see [`Graph::sharding_filter`].
#[derive(Clone, Debug, Default)]
pub struct ShardingFilter(());

impl ShardingFilter {
    /// Makes a filter of any items.
    pub fn new() -> Self {
        ShardingFilter(())
    }
}

impl<T: Send + 'static> Pipe<T> for ShardingFilter {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        shard(input, cx, None)
    }
    fn snapshot_at(&self, outputs: u64, cx: &Context) -> Result<Option<PipeSnapshot>> {
        snapshot_at(outputs, cx, false)
    }
    fn hints(&self) -> Hints {
        hints(false)
    }
}

/// Keeps this rank's part of the items, and can pad it; see [`Graph::sharding_filter_padded`].
#[derive(Clone, Debug, Default)]
pub struct ShardingFilterPadded(());

impl ShardingFilterPadded {
    /// Makes a filter of items that can be cloned.
    pub fn new() -> Self {
        ShardingFilterPadded(())
    }
}

impl<T: Clone + Send + 'static> Pipe<T> for ShardingFilterPadded {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        shard(input, cx, Some(Item::clone))
    }
    fn snapshot_at(&self, outputs: u64, cx: &Context) -> Result<Option<PipeSnapshot>> {
        snapshot_at(outputs, cx, true)
    }
    fn hints(&self) -> Hints {
        hints(true)
    }
}

fn hints(can_pad: bool) -> Hints {
    Hints::default()
        .never_blocks(true)
        .is_resumable(true)
        .selects(true)
        .role(Role::Shard {
            can_pad,
            dealing: Dealing::InTurn,
        })
        .buffered(1)
}

/// Computes the snapshot at the beginning of a round.
fn snapshot_at(outputs: u64, cx: &Context, can_pad: bool) -> Result<Option<PipeSnapshot>> {
    let world = cx.rank().world as u64;
    let Some(total) = outputs.checked_mul(world) else {
        return Ok(None);
    };
    let pads = can_pad && world > 1 && cx.uneven() == Some(Uneven::Pad);
    let first = if pads { world.min(total) } else { 0 };
    Ok(Some(PipeSnapshot::new(&(total, first))?.hold(0..first)))
}

/// Clones an item, if items can be cloned.
type CloneItem<T> = fn(&Item<T>) -> Item<T>;

/// Deals the items of a stream to the ranks in rounds, one item to each rank in turn, and gives
/// those of this rank.
fn shard<T: Send + 'static>(
    input: Items<T>,
    cx: &Context,
    clone: Option<CloneItem<T>>,
) -> Items<T> {
    let world = cx.rank().world;
    if world <= 1 && !cx.is_resumable() {
        return input;
    }
    // The number of items and errors so far, and how many of them are held.
    let (total, again) = or_fail!(cx.restored::<(u64, u64)>()).unwrap_or((0, 0));
    if world <= 1 && again == 0 {
        return give_all(input, cx, total);
    }
    if again > world as u64 {
        let message = "a checkpoint holds more items for padding than there are ranks";
        return Items::fail(Error::config(message).at(cx.node()));
    }
    deal(
        input,
        cx.clone(),
        Policy::of(cx.uneven(), clone),
        total,
        again,
    )
}

/// Gives all items, and takes snapshots as the only rank, of which another number of ranks can go
/// on.
fn give_all<T: Send + 'static>(input: Items<T>, cx: &Context, mut total: u64) -> Items<T> {
    let keeps = cx.clone();
    input.each_chunk(cx, move |chunk| {
        total = total.saturating_add(chunk.len() as u64);
        keeps.snapshot_after(chunk.len(), || (total, 0u64));
        chunk
    })
}

/// The first items of the stream, which any rank may have to repeat, and their positions.
type FirstItems<T> = Vec<(Item<T>, u64)>;

/// Takes the first items again, which a checkpoint says were held.
async fn take_again<T: Send + 'static>(
    input: &mut Items<T>,
    cx: &Context,
    again: u64,
) -> FirstItems<T> {
    let mut first = Vec::new();
    for _ in 0..again {
        let position = cx.position(0);
        match input.next().await {
            Some(Ok(item)) => first.push((item, position)),
            Some(Err(_)) => {}
            None => break,
        }
    }
    first
}

/// Deals the items after the first `total`, of which `again` are held.
fn deal<T: Send + 'static>(
    mut input: Items<T>,
    cx: Context,
    mut policy: Policy<T>,
    mut total: u64,
    again: u64,
) -> Items<T> {
    let Rank { index, world } = cx.rank();
    Items::generate(async move |out| {
        let mut first = take_again(&mut input, &cx, again).await;
        let mut round = DealtRound::default();
        loop {
            if round.dealt == 0 {
                out.snapshot_with(&cx, |held| {
                    held.hold(first.iter().map(|(_, position)| *position));
                    (total, first.len() as u64)
                });
            }
            let position = cx.position(0);
            let Some(item) = input.next().await else {
                break;
            };
            if cx.is_cancelled() {
                return;
            }
            total = total.saturating_add(1);
            match item {
                // An error takes an item's place, on every rank.
                Err(error) => {
                    round.failed = true;
                    out.emit(Err(error)).await;
                }
                Ok(item) => {
                    policy.keep_first(&item, position, world, &mut first);
                    if round.dealt == index
                        && let Some(item) = policy.take(item)
                    {
                        round.given = true;
                        out.emit(Ok(item)).await;
                    }
                }
            }
            round.dealt += 1;
            if round.dealt == world {
                if let Some(item) = policy.end_round(round, &first, index, &cx) {
                    out.emit(Ok(item)).await;
                }
                round = DealtRound::default();
            }
        }
        if let Some(last) = policy.end(round, &first, total, &cx) {
            out.emit(last).await;
        }
    })
}

/// Knowledge of a rank about the round that is being dealt.
#[derive(Clone, Copy, Default)]
struct DealtRound {
    /// Number of ranks that had their turn.
    dealt: usize,
    /// True if this rank's item was given.
    given: bool,
    /// True if the item of some rank failed.
    failed: bool,
}

/// Treatment of items that do not divide among the ranks; see [`Uneven`].
enum Policy<T> {
    /// A rank gives its items, however many the others have.
    Allow,
    /// A rank gives its item of a round once every rank has one. Until then it is here.
    Drop(Option<Item<T>>),
    /// A rank that has no item of a round repeats one of the first, if items can be cloned.
    Pad(Option<CloneItem<T>>),
    /// The same as `Allow`, with an error at the end if the last round is not full.
    Error,
}

impl<T> Policy<T> {
    fn of(uneven: Option<Uneven>, clone: Option<CloneItem<T>>) -> Self {
        match uneven {
            None | Some(Uneven::Allow) => Policy::Allow,
            Some(Uneven::Drop) => Policy::Drop(None),
            Some(Uneven::Pad) => Policy::Pad(clone),
            Some(Uneven::Error) => Policy::Error,
        }
    }

    /// Adds an item to the first ones, if ranks may have to repeat it.
    fn keep_first(&self, item: &Item<T>, position: u64, world: usize, first: &mut FirstItems<T>) {
        if let Policy::Pad(Some(clone)) = self
            && first.len() < world
        {
            first.push((clone(item), position));
        }
    }

    /// Takes this rank's item of a round. Returns it if it is given at once.
    fn take(&mut self, item: Item<T>) -> Option<Item<T>> {
        match self {
            Policy::Drop(own) => {
                *own = Some(item);
                None
            }
            _ => Some(item),
        }
    }

    /// Ends a full round. Returns the item that this rank gives at its end.
    fn end_round(
        &mut self,
        round: DealtRound,
        first: &[(Item<T>, u64)],
        index: usize,
        cx: &Context,
    ) -> Option<Item<T>> {
        match self {
            Policy::Drop(own) if round.failed => {
                cx.count_dropped(u64::from(own.take().is_some()));
                None
            }
            Policy::Drop(own) => own.take(),
            Policy::Pad(clone) if !round.given => repeat(first, index, *clone),
            Policy::Allow | Policy::Pad(_) | Policy::Error => None,
        }
    }

    /// Ends the stream of `total` items in a round that is empty or not full. Returns what comes
    /// after the last item.
    fn end(
        self,
        round: DealtRound,
        first: &[(Item<T>, u64)],
        total: u64,
        cx: &Context,
    ) -> Option<Result<Item<T>>> {
        let (Rank { index, world }, left) = (cx.rank(), round.dealt);
        if let Policy::Drop(Some(_)) = self {
            cx.count_dropped(1);
        }
        // It is about the items of all ranks, of which this one would skip one.
        let fail = |message| Some(Err(Error::shape(message).fatal()));
        match self {
            _ if cx.is_cancelled() => None,
            Policy::Allow => None,
            _ if total < world as u64 => {
                fail(format!("fewer items than ranks: {total} for {world}"))
            }
            _ if left == 0 => None,
            Policy::Error => fail(format!(
                "{total} items do not divide among {world} ranks: {left} are left over"
            )),
            // The ranks without an item repeat one after another; so does one whose item failed.
            Policy::Pad(clone) if !round.given => {
                let number = if index >= left { index - left } else { index };
                repeat(first, number, clone).map(Ok)
            }
            Policy::Drop(_) | Policy::Pad(_) => None,
        }
    }
}

/// Repeats one of the first items, if there are any, and items can be cloned.
fn repeat<T>(
    first: &[(Item<T>, u64)],
    number: usize,
    clone: Option<CloneItem<T>>,
) -> Option<Item<T>> {
    let number = number.checked_rem(first.len())?;
    Some(clone?(&first[number].0))
}

impl<T: Send + 'static> Graph<T> {
    /// Keeps this rank's part: item `i` goes to rank `i mod world` (see
    /// [`Builder::rank`](crate::loader::Builder)).
    ///
    /// Every rank reads everything upstream and keeps its part. Put the filter where items are
    /// cheap, as file names are, and after the shuffle that is meant for all data. With one rank it
    /// does nothing. Items that go to other ranks do not count as dropped. [`Uneven`] decides about
    /// items that do not divide evenly:
    ///
    /// - `Drop`: an item is kept only once every rank has an item of the same round; the rest is
    ///   dropped and counted, and so is a round in which an item failed.
    /// - `Pad`: needs [`sharding_filter_padded`](Graph::sharding_filter_padded).
    /// - `Allow`: some ranks get one more.
    /// - `Error`: an error after the last item.
    ///
    /// Fewer items than ranks (three archives for four ranks) are an error on every rank, with both
    /// numbers, unless `Allow` is set. The error comes when the loader is built, or after the last
    /// item if the number is not known before.
    ///
    /// Step `n` of all ranks together can have the same items for any number of ranks. That is so
    /// if downstream are only one-in-one-out pipes, and batches whose sizes add up to the same
    /// number over all ranks. An epoch of this kind can be [resumed](crate::Checkpoint::merge) on
    /// another number of ranks.
    ///
    /// An item that fails takes its place, so that the others stay with their ranks; every rank
    /// gets the error. Runs in one place, in order.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) at the end, under [`Uneven::Error`] or if there are fewer items than
    /// ranks; no [policy](crate::OnError) skips it.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Uneven};
    /// let graph = Graph::range(0..7).sharding_filter();
    /// let loader = DataLoader::builder(graph).rank(1, 3).uneven(Uneven::Drop).build()?;
    /// let part: datapipes::Result<Vec<u64>> = loader.epoch(0).blocking().collect();
    /// assert_eq!(part?, [1, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sharding_filter(self) -> Graph<T> {
        self.pipe(ShardingFilter::new())
    }

    /// Keeps this rank's part, and pads it under [`Uneven::Pad`]; otherwise does the same as
    /// [`sharding_filter`](Graph::sharding_filter).
    ///
    /// If the last round is not full, the ranks without an item repeat items from the start of the
    /// stream, one after another; so does a rank whose own item failed. An item that is repeated
    /// keeps its origin. Holds a clone of the first `world` items.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Uneven};
    /// let graph = Graph::range(0..7).sharding_filter_padded();
    /// let loader = DataLoader::builder(graph).rank(2, 3).uneven(Uneven::Pad).build()?;
    /// let part: datapipes::Result<Vec<u64>> = loader.epoch(0).blocking().collect();
    /// assert_eq!(part?, [2, 5, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sharding_filter_padded(self) -> Graph<T>
    where
        T: Clone,
    {
        self.pipe(ShardingFilterPadded::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, OnError};

    fn parts(items: u64, world: usize, uneven: Uneven, failing: Option<u64>) -> Vec<Vec<u64>> {
        let part = |rank| {
            let graph = Graph::from_iter_with(move || 0..items);
            let graph = graph.try_map(move |n| {
                if Some(n) == failing {
                    Err("bad")
                } else {
                    Ok(n)
                }
            });
            let loader = DataLoader::builder(graph.sharding_filter_padded())
                .workers(0)
                .rank(rank, world);
            let loader = loader
                .uneven(uneven)
                .ranks_agree()
                .on_error(OnError::skip(1))
                .build()
                .unwrap();
            loader.epoch(0).blocking().map(Result::unwrap).collect()
        };
        (0..world).map(part).collect()
    }

    #[test]
    fn row_32_every_item_once_for_any_ranks() {
        for items in 0..20 {
            for world in 1..9 {
                let mut all = parts(items, world, Uneven::Allow, None).concat();
                all.sort();
                assert_eq!(all, Vec::from_iter(0..items));

                if items < world as u64 {
                    continue;
                }
                let even = parts(items, world, Uneven::Drop, None);
                assert!(
                    even.iter()
                        .all(|part| part.len() as u64 == items / world as u64)
                );

                let padded = parts(items, world, Uneven::Pad, None);
                assert!(
                    padded
                        .iter()
                        .all(|part| part.len() as u64 == items.div_ceil(world as u64))
                );
                let mut all = padded.concat();
                all.sort();
                all.dedup();
                assert_eq!(all, Vec::from_iter(0..items));
            }
        }
    }

    #[test]
    fn ranks_stay_even_and_aligned_around_a_failure() {
        assert_eq!(
            parts(6, 2, Uneven::Allow, Some(2)),
            [vec![0, 4], vec![1, 3, 5]]
        );
        assert_eq!(parts(6, 2, Uneven::Drop, Some(2)), [vec![0, 4], vec![1, 5]]);
        assert_eq!(
            parts(6, 2, Uneven::Pad, Some(2)),
            [vec![0, 0, 4], vec![1, 3, 5]]
        );
        assert_eq!(
            parts(5, 2, Uneven::Pad, Some(4)),
            [vec![0, 2, 0], vec![1, 3, 0]]
        );
    }

    #[test]
    fn leftovers_can_be_an_error() {
        let graph = Graph::from_iter_with(|| 0..7u64).sharding_filter();
        let loader = DataLoader::builder(graph)
            .workers(0)
            .rank(0, 3)
            .uneven(Uneven::Error)
            .ranks_agree()
            // It is about no single item, so no policy skips it.
            .on_error(OnError::skip(1))
            .build()
            .unwrap();
        let seen: Vec<_> = loader.epoch(0).blocking().collect();
        assert_eq!(
            seen[..3]
                .iter()
                .map(|n| *n.as_ref().unwrap())
                .collect::<Vec<_>>(),
            [0, 3, 6]
        );
        let error = seen[3].as_ref().unwrap_err().to_string();
        assert_eq!(
            error,
            "sharding_filter: shape mismatch: 7 items do not divide among 3 ranks: 1 are left over"
        );
    }
}
