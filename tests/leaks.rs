//! Resources that must be released at the end: threads, descriptors, memory. These tests are a
//! binary of their own and run one after the other, since such resources are counted for a whole
//! process.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datapipes::testing::{Ledger, Resources, each_failure};
use datapipes::{DataLoader, ErrorKind, Graph, OnError};
use futures::StreamExt;
use proptest::prelude::*;

#[path = "suite/graphs.rs"]
#[allow(dead_code, reason = "the laws use the rest of it")]
mod graphs;
#[path = "suite/user_pipes.rs"]
#[allow(dead_code, reason = "of the laws, too")]
mod user_pipes;

// Parts of graphs run in children of this executable.
datapipes::before_main!();

static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test of this program runs, and the harness has started the thread of the
/// next one: later it would be taken for a thread that is left over.
fn alone() -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut threads, mut since) = (Resources::now().threads, Instant::now());
    while since.elapsed() < Duration::from_millis(20) {
        let now = Resources::now().threads;
        if now != threads {
            (threads, since) = (now, Instant::now());
        }
        std::thread::yield_now();
    }
    guard
}

/// Waits until something is so; not for ever.
#[cfg(unix)]
#[allow(dead_code, reason = "what uses it depends on features and the system")]
fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "not after 10 s: {what}"
        );
        std::thread::yield_now();
    }
}

fn spin(n: u64) -> u64 {
    (0..20_000).fold(n, |n, i| std::hint::black_box(n ^ i)) ^ n ^ n
}

fn graph() -> Graph<Vec<u64>> {
    Graph::range(0..200)
        .map(spin)
        .concurrency(32)
        .shuffle(20)
        .map(spin)
        .batch(7)
}

/// Row 21: the consumer drops the epoch before, at or after any item.
#[test]
fn row_21_dropping_an_epoch_anywhere_ends_what_it_started() {
    let _alone = alone();
    let before = Resources::now();
    for workers in [0, 1, 2, 8] {
        for taken in [0, 1, 2, 15, 28, 29, 100] {
            let loader = DataLoader::builder(graph())
                .workers(workers)
                .prefetch(3)
                .build()
                .unwrap();
            let mut epoch = loader.epoch(0).blocking();
            epoch
                .by_ref()
                .take(taken)
                .for_each(|batch| drop(batch.unwrap()));
            drop(epoch);
            drop(loader);
            before.assert_back();
        }
    }
}

#[test]
fn nothing_starts_before_the_first_poll() {
    let _alone = alone();
    let before = Resources::now();
    let loader = DataLoader::builder(graph()).workers(4).build().unwrap();
    let epochs = [loader.epoch(0), loader.epoch(1)];
    before.assert_back();
    drop(epochs);
}

#[test]
fn an_epoch_that_ends_with_an_error_or_a_panic_leaves_nothing() {
    let _alone = alone();
    let before = Resources::now();
    for workers in [0, 1, 2, 8] {
        for panics in [false, true] {
            let graph = graph().map(|b| b.len() as u64).try_map(move |n| match n {
                4 if panics => panic!("four"),
                4 => Err("four"),
                n => Ok(n),
            });
            let loader = DataLoader::builder(graph)
                .workers(workers)
                .on_error(OnError::fail())
                .build()
                .unwrap();
            let results: Vec<_> = loader.epoch(0).blocking().collect();
            assert_eq!(results.iter().filter(|r| r.is_err()).count(), 1);
            drop(loader);
            before.assert_back();
        }
    }
}

/// Rows 22 and 25: the consumer panics with an epoch in its hands, or drops it inside a runtime.
#[test]
fn rows_22_and_25_unwinding_and_async_drops_leave_nothing() {
    let _alone = alone();
    let before = Resources::now();
    for workers in [0, 2] {
        let loader = DataLoader::builder(graph())
            .workers(workers)
            .build()
            .unwrap();
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let mut epoch = loader.epoch(0).blocking();
            epoch.next().unwrap().unwrap();
            std::panic::resume_unwind(Box::new("the consumer's own"));
        }));
        assert!(unwound.is_err());
        before.assert_back();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let loader = DataLoader::builder(graph())
                .workers(workers)
                .build()
                .unwrap();
            let mut epoch = loader.epoch(0);
            epoch.next().await.unwrap().unwrap();
        });
        drop(runtime);
        before.assert_back();
    }
}

