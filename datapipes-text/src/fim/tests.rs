//! Tests of fill in the middle.

use datapipes::Graph;
use datapipes::testing::check_pipe;

use super::*;
use datapipes::ErrorKind;

/// A tokenizer of characters, with six tokens more.
struct OfChars;

const SPECIAL: [&str; 6] = ["<pre>", "<mid>", "<suf>", "<pad>", "<eod>", "<file>"];
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
        FIRST as usize + SPECIAL.len()
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
    let texts = ["abcdefgh/01234567/", "//", "a/b.0123456789/abcdefghi"];
    let fim = fim().rate(0.8).end("<eod>").split("<file>", 0.5);
    check_pipe(&fim, texts.map(divided).to_vec());
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

/// Draws that are known beforehand, in their order.
struct Fixed(Vec<u64>);

impl Draw for Fixed {
    fn chance(&mut self, probability: f64) -> bool {
        match self.0.remove(0) {
            0 => false,
            _ => probability > 0.0,
        }
    }
    fn below(&mut self, end: u64) -> u64 {
        let drawn = self.0.remove(0);
        assert!(drawn < end);
        drawn
    }
}

/// Returns a document of characters, with `/` for the token between files and `.` for the end token.
fn divided(text: &str) -> Tokens {
    let id = |letter| match letter {
        '/' => FIRST + 5,
        '.' => FIRST + 4,
        _ => u32::from(letter),
    };
    Tokens::from(text.chars().map(id).collect::<Vec<_>>())
}

#[test]
fn draws_mean_what_they_do_in_megatron() {
    let fim = || fim().split("<file>", 0.7).no_prefix("no").end("<eod>");
    let (psm, spm) = (0, 1);
    let cases: &[(Fim, &str, &[u64], &str)] = &[
        // The document; two cuts, in any order; the order of the parts.
        (
            fim(),
            "abcdefghij",
            &[1, 6, 2, psm],
            "<pre>ab<suf>g<mid>cdef",
        ),
        (
            fim(),
            "abcdefghij",
            &[1, 2, 6, spm],
            "<pre><suf>g<mid>abcdef",
        ),
        // Cuts that are equal, at the beginning: all is suffix.
        (
            fim(),
            "abcdefghij",
            &[1, 0, 0, psm],
            "<pre><suf>abcdefg<mid>",
        ),
        // A suffix that cannot give up three tokens.
        (fim(), "abcdefghij", &[1, 2, 8], "abcdefghij"),
        (fim(), "abcdefghij", &[0], "abcdefghij"),
        (fim(), "nothing", &[1], "nothing"),
        // A document in fragments is drawn first, then each of them.
        (fim(), "abcdef/ghijkl", &[0], "abcdef<file>ghijkl"),
        (
            fim(),
            "abcdef/ghijkl",
            &[1, 0, 1, 1, 2, psm],
            "abcdef<file><pre>g<suf>i<mid>h",
        ),
        (
            fim(),
            "nobody/ghijkl/",
            &[1, 1, 1, 1, 2, spm],
            "nobody<file><pre><suf>i<mid>gh<file>",
        ),
        // Without the token the document is drawn with its own rate; with it, each by itself.
        (fim().rate(0.0), "abcdef", &[1], "abcdef"),
        (
            fim(),
            "abcdef.abcdef/a.",
            &[1, 1, 2, psm, 1, 0, 0],
            "<pre>a<suf>c<mid>b<eod>abcdef<file>a<eod>",
        ),
    ];
    for (fim, text, draws, expected) in cases {
        let mut draws = Fixed(draws.to_vec());
        let changed = fim.changed(divided(text), &mut draws).unwrap();
        assert_eq!(shown(&changed), *expected, "{text}");
        assert_eq!(draws.0, [0u64; 0], "{text}: all are drawn");
    }
}

/// A tokenizer of letters, and of pairs of equal ones.
struct OfPairs;

