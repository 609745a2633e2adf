//! Finds the place where a loader goes on from a checkpoint.

use std::sync::Arc;

use super::compare::compare;
use super::edited::{Edited, edits_without_a_place, is_alike, stand_in};
use super::{Checkpoint, Saved, SavedNode, elastic, nodes};
use crate::graph::Flow;
use crate::run::{RankShare, Resume};
use crate::settings::Settings;
use crate::{Error, Rank, Result};

impl Checkpoint {
    /// Returns where a loader goes on, and the cursors of the unchanged nodes. If the ranks are the
    /// same, it goes on with its own rank. If they differ, it goes on with its share of the common
    /// rest. If that cannot be computed, it reads several of the old ranks in turn.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), with the differences, unless changed nodes may take the place of
    /// those around them.
    pub(in crate::loader) fn for_graph(
        &self,
        flow: &Flow,
        settings: &Settings,
        edited: Option<Edited>,
    ) -> Result<Vec<(RankShare, Saved, Resume)>> {
        let own = RankShare {
            rank: settings.rank,
            uneven: settings.uneven,
        };
        let (Rank { index, world: now }, &Saved { world, uneven, .. }) =
            (settings.rank, self.first());
        let fitted = |saved: &Saved, share, other_ranks| {
            let resume = saved.fitted(flow, settings, edited, other_ranks)?;
            Ok((share, saved.clone(), resume))
        };
        let another =
            |why: String| Error::config(format!("the checkpoint is of another run: {why}"));
        let same = world == now as u64;
        if let Some(saved) = self
            .0
            .iter()
            .find(|saved| same && saved.rank == index as u64)
        {
            if world > 1 && uneven != settings.uneven {
                return Err(another(format!(
                    "uneven was {uneven:?}, and is {:?}",
                    settings.uneven
                )));
            }
            return Ok(vec![fitted(saved, own, false).map_err(another)?]);
        }
        let problem = match elastic::rescaled(self, flow, settings) {
            Ok(saved) => return Ok(vec![fitted(&saved, own, true).map_err(another)?]),
            Err(problem) => problem,
        };
        let of = match &*self.0 {
            [saved] => format!("rank {} of {world}", saved.rank),
            some if some.len() as u64 == world => format!("all of {world} ranks"),
            some => format!("{} of {world} ranks", some.len()),
        };
        let refused = |why: String| {
            Error::config(format!(
                "the checkpoint is of {of}, and this is rank {index} of {now}: {problem}; and {why}"
            ))
        };
        if !world.is_multiple_of(now as u64) {
            return Err(refused(format!(
                "{now} ranks cannot share what {world} have left to read"
            )));
        }
        let parts = (index..world as usize).step_by(now).map(|rank| {
            let Some(saved) = self.0.iter().find(|saved| saved.rank == rank as u64) else {
                return Err(refused(format!("where rank {rank} stands is not in it")));
            };
            let share = RankShare {
                rank: Rank {
                    index: rank,
                    world: world as usize,
                },
                uneven,
            };
            fitted(saved, share, false)
                .map_err(|why| refused(format!("rank {rank} of {world} cannot go on: {why}")))
        });
        let mut parts = parts.collect::<Result<Vec<_>>>()?;
        let in_turn: Arc<[RankShare]> = parts.iter().map(|(share, ..)| *share).collect();
        parts
            .iter_mut()
            .for_each(|(_, _, resume)| resume.in_turn = in_turn.clone());
        Ok(parts)
    }
}

impl Saved {
    /// Returns where the loader goes on, with the cursors of the unchanged nodes; or the
    /// differences.
    fn fitted(
        &self,
        flow: &Flow,
        settings: &Settings,
        edited: Option<Edited>,
        other_ranks: bool,
    ) -> Result<Resume, String> {
        let (saved, now) = (self, nodes(flow, |_| None));
        let may_change = |at: usize| match edited {
            Some(_) => flow.nodes[at].hints().may_change,
            None => None,
        };
        let mut differences = Vec::new();
        if saved.seed != settings.seed {
            let (then, now) = (saved.seed, settings.seed);
            differences.push(format!(
                "seed {then}, and {now} now, where a loader with `seed({then})` goes on"
            ));
        }
        if edited != Some(Edited::Matching) {
            differences.extend(compare(&saved.nodes, &now, may_change));
        } else {
            let gone = |node: &&SavedNode| {
                node.cursor.is_some()
                    && !node.inputs.is_empty()
                    && !now.iter().any(|now| now.name == node.name)
            };
            let gone = saved.nodes.iter().filter(gone);
            differences.extend(
                gone.map(|node| format!("`{}` is gone, and what it held with it", node.name)),
            );
        }
        let is_begun = saved.position() > 0 && !saved.is_at_end();
        if differences.is_empty() && is_begun && !compare(&saved.nodes, &now, |_| None).is_empty() {
            if saved.cursors().values().any(|cursor| cursor.unordered) {
                let message =
                    "its items came in any order, so that another graph has no place in it";
                differences.push(message.to_owned());
            }
            differences.extend(edits_without_a_place(saved, &now, flow));
        }
        if !differences.is_empty() {
            let with_weights = || saved.fitted(flow, settings, Some(Edited::Weights), other_ranks);
            if edited.is_none() && with_weights().is_ok() {
                let advice = "to go on with it, use `resume_edited` with `Edited::Weights`";
                differences.push(advice.to_owned());
            }
            return Err(differences.join("; "));
        }
        let mut cursors = saved.cursors();
        cursors.retain(|name, _| {
            let then = saved.nodes.iter().find(|node| *node.name == **name);
            then.zip(now.iter().position(|node| *node.name == **name))
                .is_some_and(|(then, at)| {
                    is_alike(then, &now[at], may_change(at))
                        && then.inputs.len() == now[at].inputs.len()
                })
        });
        if edited == Some(Edited::Matching) && !cursors.is_empty() {
            stand_in(saved, flow, &mut cursors);
        }
        Ok(Resume {
            position: saved.position(),
            cursors: Arc::new(cursors),
            other_ranks,
            in_turn: Arc::default(),
        })
    }
}
