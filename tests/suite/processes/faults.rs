//! The fault matrix of child processes: a fault of a child costs only the items that cause it, and
//! these are named.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes::{DataLoader, Error, ErrorKind, Graph, OnError, Order, Processes};

use super::crimes::{Case, all_gone, case, children, decode, is_gone};
use super::skipping;

const ITEMS: u64 = 40;
/// The first two, which are neighbours, one in the middle, and the last.
const GUILTY: [u64; 4] = [0, 1, 20, ITEMS - 1];

fn graph(processes: &Processes, items: u64, case: &Case) -> Graph<u64> {
    Graph::range(0..items).in_processes_with(processes.clone(), case.clone(), decode)
}

/// Runs a graph that skips errors, and returns the errors of the guilty items. All other items must
/// be delivered once, in order.
pub fn convict(processes: &Processes, items: u64, case: &Case, order: Order) -> Vec<String> {
    let (crime, guilty, _) = case;
    let builder = DataLoader::builder(graph(processes, items, case)).order(order);
    let loader = builder.on_error(OnError::skip(items)).build().unwrap();
    let delivered: Result<Vec<u64>, Error> = loader.epoch(0).blocking().collect();
    let mut delivered = delivered.unwrap_or_else(|error| panic!("{crime}: {error}"));
    if order != Order::Strict {
        delivered.sort_unstable();
    }
    let innocent: Vec<u64> = (0..items)
        .filter(|n| !guilty.contains(n))
        .map(|n| n * 3)
        .collect();
    assert_eq!(delivered, innocent, "{crime}");
    let mut skipped = loader.stats().unwrap().skipped_items;
    skipped.sort_by_key(|bad| bad.item.as_ref().map(|origin| origin.index()));
    let named: Vec<String> = skipped
        .iter()
        .map(|bad| bad.item.clone().unwrap().to_string())
        .collect();
    assert_eq!(
        named,
        guilty.iter().map(|n| format!("0:{n}")).collect::<Vec<_>>(),
        "{crime}"
    );
    let stats = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap();
    assert_eq!(stats.crashed, guilty.len() as u64, "{crime}");
    let decode = loader
        .stats()
        .unwrap()
        .nodes
        .into_iter()
        .find(|node| node.name == "decode")
        .unwrap();
    let counted = (decode.items, decode.errors);
    assert_eq!(
        counted,
        (innocent.len() as u64, guilty.len() as u64),
        "{crime}: what is counted"
    );
    let started = children(&loader);
    drop(loader);
    all_gone(&started);
    for bad in &skipped {
        assert_eq!(
            (bad.kind, bad.node.as_str()),
            (ErrorKind::Crashed, "decode"),
            "{crime}"
        );
    }
    skipped.into_iter().map(|bad| bad.error).collect()
}

/// A crime under both policies, in one process and in three, by items that come one by one.
fn try_crime(crime: &str, processes: impl Fn(usize) -> Processes, how: &str) {
    let case = case(crime, &GUILTY, 300);
    for count in [1, 3] {
        let processes = processes(count);
        for (n, said) in GUILTY
            .iter()
            .zip(convict(&processes, ITEMS, &case, Order::Strict))
        {
            let words = format!("decode: 0:{n}: crashed: the process that worked on it {how}");
            assert!(said.starts_with(&words), "{said}");
            assert!(
                said.ends_with(&format!("it printed: about to {crime} at {n}")),
                "{said}"
            );
        }
        // Without a policy the epoch ends with the first; what came before it is delivered.
        for at in [0, 20] {
            let case = super::crimes::case(crime, &[at, at + 1], 300);
            let loader = DataLoader::builder(graph(&processes, ITEMS, &case))
                .build()
                .unwrap();
            let mut epoch = loader.epoch(0).blocking();
            let good: Vec<u64> = epoch.by_ref().map_while(Result::ok).collect();
            assert_eq!(good, (0..at).map(|n| n * 3).collect::<Vec<_>>(), "{crime}");
            assert!(epoch.next().is_none(), "{crime}: the epoch has ended");
            let known = children(&loader);
            drop((epoch, loader));
            all_gone(&known);
        }
    }
}

fn limited(count: usize) -> Processes {
    Processes::new(count).time_limit(Duration::from_millis(100))
}

