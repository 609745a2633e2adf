//! Keeps a part of the items, at random.

use futures::StreamExt;

use crate::{Arity, Context, Graph, Hints, Item, Items, Pipe, Role};

/// Keeps a number of items, at random; see [`Graph::sample`].
#[derive(Clone, Debug)]
pub struct Sample(usize);

impl Sample {
    /// Keeps this many items.
    pub fn new(items: usize) -> Self {
        Sample(items)
    }
}

impl<T: Send + 'static> Pipe<T> for Sample {
    type Out = T;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<T> {
        // Nothing comes out before the end of the input; from then on, the items left are the items
        // held.
        let chosen = or_fail!(cx.restored()).unwrap_or(false);
        let (size, cx) = (self.0, cx.clone());
        Items::generate(async move |out| {
            let mut rng = cx.node_rng();
            let mut kept: Vec<(u64, Item<T>)> = Vec::new();
            let mut seen = 0;
            loop {
                let position = cx.position(0);
                let item = match input.next().await {
                    Some(Ok(item)) => item,
                    Some(Err(error)) => {
                        out.emit(Err(error)).await;
                        continue;
                    }
                    None => break,
                };
                if cx.is_cancelled() {
                    return;
                }
                seen += 1;
                // Without checkpoints there are no positions, and the order is the same.
                let place = if cx.is_resumable() { position } else { seen };
                if chosen || kept.len() < size {
                    kept.push((place, item));
                } else {
                    cx.count_dropped(1);
                    // The item is kept with the probability that it is among the first `size` of a
                    // shuffle of all seen so far.
                    let drawn = rng.below(seen);
                    if let Some(slot) = kept.get_mut(usize::try_from(drawn).unwrap_or(usize::MAX)) {
                        *slot = (place, item);
                    }
                }
            }
            kept.sort_unstable_by_key(|&(place, _)| place);
            let places: Vec<u64> = kept.iter().map(|&(place, _)| place).collect();
            for (given, (_, item)) in kept.into_iter().enumerate() {
                out.snapshot_with(&cx, |held| {
                    held.hold(places[given..].iter().copied());
                    true
                });
                out.emit(Ok(item)).await;
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input.min(self.0 as u64))
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::AtMostOne)
            .is_resumable(true)
            .selects(true)
            .role(Role::Scatter)
            .buffered(self.0)
            .settings(self.0)
            .problem((self.0 == 0).then_some("a sample of zero items"))
    }
}

/// Keeps each item with the same probability; see [`Graph::sample_with`].
#[derive(Clone, Debug)]
pub struct SampleWith(f64);

impl SampleWith {
    /// Keeps an item with this probability.
    pub fn new(probability: f64) -> Self {
        SampleWith(probability)
    }
}

impl<T: Send + 'static> Pipe<T> for SampleWith {
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (probability, context) = (self.0, cx.clone());
        input.each(cx, move |item| {
            if context.rng(item.origin()).chance(probability) {
                Some(Ok(item))
            } else {
                context.count_dropped(1);
                None
            }
        })
    }
    fn hints(&self) -> Hints {
        let sound = (0.0..=1.0).contains(&self.0);
        Hints::shardable()
            .arity(Arity::AtMostOne)
            .role(Role::Scatter)
            .settings(self.0)
            .problem((!sound).then_some("a probability outside 0 to 1"))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Keeps `items` items, each set of this size with the same probability, in the order they
    /// came.
    ///
    /// Reads everything upstream before the first item comes out (reservoir sampling, Vitter's
    /// algorithm R), runs in one place and holds `items` items. The selection is a function of
    /// seed, epoch and the node's name. Items that are left out are counted as dropped. For a share
    /// of the items, without waiting, use [`sample_with`](Graph::sample_with).
    ///
    /// # Examples
    /// ```
    /// let some = datapipes::Graph::range(0..100).sample(5).collect().unwrap();
    /// assert!(some.len() == 5 && some.is_sorted());
    /// ```
    pub fn sample(self, items: usize) -> Graph<T> {
        self.pipe(Sample::new(items))
    }

    /// Keeps each item with this probability, independently of the others.
    ///
    /// The draw belongs to the item and the epoch, so it is the same on any worker and in any
    /// order. Runs on the CPU workers; order is kept, nothing is held. Items that are left out are
    /// counted as dropped.
    ///
    /// # Examples
    /// ```
    /// let some = datapipes::Graph::range(0..1000).sample_with(0.1).collect().unwrap();
    /// assert!((50..150).contains(&some.len()));
    /// ```
    pub fn sample_with(self, probability: f64) -> Graph<T> {
        self.pipe(SampleWith::new(probability))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataLoader;

    #[test]
    fn every_item_has_the_same_odds() {
        let loader = DataLoader::builder(Graph::range(0..10).sample(3))
            .workers(0)
            .build()
            .unwrap();
        let mut counts = [0u32; 10];
        for epoch in 0..3000 {
            let kept: Vec<u64> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
            assert!(kept.len() == 3 && kept.is_sorted());
            kept.iter().for_each(|&n| counts[n as usize] += 1);
        }
        assert!(
            counts.iter().all(|count| count.abs_diff(900) < 120),
            "{counts:?}"
        );
    }

    #[test]
    fn row_34_more_than_there_are() {
        assert_eq!(Graph::range(0..3).sample(5).collect().unwrap(), [0, 1, 2]);
        assert_eq!(Graph::range(0..0).sample(5).collect().unwrap(), [0u64; 0]);
    }

    #[test]
    fn probabilities_are_checked() {
        assert_eq!(
            Graph::range(0..9).sample_with(1.0).collect().unwrap().len(),
            9
        );
        assert_eq!(
            Graph::range(0..9).sample_with(0.0).collect().unwrap(),
            [0u64; 0]
        );
        for wrong in [-0.1, 1.1, f64::NAN] {
            assert!(Graph::range(0..9).sample_with(wrong).collect().is_err());
        }
    }
}
