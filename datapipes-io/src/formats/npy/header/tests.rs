use super::*;
use datapipes::ErrorKind;

fn v1(text: &str) -> Vec<u8> {
    [
        MAGIC,
        &[1, 0],
        &(text.len() as u16).to_le_bytes(),
        text.as_bytes(),
    ]
    .concat()
}

fn read(text: &str) -> Result<Header> {
    let file = v1(text);
    let (header, at) = Header::parse(&file)?;
    assert_eq!(at, file.len());
    Ok(header)
}

fn kind(text: &str) -> ErrorKind {
    read(text).expect_err(text).kind()
}

#[test]
fn row_99_any_order_and_spacing_of_the_literal() {
    let plain = read("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }").unwrap();
    assert_eq!(
        (&plain.shape[..], plain.values, plain.fortran_order),
        (&[2, 3][..], 24, false)
    );
    for text in [
        "{'shape':(2,3),'descr':'<f4','fortran_order':False}",
        " { \"fortran_order\" : False ,\n\t\"shape\" : ( 2 , 3 , ) , \"descr\" : \"<f4\" } \n\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
    ] {
        assert_eq!(read(text).unwrap(), plain, "{text}");
    }
    let shape = |shape: &str| {
        read(&format!(
            "{{'descr': '|u1', 'fortran_order': True, 'shape': {shape}}}"
        ))
        .map(|h| h.shape)
    };
    assert!(shape("()").unwrap().is_empty());
    assert_eq!(shape("(0,)").unwrap(), [0]);
    assert_eq!(shape("(7,)").unwrap(), [7]);
    let axes = |n: usize| format!("({})", "1, ".repeat(n));
    assert_eq!(shape(&axes(64)).unwrap().len(), 64);
    assert_eq!(shape(&axes(65)).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn row_99_shapes_that_are_none() {
    let huge = usize::MAX.to_string();
    let (product, with_zero) = (format!("({huge}, {huge})"), format!("(0, {huge}, {huge})"));
    for shape in [
        "(7)",
        "[7]",
        "7",
        "(-1,)",
        "(+1,)",
        "(1.0,)",
        "(nan,)",
        "(NaN,)",
        "(inf,)",
        "(1e3,)",
        "(0x10,)",
        "(01,)",
        "(,)",
        "(1 2)",
        "(1,,2)",
        "(1",
        "(99999999999999999999999999,)",
        "(True,)",
        "(None,)",
        "(L,)",
        "('1',)",
        "(1,)*9",
        "(__import__('os').system('id'),)",
        &product,
        &with_zero,
    ] {
        let text = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
        assert_eq!(kind(&text), ErrorKind::Corrupt, "{shape}");
    }
    let error = read("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2), }").unwrap_err();
    assert_eq!(
        error.to_string(),
        "corrupt: field 'shape': \"-1\" is not a length; at byte 61"
    );
}

#[test]
fn row_99_headers_with_code_or_without_fields() {
    for text in [
        "",
        "{",
        "{}",
        "__import__('os').system('id')",
        "{'descr': __import__('os').system('id'), 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': false, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'shape': (2,)}",
        "{'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
        "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} or 1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}{}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (2,)}",
        "{'descr': 4, 'fortran_order': False, 'shape': (2,)}",
    ] {
        assert_eq!(kind(text), ErrorKind::Corrupt, "{text}");
    }
    let text = "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (2,), }";
    let error = read(text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("descr [('a', '<f4')"), "{error}");
}

#[test]
fn row_99_versions_and_lengths() {
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
    let file = |version: [u8; 2], len: &[u8]| [MAGIC, &version, len, text.as_bytes()].concat();
    let len = text.len() as u32;
    for major in [2, 3] {
        assert_eq!(
            Header::parse(&file([major, 0], &len.to_le_bytes()))
                .unwrap()
                .1,
            12 + text.len()
        );
    }
    let kind = |file: &[u8]| Header::parse(file).unwrap_err().kind();
    for version in [[0, 0], [1, 1], [4, 0], [255, 255]] {
        assert_eq!(
            kind(&file(version, &len.to_le_bytes())),
            ErrorKind::Unsupported
        );
    }
    // A header of 4 GiB that does not exist.
    let error = Header::parse(&file([2, 0], &u32::MAX.to_le_bytes())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("truncated: the header has {len} of 4294967295 bytes")
    );
    let whole = v1(text);
    for cut in 0..whole.len() {
        assert_eq!(kind(&whole[..cut]), ErrorKind::Truncated, "{cut}");
    }
    assert_eq!(kind(b"\x80\x04\x95"), ErrorKind::Unsupported);
    assert_eq!(kind(b"PK\x03\x04"), ErrorKind::Unsupported);
    assert_eq!(kind(b"GIF89a"), ErrorKind::Corrupt);
    let latin = [MAGIC, &[3, 0, 3, 0, 0, 0], b"{\xff}"].concat();
    assert!(
        Header::parse(&latin)
            .unwrap_err()
            .to_string()
            .contains("not UTF-8")
    );
}

#[test]
fn what_is_written_is_read() {
    for shape in [
        vec![],
        vec![5],
        vec![0, 3],
        vec![2, 3, 4],
        vec![1; 64],
        vec![1, usize::MAX / 16],
    ] {
        for fortran in [false, true] {
            let header =
                Header::new(NpyType::parse("<f8").unwrap(), fortran, shape.clone()).unwrap();
            let text = header.write();
            assert_eq!(text.len() % ALIGN, 0);
            assert_eq!(Header::parse(&text).unwrap(), (header, text.len()));
        }
    }
}
