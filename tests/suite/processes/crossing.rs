//! Transfer to children and back: items, errors, panics and log lines.

use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use datapipes::{
    DType, DataLoader, Error, ErrorKind, Graph, OnError, Processes, Reader, Result, Tensor, Wire,
    Writer,
};

use super::parents::{succeeds, this_test};

/// Loaders of the same graph without workers, on this thread, and with processes.
fn both<T: Send + 'static>(graph: impl Fn() -> Graph<T>) -> [DataLoader<T>; 2] {
    [0, 2].map(|workers| {
        DataLoader::builder(graph())
            .workers(workers)
            .build()
            .unwrap()
    })
}

#[test]
fn small_items_arrive_by_the_thousand() {
    let graph = || {
        Graph::range(0..1500).in_processes(2, |numbers| {
            numbers
                .flat_map(|n| (0..n % 9).map(move |i| (n, vec![i as u8; 100])))
                .filter(|(n, _)| n % 5 != 0)
        })
    };
    let [here, there] = both(graph).map(|loader| {
        let items = loader.epoch(0).blocking().items().map(|item| item.unwrap());
        items
            .map(|item| {
                (
                    (*item).clone(),
                    item.origin().to_string(),
                    item.origin().key(),
                )
            })
            .collect::<Vec<_>>()
    });
    assert!(here.len() > 4000);
    assert_eq!(here, there);
}

/// The memory that this process maps without a name in the file system, from the queues.
fn is_shared(bytes: &[u8]) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let at = bytes.as_ptr() as usize;
    maps.lines().any(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [from, to] = [from, to].map(|number| usize::from_str_radix(number, 16).unwrap());
        from <= at && at + bytes.len() <= to && line.contains("/memfd:datapipes")
    })
}

#[test]
fn large_items_stay_where_the_child_wrote_them() {
    let graph = Graph::range(0..40).in_processes(2, |numbers| {
        numbers.try_map(|n| Tensor::from_vec(vec![n as u8; 600_000], [200, 1000, 3]))
    });
    let loader = DataLoader::builder(graph).build().unwrap();
    let mut kept = Vec::new();
    for (n, tensor) in loader.epoch(0).blocking().enumerate() {
        let tensor = tensor.unwrap();
        assert_eq!(
            (tensor.shape(), tensor.dtype()),
            (&[200, 1000, 3][..], DType::U8)
        );
        assert!(tensor.is_shared() && is_shared(tensor.as_bytes()));
        if n % 3 == 0 {
            kept.push((n, tensor));
        }
    }
    drop(loader);
    // They are there longer than the children.
    for (n, tensor) in kept {
        assert!(
            tensor.as_bytes().iter().all(|byte| usize::from(*byte) == n),
            "{n}"
        );
    }
}

#[test]
fn an_item_of_many_large_slices_arrives() {
    let graph = Graph::range(0..3).in_processes(2, |numbers| {
        numbers.map(|n| {
            (0..500)
                .map(|i| Bytes::from(vec![(n + i) as u8; 64 << 10]))
                .collect::<Vec<Bytes>>()
        })
    });
    let loader = DataLoader::builder(graph).build().unwrap();
    for (n, slices) in loader.epoch(0).blocking().enumerate() {
        let slices = slices.unwrap();
        assert_eq!(slices.len(), 500);
        for (i, slice) in slices.iter().enumerate() {
            assert!(
                slice.len() == 64 << 10 && slice.iter().all(|byte| *byte == (n + i) as u8),
                "{n} {i}"
            );
        }
    }
}

/// Large items in, and through a process; they are not this process's own memory any more.
#[test]
fn large_items_go_in_too() {
    let graph = Graph::range(0..30)
        .map(|n| Bytes::from(vec![n as u8; 100_000]))
        .in_processes(2, |slices| {
            slices.map(|slice| {
                (
                    slice.iter().map(|byte| u64::from(*byte)).sum::<u64>(),
                    slice,
                )
            })
        });
    let loader = DataLoader::builder(graph).build().unwrap();
    for (n, item) in loader.epoch(0).blocking().enumerate() {
        let (sum, slice) = item.unwrap();
        assert_eq!(
            (sum, slice.len(), slice[99_999]),
            (n as u64 * 100_000, 100_000, n as u8)
        );
        assert!(is_shared(&slice));
    }
}

