//! The queue between two machines: length-prefixed messages on a byte stream, TCP or TLS.
//!
//! One connection carries two queues, one in each direction. A message is a head and large slices:
//!
//! | field | bytes |
//! |---|---|
//! | length of the head | 4, little-endian |
//! | number of slices | 4 |
//! | length of each slice | 8 each |
//! | head | as above |
//! | slices, one after the other | as above |
//!
//! The put end is bounded by the bytes that its own machine holds; what the network and the other
//! end's socket hold comes on top, and ends with the socket's buffers: a take end that does not read
//! fills them, and then the put end. A queue between processes is exact, and costs a message back.
//!
//! Each end treats what it receives as untrusted: lengths are limited, and memory for a slice grows
//! with what has arrived.

mod memory;
mod put;
mod take;
#[cfg(test)]
mod tests;

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use put::{Frame, RemotePut};
pub(crate) use take::RemoteTake;

/// The readable half of a connection.
pub(crate) type ReadHalf = Pin<Box<dyn AsyncRead + Send>>;
/// The writable half of a connection.
pub(crate) type WriteHalf = Pin<Box<dyn AsyncWrite + Send>>;

/// Greatest number of slices in a message.
const MOST_SLICES: usize = 1 << 16;
