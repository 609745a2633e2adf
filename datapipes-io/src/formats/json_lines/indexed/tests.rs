//! Tests of JSON lines by index: the values of a stream, files that change, indexes that are kept.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use datapipes::{DataLoader, Indexed, Uneven};
use futures::executor::block_on;
use futures::stream::BoxStream;
use proptest::prelude::*;

use super::*;
use crate::formats::JsonLines;
use crate::stores::local::Local;
use crate::stores::{Get, InMemory, Meta, Object};
use crate::testing::read_all;
use datapipes::ErrorKind;

/// A store that counts the bodies that are read of another, and may hide its versions.
#[derive(Clone, Debug)]
struct Watched {
    memory: InMemory,
    reads: Arc<AtomicUsize>,
    versions: bool,
}

impl Watched {
    fn new(text: &str, versions: bool) -> Watched {
        Watched {
            memory: InMemory::from_iter([("a.jsonl", text.to_owned())]),
            reads: Arc::default(),
            versions,
        }
    }

    /// Returns the number of reads since the last call.
    fn reads(&self) -> usize {
        self.reads.swap(0, Ordering::Relaxed)
    }
}

#[async_trait]
impl Store for Watched {
    fn url(&self) -> &str {
        self.memory.url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut object = self.memory.get(key, get).await?;
        if !self.versions {
            object.meta.version = None;
        }
        Ok(object)
    }
    async fn head(&self, key: &str) -> Result<Meta> {
        let meta = self.memory.head(key).await?;
        let version = meta.version.filter(|_| self.versions);
        Ok(Meta { version, ..meta })
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.memory.list(prefix)
    }
}

fn values(file: IndexedJsonLines) -> Vec<Result<Value>> {
    (0..file.len())
        .map(|line| block_on(file.get(line)))
        .collect()
}

fn open(store: impl Store) -> IndexedJsonLines {
    block_on(IndexedJsonLines::open(store, "a.jsonl")).unwrap()
}

/// Returns what two readings have in common: values, and errors with their places.
fn said(read: Vec<Result<Value>>) -> Vec<Result<Value, (ErrorKind, String)>> {
    let place = |error: Error| {
        let text = error.to_string();
        let from = text.find("line ").expect("it names the line");
        // The size of a line that is too long has its end, if the line is not read.
        let to = text.find(" has ").unwrap_or(text.len());
        (error.kind(), text[from..to].to_owned())
    };
    read.into_iter().map(|value| value.map_err(place)).collect()
}

proptest! {
    #[test]
    fn row_107_values_and_errors_are_those_of_the_stream(parts in prop::collection::vec(prop::sample::select(vec![
        "\n", "\r\n", "\n", " ", "\t", "1", "[2, 3]", "{\"a\": 4}", "{\"a\":", "x", "\u{feff}", "12345678901234567890",
    ]), 0..30)) {
        let text = parts.concat();
        let expected = said(read_all(JsonLines::values().max_line(16), text.clone()));
        let file = open(InMemory::from_iter([("a.jsonl", text)])).max_line(16);
        prop_assert_eq!(said(values(file)), expected);
    }
}

