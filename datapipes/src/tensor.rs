//! The batch that leaves the library: an array of numbers of one type, row-major and contiguous.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use half::{bf16, f16};

use crate::batch_buffer::{SlabPart, spare, spare_part, spare_vec, spare_zeros};
use crate::dtype::with_dtype;
use crate::{DType, Element, Error, Result, TypedVec};

/// An array of numbers of one type and of any rank, row-major and contiguous in memory.
///
/// A tensor holds either a typed `Vec` of its own or a shared, reference-counted slice of bytes.
/// The deep-learning frameworks take over both without a copy: [`into_vec`](Tensor::into_vec) moves
/// an own buffer out, [`as_bytes`](Tensor::as_bytes) and [`shared`](Tensor::shared) lend one. The
/// library does no arithmetic on tensors.
///
/// A tensor may also hold memory that the loader lends for a batch, filled row by row
/// ([`Context::row`](crate::Context::row)). This memory goes back to the loader when the tensor is
/// dropped, for a later batch. It belongs to this tensor alone, and also moves out as a `Vec`, in
/// which case it does not go back.
///
/// - The number of elements is the product of the shape; a scalar has rank 0, shape `[]` and one
///   element.
/// - The bytes are aligned for the element type and in the machine's byte order.
/// - A clone of a shared tensor is cheap; a clone of any other copies its numbers. Use
///   [`into_shared`](Tensor::into_shared) before cloning often.
///
/// # Examples
/// ```
/// use datapipes::{DType, Tensor};
/// let image = Tensor::from_vec(vec![1u8, 2, 3, 4, 5, 6], [2, 3])?;
/// assert_eq!((image.dtype(), image.shape()), (DType::U8, &[2, 3][..]));
/// let batch = Tensor::stack(&[image.clone(), image])?;
/// assert_eq!(batch.shape(), [2, 2, 3]);
/// assert_eq!(batch.row(1)?.as_slice::<u8>()?, [1, 2, 3, 4, 5, 6]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    shape: Vec<usize>,
    buf: Buf,
}

enum Buf {
    Owned(TypedVec),
    /// Bytes aligned for their type, and as many as the shape says; both are checked on
    /// construction.
    Shared(Bytes, DType),
    /// Rows of a batch, in memory that returns to its pool.
    Pooled(SlabPart),
}

impl Clone for Buf {
    fn clone(&self) -> Self {
        match self {
            Buf::Owned(values) => Buf::Owned(values.clone()),
            Buf::Shared(bytes, dtype) => Buf::Shared(bytes.clone(), *dtype),
            Buf::Pooled(part) => Buf::Owned(part.copied()),
        }
    }
}

