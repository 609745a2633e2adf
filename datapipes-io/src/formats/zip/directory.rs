//! Reads the central directory of a zip archive in memory.
//!
//! Readers of this format disagree on some archives, so that different readers see different
//! members; such archives are an error here: two ends of the directory, a directory that is not at
//! its stated position, members that overlap, a local header that differs from the directory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result};

use crate::file::readable;

/// Sizes in bytes of an end record without its comment, of a directory entry and of a local header
/// without names.
const END: usize = 22;
const ENTRY: usize = 46;
const LOCAL: usize = 30;
/// Sizes in bytes of the end record of zip64, and of its locator.
const END64: usize = 56;
const LOCATOR: usize = 20;
/// Number of bytes that are searched at once for an end record.
const BLOCK: usize = 1024;
/// Value of a field that refers to the zip64 field.
const SEE_64: u32 = u32::MAX;

/// Directory entry of a member.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: Arc<str>,
    raw_name: Range<usize>,
    flags: u16,
    pub(super) method: u16,
    pub(super) crc: u32,
    /// Sizes in bytes in the archive, and of the content.
    pub(super) packed: u64,
    pub(super) size: u64,
    /// Position of the local header, and maximum position of the end of the data.
    at: usize,
    limit: usize,
    /// True for a folder or a link, which is left out.
    pub(super) is_other: bool,
}

/// Returns the members, in the order of the directory.
pub(super) fn read(archive: &[u8]) -> Result<Vec<Record>> {
    let (place, count) = find(archive)?;
    let (begin, directory) = (place.start, &archive[place.clone()]);
    // The count is trusted only as far as there are bytes.
    if count > (directory.len() / ENTRY) as u64 {
        return Err(Error::corrupt(format!(
            "{count} members stated, in a directory of {} bytes",
            directory.len()
        )));
    }
    let mut records = Vec::with_capacity(count as usize);
    let mut at = 0;
    for number in 0..count {
        let cut = || {
            Error::corrupt(format!(
                "the directory ends within entry {number} of {count}, at byte {begin} + {at}"
            ))
        };
        let entry = Fields(directory.get(at..at + ENTRY).ok_or_else(cut)?);
        if entry.u32(0) != 0x0201_4b50 {
            return Err(Error::corrupt(format!(
                "no entry of the directory at byte {}, number {number} of {count}",
                begin + at
            )));
        }
        let (name_len, extra_len) = (usize::from(entry.u16(28)), usize::from(entry.u16(30)));
        let name_at = at + ENTRY;
        let next = name_at + name_len + extra_len + usize::from(entry.u16(32));
        if next > directory.len() {
            return Err(cut());
        }
        let raw_name = name_at..name_at + name_len;
        let name = readable(&directory[raw_name.clone()]);
        let record = record(
            &entry,
            name.into(),
            begin + raw_name.start,
            &directory[raw_name.end..][..extra_len],
            begin,
        )?;
        records.push(record);
        at = next;
    }
    if at != directory.len() {
        return Err(Error::corrupt(format!(
            "{} bytes after the last of {count} entries of the directory",
            directory.len() - at
        )));
    }
    limit(&mut records, begin)?;
    Ok(records)
}

fn record(
    entry: &Fields<'_>,
    name: Arc<str>,
    raw_at: usize,
    extra: &[u8],
    begin: usize,
) -> Result<Record> {
    let bad = |what: &str| Error::corrupt(format!("member {name:?}: {what}"));
    let mut wide = Wide::find(extra).map_err(bad)?;
    // In this order, and only the values that do not fit their own field.
    let size = wide.field(entry.u32(24)).map_err(bad)?;
    let packed = wide.field(entry.u32(20)).map_err(bad)?;
    let at = wide.field(entry.u32(42)).map_err(bad)?;
    let at = usize::try_from(at).ok().filter(|&at| at <= begin);
    let at = at.ok_or_else(|| bad("it begins after the directory"))?;
    // Unix and macOS store the file type in the upper half. Types other than links say nothing
    // about the content: a member that was read from a pipe has the type of a pipe.
    let mode = entry.u32(38) >> 16;
    let is_unix = matches!(entry.u16(4) >> 8, 3 | 19);
    let is_other = name.ends_with('/') || is_unix && mode & 0o170_000 == 0o120_000;
    Ok(Record {
        raw_name: raw_at..raw_at + usize::from(entry.u16(28)),
        flags: entry.u16(8),
        method: entry.u16(10),
        crc: entry.u32(16),
        packed,
        size,
        at,
        limit: 0,
        is_other,
        name,
    })
}

/// Finds the position of the next member for each member. No member may begin before the end of the
/// previous one.
fn limit(records: &mut [Record], begin: usize) -> Result<()> {
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by_key(|&index| records[index].at);
    let mut end = begin;
    for &index in order.iter().rev() {
        let record = &mut records[index];
        record.limit = end;
        let least = (LOCAL + record.raw_name.len()) as u64;
        let fits = least
            .checked_add(record.packed)
            .is_some_and(|len| len <= (end - record.at) as u64);
        if !fits {
            let (name, at, packed) = (&record.name, record.at, record.packed);
            return Err(Error::corrupt(format!(
                "member {name:?} of {packed} bytes at byte {at} reaches into what begins at byte {end}"
            )));
        }
        end = record.at;
    }
    Ok(())
}

