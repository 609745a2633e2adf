//! Rows of batches, granted to a child that fills them in place.

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::Session;
use crate::batch_buffer::SlabPart;
use crate::queue::SharedMemory;
use crate::run::child::job::Job;
use crate::run::child::protocol::Grants;

/// Least size of a row, in bytes, that a child fills in place.
const WORTH_A_GRANT: usize = 16 << 10;
/// Number of lent pieces of memory above which pieces without granted rows are taken back at once.
const LENT: usize = 16;

impl Session<'_> {
    /// Takes back the memory that is not kept: what is gone here, or has no granted rows. If the
    /// queue was closed by an error, the next send reports it.
    pub(super) fn unlend(&mut self, keeps: impl Fn(u64, &Weak<SharedMemory>) -> bool) {
        let Some(orders) = self.child.orders.shares_memory() else {
            return;
        };
        self.lent
            .retain(|id, memory| keeps(*id, memory) || orders.unlend(*id).is_err());
    }

    /// Takes back the memory without granted rows, once there is much of it.
    pub(super) fn unlend_unused(&mut self) {
        if self.lent.len() < LENT {
            return;
        }
        let tasks = self.tasks.iter();
        let parts = tasks.flat_map(|task| task.job.granted.iter().flatten());
        let granted: HashSet<u64> = parts
            .filter_map(|part| Some(memory_of(part)?.0.id))
            .collect();
        self.unlend(|id, _| granted.contains(&id));
    }

    /// Grants the rows of a job's items to the child.
    pub(super) fn grants(&mut self, job: &mut Job, places: Range<usize>) -> Option<Grants> {
        let orders = self.child.orders.shares_memory()?;
        let rows = job.rows.as_ref()?;
        let wanted = rows
            .wanted()
            .filter(|(dtype, len)| dtype.size() * len >= WORTH_A_GRANT)?;
        if job.granted.is_empty() && job.chunk.errors == 0 {
            let numbers = job.first..job.first + job.chunk.len as u64;
            job.granted = numbers.map(|number| rows.grant(number)).collect();
        }
        let mut granted = Vec::new();
        for part in job.granted.get(places)? {
            // The shape of the rows may have changed since they were granted.
            let fits = |part: &&SlabPart| (part.dtype(), part.len()) == wanted;
            let Some((memory, place)) = part.as_ref().filter(fits).and_then(memory_of) else {
                granted.push(None);
                continue;
            };
            if let Entry::Vacant(new) = self.lent.entry(memory.id) {
                orders.lend(&memory).ok()?;
                new.insert(Arc::downgrade(&memory));
            }
            granted.push(Some((memory.id, place)));
        }
        Some(Grants {
            wanted,
            rows: granted,
        })
    }
}

/// Returns the memory of a row, if it is shared with other processes, and the offset in bytes.
fn memory_of(part: &SlabPart) -> Option<(Arc<SharedMemory>, usize)> {
    let (memory, place) = part.place()?;
    Some((memory.as_any().downcast().ok()?, place))
}
