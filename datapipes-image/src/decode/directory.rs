//! Directories of a TIFF, and the numbers in them.

use datapipes::Result;

use super::{ImageFormat::Tiff, take};

/// Tags of the entries that matter.
pub(super) mod tag {
    pub const WIDTH: u16 = 256;
    pub const HEIGHT: u16 = 257;
    pub const BITS: u16 = 258;
    pub const COMPRESSION: u16 = 259;
    pub const PHOTOMETRIC: u16 = 262;
    pub const FILL_ORDER: u16 = 266;
    pub const STRIP_OFFSETS: u16 = 273;
    pub const ORIENTATION: u16 = 274;
    pub const SAMPLES: u16 = 277;
    pub const ROWS_PER_STRIP: u16 = 278;
    pub const STRIP_COUNTS: u16 = 279;
    pub const PLANAR: u16 = 284;
    pub const PREDICTOR: u16 = 317;
    pub const COLOR_MAP: u16 = 320;
    pub const TILE_WIDTH: u16 = 322;
    pub const TILE_HEIGHT: u16 = 323;
    pub const TILE_OFFSETS: u16 = 324;
    pub const TILE_COUNTS: u16 = 325;
    /// Directories of smaller images.
    pub const SMALLER: u16 = 330;
    pub const EXTRA_SAMPLES: u16 = 338;
    pub const SAMPLE_FORMAT: u16 = 339;
    pub const EXIF: u16 = 34665;
}

/// A file, and the encoding of its numbers.
pub(super) struct File<'a> {
    pub bytes: &'a [u8],
    big_endian: bool,
    /// True if offsets and counts have 8 bytes, not 4.
    big: bool,
    /// Offset of the first directory.
    pub first: u64,
}

/// Entries of a directory.
pub(super) struct Directory {
    entries: Vec<Entry>,
    /// Offset of the next directory, or 0.
    next: u64,
}

struct Entry {
    tag: u16,
    kind: u16,
    count: u64,
    /// Offset of its values.
    values: u64,
}

impl Directory {
    /// Returns the number of values of an entry.
    pub(super) fn count(&self, tag: u16) -> u64 {
        self.entry(tag).map_or(0, |entry| entry.count)
    }

    /// Returns a tag that occurs twice.
    pub(super) fn twice(&self) -> Option<u16> {
        let mut tags: Vec<u16> = self.entries.iter().map(|entry| entry.tag).collect();
        tags.sort_unstable();
        tags.windows(2)
            .find(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
    }

    fn entry(&self, tag: u16) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }
}

impl Entry {
    /// Returns the number of bytes of a value; unknown kinds have none.
    fn size(&self) -> u64 {
        match self.kind {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16..=18 => 8,
            _ => 0,
        }
    }
}

