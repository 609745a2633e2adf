//! Text of tokens that come one by one.

use datapipes::Result;

use super::Tokenizer;

/// Number of tokens without the end of a character after which their bytes are given out as they are.
const LONGEST: usize = 32;

/// Returns the text of tokens as they come, for a look at what a model writes or a batch holds.
///
/// A character may be divided among tokens; it comes with the last of them. The joined texts equal
/// the result of [`Tokenizer::decode`] for all tokens together if the text of a token depends only on
/// the token before it and on the other tokens of its character. Byte-level tokenizers are of this
/// kind.
///
/// # Examples
/// ```
/// # #[cfg(feature = "tokenizers")] {
/// use datapipes_text::{Detokenizer, HfTokenizer};
///
/// # let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/words.json"));
/// let mut text = Detokenizer::new(HfTokenizer::from_bytes(json)?);
/// assert_eq!(text.push(4)? + &text.push(5)? + &text.finish(), "good day");
/// # }
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Detokenizer<T> {
    tokenizer: T,
    /// Tokens of an incomplete character, after the last token that was complete.
    ids: Vec<u32>,
    /// Text of these tokens, and the number of its bytes that were returned.
    text: String,
    given: usize,
}

impl<T: Tokenizer> Detokenizer<T> {
    /// Decodes with this tokenizer.
    pub fn new(tokenizer: T) -> Self {
        Detokenizer {
            tokenizer,
            ids: Vec::new(),
            text: String::new(),
            given: 0,
        }
    }

    /// Returns the text that is complete with this token; empty in the middle of a character.
    ///
    /// # Errors
    /// Any error of the tokenizer; the token is then left out.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let ids = [&self.ids[..], &[id]].concat();
        let text = self.tokenizer.decode(&ids)?;
        // Bytes that are no character, or not yet one; many of them will never be one.
        let complete = match ids.len() {
            0..LONGEST => text.trim_end_matches(char::REPLACEMENT_CHARACTER),
            _ => &text,
        };
        let new = complete.get(self.given..).unwrap_or_default().to_owned();
        let given = self.given.max(complete.len());
        if given < text.len() {
            (self.ids, self.text, self.given) = (ids, text, given);
        } else {
            let text = self.tokenizer.decode(&[id])?;
            (self.ids, self.given, self.text) = (vec![id], text.len(), text);
        }
        Ok(new)
    }

    /// Returns what is left at the end: a replacement character (U+FFFD) for an incomplete one.
    /// The next token begins another text.
    pub fn finish(&mut self) -> String {
        let rest = self.text.split_off(self.given);
        self.ids.clear();
        self.text.clear();
        self.given = 0;
        rest
    }
}

#[cfg(test)]
mod tests {
    use datapipes::{Error, ErrorKind};

    use super::*;
    use crate::Tokens;

    /// Token `n` stands for byte `n`, and 256 for the last two bytes of 漢 and a letter.
    struct Bytes;

    impl Tokenizer for Bytes {
        fn encode(&self, text: &str, _: bool) -> Result<Tokens> {
            Ok(text.bytes().map(u32::from).collect::<Vec<u32>>().into())
        }
        fn decode(&self, ids: &[u32]) -> Result<String> {
            let mut bytes = Vec::new();
            for &id in ids {
                match id {
                    0..256 => bytes.push(id as u8),
                    256 => bytes.extend(&"漢x".as_bytes()[1..]),
                    _ => return Err(Error::not_found(format!("no token {id}"))),
                }
            }
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        fn vocab_size(&self) -> usize {
            257
        }
        fn token_to_id(&self, _: &str) -> Option<u32> {
            None
        }
    }

    fn pieces(ids: &[u32]) -> Vec<String> {
        let mut text = Detokenizer::new(Bytes);
        let mut pieces: Vec<String> = ids.iter().map(|&id| text.push(id).unwrap()).collect();
        pieces.push(text.finish());
        pieces
    }

    #[test]
    fn a_character_comes_with_its_last_token() {
        let text = "aü漢🦊\u{fffd}b";
        let ids = Bytes.encode(text, false).unwrap().ids;
        let expected = [
            "a",
            "",
            "ü",
            "",
            "",
            "漢",
            "",
            "",
            "",
            "🦊",
            "",
            "",
            "",
            "\u{fffd}b",
            "",
        ];
        assert_eq!(pieces(&ids), expected);
        assert_eq!(pieces(&[0xe6, 256, 97]), ["", "漢x", "a", ""]);
    }

    #[test]
    fn bytes_that_are_no_character_are_replaced_as_by_decode() {
        for ids in [
            vec![0xff, 97],
            vec![0xe6, 0xbc],
            vec![97, 0xe6, 0xbc, 97, 0xff, 0xff, 98],
            vec![0x80, 0xc3, 0xbc, 0xf0, 0x9f, 0xc3, 0xbc],
        ] {
            assert_eq!(
                pieces(&ids).concat(),
                Bytes.decode(&ids).unwrap(),
                "{ids:?}"
            );
        }
    }

    /// Bytes that never become a character do not wait for ever.
    #[test]
    fn bytes_that_never_end_are_given_out() {
        let mut text = Detokenizer::new(Bytes);
        let given: usize = (0..1000).map(|_| text.push(0xff).unwrap().len()).sum();
        assert!(text.ids.len() <= LONGEST);
        assert_eq!(given + text.finish().len(), 3000);
    }

    #[test]
    fn a_token_that_does_not_exist_is_left_out_and_the_next_text_is_new() {
        let mut text = Detokenizer::new(Bytes);
        assert_eq!(text.push(0xc3).unwrap(), "");
        assert_eq!(text.push(999).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(text.push(0xbc).unwrap(), "ü");
        assert_eq!(text.push(0xc3).unwrap(), "");
        assert_eq!(text.finish(), "\u{fffd}");
        assert_eq!(text.push(98).unwrap() + &text.finish(), "b");
    }
}
