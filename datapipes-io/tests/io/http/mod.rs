//! The HTTP store against a server that behaves badly.

mod answers;
mod connections;
#[cfg(feature = "parquet")]
mod filters;
mod h2;
mod hub;
mod listing;
mod records;
mod redirects;
mod secrets;
mod tls;

use std::time::Duration;

use datapipes::{Error, ErrorKind};
use datapipes_io::stores::http::HttpBuilder;
use datapipes_io::stores::{Get, Http, Meta, Store};
use futures::{StreamExt, TryStreamExt};

use crate::support::bad_http::*;

/// Returns a store for a server, with short limits.
fn store_of(server: &BadHttp) -> Http {
    told(server, |http| http)
}

fn told(server: &BadHttp, more: impl FnOnce(HttpBuilder) -> HttpBuilder) -> Http {
    let http = Http::builder(&server.url()).connect_timeout(Duration::from_secs(5));
    more(http).build().expect("settings that make sense")
}

/// Returns the result of reading `/k` from a server with the given acts.
async fn read(acts: impl IntoIterator<Item = Act>) -> datapipes::Result<bytes::Bytes> {
    let server = BadHttp::start();
    server.on("/k", acts);
    store_of(&server).read("k").await
}

/// Returns the error of reading a path with one act, and checks that it names the object.
async fn error(act: Act) -> Error {
    let error = read([act]).await.expect_err("an error");
    assert!(
        error.to_string().contains("http://127.0.0.1:") && error.to_string().contains("/k: "),
        "{error}"
    );
    error
}

#[track_caller]
fn is(error: &Error, kind: ErrorKind, passing: bool) {
    assert!(
        error.kind() == kind && error.is_transient() == passing,
        "{:?} {error:#?}",
        error.kind()
    );
}

async fn metas(store: &Http, prefix: &str) -> Vec<Meta> {
    store
        .list(prefix)
        .try_collect()
        .await
        .expect("a listing without errors")
}

async fn keys(store: &Http, prefix: &str) -> Vec<String> {
    metas(store, prefix)
        .await
        .into_iter()
        .map(|meta| meta.key)
        .collect()
}

/// Compares ranges of an object with its data.
async fn check_ranges(store: &Http, key: &str, data: &[u8]) {
    let size = data.len() as u64;
    for (start, end) in [
        (0, size),
        (0, u64::MAX),
        (3, 7),
        (3, u64::MAX),
        (size - 1, size + 9),
        (0, size + 1),
        (4, 4),
    ] {
        let object = store
            .get(key, Get::range(start..end))
            .await
            .expect("a range");
        assert_eq!(
            (object.range.clone(), object.meta.size),
            (start..end.min(size), Some(size))
        );
        assert_eq!(
            object.bytes().await.expect("its bytes"),
            data[start as usize..end.min(size) as usize]
        );
    }
    for range in [size..size, size..size + 5, size..u64::MAX] {
        let object = store
            .get(key, Get::range(range))
            .await
            .expect("no bytes at the end");
        assert_eq!((object.range.clone(), object.len()), (size..size, Some(0)));
        assert_eq!(object.bytes().await.expect("no bytes"), "");
    }
    let far = store
        .get(key, Get::range(size + 1..size + 5))
        .await
        .expect_err("an error");
    is(&far, ErrorKind::Protocol, false);
    assert!(far.to_string().contains(&format!("{size} bytes")), "{far}");
    #[expect(clippy::reversed_empty_ranges, reason = "it must be refused")]
    let reversed = store
        .get(key, Get::range(5..4))
        .await
        .expect_err("an error");
    is(&reversed, ErrorKind::Protocol, false);
}

#[tokio::test]
async fn reads_whole_objects_and_ranges_over_one_connection() {
    let server = BadHttp::start();
    server
        .on("/a%20b/%C3%BC%23.bin", [object("0123456789")])
        .on("/empty", [object("")]);
    let store = store_of(&server);
    let key = "a b/ü#.bin";
    assert_eq!(store.read(key).await.unwrap(), "0123456789");
    check_ranges(&store, key, b"0123456789").await;
    let meta = store.head(key).await.unwrap();
    assert!(
        meta.key == key && meta.size == Some(10) && meta.version.is_some(),
        "{meta:?}"
    );
    assert_eq!(store.get(key, Get::default()).await.unwrap().meta, meta);
    assert_eq!(store.url_of(key), format!("{}{key}", server.url()));
    assert_eq!(store.read("empty").await.unwrap(), "");
    assert_eq!(store.head("empty").await.unwrap().size, Some(0));
    let whole = store.get("empty", Get::range(0..10)).await.unwrap();
    assert_eq!(whole.bytes().await.unwrap(), "");
    assert_eq!(server.connections(), 1);
    let asked = &server.requests()[0];
    assert_eq!(asked.header("accept-encoding"), Some("identity"));
    assert!(
        asked
            .header("user-agent")
            .unwrap()
            .starts_with("datapipes/")
    );
    assert!(asked.header("authorization").is_none() && asked.header("if-match").is_none());
}
