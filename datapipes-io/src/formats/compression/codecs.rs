//! The decoder of each codec.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result};

use super::reader::{Decoder, Packing, failure, unpack, unpacker};
use super::{Codec, Expansion, gzip};

/// Returns a reader of a compressed file, which yields the whole content, or an error after a part
/// of it.
///
/// Holds the codec's window, and nothing else of the content. Its errors wrap errors of this
/// library; see [`unpack`].
pub(in crate::formats) fn reader(
    codec: Codec,
    data: Bytes,
    expansion: Expansion,
    cx: &Context,
) -> Box<dyn Read + Send> {
    unpacker(codec.packing(), data, expansion, cx)
}

/// Returns the whole content of a compressed file.
pub(super) fn whole(
    codec: Codec,
    data: Bytes,
    expansion: Expansion,
    cx: &Context,
) -> Result<Bytes> {
    let most = expansion
        .most(data.len() as u64)
        .min(cx.max_inflated().unwrap_or(u64::MAX));
    let mut out = Vec::new();
    if codec == Codec::Gzip {
        let likely = usize::try_from(gzip::likely_len(&data).min(most)).unwrap_or(usize::MAX);
        // The trailer may be wrong: if there is no memory for its size, less may suffice.
        let _ = out.try_reserve_exact(likely);
    }
    match reader(codec, data, expansion, cx).read_to_end(&mut out) {
        Ok(_) => Ok(out.into()),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(no_memory(out.len())),
        Err(error) => Err(unpack(error, ErrorKind::Corrupt, "compressed data")),
    }
}

fn no_memory(reached: usize) -> Error {
    Error::limit(format!("no memory for more than {reached} inflated bytes"))
}

impl Codec {
    pub(in crate::formats) fn packing(self) -> Packing {
        let (name, decoder): (_, Decoder) = match self {
            Codec::Gzip => ("gzip", |input, _| Box::new(gzip::Members::new(input))),
            #[cfg(feature = "zstd")]
            Codec::Zstd => ("zstd", |input, window| {
                Box::new(super::zstd::Frames::new(input, window))
            }),
            #[cfg(not(feature = "zstd"))]
            Codec::Zstd => ("zstd", |_, _| missing("zstd")),
            #[cfg(feature = "lz4")]
            Codec::Lz4 => ("lz4", |input, _| Box::new(super::lz4::Frames::new(input))),
            #[cfg(not(feature = "lz4"))]
            Codec::Lz4 => ("lz4", |_, _| missing("lz4")),
            #[cfg(feature = "bzip2")]
            Codec::Bzip2 => ("bzip2", |input, _| {
                Box::new(super::bzip2::Streams::new(input))
            }),
            #[cfg(not(feature = "bzip2"))]
            Codec::Bzip2 => ("bzip2", |_, _| missing("bzip2")),
            #[cfg(feature = "xz")]
            Codec::Xz => ("xz", |input, window| {
                Box::new(super::xz::Streams::new(input, window))
            }),
            #[cfg(not(feature = "xz"))]
            Codec::Xz => ("xz", |_, _| missing("xz")),
        };
        Packing { name, decoder }
    }
}

#[allow(dead_code, reason = "with all features there is no codec left")]
fn missing(name: &str) -> Box<dyn Read + Send> {
    failure(
        ErrorKind::Unsupported,
        format!("{name} data, for which the feature `{name}` is not on"),
    )
}
