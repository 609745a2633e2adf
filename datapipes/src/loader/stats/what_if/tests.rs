use super::super::tests::{node, segment};
use super::super::{PartKind, SegmentStats};
use super::*;
use crate::ErrorKind;
use crate::{DataLoader, Graph, Histogram};

const BATCHES: u64 = 100;

/// Returns times that are all the same.
fn same(time: Duration, count: u64) -> Histogram {
    let mut times = Histogram::default();
    (0..count).for_each(|_| times.add(time));
    times
}

/// Returns figures of 100 batches in 20 s, with a step of 10 ms and a thread that needs 5 ms. The
/// graph is `load → decode → augment → batch`: ten requests of 20 ms for each batch, four at once;
/// 180 ms of waiting on two workers, and 20 ms of computing.
fn figures() -> Stats {
    let mut stats = super::super::tests::stats(19_000, 500, 0);
    stats.delivered = BATCHES;
    stats.wall = Duration::from_secs(20);
    stats.nodes = vec![
        node("load", 10, Some('A')),
        node("decode", 18_000, Some('B')),
        node("shuffle", 100, None),
        node("augment", 2000, Some('C')),
        node("batch", 400, None),
    ];
    for (id, items, bytes) in [
        (0, 1000, Some(5_000_000)),
        (1, 1000, Some(40_000_000)),
        (2, 1000, Some(40_000_000)),
        (3, 1000, None),
        (4, 100, Some(80_000_000)),
    ] {
        let node = &mut stats.nodes[id];
        (node.items, node.bytes) = (items, bytes);
        node.inputs = id.checked_sub(1).into_iter().collect();
    }
    let part = |letter, work, busy_ms, name| SegmentStats {
        items: 1000,
        morsels: 1000,
        ..segment(letter, work, busy_ms, Duration::ZERO, &[name])
    };
    let load = SegmentStats {
        morsel_time: same(Duration::from_millis(20), 1000),
        is_set: true,
        ..part('A', Work::Io, 10, "load")
    };
    let decode = SegmentStats {
        cpu: Duration::ZERO,
        morsel_time: same(Duration::from_millis(18), 1000),
        most: 64,
        ..part('B', Work::Cpu, 18_000, "decode")
    };
    let augment = SegmentStats {
        morsel_time: same(Duration::from_millis(2), 1000),
        most: 64,
        ..part('C', Work::Cpu, 2000, "augment")
    };
    stats.segments = vec![load, decode, augment];
    stats
}

fn what_if() -> WhatIf {
    figures().what_if().unwrap().cores(1000)
}

/// Checks seconds for each batch and what sets the pace.
#[track_caller]
fn check(what_if: &WhatIf, milliseconds: f64, kind: PartKind) -> Prediction {
    let prediction = what_if.predict().unwrap();
    let predicted = 1e3 / prediction.batches_per_second;
    assert!(
        (predicted / milliseconds - 1.0).abs() < 0.01,
        "{predicted} ms\n{prediction}"
    );
    assert_eq!(prediction.bottleneck().kind, kind, "{prediction}");
    prediction
}

#[test]
fn segments_share_the_workers_until_something_else_is_slower() {
    let now = check(&what_if(), 100.0, PartKind::Workers);
    assert!((now.gain - 1.0).abs() < 1e-9);
    assert!((now.wait_share - 0.9).abs() < 1e-9);
    assert_eq!(now.bottleneck().node.as_deref(), Some("decode"));
    check(&what_if().workers(1), 200.0, PartKind::Workers);
    let faster = check(&what_if().workers(3), 200.0 / 3.0, PartKind::Workers);
    assert!((faster.gain - 1.5).abs() < 1e-9);
    // Then four requests at once, of ten for each batch.
    check(&what_if().workers(8), 50.0, PartKind::Requests('A'));
    let all = what_if().workers(400).concurrency(1000);
    let all = check(&all, 10.0, PartKind::Consumer);
    assert_eq!(all.wait_share, 0.0);
    check(
        &what_if()
            .workers(400)
            .concurrency(1000)
            .step(Duration::ZERO),
        5.0,
        PartKind::Thread,
    );
}

#[test]
fn a_step_that_is_slower_than_the_loader_is_never_kept_waiting() {
    let slow = what_if().step(Duration::from_millis(400));
    let slow = check(&slow, 400.0, PartKind::Consumer);
    assert!(slow.wait_share == 0.0 && (slow.gain - 0.25).abs() < 1e-9);
    let close = what_if().step(Duration::from_millis(75));
    let close = check(&close, 100.0, PartKind::Workers);
    assert!((close.wait_share - 0.25).abs() < 1e-9);
}

