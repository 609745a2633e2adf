//! The steps of an order, as a tree that becomes a graph.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Indices;
use super::batch::Batch;
use super::concat::Concat;
use super::mix::Mix;
use super::repeat::Repeat;
use super::sampled::Sampled;
use super::samples::Samples;
use super::shard::Shard;
use super::zip::Zip;
use crate::index::Sampler;
use crate::{Graph, Rank, Uneven};

/// Last step of an order, and its inputs.
#[derive(Clone)]
pub(in crate::index) struct Step {
    kind: Kind,
    name: Option<String>,
    inputs: Vec<Arc<Step>>,
}

#[derive(Clone)]
pub(in crate::index) enum Kind {
    Samples(u64),
    Sampled(Arc<dyn Sampler>),
    Shard(Shard),
    Repeat(u64),
    Batch(Batch),
    Zip,
    Concat,
    Mix(Mix),
}

/// Nodes made so far, by the step that they were made from.
type MadeNodes = HashMap<*const Step, Graph<Indices>>;

impl Step {
    pub(in crate::index) fn new(kind: Kind, inputs: Vec<Arc<Step>>) -> Arc<Step> {
        Arc::new(Step {
            kind,
            name: None,
            inputs,
        })
    }

    pub(in crate::index) fn named(&self, name: String) -> Arc<Step> {
        Arc::new(Step {
            name: Some(name),
            ..self.clone()
        })
    }

    /// Returns the number of positions of a rank.
    pub(in crate::index) fn len(&self, rank: Rank, uneven: Uneven) -> u64 {
        let lengths: Vec<u64> = self
            .inputs
            .iter()
            .map(|input| input.len(rank, uneven))
            .collect();
        match &self.kind {
            Kind::Samples(len) => *len,
            Kind::Sampled(sampler) => sampler.len(lengths[0]),
            Kind::Shard(_) => rank.share(lengths[0], uneven),
            Kind::Repeat(rounds) => lengths[0].saturating_mul(*rounds),
            Kind::Batch(batch) => batch.len(lengths[0]),
            Kind::Zip => lengths.into_iter().min().unwrap_or(0),
            Kind::Concat => lengths.into_iter().fold(0, u64::saturating_add),
            Kind::Mix(mix) => mix.len(&lengths),
        }
    }

    /// Returns the number of positions if it does not depend on the rank.
    fn known_len(&self) -> Option<u64> {
        (!self.shards()).then(|| self.len(Rank::default(), Uneven::Allow))
    }

    fn shards(&self) -> bool {
        matches!(self.kind, Kind::Shard(_)) || self.inputs.iter().any(|input| input.shards())
    }

    /// Makes the graph that decides on the order.
    pub(in crate::index) fn graph(self: &Arc<Step>) -> Graph<Indices> {
        self.made(&mut MadeNodes::new())
    }

    fn made(self: &Arc<Step>, made: &mut MadeNodes) -> Graph<Indices> {
        if let Some(graph) = made.get(&Arc::as_ptr(self)) {
            return graph.clone();
        }
        let mut inputs = match self.kind {
            Kind::Concat | Kind::Mix(..) => self.apart(made),
            _ => self.inputs.iter().map(|input| input.made(made)).collect(),
        };
        let mut input = || inputs.pop().expect("a step has its inputs");
        let graph = match &self.kind {
            Kind::Samples(len) => Graph::source(Samples { len: *len }),
            Kind::Sampled(sampler) => {
                let problem = self.inputs[0]
                    .known_len()
                    .and_then(|len| sampler.problem(len));
                input().pipe(Sampled {
                    sampler: sampler.clone(),
                    problem,
                })
            }
            Kind::Shard(shard) => input().pipe(*shard),
            Kind::Repeat(rounds) => input().pipe(Repeat { rounds: *rounds }),
            Kind::Batch(batch) => input().pipe(*batch),
            Kind::Zip => Graph::join(inputs, Zip),
            Kind::Concat => {
                let concat = Concat {
                    inputs: inputs.len(),
                };
                Graph::join(inputs, concat)
            }
            Kind::Mix(mix) => Graph::join(inputs, mix.clone()),
        };
        let graph = match &self.name {
            Some(name) => graph.named(name),
            None => graph,
        };
        made.insert(Arc::as_ptr(self), graph.clone());
        graph
    }

    /// Returns the inputs. An input that shares samples with an earlier input is made anew: its
    /// samples count as other samples, with origins and an order of their own.
    fn apart(&self, made: &mut MadeNodes) -> Vec<Graph<Indices>> {
        let mut seen = HashSet::new();
        let inputs = self.inputs.iter().map(|input| {
            let mut sources = HashSet::new();
            input.sources(&mut sources);
            let shared = !sources.is_disjoint(&seen);
            seen.extend(sources);
            if shared {
                input.graph()
            } else {
                input.made(made)
            }
        });
        inputs.collect()
    }

    fn sources(self: &Arc<Step>, found: &mut HashSet<*const Step>) {
        if self.inputs.is_empty() {
            found.insert(Arc::as_ptr(self));
        }
        self.inputs.iter().for_each(|input| input.sources(found));
    }
}
