//! Compares the nodes of a checkpoint with those of a graph, and describes the differences.

use super::SavedNode;
use super::edited::is_alike;

/// Returns the differences, node by node. `may_change` returns the setting that a node of now may
/// have changed, by the node's place.
pub(super) fn compare(
    then: &[SavedNode],
    now: &[SavedNode],
    may_change: impl Fn(usize) -> Option<&'static str>,
) -> Vec<String> {
    let find = |nodes: &[SavedNode], name: &str| nodes.iter().position(|node| node.name == name);
    let shown = |node: &SavedNode| match &node.settings[..] {
        "" => node.kind.clone(),
        settings => format!("{}({settings})", node.kind),
    };
    let mut differences = Vec::new();
    for node in then {
        match find(now, &node.name) {
            None => differences.push(format!("`{}` is gone", node.name)),
            Some(at) if !is_alike(node, &now[at], may_change(at)) => {
                differences.push(format!(
                    "`{}` was {}, and is {}",
                    node.name,
                    shown(node),
                    shown(&now[at])
                ));
            }
            Some(at) => {
                let reads = |nodes: &[SavedNode], node: &SavedNode| -> Vec<String> {
                    node.inputs
                        .iter()
                        .filter_map(|&at| Some(nodes.get(at as usize)?.name.clone()))
                        .collect()
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