/// Row 41: many epochs of a tiny set: threads, descriptors and memory stay flat.
#[test]
fn row_41_many_epochs_of_a_tiny_set_are_flat() {
    let _alone = alone();
    let before = Resources::now();
    let graph = Graph::range(0..16)
        .map(|n| n + 1)
        .concurrency(4)
        .shuffle(4)
        .batch(4);
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    let epochs = |range: std::ops::Range<u64>| {
        for epoch in range {
            assert_eq!(loader.epoch(epoch).blocking().count(), 4);
        }
        resident_kb()
    };
    let early = epochs(0..500);
    let threads = Resources::now();
    let late = epochs(500..3000);
    threads.assert_back();
    assert!(
        late < early + 2048,
        "grew from {early} to {late} kB in 2500 epochs"
    );
    drop(loader);
    before.assert_back();
}

/// Rows 23 and 46: memory does not grow with the data.
#[test]
fn rows_23_and_46_memory_is_flat_over_the_data() {
    let _alone = alone();
    let graph = Graph::range(0..10_000_000)
        .map(|n| n ^ 1)
        .shuffle(1000)
        .batch(1000);
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    let mut after_some = 0;
    for (i, batch) in loader.epoch(0).blocking().enumerate() {
        drop(batch.unwrap());
        if i == 500 {
            after_some = resident_kb();
        }
    }
    assert!(
        resident_kb() < after_some + 4096,
        "from {after_some} to {} kB",
        resident_kb()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..graphs::config(60) })]

    /// Law 6: dropping an epoch of any graph at any point ends what it started, and so does its
    /// end.
    #[test]
    fn law_6_drop_is_cancel(
        spec in graphs::spec(), run in graphs::strict_run(), taken in 0usize..200, at_once in any::<bool>(),
    ) {
        let _alone = alone();
        let before = Resources::now();
        let loader = run.loader(&spec);
        let mut epoch = loader.epoch(run.epoch).blocking();
        let mut other = at_once.then(|| loader.epoch(run.epoch + 1).blocking());
        for _ in 0..taken {
            let Some(item) = epoch.next() else { break };
            item.ok();
            other.as_mut().and_then(Iterator::next);
        }
        drop(epoch);
        drop(loader);
        drop(other);
        before.assert_back();
    }
}

/// Resources that child processes could leave: children and mapped memory.
#[cfg(target_os = "linux")]
mod processes {
    use datapipes::Tensor;

    use super::*;

