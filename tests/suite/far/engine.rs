//! A loader over a web server that misbehaves: nothing is lost, doubled or wrong, and each failure
//! is named.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use datapipes::{Backoff, DataLoader, ErrorKind, Graph, OnError, Order};
use datapipes_image::prelude::*;
use datapipes_io::File;
use datapipes_io::prelude::*;
use datapipes_io::stores::wrappers::InFlight;
use datapipes_io::stores::{self, Http, Store, StoreExt};

use super::bad_http::*;

const KEYS: usize = 60;
const ORDERS: [Order; 3] = [Order::Strict, Order::Bounded(4), Order::Arrival];
const MS: Duration = Duration::from_millis(1);

fn key(n: usize) -> String {
    format!("train/{n:04}.bin")
}

fn content(n: usize) -> Vec<u8> {
    (0..500 + 37 * n)
        .map(|at| (at * 31 + n * 17) as u8)
        .collect()
}

/// An answer with an ETag, whose body ends after `after` bytes, followed by the step `last`.
fn broken(etag: &str, data: &[u8], after: usize, last: Step) -> Act {
    let head = format!(
        "HTTP/1.1 200 OK\r\nETag: \"{etag}\"\r\nContent-Length: {}\r\n\r\n",
        data.len()
    );
    Act::Steps(vec![
        Step::Send([head.as_bytes(), &data[..after]].concat()),
        last,
    ])
}

/// Transient faults. After a retry the result is as if they had not happened.
fn passing() -> BTreeMap<usize, Vec<Act>> {
    let busy = || status(503, "busy");
    let whole = |n| object(content(n));
    // The tag that `object` gives, so that the loader resumes the body.
    let etag = |n: usize| {
        let Act::Serve(thing) = whole(n) else {
            unreachable!("it serves")
        };
        thing.etag.unwrap().trim_matches('"').to_owned()
    };
    let cut = |n, after, last| broken(&etag(n), &content(n), after, last);
    BTreeMap::from([
        (3, vec![busy(), busy(), whole(3)]),
        (7, vec![cut(7, 100, Step::Reset), whole(7)]),
        (11, vec![cut(11, 200, Step::Hold), whole(11)]),
        (
            13,
            vec![
                cut(13, 300, Step::Close),
                cut(13, 0, Step::Close),
                whole(13),
            ],
        ),
        // Its server does not know ranges: what is asked for from some byte on comes whole.
        (
            14,
            vec![
                cut(14, 300, Step::Close),
                object_but(content(14), |thing| thing.ranges = false),
            ],
        ),
        // It becomes another object half-way: what is read is all of the new one.
        (
            17,
            vec![broken("old", &[9; 900], 450, Step::Close), whole(17)],
        ),
        (
            19,
            vec![
                Act::Steps(vec![Step::Reset]),
                Act::Steps(vec![Step::Close]),
                whole(19),
            ],
        ),
        (
            23,
            vec![status_with(429, "Retry-After: 0\r\n", ""), whole(23)],
        ),
        (
            29,
            vec![raw("HTTP/1.1 200 OK\r\nETag"), whole(29)]
                .into_iter()
                .map(closing)
                .collect(),
        ),
    ])
}

/// Ends the connection after `act`, if `act` is not an object.
fn closing(act: Act) -> Act {
    match act {
        Act::Steps(mut steps) => {
            steps.push(Step::Close);
            Act::Steps(steps)
        }
        serve => serve,
    }
}

