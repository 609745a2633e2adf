//! Values of decoded fields.

use std::any::Any;
use std::fmt;

use bytes::Bytes;
use datapipes::{Error, Result, Tensor, wire_enum};

use super::{Array, Row};
use crate::File;
use crate::codec::{decode_json, encode_json};
#[cfg(feature = "msgpack")]
use crate::codec::{decode_message_pack, encode_message_pack};

/// The decoded value of a field of a sample; see [`FieldDecoder`](super::FieldDecoder).
#[derive(Clone)]
#[non_exhaustive]
pub enum Value {
    /// The bytes of the field, not decoded.
    Bytes(Bytes),
    /// UTF-8 text, without a byte order mark.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A JSON value.
    Json(serde_json::Value),
    /// A MessagePack value.
    #[cfg(feature = "msgpack")]
    MessagePack(rmpv::Value),
    /// Numbers: an array, an image.
    Tensor(Tensor),
}

/// Prints the number of bytes in place of bytes, as a [`Sample`](super::Sample) does: most are images.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Value::Text(text) => f.debug_tuple("Text").field(text).finish(),
            Value::Int(number) => f.debug_tuple("Int").field(number).finish(),
            Value::Json(json) => f.debug_tuple("Json").field(json).finish(),
            #[cfg(feature = "msgpack")]
            Value::MessagePack(value) => f.debug_tuple("MessagePack").field(value).finish(),
            Value::Tensor(tensor) => f.debug_tuple("Tensor").field(tensor).finish(),
        }
    }
}

wire_enum!(Value {
    0 Bytes(bytes),
    1 Text(text),
    2 Int(number),
    3 Json(json: encode_json, decode_json),
    4 Tensor(tensor),
    #[cfg(feature = "msgpack")]
    5 MessagePack(value: encode_message_pack, decode_message_pack),
});

impl Value {
    /// Returns the bytes, if the field was not decoded.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        datapipes::matching!(self, Value::Bytes(bytes) => bytes)
    }

    /// Returns the text, if the value is one.
    pub fn as_text(&self) -> Option<&str> {
        datapipes::matching!(self, Value::Text(text) => text)
    }

    /// Returns the number, if the value is one.
    pub fn as_int(&self) -> Option<i64> {
        datapipes::matching!(self, Value::Int(number) => *number)
    }

    /// Returns the JSON value, if the value is one.
    pub fn as_json(&self) -> Option<&serde_json::Value> {
        datapipes::matching!(self, Value::Json(json) => json)
    }

    /// Returns the MessagePack value, if the value is one.
    #[cfg(feature = "msgpack")]
    pub fn as_message_pack(&self) -> Option<&rmpv::Value> {
        datapipes::matching!(self, Value::MessagePack(value) => value)
    }

    /// Returns the tensor, if the value is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        datapipes::matching!(self, Value::Tensor(tensor) => tensor)
    }

    /// Returns the approximate number of bytes that the value keeps alive.
    pub(super) fn weight(&self) -> usize {
        size_of::<Value>()
            + match self {
                Value::Bytes(bytes) => bytes.len(),
                Value::Text(text) => text.len(),
                Value::Int(_) => 0,
                Value::Json(json) => json_weight(json),
                #[cfg(feature = "msgpack")]
                Value::MessagePack(value) => message_pack_weight(value),
                Value::Tensor(tensor) => tensor.byte_len(),
            }
    }
}

/// Returns the approximate number of bytes that an item of one of these types keeps alive; `None`
/// for other types.
pub(super) fn weigh<T: 'static>(item: &T) -> Option<usize> {
    fn of<T: 'static>(item: &dyn Any, weight: fn(&T) -> usize) -> Option<usize> {
        item.downcast_ref().map(weight)
    }
    let item: &dyn Any = item;
    let known = of(item, json_weight)
        .or_else(|| of(item, row_weight))
        .or_else(|| of(item, File::weight))
        .or_else(|| of(item, Array::weight));
    #[cfg(feature = "msgpack")]
    let known = known.or_else(|| of(item, message_pack_weight));
    known
}

fn row_weight(row: &Row) -> usize {
    let cells = row
        .iter()
        .map(|(name, value)| name.len() + json_weight(value));
    size_of::<Row>() + cells.sum::<usize>()
}

fn json_weight(json: &serde_json::Value) -> usize {
    use serde_json::Value as Json;
    size_of::<Json>()
        + match json {
            Json::Null | Json::Bool(_) | Json::Number(_) => 0,
            Json::String(text) => text.len(),
            Json::Array(values) => values.iter().map(json_weight).sum(),
            Json::Object(fields) => fields
                .iter()
                .map(|(name, value)| name.len() + json_weight(value))
                .sum(),
        }
}

#[cfg(feature = "msgpack")]
fn message_pack_weight(value: &rmpv::Value) -> usize {
    use rmpv::Value as Pack;
    size_of::<Pack>()
        + match value {
            Pack::String(text) => text.as_bytes().len(),
            Pack::Binary(bytes) | Pack::Ext(_, bytes) => bytes.len(),
            Pack::Array(values) => values.iter().map(message_pack_weight).sum(),
            Pack::Map(fields) => fields
                .iter()
                .map(|(key, value)| message_pack_weight(key) + message_pack_weight(value))
                .sum(),
            _ => 0,
        }
}

