use futures::TryStreamExt;

use super::*;
use crate::stores::{InMemory, StoreExt};
use crate::testing::{Reaction, Scripted, check_store, fixtures};

fn ok() -> Reaction {
    Reaction::default()
}

fn content(len: usize) -> Bytes {
    (0..len).map(|n| (n % 251) as u8).collect()
}

fn store(len: usize) -> (Scripted, Retry<Scripted>) {
    let store = Scripted::from_iter([("k", content(len))]);
    (store.clone(), store.retry(Backoff::default()))
}

/// Returns the body up to its end or first error.
async fn stream(store: &impl Store, get: Get) -> (Vec<u8>, Option<Error>) {
    let mut body = match store.get("k", get).await {
        Ok(object) => object.body,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut got = Vec::new();
    while let Some(piece) = body.next().await {
        match piece {
            Ok(piece) => got.extend_from_slice(&piece),
            Err(error) => {
                assert!(body.next().await.is_none(), "an error ends the body");
                return (got, Some(error));
            }
        }
    }
    (got, None)
}

async fn whole(store: &impl Store, get: Get) -> Vec<u8> {
    let (got, error) = stream(store, get).await;
    assert!(error.is_none(), "{}", error.unwrap());
    got
}

#[tokio::test]
async fn keeps_the_contract_of_a_store() {
    check_store(&InMemory::from_iter(fixtures()).retry(Backoff::default())).await;
}

#[tokio::test(start_paused = true)]
async fn row_52_what_passes_is_tried_again_and_no_more_than_asked() {
    for failures in [1, 3, 9] {
        let (script, retry) = store(5);
        script.script("k", vec![ok().unavailable(); failures]);
        assert_eq!(retry.read("k").await.unwrap(), content(5));
        assert_eq!(script.requests().len(), failures + 1);
        let mut before = Duration::from_millis(100);
        for pause in script.pauses() {
            let most = (before * 3).min(Duration::from_secs(15)) + Duration::from_millis(2);
            assert!(
                pause >= Duration::from_millis(99) && pause <= most,
                "{pause:?} after {before:?}"
            );
            before = pause;
        }
    }
    let (script, retry) = store(5);
    script.usual(ok().unavailable());
    let error = retry.read("k").await.unwrap_err();
    assert_eq!(script.requests().len(), 10);
    assert!(error.kind() == ErrorKind::Unavailable && error.is_transient());
    let text = error.to_string();
    assert!(
        text.starts_with("unavailable: scripted:///k: after 10 tries in "),
        "{text}"
    );
    assert!(
        text.ends_with(": unavailable: scripted:///k: 503"),
        "{text}"
    );
}

/// Counters of warnings, and of events at lower levels.
#[derive(Clone, Default)]
struct Heard(Arc<[AtomicU64; 2]>);

impl tracing::Subscriber for Heard {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().ends_with("wrappers::retry")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let warns = *event.metadata().level() == tracing::Level::WARN;
        self.0[usize::from(!warns)].fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn tries_again_are_warnings_and_no_flood_of_them() {
    let heard = Heard::default();
    let _guard = tracing::subscriber::set_default(heard.clone());
    let (script, retry) = store(5);
    script.usual(ok().unavailable());
    for _ in 0..4 {
        retry.read("k").await.unwrap_err();
    }
    assert_eq!(script.requests().len(), 40);
    // Of 36 retries the first five, the 8th, 16th and 32nd.
    assert_eq!(
        [0, 1].map(|at| heard.0[at].load(Ordering::Relaxed)),
        [8, 28]
    );
}

#[tokio::test(start_paused = true)]
async fn row_52_the_deadline_ends_it_and_the_first_cause_is_kept() {
    let script = Scripted::from_iter([("k", "v")]);
    let deadline = Duration::from_secs(20);
    let retry = script.clone().retry(Backoff {
        deadline,
        tries: u32::MAX,
        ..Backoff::default()
    });
    script.usual(ok().unavailable());
    script.script(
        "k",
        [ok().refuse(|| Error::new(ErrorKind::Io, "no route to host").transient())],
    );
    let begun = Instant::now();
    let text = retry.head("k").await.unwrap_err().to_string();
    assert!(begun.elapsed() >= deadline && begun.elapsed() < deadline + Duration::from_millis(50));
    assert!(
        text.contains("in 20.0 s; at first: I/O error: scripted:///k: no route to host; at last"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn row_54_what_is_final_is_not_tried_again() {
    let (script, retry) = store(5);
    script.script("k", [ok().refuse(|| Error::denied("403"))]);
    assert_eq!(
        retry.read("k").await.unwrap_err().to_string(),
        "permission denied: scripted:///k: 403"
    );
    assert_eq!(script.requests().len(), 1);
    script.script(
        "k",
        [ok().unavailable(), ok().refuse(|| Error::denied("403"))],
    );
    let error = retry.read("k").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && !error.is_transient());
    assert!(error.to_string().contains("after 2 tries"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn row_53_a_pause_that_the_service_asks_for_is_kept_up_to_the_deadline() {
    for (asked, waited) in [(0, 0), (2, 2), (60, 60), (1_000_000_000, 180)] {
        let (script, retry) = store(5);
        let busy = move || Error::unavailable("429").with_retry_after(Duration::from_secs(asked));
        script.script("k", [ok().refuse(busy)]);
        assert_eq!(
            retry.read("k").await.unwrap(),
            content(5),
            "one last time at the deadline"
        );
        let pause = script.pauses()[0].as_secs_f64();
        assert!((pause - waited as f64).abs() < 0.21, "{asked}: {pause}");
    }
    let (script, retry) = store(5);
    script.usual(ok().refuse(|| Error::unavailable("429").with_retry_after(Duration::MAX)));
    assert!(retry.read("k").await.is_err());
    assert_eq!(script.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn row_57_a_cut_at_every_byte_gives_every_byte_once() {
    for cut in 0..=20 {
        for reaction in [
            ok().cut(cut),
            ok().short(cut),
            ok().pieces(3, Duration::ZERO).cut(cut),
        ] {
            let (script, retry) = store(20);
            script.script("k", [reaction.clone()]);
            assert_eq!(
                whole(&retry, Get::default()).await,
                content(20),
                "cut at {cut}"
            );
            let second = script.requests().get(1).map(|request| request.get.clone());
            let version = Some("1".to_owned());
            assert_eq!(
                second,
                match cut {
                    0 => Some(Get {
                        range: None,
                        version
                    }),
                    20 => None,
                    _ => Some(Get {
                        range: Some(cut..20),
                        version
                    }),
                }
            );

            script.script("k", [reaction]);
            let part = whole(&retry, Get::range(5..15)).await;
            assert_eq!(part, content(20)[5..15], "cut at {cut}");
            assert_eq!(script.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn row_57_a_body_cut_again_and_again_ends_after_the_tries() {
    let (script, retry) = store(20);
    script.usual(ok().cut(1));
    let (got, error) = stream(&retry, Get::default()).await;
    assert_eq!(got, content(20)[..10]);
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert!(error.to_string().contains("after 10 tries"), "{error}");

    // A large object may break more often, as long as it makes progress.
    let (script, retry) = store(12 << 20);
    script.usual(ok().cut(1 << 20));
    assert_eq!(retry.read("k").await.unwrap(), content(12 << 20));
    assert!(script.requests().len() >= 12);
}

#[tokio::test(start_paused = true)]
async fn row_57_a_slow_consumer_uses_up_no_deadline() {
    let (script, retry) = store(20);
    script.script("k", [ok().pieces(5, Duration::ZERO).cut(10)]);
    let mut body = retry.get("k", Get::default()).await.unwrap().body;
    let mut got = Vec::new();
    while let Some(piece) = body.try_next().await.unwrap() {
        sleep(Duration::from_secs(3600)).await;
        got.extend_from_slice(&piece);
    }
    assert_eq!(got, content(20));
}

#[tokio::test(start_paused = true)]
async fn row_57_without_versions_only_a_whole_read_begins_again() {
    let (script, retry) = store(20);
    script.without_versions();
    script.script("k", [ok().cut(7)]);
    let (got, error) = stream(&retry, Get::default()).await;
    assert_eq!(got, content(20)[..7]);
    assert!(error.unwrap().is_transient());
    script.script("k", [ok().cut(0)]);
    assert_eq!(whole(&retry, Get::default()).await, content(20));
    script.script("k", [ok().cut(7), ok().short(9)]);
    assert_eq!(retry.read("k").await.unwrap(), content(20));
}

#[tokio::test(start_paused = true)]
async fn row_58_a_body_that_is_too_long_is_an_error() {
    let (script, retry) = store(20);
    script.usual(ok().extra().pieces(5, Duration::ZERO));
    let (got, error) = stream(&retry, Get::default()).await;
    assert_eq!(got, content(20));
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
    assert_eq!(
        retry.read("k").await.unwrap_err().kind(),
        ErrorKind::Protocol
    );
}

#[tokio::test(start_paused = true)]
async fn row_59_two_versions_are_never_mixed() {
    let (script, retry) = store(20);
    script.script("k", [ok().pieces(5, Duration::ZERO).cut(10)]);
    let mut body = retry.get("k", Get::default()).await.unwrap().body;
    let mut got = body.try_next().await.unwrap().unwrap().to_vec();
    script.put("k", vec![0; 20]);
    let error = loop {
        match body.next().await.unwrap() {
            Ok(piece) => got.extend_from_slice(&piece),
            Err(error) => break error,
        }
    };
    assert_eq!(
        (got, error.kind()),
        (content(20)[..10].to_vec(), ErrorKind::Changed)
    );

    // A whole read may begin again, with the new version.
    script.put("k", content(20));
    script.script("k", [ok().after(Duration::from_millis(10)).cut(10)]);
    let change = async {
        sleep(Duration::from_millis(20)).await;
        script.put("k", vec![9; 20]);
    };
    let (read, ()) = futures::join!(retry.read("k"), change);
    assert_eq!(read.unwrap(), vec![9; 20]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_down_is_not_hammered() {
    let script = Scripted::new();
    script.usual(ok().unavailable());
    let retry = Retry::with_budget(script.clone(), Backoff::default(), 20, 2.0);
    let reads = (0..200).map(async |n: u32| retry.read(&n.to_string()).await.is_err());
    let failed = futures::future::join_all(reads).await;
    assert!(failed.into_iter().all(|failed| failed));
    // The first tries, the burst, and two a second for three minutes.
    let requests = script.requests().len();
    assert!((400..=200 + 20 + 370).contains(&requests), "{requests}");
}

#[tokio::test(start_paused = true)]
async fn row_66_a_listing_goes_on_where_it_broke_off() {
    let keys: Vec<String> = (0..50).map(|n| format!("k{n:02}")).collect();
    let script = Scripted::from_iter(keys.iter().map(|key| (key.clone(), "")));
    let retry = script.clone().retry(Backoff::default());
    script.cut_listings([0, 7, 7, 30, 49, 50]);
    let listed: Vec<Meta> = retry.list("k").try_collect().await.unwrap();
    assert_eq!(
        listed.into_iter().map(|meta| meta.key).collect::<Vec<_>>(),
        keys
    );
    assert_eq!(script.requests().len(), 7);

    script.cut_listings(vec![3; 10]);
    let listed: Vec<_> = retry.list("k").collect().await;
    assert_eq!(listed.len(), 4, "three keys and an error");
    assert!(
        listed[3]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("after 10 tries")
    );
}

/// A store that lists in an order that is not ascending.
#[derive(Debug)]
struct Shelf(Scripted, Mutex<Vec<Vec<&'static str>>>);

#[async_trait]
impl Store for Shelf {
    fn url(&self) -> &str {
        self.0.url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        self.0.get(key, get).await
    }
    fn list(&self, _: &str) -> BoxStream<'static, Result<Meta>> {
        let mut runs = self.1.lock().unwrap();
        let keys = runs.remove(0);
        let cut = (!runs.is_empty()).then(|| Err(Error::new(ErrorKind::Io, "cut").transient()));
        let found = keys.into_iter().map(|key| match key {
            "?" => Err(Error::unsupported("a name that is no key")),
            key => Ok(Meta::new(key)),
        });
        stream::iter(found.chain(cut)).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn row_66_an_order_of_its_own_is_kept_and_a_new_one_noticed() {
    let list = async |runs: &[&[&'static str]]| {
        let runs = runs.iter().map(|run| run.to_vec()).collect();
        let retry = Shelf(Scripted::new(), Mutex::new(runs)).retry(Backoff::default());
        let listed: Vec<_> = retry
            .list("")
            .map(|meta| meta.map_err(|e| e.kind()).map(|m| m.key))
            .collect()
            .await;
        listed
    };
    let keys = |keys: &[&str]| {
        keys.iter()
            .map(|key| Ok((*key).to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        list(&[&["c", "a"], &["c", "a", "b", "d"]]).await,
        keys(&["c", "a", "b", "d"])
    );
    let changed = [keys(&["c", "a"]), vec![Err(ErrorKind::Changed)]].concat();
    assert_eq!(list(&[&["c", "a"], &["a", "c", "b"]]).await, changed);
    assert_eq!(list(&[&["c", "a"], &["c"]]).await, changed);
}

#[tokio::test(start_paused = true)]
async fn row_66_errors_in_the_places_of_names_come_once_and_so_do_the_names_after_them() {
    for (runs, expected) in [
        (
            &[&["a", "?", "b"][..], &["a", "?", "b", "?", "c"]][..],
            "a?b?c",
        ),
        (&[&["a", "b"], &["a", "?", "b", "c"]], "ab?c"),
        (
            &[&["c", "?", "a"], &["c", "?"], &["c", "?", "a", "b"]],
            "c?ab",
        ),
    ] {
        let runs = runs.iter().map(|run| run.to_vec()).collect();
        let retry = Shelf(Scripted::new(), Mutex::new(runs)).retry(Backoff::default());
        let name = |meta: Result<Meta>| meta.map_or_else(|_| "?".to_owned(), |meta| meta.key);
        let listed: Vec<String> = retry.list("").map(name).collect().await;
        assert_eq!(listed.concat(), expected);
    }
}
