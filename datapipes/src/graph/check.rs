//! Checks a graph before anything runs, and reports all problems at once, by node name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::lengths::uncounted;
use super::{ENDLESS, Flow, FlowNode, Op, lengths};
use crate::settings::Settings;
use crate::{Processes, Role, Uneven};

/// All problems of a graph and its settings, one line each.
#[derive(Clone, PartialEq, Eq)]
pub struct BuildError {
    problems: Vec<String>,
}

impl BuildError {
    pub(crate) fn of(problem: String) -> Self {
        BuildError {
            problems: vec![problem],
        }
    }

    /// Returns the problems, each with the name of its node.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        write!(
            f,
            "the graph cannot run, for {count} reason{}",
            if count == 1 { "" } else { "s" }
        )?;
        self.problems
            .iter()
            .try_for_each(|problem| write!(f, "\n  {}", crate::error::escape(problem)))
    }
}

/// Prints the displayed text, since `main` and `unwrap` print this; the fields by `{:#?}`.
impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f
                .debug_struct("BuildError")
                .field("problems", &self.problems)
                .finish();
        }
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for BuildError {}

/// Properties of the path from the sources to a node.
#[derive(Clone, Copy, Default)]
struct Way {
    /// True if a shuffle comes before any shard.
    shuffled: bool,
    /// Number of shards on the path with the fewest, and on the path with the most.
    shards: (usize, usize),
}

/// Finds the problems of a graph and its settings, if up to `skipped` items of an epoch may be
/// skipped.
pub(crate) fn check(flow: &Flow, settings: &Settings, skipped: u64) -> Result<(), BuildError> {
    let mut problems = Vec::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut ways: Vec<Way> = Vec::new();
    let world = settings.rank.world;
    let lengths = lengths(flow, settings.rank, settings.uneven);

    for node in &flow.nodes {
        let (name, hints) = (&*node.name, node.hints());
        *names.entry(name).or_default() += 1;
        problems.extend(
            hints
                .problems
                .iter()
                .map(|problem| format!("{name}: {problem}")),
        );
        match &node.node.part {
            None => problems.extend(node.node.no_crossing.iter().map(|problem| format!("{name}: {problem}"))),
            Some(_) if !(node.hints().is_shardable || node.hints().is_shardable_by_parent) => problems.push(format!(
                "{name}: looks at the stream as a whole, so it cannot be in processes of its own; put it after them"
            )),
            Some(part) => {
                let above = &flow.nodes[node.inputs[0].0].node.part;
                let first = above.as_ref().is_none_or(|above| !Arc::ptr_eq(above, part));
                if first && !node.hints().is_shardable {
                    problems.push(format!(
                        "{name}: groups the children of one parent, so what makes the children has to be in the processes with it"
                    ));
                }
                let processes = part.processes.as_ref().or(settings.processes.as_ref());
                let problems_of = |processes: &Processes| processes.problems();
                let mut said = processes.filter(|_| first).map(problems_of).unwrap_or_default();
                if first && settings.workers == 0 && processes.is_some_and(Processes::restricts) {
                    said.push("limits of paths or network need a process, and with `workers(0)` there is none".to_owned());
                }
                problems.extend(said.into_iter().map(|problem| format!("{name}: {problem}")));
            }
        }
        if settings.resumable && !resumable(flow, node) {
            problems.push(match node.hints().once {
                true => format!("{name}: what it gives exists only once, so an epoch cannot go on with it in another process"),
                false => format!(
                    "{name}: an epoch cannot go on in the middle of what it gives, since it does not keep its state; {}",
                    node.hints().instead.unwrap_or("see `Hints::is_resumable`")
                ),
            });
        }
        if name.is_empty() {
            problems.push("a node with an empty name".to_owned());
        }
        if node.node.concurrency == Some(0) {
            problems.push(format!("{name}: a concurrency of zero"));
        }
        let many = |&(_, &readers): &(usize, &usize)| readers > 1 && !hints.many_readers;
        for (port, &readers) in node.readers.iter().enumerate().filter(many) {
            let output = if port > 0 {
                format!(" (output {port})")
            } else {
                String::new()
            };
            problems.push(format!(
                "{name}{output}: feeds {readers} nodes; use `fork` to give one stream to several consumers"
            ));
        }
        if let Op::Split(_) = node.node.op {
            // An output that nobody reads holds up the others once its buffer is full.
            let unread = (0..node.node.outputs())
                .filter(|&port| node.readers.get(port).is_none_or(|&r| r == 0));
            problems.extend(unread.map(|port| format!("{name}: nobody reads its output {port}")));
        }

        let (passed, lookups) = node.inputs_and_lookups();
        let mut way = passed
            .iter()
            .map(|&(id, _)| ways[id])
            .reduce(Way::join)
            .unwrap_or_default();
        let sharded = lookups
            .iter()
            .zip(passed.len()..)
            .filter(|((id, _), _)| ways[*id].shards.1 > 0 && world > 1);
        problems.extend(sharded.map(|(_, input)| {
            format!(
                "{name}: its input {input} is sharded, so each rank would look up in its own part only; put the sharding \
                 filter above input 0 alone, or below the join"
            )
        }));
        // An endless stream cannot be divided.
        let above = node
            .inputs
            .first()
            .and_then(|&(id, _)| lengths[id])
            .filter(|&len| len != ENDLESS);
        match hints.role {
            Role::Shuffle if way.shards.1 > 0 && !way.shuffled && world > 1 => problems.push(format!(
                "{name}: shuffles after the sharding filter only, so each rank would see the same part every epoch; \
                 shuffle before it, or say that it is meant so: `Shuffle::within_rank`, or for a sampler `Random::within_rank`"
            )),
            Role::Shuffle => way.shuffled |= way.shards.1 == 0,
            Role::Shard { can_pad } => {
                if way.shards.1 > 0 {
                    problems.push(format!("{name}: shards a second time, so data would be lost"));
                }
                if settings.uneven == Some(Uneven::Pad) && !can_pad {
                    problems.push(format!("{name}: cannot pad; use `sharding_filter_padded`, whose items are cloned"));
                }
                way.shards = (way.shards.0 + 1, way.shards.1 + 1);
                if let Some(len) = above
                    && len < world as u64
                    && settings.uneven != Some(Uneven::Allow)
                {
                    problems.push(format!("{name}: there are {len} items for {world} ranks"));
                }
                if let Some(len) = above
                    && let left @ 1.. = len.checked_rem(world as u64).unwrap_or(0)
                    && settings.uneven == Some(Uneven::Error)
                {
                    problems.push(format!(
                        "{name}: {len} items do not divide among {world} ranks: {left} are left over"
                    ));
                }
            }
            _ => {}
        }
        ways.push(way);
    }

    for (name, count) in names.iter().filter(|(_, count)| **count > 1) {
        problems.push(format!("{name}: {count} nodes have this name"));
    }
    let root = ways[flow.root.0];
    if world == 0 || settings.rank.index >= world {
        problems.push(format!(
            "rank {} of {world}: there is no such rank",
            settings.rank.index
        ));
    } else if world > 1 {
        if root.shards.0 == 0 {
            problems.extend(unsharded(flow).into_iter().map(|source| {
                format!(
                    "{source}: no `sharding_filter` between it and the consumer (for data by index `Indexed::shard`): \
                     each of the {world} ranks would see all of its data"
                )
            }));
        }
        if settings.uneven.is_none() {
            problems.push(format!(
                "{world} ranks, and nothing said of items that do not divide among them; call `uneven`"
            ));
        }
        if settings.max_steps.is_none() {
            problems.extend(unequal_steps(flow, settings, skipped));
        }
    }
    if settings.memory == Some(0) {
        problems.push("a memory budget of zero bytes".to_owned());
    }
    if settings.concurrency == Some(0) {
        problems.push("zero requests in flight".to_owned());
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(BuildError { problems })
    }
}

