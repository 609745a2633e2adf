//! The progress of a node, in numbers: the components of a checkpoint.

use super::Wanted;
#[cfg(feature = "serde")]
use super::serial::{from_hex, is_default, to_hex};

/// The progress of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub(crate) struct Cursor {
    /// Position of the next item of each output.
    pub outputs: Vec<u64>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub inputs: Vec<InputCursor>,
    /// The pipe's snapshot; earlier the field was `kept`.
    #[cfg_attr(
        feature = "serde",
        serde(alias = "kept", default, skip_serializing_if = "is_default"),
        serde(serialize_with = "to_hex", deserialize_with = "from_hex")
    )]
    pub state: Vec<u8>,
    /// Pieces from here on: numbers of inputs and outputs. For a mix, numbers of outputs that may
    /// have been used downstream.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub pieces: Vec<(u64, u64)>,
    /// Round of a repeat that its input is in; for pieces, number of nodes they go through that are
    /// not one-in-one-out.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub round: u64,
    /// True if items come to it, or from it, in any order.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub unordered: bool,
}

/// The progress of a node in one of its inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub(crate) struct InputCursor {
    /// Position of the next item that it takes.
    pub from: u64,
    /// Lower bound on the positions that it took and still holds.
    pub reach: u64,
    /// Positions that it took and still holds, if it recorded them one by one.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_default"))]
    pub held: Vec<u64>,
}

impl InputCursor {
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted::new(self.held.clone(), self.from)
    }
}
