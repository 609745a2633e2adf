//! Row 73: secrets in every setting of a far store never appear in the output of a loader over that
//! store.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapipes::{Backoff, DataLoader, Graph, OnError};
use datapipes_io::FileRef;
use datapipes_io::prelude::*;
use datapipes_io::stores::cloud::Cloud;
use datapipes_io::stores::wrappers::{Evict, HedgePolicy, InFlight, PerSecond, TimeLimits};
use datapipes_io::stores::{self, Http, Hub, ListStore, OpenOptions, Store, StoreExt, resilient};
use tracing::field::{Field, Visit};
use tracing::span;

use super::bad_http::*;

/// Part of every secret that is planted.
const MARKER: &str = "sEcReTmArKeR";
/// The first letters of it as the header of a password has them.
const CODED: &str = "c0VjUmVUbUFyS2VS";

/// A subscriber for all threads. It records the messages that contain a secret, and the number of
/// all messages.
#[derive(Clone, Default)]
struct Log(Arc<(Mutex<String>, AtomicUsize)>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut self.clone());
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut self.clone());
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        if event.metadata().target().starts_with("datapipes") {
            self.0.1.fetch_add(1, Ordering::Relaxed);
        }
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let said = format!("{}={value:?}\n", field.name());
        if said.contains(MARKER) || said.contains(CODED) {
            *self.0.0.lock().unwrap() += &said;
        }
    }
}

/// An error, all that it was made of, in every form.
fn tell(said: &mut String, error: &datapipes::Error) {
    write!(said, "{error}\n{error:?}\n{error:#?}\n").unwrap();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        write!(said, "{deeper}\n{deeper:?}\n{deeper:#?}\n").unwrap();
        cause = deeper.source();
    }
}

/// Runs a graph to its end with errors skipped, and to the first of them, and writes down all that
/// can be seen.
fn run<T: Send + 'static>(said: &mut String, graph: impl Fn() -> Graph<T>) -> u64 {
    write!(said, "{:?}\n{:#?}\n", graph(), graph()).unwrap();
    let policy = OnError::skip(1000);
    let builder = DataLoader::builder(graph())
        .workers(1)
        .on_error(policy.clone());
    writeln!(said, "{builder:?}").unwrap();
    let loader = builder.build().unwrap();
    loader
        .epoch(0)
        .blocking()
        .for_each(|item| drop(item.map_err(|error| tell(said, &error))));
    let stats = loader.stats().unwrap();
    write!(
        said,
        "{loader:?}\n{}\n{stats:?}\n{stats:#?}\n",
        loader.explain()
    )
    .unwrap();
    writeln!(said, "{policy:?}").unwrap();
    let loader = DataLoader::builder(graph()).build().unwrap();
    for item in loader.epoch(1).blocking() {
        item.map(drop).unwrap_or_else(|error| tell(said, &error));
    }
    stats.skipped
}

