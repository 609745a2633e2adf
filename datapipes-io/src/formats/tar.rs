//! Walks a tar archive in memory, member by member, without copying.
//!
//! Where readers of this format disagree, and so could be made to see different members, this one sees an error:
//! two names or two extension headers for one member, malformed records, data behind the end. There is one size per
//! member, for its content and for the way to the next.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, ErrorKind};

use crate::File;
use crate::file::readable;

/// Headers and data come in blocks of so many bytes.
const BLOCK: usize = 512;
/// Most bytes of one extension header.
const MAX_EXTENSION: u64 = 1 << 20;
/// Most extension headers in a row.
const MAX_EXTENSIONS: u32 = 64;

/// The regular files of an archive, in order.
pub(super) struct Entries {
    archive: Bytes,
    at: usize,
    /// What global headers set for all that follows.
    global: Extension,
    /// The member before, for errors.
    last: Option<Arc<str>>,
    /// The archive ends in the padding of the member before.
    cut: bool,
    done: bool,
}

/// What is found in an archive.
pub(super) enum Entry {
    File(File),
    /// A member that is there and cannot be given as it is.
    Refused(Arc<str>, Error),
    /// Nothing more can be read.
    Broken(Error),
}

/// What extension headers say of the member behind them.
#[derive(Clone, Default)]
struct Extension {
    path: Option<Vec<u8>>,
    long_name: Option<Vec<u8>>,
    long_link: bool,
    size: Option<u64>,
    sparse: bool,
    /// A pax header was seen.
    pax: bool,
    count: u32,
}

type Fault = (ErrorKind, String);

impl Entries {
    pub(super) fn new(archive: Bytes) -> Self {
        Entries { archive, at: 0, global: Extension::default(), last: None, cut: false, done: false }
    }

    fn left(&self) -> usize {
        self.archive.len() - self.at
    }

    fn step(&mut self) -> Result<Option<Entry>, Fault> {
        let mut extension = self.global.clone();
        loop {
            let header_at = self.at;
            if self.cut {
                return Err((ErrorKind::Truncated, "cut in the padding of a member".to_owned()));
            }
            if self.left() == 0 && header_at > 0 && extension.count == 0 {
                return Ok(None);
            }
            let Some(block) = self.archive[self.at..].first_chunk::<BLOCK>() else {
                let what = if header_at == 0 { "no tar archive, a header" } else { "a header" };
                return Err((ErrorKind::Truncated, format!("{what} has {} of {BLOCK} bytes", self.left())));
            };
            let block = *block;
            if block[0] == 0 && block.iter().all(|&byte| byte == 0) {
                return self.end(extension.count > 0).map(|()| None);
            }
            check_sum(&block, header_at, &self.archive)?;
            self.at += BLOCK;

            let kind = block[156];
            // Links and devices have no data, whatever they say.
            let own_size = if (b'1'..=b'6').contains(&kind) {
                0
            } else {
                number(&block[124..136]).ok_or_else(|| corrupt("a size that is no number"))?
            };
            if !matches!(kind, b'L' | b'K' | b'x' | b'g') {
                let size = if (b'1'..=b'6').contains(&kind) { 0 } else { extension.size.unwrap_or(own_size) };
                match self.member(&block, &extension, size)? {
                    Some(entry) => return Ok(Some(entry)),
                    None => {
                        extension = self.global.clone();
                        continue;
                    }
                }
            }
            extension.count += 1;
            if extension.count > MAX_EXTENSIONS {
                return Err((
                    ErrorKind::Limit,
                    format!("more than {MAX_EXTENSIONS} extension headers in a row"),
                ));
            }
            if own_size > MAX_EXTENSION {
                let message = format!("an extension header of {own_size} bytes; {MAX_EXTENSION} are allowed");
                return Err((ErrorKind::Limit, message));
            }
            let data = self.take(own_size, "an extension header")?;
            self.pad(own_size)?;
            match kind {
                b'L' => once(extension.long_name.replace(until_nul(&data).to_vec()).is_some())?,
                b'K' => once(std::mem::replace(&mut extension.long_link, true))?,
                b'x' => {
                    once(std::mem::replace(&mut extension.pax, true))?;
                    extension.read_pax(&data)?;
                }
                _ => {
                    self.global.read_pax(&data)?;
                    extension.read_pax(&data)?;
                }
            }
        }
    }

