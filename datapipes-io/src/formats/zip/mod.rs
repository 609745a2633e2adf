//! Opens zip archives.

mod directory;
mod member;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, Error, Result};

pub(super) use member::Member;

use super::compression::Expansion;
use super::{FileEntries, FileEntry, Format};
use crate::File;
use directory::Record;

/// Opens zip archives, and yields their files in the order of the directory.
///
/// - Stored members are slices of the archive, which they keep in memory; deflated members are
///   decompressed when they are requested, in one pass, into memory of their own. Zip64 and data
///   descriptors are supported.
/// - Folders and symbolic links are left out. A member that is encrypted, or compressed in another
///   way, is `Unsupported` in its place, and the next member follows.
/// - The CRC of each member is checked; [`unchecked`](Unzip::unchecked) disables that for stored
///   members, whose bytes are then not read.
/// - Names are only names: nothing is ever written, so `..` and absolute paths are harmless here.
///   Bytes that are not UTF-8 (old code pages) are shown as `\xNN`.
/// - Archives that zip readers interpret in different ways are an error: members that overlap, two
///   ends of the directory, a name that comes twice (from the second one on), headers that differ
///   from the directory, and bytes before or after the archive.
///
/// The format is specified by PKWARE's
/// [APPNOTE](https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT).
///
/// # Errors
/// `Truncated` if the file does not end with the end of the directory; `Corrupt` for an invalid
/// directory, and then no member is yielded. In place of a member: `Corrupt` if its header, size or
/// CRC differs from the directory, `Limit` past [`max_expansion`](Unzip::max_expansion), and
/// `Unsupported`.
///
/// # Examples
/// ```
/// use std::io::Write;
/// use datapipes::Graph;
/// use datapipes_io::formats::Unzip;
/// use datapipes_io::{File, prelude::*};
///
/// let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
/// archive.start_file("a.txt", zip::write::SimpleFileOptions::default())?;
/// archive.write_all(b"hello")?;
/// let archive = File::new("x.zip", archive.finish()?.into_inner());
///
/// let files = Graph::from_vec(vec![archive]).read_as(Unzip::new());
/// assert_eq!(files.collect()?, [File::new("a.txt", "hello")]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Unzip {
    options: Options,
}

/// Settings for reading members.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) expansion: Expansion,
    pub(super) unchecked: bool,
}

impl Unzip {
    /// Returns the format with the default limits of [`max_expansion`](Unzip::max_expansion).
    pub fn new() -> Self {
        Unzip::default()
    }

    datapipes::setters! {
        /// Refuses members that decompress to more than `bytes` together, or to more than `ratio` times
        /// their own size once past 1 MiB. Defaults to 8 GiB and 1100 times, which is more than deflate
        /// can reach.
        max_expansion(bytes: u64, ratio: u64) => options.expansion.limit(bytes, ratio);

        /// Disables the check of the CRC of stored members.
        unchecked() => options.unchecked = true;
    }
}

impl Format for Unzip {
    type Item = File;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<File>> {
        let (members, cx) = (Members::open(file.data, self.options, cx)?, cx.clone());
        Ok(Box::new(members.map(move |(name, member)| {
            let file = member.and_then(|member| {
                let data = member.content(&|| cx.is_cancelled())?;
                Ok(File {
                    name: member.name,
                    data,
                })
            });
            match file {
                Ok(file) => FileEntry::Item(Some(name), file),
                Err(error) => FileEntry::Bad(Some(name), error),
            }
        })))
    }
}

/// The members of an archive with their names, or the errors in their places.
pub(super) struct Members {
    archive: Bytes,
    records: std::vec::IntoIter<Record>,
    options: Options,
    /// Maximum decompressed size of a member that the loader allows.
    allowed: u64,
    /// Total decompressed size of the members so far.
    inflated: u64,
    /// Number of the first member of each name.
    seen: HashMap<Arc<str>, usize>,
    number: usize,
}

impl Members {
    pub(super) fn open(archive: Bytes, options: Options, cx: &Context) -> Result<Members> {
        let records = directory::read(&archive)?;
        let seen = HashMap::with_capacity(records.len());
        Ok(Members {
            archive,
            records: records.into_iter(),
            options,
            allowed: cx.max_inflated().unwrap_or(u64::MAX),
            inflated: 0,
            seen,
            number: 0,
        })
    }

    fn member(&mut self, record: &Record) -> Result<Member> {
        if let Some(first) = self.seen.insert(record.name.clone(), self.number) {
            let what = format!("member {} has the name of member {first}", self.number);
            return Err(Error::corrupt(what));
        }
        if let Some(error) = record.refusal() {
            return Err(error);
        }
        let member = Member {
            name: record.name.clone(),
            raw: record.raw(&self.archive)?,
            deflated: record.method == 8,
            size: record.size,
            crc: record.crc,
            checked: !self.options.unchecked,
        };
        member.check_size()?;
        if member.deflated {
            self.count(record)?;
        }
        Ok(member)
    }

    /// Adds the stated size, which decompression never exceeds, and compares it with the limits.
    fn count(&mut self, record: &Record) -> Result<()> {
        if record.size > self.allowed {
            return Err(Error::limit(format!(
                "{} bytes inflate to {}, the loader allows {} (`max_inflated`)",
                record.packed, record.size, self.allowed
            )));
        }
        let Expansion { bytes, ratio, .. } = self.options.expansion;
        let all = self.inflated.saturating_add(record.size);
        if all > bytes || record.size > self.options.expansion.most(record.packed) {
            let what = format!(
                "{} bytes inflate to {}, with the members before {all}; the limits are {bytes} bytes and {ratio} times the size",
                record.packed, record.size
            );
            return Err(Error::limit(what));
        }
        self.inflated = all;
        Ok(())
    }
}

impl Iterator for Members {
    type Item = (Arc<str>, Result<Member>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let record = self.records.next()?;
            let member = (!record.is_other).then(|| self.member(&record));
            self.number += 1;
            if let Some(member) = member {
                return Some((record.name, member));
            }
        }
    }
}
