//! Index of a tar archive.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result};
use serde::Deserialize;

use super::Tar;
use super::header::{BLOCK, MAX_EXTENSION, MAX_EXTENSIONS, padding};
use super::walk::{Place, Step, Walker};
use crate::stores::{Get, Meta, Store};

/// An index of a tar archive: names, positions and sizes of its regular files, in their order, so
/// that each file can be read by one request; see [`IndexedTar`](super::IndexedTar).
///
/// The archive is parsed by the same code as in [`Untar`](super::Untar), with the same errors. Some
/// archives that can be streamed cannot have an index, and are `Unsupported`: compressed archives,
/// archives with a sparse member, and archives in which a global header sets names or sizes of the
/// members after it. Duplicate names are kept. Memory holds the names and 40 bytes for each member.
///
/// The text form is JSON, with a line for each member:
///
/// ```text
/// {"tar_index": 1, "size": 4096, "members": [
/// ["a.txt", 0, 512, 5],
/// ["b.txt", 1024, 1536, 700]
/// ]}
/// ```
/// `size` is the size of the archive in bytes. The fields of a member are: the name as in
/// [`File::name`](crate::File::name); the position of its first header (a long name has several
/// headers); the position of its data; the size of its data in bytes.
///
/// # Examples
/// ```
/// use datapipes_io::formats::{TarIndex, TarWriter};
/// let mut archive = TarWriter::new(Vec::new());
/// archive.append("a.txt", b"hello")?;
/// let index = TarIndex::of(&archive.finish()?.into())?;
/// let member = index.get(0).unwrap();
/// assert_eq!((member.name, member.data), ("a.txt", 512..517));
/// assert_eq!(TarIndex::from_json(index.to_json())?, index);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarIndex {
    size: u64,
    members: Vec<(Arc<str>, Place)>,
}

/// A member of an archive, from its index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TarMember<'a> {
    /// Name of the member.
    pub name: &'a str,
    /// Range of its headers and its data.
    pub all: Range<u64>,
    /// Range of its data.
    pub data: Range<u64>,
}

/// Size in bytes of the pieces in which headers are read: a few small members, and little of a
/// large one.
const STEP: u64 = 16 << 10;
/// Version of the text form.
const VERSION: u64 = 1;

impl TarIndex {
    /// Makes the index of an archive in memory.
    ///
    /// # Errors
    /// The errors of reading the archive; `Unsupported` if it can have no index.
    pub fn of(archive: &Bytes) -> Result<TarIndex> {
        TarIndex::of_with(archive, &Tar::new())
    }

    /// Makes the index as [`of`](TarIndex::of) does, with the end of the archive checked by the
    /// rules of `tar`: [`require_end`](Tar::require_end) and [`trailing`](Tar::trailing).
    ///
    /// # Errors
    /// The errors of [`of`](TarIndex::of).
    pub fn of_with(archive: &Bytes, tar: &Tar) -> Result<TarIndex> {
        let mut scan = Scan::new(archive.len() as u64, tar);
        scan.walker.push(archive.clone());
        scan.walker.end();
        match scan.walk()? {
            None => Ok(scan.index),
            Some(_) => Err(Error::truncated(
                "an archive that asks for more than there is",
            )),
        }
    }

    /// Makes the index of an object of a store. Only headers are read, in ranges of 16 KiB, one
    /// after the other, since each header tells the position of the next; this takes about one
    /// round trip for each member that is larger.
    ///
    /// # Errors
    /// The errors of reading the archive, with its URL; `Unsupported` if it can have no index, or
    /// the store does not know its size; `Changed` if it changes meanwhile and the store has
    /// versions.
    pub async fn scan(store: &(impl Store + ?Sized), key: &str) -> Result<TarIndex> {
        TarIndex::scan_with(store, key, &Tar::new()).await
    }

