//! The async runtime for I/O, where the caller has none that runs by itself.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::{Builder, Runtime};

const NAME: &str = "datapipes-io";

/// A small one, of one thread.
pub(super) fn start() -> io::Result<Runtime> {
    // Tokio panics where it cannot start its thread. So one is tried before, which says why; it has
    // to be gone then, where one more is what is allowed.
    let tried = super::spawn_thread(NAME.to_owned(), || ())?;
    let _ = tried.join();
    let build = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(NAME)
            .enable_all()
            .build()
    };
    // Another may have been faster.
    catch_unwind(AssertUnwindSafe(build))
        .unwrap_or_else(|payload| Err(io::Error::other(crate::Error::panic(payload))))
}