impl<'a> File<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<File<'a>> {
        let head = take(bytes, 0, 8, "TIFF")?;
        let mut file = File {
            bytes,
            big_endian: head[0] == b'M',
            big: false,
            first: 0,
        };
        file.big = file.unsigned(2, 2)? == 43;
        file.first = if file.big {
            file.unsigned(8, 8)?
        } else {
            file.unsigned(4, 4)?
        };
        Ok(file)
    }

    /// Reads the directory at an offset.
    pub(super) fn directory(&self, at: u64) -> Result<Directory> {
        let (head, size, word) = if self.big { (8, 20, 8) } else { (2, 12, 4) };
        let count = self.unsigned(at, head)?;
        let start = at.saturating_add(head);
        let len = count.saturating_mul(size);
        self.part(start, len.saturating_add(word))?;
        let mut entries = Vec::with_capacity(count as usize);
        for at in (start..start + len).step_by(size as usize) {
            let mut entry = Entry {
                tag: self.unsigned(at, 2)? as u16,
                kind: self.unsigned(at + 2, 2)? as u16,
                count: self.unsigned(at + 4, word)?,
                values: at + 4 + word,
            };
            if entry.size().saturating_mul(entry.count) > word {
                entry.values = self.unsigned(entry.values, word)?;
            }
            entries.push(entry);
        }
        Ok(Directory {
            entries,
            next: self.unsigned(start + len, word)?,
        })
    }

    /// Returns an entry's first number; `None` if there is no such entry.
    pub(super) fn number(&self, directory: &Directory, tag: u16) -> Result<Option<u64>> {
        let Some(entry) = directory.entry(tag).filter(|entry| entry.count > 0) else {
            return Ok(None);
        };
        self.value(entry, 0).map(Some)
    }

    /// Returns an entry's numbers, none if there is no such entry.
    pub(super) fn numbers(&self, directory: &Directory, tag: u16) -> Result<Vec<u64>> {
        let Some(entry) = directory.entry(tag) else {
            return Ok(Vec::new());
        };
        self.part(entry.values, entry.size().saturating_mul(entry.count))?;
        (0..entry.count).map(|i| self.value(entry, i)).collect()
    }

    /// Writes an entry's first number into a copy of the file, if there is such an entry. Call it
    /// after [`check`](File::check).
    pub(super) fn put(
        &self,
        directory: &Directory,
        tag: u16,
        value: u16,
        copy: &mut [u8],
    ) -> Result<()> {
        let Some(entry) = directory.entry(tag) else {
            return Ok(());
        };
        if entry.kind != 3 || entry.count == 0 {
            return Tiff.corrupt(&format!(
                "entry {tag} has {} values of type {}",
                entry.count, entry.kind
            ));
        }
        let at = entry.values as usize;
        let value = if self.big_endian {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        copy[at..at + 2].copy_from_slice(&value);
        Ok(())
    }

    /// Checks that all data of this directory and the later ones is in the file.
    pub(super) fn check(&self, first: u64) -> Result<()> {
        // In a valid file, the data does not overlap, so it cannot be larger than the file.
        let mut work = 2 * self.bytes.len() as u64;
        let mut spend = |cost: u64| match work.checked_sub(cost) {
            Some(left) => {
                work = left;
                Ok(())
            }
            None => Tiff.corrupt("its directories overlap, or point at each other"),
        };
        let mut open = vec![first];
        while let Some(at) = open.pop() {
            let directory = self.directory(at)?;
            spend(6 + 12 * directory.entries.len() as u64)?;
            for entry in &directory.entries {
                self.part(entry.values, entry.size().saturating_mul(entry.count))?;
            }
            for (offsets, counts) in [
                (tag::STRIP_OFFSETS, tag::STRIP_COUNTS),
                (tag::TILE_OFFSETS, tag::TILE_COUNTS),
            ] {
                let (Some(offsets), Some(counts)) =
                    (directory.entry(offsets), directory.entry(counts))
                else {
                    continue;
                };
                for i in 0..offsets.count.min(counts.count) {
                    spend(2)?;
                    self.part(self.value(offsets, i)?, self.value(counts, i)?)?;
                }
            }
            for tag in [tag::EXIF, tag::SMALLER] {
                spend(directory.count(tag))?;
                open.extend(self.numbers(&directory, tag)?);
            }
            open.extend(Some(directory.next).filter(|&next| next != 0));
        }
        Ok(())
    }

    fn value(&self, entry: &Entry, index: u64) -> Result<u64> {
        match entry.kind {
            1 | 3 | 4 | 13 | 16 | 18 => {
                let size = entry.size();
                self.unsigned(
                    entry.values.saturating_add(index.saturating_mul(size)),
                    size,
                )
            }
            kind => Tiff.corrupt(&format!(
                "entry {} is of type {kind}, which is no unsigned number",
                entry.tag
            )),
        }
    }

    fn unsigned(&self, at: u64, size: u64) -> Result<u64> {
        let part = self.part(at, size)?;
        let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Ok(if self.big_endian {
            part.iter().fold(0, join)
        } else {
            part.iter().rev().fold(0, join)
        })
    }

    fn part(&self, at: u64, len: u64) -> Result<&'a [u8]> {
        let clip = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        take(self.bytes, clip(at), clip(len), "TIFF")
    }
}
