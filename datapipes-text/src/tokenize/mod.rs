//! Tokenizes texts.

#[cfg(feature = "chat")]
mod chat;
mod detokenize;
#[cfg(feature = "tokenizers")]
mod hugging_face;
#[cfg(test)]
mod tests;
#[cfg(feature = "tokenizers")]
mod words;

use std::fmt;
use std::sync::Arc;

use datapipes::{Arity, Context, Error, Graph, Hints, Items, Pipe, Result, Weigh};

#[cfg(feature = "chat")]
pub use self::chat::{Chat, ChatTemplate, Message};
pub use self::detokenize::Detokenizer;
#[cfg(feature = "tokenizers")]
pub use self::hugging_face::HfTokenizer;
use crate::{Text, Tokens};

/// Turns text into token ids, and back.
///
/// It is called on many threads at once, a text at a time, and must not start threads of its own.
///
/// # Examples
/// A tokenizer of bytes:
/// ```
/// use datapipes::{Graph, Result};
/// use datapipes_text::{Tokenizer, Tokens, Tokenize, prelude::*};
///
/// struct ByteTokenizer;
///
/// impl Tokenizer for ByteTokenizer {
///     fn encode(&self, text: &str, offsets: bool) -> Result<Tokens> {
///         let ids: Vec<u32> = text.bytes().map(u32::from).collect();
///         let offsets = offsets.then(|| (0..ids.len() as u32).map(|at| at..at + 1).collect());
///         Ok(Tokens { ids, offsets, ..Tokens::default() })
///     }
///     fn decode(&self, ids: &[u32]) -> Result<String> {
///         Ok(ids.iter().map(|&id| id as u8 as char).collect())
///     }
///     fn vocab_size(&self) -> usize {
///         257
///     }
///     fn token_to_id(&self, token: &str) -> Option<u32> {
///         (token == "<eos>").then_some(256)
///     }
/// }
///
/// let tokens = Graph::from_vec(vec!["ab", "c"]).tokenize(Tokenize::new(ByteTokenizer).end("<eos>")).collect()?;
/// assert_eq!(tokens[0].ids, [97, 98, 256]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Tokenizer: Send + Sync + 'static {
    /// Returns the tokens of a text, with the bytes that each stands for if `offsets` is true;
    /// without labels.
    ///
    /// # Errors
    /// Any error of the text.
    fn encode(&self, text: &str, offsets: bool) -> Result<Tokens>;

    /// Returns the text that tokens stand for, for a look at them, and to tell tokenizers apart when
    /// an epoch is resumed.
    ///
    /// # Errors
    /// Any error, such as an id that does not exist.
    fn decode(&self, ids: &[u32]) -> Result<String>;

    /// Returns the number of tokens; ids are below it.
    fn vocab_size(&self) -> usize;

    /// Returns the id of a token, such as `<|endoftext|>`; `None` if there is no such token.
    fn token_to_id(&self, token: &str) -> Option<u32>;

    /// Returns the name by which token stores know the tokenizer, as datatrove's metadata has it:
    /// `"gpt2"`. `None`, the default, if it has none; see
    /// [`TokenStore::for_tokenizer`](crate::TokenStore::for_tokenizer).
    fn name(&self) -> Option<&str> {
        None
    }

    /// Returns the SHA-256 of the file that the tokenizer was read from, in hexadecimal. `None`, the
    /// default, if there is none; see [`TokenStore::for_tokenizer`](crate::TokenStore::for_tokenizer).
    fn digest(&self) -> Option<&str> {
        None
    }

    /// Returns the maximum number of bytes that it keeps of texts that it has seen; the printed plan
    /// says it. 0, the default, if it keeps nothing.
    fn kept_bytes(&self) -> usize {
        0
    }
}

