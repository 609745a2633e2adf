//! Texts of the Hugging Face Hub to packed batches, on any number of ranks.

use std::fmt::Write as _;
use std::io::Write as _;

use datapipes::{Checkpoint, DataLoader, Rng, Uneven};
use datapipes_io::formats::JsonLines;
use datapipes_io::{prelude::*, stores::resilient};
use datapipes_text::{HfTokenizer, Pack, PackedBatch, Tokenize, prelude::*};
use serde_json::json;

use super::hub::{FakeHub, NEW, OLD};

/// Tokens of a row, and rows of a step over all ranks.
const LENGTH: usize = 32;
const STEP: usize = 4;

#[derive(serde::Deserialize)]
struct Document {
    text: String,
}

/// A tokenizer whose ids are the numbers of the words.
fn tokenizer() -> HfTokenizer {
    let words = (0..100).map(|id| (format!("w{id}"), json!(id)));
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{ "id": 100, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
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

fn loader(hub: &FakeHub, pack: Pack, rank: usize, world: usize) -> DataLoader<PackedBatch> {
    let store = resilient(hub.open("hf://datasets/org/name"));
    let rows = store
        .list_files("**/*.jsonl.gz")
        .stream_as(JsonLines::<Document>::new(), 256 << 10)
        .map(|document| document.text)
        .shuffle(50)
        .tokenize(Tokenize::new(tokenizer()).end("<eos>"))
        .pack(pack)
        .sharding_filter()
        .batch(STEP / world)
        .collate();
    DataLoader::builder(rows)
        .seed(42)
        .rank(rank, world)
        .uneven(Uneven::Drop)
        .resumable()
        .build()
        .unwrap()
}

/// A row: ids, labels, positions and the numbers of documents.
type Row = (Vec<u32>, Vec<i64>, Vec<u32>, Vec<u32>);

/// Rows of a batch: ids, labels, positions, documents.
fn rows(batch: &PackedBatch) -> Vec<Row> {
    let numbers = |field: &datapipes::Tensor| field.as_slice::<u32>().unwrap().to_vec();
    let labels = batch.labels.as_slice::<i64>().unwrap();
    let (ids, positions) = (numbers(&batch.ids), numbers(&batch.positions));
    let documents = numbers(&batch.document);
    let row = |n: usize| {
        let places = n * LENGTH..(n + 1) * LENGTH;
        let part = |field: &[u32]| field[places.clone()].to_vec();
        let labels = labels[places.clone()].to_vec();
        (part(&ids), labels, part(&positions), part(&documents))
    };
    (0..batch.ids.shape()[0]).map(row).collect()
}

#[test]
fn row_59_packed_batches_of_the_hub_are_the_same_on_any_ranks_and_after_the_branch_moved() {
    let hub = FakeHub::start();
    serve(&hub, OLD, 100);
    serve(&hub, NEW, 50);
    for pack in [Pack::concat(LENGTH), Pack::best_fit(LENGTH, 8)] {
        hub.point("main", OLD);
        let loader = |rank, world| loader(&hub, pack.clone(), rank, world);
        let all: Vec<_> = loader(0, 1)
            .epoch(0)
            .blocking()
            .map(|batch| rows(&batch.unwrap()))
            .collect();
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
