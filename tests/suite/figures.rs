//! The figures name the part that sets the pace.

use std::time::{Duration, Instant};

use datapipes::{DataLoader, Graph};

fn work(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {}
}

#[test]
fn the_bottleneck_is_named() {
    let said = |graph: Graph<u64>, consumer: Duration| {
        let loader = DataLoader::builder(graph).workers(2).build().unwrap();
        for item in loader.epoch(0).blocking() {
            item.unwrap();
            work(consumer);
        }
        loader.stats().unwrap().bottleneck
    };
    let (none, some) = (Duration::ZERO, Duration::from_micros(300));
    let slow = |n: u64| {
        work(Duration::from_micros(300));
        n
    };
    let cpu = said(Graph::range(0..200).map(|n| n + 1).map(slow).named("decode"), none);
    assert!(cpu.starts_with("segment A (map → decode), mostly `decode`"), "{cpu}");
    let sequential =
        said(Graph::range(0..200).scan(0, move |_: &mut u64, n| Some(slow(n))).named("tokenise"), none);
    assert!(sequential.contains("sequential part") && sequential.ends_with("`tokenise`"), "{sequential}");
    let consumer = said(Graph::range(0..200).map(|n| n + 1), some);
    assert!(consumer.starts_with("the consumer: it waited for"), "{consumer}");
}

#[test]
fn counts_add_up_and_print() {
    let graph =
        Graph::range(0..100).filter(|n| n % 2 == 0).try_map(|n| if n == 50 { Err("fifty") } else { Ok(n) });
    let policy = datapipes::OnError::skip(1);
    let loader = DataLoader::builder(graph.batch(7)).workers(2).on_error(policy).build().unwrap();
    assert!(loader.stats().is_none(), "nothing ran");
    assert_eq!(loader.epoch(0).blocking().count(), 7);
    let stats = loader.stats().unwrap();
    assert_eq!((stats.delivered, stats.skipped), (7, 1));
    let node = |name: &str| stats.nodes.iter().find(|n| n.name == name).unwrap();
    assert_eq!((node("range").items, node("filter").items, node("filter").dropped), (100, 50, 50));
    assert_eq!((node("try_map").items, node("try_map").errors, node("batch").items), (49, 1, 7));
    let table = stats.to_string();
    assert!(
        table.contains("7 items in") && table.contains("1 skipped") && table.contains("bottleneck: "),
        "{table}"
    );
    assert!(loader.explain().contains("— 50 items"), "{}", loader.explain());
}
