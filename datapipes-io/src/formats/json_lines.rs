//! JSON values, one on each line.

mod index;
mod indexed;

use std::marker::PhantomData;

use datapipes::{Error, ErrorKind, Result, opaque_debug};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use super::lines::{Line, Options};
use super::{Format, RecordSplitter};
pub use index::LineIndex;
pub use indexed::IndexedJsonLines;

/// Reads JSON lines (`jsonl`, `ndjson`): a JSON value on each line, as a [`serde_json::Value`] or
/// any type that implements serde's `Deserialize`.
///
/// - Blank lines are skipped. Lines and compression are as for [`Lines`](super::Lines).
/// - Values are parsed by [`serde_json`]. A duplicate key is an error in a struct, and has its last
///   value in a `Value`. `NaN` and `Infinity` are errors. Arrays and objects nest up to 127 deep.
/// - A value is parsed directly from its line. Memory holds that value and the file.
///
/// # Errors
/// A line that is no JSON, or not of the requested type, is `Corrupt`, and `Limit` if it nests too
/// deep; the error contains the line and column, from one, and the position in the text. The last
/// line is `Truncated` if it ends within its value. The next lines follow.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::JsonLines;
/// use datapipes_io::{File, prelude::*};
/// use serde::Deserialize;
///
/// #[derive(Debug, PartialEq, Deserialize)]
/// struct Caption {
///     text: String,
///     likes: u32,
/// }
///
/// let files = vec![File::new("a.jsonl", r#"{"text": "a dog", "likes": 3}"#)];
/// let read = Graph::from_vec(files.clone()).read_as(JsonLines::<Caption>::new()).collect()?;
/// assert_eq!(read, [Caption { text: "a dog".into(), likes: 3 }]);
///
/// let read = Graph::from_vec(files).read_as(JsonLines::values()).collect()?;
/// assert_eq!(read[0]["likes"], 3);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[must_use]
pub struct JsonLines<T = Value> {
    options: Options,
    value: PhantomData<fn() -> T>,
}

impl JsonLines {
    /// Reads values of any kind, with the default limits.
    pub fn values() -> Self {
        JsonLines::new()
    }
}

impl<T> JsonLines<T> {
    /// Reads values of a type, with the default limits.
    pub fn new() -> Self {
        JsonLines {
            options: Options::default(),
            value: PhantomData,
        }
    }

    datapipes::setters! {
        /// Refuses a line of more than `bytes`. Defaults to 64 MiB.
        max_line(bytes: usize) => options.max_line = bytes;

        /// Ends a compressed file with an error once it decompressed to more than `bytes`, or to more
        /// than `ratio` times its own size and 1 MiB. Defaults to any number of bytes, which are never
        /// in memory together, and 1100 times.
        max_expansion(bytes: u64, ratio: u64) => options.expansion.limit(bytes, ratio);
    }
}

impl<T> Default for JsonLines<T> {
    fn default() -> Self {
        JsonLines::new()
    }
}

datapipes::clone_fields!(JsonLines<T> { options, value });

opaque_debug!(JsonLines<T> { options });

impl<T: DeserializeOwned + Send + 'static> Format for JsonLines<T> {
    type Item = T;

    fn splitter(&self) -> Option<RecordSplitter<T>> {
        let read = |line: &Line<'_>| parse(line.text, line.number, line.offset, line.last);
        Some(self.options.splitter(true, read))
    }
}

/// Parses a line by its number, its first byte in the file, and if it ends with the file.
fn parse<T: DeserializeOwned>(text: &[u8], number: u64, offset: u64, last: bool) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| said(&error, number, offset, last))
}

/// Formats an error with its position in the file instead of that in the line.
fn said(error: &serde_json::Error, number: u64, offset: u64, last: bool) -> Error {
    let text = error.to_string();
    let column = error.column();
    let text = text
        .strip_suffix(&format!(" at line {} column {column}", error.line()))
        .unwrap_or(&text);
    let kind = match error.classify() {
        Category::Eof if last => ErrorKind::Truncated,
        _ if text == "recursion limit exceeded" => ErrorKind::Limit,
        _ => ErrorKind::Corrupt,
    };
    // The column is the position of the byte in the line, plus one.
    let at = offset + column.saturating_sub(1) as u64;
    Error::new(
        kind,
        format!(
            "line {number}, column {column}, byte {at}: {}",
            shortened(text)
        ),
    )
}

