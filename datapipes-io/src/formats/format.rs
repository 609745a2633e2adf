//! The trait of file formats, and the pipe that reads files with it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};

use datapipes::{
    Children, Chunk, Chunks, Context, Demand, Error, Hints, Items, Origin, Pipe, Result,
    opaque_debug,
};
use futures::Stream;

use super::entry::{FileEntries, FileEntry};
use super::framing::{Block, RecordSplitter};
use super::parts::ByParts;
use super::value;
use crate::File;

/// A file format: parses a file into items.
///
/// A format gets whole files, in memory, and yields their items one by one, best as slices of the
/// file ([`bytes::Bytes::slice`]), and lazily. A format that can find the ends of its records also
/// returns a [`splitter`](Format::splitter), so that [large files](crate::FileGraphExt::read_as)
/// are read as they arrive; see [`Framing`](super::Framing). A format must accept any bytes. It may
/// trust a size that a file states only as far as there are bytes. An error in the file is an
/// [`FileEntry::Bad`] or [`FileEntry::Broken`], never a panic and never a silent end.
///
/// # Examples
/// Numbers, each with its length before it:
/// ```
/// use datapipes::{Context, Error, ErrorKind, Graph, Result};
/// use datapipes_io::formats::{FileEntries, FileEntry, Format};
/// use datapipes_io::{File, prelude::*};
///
/// struct Lengths;
///
/// impl Format for Lengths {
///     type Item = bytes::Bytes;
///
///     fn open(&self, file: File, _: &Context) -> Result<FileEntries<bytes::Bytes>> {
///         let mut data = file.data;
///         Ok(Box::new(std::iter::from_fn(move || {
///             let length = usize::from(*data.first()?);
///             let _ = data.split_to(1);
///             if length > data.len() {
///                 let what = format!("{length} bytes stated, {} there", data.len());
///                 data.clear();
///                 return Some(FileEntry::Broken(Error::truncated(what)));
///             }
///             Some(FileEntry::item(data.split_to(length)))
///         })))
///     }
/// }
///
/// let files = |data: &'static str| Graph::from_vec(vec![File::new("f", data)]);
/// assert_eq!(files("\x01a\x02bc").read_as(Lengths).collect()?, ["a", "bc"]);
/// let error = files("\x01a\x07bc").read_as(Lengths).collect().unwrap_err();
/// assert_eq!(error.to_string(), "lengths: 0:0: truncated: 7 bytes stated, 2 there");
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Format: Send + Sync + 'static {
    /// Type of the items.
    type Item: Send + 'static;

    /// Opens a file and returns its items. Runs on a CPU worker, as the iterator does; `cx` tells
    /// if the epoch was dropped, for long work before the next item. Defaults to the records of the
    /// [`splitter`](Format::splitter): a format has one of the two at least.
    ///
    /// # Errors
    /// Returns an error for a file that is not of this format, or whose beginning is invalid.
    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Self::Item>> {
        match self.splitter() {
            Some(splitter) => splitter.open(file, cx),
            None => Err(Error::config("a format with neither `open` nor `splitter`")),
        }
    }

    /// Returns the splitter that cuts a file of this format into records as it arrives, for
    /// [`FileGraphExt::read_as`](crate::FileGraphExt::read_as). It yields the same items as
    /// [`open`](Format::open) yields for the whole file. Defaults to none: files are then read
    /// whole.
    fn splitter(&self) -> Option<RecordSplitter<Self::Item>> {
        None
    }

    /// Returns how a file is read part by part, for a format that tells where its parts are. The
    /// parts have the same items as [`open`](Format::open) yields for the whole file. Defaults to
    /// none.
    #[doc(hidden)]
    fn by_parts(&self) -> Option<ByParts<Self::Item>> {
        None
    }

    /// Returns the name of the node if the user gives it none. Defaults to the type's name in snake
    /// case.
    fn name(&self) -> String {
        snake_case(std::any::type_name::<Self>())
    }

    /// Returns the settings as text, for the printed plan. Defaults to none.
    fn settings(&self) -> String {
        String::new()
    }

    /// Returns an error in the settings that is visible before anything runs. Defaults to none.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Returns the approximate number of bytes that an item keeps alive; see [`Pipe::weigh`].
    /// Defaults to what the item's type tells: for files, arrays, rows, values of JSON and
    /// MessagePack, and the types that pipes weigh themselves; for others to the item's own size.
    fn weigh(&self, item: &Self::Item) -> Option<usize> {
        value::weigh(item)
    }
}

