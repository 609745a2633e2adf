//! The server under test, and a proxy before it that injects faults.

#![allow(dead_code, reason = "two test programs use it, each a part")]
#![allow(
    clippy::disallowed_methods,
    reason = "a proxy of the tests starts tasks"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use datapipes::Backoff;
use datapipes_tables::cassandra::{Cassandra, CassandraOptions, Replication};
use datapipes_tables::{ColumnType, Label, NewRow, Row, Schema, Value};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use url::Url;
use uuid::Uuid;

/// Keyspace of the tests' tables.
pub const KEYSPACE: &str = "datapipes_tests";

/// Returns the URL of a server for tests, if one was named.
pub fn server() -> Option<Url> {
    named("DATAPIPES_TEST_CASSANDRA").map(|url| Url::parse(&url).unwrap())
}

pub fn named(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok();
    if value.is_none() {
        println!("skipped: {variable} is not set (see .ci/servers/cassandra)");
    }
    value
}

/// Returns the server's URL with another table and options.
pub fn url_of(server: &Url, table: &str, options: &str) -> String {
    let mut url = server.clone();
    url.set_path(&format!("/{KEYSPACE}.{table}"));
    url.set_query(Some(options).filter(|options| !options.is_empty()));
    url.into()
}

/// Returns the server's URL through a proxy.
pub fn through(server: &Url, proxy: &Proxy) -> Url {
    let mut url = server.clone();
    url.set_port(Some(proxy.port())).unwrap();
    url
}

pub fn address(server: &Url) -> SocketAddr {
    format!(
        "{}:{}",
        server.host_str().unwrap(),
        server.port().unwrap_or(9042)
    )
    .parse()
    .unwrap()
}

pub fn schema() -> Schema {
    // Columns are not in the order of their names, and two have the same type.
    Schema::new([
        ("patient", ColumnType::Text),
        ("age", ColumnType::Int),
        ("Weight", ColumnType::Float),
        ("class", ColumnType::Text),
        ("ok", ColumnType::Bool),
    ])
}

/// Opens a bare session of a user with all permissions.
pub async fn admin(server: &Url) -> Session {
    let password = server.password().unwrap_or_default();
    let builder = SessionBuilder::new()
        .known_node_addr(address(server))
        .user(server.username(), password);
    builder.build().await.unwrap()
}

pub async fn cql(session: &Session, cql: impl Into<String>) {
    let mut statement = scylla::statement::unprepared::Statement::new(cql.into());
    statement.set_request_timeout(Some(Duration::from_secs(60)));
    session.query_unpaged(statement, ()).await.unwrap();
}

/// Makes a new, empty table.
pub async fn fresh(server: &Url, table: &str, options: &str) -> Cassandra {
    let session = admin(server).await;
    for suffix in ["data", "metadata"] {
        let keyspaces = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
        let name = format!("{table}_{suffix}");
        let there = session
            .query_unpaged(keyspaces, (KEYSPACE, &name))
            .await
            .unwrap();
        if there.into_rows_result().unwrap().rows_num() > 0 {
            cql(&session, format!("DROP TABLE {KEYSPACE}.{name}")).await;
        }
    }
    let options = CassandraOptions::from_url(&url_of(server, table, options)).unwrap();
    // Several tests may create the keyspace at the same time.
    let policy = Backoff {
        most: Duration::from_millis(500),
        ..Backoff::default()
    };
    let (schema, copies) = (schema(), Replication::Copies(1));
    policy
        .run(|| options.clone().create(&schema, &copies))
        .await
        .unwrap()
}

pub fn key(n: u64) -> Uuid {
    Uuid::from_u64_pair(
        0x6461_7461_0000_4000,
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63,
    )
}

/// Makes a row whose content encodes its number.
pub fn row(n: u64, bytes: usize) -> NewRow {
    let data: Vec<u8> = n
        .to_le_bytes()
        .into_iter()
        .cycle()
        .take(bytes.max(8))
        .collect();
    NewRow {
        row: Row {
            key: key(n),
            label: Label::Class(n as i64 % 10),
            data: data.into(),
        },
        values: vec![
            Value::Text(format!("patient {}", n % 7)),
            Value::Int(n as i64),
            Value::Float(n as f64 / 2.0),
            Value::Null,
            Value::Bool(n.is_multiple_of(2)),
        ],
    }
}

/// Returns the number of a row, and checks its content.
pub fn number(row: &Row) -> u64 {
    let n = u64::from_le_bytes(row.data[..8].try_into().unwrap());
    assert_eq!(
        (row.key, &row.label),
        (key(n), &Label::Class(n as i64 % 10))
    );
    assert!(
        row.data
            .iter()
            .zip(n.to_le_bytes().iter().cycle())
            .all(|(a, b)| a == b)
    );
    n
}

