//! [`Wire`] for plain numbers, and slices of them in one copy.

use std::any::TypeId;
use std::borrow::Cow;

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};

use super::{PAYLOAD, Reader, Wire, Writer, damaged};
use crate::Result;

/// Encodes each as its bytes in the machine's order; many as one slice, beside the rest if it is
/// large.
macro_rules! plain {
    ($($type:ty)*) => {$(
        impl Wire for $type {
            #[inline]
            fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
                to.raw(bytemuck::bytes_of(self));
                Ok(())
            }
            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self> {
                one(from.raw(size_of::<$type>())?)
            }
            fn encode_all<'a>(values: &'a [Self], to: &mut Writer<'a>) -> Result<()> {
                put(values, to);
                Ok(())
            }
            fn decode_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>> {
                take(count, from)
            }
        }
    )*};
}

plain!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 isize f16 bf16 f32 f64 bool char);

fn put<'a, T: NoUninit>(values: &'a [T], to: &mut Writer<'a>) {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    if bytes.len() < PAYLOAD {
        to.raw(bytes)
    } else {
        to.payload(bytes)
    }
}

fn take<T: CheckedBitPattern + NoUninit>(count: usize, from: &mut Reader<'_>) -> Result<Vec<T>> {
    let len = count.checked_mul(size_of::<T>());
    let len = len.ok_or_else(|| damaged(format_args!("{count} numbers")))?;
    if len < PAYLOAD {
        return copied(from.raw(len)?);
    }
    let bytes = from.slice()?;
    if bytes.len() != len {
        return Err(damaged(format_args!(
            "{len} bytes of numbers in {}",
            bytes.len()
        )));
    }
    copied(bytes)
}

fn one<T: CheckedBitPattern>(bytes: &[u8]) -> Result<T> {
    bytemuck::checked::try_pod_read_unaligned(bytes).map_err(|_| {
        damaged(format_args!(
            "{bytes:?} is no {}",
            std::any::type_name::<T>()
        ))
    })
}

/// Copies numbers from bytes of any alignment, as many as there are.
pub(super) fn copied<T: CheckedBitPattern + NoUninit>(bytes: &[u8]) -> Result<Vec<T>> {
    // If not all bit patterns are values, the bytes are copied before they are checked: in shared
    // memory, the writer might change them in between.
    let own = if [TypeId::of::<bool>(), TypeId::of::<char>()].contains(&TypeId::of::<T>()) {
        Cow::Owned(bytes.to_vec())
    } else {
        Cow::Borrowed(bytes)
    };
    let bytes = &*own;
    match bytemuck::checked::try_cast_slice(bytes) {
        Ok(values) => Ok(values.to_vec()),
        Err(_) => bytes.chunks_exact(size_of::<T>()).map(one).collect(),
    }
}

/// Encodes a number that is often small; many as their bytes.
impl Wire for usize {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.number(*self as u64);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let number = from.number()?;
        usize::try_from(number).map_err(|_| damaged(format_args!("{number} is no size")))
    }
    fn encode_all<'a>(values: &'a [Self], to: &mut Writer<'a>) -> Result<()> {
        put(values, to);
        Ok(())
    }
    fn decode_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>> {
        take(count, from)
    }
}
