use std::time::Duration;

use datapipes::pipes::Batch;
use datapipes::{Checkpoint, DataLoader, Graph, OnError, Order, Uneven};

use super::*;
use crate::FileRef;
use crate::prelude::*;
use crate::stores::{InMemory, ListStore};
use crate::testing::{Reaction, check_store, fixtures};

fn store() -> InMemory {
    InMemory::from_iter((0..8).map(|n| (format!("train/{n}.txt"), format!("{n}"))))
}

#[tokio::test]
async fn keeps_the_contract_of_a_store() {
    let store = InMemory::from_iter(fixtures());
    for hash in [false, true] {
        let lock = Lockfile::of(store.clone(), "**", hash).unwrap();
        check_store(&store.clone().locked(&lock)).await;
    }
}

/// Returns the error of an epoch over a store that was changed, under a policy that skips.
fn refused(lock: &Lockfile, change: impl Fn(&InMemory)) -> String {
    let store = store();
    change(&store);
    let graph = store.locked(lock).list_files("train/*").load_files();
    let loader = DataLoader::builder(graph).on_error(OnError::skip(100));
    let loader = loader.build().unwrap();
    let error = loader.epoch(0).blocking().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!(error.node(), Some("list_files"));
    error.to_string()
}

#[test]
fn row_136_what_is_missing_new_or_changed_is_refused_by_name_before_the_first_file() {
    let lock = Lockfile::of(store(), "**/*.txt", false).unwrap();
    let text = refused(&lock, |store| store.remove("train/3.txt"));
    assert!(text.contains("train/3.txt (file 3) is missing"), "{text}");
    let text = refused(&lock, |store| store.put("train/00.txt", ""));
    assert!(text.contains("train/00.txt (file 1 now) is new"), "{text}");
    let text = refused(&lock, |store| store.put("train/7.txt", "longer"));
    assert!(
        text.contains("train/7.txt (file 7) has 6 bytes, and had 1"),
        "{text}"
    );
    let all = |store: &InMemory| (0..8).for_each(|n| store.remove(&format!("train/{n}.txt")));
    assert!(refused(&lock, all).ends_with("; and 3 more"));
    // Names that the lock's pattern leaves out.
    let store = store();
    store.put("train/notes", "");
    let files = store.locked(&lock).list_files("train/*.txt");
    assert_eq!(files.load_files().collect().unwrap().len(), 8);
}

/// Returns a store with a file that was rewritten at the same size, and the lock with hashes of
/// what was there before.
fn rewritten() -> (InMemory, Lockfile) {
    let store = store();
    let lock = Lockfile::of(store.clone(), "train/*", true).unwrap();
    store.put("train/5.txt", "x");
    (store, lock)
}

/// Checks that the error is the refusal of the rewritten file.
fn is_refusal(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("train/5.txt (file 5) has the hash "),
        "{text}"
    );
}

#[tokio::test]
async fn row_136_a_range_of_a_file_that_was_rewritten_at_the_same_size_is_refused() {
    let (store, lock) = rewritten();
    let locked = store.locked(&lock);
    for get in [Get::range(0..1), Get::default()] {
        is_refusal(&locked.get("train/5.txt", get).await.unwrap_err());
    }
    is_refusal(&locked.read("train/5.txt").await.unwrap_err());
    assert!(locked.get("train/4.txt", Get::range(0..1)).await.is_ok());
}

#[test]
fn row_136_content_of_the_same_size_is_told_apart_by_its_hash_and_no_policy_skips_it() {
    let (store, lock) = rewritten();
    for whole in [u64::MAX, 0] {
        let files = store.clone().locked(&lock).list_files("train/*");
        let lines = files.stream_as(crate::formats::Lines::new(), whole);
        let loader = DataLoader::builder(lines).on_error(OnError::skip(100));
        let loader = loader.build().unwrap();
        let errors = loader.epoch(0).blocking().filter_map(Result::err);
        let errors: Vec<Error> = errors.collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        is_refusal(&errors[0]);
    }
}

