//! Lines of plain and compressed files, and errors in them.

use datapipes::{Context, ErrorKind};

use super::*;
use crate::File;
use crate::testing::{check_format, gzip, read_all};

/// Reads the lines of a text, plain and compressed; errors are text.
fn lines_with(format: &Lines, text: &[u8]) -> Vec<Result<String, String>> {
    let read = |data: Vec<u8>| -> Vec<Result<String, String>> {
        let lines = read_all(format.clone(), data);
        lines
            .into_iter()
            .map(|line| line.map_err(|error| error.to_string()))
            .collect()
    };
    let plain = read(text.to_vec());
    assert_eq!(plain, read(gzip(text)));
    plain
}

fn lines(text: impl AsRef<[u8]>) -> Vec<String> {
    lines_with(&Lines::new(), text.as_ref())
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn ends_of_lines() {
    assert_eq!(lines(""), [""; 0]);
    assert_eq!(lines("\n"), [""]);
    assert_eq!(lines("a"), ["a"]);
    assert_eq!(lines("a\n"), ["a"]);
    assert_eq!(lines("a\r\nb\n\nc\r"), ["a", "b", "", "c\r"]);
    assert_eq!(lines("a\rb\r\r\nü\0"), ["a\rb\r", "ü\0"]);
}

#[test]
fn row_107_a_byte_order_mark_is_dropped_at_the_beginning_only() {
    assert_eq!(lines("\u{feff}"), [""; 0]);
    assert_eq!(lines("\u{feff}\n"), [""]);
    assert_eq!(lines("\u{feff}a\n\u{feff}b"), ["a", "\u{feff}b"]);
    let bytes = read_all(Lines::new().bytes(), "\u{feff}a\nb");
    assert_eq!(
        bytes.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
        ["a", "b"]
    );
}

#[test]
fn row_107_what_is_not_utf8_tells_its_place_and_others_follow() {
    let read = lines_with(&Lines::new(), b"\xef\xbb\xbfone\ntw\xffo\nthree\n\xc3");
    let error = |line, at| {
        Err(format!(
            "lines: 0:0/{line}: corrupt: line {}: what is at byte {at} is not UTF-8",
            line + 1
        ))
    };
    assert_eq!(
        read,
        [
            Ok("one".to_owned()),
            error(1, 9),
            Ok("three".to_owned()),
            error(3, 18)
        ]
    );
}

#[test]
fn long_lines_are_refused_and_others_follow() {
    let format = Lines::new().max_line(10);
    let long = "x".repeat(200_000);
    let text = format!("ten bytes.\r\neleven byte\n{long}\nlast\n");
    let read = lines_with(&format, text.as_bytes());
    assert_eq!(
        read.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, false, true]
    );
    let said = read[1].as_ref().unwrap_err();
    assert!(
        said.ends_with(
            "limit reached: line 2 at byte 12 has 11 bytes, and 10 are allowed (`max_line`)"
        ),
        "{said}"
    );
    let last = read_all(format, format!("a\n{long}"));
    assert_eq!(last[1].as_ref().unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn lines_across_blocks_are_whole() {
    let text: String = (0..400)
        .map(|n| format!("{n} {}\n", "y".repeat(n * 37 % 5000)))
        .collect();
    let expected: Vec<&str> = text.lines().collect();
    assert_eq!(lines(&text), expected);
    let long = "z".repeat(1 << 20);
    assert_eq!(lines(format!("a\n{long}\nb")), ["a", &long, "b"]);
}

#[test]
fn bytes_are_slices_of_the_file() {
    let data = Bytes::from(b"one\ntwo\r\n\xff".to_vec());
    let read = read_all(Lines::new().bytes(), data.clone());
    let read: Vec<Bytes> = read.into_iter().map(Result::unwrap).collect();
    assert_eq!(read, [&b"one"[..], b"two", b"\xff"]);
    assert_eq!(read[1].as_ptr(), data[4..].as_ptr());
    let inflated = read_all(Lines::new().bytes(), gzip(&data));
    assert_eq!(
        inflated.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
        read
    );
}

#[test]
fn row_96_a_cut_file_gives_the_lines_before_and_an_error() {
    let text: String = (0..50_000).map(|n| format!("{n}\n")).collect();
    let whole = gzip(text.as_bytes());
    for cut in [whole.len() - 1, whole.len() - 9, whole.len() / 2, 5] {
        let read = read_all(Lines::new(), whole[..cut].to_vec());
        let (last, before) = read.split_last().unwrap();
        assert_eq!(
            last.as_ref().unwrap_err().kind(),
            ErrorKind::Truncated,
            "cut at {cut}"
        );
        for (line, expected) in before.iter().zip(text.lines()) {
            assert_eq!(line.as_ref().unwrap(), expected);
        }
        assert!(cut == 5 || before.len() > 10_000);
    }
    let small = Lines::new().max_expansion(1000, 1 << 20);
    assert_eq!(
        read_all(small, whole)
            .last()
            .unwrap()
            .as_ref()
            .unwrap_err()
            .kind(),
        ErrorKind::Limit
    );
}

#[test]
fn row_106_the_name_of_a_plain_file_may_not_say_that_it_is_packed() {
    let open = |name: &str, data: &'static str| {
        Lines::new()
            .open(File::new(name, data), &Context::default())
            .map(Iterator::count)
    };
    assert_eq!(open("a.txt", "a\nb").unwrap(), 2);
    assert_eq!(
        open("a.txt.zst", "a\nb").unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(
        open("a.txt.xz", "").unwrap_err().kind(),
        ErrorKind::Truncated
    );
}

#[test]
fn any_bytes_are_survived() {
    let text = "\u{feff}one\r\ntwo ü\n\nthree";
    assert_eq!(check_format(Lines::new, text.as_bytes()), 4);
    assert_eq!(
        check_format(|| Lines::new().max_line(3).bytes(), b"a\nbcd\n"),
        2
    );
    assert_eq!(check_format(Lines::new, &gzip(text.as_bytes())), 4);
}

#[cfg(all(feature = "zstd", feature = "xz", feature = "lz4", feature = "bzip2"))]
#[test]
fn files_of_every_codec_are_read() {
    let files: [&[u8]; 5] = [
        include_bytes!("../../../tests/data/text-members.gz"),
        include_bytes!("../../../tests/data/text-frames.zst"),
        include_bytes!("../../../tests/data/text-frames.lz4"),
        include_bytes!("../../../tests/data/text-streams.bz2"),
        include_bytes!("../../../tests/data/text-streams.xz"),
    ];
    for file in files {
        let read = read_all(Lines::new(), file);
        assert_eq!(read.len(), 120);
        for (n, line) in read.into_iter().enumerate() {
            assert_eq!(line.unwrap(), format!("line {n} of text, {}", n * n));
        }
    }
}
