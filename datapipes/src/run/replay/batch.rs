//! Makes a batch of some of its samples again, by the nodes that made it.

use std::sync::Arc;

use super::pass::{Pass, Stop, WHOLE, applied};
use super::{Carried, MANY, NodeResult, Replayer};
use crate::graph::{FlowNode, Look, Op};
use crate::run::Engine;
use crate::{Error, Origin, Result};

/// Makes a batch of these samples again, and whatever the graph makes of that batch: one item with
/// this number. Each sample is replayed alone up to the node that makes the batch.
///
/// # Errors
/// `Unsupported`, with the node, if the samples do not lead to one node that makes one batch of
/// them, or if a node downstream of it looks at more than one batch. Also the error of a node that
/// fails.
pub(crate) fn batch(
    engine: &Engine,
    epoch: u64,
    samples: &[Origin],
    number: u64,
) -> Result<Carried> {
    let mut gathered: Option<Sample> = None;
    for sample in samples {
        let next = Sample::replayed(engine, epoch, sample)?;
        match &mut gathered {
            None => gathered = Some(next),
            Some(Sample { stop, made, .. })
                if (stop.node, stop.round) == (next.stop.node, next.stop.round) =>
            {
                made.edge.append(&mut made.chunk, next.made.chunk);
            }
            Some(first) => {
                let [one, other] =
                    [first, &next].map(|sample| &engine.flow.nodes[sample.stop.node]);
                let reason = format!("`{}` makes the batch of other samples", one.name);
                return Err(unsupported(other, &reason));
            }
        }
    }
    let Some(Sample {
        stop,
        innermost,
        made,
    }) = gathered
    else {
        return Err(Error::not_found("a batch of no samples is not made again"));
    };
    let replayer = Replayer::new(engine, epoch, &samples[0])?;
    let batch = replayer.batched(stop, made, samples, number)?;
    replayer.after_batch(stop, innermost, batch)
}

/// A sample before the node that makes the batch.
struct Sample {
    stop: Stop,
    /// Round of the innermost repeat.
    innermost: u64,
    made: Carried,
}

impl Sample {
    /// Makes a sample again, up to the node that makes batches.
    fn replayed(engine: &Engine, epoch: u64, sample: &Origin) -> Result<Sample> {
        // A sample that was made of several is not replayed beyond the node that made it.
        let mut leaf = sample;
        while let Some(first) = leaf.top().parts().first() {
            leaf = first;
        }
        let replayer = Replayer::new(engine, epoch, leaf)?;
        let mut failed = None;
        let mut show = |stage: &NodeResult<'_>| note_failure(stage, &mut failed);
        let Pass {
            ends,
            stops,
            round: innermost,
            ..
        } = replayer.pass(&mut show)?;
        let is_it = |look: &Look<'_>| matches!(look, Look::Item(origin, _) if origin == sample);
        let mut made = None;
        for Carried { chunk, edge, .. } in ends {
            let looks = edge.look(&chunk);
            let places = (0..looks.len()).filter(|&at| is_it(&looks[at]));
            let places: Vec<_> = places.map(|at| at..at + 1).collect();
            if places.len() + usize::from(made.is_some()) > 1 {
                let message = format!("several items are {sample}, since a fork copies them");
                return Err(Error::unsupported(message));
            }
            if !places.is_empty() {
                let chunk = edge.pick(chunk, &places);
                made = Some(Carried {
                    chunk,
                    edge,
                    position: None,
                });
            }
        }
        // Siblings that come along may fail, too.
        if let (None, Some(error)) = (&made, failed) {
            return Err(error);
        }
        let stop = match &stops[..] {
            &[stop] => stop,
            [] => {
                let message = format!("no node makes a batch of {sample} and others");
                return Err(Error::unsupported(message));
            }
            [_, second, ..] => {
                let reason = "the sample reaches it by another way than the first batch";
                return Err(unsupported(&engine.flow.nodes[second.node], reason));
            }
        };
        let node = &engine.flow.nodes[stop.node];
        let is_pipe = matches!(node.node.op, Op::Pipe(_));
        if leaf != sample || stop.why != WHOLE || !is_pipe {
            return Err(unsupported(node, stop.why));
        }
        match made {
            Some(made) => Ok(Sample {
                stop,
                innermost,
                made,
            }),
            // The node made the sample of what came to it.
            None => Err(unsupported(node, stop.why)),
        }
    }
}

impl Replayer<'_> {
    /// Makes one batch of samples.
    fn batched(
        &self,
        stop: Stop,
        given: Carried,
        samples: &[Origin],
        number: u64,
    ) -> Result<Carried> {
        let node = &self.engine.flow.nodes[stop.node];
        let edge = &node.node.edge;
        let mut info = self.info.clone();
        info.partial = true;
        let context = node.context(&info, stop.round, Arc::default());
        let mut made = Vec::new();
        for output in applied(node, vec![given], &context) {
            self.wait(self.drain(output, edge, &context, MANY, |chunk| {
                made.push(chunk);
                true
            }));
        }
        let (mut count, mut is_of_samples) = (0, false);
        for look in made.iter().flat_map(|chunk| edge.look(chunk)) {
            match look {
                Look::Error(error) => return Err(error.copied()),
                Look::Item(origin, _) => {
                    count += 1;
                    is_of_samples = origin.parts() == samples;
                }
            }
        }
        let chunk = made.into_iter().find(|chunk| chunk.len > 0);
        match chunk {
            Some(chunk) if count == 1 && is_of_samples => Ok(Carried {
                // Random numbers of nodes downstream depend on the number of the batch.
                chunk: edge.renamed(chunk, &Origin::joined(samples.to_vec(), number)),
                edge: edge.clone(),
                position: None,
            }),
            _ => {
                let reason = format!(
                    "it made {count} items of {} samples, and not one batch of them",
                    samples.len()
                );
                Err(unsupported(node, &reason))
            }
        }
    }

    /// Runs the nodes downstream of the one that made the batch.
    fn after_batch(&self, stop: Stop, innermost: u64, batch: Carried) -> Result<Carried> {
        let flow = &self.engine.flow;
        let (mut failed, mut last) = (None, stop.node);
        let mut show = |stage: &NodeResult<'_>| {
            note_failure(stage, &mut failed);
            let is_this = |node: &FlowNode| node.name == stage.node.name;
            last = flow.nodes.iter().position(is_this).unwrap_or(last);
        };
        let mut pass = Pass::new(self, innermost, &mut show);
        pass.given = Some((stop.node, batch));
        pass.root()?;
        let Pass {
            mut ends, stops, ..
        } = pass;
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(stop) = stops.first() {
            return Err(unsupported(&flow.nodes[stop.node], stop.why));
        }
        match ends.pop() {
            Some(made) if ends.is_empty() && made.chunk.len == 1 => Ok(made),
            made => {
                let count = made.into_iter().chain(ends).map(|made| made.chunk.len);
                let reason = format!("it made {} items of one batch", count.sum::<usize>());
                Err(unsupported(&flow.nodes[last], &reason))
            }
        }
    }
}

fn note_failure(stage: &NodeResult<'_>, failed: &mut Option<Error>) {
    for look in stage.made.iter().flat_map(|made| made.look()) {
        if let Look::Error(error) = look {
            failed.get_or_insert_with(|| error.copied());
        }
    }
}

fn unsupported(node: &FlowNode, reason: &str) -> Error {
    let message = format!(
        "a batch is made again if each sample comes alone to one node that batches, and each node \
         after that takes one batch: {reason}"
    );
    Error::unsupported(message).at(&node.name)
}
