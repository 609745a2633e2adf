//! The two formats of Arrow IPC: the file, which has an index at its end, and the stream.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::{Block, MessageHeader, root_as_footer};
use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result};

use super::decode::{Decoder, Found, Message, aligned, find};
use super::{rows, weight, wrong_columns};
use crate::File;
use crate::formats::compression::{Expansion, content};
use crate::formats::{Entries, Entry, Format, Row, value};

/// Reads Arrow IPC, the file format (Feather version 2) and the stream format, as record batches; feature `arrow`.
///
/// - An item is a batch as it was written. Buffers are slices of the file where they are not compressed and lie aligned
///   for their type; else they are copied once. Writers align to 8 bytes at least, so only decimals, which need 16, are
///   copied where they lie badly. A batch therefore keeps its file in memory.
/// - Dictionaries, also those that grow or change on the way, and bodies compressed by LZ4 or Zstandard are read. A file
///   that is compressed as a whole is inflated first.
/// - Which of the two formats a file has is told by its first bytes. Numbers in big-endian order, tensors, and Feather
///   version 1 are refused.
/// - A damaged batch is an error of its own, and the others of the file follow, unless its length is damaged. Nothing in
///   the format tells a changed value from a right one, except in compressed bodies.
/// - The end marker of a stream may be missing, since there are writers that write none. So a stream cut exactly between
///   two batches cannot be told from a whole one; a file can.
/// - Layout: <https://arrow.apache.org/docs/format/Columnar.html>.
///
/// # Examples
/// ```no_run
/// use datapipes_io::formats::arrow::column_tensor;
/// use datapipes_io::formats::ArrowIpc;
/// use datapipes_io::prelude::*;
///
/// let batches = datapipes_io::list_files("train", "*.arrow").load_files().read_as(ArrowIpc::new().columns(["x"]));
/// let numbers = batches.try_map(|batch| column_tensor(&batch, "x"));
/// # drop(numbers);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ArrowIpc {
    columns: Option<Arc<[String]>>,
    expansion: Expansion,
}

impl ArrowIpc {
    /// All columns.
    pub fn new() -> Self {
        ArrowIpc::default()
    }

    /// Only these columns of the table, in the order of the file; the others are not decoded.
    pub fn columns<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        ArrowIpc { columns: Some(names.into_iter().map(Into::into).collect()), ..self }
    }

    /// Refuses a batch that states more rows, or more bytes behind compression, than `bytes`, or than `ratio` times the
    /// bytes of its file once it is past 1 MiB. By default 8 GiB, and 1100 times.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        ArrowIpc { expansion: Expansion { bytes, ratio, ..self.expansion }, ..self }
    }

    fn batches(&self, file: File, cx: &Context) -> Result<(Entries<RecordBatch>, u64)> {
        let data = content(file.data, self.expansion, cx)?;
        let most = self.expansion.most(data.len() as u64);
        let columns = self.columns.as_deref();
        let entries: Entries<RecordBatch> = match () {
            () if data.is_empty() => {
                return Err(Error::new(ErrorKind::Truncated, "an empty file where Arrow is due"));
            }
            () if data.starts_with(MAGIC) => Box::new(read_file(data, columns, most)?),
            () if data.starts_with(b"FEA1") => {
                return Err(Error::new(ErrorKind::Unsupported, "Feather version 1"));
            }
            () => Box::new(read_stream(data, columns, most)?),
        };
        Ok((entries, most))
    }
}

impl Format for ArrowIpc {
    type Item = RecordBatch;

    fn open(&self, file: File, cx: &Context) -> Result<Entries<RecordBatch>> {
        Ok(self.batches(file, cx)?.0)
    }
    fn settings(&self) -> String {
        self.columns.as_ref().map(|columns| format!("columns {}", columns.join(", "))).unwrap_or_default()
    }
    fn problem(&self) -> Option<String> {
        wrong_columns(self.columns.as_deref())
    }
    fn weigh(&self, batch: &RecordBatch) -> Option<usize> {
        Some(weight(batch))
    }
}

/// Reads what [`ArrowIpc`] does as rows.
///
/// - Numbers are numbers; those of 64 bits are exact. NaN and infinities, which JSON has not, are null.
/// - Text is text; binary is hexadecimal digits in lower case; decimals are text such as `"-12.50"`.
/// - Dates, times and timestamps are text by ISO 8601: `2024-02-29`, `12:34:56.789`, `2024-02-29T12:34:56.789`. With a
///   time zone they are in UTC and end in `Z`. Durations and intervals are `PT1.5S`, `P1M2DT3S`. Times beyond the year
///   262000 are numbers, as they are stored.
/// - Lists are arrays, structs objects, maps whose keys are text objects (of equal keys the last one), other maps arrays
///   of pairs. Dictionaries and runs are decoded; of unions it is the value.
/// - Two columns of one name are an error.
/// - Values are copies, one row at a time.
///
/// # Examples
/// ```no_run
/// use datapipes_io::formats::{ArrowIpc, ArrowRows};
/// use datapipes_io::prelude::*;
///
/// let files = datapipes_io::list_files("train", "*.arrow").load_files();
/// let labels = files.read_as(ArrowRows::new(ArrowIpc::new())).map(|row| row["label"].as_i64());
/// # drop(labels);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ArrowRows(ArrowIpc);

impl ArrowRows {
    /// The rows of what is read so.
    pub fn new(batches: ArrowIpc) -> Self {
        ArrowRows(batches)
    }
}

impl Format for ArrowRows {
    type Item = Row;

