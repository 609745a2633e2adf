//! A row that documents are laid into.

use std::ops::Range;

use crate::Packed;

/// Labels of a row; see [`Pack::labels`](super::Pack::labels).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Labels {
    /// The label of a token is that of the next token of its document, for a model that predicts
    /// it: a document's last token has none. The last token of a piece that the document goes on
    /// after, in another row, has the label of the token there, so that cutting a document costs
    /// none.
    Next,
    /// The label of a token is its own, for a model that fills in masked tokens.
    Same,
}

/// The layout of rows that are read from a [`TokenStore`](crate::TokenStore): their length, and what
/// [`Pack`](crate::Pack) has as settings of the same names. For [`PackPlan`](crate::PackPlan),
/// [`TokenStore::windows`](crate::TokenStore::windows) and [`GptOrder`](crate::GptOrder); a number is
/// a length.
///
/// # Examples
/// ```
/// use datapipes_text::{RowLayout, TokenStore, TokenWidth};
///
/// let tokens: Vec<u8> = (1..10u16).flat_map(u16::to_le_bytes).collect();
/// let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, None)?;
/// let rows = store.windows(RowLayout::new(4).replace_first(0).ignore(-1))?.fetch().try_map(|window| window.row());
/// let row = rows.collect()?.remove(1);
/// assert_eq!((row.ids, row.labels), (vec![0, 6, 7, 8], vec![6, 7, 8, 9]));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RowLayout {
    pub(crate) length: usize,
    pub(crate) align: usize,
    pub(crate) most_documents: usize,
    pub(crate) bos: Option<u32>,
    pub(crate) pad: u32,
    pub(crate) ignore: i64,
    pub(crate) labels: Labels,
}

impl RowLayout {
    /// Lays out rows of `length` tokens.
    pub fn new(length: usize) -> Self {
        RowLayout {
            length,
            align: 1,
            most_documents: usize::MAX,
            bos: None,
            pad: 0,
            ignore: -100,
            labels: Labels::Next,
        }
    }

    datapipes::setters! {
        /// Sets the multiple at which pieces begin; see [`Pack::align`](crate::Pack::align).
        align(align: usize) => align = align;

        /// Sets the number of pieces of a row; see [`Pack::max_documents`](crate::Pack::max_documents).
        max_documents(documents: usize) => most_documents = documents;

        /// Sets the first token of each piece; see [`Pack::replace_first`](crate::Pack::replace_first).
        replace_first(bos: u32) => bos = Some(bos);

        /// Sets the id of padding; see [`Pack::pad`](crate::Pack::pad).
        pad(id: u32) => pad = id;

        /// Sets the label of what is not trained; see [`Pack::ignore`](crate::Pack::ignore).
        ignore(label: i64) => ignore = label;

        /// Sets what the labels are; see [`Pack::labels`](crate::Pack::labels).
        labels(labels: Labels) => labels = labels;
    }

    /// Returns true if there may be padding between pieces, or before a row is full.
    pub(crate) fn has_gaps(&self) -> bool {
        self.align != 1 || self.most_documents < usize::MAX
    }

    pub(crate) fn problem(&self) -> Option<&'static str> {
        let RowLayout { length, align, .. } = *self;
        if length == 0 {
            Some("rows of no tokens")
        } else if u32::try_from(length).is_err() {
            Some("rows of more than 2^32 tokens")
        } else if align == 0 || !length.is_multiple_of(align) {
            Some("a length that is no multiple of the alignment")
        } else if self.most_documents == 0 {
            Some("no room for a single document")
        } else {
            None
        }
    }

    /// Describes what is not as in a new layout.
    pub(crate) fn settings(&self) -> String {
        let RowLayout {
            length: _,
            align,
            most_documents,
            bos,
            pad,
            ignore,
            labels,
        } = self;
        let mut said = String::new();
        if *align > 1 {
            said += &format!(", align {align}");
        }
        if *most_documents < usize::MAX {
            said += &format!(", at most {most_documents} documents");
        }
        if let Some(bos) = bos {
            said += &format!(", first {bos}");
        }
        if (*pad, *ignore, *labels) != (0, -100, Labels::Next) {
            said += &format!(", pad {pad}, ignore {ignore}, labels {labels:?}");
        }
        said
    }
}

datapipes::conversions! {
    |length: usize| -> RowLayout { RowLayout::new(length) }
}

/// A row that is being filled.
#[derive(Debug)]
pub(crate) struct Row {
    packed: Packed,
    documents: u32,
}

impl Row {
    pub fn new(layout: &RowLayout) -> Self {
        let length = layout.length;
        let mut cu_seqlens = Vec::with_capacity(8);
        cu_seqlens.push(0);
        Row {
            packed: Packed {
                ids: Vec::with_capacity(length),
                labels: Vec::with_capacity(length),
                positions: Vec::with_capacity(length),
                cu_seqlens,
                document: Vec::with_capacity(length),
            },
            documents: 0,
        }
    }

    /// Returns the place of the next piece in the row.
    fn next(&self, layout: &RowLayout) -> usize {
        self.packed.ids.len().next_multiple_of(layout.align)
    }

    /// Returns the length of the longest piece that has room.
    pub fn room(&self, layout: &RowLayout) -> usize {
        match (self.documents as usize) < layout.most_documents {
            true => layout.length.saturating_sub(self.next(layout)),
            false => 0,
        }
    }

    /// Adds a piece of a document that has room.
    pub fn push(
        &mut self,
        layout: &RowLayout,
        ids: &[u32],
        labels: Option<&[i64]>,
        piece: Range<usize>,
    ) {
        self.pad_to(layout, self.next(layout));
        let row = &mut self.packed;
        let at = row.ids.len();
        row.ids.extend_from_slice(&ids[piece.clone()]);
        if let Some(bos) = layout.bos {
            row.ids[at] = bos;
        }
        let targets = match layout.labels {
            Labels::Next => piece.start + 1..(piece.end + 1).min(ids.len()),
            Labels::Same => piece.clone(),
        };
        match labels {
            Some(labels) => row.labels.extend_from_slice(&labels[targets]),
            None => row
                .labels
                .extend(ids[targets].iter().map(|&id| i64::from(id))),
        }
        row.labels.resize(row.ids.len(), layout.ignore);
        row.positions.extend(0..piece.len() as u32);
        self.documents += 1;
        row.document.resize(row.ids.len(), self.documents);
        row.cu_seqlens.push(row.ids.len() as u32);
    }

    /// Adds padding up to a length of the row, as a segment.
    fn pad_to(&mut self, layout: &RowLayout, length: usize) {
        let row = &mut self.packed;
        if length > row.ids.len() {
            row.ids.resize(length, layout.pad);
            row.labels.resize(length, layout.ignore);
            row.positions.resize(length, 0);
            row.document.resize(length, 0);
            row.cu_seqlens.push(length as u32);
        }
    }

    /// Returns the row, padded to its length.
    pub fn finish(mut self, layout: &RowLayout) -> Packed {
        self.pad_to(layout, layout.length);
        self.packed
    }
}
