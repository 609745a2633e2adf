//! Opens tar archives.

use std::io::Read;

use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Hints, Items, Pipe, Result};

use super::ends::{Ends, Trailing};
use super::header::begins_archive;
use super::walk::{Step, Walker};
use crate::File;
use crate::formats::compression::Expansion;
use crate::formats::compression::{reader, unpack};
use crate::formats::{Codec, FileEntries, FileEntry, Format, ReadAs};

/// Opens tar archives; see [`FileGraphExt::untar`](crate::FileGraphExt::untar).
///
/// - Reads the formats v7, ustar, GNU (long names) and pax. Folders, links and devices are left
///   out. A sparse member is refused with its name, never returned in its condensed form.
/// - An archive that is compressed, recognized by its first bytes ([`Codec`]), is decompressed as
///   it is read, in pieces of 1 MiB. A member is a slice of a piece; if it spans several pieces, it
///   is copied together once. Memory holds the compressed archive, a piece, and the members in use,
///   each with its piece.
/// - A compressed stream is read to its end, also after the end of the archive. An error there,
///   such as a wrong checksum, comes after the members that were decompressed before it: only then
///   it is known if they were right.
/// - A header with a wrong checksum, a cut, a malformed extension, an empty file, or data after the
///   end marker is an error that contains the position and the member before. The earlier members
///   have been yielded by then; the next archive follows.
/// - The end marker (two blocks of zeros) may be missing or incomplete, since some tools write
///   none, and others read such archives silently. A file cut exactly between two members can
///   therefore not be told from a whole file, unless [`require_end`](Untar::require_end) is set.
///   Set it if the writer is known: this library, WebDataset, GNU tar, bsdtar and Python write the
///   marker. Zeros after the marker are padding; [`trailing`](Untar::trailing) sets the treatment
///   of other data.
/// - Names are only names: nothing is ever written, so `..` and absolute paths are harmless here.
///   The [origin](datapipes::Origin) of a member is a child of its archive's, numbered among the
///   yielded members.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Untar {
    tar: Tar,
}

impl Untar {
    /// Returns the pipe with the default limits of [`max_expansion`](Untar::max_expansion).
    pub fn new() -> Self {
        Untar::default()
    }

    datapipes::setters! {
        /// Refuses a compressed archive that decompresses to more than `bytes`, or to more than `ratio`
        /// times its own size once it is past 1 MiB. Defaults to 8 GiB and 1100 times, which is more
        /// than gzip can reach.
        max_expansion(bytes: u64, ratio: u64) => tar.expansion.limit(bytes, ratio);

        /// Refuses an archive without its whole end marker, two blocks of zeros: `Truncated`, after the
        /// members. By default the marker may be missing, since some tools write none.
        ///
        /// ```
        /// use datapipes::Graph;
        /// use datapipes_io::formats::TarWriter;
        /// use datapipes_io::{File, Untar};
        /// let mut archive = TarWriter::new(Vec::new());
        /// archive.append("a.txt", b"hello")?;
        /// archive.append("b.txt", b"world")?;
        /// let cut = File::new("x.tar", archive.finish()?[..1024].to_vec()); // after the first member
        /// let graph = Graph::from_vec(vec![cut]);
        /// assert_eq!(graph.clone().pipe(Untar::new()).collect()?.len(), 1);
        /// let error = graph.pipe(Untar::new().require_end()).collect().unwrap_err();
        /// assert!(error.to_string().contains("no end marker, so that members may be missing"));
        /// # Ok::<(), datapipes::Error>(())
        /// ```
        require_end() => tar.ends.marked = true;

        /// Sets the treatment of data after the end marker; by default they are an error. A block of
        /// zeros that is followed by data is damage, not a marker, whatever the setting.
        ///
        /// ```
        /// use datapipes::Graph;
        /// use datapipes_io::formats::{TarWriter, Trailing};
        /// use datapipes_io::{File, Untar};
        /// let mut archive = TarWriter::new(Vec::new());
        /// archive.append("a.txt", b"hello")?;
        /// let twice = Graph::from_vec(vec![File::new("x.tar", archive.finish()?.repeat(2))]); // cat a.tar a.tar
        /// let members = |trailing| twice.clone().pipe(Untar::new().trailing(trailing)).collect().map(|files| files.len());
        /// assert_eq!((members(Trailing::Ignore)?, members(Trailing::Read)?), (1, 2));
        /// assert!(members(Trailing::Refuse).is_err());
        /// # Ok::<(), datapipes::Error>(())
        /// ```
        trailing(trailing: Trailing) => tar.ends.trailing = trailing;
    }
}

