use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::StreamExt;
use indicatif::InMemoryTerm;

use super::*;
use crate::sync::lock;
use crate::{DataLoader, Error, ErrorKind, Graph, OnError};

/// Returns the epoch with a bar on a terminal in memory, and that terminal.
fn shown<T: Send + 'static>(epoch: Epoch<T>) -> (WithProgress<Epoch<T>>, InMemoryTerm) {
    let terminal = InMemoryTerm::new(4, 100);
    let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
    let bar = Bar::new(&epoch, target);
    (WithProgress { inner: epoch, bar }, terminal)
}

fn loader() -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..100).shuffle(100).batch(10);
    DataLoader::builder(graph).resumable().build().unwrap()
}

/// Asserts that the terminal has one line with all of these.
fn assert_shows(terminal: &InMemoryTerm, parts: &[&str]) {
    let text = terminal.contents();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_epoch_is_the_same_with_a_bar_and_the_bar_ends_full() {
    let plain: Vec<_> = loader().epoch(3).blocking().map(Result::unwrap).collect();
    let (epoch, terminal) = shown(loader().epoch(3));
    let batches: Vec<_> = epoch.into_iter().map(Result::unwrap).collect();
    assert_eq!(batches, plain);
    assert_shows(
        &terminal,
        &["epoch 3 ", " 10/10 ", "/s, waited ", " %, 00:00:00"],
    );
    assert!(!terminal.contents().contains("skipped"));

    let (epoch, terminal) = shown(loader().epoch(3));
    let streamed: Vec<_> = crate::run::block_on(epoch.map(Result::unwrap).collect());
    assert_eq!(streamed, plain);
    assert_shows(&terminal, &["epoch 3 ", " 10/10 "]);
}

/// Nothing is drawn before the first item, and a loop that is left shows how far it came.
#[test]
fn a_bar_begins_with_the_first_item_and_stays_where_the_loop_was_left() {
    let (epoch, terminal) = shown(loader().epoch(0));
    let mut batches = epoch.into_iter();
    assert!(matches!(batches.bar.drawing, Drawing::NotYet));
    assert_eq!(terminal.contents(), "");
    for batch in batches.by_ref().take(4) {
        batch.unwrap();
    }
    let state = batches.get_ref().checkpoint().unwrap();
    drop(batches);
    assert_shows(&terminal, &[" 4/10 "]);

    let (epoch, terminal) = shown(loader().resume(&state).unwrap());
    assert_eq!(epoch.into_iter().take(2).count(), 2);
    assert_shows(&terminal, &[" 6/10 "]);

    let (epoch, terminal) = shown(loader().epoch(0));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        for (step, batch) in epoch.into_iter().enumerate() {
            assert_ne!(step, 2, "{batch:?}");
        }
    }));
    assert!(panicked.is_err());
    assert_shows(&terminal, &[" 3/10 "]);
}

#[test]
fn errors_are_not_counted_and_skipped_items_are_shown() {
    let graph = || {
        Graph::range(0..10).try_map(|v| match v {
            3 | 7 => Err(Error::new(ErrorKind::User, "broken")),
            _ => Ok(v),
        })
    };
    let skipping = DataLoader::builder(graph()).on_error(OnError::skip(5));
    let (epoch, terminal) = shown(skipping.build().unwrap().epoch(0));
    assert_eq!(epoch.into_iter().count(), 8);
    assert_shows(&terminal, &[" 8/10 ", "2 skipped"]);

    let failing = DataLoader::builder(graph()).build().unwrap();
    let (epoch, terminal) = shown(failing.epoch(0));
    assert_eq!(epoch.into_iter().filter(Result::is_err).count(), 1);
    assert_shows(&terminal, &[" 3/10 "]);
}

#[test]
fn an_unknown_length_is_left_out() {
    let graph = Graph::range(0..10).filter(|v| v % 2 == 0);
    let (epoch, terminal) = shown(DataLoader::builder(graph).build().unwrap().epoch(0));
    assert_eq!(epoch.into_iter().count(), 5);
    assert_shows(&terminal, &["epoch 0 ", " 5 taken, "]);
    // The rate may end in `5/s`.
    assert!(!terminal.contents().contains(" 5/"));
}

/// A loop that waits for its first item is said to wait: figures know of a wait when it ends.
#[test]
fn a_wait_that_goes_on_is_shown() {
    let (answer, answered) = channel();
    let answered = Arc::new(std::sync::Mutex::new(answered));
    let graph = Graph::range(0..1).map(move |v| {
        let _ = lock(&answered).recv();
        v
    });
    let loader = DataLoader::builder(graph).workers(0).build().unwrap();
    let (epoch, terminal) = shown(loader.epoch(0));
    let reader = std::thread::spawn(move || epoch.into_iter().count());
    let begun = Instant::now();
    let waits = |text: String| text.contains("waited 9") || text.contains("waited 100");
    while !waits(terminal.contents()) {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{}",
            terminal.contents()
        );
        std::thread::yield_now();
    }
    answer.send(()).unwrap();
    assert_eq!(reader.join().unwrap(), 1);
    assert_shows(&terminal, &[" 1/1 "]);
}

/// A program without a terminal has no thread, either.
#[test]
fn a_bar_without_a_terminal_is_silent() {
    let inner = loader().epoch(0);
    let bar = Bar::new(&inner, ProgressDrawTarget::hidden());
    let mut batches = WithProgress { inner, bar }.into_iter();
    assert_eq!(batches.by_ref().take(2).count(), 2);
    assert!(matches!(batches.bar.drawing, Drawing::Over));
    assert_eq!(batches.suspend(|| 7), 7);
}
