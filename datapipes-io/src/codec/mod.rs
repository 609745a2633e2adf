//! `Wire` for the types that this crate's graphs carry; implementations are beside the types.

#[cfg(test)]
mod tests;

use datapipes::{Error, Reader, Result, Writer};
use serde_json::Value;

/// Maximum nesting depth of JSON and MessagePack; below the limits of their parsers.
const DEEPEST: usize = 100;

fn too_deep(what: &str) -> Error {
    Error::limit(format!(
        "{what} of more than {DEEPEST} lists and maps in each other"
    ))
}

/// Encodes JSON as text.
pub(crate) fn encode_json(value: &Value, to: &mut Writer<'_>) -> Result<()> {
    fn fits(value: &Value, depth: usize) -> bool {
        depth > 0
            && match value {
                Value::Array(values) => values.iter().all(|value| fits(value, depth - 1)),
                Value::Object(fields) => fields.values().all(|value| fits(value, depth - 1)),
                _ => true,
            }
    }
    if !fits(value, DEEPEST) {
        return Err(too_deep("JSON"));
    }
    let text = serde_json::to_vec(value).map_err(Error::user)?;
    to.number(text.len() as u64);
    to.raw(&text);
    Ok(())
}

pub(crate) fn decode_json(from: &mut Reader<'_>) -> Result<Value> {
    let len = from.count()?;
    serde_json::from_slice(from.raw(len)?).map_err(Reader::damaged)
}

/// Encodes a MessagePack value in its own format.
#[cfg(feature = "msgpack")]
pub(crate) fn encode_message_pack(value: &rmpv::Value, to: &mut Writer<'_>) -> Result<()> {
    fn fits(value: &rmpv::Value, depth: usize) -> bool {
        depth > 0
            && match value {
                rmpv::Value::Array(values) => values.iter().all(|value| fits(value, depth - 1)),
                rmpv::Value::Map(entries) => entries
                    .iter()
                    .all(|(key, value)| fits(key, depth - 1) && fits(value, depth - 1)),
                _ => true,
            }
    }
    if !fits(value, DEEPEST) {
        return Err(too_deep("MessagePack"));
    }
    rmpv::encode::write_value(to.bytes(), value).map_err(Error::user)
}

#[cfg(feature = "msgpack")]
pub(crate) fn decode_message_pack(from: &mut Reader<'_>) -> Result<rmpv::Value> {
    // The parser sees all remaining bytes, since only the value tells its own length.
    let mut ahead = from.clone();
    let whole = ahead.raw(ahead.left())?;
    let mut rest = whole;
    // The parser counts a map as two levels.
    let deepest = 2 * (DEEPEST + 1);
    let value =
        rmpv::decode::read_value_with_max_depth(&mut rest, deepest).map_err(Reader::damaged)?;
    from.raw(whole.len() - rest.len())?;
    Ok(value)
}
