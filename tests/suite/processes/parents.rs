//! Children whose parent ends, is killed or is stopped. The parent is a process of its own: this
//! executable, asked for the test `a_parent`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datapipes::{DataLoader, ErrorKind, Graph, OnError, Processes};

use super::crimes::{all_gone, case, children, commit, decode, is_gone, soon, work};
use super::skipping;

const VARIABLE: &str = "DATAPIPES_TEST_PARENT";
const MARK: &str = "DATAPIPES_TEST_MARK";

/// Command of this executable asked for a test that does nothing on its own.
pub fn this_test(name: &str) -> Command {
    test_of(&std::env::current_exe().unwrap(), name)
}

/// Command of this executable, or a copy of it, asked for a test that does nothing on its own.
fn test_of(executable: &std::path::Path, name: &str) -> Command {
    let mut command = Command::new(executable);
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

fn parent(role: &str) -> Command {
    parent_by(&std::env::current_exe().unwrap(), role)
}

fn parent_by(executable: &std::path::Path, role: &str) -> Command {
    let mut command = test_of(executable, "processes::parents::a_parent");
    command.env(VARIABLE, role);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Starts a parent, and waits until it says which processes it and its children have started.
fn started(role: &str) -> (Child, Vec<u32>) {
    let mut process = parent(role).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let line = lines.find_map(|line| {
        line.split_once("started: ")
            .map(|(_, numbers)| numbers.to_owned())
    });
    let numbers = line
        .expect("it says so")
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    (process, numbers)
}

/// Runs a test in a process of its own to its end, which has to be a good one, and prints what it
/// says about a row.
pub fn succeeds(mut command: Command) -> String {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{output:?}"
    );
    said.lines()
        .filter(|line| line.contains("row "))
        .for_each(|line| println!("{line}"));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "what other tests start"]
fn a_parent() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: what a terminal's program does with them; who started the tests may have them
        // ignored.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    match std::env::var(VARIABLE).as_deref() {
        Ok("nofile") => cannot_start(),
        Ok("fsize") => no_shared_memory(),
        Ok("replaced") => replaced(),
        Ok("log") => floods_the_log(),
        Ok(role) => tell_and_wait(role),
        Err(_) => {}
    }
}

/// Starts children that do as `role` says, says who they are, and waits for its end.
fn tell_and_wait(role: &str) {
    fn part(numbers: Graph<u64>, role: &String) -> Graph<u64> {
        let role = role.clone();
        numbers.map(move |n| {
            match (role.as_str(), n) {
                ("grandchildren", 0..4) => return commit("grandchild", n),
                ("crashing", 10..) => _ = commit("segfault", n),
                ("spinning", 100..) => loop {
                    std::hint::spin_loop();
                },
                _ => work(200),
            }
            0
        })
    }
    let graph = Graph::range(0..10_000_000).in_processes_with(2, role.to_owned(), part);
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(u64::MAX))
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    let mut known: Vec<u64> = epoch
        .by_ref()
        .take(20)
        .map(Result::unwrap)
        .filter(|&n| n > 0)
        .collect();
    known.extend(children(&loader).into_iter().map(u64::from));
    if role == "stopped" {
        for &child in &known {
            // SAFETY: stops a child of this process.
            unsafe { libc::kill(child as i32, libc::SIGSTOP) };
        }
    }
    // Whoever reads this ends this process, at once or a little later.
    let idle = role == "idle";
    if idle {
        drop(epoch);
        epoch = loader.epoch(1).blocking();
    }
    let known: Vec<String> = known.iter().map(u64::to_string).collect();
    println!("started: {}", known.join(" "));
    if role == "leaves" {
        std::process::exit(0);
    }
    while !idle && epoch.next().is_some() {}
    loop {
        std::thread::park();
    }
}

#[test]
fn row_13_children_and_theirs_end_with_a_parent_that_is_killed() {
    for role in ["busy", "idle", "spinning", "stopped", "grandchildren"] {
        let (mut parent, known) = started(role);
        assert!(known.len() >= 2, "{role}: {known:?}");
        parent.kill().unwrap();
        parent.wait().unwrap();
        all_gone(&known);
    }
}

/// At any moment: also while children are starting, and do not watch yet.
#[test]
fn row_13_children_end_with_a_parent_that_is_killed_whenever() {
    for (place, role) in ["busy", "grandchildren", "stopped", "spinning", "crashing"]
        .iter()
        .cycle()
        .take(25)
        .enumerate()
    {
        let mark = format!("{}-{place}", std::process::id());
        let mut parent = parent(role)
            .env(MARK, &mark)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        soon("a first child", || marked(&mark).len() > 1);
        std::thread::sleep(Duration::from_micros(place as u64 * 1500));
        parent.kill().unwrap();
        parent.wait().unwrap();
        soon(role, || marked(&mark).is_empty());
    }
}

