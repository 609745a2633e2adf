//! Tokenizers of Hugging Face's `tokenizers`.

use std::path::Path;

use datapipes::{BoxError, Error, Result, catch_panic, whole_file};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::Tokenizer;
use super::words::Words;
use crate::Tokens;

/// A tokenizer of Hugging Face's `tokenizers`, from a `tokenizer.json`.
///
/// A truncation and padding that the file sets are not used: [`Tokenize::max_tokens`] cuts texts,
/// [`Pack`] and [`padded_batch`] pad them. The text of a special token within a document, such as
/// `<|endoftext|>`, becomes that token, as in Python; [`special_tokens_as_text`] makes plain text of
/// it.
///
/// The ids are those of the crate. A byte-level BPE that finds words as GPT-2, GPT-4, Llama 3 or Qwen
/// do makes them several times as fast, since it remembers up to 131,072 words: at most 30 MiB for all
/// threads of a process, which the printed plan counts, and as much again while they give way to more
/// frequent ones. Not so with [`offsets`] or [`add_special_tokens`], and for texts
/// that contain special tokens, or that are normalized before (Qwen) and change by it.
///
/// To share a tokenizer and its words among several graphs, give them clones of one
/// [`Arc`](std::sync::Arc) of it.
///
/// A file decides what becomes of a text, and so how much memory it takes: normalizers that replace
/// a letter by several, one after another, are not bounded.
///
/// [`offsets`]: crate::Tokenize::offsets
/// [`add_special_tokens`]: HfTokenizer::add_special_tokens
/// [`Tokenize::max_tokens`]: crate::Tokenize::max_tokens
/// [`Pack`]: crate::Pack
/// [`padded_batch`]: datapipes::Graph::padded_batch
/// [`special_tokens_as_text`]: HfTokenizer::special_tokens_as_text
#[must_use]
pub struct HfTokenizer {
    tokenizer: tokenizers::Tokenizer,
    words: Option<Words>,
    adds_special: bool,
    vocab: usize,
    name: Option<String>,
    digest: Option<String>,
}

/// Maximum size of a file that is read.
const MOST: u64 = 1 << 30;

impl HfTokenizer {
    /// Reads a file `tokenizer.json`.
    ///
    /// # Errors
    /// `NotFound`, `Denied` or `Io` if the file cannot be read, `Limit` if it has more than 1 GiB,
    /// `Corrupt` if it is no tokenizer; with its path.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let named = |error: Error| {
            let kind = error.kind();
            Error::new(kind, path.display().to_string()).with_source(error)
        };
        let bytes = whole_file::read(path, MOST).map_err(|error| named(Error::io(error)))?;
        HfTokenizer::from_bytes(bytes).map_err(named)
    }

    /// Reads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// `Corrupt` if it is no tokenizer, or if an added token has another id in it than the crate
    /// `tokenizers` gives it, which numbers them after the vocabulary without gaps.
    pub fn from_bytes(json: impl AsRef<[u8]>) -> Result<Self> {
        let json = json.as_ref();
        let read = || {
            let tokenizer = HfTokenizer::new(tokenizers::Tokenizer::from_bytes(json)?);
            tokenizer.check_added(json)?;
            Ok(tokenizer)
        };
        let tokenizer = caught("no tokenizer", read)?;
        let digest = Sha256::digest(json);
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(HfTokenizer {
            digest: Some(digest),
            ..tokenizer
        })
    }

    /// Uses a tokenizer that was made or trained with the crate `tokenizers`.
    pub fn new(mut tokenizer: tokenizers::Tokenizer) -> Self {
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .expect("no truncation needs nothing");
        // Ids may have gaps, so their number is not the bound.
        let vocab = tokenizer
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |id| id as usize + 1);
        HfTokenizer {
            words: Words::of(&tokenizer),
            tokenizer,
            adds_special: false,
            vocab,
            name: None,
            digest: None,
        }
    }

    /// Checks that each added token has the id that the file says. The crate only logs it.
    fn check_added(&self, json: &[u8]) -> tokenizers::Result<()> {
        let file: File = serde_json::from_slice(json)?;
        for Added { id, content } in file.added_tokens {
            let given = self.tokenizer.token_to_id(&content);
            if !content.is_empty() && given != Some(id) {
                let given = given.map_or("no id".to_owned(), |given| given.to_string());
                return Err(
                    format!("{content:?} has id {id} in the file, and gets {given}").into(),
                );
            }
        }
        Ok(())
    }

    datapipes::setters! {
        /// Adds the special tokens that the file's post-processor puts around a text, as `encode` in
        /// Python does by default. Without it, [`Tokenize::begin`](crate::Tokenize::begin) and
        /// [`end`](crate::Tokenize::end) say what is put there.
        add_special_tokens() => adds_special = true;

        /// Sets the name by which token stores know the tokenizer, such as that of its repository.
        named(name: impl Into<String>) => name = Some(name.into());

        /// Treats the text of special tokens within a document as any other text, so that a document
        /// cannot end itself.
        special_tokens_as_text() => tokenizer.set_encode_special_tokens(true);
    }
}

impl Tokenizer for HfTokenizer {
    fn encode(&self, text: &str, offsets: bool) -> Result<Tokens> {
        caught("tokenizer", || {
            let words = self.words.as_ref();
            if let Some(words) = words.filter(|_| !offsets && !self.adds_special)
                && let Some(ids) = words.encode(text, self.tokenizer.get_model())?
            {
                return Ok(Tokens {
                    ids,
                    ..Tokens::default()
                });
            }
            // The second one does not compute offsets, and is faster.
            let encoding = match offsets {
                true => self.tokenizer.encode(text, self.adds_special)?,
                false => self.tokenizer.encode_fast(text, self.adds_special)?,
            };
            let range = |&(begin, end): &(usize, usize)| begin as u32..end as u32;
            Ok(Tokens {
                ids: encoding.get_ids().to_vec(),
                labels: None,
                offsets: offsets.then(|| encoding.get_offsets().iter().map(range).collect()),
            })
        })
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(id) = ids
            .iter()
            .find(|&&id| self.tokenizer.id_to_token(id).is_none())
        {
            return Err(Error::not_found(format!("no token has id {id}")));
        }
        caught("tokenizer", || self.tokenizer.decode(ids, false))
    }
    fn vocab_size(&self) -> usize {
        self.vocab
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
    fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }
    fn kept_bytes(&self) -> usize {
        match &self.words {
            Some(_) if !self.adds_special => Words::BYTES,
            _ => 0,
        }
    }
}

/// The tokens of a file that are added to those of the model.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

/// Calls the crate, which panics at some files that contradict themselves, and at texts with them.
fn caught<R>(what: &str, work: impl FnOnce() -> tokenizers::Result<R>) -> Result<R> {
    let failed = |error: BoxError| Error::corrupt(what).with_source(error);
    catch_panic(work)
        .map_err(|panic| failed(panic.into()))?
        .map_err(failed)
}

datapipes::opaque_debug!(HfTokenizer { vocab_size = self.vocab_size() });
