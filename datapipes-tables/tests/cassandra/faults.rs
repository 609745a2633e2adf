//! Errors and failures: reported with their kind, or retried; and nothing lost or doubled.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use datapipes::{DataLoader, Error, ErrorKind, Graph};
use datapipes_tables::cassandra::{Cassandra, CassandraOptions};
use datapipes_tables::{RetryTable, Table};
use futures::{StreamExt, TryStreamExt};
use uuid::Uuid;

use crate::support::{
    KEYSPACE, Mode, Proxy, address, admin, cql, fresh, key, named, number, row, server, soon,
    through, url_of,
};

/// Makes distinct keys, so that lost or doubled rows are noticed.
fn keys(count: u64) -> Vec<Uuid> {
    (0..count).map(key).collect()
}

/// Makes a loader of the numbers of all rows, with `in_flight` requests in flight.
fn epoch(table: impl Table + Clone, keys: Vec<Uuid>, in_flight: usize) -> DataLoader<u64> {
    let graph = Graph::from_vec(keys).map_async(move |key| {
        let table = table.clone();
        async move { table.get(key).await.map(|row| number(&row)) }
    });
    DataLoader::builder(graph.concurrency(in_flight))
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn row_73_a_wrong_password_is_refused_and_never_shown() {
    let Some(server) = server() else { return };
    fresh(&server, "denied", "").await;
    let mut shown = String::new();
    let mut denied = |error: Error, words: &str| {
        assert!(
            error.kind() == ErrorKind::Denied && !error.is_transient(),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
        shown += &format!("{error} {error:?} {error:#?}");
    };
    let good = url_of(&server, "denied", "");
    let options = CassandraOptions::from_url(&good).unwrap();
    for (user, password) in [
        (server.username(), "MARKER-password"),
        ("MARKER-user", "MARKER-password"),
        ("", ""),
    ] {
        let options = options.clone().credentials(user, password);
        denied(
            options.connect().await.unwrap_err(),
            "wrong user or password",
        );
    }
    let mut bare = server.clone();
    bare.set_username("").unwrap();
    bare.set_password(None).unwrap();
    denied(
        Cassandra::connect(&url_of(&bare, "denied", ""))
            .await
            .unwrap_err(),
        "asked for",
    );

    // A role that may log in but not read.
    let admin = admin(&server).await;
    cql(&admin, "CREATE ROLE IF NOT EXISTS marker_reader WITH PASSWORD = 'MARKER-password' AND LOGIN = true")
        .await;
    let table = options
        .credentials("marker_reader", "MARKER-password")
        .connect()
        .await;
    let refused = match table {
        Ok(table) => {
            shown_of(&table, "MARKER");
            table.get(key(1)).await.unwrap_err()
        }
        Err(error) => error,
    };
    denied(refused, "may not");
    assert!(
        !shown.contains("MARKER") && !shown.contains("marker_reader"),
        "{shown}"
    );
    assert!(!shown.contains(server.password().unwrap()), "{shown}");
}

fn shown_of(table: &Cassandra, secret: &str) {
    let shown = format!("{table:?} {table:#?} {}", table.url());
    assert!(!shown.contains(secret), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_72_what_is_missing_or_of_another_kind_is_named() {
    let Some(server) = server() else { return };
    let table = fresh(&server, "kinds", "").await;
    table.put(vec![row(1, 8)]).await.unwrap();
    let admin = admin(&server).await;
    let url = url_of(&server, "kinds", "");
    let no_keyspace = url.replace(KEYSPACE, "nowhere");
    for (url, kind, words) in [
        (
            url.replace("kinds", "nothing"),
            ErrorKind::NotFound,
            "table nothing_data",
        ),
        (no_keyspace, ErrorKind::NotFound, "keyspace nowhere"),
    ] {
        let error = Cassandra::connect(&url).await.unwrap_err();
        assert!(error.kind() == kind && !error.is_transient(), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }

    // A row without data, as another program may have written.
    cql(
        &admin,
        format!(
            "INSERT INTO {KEYSPACE}.kinds_data (key, class) VALUES ({}, 3)",
            key(2)
        ),
    )
    .await;
    let error = table.get(key(2)).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Corrupt && !error.is_transient(),
        "{error}"
    );
    assert!(error.to_string().contains(&key(2).to_string()), "{error}");
    let error = table
        .scan(&["nothing"])
        .try_collect::<Vec<_>>()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");

    // The schema changes under a handle in use. An added column does not matter: the statements are
    // prepared again.
    cql(
        &admin,
        format!("ALTER TABLE {KEYSPACE}.kinds_data ADD more text"),
    )
    .await;
    assert_eq!(number(&table.get(key(1)).await.unwrap()), 1);
    table.put(vec![row(3, 8)]).await.unwrap();
    // A changed type of a column is an error.
    cql(
        &admin,
        format!("ALTER TABLE {KEYSPACE}.kinds_data DROP class"),
    )
    .await;
    let error = table.get(key(1)).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Shape && !error.is_transient(),
        "{error}"
    );
    let error = Cassandra::connect(&url).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Shape && error.to_string().contains("class"),
        "{error}"
    );
    for (create, words) in [
        (
            "(key uuid PRIMARY KEY, class bigint, label blob, data text)",
            "data of kinds_data is text, not blob",
        ),
        (
            "(key text PRIMARY KEY, class bigint, label blob, data blob)",
            "primary key",
        ),
        (
            "(key uuid, n int, class bigint, label blob, data blob, PRIMARY KEY (key, n))",
            "primary key",
        ),
    ] {
        cql(&admin, format!("DROP TABLE {KEYSPACE}.kinds_data")).await;
        let error = table.get(key(1)).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::NotFound && !error.is_transient(),
            "{error}"
        );
        cql(
            &admin,
            format!("CREATE TABLE {KEYSPACE}.kinds_data {create}"),
        )
        .await;
        let error = Cassandra::connect(&url).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Shape && error.to_string().contains(words),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_with_a_server_whose_authority_is_known() {
    let (Some(server), Some(secure)) = (server(), named("DATAPIPES_TEST_CASSANDRA_TLS")) else {
        return;
    };
    fresh(&server, "secure", "")
        .await
        .put(vec![row(1, 1000)])
        .await
        .unwrap();
    let secure = url::Url::parse(&secure).unwrap();
    let url = url_of(&secure, "secure", secure.query().unwrap());
    let table = Cassandra::connect(&url).await.unwrap();
    assert_eq!(number(&table.get(key(1)).await.unwrap()), 1);
    // The server reports that the connection uses TLS.
    let session = admin(&server).await;
    let clients = session
        .query_unpaged("SELECT ssl_enabled FROM system_views.clients", ())
        .await
        .unwrap();
    let clients = clients.into_rows_result().unwrap();
    assert!(clients.rows::<(bool,)>().unwrap().any(|row| row.unwrap().0));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.pem");
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(&path, other.cert.pem()).unwrap();
    let with = |path: &std::path::Path| {
        CassandraOptions::from_url(&url)
            .unwrap()
            .tls(Some(path.to_owned()))
    };
    let error = with(&path).connect().await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Denied && !error.is_transient(),
        "{error}"
    );
    assert!(error.to_string().contains("certificate"), "{error}");
    std::fs::write(&path, "nothing").unwrap();
    let error = with(&path).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let error = with(&folder.path().join("missing.pem"))
        .connect()
        .await
        .unwrap_err();
    assert!(
        error.kind() == ErrorKind::Config && error.to_string().contains("missing.pem"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn row_51_where_nobody_answers_it_passes_and_takes_no_longer_than_told() {
    if server().is_none() {
        return;
    }
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    // The port is bound, so that no other process gets it, but nobody listens.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for address in [closed.local_addr().unwrap(), silent.local_addr().unwrap()] {
        let begun = Instant::now();
        let url = format!("cassandra://me:SECRET@{address}/k.t?connect_timeout=0.2&timeout=0.2");
        let error = Cassandra::connect(&url).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.is_transient(),
            "{error}"
        );
        assert!(!format!("{error:#?}").contains("SECRET"), "{error}");
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
    }
    let error = Cassandra::connect("cassandra://no-such-host.invalid/k.t")
        .await
        .unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && !error.is_transient(),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn row_72_a_node_that_goes_and_comes_costs_nothing_but_time() {
    let Some(server) = server() else { return };
    let count = 2000;
    let near = fresh(&server, "cut", "").await;
    near.put((0..count).map(|n| row(n, 2000)).collect())
        .await
        .unwrap();
    let proxy = Proxy::to(address(&server)).await;
    let url = url_of(&through(&server, &proxy), "cut", "connections=3&timeout=1");
    let table = Cassandra::connect(&url).await.unwrap();
    let loader = epoch(RetryTable::new(table.clone(), soon()), keys(count), 32);
    let mut rows = Vec::new();
    let mut epoch = loader.epoch(0);
    while let Some(row) = epoch.next().await {
        rows.push(row.unwrap());
        // The server goes away twice, and stalls once.
        let mode = match rows.len() {
            400 | 1200 => Mode::Refusing,
            800 => Mode::Stalled,
            _ => continue,
        };
        proxy.set(mode);
        let without = table.get(key(0)).await.unwrap_err();
        assert!(
            without.kind() == ErrorKind::Unavailable && without.is_transient(),
            "{without}"
        );
        proxy.set(Mode::Open);
    }
    assert!(rows.into_iter().eq(0..count));
}

#[tokio::test(flavor = "multi_thread")]
async fn row_72_what_an_overloaded_server_says_is_tried_again() {
    let Some(server) = server() else { return };
    let count = 1000;
    fresh(&server, "busy", "")
        .await
        .put((0..count).map(|n| row(n, 50)).collect())
        .await
        .unwrap();
    let proxy = Proxy::to(address(&server)).await;
    let url = url_of(&through(&server, &proxy), "busy", "connections=2&page=100");
    let table = Cassandra::connect(&url).await.unwrap();
    proxy.faults.one_of.store(7, Ordering::Relaxed);
    // Without retries, each error is reported in its place.
    let bare = table.get_many(&keys(count)).await;
    let failed = bare
        .iter()
        .filter_map(|row| row.as_ref().err())
        .collect::<Vec<_>>();
    assert!(failed.len() >= 100, "{}", failed.len());
    assert!(
        failed
            .iter()
            .all(|error| error.is_transient() && error.kind() == ErrorKind::Unavailable)
    );
    for (n, row) in bare.iter().enumerate() {
        assert!(row.as_ref().map_or(true, |row| number(row) == n as u64));
    }
    // With retries, no error is seen.
    let patient = RetryTable::new(table.clone(), soon());
    let rows = patient.get_many(&keys(count)).await;
    assert!(
        rows.into_iter()
            .map(|row| number(&row.unwrap()))
            .eq(0..count)
    );
    let loader = epoch(patient.clone(), keys(count), 64);
    let rows: Vec<_> = loader.epoch(0).try_collect().await.unwrap();
    assert!(rows.into_iter().eq(0..count));
    // A scan retries pages by itself.
    let mut scanned: Vec<_> = table
        .scan(&[])
        .map_ok(|row| row.key)
        .try_collect()
        .await
        .unwrap();
    scanned.sort_unstable();
    let mut expected = keys(count);
    expected.sort_unstable();
    assert!(scanned == expected);
    assert!(proxy.faults.made.load(Ordering::Relaxed) > 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_72_a_slow_server_meets_the_deadline_of_the_request() {
    let Some(server) = server() else { return };
    fresh(&server, "slow", "")
        .await
        .put(vec![row(1, 50)])
        .await
        .unwrap();
    let proxy = Proxy::to(address(&server)).await;
    let url = url_of(&through(&server, &proxy), "slow", "timeout=1&connections=1");
    let table = Cassandra::connect(&url).await.unwrap();
    proxy.set(Mode::Stalled);
    let begun = Instant::now();
    let error = table.get(key(1)).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.is_transient(),
        "{error}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    proxy.set(Mode::Open);
    assert_eq!(
        number(&RetryTable::new(table, soon()).get(key(1)).await.unwrap()),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_that_are_dropped_half_way_leave_the_handle_as_it_was() {
    let Some(server) = server() else { return };
    fresh(&server, "dropped", "")
        .await
        .put((0..500).map(|n| row(n, 1000)).collect())
        .await
        .unwrap();
    let proxy = Proxy::to(address(&server)).await;
    let url = url_of(
        &through(&server, &proxy),
        "dropped",
        "connections=2&requests=64",
    );
    let table = Cassandra::connect(&url).await.unwrap();
    for round in 0..30 {
        let loader = epoch(table.clone(), keys(500), 256);
        let mut rows = loader.epoch(0);
        assert_eq!(rows.next().await.unwrap().unwrap(), 0);
        // Answers on their way find no receiver.
        if round % 10 == 0 {
            proxy.set(Mode::Stalled);
        }
        drop(rows);
        proxy.set(Mode::Open);
    }
    // The same connections are in use, and all of their requests are free.
    let rows = table.get_many(&keys(500)).await;
    assert!(rows.into_iter().map(|row| number(&row.unwrap())).eq(0..500));
}