impl Record {
    /// Returns the error of a member that may not be read, whatever its local header contains.
    pub(super) fn refusal(&self) -> Option<Error> {
        let no = |what: String| Some(Error::unsupported(what));
        let name = match self.method {
            0 | 8 => "",
            1 => ", shrink",
            6 => ", implode",
            9 => ", deflate64",
            12 => ", bzip2",
            14 => ", lzma",
            93 => ", zstd",
            95 => ", xz",
            98 => ", ppmd",
            99 => ", which is encrypted by AES",
            _ => ", which is unknown",
        };
        match self.flags {
            _ if self.name.contains('\0') => Some(Error::corrupt("a name with a zero byte")),
            flags if flags & 0x2041 != 0 => no("it is encrypted".to_owned()),
            flags if flags & 0x20 != 0 => no("it is a patch".to_owned()),
            _ if !matches!(self.method, 0 | 8) => {
                no(format!("compressed by method {}{name}", self.method))
            }
            _ if self.method == 0 && self.packed != self.size => Some(Error::corrupt(format!(
                "stored as {} bytes, and as {} in the archive",
                self.size, self.packed
            ))),
            _ => None,
        }
    }

    /// Returns the compressed bytes of the member, if the local header matches.
    pub(super) fn raw(&self, archive: &Bytes) -> Result<Bytes> {
        let Record { at, limit, .. } = *self;
        let local = Fields(&archive[at..limit]);
        // The bytes exist: `limit` checked that.
        if local.u32(0) != 0x0403_4b50 {
            return Err(Error::corrupt(format!(
                "no member begins at byte {at}, where the directory says so"
            )));
        }
        let (name_len, extra_len) = (usize::from(local.u16(26)), usize::from(local.u16(28)));
        let begin = at + LOCAL + name_len + extra_len;
        let end = begin as u64 + self.packed;
        if end > limit as u64 {
            return Err(Error::corrupt(format!(
                "its data would end at byte {end}, after byte {limit}, where the next begins"
            )));
        }
        let end = end as usize;
        let differs = |what: &str| {
            Error::corrupt(format!(
                "its header at byte {at} and the directory differ: {what}"
            ))
        };
        let name = &archive[at + LOCAL..][..name_len];
        if *name != archive[self.raw_name.clone()] {
            return Err(differs(&format!("it is called {:?} there", readable(name))));
        }
        if local.u16(8) != self.method {
            return Err(differs(&format!(
                "method {} there, {}",
                local.u16(8),
                self.method
            )));
        }
        if local.u16(6) & 0x2041 != 0 {
            return Err(differs("encrypted there"));
        }
        if local.u16(6) & 8 != 0 {
            self.check_descriptor(&archive[end..limit])?;
        } else {
            let bad = |what: &str| differs(what);
            let mut wide = Wide::find(&archive[begin - extra_len..begin]).map_err(bad)?;
            let size = wide.field(local.u32(22)).map_err(bad)?;
            let packed = wide.field(local.u32(18)).map_err(bad)?;
            if (size, packed, local.u32(14)) != (self.size, self.packed, self.crc) {
                return Err(differs(&format!(
                    "{packed} bytes of {size}, CRC {:08x} there, {} bytes of {}, CRC {:08x}",
                    local.u32(14),
                    self.packed,
                    self.size,
                    self.crc
                )));
            }
        }
        Ok(archive.slice(begin..end))
    }

    /// Checks the data descriptor after the data: with or without a signature, in 4 or 8 bytes
    /// each.
    fn check_descriptor(&self, rest: &[u8]) -> Result<()> {
        let bare = rest.strip_prefix(b"PK\x07\x08").unwrap_or(rest);
        let says = |rest: &[u8]| {
            let rest = Fields(rest);
            let short = rest.0.len() >= 12
                && (u64::from(rest.u32(4)), u64::from(rest.u32(8))) == (self.packed, self.size);
            let long =
                rest.0.len() >= 20 && (rest.u64(4), rest.u64(12)) == (self.packed, self.size);
            (short || long) && rest.u32(0) == self.crc
        };
        if says(bare) || says(rest) {
            Ok(())
        } else {
            Err(Error::corrupt(
                "what stands after its data and the directory differ",
            ))
        }
    }
}