/// A consumer that holds all its items is given more; the loader does not stop.
#[test]
fn a_consumer_that_keeps_thousands_of_large_items_is_served() {
    let graph = Graph::range(0..2500)
        .in_processes(2, |numbers| {
            numbers.map(|n| Bytes::from(n.to_le_bytes().repeat(70_000 / 8)))
        })
        .shuffle(2000);
    let loader = DataLoader::builder(graph).build().unwrap();
    let mut seen: Vec<u64> = Vec::new();
    for slice in loader.epoch(0).blocking() {
        let slice = slice.unwrap();
        let n = u64::from_le_bytes(slice[..8].try_into().unwrap());
        assert!(slice.chunks(8).all(|chunk| chunk == n.to_le_bytes()));
        seen.push(n);
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..2500));
}

/// An error with a cause, of a library's own type.
#[derive(Debug)]
struct Native(std::io::Error);

impl std::fmt::Display for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("read_header failed")
    }
}

impl std::error::Error for Native {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn fails(n: u64) -> Result<u64> {
    let pause = Duration::from_millis(1500);
    match n % 10 {
        3 => {
            let cause = Native(std::io::Error::other("disk on fire"));
            Err(Error::corrupt("no header").with_source(cause))
        }
        5 => Err(Error::not_found(format!("no {n}")).with_retry_after(pause)),
        7 => Err(Error::unavailable("busy").transient()),
        _ => Ok(n),
    }
}

/// A morsel whose output does not fit into this process delays the morsels after it in its child.
/// These must want less than the budget.
#[test]
fn a_small_budget_stops_nothing() {
    for memory in [300, 600, 1000, 2000] {
        // So slow that a piece is two or three items, and two messages, the first of which may be
        // all that there is room for.
        let graph = Graph::range(0..100).in_processes(1, |numbers| {
            numbers
                .inspect(|_| std::thread::sleep(Duration::from_micros(20)))
                .map(|n| n + 1)
        });
        let loader = DataLoader::builder(graph)
            .workers(2)
            .prefetch(64)
            .memory(memory)
            .build()
            .unwrap();
        for epoch in 0..2 {
            assert!(
                loader
                    .epoch(epoch)
                    .blocking()
                    .map(Result::unwrap)
                    .eq(1..=100),
                "{memory} bytes"
            );
        }
    }
}

/// A batch is waited for as a whole, but an error may end the epoch: it does not wait for an item
/// that blocks after it, in the same job of the child. (Small items would come in one message.)
#[test]
fn an_error_does_not_wait_for_the_items_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name| dir.path().join(name).to_str().unwrap().to_owned();
    let (seen, gave_up) = (path("seen"), path("gave up"));
    let paths = (seen.clone(), gave_up.clone());
    let graph = Graph::range(0..2).in_processes_with(1, paths, |numbers, paths| {
        let (seen, gave_up) = paths.clone();
        // One input is one job.
        numbers.flat_map(|_| 0..400).try_map(move |n| {
            if n == 260 {
                return Err(Error::corrupt("no header"));
            }
            let mut waits = if n == 290 { 10_000 } else { 0 };
            while waits > 0 && !std::fs::exists(&seen)? {
                std::thread::sleep(Duration::from_millis(1));
                waits -= 1;
                if waits == 0 {
                    std::fs::write(&gave_up, "")?;
                }
            }
            Ok::<_, Error>(vec![0_u8; 30_000])
        })
    });
    let loader = DataLoader::builder(graph.batch(64)).workers(2).build();
    let mut epoch = loader.unwrap().epoch(0).blocking();
    let error = epoch.find_map(Result::err).unwrap();
    std::fs::write(&seen, "").unwrap();
    assert!(error.to_string().contains("no header"), "{error}");
    assert!(!std::fs::exists(&gave_up).unwrap());
}

