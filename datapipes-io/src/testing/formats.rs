//! Contract tests for formats, with arbitrary bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Graph, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::formats::{FileEntries, RecordSplitter};
use crate::stores::{Body, Get, InMemory, Meta, Object, Store};
use crate::{File, FileGraphExt, FileRef, Format};

/// Reads a file in a format, and returns its items and errors, in order, to the end.
pub fn read_all<F: Format>(format: F, data: impl Into<bytes::Bytes>) -> Vec<Result<F::Item>> {
    let files = Graph::from_vec(vec![File::new("file", data)]);
    // The first error would end the stream; as items, errors keep their places.
    collected(files.read_as(format).through(both))
}

fn collected<T: Send + 'static>(graph: Graph<T>) -> Vec<T> {
    datapipes::testing::collect_graph(graph).expect("errors are items")
}

/// Reads a file that arrives in pieces of these sizes, repeated, with
/// [`stream_as`](crate::FileGraphExt::stream_as). The result must equal that of [`read_all`], with
/// errors at the same places.
///
/// # Panics
/// Panics without a size, or with a size of 0.
pub fn read_arriving<F: Format>(
    format: F,
    data: impl Into<bytes::Bytes>,
    pieces: impl Into<Vec<usize>>,
) -> Vec<Result<F::Item>> {
    let pieces = pieces.into();
    assert!(
        !pieces.is_empty() && !pieces.contains(&0),
        "sizes of pieces: {pieces:?}"
    );
    let store = Pieces {
        store: InMemory::from_iter([("file", data)]),
        pieces,
    };
    let files = vec![FileRef::stored(Arc::new(store), "file", None)];
    collected(Graph::from_vec(files).stream_as(format, 0).through(both))
}

/// Formats an error with the number of its file in place of the name `file`.
pub(crate) fn unnamed(error: &Error) -> String {
    error.to_string().replacen(": file", ": 0:0", 1)
}

/// Objects that come in pieces of these sizes; a piece arrives only after the previous piece was
/// used.
#[derive(Debug)]
struct Pieces {
    store: InMemory,
    pieces: Vec<usize>,
}

#[async_trait]
impl Store for Pieces {
    fn url(&self) -> &str {
        self.store.url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let object = self.store.get(key, get).await?;
        let data = object
            .body
            .map(|piece| piece.expect("bytes in memory"))
            .collect::<Vec<_>>()
            .await
            .concat();
        let pieces = (Bytes::from(data), self.pieces.clone().into_iter().cycle());
        let body = stream::unfold(pieces, |(mut data, mut sizes)| async {
            tokio::task::yield_now().await;
            let size = sizes.next()?.min(data.len());
            let piece = data.split_to(size);
            (size > 0).then_some((Ok(piece), (data, sizes)))
        });
        Ok(Object {
            body: Body::stream(body),
            ..object
        })
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.store.list(prefix)
    }
}

/// A format whose files arrive in blocks of so many bytes.
struct InBlocks<F>(F, usize);

impl<F: Format> Format for InBlocks<F> {
    type Item = F::Item;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<F::Item>> {
        self.0.open(file, cx)
    }
    fn splitter(&self) -> Option<RecordSplitter<F::Item>> {
        Some(self.0.splitter()?.blocks_of(self.1))
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

fn both<T: Send + 'static>(items: datapipes::Items<T>) -> datapipes::Items<Result<T>> {
    let mut number = 0;
    datapipes::Items::from_stream(items.map(move |item| {
        number += 1;
        Ok(match item {
            Ok(item) => item.map(Ok),
            Err(error) => datapipes::Item::new(Err(error), datapipes::Origin::root(0, number)),
        })
    }))
}

/// Packs data as gzip.
#[cfg(test)]
pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(data).unwrap();
    packer.finish().unwrap()
}

/// Returns the positions in a file of this length at which a test damages it: all positions of a
/// short file, else those at both ends and some hundreds between, unless `DATAPIPES_LONG_TESTS` is
/// set.
pub(crate) fn places(len: usize) -> impl Iterator<Item = usize> {
    let step = if long() { 1 } else { len / 512 + 1 };
    (0..len).filter(move |at| at % step == 0 || *at < 64 || at + 64 >= len)
}

fn long() -> bool {
    std::env::var_os("DATAPIPES_LONG_TESTS").is_some()
}

