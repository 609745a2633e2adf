//! This rank's part.

use std::sync::Arc;

use super::{Course, Indices, Place, each, facts};
use crate::{Context, Error, ErrorKind, Facts, Items, Pipe, Rank, Role, Uneven};

/// This rank's part of the order above.
pub(super) struct Shard;

impl Pipe<Indices> for Shard {
    type Out = Indices;

    fn apply(&self, input: Items<Indices>, cx: &Context) -> Items<Indices> {
        let context = cx.clone();
        each(input, cx, move |above| {
            let (Rank { index, world }, uneven) = (context.rank(), context.uneven().unwrap_or(Uneven::Allow));
            if world <= 1 {
                return Ok(above);
            }
            let (len, world) = (above.len(), world as u64);
            let left = len % world;
            if uneven == Uneven::Error && left > 0 {
                let message =
                    format!("{len} samples do not divide among {world} ranks: {left} are left over");
                return Err(Error::new(ErrorKind::Config, message));
            }
            let dropped = u64::from(uneven == Uneven::Drop && (index as u64) < left);
            context.count_dropped(dropped);
            let len = share(len, context.rank(), uneven);
            Ok(Arc::new(Part { above, index: index as u64, world, len, dropped }) as Indices)
        })
    }
    fn name(&self) -> String {
        "index_shard".to_owned()
    }
    // The loader works out the part by the role.
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn facts(&self) -> Facts {
        facts().with_role(Role::Shard { can_pad: true })
    }
}

/// How many of `len` samples a rank takes.
pub(super) fn share(len: u64, rank: Rank, uneven: Uneven) -> u64 {
    let (world, index) = (rank.world.max(1) as u64, rank.index as u64);
    match uneven {
        Uneven::Drop => len / world,
        Uneven::Pad => len.div_ceil(world),
        Uneven::Allow | Uneven::Error => len / world + u64::from(index < len % world),
    }
}

struct Part {
    above: Indices,
    index: u64,
    world: u64,
    len: u64,
    /// What would have been this rank's, had there been one for each.
    dropped: u64,
}

impl Course for Part {
    fn len(&self) -> u64 {
        self.len
    }
    fn at(&self, position: u64) -> Place {
        assert!(position < self.len, "position {position} of {}", self.len);
        // The last row of positions begins before the end, but may go on behind it.
        let (row, all) = (position * self.world, self.above.len());
        let Some(over) = self.index.checked_sub(all - row) else { return self.above.at(row + self.index) };
        let mut place = self.above.at(over % all);
        // Two steps down, which no round of a repeat takes.
        place.origin = place.origin.child(0).child(1 + over / all);
        place
    }
    fn again(&self, round: u64) -> Indices {
        let Part { index, world, len, dropped, .. } = *self;
        Arc::new(Part { above: self.above.again(round), index, world, len, dropped })
    }
    fn dropped(&self) -> u64 {
        self.above.dropped() + self.dropped
    }
}
