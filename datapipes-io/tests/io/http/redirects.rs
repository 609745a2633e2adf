//! Permitted targets of redirects: row 64.

use super::*;

const TOKEN: &str = "marker-token";

#[tokio::test]
async fn row_64_a_redirect_within_the_store_is_followed_with_credentials() {
    let server = BadHttp::start();
    server
        .on("/k", [redirect("/b")])
        .on("/b", [redirect("deep/c?x=1")])
        .on("/deep/c?x=1", [object("data")]);
    let store = told(&server, |http| http.bearer(TOKEN));
    assert_eq!(store.read("k").await.unwrap(), "data");
    let object = store.get("k", Get::range(1..3)).await.unwrap();
    assert_eq!(object.bytes().await.unwrap(), "at");
    for request in server.requests() {
        assert_eq!(request.header("authorization"), Some("Bearer marker-token"));
    }
    for code in [301, 303, 307, 308] {
        server.on("/k", [status_with(code, "Location: /deep/c?x=1\r\n", "")]);
        assert_eq!(store.read("k").await.unwrap(), "data");
        assert_eq!(store.head("k").await.unwrap().size, Some(4));
    }
}

#[tokio::test]
async fn row_64_redirects_end() {
    let server = BadHttp::start();
    for n in 0..9 {
        server.on(&format!("/{n}"), [redirect(&format!("/{}", n + 1))]);
    }
    server
        .on("/9", [object("data")])
        .on("/loop", [redirect("/loop")]);
    let store = store_of(&server);
    assert_eq!(store.read("4").await.unwrap(), "data");
    is(
        &store.read("3").await.unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
    is(
        &store.read("loop").await.unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
    assert_eq!(server.requests_to("/loop").len(), 6);
    for nowhere in ["", "http://", "http://[::1"] {
        server.on(
            "/k",
            [if nowhere.is_empty() {
                status(302, "")
            } else {
                redirect(nowhere)
            }],
        );
        is(
            &store.read("k").await.unwrap_err(),
            ErrorKind::Protocol,
            false,
        );
    }
}

#[tokio::test]
async fn row_64_another_host_is_refused_and_hears_nothing() {
    let (server, other) = (BadHttp::start(), BadHttp::start());
    other.on("/k", [object("data")]);
    let store = told(&server, |http| http.bearer(TOKEN));
    let places = [
        format!("{}k", other.url()),
        format!("//127.0.0.1:{}/k", other.port()),
        format!("http://localhost:{}/k", server.port()),
        format!("http://user:marker-password@127.0.0.1:{}/k", other.port()),
        format!("https://127.0.0.1:{}/k", server.port()),
        "http://169.254.169.254/latest/meta-data/?marker-query".into(),
        "http://[::ffff:10.0.0.1]/".into(),
        "file:///etc/passwd?marker".into(),
        "ftp://127.0.0.1/k".into(),
        "data:text/plain,marker".into(),
    ];
    for place in places {
        server.on("/k", [redirect(&place)]);
        let error = store.read("k").await.unwrap_err();
        is(&error, ErrorKind::Denied, false);
        assert!(
            !format!("{error} {error:#?}").contains("marker"),
            "{error:#?}"
        );
    }
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn row_64_a_host_that_is_named_is_followed_to_without_credentials() {
    let (server, other) = (BadHttp::start(), BadHttp::start());
    other.on("/k?signature=1", [object("data")]);
    server.on("/k", [redirect(&format!("{}k?signature=1", other.url()))]);
    let store = told(&server, |http| {
        http.bearer(TOKEN)
            .header("X-Key", "marker-key")
            .allow_redirects_to(&format!("127.0.0.1:{}", other.port()))
    });
    let object = store.get("k", Get::range(1..4)).await.unwrap();
    assert_eq!(object.bytes().await.unwrap(), "ata");
    assert_eq!(server.requests()[0].header("x-key"), Some("marker-key"));
    let heard = &other.requests()[0];
    assert_eq!(heard.header("range"), Some("bytes=1-3"));
    assert!(heard.header("authorization").is_none() && heard.header("x-key").is_none());
    assert!(
        heard
            .headers
            .iter()
            .all(|(_, value)| !value.contains("marker")),
        "{heard:?}"
    );
    // Secrets in the redirect's target are not shown, and a user in it is ignored.
    let place = format!(
        "http://marker-user:marker-pass@127.0.0.1:{}/k?sig=%2Fmarker-signed&c=2",
        other.port()
    );
    server.on("/k", [redirect(&place)]);
    other.on(
        "/k?sig=%2Fmarker-signed&c=2",
        [Act::Steps(vec![Step::Echo(403)])],
    );
    let error = store.read("k").await.unwrap_err();
    is(&error, ErrorKind::Denied, false);
    assert!(
        error.to_string().contains("[secret]") && !format!("{error:#?}").contains("marker"),
        "{error:#?}"
    );
    assert!(
        other
            .requests()
            .last()
            .unwrap()
            .header("authorization")
            .is_none()
    );
    // The port must be the permitted one.
    server.on(
        "/k",
        [redirect(&format!(
            "http://127.0.0.1:{}/k",
            server.port().wrapping_add(1).max(1)
        ))],
    );
    is(
        &store.read("k").await.unwrap_err(),
        ErrorKind::Denied,
        false,
    );
}

#[tokio::test]
async fn row_64_a_host_that_was_named_may_have_any_address() {
    let server = BadHttp::start();
    server.on("/private", [object("data")]);
    server.on(
        "/k",
        [redirect(&format!(
            "http://localhost:{}/private",
            server.port()
        ))],
    );
    let store = told(&server, |http| {
        http.allow_redirects_to(&format!("localhost:{}", server.port()))
    });
    assert_eq!(store.read("k").await.unwrap(), "data");
}

#[tokio::test]
async fn a_redirect_with_a_body_leaves_its_connection_to_the_next_request() {
    let long = status_with(302, "Location: /to\r\n", &"so ".repeat(10_000));
    let mut chunks = b"HTTP/1.1 302 X\r\nLocation: /to".to_vec();
    let body = chunked(b"Found. Redirecting", 7);
    chunks.extend_from_slice(&body["HTTP/1.1 200 OK".len()..]);
    for redirect in [long, raw(chunks)] {
        let server = BadHttp::start();
        server.on("/k", [redirect]).on("/to", [object("data")]);
        let store = store_of(&server);
        for _ in 0..3 {
            assert_eq!(store.read("k").await.unwrap(), "data");
        }
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn the_body_of_a_redirect_is_not_waited_for_long() {
    let server = BadHttp::start();
    for (from, to) in [("/k", "/1"), ("/1", "/2"), ("/2", "/to")] {
        let head = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 100\r\n\r\nso");
        let steps = vec![Step::Send(head.into()), Step::Hold];
        server.on(from, [Act::Steps(steps)]);
    }
    server.on("/to", [object("data")]);
    let begun = std::time::Instant::now();
    assert_eq!(store_of(&server).read("k").await.unwrap(), "data");
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
}
