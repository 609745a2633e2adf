//! Fill in the middle: documents whose middle comes last.

use std::fmt;
use std::sync::Arc;

use datapipes::{Arity, Context, Error, ErrorKind, Hints, Items, Pipe, Result, Rng, Weigh};

use crate::{Tokenizer, Tokens};

/// Moves the middle of documents to their end, so that a model learns to fill it in: Megatron-LM's
/// fill in the middle.
///
/// With probability [`rate`](Fim::rate) a document is turned back into text and cut at two places,
/// drawn uniformly among its characters. Its parts are tokenized again and become `<prefix> p
/// <suffix> s <middle> m` (PSM), or, with probability [`spm_rate`](Fim::spm_rate), `<prefix>
/// <suffix> s <middle> p m` (SPM). The suffix is shortened or padded, so that the document keeps
/// its number of tokens. If the suffix is too short for that, the document stays as it was. Each
/// part between two [end tokens](Fim::end) is a document of its own.
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
    rate: f64,
    spm_rate: f64,
    problem: Option<String>,
}

impl Fim {
    /// Uses this tokenizer and its tokens for prefix, middle, suffix and padding: `<fim_prefix>`,
    /// `<fim_middle>`, `<fim_suffix>`, `<fim_pad>`. A token that it does not have is reported when
    /// the loader is built.
    pub fn new(tokenizer: impl Tokenizer, tokens: [&str; 4]) -> Self {
        let ids = tokens.map(|token| tokenizer.token_to_id(token));
        let missing = tokens.iter().zip(&ids).find(|(_, id)| id.is_none());
        Fim {
            problem: missing.map(|(token, _)| format!("the tokenizer has no token {token:?}")),
            special: ids.map(Option::unwrap_or_default),
            tokenizer: Arc::new(tokenizer),
            end: None,
            rate: 0.5,
            spm_rate: 0.5,
        }
    }

    /// Sets the probability that a document is changed. Defaults to 0.5.
    pub fn rate(self, rate: f64) -> Self {
        Fim { rate, ..self }
    }

    /// Sets the probability that the suffix of a document that is changed comes before its prefix.
    /// Defaults to 0.5.
    pub fn spm_rate(self, spm_rate: f64) -> Self {
        Fim { spm_rate, ..self }
    }

    /// Sets the token that ends documents: it stays where it is, and what is between two of them is
    /// changed by itself.
    pub fn end(mut self, token: &str) -> Self {
        self.end = self.tokenizer.token_to_id(token);
        if self.end.is_none() {
            self.problem = Some(format!("the tokenizer has no token {token:?}"));
        }
        self
    }

    /// Returns the document, or what becomes of it.
    fn changed(&self, tokens: Tokens, rng: &mut Rng) -> Result<Tokens> {
        if tokens.labels.is_some() {
            let message = "a document with labels, which are of the tokens in their order";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut ids = Vec::with_capacity(tokens.ids.len());
        for part in tokens.ids.split_inclusive(|&id| Some(id) == self.end) {
            let (content, end) = match part.split_last() {
                Some((&last, content)) if Some(last) == self.end => {
                    (content, &part[content.len()..])
                }
                _ => (part, &[][..]),
            };
            if !content.is_empty() && rng.chance(self.rate) {
                self.permute(content, rng, &mut ids)?;
            } else {
                ids.extend_from_slice(content);
            }
            ids.extend_from_slice(end);
        }
        Ok(Tokens::from(ids))
    }

    /// Appends as many tokens as there are in a document.
    fn permute(&self, document: &[u32], rng: &mut Rng, to: &mut Vec<u32>) -> Result<()> {
        let text = self.tokenizer.decode(document)?;
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
        let wrong = is_wrong(self.rate) || is_wrong(self.spm_rate);
        Hints::shardable()
            .arity(Arity::One)
            .settings(format_args!(
                "rate {}, spm_rate {}, end {:?}",
                self.rate, self.spm_rate, self.end
            ))
            .problem(self.problem.as_deref())
            .problem(wrong.then_some("a rate that is not between 0 and 1"))
    }
    fn weigh(&self, tokens: &Tokens) -> Option<usize> {
        Some(tokens.weigh())
    }
}

impl fmt::Debug for Fim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fim")
            .field("rate", &self.rate)
            .field("spm_rate", &self.spm_rate)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use datapipes::Graph;
    use datapipes::testing::check_pipe;

    use super::*;

    /// A tokenizer of characters, with five tokens more.
    struct OfChars;

    const SPECIAL: [&str; 5] = ["<pre>", "<mid>", "<suf>", "<pad>", "<eod>"];
    const FIRST: u32 = 0x11_0000;

