//! Behavior of the store with a failing service, by the rows of the fault matrix.

use std::sync::Arc;
use std::time::Duration;

use datapipes::{Error, ErrorKind, Result};
use futures::StreamExt;

use super::service::{Reply, Service, Then};
use super::{alone, keys, page, s3};
use crate::stores::cloud::Cloud;
use crate::stores::{Get, Store};

async fn error_of(reply: Reply, get: Get) -> Error {
    let service = Service::new(move |_| reply.clone());
    let store = s3(&service).build().unwrap();
    let error = match store.get("k", get).await {
        Ok(object) => object.bytes().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().contains("s3://bucket/k"), "{error}");
    error
}

#[tokio::test]
async fn row_51_who_does_not_answer_may_answer_later() {
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let store = alone(Cloud::s3("bucket"))
        .endpoint(format!("http://{address}"))
        .anonymous()
        .build()
        .unwrap();
    let error = store.read("k").await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.is_transient(),
        "{error}"
    );
    assert!(error.to_string().contains("refused"), "{error}");
    let error = keys(&store, "").await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.is_transient(),
        "{error}"
    );
}

#[tokio::test]
async fn row_51_a_certificate_that_nobody_signed_is_final() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = Arc::new(
        config
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap(),
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut socket, _) = listener.accept().unwrap();
            let mut tls = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::Stream::new(&mut tls, &mut socket);
            let mut request = [0; 4096];
            if std::io::Read::read(&mut stream, &mut request).is_ok() {
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nETag: \"v\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\nx";
                std::io::Write::write_all(&mut stream, head).unwrap();
            }
        }
    });
    let builder = alone(Cloud::s3("bucket"))
        .endpoint(format!("https://localhost:{port}"))
        .anonymous();
    let error = builder
        .clone()
        .build()
        .unwrap()
        .read("k")
        .await
        .unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && !error.is_transient(),
        "{error:#?}"
    );
    assert!(error.to_string().contains("certificate"), "{error}");
    let trusting = builder.certificates(made.cert.pem()).build().unwrap();
    assert_eq!(trusting.read("k").await.unwrap(), "x");
    server.join().unwrap();
}

#[tokio::test]
async fn row_52_53_55_services_that_ask_for_patience() {
    for (status, code) in [
        (500, "InternalError"),
        (502, ""),
        (503, "SlowDown"),
        (429, ""),
        (400, "RequestTimeout"),
    ] {
        let body = format!("<Error><Code>{code}</Code></Error>");
        let error = error_of(
            Reply::with(status, &[("Retry-After", "7")], body),
            Get::default(),
        )
        .await;
        assert!(
            error.kind() == ErrorKind::Unavailable && error.is_transient(),
            "{error:#?}"
        );
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
        assert!(
            error.to_string().contains(&status.to_string()) && error.to_string().contains(code),
            "{error}"
        );
    }
}

#[tokio::test]
async fn row_54_answers_that_are_final() {
    for (status, code, kind) in [
        (403, "AccessDenied", ErrorKind::Denied),
        (403, "SignatureDoesNotMatch", ErrorKind::Denied),
        (401, "", ErrorKind::Denied),
        (404, "NoSuchKey", ErrorKind::NotFound),
        (404, "NoSuchBucket", ErrorKind::NotFound),
        (412, "", ErrorKind::Changed),
        (400, "AuthorizationHeaderMalformed", ErrorKind::Protocol),
    ] {
        let error = error_of(
            Reply::status(status, format!("<Error><Code>{code}</Code></Error>")),
            Get::default(),
        )
        .await;
        assert!(error.kind() == kind && !error.is_transient(), "{error:#?}");
        assert!(error.to_string().contains(code), "{error}");
    }
}

#[tokio::test]
async fn row_55_an_error_under_a_status_of_success_is_no_empty_listing() {
    for (code, kind, transient) in [
        ("SlowDown", ErrorKind::Unavailable, true),
        ("InternalError", ErrorKind::Unavailable, true),
        ("AccessDenied", ErrorKind::Denied, false),
        ("Whatever", ErrorKind::Protocol, false),
    ] {
        let service = Service::new(move |_| {
            Reply::ok(format!(
                "<?xml version='1.0'?>\n<Error><Code>{code}</Code></Error>"
            ))
        });
        let error = keys(&s3(&service).build().unwrap(), "").await.unwrap_err();
        assert!(
            error.kind() == kind && error.is_transient() == transient,
            "{error:#?}"
        );
        assert!(error.to_string().contains(code), "{error}");
    }
}

