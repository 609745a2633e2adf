//! Writes the timeline of a loader as a file that trace viewers show.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::json::quote;
use super::latest::Latest;
use super::{DataLoader, Stats};
use crate::run::{Event, Timeline, TimelineSlot, TraceLevel, Track, spawn_thread};
use crate::{Error, ErrorKind, Result};

/// Longest time that an event waits before it is handed to the file, and time between two points of
/// a sampled curve.
const FLUSH: Duration = Duration::from_millis(25);
/// Bytes of events after which no more are written, before compression.
const LARGEST: u64 = 2 << 30;

impl<T> DataLoader<T> {
    /// Writes all activity of the loader from now on to a file in the Trace Event Format. Perfetto
    /// (`ui.perfetto.dev`) and Chrome (`chrome://tracing`) show it as a timeline:
    ///
    /// - a row for each thread, with each turn at a morsel; for each child process, with its morsels;
    ///   for each request in flight, from its start to its end; for the consumer of each rank, which
    ///   *waits* for an item and then *uses* it;
    /// - curves with the number of morsels of each segment in flight, and how many may be; with the
    ///   bytes of each segment and queue, sampled every 25 ms from the latest epoch;
    /// - arrows by origin: from the read of a file to the work on its items, and from there to the
    ///   batch that holds them (eight to a slice at most, from the last 65,536 items worked on).
    ///
    /// Segments that run inline are part of their reader's time, unless the calls of nodes are
    /// written as well: see [`trace_at`](Self::trace_at), also for less detail. The file is
    /// compressed with gzip if its name ends in `.gz` (feature `gzip`). A thread writes it while
    /// the epochs run. At most 65,536 events wait for that thread, and as many are being written:
    /// some tens of MiB. Events beyond that, or beyond 2 GiB of text, are counted and left out. A
    /// slow or full disk therefore does not hold up an epoch. Order and content of the data do not
    /// change. Decoding images took 1 % longer with a trace; batches of integers, at 5 ns each,
    /// nearly four times as long.
    ///
    /// # Errors
    /// `Config` if a trace of this loader is being written already, if the path is a pipe or socket, or
    /// if the name ends in `.gz` without feature `gzip`; `Io` if the file cannot be made or no thread
    /// started.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::{DataLoader, Graph};
    /// # let dir = std::env::temp_dir().join(format!("datapipes-trace-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir)?;
    /// # let path = dir.join("epoch.json");
    /// let loader = DataLoader::builder(Graph::range(0..1000).batch(10)).build()?;
    /// let trace = loader.trace(&path)?;
    /// loader.epoch(0).blocking().for_each(drop);
    /// let written = trace.finish()?;
    /// assert!(written.events > 0 && written.lost == 0);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn trace(&self, path: impl AsRef<Path>) -> Result<TraceWriter> {
        self.trace_at(TraceLevel::default(), path)
    }

    /// Writes what the loader does from now on, as [`trace`](Self::trace) does, with more or less
    /// detail.
    ///
    /// # Errors
    /// As [`trace`](Self::trace).
    ///
    /// # Examples
    /// ```
    /// use datapipes::loader::TraceLevel;
    /// # use datapipes::{DataLoader, Graph};
    /// # let path = std::env::temp_dir().join(format!("datapipes-items-{}.json", std::process::id()));
    /// let loader = DataLoader::builder(Graph::range(0..1000).batch(10)).build()?;
    /// let trace = loader.trace_at(TraceLevel::Item, &path)?;
    /// loader.epoch(0).blocking().for_each(drop);
    /// trace.finish()?;
    /// // The calls of each node that made items.
    /// assert!(std::fs::read_to_string(&path)?.contains(r#""name":"range""#));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), datapipes::BoxError>(())
    /// ```
    pub fn trace_at(&self, level: TraceLevel, path: impl AsRef<Path>) -> Result<TraceWriter> {
        let path = path.as_ref();
        let about = |error: Error| error.within(path.display());
        let cannot = |error: io::Error| {
            let message = format!("{}: cannot write a trace", path.display());
            Error::new(ErrorKind::Io, message).with_source(error)
        };
        let zip = path.extension().is_some_and(|extension| extension == "gz");
        if zip && cfg!(not(feature = "gzip")) {
            let message = "a compressed trace needs datapipes' feature gzip; or leave out .gz";
            return Err(about(Error::config(message)));
        }
        if blocks(path) {
            let message = "a pipe or socket may never be read, and the trace could not end";
            return Err(about(Error::config(message)));
        }
        let slot = &self.engine.timeline;
        let Some(timeline) = slot.begin(level) else {
            let message = "a trace of this loader is being written already";
            return Err(about(Error::config(message)));
        };
        let started = File::create(path).and_then(|file| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let (timeline, to) = (timeline.clone(), Output::new(file, zip));
            let latest = self.latest.clone();
            spawn_thread("datapipes-trace".to_owned(), move || {
                let _ = sender.send(write(&timeline, &latest, to));
            })
            .map(|thread| (thread, receiver))
        });
        let (thread, result) = started.map_err(|error| {
            slot.end();
            cannot(error)
        })?;
        Ok(TraceWriter {
            slot: slot.clone(),
            timeline,
            path: path.to_owned(),
            running: Some((thread, result)),
        })
    }
}

