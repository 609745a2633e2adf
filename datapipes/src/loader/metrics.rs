//! Publishes the figures of a loader through the facade `metrics`.
//!
//! A thread of the loader reads [`Stats`] once a second and at the begin of each epoch, and adds the
//! differences to the totals of whatever recorder the program has installed. The epochs themselves do
//! nothing for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use metrics::{Label, Unit};

use super::latest::{Latest, Runs, StartedEpoch, have_ended};
use super::{NodeStats, SegmentStats, Stats};
use crate::run::{Engine, ObserverThread, is_child_process};
use crate::{Error, Histogram, Result};

/// Time between two publications.
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of epochs that begin before the thread has looked at them. It is not told of
/// more.
const BEGUN: usize = 256;
/// The shares that times are published for, and their labels.
const QUANTILES: [(f64, &str); 3] = [(0.5, "0.5"), (0.9, "0.9"), (0.99, "0.99")];

/// Starts to publish a loader's figures, until it is dropped, and once more then.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if no thread can be started.
pub(super) fn start(name: Arc<str>, engine: &Engine, latest: &Latest) -> Result<()> {
    if is_child_process() {
        return Ok(());
    }
    let (begun, epochs) = sync_channel(BEGUN);
    let nodes: Vec<_> = engine
        .flow
        .nodes
        .iter()
        .map(|node| node.name.clone())
        .collect();
    let mut target = Target {
        loader: name,
        nodes,
        totals: HashMap::new(),
        quantiles: HashSet::new(),
    };
    let publish = move || publish_all(&epochs, &mut target);
    match ObserverThread::start("metrics", publish) {
        Ok(thread) => {
            latest.observe(thread);
            latest.watch(begun);
            Ok(())
        }
        Err(error) => {
            let message = "cannot start the thread that publishes metrics";
            Err(Error::config(message).with_source(error))
        }
    }
}

/// An epoch whose figures are not all published.
struct Watched {
    number: u64,
    runs: Runs,
    /// The figures that were published.
    before: Option<Stats>,
    /// True if there will be no others.
    is_done: bool,
}

impl Watched {
    /// Returns false if the epoch failed before it began: nobody else knows it then. One whose graph
    /// is still being wired has no figures either.
    fn may_go_on(&self) -> bool {
        self.before.is_some() || Arc::strong_count(&self.runs) > 1
    }

    /// Publishes what has been added since the last time.
    fn publish(&mut self, to: &mut Target, is_latest: bool) {
        if self.is_done {
            return;
        }
        // Looked at first, so that the figures after the end are those of the end.
        self.is_done = have_ended(&self.runs);
        let Some(now) = Stats::of_all(&self.runs) else {
            return;
        };
        match &self.before {
            Some(before) => to.add(&now.since(before)),
            None => to.add(&now),
        }
        if is_latest {
            to.set("epoch", &[], self.number as f64);
            let is_running = u8::from(!self.is_done);
            to.set("epoch_running", &[], is_running.into());
        }
        self.before = Some(now);
    }
}

