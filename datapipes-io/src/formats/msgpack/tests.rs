use serde::Deserialize;

use super::*;
use crate::testing::{check_format, read_all};

const REAL: &[u8] = include_bytes!("../../../tests/data/values.msgpack");

fn kind(result: &Result<Value>) -> ErrorKind {
    result.as_ref().unwrap_err().kind()
}

#[test]
fn a_file_of_python_is_read() {
    let values: Vec<Value> = read_all(MsgPack::values(), REAL)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(values.len(), 12);
    assert_eq!(values[0]["text"].as_str(), Some("ü 漢字 \u{1f600}"));
    assert_eq!(
        values[0]["bytes"].as_slice(),
        Some(&(0..=255).collect::<Vec<u8>>()[..])
    );
    let numbers: Vec<Option<i64>> = values[1]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::as_i64)
        .collect();
    let expected = [
        0,
        127,
        128,
        255,
        256,
        65536,
        1 << 32,
        -1,
        -32,
        -33,
        -129,
        -32769,
        -(1 << 31) - 1,
    ];
    assert_eq!(numbers, expected.map(Some));
    assert_eq!(values[2], Value::F64(1.5));
    assert_eq!(values[3], Value::F32(0.25));
    assert_eq!(values[4], Value::Ext(5, b"abc".to_vec()));
    assert_eq!(values[6].as_array().unwrap().len(), 70_000 / 1000);
    assert_eq!(values[7].as_str().unwrap().len(), 300);
    assert_eq!(check_format(MsgPack::values, REAL), 12);
}

#[test]
fn values_are_types_of_serde() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Point {
        x: u8,
        y: f32,
    }
    // By name, by position, and a value that does not fit.
    let data =
        b"\x82\xa1x\x01\xa1y\xcb\x3f\xf8\0\0\0\0\0\0\x92\x02\xca\x3e\x80\0\0\x81\xa1x\xa1?\x92\x03\x00";
    let read = read_all(MsgPack::<Point>::new(), &data[..]);
    let points: Vec<Option<&Point>> = read.iter().map(|point| point.as_ref().ok()).collect();
    let point = |x, y| Point { x, y };
    assert_eq!(
        points,
        [
            Some(&point(1, 1.5)),
            Some(&point(2, 0.25)),
            None,
            Some(&point(3, 0.0))
        ]
    );
    let error = read[2].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error
            .to_string()
            .contains("msgpack: 0:0/2: corrupt: the value at byte 22: "),
        "{error}"
    );
}

#[test]
fn sizes_are_believed_as_far_as_there_are_bytes() {
    let claims: [&[u8]; 7] = [
        b"\xdd\xff\xff\xff\xff\x01",
        b"\xdf\xff\xff\xff\xff\x01\x02",
        b"\xdb\xff\xff\xff\xffabc",
        b"\xc6\xff\xff\xff\xffabc",
        b"\xc9\xff\xff\xff\xff\x01abc",
        b"\x95\x01\x02\x03\x04",
        b"\xcb\0\0",
    ];
    for claim in claims {
        let read = read_all(MsgPack::values(), [b"\x07", claim].concat());
        assert_eq!(read.len(), 2, "{}", claim.escape_ascii());
        assert_eq!(read[0].as_ref().unwrap().as_u64(), Some(7));
        assert_eq!(
            kind(&read[1]),
            ErrorKind::Truncated,
            "{}",
            claim.escape_ascii()
        );
    }
    let read = read_all(MsgPack::values(), &b"\x01\x92\x01\xc1\x05"[..]);
    assert_eq!((read.len(), kind(&read[1])), (2, ErrorKind::Corrupt));
    let said = read[1].as_ref().unwrap_err().to_string();
    assert!(
        said.ends_with("the value at byte 1, at byte 3: 0xc1, which begins no value"),
        "{said}"
    );
}

#[test]
fn row_107_depth_is_limited() {
    let deep = |levels: usize| [vec![0x91; levels], vec![0x01]].concat();
    for levels in [1, 127, 128] {
        assert!(
            read_all(MsgPack::values(), deep(levels))[0].is_ok(),
            "{levels}"
        );
    }
    assert!(read_all(MsgPack::<serde_json::Value>::new(), deep(128))[0].is_ok());
    for levels in [129, 100_000] {
        assert_eq!(
            kind(&read_all(MsgPack::values(), deep(levels))[0]),
            ErrorKind::Limit,
            "{levels}"
        );
    }
    assert_eq!(
        kind(&read_all(MsgPack::values().max_depth(2), deep(3))[0]),
        ErrorKind::Limit
    );
}

#[test]
fn cut_at_every_byte() {
    let whole = read_all(MsgPack::values(), REAL);
    for cut in (0..REAL.len()).step_by(7) {
        let read = read_all(MsgPack::values(), &REAL[..cut]);
        let (values, errors): (Vec<_>, Vec<_>) = read.into_iter().partition(Result::is_ok);
        assert!(
            errors.len() <= 1
                && errors
                    .iter()
                    .all(|error| kind(error) == ErrorKind::Truncated)
        );
        for (value, expected) in values.iter().zip(&whole) {
            assert_eq!(value.as_ref().unwrap(), expected.as_ref().unwrap());
        }
    }
}
