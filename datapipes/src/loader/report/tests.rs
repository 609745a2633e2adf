use std::process::Command;
use std::time::Duration;

use super::sampler::EpochFigures;
use super::timeline::{Join, Line, Sample, SegmentSample, Timeline, resample};
use super::*;
use crate::loader::{NodeStats, ProcessStats};
use crate::{Graph, OnError, Work};

/// Returns a path for a test's file, in a folder of its own.
fn folder(name: &str) -> PathBuf {
    let folder = format!("datapipes-report-{}-{name}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a test with a folder, and removes it.
fn within(name: &str, test: impl FnOnce(&Path)) {
    let folder = folder(name);
    test(&folder);
    std::fs::remove_dir_all(folder).unwrap();
}

fn loader() -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..200)
        .map(|v| v + 1)
        .named("add one")
        .shuffle(50)
        .batch(10);
    DataLoader::builder(graph)
        .seed(4)
        .workers(2)
        .build()
        .unwrap()
}

const HOSTILE: &str = "</script><script>document.title='owned'</script><b>\"'&amp; \u{7}`";

/// Returns a loader whose names and errors are what an attacker would write.
fn hostile() -> DataLoader<Vec<u64>> {
    let fail = |v: u64| match v % 7 {
        3 => Err(Error::corrupt(format!("{HOSTILE}.jpg"))),
        _ => Ok(v),
    };
    let graph = Graph::range(0..100).try_map(fail).named(HOSTILE).batch(4);
    let builder = DataLoader::builder(graph).on_error(OnError::skip(100));
    builder.workers(2).build().unwrap()
}

#[test]
fn a_report_has_the_figures_of_all_epochs_and_changes_no_order() {
    within("epochs", |folder| {
        let path = folder.join("report.html");
        let plain: Vec<_> = loader().epoch(1).blocking().map(Result::unwrap).collect();
        let loader = loader();
        let mut before = loader.epoch(0).blocking();
        assert_eq!(before.by_ref().take(5).count(), 5);
        let report = loader.report(&path).unwrap();
        assert_eq!(before.count(), 15);
        let recorded: Vec<_> = loader.epoch(1).blocking().map(Result::unwrap).collect();
        assert_eq!(recorded, plain);
        // An epoch that is left.
        assert_eq!(loader.epoch(2).blocking().take(3).count(), 3);
        let summary = report.finish().unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert_eq!((summary.epochs, summary.lost), (3, 0));
        assert_eq!(summary.bytes, page.len());
        // The first epoch counts from the moment when the report began.
        assert!(page.contains("<b>38</b><span>batches taken"), "{page}");
        assert!(page.contains("add one") && page.contains("<h2>Epochs</h2>"));
        assert!(!page.contains("{{"), "a value is missing");
    });
}

#[test]
fn many_short_epochs_are_all_counted() {
    within("many", |folder| {
        let graph = Graph::range(0..3).batch(2);
        let loader = DataLoader::builder(graph).workers(0).build().unwrap();
        let report = loader.report(folder.join("report.html")).unwrap();
        for epoch in 0..500 {
            assert_eq!(loader.epoch(epoch).blocking().count(), 2);
        }
        let summary = report.finish().unwrap();
        assert_eq!(summary.epochs + summary.lost, 500);
        // A report that has ended makes room for the next.
        assert_eq!(
            loader
                .report(folder.join("2"))
                .unwrap()
                .finish()
                .unwrap()
                .epochs,
            0
        );
    });
}

#[test]
fn a_report_of_nothing_says_so() {
    within("nothing", |folder| {
        let path = folder.join("report.html");
        let read = || std::fs::read_to_string(&path).unwrap();
        let empty = DataLoader::builder(Graph::range(0..0).batch(2))
            .build()
            .unwrap();
        drop(empty.report(&path).unwrap());
        assert!(read().contains("No item was delivered") && read().contains("0 epochs"));
        let report = empty.report(&path).unwrap();
        assert_eq!(empty.epoch(0).blocking().count(), 0);
        assert_eq!(report.finish().unwrap().epochs, 1);
        assert!(read().contains("No item was delivered") && read().contains("1 epoch ·"));

        let one = DataLoader::builder(Graph::range(0..1).sharding_filter().batch(2));
        let one = one.rank(0, 3).uneven(crate::Uneven::Allow).build().unwrap();
        let report = one.report(&path).unwrap();
        assert_eq!(one.epoch(0).blocking().count(), 1);
        report.finish().unwrap();
        assert!(read().contains("<b>1</b><span>batches taken") && read().contains("rank 0 of 3"));
    });
}

