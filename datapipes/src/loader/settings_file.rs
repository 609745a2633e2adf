//! A file with the settings of a loader, and what it has learned.

use std::io;
use std::path::Path;

use super::checkpoint::{SavedNode, differences};
use super::online::MOST_READY;
use super::trace::blocks;
use crate::graph::Flow;
use crate::run::Requests;
use crate::settings::TunedSettings;
use crate::whole_file::{probe, read, replace_shared};
use crate::{BoxError, Error, ErrorKind, Result};

/// Version of the format. Version 1 has no `requests`; up to version 2, what the loader tuned itself
/// stands for what was chosen.
const VERSION: u64 = 3;
/// Maximum size of a file that is read.
const MOST: u64 = 16 << 20;
/// Maximum number of workers and batches kept ready that a file may ask for.
pub(super) const MOST_WORKERS: usize = 4096;
pub(super) const MOST_PREFETCH: usize = 65_536;
/// Maximum number of requests in flight that a file may say were found.
const MOST_IN_FLIGHT: usize = 1 << 20;

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: u64,
    workers: Option<usize>,
    prefetch: Option<usize>,
    /// Values that the loader found while it ran.
    tuned_workers: Option<usize>,
    tuned_prefetch: Option<usize>,
    #[serde(default)]
    requests: Vec<Requests>,
    /// Nodes of the graph that the settings were found for.
    graph: Vec<SavedNode>,
}

/// Settings, as far as they were chosen or found, and what a loader has learned.
pub(super) struct SavedSettings {
    /// Values that were chosen, by the user or by a search for the best.
    pub workers: Option<usize>,
    pub prefetch: Option<usize>,
    /// Values that the loader found while it ran, and would change again.
    pub found: TunedSettings,
    pub requests: Vec<Requests>,
}

/// Writes the settings for a graph with these nodes, whole or not at all.
pub(super) fn save(path: &Path, nodes: &[SavedNode], kept: SavedSettings) -> Result<()> {
    let form = Form {
        version: VERSION,
        workers: kept.workers,
        prefetch: kept.prefetch,
        tuned_workers: kept.found.workers,
        tuned_prefetch: kept.found.prefetch,
        requests: kept.requests,
        graph: nodes.to_vec(),
    };
    let text = serde_json::to_string_pretty(&form).expect("numbers and texts are JSON");
    let text = text + "\n";
    let written = probe(path).and_then(|()| replace_shared(path, text.as_bytes()));
    written.map_err(|error| failed(path, "written", error))
}

/// Fails if settings cannot be written to the path.
pub(super) fn check_path(path: &Path) -> Result<()> {
    probe(path).map_err(|error| failed(path, "written", error))
}

/// Reads the settings for a graph.
///
/// # Errors
/// With the path: `NotFound` or `Io` if the file cannot be read, `Corrupt` if it is not JSON,
/// `Unsupported` if a newer version made it, `Config` for another graph, other fields, or values out
/// of range.
pub(super) fn load(path: &Path, flow: &Flow) -> Result<SavedSettings> {
    let about = |kind, message: &str| Error::new(kind, format!("{}: {message}", path.display()));
    let with = |kind, message: &str, source: BoxError| about(kind, message).with_source(source);
    if blocks(path) {
        let message =
            "a pipe or socket may never be written to, and the program would wait for ever";
        return Err(about(ErrorKind::Config, message));
    }
    let text = read(path, MOST).map_err(|error| failed(path, "read", error))?;
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| {
        let message = "the settings are not JSON; tune again, which writes the file anew";
        with(ErrorKind::Corrupt, message, error.into())
    })?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(1..=VERSION) => {}
        Some(later) if later > VERSION => {
            let message = format!(
                "the settings are of version {later}, and this version of the library reads up to {VERSION}; update the \
                 library, or tune again"
            );
            return Err(about(ErrorKind::Unsupported, &message));
        }
        _ => {
            let message = "this is no settings file: it has no version that the library knows";
            return Err(about(ErrorKind::Config, message));
        }
    }
    let form: Form = serde_json::from_value(value).map_err(|error| {
        let message = "the settings are not as the tuner writes them; correct them, or tune again";
        with(ErrorKind::Config, message, error.into())
    })?;
    let in_flight = form.requests.iter().map(|found| found.in_flight).max();
    for (name, value, least, most) in [
        ("workers", form.workers, 1, MOST_WORKERS),
        ("prefetch", form.prefetch, 0, MOST_PREFETCH),
        ("tuned_workers", form.tuned_workers, 1, MOST_WORKERS),
        ("tuned_prefetch", form.tuned_prefetch, 1, MOST_READY),
        ("in_flight", in_flight, 1, MOST_IN_FLIGHT),
    ] {
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            let message = format!("`{name}` is {value}, and has to be {least} to {most}");
            return Err(about(ErrorKind::Config, &message));
        }
    }
    match &differences(&form.graph, flow)[..] {
        [] => Ok(SavedSettings {
            workers: form.workers,
            prefetch: form.prefetch,
            found: TunedSettings {
                workers: form.tuned_workers,
                prefetch: form.tuned_prefetch,
            },
            requests: form.requests,
        }),
        differences => {
            let message = format!(
                "the settings were found for another graph: {}; tune this graph, or set workers and prefetch yourself",
                differences.join("; ")
            );
            Err(about(ErrorKind::Config, &message))
        }
    }
}

fn failed(path: &Path, what: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Io,
    };
    let message = format!("{}: the settings cannot be {what}", path.display());
    Error::new(kind, message).with_source(error)
}
