//! Packs documents into rows of a fixed length.

mod packing;
mod row;
#[cfg(test)]
mod tests;

use datapipes::{Context, Error, Graph, Held, Hints, Items, Pipe, Weigh};

use self::packing::{Fit, InBin, Incoming, Packing};
pub(crate) use self::row::Row;
pub use self::row::{Labels, RowLayout};
use crate::{Document, Packed};

/// The treatment of a document that is longer than a row, by [`Pack::first_fit`] and
/// [`Pack::best_fit`]. ([`Pack::concat`] cuts documents wherever a row ends.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// Cuts it: full rows, and a rest that is packed as a document.
    Split,
    /// Keeps its beginning, a full row.
    Truncate,
    /// Leaves it out, and counts it as dropped.
    Drop,
    /// Replaces it by an error of kind `Limit`, which names it.
    Error,
}

/// Packs documents into rows of a fixed length; see [`PackGraphExt::pack`].
///
/// | | padding | documents |
/// |---|---|---|
/// | [`concat`](Pack::concat) | at the end of the epoch only | cut where a row ends |
/// | [`first_fit`](Pack::first_fit) | little | whole, unless longer than a row |
/// | [`best_fit`](Pack::best_fit) | less | whole, unless longer than a row |
///
/// - A row is given out as soon as it is full. At the end of an epoch the rows that are not are
///   padded and given out in the order in which they were begun, or left out
///   ([`drop_last`](Pack::drop_last)).
/// - An empty document is left out, and counted as dropped.
/// - An error in the input comes in its place and costs no row.
#[derive(Clone, Debug)]
#[must_use]
pub struct Pack {
    layout: RowLayout,
    fit: Fit,
    overflow: Overflow,
    drop_last: bool,
}

impl Pack {
    fn new(length: usize, fit: Fit) -> Self {
        Pack {
            layout: RowLayout::new(length),
            fit,
            overflow: Overflow::Split,
            drop_last: false,
        }
    }

    /// Concatenates all documents and cuts the result into rows: Grain's `ConcatThenSplit`. The
    /// rest of a document that is cut begins the next row, with positions from 0.
    pub fn concat(length: usize) -> Self {
        Pack::new(length, Fit::Concat(false))
    }

    /// Puts each document into the first of at most `bins` open rows that has room. If none has,
    /// the fullest is given out and another one begun. (Grain's `FirstFitPackIterDataset` gives out
    /// all of its rows then. Here the others stay open, and have less padding.)
    pub fn first_fit(length: usize, bins: usize) -> Self {
        Pack::new(length, Fit::First(bins))
    }

    /// Puts each document into the open row that it leaves the least room in, of at most `bins`. If
    /// none has room, the fullest is given out and another one begun.
    pub fn best_fit(length: usize, bins: usize) -> Self {
        Pack::new(length, Fit::Best(bins))
    }

    /// Sets what happens to a document that is longer than a row; `Split` unless set. Without
    /// meaning for [`concat`](Pack::concat).
    pub fn overflow(self, overflow: Overflow) -> Self {
        Pack { overflow, ..self }
    }

    /// Gives a document that fills a row by itself out at once, as it is, before the row that has
    /// begun: Grain's `split_full_length_features=False`. Only for [`concat`](Pack::concat).
    pub fn keep_full(mut self) -> Self {
        if let Fit::Concat(passes) = &mut self.fit {
            *passes = true;
        }
        self
    }

