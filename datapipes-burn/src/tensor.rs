//! Conversion of tensors to burn, without a copy of their numbers.

use burn_core::tensor::kind::Basic;
use burn_core::tensor::{
    AllocationProperty, Bool, BoolStore, Bytes, DType, DataError, Device, Float, Int, Tensor,
    TensorData,
};
use datapipes::{Error, Result, TypedVec};

/// A kind of burn's tensors: [`Float`], [`Int`] or [`Bool`]. Sealed.
pub trait Kind: Basic + sealed::Sealed {
    /// Returns true if a tensor of this kind may hold numbers of this type.
    fn holds(dtype: DType) -> bool;

    /// Name of the numbers, for errors: `floats`.
    const WHAT: &'static str;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for burn_core::tensor::Float {}
    impl Sealed for burn_core::tensor::Int {}
    impl Sealed for burn_core::tensor::Bool {}
}

impl Kind for Float {
    fn holds(dtype: DType) -> bool {
        dtype.is_float()
    }
    const WHAT: &'static str = "floats";
}

impl Kind for Int {
    fn holds(dtype: DType) -> bool {
        dtype.is_int() || dtype.is_uint()
    }
    const WHAT: &'static str = "integers";
}

impl Kind for Bool {
    fn holds(dtype: DType) -> bool {
        dtype.is_bool()
    }
    const WHAT: &'static str = "bools";
}

/// Makes a tensor on a device, of the same type; see [`IntoBurn`](crate::IntoBurn).
pub(crate) fn into_tensor<const D: usize, K: Kind>(
    tensor: datapipes::Tensor,
    device: &Device,
) -> Result<Tensor<D, K>> {
    let (from, rank) = (tensor.dtype(), tensor.rank());
    // A device chooses the storage of bools; bools of a byte are used as they are.
    let data = into_data(tensor, device.settings().bool_dtype)?;
    let dtype = data.dtype();
    if !K::holds(dtype) {
        let message = format!("a tensor of {from} was asked for {}", K::WHAT);
        return Err(Error::shape(message));
    }
    if rank != D || D == 0 {
        let message = format!(
            "a tensor of shape {:?} was asked for rank {D}",
            data.shape().as_slice()
        );
        return Err(Error::shape(message));
    }
    if !dtype.is_bool() && !device.supports_dtype(dtype) {
        let message = format!("{device:?} has no tensors of {from}");
        return Err(Error::unsupported(message));
    }
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// Makes burn's data of the numbers, of the same type; bools are labelled with the device's
/// storage.
pub(crate) fn into_data(tensor: datapipes::Tensor, bools: BoolStore) -> Result<TensorData> {
    let dtype = dtype(tensor.dtype(), bools)?;
    let shape = tensor.shape().to_vec();
    let bytes = match buffer(tensor) {
        Buffer::Shared(bytes) => Bytes::from_shared(bytes, AllocationProperty::Other),
        Buffer::Typed(values) => typed(values)?,
    };
    TensorData::try_from_bytes(bytes, shape, dtype).map_err(unfit)
}

/// Memory of a tensor's numbers, ready to be passed on.
enum Buffer {
    /// Owned memory: burn may write in place, and returns it by `into_vec`.
    Typed(TypedVec),
    /// Shared memory: burn reads it in place, copies before it writes, and releases it with the
    /// last tensor.
    Shared(bytes::Bytes),
}

/// Returns the memory of a tensor, without a copy.
///
/// A batch in the loader's own memory is shared, so that the memory returns to the loader when burn
/// drops it.
fn buffer(tensor: datapipes::Tensor) -> Buffer {
    let tensor = if tensor.is_pooled() {
        tensor.into_shared()
    } else {
        tensor
    };
    match tensor.shared() {
        // Aligned for its type, which `Tensor` promises and burn requires.
        Some(bytes) => Buffer::Shared(bytes.clone()),
        None => Buffer::Typed(tensor.into_typed()),
    }
}

macro_rules! dtypes {
    ($($ours:ident $theirs:ident)*) => {
        fn dtype(dtype: datapipes::DType, bools: BoolStore) -> Result<DType> {
            match dtype {
                $(datapipes::DType::$ours => Ok(DType::$theirs),)*
                // Bools are a byte each in this library; burn converts them to four bytes each.
                datapipes::DType::Bool => Ok(DType::Bool(match bools {
                    BoolStore::U8 => BoolStore::U8,
                    BoolStore::Native | BoolStore::U32 => BoolStore::Native,
                })),
                other => Err(unsupported(other)),
            }
        }

        fn typed(values: TypedVec) -> Result<Bytes> {
            match values {
                $(TypedVec::$ours(values) => Ok(Bytes::from_elems(values)),)*
                TypedVec::Bool(values) => Ok(Bytes::from_elems(values)),
                other => Err(unsupported(other.dtype())),
            }
        }
    };
}

dtypes! { U8 U8 I8 I8 U16 U16 I16 I16 U32 U32 I32 I32 U64 U64 I64 I64 F16 F16 BF16 BF16 F32 F32 F64 F64 }

fn unsupported(dtype: datapipes::DType) -> Error {
    Error::unsupported(format!("burn has no tensors of {dtype}"))
}

fn unfit(error: DataError) -> Error {
    Error::shape("").with_source(error)
}
