//! The part of a rank.

use std::sync::Arc;

use super::{Course, Entry, Indices, check_position, each, order_hints};
use crate::{Context, Dealing, Error, Hints, Items, Pipe, Rank, Role, Uneven};

/// Part of a rank in the order upstream.
#[derive(Clone, Copy)]
pub(in crate::index) enum Shard {
    /// Positions `rank`, `rank + world`, and so on.
    InTurn,
    /// One range of positions.
    Contiguous,
}

impl Pipe<Indices> for Shard {
    type Out = Indices;

    fn apply(&self, input: Items<Indices>, cx: &Context) -> Items<Indices> {
        let (shard, context) = (*self, cx.clone());
        each(input, cx, move |above| {
            let (rank, uneven) = (context.rank(), context.uneven().unwrap_or(Uneven::Allow));
            if rank.world <= 1 {
                return Ok(above);
            }
            let (len, world) = (above.len(), rank.world as u64);
            if len < world && uneven != Uneven::Allow {
                return Err(Error::config(format!(
                    "there are {len} samples for {world} ranks"
                )));
            }
            let left = len % world;
            if uneven == Uneven::Error && left > 0 {
                return Err(Error::config(format!(
                    "{len} samples do not divide among {world} ranks: {left} are left over"
                )));
            }
            let dropped = u64::from(uneven == Uneven::Drop && (rank.index as u64) < left);
            context.count_dropped(dropped);
            let own = rank.share(len, uneven);
            let (first, step) = shard.places(len, uneven, rank);
            Ok(Arc::new(RankPart {
                above,
                first,
                step,
                len: own,
                dropped,
            }) as Indices)
        })
    }
    fn name(&self) -> String {
        match self {
            Shard::InTurn => "index_shard".to_owned(),
            Shard::Contiguous => "index_shard_contiguous".to_owned(),
        }
    }
    // The loader computes the part from the role.
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input)
    }
    fn hints(&self) -> Hints {
        order_hints().role(Role::Shard {
            can_pad: true,
            dealing: match self {
                Shard::InTurn => Dealing::PositionsInTurn,
                Shard::Contiguous => Dealing::Other,
            },
        })
    }
}

impl Shard {
    /// Returns the first position of a rank's part of `len`, and the distance between its
    /// positions.
    fn places(self, len: u64, uneven: Uneven, rank: Rank) -> (u64, u64) {
        let (index, world) = (rank.index as u64, rank.world as u64);
        match (self, uneven) {
            (Shard::InTurn, _) => (index, world),
            (Shard::Contiguous, Uneven::Drop | Uneven::Pad) => (index * rank.share(len, uneven), 1),
            // The first ranks may have one more.
            (Shard::Contiguous, _) => (index * (len / world) + index.min(len % world), 1),
        }
    }
}

struct RankPart {
    above: Indices,
    /// First position upstream, followed by the distance between positions.
    first: u64,
    step: u64,
    len: u64,
    /// Number of samples of this rank that are left out.
    dropped: u64,
}

impl Course for RankPart {
    fn len(&self) -> u64 {
        self.len
    }
    fn at(&self, position: u64) -> Entry {
        check_position(position, self.len);
        // Padding goes past the end and continues from the start.
        let (row, all) = (position * self.step, self.above.len());
        let Some(over) = self.first.checked_sub(all - row) else {
            return self.above.at(row + self.first);
        };
        let mut place = self.above.at(over % all);
        // Two levels of children, which no round of a repeat has.
        place.origin = place.origin.child(0).child(1 + over / all);
        place
    }
    fn again(&self, round: u64) -> Indices {
        Arc::new(RankPart {
            above: self.above.again(round),
            ..*self
        })
    }
    fn dropped(&self) -> u64 {
        self.above.dropped() + self.dropped
    }
}