/// Tensors are equal if they have the same type, shape and bytes.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Json(a), Value::Json(b)) => a == b,
            #[cfg(feature = "msgpack")]
            (Value::MessagePack(a), Value::MessagePack(b)) => a == b,
            (Value::Tensor(a), Value::Tensor(b)) => {
                (a.dtype(), a.shape(), a.as_bytes()) == (b.dtype(), b.shape(), b.as_bytes())
            }
            _ => false,
        }
    }
}

datapipes::conversions! {
    |bytes: Bytes| -> Value { Value::Bytes(bytes) }
    |text: String| -> Value { Value::Text(text) }
    |number: i64| -> Value { Value::Int(number) }
    |json: serde_json::Value| -> Value { Value::Json(json) }
    |tensor: Tensor| -> Value { Value::Tensor(tensor) }
}

/// The rule that decodes an extension.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    Bytes,
    Text,
    Int,
    Json,
    #[cfg(feature = "msgpack")]
    MessagePack,
    Npy,
}

impl Rule {
    /// Returns the rule for the last part of a field's name, which is in lower case.
    pub(super) fn of(name: &str) -> Rule {
        match name.rsplit('.').next().unwrap_or(name) {
            "cls" | "cls2" | "class" | "count" | "index" | "inx" | "id" => Rule::Int,
            "txt" | "text" | "transcript" => Rule::Text,
            "json" | "jsn" => Rule::Json,
            #[cfg(feature = "msgpack")]
            "mp" | "msg" | "msgpack" => Rule::MessagePack,
            "npy" => Rule::Npy,
            _ => Rule::Bytes,
        }
    }

    pub(super) fn apply(self, data: Bytes) -> Result<Value> {
        match self {
            Rule::Bytes => Ok(Value::Bytes(data)),
            Rule::Text => text(&data).map(|(_, text)| Value::Text(text.to_owned())),
            Rule::Int => int(&data).map(Value::Int),
            Rule::Json => json(&data).map(Value::Json),
            #[cfg(feature = "msgpack")]
            Rule::MessagePack => message_pack(&data).map(Value::MessagePack),
            Rule::Npy => Array::parse(data)?.tensor().map(Value::Tensor),
        }
    }
}

/// Returns an error with its position. The name of the field is added before it.
fn corrupt(at: usize, what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("byte {at}: {what}"))
}

const MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns the text, and the position at which it begins.
fn text(data: &[u8]) -> Result<(usize, &str)> {
    let begin = if data.starts_with(MARK) {
        MARK.len()
    } else {
        0
    };
    match std::str::from_utf8(&data[begin..]) {
        Ok(text) => Ok((begin, text)),
        Err(error) => {
            let at = begin + error.valid_up_to();
            let wide = if matches!(data, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
                " but perhaps UTF-16"
            } else {
                ""
            };
            Err(corrupt(
                at,
                format!("0x{:02x} is not UTF-8{wide}", data[at]),
            ))
        }
    }
}

fn int(data: &[u8]) -> Result<i64> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let (begin, text) = text(data)?;
    let at = begin + text.len() - text.trim_start().len();
    let number = text.trim();
    number.parse().map_err(|error: std::num::ParseIntError| {
        let shown: String = number.chars().take(40).collect();
        match error.kind() {
            PosOverflow | NegOverflow => {
                corrupt(at, format!("{shown} is out of the range of 64 bits"))
            }
            _ => corrupt(at, format!("{shown:?} is no whole number")),
        }
    })
}

fn json(data: &[u8]) -> Result<serde_json::Value> {
    let (begin, text) = text(data)?;
    serde_json::from_str(text).map_err(|error| {
        let at = begin + offset(text.as_bytes(), &error);
        corrupt(at, "no JSON").with_source(error)
    })
}

/// Returns the position of an error in the text from its line and column, which count from 1.
pub(crate) fn offset(text: &[u8], error: &serde_json::Error) -> usize {
    let mut breaks = text
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1);
    let line = match error.line() {
        0 | 1 => 0,
        line => breaks.nth(line - 2).unwrap_or(text.len()),
    };
    (line + error.column().saturating_sub(1)).min(text.len())
}

/// Maximum nesting depth; deeper values are refused.
#[cfg(feature = "msgpack")]
const DEPTH: usize = 128;

#[cfg(feature = "msgpack")]
fn message_pack(data: &[u8]) -> Result<rmpv::Value> {
    let mut rest = data;
    let value = rmpv::decode::read_value_with_max_depth(&mut rest, DEPTH);
    let at = data.len() - rest.len();
    match value {
        Ok(_) if !rest.is_empty() => {
            Err(corrupt(at, format!("{} bytes after the value", rest.len())))
        }
        Ok(value) => Ok(value),
        Err(error) => Err(corrupt(at, "no MessagePack").with_source(error)),
    }
}
