//! The methods that add this crate's pipes to a graph.

use std::sync::Arc;

use datapipes::Graph;

use crate::formats::{Decoded, FieldDecoder, SplitRecords, StreamUntar, Value};
use crate::stores::load::OpenFiles;
use crate::{Decompress, File, FileRef, Format, LoadFiles, ReadAs, Sample, Samples, Untar};

/// A graph of `T`s: the receiver of the methods that this crate adds to graphs.
#[diagnostic::on_unimplemented(
    message = "this step takes a graph of `{T}`, and `{Self}` is another",
    note = "`list_files` gives `FileRef`s; put `.load_files()` before what takes `File`s, and `.samples()` before what takes `Sample`s"
)]
pub trait GraphOf<T>: Sized {
    /// Returns the graph itself.
    #[doc(hidden)]
    fn graph(self) -> Graph<T>;
}

impl<T> GraphOf<T> for Graph<T> {
    fn graph(self) -> Graph<T> {
        self
    }
}

/// A graph that [`map_files`](FileGraphExt::map_files) accepts: a list of files, in a build with
/// the feature `mmap`.
#[diagnostic::on_unimplemented(
    message = "`map_files` needs the feature `mmap` of `datapipes-io`",
    note = "in Cargo.toml: `datapipes-io = {{ version = \"…\", features = [\"mmap\"] }}`"
)]
pub trait CanMap {
    /// Returns a graph of the mapped files.
    #[doc(hidden)]
    fn mapped(self) -> Graph<File>;
}

#[cfg(feature = "mmap")]
impl CanMap for Graph<FileRef> {
    fn mapped(self) -> Graph<File> {
        self.pipe(crate::MapFiles)
    }
}

/// A graph that [`read_as`](FileGraphExt::read_as) accepts: a graph of files, loaded or listed.
#[diagnostic::on_unimplemented(
    message = "`read_as` takes a graph of `File`s or `FileRef`s, and `{Self}` is another",
    note = "`list_files` gives `FileRef`s, `.load_files()` makes `File`s of them"
)]
pub trait Readable {
    /// Reads the files in the format, and returns a graph of their items.
    #[doc(hidden)]
    fn read_files<F: Format>(self, format: F) -> Graph<F::Item>;
}

impl Readable for Graph<File> {
    fn read_files<F: Format>(self, format: F) -> Graph<F::Item> {
        self.pipe(ReadAs::new(format))
    }
}

impl Readable for Graph<FileRef> {
    fn read_files<F: Format>(self, format: F) -> Graph<F::Item> {
        self.stream_as(format, STREAMED)
    }
}

/// Size in bytes above which a file is read as it arrives: about as much as arrives in the time of
/// one more request.
const STREAMED: u64 = 8 << 20;

/// Methods for graphs of file references, of files with their content, and of samples.
///
/// A method adds its pipe with the default settings. For others add the pipe itself:
/// `graph.pipe(Untar::new().require_end())`.
pub trait FileGraphExt: Sized {
    /// Reads each file whole, many at a time, in order.
    ///
    /// A file that cannot be read is an error in its place, and the next files follow. The buffers
    /// of large files are reused once nothing refers to their content; see [`LoadFiles`].
    ///
    /// # Errors
    /// `NotFound` and `Denied` name the path. `Unsupported` if the path is not a regular file (a
    /// folder named `x.jpg`, a pipe); `Corrupt` if the file changed while it was read; `Limit` if
    /// it does not fit in memory.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_io::{FileRef, prelude::*};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.txt");
    /// std::fs::write(&path, "hello")?;
    /// let files = Graph::from_vec(vec![FileRef::new(&path)]).load_files();
    /// assert_eq!(files.collect()?[0].data, "hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn load_files(self) -> Graph<File>
    where
        Self: GraphOf<FileRef>,
    {
        self.graph().pipe(LoadFiles::new())
    }

    /// Reads files as [`read_as`](FileGraphExt::read_as) does, but loads whole only files of at most
    /// `whole` bytes; with 0 only empty files. A larger limit makes fewer requests and reads more
    /// files at once; a smaller limit uses less memory.
    ///
    /// # Errors
    /// The errors of [`read_as`](FileGraphExt::read_as).
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::formats::JsonLines;
    /// use datapipes_io::prelude::*;
    /// use datapipes_io::stores::InMemory;
    ///
    /// let store = InMemory::from_iter([("a.jsonl", "[1]\n[2]\n")]);
    /// let values = store.list_files("*.jsonl").stream_as(JsonLines::<Vec<u32>>::new(), 1 << 20);
    /// assert_eq!(values.collect()?, [[1], [2]]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn stream_as<F: Format>(self, format: F, whole: u64) -> Graph<F::Item>
    where
        Self: GraphOf<FileRef>,
    {
        let (files, format) = (self.graph(), Arc::new(format));
        if format.splitter().is_none() && format.by_parts().is_none() {
            return files.load_files().pipe(ReadAs(format));
        }
        let blocks = files
            .pipe(OpenFiles::up_to(whole))
            .pipe(SplitRecords(format.clone()));
        blocks.pipe(ReadAs(format))
    }