/// Returns true if writing to the path may wait for a reader for ever.
pub(super) fn blocks(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|found| {
            let kind = found.file_type();
            kind.is_fifo() || kind.is_socket()
        })
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

type Running = (
    JoinHandle<()>,
    std::sync::mpsc::Receiver<io::Result<TraceSummary>>,
);

/// A trace that is being written, see [`DataLoader::trace`]. Dropping it ends the trace, as
/// [`finish`](Self::finish) does, without a word about errors.
#[must_use = "the trace ends when this is dropped"]
pub struct TraceWriter {
    slot: Arc<TimelineSlot>,
    timeline: Arc<Timeline>,
    path: PathBuf,
    running: Option<Running>,
}

/// Numbers of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Events in the file.
    pub events: u64,
    /// Events that were left out, because the file was too slow or too large.
    pub lost: u64,
}

impl TraceWriter {
    /// Ends the trace: writes the remaining events and closes the file.
    ///
    /// # Errors
    /// `Io` if something could not be written, as on a full disk. What was written before is there.
    pub fn finish(mut self) -> Result<TraceSummary> {
        self.end().map_err(|error| {
            let message = format!("{}: the trace is not complete", self.path.display());
            Error::new(ErrorKind::Io, message).with_source(error)
        })
    }

    fn end(&mut self) -> io::Result<TraceSummary> {
        let Some((thread, result)) = self.running.take() else {
            return Ok(TraceSummary::default());
        };
        self.slot.end();
        let result = result.recv();
        let _ = thread.join();
        let broken = |_| io::Error::other("the thread that writes it ended");
        let mut written = result.map_err(broken)??;
        written.lost += self.timeline.lost();
        Ok(written)
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

opaque_debug!(TraceWriter { path });

/// The file, compressed or not.
enum Output {
    Plain(BufWriter<File>),
    #[cfg(feature = "gzip")]
    Gzip(Box<flate2::write::GzEncoder<BufWriter<File>>>),
}

impl Output {
    fn new(file: File, zip: bool) -> Output {
        let file = BufWriter::new(file);
        match zip {
            #[cfg(feature = "gzip")]
            true => {
                let level = flate2::Compression::fast();
                Output::Gzip(Box::new(flate2::write::GzEncoder::new(file, level)))
            }
            _ => Output::Plain(file),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Output::Plain(file) => file.write_all(bytes),
            #[cfg(feature = "gzip")]
            Output::Gzip(file) => file.write_all(bytes),
        }
    }

    /// Hands all that was written to the system.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Plain(file) => file.flush(),
            #[cfg(feature = "gzip")]
            Output::Gzip(file) => file.flush(),
        }
    }

    fn close(self) -> io::Result<()> {
        match self {
            Output::Plain(mut file) => file.flush(),
            #[cfg(feature = "gzip")]
            Output::Gzip(file) => file.finish()?.flush(),
        }
    }
}

