//! A checkpoint for serde: with names in readable formats, as bytes in others.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

use super::bytes::{VERSION, damaged, later};
use super::{Checkpoint, Saved, SavedNode};
use crate::checkpoint::{Cursor, InputCursor};
use crate::{Result, Uneven};

/// Writes all fields by name, and the checksum of the bytes, in readable formats (JSON, TOML); in
/// others the bytes of [`to_bytes`](Checkpoint::to_bytes).
impl Serialize for Checkpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            Form::of(self).serialize(serializer)
        } else {
            serializer.serialize_bytes(&self.to_bytes())
        }
    }
}

/// Refuses the same as [`from_bytes`](Checkpoint::from_bytes), and unknown fields.
impl<'de> Deserialize<'de> for Checkpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            Form::deserialize(deserializer)?
                .into_state()
                .map_err(de::Error::custom)
        } else {
            deserializer.deserialize_byte_buf(Bytes)
        }
    }
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Checkpoint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of a checkpoint")
    }
    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Checkpoint, E> {
        Checkpoint::from_bytes(bytes).map_err(E::custom)
    }
    /// Reads the checkpoint in formats that have no bytes.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Checkpoint, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        self.visit_bytes(&bytes)
    }
}

#[derive(PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: Version,
    seed: u64,
    epoch: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    finished: bool,
    delivered: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    skipped: u64,
    world: u64,
    rank: u64,
    /// The policy by its [number](Uneven::number).
    #[serde(default, skip_serializing_if = "is_default")]
    uneven: u64,
    nodes: Vec<Node>,
    /// Checksum of all ranks; empty in `others`.
    #[serde(default, skip_serializing_if = "is_default")]
    check: Hex,
    /// Checkpoints of the other ranks.
    #[serde(default, skip_serializing_if = "is_default")]
    others: Vec<Form>,
}

#[derive(PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    kind: String,
    #[serde(default, skip_serializing_if = "is_default")]
    settings: String,
    #[serde(default, skip_serializing_if = "is_default")]
    inputs: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cursor: Option<CursorForm>,
}

#[derive(PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorForm {
    outputs: Vec<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    inputs: Vec<InputForm>,
    // Earlier it was written as `kept`.
    #[serde(alias = "kept", default, skip_serializing_if = "is_default")]
    state: Hex,
    #[serde(default, skip_serializing_if = "is_default")]
    pieces: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "is_default")]
    round: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unordered: bool,
}

#[derive(Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct InputForm {
    from: u64,
    reach: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    held: Vec<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Form {
    fn of(state: &Checkpoint) -> Form {
        let node = |SavedNode {
                        name,
                        kind,
                        settings,
                        inputs,
                        cursor,
                    }: &SavedNode| Node {
            name: name.clone(),
            kind: kind.clone(),
            settings: settings.clone(),
            inputs: inputs.clone(),
            cursor: cursor.as_ref().map(CursorForm::of),
        };
        let one = |saved: &Saved, check: Hex, others| {
            let &Saved {
                seed,
                epoch,
                finished,
                delivered,
                skipped,
                world,
                rank,
                uneven,
                ref nodes,
            } = saved;
            let (nodes, uneven) = (nodes.iter().map(node).collect(), Uneven::number(uneven));
            let version = Version;
            Form {
                version,
                seed,
                epoch,
                finished,
                delivered,
                skipped,
                world,
                rank,
                uneven,
                nodes,
                check,
                others,
            }
        };
        let others = state.0[1..]
            .iter()
            .map(|saved| one(saved, Hex::default(), Vec::new()));
        one(&state.0[0], Hex(check(state)), others.collect())
    }

    fn into_state(self) -> Result<Checkpoint> {
        let (wanted, mut ranks) = (self.check.0.clone(), Vec::new());
        self.into_ranks(&mut ranks)?;
        let state = Checkpoint::checked(ranks)?;
        match check(&state) == wanted {
            true => Ok(state),
            false => Err(damaged("its checksum is another")),
        }
    }

    fn into_ranks(self, ranks: &mut Vec<Saved>) -> Result<()> {
        let node = |Node {
                        name,
                        kind,
                        settings,
                        inputs,
                        cursor,
                    }| SavedNode {
            name,
            kind,
            settings,
            inputs,
            cursor: cursor.map(CursorForm::into_cursor),
        };
        ranks.push(Saved {
            seed: self.seed,
            epoch: self.epoch,
            finished: self.finished,
            delivered: self.delivered,
            skipped: self.skipped,
            world: self.world,
            rank: self.rank,
            uneven: Uneven::from_number(self.uneven)
                .ok_or_else(|| damaged("no rule for uneven ranks"))?,
            nodes: self.nodes.into_iter().map(node).collect(),
        });
        self.others
            .into_iter()
            .try_for_each(|other| other.into_ranks(ranks))
    }
}

/// Returns the checksum at the end of the bytes, the highest digit first.
fn check(state: &Checkpoint) -> Vec<u8> {
    state.to_bytes().into_iter().rev().take(8).collect()
}

impl CursorForm {
    fn of(cursor: &Cursor) -> CursorForm {
        let Cursor {
            outputs,
            inputs,
            state,
            pieces,
            round,
            unordered,
        } = cursor;
        let form = |InputCursor { from, reach, held }: &InputCursor| InputForm {
            from: *from,
            reach: *reach,
            held: held.clone(),
        };
        CursorForm {
            outputs: outputs.clone(),
            inputs: inputs.iter().map(form).collect(),
            state: Hex(state.clone()),
            pieces: pieces.clone(),
            round: *round,
            unordered: *unordered,
        }
    }

    fn into_cursor(self) -> Cursor {
        let CursorForm {
            outputs,
            inputs,
            state,
            pieces,
            round,
            unordered,
        } = self;
        let input = |InputForm { from, reach, held }| InputCursor { from, reach, held };
        let inputs = inputs.into_iter().map(input).collect();
        Cursor {
            outputs,
            inputs,
            state: state.0,
            pieces,
            round,
            unordered,
        }
    }
}

/// The version; another version is refused at once, since the following fields may differ.
#[derive(PartialEq)]
struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(VERSION)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            VERSION => Ok(Version),
            version => Err(de::Error::custom(later(version))),
        }
    }
}

/// Bytes in hexadecimal digits.
#[derive(Default, PartialEq)]
struct Hex(Vec<u8>);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let text: String = digits
            .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
            .collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Digits)
    }
}

struct Digits;

impl Visitor<'_> for Digits {
    type Value = Hex;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an even number of hexadecimal digits")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Hex, E> {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes = pairs
            .iter()
            .map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8));
        match bytes.collect() {
            Some(bytes) if rest.is_empty() => Ok(Hex(bytes)),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}
