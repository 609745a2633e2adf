//! Splits a JSON array into its elements as its bytes arrive.

use datapipes::Result;
use serde::Deserialize;

/// Maximum length of an element in bytes.
const ELEMENT: usize = 64 << 10;

/// A splitter of an array into its elements. Holds one element.
#[derive(Default)]
pub(in crate::stores::http) struct Elements {
    /// Bytes of the current element.
    held: Vec<u8>,
    state: State,
    depth: u32,
    in_text: bool,
    escaped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Before,
    /// An element or `]` is next, after `[`.
    First,
    /// Within an element.
    Within,
    /// A comma was read.
    Next,
    After,
}

impl Elements {
    /// Parses bytes, and passes the elements that end in them to `found`.
    pub fn feed(
        &mut self,
        data: &[u8],
        found: &mut impl FnMut(&[u8]) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        for &byte in data {
            let space = byte.is_ascii_whitespace();
            match self.state {
                State::Before
                    if space || (self.held.is_empty() && matches!(byte, 0xef | 0xbb | 0xbf)) => {}
                State::Before if byte == b'[' => self.state = State::First,
                State::Before => return Err("not an array of JSON"),
                State::First if byte == b']' => self.state = State::After,
                State::First | State::Next if space => {}
                State::First | State::Next if matches!(byte, b',' | b']') => {
                    return Err("an array with a hole in it");
                }
                State::First | State::Next => {
                    self.state = State::Within;
                    self.within(byte, found)?;
                }
                State::Within => self.within(byte, found)?,
                State::After if space => {}
                State::After => return Err("more than one array"),
            }
        }
        Ok(())
    }

    fn within(
        &mut self,
        byte: u8,
        found: &mut impl FnMut(&[u8]) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        if self.in_text {
            self.in_text = self.escaped || byte != b'"';
            self.escaped = byte == b'\\' && !self.escaped;
        } else {
            match byte {
                b'"' => self.in_text = true,
                b'[' | b'{' => self.depth += 1,
                b',' | b']' if self.depth == 0 => {
                    self.state = if byte == b',' {
                        State::Next
                    } else {
                        State::After
                    };
                    let element = std::mem::take(&mut self.held);
                    found(&element)?;
                    // The memory is reused.
                    self.held = element;
                    self.held.clear();
                    return Ok(());
                }
                b']' | b'}' => {
                    self.depth = self
                        .depth
                        .checked_sub(1)
                        .ok_or("brackets that do not match")?
                }
                _ => {}
            }
        }
        if self.held.len() == ELEMENT {
            return Err("an element of more than 64 KiB");
        }
        self.held.push(byte);
        Ok(())
    }

    /// Checks that the array has ended.
    pub fn end(&self) -> Result<(), &'static str> {
        if self.state == State::After {
            Ok(())
        } else {
            Err("an array without an end")
        }
    }
}

/// Content of an element.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Element {
    Key(String),
    Named(Named),
    Row(Vec<serde_json::Value>),
}

/// An element that is a JSON object: of a manifest, of nginx, of Caddy.
#[derive(Deserialize)]
pub(super) struct Named {
    #[serde(alias = "key")]
    pub name: String,
    pub size: Option<u64>,
    #[serde(alias = "version")]
    pub etag: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub is_dir: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(text: &[u8], step: usize) -> Result<Vec<String>, &'static str> {
        let (mut elements, mut found) = (Elements::default(), Vec::new());
        for piece in text.chunks(step) {
            elements.feed(piece, &mut |element| {
                found.push(String::from_utf8_lossy(element).trim().to_owned());
                Ok(())
            })?;
        }
        elements.end().map(|()| found)
    }

    #[test]
    fn an_array_is_cut_at_its_commas_whatever_pieces_it_comes_in() {
        let text = br#" [ "a,]\"" , {"b": [1, "}"], "c\\": {}} ,3, [4,[5]] ] "#;
        for step in 1..text.len() {
            let found = elements(text, step).unwrap();
            assert_eq!(
                found,
                [
                    r#""a,]\"""#,
                    r#"{"b": [1, "}"], "c\\": {}}"#,
                    "3",
                    "[4,[5]]"
                ]
            );
        }
        assert!(elements(b"[]", 1).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_array_is_said_to_be_none() {
        let wrong: [&[u8]; 8] = [
            b"", b"{}", b"[1", b"[1,]", b"[,1]", b"[1]2", b"[\"a]", b"[1}]",
        ];
        for text in wrong {
            assert!(
                elements(text, 2).is_err(),
                "{:?}",
                String::from_utf8_lossy(text)
            );
        }
        assert!(elements(&[b"[\"".to_vec(), vec![b'x'; ELEMENT]].concat(), 4096).is_err());
    }
}
