use bytes::Bytes;
use datapipes::index::{Indexed, MapPipe};
use datapipes::{ErrorKind, Result};

use super::*;
use crate::stores::InMemory;
use crate::testing::{check_format, read_all};

const MXNET: &[u8] = include_bytes!("../../../tests/data/mxnet.rec");
const MXNET_INDEX: &[u8] = include_bytes!("../../../tests/data/mxnet.idx");
const IMAGES: &[u8] = include_bytes!("../../../tests/data/images.rec");
const IMAGES_INDEX: &[u8] = include_bytes!("../../../tests/data/images.idx");

const M: [u8; 4] = MAGIC.to_le_bytes();

/// Returns the payloads of `make_recordio.py`.
fn payloads() -> Vec<Vec<u8>> {
    let mut payloads: Vec<Vec<u8>> = [&b""[..], b"a", b"ab", b"abc", b"abcd"]
        .map(Vec::from)
        .into();
    payloads.push(M.to_vec());
    payloads.push([M, M, M].concat());
    payloads.push([&b"1234"[..], &M, b"5678"].concat());
    payloads.push([&b"12"[..], &M, b"34"].concat());
    payloads.push([&b"1234"[..], &M].concat());
    payloads.push([&M[..], b"x"].concat());
    payloads.push((0..=255).collect());
    payloads
}

fn file(records: &[&[u8]]) -> Vec<u8> {
    let mut writer = RecordIoWriter::new(Vec::new());
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap().0
}

fn texts(read: &[Result<Bytes>]) -> Vec<String> {
    let text = |item: &Result<Bytes>| match item {
        Ok(record) => String::from_utf8_lossy(record).into_owned(),
        Err(error) => format!("{:?}", error.kind()),
    };
    read.iter().map(text).collect()
}

#[test]
fn what_mxnet_wrote_is_read_and_written_again_byte_by_byte() {
    let read: Vec<_> = read_all(RecordIo::new(), MXNET)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(read, payloads());
    let mut writer = RecordIoWriter::new(Vec::new());
    for payload in payloads() {
        writer.write(&payload).unwrap();
    }
    let (again, index) = writer.finish().unwrap();
    assert_eq!(again, MXNET);
    assert_eq!(index.to_string().as_bytes(), MXNET_INDEX);
    assert_eq!(RecordIoIndex::of(&Bytes::from(MXNET)).unwrap(), index);
    assert_eq!(RecordIoIndex::parse(MXNET_INDEX).unwrap(), index);
    let store = InMemory::from_iter([("a", MXNET)]);
    let indexed = Indexed::new(IndexedRecordIo::new(store, "a", index))
        .fetch()
        .collect()
        .unwrap();
    assert_eq!(indexed, payloads());
}

#[test]
fn the_pictures_of_mxnet_have_one_label_or_several() {
    let read = read_all(RecordIo::new(), IMAGES);
    let read: Vec<_> = read
        .into_iter()
        .map(|record| ImageRecord::parse(record.unwrap()).unwrap())
        .collect();
    let picture = |labels: &[f32], id, id2, data| ImageRecord {
        labels: labels.to_vec(),
        id,
        id2,
        data: Bytes::from_static(data),
    };
    let expected = [
        picture(&[3.0], 10, 0, b"jpeg bytes"),
        picture(&[1.5, -2.0, 7.0], 20, 1, b"more"),
        picture(&[-1.0], 30, 0, b""),
    ];
    assert_eq!(read[..2], expected[..2]);
    assert_eq!(
        (&read[2].labels[..], read[2].id, &read[2].data[..]),
        (&[-1.0][..], 1 << 63, &b""[..])
    );
    let again = file(
        &read
            .iter()
            .map(ImageRecord::encode)
            .collect::<Vec<_>>()
            .iter()
            .map(|r| &r[..])
            .collect::<Vec<_>>(),
    );
    assert_eq!(again, IMAGES);
    let keys = RecordIoIndex::parse(IMAGES_INDEX).unwrap();
    assert_eq!(
        keys.records().map(|(key, _)| key).collect::<Vec<_>>(),
        ["10", "20", "30"]
    );
}

#[test]
fn a_picture_that_is_cut_is_an_error() {
    let record = ImageRecord {
        labels: vec![1.0, 2.0],
        id: 1,
        id2: 2,
        data: Bytes::new(),
    }
    .encode();
    for cut in 0..record.len() {
        let error = ImageRecord::parse(Bytes::copy_from_slice(&record[..cut])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated);
    }
    let error = ImageRecord::parse([&[0xff; 4][..], &[0; 30]].concat().into())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "truncated: the labels of a picture: 10 of 17179869180 bytes"
    );
}

#[test]
fn records_are_slices_of_the_file() {
    let data = Bytes::from(file(&[b"one", b"two"]));
    for (at, record) in read_all(RecordIo::new(), data.clone())
        .into_iter()
        .enumerate()
    {
        assert_eq!(record.unwrap().as_ptr(), data[12 * at + HEAD..].as_ptr());
    }
}

