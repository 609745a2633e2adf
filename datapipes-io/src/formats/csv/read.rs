//! Reads rows, and detects errors in them.

use ::csv::{Reader, ReaderBuilder, StringRecord};
use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};

use super::input::{BOM, Input, SENTINEL, SLACK, endless};
use super::{Options, ReadRow};
use crate::formats::FileEntry;
use crate::formats::compression::unpack;
use crate::formats::framing::RecordPosition;
use crate::formats::json_lines::shortened;

/// An iterator over the rows of a file.
pub(super) struct Rows<T> {
    reader: Reader<Input>,
    options: Options,
    read: ReadRow<T>,
    pub(super) head: Head,
    record: StringRecord,
    done: bool,
}

/// Next entry of a file.
enum Next {
    /// A record that was read.
    Record,
    /// A record that cannot be read; others may follow.
    Bad(Error),
    End,
}

/// Hints about earlier rows that are needed to read later rows of a file.
#[derive(Clone, Default)]
pub(super) struct Head {
    pub(super) names: Option<StringRecord>,
    /// Number of fields of a row, once one was read.
    pub(super) fields: Option<usize>,
}

/// Returns the parser of a dialect.
pub(super) fn parser(options: &Options) -> csv_core::Reader {
    let mut builder = csv_core::ReaderBuilder::new();
    builder
        .delimiter(options.delimiter)
        .comment(options.comment);
    match options.quote {
        Some(quote) => builder.quote(quote),
        None => builder.quoting(false),
    };
    builder.build()
}

impl<T> Rows<T> {
    /// Opens a file.
    pub(super) fn open(text: Bytes, options: Options, read: ReadRow<T>) -> Result<Self> {
        let mut rows = Rows::after(
            Head::default(),
            text,
            RecordPosition::default(),
            options,
            read,
        );
        if options.header {
            rows.head.names = Some(rows.header()?);
        }
        Ok(rows)
    }

    /// Opens a part of a file that begins at this position, after the header if there is one.
    pub(super) fn after(
        head: Head,
        text: Bytes,
        at: RecordPosition,
        options: Options,
        read: ReadRow<T>,
    ) -> Self {
        // The parser would drop a mark at the beginning of a text; a blank line before the mark
        // preserves it.
        let (text, at) = match at.offset > 0 && text.starts_with(BOM) {
            true => (
                [b"\r", &text[..]].concat().into(),
                RecordPosition {
                    offset: at.offset - 1,
                    ..at
                },
            ),
            false => (text, at),
        };
        let mut builder = ReaderBuilder::new();
        builder
            .delimiter(options.delimiter)
            .comment(options.comment)
            .has_headers(false)
            .flexible(true);
        match options.quote {
            Some(quote) => builder.quote(quote),
            None => builder.quoting(false),
        };
        let input = Input::new(text, at, options.max_row);
        let reader = builder.buffer_capacity(16 << 10).from_reader(input);
        Rows {
            reader,
            options,
            read,
            head,
            record: StringRecord::new(),
            done: false,
        }
    }

    fn header(&mut self) -> Result<StringRecord> {
        match self.record()? {
            Next::Record => {}
            Next::Bad(error) => return Err(error),
            Next::End => {
                return Err(Error::truncated("an empty file where a header is due"));
            }
        }
        let names = self.record.clone();
        self.head.fields = Some(names.len());
        let mut sorted: Vec<&str> = names.iter().collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                let what = format!("two columns are called '{}'", shortened(pair[0]));
                Err(Error::corrupt(what))
            }
            None => Ok(names),
        }
    }

    /// Reads the next record. No rows follow an error.
    fn record(&mut self) -> Result<Next> {
        let begin = self.reader.position().byte();
        self.reader.get_mut().begin(begin);
        let read = self.reader.read_record(&mut self.record);
        let end = self.reader.position().byte();
        // One byte is the line end before the sentinel.
        let input = self.reader.get_ref();
        if input.ended && end > input.len() + 1 {
            let closed = read.is_ok() && self.record.len() == 1 && &self.record[0] == SENTINEL;
            return match closed {
                true => Ok(Next::End),
                false => Err(self.at(ErrorKind::Truncated, "a quote that is never closed")),
            };
        }
        match read.map_err(::csv::Error::into_kind) {
            Ok(true) if end - begin > self.options.max_row as u64 + SLACK => {
                Err(endless(self.options.max_row))
            }
            Ok(true) if end - begin > self.options.max_row as u64 => Ok(self.check_len(end)),
            Ok(true) => Ok(Next::Record),
            Ok(false) => Ok(Next::End),
            Err(::csv::ErrorKind::Utf8 { err, .. }) => {
                Ok(Next::Bad(self.not_utf8(err.field() + 1)))
            }
            Err(::csv::ErrorKind::Io(error)) => Err(unpack(error, ErrorKind::Io, "the text")),
            Err(other) => Err(Error::corrupt(format!("{other:?}"))),
        }
    }

    /// Checks the length of the row without the blank lines and comments before it. A row that is
    /// longer than the read buffer is refused earlier.
    fn check_len(&mut self, end: u64) -> Next {
        let len = end - self.reader.get_mut().place(self.options.comment).2;
        let most = self.options.max_row as u64;
        if len <= most {
            return Next::Record;
        }
        Next::Bad(self.at(
            ErrorKind::Limit,
            &format!("a row of {len} bytes, and {most} are allowed (`max_row`)"),
        ))
    }

    fn not_utf8(&mut self, field: usize) -> Error {
        let (line, begin, _, text) = self.reader.get_mut().place(self.options.comment);
        // The position is within the record, whatever follows it.
        let valid = std::str::from_utf8(text)
            .err()
            .map_or(0, |error| error.valid_up_to());
        let at = begin + valid as u64;
        let what = format!("line {line}, field {field}: what is at byte {at} is not UTF-8");
        Error::corrupt(what)
    }

    /// Converts the current record to a row.
    fn row(&mut self) -> Result<T> {
        let (due, there) = (
            *self.head.fields.get_or_insert(self.record.len()),
            self.record.len(),
        );
        if there != due {
            return Err(self.at(
                ErrorKind::Corrupt,
                &format!("{there} fields, in a file whose rows have {due}"),
            ));
        }
        let row = (self.read)(&self.record, self.head.names.as_ref());
        row.map_err(|error| match error.kind() {
            ::csv::ErrorKind::Deserialize { err, .. } => {
                let field = err
                    .field()
                    .map_or(String::new(), |field| format!("field {}: ", field + 1));
                self.at(
                    ErrorKind::Corrupt,
                    &format!("{field}{}", shortened(&err.kind().to_string())),
                )
            }
            _ => self.at(ErrorKind::Corrupt, &shortened(&error.to_string())),
        })
    }

    /// Returns an error of the current row.
    fn at(&mut self, kind: ErrorKind, what: &str) -> Error {
        let (line, byte, ..) = self.reader.get_mut().place(self.options.comment);
        Error::new(kind, format!("line {line}, byte {byte}: {what}"))
    }
}

impl<T> Iterator for Rows<T> {
    type Item = FileEntry<T>;

    fn next(&mut self) -> Option<FileEntry<T>> {
        if self.done {
            return None;
        }
        let next = self.record();
        self.done = matches!(next, Ok(Next::End) | Err(_));
        match next {
            Ok(Next::Record) => Some(FileEntry::from_result(self.row())),
            Ok(Next::Bad(error)) => Some(FileEntry::Bad(None, error)),
            Ok(Next::End) => None,
            Err(error) => Some(FileEntry::Broken(error)),
        }
    }
}
