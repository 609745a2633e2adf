//! Byte-level BPE word by word: a word is tokenized once, and then looked up.
//!
//! The crate `tokenizers` finds words by backtracking, copies each with the position of every byte,
//! and makes a string of each token. For ids alone none of that is needed. They are the same, since
//! the ids of a word depend on nothing but its letters.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use regex_automata::meta::{self, Regex};
use regex_automata::util::prefilter::Prefilter;
use regex_automata::{Anchored, Input, MatchKind, PatternID, Span};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    Model, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

/// Words of GPT-2, of GPT-4 and Llama 3, and of Qwen, but for [`LAST`].
const KNOWN: [&str; 3] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
];
/// The end of these expressions: white space, except for its last character if a word follows.
const LAST: &str = r"|\s+(?!\S)|\s+";
/// The same without looking ahead.
const SPACES: &str = r"\s+";

/// Maximum number of words that are remembered at a time, and maximum size of one in bytes.
const MOST: usize = if cfg!(test) { 64 } else { 1 << 17 };
const LONGEST: usize = 64;
/// Maximum size in bytes of a word that is found here: the crate gives up long before a run of a million
/// spaces, and takes the rest of the text for one word.
const LONGEST_RUN: usize = 1 << 16;

/// The words of a tokenizer that is a byte-level BPE.
pub struct Words {
    /// Matches a word; the second of its patterns is [`SPACES`].
    word: Regex,
    /// Finds tokens that are not made of words, such as `<|endoftext|>`.
    added: Option<Prefilter>,
    /// True if texts are normalized by NFC, which few texts are changed by.
    is_normalized: bool,
    /// True if a space is put before a text without one.
    begins_with_space: bool,
    /// The letter of the vocabulary for each byte.
    letters: [char; 256],
    /// One for each text that is being tokenized.
    memories: Mutex<Vec<Memory>>,
}

/// Words that were tokenized before.
struct Memory {
    search: meta::Cache,
    /// Places in `ids`.
    words: HashMap<Box<str>, Range<u32>>,
    ids: Vec<u32>,
    /// Number of words for which there was no room.
    missed: usize,
}

impl Words {
    /// Returns the words of a tokenizer; `None` if it finds them in a way that is not known here.
    pub fn of(tokenizer: &Tokenizer) -> Option<Words> {
        let is_normalized = match tokenizer.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let is_random = match tokenizer.get_model() {
            ModelWrapper::BPE(model) => model.dropout.is_some_and(|rate| rate > 0.0),
            _ => return None,
        };
        let added: Vec<_> = tokenizer
            .get_added_vocabulary()
            .get_vocab()
            .keys()
            .collect();
        if is_random || is_normalized && !added.iter().all(|token| token.is_ascii()) {
            return None;
        }
        let (word, begins_with_space) = known(tokenizer.get_pre_tokenizer()?)?;
        let added = match added.is_empty() {
            true => None,
            false => Some(Prefilter::new(MatchKind::LeftmostFirst, &added)?),
        };
        let words = Words {
            word: Regex::new_many(&[word, SPACES]).ok()?,
            added,
            is_normalized,
            begins_with_space,
            letters: letters(),
            memories: Mutex::default(),
        };
        // A post-processor may leave out or repeat a text.
        let ids = words.encode("a b", tokenizer.get_model()).ok()??;
        let processed = tokenizer.encode_fast("a b", false).ok()?;
        (processed.get_ids() == ids).then_some(words)
    }