/// Writes the events of a timeline as they come, until it ends. After an error, events are thrown
/// away.
fn write(timeline: &Timeline, latest: &Latest, mut to: Output) -> io::Result<TraceSummary> {
    let mut written = TraceSummary::default();
    let (mut bytes, mut failed, mut text) = (0, None, String::from("[\n"));
    let mut sampled = Instant::now();
    event(&mut text, "M", "process_name", 1, 0, None);
    args(&mut text, |args| args.text("name", "datapipes"));
    while let Some(events) = timeline.take(FLUSH) {
        for event in events {
            if failed.is_some() || bytes + text.len() as u64 > LARGEST {
                written.lost += 1;
                continue;
            }
            show(&event, &mut text);
            written.events += 1;
        }
        if failed.is_none() && bytes <= LARGEST && sampled.elapsed() >= FLUSH {
            sampled = Instant::now();
            written.events += curves(latest, timeline.at(sampled), &mut text);
        }
        if failed.is_none() && !text.is_empty() {
            bytes += text.len() as u64;
            failed = to.write(text.as_bytes()).and_then(|()| to.flush()).err();
        }
        if let Some(error) = &failed
            && !text.is_empty()
        {
            tracing::warn!(%error, "a trace cannot be written on");
        }
        text.clear();
    }
    if let Some(error) = failed {
        return Err(error);
    }
    written.events += curves(latest, timeline.at(Instant::now()), &mut text);
    // The format allows a comma after the last event only in a file that is not finished.
    event(&mut text, "M", "process_sort_index", 1, 0, None);
    let lost = written.lost + timeline.lost();
    args(&mut text, |args| {
        args.number("sort_index", 0);
        args.number("lost events", lost);
    });
    text.truncate(text.trim_end_matches(['\n', ',']).len());
    text.push_str("\n]\n");
    to.write(text.as_bytes())?;
    to.close()?;
    Ok(written)
}

/// Appends a point of each curve of the latest epoch. Returns the number of points.
fn curves(latest: &Latest, at: u64, to: &mut String) -> u64 {
    let Some(stats) = latest.runs().and_then(|runs| Stats::of_all(&runs)) else {
        return 0;
    };
    let segments = stats.segments.iter().map(|segment| {
        let name = format!("segment {} bytes", segment.letter);
        (name, segment.memory)
    });
    let nodes = stats.nodes.iter().filter_map(|node| {
        let queue = node.queue.as_ref()?;
        Some((format!("queue after {} bytes", node.name), queue.memory))
    });
    let last = stats.queue.iter().map(|queue| {
        let name = "queue before the consumer bytes".to_owned();
        (name, queue.memory)
    });
    let mut points = 0;
    for (name, memory) in segments.chain(nodes).chain(last) {
        event(to, "C", &name, 1, 0, Some(at));
        args(to, |args| args.number("bytes", memory.bytes));
        points += 1;
    }
    points
}

/// Requests and remote workers of a segment are rows of a process of their own in the picture, from
/// these numbers on.
const REQUESTS: u64 = 1_000_000_000;
const REMOTE: u64 = 2_000_000_000;

/// Returns the numbers of process and thread of a track: below 2³², since viewers cut off what is
/// above.
fn place(track: Track) -> (u64, u64) {
    match track {
        Track::Consumer(rank) => (1, rank as u64),
        Track::Thread(number) => (1, 1_000_000 + number),
        Track::Child(process) => (1, 2_000_000 + u64::from(process)),
        Track::Remote { segment, place } => (REMOTE + segment as u64, place as u64),
        Track::Request { segment, place } => (REQUESTS + segment as u64, place as u64),
    }
}

