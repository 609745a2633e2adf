//! Tests of token stores: files of the original tools, and files that lie.

use datapipes::{Collate, DataLoader, Graph, Result, Uneven};
use proptest::prelude::*;

use super::*;
use crate::{Pack, PackGraphExt, Packed, Tokenizer};
use datapipes::ErrorKind;

const BIN: &[u8] = include_bytes!("../../tests/data/megatron.bin");
const IDX: &[u8] = include_bytes!("../../tests/data/megatron.idx");

/// The documents in the files of `tests/data`.
fn documents() -> Vec<Vec<u32>> {
    vec![
        vec![5, 6, 7],
        vec![],
        vec![65_535, 1],
        (100..120).collect(),
        vec![9],
    ]
}

fn megatron(bin: &[u8], idx: &[u8]) -> Result<TokenStore> {
    TokenStore::from_megatron(
        "a.bin",
        Bytes::copy_from_slice(bin),
        "a.idx",
        Bytes::copy_from_slice(idx),
    )
}

fn flat(ids: &[u16], ends: &[u64]) -> Result<TokenStore> {
    let tokens: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let ends: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
    TokenStore::from_flat(
        "a.ds",
        tokens.into(),
        TokenWidth::U16,
        Some(("a.index".into(), ends.into())),
    )
}

fn all(store: &TokenStore) -> Vec<Vec<u32>> {
    (0..store.document_count())
        .map(|number| store.document(number).unwrap())
        .collect()
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

#[test]
fn files_of_the_original_tools_are_read() {
    let store = TokenStore::megatron(data("megatron")).unwrap();
    assert_eq!((store.width(), store.len()), (TokenWidth::U16, 26));
    assert_eq!(all(&store), documents());
    store.check().unwrap();
    // Two sequences in the third document.
    let store = TokenStore::megatron(data("megatron-i32")).unwrap();
    assert_eq!(
        (store.width(), store.document_count()),
        (TokenWidth::I32, 3)
    );
    assert_eq!(all(&store), [vec![70_000, 1], vec![2], vec![3, 4, 5, 6]]);
    for (name, width) in [
        ("datatrove.ds", TokenWidth::U16),
        ("datatrove-u32.ds", TokenWidth::U32),
    ] {
        let store = TokenStore::datatrove(data(name)).unwrap();
        assert_eq!(store.width(), width);
        assert_eq!(all(&store), documents());
        store.check().unwrap();
    }
}

#[test]
fn files_are_written_as_the_original_tools_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("megatron");
    let mut writer = TokenWriter::megatron(&path, TokenWidth::U16).unwrap();
    documents()
        .iter()
        .for_each(|document| writer.push(document).unwrap());
    assert_eq!(writer.len(), 26);
    assert_eq!(
        TokenStore::megatron(&path).unwrap_err().kind(),
        ErrorKind::NotFound,
        "it is not finished"
    );
    writer.finish().unwrap();
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert_eq!(
        (read("megatron.bin"), read("megatron.idx")),
        (BIN.to_vec(), IDX.to_vec())
    );

    for (name, width) in [
        ("datatrove.ds", TokenWidth::U16),
        ("datatrove-u32.ds", TokenWidth::U32),
    ] {
        let mut writer = TokenWriter::datatrove(dir.path().join(name), width, "gpt2").unwrap();
        documents()
            .iter()
            .for_each(|document| writer.push(document).unwrap());
        writer.finish().unwrap();
        for end in ["", ".index"] {
            let name = format!("{name}{end}");
            assert_eq!(read(&name), std::fs::read(data(&name)).unwrap(), "{name}");
        }
        assert_eq!(
            all(&TokenStore::datatrove(dir.path().join(name)).unwrap()),
            documents()
        );
    }
    // With `.metadata` this is the longest name.
    let longest = dir.path().join("x".repeat(246));
    let writer = TokenWriter::datatrove(&longest, TokenWidth::U16, "gpt2").unwrap();
    writer.finish().unwrap();
    assert!(TokenStore::datatrove(&longest).unwrap().is_empty());
}

#[test]
fn a_writer_goes_on_after_the_documents_that_were_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ds) = (dir.path().join("m"), dir.path().join("d.ds"));
    let width = TokenWidth::U16;
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    for synced in 0..=5 {
        let begun = [
            TokenWriter::megatron(&path, width).unwrap(),
            TokenWriter::datatrove(&ds, width, "gpt2").unwrap(),
        ];
        for mut writer in begun {
            for document in &documents()[..synced] {
                writer.push(document).unwrap();
            }
            assert_eq!(writer.sync().unwrap(), synced as u64);
            // Longer than the rest, so that it has to be cut off.
            writer.push(&[8; 100]).unwrap();
        }
        let resumed = [
            TokenWriter::resume_megatron(&path, width, synced as u64).unwrap(),
            TokenWriter::resume_datatrove(&ds, width, "gpt2", synced as u64).unwrap(),
        ];
        for mut writer in resumed {
            let before = documents()[..synced].concat().len() as u64;
            assert_eq!(writer.len(), before);
            for document in &documents()[synced..] {
                writer.push(document).unwrap();
            }
            writer.finish().unwrap();
        }
        assert_eq!((read("m.bin"), read("m.idx")), (BIN.to_vec(), IDX.to_vec()));
        for end in ["", ".index"] {
            let expected = std::fs::read(data(&format!("datatrove.ds{end}"))).unwrap();
            assert_eq!(read(&format!("d.ds{end}")), expected);
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);

    let resume = |documents| TokenWriter::resume_megatron(&path, width, documents).unwrap_err();
    // A finished store is left as it is.
    assert_eq!(resume(1).kind(), ErrorKind::Config);
    let again = TokenWriter::resume_datatrove(&ds, width, "gpt2", 1);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Config);
    assert_eq!((read("m.bin"), read("m.idx")), (BIN.to_vec(), IDX.to_vec()));
    TokenStore::datatrove(&ds).unwrap();
    let mut writer = TokenWriter::megatron(&path, width).unwrap();
    writer.push(&[1, 2]).unwrap();
    drop(writer);
    for documents in [2, u64::MAX] {
        let error = resume(documents);
        let said = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{said}");
        assert!(said.contains("m.bin.ends"), "{said}");
    }
    std::fs::write(dir.path().join("m.bin"), [1]).unwrap();
    let error = resume(1);
    assert_eq!(error.kind(), ErrorKind::Truncated);
    let said = error.to_string();
    assert!(
        said.contains("m.bin: 1 bytes, where 4 were written"),
        "{said}"
    );
}

