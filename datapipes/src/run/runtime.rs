//! The async runtime for I/O, for callers without a multi-threaded runtime.

use std::io;

use tokio::runtime::{Builder, Runtime};

const NAME: &str = "datapipes-io";

/// Starts a small runtime of one thread.
pub(super) fn start() -> io::Result<Runtime> {
    // Tokio panics if it cannot start its thread, which is an error here. Where a panic would end the
    // program, a thread is tried before; it must have ended first, in case only one more is allowed.
    if cfg!(panic = "abort") {
        let tried = super::spawn_thread(NAME.to_owned(), || ())?;
        let _ = tried.join();
    }
    let build = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(NAME)
            .enable_all()
            .build()
    };
    // Nothing is printed: the caller gets the error.
    crate::catch_panic(build).unwrap_or_else(|panic| Err(io::Error::other(panic)))
}