    /// Children of this process, dead ones that nobody waited for included.
    fn children() -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let of = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("children")).unwrap_or_default()
        };
        tasks
            .flat_map(|task| {
                of(task)
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Memory of queues that is mapped, in bytes.
    fn mapped() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_queues = maps
            .lines()
            .filter(|line| line.contains("/memfd:datapipes"));
        let len = |line: &str| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [from, to] = [from, to].map(|number| usize::from_str_radix(number, 16).unwrap());
            to - from
        };
        of_queues.map(len).sum()
    }

    /// Dropping an epoch waits only a moment for the thread that worked ahead. While that is there
    /// it has the children, so that another epoch would start others.
    fn epochs_have_ended() {
        // The system keeps 15 bytes of a name.
        let works_ahead = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.starts_with("datapipes-loade"))
        };
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().flatten();
        soon("no thread works ahead", || !tasks().any(works_ahead));
    }

    fn nothing_is_left() {
        soon("no children and no memory of queues", || {
            (children(), mapped()) == (vec![], 0)
        });
    }

    /// Small items go in, large ones come out.
    fn graph(items: u64) -> Graph<Tensor> {
        Graph::range(0..items).in_processes(2, |numbers| {
            numbers
                .flat_map(|n| 0..n % 4)
                .try_map(|n| Tensor::from_vec(vec![n; 9000], [9000]))
                .filter(|_| true)
        })
    }

    #[test]
    fn fifty_loaders_with_processes_leave_nothing() {
        let _alone = alone();
        let before = Resources::now();
        for round in 0..50 {
            let loader = DataLoader::builder(graph(200)).build().unwrap();
            let mut kept = Vec::new();
            for epoch in 0..2 {
                let mut items = loader.epoch(epoch).blocking();
                // To the end, or not.
                kept.extend(
                    items
                        .by_ref()
                        .take([1000, 0, 1, 30][round % 4])
                        .map(Result::unwrap)
                        .take(3),
                );
                drop(items);
                epochs_have_ended();
                assert!(children().len() <= 2, "{:?}", children());
            }
            drop(loader);
            soon("no children", || children().is_empty());
            before.assert_back();
            // The consumer's items are all that is left of shared memory.
            let least: usize = kept.iter().map(Tensor::byte_len).sum();
            soon("at most twice what is kept is mapped", || {
                mapped() <= least * 2
            });
            assert!(mapped() >= least, "{} for {least}", mapped());
            drop(kept);
            nothing_is_left();
        }
    }

    #[test]
    fn a_hundred_epochs_with_the_same_processes_are_flat() {
        let _alone = alone();
        let before = Resources::now();
        let loader = DataLoader::builder(graph(100)).build().unwrap();
        let run = |epoch| {
            assert_eq!(
                loader.epoch(epoch).blocking().filter(Result::is_ok).count(),
                150
            );
            epochs_have_ended();
        };
        (0..10).for_each(run);
        let (working, children_then, mapped_then) = (Resources::now(), children(), mapped());
        assert_eq!(children_then.len(), 2);
        (10..100).for_each(run);
        working.assert_back();
        assert_eq!(children(), children_then);
        // The number in flight varies, but never exceeds that of an epoch.
        const EPOCH: usize = 150 * 9000 * 8;
        assert!(
            mapped() <= mapped_then + 2 * EPOCH,
            "from {mapped_then} to {}",
            mapped()
        );
        drop(loader);
        nothing_is_left();
        before.assert_back();
    }

    /// Row 23: what one item becomes does not end, and the consumer takes nothing more.
    #[test]
    fn row_23_endless_children_wait_for_their_consumer() {
        const BUDGET: usize = 24 << 20;
        let _alone = alone();
        let graph = Graph::range(0..8).in_processes(2, |numbers| {
            numbers
                .flat_map(|_| 0u64..)
                .try_map(|n| Tensor::from_vec(vec![n; 9000], [9000]))
        });
        let loader = DataLoader::builder(graph.batch(4))
            .memory(BUDGET)
            .build()
            .unwrap();
        let mut epoch = loader.epoch(0).blocking();
        assert_eq!(epoch.next().unwrap().unwrap().len(), 4);
        let (begun, mut last, mut still) = (Instant::now(), (0, 0), 0);
        while still < 20 {
            let now = (mapped(), resident_kb());
            still = if now == last { still + 1 } else { 0 };
            last = now;
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "it goes on and on: {last:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        // Items that wait here and in the queues of the two children, and memory that these keep
        // for later items.
        assert!(
            mapped() < BUDGET + 2 * (16 << 20) + 2 * (32 << 20),
            "{} bytes are mapped",
            mapped()
        );
        let begun = Instant::now();
        drop(epoch);
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "dropping took {:?}",
            begun.elapsed()
        );
        drop(loader);
        nothing_is_left();
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: graphs::cases_apart(24), failure_persistence: None, ..ProptestConfig::default()
        })]

        /// Law 6 with processes: dropping an epoch of any graph at any point ends what it started,
        /// and soon.
        #[test]
        fn law_6_drop_is_cancel_with_processes(
            spec in graphs::spec_apart(), run in graphs::strict_run(), taken in 0usize..200, at_once in any::<bool>(),
        ) {
            let _alone = alone();
            let before = Resources::now();
            let loader = run.loader(&spec);
            let mut epoch = loader.epoch(run.epoch).blocking();
            let mut other = at_once.then(|| loader.epoch(run.epoch + 1).blocking());
            for _ in 0..taken {
                let Some(item) = epoch.next() else { break };
                item.ok();
                other.as_mut().and_then(Iterator::next);
            }
            let begun = Instant::now();
            drop(epoch);
            drop(loader);
            drop(other);
            prop_assert!(begun.elapsed() < Duration::from_secs(5), "dropping took {:?}", begun.elapsed());
            // A thread that was in the middle of something may be the last to hold the loader.
            nothing_is_left();
            before.assert_back();
        }
    }
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// B.10, n-th failure: whichever call fails, in a source or a step, once or from then on, what came
/// before it arrives, the error names its node, and nothing is left over.
#[test]
fn any_call_may_fail() {
    let _alone = alone();
    let before = Resources::now();
    let ledger = Ledger::new(12);
    for workers in [0, 2] {
        each_failure(|fail| {
            let [a, b] = [fail.clone(), fail.clone()];
            let graph = ledger
                .source()
                .try_map(move |entry| a.call().map(|()| entry))
                .named("first")
                .concurrency(4)
                .map_async(move |entry| {
                    let called = b.call();
                    async move { called.map(|()| entry) }
                })
                .named("second");
            let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
            let mut arrived = Vec::new();
            let mut error = None;
            for entry in loader.epoch(0).blocking() {
                match entry {
                    Ok(entry) => arrived.push(entry),
                    Err(e) => assert!(error.replace(e).is_none(), "one error, and then the end"),
                }
            }
            ledger.check_prefix(&arrived);
            match error {
                None => ledger.check_complete(&arrived),
                Some(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io);
                    assert!(["first", "second"].contains(&error.node().unwrap()));
                    assert_eq!(error.item().unwrap().index(), arrived.len() as u64);
                }
            }
        });
        before.assert_back();
    }
}

