//! Crashes in parts that are not one-in-one-out, and in morsels of several items.

use std::time::Duration;

use datapipes::testing::some_of;
use datapipes::{DataLoader, ErrorKind, Graph, OnError, Order, Processes};

use super::crimes::{case, children, commit, decode, is_gone, work};
use super::faults::convict;
use super::skipping;

/// Cheap items come in pieces of hundreds, of which one kills.
#[test]
fn row_5_of_a_large_piece_the_guilty_items_are_lost_only() {
    const ITEMS: u64 = 8000;
    let guilty = [0, 1, 3999, 4000, 4001, ITEMS - 1];
    for count in [1, 3] {
        for order in some_of([Order::Strict, Order::Arrival, Order::Bounded(2000)]) {
            convict(
                &Processes::new(count),
                ITEMS,
                &case("segfault", &guilty, 0),
                order,
            );
        }
    }
    // The first error ends the epoch, and all that stands before it in the same piece is delivered.
    for at in [1, 3999] {
        let graph =
            Graph::range(0..ITEMS).in_processes_with(2, case("abort", &[at, at + 1], 0), decode);
        let loader = DataLoader::builder(graph).build().unwrap();
        let mut epoch = loader.epoch(0).blocking();
        let good = epoch.by_ref().map_while(Result::ok);
        assert!(good.eq((0..at).map(|n| n * 3)));
        assert!(epoch.next().is_none());
    }
    let graph = Graph::range(0..ITEMS).in_processes_with(1, case("", &[], 0), decode);
    let loader = DataLoader::builder(graph).build().unwrap();
    assert_eq!(loader.epoch(0).blocking().count() as u64, ITEMS);
    let morsels = loader.stats().unwrap().segments[0].morsels;
    assert!(morsels < ITEMS / 20, "pieces are large: {morsels}");
}

#[test]
fn row_5_in_other_orders_nothing_is_lost_or_doubled_either() {
    let guilty = [0, 1, 20, 38, 39];
    for order in [Order::Arrival, Order::Bounded(0), Order::Bounded(8)] {
        for count in [1, 3] {
            convict(
                &Processes::new(count),
                40,
                &case("abort", &guilty, 300),
                order,
            );
        }
    }
}

/// Settings of a part in which each item becomes many: the guilty items, the number of outputs for
/// each item, and the unit of waiting time in microseconds.
type Many = (Vec<u64>, u64, u64);

/// Each item becomes `many`; the guilty ones end the process before the last ten.
fn fan_out(numbers: Graph<u64>, &(ref guilty, many, _): &Many) -> Graph<u64> {
    let guilty = guilty.clone();
    numbers.flat_map(move |n| {
        let guilty = guilty.contains(&n);
        (0..many).map(move |place| {
            if guilty && place + 10 == many {
                commit("segfault", n);
            }
            n * many + place
        })
    })
}

/// Applies `fan_out` after a pipe that waits.
fn fan_out_io(numbers: Graph<u64>, many: &Many) -> Graph<u64> {
    let micros = many.2;
    let waits = numbers.map_async(move |n| async move {
        if micros > 0 {
            tokio::time::sleep(Duration::from_micros(n % 7 * micros)).await;
        }
        datapipes::Ok(n)
    });
    fan_out(waits, many)
}

type Part = fn(Graph<u64>, &Many) -> Graph<u64>;

fn check_fan_out(part: Part, items: u64, (many, micros): (u64, u64), count: usize, guilty: &[u64]) {
    let settings = (guilty.to_vec(), many, micros);
    let graph = || Graph::range(0..items).in_processes_with(count, settings.clone(), part);
    let (loader, all) = skipping(graph(), items);
    assert!(all.is_sorted_by(|a, b| a < b), "in order, and once");
    let lost: Vec<u64> = loader
        .stats()
        .unwrap()
        .skipped_items
        .iter()
        .map(|bad| bad.item.as_ref().unwrap().index())
        .collect();
    assert_eq!(lost, guilty);
    for n in 0..items {
        let below = |end: u64| all.partition_point(|&out| out < end * many);
        let of_it = &all[below(n)..below(n + 1)];
        let whole: Vec<u64> = (n * many..(n + 1) * many).collect();
        if guilty.contains(&n) {
            assert!(
                whole.starts_with(of_it) && of_it.len() as u64 <= many - 10,
                "{n}: {}",
                of_it.len()
            );
        } else {
            assert_eq!(of_it, whole);
        }
    }
    // The first error ends the epoch; what stands before it is delivered, all of it.
    let loader = DataLoader::builder(graph()).build().unwrap();
    let results: Vec<_> = loader.epoch(0).blocking().collect();
    if let Some(first) = guilty.first() {
        let error = results.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Crashed);
        let good = results[..results.len() - 1]
            .iter()
            .map(|item| *item.as_ref().unwrap());
        assert!(good.clone().eq(0..good.len() as u64), "{first}");
        assert!(good.len() as u64 >= first * many);
    }
}

