//! Compares files that are read as they arrive with the same files read whole.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::testing::{cases, some_of};
use datapipes::{DataLoader, ErrorKind, Graph, Item, Items, OnError, Origin, Result};
use futures::StreamExt;
use proptest::prelude::*;

use crate::formats::compression::tests::refused;
use crate::formats::{
    ArrowIpc, ArrowRows, ByteLines, Csv, Decompress, FileEntries, Format, Frame, FrameKind,
    Framing, JsonLines, Lines, MsgPack, RecordPosition, RecordSplitter,
};
use crate::formats::{RecordIo, RecordIoWriter, TfRecordWriter, TfRecords};
use crate::prelude::*;
use crate::stores::{InMemory, StoreExt};
use crate::testing::{Reaction, Scripted, gzip, read_all, read_arriving, unnamed};
use crate::{File, FileRef};

/// Returns items with their origins, and errors as text.
fn seen<T: std::fmt::Debug + Send + 'static>(graph: Graph<T>, workers: usize) -> Vec<String> {
    let shown = graph.through(|items: Items<T>| {
        Items::from_stream(items.map(|item| {
            Ok(match item {
                Ok(item) => {
                    let text = format!("{} {:?}", item.origin(), *item);
                    item.map(|_| text)
                }
                Err(error) => Item::new(error.to_string(), Origin::root(9, 9)),
            })
        }))
    });
    let loader = DataLoader::builder(shown).workers(workers).build().unwrap();
    loader.epoch(0).blocking().map(Result::unwrap).collect()
}

/// Checks that whole files and arriving files yield the same items.
fn check_doors<F: Format + Clone>(format: F, files: &[(&str, Vec<u8>)], piece: usize)
where
    F::Item: std::fmt::Debug,
{
    let store = Scripted::from_iter(files.iter().cloned());
    store.usual(Reaction::default().pieces(piece, std::time::Duration::ZERO));
    let names = || files.iter().map(|(name, _)| *name);
    let whole = seen(
        store
            .clone()
            .files(names())
            .load_files()
            .read_as(format.clone()),
        0,
    );
    for workers in [0, 2] {
        assert_eq!(
            seen(
                store.clone().files(names()).stream_as(format.clone(), 0),
                workers
            ),
            whole
        );
    }
    assert_eq!(seen(store.clone().files(names()).read_as(format), 2), whole);
}

/// Returns the data uncompressed and with every compression.
fn packed(data: &[u8]) -> Vec<Vec<u8>> {
    use std::io::Write;
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(data).unwrap();
    let mut bzip2 = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::best());
    bzip2.write_all(data).unwrap();
    let mut xz =
        lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(0)).unwrap();
    xz.write_all(data).unwrap();
    vec![
        data.to_vec(),
        gzip(data),
        ::zstd::stream::encode_all(data, 1).unwrap(),
        lz4.finish().unwrap(),
        bzip2.finish().unwrap(),
        xz.finish().unwrap(),
    ]
}

fn compare<F: Format>(make: impl Fn() -> F, data: &[u8], pieces: &[usize])
where
    F::Item: std::fmt::Debug,
{
    let shown = |items: Vec<Result<F::Item>>| -> Vec<String> {
        items
            .into_iter()
            .map(|item| item.map_or_else(|e| unnamed(&e), |i| format!("{i:?}")))
            .collect()
    };
    for data in packed(data) {
        let whole = shown(read_all(make(), data.clone()));
        assert_eq!(
            shown(read_arriving(make(), data.clone(), pieces)),
            whole,
            "pieces of {pieces:?}"
        );
        // Cut at some position: the same records, and the same error after them.
        let cut = data[..data.len() - data.len().min(pieces[0])].to_vec();
        let whole = shown(read_all(make(), cut.clone()));
        assert_eq!(
            shown(read_arriving(make(), cut, pieces)),
            whole,
            "cut, in pieces of {pieces:?}"
        );
    }
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        "[a-c0-9]{0,12}",
        "[\"a,# \\r]{0,6}",
        Just("\u{feff}".to_owned()),
        Just("{\"a\": [1, 2]}".to_owned()),
        Just("\"two\nlines\",x".to_owned()),
        Just("ü\0".to_owned()),
        Just("x".repeat(300)),
    ];
    let ends = prop_oneof![Just("\n"), Just("\r\n"), Just("\n\n"), Just("\r"), Just("")];
    let lines = proptest::collection::vec((line, ends, any::<bool>()), 0..40);
    lines.prop_map(|lines| {
        let mut text = Vec::new();
        for (line, end, broken) in lines {
            text.extend_from_slice(line.as_bytes());
            if broken && line.len() == 12 {
                text.push(0xff);
            }
            text.extend_from_slice(end.as_bytes());
        }
        text
    })
}

fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..30),
        Just(vec![7; 500]),
        // The bytes at which RecordIO cuts a record.
        Just([&[0; 4][..], &0xced7_230a_u32.to_le_bytes(), &[1; 4]].concat()),
    ];
    proptest::collection::vec(bytes, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(48) as u32, ..ProptestConfig::default() })]

    #[test]
    fn text_that_arrives_gives_what_the_whole_gives(
        text in text(),
        pieces in proptest::collection::vec(1..200usize, 1..5),
    ) {
        compare(Lines::new, &text, &pieces);
        compare(|| Lines::new().max_line(20).bytes(), &text, &pieces);
        compare(JsonLines::values, &text, &pieces);
        compare(Csv::rows, &text, &pieces);
        compare(|| Csv::<Vec<String>>::new().no_header().comment(b'#').max_row(40), &text, &pieces);
    }

    #[test]
    fn records_that_arrive_are_what_the_whole_has(
        records in records(),
        pieces in proptest::collection::vec(1..200usize, 1..5),
        flip in any::<Option<u16>>(),
    ) {
        let mut tf = TfRecordWriter::new(Vec::new());
        let mut io = RecordIoWriter::new(Vec::new());
        let mut msgpack = Vec::new();
        for record in &records {
            tf.write(record).unwrap();
            io.write(record).unwrap();
            rmpv::encode::write_value(&mut msgpack, &rmpv::Value::Binary(record.clone())).unwrap();
        }
        let flipped = |mut data: Vec<u8>| {
            if let (Some(flip), false) = (flip, data.is_empty()) {
                let at = usize::from(flip) % data.len();
                data[at] ^= 1 << (flip % 8);
            }
            data
        };
        let (tf, io, msgpack) = (flipped(tf.finish().unwrap().0), flipped(io.finish().unwrap().0), flipped(msgpack));
        compare(TfRecords::new, &tf, &pieces);
        compare(|| TfRecords::new().max_record(100), &tf, &pieces);
        compare(RecordIo::new, &io, &pieces);
        compare(|| RecordIo::new().max_record(100), &io, &pieces);
        compare(MsgPack::values, &msgpack, &pieces);
        compare(|| MsgPack::values().max_value(100), &msgpack, &pieces);
    }
}

#[test]
fn both_doors_give_the_same_items_with_the_same_origins() {
    let text: Vec<u8> = (0..9000)
        .flat_map(|n| format!("{{\"n\": {n}}}\n\n").into_bytes())
        .collect();
    let mut bad = text.clone();
    bad[40_000] = b'}';
    bad[77_000] = 0xff;
    let files = [
        ("a", text.clone()),
        ("empty", Vec::new()),
        ("b", bad),
        ("c.gz", gzip(&text)),
        ("d.gz", text),
    ];
    for piece in some_of([1000, 70_000, 1 << 20]) {
        check_doors(JsonLines::values(), &files, piece);
        check_doors(Lines::new().bytes(), &files, piece);
        check_doors(Csv::<Vec<String>>::new(), &files, piece);
    }
}

fn jsonl(lines: u32) -> Vec<u8> {
    (0..lines)
        .flat_map(|n| format!("{{\"n\": {n}, \"pad\": \"{}\"}}\n", "x".repeat(90)).into_bytes())
        .collect()
}

fn ranges(store: &Scripted, from: usize) -> Vec<Option<Range<u64>>> {
    store.requests()[from..]
        .iter()
        .map(|request| request.get.range.clone())
        .collect()
}

/// Requested ranges of a file, in order.
type Ranges = Vec<Option<Range<u64>>>;

