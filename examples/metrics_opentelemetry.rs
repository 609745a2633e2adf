//! Publishes the figures of a loader by OpenTelemetry: runs an epoch, and pushes its figures as OTLP
//! over HTTP to a collector. Here the collector is a thread of this program, which prints what it
//! gets.
//!
//! `cargo run --release --features metrics --example metrics_opentelemetry`; the URL of
//! a collector such as `http://127.0.0.1:4318/v1/metrics` after `--` takes the place of the thread.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use async_trait::async_trait;
use datapipes::{BoxError, DataLoader, Graph};
use metrics_exporter_opentelemetry::Recorder;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{MetricExporter, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::metrics::PeriodicReader;

fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let own = format!("http://{}/v1/metrics", listener.local_addr()?);
    let url = std::env::args().nth(1);
    let exporter = MetricExporter::builder()
        .with_http()
        .with_http_client(Http)
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(url.as_ref().unwrap_or(&own))
        .build()?;
    // It pushes once a minute, and when it is told to.
    let reader = PeriodicReader::builder(exporter).build();
    let (provider, _) = Recorder::builder("train")
        .with_meter_provider(|builder| builder.with_reader(reader))
        .install()?;
    let collector = url.is_none().then(|| thread::spawn(|| receive(listener)));

    // This line is all that a training program needs besides the exporter.
    let loader = DataLoader::builder(graph()).metrics("train").build()?;
    let sum: u64 = loader.epoch(0).blocking().flatten().flatten().sum();
    println!("an epoch of {sum} in all");
    // The last figures are published when the loader is dropped.
    drop(loader);
    provider.force_flush()?;
    let Some(collector) = collector else {
        return Ok(());
    };
    let body = collector.join().map_err(|_| "the collector failed")??;
    println!("a collector got {} bytes with these figures:\n", body.len());
    // Each text of JSON is between quotes.
    let names = body
        .split('"')
        .filter(|text| text.starts_with("datapipes_"));
    let mut names: Vec<&str> = names.collect();
    names.dedup();
    println!("{}", names.join("\n"));
    match names.contains(&"datapipes_delivered_items_total") {
        true => Ok(()),
        false => Err("there are no figures".into()),
    }
}

/// Returns batches of numbers, each of which takes a while.
fn graph() -> Graph<Vec<u64>> {
    let slow = |n: u64| (0..2000).fold(n, |n, step| std::hint::black_box(n ^ step));
    let decoded = Graph::range(0..10_000).map(slow).named("decode");
    decoded.filter(|n| n % 3 > 0).shuffle(100).batch(64)
}

/// Sends requests as plain HTTP. A program with an HTTP client gives that to the exporter, or turns
/// on one of the exporter's features.
#[derive(Debug)]
struct Http;

#[async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let uri = request.uri();
        let host = uri.authority().ok_or("a URL without a host")?;
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            uri.path(),
            request.body().len()
        );
        let mut stream = TcpStream::connect(host.as_str())?;
        stream.write_all(&[head.as_bytes(), request.body()].concat())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.split(' ').nth(1).ok_or("no answer")?;
        Ok(Response::builder().status(status).body(Bytes::new())?)
    }
}

/// Answers one request, and returns its body.
fn receive(listener: TcpListener) -> std::io::Result<String> {
    let (stream, _) = listener.accept()?;
    let mut reader = BufReader::new(&stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}
