//! Byte-level BPE word by word: a word is tokenized once, and then looked up.
//!
//! The crate `tokenizers` finds words by backtracking, copies each with the position of every byte,
//! and makes a string of each token. For ids alone none of that is needed. They are the same, since
//! the ids of a word depend on nothing but its letters.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use datapipes::lock;
use regex_automata::meta::{self, Regex};
use regex_automata::util::prefilter::Prefilter;
use regex_automata::{Anchored, Input, MatchKind, PatternID, Span};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    Model, ModelWrapper, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
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

/// Text whose words the crate has to find as they are found here: with its feature `onig` it has another
/// engine, whose letters may be those of another version of Unicode. There is a letter and a number of
/// each version since 11, where it has some.
const PROBE: &str = " It's 'LL '\u{17f} '\u{fb06} x\u{301}!?\r\n\n  \t a\u{a0}\u{85}b\u{180e}c\u{200b}d\u{feff}e\u{2003} \u{1d7d8}\u{bd}\u{2167}12345 \
                     f\u{1c90} g\u{1e2c0} h\u{8c7} i\u{870} j\u{1e4d0} k\u{2ebf0} l\u{105c0} m\u{323b0} \
                     1\u{11da0}! 2\u{1e2f0}! 3\u{11950}! 4\u{16ac0}! 5\u{11f50}! 6\u{10d40}! 7\u{11de0}!  ";

/// Number of places for words that are remembered, and of those that are tried for a word.
const PLACES: usize = if cfg!(test) { 64 } else { 1 << 17 };
const TRIES: usize = 8;
/// Maximum size of a word that is remembered, and of all of them besides their places, in bytes.
const LONGEST: usize = 64;
const MOST: usize = if cfg!(test) { 4 << 10 } else { 24 << 20 };
/// Approximate size in bytes that the allocator adds to a word.
const ALLOCATED: usize = 32;
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
    /// Words that were tokenized before, of all threads.
    known: Mutex<Arc<Known>>,
    /// Scratch of the expression, for each text that is being tokenized.
    searches: Mutex<Vec<meta::Cache>>,
}

/// Words that were tokenized before. Places are filled and never emptied, so that nobody waits for another
/// thread.
#[derive(Default)]
struct Known {
    hasher: RandomState,
    /// They are made for the first word.
    places: OnceLock<Box<[Place]>>,
    /// Size of the words.
    bytes: AtomicUsize,
    /// Number of words for which there was no room.
    missed: AtomicUsize,
}

type Place = OnceLock<Word>;

struct Word {
    text: Box<str>,
    ids: Box<[u32]>,
}

impl Words {
    /// Maximum size in bytes of all words that are remembered.
    pub const BYTES: usize = PLACES * size_of::<Place>() + MOST;

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
            known: Mutex::default(),
            searches: Mutex::default(),
        };
        // A post-processor may leave out or repeat a text.
        let ids = words.encode("a b", tokenizer.get_model()).ok()??;
        let processed = tokenizer.encode_fast("a b", false).ok()?;
        let is_same = processed.get_ids() == ids && words.are_those_of(tokenizer)?;
        is_same.then(|| Words {
            known: Mutex::default(),
            ..words
        })
    }

    /// Returns true if the crate finds the same words in [`PROBE`].
    fn are_those_of(&self, tokenizer: &Tokenizer) -> Option<bool> {
        let mut found = PreTokenizedString::from(PROBE);
        tokenizer
            .get_pre_tokenizer()?
            .pre_tokenize(&mut found)
            .ok()?;
        let found = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let (mut search, mut at) = (self.word.create_cache(), 0);
        let mut same = found.iter().map(|(_, (_, end), _)| {
            at = self.end_of_word(&mut search, PROBE, at);
            at == *end
        });
        Some(same.all(|same| same) && at == PROBE.len())
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
        let known = lock(&self.known).clone();
        let search = lock(&self.searches).pop();
        let mut search = search.unwrap_or_else(|| self.word.create_cache());
        let ids = self.look_up(text, &known, &mut search, model);
        lock(&self.searches).push(search);
        // The first words of a corpus are the frequent ones, unless what comes is of another kind.
        if known.missed.load(Relaxed) > 8 * PLACES {
            let mut current = lock(&self.known);
            if Arc::ptr_eq(&current, &known) {
                *current = Arc::default();
            }
        }
        ids
    }

    fn look_up(
        &self,
        text: &str,
        known: &Known,
        search: &mut meta::Cache,
        model: &impl Model,
    ) -> tokenizers::Result<Option<Vec<u32>>> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut at = 0;
        while at < text.len() {
            let end = self.end_of_word(search, text, at);
            if end - at > LONGEST_RUN {
                return Ok(None);
            }
            let word = &text[at..end];
            match known.find(word) {
                Ok(known) => ids.extend_from_slice(known),
                Err(place) => {
                    let begin = ids.len();
                    self.tokenize(word, model, &mut ids)?;
                    known.keep(place, word, &ids[begin..]);
                }
            }
            at = end;
        }
        ids.shrink_to_fit();
        Ok(Some(ids))
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

    /// Tokenizes a word, and appends its ids.
    fn tokenize(
        &self,
        word: &str,
        model: &impl Model,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let letters = word.bytes().map(|byte| self.letters[usize::from(byte)]);
        let tokens = model.tokenize(&letters.collect::<String>())?;
        ids.extend(tokens.into_iter().map(|token| token.id));
        Ok(())
    }
}

impl Known {
    /// Returns the ids of a word; if it is not known, the first free place for it.
    fn find(&self, word: &str) -> Result<&[u32], Option<&Place>> {
        let places = self.places.get_or_init(|| {
            let places = std::iter::repeat_with(OnceLock::new);
            places.take(PLACES).collect()
        });
        let first = self.hasher.hash_one(word) as usize;
        for next in 0..TRIES {
            let place = &places[first.wrapping_add(next) % PLACES];
            match place.get() {
                Some(known) if *known.text == *word => return Ok(&known.ids),
                Some(_) => {}
                None => return Err(Some(place)),
            }
        }
        Err(None)
    }

    /// Remembers a word, if there is room.
    fn keep(&self, place: Option<&Place>, word: &str, ids: &[u32]) {
        if word.len() > LONGEST {
            return;
        }
        let bytes = word.len() + size_of_val(ids) + ALLOCATED;
        match place {
            Some(place) if self.bytes.fetch_add(bytes, Relaxed) + bytes <= MOST => {
                let word = Word {
                    text: word.into(),
                    ids: ids.into(),
                };
                // Another thread may have filled it meanwhile.
                if place.set(word).is_err() {
                    self.bytes.fetch_sub(bytes, Relaxed);
                }
            }
            _ => {
                self.missed.fetch_add(1, Relaxed);
            }
        }
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
