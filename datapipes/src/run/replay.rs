//! Runs one sample through the graph again, node by node, and keeps what each made of it.
//!
//! Everything runs on the caller's thread, one node after the other. Where a node is applied, its input is the sample
//! alone (and, above a node that groups siblings, its siblings): what distributes over concatenation gives for it what it
//! gave in the epoch, since random numbers depend on nothing but seed, epoch, node and origin. What only selects is passed
//! by. Anything else looks at the stream as a whole, and ends the way.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::runtime::Handle;

use crate::context::{Offload, RunInfo};
use crate::graph::{AnyChunk, AnyItems, Edge, ErasedChunks, FlowNode, Look, Op};
use crate::items::Demand;
use crate::keep::Keeper;
use crate::rng::mix;
use crate::run::engine::{BlockingPool, Engine};
use crate::{Arity, Context, Error, ErrorKind, Origin, Result, Role, Wanted};

/// Some of what a node gave.
pub(crate) struct Carried {
    pub chunk: AnyChunk,
    pub edge: Arc<dyn Edge>,
    /// The place of its first item among all that the node gives in an epoch, where that is known.
    position: Option<u64>,
}

impl Carried {
    pub(crate) fn look(&self) -> Vec<Look<'_>> {
        self.edge.look(&self.chunk)
    }
}

/// How the sample came by a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It began there, or the node was applied to it.
    Run,
    /// The node selects, and is passed by.
    Passed,
    /// The way ends before it, and why.
    Stopped(&'static str),
}

/// What a node made of the sample.
pub(crate) struct Stage<'a> {
    pub node: &'a FlowNode,
    pub way: Way,
    pub time: Duration,
    pub made: &'a [&'a Carried],
}

/// Is shown what each node made, on the way.
pub(crate) type Show<'a> = &'a mut dyn FnMut(&Stage<'_>);

const WHOLE: &str = "it looks at the stream as a whole";
const PLACE: &str = "it uses the place of an item, which is not known here";
const OTHER_TYPE: &str = "what was passed by before it is of another type";
const REPEATS: &str = "it runs what is above more than once, in a way of its own";
const SAME_ROUND: u64 = 1 << 20;
const MOST_ROUNDS: u64 = 1 << 16;

/// Runs one sample of one epoch again.
pub(crate) struct Replayer<'e> {
    engine: &'e Engine,
    info: RunInfo,
    io: Handle,
    target: Origin,
    /// The item of a source that it goes back to.
    top: Origin,
    /// For each node, how many repeats lie between the source and what comes out of it; `None` for those that the
    /// source does not lead to.
    repeats: Vec<Option<usize>>,
    /// For each node, whether one below it groups siblings.
    siblings: Vec<bool>,
}

/// One run of it.
struct Pass<'r, 'e, 's> {
    replayer: &'r Replayer<'e>,
    /// The round of the innermost repeat.
    round: u64,
    show: Show<'s>,
    splits: HashMap<(usize, u64), Vec<Vec<Carried>>>,
    ends: Vec<Carried>,
    stopped: bool,
    /// Whether something was passed by that gives children of its own accord.
    renamed: bool,
    /// Whether the item itself was seen.
    found: bool,
}

