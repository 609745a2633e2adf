//! The epoch of one rank: the building block of an [`Epoch`](super::Epoch).

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{self, Poll, ready};
use std::time::Instant;

use futures::Stream;

use super::ahead::{AheadGain, Totals};
use super::blame::refuse_unanswered;
use super::checkpoint::{Progress, Saved, saved};
use super::latest::{Latest, Runs};
use super::left::Left;
use super::online::{OnlineTuner, Windows};
use super::policy::{Copies, OnError};
use super::stats::Stats;
use crate::checkpoint::{History, Point, Saving};
use crate::error::quietly;
use crate::graph::check::unequal_steps;
use crate::graph::{FlowNode, Op};
use crate::items::Demand;
use crate::run::{
    ConsumerEvents, ConsumerMoments, Cursors, DevicePrefetchGauge, Engine, RankShare, Resume,
    Running, Scope, TraceLevel,
};
use crate::sync::lock;
use crate::{Error, ErrorKind, Item, Result, Work};

/// The arguments for opening an epoch.
pub(super) struct Start {
    pub engine: Arc<Engine>,
    pub tuner: Option<Arc<Mutex<OnlineTuner>>>,
    pub number: u64,
    pub on_error: OnError,
    /// True if it goes on with a graph that has changed since.
    pub edited: bool,
    /// Ranks that are read in turn, and the place where each goes on.
    pub ranks: Vec<(RankShare, Option<(Saved, Resume)>)>,
    pub runs: Runs,
    /// The loader's latest epoch, which this one becomes when it begins.
    pub latest: Arc<Latest>,
    pub device_depth: usize,
}

/// One pass of one rank over its part of the data.
pub(super) struct RankEpoch<T> {
    engine: Arc<Engine>,
    number: u64,
    pub share: RankShare,
    on_error: OnError,
    /// Place where it is resumed.
    resume: Option<Resume>,
    /// True if it goes on with a graph that has changed since.
    edited: bool,
    /// True if nothing is left, whatever the budget of steps.
    drained: bool,
    /// Cursors of its nodes when it ended.
    ended: Option<std::result::Result<Cursors, Arc<Error>>>,
    pub blocking: bool,
    /// Time at which the consumer began to wait for an item.
    waiting_since: Option<Instant>,
    events: ConsumerEvents,
    moments: ConsumerMoments,
    /// True if a trace or a report was being written when the consumer last asked the graph: what
    /// each item looks at, since it is cheap.
    traced: bool,
    stage: RankState<T>,
    /// List to which its figures are added once it has begun.
    runs: Runs,
    /// Number of errors that were skipped, in the epoch before a resume, too.
    failed: u64,
    /// Those among them that are copies of one failure.
    copies: Arc<Copies>,
    gain: AheadGain,
    windows: Windows,
    pub delivered: u64,
    /// Maximum number of items delivered.
    budget: u64,
    /// True if ranks agree before each step whether there is another.
    pub agreed: bool,
    /// True if the last output was an item, which the consumer has.
    pub taken: bool,
    /// Progress shared with the conversion that reads the epoch.
    handed_over: Option<ReadFigures>,
}

enum RankState<T> {
    Fresh,
    Running(Box<Running<T>>),
    Done,
}

