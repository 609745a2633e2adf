//! Histograms of durations, in a fixed amount of memory.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets for each power of two, as in an HDR histogram: a bucket is at most 1/16 as wide as its
/// durations are long.
const STEPS: usize = 16;
/// Binary logarithm of [`STEPS`].
const BITS: u32 = STEPS.ilog2();
/// The last power of two with buckets of its own, some five hours of nanoseconds. Longer durations
/// count in the last bucket.
const LAST: u32 = 44;
/// Number of buckets: one for each of the first nanoseconds, then [`STEPS`] for each power of two.
const BUCKETS: usize = STEPS * (LAST - BITS + 2) as usize;

/// Returns the bucket of a duration in nanoseconds.
fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let step = (ns >> (power - BITS)) as usize - STEPS;
    (STEPS * (power - BITS + 1) as usize + step).min(BUCKETS - 1)
}

/// Returns the longest duration in a bucket, in nanoseconds.
fn upper(bucket: usize) -> u64 {
    match bucket / STEPS {
        0 => bucket as u64,
        row => (((STEPS + bucket % STEPS + 1) as u64) << (row - 1)) - 1,
    }
}

/// Records durations from any thread. It takes no memory before the first.
#[derive(Debug, Default)]
pub(crate) struct DurationRecorder {
    counts: OnceLock<Box<[AtomicU64]>>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl DurationRecorder {
    /// Records `times` events that took `ns` nanoseconds each, at least one.
    pub(crate) fn record(&self, ns: u64, times: u64) {
        let ns = ns.max(1);
        self.add(bucket(ns), times);
        self.sum_ns.fetch_add(ns.saturating_mul(times), Relaxed);
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }

    fn counts(&self) -> &[AtomicU64] {
        self.counts
            .get_or_init(|| bytemuck::zeroed_slice_box(BUCKETS))
    }

    fn add(&self, bucket: usize, times: u64) {
        if let Some(count) = self.counts().get(bucket) {
            count.fetch_add(times, Relaxed);
        }
    }

    /// Takes what was recorded, as numbers for [`add_taken`](Self::add_taken): the sum, the maximum,
    /// then pairs of a bucket and its count.
    pub(crate) fn take(&self) -> Vec<u64> {
        let Some(counts) = self.counts.get().filter(|_| self.max_ns.load(Relaxed) > 0) else {
            return Vec::new();
        };
        let mut taken = vec![self.sum_ns.swap(0, Relaxed), self.max_ns.swap(0, Relaxed)];
        for (bucket, count) in counts.iter().enumerate() {
            if count.load(Relaxed) > 0 {
                taken.extend([bucket as u64, count.swap(0, Relaxed)]);
            }
        }
        taken
    }

    /// Adds what another recorder has [taken](Self::take); unknown buckets are ignored.
    pub(crate) fn add_taken(&self, taken: &[u64]) {
        let [sum, max, pairs @ ..] = taken else {
            return;
        };
        self.sum_ns.fetch_add(*sum, Relaxed);
        self.max_ns.fetch_max(*max, Relaxed);
        for pair in pairs.chunks_exact(2) {
            self.add(usize::try_from(pair[0]).unwrap_or(BUCKETS), pair[1]);
        }
    }

    /// Returns what was recorded so far.
    pub(crate) fn histogram(&self) -> Histogram {
        let Some(counts) = self.counts.get() else {
            return Histogram::default();
        };
        let counts = counts.iter().map(|count| count.load(Relaxed)).collect();
        Histogram {
            counts,
            sum_ns: self.sum_ns.load(Relaxed),
            max_ns: self.max_ns.load(Relaxed),
        }
    }
}

/// A distribution of durations.
///
/// Durations are counted in 672 buckets of increasing width, as in Gil Tene's HDR histogram: a
/// quantile is at most 1/16 above the true one, for durations up to some five hours. The count, mean
/// and maximum are exact, of what was recorded: a field may say that it is of a sample.
///
/// ```
/// # let loader = datapipes::DataLoader::builder(datapipes::Graph::range(0..100).batch(10)).build()?;
/// # loader.epoch(0).blocking().for_each(drop);
/// let stats = loader.stats().unwrap();
/// let waits = &stats.waits;
/// println!("waited {} times: {waits}", waits.count());
/// assert!(waits.quantile(0.5) <= waits.max());
/// # Ok::<(), datapipes::BoxError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Count of each bucket; no buckets if nothing was recorded.
    counts: Box<[u64]>,
    sum_ns: u64,
    max_ns: u64,
}

impl Histogram {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns true if there are no durations.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Returns the mean; zero if there are no durations.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns / self.count().max(1))
    }

    /// Returns the longest duration; zero if there are none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns a quantile of the durations: the given share of them, in `[0, 1]`, is not longer. Zero
    /// if there are no durations.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (share.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        let place = self.counts.iter().position(|count| {
            seen = count.saturating_add(seen);
            seen >= rank.max(1)
        });
        place.map_or(Duration::ZERO, |place| {
            Duration::from_nanos(upper(place).min(self.max_ns))
        })
    }

    /// Returns the buckets that are not empty, in ascending order: the longest duration that a
    /// bucket can hold, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let all = self.counts.iter().enumerate();
        all.filter(|(_, count)| **count > 0)
            .map(|(place, count)| (Duration::from_nanos(upper(place)), *count))
    }

    /// Adds a duration.
    pub(crate) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS].into();
        }
        self.counts[bucket(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the durations of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
        } else {
            for (count, more) in self.counts.iter_mut().zip(&other.counts) {
                *count = count.saturating_add(*more);
            }
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the durations that were added since an earlier moment of the same histogram. Their
    /// maximum is that of their longest bucket.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        since.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        if !earlier.is_empty() {
            let last = since.counts.iter().rposition(|count| *count > 0);
            since.max_ns = last.map_or(0, |last| upper(last).min(self.max_ns));
        }
        since
    }
}

