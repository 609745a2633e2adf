//! The placement of parts: refused graphs, the printed plan, and the children of each epoch.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use datapipes::testing::set_active_processes;
use datapipes::{
    Arity, Context, Crossing, DataLoader, Error, ErrorKind, Graph, Hints, Items, Order, Pipe,
    Processes, Reader, Result, Wire, Writer,
};
use datapipes_io::{FileGraphExt, FileRef};
use futures::{StreamExt, stream};

use super::crimes::soon;
use super::pids;

/// Adds to numbers, in a process of its own, if it says how it gets there.
#[derive(Wire)]
struct Native {
    add: u64,
    travels: bool,
}

impl Pipe<u64> for Native {
    type Out = u64;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<u64> {
        let add = self.add;
        input.each(cx, move |item| Some(Ok(item.map(|n| n + add))))
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .is_separate_process(true)
            .arity(Arity::One)
    }
    fn crossing(&self) -> Option<Crossing<u64, u64>> {
        self.travels.then(|| Crossing::of(self))
    }
}

fn native(add: u64) -> Native {
    Native { add, travels: true }
}

/// Groups the children of one parent.
struct Siblings;

impl Pipe<u64> for Siblings {
    type Out = u64;

    fn apply(&self, input: Items<u64>, _: &Context) -> Items<u64> {
        input
    }
    fn hints(&self) -> Hints {
        Hints::default().is_shardable_by_parent(true)
    }
}

/// Settings that cannot be written.
struct Stuck;

impl Wire for Stuck {
    fn encode<'a>(&'a self, _: &mut Writer<'a>) -> Result<()> {
        Err(Error::user("stuck"))
    }
    fn decode(_: &mut Reader<'_>) -> Result<Self> {
        Err(Error::user("stuck"))
    }
}

/// Law 9: each is refused, by the name of the node, and with the reason.
#[test]
fn law_9_what_cannot_be_in_processes_does_not_start() {
    let n = || Graph::range(0..100);
    let steps = "a part in processes has to add steps to the graph it is given, and leave that as it is: no sources, and no \
                 other name for what is above";
    let wrong: Vec<(String, Graph<u64>)> = vec![
        (
            "shuffle: looks at the stream as a whole, so it cannot be in processes of its own; put it after them"
                .into(),
            n().in_processes(2, |g| g.map(|n| n).shuffle(10)),
        ),
        (
            "batch: looks at the stream as a whole, so it cannot be in processes of its own; put it after them".into(),
            n().in_processes(2, |g| g.batch(10)).unbatch(),
        ),
        (
            "siblings: groups the children of one parent, so what makes the children has to be in the processes with it"
                .into(),
            n().flat_map(|n| 0..n).in_processes(2, |g| g.pipe(Siblings)),
        ),
        ("range: a part in processes without a step in it".into(), n().in_processes(2, |g| g)),
        (format!("range: {steps}"), n().in_processes(2, |_| Graph::range(0..5))),
        (format!("map: {steps}"), n().in_processes(2, |_| Graph::range(0..5).map(|n| n))),
        (format!("map: {steps}"), n().in_processes(2, |g| g.named("other").map(|n| n))),
        (
            "map: `zip` cannot be in a part in processes: only steps with one input and one output can".into(),
            n().in_processes(2, |g| g.zip(Graph::range(0..9)).map(|(a, b)| a + b)),
        ),
        (
            "mux: `mux` cannot be in a part in processes: only steps with one input and one output can".into(),
            n().in_processes(2, |g| Graph::mux(g.fork::<2>())),
        ),
        (
            "map: `inner` is in processes already, inside of a part that is".into(),
            n().in_processes(2, |g| g.in_processes(2, |g| g.map(|n| n).named("inner")).map(|n| n)),
        ),
        (
            "map: the settings of its part cannot be sent to a child process: stuck".into(),
            n().in_processes_with(2, Stuck, |g, _| g.map(|n| n)),
        ),
        (
            "native: wants a process of its own, but has no `Pipe::crossing` to be sent to a child process".into(),
            n().pipe(Native { add: 1, travels: false }),
        ),
        ("map: 0 processes do no work".into(), n().in_processes(0, |g| g.map(|n| n))),
    ];
    for (problem, graph) in wrong {
        let error = DataLoader::builder(graph)
            .build()
            .err()
            .unwrap_or_else(|| panic!("runs, though {problem}"));
        assert_eq!(error.problems(), [problem]);
    }
    // The node that makes the siblings is in the same part, where the pipe's own way is not needed.
    let right = n().in_processes(2, |g| {
        g.flat_map(|n| 0..n % 3).pipe(Siblings).pipe(Native {
            add: 1,
            travels: false,
        })
    });
    assert_eq!(
        DataLoader::builder(right)
            .build()
            .unwrap()
            .epoch(0)
            .blocking()
            .count(),
        99
    );
}

