//! The stream at the root of an epoch.

use std::sync::Arc;

use super::wiring::Wired;
use super::{Engine, EpochRun, Resume, Share};
use crate::graph::AnyItems;
use crate::keep::{Point, Saving, Trace};
use crate::{Items, Result, Wanted};

/// The stream at the root of an epoch, wired and alive. Dropping it ends the epoch.
pub(crate) struct Running<T> {
    pub items: Items<T>,
    trace: Option<Arc<dyn Trace>>,
    pub run: Arc<EpochRun>,
    in_background: bool,
}

impl<T: Send + 'static> Running<T> {
    /// Wires an epoch of a rank; see [`Engine::begin`]. Nothing runs before the first poll. A resumed one begins at a
    /// position, with each node where it stood.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        epoch: u64,
        share: Share,
        may_use_callers: bool,
        resume: Option<Resume>,
    ) -> Result<Self> {
        let run = EpochRun::new(engine, epoch, share, may_use_callers, resume.as_ref())?;
        let wanted = resume.map(|resume| Wanted::since(resume.position));
        let Wired { items, trace } = run.stream(engine.flow.root, 0, wanted.as_ref());
        Ok(Running { items: crate::graph::typed(items), trace, run, in_background: false })
    }

    /// Where every node stands when so many items and errors have been delivered.
    pub(crate) fn save(&self, position: u64) -> Option<Saving> {
        self.trace.as_ref().map(|trace| Saving::all(&**trace, Point::at(position)))
    }

    /// The trace of what comes out, by which it can be saved where it stands at any position that was not forgotten.
    pub(crate) fn trace(&self) -> Option<Arc<dyn Trace>> {
        self.trace.clone()
    }

    /// Whether logs have become long.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.trace.is_some() && self.run.trim.is_asked()
    }

    /// Forgets what no state from this position on needs.
    #[cold]
    pub(crate) fn trim(&self, position: u64) {
        if let Some(trace) = &self.trace {
            trace.forget(position);
            self.run.trim.done();
        }
    }

    pub(crate) fn is_inline(&self) -> bool {
        !self.in_background
    }

    /// Moves what is above the consumer to a thread of its own, which works ahead from now on. Says whether it
    /// was moved just now.
    pub(crate) fn move_to_background(&mut self) -> bool {
        let plan = &self.run.engine.plan;
        if self.in_background || plan.prefetch.items == 0 {
            return false;
        }
        self.in_background = true;
        let edge = &self.run.engine.flow.nodes[self.run.engine.flow.root.0].node.edge;
        let above: AnyItems = Box::new(std::mem::replace(&mut self.items, Items::empty()));
        let gauge = self.run.root_queue.clone();
        let queue = (plan.prefetch, self.run.account(None, edge));
        let mut background = self.run.background("loader".to_owned(), above, queue, edge, gauge);
        background.start();
        self.items = crate::graph::typed(edge.restore(Box::new(background)));
        true
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.run.finish();
    }
}
