//! Check that an epoch can be resumed with this plan.

use std::collections::HashMap;

use super::resume::Cursors;
use crate::checkpoint::Cursor;
use crate::graph::{FlowNode, Op};
use crate::run::engine::Engine;
use crate::{Arity, Error, Result};

impl Engine {
    /// Checks that nodes can be set to these positions.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the plan groups neighbours into segments differently;
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the positions are not of this graph.
    pub(crate) fn fits(&self, cursors: &Cursors) -> Result<()> {
        let cuts = Cuts::of(self);
        for (id, node) in self.flow.nodes.iter().enumerate() {
            let Some(cursor) = cursors.get(&node.name) else {
                continue;
            };
            if !can_have(node, cursor) {
                return Err(Error::corrupt("a snapshot that no such node can take").at(&node.name));
            }
            if !cuts.are(id, node, cursor) {
                let message = "its segment is another one than in the checkpoint: its neighbours, \
                               concurrency or processes have changed";
                return Err(Error::config(message).at(&node.name));
            }
        }
        Ok(())
    }
}

/// Returns true if a node like this can ever have this position.
fn can_have(node: &FlowNode, cursor: &Cursor) -> bool {
    let hints = node.hints();
    let passes = hints.arity == Arity::One || hints.lineage;
    cursor.outputs.len() == node.node.outputs()
        && cursor.inputs.len() <= node.inputs.len()
        && (!cursor.unordered || (is_pipe(node) && passes))
}

/// Neighbours that the plan runs together.
struct Cuts {
    /// Number of nodes in each group of neighbours that are not one-to-one, by the node that names
    /// the group.
    not_one_to_one: HashMap<usize, u64>,
    /// Last nodes of the groups.
    lasts: Vec<usize>,
    workers: usize,
}

impl Cuts {
    fn of(engine: &Engine) -> Self {
        let Engine {
            flow,
            plan,
            settings,
            ..
        } = engine;
        let segments = plan
            .segments
            .iter()
            .map(|segment| &segment.nodes)
            .chain(&plan.groups);
        Cuts {
            not_one_to_one: segments
                .clone()
                .filter_map(|nodes| flow.segment_key(nodes))
                .collect(),
            lasts: segments.filter_map(|nodes| nodes.last().copied()).collect(),
            workers: settings.workers,
        }
    }

    /// Returns true if a node is grouped as it was.
    fn are(&self, id: usize, node: &FlowNode, cursor: &Cursor) -> bool {
        let hints = node.hints();
        if !is_pipe(node)
            || hints.by_position
            || !(hints.is_shardable || self.not_one_to_one.contains_key(&id))
        {
            return true;
        }
        match cursor.unordered {
            true => !hints.is_shardable || self.workers == 0 || self.lasts.contains(&id),
            // The round of a node that was not in the earlier graph is 0.
            false => cursor.round == 0 || self.not_one_to_one.get(&id) == Some(&cursor.round),
        }
    }
}

fn is_pipe(node: &FlowNode) -> bool {
    matches!(node.node.op, Op::Pipe(_))
}