/// Shortens a message of serde, which may contain a value of any length.
pub(super) fn shortened(text: &str) -> std::borrow::Cow<'_, str> {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::testing::{check_format, read_all};

    const REAL: &[u8] = include_bytes!("../../tests/data/unicode.jsonl");

    fn values(data: impl Into<bytes::Bytes>) -> Vec<Result<Value>> {
        read_all(JsonLines::values(), data)
    }

    fn error(data: &'static str) -> String {
        values(data)
            .into_iter()
            .find_map(Result::err)
            .expect("an error")
            .to_string()
    }

    #[test]
    fn a_file_of_python_is_read() {
        let values: Vec<Value> = values(REAL).into_iter().map(Result::unwrap).collect();
        assert_eq!(values.len(), 6);
        assert_eq!(values[0]["text"], "ü 漢字 \u{1f600} \u{2028} \"\\\n\t\u{0}");
        assert_eq!(values[1]["text"], values[0]["text"]);
        assert_eq!(
            values[2],
            serde_json::json!([0, -1, 18446744073709551615u64, 1.5, 1e300, true, null])
        );
        assert_eq!(values[3], "a string");
        assert_eq!(values[5]["deep"][0][0][0]["x"], 5);
        assert_eq!(check_format(JsonLines::values, REAL), 6);
    }

    #[test]
    fn blank_lines_are_skipped_and_counted() {
        let text = "\u{feff}{\"a\": 1}\r\n\r\n  \t\n[2]\n\nx\n3";
        let read = values(text);
        assert_eq!(read.len(), 4);
        assert_eq!(read[1].as_ref().unwrap(), &serde_json::json!([2]));
        let error = read[2].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error
                .to_string()
                .ends_with("line 6, column 1, byte 24: expected value"),
            "{error}"
        );
        assert_eq!(text.as_bytes()[24], b'x');
    }

    #[test]
    fn row_107_what_is_no_json_tells_its_place() {
        let ends =
            |text: &'static str, end: &str| assert!(error(text).ends_with(end), "{}", error(text));
        ends(
            "[1]\n[1,]\n",
            "corrupt: line 2, column 4, byte 7: trailing comma",
        );
        ends(
            "{\"a\": NaN}",
            "corrupt: line 1, column 7, byte 6: expected value",
        );
        ends(
            "-Infinity",
            "corrupt: line 1, column 2, byte 1: invalid number",
        );
        ends(
            "1 2",
            "corrupt: line 1, column 3, byte 2: trailing characters",
        );
        ends(
            "[1",
            "truncated: line 1, column 2, byte 1: EOF while parsing a list",
        );
        ends(
            "[1\n2",
            "corrupt: line 1, column 2, byte 1: EOF while parsing a list",
        );
        let error = values(&b"[1]\n\"a\xffb\"\n"[..]).remove(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("line 2, column "), "{error}");
    }

    #[test]
    fn row_107_depth_is_limited() {
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels) + "\n1";
        let read = values(deep(127));
        assert!(read.iter().all(Result::is_ok));
        for levels in [128, 100_000] {
            let read = values(deep(levels));
            assert_eq!(read[0].as_ref().unwrap_err().kind(), ErrorKind::Limit);
            assert_eq!(read[1].as_ref().unwrap(), 1);
        }
    }

    #[test]
    fn types_that_do_not_fit_are_errors_in_their_places() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Point {
            x: u8,
        }
        let long = "y".repeat(100_000);
        let text = format!(
            "{{\"x\": 1}}\n{{\"x\": 256}}\n{{\"x\": 2, \"x\": 3}}\n{{\"x\": \"{long}\"}}\n{{\"x\": 4}}"
        );
        let read = read_all(JsonLines::<Point>::new(), text);
        let values: Vec<Option<u8>> = read
            .iter()
            .map(|point| point.as_ref().ok().map(|point| point.x))
            .collect();
        assert_eq!(values, [Some(1), None, None, None, Some(4)]);
        let said = read[1].as_ref().unwrap_err().to_string();
        assert!(
            said.ends_with("line 2, column 9, byte 17: invalid value: integer `256`, expected u8"),
            "{said}"
        );
        assert!(read[3].as_ref().unwrap_err().to_string().len() < 400);
        assert_eq!(
            self::values("{\"a\": 1, \"a\": 2}")[0].as_ref().unwrap()["a"],
            2
        );
    }

    #[test]
    fn limits_are_told() {
        let read = read_all(JsonLines::<Value>::new().max_line(5), "[1,2]\n[1,2,3]\n7");
        assert_eq!(read[1].as_ref().unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(read[2].as_ref().unwrap(), 7);
    }
}
