//! Behaviour of stores and formats, with the rows of the fault matrix where one applies.

#[cfg(all(feature = "lmdb", feature = "parquet", feature = "tfrecord"))]
mod by_index;
mod gzip;
#[cfg(all(feature = "http", unix))]
mod http;
#[cfg(feature = "parquet")]
mod in_lists;
mod list;
mod load;
mod samples;
#[cfg(unix)]
mod samples_failing;
#[cfg(all(feature = "arrow", feature = "mmap"))]
mod saved_dataset;
#[cfg(all(feature = "http", unix))]
#[path = "../support/mod.rs"]
mod support;
mod tar;

use std::process::Command;

use datapipes::{Context, Error, ErrorKind, Graph, Item, Items, Origin, Pipe, Result, Source};
use datapipes_io::File;
use futures::{FutureExt, StreamExt};

/// Collects all items and errors, inline.
fn all<T: Send + 'static>(items: Items<T>) -> Vec<Result<Item<T>>> {
    items
        .collect::<Vec<_>>()
        .now_or_never()
        .expect("nothing waits where everything runs inline")
}

fn apply<In: Send + 'static, P: Pipe<In>>(pipe: &P, input: Vec<In>) -> Vec<Result<Item<P::Out>>> {
    let named = |(index, value)| {
        Ok(Item::new(
            value,
            Origin::root(0, index as u64).named(format!("in{index}")),
        ))
    };
    let input: Vec<_> = input.into_iter().enumerate().map(named).collect();
    all(pipe.apply(Items::from_results(input), &Context::default()))
}

fn open<S: Source>(source: &S) -> Vec<Result<Item<S::Out>>> {
    all(source.open(&Context::default()))
}

/// Separates the values from the errors.
fn parts<T>(items: Vec<Result<Item<T>>>) -> (Vec<T>, Vec<Error>) {
    let mut parts = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Ok(item) => parts.0.push(item.into_inner()),
            Err(error) => parts.1.push(error),
        }
    }
    parts
}

fn names(files: &[File]) -> Vec<&str> {
    files.iter().map(|file| &*file.name).collect()
}

fn kinds(errors: &[Error]) -> Vec<ErrorKind> {
    errors.iter().map(Error::kind).collect()
}

/// Reads a graph with two workers, in order.
fn on_workers<T: Send + 'static>(graph: Graph<T>) -> Vec<T> {
    let loader = datapipes::DataLoader::builder(graph)
        .workers(2)
        .build()
        .expect("a graph that is right");
    loader
        .epoch(0)
        .blocking()
        .collect::<Result<_>>()
        .expect("items without errors")
}

/// Makes a tar archive with an end marker.
fn tar_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ::tar::Builder::new(Vec::new());
    for (name, data) in members {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive
            .append_data(&mut header, name, *data)
            .expect("in memory");
    }
    archive.into_inner().expect("in memory")
}

/// Returns true if a command is installed; otherwise a test has nothing to compare with.
fn has(command: &str) -> bool {
    Command::new(command)
        .arg("--version")
        .output()
        .is_ok_and(|out| out.status.success())
}