    fn open(&self, file: File, cx: &Context) -> Result<Entries<Row>> {
        let (batches, most) = self.0.batches(file, cx)?;
        Ok(rows(batches, most))
    }
    fn weigh(&self, item: &Row) -> Option<usize> {
        value::weigh(item)
    }
    fn settings(&self) -> String {
        self.0.settings()
    }
    fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}

/// How a file begins, and ends.
const MAGIC: &[u8] = b"ARROW1";
/// What stands at the end: the length of the footer, and the magic.
const TAIL: usize = 10;

fn corrupt(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

fn read_file(
    data: Bytes,
    columns: Option<&[String]>,
    most: u64,
) -> Result<impl Iterator<Item = Entry<RecordBatch>> + Send + use<>> {
    if data.len() < 8 + TAIL || !data.ends_with(MAGIC) {
        let what = format!("it begins as an Arrow file does, and does not end so at byte {}", data.len());
        return Err(Error::new(ErrorKind::Truncated, what));
    }
    let tail = data.len() - TAIL;
    let length = i32::from_le_bytes([data[tail], data[tail + 1], data[tail + 2], data[tail + 3]]);
    let start = usize::try_from(length).ok().and_then(|length| tail.checked_sub(length));
    let start = start
        .filter(|&start| start >= 8)
        .ok_or_else(|| corrupt(format!("a footer of {length} bytes in a file of {}", data.len())))?;
    let mut copy = None;
    let footer = root_as_footer(aligned(&data[start..tail], &mut copy))
        .map_err(|error| corrupt(format!("the footer at byte {start}")).with_source(error.to_string()))?;
    let schema = footer.schema().ok_or_else(|| corrupt("a footer without a schema"))?;
    let mut decoder = Decoder::new(schema, columns, most)?;
    let dictionaries: Vec<Block> = footer.dictionaries().into_iter().flatten().copied().collect();
    let batches: Vec<Block> = footer.recordBatches().into_iter().flatten().copied().collect();
    // So that no batch is told of again and again.
    let stated: i128 = dictionaries.iter().chain(&batches).map(length_of).sum();
    if stated > start as i128 {
        return Err(corrupt(format!("the footer tells of {stated} bytes of batches, and {start} are there")));
    }
    for (index, block) in dictionaries.iter().enumerate() {
        with(block, &data, |message| decoder.dictionary(&data, message))
            .map_err(|error| error.within(format_args!("dictionary {index} at byte {}", block.offset())))?;
    }
    Ok(batches.into_iter().enumerate().map(move |(index, block)| {
        let batch = with(&block, &data, |message| decoder.batch(&data, message));
        let at = |error: Error| error.within(format_args!("batch {index} at byte {}", block.offset()));
        Entry::from_result(batch.map_err(at))
    }))
}

/// How long a footer says that a message is.
fn length_of(block: &Block) -> i128 {
    i128::from(block.metaDataLength()) + i128::from(block.bodyLength())
}

/// Does something with the message that a footer tells of.
fn with<T>(block: &Block, data: &Bytes, work: impl FnOnce(&Message<'_>) -> Result<T>) -> Result<T> {
    let at = usize::try_from(block.offset()).ok().filter(|&at| at < data.len());
    let at = at.ok_or_else(|| corrupt(format!("the file has {} bytes", data.len())))?;
    match find(data, at, &mut None)? {
        Found::Message(message) if (message.body.end - at) as i128 == length_of(block) => work(&message),
        Found::Message(message) => {
            let (stated, length) = (length_of(block), message.body.end - at);
            Err(corrupt(format!("{stated} bytes by the footer, {length} by its own head")))
        }
        Found::Marker(_) | Found::End => Err(corrupt("no message is there")),
    }
}

/// What is left of a stream.
struct Stream {
    data: Bytes,
    at: usize,
    index: u64,
    decoder: Decoder,
    over: bool,
}

fn read_stream(data: Bytes, columns: Option<&[String]>, most: u64) -> Result<Stream> {
    let none = || corrupt("neither an Arrow file nor a stream: it does not begin with a schema");
    let (decoder, at) = match find(&data, 0, &mut None).map_err(|error| error.within("the schema"))? {
        Found::Message(message) => {
            let schema = message.head.header_as_schema().ok_or_else(none)?;
            (Decoder::new(schema, columns, most)?, message.body.end)
        }
        Found::Marker(_) | Found::End => return Err(none()),
    };
    Ok(Stream { data, at, index: 0, decoder, over: false })
}

impl Iterator for Stream {
    type Item = Entry<RecordBatch>;

    fn next(&mut self) -> Option<Entry<RecordBatch>> {
        while !self.over {
            let at = self.at;
            let place = |index: u64| format!("batch {index} at byte {at}");
            let broken = |error: Error, index| Some(Entry::Broken(error.within(place(index))));
            let mut copy = None;
            let message = match find(&self.data, at, &mut copy) {
                Ok(Found::Message(message)) => message,
                Ok(Found::Marker(end)) => {
                    self.over = true;
                    let left = self.data.len() - end;
                    let what = || format!("{left} bytes behind the end marker at byte {at}");
                    return (left > 0).then(|| Entry::Broken(corrupt(what())));
                }
                Ok(Found::End) => break,
                Err(error) => {
                    self.over = true;
                    return broken(error, self.index);
                }
            };
            self.at = message.body.end;
            if message.head.header_type() == MessageHeader::DictionaryBatch {
                // Without it nothing that follows is right.
                if let Err(error) = self.decoder.dictionary(&self.data, &message) {
                    self.over = true;
                    return broken(error.within("its dictionary"), self.index);
                }
                continue;
            }
            let index = self.index;
            self.index += 1;
            let batch = self.decoder.batch(&self.data, &message);
            return Some(Entry::from_result(batch.map_err(|error| error.within(place(index)))));
        }
        self.over = true;
        None
    }
}