#[test]
fn a_path_that_cannot_be_written_is_an_error_that_names_it() {
    within("paths", |folder| {
        let loader = loader();
        let missing = folder.join("no folder/report.html");
        for path in [missing.as_path(), folder] {
            let error = loader.report(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            let said = error.to_string();
            assert!(
                said.contains(&format!("{}: cannot write a report", path.display())),
                "{said}"
            );
        }
        let path = folder.join("report.html");
        let mut report = loader.report(&path).unwrap();
        assert_eq!(
            report.svgs(path.join("figures")).unwrap_err().kind(),
            ErrorKind::Io
        );
        report.finish().unwrap();
    });
}

/// The disk is full when the page is written.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_at_the_end_and_the_epoch_is_whole() {
    let loader = loader();
    let report = loader.report("/dev/full").unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 20);
    let error = report.finish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(
        error
            .to_string()
            .contains("/dev/full: cannot write a report"),
        "{error}"
    );
}

/// Names and errors are texts of strangers.
#[test]
fn names_and_errors_are_never_part_of_the_page() {
    within("names", |folder| {
        let path = folder.join("report.html");
        let loader = hostile();
        let mut report = loader.report(&path).unwrap();
        report.svgs(folder).unwrap();
        assert_eq!(loader.epoch(0).blocking().count(), 22);
        report.finish().unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert_eq!(page.matches("<script").count(), 2, "{page}");
        assert_eq!(page.matches("</script").count(), 2);
        assert!(page.contains("&lt;/script&gt;") && page.contains("What was skipped"));
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            if path.extension().is_some_and(|extension| extension == "svg") {
                assert!(
                    !text.contains("<script") && !text.contains('\u{7}'),
                    "{text}"
                );
                assert!(text.starts_with("<svg xmlns="), "{text}");
            }
        }
        assert!(folder.join("graph.svg").is_file());
        let timeline = std::fs::read_to_string(folder.join("timeline.svg")).unwrap();
        for unit in ["100 %", " MiB", " /s"] {
            assert!(timeline.contains(&format!("{unit}</text>")), "{timeline}");
        }
        assert!(folder.join("cpu.svg").is_file() && folder.join("latency-1.svg").is_file());
    });
}

fn sample(until: f64, waited: f64, busy: f64) -> Sample {
    Sample {
        until,
        seconds: 1.0,
        delivered: 1.0,
        running: 1.0,
        waited,
        bytes: until,
        ready: 0.0,
        segments: vec![SegmentSample {
            busy,
            in_flight: 1.0,
        }],
    }
}

#[test]
fn a_timeline_is_bounded_and_loses_nothing() {
    let (mut timeline, mut joined) = (Timeline::default(), 0);
    for second in 0..36_000 {
        joined += u32::from(timeline.push(sample(f64::from(second + 1), 0.5, 1.5), 2));
        assert!(timeline.samples().len() < 600);
    }
    assert!(joined > 5, "{joined}");
    let sum = |of: fn(&Sample) -> f64| timeline.samples().iter().map(of).sum::<f64>();
    assert_eq!(sum(|sample| sample.delivered), 36_000.0);
    assert_eq!(sum(|sample| sample.seconds), 36_000.0);
    assert_eq!(sum(|sample| sample.waited), 18_000.0);
    assert_eq!(sum(|sample| sample.segments[0].busy), 54_000.0);
    let last = timeline.samples().last().unwrap();
    assert_eq!((last.until, last.bytes), (36_000.0, 36_000.0));
}

