//! Ingest into SQLite, with tables that fail and crash.
#![cfg(feature = "sqlite")]

use std::collections::BTreeSet;
use std::sync::Mutex;

use async_trait::async_trait;
use datapipes::{DataLoader, ErrorKind, OnError};
use futures::stream::BoxStream;
use tempfile::TempDir;

use super::*;
use crate::testing::{sample, schema};
use crate::{Label, Metadata, Row, Schema, Sqlite, TableExt, Value, key};

fn table(folder: &TempDir) -> Sqlite {
    Sqlite::create(folder.path().join("a.db"), "t", &schema()).unwrap()
}

fn run(graph: Graph<Written>, on_error: OnError) -> Result<Written> {
    run_with_errors(graph, on_error).map(|(written, _)| written)
}

/// Runs a graph, and returns also the errors that were skipped.
fn run_with_errors(graph: Graph<Written>, on_error: OnError) -> Result<(Written, Vec<String>)> {
    let loader = DataLoader::builder(graph)
        .workers(2)
        .on_error(on_error)
        .build()
        .unwrap();
    let mut sum = Written::default();
    for done in loader.epoch(0).blocking() {
        let done = done?;
        sum.written += done.written;
        sum.known += done.known;
        sum.bytes += done.bytes;
    }
    let skipped = loader.stats().unwrap().skipped_items;
    Ok((sum, skipped.into_iter().map(|item| item.error).collect()))
}

fn keys(table: &impl Table) -> BTreeSet<Uuid> {
    futures::executor::block_on(table.select(&[]).keys())
        .unwrap()
        .into_iter()
        .collect()
}

fn numbers(count: u64) -> Graph<NewRow> {
    Graph::range(0..count).map(|number| sample(number, vec![7; number as usize % 10]))
}

#[test]
fn of_rows_of_one_key_the_first_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&folder);
    let rows = [(1, "a"), (2, "b"), (1, "longer"), (3, "c"), (2, "longer")];
    let rows = Graph::from_vec(rows.map(|(number, data)| sample(number, data)).to_vec());
    let done = run(Ingest::new(table.clone()).rows(rows), OnError::fail()).unwrap();
    let expected = Written {
        written: 3,
        known: 2,
        bytes: 3,
    };
    assert_eq!(done, expected);
    let first = futures::executor::block_on(table.get(sample(1, "").row.key)).unwrap();
    assert_eq!(first.data, "a");
}

#[test]
fn all_rows_arrive_once_and_again_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&folder);
    let ingest = Ingest::new(table.clone());
    let all = Written {
        written: 1000,
        known: 0,
        bytes: 4500,
    };
    assert_eq!(
        run(ingest.rows(numbers(1000)), OnError::fail()).unwrap(),
        all
    );
    assert_eq!(ingest.report(), all);
    assert_eq!(keys(&table).len(), 1000);
    let again = Written {
        written: 0,
        known: 1000,
        bytes: 0,
    };
    assert_eq!(
        run(ingest.rows(numbers(1000)), OnError::fail()).unwrap(),
        again
    );
    assert_eq!(
        ingest.report(),
        Written {
            written: 1000,
            known: 1000,
            bytes: 4500
        }
    );
    // Overwriting makes no duplicates.
    assert_eq!(
        run(
            Ingest::new(table.clone()).overwrite().rows(numbers(1000)),
            OnError::fail()
        )
        .unwrap(),
        all
    );
    assert_eq!(keys(&table).len(), 1000);
    // Known items are not even made.
    let made = Arc::new(AtomicU64::new(0));
    let counted = made.clone();
    let fresh = ingest
        .unknown(Graph::range(0..1100), |number| sample(*number, "").row.key)
        .map(move |number| {
            counted.fetch_add(1, Ordering::Relaxed);
            sample(number, "")
        });
    assert_eq!(
        run(ingest.rows(fresh), OnError::fail()).unwrap().written,
        100
    );
    assert_eq!(
        (made.load(Ordering::Relaxed), ingest.report().known),
        (100, 2000)
    );
    assert_eq!(
        run(ingest.rows(Graph::from_vec(vec![])), OnError::fail()).unwrap(),
        Written::default()
    );
}

