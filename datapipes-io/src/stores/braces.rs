//! Names of shards from a pattern with braces: `train-{000..099}.tar`.

use datapipes::{Error, Graph, Result};

use crate::FileRef;

/// Default maximum number of names that a pattern makes.
const MOST: u64 = 1_000_000;
/// Maximum average length of a name in bytes.
const LENGTH: u64 = 1 << 10;
/// Maximum nesting depth of braces.
const DEPTH: usize = 64;

/// Returns the names that a pattern with braces stands for, in order, as bash and WebDataset do.
///
/// - `{000..099}` counts, up or down, with leading zeros if one of the two numbers has them;
///   `{0..20..5}` counts in steps. `{a..e}` goes through letters (capitals before small letters,
///   nothing between `Z` and `a`).
/// - `{train,val}` is one part after the other; parts may be empty and have braces of their own. If
///   there are several groups, the last group changes first.
/// - `a.tar::b.tar` are two patterns, one after the other.
/// - Braces with neither a range nor a comma in them are left unchanged, and so is a character
///   after a backslash.
///
/// These are the rules of Python's package `braceexpand`, which WebDataset uses. There are two
/// differences: a closing brace that was not opened is always an error, and, unlike in WebDataset,
/// `${NAME}` is not replaced by an environment variable.
///
/// The limit is a million names, of 1 KiB on average; see [`expand_braces_to`] for more.
///
/// # Errors
/// `Config` if braces do not match, a number has more than 18 digits, or braces are nested more
/// than 64 deep; `Limit` if there are too many names, before any name is made.
///
/// # Examples
/// ```
/// use datapipes_io::stores::expand_braces;
/// assert_eq!(expand_braces("{a,b}-{08..10}.tar")?[..4], ["a-08.tar", "a-09.tar", "a-10.tar", "b-08.tar"]);
/// assert_eq!(expand_braces("train-{000..099}.tar::extra.tar")?.len(), 101);
/// assert!(expand_braces("{0..999999999}").is_err());
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// With a store:
/// ```
/// use datapipes_io::{prelude::*, stores::{InMemory, expand_braces}};
/// let store = InMemory::from_iter([("s-0.txt", "a"), ("s-1.txt", "b")]);
/// let files = store.files(expand_braces("s-{0..1}.txt")?).load_files().map(|file| file.data);
/// assert_eq!(files.collect()?, ["a", "b"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn expand_braces(pattern: &str) -> Result<Vec<String>> {
    expand_braces_to(pattern, MOST)
}

/// Expands a pattern as [`expand_braces`] does, with another limit on the number of names.
///
/// # Errors
/// The errors of [`expand_braces`].
pub fn expand_braces_to(pattern: &str, most: u64) -> Result<Vec<String>> {
    let parts = pattern.split("::").map(|part| Parser::new(part).whole());
    let whole = Node::Choice(parts.collect::<Result<_>>()?);
    let size = whole.size();
    if size.names > most || size.bytes > most.saturating_mul(LENGTH) {
        let what = format!(
            "the pattern `{pattern}` stands for {} names of {} bytes together; at most {most} names of {LENGTH} bytes are made",
            size.names, size.bytes
        );
        return Err(Error::limit(what));
    }
    Ok(whole.expand())
}

/// Returns the local files that a pattern with braces stands for, in order, without a check that
/// they exist: `shards("data/train-{000..099}.tar")`. See [`expand_braces`] for the patterns. For
/// files in a store, use `store.files(expand_braces(pattern)?)`.
///
/// The name of a file is its path in the pattern, with all folders.
///
/// # Errors
/// The errors of [`expand_braces`]. A missing file is an error when it is loaded.
///
/// # Examples
/// ```
/// use datapipes_io::{prelude::*, stores::shards};
/// # let dir = tempfile::tempdir()?;
/// # let folder = dir.path().display();
/// # for n in 0..3 { std::fs::write(dir.path().join(format!("t-{n}.txt")), n.to_string())? }
/// let files = shards(&format!("{folder}/t-{{0..2}}.txt"))?.load_files().map(|file| file.data);
/// assert_eq!(files.collect()?, ["0", "1", "2"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn shards(pattern: &str) -> Result<Graph<FileRef>> {
    let files: Vec<FileRef> = expand_braces(pattern)?
        .into_iter()
        .map(FileRef::new)
        .collect();
    Ok(Graph::from_vec(files).named("shards"))
}

/// A part of a pattern.
enum Node {
    Text(String),
    /// Range of numbers: first, last, step, minimum number of digits.
    Count(i64, i64, u64, usize),
    /// Range of letters, with the fields of [`Node::Count`] as positions in the alphabet.
    Letters(i64, i64, u64),
    /// Parts that are concatenated in each name.
    Row(Vec<Node>),
    /// Alternatives, each of which makes names of its own.
    Choice(Vec<Node>),
}

/// Number and length of the names that a part makes; saturates.
struct Size {
    names: u64,
    bytes: u64,
}