/// Permanent faults: the kind of the error, and its text about the cause.
fn lasting() -> BTreeMap<usize, (Act, ErrorKind, &'static str)> {
    BTreeMap::from([
        (5, (status(404, "gone"), ErrorKind::NotFound, "404")),
        (6, (status(403, "no"), ErrorKind::Denied, "403")),
        (
            21,
            (
                status(500, "broken for good"),
                ErrorKind::Unavailable,
                "broken for good",
            ),
        ),
        (
            31,
            (
                cut_body(&content(31), 10),
                ErrorKind::Truncated,
                "of 1647 bytes",
            ),
        ),
        // Its size is not the one that was listed.
        (
            37,
            (
                object("another size"),
                ErrorKind::Changed,
                "listed with 1869 bytes, has 12",
            ),
        ),
        (
            41,
            (raw_then_close("nonsense\r\n\r\n"), ErrorKind::Protocol, ""),
        ),
        (
            59,
            (
                status_with(200, "Content-Encoding: gzip\r\n", "x"),
                ErrorKind::Protocol,
                "gzip",
            ),
        ),
    ])
}

/// A server with all keys, some of them faulty, and a manifest of them.
fn server(with_lasting: bool) -> BadHttp {
    let server = BadHttp::start();
    let lines = (0..KEYS).map(|n| format!("{}\t{}\n", key(n), content(n).len()));
    server.on(
        "/keys.txt",
        [page("text/plain", &lines.collect::<String>())],
    );
    let (mut passing, mut lasting) = (passing(), lasting());
    for n in 0..KEYS {
        let acts = match (passing.remove(&n), lasting.remove(&n)) {
            (Some(acts), _) => acts,
            (_, Some((act, _, _))) if with_lasting => vec![act],
            _ => vec![object(content(n))],
        };
        server.on(&format!("/{}", key(n)), acts);
    }
    server
}

/// The usual stack, less patient.
fn store(server: &BadHttp) -> impl Store {
    let http = Http::builder(&server.url())
        .listing(stores::http::Listing::Manifest("keys.txt".into()))
        .minimum_rate(1000, 300 * MS)
        .build()
        .unwrap();
    let backoff = Backoff {
        tries: 4,
        first: MS,
        most: 5 * MS,
        ..Backoff::default()
    };
    http.limit(InFlight::OnOverload).retry(backoff)
}

fn batches(server: &BadHttp) -> Graph<Vec<File>> {
    store(server)
        .list_files("train/*.bin")
        .load_files()
        .batch(7)
}

/// The numbers of files, whose content is as it should be.
fn numbers(files: &[File]) -> Vec<usize> {
    let number = |file: &File| {
        let n = file.name[6..10].parse().unwrap();
        assert!(
            *file.name == *key(n) && file.data == content(n),
            "{file:?} is not as it should be"
        );
        n
    };
    files.iter().map(number).collect()
}

/// Checks the order that was asked for, as far as it says anything.
fn check_order(order: Order, arrived: &[usize], expected: &[usize]) {
    let mut sorted = arrived.to_vec();
    sorted.sort_unstable();
    assert_eq!(sorted, expected, "lost or doubled in {order}");
    if order == Order::Strict {
        assert_eq!(arrived, expected);
    }
}

#[test]
fn rows_52_53_57_59_and_62_what_passes_costs_no_item_in_any_order() {
    for order in ORDERS {
        for workers in [0, 2] {
            let server = server(false);
            let loader = DataLoader::builder(batches(&server))
                .workers(workers)
                .order(order)
                .build()
                .unwrap();
            let files: Vec<File> = loader
                .epoch(0)
                .blocking()
                .flat_map(Result::unwrap)
                .collect();
            check_order(order, &numbers(&files), &(0..KEYS).collect::<Vec<_>>());
            assert_eq!(server.requests_to(&format!("/{}", key(3))).len(), 3);
            // Objects that were there already are not requested again.
            let again = server.requests_to(&format!("/{}", key(7)));
            assert!(again.len() == 2, "{again:?}");
            if let Some(range) = again[1].header("range") {
                assert!(
                    again[1].header("if-match").is_some() && range != "bytes=0-",
                    "{again:?}"
                );
            }
            let skipped = loader.stats().unwrap().skipped;
            assert_eq!(skipped, 0);
        }
    }
}

