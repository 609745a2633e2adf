//! Streams that are cut off after some items, and concatenated; typed, since they stand between
//! cheap steps.

use std::sync::{Arc, Mutex};
use std::task::{self, Poll, ready};

use super::any_items::{AnyItems, typed};
use crate::checkpoint::SegmentLog;
use crate::items::{Chunks, Demand};
use crate::sync::lock;
use crate::{Chunk, Items};

/// The number of items that may still be taken of a stream, and the number taken.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub left: usize,
    pub taken: u64,
    pub ended: bool,
}

/// A stream from which the inputs of one morsel after another are taken.
pub(crate) trait MorselInputs: Send {
    /// Returns the input of the next morsel.
    fn open(&self) -> AnyItems;
}

pub(crate) type SharedGate = Arc<Mutex<Gate>>;

pub(super) struct MorselInputsOf<T> {
    items: Arc<Mutex<Items<T>>>,
    gate: SharedGate,
    log: Arc<SegmentLog>,
}

impl<T: Send + 'static> MorselInputsOf<T> {
    pub(super) fn new(items: AnyItems, gate: SharedGate, log: Arc<SegmentLog>) -> Self {
        MorselInputsOf {
            items: Arc::new(Mutex::new(typed::<T>(items))),
            gate,
            log,
        }
    }
}

impl<T: Send + 'static> MorselInputs for MorselInputsOf<T> {
    fn open(&self) -> AnyItems {
        let (items, gate, log) = (self.items.clone(), self.gate.clone(), self.log.clone());
        Box::new(Items::from_chunks(MorselInput { items, gate, log }))
    }
}

struct MorselInput<T> {
    items: Arc<Mutex<Items<T>>>,
    gate: SharedGate,
    log: Arc<SegmentLog>,
}

impl<T: Send + 'static> Chunks<T> for MorselInput<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        let mut gate = lock(&self.gate);
        if gate.left == 0 || gate.ended {
            return Poll::Ready(None);
        }
        match ready!(lock(&self.items).poll_chunk(cx, demand.at_most(gate.left))) {
            Some(chunk) => {
                gate.left -= chunk.len().min(gate.left);
                gate.taken += chunk.len() as u64;
                self.log.took(chunk.len());
                Poll::Ready(Some(chunk))
            }
            None => {
                gate.ended = true;
                Poll::Ready(None)
            }
        }
    }
}

/// Makes the next stream, if there is one; the argument is the number of items of the stream
/// before.
pub(crate) type Next = Box<dyn FnMut(u64) -> Option<AnyItems> + Send>;

/// A concatenation of streams.
pub(super) struct OneByOne<T> {
    next: Next,
    current: Option<Items<T>>,
    given: u64,
    ended: bool,
}

impl<T: Send + 'static> OneByOne<T> {
    pub(super) fn new(next: Next) -> Self {
        OneByOne {
            next,
            current: None,
            given: 0,
            ended: false,
        }
    }
}

impl<T: Send + 'static> Chunks<T> for OneByOne<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        loop {
            if let Some(current) = &mut self.current {
                if let Some(chunk) = ready!(current.poll_chunk(cx, demand)) {
                    self.given += chunk.len() as u64;
                    return Poll::Ready(Some(chunk));
                }
                self.current = None;
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match (self.next)(std::mem::take(&mut self.given)) {
                Some(items) => self.current = Some(typed::<T>(items)),
                None => self.ended = true,
            }
        }
    }
}
