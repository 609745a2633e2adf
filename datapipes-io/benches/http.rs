//! Many small objects from a web server: requests and CPU seconds, by the number of requests in
//! flight.
//!
//! ```sh
//! DATAPIPES_BENCH_HTTP=http://127.0.0.1:9000/img/ cargo bench -p datapipes-io --features http --bench http
//! ```
//!
//! The URL is that of a folder with a listing (a page, or an `index.json`).
//! `DATAPIPES_BENCH_SECONDS` (2) is the duration of each row; `DATAPIPES_BENCH_HTTP2` uses HTTP/2
//! without negotiation. CPU time is that of this process alone, so that other load on the machine
//! hardly shows.

use std::time::{Duration, Instant};

use datapipes_io::stores::{Http, Store};
use futures::stream::{FuturesUnordered, StreamExt};

const IN_FLIGHT: [usize; 5] = [1, 16, 64, 256, 512];

fn main() {
    let Ok(url) = std::env::var("DATAPIPES_BENCH_HTTP") else {
        println!("skipped: DATAPIPES_BENCH_HTTP names no server");
        return;
    };
    let seconds = std::env::var("DATAPIPES_BENCH_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2.0);
    let workers = std::env::var("DATAPIPES_BENCH_WORKERS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("a runtime");
    let http = Http::builder(&url);
    let http = if std::env::var_os("DATAPIPES_BENCH_HTTP2").is_some() {
        http.http2_prior_knowledge()
    } else {
        http
    };
    let store = http.build().expect("a URL");
    let keys: Vec<String> = runtime.block_on(async {
        store
            .list("")
            .take(2000)
            .map(|meta| meta.expect("a listing").key)
            .collect()
            .await
    });
    println!("{} keys, {workers} threads", keys.len());
    println!("in flight   requests/s     MB/s   CPU us/request   CPU us/MB");
    for in_flight in IN_FLIGHT {
        let (cpu, begun) = (cpu(), Instant::now());
        let (store, keys) = (store.clone(), keys.clone());
        let work = run(store, keys, in_flight, Duration::from_secs_f64(seconds));
        let (requests, bytes) = runtime.block_on(runtime.spawn(work)).expect("no panic");
        let (cpu, wall) = (self::cpu() - cpu, begun.elapsed().as_secs_f64());
        let mb = bytes as f64 / 1e6;
        println!(
            "{in_flight:>9}   {:>10.0} {:>8.0}   {:>14.1}   {:>9.1}",
            requests as f64 / wall,
            mb / wall,
            cpu * 1e6 / requests as f64,
            cpu * 1e6 / mb,
        );
    }
}

/// Reads keys in turn with a constant number of requests in flight, until the time is up, and
/// returns the number of requests and bytes.
async fn run(store: Http, keys: Vec<String>, in_flight: usize, time: Duration) -> (u64, u64) {
    let (begun, mut next, mut requests, mut bytes) = (Instant::now(), 0, 0, 0);
    let mut waiting = FuturesUnordered::new();
    loop {
        while waiting.len() < in_flight && begun.elapsed() < time {
            let (store, key) = (&store, &keys[next % keys.len()]);
            waiting.push(async move { store.read(key).await });
            next += 1;
        }
        let Some(data) = waiting.next().await else {
            return (requests, bytes);
        };
        bytes += data.expect("an object").len() as u64;
        requests += 1;
    }
}

/// Returns the CPU seconds of this process, user and system.
#[cfg(unix)]
fn cpu() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the call fills in the value, and cannot fail with these arguments.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(not(unix))]
fn cpu() -> f64 {
    f64::NAN
}
