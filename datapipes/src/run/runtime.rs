//! The async runtime for I/O, for callers without a multi-threaded runtime.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::{Builder, Runtime};

const NAME: &str = "datapipes-io";

/// Starts a small runtime of one thread.
pub(super) fn start() -> io::Result<Runtime> {
    // Tokio panics if it cannot start its thread. A thread is therefore started before, to get the
    // error. That thread must have ended first, in case only one more thread is allowed.
    let tried = super::spawn_thread(NAME.to_owned(), || ())?;
    let _ = tried.join();
    let build = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(NAME)
            .enable_all()
            .build()
    };
    // Another thread may have been faster.
    catch_unwind(AssertUnwindSafe(build))
        .unwrap_or_else(|payload| Err(io::Error::other(crate::Error::panic(payload))))
}
