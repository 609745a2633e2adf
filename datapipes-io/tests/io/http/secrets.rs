//! Secrets never appear in messages: row 73.

use super::*;

/// A text that is part of every configured secret.
const MARKER: &str = "s3cr3t-marker";

fn shown(store: &Http, error: &Error) -> String {
    let mut text = format!(
        "{error}\n{error:?}\n{error:#?}\n{store:?}\n{store:#?}\n{}\n",
        store.url()
    );
    text += &store.url_of("k");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!("{error}\n{error:?}\n");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn row_73_no_secret_is_in_any_error_or_debug() {
    let server = BadHttp::start();
    let echo = |code| Act::Steps(vec![Step::Echo(code)]);
    let with_marker = |code: u16| status_with(code, &format!("Retry-After: {MARKER}\r\n"), MARKER);
    let acts: Vec<Act> = vec![
        echo(500),
        echo(400),
        echo(403),
        echo(404),
        echo(429),
        echo(416),
        echo(204),
        echo(206),
        redirect(&format!(
            "http://{MARKER}:{MARKER}@elsewhere.example/?{MARKER}"
        )),
        redirect(&format!("file:///{MARKER}")),
        redirect(&format!("/loop?{MARKER}#{MARKER}")),
        with_marker(503),
        Act::Steps(vec![Step::Reset]),
        raw_then_close("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"),
        raw_then_close("nonsense\r\n\r\n"),
        status_with(200, "Content-Encoding: gzip\r\n", "x"),
    ];
    let query = format!("sig={MARKER}&b=%2F{MARKER}");
    server.on(
        &format!("/data/loop?{MARKER}"),
        [redirect(&format!("/data/loop?{MARKER}"))],
    );
    let base = server
        .url()
        .replace("http://", &format!("http://{MARKER}-user:{MARKER}-p%40ss@"));
    let builders = [
        Http::builder(&format!("{base}data?{query}#{MARKER}")),
        Http::builder(&format!("{}data?{query}", server.url())).bearer(&format!("{MARKER}-token")),
        Http::builder(&format!("{}data?{query}", server.url()))
            .basic(&format!("{MARKER}-user"), MARKER),
        Http::builder(&format!("{}data?{query}", server.url())).header("X-Api-Key", MARKER),
    ];
    for builder in builders {
        assert!(!format!("{builder:?} {builder:#?}").contains(MARKER));
        let store = builder.build().unwrap();
        let mut asked = 0;
        for act in &acts {
            server.on(&format!("/data/k?{query}"), [act.clone()]);
            let error = store.read("k").await.unwrap_err();
            asked += 1;
            let text = shown(&store, &error);
            assert!(!text.contains(MARKER), "{text}");
            // The server's complaint about the header is shown, without the header's value.
            for coded in ["czNjcjN0", "-p%40ss", "-p@ss"] {
                assert!(!text.contains(coded), "{text}");
            }
            for error in [
                store.head("k").await.err(),
                store.list("").next().await.and_then(Result::err),
            ] {
                let text = error.map(|error| shown(&store, &error)).unwrap_or_default();
                assert!(!text.contains(MARKER), "{text}");
            }
        }
        assert!(asked == acts.len());
    }
    // The secrets were sent, or there were none to send.
    let requests = server.requests();
    assert!(
        requests
            .iter()
            .any(|request| request.header("x-api-key") == Some(MARKER))
    );
    assert!(requests.iter().any(|request| request.path.contains(MARKER)));
    let basic = requests
        .iter()
        .filter_map(|request| request.header("authorization"));
    assert!(
        basic
            .filter(|value| value.starts_with("Basic czNjcjN0"))
            .count()
            >= 2
    );
}

#[tokio::test]
async fn row_73_nor_when_nobody_answers() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for scheme in ["http", "https"] {
        let url = format!("{scheme}://{MARKER}:{MARKER}@127.0.0.1:{port}/?{MARKER}");
        let store = Http::builder(&url)
            .proxy(&format!("http://{MARKER}:{MARKER}@127.0.0.1:{port}"))
            .build()
            .unwrap();
        let error = store.read("k").await.unwrap_err();
        is(&error, ErrorKind::Unavailable, true);
        assert!(
            !shown(&store, &error).contains(MARKER),
            "{}",
            shown(&store, &error)
        );
    }
}

#[test]
fn row_73_the_query_tells_stores_apart_and_is_not_shown() {
    let of = |query: &str| Http::new(&format!("http://host/data{query}")).unwrap();
    assert_eq!(of("?set=a").url(), of("?set=b").url());
    assert_ne!(of("?set=a").identity(), of("?set=b").identity());
    assert_eq!(of("?set=a").identity(), of("?set=a").identity());
    assert_eq!(of("").identity(), "http://host/data/");
    assert!(!of("?signature=secret").identity().contains("secret"));
}
