//! HTTP/2: the same results as over HTTP/1.1, over one connection.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::*;
use crate::support::h2::H2;
use crate::support::tls;

fn data() -> Bytes {
    (0..200_000u32).map(|n| (n * 7 + n / 256) as u8).collect()
}

async fn check(store: &Http, server: &H2) {
    // The first request makes the connection that all others share.
    assert_eq!(store.read("whole").await.unwrap(), data());
    for read in futures::future::join_all((0..100).map(|_| store.read("whole"))).await {
        assert_eq!(read.unwrap(), data());
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    let object = store.get("whole", Get::range(1000..70_000)).await.unwrap();
    assert_eq!(object.bytes().await.unwrap(), data().slice(1000..70_000));
    // The end of a body is marked, so that it needs no length.
    let object = store.get("open", Get::default()).await.unwrap();
    assert_eq!(object.len(), None);
    assert_eq!(object.bytes().await.unwrap(), data());
    is(
        &store.read("cut").await.unwrap_err(),
        ErrorKind::Truncated,
        true,
    );
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn http2_in_the_clear_is_spoken_if_told() {
    let server = H2::start(data(), None);
    let url = format!("http://{}/", server.address);
    check(
        &Http::builder(&url).http2_prior_knowledge().build().unwrap(),
        &server,
    )
    .await;
}

#[tokio::test]
async fn http2_under_tls_is_agreed_upon() {
    let (config, pem) = tls::config(&["127.0.0.1"], &["h2", "http/1.1"]);
    let server = H2::start(data(), Some(config));
    let http = Http::builder(&format!("https://{}/", server.address))
        .root_certificates(&pem)
        .http2();
    check(&http.build().unwrap(), &server).await;
}

#[tokio::test]
async fn a_server_that_does_not_know_http2_is_asked_in_http1() {
    let (server, pem) = tls::start(&["127.0.0.1"]);
    server.on("/k", [object("data")]);
    let store = told(&server, |http| http.root_certificates(&pem).http2());
    assert_eq!(store.read("k").await.unwrap(), "data");
}
