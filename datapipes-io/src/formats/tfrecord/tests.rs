use std::io::Write;

use bytes::Bytes;
use datapipes::ErrorKind;
use datapipes::index::{Indexed, MapPipe};
use proptest::prelude::*;

use super::*;
use crate::stores::InMemory;
use crate::testing::{check_format, gzip, read_all};

const TENSORFLOW: &[u8] = include_bytes!("../../../tests/data/tensorflow.tfrecord");
const GZIP: &[u8] = include_bytes!("../../../tests/data/tensorflow.tfrecord.gz");
const ZLIB: &[u8] = include_bytes!("../../../tests/data/tensorflow.tfrecord.zlib");
const EMPTY: &[u8] = include_bytes!("../../../tests/data/empty.tfrecord");
const SEQUENCE: &[u8] = include_bytes!("../../../tests/data/sequence.tfrecord");
const PACKAGE: &[u8] = include_bytes!("../../../tests/data/package.tfrecord");
const PACKAGE_INDEX: &[u8] = include_bytes!("../../../tests/data/package.tfindex");

fn file(records: &[&[u8]]) -> Vec<u8> {
    let mut writer = TfRecordWriter::new(Vec::new());
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

fn message(read: &Result<impl Sized>) -> String {
    read.as_ref()
        .err()
        .map_or_else(|| "no error".to_owned(), ToString::to_string)
}

#[test]
fn what_tensorflow_wrote_is_read_plain_and_compressed() {
    for data in [TENSORFLOW, GZIP, ZLIB] {
        let read: Vec<Example> = read_all(TfExamples::new(), data)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(read.len(), 5);
        for (n, example) in read[..4].iter().enumerate() {
            assert_eq!(example.int("label").unwrap(), n as i64);
            let image: Vec<u8> = (0..n).flat_map(|_| 0..=255).collect();
            assert_eq!(example.blob("image").unwrap(), &image);
            let ids = [0, 1, -1, 127, 128, i64::MAX, i64::MIN];
            assert_eq!(example.ints("ids").unwrap(), ids);
            assert_eq!(
                example.floats("box").unwrap(),
                [0.0, 0.1, -1.5, f32::INFINITY, 1e-45]
            );
            assert_eq!(
                example.bytes("words").unwrap(),
                ["größe".as_bytes(), b"", b"\xff"]
            );
            assert_eq!(example.get("none").unwrap(), &Feature::Empty);
            assert_eq!(example.get("no ints").unwrap(), &Feature::Ints(vec![]));
            assert_eq!(example.get("no floats").unwrap(), &Feature::Floats(vec![]));
            assert_eq!(example.get("no bytes").unwrap(), &Feature::Bytes(vec![]));
        }
        assert_eq!(read[4], Example::new());
    }
}

#[test]
fn what_tensorflow_wrote_is_written_again_byte_by_byte() {
    let mut writer = TfRecordWriter::new(Vec::new());
    for example in read_all(TfExamples::new(), TENSORFLOW) {
        writer.write(&example.unwrap().encode()).unwrap();
    }
    let (again, index) = writer.finish().unwrap();
    assert_eq!(again, TENSORFLOW);
    assert_eq!(index, TfRecordIndex::of(TENSORFLOW).unwrap());

    let record = read_all(TfRecords::new(), SEQUENCE).remove(0).unwrap();
    let sequence = SequenceExample::parse(record.clone()).unwrap();
    assert_eq!(sequence.encode(), record);
    assert_eq!(sequence.context().text("name").unwrap(), "walk");
    let names: Vec<_> = sequence
        .lists()
        .map(|(name, list)| (name, list.len()))
        .collect();
    assert_eq!(names, [("frames", 2), ("none", 0), ("times", 3)]);
    assert_eq!(
        sequence.get("times").unwrap()[2],
        Feature::Floats(vec![2.5])
    );
    let error = sequence.get("x").unwrap_err().to_string();
    assert_eq!(
        error,
        r#"not found: the example has no list "x", but "frames", "none", "times""#
    );
}

#[test]
fn row_102_a_sequence_example_is_not_read_as_half_an_example() {
    let read = read_all(TfExamples::new(), SEQUENCE);
    assert_eq!(
        message(&read[0]),
        "tf_examples: 0:0/0: unsupported: record 0 at byte 0: the record is a tf.train.SequenceExample: decode it by \
         SequenceExample::parse"
    );
}

#[test]
fn the_python_package_and_its_index_are_read() {
    let index = TfRecordIndex::parse(PACKAGE_INDEX).unwrap();
    assert_eq!(index, TfRecordIndex::of(PACKAGE).unwrap());
    assert_eq!(index.to_string().as_bytes(), PACKAGE_INDEX);
    let store = InMemory::from_iter([("a", PACKAGE)]);
    let records = Indexed::new(IndexedTfRecords::new(store, "a", index));
    let labels = records
        .subset(vec![2, 0])
        .fetch()
        .try_map(|record| Example::parse(record)?.get("label").cloned());
    assert_eq!(
        labels.collect().unwrap(),
        [Feature::Ints(vec![2, 3]), Feature::Ints(vec![0, 1])]
    );
}

#[test]
fn row_105_an_empty_file_has_no_records() {
    assert!(read_all(TfRecords::new(), EMPTY).is_empty());
    assert!(TfRecordIndex::of(EMPTY).unwrap().is_empty());
    assert!(TfRecordIndex::parse(b"").unwrap().is_empty());
}

#[test]
fn row_101_wrong_data_is_one_bad_record_and_a_wrong_length_ends_the_file() {
    let whole = file(&[b"one", b"two", b"three"]);
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut data = whole.clone();
            data[at] ^= 1 << bit;
            let (record, within) =
                [(0, at), (1, at.wrapping_sub(19)), (2, at.wrapping_sub(38))][at / 19 % 3];
            let (record, within) = if at >= 57 {
                (2, at - 38)
            } else {
                (record, within)
            };
            let mut expected = ["one", "two", "three"].map(str::to_owned).to_vec();
            expected[record] = "Corrupt".to_owned();
            if within < HEAD {
                expected.truncate(record + 1);
            }
            let read = read_all(TfRecords::new(), data);
            assert_eq!(texts(&read), expected, "bit {bit} of byte {at}");
            let place = format!("record {record} at byte {}", record * 19);
            assert!(
                message(&read[record]).contains(&place),
                "{}",
                message(&read[record])
            );
        }
    }
    let mut data = whole.clone();
    data[12] = b'X';
    assert_eq!(
        texts(&read_all(TfRecords::new().unchecked(), data)),
        ["Xne", "two", "three"]
    );
}