#[test]
fn row_4_a_child_that_is_killed_costs_the_item_that_it_is_killed_at() {
    try_crime("kill", Processes::new, "ended by SIGKILL (signal 9)");
}

#[test]
fn row_5_a_segfault_costs_one_item() {
    try_crime("segfault", Processes::new, "ended by SIGSEGV (signal 11)");
    try_crime("overwrite", Processes::new, "ended by SIGSEGV (signal 11)");
}

#[test]
fn row_5_other_signals_cost_one_item_each() {
    try_crime("bus", Processes::new, "ended by SIGBUS (signal 7)");
    try_crime("ill", Processes::new, "ended by SIGILL (signal 4)");
    try_crime("abort", Processes::new, "ended by SIGABRT (signal 6)");
}

#[test]
fn row_6_an_exit_without_a_word_costs_one_item() {
    try_crime("exit 0", Processes::new, "exited without a word (code 0)");
    try_crime("exit 3", Processes::new, "exited with code 3");
}

#[test]
fn row_8_and_18_what_takes_too_long_costs_one_item() {
    try_crime("loop", limited, "gave no answer within 100ms");
    try_crime("sleep", limited, "gave no answer within 100ms");
}

#[test]
fn row_8_a_child_that_prints_for_ever_is_ended_by_its_time_limit_too() {
    for said in convict(
        &limited(2),
        10,
        &case("print for ever", &[3], 0),
        Order::Strict,
    ) {
        assert!(
            said.starts_with("decode: 0:3: crashed: the process that worked on it gave no answer"),
            "{said}"
        );
        assert!(said.contains("and so on"), "{said}");
    }
}

#[test]
fn row_9_a_child_that_is_stopped_is_one_that_takes_too_long() {
    try_crime("stop", limited, "gave no answer within 100ms");
}

#[test]
fn row_9_a_child_that_is_stopped_for_less_than_that_is_late_and_nothing_else() {
    let processes = Processes::new(2).time_limit(Duration::from_secs(60));
    let loader = DataLoader::builder(graph(&processes, 400, &case("", &[], 100)))
        .build()
        .unwrap();
    let over = AtomicBool::new(false);
    let all: Vec<u64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for child in children(&loader) {
                    for signal in [libc::SIGSTOP, libc::SIGCONT] {
                        // SAFETY: a signal to a child of this process.
                        unsafe { libc::kill(child as i32, signal) };
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            }
        });
        let all = loader.epoch(0).blocking().collect::<Result<_, _>>();
        over.store(true, Ordering::Relaxed);
        all.unwrap()
    });
    assert_eq!(all, (0..400).map(|n| n * 3).collect::<Vec<_>>());
    let stats = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap();
    assert_eq!(
        (stats.started, stats.died, stats.crashed),
        (2, 0, 0),
        "{stats:?}"
    );
}

#[test]
fn row_20_a_stack_overflow_costs_one_item() {
    try_crime("overflow", Processes::new, "ended by SIG");
}

#[test]
fn row_7_an_allocation_beyond_the_limit_costs_one_item() {
    // Without the variable that asks for a trace, which would be the last words.
    let processes = |count| Processes::new(count).memory(128 << 20).only_env(["PATH"]);
    for said in convict(
        &processes(2),
        ITEMS,
        &case("allocate", &GUILTY, 300),
        Order::Strict,
    ) {
        assert!(
            said.contains("ended by SIGABRT (signal 6); it printed: about to allocate"),
            "{said}"
        );
        assert!(
            said.contains("| memory allocation of 1073741824 bytes failed"),
            "{said}"
        );
    }
}

#[test]
fn row_7_a_leak_costs_children_and_no_item() {
    fn leak(numbers: Graph<u64>) -> Graph<u64> {
        numbers.map(|n| {
            std::hint::black_box(vec![1u8; 512 << 10]).leak();
            super::crimes::work(10_000);
            n
        })
    }
    let processes = Processes::new(2).memory(64 << 20);
    let loader = DataLoader::builder(Graph::range(0..280).in_processes(processes, leak))
        .build()
        .unwrap();
    let all: Vec<u64> = loader
        .epoch(0)
        .blocking()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(all, (0..280).collect::<Vec<_>>());
    let stats = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap();
    assert!(stats.replaced >= 2, "{stats:?}");
    assert_eq!((stats.died, stats.crashed), (0, 0), "{stats:?}");
}

