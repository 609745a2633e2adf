//! Children that write to memory where they should not: to all memory that they share with their
//! parent and can write to.

use std::fs;

use datapipes::{Arity, Context, DataLoader, Graph, Hints, Items, Pipe, Tensor};

/// Elements of a row: 36,004 or 72,008 bytes, which is no number of pages, so that rows share pages
/// with their neighbours.
const WIDTH: usize = 9001;

/// The memory that this process shares with others and can write to: where each mapping begins, and
/// its bytes.
fn writable() -> Vec<(usize, usize)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| {
        line.split(' ')
            .nth(1)
            .is_some_and(|rights| rights == "rw-s")
    });
    let address = |hex| usize::from_str_radix(hex, 16).unwrap();
    shared
        .map(|line| line.split(' ').next().unwrap().split_once('-').unwrap())
        .map(|(from, to)| (address(from), address(to) - address(from)))
        .collect()
}

/// Writes over all of it.
fn scribble() {
    for (start, len) in writable() {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: it is mapped and may be written to. Whose it is does not matter to who writes by
        // mistake.
        unsafe { start.write_bytes(0xa5, len) };
    }
}

/// Slices of 72,008 bytes.
fn sent(numbers: Graph<u64>) -> Graph<Tensor> {
    numbers.map(|n| {
        scribble();
        Tensor::from_vec(vec![n; WIDTH], [WIDTH]).unwrap()
    })
}

/// Rows of batches, which the child is asked to fill.
#[derive(Clone)]
struct Filled;

impl Pipe<u64> for Filled {
    type Out = Tensor;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Tensor> {
        let rows = cx.clone();
        input.each(cx, move |item| {
            Some(item.try_map(|n| {
                scribble();
                let mut row = rows.row::<f32>([WIDTH])?;
                row.as_mut_slice::<f32>()?.fill(n as f32);
                Ok(row)
            }))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).rows(true)
    }
}

#[test]
fn memory_that_was_handed_over_is_no_longer_writable_by_the_child() {
    let loader = DataLoader::builder(Graph::range(0..200).in_processes(2, sent))
        .build()
        .unwrap();
    let mut held = Vec::new();
    for epoch in 0..2 {
        let tensors = loader.epoch(epoch).blocking().map(Result::unwrap);
        // What is given back is used again, beside what is held.
        held.extend((0..200).zip(tensors).filter(|(n, _)| n % 3 > 0));
    }
    let is_spoiled = |(n, tensor): &&(u64, Tensor)| {
        tensor
            .as_slice::<u64>()
            .unwrap()
            .iter()
            .any(|value| value != n)
    };
    assert_eq!(
        held.iter().filter(is_spoiled).count(),
        0,
        "of {} tensors",
        held.len()
    );
    assert_eq!(
        loader.stats().unwrap().segments[0]
            .processes
            .as_ref()
            .unwrap()
            .died,
        0
    );
}

#[test]
fn rows_of_batches_that_were_handed_over_are_no_longer_writable_by_the_child() {
    let filled = |numbers: Graph<u64>| numbers.pipe(Filled).named("filled");
    let graph = Graph::range(0..100)
        .in_processes(2, filled)
        .batch(8)
        .collate();
    let loader = DataLoader::builder(graph).build().unwrap();
    assert!(
        loader.explain().contains("straight into batches of 8"),
        "{}",
        loader.explain()
    );
    let mut held = Vec::new();
    for epoch in 0..3 {
        held.extend(loader.epoch(epoch).blocking().map(Result::unwrap));
    }
    let rows = held
        .iter()
        .flat_map(|batch: &Tensor| batch.as_slice::<f32>().unwrap().chunks(WIDTH));
    let spoiled = rows
        .zip((0..100).cycle())
        .filter(|(row, n)| row.iter().any(|value| *value != *n as f32));
    assert_eq!(spoiled.count(), 0, "of {} rows", 3 * 100);
    assert_eq!(
        loader.stats().unwrap().segments[0]
            .processes
            .as_ref()
            .unwrap()
            .died,
        0
    );
}