/// Finds the directory, and the number of its members.
fn find(archive: &[u8]) -> Result<(Range<usize>, u64)> {
    let at = find_end(archive)?;
    let end = Fields(&archive[at..]);
    let wide = at
        .checked_sub(LOCATOR)
        .filter(|&at| archive[at..].starts_with(b"PK\x06\x07"));
    let (short_count, short_size, short_begin) = (end.u16(10), end.u32(12), end.u32(16));
    let (count, size, begin, end_at) = match wide {
        Some(locator) => {
            let place = Fields(&archive[locator..]).u64(8);
            let place = usize::try_from(place)
                .ok()
                .filter(|&place| place.checked_add(END64).is_some_and(|end| end <= locator));
            let place = place.ok_or_else(|| {
                Error::corrupt("the zip64 end of the directory is not where it should be")
            })?;
            let end = Fields(&archive[place..locator]);
            if end.u32(0) != 0x0606_4b50 || end.u64(4) != (locator - place - 12) as u64 {
                return Err(Error::corrupt(format!(
                    "no zip64 end of the directory at byte {place}"
                )));
            }
            if (end.u32(16), end.u32(20)) != (0, 0) || end.u64(24) != end.u64(32) {
                return Err(Error::unsupported("an archive of several volumes"));
            }
            (end.u64(32), end.u64(40), end.u64(48), place)
        }
        None => (
            short_count.into(),
            short_size.into(),
            short_begin.into(),
            at,
        ),
    };
    let agrees =
        |short: u64, most: u64, long: u64| short == long || wide.is_some() && short == most;
    if !(agrees(short_count.into(), 0xffff, count)
        && agrees(short_size.into(), SEE_64.into(), size)
        && agrees(short_begin.into(), SEE_64.into(), begin))
    {
        return Err(Error::corrupt(
            "the two ends of the directory, zip64 and not, differ",
        ));
    }
    let disks = [end.u16(4), end.u16(6)];
    if disks
        .iter()
        .any(|&disk| disk != 0 && !(wide.is_some() && disk == 0xffff))
        || end.u16(8) != short_count
    {
        return Err(Error::unsupported("an archive of several volumes"));
    }
    if begin.checked_add(size) != Some(end_at as u64) {
        return Err(Error::corrupt(format!(
            "its directory of {size} bytes should begin at byte {begin} and end at byte {end_at}; something was put \
             before the archive, or cut out of it"
        )));
    }
    Ok((begin as usize..end_at, count))
}

/// Finds the only end record whose comment ends at the end of the archive.
fn find_end(archive: &[u8]) -> Result<usize> {
    let Some(last) = archive.len().checked_sub(END) else {
        return Err(no_end(archive));
    };
    let first = last.saturating_sub(usize::from(u16::MAX));
    let mut found = None;
    for begin in (first..=last).step_by(BLOCK) {
        let block = &archive[begin..archive.len().min(begin + BLOCK + 3)];
        if !may_have_end(block) {
            continue;
        }
        for at in begin..=last.min(begin + BLOCK - 1) {
            let is_end = archive[at..].starts_with(b"PK\x05\x06")
                && at + END + usize::from(Fields(&archive[at..]).u16(20)) == archive.len();
            if is_end && let Some(before) = found.replace(at) {
                return Err(Error::corrupt(format!(
                    "two ends of the directory, at byte {at} one in the comment of that at {before}"
                )));
            }
        }
    }
    found.ok_or_else(|| no_end(archive))
}

/// Returns true if the signature of an end record may be in the block. Searches the whole block,
/// many bytes at a time.
fn may_have_end(block: &[u8]) -> bool {
    let [b, c, d] = [1, 2, 3].map(|by| block.get(by..).unwrap_or_default());
    let quads = block.iter().zip(b).zip(c).zip(d);
    quads.fold(false, |any, (((a, b), c), d)| {
        any | ((*a == b'P') & (*b == b'K') & (*c == 5) & (*d == 6))
    })
}

fn no_end(archive: &[u8]) -> Error {
    if archive.starts_with(b"PK") || archive.is_empty() {
        let what = "no end of the directory is where the file ends: it was cut, or something was put after it";
        return Error::truncated(format!("{what}; {} bytes", archive.len()));
    }
    let first = &archive[..archive.len().min(4)];
    Error::corrupt(format!(
        "no zip archive: it begins with \"{}\"",
        first.escape_ascii()
    ))
}

/// The numbers of an extra field of kind 1, which do not fit their own fields.
struct Wide<'a>(Option<&'a [u8]>);

impl<'a> Wide<'a> {
    fn find(mut extra: &'a [u8]) -> Result<Self, &'static str> {
        let mut found = None;
        // Fewer than four bytes are padding.
        while extra.len() >= 4 {
            let (kind, len) = (Fields(extra).u16(0), usize::from(Fields(extra).u16(2)));
            let Some(data) = extra[4..].get(..len) else {
                return Err("an extra field longer than there are bytes");
            };
            if kind == 1 && found.replace(data).is_some() {
                return Err("two zip64 fields");
            }
            extra = &extra[4 + len..];
        }
        Ok(Wide(found))
    }

    fn field(&mut self, short: u32) -> Result<u64, &'static str> {
        if short != SEE_64 {
            return Ok(short.into());
        }
        let data = self
            .0
            .as_mut()
            .ok_or("a number in a zip64 field that is not there")?;
        let (number, rest) = data
            .split_first_chunk()
            .ok_or("a zip64 field that is too short")?;
        *data = rest;
        Ok(u64::from_le_bytes(*number))
    }
}

/// Little-endian numbers at fixed positions, which the caller knows to exist.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("the length was checked")
    }
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.at(at))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.at(at))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.at(at))
    }
}
