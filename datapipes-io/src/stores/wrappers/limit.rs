//! A limit on the concurrency of requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result, lock};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::controller::{Controller, Outcome, Sample};
use crate::stores::{Body, Get, Meta, Object, Store};

/// Maximum number of requests in flight; see [`Limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// A fixed number. 0 counts as 1.
    Fixed(usize),
    /// An adaptive number, as many requests as saturate the network, found by measuring throughput
    /// and latency; halved if the service reports an overload; never more than `most`.
    ///
    /// Other numbers are tried from time to time, and kept if they are better (after PCC; Dong and
    /// others, 2015).
    Adaptive {
        /// Upper limit.
        most: usize,
    },
    /// Unlimited until the service is overloaded the first time (a transient error of kind
    /// `Unavailable`: a 503, a 429, no answer in time); from then on about as many as the service
    /// accepts. Additive increase, multiplicative decrease.
    OnOverload,
}

/// A store with a limit on the number of requests in flight; see
/// [`StoreExt::limit`](crate::StoreExt::limit).
///
/// A request is in flight until its body has ended or was dropped. Waiting requests are admitted in
/// order. A listing is not counted: it has at most one request in flight.
///
/// Clones share the limit. Each request takes a few words of memory, and a lock at its begin and
/// its end.
#[derive(Clone, Debug)]
pub struct Limit<S> {
    inner: Arc<S>,
    gate: Arc<Gate>,
}

impl<S> Limit<S> {
    /// Wraps a store.
    pub fn new(inner: S, most: InFlight) -> Self {
        let controller = match most {
            InFlight::Fixed(most) => Controller::fixed(most),
            InFlight::Adaptive { most } => Controller::adaptive(most),
            InFlight::OnOverload => Controller::on_overload(),
        };
        let state = State {
            controller,
            in_flight: 0,
            waiting: VecDeque::new(),
        };
        Limit {
            inner: Arc::new(inner),
            gate: Arc::new(Gate {
                began: Instant::now(),
                state: Mutex::new(state),
            }),
        }
    }

    /// Returns the current maximum number of requests in flight.
    pub fn most(&self) -> usize {
        lock(&self.gate.state).controller.limit()
    }

    /// Returns the current number of requests in flight.
    pub fn in_flight(&self) -> usize {
        lock(&self.gate.state).in_flight
    }
}

#[derive(Debug)]
struct Gate {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    controller: Controller,
    in_flight: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

impl Gate {
    fn permit(self: &Arc<Self>, state: &mut State) -> Permit {
        state.in_flight += 1;
        let (gate, begun, level) = (self.clone(), self.began.elapsed(), state.in_flight);
        Permit {
            gate,
            begun,
            level,
            idle: Duration::ZERO,
            sample: None,
        }
    }

    async fn enter(self: &Arc<Self>) -> Permit {
        let admitted = {
            let mut state = lock(&self.state);
            if state.waiting.is_empty() && state.in_flight < state.controller.limit() {
                return self.permit(&mut state);
            }
            let (admit, admitted) = oneshot::channel();
            state.waiting.push_back(admit);
            admitted
        };
        admitted
            .await
            .expect("the gate keeps the other end, and this the gate")
    }

    /// Ends a request; admits waiting requests if there is room.
    fn leave(self: &Arc<Self>, sample: Option<Sample>) {
        let mut state = lock(&self.state);
        state.in_flight -= 1;
        if let Some(sample) = sample {
            state.controller.finished(self.began.elapsed(), sample);
        }
        let mut admitted = Vec::new();
        while state.in_flight < state.controller.limit() {
            let Some(admit) = state.waiting.pop_front() else {
                break;
            };
            if !admit.is_closed() {
                admitted.push((admit, self.permit(&mut state)));
            }
        }
        drop(state);
        for (admit, permit) in admitted {
            // If the waiting request was dropped meanwhile, the dropped permit frees its place
            // again.
            drop(admit.send(permit));
        }
    }
}

/// Permission to have a request in flight. If it is dropped without an outcome, the controller gets
/// no measurement.
#[derive(Debug)]
struct Permit {
    gate: Arc<Gate>,
    begun: Duration,
    level: usize,
    /// Time for which the consumer did not poll the body.
    idle: Duration,
    /// Measurement for the controller, recorded on drop.
    sample: Option<Sample>,
}

impl Permit {
    fn ended(&self, outcome: Outcome) -> Sample {
        let took = self
            .gate
            .began
            .elapsed()
            .saturating_sub(self.begun)
            .saturating_sub(self.idle);
        Sample {
            begun: self.begun,
            level: self.level,
            took,
            outcome,
        }
    }

