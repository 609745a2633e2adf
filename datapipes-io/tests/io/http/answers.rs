//! Checks of answers: rows 52 to 54, 57 to 60, 62, 63, 69.

use std::time::Instant;

use super::*;

#[tokio::test]
async fn row_52_a_server_that_fails_is_unavailable_and_its_words_are_shown() {
    for code in [500, 502, 503, 504, 507, 520, 408, 429] {
        let error = error(status(code, "all\r\n  is\x1b[31m lost")).await;
        is(&error, ErrorKind::Unavailable, true);
        assert_eq!(error.retry_after(), None);
        assert!(
            error
                .to_string()
                .contains(&format!("status {code}: all is\\u{{1b}}[31m lost")),
            "{error}"
        );
    }
    for code in [501, 505] {
        is(
            &error(status(code, "")).await,
            ErrorKind::Unsupported,
            false,
        );
    }
    let long = error(status(500, &"x".repeat(100_000))).await;
    assert!(long.to_string().len() < 1200, "{}", long.to_string().len());
    // Three errors, then a good answer: each attempt is one request, over the same connection.
    let server = BadHttp::start();
    server.on(
        "/k",
        [
            status(500, "a"),
            status(503, "b"),
            status(502, "c"),
            object("good"),
        ],
    );
    let store = store_of(&server);
    for _ in 0..3 {
        is(
            &store.read("k").await.unwrap_err(),
            ErrorKind::Unavailable,
            true,
        );
    }
    assert_eq!(store.read("k").await.unwrap(), "good");
    assert_eq!((server.requests().len(), server.connections()), (4, 1));
}