/// Stops an epoch after some items, and resumes it; returns the items before and after, and the
/// requests after the stop.
fn stopped<F: Format + Clone>(
    store: &Scripted,
    format: F,
    taken: usize,
) -> (Vec<F::Item>, Vec<F::Item>, Ranges) {
    let graph = || store.clone().files(["a", "b"]).stream_as(format.clone(), 0);
    let loader = || {
        DataLoader::builder(graph())
            .workers(2)
            .resumable()
            .build()
            .unwrap()
    };
    let first = loader();
    let mut epoch = first.epoch(0).blocking();
    let before: Vec<_> = epoch.by_ref().take(taken).map(Result::unwrap).collect();
    let state = epoch.checkpoint().unwrap();
    drop(epoch);
    drop(first);
    let asked = store.requests().len();
    let after: Vec<_> = loader()
        .resume(&state)
        .unwrap()
        .blocking()
        .map(Result::unwrap)
        .collect();
    (before, after, ranges(store, asked))
}

#[test]
fn a_stopped_epoch_asks_for_the_rest_of_the_file_by_a_range() {
    let data = jsonl(30_000);
    let store = Scripted::from_iter([("a", data.clone()), ("b", jsonl(10))]);
    // Pieces of another size after the stop: blocks do not depend on them.
    store.script(
        "a",
        [1000, 300_000, 70_001, 9, 512 << 10]
            .map(|piece| Reaction::default().pieces(piece, std::time::Duration::ZERO)),
    );
    let all: Vec<_> = read_all(JsonLines::values(), data.clone())
        .into_iter()
        .chain(read_all(JsonLines::values(), jsonl(10)))
        .map(Result::unwrap)
        .collect();
    let mut later = 0;
    for taken in [1, 5000, 25_000, 30_000, 30_005] {
        let (before, after, asked) = stopped(&store, JsonLines::values(), taken);
        assert_eq!([before, after].concat(), all, "stopped after {taken}");
        let mut ranges = asked.iter();
        // The requests for the sizes of files, if these were not known.
        let begins: Vec<u64> = ranges.by_ref().flatten().map(|range| range.start).collect();
        assert!(begins.len() <= 1, "{asked:?}");
        for begin in begins {
            assert!(
                begin == 0 || data[begin as usize - 1] == b'\n',
                "{begin} is where a line begins"
            );
            // Shortly before the wanted position.
            let wanted = (taken * data.len() / 30_000) as u64;
            assert!(begin <= wanted, "{begin} after {wanted}");
            later = later.max(begin);
        }
    }
    assert!(
        later > 1 << 20,
        "no epoch went on in the middle of the file: {later}"
    );
}

#[test]
fn a_stopped_epoch_reads_the_header_of_a_table_again() {
    let rows: String = (0..30_000)
        .map(|n| format!("{n},\"two\nlines {}\"\n", "x".repeat(40)))
        .collect();
    let store = Scripted::from_iter([
        ("a", format!("n,text\n{rows}")),
        ("b", "n,text\n1,x\n".to_owned()),
    ]);
    for format in [Csv::rows(), Csv::rows().no_header()] {
        let all = seen(
            store
                .clone()
                .files(["a", "b"])
                .load_files()
                .read_as(format.clone()),
            0,
        )
        .len();
        let (before, after, asked) = stopped(&store, format, 20_000);
        assert_eq!(before.len() + after.len(), all);
        let head = asked
            .iter()
            .flatten()
            .find(|range| range.end < 100)
            .expect("the header is asked for");
        assert_eq!(head.start, 0);
        assert!(
            asked
                .iter()
                .flatten()
                .any(|range| range.start > 1 << 19 && range.end == u64::MAX),
            "{asked:?}"
        );
    }
}

#[test]
fn a_compressed_file_is_read_from_its_beginning_again() {
    let data = jsonl(30_000);
    let store = Scripted::from_iter([("a", gzip(&data)), ("b", jsonl(10))]);
    let all: Vec<_> = read_all(JsonLines::values(), [data, jsonl(10)].concat());
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    for taken in [1, 20_000] {
        let (before, after, asked) = stopped(&store, JsonLines::values(), taken);
        assert_eq!([before, after].concat(), all, "stopped after {taken}");
        assert!(asked.iter().all(Option::is_none), "{asked:?}");
    }
}

#[test]
fn a_file_that_became_another_while_the_epoch_was_stopped_is_an_error() {
    let store = Scripted::from_iter([("a", jsonl(30_000)), ("b", jsonl(10))]);
    let graph = || store.clone().files(["a", "b"]).stream_as(Lines::new(), 0);
    let loader = DataLoader::builder(graph())
        .workers(2)
        .resumable()
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    assert_eq!(
        epoch.by_ref().take(25_000).map(Result::unwrap).count(),
        25_000
    );
    let state = epoch.checkpoint().unwrap();
    drop(epoch);
    store.put("a", jsonl(30_001));
    let error = loader
        .resume(&state)
        .unwrap()
        .blocking()
        .find_map(Result::err)
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let said = [
        "cannot go on in this file: changed",
        "the data is not what it was",
    ];
    assert!(
        said.iter().any(|said| error.to_string().contains(said)),
        "{error}"
    );
}

