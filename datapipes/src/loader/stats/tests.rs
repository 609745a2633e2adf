#[cfg(feature = "serde")]
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use futures::StreamExt;

use super::*;
use crate::{DataLoader, ErrorKind, Graph, Origin};

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn node(name: &str, busy_ms: u64, segment: Option<char>) -> NodeStats {
    let (name, busy) = (name.to_owned(), Duration::from_millis(busy_ms));
    NodeStats {
        name,
        inputs: Vec::new(),
        items: 1,
        dropped: 0,
        errors: 0,
        retried: 0,
        busy,
        item_time: Histogram::default(),
        bytes: None,
        segment,
        queue: None,
    }
}

pub(super) fn segment(
    letter: char,
    work: Work,
    busy_ms: u64,
    full: Duration,
    nodes: &[&str],
) -> SegmentStats {
    SegmentStats {
        letter,
        nodes: nodes.iter().map(|n| (*n).to_owned()).collect(),
        work,
        workers: 2,
        inline: false,
        items: 1,
        morsels: 1,
        busy: Duration::from_millis(busy_ms),
        starved: Duration::ZERO,
        full,
        morsel_time: Histogram::default(),
        memory: MemoryStats::default(),
        occupancy: 3.5,
        polls: 1,
        concurrency: 4,
        cpu: Duration::from_millis(busy_ms),
        most: 4,
        is_set: false,
        is_remote: false,
        is_fed: false,
        is_ordered: true,
        processes: None,
    }
}

/// Returns the text for a second in which the consumer waited for `waited_ms`, the driver
/// worked for `driver_ms` and two workers for `cpu_ms` together.
fn said(waited_ms: u64, driver_ms: u64, cpu_ms: u64) -> String {
    stats(waited_ms, driver_ms, cpu_ms).find_bottleneck()
}

pub(in crate::loader) fn stats(waited_ms: u64, driver_ms: u64, cpu_ms: u64) -> Stats {
    Stats {
        wall: SECOND,
        delivered: 1,
        skipped: 0,
        skipped_items: vec![],
        skips: Vec::new(),
        nodes: vec![
            node("load", 1, Some('A')),
            node("decode", cpu_ms, Some('B')),
            node("batch", driver_ms, None),
        ],
        segments: vec![
            segment('A', Work::Io, 1, SECOND, &["load"]),
            segment('B', Work::Cpu, cpu_ms, SECOND, &["decode"]),
        ],
        waited: Duration::from_millis(waited_ms),
        waits: Histogram::default(),
        memory: MemoryStats::default(),
        workers: 2,
        tuned: Vec::new(),
        epochs: 1,
        ranks: 1,
        queue: Some(QueueStats {
            depth: 4,
            occupancy: 1.0,
            polls: 1,
            item_wait: Histogram::default(),
            memory: MemoryStats::default(),
            producer_waited: Duration::ZERO,
            producer_busy: Duration::from_millis(driver_ms),
        }),
        device: None,
        bottleneck: String::new(),
    }
}

#[test]
fn the_part_that_sets_the_pace_is_named() {
    assert_eq!(
        said(10, 100, 1900),
        "the consumer: it waited for 1.0 % of the time"
    );
    let cpu = "segment B (decode), mostly `decode`: the 2 workers are busy for 95 % of the time";
    assert_eq!(said(900, 100, 1900), cpu);
    let sequential = "the sequential part, mostly `batch`: its thread is busy for 97 % of the time";
    assert_eq!(said(900, 970, 900), sequential);
    assert_eq!(
        said(900, 50, 200),
        "segment A (load): waiting for I/O, with 3.5 of at most 4 morsels in flight"
    );
}

