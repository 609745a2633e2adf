//! The start of children: the time of the start, the work that waits for it, and failures to start
//! a thread or process.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes::{DataLoader, ErrorKind, Graph, OnError, Processes};

use super::crimes::{all_gone, case, children, decode, is_gone, soon, work};
use super::gates::{Gate, pass};
use super::parents::{succeeds, this_test};
use super::pids;

fn all<T: Send + 'static>(loader: &DataLoader<T>, epoch: u64) -> Vec<T> {
    loader.epoch(epoch).blocking().map(Result::unwrap).collect()
}

/// Loader of numbers with two children that run `part`. The settings are the number of this
/// process, by which `part` knows if it runs in a child, and a folder.
fn in_children(folder: &tempfile::TempDir, items: u64, part: Part) -> DataLoader<u64> {
    let settings = (
        std::process::id(),
        folder.path().to_str().unwrap().to_owned(),
    );
    DataLoader::builder(Graph::range(0..items).in_processes_with(2, settings, part))
        .build()
        .unwrap()
}

type Settings = (u32, String);
type Part = fn(Graph<u64>, &Settings) -> Graph<u64>;

/// Processes whose title begins so.
fn titled(title: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap();
    let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is = |process: &u32| {
        std::fs::read(format!("/proc/{process}/cmdline"))
            .is_ok_and(|line| line.starts_with(title.as_bytes()))
    };
    all.filter(is).collect()
}

#[test]
fn children_start_with_the_first_poll_and_not_before() {
    let name = format!("lazy_{}", std::process::id());
    let part = |numbers: Graph<u64>, name: &String| numbers.map(|n| n).named(name);
    let graph = Graph::range(0..20).in_processes_with(2, name.clone(), part);
    let loader = DataLoader::builder(graph).build().unwrap();
    assert!(loader.explain().contains("2 processes"));
    let mut epoch = loader.epoch(0).blocking();
    assert_eq!(titled(&name), [0; 0]);
    assert!(epoch.next().is_some());
    assert!(!titled(&name).is_empty());
    assert_eq!(epoch.count(), 19);
}

/// The first child to come to its part stands at a gate; what the other makes comes all the same.
#[test]
fn a_child_that_starts_slowly_does_not_keep_the_first_items_back() {
    fn part(numbers: Graph<u64>, (parent, folder): &Settings) -> Graph<u64> {
        let folder = PathBuf::from(folder);
        if std::process::id() != *parent && std::fs::remove_file(folder.join("first")).is_ok() {
            pass(&folder.join("gate"));
        }
        numbers.map(|n| n * 2)
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("first"), b"").unwrap();
    let gate = Gate::new(folder.path().join("gate"));
    let loader = in_children(&folder, 20_000, part);
    let (over, in_time) = (AtomicBool::new(false), AtomicBool::new(true));
    std::thread::scope(|scope| {
        // If nothing came the test would not end.
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !over.load(Ordering::SeqCst) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            in_time.store(over.load(Ordering::SeqCst), Ordering::SeqCst);
            gate.wait_for_one();
            gate.open();
        });
        let mut epoch = loader.epoch(0).blocking();
        let some: Vec<u64> = epoch.by_ref().take(100).map(Result::unwrap).collect();
        over.store(true, Ordering::SeqCst);
        let rest: Vec<u64> = epoch.map(Result::unwrap).collect();
        assert!(
            [some, rest]
                .concat()
                .into_iter()
                .eq((0..20_000).map(|n| n * 2))
        );
    });
    assert!(
        in_time.into_inner(),
        "the first items came with the last child"
    );
}

/// Two gates, one for each: both stand there at the same time.
#[test]
fn children_start_side_by_side() {
    fn part(numbers: Graph<u64>, (parent, folder): &Settings) -> Graph<u64> {
        let folder = PathBuf::from(folder);
        if std::process::id() != *parent {
            let first = std::fs::remove_file(folder.join("first")).is_ok();
            pass(&folder.join(if first { "one" } else { "other" }));
        }
        numbers.map(|n| n * 2)
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("first"), b"").unwrap();
    let gates = ["one", "other"].map(|name| Gate::new(folder.path().join(name)));
    let loader = in_children(&folder, 500, part);
    let seen = std::thread::scope(|scope| {
        let seen = scope.spawn(|| all(&loader, 0));
        let both = std::panic::catch_unwind(|| gates.iter().for_each(Gate::wait_for_one));
        gates.into_iter().for_each(Gate::open);
        both.expect("both have been started before either was ready");
        seen.join().unwrap()
    });
    assert!(seen.into_iter().eq((0..500).map(|n| n * 2)));
}