impl<T: Tokenizer + ?Sized> Tokenizer for Arc<T> {
    datapipes::forward! { **self =>
        fn encode(&self, text: &str, offsets: bool) -> Result<Tokens>;
        fn decode(&self, ids: &[u32]) -> Result<String>;
        fn vocab_size(&self) -> usize;
        fn token_to_id(&self, token: &str) -> Option<u32>;
        fn name(&self) -> Option<&str>;
        fn digest(&self) -> Option<&str>;
        fn kept_bytes(&self) -> usize;
    }
}

/// Text whose tokens tell tokenizers apart.
const PROBE: &str = "The 7 quick brown foxes, don't they? naïve Übergröße 漢字 кот 🦊\n\tif x == 0x1F:  return None";

/// Number of tokens at both ends of a vocabulary whose texts are encoded, too: special tokens are
/// there, and may be told to be ordinary text.
const ENDS: usize = 32;

/// Describes a tokenizer, so that another one with as many tokens is found when an epoch is resumed.
pub(crate) fn fingerprint(tokenizer: &dyn Tokenizer) -> String {
    let vocab = tokenizer.vocab_size();
    let ends = (0..ENDS.min(vocab)).chain(vocab.saturating_sub(ENDS).max(ENDS)..vocab);
    // Ids may have gaps.
    let text = |id: usize| tokenizer.decode(&[id as u32]).ok();
    let mut key = 0u64;
    for text in std::iter::once(PROBE.to_owned()).chain(ends.filter_map(text)) {
        let ids = tokenizer.encode(&text, false).unwrap_or_default().ids;
        key = ids.iter().fold(key ^ ids.len() as u64, |key, &id| {
            (key ^ u64::from(id))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        });
    }
    format!("{vocab} tokens, {key:016x}")
}

/// Tokenizes texts; see [`TokenizeGraphExt::tokenize`].
#[derive(Clone)]
#[must_use]
pub struct Tokenize {
    tokenizer: Arc<dyn Tokenizer>,
    begin: Option<u32>,
    end: Option<u32>,
    max_tokens: Option<usize>,
    max_bytes: u32,
    offsets: bool,
    problem: Option<String>,
}

impl Tokenize {
    /// Tokenizes with this tokenizer.
    pub fn new(tokenizer: impl Tokenizer) -> Self {
        Tokenize {
            tokenizer: Arc::new(tokenizer),
            begin: None,
            end: None,
            max_tokens: None,
            max_bytes: u32::MAX,
            offsets: false,
            problem: None,
        }
    }

    /// Puts a token before each text: `"<s>"`. A token that the tokenizer does not have is reported
    /// when the loader is built.
    pub fn begin(mut self, token: &str) -> Self {
        self.begin = self.id(token);
        self
    }

    /// Puts a token after each text: `"</s>"`, `"<|endoftext|>"`. Also after a text that is cut.
    pub fn end(mut self, token: &str) -> Self {
        self.end = self.id(token);
        self
    }

    fn id(&mut self, token: &str) -> Option<u32> {
        let id = self.tokenizer.token_to_id(token);
        if id.is_none() {
            self.problem = Some(format!("the tokenizer has no token {token:?}"));
        }
        id
    }

    datapipes::setters! {
        /// Sets the maximum number of tokens of a text. The first ones are kept; the tokens that are
        /// put before and after the text count, too. Defaults to no limit.
        max_tokens(tokens: usize) => max_tokens = Some(tokens);

        /// Sets the maximum size of a text in bytes: one that is larger is an error of kind `Limit`, with
        /// its size, before it is tokenized. Defaults to 4 GiB. A tokenizer takes many times the memory of
        /// a text, and some take a time that grows faster than the text.
        max_bytes(bytes: u32) => max_bytes = bytes;

        /// Records the bytes of the text that each token stands for.
        offsets() => offsets = true;
    }

    /// Returns the tokens of one text.
    ///
    /// # Errors
    /// Any error of the tokenizer; `Corrupt` if it returns an id that is not below
    /// [`vocab_size`](Tokenizer::vocab_size); `Limit` for a text of more than
    /// [`max_bytes`](Tokenize::max_bytes).
    pub fn tokens(&self, text: &str) -> Result<Tokens> {
        Ok(self.tokens_and_cut(text)?.0)
    }

