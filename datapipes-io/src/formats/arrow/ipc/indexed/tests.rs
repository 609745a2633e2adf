//! Tests of rows by index: those of a whole file, also of files of pyarrow that are damaged.

use datapipes::testing::some_of;
use datapipes::{DataLoader, Indexed, Uneven};
use futures::executor::block_on;

use super::*;
use crate::formats::ArrowRows;
use crate::testing::read_all;
use datapipes::ErrorKind;

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/", $name)).as_slice()
    };
}

const FILES: [&[u8]; 6] = [
    data!("table.arrow"),
    data!("table.arrows"),
    data!("zstd.arrow"),
    data!("lz4.arrows"),
    data!("delta.arrows"),
    data!("replaced.arrows"),
];

fn index(data: &[u8]) -> Result<IndexedArrowRows> {
    ArrowIpc::new().index(File::new("a.arrow", data.to_vec()))
}

fn whole(data: &[u8]) -> Vec<Result<Row>> {
    read_all(ArrowRows::default(), data.to_vec())
}

#[test]
fn rows_are_those_of_the_whole_file() {
    for (number, data) in FILES.into_iter().enumerate() {
        let (rows, expected) = (index(data).unwrap(), whole(data));
        assert_eq!(rows.len(), expected.len() as u64, "{number}");
        let expected: Vec<Row> = expected.into_iter().map(Result::unwrap).collect();
        for (at, expected) in expected.iter().enumerate() {
            assert_eq!(
                block_on(rows.get(at as u64)).unwrap(),
                *expected,
                "{number} {at}"
            );
        }
        datapipes::testing::check_map_pipe(&rows);
        // Together, in any order, some twice, one that is not there.
        let some: Vec<u64> = (0..30).map(|n| n * 7 % (rows.len() + 1)).collect();
        for (at, row) in some.iter().zip(block_on(rows.get_many(&some))) {
            match expected.get(*at as usize) {
                Some(expected) => assert_eq!(row.unwrap(), *expected),
                None => assert_eq!(row.unwrap_err().kind(), ErrorKind::NotFound),
            }
        }
    }
}

#[test]
fn only_the_wanted_columns_are_decoded() {
    let file = File::new("a.arrows", FILES[1].to_vec());
    let rows = ArrowIpc::new()
        .columns(["index"])
        .index(file.clone())
        .unwrap();
    let row = block_on(rows.get(7)).unwrap();
    assert_eq!((row.len(), &row["index"]), (1, &7.into()));
    let error = ArrowIpc::new().columns(["none"]).index(file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("a.arrows"), "{error}");
}

#[test]
fn row_104_a_file_that_is_cut_is_an_error_with_its_place() {
    for data in [FILES[0], FILES[1], FILES[5]] {
        let expected: Vec<Row> = whole(data).into_iter().map(Result::unwrap).collect();
        for cut in some_of(0..data.len()) {
            match index(&data[..cut]) {
                Err(error) => assert!(error.to_string().contains("a.arrow"), "{error}"),
                // A stream without its end marker is as one that was written so.
                Ok(rows) => {
                    let all = block_on(rows.get_many(&Vec::from_iter(0..rows.len())));
                    let all = all.into_iter().map(Result::unwrap);
                    assert!(
                        all.eq(expected[..rows.len() as usize].iter().cloned()),
                        "{cut}"
                    );
                }
            }
        }
    }
    let error = index(&FILES[1][..FILES[1].len() - 500]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert!(
        error.to_string().contains("a.arrow: batch 2 at byte "),
        "{error}"
    );
}

/// The stream reader finds the same errors: the rows that both have are equal.
#[test]
fn row_104_damaged_messages_are_errors_or_the_rows_of_the_whole_file() {
    for data in [FILES[0], FILES[5]] {
        for at in some_of((0..data.len()).step_by(29)) {
            let mut data = data.to_vec();
            data[at] ^= [1, 0x10, 0x80][at % 3];
            let Ok(rows) = index(&data) else { continue };
            let many = Vec::from_iter(0..rows.len().min(20));
            let read = block_on(rows.get_many(&many));
            let (read, errors): (Vec<_>, Vec<_>) = read.into_iter().partition(Result::is_ok);
            for error in errors.into_iter().filter_map(Result::err) {
                assert!(error.to_string().contains("a.arrow: batch "), "{error}");
            }
            let expected: Vec<Row> = whole(&data).into_iter().filter_map(Result::ok).collect();
            for row in read.into_iter().map(Result::unwrap) {
                assert!(expected.contains(&row), "byte {at}");
            }
        }
    }
}

#[test]
fn rows_105_and_106_other_files_are_named() {
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03".repeat(3);
    for (data, kind) in [
        (&b""[..], ErrorKind::Truncated),
        (&gzip, ErrorKind::Unsupported),
        (b"ARROW1", ErrorKind::Truncated),
        (b"PAR1 and what follows it", ErrorKind::Truncated),
        (&[0; 100], ErrorKind::Corrupt),
    ] {
        let error = index(data).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("a.arrow"), "{error}");
    }
    let more = [FILES[1], b"more"].concat();
    let error = index(&more).unwrap_err();
    assert!(
        error.to_string().contains("4 bytes after the end marker"),
        "{error}"
    );
}

#[test]
fn row_118_rows_are_shuffled_and_resumed_by_other_ranks() {
    let loader = |rank, world| {
        let rows = Indexed::new(index(FILES[1]).unwrap())
            .shuffle()
            .shard()
            .fetch();
        let rows = rows
            .map(|row| row["index"].as_u64().unwrap())
            .batch(2 / world);
        let loader = DataLoader::builder(rows).uneven(Uneven::Drop).resumable();
        loader.rank(rank, world).build().unwrap()
    };
    let all: Vec<Vec<u64>> = loader(0, 1)
        .epoch(0)
        .blocking()
        .map(Result::unwrap)
        .collect();
    let mut epoch = loader(0, 1).epoch(0).blocking();
    epoch.by_ref().take(2).for_each(drop);
    let checkpoint = epoch.checkpoint().unwrap();
    let [first, second] = [0, 1].map(|rank| {
        let rest = loader(rank, 2).resume(&checkpoint).unwrap().blocking();
        rest.map(Result::unwrap).collect::<Vec<_>>().concat()
    });
    let dealt: Vec<Vec<u64>> = first
        .into_iter()
        .zip(second)
        .map(|(a, b)| vec![a, b])
        .collect();
    assert_eq!(dealt, all[2..]);
}

#[cfg(feature = "mmap")]
#[test]
fn a_file_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.arrow");
    std::fs::write(&path, FILES[1]).unwrap();
    let rows = ArrowIpc::new().index_mapped(&path).unwrap();
    assert_eq!(block_on(rows.get(9)).unwrap()["index"], 9);
    let error = ArrowIpc::new()
        .index_mapped(dir.path().join("none"))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