/// The processes, of any generation, that began with this mark and run.
fn marked(mark: &str) -> Vec<u32> {
    let mark = format!("{MARK}={mark}\0");
    let all = std::fs::read_dir("/proc").unwrap();
    let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_marked = |process: &u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment
            .windows(mark.len())
            .any(|part| part == mark.as_bytes())
    };
    all.filter(|process| is_marked(process) && !is_gone(*process))
        .collect()
}

#[test]
fn row_14_children_end_with_a_parent_that_is_interrupted_or_leaves() {
    for (role, signal) in [
        ("busy", libc::SIGINT),
        ("spinning", libc::SIGTERM),
        ("grandchildren", libc::SIGINT),
    ] {
        let (mut parent, known) = started(role);
        // SAFETY: a signal to a process that was not waited for.
        unsafe { libc::kill(parent.id() as i32, signal) };
        assert_eq!(parent.wait().unwrap().signal(), Some(signal));
        all_gone(&known);
    }
    let (mut parent, known) = started("leaves");
    assert_eq!(parent.wait().unwrap(), ExitStatus::from_raw(0));
    all_gone(&known);
}

/// Children are in groups of their own: what a terminal sends to the group of its parent does not
/// reach them.
#[test]
fn row_14_what_is_sent_to_the_parents_group_is_the_parents_business() {
    let loader =
        DataLoader::builder(Graph::range(0..50).in_processes_with(2, case("", &[], 200), decode));
    let loader = loader.build().unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 50);
    for child in children(&loader) {
        // SAFETY: asks for the group of a process.
        let group = unsafe { libc::getpgid(child as i32) };
        assert_eq!(group, child as i32);
    }
}

fn set_limit(resource: libc::__rlimit_resource_t, to: u64) {
    // SAFETY: plain data for a limit of this process; the hard one stays.
    unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        assert_eq!(libc::getrlimit(resource, &mut limit), 0);
        limit.rlim_cur = to.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(resource, &limit), 0);
    }
}

fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1
}

#[test]
fn row_15_children_that_cannot_be_started_are_an_error_and_nothing_is_left() {
    succeeds(parent("nofile"));
}

fn cannot_start() {
    let (before, most) = (descriptors(), 1000);
    let run = |loader: &DataLoader<u64>, free: u64| {
        set_limit(libc::RLIMIT_NOFILE, before + free);
        let results: Vec<_> = loader.epoch(0).blocking().collect();
        set_limit(libc::RLIMIT_NOFILE, most);
        results
    };
    set_limit(libc::RLIMIT_NOFILE, most);
    let mut refused = 0;
    for free in 0..40 {
        let graph = Graph::range(0..20).in_processes_with(2, case("", &[], 200), decode);
        let loader = DataLoader::builder(graph)
            .on_error(OnError::skip(100))
            .build()
            .unwrap();
        let results = run(&loader, free);
        if let Some(Err(error)) = results.last() {
            refused += 1;
            // Without any, the threads' own runtime cannot start either.
            let kind = if error.to_string().contains("async runtime") {
                ErrorKind::Io
            } else {
                ErrorKind::Worker
            };
            assert_eq!(
                (error.kind(), results.len()),
                (kind, 1),
                "{free} free: {error}"
            );
            let said = error.to_string();
            assert!(
                said.contains("Too many open files") || said.contains("RLIMIT_NOFILE"),
                "{free} free: {said}"
            );
        } else {
            // One child may be enough.
            assert_eq!(results.len(), 20, "{free} free");
        }
        assert_eq!(
            run(&loader, 100).into_iter().map(Result::unwrap).count(),
            20,
            "it works again"
        );
        drop(loader);
        soon("no descriptor is left", || descriptors() == before);
    }
    assert!((5..35).contains(&refused), "{refused}");
}

#[test]
fn row_17_shared_memory_that_cannot_be_had_is_an_error_with_the_number() {
    succeeds(parent("fsize"));
}