/// A step that needs the whole stream, on the thread that feeds a segment.
#[test]
fn a_thread_in_the_middle_of_the_graph_is_named_where_it_sets_the_pace() {
    let with = |busy_ms| {
        let mut stats = stats(900, 10, 200);
        stats.nodes.insert(1, node("scan", busy_ms, None));
        (stats.nodes[2].inputs, stats.nodes[3].inputs) = (vec![1], vec![2]);
        stats.segments[1].is_fed = true;
        stats
    };
    let slow = with(900);
    assert_eq!(
        slow.find_bottleneck(),
        "the thread ahead of `decode`, mostly `scan`: busy for 90 % of the time"
    );
    assert_eq!(slow.slowest_name(), "scan");
    let io = "segment A (load): waiting for I/O, with 3.5 of at most 4 morsels in flight";
    assert_eq!(with(300).find_bottleneck(), io);
}

/// Such as images that are decoded where they are fetched.
#[test]
fn futures_that_compute_or_block_are_named() {
    let mut stats = stats(900, 50, 200);
    stats.segments[0].busy = Duration::from_millis(930);
    assert_eq!(
        stats.find_bottleneck(),
        "segment A (load): its futures occupy the thread of the async runtime for 93 % of the time"
    );
}

#[test]
fn processes_are_busy_for_a_share_of_their_own_time() {
    let mut stats = stats(900, 100, 3600);
    let decode = &mut stats.segments[1];
    (decode.workers, decode.processes) = (4, Some(ProcessStats::default()));
    assert_eq!(
        stats.find_bottleneck(),
        "segment B (decode), mostly `decode`: the 4 processes are busy for 90 % of the time"
    );
    let advice = stats.advice().concat();
    assert!(!advice.contains("One more worker"), "{advice}");
    // Four processes that wait for work do not set the pace.
    stats.segments[1].busy = SECOND;
    let said = stats.find_bottleneck();
    assert!(said.starts_with("segment A (load)"), "{said}");
}

#[test]
fn workers_of_other_machines_are_named_where_they_are_too_few() {
    let said = |machines: usize, in_flight: f64| {
        let mut stats = stats(970, 20, 400);
        let child = ChildStats {
            process: 1,
            machine: Some("far".to_owned()),
            place: 0,
            memory: 0,
            items: 0,
            jobs: 0,
            bytes: 0,
            morsel_time: Duration::ZERO,
            silence: Duration::ZERO,
        };
        let there = &mut stats.segments[1];
        there.is_remote = true;
        there.occupancy = in_flight;
        there.processes = Some(ProcessStats {
            children: vec![child; machines],
            ..ProcessStats::default()
        });
        stats.find_bottleneck()
    };
    let named = "segment B (decode) on other machines, mostly `decode`: ";
    let few = said(1, 9.5);
    assert_eq!(
        few,
        format!("{named}1 worker there for 9.5 morsels in flight")
    );
    let nobody = said(0, 4.0);
    assert_eq!(
        nobody,
        format!("{named}0 workers there for 4.0 morsels in flight")
    );
    // Workers that wait for work do not set the pace.
    assert!(said(8, 9.5).starts_with("segment A (load)"));
}

#[test]
fn the_threads_of_several_ranks_have_the_time_each() {
    // Each rank has a thread ahead of the consumer, busy for 60 % of the same second.
    let mut both = stats(400, 600, 100);
    both.add_rank(stats(400, 600, 100));
    let sequential = "the sequential part, mostly `batch`: its thread is busy for 60 % of the time";
    assert_eq!(both.find_bottleneck(), sequential);
    let parts = both.what_if().unwrap().cores(64).predict().unwrap().parts;
    let thread = parts.iter().find(|part| part.kind == PartKind::Thread);
    // Two batches in 0.6 s.
    let seconds = thread.unwrap().seconds;
    assert!((seconds - 0.3).abs() < 1e-9, "{seconds}");
    // One core does the work of both threads, and that of the workers.
    let parts = both.what_if().unwrap().cores(1).predict().unwrap().parts;
    let core = parts.iter().find(|part| part.kind == PartKind::Cores);
    let seconds = core.unwrap().seconds;
    assert!((seconds - 0.701).abs() < 1e-9, "{seconds}");
}