#[test]
fn row_101_a_cut_anywhere_is_an_error_except_between_records() {
    let whole = file(&[b"one", b"two", b"three"]);
    for cut in 0..whole.len() {
        let mut expected = ["one", "two", "three"][..(cut / 19).min(2)].to_vec();
        if ![0, 19, 38].contains(&cut) {
            expected.push("Truncated");
        }
        let read = read_all(TfRecords::new(), whole[..cut].to_vec());
        assert_eq!(texts(&read), expected, "cut at {cut}");
        assert_eq!(
            TfRecordIndex::of(&whole[..cut]).is_err(),
            expected.last() == Some(&"Truncated")
        );
    }
    let read = read_all(TfRecords::new(), whole[..45].to_vec());
    let expected = "tf_records: 0:0: truncated: record 2 at byte 38: its head has 7 of 12 bytes";
    assert_eq!(message(&read[2]), expected);
}

/// Returns the head of a record of any length, with the right checksum.
fn head(length: u64) -> Vec<u8> {
    let length = length.to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes()].concat()
}

#[test]
fn row_101_a_huge_length_with_the_right_checksum_takes_no_memory() {
    for length in [1 << 20, 3 << 30, u64::MAX - 20, u64::MAX] {
        let data = [head(length), b"abc".to_vec()].concat();
        let read = read_all(TfRecords::new(), data.clone());
        assert_eq!(texts(&read), ["Truncated"]);
        let said = format!("its data has 3 of {length} bytes");
        assert!(message(&read[0]).ends_with(&said), "{}", message(&read[0]));
        assert_eq!(
            texts(&read_all(TfRecords::new(), gzip(&data))),
            ["Truncated"]
        );
        assert_eq!(
            TfRecordIndex::of(&data).unwrap_err().kind(),
            ErrorKind::Truncated
        );
    }
}

#[test]
fn row_101_a_record_above_the_limit_is_refused_and_the_next_one_follows() {
    let data = file(&[b"one", b"three", b"two"]);
    for data in [data.clone(), gzip(&data), zlib(&data)] {
        let read = read_all(TfRecords::new().max_record(3), data);
        assert_eq!(texts(&read), ["one", "Limit", "two"]);
        assert!(
            message(&read[1]).ends_with("it has 5 bytes, at most 3 are allowed (`max_record`)")
        );
    }
}