/// A wait of three seconds counts when it ends, but was there in the seconds before.
#[test]
fn long_work_is_shown_where_it_was_done() {
    let mut timeline = Timeline::default();
    timeline.push(sample(1.0, 0.25, 0.0), 2);
    timeline.push(sample(2.0, 0.0, 0.0), 2);
    timeline.push(sample(3.0, 2.5, 5.0), 2);
    let samples = timeline.samples();
    let waited: Vec<f64> = samples.iter().map(|sample| sample.waited).collect();
    let busy: Vec<f64> = samples
        .iter()
        .map(|sample| sample.segments[0].busy)
        .collect();
    assert_eq!((waited, busy), (vec![0.75, 1.0, 1.0], vec![1.0, 2.0, 2.0]));
}

#[test]
fn stretches_have_the_mean_or_the_largest_value() {
    let samples: Vec<Sample> = (1..=4).map(|at| sample(f64::from(at), 0.0, 0.0)).collect();
    let line = |join| Line {
        name: String::new(),
        color: 0,
        join,
        values: vec![1.0, 3.0, 5.0, 7.0],
    };
    let of = |join, range, number| resample(&samples, &line(join), range, number);
    assert_eq!(of(Join::Mean, (0.0, 4.0), 2), [2.0, 6.0]);
    assert_eq!(of(Join::Most, (0.0, 4.0), 2), [3.0, 7.0]);
    assert_eq!(of(Join::Mean, (0.5, 2.5), 1), [(0.5 + 3.0 + 2.5) / 2.0]);
    assert_eq!(
        of(Join::Mean, (0.0, 4.0), 8),
        [1.0, 1.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0]
    );
    assert_eq!(resample(&[], &line(Join::Mean), (0.0, 0.0), 1), [0.0]);
}

/// Boxes of a graph with forks and joins stand apart, each above its readers.
#[test]
fn nodes_have_places_of_their_own_above_their_readers() {
    let source = Graph::range(0..20);
    let [left, right] = source.fork();
    let long = left.map(|v| v + 1).map(|v| v * 2).filter(|v| v % 3 > 0);
    let joined = Graph::concat(vec![long, right.map(|v| v), Graph::range(0..3)]);
    let loader = DataLoader::builder(joined.batch(2)).build().unwrap();
    loader.epoch(0).blocking().for_each(drop);
    let stats = loader.stats().unwrap();
    let places = graph::places(&stats.nodes);
    let different: std::collections::HashSet<_> = places.iter().collect();
    assert_eq!(different.len(), places.len());
    for (place, node) in stats.nodes.iter().enumerate() {
        for &input in &node.inputs {
            assert!(places[input].1 < places[place].1, "{places:?}");
        }
    }
    let columns = places.iter().map(|place| place.0).max();
    assert_eq!(columns, Some(2), "{places:?}");
}

/// Browsers cut off what is outside of a picture.
#[test]
fn texts_are_inside_of_the_picture_of_a_graph() {
    let loader = loader();
    // A stream always has a queue before it.
    crate::run::block_on(futures::StreamExt::count(loader.epoch(0)));
    let mut stats = loader.stats().unwrap();
    let queue = stats.queue.as_mut().unwrap();
    (queue.depth, queue.occupancy, queue.memory.most) = (64, 31.4, 1_234 << 20);
    queue.item_wait.add(Duration::from_millis(123));
    let picture = graph::picture(&stats);
    let elements = picture.elements.split("<text ").skip(1);
    for element in elements {
        let (attributes, rest) = element.split_once('>').unwrap();
        let said = rest.split_once('<').unwrap().0;
        let x = attributes.split("x=\"").nth(1).unwrap();
        let x: f64 = x.split('"').next().unwrap().parse().unwrap();
        // A letter is some 6 wide.
        let long = 6.0 * said.chars().count() as f64;
        let from = match attributes {
            ends if ends.contains("end\"") => x - long,
            middle if middle.contains("middle") => x - long / 2.0,
            _ => x,
        };
        assert!(from >= 0.0 && from + long <= picture.width, "{element}");
    }
}