/// Zero processes for pipes that ask for them.
#[test]
fn law_9_the_loaders_processes_are_checked_too() {
    let build = |processes: Processes| {
        DataLoader::builder(Graph::range(0..5).pipe(native(1)))
            .processes(processes)
            .build()
    };
    assert_eq!(
        build(Processes::new(0)).err().unwrap().problems(),
        ["native: 0 processes do no work"]
    );
    assert!(build(Processes::new(1)).is_ok());
}

#[test]
fn the_plan_says_where_parts_run() {
    let graph = Graph::range(0..100)
        .map(|n| n)
        .in_processes(Processes::new(2).memory(1 << 30), |g| {
            g.map(|n| n + 1).filter(|n| n % 2 == 0)
        })
        .in_processes(1, |g| g.map(|n| n + 1).named("alone"))
        .pipe(native(1))
        .pipe(native(2))
        .batch(10);
    let plan = DataLoader::builder(graph.clone())
        .workers(4)
        .processes(3)
        .build()
        .unwrap()
        .explain();
    let lines: Vec<&str> = plan
        .lines()
        .skip_while(|line| !line.contains("batch"))
        .map(str::trim)
        .collect();
    assert_eq!(
        lines,
        [
            "└─ batch(10)",
            "└─ native#2  [segment D: 3 processes, up to 96 morsels in flight, strict order]",
            "└─ native  [D]",
            "└─ alone  [segment C: 1 process, up to 32 morsels in flight, strict order]",
            "└─ filter  [segment B: 2 processes, 1 GiB each, up to 64 morsels in flight, strict order]",
            "└─ map#2  [B]",
            "└─ map  [segment A: CPU, 4 workers, up to 128 morsels in flight, strict order]",
            "└─ range(0..100)",
        ],
        "{plan}"
    );
    let plan = DataLoader::builder(graph)
        .workers(0)
        .build()
        .unwrap()
        .explain();
    assert!(
        plan.contains("└─ alone  (in this process, since there are no workers)"),
        "{plan}"
    );
}

#[test]
fn without_workers_a_part_runs_in_this_process() {
    let pid = |workers| {
        let graph = Graph::range(0..20).in_processes(2, |g| g.map(|_| std::process::id()));
        let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
        loader
            .epoch(0)
            .blocking()
            .map(Result::unwrap)
            .collect::<BTreeSet<u32>>()
    };
    assert_eq!(pid(0), BTreeSet::from([std::process::id()]));
    assert!(!pid(1).contains(&std::process::id()));
}

/// Neighbours that ask for a process by themselves are in the same ones.
#[test]
fn pipes_that_ask_for_processes_share_them() {
    #[derive(Wire)]
    struct Who;

    impl Pipe<Vec<u32>> for Who {
        type Out = Vec<u32>;

        fn apply(&self, input: Items<Vec<u32>>, cx: &Context) -> Items<Vec<u32>> {
            input.each(cx, |item| {
                Some(Ok(
                    item.map(|pids| [pids, vec![std::process::id()]].concat())
                ))
            })
        }
        fn hints(&self) -> Hints {
            Hints::shardable().is_separate_process(true)
        }
        fn crossing(&self) -> Option<Crossing<Vec<u32>, Vec<u32>>> {
            Some(Crossing::of(self))
        }
    }

    let graph = Graph::range(0..50)
        .map(|_| Vec::new())
        .pipe(Who)
        .pipe(Who)
        .retry(1, Who);
    let problem = "who#3: wants a process of its own, but has no `Pipe::crossing` to be sent to a child process";
    assert_eq!(
        DataLoader::builder(graph).build().err().unwrap().problems(),
        [problem]
    );

    let loader = DataLoader::builder(Graph::range(0..50).map(|_| Vec::new()).pipe(Who).pipe(Who));
    let loader = loader.processes(2).build().unwrap();
    let mut seen = BTreeSet::new();
    for pids in loader.epoch(0).blocking() {
        let pids = pids.unwrap();
        assert!(pids.len() == 2 && pids[0] == pids[1], "{pids:?}");
        seen.extend(pids);
    }
    assert!(
        seen.is_subset(&pids(&loader).into_iter().collect()),
        "{seen:?}"
    );
}