impl Tensor {
    /// Takes over a vector, without a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if the shape needs another number of elements.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl Into<Vec<usize>>) -> Result<Tensor> {
        let shape = shape.into();
        let needed = checked_len(&shape, T::DTYPE)?;
        if needed != values.len() {
            return Err(Error::shape(format!(
                "{} elements for shape {shape:?}, which has {needed}",
                values.len()
            )));
        }
        Ok(Tensor {
            shape,
            buf: Buf::Owned(T::wrap(values)),
        })
    }

    /// Shares bytes in the machine's byte order, without a copy if they are aligned for the type.
    /// Unaligned bytes are copied once, here, into an aligned buffer.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if the shape needs another number of bytes; [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for
    /// a [`DType::Bool`] with a byte other than 0 and 1.
    pub fn from_bytes(bytes: Bytes, dtype: DType, shape: impl Into<Vec<usize>>) -> Result<Tensor> {
        let shape = shape.into();
        let needed = checked_len(&shape, dtype)? * dtype.size();
        if needed != bytes.len() {
            let given = bytes.len();
            return Err(Error::shape(format!(
                "{given} bytes for shape {shape:?} of {dtype}, which has {needed}"
            )));
        }
        if dtype == DType::Bool
            && let Some(place) = bytes.iter().position(|&byte| byte > 1)
        {
            let message = format!("byte {place} of a bool tensor is {}", bytes[place]);
            return Err(Error::corrupt(message));
        }
        let buf = with_dtype!(dtype, T => match bytemuck::checked::try_cast_slice::<u8, T>(&bytes) {
            Ok(_) => Buf::Shared(bytes, dtype),
            Err(_) => Buf::Owned(T::wrap(copied(&bytes))),
        });
        Ok(Tensor { shape, buf })
    }

    /// Makes a tensor of what `fill` appends to an empty vector, which has room for it. Each number is
    /// written once; the memory of large tensors is used again as that of [`zeros`](Tensor::zeros).
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if the shape has another number of elements; errors of `fill`.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Tensor;
    /// let rows = [[1u16, 2], [3, 4]];
    /// let batch = Tensor::from_fill([2, 2], |values| {
    ///     rows.iter().for_each(|row| values.extend_from_slice(row));
    ///     Ok(())
    /// })?;
    /// assert_eq!(batch.as_slice::<u16>()?, [1, 2, 3, 4]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_fill<T: Element>(
        shape: impl Into<Vec<usize>>,
        fill: impl FnOnce(&mut Vec<T>) -> Result<()>,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let needed = checked_len(&shape, T::DTYPE)?;
        let mut values = spare_vec::<T>(needed);
        fill(&mut values)?;
        if needed != values.len() {
            return Err(Error::shape(format!(
                "{} elements for shape {shape:?}, which has {needed}",
                values.len()
            )));
        }
        let buf = match spare_part(values) {
            Ok(part) => Buf::Pooled(part),
            Err(values) => Buf::Owned(T::wrap(values)),
        };
        Ok(Tensor { shape, buf })
    }

    /// Returns a tensor of zeros, or `false`.
    ///
    /// From 128 KiB on, memory of such tensors that were dropped is used again, in all of the
    /// process: new memory costs a page fault every 4 KiB. The process keeps at most 64 MiB for
    /// this, and at most as much as the largest of three: 8 MiB, one tensor, all such tensors that
    /// are in use. A tensor whose elements were moved out gives nothing back.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if the shape is too large for the address space.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Result<Tensor> {
        let shape = shape.into();
        let len = checked_len(&shape, dtype)?;
        let buf = with_dtype!(dtype, T => match spare_zeros::<T>(len) {
            Some(part) => Buf::Pooled(part),
            None => Buf::Owned(T::wrap(vec![T::default(); len])),
        });
        Ok(Tensor { shape, buf })
    }

    /// Returns a tensor of one number, of rank 0.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor {
            shape: Vec::new(),
            buf: Buf::Owned(T::wrap(vec![value])),
        }
    }

    /// Returns a row of a batch, of the length that its shape says.
    pub(crate) fn pooled(part: SlabPart, shape: Vec<usize>) -> Tensor {
        Tensor {
            shape,
            buf: Buf::Pooled(part),
        }
    }

    /// Writes the tensor to the row that another process granted for a job, once. Returns the
    /// number of the row.
    pub(crate) fn write_to_grant(&self, job: u64) -> Option<usize> {
        match &self.buf {
            Buf::Pooled(part) => part.write_to_grant(job),
            _ => None,
        }
    }

    /// Returns a tensor of a list of numbers, of rank 1.
    pub(crate) fn list<T: Element>(values: Vec<T>) -> Tensor {
        Tensor {
            shape: vec![values.len()],
            buf: Buf::Owned(T::wrap(values)),
        }
    }

    /// Stacks tensors of one type and shape along a new first axis. Copies each once;
    /// [`stack_rows`](Tensor::stack_rows) may not have to.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) with positions and shapes if two differ, or if there are none.
    pub fn stack(tensors: &[Tensor]) -> Result<Tensor> {
        let Some(first) = tensors.first() else {
            return Err(Error::shape("no tensors to stack"));
        };
        for (place, tensor) in tensors.iter().enumerate() {
            Mismatch::unless_equal("dtype", (0, first.dtype()), (place, tensor.dtype()))?;
            Mismatch::unless_equal("shape", (0, first.shape()), (place, tensor.shape()))?;
        }
        let shape = [&[tensors.len()], first.shape()].concat();
        let len = checked_len(&shape, first.dtype())?;
        let values = with_dtype!(first.dtype(), T => {
            let pooled = match &first.buf {
                Buf::Pooled(part) => part.sibling::<T>(len),
                _ => None,
            };
            if let Some(mut batch) = pooled.or_else(|| spare::<T>(len)) {
                let rows = batch.slice_mut::<T>().expect("made of this type").chunks_exact_mut(len / tensors.len());
                for (row, tensor) in rows.zip(tensors) {
                    row.copy_from_slice(tensor.as_slice::<T>()?);
                }
                return Ok(Tensor::pooled(batch, shape));
            }
            let mut values = Vec::<T>::with_capacity(len);
            for tensor in tensors {
                values.extend_from_slice(tensor.as_slice::<T>()?);
            }
            T::wrap(values)
        });
        Ok(Tensor {
            shape,
            buf: Buf::Owned(values),
        })
    }

    /// Does the same as [`stack`](Tensor::stack), but takes the tensors over. If they are rows of
    /// one batch by [`Context::row`](crate::Context::row), side by side, nothing is copied.
    ///
    /// # Errors
    /// Fails as [`stack`](Tensor::stack) does.
    pub fn stack_rows(mut tensors: Vec<Tensor>) -> Result<Tensor> {
        if let Some(Tensor {
            buf: Buf::Pooled(part),
            ..
        }) = tensors.first()
        {
            part.is_first();
        }
        for tensor in &mut tensors {
            if let Buf::Pooled(part) = &mut tensor.buf {
                part.is_batched();
            }
        }
        let adjacent = |pair: &[Tensor]| match (&pair[0].buf, &pair[1].buf) {
            (Buf::Pooled(a), Buf::Pooled(b)) => a.is_before(b) && pair[0].shape == pair[1].shape,
            _ => false,
        };
        let joins = matches!(
            tensors.first(),
            Some(Tensor {
                buf: Buf::Pooled(_),
                ..
            })
        );
        if !joins || !tensors.windows(2).all(adjacent) {
            return Tensor::stack(&tensors);
        }
        let count = tensors.len();
        let mut rows = tensors.into_iter();
        let Some(Tensor {
            shape,
            buf: Buf::Pooled(mut batch),
        }) = rows.next()
        else {
            unreachable!("looked at above")
        };
        for row in rows {
            let Buf::Pooled(part) = row.buf else {
                unreachable!("looked at above")
            };
            batch.join(part);
        }
        Ok(Tensor::pooled(batch, [&[count], &shape[..]].concat()))
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        match &self.buf {
            Buf::Owned(values) => values.dtype(),
            Buf::Shared(_, dtype) => *dtype,
            Buf::Pooled(part) => part.dtype(),
        }
    }

    /// Returns the length along each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.byte_len() / self.dtype().size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes of the elements.
    pub fn byte_len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Returns the elements as bytes, in the machine's byte order, row-major.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.buf {
            Buf::Owned(values) => values.as_bytes(),
            Buf::Shared(bytes, _) => bytes,
            Buf::Pooled(part) => part.as_bytes(),
        }
    }

    /// Returns the elements, row-major.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if they are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let slice = match &self.buf {
            Buf::Owned(values) => T::slice(values),
            Buf::Shared(_, dtype) if *dtype != T::DTYPE => None,
            Buf::Shared(bytes, _) => bytemuck::checked::try_cast_slice(bytes).ok(),
            Buf::Pooled(part) => part.slice(),
        };
        slice.ok_or_else(|| self.other_type::<T>())
    }

    /// Returns the elements for writing, row-major. Shared elements are copied first.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if they are of another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        if self.dtype() != T::DTYPE {
            return Err(self.other_type::<T>());
        }
        if let Buf::Shared(bytes, _) = &self.buf {
            self.buf = Buf::Owned(T::wrap(copied(bytes)));
        }
        match &mut self.buf {
            Buf::Owned(values) => Ok(T::slice_mut(values).expect("the type was checked above")),
            Buf::Pooled(part) => Ok(part.slice_mut().expect("the type was checked above")),
            Buf::Shared(..) => unreachable!("made owned above"),
        }
    }

    /// Returns the elements as a vector, row-major: moved out if the tensor owns them or holds a
    /// whole batch, copied once if they are shared or a row of a batch.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if they are of another type.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(self.other_type::<T>());
        }
        Ok(T::unwrap(self.into_typed()).expect("the type was checked above"))
    }

    /// Returns the elements as a vector whose type is known at run time; moves or copies as
    /// [`into_vec`](Tensor::into_vec) does.
    pub fn into_typed(self) -> TypedVec {
        match self.buf {
            Buf::Owned(values) => values,
            Buf::Shared(bytes, dtype) => with_dtype!(dtype, T => T::wrap(copied(&bytes))),
            Buf::Pooled(part) => part.into_typed(),
        }
    }

    /// Returns true if the elements are in memory that is used again when the tensor, and
    /// everything that [`into_shared`](Tensor::into_shared) made of it, is dropped: memory of the
    /// loader's batches, or of large [`zeros`](Tensor::zeros).
    pub fn is_pooled(&self) -> bool {
        matches!(self.buf, Buf::Pooled(_))
    }

    /// Returns true if the elements are shared bytes, so that a clone is cheap and
    /// [`into_vec`](Tensor::into_vec) copies.
    pub fn is_shared(&self) -> bool {
        matches!(self.buf, Buf::Shared(..))
    }

    /// Returns the shared bytes, if the elements are shared.
    pub fn shared(&self) -> Option<&Bytes> {
        match &self.buf {
            Buf::Shared(bytes, _) => Some(bytes),
            Buf::Owned(_) | Buf::Pooled(_) => None,
        }
    }

    /// Returns the same elements as shared bytes, without a copy.
    pub fn into_shared(self) -> Tensor {
        let Tensor { shape, buf } = self;
        let buf = match buf {
            // An empty vector need not be aligned once it is bytes.
            Buf::Owned(values) if !values.is_empty() => {
                let dtype = values.dtype();
                Buf::Shared(Bytes::from_owner(Owner(values)), dtype)
            }
            Buf::Pooled(part) => {
                let dtype = part.dtype();
                Buf::Shared(Bytes::from_owner(part), dtype)
            }
            buf => buf,
        };
        Tensor { shape, buf }
    }

    /// Returns the same elements in another shape, without a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if the shape has another number of elements.
    pub fn reshape(self, shape: impl Into<Vec<usize>>) -> Result<Tensor> {
        let shape = shape.into();
        let needed = checked_len(&shape, self.dtype())?;
        if needed != self.len() {
            return Err(Error::shape(format!(
                "shape {:?} has {} elements, {shape:?} has {needed}",
                self.shape,
                self.len()
            )));
        }
        Ok(Tensor { shape, ..self })
    }

    /// Returns element `index` of the first axis, with one axis less: shared if this tensor is,
    /// else a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) for a scalar, and for an index past the end.
    pub fn row(&self, index: usize) -> Result<Tensor> {
        let mut row = self.rows(index..index.saturating_add(1))?;
        row.shape.remove(0);
        Ok(row)
    }

    /// Returns a range of rows, which is a slice of the first axis, such as a window of a series: shared
    /// if this tensor is, else a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) for a scalar, and for a range that ends past the
    /// end, or before its start.
    ///
    /// # Examples
    /// ```
    /// # use datapipes::Tensor;
    /// let series = Tensor::from_vec(vec![1, 2, 3, 4, 5, 6], [3, 2])?;
    /// assert_eq!(series.rows(1..3)?, Tensor::from_vec(vec![3, 4, 5, 6], [2, 2])?);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn rows(&self, range: Range<usize>) -> Result<Tensor> {
        let Some((&rows, _)) = self.shape.split_first() else {
            return Err(Error::shape("a scalar has no rows"));
        };
        if range.start > range.end || range.end > rows {
            return Err(Error::shape(format!(
                "rows {}..{} of shape {:?}",
                range.start, range.end, self.shape
            )));
        }
        let len = self.len().checked_div(rows).unwrap_or(0);
        let places = range.start * len..range.end * len;
        let buf = match &self.buf {
            Buf::Shared(bytes, dtype) if !places.is_empty() => {
                let size = dtype.size();
                Buf::Shared(bytes.slice(places.start * size..places.end * size), *dtype)
            }
            _ => {
                with_dtype!(self.dtype(), T => Buf::Owned(T::wrap(self.as_slice::<T>()?[places].to_vec())))
            }
        };
        let mut shape = self.shape.clone();
        shape[0] = range.len();
        Ok(Tensor { shape, buf })
    }

    fn other_type<T: Element>(&self) -> Error {
        Error::shape(format!(
            "a tensor of {} was asked for {}",
            self.dtype(),
            T::DTYPE
        ))
    }
}

