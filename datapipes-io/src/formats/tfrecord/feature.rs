//! The values of a feature of `tf.train.Example`.

use std::mem::discriminant;

use bytes::Bytes;
use datapipes::{Error, Result, wire_enum};

use super::wire::{Fields, Wire, put_len, put_varint};

/// The values of one feature: one list, of one of three types.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Feature {
    /// Byte strings: slices of the record.
    Bytes(Vec<Bytes>),
    /// `f32` numbers.
    Floats(Vec<f32>),
    /// `i64` numbers.
    Ints(Vec<i64>),
    /// A feature without a type.
    #[default]
    Empty,
}

wire_enum!(Feature { 0 Bytes(values), 1 Floats(values), 2 Ints(values), 3 Empty });

impl Feature {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Feature::Bytes(values) => values.len(),
            Feature::Floats(values) => values.len(),
            Feature::Ints(values) => values.len(),
            Feature::Empty => 0,
        }
    }

    /// Returns true if the feature has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Feature::Bytes(_) => "bytes",
            Feature::Floats(_) => "floats",
            Feature::Ints(_) => "ints",
            Feature::Empty => "no type",
        }
    }

    /// Adds the values of a message; a list of another type replaces the previous one, as in
    /// protocol buffers.
    pub(super) fn merge(&mut self, mut message: Fields) -> Result<()> {
        while let Some((number, wire)) = message.next()? {
            let (empty, name) = match number {
                1 => (Feature::Bytes(Vec::new()), "a list of bytes"),
                2 => (Feature::Floats(Vec::new()), "a list of floats"),
                3 => (Feature::Ints(Vec::new()), "a list of ints"),
                _ => {
                    message.skip(number, wire)?;
                    continue;
                }
            };
            let mut list = message.message(wire, name)?;
            if discriminant(self) != discriminant(&empty) {
                *self = empty;
            }
            while let Some((number, wire)) = list.next()? {
                match (&mut *self, wire) {
                    _ if number != 1 => list.skip(number, wire)?,
                    (Feature::Bytes(values), Wire::Len) => values.push(list.len()?),
                    (Feature::Floats(values), Wire::Fixed32) => {
                        values.push(f32::from_le_bytes(list.fixed32()?))
                    }
                    (Feature::Floats(values), Wire::Len) => {
                        floats(&list.len()?, values).map_err(|what| list.wrong(what))?
                    }
                    (Feature::Ints(values), Wire::Varint) => values.push(list.varint()? as i64),
                    (Feature::Ints(values), Wire::Len) => {
                        list.packed(|value| values.push(value as i64))?
                    }
                    (Feature::Floats(_), _) => {
                        list.expect(wire, Wire::Fixed32, "a value of floats")?
                    }
                    (Feature::Ints(_), _) => list.expect(wire, Wire::Varint, "a value of ints")?,
                    (_, _) => list.expect(wire, Wire::Len, "a value of bytes")?,
                }
            }
        }
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut list = Vec::new();
        let mut packed = Vec::new();
        let number = match self {
            Feature::Bytes(values) => {
                values.iter().for_each(|value| put_len(&mut list, 1, value));
                1
            }
            Feature::Floats(values) => {
                packed.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                2
            }
            Feature::Ints(values) => {
                values
                    .iter()
                    .for_each(|&value| put_varint(&mut packed, value as u64));
                3
            }
            Feature::Empty => return,
        };
        if !packed.is_empty() {
            put_len(&mut list, 1, &packed);
        }
        put_len(out, number, &list);
    }

    /// Returns the error of a feature of another type than wanted; a feature without a type has no
    /// values.
    pub(super) fn lacks<T>(&self, name: &str, wanted: &str) -> Result<&[T]> {
        if *self == Feature::Empty {
            return Ok(&[]);
        }
        let what = format!("feature {name:?} holds {}, not {wanted}", self.kind());
        Err(Error::corrupt(what))
    }

    pub(super) fn weight(&self) -> usize {
        let values = match self {
            Feature::Bytes(values) => values
                .iter()
                .map(|value| value.len() + size_of::<Bytes>())
                .sum(),
            Feature::Floats(values) => size_of_val(&values[..]),
            Feature::Ints(values) => size_of_val(&values[..]),
            Feature::Empty => 0,
        };
        values + size_of::<(String, Feature)>()
    }
}

/// Parses packed numbers.
fn floats(packed: &[u8], values: &mut Vec<f32>) -> Result<(), String> {
    let (numbers, rest) = packed.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!("{} bytes of floats", packed.len()));
    }
    values.extend(numbers.iter().map(|number| f32::from_le_bytes(*number)));
    Ok(())
}

macro_rules! from {
    ($($from:ty, $value:ident => $feature:expr;)*) => {$(
        impl From<$from> for Feature {
            fn from($value: $from) -> Self {
                $feature
            }
        }
    )*};
}

from! {
    Vec<Bytes>, values => Feature::Bytes(values);
    Bytes, value => Feature::Bytes(vec![value]);
    &'static str, text => Feature::Bytes(vec![text.into()]);
    String, text => Feature::Bytes(vec![text.into()]);
    Vec<f32>, values => Feature::Floats(values);
    f32, value => Feature::Floats(vec![value]);
    Vec<i64>, values => Feature::Ints(values);
    i64, value => Feature::Ints(vec![value]);
}