#[test]
fn every_width_holds_its_ids_and_refuses_larger_ones() {
    let dir = tempfile::tempdir().unwrap();
    for width in [
        TokenWidth::U8,
        TokenWidth::U16,
        TokenWidth::I32,
        TokenWidth::I64,
    ] {
        let path = dir.path().join(format!("{width:?}"));
        let mut writer = TokenWriter::megatron(&path, width).unwrap();
        writer.push(&[0, width.max_id()]).unwrap();
        if width.max_id() < u32::MAX {
            let error = writer.push(&[1, width.max_id() + 1]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Limit);
            let said = error.to_string();
            assert!(
                said.contains("document 1, token 1: id ") && said.contains(".bin"),
                "{said}"
            );
        }
        writer.finish().unwrap();
        assert_eq!(
            all(&TokenStore::megatron(&path).unwrap()),
            [vec![0, width.max_id()]]
        );
    }
    let error = TokenWriter::megatron(dir.path().join("a"), TokenWidth::U32).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let error = TokenWriter::datatrove(dir.path().join("a"), TokenWidth::U8, "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

/// Returns a copy with other bytes at some place.
fn patched(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// A window at the end of the store has no label to read after its last token.
#[test]
fn a_document_longer_than_the_store_is_an_error_of_its_window() {
    let at = 34 + 4 * 3;
    let store = megatron(BIN, &patched(IDX, at, &[IDX[at] + 2])).unwrap();
    let windows = store.windows(13).unwrap().fetch().collect().unwrap();
    let error = windows.last().unwrap().row().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn an_index_that_lies_is_named_with_its_byte() {
    let said = |result: Result<TokenStore>, kind: ErrorKind, said: &str| {
        let error = result.and_then(|store| store.check()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(said), "{error}, not {said}");
    };
    let idx = |at, new: &[u8]| megatron(BIN, &patched(IDX, at, new));
    said(
        megatron(BIN, &IDX[..20]),
        ErrorKind::Truncated,
        "a.idx: byte 20: a header of 34 bytes",
    );
    said(
        idx(0, b"x"),
        ErrorKind::Corrupt,
        "a.idx: byte 0: no index of Megatron's",
    );
    said(
        idx(9, &[2]),
        ErrorKind::Unsupported,
        "byte 9: version 2, not 1",
    );
    said(
        idx(17, &[7]),
        ErrorKind::Unsupported,
        "byte 17: numbers of code 7",
    );
    said(
        idx(18, &u64::MAX.to_le_bytes()),
        ErrorKind::Truncated,
        "byte 18: 18446744073709551615 sequences",
    );
    said(
        megatron(BIN, &IDX[..IDX.len() - 1]),
        ErrorKind::Truncated,
        "5 sequences and 6 documents in a file",
    );
    said(
        megatron(BIN, &[IDX, &[0; 3]].concat()),
        ErrorKind::Corrupt,
        "3 bytes more than the counts say",
    );
    megatron(BIN, &[IDX, &[0; 5]].concat())
        .unwrap()
        .check()
        .unwrap(); // modes
    said(
        megatron(&BIN[..8], IDX),
        ErrorKind::Truncated,
        "a.bin: 4 tokens, and the last document in a.idx ends at 26",
    );
    said(
        megatron(&BIN[..9], IDX),
        ErrorKind::Corrupt,
        "a.bin: 9 bytes, no multiple of the 2",
    );
    said(
        idx(34, &(-1i32).to_le_bytes()),
        ErrorKind::Corrupt,
        "byte 34: a negative number, -1",
    );
    said(
        idx(34, &99i32.to_le_bytes()),
        ErrorKind::Truncated,
        "some are at 0 to 99",
    );
    said(
        idx(54, &1i64.to_le_bytes()),
        ErrorKind::Corrupt,
        "byte 54: sequence 0 begins at byte 1, within a token",
    );
    said(
        idx(54, &i64::MAX.to_le_bytes()),
        ErrorKind::Corrupt,
        "within a token",
    );
    said(
        idx(62, &(i64::MAX - 1).to_le_bytes()),
        ErrorKind::Truncated,
        "some are at",
    );
    said(
        idx(94 + 8, &9i64.to_le_bytes()),
        ErrorKind::Corrupt,
        "byte 102: document 0 has sequences 0 to 9 of 5",
    );

    said(
        flat(&[1, 2, 3], &[2, 1]),
        ErrorKind::Corrupt,
        "a.index: byte 8: document 1 ends at token 1, and begins at 2",
    );
    said(
        flat(&[1, 2, 3], &[2, 4]),
        ErrorKind::Truncated,
        "a.ds: 3 tokens, and the last document in a.index ends at 4",
    );
    said(
        flat(&[1], &[u64::MAX]),
        ErrorKind::Corrupt,
        "a.index: byte 0: a negative number",
    );
    let ends = Some(("a.index".to_owned(), Bytes::from(vec![0; 9])));
    let odd = TokenStore::from_flat("a.ds", Bytes::new(), TokenWidth::U16, ends);
    said(
        odd,
        ErrorKind::Corrupt,
        "a.index: 9 bytes, no multiple of the 8",
    );
}

#[test]
fn an_id_outside_the_vocabulary_is_named() {
    let store = TokenStore::megatron(data("megatron")).unwrap().vocab(200);
    let error = store.document(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error
            .to_string()
            .ends_with("megatron.bin: byte 6: id 65535, where ids are 0 to 199"),
        "{error}"
    );
    let window = |number| {
        store
            .windows(4)
            .unwrap()
            .subset(number..number + 1)
            .fetch()
            .collect()
            .unwrap()
            .remove(0)
    };
    assert!(
        window(0)
            .ids()
            .unwrap_err()
            .to_string()
            .contains("byte 6: id 65535")
    );
    assert!(
        window(0)
            .row()
            .unwrap_err()
            .to_string()
            .contains("byte 6: id 65535")
    );
    window(2).row().unwrap();
    let error = store.window_batch(4, &[2, 0]).unwrap_err().to_string();
    assert!(error.contains("byte 6: id 65535"), "{error}");
    store.window_batch(4, &[2, 3]).unwrap();
    let negative = TokenStore::from_flat(
        "a",
        (-7i32).to_le_bytes().to_vec().into(),
        TokenWidth::I32,
        None,
    );
    let error = negative.unwrap().check().unwrap_err().to_string();
    assert!(
        error.ends_with("a: byte 0: id -7, where ids are 0 to 4294967295"),
        "{error}"
    );
    let large = TokenStore::from_flat(
        "a",
        (1i64 << 32).to_le_bytes().to_vec().into(),
        TokenWidth::I64,
        None,
    );
    assert!(
        large
            .unwrap()
            .check()
            .unwrap_err()
            .to_string()
            .contains("id 4294967296")
    );
}

#[test]
fn metadata_that_contradicts_the_tokens_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.ds");
    for end in ["", ".index"] {
        std::fs::copy(data(&format!("datatrove.ds{end}")), with(&path, end)).unwrap();
    }
    TokenStore::datatrove(&path).unwrap();
    for (metadata, said) in [
        ("gpt2|2\n25\n25", "it says that there are 25 tokens"),
        ("gpt2|4\n26\n26", "ends at 26"),
        ("gpt2", "no `tokenizer|size`"),
        ("gpt2|2\nmany", "no `tokenizer|size`"),
    ] {
        std::fs::write(with(&path, ".metadata"), metadata).unwrap();
        let error = TokenStore::datatrove(&path).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("a.ds"), "{error}");
    }
    assert_eq!(
        TokenStore::datatrove(dir.path().join("b.ds"))
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
    assert!(
        TokenStore::flat(dir.path(), TokenWidth::U16, None)
            .unwrap_err()
            .to_string()
            .contains("regular file")
    );
}

#[test]
fn windows_share_the_file_until_they_are_batched() {
    let store = TokenStore::megatron(data("megatron")).unwrap();
    let windows = store.windows(8).unwrap();
    assert_eq!(windows.len(), 3);
    let batch = windows
        .clone()
        .fetch()
        .try_map(|window| window.ids())
        .batch(3)
        .collate()
        .collect()
        .unwrap()
        .remove(0);
    assert_eq!((batch.dtype(), batch.shape()), (DType::U16, &[3, 8][..]));
    assert_eq!(
        batch.as_slice::<u16>().unwrap()[..6],
        [5, 6, 7, 65_535, 1, 100]
    );
    let failing = windows
        .clone()
        .subset(2..3)
        .fetch()
        .try_map(|_| Err::<(), _>("bad"));
    let error = failing.collect().unwrap_err().to_string();
    assert!(error.ends_with("megatron.bin/2: bad"), "{error}");
    let window = windows.subset(1..2).fetch().collect().unwrap().remove(0);
    assert_eq!(window.start(), 8);
    let ids = window.ids().unwrap();
    assert!(ids.is_shared());
    let begin = store.0.tokens.as_ptr() as usize;
    assert_eq!(ids.as_bytes().as_ptr() as usize, begin + 16);
    assert_eq!(store.window_batch(8, &[0, 1, 2]).unwrap(), batch);
    assert_eq!(store.window_batch(8, &[]).unwrap().shape(), [0, 8]);
    let error = store.window_batch(8, &[1, 3]).unwrap_err().to_string();
    assert!(error.ends_with("megatron.bin: window 3 of 3"), "{error}");
    assert_eq!(
        store.window_batch(0, &[]).unwrap_err().kind(),
        ErrorKind::Config
    );
    assert_eq!(store.windows(0).unwrap_err().kind(), ErrorKind::Config);
    let apart = flat(&[1, 2, 3], &[1, 2]).unwrap();
    let error = apart.windows(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("the last ends at 2 of 3"),
        "{error}"
    );
}

/// The system says of each map how it will be read.
#[cfg(target_os = "linux")]
#[test]
fn what_is_around_a_random_window_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    for store in stores(&documents(), dir.path()) {
        let is_random = || {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let (_, map) = maps.split_once(&format!("{}\n", store.0.name)).unwrap();
            let flags = map.lines().find(|line| line.starts_with("VmFlags:"));
            flags.unwrap().split_whitespace().any(|flag| flag == "rr")
        };
        assert!(!is_random());
        let _ = store.windows(4).unwrap();
        assert!(is_random());
        let _ = store.documents();
        assert!(!store.contents().is_empty() && !is_random());
        let numbers = Graph::from_vec(vec![vec![0u64]]);
        let _ = numbers.clone().window_batches(&store, 4);
        assert!(is_random());
        let _ = store.documents();
        let _ = numbers.row_batches(&store, 4);
        assert!(!store.contents().is_empty() && is_random());
    }
}

#[test]
fn documents_are_data_by_index_and_a_shuffled_epoch_goes_on() {
    let store = TokenStore::megatron(data("megatron")).unwrap();
    assert_eq!(store.documents().fetch().collect().unwrap(), documents());
    let rows = || {
        let windows = store.windows(3).unwrap().shuffle().shard().fetch();
        windows.try_map(|window| window.row())
    };
    let loader = DataLoader::builder(rows().batch(2).collate())
        .workers(2)
        .resumable()
        .build()
        .unwrap();
    let whole: Vec<_> = loader
        .epoch(0)
        .blocking()
        .map(|batch| batch.unwrap().ids)
        .collect();
    let mut epoch = loader.epoch(0).blocking();
    epoch.next();
    let rest = loader
        .resume(&epoch.checkpoint().unwrap())
        .unwrap()
        .blocking();
    let rest: Vec<_> = rest.map(|batch| batch.unwrap().ids).collect();
    assert_eq!(rest, whole[1..]);
    // One rank is stopped, and two go on with what is left, in the same steps.
    let loader = |rank, world| {
        let loader = DataLoader::builder(rows().batch(2 / world))
            .seed(3)
            .uneven(Uneven::Drop)
            .resumable();
        loader.rank(rank, world).build().unwrap()
    };
    let steps = |epoch: datapipes::Blocking<Vec<Packed>>| -> Vec<Vec<Packed>> {
        epoch.map(Result::unwrap).collect()
    };
    let whole = steps(loader(0, 1).epoch(0).blocking());
    let mut epoch = loader(0, 1).epoch(0).blocking();
    epoch.next();
    let checkpoint = epoch.checkpoint().unwrap();
    let ranks = [0, 1].map(|rank| steps(loader(rank, 2).resume(&checkpoint).unwrap().blocking()));
    let together: Vec<Vec<Packed>> = ranks[0]
        .iter()
        .zip(&ranks[1])
        .map(|(a, b)| [a.clone(), b.clone()].concat())
        .collect();
    assert_eq!(together, whole[1..]);
    let error = store.document(5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Writes documents with every format, and opens them.
fn stores(documents: &[Vec<u32>], dir: &Path) -> Vec<TokenStore> {
    let path = dir.join("m");
    let mut megatron = TokenWriter::megatron(&path, TokenWidth::I32).unwrap();
    let mut datatrove = TokenWriter::datatrove(dir.join("d.ds"), TokenWidth::U16, "t").unwrap();
    for document in documents {
        megatron.push(document).unwrap();
        datatrove.push(document).unwrap();
    }
    megatron.finish().unwrap();
    datatrove.finish().unwrap();
    vec![
        TokenStore::megatron(path).unwrap(),
        TokenStore::datatrove(dir.join("d.ds")).unwrap(),
    ]
}

#[test]
fn rows_of_windows_and_samples_have_the_layout_they_are_told() {
    let tokens: Vec<u8> = (1..10u16).flat_map(u16::to_le_bytes).collect();
    let ends: Vec<u8> = [3u64, 9].into_iter().flat_map(u64::to_le_bytes).collect();
    let ends = Some(("ends".to_owned(), ends.into()));
    let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, ends).unwrap();
    let layout = RowLayout::new(4).replace_first(50).ignore(-1);
    let windows = store.windows(layout.clone()).unwrap().fetch();
    let row = windows.collect().unwrap()[0].row().unwrap();
    assert_eq!(row.ids, [50, 2, 3, 50]);
    assert_eq!(row.labels, [2, 3, -1, 5]);
    let order = crate::GptOrder::new(layout.clone().labels(crate::Labels::Same));
    let sample = store
        .gpt(&order)
        .unwrap()
        .fetch()
        .collect()
        .unwrap()
        .remove(0);
    let (ids, row) = (sample.ids().unwrap(), sample.row().unwrap());
    assert_eq!((row.ids[0], &row.ids[1..]), (50, &ids[1..4]));
    assert!(
        row.labels
            .iter()
            .zip(&ids)
            .all(|(&label, &id)| label == i64::from(id))
    );
    let masked = store
        .clone()
        .loss("loss", vec![1, 0, 1, 1, 0, 0, 1, 1, 1].into());
    for store in [&store, &masked.unwrap()] {
        let windows = store.windows(layout.clone()).unwrap().fetch();
        let rows = windows.try_map(|window| window.row()).collect().unwrap();
        let batch = store.row_batch(layout.clone(), &[0, 1]).unwrap();
        assert_eq!(batch, Packed::collate(rows).unwrap());
    }
    let error = store.row_batch(4, &[1, 2]).unwrap_err().to_string();
    assert!(error.ends_with("tokens: window 2 of 2"), "{error}");
    assert_eq!(store.row_batch(4, &[]).unwrap().ids.shape(), [0, 4]);
    for gaps in [layout.clone().align(2), layout.max_documents(1)] {
        for error in [
            store.row_batch(gaps.clone(), &[]).map(drop).unwrap_err(),
            store.windows(gaps.clone()).map(drop).unwrap_err(),
            store
                .gpt(&crate::GptOrder::new(gaps.clone()))
                .map(drop)
                .unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("no gaps"), "{error}");
        }
    }
}

/// Labels of the documents in `datatrove-loss.ds`, of which not all tokens are trained.
fn labels() -> Vec<Vec<i64>> {
    let label = |(at, &id): (usize, &u32)| if at % 3 == 1 { -100 } else { i64::from(id) };
    let documents = documents().into_iter();
    documents
        .map(|ids| ids.iter().enumerate().map(label).collect())
        .collect()
}

#[test]
fn a_mask_of_datatrove_is_read_and_written_as_it_does() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/datatrove-loss.ds");
    let store = TokenStore::datatrove(file).unwrap();
    store.check().unwrap();
    let read = store.labelled_documents().fetch().collect().unwrap();
    let read = read
        .into_iter()
        .map(|tokens| (tokens.ids, tokens.labels.unwrap_or_default()));
    assert!(read.eq(documents().into_iter().zip(labels())));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.ds");
    let mut writer = TokenWriter::datatrove(&path, TokenWidth::U16, "gpt2").unwrap();
    for (at, (ids, labels)) in documents().iter().zip(labels()).enumerate() {
        writer.push_labelled(ids, &labels).unwrap();
        if at == 2 {
            let documents = writer.sync().unwrap();
            writer.push_labelled(&[1, 1], &[-100, 1]).unwrap();
            drop(writer);
            writer =
                TokenWriter::resume_datatrove(&path, TokenWidth::U16, "gpt2", documents).unwrap();
        }
    }
    writer.finish().unwrap();
    for end in ["", ".index", ".loss"] {
        let read = |path: String| std::fs::read(path).unwrap();
        assert_eq!(
            read(format!("{}{end}", path.display())),
            read(format!("{file}{end}")),
            "{end}"
        );
    }
    // Files without a mask replace those with one, until a token is not trained.
    let mut writer = TokenWriter::datatrove(&path, TokenWidth::U16, "gpt2").unwrap();
    let loss = dir.path().join("a.ds.loss");
    writer.push(&[1, 2]).unwrap();
    writer.push_labelled(&[3], &[3]).unwrap();
    assert!(!loss.exists());
    writer.push_labelled(&[4, 5], &[-100, 5]).unwrap();
    writer.push(&[6]).unwrap();
    writer.finish().unwrap();
    assert_eq!(std::fs::read(&loss).unwrap(), [1, 1, 1, 0, 1, 1]);
}

#[test]
fn tokens_that_are_not_trained_have_no_label_in_any_row() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/datatrove-loss.ds");
    let store = TokenStore::datatrove(file).unwrap().vocab(65_536);
    let next = |ids: &[u32], labels: &[i64]| -> Vec<(u32, i64)> {
        let labels = labels[1..].iter().copied().chain([-100]);
        ids.iter().copied().zip(labels).collect()
    };
    let mut expected: Vec<(u32, i64)> = documents()
        .iter()
        .zip(labels())
        .filter(|(ids, _)| !ids.is_empty())
        .flat_map(|(ids, labels)| next(ids, &labels))
        .collect();
    let fields = |row: &Packed| -> Vec<(u32, i64)> {
        let all = row
            .ids
            .iter()
            .copied()
            .zip(row.labels.iter().copied())
            .zip(&row.document);
        all.filter(|&(_, &document)| document > 0)
            .map(|(field, _)| field)
            .collect()
    };
    let windows = store.windows(3).unwrap().fetch().collect().unwrap();
    let windows: Vec<_> = windows
        .iter()
        .flat_map(|window| fields(&window.row().unwrap()))
        .collect();
    assert_eq!(windows, expected[..windows.len()]);
    let packed = store
        .labelled_documents()
        .fetch()
        .pack(Pack::concat(5))
        .collect()
        .unwrap();
    assert_eq!(
        packed.iter().flat_map(&fields).collect::<Vec<_>>(),
        expected
    );
    let plan = crate::PackPlan::new(store.clone(), 5)
        .step(1)
        .graph()
        .collect()
        .unwrap();
    let mut planned: Vec<_> = plan
        .iter()
        .flat_map(|row| fields(&row.read().unwrap()))
        .collect();
    let batches = store.token_batches(100).step(1).graph().collect().unwrap();
    let mut batched: Vec<_> = batches
        .iter()
        .flat_map(|batch| batch.read_labelled().unwrap())
        .filter(|tokens| !tokens.ids.is_empty())
        .flat_map(|tokens| next(&tokens.ids, &tokens.labels.unwrap()))
        .collect();
    for fields in [&mut planned, &mut batched, &mut expected] {
        fields.sort_unstable();
    }
    assert_eq!((&planned, &batched), (&expected, &expected));
    // A sample has the next token of the next document as its label.
    let samples = store
        .gpt(&crate::GptOrder::new(4))
        .unwrap()
        .fetch()
        .collect()
        .unwrap();
    let trained: std::collections::BTreeMap<u32, bool> = documents()
        .concat()
        .into_iter()
        .zip(labels().concat().iter().map(|&label| label != -100))
        .collect();
    for sample in samples {
        let (ids, row) = (sample.ids().unwrap(), sample.row().unwrap());
        for (&next, &label) in ids[1..].iter().zip(&row.labels) {
            assert_eq!(
                label,
                if trained[&next] {
                    i64::from(next)
                } else {
                    -100
                }
            );
        }
    }
}

