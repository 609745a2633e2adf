use proptest::prelude::*;
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::{Lowercase, NFC};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::Split;
use tokenizers::processors::template::TemplateProcessing;

use super::*;

const TEXT: &str = "It's the fox's den, don't they'LL say?\r\n\r\n  12345 x\u{301} naïve 漢字 кот\t 🦊!!\n \u{a0}\u{2003}a ſ'S \u{212a}  ";

fn split(pattern: &str) -> PreTokenizerWrapper {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
    let bytes = ByteLevel::new(false, true, false);
    Sequence::new(vec![split.into(), bytes.into()]).into()
}

fn tokenizer(words: PreTokenizerWrapper) -> Tokenizer {
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(words));
    let trainer = BpeTrainer::builder()
        .vocab_size(400)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from("<|end|>", true)])
        .build();
    let texts = [
        TEXT,
        "the then they den dent dented fox foxes 1234 12 '' ?! \n\n \t\t",
    ];
    let mut trainer = TrainerWrapper::BpeTrainer(trainer);
    tokenizer
        .train(&mut trainer, texts.into_iter().cycle().take(8))
        .unwrap();
    tokenizer
}

fn all() -> Vec<Tokenizer> {
    let of_gpt2 = |spaced| tokenizer(ByteLevel::default().add_prefix_space(spaced).into());
    let mut all = vec![of_gpt2(false), of_gpt2(true)];
    all.extend(KNOWN.map(|known| tokenizer(split(&format!("{known}{LAST}")))));
    let mut normalized = of_gpt2(false);
    normalized.with_normalizer(Some(NFC)).unwrap();
    all.push(normalized);
    all
}

#[track_caller]
fn check(tokenizer: &Tokenizer, words: &Words, text: &str) -> bool {
    let expected = tokenizer.encode_fast(text, false).unwrap();
    // From the model, then from memory.
    for _ in 0..2 {
        match words.encode(text, tokenizer.get_model()).unwrap() {
            Some(ids) => assert_eq!(ids, expected.get_ids(), "{text:?}"),
            None => return false,
        }
    }
    true
}

#[test]
fn texts_have_the_ids_that_the_crate_gives_them() {
    for (number, tokenizer) in all().iter().enumerate() {
        let words = Words::of(tokenizer).unwrap();
        let is_normalized = number == 5;
        assert_ne!(check(tokenizer, &words, TEXT), is_normalized);
        for text in [
            "", " ", "  ", "\n", " \n ", "a", " a  b ", "a  ", "'s", "x 'll",
        ] {
            assert!(check(tokenizer, &words, text));
        }
        assert!(check(tokenizer, &words, &"long".repeat(LONGEST)));
        assert!(!check(tokenizer, &words, "the<|end|>fox"));
        assert!(!check(tokenizer, &words, &" ".repeat(LONGEST_RUN + 1)));
    }
}

/// Returns the words that are remembered.
fn remembered(words: &Words) -> Vec<(String, usize)> {
    let known = lock(&words.known).clone();
    let places = known.places.get().into_iter().flatten();
    let word = |word: &Word| (word.text.to_string(), word.ids.len());
    places.filter_map(OnceLock::get).map(word).collect()
}

#[test]
fn words_that_are_remembered_are_bounded_in_number_and_bytes() {
    // Letters that stand for bits.
    let word = |number: usize, length: usize| -> String {
        let bit = |at: usize| ['x', 'q'][number >> (at % 9) & 1];
        (0..length).map(bit).collect()
    };
    for tokenizer in &all() {
        // Short words fill the places, and long ones the bytes.
        for (length, least) in [(9, PLACES / 2), (60, 8)] {
            let words = Words::of(tokenizer).unwrap();
            assert!(remembered(&words).is_empty(), "of its own texts");
            let many: Vec<String> = (0..2 * PLACES).map(|n| word(n, length)).collect();
            assert!(check(tokenizer, &words, &many.join(" ")));
            let kept = remembered(&words);
            assert!(kept.len() >= least, "{} of {length} letters", kept.len());
            let bytes = |(text, ids): &(String, usize)| text.len() + 4 * ids + ALLOCATED;
            let bytes: usize = kept.iter().map(bytes).sum();
            assert!(bytes <= MOST, "{bytes}");
        }
    }
}

