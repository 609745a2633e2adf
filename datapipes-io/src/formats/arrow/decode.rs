//! Decodes the messages of Arrow IPC: their frames, their sizes, and their content.
//!
//! Layout:
//! <https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc>

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{MessageHeader, convert::try_fb_to_schema, root_as_message};
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};

use super::guard::{arrow_error, guarded};
use super::no_column;

/// Magic at the beginning and the end of a file.
pub(super) const MAGIC: &[u8] = b"ARROW1";

/// Returns true for the beginning of a file with an index, or of Feather version 1.
pub(super) fn is_file(first: &[u8]) -> bool {
    first.starts_with(MAGIC) || first.starts_with(b"FEA1")
}

/// A message: its head, its body, and the position of the next message.
pub(super) struct Message<'a> {
    pub head: arrow_ipc::Message<'a>,
    pub body: Range<usize>,
}

impl<'a> Message<'a> {
    /// Returns the head of a record batch, which the message must be.
    pub fn record_batch(&self) -> Result<arrow_ipc::RecordBatch<'a>> {
        self.head.header_as_record_batch().ok_or_else(|| {
            let kind = self.head.header_type();
            let (kind, name) = match kind {
                MessageHeader::Tensor | MessageHeader::SparseTensor => {
                    (ErrorKind::Unsupported, kind)
                }
                _ => (ErrorKind::Corrupt, kind),
            };
            let name = name.variant_name().unwrap_or("nothing known");
            Error::new(kind, format!("{name} where a record batch is due"))
        })
    }
}

/// Content at a position of a stream.
pub(super) enum Found<'a> {
    Message(Message<'a>),
    /// The end marker, and the position of its end.
    Marker(usize),
    /// The end of the bytes.
    End,
    /// More bytes are needed, at least this many.
    More(u64),
}

/// Finds the message at a position of bytes that are all in memory.
pub(super) fn find<'a>(
    data: &'a [u8],
    at: usize,
    copy: &'a mut Option<Buffer>,
) -> Result<Found<'a>> {
    find_in(data, at, true, copy)
}

/// Finds the message at a position. `copy` receives its head if the head is not aligned.
pub(super) fn find_in<'a>(
    data: &'a [u8],
    at: usize,
    ended: bool,
    copy: &'a mut Option<Buffer>,
) -> Result<Found<'a>> {
    let rest = data.get(at..).unwrap_or_default();
    if rest.is_empty() && ended {
        return Ok(Found::End);
    }
    let whole = rest.len();
    let cut = |what: &str, got: usize, want: u64| match ended {
        true => Err(Error::truncated(format!("{got} of {want} bytes of {what}"))),
        false => Ok(Found::More((whole - got) as u64 + want)),
    };
    let number = |at: usize| {
        let bytes = rest.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(i32::from_le_bytes)
    };
    // Before Arrow 0.15 there was only the length.
    let (length, start) = match (number(0), number(4)) {
        (Some(-1), Some(length)) => (length, 8),
        (Some(length), _) if length != -1 => (length, 4),
        _ => return cut("a length", rest.len(), 8),
    };
    if length == 0 {
        return Ok(Found::Marker(at + start));
    }
    let Ok(length) = usize::try_from(length) else {
        return Err(Error::corrupt(format!(
            "the header of a message has an impossible length, {length} bytes"
        )));
    };
    let Some(head) = rest.get(start..start.saturating_add(length)) else {
        return cut(
            "the header of a message",
            rest.len().saturating_sub(start),
            length as u64,
        );
    };
    let head = root_as_message(aligned(head, copy)).map_err(|error| {
        Error::corrupt("the header of a message cannot be read").with_source(error.to_string())
    })?;
    let body_at = at + start + length;
    let there = data.len() - body_at;
    match usize::try_from(head.bodyLength()) {
        Ok(length) if length <= there => Ok(Found::Message(Message {
            head,
            body: body_at..body_at + length,
        })),
        Ok(length) => cut("the body of a message", there, length as u64),
        Err(_) => Err(Error::corrupt(format!(
            "the body of a message has an impossible length, {} bytes",
            head.bodyLength()
        ))),
    }
}

/// Returns the bytes without a copy if they are aligned for numbers, else a copy.
pub(super) fn aligned<'a>(bytes: &'a [u8], copy: &'a mut Option<Buffer>) -> &'a [u8] {
    if bytes.as_ptr().cast::<u64>().is_aligned() {
        bytes
    } else {
        copy.insert(Buffer::from(bytes)).as_slice()
    }
}

