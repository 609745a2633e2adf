//! A PNG whose pixels are inflated here, with their checksum, and passed on uncompressed.
//!
//! The decoder of the `image` crate stops inflating at the last pixel, before the Adler-32 of the
//! zlib stream, and has no setting to change that. The decoder therefore gets the same file with
//! the stream inflated and stored, a piece at a time.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use datapipes::{Error, Result};
use flate2::{Decompress, FlushDecompress, Status};

use super::{format, take};

/// Chunks that the decoder would expand and keep, though no pixel depends on them.
const NOTES: [&[u8; 4]; 5] = [b"iCCP", b"tEXt", b"zTXt", b"iTXt", b"eXIf"];

/// Number of bytes that are inflated at once.
const PIECE: usize = 32 << 10;
/// Bytes before a stored block: the chunk's length and type, the zlib header, the block's header.
const HEAD: usize = 8 + 2 + 5;

/// The file as the decoder gets it: without [`NOTES`], and with its pixels stored. Ends with an
/// error if the stream of pixels does not match its checksum.
pub(super) struct Checked<'a> {
    bytes: &'a [u8],
    /// Offset of the next chunk of the file.
    at: usize,
    stream: Stream<'a>,
    /// Next bytes for the decoder: a part of the file, or bytes that were made for it.
    given: Given,
    made: Vec<u8>,
    used: usize,
    /// Maximum number of bytes that the stream may inflate to.
    most: u64,
}

enum Given {
    Part { start: usize, end: usize },
    Made,
}

/// The zlib stream in the first run of `IDAT` chunks.
enum Stream<'a> {
    Ahead,
    Begun {
        inflate: Box<Decompress>,
        rest: &'a [u8],
    },
    /// The end of the stream was valid; the rest of the run is ignored.
    Ended,
    Behind,
}

impl<'a> Checked<'a> {
    /// Makes the stream of a file that begins with the signature, for pixels of at most
    /// `max_bytes`.
    pub(super) fn new(bytes: &'a [u8], max_bytes: u64) -> Self {
        let given = Given::Part {
            start: 0,
            end: format::PNG.len(),
        };
        let (at, most) = (format::PNG.len(), max_bytes.saturating_mul(2));
        Checked {
            bytes,
            at,
            stream: Stream::Ahead,
            given,
            made: Vec::new(),
            used: 0,
            most,
        }
    }

    fn left(&self) -> &[u8] {
        match self.given {
            Given::Part { start, end } => &self.bytes[start + self.used..end],
            Given::Made => &self.made[self.used..],
        }
    }