    /// Returns the ids of a text; `None` if the text is not made of words alone.
    ///
    /// # Errors
    /// Those of the model.
    pub fn encode(&self, text: &str, model: &impl Model) -> tokenizers::Result<Option<Vec<u32>>> {
        let added = self.added.as_ref();
        let added = added.and_then(|added| added.find(text.as_bytes(), Span::from(0..text.len())));
        let is_normal = || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        if added.is_some() || self.is_normalized && !is_normal() {
            return Ok(None);
        }
        let spaced;
        let mut text = text;
        if self.begins_with_space && !text.is_empty() && !text.starts_with(' ') {
            spaced = format!(" {text}");
            text = &spaced;
        }
        let memory = self.memories().pop();
        let mut memory = memory.unwrap_or_else(|| Memory {
            search: self.word.create_cache(),
            words: HashMap::new(),
            ids: Vec::new(),
            missed: 0,
        });
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut at = 0;
        while at < text.len() {
            let end = self.end_of_word(&mut memory.search, text, at);
            if end - at > LONGEST_RUN {
                self.memories().push(memory);
                return Ok(None);
            }
            let word = &text[at..end];
            match memory.words.get(word) {
                Some(place) => {
                    let place = place.start as usize..place.end as usize;
                    ids.extend_from_slice(&memory.ids[place]);
                }
                None => self.learn(&mut memory, word, model, &mut ids)?,
            }
            at = end;
        }
        self.memories().push(memory);
        ids.shrink_to_fit();
        Ok(Some(ids))
    }

    fn memories(&self) -> MutexGuard<'_, Vec<Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the end of the word that begins at a position.
    fn end_of_word(&self, search: &mut meta::Cache, text: &str, at: usize) -> usize {
        let input = Input::new(text).range(at..).anchored(Anchored::Yes);
        let found = self.word.search_half_with(search, &input);
        let found = found.expect("each character is a letter, a number, white space, or neither");
        let end = found.offset();
        let is_spaces = found.pattern() != PatternID::ZERO;
        if is_spaces && end < text.len() {
            let last = text[at..end].char_indices().next_back();
            if let Some((before, _)) = last.filter(|(before, _)| *before > 0) {
                return at + before;
            }
        }
        end
    }

    /// Tokenizes a word, remembers it, and appends its ids.
    fn learn(
        &self,
        memory: &mut Memory,
        word: &str,
        model: &impl Model,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let letters = word.bytes().map(|byte| self.letters[usize::from(byte)]);
        let tokens = model.tokenize(&letters.collect::<String>())?;
        let begin = ids.len();
        ids.extend(tokens.into_iter().map(|token| token.id));
        if word.len() <= LONGEST {
            memory.keep(word, &ids[begin..]);
        }
        Ok(())
    }
}

impl Memory {
    /// Remembers a word, if there is room.
    fn keep(&mut self, word: &str, ids: &[u32]) {
        if self.words.len() == MOST {
            // The first words of a corpus are the frequent ones, unless what comes is of another kind.
            self.missed += 1;
            if self.missed < 8 * MOST {
                return;
            }
            self.words.clear();
            self.ids.clear();
            self.missed = 0;
        }
        let begin = self.ids.len() as u32;
        self.ids.extend_from_slice(ids);
        self.words.insert(word.into(), begin..self.ids.len() as u32);
    }
}

/// Returns the expression for words before [`LAST`], and whether a text begins with a space.
fn known(words: &PreTokenizerWrapper) -> Option<(&'static str, bool)> {
    match words {
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex => {
            Some((KNOWN[0], bytes.add_prefix_space))
        }
        PreTokenizerWrapper::Sequence(steps) => match steps.as_ref() {
            [
                PreTokenizerWrapper::Split(split),
                PreTokenizerWrapper::ByteLevel(bytes),
            ] if split.behavior == SplitDelimiterBehavior::Isolated
                && !split.invert
                && !bytes.use_regex
                && !bytes.add_prefix_space =>
            {
                let SplitPattern::Regex(pattern) = &split.pattern else {
                    return None;
                };
                let words = pattern.strip_suffix(LAST)?;
                Some((KNOWN.into_iter().find(|known| *known == words)?, false))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns the letters that stand for bytes, as GPT-2 chose them: printable ones for themselves,
/// those from 256 on for the others.
fn letters() -> [char; 256] {
    let mut others = (256..).filter_map(char::from_u32);
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => others.next().expect("there are enough"),
    })
}

#[cfg(test)]
mod tests;