    /// Maps each file into memory instead of reading it (`MapFiles`). Needs the feature `mmap`.
    ///
    /// Mapping suits large local files that are read in part, or repeatedly:
    /// nothing is copied, and untouched pages are not read. To read whole files once,
    /// [`load_files`](FileGraphExt::load_files) is faster, because it requests many files at a
    /// time; a mapped file is read page by page, and the thread that computes waits for each page.
    ///
    /// **Use it only for files that nobody changes meanwhile.** If another program truncates a
    /// mapped file, or the disk fails, touching the missing part ends this process (`SIGBUS`). If
    /// another program writes to the file, the data change while they are read, which is undefined
    /// behavior in Rust. This library cannot prevent either.
    ///
    /// # Errors
    /// The errors of [`load_files`](FileGraphExt::load_files); `Unsupported` for an object of a
    /// store.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_io::{FileRef, prelude::*};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("a.txt");
    /// std::fs::write(&path, "hello")?;
    /// # #[cfg(feature = "mmap")] {
    /// let files = Graph::from_vec(vec![FileRef::new(&path)]).map_files();
    /// assert_eq!(files.collect()?[0].data, "hello");
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn map_files(self) -> Graph<File>
    where
        Self: GraphOf<FileRef> + CanMap,
    {
        self.mapped()
    }

    /// Opens each tar archive while it arrives, and yields its regular files in order.
    ///
    /// Yields the same files as `load_files().untar()`, but no archive is ever whole in memory, and
    /// its first member comes before the rest is read. A local archive is also read faster, since its
    /// pieces stay in the caches. A member is a slice of a piece that arrived, or a copy if it spans
    /// several pieces. A compressed archive is read whole first. See
    /// [`StreamUntar`] for the rules.
    ///
    /// # Errors
    /// The errors of [`load_files`](FileGraphExt::load_files) and [`untar`](FileGraphExt::untar), in
    /// place of the archive, after the members that arrived before the error; the next archive
    /// follows.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::formats::TarWriter;
    /// use datapipes_io::prelude::*;
    /// use datapipes_io::stores::InMemory;
    ///
    /// let mut archive = TarWriter::new(Vec::new());
    /// archive.append("a.txt", b"hello")?;
    /// let store = InMemory::from_iter([("x.tar", archive.finish()?)]);
    /// let files = store.files(["x.tar"]).stream_untar().collect()?;
    /// assert_eq!((&*files[0].name, &files[0].data[..]), ("a.txt", &b"hello"[..]));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn stream_untar(self) -> Graph<File>
    where
        Self: GraphOf<FileRef>,
    {
        self.graph().pipe(StreamUntar::new())
    }

    /// Opens each tar archive, compressed or not, and yields its regular files in order.
    ///
    /// Members are slices of the archive: nothing is copied, and a member keeps its archive in
    /// memory. Members of a compressed archive are slices of the pieces into which it is
    /// decompressed. Members are yielded one by one. An archive that ends where its format requires
    /// more is an error; see [`Untar`] for the rules.
    ///
    /// # Errors
    /// An archive that is damaged or truncated yields the members before the damage, then one
    /// error, and the next archive follows. A sparse member is `Unsupported` in its place.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_io::{File, prelude::*};
    ///
    /// let mut archive = tar::Builder::new(Vec::new());
    /// let mut header = tar::Header::new_gnu();
    /// header.set_size(5);
    /// header.set_cksum();
    /// archive.append_data(&mut header, "a.txt", &b"hello"[..])?;
    ///
    /// let files = Graph::from_vec(vec![File::new("x.tar", archive.into_inner()?)]).untar().collect()?;
    /// assert_eq!(files, [File::new("a.txt", "hello")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn untar(self) -> Graph<File>
    where
        Self: GraphOf<File>,
    {
        self.graph().pipe(Untar::new())
    }

    /// Decompresses each file that is compressed, with the [`Codec`](crate::formats::Codec) that
    /// its first bytes indicate, and passes the other files on unchanged; see [`Decompress`].
    /// Archives need no such step before [`untar`](FileGraphExt::untar), and neither do lines and
    /// rows.
    ///
    /// # Errors
    /// A file that is damaged or truncated, has more bytes after its end, or is not compressed
    /// though its name says that it is, is an error in its place. `Limit` if the decompressed file
    /// is too large, `Unsupported` if the feature of its codec is not enabled.
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use datapipes::Graph;
    /// use datapipes_io::{File, prelude::*};
    ///
    /// let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    /// gzip.write_all(b"hello")?;
    /// let files = vec![File::new("a.txt.gz", gzip.finish()?), File::new("b.txt", "plain")];
    /// let read = Graph::from_vec(files).decompress().collect()?;
    /// assert_eq!(read, [File::new("a.txt", "hello"), File::new("b.txt", "plain")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn decompress(self) -> Graph<File>
    where
        Self: GraphOf<File>,
    {
        self.graph().pipe(Decompress::new())
    }

