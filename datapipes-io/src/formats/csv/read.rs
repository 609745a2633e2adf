//! Reads rows, and finds what is wrong with them.

use ::csv::{Reader, ReaderBuilder, StringRecord};
use datapipes::{Error, ErrorKind, Result};

use super::input::{Input, SENTINEL};
use super::{Options, ReadRow};
use crate::formats::Entry;
use crate::formats::compression::{Opened, unpack};
use crate::formats::json_lines::shortened;

/// The rows of a file, one by one.
pub(super) struct Rows<T> {
    reader: Reader<Input>,
    options: Options,
    read: ReadRow<T>,
    names: Option<StringRecord>,
    /// How many fields a row has, once one was read.
    fields: Option<usize>,
    record: StringRecord,
    done: bool,
}

/// What comes next in a file.
enum Next {
    /// A record, which was read.
    Record,
    /// One that cannot be, and others behind it.
    Bad(Error),
    End,
}

impl<T> Rows<T> {
    pub(super) fn open(text: Opened, options: Options, read: ReadRow<T>) -> Result<Self> {
        let mut builder = ReaderBuilder::new();
        builder.delimiter(options.delimiter).comment(options.comment).has_headers(false).flexible(true);
        match options.quote {
            Some(quote) => builder.quote(quote),
            None => builder.quoting(false),
        };
        let reader = builder.buffer_capacity(16 << 10).from_reader(Input::new(text, options.max_row));
        let (record, done) = (StringRecord::new(), false);
        let mut rows = Rows { reader, options, read, names: None, fields: None, record, done };
        if options.header {
            rows.names = Some(rows.header()?);
        }
        Ok(rows)
    }

    fn header(&mut self) -> Result<StringRecord> {
        match self.record()? {
            Next::Record => {}
            Next::Bad(error) => return Err(error),
            Next::End => {
                return Err(Error::new(ErrorKind::Truncated, "an empty file where a header is due"));
            }
        }
        let names = self.record.clone();
        self.fields = Some(names.len());
        let mut sorted: Vec<&str> = names.iter().collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                let what = format!("two columns are called '{}'", shortened(pair[0]));
                Err(Error::new(ErrorKind::Corrupt, what))
            }
            None => Ok(names),
        }
    }

    /// Reads the next record. An error is one behind which there is nothing.
    fn record(&mut self) -> Result<Next> {
        let begin = self.reader.position().byte();
        self.reader.get_mut().begin(begin);
        let read = self.reader.read_record(&mut self.record);
        let end = self.reader.position().byte();
        // One byte is the line end before the sentinel.
        if self.reader.get_ref().len.is_some_and(|len| end > len + 1) {
            let closed = read.is_ok() && self.record.len() == 1 && &self.record[0] == SENTINEL;
            return match closed {
                true => Ok(Next::End),
                false => Err(self.at(ErrorKind::Truncated, "a quote that is never closed")),
            };
        }
        match read.map_err(::csv::Error::into_kind) {
            Ok(true) if end - begin > self.options.max_row as u64 => Ok(self.check_len(end)),
            Ok(true) => Ok(Next::Record),
            Ok(false) => Ok(Next::End),
            Err(::csv::ErrorKind::Utf8 { err, .. }) => Ok(Next::Bad(self.not_utf8(err.field() + 1))),
            Err(::csv::ErrorKind::Io(error)) => Err(unpack(error, ErrorKind::Io, "the text")),
            Err(other) => Err(Error::new(ErrorKind::Corrupt, format!("{other:?}"))),
        }
    }

    /// Whether the row that was read is short enough without the blank lines and comments before it. One that is longer than
    /// what is read at once is refused before.
    fn check_len(&mut self, end: u64) -> Next {
        let len = end - self.reader.get_mut().place(self.options.comment).1;
        let most = self.options.max_row as u64;
        if len <= most {
            return Next::Record;
        }
        Next::Bad(self.at(ErrorKind::Limit, &format!("a row of {len} bytes, and {most} are allowed")))
    }

    fn not_utf8(&mut self, field: usize) -> Error {
        let (line, begin, text) = self.reader.get_mut().place(self.options.comment);
        // It is within the record, whatever follows that.
        let valid = std::str::from_utf8(text).err().map_or(0, |error| error.valid_up_to());
        let at = begin + valid as u64;
        let what = format!("line {line}, field {field}: what is at byte {at} is not UTF-8");
        Error::new(ErrorKind::Corrupt, what)
    }

    /// The row of the record that was read.
    fn row(&mut self) -> Result<T> {
        let (due, there) = (*self.fields.get_or_insert(self.record.len()), self.record.len());
        if there != due {
            return Err(self.at(ErrorKind::Corrupt, &format!("{there} fields, and {due} are due")));
        }
        let row = (self.read)(&self.record, self.names.as_ref());
        row.map_err(|error| match error.kind() {
            ::csv::ErrorKind::Deserialize { err, .. } => {
                let field = err.field().map_or(String::new(), |field| format!("field {}: ", field + 1));
                self.at(ErrorKind::Corrupt, &format!("{field}{}", shortened(&err.kind().to_string())))
            }
            _ => self.at(ErrorKind::Corrupt, &shortened(&error.to_string())),
        })
    }

    /// An error of the row that was read.
    fn at(&mut self, kind: ErrorKind, what: &str) -> Error {
        let (line, byte, _) = self.reader.get_mut().place(self.options.comment);
        Error::new(kind, format!("line {line}, byte {byte}: {what}"))
    }
}

impl<T> Iterator for Rows<T> {
    type Item = Entry<T>;

    fn next(&mut self) -> Option<Entry<T>> {
        if self.done {
            return None;
        }
        let next = self.record();
        self.done = matches!(next, Ok(Next::End) | Err(_));
        match next {
            Ok(Next::Record) => Some(Entry::from_result(self.row())),
            Ok(Next::Bad(error)) => Some(Entry::Bad(None, error)),
            Ok(Next::End) => None,
            Err(error) => Some(Entry::Broken(error)),
        }
    }
}
