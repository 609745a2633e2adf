//! Text to packed batches: trains a small BPE tokenizer on a small corpus, tokenizes and packs; one
//! rank is stopped in the middle of an epoch, and two go on with the same batches. Then the same
//! with the tokens in a store.
//!
//! `cargo run --features text --example pack_text`

mod support;

use std::path::Path;
use std::sync::Arc;

use datapipes::{BoxError, Checkpoint, DataLoader, Graph, Uneven};
use datapipes_text::{
    Attention, HfTokenizer, MaskForm, Pack, PackedBatch, TokenStore, TokenWidth, TokenWriter,
    Tokenize, Tokenizer, prelude::*,
};
use support::texts;

/// Tokens of a row, and rows of a step over all ranks.
const LENGTH: usize = 128;
const STEP: usize = 8;

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let corpus: Vec<String> = (0..2000).map(texts::sentences).collect();
    let file = folder.path().join("tokenizer.json");
    texts::train_bpe(corpus.iter().cloned(), 300)?.save(&file, false)?;
    let tokenizer = Arc::new(HfTokenizer::from_file(&file)?);
    println!(
        "{} documents, a vocabulary of {}",
        corpus.len(),
        tokenizer.vocab_size()
    );

    // Texts to packed batches, in one loader. Each rank makes all rows, and is dealt its own.
    let loader = |rank, world| {
        let rows = Graph::from_vec(corpus.clone())
            .shuffle(corpus.len())
            .tokenize(Tokenize::new(tokenizer.clone()).end(texts::END))
            .pack(Pack::best_fit(LENGTH, 32))
            .sharding_filter()
            .batch(STEP / world)
            .collate();
        let loader = DataLoader::builder(rows)
            .seed(42)
            .rank(rank, world)
            .uneven(Uneven::Drop)
            .resumable()
            .build();
        loader.map_err(BoxError::from)
    };
    println!("{}", loader(0, 1)?.explain());
    let batch = loader(0, 1)?
        .epoch(0)
        .blocking()
        .next()
        .ok_or("an empty epoch")??;
    show(&batch, &*tokenizer)?;
    stop_and_resume("texts", &folder.path().join("texts.checkpoint"), loader)?;

    // The tokens in a store: any order of windows, and any number of ranks that divides the step.
    let path = folder.path().join("corpus");
    let mut writer = TokenWriter::megatron(&path, TokenWidth::U16)?;
    let tokenize = Tokenize::new(tokenizer.clone()).end(texts::END);
    for tokens in Graph::from_vec(corpus.clone())
        .tokenize(tokenize)
        .collect()?
    {
        writer.push(&tokens.ids)?;
    }
    writer.finish()?;
    let store = TokenStore::megatron(&path)?.vocab(tokenizer.vocab_size() as u32);
    println!("{store:?}");
    let loader = |rank, world| {
        let windows = store.windows(LENGTH)?;
        let whole_steps = windows.len() / STEP as u64 * STEP as u64;
        let rows = windows.shuffle().subset(0..whole_steps).shard().fetch();
        let rows = rows.try_map(|window| window.row());
        let batches = rows.batch(STEP / world).collate();
        let loader = DataLoader::builder(batches)
            .seed(42)
            .rank(rank, world)
            .uneven(Uneven::Drop)
            .resumable()
            .build();
        loader.map_err(BoxError::from)
    };
    stop_and_resume("windows", &folder.path().join("windows.checkpoint"), loader)
}

/// Stops an epoch of one rank, and lets two ranks go on with it, as other processes would: they
/// have the batches of the epoch that was not stopped.
fn stop_and_resume(
    what: &str,
    file: &Path,
    loader: impl Fn(usize, usize) -> Result<DataLoader<PackedBatch>, BoxError>,
) -> Result<(), BoxError> {
    let whole: Vec<PackedBatch> = loader(0, 1)?
        .epoch(0)
        .blocking()
        .collect::<Result<_, _>>()?;
    let mut epoch = loader(0, 1)?.epoch(0).blocking();
    let stopped = epoch.by_ref().take(whole.len() / 2).count();
    epoch.checkpoint()?.save(file)?;
    drop(epoch);

    let checkpoint = Checkpoint::load(file)?;
    let first = loader(0, 2)?.resume(&checkpoint)?.blocking();
    let second = loader(1, 2)?.resume(&checkpoint)?.blocking();
    let mut steps = stopped;
    // The last step may be short, and two ranks leave out a row that is left over.
    let rest = whole[stopped..]
        .iter()
        .filter(|batch| batch.ids.shape()[0] == STEP);
    for ((first, second), expected) in first.zip(second).zip(rest) {
        // Rank 0 has the even rows of a step, and rank 1 the odd ones.
        let (first, second) = (
            first?.ids.into_vec::<u32>()?,
            second?.ids.into_vec::<u32>()?,
        );
        let rows = first.chunks(LENGTH).zip(second.chunks(LENGTH));
        let ids: Vec<u32> = rows.flat_map(|(even, odd)| [even, odd].concat()).collect();
        if ids != expected.ids.as_slice::<u32>()? {
            return Err("two ranks have other batches than one".into());
        }
        steps += 1;
    }
    println!(
        "{what}: rank 0 of 1 stopped after {stopped} of {} steps ({} bytes), two ranks went on to {steps}",
        whole.len(),
        std::fs::metadata(file)?.len()
    );
    Ok(())
}

/// Prints what a batch has.
fn show(batch: &PackedBatch, tokenizer: &dyn Tokenizer) -> Result<(), BoxError> {
    let bounds = batch.cu_seqlens.as_slice::<u32>()?;
    println!("ids {:?}", batch.ids);
    println!("labels {:?}", batch.labels);
    println!("positions {:?}", batch.positions);
    println!("cu_seqlens {bounds:?}, the longest {}", batch.max_seqlen()?);
    println!(
        "a mask of {:?}",
        batch.mask(Attention::Causal, MaskForm::Attend)?.shape()
    );
    let first = &batch.ids.as_slice::<u32>()?[..bounds[1] as usize];
    println!("the first document: {:?}\n", tokenizer.decode(first)?);
    Ok(())
}