/// Publishes epochs that begin, until the loader is dropped.
fn publish_all(epochs: &Receiver<StartedEpoch>, to: &mut Target) {
    let mut watched: Vec<Watched> = Vec::new();
    loop {
        let begun = epochs.recv_timeout(PERIOD);
        let latest = watched.len().checked_sub(1);
        for (place, epoch) in watched.iter_mut().enumerate() {
            epoch.publish(to, Some(place) == latest);
        }
        match begun {
            Ok((number, runs)) => {
                // Earlier epochs may go on beside the new one.
                watched.retain(|epoch| !epoch.is_done && epoch.may_go_on());
                watched.push(Watched {
                    number,
                    runs,
                    before: None,
                    is_done: false,
                });
                FIGURES.trim().lines().for_each(describe);
                to.count("epochs_total", &[], 1);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// All names that are published, with descriptions. Totals of seconds are gauges to the facade,
/// whose counters are whole numbers; they only grow.
const FIGURES: &str = "
    datapipes_epochs_total: Epochs that have begun
    datapipes_epoch: Number of the latest epoch
    datapipes_epoch_running: 1 while the latest epoch runs, 0 after its end
    datapipes_epoch_seconds_total: Time that epochs have run
    datapipes_delivered_items_total: Items (usually batches) that the consumer took
    datapipes_skipped_items_total: Items that failed and were skipped
    datapipes_consumer_waits_total: Items that were not ready when they were asked for
    datapipes_consumer_waited_seconds_total: Time that the consumer waited for the loader
    datapipes_consumer_wait_seconds: Quantiles of the consumer's waits of the last period
    datapipes_node_items_total: Items that left the node
    datapipes_node_dropped_items_total: Items that the node left out on purpose
    datapipes_node_errors_total: Errors that left the node, its own and those from upstream
    datapipes_node_retries_total: Tries of an item beyond its first
    datapipes_node_busy_seconds_total: Time spent in the node, summed over threads
    datapipes_node_item_seconds: Quantiles of the time of an item in the last period
    datapipes_segment_items_total: Items that went into the segment
    datapipes_segment_morsels_total: Morsels of the segment
    datapipes_segment_busy_seconds_total: Time spent by workers
    datapipes_segment_starved_seconds_total: Time in which the segment had no input
    datapipes_segment_full_seconds_total: Time in which the concurrency was fully used
    datapipes_segment_morsel_seconds: Quantiles of the time of a morsel in the last period
    datapipes_segment_in_flight_morsels: Morsels in flight, on average over the last period
    datapipes_segment_in_flight_limit_morsels: Morsels that may be in flight
    datapipes_segment_memory_bytes: Bytes of the segment's items in work and ready
    datapipes_segment_processes: Processes of the segment that run
    datapipes_segment_processes_pending_morsels: Morsels that wait for a process of the segment
    datapipes_segment_processes_morsels: Morsels that the segment's processes have in hand
    datapipes_segment_processes_memory_bytes: Private memory of the segment's processes
    datapipes_queue_items: Items ready when the consumer came, on average over the last period
    datapipes_queue_limit_items: Greatest length of the queue before the consumer
    datapipes_queue_item_wait_seconds: Quantiles of the time that an item was in the queue, in the last period
    datapipes_device_uploads_total: Batches that were uploaded to the device
    datapipes_device_busy_seconds_total: Time spent in uploads
    datapipes_memory_bytes: Bytes of all items in the graph
    datapipes_memory_limit_bytes: Limit of the bytes of all items in the graph
    datapipes_workers: CPU workers
";

/// Returns the name that a figure is published under.
fn full(name: &str) -> String {
    format!("datapipes_{name}")
}

/// Describes a figure, whose name says its unit and if it is a total.
fn describe(line: &'static str) {
    let (name, text) = line.trim().split_once(": ").expect("a name and a text");
    let unit = match name {
        seconds if seconds.contains("_seconds") => Unit::Seconds,
        bytes if bytes.ends_with("_bytes") => Unit::Bytes,
        _ => Unit::Count,
    };
    if name.ends_with("_total") && !name.ends_with("_seconds_total") {
        metrics::describe_counter!(name, unit, text);
    } else {
        metrics::describe_gauge!(name, unit, text);
    }
}

/// The loader that figures are published of.
struct Target {
    loader: Arc<str>,
    /// Names of its nodes: the greatest number of values that a label can have.
    nodes: Vec<Arc<str>>,
    /// Seconds that were published, of each series.
    totals: HashMap<(&'static str, Vec<Label>), Duration>,
    /// Series of quantiles that have had a value.
    quantiles: HashSet<(&'static str, Vec<Label>)>,
}

impl Target {
    /// Publishes what was added in a period, and what is now.
    fn add(&mut self, period: &Stats) {
        self.grow("epoch_seconds_total", &[], period.wall);
        self.count("delivered_items_total", &[], period.delivered);
        self.count("consumer_waits_total", &[], period.waits.count());
        self.grow("consumer_waited_seconds_total", &[], period.waited);
        self.times("consumer_wait_seconds", &[], &period.waits);
        self.set("workers", &[], period.workers as f64);
        self.set("memory_bytes", &[], period.memory.bytes as f64);
        if let Some(limit) = period.memory.limit {
            self.set("memory_limit_bytes", &[], limit as f64);
        }
        for skips in &period.skips {
            // An error may name anything as its node.
            let node = self.nodes.iter().find(|node| ***node == *skips.node);
            let node = node.map_or_else(String::new, |node| node.to_string());
            let labels = [("node", node), ("kind", skips.kind.to_string())];
            self.count("skipped_items_total", &labels, skips.items);
        }
        for node in &period.nodes {
            self.add_node(node);
        }
        for segment in &period.segments {
            self.add_segment(segment);
        }
        if let Some(queue) = &period.queue {
            self.set("queue_items", &[], queue.occupancy);
            self.set("queue_limit_items", &[], queue.depth as f64);
            self.times("queue_item_wait_seconds", &[], &queue.item_wait);
        }
        if let Some(device) = &period.device {
            self.count("device_uploads_total", &[], device.uploaded);
            self.grow("device_busy_seconds_total", &[], device.busy);
        }
    }

    fn add_node(&mut self, node: &NodeStats) {
        let labels = [("node", node.name.clone())];
        for (name, count) in [
            ("node_items_total", node.items),
            ("node_dropped_items_total", node.dropped),
            ("node_errors_total", node.errors),
            ("node_retries_total", node.retried),
        ] {
            self.count(name, &labels, count);
        }
        self.grow("node_busy_seconds_total", &labels, node.busy);
        self.times("node_item_seconds", &labels, &node.item_time);
    }

    fn add_segment(&mut self, segment: &SegmentStats) {
        let labels = [("segment", segment.letter.to_string())];
        self.count("segment_items_total", &labels, segment.items);
        self.count("segment_morsels_total", &labels, segment.morsels);
        for (name, time) in [
            ("segment_busy_seconds_total", segment.busy),
            ("segment_starved_seconds_total", segment.starved),
            ("segment_full_seconds_total", segment.full),
        ] {
            self.grow(name, &labels, time);
        }
        self.times("segment_morsel_seconds", &labels, &segment.morsel_time);
        for (name, value) in [
            ("segment_in_flight_morsels", segment.occupancy),
            (
                "segment_in_flight_limit_morsels",
                segment.concurrency as f64,
            ),
            ("segment_memory_bytes", segment.memory.bytes as f64),
        ] {
            self.set(name, &labels, value);
        }
        if let Some(processes) = &segment.processes {
            let children = &processes.children;
            self.set("segment_processes", &labels, children.len() as f64);
            let pending = processes.pending as f64;
            self.set("segment_processes_pending_morsels", &labels, pending);
            let jobs: usize = children.iter().map(|child| child.jobs).sum();
            self.set("segment_processes_morsels", &labels, jobs as f64);
            let bytes: u64 = children.iter().map(|child| child.memory).sum();
            self.set("segment_processes_memory_bytes", &labels, bytes as f64);
        }
    }

    fn labels(&self, labels: &[(&'static str, String)]) -> Vec<Label> {
        let own = Label::new("loader", self.loader.clone());
        let others = labels
            .iter()
            .map(|(key, value)| Label::new(*key, value.clone()));
        std::iter::once(own).chain(others).collect()
    }

    fn count(&self, name: &'static str, labels: &[(&'static str, String)], added: u64) {
        metrics::counter!(full(name), self.labels(labels)).increment(added);
    }

    /// Publishes a total of seconds. Not each recorder adds to a gauge that it is asked for anew.
    fn grow(&mut self, name: &'static str, labels: &[(&'static str, String)], added: Duration) {
        let labels = self.labels(labels);
        let total = self.totals.entry((name, labels.clone())).or_default();
        *total += added;
        metrics::gauge!(full(name), labels).set(total.as_secs_f64());
    }

    fn set(&self, name: &'static str, labels: &[(&'static str, String)], value: f64) {
        metrics::gauge!(full(name), self.labels(labels)).set(value);
    }

    /// Publishes quantiles as gauges: the facade's histograms take one duration after the other, and
    /// there may be a hundred million in a second. A period without any is NaN, as in a summary of
    /// Prometheus.
    fn times(&mut self, name: &'static str, labels: &[(&'static str, String)], times: &Histogram) {
        let series = (name, self.labels(labels));
        if !times.is_empty() {
            self.quantiles.insert(series);
        } else if !self.quantiles.remove(&series) {
            return;
        }
        for (share, quantile) in QUANTILES {
            let labels = [labels, &[("quantile", quantile.to_owned())]].concat();
            let value = match times.is_empty() {
                true => f64::NAN,
                false => times.quantile(share).as_secs_f64(),
            };
            self.set(name, &labels, value);
        }
    }
}