#[test]
fn requests_need_their_round_trips_divided_by_those_in_flight() {
    let far = || {
        what_if()
            .workers(400)
            .round_trip(Duration::from_millis(200))
    };
    check(&far(), 500.0, PartKind::Requests('A'));
    check(&far().concurrency(20), 100.0, PartKind::Requests('A'));
    check(
        &far().concurrency_of("load", 40),
        50.0,
        PartKind::Requests('A'),
    );
    // Ten items in each morsel were near.
    let mut together = figures();
    together.segments[0].morsels = 100;
    let together = together.what_if().unwrap().cores(1000).workers(400);
    check(&together, 10.0, PartKind::Consumer);
    let far = together.round_trip(Duration::from_millis(200));
    check(&far, 500.0, PartKind::Requests('A'));
    let near = what_if().workers(400).round_trip(Duration::ZERO);
    check(&near, 10.0, PartKind::Consumer);
}

#[test]
fn futures_that_compute_have_one_thread_however_many_are_in_flight() {
    let mut stats = figures();
    stats.segments[0].busy = Duration::from_secs(16);
    let more = stats.what_if().unwrap().cores(1000);
    check(
        &more.workers(400).concurrency(1000),
        160.0,
        PartKind::Thread,
    );
}

#[test]
fn work_that_computes_has_the_cores_and_work_that_waits_has_not() {
    // 20 ms of computing, 5 ms on the thread, and the polls of the requests.
    let one = what_if().workers(400).concurrency(1000).cores(1);
    check(&one, 25.1, PartKind::Cores);
    check(&one.cores(2), 12.55, PartKind::Cores);
}

#[test]
fn a_number_of_morsels_at_once_is_a_limit_of_its_own() {
    let limited = what_if()
        .workers(400)
        .concurrency(1000)
        .concurrency_of("decode", 6);
    check(&limited, 30.0, PartKind::Segment('B'));
    // The workers are fewer.
    let limited = what_if().concurrency_of("decode", 6);
    check(&limited, 100.0, PartKind::Workers);
}

#[test]
fn without_workers_all_times_are_one_after_another() {
    // Step, requests, decode, augment, the thread.
    let serial = what_if().workers(0);
    check(&serial, 10.0 + 200.0 + 180.0 + 20.0 + 5.0, PartKind::Thread);
    let mut stats = figures();
    (stats.workers, stats.queue) = (0, None);
    stats.segments.clear();
    stats.nodes.iter_mut().for_each(|node| node.segment = None);
    check(&stats.what_if().unwrap(), 200.0, PartKind::Thread);
    let error = stats.what_if().unwrap().workers(2).predict().unwrap_err();
    assert!(
        error.to_string().contains("an epoch with workers"),
        "{error}"
    );
}

#[test]
fn slow_morsels_hold_up_later_ones_in_order() {
    let mut stats = figures();
    let mut times = same(Duration::from_millis(1), 900);
    times.merge(&same(Duration::from_millis(191), 100));
    assert_eq!(times.mean(), Duration::from_millis(20));
    stats.segments[0].morsel_time = times;
    let question = |stats: &Stats, requests| {
        let what_if = stats.what_if().unwrap().cores(1000).workers(400);
        let prediction = what_if.concurrency(requests).predict().unwrap();
        1.0 / prediction.batches_per_second
    };
    let ordered = question(&stats, 4);
    stats.segments[0].is_ordered = false;
    let any = question(&stats, 4);
    assert!((any - 0.05).abs() < 1e-4, "{any}");
    assert!(ordered > 1.5 * any, "{ordered} {any}");
    // One at a time is in order by itself.
    let one = question(&stats, 1);
    stats.segments[0].is_ordered = true;
    assert!((question(&stats, 1) / one - 1.0).abs() < 1e-3);
    assert_eq!(question(&stats, 4), ordered, "the same in each call");
}

#[test]
fn the_pace_of_a_link_that_more_requests_do_not_make_faster_stays() {
    let mut stats = figures();
    let load = &mut stats.segments[0];
    (load.is_set, load.most, load.occupancy) = (false, 2048, 30.0);
    stats.segments[1].busy = Duration::from_secs(1);
    stats.segments[1].cpu = stats.segments[1].busy;
    let faster = stats.what_if().unwrap().cores(1000).workers(64);
    check(&faster, 200.0, PartKind::Link('A'));
    // All that may be in flight were, so that more help.
    stats.segments[0].occupancy = 2048.0;
    let faster = stats.what_if().unwrap().cores(1000).workers(64);
    check(&faster, 10.0, PartKind::Consumer);
}

