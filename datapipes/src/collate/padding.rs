//! Pads sequences of different lengths, so that they make one batch.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hash};

use half::{bf16, f16};

use super::{Collate, all_or_none, columns, named, weigh_tensor};
use crate::dtype::with_dtype;
use crate::tensor::checked_len;
use crate::{DType, Element, Error, Mismatch, Result, Tensor};

/// A sequence whose length may differ from sample to sample: a `Vec` of numbers, or a [`Tensor`]
/// whose first axis is the sequence, unless [`Padding::axis`] says another.
pub trait Sequence {
    /// Returns the type of the numbers.
    fn dtype(&self) -> DType;

    /// Returns the length along each axis; the first axis is the number of steps.
    fn shape(&self) -> Vec<usize>;

    /// Returns the numbers, row-major, in the machine's byte order and aligned for their type.
    fn as_bytes(&self) -> &[u8];
}

impl<E: Element> Sequence for Vec<E> {
    fn dtype(&self) -> DType {
        E::DTYPE
    }
    fn shape(&self) -> Vec<usize> {
        vec![self.len()]
    }
    fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl Sequence for Tensor {
    fn dtype(&self) -> DType {
        Tensor::dtype(self)
    }
    fn shape(&self) -> Vec<usize> {
        Tensor::shape(self).to_vec()
    }
    fn as_bytes(&self) -> &[u8] {
        Tensor::as_bytes(self)
    }
}

/// The value that sequences are padded with, and the length they are padded to.
///
/// Padding follows the end of a sequence, up to the longest of the batch by default. The first axis
/// alone may differ, as for PyTorch's `pad_sequence`, or the one that [`axis`](Padding::axis) says;
/// [`all_axes`](Padding::all_axes) pads every axis, as tf.data's `padded_batch` does. The batch has
/// the type of the sequences: the padding value is converted to it. A value that the type cannot
/// hold (`-1` for `u8`, `0.5` for `i64`) is an error, never another number. A float is rounded to
/// the nearest of a smaller type.
///
/// Any number becomes a `Padding` by `into`, so methods that take a `Padding` take a number as
/// well.
///
/// # Examples
/// In a [`Collate`] implementation of your own:
/// ```
/// use datapipes::{Collate, Padding, Result, Tensor};
///
/// struct Text { ids: Vec<u32>, label: u8 }
/// struct Texts { ids: Tensor, mask: Tensor, labels: Tensor }
///
/// impl Collate for Text {
///     type Batch = Texts;
///     fn collate(items: Vec<Self>) -> Result<Texts> {
///         let (ids, labels): (Vec<_>, Vec<_>) = items.into_iter().map(|text| (text.ids, text.label)).unzip();
///         let padding = Padding::new(0).multiple_of(4);
///         let (ids, lengths) = padding.pad(&ids)?;
///         Ok(Texts { mask: padding.mask(&ids, &lengths)?, ids, labels: Collate::collate(labels)? })
///     }
/// }
///
/// let texts = vec![Text { ids: vec![7, 8], label: 1 }, Text { ids: vec![9], label: 2 }];
/// let batch = Text::collate(texts)?;
/// assert_eq!(batch.ids.as_slice::<u32>()?, [7, 8, 0, 0, 9, 0, 0, 0]);
/// assert_eq!(batch.mask.as_slice::<bool>()?[..4], [true, true, false, false]);
/// assert_eq!(batch.labels.as_slice::<u8>()?, [1, 2]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq)]
#[must_use]
pub struct Padding {
    value: Value,
    /// Type of a batch of no sequences.
    dtype: DType,
    multiple: usize,
    length: Option<usize>,
    /// The axis that is padded; `None` for all.
    axis: Option<usize>,
}

/// A number of any type.
#[derive(Clone, Copy, PartialEq)]
enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::Bool(value) => value.fmt(f),
        }
    }
}

/// Prints the value and the other settings: `0, to a multiple of 8`. The text is part of the
/// settings in a checkpoint.
impl fmt::Debug for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)?;
        match (self.length, self.multiple) {
            (Some(length), _) => write!(f, ", to {length}")?,
            (None, 0 | 1) => {}
            (None, multiple) => write!(f, ", to a multiple of {multiple}")?,
        }
        match self.axis {
            Some(0) => Ok(()),
            Some(axis) => write!(f, ", axis {axis}"),
            None => f.write_str(", all axes"),
        }
    }
}