/// Digest of the file of a tokenizer.
const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A tokenizer of 10 tokens with a name.
struct Named(Option<&'static str>);

impl Tokenizer for Named {
    fn encode(&self, _: &str, _: bool) -> Result<Tokens> {
        Ok(Tokens::default())
    }
    fn decode(&self, _: &[u32]) -> Result<String> {
        Ok(String::new())
    }
    fn vocab_size(&self) -> usize {
        10
    }
    fn token_to_id(&self, _: &str) -> Option<u32> {
        None
    }
    fn name(&self) -> Option<&str> {
        self.0
    }
    fn digest(&self) -> Option<&str> {
        Some(DIGEST)
    }
}

#[test]
fn a_store_of_another_tokenizer_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.ds");
    let store = |name: &str, id| {
        let mut writer = TokenWriter::datatrove(&path, TokenWidth::U16, name).unwrap();
        writer.push(&[id]).unwrap();
        writer.finish().unwrap();
        TokenStore::datatrove(&path).unwrap()
    };
    let error = store("a", 9).for_tokenizer(&Named(Some("b"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let said = "made with the tokenizer \"a\", and not with \"b\"";
    assert!(error.to_string().ends_with(said), "{error}");
    for (recorded, name) in [
        ("a", Some("a")),
        ("a", None),
        ("Unknown Tokenizer", Some("b")),
        ("", Some("b")),
    ] {
        let fits = store(recorded, 9).for_tokenizer(&Named(name)).unwrap();
        assert_eq!(fits.document(0).unwrap(), [9]);
        let larger = store(recorded, 10)
            .for_tokenizer(&std::sync::Arc::new(Named(name)))
            .unwrap();
        assert!(
            larger
                .document(0)
                .unwrap_err()
                .to_string()
                .contains("id 10, where ids are 0 to 9")
        );
    }
}

#[test]
fn a_store_of_another_tokenizer_is_refused_by_the_settings_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    stores(&documents(), dir.path());
    let open = || {
        let [m, d] = ["m", "d.ds"].map(|name| dir.path().join(name));
        [
            TokenStore::megatron(m).unwrap(),
            TokenStore::datatrove(d).unwrap(),
        ]
    };
    let says = |settings: &str| {
        for name in ["m.json", "d.json"] {
            std::fs::write(dir.path().join(name), settings).unwrap();
        }
        open().map(|store| store.for_tokenizer(&Named(None)))
    };
    let settings = |digest: &str| {
        format!(r#"{{"as": "jsonl", "files": [{{"size": 1}}], "tokenizer (SHA-256)": "{digest}"}}"#)
    };
    let another = DIGEST.replace('a', "b");
    for error in says(&settings(&another)).map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Config);
        let said =
            format!("made with the tokenizer of SHA-256 {another}, and not with that of {DIGEST}");
        assert!(error.to_string().ends_with(&said), "{error}");
    }
    // Other files of this name say nothing.
    let (own, lines) = (settings(DIGEST), settings(&another) + "\n{}");
    for fits in [
        &*own,
        &*lines,
        "{\"a\": 1}",
        "[{}]",
        "[\"text\"]",
        "no JSON",
    ] {
        for store in says(fits) {
            store.unwrap();
        }
    }
}

#[test]
fn a_mask_that_does_not_fit_is_named() {
    let store =
        || TokenStore::from_flat("a.ds", vec![1, 0, 2, 0].into(), TokenWidth::U16, None).unwrap();
    let short = store().loss("a.ds.loss", vec![1].into()).unwrap_err();
    assert_eq!(
        short.to_string(),
        "corrupt: a.ds.loss: 1 bytes, and a.ds has 2 tokens"
    );
    let odd = store().loss("a.ds.loss", vec![1, 7].into()).unwrap();
    let said = odd.check().unwrap_err().to_string();
    assert_eq!(
        said,
        "corrupt: a.ds.loss: byte 1: 7, where 0 and 1 are possible"
    );

    let dir = tempfile::tempdir().unwrap();
    let mut megatron = TokenWriter::megatron(dir.path().join("a"), TokenWidth::U16).unwrap();
    megatron.push_labelled(&[1], &[1]).unwrap();
    let mut datatrove =
        TokenWriter::datatrove(dir.path().join("a.ds"), TokenWidth::U16, "").unwrap();
    for (error, kind, said) in [
        (
            megatron.push_labelled(&[2], &[-100]),
            ErrorKind::Unsupported,
            "document 1 has tokens that are not trained",
        ),
        (
            datatrove.push_labelled(&[2], &[3]),
            ErrorKind::Unsupported,
            "document 0, token 0: the label 3 of id 2",
        ),
        (
            datatrove.push_labelled(&[2], &[]),
            ErrorKind::Shape,
            "document 0: 1 ids and 0 labels",
        ),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(said), "{error}");
    }
    datatrove.finish().unwrap();
    assert_eq!(
        TokenStore::datatrove(dir.path().join("a.ds"))
            .unwrap()
            .len(),
        0
    );
}

