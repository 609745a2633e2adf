//! The two formats of Arrow IPC: the file, which has an index at its end, and the stream.

mod indexed;
#[cfg(feature = "mmap")]
mod saved;

use std::io::Read;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::{Block, root_as_footer};
use bytes::Bytes;
use datapipes::{Context, Error, Result};

use super::decode::{Decoder, Found, MAGIC, Message, aligned, find, is_file};
use super::framing::{Batches, RowsOf};
use super::{rows, weight, wrong_columns};
use crate::File;
use crate::formats::compression::{Codec, Expansion, Packing, content, reader};
use crate::formats::framing::RecordSplitter;
use crate::formats::{FileEntries, FileEntry, Format, Row};
pub use indexed::IndexedArrowRows;

/// Reads Arrow IPC, the file format (Feather version 2) and the stream format, as record batches;
/// feature `arrow`.
///
/// - An item is a batch as it was written. Buffers are slices of the file if they are not
///   compressed and aligned for their type; else they are copied once. Writers align to 8 bytes at
///   least, so only decimals, which need 16, may have to be copied. A batch therefore keeps its
///   file in memory.
/// - Dictionaries, including dictionaries that grow or change within the file, and bodies
///   compressed by LZ4 or Zstandard are supported. A file that is compressed as a whole is
///   decompressed first.
/// - The first bytes of a file tell which of the two formats it has. Numbers in big-endian order,
///   tensors, and Feather version 1 are refused.
/// - A damaged batch is an error of its own, and the other batches of the file follow, unless its
///   length is damaged. The format has no checksums, so a changed value cannot be detected, except
///   in compressed bodies.
/// - A stream that is read as it arrives ([`FileGraphExt::read_as`](crate::FileGraphExt::read_as)) is
///   split by batches: a batch keeps the piece that it came in. The file format is read whole,
///   since its index is at its end.
/// - The end marker of a stream may be missing, since some writers write none. A stream cut exactly
///   between two batches can therefore not be told from a whole one; a file can.
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
#[derive(Clone, Debug)]
#[must_use]
pub struct ArrowIpc {
    columns: Option<Arc<[String]>>,
    expansion: Expansion,
    max_batch: u64,
}

impl Default for ArrowIpc {
    fn default() -> Self {
        ArrowIpc {
            columns: None,
            expansion: Expansion::default(),
            max_batch: 1 << 30,
        }
    }
}

impl ArrowIpc {
    /// Reads all columns.
    pub fn new() -> Self {
        ArrowIpc::default()
    }

    /// Reads only these columns of the table, in the order of the file; the others are not decoded.
    pub fn columns<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.columns = Some(names.into_iter().map(Into::into).collect());
        self
    }

    datapipes::setters! {
        /// Refuses a batch that states more rows, or more uncompressed bytes, than `bytes`, or than
        /// `ratio` times the bytes of its file once it is past 1 MiB. Defaults to 8 GiB and 1100 times.
        max_expansion(bytes: u64, ratio: u64) => expansion.limit(bytes, ratio);

        /// Ends a file that is read as it arrives with an error (`Limit`) at a batch of more than
        /// `bytes`. Defaults to 1 GiB.
        max_batch(bytes: u64) => max_batch = bytes;
    }

    /// Returns the framing that finds the batches of a stream, and counts their rows if necessary.
    fn framing(&self, counts_rows: bool) -> Batches {
        Batches::new(
            self.columns.clone(),
            self.expansion,
            self.max_batch,
            counts_rows,
        )
    }

    /// Returns true if a file is a stream; checks that another file begins with a magic.
    fn is_stream(&self, file: &File, cx: &Context) -> bool {
        let Some(codec) = Codec::of_magic(&file.data) else {
            return !is_file(&file.data);
        };
        let mut first = Vec::new();
        // Errors of the file are found when it is read.
        let _ = reader(codec, file.data.clone(), self.expansion, cx)
            .take(8)
            .read_to_end(&mut first);
        !is_file(&first)
    }

    /// Returns the batches of a file with an index.
    fn batches(&self, file: File, cx: &Context) -> Result<(FileEntries<RecordBatch>, u64)> {
        let data = content(file.data, self.expansion, cx)?;
        let most = self.expansion.allowed(cx).most(data.len() as u64);
        let columns = self.columns.as_deref();
        let entries: FileEntries<RecordBatch> = match () {
            () if data.starts_with(MAGIC) => Box::new(read_file(data, columns, most)?),
            () => return Err(Error::unsupported("Feather version 1")),
        };
        Ok((entries, most))
    }
}

impl Format for ArrowIpc {
    type Item = RecordBatch;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<RecordBatch>> {
        match self.is_stream(&file, cx) {
            true => self.splitter().expect("there is one").open(file, cx),
            false => Ok(self.batches(file, cx)?.0),
        }
    }
    fn splitter(&self) -> Option<RecordSplitter<RecordBatch>> {
        Some(
            RecordSplitter::new(self.framing(false))
                .expansion(self.expansion)
                .packing(packing),
        )
    }
    fn settings(&self) -> String {
        self.columns
            .as_ref()
            .map(|columns| format!("columns {}", columns.join(", ")))
            .unwrap_or_default()
    }
    fn problem(&self) -> Option<String> {
        wrong_columns(self.columns.as_deref())
    }
    fn weigh(&self, batch: &RecordBatch) -> Option<usize> {
        Some(weight(batch))
    }
}

