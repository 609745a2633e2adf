//! Events that a loader sends to `tracing`: items skipped and retried, with the epoch and the
//! worker.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use datapipes::pipes::{Batch, TryMap};
use datapipes::{DataLoader, ErrorKind, Graph, OnError, Uneven};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// A subscriber that records the events and spans that it receives.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Heard>>);

#[derive(Default)]
struct Heard {
    /// Each event: level, the span that it is in, message and fields.
    events: Vec<(Level, String, String)>,
    /// Each span by its number: name and fields.
    spans: HashMap<u64, String>,
    entered: Vec<u64>,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => self.0 += &format!(" {name}={value:?}"),
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut heard = self.0.lock().unwrap();
        let mut fields = Fields(attributes.metadata().name().to_owned());
        attributes.record(&mut fields);
        let id = heard.spans.len() as u64 + 1;
        heard.spans.insert(id, fields.0);
        span::Id::from_u64(id)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let mut heard = self.0.lock().unwrap();
        let within = event
            .parent()
            .map(span::Id::into_u64)
            .or(heard.entered.last().copied());
        let within = within
            .and_then(|id| heard.spans.get(&id).cloned())
            .unwrap_or_default();
        heard
            .events
            .push((*event.metadata().level(), within, fields.0));
    }
    fn enter(&self, id: &span::Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }
    fn exit(&self, _: &span::Id) {
        self.0.lock().unwrap().entered.pop();
    }
}

impl Log {
    /// Runs `work`, and returns the events and spans of this thread meanwhile.
    fn of<R>(work: impl FnOnce() -> R) -> (R, Heard) {
        let log = Log::default();
        let result = tracing::subscriber::with_default(log.clone(), work);
        let heard = std::mem::take(&mut *log.0.lock().unwrap());
        (result, heard)
    }
}

impl Heard {
    fn warnings(&self) -> Vec<&str> {
        let warned = self
            .events
            .iter()
            .filter(|(level, ..)| *level == Level::WARN);
        warned.map(|(_, _, said)| said.as_str()).collect()
    }
}

/// Loads a thousand numbers. The odd ones fail; every hundredth fails with another error.
fn loader(workers: usize) -> DataLoader<u64> {
    let graph = Graph::range(0..2000).sharding_filter();
    let graph = graph
        .try_map(|n| {
            if n % 200 == 19 {
                Err("nineteen")
            } else {
                Ok(n / 2)
            }
        })
        .named("load");
    let graph = graph.try_map(|n| match n % 2 {
        0 => Ok(n),
        _ => Err(datapipes::Error::corrupt(format!("{n} is odd"))),
    });
    let builder = DataLoader::builder(graph)
        .workers(workers)
        .rank(1, 2)
        .uneven(Uneven::Allow);
    builder.on_error(OnError::skip(1000)).build().unwrap()
}

#[test]
fn what_a_policy_skips_is_a_warning_that_grows_no_faster_than_its_logarithm() {
    for workers in [0, 2] {
        let loader = loader(workers);
        let (count, heard) = Log::of(|| loader.epoch(3).blocking().count());
        let warnings = heard.warnings();
        assert_eq!(count, 500);
        // The first five in full, then at 8, 16, …, 256, and the sum.
        assert_eq!(warnings.len(), 5 + 6 + 1, "{warnings:#?}");
        let first =
            "skipped an item epoch=3 rank=1 skipped=1 error=try_map: 0:3: corrupt: 1 is odd";
        assert_eq!(warnings[0], first);
        assert!(
            warnings[10].starts_with("skipped an item epoch=3 rank=1 skipped=256 error="),
            "{}",
            warnings[10]
        );
        let sum = "skipped items in this epoch: 490 in `try_map` (corrupt), 10 in `load` (error) \
                   epoch=3 rank=1 skipped=500 delivered=500";
        assert_eq!(warnings[11], sum);
        // All of it inside the epoch's span.
        let within = |(_, within, _): &(Level, String, String)| within == "epoch epoch=3 rank=1";
        assert!(heard.events.iter().all(within), "{:#?}", heard.events);

        // By node and kind, with the first and the last of each.
        let stats = loader.stats().unwrap();
        let skips: Vec<_> = stats
            .skips
            .iter()
            .map(|s| (&*s.node, s.kind, s.items))
            .collect();
        assert_eq!(
            skips,
            [
                ("try_map", ErrorKind::Corrupt, 490),
                ("load", ErrorKind::User, 10)
            ]
        );
        assert_eq!(stats.skips[1].first, "load: 0:19: nineteen");
        assert_eq!(stats.skips[0].last, "try_map: 0:1999: corrupt: 999 is odd");
        let shown = stats.to_string();
        assert!(
            shown.contains("skipped 10 in `load` (error): load: 0:19: nineteen\n"),
            "{shown}"
        );
    }
}

