//! Texts of the Hugging Face Hub to packed batches, on any number of ranks.

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Range;

use datapipes::{Checkpoint, DataLoader, Graph, Rng, Uneven};
use datapipes_io::formats::JsonLines;
use datapipes_io::{prelude::*, stores::resilient};
use datapipes_text::{Attention, HfTokenizer, MaskForm, Pack, PackedBatch, Tokenize, prelude::*};
use serde_json::json;

use super::hub::{FakeHub, NEW, OLD};

/// Tokens of a row, rows of a step over all ranks, and open rows of a fit.
const LENGTH: usize = 32;
const STEP: usize = 4;
const BINS: usize = 8;
const SEED: u64 = 42;
/// The id of the end of a document.
const END: u32 = 100;

#[derive(serde::Deserialize)]
struct Document {
    text: String,
}

/// A tokenizer whose ids are the numbers of the words.
fn tokenizer() -> HfTokenizer {
    let words = (0..100).map(|id| (format!("w{id}"), json!(id)));
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{ "id": END, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true }],
        "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordLevel", "vocab": serde_json::Map::from_iter(words), "unk_token": "w0" },
    });
    HfTokenizer::from_bytes(json.to_string()).unwrap()
}

/// Serves a commit of three compressed files, of 40 documents with words below `most` each.
fn serve(hub: &FakeHub, commit: &str, most: u64) {
    let mut rng = Rng::from_key([most; 4]);
    let shard = |number: usize| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for _ in 0..40 {
            let mut text = String::new();
            for _ in 0..1 + rng.below(45) {
                write!(text, "w{} ", rng.below(most)).unwrap();
            }
            writeln!(gzip, "{}", json!({ "text": text })).unwrap();
        }
        (format!("train/{number}.jsonl.gz"), gzip.finish().unwrap())
    };
    let shards: Vec<_> = (0..3).map(shard).collect();
    let files: Vec<_> = shards
        .iter()
        .map(|(path, data)| (&**path, &**data))
        .collect();
    hub.commit(commit, &files, 2);
}

/// Returns the texts of the hub, shuffled.
fn texts(hub: &FakeHub) -> Graph<String> {
    let store = resilient(hub.open("hf://datasets/org/name"));
    store
        .list_files("**/*.jsonl.gz")
        .stream_as(JsonLines::<Document>::new(), 256 << 10)
        .map(|document| document.text)
        .shuffle(50)
}

fn loader(hub: &FakeHub, pack: Pack, rank: usize, world: usize) -> DataLoader<PackedBatch> {
    let rows = texts(hub)
        .tokenize(Tokenize::new(tokenizer()).end("<eos>"))
        .pack(pack)
        .sharding_filter()
        .batch(STEP / world)
        .collate();
    DataLoader::builder(rows)
        .seed(SEED)
        .rank(rank, world)
        .uneven(Uneven::Drop)
        .resumable()
        .build()
        .unwrap()
}

/// A row with its mask, `mask[query * LENGTH + key]`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    ids: Vec<u32>,
    labels: Vec<i64>,
    positions: Vec<u32>,
    bounds: Vec<u32>,
    document: Vec<u32>,
    mask: Vec<bool>,
}

/// Returns the rows of a batch.
fn rows(batch: &PackedBatch) -> Vec<Row> {
    let numbers = |field: &datapipes::Tensor| field.as_slice::<u32>().unwrap().to_vec();
    let labels = batch.labels.as_slice::<i64>().unwrap();
    let (ids, positions) = (numbers(&batch.ids), numbers(&batch.positions));
    let (document, bounds) = (numbers(&batch.document), numbers(&batch.cu_seqlens));
    let mask = batch.mask(Attention::Causal, MaskForm::Attend).unwrap();
    let mask = mask.as_slice::<bool>().unwrap();
    let row = |n: usize| {
        let places = n * LENGTH..(n + 1) * LENGTH;
        let base = places.start as u32;
        let of_row = |at: &u32| (base..=places.end as u32).contains(at);
        Row {
            ids: ids[places.clone()].to_vec(),
            labels: labels[places.clone()].to_vec(),
            positions: positions[places.clone()].to_vec(),
            bounds: bounds
                .iter()
                .filter(|at| of_row(at))
                .map(|at| at - base)
                .collect(),
            document: document[places.clone()].to_vec(),
            mask: mask[places.start * LENGTH..places.end * LENGTH].to_vec(),
        }
    };
    (0..batch.ids.shape()[0]).map(row).collect()
}

/// A piece of a document in a row.
type Piece<'a> = (&'a [u32], Range<usize>);

