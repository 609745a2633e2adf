//! Encoding of values for other processes: [`Wire`], its writer and its reader.

mod chunk;
mod collections;
mod plain;
#[cfg(feature = "serde")]
mod serde;
mod tensor;
#[cfg(test)]
mod tests;
mod values;

use bytes::Bytes;

pub(crate) use self::chunk::{ChunkWire, WireOf};
#[cfg(feature = "serde")]
pub use self::serde::{Serde, Serial, decode as decode_serde, encode as encode_serde};
use crate::batch_buffer::SlabPart;
use crate::{Error, Result};

/// Bytes from which slices are sent beside the rest: they are copied once, into shared memory, and
/// are read there.
pub(crate) const PAYLOAD: usize = 64 << 10;

/// Maximum depth of nested lists, maps and boxes. Each takes some of the stack, of the reader as of
/// the writer.
const DEEPEST: usize = 128;

/// A value that can be sent to another process of the same program, and back.
///
/// `#[derive(Wire)]` (feature `derive`) implements it for a struct or an enum of fields that are
/// [`Wire`]; [`Serde`](https://docs.rs/datapipes/latest/datapipes/struct.Serde.html) (feature
/// `serde`) for anything that serde can write and read. The table lists the types that implement
/// it, and the copies of a value between two processes, besides the one copy into the memory that
/// both share:
///
/// | values | copied |
/// |---|---|
/// | [`Bytes`], [`Tensor`](crate::Tensor) | if smaller than 64 KiB: twice; else not at all |
/// | `String`, `PathBuf`, [`TypedVec`](crate::TypedVec), and `Vec`, `Box<[T]>`, `Arc<[T]>`, arrays and `VecDeque` of numbers, `bool`, `char`, or arrays of those | if smaller than 64 KiB: twice; else once when it is read, since it owns its memory |
/// | other lists, maps and sets; `Option`, `Result`, `Box`, `Arc`, `Range`, tuples of up to 8 | value by value |
/// | numbers (with `f16` and `bf16`), `bool`, `char`, `()`, [`Duration`](std::time::Duration), [`DType`](crate::DType) | a few bytes |
/// | [`Item`](crate::Item), [`Origin`](crate::Origin), [`Error`](crate::Error), [`ErrorKind`](crate::ErrorKind) | all but a parent's name that the last item had, too |
///
/// Values that `datapipes-io` reads from files and `datapipes-tables` from databases, and the
/// pictures of `datapipes-image`, with their parts, are [`Wire`] as well. A `&'static str` is not,
/// since the text that is read would have no owner: send a `String` or an `Arc<str>`.
///
/// The encoding is for two processes that run the same executable on the same machine, at the same
/// time. It is not a format for files, and may change with any version.
///
/// # Contract
/// `decode` reads exactly what `encode` wrote, and every value takes at least one byte. The bytes
/// may be damaged, since the process that wrote them may have been. Whatever the bytes are,
/// `decode` returns a value or an error, and allocates no more than a small multiple of their
/// length.
///
/// Lists, maps and boxes may be nested 128 deep, on both sides: a value that is deeper is an error
/// of [`ErrorKind::Limit`](crate::ErrorKind::Limit) when it is written. A type that contains itself (which needs one of
/// them) therefore cannot overflow a stack.
///
/// # Examples
/// ```
/// use datapipes::{Reader, Result, Wire, Writer};
///
/// #[derive(Debug, PartialEq)]
/// struct Point { x: f32, y: f32 }
///
/// impl Wire for Point {
///     fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
///         self.x.encode(to)?;
///         self.y.encode(to)
///     }
///     fn decode(from: &mut Reader<'_>) -> Result<Self> {
///         Ok(Point { x: f32::decode(from)?, y: f32::decode(from)? })
///     }
/// }
/// ```
///
/// A type that is not `Wire` does not compile where it would have to be sent: "`Instant` cannot
/// travel to another process".
///
/// ```compile_fail,E0277
/// fn can_travel<T: datapipes::Wire>(_: datapipes::Graph<T>) {}
///
/// can_travel(datapipes::Graph::range(0..3).map(|_| std::time::Instant::now()));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel to another process",
    label = "what goes into a part of a graph in other processes, and what comes out of it, has to implement `Wire`",
    note = "derive it: `#[derive(datapipes::Wire)]` (feature `derive`); or wrap a type of serde's in `datapipes::Serde` (feature `serde`)"
)]
pub trait Wire: Sized + Send + 'static {
    /// Writes the value. Large slices are borrowed, not copied; see [`Writer::payload`].
    ///
    /// # Errors
    /// Fails if this value cannot be written. The error costs the item that the value is part of.
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()>;

    /// Reads a value.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the bytes are not those that `encode` wrote.
    fn decode(from: &mut Reader<'_>) -> Result<Self>;

    /// Writes many values; faster for plain numbers.
    #[doc(hidden)]
    fn encode_all<'a>(values: &'a [Self], to: &mut Writer<'a>) -> Result<()> {
        values.iter().try_for_each(|value| value.encode(to))
    }

    /// Reads this many values; the caller does not know whether the bytes contain them all.
    #[doc(hidden)]
    fn decode_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>> {
        // A value in memory may be much larger than encoded, so no more is reserved than the bytes
        // could contain.
        let most = from.left() / size_of::<Self>().max(1) + 1;
        let mut values = Vec::with_capacity(count.min(most));
        for _ in 0..count {
            values.push(Self::decode(from)?);
        }
        Ok(values)
    }
}