#[test]
fn a_device_stage_is_named_where_it_sets_the_pace() {
    let with = |busy_ms| {
        let busy = Duration::from_millis(busy_ms);
        Stats {
            device: Some(DeviceStats {
                uploaded: 9,
                busy,
                depth: 1,
            }),
            ..stats(900, 970, 900)
        }
    };
    assert_eq!(
        with(800).find_bottleneck(),
        "the upload to the device: busy for 80 % of the time"
    );
    assert_eq!(with(100).find_bottleneck(), said(900, 970, 900));
    let mut inline = Stats {
        queue: None,
        ..with(100)
    };
    for segment in &mut inline.segments {
        segment.inline = true;
    }
    let place = "the graph, inline on the device stage's thread: most of it in `batch`";
    assert_eq!(inline.find_bottleneck(), place);
    assert!(
        inline
            .to_string()
            .contains("device: 9 uploaded in 0.100 s, 1 ahead\n"),
        "{inline}"
    );
}

#[test]
fn advice_begins_with_the_bottleneck_in_the_same_words() {
    for (waited, driver, cpu) in [
        (10, 100, 1900),
        (900, 100, 1900),
        (900, 970, 900),
        (900, 50, 200),
    ] {
        let stats = stats(waited, driver, cpu);
        let (bottleneck, advice) = (stats.find_bottleneck(), stats.advice());
        let (subject, figures) = bottleneck.split_once(": ").unwrap();
        let said = format!("{} sets the pace: {figures}.", &subject[1..]);
        assert_eq!(
            advice[0][1..].find(&said),
            Some(0),
            "{bottleneck}, {advice:?}"
        );
    }
}

/// A third worker gives less than a half more if something else is nearly as slow.
#[test]
fn the_gain_of_a_worker_is_that_of_the_model() {
    let gain = |driver_ms| {
        let mut stats = stats(900, driver_ms, 1900);
        // Workers that wait, so that the cores of the machine are no part of the figure.
        stats.segments[1].cpu = Duration::ZERO;
        let advice = stats.advice().into_iter();
        let mut gains = advice.filter(|said| said.starts_with("One more worker"));
        gains.next().unwrap()
    };
    let words = "One more worker, on a core of its own, gives";
    assert_eq!(gain(100), format!("{words} 1.50 times the rate."));
    assert_eq!(gain(800), format!("{words} 1.19 times the rate."));
}

/// A loader with `prefetch(0)` has no queue, though it has workers.
#[test]
fn workers_without_a_queue_before_the_consumer_set_the_pace_too() {
    let stats = Stats {
        queue: None,
        ..stats(900, 0, 1900)
    };
    let text = stats.find_bottleneck();
    assert!(text.starts_with("segment B (decode)"), "{text}");
}

#[test]
fn the_time_of_each_item_in_the_queue_is_counted() {
    let loader = DataLoader::builder(Graph::range(0..100).batch(4)).workers(1);
    let loader = loader.prefetch(4).build().unwrap();
    let mut epoch = loader.epoch(0);
    let batches = crate::run::block_on(epoch.by_ref().count());
    let queue = epoch.stats().unwrap().queue.unwrap();
    assert_eq!((batches, queue.item_wait.count()), (25, 25));
    let text = loader.stats().unwrap().to_string();
    assert!(text.contains("  items wait: p50"), "{text}");
}

/// The figures of several epochs show the queue that the longest had, also if the last one was left
/// at its start.
#[test]
fn an_epoch_that_was_left_at_its_start_does_not_say_where_the_graph_runs() {
    let long = stats(900, 970, 900);
    let mut left = Stats {
        wall: SECOND / 100,
        queue: None,
        ..stats(1, 0, 0)
    };
    for segment in &mut left.segments {
        segment.inline = true;
    }
    let both = left.clone().after(&long);
    assert_eq!(both.queue.unwrap().depth, 4);
    assert!(both.segments.iter().all(|segment| !segment.inline));
    left.wall = SECOND;
    let both = left.after(&long);
    assert!(both.queue.is_none() && both.segments[0].inline);
}

