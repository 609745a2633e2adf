//! The decision whether the consumer polls the graph itself, or a thread ahead of it does.

use std::time::{Duration, Instant};

/// Time that two threads must save, for each poll of the graph and for each item, to pay for the
/// queue between them. The queue costs the waking of threads, and memory that is allocated on one
/// processor and freed on another.
const COST: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(2));
/// Time of a first poll that no disturbance of the machine explains: the next poll should be made
/// during the consumer's first step.
const LONG: Duration = Duration::from_millis(10);
/// Number of polls in which a graph may not have waited, before the consumer polls it again.
const POLLS_WITHOUT_WAIT: u32 = 32;

/// Compares the time that the graph takes between two polls with the time that the consumer takes
/// for their items. On two threads both together take as long as the longer one.
#[derive(Default)]
pub(super) struct AheadGain {
    polls: u64,
    /// End of the last poll, if it had an item.
    ready: Option<Instant>,
    before: Totals,
    /// Averages of the last polls.
    graph_ns: f64,
    consumer_ns: f64,
    items: f64,
    /// Number of polls since the thread ahead was started, or last waited.
    polls_without_wait: u32,
}

/// Sums over an epoch so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub items: u64,
    /// Nanoseconds spent in the graph, by the consumer or ahead of it.
    pub graph_ns: u64,
    /// Number of polls, by the thread ahead or by the consumer in its place, that found nothing.
    pub pending_polls: u64,
}

impl AheadGain {
    /// Adds the last poll, once the consumer has come back for more.
    pub fn before_poll(&mut self, now: Instant, totals: Totals) {
        if self.polls == 0 {
            self.before = totals;
        }
        let Some(ready) = self.ready.take() else {
            return;
        };
        let before = std::mem::replace(&mut self.before, totals);
        let items = (totals.items - before.items) as f64;
        // A thread that was not scheduled for milliseconds says nothing about the graph.
        let most = 4.0 * cost_ns(items);
        let mean = |mean: f64, last: u64| mean * 0.8 + (last as f64).min(most) * 0.2;
        self.graph_ns = mean(self.graph_ns, totals.graph_ns - before.graph_ns);
        self.consumer_ns = mean(self.consumer_ns, (now - ready).as_nanos() as u64);
        self.items = self.items * 0.8 + items * 0.2;
        self.polls_without_wait = match totals.pending_polls == before.pending_polls {
            true => self.polls_without_wait.saturating_add(1),
            false => 0,
        };
    }

    /// Adds the end of a poll. Returns true if it was the first, and so long that nothing else has
    /// to be known.
    pub fn after_poll(&mut self, spent: Duration, ended: Instant, is_ready: bool) -> bool {
        self.polls += 1;
        self.ready = is_ready.then_some(ended);
        self.polls == 1 && spent > LONG
    }

    /// Records that a thread works ahead of the consumer from now on.
    pub fn moved(&mut self) {
        self.polls_without_wait = 0;
    }

    /// Returns true if a thread ahead of the consumer would save more than it costs. A consumer
    /// that only asks for more would wait for that thread.
    pub fn pays(&self) -> bool {
        pays(self.graph_ns, self.consumer_ns, self.items)
    }

    /// Returns true if the thread ahead costs more than it saves.
    pub fn is_wasted(&self) -> bool {
        let saved_ns = self.graph_ns.min(self.consumer_ns);
        self.polls_without_wait >= POLLS_WITHOUT_WAIT && saved_ns < cost_ns(self.items) / 2.0
    }
}

/// Returns true if a thread ahead of the consumer would save more time than it costs. The arguments
/// are the nanoseconds of a poll in the graph and in the consumer, and the number of items of a poll.
pub(super) fn pays(graph_ns: f64, consumer_ns: f64, items: f64) -> bool {
    graph_ns.min(consumer_ns) > cost_ns(items)
}

fn cost_ns(items: f64) -> f64 {
    COST.0.as_nanos() as f64 + COST.1.as_nanos() as f64 * items
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A consumer that polls: times in microseconds.
    struct Consumer {
        gain: AheadGain,
        now: Instant,
        totals: Totals,
    }

    impl Consumer {
        fn new() -> Self {
            let (gain, totals) = Default::default();
            Consumer {
                gain,
                now: Instant::now(),
                totals,
            }
        }

        fn poll(&mut self, items: u64, graph: u64, consumer: u64) -> bool {
            let graph = Duration::from_micros(graph);
            self.gain.before_poll(self.now, self.totals);
            self.totals.items += items;
            self.totals.graph_ns += graph.as_nanos() as u64;
            self.now += graph;
            let long = self.gain.after_poll(graph, self.now, true);
            self.now += Duration::from_micros(consumer);
            long
        }
    }

    #[test]
    fn two_threads_pay_if_both_have_work() {
        let pays = |items, graph, consumer| {
            let mut loop_ = Consumer::new();
            (0..40).for_each(|_| _ = loop_.poll(items, graph, consumer));
            loop_.gain.pays()
        };
        assert!(pays(1, 60, 60));
        assert!(pays(1, 500, 5_000));
        // A loop that only sums, and items of nanoseconds.
        assert!(!pays(1, 500, 10));
        assert!(!pays(1, 10, 5_000));
        assert!(!pays(1000, 900, 100));
        assert!(pays(1000, 20_000, 20_000));
    }

    #[test]
    fn a_heavy_step_pays_from_the_second_poll_on_and_a_disturbance_never() {
        let mut heavy = Consumer::new();
        heavy.poll(1, 5_000, 5_000);
        heavy.poll(1, 5_000, 5_000);
        heavy.gain.before_poll(heavy.now, heavy.totals);
        assert!(heavy.gain.pays());
        assert!(Consumer::new().poll(1, 20_000, 0));

        let mut disturbed = Consumer::new();
        for n in 0..100 {
            let (graph, consumer) = match n % 10 {
                3 => (8_000, 10),
                7 => (20, 8_000),
                _ => (20, 10),
            };
            disturbed.poll(1, graph, consumer);
            assert!(!disturbed.gain.pays(), "{n}");
        }
    }

    #[test]
    fn a_thread_ahead_is_wasted_on_a_cheap_graph_that_never_waits() {
        let mut cheap = Consumer::new();
        (0..60).for_each(|_| _ = cheap.poll(100, 20, 10));
        assert!(cheap.gain.is_wasted());
        cheap.totals.pending_polls += 1;
        cheap.poll(100, 20, 10);
        assert!(!cheap.gain.is_wasted());
        (0..60).for_each(|_| _ = cheap.poll(100, 20, 10));
        cheap.gain.moved();
        assert!(!cheap.gain.is_wasted());
    }
}
