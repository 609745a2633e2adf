//! Uploads to NVIDIA's GPUs on a stream of their own, so that they run beside the step.
//!
//! candle copies from pageable memory on the device's only stream: such a copy starts after the kernels that are queued there, and later kernels
//! wait for it.

use std::cell::RefCell;
use std::sync::Arc;

use candle_core::cuda::WrapErr;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DeviceRepr, PinnedHostSlice};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Result, Storage, Tensor};
use datapipes::DType;

use crate::tensor::unsupported;

/// A stream, and pinned memory as large as the largest tensor so far.
struct Upload {
    stream: Arc<CudaStream>,
    pinned: PinnedHostSlice<u8>,
}

thread_local! {
    /// One for each context that this thread has uploaded to. The loader uploads on one thread.
    static UPLOADS: RefCell<Vec<Upload>> = const { RefCell::new(Vec::new()) };
}

/// Copies a tensor to pinned memory and from there to the device. Returns when it is there.
pub(crate) fn upload(tensor: &datapipes::Tensor, device: &CudaDevice) -> Result<Tensor> {
    UPLOADS.with_borrow_mut(|uploads| {
        let context = device.cuda_stream().context().clone();
        let place = uploads.iter().position(|upload| Arc::ptr_eq(upload.stream.context(), &context));
        let upload = match place {
            Some(place) => &mut uploads[place],
            None => {
                let stream = context.new_stream().w()?;
                // SAFETY: it is written before it is read.
                let pinned = unsafe { context.alloc_pinned(1) }.w()?;
                uploads.push(Upload { stream, pinned });
                uploads.last_mut().expect("pushed just now")
            }
        };
        let bytes = tensor.as_bytes();
        if bytes.len() > upload.pinned.len() {
            // SAFETY: it is written before it is read.
            upload.pinned = unsafe { context.alloc_pinned(bytes.len()) }.w()?;
        }
        upload.pinned.as_mut_slice().w()?[..bytes.len()].copy_from_slice(bytes);
        match tensor.dtype() {
            DType::U8 | DType::Bool => upload.copied::<u8>(tensor, device),
            DType::U32 => upload.copied::<u32>(tensor, device),
            DType::I16 => upload.copied::<i16>(tensor, device),
            DType::I32 => upload.copied::<i32>(tensor, device),
            DType::I64 => upload.copied::<i64>(tensor, device),
            DType::BF16 => upload.copied::<half::bf16>(tensor, device),
            DType::F16 => upload.copied::<half::f16>(tensor, device),
            DType::F32 => upload.copied::<f32>(tensor, device),
            DType::F64 => upload.copied::<f64>(tensor, device),
            other => Err(unsupported(other)),
        }
    })
}

impl Upload {
    /// What the pinned memory holds, as a tensor of this shape.
    fn copied<T: CudaDType + DeviceRepr>(
        &mut self,
        tensor: &datapipes::Tensor,
        device: &CudaDevice,
    ) -> Result<Tensor> {
        let bytes = tensor.as_bytes().len();
        // Memory of the stream that fills it: that of the device's stream would be there after the kernels queued in it.
        // SAFETY: all of it is written below.
        let mut there = unsafe { self.stream.alloc::<T>(bytes / size_of::<T>()) }.w()?;
        // SAFETY: the same memory, as bytes.
        let mut view = unsafe { there.transmute_mut::<u8>(bytes) }.expect("as many bytes");
        // A plain slice as the source: the call returns when it has been copied.
        self.stream.memcpy_htod(&self.pinned.as_mut_slice().w()?[..bytes], &mut view).w()?;
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(there, device.clone()));
        Ok(Tensor::from_storage(storage, tensor.shape(), BackpropOp::none(), false))
    }
}