/// Far from what it takes, so that only an epoch that waits for something in vain fails.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn row_5_an_epoch_goes_on_soon_after_a_crash() {
    fn part(numbers: Graph<u64>) -> Graph<u64> {
        numbers.map(|n| {
            work(300);
            n
        })
    }
    for count in [1, 2] {
        // The best of three, for a machine that is busy with something else.
        let tries = (0..3).map(|_| {
            let loader = DataLoader::builder(Graph::range(0..400).in_processes(count, part))
                .build()
                .unwrap();
            let mut epoch = loader.epoch(0).blocking();
            let mut seen: Vec<u64> = epoch.by_ref().take(5).map(Result::unwrap).collect();
            let known = pids(&loader);
            for &child in &known {
                // SAFETY: ends a child of this process.
                unsafe { libc::kill(child as i32, libc::SIGKILL) };
            }
            all_gone(&known);
            let begun = Instant::now();
            seen.extend(epoch.map(Result::unwrap));
            let took = begun.elapsed();
            assert!(seen.into_iter().eq(0..400));
            took
        });
        let best = tries.min().unwrap();
        assert!(best < SOON, "{count} processes: {best:?}");
    }
}

const ROLE: &str = "DATAPIPES_TEST_STARTING";

/// Runs a test of this file in a process of its own, to its end.
fn limited_succeeds(role: &str) {
    let mut command = this_test("processes::starting::a_limited_process");
    command.env(ROLE, role);
    let printed = succeeds(command);
    assert!(!printed.contains("panicked"), "{printed}");
}

#[test]
fn row_19_threads_that_cannot_be_started_are_an_error_and_nothing_is_left() {
    limited_succeeds("threads");
}

#[test]
fn row_19_processes_that_cannot_be_started_are_an_error_and_nothing_is_left() {
    limited_succeeds("processes");
}

#[test]
fn row_19_what_runs_already_goes_on_where_nothing_more_can_be_started() {
    limited_succeeds("later");
}

#[test]
#[ignore = "what other tests start"]
fn a_limited_process() {
    let role = std::env::var(ROLE);
    let Ok(role) = role.as_deref() else { return };
    let alone = become_somebody();
    limit(Some(0));
    if std::thread::Builder::new().spawn(|| ()).is_ok() {
        println!("row 19: no limit of processes holds for this user, so that nothing was tried");
        return;
    }
    limit(None);
    // If the user has other processes, too, their number is not known.
    let free = if alone { 0..14 } else { 0..1 };
    match role {
        "threads" => threads(free),
        "processes" => processes(free),
        _ => later(),
    }
}

/// Makes this process that of a user who has no other, if it may.
fn become_somebody() -> bool {
    let user = 40_000 + std::process::id() % 20_000;
    // SAFETY: plain numbers. What a process that changed its user has is for the superuser alone
    // until it says otherwise; its children have to look for the executable there.
    unsafe { libc::setresuid(user, user, user) == 0 && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0 }
}

fn tasks() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Limits the number of threads and processes of the user, who has no others, to the present number
/// and `free` more. `None` removes the limit.
fn limit(free: Option<usize>) {
    // SAFETY: plain data for a limit of this process; the hard one stays.
    unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NPROC, &mut limit), 0);
        let most = free.map_or(limit.rlim_max, |free| (tasks() + free) as u64);
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &limit), 0);
    }
}

/// Checks the error of a process or thread that could not be started. No policy skips it.
fn check(error: &datapipes::Error, free: usize) {
    let kinds = [ErrorKind::Io, ErrorKind::Worker];
    let said = error.to_string();
    assert!(kinds.contains(&error.kind()), "{free} free: {said}");
    assert!(
        said.contains("Resource temporarily unavailable"),
        "{free} free: {said}"
    );
}