/// A table whose `put` fails on demand, optionally after it has written.
#[derive(Debug)]
struct Failing {
    inner: Sqlite,
    /// Number of calls that succeed, and the behavior after them.
    fails: Mutex<Box<dyn Plan>>,
}

trait Plan: Send + std::fmt::Debug {
    fn next(&mut self, rows: &[NewRow]) -> Option<Error>;
}

impl Failing {
    fn new(inner: &Sqlite, plan: impl Plan + 'static) -> Self {
        Failing {
            inner: inner.clone(),
            fails: Mutex::new(Box::new(plan)),
        }
    }
}

#[async_trait]
impl Table for Failing {
    datapipes::forward! { self.inner =>
        fn url(&self) -> &str;
        fn schema(&self) -> &Schema;
        fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>>;
    }
    async fn get(&self, key: Uuid) -> Result<Row> {
        self.inner.get(key).await
    }
    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>> {
        self.inner.get_many(keys).await
    }
    async fn put(&self, rows: Vec<NewRow>) -> Result<()> {
        let fails = self.fails.lock().unwrap().next(&rows);
        match fails {
            Some(error) => Err(error),
            None => self.inner.put(rows).await,
        }
    }
}

/// A table that, while it writes a batch, gives another batch much time to look up its keys.
#[derive(Debug)]
struct Slow {
    inner: Sqlite,
    asked: AtomicU64,
}

#[async_trait]
impl Table for Slow {
    datapipes::forward! { self.inner =>
        fn url(&self) -> &str;
        fn schema(&self) -> &Schema;
        fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>>;
    }
    async fn get(&self, key: Uuid) -> Result<Row> {
        self.inner.get(key).await
    }
    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>> {
        self.inner.get_many(keys).await
    }
    async fn contains(&self, keys: &[Uuid]) -> Result<Vec<bool>> {
        let known = self.inner.contains(keys).await;
        self.asked.fetch_add(1, Ordering::SeqCst);
        known
    }
    async fn put(&self, rows: Vec<NewRow>) -> Result<()> {
        for _ in 0..1000 {
            if self.asked.load(Ordering::SeqCst) > 1 {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.inner.put(rows).await
    }
}

#[test]
fn batches_in_flight_write_a_key_once() {
    let folder = tempfile::tempdir().unwrap();
    let table = Slow {
        inner: table(&folder),
        asked: AtomicU64::new(0),
    };
    let rows = Graph::from_vec(vec![sample(1, "first"), sample(1, "other")]);
    let graph = rows.batch(1).pipe(Ingest::new(table));
    let done = run(graph, OnError::fail()).unwrap();
    assert_eq!((done.written, done.known), (1, 1));
}

#[derive(Debug)]
struct Breaks {
    after: usize,
    transient: bool,
    times: usize,
}

impl Plan for Breaks {
    fn next(&mut self, _: &[NewRow]) -> Option<Error> {
        if self.after > 0 {
            self.after -= 1;
            return None;
        }
        self.times = self.times.checked_sub(1)?;
        let error = Error::unavailable("the table is gone");
        Some(if self.transient {
            error.transient()
        } else {
            error
        })
    }
}

#[test]
fn what_broke_off_is_finished_by_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&folder);
    for after in [0, 1, 3, 5] {
        let broken = Ingest::new(Failing::new(
            &table,
            Breaks {
                after,
                transient: true,
                times: usize::MAX,
            },
        ));
        let error = run(broken.rows(numbers(1000)), OnError::fail()).unwrap_err();
        assert_eq!(
            (error.kind(), error.node()),
            (ErrorKind::Unavailable, Some("ingest")),
            "{error}"
        );
        assert!(keys(&table).len() < 1000);
        // Every row is complete.
        for key in keys(&table) {
            futures::executor::block_on(table.get(key)).unwrap();
        }
    }
    let before = keys(&table).len() as u64;
    let ingest = Ingest::new(table.clone());
    run(ingest.rows(numbers(1000)), OnError::fail()).unwrap();
    assert_eq!(
        (ingest.report().known, ingest.report().written),
        (before, 1000 - before)
    );
    assert_eq!(
        keys(&table),
        (0..1000).map(|number| sample(number, "").row.key).collect()
    );
}

