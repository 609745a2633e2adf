//! Conversion of one tensor, with or without a copy.

use candle_core::{Device, Error, Result, Tensor};
use datapipes::{DType, TypedVec};

/// Moves a tensor to candle, to a device.
///
/// - On the CPU a tensor that owns its numbers is moved: no copy, the same address. A tensor of
///   shared bytes ([`Tensor::is_shared`](datapipes::Tensor::is_shared)) is copied once, since
///   candle's tensors on the CPU own a vector.
/// - On a GPU the numbers are uploaded once, and the tensor is dropped. On the thread of a
///   [`CandleLoader`](crate::CandleLoader) that uploads ahead, and with the feature `cuda`, they go
///   through 8 MiB of page-locked memory, and may still be on their way when this returns: what
///   the device computes afterwards on the same thread waits for them.
/// - `bool` becomes `u8`, 0 or 1, also without a copy.
///
/// # Errors
/// Fails for `i8`, `u16` and `u64`, which candle does not have (see [`to_candle_widened`]), and
/// with the errors of the device.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device};
/// use datapipes::Tensor;
/// let batch = Tensor::from_vec(vec![0.5f32, 1.5, 2.5, 3.5], [2, 2])?;
/// let batch = datapipes_candle::to_candle(batch, &Device::Cpu)?;
/// assert_eq!((batch.dtype(), batch.dims()), (DType::F32, &[2, 2][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn to_candle(tensor: datapipes::Tensor, device: &Device) -> Result<Tensor> {
    if !device.is_cpu() {
        return upload(&tensor, device);
    }
    let shape = tensor.shape().to_vec();
    match tensor.into_typed() {
        TypedVec::U8(values) => Tensor::from_vec(values, shape, device),
        TypedVec::U32(values) => Tensor::from_vec(values, shape, device),
        TypedVec::I16(values) => Tensor::from_vec(values, shape, device),
        TypedVec::I32(values) => Tensor::from_vec(values, shape, device),
        TypedVec::I64(values) => Tensor::from_vec(values, shape, device),
        TypedVec::BF16(values) => Tensor::from_vec(values, shape, device),
        TypedVec::F16(values) => Tensor::from_vec(values, shape, device),
        TypedVec::F32(values) => Tensor::from_vec(values, shape, device),
        TypedVec::F64(values) => Tensor::from_vec(values, shape, device),
        TypedVec::Bool(values) => Tensor::from_vec(
            bytemuck::allocation::cast_vec::<bool, u8>(values),
            shape,
            device,
        ),
        other => Err(unsupported(other.dtype())),
    }
}

/// Uploads the numbers from their memory, owned or shared.
fn upload(tensor: &datapipes::Tensor, device: &Device) -> Result<Tensor> {
    let shape = tensor.shape();
    macro_rules! from_slice {
        ($type:ty) => {
            from_slice!(values tensor.as_slice::<$type>().map_err(wrapped)?)
        };
        (values $values:expr) => {{
            let values = $values;
            #[cfg(feature = "cuda")]
            if let Device::Cuda(cuda) = device
                && let Some(uploaded) = crate::staging::upload(values, shape, cuda)?
            {
                return Ok(uploaded);
            }
            Tensor::from_slice(values, shape, device)
        }};
    }
    match tensor.dtype() {
        DType::U8 => from_slice!(u8),
        DType::U32 => from_slice!(u32),
        DType::I16 => from_slice!(i16),
        DType::I32 => from_slice!(i32),
        DType::I64 => from_slice!(i64),
        DType::BF16 => from_slice!(half::bf16),
        DType::F16 => from_slice!(half::f16),
        DType::F32 => from_slice!(f32),
        DType::F64 => from_slice!(f64),
        // A `bool` is a byte that is 0 or 1.
        DType::Bool => from_slice!(values tensor.as_bytes()),
        other => Err(unsupported(other)),
    }
}

fn unsupported(dtype: DType) -> Error {
    let how = match dtype {
        DType::I8 | DType::U16 | DType::U64 => {
            "; `to_candle_widened` makes a type of it that candle has"
        }
        _ => "",
    };
    Error::Msg(format!("candle has no tensors of {dtype}{how}"))
}

/// Moves a tensor as [`to_candle`] does, but converts types that candle does not have to wider ones
/// that hold the same values: `i8` to `i16`, `u16` to `u32`, `u64` to `i64`. These are copied once.
///
/// # Errors
/// Fails for a number of `u64` that `i64` cannot hold, with its position, and with the errors of
/// the device.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device};
/// use datapipes::Tensor;
/// let labels = || Tensor::from_vec(vec![3u64, 1], [2]);
/// assert!(datapipes_candle::to_candle(labels()?, &Device::Cpu).is_err());
/// assert_eq!(datapipes_candle::to_candle_widened(labels()?, &Device::Cpu)?.dtype(), DType::I64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn to_candle_widened(tensor: datapipes::Tensor, device: &Device) -> Result<Tensor> {
    let shape = tensor.shape();
    match tensor.dtype() {
        DType::I8 => Tensor::from_vec(widened::<i8, i16>(&tensor)?, shape, device),
        DType::U16 => Tensor::from_vec(widened::<u16, u32>(&tensor)?, shape, device),
        DType::U64 => {
            let values = tensor.as_slice::<u64>().map_err(wrapped)?;
            let signed = |(place, &value)| {
                i64::try_from(value).map_err(|_| {
                    Error::Msg(format!(
                        "element {place} of a tensor of u64 is {value}, too large for i64"
                    ))
                })
            };
            let values = values
                .iter()
                .enumerate()
                .map(signed)
                .collect::<Result<Vec<i64>>>()?;
            Tensor::from_vec(values, shape, device)
        }
        _ => to_candle(tensor, device),
    }
}

fn widened<A: datapipes::Element + Into<B>, B>(tensor: &datapipes::Tensor) -> Result<Vec<B>> {
    Ok(tensor
        .as_slice::<A>()
        .map_err(wrapped)?
        .iter()
        .map(|&value| value.into())
        .collect())
}

/// Wraps an error with its whole text. `Error::wrap` would add a backtrace.
pub(crate) fn wrapped(error: datapipes::Error) -> Error {
    Error::Wrapped(Box::new(error))
}

#[cfg(test)]
mod tests;
