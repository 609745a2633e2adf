//! Upload to a CUDA device through page-locked memory.
//!
//! The driver copies other memory by itself, but while it does, kernels of other threads are not
//! started, so that the step waits for the upload of the next batch.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytemuck::{Pod, cast_slice};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DeviceRepr, PinnedHostSlice,
};
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{Result, Storage, Tensor};

/// Bytes that are copied before the device fetches them, while it fetches the bytes before.
const CHUNK: usize = 4 << 20;

thread_local! {
    static STAGING: RefCell<Option<Staging>> = const { RefCell::new(None) };
    /// True if this thread was refused such memory.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Page-locked memory of a thread, through which it uploads to one device.
struct Staging {
    context: Arc<CudaContext>,
    chunks: [Chunk; 2],
}

struct Chunk {
    memory: PinnedHostSlice<u8>,
    /// Event after the device has fetched the chunk.
    fetched: Option<CudaEvent>,
}

/// Lets [`upload`] on this thread go through page-locked memory, 8 MiB that are freed with the
/// thread. If there is no such memory, uploads go the usual way, which is slower.
pub(crate) fn begin(device: &CudaDevice) {
    STAGING.with_borrow_mut(|staging| {
        if staging.is_none() && !REFUSED.get() {
            *staging = Staging::new(device).ok();
            REFUSED.set(staging.is_none());
        }
    });
}

/// Uploads numbers through this thread's page-locked memory, on the stream that the device has for
/// this thread. Returns none if the thread has no memory for this device.
pub(crate) fn upload<T: CudaDType + DeviceRepr + Pod>(
    values: &[T],
    shape: &[usize],
    device: &CudaDevice,
) -> Result<Option<Tensor>> {
    let stream = device.cuda_stream();
    STAGING.with_borrow_mut(|staging| match staging {
        Some(staging) if staging.context == *stream.context() && !values.is_empty() => {
            // SAFETY: the numbers are all written before they are read, on the same stream.
            let mut uploaded = unsafe { device.alloc::<T>(values.len()) }?;
            staging.send(values, &mut uploaded, &stream)?;
            let storage = CudaStorage::wrap_cuda_slice(uploaded, device.clone());
            let storage = Storage::Cuda(storage);
            let tensor = Tensor::from_storage(storage, shape, BackpropOp::none(), false);
            Ok(Some(tensor))
        }
        _ => Ok(None),
    })
}

impl Staging {
    fn new(device: &CudaDevice) -> Result<Self> {
        let context = device.cuda_stream().context().clone();
        let chunks = [Chunk::new(&context)?, Chunk::new(&context)?];
        Ok(Staging { context, chunks })
    }

    /// Copies chunk after chunk; the device may still fetch the last ones when this returns.
    fn send<T: DeviceRepr + Pod>(
        &mut self,
        values: &[T],
        to: &mut CudaSlice<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let mut sent = 0;
        for part in values.chunks(CHUNK / size_of::<T>()) {
            let chunk = &mut self.chunks[0];
            if let Some(fetched) = chunk.fetched.take() {
                fetched.synchronize().w()?;
            }
            let memory = &mut chunk.memory.as_mut_slice().w()?[..size_of_val(part)];
            memory.copy_from_slice(cast_slice(part));
            let place = &mut to.slice_mut(sent..sent + part.len());
            stream.memcpy_htod(cast_slice::<u8, T>(memory), place).w()?;
            let fetched = stream.record_event(None);
            if fetched.is_err() {
                // Without an event nothing else would wait before the chunk is used again.
                stream.synchronize().w()?;
            }
            chunk.fetched = Some(fetched.w()?);
            sent += part.len();
            self.chunks.swap(0, 1);
        }
        Ok(())
    }
}

impl Chunk {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        // SAFETY: the memory is set before it is read.
        let mut memory = unsafe { context.alloc_pinned_with_flags::<u8>(CHUNK, 0) }.w()?;
        // SAFETY: it is as long.
        unsafe { memory.as_mut_ptr().w()?.write_bytes(0, CHUNK) };
        Ok(Chunk {
            memory,
            fetched: None,
        })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // The memory must outlive what the device still fetches from it.
        if let Some(fetched) = &self.fetched {
            let _ = fetched.synchronize();
        }
    }
}
