use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::ErrorKind;
use crate::loader::Builder;
use crate::{Graph, Item, OnError, Rng, Tensor, Uneven};

fn drawn(n: u64, rng: &mut Rng) -> (u64, u64) {
    (n, rng.next_u64())
}

fn numbers() -> Graph<Vec<(u64, u64)>> {
    let numbers = Graph::range(0..100).map_with_rng(drawn).named("draw");
    numbers.shuffle(40).batch(8)
}

fn builder<T: Send + 'static>(graph: Graph<T>) -> Builder<T> {
    DataLoader::builder(graph).seed(3).workers(2).resumable()
}

fn loader<T: Send + 'static>(graph: Graph<T>) -> DataLoader<T> {
    builder(graph).build().unwrap()
}

fn state_after<T: Send + 'static>(loader: &DataLoader<T>, steps: usize) -> Checkpoint {
    let mut epoch = loader.epoch(2).blocking();
    assert_eq!(epoch.by_ref().take(steps).count(), steps);
    epoch.checkpoint().unwrap()
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("datapipes-blame-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_samples_and_draws_are_those_of_the_epoch_before_and_after_the_checkpoint() {
    let loader = loader(numbers());
    let items = loader.epoch(2).blocking().items();
    let batches: Vec<Item<_>> = items.map(Result::unwrap).collect();
    for (after, steps) in [
        (4, 4..7),
        (4, 6..13),
        (4, 0..2),
        (4, 3..5),
        (0, 1..2),
        (13, 12..13),
    ] {
        let state = state_after(&loader, after);
        let mut seen = Vec::new();
        let blame = loader.blame_with(&state, steps.clone(), |step, node, values| {
            if node.node() == "draw" {
                seen.extend(
                    values
                        .iter()
                        .map(|value| (step, *value.downcast_ref().unwrap())),
                );
            }
        });
        let blame = blame.unwrap();
        assert_eq!((blame.epoch, blame.seed), (2, 3));
        let expected = &batches[steps.start as usize..steps.end as usize];
        let origins = blame.batches.iter().map(|batch| batch.replay.origin());
        assert!(origins.eq(expected.iter().map(Item::origin)));
        assert!(
            blame
                .batches
                .iter()
                .map(|batch| batch.step)
                .eq(steps.clone())
        );
        let values = expected.iter().zip(steps.clone());
        let values = values.flat_map(|(batch, step)| batch.iter().map(move |value| (step, *value)));
        assert_eq!(seen, values.collect::<Vec<_>>());
        assert!(
            blame
                .to_string()
                .contains(&format!("\nstep {}: replay of [", steps.start))
        );
    }
}

