//! Checks a graph before anything runs, and reports all problems at once, by node name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::lengths::uncounted;
use super::{ENDLESS, Flow, FlowNode, Op, lengths};
use crate::settings::Settings;
use crate::{Arity, Rank, Role, Uneven};

/// Number of workers above which it must be a mistake: no machine has so many cores.
const MOST_WORKERS: usize = 1 << 16;

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

/// Finds the problems of a graph and its settings, if up to `skipped` items of an epoch may be
/// skipped.
pub(crate) fn check(flow: &Flow, settings: &Settings, skipped: u64) -> Result<(), BuildError> {
    let checked = Checked {
        flow,
        settings,
        world: settings.rank.world,
        lengths: lengths(flow, settings.rank, settings.uneven),
        paths: paths(flow, settings.rank.world),
    };
    let mut problems = Vec::new();
    for node in &flow.nodes {
        problems.extend(checked.own_problems(node));
        problems.extend(checked.can_be_in_processes(node));
        problems.extend(checked.process_settings(node));
        problems.extend(checked.can_resume(node));
        problems.extend(checked.has_a_name(node));
        problems.extend(checked.has_concurrency(node));
        problems.extend(checked.has_one_reader(node));
        problems.extend(checked.has_all_outputs_read(node));
        problems.extend(checked.runs_all_outputs_again(node));
        problems.extend(checked.looks_up_in_all(node));
        problems.extend(checked.shuffles_all(node));
        problems.extend(checked.shards_once(node));
        problems.extend(checked.keeps_neighbors(node));
        problems.extend(checked.can_pad(node));
        problems.extend(checked.has_an_item_for_each_rank(node));
        problems.extend(checked.divides_among_ranks(node));
    }
    problems.extend(checked.names_differ());
    problems.extend(checked.passes_no_cache_by_in_rounds());
    if let Some(problem) = checked.rank_exists() {
        problems.push(problem);
    } else {
        problems.extend(checked.is_sharded());
        problems.extend(checked.says_what_is_uneven());
        problems.extend(checked.has_equal_steps(skipped));
    }
    problems.extend(checked.has_memory());
    problems.extend(checked.has_memory_for_the_largest_item());
    problems.extend(checked.has_a_share_of_the_cores());
    problems.extend(checked.has_few_workers());
    problems.extend(checked.has_requests_in_flight());
    if problems.is_empty() {
        Ok(())
    } else {
        Err(BuildError { problems })
    }
}

/// A graph, its settings, and what the rules need to know of both.
struct Checked<'a> {
    flow: &'a Flow,
    settings: &'a Settings,
    /// Number of ranks.
    world: usize,
    lengths: Vec<Option<u64>>,
    paths: Vec<Path>,
}

/// Properties of the path from the sources to a node's output.
#[derive(Clone, Copy, Default)]
struct Path {
    /// True if a shuffle comes before any shard.
    shuffled: bool,
    /// Number of shards on the path with the fewest, and on the path with the most.
    shards: (usize, usize),
    /// Last node that puts neighbors apart, unless the items were made after it.
    apart: Option<usize>,
}

impl Path {
    fn join(self, other: Path) -> Path {
        Path {
            shuffled: self.shuffled && other.shuffled,
            shards: (
                self.shards.0.min(other.shards.0),
                self.shards.1.max(other.shards.1),
            ),
            apart: self.apart.or(other.apart),
        }
    }

    /// Returns the path to the inputs that a node passes on.
    fn to(node: &FlowNode, paths: &[Path]) -> Path {
        let inputs = node.inputs_and_lookups().0.iter();
        inputs
            .map(|&(above, _)| paths[above])
            .reduce(Path::join)
            .unwrap_or_default()
    }
}

/// Returns the path to each node's output.
fn paths(flow: &Flow, world: usize) -> Vec<Path> {
    let mut paths = Vec::new();
    for (id, node) in flow.nodes.iter().enumerate() {
        let (mut path, hints) = (Path::to(node, &paths), node.hints());
        match hints.role {
            Role::Shuffle => path.shuffled |= path.shards.1 == 0,
            Role::Shard { .. } => path.shards = (path.shards.0 + 1, path.shards.1 + 1),
            _ => {}
        }
        match hints.role {
            Role::Shuffle | Role::ShuffleWithinRank | Role::Scatter => path.apart = Some(id),
            Role::Shard { .. } if world > 1 => path.apart = Some(id),
            Role::Shard { .. } | Role::Prefetch(_) => {}
            // Makes new items, which are neighbors again; `many_readers` is the order of an index.
            _ if hints.arity == Arity::Any
                && !(hints.selects || hints.by_position || hints.many_readers) =>
            {
                path.apart = None;
            }
            _ => {}
        }
        paths.push(path);
    }
    paths
}