/// Reads files in a [`Format`]; see [`FileGraphExt::read_as`](crate::FileGraphExt::read_as).
pub struct ReadAs<F: ?Sized>(pub(crate) Arc<F>);

impl<F> ReadAs<F> {
    /// Returns the pipe of a format.
    pub fn new(format: F) -> Self {
        ReadAs(Arc::new(format))
    }
}

datapipes::clone_fields!(ReadAs<F: ?Sized> { 0 });

opaque_debug!(ReadAs<F: ?Sized> {});

impl<F: Format> ReadAs<F> {
    fn own_hints(&self) -> Hints {
        Hints::shardable()
            .children(true)
            .settings(self.0.settings())
            .problem(self.0.problem().as_deref())
    }
}

impl<F: Format> Pipe<File> for ReadAs<F> {
    type Out = F::Item;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<F::Item> {
        let (format, context) = (self.0.clone(), cx.clone());
        reading(input, cx, move |file| (0, format.open(file, &context)))
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn hints(&self) -> Hints {
        self.own_hints()
    }
    fn weigh(&self, item: &F::Item) -> Option<usize> {
        self.0.weigh(item)
    }
}

/// Reads blocks of records of files that are read as they arrive.
impl<F: Format> Pipe<Block<F::Item>> for ReadAs<F> {
    type Out = F::Item;

    fn apply(&self, input: Items<Block<F::Item>>, cx: &Context) -> Items<F::Item> {
        let context = cx.clone();
        reading(input, cx, move |block: Block<_>| {
            (block.first, (block.open)(&context))
        })
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn hints(&self) -> Hints {
        self.own_hints()
    }
    fn weigh(&self, item: &F::Item) -> Option<usize> {
        self.0.weigh(item)
    }
}

/// Yields the entries of each input item, numbered from the first number that `open` returns.
fn reading<I: Send + 'static, T: Send + 'static>(
    input: Items<I>,
    cx: &Context,
    open: impl FnMut(I) -> (u64, Result<FileEntries<T>>) + Send + 'static,
) -> Items<T> {
    Items::from_chunks(Reading {
        input,
        reads: open,
        cx: cx.clone(),
        open: None,
    })
}

struct Reading<I, T, O> {
    input: Items<I>,
    reads: O,
    cx: Context,
    open: Option<Opened<T>>,
}

/// A file that is being read.
struct Opened<T> {
    entries: FileEntries<T>,
    origin: Origin,
    children: Children,
    next: u64,
}

impl<I, T, O> Chunks<T> for Reading<I, T, O>
where
    I: Send + 'static,
    T: Send + 'static,
    O: FnMut(I) -> (u64, Result<FileEntries<T>>) + Send,
{
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        loop {
            if self.cx.is_cancelled() {
                return Poll::Ready(None);
            }
            if let Some(open) = &mut self.open {
                // Most files are too short to need the room for all requested items.
                let mut chunk = Chunk::with_capacity(demand.max.min(64));
                let ended = open.read(&mut chunk, demand.max, &self.cx);
                if ended {
                    self.open = None;
                }
                if !chunk.is_empty() {
                    return Poll::Ready(Some(chunk));
                }
                continue;
            }
            match ready!(Pin::new(&mut self.input).poll_next(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Chunk::fail(error))),
                Some(Ok(file)) => {
                    let (file, origin) = file.into_parts();
                    match (self.reads)(file) {
                        (next, Ok(entries)) => {
                            let children = origin.children();
                            self.open = Some(Opened {
                                entries,
                                origin,
                                children,
                                next,
                            });
                        }
                        (_, Err(error)) => {
                            return Poll::Ready(Some(Chunk::fail(error.of(&origin))));
                        }
                    }
                }
            }
        }
    }
}