#[test]
fn a_bad_record_in_the_middle_tells_its_place_and_the_others_follow() {
    let mut data = jsonl(30_000);
    let at = data.len() / 2;
    let line = data[..at].iter().filter(|&&byte| byte == b'\n').count();
    data[at] = b'\n';
    let store = InMemory::from_iter([("a", data), ("b", jsonl(5))]);
    let graph = store.files(["a", "b"]).stream_as(JsonLines::values(), 0);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .on_error(OnError::skip(10))
        .build()
        .unwrap();
    assert_eq!(
        loader.epoch(0).blocking().map(Result::unwrap).count(),
        30_000 - 1 + 5
    );
    let said: Vec<String> = loader
        .stats()
        .unwrap()
        .skipped_items
        .into_iter()
        .map(|skipped| skipped.error)
        .collect();
    assert_eq!(said.len(), 2);
    let (number, next) = (line + 1, line + 2);
    assert!(
        said[0].starts_with(&format!(
            "json_lines: a/{line}: corrupt: line {number}, column"
        )),
        "{said:?}"
    );
    assert!(
        said[1].starts_with(&format!(
            "json_lines: a/{number}: corrupt: line {next}, column"
        )),
        "{said:?}"
    );
}

#[test]
fn a_record_above_the_bound_is_not_kept_and_others_follow() {
    let long = "x".repeat(3 << 20);
    let text = format!("one\n{long}\r\ntwo\n{long}");
    let read = read_arriving(Lines::new().max_line(100), text.clone(), [100_000]);
    let said: Vec<String> = read
        .iter()
        .map(|line| line.as_ref().map_or_else(unnamed, Clone::clone))
        .collect();
    let error = |line, at| {
        format!(
            "lines: 0:0/{}: limit reached: line {line} at byte {at} has {} bytes, and 100 are allowed (`max_line`)",
            line - 1,
            long.len()
        )
    };
    assert_eq!(
        said,
        [
            "one".to_owned(),
            error(2, 4),
            "two".to_owned(),
            error(4, 4 + long.len() + 2 + 4)
        ]
    );

    let mut writer = TfRecordWriter::new(Vec::new());
    for record in [&b"one"[..], long.as_bytes(), b"two"] {
        writer.write(record).unwrap();
    }
    let (data, _) = writer.finish().unwrap();
    let read = read_arriving(TfRecords::new().max_record(100), data.clone(), [100_000]);
    assert_eq!(
        read.iter()
            .map(|r| r.as_ref().ok().map(|r| &r[..]))
            .collect::<Vec<_>>(),
        [Some(&b"one"[..]), None, Some(b"two")]
    );
    let said = read[1].as_ref().unwrap_err().to_string();
    assert!(
        said.contains("record 1 at byte 19: it has 3145728 bytes") && said.contains("max_record"),
        "{said}"
    );
    // A missing end is detected within skipped bytes, too.
    let cut = read_arriving(
        TfRecords::new().max_record(100),
        data[..1 << 20].to_vec(),
        [100_000],
    );
    let said = cut.last().unwrap().as_ref().unwrap_err().to_string();
    assert!(
        said.contains("truncated: record 1 at byte 19: its data has 1048545 of 3145728 bytes"),
        "{said}"
    );
}

#[test]
fn what_is_held_of_a_file_that_is_cut_is_in_the_plan() {
    let graph = Scripted::from_iter([("a", jsonl(5))])
        .files(["a"])
        .stream_as(Lines::new(), 0);
    let plan = DataLoader::builder(graph)
        .workers(1)
        .build()
        .unwrap()
        .explain();
    assert!(
        plan.contains("pipes hold at most 0 items and about 8 MiB besides"),
        "{plan}"
    );
}

