//! Rows of CSV and TSV files.

mod framing;
mod input;
mod read;

use std::fmt;

use ::csv::StringRecord;
use datapipes::{Context, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::compression::Expansion;
use super::{Entries, Format, Row, Splitter, value};
use crate::File;

/// CSV and TSV files (RFC 4180), a row an item: by the names of the columns, as a list of texts, or
/// as any type of serde's.
///
/// - [`Csv::rows`] gives a [`Row`] of texts; [`Csv::new`] any type: a struct, whose fields are
///   found by the names in the first row, `Vec<String>`, a tuple. Numbers and `bool` are read as
///   the type says, and an empty field is `None` of an `Option`; see the crate
///   [`csv`](https://docs.rs/csv). Types that take anything, such as [`serde_json::Value`], guess.
/// - The first row has the names, unless [`no_header`](Csv::no_header) says that it has not. Rows
///   end with LF, CRLF or CR, and fields in quotes may have any of them within. A quote in quotes
///   is written twice. Blank lines are skipped. Nothing is trimmed.
/// - Text is UTF-8. A byte order mark at the beginning of the file is dropped.
/// - A compressed file is read as a stream, by its first bytes, as [`Lines`](super::Lines) are.
/// - Every value is copied out of the file.
///
/// # Errors
/// A row with another number of fields than the first is `Corrupt`, as is one that is not UTF-8 or
/// not what the type takes; they tell line and place, and the next rows follow. Nothing follows a
/// row longer than [`max_row`](Csv::max_row), `Limit`, and a quote that is never closed,
/// `Truncated`. Two columns of one name are `Corrupt`, and a file without a header, where one is
/// due, is `Truncated`.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::Csv;
/// use datapipes_io::{File, prelude::*};
/// use serde::Deserialize;
///
/// #[derive(Debug, PartialEq, Deserialize)]
/// struct Label {
///     file: String,
///     class: u32,
/// }
///
/// let files = vec![File::new("a.csv", "class,file\n7,\"a, b.jpg\"\n")];
/// let labels = Graph::from_vec(files.clone()).read_as(Csv::<Label>::new()).collect()?;
/// assert_eq!(labels, [Label { file: "a, b.jpg".into(), class: 7 }]);
///
/// let rows = Graph::from_vec(files.clone()).read_as(Csv::rows()).collect()?;
/// assert_eq!(rows[0]["class"], "7");
///
/// let lists = Graph::from_vec(files).read_as(Csv::<Vec<String>>::new().no_header()).collect()?;
/// assert_eq!(lists[0], ["class", "file"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub struct Csv<T = Row> {
    options: Options,
    read: ReadRow<T>,
}

/// Makes a row of a record and the names of the columns, if there are any.
type ReadRow<T> = fn(&StringRecord, Option<&StringRecord>) -> ::csv::Result<T>;

#[derive(Clone, Copy, Debug)]
struct Options {
    delimiter: u8,
    quote: Option<u8>,
    comment: Option<u8>,
    header: bool,
    max_row: usize,
    expansion: Expansion,
}

impl Csv {
    /// Rows by the names of their columns, all fields texts. Without a header the names are `0`,
    /// `1` and so on.
    pub fn rows() -> Self {
        Csv::by(texts)
    }
}

impl<T: DeserializeOwned> Csv<T> {
    /// Rows of a type of serde's, separated by commas, with a header.
    pub fn new() -> Self {
        Csv::by(|record, names| record.deserialize(names))
    }
}

impl<T: DeserializeOwned> Default for Csv<T> {
    fn default() -> Self {
        Csv::new()
    }
}

impl<T> Csv<T> {
    fn by(read: ReadRow<T>) -> Self {
        let options = Options {
            delimiter: b',',
            quote: Some(b'"'),
            comment: None,
            header: true,
            max_row: 64 << 20,
            expansion: Expansion::streamed(),
        };
        Csv { options, read }
    }

    /// Fields are separated by this byte instead of a comma.
    pub fn delimiter(mut self, byte: u8) -> Self {
        self.options.delimiter = byte;
        self
    }

    /// Fields are separated by tabs. Quotes count as they do in CSV; see
    /// [`no_quotes`](Csv::no_quotes).
    pub fn tsv(self) -> Self {
        self.delimiter(b'\t')
    }

    /// The first row is a row like the others.
    pub fn no_header(mut self) -> Self {
        self.options.header = false;
        self
    }

    /// Fields are quoted by this byte instead of `"`.
    pub fn quote(mut self, byte: u8) -> Self {
        self.options.quote = Some(byte);
        self
    }

    /// Quotes are letters like any other, so no field has a line end or a delimiter in it.
    pub fn no_quotes(mut self) -> Self {
        self.options.quote = None;
        self
    }

    /// Lines that begin with this byte are skipped. By default there are none such.
    pub fn comment(mut self, byte: u8) -> Self {
        self.options.comment = Some(byte);
        self
    }

    /// Ends a file with an error at a row of more than `bytes`, as one has whose quote is never
    /// closed. By default 64 MiB.
    pub fn max_row(mut self, bytes: usize) -> Self {
        self.options.max_row = bytes;
        self
    }

    /// Ends a compressed file with an error once it inflated to more than `bytes`, or to more than
    /// `ratio` times its own size and 1 MiB. By default any number of bytes, which are never in
    /// memory together, and 1100 times.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.options.expansion = Expansion {
            bytes,
            ratio,
            ..self.options.expansion
        };
        self
    }
}

impl<T> Clone for Csv<T> {
    fn clone(&self) -> Self {
        Csv {
            options: self.options,
            read: self.read,
        }
    }
}

impl<T> fmt::Debug for Csv<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csv")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Format for Csv<T> {
    type Item = T;

    fn open(&self, file: File, cx: &Context) -> Result<Entries<T>> {
        self.splitter().expect("there is one").open(file, cx)
    }
    fn splitter(&self) -> Option<Splitter<T>> {
        let framing = framing::RowFraming::new(self.options, self.read);
        Some(Splitter::new(framing).expansion(self.options.expansion))
    }
    fn weigh(&self, item: &T) -> Option<usize> {
        value::weigh(item)
    }

    fn settings(&self) -> String {
        let Options {
            delimiter, header, ..
        } = self.options;
        let header = if header { "" } else { ", no header" };
        match delimiter {
            b',' => header.trim_start_matches(", ").to_owned(),
            byte => format!("delimiter '{}'{header}", byte.escape_ascii()),
        }
    }

    fn problem(&self) -> Option<String> {
        let Options {
            delimiter,
            quote,
            comment,
            ..
        } = self.options;
        let bytes = [Some(delimiter), quote, comment];
        let given = || bytes.iter().flatten();
        if let Some(byte) = given().find(|byte| matches!(**byte, 0 | b'\r' | b'\n' | 0x80..)) {
            return Some(format!(
                "'{}' cannot be delimiter, quote or comment",
                byte.escape_ascii()
            ));
        }
        let same = given().any(|byte| given().filter(|other| *other == byte).count() > 1);
        same.then(|| "delimiter, quote and comment must differ".to_owned())
    }
}

fn texts(record: &StringRecord, names: Option<&StringRecord>) -> ::csv::Result<Row> {
    let text = |field: &str| Value::String(field.to_owned());
    Ok(match names {
        Some(names) => names
            .iter()
            .zip(record)
            .map(|(name, field)| (name.to_owned(), text(field)))
            .collect(),
        None => record
            .iter()
            .enumerate()
            .map(|(place, field)| (place.to_string(), text(field)))
            .collect(),
    })
}

#[cfg(test)]
mod tests;
