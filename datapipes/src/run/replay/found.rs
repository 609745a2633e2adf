//! What is wanted of what a node gives.

use std::sync::Arc;

use super::Carried;
use crate::Origin;
use crate::graph::{AnyChunk, Edge, Look};

/// What was found among what a node gave.
#[derive(Default)]
pub(super) struct Found {
    pub kept: Vec<Carried>,
    /// How many came, and the first and the last of them.
    pub seen: u64,
    ends: Option<(Origin, Origin)>,
    /// An error that is of no item, or of another.
    pub error: Option<String>,
    pub exact: bool,
}

impl Found {
    /// Keeps what is wanted of a chunk.
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
        // Places are known where what is kept stands in a row.
        let row = last.1 - first.1 + 1 == places.len() as u64;
        let chunk = edge.pick(chunk, &ranges);
        self.kept.push(Carried {
            chunk,
            edge: edge.clone(),
            position: row.then_some(first.1),
        });
    }

    /// What there is instead.
    pub fn instead(&self) -> String {
        match &self.ends {
            None => "none".to_owned(),
            Some((only, _)) if self.seen == 1 => only.to_string(),
            Some((first, last)) => format!("{} from {first} to {last}", self.seen),
        }
    }
}