/// Rules for a node. Each function returns what is wrong.
impl Checked<'_> {
    /// The settings of a node are sound, by its own word.
    fn own_problems(&self, node: &FlowNode) -> Vec<String> {
        let problems = node.hints().problems.iter();
        problems
            .map(|problem| format!("{}: {problem}", node.name))
            .collect()
    }

    /// A node in processes of its own works on each item, or each parent, by itself.
    fn can_be_in_processes(&self, node: &FlowNode) -> Option<String> {
        let problem = match &node.node.part {
            None => node.node.no_crossing.as_deref()?,
            Some(_) if !works_by_item_or_parent(node) => {
                "looks at the stream as a whole, so it cannot be in processes of its own; put it after them"
            }
            Some(_) if self.is_first_of_part(node) && !node.hints().is_shardable => {
                "groups the children of one parent, so what makes the children has to be in the processes with it"
            }
            Some(_) => return None,
        };
        Some(format!("{}: {problem}", node.name))
    }

    /// The processes of a part have sound settings, and exist if they are to restrict anything.
    fn process_settings(&self, node: &FlowNode) -> Vec<String> {
        let Settings {
            processes, workers, ..
        } = self.settings;
        let part = node.node.part.as_ref();
        let part = part.filter(|_| works_by_item_or_parent(node) && self.is_first_of_part(node));
        let Some(processes) = part.and_then(|part| part.processes.as_ref().or(processes.as_ref()))
        else {
            return Vec::new();
        };
        let mut problems = processes.problems();
        if *workers == 0 && processes.restricts() {
            problems.push(
                "limits of paths or network need a process, and with `workers(0)` there is none"
                    .to_owned(),
            );
        }
        let named = |problem| format!("{}: {problem}", node.name);
        problems.into_iter().map(named).collect()
    }

    /// An epoch of a resumable loader can be resumed in the middle of each node's output.
    fn can_resume(&self, node: &FlowNode) -> Option<String> {
        let FlowNode { name, .. } = node;
        let hints = node.hints();
        if !self.settings.resumable {
            return None;
        }
        if let Some(why) = &hints.moving {
            return Some(format!(
                "{name}: an epoch could go on with other data: {why}"
            ));
        }
        if resumable(self.flow, node) {
            return None;
        }
        Some(match hints.once {
            true => format!(
                "{name}: its output exists only once, so an epoch cannot be resumed with it in another process"
            ),
            false => format!(
                "{name}: an epoch cannot be resumed in the middle of its output, since it does not save its state; {}",
                hints.instead.unwrap_or("see `Hints::is_resumable`")
            ),
        })
    }

    /// A node has a name.
    fn has_a_name(&self, node: &FlowNode) -> Option<String> {
        let is_empty = node.name.is_empty();
        is_empty.then(|| "a node with an empty name".to_owned())
    }

    /// A node may work on at least one item.
    fn has_concurrency(&self, node: &FlowNode) -> Option<String> {
        let is_zero = node.node.concurrency == Some(0);
        is_zero.then(|| format!("{}: a concurrency of zero", node.name))
    }

    /// Each output of a node has one reader, since a stream is read once.
    fn has_one_reader(&self, node: &FlowNode) -> Vec<String> {
        let many = |&(_, &readers): &(usize, &usize)| readers > 1 && !node.hints().many_readers;
        let outputs = node.readers.iter().enumerate().filter(many);
        let problem = |(port, readers)| {
            let output = match port {
                0 => String::new(),
                port => format!(" (output {port})"),
            };
            format!(
                "{}{output}: feeds {readers} nodes; use `fork` to give one stream to several consumers",
                node.name
            )
        };
        outputs.map(problem).collect()
    }

    /// Each output of a split is read: without a reader it holds up the others once its buffer is full.
    fn has_all_outputs_read(&self, node: &FlowNode) -> Vec<String> {
        let outputs = match node.node.op {
            Op::Split(_) => node.node.outputs(),
            _ => 0,
        };
        let is_unread = |port: &usize| node.readers.get(*port).is_none_or(|&readers| readers == 0);
        let unread = (0..outputs).filter(is_unread);
        unread
            .map(|port| format!("{}: nobody reads its output {port}", node.name))
            .collect()
    }

    /// A repeat in one branch of a split runs the split once more while another branch may still read
    /// its first run, and a checkpoint holds one snapshot of each node.
    fn runs_all_outputs_again(&self, node: &FlowNode) -> Option<String> {
        let first = node.repeats.first()?;
        let mut pairs = node.repeats.iter().map(|repeats| (first, repeats));
        let repeat =
            pairs.find_map(|(first, repeats)| first.symmetric_difference(repeats).next())?;
        let (name, repeat) = (&node.name, &self.flow.nodes[*repeat].name);
        self.settings.resumable.then(|| {
            format!(
                "{name}: an epoch cannot be resumed in the middle of its outputs, since `{repeat}` runs one of them again \
                 and not another; put it above `{name}`, or below where they are joined, or give each its own source"
            )
        })
    }

    /// Each rank looks up in all of an input, not in its own part of it.
    fn looks_up_in_all(&self, node: &FlowNode) -> Vec<String> {
        let (passed, lookups) = node.inputs_and_lookups();
        let inputs = lookups.iter().zip(passed.len()..);
        let sharded =
            inputs.filter(|((above, _), _)| self.world > 1 && self.paths[*above].shards.1 > 0);
        let problem = |(_, input)| {
            format!(
                "{}: its input {input} is sharded, so each rank would look up in its own part only; put the sharding \
                 filter above input 0 alone, or below the join",
                node.name
            )
        };
        sharded.map(problem).collect()
    }

    /// A shuffle is meant for all data, so one comes before the sharding filter.
    fn shuffles_all(&self, node: &FlowNode) -> Option<String> {
        let path = Path::to(node, &self.paths);
        let only_own = path.shards.1 > 0 && !path.shuffled && self.world > 1;
        (only_own && matches!(node.hints().role, Role::Shuffle)).then(|| {
            format!(
                "{}: shuffles after the sharding filter only, so each rank would see the same part every epoch; \
                 shuffle before it, or say that it is meant so: `Shuffle::within_rank`, or for a sampler `Random::within_rank`",
                node.name
            )
        })
    }

    /// Data are sharded once.
    fn shards_once(&self, node: &FlowNode) -> Option<String> {
        let again = shards(node) && Path::to(node, &self.paths).shards.1 > 0;
        again.then(|| format!("{}: shards a second time, so data would be lost", node.name))
    }

    /// A node that groups siblings gets them as neighbors: nothing after the node that made them
    /// puts them apart.
    fn keeps_neighbors(&self, node: &FlowNode) -> Option<String> {
        if !node.hints().is_shardable_by_parent {
            return None;
        }
        let apart = &self.flow.nodes[Path::to(node, &self.paths).apart?];
        Some(format!(
            "{}: groups items that follow each other, and `{}` puts them apart; put that after this node (of data by \
             index, use the graph's own `shuffle`, `sharding_filter` and `sample`), or before the node that makes the \
             items of a group (as `untar` makes the files of a sample)",
            node.name, apart.name
        ))
    }

    /// A sharding filter can pad if it has to.
    fn can_pad(&self, node: &FlowNode) -> Option<String> {
        let cannot = matches!(node.hints().role, Role::Shard { can_pad: false, .. });
        (cannot && self.settings.uneven == Some(Uneven::Pad)).then(|| {
            format!(
                "{}: cannot pad; use `sharding_filter_padded`, whose items are cloned",
                node.name
            )
        })
    }

    /// Requires as many items as ranks, unless uneven parts are allowed.
    fn has_an_item_for_each_rank(&self, node: &FlowNode) -> Option<String> {
        let (items, world) = (self.sharded_items(node)?, self.world);
        let too_few = world > 1 && items < world as u64;
        let too_few = too_few && self.settings.uneven != Some(Uneven::Allow);
        too_few.then(|| format!("{}: fewer items than ranks: {items} for {world}", node.name))
    }

    /// Requires that no items are left over, if that is to be an error.
    fn divides_among_ranks(&self, node: &FlowNode) -> Option<String> {
        let (items, world) = (self.sharded_items(node)?, self.world);
        let left = items.checked_rem(world as u64).unwrap_or(0);
        (left > 0 && self.settings.uneven == Some(Uneven::Error)).then(|| {
            format!(
                "{}: {items} items do not divide among {world} ranks: {left} are left over",
                node.name
            )
        })
    }
}

