//! Reads Zstandard frames (RFC 8878).

use std::io::{self, BufRead, Read};

use datapipes::ErrorKind;
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::input::Input;
use super::reader::fault;
use super::{Skippable, ZSTD, is_cut};

/// A reader of all frames of a file. Skippable frames are skipped; a window above the limit and a
/// dictionary are refused before anything is allocated for them; checksums are checked if a frame
/// has one.
pub(super) struct Frames {
    input: Input,
    skip: Skippable,
    /// True if a frame was begun and has not ended.
    inside: bool,
    decoder: Option<Decoder<'static>>,
    /// Maximum window of a frame in bytes.
    window: u64,
}

impl Frames {
    pub(super) fn new(input: Input, window: u64) -> Self {
        Frames {
            input,
            skip: Skippable::default(),
            inside: false,
            decoder: None,
            window,
        }
    }

    /// Begins the next frame; returns `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        self.skip.pass(&mut self.input)?;
        let at = self.input.at();
        let frame = self.input.peek(HEADER)?;
        if frame.is_empty() {
            return Ok(false);
        }
        let place =
            |kind, what: String| Err(fault(kind, format!("zstd, frame at byte {at}: {what}")));
        if !frame.starts_with(ZSTD) {
            return match is_cut(frame, ZSTD) {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => place(
                    ErrorKind::Corrupt,
                    "what is there begins no frame".to_owned(),
                ),
            };
        }
        let Some(header) = Header::read(frame) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if header.dictionary != 0 {
            let what = format!(
                "it needs dictionary {}, and there is none",
                header.dictionary
            );
            return place(ErrorKind::Unsupported, what);
        }
        if header.window > self.window {
            let what = format!(
                "its window is {} bytes, and {} are allowed",
                header.window, self.window
            );
            return place(ErrorKind::Limit, what);
        }
        self.inside = true;
        Ok(true)
    }
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.inside && !self.begin()? {
                return Ok(0);
            }
            let decoder = match &mut self.decoder {
                Some(decoder) => decoder,
                none => {
                    let mut decoder = Decoder::new()?;
                    // The limit is checked above, to the byte.
                    let most = if size_of::<usize>() == 8 { 31 } else { 30 };
                    decoder.set_parameter(DParameter::WindowLogMax(most))?;
                    none.insert(decoder)
                }
            };
            // The decoder may have more output before more input has arrived.
            let (there, late) = match self.input.fill_buf() {
                Ok(there) => (there, false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (&[][..], true),
                Err(error) => return Err(error),
            };
            let empty = there.is_empty();
            let (mut input, mut output) = (InBuffer::around(there), OutBuffer::around(&mut *out));
            let expected = decoder.run(&mut input, &mut output)?;
            let (used, read) = (input.pos(), output.pos());
            self.input.consume(used);
            // The frame has ended, and its output is complete.
            self.inside = expected != 0;
            if self.inside && read == 0 && empty {
                return Err(match late {
                    true => io::ErrorKind::WouldBlock.into(),
                    false => io::ErrorKind::UnexpectedEof.into(),
                });
            }
            if read > 0 {
                return Ok(read);
            }
        }
    }
}

/// Size of the longest header, with the magic.
const HEADER: usize = 18;

/// Header of a frame.
#[derive(Debug, PartialEq)]
struct Header {
    window: u64,
    dictionary: u32,
}

impl Header {
    /// Returns `None` if the header is cut.
    fn read(frame: &[u8]) -> Option<Header> {
        let (&flags, mut rest) = frame.get(ZSTD.len()..)?.split_first()?;
        let mut take = |len: usize| {
            let (field, after) = rest.split_at_checked(len)?;
            rest = after;
            Some(
                field
                    .iter()
                    .rev()
                    .fold(0u64, |number, &byte| number << 8 | u64::from(byte)),
            )
        };
        let single = flags & 0x20 != 0;
        let mut window = 0;
        if !single {
            let descriptor = take(1)?;
            let base = 1u64 << (10 + (descriptor >> 3));
            window = base + base / 8 * (descriptor & 7);
        }
        let dictionary = take([0, 1, 2, 4][usize::from(flags & 3)])? as u32;
        let content = match flags >> 6 {
            0 => take(usize::from(single))?,
            1 => take(2)? + 256,
            2 => take(4)?,
            _ => take(8)?,
        };
        // A frame of a single segment is its own window.
        Some(Header {
            window: if single { content } else { window },
            dictionary,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_the_standard_says() {
        let header = |bytes: &[u8]| Header::read(&[ZSTD, bytes].concat());
        let made = |window, dictionary| Some(Header { window, dictionary });
        assert_eq!(header(&[0x20, 7]), made(7, 0));
        assert_eq!(header(&[0x60, 1, 1]), made(513, 0));
        assert_eq!(
            header(&[0xa3, 9, 0, 0, 1, 1, 0, 0, 0]),
            made(1, 0x0100_0009)
        );
        assert_eq!(header(&[0x00, 0x58]), made(2 << 20, 0));
        assert_eq!(header(&[0x00, 0x59]), made((2 << 20) + (256 << 10), 0));
        assert_eq!(header(&[0x00, 0xff]), made((1 << 41) / 8 * 15, 0));
        assert_eq!(header(&[0xc0, 0x58, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!((header(&[]), header(&[0x00])), (None, None));
    }
}