/// Compares type, shape and all elements; as for floats, NaN equals nothing.
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype() == other.dtype()
            && self.shape == other.shape
            && with_dtype!(self.dtype(), T => self.as_slice::<T>().ok() == other.as_slice::<T>().ok())
    }
}

/// Prints type, shape and the first elements: `Tensor(u8 [2, 3]: 1, 2, 3, 4, …)`.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "Tensor({} {:?}: ", self.dtype(), self.shape)?;
        with_dtype!(self.dtype(), T => {
            let values = self.as_slice::<T>().expect("the type is its own");
            for (i, value) in values.iter().take(SHOWN).enumerate() {
                write!(f, "{}{value:?}", if i > 0 { ", " } else { "" })?;
            }
        });
        f.write_str(if self.len() > SHOWN { ", …)" } else { ")" })
    }
}

struct Owner(TypedVec);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Returns the number of elements of a shape, if its bytes fit the address space.
pub(crate) fn checked_len(shape: &[usize], dtype: DType) -> Result<usize> {
    // An axis of length zero does not excuse the others: the product of the other axes must fit
    // too, as strides do.
    let fits = |len: usize| {
        len.checked_mul(dtype.size())
            .is_some_and(|bytes| bytes <= isize::MAX as usize)
    };
    shape
        .iter()
        .try_fold(1usize, |product, &axis| product.checked_mul(axis.max(1)))
        .filter(|&len| fits(len))
        .map(|len| if shape.contains(&0) { 0 } else { len })
        .ok_or_else(|| Error::shape(format!("shape {shape:?} of {dtype} is too large")))
}