#[test]
fn errors_are_what_they_are_on_threads() {
    let shown = |error: &Error| {
        let mut causes = Vec::new();
        let mut cause = error.source();
        while let Some(next) = cause {
            causes.push(next.to_string());
            cause = next.source();
        }
        let item = error.item().map(ToString::to_string);
        let node = error.node().map(str::to_owned);
        (
            error.to_string(),
            error.kind(),
            node,
            item,
            causes,
            error.is_transient(),
            error.retry_after(),
        )
    };
    for first in [3, 5, 7] {
        let graph = Graph::range(first..50).in_processes_with(2, first, |numbers, _| {
            numbers
                .filter(|n| n % 4 < 4)
                .try_map(fails)
                .named("decode")
                .map(|n| n)
        });
        let [here, there] = both(|| graph.clone()).map(|loader| {
            let error = loader.epoch(0).blocking().find_map(Result::err).unwrap();
            shown(&error)
        });
        assert_eq!(here, there);
        assert_eq!(here.2.as_deref(), Some("decode"));
        assert_eq!(here.4.len(), if first == 3 { 2 } else { 0 });
    }
    // Skipped errors are counted and recorded by name.
    let skipped = |workers| {
        let graph =
            Graph::range(0..50).in_processes(2, |numbers| numbers.try_map(fails).named("decode"));
        let loader = DataLoader::builder(graph)
            .workers(workers)
            .on_error(OnError::skip(100))
            .build()
            .unwrap();
        let items: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        (
            items,
            loader
                .stats()
                .unwrap()
                .skipped_items
                .into_iter()
                .map(|s| (s.node, s.kind, s.error))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(skipped(0), skipped(2));
}

/// A number that panics on its way to another process, or on arrival.
#[derive(Clone)]
struct Panics {
    number: u64,
    on_arrival: bool,
}

impl Panics {
    fn check(&self, here: bool) {
        assert!(!here || self.number != 17, "no way");
    }
}

impl Wire for Panics {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.number.encode(to)?;
        self.check(!self.on_arrival);
        self.on_arrival.encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let (number, on_arrival) = (u64::decode(from)?, bool::decode(from)?);
        let panics = Panics { number, on_arrival };
        panics.check(on_arrival);
        Ok(panics)
    }
}

/// A panic of an encoding is that of a step: no policy skips it, and no process dies of it. Bytes
/// that nobody can read cost their item; the error says why.
#[test]
fn row_1_a_panic_of_an_encoding_is_an_error_of_its_item() {
    let there = |on_arrival: bool| {
        let items = Graph::range(0..60).map(move |number| Panics { number, on_arrival });
        items.in_processes(1, |items| items.map(|item| item.number))
    };
    let back = |on_arrival: bool| {
        let numbers = Graph::range(0..60);
        let items = numbers.in_processes_with(1, on_arrival, |numbers, &on_arrival| {
            numbers.map(move |number| Panics { number, on_arrival })
        });
        items.map(|item| item.number)
    };
    for on_arrival in [false, true] {
        for graph in [there(on_arrival), back(on_arrival)] {
            let builder = DataLoader::builder(graph).workers(2);
            let loader = builder.on_error(OnError::skip(9)).build().unwrap();
            let all: Result<Vec<u64>> = loader.epoch(0).blocking().collect();
            let stats = loader.stats().unwrap();
            let error = match all {
                Err(error) => {
                    let mut parts = stats
                        .segments
                        .iter()
                        .filter_map(|part| part.processes.as_ref());
                    assert_eq!(parts.next().unwrap().died, 0);
                    assert_eq!((error.kind(), on_arrival), (ErrorKind::Panic, false));
                    error.to_string()
                }
                Ok(all) => {
                    assert_eq!(all.len(), 59);
                    assert!(on_arrival);
                    stats.skipped_items[0].error.clone()
                }
            };
            assert!(
                error.contains(": 0:17: ") && error.contains("no way"),
                "{error}"
            );
        }
    }
}

/// Row 1: a panic in a child is the error that it is on a thread.
#[test]
fn row_1_a_panic_in_a_child_is_an_error_with_the_nodes_name() {
    let graph = || {
        Graph::range(0..50).in_processes(2, |numbers| {
            numbers
                .map(|n| n)
                .map(|n| {
                    assert!(n != 33, "{n} is too many");
                    n
                })
                .named("decode")
                .filter(|_| true)
        })
    };
    let [here, there] = both(graph).map(|loader| {
        let results: Vec<_> = loader
            .epoch(0)
            .blocking()
            .map(|item| item.map_err(|e| (e.kind(), e.to_string())))
            .collect();
        let stats = loader.stats().unwrap();
        let died = stats
            .segments
            .first()
            .and_then(|segment| segment.processes.as_ref())
            .map_or(0, |p| p.died);
        assert_eq!(died, 0, "a panic ends no child");
        results
    });
    assert_eq!(here, there);
    let (kind, said) = there.last().unwrap().as_ref().unwrap_err();
    assert_eq!(*kind, ErrorKind::Panic);
    assert!(
        said.contains("decode") && said.contains("33 is too many"),
        "{said}"
    );
}

/// A subscriber that records the events of a whole process: level, target, and fields by name.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Told {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::DEBUG
    }
    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::DEBUG)
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {}={value:?}", field.name());
            }
        }
        let metadata = event.metadata();
        let mut line = Line(format!("{} {}", metadata.level(), metadata.target()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Row 11: what a child prints goes nowhere but there, too.
#[test]
fn row_11_what_a_child_says_and_prints_arrives_in_the_log() {
    alone("the_log_of_a_process");
}

#[test]
fn a_child_that_is_replaced_is_a_warning() {
    alone("the_log_of_a_child_that_is_replaced");
}

/// A test in a process of its own, since a log is the whole process's.
fn alone(test: &str) {
    succeeds(this_test(&format!("processes::crossing::{test}")));
}

#[test]
#[ignore = "sets the log of the whole process; the test above runs it in one of its own"]
fn the_log_of_a_child_that_is_replaced() {
    let told = Told::default();
    tracing::subscriber::set_global_default(told.clone()).unwrap();
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
    assert_eq!(loader.epoch(0).blocking().map(Result::unwrap).count(), 280);
    let replaced = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap()
        .replaced;
    let told = told.0.lock().unwrap();
    let warns = |line: &String| {
        line.starts_with("WARN")
            && line.contains("a process comes near its limit of memory, and is replaced")
            && line.contains("child=")
    };
    assert!(
        replaced > 0 && told.iter().any(warns),
        "{replaced} replaced: {told:#?}"
    );
}

#[test]
#[ignore = "sets the log of the whole process; the test above runs it in one of its own"]
fn the_log_of_a_process() {
    let told = Told::default();
    tracing::subscriber::set_global_default(told.clone()).unwrap();
    let graph = Graph::range(0..4).in_processes(1, |numbers| {
        let say = |n: u64| {
            match n {
                0 => tracing::warn!(target: "native", code = 7, "a strange header"),
                1 => println!("printed by the library"),
                2 => eprintln!("an error of the library"),
                _ => tracing::trace!("nobody wants to know"),
            }
            n
        };
        numbers.map(say).named("decode")
    });
    let loader = DataLoader::builder(graph).build().unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 4);
    drop(loader);
    let told = told.0.lock().unwrap();
    let told: Vec<&String> = told
        .iter()
        .filter(|line| line.contains("datapipes::child"))
        .collect();
    for expected in [
        r#"WARN datapipes::child message=a strange header code=7 node="decode" child=0 from="native""#,
        r#"INFO datapipes::child message=printed by the library node="decode" child=0 from="output""#,
        r#"INFO datapipes::child message=an error of the library node="decode" child=0 from="output""#,
    ] {
        assert!(
            told.iter().any(|line| *line == expected),
            "{expected} in {told:#?}"
        );
    }
    assert_eq!(told.len(), 3, "{told:#?}");
}
