//! Compressed files: recognized by their first bytes or their name, read as a stream, with a bound
//! on expansion.

#[cfg(feature = "bzip2")]
mod bzip2;
mod codecs;
mod decompress;
mod gzip;
mod input;
#[cfg(feature = "lz4")]
mod lz4;
mod reader;
#[cfg(feature = "xz")]
mod xz;
#[cfg(feature = "zstd")]
mod zstd;

use std::io;

use bytes::Bytes;
use datapipes::{Context, Result};

pub(in crate::formats) use codecs::reader;
pub use decompress::Decompress;
pub(in crate::formats) use decompress::packing_of;
pub(in crate::formats) use gzip::is_gzip;
#[cfg(feature = "tfrecord")]
pub(in crate::formats) use input::Input;
#[cfg(feature = "tfrecord")]
pub(in crate::formats) use reader::fault;
pub(in crate::formats) use reader::{Inflating, Packing, unpack, unpacker};

datapipes::words! {
    /// A compression format of files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Codec {
        /// gzip (RFC 1952), any number of members.
        Gzip = "gzip",
        /// Zstandard frames (RFC 8878), any number, also skippable ones; feature `zstd`.
        Zstd = "zstd",
        /// LZ4 frames, any number, also skippable ones; feature `lz4`.
        Lz4 = "lz4",
        /// bzip2, any number of streams; feature `bzip2`.
        Bzip2 = "bzip2",
        /// xz, any number of streams; feature `xz`.
        Xz = "xz",
    }
}

const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const LZ4: &[u8] = b"\x04\x22\x4d\x18";
const LZ4_LEGACY: &[u8] = b"\x02\x21\x4c\x18";

impl Codec {
    /// Returns the codec of a file that begins with these bytes.
    ///
    /// Skippable frames may begin a file of Zstandard or LZ4: the first other frame after them
    /// decides, so pass as much of the file as there is.
    ///
    /// ```
    /// use datapipes_io::formats::Codec;
    /// assert_eq!(Codec::of_magic(b"\x28\xb5\x2f\xfd\x04\x00"), Some(Codec::Zstd));
    /// assert_eq!(Codec::of_magic(b"some text"), None);
    /// ```
    pub fn of_magic(data: &[u8]) -> Option<Codec> {
        // A file cut within a skippable frame is reported as an error of Zstandard.
        let Ok(rest) = behind_skippable(data) else {
            return Some(Codec::Zstd);
        };
        let skipped = rest.len() < data.len();
        match rest {
            [b'B', b'Z', b'h', b'1'..=b'9', ..] if !skipped => Some(Codec::Bzip2),
            _ if rest.starts_with(b"\xfd7zXZ\0") && !skipped => Some(Codec::Xz),
            _ if is_gzip(rest) && !skipped => Some(Codec::Gzip),
            _ if rest.starts_with(LZ4) || rest.starts_with(LZ4_LEGACY) => Some(Codec::Lz4),
            _ if rest.starts_with(ZSTD) || skipped => Some(Codec::Zstd),
            _ => None,
        }
    }

    /// Returns the codec of a name by its ending, and the name without the ending: `a.txt.gz` is
    /// `a.txt`, `a.tgz` is `a.tar`.
    ///
    /// Endings, in letters of any case: `gz`, `tgz`, `zst`, `zstd`, `tzst`, `lz4`, `bz2`, `tbz2`,
    /// `tbz`, `xz` and `txz`.
    ///
    /// ```
    /// use datapipes_io::formats::Codec;
    /// assert_eq!(Codec::of_name("a.csv.zst"), Some((Codec::Zstd, "a.csv".to_owned())));
    /// assert_eq!(Codec::of_name("train.tbz2"), Some((Codec::Bzip2, "train.tar".to_owned())));
    /// assert_eq!(Codec::of_name("dir/.gz"), None);
    /// ```
    pub fn of_name(name: &str) -> Option<(Codec, String)> {
        let (stem, ending) = name.rsplit_once('.')?;
        if stem.is_empty() || stem.ends_with('/') {
            return None;
        }
        let (codec, tar) = match &*ending.to_ascii_lowercase() {
            "gz" => (Codec::Gzip, false),
            "tgz" => (Codec::Gzip, true),
            "zst" | "zstd" => (Codec::Zstd, false),
            "tzst" => (Codec::Zstd, true),
            "lz4" => (Codec::Lz4, false),
            "bz2" => (Codec::Bzip2, false),
            "tbz2" | "tbz" => (Codec::Bzip2, true),
            "xz" => (Codec::Xz, false),
            "txz" => (Codec::Xz, true),
            _ => return None,
        };
        Some((
            codec,
            if tar {
                format!("{stem}.tar")
            } else {
                stem.to_owned()
            },
        ))
    }
}

