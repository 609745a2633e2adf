//! Single objects of about 115 kB from a distant server, over HTTP: the share of the link that is
//! used, the cost of slow connections, and the peers and the floor for comparison; `flight` measures
//! the number of requests in flight.
//!
//! `cargo bench --features http --bench far [-- SECTION...]`; the sections are `cap`, `peers`,
//! `slow`, `first`, `hub`. The server runs in a process of its own on the same cores, and models
//! the link (`examples/support/link.rs`). Peers run with the interpreter that `DATAPIPES_PEERS`
//! names.

#[path = "../examples/support/link.rs"]
mod link;
mod support;

use std::sync::Arc;
use std::time::Instant;

use datapipes::{BoxError, DataLoader, Order};
use datapipes_io::prelude::*;
use datapipes_io::stores::{self, Http, Hub, Store, resilient};
use link::Link;
use support::{bar, cpu_seconds, median, memory_mb, usage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const OBJECTS: usize = 4000;
/// Objects as large as files of the hub often are.
const LARGE_OBJECTS: usize = 120;
const BATCH: usize = 64;
/// MB/s of the capped link.
const CAP: f64 = 100.0;

fn main() -> Result<(), BoxError> {
    link::serve_if_asked();
    let sections: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let wanted = |name: &str| sections.is_empty() || sections.iter().any(|section| section == name);
    let bench = Bench::new(OBJECTS, 115_000)?;
    if wanted("cap") {
        bench.cap()?;
    }
    if wanted("peers") {
        bench.peers()?;
    }
    if wanted("slow") {
        bench.slow()?;
    }
    if wanted("first") {
        bench.first()?;
    }
    if wanted("hub") {
        println!(
            "\nThe same objects by hf:// and http://, strict, number in flight found: objects a second (medians of 3 pairs, first epoch)"
        );
        bench.hub(&[(0, 0.0), (0, CAP), (20, CAP), (150, CAP)])?;
        println!("\nThe same with {LARGE_OBJECTS} objects of 4 MB");
        Bench::new(LARGE_OBJECTS, 4_000_000)?.hub(&[(0, 0.0), (20, CAP), (150, CAP)])?;
    }
    Ok(())
}

struct Bench {
    link: Link,
    run: std::cell::Cell<usize>,
}

impl Bench {
    fn new(objects: usize, size: usize) -> Result<Bench, BoxError> {
        Ok(Bench {
            link: Link::noise(objects, size)?,
            run: std::cell::Cell::new(0),
        })
    }
}

/// One pass over all objects.
struct Pass {
    objects: usize,
    /// Total time, and the time at which each batch arrived, in seconds.
    wall: f64,
    batches: Vec<f64>,
    /// Bytes of each batch.
    bytes: Vec<usize>,
    cpu: f64,
}

impl Pass {
    fn items_per_s(&self) -> f64 {
        self.objects as f64 / self.wall
    }

    /// Returns the MB/s between the end of the first quarter of the batches and the last tenth,
    /// where the link runs empty.
    fn steady(&self) -> f64 {
        let (from, to) = (self.batches.len() / 4, self.batches.len() * 9 / 10);
        let bytes: usize = self.bytes[from + 1..=to].iter().sum();
        bytes as f64 / 1e6 / (self.batches[to] - self.batches[from])
    }

    /// Returns the slowest batch after the first quarter, and the median, in seconds between
    /// batches.
    fn gaps(&self) -> (f64, f64) {
        let from = self.batches.len() / 4;
        let gaps: Vec<f64> = self.batches[from..]
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect();
        (gaps.iter().copied().fold(0.0, f64::max), median(gaps))
    }
}

#[derive(Clone, Copy)]
struct Setting {
    order: Order,
    in_flight: Option<usize>,
    workers: usize,
    /// Number of passes of one loader; only the last one is measured.
    epochs: u64,
}

const STRICT: Setting = Setting {
    order: Order::Strict,
    in_flight: None,
    workers: 2,
    epochs: 1,
};

impl Bench {
    /// Returns a URL for a link that no other run has used.
    fn url(&self, link: &str) -> String {
        self.run.set(self.run.get() + 1);
        self.link.url(&format!("{link},run={}", self.run.get()))
    }

    fn read(&self, link: &str, setting: Setting) -> Result<Pass, BoxError> {
        self.read_from(stores::open(&self.url(link))?, setting)
    }

    fn read_from(&self, store: Arc<dyn Store>, setting: Setting) -> Result<Pass, BoxError> {
        let index = store.clone().files(["index.txt"]).load_files().collect()?;
        let (keys, sizes) = keys(&index[0].data)?;
        let graph = store.files(keys).load_files().batch(BATCH);
        let mut builder = DataLoader::builder(graph)
            .workers(setting.workers)
            .order(setting.order);
        if let Some(in_flight) = setting.in_flight {
            builder = builder.concurrency(in_flight);
        }
        let loader = builder.build()?;
        let mut last = None;
        for epoch in 0..setting.epochs {
            let (begun, cpu) = (Instant::now(), cpu_seconds());
            let (mut batches, mut bytes) = (Vec::new(), Vec::new());
            for batch in loader.epoch(epoch).blocking() {
                let batch = batch?;
                batches.push(begun.elapsed().as_secs_f64());
                bytes.push(batch.iter().map(|file| file.data.len()).sum());
            }
            let wall = begun.elapsed().as_secs_f64();
            assert_eq!(
                bytes.iter().sum::<usize>(),
                sizes.iter().sum::<usize>(),
                "every object once"
            );
            last = Some(Pass {
                objects: sizes.len(),
                wall,
                batches,
                bytes,
                cpu: cpu_seconds() - cpu,
            });
        }
        if std::env::var_os("STATS").is_some() {
            println!("{}\n{}", loader.explain(), loader.stats().expect("it ran"));
        }
        Ok(last.expect("an epoch"))
    }

    fn cap(&self) -> Result<(), BoxError> {
        println!(
            "\nA link of {CAP} MB/s in all; {OBJECTS} objects, batches of {BATCH}. MB/s once the ramp is over, and of the whole first epoch."
        );
        println!(
            "{:<10} {:>10} {:>12} {:>12} {:>10} {:>10}",
            "RTT", "order", "steady", "whole", "in MB/s", "CPU ms"
        );
        for rtt in [0, 20, 150] {
            for order in [Order::Strict, Order::Bounded(256), Order::Arrival] {
                let pass =
                    self.read(&format!("rtt={rtt},cap={CAP}"), Setting { order, ..STRICT })?;
                let whole = pass.bytes.iter().sum::<usize>() as f64 / 1e6 / pass.wall;
                println!(
                    "{:<10} {:>10} {:>11.1}% {:>11.1}% {:>10.1} {:>10.3}",
                    format!("{rtt} ms"),
                    order.to_string(),
                    pass.steady() / CAP * 100.0,
                    whole / CAP * 100.0,
                    pass.steady(),
                    pass.cpu * 1e3 / OBJECTS as f64
                );
                bar(
                    &format!("share of the cap, {rtt} ms, {order}"),
                    pass.steady() / CAP,
                    0.95,
                    true,
                );
            }
            let floor = self.floor(&format!("rtt={rtt},cap={CAP}"), 256)?;
            println!(
                "{:<10} {:>10} {:>37.1}  (whole epoch)",
                format!("{rtt} ms"),
                "raw sockets",
                floor.0
            );
        }
        Ok(())
    }

    fn peers(&self) -> Result<(), BoxError> {
        println!(
            "\nUncapped: objects a second, and CPU ms an object, each at its best number in flight (medians of 3)"
        );
        println!(
            "{:<8} {:<28} {:>10} {:>12} {:>12}",
            "RTT", "", "in flight", "objects/s", "CPU ms"
        );
        let mut at_zero = 0.0;
        for rtt in [0, 20, 150] {
            let link = format!("rtt={rtt}");
            let line = |name: &str, in_flight: &str, (rate, cpu): (f64, f64)| {
                println!(
                    "{:<8} {name:<28} {in_flight:>10} {rate:>12.0} {cpu:>12.3}",
                    format!("{rtt} ms")
                );
            };
            let ours = |setting: Setting| -> Result<(f64, f64), BoxError> {
                let passes = (0..3)
                    .map(|_| self.read(&link, setting))
                    .collect::<Result<Vec<_>, _>>()?;
                let cpu = median(
                    passes
                        .iter()
                        .map(|pass| pass.cpu * 1e3 / OBJECTS as f64)
                        .collect(),
                );
                Ok((median(passes.iter().map(Pass::items_per_s).collect()), cpu))
            };
            let first = ours(STRICT)?;
            line("datapipes, first epoch", "found", first);
            let second = ours(Setting {
                epochs: 3,
                ..STRICT
            })?;
            line("datapipes, third epoch", "found", second);
            let given = ours(Setting {
                in_flight: Some(1024),
                ..STRICT
            })?;
            line("datapipes, given", "1024", given);
            let (rate, cpu) = self.floor(&link, 512)?;
            line("raw sockets", "512", (rate * 1e6 / 115_000.0, cpu));
            let mut best: (f64, f64) = (0.0, 0.0);
            for (name, script) in [
                ("asyncio and aiohttp", "aio"),
                ("curl --parallel", "curl"),
                ("urllib3 in threads", "threads"),
            ] {
                for in_flight in [64, 256, 1024] {
                    if (script == "curl" && in_flight > 300)
                        || (script == "threads" && in_flight > 256)
                    {
                        continue; // curl's own limit; and a thread each
                    }
                    let runs: Vec<(f64, f64)> = (0..3)
                        .filter_map(|_| {
                            support::peer_figures(
                                "far.py",
                                &[script, &self.url(&link), &in_flight.to_string()],
                            )
                        })
                        .collect();
                    if runs.is_empty() {
                        continue;
                    }
                    let rate = OBJECTS as f64 / median(runs.iter().map(|run| run.0).collect());
                    let cpu = median(runs.iter().map(|run| run.1).collect()) * 1e3 / OBJECTS as f64;
                    line(name, &in_flight.to_string(), (rate, cpu));
                    if rate > best.0 {
                        best = (rate, cpu);
                    }
                }
            }
            let ours = if second.0 > given.0 { second } else { given };
            if best.0 > 0.0 {
                bar(
                    &format!("rate over the fastest peer's, {rtt} ms"),
                    ours.0 / best.0,
                    if rtt == 150 { 3.0 } else { 2.0 },
                    true,
                );
                bar(
                    &format!("CPU over the fastest peer's, {rtt} ms"),
                    ours.1 / best.1,
                    0.5,
                    false,
                );
            }
            match rtt {
                0 => at_zero = second.0,
                150 => bar(
                    "rate at 150 ms over that at 0 ms, number in flight found",
                    second.0 / at_zero,
                    0.8,
                    true,
                ),
                _ => {}
            }
        }
        Ok(())
    }

    fn slow(&self) -> Result<(), BoxError> {
        println!(
            "\nEvery fourth connection ten times slower, 20 ms, link of {CAP} MB/s: rate, slowest and median batch"
        );
        for order in [Order::Strict, Order::Bounded(256), Order::Arrival] {
            let setting = Setting {
                order,
                epochs: 2,
                ..STRICT
            };
            let even = self.read(&format!("rtt=20,cap={CAP}"), setting)?;
            let uneven = self.read(&format!("rtt=20,cap={CAP},slow=25"), setting)?;
            let (worst, usual) = uneven.gaps();
            println!(
                "{:<10} {:>6.1} MB/s, {:>6.1} without; slowest batch {:>6.1} ms, median {:>6.1} ms",
                order.to_string(),
                uneven.steady(),
                even.steady(),
                worst * 1e3,
                usual * 1e3
            );
            if order != Order::Strict {
                bar(
                    &format!("rate kept, {order}"),
                    uneven.steady() / even.steady(),
                    0.9,
                    true,
                );
                bar(
                    &format!("slowest batch over the median, {order}"),
                    worst / usual,
                    3.0,
                    false,
                );
            }
        }
        Ok(())
    }

    fn first(&self) -> Result<(), BoxError> {
        let before = memory_mb("VmHWM");
        let in_flight = 256;
        let setting = Setting {
            in_flight: Some(in_flight),
            ..STRICT
        };
        self.read("rtt=150", setting)?;
        let asked = in_flight as f64 * 0.115;
        println!(
            "peak memory {:.0} MB ({before:.0} MB before); {asked:.0} MB in flight asked for",
            memory_mb("VmHWM")
        );
        println!("\nTime to the first batch of {BATCH}, of which a round trip is to connect");
        for rtt in [0, 20, 150] {
            let pass = (0..3)
                .map(|_| Ok(self.read(&format!("rtt={rtt}"), STRICT)?.batches[0] * 1e3))
                .collect::<Result<Vec<f64>, BoxError>>()?;
            let first = median(pass);
            println!("{rtt} ms: {first:.1} ms");
            bar(
                &format!("ms over connect and request, {rtt} ms"),
                first - 2.0 * rtt as f64,
                50.0,
                false,
            );
        }
        Ok(())
    }

    /// Reads the same objects as files of a repository of the hub, which redirects each request to
    /// another host; by http:// from there, and through the same redirects.
    fn hub(&self, links: &[(u64, f64)]) -> Result<(), BoxError> {
        for &(rtt, cap) in links {
            let link = format!("rtt={rtt},cap={cap}");
            let mut runs = Vec::new();
            for _ in 0..3 {
                let http = self.read(&link, STRICT)?;
                let redirected = self.read_from(self.redirected(&link)?, STRICT)?;
                let hub = Hub::builder(&format!("hf://datasets/org/name@{}", "1".repeat(40)))
                    .endpoint(&self.url(&link))
                    .anonymous()
                    .build()?;
                let hub = self.read_from(Arc::new(resilient(hub)), STRICT)?;
                runs.push([hub, http, redirected]);
            }
            let of = |figure: &dyn Fn(&[Pass; 3]) -> f64| median(runs.iter().map(figure).collect());
            let over = |floor: usize| of(&|run| run[floor].wall / run[0].wall);
            let each =
                |figure: &dyn Fn(&Pass) -> f64| [0, 1, 2].map(|way| of(&|run| figure(&run[way])));
            let rates = each(&Pass::items_per_s);
            let cpu = each(&|pass| pass.cpu * 1e3 / pass.objects as f64);
            println!(
                "{rtt:>4} ms, {:>9}: hf {:>7.0}, http {:>7.0}, redirected {:>7.0}; CPU ms an object {:.3}, {:.3} and {:.3}",
                if cap == 0.0 {
                    "no cap".to_owned()
                } else {
                    format!("{cap} MB/s")
                },
                rates[0],
                rates[1],
                rates[2],
                cpu[0],
                cpu[1],
                cpu[2],
            );
            for (floor, name) in [(1, "http"), (2, "redirected http")] {
                let what = format!("hf over {name}, {rtt} ms, cap {cap}");
                bar(&what, over(floor), 0.95, true);
            }
        }
        Ok(())
    }

    /// Returns a store whose requests are redirected as those of the hub are.
    fn redirected(&self, link: &str) -> Result<Arc<dyn Store>, BoxError> {
        let url = self.url(link);
        let port = url.split([':', '/']).nth(4).ok_or("a port in the URL")?;
        let files = format!(
            "{}/datasets/org/name/resolve/main/",
            url.trim_end_matches('/')
        );
        let http = Http::builder(&files).allow_redirects_to(&format!("localhost:{port}"));
        Ok(Arc::new(resilient(http.build()?)))
    }

    /// Returns MB/s and CPU ms per object of bare connections, each of which requests one object
    /// after another.
    fn floor(&self, link: &str, connections: usize) -> Result<(f64, f64), BoxError> {
        let url = self.url(link);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (host, path) = url
            .trim_start_matches("http://")
            .split_once('/')
            .ok_or("a path")?;
        let (host, path) = (host.to_owned(), format!("/{path}"));
        let cpu = cpu_seconds();
        let begun = Instant::now();
        let bytes: usize = runtime.block_on(async {
            let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let readers: Vec<_> = (0..connections)
                .map(|_| {
                    let (host, path, next) = (host.clone(), path.clone(), next.clone());
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "the floor does without the library"
                    )]
                    tokio::spawn(async move {
                        reader(&host, &path, &next)
                            .await
                            .expect("the server answers")
                    })
                })
                .collect();
            let mut bytes = 0;
            for reader in readers {
                bytes += reader.await.expect("no panic");
            }
            bytes
        });
        Ok((
            bytes as f64 / 1e6 / begun.elapsed().as_secs_f64(),
            (cpu_seconds() - cpu) * 1e3 / OBJECTS as f64,
        ))
    }
}

async fn reader(
    host: &str,
    path: &str,
    next: &std::sync::atomic::AtomicUsize,
) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(host).await?;
    let mut total = 0;
    let mut head = Vec::new();
    loop {
        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if number >= OBJECTS {
            return Ok(total);
        }
        let request = format!("GET {path}{number:06}.jpg HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        head.clear();
        let end = loop {
            stream.read_buf(&mut head).await?;
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = String::from_utf8_lossy(&head[..end]).into_owned();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = Vec::with_capacity(length);
        body.extend_from_slice(&head[end..]);
        while body.len() < length && stream.read_buf(&mut body).await? > 0 {}
        total += body.len();
    }
}

/// Returns the keys and sizes in an index.
fn keys(index: &[u8]) -> Result<(Vec<String>, Vec<usize>), BoxError> {
    let lines = std::str::from_utf8(index)?.lines();
    let entry = |line: &str| {
        let (key, size) = line.split_once('\t')?;
        Some((key.to_owned(), size.parse::<usize>().ok()?))
    };
    lines
        .map(|line| entry(line).ok_or_else(|| BoxError::from("a line of the index")))
        .collect()
}
