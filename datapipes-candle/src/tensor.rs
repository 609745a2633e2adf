//! Conversion of one tensor, with or without a copy.

use candle_core::{Device, Error, Result, Tensor};
use datapipes::{DType, TypedVec};

/// Moves a tensor to candle, to a device.
///
/// - On the CPU a tensor that owns its numbers is moved: no copy, the same address. A tensor of
///   shared bytes ([`Tensor::is_shared`](datapipes::Tensor::is_shared)) is copied once, since
///   candle's tensors on the CPU own a vector.
/// - On a GPU the numbers are uploaded once, directly from their memory, and the tensor is dropped.
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

/// Uploads the numbers directly from their memory, owned or shared.
fn upload(tensor: &datapipes::Tensor, device: &Device) -> Result<Tensor> {
    macro_rules! from_slice {
        ($type:ty) => {
            Tensor::from_slice(
                tensor.as_slice::<$type>().map_err(wrapped)?,
                tensor.shape(),
                device,
            )
        };
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
        DType::Bool => Tensor::from_slice(tensor.as_bytes(), tensor.shape(), device),
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
mod tests {
    use bytes::Bytes;
    use candle_core::{DType as Candle, Storage, WithDType};
    use datapipes::Element;
    use half::{bf16, f16};

    use super::*;

    /// Returns the address of the numbers of a tensor on the CPU.
    fn address<T: WithDType>(tensor: &Tensor) -> *const u8 {
        match &*tensor.storage_and_layout().0 {
            Storage::Cpu(storage) => storage.as_slice::<T>().unwrap().as_ptr().cast(),
            _ => panic!("not on the CPU"),
        }
    }

    fn moves<T: Element + WithDType>(values: Vec<T>) {
        let (at, wanted) = (values.as_ptr().cast(), values.clone());
        let tensor = datapipes::Tensor::from_vec(values, [3, 2]).unwrap();
        let moved = to_candle(tensor, &Device::Cpu).unwrap();
        assert_eq!(
            (moved.dtype(), moved.dims()),
            (<T as WithDType>::DTYPE, &[3, 2][..])
        );
        assert_eq!(address::<T>(&moved), at, "{:?} was copied", moved.dtype());
        assert_eq!(moved.flatten_all().unwrap().to_vec1::<T>().unwrap(), wanted);
    }

    #[test]
    fn a_batch_whose_rows_were_filled_in_place_moves() {
        let batches = datapipes::testing::pooled_batches(10, 4);
        let loader = datapipes::DataLoader::builder(batches)
            .workers(0)
            .build()
            .unwrap();
        for (number, batch) in loader.epoch(0).blocking().enumerate() {
            let batch = batch.unwrap();
            let at = batch.as_bytes().as_ptr();
            assert!(batch.is_pooled());
            let moved = to_candle(batch, &Device::Cpu).unwrap();
            assert_eq!(address::<f32>(&moved), at, "it was copied");
            assert_eq!(
                moved.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0],
                4.0 * number as f32
            );
        }
    }

    #[test]
    fn owned_numbers_keep_their_address() {
        moves::<u8>((0..6).collect());
        moves::<u32>((0..6).collect());
        moves::<i16>((0..6).collect());
        moves::<i32>((0..6).collect());
        moves::<i64>((0..6).collect());
        moves::<bf16>((0..6u8).map(bf16::from).collect());
        moves::<f16>((0..6u8).map(f16::from).collect());
        moves::<f32>((0..6u8).map(f32::from).collect());
        moves::<f64>((0..6u8).map(f64::from).collect());
    }

    #[test]
    fn bool_is_u8_at_the_same_address() {
        let values = vec![true, false, true];
        let at = values.as_ptr().cast();
        let moved = to_candle(
            datapipes::Tensor::from_vec(values, [3]).unwrap(),
            &Device::Cpu,
        )
        .unwrap();
        assert_eq!((moved.dtype(), address::<u8>(&moved)), (Candle::U8, at));
        assert_eq!(moved.to_vec1::<u8>().unwrap(), [1, 0, 1]);
    }

    #[test]
    fn shared_bytes_are_copied_wherever_they_begin() {
        let bytes = Bytes::from((0..13).collect::<Vec<u8>>());
        for start in 0..4 {
            let slice = bytes.slice(start..start + 8);
            let wanted: Vec<f32> = slice
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| f32::from_ne_bytes(*word))
                .collect();
            let tensor = datapipes::Tensor::from_bytes(slice, datapipes::DType::F32, [2]).unwrap();
            let copied = to_candle(tensor, &Device::Cpu).unwrap();
            assert_eq!(copied.to_vec1::<f32>().unwrap(), wanted);
            assert!(!bytes.as_ptr_range().contains(&address::<f32>(&copied)));
        }
    }

    #[test]
    fn uploads_give_the_same_values() {
        // Checks the path of a GPU on this machine's CPU: the same code of this crate.
        let check = |tensor: datapipes::Tensor| {
            let (moved, uploaded) = (
                to_candle(tensor.clone(), &Device::Cpu).unwrap(),
                upload(&tensor, &Device::Cpu).unwrap(),
            );
            assert_eq!(
                (moved.dtype(), moved.dims()),
                (uploaded.dtype(), uploaded.dims())
            );
            let numbers = |tensor: &Tensor| {
                tensor
                    .to_dtype(Candle::F64)
                    .unwrap()
                    .flatten_all()
                    .unwrap()
                    .to_vec1::<f64>()
                    .unwrap()
            };
            assert_eq!(numbers(&moved), numbers(&uploaded));
        };
        use datapipes::DType::*;
        for dtype in [U8, U32, I16, I32, I64, BF16, F16, F32, F64, Bool] {
            let bytes = vec![1u8; 6 * dtype.size()];
            check(datapipes::Tensor::from_bytes(bytes.into(), dtype, [3, 2]).unwrap());
            check(datapipes::Tensor::zeros(dtype, []).unwrap());
            check(datapipes::Tensor::zeros(dtype, [0, 3]).unwrap());
        }
        for dtype in [I8, U16, U64] {
            let tensor = datapipes::Tensor::zeros(dtype, [1]).unwrap();
            assert_eq!(
                upload(&tensor, &Device::Cpu).unwrap_err().to_string(),
                to_candle(tensor, &Device::Cpu).unwrap_err().to_string()
            );
        }
    }

    #[test]
    fn types_that_candle_lacks_are_named_or_widened() {
        let tensor = |dtype| datapipes::Tensor::zeros(dtype, [2, 1]).unwrap();
        for (dtype, name, wider) in [
            (datapipes::DType::I8, "i8", Candle::I16),
            (datapipes::DType::U16, "u16", Candle::U32),
            (datapipes::DType::U64, "u64", Candle::I64),
            (datapipes::DType::F16, "", Candle::F16),
        ] {
            let widened = to_candle_widened(tensor(dtype), &Device::Cpu).unwrap();
            assert_eq!((widened.dtype(), widened.dims()), (wider, &[2, 1][..]));
            match to_candle(tensor(dtype), &Device::Cpu) {
                Ok(_) => assert_eq!(name, ""),
                Err(error) => assert_eq!(
                    error.to_string(),
                    format!(
                        "candle has no tensors of {name}; `to_candle_widened` makes a type of it that candle has"
                    )
                ),
            }
        }
        let large = datapipes::Tensor::from_vec(vec![0u64, 1 << 63], [2]).unwrap();
        assert_eq!(
            to_candle_widened(large, &Device::Cpu)
                .unwrap_err()
                .to_string(),
            "element 1 of a tensor of u64 is 9223372036854775808, too large for i64"
        );
        let least = datapipes::Tensor::from_vec(vec![i8::MIN, i8::MAX], [2]).unwrap();
        let widened = to_candle_widened(least, &Device::Cpu).unwrap();
        assert_eq!(widened.to_vec1::<i16>().unwrap(), [-128, 127]);
    }
}
