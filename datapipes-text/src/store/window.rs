//! Windows of tokens.

use std::fmt;
use std::sync::Arc;

use datapipes::{Error, ErrorKind, Result, Tensor};

use super::TokenStore;
use crate::pack::Row;
use crate::{Layout, Packed, PackedBatch, Tokens};

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
        let layout = &*self.layout;
        let mut tokens = Tokens::from(Vec::with_capacity(layout.length + 1));
        let mut row = Row::new(layout);
        self.store.lay(self.start, layout, &mut tokens, &mut row)?;
        Ok(row.finish(layout))
    }
}

impl TokenStore {
    /// Returns some windows, by their numbers, as a batch with all fields: what
    /// [`windows`](TokenStore::windows), [`Window::row`] and `collate` make. Each number is written
    /// once, into the batch, and there is no item for each window.
    ///
    /// # Errors
    /// `NotFound` for a number that no window has; `Limit` for a batch of more than 2³² tokens; those
    /// of [`windows`](TokenStore::windows) and [`Window::row`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::Indexed;
    /// use datapipes_text::{TokenStore, TokenWidth};
    ///
    /// let tokens: Vec<u8> = (0..100u16).flat_map(u16::to_le_bytes).collect();
    /// let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, None)?;
    /// let batches = Indexed::range(store.len() / 10).shuffle().shard().fetch()
    ///     .batch(2)
    ///     .try_map(move |windows| store.row_batch(10, &windows));
    /// assert_eq!(batches.collect()?[4].labels.shape(), [2, 10]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn row_batch(&self, layout: impl Into<Layout>, windows: &[u64]) -> Result<PackedBatch> {
        let layout = self.layout_of_windows(layout.into())?;
        let length = layout.length;
        self.check_windows(length, windows)?;
        let all = windows.len().saturating_mul(length);
        if u32::try_from(all).is_err() {
            let message = format!("a batch of {all} tokens, more than 2^32");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        PackedBatch::from_fill([windows.len(), length], |fields| {
            let mut tokens = Tokens::from(Vec::with_capacity(length + 1));
            let mut row = Row::of_batch(fields);
            for window in windows {
                let start = window * length as u64;
                self.lay(start, &layout, &mut tokens, &mut row)?;
                row.next_row(&layout);
            }
            Ok(row.into_batch())
        })
    }

    /// Lays the tokens from `start` on into an empty row. `tokens` is memory for them.
    fn lay(&self, start: u64, layout: &Layout, tokens: &mut Tokens, row: &mut Row) -> Result<()> {
        let (bounds, size) = (&self.0.bounds, self.0.width.size());
        let end = start + layout.length as u64;
        tokens.truncate(0);
        // One more, as the label of the last.
        self.read_labelled(start..(end + 1).min(self.len()), tokens)?;
        let (mut at, mut number) = (start, bounds.find(start, size)?);
        while at < end {
            let place = bounds.place(number, size)?;
            // The first document may have begun before.
            let is_next = place.start == at || (place.start < at && at == start);
            if !is_next || place.end < at || place.end > self.len() {
                let message = format!(
                    "{}: document {number} has tokens {} to {}, where token {at} of {} is wanted",
                    bounds.name(),
                    place.start,
                    place.end,
                    self.len()
                );
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
            let begin = (at - start) as usize;
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
        Ok(())
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
