//! Where a node stands, in numbers: what a state is made of.

use super::Wanted;

/// Where one node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// For each output, the position of what it gives next.
    pub outputs: Vec<u64>,
    pub inputs: Vec<Input>,
    /// What the pipe kept.
    pub kept: Vec<u8>,
    /// From here on: so many in, so many out. Of a mix, so many out that may have been used below.
    pub pieces: Vec<(u64, u64)>,
    /// Which round of a repeat its input is in; of pieces, how many nodes they go through that are
    /// not one in one out.
    pub round: u64,
    /// Whether items come to it, or from it, in any order.
    pub unordered: bool,
}

/// Where a node stands in one of its inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Input {
    /// The position of what it takes next.
    pub from: u64,
    /// Of what it took and still holds, nothing is before this position.
    pub reach: u64,
    /// What it took and still holds, if it said so one by one.
    pub held: Vec<u64>,
}

impl Input {
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted::new(self.held.clone(), self.from)
    }
}
