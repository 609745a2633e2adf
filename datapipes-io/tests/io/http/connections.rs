//! Connections: rows 51, 65, 70, 71.

use std::net::{TcpListener, TcpStream};

use super::*;

#[tokio::test]
async fn row_51_nobody_listens() {
    // The port is bound, so that no other process gets it, but nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let store = Http::new(&format!("http://{address}/")).unwrap();
    let error = store.read("k").await.unwrap_err();
    is(&error, ErrorKind::Unavailable, true);
    assert!(error.to_string().contains("/k: no connection"), "{error}");
}

#[tokio::test]
async fn row_51_a_host_that_does_not_exist() {
    let store = Http::new("http://no-such-host.invalid/").unwrap();
    let error = store.read("k").await.unwrap_err();
    is(&error, ErrorKind::Unavailable, true);
    assert!(
        error
            .to_string()
            .contains("http://no-such-host.invalid/k: no such host"),
        "{error}"
    );
}

#[tokio::test]
async fn row_51_a_connection_that_is_not_made_in_time() {
    // A listener with a full backlog answers no further SYN.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::os::fd::AsRawFd::as_raw_fd(&listener);
    // SAFETY: the descriptor is that of a listening socket.
    let listens = unsafe { libc::listen(socket, 0) };
    assert_eq!(listens, 0);
    let address = listener.local_addr().unwrap();
    let mut waiting: Vec<_> = Vec::new();
    while let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) {
        waiting.push(socket);
    }
    let http =
        Http::builder(&format!("http://{address}/")).connect_timeout(Duration::from_millis(30));
    let error = http.build().unwrap().read("k").await.unwrap_err();
    is(&error, ErrorKind::Unavailable, true);
    assert!(
        error.to_string().contains("no connection in time"),
        "{error}"
    );
}

#[tokio::test]
async fn row_57_a_reset_without_a_word_is_tried_once_more_at_once() {
    let server = BadHttp::start();
    let reset = || Act::Steps(vec![Step::Reset]);
    server
        .on("/once", [reset(), object("good")])
        .on("/always", [reset()]);
    let store = store_of(&server);
    assert_eq!(store.read("once").await.unwrap(), "good");
    is(
        &store.read("always").await.unwrap_err(),
        ErrorKind::Unavailable,
        true,
    );
    assert_eq!(server.requests_to("/always").len(), 2);
}

#[tokio::test]
async fn row_70_a_connection_is_kept_open_for_the_idle_timeout() {
    for (limit, connections) in [(Duration::from_secs(60), 1), (Duration::ZERO, 2)] {
        let server = BadHttp::start();
        server.on("/k", [object("good")]);
        let store = Http::builder(&server.url()).idle_timeout(limit);
        let store = store.build().unwrap();
        for _ in 0..2 {
            assert_eq!(store.read("k").await.unwrap(), "good");
        }
        assert_eq!(server.connections(), connections, "{limit:?}");
    }
}

/// The variables are read by another process, which runs this test again.
#[tokio::test]
async fn row_65_proxies_of_the_environment_are_used_only_if_asked_for() {
    const CHILD: &str = "DATAPIPES_TEST_PROXY_CHILD";
    if let Ok(url) = std::env::var(CHILD) {
        assert_eq!(Http::new(&url).unwrap().read("k").await.unwrap(), "direct");
        let store = Http::builder(&url)
            .proxy_from_environment()
            .build()
            .unwrap();
        assert_eq!(store.read("k").await.unwrap(), "by proxy");
        return;
    }
    let (server, proxy) = (BadHttp::start(), BadHttp::start());
    server.on("/k", [object("direct")]);
    proxy.on(&format!("{}k", server.url()), [object("by proxy")]);
    let name = "http::connections::row_65_proxies_of_the_environment_are_used_only_if_asked_for";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", name])
        .env(CHILD, server.url())
        .env_remove("NO_PROXY")
        .env_remove("no_proxy");
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(variable, proxy.url());
    }
    let output = child.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert_eq!((server.requests().len(), proxy.requests().len()), (1, 1));
}