#[test]
fn a_body_that_is_cut_gives_the_records_before_and_its_error() {
    let data = jsonl(20_000);
    for reaction in [
        Reaction::default().cut(1_000_000),
        Reaction::default().short(1_000_000),
    ] {
        let store = Scripted::from_iter([("a", data.clone()), ("b", jsonl(5))]);
        // The first request only returns the size.
        store.script("a", [Reaction::default(), reaction]);
        let graph = store.files(["a", "b"]).stream_as(Lines::new(), 0);
        let loader = DataLoader::builder(graph)
            .on_error(OnError::skip(10))
            .build()
            .unwrap();
        let whole = data[..1_000_000]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        assert_eq!(
            loader.epoch(0).blocking().map(Result::unwrap).count(),
            whole + 5
        );
        let said = &loader.stats().unwrap().skipped_items[0].error;
        assert!(
            said.starts_with("lines: a: truncated: scripted:///a"),
            "{said}"
        );
    }
}

#[test]
fn a_cut_body_goes_on_behind_the_wrapper_that_tries_again() {
    let data = jsonl(20_000);
    let store = Scripted::from_iter([("a", data.clone())]);
    store.script(
        "a",
        [Reaction::default(), Reaction::default().cut(1_000_000)],
    );
    let lines = store
        .clone()
        .retry(Default::default())
        .files(["a"])
        .stream_as(Lines::new(), 0);
    assert_eq!(
        DataLoader::builder(lines)
            .build()
            .unwrap()
            .epoch(0)
            .blocking()
            .map(Result::unwrap)
            .count(),
        20_000
    );
    assert_eq!(ranges(&store, 2), [Some(1_000_000..data.len() as u64)]);
}

#[test]
fn a_local_file_that_shrinks_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.txt");
    std::fs::write(&path, jsonl(200_000)).unwrap();
    let graph = Graph::from_vec(vec![FileRef::new(&path)]).stream_as(Lines::new(), 0);
    let loader = DataLoader::builder(graph).workers(0).build().unwrap();
    let mut epoch = loader.epoch(0).blocking();
    assert!(epoch.next().unwrap().is_ok());
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(5 << 20)
        .unwrap();
    let error = epoch.find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn a_local_file_is_gone_on_with_where_it_was_stopped() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.jsonl"), jsonl(90_000)).unwrap();
    let graph = || crate::list_files(dir.path(), "*.jsonl").read_as(Lines::new());
    let loader = DataLoader::builder(graph())
        .workers(2)
        .resumable()
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    let before: Vec<String> = epoch.by_ref().take(80_000).map(Result::unwrap).collect();
    let rest = loader
        .resume(&epoch.checkpoint().unwrap())
        .unwrap()
        .blocking();
    let after: Vec<String> = rest.map(Result::unwrap).collect();
    let all = String::from_utf8(jsonl(90_000)).unwrap();
    assert_eq!([before, after].concat(), all.lines().collect::<Vec<_>>());
}