/// A number of a known type, with conversions to and from any number.
trait Number: Element {
    fn of(value: Value) -> Option<Self>;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Value::Int(value.into())
            }
        }
        impl Number for $type {
            fn of(value: Value) -> Option<Self> {
                match value {
                    Value::Int(value) => value.try_into().ok(),
                    // The cast saturates, so a value out of range does not come back.
                    Value::Float(value) => (value as i128 as f64 == value).then_some(value as i128)?.try_into().ok(),
                    Value::Bool(_) => None,
                }
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty, $from:expr;)*) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Value::Float(value.into())
            }
        }
        impl Number for $type {
            fn of(value: Value) -> Option<Self> {
                match value {
                    Value::Int(value) => {
                        let float = $from(value as f64);
                        (f64::from(float) as i128 == value).then_some(float)
                    }
                    Value::Float(value) => {
                        let float = $from(value);
                        (f64::from(float).is_finite() || !value.is_finite()).then_some(float)
                    }
                    Value::Bool(_) => None,
                }
            }
        }
    )*};
}

integers!(u8 i8 u16 i16 u32 i32 u64 i64);
floats! {
    f16, f16::from_f64;
    bf16, bf16::from_f64;
    f32, (|value: f64| value as f32);
    f64, std::convert::identity;
}

conversions! {
    |value: bool| -> Value { Value::Bool(value) }
}

impl Number for bool {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(value),
            Value::Int(0) => Some(false),
            Value::Int(1) => Some(true),
            _ => None,
        }
    }
}

macro_rules! paddings {
    ($($type:ty)*) => {$(
        impl From<$type> for Padding {
            fn from(value: $type) -> Self {
                Padding { value: value.into(), dtype: <$type>::DTYPE, multiple: 1, length: None, axis: Some(0) }
            }
        }
    )*};
}

paddings!(u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64 bool);

impl Padding {
    /// Pads with this number, to the longest sequence.
    pub fn new(value: impl Element + Into<Padding>) -> Self {
        value.into()
    }

    setters! {
        /// Pads to the longest sequence, rounded up to a multiple of this many steps; with
        /// [`all_axes`](Padding::all_axes) along each axis.
        multiple_of(steps: usize) => multiple = steps;

        /// Pads to this many steps, whatever the longest sequence has. A longer sequence is an error:
        /// nothing is cut off.
        length(steps: usize) => length = Some(steps);

        /// Pads along this axis of a sequence, counted from 0, instead of the first: the frames of
        /// spectrograms `[mels, frames]` are axis 1.
        axis(axis: usize) => axis = Some(axis);

        /// Pads every axis that differs, not the first alone: pictures of different sizes, lists of
        /// lists. The lengths then are those along all axes of a sequence, `[n, axes]`.
        all_axes() => axis = None;
    }