#[test]
fn row_101_zeros_behind_the_last_record_are_an_error() {
    for zeros in 1..40 {
        let mut data = file(&[b"one"]);
        data.resize(data.len() + zeros, 0);
        let read = read_all(TfRecords::new(), data);
        let kind = if zeros < HEAD { "Truncated" } else { "Corrupt" };
        assert_eq!(texts(&read), ["one", kind]);
        assert_eq!(
            message(&read[1]).ends_with("zeros where a record is due"),
            zeros >= HEAD
        );
    }
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(data).unwrap();
    out.finish().unwrap()
}

#[test]
fn row_96_a_compressed_file_that_is_cut_or_damaged_is_an_error() {
    for whole in [GZIP, ZLIB] {
        for cut in 1..whole.len() {
            let read = read_all(TfRecords::new(), whole[..cut].to_vec());
            assert!(read.last().is_some_and(Result::is_err), "cut at {cut}");
        }
        let read = read_all(TfRecords::new(), [whole, b"more"].concat());
        assert!(
            read.last().is_some_and(Result::is_err),
            "bytes after its end"
        );
        let sane = texts(&read_all(TfRecords::new(), whole));
        for at in 0..whole.len() {
            let mut data = whole.to_vec();
            data[at] ^= 0x40;
            let read = read_all(TfRecords::new(), data);
            // Some bits have no meaning: gzip's time and system, and those after the end of the
            // last block.
            assert!(
                read.iter().any(Result::is_err) || texts(&read) == sane,
                "byte {at}"
            );
        }
    }
}

#[test]
fn row_98_a_bomb_reaches_the_limit() {
    let data = file(&[&vec![0; 4 << 20]]);
    for data in [gzip(&data), zlib(&data)] {
        let read = read_all(TfRecords::new().max_expansion(2 << 20, 5000), data);
        assert_eq!(texts(&read), ["Limit"]);
    }
}

#[test]
fn row_106_a_record_whose_length_looks_like_gzip_is_a_record() {
    let record = vec![7; 0x0008_8b1f];
    let data = file(&[&record]);
    assert!(data.starts_with(&[0x1f, 0x8b, 8]));
    let read = read_all(TfRecords::new(), data);
    assert_eq!(read[0].as_ref().unwrap().len(), record.len());
}

#[test]
fn records_are_slices_of_the_file() {
    let data = Bytes::from(file(&[b"one", b"two"]));
    for (at, record) in read_all(TfRecords::new(), data.clone())
        .into_iter()
        .enumerate()
    {
        assert_eq!(record.unwrap().as_ptr(), data[19 * at + HEAD..].as_ptr());
    }
    let data = Bytes::from(file(&[&Example::new().with("a", "value").encode()]));
    let example = read_all(TfExamples::new(), data.clone()).remove(0).unwrap();
    assert!(
        data.as_ptr_range()
            .contains(&example.blob("a").unwrap().as_ptr())
    );
}

#[test]
fn row_102_messages_that_are_wrong_name_record_and_feature() {
    // Example{features{entry{name "ab", value{...}}}}
    let example = |value: &[u8]| {
        let entry = [b"\x0a\x02ab\x12".as_slice(), &[value.len() as u8], value].concat();
        let features = [&[0x0a, entry.len() as u8][..], &entry].concat();
        [&[0x0a, features.len() as u8][..], &features].concat()
    };
    let cases: [(&[u8], &str); 8] = [
        (
            b"\x1a\x02\x0a\x09",
            "feature \"ab\": 9 bytes stated, 0 there",
        ),
        (
            b"\x1a\x02\x09\x01",
            "feature \"ab\": a value of ints of wire type Fixed64, where Varint is due",
        ),
        (b"\x12\x03\x0a\x01\x00", "feature \"ab\": 1 bytes of floats"),
        (
            b"\x12\x02\x08\x00",
            "feature \"ab\": a value of floats of wire type Varint, where Fixed32 is due",
        ),
        (
            b"\x08\x01",
            "feature \"ab\": a list of bytes of wire type Varint, where Len is due",
        ),
        (
            b"\x0a\x02\x08\x01",
            "feature \"ab\": a value of bytes of wire type Varint, where Len is due",
        ),
        (
            b"\x1a\x0d\x0a\x0b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00",
            "a number of more than 64 bits",
        ),
        (b"\x1a\x03\x0a\x01\xff", "a number that is cut"),
    ];
    for (value, said) in cases {
        let read = read_all(TfExamples::new(), file(&[b"", &example(value), b""]));
        assert_eq!(
            read.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true]
        );
        let error = message(&read[1]);
        assert!(
            error.contains("corrupt: record 1 at byte 16: feature \"ab\": "),
            "{error}"
        );
        assert!(error.contains(said), "{error}");
    }
    let name = Example::parse(Bytes::from_static(b"\x0a\x05\x0a\x03\x0a\x01\xff"))
        .unwrap_err()
        .to_string();
    assert!(
        name.contains("the name of a feature is not UTF-8"),
        "{name}"
    );
    let deep = Example::parse(vec![0x1b; 1000].into()).unwrap_err();
    assert_eq!(deep.kind(), ErrorKind::Limit);
    for record in [
        &b"\x00"[..],
        b"\x0f",
        b"\x1c",
        b"\x1b\x24",
        b"\x1b",
        b"\x08\x01",
    ] {
        let error = Example::parse(Bytes::copy_from_slice(record)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{record:?}");
    }
}

