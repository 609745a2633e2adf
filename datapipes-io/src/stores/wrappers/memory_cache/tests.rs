use std::time::Duration;

use datapipes::ErrorKind;

use super::*;
use crate::stores::local::buffers::{Buffers, Stock};
use crate::stores::pieces::pooled;
use crate::stores::{InMemory, StoreExt};
use crate::testing::{Reaction, Scripted, check_store, fixtures};

fn store(limit: u64, evict: Evict) -> (Scripted, MemoryCache<Scripted>) {
    let store = Scripted::from_iter((0..20).map(|n| (format!("k{n}"), vec![n as u8; 100])));
    (store.clone(), store.cache_in_memory(limit, evict))
}

#[tokio::test]
async fn keeps_the_contract_of_a_store() {
    for (limit, evict) in [
        (1 << 20, Evict::Oldest),
        (10_000, Evict::Oldest),
        (10_000, Evict::Never),
        (0, Evict::Oldest),
    ] {
        let store = InMemory::from_iter(fixtures()).cache_in_memory(limit, evict);
        check_store(&store).await;
        check_store(&store).await;
        assert!(store.bytes() <= limit);
    }
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_at_once_are_one_request() {
    let (script, store) = store(10_000, Evict::Oldest);
    script.usual(Reaction::default().after(Duration::from_millis(5)));
    let read = futures::future::join_all((0..50).map(|_| store.read("k1"))).await;
    assert!(read.into_iter().all(|data| data.unwrap() == vec![1; 100]));
    assert_eq!(script.requests().len(), 1);
    store.read("k1").await.unwrap();
    assert_eq!(
        store
            .get("k1", Get::range(5..7))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        vec![1; 2]
    );
    assert_eq!(script.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_is_in_no_buffer_of_a_pool() {
    const LEN: usize = 20_000;
    let pool = Buffers::new(1 << 20);
    let has_old_content = || {
        let mut buffer = Stock::new(&pool).get(LEN, 0).unwrap();
        std::mem::replace(&mut buffer.space()[0], 0) == 7
    };
    let store = Scripted::from_iter([("k", vec![7; LEN])]);
    store.usual(Reaction::default().pieces(LEN / 2, Duration::ZERO));
    let cached = store.clone().cache_in_memory(1 << 20, Evict::Oldest);
    pooled(&pool, cached.read("k")).await.unwrap();
    assert_eq!(cached.bytes(), LEN as u64);
    drop(cached);
    assert!(!has_old_content());
    // Without the cache it was in one, which came back.
    pooled(&pool, store.read("k")).await.unwrap();
    assert!(has_old_content());
}

#[tokio::test(start_paused = true)]
async fn an_error_is_not_kept() {
    let (script, store) = store(10_000, Evict::Oldest);
    script.script(
        "k1",
        [
            Reaction::default().unavailable(),
            Reaction::default().cut(7),
        ],
    );
    assert!(store.read("k1").await.is_err());
    assert!(store.read("k1").await.is_err());
    assert_eq!(store.read("k1").await.unwrap(), vec![1; 100]);
    assert_eq!(store.bytes(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_full_cache_evicts_the_oldest_or_keeps_what_it_has() {
    for evict in [Evict::Oldest, Evict::Never] {
        let (script, store) = store(800, evict);
        for n in 0..8 {
            store.read(&format!("k{n}")).await.unwrap();
        }
        for key in ["k0", "k8", "k9", "k0"] {
            store.read(key).await.unwrap();
        }
        assert_eq!((store.bytes(), script.requests().len()), (800, 10));
        store.read("k1").await.unwrap();
        assert_eq!(
            script.requests().len(),
            if evict == Evict::Never { 10 } else { 11 }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn row_87_what_is_too_large_is_passed_by_as_it_comes() {
    let (script, store) = store(799, Evict::Oldest);
    script.script(
        "k1",
        [Reaction::default().pieces(10, Duration::ZERO).stall(50)],
    );
    let mut body = store.get("k1", Get::default()).await.unwrap().body;
    assert_eq!(
        futures::StreamExt::next(&mut body)
            .await
            .unwrap()
            .unwrap()
            .len(),
        10
    );
    assert_eq!(store.read("k1").await.unwrap(), vec![1; 100]);
    assert_eq!(
        (store.bytes(), script.requests().len()),
        (0, 2),
        "one request each"
    );
}

#[tokio::test(start_paused = true)]
async fn row_85_another_version_is_requested_anew() {
    let (script, store) = store(10_000, Evict::Oldest);
    let old = store.get("k1", Get::default()).await.unwrap();
    script.put("k1", "new");
    assert_eq!(
        store.read("k1").await.unwrap(),
        vec![1; 100],
        "without a version, what is kept"
    );
    let new = script.head("k1").await.unwrap().version;
    let object = store
        .get("k1", Get::default().of_version(new.clone()))
        .await
        .unwrap();
    assert_eq!(object.bytes().await.unwrap(), "new");
    assert_eq!(store.read("k1").await.unwrap(), "new");
    assert_eq!(old.bytes().await.unwrap(), vec![1; 100]);
    let gone = store
        .get("k1", Get::default().of_version(Some("1".into())))
        .await
        .unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Changed);
    assert_eq!(store.bytes(), 0);
}
