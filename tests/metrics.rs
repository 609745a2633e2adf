//! Figures that are published through the facade `metrics`, scraped as Prometheus does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;

use datapipes::{DataLoader, Error, Graph, Items, OnError};
use metrics_exporter_prometheus::PrometheusBuilder;

datapipes::before_main!();

/// Installs the exporter; returns the address to be scraped.
fn install() -> SocketAddr {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    // Outside a runtime, the exporter has one of its own, on a thread.
    let exporter = PrometheusBuilder::new().with_http_listener(address);
    exporter.install().unwrap();
    address
}

fn scrape(address: SocketAddr) -> String {
    let mut stream = loop {
        // The exporter's thread opens its port in its own time.
        if let Ok(stream) = TcpStream::connect(address) {
            break stream;
        }
    };
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    page
}

/// Returns the value of each series.
fn series(page: &str) -> BTreeMap<&str, f64> {
    let lines = page.lines().filter(|line| line.starts_with("datapipes_"));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name, value.parse().unwrap())
        })
        .collect()
}

fn loader(name: &str) -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..100)
        .try_map(|n| match n {
            7 => Err(Error::corrupt("broken")),
            _ => datapipes::Ok(n),
        })
        .named("decode")
        .filter(|n| n % 3 > 0);
    DataLoader::builder(graph.batch(10))
        .workers(2)
        .on_error(OnError::skip(10))
        .metrics(name)
        .build()
        .unwrap()
}

#[test]
fn prometheus_scrapes_what_the_loaders_did() {
    let address = install();
    let train = loader("train");
    let mut items = Vec::new();
    for epoch in 0..3 {
        items.extend(train.epoch(epoch).blocking().map(Result::unwrap));
    }
    let validation = loader("validation");
    let mut begun = validation.epoch(9).blocking();
    begun.next().unwrap().unwrap();

    // It is published while the epoch runs, within a second or two; a scrape may come in the middle.
    let running = "datapipes_epoch_running{loader=\"validation\"}";
    let expected = [
        (running, 1.0),
        ("datapipes_epoch{loader=\"validation\"}", 9.0),
        (
            "datapipes_delivered_items_total{loader=\"validation\"}",
            1.0,
        ),
    ];
    let during = loop {
        let page = scrape(address);
        if expected
            .iter()
            .all(|(name, _)| series(&page).contains_key(name))
        {
            break page;
        }
    };
    for (name, value) in expected {
        assert_eq!(series(&during)[name], value, "{name}");
    }

    // The last of it is published with the drop.
    let stats = train.stats().unwrap();
    drop((train, validation, begun));
    let page = scrape(address);
    let after = series(&page);
    assert_eq!(after[running], 0.0);
    for (name, expected) in [
        ("datapipes_epochs_total{loader=\"train\"}", 3),
        ("datapipes_epoch{loader=\"train\"}", 2),
        (
            "datapipes_delivered_items_total{loader=\"train\"}",
            items.len() as u64,
        ),
        (
            "datapipes_skipped_items_total{loader=\"train\",node=\"decode\",kind=\"corrupt\"}",
            3,
        ),
        (
            "datapipes_node_items_total{loader=\"train\",node=\"decode\"}",
            3 * 99,
        ),
        (
            "datapipes_node_errors_total{loader=\"train\",node=\"decode\"}",
            3,
        ),
        (
            "datapipes_node_dropped_items_total{loader=\"train\",node=\"filter\"}",
            3 * 34,
        ),
        (
            "datapipes_segment_items_total{loader=\"train\",segment=\"A\"}",
            3 * 100,
        ),
        ("datapipes_workers{loader=\"train\"}", 2),
        (
            "datapipes_memory_limit_bytes{loader=\"train\"}",
            stats.memory.limit.unwrap(),
        ),
    ] {
        assert_eq!(
            after.get(name),
            Some(&(expected as f64)),
            "{name} in\n{page}"
        );
    }
    let busy = after["datapipes_node_busy_seconds_total{loader=\"train\",node=\"decode\"}"];
    let wall = after["datapipes_epoch_seconds_total{loader=\"train\"}"];
    assert!(
        busy > 0.0 && wall >= stats.wall.as_secs_f64(),
        "{busy} {wall}"
    );
    let p99 = "datapipes_node_item_seconds{loader=\"train\",node=\"decode\",quantile=\"0.99\"}";
    assert!(after[p99] > 0.0, "{page}");

    // Nothing else, and each with its type.
    let guide = include_str!("../docs/src/performance.md");
    for (series, value) in &after {
        let name = series.split('{').next().unwrap();
        assert!(
            guide.contains(&format!("`{name}`")),
            "the guide does not have {name}"
        );
        assert!(
            page.contains(&format!("# HELP {name} ")),
            "{name} in\n{page}"
        );
        // Quantiles of a period without values are none.
        let is_none = series.contains("quantile=") && value.is_nan();
        assert!(
            is_none || value.is_finite() && *value >= 0.0,
            "{series} is {value}"
        );
    }
    assert!(
        page.contains("# TYPE datapipes_node_items_total counter"),
        "{page}"
    );
    assert!(
        page.contains("# TYPE datapipes_memory_bytes gauge"),
        "{page}"
    );

    an_epoch_that_begins_slowly_is_published(address);
    #[cfg(target_os = "linux")]
    work_that_waits_is_published(address);
}