/// Reads the files of [`ArrowIpc`] as rows.
///
/// - Numbers are numbers; 64-bit numbers are exact. NaN and infinities, which JSON does not have,
///   are null.
/// - Text is text; binary is hexadecimal digits in lower case; decimals are text such as
///   `"-12.50"`.
/// - Dates, times and timestamps are text by ISO 8601: `2024-02-29`, `12:34:56.789`,
///   `2024-02-29T12:34:56.789`. With a time zone they are in UTC and end in `Z`. Durations and
///   intervals are `PT1.5S`, `P1M2DT3S`. Times beyond the year 262000 are numbers, as they are
///   stored.
/// - Lists are arrays, structs are objects, maps with text keys are objects (of equal keys the last
///   one counts), other maps are arrays of pairs. Dictionaries and runs are decoded; a union is its
///   value.
/// - Two columns of one name are an error.
/// - Values are copies, made one row at a time.
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
    /// Returns the format that reads the rows of these batches.
    pub fn new(batches: ArrowIpc) -> Self {
        ArrowRows(batches)
    }
}

impl Format for ArrowRows {
    type Item = Row;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Row>> {
        if self.0.is_stream(&file, cx) {
            return self.splitter().expect("there is one").open(file, cx);
        }
        let (batches, most) = self.0.batches(file, cx)?;
        Ok(rows(batches, most))
    }
    fn splitter(&self) -> Option<RecordSplitter<Row>> {
        let framing = RowsOf(self.0.framing(true));
        Some(
            RecordSplitter::new(framing)
                .expansion(self.0.expansion)
                .packing(packing),
        )
    }
    fn settings(&self) -> String {
        self.0.settings()
    }
    fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}

/// Size of the end of a file: the length of the footer, and the magic.
const TAIL: usize = 10;

/// Recognizes compression by the first bytes alone.
fn packing(data: &[u8], _: &str) -> Result<Option<Packing>> {
    Ok(Codec::of_magic(data).map(Codec::packing))
}

/// Reads the footer of a file, and its dictionaries. Returns the places of its batches.
fn open_file(data: &Bytes, columns: Option<&[String]>, most: u64) -> Result<(Decoder, Vec<Block>)> {
    if data.len() < 8 + TAIL || !data.ends_with(MAGIC) {
        return Err(Error::truncated(format!(
            "it begins as an Arrow file does, and does not end so at byte {}",
            data.len()
        )));
    }
    let tail = data.len() - TAIL;
    let length = i32::from_le_bytes([data[tail], data[tail + 1], data[tail + 2], data[tail + 3]]);
    let start = usize::try_from(length)
        .ok()
        .and_then(|length| tail.checked_sub(length));
    let start = start.filter(|&start| start >= 8).ok_or_else(|| {
        Error::corrupt(format!(
            "a footer of {length} bytes in a file of {}",
            data.len()
        ))
    })?;
    let mut copy = None;
    let footer = root_as_footer(aligned(&data[start..tail], &mut copy)).map_err(|error| {
        Error::corrupt(format!("the footer at byte {start}")).with_source(error.to_string())
    })?;
    let schema = footer
        .schema()
        .ok_or_else(|| Error::corrupt("a footer without a schema"))?;
    let mut decoder = Decoder::new(schema, columns, most)?;
    let dictionaries: Vec<Block> = footer
        .dictionaries()
        .into_iter()
        .flatten()
        .copied()
        .collect();
    let batches: Vec<Block> = footer
        .recordBatches()
        .into_iter()
        .flatten()
        .copied()
        .collect();
    // The check prevents that batches refer to the same bytes again and again.
    let stated: i128 = dictionaries.iter().chain(&batches).map(length_of).sum();
    if stated > start as i128 {
        return Err(Error::corrupt(format!(
            "the footer tells of {stated} bytes of batches, and {start} are there"
        )));
    }
    for (index, block) in dictionaries.iter().enumerate() {
        with(block, data, |message| decoder.dictionary(data, message)).map_err(|error| {
            error.within(format_args!(
                "dictionary {index} at byte {}",
                block.offset()
            ))
        })?;
    }
    Ok((decoder, batches))
}

fn read_file(
    data: Bytes,
    columns: Option<&[String]>,
    most: u64,
) -> Result<impl Iterator<Item = FileEntry<RecordBatch>> + Send + use<>> {
    let (decoder, batches) = open_file(&data, columns, most)?;
    Ok(batches.into_iter().enumerate().map(move |(index, block)| {
        let batch = with(&block, &data, |message| decoder.batch(&data, message));
        let at =
            |error: Error| error.within(format_args!("batch {index} at byte {}", block.offset()));
        FileEntry::from_result(batch.map_err(at))
    }))
}

/// Returns the length of a message that the footer states.
fn length_of(block: &Block) -> i128 {
    i128::from(block.metaDataLength()) + i128::from(block.bodyLength())
}

/// Applies a function to a message in the footer.
fn with<T>(block: &Block, data: &Bytes, work: impl FnOnce(&Message<'_>) -> Result<T>) -> Result<T> {
    let at = usize::try_from(block.offset())
        .ok()
        .filter(|&at| at < data.len());
    let at = at.ok_or_else(|| Error::corrupt(format!("the file has {} bytes", data.len())))?;
    match find(data, at, &mut None)? {
        Found::Message(message) if (message.body.end - at) as i128 == length_of(block) => {
            work(&message)
        }
        Found::Message(message) => {
            let (stated, length) = (length_of(block), message.body.end - at);
            Err(Error::corrupt(format!(
                "{stated} bytes by the footer, {length} by its own head"
            )))
        }
        Found::Marker(_) | Found::End | Found::More(_) => {
            Err(Error::corrupt("no message is there"))
        }
    }
}
