//! Valid fields, as WebDataset decodes them, and invalid ones.

use datapipes::{ErrorKind, Graph, Tensor};

use super::*;
use crate::FileGraphExt;
use crate::testing::gzip;

fn decode(field: &str, data: impl Into<Bytes>) -> Result<Value> {
    FieldDecoder::new()
        .decode(Sample::new("k").with(field, data))?
        .take(field)
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

#[test]
fn extensions_tell_what_a_field_becomes() {
    for field in [
        "cls", "cls2", "class", "count", "index", "inx", "id", "a.cls", "A.b.ID",
    ] {
        assert_eq!(
            decode(field, " -17\r\n").unwrap(),
            Value::Int(-17),
            "{field}"
        );
    }
    for field in ["txt", "text", "transcript", "en.txt"] {
        assert_eq!(decode(field, "ü \n").unwrap(), text("ü \n"), "{field}");
    }
    for field in ["json", "jsn", "seg.json"] {
        let json = serde_json::json!({"a": [1, 2.5, null]});
        assert_eq!(
            decode(field, r#"{"a": [1, 2.5, null]}"#).unwrap(),
            Value::Json(json),
            "{field}"
        );
    }
    for field in ["jpg", "", "cls.jpg", "xcls", "txt.", "pkl", "pyd"] {
        assert_eq!(
            decode(field, "3").unwrap(),
            Value::Bytes("3".into()),
            "{field}"
        );
    }
}

#[test]
fn bytes_print_their_number() {
    let sample = Sample::new("k").with("jpg", "1234").with("cls", "3");
    let sample = FieldDecoder::new().decode(sample).unwrap();
    let printed = r#"Decoded { key: "k", fields: [("jpg", Bytes(4 bytes)), ("cls", Int(3))] }"#;
    assert_eq!(format!("{sample:?}"), printed);
}

#[cfg(feature = "msgpack")]
#[test]
fn message_pack_fields_are_values() {
    let packed = b"\x82\xa1a\x93\x01\xc0\xc4\x02\x00\xff\xa1b\xcb\x3f\xf8\0\0\0\0\0\0";
    for field in ["mp", "msg", "msgpack", "x.mp"] {
        let value = decode(field, &packed[..]).unwrap();
        let value = value.as_message_pack().unwrap();
        assert_eq!(value["a"][2].as_slice(), Some(&[0, 255][..]));
        assert_eq!(value["b"].as_f64(), Some(1.5));
    }
    for (data, at) in [
        (&packed[..5], 5),
        (b"\xdd\xff\xff\xff\xff", 5),
        (b"\x01\x02", 1),
        (b"", 0),
    ] {
        let error = decode("mp", data.to_vec()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = format!(r#"field "mp" of sample "k": byte {at}: "#);
        assert!(error.to_string().contains(&place), "{error}");
    }
    let deep = vec![0x91; 100_000];
    assert_eq!(decode("mp", deep).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn compressed_fields_are_inflated_and_then_decoded() {
    assert_eq!(decode("cls.gz", gzip(b"7")).unwrap(), Value::Int(7));
    assert_eq!(
        decode("bin.gz", gzip(b"7")).unwrap(),
        Value::Bytes("7".into())
    );
    let bomb = gzip(&vec![b' '; 3 << 20]);
    let decoder = FieldDecoder::new().max_expansion(1 << 20, 1100);
    let error = decoder
        .decode(Sample::new("k").with("json.gz", bomb))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains("json.gz"), "{error}");
}

#[test]
fn decoders_of_ones_own_come_first_and_the_last_of_them() {
    let tensor = |data: Bytes| Tensor::from_bytes(data.clone(), datapipes::DType::U8, [data.len()]);
    let decoder = FieldDecoder::new()
        .with("png Jpg", tensor)
        .with("seg.png", |_| datapipes::Ok(text("segments")))
        .with("cls", |data| String::from_utf8(data.to_vec()));
    let sample = Sample::new("k")
        .with("png", "ab")
        .with("jpg", "c")
        .with("a.seg.png", "")
        .with("xseg.png", "z");
    let decoded = decoder.decode(sample.with("cls", "cat")).unwrap();
    let shape = |field| {
        decoded
            .get(field)
            .unwrap()
            .as_tensor()
            .unwrap()
            .shape()
            .to_vec()
    };
    assert_eq!(
        (shape("png"), shape("jpg"), shape("xseg.png")),
        (vec![2], vec![1], vec![1])
    );
    assert_eq!(decoded.get("a.seg.png").unwrap(), &text("segments"));
    assert_eq!(decoded.get("cls").unwrap().as_text(), Some("cat"));
    let names: Vec<&str> = decoded.fields().map(|(name, _)| name).collect();
    assert_eq!(names, ["png", "jpg", "a.seg.png", "xseg.png", "cls"]);

    let error = decoder
        .decode(Sample::new("k").with("cls", vec![0xff]))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::User);
    assert!(
        error
            .to_string()
            .starts_with(r#"field "cls" of sample "k": invalid utf-8"#),
        "{error}"
    );
    assert!(
        decoded
            .get("x")
            .unwrap_err()
            .to_string()
            .contains(r#"no field "x", but "png""#)
    );
}

#[test]
fn row_107_marks_are_left_out_and_what_is_wrong_is_named_with_its_byte() {
    assert_eq!(decode("txt", "\u{feff}a").unwrap(), text("a"));
    assert_eq!(decode("cls", "\u{feff}4").unwrap(), Value::Int(4));
    assert_eq!(decode("json", "\u{feff}4").unwrap(), Value::Json(4.into()));
    let brackets = "[".repeat(100_000);
    let cases: &[(&str, &[u8], &str)] = &[
        ("txt", b"ab\xffc", "byte 2: 0xff is not UTF-8"),
        ("txt", b"\xef\xbb\xbfab\xc3", "byte 5: 0xc3 is not UTF-8"),
        (
            "txt",
            b"\xff\xfea\0",
            "byte 0: 0xff is not UTF-8 but perhaps UTF-16",
        ),
        ("json", b"{\"a\":\n \xc3(}", "byte 7: 0xc3 is not UTF-8"),
        ("json", b"[1,\n NaN]", "byte 5: no JSON"),
        ("json", b"[1,\n Infinity]", "byte 5: no JSON"),
        ("json", b"\xef\xbb\xbf[1 2]", "byte 6: no JSON"),
        ("json", b"1 2", "byte 2: no JSON"),
        ("json", b"[1,\n", "byte 4: no JSON"),
        ("json", b"", "byte 0: no JSON"),
        ("json", brackets.as_bytes(), "byte 127: no JSON"),
        ("json", b"1e999", "byte 4: no JSON"),
        (
            "cls",
            b" 9223372036854775808",
            "byte 1: 9223372036854775808 is out of the range",
        ),
        (
            "cls",
            b"-9223372036854775809",
            "byte 0: -9223372036854775809 is out of the range",
        ),
        ("cls", b"\n1.5", "byte 1: \"1.5\" is no whole number"),
        ("cls", b"", "byte 0: \"\" is no whole number"),
        ("cls", b"1 2", "byte 0: \"1 2\" is no whole number"),
        ("cls", b"\xff", "byte 0: 0xff is not UTF-8"),
    ];
    for (field, data, what) in cases {
        let error = decode(field, data.to_vec()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let begin = format!("corrupt: field {field:?} of sample \"k\": {what}");
        assert!(
            error.to_string().starts_with(&begin),
            "{error}, not {begin}"
        );
    }
}

#[test]
fn a_bad_sample_takes_its_place_and_the_others_follow() {
    let samples: Vec<Sample> = ["1", "x", "3"]
        .map(|cls| Sample::new(cls).with("cls", cls))
        .to_vec();
    let graph = Graph::from_vec(samples).decode_fields(FieldDecoder::new());
    let loader = datapipes::DataLoader::builder(graph)
        .workers(2)
        .on_error(datapipes::OnError::skip(3))
        .build()
        .unwrap();
    let read: Vec<i64> = loader
        .epoch(0)
        .blocking()
        .map(|sample| sample.unwrap().get("cls").unwrap().as_int().unwrap())
        .collect();
    assert_eq!(read, [1, 3]);
    let error = &loader.stats().unwrap().skipped_items[0].error;
    assert!(
        error.starts_with("decode_fields: ") && error.contains(r#"field "cls" of sample "x""#),
        "{error}"
    );
}
