//! Reads LZ4 frames (LZ4 Frame Format 1.6.x).

use std::io::{self, Read};

use datapipes::ErrorKind;
use lz4_flex::frame::FrameDecoder;

use super::input::{Input, Turn};
use super::reader::fault;
use super::{LZ4, LZ4_LEGACY, Skippable, is_cut};

/// A reader of all frames of a file. Skippable frames are skipped; a dictionary and the frames of
/// the first version are refused; checksums and lengths are checked if a frame has them.
pub(super) struct Frames {
    turn: Turn<FrameDecoder<Frame>>,
    skip: Skippable,
}

impl Frames {
    pub(super) fn new(input: Input) -> Self {
        Frames {
            turn: Turn::Between(input),
            skip: Skippable::default(),
        }
    }
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match &mut self.turn {
                Turn::Between(input) => {
                    self.skip.pass(input)?;
                    let Some(head) = Head::read(input)? else {
                        return Ok(0);
                    };
                    if let Turn::Between(input) = std::mem::replace(&mut self.turn, Turn::Lost) {
                        self.turn = Turn::Inside(FrameDecoder::new(Frame::new(input, head)));
                    }
                }
                Turn::Inside(decoder) => {
                    let read = decoder.read(out)?;
                    if read > 0 {
                        return Ok(read);
                    }
                    // An empty block ends a call; the end mark of the frame ends the frame.
                    if decoder.get_ref().ended
                        && let Turn::Inside(decoder) = std::mem::replace(&mut self.turn, Turn::Lost)
                    {
                        self.turn = Turn::Between(decoder.into_inner().input);
                    }
                }
                Turn::Lost => return Ok(0),
            }
        }
    }
}

/// Header of a frame.
struct Head {
    begin: u64,
    len: u64,
    block_checksum: bool,
    content_checksum: bool,
    max_block: u64,
}

fn place(begin: u64, kind: ErrorKind, what: &str) -> io::Error {
    fault(kind, format!("lz4, frame at byte {begin}: {what}"))
}

impl Head {
    /// Reads the header of the frame that begins here; `None` at the end.
    fn read(input: &mut Input) -> io::Result<Option<Head>> {
        let begin = input.at();
        let head = input.peek(6)?;
        match head {
            [] => return Ok(None),
            _ if head.starts_with(LZ4_LEGACY) => {
                return Err(place(
                    begin,
                    ErrorKind::Unsupported,
                    "it is of the legacy format",
                ));
            }
            _ if head.starts_with(LZ4) => {}
            _ if is_cut(head, LZ4) => return Err(place(begin, ErrorKind::Truncated, CUT)),
            _ => {
                return Err(place(
                    begin,
                    ErrorKind::Corrupt,
                    "what is there begins no frame",
                ));
            }
        }
        let &[.., flags, sizes] = head else {
            unreachable!("it begins with the magic")
        };
        if head.len() < 6 {
            return Err(place(begin, ErrorKind::Truncated, CUT));
        }
        if flags & 0x01 != 0 {
            return Err(place(
                begin,
                ErrorKind::Unsupported,
                "it needs a dictionary, and there is none",
            ));
        }
        Ok(Some(Head {
            begin,
            len: 7 + if flags & 0x08 != 0 { 8 } else { 0 },
            block_checksum: flags & 0x10 != 0,
            content_checksum: flags & 0x04 != 0,
            // 64 KiB to 4 MiB; the decoder refuses other values.
            max_block: 1 << (2 * ((sizes >> 4) & 7) + 8),
        }))
    }
}

const CUT: &str = "it has no end";

/// The bytes of one frame, to its end: the decoder takes a missing end, and an empty block, for the
/// end of the input. The decoder gets a block once all of it has arrived, since it cannot wait
/// within a block.
struct Frame {
    input: Input,
    head: Head,
    /// Remaining bytes of the current header or block.
    left: u64,
    last: bool,
    ended: bool,
}

impl Frame {
    fn new(input: Input, head: Head) -> Self {
        Frame {
            input,
            left: head.len,
            head,
            last: false,
            ended: false,
        }
    }

    /// Returns the length of the next block, with its size and checksum.
    fn block(&mut self) -> io::Result<u64> {
        let begin = self.head.begin;
        let cut = || place(begin, ErrorKind::Truncated, CUT);
        let size = self.input.peek(4)?.first_chunk::<4>().ok_or_else(cut)?;
        let size = u32::from_le_bytes(*size);
        if size == 0 {
            self.last = true;
            return Ok(4 + if self.head.content_checksum { 4 } else { 0 });
        }
        let (size, most) = (u64::from(size & 0x7fff_ffff), self.head.max_block);
        if size > most {
            let what = format!("a block of {size} bytes, and {most} are allowed");
            return Err(place(begin, ErrorKind::Corrupt, &what));
        }
        Ok(4 + size + if self.head.block_checksum { 4 } else { 0 })
    }
}

impl Read for Frame {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && self.last {
            self.ended = true;
            return Ok(0);
        }
        let mut len = self.left;
        let fresh = len == 0 || self.input.at() == self.head.begin;
        if len == 0 {
            len = self.block()?;
        }
        if fresh && !self.input.has(len) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.left = len;
        let most = usize::try_from(len).unwrap_or(usize::MAX).min(out.len());
        let read = self.input.read(&mut out[..most])?;
        if read == 0 && most > 0 {
            return Err(place(self.head.begin, ErrorKind::Truncated, CUT));
        }
        self.left -= read as u64;
        self.ended = self.left == 0 && self.last;
        Ok(read)
    }
}
