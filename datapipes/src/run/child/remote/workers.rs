//! The workers of a supervisor: who is connected, and how long nobody was.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Acceptor, Entrance};
use crate::processes::{Need, Standing};
use crate::run::child::child_slot::run_worker;
use crate::run::child::slots::SlotsShared;
use crate::{Error, ErrorKind};

/// Interval between two looks if work waits while nobody is connected, or workers are shared.
const LOOK: Duration = Duration::from_millis(100);

/// Time without anything done after which an epoch needs no more than one worker.
const QUIET: Duration = Duration::from_secs(2);

/// The workers that are connected to a supervisor.
pub(in crate::run::child) struct Workers<E = Acceptor> {
    shared: Rc<SlotsShared>,
    /// `None` until there is work, and while it cannot be opened.
    entrance: Option<E>,
    connected: FuturesUnordered<Pin<Box<dyn Future<Output = usize>>>>,
    /// Free places; those of processes of this machine come before them.
    places: BTreeSet<usize>,
    /// Time when work began to wait for a worker.
    waits: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Timer for the next look, while others share the workers.
    look: Pin<Box<Sleep>>,
}

impl<E: Entrance> Workers<E> {
    /// Starts to let workers in, if the part is for them.
    pub(in crate::run::child) fn new(shared: &Rc<SlotsShared>) -> Option<Self> {
        let processes = &shared.plan.processes;
        processes.remote.as_ref()?;
        Some(Workers {
            shared: shared.clone(),
            entrance: None,
            connected: FuturesUnordered::new(),
            places: (processes.here()..processes.count).collect(),
            waits: None,
            timer: Box::pin(sleep_until(Instant::now())),
            look: Box::pin(sleep_until(Instant::now())),
        })
    }

    /// Works with those who are there, lets others in, and stops all work if nobody comes.
    pub(in crate::run::child) fn poll(&mut self, cx: &mut Context<'_>) {
        if self.entrance.is_none()
            && self.shared.has_work()
            && let Some(remote) = &self.shared.plan.processes.remote
        {
            match E::open(remote) {
                Ok(entrance) => self.entrance = Some(entrance),
                Err(error) => self.shared.break_off(error),
            }
        }
        loop {
            if let Poll::Ready(Some(place)) = self.connected.poll_next_unpin(cx) {
                self.places.insert(place);
                self.shared.set_workers(-1);
                continue;
            }
            self.share(cx);
            // If all places are taken, further workers wait in the system's queue.
            let (Some(entrance), Some(&place)) = (&mut self.entrance, self.places.first()) else {
                break;
            };
            let Poll::Ready(arrival) = entrance.poll_worker(cx) else {
                break;
            };
            self.places.remove(&place);
            self.shared.set_workers(1);
            let shared = self.shared.clone();
            self.connected.push(Box::pin(async move {
                run_worker(shared, place, arrival).await;
                place
            }));
        }
        self.poll_patience(cx);
    }

    /// Tells others what this part has and needs, and hands workers over to them.
    fn share(&mut self, cx: &mut Context<'_>) {
        let Some(share) = self.entrance.as_ref().map(E::share) else {
            return;
        };
        let need = match self.shared.workers() {
            _ if !self.shared.has_epoch() => Need::Nothing,
            0 if !self.shared.has_work() => Need::Nothing,
            _ if self.shared.ready_workers() > 0 && self.shared.is_quiet_for(QUIET) => Need::One,
            _ => Need::Share,
        };
        let standing = Standing {
            workers: self.shared.workers(),
            ready: self.shared.ready_workers(),
            most: self.shared.workers() + self.places.len(),
            need,
        };
        let is_shared = share.set(standing, cx.waker());
        if !is_shared && !self.shared.is_stuck() {
            return;
        }
        while share.take_surplus() {
            self.shared.hand_over();
        }
        while self.look.as_mut().poll(cx).is_ready() {
            self.look.as_mut().reset(Instant::now() + LOOK);
            // Workers that are to be handed over look at the time, too.
            self.shared.wake();
        }
    }

    fn poll_patience(&mut self, cx: &mut Context<'_>) {
        let processes = &self.shared.plan.processes;
        let (Some(entrance), Some(remote)) = (&self.entrance, &processes.remote) else {
            return;
        };
        if processes.here() > 0 || self.shared.ready_workers() > 0 {
            self.waits = None;
            return;
        }
        loop {
            let now = Instant::now();
            match (self.shared.has_work(), self.waits) {
                (false, _) => self.waits = None,
                (true, None) => self.waits = Some(now),
                // One that makes its part may be able to work.
                (true, Some(since)) if now - since >= remote.wait && self.shared.workers() == 0 => {
                    self.waits = None;
                    self.shared
                        .break_off(Error::new(ErrorKind::Worker, entrance.to_string()));
                }
                (true, Some(_)) => {}
            }
            if self.waits.is_none() {
                // Jobs wake this task when they come.
                return;
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return;
            }
            self.timer.as_mut().reset(now + LOOK.min(remote.wait));
        }
    }
}
