//! The end that takes messages out.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;

use super::{MOST_SLICES, ReadHalf, memory};
use crate::codec::{Parcel, damaged};
use crate::{Error, Result};

/// Length of the first part of a message, in bytes.
const START: usize = 8;
/// Bytes read at once of small messages.
const BUFFER: usize = 64 << 10;
/// The same of a message that may have slices, which are then read to where they stay.
const HEAD: usize = 4 << 10;
/// Least part of a slice that is read to where it stays.
const DIRECT: usize = 16 << 10;
/// Number of messages without slices after one with some that are taken for one that may have them.
const MAY_HAVE_SLICES: u8 = 8;
/// Bytes of a slice for which memory is made before they arrive; after that it doubles.
const AT_ONCE: usize = 64 << 20;

/// Takes messages out of a queue from another machine.
///
/// The memory of large slices is used again when the last clone of a slice is dropped.
pub(crate) struct RemoteTake {
    read: ReadHalf,
    /// Bytes that were read and not used yet: `buffer[at..filled]`.
    buffer: Box<[u8]>,
    at: usize,
    filled: usize,
    /// Number of the next messages that may have slices.
    slices_ahead: u8,
    /// Number of bytes read so far.
    read_bytes: u64,
    /// Greatest length of a message.
    most: u64,
    begun: Option<Begun>,
    /// Set at the end of the stream; contains the error if the other end did not end properly.
    end: Option<Option<Error>>,
}

/// A message that has arrived in part.
struct Begun {
    stage: Stage,
    /// Memory that is filled in this stage.
    filling: Filling,
    head: Vec<u8>,
    head_len: usize,
    /// Lengths of the slices.
    lengths: Vec<u64>,
    slices: Vec<Bytes>,
}

impl Begun {
    /// Returns memory for the next slice, of length 0 after the last.
    fn slice(&self) -> Filling {
        let len = self.lengths.get(self.slices.len()).copied().unwrap_or(0) as usize;
        match memory::take(len).filter(|_| len > 0) {
            Some(mut memory) => {
                // Only what no message was in before has to be filled.
                memory.resize(memory.len().max(len), 0);
                Filling { memory, at: 0, len }
            }
            None => Filling::new(len),
        }
    }
}

/// Parts of a message, in the order in which they arrive.
enum Stage {
    Start,
    Lengths,
    Head,
    Slices,
}

/// Memory that is being filled up to a length.
struct Filling {
    memory: Vec<u8>,
    at: usize,
    len: usize,
}

impl Filling {
    fn new(len: usize) -> Filling {
        Filling {
            memory: vec![0; len.min(AT_ONCE)],
            at: 0,
            len,
        }
    }

    /// Returns the memory to be filled next, which grows with what has arrived.
    fn rest(&mut self) -> Result<&mut [u8]> {
        if self.at == self.memory.len() && self.at < self.len {
            let more = self.at.max(AT_ONCE).min(self.len - self.at);
            self.memory.try_reserve_exact(more).map_err(|_| {
                let why = format!("no memory for a slice of {} bytes", self.len);
                Error::limit(why)
            })?;
            self.memory.resize(self.at + more, 0);
        }
        let end = self.memory.len().min(self.len);
        Ok(&mut self.memory[self.at..end])
    }
}

impl Drop for RemoteTake {
    fn drop(&mut self) {
        memory::leave();
    }
}

/// A slice, whose memory is kept when it is dropped.
struct Payload {
    memory: Vec<u8>,
    len: usize,
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        memory::keep(std::mem::take(&mut self.memory));
    }
}

opaque_debug!(RemoteTake { end });

impl RemoteTake {
    /// Makes a take end of a connection, for messages of at most `most` bytes.
    pub(crate) fn new(read: ReadHalf, most: u64) -> RemoteTake {
        memory::enter();
        RemoteTake {
            read,
            buffer: vec![0; BUFFER].into(),
            at: 0,
            filled: 0,
            slices_ahead: 0,
            read_bytes: 0,
            most,
            begun: None,
            end: None,
        }
    }

    /// Changes the greatest length of a message.
    pub(crate) fn set_most(&mut self, most: u64) {
        self.most = most;
    }

    /// Returns the next message; `None` at the end of the stream, see [`fault`](RemoteTake::fault).
    pub(crate) fn poll_parcel(&mut self, cx: &mut Context<'_>) -> Poll<Option<Parcel>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        let fault = match ready!(self.poll_message(cx)) {
            Ok(Some(parcel)) => return Poll::Ready(Some(parcel)),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        (self.end, self.begun) = (Some(fault), None);
        Poll::Ready(None)
    }