#[test]
fn a_question_that_has_no_answer_says_why() {
    let of = loader(numbers());
    let state = state_after(&of, 4);
    let refused = |loader: &DataLoader<_>, steps: Range<u64>| {
        let error = loader.blame(&state, steps).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = refused(&of, 5..5);
    assert!(
        kind == ErrorKind::Config && text.contains("no steps in 5..5"),
        "{text}"
    );
    let (kind, text) = refused(&of, 10..20);
    assert!(
        kind == ErrorKind::NotFound && text.contains("epoch 2 has 13 steps"),
        "{text}"
    );
    let (_, text) = refused(
        &loader(Graph::range(0..100).map_with_rng(drawn).batch(8)),
        5..6,
    );
    assert!(text.contains("`shuffle` is gone"), "{text}");
    let (_, text) = refused(&builder(numbers()).seed(4).build().unwrap(), 5..6);
    assert!(text.contains("seed 3, and 4 now"), "{text}");
    let arrival = builder(numbers()).order(Order::Arrival).build().unwrap();
    let (kind, text) = refused(&arrival, 5..6);
    assert!(
        kind == ErrorKind::Config && text.contains("strict order"),
        "{text}"
    );
}

#[test]
fn steps_before_a_checkpoint_of_other_ranks_are_refused_and_later_ones_are_not() {
    let rank = |index, world| {
        let graph = Graph::range(0..96).sharding_filter().batch(4);
        let builder = builder(graph).rank(index, world).uneven(Uneven::Drop);
        builder.build().unwrap()
    };
    let states: Vec<_> = (0..2)
        .map(|index| state_after(&rank(index, 2), 6))
        .collect();
    let own = rank(1, 2).blame(&states[1], 2..8).unwrap();
    assert_eq!(own.batches.len(), 6);
    let all = Checkpoint::merge(&states).unwrap();
    let one = rank(0, 1);
    let error = one.blame(&all, 0..1).unwrap_err();
    assert!(error.to_string().contains("of other ranks"), "{error}");
    let first = one.resume(&all).unwrap();
    let begun = first.checkpoint().unwrap().delivered();
    let batch = first.blocking().next_item().unwrap().unwrap();
    let blame = one.blame(&all, begun..begun + 1).unwrap();
    assert_eq!(blame.batches[0].replay.origin(), batch.origin());
}

#[test]
fn row_136_a_file_that_has_gone_since_is_an_error_of_its_step_or_is_listed_as_skipped() {
    let gone = Arc::<AtomicBool>::default();
    let graph = |gone: Arc<AtomicBool>| {
        let read = move |n| match n == 17 && gone.load(Ordering::Relaxed) {
            true => Err("the file has gone"),
            false => Ok(n),
        };
        Graph::range(0..40).try_map(read).named("read").batch(4)
    };
    let strict = loader(graph(gone.clone()));
    let lenient = builder(graph(gone.clone())).on_error(OnError::skip(9));
    let lenient = lenient.build().unwrap();
    let state = state_after(&strict, 2);
    assert!(strict.blame(&state, 4..5).unwrap().skipped.is_empty());
    gone.store(true, Ordering::Relaxed);
    let error = strict.blame(&state, 4..5).unwrap_err().to_string();
    assert!(
        error.contains("step 4") && error.contains("read: 0:17: the file has gone"),
        "{error}"
    );
    let blame = lenient.blame(&state, 4..5).unwrap();
    assert_eq!(blame.skipped.len(), 1);
    let text = blame.to_string();
    assert!(
        text.contains("1 items failed and were skipped now"),
        "{text}"
    );
}

#[test]
fn no_checkpoint_is_saved_meanwhile() {
    let folder = Folder::new("autosave");
    let path = folder.0.join("train.state");
    let loader = builder(numbers()).autosave(&path, 1).build().unwrap();
    let state = state_after(&loader, 5);
    loader.flush_autosave().unwrap();
    let before = fs::read(&path).unwrap();
    loader.blame(&state, 1..9).unwrap();
    loader.flush_autosave().unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn pictures_are_written_for_each_node_that_makes_some() {
    let folder = Folder::new("pictures");
    let graph = Graph::range(0..12)
        .try_map(|n| Ok::<_, Error>((Tensor::from_vec(vec![n as u8; 24], [2, 4, 3])?, n)))
        .named("decode/it")
        .map(|(picture, _)| picture.shape().len())
        .batch(3);
    let loader = loader(graph);
    let state = folder.0.join("state");
    state_after(&loader, 1).save(&state).unwrap();
    let out = folder.0.join("out");
    let blame = loader.answer(&state, "2..3", Some(out.clone()), |_| None);
    let (blame, pictures) = blame.unwrap();
    assert!(blame.to_string().contains("(U8 [2, 4, 3], 6)"));
    pictures.unwrap();
    let files = fs::read_dir(out.join("step-2")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "000-01-decode_it.png",
            "001-01-decode_it.png",
            "002-01-decode_it.png"
        ]
    );
    // Another type, by the caller's function, and a folder that is a file.
    let drawn = |value: &dyn Any| {
        let n = *value.downcast_ref::<u64>()?;
        Tensor::from_vec(vec![n as u8], [1, 1]).ok()
    };
    let more = folder.0.join("more");
    let (_, pictures) = loader
        .answer(&state, "2..3", Some(more.clone()), drawn)
        .unwrap();
    pictures.unwrap();
    assert!(more.join("step-2/001-00-range.png").is_file());
    // The answer is there, whatever becomes of the pictures.
    fs::remove_dir_all(more.join("step-2")).unwrap();
    fs::write(more.join("step-2"), "").unwrap();
    let (blame, pictures) = loader.answer(&state, "2..3", Some(more), drawn).unwrap();
    assert_eq!(blame.batches.len(), 1);
    assert!(pictures.unwrap_err().to_string().contains("step-2"));
    let error = loader
        .answer(&state, "2..3", Some(state.clone()), |_| None)
        .unwrap_err();
    assert!(error.to_string().contains("state"), "{error}");
}

#[test]
fn a_folder_of_pictures_that_cannot_be_made_is_an_error_before_the_work() {
    let folder = Folder::new("unwritable");
    let ran = Arc::<AtomicBool>::default();
    let seen = ran.clone();
    let loader = loader(
        Graph::range(0..12)
            .map(move |n| {
                seen.store(true, Ordering::Relaxed);
                n
            })
            .batch(3),
    );
    let state = folder.0.join("state");
    state_after(&loader, 1).save(&state).unwrap();
    ran.store(false, Ordering::Relaxed);
    for out in [state.clone(), state.join("below")] {
        let error = loader.answer(&state, "2..3", Some(out), |_| None);
        assert!(error.unwrap_err().to_string().contains("state"));
        assert!(!ran.load(Ordering::Relaxed), "nothing ran");
    }
}

#[test]
fn row_120_a_question_that_cannot_be_read_is_an_error_with_its_path() {
    let folder = Folder::new("question");
    let loader = loader(numbers());
    let state = folder.0.join("cut.state");
    let ask = |steps| loader.answer(&state, steps, None, |_| None).unwrap_err();
    assert_eq!(ask("1..2").kind(), ErrorKind::NotFound);
    let bytes = state_after(&loader, 3).to_bytes();
    fs::write(&state, &bytes[..bytes.len() / 2]).unwrap();
    assert!(ask("1..2").to_string().contains("cut.state"));
    for steps in ["", "5", "a..b", "1..", "-1..2"] {
        assert!(ask(steps).to_string().contains("range of steps"), "{steps}");
    }
}
