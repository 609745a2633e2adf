//! Rows of CSV and TSV files.

mod framing;
mod input;
mod read;

use ::csv::StringRecord;
use datapipes::opaque_debug;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::compression::Expansion;
use super::{Format, RecordSplitter, Row};

/// Reads CSV and TSV files (RFC 4180). An item is a row: by the names of the columns, as a list of
/// texts, or as any type that implements serde's `Deserialize`.
///
/// - [`Csv::rows`] yields a [`Row`] of texts; [`Csv::new`] any type: a struct, whose fields are
///   found by the names in the first row, `Vec<String>`, a tuple. Numbers and `bool` are parsed as
///   the type requires, and an empty field is `None` of an `Option`; see the crate
///   [`csv`](https://docs.rs/csv). For types that accept any value, such as [`serde_json::Value`],
///   the type of a value is guessed.
/// - The first row has the names, unless [`no_header`](Csv::no_header) is set. Rows end with LF,
///   CRLF or CR, and quoted fields may contain any of these. A quote in quotes is written twice.
///   Blank lines are skipped. Nothing is trimmed.
/// - Text is UTF-8. A byte order mark at the beginning of the file is dropped.
/// - A compressed file is recognized by its first bytes and read as a stream, as for
///   [`Lines`](super::Lines).
/// - Every value is copied from the file.
///
/// # Errors
/// A row with another number of fields than the first is `Corrupt`, as is a row that is not UTF-8
/// or does not match the type. These errors contain line and position, and reading continues with
/// the next row. A row longer than [`max_row`](Csv::max_row) is `Limit`, and a quote that is never
/// closed is `Truncated`; no rows follow them. Two columns of one name are `Corrupt`, and a file
/// without the required header is `Truncated`.
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
#[must_use]
pub struct Csv<T = Row> {
    options: Options,
    read: ReadRow<T>,
}

/// Function that makes a row of a record and the names of the columns, if there are any.
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
    /// Reads rows by the names of their columns, with all fields as texts. Without a header the
    /// names are `0`, `1` and so on.
    pub fn rows() -> Self {
        Csv::by(texts)
    }
}

impl<T: DeserializeOwned> Csv<T> {
    /// Reads rows of a type that implements `Deserialize`, separated by commas, with a header.
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

    /// Sets the byte that separates fields, instead of a comma.
    pub fn delimiter(mut self, byte: u8) -> Self {
        self.options.delimiter = byte;
        self
    }

    /// Separates fields by tabs. Quotes have the same meaning as in CSV; see
    /// [`no_quotes`](Csv::no_quotes).
    pub fn tsv(self) -> Self {
        self.delimiter(b'\t')
    }

    datapipes::setters! {
        /// Treats the first row as a row like the others.
        no_header() => options.header = false;

        /// Sets the byte that quotes fields, instead of `"`.
        quote(byte: u8) => options.quote = Some(byte);

        /// Treats quotes as ordinary characters, so no field contains a line end or a delimiter.
        no_quotes() => options.quote = None;

        /// Skips lines that begin with this byte. By default there are no comments.
        comment(byte: u8) => options.comment = Some(byte);

        /// Ends a file with an error at a row of more than `bytes`, which may be a quote that is never
        /// closed. Defaults to 64 MiB.
        max_row(bytes: usize) => options.max_row = bytes;

        /// Ends a compressed file with an error once it decompressed to more than `bytes`, or to more
        /// than `ratio` times its own size and 1 MiB. Defaults to any number of bytes, which are never
        /// in memory together, and 1100 times.
        max_expansion(bytes: u64, ratio: u64) => options.expansion.limit(bytes, ratio);
    }
}

datapipes::clone_fields!(Csv<T> { options, read });

opaque_debug!(Csv<T> { options });

impl<T: Send + 'static> Format for Csv<T> {
    type Item = T;

    fn splitter(&self) -> Option<RecordSplitter<T>> {
        let framing = framing::RowFraming::new(self.options, self.read);
        Some(RecordSplitter::new(framing).expansion(self.options.expansion))
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