/// Returns the bytes after the skippable frames at the beginning; they are the same in Zstandard
/// and LZ4.
fn behind_skippable(mut data: &[u8]) -> io::Result<&[u8]> {
    while let [0x50..=0x5f, 0x2a, 0x4d, 0x18, after @ ..] = data {
        let (len, after) = after
            .split_first_chunk::<4>()
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        data = after
            .get(u32::from_le_bytes(*len) as usize..)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
    }
    Ok(data)
}

/// A skipper of the skippable frames of a file that is read as a stream.
#[cfg(any(feature = "lz4", feature = "zstd"))]
#[derive(Default)]
struct Skippable {
    /// Remaining bytes of the current frame.
    left: u64,
}

#[cfg(any(feature = "lz4", feature = "zstd"))]
impl Skippable {
    /// Skips up to another frame, or the end.
    fn pass(&mut self, input: &mut input::Input) -> io::Result<()> {
        use io::BufRead;
        loop {
            while self.left > 0 {
                let there = input.fill_buf()?.len();
                if there == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let len = (there as u64).min(self.left);
                input.consume(len as usize);
                self.left -= len;
            }
            match input.peek(8)? {
                &[0x50..=0x5f, 0x2a, 0x4d, 0x18, ref len @ ..] => {
                    let len = len.first_chunk::<4>().ok_or(io::ErrorKind::UnexpectedEof)?;
                    self.left = 8 + u64::from(u32::from_le_bytes(*len));
                }
                _ => return Ok(()),
            }
        }
    }
}

/// Returns true if these bytes, the last of a file, could be the beginning of such a frame, or of a
/// skippable frame.
#[cfg(any(feature = "lz4", feature = "zstd"))]
fn is_cut(left: &[u8], magic: &[u8]) -> bool {
    magic.starts_with(left)
        || matches!(
            left,
            [0x50..=0x5f] | [0x50..=0x5f, 0x2a] | [0x50..=0x5f, 0x2a, 0x4d]
        )
}

/// Limits on the size of a decompressed file, and on the memory of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats) struct Expansion {
    /// Maximum size in bytes.
    pub bytes: u64,
    /// Maximum size as a multiple of the compressed size, once it is past 1 MiB.
    pub ratio: u64,
    /// Maximum window or dictionary in bytes, by which a Zstandard or xz file may refer back, and
    /// which its reader holds in memory. The other codecs use less than 4 MiB.
    pub window: u64,
}

impl Default for Expansion {
    /// Returns 8 GiB; 1100 times, which is more than gzip can reach; a window of 128 MiB.
    fn default() -> Self {
        Expansion {
            bytes: 8 << 30,
            ratio: 1100,
            window: 128 << 20,
        }
    }
}

impl Expansion {
    /// Returns the limits of a file that is never whole in memory: any number of bytes.
    pub(in crate::formats) fn streamed() -> Self {
        Expansion {
            bytes: u64::MAX,
            ..Expansion::default()
        }
    }

    /// Sets the maximum size, and leaves the window.
    pub(in crate::formats) fn limit(&mut self, bytes: u64, ratio: u64) {
        (self.bytes, self.ratio) = (bytes, ratio);
    }

    /// Returns the limits of a file that is decompressed into memory as a whole: 1 GiB.
    fn whole() -> Self {
        Expansion {
            bytes: 1 << 30,
            ..Expansion::default()
        }
    }
}

/// Size below which the ratio is not checked, since it means nothing for a few bytes.
const FREE: u64 = 1 << 20;

impl Expansion {
    /// Returns the maximum decompressed size of a file of this size.
    pub(in crate::formats) fn most(self, own: u64) -> u64 {
        self.bytes.min(self.ratio.saturating_mul(own).max(FREE))
    }

    /// Returns the limits of what the graph inflates in one piece: at most what the loader allows.
    #[allow(dead_code, reason = "each of several features uses it")]
    pub(in crate::formats) fn allowed(self, cx: &Context) -> Expansion {
        Expansion {
            bytes: self.bytes.min(cx.max_inflated().unwrap_or(u64::MAX)),
            ..self
        }
    }

    /// Describes that a file of this size exceeds the limit.
    fn exceeded(self, own: u64) -> String {
        let (most, Expansion { bytes, ratio, .. }) = (self.most(own), self);
        format!(
            "{own} bytes inflate to more than {most}; the limits are {bytes} bytes and {ratio} times the size (`max_expansion`)"
        )
    }
}

/// Returns the whole content of a file that may be compressed, by its first bytes.
#[allow(dead_code, reason = "formats that are read whole use it")]
pub(in crate::formats) fn content(
    data: Bytes,
    expansion: Expansion,
    cx: &Context,
) -> Result<Bytes> {
    match Codec::of_magic(&data) {
        None => Ok(data),
        Some(codec) => codecs::whole(codec, data, expansion, cx),
    }
}

#[cfg(test)]
pub(in crate::formats) mod tests;
