//! W7: shards of JSON lines, gzip → the field `text` → byte-level BPE of 32,000 → concatenated into rows
//! of 2,048 → batches of 8, beside the tokenizer alone and beside other loaders, in one run.
//!
//! `cargo bench --features text --bench w7 [-- DOCUMENTS [ROUNDS]]`, of 20,000 and 3 unless given. A line
//! a case: million tokens a second (the median of the rounds, in which all cases take turns), the ratio
//! to the tokenizer alone on as many threads, and how many times as fast 2 workers are here. The
//! tokenizer alone is the crate `tokenizers` with the texts in memory, one by one. Peers are those of `benches/peers/text_w7.py`
//! that the Python of `DATAPIPES_PEERS` has; one that reads tokens made beforehand is in the bench of
//! `datapipes-text`.

mod support;

#[path = "../examples/support/mod.rs"]
mod examples;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datapipes::{BoxError, DataLoader, Graph};
use datapipes_io::formats::JsonLines;
use datapipes_io::list_files;
use datapipes_io::prelude::*;
use datapipes_text::{HfTokenizer, Pack, Tokenize, prelude::*};
use examples::texts::{self, END};
use support::{Case, median, peer_figures};

const LENGTH: usize = 2048;
const BATCH: usize = 8;
/// Cases that are compared with: the tokenizer alone on one thread, and on two; two workers here.
const ONE: usize = 0;
const TWO: usize = 1;
const HERE: usize = 4;
/// Peers, and their numbers of workers: processes, or threads of `nodes`.
const PEERS: [(&str, &str, &[usize]); 5] = [
    ("encode", "tokenizers, by its batch call", &[1, 2]),
    ("torch", "torch DataLoader", &[0, 1, 2]),
    ("nodes", "torchdata nodes", &[1, 2]),
    ("hf", "Hugging Face streaming", &[1, 2]),
    ("grain", "Grain", &[0, 1, 2]),
];

#[derive(serde::Deserialize)]
struct Line {
    text: String,
}

fn main() -> Result<(), BoxError> {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let folder = texts::corpus(numbers.next().unwrap_or(20_000))?;
    let rounds = numbers.next().unwrap_or(3);
    let json = folder.join("tokenizer.json");
    let tokenizer = Arc::new(HfTokenizer::from_file(&json)?);
    let bare = tokenizers::Tokenizer::from_file(&json)?;
    let read = || {
        let lines =
            list_files(&folder, "docs-*.jsonl.gz").stream_as(JsonLines::<Line>::new(), 256 << 10);
        lines.map(|line| line.text)
    };
    let alone = read().collect()?;
    let (_, tokens) = tokenized(&alone, &bare, 1);

    let mut cases = vec![
        checked("the tokenizer alone, 1 thread", ONE, tokens, || {
            Some(tokenized(&alone, &bare, 1))
        }),
        checked("the tokenizer alone, 2 threads", TWO, tokens, || {
            Some(tokenized(&alone, &bare, 2))
        }),
    ];
    for workers in 0..=2 {
        let name = format!("here, {workers} workers");
        let floor = if workers == 2 { TWO } else { ONE };
        let (texts, tokenizer) = (read(), tokenizer.clone());
        let run = move || Some(packed(texts.clone(), tokenizer.clone(), workers));
        cases.push(checked(&name, floor, tokens, run));
    }
    let (folder, json) = (&*folder, &*json);
    for (peer, name, workers) in PEERS {
        for &workers in workers {
            let run = move || run_peer(peer, folder, json, workers);
            if run().is_some() {
                let name = format!("{name}, {workers}");
                cases.push(checked(
                    &name,
                    if workers == 2 { TWO } else { ONE },
                    tokens,
                    run,
                ));
            }
        }
    }

    let mut times = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for ((case, _), times) in cases.iter_mut().zip(&mut times) {
            times.push((case.run)().as_secs_f64());
        }
    }
    println!(
        "{:<34} {:>16} {:>12} {:>16}",
        "W7", "million tokens/s", "of the floor", "2 workers here"
    );
    for ((case, floor), own) in cases.iter().zip(&times) {
        let beside = |other: usize, of: fn(f64, f64) -> f64| {
            median(
                own.iter()
                    .zip(&times[other])
                    .map(|(a, b)| of(*a, *b))
                    .collect(),
            )
        };
        println!(
            "{:<34} {:>16.3} {:>12.2} {:>14.2} x",
            case.name,
            tokens as f64 / median(own.clone()) / 1e6,
            beside(*floor, |own, floor| floor / own),
            beside(HERE, |own, here| own / here),
        );
    }
    Ok(())
}

/// Makes a case, with the case that it is compared with, of something that returns its time and how
/// many tokens came: all of them.
fn checked<'a>(
    name: &str,
    floor: usize,
    expected: u64,
    mut run: impl FnMut() -> Option<(Duration, u64)> + 'a,
) -> (Case<'a>, usize) {
    let name = name.to_owned();
    let what = name.clone();
    let run = move || {
        let (time, tokens) = run().unwrap_or_else(|| panic!("{what} ran before"));
        assert_eq!(tokens, expected, "{what}: every token once");
        time
    };
    let run = Box::new(run);
    (Case { name, run }, floor)
}

/// Tokenizes texts one by one on plain threads, which take the next sixteen as they are ready;
/// returns the time, and the number of tokens with the end of each text.
fn tokenized(
    texts: &[String],
    tokenizer: &tokenizers::Tokenizer,
    threads: usize,
) -> (Duration, u64) {
    let (begun, next, tokens) = (Instant::now(), AtomicUsize::new(0), AtomicU64::new(0));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(some) = texts.chunks(16).nth(at) else {
                break;
            };
            let count = |text: &String| {
                let tokens = tokenizer.encode_fast(text.as_str(), false);
                tokens.map_or(0, |tokens| tokens.len() as u64 + 1)
            };
            tokens.fetch_add(some.iter().map(count).sum(), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    (begun.elapsed(), tokens.into_inner())
}

/// Reads, tokenizes and packs everything; returns the time, and the number of tokens that came.
fn packed(texts: Graph<String>, tokenizer: Arc<HfTokenizer>, workers: usize) -> (Duration, u64) {
    let rows = texts
        .tokenize(Tokenize::new(tokenizer).end(END))
        .pack(Pack::concat(LENGTH));
    let loader = DataLoader::builder(rows.batch(BATCH).collate()).workers(workers);
    let loader = loader.build().expect("a right graph");
    let (begun, mut tokens) = (Instant::now(), 0);
    for batch in loader.epoch(0).blocking() {
        let batch = batch.expect("good files");
        let documents = batch.document.as_slice::<u32>().expect("u32");
        tokens += documents.iter().filter(|&&number| number > 0).count() as u64;
    }
    (begun.elapsed(), tokens)
}

fn run_peer(peer: &str, folder: &Path, json: &Path, workers: usize) -> Option<(Duration, u64)> {
    let (folder, json) = (folder.display().to_string(), json.display().to_string());
    let args = [
        peer,
        &folder,
        &json,
        &workers.to_string(),
        &BATCH.to_string(),
    ];
    let (seconds, tokens) = peer_figures("text_w7.py", &args)?;
    Some((Duration::from_secs_f64(seconds), tokens as u64))
}
