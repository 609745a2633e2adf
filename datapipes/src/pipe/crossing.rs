//! How a pipe that wants a process of its own gets there.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::codec::{ChunkWire, Parcel, WireOf};
use crate::{Pipe, Reader, Result, Wire, Writer};

/// How the items of a pipe that wants a process of its own travel, and the pipe itself; see
/// [`Pipe::crossing`].
pub struct Crossing<In, Out> {
    /// The pipe, written down.
    pub(crate) settings: Result<Parcel>,
    /// Makes it again.
    pub(crate) make: Make<In, Out>,
    pub(crate) input: Arc<dyn ChunkWire>,
    pub(crate) output: Arc<dyn ChunkWire>,
    types: PhantomData<fn(In) -> Out>,
}

pub(crate) type Make<In, Out> = fn(&mut Reader<'_>) -> Result<Arc<dyn Pipe<In, Out = Out>>>;

impl<In: Wire, Out: Wire> Crossing<In, Out> {
    /// For a pipe that can travel itself, by its settings.
    pub fn of<P: Pipe<In, Out = Out> + Wire>(pipe: &P) -> Self {
        let mut writer = Writer::new();
        Crossing {
            settings: pipe.encode(&mut writer).map(|()| Parcel::of(writer)),
            make: |from| Ok(Arc::new(P::decode(from)?)),
            input: WireOf::<In>::new(),
            output: WireOf::<Out>::new(),
            types: PhantomData,
        }
    }
}

impl<In, Out> fmt::Debug for Crossing<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crossing").finish_non_exhaustive()
    }
}