/// Ten hours of a large graph, with all that a report has.
#[test]
fn the_largest_report_is_below_five_megabytes() {
    let loader = hostile();
    assert_eq!(loader.epoch(0).blocking().count(), 22);
    let mut stats = loader.stats().unwrap();
    let (node, segment) = (stats.nodes[1].clone(), stats.segments[0].clone());
    stats.nodes = (0..1000usize)
        .map(|place| NodeStats {
            name: format!("node {place} {HOSTILE}"),
            inputs: vec![place.saturating_sub(1), place / 2],
            ..node.clone()
        })
        .collect();
    stats.nodes[0].inputs.clear();
    stats.segments = vec![segment; 100];
    for segment in &mut stats.segments {
        (segment.work, segment.morsel_time) = (Work::Io, node.item_time.clone());
        segment.processes = Some(ProcessStats::default());
    }
    let skipped = stats.skipped_items[0].clone();
    stats.skipped_items = vec![skipped; 1000];
    let mut timeline = Timeline::default();
    for second in 0..36_000u32 {
        let value = f64::from(second) * std::f64::consts::PI;
        let sample = Sample {
            segments: vec![
                SegmentSample {
                    busy: value % 0.71,
                    in_flight: value % 31.7,
                };
                100
            ],
            ..sample(f64::from(second + 1), value % 1.0, 0.0)
        };
        timeline.push(sample, 64);
    }
    let epoch = |number| EpochFigures {
        number: Some(number),
        begun: 1.0,
        seconds: 2.0,
        delivered: 3,
        skipped: 4,
        waited: 0.5,
        readiness: 0.5,
    };
    let long = Batch {
        asked: 35_999.123_456,
        ready: 35_999.234_567,
        used: 35_999.345_678,
    };
    let recorded = Recorded {
        timeline,
        stats: None,
        epochs: (0..200).map(epoch).collect(),
        number: 100_000,
        seconds: 36_000.0,
        batches: vec![long; 512],
    };
    let facts = Facts {
        program: HOSTILE.to_owned(),
        begun: 1_700_000_000,
        seed: 1,
        workers: 64,
        order: "strict".to_owned(),
        rank: (1, 8),
        untold: 7,
        plan: "a line of the plan\n".repeat(50_000),
    };
    let pictures = Pictures {
        graph: graph::picture(&stats),
        cpu: cpu::picture(&stats),
        latency: latency::pictures(&stats),
        heat: None,
    };
    let panels = timeline::panels(recorded.timeline.samples(), &stats);
    let page = page::page(&facts, &recorded, &stats, &panels, &pictures);
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    assert!(
        page.contains("2023-11-14 22:13 UTC · 10:00 h long"),
        "{page}"
    );
}

#[test]
fn time_without_a_core_is_no_time_of_the_cpu() {
    // Workers that were busy for two seconds, and had a core for half a second.
    let mut stats = crate::loader::stats::tests::stats(900, 100, 2000);
    stats.segments[1].cpu = std::time::Duration::from_millis(500);
    let picture = cpu::picture(&stats);
    assert_eq!(picture.title, "Where 0.60 CPU seconds went");
    assert!(
        picture.elements.contains(">0.50 s · 83 %<"),
        "{}",
        picture.elements
    );
}

#[test]
fn the_last_batches_are_recorded_with_their_waits() {
    within("batches", |folder| {
        let slow = |n: u64| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < std::time::Duration::from_micros(10) {}
            n
        };
        let graph = Graph::range(0..3000).map(slow).batch(3);
        let loader = DataLoader::builder(graph).workers(0).build().unwrap();
        let report = loader.report(folder.join("report.html")).unwrap();
        let (recent, started) = (&loader.engine.recent, report.started);
        assert_eq!(loader.epoch(0).blocking().count(), 1000);
        recent.begin();
        let batches = recent.end(started);
        assert_eq!(batches.len(), 512);
        for pair in batches.windows(2) {
            let [one, next] = pair else { unreachable!() };
            assert!(one.asked <= one.ready && one.ready <= one.used, "{one:?}");
            assert!(one.used <= next.asked, "{pair:?}");
        }
        report.finish().unwrap();
        let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
        assert!(page.contains("<b>The last 512 batches</b>"));
        // Nothing is kept when nobody looks.
        assert!(!recent.is_watched());
        assert_eq!(loader.epoch(1).blocking().count(), 1000);
        recent.begin();
        assert!(recent.end(started).is_empty());
    });
}