    datapipes::setters! {
        /// Begins each piece of a document at a multiple of `align` in its row, as some attention
        /// kernels ask for. The gap is padding, a segment of its own. 1 unless set; the length of a row
        /// must be a multiple of it.
        align(align: usize) => layout.align = align;

        /// Puts at most so many pieces of documents into a row.
        max_documents(documents: usize) => layout.most_documents = documents;

        /// Replaces the first token of each piece of a document by this one, so that the rest of a
        /// document that was cut begins with it, too: Grain's `REPLACE_FIRST_TOKEN_WITH_BOS`. Nothing
        /// is inserted. A first token that is another one is lost as an input; it stays the label of
        /// the token before it.
        replace_first(bos: u32) => layout.bos = Some(bos);

        /// Sets the id of padding; 0 unless set.
        pad(id: u32) => layout.pad = id;

        /// Sets the label of padding, and of all that is not trained; −100 unless set.
        ignore(label: i64) => layout.ignore = label;

        /// Sets what the labels are; [`Labels::Next`] unless set.
        labels(labels: Labels) => layout.labels = labels;

        /// Leaves out the rows that are not full at the end, and counts their documents as dropped.
        drop_last() => drop_last = true;
    }

    /// Returns the number of rows that may be open.
    fn bins(&self) -> usize {
        match self.fit {
            Fit::Concat(_) => 1,
            Fit::First(bins) | Fit::Best(bins) => bins,
        }
    }

    /// Returns true if the pieces of a document may be in several rows.
    fn cuts(&self) -> bool {
        matches!(self.fit, Fit::Concat(_)) || self.overflow == Overflow::Split
    }

    fn problem(&self) -> Option<&'static str> {
        let none = (self.bins() == 0).then_some("no room for a single document");
        self.layout.problem().or(none)
    }

    fn settings(&self) -> String {
        let length = self.layout.length;
        let mut said = match self.fit {
            Fit::Concat(false) => format!("{length}, concat"),
            Fit::Concat(true) => format!("{length}, concat, keep_full"),
            Fit::First(bins) => format!("{length}, first fit of {bins}"),
            Fit::Best(bins) => format!("{length}, best fit of {bins}"),
        };
        if !matches!(self.fit, Fit::Concat(_)) {
            said += &format!(", overflow {:?}", self.overflow);
        }
        said += &self.layout.settings();
        said + if self.drop_last { ", drop_last" } else { "" }
    }

    /// Returns the number of tokens to keep of a document; `None` to leave it out.
    fn keeps(&self, document: &impl Document) -> Result<Option<usize>, Error> {
        let (len, length) = (document.ids().len(), self.layout.length);
        if let Some(labels) = document.labels()
            && labels.len() != len
        {
            let message = format!("a document of {len} ids and {} labels", labels.len());
            return Err(Error::shape(message));
        }
        let fits = len <= length || matches!(self.fit, Fit::Concat(_));
        match self.overflow {
            _ if len == 0 => Ok(None),
            _ if fits => Ok(Some(len)),
            Overflow::Split => Ok(Some(len)),
            Overflow::Truncate => Ok(Some(length)),
            Overflow::Drop => Ok(None),
            Overflow::Error => {
                let message = format!(
                    "a document of {len} tokens, for rows of {length}; `Pack::overflow` can cut it or leave it out"
                );
                Err(Error::limit(message))
            }
        }
    }
}

impl<T: Document> Pipe<T> for Pack {
    type Out = Packed;