#[test]
fn words_give_way_to_others_that_are_frequent() {
    let tokenizer = tokenizer(ByteLevel::default().into());
    let words = Words::of(&tokenizer).unwrap();
    let many: String = (0..20 * PLACES)
        .map(|number| format!(" {number}"))
        .collect();
    assert!(check(&tokenizer, &words, &many));
    for _ in 0..2 {
        assert!(check(&tokenizer, &words, " the fox"));
    }
    assert!(remembered(&words).iter().any(|(text, _)| text == " fox"));
}

#[test]
fn threads_share_the_words() {
    let tokenizer = tokenizer(ByteLevel::default().into());
    let words = Words::of(&tokenizer).unwrap();
    let ids = words.encode("the fox", tokenizer.get_model()).unwrap();
    // This model has no tokens.
    let again = std::thread::scope(|scope| {
        let thread = scope.spawn(|| words.encode("the fox", &BPE::default()));
        thread.join().unwrap().unwrap()
    });
    assert_eq!(again, ids);
    assert!(ids.is_some_and(|ids| !ids.is_empty()));
}

#[test]
fn words_that_the_crate_finds_otherwise_are_left_to_it() {
    for tokenizer in &all() {
        let (word, _) = known(tokenizer.get_pre_tokenizer().unwrap()).unwrap();
        // Letters and a number that not all versions of Unicode have.
        for (class, without) in [
            (r"\p{L}", r"[\p{L}--\x{105c0}]"),
            (r"\p{L}", r"[\p{L}--\x{870}]"),
            (r"\p{N}", r"[\p{N}--\x{11f50}]"),
        ] {
            let mut words = Words::of(tokenizer).unwrap();
            let older = word.replace(class, without);
            words.word = Regex::new_many(&[older.as_str(), SPACES]).unwrap();
            assert_eq!(words.are_those_of(tokenizer), Some(false), "{older}");
        }
    }
}

#[test]
fn special_tokens_are_found_among_many() {
    let mut tokenizer = tokenizer(ByteLevel::default().into());
    let reserved = |number| AddedToken::from(format!("<|reserved_{number}|>"), true);
    tokenizer
        .add_special_tokens((0..300).map(reserved))
        .unwrap();
    let words = Words::of(&tokenizer).unwrap();
    assert!(check(&tokenizer, &words, "the <|reserved|> fox"));
    assert!(!check(&tokenizer, &words, "the <|reserved_299|> fox"));
}

#[test]
fn other_tokenizers_are_left_to_the_crate() {
    let of = |change: &dyn Fn(&mut Tokenizer)| {
        let mut tokenizer = tokenizer(ByteLevel::default().into());
        change(&mut tokenizer);
        Words::of(&tokenizer).is_none()
    };
    assert!(!of(&|_| ()));
    assert!(of(&|it| {
        it.with_normalizer(Some(Lowercase)).unwrap();
    }));
    for words in [
        ByteLevel::new(false, true, false).into(),
        split(r"\p{L}+|\s+(?!\S)|\s+"),
    ] {
        assert!(of(&|it: &mut Tokenizer| {
            it.with_pre_tokenizer(Some(words.clone()));
        }));
    }
    assert!(of(&|it| {
        let ModelWrapper::BPE(mut model) = it.get_model().clone() else {
            panic!("a BPE");
        };
        model.dropout = Some(0.1);
        it.with_model(model);
    }));
    assert!(of(&|it| {
        let twice = TemplateProcessing::builder()
            .try_single("$A $A")
            .and_then(|twice| twice.build().map_err(|error| error.to_string()));
        it.with_post_processor(Some(twice.unwrap()));
    }));
    assert!(of(&|it| {
        it.with_normalizer(Some(NFC)).unwrap();
        it.add_tokens([AddedToken::from("ü", false)]).unwrap();
    }));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_text_has_the_ids_that_the_crate_gives_it(
        pieces in prop::collection::vec("[ \t\r\n\u{a0}]{0,3}|'[a-zA-Z]{1,2}|[a-eA-E]{1,4}|[0-9]{1,4}|[?!<|>]{1,2}|\\PC|.", 0..40),
    ) {
        let text: String = pieces.concat();
        thread_local!(static ALL: Vec<(Tokenizer, Words)> = all().into_iter().map(|tokenizer| {
            let words = Words::of(&tokenizer).unwrap();
            (tokenizer, words)
        }).collect());
        ALL.with(|all| for (tokenizer, words) in all {
            check(tokenizer, words, &text);
        });
    }
}
