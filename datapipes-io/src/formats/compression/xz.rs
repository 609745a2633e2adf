//! Reads xz streams (The .xz File Format 1.2.1).

use std::io::{self, BufRead, Read};

use datapipes::ErrorKind;
use lzma_rust2::{Action, Status, XzStream};

use super::input::Input;
use super::reader::fault;

const MAGIC: &[u8] = b"\xfd7zXZ\0";

/// A reader of all streams of a file, and of the zeros between and after them, which must be a
/// multiple of four. Checks of blocks (none, CRC-32, CRC-64 or SHA-256), index and footer are
/// verified. A dictionary above the limit is refused before it is allocated.
pub(super) struct Streams {
    input: Input,
    stream: Option<XzStream>,
    /// Number of zeros since the last stream.
    zeros: u64,
    /// Maximum size of the dictionary in bytes.
    window: u64,
}

impl Streams {
    pub(super) fn new(input: Input, window: u64) -> Self {
        Streams {
            input,
            stream: None,
            zeros: 0,
            window,
        }
    }

    /// Begins the next stream; returns `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            let there = self.input.fill_buf()?;
            let zeros = there
                .iter()
                .position(|&byte| byte != 0)
                .unwrap_or(there.len());
            if zeros == 0 {
                break;
            }
            self.input.consume(zeros);
            self.zeros += zeros as u64;
        }
        let at = self.input.at();
        if !self.zeros.is_multiple_of(4) {
            let zeros = self.zeros;
            let what =
                format!("xz, {zeros} bytes of padding before byte {at}, which is no multiple of 4");
            return Err(fault(ErrorKind::Corrupt, what));
        }
        match self.input.peek(MAGIC.len())? {
            [] => return Ok(false),
            MAGIC => {}
            left if MAGIC.starts_with(left) => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                return Err(fault(
                    ErrorKind::Corrupt,
                    format!("xz, what is at byte {at} begins no stream"),
                ));
            }
        }
        self.zeros = 0;
        // The reader counts in KiB, and includes its own tables.
        let limit = u32::try_from(self.window / 1024 + 128).unwrap_or(u32::MAX);
        self.stream = Some(XzStream::new_mem_limit(false, limit));
        Ok(true)
    }
}

impl Read for Streams {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(stream) = &mut self.stream else {
                if !self.begin()? {
                    return Ok(0);
                }
                continue;
            };
            // The decoder may have more output before more input has arrived.
            let (there, action) = match self.input.fill_buf() {
                Ok([]) => (&[][..], Action::Finish),
                Ok(there) => (there, Action::Run),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (&[][..], Action::Run),
                Err(error) => return Err(error),
            };
            let empty = there.is_empty();
            let done = stream
                .process(there, out, action)
                .map_err(|error| match error.kind() {
                    io::ErrorKind::OutOfMemory => {
                        let what = format!(
                            "xz, a dictionary larger than the {} bytes that are allowed",
                            self.window
                        );
                        fault(ErrorKind::Limit, what)
                    }
                    _ => error,
                })?;
            self.input.consume(done.bytes_consumed);
            if done.status == Status::StreamEnd {
                self.stream = None;
            }
            match done.bytes_produced {
                0 if done.status == Status::Ok && empty => {
                    return Err(match action {
                        Action::Run => io::ErrorKind::WouldBlock.into(),
                        Action::Finish => io::ErrorKind::UnexpectedEof.into(),
                    });
                }
                0 => {}
                produced => return Ok(produced),
            }
        }
    }
}
