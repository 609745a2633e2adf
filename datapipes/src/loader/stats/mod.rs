//! Figures of an epoch, measured at the edges.

mod advice;
mod bottleneck;
mod collect;
mod model;
mod prediction;
mod show;
mod what_if;

use std::collections::HashMap;
use std::time::Duration;

use crate::run::{SkipStats, Skipped};
use crate::{Histogram, Work};

pub use prediction::{CacheGain, PartKind, PartPace, Prediction};
pub use what_if::WhatIf;
pub(super) use what_if::no_figures;

/// Greatest number of skipped items of several epochs that are kept with their names.
const SKIPPED_ITEMS: usize = 1000;

/// Figures of an epoch so far. Prints as a table.
///
/// With feature `serde`, it can be written in any of serde's formats that name fields, and read
/// back: durations are seconds, kinds of errors and origins are their texts. [`since`](Stats::since)
/// gives the figures between two moments.
///
/// ```
/// # let loader = datapipes::DataLoader::builder(datapipes::Graph::range(0..100).batch(10)).build()?;
/// let mut batches = loader.epoch(0).blocking();
/// batches.next();
/// let before = batches.stats().unwrap();
/// batches.by_ref().for_each(drop);
/// let rest = batches.stats().unwrap().since(&before);
/// assert_eq!(rest.delivered, 9);
/// println!("{:.0}/s; the consumer waited {}", rest.items_per_second(), rest.waits);
/// # Ok::<(), datapipes::BoxError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stats {
    /// Time from the first poll to the end, or to now.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub wall: Duration,
    /// Items that the consumer took.
    pub delivered: u64,
    /// Items that failed and were skipped by the loader's policy.
    pub skipped: u64,
    /// Skipped items, by node and kind of error, in the order in which each came first.
    pub skips: Vec<SkipStats>,
    /// The first thousand skipped items of each rank, in the order in which they were skipped.
    pub skipped_items: Vec<Skipped>,
    /// Figures of each node, inputs before their readers.
    pub nodes: Vec<NodeStats>,
    /// Figures of each segment.
    pub segments: Vec<SegmentStats>,
    /// Time that the consumer waited: for the queue, or for the graph itself if that ran on its
    /// thread; for a batch on the device with
    /// [`prefetch_to_device`](crate::DataLoader::prefetch_to_device).
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub waited: Duration,
    /// Time of each wait of the consumer: for an item or error that was not there when it was asked
    /// for. Every item of a graph that runs on the consumer's thread is waited for, except those that
    /// were made together with an earlier one.
    pub waits: Histogram,
    /// Bytes of the items in the graph, over all edges.
    pub memory: MemoryStats,
    /// Number of CPU workers that are active.
    pub workers: usize,
    /// Settings that the loader [tried by itself](super::Builder::tune), the last sixteen, and what
    /// it made of them, in words.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tuned: Vec<String>,
    /// Number of epochs that the figures are of.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(super) epochs: u64,
    /// Number of ranks that the epoch reads in turn, each with threads of its own.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(super) ranks: u64,
    /// The queue before the consumer, if it paid for itself.
    pub queue: Option<QueueStats>,
    /// The device stage, if the epoch is read by one.
    pub device: Option<DeviceStats>,
    /// The part that sets the pace, with the reason for that conclusion.
    pub bottleneck: String,
}

/// Bytes of items that are counted: those in work, in queues and between them. Bytes are reserved
/// before an item is made, with a margin for one that is much larger than those before, so these are
/// estimates where items are not there yet: hundreds of MiB may be reserved for items of some kB.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes now.
    pub bytes: u64,
    /// The most bytes at any moment of the epoch so far; of an epoch of several ranks, the sum of
    /// what each had at most.
    pub most: u64,
    /// The limit, [`Builder::memory`](super::Builder::memory); `None` for a segment, whose share is
    /// in the plan.
    pub limit: Option<u64>,
}

/// Figures of the output of one node.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct NodeStats {
    /// Name of the node.
    pub name: String,
    /// Indices of the nodes whose output it reads, in [`Stats::nodes`].
    pub inputs: Vec<usize>,
    /// Items that left the node.
    pub items: u64,
    /// Items that the node left out on purpose: filtered, dropped with a last batch, of another
    /// rank.
    pub dropped: u64,
    /// Errors that left the node, its own and those from upstream: one error counts in each node
    /// that it passes.
    pub errors: u64,
    /// Tries of an item beyond its first, by [`retry`](crate::Graph::retry).
    pub retried: u64,
    /// Time spent in the node, summed over threads; estimated from a sample if calls are quick.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub busy: Duration,
    /// Time of one item in the node itself, estimated from a sample of the calls that gave items:
    /// those after a slow call (5 µs), and one in 16 of the others, which counts 16 times. Items
    /// that come out of one call have equal shares of its time. For I/O, the time of that call, not
    /// of the waiting before it.
    pub item_time: Histogram,
    /// Bytes of the items that left the node, estimated from the same sample; `None` if their
    /// weight is [unknown](crate::Weigh), or the node runs in another process.
    pub bytes: Option<u64>,
    /// The segment that the node runs in.
    pub segment: Option<char>,
    /// The queue after the node, if it runs on a thread of its own.
    pub queue: Option<QueueStats>,
}

