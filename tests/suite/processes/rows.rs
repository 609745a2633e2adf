//! Rows of batches that children fill in the place where the parent reads them.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use datapipes::{Arity, Context, DataLoader, Graph, Hints, Items, OnError, Pipe, Tensor};

/// Elements of a row: 80,004 bytes, which are filled in place, and end inside of a page.
const WIDTH: usize = 20_001;

/// A row of each integer. Three of them end the process, or fail.
#[derive(Clone)]
struct Wide;

const ABORTS: u64 = 37;
const FAILS: u64 = 90;

impl Pipe<u64> for Wide {
    type Out = Tensor;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Tensor> {
        let rows = cx.clone();
        input.each(cx, move |item| {
            Some(item.try_map(|n| {
                let mut row = rows.row::<f32>([WIDTH])?;
                // Half of it, so that what a dead child left is overwritten.
                row.as_mut_slice::<f32>()?[..WIDTH / 2].fill(-1.0);
                match n {
                    ABORTS => std::process::abort(),
                    FAILS => return Err(datapipes::Error::user("unlucky")),
                    _ => row.as_mut_slice::<f32>()?.fill(n as f32),
                }
                Ok(row)
            }))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).rows(true)
    }
}

fn wide(numbers: Graph<u64>) -> Graph<Tensor> {
    numbers.pipe(Wide).named("wide")
}

/// Rows that say how many of them were made in one step.
#[derive(Clone)]
struct Together;

impl Pipe<u64> for Together {
    type Out = Tensor;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Tensor> {
        let rows = cx.clone();
        input.each_chunk(cx, move |chunk| {
            let together = chunk.len() as f32;
            chunk.map(|_| {
                let mut row = rows.row::<f32>([WIDTH]).expect("a good shape");
                row.as_mut_slice::<f32>().expect("its type").fill(together);
                row
            })
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).rows(true)
    }
}

/// Returns true if the tensor's memory is shared with other processes.
fn is_shared(tensor: &Tensor) -> bool {
    let address = tensor.as_bytes().as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:datapipes"))
        .any(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
            (from..to).contains(&address)
        })
}

#[test]
fn batches_are_where_children_wrote_their_rows() {
    let graph = Graph::range(0..30).in_processes(2, wide).batch(8).collate();
    let loader = DataLoader::builder(graph).build().unwrap();
    assert!(
        loader.explain().contains("straight into batches of 8"),
        "{}",
        loader.explain()
    );
    let mut shared = 0;
    for epoch in 0..6 {
        let mut next = 0;
        for batch in loader.epoch(epoch).blocking() {
            let batch = batch.unwrap();
            shared += usize::from(is_shared(&batch));
            for row in batch.as_slice::<f32>().unwrap().chunks(WIDTH) {
                assert!(
                    row.iter().all(|&v| v == next as f32),
                    "row {next} of epoch {epoch}: {}",
                    row[0]
                );
                next += 1;
            }
        }
        assert_eq!(next, 30);
    }
    // All but those of the first epoch's start, where what a row is like is not known yet.
    assert!(shared >= 20, "{shared} of 24 batches");
}

#[test]
fn rows_that_one_batch_needs_come_together() {
    let rows = Graph::range(0..1000).in_processes(1, |numbers| numbers.pipe(Together));
    let loader = DataLoader::builder(rows.batch(50).collate())
        .build()
        .unwrap();
    let last = loader.epoch(0).blocking().last().unwrap().unwrap();
    let most = last.as_slice::<f32>().unwrap().iter().copied();
    assert!(most.fold(0.0, f32::max) > 1.0, "one by one");
}

#[test]
fn what_a_child_leaves_half_filled_is_not_seen() {
    let graph = Graph::range(0..200)
        .in_processes(2, wide)
        .batch(8)
        .collate();
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(10))
        .build()
        .unwrap();
    let mut seen = Vec::new();
    // Some batches are held, so that their memory cannot be used again while it is read.
    let mut kept = Vec::new();
    for batch in loader.epoch(0).blocking() {
        let batch = batch.unwrap();
        for row in batch.as_slice::<f32>().unwrap().chunks(WIDTH) {
            assert!(row.iter().all(|&v| v == row[0]));
            seen.push(row[0] as u64);
        }
        if seen.len() % 3 == 0 {
            kept.push((seen.len() - batch.shape()[0], batch));
        }
    }
    let good: Vec<u64> = (0..200).filter(|n| ![ABORTS, FAILS].contains(n)).collect();
    assert_eq!(seen, good);
    for (place, batch) in kept {
        for (row, n) in batch
            .as_slice::<f32>()
            .unwrap()
            .chunks(WIDTH)
            .zip(&good[place..])
        {
            assert!(row.iter().all(|&v| v == *n as f32));
        }
    }
    let errors: Vec<String> = loader
        .stats()
        .unwrap()
        .skipped_items
        .into_iter()
        .map(|skipped| skipped.error)
        .collect();
    assert_eq!(
        errors[0],
        "wide: 0:37: crashed: the process that worked on it ended by SIGABRT (signal 6)"
    );
    assert_eq!(errors[1], "wide: 0:90: unlucky");
}

/// From a time on when rows are granted, gives the first tensor that it saw instead of every fifth.
fn stubborn(numbers: Graph<u64>) -> Graph<(u64, Arc<Tensor>)> {
    static FIRST: OnceLock<Arc<Tensor>> = OnceLock::new();
    numbers.pipe(Wide).map(|row| {
        let row = Arc::new(row);
        let n = row.as_slice::<f32>().unwrap()[0] as u64;
        if n < 300 {
            return (n, row);
        }
        let first = FIRST.get_or_init(|| row.clone());
        (
            n,
            if n.is_multiple_of(5) {
                first.clone()
            } else {
                row
            },
        )
    })
}

#[test]
fn a_row_that_a_child_keeps_and_sends_again_is_what_it_was() {
    let rows = Graph::range(100..400).in_processes(2, stubborn);
    let graph = rows.map(|(n, row)| (n, (*row).clone())).batch(8).collate();
    let loader = DataLoader::builder(graph).build().unwrap();
    assert!(
        loader.explain().contains("straight into batches of 8"),
        "{}",
        loader.explain()
    );
    let mut firsts = HashSet::new();
    for epoch in 0..3 {
        let mut next = 100;
        for batch in loader.epoch(epoch).blocking() {
            let (numbers, rows) = batch.unwrap();
            for (n, row) in numbers
                .as_slice::<u64>()
                .unwrap()
                .iter()
                .zip(rows.as_slice::<f32>().unwrap().chunks(WIDTH))
            {
                assert!(
                    row.iter().all(|&v| v == row[0]),
                    "{n}: {} and others",
                    row[0]
                );
                let is = row[0] as u64;
                match n % 5 {
                    0 if *n >= 300 => _ = firsts.insert(is),
                    _ => assert_eq!(is, *n),
                }
                assert_eq!(*n, next);
                next += 1;
            }
        }
        assert_eq!(next, 400);
    }
    // An epoch that begins before the children of the last are free has two others.
    assert!(
        firsts.len() <= 6,
        "two children have kept one each: {firsts:?}"
    );
    let processes = loader.stats().unwrap().segments[0]
        .processes
        .clone()
        .unwrap();
    assert_eq!(processes.died, 0, "no child is blamed for it");
}
