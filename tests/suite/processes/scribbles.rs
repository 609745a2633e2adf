//! Children that write to memory where they should not: to all memory that they share with their
//! parent and can write to.

use std::fs;
use std::sync::{Arc, Mutex};

use datapipes::{Arity, Context, DataLoader, Graph, Hints, Items, Pipe, Tensor};

/// Elements of a slice, or of a row.
const WIDTH: usize = 9001;
/// Elements of rows: 36,004 bytes are copied to the batch, more than 64 KiB are written in place.
/// The first two are no number of pages, so that rows share pages with their neighbours.
const WIDTHS: [usize; 3] = [WIDTH, 70_001, 17 << 12];
/// Distance of elements of which each page has one.
const PAGE: usize = 1009;

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

/// Rows of batches, which the child is asked to fill: of so many elements. The child keeps some
/// rows that it gives out, and others instead of giving them out, and writes to the latter later.
#[derive(Clone)]
struct Filled(usize);

/// Rows that a child keeps.
static KEPT: Mutex<Vec<(u64, Arc<Tensor>)>> = Mutex::new(Vec::new());
static UNSENT: Mutex<Vec<Tensor>> = Mutex::new(Vec::new());

impl Pipe<u64> for Filled {
    type Out = Arc<Tensor>;

    fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Arc<Tensor>> {
        let (rows, width) = (cx.clone(), self.0);
        // Rows of earlier jobs have been sent then; later items may be made together, and their rows
        // wait to be sent.
        let mut is_first = true;
        input.each(cx, move |item| {
            let is_first = std::mem::replace(&mut is_first, false);
            Some(item.try_map(|n| {
                if is_first {
                    scribble();
                }
                let (mut kept, mut unsent) = (KEPT.lock().unwrap(), UNSENT.lock().unwrap());
                for row in unsent.iter_mut() {
                    let values = row.as_mut_slice::<f32>()?.iter_mut();
                    values.step_by(PAGE).for_each(|value| *value = -1.0);
                }
                for (n, row) in kept.iter() {
                    let mut row = row.as_slice::<f32>()?.iter().step_by(PAGE);
                    if row.any(|value| *value != *n as f32) {
                        return Err(datapipes::Error::user("a row that was kept has changed"));
                    }
                }
                let mut row = rows.row::<f32>([width])?;
                row.as_mut_slice::<f32>()?.fill(n as f32);
                if n % 10 == 7 {
                    unsent.push(row);
                    return Tensor::from_vec(vec![n as f32; width], [width]).map(Arc::new);
                }
                let row = Arc::new(row);
                if n % 10 == 3 {
                    kept.push((n, row.clone()));
                }
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
        // Memory that is given back is used again, while other memory is held.
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

/// The part of the graph in processes.
fn filled(numbers: Graph<u64>, width: &usize) -> Graph<Arc<Tensor>> {
    numbers.pipe(Filled(*width)).named("filled")
}

#[test]
fn rows_of_batches_that_were_handed_over_are_no_longer_writable_by_the_child() {
    WIDTHS.into_iter().for_each(rows_that_were_handed_over);
}

fn rows_that_were_handed_over(width: usize) {
    let graph = Graph::range(0..100)
        .in_processes_with(2, width, filled)
        .map(|row| Arc::into_inner(row).expect("nobody else has it"))
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
        .flat_map(|batch: &Tensor| batch.as_slice::<f32>().unwrap().chunks(width));
    let spoiled = rows
        .zip((0..100).cycle())
        .filter(|(row, n)| row.iter().any(|value| *value != *n as f32));
    assert_eq!(spoiled.count(), 0, "of {} rows of {width}", 3 * 100);
    assert_eq!(
        loader.stats().unwrap().segments[0]
            .processes
            .as_ref()
            .unwrap()
            .died,
        0
    );
}
