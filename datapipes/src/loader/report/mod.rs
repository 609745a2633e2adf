//! Writes what a loader did as a page for a browser.

mod cpu;
mod graph;
mod latency;
mod page;
mod panels;
mod sampler;
pub(super) mod svg;
mod timeline;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::{Instant, SystemTime};

use super::latest::{Latest, WatcherId};
use super::trace::blocks;
use super::{DataLoader, Stats, explain};
use crate::run::{Engine, spawn_thread};
use crate::{Error, ErrorKind, Result};
use page::Pictures;
use sampler::{Batch, Recorded, Sampler};
use svg::Picture;

/// Epochs that may wait for the sampling thread.
const WAITING: usize = 64;

impl<T> DataLoader<T> {
    /// Records the loader's activity from now on, and writes it as a page for a browser when the
    /// writer is [finished](ReportWriter::finish) or dropped. The page is one HTML file, which
    /// needs no network:
    ///
    /// - what sets the pace, and what would help, in words;
    /// - the graph as a picture, with rate, times of items and share of the CPU of each node;
    /// - a timeline to zoom into: batches a second, the share of the time that the consumer waits,
    ///   busy workers and morsels in flight of each segment, bytes held, and each of the last 512
    ///   batches, with the wait for it and its use, if a batch takes more than 5 µs;
    /// - the times of a tuning by workers and prefetch, if one is given to the writer;
    /// - histograms of times: of items in each node, of morsels of I/O, of the consumer's waits;
    /// - tables of nodes, segments, epochs, processes, and skipped items with their errors.
    ///
    /// A thread reads the [figures](Self::stats) of all epochs that run meanwhile, at first every
    /// 25 ms. Whenever it has 600 points of the timeline, it joins them in pairs and halves its
    /// rate, so that memory and page are bounded, however long the run: the page is smaller than
    /// 5 MB. Order and content of the data do not change, and no epoch waits for the report.
    ///
    /// # Errors
    /// `Config` if the path is a pipe or socket; `Io` if the file cannot be made or no thread started.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::{DataLoader, Graph};
    /// # let dir = std::env::temp_dir().join(format!("datapipes-report-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir)?;
    /// # let path = dir.join("report.html");
    /// let loader = DataLoader::builder(Graph::range(0..1000).batch(10)).build()?;
    /// let report = loader.report(&path)?;
    /// loader.epoch(0).blocking().for_each(drop);
    /// assert_eq!(report.finish()?.epochs, 1);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn report(&self, path: impl AsRef<Path>) -> Result<ReportWriter> {
        let path = path.as_ref();
        let about = |message: &str| Error::config(format!("{}: {message}", path.display()));
        if blocks(path) {
            return Err(about(
                "a pipe or socket may never be read, and the report could not end",
            ));
        }
        let (sender, receiver) = sync_channel(WAITING);
        let mut sampler = Sampler::new(self.engine.settings.workers);
        let (watcher, running) = self.latest.watch(sender);
        if let Some(running) = running {
            sampler.add_running(running);
        }
        let started = sampler.begun();
        let (result, recorded) = channel();
        let file = File::create(path)
            .and_then(|file| {
                spawn_thread("datapipes-report".to_owned(), move || {
                    let _ = result.send(sampler.run(&receiver));
                })?;
                Ok(file)
            })
            .map_err(|error| {
                self.latest.unwatch(&watcher);
                cannot(path, error)
            })?;
        self.engine.recent.begin();
        Ok(ReportWriter {
            path: path.to_owned(),
            svgs: None,
            heat: None,
            engine: self.engine.clone(),
            latest: self.latest.clone(),
            watcher,
            begun: SystemTime::now(),
            started,
            running: Some((file, recorded)),
        })
    }
}

fn cannot(path: &Path, error: io::Error) -> Error {
    let message = format!("{}: cannot write a report", path.display());
    Error::new(ErrorKind::Io, message).with_source(error)
}

/// A report that is being recorded, see [`DataLoader::report`]. Dropping it writes the report, as
/// [`finish`](Self::finish) does, without a word about errors.
#[must_use = "the report ends when this is dropped"]
pub struct ReportWriter {
    path: PathBuf,
    /// Folder for the pictures as files of their own.
    svgs: Option<PathBuf>,
    /// Heat map of a tuning.
    heat: Option<Picture>,
    engine: Arc<Engine>,
    latest: Arc<Latest>,
    watcher: WatcherId,
    begun: SystemTime,
    started: Instant,
    running: Option<(File, Receiver<Recorded>)>,
}