#[test]
fn rows_52_to_60_and_67_what_lasts_is_skipped_by_name_and_cause() {
    for order in ORDERS {
        for workers in [0, 2] {
            let server = server(true);
            let lasting = lasting();
            let loader = DataLoader::builder(batches(&server))
                .workers(workers)
                .order(order);
            let loader = loader.on_error(OnError::skip(20)).build().unwrap();
            let batches: Vec<Vec<File>> = loader.epoch(0).blocking().map(Result::unwrap).collect();
            assert!(
                batches[..batches.len() - 1]
                    .iter()
                    .all(|batch| batch.len() == 7),
                "they are filled up"
            );
            let good: Vec<usize> = (0..KEYS).filter(|n| !lasting.contains_key(n)).collect();
            check_order(order, &numbers(&batches.concat()), &good);
            let mut skipped: Vec<_> = loader.stats().unwrap().skipped_items;
            skipped.sort_by_key(|skipped| skipped.item.as_ref().map(ToString::to_string));
            assert_eq!(skipped.len(), lasting.len(), "{skipped:#?}");
            for (skipped, (n, (_, kind, cause))) in skipped.iter().zip(&lasting) {
                let item = skipped
                    .item
                    .as_ref()
                    .expect("an error about an item")
                    .to_string();
                assert_eq!((&*skipped.node, &*item), ("load_files", &*key(*n)));
                let words = &skipped.error;
                assert!(
                    skipped.kind == *kind && words.contains(cause),
                    "{:?} {words}",
                    skipped.kind
                );
                assert!(
                    words.contains(&format!("{}{}: ", server.url(), key(*n))),
                    "{words}"
                );
            }
            // Final errors are requested once, the others as often as the policy says.
            let asked = |n| server.requests_to(&format!("/{}", key(n))).len();
            assert_eq!([5, 6, 21, 31, 37, 59].map(asked), [1, 1, 4, 4, 1, 1]);
            assert_eq!(loader.stats().unwrap().skipped, lasting.len() as u64);
        }
    }
}

#[test]
fn the_first_error_ends_the_epoch_and_the_next_epoch_begins_anew() {
    for order in ORDERS {
        for workers in [0, 2] {
            let server = server(true);
            let graph = store(&server).list_files("train/*.bin").load_files();
            let loader = DataLoader::builder(graph)
                .workers(workers)
                .order(order)
                .build()
                .unwrap();
            for epoch in 0..2 {
                let mut outcome: Vec<_> = loader.epoch(epoch).blocking().collect();
                let error = outcome.pop().unwrap().unwrap_err();
                let files: Vec<File> = outcome.into_iter().map(Result::unwrap).collect();
                let arrived = numbers(&files);
                assert!(
                    lasting().values().any(|(_, kind, _)| *kind == error.kind()),
                    "{error}"
                );
                assert_eq!(error.node(), Some("load_files"));
                if order == Order::Strict {
                    assert_eq!(
                        (arrived, error.kind()),
                        (vec![0, 1, 2, 3, 4], ErrorKind::NotFound)
                    );
                    assert_eq!(error.item().unwrap().to_string(), key(5));
                }
            }
        }
    }
}

