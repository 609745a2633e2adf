//! Shows the figures of running loaders to other processes.
//!
//! A loader that is [monitored](super::Builder::monitor) has a Unix domain socket, which only its user
//! may open; [`sockets`] lists those of all running loaders. A client writes the line `stats`, and
//! gets a [`Figures`] as a line of JSON, as often as it likes. [`Client`] does that; the program
//! `datapipes top` shows what it gets.
//!
//! ```
//! use datapipes::loader::monitor::{self, Client};
//! use datapipes::{DataLoader, Graph};
//!
//! let loader = DataLoader::builder(Graph::range(0..100).batch(10)).monitor().build()?;
//! loader.epoch(0).blocking().for_each(drop);
//!
//! // In another process:
//! for socket in monitor::sockets()? {
//!     let shown = Client::connect(&socket)?.figures()?;
//!     println!("{} {}: epoch {:?}", shown.process, shown.program, shown.epoch);
//!     # if shown.process == std::process::id() {
//!     assert_eq!(shown.stats.unwrap().delivered, 10);
//!     # }
//! }
//! # Ok::<(), datapipes::BoxError>(())
//! ```

#[cfg(unix)]
mod client;
mod figures;
#[cfg(unix)]
mod folder;
#[cfg(unix)]
mod server;
#[cfg(all(test, unix))]
mod tests;

use std::sync::Arc;

use super::latest::Latest;
use crate::Result;
use crate::error::quietly;
use crate::run::{Engine, is_child_process};

#[cfg(unix)]
pub use client::{Client, sockets};
pub use figures::{Description, Figures, PROTOCOL};

/// Variable that has every loader of a process monitored, if it is `1`.
const VARIABLE: &str = "DATAPIPES_MONITOR";

/// Starts to show a loader's figures, if it was `asked` for or the environment says so.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if it was asked for and is not possible. What only the environment asks for
/// is a warning then.
pub(super) fn start(asked: bool, engine: &Arc<Engine>, latest: &Arc<Latest>) -> Result<()> {
    let by_environment = match std::env::var_os(VARIABLE) {
        Some(value) if value == "1" => true,
        Some(value) if !value.is_empty() && value != "0" => {
            let value = value.display();
            quietly(|| {
                tracing::warn!("{VARIABLE} is `{value}`: expected 1 (monitor all loaders) or 0")
            });
            false
        }
        _ => false,
    };
    if is_child_process() || !(asked || by_environment) {
        return Ok(());
    }
    match open(engine, latest) {
        Err(error) if !asked => {
            quietly(
                || tracing::warn!(%error, "{VARIABLE} is 1, and the loader cannot be monitored"),
            );
            Ok(())
        }
        opened => opened,
    }
}

#[cfg(unix)]
fn open(engine: &Arc<Engine>, latest: &Arc<Latest>) -> Result<()> {
    latest.observe(server::Monitor::open(&folder::own()?, engine, latest)?);
    Ok(())
}

#[cfg(not(unix))]
fn open(_: &Arc<Engine>, _: &Arc<Latest>) -> Result<()> {
    let message =
        "a loader is monitored through a Unix domain socket, which there is none of on this system";
    Err(crate::Error::config(message))
}
