//! Whether a state is one of this graph; if not, how they differ.

use std::sync::Arc;

use super::{Saved, SavedNode, State, elastic, nodes};
use crate::graph::{Flow, FlowNode, Op};
use crate::keep::{Cursor, Input};
use crate::run::{Cursors, GoesOn};
use crate::settings::Settings;
use crate::{Arity, Error, ErrorKind, Result, Role};

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
    /// The state as one of this rank, and the cursors of the nodes that are what they were.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], with what differs, unless nodes that differ may stand where those around them do.
    pub(in crate::loader) fn for_graph(
        &self,
        flow: &Flow,
        settings: &Settings,
        edited: Edited,
    ) -> Result<(State, GoesOn)> {
        let now = nodes(flow, |_| None);
        let mut differences = Vec::new();
        let own = Some(settings.rank.index as u64);
        let elsewhere =
            self.0.world != settings.rank.world as u64 || (self.0.rank != own && self.0.world != 1);
        let state = match elsewhere {
            false => self.clone(),
            true => State(Arc::new(elastic::rescaled(&self.0, flow, settings)?)),
        };
        let saved: &Saved = &state.0;
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
        if edited != Edited::No && differences.is_empty() && !compare(&saved.nodes, &now, false).is_empty() {
            let any_order = state.cursors().values().any(|cursor| cursor.unordered);
            let ranks = settings.rank.world > 1 && !compare(&saved.nodes, &now, true).is_empty();
            let reweighted = settings.rank.world > 1 && !ranks;
            match (any_order, reweighted) {
                (true, _) => differences.push("its items came in any order, so that another graph has no place in it".to_owned()),
                (_, true) => differences.push(
                    "ranks would change their weights at other places; weights change at the beginning of an epoch there".to_owned(),
                ),
                _ => {}
            }
        }
        if !differences.is_empty() {
            let message = format!("the state is of another run: {}", differences.join("; "));
            return Err(Error::new(ErrorKind::Config, message));
        }
        let mut cursors = state.cursors();
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
        let goes_on = GoesOn { position: state.position(), cursors: Arc::new(cursors), elsewhere };
        Ok((state, goes_on))
    }
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