/// The output of an encoding: bytes, and large slices beside them.
#[derive(Debug, Default)]
pub struct Writer<'a> {
    head: Vec<u8>,
    payloads: Vec<&'a [u8]>,
    depth: usize,
    /// Job whose rows the reader has granted.
    job: Option<u64>,
    /// Bytes in such rows.
    in_rows: usize,
}

impl<'a> Writer<'a> {
    /// Makes an empty writer.
    pub fn new() -> Self {
        Writer::default()
    }

    /// Makes a writer for a reader that has granted rows for a job.
    pub(crate) fn of_job(job: u64) -> Self {
        Writer {
            job: Some(job),
            ..Writer::default()
        }
    }

    pub(crate) fn job(&self) -> Option<u64> {
        self.job
    }

    /// Records bytes that are in a granted row.
    pub(crate) fn is_in_row(&mut self, bytes: usize) {
        self.in_rows += bytes;
    }

    /// Writes bytes unchanged.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// Writes a number that is often small: 7 bits a byte, the lowest first.
    #[inline]
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.head.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.head.push(number as u8);
    }

    /// Writes a slice, for [`Reader::payload`]. A slice of 64 KiB or more is only borrowed: the
    /// queue copies it once, into memory that both processes share.
    pub fn payload(&mut self, bytes: &'a [u8]) {
        self.number(bytes.len() as u64);
        if bytes.len() >= PAYLOAD {
            self.payloads.push(bytes);
        } else {
            self.raw(bytes);
        }
    }

    /// Returns the buffer, for an encoder that appends to a vector.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.head
    }

    /// Writes the contents of a list, a map or a box.
    pub(crate) fn inside<R>(&mut self, write: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.depth == DEEPEST {
            let message = format!("a value of more than {DEEPEST} lists and boxes in each other");
            return Err(Error::limit(message));
        }
        self.depth += 1;
        let written = write(self);
        self.depth -= 1;
        written
    }

    /// Returns how many bytes were written, large slices included.
    pub fn len(&self) -> usize {
        self.in_rows
            + self.head.len()
            + self
                .payloads
                .iter()
                .map(|payload| payload.len())
                .sum::<usize>()
    }

    /// Returns true if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.payloads.is_empty()
    }

    /// Returns the position, for [`back_to`](Writer::back_to).
    pub(crate) fn mark(&self) -> (usize, usize) {
        (self.head.len(), self.payloads.len())
    }

    /// Removes everything written since a position.
    pub(crate) fn back_to(&mut self, (head, payloads): (usize, usize)) {
        self.head.truncate(head);
        self.payloads.truncate(payloads);
    }

    /// Returns the bytes, and the large slices.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<&'a [u8]>) {
        (self.head, self.payloads)
    }
}

/// The input of a decoding.
#[derive(Debug)]
pub struct Reader<'a> {
    head: &'a [u8],
    payloads: std::slice::Iter<'a, Bytes>,
    depth: usize,
    /// Rows of batches that the writer was allowed to fill and that are not used yet.
    grants: &'a mut [Option<SlabPart>],
}