/// Returns a policy that retries often and with short pauses, until the deadline.
pub fn soon() -> Backoff {
    Backoff {
        first: Duration::from_millis(20),
        most: Duration::from_millis(200),
        tries: u32::MAX,
        deadline: Duration::from_secs(60),
    }
}

/// Behaviour of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Open,
    /// Connections stay open, but nothing passes.
    Stalled,
    /// Connections are closed, and new ones are refused.
    Refusing,
}

/// A proxy that passes bytes to the server and back.
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    pub faults: Arc<Faults>,
}

/// Faults: one of so many answers with rows is replaced by an error; none if 0.
#[derive(Debug, Default)]
pub struct Faults {
    pub one_of: AtomicU64,
    pub answers: AtomicU64,
    pub made: AtomicU64,
}

impl Proxy {
    pub async fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, modes) = watch::channel(Mode::Open);
        let faults = Arc::<Faults>::default();
        tokio::spawn(accept(listener, server, modes, faults.clone()));
        Proxy { port, mode, faults }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn accept(
    mut listener: TcpListener,
    server: SocketAddr,
    mut modes: watch::Receiver<Mode>,
    faults: Arc<Faults>,
) {
    let address = listener.local_addr().unwrap();
    loop {
        let refusing = {
            let mut modes = modes.clone();
            async move { modes.wait_for(|mode| *mode == Mode::Refusing).await.is_ok() }
        };
        tokio::select! {
            connection = listener.accept() => {
                if let Ok((client, _)) = connection {
                    tokio::spawn(carry(client, server, modes.clone(), faults.clone()));
                }
            }
            told = refusing => {
                drop(listener);
                if !told || modes.wait_for(|mode| *mode != Mode::Refusing).await.is_err() {
                    return;
                }
                listener = TcpListener::bind(address).await.unwrap();
            }
        }
    }
}

async fn carry(
    client: TcpStream,
    server: SocketAddr,
    mut modes: watch::Receiver<Mode>,
    faults: Arc<Faults>,
) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let open = modes.clone();
    let up = async {
        let mut open = open.clone();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = from_client.read(&mut buffer).await?;
            if length == 0 || open.wait_for(|mode| *mode != Mode::Stalled).await.is_err() {
                return std::io::Result::Ok(());
            }
            to_server.write_all(&buffer[..length]).await?;
        }
    };
    let down = async {
        let mut open = open.clone();
        loop {
            // A frame of protocol version 4: version, flags, stream (2), code, length (4), body.
            let mut header = [0; 9];
            from_server.read_exact(&mut header).await?;
            let mut body = vec![0; u32::from_be_bytes(header[5..].try_into().unwrap()) as usize];
            from_server.read_exact(&mut body).await?;
            if open.wait_for(|mode| *mode != Mode::Stalled).await.is_err() {
                return std::io::Result::Ok(());
            }
            faults.meddle(&mut header, &mut body);
            to_client.write_all(&header).await?;
            to_client.write_all(&body).await?;
        }
    };
    tokio::select! {
        _ = up => {}
        _ = down => {}
        _ = modes.wait_for(|mode| *mode == Mode::Refusing) => {}
    }
}

impl Faults {
    /// Replaces some answers with rows by errors.
    fn meddle(&self, header: &mut [u8; 9], body: &mut Vec<u8>) {
        const RESULT: u8 = 8;
        const ROWS: [u8; 4] = [0, 0, 0, 2];
        if header[4] != RESULT || !body.starts_with(&ROWS) {
            return;
        }
        let answer = self.answers.fetch_add(1, Ordering::Relaxed);
        let one_of = self.one_of.load(Ordering::Relaxed);
        if one_of == 0 || !answer.is_multiple_of(one_of) {
            return;
        }
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        // Server error, overloaded, bootstrapping, unavailable, read timeout.
        let codes = [0x0000u32, 0x1001, 0x1002, 0x1000, 0x1200];
        let code = codes[made as usize % codes.len()];
        body.clear();
        body.extend(code.to_be_bytes());
        body.extend([0, 5]);
        body.extend(b"again");
        match code {
            0x1000 => body.extend([0, 10, 0, 0, 0, 1, 0, 0, 0, 0]),
            0x1200 => body.extend([0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
            _ => {}
        }
        header[1] = 0;
        header[4] = 0;
        header[5..].copy_from_slice(&(body.len() as u32).to_be_bytes());
    }
}

/// Makes bytes from a text.
pub fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}
