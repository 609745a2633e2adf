//! Rows of files written by Python's csv, and errors in rows.

use datapipes::ErrorKind;
use serde::Deserialize;

use super::*;
use crate::testing::{check_format, gzip, read_all};

type List = Vec<String>;

/// Rows that `make_text.py` wrote, in every dialect.
const ROWS: [[&str; 3]; 6] = [
    ["name", "count", "note"],
    ["plain", "1", ""],
    ["a \"quoted\" name", "-2", "a, b"],
    ["two\nlines", "3.5", "three\r\nlines\n"],
    ["ü 漢字", "", " spaces "],
    ["", "5", "last"],
];
const EXCEL: &[u8] = include_bytes!("../../../tests/data/excel.csv");

fn lists(format: Csv<List>, data: impl Into<bytes::Bytes>) -> Vec<Result<List, String>> {
    let read = read_all(format, data);
    read.into_iter()
        .map(|row| row.map_err(|error| error.to_string()))
        .collect()
}

fn list(fields: &[&str]) -> Result<List, String> {
    Ok(fields.iter().map(|field| (*field).to_owned()).collect())
}

fn errors(data: impl Into<bytes::Bytes>) -> Vec<String> {
    lists(Csv::new().no_header(), data)
        .into_iter()
        .filter_map(Result::err)
        .collect()
}

