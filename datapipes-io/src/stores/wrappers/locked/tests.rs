use datapipes::{DataLoader, OnError};

use super::*;
use crate::prelude::*;
use crate::stores::Memory;
use crate::testing::{check_store, fixtures};

fn store() -> Memory {
    Memory::from_iter((0..8).map(|n| (format!("train/{n}.txt"), format!("{n}"))))
}

#[tokio::test]
async fn keeps_the_contract_of_a_store() {
    let store = Memory::from_iter(fixtures());
    for hash in [false, true] {
        let lock = Lock::of(store.clone(), "**", hash).unwrap();
        check_store(&store.clone().locked(&lock)).await;
    }
}

/// Returns the error of an epoch over a store that was changed, under a policy that skips.
fn refused(lock: &Lock, change: impl Fn(&Memory)) -> String {
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
    let lock = Lock::of(store(), "**/*.txt", false).unwrap();
    let text = refused(&lock, |store| store.remove("train/3.txt"));
    assert!(text.ends_with("train/3.txt (file 3) is missing"), "{text}");
    let text = refused(&lock, |store| store.put("train/00.txt", ""));
    assert!(text.ends_with("train/00.txt (file 1 now) is new"), "{text}");
    let text = refused(&lock, |store| store.put("train/7.txt", "longer"));
    assert!(
        text.ends_with("train/7.txt (file 7) has 6 bytes, and had 1"),
        "{text}"
    );
    let all = |store: &Memory| (0..8).for_each(|n| store.remove(&format!("train/{n}.txt")));
    assert!(refused(&lock, all).ends_with("; and 3 more"));
    // Names that the lock's pattern leaves out.
    let store = store();
    store.put("train/notes", "");
    let files = store.locked(&lock).list_files("train/*.txt");
    assert_eq!(files.load_files().collect().unwrap().len(), 8);
}

/// Returns a store with a file that was rewritten at the same size, and the lock with hashes of
/// what was there before.
fn rewritten() -> (Memory, Lock) {
    let store = store();
    let lock = Lock::of(store.clone(), "train/*", true).unwrap();
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
    let store = Memory::from_iter([("a.txt", "1\n2\n3\n4\n")]);
    let lock = Lock::of(store.clone(), "*.txt", true).unwrap();
    let lines = |store: &Memory| {
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
    let lock = Lock::of(store.clone(), "train/*", true).unwrap();
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
    let lock = Lock::of(store.clone(), "**", false).unwrap();
    let files = store.clone().locked(&lock).list_files("train/*");
    assert_eq!(files.collect().unwrap().len(), 8);
    store.remove("test/1.txt");
    let files = store.clone().locked(&lock).list_files("train/*");
    assert_eq!(files.collect().unwrap().len(), 8);
    assert!(store.locked(&lock).list_files("**").collect().is_err());
}

#[test]
fn a_file_by_its_key_is_checked_when_it_is_read() {
    let lock = Lock::of(store(), "**", false).unwrap();
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