/// The graph of one epoch is still being wired when another epoch begins.
fn an_epoch_that_begins_slowly_is_published(address: SocketAddr) {
    let (wiring, is_wiring) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let first = Mutex::new(Some((wiring, may_go_on)));
    let slow = move |items: Items<u64>| {
        let first = first.lock().unwrap().take();
        if let Some((wiring, may_go_on)) = first {
            wiring.send(()).unwrap();
            may_go_on.recv().unwrap();
        }
        items
    };
    let graph = Graph::range(0..10).through(slow);
    let builder = DataLoader::builder(graph).workers(0).metrics("slow");
    let loader = builder.build().unwrap();
    let count = |epoch| loader.epoch(epoch).blocking().map(Result::unwrap).count();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| count(0));
        is_wiring.recv().unwrap();
        assert_eq!(count(1), 10);
        // The second has been seen, and with it what is known of the first.
        while (series(&scrape(address)).get("datapipes_epochs_total{loader=\"slow\"}"))
            .is_none_or(|epochs| *epochs < 2.0)
        {}
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap(), 10);
    });
    drop(loader);
    let page = scrape(address);
    let delivered = "datapipes_delivered_items_total{loader=\"slow\"}";
    assert_eq!(series(&page)[delivered], 20.0, "{page}");
}

/// An autoscaler starts workers by this number. Nobody is there.
#[cfg(target_os = "linux")]
fn work_that_waits_is_published(address: SocketAddr) {
    use futures::{FutureExt, StreamExt};
    let remote = datapipes::Remote::listen("127.0.0.1:0").unwrap();
    let made = Graph::range(0..100).on_workers(remote, |numbers| numbers.map(|n| n));
    let loader = DataLoader::builder(made).metrics("waits").build().unwrap();
    let mut epoch = loader.epoch(0);
    assert!(epoch.next().now_or_never().is_none());
    let waiting = "datapipes_segment_processes_pending_morsels{loader=\"waits\",segment=\"A\"}";
    while series(&scrape(address))
        .get(waiting)
        .is_none_or(|waiting| *waiting < 1.0)
    {}
}

/// A program that installs no exporter loads as ever.
#[test]
fn a_name_is_a_label_and_nothing_more() {
    let items = |name| {
        loader(name)
            .epoch(0)
            .blocking()
            .map(Result::unwrap)
            .collect::<Vec<_>>()
    };
    assert_eq!(items("a \"strange\" name\n"), items("train-2"));
}