#[test]
fn row_5_of_an_item_that_becomes_many_what_came_before_the_crash_does_not_come_again() {
    for count in [1, 3] {
        for guilty in [&[0][..], &[0, 1], &[11, 12, 29]] {
            check_fan_out(fan_out, 30, (1000, 0), count, guilty);
        }
    }
    // Several items to a piece, so that the crash is at another place of a message the second time.
    for many in some_of([100, 300, 700]) {
        check_fan_out(
            fan_out,
            120,
            (many, 0),
            2,
            &[3, 50, 51, 52, 53, 54, 90, 119],
        );
    }
}

/// Ends its process late, then earlier than that, and then no more. Its outputs are large, so
/// that some come before each end.
#[test]
fn row_4_of_an_item_that_is_interrupted_again_and_again_each_of_its_many_comes_once() {
    fn part(numbers: Graph<u64>, attempts: &String) -> Graph<[u64; 1024]> {
        let attempts = attempts.clone();
        numbers.flat_map(move |n| {
            let ends = if n == 1 {
                [250, 50, 100, 120].get(attempt(&attempts)).copied()
            } else {
                None
            };
            (0..300).map(move |place| {
                if ends == Some(place) {
                    commit("kill", n);
                }
                [n * 300 + place; 1024]
            })
        })
    }
    /// Returns the number of earlier attempts, and records another.
    fn attempt(file: &str) -> usize {
        use std::io::Write;
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
        let before = file.metadata().unwrap().len();
        file.write_all(b".").unwrap();
        before as usize
    }
    let folder = tempfile::tempdir().unwrap();
    let attempts = folder.path().join("attempts").to_str().unwrap().to_owned();
    let graph = Graph::range(0..3).in_processes_with(2, attempts.clone(), part);
    let loader = DataLoader::builder(graph).build().unwrap();
    let all: Vec<[u64; 1024]> = loader
        .epoch(0)
        .blocking()
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(
        all.iter().map(|item| item[0]).eq(0..900),
        "in order, and once"
    );
    assert_eq!(attempt(&attempts), 5);
}

#[test]
fn row_5_where_many_wait_at_once_only_the_guilty_are_lost() {
    fn part(numbers: Graph<u64>, guilty: &Vec<u64>) -> Graph<u64> {
        let guilty = guilty.clone();
        numbers
            .map_async(move |n| {
                let guilty = guilty.contains(&n);
                async move {
                    tokio::time::sleep(Duration::from_micros(n % 5 * 300)).await;
                    datapipes::Ok(if guilty { commit("abort", n) } else { n })
                }
            })
            .named("read")
    }
    for guilty in [&[0, 1, 70, 71, 199][..], &[199], &[0]] {
        for count in [1, 3] {
            for order in some_of([Order::Strict, Order::Arrival, Order::Bounded(20)]) {
                let graph = Graph::range(0..200).in_processes_with(count, guilty.to_vec(), part);
                let loader = DataLoader::builder(graph)
                    .order(order)
                    .on_error(OnError::skip(200))
                    .build()
                    .unwrap();
                let mut all: Vec<u64> = loader
                    .epoch(0)
                    .blocking()
                    .collect::<Result<_, _>>()
                    .unwrap();
                if order != Order::Strict {
                    all.sort_unstable();
                }
                assert!(
                    all.into_iter().eq((0..200).filter(|n| !guilty.contains(n))),
                    "{guilty:?} {order:?}"
                );
                let mut named: Vec<u64> = loader
                    .stats()
                    .unwrap()
                    .skipped_items
                    .iter()
                    .map(|bad| bad.item.as_ref().unwrap().index())
                    .collect();
                named.sort_unstable();
                assert_eq!(named, guilty);
            }
        }
    }
}

#[test]
fn row_5_where_many_wait_at_once_and_each_becomes_many_there_is_no_deadlock() {
    for count in [1, 2] {
        check_fan_out(fan_out_io, 60, (600, 300), count, &[5, 6, 30, 59]);
        // Without a wait, so that several come in one piece.
        check_fan_out(
            fan_out_io,
            400,
            (50, 0),
            count,
            &[5, 6, 300, 302, 304, 306, 399],
        );
        check_fan_out(
            fan_out_io,
            200,
            (400, 0),
            count,
            &[5, 6, 100, 102, 104, 106, 199],
        );
    }
}

