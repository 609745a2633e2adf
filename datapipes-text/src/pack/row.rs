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

/// The layout of rows.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub length: usize,
    pub align: usize,
    pub most_documents: usize,
    pub bos: Option<u32>,
    pub pad: u32,
    pub ignore: i64,
    pub labels: Labels,
}

impl Layout {
    pub fn new(length: usize) -> Self {
        Layout {
            length,
            align: 1,
            most_documents: usize::MAX,
            bos: None,
            pad: 0,
            ignore: -100,
            labels: Labels::Next,
        }
    }
}

/// A row that is being filled.
#[derive(Debug)]
pub(crate) struct Row {
    packed: Packed,
    documents: u32,
}

impl Row {
    pub fn new(layout: &Layout) -> Self {
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

    /// Returns the place of the next piece.
    fn next(&self, layout: &Layout) -> usize {
        self.packed.ids.len().next_multiple_of(layout.align)
    }

    /// Returns the length of the longest piece that has room.
    pub fn room(&self, layout: &Layout) -> usize {
        match (self.documents as usize) < layout.most_documents {
            true => layout.length.saturating_sub(self.next(layout)),
            false => 0,
        }
    }

    /// Adds a piece of a document that has room.
    pub fn push(
        &mut self,
        layout: &Layout,
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

    /// Adds padding, as a segment.
    fn pad_to(&mut self, layout: &Layout, length: usize) {
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
    pub fn finish(mut self, layout: &Layout) -> Packed {
        self.pad_to(layout, layout.length);
        self.packed
    }
}