#[test]
fn a_passing_failure_is_tried_again_by_retry() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&folder);
    let ingest = Ingest::new(Failing::new(
        &table,
        Breaks {
            after: 1,
            transient: true,
            times: 2,
        },
    ));
    let graph = numbers(300).batch(50).retry(3, ingest.clone());
    assert_eq!(run(graph, OnError::fail()).unwrap().written, 300);
    assert_eq!((ingest.report().written, keys(&table).len()), (300, 300));
}

/// A table that refuses some rows permanently.
#[derive(Debug)]
struct Refuses(u64);

impl Plan for Refuses {
    fn next(&mut self, rows: &[NewRow]) -> Option<Error> {
        let bad = rows.iter().find(|new| {
            (0..1000)
                .step_by(self.0 as usize)
                .any(|number| sample(number, "").row.key == new.row.key)
        })?;
        Some(Error::limit(format!("{} is too large", bad.row.key)))
    }
}

#[test]
fn a_row_that_cannot_be_written_costs_itself_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(&folder);
    let rows = numbers(1000).map(|mut new| {
        if new.values[2] == "sample 77".into() {
            new.values[2] = Value::Int(1);
        }
        new
    });
    let ingest = Ingest::new(Failing::new(&table, Refuses(250)));
    let (done, skipped) = run_with_errors(ingest.rows(rows.clone()), OnError::skip(10)).unwrap();
    assert_eq!(done.written, 995);
    let skipped = BTreeSet::from_iter(skipped);
    assert_eq!(skipped.len(), 5, "{skipped:#?}");
    for number in [0, 250, 500, 750] {
        let wanted = format!(
            "ingest: 0:{number}: limit reached: {} is too large",
            sample(number, "").row.key
        );
        assert!(skipped.contains(&wanted), "{wanted}: {skipped:#?}");
    }
    let shape = skipped
        .iter()
        .find(|error| error.contains("0:77: shape mismatch"))
        .unwrap();
    assert!(
        shape.contains(table.url()) && shape.contains("column \"name\" is of text"),
        "{shape}"
    );
    assert_eq!(keys(&table).len(), 995);
    // Without a policy it is an error.
    let error = run(Ingest::new(table).overwrite().rows(rows), OnError::fail()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
}

#[test]
fn keys_of_names_are_pinned() {
    assert_eq!(key("pets", "cat/1.jpg").to_string(), KEY);
    assert_eq!(key("pets", "cat/1.jpg").get_version_num(), 8);
    assert_ne!(key("pe", "tscat/1.jpg"), key("pets", "cat/1.jpg"));
}

const KEY: &str = "0041a382-78dc-8d66-bd21-b8a873901195";

