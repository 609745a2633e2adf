//! MessagePack values in sequence.

mod scan;

use std::fmt;

use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result};
use rmpv::Value;
use serde::de::DeserializeOwned;

use super::compression::{Codec, Expansion};
use super::framing::{Frame, Framing, Part, Place, Splitter, records};
use super::json_lines::shortened;
use super::{Entries, Format, value};
use crate::File;

/// Reads files of consecutive [MessagePack](https://github.com/msgpack/msgpack/blob/master/spec.md)
/// values, as [`rmpv::Value`] or any type that implements serde's `Deserialize`.
///
/// - [`MsgPack::values`] yields values with all features of the format: binary data, extensions,
///   keys of any kind. [`MsgPack::new`] yields a type: a struct from a map or an array, or
///   [`serde_json::Value`] if the values permit it.
/// - A compressed file is recognized by its first bytes and decompressed as its values are
///   requested.
/// - Each value is copied from the file; [`rmpv::Value`] takes up to 40 times the bytes of the
///   file, since a number of one byte is a value too. The end of a value is found before the value
///   is made, so a stated size alone causes no allocation.
///
/// # Errors
/// A value that is cut, or has a size larger than the file, is `Truncated`; 0xc1 is `Corrupt`;
/// arrays and maps deeper than [`max_depth`](MsgPack::max_depth) are `Limit`. No values follow
/// these errors. A value that does not match the type is `Corrupt`, and the next values follow. All
/// errors contain the position at which the value begins.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::MsgPack;
/// use datapipes_io::{File, prelude::*};
///
/// // A map, and a list.
/// let files = vec![File::new("a.msgpack", &b"\x81\xa1x\x07\x92\x01\xa2ab"[..])]; let values =
/// Graph::from_vec(files.clone()).read_as(MsgPack::<serde_json::Value>::new()).collect()?;
/// assert_eq!(values, [serde_json::json!({"x": 7}), serde_json::json!([1, "ab"])]);
///
/// let values = Graph::from_vec(files).read_as(MsgPack::values()).collect()?;
/// assert_eq!(values[1][0].as_u64(), Some(1));
/// # Ok::<(), datapipes::Error>(())
/// ```
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

    /// Refuses arrays and maps that nest more than `levels` deep. Defaults to 128, with a maximum
    /// of 1024: each level uses some of the stack.
    pub fn max_depth(mut self, levels: usize) -> Self {
        self.options.max_depth = levels;
        self
    }

    /// Ends a file with an error (`Limit`) at a value of more than `bytes`. Defaults to 1 GiB.
    pub fn max_value(mut self, bytes: usize) -> Self {
        self.options.max_value = bytes;
        self
    }

    /// Refuses a compressed file that decompresses to more than `bytes`, or to more than `ratio`
    /// times its own size once it is past 1 MiB. Defaults to any number of bytes, which are never
    /// in memory together, and 1100 times.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.options.expansion = Expansion {
            bytes,
            ratio,
            ..self.options.expansion
        };
        self
    }
}

impl<T> Clone for MsgPack<T> {
    fn clone(&self) -> Self {
        MsgPack {
            options: self.options,
            read: self.read,
        }
    }
}