fn no_shared_memory() {
    fn grow(numbers: Graph<u64>, large: &Vec<u64>) -> Graph<Vec<u8>> {
        let large = large.clone();
        numbers
            .map(move |n| vec![n as u8; if large.contains(&n) { 1 << 20 } else { 100 }])
            .named("grow")
    }
    fn shrink(items: Graph<Vec<u8>>) -> Graph<u64> {
        items.map(|item| item.len() as u64).named("shrink")
    }
    set_limit(libc::RLIMIT_FSIZE, 256 << 10);
    // Out of a child.
    let graph = Graph::range(0..200).in_processes_with(2, vec![5, 6, 150], grow);
    let (loader, all) = skipping(graph, 10);
    let good = (0..200u8).filter(|n| ![5, 6, 150].contains(n));
    assert!(good.eq(all.iter().map(|item| item[99])));
    let said: Vec<String> = loader
        .stats()
        .unwrap()
        .skipped_items
        .into_iter()
        .map(|bad| bad.error)
        .collect();
    for (said, n) in said.iter().zip([5, 6, 150]) {
        let words = format!(
            "grow: 0:{n}: limit reached: 1048576 bytes of shared memory: files may have 262144 bytes"
        );
        assert!(said.starts_with(&words), "{said}");
    }
    assert_eq!(said.len(), 3);
    let stats = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap();
    assert_eq!(stats.died, 0, "that is no reason to end: {stats:?}");
    // Into a child.
    let items: Vec<Vec<u8>> = (0..50)
        .map(|n| vec![0; if n == 7 { 1 << 20 } else { n }])
        .collect();
    let graph = Graph::from_vec(items).in_processes(2, shrink);
    let (loader, all) = skipping(graph, 10);
    assert!(
        all.iter().copied().eq((0..50).filter(|&n| n != 7)),
        "{all:?}"
    );
    let said = &loader.stats().unwrap().skipped_items[0].error;
    assert!(
        said.starts_with("shrink: 0:7: ") && said.contains("1048576 bytes of shared memory"),
        "{said}"
    );
    // And not even enough to begin with.
    set_limit(libc::RLIMIT_FSIZE, 1000);
    let graph = Graph::range(0..9).in_processes_with(2, Vec::new(), grow);
    let error = DataLoader::builder(graph)
        .build()
        .unwrap()
        .epoch(0)
        .blocking()
        .next()
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Worker);
    assert!(
        error.to_string().contains("bytes of shared memory"),
        "{error}"
    );
    set_limit(libc::RLIMIT_FSIZE, u64::MAX);
}

#[test]
fn row_16_children_are_what_their_parent_is_even_if_its_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("suite");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    succeeds(parent_by(&copy, "replaced"));
}

/// Lets its own file become one that fails, while its children end and are started again.
fn replaced() {
    let (guilty, mut seen) = ([10, 11, 30], 0);
    let graph = Graph::range(0..40).in_processes_with(
        Processes::new(2),
        case("kill", &guilty, 200),
        decode,
    );
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(3))
        .build()
        .unwrap();
    let this = std::env::current_exe().unwrap();
    let other = this.with_extension("new");
    std::fs::write(&other, "#!/bin/sh\nexit 77\n").unwrap();
    std::fs::rename(other, &this).unwrap();
    for item in loader.epoch(0).blocking() {
        item.unwrap();
        seen += 1;
    }
    assert_eq!(seen, 37);
    assert!(children(&loader).iter().all(|&child| !is_gone(child)));
}

#[test]
fn row_11_a_child_that_writes_to_its_log_without_end_goes_on_with_its_work() {
    succeeds(parent("log"));
}

fn floods_the_log() {
    struct Count(Arc<AtomicU64>);
    impl tracing::Subscriber for Count {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.is_event()
        }
        fn event(&self, event: &tracing::Event<'_>) {
            let from_a_child = event.metadata().target() == "datapipes::child";
            self.0.fetch_add(from_a_child.into(), Ordering::Relaxed);
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    fn part(numbers: Graph<u64>, parent: &u32) -> Graph<u64> {
        if std::process::id() != *parent {
            for _ in 0..2 {
                std::thread::spawn(|| {
                    loop {
                        tracing::info!("on and on");
                    }
                });
            }
        }
        numbers.map(|n| n)
    }
    let count = Arc::new(AtomicU64::new(0));
    tracing::subscriber::set_global_default(Count(count.clone())).unwrap();
    let graph = Graph::range(0..1000).in_processes_with(1, std::process::id(), part);
    let loader = DataLoader::builder(graph).build().unwrap();
    assert_eq!(loader.epoch(0).blocking().map(Result::unwrap).count(), 1000);
    assert!(count.load(Ordering::Relaxed) > 0);
}
