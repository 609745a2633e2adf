//! A member of a zip archive: its compressed bytes, and its content.

use std::sync::Arc;

use bytes::Bytes;
use crc32fast::Hasher as Crc;
use datapipes::{Error, ErrorKind, Result};
use flate2::{Decompress, FlushDecompress, Status};

use super::super::aligned::Aligned;

/// Maximum compression ratio of deflate.
const DEFLATE_RATIO: u64 = 1032;
/// Number of bytes after which decompression and checksums check if the epoch was dropped.
const STEP: usize = 256 << 10;
/// Number of bytes that are summed and then copied while they are still in the cache.
const IN_CACHE: usize = 32 << 10;

/// A member whose position in the archive was checked, but not its content.
#[derive(Clone, Debug)]
pub(in crate::formats) struct Member {
    pub(in crate::formats) name: Arc<str>,
    pub(super) raw: Bytes,
    pub(super) deflated: bool,
    pub(super) size: u64,
    pub(super) crc: u32,
    /// True if the checksum of a stored member is checked.
    pub(super) checked: bool,
}

impl Member {
    /// Returns the number of bytes that the member keeps alive.
    pub(in crate::formats) fn weight(&self) -> usize {
        self.raw.len() + self.name.len() + size_of::<Self>()
    }

    /// Returns the content: a slice of the archive if the member is stored, else decompressed, in
    /// one pass, into aligned memory.
    pub(in crate::formats) fn content(&self, stopped: &dyn Fn() -> bool) -> Result<Bytes> {
        if self.deflated {
            return self.inflate(stopped);
        }
        if self.checked {
            let mut sum = Crc::new();
            for step in self.raw.chunks(STEP) {
                sum.update(step);
                unless_stopped(stopped)?;
            }
            self.check(sum)?;
        }
        Ok(self.raw.clone())
    }

    /// Returns the content with its first byte aligned to `align`: unaligned stored content is
    /// copied, and its checksum computed on the way, while it is in the cache.
    pub(in crate::formats) fn aligned(
        &self,
        align: usize,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Bytes> {
        let misaligned = self.raw.as_ptr().align_offset(align) != 0;
        if self.deflated || !self.checked || !misaligned {
            return self.content(stopped);
        }
        let (mut out, mut sum) = (Aligned::with_capacity(self.raw.len())?, Crc::new());
        for step in self.raw.chunks(IN_CACHE) {
            sum.update(step);
            out.extend(step);
            unless_stopped(stopped)?;
        }
        self.check(sum)?;
        Ok(out.into_bytes())
    }

    /// Refuses a size that deflate cannot reach, before memory is allocated for it.
    pub(super) fn check_size(&self) -> Result<()> {
        let packed = self.raw.len() as u64;
        if self.deflated && self.size > packed.saturating_mul(DEFLATE_RATIO) {
            return Err(Error::corrupt(format!(
                "{} bytes stated, more than the {packed} bytes there can become",
                self.size
            )));
        }
        Ok(())
    }

    fn inflate(&self, stopped: &dyn Fn() -> bool) -> Result<Bytes> {
        let size = usize::try_from(self.size)
            .ok()
            .filter(|&size| size < usize::MAX);
        let size =
            size.ok_or_else(|| Error::limit(format!("no memory for {} bytes", self.size)))?;
        // With room for one byte more than expected, a missing end is detected.
        let mut out = Aligned::with_capacity(size + 1)?;
        let (mut inflater, mut sum) = (Decompress::new(false), Crc::new());
        let mut rest = &self.raw[..];
        loop {
            let (before, read) = (out.len(), inflater.total_in());
            let step = &rest[..rest.len().min(STEP)];
            // The last step may write directly to the output, without a window of its own.
            let flush = if step.len() == rest.len() {
                FlushDecompress::Finish
            } else {
                FlushDecompress::None
            };
            let status = inflater
                .decompress_vec(step, out.buffer(), flush)
                .map_err(|error| {
                    Error::corrupt(format!(
                        "deflated data at byte {read} of {}",
                        self.raw.len()
                    ))
                    .with_source(error)
                })?;
            let read = (inflater.total_in() - read) as usize;
            rest = &rest[read..];
            let written = out.len() - before;
            sum.update(&out.part_mut(before)[..written]);
            if out.len() > size {
                return Err(Error::corrupt(format!(
                    "it inflates to more than the {size} bytes stated"
                )));
            }
            match status {
                Status::StreamEnd => break,
                _ if read == 0 && written == 0 => {
                    return Err(Error::corrupt(format!(
                        "its deflated data ends early, after {} of {size} bytes",
                        out.len()
                    )));
                }
                _ => unless_stopped(stopped)?,
            }
        }
        if !rest.is_empty() {
            return Err(Error::corrupt(format!(
                "{} bytes after its deflated data",
                rest.len()
            )));
        }
        if out.len() != size {
            return Err(Error::corrupt(format!(
                "it inflates to {} bytes, not the {size} stated",
                out.len()
            )));
        }
        self.check(sum)?;
        Ok(out.into_bytes())
    }

    fn check(&self, sum: Crc) -> Result<()> {
        let (stated, found) = (self.crc, sum.finalize());
        if found == stated {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "its CRC is {found:08x}, not {stated:08x} as stated"
        )))
    }
}

fn unless_stopped(stopped: &dyn Fn() -> bool) -> Result<()> {
    if stopped() {
        Err(Error::new(ErrorKind::Io, "the epoch was dropped"))
    } else {
        Ok(())
    }
}