impl Node {
    fn size(&self) -> Size {
        let range = |from: i64, to: i64, step: u64| from.abs_diff(to) / step + 1;
        match self {
            Node::Text(text) => Size {
                names: 1,
                bytes: text.len() as u64,
            },
            &Node::Count(from, to, step, digits) => {
                let names = range(from, to, step);
                Size {
                    names,
                    bytes: names.saturating_mul(digits.max(20) as u64),
                }
            }
            &Node::Letters(from, to, step) => {
                let names = range(from, to, step);
                Size {
                    names,
                    bytes: names,
                }
            }
            Node::Row(parts) => parts
                .iter()
                .fold(Size { names: 1, bytes: 0 }, |left, part| {
                    let right = part.size();
                    Size {
                        names: left.names.saturating_mul(right.names),
                        bytes: (left.bytes.saturating_mul(right.names))
                            .saturating_add(right.bytes.saturating_mul(left.names)),
                    }
                }),
            Node::Choice(parts) => parts
                .iter()
                .fold(Size { names: 0, bytes: 0 }, |left, part| {
                    let right = part.size();
                    Size {
                        names: left.names.saturating_add(right.names),
                        bytes: left.bytes.saturating_add(right.bytes),
                    }
                }),
        }
    }

    fn expand(&self) -> Vec<String> {
        match self {
            Node::Text(text) => vec![text.clone()],
            &Node::Count(from, to, step, digits) => range(from, to, step)
                .map(|number| format!("{number:0digits$}"))
                .collect(),
            &Node::Letters(from, to, step) => range(from, to, step)
                .map(|place| char::from(letter(place)).to_string())
                .collect(),
            Node::Row(parts) => parts.iter().fold(vec![String::new()], |left, part| {
                let right = part.expand();
                if let [only] = &right[..] {
                    return left.into_iter().map(|name| name + only).collect();
                }
                left.iter()
                    .flat_map(|name| right.iter().map(move |end| format!("{name}{end}")))
                    .collect()
            }),
            Node::Choice(parts) => parts.iter().flat_map(Node::expand).collect(),
        }
    }
}

fn range(from: i64, to: i64, step: u64) -> impl Iterator<Item = i64> {
    // Numbers have 18 digits at most, so nothing overflows.
    let (steps, sign) = (from.abs_diff(to) / step, if from <= to { 1 } else { -1 });
    (0..=steps).map(move |n| from + sign * (n * step) as i64)
}

fn letter(place: i64) -> u8 {
    if place < 26 {
        b'A' + place as u8
    } else {
        b'a' + (place - 26) as u8
    }
}

fn place(letter: &str) -> Option<i64> {
    match *letter.as_bytes() {
        [letter @ b'A'..=b'Z'] => Some(i64::from(letter - b'A')),
        [letter @ b'a'..=b'z'] => Some(i64::from(letter - b'a') + 26),
        _ => None,
    }
}

struct Parser<'a> {
    pattern: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(pattern: &'a str) -> Self {
        Parser {
            pattern,
            at: 0,
            depth: 0,
        }
    }

    fn wrong(&self, what: &str) -> Error {
        let Parser { pattern, at, .. } = self;
        Error::config(format!("the pattern `{pattern}`: {what} at byte {at}"))
    }

    fn whole(mut self) -> Result<Node> {
        let node = self.row()?;
        match self.at == self.pattern.len() {
            true => Ok(node),
            false => Err(self.wrong("a closing brace that was not opened")),
        }
    }

    /// Parses up to the end, or to the comma or closing brace of the enclosing group.
    fn row(&mut self) -> Result<Node> {
        let (mut parts, mut text) = (Vec::new(), String::new());
        while let Some(c) = self.pattern[self.at..].chars().next() {
            match c {
                '}' => break,
                ',' if self.depth > 0 => break,
                '{' => {
                    if !text.is_empty() {
                        parts.push(Node::Text(std::mem::take(&mut text)));
                    }
                    parts.push(self.group()?);
                    continue;
                }
                '\\' => {
                    let escaped = self.pattern[self.at + 1..].chars().next();
                    self.at += 1 + escaped.map_or(0, char::len_utf8);
                    text.push(escaped.unwrap_or('\\'));
                    continue;
                }
                c => text.push(c),
            }
            self.at += c.len_utf8();
        }
        if !text.is_empty() {
            parts.push(Node::Text(text));
        }
        Ok(Node::Row(parts))
    }

    /// Parses the content of braces.
    fn group(&mut self) -> Result<Node> {
        let begin = self.at;
        if self.depth == DEPTH {
            return Err(self.wrong("braces nested more than 64 deep"));
        }
        self.depth += 1;
        let mut parts = Vec::new();
        loop {
            self.at += 1;
            parts.push(self.row()?);
            match self.pattern.as_bytes().get(self.at) {
                Some(b',') => {}
                Some(_) => break,
                None => {
                    self.at = begin;
                    return Err(self.wrong("a brace that is not closed"));
                }
            }
        }
        self.depth -= 1;
        let inside = &self.pattern[begin + 1..self.at];
        self.at += 1;
        if parts.len() > 1 {
            return Ok(Node::Choice(parts));
        }
        match count(inside) {
            None => {}
            Some(Some(node)) => return Ok(node),
            Some(None) => {
                self.at = begin;
                return Err(self.wrong("a number of more than 18 digits"));
            }
        }
        parts.insert(0, Node::Text("{".to_owned()));
        parts.push(Node::Text("}".to_owned()));
        Ok(Node::Row(parts))
    }
}

