//! Groups items of similar length into batches.

use crate::{Context, Graph, Held, Hints, Item, Items, Pipe};

/// Groups items of similar length into batches; see [`Graph::bucket_batch`].
#[derive(Clone, Debug)]
#[must_use]
pub struct BucketBatch<F> {
    length: F,
    boundaries: Vec<usize>,
    sizes: Vec<usize>,
    drop_last: bool,
}

impl<F> BucketBatch<F> {
    /// Makes buckets with these boundaries between them, and batches of `sizes[i]` items from
    /// bucket `i`.
    pub fn new(length: F, boundaries: impl Into<Vec<usize>>, sizes: impl Into<Vec<usize>>) -> Self {
        BucketBatch {
            length,
            boundaries: boundaries.into(),
            sizes: sizes.into(),
            drop_last: false,
        }
    }

    /// Leaves out the batches that are not full at the end; their items are counted as dropped.
    pub fn drop_last(mut self) -> Self {
        self.drop_last = true;
        self
    }

    fn problem(&self) -> Option<&'static str> {
        if self.sizes.len() != self.boundaries.len() + 1 {
            Some("there must be one batch size more than boundaries")
        } else if !self.boundaries.is_sorted_by(|a, b| a < b) {
            Some("the boundaries must increase")
        } else if self.sizes.contains(&0) {
            Some("a batch size of zero")
        } else {
            None
        }
    }
}

impl<T, F> Pipe<T> for BucketBatch<F>
where
    T: Send + 'static,
    F: Fn(&T) -> usize + Clone + Send + Sync + 'static,
{
    type Out = Vec<T>;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<Vec<T>> {
        // The items of the buckets come again, in their order, and fill the buckets as before.
        let mut batches = or_fail!(cx.restored()).unwrap_or(0);
        let (this, cx) = (self.clone(), cx.clone());
        Items::generate(async move |out| {
            let mut buckets: Vec<Vec<Held<T>>> = this.sizes.iter().map(|_| Vec::new()).collect();
            loop {
                out.snapshot(&cx, || batches);
                let Some(item) = out.hold_from(&cx, &mut input).await else {
                    break;
                };
                let length = (this.length)(&item);
                let number = this
                    .boundaries
                    .partition_point(|&boundary| boundary <= length);
                let bucket = &mut buckets[number];
                bucket.push(item);
                if bucket.len() >= this.sizes[number] {
                    let (items, places): (Vec<_>, Vec<_>) =
                        bucket.drain(..).map(Held::into_parts).unzip();
                    out.emit_of(places, Ok(Item::gather(items, batches))).await;
                    batches += 1;
                }
            }
            for bucket in buckets.into_iter().filter(|bucket| !bucket.is_empty()) {
                if this.drop_last && !cx.is_partial() {
                    cx.leave_out(bucket);
                } else {
                    let (items, places): (Vec<_>, Vec<_>) =
                        bucket.into_iter().map(Held::into_parts).unzip();
                    out.emit_of(places, Ok(Item::gather(items, batches))).await;
                    batches += 1;
                }
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        (input == u64::MAX).then_some(input)
    }
    fn hints(&self) -> Hints {
        let settings = format!("boundaries {:?}, sizes {:?}", self.boundaries, self.sizes);
        let drop_last = if self.drop_last { ", drop_last" } else { "" };
        // The order decides which items are left over; without `drop_last` it decides only their
        // grouping.
        Hints::default()
            .ignores_order(!self.drop_last)
            .is_resumable(true)
            .buffered(
                self.sizes
                    .iter()
                    .fold(0, |sum, &size| sum.saturating_add(size)),
            )
            .lineage(true)
            .settings(settings + drop_last)
            .problem(self.problem())
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Groups items of similar length into batches, so that little has to be padded.
    ///
    /// An item of length `l` goes to the first bucket whose boundary is greater than `l`, else to
    /// the last; there is one bucket more than boundaries. Bucket `i` gives a batch as soon as it
    /// has `sizes[i]` items, so short sequences may make larger batches. At the end the buckets
    /// give the items they hold, the shortest first (tf.data's `bucket_by_sequence_length`);
    /// `.pipe(BucketBatch::new(length, boundaries, sizes).drop_last())` leaves them out.
    ///
    /// Runs in one place; holds less than the sum of `sizes`. Within a bucket order is kept. To
    /// make tensors of the batches add [`pad`](Graph::pad).
    ///
    /// # Examples
    /// ```
    /// let words = datapipes::Graph::from_vec(vec!["a", "long", "b", "longer", "c"]);
    /// let batches = words.bucket_batch(|word| word.len(), [3], [2, 2]).collect()?;
    /// assert_eq!(batches, [vec!["a", "b"], vec!["long", "longer"], vec!["c"]]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn bucket_batch(
        self,
        length: impl Fn(&T) -> usize + Clone + Send + Sync + 'static,
        boundaries: impl Into<Vec<usize>>,
        sizes: impl Into<Vec<usize>>,
    ) -> Graph<Vec<T>> {
        self.pipe(BucketBatch::new(length, boundaries, sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(n: &u64) -> usize {
        *n as usize
    }

    #[test]
    fn a_boundary_belongs_to_the_bucket_behind_it() {
        let lengths = Graph::from_vec(vec![9, 4, 5, 0, 5, 10]);
        let batches = lengths
            .bucket_batch(length, [5, 10], [2, 2, 2])
            .collect()
            .unwrap();
        assert_eq!(batches, [vec![9, 5], vec![4, 0], vec![5], vec![10]]);
    }

    #[test]
    fn leftovers_can_be_dropped() {
        let pipe = BucketBatch::new(length, [5], [2, 2]).drop_last();
        assert_eq!(
            Graph::range(3..8).pipe(pipe).collect().unwrap(),
            [vec![3, 4], vec![5, 6]]
        );
    }

    #[test]
    fn wrong_settings_do_not_build() {
        for (boundaries, sizes) in [
            (vec![5], vec![1]),
            (vec![5, 5], vec![1, 1, 1]),
            (vec![5], vec![1, 0]),
        ] {
            let error = Graph::range(0..9)
                .bucket_batch(length, boundaries, sizes)
                .collect()
                .unwrap_err();
            assert!(error.to_string().contains("bucket_batch: "), "{error}");
        }
    }

    #[test]
    fn row_30_no_items() {
        assert!(
            Graph::range(0..0)
                .bucket_batch(length, [5], [2, 2])
                .collect()
                .unwrap()
                .is_empty()
        );
    }
}
