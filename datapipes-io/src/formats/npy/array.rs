//! An array: the values of an `.npy` file in place, and its header.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;

use bytes::Bytes;
use datapipes::{Error, Reader, Result, Tensor, Wire, Writer};

use super::super::aligned::Aligned;
use super::dtype::NpyType;
use super::header::Header;
use super::values::Layout;

/// An array of numbers in NumPy's format.
///
/// The values are a slice of the file, unchanged, and keep the file in memory;
/// [`tensor`](Array::tensor) returns them in the machine's byte order. A clone is cheap. Two arrays
/// are equal if they are stored alike: type, shape, order and bytes.
///
/// # Examples
/// ```
/// use datapipes::Tensor;
/// use datapipes_io::formats::Array;
///
/// let file = Array::from_tensor(&Tensor::from_vec(vec![1.5f32, 2.0, 3.0], [3])?)?.to_npy();
/// let array = Array::parse(file.into())?;
/// assert_eq!((array.dtype().to_string(), array.dtype().name()), ("<f4".to_owned(), "float32"));
/// assert_eq!((array.shape(), array.tensor()?.as_slice::<f32>()?), (&[3][..], &[1.5, 2.0, 3.0][..]));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Array {
    header: Header,
    data: Bytes,
}

/// An array is sent as its header and the stored values.
impl Wire for Array {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        let Header {
            dtype,
            fortran_order,
            shape,
            ..
        } = &self.header;
        let descr = dtype.to_string();
        to.number(descr.len() as u64);
        to.raw(descr.as_bytes());
        fortran_order.encode(to)?;
        shape.encode(to)?;
        self.data.encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let dtype = NpyType::parse(&String::decode(from)?).map_err(Reader::damaged)?;
        let (fortran_order, shape) = (bool::decode(from)?, Wire::decode(from)?);
        let header = Header::new(dtype, fortran_order, shape).map_err(Reader::damaged)?;
        let data = Bytes::decode(from)?;
        if data.len() != header.values {
            return Err(Reader::damaged(format_args!(
                "{} of {} bytes of values",
                data.len(),
                header.values
            )));
        }
        Ok(Array { header, data })
    }
}

impl Array {
    /// Parses an `.npy` file, in a time independent of its size: the values are not read.
    ///
    /// # Errors
    /// The errors of [`Npy`](super::Npy).
    pub fn parse(file: Bytes) -> Result<Array> {
        let (header, at) = Header::parse(&file)?;
        let (there, wanted) = (file.len() - at, header.values);
        if there < wanted {
            let what = format!("{there} of {wanted} bytes of values, which begin at byte {at}");
            return Err(Error::truncated(what));
        }
        if there > wanted {
            let (more, end) = (there - wanted, at + wanted);
            return Err(Error::corrupt(format!(
                "{more} bytes after the values, which end at byte {end}"
            )));
        }
        Ok(Array {
            header,
            data: file.slice(at..),
        })
    }

    /// Returns a tensor's elements as an array in C order. Shares the elements if the tensor does,
    /// else copies them once.
    ///
    /// # Errors
    /// `Unsupported` for [`DType::BF16`](datapipes::DType::BF16), which NumPy does not have.
    pub fn from_tensor(tensor: &Tensor) -> Result<Array> {
        let header = Header::new(NpyType::of(tensor.dtype())?, false, tensor.shape().to_vec())?;
        let data = tensor.shared().cloned();
        Ok(Array {
            header,
            data: data.unwrap_or_else(|| Bytes::copy_from_slice(tensor.as_bytes())),
        })
    }

    /// Returns the type of the values.
    pub fn dtype(&self) -> NpyType {
        self.header.dtype
    }

    /// Returns the length along each axis; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Returns true if the first axis changes fastest, as in Fortran, and not the last.
    pub fn fortran_order(&self) -> bool {
        self.header.fortran_order
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype().size()
    }

    /// Returns true if there are no values.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the values as stored in the file: in its byte order and order of axes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Returns the values as a tensor: in C order, in the machine's byte order.
    ///
    /// The tensor is a view of the file, made in constant time, if the values are stored in these
    /// orders and aligned for the type, as in an `.npy` file that was read whole; else one copy,
    /// which reorders axes and swaps bytes in the same pass. `bool` values are validated, since a
    /// byte of a `bool` may only be 0 or 1. A complex number is two floats: `complex64` of shape
    /// `[2, 3]` is `f32` of shape `[2, 3, 2]`.
    ///
    /// # Errors
    /// `Corrupt` for a `bool` that is neither 0 nor 1; `Limit` if there is no memory for a copy.
    pub fn tensor(&self) -> Result<Tensor> {
        let dtype = self.dtype();
        let layout = self.layout(dtype.is_big_endian() != cfg!(target_endian = "big"));
        let data = if !layout.is_done() {
            layout.apply(&self.data)?.into_bytes()
        } else if self.data.as_ptr().addr().is_multiple_of(dtype.unit()) {
            self.data.clone()
        } else {
            Aligned::copy(&self.data)?.into_bytes()
        };
        let mut shape = self.shape().to_vec();
        if dtype.unit() < dtype.size() {
            shape.push(2);
        }
        Tensor::from_bytes(data, dtype.element(), shape)
    }

    /// Returns the values in C order, least significant byte first: the same bytes for the same
    /// values on every machine. Borrowed if they are stored in this order, else a copy.
    ///
    /// # Errors
    /// `Limit` if there is no memory for a copy.
    pub fn values_le(&self) -> Result<Cow<'_, [u8]>> {
        let layout = self.layout(self.dtype().is_big_endian());
        if layout.is_done() {
            return Ok(Cow::Borrowed(&self.data));
        }
        Ok(Cow::Owned(layout.apply(&self.data)?.into_bytes().into()))
    }

    /// Returns the array as an `.npy` file: version 1.0, with the values as stored. The bytes equal
    /// those of `numpy.save` of NumPy 2 for the same array.
    pub fn to_npy(&self) -> Vec<u8> {
        let mut file = self.header.write();
        file.extend_from_slice(&self.data);
        file
    }

    /// Writes the array as an `.npy` file, without a copy of the values; see
    /// [`to_npy`](Array::to_npy).
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write_npy(&self, mut to: impl Write) -> Result<()> {
        to.write_all(&self.header.write())?;
        Ok(to.write_all(&self.data)?)
    }

    fn layout(&self, swap: bool) -> Layout<'_> {
        let (size, unit) = (self.dtype().size(), self.dtype().unit());
        Layout {
            shape: self.shape(),
            size,
            unit,
            fortran: self.fortran_order(),
            swap,
        }
    }

    /// Returns the number of bytes that the array keeps alive.
    pub(in crate::formats) fn weight(&self) -> usize {
        self.data.len() + size_of_val(self.shape()) + size_of::<Self>()
    }
}

/// Shows type and shape: `Array(<f4 [2, 3])`.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.fortran_order() {
            ", Fortran order"
        } else {
            ""
        };
        write!(f, "Array({} {:?}{order})", self.dtype(), self.shape())
    }
}
