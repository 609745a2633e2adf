//! Runs a chain inline in pieces, so that it is known which output belongs to which input.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll, ready};
use std::time::Instant;

use crate::graph::{AnyChunk, AnyItems, Edge, ErasedChunks};
use crate::items::Demand;
use crate::keep::Pieces;

/// A piece should be worth what it takes to begin one.
const PIECE_NS: u128 = 200_000;
/// Most items in a piece.
const MOST: usize = 1 << 14;

/// Makes a stream of one, whose first item has this number.
type Apply = Box<dyn FnMut(AnyItems, u64) -> AnyItems + Send>;

/// Applies what distributes over concatenation to one piece of its input after the other.
pub(super) struct Pieced {
    tap: Arc<Mutex<Tap>>,
    apply: Apply,
    input: Arc<dyn Edge>,
    output: Arc<dyn Edge>,
    pieces: Arc<Pieces>,
    current: Option<(Box<dyn ErasedChunks>, Instant)>,
    size: usize,
    given: u64,
    /// The number of the next item of the input.
    first: u64,
}

/// What is above, cut off after some items.
struct Tap {
    chunks: Box<dyn ErasedChunks>,
    left: usize,
    taken: u64,
    ended: bool,
}

struct Tapped(Arc<Mutex<Tap>>, Arc<Pieces>);

impl ErasedChunks for Tapped {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        let mut tap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tap.left == 0 || tap.ended {
            return Poll::Ready(None);
        }
        let demand = demand.at_most(tap.left);
        match ready!(tap.chunks.poll_chunk(cx, demand)) {
            Some(chunk) => {
                tap.left -= chunk.len.min(tap.left);
                tap.taken += chunk.len as u64;
                self.1.took(chunk.len);
                Poll::Ready(Some(chunk))
            }
            None => {
                tap.ended = true;
                Poll::Ready(None)
            }
        }
    }
}

impl Pieced {
    pub(super) fn new(
        chunks: Box<dyn ErasedChunks>,
        input: Arc<dyn Edge>,
        output: Arc<dyn Edge>,
        pieces: Arc<Pieces>,
        apply: impl FnMut(AnyItems, u64) -> AnyItems + Send + 'static,
    ) -> Self {
        let tap = Arc::new(Mutex::new(Tap { chunks, left: 0, taken: 0, ended: false }));
        Pieced {
            tap,
            apply: Box::new(apply),
            input,
            output,
            pieces,
            current: None,
            size: 1,
            given: 0,
            first: 0,
        }
    }
}

impl ErasedChunks for Pieced {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<AnyChunk>> {
        loop {
            let (current, begun) = match &mut self.current {
                Some(current) => current,
                None => {
                    self.tap.lock().unwrap_or_else(PoisonError::into_inner).left =
                        self.size.min(self.pieces.limit());
                    let tapped = self.input.restore(Box::new(Tapped(self.tap.clone(), self.pieces.clone())));
                    let current = self.output.erase((self.apply)(tapped, self.first));
                    self.current.insert((current, Instant::now()))
                }
            };
            match ready!(current.poll_chunk(cx, demand)) {
                Some(chunk) => {
                    self.given += chunk.len as u64;
                    return Poll::Ready(Some(chunk));
                }
                None => {
                    let quick = begun.elapsed().as_nanos() < PIECE_NS;
                    self.current = None;
                    let mut tap = self.tap.lock().unwrap_or_else(PoisonError::into_inner);
                    let (taken, given) = (std::mem::take(&mut tap.taken), std::mem::take(&mut self.given));
                    self.pieces.push(taken, given);
                    self.first += taken;
                    if tap.ended || tap.left > 0 {
                        // The input has ended, or the chain did by itself.
                        return Poll::Ready(None);
                    }
                    self.size = if quick { (self.size * 2).min(MOST) } else { (self.size / 2).max(1) };
                }
            }
        }
    }
}