fn in_children(items: u64) -> Graph<u64> {
    Graph::range(0..items).in_processes(2, |numbers| numbers.map(|n| n * n))
}

fn squares(items: u64) -> DataLoader<u64> {
    DataLoader::builder(in_children(items)).build().unwrap()
}

/// Loader of [`in_children`], with a message for each epoch that has given its children back.
/// Dropping an epoch waits only a moment for its thread, and a new epoch that begins before the
/// thread has ended starts children of its own.
fn told_squares(items: u64) -> (DataLoader<u64>, Receiver<()>) {
    struct Word(Sender<()>);

    impl Drop for Word {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    let (send, told) = channel();
    let graph = in_children(items).through(move |items: Items<u64>| {
        // Dropped in this order.
        let both = (items, Word(send.clone()));
        stream::unfold(both, |mut both| async {
            both.0.next().await.map(|item| (item, both))
        })
    });
    (DataLoader::builder(graph).build().unwrap(), told)
}

fn whole(loader: &DataLoader<u64>, epoch: u64) -> Vec<u64> {
    loader.epoch(epoch).blocking().map(Result::unwrap).collect()
}

/// Files that are read in a process have queued there, which is no time of the segment's work.
#[test]
fn work_in_a_process_takes_no_longer_than_the_epoch() {
    fn slow(files: Graph<FileRef>) -> Graph<u64> {
        files.load_files().map(|file| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(500) {}
            file.data.len() as u64
        })
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, b"abc").unwrap();
    let files = Graph::from_vec(vec![FileRef::new(path); 200]);
    let loader = DataLoader::builder(files.in_processes(1, slow))
        .build()
        .unwrap();
    whole(&loader, 0);
    let until = Instant::now() + Duration::from_secs(30);
    // Jobs of items that take so long have several; one where the machine is at something else.
    for epoch in 1.. {
        let begun = Instant::now();
        assert_eq!(whole(&loader, epoch), [3; 200]);
        let segment = loader.stats().unwrap().segments[0].clone();
        assert!(
            segment.busy >= Duration::from_millis(100) && segment.busy <= begun.elapsed(),
            "{segment:?}"
        );
        if segment.morsels < 100 {
            break;
        }
        assert!(begun < until, "{segment:?}");
    }
}

#[test]
fn children_stay_from_epoch_to_epoch() {
    let (loader, told) = told_squares(200);
    let expected = Vec::from_iter((0..200).map(|n| n * n));
    let mut first = None;
    for epoch in 0..20 {
        assert_eq!(whole(&loader, epoch), expected);
        told.recv_timeout(Duration::from_secs(10)).unwrap();
        let now = pids(&loader);
        assert_eq!(now.len(), 2);
        assert_eq!(*first.get_or_insert(now.clone()), now, "epoch {epoch}");
    }
    let stats = loader.stats().unwrap();
    let processes = stats.segments[0].processes.as_ref().unwrap();
    assert_eq!(
        (
            processes.started,
            processes.died,
            processes.replaced,
            processes.crashed
        ),
        (2, 0, 0, 0)
    );
}

#[test]
fn a_dropped_epoch_leaves_its_children_to_the_next() {
    let (loader, told) = told_squares(100_000);
    let given_back = || told.recv_timeout(Duration::from_secs(10)).unwrap();
    let expected = whole(&loader, 0);
    given_back();
    let children = pids(&loader);
    assert_eq!(children.len(), 2);
    for taken in [1, 100, 5000] {
        let epoch = loader.epoch(taken as u64).blocking();
        let some: Vec<u64> = epoch.take(taken).map(Result::unwrap).collect();
        assert_eq!(some, expected[..taken]);
        given_back();
    }
    assert_eq!(whole(&loader, 9), expected);
    assert_eq!(pids(&loader), children);
}