#[test]
fn row_105_an_empty_file_and_blank_lines_have_no_values() {
    for text in ["", "\n", "\r\n \t\n\n", "\u{feff}", "\u{feff}\n", "  "] {
        let file = open(InMemory::from_iter([("a.jsonl", text)]));
        assert!(file.index().is_empty(), "{text:?}");
    }
    let missing = block_on(IndexedJsonLines::<Value>::open(InMemory::new(), "a.jsonl"));
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn errors_name_file_line_and_byte() {
    let text = "{\"a\": 1}\r\n\n\n{\"a\": }\n\"123456789\"\n[1";
    let file = open(InMemory::from_iter([("a.jsonl", text)])).max_line(10);
    let errors: Vec<Error> = values(file.clone())
        .into_iter()
        .filter_map(Result::err)
        .collect();
    let kinds: Vec<ErrorKind> = errors.iter().map(Error::kind).collect();
    assert_eq!(
        kinds,
        [ErrorKind::Corrupt, ErrorKind::Limit, ErrorKind::Truncated]
    );
    let ends = [
        "a.jsonl: line 4, column 7, byte 18: expected value",
        "a.jsonl: line 5 at byte 20 has 11 bytes, and 10 are allowed (`max_line`)",
        "a.jsonl: line 6, column 2, byte 33: EOF while parsing a list",
    ];
    for (error, end) in errors.iter().zip(ends) {
        assert!(error.to_string().ends_with(end), "{error}");
    }
    let error = block_on(file.get(4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().ends_with("a.jsonl: no line 4 of 4"),
        "{error}"
    );
}

#[test]
fn a_line_that_is_too_long_is_not_read() {
    let text = format!("1\n\"{}\"\n2", "y".repeat(1000));
    let store = Watched::new(&text, true);
    let file = open(store.clone()).max_line(100);
    store.reads();
    assert_eq!(block_on(file.get(1)).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(store.reads(), 0);
    assert_eq!(block_on(file.get(2)).unwrap(), 2);
}

#[test]
fn row_106_a_compressed_file_is_refused() {
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03".repeat(3);
    let store = InMemory::from_iter([("a.jsonl", gzip)]);
    let error = block_on(IndexedJsonLines::<Value>::open(store, "a.jsonl")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("a.jsonl: compressed"), "{error}");
}

#[test]
fn rows_59_and_75_a_file_that_changed_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    for now in ["[1]\n[3]\n", "[1]\n", "[1]\n[2]\n[3]\n", ""] {
        fs::write(&path, "[1]\n[2]\n").unwrap();
        let file = open(Local::new(dir.path()));
        fs::remove_file(&path).unwrap();
        fs::write(&path, now).unwrap();
        let error = block_on(file.get(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{now:?}: {error}");
        assert!(error.to_string().contains("a.jsonl"), "{error}");
    }
    // Without versions a change is told by size, and by the ends of lines.
    for now in [
        "[1]\n[2]\n[3]",
        "[1]\n",
        "[1,\n2]\n",
        "[1] [2] ",
        "\n\n\n\n[2]\n",
    ] {
        let store = Watched::new("[1]\n[2]\n", false);
        let file = open(store.clone());
        store.memory.put("a.jsonl", now);
        let first = block_on(file.get(0)).map_err(|error| error.kind());
        assert_eq!(first, Err(ErrorKind::Changed), "{now:?}");
    }
}

#[test]
fn an_index_is_kept_and_made_again_when_the_file_changed() {
    for versions in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("a.lines");
        let store = Watched::new("[1]\n\n[2]\n", versions);
        let open = || {
            let file = IndexedJsonLines::<Value>::open_cached(store.clone(), "a.jsonl", &kept);
            block_on(file).unwrap()
        };
        // Without versions the ends of the file are read to tell it from another.
        let ends = if versions { 0 } else { 2 };
        let first = open();
        assert_eq!(store.reads(), ends + 1);
        let again = open();
        assert_eq!((store.reads(), &again.index), (ends, &first.index));
        assert_eq!(block_on(again.get(1)).unwrap(), serde_json::json!([2]));
        store.reads();

        store.memory.put("a.jsonl", "[1]\n[20]\n"); // The same number of bytes.
        assert_eq!(block_on(open().get(1)).unwrap(), serde_json::json!([20]));
        assert_eq!(store.reads(), ends + 2);
        drop(open());
        assert_eq!(store.reads(), ends);
    }
}

#[test]
fn row_85_an_index_that_is_damaged_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("a.lines");
    let store = Watched::new("[1]\n\n[2]\n", true);
    let open = |key| {
        let file = IndexedJsonLines::<Value>::open_cached(store.clone(), key, &kept);
        block_on(file).unwrap()
    };
    drop(open("a.jsonl"));
    let whole = fs::read(&kept).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"what"] {
        fs::write(&kept, damaged).unwrap();
        store.reads();
        assert_eq!(open("a.jsonl").len(), 2);
        assert_eq!(store.reads(), 1);
        assert_eq!(fs::read(&kept).unwrap(), whole);
    }
    // The index of another file is not used, even if size and version are equal.
    store.memory.put("b.jsonl", "[1]\n[2]\n\n");
    assert_eq!(
        block_on(open("b.jsonl").get(1)).unwrap(),
        serde_json::json!([2])
    );
    assert_ne!(fs::read(&kept).unwrap(), whole);
}

#[test]
fn row_83_an_index_that_cannot_be_written_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = InMemory::from_iter([("a.jsonl", "1\n2\n")]);
    let nowhere = dir.path().join("none/a.lines");
    let file = IndexedJsonLines::<Value>::open_cached(store, "a.jsonl", nowhere);
    assert_eq!(block_on(file).unwrap().len(), 2);
}

/// Files of several lengths in a global shuffle: any number of ranks goes on with what is left.
#[test]
fn row_118_files_are_shuffled_and_resumed_by_other_ranks() {
    let lines = |from: u64, to: u64| (from..to).map(|n| format!("{n}\n\n")).collect::<String>();
    let files = [
        ("a", lines(0, 13)),
        ("b", lines(13, 14)),
        ("c", lines(14, 24)),
    ];
    let store = InMemory::from_iter(files);
    let graph = || {
        let files = ["a", "b", "c"].map(|key| {
            let file = IndexedJsonLines::<u64>::open(store.clone(), key);
            Indexed::new(block_on(file).unwrap())
        });
        Indexed::concat(files).shuffle().shard().fetch()
    };
    let loader = |rank, world| {
        DataLoader::builder(graph().batch(4 / world))
            .rank(rank, world)
            .uneven(Uneven::Drop)
            .workers(2)
            .resumable()
            .build()
            .unwrap()
    };
    let whole: Vec<Vec<u64>> = loader(0, 1)
        .epoch(0)
        .blocking()
        .map(Result::unwrap)
        .collect();
    let mut all = whole.concat();
    assert_ne!(all, Vec::from_iter(0..24));
    let mut epoch = loader(0, 1).epoch(0).blocking();
    epoch.by_ref().take(2).for_each(drop);
    let checkpoint = epoch.checkpoint().unwrap();
    let ranks = [0, 1].map(|rank| {
        let rest = loader(rank, 2).resume(&checkpoint).unwrap().blocking();
        rest.map(Result::unwrap).collect::<Vec<Vec<u64>>>()
    });
    for (step, expected) in whole[2..].iter().enumerate() {
        let mut got = [&ranks[0][step][..], &ranks[1][step]].concat();
        let mut expected = expected.clone();
        got.sort_unstable();
        expected.sort_unstable();
        assert_eq!(got, expected, "step {step}");
    }
    all.sort_unstable();
    assert_eq!(all, Vec::from_iter(0..24));
}
