//! Encoding of an object as a file of the cache, without I/O.
//!
//! `magic and version of the format, 8 bytes | BLAKE3 of all that follows, 32 | length of the key,
//! 4 | key | 0, or 1 and the length of the version, 4, and the version | size of the whole object,
//! 8 | where the range begins, 8 | content`, numbers with the lowest byte first.

use bytes::{Buf, Bytes};

use crate::stores::Meta;

const MAGIC: &[u8; 8] = b"dpcache1";
const SUM: usize = MAGIC.len() + 32;

/// An object, or a range of an object, in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Metadata of the whole object. An unknown size is replaced by the size of the content.
    pub meta: Meta,
    /// Position of the content in the object.
    pub start: u64,
    pub data: Bytes,
}

impl Entry {
    /// Returns the bytes before the content.
    pub(super) fn head(&self) -> Vec<u8> {
        let mut head = vec![0; SUM];
        let mut text = |text: &str| {
            head.extend((text.len() as u32).to_le_bytes());
            head.extend(text.as_bytes());
        };
        text(&self.meta.key);
        match &self.meta.version {
            None => head.push(0),
            Some(version) => {
                head.push(1);
                head.extend((version.len() as u32).to_le_bytes());
                head.extend(version.as_bytes());
            }
        }
        head.extend(
            self.meta
                .size
                .unwrap_or(self.data.len() as u64)
                .to_le_bytes(),
        );
        head.extend(self.start.to_le_bytes());
        let mut hash = blake3::Hasher::new();
        hash.update(&head[SUM..]).update(&self.data);
        head[..MAGIC.len()].copy_from_slice(MAGIC);
        head[MAGIC.len()..SUM].copy_from_slice(hash.finalize().as_bytes());
        head
    }

    /// Parses a cache file; returns `None` if any bit is wrong.
    pub(super) fn parse(mut file: Bytes) -> Option<Entry> {
        if file.len() < SUM || file[..MAGIC.len()] != *MAGIC {
            return None;
        }
        if *blake3::hash(&file[SUM..]).as_bytes() != file[MAGIC.len()..SUM] {
            return None;
        }
        file.advance(SUM);
        let text = |file: &mut Bytes| {
            let len = file.try_get_u32_le().ok()? as usize;
            let text = (len <= file.len()).then(|| file.split_to(len))?;
            String::from_utf8(text.into()).ok()
        };
        let key = text(&mut file)?;
        let version = match file.try_get_u8().ok()? {
            0 => None,
            _ => Some(text(&mut file)?),
        };
        let size = Some(file.try_get_u64_le().ok()?);
        let start = file.try_get_u64_le().ok()?;
        Some(Entry {
            meta: Meta { key, size, version },
            start,
            data: file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(version: Option<&str>) -> Entry {
        let meta = Meta {
            key: "a/\u{e9}".into(),
            size: Some(100),
            version: version.map(str::to_owned),
        };
        Entry {
            meta,
            start: 7,
            data: Bytes::from_static(b"content"),
        }
    }

    #[test]
    fn row_85_what_was_kept_comes_back_and_every_flipped_bit_and_cut_is_noticed() {
        for version in [None, Some(""), Some("\"etag\"")] {
            let entry = entry(version);
            let file = [&entry.head(), &*entry.data].concat();
            assert_eq!(Entry::parse(file.clone().into()), Some(entry));
            for at in 0..file.len() {
                for bit in 0..8 {
                    let mut wrong = file.clone();
                    wrong[at] ^= 1 << bit;
                    assert_eq!(Entry::parse(wrong.into()), None, "byte {at}");
                }
                assert_eq!(
                    Entry::parse(Bytes::copy_from_slice(&file[..at])),
                    None,
                    "cut at {at}"
                );
            }
        }
    }

    #[test]
    fn lengths_that_lie_under_a_right_sum_are_an_end_and_no_panic() {
        for rest in [
            &[255, 255, 255, 255][..],
            &[0, 0, 0, 0, 1, 9, 0, 0, 0],
            &[1, 0, 0, 0, 255, 0],
            &[],
        ] {
            let file = [MAGIC, &blake3::hash(rest).as_bytes()[..], rest].concat();
            assert_eq!(Entry::parse(file.into()), None);
        }
    }
}
