//! The part of the data that this process takes, and the policy for unequal parts.

mod environment;
#[cfg(test)]
mod tests;

/// The part of the data that this process takes: rank `index` of `world`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Number of this process, from 0.
    pub index: usize,
    /// Number of processes.
    pub world: usize,
}

wire_struct!(Rank { index, world });

impl Default for Rank {
    fn default() -> Self {
        Rank { index: 0, world: 1 }
    }
}

impl Rank {
    /// Returns how many of `len` items this rank takes if items are dealt one by one or in ranges.
    /// All ranks have equally many, except with `Allow`: then the first `len mod world` have one
    /// more.
    pub(crate) fn share(self, len: u64, uneven: Uneven) -> u64 {
        let (world, index) = (self.world.max(1) as u64, self.index as u64);
        match uneven {
            Uneven::Drop => len / world,
            Uneven::Pad => len.div_ceil(world),
            Uneven::Allow | Uneven::Error => len / world + u64::from(index < len % world),
        }
    }
}

/// The policy for items that do not divide evenly among the ranks.
///
/// Fewer items than ranks are an error, with both numbers, unless uneven ranks are allowed. The
/// error comes when the loader is built, or, if the number is not known then, at the end of the
/// stream that is to be divided.
///
/// The policy covers the items dealt to a rank, not the outputs that steps downstream make of them;
/// see [`ranks_agree`](crate::loader::Builder::ranks_agree).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uneven {
    /// The items left over are dropped and counted; every rank is dealt equally many.
    Drop,
    /// Ranks that would have fewer take items from the start of the data once more; every rank is
    /// dealt equally many.
    Pad,
    /// Ranks may see one item more or less than others, and some may see none. Collective steps of
    /// a training job will not line up, unless ranks [agree](crate::Blocking::agreed) before each.
    Allow,
    /// Items left over are an error at the end of the stream, which no policy skips.
    Error,
}

wire_enum!(Uneven { 0 Drop, 1 Pad, 2 Allow, 3 Error });

/// Policies by the numbers that stand for them in checkpoints.
const POLICIES: [Option<Uneven>; 5] = [
    None,
    Some(Uneven::Drop),
    Some(Uneven::Pad),
    Some(Uneven::Allow),
    Some(Uneven::Error),
];

impl Uneven {
    pub(crate) fn number(uneven: Option<Uneven>) -> u64 {
        POLICIES
            .iter()
            .position(|&policy| policy == uneven)
            .expect("all are listed") as u64
    }

    pub(crate) fn from_number(number: u64) -> Option<Option<Uneven>> {
        POLICIES.get(usize::try_from(number).ok()?).copied()
    }
}