    impl Tokenizer for OfChars {
        fn encode(&self, text: &str, _: bool) -> Result<Tokens> {
            Ok(Tokens::from(
                text.chars().map(u32::from).collect::<Vec<_>>(),
            ))
        }
        fn decode(&self, ids: &[u32]) -> Result<String> {
            Ok(ids.iter().filter_map(|&id| char::from_u32(id)).collect())
        }
        fn vocab_size(&self) -> usize {
            FIRST as usize + 5
        }
        fn token_to_id(&self, token: &str) -> Option<u32> {
            SPECIAL
                .iter()
                .position(|&known| known == token)
                .map(|at| FIRST + at as u32)
        }
    }

    fn fim() -> Fim {
        Fim::new(OfChars, ["<pre>", "<mid>", "<suf>", "<pad>"])
    }

    fn document(text: &str) -> Tokens {
        OfChars.encode(text, false).unwrap()
    }

    fn shown(tokens: &Tokens) -> String {
        let shown = |&id: &u32| match id.checked_sub(FIRST) {
            Some(special) => SPECIAL[special as usize].to_owned(),
            None => char::from_u32(id).unwrap().to_string(),
        };
        tokens.ids.iter().map(shown).collect()
    }

    #[test]
    fn keeps_the_contract() {
        let texts = ["", "a", "abcdefgh", "ünïcödé text", "0123456789"];
        check_pipe(&fim().rate(0.8).end("<eod>"), texts.map(document).to_vec());
    }

    /// Takes a changed document apart: prefix, middle, suffix, and true for SPM.
    fn parts(said: &str) -> Option<(String, String, String, bool)> {
        let rest = said.strip_prefix("<pre>")?;
        let owned =
            |a: &str, b: &str, c: &str, spm| Some((a.to_owned(), b.to_owned(), c.to_owned(), spm));
        match rest.strip_prefix("<suf>") {
            Some(rest) => {
                let (suffix, rest) = rest.split_once("<mid>")?;
                owned(rest, "", suffix, true)
            }
            None => {
                let (prefix, rest) = rest.split_once("<suf>")?;
                let (suffix, middle) = rest.split_once("<mid>")?;
                owned(prefix, middle, suffix, false)
            }
        }
    }

    #[test]
    fn the_middle_comes_last_and_the_length_stays() {
        let text = "abcdefghijklmnopqrstuvwxyzäöü";
        let (mut kinds, mut kept) = ([0, 0], 0);
        let all = Graph::from_vec(vec![document(text); 200])
            .pipe(fim().rate(1.0))
            .collect()
            .unwrap();
        for tokens in &all {
            assert_eq!(tokens.ids.len(), 29);
            let said = shown(tokens);
            if said == text {
                kept += 1;
                continue;
            }
            let (prefix, middle, suffix, spm) = parts(&said).unwrap_or_else(|| panic!("{said}"));
            // The suffix gives up three tokens for those that are put in.
            assert!(
                text.starts_with(&format!("{prefix}{middle}{suffix}")),
                "{said}"
            );
            kinds[usize::from(spm)] += 1;
        }
        assert!(
            kinds[0] > 50 && kinds[1] > 50 && kept > 5,
            "{kinds:?} {kept}"
        );
        let none = Graph::from_vec(vec![document(text)])
            .pipe(fim().rate(0.0))
            .collect()
            .unwrap();
        assert_eq!(shown(&none[0]), text);
    }

    #[test]
    fn documents_are_changed_between_their_ends() {
        let mut ids = document("abcdefghij").ids;
        ids.push(FIRST + 4);
        ids.push(FIRST + 4);
        ids.extend(document("klmnopqrst").ids);
        let graph = Graph::from_vec(vec![Tokens::from(ids); 50]).pipe(fim().rate(1.0).end("<eod>"));
        for tokens in graph.collect().unwrap() {
            assert_eq!(tokens.ids[10..12], [FIRST + 4; 2]);
            assert_eq!(tokens.ids.len(), 22);
        }
    }

    #[test]
    fn what_cannot_be_changed_is_an_error() {
        let labelled = Tokens {
            labels: Some(vec![1]),
            ..document("a")
        };
        let error = Graph::from_vec(vec![labelled])
            .pipe(fim())
            .collect()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for (fim, said) in [
            (
                Fim::new(OfChars, ["<pre>", "<mid>", "<no>", "<pad>"]),
                "no token \"<no>\"",
            ),
            (fim().end("<no>"), "no token \"<no>\""),
            (fim().rate(1.5), "a rate that is not between 0 and 1"),
        ] {
            let error = Graph::from_vec(vec![document("a")])
                .pipe(fim)
                .collect()
                .unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
