//! Parsing of the headers of a tar archive: numbers, checksums, names, extensions.
//! [`walk`](super::walk) makes members of them.

use std::sync::Arc;

use datapipes::ErrorKind;

use crate::file::readable;
use crate::formats::Codec;

/// Size in bytes of the blocks of headers and data.
pub(super) const BLOCK: usize = 512;
/// Maximum size of an extension header in bytes.
pub(super) const MAX_EXTENSION: u64 = 1 << 20;
/// Maximum number of consecutive extension headers.
pub(super) const MAX_EXTENSIONS: u32 = 64;

/// An error of an archive, without its position.
pub(super) type Fault = (ErrorKind, String);

/// Settings of extension headers for the member after them.
#[derive(Clone, Default)]
pub(super) struct Extension {
    pub(super) path: Option<Vec<u8>>,
    pub(super) long_name: Option<Vec<u8>>,
    pub(super) long_link: bool,
    pub(super) size: Option<u64>,
    pub(super) sparse: bool,
    /// True if a pax header was seen.
    pub(super) pax: bool,
    pub(super) count: u32,
}

impl Extension {
    /// Parses records of the form `19 path=some/name\n`, where 19 is the length of the record.
    pub(super) fn read_pax(&mut self, mut data: &[u8]) -> Result<(), Fault> {
        let malformed = || corrupt("a malformed record in a pax header");
        while !data.is_empty() {
            let digits = data
                .iter()
                .position(|&byte| byte == b' ')
                .ok_or_else(malformed)?;
            let len = decimal(&data[..digits]).ok_or_else(malformed)?;
            let len = usize::try_from(len)
                .ok()
                .filter(|&len| digits < len && len <= data.len())
                .ok_or_else(malformed)?;
            let (record, rest) = data.split_at(len);
            let record = record[digits + 1..]
                .strip_suffix(b"\n")
                .ok_or_else(malformed)?;
            let equals = record
                .iter()
                .position(|&byte| byte == b'=')
                .ok_or_else(malformed)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                // An empty value removes the value of a global header.
                b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
                b"size" if value.is_empty() => self.size = None,
                b"size" => self.size = Some(decimal(value).ok_or_else(malformed)?),
                _ => self.sparse |= key.starts_with(b"GNU.sparse."),
            }
            data = rest;
        }
        Ok(())
    }

    pub(super) fn set_long_name(&mut self, data: &[u8]) -> Result<(), Fault> {
        once(self.long_name.replace(until_nul(data).to_vec()).is_some())
    }

    /// Returns the name of the member with this header.
    pub(super) fn name(&self, block: &[u8; BLOCK]) -> Result<Arc<str>, Fault> {
        let name = match (&self.path, &self.long_name) {
            (Some(a), Some(b)) if a != b => return Err(corrupt("two names for one member")),
            (Some(name), _) | (None, Some(name)) => readable(name),
            (None, None) => {
                let (name, prefix) = (until_nul(&block[..100]), until_nul(&block[345..500]));
                // GNU's own format stores other fields in the place of the prefix.
                if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
                    return Ok(readable(&[prefix, b"/", name].concat()).into());
                }
                readable(name)
            }
        };
        Ok(name.into())
    }
}

pub(super) fn corrupt(what: impl Into<String>) -> Fault {
    (ErrorKind::Corrupt, what.into())
}

pub(super) fn once(again: bool) -> Result<(), Fault> {
    if again {
        Err(corrupt("two extension headers of one kind for one member"))
    } else {
        Ok(())
    }
}

pub(super) fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

pub(super) fn until_nul(field: &[u8]) -> &[u8] {
    &field[..field
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(field.len())]
}

/// Parses a number in octal, or in binary if its first bit is set. An empty field is zero.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // Bit 6 is the sign.
        let (first, rest) = (u64::from(field[0] & 0x7f), &field[1..]);
        return match first & 0x40 {
            0 => rest.iter().try_fold(first, |value, &byte| {
                value.checked_mul(256).map(|value| value | u64::from(byte))
            }),
            _ => None,
        };
    }
    let mut digits = until_nul(field).trim_ascii().iter();
    digits.try_fold(0u64, |value, &byte| {
        (b'0'..=b'7')
            .contains(&byte)
            .then(|| value * 8 + u64::from(byte - b'0'))
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| plain)?
        .parse()
        .ok()
}

/// Checks the sum of a header's bytes, in which its own field counts as spaces. Some old tools
/// summed signed bytes.
pub(super) fn check_sum(block: &[u8; BLOCK], at: u64) -> Result<(), Fault> {
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
        _ => Err(match packed_by(block) {
            Some(tool) => (
                ErrorKind::Unsupported,
                format!("no tar archive, but {tool} data"),
            ),
            None => corrupt("no tar archive, or the checksum of its first header is wrong"),
        }),
    }
}

/// Returns true if data begins with a valid header.
pub(super) fn begins_archive(data: &[u8]) -> bool {
    data.first_chunk::<BLOCK>()
        .is_some_and(|block| block[0] != 0 && check_sum(block, 0).is_ok())
}

fn packed_by(data: &[u8]) -> Option<String> {
    let zip = data.starts_with(b"PK\x03\x04").then(|| "zip".to_owned());
    zip.or_else(|| Codec::of_magic(data).map(|codec| codec.to_string()))
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
        assert_eq!(
            number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            None
        );
        assert_eq!(number(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn row_92_malformed_pax_records_are_errors() {
        let read = |data: &[u8]| {
            let mut extension = Extension::default();
            extension
                .read_pax(data)
                .map(|()| (extension.path, extension.size))
        };
        assert_eq!(
            read(b"9 path=a\n11 size=12\n").unwrap(),
            (Some(b"a".to_vec()), Some(12))
        );
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
