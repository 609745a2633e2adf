//! Opens tar archives while they arrive.

use std::sync::Arc;

use datapipes::{Children, Context, Emitter, Error, Hints, Items, Origin, Pipe, Result, Work};

use super::ends::Trailing;
use super::header::BLOCK;
use super::untar::{Members, Tar, codec_of};
use super::walk::{Step, Walker};
use crate::formats::FileEntry;
use crate::formats::arriving::Arriving;
use crate::stores::Get;
use crate::stores::local::{Buffers, MOST_IDLE};
use crate::{File, FileRef};

/// Opens tar archives while they arrive; see
/// [`FileGraphExt::stream_untar`](crate::FileGraphExt::stream_untar).
///
/// - An archive is read in the pieces in which its store returns it. Those of a local file of
///   more than 4 MiB have 512 KiB at first, and double up to 4 MiB. Their memory is reused, and they are
///   read by the workers while reads seldom wait, as by [`LoadFiles`](crate::LoadFiles). Pieces under 256 KiB are copied into pieces of
///   up to 1 MiB, without waiting for more bytes. A member is a slice of its piece, or, if it spans
///   pieces, copied together once. Memory therefore holds one piece of an archive, the members in use, each with its piece, and
///   up to [`idle_bytes`](StreamUntar::idle_bytes) of pieces to be used again.
/// - A member larger than [`max_member`](StreamUntar::max_member) is refused before its bytes are
///   collected. A size beyond the end of an object of known length is an error at once.
/// - An archive that is compressed, recognized by its first bytes as by
///   [`Codec`](crate::formats::Codec), is read whole, in compressed form, before its first member;
///   then it is decompressed as [`Untar`](crate::Untar) does.
/// - Members, errors, names and origins are the same as for [`Untar`](crate::Untar). An error of
///   the store comes after the members that arrived before it. An object whose size differs from
///   the listed size is `Changed`.
/// - A body that fails half-way is not requested again here: wrap the store in one that
///   [resumes](crate::stores::resilient).
#[derive(Clone, Debug)]
#[must_use]
pub struct StreamUntar {
    tar: Tar,
    max_member: u64,
    buffers: Arc<Buffers>,
}

impl Default for StreamUntar {
    fn default() -> Self {
        StreamUntar {
            tar: Tar::new(),
            max_member: 8 << 30,
            buffers: Buffers::new(MOST_IDLE),
        }
    }
}

impl StreamUntar {
    /// Returns the pipe with the default limits of [`max_member`](StreamUntar::max_member) and
    /// [`max_expansion`](StreamUntar::max_expansion).
    pub fn new() -> Self {
        StreamUntar::default()
    }

    datapipes::setters! {
        /// Sets the maximum number of bytes in idle pieces; 0 for none. Defaults to 256 MiB.
        idle_bytes(bytes: usize) => buffers = Buffers::new(bytes);

        /// Refuses members of more than `bytes`. Defaults to 8 GiB.
        max_member(bytes: u64) => max_member = bytes;

        /// Sets the limits of [`Untar::max_expansion`](crate::Untar::max_expansion).
        max_expansion(bytes: u64, ratio: u64) => tar.expansion.limit(bytes, ratio);

        /// Requires an end marker, as [`Untar::require_end`](crate::Untar::require_end).
        require_end() => tar.ends.marked = true;

        /// Sets the treatment of data after the end marker, as
        /// [`Untar::trailing`](crate::Untar::trailing). Data that are ignored are not requested from
        /// the store.
        trailing(trailing: Trailing) => tar.ends.trailing = trailing;
    }
}

impl Pipe<FileRef> for StreamUntar {
    type Out = File;

    fn apply(&self, mut input: Items<FileRef>, cx: &Context) -> Items<File> {
        let (settings, cx) = (self.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(archive) = out.next_from(&mut input).await {
                let (file, origin) = archive.into_parts();
                let mut out = Out {
                    children: origin.children(),
                    index: 0,
                    origin,
                    out: &out,
                    cx: &cx,
                };
                if let Err(error) = settings.read(&file, &mut out, &cx).await {
                    out.give(FileEntry::Broken(error)).await;
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .children(true)
            .settings(self.tar.ends.settings())
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

/// Output for the members of one archive.
struct Out<'a> {
    origin: Origin,
    children: Children,
    index: u64,
    out: &'a Emitter<File>,
    cx: &'a Context,
}

impl Out<'_> {
    async fn give(&mut self, entry: FileEntry<File>) {
        let (origin, children) = (&self.origin, &self.children);
        if let Some(item) = entry.placed(origin, children, &mut self.index, self.cx) {
            self.out.emit(item).await;
        }
    }
}

/// Maximum number of members of a compressed archive that are decompressed in one task on a
/// blocking thread.
const TOGETHER: usize = 256;
/// Maximum number of their bytes.
const STEP: usize = 1 << 20;

impl StreamUntar {
    async fn read(&self, file: &FileRef, out: &mut Out<'_>, cx: &Context) -> Result<()> {
        let mut arriving = Arriving::open_into(&self.buffers, file, Get::default()).await?;
        let Some(first) = arriving.first(BLOCK).await? else {
            return Err(Error::truncated("an empty file where an archive is due"));
        };
        if codec_of(&first).is_some() {
            let packed = arriving.all(first).await?;
            return unpack(self.tar.members(packed, cx), out, cx).await;
        }
        let mut walker = Walker::new(arriving.len())
            .max_member(self.max_member)
            .ends(self.tar.ends);
        walker.push(first);
        while !cx.is_cancelled() {
            match walker.next() {
                Step::File(file, _) => {
                    out.give(FileEntry::Item(Some(file.name.clone()), file))
                        .await
                }
                Step::Refused(name, error) => out.give(FileEntry::Bad(Some(name), error)).await,
                // An error of the body explains the error of the archive.
                Step::Broken(error) => return Err(arriving.failed().unwrap_or(error)),
                Step::End => break,
                Step::More => match arriving.piece().await? {
                    Some(piece) => walker.push(piece),
                    None => walker.end(),
                },
            }
        }
        Ok(())
    }
}

/// Decompresses on a blocking thread, where it delays no other I/O.
async fn unpack(mut members: Members, out: &mut Out<'_>, cx: &Context) -> Result<()> {
    while !cx.is_cancelled() {
        let (rest, entries) = cx
            .blocking(move || {
                let (mut entries, mut bytes) = (Vec::new(), 0);
                while bytes < STEP && entries.len() < TOGETHER {
                    let Some(entry) = members.next() else { break };
                    bytes += if let FileEntry::Item(_, file) = &entry {
                        file.data.len()
                    } else {
                        0
                    };
                    let is_last = matches!(entry, FileEntry::Broken(_));
                    entries.push(entry);
                    if is_last {
                        break;
                    }
                }
                (members, entries)
            })
            .await?;
        members = rest;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            match entry {
                FileEntry::Broken(error) => return Err(error),
                entry => out.give(entry).await,
            }
        }
    }
    Ok(())
}
