//! Reads LZ4 frames (LZ4 Frame Format 1.6.x).

use std::io::{self, Cursor, Read};

use bytes::Bytes;
use datapipes::ErrorKind;
use lz4_flex::frame::FrameDecoder;

use super::reader::fault;
use super::{LZ4, LZ4_LEGACY, behind_skippable, is_cut};

/// All frames of a file. Skippable ones are skipped; a dictionary and the frames of the first version are refused;
/// checksums and lengths are checked where a frame has them.
///
/// Where a frame ends is found here, before it is read: the decoder below takes a missing end, and an empty block, for the
/// end of all.
pub(super) struct Frames {
    data: Bytes,
    at: usize,
    frame: Option<FrameDecoder<Cursor<Bytes>>>,
}

impl Frames {
    pub(super) fn new(data: Bytes) -> Self {
        Frames { data, at: 0, frame: None }
    }

    /// Begins the next frame; `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        let left = &self.data[self.at..];
        let frame = behind_skippable(left)?;
        self.at += left.len() - frame.len();
        if frame.is_empty() {
            return Ok(false);
        }
        let len = frame_len(frame, self.at)?;
        let frame = self.data.slice(self.at..self.at + len);
        self.at += len;
        self.frame = Some(FrameDecoder::new(Cursor::new(frame)));
        Ok(true)
    }
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else {
                if !self.begin()? {
                    return Ok(0);
                }
                continue;
            };
            let read = frame.read(out)?;
            if read > 0 {
                return Ok(read);
            }
            // An empty block ends a call, and the frame's own end the frame.
            let inside = frame.get_ref();
            if inside.position() == inside.get_ref().len() as u64 {
                self.frame = None;
            }
        }
    }
}

/// How long the frame is that begins here, or where it is cut.
fn frame_len(frame: &[u8], begin: usize) -> io::Result<usize> {
    let place = |kind, what: &str| fault(kind, format!("lz4, frame at byte {begin}: {what}"));
    let cut = || place(ErrorKind::Truncated, "it has no end");
    if frame.starts_with(LZ4_LEGACY) {
        return Err(place(ErrorKind::Unsupported, "it is of the legacy format"));
    }
    if !frame.starts_with(LZ4) {
        return Err(match is_cut(frame, LZ4) {
            true => cut(),
            false => place(ErrorKind::Corrupt, "what is there begins no frame"),
        });
    }
    let &[flags, sizes] = frame.get(LZ4.len()..).and_then(|rest| rest.first_chunk::<2>()).ok_or_else(cut)?;
    if flags & 0x01 != 0 {
        return Err(place(ErrorKind::Unsupported, "it needs a dictionary, and there is none"));
    }
    let (block_checksum, content_size, content_checksum) =
        (flags & 0x10 != 0, flags & 0x08 != 0, flags & 0x04 != 0);
    // 64 KiB to 4 MiB; what else is there the decoder refuses.
    let most = 1usize << (2 * (usize::from(sizes >> 4) & 7) + 8);
    let mut at = 7 + if content_size { 8 } else { 0 };
    loop {
        let size = frame.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or_else(cut)?;
        at += 4;
        let size = u32::from_le_bytes(*size);
        if size == 0 {
            break;
        }
        let size = (size & 0x7fff_ffff) as usize;
        if size > most {
            let what = format!("a block of {size} bytes, and {most} are allowed");
            return Err(place(ErrorKind::Corrupt, &what));
        }
        at += size + if block_checksum { 4 } else { 0 };
    }
    at += if content_checksum { 4 } else { 0 };
    if at > frame.len() { Err(cut()) } else { Ok(at) }
}