    /// Reads each file in a [`Format`], and yields its items one by one, in order: lines, rows,
    /// records. The input is a graph of loaded files, or a list of files; large files of a list are
    /// read as they arrive.
    ///
    /// An item is a child of its file: numbered, and named if the format has names. Files are
    /// spread over workers; one worker reads one loaded file, as far as its items are needed. The
    /// format documents if an item keeps its file in memory.
    ///
    /// # A list of files
    /// A list gives the same items as `load_files().read_as(format)`, with the same origins and
    /// therefore the same random numbers. But a file of more than 8 MiB is never whole in memory,
    /// if the format can be [cut](Format::splitter): lines, JSON lines, CSV, TFRecord, RecordIO,
    /// MessagePack and Arrow streams can. The file is read as its bytes arrive, decompressed if it
    /// is compressed, and cut between records into blocks of 256 KiB, or of one larger record,
    /// which workers parse. Memory holds one piece from the store (4 MiB for a local file), one
    /// record, and the blocks in progress. Smaller files, and files of other formats, are loaded
    /// whole, many at a time; of Parquet also large ones, unless `Parquet::by_row_group` is set.
    ///
    /// Large files are read one after the other, in one place; all workers parse their blocks. An
    /// epoch that is [resumed](datapipes::loader::Builder::resumable) in the middle of a file
    /// requests the rest of the file, by a range that begins at a record at most some blocks before
    /// the next record, or at its row group. A compressed file is decompressed from its beginning
    /// again, and items that were already delivered are skipped.
    ///
    /// [`stream_as`](FileGraphExt::stream_as) sets the size above which files are read this way.
    /// Use `load_files().read_as(format)` for uses that need whole files: to replay samples, or to
    /// run in other processes.
    ///
    /// # Errors
    /// An error in a file takes the place of the part that cannot be read. The items after it
    /// follow if the format can find them, and the next file follows in any case.
    ///
    /// For a list of files, also the errors of [`load_files`](FileGraphExt::load_files). An error
    /// of the store in the middle of a file comes after the items that were read before it, and the
    /// next file follows. A file that was replaced while it was read, or while the epoch was
    /// stopped, is `Changed` if the store can tell.
    ///
    /// # Panics
    /// A panic of the format becomes an error that names the file and ends the stream.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::formats::Lines;
    /// use datapipes_io::prelude::*;
    /// use datapipes_io::stores::InMemory;
    ///
    /// let store = InMemory::from_iter([("a.txt", "one\ntwo\n"), ("b.txt", "three")]);
    /// let lines = store.list_files("*.txt").read_as(Lines::new());
    /// assert_eq!(lines.collect()?, ["one", "two", "three"]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn read_as<F: Format>(self, format: F) -> Graph<F::Item>
    where
        Self: Readable,
    {
        self.read_files(format)
    }

    /// Groups consecutive files into samples by WebDataset's rules: `a/1.jpg` and `a/1.cls` are
    /// sample `a/1` with the fields `jpg` and `cls`.
    ///
    /// A sample never spans two archives. Plain files are grouped by their names in the same way.
    /// After [`untar`](FileGraphExt::untar) the grouping is spread over archives; elsewhere it needs
    /// the whole stream and runs in one place. Holds one sample. See [`Samples`] for the rules.
    ///
    /// # Errors
    /// A second file for the same field of a sample is `Corrupt`, in its place; the sample keeps
    /// the first file.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_io::{File, prelude::*};
    ///
    /// let files = ["a.jpg", "a.cls", "b.jpg"].map(|name| File::new(name, "7"));
    /// let samples = Graph::from_vec(files.to_vec()).samples().collect()?;
    /// assert_eq!((samples.len(), samples[0].key()), (2, "a"));
    /// assert_eq!(samples[0].parse::<u32>("cls")?, 7);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn samples(self) -> Graph<Sample>
    where
        Self: GraphOf<File>,
    {
        self.graph().pipe(Samples::new())
    }

    /// Decodes the fields of each sample by their extensions: `cls` becomes a number, `json` JSON;
    /// see [`FieldDecoder`].
    ///
    /// Runs on the CPU workers, on many samples at once; the order is preserved.
    ///
    /// # Errors
    /// `Corrupt` in place of the sample if a field does not match its extension; the error names
    /// sample, field and byte.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_io::{Sample, formats::FieldDecoder, prelude::*};
    /// let samples = Graph::from_vec(vec![Sample::new("a").with("cls", "3").with("txt", "three")]);
    /// let pairs = samples.decode_fields(FieldDecoder::new()).try_map(|mut sample| {
    ///     datapipes::Ok((sample.take("cls")?.as_int(), sample.take("txt")?))
    /// });
    /// assert_eq!(pairs.collect()?[0].0, Some(3));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn decode_fields<V: From<Value> + Send + 'static>(
        self,
        decoder: FieldDecoder<V>,
    ) -> Graph<Decoded<V>>
    where
        Self: GraphOf<Sample>,
    {
        self.graph().pipe(decoder)
    }
}

/// Implemented for graphs of any item, so that a call on a graph of other items gets a compiler
/// error that names the items the method accepts.
impl<T> FileGraphExt for Graph<T> {}