/// Clones a reader to look ahead; rows that the writer was allowed to fill stay with the original.
impl Clone for Reader<'_> {
    fn clone(&self) -> Self {
        Reader {
            head: self.head,
            payloads: self.payloads.clone(),
            depth: self.depth,
            grants: &mut [],
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(head: &'a [u8], payloads: &'a [Bytes]) -> Self {
        Reader {
            head,
            payloads: payloads.iter(),
            depth: 0,
            grants: &mut [],
        }
    }

    /// Sets the rows that the writer was allowed to fill.
    pub(crate) fn with_grants(self, grants: &'a mut [Option<SlabPart>]) -> Self {
        Reader { grants, ..self }
    }

    /// Returns a row that the writer has filled, once.
    pub(crate) fn grant(&mut self, row: usize) -> Option<SlabPart> {
        self.grants.get_mut(row)?.take()
    }

    /// Returns the number of bytes left, without large slices.
    pub fn left(&self) -> usize {
        self.head.len()
    }

    /// Reads the next bytes unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if there are fewer bytes.
    #[inline]
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.head.split_at_checked(len) {
            Some((bytes, rest)) => {
                self.head = rest;
                Ok(bytes)
            }
            None => Err(damaged(format_args!(
                "{len} bytes wanted, {} there",
                self.head.len()
            ))),
        }
    }

    /// Reads a number written by [`Writer::number`].
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if there is none, or it has more than 64 bits.
    #[inline]
    pub fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.raw(1)?[0];
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged("a number of more than 64 bits"))
    }

    /// Returns the next number without consuming it.
    pub(crate) fn peek_number(&self) -> Result<u64> {
        Reader::new(self.head, &[]).number()
    }

    /// Reads the number of values that follow, each of at least one byte.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if there are fewer bytes than values.
    pub fn count(&mut self) -> Result<usize> {
        let count = self.number()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.head.len() => Ok(count),
            _ => Err(damaged(format_args!(
                "{count} values in {} bytes",
                self.head.len()
            ))),
        }
    }

    /// Reads the number of values that follow, some of which may be in large slices: for
    /// [`Wire::decode_all`].
    pub(crate) fn many(&mut self) -> Result<usize> {
        let count = self.number()?;
        let fits = |count: &usize| {
            *count <= self.head.len()
                || *count <= self.head.len() + self.payloads.clone().map(Bytes::len).sum::<usize>()
        };
        usize::try_from(count)
            .ok()
            .filter(fits)
            .ok_or_else(|| damaged(format_args!("{count} values in {} bytes", self.head.len())))
    }

    /// Reads the contents of a list, a map or a box.
    pub(crate) fn inside<R>(&mut self, read: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.depth == DEEPEST {
            return Err(damaged(format_args!(
                "more than {DEEPEST} lists and boxes in each other"
            )));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// Reads a slice written by [`Writer::payload`], for a caller that copies it.
    pub(crate) fn slice(&mut self) -> Result<&'a [u8]> {
        let len = self.number()?;
        if len < PAYLOAD as u64 {
            return self.raw(len as usize);
        }
        self.large(len).map(|payload| &payload[..])
    }

    fn large(&mut self, len: u64) -> Result<&'a Bytes> {
        match self.payloads.next() {
            Some(payload) if payload.len() as u64 == len => Ok(payload),
            Some(payload) => Err(damaged(format_args!(
                "a slice of {} bytes instead of {len}",
                payload.len()
            ))),
            None => Err(damaged(format_args!("a slice of {len} bytes is missing"))),
        }
    }

    /// Reads a slice written by [`Writer::payload`]. A large slice lies in shared memory, from the
    /// start of a page, and is not copied; the memory is used again when the last clone of the
    /// slice is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the slice is missing.
    pub fn payload(&mut self) -> Result<Bytes> {
        let len = self.number()?;
        if len < PAYLOAD as u64 {
            return Ok(Bytes::copy_from_slice(self.raw(len as usize)?));
        }
        self.large(len).cloned()
    }

    /// Makes the error of bytes that `encode` cannot have written: `what` describes the damage.
    pub fn damaged(what: impl std::fmt::Display) -> Error {
        damaged(what)
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if something is left.
    pub fn end(&self) -> Result<()> {
        match (self.head.len(), self.payloads.len()) {
            (0, 0) => Ok(()),
            (bytes, slices) => Err(damaged(format_args!(
                "{bytes} bytes and {slices} slices too many"
            ))),
        }
    }
}

/// Makes the error of bytes from another process that cannot have been written.
pub(crate) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::protocol(format!("from another process: {what}"))
}

/// Makes the error of a number that is no variant's, for derived code.
#[doc(hidden)]
pub fn no_variant(name: &str, number: u64) -> Error {
    damaged(format_args!("{name} has no variant {number}"))
}

/// Encodes a value for storage beyond the life of the process.
pub(crate) fn pack<T: Wire>(value: &T) -> Result<Vec<u8>> {
    let mut writer = Writer::new();
    value.encode(&mut writer)?;
    let (head, payloads) = writer.into_parts();
    let mut packed = Writer::new();
    packed.number(head.len() as u64);
    packed.raw(&head);
    for payload in payloads {
        packed.number(payload.len() as u64);
        packed.raw(payload);
    }
    Ok(packed.into_parts().0)
}

/// Decodes a value that was [packed](pack).
///
/// # Errors
/// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it is another value, or damaged.
pub(crate) fn unpack<T: Wire>(bytes: &[u8]) -> Result<T> {
    let mut packed = Reader::new(bytes, &[]);
    let len = packed.count()?;
    let head = packed.raw(len)?;
    let mut payloads = Vec::new();
    while packed.left() > 0 {
        let len = packed.count()?;
        payloads.push(Bytes::copy_from_slice(packed.raw(len)?));
    }
    let mut reader = Reader::new(head, &payloads);
    let value = T::decode(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// A message that was received and is not decoded yet.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    pub head: Bytes,
    pub payloads: Vec<Bytes>,
}

impl Parcel {
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.head, &self.payloads)
    }

    /// Returns the number of bytes received, large slices included.
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payloads.iter().map(Bytes::len).sum::<usize>()
    }

    /// Makes a parcel from a writer, without a queue between.
    pub(crate) fn of(writer: Writer<'_>) -> Parcel {
        let (head, payloads) = writer.into_parts();
        Parcel {
            head: head.into(),
            payloads: payloads.into_iter().map(Bytes::copy_from_slice).collect(),
        }
    }
}
