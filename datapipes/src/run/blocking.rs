//! Blocking work for code without a [`Context`](crate::Context): stores, tables, caches.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::Handle;

use super::near;
use super::scope::{Busy, Scope};
use crate::context::offloaded;
use crate::{Error, ErrorKind, Result};

/// Runs blocking work, such as a query of an embedded database, without delaying other I/O. The
/// work runs on the blocking threads of the async runtime around the call, or at once if there is
/// no runtime, or if workers do it because it [seldom waits](field@crate::Hints::seldom_waits).
///
/// Inside a pipe, use [`Context::blocking`](crate::Context::blocking) instead: it uses the loader's
/// own runtime.
///
/// # Errors
/// [`ErrorKind::Panic`] if the work panics, `Io` if the runtime stops before the work begins.
///
/// # Cancellation
/// The work does not start before the first poll. Work that has begun runs to its end, even if the
/// future is dropped.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let text = datapipes::blocking(|| std::fs::read_to_string("Cargo.toml")).await??;
/// assert!(text.contains("datapipes"));
/// # datapipes::Ok(()) }).unwrap();
/// ```
pub async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R> {
    if let Some(in_place) = near::here() {
        return offloaded(&in_place, work).await;
    }
    let busy = Scope::current().map(|scope| scope.busy());
    let guarded = move || {
        let _marked = busy.as_ref().map(Busy::mark);
        catch_unwind(AssertUnwindSafe(work)).map_err(Error::panic)
    };
    match Handle::try_current() {
        Err(_) => guarded(),
        Ok(handle) => {
            #[expect(clippy::disallowed_methods, reason = "here work is started")]
            let task = handle.spawn_blocking(guarded);
            task.await.map_err(|error| {
                Error::new(ErrorKind::Io, "the runtime stopped").with_source(error)
            })?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_runtime_it_runs_at_once() {
        let here = std::thread::current().id();
        let there = crate::run::block_on(blocking(|| std::thread::current().id())).unwrap();
        assert_eq!(here, there);
    }

    #[tokio::test]
    async fn in_a_runtime_it_runs_elsewhere_and_a_panic_is_an_error() {
        let here = std::thread::current().id();
        assert_ne!(
            blocking(|| std::thread::current().id()).await.unwrap(),
            here
        );
        let error = blocking(|| panic!("at work")).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Panic, "panicked: at work")
        );
    }

    #[test]
    fn a_runtime_that_stops_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let future = {
            let _entered = runtime.enter();
            let mut future = Box::pin(blocking(|| ()));
            runtime.shutdown_background();
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            std::future::Future::poll(future.as_mut(), &mut cx)
        };
        match future {
            std::task::Poll::Ready(outcome) => {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Io)
            }
            std::task::Poll::Pending => panic!("it waits for a runtime that is gone"),
        }
    }
}
