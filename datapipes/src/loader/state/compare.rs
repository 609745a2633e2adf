//! Whether a state is one of this graph; if not, how they differ.

use std::sync::Arc;

use super::{Saved, SavedNode, State, elastic, nodes};
use crate::graph::{Flow, FlowNode, Op};
use crate::keep::{Cursor, Input};
use crate::run::{Cursors, Resume, Share};
use crate::settings::Settings;
use crate::{Arity, Error, ErrorKind, Rank, Result, Role};

/// What a graph may have become since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::loader) enum Edited {
    /// Nothing else.
    No,
    /// Mixes have other weights.
    Weights,
    /// What still matches keeps its place.
    Matching,
}

/// The settings of a node; of a mix, without its weights.
fn but_weights(node: &SavedNode) -> &str {
    match node.settings.split_once(", weights ") {
        Some((stop, _)) if node.kind == "mix" => stop,
        _ => &node.settings,
    }
}

impl State {
    /// Where a loader goes on, and the cursors of the nodes that are what they were: with its own rank; or, where other
    /// ranks began, with its share of what is left of all; or, where that cannot be told, with as many of them as it takes,
    /// which it reads in turn.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], with what differs, unless nodes that differ may stand where those around them do.
    pub(in crate::loader) fn for_graph(
        &self,
        flow: &Flow,
        settings: &Settings,
        edited: Edited,
    ) -> Result<Vec<(Share, Saved, Resume)>> {
        let own = Share { rank: settings.rank, uneven: settings.uneven };
        let (Rank { index, world: now }, &Saved { world, uneven, .. }) = (settings.rank, self.first());
        let fitted = |saved: &Saved, share, other_ranks| {
            let resume = saved.fitted(flow, settings, edited, other_ranks)?;
            Ok((share, saved.clone(), resume))
        };
        let another = |why: String| config(format!("the state is of another run: {why}"));
        let same = world == now as u64;
        if let Some(saved) = self.0.iter().find(|saved| same && saved.rank == index as u64) {
            if world > 1 && uneven != settings.uneven {
                return Err(another(format!("uneven was {uneven:?}, and is {:?}", settings.uneven)));
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
            config(format!("the state is of {of}, and this is rank {index} of {now}: {problem}; and {why}"))
        };
        if !world.is_multiple_of(now as u64) {
            return Err(refused(format!("{now} ranks cannot share what {world} have left to read")));
        }
        let parts = (index..world as usize).step_by(now).map(|rank| {
            let Some(saved) = self.0.iter().find(|saved| saved.rank == rank as u64) else {
                return Err(refused(format!("where rank {rank} stands is not in it")));
            };
            let share = Share { rank: Rank { index: rank, world: world as usize }, uneven };
            fitted(saved, share, false)
                .map_err(|why| refused(format!("rank {rank} of {world} cannot go on: {why}")))
        });
        parts.collect()
    }
}

fn config(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

impl Saved {
    /// Where it goes on, with the cursors of the nodes that are what they were; or what differs.
    fn fitted(
        &self,
        flow: &Flow,
        settings: &Settings,
        edited: Edited,
        other_ranks: bool,
    ) -> Result<Resume, String> {
        let (saved, now) = (self, nodes(flow, |_| None));
        let mut differences = Vec::new();
        if saved.seed != settings.seed {
            differences.push(format!("seed {}, and {} now", saved.seed, settings.seed));
        }
        if edited != Edited::Matching {
            differences.extend(compare(&saved.nodes, &now, edited == Edited::Weights));
        } else {
            let gone = |node: &&SavedNode| {
                node.cursor.is_some()
                    && !node.inputs.is_empty()
                    && !now.iter().any(|now| now.name == node.name)
            };
            let gone = saved.nodes.iter().filter(gone);
            differences.extend(gone.map(|node| format!("`{}` is gone, and what it held with it", node.name)));
        }
        let is_begun = saved.position() > 0 && !saved.is_at_end();
        if differences.is_empty() && is_begun && !compare(&saved.nodes, &now, false).is_empty() {
            if saved.cursors().values().any(|cursor| cursor.unordered) {
                let message = "its items came in any order, so that another graph has no place in it";
                differences.push(message.to_owned());
            }
            differences.extend(edits_without_a_place(saved, &now, flow));
        }
        if !differences.is_empty() {
            return Err(differences.join("; "));
        }
        let mut cursors = saved.cursors();
        cursors.retain(|name, _| {
            let then = saved.nodes.iter().find(|node| *node.name == **name);
            then.zip(now.iter().find(|node| *node.name == **name)).is_some_and(|(then, now)| {
                then.kind == now.kind
                    && (then.settings == now.settings
                        || edited != Edited::No && but_weights(then) == but_weights(now))
                    && then.inputs.len() == now.inputs.len()
            })
        });
        if edited == Edited::Matching && !cursors.is_empty() {
            stand_in(saved, flow, &mut cursors);
        }
        Ok(Resume { position: saved.position(), cursors: Arc::new(cursors), other_ranks })
    }
}

/// What of a changed graph cannot be resumed, though the rest matches.
fn edits_without_a_place(saved: &Saved, now: &[SavedNode], flow: &Flow) -> Vec<String> {
    let mut above_shard = vec![false; flow.nodes.len()];
    for (id, node) in flow.nodes.iter().enumerate().rev() {
        if above_shard[id] || matches!(node.hints().facts.role, Role::Shard { .. }) {
            node.inputs.iter().for_each(|&(above, _)| above_shard[above] = true);
        }
    }
    let mut problems = Vec::new();
    for ((id, node), now) in flow.nodes.iter().enumerate().zip(now) {
        let was = saved.nodes.iter().find(|was| was.name == now.name && was.kind == now.kind);
        let same =
            was.is_some_and(|was| was.settings == now.settings && was.inputs.len() == now.inputs.len());
        let reweighted = was
            .is_some_and(|was| was.inputs.len() == now.inputs.len() && but_weights(was) == but_weights(now));
        if same || node.inputs.is_empty() || passes(node) || node.hints().facts.by_position {
            continue;
        }
        if !reweighted && !matches!(node.node.op, Op::Pipe(_)) {
            problems.push(format!(
                "`{}` is new or other, and where it stood in its inputs is not known",
                node.name
            ));
        } else if saved.world > 1 && above_shard[id] {
            problems.push(format!("`{}` would change at other places on other ranks", node.name));
        }
    }
    problems
}

/// Says where pipes stand that are new, or other than they were: one that is new where its reader does; one that has other
/// settings at the oldest item that it held, or behind what it had taken. What has such a pipe above it cannot tell by their
/// positions which items it held, or which of what it would give again it had given: it gives all of it again, and if it held
/// items begins with nothing as well. So some items may come twice, and none is left out.
fn stand_in(saved: &Saved, flow: &Flow, cursors: &mut Cursors) {
    let is_pipe = |node: &FlowNode| matches!(node.node.op, Op::Pipe(_)) && !passes(node);
    let mut is_other = vec![false; flow.nodes.len()];
    for (id, node) in flow.nodes.iter().enumerate() {
        let above = node.inputs.iter().any(|&(above, _)| is_other[above]);
        is_other[id] = above || is_pipe(node) && !cursors.contains_key(&node.name);
    }
    let mut places = vec![None; flow.nodes.len()];
    places[flow.root.0] = Some(saved.delivered + saved.skipped);
    let at = |place| Input { from: place, reach: place, held: Vec::new() };
    for (id, node) in flow.nodes.iter().enumerate().rev() {
        let Some(place) = places[id] else { continue };
        let inputs = match cursors.get_mut(&node.name) {
            Some(cursor) => {
                if is_other[id] && cursor.outputs.len() == 1 {
                    (cursor.outputs[0], cursor.pieces) = (place, Vec::new());
                    if let [input] = &mut cursor.inputs[..]
                        && input.reach < input.from
                    {
                        *input = at(input.reach);
                        (cursor.kept, cursor.unordered) = (Vec::new(), false);
                    }
                }
                cursor.inputs.clone()
            }
            None if passes(node) => vec![at(place)],
            None if is_pipe(node) && !node.hints().facts.by_position => {
                let was =
                    saved.nodes.iter().find(|was| *was.name == *node.name && was.kind == node.node.kind);
                let input = was.and_then(|was| was.cursor.as_ref()?.inputs.first());
                let inputs = vec![at(input.map_or(place, |input| input.reach))];
                let cursor = Cursor { outputs: vec![place], inputs: inputs.clone(), ..Cursor::default() };
                cursors.insert(node.name.clone(), cursor);
                inputs
            }
            None => continue,
        };
        for (&(above, _), input) in node.inputs.iter().zip(inputs) {
            places[above] = Some(input.from);
        }
    }
}

/// Whether it has no place of its own.
fn passes(node: &FlowNode) -> bool {
    matches!(node.hints().facts.role, Role::Prefetch(_)) || node.hints().arity == Arity::One
}

/// What differs, node by node.
pub(super) fn compare(then: &[SavedNode], now: &[SavedNode], reweighted: bool) -> Vec<String> {
    let find = |nodes: &[SavedNode], name: &str| nodes.iter().position(|node| node.name == name);
    let shown = |node: &SavedNode| match &node.settings[..] {
        "" => node.kind.clone(),
        settings => format!("{}({settings})", node.kind),
    };
    let mut differences = Vec::new();
    for node in then {
        match find(now, &node.name) {
            None => differences.push(format!("`{}` is gone", node.name)),
            Some(at)
                if shown(&now[at]) != shown(node)
                    && !(reweighted
                        && node.kind == now[at].kind
                        && but_weights(node) == but_weights(&now[at])) =>
            {
                differences.push(format!("`{}` was {}, and is {}", node.name, shown(node), shown(&now[at])));
            }
            Some(at) => {
                let reads = |nodes: &[SavedNode], node: &SavedNode| -> Vec<String> {
                    node.inputs.iter().filter_map(|&at| Some(nodes.get(at as usize)?.name.clone())).collect()
                };
                let (was, is) = (reads(then, node), reads(now, &now[at]));
                if was != is {
                    let (was, is) = (was.join(", "), is.join(", "));
                    differences.push(format!("`{}` read `{was}`, and reads `{is}`", node.name));
                }
            }
        }
    }
    for node in now.iter().filter(|node| find(then, &node.name).is_none()) {
        differences.push(format!("`{}` is new", node.name));
    }
    differences
}
