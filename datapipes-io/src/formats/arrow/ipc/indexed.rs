//! The rows of an Arrow file or stream by index.

use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, MapPipe, Result};

use super::super::decode::{Decoder, Found, MAGIC, Message, find};
use super::super::{row, unique_names};
use super::{ArrowIpc, open_file, with};
use crate::File;
use crate::formats::compression::Codec;
use crate::formats::{Row, value};

/// The rows of an Arrow file or stream by index, made by [`ArrowIpc::index`]; feature `arrow`.
///
/// - The heads of all messages were read, and the dictionaries; 24 bytes for each batch are in memory
///   besides the file. The Hugging Face library `datasets` caches its tables as such streams.
/// - A row is decoded from its batch, on a blocking thread. Columns that are not compressed are slices
///   of the file, but the text of a batch is checked whole, and a compressed body is decompressed
///   whole, for each row that is read. Rows that are asked for together
///   ([`Indexed::batch`](datapipes::Indexed::batch)) share that.
/// - Values are the same as for [`ArrowRows`](super::ArrowRows).
///
/// # Errors
/// For a row: the errors of its batch, as with [`ArrowIpc`], with file, batch and byte.
///
/// # Examples
/// ```
/// use datapipes::Indexed;
/// use datapipes_io::File;
/// use datapipes_io::formats::ArrowIpc;
///
/// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.arrows"));
/// let file = File::new("table.arrows", data.to_vec());
/// let rows = Indexed::new(ArrowIpc::new().columns(["index"]).index(file)?);
/// let some = rows.subset(vec![9, 3]).fetch().collect()?;
/// assert_eq!((&some[0]["index"], &some[1]["index"]), (&9.into(), &3.into()));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone)]
pub struct IndexedArrowRows(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    data: Bytes,
    batches: Vec<Place>,
    len: u64,
    most: u64,
}

/// Place of a batch.
struct Place {
    at: usize,
    /// Number of its first row.
    start: u64,
    /// The decoder with the dictionaries before the batch.
    decoder: Arc<Decoder>,
}

impl ArrowIpc {
    /// Returns the rows of a file or stream by index. The file is in memory, or
    /// [mapped](ArrowIpc::index_mapped).
    ///
    /// # Errors
    /// `Unsupported` for a file that is compressed as a whole; `Corrupt` or `Truncated` if the head of
    /// a message, a dictionary or the footer is damaged, or the file is cut; with file, batch and byte.
    pub fn index(&self, file: File) -> Result<IndexedArrowRows> {
        let File { name, data, .. } = file;
        let within = |error: Error| error.within(&name);
        if let Some(codec) = Codec::of_magic(&data) {
            let what = format!("compressed as a whole ({codec:?}): it has no rows by index");
            return Err(within(Error::unsupported(what)));
        }
        let most = self.expansion.most(data.len() as u64);
        let columns = self.columns.as_deref();
        let mut places = Places::default();
        let read = match data.starts_with(MAGIC) {
            true => places.read_file(&data, columns, most),
            false => places.read_stream(&data, columns, most),
        };
        read.map_err(within)?;
        Ok(IndexedArrowRows(Arc::new(Inner {
            name,
            data,
            batches: places.batches,
            len: places.len,
            most,
        })))
    }

    /// Maps a file into memory, and returns its rows by index: a page is read when a row of it is.
    /// The file must not be written to or shortened meanwhile: the process would be ended by a signal
    /// (`SIGBUS`). Feature `mmap`.
    ///
    /// # Errors
    /// Errors of opening and mapping the file, and the errors of [`index`](ArrowIpc::index).
    #[cfg(feature = "mmap")]
    pub fn index_mapped(&self, path: impl AsRef<std::path::Path>) -> Result<IndexedArrowRows> {
        let file = crate::FileRef::new(path.as_ref());
        self.index(crate::stores::local::map_file(&file)?)
    }
}

/// The places of batches that were found so far.
#[derive(Default)]
struct Places {
    batches: Vec<Place>,
    len: u64,
}

impl Places {
    fn push(&mut self, at: usize, message: &Message<'_>, decoder: &Arc<Decoder>) -> Result<()> {
        let rows = message.record_batch()?.length();
        let len = u64::try_from(rows)
            .ok()
            .and_then(|rows| self.len.checked_add(rows));
        let len = len.ok_or_else(|| Error::corrupt(format!("{rows} rows")))?;
        self.batches.push(Place {
            at,
            start: self.len,
            decoder: decoder.clone(),
        });
        self.len = len;
        Ok(())
    }

    fn read_file(&mut self, data: &Bytes, columns: Option<&[String]>, most: u64) -> Result<()> {
        let (decoder, blocks) = open_file(data, columns, most)?;
        let decoder = Arc::new(decoder);
        for (index, block) in blocks.iter().enumerate() {
            let at = block.offset();
            let push = |message: &Message<'_>| self.push(at as usize, message, &decoder);
            with(block, data, push).map_err(|error| named(error, index, at))?;
        }
        Ok(())
    }

