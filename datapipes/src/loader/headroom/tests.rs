use super::*;
use crate::Graph;

fn pause(time: u64) {
    std::thread::sleep(Duration::from_millis(time));
}

/// Returns the result for parts that need so many seconds.
fn with(parts: &[(PartKind, f64)], workers: usize) -> Headroom {
    let part = |&(kind, seconds)| PartPace {
        part: String::new(),
        kind,
        seconds,
        node: None,
    };
    let mut with_loading = Histogram::default();
    with_loading.add(Duration::from_millis(8));
    Headroom {
        with_loading,
        without_loading: Histogram::default(),
        parts: parts.iter().map(part).collect(),
        stats: Stats {
            workers,
            ..Stats::default()
        },
    }
}

#[test]
fn batches_are_repeated_and_the_loader_is_not_waited_for() {
    let graph = Graph::range(0..40)
        .map(|v| {
            pause(3);
            v
        })
        .concurrency(1)
        .batch(2);
    let loader = DataLoader::builder(graph).workers(1).build().unwrap();
    let mut seen = Vec::new();
    let headroom = loader
        .headroom(30, |batch| {
            seen.push(batch);
            pause(1);
            crate::Ok(())
        })
        .unwrap();
    // Two epochs of 20 batches, of each of which the first starts the loader.
    assert_eq!(headroom.with_loading.count(), 30);
    assert_eq!(headroom.without_loading.count(), 30);
    assert_eq!(seen.len(), 32 + 30);
    let epochs = (0..20).chain(0..12).map(|n| vec![2 * n, 2 * n + 1]);
    assert!(seen[..32].iter().eq(&epochs.collect::<Vec<_>>()));
    // The last eight, again and again.
    assert!(seen[32..].iter().eq(seen[24..32].iter().cycle().take(30)));
    // Two items of 3 ms each were waited for, in the mean.
    assert!(
        headroom.with_loading.mean() >= Duration::from_millis(5),
        "{headroom}"
    );
    assert!(headroom.without_loading.quantile(0.0) >= Duration::from_millis(1));
    let text = headroom.to_string();
    assert!(
        text.contains("the step") && text.contains("the work of 1 workers"),
        "{text}"
    );
    assert!(headroom.parts.is_sorted_by(|a, b| a.seconds >= b.seconds));
}

#[test]
fn figures_are_those_of_all_measured_epochs() {
    let graph = Graph::range(0..20).map(|n| n + 1).batch(2);
    let loader = DataLoader::builder(graph).workers(1).build().unwrap();
    // As many steps as an epoch has; the last one is in the next epoch.
    let headroom = loader.headroom(10, |_| crate::Ok(())).unwrap();
    assert_eq!(headroom.stats.delivered, 10);
}

#[test]
fn the_most_that_a_remedy_gives_is_up_to_the_slowest_part_that_it_leaves() {
    use PartKind::{Consumer, Cores, Link, Requests, Segment, Thread, Workers};
    let gains = |parts: &[(PartKind, f64)]| with(parts, 2).remedies().map(|(_, gain)| gain);
    let io = [
        (Requests('A'), 8.0),
        (Link('A'), 6.0),
        (Workers, 4.0),
        (Consumer, 1.0),
    ];
    assert_eq!(gains(&io), [2.0, 1.0, 1.0]);
    let cpu = [
        (Workers, 8.0),
        (Cores, 6.0),
        (Segment('B'), 4.0),
        (Thread, 2.0),
    ];
    assert_eq!(gains(&cpu), [1.0, 4.0, 2.0]);
    assert_eq!(gains(&[(Consumer, 3.0), (Workers, 1.0)]), [1.0; 3]);
    let text = with(&cpu, 2).to_string();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    assert_eq!(
        lines,
        [
            "  the most that more workers and cores can give: 2.00 times",
            "  the most that faster decoding can give: 4.00 times",
            "  the most that faster storage can give: 1.00 times",
        ]
    );
    assert!(!with(&[(Thread, 3.0)], 0).to_string().contains("the most"));
}

#[test]
fn a_step_that_is_no_slower_with_loading_gains_nothing() {
    let mut headroom = with(&[(PartKind::Consumer, 0.041)], 2);
    headroom.without_loading.add(Duration::from_millis(9));
    let text = headroom.to_string();
    assert!(text.contains(" without: loading costs nothing\n"), "{text}");
}

#[test]
fn no_remedy_gives_more_than_the_loop_without_loading() {
    use PartKind::{Consumer, Workers};
    let mut headroom = with(&[(Workers, 0.009), (Consumer, 0.006)], 2);
    headroom.without_loading.add(Duration::from_micros(7300));
    let text = headroom.to_string();
    assert!(text.contains("decoding can give: 1.10 times\n"), "{text}");
}

#[test]
fn a_gain_over_a_step_that_takes_no_time_has_no_number() {
    use PartKind::{Consumer, Requests, Workers};
    let parts = [(Requests('A'), 0.004), (Workers, 0.002), (Consumer, 5e-8)];
    let mut headroom = with(&parts, 2);
    headroom.without_loading.add(Duration::from_nanos(50));
    let text = headroom.to_string();
    assert!(
        text.contains("without: loading is nearly all of it\n"),
        "{text}"
    );
    assert!(text.contains("storage can give: 2.00 times\n"), "{text}");
    headroom.parts.remove(0);
    let text = headroom.to_string();
    assert!(
        text.contains("decoding can give: over 100 times, as the rest takes no time\n"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_measured_is_an_error() {
    let loader = |n| DataLoader::builder(Graph::range(0..n)).build().unwrap();
    let all = |n, steps| loader(n).headroom(steps, |_| crate::Ok(())).unwrap_err();
    assert!(all(9, 0).to_string().contains("no steps"));
    assert!(all(0, 5).to_string().contains("without a batch"));
    assert!(all(1, 5).to_string().contains("one batch"));
    let broken = loader(9).headroom(5, |v| if v < 3 { Ok(()) } else { Err("broken") });
    let error = broken.unwrap_err();
    assert!(format!("{error}").contains("broken"), "{error}");
}