/// Parses a range such as `1..3` or `a..e`, with or without a step; `None` if the text is no range,
/// and `Some(None)` if a number is too long.
fn count(inside: &str) -> Option<Option<Node>> {
    let (from, rest) = inside.split_once("..")?;
    let (to, step) = match rest.split_once("..") {
        Some((to, step)) => (to, Some(step.strip_prefix('-').unwrap_or(step))),
        None => (rest, None),
    };
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = |text: &str| is_digits(text.strip_prefix('-').unwrap_or(text));
    if !step.is_none_or(is_digits) {
        return None;
    }
    // A step of `0` counts as 1, the default.
    let step = step.map_or(Some(1), |step| {
        short(step).map(|step| step.unsigned_abs().max(1))
    });
    if is_number(from) && is_number(to) {
        let is_padded = |text: &str| {
            text.strip_prefix('-').unwrap_or(text).len() > 1
                && text.trim_start_matches('-').starts_with('0')
        };
        let digits = if is_padded(from) || is_padded(to) {
            from.len().max(to.len())
        } else {
            0
        };
        let all = || Some(Node::Count(short(from)?, short(to)?, step?, digits));
        return Some(all());
    }
    let (from, to) = (place(from)?, place(to)?);
    Some(step.map(|step| Node::Letters(from, to, step)))
}

/// Parses a number of at most 18 digits, not counting leading zeros.
fn short(number: &str) -> Option<i64> {
    number
        .parse()
        .ok()
        .filter(|number: &i64| number.unsigned_abs() < 1_000_000_000_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    /// The table is made by `tests/data/make_braces.py` with the package `braceexpand`.
    #[test]
    fn patterns_are_expanded_as_by_the_package() {
        let table = include_str!("../../tests/data/braces.jsonl");
        let mut counts = [0, 0];
        for line in table.lines() {
            let (pattern, names): (String, Option<Vec<String>>) =
                serde_json::from_str(line).unwrap();
            counts[usize::from(names.is_some())] += 1;
            assert_eq!(expand_braces(&pattern).ok(), names, "{pattern}");
        }
        assert!(counts[0] > 50 && counts[1] > 200, "{counts:?}");
    }

    #[test]
    fn lists_of_patterns_come_one_after_the_other() {
        assert_eq!(
            expand_braces("a{1,2}::b::c{3..4}").unwrap(),
            ["a1", "a2", "b", "c3", "c4"]
        );
        assert_eq!(
            expand_braces("s3://b/x-{00..01}").unwrap(),
            ["s3://b/x-00", "s3://b/x-01"]
        );
    }

    #[test]
    fn row_98_more_names_than_allowed_are_refused_before_they_are_made() {
        for pattern in [
            "{0..1000000}",
            "{0..999}{0..999}{0..1}",
            &"{0..9}".repeat(30),
            "{0..999999999999999999}{0..999999999999999999}",
            &format!("{{1..1000000}}{}", "x".repeat(2000)),
            &format!("{{1..9}}{}", "{a,b}".repeat(5000)),
        ] {
            let error = expand_braces(pattern).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        }
        assert_eq!(expand_braces("{1..1000000}").unwrap().len(), 1_000_000);
        assert_eq!(expand_braces_to("{1..8}", 8).unwrap().len(), 8);
        let error = expand_braces_to("{1..9}", 8).unwrap_err().to_string();
        assert!(
            error.contains("9 names") && error.contains("at most 8"),
            "{error}"
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (pattern, what) in [
            ("ab{1..2", "a brace that is not closed at byte 2"),
            ("ab}1..2", "a closing brace that was not opened at byte 2"),
            ("}{", "a closing brace that was not opened at byte 0"),
            (
                "a{1..9999999999999999999}",
                "a number of more than 18 digits at byte 1",
            ),
            (
                "{a..b..9999999999999999999}",
                "a number of more than 18 digits at byte 0",
            ),
            (
                &"{".repeat(100_000),
                "braces nested more than 64 deep at byte 64",
            ),
        ] {
            let error = expand_braces(pattern).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().ends_with(what), "{error}");
        }
    }

    #[test]
    fn shards_that_are_not_there_are_errors_where_they_are_loaded() {
        use crate::FileGraphExt;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a-1"), "1").unwrap();
        let pattern = format!("{}/a-{{1..2}}", dir.path().display());
        let graph = shards(&pattern).unwrap().load_files();
        let loader = datapipes::DataLoader::builder(graph)
            .on_error(datapipes::OnError::skip(9))
            .build()
            .unwrap();
        assert_eq!(loader.epoch(0).blocking().count(), 1);
        assert!(
            loader.stats().unwrap().skipped_items[0]
                .error
                .contains("a-2")
        );
        assert!(shards("{").is_err());
    }
}