/// Returns the page after its scripts have run, and what they complained of; `None` without a
/// browser.
fn browse(page: &Path) -> Option<(String, String)> {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=2000"])
        .arg(format!(
            "--user-data-dir={}",
            page.with_extension("profile").display()
        ))
        .arg(format!("file://{}", page.display()))
        .output();
    let Ok(output) = output else {
        println!("skipped: no chromium");
        return None;
    };
    let [out, err] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{err}");
    let complaints = err.lines().filter(|line| line.contains("CONSOLE"));
    Some((out, complaints.collect::<Vec<_>>().join("\n")))
}

#[cfg(feature = "tune")]
fn tuned() -> crate::loader::tune::Tuning {
    crate::loader::tune::Tuner::new(|| DataLoader::builder(Graph::range(0..100).batch(10)))
        .cores(2)
        .most_prefetch(1)
        .batches(10)
        .grid()
        .unwrap()
}

/// A real browser runs the scripts of the page, and none that a name contains.
#[test]
fn a_browser_shows_the_report() {
    within("browser", |folder| {
        let path = folder.join("report.html");
        let loader = hostile();
        let mut report = loader.report(&path).unwrap();
        report.svgs(folder).unwrap();
        #[cfg(feature = "tune")]
        report.tuning(&tuned());
        // Some samples, so that there is something to zoom into.
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(500) {
            assert_eq!(loader.epoch(0).blocking().count(), 22);
        }
        assert!(report.finish().unwrap().samples >= 8);
        // A reader zooms in by a button and out by dragging; the axis of time says what is shown.
        let page = std::fs::read_to_string(&path).unwrap();
        let reader = r#"<script>
            const axis = () => [...document.querySelectorAll(".axis span")].map((tick) => tick.textContent).join();
            const said = [axis()];
            document.querySelector("[data-do=in]").click();
            said.push(axis());
            document.querySelector("[data-do=all]").click();
            said.push(axis());
            const plot = document.querySelector(".plot"), area = plot.getBoundingClientRect();
            plot.setPointerCapture = () => {};
            for (const [name, at] of [["pointerdown", 0.5], ["pointermove", 0.8], ["pointerup", 0.9]]) {
              plot.dispatchEvent(new PointerEvent(name, { clientX: area.left + at * area.width, pointerId: 1 }));
            }
            said.push(axis(), document.querySelector("output").textContent, document.title);
            document.querySelector("[data-do=batches]").click();
            const drawn = [...document.querySelectorAll(".batches path")].map((path) => path.getAttribute("d"));
            said.push(drawn.join("").split("M").length - 1);
            document.body.dataset.said = said.join("|");
            </script>"#;
        std::fs::write(&path, page + reader).unwrap();
        let Some((shown, complaints)) = browse(&path) else {
            return;
        };
        assert_eq!(complaints, "", "{shown}");
        let said = shown.split_once("data-said=\"").expect("the script ran").1;
        let said: Vec<&str> = said.split_once('"').unwrap().0.split('|').collect();
        let [all, near, again, dragged, value, title, batches] = said[..] else {
            panic!("{said:?}")
        };
        assert!(
            all == again && near != all && dragged != all && dragged != near,
            "{said:?}"
        );
        assert!(all.starts_with("0.00 s,"), "{said:?}");
        assert!(
            !value.is_empty() && title.starts_with("Report of "),
            "{said:?}"
        );
        // The waits and uses of the last 64 batches.
        let batches: usize = batches.parse().unwrap();
        assert!((64..=2 * 66).contains(&batches), "{batches}");
        assert!(shown.contains("d=\"M0.0 "), "plots are drawn: {shown}");
        let heat = if cfg!(feature = "tune") {
            let place = shown.split_once("id=\"heat\"").expect("a heat map").1;
            let picture = place.split_once("</svg>").unwrap().0;
            // A cell for each of two numbers of workers, and the frame of the best.
            assert_eq!(picture.matches("<rect").count(), 3, "{picture}");
            assert!(picture.contains("prefetch 1"), "{picture}");
            Some("heat")
        } else {
            assert!(!shown.contains("id=\"heat\""));
            None
        };
        let files = ["graph", "timeline", "cpu", "latency-1"];
        for name in files.into_iter().chain(heat) {
            let (shown, complaints) = browse(&folder.join(format!("{name}.svg"))).unwrap();
            assert_eq!(complaints, "");
            assert!(
                shown.contains("<svg") && !shown.contains("parsererror"),
                "{shown}"
            );
        }
    });
}