#[test]
fn caches_are_listed_by_what_they_give_and_then_by_what_they_need() {
    let what_if = what_if();
    let caches = what_if.caches().unwrap();
    let of = |name: &str| caches.iter().find(|cache| cache.node == name).unwrap();
    // All but the step; then requests, the thread and augment, which is left on two workers.
    assert!((of("batch").gain - 10.0).abs() < 1e-9);
    assert!((of("augment").gain - 10.0).abs() < 1e-9);
    assert!((of("decode").gain - 10.0).abs() < 1e-9);
    assert!((of("load").gain - 1.0).abs() < 1e-9);
    let order: Vec<_> = caches.iter().map(|cache| &*cache.node).collect();
    assert_eq!(order, ["decode", "shuffle", "batch", "augment", "load"]);
    assert_eq!(of("decode").bytes, Some(40_000_000));
    assert_eq!(
        (of("augment").bytes, of("augment").gain_per_byte()),
        (None, None)
    );
    let text = "Caching the 1000 items of `decode` in an epoch needs 40.0 MB and gives 10.0 times the rate";
    assert_eq!(of("decode").to_string(), text);
    let same = what_if.clone().cache_after("decode").predict().unwrap();
    assert_eq!(same.batches_per_second, of("decode").batches_per_second);
    // Figures of two epochs have all bytes twice.
    let mut twice = figures();
    twice = figures().after(&twice);
    let cache = &twice.what_if().unwrap().cores(1000).caches().unwrap()[0];
    assert_eq!(
        (cache.node.as_str(), cache.bytes),
        ("decode", Some(40_000_000))
    );
    // On a machine of any number of cores.
    let mut stats = figures();
    stats.segments[2].cpu = Duration::ZERO;
    let advice = stats.advice();
    let sentence = format!("{text}, if its items may be the same in each epoch.");
    assert!(advice.contains(&sentence), "{advice:?}");
}

#[test]
fn a_cache_keeps_what_something_else_reads_too() {
    let mut stats = figures();
    // `batch` reads the decoded items beside the augmented ones.
    stats.nodes[4].inputs = vec![3, 1];
    let with = |node| stats.what_if().unwrap().cores(1000).cache_after(node);
    check(&with("augment"), 90.0, PartKind::Workers);
    check(&with("decode"), 10.0, PartKind::Consumer);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let refused = |what_if: WhatIf| what_if.predict().unwrap_err().to_string();
    let most = usize::MAX;
    assert!(
        refused(what_if().workers(most)).contains("workers: 18446744073709551615 is not from 0")
    );
    assert!(refused(what_if().cores(0)).contains("cores: 0 is not from 1"));
    assert!(refused(what_if().concurrency(0)).contains("concurrency: 0 is not from 1"));
    let unknown = refused(what_if().cache_after("decod"));
    assert!(
        unknown.contains("no node `decod`") && unknown.contains("`decode`"),
        "{unknown}"
    );
    assert!(refused(what_if().concurrency_of("batch", 2)).contains("`batch` is in no segment"));
    let mut near = figures();
    near.segments.remove(0);
    let near = near.what_if().unwrap().round_trip(Duration::from_millis(9));
    assert!(
        near.caches()
            .unwrap_err()
            .to_string()
            .contains("no segment"),
        "{near:?}"
    );
    // Long times are no problem.
    let long = what_if()
        .round_trip(Duration::MAX)
        .step(Duration::MAX)
        .predict()
        .unwrap();
    assert!(long.batches_per_second > 0.0 && long.to_string().contains("batches/s"));
}

#[test]
fn an_epoch_has_to_run_first() {
    let graph = Graph::range(0..100).map(|n| n + 1).batch(10);
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    for error in [
        loader.what_if().unwrap_err(),
        Stats::default().what_if().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("run an epoch first"), "{error}");
    }
    loader.epoch(0).blocking().for_each(drop);
    let prediction = loader
        .what_if()
        .unwrap()
        .step(Duration::from_secs(1))
        .predict();
    let prediction = prediction.unwrap();
    assert_eq!(prediction.bottleneck().kind, PartKind::Consumer);
    assert!(
        (prediction.batches_per_second - 1.0).abs() < 1e-3,
        "{prediction}"
    );
    let stats = loader.stats().unwrap();
    assert_eq!(
        stats.nodes[1].bytes,
        Some(800),
        "ten times ten numbers of 8 bytes"
    );
}