#[test]
fn row_1_a_panic_in_a_child_is_an_error_as_on_threads_and_costs_no_process() {
    for count in [1, 3] {
        for at in GUILTY {
            // Without the variable that asks for a trace, which takes its time.
            let processes = Processes::new(count).only_env(["PATH"]);
            let graph = graph(&processes, ITEMS, &case("panic", &[at], 300));
            let loader = DataLoader::builder(graph)
                .on_error(OnError::skip(10))
                .build()
                .unwrap();
            for epoch in 0..2 {
                let mut epoch = loader.epoch(epoch).blocking();
                let good: Vec<u64> = epoch
                    .by_ref()
                    .take(at as usize)
                    .collect::<Result<_, _>>()
                    .unwrap();
                assert_eq!(good.len() as u64, at);
                let error = epoch.next().unwrap().unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!("decode: 0:{at}: panicked: it is {at}")
                );
                assert!(epoch.next().is_none());
            }
            let stats = loader.stats().unwrap().segments[0]
                .processes
                .clone()
                .unwrap();
            assert_eq!((stats.died, stats.started), (0, count as u64), "{stats:?}");
        }
    }
}

#[test]
fn row_10_what_nobody_can_read_costs_one_item() {
    for crime in ["junk", "cut", "huge"] {
        try_crime(crime, Processes::new, "sent what nobody can read: ");
    }
}

#[test]
fn row_10_a_child_that_closes_its_queues_costs_one_item_at_most() {
    for crime in ["close", "shut", "empty"] {
        for count in [1, 3] {
            let graph = graph(&count.into(), ITEMS, &case(crime, &GUILTY, 300));
            let (loader, delivered) = skipping(graph, ITEMS);
            let skipped = loader.stats().unwrap().skipped_items;
            let lost: Vec<u64> = skipped
                .iter()
                .map(|bad| bad.item.as_ref().unwrap().index())
                .collect();
            let rest: Vec<u64> = (0..ITEMS)
                .filter(|n| !lost.contains(n))
                .map(|n| n * 3)
                .collect();
            assert_eq!(delivered, rest, "{crime}");
            assert_eq!(lost, GUILTY, "{crime}");
            // One that works on is ended by its parent, or by itself where its own watch is what it
            // has closed; the others end since nobody seems to be there any more.
            for bad in skipped.iter().filter(|_| crime == "close") {
                let closed = "the process that worked on it closed its queue, and was ended; it printed: about to";
                assert!(
                    bad.error.contains(closed) || bad.error.contains("SIGKILL"),
                    "{}",
                    bad.error
                );
            }
        }
    }
}

#[test]
fn row_11_what_a_child_prints_is_not_in_the_way_of_what_it_sends() {
    let print = case("print", &[0, 7, ITEMS - 1], 0);
    for count in [1, 3] {
        let loader = DataLoader::builder(graph(&Processes::new(count), ITEMS, &print))
            .build()
            .unwrap();
        let all: Vec<u64> = loader
            .epoch(0)
            .blocking()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(all, (0..ITEMS).map(|n| n * 3).collect::<Vec<_>>());
    }
    let said = convict(
        &Processes::new(2),
        ITEMS,
        &case("print and end", &[5], 0),
        Order::Strict,
    );
    assert!(said[0].contains("exited with code 3"), "{}", said[0]);
    assert!(
        said[0].contains("so long, and thanks for item 5"),
        "{}",
        said[0]
    );
    assert!(said[0].len() < 10_000 && !said[0].contains(char::is_control));
}

