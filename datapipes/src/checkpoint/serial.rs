//! Fields of a checkpoint for serde: those that are left out, and bytes as text.

use std::fmt;

use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::ser::Serializer;

/// Returns true if a field can be left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn to_hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let text: String = digits
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect();
    serializer.serialize_str(&text)
}

/// Reads bytes from hexadecimal digits.
pub(crate) fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_str(Digits)
}

struct Digits;

impl Visitor<'_> for Digits {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an even number of hexadecimal digits")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes = pairs
            .iter()
            .map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8));
        match bytes.collect() {
            Some(bytes) if rest.is_empty() => Ok(bytes),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}