    fn done<T>(mut self, result: &Result<T>) {
        self.sample = match result {
            Ok(_) => Some(self.ended(Outcome::Done)),
            Err(error) if is_overload(error) => Some(self.ended(Outcome::Overload)),
            Err(_) => None,
        };
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.leave(self.sample);
    }
}

fn is_overload(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.is_transient()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Limit<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let permit = self.gate.enter().await;
        let opened = self.inner.get(key, get).await;
        let object = match opened {
            Ok(object) => object,
            Err(_) => {
                permit.done(&opened);
                return opened;
            }
        };
        let left = self.gate.began.elapsed();
        let next = |body: Option<(Body, Permit, Duration)>| async {
            let (mut body, mut permit, left) = body?;
            permit.idle += permit.gate.began.elapsed().saturating_sub(left);
            match body.next().await {
                Some(Ok(piece)) => {
                    let left = permit.gate.began.elapsed();
                    Some((Ok(piece), Some((body, permit, left))))
                }
                Some(failed) => {
                    permit.done(&failed);
                    Some((failed, None))
                }
                None => {
                    permit.done(&Ok(()));
                    None
                }
            }
        };
        let body = Body::stream(stream::unfold(Some((object.body, permit, left)), next));
        Ok(Object { body, ..object })
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        let permit = self.gate.enter().await;
        let meta = self.inner.head(key).await;
        // An answer without a body would make the others look slow.
        if meta.is_err() {
            permit.done(&meta);
        }
        meta
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        let permit = self.gate.enter().await;
        let data = self.inner.read(key).await;
        permit.done(&data);
        data
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.inner.list(prefix)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::stores::{InMemory, StoreExt};
    use crate::testing::{Reaction, Scripted, check_store, fixtures};

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn keeps_the_contract_of_a_store() {
        let memory = InMemory::from_iter(fixtures());
        for most in [
            InFlight::Fixed(1),
            InFlight::Fixed(8),
            InFlight::Adaptive { most: 100 },
            InFlight::OnOverload,
        ] {
            let store = memory.clone().limit(most);
            check_store(&store).await;
            assert_eq!(store.in_flight(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_that_are_in_flight_until_their_bodies_end_or_are_dropped() {
        let script = Scripted::from_iter([("k", "content")]);
        script.usual(Reaction::default().after(10 * MS).pieces(1, MS));
        let store = script.clone().limit(InFlight::Fixed(3));
        let read = futures::future::join_all((0..20).map(|_| store.read("k"))).await;
        assert!(read.iter().all(Result::is_ok));
        assert_eq!(script.most_in_flight(), 3);

        let bodies =
            futures::future::join_all((0..3).map(|_| store.get("k", Get::default()))).await;
        let mut waiting = Box::pin(store.get("k", Get::default()));
        assert!(futures::poll!(&mut waiting).is_pending());
        sleep(1000 * MS).await;
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(bodies);
        let object = waiting.await.unwrap();
        assert_eq!(object.bytes().await.unwrap(), "content");
        assert_eq!((store.in_flight(), script.in_flight()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_takes_no_place() {
        let script = Scripted::from_iter([("k", "content")]);
        let store = script.clone().limit(InFlight::Fixed(1));
        let first = store.get("k", Get::default()).await.unwrap();
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(store.read("k"))).collect();
        for wait in &mut waiting {
            assert!(futures::poll!(wait).is_pending());
        }
        let mut last = waiting.pop().unwrap();
        let mut let_in = waiting.remove(0);
        drop(waiting);
        drop(first);
        drop(std::mem::replace(&mut let_in, Box::pin(store.read("k"))));
        assert!(futures::poll!(&mut last).is_ready());
        assert_eq!(let_in.await.unwrap(), "content");
        assert_eq!(store.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_overloaded_service_lowers_the_limit_and_other_errors_do_not() {
        let script = Scripted::from_iter([("k", "content")]);
        script.usual(Reaction::default().after(10 * MS));
        let store = script.clone().limit(InFlight::OnOverload);
        futures::future::join_all((0..50).map(|_| store.read("k"))).await;
        futures::future::join_all((0..50).map(|_| store.read("missing"))).await;
        assert_eq!((store.most(), script.most_in_flight()), (usize::MAX, 50));
        script.overload_above(16);
        futures::future::join_all((0..50).map(|_| store.read("k"))).await;
        assert!(store.most() <= 16, "{}", store.most());
        let again = futures::future::join_all((0..500).map(|_| store.read("k"))).await;
        let refused = again.iter().filter(|read| read.is_err()).count();
        assert!(
            refused <= 5 && (8..=18).contains(&store.most()),
            "{refused}, {}",
            store.most()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_consumer_does_between_two_pieces_does_not_count() {
        let script = Scripted::from_iter([("k", "content")]);
        script.usual(Reaction::default().after(10 * MS).pieces(1, MS));
        let store = script.clone().limit(InFlight::Adaptive { most: 100 });
        let mut body = store.get("k", Get::default()).await.unwrap().body;
        let gate = store.gate.clone();
        let mut taken = Vec::new();
        while let Some(piece) = body.next().await {
            sleep(1000 * MS).await;
            taken.push(piece.unwrap());
        }
        drop(gate);
        assert_eq!(taken.len(), 7);
        // If the pauses counted, the durations would be seconds.
        let state = format!("{:?}", lock(&store.gate.state).controller);
        assert!(state.contains("took: 0.017"), "{state}");
    }
}
