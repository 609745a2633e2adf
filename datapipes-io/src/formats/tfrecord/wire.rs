//! The part of the wire format of protocol buffers that `tf.train.Example` needs.
//!
//! Source: the encoding page of the protocol buffers' documentation.

use bytes::{Buf, Bytes};
use datapipes::{Error, Result};

/// Maximum nesting depth of groups in unknown fields.
const MOST_NESTED: usize = 64;

/// Wire type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Varint,
    Fixed64,
    Len,
    Group,
    EndGroup,
    Fixed32,
}

/// An iterator over the fields of a message.
pub(super) struct Fields {
    rest: Bytes,
    whole: usize,
}

impl Fields {
    pub(super) fn of(message: Bytes) -> Self {
        Fields {
            whole: message.len(),
            rest: message,
        }
    }

    /// Returns the number and type of the next field; its value must be read next.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Wire)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Len,
            3 => Wire::Group,
            4 => Wire::EndGroup,
            5 => Wire::Fixed32,
            other => return Err(self.wrong(format!("wire type {other}"))),
        };
        match tag >> 3 {
            0 => Err(self.wrong("a field of number 0".to_owned())),
            number => Ok(Some((number, wire))),
        }
    }

    pub(super) fn varint(&mut self) -> Result<u64> {
        match varint(&self.rest) {
            Ok((value, bytes)) => {
                self.rest.advance(bytes);
                Ok(value)
            }
            Err(what) => Err(self.wrong(what.to_owned())),
        }
    }

    /// Reads consecutive numbers, in a field of stated length.
    pub(super) fn packed(&mut self, mut put: impl FnMut(u64)) -> Result<()> {
        let numbers = self.len()?;
        let mut rest = &numbers[..];
        while !rest.is_empty() {
            let (value, bytes) = varint(rest).map_err(|what| self.wrong(what.to_owned()))?;
            put(value);
            rest = &rest[bytes..];
        }
        Ok(())
    }

    /// Reads a value of stated length as a slice.
    pub(super) fn len(&mut self) -> Result<Bytes> {
        let length = self.varint()?;
        self.take(length)
    }

    pub(super) fn fixed32(&mut self) -> Result<[u8; 4]> {
        let bytes = self.take(4)?;
        Ok(*bytes.first_chunk().expect("four were taken"))
    }

    /// Reads the message in a field that must hold one.
    pub(super) fn message(&mut self, wire: Wire, what: &str) -> Result<Fields> {
        self.expect(wire, Wire::Len, what)?;
        Ok(Fields::of(self.len()?))
    }

    pub(super) fn expect(&self, got: Wire, want: Wire, what: &str) -> Result<()> {
        if got == want {
            return Ok(());
        }
        Err(self.wrong(format!(
            "{what} of wire type {got:?}, where {want:?} is due"
        )))
    }

    /// Skips the value of an unknown field.
    pub(super) fn skip(&mut self, number: u64, wire: Wire) -> Result<()> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.take(8).map(drop),
            Wire::Len => self.len().map(drop),
            Wire::Fixed32 => self.take(4).map(drop),
            Wire::EndGroup => Err(self.wrong("the end of a group that did not begin".to_owned())),
            Wire::Group => self.skip_group(number),
        }
    }

    fn skip_group(&mut self, number: u64) -> Result<()> {
        let mut open = vec![number];
        while let Some(&inner) = open.last() {
            match self.next()? {
                None => return Err(self.wrong("a group without an end".to_owned())),
                Some((number, Wire::EndGroup)) if number == inner => drop(open.pop()),
                Some((number, Wire::Group)) if open.len() < MOST_NESTED => open.push(number),
                Some((_, Wire::Group)) => {
                    let what = format!("groups {MOST_NESTED} deep, {}", self.at());
                    return Err(Error::limit(what));
                }
                Some((number, wire)) => self.skip(number, wire)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, length: u64) -> Result<Bytes> {
        let there = self.rest.len();
        match usize::try_from(length) {
            Ok(length) if length <= there => Ok(self.rest.split_to(length)),
            _ => Err(self.wrong(format!("{length} bytes stated, {there} there"))),
        }
    }

    fn at(&self) -> String {
        format!(
            "at byte {} of {} of its message",
            self.whole - self.rest.len(),
            self.whole
        )
    }

    pub(super) fn wrong(&self, what: String) -> Error {
        Error::corrupt(format!("{what}, {}", self.at()))
    }
}

/// Parses a number, and returns the number of its bytes.
fn varint(rest: &[u8]) -> Result<(u64, usize), &'static str> {
    let mut value = 0;
    for (at, &byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            if at == 9 && byte > 1 {
                break;
            }
            return Ok((value, at + 1));
        }
    }
    Err(if rest.len() < 10 {
        "a number that is cut"
    } else {
        "a number of more than 64 bits"
    })
}

/// Writes a number.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a field of stated length.
pub(super) fn put_len(out: &mut Vec<u8>, number: u64, value: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}
