//! The queue between two processes for values of one type.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use super::{ProcessPut, ProcessTake};
use crate::codec::Writer;
use crate::queue::{Limits, Put, Take, Weight};
use crate::{Error, Wire};

/// Puts values in. A value that cannot be encoded, or for which there is no shared memory, ends the
/// stream with a fault.
#[derive(Debug)]
pub(crate) struct TypedPut<M>(ProcessPut, PhantomData<fn(M)>);

impl<M: Wire> TypedPut<M> {
    /// Makes a put end, as [`ProcessPut::new`] does.
    pub(crate) fn new(socket: OwnedFd, limits: Limits) -> io::Result<Self> {
        Ok(TypedPut(ProcessPut::new(socket, limits)?, PhantomData))
    }
}

impl<M: Wire> Put<M> for TypedPut<M> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        self.0.poll_ready(cx)
    }

    fn put(&mut self, message: M, weight: Weight) {
        let mut writer = Writer::new();
        if let Err(error) = message
            .encode(&mut writer)
            .and_then(|()| self.0.send(writer, weight))
        {
            self.0.fail(&error);
        }
    }

    fn set_limits(&mut self, limits: Limits) {
        self.0.set_limits(limits);
    }
}

/// Takes values out. A value that cannot be decoded ends the stream with a fault.
#[derive(Debug)]
pub(crate) struct TypedTake<M>(ProcessTake, PhantomData<fn() -> M>);

impl<M: Wire> TypedTake<M> {
    /// Makes a take end, as [`ProcessTake::new`] does.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(TypedTake(ProcessTake::new(socket)?, PhantomData))
    }

    /// Returns the fault, as [`ProcessTake::fault`] does.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.0.fault()
    }
}

impl<M: Wire> Take<M> for TypedTake<M> {
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<M>> {
        let Some(parcel) = ready!(self.0.poll_parcel(cx)) else {
            return Poll::Ready(None);
        };
        let mut reader = parcel.reader();
        let message = M::decode(&mut reader).and_then(|message| reader.end().map(|()| message));
        Poll::Ready(message.map_err(|error| self.0.ended(Some(error))).ok())
    }

    fn held(&self) -> Weight {
        self.0.held()
    }
}