/// Figures of the edges of a segment.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct SegmentStats {
    /// Letter of the segment in the plan.
    pub letter: char,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// I/O or CPU. I/O that [seldom waits](field@crate::Hints::seldom_waits) is CPU as long as it
    /// does not wait.
    pub work: Work,
    /// Largest number of applications that run at once; of a part in processes, the active ones.
    pub workers: usize,
    /// True if the segment last ran inline, being cheaper than a hop to a worker.
    pub inline: bool,
    /// Items that went in.
    pub items: u64,
    /// Morsels that its input was cut into.
    pub morsels: u64,
    /// Time of each morsel: of I/O, from its start to its end, so that of a request; of CPU work, the
    /// time of the work. Empty while the segment runs inline.
    pub morsel_time: Histogram,
    /// Bytes of the segment's items in work and ready.
    pub memory: MemoryStats,
    /// Time spent by workers. For I/O this is the time of the polls, not of the waiting.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub busy: Duration,
    /// Part of `busy`, of CPU work on threads, in which these had a core: the rest is waiting, in
    /// the work or for a core. Zero while the segment runs inline or in processes. Linux only;
    /// equal to `busy` elsewhere.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub cpu: Duration,
    /// Time in which the segment could have started more, but had no input: blocked on input.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub starved: Duration,
    /// Time in which the concurrency was fully used: blocked on output, or working at its limit.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub full: Duration,
    /// Morsels in flight, on average over the polls.
    pub occupancy: f64,
    /// Number of polls that `occupancy` is an average of.
    pub(super) polls: u64,
    /// Number of morsels that may be in flight now.
    pub concurrency: u64,
    /// Number of morsels that may ever be in flight.
    pub(super) most: u64,
    /// True if the user gave that number.
    pub(super) is_set: bool,
    /// True if it runs on workers of other machines.
    pub(super) is_remote: bool,
    /// True if its input is read on a thread of its own.
    pub(super) is_fed: bool,
    /// True if its output comes in strict order.
    pub(super) is_ordered: bool,
    /// Processes of the segment, if it runs in processes of its own.
    pub processes: Option<ProcessStats>,
}

/// Figures of the processes of a segment, over all epochs of the loader.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct ProcessStats {
    /// Number of processes started.
    pub started: u64,
    /// Number of processes that ended without being asked to, were killed for their silence or for
    /// their messages, or could not be started.
    pub died: u64,
    /// Number of processes replaced because of their memory, see
    /// [`Processes::memory`](crate::Processes::memory).
    pub replaced: u64,
    /// Items that were given up because they ended two processes.
    pub crashed: u64,
    /// Morsels that wait for a process, or for a worker of another machine. While it is above zero,
    /// more of them would do more.
    pub pending: u64,
    /// Morsels with which a worker of another machine was late, so that a second one got them, too.
    pub late: u64,
    /// Processes that run now.
    pub children: Vec<ChildStats>,
}

/// A process that runs.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct ChildStats {
    /// Process number in the system of its machine.
    pub process: u32,
    /// Name of its machine, if it is a worker of another one.
    pub machine: Option<String>,
    /// Index among the processes of its segment, from 0.
    pub place: usize,
    /// Private memory in bytes, without swapped-out memory, as last measured: ten times a second at
    /// most, or a hundred times if there is a limit.
    pub memory: u64,
    /// Items and errors that came out of the process.
    pub items: u64,
    /// Morsels that it has: those in work, and those on their way to it.
    pub jobs: usize,
    /// Bytes of its output, as it was sent.
    pub bytes: u64,
    /// Recent time that it works on a morsel, without the way there and back; zero before the first has
    /// ended. A worker whose time is much longer than that of others is a slow one.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub morsel_time: Duration,
    /// Time since its last answer while it has a morsel; zero if it has none.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub silence: Duration,
}