#[test]
fn small_files_are_read_whole_with_one_request_each() {
    let store = Scripted::from_iter([("a", "1\n2\n"), ("b", "3")]);
    let lines = store
        .clone()
        .files(["a", "b"])
        .read_as(Lines::new().bytes());
    assert_eq!(lines.collect().unwrap(), ["1", "2", "3"]);
    assert_eq!(ranges(&store, 0), [None, None]);
    // A format that cannot be cut is read whole, whatever the size.
    let arrays = store
        .clone()
        .files(["a"])
        .stream_as(crate::formats::Npy::new(), 0);
    assert_eq!(arrays.collect().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn records_are_slices_of_what_arrives() {
    // Two pieces of memory, of which lines are slices. The block that spans both is joined.
    let line = [&[b'x'; 1023][..], b"\n"].concat();
    let (first, second) = (
        Bytes::from(line.repeat(700)),
        Bytes::from(line.repeat(1000)),
    );
    let mut splitter = ByteLines::splitter(&Lines::new().bytes()).unwrap();
    splitter.split.push(first.clone());
    let mut lines: Vec<Bytes> = Vec::new();
    let mut pieces = vec![second.clone()];
    loop {
        use crate::formats::framing::Step;
        match splitter.split.step() {
            Step::End => break,
            Step::More => match pieces.pop() {
                Some(piece) => splitter.split.push(piece),
                None => splitter.split.end(),
            },
            Step::Block(block) => {
                let entries = (block.open)(&datapipes::Context::default()).unwrap();
                lines.extend(entries.map(|entry| match entry {
                    crate::formats::FileEntry::Item(_, line) => line,
                    other => panic!("{other:?}"),
                }));
            }
        }
    }
    assert_eq!(lines.len(), 1700);
    let is_slice =
        |line: usize, piece: &Bytes, at: usize| lines[line].as_ptr() == piece[at << 10..].as_ptr();
    assert!(is_slice(0, &first, 0) && is_slice(511, &first, 511));
    assert!(!is_slice(512, &first, 512) && !is_slice(767, &second, 67));
    assert!(is_slice(768, &second, 68) && is_slice(1500, &second, 800));
}

#[test]
fn split_records_keeps_the_contract_of_pipes() {
    use crate::stores::load::{Loaded, OpenFiles};
    use datapipes::Pipe;
    let store: Arc<dyn crate::stores::Store> =
        Arc::new(InMemory::from_iter([("a", jsonl(3000)), ("b", jsonl(3))]));
    let files = ["a", "b"].map(|key| FileRef::stored(store.clone(), key, None));
    datapipes::testing::check_pipe(&Lengths(OpenFiles::up_to(100)), files.to_vec());

    /// The compared properties of an opened file.
    struct Lengths(OpenFiles);
    impl Pipe<FileRef> for Lengths {
        type Out = Option<u64>;
        fn apply(&self, input: Items<FileRef>, cx: &datapipes::Context) -> Items<Option<u64>> {
            let size = |loaded: Loaded| match loaded {
                Loaded::Whole(file) => Some(file.data.len() as u64),
                Loaded::Large(file) => file.size,
            };
            self.0
                .apply(input, cx)
                .each(cx, move |item| Some(Ok(item.map(size))))
        }
        fn hints(&self) -> datapipes::Hints {
            self.0.hints()
        }
    }
}

#[test]
fn what_a_file_inflates_to_is_limited_for_the_loader() {
    for data in &packed(&vec![0; 3 << 20])[1..] {
        let files = || Graph::from_vec(vec![File::new("zeros", data.clone())]);
        let pipe = || Decompress::new().max_expansion(1 << 30, 1 << 30);
        let said = refused(files().pipe(pipe()), 2 << 20);
        let expected = format!(
            "decompress: 0:0: limit reached: {} bytes inflate to more than 2097152, which the loader allows (`max_inflated`)",
            data.len()
        );
        assert_eq!(said, expected);
        assert_eq!(refused(files().pipe(pipe()), 3 << 20), "");
        // For arriving files, too.
        let store = InMemory::from_iter([("zeros", data.clone())]);
        let lines = Lines::new().max_expansion(1 << 30, 1 << 30).bytes();
        let lines = store
            .files(["zeros"])
            .stream_as(lines, 0)
            .map(|line| File::new("line", line));
        assert!(refused(lines, 2 << 20).ends_with("(`max_inflated`)"));
    }
}

#[test]
fn a_file_that_is_inflated_whole_has_a_limit_by_default() {
    // More than a gigabyte, in members of 8 MiB.
    let member = gzip(&vec![0; 8 << 20]);
    let files = Graph::from_vec(vec![File::new("bomb.gz", member.repeat(3))]);
    let pipe = Decompress::new().max_expansion(20 << 20, 2000);
    let said = files.pipe(pipe).collect().unwrap_err().to_string();
    assert!(
        said.contains("inflate to more than 20971520") && said.contains("(`max_expansion`)"),
        "{said}"
    );
    assert!(format!("{:?}", Decompress::new()).contains("bytes: 1073741824"));
    // As records the file may have any length.
    assert!(format!("{:?}", Lines::new()).contains("bytes: 18446744073709551615"));
}

/// Returns a stream of Arrow IPC: batches of numbers, and dictionaries that change within it.
fn arrow(batches: usize) -> Vec<u8> {
    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch};
    let mut writer = None;
    for batch in 0..batches {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(
            (0..50).map(|n| (batch * 50 + n) as i64),
        ));
        let words: DictionaryArray<Int32Type> = (0..50)
            .map(|n| ["one", "two", ["x", "yy", "zzz"][batch / 4 % 3]][n % 3])
            .collect();
        let batch =
            RecordBatch::try_from_iter([("n", numbers), ("word", Arc::new(words) as ArrayRef)])
                .unwrap();
        let writer = writer.get_or_insert_with(|| {
            arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap()
        });
        writer.write(&batch).unwrap();
    }
    let mut writer = writer.unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn arrow_streams_that_arrive_are_what_the_whole_has() {
    let data = arrow(20);
    for pieces in [&[1000][..], &[7, 4000], &[100_000]] {
        compare(ArrowIpc::new, &data, pieces);
        compare(
            || ArrowRows::new(ArrowIpc::new().columns(["word"])),
            &data,
            pieces,
        );
        compare(|| ArrowIpc::new().max_batch(600), &data, pieces);
        compare(ArrowIpc::new, &[&data[..], b"more"].concat(), pieces);
    }
    let mut bad = data.clone();
    bad[data.len() / 2] ^= 0x55;
    compare(ArrowIpc::new, &bad, &[300]);
    check_doors(
        ArrowRows::new(ArrowIpc::new()),
        &[("a", data.clone()), ("b", arrow(1))],
        5000,
    );
}

#[test]
fn a_stopped_epoch_reads_schema_and_dictionaries_again() {
    let store = Scripted::from_iter([("a", arrow(400)), ("b", arrow(1))]);
    let all = seen(
        store
            .clone()
            .files(["a", "b"])
            .load_files()
            .read_as(ArrowRows::new(ArrowIpc::new())),
        0,
    );
    let (before, after, asked) = stopped(&store, ArrowRows::new(ArrowIpc::new()), 15_000);
    let rows: Vec<_> = [before, after].concat();
    assert_eq!(rows.len(), all.len());
    for (row, seen) in rows.iter().zip(&all) {
        assert!(seen.ends_with(&format!("{row:?}")), "{seen}");
    }
    assert!(
        asked
            .iter()
            .flatten()
            .any(|range| range.start == 0 && range.end < 2000),
        "{asked:?}"
    );
    assert!(
        asked
            .iter()
            .flatten()
            .any(|range| range.start > 100_000 && range.end == u64::MAX),
        "{asked:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A resumed epoch counts blocks, so they have to be the same.
    #[test]
    fn blocks_do_not_depend_on_the_pieces_that_arrive(
        lens in proptest::collection::vec(prop_oneof![0..200usize, 0..90_000usize], 1..40),
        pieces in proptest::collection::vec(1..400_000usize, 1..6),
        others in proptest::collection::vec(1..400_000usize, 1..6),
    ) {
        let text: Vec<u8> = lens.iter().flat_map(|len| [&vec![b'x'; *len][..], b"\n"].concat()).collect();
        let cut = |pieces: &[usize]| {
            use crate::formats::framing::Step;
            let mut splitter = Lines::new().max_line(60_000).splitter().unwrap();
            let (mut rest, mut sizes) = (Bytes::from(text.clone()), pieces.iter().cycle());
            let mut blocks = Vec::new();
            loop {
                match splitter.split.step() {
                    Step::End => return blocks,
                    Step::Block(block) => blocks.push((block.first, block.weight)),
                    Step::More if rest.is_empty() => splitter.split.end(),
                    Step::More => splitter.split.push(rest.split_to(rest.len().min(*sizes.next().unwrap()))),
                }
            }
        };
        prop_assert_eq!(cut(&pieces), cut(&others));
    }
}

/// Cuts this many bytes, however many there are.
#[derive(Clone)]
struct Careless(usize);

impl Framing for Careless {
    type Item = Bytes;

    fn frame(&mut self, _: &[u8], _: RecordPosition, _: bool) -> Result<Frame> {
        Ok(Frame::cut(self.0, FrameKind::Blank))
    }
    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<Bytes> {
        crate::formats::records(self, data, at, |_, data, range, _| Ok(data.slice(range)))
    }
}

impl Format for Careless {
    type Item = Bytes;

    fn splitter(&self) -> Option<RecordSplitter<Bytes>> {
        Some(RecordSplitter::new(self.clone()))
    }
}

#[test]
fn a_format_that_cuts_nothing_or_too_much_is_an_error_and_no_standstill() {
    let store = InMemory::from_iter([("f", "abc")]);
    for len in [0, 4] {
        let whole = store.clone().files(["f"]).read_as(Careless(len));
        let arriving = store.clone().files(["f"]).stream_as(Careless(len), 0);
        for graph in [whole, arriving] {
            let error = graph.collect().unwrap_err().to_string();
            let what = format!("wrong configuration: the format cuts {len} of 3 bytes, at byte 0");
            assert!(error.ends_with(&what), "{error}");
        }
    }
}
