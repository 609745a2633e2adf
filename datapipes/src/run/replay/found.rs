//! Selection of the wanted items in a node's output.

use std::sync::Arc;

use super::Carried;
use crate::Origin;
use crate::graph::{AnyChunk, Edge, Look};

/// Wanted items found in a node's output.
#[derive(Default)]
pub(super) struct Found {
    pub kept: Vec<Carried>,
    /// Number of items seen, with the first and the last of them.
    pub seen: u64,
    ends: Option<(Origin, Origin)>,
    /// Error of no item, or of another one.
    pub error: Option<String>,
    pub exact: bool,
}

impl Found {
    /// Keeps the wanted items of a chunk: those related to the target, or to `wide`. At the start of
    /// a replay, which reads until the target comes, errors of no item are not wanted, and once the
    /// target is there, nothing else is.
    pub fn take(
        &mut self,
        chunk: AnyChunk,
        edge: &Arc<dyn Edge>,
        target: &Origin,
        wide: Option<&Origin>,
        is_start: bool,
    ) {
        let looks = edge.look(&chunk);
        let is_here = looks.iter().any(|look| item(look) == Some(target));
        self.exact |= is_here;
        let alone = is_start && is_here;
        if alone {
            self.kept.clear();
        }
        let mut places = Vec::new();
        for (place, look) in looks.into_iter().enumerate() {
            let wanted = match item(&look) {
                Some(item) if alone => item == target,
                Some(item) => item.is_related(wide.unwrap_or(target)),
                None => !is_start,
            };
            match look {
                Look::Item(origin, _) => match &mut self.ends {
                    Some((_, last)) => *last = origin,
                    none => *none = Some((origin.clone(), origin)),
                },
                Look::Error(error) if !wanted => self.error = Some(error.to_string()),
                Look::Error(_) => {}
            }
            if wanted {
                places.push((place, self.seen + place as u64));
            }
        }
        self.seen += chunk.len as u64;
        let (Some(first), Some(last)) = (places.first().copied(), places.last()) else {
            return;
        };
        let ranges: Vec<_> = places.iter().map(|&(place, _)| place..place + 1).collect();
        // Positions are known if the kept items are contiguous.
        let row = last.1 - first.1 + 1 == places.len() as u64;
        let chunk = edge.pick(chunk, &ranges);
        self.kept.push(Carried {
            chunk,
            edge: edge.clone(),
            position: row.then_some(first.1),
        });
    }

    /// Describes what the node returned instead of the item.
    pub fn instead(&self) -> String {
        match &self.ends {
            None => "none".to_owned(),
            Some((only, _)) if self.seen == 1 => only.to_string(),
            Some((first, last)) => format!("{} from {first} to {last}", self.seen),
        }
    }
}

/// Returns the item that a value or an error belongs to.
fn item<'a>(look: &'a Look<'_>) -> Option<&'a Origin> {
    match look {
        Look::Item(origin, _) => Some(origin),
        Look::Error(error) => error.item(),
    }
}