#[test]
fn files_of_python_are_read() {
    let files: [(&[u8], Csv<List>); 4] = [
        (EXCEL, Csv::new()),
        (include_bytes!("../../../tests/data/unix.csv"), Csv::new()),
        (
            include_bytes!("../../../tests/data/tabs.tsv"),
            Csv::new().tsv(),
        ),
        (
            include_bytes!("../../../tests/data/single.csv"),
            Csv::new().delimiter(b';').quote(b'\''),
        ),
    ];
    for (data, format) in files {
        assert_eq!(
            lists(format.clone(), data),
            ROWS[1..].iter().map(|row| list(row)).collect::<Vec<_>>()
        );
        assert_eq!(
            lists(format.no_header(), data),
            ROWS.iter().map(|row| list(row)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn rows_have_names() {
    let read: Vec<Row> = read_all(Csv::rows(), EXCEL)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(read.len(), 5);
    assert_eq!(
        Value::Object(read[1].clone()),
        serde_json::json!({"name": ROWS[2][0], "count": "-2", "note": "a, b"})
    );
    let read: Vec<Row> = read_all(Csv::rows().no_header(), "a,b")
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        Value::Object(read[0].clone()),
        serde_json::json!({"0": "a", "1": "b"})
    );
}

#[test]
fn rows_are_types_of_serde() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Counted {
        count: Option<f32>,
        name: String,
    }
    let read = read_all(Csv::<Counted>::new(), EXCEL);
    let counts: Vec<Option<f32>> = read.into_iter().map(|row| row.unwrap().count).collect();
    assert_eq!(counts, [Some(1.0), Some(-2.0), Some(3.5), None, Some(5.0)]);
    let read = read_all(
        Csv::<(u8, bool)>::new().no_header(),
        "1,true\n256,true\n2,false\n",
    );
    assert_eq!(
        read.iter().map(|row| row.as_ref().ok()).collect::<Vec<_>>(),
        [Some(&(1, true)), None, Some(&(2, false))]
    );
    let error = read[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error
            .to_string()
            .starts_with("csv: 0:0/1: corrupt: line 2, byte 7: field 1: "),
        "{error}"
    );
}

#[test]
fn ragged_rows_tell_line_and_place_and_others_follow() {
    let said = |line, byte, there| {
        Err(format!(
            "csv: 0:0/1: corrupt: line {line}, byte {byte}: {there} fields, in a file whose rows have 2"
        ))
    };
    let read = |text: &'static str| lists(Csv::new(), text);
    assert_eq!(
        read("a,b\n1,2\n3\n4,5"),
        [list(&["1", "2"]), said(3, 8, 1), list(&["4", "5"])]
    );
    assert_eq!(
        read("a,b\r\n1,2\r\n3,4,5\r\n6,7\r\n"),
        [list(&["1", "2"]), said(3, 10, 3), list(&["6", "7"])]
    );
    assert_eq!(
        read("a,b\r1,2\r3\r4,5"),
        [list(&["1", "2"]), said(1, 8, 1), list(&["4", "5"])]
    );
    // After blank lines, and lines within a field.
    assert_eq!(
        read("\u{feff}a,b\n\n\"1\n\n1\",2\n\r\n\n3\n"),
        [list(&["1\n\n1", "2"]), said(8, 20, 1)]
    );
    let comments = lists(
        Csv::new().comment(b'#'),
        "# c\na,b\n#\n1,2\n#x\r\n#y\n3\n#z",
    );
    assert_eq!(comments, [list(&["1", "2"]), said(7, 21, 1)]);
}

#[test]
fn the_place_is_right_behind_many_blocks() {
    for packed in [false, true] {
        for end in ["\n", "\r\n"] {
            let good = format!("1,\"two{end}lines\"{end}").repeat(8_000);
            let mut text = format!("a,b{end}{good}bad{end}1,\u{fc}{end}").into_bytes();
            text.extend(b"2,x\xffy\n3,4");
            let at = text.len() - b"2,x\xffy\n3,4".len();
            if packed {
                text = gzip(&text);
            }
            let read = lists(Csv::new(), text);
            assert_eq!(read.len(), 8_004);
            assert_eq!(read[7_999], list(&["1", &format!("two{end}lines")]));
            let bad = at - "bad1,\u{fc}".len() - 2 * end.len();
            let ragged = format!("line 16002, byte {bad}: 1 fields, in a file whose rows have 2");
            assert!(
                read[8_000].as_ref().unwrap_err().ends_with(&ragged),
                "{read:?}",
                read = read[8_000]
            );
            let said = format!(
                "line 16004, field 2: what is at byte {} is not UTF-8",
                at + 3
            );
            assert!(
                read[8_002].as_ref().unwrap_err().ends_with(&said),
                "{read:?}",
                read = read[30_002]
            );
            assert_eq!(read[8_003], list(&["3", "4"]));
        }
    }
}

#[test]
fn quotes_that_are_never_closed_are_cuts() {
    for text in [
        "a,b\n1,\"2",
        "a,b\n1,\"2\n3,4\n5,6",
        "a,\"",
        "\"",
        "a,b\n1,\"2\"\"",
        "a,b\n1,\"\0",
    ] {
        let read = lists(Csv::new().no_header(), text);
        let said = read.last().unwrap().as_ref().unwrap_err();
        assert!(
            said.contains("truncated: line ") && said.ends_with("a quote that is never closed"),
            "{text:?}: {said}"
        );
    }
    // A quote within a field is an ordinary character, and so is a NUL.
    let closed = lists(Csv::new().no_header(), "5\" pipe,\"\"\n\"a\",5\"");
    assert_eq!(closed, [list(&["5\" pipe", ""]), list(&["a", "5\""])]);
    assert_eq!(
        lists(Csv::new().no_header(), "\0\n\0"),
        [list(&["\0"]), list(&["\0"])]
    );
    assert_eq!(
        lists(Csv::new().no_header().no_quotes(), "\"a,b"),
        [list(&["\"a", "b"])]
    );
}

#[test]
fn headers_are_checked() {
    let said = |text: &'static str| lists(Csv::new(), text).remove(0).unwrap_err();
    assert_eq!(
        said(""),
        "csv: 0:0: truncated: an empty file where a header is due"
    );
    assert_eq!(said("\n\n"), said(""));
    assert_eq!(
        said("a,b,a\n1,2,3"),
        "csv: 0:0: corrupt: two columns are called 'a'"
    );
    assert!(said("a,\"").ends_with("a quote that is never closed"));
    assert!(lists(Csv::new(), "a,b\n").is_empty());
    assert!(lists(Csv::new().no_header(), "").is_empty());
}

#[test]
fn a_mark_that_is_no_first_row_s_is_a_field_whatever_arrives_first() {
    // The first row is refused, so the second, which looks like a mark at the beginning, sets the
    // number of fields.
    let text = format!("{}\n\u{feff}\n\u{feff}\n1,2\n3\n", "x".repeat(300));
    let format = Csv::<List>::new().no_header().max_row(40);
    let read = lists(format.clone(), text.clone());
    assert_eq!((&read[1], &read[4]), (&list(&["\u{feff}"]), &list(&["3"])));
    for piece in [1, 2, 100] {
        let arrived = crate::testing::read_arriving(format.clone(), text.clone(), [piece]);
        let arrived: Vec<_> = arrived
            .into_iter()
            .map(|row| row.map_err(|error| crate::testing::unnamed(&error)))
            .collect();
        assert_eq!(arrived, read);
    }
}

#[test]
fn row_107_what_is_not_utf8_tells_its_place() {
    let read = errors(&b"a,b\nc,\"d\xffe\"\nf,g\n\xff,h"[..]);
    assert_eq!(read.len(), 2);
    assert!(
        read[0].ends_with("corrupt: line 2, field 2: what is at byte 8 is not UTF-8"),
        "{}",
        read[0]
    );
    assert!(
        read[1].ends_with("corrupt: line 4, field 1: what is at byte 16 is not UTF-8"),
        "{}",
        read[1]
    );
}

#[test]
fn long_rows_are_refused() {
    let format = Csv::<List>::new().no_header().max_row(100);
    let long = "x".repeat(101);
    let read = lists(format.clone(), format!("a\n{long}\nb\n"));
    assert_eq!((&read[0], &read[2]), (&list(&["a"]), &list(&["b"])));
    assert!(
        read[1]
            .as_ref()
            .unwrap_err()
            .contains("limit reached: line 2, byte 2: a row of 10"),
        "{read:?}"
    );
    // Much longer than the read buffer.
    let endless = format!("a\n\"{}", "x\n".repeat(1 << 20));
    let read = lists(format, endless);
    assert_eq!(read.len(), 2);
    assert!(
        read[1]
            .as_ref()
            .unwrap_err()
            .contains("limit reached: a row of more than 100 bytes"),
        "{read:?}"
    );
}

#[test]
fn settings_are_checked_and_told() {
    let problem = |format: Csv| format.problem();
    assert_eq!(problem(Csv::rows().tsv().comment(b'#')), None);
    assert_eq!(
        problem(Csv::rows().comment(b',')).unwrap(),
        "delimiter, quote and comment must differ"
    );
    for byte in [0, b'\n', b'\r', 0xff] {
        assert!(
            problem(Csv::rows().delimiter(byte))
                .unwrap()
                .ends_with("cannot be delimiter, quote or comment")
        );
    }
    assert_eq!(
        Csv::rows().tsv().no_header().settings(),
        "delimiter '\\t', no header"
    );
    assert_eq!(
        (Csv::rows().settings(), Csv::rows().no_header().settings()),
        (String::new(), "no header".to_owned())
    );
}

#[test]
fn row_96_a_cut_file_gives_the_rows_before_and_an_error() {
    let text: String = (0..50_000).map(|n| format!("{n},{n}\n")).collect();
    let whole = gzip(text.as_bytes());
    assert_eq!(lists(Csv::new().no_header(), whole.clone()).len(), 50_000);
    let read = read_all(
        Csv::<List>::new().no_header(),
        whole[..whole.len() / 2].to_vec(),
    );
    let (last, before) = read.split_last().unwrap();
    assert_eq!(last.as_ref().unwrap_err().kind(), ErrorKind::Truncated);
    assert!(before.len() > 10_000 && before.iter().all(Result::is_ok));
}

#[test]
fn any_bytes_are_survived() {
    assert_eq!(check_format(Csv::rows, EXCEL), 5);
    assert_eq!(
        check_format(
            || Csv::<List>::new().no_header().comment(b'#'),
            b"\xef\xbb\xbfa,\"b\r\n\"\r\n#c\n1,2"
        ),
        2
    );
}
