//! The last lines of what a child wrote.

use std::collections::VecDeque;

use crate::error::escape;

/// So many lines are kept.
const LINES: usize = 20;
/// So many bytes are kept, and a longer line is cut.
const BYTES: usize = 4 << 10;

/// Makes lines of what a child writes to an output, and keeps the last of them for an error
/// message.
///
/// It takes any bytes in any pieces. What is not UTF-8 is replaced, and control characters are
/// escaped, so that a line can forge nothing in a log. Empty lines are left out. No more than 20
/// lines or 4 KiB are kept, besides 4 KiB of the line that has not ended yet.
#[derive(Debug, Default)]
pub(in super::super) struct LastLines {
    kept: VecDeque<String>,
    /// Of all lines together.
    bytes: usize,
    /// What came after the last end of a line; at most `BYTES`.
    begun: Vec<u8>,
}

impl LastLines {
    /// The next piece. Gives each line that ends in it to `each`; a line of more than 4 KiB in
    /// parts.
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

    /// The output has ended: what came without the end of a line is one, too.
    pub(in super::super) fn finish(&mut self, each: &mut dyn FnMut(&str)) {
        let line = std::mem::take(&mut self.begun);
        self.line(&line, each);
    }

    /// The last lines as one, with ` | ` between; none where nothing was written.
    pub(in super::super) fn last(&self) -> Option<String> {
        let begun = short(text(&self.begun));
        let lines = self.kept.iter().map(String::as_str).chain([begun.as_str()]);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        (!lines.is_empty()).then(|| lines.join(" | "))
    }

    fn line(&mut self, line: &[u8], each: &mut dyn FnMut(&str)) {
        let line = text(line);
        if line.is_empty() {
            return;
        }
        each(&line);
        let line = short(line);
        self.bytes += line.len();
        self.kept.push_back(line);
        while self.kept.len() > LINES || self.bytes > BYTES {
            self.bytes -= self.kept.pop_front().map_or(0, |line| line.len());
        }
    }
}

/// As it may be shown.
fn text(line: &[u8]) -> String {
    escape(String::from_utf8_lossy(line).trim_end()).into_owned()
}

/// The beginning, where escapes have made it longer than what is kept.
fn short(mut line: String) -> String {
    if line.len() > BYTES {
        let end = (0..=BYTES)
            .rev()
            .find(|end| line.is_char_boundary(*end))
            .unwrap_or(0);
        line.truncate(end);
    }
    line
}

/// How many of these bytes there are before a character that is not complete.
fn whole_characters(bytes: &[u8]) -> usize {
    // A character has up to 4 bytes, so its first is among the last 3 if it is cut.
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
        // Bytes that begin a character again and again, and never end one.
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