/// Rules for the graph as a whole, and for the settings.
impl Checked<'_> {
    /// Nodes have different names.
    fn names_differ(&self) -> Vec<String> {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for node in &self.flow.nodes {
            *names.entry(&node.name).or_default() += 1;
        }
        let twice = names.into_iter().filter(|&(_, count)| count > 1);
        twice
            .map(|(name, count)| format!("{name}: {count} nodes have this name"))
            .collect()
    }

    /// Requires that no repeat runs what a cache keeps past the cache.
    fn passes_no_cache_by_in_rounds(&self) -> Vec<String> {
        let passed = self.flow.caches_passed_by().into_iter();
        let problem = |ids: [usize; 3]| {
            let [node, cache, repeat] = ids.map(|id| &self.flow.nodes[id].name);
            format!(
                "{cache}: keeps what comes of `{node}`, which `{repeat}` runs again past the cache; put the cache above \
                 `{node}`, or the repeat above both, or give each its own source"
            )
        };
        passed.map(problem).collect()
    }

    /// The rank is one of the ranks.
    fn rank_exists(&self) -> Option<String> {
        let Rank { index, world } = self.settings.rank;
        (index >= world).then(|| format!("rank {index} of {world}: there is no such rank"))
    }

    /// Requires, with several ranks, a sharding filter between each source and the consumer.
    fn is_sharded(&self) -> Vec<String> {
        let (root, _) = self.flow.root;
        if self.world < 2 || self.paths[root].shards.0 > 0 {
            return Vec::new();
        }
        let problem = |source| {
            format!(
                "{source}: no `sharding_filter` between it and the consumer (for data by index `Indexed::shard`): \
                 each of the {} ranks would see all of its data",
                self.world
            )
        };
        unsharded(self.flow).into_iter().map(problem).collect()
    }

    /// Requires, with several ranks, that the user decides about items that do not divide among
    /// them.
    fn says_what_is_uneven(&self) -> Option<String> {
        let world = self.world;
        (world > 1 && self.settings.uneven.is_none()).then(|| {
            format!("{world} ranks, and nothing says what becomes of items that do not divide among them; call `Builder::uneven`")
        })
    }

    /// All ranks have the same number of steps, unless they agree on it or it is allowed.
    fn has_equal_steps(&self, skipped: u64) -> Option<String> {
        match self.settings.max_steps {
            Some(_) => None,
            None => unequal_steps(self.flow, self.settings, skipped),
        }
    }

    /// The memory budget is more than nothing.
    fn has_memory(&self) -> Option<String> {
        let is_zero = self.settings.memory == Some(0);
        is_zero.then(|| "a memory budget of zero bytes".to_owned())
    }

    /// The largest item is not larger than the memory budget.
    fn has_memory_for_the_largest_item(&self) -> Option<String> {
        let memory = self.settings.bytes();
        let largest = self.settings.largest_item.filter(|&bytes| bytes > memory)?;
        Some(format!(
            "items of {largest} bytes (`largest_item`), and a memory budget of {memory}"
        ))
    }

    /// The workers' share of the cores is above 0 and at most 1.
    fn has_a_share_of_the_cores(&self) -> Option<String> {
        let is_none = |share: &f64| !(*share > 0.0 && *share <= 1.0);
        let share = self.settings.cpu_share.filter(is_none)?;
        Some(format!("`cpu_share` is above 0 and at most 1, not {share}"))
    }

    /// The number of workers is no mistake.
    fn has_few_workers(&self) -> Option<String> {
        let workers = Some(self.settings.workers).filter(|&workers| workers > MOST_WORKERS)?;
        Some(format!("{workers} workers: there may be {MOST_WORKERS}"))
    }

    /// The loader may have a request in flight.
    fn has_requests_in_flight(&self) -> Option<String> {
        let is_zero = self.settings.concurrency == Some(0);
        is_zero.then(|| "zero requests in flight".to_owned())
    }
}

/// Properties that the rules ask for.
impl Checked<'_> {
    /// Returns true if nothing upstream of a node is in the same part.
    fn is_first_of_part(&self, node: &FlowNode) -> bool {
        let part_of = |node: &FlowNode| node.node.part.as_ref().map(Arc::as_ptr);
        part_of(&self.flow.nodes[node.inputs[0].0]) != part_of(node)
    }

    /// Returns the number of items that a node shards, if it does and the number is known. An
    /// endless stream cannot be divided.
    fn sharded_items(&self, node: &FlowNode) -> Option<u64> {
        let &(above, _) = node.inputs.first().filter(|_| shards(node))?;
        self.lengths[above].filter(|&len| len != ENDLESS)
    }
}

fn works_by_item_or_parent(node: &FlowNode) -> bool {
    node.hints().is_shardable || node.hints().is_shardable_by_parent
}

fn shards(node: &FlowNode) -> bool {
    matches!(node.hints().role, Role::Shard { .. })
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

#[cfg(test)]
mod tests;
