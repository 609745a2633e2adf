//! Compressed files: found by their first bytes or their name, read as a stream, with a bound on expansion.

mod gzip;

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result};

pub use gzip::Gunzip;
pub(in crate::formats) use gzip::{inflate, is_gzip};

/// A way in which files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// gzip (RFC 1952), any number of members.
    Gzip,
    /// Zstandard frames (RFC 8878); feature `zstd`.
    Zstd,
    /// LZ4 frames; feature `lz4`.
    Lz4,
    /// bzip2, any number of streams; feature `bzip2`.
    Bzip2,
    /// xz, any number of streams; feature `xz`.
    Xz,
}

impl Codec {
    /// The codec of a file that begins with these bytes.
    pub fn of_magic(data: &[u8]) -> Option<Codec> {
        is_gzip(data).then_some(Codec::Gzip)
    }

    /// The codec that the ending of a name tells, and the name without it: `a.txt.gz` is `a.txt`, `a.tgz` is `a.tar`.
    pub fn of_name(name: &str) -> Option<(Codec, String)> {
        let bare = |ending: &str| name.strip_suffix(ending);
        bare(".gz")
            .map(str::to_owned)
            .or_else(|| bare(".tgz").map(|name| format!("{name}.tar")))
            .map(|name| (Codec::Gzip, name))
    }
}

/// How much larger than itself a file may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// So many bytes at most.
    pub bytes: u64,
    /// So many times its own size at most, once it is past 1 MiB.
    pub ratio: u64,
}

impl Default for Expansion {
    /// 8 GiB, and 1100 times, which is more than gzip can reach.
    fn default() -> Self {
        Expansion { bytes: 8 << 30, ratio: 1100 }
    }
}

/// A ratio means nothing for a few bytes.
const FREE: u64 = 1 << 20;

impl Expansion {
    /// How many bytes so many may become.
    pub(in crate::formats) fn most(self, own: u64) -> u64 {
        self.bytes.min(self.ratio.saturating_mul(own).max(FREE))
    }
}

/// The content of a compressed file, bit by bit. What it reports is one of this library's errors inside; see [`unpack`].
#[allow(dead_code, reason = "the text formats read by it")]
pub(in crate::formats) fn reader(
    codec: Codec,
    data: Bytes,
    expansion: Expansion,
    cx: &Context,
) -> Box<dyn Read + Send> {
    let _ = codec;
    Box::new(match inflate(&data, expansion, cx) {
        Ok(data) => Content::Whole(io::Cursor::new(data)),
        Err(error) => Content::Failed(Some(error)),
    })
}

enum Content {
    Whole(io::Cursor<Bytes>),
    Failed(Option<Error>),
}

impl Read for Content {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Content::Whole(data) => data.read(out),
            Content::Failed(error) => Err(io::Error::other(error.take().unwrap_or_else(gone))),
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Corrupt, "read behind an error")
}

/// The error of this library's that a reader reported, or any other as `kind`.
#[allow(dead_code, reason = "the text formats read by it")]
pub(in crate::formats) fn unpack(error: io::Error, kind: ErrorKind, what: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::new(kind, what).with_source(error),
    }
}

/// The whole content of a file that may be compressed, by its first bytes.
#[allow(dead_code, reason = "formats that are read whole use it")]
pub(in crate::formats) fn content(data: Bytes, expansion: Expansion, cx: &Context) -> Result<Bytes> {
    match Codec::of_magic(&data) {
        None => Ok(data),
        Some(_) => inflate(&data, expansion, cx),
    }
}