fn threads(free: std::ops::Range<usize>) {
    let graph = || {
        let read = Graph::range(0..300).map_async(|n| async move { datapipes::Ok(n + 1) });
        read.map(|n| n * 2)
            .shuffle(20)
            .map(|n| n + 1)
            .prefetch(3)
            .batch(7)
    };
    let before = tasks();
    let whole = graph().collect().unwrap();
    soon("this process has the threads that it had", || {
        tasks() == before
    });
    let (mut refused, all_free) = (BTreeSet::new(), free.clone());
    for (free, policy) in
        free.flat_map(|free| [(free, OnError::fail()), (free, OnError::skip(100))])
    {
        let loader = DataLoader::builder(graph())
            .workers(3)
            .on_error(policy)
            .build()
            .unwrap();
        limit(Some(free));
        let mut results: Vec<_> = loader.epoch(0).blocking().collect();
        limit(None);
        match results.pop_if(|last| last.is_err()) {
            Some(error) => {
                check(&error.unwrap_err(), free);
                refused.insert(free);
            }
            None => assert_eq!(
                results.len(),
                whole.len(),
                "{free} free: it ends early, and says nothing"
            ),
        }
        let good: Vec<_> = results.into_iter().map(Result::unwrap).collect();
        assert_eq!(good, whole[..good.len()], "{free} free");
        let skipped = loader.stats().map_or(0, |stats| stats.skipped);
        assert_eq!(skipped, 0, "{free} free");
        assert_eq!(all(&loader, 0), whole, "{free} free: it works again");
        drop(loader);
        soon("no thread is left", || tasks() == before);
    }
    println!("row 19: threads, refused with {refused:?} of {all_free:?} free");
    assert!(
        refused.contains(&0) && !refused.contains(&13),
        "{refused:?}"
    );
}

fn processes(free: std::ops::Range<usize>) {
    let before = tasks();
    let (mut refused, all_free) = (BTreeSet::new(), free.clone());
    for free in free {
        let processes = Processes::new(2).restarts(2);
        let graph = Graph::range(0..40).in_processes_with(processes, case("", &[], 100), decode);
        let loader = DataLoader::builder(graph)
            .on_error(OnError::skip(100))
            .build()
            .unwrap();
        limit(Some(free));
        let mut results: Vec<_> = loader.epoch(0).blocking().collect();
        limit(None);
        match results.pop_if(|last| last.is_err()) {
            Some(error) => {
                check(&error.unwrap_err(), free);
                refused.insert(free);
            }
            None => assert_eq!(results.len(), 40, "{free} free"),
        }
        let good = results.into_iter().map(Result::unwrap);
        assert!(good.zip(0..).all(|(is, n)| is == n * 3), "{free} free");
        let skipped = loader.stats().map_or(0, |stats| stats.skipped);
        assert_eq!(skipped, 0, "{free} free");
        assert_eq!(
            all(&loader, 0),
            Vec::from_iter((0..40).map(|n| n * 3)),
            "{free} free: it works again"
        );
        let known = children(&loader);
        drop(loader);
        assert!(known.iter().all(|&child| is_gone(child)));
        soon("no thread is left", || tasks() == before);
    }
    println!("row 19: processes, refused with {refused:?} of {all_free:?} free");
    assert!(
        refused.contains(&0) && !refused.contains(&13),
        "{refused:?}"
    );
}

fn later() {
    // Threads that run, while nothing can be added to them.
    let graph = || {
        Graph::range(0..3000)
            .map(|n| n * 2)
            .shuffle(20)
            .map(|n| n + 1)
            .batch(7)
    };
    let whole = graph().collect().unwrap();
    let loader = DataLoader::builder(graph())
        .workers(2)
        .prefetch(0)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    let mut seen: Vec<_> = epoch.by_ref().take(50).map(Result::unwrap).collect();
    limit(Some(0));
    seen.extend(epoch.map(Result::unwrap));
    assert_eq!(seen, whole);
    limit(None);

    // A child that ends, and has no successor as long as the limit is there.
    let processes = Processes::new(1).restarts(2);
    let graph = Graph::range(0..3000).in_processes_with(processes, case("", &[], 30), decode);
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(100))
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    let mut seen: Vec<u64> = epoch.by_ref().take(5).map(Result::unwrap).collect();
    let known = children(&loader);
    limit(Some(0));
    // SAFETY: ends a child of this process.
    known
        .iter()
        .for_each(|&child| unsafe { _ = libc::kill(child as i32, libc::SIGKILL) });
    let error = epoch
        .by_ref()
        .find_map(|item| item.map(|n| seen.push(n)).err())
        .expect("it ends in an error");
    check(&error, 0);
    assert_eq!(error.kind(), ErrorKind::Worker);
    assert!(epoch.next().is_none());
    assert!(seen.iter().zip(0..).all(|(&is, n)| is == n * 3));
    all_gone(&known);
    limit(None);
    assert!(
        all(&loader, 1).into_iter().eq((0..3000).map(|n| n * 3)),
        "it works again"
    );
}
