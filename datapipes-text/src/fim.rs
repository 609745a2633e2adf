//! Fill in the middle: documents whose middle comes last.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use datapipes::{Arity, Context, Error, Hints, Items, Pipe, Result, Rng, Weigh, opaque_debug};

use crate::tokenize::fingerprint;
use crate::{Tokenizer, Tokens};

/// Moves the middle of documents to their end, so that a model learns to fill it in: Megatron-LM's
/// fill in the middle.
///
/// With probability [`rate`](Fim::rate) a document is turned back into text and cut at two places,
/// drawn uniformly among its characters. Its parts are tokenized again and become `<prefix> p
/// <suffix> s <middle> m` (PSM), or, with probability [`spm_rate`](Fim::spm_rate), `<prefix>
/// <suffix> s <middle> p m` (SPM). The suffix is shortened or padded, so that the document keeps
/// its number of tokens. If the suffix is too short for that, the document stays as it was. Each
/// part between two [end tokens](Fim::end) is a document of its own. Files of a repository that are
/// one document are changed one by one with [`split`](Fim::split).
///
/// Megatron-LM has this as a step after packing: it lets documents grow by the three tokens and by
/// what tokenizing again adds, and cuts or pads the whole sample at its end. Here it is done
/// document by document, so that no row loses the end of another document, and any pack follows.
///
/// Special tokens within a document stay, where Megatron-LM leaves them out. With a tokenizer that
/// takes them as text (`HfTokenizer::special_tokens_as_text`) they would become
/// several ordinary tokens: put none but the [end](Fim::end) into documents then.
///
/// A pipe for `Graph<Tokens>`, after [`tokenize`](crate::TokenizeGraphExt::tokenize) and before
/// packing. Runs on the CPU workers; order is kept. Which documents are changed and how depends on
/// seed, epoch and item alone.
///
/// # Errors
/// Errors of the tokenizer; `Unsupported` in place of a document with labels of its own.
///
/// # Examples
/// ```
/// # #[cfg(feature = "tokenizers")] {
/// use datapipes::Graph;
/// use datapipes_text::{Fim, HfTokenizer, Tokenize, prelude::*};
///
/// # let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/words.json"));
/// # let tokenizer = || HfTokenizer::from_bytes(json);
/// let fim = Fim::new(tokenizer()?, ["user", "good", "assistant", "<eos>"]).rate(1.0).spm_rate(0.5);
/// let texts = Graph::from_vec(vec!["hello . day hello . day hello . day"]);
/// let tokens = texts.tokenize(Tokenize::new(tokenizer()?)).pipe(fim).collect()?.remove(0);
/// assert_eq!(tokens.ids.len(), 9);
/// # }
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Fim {
    tokenizer: Arc<dyn Tokenizer>,
    /// Ids of prefix, middle, suffix and padding.
    special: [u32; 4],
    end: Option<u32>,
    /// Token between fragments, and the probability that one of them is changed.
    split: Option<(u32, f64)>,
    no_prefix: Option<String>,
    rate: f64,
    spm_rate: f64,
    problem: Option<String>,
}

/// Random draws.
trait Draw {
    fn chance(&mut self, probability: f64) -> bool;
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64;
}

impl Draw for Rng {
    fn chance(&mut self, probability: f64) -> bool {
        self.chance(probability)
    }
    fn below(&mut self, end: u64) -> u64 {
        self.below(end)
    }
}

impl Fim {
    /// Uses this tokenizer and its tokens for prefix, middle, suffix and padding: `<fim_prefix>`,
    /// `<fim_middle>`, `<fim_suffix>`, `<fim_pad>`. A token that it does not have, and a tokenizer that
    /// adds tokens to each text, are reported when the loader is built.
    pub fn new(tokenizer: impl Tokenizer, tokens: [&str; 4]) -> Self {
        let ids = tokens.map(|token| tokenizer.token_to_id(token));
        let missing = tokens.iter().zip(&ids).find(|(_, id)| id.is_none());
        let missing = missing.map(|(token, _)| format!("the tokenizer has no token {token:?}"));
        let adds = tokenizer
            .encode("", false)
            .is_ok_and(|tokens| !tokens.ids.is_empty());
        let adds = adds.then(|| {
            "the tokenizer adds tokens to each text, so that they would be within documents; make it without \
             `HfTokenizer::add_special_tokens`"
                .to_owned()
        });
        Fim {
            problem: missing.or(adds),
            special: ids.map(Option::unwrap_or_default),
            tokenizer: Arc::new(tokenizer),
            end: None,
            split: None,
            no_prefix: None,
            rate: 0.5,
            spm_rate: 0.5,
        }
    }

    datapipes::setters! {
        /// Sets the probability that a document is changed. Defaults to 0.5.
        rate(rate: f64) => rate = rate;

        /// Sets the probability that the suffix of a document that is changed comes before its prefix.
        /// Defaults to 0.5.
        spm_rate(spm_rate: f64) => spm_rate = spm_rate;
    }

    /// Sets the token that ends documents: it stays where it is, and what is between two of them is
    /// changed by itself.
    pub fn end(mut self, token: &str) -> Self {
        self.end = self.id(token);
        self
    }

    /// Sets a token that divides a document into fragments, such as that between the files of a
    /// repository: Megatron's `fim_split_sample` and `fim_fragment_rate`. A document with this token
    /// is chosen with probability [`rate`](Fim::rate), and each fragment of it is then changed with
    /// probability `fragment_rate`. The token stays where it is.
    pub fn split(mut self, token: &str, fragment_rate: f64) -> Self {
        self.split = self.id(token).map(|token| (token, fragment_rate));
        self
    }

