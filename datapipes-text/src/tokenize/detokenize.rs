//! Text of tokens that come one by one.

use datapipes::Result;

use super::Tokenizer;

/// Returns the text of tokens as they come, for a look at what a model writes or a batch holds.
///
/// A character may be divided among tokens; it comes with the last of them. The texts of all tokens
/// one after another are what [`Tokenizer::decode`] returns for them together, if a tokenizer
/// decodes a token by those of the same character and by the one before it, as byte-level ones do.
///
/// # Examples
/// ```
/// use datapipes_text::{Detokenizer, HfTokenizer};
///
/// # let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/words.json"));
/// let mut text = Detokenizer::new(HfTokenizer::from_bytes(json)?);
/// assert_eq!(text.push(4)? + &text.push(5)? + &text.finish(), "good day");
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Detokenizer<T> {
    tokenizer: T,
    /// Tokens of an incomplete character, after the last token that was complete.
    ids: Vec<u32>,
    /// What they decode to, and the number of its bytes that were returned.
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
        self.ids.push(id);
        self.text = match self.tokenizer.decode(&self.ids) {
            Ok(text) => text,
            Err(error) => {
                self.ids.pop();
                return Err(error);
            }
        };
        // Bytes that are no character, or not yet one.
        let complete = self.text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let new = complete.get(self.given..).unwrap_or_default().to_owned();
        self.given = self.given.max(complete.len());
        if self.given == self.text.len() {
            self.ids.drain(..self.ids.len() - 1);
            self.text = self.tokenizer.decode(&self.ids)?;
            self.given = self.text.len();
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
