//! The last lines of a child's output.

use std::collections::VecDeque;

use crate::error::escape;
use crate::run::child::log::cut;

/// Number of lines that are kept.
const LINES: usize = 20;
/// Number of bytes that are kept; a longer line is cut.
const BYTES: usize = 4 << 10;

/// Splits a child's output into lines, and keeps the last of them for an error message.
///
/// Accepts any bytes in any pieces. Invalid UTF-8 is replaced, and control characters are escaped,
/// so that a line cannot forge log entries. Empty lines are left out. At most 20 lines or 4 KiB are
/// kept, besides 4 KiB of a line that has not ended yet.
#[derive(Debug, Default)]
pub(in super::super) struct LastLines {
    kept: VecDeque<String>,
    /// Bytes of all lines together.
    bytes: usize,
    /// Bytes after the last line end; at most `BYTES`.
    begun: Vec<u8>,
}

impl LastLines {
    /// Adds a piece of output. Calls `each` for each line that ends in it; a line of more than 4
    /// KiB is passed in parts.
    pub(in super::super) fn push(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(&str)) {
        while !bytes.is_empty() {
            let room = BYTES - self.begun.len();
            let piece = &bytes[..bytes.len().min(room)];
            match piece.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    self.begun.extend_from_slice(&piece[..end]);
                    bytes = &bytes[end + 1..];
                    let line = std::mem::take(&mut self.begun);
                    self.line(&line, each);
                }
                None => {
                    self.begun.extend_from_slice(piece);
                    bytes = &bytes[piece.len()..];
                    if self.begun.len() == BYTES {
                        let rest = self.begun.split_off(whole_characters(&self.begun));
                        let line = std::mem::replace(&mut self.begun, rest);
                        self.line(&line, each);
                    }
                }
            }
        }
    }

    /// Ends the output; bytes without a line end become the last line.
    pub(in super::super) fn finish(&mut self, each: &mut dyn FnMut(&str)) {
        let line = std::mem::take(&mut self.begun);
        self.line(&line, each);
    }

    /// Returns the last lines as one, separated by ` | `; none if there was no output.
    pub(in super::super) fn last(&self) -> Option<String> {
        let mut begun = text(&self.begun);
        cut(&mut begun, BYTES);
        let lines = self.kept.iter().map(String::as_str).chain([begun.as_str()]);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        (!lines.is_empty()).then(|| lines.join(" | "))
    }

    fn line(&mut self, line: &[u8], each: &mut dyn FnMut(&str)) {
        let mut line = text(line);
        if line.is_empty() {
            return;
        }
        each(&line);
        cut(&mut line, BYTES);
        self.bytes += line.len();
        self.kept.push_back(line);
        while self.kept.len() > LINES || self.bytes > BYTES {
            self.bytes -= self.kept.pop_front().map_or(0, |line| line.len());
        }
    }
}

/// Makes text that is safe to show. Escapes may make it longer than the limit.
fn text(line: &[u8]) -> String {
    escape(String::from_utf8_lossy(line).trim_end()).into_owned()
}

/// Returns the number of bytes before an incomplete character.
fn whole_characters(bytes: &[u8]) -> usize {
    // A character has up to 4 bytes, so the first byte of a cut character is among the last 3.
    let tail = bytes.len().saturating_sub(3);
    let cut = bytes[tail..]
        .iter()
        .rposition(|byte| *byte >= 0xc0)
        .map(|first| tail + first);
    match cut {
        Some(first)
            if std::str::from_utf8(&bytes[first..])
                .is_err_and(|error| error.error_len().is_none()) =>
        {
            first
        }
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[&[u8]]) -> (Vec<String>, LastLines) {
        let (mut lines, mut seen) = (LastLines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece, &mut |line| seen.push(line.to_owned()));
        }
        lines.finish(&mut |line| seen.push(line.to_owned()));
        (seen, lines)
    }

    #[test]
    fn row_11_lines_come_when_they_end() {
        let (mut lines, mut seen) = (LastLines::default(), Vec::new());
        assert_eq!(lines.last(), None);
        lines.push(b"one\r\n\n\ntw", &mut |line| seen.push(line.to_owned()));
        assert_eq!(lines.last().unwrap(), "one | tw");
        lines.push(b"o\n", &mut |line| seen.push(line.to_owned()));
        assert_eq!(seen, ["one", "two"]);
        assert_eq!(lines.last().unwrap(), "one | two");
    }

    #[test]
    fn a_line_cannot_forge_another() {
        let (seen, lines) = lines(&[b"a\x1b[2Jb\rc\0\n\xff\xfe d\xc3\n"]);
        assert_eq!(
            seen,
            ["a\\u{1b}[2Jb\\rc\\u{0}", "\u{fffd}\u{fffd} d\u{fffd}"]
        );
        assert_eq!(lines.last().unwrap(), seen.join(" | "));
    }

    #[test]
    fn the_last_20_lines_are_kept() {
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let (seen, lines) = lines(&[text.as_bytes()]);
        assert_eq!(seen.len(), 100);
        let last = lines.last().unwrap();
        assert!(
            last.starts_with("line 80 | line 81") && last.ends_with("line 99"),
            "{last}"
        );
    }

    #[test]
    fn a_line_without_end_is_cut_between_characters_and_nothing_is_lost() {
        let text = "é€😀x".repeat(5000);
        for size in [1, 7, 4096, text.len()] {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let (seen, lines) = lines(&pieces);
            assert_eq!(seen.concat(), text);
            assert!(seen.iter().all(|line| line.len() <= BYTES));
            assert!(lines.last().unwrap().len() <= BYTES);
        }
        // Bytes that begin characters but never complete one.
        let (seen, _) = lines(&[&[0xf0; 3 * BYTES]]);
        assert_eq!(seen.concat().chars().count(), 3 * BYTES);
    }

    #[test]
    fn escapes_do_not_make_more_of_it_than_is_kept() {
        let (seen, lines) = lines(&[&[0x1b; BYTES], b"\n", &[1; 100]]);
        assert_eq!(seen[0].len(), BYTES * "\\u{1b}".len());
        assert!(lines.last().unwrap().len() <= BYTES);
        let mut lines = LastLines::default();
        lines.push(&[0x1b; BYTES - 1], &mut |_| ());
        assert!(lines.last().unwrap().len() <= BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pieces_make_no_difference_and_memory_is_bounded(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'a')], 0..20_000),
            cuts in proptest::collection::vec(1usize..3000, 1..20),
        ) {
            let whole = lines(&[&bytes]);
            let (mut rest, mut pieces) = (bytes.as_slice(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at(rest.len().min(*cut));
                pieces.push(piece);
                rest = after;
            }
            let cut = lines(&pieces);
            prop_assert_eq!(&whole.0, &cut.0);
            prop_assert_eq!(whole.1.last(), cut.1.last());
            prop_assert!(whole.1.kept.len() <= LINES);
            prop_assert!(whole.1.bytes <= BYTES);
            prop_assert_eq!(whole.1.bytes, whole.1.kept.iter().map(String::len).sum::<usize>());
        }
    }
}