/// A filter that matches nothing, and a batch larger than the data.
#[test]
fn an_epoch_emptied_by_a_node_is_a_warning_that_names_the_node() {
    let said = |graph: Graph<Vec<u64>>, workers| {
        let loader = DataLoader::builder(graph).workers(workers).build();
        let loader = loader.unwrap();
        let (count, heard) = Log::of(|| loader.epoch(2).blocking().count());
        assert_eq!(count, 0);
        (heard.warnings().join("\n"), loader.stats().unwrap())
    };
    for workers in [0, 2] {
        let (warned, stats) = said(Graph::range(0..90).filter(|n| *n > 90).batch(4), workers);
        let why = "`filter` left out all 90 items";
        assert_eq!(stats.bottleneck, format!("no item was delivered: {why}"));
        assert!(stats.advice()[0].ends_with(&format!("the pace: {why}.")));
        assert_eq!(warned, format!("{} epoch=2 rank=0", stats.bottleneck));
        let (warned, _) = said(
            Graph::range(0..9).batch(Batch::new(10).drop_last()),
            workers,
        );
        assert!(warned.contains("`batch` left out all 9 items"), "{warned}");
        assert_eq!(said(Graph::range(0..0).batch(4), workers).0, "");
    }
}

#[test]
fn the_sum_is_told_of_an_epoch_that_is_dropped_and_not_where_nothing_was_skipped() {
    let loader = loader(0);
    let (_, heard) = Log::of(|| {
        let mut epoch = loader.epoch(0).blocking();
        assert_eq!(epoch.by_ref().take(3).count(), 3);
        let before = epoch.stats().unwrap().skipped;
        assert!(before > 0);
        drop(epoch);
    });
    let sums = heard
        .warnings()
        .into_iter()
        .filter(|said| said.starts_with("skipped items in this epoch: "));
    assert_eq!(sums.count(), 1);
    let (count, heard) = Log::of(|| {
        let loader = DataLoader::builder(Graph::range(0..50))
            .on_error(OnError::skip(9))
            .build()
            .unwrap();
        loader.epoch(0).blocking().count()
    });
    assert_eq!((count, heard.warnings().len()), (50, 0));
    // An error that the consumer gets is not skipped, so there is no warning.
    let (last, heard) = Log::of(|| {
        let failing = Graph::range(0..9).try_map(|n| if n == 4 { Err("four") } else { Ok(n) });
        let loader = DataLoader::builder(failing)
            .on_error(OnError::skip(0))
            .build()
            .unwrap();
        loader.epoch(0).blocking().last().unwrap()
    });
    assert_eq!(
        (last.unwrap_err().kind(), heard.warnings().len()),
        (ErrorKind::Limit, 0)
    );
}

#[test]
fn tries_again_are_heard_and_counted() {
    let calls = Arc::new(AtomicU64::new(0));
    let flaky = TryMap::new(
        move |n: u64| match calls.fetch_add(1, Ordering::Relaxed) % 3 {
            0 | 1 => Err("the line is busy"),
            _ => Ok(n),
        },
    );
    let loader = DataLoader::builder(Graph::range(0..50).retry(2, flaky))
        .workers(0)
        .build()
        .unwrap();
    let (count, heard) = Log::of(|| loader.epoch(0).blocking().map(Result::unwrap).count());
    let warnings = heard.warnings();
    assert_eq!((count, loader.stats().unwrap().nodes[1].retried), (50, 100));
    assert_eq!(
        warnings.len(),
        5 + 4,
        "at 1 to 5, 8, 16, 32 and 64: {warnings:#?}"
    );
    let first =
        r#"trying an item again node="try_map" retried=1 left=1 error=0:0: the line is busy"#;
    assert_eq!(warnings[0], first);
    assert!(
        loader
            .stats()
            .unwrap()
            .to_string()
            .contains("s, 100 tries again\n")
    );
}

#[test]
fn epochs_and_workers_have_spans() {
    // Inline, what a user's step says is inside the epoch.
    let (_, heard) = Log::of(|| {
        let graph = Graph::range(0..3).inspect(|n| tracing::info!(n, "seen"));
        DataLoader::builder(graph)
            .workers(0)
            .build()
            .unwrap()
            .epoch(7)
            .blocking()
            .count()
    });
    let seen: Vec<_> = heard
        .events
        .iter()
        .filter(|(.., said)| said.starts_with("seen"))
        .collect();
    assert!(
        seen.len() == 3
            && seen
                .iter()
                .all(|(_, within, _)| within == "epoch epoch=7 rank=0"),
        "{seen:?}"
    );
    // With workers each thread has a span, and one for all of its life; not one for each item.
    let (_, heard) = Log::of(|| {
        let graph = Graph::range(0..400)
            .map(|n| (0..2000).fold(n, |a, b| std::hint::black_box(a ^ b)))
            .concurrency(4);
        let loader = DataLoader::builder(graph).workers(2).build().unwrap();
        assert_eq!(
            (0..2)
                .map(|epoch| loader.epoch(epoch).blocking().count())
                .sum::<usize>(),
            800
        );
    });
    let mut spans: Vec<&str> = heard.spans.values().map(String::as_str).collect();
    spans.sort();
    spans.dedup();
    for expected in [
        "epoch epoch=0 rank=0",
        "epoch epoch=1 rank=0",
        r#"worker name="datapipes-cpu-0""#,
    ] {
        assert!(spans.contains(&expected), "{expected} in {spans:?}");
    }
    assert!(heard.spans.len() <= 2 + 2 + 2 + 2, "{:?}", heard.spans);
}
