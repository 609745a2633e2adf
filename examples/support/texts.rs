//! Texts from a seed, in shards of compressed JSON lines, and a tokenizer trained on them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use datapipes::{BoxError, Rng};
use flate2::{Compression, write::GzEncoder};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::shards::{cache_folder, make_files, write_whole};

/// The token after each document; its id is 0.
pub const END: &str = "<|endoftext|>";
const SHARDS: usize = 8;
/// Tokens of the vocabulary of [`corpus`].
const VOCAB: usize = 32_000;

/// Returns the folder of `docs-00000.jsonl.gz` and others, `documents` in 8 shards, with a
/// byte-level BPE of 32,000 tokens in `tokenizer.json`. Makes them if they do not exist yet.
///
/// The documents are like those that the text workload of loader benchmarks has: Zipf-like words of
/// syllables, log-normal lengths with 1,420 bytes in the mean and some of hundreds of kilobytes,
/// four languages, and what no vocabulary holds: numbers, names, addresses, emoji.
pub fn corpus(documents: usize) -> Result<PathBuf, BoxError> {
    let dir = cache_folder().join(format!("texts-{documents}"));
    let bar = super::making(&dir, documents as u64, "documents");
    let mut names: Vec<String> = (0..SHARDS)
        .map(|shard| format!("docs-{shard:05}.jsonl.gz"))
        .collect();
    names.push("tokenizer.json".to_owned());
    let (written, of_shard) = (AtomicUsize::new(0), documents.div_ceil(SHARDS));
    let made_with = format!("version 1, {documents} documents\n");
    make_files(&dir, &made_with, &names, |file, path| {
        if file == SHARDS {
            let some = (0..documents).filter(|number| number % of_shard < of_shard.div_ceil(5));
            let json = train_bpe(some.map(|number| document(number as u64).0), VOCAB)
                .and_then(|tokenizer| tokenizer.to_string(false))
                .map_err(io::Error::other)?;
            return write_whole(path, |file| file.write_all(json.as_bytes()));
        }
        let numbers = file * of_shard..documents.min((file + 1) * of_shard);
        let lines = numbers.map(|number| {
            bar.set_position(written.fetch_add(1, Ordering::Relaxed) as u64);
            let (text, language) = document(number as u64);
            serde_json::json!({ "id": number, "text": text, "lang": language })
        });
        write_lines(path, lines)
    })?;
    bar.finish_and_clear();
    Ok(dir)
}

/// Writes values as compressed JSON lines.
pub fn write_lines(
    path: &Path,
    lines: impl IntoIterator<Item = serde_json::Value>,
) -> io::Result<()> {
    write_whole(path, |file| {
        let mut gzip = GzEncoder::new(file, Compression::default());
        for line in lines {
            writeln!(gzip, "{line}")?;
        }
        gzip.finish().map(drop)
    })
}

/// Trains a byte-level BPE in which [`END`] is 0.
pub fn train_bpe(
    texts: impl Iterator<Item = String> + Send,
    vocab: usize,
) -> Result<tokenizers::Tokenizer, BoxError> {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![tokenizers::AddedToken::from(END, true)])
        .build();
    tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), texts)?;
    Ok(tokenizer)
}

