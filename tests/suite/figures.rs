//! The figures of a loader add up, and can be printed.

use datapipes::{DataLoader, Graph};

#[test]
fn counts_add_up_and_print() {
    let graph = Graph::range(0..100)
        .filter(|n| n % 2 == 0)
        .try_map(|n| if n == 50 { Err("fifty") } else { Ok(n) });
    let policy = datapipes::OnError::skip(1);
    let loader = DataLoader::builder(graph.batch(7))
        .workers(2)
        .on_error(policy)
        .build()
        .unwrap();
    assert!(loader.stats().is_none(), "nothing ran");
    assert_eq!(loader.epoch(0).blocking().count(), 7);
    let stats = loader.stats().unwrap();
    assert_eq!((stats.delivered, stats.skipped), (7, 1));
    let node = |name: &str| stats.nodes.iter().find(|n| n.name == name).unwrap();
    assert_eq!(
        (
            node("range").items,
            node("filter").items,
            node("filter").dropped
        ),
        (100, 50, 50)
    );
    assert_eq!(
        (
            node("try_map").items,
            node("try_map").errors,
            node("batch").items
        ),
        (49, 1, 7)
    );
    let table = stats.to_string();
    assert!(
        table.contains("7 items in")
            && table.contains("1 skipped")
            && table.contains("bottleneck: "),
        "{table}"
    );
    assert!(
        loader.explain().contains("— 50 items"),
        "{}",
        loader.explain()
    );
}
