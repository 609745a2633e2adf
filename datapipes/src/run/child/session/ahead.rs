//! Number of jobs that a child has at once: those of a distant worker come for a whole round trip.

use std::collections::VecDeque;
use std::task::Context;
use std::time::Duration;

use tokio::time::Instant;

use super::Session;
use crate::Result;
use crate::run::child::protocol::Order;

/// Number of jobs that a child has at once: a current one and the next.
const AT_ONCE: usize = 2;
/// Number of bytes of the messages of jobs of a distant worker above which no more are on their way to it.
const ON_THE_WAY: usize = 16 << 20;
/// Least time of a job at a distant worker: that of its messages.
const LEAST_TIME: Duration = Duration::from_micros(20);
/// Number of the last round trips of which the shortest counts: an answer has to wait for the item
/// in progress.
const ROUND_TRIPS: usize = 3;
/// Time by which a round trip may be longer than the shortest one. More of it is a queue before a
/// network that is full, which more work would make longer.
const FARTHER: Duration = Duration::from_millis(500);

/// Times of the last round trips to a worker of another machine.
#[derive(Debug)]
pub(super) struct RoundTrips {
    last: VecDeque<Duration>,
    shortest: Duration,
}

impl RoundTrips {
    /// Begins with the time that it took to connect.
    pub(super) fn new(first: Option<Duration>) -> Self {
        RoundTrips {
            last: first.into_iter().collect(),
            shortest: first.unwrap_or(Duration::MAX),
        }
    }

    fn add(&mut self, round_trip: Duration) {
        if self.last.len() >= ROUND_TRIPS {
            self.last.pop_front();
        }
        self.shortest = self.shortest.min(round_trip);
        self.last.push_back(round_trip.min(self.shortest + FARTHER));
    }

    /// Returns the shortest of the last ones.
    fn recent(&self) -> Option<Duration> {
        self.last.iter().min().copied()
    }
}

impl Session<'_> {
    /// Tells a worker of another machine from time to time that this process is there, which it
    /// answers, unless something waits to be sent.
    pub(super) fn tell_alive(&mut self, cx: &mut Context<'_>) -> Result<()> {
        // Before, it would answer once it has made its part.
        let Some((every, timer)) = self.beat.as_mut().filter(|_| self.ready) else {
            return Ok(());
        };
        if timer.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        timer.as_mut().reset(Instant::now() + *every);
        // To be woken for the next one.
        let _ = timer.as_mut().poll(cx);
        if self.closed.is_none() && self.child.orders.poll_flush(cx).is_ready() {
            let at = self.begun.elapsed().as_micros();
            self.send(cx, &Order::Alive(at as u64), None)?;
        }
        Ok(())
    }

    /// Learns the time of a round trip from the answer to what was said so many microseconds after
    /// the begin. An answer may have waited for room, which tells nothing about the network.
    pub(super) fn answered_after(&mut self, at: u64) {
        let said = self.begun.checked_add(Duration::from_micros(at));
        let Some(said) = said.filter(|&said| said > self.had_no_room) else {
            return;
        };
        self.round_trips.add(said.elapsed());
    }

    /// Learns from a job that has ended, and that took this time there.
    pub(super) fn learn(&mut self, spent: Duration) {
        self.job_time = Some(match self.job_time {
            Some(known) => known - known / 4 + spent / 4,
            None => spent,
        });
    }

    /// Returns the number of jobs that the child works on at once.
    pub(super) fn overlap(&self) -> usize {
        match self.waits {
            true => self.slot.plan().hello.overlap,
            false => 1,
        }
    }

    /// Returns the number of jobs that the child may have at once: as many as it works on, the next,
    /// and those that are done while an answer and the next order are on their way, but no more than
    /// its share of all that are there.
    pub(super) fn most_jobs(&self) -> usize {
        let most = self.overlap() - 1 + AT_ONCE;
        let (Some(round_trip), Some(job_time)) = (self.round_trips.recent(), self.job_time) else {
            return most;
        };
        if self.input >= ON_THE_WAY {
            return most;
        }
        // Jobs that wait, wait at the same time.
        let job_time = (job_time / self.overlap() as u32)
            .max(LEAST_TIME)
            .as_nanos();
        let on_the_way = round_trip.as_nanos().div_ceil(job_time);
        let on_the_way = usize::try_from(on_the_way).unwrap_or(usize::MAX);
        let shared = &self.slot.shared;
        let share = (shared.pending() + self.tasks.len()).div_ceil(shared.ready_workers().max(1));
        most.saturating_add(on_the_way).min(most.max(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_before_a_full_network_is_no_longer_way() {
        let mut trips = RoundTrips::new(None);
        assert_eq!(trips.recent(), None);
        let mut after = |all: [u64; ROUND_TRIPS]| {
            for ms in all {
                trips.add(Duration::from_millis(ms));
            }
            trips.recent().unwrap()
        };
        let near = Duration::from_millis(20);
        // An answer that waited for the item in progress, and two that did not.
        assert_eq!(after([900, 20, 30]), near);
        // A network that is full.
        assert_eq!(after([5_000; ROUND_TRIPS]), near + FARTHER);
        // Another way, which is longer.
        assert_eq!(after([250; ROUND_TRIPS]), Duration::from_millis(250));
    }
}