impl<T: Send + 'static> RankEpoch<T> {
    pub fn new(start: &Start, share: RankShare, resume: Option<(Saved, Resume)>) -> Self {
        let Start {
            engine,
            number,
            on_error,
            edited,
            runs,
            tuner,
            ..
        } = start;
        let (saved, resume) = resume.unzip();
        let drained = saved.as_ref().is_some_and(Saved::is_at_end);
        let stage = if drained {
            RankState::Done
        } else {
            RankState::Fresh
        };
        let saved = saved.unwrap_or_default();
        let (delivered, failed, copies) = (saved.delivered, saved.skipped, saved.copies);
        RankEpoch {
            budget: engine.settings.max_steps.unwrap_or(u64::MAX),
            engine: engine.clone(),
            number: *number,
            share,
            on_error: on_error.clone(),
            edited: *edited,
            drained,
            resume,
            ended: None,
            blocking: false,
            waiting_since: None,
            events: ConsumerEvents::default(),
            moments: ConsumerMoments::default(),
            traced: false,
            stage,
            runs: runs.clone(),
            failed,
            copies,
            gain: AheadGain::default(),
            windows: Windows::new(tuner.clone()),
            delivered,
            agreed: false,
            taken: false,
            handed_over: None,
        }
    }

    /// Declares that a conversion reads the epoch, which may be a device stage; returns the
    /// conversion's access to its progress.
    pub fn hand_over(&mut self, gauge: Option<&Arc<DevicePrefetchGauge>>) -> Stand {
        let gauge = gauge.cloned().or_else(|| self.handed_over.take()?.gauge);
        let figures = ReadFigures {
            gauge,
            ..ReadFigures::default()
        };
        figures
            .taken
            .store(self.delivered + self.failed, Ordering::Relaxed);
        self.handed_over = Some(figures.clone());
        let cursors = self
            .resume
            .as_ref()
            .map(|resume| resume.cursors.clone())
            .unwrap_or_default();
        let begun = (self.progress(), cursors);
        Stand {
            engine: self.engine.clone(),
            edited: self.edited,
            skips: self.on_error.most() > 0,
            begun,
            figures,
            taken: None,
        }
    }

    /// Returns the number of items still to come.
    pub fn left(&self) -> Left {
        match self.stage {
            RankState::Done => Left::NOTHING,
            _ => Left::of(
                &self.engine,
                self.share,
                self.edited,
                self.on_error.most() > 0,
                self.delivered,
            ),
        }
    }

    /// Returns the progress of the epoch.
    pub fn progress(&self) -> Progress {
        self.progress_at(self.delivered)
    }

    /// Returns the progress of the epoch after this many items.
    fn progress_at(&self, delivered: u64) -> Progress {
        Progress {
            seed: self.engine.settings.seed,
            epoch: self.number,
            share: self.share,
            finished: self.drained || delivered >= self.budget,
            drained: self.drained,
            delivered,
            skipped: self.failed,
            copies: self.copies.clone(),
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.stage, RankState::Done)
    }

    /// Ends the epoch. With `back` the last item counts as not delivered; with `drained` the epoch
    /// counts as finished, so that nothing is left to resume.
    pub fn end_at(&mut self, back: bool, drained: bool) {
        self.taken = false;
        self.delivered -= u64::from(back);
        self.drained |= drained;
        self.end();
    }

    /// Returns the rank's checkpoint, or, if the last item goes `back`, the checkpoint before that
    /// item.
    pub fn saved(&self, back: bool) -> Result<Saved> {
        let delivered = self.delivered - u64::from(back);
        let Engine { flow, settings, .. } = &*self.engine;
        if !settings.resumable {
            return Err(not_resumable());
        }
        let saving = match &self.stage {
            RankState::Running(running) => running.save(delivered + self.failed),
            _ => None,
        };
        let cursors = match (saving, &self.ended, &self.resume) {
            (Some(saving), ..) => saved(saving)?,
            (_, Some(ended), _) => ended.clone().map_err(|error| error.copied())?,
            // The cursors of a graph that was changed are not those of the checkpoint.
            (_, None, Some(resume)) => (*resume.cursors).clone(),
            (_, None, None) => Cursors::default(),
        };
        Ok(Saved::new(flow, self.progress_at(delivered), &cursors))
    }

    /// Ends the epoch; its final checkpoint is kept.
    pub fn end(&mut self) {
        if let RankState::Running(running) = &self.stage
            && self.engine.settings.resumable
        {
            self.ended = match running.save(self.delivered + self.failed) {
                _ if self.drained => Some(Ok(Cursors::default())),
                // An epoch that is not even wired stands where it began.
                saving => saving.map(|saving| saved(saving).map_err(Arc::new)),
            };
        }
        self.stage = RankState::Done;
    }

    /// Warns at the end if a node left out all items: a loop over the epoch would do nothing.
    fn warn_if_emptied(&self) {
        if self.delivered == 0
            && !self.engine.settings.is_collected
            && let RankState::Running(running) = &self.stage
            && let Some(emptied) = Stats::of(&running.run).emptied()
        {
            let (epoch, rank) = (self.number, self.share.rank.index);
            let warn = || tracing::warn!(epoch, rank, "no item was delivered: {emptied}");
            running.run.log.within(|| quietly(warn));
        }
    }

    /// Tells a conversion that nothing more comes.
    fn tell_end(&self) {
        if let Some(figures) = &self.handed_over {
            let _ = figures.ended.set(self.progress());
        }
    }

    /// Returns an item that is ready: the shortest path of an item.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<Result<Item<T>>> {
        loop {
            let ready = match &mut self.stage {
                RankState::Running(running) if self.delivered < self.budget => {
                    running.items.pop_ready()?
                }
                _ => return None,
            };
            match ready {
                Ok(item) => return Some(Ok(self.deliver(item))),
                Err(error) => {
                    if let Some(error) = self.decide(error) {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    #[inline]
    pub fn poll_item(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        match self.pop_ready() {
            Some(ready) => Poll::Ready(Some(ready)),
            None => self.poll_more(cx),
        }
    }

    /// Polls when nothing is ready.
    fn poll_more(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        if let Err(error) = Scope::refuse_inside(self.engine.id) {
            let ended = self.is_done();
            self.end();
            return Poll::Ready((!ended).then_some(Err(error)));
        }
        loop {
            if self.delivered >= self.budget && !self.is_done() {
                self.end_at(false, false);
                self.tell_end();
            }
            match &self.stage {
                RankState::Done => return Poll::Ready(None),
                RankState::Running(_) => {}
                RankState::Fresh => {
                    if let Err(error) = self.start() {
                        self.stage = RankState::Done;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
            let begun = Instant::now();
            self.choose_place(begun);
            let RankState::Running(running) = &mut self.stage else {
                unreachable!("started above");
            };
            let (was_inline, has_waited) = (running.is_inline(), self.waiting_since.is_some());
            if was_inline {
                running.run.inline.begin(begun);
            }
            let polled = {
                let _entered = running.run.scope.enter();
                let items = Pin::new(&mut running.items);
                running
                    .run
                    .log
                    .within(|| Demand::up_to(1).scope(|| items.poll_next(cx)))
            };
            let (ended, is_ready) = (Instant::now(), polled.is_ready());
            let spent = ended - begun;
            let is_long = self.gain.after_poll(spent, ended, is_ready);
            if was_inline {
                running.run.inline.end(ended);
            }
            if running.is_inline() {
                self.waiting_since.get_or_insert(begun);
                // If the consumer has waited, the next items are made ahead. While it waits, it has
                // nothing else to do, and to start a thread would only delay the first batch.
                let has_item = matches!(polled, Poll::Ready(Some(_)));
                if has_item && (is_long || has_waited) && running.move_to_thread() {
                    self.gain.moved();
                }
            }
            let polled_here = &running.run.root_queue.polled_here;
            if polled.is_pending() || polled_here.load(Ordering::Relaxed) {
                self.waiting_since.get_or_insert(begun);
            }
            if polled.is_pending() {
                running.run.consumer_waits(cx);
            }
            let polled = ready!(polled);
            self.record_poll(begun, ended, polled.is_some());
            match polled {
                None => {
                    self.warn_if_emptied();
                    self.end_at(false, true);
                    self.tell_end();
                    return Poll::Ready(self.fell_short().map(Err));
                }
                Some(Ok(item)) => return Poll::Ready(Some(Ok(self.deliver(item)))),
                Some(Err(error)) => {
                    if let Some(error) = self.decide(error) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        }
    }

    /// Tunes and trims what runs, and decides if the graph runs on the consumer's thread.
    fn choose_place(&mut self, begun: Instant) {
        let RankState::Running(running) = &mut self.stage else {
            return;
        };
        if running.is_long() {
            // The items that the consumer has, which may be fewer than a device stage has read.
            // The consumer may still give the last one back.
            let position = match &self.handed_over {
                Some(figures) => figures.taken.load(Ordering::Relaxed),
                None => self.delivered + self.failed - u64::from(self.taken),
            };
            running.trim(position);
        }
        let (graph_ns, pending_polls) = running.run.spent();
        let items = self.delivered + self.failed;
        let totals = Totals {
            items,
            graph_ns,
            pending_polls,
        };
        if self.windows.is_due(self.delivered) {
            let is_inline = running.is_inline();
            self.windows
                .look(begun, self.delivered, &running.run, is_inline);
        }
        self.gain.before_poll(begun, totals);
        if self.gain.is_wasted() && running.run.is_all_inline() {
            running.move_back();
        } else if self.gain.pays() && running.move_to_thread() {
            self.gain.moved();
        }
    }

    /// Records the wait that ended, for figures, trace and report; `is_item` is false at the end.
    fn record_poll(&mut self, begun: Instant, ended: Instant, is_item: bool) {
        let RankState::Running(running) = &self.stage else {
            return;
        };
        let run = &running.run;
        let since = self.waiting_since.take();
        // The wait for the end is no wait for an item.
        let waited = since.filter(|_| is_item);
        if let Some(since) = waited {
            run.waits.record((ended - since).as_nanos() as u64, 1);
        }
        let timeline = run.engine.timeline.get(TraceLevel::Batch);
        let recent = &run.engine.recent;
        let asked = since.unwrap_or(begun);
        let is_recorded = recent.is_watched() && self.moments.polled(asked, self.delivered, recent);
        self.traced = timeline.is_some() || is_recorded;
        if let Some(timeline) = timeline {
            let rank = self.share.rank.index;
            self.events
                .asked(&timeline, rank, asked, waited.map(|_| ended));
        }
        // An epoch that is polled as a stream is wired on a thread of its own, so that its trace
        // is there when the first item is.
        if let Some(figures) = &self.handed_over
            && figures.history.get().is_none()
            && let Some(history) = running.history()
        {
            let _ = figures.history.set(history);
        }
    }

    /// Returns the error of a rank that has fewer steps than all were to have, if other ranks may
    /// have more.
    fn fell_short(&self) -> Option<Error> {
        let Engine { flow, settings, .. } = &*self.engine;
        let budget = settings
            .max_steps
            .filter(|&budget| self.delivered < budget && !self.agreed)?;
        let why = unequal_steps(flow, settings, self.on_error.most())?;
        let (steps, rank) = (self.delivered, settings.rank.index);
        let message = format!(
            "rank {rank} has {steps} of the {budget} steps that `max_steps` gives each rank; {why}"
        );
        Some(Error::config(message))
    }

    fn start(&mut self) -> Result<()> {
        if !self.engine.settings.is_collected {
            refuse_unanswered()?;
        }
        let resume = self.resume.clone();
        let running = Running::start(
            &self.engine,
            self.number,
            self.share,
            !self.blocking,
            resume,
        )?;
        if let Some(ReadFigures { gauge, .. }) = &self.handed_over
            && let Some(gauge) = gauge
        {
            let _ = running.run.device.set(gauge.clone());
        }
        lock(&self.runs).push(running.run.clone());
        self.stage = RankState::Running(Box::new(running));
        Ok(())
    }

    #[inline]
    fn deliver(&mut self, item: Item<T>) -> Item<T> {
        self.delivered += 1;
        self.taken = true;
        if let RankState::Running(running) = &self.stage {
            running.run.count_delivered();
        }
        if self.traced {
            self.show_delivered(&item);
        }
        item
    }

    /// Records for trace and report that the consumer has an item.
    #[cold]
    fn show_delivered(&mut self, item: &Item<T>) {
        if self.engine.recent.is_watched() {
            self.moments.delivered(&self.engine.recent);
        }
        if let Some(timeline) = self.engine.timeline.get(TraceLevel::Batch) {
            let rank = self.share.rank.index;
            self.events.delivered(&timeline, rank, item.origin());
        }
    }

    /// Adds the step to an error of reading an item that no policy skips: a file that is not the one
    /// that was locked. Sources give such errors before the step that would use the item.
    fn at_step(&self, error: Error) -> Error {
        let mut nodes = self.engine.flow.nodes.iter();
        let node = nodes.find(|node| error.node() == Some(&node.name));
        let reads =
            |node: &FlowNode| matches!(node.node.op, Op::Pipe(_)) && node.hints().work == Work::Io;
        let is_of_item = error.item().is_some() && error.kind() == ErrorKind::Config;
        match is_of_item && node.is_some_and(reads) {
            true => {
                let in_turn = self.resume.as_ref().map(|resume| &*resume.in_turn);
                let ranks = in_turn.unwrap_or_default();
                let step = self.share.step_in_turn(self.delivered, ranks);
                error.within(format_args!("at step {step}"))
            }
            false => error,
        }
    }

    /// Returns the error if it is not skipped and ends the epoch.
    #[cold]
    fn decide(&mut self, error: Error) -> Option<Error> {
        self.taken = false;
        let counts = self.copies.counts(&error);
        let before = self.failed - self.copies.uncounted;
        match self.on_error.decide(before, counts, error) {
            Err(error) => {
                self.end();
                Some(self.at_step(error))
            }
            Ok(skipped) => {
                self.failed += 1;
                if skipped.is_echo() || skipped.is_counted_once() {
                    Arc::make_mut(&mut self.copies).add(&skipped);
                }
                if let RankState::Running(running) = &self.stage
                    && counts
                {
                    running.run.count_skipped(&skipped);
                }
                None
            }
        }
    }
}

/// Shared knowledge about an epoch that a conversion reads.
#[derive(Clone, Default)]
struct ReadFigures {
    gauge: Option<Arc<DevicePrefetchGauge>>,
    /// History of the output, if checkpoints can be taken.
    history: Arc<OnceLock<Arc<dyn History>>>,
    /// Position that the consumer may still go back to, which is before the position that the stage
    /// has read.
    taken: Arc<AtomicU64>,
    /// Progress of the epoch when everything had been read.
    ended: Arc<OnceLock<Progress>>,
}

/// The checkpoint data of an epoch that a conversion reads, maybe ahead of the consumer.
pub(super) struct Stand {
    engine: Arc<Engine>,
    edited: bool,
    /// True if items that fail may be skipped.
    skips: bool,
    /// Progress before the consumer took anything, and the cursors of the nodes.
    begun: (Progress, Arc<Cursors>),
    figures: ReadFigures,
    /// Progress of the epoch with the item that the consumer took last.
    taken: Option<Progress>,
}

impl Stand {
    /// Records that the consumer has taken an item, or an error that ended the epoch. Returns true
    /// if the item is of this rank.
    pub fn take(&mut self, progress: Progress, is_item: bool) -> bool {
        let is_ours = progress.share.rank == self.begun.0.share.rank;
        if is_ours {
            // The consumer may still give the last item back.
            let place = progress.delivered + progress.skipped - u64::from(is_item);
            self.figures.taken.store(place, Ordering::Relaxed);
            self.taken = Some(progress);
        }
        is_ours
    }

    /// Records that the consumer ends the epoch. With `back` the last item counts as not delivered;
    /// with `drained` the epoch counts as finished, so that nothing is left to resume.
    pub fn end_at(&mut self, back: bool, drained: bool) {
        if back || drained {
            let mut progress = self.progress(back);
            progress.drained |= drained;
            progress.finished |= drained;
            self.taken = Some(progress);
        }
    }

    /// Returns the progress, or the progress before the last item.
    fn progress(&self, back: bool) -> Progress {
        let mut progress = self.taken.as_ref().unwrap_or(&self.begun.0).clone();
        if back {
            progress.delivered -= 1;
            let budget = self.engine.settings.max_steps.unwrap_or(u64::MAX);
            progress.finished = progress.drained || progress.delivered >= budget;
        }
        progress
    }

    /// Returns how many items the consumer can still take.
    pub fn left(&self) -> Left {
        match self.progress(false) {
            progress if progress.drained => Left::NOTHING,
            progress => Left::of(
                &self.engine,
                progress.share,
                self.edited,
                self.skips,
                progress.delivered,
            ),
        }
    }

    /// Records that the consumer has taken everything.
    pub fn end(&mut self) {
        self.taken = self.figures.ended.get().or(self.taken.as_ref()).cloned();
    }

    /// Returns the checkpoint after the items that the consumer has taken, or before the last of
    /// them if it goes `back`.
    pub fn saved(&self, back: bool) -> Result<Saved> {
        let Engine { flow, settings, .. } = &*self.engine;
        if !settings.resumable {
            return Err(not_resumable());
        }
        if self.taken.is_none() {
            let (progress, cursors) = &self.begun;
            return Ok(Saved::new(flow, progress.clone(), cursors));
        }
        let progress = self.progress(back);
        let cursors = match self.figures.history.get().filter(|_| !progress.drained) {
            Some(history) => saved(Saving::all(
                &**history,
                Point::at(progress.delivered + progress.skipped),
            ))?,
            None => Cursors::default(),
        };
        Ok(Saved::new(flow, progress, &cursors))
    }
}

pub(super) fn not_resumable() -> Error {
    let message = "the loader keeps nothing to go on from; call `resumable` when it is built";
    Error::config(message)
}
