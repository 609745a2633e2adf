//! Traces: what is in the file, and what does not hold up an epoch.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use datapipes::loader::TraceLevel;
use datapipes::{DataLoader, Error, ErrorKind, Graph};
use serde_json::Value;

/// A slice of a trace: begin and end in microseconds.
#[derive(Clone, Debug)]
struct Slice {
    name: String,
    track: (u64, u64),
    at: f64,
    end: f64,
    items: u64,
}

/// The end of an arrow: track and time.
type End = ((u64, u64), f64);

/// A trace as a viewer reads it.
struct Trace {
    slices: Vec<Slice>,
    /// Begin and end of each arrow.
    arrows: BTreeMap<u64, [Option<End>; 2]>,
    /// Names of tracks.
    names: BTreeMap<(u64, u64), String>,
    curves: BTreeMap<String, Vec<u64>>,
}

fn read(path: &Path) -> Trace {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    match path.extension().unwrap().to_str() {
        Some("gz") => flate2::read::MultiGzDecoder::new(file).read_to_end(&mut text),
        _ => { file }.read_to_end(&mut text),
    }
    .unwrap();
    let events: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let mut trace = Trace {
        slices: Vec::new(),
        arrows: BTreeMap::new(),
        names: BTreeMap::new(),
        curves: BTreeMap::new(),
    };
    for event in &events {
        let number = |key: &str| event[key].as_u64().unwrap();
        let track = (number("pid"), number("tid"));
        let name = event["name"].as_str().unwrap().to_owned();
        let at = || event["ts"].as_f64().unwrap();
        match event["ph"].as_str().unwrap() {
            "M" if name == "thread_name" => {
                let name = event["args"]["name"].as_str().unwrap().to_owned();
                assert!(trace.names.insert(track, name).is_none(), "named once");
            }
            "M" => {}
            "X" => trace.slices.push(Slice {
                name,
                track,
                at: at(),
                end: at() + event["dur"].as_f64().unwrap(),
                items: event["args"]["items"].as_u64().unwrap_or(0),
            }),
            "C" => {
                let values = event["args"].as_object().unwrap();
                let value = values.get("morsels").unwrap_or_else(|| &values["bytes"]);
                trace
                    .curves
                    .entry(name)
                    .or_default()
                    .push(value.as_u64().unwrap());
            }
            phase @ ("s" | "f") => {
                let arrow = trace.arrows.entry(number("id")).or_default();
                arrow[usize::from(phase == "f")] = Some((track, at()));
            }
            other => panic!("{other} is no event that a viewer is sent"),
        }
    }
    trace
}

impl Trace {
    fn of(&self, name: &str) -> Vec<&Slice> {
        self.slices
            .iter()
            .filter(|slice| slice.name == name)
            .collect()
    }

    /// Checks what holds for every trace: slices of one track do not overlap, or one is inside the
    /// other where calls of nodes are recorded; each track has a name, and an arrow leads from a slice to a later one. Returns the names of the slices that
    /// arrows begin and end in, with their number.
    fn check_at(&self, level: TraceLevel) -> BTreeMap<(String, String), usize> {
        let mut tracks: BTreeMap<_, Vec<&Slice>> = BTreeMap::new();
        for slice in &self.slices {
            assert!(slice.end >= slice.at, "{slice:?}");
            tracks.entry(slice.track).or_default().push(slice);
        }
        for (track, slices) in &mut tracks {
            assert!(self.names.contains_key(track), "{slices:?}");
            slices.sort_by(|a, b| a.at.total_cmp(&b.at).then(b.end.total_cmp(&a.end)));
            // Times have three decimals, so that sums may be off by the last.
            let mut around: Vec<&Slice> = Vec::new();
            for slice in slices {
                around.retain(|outer| outer.end > slice.at + 0.002);
                if let Some(outer) = around.last() {
                    let is_inside = level == TraceLevel::Item && slice.end <= outer.end + 0.002;
                    assert!(is_inside, "{slice:?} overlaps {outer:?}");
                }
                around.push(slice);
            }
        }
        let mut between = BTreeMap::new();
        for ends in self.arrows.values() {
            let [Some(from), Some(to)] = ends else {
                panic!("half an arrow: {ends:?}")
            };
            assert!(from.1 <= to.1, "an arrow back in time: {ends:?}");
            let [from, to] = [from, to].map(|(track, at)| {
                let slices = tracks[track].iter();
                let mut around = slices.filter(|slice| slice.at <= *at && *at <= slice.end + 0.002);
                around
                    .next_back()
                    .unwrap_or_else(|| panic!("nothing at {ends:?}"))
            });
            *between
                .entry((from.name.clone(), to.name.clone()))
                .or_default() += 1;
        }
        between
    }

