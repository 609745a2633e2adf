//! Bounds of documents, in an index that is read where it is needed.

use std::ops::Range;

use bytes::Bytes;
use datapipes::{Error, Result};

use super::prefetch;

/// Numbers of 4 or 8 bytes in a file, from some byte on.
#[derive(Clone)]
pub(super) struct Table {
    pub name: String,
    pub bytes: Bytes,
    pub begin: usize,
    pub size: usize,
    pub len: u64,
}

impl Table {
    fn byte(&self, at: u64) -> usize {
        self.begin + at as usize * self.size
    }

    /// Asks the processor for a number, and some after it, that are read soon.
    fn prefetch(&self, at: u64) {
        const LINES: usize = 2;
        if at < self.len {
            prefetch(self.bytes.get(self.byte(at)..).unwrap_or_default(), LINES);
        }
    }

    /// Returns a number below `len`, which is not negative.
    #[inline]
    pub fn get(&self, at: u64) -> Result<u64> {
        let byte = self.byte(at);
        let bytes = self.bytes.get(byte..byte + self.size).unwrap_or_default();
        let number = match bytes.len() {
            4 => i64::from(i32::from_le_bytes(bytes.try_into().expect("four bytes"))),
            8 => i64::from_le_bytes(bytes.try_into().expect("eight bytes")),
            _ => return Err(self.wrong(at, "there is nothing there".to_owned())),
        };
        u64::try_from(number).map_err(|_| self.wrong(at, format!("a negative number, {number}")))
    }

    /// Makes the error of a number.
    pub fn wrong(&self, at: u64, what: String) -> Error {
        Error::corrupt(format!("{}: byte {}: {what}", self.name, self.byte(at)))
    }
}

/// Bounds of documents.
#[derive(Clone)]
pub(super) enum Bounds {
    /// One document with this number of tokens.
    Whole(u64),
    /// The end of each document in tokens.
    Ends(Table),
    /// Megatron's: the number of tokens of each sequence, its first byte, and the first sequence of
    /// each document; the last of these is the number of sequences.
    Sequences {
        lengths: Table,
        pointers: Table,
        documents: Table,
    },
}

impl Bounds {
    pub fn ends(name: String, bytes: Bytes) -> Result<Bounds> {
        if !bytes.len().is_multiple_of(8) {
            return Err(Error::corrupt(format!(
                "{name}: {} bytes, no multiple of the 8 of an end",
                bytes.len()
            )));
        }
        let len = bytes.len() as u64 / 8;
        Ok(Bounds::Ends(Table {
            name,
            bytes,
            begin: 0,
            size: 8,
            len,
        }))
    }

    /// Returns the name of the index.
    pub fn name(&self) -> &str {
        match self {
            Bounds::Whole(_) => "its length",
            Bounds::Ends(table) | Bounds::Sequences { lengths: table, .. } => &table.name,
        }
    }

    /// Returns the number of documents.
    pub fn count(&self) -> u64 {
        match self {
            Bounds::Whole(_) => 1,
            Bounds::Ends(ends) => ends.len,
            Bounds::Sequences { documents, .. } => documents.len.saturating_sub(1),
        }
    }

    /// Returns the number of sequences: of documents, unless a document has several.
    pub fn piece_count(&self) -> u64 {
        match self {
            Bounds::Sequences { lengths, .. } => lengths.len,
            _ => self.count(),
        }
    }

    /// Returns the tokens of a sequence, or of a document where these have no sequences.
    pub fn piece(&self, number: u64, size: usize) -> Result<Range<u64>> {
        match self {
            Bounds::Sequences { .. } => self.sequence(number, size),
            _ => self.place(number, size),
        }
    }

    /// Returns the place after the last document.
    pub fn end(&self, size: usize) -> Result<u64> {
        match self {
            Bounds::Whole(len) => Ok(*len),
            Bounds::Ends(ends) => ends.len.checked_sub(1).map_or(Ok(0), |last| ends.get(last)),
            Bounds::Sequences { lengths, .. } => {
                let last = lengths.len.checked_sub(1);
                last.map_or(Ok(0), |last| Ok(self.sequence(last, size)?.end))
            }
        }
    }

    /// Returns the tokens of a document, of which there may be several pieces.
    pub fn document(&self, number: u64, size: usize) -> Result<Vec<Range<u64>>> {
        match self {
            Bounds::Whole(_) | Bounds::Ends(_) => Ok(vec![self.place(number, size)?]),
            Bounds::Sequences { .. } => {
                let sequences = self.sequences(number)?;
                sequences
                    .map(|sequence| self.sequence(sequence, size))
                    .collect()
            }
        }
    }

    /// Returns the sequences of a document.
    fn sequences(&self, number: u64) -> Result<Range<u64>> {
        let Bounds::Sequences {
            lengths, documents, ..
        } = self
        else {
            unreachable!("only Megatron's documents have sequences")
        };
        let (begin, end) = (documents.get(number)?, documents.get(number + 1)?);
        if begin > end || end > lengths.len {
            let what = format!(
                "document {number} has sequences {begin} to {end} of {}",
                lengths.len
            );
            return Err(documents.wrong(number + 1, what));
        }
        Ok(begin..end)
    }

