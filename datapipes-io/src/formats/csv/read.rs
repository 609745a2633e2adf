//! Reads rows, and finds what is wrong with them.

use ::csv::{ByteRecord, Reader, ReaderBuilder, StringRecord};
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
    record: ByteRecord,
    done: bool,
}

impl<T> Rows<T> {
    pub(super) fn open(text: Opened, options: Options, read: ReadRow<T>) -> Result<Self> {
        let mut builder = ReaderBuilder::new();
        builder.delimiter(options.delimiter).comment(options.comment).has_headers(false).flexible(true);
        match options.quote {
            Some(quote) => builder.quote(quote),
            None => builder.quoting(false),
        };
        let reader = builder.buffer_capacity(64 << 10).from_reader(Input::new(text, options.max_row));
        let (record, done) = (ByteRecord::new(), false);
        let mut rows = Rows { reader, options, read, names: None, fields: None, record, done };
        if options.header {
            rows.names = Some(rows.header()?);
        }
        Ok(rows)
    }

    fn header(&mut self) -> Result<StringRecord> {
        if !self.record()? {
            return Err(Error::new(ErrorKind::Truncated, "an empty file where a header is due"));
        }
        let names = self.text()?;
        self.fields = Some(names.len());
        let mut sorted: Vec<&str> = names.iter().collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::new(
                ErrorKind::Corrupt,
                format!("two columns are called '{}'", shortened(pair[0])),
            )),
            None => Ok(names),
        }
    }

    /// Reads the next record; `false` behind the last.
    fn record(&mut self) -> Result<bool> {
        let begin = self.reader.position().byte();
        self.reader.get_mut().begin(begin);
        let read =
            self.reader.read_byte_record(&mut self.record).map_err(|error| match error.into_kind() {
                ::csv::ErrorKind::Io(error) => unpack(error, ErrorKind::Io, "the text"),
                other => Error::new(ErrorKind::Corrupt, format!("{other:?}")),
            })?;
        // One byte is the line end before the sentinel.
        let sentinel = self.reader.get_ref().len.is_some_and(|len| self.reader.position().byte() > len + 1);
        if sentinel && (self.record.len() != 1 || &self.record[0] != SENTINEL.as_bytes()) {
            return Err(self.at(ErrorKind::Truncated, "a quote that is never closed"));
        }
        Ok(read && !sentinel)
    }

    /// The record as text.
    fn text(&mut self) -> Result<StringRecord> {
        StringRecord::from_byte_record(std::mem::take(&mut self.record)).map_err(|error| {
            let field = error.utf8_error().field() + 1;
            let (line, begin, text) = self.reader.get_ref().place(self.options.comment);
            // It is within the record, whatever follows that.
            let at = begin + valid_up_to(text) as u64;
            self.record = error.into_byte_record();
            Error::new(
                ErrorKind::Corrupt,
                format!("line {line}, field {field}: what is at byte {at} is not UTF-8"),
            )
        })
    }

    fn row(&mut self) -> Result<T> {
        self.check_len()?;
        let (due, there) = (*self.fields.get_or_insert(self.record.len()), self.record.len());
        if there != due {
            return Err(self.at(ErrorKind::Corrupt, &format!("{there} fields, and {due} are due")));
        }
        let text = self.text()?;
        let row = (self.read)(&text, self.names.as_ref());
        self.record = text.into_byte_record();
        row.map_err(|error| match error.kind() {
            ::csv::ErrorKind::Deserialize { err, .. } => {
                let field = err.field().map_or(String::new(), |field| format!("field {}: ", field + 1));
                self.at(ErrorKind::Corrupt, &format!("{field}{}", shortened(&err.kind().to_string())))
            }
            _ => self.at(ErrorKind::Corrupt, &shortened(&error.to_string())),
        })
    }

    /// Whether the row that was read is short enough; one that is longer than what is read at once is refused before.
    fn check_len(&self) -> Result<()> {
        let (end, most) = (self.reader.position().byte(), self.options.max_row as u64);
        let input = self.reader.get_ref();
        if end - input.row() > most {
            let len = end - input.place(self.options.comment).1;
            if len > most {
                return Err(
                    self.at(ErrorKind::Limit, &format!("a row of {len} bytes, and {most} are allowed"))
                );
            }
        }
        Ok(())
    }

    /// An error of the row that was read.
    fn at(&self, kind: ErrorKind, what: &str) -> Error {
        let (line, byte, _) = self.reader.get_ref().place(self.options.comment);
        Error::new(kind, format!("line {line}, byte {byte}: {what}"))
    }
}

fn valid_up_to(text: &[u8]) -> usize {
    std::str::from_utf8(text).err().map_or(text.len(), |error| error.valid_up_to())
}

impl<T> Iterator for Rows<T> {
    type Item = Entry<T>;

    fn next(&mut self) -> Option<Entry<T>> {
        if self.done {
            return None;
        }
        match self.record() {
            Ok(true) => Some(Entry::from_result(self.row())),
            Ok(false) => {
                self.done = true;
                None
            }
            Err(error) => {
                self.done = true;
                Some(Entry::Broken(error))
            }
        }
    }
}