    /// Leaves documents, or fragments, whose text begins with this one as they are: Megatron's
    /// `fim_no_prefix`.
    pub fn no_prefix(mut self, text: impl Into<String>) -> Self {
        self.no_prefix = Some(text.into());
        self
    }

    fn id(&mut self, token: &str) -> Option<u32> {
        let id = self.tokenizer.token_to_id(token);
        if id.is_none() {
            self.problem = Some(format!("the tokenizer has no token {token:?}"));
        }
        id
    }

    /// Returns the document, or what becomes of it.
    fn changed(&self, tokens: Tokens, rng: &mut impl Draw) -> Result<Tokens> {
        if tokens.labels.is_some() {
            let message = "a document with labels, which are of the tokens in their order";
            return Err(Error::unsupported(message));
        }
        let mut ids = Vec::with_capacity(tokens.ids.len());
        for (document, end) in parts(&tokens.ids, self.end) {
            match self.split {
                Some((token, rate)) if document.contains(&token) => {
                    if !rng.chance(self.rate) {
                        ids.extend_from_slice(document);
                    } else {
                        for (fragment, end) in parts(document, Some(token)) {
                            self.permute(fragment, rate, rng, &mut ids)?;
                            ids.extend_from_slice(end);
                        }
                    }
                }
                _ => self.permute(document, self.rate, rng, &mut ids)?,
            }
            ids.extend_from_slice(end);
        }
        Ok(Tokens::from(ids))
    }

    /// Appends as many tokens as there are in a document.
    fn permute(
        &self,
        document: &[u32],
        rate: f64,
        rng: &mut impl Draw,
        to: &mut Vec<u32>,
    ) -> Result<()> {
        if document.is_empty() || !rng.chance(rate) {
            to.extend_from_slice(document);
            return Ok(());
        }
        let text = self.tokenizer.decode(document)?;
        let is_excluded = |prefix: &String| text.starts_with(&**prefix);
        if self.no_prefix.as_ref().is_some_and(is_excluded) {
            to.extend_from_slice(document);
            return Ok(());
        }
        let characters = text.chars().count() as u64;
        let mut cuts = [rng.below(characters + 1), rng.below(characters + 1)];
        cuts.sort_unstable();
        let [begin, end] = cuts.map(|cut| {
            let place = text.char_indices().nth(cut as usize);
            place.map_or(text.len(), |(place, _)| place)
        });
        let encode = |part: &str| Ok::<_, Error>(self.tokenizer.encode(part, false)?.ids);
        let (prefix, middle) = (encode(&text[..begin])?, encode(&text[begin..end])?);
        let mut suffix = encode(&text[end..])?;
        let [before, between, after, pad] = self.special;
        let others = prefix.len() + middle.len() + 3;
        let is_longer = others + suffix.len() > document.len();
        if is_longer && others >= document.len() {
            to.extend_from_slice(document);
            return Ok(());
        }
        suffix.resize(document.len() - others, pad);
        let parts: [&[u32]; 6] = match rng.chance(self.spm_rate) {
            true => [&[before, after], &suffix, &[between], &prefix, &middle, &[]],
            false => [&[before], &prefix, &[after], &suffix, &[between], &middle],
        };
        parts.iter().for_each(|part| to.extend_from_slice(part));
        Ok(())
    }
}

/// Divides ids after each end token: what is before it, and the token.
fn parts(ids: &[u32], end: Option<u32>) -> impl Iterator<Item = (&[u32], &[u32])> {
    let parts = ids.split_inclusive(move |&id| Some(id) == end);
    parts.map(move |part| match part.last() {
        Some(&last) if Some(last) == end => part.split_at(part.len() - 1),
        _ => (part, &[][..]),
    })
}

impl Pipe<Tokens> for Fim {
    type Out = Tokens;

    fn apply(&self, input: Items<Tokens>, cx: &Context) -> Items<Tokens> {
        let (this, context) = (self.clone(), cx.clone());
        input.each(cx, move |item| {
            let mut rng = context.rng(item.origin());
            Some(item.try_map(|tokens| this.changed(tokens, &mut rng)))
        })
    }
    fn hints(&self) -> Hints {
        let is_wrong = |rate: f64| !(0.0..=1.0).contains(&rate);
        let fragment_rate = self.split.map_or(0.0, |(_, rate)| rate);
        let wrong = [self.rate, self.spm_rate, fragment_rate]
            .into_iter()
            .any(is_wrong);
        let mut settings = format!(
            "rate {}, spm_rate {}, end {:?}, special {:?} of {}",
            self.rate,
            self.spm_rate,
            self.end,
            self.special,
            fingerprint(&*self.tokenizer)
        );
        if let Some((token, rate)) = self.split {
            settings += &format!(", split {token} with rate {rate}");
        }
        if let Some(prefix) = &self.no_prefix {
            settings += &format!(", no prefix {prefix:?}");
        }
        Hints::shardable()
            .arity(Arity::One)
            .settings(settings)
            .problem(self.problem.as_deref())
            .problem(wrong.then_some("a rate that is not between 0 and 1"))
    }
    fn weigh(&self, tokens: &Tokens) -> Option<usize> {
        Some(tokens.weigh())
    }
}

opaque_debug!(Fim { rate, spm_rate });