    /// Pads sequences: returns a tensor `[n, longest, ..]`, and the lengths before padding, `[n]`
    /// of `i64`. With [`axis`](Padding::axis), that axis is as long as the longest.
    ///
    /// Sequences of length 0 are all padding. No sequences make a batch `[0, 0]` of the type of the
    /// value.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape), with the items' numbers, if they differ in an axis that is not padded,
    /// in the number of axes or in type. Also if an item has no such axis, or more steps than
    /// [`length`](Padding::length) says, or if the type cannot hold the value.
    pub fn pad<S: Sequence>(&self, items: &[S]) -> Result<(Tensor, Tensor)> {
        let Some(first) = items.first() else {
            return Ok((
                Tensor::zeros(self.dtype, [0, 0])?,
                Tensor::list::<i64>(Vec::new()),
            ));
        };
        let shapes: Vec<Vec<usize>> = items.iter().map(S::shape).collect();
        let dtype = first.dtype();
        let main = self.axis.unwrap_or(0);
        let pads = |axis| self.axis.is_none_or(|one| one == axis);
        for (place, (item, shape)) in items.iter().zip(&shapes).enumerate() {
            Mismatch::unless_equal("dtype", (0, dtype), (place, item.dtype()))?;
            if shape.len() <= main {
                let has = match main {
                    0 => format!("shape {shape:?}, which is no sequence"),
                    _ => format!("shape {shape:?}, which has no axis {main}"),
                };
                return Err(Mismatch::of(place, has).into());
            }
            let first = &shapes[0];
            let same = shape.len() == first.len()
                && (0..shape.len()).all(|axis| pads(axis) || shape[axis] == first[axis]);
            if !same {
                let has = |place: usize| {
                    let mut step = shapes[place].clone();
                    step.remove(main);
                    format!("steps of shape {step:?}")
                };
                return Err(Mismatch::new((0, has(0)), (place, has(place))).into());
            }
        }
        let mut shape = vec![items.len()];
        for axis in 0..shapes[0].len() {
            let longest = shapes.iter().map(|shape| shape[axis]).max().unwrap_or(0);
            shape.push(match self.length.filter(|_| axis == main) {
                Some(length) if longest > length => {
                    let place = shapes
                        .iter()
                        .position(|shape| shape[main] > length)
                        .unwrap_or(0);
                    let has = format!(
                        "{} steps, more than the {length} to pad to",
                        shapes[place][main]
                    );
                    return Err(Mismatch::of(place, has).into());
                }
                Some(length) => length,
                // A product that overflows is rejected below as too large.
                None if pads(axis) => longest
                    .checked_next_multiple_of(self.multiple)
                    .unwrap_or(usize::MAX),
                None => longest,
            });
        }
        let len = checked_len(&shape, dtype)?;
        let values = with_dtype!(dtype, T => {
            let Some(value) = <T as Number>::of(self.value) else {
                let has = format!("dtype {dtype}, which cannot hold the padding {:?}", self.value);
                return Err(Mismatch::of(0, has).into());
            };
            let mut values = vec![value; len];
            for ((item, from), to) in items.iter().zip(&shapes).zip(values.chunks_mut((len / items.len()).max(1))) {
                place(typed::<T>(item.as_bytes())?, from, to, &shape[1..]);
            }
            Tensor::from_vec(values, shape)?
        });
        let lengths: Vec<i64> = shapes
            .iter()
            .flat_map(|shape| shape.iter().enumerate())
            .filter(|(axis, _)| pads(*axis))
            .map(|(_, &length)| length as i64)
            .collect();
        let lengths = match self.axis {
            None => Tensor::from_vec(lengths, [items.len(), shapes[0].len()])?,
            Some(_) => Tensor::list(lengths),
        };
        Ok((values, lengths))
    }

    /// Returns a mask that is true for the steps of the sequences and false for padding: `bool`, of
    /// shape `[n, longest]`, or of the batch's own shape for [`all_axes`](Padding::all_axes). The
    /// arguments are the two tensors of [`pad`](Padding::pad).
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if the lengths do not belong to the batch.
    pub fn mask(&self, batch: &Tensor, lengths: &Tensor) -> Result<Tensor> {
        let shape = match (self.axis, batch.shape()) {
            (Some(axis), &[n, ref axes @ ..]) if lengths.shape() == [n] => {
                axes.get(axis).map(|&longest| vec![n, longest])
            }
            (None, all @ &[n, ref axes @ ..]) if lengths.shape() == [n, axes.len()] => {
                Some(all.to_vec())
            }
            _ => None,
        };
        let Some(shape) = shape else {
            let (batch, lengths) = (batch.shape(), lengths.shape());
            let message = format!("lengths of shape {lengths:?} for a batch of shape {batch:?}");
            return Err(Error::shape(message));
        };
        let len = checked_len(&shape, DType::Bool)?;
        let mut mask = vec![false; len];
        let lengths = lengths.as_slice::<i64>()?;
        for (item, to) in lengths
            .chunks((shape.len() - 1).max(1))
            .zip(mask.chunks_mut((len / shape[0].max(1)).max(1)))
        {
            let from: Vec<usize> = item
                .iter()
                .map(|&length| length.try_into().unwrap_or(usize::MAX))
                .collect();
            if from.iter().zip(&shape[1..]).any(|(from, to)| from > to) {
                let message = format!("lengths {item:?} in a batch of shape {shape:?}");
                return Err(Error::shape(message));
            }
            place(&vec![true; from.iter().product()], &from, to, &shape[1..]);
        }
        Tensor::from_vec(mask, shape)
    }
}

fn typed<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    if bytes.is_empty() {
        // An empty slice need not be aligned.
        return Ok(&[]);
    }
    bytemuck::checked::try_cast_slice(bytes).map_err(|error| {
        Error::shape(format!(
            "bytes of a sequence that are no {}: {error}",
            T::DTYPE
        ))
    })
}