#[test]
fn children_end_with_their_loader() {
    for taken in [0, 1, 200] {
        let loader = squares(200);
        let mut epoch = loader.epoch(0).blocking();
        epoch.by_ref().take(taken).for_each(drop);
        drop(epoch);
        let children = if taken > 0 { pids(&loader) } else { vec![] };
        drop(loader);
        // Waited for, too; a moment later where the thread of the epoch was the last to let go of
        // the loader.
        soon("children are gone", || {
            !children
                .iter()
                .any(|pid| Path::new(&format!("/proc/{pid}")).exists())
        });
    }
}

/// One thread reads two epochs of one loader, and two loaders, in turn.
#[test]
fn epochs_and_loaders_that_are_read_in_turn_do_not_wait_for_each_other() {
    for items in [10, 20_000] {
        let loaders = [squares(items), squares(items)];
        let mut epochs = [(0, 0), (0, 1), (1, 0)].map(|(loader, epoch): (usize, u64)| {
            (loaders[loader].epoch(epoch).blocking(), Vec::new())
        });
        for _ in 0..=items {
            for (epoch, seen) in &mut epochs {
                seen.extend(epoch.next().map(Result::unwrap));
            }
        }
        for (_, seen) in epochs {
            assert!(seen.into_iter().eq((0..items).map(|n| n * n)));
        }
        // Two epochs at once needed twice as many, of which some are left.
        assert!(
            loaders[0].stats().unwrap().segments[0]
                .processes
                .as_ref()
                .unwrap()
                .started
                <= 4
        );
    }
}

#[test]
fn an_epoch_may_be_read_inside_of_another_loaders_pipe() {
    let inner = squares(10);
    let expected: u64 = whole(&inner, 0).into_iter().sum();
    let graph = Graph::range(0..40)
        .map(move |epoch| whole(&inner, epoch).into_iter().sum::<u64>())
        .concurrency(4);
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    assert!(
        loader
            .epoch(0)
            .blocking()
            .all(|sum| sum.unwrap() == expected)
    );
}

/// A child starts no children of its own.
#[test]
fn a_loader_inside_of_a_child_says_that_it_cannot_start_processes() {
    let graph = Graph::range(0..3).in_processes(1, |g| {
        g.map(|n| {
            let graph = Graph::range(0..n).in_processes(1, |g| g.map(|n| n));
            DataLoader::builder(graph)
                .build()
                .map(drop)
                .unwrap_err()
                .to_string()
        })
    });
    let loader = DataLoader::builder(graph).build().unwrap();
    for said in loader.epoch(0).blocking() {
        let said = said.unwrap();
        assert!(said.contains("this process is a child itself"), "{said}");
    }
}

#[test]
fn explain_and_stats_show_the_children() {
    let loader = squares(500);
    assert_eq!(whole(&loader, 0).len(), 500);
    let (plan, stats) = (loader.explain(), loader.stats().unwrap().to_string());
    assert!(
        plan.contains("[segment A: 2 processes, up to 64 morsels in flight, strict order]"),
        "{plan}"
    );
    let processes = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap();
    assert_eq!(
        processes
            .children
            .iter()
            .map(|child| child.items)
            .sum::<u64>(),
        500
    );
    assert!(processes.children.iter().all(|child| child.memory > 0));
    assert!(
        stats.contains("  processes: 2 started, 0 died, 0 replaced; 0 items given up"),
        "{stats}"
    );
    for (place, pid) in pids(&loader).into_iter().enumerate() {
        assert!(
            stats.contains(&format!("{place}: process {pid}, ")),
            "{stats}"
        );
        let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(
            title.starts_with(format!("map/{place}").as_bytes()),
            "{}",
            String::from_utf8_lossy(&title)
        );
    }
}

static ONLY_HERE: AtomicBool = AtomicBool::new(false);