/// A consumer that waits for its first batch is seen to wait.
#[test]
fn a_wait_counts_while_it_goes_on() {
    for workers in [0, 2] {
        let (answer, answered) = std::sync::mpsc::channel();
        let answered = std::sync::Arc::new(std::sync::Mutex::new(answered));
        let graph = Graph::range(0..1).map(move |v| {
            let _ = answered.lock().unwrap().recv();
            v
        });
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        let reader = {
            let loader = loader.clone();
            std::thread::spawn(move || loader.epoch(0).blocking().count())
        };
        let begun = std::time::Instant::now();
        let stats = loop {
            let stats = loader.stats().filter(|stats| stats.consumer_waited() > 0.9);
            if let Some(stats) = stats.filter(|stats| stats.wall > SECOND / 50) {
                break stats;
            }
            assert!(begun.elapsed() < 20 * SECOND, "{:?}", loader.stats());
            std::thread::yield_now();
        };
        assert!(!stats.bottleneck.starts_with("the consumer"), "{stats}");
        answer.send(()).unwrap();
        assert_eq!(reader.join().unwrap(), 1);
        let ended = loader.stats().unwrap();
        assert!(ended.waited >= stats.waited && ended.waited <= ended.wall);
        assert_eq!(loader.stats().unwrap().waited, ended.waited);
    }
}

/// Figures of an epoch count what happened between two moments of it.
#[test]
fn figures_since_a_moment_are_those_of_the_rest() {
    let graph = Graph::range(0..100)
        .map(|v| std::hint::black_box((0..2000).fold(v, u64::wrapping_mul)))
        .batch(10);
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    let mut batches = loader.epoch(0).blocking();
    assert_eq!(batches.by_ref().take(3).count(), 3);
    let before = batches.stats().unwrap();
    assert_eq!(batches.by_ref().count(), 7);
    let after = batches.stats().unwrap();
    let since = after.since(&before);
    assert_eq!(
        (before.delivered, since.delivered, after.delivered),
        (3, 7, 10)
    );
    assert_eq!(since.wall + before.wall, after.wall);
    for ((node, before), after) in since.nodes.iter().zip(&before.nodes).zip(&after.nodes) {
        assert_eq!(node.items + before.items, after.items);
        assert_eq!(
            node.item_time.count() + before.item_time.count(),
            after.item_time.count()
        );
    }
    let nothing = after.since(&after);
    assert_eq!((nothing.delivered, nothing.waits.count()), (0, 0));
    assert!(
        nothing
            .nodes
            .iter()
            .all(|node| node.items == 0 && node.item_time.is_empty())
    );
    // The mean of the rest, and what came before, make the mean of all.
    assert_eq!(mean_since((3.0, 4), (1.0, 2)), (5.0, 2));
    assert_eq!(mean_since((3.0, 4), (3.0, 4)), (0.0, 0));
}

/// An item is timed in its own node, not in those that it passes.
#[test]
fn each_node_has_the_time_of_its_own_items() {
    let slow = |v: u64| {
        std::thread::sleep(Duration::from_millis(2));
        v
    };
    let graph = Graph::range(0..8)
        .map(slow)
        .named("slow")
        .map(|v| v + 1)
        .named("quick");
    let loader = DataLoader::builder(graph).workers(0).build().unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 8);
    let stats = loader.stats().unwrap();
    let of = |name: &str| {
        let node = stats.nodes.iter().find(|node| node.name == name).unwrap();
        &node.item_time
    };
    assert_eq!(of("slow").count(), 8);
    assert!(
        of("slow").quantile(0.0) >= Duration::from_millis(2),
        "{:?}",
        of("slow")
    );
    assert!(of("quick").sum() < of("slow").sum(), "{:?}", of("quick"));
    assert!(stats.to_string().contains("consumer waited"), "{stats}");
    // Every item was waited for: its graph ran on the consumer's thread.
    assert_eq!(stats.readiness(), 1.0 - stats.waits.count() as f64 / 8.0);
    assert!(!stats.waits.is_empty());
}

