//! Encoding of an object as a file of the cache, without I/O.
//!
//! `magic and version of the format, 8 bytes | BLAKE3 of the entry's name and all that follows, 32 |
//! length of the key, 4 | key | 0, or 1 and the length of the version, 4, and the version | size of
//! the whole object, 8 | where the range begins, 8 | content`, numbers with the lowest byte first.

use bytes::{Buf, Bytes};

use crate::stores::Meta;

/// Name of an entry: a hash, so that no key ever becomes a path.
pub(super) type Id = blake3::Hash;

const MAGIC: &[u8; 8] = b"dpcache1";
const SUM: usize = MAGIC.len() + 32;
/// Size of an object that the store does not tell.
const UNKNOWN: u64 = u64::MAX;

/// An object, or a range of an object, in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Metadata of the whole object.
    pub meta: Meta,
    /// Position of the content in the object.
    pub start: u64,
    pub data: Bytes,
}

impl Entry {
    /// Returns the bytes before the content of an entry of this name.
    pub(super) fn head(&self, id: &Id) -> Vec<u8> {
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
        head.extend(self.meta.size.unwrap_or(UNKNOWN).to_le_bytes());
        head.extend(self.start.to_le_bytes());
        let sum = sum(id, &[&head[SUM..], &self.data]);
        head[..MAGIC.len()].copy_from_slice(MAGIC);
        head[MAGIC.len()..SUM].copy_from_slice(sum.as_bytes());
        head
    }

    /// Parses the cache file of this name; returns `None` if any bit is wrong, or it is that of
    /// another entry.
    pub(super) fn parse(id: &Id, mut file: Bytes) -> Option<Entry> {
        if file.len() < SUM || file[..MAGIC.len()] != *MAGIC {
            return None;
        }
        if *sum(id, &[&file[SUM..]]).as_bytes() != file[MAGIC.len()..SUM] {
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
        let size = Some(file.try_get_u64_le().ok()?).filter(|size| *size != UNKNOWN);
        let start = file.try_get_u64_le().ok()?;
        Some(Entry {
            meta: Meta { key, size, version },
            start,
            data: file,
        })
    }
}

fn sum(id: &Id, parts: &[&[u8]]) -> blake3::Hash {
    let mut hash = blake3::Hasher::new();
    hash.update(id.as_bytes());
    for part in parts {
        hash.update(part);
    }
    hash.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = Id::from_bytes([5; 32]);

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
            let file = [&entry.head(&ID), &*entry.data].concat();
            assert_eq!(Entry::parse(&ID, file.clone().into()), Some(entry));
            assert_eq!(
                Entry::parse(&Id::from_bytes([6; 32]), file.clone().into()),
                None
            );
            for at in 0..file.len() {
                for bit in 0..8 {
                    let mut wrong = file.clone();
                    wrong[at] ^= 1 << bit;
                    assert_eq!(Entry::parse(&ID, wrong.into()), None, "byte {at}");
                }
                assert_eq!(
                    Entry::parse(&ID, Bytes::copy_from_slice(&file[..at])),
                    None,
                    "cut at {at}"
                );
            }
        }
    }

    #[test]
    fn a_size_that_is_not_known_stays_so() {
        let mut entry = entry(None);
        entry.meta.size = None;
        let file = [&entry.head(&ID), &*entry.data].concat();
        assert_eq!(Entry::parse(&ID, file.into()), Some(entry));
    }

    #[test]
    fn lengths_that_lie_under_a_right_sum_are_an_end_and_no_panic() {
        for rest in [
            &[255, 255, 255, 255][..],
            &[0, 0, 0, 0, 1, 9, 0, 0, 0],
            &[1, 0, 0, 0, 255, 0],
            &[],
        ] {
            let file = [MAGIC, &sum(&ID, &[rest]).as_bytes()[..], rest].concat();
            assert_eq!(Entry::parse(&ID, file.into()), None);
        }
    }
}