/// Copies an array of numbers to the corner of a larger one.
fn place<T: Copy>(from: &[T], shape: &[usize], to: &mut [T], target: &[usize]) {
    if from.is_empty() {
        return;
    }
    if shape[1..] == target[1..] {
        return to[..from.len()].copy_from_slice(from);
    }
    let (small, large) = (from.len() / shape[0], target[1..].iter().product());
    for (from, to) in from.chunks(small).zip(to.chunks_mut(large)) {
        place(from, &shape[1..], to, &target[1..]);
    }
}

/// A value that can be padded as a whole: a [`Sequence`], a map of sequences, an `Option` of one.
///
/// A batch has two parts of the same structure: the padded sequences, and their lengths.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be padded",
    note = "a `Vec` of numbers and a `Tensor` can be, and maps of those; for others implement `Collate` by `Padding::pad`"
)]
pub trait Ragged: Sized {
    /// Type of the padded sequences: a [`Tensor`], or a map of tensors.
    type Values;
    /// Type of their lengths: a [`Tensor`] of `i64`, or a map of tensors.
    type Lengths;

    /// Pads a list of samples.
    ///
    /// # Errors
    /// Fails as [`Padding::pad`] does.
    fn pad(items: Vec<Self>, padding: &Padding) -> Result<(Self::Values, Self::Lengths)>;

    /// Returns about how many bytes padded sequences keep alive.
    fn weigh(values: &Self::Values) -> usize;
}

impl<S: Sequence> Ragged for S {
    type Values = Tensor;
    type Lengths = Tensor;

    fn pad(items: Vec<Self>, padding: &Padding) -> Result<(Tensor, Tensor)> {
        padding.pad(&items)
    }
    fn weigh(values: &Tensor) -> usize {
        weigh_tensor(values).unwrap_or(0)
    }
}

impl<R: Ragged> Ragged for Option<R> {
    type Values = Option<R::Values>;
    type Lengths = Option<R::Lengths>;

    fn pad(items: Vec<Self>, padding: &Padding) -> Result<(Self::Values, Self::Lengths)> {
        let items = all_or_none(items)?;
        Ok(items
            .map(|items| R::pad(items, padding))
            .transpose()?
            .unzip())
    }
    fn weigh(values: &Self::Values) -> usize {
        values.as_ref().map_or(0, R::weigh)
    }
}

/// A sample type whose lists can become one batch with some parts padded, as `P` says; see
/// [`Graph::padded_batch`](crate::Graph::padded_batch).
///
/// | samples | `P` | batch |
/// |---|---|---|
/// | sequences, maps of sequences | a number, or a [`Padding`] | the padded sequences, and their lengths |
/// | tuples | a tuple, with something for each field | tuple of batches |
/// | maps | `[(key, number or Padding); N]`: these are padded, other keys are not | map of batches, and map of the lengths of those |
/// | anything that is [`Collate`] | `()` | as `collate`, which a struct with `#[collate(pad = 0)]` pads itself |
#[diagnostic::on_unimplemented(
    message = "a list of `{Self}` cannot be padded by `{P}`",
    note = "say a number or a `Padding` for a sequence, `()` for what is not to be padded, a tuple of these for a tuple"
)]
pub trait Padded<P>: Sized {
    /// Type of the batch.
    type Batch;

    /// Makes one batch of the samples.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) that names the field and two items, if they do not fit together.
    fn padded(items: Vec<Self>, pad: &P) -> Result<Self::Batch>;

    /// Returns about how many bytes a batch keeps alive; `None` for the size of its type.
    fn weigh(_batch: &Self::Batch) -> Option<usize> {
        None
    }
}

impl<T: Collate> Padded<()> for T {
    type Batch = T::Batch;

    fn padded(items: Vec<Self>, _: &()) -> Result<T::Batch> {
        T::collate(items)
    }
    fn weigh(batch: &T::Batch) -> Option<usize> {
        <T as Collate>::weigh(batch)
    }
}

impl<R: Ragged> Padded<Padding> for R {
    type Batch = (R::Values, R::Lengths);

    fn padded(items: Vec<Self>, pad: &Padding) -> Result<Self::Batch> {
        R::pad(items, pad)
    }
    fn weigh((values, _): &Self::Batch) -> Option<usize> {
        Some(R::weigh(values))
    }
}

impl<R: Ragged, E: Element + Into<Padding>> Padded<E> for R {
    type Batch = (R::Values, R::Lengths);