/// Requests are timed from their start to their end, and items that are ready are not waited for.
#[test]
fn requests_have_their_latency_and_memory_its_most() {
    let graph = Graph::range(0..20).map_async(|v: u64| async move {
        tokio::time::sleep(Duration::from_millis(3)).await;
        crate::Ok(vec![v; 100])
    });
    let loader = DataLoader::builder(graph.concurrency(4)).build().unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 20);
    let stats = loader.stats().unwrap();
    let [segment] = &stats.segments[..] else {
        panic!("{stats}")
    };
    assert_eq!(segment.morsel_time.count(), segment.morsels);
    assert!(
        segment.morsel_time.quantile(0.0) >= Duration::from_millis(3),
        "{stats}"
    );
    let limit = stats.memory.limit.unwrap();
    assert!(
        (800..=limit).contains(&stats.memory.most),
        "{:?}",
        stats.memory
    );
    assert!(segment.memory.most <= stats.memory.most);
    assert!((0.0..=1.0).contains(&stats.readiness()));
}

/// A node on a thread of its own has the figures of the queue after it.
#[test]
fn edges_have_their_items_and_bytes() {
    let wait = |v: u64| async move {
        tokio::time::sleep(Duration::from_micros(200)).await;
        crate::Ok(vec![v; 100])
    };
    let graph = Graph::range(0..500).map_async(wait).prefetch(8).batch(10);
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    let mut batches = loader.epoch(0).blocking();
    assert_eq!(batches.by_ref().take(20).count(), 20);
    let before = batches.stats().unwrap();
    assert_eq!(batches.count(), 30);
    let stats = loader.stats().unwrap();
    let limit = stats.memory.limit.unwrap();
    let [.., prefetch, batch] = &stats.nodes[..] else {
        panic!("{stats}")
    };
    assert_eq!(
        (prefetch.inputs.as_slice(), batch.inputs.as_slice()),
        (&[1][..], &[2][..])
    );
    let queue = prefetch.queue.as_ref().unwrap();
    assert!((1..=8).contains(&queue.depth), "{queue:?}");
    assert!((800..=limit).contains(&queue.memory.most), "{queue:?}");
    assert!(batch.queue.is_none());
    let since = stats.since(&before);
    let rest = since.nodes[2].queue.as_ref().unwrap();
    assert!(rest.polls < queue.polls && rest.producer_busy <= queue.producer_busy);
}

/// Beside the length at the end, more might be ready on average than there was room for.
#[test]
fn what_is_ready_is_told_beside_the_greatest_length_of_the_queue() {
    let wait = |v: u64| async move {
        tokio::time::sleep(Duration::from_micros(200)).await;
        crate::Ok(v)
    };
    let graph = Graph::range(0..4000).map_async(wait);
    let loader = DataLoader::builder(graph)
        .prefetch(8)
        .workers(2)
        .build()
        .unwrap();
    let mut items = loader.epoch(0).blocking();
    let depth = || loader.stats()?.queue.map(|queue| queue.depth);
    while depth() != Some(8) {
        items.next().expect("it grows").unwrap();
    }
    loader.engine.live.depth.store(1, Relaxed);
    assert_eq!(items.by_ref().take(100).count(), 100);
    assert_eq!(depth(), Some(8));
}