    fn check(&self) -> BTreeMap<(String, String), usize> {
        self.check_at(TraceLevel::Morsel)
    }
}

fn graph() -> Graph<Vec<u64>> {
    let read = |v: u64| async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        datapipes::Ok(v)
    };
    let decode = |v: u64| {
        std::thread::sleep(Duration::from_micros(500));
        v * 10
    };
    let items = Graph::range(0..40).map_async(read).named("read");
    items.map(decode).named("decode").shuffle(8).batch(4)
}

#[test]
fn a_trace_shows_requests_work_and_waits_with_arrows_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch.json");
    let loader = DataLoader::builder(graph()).workers(2).build().unwrap();
    let plain: Vec<Vec<u64>> = loader.epoch(1).blocking().map(Result::unwrap).collect();
    let trace = loader.trace(&path).unwrap();
    for epoch in 0..2 {
        let traced: Vec<Vec<u64>> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
        assert_eq!(traced.len(), 10);
        assert!(epoch == 0 || traced == plain, "a trace changes no order");
    }
    let written = trace.finish().unwrap();
    assert_eq!(written.lost, 0);
    let trace = read(&path);
    let items = |name: &str| trace.of(name).iter().map(|slice| slice.items).sum::<u64>();
    assert_eq!(items("read"), 80);
    for slice in trace.of("read") {
        assert!(slice.end - slice.at >= 1000.0, "{slice:?}");
        let name = &trace.names[&slice.track];
        assert!(name.starts_with("read "), "{name}");
    }
    // The decoder may run inline for a while, in its reader's time.
    assert!(trace.of("decode").len() > 10);
    for slice in trace.of("decode") {
        let name = &trace.names[&slice.track];
        assert!(name.starts_with("datapipes-"), "{name}");
    }
    assert_eq!(trace.of("use").len(), 20);
    assert!(!trace.of("wait").is_empty());
    let reading = &trace.curves["segment A in flight"];
    assert!(*reading.iter().max().unwrap() > 1, "{reading:?}");
    let between = trace.check();
    let arrows = |from: &str, to: &str| between.get(&(from.to_owned(), to.to_owned())).copied();
    assert!(
        arrows("read", "decode").is_some_and(|arrows| arrows >= 10),
        "{between:?}"
    );
    assert!(
        arrows("decode", "use").is_some_and(|arrows| arrows >= 18),
        "{between:?}"
    );
}

#[test]
fn a_level_has_what_the_ones_before_it_have_and_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch.json");
    for workers in [0, 2] {
        let builder = DataLoader::builder(graph()).workers(workers);
        let loader = builder.build().unwrap();
        let plain: Vec<Vec<u64>> = loader.epoch(1).blocking().map(Result::unwrap).collect();
        for level in [TraceLevel::Batch, TraceLevel::Morsel, TraceLevel::Item] {
            let trace = loader.trace_at(level, &path).unwrap();
            let mut traced = Vec::new();
            for batch in loader.epoch(1).blocking() {
                traced.push(batch.unwrap());
            }
            assert_eq!(traced, plain, "a trace changes no order");
            trace.finish().unwrap();
            let trace = read(&path);
            trace.check_at(level);
            assert_eq!(trace.of("use").len(), 10, "{level:?}");
            let has_morsels = level >= TraceLevel::Morsel && workers > 0;
            assert_eq!(
                trace.curves.contains_key("segment A in flight"),
                has_morsels
            );
            if workers > 0 {
                assert!(trace.curves.contains_key("segment A bytes"), "{level:?}");
            }
            for (node, items) in [("range", 40), ("shuffle", 40), ("batch", 10)] {
                let made: u64 = trace.of(node).iter().map(|slice| slice.items).sum();
                let recorded = match level {
                    TraceLevel::Item => items,
                    _ => 0,
                };
                assert_eq!(made, recorded, "{node}, {level:?}, {workers} workers");
            }
        }
    }
}

