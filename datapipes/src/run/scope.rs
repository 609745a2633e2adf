//! The surroundings of a user's functions: an epoch, which has an async runtime, and which may
//! itself be run by a function of another epoch.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{self, Poll};

use tokio::runtime::{EnterGuard, Handle};

use crate::context::Offload;
use crate::{Error, Result};

/// The scope in which the user's functions of one epoch run. A thread enters it while it runs some
/// of them.
#[derive(Clone)]
pub(crate) struct Scope(Arc<Inner>);

struct Inner {
    io: Handle,
    /// Number of the loader that the epoch belongs to; `None` in a child, whose loader is in the parent.
    engine: Option<u64>,
    /// Amount of work in progress: morsels, requests, polls and blocking work.
    busy: AtomicUsize,
    /// True if the epoch has ended or was dropped.
    cancelled: Arc<AtomicBool>,
    /// Scope in which the epoch was begun, if that was in a function of another epoch.
    around: Option<Scope>,
}

thread_local! {
    /// Epoch of the function that runs on this thread.
    static CURRENT: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

impl Scope {
    /// Makes the scope of an epoch that begins on this thread.
    pub(super) fn new(io: Handle, engine: Option<u64>, cancelled: Arc<AtomicBool>) -> Self {
        Scope(Arc::new(Inner {
            io,
            engine,
            busy: AtomicUsize::new(0),
            cancelled,
            around: Scope::current(),
        }))
    }

    /// Returns the scope of the function that runs on this thread, if it is a function of an epoch.
    pub(super) fn current() -> Option<Scope> {
        CURRENT
            .try_with(|current| current.borrow().clone())
            .ok()
            .flatten()
    }

    /// Fails on a thread that runs a function of this loader, or of a loader whose epoch runs
    /// inside that function. The epoch would wait for itself: for the worker it keeps busy, or for
    /// its own item.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config).
    pub(crate) fn refuse_inside(engine: u64) -> Result<()> {
        let inside = CURRENT.try_with(|current| {
            let current = current.borrow();
            std::iter::successors(current.as_ref(), |scope| scope.0.around.as_ref())
                .any(|scope| scope.0.engine == Some(engine))
        });
        if inside == Ok(true) {
            Err(inside_itself())
        } else {
            Ok(())
        }
    }

    /// Marks work as in progress, until the returned guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    pub(super) fn is_same(&self, other: &Scope) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    /// Returns true if no work is in progress, except work that waits for something outside.
    pub(super) fn is_idle(&self) -> bool {
        self.0.busy.load(Ordering::Relaxed) == 0
    }

    pub(super) fn io(&self) -> &Handle {
        &self.0.io
    }

    /// Marks this thread as one that runs functions of the epoch, with its async runtime around
    /// them.
    pub(crate) fn enter(&self) -> Entered<'_> {
        Entered {
            _marked: self.mark(),
            _io: self.0.io.enter(),
        }
    }

    /// Marks this thread as [`enter`](Scope::enter) does, without the runtime.
    fn mark(&self) -> Marked {
        let replaced = CURRENT.try_with(|current| current.replace(Some(self.clone())));
        Marked(replaced.ok().flatten())
    }
}

/// Blocking work goes to the async runtime's blocking threads.
impl Offload for Scope {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that starts blocking work"
    )]
    fn offload(&self, work: Box<dyn FnOnce() + Send>) {
        let busy = self.busy();
        drop(self.0.io.spawn_blocking(move || {
            let _marked = busy.mark();
            work();
        }));
    }
}

/// A thread that runs functions of an epoch.
pub(crate) struct Entered<'a> {
    _marked: Marked,
    _io: EnterGuard<'a>,
}

/// Returns the error of an epoch that would wait for itself.
pub(crate) fn inside_itself() -> Error {
    let message = "an epoch is read inside a function of the same loader, which would wait for itself; build another loader \
                   for what the function needs";
    Error::config(message)
}

/// Work of an epoch that is in progress.
pub(super) struct Busy(Scope);

impl Busy {
    /// Marks this thread as one that runs functions of the epoch.
    pub(super) fn mark(&self) -> Marked {
        self.0.mark()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Marked(Option<Scope>);

impl Drop for Marked {
    fn drop(&mut self) {
        // Dropped outside of the access: the drop may run a user's code.
        let _left = CURRENT.try_with(|current| current.replace(self.0.take()));
    }
}

/// A task of an epoch. Each poll is inside the epoch's runtime, so that CPU work may use the timers
/// and files of that runtime. So is the drop, since a cancelled task with a request in progress may
/// be dropped on a thread of the pool.
#[pin_project::pin_project(PinnedDrop)]
pub(super) struct Scoped<F> {
    busy: Busy,
    /// `None` only inside the drop, which ends it while the scope is entered.
    #[pin]
    future: Option<F>,
}

impl<F> Scoped<F> {
    pub(super) fn new(scope: &Scope, future: F) -> Self {
        Scoped {
            busy: scope.busy(),
            future: Some(future),
        }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.busy.0.enter();
        let future = this.future.as_pin_mut();
        future.expect("it is there until the drop").poll(cx)
    }
}

#[pin_project::pinned_drop]
impl<F> PinnedDrop for Scoped<F> {
    fn drop(self: Pin<&mut Self>) {
        let mut this = self.project();
        let _entered = this.busy.0.enter();
        this.future.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the runtime when it is dropped, as a connection does that returns to its client.
    #[test]
    fn a_value_dropped_with_its_task_may_use_the_runtime() {
        struct Needs(Arc<AtomicUsize>);

        impl Drop for Needs {
            fn drop(&mut self) {
                assert!(Handle::try_current().is_ok());
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let scope = Scope::new(runtime.handle().clone(), None, Arc::default());
        let dropped = Arc::default();
        let needs = Needs(Arc::clone(&dropped));
        drop(Scoped::new(&scope, async move {
            let _held = needs;
            std::future::pending::<()>().await;
        }));
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        assert!(scope.is_idle());
    }
}
