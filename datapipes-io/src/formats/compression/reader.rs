//! One reader for every codec: bounded, stoppable, with errors that contain their position.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::{Context, Error, ErrorKind, Result};

use super::Expansion;
use super::input::{Feeder, Input};

/// A compression as a name and a decoder, which runs inside the checks that all codecs share, with
/// a window of at most the given size. The decoder may not be read again after an error.
#[derive(Clone, Copy)]
pub(in crate::formats) struct Packing {
    pub(in crate::formats) name: &'static str,
    pub(in crate::formats) decoder: Decoder,
}

/// Returns a reader for any packing.
pub(in crate::formats) fn unpacker(
    packing: Packing,
    data: Bytes,
    expansion: Expansion,
    cx: &Context,
) -> Box<dyn Read + Send> {
    Box::new(Bounded::whole(packing, data, expansion, cx))
}

/// Returns the wrapped error of this library, or any other error as `kind`.
pub(in crate::formats) fn unpack(error: io::Error, kind: ErrorKind, what: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::new(kind, what).with_source(error),
    }
}

/// Number of bytes after which the reader checks if the epoch was dropped.
const STEP: usize = 1 << 20;

struct Bounded {
    name: &'static str,
    inner: Box<dyn Read + Send>,
    /// Size of the compressed file; if it is not known, the number of bytes that have arrived.
    own: Result<u64, Feeder>,
    /// Number of bytes read.
    read: u64,
    expansion: Expansion,
    cx: Context,
    failed: bool,
}

impl Bounded {
    fn new(
        packing: Packing,
        input: Input,
        own: Result<u64, Feeder>,
        expansion: Expansion,
        cx: &Context,
    ) -> Bounded {
        let inner = match own {
            Ok(0) => failure(
                ErrorKind::Truncated,
                format!("an empty file where {} data is due", packing.name),
            ),
            _ => (packing.decoder)(input, expansion.window),
        };
        Bounded {
            name: packing.name,
            inner,
            own,
            read: 0,
            expansion,
            cx: cx.clone(),
            failed: false,
        }
    }

    fn whole(packing: Packing, data: Bytes, expansion: Expansion, cx: &Context) -> Bounded {
        let own = Ok(data.len() as u64);
        Bounded::new(packing, Input::whole(data), own, expansion, cx)
    }
}

/// Function that makes a decoder of an input, with a window of at most the given size.
pub(super) type Decoder = fn(Input, u64) -> Box<dyn Read + Send>;

/// A compressed file that is decompressed as it arrives.
pub(in crate::formats) struct Inflating {
    reader: Bounded,
    feeder: Feeder,
    failed: Option<Error>,
}

impl Inflating {
    /// Returns the decompressor of a file of this size, if it is known.
    pub(in crate::formats) fn new(
        packing: Packing,
        len: Option<u64>,
        expansion: Expansion,
        cx: &Context,
    ) -> Self {
        let (input, feeder) = Input::arriving();
        let own = len.ok_or_else(|| feeder.clone());
        Inflating {
            reader: Bounded::new(packing, input, own, expansion, cx),
            feeder,
            failed: None,
        }
    }

    /// Adds the next piece of the file.
    pub(in crate::formats) fn push(&self, piece: Bytes) {
        self.feeder.push(piece);
    }

    /// Ends the input: there are no more pieces.
    pub(in crate::formats) fn end(&self) {
        self.feeder.end();
    }

    /// Decompresses up to 1 MiB of the available bytes; the result is empty at the end, and `None`
    /// if another piece is needed.
    pub(in crate::formats) fn step(&mut self) -> Result<Option<Bytes>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let (mut out, mut len) = (vec![0; STEP], 0);
        let more = loop {
            match self.reader.read(&mut out[len..]) {
                Ok(0) => break false,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break true,
                Err(error) => {
                    let error = unpack(error, ErrorKind::Corrupt, "compressed data");
                    if len == 0 {
                        return Err(error);
                    }
                    self.failed = Some(error);
                    break false;
                }
            }
        };
        if len < STEP / 2 {
            out.truncate(len);
            out.shrink_to_fit();
        }
        out.truncate(len);
        Ok((len > 0 || !more).then(|| out.into()))
    }
}

/// Wraps an error of this library.
pub(in crate::formats) fn fault(kind: ErrorKind, what: impl Into<String>) -> io::Error {
    io::Error::other(Error::new(kind, what))
}

/// Makes a reader of nothing but this error.
pub(super) fn failure(kind: ErrorKind, what: String) -> Box<dyn Read + Send> {
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
            return Err(fault(ErrorKind::Corrupt, "read after an error"));
        }
        if self.cx.is_cancelled() {
            return Err(fault(ErrorKind::Io, "the epoch was dropped"));
        }
        let room = out.len().min(STEP);
        let read = self
            .inner
            .read(&mut out[..room])
            .map_err(|error| self.name(error))?;
        self.read += read as u64;
        let own = self.own.as_ref().map_or_else(Feeder::pushed, |own| *own);
        if let Some(most) = self.cx.max_inflated().filter(|&most| self.read > most) {
            let what = format!(
                "{own} bytes inflate to more than {most}, which the loader allows (`max_inflated`)"
            );
            return Err(fault(ErrorKind::Limit, what));
        }
        if self.read > self.expansion.most(own) {
            return Err(fault(ErrorKind::Limit, self.expansion.exceeded(own)));
        }
        Ok(read)
    }

    /// Adds the position of the error, and its meaning for the caller.
    fn name(&self, error: io::Error) -> io::Error {
        let own = error.get_ref().is_some_and(|inner| inner.is::<Error>());
        if own || error.kind() == io::ErrorKind::WouldBlock {
            return error;
        }
        let kind = match error.kind() {
            io::ErrorKind::UnexpectedEof => ErrorKind::Truncated,
            io::ErrorKind::OutOfMemory => ErrorKind::Limit,
            io::ErrorKind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        };
        let what = format!("{}, after {} bytes of content", self.name, self.read);
        io::Error::other(Error::new(kind, what).with_source(error))
    }
}

impl Read for Bounded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let read = self.step(out);
        self.failed |= read
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock);
        read
    }
}
