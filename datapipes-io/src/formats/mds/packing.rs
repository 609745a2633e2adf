//! Compression of shards, by the names in an index.

use std::io::Read;

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};

/// Compression of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    #[cfg(feature = "zstd")]
    Zstd,
    #[cfg(feature = "bzip2")]
    Bzip2,
}

impl Packing {
    /// Parses a name, which a level may follow: `zstd:7`.
    pub(super) fn parse(name: &str) -> Result<Packing> {
        match name.split(':').next() {
            Some("gz") => Ok(Packing::Gzip),
            #[cfg(feature = "zstd")]
            Some("zstd") => Ok(Packing::Zstd),
            #[cfg(feature = "bzip2")]
            Some("bz2") => Ok(Packing::Bzip2),
            _ => {
                let what =
                    format!("compression {name:?} is not known, or its feature is not there");
                Err(Error::unsupported(what))
            }
        }
    }

    /// Decompresses data of a known size, and makes no more than that.
    pub(super) fn inflate(self, packed: &[u8], bytes: u64) -> Result<Bytes> {
        let reader: std::io::Result<Box<dyn Read + '_>> = match self {
            Packing::Gzip => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(packed))),
            #[cfg(feature = "zstd")]
            Packing::Zstd => zstd::stream::read::Decoder::with_buffer(packed)
                .map(|reader| Box::new(reader) as Box<dyn Read>),
            #[cfg(feature = "bzip2")]
            Packing::Bzip2 => Ok(Box::new(bzip2::bufread::MultiBzDecoder::new(packed))),
        };
        let mut out = Vec::new();
        let read =
            reader.and_then(|reader| reader.take(bytes.saturating_add(1)).read_to_end(&mut out));
        if let Err(error) = read {
            let kind = match error.kind() {
                std::io::ErrorKind::UnexpectedEof => ErrorKind::Truncated,
                std::io::ErrorKind::OutOfMemory => ErrorKind::Limit,
                _ => ErrorKind::Corrupt,
            };
            let what = format!("inflating, after {} of {bytes} bytes", out.len());
            return Err(Error::new(kind, what).with_source(error));
        }
        match out.len() as u64 {
            made if made == bytes => Ok(out.into()),
            made if made < bytes => Err(Error::corrupt(format!(
                "it inflates to {made} bytes, {bytes} stated"
            ))),
            _ => Err(Error::corrupt(format!(
                "it inflates to more than the {bytes} bytes stated"
            ))),
        }
    }
}