/// Figures of the queue before the consumer, or after a node that runs on a thread of its own.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct QueueStats {
    /// Greatest length of the epoch so far, in items: it follows the time that items take.
    pub depth: u64,
    /// Items ready when the consumer came, on average.
    pub occupancy: f64,
    /// Times that items were in the queue, from when they were ready until they were taken.
    #[cfg_attr(feature = "serde", serde(default))]
    pub item_wait: Histogram,
    /// Bytes of the items in the queue.
    pub memory: MemoryStats,
    /// Number of polls that `occupancy` is an average of.
    pub(super) polls: u64,
    /// Time that the thread filling the queue waited for room.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub producer_waited: Duration,
    /// Time that the thread worked.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub producer_busy: Duration,
}

/// Figures of the device stage.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DeviceStats {
    /// Batches that were uploaded.
    pub uploaded: u64,
    /// Time spent in uploads.
    #[cfg_attr(feature = "serde", serde(with = "seconds"))]
    pub busy: Duration,
    /// Number of batches kept ready, besides the batch that the consumer holds.
    pub depth: u64,
}

impl Stats {
    /// Returns the items that the consumer took, per second.
    pub fn items_per_second(&self) -> f64 {
        self.delivered as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Returns the share of the items that were ready when the consumer asked for them, in `[0, 1]`: 1
    /// if the consumer sets the pace, 0 if it waited for each.
    pub fn readiness(&self) -> f64 {
        let waits = self.waits.count().min(self.delivered) as f64;
        1.0 - waits / self.delivered.max(1) as f64
    }

    /// Returns the share of the epoch in which the consumer waited for the loader, in `[0, 1]`.
    pub fn consumer_waited(&self) -> f64 {
        (self.waited.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)).min(1.0)
    }

    /// Returns the figures since an earlier moment of the same epoch: the differences of all counts
    /// and times. Gauges, such as bytes, numbers in flight and running processes, keep their current
    /// values.
    pub fn since(&self, earlier: &Stats) -> Stats {
        let mut since = self.clone();
        since.subtract(earlier);
        // The items of several ranks are one after another, so that new ones may be in the middle.
        let mut before: HashMap<_, usize> = HashMap::new();
        for skipped in &earlier.skipped_items {
            *before.entry(skipped.key()).or_default() += 1;
        }
        since.skipped_items.clear();
        for skipped in &self.skipped_items {
            match before.get_mut(&skipped.key()) {
                Some(known) if *known > 0 => *known -= 1,
                _ => since.skipped_items.push(skipped.clone()),
            }
        }
        for skips in &mut since.skips {
            let before = earlier
                .skips
                .iter()
                .find(|before| before.is_of(&skips.node, skips.kind));
            skips.items -= before.map_or(0, |before| before.items.min(skips.items));
        }
        since.skips.retain(|skips| skips.items > 0);
        for (node, before) in since.nodes.iter_mut().zip(&earlier.nodes) {
            node.subtract(before);
            node.queue.subtract(&before.queue);
        }
        for (segment, before) in since.segments.iter_mut().zip(&earlier.segments) {
            segment.subtract(before);
        }
        since.queue.subtract(&earlier.queue);
        since.device.subtract(&earlier.device);
        since.bottleneck = since.find_bottleneck();
        since
    }

    /// Returns the figures of this epoch and of others before it: the sums of all counts and times.
    /// Gauges have the values of this epoch, as with [`since`](Self::since); peaks are the maxima of
    /// all epochs.
    pub(super) fn after(mut self, earlier: &Stats) -> Stats {
        // An epoch that was left at its start says nothing of where the graph runs.
        let was_left = self.wall * 10 * (earlier.epochs as u32) < earlier.wall;
        self.add(earlier);
        self.epochs += earlier.epochs;
        self.memory.most = self.memory.most.max(earlier.memory.most);
        let skips = std::mem::replace(&mut self.skips, earlier.skips.clone());
        self.add_skips(skips);
        let items = std::mem::replace(&mut self.skipped_items, earlier.skipped_items.clone());
        self.skipped_items.extend(items);
        self.skipped_items.truncate(SKIPPED_ITEMS);
        for (node, before) in self.nodes.iter_mut().zip(&earlier.nodes) {
            node.add(before);
        }
        for (segment, before) in self.segments.iter_mut().zip(&earlier.segments) {
            segment.add(before);
            if was_left {
                segment.inline = before.inline;
                segment.concurrency = before.concurrency;
            }
            segment.memory.most = segment.memory.most.max(before.memory.most);
            (segment.occupancy, segment.polls) = mean_of_both(
                (segment.occupancy, segment.polls),
                (before.occupancy, before.polls),
            );
        }
        let queues = self.nodes.iter_mut().map(|node| &mut node.queue);
        let before = earlier.nodes.iter().map(|node| &node.queue);
        let queues = queues
            .zip(before)
            .chain([(&mut self.queue, &earlier.queue)]);
        for (queue, before) in queues {
            match (&mut *queue, before) {
                (Some(queue), Some(before)) => queue.add_epoch(before),
                (None, Some(before)) if was_left => *queue = Some(before.clone()),
                _ => {}
            }
        }
        if let (Some(device), Some(before)) = (&mut self.device, &earlier.device) {
            device.add(before);
        }
        self.bottleneck = self.find_bottleneck();
        self
    }

