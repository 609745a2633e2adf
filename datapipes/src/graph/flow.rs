//! A graph laid flat: nodes in order, each with its number, its name and its readers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Hints, Input, Node, Op};
use crate::Context;
use crate::context::{Counters, RunInfo};

/// A graph laid flat, inputs before their readers; the last node is the root.
#[derive(Clone)]
pub(crate) struct Flow {
    pub nodes: Vec<FlowNode>,
    pub root: (usize, usize),
}

#[derive(Clone)]
pub(crate) struct FlowNode {
    pub name: Arc<str>,
    pub node: Arc<Node>,
    /// Outputs that the node reads.
    pub inputs: Vec<Output>,
    /// Number of readers of each output.
    pub readers: Vec<usize>,
    /// Nodes downstream of each output that run it more than once.
    pub repeats: Vec<BTreeSet<usize>>,
    /// Number of this source, for origins.
    pub source: u16,
    for_cache: ForCache,
}

/// Degree to which a node works for a cache: what the cache keeps must not depend on the pass that
/// fills it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ForCache {
    No,
    /// Work in epoch 0, and in the rounds of a repeat upstream of the cache.
    InRounds,
    /// Work in round 0 of epoch 0.
    Yes,
}

/// One output of a node: the number of the node, and the port.
pub(crate) type Output = (usize, usize);

impl FlowNode {
    pub(crate) fn hints(&self) -> &Hints {
        &self.node.hints
    }

    /// Returns the context in which the node works.
    pub(crate) fn context(&self, run: &RunInfo, round: u64, counters: Arc<Counters>) -> Context {
        let run = RunInfo {
            for_cache: self.is_for_cache(),
            ..run.clone()
        };
        Context::new(
            self.name.clone(),
            self.source,
            run,
            self.own_round(round),
            counters,
        )
    }

    /// Returns true if a cache is downstream of the node, which always works as in epoch 0.
    pub(crate) fn is_for_cache(&self) -> bool {
        self.for_cache != ForCache::No
    }

    /// Returns the round of the node's work in a round of the graph.
    pub(crate) fn own_round(&self, round: u64) -> u64 {
        match self.for_cache {
            ForCache::Yes => 0,
            ForCache::InRounds | ForCache::No => round,
        }
    }

    /// Returns the degree to which the node has its inputs work for a cache.
    fn asks_of_inputs(&self) -> ForCache {
        match self.node.op {
            _ if self.hints().renames => ForCache::Yes,
            Op::Rerun(_) => self.for_cache.min(ForCache::InRounds),
            _ => self.for_cache,
        }
    }

    /// Returns the inputs whose items the node passes on, and those it looks things up in.
    pub(crate) fn inputs_and_lookups(&self) -> (&[Output], &[Output]) {
        let passed = if self.hints().looks_up { 1 } else { usize::MAX };
        self.inputs.split_at(passed.min(self.inputs.len()))
    }
}

impl Flow {
    pub(crate) fn new(root: &Input) -> Flow {
        let mut flow = Flow {
            nodes: Vec::new(),
            root: (0, root.port),
        };
        let mut seen = HashMap::new();
        flow.root.0 = flow.add(&root.node, &mut seen);
        flow.read(flow.root);
        let mut kinds: HashMap<&str, usize> = HashMap::new();
        let mut sources = 0;
        let nodes: Vec<Arc<Node>> = flow.nodes.iter().map(|n| n.node.clone()).collect();
        for (flow_node, node) in flow.nodes.iter_mut().zip(&nodes) {
            flow_node.name = match &node.given_name {
                Some(name) => name.as_str().into(),
                None => {
                    let count = kinds.entry(&node.kind).and_modify(|n| *n += 1).or_insert(1);
                    if *count == 1 {
                        node.kind.as_str().into()
                    } else {
                        format!("{}#{count}", node.kind).into()
                    }
                }
            };
            if let Op::Source(_) = node.op {
                flow_node.source = sources;
                sources = sources.saturating_add(1);
            }
        }
        flow.find_nodes_for_caches();
        flow.find_repeats();
        flow
    }