#[test]
fn row_5_in_a_part_with_filters_only_the_guilty_are_lost() {
    fn part(numbers: Graph<u64>, &(ref guilty, _, micros): &Many) -> Graph<u64> {
        let guilty = guilty.clone();
        let odd = numbers.filter(|n| n % 3 != 0);
        let odd = odd.map(move |n| {
            if guilty.contains(&n) {
                commit("segfault", n)
            } else {
                n
            }
        });
        odd.filter(move |n| {
            work(micros);
            n % 5 != 0
        })
    }
    for (items, micros) in [(60, 300), (3000, 0)] {
        let guilty = [1, 2, items / 2 + 1, items / 2 + 2, items - 1];
        let guilty: Vec<u64> = guilty.into_iter().filter(|n| n % 3 != 0).collect();
        for count in [1, 3] {
            let settings = (guilty.clone(), 0, micros);
            let graph = Graph::range(0..items).in_processes_with(count, settings, part);
            let (loader, all) = skipping(graph, items);
            let right = (0..items).filter(|n| n % 3 != 0 && n % 5 != 0 && !guilty.contains(n));
            assert!(right.eq(all.iter().copied()), "{all:?}");
            let lost: Vec<u64> = loader
                .stats()
                .unwrap()
                .skipped_items
                .iter()
                .map(|bad| bad.item.as_ref().unwrap().index())
                .collect();
            assert_eq!(lost, guilty);
        }
    }
}

/// Pieces give more than their queues hold, while the consumer waits for several of them: more than
/// the children that could fill them.
#[test]
fn row_23_children_that_wait_for_room_are_not_waited_for() {
    fn part(numbers: Graph<u64>, &(ref guilty, many, _): &Many) -> Graph<[u64; 128]> {
        let guilty = guilty.clone();
        numbers.map(move |n| {
            if guilty.contains(&n) {
                commit("abort", n);
            }
            std::hint::black_box((0..many).fold(n, |sum, n| sum ^ std::hint::black_box(n)));
            [n; 128]
        })
    }
    for micros in some_of([0, 10, 20, 40, 80]) {
        for guilty in [&[][..], &[3000, 6000]] {
            let graph =
                Graph::range(0..9000).in_processes_with(1, (guilty.to_vec(), micros, 0), part);
            let graph = graph.batch(3000);
            let (_, all) = skipping(graph, 2);
            let right = (0..9000).filter(|n| !guilty.contains(n));
            assert!(right.eq(all.concat().iter().map(|item| item[0])));
        }
    }
}

/// Slices in shared memory outlive the child that wrote them, and the loader.
#[test]
fn row_17_what_a_child_wrote_stays_when_it_ends() {
    fn part(numbers: Graph<u64>, guilty: &Vec<u64>) -> Graph<datapipes::Tensor> {
        let guilty = guilty.clone();
        numbers.try_map(move |n| {
            if guilty.contains(&n) {
                commit("kill", n);
            }
            datapipes::Tensor::from_vec(vec![n as u8; 300_000], [300_000])
        })
    }
    let guilty = vec![3, 4, 17];
    let graph = Graph::range(0..40).in_processes_with(2, guilty.clone(), part);
    let (loader, all) = skipping(graph, 3);
    drop(loader);
    let good = (0..40).filter(|n| !guilty.contains(n));
    for (n, tensor) in good.zip(&all) {
        assert!(
            tensor
                .as_slice::<u8>()
                .unwrap()
                .iter()
                .all(|&byte| byte == n as u8),
            "{n}"
        );
    }
    assert_eq!(all.len(), 37);
}

/// Epochs that run at once have children of their own; those of the second end with it, and are not
/// said to be there.
#[test]
fn row_4_figures_are_of_children_that_run() {
    let graph = Graph::range(0..1000).in_processes_with(2, case("", &[], 300), decode);
    let loader = DataLoader::builder(graph).build().unwrap();
    let (mut one, mut other) = (loader.epoch(0).blocking(), loader.epoch(1).blocking());
    for _ in 0..20 {
        assert!(one.next().unwrap().is_ok() && other.next().unwrap().is_ok());
    }
    assert_eq!(children(&loader).len(), 4);
    drop((one, other));
    super::crimes::soon("two children are kept", || children(&loader).len() == 2);
    assert!(children(&loader).into_iter().all(|child| !is_gone(child)));
}
