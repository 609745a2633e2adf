//! Windows of tokens.

use std::fmt;
use std::sync::Arc;

use datapipes::{Error, ErrorKind, Result, Tensor};

use super::TokenStore;
use crate::pack::Row;
use crate::{Layout, Packed, Tokens};

/// Some tokens in a row of a [`TokenStore`]: a position, until it is read.
#[derive(Clone)]
pub struct Window {
    store: TokenStore,
    start: u64,
    layout: Arc<Layout>,
}

impl Window {
    pub(super) fn new(store: TokenStore, start: u64, layout: Arc<Layout>) -> Window {
        Window {
            store,
            start,
            layout,
        }
    }

    /// Returns the place of the first token in the store.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the ids alone, `[length]` of the numbers that they are stored as, without a copy: the
    /// tensor is a slice of the mapped file, and the first copy is that into a batch.
    ///
    /// # Errors
    /// `Corrupt` for an id that is not in the [vocabulary](TokenStore::vocab), if that was set.
    /// `Unsupported` on a machine that is big-endian.
    pub fn ids(&self) -> Result<Tensor> {
        if cfg!(target_endian = "big") {
            let message = "tokens are little-endian, and are shared as they are stored; `Window::row` converts them";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let store = &self.store.0;
        let length = self.layout.length;
        let range = self.start..self.start + length as u64;
        if store.vocab.is_some() {
            self.store
                .read(range.clone(), &mut Vec::with_capacity(length))?;
        }
        let bytes = self.store.bytes(&range)?;
        Tensor::from_bytes(store.tokens.slice_ref(bytes), store.width.dtype(), [length])
    }

    /// Returns the window as a row with all fields, as [`Pack`](crate::Pack) makes them: labels are
    /// the next tokens, also that after the window, and −100 at the end of each document, unless the
    /// [`Layout`](crate::Layout) of the windows, or the [mask](TokenStore::loss) of the store, says
    /// otherwise.
    ///
    /// # Errors
    /// `Corrupt` if the index contradicts itself, or for an id that is not in the
    /// [vocabulary](TokenStore::vocab); with file and byte.
    pub fn row(&self) -> Result<Packed> {
        let (store, layout) = (&self.store, &*self.layout);
        let length = layout.length as u64;
        let (bounds, size) = (&store.0.bounds, store.0.width.size());
        let end = self.start + length;
        let mut tokens = Tokens::from(Vec::with_capacity(layout.length + 1));
        // One more, as the label of the last.
        store.read_labelled(self.start..(end + 1).min(store.len()), &mut tokens)?;
        let mut row = Row::new(layout);
        let (mut at, mut number) = (self.start, bounds.find(self.start, size)?);
        while at < end {
            let place = bounds.place(number, size)?;
            // The first document may have begun before.
            let is_next = place.start == at || (place.start < at && at == self.start);
            if !is_next || place.end < at || place.end > store.len() {
                let message = format!(
                    "{}: document {number} has tokens {} to {}, where token {at} of {} is wanted",
                    bounds.name(),
                    place.start,
                    place.end,
                    store.len()
                );
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
            let begin = (at - self.start) as usize;
            let piece = (place.end.min(end) - at) as usize;
            let known = piece + usize::from(place.end > end);
            if piece > 0 {
                let known = begin..begin + known;
                let labels = tokens.labels.as_ref().map(|labels| &labels[known.clone()]);
                row.push(layout, &tokens.ids[known], labels, 0..piece);
            }
            at += piece as u64;
            number += 1;
            if number >= bounds.count() && at < end {
                let message = format!("{}: no document has token {at}", bounds.name());
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
        }
        Ok(row.finish(layout))
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("start", &self.start)
            .field("length", &self.layout.length)
            .finish()
    }
}