/// Copies typed elements from bytes of any alignment whose values were checked.
fn copied<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes
        .chunks_exact(size_of::<T>())
        .map(|element| bytemuck::checked::try_pod_read_unaligned(element).unwrap_or_default())
        .collect()
}

/// Two items of one batch that do not fit together, or one that does not fit: the cause of an error
/// of [`ErrorKind::Shape`](crate::ErrorKind::Shape).
///
/// A mismatch names the items by their position in the batch;
/// [`Graph::collate`](crate::Graph::collate) knows the items themselves, and adds them to the
/// error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    field: String,
    sides: [(usize, String); 2],
    /// True if the items are sequences that differ in their lengths only, so that padding would
    /// make them equal.
    ragged: bool,
}

impl Mismatch {
    /// Makes a mismatch of item `a.0`, which has `a.1`, and item `b.0`, which has `b.1`: `shape [3,
    /// 2]`, `no label`.
    pub fn new(a: (usize, impl Into<String>), b: (usize, impl Into<String>)) -> Self {
        Mismatch {
            field: String::new(),
            sides: [(a.0, a.1.into()), (b.0, b.1.into())],
            ragged: false,
        }
    }

    /// Makes a mismatch of item `place` alone, for a property that does not fit: `length 9, more
    /// than 4`.
    pub fn of(place: usize, has: impl Into<String>) -> Self {
        Mismatch {
            field: String::new(),
            sides: [(place, has.into()), (place, String::new())],
            ragged: false,
        }
    }

