//! Conversion of batches to burn.

use burn_core::tensor::{BoolStore, Device, Tensor, TensorData};
use datapipes::Result;

use crate::tensor::{Kind, into_data, into_tensor};

/// A batch of this library that converts into a type `O` of burn on a device. The place of use
/// chooses `O`.
///
/// | batch | becomes |
/// |---|---|
/// | [`datapipes::Tensor`] | [`Tensor<D, K>`](Tensor) of the same element type, or [`TensorData`] |
/// | `Vec<String>`, `Vec<&'static str>` | itself |
/// | `Option` of a batch | `Option` of what it becomes |
/// | tuples of batches | tuples of what they become |
///
/// The element type does not change, unlike with [`Tensor::from_data`], which converts to the
/// device's default. `u8` pixels become a `Tensor<4, Int>` of `u8`, with a quarter of the bytes to
/// upload; `.float()` makes floats of them on the device. A tensor that is not of the requested
/// kind or rank is an error, and never converted silently.
///
/// Burn's operations panic on two tensors of different types. `i64` labels can therefore not be
/// compared with the result of `argmax`, which has the device's default type (`i32` on the CPU);
/// burn's accuracy makes this comparison. Collate labels as `i32`, or apply
/// `.cast(device.settings().int_dtype)` to the converted labels, in
/// [`BurnLoader::with`](crate::BurnLoader::with).
///
/// # Copies
/// There are no copies on the CPU (burn's `flex`): a tensor that owns its numbers passes them on,
/// and burn may write to them in place. A tensor that shares its numbers lends them, and burn
/// copies before it writes. The memory is the same, and the tests compare addresses. A GPU gets one
/// upload from the memory of the numbers. Bytes that were not aligned for their type were copied
/// when [`datapipes::Tensor::from_bytes`] took them. Only a backend that stores a bool in four
/// bytes converts.
///
/// # Examples
/// ```
/// use burn_core::tensor::{Device, Int, Tensor};
/// use datapipes_burn::IntoBurn;
///
/// let pixels = datapipes::Tensor::from_vec(vec![0.5f32; 2 * 3 * 4 * 4], [2, 3, 4, 4])?;
/// let labels = datapipes::Tensor::from_vec(vec![7i64, 1], [2])?;
/// let (pixels, labels): (Tensor<4>, Tensor<1, Int>) = (pixels, labels).into_burn(&Device::flex())?;
/// assert_eq!((pixels.dims(), labels.dims()), ([2, 3, 4, 4], [2]));
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// For a batch of your own:
/// ```
/// use burn_core::tensor::{Device, Int, Tensor};
/// use datapipes::Result;
/// use datapipes_burn::IntoBurn;
///
/// struct Digits { images: datapipes::Tensor, labels: datapipes::Tensor }
/// struct Batch { images: Tensor<4>, labels: Tensor<1, Int> }
///
/// impl IntoBurn<Batch> for Digits {
///     fn rows(&self) -> usize {
///         IntoBurn::<Tensor<1, Int>>::rows(&self.labels)
///     }
///     fn into_burn(self, device: &Device) -> Result<Batch> {
///         Ok(Batch { images: self.images.into_burn(device)?, labels: self.labels.into_burn(device)? })
///     }
/// }
/// # let zeros = |dtype, shape: &[usize]| datapipes::Tensor::zeros(dtype, shape).unwrap();
/// # let digits = Digits { images: zeros(datapipes::DType::F32, &[3, 1, 2, 2]), labels: zeros(datapipes::DType::I64, &[3]) };
/// # let batch = digits.into_burn(&Device::flex())?;
/// # assert_eq!((batch.images.dims(), batch.labels.dims()), ([3, 1, 2, 2], [3]));
/// # datapipes::Ok(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a batch `{Self}` does not become `{O}`",
    note = "implement `IntoBurn<{O}>` for it, or say how in a closure: `BurnLoader::with`"
)]
pub trait IntoBurn<O>: Sized {
    /// Returns the number of items in the batch.
    fn rows(&self) -> usize;

    /// Converts the batch.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) for a tensor of another rank or kind than
    /// requested, [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) for an element type
    /// that the device does not have.
    fn into_burn(self, device: &Device) -> Result<O>;
}

impl<const D: usize, K: Kind> IntoBurn<Tensor<D, K>> for datapipes::Tensor {
    fn rows(&self) -> usize {
        rows(self)
    }
    fn into_burn(self, device: &Device) -> Result<Tensor<D, K>> {
        into_tensor(self, device)
    }
}

/// Stays in the host's memory, whatever the device.
impl IntoBurn<TensorData> for datapipes::Tensor {
    fn rows(&self) -> usize {
        rows(self)
    }
    fn into_burn(self, _device: &Device) -> Result<TensorData> {
        into_data(self, BoolStore::Native)
    }
}

/// Returns the length of the first axis; a scalar is one item.
fn rows(tensor: &datapipes::Tensor) -> usize {
    tensor.shape().first().copied().unwrap_or(1)
}

macro_rules! texts {
    ($($text:ty)*) => {$(
        impl IntoBurn<Vec<$text>> for Vec<$text> {
            fn rows(&self) -> usize {
                self.len()
            }
            fn into_burn(self, _device: &Device) -> Result<Self> {
                Ok(self)
            }
        }
    )*};
}

texts!(String &'static str);

impl<O, B: IntoBurn<O>> IntoBurn<Option<O>> for Option<B> {
    fn rows(&self) -> usize {
        self.as_ref().map_or(0, B::rows)
    }
    fn into_burn(self, device: &Device) -> Result<Option<O>> {
        self.map(|batch| batch.into_burn(device)).transpose()
    }
}

/// A tuple has as many items as its first part.
macro_rules! tuples {
    ($($batch:ident $out:ident $place:tt),*) => {
        impl<$($out, $batch: IntoBurn<$out>),*> IntoBurn<($($out,)*)> for ($($batch,)*) {
            fn rows(&self) -> usize {
                self.0.rows()
            }
            fn into_burn(self, device: &Device) -> Result<($($out,)*)> {
                Ok(($(self.$place.into_burn(device).map_err(|error| error.within(concat!("part ", $place)))?,)*))
            }
        }
    };
}

tuples!(A X 0);
tuples!(A X 0, B Y 1);
tuples!(A X 0, B Y 1, C Z 2);
tuples!(A X 0, B Y 1, C Z 2, D V 3);
tuples!(A X 0, B Y 1, C Z 2, D V 3, E W 4);
tuples!(A X 0, B Y 1, C Z 2, D V 3, E W 4, F U 5);
