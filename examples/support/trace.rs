//! The option `--trace FILE`.

use std::path::PathBuf;

use datapipes::loader::TraceWriter;
use datapipes::{DataLoader, Result};

/// A trace of a loader, if one was asked for.
pub struct Trace(Option<(PathBuf, TraceWriter)>);

impl Trace {
    /// Begins a trace, if there is a path.
    pub fn begin<T>(path: Option<PathBuf>, loader: &DataLoader<T>) -> Result<Trace> {
        let begun = path.map(|path| datapipes::Ok((path.clone(), loader.trace(path)?)));
        begun.transpose().map(Trace)
    }

    /// Ends the trace, and prints where it is.
    pub fn finish(self) -> Result<()> {
        if let Some((path, writer)) = self.0 {
            let events = writer.finish()?.events;
            // Standard output may be read by a program.
            eprintln!("{events} events in {}", path.display());
        }
        Ok(())
    }
}
