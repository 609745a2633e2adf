//! Tests of pack plans.

use datapipes::testing::check_source;
use datapipes::{Checkpoint, DataLoader, OnError, Uneven};

use super::*;
use crate::{TokenWidth, TokenWriter};
use datapipes::ErrorKind;

/// A store of documents of these lengths, whose tokens are the number of the document.
pub(super) fn store(lengths: &[usize]) -> (tempfile::TempDir, TokenStore) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TokenWriter::megatron(dir.path().join("a"), TokenWidth::U16).unwrap();
    for (number, &len) in (1..).zip(lengths) {
        writer.push(&vec![number; len]).unwrap();
    }
    writer.finish().unwrap();
    let store = TokenStore::megatron(dir.path().join("a")).unwrap();
    (dir, store)
}

pub(super) fn lengths(count: usize) -> Vec<usize> {
    (0..count).map(|n| n * n * 31 % 97 % (1 + n % 40)).collect()
}

#[test]
fn keeps_the_contract() {
    let (_dir, store) = store(&lengths(40));
    check_source(&PackPlan::new(store, 16).step(4).window(12));
}

#[test]
fn no_policy_skips_the_rest_of_a_plan() {
    let bytes = |numbers: &[u64]| {
        numbers
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let run = |ends: &[u64]| {
        let index = Some(("a.index".into(), bytes(ends).into()));
        let tokens = vec![0; 12].into();
        let store = TokenStore::from_flat("a.ds", tokens, TokenWidth::U16, index).unwrap();
        let rows = PackPlan::new(store, 2).step(1).window(1).graph();
        let loader = DataLoader::builder(rows).on_error(OnError::skip(100));
        let epoch = loader.build().unwrap().epoch(0).blocking();
        epoch.collect::<Result<Vec<_>>>()
    };
    assert_eq!(run(&[2, 4, 6]).unwrap().len(), 3);
    // The second document ends before it begins.
    assert_eq!(run(&[2, 1, 6]).unwrap_err().kind(), ErrorKind::Corrupt);
}

fn loader(plan: &PackPlan, rank: u64, world: u64) -> DataLoader<Vec<Packed>> {
    let rows = plan
        .graph()
        .sharding_filter()
        .try_map(|row| row.read())
        .batch(4 / world as usize);
    let loader = DataLoader::builder(rows)
        .seed(9)
        .uneven(Uneven::Error)
        .resumable();
    loader.rank(rank as usize, world as usize).build().unwrap()
}

#[test]
fn every_token_comes_once_in_steps_that_are_full() {
    let lengths = lengths(300);
    let (_dir, store) = store(&lengths);
    for window in [7, 64, 1000] {
        let plan = PackPlan::new(store.clone(), 32).step(4).window(window);
        let steps: Vec<Vec<Packed>> = loader(&plan, 0, 1)
            .epoch(1)
            .blocking()
            .collect::<Result<_>>()
            .unwrap();
        assert!(steps.iter().all(|step| step.len() == 4));
        let mut counts = vec![0; lengths.len()];
        for row in steps.iter().flatten() {
            for (&id, _) in row
                .ids
                .iter()
                .zip(&row.document)
                .filter(|&(_, &document)| document > 0)
            {
                counts[id as usize - 1] += 1;
            }
        }
        assert_eq!(counts, lengths);
    }
    let order = |epoch| {
        loader(&PackPlan::new(store.clone(), 32).step(4), 0, 1)
            .epoch(epoch)
            .blocking()
            .next()
    };
    assert_ne!(order(0).unwrap().unwrap(), order(1).unwrap().unwrap());
}

/// Returns the rows of two ranks as those of one: rank 0 has the even rows of a step.
fn dealt(ranks: [Vec<Vec<Packed>>; 2]) -> Vec<Vec<Packed>> {
    let [even, odd] = ranks;
    let step = |(even, odd): (Vec<Packed>, Vec<Packed>)| -> Vec<Packed> {
        even.into_iter()
            .zip(odd)
            .flat_map(|(even, odd)| [even, odd])
            .collect()
    };
    even.into_iter().zip(odd).map(step).collect()
}

#[test]
fn any_number_of_ranks_has_the_same_steps_also_after_a_stop() {
    let (_dir, store) = store(&lengths(200));
    let plan = PackPlan::new(store, 24).step(4).window(50);
    let rows = |epoch: datapipes::Blocking<Vec<Packed>>| epoch.collect::<Result<Vec<_>>>().unwrap();
    let whole = rows(loader(&plan, 0, 1).epoch(0).blocking());
    assert_eq!(
        dealt([0, 1].map(|rank| rows(loader(&plan, rank, 2).epoch(0).blocking()))),
        whole
    );
    for stop in [0, 3, whole.len() - 1] {
        let states = [0, 1].map(|rank| {
            let mut epoch = loader(&plan, rank, 2).epoch(0).blocking();
            assert_eq!(epoch.by_ref().take(stop).count(), stop);
            epoch.checkpoint().unwrap()
        });
        let rest = loader(&plan, 0, 1)
            .resume(&Checkpoint::merge(&states).unwrap())
            .unwrap();
        assert_eq!(rows(rest.blocking()), whole[stop..]);
    }
}

#[test]
fn a_store_that_moved_goes_on_and_another_cost_is_refused() {
    let (dir, here) = store(&lengths(90));
    let plan = |store| PackPlan::new(store, 24).step(4).window(50);
    let rows = |epoch: datapipes::Epoch<Vec<Packed>>| epoch.blocking().map(Result::unwrap);
    let whole: Vec<_> = rows(loader(&plan(here.clone()), 0, 1).epoch(0)).collect();
    let mut epoch = loader(&plan(here.clone()), 0, 1).epoch(0).blocking();
    assert_eq!(epoch.by_ref().take(2).count(), 2);
    let state = epoch.checkpoint().unwrap();

    let elsewhere = tempfile::tempdir().unwrap();
    for file in ["a.bin", "a.idx"] {
        std::fs::copy(dir.path().join(file), elsewhere.path().join(file)).unwrap();
    }
    let moved = plan(TokenStore::megatron(elsewhere.path().join("a")).unwrap());
    let rest = loader(&moved, 0, 1).resume(&state).unwrap();
    assert!(rows(rest).eq(whole[2..].iter().cloned()));

    let (_other, fewer) = store(&lengths(89));
    for other in [plan(here).balance(|length| 2 * length), plan(fewer)] {
        let error = loader(&other, 0, 1)
            .resume(&state)
            .expect_err("another plan");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("pack_plan"), "{error}");
    }
}