proptest! {
    // Each waits for the disk several times.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20) })]

    /// Windows are the rows that packing makes of the same documents.
    #[test]
    fn windows_are_packed_rows(lengths in prop::collection::vec(0usize..9, 0..20), length in 1usize..9) {
        let mut next = 0..;
        let documents: Vec<Vec<u32>> =
            lengths.iter().map(|&len| next.by_ref().take(len).collect()).collect();
        let dir = tempfile::tempdir().unwrap();
        let packed = Graph::from_vec(documents.clone()).pack(Pack::concat(length)).collect().unwrap();
        for store in stores(&documents, dir.path()) {
            prop_assert_eq!(all(&store), documents.clone());
            let rows = store.windows(length).unwrap().fetch().try_map(|window| window.row());
            let rows: Vec<Packed> = rows.collect().unwrap();
            prop_assert_eq!(rows.len() as u64, store.len() / length as u64);
            prop_assert_eq!(&rows[..], &packed[..rows.len()]);
            if !rows.is_empty() {
                // In another order, and twice.
                let count = rows.len() as u64;
                let numbers: Vec<u64> = (0..2 * count).map(|at| (at * 7 + 3) % count).collect();
                let some = numbers.iter().map(|&number| rows[number as usize].clone()).collect();
                let batch = store.row_batch(length, &numbers).unwrap();
                prop_assert_eq!(batch, Packed::collate(some).unwrap());
            }
            let numbers = Vec::from_iter(0..rows.len() as u64);
            let batch = store.window_batch(length, &numbers).unwrap();
            let ids: Vec<u32> = rows.into_iter().flat_map(|row| row.ids).collect();
            let same = match store.width() {
                TokenWidth::U16 => batch.as_slice::<u16>().unwrap().iter().map(|&id| u32::from(id)).eq(ids),
                _ => batch.as_slice::<i32>().unwrap().iter().map(|&id| id as u32).eq(ids),
            };
            prop_assert!(same);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Whatever an index says, nothing panics and nothing is read outside of the file.
    #[test]
    fn damaged_indices_give_documents_or_errors(at in 0usize..200, byte: u8, length in 1usize..9) {
        let at = at % IDX.len();
        if let Ok(store) = megatron(BIN, &patched(IDX, at, &[byte])) {
            drop(store.check());
            if let Ok(windows) = store.windows(length) {
                for window in windows.fetch().collect().unwrap() {
                    drop(window.row());
                    drop(window.ids());
                }
            }
        }
    }
}

/// An epoch over a store is resumed with what it began with.
#[test]
fn another_store_or_layout_or_order_is_refused_on_resume() {
    use crate::GptOrder;

    let ends = |ends: &[u64]| -> Option<(String, Bytes)> {
        let ends: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
        Some(("ends".to_owned(), ends.into()))
    };
    let of = |first: u16, at: &[u64]| {
        let tokens: Vec<u8> = (first..first + 20).flat_map(u16::to_le_bytes).collect();
        TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, ends(at)).unwrap()
    };
    let here = || of(1, &[7, 12, 20]);
    let masked = |untrained: usize| {
        let mask = (0..20).map(|at| u8::from(at != untrained));
        here().loss("loss", mask.collect()).unwrap()
    };
    let other_stores = [
        ("other tokens", of(2, &[7, 12, 20])),
        ("other documents", of(1, &[7, 13, 20])),
        ("a mask", masked(3)),
    ];
    fn loader<T: Send + 'static>(data: Indexed<T>) -> DataLoader<()> {
        let graph = data.shuffle().fetch().map(drop);
        DataLoader::builder(graph).resumable().build().unwrap()
    }
    fn checkpoint<T: Send + 'static>(data: Indexed<T>) -> datapipes::Checkpoint {
        let mut epoch = loader(data).epoch(0).blocking();
        epoch.next().unwrap().unwrap();
        epoch.checkpoint().unwrap()
    }
    fn refused<T: Send + 'static>(state: &datapipes::Checkpoint, data: Indexed<T>, what: &str) {
        let error = loader(data).resume(state).err();
        let kind = error.map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::Config), "{what}");
    }
    let windows = |store: TokenStore, layout: RowLayout| store.windows(layout).unwrap();
    let gpt = |store: TokenStore, order: GptOrder| store.gpt(&order).unwrap();
    let states = [
        checkpoint(here().documents()),
        checkpoint(here().labelled_documents()),
        checkpoint(windows(here(), RowLayout::new(4))),
        checkpoint(gpt(here(), GptOrder::new(4))),
    ];
    for same in [
        loader(here().documents()).resume(&states[0]),
        loader(here().labelled_documents()).resume(&states[1]),
        loader(windows(here(), RowLayout::new(4))).resume(&states[2]),
        loader(gpt(here(), GptOrder::new(4))).resume(&states[3]),
    ] {
        assert!(same.is_ok());
    }
    for (what, store) in other_stores {
        refused(&states[0], store.documents(), what);
        refused(&states[1], store.labelled_documents(), what);
        refused(&states[2], windows(store.clone(), RowLayout::new(4)), what);
        refused(&states[3], gpt(store, GptOrder::new(4)), what);
    }
    let another_mask = checkpoint(windows(masked(3), RowLayout::new(4)));
    refused(
        &another_mask,
        windows(masked(4), RowLayout::new(4)),
        "a mask",
    );
    let layouts = [
        RowLayout::new(4).replace_first(9),
        RowLayout::new(4).ignore(-1),
        RowLayout::new(4).labels(crate::Labels::Same),
    ];
    for layout in layouts {
        let what = format!("{layout:?}");
        refused(&states[2], windows(here(), layout.clone()), &what);
        refused(&states[3], gpt(here(), GptOrder::new(layout)), &what);
    }
    for order in [
        GptOrder::new(4).seed(7),
        GptOrder::new(4).samples(5),
        GptOrder::new(4).sequences(0..2),
    ] {
        let what = format!("{order:?}");
        refused(&states[3], gpt(here(), order), &what);
    }
}