/// Shows median, p90, p99 and maximum.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| self.quantile(share));
        let max = self.max();
        write!(
            f,
            "p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}, max {max:.1?}"
        )
    }
}

formatted! { Debug |times: Histogram| "Histogram({} durations, {times})", times.count(); }

/// Writes seconds: `count`, `mean`, `p50`, `p90`, `p99`, `max`, and `buckets` as pairs of the longest
/// duration and the count.
#[cfg(feature = "serde")]
impl serde::Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = to.serialize_struct("Histogram", 7)?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("mean", &self.mean().as_secs_f64())?;
        for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            fields.serialize_field(name, &self.quantile(share).as_secs_f64())?;
        }
        fields.serialize_field("max", &self.max().as_secs_f64())?;
        let buckets = self
            .buckets()
            .map(|(upper, count)| (upper.as_secs_f64(), count));
        fields.serialize_field("buckets", &buckets.collect::<Vec<_>>())?;
        fields.end()
    }
}

/// Reads what serializing writes. The sum is that of the mean, so inexact by rounding.
#[cfg(feature = "serde")]
impl<'a> serde::Deserialize<'a> for Histogram {
    fn deserialize<D: serde::Deserializer<'a>>(from: D) -> std::result::Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Written {
            mean: f64,
            max: f64,
            buckets: Vec<(f64, u64)>,
        }
        let Written { mean, max, buckets } = Written::deserialize(from)?;
        // Negative or no numbers become zero, too large ones the greatest.
        let ns = |seconds: f64| (seconds * 1e9).round() as u64;
        let mut read = Histogram {
            max_ns: ns(max),
            ..Histogram::default()
        };
        if !buckets.is_empty() {
            read.counts = vec![0; BUCKETS].into();
        }
        for (upper, count) in buckets {
            let place = &mut read.counts[bucket(ns(upper))];
            *place = place.saturating_add(count);
        }
        read.sum_ns = ns(mean * read.count() as f64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(durations: &[u64]) -> DurationRecorder {
        let recorder = DurationRecorder::default();
        for &ns in durations {
            recorder.record(ns, 1);
        }
        recorder
    }

    #[test]
    fn buckets_follow_each_other() {
        for place in 0..BUCKETS - 1 {
            assert_eq!(bucket(upper(place)), place);
            assert_eq!(bucket(upper(place) + 1), place + 1);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(Histogram::default().is_empty());
        assert_eq!(Histogram::default().quantile(0.9), Duration::ZERO);
    }

    fn durations() -> impl Strategy<Value = Vec<u64>> {
        let any = (0u32..44).prop_flat_map(|power: u32| 1..=1u64 << power);
        prop::collection::vec(any, 1..200)
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_a_sixteenth_too_high(mut durations in durations(), share in 0.0..=1.0f64) {
            let histogram = of(&durations).histogram();
            durations.sort_unstable();
            let rank = ((share * durations.len() as f64).ceil() as usize).max(1);
            let (exact, found) = (durations[rank - 1], histogram.quantile(share).as_nanos() as u64);
            prop_assert!(exact <= found && found <= exact + exact / 16, "{exact} {found}");
            prop_assert_eq!(histogram.count() as usize, durations.len());
            prop_assert_eq!(histogram.sum().as_nanos() as u64, durations.iter().sum::<u64>());
            prop_assert_eq!(histogram.max().as_nanos() as u64, *durations.last().unwrap());
        }

        #[test]
        fn parts_make_the_whole(before in durations(), after in durations()) {
            let recorder = of(&before);
            let earlier = recorder.histogram();
            after.iter().for_each(|&ns| recorder.record(ns, 1));
            let (since, alone) = (recorder.histogram().since(&earlier), of(&after).histogram());
            prop_assert_eq!(&since.counts, &alone.counts);
            prop_assert_eq!(since.sum_ns, alone.sum_ns);
            prop_assert!(since.max() >= alone.max());

            // Durations taken from one recorder and added to another.
            let moved = of(&before);
            moved.add_taken(&of(&after).take());
            let mut merged = earlier;
            merged.merge(&alone);
            prop_assert_eq!(&moved.histogram(), &merged);
            prop_assert_eq!(&recorder.histogram(), &merged);
            let taken = moved.take();
            prop_assert!(moved.histogram().is_empty());
            moved.add_taken(&taken);
            prop_assert_eq!(&moved.histogram(), &merged);
        }

        #[test]
        fn any_numbers_may_be_added(taken in prop::collection::vec(any::<u64>(), 0..9)) {
            let recorder = DurationRecorder::default();
            recorder.add_taken(&taken);
            let _ = recorder.histogram().to_string();
        }
    }
}