/// Makes a row of its pieces, token by token.
fn row_by_hand(pieces: &[Piece<'_>]) -> Row {
    let mut row = Row {
        bounds: vec![0],
        ..Row::default()
    };
    for (before, (document, piece)) in pieces.iter().enumerate() {
        for at in piece.clone() {
            row.ids.push(document[at]);
            row.labels
                .push(document.get(at + 1).map_or(-100, |&next| next.into()));
            row.positions.push((at - piece.start) as u32);
            row.document.push(before as u32 + 1);
        }
        row.bounds.push(row.ids.len() as u32);
    }
    if row.ids.len() < LENGTH {
        row.bounds.push(LENGTH as u32);
    }
    row.ids.resize(LENGTH, 0);
    row.labels.resize(LENGTH, -100);
    row.positions.resize(LENGTH, 0);
    row.document.resize(LENGTH, 0);
    for query in 0..LENGTH {
        let sees = |key| key <= query && row.document[key] == row.document[query];
        row.mask.extend((0..LENGTH).map(sees));
    }
    row
}

fn room(row: &[Piece<'_>]) -> usize {
    LENGTH - row.iter().map(|(_, piece)| piece.len()).sum::<usize>()
}

/// Packs documents one after another, each cut where a row ends.
fn concatenated(documents: &[Vec<u32>]) -> Vec<Vec<Piece<'_>>> {
    let mut rows = vec![Vec::new()];
    for document in documents {
        let mut at = 0;
        while at < document.len() {
            let mut row = rows.last_mut().expect("there is one");
            if room(row) == 0 {
                rows.push(Vec::new());
                row = rows.last_mut().expect("it was made");
            }
            let end = document.len().min(at + room(row));
            row.push((document, at..end));
            at = end;
        }
    }
    rows
}

/// Packs documents into the open row with the least room that suffices. What fills a row by itself
/// is one; the fullest row makes place for another.
fn best_fit(documents: &[Vec<u32>]) -> Vec<Vec<Piece<'_>>> {
    let (mut rows, mut open) = (Vec::new(), Vec::<Vec<Piece<'_>>>::new());
    for document in documents {
        let mut rest = 0..document.len();
        while rest.len() >= LENGTH {
            rows.push(vec![(&**document, rest.start..rest.start + LENGTH)]);
            rest.start += LENGTH;
        }
        if rest.is_empty() {
            continue;
        }
        let least = |open: &[Vec<Piece<'_>>], needed: usize| {
            let fits = (0..open.len()).filter(|&at| room(&open[at]) >= needed);
            fits.min_by_key(|&at| room(&open[at]))
        };
        let at = least(&open, rest.len()).unwrap_or_else(|| {
            if open.len() == BINS {
                rows.push(open.remove(least(&open, 0).expect("all of them")));
            }
            open.push(Vec::new());
            open.len() - 1
        });
        open[at].push((document, rest));
        if room(&open[at]) == 0 {
            rows.push(open.remove(at));
        }
    }
    rows.extend(open);
    rows
}

/// Returns the steps of an epoch of one rank, by hand from the shuffled texts.
fn by_hand(hub: &FakeHub, fits: bool) -> Vec<Vec<Row>> {
    let texts = DataLoader::builder(texts(hub)).seed(SEED).build().unwrap();
    let ids = |text: String| {
        let words = text
            .split_whitespace()
            .map(|word| word[1..].parse().unwrap());
        words.chain([END]).collect()
    };
    let documents: Vec<Vec<u32>> = texts
        .epoch(0)
        .blocking()
        .map(|text| ids(text.unwrap()))
        .collect();
    let rows = match fits {
        true => best_fit(&documents),
        false => concatenated(&documents),
    };
    let rows: Vec<Row> = rows.iter().map(|pieces| row_by_hand(pieces)).collect();
    rows.chunks(STEP).map(<[Row]>::to_vec).collect()
}

#[test]
fn row_59_packed_batches_of_the_hub_are_those_packed_by_hand_on_any_ranks_and_after_the_branch_moved()
 {
    let hub = FakeHub::start();
    serve(&hub, OLD, 100);
    serve(&hub, NEW, 50);
    for (pack, fits) in [
        (Pack::concat(LENGTH), false),
        (Pack::best_fit(LENGTH, BINS), true),
    ] {
        hub.point("main", OLD);
        let loader = |rank, world| loader(&hub, pack.clone(), rank, world);
        let all = by_hand(&hub, fits);
        let epoch = loader(0, 1).epoch(0).blocking();
        assert!(
            epoch
                .map(|batch| rows(&batch.unwrap()))
                .eq(all.iter().cloned())
        );
        // The last step is short. Two ranks may leave out a row of it.
        let whole = all.len() - 1;
        assert!(whole > 15, "{whole} steps");
        let steps = |mut ranks: Vec<datapipes::Blocking<PackedBatch>>| {
            let mut steps = Vec::new();
            loop {
                let step: Vec<_> = ranks.iter_mut().map(|rank| rank.next()).collect();
                let Some(step) = step.into_iter().collect::<Option<Vec<_>>>() else {
                    return steps;
                };
                let step: Vec<_> = step
                    .into_iter()
                    .map(|batch| rows(&batch.unwrap()))
                    .collect();
                // Rank r has the rows r, r + world, ...
                let rows =
                    (0..step[0].len()).flat_map(|n| step.iter().map(move |rows| rows[n].clone()));
                steps.push(rows.collect::<Vec<_>>());
            }
        };
        let two = steps(
            (0..2)
                .map(|rank| loader(rank, 2).epoch(0).blocking())
                .collect(),
        );
        assert_eq!(two[..whole], all[..whole]);

        for stop in [1, whole / 2] {
            hub.point("main", OLD);
            let first = loader(0, 1);
            let mut epoch = first.epoch(0).blocking();
            assert_eq!(epoch.by_ref().take(stop).count(), stop);
            let file = tempfile::NamedTempFile::new().unwrap();
            epoch.checkpoint().unwrap().save(file.path()).unwrap();
            drop(epoch);
            hub.point("main", NEW);
            let saved = Checkpoint::load(file.path()).unwrap();
            let rest = (0..2).map(|rank| loader(rank, 2).resume(&saved).unwrap().blocking());
            assert_eq!(steps(rest.collect())[..whole - stop], all[stop..whole]);
        }
    }
}