#[test]
fn a_cut_anywhere_is_an_error_except_between_records() {
    let begins: Vec<usize> = RecordIoIndex::parse(MXNET_INDEX)
        .unwrap()
        .records()
        .map(|(_, offset)| offset as usize)
        .collect();
    for cut in 0..MXNET.len() {
        let read = read_all(RecordIo::new(), &MXNET[..cut]);
        let whole = begins.iter().skip(1).filter(|&&begin| begin <= cut).count();
        assert!(read[..whole].iter().all(Result::is_ok), "cut at {cut}");
        match begins.contains(&cut) {
            true => assert_eq!(read.len(), whole, "cut at {cut}"),
            false => {
                assert_eq!(read.len(), whole + 1, "cut at {cut}");
                let error = read[whole].as_ref().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Truncated, "cut at {cut}: {error}");
                let place = format!("record {whole} at byte {}", begins[whole]);
                assert!(error.to_string().contains(&place), "{error}");
            }
        }
        assert_eq!(
            RecordIoIndex::of(&Bytes::copy_from_slice(&MXNET[..cut])).is_err(),
            !begins.contains(&cut)
        );
    }
}

#[test]
fn row_105_an_empty_file_has_no_records() {
    assert!(read_all(RecordIo::new(), "").is_empty());
    assert!(RecordIoIndex::parse(b"").unwrap().is_empty());
}

#[test]
fn heads_that_are_wrong_are_errors_and_a_part_alone_loses_only_itself() {
    let part = |flag: u32, data: &[u8]| {
        let word = flag << LENGTH_BITS | data.len() as u32;
        [&M[..], &word.to_le_bytes(), data].concat()
    };
    let read = |parts: &[Vec<u8>]| read_all(RecordIo::new(), parts.concat());
    let (a, b) = (part(0, b"aaaa"), part(0, b"bbbb"));
    assert_eq!(
        texts(&read(&[a.clone(), part(3, b"xxxx"), b.clone()])),
        ["aaaa", "Corrupt", "bbbb"]
    );
    assert_eq!(
        texts(&read(&[a.clone(), part(1, b"xxxx"), b.clone()])),
        ["aaaa", "Corrupt", "bbbb"]
    );
    let two = read(&[
        part(1, b"xxxx"),
        part(2, b""),
        part(1, b"yyyy"),
        part(3, b"z\0\0\0"),
    ]);
    assert_eq!(two[0].as_ref().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(
        two[1].as_ref().unwrap(),
        &[&b"yyyy"[..], &M, b"z\0\0\0"].concat()
    );
    assert_eq!(
        texts(&read(&[a.clone(), part(1, b"xxxx")])),
        ["aaaa", "Truncated"]
    );
    assert_eq!(
        texts(&read(&[a.clone(), part(4, b"xxxx"), b.clone()])),
        ["aaaa", "Corrupt"]
    );
    assert_eq!(
        texts(&read(&[a.clone(), vec![0; 8], b.clone()])),
        ["aaaa", "Corrupt"]
    );
    let long = [&M[..], &((1u32 << LENGTH_BITS) - 1).to_le_bytes(), b"abcd"].concat();
    let read = read(&[a, long]);
    assert_eq!(
        read[1].as_ref().unwrap_err().to_string(),
        "record_io: 0:0: truncated: record 1 at byte 12: the part at byte 12 has 4 of 536870912 bytes"
    );
}

#[tokio::test]
async fn records_by_index_in_any_order_and_where_there_are_none() {
    let data = file(&[b"one", b"two"]);
    let store = InMemory::from_iter([("a", data)]);
    let at = async |index: &str, n| {
        let index = RecordIoIndex::parse(index.as_bytes()).unwrap();
        MapPipe::get(&IndexedRecordIo::new(store.clone(), "a", index), n).await
    };
    assert_eq!(at("x\t12\ny\t0", 0).await.unwrap(), "two");
    assert_eq!(at("x\t12\ny\t0", 1).await.unwrap(), "one");
    assert_eq!(at("x\t0", 0).await.unwrap(), "one");
    let said = at("x\t24", 0).await.unwrap_err();
    assert_eq!(
        said.to_string(),
        "truncated: memory:///a: record 0 at byte 24: the file ends there"
    );
    assert_eq!(at("x\t4", 0).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(at("x\t0", 1).await.unwrap_err().kind(), ErrorKind::NotFound);
    for text in [
        "1",
        "1 2",
        "1\tx",
        "1\t-2",
        "1\t18446744073709551615",
        "\u{0}\t",
    ] {
        assert!(
            RecordIoIndex::parse(format!("0\t0\n{text}\n").as_bytes()).is_err_and(|error| {
                error.to_string() == "corrupt: line 2 of the index: key, tab and offset are due"
            })
        );
    }
}

#[test]
fn any_bytes_are_survived() {
    assert_eq!(check_format(RecordIo::new, MXNET), 12);
}