/// All other items arrive once where failures are skipped.
#[test]
fn skipped_failures_cost_their_own_items_only() {
    let _alone = alone();
    let ledger = Ledger::new(20);
    for workers in [0, 2] {
        each_failure(|fail| {
            let fail = fail.clone();
            let graph = ledger
                .source()
                .try_map(move |entry| fail.call().map(|()| entry))
                .concurrency(4)
                .shuffle(5);
            let loader = DataLoader::builder(graph)
                .workers(workers)
                .on_error(OnError::skip(100))
                .build()
                .unwrap();
            let arrived: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
            let lost: Vec<u64> = loader
                .stats()
                .unwrap()
                .skipped_items
                .iter()
                .map(|s| s.item.as_ref().unwrap().index())
                .collect();
            ledger.check(&arrived, |number| lost.contains(&number));
            assert_eq!(loader.stats().unwrap().skipped, lost.len() as u64);
        });
    }
}

#[cfg(all(feature = "http", unix))]
#[path = "../datapipes-io/tests/support/bad_http.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod bad_http;

/// Resources that a loader over a web server holds while it runs, and leaves at the end.
#[cfg(all(feature = "http", unix))]
mod far {
    use std::io::{BufRead, BufReader, BufWriter, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use datapipes::Order;
    use datapipes_io::prelude::*;
    use datapipes_io::stores;
    use futures::FutureExt;

    use super::bad_http::*;
    use super::*;

    /// Rows 21 and 71: with hundreds of requests in flight, some unanswered and some half-way in a
    /// body.
    #[test]
    fn row_21_dropping_an_epoch_ends_its_connections() {
        const MANY: usize = 200;
        let _alone = alone();
        let before = Resources::now();
        for order in [Order::Strict, Order::Bounded(8), Order::Arrival] {
            for workers in [0, 2] {
                // Inline it is one after the other.
                let asked = if workers == 0 { 1 } else { MANY };
                let server = BadHttp::start();
                let half = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nand then".to_vec();
                for n in 0..MANY {
                    let begun = if n % 2 == 0 {
                        vec![]
                    } else {
                        vec![Step::Send(half.clone())]
                    };
                    let steps = begun.into_iter().chain([Step::Hold]).collect();
                    server.on(&format!("/{n}"), [Act::Steps(steps)]);
                }
                let store = stores::open(&server.url()).unwrap();
                let graph = store
                    .files((0..MANY).map(|n| n.to_string()))
                    .load_files()
                    .batch(MANY);
                let loader = DataLoader::builder(graph)
                    .workers(workers)
                    .order(order)
                    .build()
                    .unwrap();
                let mut epoch = loader.epoch(0);
                soon("they are all asked for", || {
                    assert!(
                        epoch.next().now_or_never().is_none(),
                        "nothing can be there yet"
                    );
                    server.requests().len() == asked
                });
                let (busy, begun) = (Resources::now(), Instant::now());
                drop(epoch);
                assert!(
                    begun.elapsed() < Duration::from_secs(5),
                    "dropping took {:?}",
                    begun.elapsed()
                );
                // The server still holds its ends of them.
                let after = Resources {
                    descriptors: busy.descriptors - asked,
                    ..busy
                };
                after.assert_back();
                drop(loader);
                drop(server);
                before.assert_back();
            }
        }
    }

    /// Starts a server with a manifest of `keys` keys. Returns its URL, and the number of bytes
    /// that it has sent so far.
    fn long_manifest(keys: u64) -> (String, Arc<AtomicU64>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let sent = Arc::new(AtomicU64::new(0));
        let count = sent.clone();
        std::thread::spawn(move || {
            // The page of the folder, which there is not, and then the manifest.
            for socket in listener.incoming() {
                let mut lines = BufReader::new(socket.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n")
                    && lines.read_line(&mut head).is_ok_and(|read| read > 0)
                {}
                let mut out = BufWriter::new(lines.into_inner());
                if !head.starts_with("GET /index.txt ") {
                    let _ = out.write_all(
                        b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    );
                    continue;
                }
                let length = keys * 18;
                let _ = write!(
                    out,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                for n in 0..keys {
                    if writeln!(out, "train/{n:07}.jpg").is_err() {
                        return;
                    }
                    count.fetch_add(18, Ordering::Relaxed);
                }
                let _ = out.flush();
                return;
            }
        });
        (url, sent)
    }

    /// Row 66: the loader does not wait for the end of a listing, and does not store it.
    #[test]
    fn row_66_a_long_listing_starts_at_once_and_memory_is_flat() {
        const KEYS: u64 = 1_000_000;
        let _alone = alone();
        let (url, sent) = long_manifest(KEYS);
        let graph = stores::open(&url)
            .unwrap()
            .list_files("train/*.jpg")
            .map(|file| file.path)
            .batch(1000);
        let loader = DataLoader::builder(graph).workers(2).build().unwrap();
        let begun = Instant::now();
        let mut epoch = loader.epoch(0).blocking();
        let first = epoch.next().unwrap().unwrap();
        assert!(
            sent.load(Ordering::Relaxed) < KEYS * 18,
            "all of it was sent before the first was there"
        );
        assert_eq!(first[0].to_str(), Some("train/0000000.jpg"));
        let (mut next, mut before) = (first.len(), 0);
        for batch in epoch {
            // The first tenth fills what there is to fill. Keeping the rest would take a hundred
            // megabytes.
            if before == 0 && next as u64 >= KEYS / 10 {
                std::fs::write("/proc/self/clear_refs", "5").expect("the peak can be forgotten");
                before = peak_kb();
            }
            for path in batch.unwrap() {
                assert_eq!(path.to_str().unwrap()[6..13].parse(), Ok(next));
                next += 1;
            }
        }
        assert_eq!(next as u64, KEYS);
        let grown = peak_kb().saturating_sub(before);
        println!("{KEYS} keys in {:?}, and {grown} kB", begun.elapsed());
        assert!(grown < 16_000, "the peak grew by {grown} kB");
    }

    fn peak_kb() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}