#[test]
fn ranks_have_as_much_to_do() {
    let lengths: Vec<usize> = (0..4000)
        .map(|n: usize| 1 + (n * 7919) % 60 + 400 * usize::from(n.is_multiple_of(40)))
        .collect();
    let (_dir, store) = store(&lengths);
    let plan = PackPlan::new(store, 512)
        .step(32)
        .balance(|length| length * length);
    let report = plan.report(8).unwrap();
    assert_eq!(report.tokens, lengths.iter().sum::<usize>() as u64);
    assert_eq!(report.rows, report.steps * 32);
    assert!(report.padding < 0.1, "{report}");
    // A few rows of one long document are in a step with rows that cost less.
    assert!(report.waiting < 0.05 && report.worst_rank < 1.7, "{report}");
    let random = plan.clone().window(64).report(8).unwrap();
    assert!(random.waiting > 2.0 * report.waiting, "{random}");
    assert_eq!(plan.report(7).unwrap_err().kind(), ErrorKind::Config);
    let said = report.to_string();
    assert!(
        said.contains("steps: ") && said.contains("% padding, ranks wait for "),
        "{said}"
    );
}

#[test]
fn rows_of_a_plan_are_laid_out_as_those_of_a_pack() {
    let lengths: Vec<usize> = lengths(120).into_iter().filter(|&len| len > 0).collect();
    let (_dir, store) = store(&lengths);
    let layout = RowLayout::new(32)
        .align(8)
        .max_documents(3)
        .pad(7)
        .ignore(-1);
    let plan = PackPlan::new(store, layout.replace_first(9).labels(crate::Labels::Same)).step(4);
    check_source(&plan.clone().window(12));
    let mut tokens = 0;
    for step in loader(&plan, 0, 1).epoch(0).blocking() {
        for row in step.unwrap() {
            tokens += row.tokens();
            assert_eq!(row.ids.len(), 32);
            assert!(row.document.iter().all(|&document| document <= 3));
            for (bounds, next) in row.cu_seqlens.windows(2).map(|pair| (pair[0], pair[1])) {
                let piece = bounds as usize..next as usize;
                let (ids, labels) = (&row.ids[piece.clone()], &row.labels[piece.clone()]);
                if row.document[piece.start] == 0 {
                    assert!(
                        ids.iter().all(|&id| id == 7) && labels.iter().all(|&label| label == -1)
                    );
                    continue;
                }
                assert!(piece.start.is_multiple_of(8));
                assert_eq!(ids[0], 9);
                // The label of a token is its own, also of the one that was replaced.
                assert!(labels.iter().all(|&label| label == labels[0] && label > 0));
                assert!(ids[1..].iter().all(|&id| i64::from(id) == labels[0]));
            }
        }
    }
    assert_eq!(tokens, lengths.iter().sum::<usize>());
    let odd = PackPlan::new(plan.store.clone(), RowLayout::new(30).align(8)).graph();
    let error = odd.collect().unwrap_err().to_string();
    assert!(error.contains("no multiple of the alignment"), "{error}");
}