#[test]
fn a_part_that_is_another_in_the_child_is_refused() {
    ONLY_HERE.store(true, Ordering::Relaxed);
    let graph = Graph::range(0..10).in_processes(2, |g| {
        if ONLY_HERE.load(Ordering::Relaxed) {
            g.map(|n| n)
        } else {
            g.filter(|_| true)
        }
    });
    let loader = DataLoader::builder(graph).build().unwrap();
    let error = loader.epoch(0).blocking().next().unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.node()),
        (ErrorKind::Config, Some("map"))
    );
    let said = error.to_string();
    assert!(
        said.contains("another part in a child than in the parent"),
        "{said}"
    );
    assert!(
        said.contains("`filter() Cpu AtMostOne true false` instead of `map() Cpu One true false`"),
        "{said}"
    );
    // The next epoch is told the same.
    assert_eq!(
        loader
            .epoch(1)
            .blocking()
            .next()
            .unwrap()
            .unwrap_err()
            .to_string(),
        said
    );
}

#[test]
fn large_settings_arrive() {
    let settings: (Vec<u8>, Vec<String>) = (
        (0..1 << 20).map(|n: u32| (n % 251) as u8).collect(),
        (0..1000).map(|n| "x".repeat(n % 100)).collect(),
    );
    let sum = |(bytes, words): &(Vec<u8>, Vec<String>)| -> u64 {
        bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()
            + words.iter().map(|word| word.len() as u64).sum::<u64>()
    };
    let expected = sum(&settings);
    let graph = Graph::range(0..100).in_processes_with(2, settings, |g, settings| {
        let sum = settings.0.iter().map(|byte| u64::from(*byte)).sum::<u64>()
            + settings.1.iter().map(|word| word.len() as u64).sum::<u64>();
        g.map(move |n| n + sum)
    });
    let loader = DataLoader::builder(graph).build().unwrap();
    assert_eq!(
        whole(&loader, 0),
        Vec::from_iter((0..100).map(|n| n + expected))
    );
}

/// Returns the items that each child has made.
fn made<T: Send + 'static>(loader: &DataLoader<T>) -> Vec<u64> {
    let stats = loader.stats().unwrap();
    let children = stats.segments[0]
        .processes
        .as_ref()
        .unwrap()
        .children
        .iter();
    let mut children: Vec<_> = children.map(|child| (child.place, child.items)).collect();
    children.sort_unstable();
    children.into_iter().map(|(_, items)| items).collect()
}

#[test]
fn a_parked_process_gets_no_work_and_the_order_stays() {
    // A morsel has a few of these.
    let slow = |part: Graph<u64>| {
        part.map(|n| {
            std::thread::sleep(Duration::from_millis(1));
            n + 1
        })
    };
    let graph = Graph::range(0..40).in_processes(2, slow);
    let builder = DataLoader::builder(graph).tune(false);
    let loader = builder.build().unwrap();
    let epoch = |number| {
        let items = loader.epoch(number).blocking().map(Result::unwrap);
        assert!(items.eq(1..=40));
    };
    // Both have been started.
    until_all_made(&loader, epoch);
    set_active_processes(&loader, 1);
    epoch(100);
    let before = made(&loader);
    epoch(101);
    let after = made(&loader);
    assert_eq!((before[0] + 40, before[1]), (after[0], after[1]));
    assert_eq!(loader.stats().unwrap().segments[0].workers, 1);
    set_active_processes(&loader, 2);
    until_all_made(&loader, epoch);
}

/// Runs epochs until each child has made more.
fn until_all_made(loader: &DataLoader<u64>, epoch: impl Fn(u64)) {
    epoch(0);
    let before = made(loader);
    for number in 1..50 {
        epoch(number);
        let after = made(loader);
        if after.len() == 2
            && before
                .iter()
                .zip(&after)
                .all(|(before, after)| after > before)
        {
            return;
        }
    }
    panic!("one process gets no work");
}

#[test]
fn parked_processes_help_where_nothing_gets_done() {
    let hangs = |part: Graph<u64>| {
        part.map(|n| {
            if n == 3 {
                loop {
                    std::thread::park();
                }
            }
            n
        })
    };
    let graph = Graph::range(0..40).in_processes(2, hangs);
    let builder = DataLoader::builder(graph).order(Order::Arrival);
    let loader = builder.tune(false).build().unwrap();
    set_active_processes(&loader, 1);
    // The other one does not have what the first one had when it stopped.
    let items = loader.epoch(0).blocking().take(20).map(Result::unwrap);
    assert_eq!(items.collect::<BTreeSet<_>>().len(), 20);
}
