//! Which part of the data this process takes, and what happens where parts are not equal.

mod environment;
#[cfg(test)]
mod tests;

/// Which part of the data this process takes: rank `index` of `world`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// This process, from 0.
    pub index: usize,
    /// How many processes there are.
    pub world: usize,
}

impl Default for Rank {
    fn default() -> Self {
        Rank { index: 0, world: 1 }
    }
}

impl Rank {
    /// How many of `len` items this rank takes, where items are dealt one by one or in ranges:
    /// ranks have equally many, but for `Allow`, where the first `len mod world` have one more.
    pub(crate) fn share(self, len: u64, uneven: Uneven) -> u64 {
        let (world, index) = (self.world.max(1) as u64, self.index as u64);
        match uneven {
            Uneven::Drop => len / world,
            Uneven::Pad => len.div_ceil(world),
            Uneven::Allow | Uneven::Error => len / world + u64::from(index < len % world),
        }
    }
}

/// What happens when the items do not divide evenly among the ranks.
///
/// Fewer items than ranks are refused, with both numbers, unless uneven ranks are allowed: when the
/// loader is built, or where the number is not known then, at the end of the stream that is to be
/// divided.
///
/// What steps below make of the items that a rank is dealt is not known to it; see
/// [`ranks_agree`](crate::loader::Builder::ranks_agree).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uneven {
    /// The items left over are dropped and counted; every rank is dealt equally many.
    Drop,
    /// Ranks that would come short take items from the start of the data once more; every rank is
    /// dealt equally many.
    Pad,
    /// Ranks may see one item more or less than others, and some may see none. Collective steps of
    /// a training job will not line up, unless ranks [agree](crate::Blocking::agreed) before each.
    Allow,
    /// Items left over are an error at the end of the stream.
    Error,
}

/// By the numbers that they have in states, and for other processes.
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