    /// Returns the tokens of a sequence.
    fn sequence(&self, number: u64, size: usize) -> Result<Range<u64>> {
        let Bounds::Sequences {
            lengths, pointers, ..
        } = self
        else {
            unreachable!("only Megatron's documents have sequences")
        };
        let (len, byte) = (lengths.get(number)?, pointers.get(number)?);
        if !byte.is_multiple_of(size as u64) {
            let what =
                format!("sequence {number} begins at byte {byte}, within a token of {size} bytes");
            return Err(pointers.wrong(number, what));
        }
        let begin = byte / size as u64;
        Ok(begin..begin.saturating_add(len))
    }

    /// Returns the tokens of a document that is stored in a row with the others.
    pub fn place(&self, number: u64, size: usize) -> Result<Range<u64>> {
        let begin = self.start(number, size)?;
        let (end, table, entry) = match self {
            Bounds::Whole(len) => return Ok(0..*len),
            Bounds::Ends(ends) => (ends.get(number)?, ends, number),
            Bounds::Sequences { pointers, .. } => {
                let sequences = self.sequences(number)?;
                let end = match sequences.clone().next_back() {
                    Some(last) => self.sequence(last, size)?.end,
                    None => begin,
                };
                (end, pointers, sequences.start)
            }
        };
        if end < begin {
            let what = format!("document {number} ends at token {end}, and begins at {begin}");
            return Err(table.wrong(entry, what));
        }
        Ok(begin..end)
    }

    /// Returns where a document begins that is stored in a row with the others.
    fn start(&self, number: u64, size: usize) -> Result<u64> {
        match self {
            Bounds::Whole(_) => Ok(0),
            Bounds::Ends(ends) => number
                .checked_sub(1)
                .map_or(Ok(0), |before| ends.get(before)),
            Bounds::Sequences {
                pointers,
                documents,
                ..
            } => {
                let first = documents.get(number)?;
                match first < pointers.len {
                    true => Ok(pointers.get(first)? / size as u64),
                    false => self.end(size),
                }
            }
        }
    }

    /// Returns the last document that begins at a token or before it, if documents are in a row.
    pub fn find(&self, token: u64, size: usize) -> Result<u64> {
        Ok(self.find_all([token], size)?[0])
    }

    /// Finds the documents of some tokens. The searches take turns, so that the processor waits for
    /// the entries of all of them at once.
    pub fn find_all(&self, tokens: impl IntoIterator<Item = u64>, size: usize) -> Result<Vec<u64>> {
        let count = self.count();
        let mean = match count {
            0 => 1,
            _ => (self.end(size)? / count).max(1),
        };
        let search = |token| Search::new(token, count, mean);
        let mut all: Vec<Search> = tokens.into_iter().map(search).collect();
        let mut open = true;
        while open {
            open = false;
            let places = all.iter().filter_map(Search::middle);
            places.for_each(|middle| self.prefetch(middle));
            for search in &mut all {
                if let Some(middle) = search.middle() {
                    search.compare(middle, self.start(middle, size)?);
                    open = true;
                }
            }
        }
        Ok(all.into_iter().map(|search| search.low).collect())
    }

    /// Asks the processor for the places of a document and some after it, which are read soon. Most
    /// documents have one sequence, whose number is theirs.
    fn prefetch(&self, number: u64) {
        match self {
            Bounds::Whole(_) => {}
            Bounds::Ends(ends) => ends.prefetch(number),
            Bounds::Sequences {
                lengths,
                pointers,
                documents,
            } => {
                let tables = [lengths, pointers, documents];
                tables.iter().for_each(|table| table.prefetch(number));
            }
        }
    }

    /// Checks that documents begin with the tokens and end with them.
    pub fn check_in_a_row(&self, tokens: u64, size: usize) -> Result<()> {
        let count = self.count();
        let begin = if count == 0 {
            0
        } else {
            self.place(0, size)?.start
        };
        let end = if count == 0 {
            0
        } else {
            self.place(count - 1, size)?.end
        };
        if (begin, end) != (0, tokens) {
            let message = format!(
                "{}: the first document begins at token {begin}, and the last ends at {end} of {tokens}; windows are cut \
                 from documents in a row",
                self.name()
            );
            return Err(Error::unsupported(message));
        }
        Ok(())
    }
}

/// A search for the document of a token, which is `low` or after it, and before `high`.
struct Search {
    token: u64,
    low: u64,
    high: u64,
    /// Tokens of a document, on average.
    mean: u64,
    /// Number of the document by the mean, from the nearest start that is known.
    guess: u64,
    /// Number of guesses that are left. Where lengths differ too much for them, halving ends the
    /// search.
    guesses: u32,
}

impl Search {
    fn new(token: u64, count: u64, mean: u64) -> Search {
        Search {
            token,
            low: 0,
            high: count,
            mean,
            guess: token / mean,
            guesses: 8,
        }
    }

    /// Returns the document whose start is to be compared; `None` at the end.
    fn middle(&self) -> Option<u64> {
        let Search { low, high, .. } = *self;
        (high.saturating_sub(low) > 1).then(|| match self.guesses {
            0 => low + (high - low) / 2,
            _ => self.guess.clamp(low + 1, high - 1),
        })
    }

    fn compare(&mut self, middle: u64, start: u64) {
        self.guesses = self.guesses.saturating_sub(1);
        match self.token.checked_sub(start) {
            Some(after) => {
                self.low = middle;
                self.guess = middle.saturating_add(after / self.mean);
            }
            None => {
                self.high = middle;
                self.guess = (middle - 1).saturating_sub((start - self.token) / self.mean);
            }
        }
    }
}
