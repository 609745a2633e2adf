//! Publishes the figures of a loader for Prometheus, runs an epoch, and scrapes the program once, as
//! Prometheus does every few seconds.
//!
//! `cargo run --release --features metrics --example metrics`; an address such as
//! `127.0.0.1:9000` after `--` takes the place of any free one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use datapipes::{BoxError, DataLoader, Graph};
use metrics_exporter_prometheus::PrometheusBuilder;

fn main() -> Result<(), BoxError> {
    let address = match std::env::args().nth(1) {
        Some(address) => address.parse()?,
        None => TcpListener::bind(("127.0.0.1", 0))?.local_addr()?,
    };
    // These two lines are all that a training program needs: the exporter, and the loader's name.
    PrometheusBuilder::new()
        .with_http_listener(address)
        .install()?;
    let loader = DataLoader::builder(graph()).metrics("train").build()?;

    let batches = loader.epoch(0).blocking();
    let sum: u64 = batches.flatten().flatten().sum();
    println!("an epoch of {sum} in all; from http://{address}/metrics:\n");

    // Figures are published once a second, and the last ones when the loader is dropped.
    drop(loader);
    let page = scrape(address)?;
    let figures = page.lines().filter(|line| line.starts_with("datapipes_"));
    let figures: Vec<&str> = figures.collect();
    println!("{}", figures.join("\n"));
    match figures.is_empty() {
        true => Err(format!("no figures in\n{page}").into()),
        false => Ok(()),
    }
}

/// Returns batches of numbers, each of which takes a while.
fn graph() -> Graph<Vec<u64>> {
    let slow = |n: u64| (0..2000).fold(n, |n, step| std::hint::black_box(n ^ step));
    Graph::range(0..10_000)
        .map(slow)
        .named("decode")
        .filter(|n| n % 3 > 0)
        .shuffle(100)
        .batch(64)
}

/// Returns the answer of the exporter.
fn scrape(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
