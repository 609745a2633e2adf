//! Finds the end of a MessagePack value, and checks that it is complete.

use datapipes::{Error, ErrorKind, Result};

/// Returns the length in bytes of the value at the beginning of `data`, which is at byte `begin` of
/// the file. Nothing is allocated, and stated sizes are trusted only as far as there are bytes.
pub(super) fn value_len(data: &[u8], begin: u64, max_depth: usize) -> Result<usize> {
    let mut scan = Scan { data, at: 0, begin };
    // Number of missing values at each level. The top-level value is the first.
    let mut missing: Vec<u64> = vec![1];
    while let Some(left) = missing.last_mut() {
        if *left == 0 {
            missing.pop();
            continue;
        }
        *left -= 1;
        let inside = scan.one()?;
        if inside > 0 {
            if missing.len() > max_depth {
                let what = format!("values nest more than {max_depth} deep");
                return Err(scan.error(ErrorKind::Limit, what));
            }
            missing.push(inside);
        }
    }
    Ok(scan.at)
}

struct Scan<'a> {
    data: &'a [u8],
    at: usize,
    begin: u64,
}

impl Scan<'_> {
    /// Skips a value, or the head of an array or a map; returns the number of values in it.
    fn one(&mut self) -> Result<u64> {
        let marker = self.number(1)? as u8;
        // Length of the data that follow, or the number of values.
        let (len, inside) = match marker {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => (0, 0),
            0x80..=0x8f => (0, 2 * u64::from(marker & 0x0f)),
            0x90..=0x9f => (0, u64::from(marker & 0x0f)),
            0xa0..=0xbf => (u64::from(marker & 0x1f), 0),
            0xc1 => {
                self.at -= 1;
                return Err(
                    self.error(ErrorKind::Corrupt, "0xc1, which begins no value".to_owned())
                );
            }
            0xc4..=0xc6 => (self.number(1 << (marker - 0xc4))?, 0),
            0xc7..=0xc9 => (self.number(1 << (marker - 0xc7))? + 1, 0),
            0xca | 0xce | 0xd2 => (4, 0),
            0xcb | 0xcf | 0xd3 => (8, 0),
            0xcc | 0xd0 => (1, 0),
            0xcd | 0xd1 => (2, 0),
            0xd4..=0xd8 => (1 + (1 << (marker - 0xd4)), 0),
            0xd9..=0xdb => (self.number(1 << (marker - 0xd9))?, 0),
            0xdc | 0xdd => (0, self.number(2 << (marker - 0xdc))?),
            0xde | 0xdf => (0, 2 * self.number(2 << (marker - 0xde))?),
        };
        let there = (self.data.len() - self.at) as u64;
        // Each value takes at least one byte.
        let due = len.max(inside);
        if due > there {
            let what = if len > 0 { "bytes" } else { "values" };
            return Err(self.error(
                ErrorKind::Truncated,
                format!("{due} {what} stated, {there} bytes there"),
            ));
        }
        self.at += len as usize;
        Ok(inside)
    }

    /// Reads a big-endian number of this size.
    fn number(&mut self, len: usize) -> Result<u64> {
        let Some(bytes) = self.data.get(self.at..self.at + len) else {
            let there = self.data.len() - self.at;
            return Err(self.error(
                ErrorKind::Truncated,
                format!("{len} bytes due, {there} there"),
            ));
        };
        self.at += len;
        Ok(bytes
            .iter()
            .fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn error(&self, kind: ErrorKind, what: String) -> Error {
        Error::new(
            kind,
            format!(
                "the value at byte {}, at byte {}: {what}",
                self.begin,
                self.begin + self.at as u64
            ),
        )
    }
}