    fn apply(&self, mut input: Items<T>, cx: &Context) -> Items<Packed> {
        // Documents in open rows come again, in their order, and go to the same rows.
        let (rows, mut again): (u64, Vec<InBin>) =
            datapipes::or_fail!(cx.restored()).unwrap_or_default();
        let (this, cx) = (self.clone(), cx.clone());
        // In any order, the documents that come again are others than those of the snapshot.
        let records = cx.is_resumable() && cx.lineage().is_none();
        Items::generate(async move |out| {
            let mut packing = Packing::new(this.layout.clone(), this.fit, rows, records);
            loop {
                if again.is_empty() {
                    out.snapshot(&cx, || packing.state());
                }
                let Some(held) = out.hold_from(&cx, &mut input).await else {
                    break;
                };
                let kept = match this.keeps(&**held) {
                    Ok(Some(kept)) => kept,
                    Ok(None) => {
                        cx.leave_out([held]);
                        continue;
                    }
                    Err(error) => {
                        let (item, place) = held.into_parts();
                        out.emit_of([place], Err(cx.fail(&item, error))).await;
                        continue;
                    }
                };
                let mut document = incoming(held, kept);
                // In their order; the rest does not come if one of them fails now.
                let at = again.iter().position(|&(key, ..)| key == document.key);
                let mut known = again.drain(..at.map_or(again.len(), |at| at + 1));
                if let (Some(_), Some((_, bin, start))) = (at, known.next_back()) {
                    document.rest.start = kept.min(start as usize);
                    document.bin = Some(bin);
                }
                while let Some((places, row)) = packing.advance(&mut document) {
                    out.emit_of(places, Ok(row)).await;
                }
            }
            if this.drop_last {
                cx.count_dropped(packing.waiting() as u64);
                return;
            }
            while let Some((places, row)) = packing.finish() {
                out.emit_of(places, Ok(row)).await;
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        // An endless stream gives an endless number; the number of others depends on their lengths.
        (input == u64::MAX).then_some(input)
    }
    fn hints(&self) -> Hints {
        // A document has a token at least.
        let documents = self.layout.length.min(self.layout.most_documents);
        // A row is not told by whole documents if they are cut.
        Hints::default()
            .ignores_order(!self.drop_last)
            .lineage(!self.cuts() && !self.drop_last)
            .is_resumable(true)
            .buffered(self.bins().saturating_mul(documents))
            .buffered_bytes(
                self.bins()
                    .saturating_mul(self.layout.length)
                    .saturating_mul(20),
            )
            .settings(self.settings())
            .problem(self.problem())
    }
    fn weigh(&self, row: &Packed) -> Option<usize> {
        Some(row.weigh())
    }
}

fn incoming<T: Document>(held: Held<T>, kept: usize) -> Incoming<T> {
    let (item, place) = held.into_parts();
    let (document, origin) = item.into_parts();
    Incoming {
        document,
        key: origin.key(),
        origin,
        rest: 0..kept,
        place: Some(place),
        bin: None,
    }
}

/// Packing, for a graph of documents. Import it with the [`prelude`](crate::prelude).
pub trait PackGraphExt: crate::sealed::Sealed {
    /// Packs documents into rows of a fixed length, with labels, positions and the bounds of
    /// documents: what a language model is trained on. [`Pack`] has the ways to do it.
    ///
    /// Runs in one place, in the order of the input. Holds the open rows, about 20 bytes for each
    /// token of theirs. An epoch can be resumed at any row: the checkpoint has no tokens, but three
    /// numbers for each document in open rows; these documents are read again.
    ///
    /// Add `.batch(n).collate()` for a [`PackedBatch`](crate::PackedBatch).
    ///
    /// # Errors
    /// `Limit` in place of a document that is too long, with [`Overflow::Error`]; `Shape` in place
    /// of one with another number of labels than of ids. Wrong settings are reported when the
    /// loader is built.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_text::{Overflow, Pack, prelude::*};
    ///
    /// let documents = Graph::from_vec(vec![vec![1u32, 2, 3], vec![4, 5, 6], vec![7, 8]]);
    /// let rows = documents.clone().pack(Pack::concat(5)).collect()?;
    /// assert_eq!(rows[0].ids, [1, 2, 3, 4, 5]);
    /// assert_eq!(rows[0].labels, [2, 3, -100, 5, 6]);
    /// assert_eq!(rows[0].positions, [0, 1, 2, 0, 1]);
    /// assert_eq!(rows[0].cu_seqlens, [0, 3, 5]);
    /// assert_eq!(rows[1].ids, [6, 7, 8, 0, 0]);
    /// assert_eq!(rows[1].document, [1, 2, 2, 0, 0]);
    ///
    /// // Whole documents: the third fits to the first.
    /// let rows = documents.pack(Pack::best_fit(5, 8).overflow(Overflow::Error)).collect()?;
    /// assert_eq!(rows[0].ids, [1, 2, 3, 7, 8]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn pack(self, pack: Pack) -> Graph<Packed>;
}

impl<T: Document> PackGraphExt for Graph<T> {
    fn pack(self, pack: Pack) -> Graph<Packed> {
        self.pipe(pack)
    }
}
