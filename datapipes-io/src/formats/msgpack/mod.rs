//! MessagePack values in sequence.

mod scan;

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result, opaque_debug};
use rmpv::Value;
use serde::de::DeserializeOwned;

use super::compression::{Codec, Expansion};
use super::framing::{Frame, FrameKind, Framing, RecordPosition, RecordSplitter, records};
use super::json_lines::shortened;
use super::{FileEntries, Format};

/// Files of consecutive [MessagePack](https://github.com/msgpack/msgpack/blob/master/spec.md)
/// values, read as [`rmpv::Value`] or any type of serde's.
///
/// - [`MsgPack::values`] gives a value with all that the format has: binary data, extensions, keys
///   of any kind. [`MsgPack::new`] gives a type: a struct from a map or an array,
///   [`serde_json::Value`] where the values are such.
/// - A compressed file is inflated as its values are wanted, by its first bytes.
/// - Each value is copied out of the file; [`rmpv::Value`] takes up to 40 times the bytes of the
///   file, since a number of one byte is one too. The end of a value is found before the value is
///   made, so nothing is allocated by what a size claims.
///
/// # Errors
/// A value that is cut, or has a size larger than the file, is `Truncated`; 0xc1 is `Corrupt`;
/// arrays and maps deeper than [`max_depth`](MsgPack::max_depth) are `Limit`. Nothing can follow
/// them. A value that is not of the type is `Corrupt`, and the next ones follow. All tell the byte
/// at which the value begins.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::MsgPack;
/// use datapipes_io::{File, prelude::*};
///
/// // A map, and a list.
/// let files = vec![File::new("a.msgpack", &b"\x81\xa1x\x07\x92\x01\xa2ab"[..])];
/// let values = Graph::from_vec(files.clone()).read_as(MsgPack::<serde_json::Value>::new()).collect()?;
/// assert_eq!(values, [serde_json::json!({"x": 7}), serde_json::json!([1, "ab"])]);
///
/// let values = Graph::from_vec(files).read_as(MsgPack::values()).collect()?;
/// assert_eq!(values[1][0].as_u64(), Some(1));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[must_use]
pub struct MsgPack<T = Value> {
    options: Options,
    read: ReadValue<T>,
}

/// Function that makes a value of its bytes, or returns an error. Their nesting depth is known to
/// be allowed.
type ReadValue<T> = fn(&[u8]) -> Result<T, String>;

#[derive(Clone, Copy, Debug)]
struct Options {
    max_depth: usize,
    max_value: usize,
    expansion: Expansion,
}

impl MsgPack {
    /// Reads values of any kind.
    pub fn values() -> Self {
        MsgPack::by(|mut bytes| {
            rmpv::decode::read_value_with_max_depth(&mut bytes, usize::MAX)
                .map_err(|error| error.to_string())
        })
    }
}

impl<T: DeserializeOwned> MsgPack<T> {
    /// Reads values of a type that implements `Deserialize`.
    pub fn new() -> Self {
        MsgPack::by(|bytes| {
            let mut values = rmp_serde::Deserializer::from_read_ref(bytes);
            values.set_max_depth(usize::MAX);
            T::deserialize(&mut values).map_err(|error| error.to_string())
        })
    }
}

impl<T: DeserializeOwned> Default for MsgPack<T> {
    fn default() -> Self {
        MsgPack::new()
    }
}

/// Maximum nesting depth; deeper values would overflow the stack of a thread.
const MOST_LEVELS: usize = 1024;

impl<T> MsgPack<T> {
    fn by(read: ReadValue<T>) -> Self {
        MsgPack {
            options: Options {
                max_depth: 128,
                max_value: 1 << 30,
                expansion: Expansion::streamed(),
            },
            read,
        }
    }

    datapipes::setters! {
        /// Refuses arrays and maps that nest more than `levels` deep. Defaults to 128, with a maximum
        /// of 1024: each level uses some of the stack.
        max_depth(levels: usize) => options.max_depth = levels;

        /// Ends a file with an error (`Limit`) at a value of more than `bytes`. Defaults to 1 GiB.
        max_value(bytes: usize) => options.max_value = bytes;

        /// Refuses a compressed file that decompresses to more than `bytes`, or to more than `ratio`
        /// times its own size once it is past 1 MiB. Defaults to any number of bytes, which are never
        /// in memory together, and 1100 times.
        max_expansion(bytes: u64, ratio: u64) => options.expansion.limit(bytes, ratio);
    }
}

datapipes::clone_fields!(MsgPack<T> { options, read });

opaque_debug!(MsgPack<T> { options });

impl<T: Send + 'static> Format for MsgPack<T> {
    type Item = T;

    fn splitter(&self) -> Option<RecordSplitter<T>> {
        let packing = |data: &[u8], _: &str| Ok(Codec::of_magic(data).map(Codec::packing));
        Some(
            RecordSplitter::new(self.clone())
                .expansion(self.options.expansion)
                .packing(packing),
        )
    }
    fn problem(&self) -> Option<String> {
        let levels = self.options.max_depth;
        (levels > MOST_LEVELS).then(|| {
            format!("{levels} levels, of which each takes some of the stack; at most {MOST_LEVELS}")
        })
    }

    fn name(&self) -> String {
        "msgpack".to_owned()
    }
}

impl<T: Send + 'static> Framing for MsgPack<T> {
    type Item = T;

    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
        let Options {
            max_depth,
            max_value,
            ..
        } = self.options;
        // Longer values are refused, however many of their bytes are available.
        let most = data.len().min(max_value);
        match scan::value_len(&data[..most], at.offset, max_depth) {
            Ok(len) => Ok(Frame::cut(len, FrameKind::Record)),
            Err(error) if error.kind() != ErrorKind::Truncated => Err(error),
            Err(_) if data.len() > max_value => Err(Error::limit(format!(
                "the value at byte {} has more than {max_value} bytes (`max_value`)",
                at.offset
            ))),
            Err(error) if ended => Err(error),
            // Each attempt scans the value from its beginning, so the buffer is doubled.
            Err(_) => Ok(Frame::More(2 * data.len())),
        }
    }

    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<T> {
        records(self, data, at, |framing, data, range, at| {
            (framing.read)(&data[range]).map_err(|what| {
                let what = format!("the value at byte {}: {}", at.offset, shortened(&what));
                Error::corrupt(what)
            })
        })
    }
}

#[cfg(test)]
mod tests;