impl<'e> Replayer<'e> {
    /// For an item that was not made of several.
    pub(crate) fn new(engine: &'e Engine, epoch: u64, target: &Origin) -> Result<Self> {
        let io = engine.io(false).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start the async runtime").with_source(error)
        })?;
        let offload: Option<Arc<dyn Offload>> =
            (engine.settings.workers > 0).then(|| Arc::new(BlockingPool(io.clone())) as _);
        let info = RunInfo {
            seed: engine.settings.seed,
            epoch,
            rank: engine.settings.rank,
            uneven: engine.settings.uneven,
            cancelled: Arc::new(AtomicBool::new(false)),
            offload,
        };
        let nodes = &engine.flow.nodes;
        let source = target.source().unwrap_or(u16::MAX);
        let mut repeats: Vec<Option<usize>> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let above = node.inputs.iter().filter_map(|&(id, _)| repeats[id]).max();
            repeats.push(match node.node.op {
                Op::Source(_) => (node.source == source).then_some(0),
                Op::Rerun(_) => above.map(|above| above + 1),
                _ => above,
            });
        }
        if repeats[engine.flow.root.0].is_none() {
            let sources = nodes.iter().filter(|node| matches!(node.node.op, Op::Source(_)));
            let sources: Vec<_> =
                sources.map(|source| format!("{} (`{}`)", source.source, source.name)).collect();
            let message =
                format!("no item {target}: the sources of the graph have the numbers {}", sources.join(", "));
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let mut siblings = vec![false; nodes.len()];
        for (id, node) in nodes.iter().enumerate().rev() {
            for &(above, _) in &node.inputs {
                siblings[above] |= siblings[id] || node.hints().by_parent;
            }
        }
        let (target, top) = (target.clone(), target.top().clone());
        Ok(Replayer { engine, info, io, target, top, repeats, siblings })
    }

    /// Runs it. What came last: at the end of the graph, or before what looks at the stream as a whole.
    pub(crate) fn run(&self, show: Show<'_>) -> Result<Vec<Carried>> {
        let (mut child, mut origin) = (0, &self.target);
        while let Some(parent) = origin.parent() {
            (child, origin) = (origin.index(), parent);
        }
        let nodes = &self.engine.flow.nodes;
        let repeats = self.repeats[self.engine.flow.root.0].unwrap_or(0);
        let makes_children = nodes.iter().zip(&self.repeats).any(|(node, repeats)| {
            let hints = node.hints();
            repeats.is_some()
                && hints.arity == Arity::Any
                && !hints.facts.selects
                && matches!(node.node.op, Op::Pipe(_))
        });
        let round = match child {
            _ if repeats == 0 => 0,
            round if round == 0 || !makes_children => round,
            // The first child may be a round of a repeat, or one that a node of the graph made.
            round => {
                let mut nothing = |_: &Stage<'_>| {};
                let mut first = self.pass(0, &mut nothing);
                match first.root() {
                    Ok(()) if first.found => 0,
                    _ => round,
                }
            }
        };
        let mut pass = self.pass(round, show);
        pass.root()?;
        if !pass.found && !pass.stopped && !pass.renamed && pass.ends.iter().any(|end| !end.look().is_empty())
        {
            let only_above = pass.ends.iter().flat_map(Carried::look).all(|look| match look {
                Look::Item(origin, _) => !origin.comes_from(&self.target),
                Look::Error(_) => false,
            });
            if only_above {
                let message = format!("no item {}: no node made children of {}", self.target, self.top);
                return Err(Error::new(ErrorKind::NotFound, message));
            }
        }
        Ok(pass.ends)
    }

    fn pass<'r, 's>(&'r self, round: u64, show: Show<'s>) -> Pass<'r, 'e, 's> {
        Pass {
            replayer: self,
            round,
            show,
            splits: HashMap::new(),
            ends: Vec::new(),
            stopped: false,
            renamed: false,
            found: false,
        }
    }

    fn context(&self, node: &FlowNode, round: u64) -> Context {
        Context::new(node.name.clone(), node.source, self.info.clone(), round, Arc::default())
    }

    /// A node that begins again at any place, so that no more than one item of it is needed.
    fn is_start(node: &FlowNode) -> bool {
        match node.node.op {
            Op::Source(_) => true,
            Op::Pipe(_) => node.hints().facts.by_position && node.hints().arity != Arity::One,
            _ => false,
        }
    }

    /// All that a node gives.
    fn whole(&self, id: usize, round: u64, wanted: Option<Wanted>) -> Result<(AnyItems, Context)> {
        let node = &self.engine.flow.nodes[id];
        let mut context = self.context(node, round);
        if wanted.is_some() {
            context = context.with_keeper(Keeper { recorder: None, kept: None, wanted, again: 0 });
        }
        let mut inputs = Vec::new();
        for &(above, _) in &node.inputs {
            let (items, context) = self.whole(above, round, None)?;
            inputs.push(self.engine.flow.nodes[above].node.edge.guard(items, context));
        }
        let applied = catch_unwind(AssertUnwindSafe(|| match &node.node.op {
            Op::Source(source) => Some(source.open(&context)),
            Op::Pipe(pipe) => inputs.pop().map(|input| pipe.apply(input, &context)),
            Op::Join(join) => Some(join.join(inputs, &context)),
            Op::Split(_) | Op::Rerun(_) => None,
        }));
        match applied {
            Ok(Some(items)) => Ok((items, context)),
            Ok(None) => {
                let message =
                    "a node that gives by position, below one that splits or repeats, is not replayed";
                Err(Error::new(ErrorKind::Unsupported, message).at(&node.name))
            }
            Err(payload) => Err(Error::panic(payload).at(&node.name)),
        }
    }

    /// Takes what comes, chunk by chunk, until `take` says that it is enough.
    async fn drain(
        &self,
        items: AnyItems,
        edge: &Arc<dyn Edge>,
        context: &Context,
        most: usize,
        mut take: impl FnMut(AnyChunk) -> bool,
    ) {
        let mut chunks = edge.erase(edge.guard(items, context.clone()));
        while let Some(chunk) = poll_fn(|cx| chunks.poll_chunk(cx, Demand::up_to(most))).await {
            if !take(chunk) {
                return;
            }
        }
    }

    fn wait<R>(&self, future: impl Future<Output = R>) -> R {
        let _entered = self.io.enter();
        super::block_on(future)
    }
}