    /// A member whose header was read; `None` if it is not a regular file.
    fn member(
        &mut self,
        block: &[u8; BLOCK],
        extension: &Extension,
        size: u64,
    ) -> Result<Option<Entry>, Fault> {
        let name = extension.name(block)?;
        let kind = block[156];
        let sparse = kind == b'S' || extension.sparse;
        if kind == b'S' {
            let mut more = block[482] != 0;
            while more {
                let map = self.take(BLOCK as u64, "a map of a sparse member")?;
                more = map[504] != 0;
            }
        }
        // Before there was a type for folders, they were empty files whose names end in a slash.
        let regular = matches!(kind, b'0' | b'7') || kind == 0 && !name.ends_with('/');
        let of = |name: &str| format!("member {name:?}");
        let data = self.take(size, &of(&name))?;
        // A cut in the padding comes to light at the next step, so that the member, which is whole, comes first.
        self.cut = self.left() < padding(size);
        self.at = self.archive.len().min(self.at + padding(size));
        self.last = Some(name.clone());
        if sparse || kind == b'M' {
            let what = if sparse { "a sparse member" } else { "a part of a member that spans volumes" };
            return Ok(Some(Entry::Refused(name, Error::new(ErrorKind::Unsupported, what))));
        }
        Ok(regular.then_some(Entry::File(File { name, data })))
    }

    /// The next bytes, all of them or none.
    fn take(&mut self, size: u64, what: &str) -> Result<Bytes, Fault> {
        if size > self.left() as u64 {
            let message = format!("{what} has {} of {size} bytes", self.left());
            return Err((ErrorKind::Truncated, message));
        }
        let data = self.archive.slice(self.at..self.at + size as usize);
        self.at += size as usize;
        Ok(data)
    }

    fn pad(&mut self, size: u64) -> Result<(), Fault> {
        self.take(padding(size) as u64, "padding").map(drop)
    }

    /// Behind the first block of zeros there are only zeros.
    fn end(&self, extended: bool) -> Result<(), Fault> {
        if extended {
            return Err(corrupt("an extension header without a member"));
        }
        match self.archive[self.at..].iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(zeros) => Err(corrupt(format!("data behind the end, which is {zeros} bytes of zeros"))),
        }
    }

    fn name(&self, (kind, what): Fault) -> Error {
        let Entries { at, last, archive, .. } = self;
        let place = match last {
            Some(name) => format!("behind member {name:?}"),
            None => "before the first member".to_owned(),
        };
        Error::new(kind, format!("{what}; at byte {at} of {}, {place}", archive.len()))
    }
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.done {
            return None;
        }
        match self.step() {
            Ok(Some(entry)) => Some(entry),
            Ok(None) => {
                self.done = true;
                None
            }
            Err(fault) => {
                self.done = true;
                Some(Entry::Broken(self.name(fault)))
            }
        }
    }
}

impl Extension {
    /// Reads records of the form `19 path=some/name\n`, where 19 is the length of the record.
    fn read_pax(&mut self, mut data: &[u8]) -> Result<(), Fault> {
        let malformed = || corrupt("a malformed record in a pax header");
        while !data.is_empty() {
            let digits = data.iter().position(|&byte| byte == b' ').ok_or_else(malformed)?;
            let len = decimal(&data[..digits]).ok_or_else(malformed)?;
            let len = usize::try_from(len)
                .ok()
                .filter(|&len| digits < len && len <= data.len())
                .ok_or_else(malformed)?;
            let (record, rest) = data.split_at(len);
            let record = record[digits + 1..].strip_suffix(b"\n").ok_or_else(malformed)?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(malformed)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                // An empty value takes back what a global header said.
                b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
                b"size" if value.is_empty() => self.size = None,
                b"size" => self.size = Some(decimal(value).ok_or_else(malformed)?),
                _ => self.sparse |= key.starts_with(b"GNU.sparse."),
            }
            data = rest;
        }
        Ok(())
    }

    fn name(&self, block: &[u8; BLOCK]) -> Result<Arc<str>, Fault> {
        let name = match (&self.path, &self.long_name) {
            (Some(a), Some(b)) if a != b => return Err(corrupt("two names for one member")),
            (Some(name), _) | (None, Some(name)) => readable(name),
            (None, None) => {
                let (name, prefix) = (until_nul(&block[..100]), until_nul(&block[345..500]));
                // GNU's own format has other things in the place of the prefix.
                if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
                    return Ok(readable(&[prefix, b"/", name].concat()).into());
                }
                readable(name)
            }
        };
        Ok(name.into())
    }
}