impl Tokenizer for OfPairs {
    fn encode(&self, text: &str, _: bool) -> Result<Tokens> {
        let mut ids: Vec<u32> = Vec::new();
        for letter in text.chars().map(u32::from) {
            match ids.last_mut() {
                Some(last) if *last == letter => *last += 1000,
                _ => ids.push(letter),
            }
        }
        Ok(Tokens::from(ids))
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        let letters = ids.iter().map(|id| {
            let letter = char::from_u32(id % 1000).unwrap_or_default();
            letter.to_string().repeat(1 + *id as usize / 1000)
        });
        Ok(letters.collect())
    }
    fn vocab_size(&self) -> usize {
        2000
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        token.parse().ok()
    }
}

/// `make.py` in `tests/data` wrote the file, with Megatron-LM.
#[test]
fn documents_become_those_of_megatron() {
    let cases = include_bytes!("../../tests/data/fim.json");
    let cases: Vec<serde_json::Value> = serde_json::from_slice(cases).unwrap();
    let mut changed = 0;
    for case in cases {
        let numbers = |name: &str| -> Vec<u64> {
            let numbers = case[name].as_array().unwrap().iter();
            numbers.map(|number| number.as_u64().unwrap()).collect()
        };
        let mut fim = Fim::new(OfPairs, ["1", "2", "3", "4"]).rate(0.9);
        if let Some(prefix) = case["no_prefix"].as_str() {
            fim = fim.no_prefix(prefix);
        }
        let document: Vec<u32> = numbers("document").iter().map(|&id| id as u32).collect();
        let mut draws = Fixed(numbers("draws"));
        let own = fim.changed(Tokens::from(document.clone()), &mut draws);
        let own = own.unwrap().ids;
        assert!(
            own.iter().copied().map(u64::from).eq(numbers("ids")),
            "{case}"
        );
        assert_eq!(draws.0, [0u64; 0], "{case}: all are drawn");
        changed += usize::from(own != document);
    }
    assert!(changed > 10, "{changed}");
}

#[test]
fn other_tokens_and_fragments_are_refused_on_resume() {
    let loader = |fim| {
        let graph = Graph::from_vec(vec![document("abcdef"); 3]).pipe(fim);
        datapipes::DataLoader::builder(graph)
            .resumable()
            .build()
            .unwrap()
    };
    let state = loader(fim()).epoch(0).blocking().checkpoint().unwrap();
    assert!(loader(fim()).resume(&state).is_ok());
    for other in [
        Fim::new(OfChars, ["<pre>", "<suf>", "<mid>", "<pad>"]),
        fim().split("<file>", 0.5),
        fim().no_prefix("no"),
    ] {
        let error = loader(other).resume(&state).expect_err("other settings");
        assert!(error.to_string().contains("fim"), "{error}");
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
        (fim().split("<no>", 0.5), "no token \"<no>\""),
        (
            fim().split("<file>", 1.5),
            "a rate that is not between 0 and 1",
        ),
        (fim().rate(1.5), "a rate that is not between 0 and 1"),
    ] {
        let error = Graph::from_vec(vec![document("a")])
            .pipe(fim)
            .collect()
            .unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// Tokens of it would be between the parts of a document.
#[cfg(feature = "tokenizers")]
#[test]
fn a_tokenizer_that_adds_tokens_to_each_text_is_refused() {
    let json = include_str!("../../tests/data/words.json");
    let tokens = ["user", "good", "assistant", "<eos>"];
    let said = |tokenizer: crate::HfTokenizer| {
        let graph = Graph::from_vec(vec![Tokens::from(vec![3])]);
        let graph = graph.pipe(Fim::new(tokenizer, tokens));
        graph.collect().map_err(|error| error.to_string())
    };
    let tokenizer = || crate::HfTokenizer::from_bytes(json).unwrap();
    said(tokenizer()).unwrap();
    let error = said(tokenizer().add_special_tokens()).unwrap_err();
    assert!(error.contains("adds tokens to each text"), "{error}");
}
