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
    /// Keeps the wanted items of a chunk.
    pub fn take(
        &mut self,
        chunk: AnyChunk,
        edge: &Arc<dyn Edge>,
        target: &Origin,
        wide: Option<&Origin>,
        all_errors: bool,
    ) {
        let mut places = Vec::new();
        for (place, look) in edge.look(&chunk).into_iter().enumerate() {
            let wanted = match look {
                Look::Item(origin, _) => {
                    self.exact |= origin == *target;
                    let wanted = origin.is_related(wide.unwrap_or(target));
                    match &mut self.ends {
                        Some((_, last)) => *last = origin,
                        none => *none = Some((origin.clone(), origin)),
                    }
                    wanted
                }
                Look::Error(error) => {
                    let wanted = match error.item() {
                        Some(item) => item.is_related(wide.unwrap_or(target)),
                        None => all_errors,
                    };
                    self.exact |= wanted && error.item() == Some(target);
                    if !wanted {
                        self.error = Some(error.to_string());
                    }
                    wanted
                }
            };
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
