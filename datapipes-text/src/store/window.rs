//! Windows of tokens.

use std::ops::Range;
use std::sync::Arc;

use datapipes::{Error, Result, Tensor};

use super::{TokenStore, prefetch};
use crate::{Labels, Packed, PackedBatch, RowLayout};

/// Some tokens in a row of a [`TokenStore`]: a position, until it is read.
#[derive(Clone)]
pub struct Window {
    store: TokenStore,
    start: u64,
    layout: Arc<RowLayout>,
}

impl Window {
    pub(super) fn new(store: TokenStore, start: u64, layout: Arc<RowLayout>) -> Window {
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
            return Err(Error::unsupported(message));
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
    /// [`RowLayout`](crate::RowLayout) of the windows, or the [mask](TokenStore::loss) of the store, says
    /// otherwise.
    ///
    /// # Errors
    /// `Corrupt` if the index contradicts itself, or for an id that is not in the
    /// [vocabulary](TokenStore::vocab); with file and byte.
    pub fn row(&self) -> Result<Packed> {
        let layout = &*self.layout;
        let length = layout.length;
        let mut row = Packed {
            ids: Vec::with_capacity(length),
            labels: Vec::with_capacity(length),
            positions: Vec::with_capacity(length),
            cu_seqlens: vec![0],
            document: Vec::with_capacity(length),
        };
        let size = self.store.0.width.size();
        let number = self.store.0.bounds.find(self.start, size)?;
        self.store.lay(self.start, number, layout, &mut row)?;
        Ok(row)
    }
}

impl TokenStore {
    /// Returns some windows, by their numbers, as a batch with all fields: what
    /// [`windows`](TokenStore::windows), [`Window::row`] and `collate` make. Each number is written
    /// once, into the batch, and there is no item for each window. In a graph use
    /// [`row_batches`](crate::WindowGraphExt::row_batches), by which a checkpoint knows the store.
    ///
    /// # Errors
    /// `NotFound` for a number that no window has; `Limit` for a batch of more than 2³² tokens; those
    /// of [`windows`](TokenStore::windows) and [`Window::row`].
    ///
    /// # Examples
    /// ```
    /// use datapipes_text::{TokenStore, TokenWidth};
    ///
    /// let tokens: Vec<u8> = (0..100u16).flat_map(u16::to_le_bytes).collect();
    /// let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, None)?;
    /// assert_eq!(store.row_batch(2, &[7, 0])?.labels.as_slice::<i64>()?, [15, 16, 1, 2]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn row_batch(&self, layout: impl Into<RowLayout>, windows: &[u64]) -> Result<PackedBatch> {
        let layout = self.layout_of_windows(layout.into())?;
        let length = layout.length;
        self.check_windows(length, windows)?;
        let all = windows.len().saturating_mul(length);
        if u32::try_from(all).is_err() {
            let message = format!("a batch of {all} tokens, more than 2^32");
            return Err(Error::limit(message));
        }
        PackedBatch::from_fill([windows.len(), length], |mut fields| {
            fields.cu_seqlens.push(0);
            self.prefetch_begins(length, windows)?;
            self.prefetch_next(length, windows)?;
            let starts = windows.iter().map(|window| window * length as u64);
            let size = self.0.width.size();
            let numbers = self.0.bounds.find_all(starts.clone(), size)?;
            for (at, (start, number)) in starts.zip(numbers).enumerate() {
                self.prefetch_next(length, &windows[at + 1..])?;
                self.lay(start, number, &layout, &mut fields)?;
            }
            Ok(fields)
        })
    }

    /// Appends the row of the tokens from `start` on, which document `number` has.
    fn lay(&self, start: u64, number: u64, layout: &RowLayout, row: &mut Packed) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the instructions.
            return unsafe { self.lay_by_avx2(start, number, layout, row) };
        }
        self.lay_by_any(start, number, layout, row)
    }

    /// Does what [`lay_by_any`](Self::lay_by_any) does, compiled for wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn lay_by_avx2(
        &self,
        start: u64,
        number: u64,
        layout: &RowLayout,
        row: &mut Packed,
    ) -> Result<()> {
        self.lay_by_any(start, number, layout, row)
    }

    #[inline(always)]
    fn lay_by_any(
        &self,
        start: u64,
        number: u64,
        layout: &RowLayout,
        row: &mut Packed,
    ) -> Result<()> {
        let end = start + layout.length as u64;
        let begin = row.ids.len();
        // The label of the last token is in another page, often the only one that is read there.
        prefetch(self.bytes(&(end..(end + 1).min(self.len())))?, 1);
        self.read(start..end, &mut row.ids)?;
        match layout.labels {
            Labels::Same => self.read_labels(start..end, &mut row.labels)?,
            Labels::Next => {
                // One more, as the label of the last.
                let known = (end + 1).min(self.len());
                self.read(end..known, &mut Vec::new())?;
                self.read_labels(start + 1..known, &mut row.labels)?;
                row.labels.resize(row.ids.len(), layout.ignore);
            }
        }
        self.lay_documents(start..end, number, begin, layout, row)
    }

    /// Appends positions and numbers of the documents in a range, from `number` on, whose ids and
    /// labels are there from `begin` on.
    #[inline(always)]
    fn lay_documents(
        &self,
        range: Range<u64>,
        mut number: u64,
        begin: usize,
        layout: &RowLayout,
        row: &mut Packed,
    ) -> Result<()> {
        let (bounds, size) = (&self.0.bounds, self.0.width.size());
        let Range { start, end } = range;
        let (mut at, mut documents) = (start, 0);
        while at < end {
            let place = bounds.place(number, size)?;
            // The first document may have begun before.
            let is_next = place.start == at || (place.start < at && at == start);
            if !is_next || place.end < at || place.end > self.len() {
                return Err(Error::corrupt(format!(
                    "{}: document {number} has tokens {} to {}, where token {at} of {} is wanted",
                    bounds.name(),
                    place.start,
                    place.end,
                    self.len()
                )));
            }
            let piece = (place.end.min(end) - at) as usize;
            if piece > 0 {
                let first = begin + (at - start) as usize;
                if let Some(bos) = layout.bos {
                    row.ids[first] = bos;
                }
                if layout.labels == Labels::Next && place.end <= end {
                    row.labels[first + piece - 1] = layout.ignore;
                }
                documents += 1;
                row.positions.extend(0..piece as u32);
                row.document.resize(first + piece, documents);
                row.cu_seqlens.push((first + piece) as u32);
            }
            at += piece as u64;
            number += 1;
            if number >= bounds.count() && at < end {
                let message = format!("{}: no document has token {at}", bounds.name());
                return Err(Error::corrupt(message));
            }
        }
        Ok(())
    }
}

datapipes::opaque_debug!(Window { start, length = self.layout.length });