    /// Makes the index as [`scan`](TarIndex::scan) does, with the end of the archive checked by the
    /// rules of `tar`: [`require_end`](Tar::require_end) and [`trailing`](Tar::trailing). The index
    /// has all members that [`Untar`](super::Untar) with the same settings yields, and works with
    /// [`IndexedTar::new`](super::IndexedTar::new) like any other.
    ///
    /// # Errors
    /// The errors of [`scan`](TarIndex::scan).
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::formats::{IndexedTar, Tar, TarIndex, TarWriter, Trailing};
    /// use datapipes_io::stores::InMemory;
    /// let mut archive = TarWriter::new(Vec::new());
    /// archive.append("a.txt", b"hello")?;
    /// let store = InMemory::from_iter([("x.tar", archive.finish()?.repeat(2))]); // cat a.tar a.tar
    /// let reads = Tar::new().trailing(Trailing::Read);
    /// let index = futures::executor::block_on(TarIndex::scan_with(&store, "x.tar", &reads))?;
    /// assert_eq!(index.len(), 2);
    /// let members = datapipes::Indexed::new(IndexedTar::new(store, "x.tar", index)).fetch().collect()?;
    /// assert_eq!(members[1].data, "hello");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub async fn scan_with(
        store: &(impl Store + ?Sized),
        key: &str,
        tar: &Tar,
    ) -> Result<TarIndex> {
        let url = store.url_of(key);
        let Meta { size, version, .. } = store.head(key).await?;
        let Some(size) = size else {
            let what = format!("{url}: an index needs to know how many bytes it has");
            return Err(Error::unsupported(what));
        };
        let mut scan = Scan::new(size, tar);
        while let Some(at) = scan.walk().map_err(|error| error.within(&url))? {
            if at >= size {
                scan.walker.end();
                continue;
            }
            let range = at..size.min(at + STEP);
            let get = Get::range(range.clone()).of_version(version.clone());
            let piece = store.get(key, get).await?.bytes().await?;
            if piece.len() as u64 != range.end - range.start {
                return Err(Error::changed(format!(
                    "{url}: {} of {} bytes at {at}",
                    piece.len(),
                    range.end - range.start
                )));
            }
            scan.walker.push(piece);
        }
        Ok(scan.index)
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the size of the archive in bytes.
    pub fn archive_size(&self) -> u64 {
        self.size
    }

    /// Returns a member by its number.
    pub fn get(&self, index: usize) -> Option<TarMember<'_>> {
        let (
            name,
            Place {
                start,
                offset,
                size,
            },
        ) = self.members.get(index)?;
        Some(TarMember {
            name,
            all: *start..offset + size,
            data: *offset..offset + size,
        })
    }

    /// Returns the members, in the order of the archive.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TarMember<'_>> {
        (0..self.len()).map(|index| self.get(index).expect("a number below the length"))
    }

    /// Returns the name of a member, shared.
    pub(super) fn name(&self, index: usize) -> &Arc<str> {
        &self.members[index].0
    }

    /// Returns the text form described [above](TarIndex), to be stored beside the archive.
    pub fn to_json(&self) -> String {
        let mut text = format!(
            "{{\"tar_index\": {VERSION}, \"size\": {}, \"members\": [",
            self.size
        );
        for (
            n,
            (
                name,
                Place {
                    start,
                    offset,
                    size,
                },
            ),
        ) in self.members.iter().enumerate()
        {
            let (comma, name) = (
                if n > 0 { "," } else { "" },
                serde_json::Value::from(&**name),
            );
            write!(text, "{comma}\n[{name}, {start}, {offset}, {size}]")
                .expect("a string takes all");
        }
        text + "\n]}\n"
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// `Corrupt` for any other text, and for positions that are not those of consecutive members in
    /// an archive of that size; `Unsupported` for another version. The index is compared with the
    /// archive when its members are read.
    pub fn from_json(text: impl AsRef<[u8]>) -> Result<TarIndex> {
        let text: Text = serde_json::from_slice(text.as_ref())
            .map_err(|error| Error::corrupt("no index of a tar archive").with_source(error))?;
        if text.tar_index != VERSION {
            let what = format!(
                "an index of version {}; this library reads {VERSION}",
                text.tar_index
            );
            return Err(Error::unsupported(what));
        }
        let size = text.size;
        let mut end = 0;
        let mut members = Vec::with_capacity(text.members.len());
        for (n, (name, start, offset, len)) in text.members.into_iter().enumerate() {
            let place = Place {
                start,
                offset,
                size: len,
            };
            let after = place.after(end, size).ok_or_else(|| {
                Error::corrupt(format!(
                    "member {n} of an index, {name:?}: {len} bytes at {offset}, headers at {start}, after {end} of {size}"
                ))
            })?;
            end = after;
            members.push((name.into(), place));
        }
        Ok(TarIndex { size, members })
    }
}

/// The text form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    tar_index: u64,
    size: u64,
    members: Vec<(String, u64, u64, u64)>,
}

impl Place {
    /// Returns the minimum position of the next member, if this member may follow `end` in an
    /// archive of `size` bytes.
    fn after(self, end: u64, size: u64) -> Option<u64> {
        let block = BLOCK as u64;
        let headers = self.offset.checked_sub(self.start)?;
        let data_end = self.offset.checked_add(self.size)?;
        let is_one = self.start >= end
            && self.start.is_multiple_of(block)
            && headers.is_multiple_of(block)
            && (block..=MAX_HEADERS).contains(&headers)
            && data_end <= size;
        is_one.then(|| data_end.saturating_add(padding(self.size)))
    }
}

/// Maximum size of the headers of one member: extensions, and its own.
const MAX_HEADERS: u64 = MAX_EXTENSIONS as u64 * (MAX_EXTENSION + BLOCK as u64) + BLOCK as u64;

/// An index that is being made.
struct Scan {
    walker: Walker,
    index: TarIndex,
}

impl Scan {
    fn new(size: u64, tar: &Tar) -> Self {
        let walker = Walker::new(Some(size)).headers_only().ends(tar.ends);
        Scan {
            walker,
            index: TarIndex {
                size,
                members: Vec::new(),
            },
        }
    }

    /// Continues until more bytes are needed, and returns their position; `None` at the end.
    fn walk(&mut self) -> Result<Option<u64>> {
        let unfit = |what: String| Err(Error::unsupported(what));
        loop {
            match self.walker.next() {
                Step::File(file, place) => {
                    if self.walker.is_global() {
                        return unfit(format!(
                            "a global header gives {:?} its name or size, so that it cannot be read by itself",
                            file.name
                        ));
                    }
                    self.index.members.push((file.name, place));
                }
                Step::Refused(name, error) => return Err(error.within(format!("member {name:?}"))),
                Step::Broken(error) => return Err(error),
                Step::More => return Ok(Some(self.walker.jump())),
                Step::End => return Ok(None),
            }
        }
    }
}