#[test]
fn row_102_lists_may_be_packed_or_not_and_unknown_fields_are_passed_by() {
    // Ints 1, 2 unpacked, then packed 3, 4; after them unknown fields of every type, one a group in
    // a group.
    let ints = b"\x1a\x08\x08\x01\x08\x02\x0a\x02\x03\x04";
    let unknown = b"\x28\x07\x31abcdefgh\x3a\x02hi\x43\x4b\x4c\x44\x4dabcd";
    let value = [&ints[..], unknown].concat();
    let entry = [b"\x12", &[value.len() as u8][..], &value, b"\x0a\x01a"].concat();
    let features = [&[0x0a, entry.len() as u8][..], &entry].concat();
    let record = [&[0x0a, features.len() as u8][..], &features, unknown].concat();
    let example = Example::parse(record.into()).unwrap();
    assert_eq!(example.ints("a").unwrap(), [1, 2, 3, 4]);
    let floats = b"\x0a\x11\x0a\x0f\x0a\x01a\x12\x0a\x12\x08\x0d\x00\x00\x80\x3f\x0a\x00\x0a";
    assert!(Example::parse(Bytes::from_static(floats)).is_err());
    let floats = b"\x0a\x11\x0a\x0f\x0a\x01a\x12\x0a\x12\x08\x0d\x00\x00\x80\x3f\x0a\x00\x50\x00";
    assert_eq!(
        Example::parse(Bytes::from_static(floats))
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
    let floats = b"\x0a\x0e\x0a\x0c\x0a\x01a\x12\x07\x12\x05\x0d\x00\x00\x80\x3f";
    assert_eq!(
        Example::parse(Bytes::from_static(floats))
            .unwrap()
            .float("a")
            .unwrap(),
        1.0
    );
}

#[test]
fn of_features_of_one_name_the_last_counts_however_many_there_are() {
    let mut both = Vec::new();
    for (offset, names) in [(0, 100), (1000, 60)] {
        let mut example = Example::new();
        for n in 0..names {
            example = example.with(format!("feature {n}"), n + offset);
        }
        // Concatenated messages are one message.
        both.extend(example.encode());
    }
    let example = Example::parse(both.into()).unwrap();
    let read: Vec<_> = example
        .features()
        .map(|(name, _)| (name.to_owned(), example.int(name).unwrap()))
        .collect();
    let want = |n: i64| (format!("feature {n}"), if n < 60 { n + 1000 } else { n });
    assert_eq!(read, (0..100).map(want).collect::<Vec<_>>());
}

#[test]
fn row_102_getters_say_what_is_there() {
    let example = Example::new()
        .with("a", 1.5f32)
        .with("b", vec![1i64, 2])
        .with("c", Feature::Empty);
    let said = |error: datapipes::Error| error.to_string();
    assert_eq!(
        said(example.int("x").unwrap_err()),
        r#"not found: the example has no feature "x", but "a", "b", "c""#
    );
    assert_eq!(
        said(example.int("a").unwrap_err()),
        r#"corrupt: feature "a" holds floats, not ints"#
    );
    assert_eq!(
        said(example.int("b").unwrap_err()),
        r#"shape mismatch: feature "b" has 2 values where one is due"#
    );
    assert!(example.bytes("c").unwrap().is_empty());
    let bytes = Example::new().with("t", Bytes::from_static(b"a\xff"));
    assert!(
        said(bytes.text("t").unwrap_err()).starts_with(r#"corrupt: feature "t": invalid utf-8"#)
    );
    assert_eq!(
        format!("{example:?}"),
        r#"Example("a": 1 floats, "b": 2 ints, "c": 0 no type)"#
    );
}

#[test]
fn an_index_that_is_wrong_is_refused_with_its_line() {
    for (text, line) in [
        ("0 19\n19", 2),
        ("x 19", 1),
        ("0 19\n\n-1 3", 3),
        ("0 15", 1),
        ("0 19 1", 1),
    ] {
        let error = TfRecordIndex::parse(text.as_bytes()).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with(&format!("corrupt: line {line} of the index: ")),
            "{said}"
        );
    }
    assert!(TfRecordIndex::parse(format!("{} 20", u64::MAX - 10).as_bytes()).is_err());
    assert!(TfRecordIndex::parse(b"0 16\r\n16 20\r\n").unwrap().len() == 2);
}

#[tokio::test]
async fn row_101_records_by_index_are_checked() {
    let whole = file(&[b"one", b"two"]);
    let read = async |data: &[u8], index: &str, at: u64| {
        let store = InMemory::from_iter([("a", data.to_vec())]);
        let index = TfRecordIndex::parse(index.as_bytes()).unwrap();
        MapPipe::get(&IndexedTfRecords::new(store, "a", index), at).await
    };
    assert_eq!(read(&whole, "0 19\n19 19", 1).await.unwrap(), "two");
    let kind = |read: Result<Bytes>| read.unwrap_err().kind();
    assert_eq!(kind(read(&whole, "0 18", 0).await), ErrorKind::Corrupt);
    assert_eq!(kind(read(&whole, "1 19", 0).await), ErrorKind::Corrupt);
    assert_eq!(kind(read(&whole, "19 20", 0).await), ErrorKind::Truncated);
    assert_eq!(kind(read(&whole, "19 19", 1).await), ErrorKind::NotFound);
    for at in 0..19 {
        let mut data = whole.clone();
        data[at] ^= 1;
        let error = read(&data, "0 19\n19 19", 0).await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("memory:///a: record 0 at byte 0: "),
            "{error}"
        );
        assert_eq!(read(&data, "0 19\n19 19", 1).await.unwrap(), "two");
    }
}