impl<T> fmt::Debug for MsgPack<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MsgPack")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Format for MsgPack<T> {
    type Item = T;

    fn open(&self, file: File, cx: &Context) -> Result<Entries<T>> {
        self.splitter().expect("there is one").open(file, cx)
    }
    fn splitter(&self) -> Option<Splitter<T>> {
        let packing = |data: &[u8], _: &str| Ok(Codec::of_magic(data).map(Codec::packing));
        Some(
            Splitter::new(self.clone())
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
    fn weigh(&self, item: &T) -> Option<usize> {
        value::weigh(item)
    }

    fn name(&self) -> String {
        "msgpack".to_owned()
    }
}

impl<T: Send + 'static> Framing for MsgPack<T> {
    type Item = T;

    fn frame(&mut self, data: &[u8], at: Place, ended: bool) -> Result<Frame> {
        let Options {
            max_depth,
            max_value,
            ..
        } = self.options;
        // Longer values are refused, however many of their bytes are available.
        let most = data.len().min(max_value);
        match scan::value_len(&data[..most], at.offset, max_depth) {
            Ok(len) => Ok(Frame::cut(len, Part::Record)),
            Err(error) if error.kind() != ErrorKind::Truncated => Err(error),
            Err(_) if data.len() > max_value => {
                let what = format!(
                    "the value at byte {} has more than {max_value} bytes (`max_value`)",
                    at.offset
                );
                Err(Error::new(ErrorKind::Limit, what))
            }
            Err(error) if ended => Err(error),
            // Each attempt scans the value from its beginning, so the buffer is doubled.
            Err(_) => Ok(Frame::More(2 * data.len())),
        }
    }

    fn entries(self, data: Bytes, at: Place) -> Entries<T> {
        records(self, data, at, |framing, data, range, at| {
            (framing.read)(&data[range]).map_err(|what| {
                let what = format!("the value at byte {}: {}", at.offset, shortened(&what));
                Error::new(ErrorKind::Corrupt, what)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::testing::{check_format, read_all};

    const REAL: &[u8] = include_bytes!("../../../tests/data/values.msgpack");

    fn kind(result: &Result<Value>) -> ErrorKind {
        result.as_ref().unwrap_err().kind()
    }

    #[test]
    fn a_file_of_python_is_read() {
        let values: Vec<Value> = read_all(MsgPack::values(), REAL)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(values.len(), 12);
        assert_eq!(values[0]["text"].as_str(), Some("ü 漢字 \u{1f600}"));
        assert_eq!(
            values[0]["bytes"].as_slice(),
            Some(&(0..=255).collect::<Vec<u8>>()[..])
        );
        let numbers: Vec<Option<i64>> = values[1]
            .as_array()
            .unwrap()
            .iter()
            .map(Value::as_i64)
            .collect();
        let expected = [
            0,
            127,
            128,
            255,
            256,
            65536,
            1 << 32,
            -1,
            -32,
            -33,
            -129,
            -32769,
            -(1 << 31) - 1,
        ];
        assert_eq!(numbers, expected.map(Some));
        assert_eq!(values[2], Value::F64(1.5));
        assert_eq!(values[3], Value::F32(0.25));
        assert_eq!(values[4], Value::Ext(5, b"abc".to_vec()));
        assert_eq!(values[6].as_array().unwrap().len(), 70_000 / 1000);
        assert_eq!(values[7].as_str().unwrap().len(), 300);
        assert_eq!(check_format(MsgPack::values, REAL), 12);
    }

    #[test]
    fn values_are_types_of_serde() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Point {
            x: u8,
            y: f32,
        }
        // By name, by position, and a value that does not fit.
        let data =
            b"\x82\xa1x\x01\xa1y\xcb\x3f\xf8\0\0\0\0\0\0\x92\x02\xca\x3e\x80\0\0\x81\xa1x\xa1?\x92\x03\x00";
        let read = read_all(MsgPack::<Point>::new(), &data[..]);
        let points: Vec<Option<&Point>> = read.iter().map(|point| point.as_ref().ok()).collect();
        let point = |x, y| Point { x, y };
        assert_eq!(
            points,
            [
                Some(&point(1, 1.5)),
                Some(&point(2, 0.25)),
                None,
                Some(&point(3, 0.0))
            ]
        );
        let error = read[2].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error
                .to_string()
                .contains("msgpack: 0:0/2: corrupt: the value at byte 22: "),
            "{error}"
        );
    }

    #[test]
    fn sizes_are_believed_as_far_as_there_are_bytes() {
        let claims: [&[u8]; 7] = [
            b"\xdd\xff\xff\xff\xff\x01",
            b"\xdf\xff\xff\xff\xff\x01\x02",
            b"\xdb\xff\xff\xff\xffabc",
            b"\xc6\xff\xff\xff\xffabc",
            b"\xc9\xff\xff\xff\xff\x01abc",
            b"\x95\x01\x02\x03\x04",
            b"\xcb\0\0",
        ];
        for claim in claims {
            let read = read_all(MsgPack::values(), [b"\x07", claim].concat());
            assert_eq!(read.len(), 2, "{}", claim.escape_ascii());
            assert_eq!(read[0].as_ref().unwrap().as_u64(), Some(7));
            assert_eq!(
                kind(&read[1]),
                ErrorKind::Truncated,
                "{}",
                claim.escape_ascii()
            );
        }
        let read = read_all(MsgPack::values(), &b"\x01\x92\x01\xc1\x05"[..]);
        assert_eq!((read.len(), kind(&read[1])), (2, ErrorKind::Corrupt));
        let said = read[1].as_ref().unwrap_err().to_string();
        assert!(
            said.ends_with("the value at byte 1, at byte 3: 0xc1, which begins no value"),
            "{said}"
        );
    }

    #[test]
    fn row_107_depth_is_limited() {
        let deep = |levels: usize| [vec![0x91; levels], vec![0x01]].concat();
        for levels in [1, 127, 128] {
            assert!(
                read_all(MsgPack::values(), deep(levels))[0].is_ok(),
                "{levels}"
            );
        }
        assert!(read_all(MsgPack::<serde_json::Value>::new(), deep(128))[0].is_ok());
        for levels in [129, 100_000] {
            assert_eq!(
                kind(&read_all(MsgPack::values(), deep(levels))[0]),
                ErrorKind::Limit,
                "{levels}"
            );
        }
        assert_eq!(
            kind(&read_all(MsgPack::values().max_depth(2), deep(3))[0]),
            ErrorKind::Limit
        );
    }

    #[test]
    fn cut_at_every_byte() {
        let whole = read_all(MsgPack::values(), REAL);
        for cut in (0..REAL.len()).step_by(7) {
            let read = read_all(MsgPack::values(), &REAL[..cut]);
            let (values, errors): (Vec<_>, Vec<_>) = read.into_iter().partition(Result::is_ok);
            assert!(
                errors.len() <= 1
                    && errors
                        .iter()
                        .all(|error| kind(error) == ErrorKind::Truncated)
            );
            for (value, expected) in values.iter().zip(&whole) {
                assert_eq!(value.as_ref().unwrap(), expected.as_ref().unwrap());
            }
        }
    }
}
