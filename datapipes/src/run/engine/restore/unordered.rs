//! Decides which nodes have items in any order.

use super::resume::Cursors;
use crate::plan::Placement;
use crate::run::engine::Engine;

/// Returns the nodes whose items arrive or leave in any order, if checkpoints can be taken; for a
/// resumed epoch, the nodes for which it was so before.
pub(in crate::run::engine) fn unordered(engine: &Engine, resumed: Option<&Cursors>) -> Vec<bool> {
    let nodes = || engine.flow.nodes.iter();
    match resumed {
        _ if !engine.settings.resumable => vec![false; engine.flow.nodes.len()],
        Some(cursors) if !cursors.is_empty() => nodes()
            .map(|node| {
                cursors
                    .get(&node.name)
                    .is_some_and(|cursor| cursor.unordered)
            })
            .collect(),
        _ => {
            let unordered = engine.plan.unordered(&engine.flow);
            let own = |id: usize| match engine.plan.places[id] {
                Placement::Segment(number) => {
                    engine.plan.segments[number].nodes.last() == Some(&id)
                }
                Placement::Inline => true,
                // A one-to-one node is unordered if its upstream is.
                Placement::Queue(_) => engine.flow.nodes[id].hints().lineage,
            };
            (0..nodes().len())
                .map(|id| unordered[id] && own(id))
                .collect()
        }
    }
}