#[tokio::test]
async fn row_57_an_answer_cut_at_any_byte_is_never_a_whole_one() {
    let whole = Service::new(|request| request.object(b"some bytes", "\"v\""));
    let store = s3(&whole).build().unwrap();
    store.read("k").await.unwrap();
    let request = whole.requests()[0].clone();
    let reply = request.object(b"some bytes", "\"v\"");
    let head = reply.bytes.len() - b"some bytes".len();
    for at in 0..reply.bytes.len() {
        let cut = reply.clone().cut(at, Then::Close);
        let service = Service::new(move |_| cut.clone());
        let store = s3(&service).build().unwrap();
        match store.get("k", Get::default()).await {
            Err(error) => {
                assert!(
                    at <= head && error.kind() == ErrorKind::Unavailable && error.is_transient(),
                    "{at}: {error:#?}"
                );
            }
            Ok(object) => {
                assert!(at >= head);
                let pieces: Vec<Result<bytes::Bytes>> = object.body.collect().await;
                let (last, before) = pieces.split_last().unwrap();
                let before: Vec<u8> = before
                    .iter()
                    .flat_map(|piece| piece.as_ref().unwrap().to_vec())
                    .collect();
                assert_eq!(before, b"some bytes"[..at - head]);
                let error = last.as_ref().unwrap_err();
                assert!(
                    error.kind() == ErrorKind::Truncated && error.is_transient(),
                    "{error:#?}"
                );
                assert!(
                    error
                        .to_string()
                        .contains(&format!("{} of 10 bytes", at - head)),
                    "{error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn row_57_a_listing_cut_at_any_byte_is_never_a_whole_one() {
    let reply = page(&["a", "b"], None);
    for at in (0..reply.bytes.len()).step_by(7) {
        let cut = reply.clone().cut(at, Then::Close);
        let service = Service::new(move |_| cut.clone());
        let error = keys(&s3(&service).build().unwrap(), "").await.unwrap_err();
        assert!(error.is_transient(), "{at}: {error:#?}");
    }
}

#[tokio::test]
async fn row_58_lengths_that_are_wrong_or_missing() {
    let head = "HTTP/1.1 200 OK\r\nETag: \"v\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
    for rest in [
        "\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "Content-Length: x\r\n\r\nabc",
    ] {
        let reply = Reply {
            bytes: format!("{head}{rest}").into(),
            then: Then::Close,
        };
        let error = error_of(reply, Get::default()).await;
        assert!(
            error.kind() == ErrorKind::Protocol && !error.is_transient(),
            "{rest:?}: {error:#?}"
        );
    }
}

#[tokio::test]
async fn row_58_a_length_together_with_chunks_is_refused() {
    let listing = String::from_utf8(page(&["a", "b"], None).bytes.to_vec()).unwrap();
    let (_, listing) = listing.split_once("\r\n\r\n").unwrap();
    let date = "ETag: \"v\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
    let framing = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n";
    let reply = |body: &str| {
        let len = body.len();
        let text = format!("HTTP/1.1 200 OK\r\n{date}{framing}\r\n{len:x}\r\n{body}\r\n0\r\n\r\n");
        Reply {
            bytes: text.into(),
            then: Then::Keep,
        }
    };
    let error = error_of(reply("abc"), Get::default()).await;
    assert!(
        error.kind() == ErrorKind::Protocol && !error.is_transient(),
        "{error:#?}"
    );
    assert!(
        error
            .to_string()
            .contains("Content-Length together with Transfer-Encoding"),
        "{error}"
    );
    let page = reply(listing);
    let service = Service::new(move |_| page.clone());
    let error = keys(&s3(&service).build().unwrap(), "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[tokio::test]
async fn row_59_an_object_that_changed_is_not_mixed_with_what_it_was() {
    let service = Service::new(|request| request.object(b"new", "\"2\""));
    let store = s3(&service).build().unwrap();
    for get in [Get::default(), Get::range(1..2), Get::range(1..1)] {
        let error = store
            .get("k", get.of_version("\"1\"".to_owned()))
            .await
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::Changed && !error.is_transient(),
            "{error}"
        );
    }
    // Some services do not check the condition.
    let careless = Service::new(|request| {
        let mut request = request.clone();
        request.forget("if-match");
        request.object(b"new", "\"2\"")
    });
    let store = s3(&careless).build().unwrap();
    for get in [Get::default(), Get::range(1..2)] {
        let error = store
            .get("k", get.of_version("\"1\"".to_owned()))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }
    let weak = Service::new(|request| request.object(b"new", "W/\"2\""));
    assert_eq!(
        s3(&weak).build().unwrap().head("k").await.unwrap().version,
        None
    );
}

#[tokio::test]
async fn row_60_another_range_than_was_asked_for_is_never_taken() {
    let date = ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT");
    let tag = ("ETag", "\"v\"");
    for reply in [
        Reply::with(200, &[tag, date], "0123456789"),
        Reply::with(206, &[tag, date, ("Content-Range", "bytes 0-2/10")], "012"),
        Reply::with(206, &[tag, date, ("Content-Range", "bytes 2-3/10")], "23"),
        Reply::with(206, &[tag, date, ("Content-Range", "bytes 2-4/*")], "234"),
        Reply::with(206, &[tag, date], "234"),
    ] {
        let error = error_of(reply, Get::range(2..5)).await;
        assert!(
            error.kind() == ErrorKind::Protocol && !error.is_transient(),
            "{error:#?}"
        );
    }
}

#[tokio::test]
async fn row_60_a_part_or_nothing_is_never_taken_for_the_whole() {
    let date = ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT");
    let tag = ("ETag", "\"v\"");
    for reply in [
        Reply::with(206, &[tag, date, ("Content-Range", "bytes 0-2/10")], "012"),
        Reply::with(206, &[tag, date], "012"),
        Reply::with(204, &[tag, date, ("Content-Length", "0")], ""),
        Reply::with(203, &[tag, date], "012"),
    ] {
        let error = error_of(reply, Get::default()).await;
        assert!(
            error.kind() == ErrorKind::Protocol && !error.is_transient(),
            "{error:#?}"
        );
    }
}

#[tokio::test]
async fn row_62_what_stalls_is_given_up_and_may_be_tried_again() {
    let whole = Service::new(|request| request.object(b"some bytes", "\"v\""));
    s3(&whole).build().unwrap().read("k").await.unwrap();
    let reply = whole.requests()[0].object(b"some bytes", "\"v\"");
    for at in [0, 20, reply.bytes.len() - 4] {
        let cut = reply.clone().cut(at, Then::Hang);
        let service = Service::new(move |_| cut.clone());
        let store = s3(&service)
            .stall_timeout(Duration::from_millis(40))
            .build()
            .unwrap();
        let error = store.read("k").await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.is_transient(),
            "{at}: {error:#?}"
        );
    }
}

#[tokio::test]
async fn row_64_redirects_are_not_followed_and_credentials_stay() {
    let other = Service::new(|_| panic!("asked"));
    for status in [301, 302, 307, 308] {
        let location = format!("{}/bucket/k", other.url().replace("127.0.0.1", "localhost"));
        let headers = [
            ("Location", location.as_str()),
            ("x-amz-bucket-region", "eu-west-3"),
        ];
        let error = error_of(Reply::with(status, &headers, ""), Get::default()).await;
        assert!(
            error.kind() == ErrorKind::Protocol && !error.is_transient(),
            "{error:#?}"
        );
        assert!(error.to_string().contains("eu-west-3"), "{error}");
    }
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn row_69_what_is_stored_compressed_is_read_as_it_is_stored() {
    let reply = Reply::with(
        200,
        &[
            ("ETag", "\"v\""),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("Content-Encoding", "gzip"),
        ],
        b"\x1f\x8b not unpacked",
    );
    let service = Service::new(move |_| reply.clone());
    let read = s3(&service).build().unwrap().read("k").await.unwrap();
    assert_eq!(&read[..], b"\x1f\x8b not unpacked");
}

#[tokio::test]
async fn row_70_a_connection_that_was_closed_while_idle_costs_nothing() {
    let service = Service::new(|request| Reply {
        then: Then::Close,
        ..request.object(b"x", "\"v\"")
    });
    let store = s3(&service).build().unwrap();
    for _ in 0..20 {
        // Sometimes the end of the connection is noticed only when it is used again.
        store.read("k").await.unwrap();
    }
    assert_eq!(service.requests().len(), 20);
}

#[tokio::test]
async fn row_71_one_that_stalls_does_not_hold_up_the_others() {
    let service = Service::new(|request| {
        let reply = request.object(b"x", "\"v\"");
        if request.target.ends_with("/7") {
            reply.cut(10, Then::Hang)
        } else {
            reply
        }
    });
    let store = s3(&service).build().unwrap();
    let reads = futures::stream::iter(0..64).map(|n| {
        let store = store.clone();
        async move { store.read(&n.to_string()).await }
    });
    let done: Vec<_> = reads.buffer_unordered(64).take(63).collect().await;
    assert!(done.iter().all(Result::is_ok));
}

#[tokio::test]
async fn nobody_there_to_ask_for_credentials_says_so() {
    let tokens = Service::new(|_| Reply::status(404, "<Error><Code>NoRole</Code></Error>"));
    let service = Service::new(|_| panic!("asked"));
    let builder = alone(Cloud::s3("bucket"))
        .endpoint(service.url())
        .option("metadata_endpoint", tokens.url());
    let error = builder.build().unwrap().read("k").await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Denied && !error.is_transient(),
        "{error:#?}"
    );
    assert!(
        error
            .to_string()
            .contains("s3://bucket/k: no credentials: 404"),
        "{error}"
    );
}