    /// Adds the numbers of skipped items, the later ones.
    fn add_skips(&mut self, later: Vec<SkipStats>) {
        for skips in later {
            match self
                .skips
                .iter_mut()
                .find(|own| own.is_of(&skips.node, skips.kind))
            {
                Some(own) => (own.items, own.last) = (own.items + skips.items, skips.last),
                None => self.skips.push(skips),
            }
        }
    }
}

/// A figure that adds up over ranks and epochs, and of which an earlier value can be taken off.
trait Total {
    fn add(&mut self, other: &Self);
    fn subtract(&mut self, before: &Self);
}

impl Total for u64 {
    fn add(&mut self, other: &Self) {
        *self += other;
    }
    fn subtract(&mut self, before: &Self) {
        *self = self.saturating_sub(*before);
    }
}

impl Total for Duration {
    fn add(&mut self, other: &Self) {
        *self += *other;
    }
    fn subtract(&mut self, before: &Self) {
        *self = self.saturating_sub(*before);
    }
}

impl Total for Histogram {
    fn add(&mut self, other: &Self) {
        self.merge(other);
    }
    fn subtract(&mut self, before: &Self) {
        *self = self.since(before);
    }
}

/// A sum is known if all its parts are.
impl<T: Total> Total for Option<T> {
    fn add(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Some(own), Some(other)) => own.add(other),
            _ => *self = None,
        }
    }
    fn subtract(&mut self, before: &Self) {
        if let (Some(own), Some(before)) = (self, before) {
            own.subtract(before);
        }
    }
}

/// Implements `Total` for structs by their listed fields. After `; mean` come a mean and its number of
/// samples: `subtract` takes the earlier samples out, and `add` leaves both to its caller.
macro_rules! totals {
    ($($type:ident { $($field:ident),* $(; mean $mean:ident of $looks:ident)? })*) => {
        $(impl Total for $type {
            fn add(&mut self, other: &Self) {
                $(Total::add(&mut self.$field, &other.$field);)*
            }
            fn subtract(&mut self, before: &Self) {
                $(self.$field.subtract(&before.$field);)*
                $((self.$mean, self.$looks) =
                    mean_since((self.$mean, self.$looks), (before.$mean, before.$looks));)?
            }
        })*
    };
}

totals! {
    Stats { wall, delivered, skipped, waited, waits }
    NodeStats { items, dropped, errors, retried, busy, item_time, bytes }
    SegmentStats { items, morsels, busy, cpu, starved, full, morsel_time; mean occupancy of polls }
    QueueStats { item_wait, producer_waited, producer_busy; mean occupancy of polls }
    DeviceStats { uploaded, busy }
}

impl QueueStats {
    /// Adds the queue of another rank of the same epoch, which is one more.
    fn add_rank(&mut self, other: &QueueStats) {
        self.depth += other.depth;
        self.occupancy += other.occupancy;
        self.polls = self.polls.max(other.polls);
        self.memory.add(other.memory);
        self.add(other);
    }

    /// Adds the figures of an earlier epoch.
    fn add_epoch(&mut self, earlier: &QueueStats) {
        self.add(earlier);
        self.memory.most = self.memory.most.max(earlier.memory.most);
        self.depth = self.depth.max(earlier.depth);
        (self.occupancy, self.polls) = mean_of_both(
            (self.occupancy, self.polls),
            (earlier.occupancy, earlier.polls),
        );
    }
}

/// Returns the mean of two means together, and its number.
fn mean_of_both((a, of_a): (f64, u64), (b, of_b): (f64, u64)) -> (f64, u64) {
    let number = of_a + of_b;
    let sum = a * of_a as f64 + b * of_b as f64;
    (sum / number.max(1) as f64, number)
}

/// Returns the mean and the number of the values that came after an earlier moment, from the mean
/// and number of all values and those of the earlier ones.
fn mean_since((mean, number): (f64, u64), (before, earlier): (f64, u64)) -> (f64, u64) {
    let added = number.saturating_sub(earlier);
    let sum = mean * number as f64 - before * earlier as f64;
    ((sum / added.max(1) as f64).max(0.0), added)
}

/// Durations as seconds.
#[cfg(feature = "serde")]
mod seconds {
    use std::result::Result;
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub(in crate::loader) mod tests;