#[tokio::test]
async fn row_65_a_proxy_that_is_named_is_used() {
    let proxy = BadHttp::start();
    proxy.on("http://far.example/data/k", [object("by proxy")]);
    let proxied = format!(
        "http://marker-user:marker-password@127.0.0.1:{}",
        proxy.port()
    );
    let store = Http::builder("http://far.example/data")
        .proxy(&proxied)
        .build()
        .unwrap();
    assert_eq!(store.read("k").await.unwrap(), "by proxy");
    assert!(proxy.requests()[0].header("proxy-authorization").is_some());
}

#[tokio::test]
async fn row_70_connections_that_the_server_closed_cost_no_try() {
    let server = BadHttp::start();
    server.on("/k", [object("data")]);
    let store = store_of(&server);
    for _ in 0..20 {
        assert_eq!(store.read("k").await.unwrap(), "data");
        server.drop_connections();
    }
    // The server closes after each answer, while the next request may be on its way.
    server.without_keep_alive();
    for _ in 0..100 {
        assert_eq!(store.read("k").await.unwrap(), "data");
    }
}

#[test]
fn row_70_a_store_outlives_the_runtime_that_its_connections_were_made_on() {
    let server = BadHttp::start();
    server.on("/k", [object("data")]);
    let store = store_of(&server);
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        for _ in 0..3 {
            assert_eq!(runtime.block_on(store.read("k")).unwrap(), "data");
        }
    }
    assert_eq!(server.requests().len(), 9);
}

#[tokio::test]
async fn row_71_one_request_that_stalls_holds_up_none_of_the_others() {
    let server = BadHttp::start();
    let data = vec![7; 50_000];
    server
        .on("/stalls", [Act::Steps(vec![Step::Hold])])
        .on("/k", [object(data.clone())]);
    let store = told(&server, |http| {
        http.first_byte_timeout(Duration::from_secs(60))
    });
    let mut stalls = Box::pin(store.read("stalls"));
    assert!(futures::poll!(&mut stalls).is_pending());
    for read in futures::future::join_all((0..63).map(|_| store.read("k"))).await {
        assert_eq!(read.unwrap(), data);
    }
    // The request still waits; dropping it ends it.
    assert!(futures::poll!(&mut stalls).is_pending());
    drop(stalls);
    assert!(server.connections() <= 64, "{}", server.connections());
}

#[tokio::test]
async fn a_body_that_is_dropped_ends_its_transfer() {
    let server = BadHttp::start();
    let endless = vec![
        Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx".to_vec()),
        Step::Hold,
    ];
    server
        .on("/k", [Act::Steps(endless)])
        .on("/good", [object("good")]);
    let store = store_of(&server);
    let mut object = store.get("k", Get::default()).await.unwrap();
    assert_eq!(object.body.next().await.unwrap().unwrap(), "x");
    drop(object);
    assert_eq!(store.read("good").await.unwrap(), "good");
    assert_eq!(server.connections(), 2);
}

/// A connection belongs to a runtime of one thread that is not being polled, as in a program that
/// lists files in one runtime and trains in another.
#[test]
fn row_65_a_connection_of_a_runtime_that_stands_still_is_not_waited_for() {
    let server = BadHttp::start();
    server.on(
        "/k",
        [
            object("one"),
            object("two"),
            object("three"),
            object("four"),
        ],
    );
    let store = told(&server, |http| {
        http.first_byte_timeout(Duration::from_secs(5))
    });
    let one_thread = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (one_thread(), one_thread());
    assert_eq!(first.block_on(store.read("k")).unwrap(), "one");
    let many = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    assert_eq!(many.block_on(store.read("k")).unwrap(), "two");
    assert_eq!(second.block_on(store.read("k")).unwrap(), "three");
    assert_eq!(server.connections(), 3);
    // Each runtime reuses its own connection; connections of a dropped runtime are gone.
    assert_eq!(first.block_on(store.read("k")).unwrap(), "four");
    assert_eq!(server.connections(), 3);
    drop((first, many));
    server.on("/k", [object("five")]);
    assert_eq!(one_thread().block_on(store.read("k")).unwrap(), "five");
}