/// Numbers of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportSummary {
    /// Epochs that are in the report.
    pub epochs: u64,
    /// Epochs that are not, since more than 64 began at once.
    pub lost: u64,
    /// Points of its timeline.
    pub samples: usize,
    /// Bytes of the page.
    pub bytes: usize,
}

/// Facts about the loader, besides figures.
struct Facts {
    program: String,
    /// Begin, in seconds since 1970.
    begun: u64,
    seed: u64,
    workers: usize,
    order: String,
    /// Number of the rank, and of all ranks.
    rank: (usize, usize),
    /// Epochs that were not recorded.
    untold: u64,
    plan: String,
}

impl ReportWriter {
    /// Shows the times of a tuning in the report, as a heat map; feature `tune`. The last tuning
    /// that was given is shown.
    #[cfg(feature = "tune")]
    pub fn tuning(&mut self, tuning: &super::tune::Tuning) {
        self.heat = Some(tuning.picture());
    }

    /// Writes each picture also as a file of its own into a folder, for papers: `graph.svg`,
    /// `timeline.svg`, `cpu.svg`, `heat.svg` of a tuning, and `latency-1.svg` and so on. Makes the folder now if it is not
    /// there. Files of these names are replaced at the end.
    ///
    /// # Errors
    /// `Io` if the folder cannot be made. The report goes on without the pictures if this is
    /// ignored.
    pub fn svgs(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(|error| cannot(folder, error))?;
        self.svgs = Some(folder.to_owned());
        Ok(())
    }

    /// Ends the report, and writes the page.
    ///
    /// # Errors
    /// `Io` if something could not be written, as on a full disk.
    pub fn finish(mut self) -> Result<ReportSummary> {
        self.end()
    }

    fn end(&mut self) -> Result<ReportSummary> {
        let Some((mut file, recorded)) = self.running.take() else {
            return Ok(ReportSummary::default());
        };
        // The thread ends when nobody can tell it of epochs any more.
        let untold = self.latest.unwatch(&self.watcher);
        let batches = self.engine.recent.end(self.started);
        let mut recorded = recorded.recv().map_err(|_| {
            cannot(
                &self.path,
                io::Error::other("the thread that records it ended"),
            )
        })?;
        let batches = batches.iter().map(|times| Batch::new(times, self.started));
        recorded.batches = batches.collect();
        let stats = recorded.stats.clone().unwrap_or_default();
        let facts = self.facts(recorded.stats.as_ref(), untold);
        let panels = timeline::panels(recorded.timeline.samples(), &stats);
        let pictures = Pictures {
            graph: graph::picture(&stats),
            cpu: cpu::picture(&stats),
            latency: latency::pictures(&stats),
            heat: self.heat.take(),
        };
        let page = page::page(&facts, &recorded, &stats, &panels, &pictures);
        file.write_all(page.as_bytes())
            .and_then(|()| file.flush())
            .map_err(|error| cannot(&self.path, error))?;
        if let Some(folder) = &self.svgs {
            let timeline = panels::picture(&panels, &recorded);
            let Pictures {
                graph,
                cpu,
                latency,
                heat,
            } = &pictures;
            let single = [graph, cpu, &timeline].into_iter();
            for picture in single.chain(latency).chain(heat) {
                let path = folder.join(format!("{}.svg", picture.name));
                std::fs::write(&path, picture.file()).map_err(|error| cannot(&path, error))?;
            }
        }
        Ok(ReportSummary {
            epochs: recorded.number,
            lost: untold,
            samples: recorded.timeline.samples().len(),
            bytes: page.len(),
        })
    }

    fn facts(&self, stats: Option<&Stats>, untold: u64) -> Facts {
        let settings = &self.engine.settings;
        let program = std::env::current_exe().ok();
        let program = program.as_ref().and_then(|path| path.file_stem());
        let since_1970 = self.begun.duration_since(SystemTime::UNIX_EPOCH);
        Facts {
            program: program
                .map_or("a loader".into(), |name| name.to_string_lossy())
                .into_owned(),
            begun: since_1970.map_or(0, |time| time.as_secs()),
            seed: settings.seed,
            workers: settings.workers,
            order: settings.order.to_string(),
            rank: (settings.rank.index, settings.rank.world),
            untold,
            plan: explain(&self.engine, stats),
        }
    }
}

impl Drop for ReportWriter {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

opaque_debug!(ReportWriter { path });

#[cfg(test)]
mod tests;