#[test]
fn row_136_an_epoch_that_goes_on_in_the_middle_of_a_rewritten_file_is_refused() {
    let store = InMemory::from_iter([("a.txt", "1\n2\n3\n4\n")]);
    let lock = Lockfile::of(store.clone(), "*.txt", true).unwrap();
    let lines = |store: &InMemory| {
        let files = store.clone().locked(&lock).list_files("*.txt");
        let lines = files.stream_as(crate::formats::Lines::new(), 0);
        DataLoader::builder(lines).resumable().build().unwrap()
    };
    let mut epoch = lines(&store).epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let checkpoint = epoch.checkpoint().unwrap();
    // A copy has another version, and the same content.
    store.put("a.txt", "1\n2\n3\n4\n");
    let rest = lines(&store).resume(&checkpoint).unwrap().blocking();
    assert_eq!(rest.map(Result::unwrap).count(), 3);
    store.put("a.txt", "1\n2\n3\n5\n");
    let rest = lines(&store).resume(&checkpoint).unwrap().blocking();
    let error = rest.filter_map(Result::err).next().unwrap();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn a_copied_file_is_read_once_to_compare_its_hash() {
    let store = store();
    let lock = Lockfile::of(store.clone(), "train/*", true).unwrap();
    store.put("train/5.txt", "5");
    let counted = crate::testing::Scripted::from_iter([("train/5.txt", "5")]);
    // A copy: another version of the same content.
    counted.put("train/5.txt", "5");
    let locked = counted.clone().locked(&lock);
    for _ in 0..3 {
        locked.get("train/5.txt", Get::range(0..1)).await.unwrap();
    }
    // The first is asked for again after the file was read.
    assert_eq!(counted.requests().len(), 5, "{:?}", counted.requests());
    assert_eq!(locked.read("train/5.txt").await.unwrap(), "5");
    assert_eq!(counted.requests().len(), 6, "{:?}", counted.requests());
    // A file that is read as a whole is compared on the way.
    let locked = counted.clone().locked(&lock);
    assert_eq!(locked.read("train/5.txt").await.unwrap(), "5");
    locked.get("train/5.txt", Get::range(0..1)).await.unwrap();
    assert_eq!(counted.requests().len(), 8, "{:?}", counted.requests());
}

#[test]
fn a_part_of_a_locked_store_is_compared_with_its_part_of_the_lock() {
    let store = store();
    store.put("test/1.txt", "");
    let lock = Lockfile::of(store.clone(), "**", false).unwrap();
    let files = store.clone().locked(&lock).list_files("train/*");
    assert_eq!(files.collect().unwrap().len(), 8);
    store.remove("test/1.txt");
    let files = store.clone().locked(&lock).list_files("train/*");
    assert_eq!(files.collect().unwrap().len(), 8);
    assert!(store.locked(&lock).list_files("**").collect().is_err());
}

#[test]
fn a_file_by_its_key_is_checked_when_it_is_read() {
    let lock = Lockfile::of(store(), "**", false).unwrap();
    let store = store();
    store.put("train/1.txt", "longer");
    store.put("extra", "");
    store.remove("train/2.txt");
    for (key, what) in [
        ("train/1.txt", "has 6 bytes"),
        ("train/2.txt", "is missing"),
        ("extra", "is new"),
        ("nothing", "not found"),
    ] {
        let files = store.clone().locked(&lock).files([key]).load_files();
        let error = files.collect().unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(what), "{error}");
        assert!(error.starts_with("load_files: "), "{error}");
    }
}

/// Returns the step of a rank's epoch that has this file; the graph decides on it before it reads.
fn step_of(files: impl Fn() -> ListStore, rank: usize, name: &str) -> Option<usize> {
    let loader = loader_of(files(), rank);
    let mut steps = loader.epoch(1).blocking().map(Result::unwrap);
    steps.position(|names| names.iter().any(|other| &**other == name))
}

fn loader_of(files: ListStore, rank: usize) -> DataLoader<Vec<Arc<str>>> {
    let files = Graph::source(files).shuffle(100).sharding_filter();
    let names = files.load_files().map(|file| file.name).prefetch(2);
    let builder = DataLoader::builder(names.batch(Batch::new(2).drop_last()));
    let builder = builder.seed(5).rank(rank, 2).uneven(Uneven::Drop);
    builder.build().unwrap()
}

#[test]
fn row_136_a_refusal_names_the_first_step_that_would_use_each_file() {
    let (then, now) = (store(), store());
    for store in [&then, &now] {
        store.put("notes", "");
    }
    let lock = Lockfile::of(then.clone(), "**", false).unwrap();
    now.remove("train/3.txt");
    now.put("train/5.txt", "longer");
    now.put("train/00.txt", "");
    now.put("more", "");
    let locked = Arc::new(now.clone().locked(&lock));
    let listed = |store: Arc<dyn Store>| move || ListStore::new(store.clone(), "train/*");
    let said = |step: Option<usize>| match step {
        Some(step) => format!(", first used by step {step}"),
        None => String::new(),
    };
    let mut steps = HashSet::new();
    for rank in 0..2 {
        let loader = loader_of(listed(locked.clone())(), rank);
        let error = loader.epoch(1).blocking().find_map(Result::err).unwrap();
        let of = |store: &InMemory, name| step_of(listed(Arc::new(store.clone())), rank, name);
        let [gone, changed] = ["train/3.txt", "train/5.txt"].map(|name| of(&then, name));
        let new = of(&now, "train/00.txt");
        steps.extend([gone, changed, new]);
        let expected = format!(
            "train/3.txt (file 3) is missing{}; train/5.txt (file 5) has 6 bytes, and had 1{}; \
             train/00.txt (file 1 now) is new{}",
            said(gone),
            said(changed),
            said(new)
        );
        let text = error.to_string();
        assert!(text.contains(&expected), "{text}\n{expected}");
    }
    assert!(steps.len() > 2 && steps.contains(&None), "{steps:?}");
}

