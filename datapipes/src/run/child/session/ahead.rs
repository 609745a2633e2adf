//! Number of jobs that a child has at once: those of a distant worker come for a whole round trip.

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
        if self.round_trips.len() >= ROUND_TRIPS {
            self.round_trips.pop_front();
        }
        let round_trip = said.elapsed();
        self.shortest_trip = self.shortest_trip.min(round_trip);
        self.round_trips
            .push_back(round_trip.min(self.shortest_trip + FARTHER));
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
        let (Some(round_trip), Some(job_time)) = (self.round_trips.iter().min(), self.job_time)
        else {
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