/// The skipped items of several ranks are one after another.
#[test]
fn new_skipped_items_are_those_that_were_not_there_before() {
    let skipped = |index: u64| Skipped {
        node: "decode".to_owned(),
        item: Some(Origin::root(0, index)),
        kind: ErrorKind::User,
        error: "broken".to_owned(),
    };
    let all = |items: &[u64]| Stats {
        skipped_items: items.iter().copied().map(skipped).collect(),
        ..stats(0, 0, 0)
    };
    let since = all(&[0, 2, 2, 4, 1, 3]).since(&all(&[0, 2, 1]));
    let items = since
        .skipped_items
        .iter()
        .map(|skipped| skipped.item.clone());
    assert!(items.eq([2, 4, 3].map(|index| Some(Origin::root(0, index)))));
}

#[cfg(feature = "serde")]
#[test]
fn figures_are_data() {
    let loader = DataLoader::builder(Graph::range(0..100).batch(10))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 10);
    let stats = loader.stats().unwrap();
    let bytes = rmp_serde::to_vec_named(&stats).unwrap();
    let read: BTreeMap<String, Value> = rmp_serde::from_slice(&bytes).unwrap();
    assert_eq!(read["delivered"], Value::Count(10));
    assert_eq!(read["wall"], Value::Number(stats.wall.as_secs_f64()));
    assert!(matches!(&read["nodes"], Value::List(nodes) if nodes.len() == stats.nodes.len()));
    let again: Stats = rmp_serde::from_slice(&bytes).unwrap();
    assert_eq!(again.to_string(), stats.to_string());
    let Value::Map(waits) = &read["waits"] else {
        panic!("{read:?}")
    };
    assert_eq!(waits["count"], Value::Count(stats.waits.count()));
    assert_eq!(waits["max"], Value::Number(stats.waits.max().as_secs_f64()));
}

/// Figures that were read back have differences as those that were not.
#[cfg(feature = "serde")]
#[test]
fn figures_come_back() {
    let graph = Graph::range(0..2000).try_map(|n| match n % 100 {
        0 => Err(crate::Error::new(ErrorKind::Corrupt, "broken")),
        _ => Ok::<_, crate::Error>(std::hint::black_box(vec![n; 5000])),
    });
    let loader = DataLoader::builder(graph.batch(10))
        .workers(2)
        .on_error(crate::OnError::skip(100))
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    epoch.by_ref().take(50).for_each(drop);
    let before = epoch.stats().unwrap();
    epoch.by_ref().for_each(drop);
    let stats = epoch.stats().unwrap();
    let back = |stats: &Stats| -> Stats {
        rmp_serde::from_slice(&rmp_serde::to_vec_named(stats).unwrap()).unwrap()
    };
    let (since, read) = (stats.since(&before), back(&stats).since(&back(&before)));
    assert_eq!(read.to_string(), since.to_string());
    assert_eq!(read.skips, since.skips);
    assert_eq!(
        read.waits.buckets().collect::<Vec<_>>(),
        since.waits.buckets().collect::<Vec<_>>()
    );
}

#[cfg(feature = "serde")]
#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(untagged)]
enum Value {
    Count(u64),
    Number(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
    Nothing(()),
}

#[test]
fn a_node_that_reads_an_inline_segment_has_its_own_time_only() {
    let graph = Graph::range(0..100).map(|n| n + 1).batch(10);
    let loader = DataLoader::builder(graph).workers(1).build().unwrap();
    loader.epoch(0).blocking().for_each(drop);
    let runs = loader.latest.runs().unwrap();
    let busy = |is_inline: bool| {
        let runs = crate::sync::lock(&runs);
        // With the nodes upstream, as they are counted.
        for (counters, ns) in runs[0].counters.iter().zip([10, 30, 100]) {
            counters.busy_ns.store(ns, Relaxed);
        }
        runs[0].segments[0].busy_ns.store(20, Relaxed);
        runs[0].segments[0].inline.store(is_inline, Relaxed);
        drop(runs);
        let stats = loader.stats().unwrap();
        let nodes = stats.nodes.iter();
        nodes.map(|node| node.busy.as_nanos()).collect::<Vec<_>>()
    };
    assert_eq!(busy(true), [10, 20, 70]);
    assert_eq!(busy(false), [10, 20, 100]);
}