#[test]
fn a_long_document_of_a_plan_is_shortened_left_out_or_an_error() {
    let (_dir, store) = store(&[3, 11, 4]);
    let plan = |overflow| PackPlan::new(store.clone(), 4).step(1).overflow(overflow);
    let read = |overflow| -> Vec<Result<Packed>> {
        let rows = plan(overflow).graph().collect().unwrap();
        rows.iter().map(PlannedRow::read).collect()
    };
    let tokens = |rows: Vec<Result<Packed>>| -> usize {
        rows.into_iter().flatten().map(|row| row.tokens()).sum()
    };
    assert_eq!(tokens(read(Overflow::Split)), 18);
    assert_eq!(tokens(read(Overflow::Truncate)), 11);
    assert_eq!(tokens(read(Overflow::Error)), 7);
    let error = read(Overflow::Error)
        .into_iter()
        .find_map(Result::err)
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(
        error
            .to_string()
            .contains("document 1 has 11 tokens, for rows of 4"),
        "{error}"
    );
    let dropped = DataLoader::builder(plan(Overflow::Drop).graph())
        .build()
        .unwrap();
    assert_eq!(dropped.epoch(0).blocking().count(), 2);
    assert_eq!(dropped.stats().unwrap().nodes[0].dropped, 1);
}

#[test]
fn few_documents_make_whole_steps() {
    let (_dir, one) = store(&[5]);
    let plan = PackPlan::new(one, 4).step(4);
    let steps: Vec<Vec<Packed>> = loader(&plan, 0, 1)
        .epoch(0)
        .blocking()
        .collect::<Result<_>>()
        .unwrap();
    assert_eq!((steps.len(), steps[0].len()), (1, 4));
    let mut tokens: Vec<usize> = steps[0].iter().map(Packed::tokens).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 0, 1, 4]);
    let (_dir, none) = store(&[]);
    assert_eq!(
        PackPlan::new(none.clone(), 4).graph().collect().unwrap(),
        []
    );
    let error = PackPlan::new(none, 4)
        .step(0)
        .graph()
        .collect()
        .unwrap_err();
    assert!(error.to_string().contains("steps of no rows"), "{error}");
}

#[test]
fn rows_of_a_long_document_are_in_many_steps() {
    let (_dir, store) = store(&[16 * 40; 8]);
    let rows = PackPlan::new(store, 16).step(8).graph().collect().unwrap();
    assert_eq!(rows.len(), 320);
    let documents_of = |step: &[PlannedRow]| {
        let documents = step.iter().map(|row| row.pieces[0].document);
        documents.collect::<std::collections::BTreeSet<_>>().len()
    };
    // Eight rows at random are of 5.25 documents in the mean.
    let documents: usize = rows.chunks(8).map(documents_of).sum();
    assert!((180..240).contains(&documents), "{documents} in 40 steps");
}

#[test]
fn no_window_is_so_small_that_its_rows_are_padding() {
    let (_dir, store) = store(&[10; 65]);
    let plan = PackPlan::new(store, 32).step(4).window(64);
    let rows = plan.graph().collect().unwrap();
    assert!(rows.len().is_multiple_of(4), "{}", rows.len());
    assert!(rows.iter().all(|row| row.tokens() > 0), "{rows:?}");
    assert_eq!(rows.iter().map(PlannedRow::tokens).sum::<u64>(), 650);
    assert_eq!(plan.report(4).unwrap().rows, rows.len() as u64);
}

/// Returns a store of `tokens` tokens and an index of documents, each of which has all of them
/// `repeats` times.
fn aliased(tokens: usize, documents: usize, repeats: usize) -> TokenStore {
    let sequences = documents * repeats;
    let mut idx = b"MMIDIDX\0\0".to_vec();
    idx.extend(1u64.to_le_bytes());
    idx.push(8);
    idx.extend((sequences as u64).to_le_bytes());
    idx.extend((documents as u64 + 1).to_le_bytes());
    (0..sequences).for_each(|_| idx.extend((tokens as i32).to_le_bytes()));
    (0..sequences).for_each(|_| idx.extend(0i64.to_le_bytes()));
    (0..=documents).for_each(|document| idx.extend(((document * repeats) as i64).to_le_bytes()));
    let bin = vec![1; 2 * tokens];
    TokenStore::from_megatron("a.bin", bin.into(), "a.idx", idx.into()).unwrap()
}

#[test]
fn tokens_that_an_index_names_many_times_are_an_error() {
    aliased(10, 1, 1).check().unwrap();
    let long = aliased(10, 1, 1000);
    let error = long.document_len(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let said = error.to_string();
    assert!(
        said.contains("a.idx") && said.contains("document 0 has 10000 tokens"),
        "{said}"
    );
    for graph in [
        PackPlan::new(long.clone(), 4).graph().map(drop),
        long.token_batches(100).graph().map(drop),
    ] {
        assert_eq!(graph.collect().unwrap_err().kind(), ErrorKind::Corrupt);
    }
    // Each of these fits into the store, and all of them do not.
    let many = aliased(10, 1000, 1);
    assert_eq!(many.document_len(999).unwrap(), 10);
    let error = PackPlan::new(many, 4).graph().collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("a.idx"), "{error}");
}