#[test]
fn row_136_a_step_that_does_not_follow_without_the_data_is_not_named() {
    let lock = Lockfile::of(store(), "**", false).unwrap();
    let now = store();
    now.put("train/5.txt", "longer");
    let files = || now.clone().locked(&lock).list_files("train/*");
    let names = || files().load_files().map(|file| file.name);
    let error_of = |graph: Graph<Vec<Arc<str>>>, order| {
        let loader = DataLoader::builder(graph).order(order).build().unwrap();
        let mut batches = loader.epoch(0).blocking();
        batches.find_map(Result::err).unwrap().to_string()
    };
    let text = error_of(names().batch(3), Order::Strict);
    assert!(text.ends_with("and had 1, first used by step 1"), "{text}");
    for graph in [
        names().filter(|name| !name.contains('1')).batch(3),
        names().shuffle(4).batch(3),
        names().flat_map(|name| [name.clone(), name]).batch(3),
    ] {
        let text = error_of(graph, Order::Strict);
        assert!(text.ends_with("and had 1"), "{text}");
    }
    let text = error_of(names().batch(3), Order::Arrival);
    assert!(text.ends_with("and had 1"), "{text}");
}

#[test]
fn row_136_a_file_by_its_key_is_refused_at_its_step() {
    let (store, lock) = rewritten();
    let keys: Vec<String> = (0..8).map(|n| format!("train/{n}.txt")).collect();
    let files = store.locked(&lock).files(keys).load_files();
    let loader = DataLoader::builder(files.batch(2)).build().unwrap();
    let mut batches = loader.epoch(0).blocking();
    assert_eq!(batches.by_ref().take(2).filter(Result::is_ok).count(), 2);
    let error = batches.next().unwrap().unwrap_err();
    is_refusal(&error);
    let text = error.to_string();
    let begin = "load_files: train/5.txt: wrong configuration: at step 2: memory:///";
    assert!(text.starts_with(begin), "{text}");
}

/// Returns a loader of the names of files, two a step.
fn names_of(files: Graph<FileRef>, rank: usize, world: usize) -> DataLoader<Vec<Arc<str>>> {
    let names = files.sharding_filter().load_files().map(|file| file.name);
    let builder = DataLoader::builder(names.batch(2)).rank(rank, world);
    let builder = match world {
        1 => builder,
        _ => builder.uneven(Uneven::Drop),
    };
    builder.resumable().build().unwrap()
}

#[test]
fn row_136_a_rank_that_reads_two_in_turn_counts_the_steps_of_both() {
    let lock = Lockfile::of(store(), "**", true).unwrap();
    let listed = |store: Arc<dyn Store>| Graph::source(ListStore::new(store, "train/*"));
    let keyed = |store: Arc<dyn Store>| {
        let keys = (0..8).map(|n| format!("train/{n}.txt"));
        store.files(keys.collect::<Vec<_>>())
    };
    for (files, says) in [
        (
            &listed as &dyn Fn(Arc<dyn Store>) -> Graph<FileRef>,
            "first used by step",
        ),
        (&keyed, "at step"),
    ] {
        let then = || files(Arc::new(store()));
        let checkpoints = [0, 1].map(|rank| {
            let mut epoch = names_of(then(), rank, 2).epoch(0).blocking();
            epoch.next().unwrap().unwrap();
            epoch.checkpoint().unwrap()
        });
        let state = Checkpoint::merge(&checkpoints).unwrap();
        let rest = names_of(then(), 0, 1).resume(&state).unwrap().blocking();
        let rest: Vec<_> = rest.map(Result::unwrap).collect();
        assert_eq!((rest.len(), state.delivered()), (2, 2));
        for (place, name) in rest.iter().flatten().enumerate() {
            let now = store();
            now.put(&**name, "longer");
            let loader = names_of(files(Arc::new(now.locked(&lock))), 0, 1);
            let mut epoch = loader.resume(&state).unwrap().blocking();
            let text = epoch.find_map(Result::err).unwrap().to_string();
            let step = 2 + place / 2;
            assert!(text.contains(&format!("{says} {step}")), "{step}: {text}");
        }
    }
}

/// Reads ranges of a file of another version by many readers at once, a single time. Returns the
/// results, and the number of requests.
async fn read_at_once(content: &'static str) -> (Vec<Result<()>>, usize) {
    let (_, lock) = rewritten();
    let now = crate::testing::Scripted::from_iter([("train/5.txt", "")]);
    (0..9).for_each(|_| now.put("train/5.txt", content));
    now.usual(Reaction::default().after(Duration::from_millis(5)));
    let locked = now.clone().locked(&lock);
    let readers = (0..16).map(|n| {
        let get = [Get::range(0..1), Get::default()][n % 2].clone();
        locked.get("train/5.txt", get)
    });
    let results = futures::future::join_all(readers).await.into_iter();
    let results = results.map(|result| result.map(drop)).collect();
    (results, now.requests().len())
}

#[tokio::test(start_paused = true)]
async fn many_readers_at_once_wait_for_one_comparison_of_a_file_that_was_copied_or_rewritten() {
    let (results, requests) = read_at_once("5").await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    // Each asks before and after it.
    assert_eq!(requests, 16 + 1 + 16);
    let (results, requests) = read_at_once("x").await;
    results
        .into_iter()
        .for_each(|result| is_refusal(&result.unwrap_err()));
    assert_eq!(requests, 16 + 1);
}