#[cfg(feature = "files")]
#[test]
fn a_folder_of_classes_becomes_rows_and_known_files_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    let write = |name: &str| {
        let path = images.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, name).unwrap();
    };
    [
        "zebra/1.jpg",
        "ant/b.PNG",
        "ant/deep/a.jpeg",
        "ant/notes.txt",
        "top.jpg",
    ]
    .into_iter()
    .for_each(write);
    std::fs::create_dir(images.join("bee")).unwrap();
    let table =
        Sqlite::create(folder.path().join("a.db"), "zoo", &Ingest::folder_schema()).unwrap();
    let ingest = Ingest::new(table.clone());
    let all = run(ingest.folder("zoo", &images).unwrap(), OnError::fail()).unwrap();
    assert_eq!(
        all,
        Written {
            written: 3,
            known: 0,
            bytes: 35
        }
    );
    futures::executor::block_on(async {
        for (name, class) in [("zebra/1.jpg", 2), ("ant/b.PNG", 0), ("ant/deep/a.jpeg", 0)] {
            let row = table.get(key("zoo", name)).await.unwrap();
            assert_eq!(
                (row.label, &row.data[..]),
                (Label::Class(class), name.as_bytes())
            );
        }
        let zebras = table
            .select(&["path", "size"])
            .filter("class = 'zebra'".parse().unwrap())
            .all()
            .await
            .unwrap();
        assert_eq!(zebras[0].values, ["zebra/1.jpg".into(), Value::Int(11)]);
    });
    // The next run reads the new file only: a known file may have become unreadable.
    write("bee/new.png");
    std::fs::remove_file(images.join("zebra/1.jpg")).unwrap();
    std::os::unix::fs::symlink("gone", images.join("zebra/1.jpg")).unwrap();
    let outcome = run(ingest.folder("zoo", &images).unwrap(), OnError::skip(5)).unwrap();
    assert_eq!((outcome.written, ingest.report().written), (1, 4));
    // An error of a folder is reported at once.
    let error = ingest.folder("zoo", images.join("none")).unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("none"),
        "{error}"
    );
    let error = ingest.folder("zoo", images.join("zebra")).unwrap_err();
    assert!(
        error.to_string().contains("no folder of a class"),
        "{error}"
    );
}

#[cfg(feature = "files")]
#[test]
fn samples_of_archives_become_rows_with_metadata_of_their_json() {
    use datapipes_io::prelude::*;
    let folder = tempfile::tempdir().unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    for (name, data) in [
        ("a/1.jpg", "pixels"),
        ("a/1.cls", "3\n"),
        (
            "a/1.json",
            r#"{"count": 5, "size": 1.5, "good": true, "more": []}"#,
        ),
        ("a/2.png", "others"),
        ("a/3.jpg", "x"),
        ("a/3.json", r#"{"count": "five"}"#),
        ("a/4.txt", "x"),
        ("a/5.jpg", "x"),
        ("a/5.cls", "cat"),
        ("a/6.jpg", "x"),
        ("a/6.json", "{"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_cksum();
        archive
            .append_data(&mut header, name, data.as_bytes())
            .unwrap();
    }
    std::fs::write(folder.path().join("s.tar"), archive.into_inner().unwrap()).unwrap();
    let columns = Schema {
        columns: [&schema().columns[..1], &schema().columns[2..]].concat(),
    };
    let table = Sqlite::create(folder.path().join("a.db"), "t", &columns).unwrap();
    let samples = datapipes_io::list_files(folder.path(), "*.tar")
        .load_files()
        .untar()
        .samples();
    let ingest = Ingest::new(table.clone());
    let graph = ingest.samples("s", samples, &["jpg", "png"]);
    let (done, mut said) = run_with_errors(graph, OnError::skip(10)).unwrap();
    assert_eq!((done.written, done.bytes), (2, 12));
    futures::executor::block_on(async {
        let row = table.get(key("s", "a/1")).await.unwrap();
        assert_eq!(
            (row.label, &row.data[..]),
            (Label::Class(3), &b"pixels"[..])
        );
        assert_eq!(table.get(key("s", "a/2")).await.unwrap().label, Label::None);
        let found = table
            .select(&["count", "name", "good"])
            .filter("label = 3".parse().unwrap())
            .all()
            .await
            .unwrap();
        assert_eq!(
            found[0].values,
            [Value::Int(5), "a/1".into(), Value::Bool(true)]
        );
    });
    said.sort();
    for (said, wanted) in said.iter().zip(["a/3", "a/4", "a/5", "a/6"]) {
        assert!(said.starts_with(&format!("row: s.tar/{wanted}")), "{said}");
    }
    assert!(
        said[0].contains("\"count\" in its json is not of whole numbers"),
        "{said:?}"
    );
    assert_eq!(said.len(), 4, "{said:#?}");
}

#[test]
fn a_dropped_ingest_stops() {
    let folder = tempfile::tempdir().unwrap();
    let ingest = Ingest::new(table(&folder));
    let loader = DataLoader::builder(ingest.rows(numbers(1 << 40)))
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    drop(epoch);
    drop(loader);
    assert!(ingest.report().written >= 64);
}
