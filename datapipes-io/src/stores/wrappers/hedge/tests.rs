use super::*;
use crate::stores::{InMemory, StoreExt};
use crate::testing::{Reaction, Scripted, check_store, fixtures};
use datapipes::ErrorKind;

const MS: Duration = Duration::from_millis(1);
const LEN: usize = 20_000;

fn usual() -> Reaction {
    Reaction::default().after(10 * MS).pieces(2_000, MS)
}

fn content() -> Bytes {
    (0..LEN).map(|n| (n % 251) as u8).collect()
}

/// Returns a store that has seen 200 normal reads.
async fn warm() -> (Scripted, Hedge<Scripted>) {
    let script = Scripted::from_iter([("k", content())]);
    script.usual(usual());
    let store = script.clone().hedge(HedgePolicy::default());
    for _ in 0..200 {
        assert_eq!(store.read("k").await.unwrap(), content());
    }
    assert_eq!(script.requests().len(), 200, "usual reads are not hedged");
    (script, store)
}

/// Reads the object, and returns the duration and the requests.
async fn read(script: &Scripted, store: &impl Store) -> (Duration, Vec<Option<Range<u64>>>) {
    let before = script.requests().len();
    let begun = Instant::now();
    assert_eq!(store.read("k").await.unwrap(), content());
    let took = begun.elapsed();
    assert_eq!(script.in_flight(), 0, "the loser is dropped");
    (
        took,
        script.requests()[before..]
            .iter()
            .map(|request| request.get.range.clone())
            .collect(),
    )
}

#[tokio::test]
async fn keeps_the_contract_of_a_store() {
    let store = InMemory::from_iter(fixtures()).hedge(HedgePolicy::default());
    for _ in 0..3 {
        check_store(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn row_71_a_late_answer_is_overtaken() {
    let (script, store) = warm().await;
    script.script("k", [usual().after(Duration::from_secs(60))]);
    let (took, asked) = read(&script, &store).await;
    assert_eq!(asked, [None, None]);
    assert!(took < 40 * MS, "{took:?}");
    assert_eq!(store.head("k").await.unwrap().key, "k");
    script.script("k", [usual().after(Duration::from_secs(60))]);
    let begun = Instant::now();
    store.get("k", Get::default()).await.unwrap();
    assert!(begun.elapsed() < 30 * MS);
}

#[tokio::test(start_paused = true)]
async fn row_71_a_stalled_body_is_overtaken_from_where_it_stalled() {
    let (script, store) = warm().await;
    script.script("k", [usual().stall(6_000)]);
    let (took, asked) = read(&script, &store).await;
    assert_eq!(asked, [None, Some(6_000..LEN as u64)]);
    assert!(took < 60 * MS, "{took:?}");

    script.script("k", [usual().pieces(2_000, 500 * MS)]);
    let (took, asked) = read(&script, &store).await;
    assert_eq!(asked, [None, None], "nothing had come yet");
    assert!(took < 60 * MS, "{took:?}");

    script.without_versions();
    script.script("k", [usual().stall(6_000)]);
    assert_eq!(
        read(&script, &store).await.1,
        [None, None],
        "without versions, all of it"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_may_win_after_all_and_an_error_lets_the_other_go_on() {
    let (script, store) = warm().await;
    script.script(
        "k",
        [
            usual().after(20 * MS),
            usual().after(Duration::from_secs(9)),
        ],
    );
    let (took, asked) = read(&script, &store).await;
    assert_eq!((took.as_millis(), asked.len()), (30, 2));
    script.script("k", [usual().after(20 * MS).unavailable(), usual()]);
    assert_eq!(read(&script, &store).await.1.len(), 2);
    script.script("k", [usual().after(20 * MS), usual().unavailable()]);
    assert_eq!(read(&script, &store).await.1.len(), 2);
    let denied = || usual().after(20 * MS).refuse(|| Error::denied("first"));
    script.script("k", [denied(), usual().after(50 * MS).unavailable()]);
    assert_eq!(store.read("k").await.unwrap_err().kind(), ErrorKind::Denied);
    script.script("k", [usual().unavailable()]);
    assert_eq!(
        store.read("k").await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

#[tokio::test(start_paused = true)]
async fn row_59_two_versions_are_never_mixed() {
    let (script, store) = warm().await;
    script.script("k", [usual().pieces(2_000, MS).stall(6_000)]);
    let change = async {
        tokio::time::sleep(15 * MS).await;
        script.put("k", vec![0; LEN]);
    };
    let read = tokio::time::timeout(Duration::from_secs(60), store.read("k"));
    let (read, ()) = futures::join!(read, change);
    assert!(
        read.is_err(),
        "the old version has no second source; a stall is for `Timeout`"
    );
}

#[tokio::test(start_paused = true)]
async fn no_more_than_one_in_twenty_is_asked_for_twice() {
    let (script, store) = warm().await;
    script.usual(usual().after(100 * MS));
    for _ in 0..1000 {
        store.read("k").await.unwrap();
    }
    let extra = script.requests().len() - 1200;
    assert!(extra <= 60, "{extra}");
}

#[tokio::test(start_paused = true)]
async fn a_large_object_is_not_taken_for_a_slow_one() {
    let (script, store) = warm().await;
    script.put("large", vec![1; 100 * LEN]);
    store.read("large").await.unwrap();
    assert_eq!(script.requests().len(), 201);
}

#[tokio::test(start_paused = true)]
async fn the_slowest_of_many_reads_are_no_slower_than_others() {
    let (script, store) = warm().await;
    let mut slowest = Duration::ZERO;
    for n in 0..500 {
        if n % 40 == 0 {
            script.script("k", [usual().stall((n * 97) as u64 % LEN as u64)]);
        }
        slowest = slowest.max(read(&script, &store).await.0);
    }
    assert!(slowest < 60 * MS, "{slowest:?}");
}