impl Pipe<File> for Untar {
    type Out = File;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<File> {
        ReadAs::new(self.tar.clone()).apply(input, cx)
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .children(true)
            .settings(self.tar.ends.settings())
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

/// Tar archives as a [`Format`]; see the pipe [`Untar`] for the rules.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Tar {
    pub(super) expansion: Expansion,
    pub(super) ends: Ends,
}

impl Tar {
    /// Returns the format with the default limits of [`Untar::max_expansion`].
    pub fn new() -> Self {
        Tar::default()
    }

    datapipes::setters! {
        /// Sets the limits of [`Untar::max_expansion`].
        max_expansion(bytes: u64, ratio: u64) => expansion.limit(bytes, ratio);

        /// Requires an end marker, as [`Untar::require_end`].
        require_end() => ends.marked = true;

        /// Sets the treatment of data after the end marker, as [`Untar::trailing`].
        trailing(trailing: Trailing) => ends.trailing = trailing;
    }

    pub(super) fn members(&self, data: Bytes, cx: &Context) -> Members {
        match codec_of(&data) {
            None => Members {
                walker: Walker::whole(data).ends(self.ends),
                packed: None,
                failed: None,
            },
            Some(codec) => Members {
                walker: Walker::new(None).ends(self.ends),
                packed: Some(reader(codec, data, self.expansion, cx)),
                failed: None,
            },
        }
    }
}

impl Format for Tar {
    type Item = File;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<File>> {
        Ok(Box::new(self.members(file.data, cx)))
    }
    fn settings(&self) -> String {
        self.ends.settings()
    }
}

/// Returns the codec of an archive by its beginning of at least a block. The name of a first member
/// may look like the beginning of a compressed file.
pub(super) fn codec_of(data: &[u8]) -> Option<Codec> {
    Codec::of_magic(data).filter(|_| !begins_archive(data))
}

/// Number of bytes decompressed at once.
const PIECE: u64 = 1 << 20;

/// The members of an archive.
pub(super) struct Members {
    walker: Walker,
    packed: Option<Box<dyn Read + Send>>,
    /// Error that ended the compressed stream, after the bytes that were decompressed.
    failed: Option<Error>,
}

impl Members {
    /// Gives the walker the bytes that it needs.
    fn feed(&mut self) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        match self.inflate()? {
            Some(piece) => self.walker.push(piece),
            None => self.walker.end(),
        }
        Ok(())
    }

    /// Returns the next piece of a compressed archive; `None` at the end.
    fn inflate(&mut self) -> Result<Option<Bytes>> {
        let Some(packed) = &mut self.packed else {
            return Ok(None);
        };
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE as usize).map_err(|_| {
            let what = format!("no memory for a piece of {PIECE} bytes");
            Error::limit(what)
        })?;
        if let Err(error) = packed.by_ref().take(PIECE).read_to_end(&mut piece) {
            self.failed = Some(unpack(error, ErrorKind::Corrupt, "a compressed archive"));
            self.packed = None;
        } else if piece.is_empty() {
            self.packed = None;
        }
        // A small archive must not hold a large piece in memory.
        piece.shrink_to_fit();
        Ok(Some(piece.into()))
    }

    /// Reads a compressed archive to its end, also after the part of it that is ignored.
    fn drain(&mut self) -> Result<()> {
        while self.inflate()?.is_some() {}
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Iterator for Members {
    type Item = FileEntry<File>;

    fn next(&mut self) -> Option<FileEntry<File>> {
        loop {
            return Some(match self.walker.next() {
                Step::File(file, _) => FileEntry::Item(Some(file.name.clone()), file),
                Step::Refused(name, error) => FileEntry::Bad(Some(name), error),
                // An error of the stream explains the error of the archive in it.
                Step::Broken(error) => FileEntry::Broken(self.failed.take().unwrap_or(error)),
                Step::More => match self.feed() {
                    Ok(()) => continue,
                    Err(error) => FileEntry::Broken(error),
                },
                Step::End => FileEntry::Broken(self.drain().err()?),
            });
        }
    }
}
