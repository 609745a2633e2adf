//! What every format must keep, whatever bytes it is given.

use std::panic::{AssertUnwindSafe, catch_unwind};

use datapipes::{Error, ErrorKind, Graph, Result};

use crate::{File, FileGraph, Format};

/// What a format reads of a file: its items and errors, in order, to the end.
pub fn read_all<F: Format>(format: F, data: impl Into<bytes::Bytes>) -> Vec<Result<F::Item>> {
    let files = Graph::from_vec(vec![File::new("file", data)]);
    // The first error would end it; as items they keep their places.
    files.read_as(format).through(both).collect().expect("errors are items")
}

fn both<T: Send + 'static>(items: datapipes::Items<T>) -> datapipes::Items<Result<T>> {
    use futures::StreamExt;
    let mut number = 0;
    datapipes::Items::from_stream(items.map(move |item| {
        number += 1;
        Ok(match item {
            Ok(item) => item.map(Ok),
            Err(error) => datapipes::Item::new(Err(error), datapipes::Origin::root(0, number)),
        })
    }))
}

/// Checks that a format survives what may be in a file that looks like `seed`: cut at every byte, every byte turned to
/// others, pieces taken out, repeated and put elsewhere, by a generator that always does the same.
///
/// The seed itself must be read without an error; how many items it gives is returned.
///
/// # Panics
/// If the format panics, does not end, or gives more items than there can be.
pub fn check_format<F: Format>(make: impl Fn() -> F, seed: &[u8]) -> usize {
    let sane = |data: Vec<u8>, what: &str| -> Vec<Result<()>> {
        let most = 64 * data.len() + 1024;
        let read = catch_unwind(AssertUnwindSafe(|| read_all(make(), data)));
        let read = read.unwrap_or_else(|_| panic!("{what}: it panics"));
        assert!(read.len() <= most, "{what}: {} items out of so little", read.len());
        let panicked = |error: &Error| error.kind() == ErrorKind::Panic;
        let panic = read.iter().filter_map(|item| item.as_ref().err()).find(|error| panicked(error));
        assert!(panic.is_none(), "{what}: {}", panic.expect("it is there"));
        read.into_iter().map(|item| item.map(drop)).collect()
    };
    let whole = sane(seed.to_vec(), "the seed");
    assert!(whole.iter().all(Result::is_ok), "the seed: {:?}", whole.iter().find(|item| item.is_err()));
    let step = seed.len() / 2048 + 1;
    for cut in (0..seed.len()).step_by(step) {
        sane(seed[..cut].to_vec(), &format!("cut at {cut}"));
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((state >> 33) as usize) % below.max(1)
    };
    for at in (0..seed.len()).step_by(step) {
        for value in [0, 0xff, 0x7f, seed[at] ^ 1, seed[at] ^ 0x80] {
            let mut data = seed.to_vec();
            data[at] = value;
            sane(data, &format!("byte {at} turned to {value}"));
        }
    }
    for round in 0..400 {
        let mut data = seed.to_vec();
        for _ in 0..=draw(4) {
            let (a, b) = (draw(data.len() + 1), draw(data.len() + 1));
            let (from, to) = (a.min(b), a.max(b));
            match draw(5) {
                0 => drop(data.drain(from..to)),
                1 => data.extend_from_within(from..to.min(from + 4096)),
                2 => data[from..to.min(from + 8)].fill(0xff),
                3 => {
                    let at = draw(data.len() + 1);
                    let piece = data[from..to.min(from + 64)].to_vec();
                    data.splice(at..at, piece);
                }
                _ => (from..to.min(from + 8)).for_each(|at| data[at] = draw(256) as u8),
            }
        }
        sane(data, &format!("mutation {round}"));
    }
    whole.len()
}