    /// Returns the tokens of one text, and true if some were cut off.
    fn tokens_and_cut(&self, text: &str) -> Result<(Tokens, bool)> {
        if text.len() > self.max_bytes as usize {
            let (size, most) = (text.len(), self.max_bytes);
            let message = format!("a text of {size} bytes, where at most {most} are allowed");
            return Err(Error::limit(message));
        }
        let mut tokens = self.tokenizer.encode(text, self.offsets)?;
        let vocab = self.tokenizer.vocab_size();
        if let Some(id) = tokens.ids.iter().find(|&&id| id as usize >= vocab) {
            let message =
                format!("the tokenizer gives id {id} and says that it has {vocab} tokens");
            return Err(Error::corrupt(message));
        }
        let all = tokens.ids.len();
        if let Some(most) = self.max_tokens {
            tokens.truncate(most.saturating_sub(self.around()));
        }
        let is_cut = tokens.ids.len() < all;
        let bytes = text.len() as u32;
        if let Some(id) = self.begin {
            tokens.ids.insert(0, id);
            tokens
                .offsets
                .iter_mut()
                .for_each(|offsets| offsets.insert(0, 0..0));
        }
        if let Some(id) = self.end {
            tokens.ids.push(id);
            tokens
                .offsets
                .iter_mut()
                .for_each(|offsets| offsets.push(bytes..bytes));
        }
        Ok((tokens, is_cut))
    }

    /// Returns the number of tokens that are put around a text.
    fn around(&self) -> usize {
        usize::from(self.begin.is_some()) + usize::from(self.end.is_some())
    }

    fn settings(&self) -> String {
        let mut said = fingerprint(&*self.tokenizer);
        for (what, value) in [
            ("begin", self.begin.map(u64::from)),
            ("end", self.end.map(u64::from)),
            ("at most", self.max_tokens.map(|most| most as u64)),
        ] {
            if let Some(value) = value {
                said += &format!(", {what} {value}");
            }
        }
        if self.max_bytes < u32::MAX {
            said += &format!(", at most {} bytes", self.max_bytes);
        }
        said + if self.offsets { ", offsets" } else { "" }
    }
}

impl fmt::Debug for Tokenize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tokenize").field(&self.settings()).finish()
    }
}

impl<T: Text> Pipe<T> for Tokenize {
    type Out = Tokens;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<Tokens> {
        let this = self.clone();
        input.each(cx, move |item| {
            Some(item.try_map(|text| this.tokens(text.text()?)))
        })
    }
    fn hints(&self) -> Hints {
        let none = self.max_tokens.is_some_and(|most| most <= self.around());
        Hints::shardable()
            .arity(Arity::One)
            .buffered_bytes(if self.offsets {
                0
            } else {
                self.tokenizer.kept_bytes()
            })
            .settings(self.settings())
            .problem(self.problem.as_deref())
            .problem(none.then_some("no room for a token of the text"))
    }
    fn weigh(&self, tokens: &Tokens) -> Option<usize> {
        Some(tokens.weigh())
    }
}

/// Tokenizing, for a graph of texts. Import it with the [`prelude`](crate::prelude).
pub trait TokenizeGraphExt: crate::sealed::Sealed {
    /// Tokenizes texts, with the token ids that [`Tokenize`] sets around them.
    ///
    /// Runs on the CPU workers, a text at a time on each; order is kept. A text may be a `String`,
    /// bytes, or a sample of your own ([`Text`]).
    ///
    /// # Errors
    /// `Corrupt` in place of a text that is no UTF-8, with the position in it; the tokenizer's
    /// errors. Each names the item.
    ///
    /// # Examples
    /// See [`Tokenizer`].
    fn tokenize(self, tokenize: Tokenize) -> Graph<Tokens>;
}

impl<T: Text> TokenizeGraphExt for Graph<T> {
    fn tokenize(self, tokenize: Tokenize) -> Graph<Tokens> {
        self.pipe(tokenize)
    }
}