fn part(input: Graph<u64>, _: &()) -> Graph<u64> {
    input.map(|v| v + 1)
}

#[test]
fn a_trace_shows_child_processes_and_is_compressed_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch.json.gz");
    let graph = Graph::range(0..100)
        .in_processes_with(2, (), part)
        .batch(10);
    let loader = DataLoader::builder(graph).build().unwrap();
    let trace = loader.trace(&path).unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 10);
    trace.finish().unwrap();
    let trace = read(&path);
    trace.check();
    let of_children: Vec<&Slice> = trace
        .slices
        .iter()
        .filter(|slice| trace.names[&slice.track].starts_with("process "))
        .collect();
    assert_eq!(
        of_children.iter().map(|slice| slice.items).sum::<u64>(),
        100
    );
}

fn waiting(input: Graph<u64>, _: &()) -> Graph<u64> {
    input.map_async(|v| async move {
        tokio::time::sleep(Duration::from_millis(2)).await;
        datapipes::Ok(v)
    })
}

#[test]
fn requests_of_a_child_process_have_rows_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch.json");
    let graph = Graph::range(0..60).in_processes_with(1, (), waiting);
    let loader = DataLoader::builder(graph).build().unwrap();
    let trace = loader.trace(&path).unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 60);
    trace.finish().unwrap();
    let trace = read(&path);
    trace.check();
    let work = trace.slices.iter().filter(|slice| slice.items > 0);
    assert_eq!(work.map(|slice| slice.items).sum::<u64>(), 60);
}

/// Events from before a trace, or of an earlier one, are not drawn over the new one.
#[test]
fn a_second_trace_of_an_epoch_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch.json");
    let loader = DataLoader::builder(graph()).workers(2).build().unwrap();
    let mut batches = loader.epoch(0).blocking();
    for _ in 0..2 {
        let trace = loader.trace(&path).unwrap();
        assert_eq!(batches.by_ref().take(2).count(), 2);
        trace.finish().unwrap();
        let trace = read(&path);
        trace.check();
        assert_eq!(trace.of("use").len(), 1, "{:?}", trace.of("use"));
        assert_eq!(batches.by_ref().take(2).count(), 2);
    }
}

#[test]
fn what_cannot_be_traced_is_an_error_and_holds_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let loader = DataLoader::builder(graph()).workers(1).build().unwrap();
    let error = |path: &Path| loader.trace(path).err().unwrap();
    let missing = error(&folder.path().join("missing/epoch.json"));
    assert_eq!(missing.kind(), ErrorKind::Io);
    assert!(
        missing.to_string().contains("missing/epoch.json"),
        "{missing}"
    );

    let path = folder.path().join("epoch.json");
    let trace = loader.trace(&path).unwrap();
    let second = error(&folder.path().join("second.json"));
    assert_eq!(second.kind(), ErrorKind::Config);
    assert!(!folder.path().join("second.json").exists());
    drop(trace);
    // Ended by the drop, so that it is whole, and the next may begin.
    assert!(read(&path).slices.is_empty());
    loader.trace(&path).unwrap().finish().unwrap();

    #[cfg(target_os = "linux")]
    {
        let trace = loader.trace("/dev/full").unwrap();
        assert_eq!(loader.epoch(0).blocking().count(), 10);
        let error: Error = trace.finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("/dev/full"), "{error}");
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: a path that lives as long as the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(error_kind(&loader, &pipe), ErrorKind::Config);
    }
}

#[cfg(target_os = "linux")]
fn error_kind(loader: &DataLoader<Vec<u64>>, path: &Path) -> ErrorKind {
    loader.trace(path).err().unwrap().kind()
}

