//! Text, line by line.

mod split;

use bytes::Bytes;
use datapipes::{Error, Result};

use super::compression::Expansion;
use super::{Format, RecordSplitter};
pub(super) use split::Line;
use split::LineFraming;

/// Reads text files; an item is a line as a `String`.
///
/// - A line ends with LF or CRLF, which are not part of it. The last line needs no end; an empty
///   file has no lines. A CR elsewhere is an ordinary character.
/// - Text is UTF-8. A byte order mark at the beginning of the file is dropped.
/// - A compressed file is recognized by its first bytes and read as a stream: gzip, zstd, lz4,
///   bzip2 and xz, each but the first with its feature. A file whose name says that it is
///   compressed, and is not, is an error.
/// - Each line is copied once. [`bytes`](Lines::bytes) yields slices of the file.
///
/// # Errors
/// A line that is not UTF-8 is `Corrupt`, a line longer than [`max_line`](Lines::max_line) is
/// `Limit`; both errors contain the line's number, from one, and the position in the text, and the
/// next lines follow. A compressed file that is damaged or cut yields the lines before the damage,
/// then its error.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::Lines;
/// use datapipes_io::{File, prelude::*};
///
/// let files = vec![File::new("a.txt", "one\r\n\ntwo\n"), File::new("b.txt", "three")];
/// let lines = Graph::from_vec(files).read_as(Lines::new()).collect()?;
/// assert_eq!(lines, ["one", "", "two", "three"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Lines {
    options: Options,
}

/// Options of the formats that read lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) max_line: usize,
    pub(super) expansion: Expansion,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_line: 64 << 20,
            expansion: Expansion::streamed(),
        }
    }
}

impl Options {
    /// Returns the splitter of a file into lines, with a function of each line.
    pub(super) fn splitter<T: Send + 'static>(
        self,
        skip_blank: bool,
        read: fn(&Line<'_>) -> Result<T>,
    ) -> RecordSplitter<T> {
        RecordSplitter::new(LineFraming::new(self.max_line, skip_blank, read))
            .expansion(self.expansion)
    }
}

impl Lines {
    /// Reads lines with the default limits.
    pub fn new() -> Self {
        Lines::default()
    }

    /// Reads lines as bytes, without a check of their content, and without copies; see
    /// [`ByteLines`].
    pub fn bytes(self) -> ByteLines {
        ByteLines {
            options: self.options,
        }
    }

    datapipes::setters! {
        /// Refuses a line of more than `bytes`, not counting its end. Defaults to 64 MiB.
        max_line(bytes: usize) => options.max_line = bytes;

        /// Ends a compressed file with an error once it decompressed to more than `bytes`, or to more
        /// than `ratio` times its own size and 1 MiB. Defaults to any number of bytes, which are never
        /// in memory together, and 1100 times.
        max_expansion(bytes: u64, ratio: u64) => options.expansion.limit(bytes, ratio);
    }
}

impl Format for Lines {
    type Item = String;

    fn splitter(&self) -> Option<RecordSplitter<String>> {
        Some(
            self.options
                .splitter(false, |line| match std::str::from_utf8(line.text) {
                    Ok(text) => Ok(text.to_owned()),
                    Err(error) => Err(line.not_utf8(error)),
                }),
        )
    }
}

/// Reads text files; an item is a line as [`Bytes`]; made by [`Lines::bytes`].
///
/// The rules are as for [`Lines`], but the text need not be UTF-8, and lines are slices. A
/// line keeps its buffer in memory: the whole file, or, if the file is compressed or read as it
/// arrives, the piece or the block of 256 KiB that the line came in.
///
/// # Errors
/// The errors of [`Lines`], except that the text need not be UTF-8.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::Lines;
/// use datapipes_io::{File, prelude::*};
///
/// let files = vec![File::new("a.txt", &b"one\n\xff\n"[..])];
/// let lines = Graph::from_vec(files).read_as(Lines::new().bytes()).collect()?;
/// assert_eq!(lines, [&b"one"[..], b"\xff"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ByteLines {
    options: Options,
}

impl Format for ByteLines {
    type Item = Bytes;

    fn splitter(&self) -> Option<RecordSplitter<Bytes>> {
        Some(self.options.splitter(false, |line| Ok(line.to_bytes())))
    }
}

impl Line<'_> {
    fn not_utf8(&self, error: std::str::Utf8Error) -> Error {
        let at = self.offset + error.valid_up_to() as u64;
        Error::corrupt(format!(
            "line {}: what is at byte {at} is not UTF-8",
            self.number
        ))
    }
}

#[cfg(test)]
mod tests;