#[test]
fn any_bytes_are_survived() {
    assert_eq!(
        check_format(TfRecords::new, &file(&[b"one", b"", b"three"])),
        3
    );
    assert_eq!(
        check_format(|| TfRecords::new().unchecked(), &file(&[b"one", b"two"])),
        2
    );
    assert_eq!(
        check_format(TfRecords::new, &gzip(&file(&[b"one", b"two"]))),
        2
    );
    assert_eq!(
        check_format(TfRecords::new, &zlib(&file(&[b"one", b"two"]))),
        2
    );
    // Without a checksum of the data the messages themselves are damaged.
    let example = Example::new()
        .with("a", vec![1i64, -1])
        .with("b", 2.0)
        .with("c", "text");
    let examples = || TfExamples::of(TfRecords::new().unchecked());
    assert_eq!(check_format(examples, &file(&[&example.encode()])), 1);
}

proptest! {
    #[test]
    fn messages_of_any_bytes_do_not_panic(data: Vec<u8>) {
        let _ = Example::parse(data.clone().into());
        let _ = SequenceExample::parse(data.into());
    }

    #[test]
    fn what_is_written_is_read(features in prop::collection::vec((".{0,4}", prop_oneof![
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9).prop_map(Bytes::from), 0..4).prop_map(Feature::Bytes),
        prop::collection::vec(-1e30f32..1e30, 0..4).prop_map(Feature::Floats),
        prop::collection::vec(any::<i64>(), 0..4).prop_map(Feature::Ints),
        Just(Feature::Empty),
    ]), 0..6)) {
        let example = features.into_iter().fold(Example::new(), |example, (name, feature)| example.with(name, feature));
        prop_assert_eq!(&Example::parse(example.encode().into()).unwrap(), &example);
        let read = read_all(TfExamples::new(), file(&[&example.encode(), b""]));
        prop_assert_eq!(read.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [example, Example::new()]);
    }
}