#[test]
fn by_url_alone_a_loader_reads_what_is_listed_or_named() {
    let server = BadHttp::start();
    let names = ["1.txt", "2.txt", "3.txt"];
    server.on(
        "/data/index.json",
        [page("application/json", r#"["1.txt", "2.txt", "3.txt"]"#)],
    );
    for name in names {
        server.on(&format!("/data/{name}"), [object(name)]);
    }
    // The usual wait, once.
    server.on("/data/2.txt", [status(503, ""), object("2.txt")]);
    let store = stores::open(&format!("{}data", server.url())).unwrap();
    let texts = |graph: Graph<File>| graph.map(|file| file.data).batch(2).collect().unwrap();
    assert_eq!(
        texts(store.clone().list_files("*.txt").load_files()),
        [vec!["1.txt", "2.txt"], vec!["3.txt"]]
    );
    assert_eq!(
        texts(store.files(["3.txt", "1.txt"]).load_files()),
        [vec!["3.txt", "1.txt"]]
    );
}

#[test]
fn row_68_a_page_in_the_place_of_a_picture_is_unsupported_and_named() {
    let server = BadHttp::start();
    server.on("/index.txt", [page("text/plain", "a/1.jpg\na/2.jpg\n")]);
    let login = "<!DOCTYPE html>\n<title>Please log in</title>";
    server.on("/a/1.jpg", [page("text/html", login)]);
    server.on("/a/2.jpg", [page("text/html", login)]);
    let store: Arc<dyn Store> = stores::open(&server.url()).unwrap();
    let graph = store
        .list_files("**/*.jpg")
        .load_files()
        .map(|file| file.data)
        .decode_image();
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(9))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 0);
    let skipped = loader.stats().unwrap().skipped_items;
    assert_eq!(skipped.len(), 2);
    for (skipped, name) in skipped.iter().zip(["a/1.jpg", "a/2.jpg"]) {
        assert_eq!(
            (&*skipped.node, skipped.kind),
            ("decode_image", ErrorKind::Unsupported)
        );
        let words = &skipped.error;
        assert!(
            words.starts_with(&format!("decode_image: {name}: ")) && words.contains("<!DOCTYP"),
            "{words}"
        );
    }
}

/// A runtime does not wait for a connection that another runtime left in the pool.
#[test]
fn row_70_a_runtime_that_stands_still_holds_up_no_loader() {
    let server = BadHttp::start();
    server
        .on("/index.txt", [page("text/plain", "a\n")])
        .on("/a", [object("content")]);
    let http = Http::builder(&server.url())
        .first_byte_timeout(Duration::from_secs(5))
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for _ in 0..3 {
        assert_eq!(runtime.block_on(http.read("a")).unwrap(), "content");
        // The runtime still exists, with a connection that could be used.
        let loader = DataLoader::builder(http.clone().files(["a", "a"]).load_files())
            .build()
            .unwrap();
        for file in loader.epoch(0).blocking() {
            assert_eq!(file.unwrap().data, "content");
        }
    }
    // Each runtime has connections of its own.
    let connections = server.connections();
    assert_eq!(runtime.block_on(http.read("a")).unwrap(), "content");
    assert_eq!(server.connections(), connections);
}

/// Environment variable that tells a process that it is the child, and what to read.
const CROWDED: &str = "DATAPIPES_TEST_CROWDED";

/// A thousand files and a thousand objects are read with 64 descriptors, many at once.
#[test]
fn row_77_few_descriptors_make_it_slower_and_no_worse() {
    let server = BadHttp::start();
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..1000).map(|n| format!("{n:04}\n")).collect();
    server.on("/index.txt", [page("text/plain", &lines)]);
    for n in 0..1000 {
        let data = format!("content of {n:04}");
        server.on(&format!("/{n:04}"), [object(&*data)]);
        std::fs::write(folder.path().join(format!("{n:04}")), data).unwrap();
    }
    for place in [folder.path().display().to_string(), server.url()] {
        let mut child = std::process::Command::new("sh");
        child
            .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "far::engine::a_child_with_few_descriptors",
            "--nocapture",
        ]);
        let out = child.env(CROWDED, &place).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && said.contains("read them all"),
            "{place}: {out:#?}"
        );
    }
}

/// Runs in the children; no test by itself.
#[test]
fn a_child_with_few_descriptors() {
    let Ok(place) = std::env::var(CROWDED) else {
        return;
    };
    let store = stores::open(&place).unwrap();
    for workers in [0, 2] {
        let graph = store.clone().list_files("*").load_files().batch(500);
        let builder = DataLoader::builder(graph).workers(workers);
        let files: Vec<File> = builder
            .build()
            .unwrap()
            .epoch(0)
            .blocking()
            .flat_map(Result::unwrap)
            .collect();
        let right = |(n, file): (usize, &File)| {
            *file.name == *format!("{n:04}") && file.data == format!("content of {n:04}")
        };
        assert!(files.len() == 1000 && files.iter().enumerate().all(right));
    }
    println!("read them all");
}