/// Batches by the numbers of windows are resumed over the same store alone, too.
#[test]
fn batches_of_windows_know_their_store() {
    use crate::prelude::*;

    fn resumed<T: Send + 'static>(
        here: Graph<T>,
        there: Graph<T>,
    ) -> Result<Vec<T>, datapipes::Error> {
        let loader = |graph| DataLoader::builder(graph).resumable().build().unwrap();
        let first = loader(here);
        let mut epoch = first.epoch(0).blocking();
        epoch.next().unwrap().unwrap();
        let state = epoch.checkpoint().unwrap();
        loader(there).resume(&state)?.blocking().collect()
    }
    let store = |first: u16| {
        let tokens: Vec<u8> = (first..first + 20).flat_map(u16::to_le_bytes).collect();
        TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, None).unwrap()
    };
    let numbers = || Indexed::range(5).shuffle().fetch().batch(2);
    let ids = |store: TokenStore, length| numbers().window_batches(&store, length);
    let rows = |store: TokenStore, layout: RowLayout| numbers().row_batches(&store, layout);

    let all = numbers().map(move |batch| store(1).window_batch(4, &batch).unwrap());
    assert_eq!(
        resumed(ids(store(1), 4), ids(store(1), 4)).unwrap(),
        all.collect().unwrap()[1..]
    );
    let layout = || RowLayout::new(4);
    let all = numbers().map(move |batch| store(1).row_batch(4, &batch).unwrap());
    let again = resumed(rows(store(1), layout()), rows(store(1), layout()));
    assert_eq!(again.unwrap(), all.collect().unwrap()[1..]);
    let refusals = [
        (
            "window_batches",
            resumed(ids(store(1), 4), ids(store(2), 4)).err(),
        ),
        (
            "window_batches",
            resumed(ids(store(1), 4), ids(store(1), 3)).err(),
        ),
        (
            "row_batches",
            resumed(rows(store(1), layout()), rows(store(2), layout())).err(),
        ),
        (
            "row_batches",
            resumed(
                rows(store(1), layout()),
                rows(store(1), layout().ignore(-1)),
            )
            .err(),
        ),
    ];
    for (name, error) in refusals {
        let error = error.unwrap();
        let said = error.to_string();
        assert!(
            error.kind() == ErrorKind::Config && said.contains(name),
            "{said}"
        );
    }
    let built = |graph: Graph<Tensor>| {
        DataLoader::builder(graph)
            .build()
            .err()
            .unwrap()
            .to_string()
    };
    assert!(built(ids(store(1), 0)).contains("windows of no tokens"));
    let built = DataLoader::builder(rows(store(1), layout().align(2))).build();
    assert!(built.err().unwrap().to_string().contains("no gaps"));
}

/// The document of a token is found by its place, whatever the lengths.
#[test]
fn documents_of_very_different_lengths_are_found() {
    let lengths: [&[u64]; 5] = [
        &[1; 40],
        &[1000, 1, 1, 1],
        &[1, 1, 1, 1000],
        &[0, 5, 0, 0, 7, 0],
        &[1, 500, 1, 1, 400, 2, 2, 2, 90],
    ];
    for lengths in lengths {
        let mut end = 0;
        let ends: Vec<u8> = lengths
            .iter()
            .flat_map(|length| {
                end += length;
                u64::to_le_bytes(end)
            })
            .collect();
        let tokens = vec![0; end as usize];
        let store = TokenStore::from_flat(
            "t",
            tokens.into(),
            TokenWidth::U8,
            Some(("ends".into(), ends.into())),
        )
        .unwrap();
        let mut starts = Vec::new();
        let mut start = 0;
        for length in lengths {
            starts.push(start);
            start += length;
        }
        for token in 0..end {
            let expected = starts.iter().rposition(|&start| start <= token).unwrap() as u64;
            assert_eq!(
                store.0.bounds.find(token, 1).unwrap(),
                expected,
                "{lengths:?}, {token}"
            );
        }
    }
}
