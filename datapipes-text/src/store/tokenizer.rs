//! The tokenizer that a store was made with.

use std::fs::File;
use std::io::BufReader;

use datapipes::{Error, Result};
use serde::Deserialize;

use super::TokenStore;
use crate::Tokenizer;

/// Part of the settings that `datapipes tokenize` leaves beside a store.
#[derive(Deserialize)]
struct Settings {
    #[serde(rename = "tokenizer (SHA-256)")]
    tokenizer: String,
}

impl TokenStore {
    /// Sets the [vocabulary](TokenStore::vocab) to that of a tokenizer, once it is that of the store,
    /// as far as both are known:
    ///
    /// - by [name](Tokenizer::name): that of a store is in datatrove's metadata;
    /// - by the [SHA-256](Tokenizer::digest) of its file: that of a store is in `corpus.json`, beside
    ///   the tokens, if `datapipes tokenize` made them.
    ///
    /// # Errors
    /// `Config` for a store that was made with another tokenizer, with both names or hashes.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "tokenizers")] {
    /// use datapipes_text::{HfTokenizer, TokenStore, TokenWidth, TokenWriter};
    ///
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("corpus.ds");
    /// # let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/words.json"));
    /// TokenWriter::datatrove(&path, TokenWidth::U16, "my/words")?.finish()?;
    /// let store = TokenStore::datatrove(&path)?;
    /// let tokenizer = HfTokenizer::from_bytes(json)?;
    /// assert!(store.clone().for_tokenizer(&tokenizer.named("other/words")).is_err());
    /// # }
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn for_tokenizer(self, tokenizer: &impl Tokenizer) -> Result<TokenStore> {
        let other = |what: String| {
            let message = format!("{}: made with {what}", self.0.name);
            Err(Error::config(message))
        };
        match (&self.0.tokenizer, tokenizer.name()) {
            (Some(own), Some(name)) if own != name => {
                return other(format!("the tokenizer {own:?}, and not with {name:?}"));
            }
            _ => {}
        }
        match (self.recorded_digest(), tokenizer.digest()) {
            (Some(own), Some(digest)) if own != digest => {
                return other(format!(
                    "the tokenizer of SHA-256 {own}, and not with that of {digest}"
                ));
            }
            _ => {}
        }
        let vocab = u32::try_from(tokenizer.vocab_size());
        Ok(self.vocab(vocab.unwrap_or(u32::MAX)))
    }

    /// Returns the SHA-256 of the tokenizer in the settings beside the store. A file of this name may
    /// be another one, such as the corpus itself: it is not read into memory, and says nothing.
    fn recorded_digest(&self) -> Option<String> {
        let file = File::open(self.0.settings.as_ref()?).ok()?;
        let settings: Settings = serde_json::from_reader(BufReader::new(file)).ok()?;
        let digest = settings.tokenizer;
        let is_one = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one.then_some(digest)
    }
}