#[tokio::test]
async fn row_52_the_words_of_a_failure_are_not_waited_for_long() {
    let act = Act::Steps(vec![
        Step::Send(b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\nabc".to_vec()),
        Step::Hold,
    ]);
    let server = BadHttp::start();
    server.on("/k", [act]);
    // The body of an error is awaited for 2 s at most, whatever the other limits are.
    let store = told(&server, |http| {
        http.first_byte_timeout(Duration::from_secs(60))
    });
    let begun = Instant::now();
    let error = store.read("k").await.unwrap_err();
    is(&error, ErrorKind::Unavailable, true);
    assert!(error.to_string().ends_with("status 500: abc"), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn row_53_the_pause_that_is_asked_for_is_passed_on() {
    for (code, asked, pause) in [
        (429, "2", Some(Duration::from_secs(2))),
        (503, "0", Some(Duration::ZERO)),
        (503, "Sun, 06 Nov 1994 08:49:37 GMT", Some(Duration::ZERO)),
        (503, "1000000000", Some(Duration::from_secs(86_400))),
        (503, "-1", None),
        (429, "later", None),
    ] {
        let error = error(status_with(code, &format!("Retry-After: {asked}\r\n"), "")).await;
        is(&error, ErrorKind::Unavailable, true);
        assert_eq!(error.retry_after(), pause, "{asked}");
    }
    // No pause is reported for an error that is not transient.
    assert_eq!(
        error(status_with(404, "Retry-After: 1\r\n", ""))
            .await
            .retry_after(),
        None
    );
}

#[tokio::test]
async fn row_54_refusals_are_final_and_have_kinds_of_their_own() {
    for (code, kind) in [
        (400, ErrorKind::Protocol),
        (401, ErrorKind::Denied),
        (403, ErrorKind::Denied),
        (404, ErrorKind::NotFound),
        (410, ErrorKind::NotFound),
        (412, ErrorKind::Changed),
        (416, ErrorKind::Protocol),
        (418, ErrorKind::Protocol),
        (304, ErrorKind::Protocol),
    ] {
        is(&error(status(code, "because")).await, kind, false);
    }
    for code in [201, 202, 203, 207, 299] {
        is(
            &error(status(code, "data")).await,
            ErrorKind::Protocol,
            false,
        );
    }
    is(
        &error(raw("HTTP/1.1 204 No\r\n\r\n")).await,
        ErrorKind::Protocol,
        false,
    );
}

#[tokio::test]
async fn row_57_cut_at_every_byte_there_is_an_error_that_passes_or_the_whole() {
    let data = b"0123456789abcdef";
    let length = "HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n".len() + data.len();
    let server = BadHttp::start();
    let store = store_of(&server);
    for reset in [false, true] {
        for after in 0..=length {
            server.on("/k", [cut(data, after, reset)]);
            match store.read("k").await {
                Ok(read) => assert!(after == length && read == data[..], "{after}: {read:?}"),
                Err(error) => {
                    let body = after >= length - data.len();
                    let kind = if body {
                        ErrorKind::Truncated
                    } else {
                        ErrorKind::Unavailable
                    };
                    is(&error, kind, true);
                    // After a reset, the client may have received less than was sent.
                    let said = error
                        .to_string()
                        .contains(&format!("{} of 16", (after + 16).saturating_sub(length)));
                    assert!(!body || reset || said, "{after}: {error}");
                    assert!(after < length, "{error}");
                }
            }
        }
    }
}

#[tokio::test]
async fn row_57_chunks_cut_at_every_byte_are_never_taken_for_the_whole() {
    let answer = chunked(b"0123456789abcdef", 5);
    let head = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap()
        + 4;
    let server = BadHttp::start();
    let store = store_of(&server);
    for after in 0..=answer.len() {
        server.on("/k", [raw_then_close(&answer[..after])]);
        match store.read("k").await {
            // All chunks are there; only the end of the (empty) trailer may be missing.
            Ok(read) => assert!(
                after == answer.len() && read == "0123456789abcdef",
                "{after}: {read:?}"
            ),
            Err(error) => {
                is(
                    &error,
                    if after < head {
                        ErrorKind::Unavailable
                    } else {
                        ErrorKind::Truncated
                    },
                    true,
                );
            }
        }
    }
}

#[tokio::test]
async fn row_57_what_arrived_before_the_cut_is_delivered_before_the_error() {
    let server = BadHttp::start();
    server.on("/k", [cut_body(b"0123456789", 4)]);
    let object = store_of(&server).get("k", Get::default()).await.unwrap();
    assert_eq!(object.len(), Some(10));
    let pieces: Vec<_> = object.body.collect().await;
    let (end, data) = pieces.split_last().unwrap();
    let data: Vec<u8> = data
        .iter()
        .flat_map(|piece| piece.as_ref().unwrap().to_vec())
        .collect();
    assert_eq!(data, b"0123");
    is(end.as_ref().unwrap_err(), ErrorKind::Truncated, true);
}

#[tokio::test]
async fn row_58_a_length_together_with_chunks_is_refused() {
    let chunks = "4\r\ndata\r\n0\r\n\r\n";
    for status in ["200 OK", "206 P", "404 N", "500 X", "302 F"] {
        for framing in [
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 19\r\n",
            "transfer-encoding: Chunked\r\ncontent-length: 0\r\n",
            "Transfer-Encoding: gzip, chunked\r\nContent-Length: 4\r\n",
            "Transfer-Encoding: identity\r\nContent-Length: 4\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: nonsense\r\n",
        ] {
            let error = error(raw(format!(
                "HTTP/1.1 {status}\r\nLocation: /k\r\n{framing}\r\n{chunks}"
            )))
            .await;
            is(&error, ErrorKind::Protocol, false);
            assert!(
                error
                    .to_string()
                    .contains("Content-Length together with Transfer-Encoding"),
                "{error}"
            );
        }
    }
    // Bytes left over on that connection must not become the answer to another request.
    let server = BadHttp::start();
    let twice = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
    );
    server.on("/k", [raw(twice), object("good")]);
    let store = store_of(&server);
    is(
        &store.read("k").await.unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
    assert_eq!(store.read("k").await.unwrap(), "good");
    assert_eq!(server.connections(), 2);
    // A request for the head alone is refused, too.
    server.on(
        "/k",
        [raw(
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        )],
    );
    is(
        &store.head("k").await.unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
}

#[tokio::test]
async fn row_58_what_follows_the_announced_length_is_in_no_object() {
    let server = BadHttp::start();
    server.on(
        "/k",
        [raw(
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngoodHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        )],
    );
    server.on("/next", [object("next")]);
    let store = store_of(&server);
    assert_eq!(store.read("k").await.unwrap(), "good");
    for _ in 0..3 {
        assert_eq!(store.read("next").await.unwrap(), "next");
    }
}

#[tokio::test]
async fn row_58_without_a_length_nobody_can_tell_a_cut() {
    for line in ["HTTP/1.1 200 OK", "HTTP/1.0 200 OK"] {
        let act = raw_then_close(format!("{line}\r\nConnection: close\r\n\r\nhalf of it"));
        is(&error(act.clone()).await, ErrorKind::Protocol, false);
        let server = BadHttp::start();
        server.on("/k", [act]);
        let store = told(&server, |http| http.allow_unknown_length());
        let object = store.get("k", Get::default()).await.unwrap();
        assert_eq!((object.len(), object.meta.size), (None, None));
        assert_eq!(object.bytes().await.unwrap(), "half of it");
    }
    // The end of a chunked body is marked.
    assert_eq!(
        read([raw(chunked(b"all of it", 4))]).await.unwrap(),
        "all of it"
    );
}

#[tokio::test]
async fn row_58_lengths_and_chunks_that_make_no_sense_are_refused() {
    let heads = [
        "Content-Length: 4\r\nContent-Length: 5\r\n\r\ndata!",
        "Content-Length: 4, 5\r\n\r\ndata!",
        "Content-Length: -4\r\n\r\ndata",
        "Content-Length: four\r\n\r\ndata",
        "Content-Length: 99999999999999999999999\r\n\r\ndata",
        "Transfer-Encoding: gzip, chunked\r\n\r\n4\r\ndata\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip\r\n\r\ndata",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\ndata\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n4\r\ndataXX0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\ndata\r\n0\r\n\r\n",
    ];
    for head in heads {
        let error = error(raw_then_close(format!("HTTP/1.1 200 OK\r\n{head}"))).await;
        assert_eq!(error.kind(), ErrorKind::Protocol, "{head}: {error}");
        assert!(!error.is_transient(), "{head}: {error}");
    }
    is(
        &error(raw_then_close("SSH-2.0-OpenSSH_9.2\r\n\r\n")).await,
        ErrorKind::Protocol,
        false,
    );
    is(
        &error(raw_then_close("HTTP/1.1 200 OK\r\nbad header\r\n\r\n")).await,
        ErrorKind::Protocol,
        false,
    );
}

#[tokio::test]
async fn row_59_another_version_is_said_to_be_one() {
    let server = BadHttp::start();
    server.on("/k", [object("one"), object("two"), object("one")]);
    let store = store_of(&server);
    let version = store.get("k", Get::default()).await.unwrap().meta.version;
    let get = Get::range(0..2).of_version(version.clone());
    is(
        &store.get("k", get.clone()).await.unwrap_err(),
        ErrorKind::Changed,
        false,
    );
    assert_eq!(
        store
            .get("k", get.clone())
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        "on"
    );
    let asked = server.requests();
    assert_eq!(asked[2].header("if-match"), version.as_deref());
    // The version is also checked if the server ignores If-Match, or sends no version at all.
    server.on("/k", [object_but("two", |thing| thing.if_match = false)]);
    let error = store.get("k", get.clone()).await.unwrap_err();
    is(&error, ErrorKind::Changed, false);
    assert!(error.to_string().contains(&*version.unwrap()), "{error}");
    server.on(
        "/k",
        [object_but("one", |thing| {
            (thing.if_match, thing.etag) = (false, None)
        })],
    );
    is(
        &store.get("k", get).await.unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
    for nonsense in ["W/\"weak\"", "line\nend", ""] {
        let get = Get::default().of_version(nonsense.to_owned());
        is(
            &store.get("k", get).await.unwrap_err(),
            ErrorKind::Changed,
            false,
        );
    }
}

#[tokio::test]
async fn row_59_what_is_not_strong_is_no_version() {
    for etag in [None, Some("W/\"abc\"".to_owned()), Some("abc".to_owned())] {
        let server = BadHttp::start();
        server.on("/k", [object_but("data", |thing| thing.etag = etag)]);
        assert_eq!(store_of(&server).head("k").await.unwrap().version, None);
    }
}

#[tokio::test]
async fn row_60_a_range_is_the_range_asked_for_or_an_error() {
    let answers = [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
        "HTTP/1.1 206 P\r\nContent-Range: bytes 0-3/10\r\nContent-Length: 4\r\n\r\n0123",
        "HTTP/1.1 206 P\r\nContent-Range: bytes 2-4/10\r\nContent-Length: 3\r\n\r\n234",
        "HTTP/1.1 206 P\r\nContent-Range: bytes 2-6/10\r\nContent-Length: 5\r\n\r\n23456",
        "HTTP/1.1 206 P\r\nContent-Range: bytes 2-5/10\r\nContent-Length: 5\r\n\r\n23456",
        "HTTP/1.1 206 P\r\nContent-Range: bytes 2-5/10\r\nContent-Length: 3\r\n\r\n234",
        "HTTP/1.1 206 P\r\nContent-Range: bytes 2-4/*\r\nContent-Length: 3\r\n\r\n234",
        "HTTP/1.1 206 P\r\nContent-Range: octets 2-5/10\r\nContent-Length: 4\r\n\r\n2345",
        "HTTP/1.1 206 P\r\nContent-Length: 4\r\n\r\n2345",
        "HTTP/1.1 206 P\r\nContent-Type: multipart/byteranges; boundary=x\r\nContent-Length: 4\r\n\r\n2345",
    ];
    let server = BadHttp::start();
    let store = store_of(&server);
    for answer in answers {
        server.on("/k", [raw(answer)]);
        is(
            &store.get("k", Get::range(2..6)).await.unwrap_err(),
            ErrorKind::Protocol,
            false,
        );
        store
            .read("k")
            .await
            .map(|read| assert_eq!(read, "0123456789"))
            .unwrap_or_else(|error| {
                // The answer has a range although none was requested.
                is(&error, ErrorKind::Protocol, false);
            });
    }
    for answer in [
        "HTTP/1.1 206 P\r\nContent-Range: bytes 2-5/*\r\nContent-Length: 4\r\n\r\n2345",
        "HTTP/1.1 206 P\r\nContent-Range: bytes 2-5/6\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n2345\r\n0\r\n\r\n",
    ] {
        server.on("/k", [raw(answer)]);
        let object = store.get("k", Get::range(2..6)).await.unwrap();
        assert_eq!((object.range.clone(), object.len()), (2..6, Some(4)));
        assert_eq!(object.bytes().await.unwrap(), "2345");
    }
    // A chunked answer has no length to compare with the range, but the sum of its chunks is
    // checked.
    for chunk in ["3\r\n234", "5\r\n23456"] {
        let head =
            "HTTP/1.1 206 P\r\nContent-Range: bytes 2-5/10\r\nTransfer-Encoding: chunked\r\n\r\n";
        server.on("/k", [raw(format!("{head}{chunk}\r\n0\r\n\r\n"))]);
        let object = store.get("k", Get::range(2..6)).await.unwrap();
        object.bytes().await.unwrap_err();
    }
    // A complete answer is accepted if the range covers the whole object.
    server.on(
        "/k",
        [object_but("0123456789", |thing| thing.ranges = false)],
    );
    for range in [0..10, 0..11, 0..u64::MAX] {
        let object = store.get("k", Get::range(range)).await.unwrap();
        assert_eq!(object.bytes().await.unwrap(), "0123456789");
    }
    is(
        &store.get("k", Get::range(0..9)).await.unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
}

#[tokio::test]
async fn row_62_a_body_that_stalls_is_given_up() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfirst".to_vec();
    let drip = Step::Trickle(vec![b'x'; 500], Duration::from_millis(5));
    for rest in [Step::Hold, drip] {
        let server = BadHttp::start();
        server.on("/k", [Act::Steps(vec![Step::Send(head.clone()), rest])]);
        let store = told(&server, |http| {
            http.minimum_rate(5000, Duration::from_millis(50))
        });
        let error = store.read("k").await.unwrap_err();
        is(&error, ErrorKind::Unavailable, true);
        assert!(error.to_string().contains("stalled after"), "{error}");
    }
}

#[tokio::test]
async fn row_62_an_answer_that_does_not_begin_is_given_up() {
    let begun = b"HTTP/1.1 200 OK\r\nContent-".to_vec();
    for steps in [vec![Step::Hold], vec![Step::Send(begun), Step::Hold]] {
        let server = BadHttp::start();
        server.on("/k", [Act::Steps(steps)]);
        let store = told(&server, |http| {
            http.first_byte_timeout(Duration::from_millis(40))
        });
        let error = store.read("k").await.unwrap_err();
        is(&error, ErrorKind::Unavailable, true);
        assert!(error.to_string().contains("no answer in 40ms"), "{error}");
        assert!(server.requests().len() <= 1);
    }
}

#[tokio::test]
async fn row_63_a_head_has_bounds() {
    let large = |size: usize| {
        format!(
            "HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 2\r\n\r\nok",
            "x".repeat(size)
        )
    };
    assert_eq!(read([raw(large(1000))]).await.unwrap(), "ok");
    for size in [70_000, 1 << 20] {
        is(
            &error(raw_then_close(large(size))).await,
            ErrorKind::Protocol,
            false,
        );
    }
    let many = "X: y\r\n".repeat(10_000);
    is(
        &error(raw_then_close(format!("HTTP/1.1 200 OK\r\n{many}\r\n"))).await,
        ErrorKind::Protocol,
        false,
    );
}

#[tokio::test]
async fn row_69_an_encoding_that_nobody_asked_for_is_refused() {
    for encoding in ["gzip", "br", "x-own"] {
        let error = error(status_with(
            200,
            &format!("Content-Encoding: {encoding}\r\n"),
            "data",
        ))
        .await;
        is(&error, ErrorKind::Protocol, false);
        assert!(error.to_string().contains(encoding), "{error}");
    }
    assert_eq!(
        read([status_with(200, "Content-Encoding: identity\r\n", "data")])
            .await
            .unwrap(),
        "data"
    );
}

#[tokio::test]
async fn head_falls_back_on_the_first_byte() {
    let server = BadHttp::start();
    server.on("/k", [object_but("0123456789", |thing| thing.head = false)]);
    server.on(
        "/plain",
        [object_but("0123", |thing| {
            (thing.head, thing.ranges) = (false, false)
        })],
    );
    server.on("/empty", [object_but("", |thing| thing.head = false)]);
    let store = store_of(&server);
    let meta = store.head("k").await.unwrap();
    assert!(meta.size == Some(10) && meta.version.is_some(), "{meta:?}");
    assert_eq!(store.head("plain").await.unwrap().size, Some(4));
    assert_eq!(store.head("empty").await.unwrap().size, Some(0));
    is(
        &store.head("none").await.unwrap_err(),
        ErrorKind::NotFound,
        false,
    );
    // An answer to HEAD may omit the length.
    server.on(
        "/k",
        [
            raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            raw("HTTP/1.1 200 OK\r\n\r\n"),
        ],
    );
    for _ in 0..2 {
        assert_eq!(store.head("k").await.unwrap().size, None);
    }
}

#[tokio::test]
async fn row_89_a_key_never_leads_out_of_the_store() {
    let server = BadHttp::start();
    let store = store_of(&server);
    for key in ["../k", "a/../../k", "/k", ".", ""] {
        is(
            &store.read(key).await.unwrap_err(),
            ErrorKind::Denied,
            false,
        );
        is(
            &store.head(key).await.unwrap_err(),
            ErrorKind::Denied,
            false,
        );
    }
    assert_eq!(server.connections(), 0);
}