    /// Returns the fault if the stream has ended without its other end having ended it.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.end.as_ref()?.as_ref()
    }

    /// Returns the number of bytes that have come, of messages that are not whole, too.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Returns true if no more messages come.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Parcel>>> {
        let mut begun = self.begun.take().unwrap_or_else(|| Begun {
            stage: Stage::Start,
            filling: Filling::new(START),
            head: Vec::new(),
            head_len: 0,
            lengths: Vec::new(),
            slices: Vec::new(),
        });
        loop {
            let direct = match begun.stage {
                Stage::Slices => DIRECT,
                _ => BUFFER,
            };
            match self.poll_fill(cx, &mut begun.filling, direct)? {
                Poll::Ready(true) => (),
                Poll::Ready(false) => {
                    let is_whole = matches!(begun.stage, Stage::Start) && begun.filling.at == 0;
                    return Poll::Ready(match is_whole {
                        true => Ok(None),
                        false => Err(Error::io(io::ErrorKind::UnexpectedEof.into())),
                    });
                }
                Poll::Pending => {
                    self.begun = Some(begun);
                    return Poll::Pending;
                }
            }
            let Filling { memory, len, .. } =
                std::mem::replace(&mut begun.filling, Filling::new(0));
            match begun.stage {
                Stage::Start => {
                    let number =
                        |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| memory[at + i]));
                    let (head, slices) = (number(0) as usize, number(4) as usize);
                    if slices > MOST_SLICES || head as u64 > self.most {
                        return Poll::Ready(Err(too_large(head as u64, slices)));
                    }
                    self.slices_ahead = match slices {
                        0 => self.slices_ahead.saturating_sub(1),
                        _ => MAY_HAVE_SLICES,
                    };
                    begun.head_len = head;
                    begun.filling = Filling::new(8 * slices);
                    begun.stage = Stage::Lengths;
                }
                Stage::Lengths => {
                    let lengths = memory.as_chunks::<8>().0;
                    begun.lengths = lengths.iter().map(|&len| u64::from_le_bytes(len)).collect();
                    let all = begun
                        .lengths
                        .iter()
                        .fold(begun.head_len as u64, |all, &len| all.saturating_add(len));
                    if all > self.most {
                        return Poll::Ready(Err(too_large(all, begun.lengths.len())));
                    }
                    begun.filling = Filling::new(begun.head_len);
                    begun.stage = Stage::Head;
                }
                Stage::Head => {
                    begun.head = memory;
                    begun.stage = Stage::Slices;
                    begun.filling = begun.slice();
                }
                Stage::Slices => {
                    if begun.slices.len() == begun.lengths.len() {
                        return Poll::Ready(Ok(Some(Parcel {
                            head: begun.head.into(),
                            payloads: begun.slices,
                        })));
                    }
                    begun
                        .slices
                        .push(Bytes::from_owner(Payload { memory, len }));
                    begun.filling = begun.slice();
                }
            }
        }
    }

    /// Ready with `true` once all of the memory is filled, or with `false` at the end of the stream. If at
    /// least `direct` bytes are missing, they are read to where they stay.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        filling: &mut Filling,
        direct: usize,
    ) -> Result<Poll<bool>> {
        while filling.at < filling.len {
            let rest = filling.rest()?;
            let ready = &self.buffer[self.at..self.filled];
            if !ready.is_empty() {
                let len = ready.len().min(rest.len());
                rest[..len].copy_from_slice(&ready[..len]);
                self.at += len;
                filling.at += len;
                continue;
            }
            // Small parts are read together with what follows.
            let is_direct = rest.len() >= direct;
            let together = match self.slices_ahead {
                0 => BUFFER,
                _ => HEAD.max(rest.len()),
            };
            let mut buffer = ReadBuf::new(match is_direct {
                true => rest,
                false => &mut self.buffer[..together],
            });
            let Poll::Ready(read) = self.read.as_mut().poll_read(cx, &mut buffer) else {
                return Ok(Poll::Pending);
            };
            match read {
                // TLS reports a stream that ended without a notice. The lengths of messages tell as
                // much.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Poll::Ready(false));
                }
                read => read.map_err(Error::io)?,
            }
            self.read_bytes += buffer.filled().len() as u64;
            match (buffer.filled().len(), is_direct) {
                (0, _) => return Ok(Poll::Ready(false)),
                (len, true) => filling.at += len,
                (len, false) => (self.at, self.filled) = (0, len),
            }
        }
        Ok(Poll::Ready(true))
    }
}

fn too_large(bytes: u64, slices: usize) -> Error {
    damaged(format_args!(
        "a message of {bytes} bytes and {slices} slices, which is too large"
    ))
}
