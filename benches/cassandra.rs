//! Rows of 115 kB from Cassandra, beside the bare driver with as many requests in flight, near and
//! far away.
//!
//! Needs a server, named by `DATAPIPES_TEST_CASSANDRA` (`.ci/servers/cassandra start` prints it).
//! Distance is made by a relay in this process, which holds each byte for half of a round trip,
//! each way.
//!
//! `cargo bench --features cassandra --bench cassandra [-- ROWS IN_FLIGHT ROUNDS]`

#![allow(clippy::disallowed_methods, reason = "the relay starts tasks")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use datapipes::{DataLoader, Graph, Order};
use datapipes_tables::cassandra::{Cassandra, CassandraOptions, Replication};
use datapipes_tables::{Label, NewRow, Row, Schema, Table};
use futures::StreamExt;
use scylla::client::PoolSize;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use support::{bar, case, compare};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep_until};
use url::Url;
use uuid::Uuid;

const SIZE: usize = 115_000;
const CONNECTIONS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Ok(server) = std::env::var("DATAPIPES_TEST_CASSANDRA") else {
        println!("skipped: DATAPIPES_TEST_CASSANDRA names no server");
        return Ok(());
    };
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(800);
    let in_flight = numbers.next().unwrap_or(64);
    let rounds = numbers.next().unwrap_or(5);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let relays = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;

    let mut url = Url::parse(&server)?;
    url.set_path("/datapipes_bench.rows");
    url.set_query(Some("connections=8"));
    let keys: Vec<Uuid> = (0..count as u128)
        .map(|n| Uuid::from_u128(n << 64 | 4 << 76 | 1 << 63))
        .collect();
    runtime.block_on(fill(url.as_str(), &keys))?;
    let near: SocketAddr = format!(
        "{}:{}",
        url.host_str().unwrap_or_default(),
        url.port().unwrap_or(9042)
    )
    .parse()?;

    for rtt in [0, 20, 150] {
        let at = if rtt == 0 {
            near
        } else {
            relays.block_on(relay(near, Duration::from_millis(rtt) / 2))?
        };
        url.set_port(Some(at.port())).map_err(|()| "no port")?;
        let table = runtime.block_on(CassandraOptions::from_url(url.as_str())?.connect())?;
        let (session, read) = runtime.block_on(bare(&url, at))?;
        // Without delay the keys are repeated, so that the epoch lasts some seconds and its start
        // hardly counts.
        let keys = keys.repeat(if rtt == 0 { 5 } else { 1 });
        let loader = |order| {
            let table = table.clone();
            let rows = Graph::from_vec(keys.clone()).map_async(move |key| {
                let table = table.clone();
                async move { table.get(key).await }
            });
            DataLoader::builder(rows.concurrency(in_flight))
                .order(order)
                .build()
                .expect("a right graph")
        };
        let (strict, arrival) = (loader(Order::Strict), loader(Order::Arrival));
        let epoch = |loader: &DataLoader<Row>| {
            let rows = loader
                .epoch(0)
                .blocking()
                .map(|row| row.expect("a row").data.len());
            assert_eq!(rows.sum::<usize>(), keys.len() * SIZE);
        };
        let title = format!(
            "{} rows of {SIZE} bytes, {in_flight} in flight, round trip {rtt} ms",
            keys.len()
        );
        let ratios = compare(
            &title,
            keys.len() as f64,
            "rows",
            rounds,
            vec![
                case("the bare driver, in any order", || {
                    driver(&runtime, &session, &read, &keys, in_flight, false)
                }),
                case("the bare driver, in order", || {
                    driver(&runtime, &session, &read, &keys, in_flight, true)
                }),
                case("our table without a loader, in any order", || {
                    alone(&runtime, &table, &keys, in_flight)
                }),
                case("loader, as they arrive", || epoch(&arrival)),
                case("loader, in strict order", || epoch(&strict)),
            ],
        );
        bar(
            "as they arrive: part of the bare driver's rate",
            1.0 / ratios[3],
            0.9,
            true,
        );
        bar(
            "in strict order: part of the bare driver's rate in order",
            ratios[1] / ratios[4],
            0.9,
            true,
        );
    }
    relays.shutdown_background();
    Ok(())
}

async fn fill(url: &str, keys: &[Uuid]) -> datapipes::Result<()> {
    let table = Cassandra::create(url, &Schema::default(), &Replication::Copies(1)).await?;
    let mut rng = datapipes::Rng::from_key([7; 4]);
    let noise: Vec<u8> = (0..SIZE + keys.len())
        .map(|_| rng.next_u32() as u8)
        .collect();
    let noise = Bytes::from(noise);
    for (chunk, keys) in keys.chunks(50).enumerate() {
        let rows = keys.iter().enumerate().map(|(at, &key)| {
            let from = chunk * 50 + at;
            let data = noise.slice(from..from + SIZE);
            NewRow {
                row: Row {
                    key,
                    label: Label::Class(from as i64 % 1000),
                    data,
                },
                values: Vec::new(),
            }
        });
        table.put(rows.collect()).await?;
    }
    Ok(())
}

async fn bare(
    url: &Url,
    at: SocketAddr,
) -> Result<(Session, PreparedStatement), Box<dyn std::error::Error>> {
    let session = SessionBuilder::new()
        .known_node_addr(at)
        .user(url.username(), url.password().unwrap_or_default())
        .pool_size(PoolSize::PerHost(CONNECTIONS.try_into()?))
        .build()
        .await?;
    let mut read = session
        .prepare("SELECT class, label, data FROM datapipes_bench.rows_data WHERE key = ?")
        .await?;
    read.set_consistency(Consistency::LocalOne);
    read.set_is_idempotent(true);
    Ok((session, read))
}

fn driver(
    runtime: &Runtime,
    session: &Session,
    read: &PreparedStatement,
    keys: &[Uuid],
    in_flight: usize,
    ordered: bool,
) {
    type Columns = (Option<i64>, Option<Bytes>, Option<Bytes>);
    let requests = futures::stream::iter(keys.to_vec()).map(|key| async move {
        let answer = session
            .execute_unpaged(read, (key,))
            .await
            .expect("an answer");
        let (_, _, data) = answer
            .into_rows_result()
            .expect("rows")
            .single_row::<Columns>()
            .expect("a row");
        data.expect("data").len()
    });
    let add = |sum, bytes| async move { sum + bytes };
    let sum = match ordered {
        true => runtime.block_on(requests.buffered(in_flight).fold(0, add)),
        false => runtime.block_on(requests.buffer_unordered(in_flight).fold(0, add)),
    };
    assert_eq!(sum, keys.len() * SIZE);
}

fn alone(runtime: &Runtime, table: &Cassandra, keys: &[Uuid], in_flight: usize) {
    let requests = futures::stream::iter(keys.to_vec()).map(|key| table.get(key));
    let rows = requests
        .buffer_unordered(in_flight)
        .map(|row| row.expect("a row").data.len());
    let sum = runtime.block_on(rows.fold(0, |sum, bytes| async move { sum + bytes }));
    assert_eq!(sum, keys.len() * SIZE);
}

/// Listens for connections, relays them to `to`, and delays every byte by `hold` in each direction.
async fn relay(to: SocketAddr, hold: Duration) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(to).await else {
                continue;
            };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
            tokio::spawn(carry(from_near, to_far, hold));
            tokio::spawn(carry(from_far, to_near, hold));
        }
    });
    Ok(at)
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, hold: Duration) {
    let (put, mut take) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if put
                .send((Instant::now() + hold, buffer[..length].to_vec()))
                .is_err()
            {
                break;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = take.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(read, write);
}
