//! Files written by the Python package, and wrong headers.

use super::*;
use crate::testing::{check_format, read_all};
use datapipes::ErrorKind;

const REAL: &[u8] = include_bytes!("../../../tests/data/types.safetensors");
const EIGHT_BITS: &[u8] = include_bytes!("../../../tests/data/float8.safetensors");

fn tensors(data: &[u8]) -> Vec<(Arc<str>, Tensor)> {
    let read = read_all(SafeTensors::new(), data.to_vec());
    read.into_iter().map(Result::unwrap).collect()
}

fn with_header(header: &str, numbers: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        numbers,
    ]
    .concat()
}

fn error(data: impl Into<Bytes>) -> Error {
    let mut read = read_all(SafeTensors::new(), data);
    assert_eq!(read.len(), 1);
    read.remove(0).unwrap_err()
}

#[test]
fn a_file_of_python_is_read_and_written() {
    let read = tensors(REAL);
    let get = |name: &str| &read.iter().find(|(own, _)| &**own == name).unwrap().1;
    assert_eq!(read.len(), 15);
    assert_eq!(
        get("f64"),
        &Tensor::from_vec((0..6).map(f64::from).collect(), [2, 3]).unwrap()
    );
    assert_eq!(get("i64").as_slice::<i64>().unwrap(), [-3, -2, -1, 0, 1, 2]);
    assert_eq!(
        get("u16").as_slice::<u16>().unwrap(),
        [0, 1, 2, 3, 4, 65535]
    );
    assert_eq!(get("bool").as_slice::<bool>().unwrap(), [true, false, true]);
    assert_eq!(
        (get("f16").dtype(), get("bf16").dtype()),
        (DType::F16, DType::BF16)
    );
    assert_eq!(get("bf16").as_bytes(), [0x80, 0x3f, 0x00, 0xc0]);
    assert_eq!(
        (get("scalar ü").shape(), get("empty").shape()),
        (&[][..], &[0, 3][..])
    );
    // Aligned as in any file, they are slices.
    assert!(get("f64").is_shared());
    let named = read.into_iter().map(|(name, own)| (name.to_string(), own));
    assert_eq!(write_safetensors(named).unwrap(), REAL);
}

#[test]
fn types_that_no_tensor_has_are_refused_by_name_and_others_follow() {
    let read = read_all(SafeTensors::new(), EIGHT_BITS);
    let said: Vec<String> = read
        .iter()
        .map(|item| match item {
            Ok((name, _)) => name.to_string(),
            Err(error) => error.to_string(),
        })
        .collect();
    let expected = "safetensors: 0:0/narrow: unsupported: a tensor of F8_E4M3, which is not read";
    assert_eq!(said, ["plain", expected]);
}

#[test]
fn misaligned_numbers_are_copied_once() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    for spaces in 0..8 {
        let data = with_header(
            &(header.to_owned() + &" ".repeat(spaces)),
            &[0, 0, 128, 63, 0, 0, 0, 192],
        );
        let read = tensors(&data);
        assert_eq!(
            read[0].1,
            Tensor::from_vec(vec![1.0f32, -2.0], [2]).unwrap()
        );
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let one = |shape: &str, offsets: &str, numbers: usize| {
        let header =
            format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
        error(with_header(&header, &vec![0; numbers])).kind()
    };
    assert_eq!(one("[2]", "[0,8]", 7), ErrorKind::Truncated);
    assert_eq!(one("[2]", "[0,8]", 9), ErrorKind::Corrupt);
    assert_eq!(one("[3]", "[0,8]", 8), ErrorKind::Corrupt);
    assert_eq!(one("[2]", "[1,9]", 9), ErrorKind::Corrupt);
    assert_eq!(one("[2]", "[8,0]", 8), ErrorKind::Corrupt);
    assert_eq!(one("[-2]", "[0,8]", 8), ErrorKind::Corrupt);
    assert_eq!(
        one("[4294967296,4294967296]", "[0,0]", 0),
        ErrorKind::Corrupt
    );
    let huge = format!("[0,{}]", 1u64 << 60);
    assert_eq!(
        one(&format!("[{}]", 1u64 << 58), &huge, 8),
        ErrorKind::Truncated
    );
    let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}"#;
    let said = error(with_header(twice, &[1])).to_string();
    assert!(
        said.contains("corrupt: the header: 'a' is there twice"),
        "{said}"
    );
    assert_eq!(error(with_header("[1]", b"")).kind(), ErrorKind::Corrupt);
    assert_eq!(
        error(with_header("{\"a\":", b"")).kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(
        error(&b"\xff\0\0\0\0\0\0\0{}"[..]).kind(),
        ErrorKind::Truncated
    );
    assert_eq!(
        error(u64::MAX.to_le_bytes().to_vec()).kind(),
        ErrorKind::Limit
    );
    assert_eq!(error("").kind(), ErrorKind::Truncated);
    let bool = r#"{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#;
    assert_eq!(error(with_header(bool, &[2])).kind(), ErrorKind::Corrupt);
    assert!(tensors(&with_header("{}", b"")).is_empty());
}

#[test]
fn tensors_without_numbers_come_in_the_order_of_the_header() {
    let one = |name: &str| format!(r#""{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let names = ["q", "a", "z", "b", "y", "c"];
    let header = format!("{{{}}}", names.map(one).join(","));
    for _ in 0..3 {
        let read = tensors(&with_header(&header, b""));
        assert_eq!(
            read.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
            names
        );
    }
}

#[test]
fn one_name_is_written_once() {
    let one = Tensor::scalar(1u8);
    for names in [["a", "a"], ["a", "__metadata__"]] {
        let refused = write_safetensors(names.map(|name| (name, one.clone()))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Shape);
    }
}

#[test]
fn any_bytes_are_survived() {
    assert_eq!(check_format(SafeTensors::new, REAL), 15);
    for cut in 0..REAL.len() {
        assert_eq!(
            error(REAL[..cut].to_vec()).kind(),
            ErrorKind::Truncated,
            "cut at {cut}"
        );
    }
}
