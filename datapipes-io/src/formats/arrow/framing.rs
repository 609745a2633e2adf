//! Finds the batches of a stream.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::MessageHeader;
use bytes::Bytes;
use datapipes::{Error, Result};

use super::decode::{Decoder, Found, Message, find, find_in, is_file};
use super::rows;
use crate::formats::compression::Expansion;
use crate::formats::framing::{Frame, FrameKind, Framing, RecordPosition, records};
use crate::formats::{FileEntries, Row};

/// A framing that finds batches; it stores the messages before them, schema and dictionaries.
#[derive(Clone)]
pub(super) struct Batches {
    columns: Option<Arc<[String]>>,
    expansion: Expansion,
    max_batch: u64,
    counts_rows: bool,
    /// Length of the stream, if it is known.
    len: Option<u64>,
    decoder: Option<Arc<Decoder>>,
    /// Position of the end and the begin of the end marker.
    ended: Option<(u64, u64)>,
}

impl Batches {
    pub(super) fn new(
        columns: Option<Arc<[String]>>,
        expansion: Expansion,
        max_batch: u64,
        counts_rows: bool,
    ) -> Self {
        Batches {
            columns,
            expansion,
            max_batch,
            counts_rows,
            len: None,
            decoder: None,
            ended: None,
        }
    }

    /// Returns the maximum decoded size of a message of which, with the bytes before it, `there`
    /// bytes exist.
    fn most(&self, there: u64) -> u64 {
        self.expansion.most(self.len.unwrap_or(there))
    }

    /// Processes a message, and returns its kind.
    fn take(
        &mut self,
        data: &[u8],
        message: &Message<'_>,
        at: RecordPosition,
    ) -> Result<FrameKind> {
        let Some(decoder) = &mut self.decoder else {
            let schema = message.head.header_as_schema().ok_or_else(no_schema)?;
            let most = self.most(at.offset + data.len() as u64);
            self.decoder = Some(Arc::new(Decoder::new(
                schema,
                self.columns.as_deref(),
                most,
            )?));
            return Ok(FrameKind::Head);
        };
        if message.head.header_type() == MessageHeader::DictionaryBatch {
            // The schema or dictionary is needed by all messages after it.
            let data = Bytes::copy_from_slice(data);
            let taken = Arc::make_mut(decoder).dictionary(&data, message);
            return taken
                .map(|()| FrameKind::Head)
                .map_err(|error| error.within("its dictionary"));
        }
        if !self.counts_rows {
            return Ok(FrameKind::Record);
        }
        let batch = decoder.batch(&Bytes::copy_from_slice(data), message);
        Ok(FrameKind::Records(rows::count(&batch)))
    }
}

fn no_schema() -> Error {
    Error::corrupt("neither an Arrow file nor a stream: it does not begin with a schema")
}

impl Framing for Batches {
    type Item = RecordBatch;

    fn begin(&mut self, len: u64) {
        self.len = Some(len);
    }

    fn allow(&mut self, most: u64) {
        self.expansion.bytes = self.expansion.bytes.min(most);
    }

    fn is_whole(&self, first: &[u8]) -> bool {
        is_file(first)
    }

    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
        if let Some((end, marker)) = self.ended {
            let left = self
                .len
                .map_or("more".to_owned(), |len| (len - end).to_string());
            return Err(Error::corrupt(format!(
                "{left} bytes after the end marker at byte {marker}"
            )));
        }
        let has_schema = self.decoder.is_some();
        let named = |error: Error| match has_schema {
            true => error.within(format_args!("batch {} at byte {}", at.line, at.offset)),
            false => error,
        };
        let wrong = |error: Error| match has_schema {
            true => named(error),
            false => error.within("the schema"),
        };
        let mut copy: Option<Buffer> = None;
        let found = find_in(data, 0, false, &mut copy).map_err(wrong)?;
        let most = self.max_batch;
        let too_large = |len: u64| {
            let what = format!("it has {len} bytes, at most {most} are allowed (`max_batch`)");
            named(Error::limit(what))
        };
        match found {
            Found::More(wanted) if wanted > most => Err(too_large(wanted)),
            Found::More(wanted) if !ended => Ok(Frame::More(wanted as usize)),
            Found::More(_) => match find(data, 0, &mut None) {
                Err(error) => Err(wrong(error)),
                Ok(_) => Err(named(Error::corrupt("no message is there"))),
            },
            Found::Marker(_) | Found::End if !has_schema => Err(no_schema()),
            Found::End => Err(named(Error::corrupt("no message is there"))),
            Found::Marker(len) => {
                self.ended = Some((at.offset + len as u64, at.offset));
                Ok(Frame::cut(len, FrameKind::Blank))
            }
            Found::Message(message) => {
                let len = message.body.end;
                if len as u64 > most {
                    return Err(too_large(len as u64));
                }
                let kind = self.take(&data[..len], &message, at).map_err(named)?;
                let lines = u64::from(!matches!(kind, FrameKind::Head));
                Ok(Frame::Cut { len, lines, kind })
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        match &self.decoder {
            Some(_) => Ok(()),
            None => Err(Error::truncated("an empty file where Arrow is due")),
        }
    }

    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<RecordBatch> {
        let plain = Batches {
            counts_rows: false,
            ..self
        };
        records(plain, data, at, |framing, data, range, at| {
            let data = data.slice(range);
            let decoder = framing
                .decoder
                .as_ref()
                .expect("a batch comes after the schema");
            let batch = match find(&data, 0, &mut None)? {
                Found::Message(message) => decoder.batch(&data, &message),
                Found::Marker(_) | Found::End | Found::More(_) => {
                    Err(Error::corrupt("no message is there"))
                }
            };
            batch.map_err(|error| {
                error.within(format_args!("batch {} at byte {}", at.line, at.offset))
            })
        })
    }
}

/// A framing that finds batches and counts their rows.
#[derive(Clone)]
pub(super) struct RowsOf(pub(super) Batches);

impl Framing for RowsOf {
    type Item = Row;

    fn begin(&mut self, len: u64) {
        self.0.begin(len);
    }

    fn allow(&mut self, most: u64) {
        self.0.allow(most);
    }

    fn is_whole(&self, first: &[u8]) -> bool {
        self.0.is_whole(first)
    }

    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
        self.0.frame(data, at, ended)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.finish()
    }

    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<Row> {
        let most = self.0.most(at.offset + data.len() as u64);
        rows::rows(self.0.entries(data, at), most)
    }
}