/// Checks that a format handles damaged variants of `seed`: cut at every byte (a seed of more than
/// 512 bytes at some hundreds of them, unless the variable `DATAPIPES_LONG_TESTS` is set), with
/// bytes changed, pieces removed, repeated and moved, by a deterministic generator. A format that
/// can be [cut](Format::splitter) also gets files as they arrive, in pieces and in blocks of some
/// records, and has to yield the same items: all files for a seed of less than 128 bytes, all that
/// are cut for one of up to 512, else some.
///
/// The seed itself must be read without an error; the function returns the number of its items.
///
/// # Panics
/// Panics if the format panics, does not end, yields more items than possible, or other items if
/// the file arrives in pieces.
pub fn check_format<F: Format>(make: impl Fn() -> F, seed: &[u8]) -> usize {
    let streams = make().splitter().is_some();
    let round = std::cell::Cell::new(0);
    let sane = |data: Vec<u8>, what: &str| -> Vec<Result<()>> {
        let most = 64 * data.len() + 1024;
        round.set(round.get() + 1);
        let (round, len) = (round.get(), data.len());
        let pieces = vec![
            1 + round % 5 + len / 100,
            1 + round % 17 + len / 50,
            1 + round % 67,
        ];
        // Reading in pieces takes much longer; with a long seed only some of the files are.
        let cut = seed.len() <= 512 && seed.starts_with(&data);
        let both_ways = streams && (seed.len() < 128 || cut || round % 16 == 1);
        let arrived = both_ways.then(|| {
            let format = InBlocks(make(), 1 + len / (1 + round % 7));
            let read = || read_arriving(format, data.clone(), pieces.clone());
            catch_unwind(AssertUnwindSafe(read))
                .unwrap_or_else(|_| panic!("{what}: it panics in pieces"))
        });
        let read = catch_unwind(AssertUnwindSafe(|| read_all(make(), data)));
        if let (Some(arrived), Ok(read)) = (&arrived, &read) {
            let said = |item: &Result<F::Item>| item.as_ref().map(drop).map_err(unnamed);
            let (arrived, read): (Vec<_>, Vec<_>) = (
                arrived.iter().map(said).collect(),
                read.iter().map(said).collect(),
            );
            assert_eq!(
                arrived, read,
                "{what}: read in pieces of {pieces:?}, and whole"
            );
        }
        let read = read.unwrap_or_else(|_| panic!("{what}: it panics"));
        assert!(
            read.len() <= most,
            "{what}: {} items out of so little",
            read.len()
        );
        let panicked = |error: &Error| error.kind() == ErrorKind::Panic;
        let panic = read
            .iter()
            .filter_map(|item| item.as_ref().err())
            .find(|error| panicked(error));
        assert!(panic.is_none(), "{what}: {}", panic.expect("it is there"));
        read.into_iter().map(|item| item.map(drop)).collect()
    };
    let whole = sane(seed.to_vec(), "the seed");
    assert!(
        whole.iter().all(Result::is_ok),
        "the seed: {:?}",
        whole.iter().find(|item| item.is_err())
    );
    for cut in places(seed.len()) {
        sane(seed[..cut].to_vec(), &format!("cut at {cut}"));
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        ((state >> 33) as usize) % below.max(1)
    };
    for (turn, at) in places(seed.len()).enumerate() {
        let mut values = [0, 0xff, 0x7f, seed[at] ^ 1, seed[at] ^ 0x80];
        values.rotate_left(turn % 5);
        // Each position gets some of the values, in turn.
        let values = if long() || seed.len() < 128 {
            &values[..]
        } else {
            &values[..2]
        };
        for &value in values {
            let mut data = seed.to_vec();
            data[at] = value;
            sane(data, &format!("byte {at} turned to {value}"));
        }
    }
    for round in 0..if long() { 400 } else { 200 } {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{FileEntry, Frame, FrameKind, Framing, RecordPosition, batches};

    /// Chunks of records of one byte, each with their number before it, and a `.` at the end; with
    /// `quiet`, a whole file that has no end is read without an error.
    #[derive(Clone, Default)]
    struct Log {
        quiet: bool,
        ended: bool,
    }

    impl Framing for Log {
        type Item = u8;

        fn frame(&mut self, data: &[u8], _: RecordPosition, ended: bool) -> Result<Frame> {
            if self.ended {
                return Err(Error::corrupt("more after the end"));
            }
            self.ended = data[0] == b'.';
            let len = 1 + usize::from(data[0]);
            match self.ended {
                true => Ok(Frame::cut(1, FrameKind::Blank)),
                false if len <= data.len() => {
                    Ok(Frame::cut(len, FrameKind::Records(data[0].into())))
                }
                false if !ended => Ok(Frame::More(len)),
                false => Err(Error::truncated("a chunk")),
            }
        }
        fn finish(&mut self) -> Result<()> {
            match self.ended {
                true => Ok(()),
                false => Err(Error::truncated("there is no end")),
            }
        }
        fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<u8> {
            let quiet = self.quiet;
            let no_end = |entry: &FileEntry<u8>| matches!(entry, FileEntry::Broken(error) if error.cause().contains("no end"));
            let read = |_: &Log, data: &Bytes, range: std::ops::Range<usize>, _| {
                data.slice(range).into_iter().skip(1).map(Ok)
            };
            let entries = batches(self, data, at, read);
            Box::new(entries.filter(move |entry| !quiet || !no_end(entry)))
        }
    }

    impl Format for Log {
        type Item = u8;

        fn splitter(&self) -> Option<RecordSplitter<u8>> {
            Some(RecordSplitter::new(self.clone()))
        }
    }

    fn seed() -> Vec<u8> {
        [&b"\x07abcdefg".repeat(25)[..], b"."].concat()
    }

    #[test]
    fn an_end_is_checked_after_the_last_block_alone() {
        assert_eq!(check_format(Log::default, &seed()), 175);
    }

    #[test]
    #[should_panic(expected = ": read in pieces of")]
    fn a_missing_end_that_only_a_file_in_pieces_reports_is_found() {
        let quiet = || Log {
            quiet: true,
            ..Log::default()
        };
        check_format(quiet, &seed());
    }
}