/// Runs in a process of its own, in which no file grows beyond 16 KiB; the next test starts it.
#[cfg(unix)]
#[test]
fn on_a_disk_that_fills_up() {
    let Some(folder) = std::env::var_os("TEST_SMALL_DISK") else {
        return;
    };
    let limit = libc::rlimit {
        rlim_cur: 16 << 10,
        rlim_max: 16 << 10,
    };
    // SAFETY: the limit lives as long as the call, and the signal has no handler to run.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    for name in ["epoch.json", "epoch.json.gz"] {
        let path = Path::new(&folder).join(name);
        let loader = DataLoader::builder(Graph::range(0..50_000)).workers(1);
        let loader = loader.build().unwrap();
        let trace = loader.trace(&path).unwrap();
        // The data are all there, and nothing waits for the file.
        for epoch in 0..2 {
            assert_eq!(loader.epoch(epoch).blocking().count(), 50_000);
        }
        let error = trace.finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains(name), "{error}");
        let written = std::fs::metadata(&path).unwrap().len();
        assert!(written > 8 << 10 && written <= 16 << 10, "{written}");
        // The next trace is not held up by the failed one.
        let trace = loader.trace(&path).unwrap();
        trace.finish().unwrap();
        assert!(read(&path).slices.is_empty());
    }
    println!("both were written as far as the disk went");
}

#[cfg(unix)]
#[test]
fn a_disk_that_fills_up_in_the_middle_ends_the_trace_and_not_the_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "trace::on_a_disk_that_fills_up", "--nocapture"])
        .env("TEST_SMALL_DISK", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("as far as the disk went"), "{said}");
}

/// More events than the writer can take are counted and left out, and what is written is whole.
#[test]
fn a_trace_of_a_cheap_epoch_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch.json");
    let loader = DataLoader::builder(Graph::range(0..300_000))
        .workers(0)
        .build()
        .unwrap();
    let trace = loader.trace(&path).unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 300_000);
    let written = trace.finish().unwrap();
    let read = read(&path);
    let used = read.of("use").len() as u64;
    assert!(used + written.lost >= 299_999, "{written:?}");
    assert!(read.slices.len() as u64 <= written.events);
    read.check();
}

/// Output of the reader.
#[derive(serde::Deserialize)]
struct Found {
    tracks: BTreeMap<String, BTreeMap<String, (u64, u64)>>,
    arrows: BTreeMap<String, usize>,
    counters: BTreeMap<String, Vec<u64>>,
}

/// Chrome's own reader finds the tracks, slices, arrows and counters that were written: with the package
/// `@paulirish/trace_engine` in the folder `DATAPIPES_TRACE_ENGINE`, and Node.js.
#[test]
fn the_trace_engine_of_chrome_finds_what_was_written() {
    let Some(modules) = std::env::var_os("DATAPIPES_TRACE_ENGINE") else {
        println!("skipped: no DATAPIPES_TRACE_ENGINE");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch.json");
    let loader = DataLoader::builder(graph()).workers(2).build().unwrap();
    let trace = loader.trace_at(TraceLevel::Item, &path).unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 10);
    trace.finish().unwrap();
    let trace = read(&path);
    // The number of slices and their nanoseconds, for each name on each track.
    let mut written = BTreeMap::<String, BTreeMap<String, (u64, u64)>>::new();
    for slice in &trace.slices {
        let track = written.entry(trace.names[&slice.track].clone());
        let (number, time) = track.or_default().entry(slice.name.clone()).or_default();
        *number += 1;
        *time += ((slice.end - slice.at) * 1000.0).round() as u64;
    }
    assert!(written.len() > 3, "{written:?}");

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/trace_engine.mjs");
    let output = std::process::Command::new("node")
        .arg(script)
        .args([&modules, path.as_os_str()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found: Found = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(written, found.tracks, "{said}");
    let arrows = trace.check_at(TraceLevel::Item).into_iter();
    let arrows: BTreeMap<_, _> = arrows
        .map(|((from, to), number)| (format!("{from} → {to}"), number))
        .collect();
    assert!(arrows.len() > 2, "{arrows:?}");
    assert_eq!(arrows, found.arrows, "{said}");
    assert!(trace.curves.len() > 1, "{:?}", trace.curves);
    assert_eq!(trace.curves, found.counters, "{said}");
}
