//! Reads bzip2 streams.

use std::io::{self, BufRead, Read};

use bzip2::bufread::BzDecoder;
use datapipes::ErrorKind;

use super::input::{Input, Turn};
use super::reader::fault;

/// A reader of all streams of a file, which checks the checksums of blocks and streams; data after
/// the last stream are an error.
pub(super) struct Streams(Turn<BzDecoder<Input>>);

impl Streams {
    pub(super) fn new(input: Input) -> Self {
        Streams(Turn::Between(input))
    }
}

/// Returns true if a stream begins here; false at the end.
fn begins(input: &mut Input) -> io::Result<bool> {
    // A stream without a block has only this form. The decoder takes 4 MB for each stream, and
    // there may be very many.
    while let [
        b'B',
        b'Z',
        b'h',
        b'1'..=b'9',
        0x17,
        0x72,
        0x45,
        0x38,
        0x50,
        0x90,
        0,
        0,
        0,
        0,
    ] = input.peek(14)?
    {
        input.consume(14);
    }
    let at = input.at();
    match input.peek(3)? {
        [] => Ok(false),
        b"BZh" => Ok(true),
        left if b"BZh".starts_with(left) => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(fault(
            ErrorKind::Corrupt,
            format!("bzip2, what is at byte {at} begins no stream"),
        )),
    }
}

impl Read for Streams {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0
            .read(out, begins, BzDecoder::new, BzDecoder::into_inner)
    }
}