fn corrupt(what: impl Into<String>) -> Fault {
    (ErrorKind::Corrupt, what.into())
}

fn once(again: bool) -> Result<(), Fault> {
    if again { Err(corrupt("two extension headers of one kind for one member")) } else { Ok(()) }
}

fn padding(size: u64) -> usize {
    (size.wrapping_neg() % BLOCK as u64) as usize
}

fn until_nul(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|&byte| byte == 0).unwrap_or(field.len())]
}

/// A number in octal, or in binary where its first bit is set. An empty field is zero.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // Bit 6 is the sign.
        let (first, rest) = (u64::from(field[0] & 0x7f), &field[1..]);
        return match first & 0x40 {
            0 => rest
                .iter()
                .try_fold(first, |value, &byte| value.checked_mul(256).map(|value| value | u64::from(byte))),
            _ => None,
        };
    }
    let mut digits = until_nul(field).trim_ascii().iter();
    digits.try_fold(0u64, |value, &byte| {
        (b'0'..=b'7').contains(&byte).then(|| value * 8 + u64::from(byte - b'0'))
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

/// The sum of a header's bytes, its own field taken as spaces. Some old tools summed signed bytes.
fn check_sum(block: &[u8; BLOCK], at: usize, archive: &[u8]) -> Result<(), Fault> {
    let field = &block[148..156];
    let stated = number(field);
    let field_sum = field.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    let unsigned = block.iter().map(|&byte| u32::from(byte)).sum::<u32>() - field_sum + 8 * 32;
    if stated == Some(u64::from(unsigned)) {
        return Ok(());
    }
    let high = |bytes: &[u8]| bytes.iter().filter(|byte| **byte >= 0x80).count() as i64 * 256;
    let signed = i64::from(unsigned) - high(block) + high(field);
    match stated {
        Some(stated) if i64::try_from(stated) == Ok(signed) => Ok(()),
        _ if at > 0 => Err(corrupt("a header whose checksum is wrong")),
        _ => Err(match packed_by(archive) {
            Some(tool) => (ErrorKind::Unsupported, format!("no tar archive, but {tool} data")),
            None => corrupt("no tar archive, or the checksum of its first header is wrong"),
        }),
    }
}

fn packed_by(data: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 4] =
        [(b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"), (b"PK\x03\x04", "zip")];
    MAGIC.iter().find(|(magic, _)| data.starts_with(magic)).map(|(_, tool)| *tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"00000000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0\0\0\0\0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000000064x\0"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(1 << 33));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        assert_eq!(number(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn row_92_malformed_pax_records_are_errors() {
        let read = |data: &[u8]| {
            let mut extension = Extension::default();
            extension.read_pax(data).map(|()| (extension.path, extension.size))
        };
        assert_eq!(read(b"9 path=a\n11 size=12\n").unwrap(), (Some(b"a".to_vec()), Some(12)));
        assert_eq!(read(b"9 path=a\n8 path=\n").unwrap(), (None, None));
        let bad: [&[u8]; 8] = [
            b"9 path=a",
            b"11 path=a\n",
            b"8 path=a\n",
            b"x path=a\n",
            b"7 path\n",
            b"10 size=-1\n",
            b" \n",
            b"0 \n",
        ];
        for bad in bad {
            assert!(read(bad).is_err(), "{}", bad.escape_ascii());
        }
        assert!(read(b"99999999999999999999999 path=a\n").is_err());
        assert!(read(b"29 size=99999999999999999999\n").is_err());
    }
}