/// Appends an event.
fn show(shown: &Event, to: &mut String) {
    match shown {
        Event::Named { track, name } => {
            let (process, thread) = place(*track);
            let of_process = match track {
                // The name without the number of the place.
                Track::Request { .. } => name
                    .rsplit_once(' ')
                    .map(|(segment, _)| segment.to_owned())
                    .or_else(|| Some(name.to_string())),
                Track::Remote { segment, .. } => {
                    let letter = crate::plan::segment_letter(*segment);
                    Some(format!("remote workers of segment {letter}"))
                }
                Track::Consumer(_) | Track::Thread(_) | Track::Child(_) => None,
            };
            if let Some(name) = of_process {
                event(to, "M", "process_name", process, thread, None);
                args(to, |args| args.text("name", &name));
            }
            event(to, "M", "thread_name", process, thread, None);
            args(to, |args| args.text("name", name));
        }
        Event::Slice {
            track,
            name,
            at,
            len,
            items,
            origin,
        } => {
            let (process, thread) = place(*track);
            event(to, "X", name, process, thread, Some(*at));
            let _ = write!(to, ",\"dur\":{}", Micros(*len));
            args(to, |args| {
                if let Some(items) = items {
                    args.number("items", *items as u64);
                }
                if let Some(origin) = origin {
                    args.text("origin", &origin.to_string());
                }
            });
        }
        Event::InFlight {
            segment,
            at,
            morsels,
            concurrency,
        } => {
            let name = format!(
                "segment {} in flight",
                crate::plan::segment_letter(*segment)
            );
            event(to, "C", &name, 1, 0, Some(*at));
            args(to, |args| {
                args.number("morsels", *morsels as u64);
                args.number("may be", *concurrency as u64);
            });
        }
        Event::Arrow {
            number,
            from,
            to: end,
        } => {
            for (phase, (track, at)) in [("s", from), ("f", end)] {
                let (process, thread) = place(*track);
                event(to, phase, "item", process, thread, Some(*at));
                let _ = writeln!(to, ",\"cat\":\"origin\",\"id\":{number},\"bp\":\"e\"}},");
            }
        }
    }
}

/// Microseconds with the nanoseconds as decimals, as the format wants times.
struct Micros(u64);

formatted! { Display |nanos: Micros| "{}.{:03}", nanos.0 / 1000, nanos.0 % 1000; }

/// Begins an event.
fn event(to: &mut String, phase: &str, name: &str, process: u64, thread: u64, at: Option<u64>) {
    to.push_str("{\"name\":");
    quote(name, to);
    let _ = write!(to, ",\"ph\":\"{phase}\",\"pid\":{process},\"tid\":{thread}");
    if let Some(at) = at {
        let _ = write!(to, ",\"ts\":{}", Micros(at));
    }
}

/// Ends an event with its arguments.
fn args(to: &mut String, add: impl FnOnce(&mut Args<'_>)) {
    to.push_str(",\"args\":{");
    add(&mut Args { to, any: false });
    to.push_str("}},\n");
}

struct Args<'a> {
    to: &'a mut String,
    any: bool,
}

impl Args<'_> {
    fn key(&mut self, key: &str) {
        if std::mem::replace(&mut self.any, true) {
            self.to.push(',');
        }
        quote(key, self.to);
        self.to.push(':');
    }

    fn number(&mut self, key: &str, number: u64) {
        self.key(key);
        let _ = write!(self.to, "{number}");
    }

    fn text(&mut self, key: &str, text: &str) {
        self.key(key);
        quote(text, self.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_remote_worker_has_a_row_of_its_own_in_a_viewer() {
        let mut rows = std::collections::BTreeSet::new();
        for segment in [0, 1, 2] {
            for place in [0, 1, 4000] {
                for track in [
                    Track::Remote { segment, place },
                    Track::Request { segment, place },
                ] {
                    let (process, thread) = super::place(track);
                    // Viewers read both as 32 bits.
                    assert!(rows.insert((process as u32, thread as u32)), "{track:?}");
                }
            }
        }
        let mut text = String::new();
        let track = Track::Remote {
            segment: 1,
            place: 3,
        };
        let name = "worker 3: far".into();
        show(&Event::Named { track, name }, &mut text);
        let process = r#"{"name":"process_name","ph":"M","pid":2000000001,"tid":3,"args":{"name":"remote workers of segment B"}},"#;
        let thread = r#"{"name":"thread_name","ph":"M","pid":2000000001,"tid":3,"args":{"name":"worker 3: far"}},"#;
        assert_eq!(text, format!("{process}\n{thread}\n"));
    }
}