/// Returns a text of some simple sentences.
pub fn sentences(number: usize) -> String {
    let (who, what) = (
        ["The cat", "A dog", "The old fox", "Nobody"],
        ["sees", "hears", "follows", "forgets"],
    );
    let whom = [
        "the river",
        "a small bird",
        "the moon",
        "its own shadow",
        "seven stones",
    ];
    let sentence = |at: usize| {
        let n = number * 7 + at * 13;
        format!("{} {} {}.", who[n % 4], what[n / 4 % 4], whom[n / 16 % 5])
    };
    (0..1 + number * number % 9)
        .map(sentence)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A language: its share of the documents, and what words are made of. Chinese has no syllables but
/// characters, and no spaces.
struct Language {
    name: &'static str,
    share: f64,
    words: usize,
    onsets: &'static str,
    nuclei: &'static str,
    codas: &'static str,
    separators: [&'static str; 8],
}

const SPACED: [&str; 8] = [" ", ", ", ". ", ".\n", "? ", " (", ") ", "; "];
const SEPARATOR_SHARES: [f64; 8] = [0.84, 0.065, 0.05, 0.015, 0.005, 0.008, 0.008, 0.009];

const LANGUAGES: [Language; 4] = [
    Language {
        name: "en",
        share: 0.74,
        words: 60_000,
        onsets: "b c d f g h l m n p r s t v w st tr ch sh th pl br cr gr",
        nuclei: "a e i o u ea ou io ai e a i",
        codas: "- - - n r s t l ng nd ck",
        separators: SPACED,
    },
    Language {
        name: "de",
        share: 0.14,
        words: 40_000,
        onsets: "b d f g h k l m n r s t w z sch st ein ver ge",
        nuclei: "a e i o u ä ö ü ei ie au",
        codas: "- - n r s t ch ß",
        separators: SPACED,
    },
    Language {
        name: "ru",
        share: 0.07,
        words: 20_000,
        onsets: "б в г д ж з к л м н п р с т ч ш ст пр",
        nuclei: "а е и о у я ы ю",
        codas: "- - - н т й м х",
        separators: SPACED,
    },
    Language {
        name: "zh",
        share: 0.05,
        words: 8_000,
        onsets: "",
        nuclei: "",
        codas: "",
        separators: ["", "，", "。", "。\n", "？", "（", "）", "；"],
    },
];

/// The words of a language, the frequent ones first, with their cumulative shares and the bytes of
/// a word in the mean.
struct Lexicon {
    words: Vec<String>,
    shares: Vec<f64>,
    bytes: f64,
}

static LEXICONS: LazyLock<[Lexicon; 4]> = LazyLock::new(|| LANGUAGES.each_ref().map(lexicon));

fn lexicon(language: &Language) -> Lexicon {
    let mut rng = Rng::from_key([7, language.words as u64, 0, 0x0074_6578_7473]);
    let parts = [language.onsets, language.nuclei, language.codas].map(|parts| {
        let parts = parts.split_whitespace();
        parts
            .map(|part| if part == "-" { "" } else { part })
            .collect::<Vec<_>>()
    });
    let (mut words, mut seen) = (Vec::new(), std::collections::HashSet::new());
    while words.len() < language.words {
        let mut word = String::new();
        if language.onsets.is_empty() {
            for _ in 0..1 + rng.below(3) {
                let place = 0x4e00 + (3000.0 * rng.f64().powi(2)) as u32;
                word.push(char::from_u32(place).expect("an ideograph"));
            }
        } else {
            // Frequent words are shorter.
            let more = 0.1 + 0.15 * (1.0 + words.len() as f64).log10().powf(1.3);
            for _ in 0..1 + poisson(&mut rng, more).min(4) {
                for parts in &parts {
                    word += parts[rng.below(parts.len() as u64) as usize];
                }
            }
        }
        if seen.insert(word.clone()) {
            words.push(word);
        }
    }
    let shares = (0..words.len()).map(|rank| (rank as f64 + 2.7).powf(-1.05));
    let sum: f64 = shares.clone().sum();
    let after = language.separators[0].len() as f64 + 0.3;
    let bytes = words
        .iter()
        .zip(shares.clone())
        .map(|(word, share)| share / sum * word.len() as f64);
    Lexicon {
        bytes: bytes.sum::<f64>() + after,
        shares: cumulative(shares),
        words,
    }
}

/// Returns text and language of a document.
fn document(number: u64) -> (String, &'static str) {
    let mut rng = Rng::from_key([8, number, 0, 0x0074_6578_7473]);
    let at = draw(&cumulative(LANGUAGES.iter().map(|l| l.share)), &mut rng);
    let (language, lexicon) = (&LANGUAGES[at], &LEXICONS[at]);
    let bytes = match rng.chance(24.0 / 100_000.0) {
        true => rng.range(150_000.0, 700_000.0),
        false => (1_420f64.ln() - 0.5 + normal(&mut rng)).exp(),
    };
    let separators = cumulative(SEPARATOR_SHARES);
    let word = |rng: &mut Rng| &*lexicon.words[draw(&lexicon.shares, rng)];
    let any = |rng: &mut Rng| &*lexicon.words[rng.below(lexicon.words.len() as u64) as usize];
    let (mut text, mut begins) = (String::new(), false);
    for _ in 0..((bytes / lexicon.bytes) as usize).max(3) {
        match rng.f64() {
            0.0..0.010 => {
                let digits = 1 + rng.below(6) as u32;
                text += &format!("{} ", rng.below(10u64.pow(digits)));
            }
            0.010..0.027 => {
                let name = [any(&mut rng), any(&mut rng)].concat();
                text += &format!("{} ", capital(&name));
            }
            0.027..0.029 => {
                let (host, page) = (word(&mut rng), any(&mut rng));
                let id = rng.below(1_000_000);
                text += &format!("https://{host}.example/{page}?id={id} ");
            }
            0.029..0.030 => {
                text.extend(char::from_u32(0x1f600 + rng.below(60) as u32));
                text.push(' ');
            }
            _ => {
                let (word, separator) = (word(&mut rng), draw(&separators, &mut rng));
                match begins && language.separators == SPACED {
                    true => text += &capital(word),
                    false => text += word,
                }
                text += language.separators[separator];
                begins = (2..5).contains(&separator);
            }
        }
    }
    (text.trim().to_owned(), language.name)
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

/// Returns the sums of shares up to each, which end at 1.
fn cumulative(shares: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sum = 0.0;
    let sums = shares.into_iter().map(|share| {
        sum += share;
        sum
    });
    let mut sums: Vec<f64> = sums.collect();
    sums.iter_mut().for_each(|at| *at /= sum);
    sums
}

fn draw(cumulative: &[f64], rng: &mut Rng) -> usize {
    let at = rng.f64();
    cumulative
        .partition_point(|&sum| sum <= at)
        .min(cumulative.len() - 1)
}

fn poisson(rng: &mut Rng, mean: f64) -> usize {
    let (least, mut product, mut count) = ((-mean).exp(), rng.f64(), 0);
    while product > least {
        product *= rng.f64();
        count += 1;
    }
    count
}

fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