#[test]
fn row_73_a_loader_over_far_stores_says_no_secret() {
    let log = Log::default();
    // Its own threads log, too.
    tracing::subscriber::set_global_default(log.clone()).expect("the only one for all threads");
    let server = BadHttp::start();
    let echo = |code| Act::Steps(vec![Step::Echo(code)]);
    let acts = [
        echo(500),
        echo(403),
        echo(404),
        echo(429),
        echo(206),
        redirect(&format!(
            "http://{MARKER}:{MARKER}@elsewhere.example/?{MARKER}"
        )),
        status_with(
            503,
            &format!("Retry-After: {MARKER}\r\nX-{MARKER}: {MARKER}\r\n"),
            MARKER,
        ),
        Act::Steps(vec![Step::Reset]),
        raw_then_close("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 10\r\n\r\nabc"),
        raw_then_close(format!("nonsense {MARKER}\r\n\r\n")),
    ];
    let query = format!("sig={MARKER}&{MARKER}=1");
    let keys: Vec<String> = (0..acts.len()).map(|n| format!("k{n}")).collect();
    for (key, act) in keys.iter().zip(&acts) {
        for path in [
            format!("/data/{key}?{query}"),
            format!("/bucket/data/{key}"),
            format!("/datasets/org/name/resolve/{}/{key}", "1".repeat(40)),
        ] {
            server.on(&path, [act.clone()]);
        }
    }
    server.on(
        &format!("/data/index.txt?{query}"),
        [page("text/plain", &(keys.join("\n") + "\n"))],
    );

    let tree = format!(
        "/api/datasets/org/name/tree/{}?recursive=true&expand=false",
        "1".repeat(40)
    );
    let entries: Vec<String> = keys
        .iter()
        .map(|key| format!(r#"{{"type":"file","path":"{key}"}}"#))
        .collect();
    server.on(&tree, [status(200, &format!("[{}]", entries.join(",")))]);

    let mut said = String::new();
    let plain = server.url();
    let http = format!("{plain}data?{query}");
    let of_user = http.replace("http://", &format!("http://{MARKER}:{MARKER}@"));
    let builders = [
        Http::builder(&of_user),
        Http::builder(&http).basic(MARKER, MARKER),
        Http::builder(&http).bearer(MARKER),
        Http::builder(&http).header("X-Api-Key", MARKER),
    ];
    let mut made: Vec<Arc<dyn Store>> = vec![OpenOptions::new().bare().open(&of_user).unwrap()];
    for builder in builders {
        write!(said, "{builder:?}\n{builder:#?}\n").unwrap();
        made.push(Arc::new(builder.build().unwrap()));
    }
    let hub = Hub::builder(&format!("hf://datasets/org/name@{}", "1".repeat(40)))
        .endpoint(&plain)
        .token(MARKER);
    write!(said, "{hub:?}\n{hub:#?}\n").unwrap();
    made.push(Arc::new(hub.build().unwrap()));
    let s3 = Cloud::s3("bucket/data")
        .endpoint(plain.trim_end_matches('/'))
        .region("r");
    let s3 = s3.keys(MARKER, format!("{MARKER} key")).token(MARKER);
    write!(said, "{s3:?}\n{s3:#?}\n").unwrap();
    made.push(Arc::new(s3.build().unwrap()));
    let (count, cache) = (made.len(), tempfile::tempdir().unwrap());
    let quick = Backoff {
        tries: 2,
        first: Duration::from_millis(1),
        ..Backoff::default()
    };
    for (n, store) in made.into_iter().enumerate() {
        let all = store
            .clone()
            .prefix("")
            .timeout(TimeLimits::default())
            .rate(PerSecond {
                requests: 1e5,
                bytes: 1e9,
            })
            .limit(InFlight::Adaptive { most: 100 })
            .retry(quick.clone())
            .hedge(HedgePolicy::default())
            .verify(HashMap::new())
            .cache_on_disk(cache.path().join(n.to_string()), 1 << 20)
            .unwrap()
            .cache_in_memory(1 << 20, Evict::Oldest);
        write!(said, "{store:?} {store:#?} {all:?}\n{all:#?}\n").unwrap();
        write!(
            said,
            "{} {}\n{:?}\n",
            all.url(),
            all.url_of("k"),
            resilient(store.clone())
        )
        .unwrap();
        let all: Arc<dyn Store> = Arc::new(all);
        let file = FileRef::stored(all.clone(), "k", None);
        write!(
            said,
            "{file:?} {:?}\n{}\n",
            ListStore::new(all.clone(), "*"),
            file.name()
        )
        .unwrap();
        for store in [store, all] {
            let skipped = run(&mut said, || store.clone().files(keys.clone()).load_files());
            assert_eq!(skipped, keys.len() as u64, "all of them fail: {store:?}");
            let listed = run(&mut said, || {
                store.clone().list_files("*").load_files().batch(2)
            });
            // A bucket cannot be listed there, which no policy skips; a server has a manifest.
            assert_eq!(listed, if n + 1 == count { 0 } else { keys.len() as u64 });
        }
    }
    // Names of things that are not there, with all of it in them.
    for url in [
        of_user.replace("http://", "https://"),
        format!("s3://{MARKER}:{MARKER}@bucket/?{MARKER}"),
    ] {
        match stores::open(&url) {
            Err(error) => tell(&mut said, &error),
            Ok(store) => {
                let store = OpenOptions::new()
                    .bare()
                    .open(&url)
                    .map_or(store, |bare| bare);
                run(&mut said, || store.clone().files(["k"]).load_files());
            }
        }
    }

    let heard = log.0.1.load(Ordering::Relaxed);
    assert!(
        heard > 20,
        "{heard} events of ours: who is not listened to says no secret"
    );
    let logged = log.0.0.lock().unwrap().clone();
    for (name, text) in [("what was said", &said), ("the log", &logged)] {
        for secret in [MARKER, CODED] {
            if let Some(at) = text.find(secret) {
                let (from, to) = (at.saturating_sub(400), text.len().min(at + 100));
                panic!(
                    "{name}: {}",
                    String::from_utf8_lossy(&text.as_bytes()[from..to])
                );
            }
        }
    }
    // They were sent, so that they could have been said.
    let sent = |name: &str, value: &str| {
        server
            .requests()
            .iter()
            .any(|asked| asked.header(name).is_some_and(|text| text.contains(value)))
    };
    assert!(
        sent("authorization", CODED) && sent("authorization", MARKER) && sent("x-api-key", MARKER)
    );
    assert!(sent("x-amz-security-token", MARKER));
}
