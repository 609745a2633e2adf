//! A checkpoint for serde: with names in readable formats, as bytes in others.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::bytes::{VERSION, damaged, later};
use super::{Checkpoint, Copies, Saved, SavedNode};
use crate::checkpoint::serial::{from_hex, is_default, to_hex};
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

/// A rank by its fields; that of the first rank stands for the checkpoint.
#[derive(serde::Serialize, serde::Deserialize)]
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
    #[serde(default, skip_serializing_if = "is_default")]
    copies: u64,
    /// Keys of failures that are counted once.
    #[serde(default, skip_serializing_if = "is_default")]
    counted: VecDeque<u64>,
    world: u64,
    rank: u64,
    /// The policy by its [number](Uneven::number).
    #[serde(default, skip_serializing_if = "is_default")]
    uneven: u64,
    nodes: Vec<SavedNode>,
    /// Checksum of all ranks; empty in `others`.
    #[serde(default, skip_serializing_if = "is_default")]
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    check: Vec<u8>,
    /// Checkpoints of the other ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<Form>,
}

impl Form {
    fn of(state: &Checkpoint) -> Form {
        let version = state.version();
        let mut forms = state.0.iter().map(|saved| Form::of_rank(saved, version));
        let first = forms.next().expect("a checkpoint has a rank");
        Form {
            check: check(state),
            others: forms.collect(),
            ..first
        }
    }

    fn of_rank(saved: &Saved, version: u64) -> Form {
        Form {
            version: Version(version),
            seed: saved.seed,
            epoch: saved.epoch,
            finished: saved.finished,
            delivered: saved.delivered,
            skipped: saved.skipped,
            copies: saved.copies.uncounted,
            counted: saved.copies.counted.clone(),
            world: saved.world,
            rank: saved.rank,
            uneven: Uneven::number(saved.uneven),
            nodes: saved.nodes.clone(),
            check: Vec::new(),
            others: Vec::new(),
        }
    }

    fn into_state(self) -> Result<Checkpoint> {
        let (wanted, version, mut ranks) = (self.check.clone(), self.version.0, Vec::new());
        self.into_ranks(version, &mut ranks)?;
        let state = Checkpoint::checked(ranks)?;
        match check(&state) == wanted && state.version() == version {
            true => Ok(state),
            false => Err(damaged("its checksum is another")),
        }
    }

    fn into_ranks(self, version: u64, ranks: &mut Vec<Saved>) -> Result<()> {
        if self.version.0 != version {
            return Err(damaged("its ranks are of different versions"));
        }
        ranks.push(Saved {
            seed: self.seed,
            epoch: self.epoch,
            finished: self.finished,
            delivered: self.delivered,
            skipped: self.skipped,
            copies: Arc::new(Copies {
                uncounted: self.copies,
                counted: self.counted,
            }),
            world: self.world,
            rank: self.rank,
            uneven: Uneven::from_number(self.uneven)
                .ok_or_else(|| damaged("no rule for uneven ranks"))?,
            nodes: self.nodes,
        });
        self.others
            .into_iter()
            .try_for_each(|other| other.into_ranks(version, ranks))
    }
}

/// Returns the checksum at the end of the bytes, the highest digit first.
fn check(state: &Checkpoint) -> Vec<u8> {
    state.to_bytes().into_iter().rev().take(8).collect()
}

/// The version; another version is refused at once, since the following fields may differ.
struct Version(u64);

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            version @ 1..=VERSION => Ok(Version(version)),
            version => Err(de::Error::custom(later(version))),
        }
    }
}
