//! One reader for every codec: bounded, stoppable, with errors that say how far it came.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result};

use super::{Codec, Expansion, gzip};

/// The content of a compressed file, bit by bit, all of it or an error behind it.
///
/// Holds what the codec needs to look back at, and nothing of what was read. What it reports is one of this library's
/// errors inside; see [`unpack`].
pub(in crate::formats) fn reader(
    codec: Codec,
    data: Bytes,
    expansion: Expansion,
    cx: &Context,
) -> Box<dyn Read + Send> {
    Box::new(bounded(codec, data, expansion, cx))
}

/// The whole content of a file that is compressed.
pub(super) fn whole(codec: Codec, data: Bytes, expansion: Expansion, cx: &Context) -> Result<Bytes> {
    let most = expansion.most(data.len() as u64);
    let mut out = Vec::new();
    if codec == Codec::Gzip {
        let likely = usize::try_from(gzip::likely_len(&data).min(most)).unwrap_or(usize::MAX);
        // What the trailer says may be wrong: if there is no memory for it, less may do.
        let _ = out.try_reserve_exact(likely);
    }
    match bounded(codec, data, expansion, cx).read_to_end(&mut out) {
        Ok(_) => Ok(out.into()),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(no_memory(out.len())),
        Err(error) => Err(unpack(error, ErrorKind::Corrupt, "compressed data")),
    }
}

fn no_memory(reached: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("no memory for more than {reached} inflated bytes"))
}

/// The error of this library's that a reader reported, or any other as `kind`.
pub(in crate::formats) fn unpack(error: io::Error, kind: ErrorKind, what: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::new(kind, what).with_source(error),
    }
}

/// After so many bytes a dropped epoch is noticed.
const STEP: usize = 1 << 20;

struct Bounded {
    codec: Codec,
    inner: Box<dyn Read + Send>,
    /// Size of the compressed file.
    own: u64,
    /// How many bytes were read.
    read: u64,
    expansion: Expansion,
    cx: Context,
    failed: bool,
}

fn bounded(codec: Codec, data: Bytes, expansion: Expansion, cx: &Context) -> Bounded {
    let own = data.len() as u64;
    let inner = match data.is_empty() {
        true => failure(ErrorKind::Truncated, format!("an empty file where {codec} data is due")),
        false => decoder(codec, data, expansion),
    };
    Bounded { codec, inner, own, read: 0, expansion, cx: cx.clone(), failed: false }
}

/// What is between the bytes and the checks that all codecs share. It may not be read again behind an error.
fn decoder(codec: Codec, data: Bytes, expansion: Expansion) -> Box<dyn Read + Send> {
    let _ = expansion;
    match codec {
        Codec::Gzip => Box::new(gzip::Members::new(data)),
        #[cfg(feature = "zstd")]
        Codec::Zstd => Box::new(super::zstd::Frames::new(data, expansion.window)),
        #[cfg(feature = "lz4")]
        Codec::Lz4 => Box::new(super::lz4::Frames::new(data)),
        #[cfg(feature = "bzip2")]
        Codec::Bzip2 => Box::new(super::bzip2::Streams::new(data)),
        #[cfg(feature = "xz")]
        Codec::Xz => Box::new(super::xz::Streams::new(data, expansion.window)),
        #[allow(unreachable_patterns, reason = "with all features there is no codec left")]
        codec => failure(
            ErrorKind::Unsupported,
            format!("{codec} data, for which the feature `{codec}` is not on"),
        ),
    }
}

/// Reports one of this library's errors.
pub(in crate::formats) fn fault(kind: ErrorKind, what: impl Into<String>) -> io::Error {
    io::Error::other(Error::new(kind, what))
}

fn failure(kind: ErrorKind, what: String) -> Box<dyn Read + Send> {
    struct Failure(Option<io::Error>);

    impl Read for Failure {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0.take().map_or(Ok(0), Err)
        }
    }
    Box::new(Failure(Some(fault(kind, what))))
}

impl Bounded {
    fn step(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(fault(ErrorKind::Corrupt, "read behind an error"));
        }
        if self.cx.is_cancelled() {
            return Err(fault(ErrorKind::Io, "the epoch was dropped"));
        }
        let room = out.len().min(STEP);
        let read = self.inner.read(&mut out[..room]).map_err(|error| self.name(error))?;
        self.read += read as u64;
        let most = self.expansion.most(self.own);
        if self.read > most {
            let Expansion { bytes, ratio, .. } = self.expansion;
            let own = self.own;
            let what = format!(
                "{own} bytes inflate to more than {most}; the limits are {bytes} bytes and {ratio} times the size"
            );
            return Err(fault(ErrorKind::Limit, what));
        }
        Ok(read)
    }

    /// How far it came, and what that means to the caller.
    fn name(&self, error: io::Error) -> io::Error {
        if error.get_ref().is_some_and(|inner| inner.is::<Error>()) {
            return error;
        }
        let kind = match error.kind() {
            io::ErrorKind::UnexpectedEof => ErrorKind::Truncated,
            io::ErrorKind::OutOfMemory => ErrorKind::Limit,
            io::ErrorKind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        };
        let what = format!("{}, after {} bytes of content", self.codec, self.read);
        io::Error::other(Error::new(kind, what).with_source(error))
    }
}

impl Read for Bounded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let read = self.step(out);
        self.failed |= read.is_err();
        read
    }
}