/// Items asked for at once.
const MANY: usize = 64;

/// Chunks that are there already.
struct Given(VecDeque<AnyChunk>);

impl ErasedChunks for Given {
    fn poll_chunk(&mut self, _: &mut task::Context<'_>, _: Demand) -> Poll<Option<AnyChunk>> {
        Poll::Ready(self.0.pop_front())
    }
}

/// What was found among what a node gave.
#[derive(Default)]
struct Found {
    kept: Vec<Carried>,
    /// How many came, and the first and the last of them.
    seen: u64,
    ends: Option<(Origin, Origin)>,
    /// An error that is of no item, or of another.
    error: Option<String>,
    exact: bool,
}

impl Found {
    /// Keeps what is wanted of a chunk.
    fn take(
        &mut self,
        chunk: AnyChunk,
        edge: &Arc<dyn Edge>,
        target: &Origin,
        wide: Option<&Origin>,
        all_errors: bool,
    ) {
        let mut places = Vec::new();
        for (place, look) in edge.look(&chunk).into_iter().enumerate() {
            let wanted = match look {
                Look::Item(origin, _) => {
                    self.exact |= origin == *target;
                    let wanted = origin.is_related(wide.unwrap_or(target));
                    match &mut self.ends {
                        Some((_, last)) => *last = origin,
                        none => *none = Some((origin.clone(), origin)),
                    }
                    wanted
                }
                Look::Error(error) => {
                    let wanted = match error.item() {
                        Some(item) => item.is_related(wide.unwrap_or(target)),
                        None => all_errors,
                    };
                    self.exact |= wanted && error.item() == Some(target);
                    if !wanted {
                        self.error = Some(error.to_string());
                    }
                    wanted
                }
            };
            if wanted {
                places.push((place, self.seen + place as u64));
            }
        }
        self.seen += chunk.len as u64;
        let (Some(first), Some(last)) = (places.first().copied(), places.last()) else { return };
        let ranges: Vec<_> = places.iter().map(|&(place, _)| place..place + 1).collect();
        // Places are known where what is kept stands in a row.
        let row = last.1 - first.1 + 1 == places.len() as u64;
        let chunk = edge.pick(chunk, &ranges);
        self.kept.push(Carried { chunk, edge: edge.clone(), position: row.then_some(first.1) });
    }

    /// What there is instead.
    fn instead(&self) -> String {
        match &self.ends {
            None => "none".to_owned(),
            Some((only, _)) if self.seen == 1 => only.to_string(),
            Some((first, last)) => format!("{} from {first} to {last}", self.seen),
        }
    }
}

