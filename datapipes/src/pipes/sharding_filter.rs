//! Keeps this rank's part of the items.

use crate::codec::pack;
use crate::items::by_chunk;
use crate::{Context, Error, ErrorKind, Graph, Hints, Item, Items, Pipe, Rank, Role, Uneven};
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
    fn hints(&self) -> Hints {
        Hints::default()
            .never_blocks(true)
            .is_resumable(true)
            .selects(true)
            .role(Role::Shard { can_pad: false })
            .buffered(1)
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
    fn hints(&self) -> Hints {
        Hints::default()
            .never_blocks(true)
            .is_resumable(true)
            .selects(true)
            .role(Role::Shard { can_pad: true })
            .buffered(1)
    }
}

/// Clones an item, if items can be cloned.
type CloneItem<T> = fn(&Item<T>) -> Item<T>;

fn shard<T: Send + 'static>(
    mut input: Items<T>,
    cx: &Context,
    pad: Option<CloneItem<T>>,
) -> Items<T> {
    let Rank { index, world } = cx.rank();
    if world <= 1 && !cx.is_resumable() {
        return input;
    }
    // The number of items and errors so far, and how many of them are held.
    let (mut total, again) = match cx.restored::<(u64, u64)>() {
        Ok(kept) => kept.unwrap_or((0, 0)),
        Err(error) => return Items::fail(error),
    };
    if world <= 1 && again == 0 {
        let keeps = cx.clone();
        return by_chunk(input, cx, move |chunk| {
            total = total.saturating_add(chunk.len() as u64);
            keeps.snapshot_encoded(chunk.len(), |_| pack(&(total, 0u64)));
            chunk
        });
    }
    let (uneven, cx) = (cx.uneven().unwrap_or(Uneven::Allow), cx.clone());
    let pad = pad.filter(|_| uneven == Uneven::Pad);
    if again > world as u64 {
        return Items::fail(
            Error::new(
                ErrorKind::Config,
                "more items were kept to pad with than there are ranks",
            )
            .at(cx.node()),
        );
    }
    Items::generate(async move |out| {
        // The first items of the stream, which any rank may have to repeat, and their positions.
        let (mut first, mut held) = (Vec::new(), Vec::new());
        for _ in 0..again {
            let position = cx.position(0);
            match input.next().await {
                Some(Ok(item)) => {
                    first.push(item);
                    held.push(position);
                }
                Some(Err(_)) => {}
                None => break,
            }
        }
        let mut round = Round::default();
        let mut place = 0;
        loop {
            if place == 0 {
                out.snapshot_with(&cx, |keep| {
                    keep.hold(held.clone());
                    (total, held.len() as u64)
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
                    if let Some(clone) = pad
                        && first.len() < world
                    {
                        first.push(clone(&item));
                        held.push(position);
                    }
                    if place == index {
                        match uneven {
                            // The other ranks may not have theirs.
                            Uneven::Drop => round.own = Some(item),
                            _ => {
                                round.given = true;
                                out.emit(Ok(item)).await;
                            }
                        }
                    }
                }
            }
            place += 1;
            if place == world {
                place = 0;
                let Round { own, failed, given } = std::mem::take(&mut round);
                match (own, pad) {
                    (Some(_), _) if failed => cx.count_dropped(1),
                    (Some(item), _) => out.emit(Ok(item)).await,
                    (None, Some(clone)) if !given && !first.is_empty() => {
                        out.emit(Ok(clone(&first[index % first.len()]))).await;
                    }
                    _ => {}
                }
            }
        }
        let left = place;
        cx.count_dropped(u64::from(round.own.is_some()));
        match (uneven, pad) {
            _ if cx.is_cancelled() => {}
            (Uneven::Drop | Uneven::Pad | Uneven::Error, _) if total < world as u64 => {
                let message = format!("there are {total} items for {world} ranks");
                out.emit(Err(Error::new(ErrorKind::Shape, message))).await;
            }
            _ if left == 0 => {}
            (Uneven::Error, _) => {
                let message = format!(
                    "{total} items do not divide among {world} ranks: {left} are left over"
                );
                out.emit(Err(Error::new(ErrorKind::Shape, message))).await;
            }
            (_, Some(clone)) if !round.given && !first.is_empty() => {
                let place = if index >= left { index - left } else { index };
                out.emit(Ok(clone(&first[place % first.len()]))).await;
            }
            _ => {}
        }
    })
}

/// This rank's knowledge of the round that is being dealt.
struct Round<T> {
    own: Option<Item<T>>,
    failed: bool,
    given: bool,
}

impl<T> Default for Round<T> {
    fn default() -> Self {
        Round {
            own: None,
            failed: false,
            given: false,
        }
    }
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
    /// Fewer items than ranks, as when three archives are listed for four ranks, are an error on
    /// every rank with both numbers, unless `Allow` is set: when the loader is built, or, if the
    /// number is not known then, after the last item.
    ///
    /// Step `n` of all ranks together has the same items whatever the number of ranks, provided
    /// that only pipes that give one item for each stand downstream, and batches whose sizes add up
    /// to the same number over all ranks. An epoch of this kind can be
    /// [resumed](crate::Checkpoint::merge) on another number of ranks.
    ///
    /// An item that fails takes its place, so that the others stay with their ranks; every rank
    /// gets the error. Runs in one place, in order.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] at the end, under [`Uneven::Error`] or if there are fewer items than
    /// ranks.
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
