//! Rows that are open, and the choice among them.

use std::ops::Range;

use datapipes::{HeldPlace, Item, Origin};

use super::row::{Row, RowLayout};
use crate::{Document, Packed};

/// The way in which a row is chosen for a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// One row is open, and a document is cut where it ends. True if a document that fills a row by
    /// itself passes it.
    Concat(bool),
    /// The first row with room, of so many.
    First(usize),
    /// The row with the least room that suffices, of so many.
    Best(usize),
}

/// A document that is being packed.
pub(super) struct Incoming<T> {
    pub document: T,
    pub origin: Origin,
    pub key: u64,
    /// Tokens that are not in a row yet.
    pub rest: Range<usize>,
    pub place: Option<HeldPlace>,
    /// Open row that had it when a snapshot was taken.
    pub bin: Option<u64>,
}

/// A document in an open row, for snapshots: key of its origin, number of the row, and its first
/// token there.
pub(super) type InBin = (u64, u64, u64);

/// A document that ends in a row: its number, by time, key of its origin, and its first token there.
type Ended = (u64, u64, u64);

/// An open row.
struct Bin {
    /// Number of the row, by time of opening.
    number: u64,
    row: Row,
    origins: Vec<Origin>,
    /// Places of the documents that end in it.
    places: Vec<HeldPlace>,
    /// The same documents, if they are recorded.
    ended: Vec<Ended>,
}

/// A row with its origins and the places of the documents that end in it.
pub(super) type Finished = (Vec<HeldPlace>, Item<Packed>);

/// The open rows.
pub(super) struct Packing {
    layout: RowLayout,
    fit: Fit,
    /// Number of the next row that is given out.
    rows: u64,
    opened: u64,
    #[expect(
        clippy::vec_box,
        reason = "one that is closed is taken from the middle, and a row is large"
    )]
    bins: Vec<Box<Bin>>,
    /// Room in each of them.
    rooms: Vec<usize>,
    /// True if the documents in them are recorded for snapshots.
    records: bool,
    /// Number of documents that were recorded.
    recorded: u64,
}

impl Packing {
    pub fn new(layout: RowLayout, fit: Fit, rows: u64, records: bool) -> Self {
        Packing {
            layout,
            fit,
            rows,
            opened: 0,
            bins: Vec::new(),
            rooms: Vec::new(),
            records,
            recorded: 0,
        }
    }

    /// Returns the number of rows given out, and the documents in open rows, in order.
    pub fn state(&self) -> (u64, Vec<InBin>) {
        let ended = self.bins.iter().flat_map(|bin| {
            let number = bin.number;
            let of_bin = bin.ended.iter();
            of_bin.map(move |&(order, key, start)| (order, (key, number, start)))
        });
        let mut inside: Vec<(u64, InBin)> = ended.collect();
        inside.sort_unstable_by_key(|&(order, _)| order);
        let inside = inside.into_iter().map(|(_, document)| document);
        (self.rows, inside.collect())
    }

    /// Packs a document until a row is finished, which is returned; `None` if nothing is left of
    /// the document.
    pub fn advance<T: Document>(&mut self, document: &mut Incoming<T>) -> Option<Finished> {
        if let Some(number) = document.bin.take()
            && !document.rest.is_empty()
        {
            let at = self.bins.partition_point(|bin| bin.number < number);
            if self.bins.get(at).is_none_or(|bin| bin.number != number) {
                self.open(at, number);
            }
            // The document may have changed, and have no room there any more: it goes elsewhere.
            if let Some(finished) = self.push(at, document) {
                return Some(finished);
            }
        }
        while !document.rest.is_empty() {
            let left = document.rest.len();
            let alone = match self.fit {
                Fit::Concat(passes) => {
                    passes && left == self.layout.length && left == document.document.ids().len()
                }
                Fit::First(_) | Fit::Best(_) => left >= self.layout.length,
            };
            let most = match self.fit {
                Fit::Concat(_) => 1,
                Fit::First(most) | Fit::Best(most) => most,
            };
            let at = if alone {
                self.open(self.bins.len(), self.opened)
            } else if let Some(at) = self.choose(left) {
                at
            } else if self.bins.len() < most {
                self.open(self.bins.len(), self.opened)
            } else {
                let fullest = self.rooms.iter().enumerate().min_by_key(|&(_, room)| *room);
                return Some(self.close(fullest.expect("at least one is open").0));
            };
            if let Some(finished) = self.push(at, document) {
                return Some(finished);
            }
        }
        None
    }

    /// Returns the open row for a piece of so many tokens.
    fn choose(&self, len: usize) -> Option<usize> {
        match self.fit {
            Fit::Concat(_) => (!self.bins.is_empty()).then_some(0),
            Fit::First(_) => self.rooms.iter().position(|&room| room >= len),
            Fit::Best(_) => {
                // A room that is too small wraps around, and is larger than all others.
                let left = |&(_, &room): &(usize, &usize)| room.wrapping_sub(len);
                let best = self.rooms.iter().enumerate().min_by_key(left);
                best.filter(|&(_, &room)| room >= len).map(|(at, _)| at)
            }
        }
    }

    fn open(&mut self, at: usize, number: u64) -> usize {
        self.opened = self.opened.max(number + 1);
        let bin = Bin {
            number,
            row: Row::new(&self.layout),
            origins: Vec::new(),
            places: Vec::new(),
            ended: Vec::new(),
        };
        self.rooms.insert(at, bin.row.room(&self.layout));
        self.bins.insert(at, Box::new(bin));
        at
    }

    /// Adds as much of a document as there is room for to an open row, and returns the row if it is
    /// full.
    fn push<T: Document>(&mut self, at: usize, document: &mut Incoming<T>) -> Option<Finished> {
        let bin = &mut self.bins[at];
        let piece =
            document.rest.start..document.rest.end.min(document.rest.start + self.rooms[at]);
        let (ids, labels) = (document.document.ids(), document.document.labels());
        bin.row.push(&self.layout, ids, labels, piece.clone());
        bin.origins.push(document.origin.clone());
        document.rest.start = piece.end;
        if document.rest.is_empty() {
            bin.places.extend(document.place.take());
            if self.records {
                bin.ended
                    .push((self.recorded, document.key, piece.start as u64));
                self.recorded += 1;
            }
        }
        self.rooms[at] = bin.row.room(&self.layout);
        (self.rooms[at] == 0).then(|| self.close(at))
    }

    fn close(&mut self, at: usize) -> Finished {
        self.rooms.remove(at);
        let bin = self.bins.remove(at);
        let origin = Origin::joined(bin.origins, self.rows);
        self.rows += 1;
        (bin.places, Item::new(bin.row.finish(&self.layout), origin))
    }

    /// Returns the next row that is not full, at the end.
    pub fn finish(&mut self) -> Option<Finished> {
        (!self.bins.is_empty()).then(|| self.close(0))
    }

    /// Returns the number of documents that end in open rows.
    pub fn waiting(&self) -> usize {
        self.bins.iter().map(|bin| bin.places.len()).sum()
    }
}