/// A decoder of messages into batches: holds the schema and the dictionaries.
#[derive(Clone)]
pub(super) struct Decoder {
    schema: SchemaRef,
    chosen: Option<Vec<usize>>,
    dictionaries: HashMap<i64, ArrayRef>,
    /// Maximum number of bytes, and of rows, of a decoded message.
    most: u64,
}

impl Decoder {
    pub fn new(
        schema: arrow_ipc::Schema<'_>,
        columns: Option<&[String]>,
        most: u64,
    ) -> Result<Self> {
        if !schema.endianness().equals_to_target_endianness() {
            let what = "its numbers are in the other byte order";
            return Err(Error::unsupported(what));
        }
        let schema = guarded("Arrow", || try_fb_to_schema(schema).map_err(arrow_error))?;
        let chosen = columns.map(|names| chosen(&schema, names)).transpose()?;
        Ok(Decoder {
            schema: Arc::new(schema),
            chosen,
            dictionaries: HashMap::new(),
            most,
        })
    }

    /// Adds a dictionary, or extends it.
    pub fn dictionary(&mut self, data: &Bytes, message: &Message<'_>) -> Result<()> {
        let batch = message.head.header_as_dictionary_batch().ok_or_else(|| {
            let kind = message
                .head
                .header_type()
                .variant_name()
                .unwrap_or("nothing known");
            Error::corrupt(format!("{kind} where a dictionary is due"))
        })?;
        let body = data.slice(message.body.clone());
        self.check(batch.data(), &body)?;
        guarded("Arrow", || {
            let (body, version) = (Buffer::from(body), message.head.version());
            read_dictionary(&body, batch, &self.schema, &mut self.dictionaries, &version)
                .map_err(arrow_error)
        })
    }

    /// Decodes a batch whose columns are slices of the file, if they are aligned and not
    /// compressed.
    pub fn batch(&self, data: &Bytes, message: &Message<'_>) -> Result<RecordBatch> {
        let batch = message.record_batch()?;
        let body = data.slice(message.body.clone());
        self.check(Some(batch), &body)?;
        guarded("Arrow", || {
            let (body, version) = (Buffer::from(body), message.head.version());
            let chosen = self.chosen.as_deref();
            read_record_batch(
                &body,
                batch,
                self.schema.clone(),
                &self.dictionaries,
                chosen,
                &version,
            )
            .map_err(arrow_error)
        })
    }

    /// Checks that the sizes in a batch are possible.
    fn check(&self, batch: Option<arrow_ipc::RecordBatch<'_>>, body: &[u8]) -> Result<()> {
        let Some(batch) = batch else { return Ok(()) };
        let corrupt = |what: String| Err(Error::corrupt(what));
        let limit = |what: &str, stated: u64| {
            Err(Error::limit(format!(
                "{stated} {what} of {} bytes, at most {} are allowed (`max_expansion`, `max_inflated`)",
                body.len(),
                self.most
            )))
        };
        let nodes = batch
            .nodes()
            .into_iter()
            .flatten()
            .map(|node| node.length());
        for rows in nodes.chain([batch.length()]) {
            match u64::try_from(rows) {
                Ok(rows) if rows > self.most => return limit("rows out", rows),
                Ok(_) => (),
                Err(_) => return corrupt(format!("{rows} rows")),
            }
        }
        let mut inflated = 0_u64;
        for (index, buffer) in batch.buffers().into_iter().flatten().enumerate() {
            let place = usize::try_from(buffer.offset())
                .ok()
                .zip(usize::try_from(buffer.length()).ok());
            let bytes = place.and_then(|(from, length)| body.get(from..from.checked_add(length)?));
            let Some(bytes) = bytes else {
                let (from, length) = (buffer.offset(), buffer.length());
                let what = format!(
                    "buffer {index} has {length} bytes at {from}, the body {}",
                    body.len()
                );
                return corrupt(what);
            };
            // The uncompressed size is stored before compressed data; -1 marks uncompressed data.
            if let (Some(_), Some(stated)) = (batch.compression(), bytes.first_chunk::<8>()) {
                inflated = inflated
                    .saturating_add(u64::try_from(i64::from_le_bytes(*stated)).unwrap_or(0));
            }
        }
        if inflated > self.most {
            limit("bytes out", inflated)
        } else {
            Ok(())
        }
    }
}

/// Returns the indices of columns, in the order of the file.
fn chosen(schema: &Schema, names: &[String]) -> Result<Vec<usize>> {
    let place = |name: &String| {
        let there = || schema.fields().iter().map(|field| &**field.name());
        let place = there().position(|field| field == name);
        place.ok_or_else(|| no_column(name, there()))
    };
    let mut chosen = names.iter().map(place).collect::<Result<Vec<_>>>()?;
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}