#[test]
fn row_12_what_a_child_starts_ends_with_it() {
    // The guilty item says which process it started; the next item ends its child, or the loader
    // does.
    for end in [Some("kill"), Some("exit 0"), Some("segfault"), None] {
        fn part(numbers: Graph<u64>, end: &Option<String>) -> Graph<u64> {
            let end = end.clone();
            numbers.map(move |n| match (n, &end) {
                (0, _) => super::crimes::commit("grandchild", n),
                (5, Some(end)) => super::crimes::commit(end, n),
                _ => n,
            })
        }
        let end = end.map(str::to_owned);
        let graph = Graph::range(0..10).in_processes_with(1, end.clone(), part);
        let (loader, all) = skipping(graph, 1);
        let grandchild = all[0] as u32;
        match end {
            Some(end) => {
                assert_eq!(all[1..], [1, 2, 3, 4, 6, 7, 8, 9], "{end}");
                all_gone(&[grandchild]);
            }
            None => {
                assert!(!is_gone(grandchild));
                drop(loader);
                all_gone(&[grandchild]);
            }
        }
    }
}

#[test]
fn row_4_children_that_are_killed_from_outside_while_they_are_idle_cost_nothing() {
    let loader = DataLoader::builder(graph(&2.into(), ITEMS, &case("", &[], 300)))
        .build()
        .unwrap();
    for epoch in 0..6 {
        let all: Vec<u64> = loader
            .epoch(epoch)
            .blocking()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(all.len() as u64, ITEMS);
        let known = children(&loader);
        for &child in &known {
            // SAFETY: ends a child of this process.
            unsafe {
                libc::kill(
                    child as i32,
                    [libc::SIGKILL, libc::SIGTERM][epoch as usize % 2],
                )
            };
        }
        all_gone(&known);
    }
    let stats = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap();
    assert_eq!(stats.crashed, 0, "{stats:?}");
    assert!(stats.died >= 10, "{stats:?}");
}

#[test]
fn row_5_items_that_all_kill_are_all_named() {
    let all: Vec<u64> = (0..24).collect();
    for (count, micros) in [(1, 0), (3, 300), (20, 300)] {
        let said = convict(
            &Processes::new(count),
            24,
            &case("abort", &all, micros),
            Order::Strict,
        );
        assert_eq!(said.len(), 24);
    }
}

#[test]
fn row_5_one_restart_is_enough_to_know_who_was_guilty() {
    for count in [1, 3] {
        let processes = Processes::new(count).restarts(1);
        convict(
            &processes,
            ITEMS,
            &case("segfault", &GUILTY, 300),
            Order::Strict,
        );
    }
}

#[test]
fn row_15_children_that_end_before_they_do_anything_end_the_epoch() {
    fn part(numbers: Graph<u64>, parent: &u32) -> Graph<u64> {
        if std::process::id() != *parent {
            eprintln!("no such library");
            std::process::exit(7);
        }
        numbers.map(|n| n)
    }
    for (processes, most) in [
        (Processes::new(1), 17),
        (Processes::new(3), 19),
        (Processes::new(2).restarts(0), 1),
    ] {
        let graph = Graph::range(0..10)
            .in_processes_with(processes, std::process::id(), part)
            .named("decode");
        let loader = DataLoader::builder(graph)
            .on_error(OnError::skip(100))
            .build()
            .unwrap();
        for epoch in 0..2 {
            let begun = Instant::now();
            let results: Vec<_> = loader.epoch(epoch).blocking().collect();
            assert_eq!(results.len(), 1);
            let error = results[0].as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Worker);
            let said = error.to_string();
            assert!(
                said.starts_with(&format!("decode: no child process: {most} process"))
                    && said.contains("code 7"),
                "{said}"
            );
            assert!(said.ends_with("it printed: no such library"), "{said}");
            println!(
                "{most} starts, and the end of the epoch: {:?}",
                begun.elapsed()
            );
        }
    }
}

#[test]
fn row_5_a_crash_costs_the_epoch_little_time() {
    let run = |guilty: &[u64]| {
        let graph = graph(&2.into(), 200, &case("segfault", guilty, 300));
        let loader = DataLoader::builder(graph)
            .on_error(OnError::skip(100))
            .build()
            .unwrap();
        assert!(loader.epoch(0).blocking().all(|item| item.is_ok()));
        let begun = Instant::now();
        assert_eq!(loader.epoch(1).blocking().count(), 200 - guilty.len());
        begun.elapsed()
    };
    let (without, with) = (run(&[]), run(&[20, 40, 80, 100, 140, 160, 180]));
    let each = with.saturating_sub(without) / 7;
    println!("200 items {without:?}; with 7 guilty ones {with:?}: {each:?} each");
}