    fn read_stream(&mut self, data: &Bytes, columns: Option<&[String]>, most: u64) -> Result<()> {
        let (mut decoder, mut at): (Option<Arc<Decoder>>, usize) = (None, 0);
        loop {
            let index = self.batches.len();
            let wrong = |error: Error, known: bool| match known {
                true => named(error, index, at),
                false => error.within("the schema"),
            };
            let mut copy = None;
            let found =
                find(data, at, &mut copy).map_err(|error| wrong(error, decoder.is_some()))?;
            match (found, &mut decoder) {
                (Found::Message(message), None) => {
                    let schema = message.head.header_as_schema().ok_or_else(|| {
                        Error::corrupt(
                            "neither an Arrow file nor a stream: it does not begin with a schema",
                        )
                    })?;
                    decoder = Some(Arc::new(Decoder::new(schema, columns, most)?));
                    at = message.body.end;
                }
                (Found::Message(message), Some(decoder)) => {
                    let taken = match message.head.header_as_dictionary_batch() {
                        Some(_) => Arc::make_mut(decoder)
                            .dictionary(data, &message)
                            .map_err(|error| error.within("its dictionary")),
                        None => self.push(at, &message, decoder),
                    };
                    taken.map_err(|error| wrong(error, true))?;
                    at = message.body.end;
                }
                (Found::Marker(end), Some(_)) if end < data.len() => {
                    let left = data.len() - end;
                    return Err(Error::corrupt(format!(
                        "{left} bytes after the end marker at byte {at}"
                    )));
                }
                (Found::Marker(_) | Found::End, Some(_)) => return Ok(()),
                (Found::End, None) => {
                    let what = "an empty file where Arrow is due";
                    return Err(Error::truncated(what));
                }
                (Found::Marker(_) | Found::More(_), _) => {
                    return Err(wrong(Error::corrupt("no message is there"), true));
                }
            }
        }
    }
}

/// Adds the place of a batch to an error.
fn named(error: Error, index: usize, at: impl fmt::Display) -> Error {
    error.within(format_args!("batch {index} at byte {at}"))
}

impl Inner {
    /// Returns the batch of a row, and the row's number there.
    fn place(&self, index: u64) -> Result<(usize, usize)> {
        if index >= self.len {
            let what = format!("no row {index} of {}", self.len);
            return Err(Error::not_found(what).within(&self.name));
        }
        // Batches without rows begin where the next one does.
        let batch = self.batches.partition_point(|place| place.start <= index) - 1;
        let row = usize::try_from(index - self.batches[batch].start);
        Ok((batch, row.unwrap_or(usize::MAX)))
    }

    fn batch(&self, index: usize) -> Result<RecordBatch> {
        let place = &self.batches[index];
        let end = self
            .batches
            .get(index + 1)
            .map_or(self.len, |next| next.start);
        let decode = || {
            let batch = match find(&self.data, place.at, &mut None)? {
                Found::Message(message) => place.decoder.batch(&self.data, &message)?,
                Found::Marker(_) | Found::End | Found::More(_) => {
                    return Err(Error::corrupt("no message is there"));
                }
            };
            if batch.num_rows() as u64 != end - place.start {
                let rows = batch.num_rows();
                return Err(Error::corrupt(format!(
                    "{rows} rows, {} by its head",
                    end - place.start
                )));
            }
            unique_names(&batch).map(|()| batch)
        };
        decode().map_err(|error| named(error, index, place.at).within(&self.name))
    }

    /// Reads rows in the order of the file, so that one batch at a time is in memory, and returns
    /// them in that of their indices.
    fn rows(&self, indices: &[u64]) -> Vec<Result<Row>> {
        let mut order: Vec<usize> = (0..indices.len()).collect();
        order.sort_by_key(|&at| indices[at]);
        let mut current: Option<(usize, RecordBatch)> = None;
        let mut read = |index: u64| {
            let (batch, at) = self.place(index)?;
            let decoded = match current.take() {
                Some((number, decoded)) if number == batch => decoded,
                _ => self.batch(batch)?,
            };
            let (_, decoded) = current.insert((batch, decoded));
            self.row(decoded, batch, at)
        };
        let mut rows: Vec<(usize, Result<Row>)> = order
            .into_iter()
            .map(|at| (at, read(indices[at])))
            .collect();
        rows.sort_by_key(|(at, _)| *at);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn row(&self, batch: &RecordBatch, index: usize, at: usize) -> Result<Row> {
        let place = self.batches[index].at;
        row(batch, at, self.most).map_err(|error| named(error, index, place).within(&self.name))
    }
}

#[async_trait]
impl MapPipe for IndexedArrowRows {
    type Out = Row;

    fn len(&self) -> u64 {
        self.0.len
    }
    async fn get(&self, index: u64) -> Result<Row> {
        let (batch, at) = self.0.place(index)?;
        let inner = self.0.clone();
        datapipes::blocking(move || inner.row(&inner.batch(batch)?, batch, at)).await?
    }
    async fn get_many(&self, indices: &[u64]) -> Vec<Result<Row>> {
        let (inner, wanted) = (self.0.clone(), indices.to_vec());
        match datapipes::blocking(move || inner.rows(&wanted)).await {
            Ok(rows) => rows,
            Err(error) => indices.iter().map(|_| Err(error.copied())).collect(),
        }
    }
    fn name(&self) -> String {
        "arrow_rows".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{index}", self.0.name).into())
    }
    fn weigh(&self, row: &Row) -> Option<usize> {
        value::weigh(row)
    }
}

datapipes::formatted! {
    Debug |rows: IndexedArrowRows|
        "IndexedArrowRows({:?}, {} rows)", rows.0.name, rows.0.len;
}

#[cfg(test)]
mod tests;