impl<T> Opened<T> {
    /// Reads the next items, up to `most`. Returns true if the file has ended.
    fn read(&mut self, chunk: &mut Chunk<T>, most: usize, cx: &Context) -> bool {
        while chunk.len() < most {
            let Some(entry) = self.entries.next() else {
                return true;
            };
            let is_last = matches!(entry, FileEntry::Broken(_));
            let item = entry.placed(&self.origin, &self.children, &mut self.next, cx);
            if let Some(item) = item {
                chunk.push(item);
            }
            if is_last {
                return true;
            }
        }
        false
    }
}

/// Returns the last part of a path of types, without parameters, in snake case.
fn snake_case(path: &str) -> String {
    let path = path.split('<').next().unwrap_or(path);
    let mut name = String::new();
    for letter in path.rsplit("::").next().unwrap_or(path).chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use datapipes::{DataLoader, Error, Graph, Item, OnError};

    use super::*;
    use crate::FileGraphExt;

    /// A format of letters; `x` is a bad letter, `!` breaks the file, and `2` leaves out two
    /// letters.
    struct Letters;

    impl Format for Letters {
        type Item = char;

        fn open(&self, file: File, _: &Context) -> Result<FileEntries<char>> {
            if file.data.is_empty() {
                return Err(Error::truncated("empty"));
            }
            Ok(Box::new(Vec::from(file.data).into_iter().map(
                |byte| match byte {
                    b'x' => FileEntry::Bad(Some("x".into()), Error::corrupt("bad")),
                    b'2' => FileEntry::Skip(2),
                    b'!' => FileEntry::Broken(Error::truncated("broken")),
                    byte => FileEntry::item(char::from(byte)),
                },
            )))
        }
    }

    #[test]
    fn items_and_errors_come_in_their_places_and_files_go_on() {
        let files = ["ab", "", "cxd", "e!f", "g"].map(|text| File::new(text, text));
        for workers in [0, 2] {
            let graph = Graph::from_vec(files.to_vec())
                .named("files")
                .read_as(Letters);
            let loader = DataLoader::builder(graph)
                .workers(workers)
                .on_error(OnError::skip(10))
                .build()
                .unwrap();
            let read: String = loader.epoch(0).blocking().map(Result::unwrap).collect();
            assert_eq!(read, "abcdeg");
            let errors: Vec<String> = loader
                .stats()
                .unwrap()
                .skipped_items
                .into_iter()
                .map(|skipped| skipped.error)
                .collect();
            let expected = [
                "letters: 0:1: truncated: empty",
                "letters: 0:2/x: corrupt: bad",
                "letters: 0:3: truncated: broken",
            ];
            assert_eq!(errors, expected);
        }
    }

    #[test]
    fn letters_left_out_are_counted_and_keep_their_origins() {
        let files = Graph::from_vec(vec![File::new("f", "2a2x2")]).named("files");
        let loader = DataLoader::builder(files.read_as(Letters).named("read"))
            .on_error(OnError::skip(10))
            .build()
            .unwrap();
        let read: Vec<char> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(read, ['a']);
        let stats = loader.stats().unwrap();
        assert_eq!(stats.skipped_items[0].error, "read: 0:0/x: corrupt: bad");
        let dropped = stats.nodes.iter().map(|node| node.dropped).sum::<u64>();
        assert_eq!(dropped, 6);
        let items = ReadAs::new(Letters).apply(
            datapipes::Items::from_results(vec![Ok(Item::new(
                File::new("f", "2a2b"),
                Origin::root(0, 0),
            ))]),
            &Context::default(),
        );
        let items = futures::executor::block_on_stream(items);
        let origins: Vec<String> = items
            .map(|item| item.unwrap().origin().to_string())
            .collect();
        assert_eq!(origins, ["0:0/2", "0:0/5"]);
    }

    #[test]
    fn reads_all_with_errors_in_their_places() {
        let read = crate::testing::read_all(Letters, Bytes::from("axb"));
        assert_eq!(
            read.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true]
        );
        assert_eq!(crate::testing::check_format(|| Letters, b"abc"), 3);
    }

    #[test]
    fn types_are_named_without_their_paths_and_parameters() {
        assert_eq!(snake_case("a::b::TfRecord"), "tf_record");
        assert_eq!(snake_case("a::Json<b::Row>"), "json");
    }
}