    /// Finds the nodes that run an output more than once, from the root up.
    fn find_repeats(&mut self) {
        for id in (0..self.nodes.len()).rev() {
            let node = &self.nodes[id];
            let own = matches!(node.node.op, Op::Rerun(_)).then_some(id);
            let repeats = node.repeats.iter().flatten().copied().chain(own);
            let repeats = BTreeSet::from_iter(repeats);
            for (input, port) in node.inputs.clone() {
                self.nodes[input].repeats[port].extend(&repeats);
            }
        }
    }

    /// Returns true if a node of several outputs is among a node and those upstream of it.
    pub(crate) fn has_split(&self, id: usize) -> bool {
        let node = &self.nodes[id];
        let mut inputs = node.inputs.iter();
        matches!(node.node.op, Op::Split(_)) || inputs.any(|&(above, _)| self.has_split(above))
    }

    /// Marks the nodes that work for a cache, from the root up.
    fn find_nodes_for_caches(&mut self) {
        for id in (0..self.nodes.len()).rev() {
            let asked = self.nodes[id].asks_of_inputs();
            for (input, _) in self.nodes[id].inputs.clone() {
                let input = &mut self.nodes[input].for_cache;
                *input = asked.max(*input);
            }
        }
    }

    /// Returns each node that works for a cache and is read past that cache in rounds of a repeat;
    /// with the cache, and the repeat. Its items would have the same origins in all rounds.
    pub(crate) fn caches_passed_by(&self) -> Vec<[usize; 3]> {
        let mut repeats: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let mut found = Vec::new();
        for (id, node) in self.nodes.iter().enumerate().rev() {
            let repeat = match node.node.op {
                Op::Rerun(_) => Some(id),
                _ => repeats[id],
            };
            for &(input, _) in &node.inputs {
                repeats[input] = repeats[input].or(repeat);
                let past = node.asks_of_inputs() < self.nodes[input].for_cache;
                let cache = self.cache_below(input);
                found.extend(
                    repeat
                        .zip(cache)
                        .filter(|_| past)
                        .map(|(repeat, cache)| [input, cache, repeat]),
                );
            }
        }
        found
    }

    /// Returns the first cache downstream of a node.
    fn cache_below(&self, node: usize) -> Option<usize> {
        let mut below = vec![false; self.nodes.len()];
        below[node] = true;
        (node + 1..self.nodes.len()).find(|&id| {
            below[id] = self.nodes[id].inputs.iter().any(|&(input, _)| below[input]);
            below[id] && self.nodes[id].hints().renames
        })
    }

    fn add(&mut self, node: &Arc<Node>, seen: &mut HashMap<*const Node, usize>) -> usize {
        if let Some(&id) = seen.get(&Arc::as_ptr(node)) {
            return id;
        }
        let inputs: Vec<_> = node
            .inputs
            .iter()
            .map(|input| (self.add(&input.node, seen), input.port))
            .collect();
        for &input in &inputs {
            self.read(input);
        }
        let id = self.nodes.len();
        self.nodes.push(FlowNode {
            name: "".into(),
            node: node.clone(),
            inputs,
            readers: Vec::new(),
            repeats: vec![BTreeSet::new(); node.outputs()],
            source: 0,
            for_cache: ForCache::No,
        });
        seen.insert(Arc::as_ptr(node), id);
        id
    }

    /// Returns the node that names the log of these neighbours (the last that is not
    /// one-in-one-out), and the number of nodes that are not.
    pub(crate) fn segment_key(&self, nodes: &[usize]) -> Option<(usize, u64)> {
        let mut others = nodes
            .iter()
            .filter(|&&id| self.nodes[id].hints().arity != crate::Arity::One);
        let last = *others.next_back()?;
        Some((last, others.count() as u64 + 1))
    }

    fn read(&mut self, (id, port): (usize, usize)) {
        let readers = &mut self.nodes[id].readers;
        if readers.len() <= port {
            readers.resize(port + 1, 0);
        }
        readers[port] += 1;
    }
}