    /// Adds the field of the items, from the innermost out.
    pub fn in_field(mut self, field: impl fmt::Display) -> Self {
        self.field = if self.field.is_empty() {
            field.to_string()
        } else {
            format!("{field}.{}", self.field)
        };
        self
    }

    /// Returns the positions of the two items in the batch; the same position twice if there is one
    /// item.
    pub fn places(&self) -> [usize; 2] {
        [self.sides[0].0, self.sides[1].0]
    }

    /// Describes the mismatch in words, with these names for the two items.
    pub fn describe(&self, a: impl fmt::Display, b: impl fmt::Display) -> String {
        let [(_, has_a), (_, has_b)] = &self.sides;
        let colon = if self.field.is_empty() { "" } else { ": " };
        let other = if has_b.is_empty() {
            String::new()
        } else {
            format!(", {b} has {has_b}")
        };
        format!("{}{colon}{a} has {has_a}{other}", self.field)
    }

    /// Sets whether the items differ in the length of a sequence only, so that padding would make
    /// them equal; [`Graph::collate`](crate::Graph::collate) then advises it. Not set at first.
    pub fn ragged(self, is: bool) -> Self {
        Mismatch { ragged: is, ..self }
    }

    /// Returns true if padding would make the items equal.
    pub fn is_ragged(&self) -> bool {
        self.ragged
    }

    pub(crate) fn unless_equal<V: PartialEq + ToText>(
        what: &str,
        a: (usize, V),
        b: (usize, V),
    ) -> Result<()> {
        if a.1 == b.1 {
            return Ok(());
        }
        let say = |value: &V| format!("{what} {}", value.to_text());
        let ragged = a.1.is_ragged_beside(&b.1);
        Err(Mismatch::new((a.0, say(&a.1)), (b.0, say(&b.1)))
            .ragged(ragged)
            .into())
    }
}

pub(crate) trait ToText {
    fn to_text(&self) -> String;
    /// Returns true if the two are shapes that differ in the first axis only.
    fn is_ragged_beside(&self, _other: &Self) -> bool {
        false
    }
}

impl ToText for DType {
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl ToText for &[usize] {
    fn to_text(&self) -> String {
        format!("{self:?}")
    }
    fn is_ragged_beside(&self, other: &Self) -> bool {
        self.len() == other.len() && self.get(1..) == other.get(1..)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.places();
        f.write_str(&self.describe(format_args!("item {a}"), format_args!("item {b}")))
    }
}

impl std::error::Error for Mismatch {}

conversions! {
    |mismatch: Mismatch| -> Error { Error::shape("").with_source(mismatch) }
}

#[cfg(test)]
mod tests;