/// Returns the reason why ranks may have unequal numbers of steps, although the policy promises
/// equal numbers and the ranks are not declared to agree.
pub(crate) fn unequal_steps(flow: &Flow, settings: &Settings, skipped: u64) -> Option<String> {
    let world = settings.rank.world;
    if world < 2 || settings.ranks_agree || matches!(settings.uneven, None | Some(Uneven::Allow)) {
        return None;
    }
    let nodes = uncounted(flow, settings.rank, settings.uneven);
    let names = nodes
        .into_iter()
        .map(|id| &*flow.nodes[id].name)
        .collect::<Vec<_>>()
        .join(", ");
    let why = match (&*names, skipped) {
        ("", 0) => return None,
        ("", most) => format!("on_error: up to {most} items may be skipped on each rank"),
        (names, _) => format!("{names}: how many items come out depends on what is in the data"),
    };
    Some(format!(
        "{why}, so some of the {world} ranks may have fewer steps than others, which would wait for them in a collective \
         for ever; let the ranks agree before each step, by `agreed` on the epoch, and say so by `ranks_agree` on the \
         builder; or end epochs at a number of steps that each rank has, by `max_steps`; or allow it, by `Uneven::Allow`"
    ))
}

/// Returns true if an epoch can be resumed in the middle of a node's output.
fn resumable(flow: &Flow, node: &FlowNode) -> bool {
    let hints = node.hints();
    if node.node.is_resumable() {
        return true;
    }
    // A node that reads the orders of indexed data runs anew for each reader, and gives one value.
    let order = hints.many_readers;
    // A node that groups the children of one parent has no state between two parents, and runs with
    // the node that makes the children.
    let grouped = hints.is_shardable_by_parent && grouped_above(flow, node);
    order || grouped
}

/// Returns true if the node that makes the children grouped by `node` is upstream, with nothing
/// between that is not shardable.
fn grouped_above(flow: &Flow, node: &FlowNode) -> bool {
    let above = &flow.nodes[node.inputs[0].0];
    let hints = above.hints();
    matches!(above.node.op, Op::Pipe(_))
        && (hints.is_shardable || hints.is_shardable_by_parent)
        && (hints.children || grouped_above(flow, above))
}

/// Returns the names of the sources from which an item reaches the consumer past every sharding
/// filter.
fn unsharded(flow: &Flow) -> Vec<&str> {
    let mut sources: Vec<Vec<usize>> = Vec::new();
    for (id, node) in flow.nodes.iter().enumerate() {
        sources.push(match (&node.node.op, node.hints().role) {
            (Op::Source(_), _) => vec![id],
            (_, Role::Shard { .. }) => Vec::new(),
            _ => node
                .inputs_and_lookups()
                .0
                .iter()
                .flat_map(|&(above, _)| sources[above].iter().copied())
                .collect(),
        });
    }
    let mut ids = sources.swap_remove(flow.root.0);
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| &*flow.nodes[id].name).collect()
}

impl Way {
    fn join(self, other: Way) -> Way {
        Way {
            shuffled: self.shuffled && other.shuffled,
            shards: (
                self.shards.0.min(other.shards.0),
                self.shards.1.max(other.shards.1),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
