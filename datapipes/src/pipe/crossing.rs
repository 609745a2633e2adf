//! Transfer of a pipe that wants a process of its own into that process.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::codec::{ChunkWire, Parcel, WireOf};
use crate::{Pipe, Reader, Result, Wire, Writer};

/// Encodings of a pipe that wants a process of its own, and of its items; see [`Pipe::crossing`].
pub struct Crossing<In, Out> {
    /// The encoded pipe.
    pub(crate) settings: Result<Parcel>,
    /// Decodes the pipe.
    pub(crate) make: Make<In, Out>,
    pub(crate) input: Arc<dyn ChunkWire>,
    pub(crate) output: Arc<dyn ChunkWire>,
    types: PhantomData<fn(In) -> Out>,
}

pub(crate) type Make<In, Out> = fn(&mut Reader<'_>) -> Result<Arc<dyn Pipe<In, Out = Out>>>;

impl<In: Wire, Out: Wire> Crossing<In, Out> {
    /// Creates the crossing of a pipe that implements [`Wire`]: the pipe is sent as its settings.
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

opaque_debug!(Crossing < In, Out > {});
