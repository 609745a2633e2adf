//! Whether a state is one of this graph; if not, how they differ.

use std::sync::Arc;

use super::{Saved, SavedNode, State, elastic, nodes};
use crate::graph::Flow;
use crate::run::GoesOn;
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
            differences.extend(misfits(&saved.nodes, &now, flow));
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
        let goes_on = GoesOn { position: state.position(), cursors: Arc::new(cursors), elsewhere };
        Ok((state, goes_on))
    }
}

/// What stands in the way of an edited graph. A step of one in, one out may come, go and change; what looks at its input as a
/// whole, or gives another number of items, makes again what it made since it kept its place, and so has to have above it
/// what it had. (Mixes may have other weights.)
fn misfits(then: &[SavedNode], now: &[SavedNode], flow: &Flow) -> Vec<String> {
    let passes = |id: usize| {
        let hints = flow.nodes[id].hints();
        hints.resumable && (hints.arity == Arity::One && (hints.shardable || hints.facts.by_position))
            || matches!(hints.facts.role, Role::Prefetch(_))
    };
    let same = |a: &SavedNode, b: &SavedNode| {
        a.name == b.name && a.kind == b.kind && but_weights(a) == but_weights(b)
    };
    let mut problems = Vec::new();
    for (id, node) in now.iter().enumerate() {
        if !passes(id) && !then.iter().any(|other| same(other, node)) {
            problems.push(match then.iter().find(|other| other.name == node.name) {
                Some(other) => format!(
                    "`{}` was {}({}), and is {}({}), so that what it made cannot be made again",
                    node.name, other.kind, other.settings, node.kind, node.settings
                ),
                None => format!("`{}` is new, and not one in one out", node.name),
            });
        }
    }
    for node in then.iter().filter(|node| node.cursor.is_some()) {
        if !now.iter().any(|other| other.name == node.name) {
            problems.push(format!("`{}` is gone, and was not one in one out", node.name));
        }
    }
    problems
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
