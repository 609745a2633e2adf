//! [`Wire`] for tensors, and for their dtypes.

use half::{bf16, f16};

use super::plain::copied;
use super::{PAYLOAD, Reader, Wire, Writer, damaged};
use crate::dtype::with_dtype;
use crate::tensor::checked_len;
use crate::{DType, Element, Result, Tensor, TypedVec};

impl Wire for DType {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[*self as u8]);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        dtype(u8::decode(from)?)
    }
}

fn dtype(number: u8) -> Result<DType> {
    let dtype = DType::ALL.get(usize::from(number)).copied();
    dtype.ok_or_else(|| damaged(format_args!("{number} is no dtype")))
}

/// Flag beside the number of a dtype: the numbers are in a row that the reader has granted.
const GRANTED: u8 = 0x80;

/// Encodes type, shape and bytes. A tensor of 64 KiB or more shares the memory that it arrives in;
/// a smaller one, or one of `bool`, is copied into a vector.
impl Wire for Tensor {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        // If the other process granted a row for the tensor, the numbers are written there at once.
        let granted = to.job().and_then(|job| self.write_to_grant(job));
        to.raw(&[self.dtype() as u8 | if granted.is_some() { GRANTED } else { 0 }]);
        to.number(self.rank() as u64);
        self.shape().iter().for_each(|&axis| to.number(axis as u64));
        match granted {
            Some(row) => {
                to.number(row as u64);
                to.is_in_row(self.as_bytes().len());
            }
            None => to.payload(self.as_bytes()),
        }
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let number = u8::decode(from)?;
        let dtype = dtype(number & !GRANTED)?;
        let rank = from.count()?;
        let shape = (0..rank)
            .map(|_| usize::decode(from))
            .collect::<Result<Vec<_>>>()?;
        let len = checked_len(&shape, dtype).map_err(damaged)? * dtype.size();
        if number & GRANTED != 0 {
            let row = usize::decode(from)?;
            let part = from
                .grant(row)
                .filter(|part| part.dtype() == dtype && part.len() * dtype.size() == len);
            let part = part.ok_or_else(|| {
                damaged(format_args!("row {row}, which was not granted like that"))
            })?;
            return Ok(Tensor::pooled(part, shape));
        }
        // Not every byte is a `bool`, and the writer might still change shared bytes.
        if len >= PAYLOAD && dtype != DType::Bool {
            return Tensor::from_bytes(from.payload()?, dtype, shape).map_err(damaged);
        }
        let bytes = from.slice()?;
        if bytes.len() != len {
            return Err(damaged(format_args!(
                "{} bytes for shape {shape:?} of {dtype}",
                bytes.len()
            )));
        }
        with_dtype!(dtype, T => Tensor::from_vec(copied::<T>(bytes)?, shape).map_err(damaged))
    }
}

impl Wire for TypedVec {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[self.dtype() as u8]);
        to.payload(self.as_bytes());
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let dtype = DType::decode(from)?;
        let bytes = from.slice()?;
        if !bytes.len().is_multiple_of(dtype.size()) {
            return Err(damaged(format_args!("{} bytes of {dtype}", bytes.len())));
        }
        Ok(with_dtype!(dtype, T => T::wrap(copied(bytes)?)))
    }
}