    /// Continues with the next part of the file or piece of the stream; `false` at the end.
    fn advance(&mut self) -> Result<bool> {
        self.used = 0;
        loop {
            if let Stream::Begun { .. } = self.stream {
                return self.inflate().map(|()| true);
            }
            if self.at == self.bytes.len() {
                return Ok(false);
            }
            let (kind, body, next) = chunk(self.bytes, self.at)?;
            let start = std::mem::replace(&mut self.at, next);
            match (kind, &self.stream) {
                (b"IDAT", Stream::Ahead) => {
                    self.check_chunk(start, next)?;
                    let inflate = Box::new(Decompress::new(true));
                    self.stream = Stream::Begun {
                        inflate,
                        rest: body,
                    };
                }
                (b"IDAT", Stream::Ended) => self.check_chunk(start, next)?,
                (kind, _) => {
                    if let Stream::Ended = self.stream {
                        self.stream = Stream::Behind;
                    }
                    if !NOTES.contains(&kind) {
                        self.given = Given::Part { start, end: next };
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Checks a chunk's own checksum, since the decoder gets another chunk.
    fn check_chunk(&self, start: usize, next: usize) -> Result<()> {
        let (chunk, sum) = self.bytes[start + 4..next].split_at(next - start - 8);
        match crc32fast::hash(chunk).to_be_bytes() == sum {
            true => Ok(()),
            false => Err(Error::corrupt("the checksum of a chunk of pixels is wrong")),
        }
    }

    /// Makes a chunk of the next piece of the stream.
    fn inflate(&mut self) -> Result<()> {
        let is_first = self.made.is_empty();
        self.made.resize(HEAD + PIECE, 0);
        let (mut filled, mut ended) = (HEAD, false);
        while filled < self.made.len() && !ended {
            let Stream::Begun { inflate, rest } = &mut self.stream else {
                unreachable!("asked for in a stream")
            };
            let (read, written) = (inflate.total_in(), inflate.total_out());
            let status = inflate.decompress(rest, &mut self.made[filled..], FlushDecompress::None);
            let status = status.map_err(|error| {
                Error::corrupt("the stream of pixels, or its checksum").with_source(error)
            })?;
            *rest = &rest[(inflate.total_in() - read) as usize..];
            let more = (inflate.total_out() - written) as usize;
            filled += more;
            ended = status == Status::StreamEnd;
            if inflate.total_out() > self.most {
                return Err(Error::limit(format!(
                    "a stream of more than {} bytes, which its pixels do not need",
                    self.most
                )));
            }
            if more == 0 && !ended && rest.is_empty() {
                match chunk(self.bytes, self.at)? {
                    (b"IDAT", body, next) => {
                        *rest = body;
                        let start = std::mem::replace(&mut self.at, next);
                        self.check_chunk(start, next)?;
                    }
                    // The inflated bytes are returned before the end is reported.
                    _ if filled > HEAD => break,
                    _ => {
                        let what = "the stream of pixels ends before its checksum";
                        return Err(Error::truncated(what));
                    }
                }
            }
        }
        if ended {
            self.stream = Stream::Ended;
        }
        self.store(filled - HEAD, is_first, ended);
        Ok(())
    }

    /// Adds headers before `len` bytes of pixels, and checksums after them. Only the first chunk
    /// has the header of the stream.
    fn store(&mut self, len: usize, is_first: bool, is_last: bool) {
        self.made.truncate(HEAD + len);
        if is_last {
            // In the place of the checksum, which the decoder ignores.
            self.made.extend([0; 4]);
        }
        let block = u16::try_from(len).expect("a piece is less than 64 KiB");
        let [low, high] = block.to_le_bytes();
        self.made[10..15].copy_from_slice(&[u8::from(is_last), low, high, !low, !high]);
        // Without a header the chunk begins two bytes later.
        let start = if is_first { 0 } else { 2 };
        self.made[8..10].copy_from_slice(&[0x78, 0x01]);
        self.made[start + 4..start + 8].copy_from_slice(b"IDAT");
        let body = (self.made.len() - start - 8) as u32;
        self.made[start..start + 4].copy_from_slice(&body.to_be_bytes());
        let sum = crc32fast::hash(&self.made[start + 4..]);
        self.made.extend(sum.to_be_bytes());
        (self.given, self.used) = (Given::Made, start);
    }
}

impl BufRead for Checked<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.left().is_empty() {
            // The error passes through the decoder unchanged.
            if !self.advance().map_err(io::Error::other)? {
                break;
            }
        }
        Ok(self.left())
    }
    fn consume(&mut self, amount: usize) {
        self.used += amount;
    }
}

impl Read for Checked<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let here = self.fill_buf()?;
        let len = here.len().min(space.len());
        space[..len].copy_from_slice(&here[..len]);
        self.consume(len);
        Ok(len)
    }
}

/// The decoder requires `Seek`, but reads from the beginning to the end.
impl Seek for Checked<'_> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Returns a chunk's type, its body, and the offset of the next one.
pub(super) fn chunk(bytes: &[u8], at: usize) -> Result<(&[u8; 4], &[u8], usize)> {
    let head = take(bytes, at, 8, "PNG")?;
    let (len, kind) = head.split_at(4);
    let len = u32::from_be_bytes(len.try_into().expect("half of 8 bytes")) as usize;
    // The checksum after the body is compared where the chunk is used.
    take(bytes, at + 8, len.saturating_add(4), "PNG")?;
    let kind = kind.try_into().expect("the other half of 8 bytes");
    Ok((kind, &bytes[at + 8..at + 8 + len], at + 12 + len))
}