    fn padded(items: Vec<Self>, pad: &E) -> Result<Self::Batch> {
        R::pad(items, &(*pad).into())
    }
    fn weigh((values, _): &Self::Batch) -> Option<usize> {
        Some(R::weigh(values))
    }
}

macro_rules! tuples {
    ($($name:ident $pad:ident $place:tt $column:ident),*) => {
        impl<$($name: Padded<$pad>, $pad),*> Padded<($($pad,)*)> for ($($name,)*) {
            type Batch = ($($name::Batch,)*);

            fn padded(items: Vec<Self>, pad: &($($pad,)*)) -> Result<Self::Batch> {
                $(let mut $column = Vec::with_capacity(items.len());)*
                for item in items {
                    $($column.push(item.$place);)*
                }
                Ok(($(named($place, $name::padded($column, &pad.$place))?,)*))
            }
            fn weigh(batch: &Self::Batch) -> Option<usize> {
                Some(0 $(+ $name::weigh(&batch.$place).unwrap_or(size_of::<$name::Batch>()))*)
            }
        }
    };
}

tuples!(A PA 0 a);
tuples!(A PA 0 a, B PB 1 b);
tuples!(A PA 0 a, B PB 1 b, C PC 2 c);
tuples!(A PA 0 a, B PB 1 b, C PC 2 c, D PD 3 d);
tuples!(A PA 0 a, B PB 1 b, C PC 2 c, D PD 3 d, E PE 4 e);
tuples!(A PA 0 a, B PB 1 b, C PC 2 c, D PD 3 d, E PE 4 e, F PF 5 f);

macro_rules! maps {
    ($map:ident<K, $value:ident $(, $state:ident)?>, $($bound:tt)*) => {
        impl<K: $($bound)*, V: Ragged $(, $state: BuildHasher + Default)?> Ragged for $map<K, V $(, $state)?> {
            type Values = $map<K, V::Values $(, $state)?>;
            type Lengths = $map<K, V::Lengths $(, $state)?>;

            fn pad(items: Vec<Self>, padding: &Padding) -> Result<(Self::Values, Self::Lengths)> {
                let pad = |_: &K, column| V::pad(column, padding);
                let batches: Vec<(K, _)> = columns(items, |map, key| map.remove(key), pad)?;
                Ok(batches.into_iter().map(|(key, (values, lengths))| ((key.clone(), values), (key, lengths))).unzip())
            }
            fn weigh(values: &Self::Values) -> usize {
                values.values().map(V::weigh).sum()
            }
        }

        /// Pads these keys, each with its own value; the others are collated as they are.
        impl<K, V, $($state,)? Q, P, const N: usize> Padded<[(Q, P); N]> for $map<K, V $(, $state)?>
        where
            K: $($bound)* + PartialEq<Q>,
            V: Ragged + Collate<Batch = <V as Ragged>::Values>,
            $($state: BuildHasher + Default,)?
            Q: fmt::Debug,
            P: Copy + Into<Padding>,
        {
            type Batch = (<Self as Ragged>::Values, <Self as Ragged>::Lengths);

            fn padded(items: Vec<Self>, pad: &[(Q, P); N]) -> Result<Self::Batch> {
                if let Some(first) = items.first()
                    && let Some((key, _)) = pad.iter().find(|(key, _)| !first.keys().any(|other| other == key))
                {
                    return Err(Mismatch::of(0, format!("no key {key:?}, which is to be padded")).into());
                }
                let batch = |key: &K, column| match pad.iter().find(|(padded, _)| key == padded) {
                    Some((_, padding)) => {
                        V::pad(column, &(*padding).into()).map(|(values, lengths)| (values, Some(lengths)))
                    }
                    None => Ok((V::collate(column)?, None)),
                };
                let batches: Vec<(K, _)> = columns(items, |map, key| map.remove(key), batch)?;
                let (mut all, mut lengths) = Self::Batch::default();
                for (key, (values, lens)) in batches {
                    lengths.extend(lens.map(|lens| (key.clone(), lens)));
                    all.insert(key, values);
                }
                Ok((all, lengths))
            }
            fn weigh((values, _): &Self::Batch) -> Option<usize> {
                Some(<Self as Ragged>::weigh(values))
            }
        }
    };
}

maps!(HashMap<K, V, S>, Eq + Hash + Clone + fmt::Debug);
maps!(BTreeMap<K, V>, Ord + Clone + fmt::Debug);

#[cfg(test)]
mod tests;