impl Pass<'_, '_, '_> {
    fn root(&mut self) -> Result<()> {
        let ends = self.visit(self.replayer.engine.flow.root, 0)?;
        self.ends.extend(ends);
        Ok(())
    }

    fn show<'a>(&mut self, id: usize, way: Way, time: Duration, made: impl IntoIterator<Item = &'a Carried>) {
        let made: Vec<&Carried> = made.into_iter().collect();
        (self.show)(&Stage { node: &self.replayer.engine.flow.nodes[id], way, time, made: &made });
    }

    /// The round that a repeat's input is in, where so many lie between it and the source, itself included. Rounds within
    /// rounds are numbered as the executor numbers them.
    fn round_above(&self, repeats: usize) -> Result<u64> {
        let mut round = self.round;
        for _ in 1..repeats {
            if round >> 32 == 0 {
                return Ok(0);
            }
            let inner = round;
            let outer = (1..MOST_ROUNDS).find(|&outer| inner.wrapping_sub(mix(outer)) < SAME_ROUND);
            round = outer.ok_or_else(|| {
                let message = format!("no item {}: no repeat has a round {inner}", self.replayer.target);
                Error::new(ErrorKind::NotFound, message)
            })?;
        }
        Ok(round)
    }

    /// What an output of a node gave of the sample.
    fn visit(&mut self, (id, port): (usize, usize), round: u64) -> Result<Vec<Carried>> {
        let replayer = self.replayer;
        let node = &replayer.engine.flow.nodes[id];
        let Some(repeats) = replayer.repeats[id] else { return Ok(Vec::new()) };
        if let Some(outputs) = self.splits.get_mut(&(id, round)) {
            return Ok(std::mem::take(&mut outputs[port]));
        }
        if Replayer::is_start(node) {
            return self.start(id, round);
        }
        let round_above = match node.node.op {
            Op::Rerun(_) => self.round_above(repeats)?,
            _ => round,
        };
        let mut inputs = Vec::new();
        for &input in &node.inputs {
            inputs.extend(self.visit(input, round_above)?);
        }
        inputs.retain(|input| input.chunk.len > input.chunk.errors);
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        let hints = node.hints();
        let is_of_type = |input: &Carried| {
            node.inputs.iter().any(|&(above, _)| {
                replayer.engine.flow.nodes[above].node.edge.item_type() == input.edge.item_type()
            })
        };
        let by_place = hints.facts.by_position && hints.arity == Arity::One;
        let way = match &node.node.op {
            Op::Split(_) if hints.facts.selects => Way::Run,
            _ if hints.facts.selects => Way::Passed,
            Op::Pipe(_) if hints.shardable || hints.by_parent => Way::Run,
            Op::Pipe(_) if by_place && matches!(&inputs[..], [one] if one.position.is_some()) => Way::Run,
            Op::Pipe(_) if by_place => Way::Stopped(PLACE),
            Op::Rerun(_) => Way::Stopped(REPEATS),
            _ => Way::Stopped(WHOLE),
        };
        match way {
            Way::Run if !inputs.iter().all(is_of_type) => self.stop(id, OTHER_TYPE, inputs),
            Way::Run => return self.apply(id, port, round, inputs),
            Way::Passed => {
                // A cache gives later rounds children; so does what pads.
                self.renamed |=
                    matches!(hints.facts.role, Role::Shard { can_pad: true }) || node.node.kind == "cache";
                inputs.iter_mut().for_each(|input| input.position = None);
                self.show(id, way, Duration::ZERO, &inputs);
                return Ok(inputs);
            }
            Way::Stopped(why) => self.stop(id, why, inputs),
        }
        Ok(Vec::new())
    }

    fn stop(&mut self, id: usize, why: &'static str, inputs: Vec<Carried>) {
        self.stopped = true;
        self.show(id, Way::Stopped(why), Duration::ZERO, &[]);
        self.ends.extend(inputs);
    }

    /// Finds the item in what a source gives.
    fn start(&mut self, id: usize, round: u64) -> Result<Vec<Carried>> {
        let (replayer, begun) = (self.replayer, Instant::now());
        let node = &replayer.engine.flow.nodes[id];
        let edge = &node.node.edge;
        if node.hints().facts.once {
            let message = "its items exist only once, and cannot be read again";
            return Err(Error::new(ErrorKind::Unsupported, message).at(&node.name));
        }
        let search = |from: Option<u64>| -> Result<Found> {
            let mut found = Found::default();
            let wanted = from.map(|from| Wanted::new(Vec::new(), from));
            let (items, context) = replayer.whole(id, round, wanted)?;
            let most = if from.is_some() { 1 } else { MANY };
            replayer.wait(replayer.drain(items, edge, &context, most, |chunk| {
                found.take(chunk, edge, &replayer.target, None, false);
                !(found.exact || (from.is_some() && found.seen > 0))
            }));
            Ok(found)
        };
        // Most sources that begin anywhere have item `index` at that place.
        let jumps = matches!(node.node.op, Op::Source(_)) && node.hints().facts.by_position;
        let index = replayer.top.index();
        let jumped = if jumps { Some(search(Some(index))?) } else { None };
        let mut found = match jumped {
            Some(mut found) if !found.kept.is_empty() => {
                found.kept.iter_mut().for_each(|kept| {
                    kept.position = kept.position.map(|position| position + index);
                });
                found
            }
            _ => search(None)?,
        };
        if found.kept.is_empty() {
            let what = match &node.node.op {
                Op::Source(_) => replayer.top.to_string(),
                _ => replayer.target.to_string(),
            };
            let because = found.error.as_ref().map(|error| format!("; an error came, too: {error}"));
            let message = format!(
                "no item {what}: `{}` gave {}{}",
                node.name,
                found.instead(),
                because.unwrap_or_default()
            );
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        if found.exact {
            self.narrow(&mut found.kept);
        }
        self.found |= found.exact;
        self.show(id, Way::Run, begun.elapsed(), &found.kept);
        Ok(found.kept)
    }

    /// Leaves no item but the one that is wanted, and what is of the same one: it is there.
    fn narrow(&self, kept: &mut Vec<Carried>) {
        let target = &self.replayer.target;
        for carried in std::mem::take(kept) {
            let places: Vec<_> = carried
                .look()
                .iter()
                .enumerate()
                .filter(|(_, look)| match look {
                    Look::Item(origin, _) => origin == target,
                    Look::Error(error) => error.item() == Some(target),
                })
                .map(|(place, _)| place..place + 1)
                .collect();
            let Some(first) = places.first() else { continue };
            let position = carried.position.map(|position| position + first.start as u64);
            let Carried { chunk, edge, .. } = carried;
            let position = position.filter(|_| places.len() == 1);
            kept.push(Carried { chunk: edge.pick(chunk, &places), edge, position });
        }
    }

    /// Applies a node to the sample.
    fn apply(&mut self, id: usize, port: usize, round: u64, inputs: Vec<Carried>) -> Result<Vec<Carried>> {
        let (replayer, begun) = (self.replayer, Instant::now());
        let node = &replayer.engine.flow.nodes[id];
        let (edge, hints) = (&node.node.edge, node.hints());
        let outputs = node.node.outputs();
        // As long as siblings are grouped further down, they come along.
        let wide = replayer.siblings[id].then_some(&replayer.top);
        let founds: Vec<Mutex<Found>> = (0..outputs).map(|_| Mutex::default()).collect();
        let position = match &inputs[..] {
            [one] if hints.arity == Arity::One => one.position,
            _ => None,
        };
        let mut context = replayer.context(node, round);
        if hints.facts.by_position {
            let wanted = position.map(|position| Wanted::new(Vec::new(), position));
            context = context.with_keeper(Keeper { recorder: None, kept: None, wanted, again: 0 });
        }
        let above = inputs[0].edge.clone();
        let given = Given(inputs.into_iter().map(|input| input.chunk).collect());
        let input = above.restore(Box::new(given));
        let applied = catch_unwind(AssertUnwindSafe(|| match &node.node.op {
            Op::Pipe(pipe) => vec![pipe.apply(input, &context)],
            Op::Split(split) => split.split(input, &context),
            _ => unreachable!("only pipes and splits are applied"),
        }));
        let applied = match applied {
            Ok(applied) => applied,
            Err(payload) => vec![edge.fail(Error::panic(payload).at(&node.name))],
        };
        // All outputs at once: one that nobody reads would hold up the others.
        replayer.wait(join_all(applied.into_iter().zip(&founds).map(|(items, found)| {
            replayer.drain(items, edge, &context, MANY, |chunk| {
                lock(found).take(chunk, edge, &replayer.target, wide, true);
                true
            })
        })));
        let founds: Vec<Found> = founds
            .into_iter()
            .map(|found| found.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        if founds.iter().all(|found| found.kept.is_empty())
            && let Some(found) = founds.iter().find(|found| found.seen > 0)
        {
            let message = format!("no item {}: `{}` made {}", replayer.target, node.name, found.instead());
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        self.found |= founds.iter().any(|found| found.exact);
        let mut made: Vec<Vec<Carried>> = founds.into_iter().map(|found| found.kept).collect();
        // One came out for one that went in.
        made.iter_mut().flatten().for_each(|made| made.position = position);
        self.show(id, Way::Run, begun.elapsed(), made.iter().flatten());
        let output = made.get_mut(port).map(std::mem::take).unwrap_or_default();
        if outputs > 1 {
            self.splits.insert((id, round), made);
        }
        Ok(output)
    }
}

fn lock(found: &Mutex<Found>) -> MutexGuard<'_, Found> {
    found.lock().unwrap_or_else(PoisonError::into_inner)
}
