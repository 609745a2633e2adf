//! Makes one batch of a list of samples: every field becomes a column.

mod padding;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hash};

pub use self::padding::{Padded, Padding, Ragged, Sequence};
use crate::tensor::checked_len;
use crate::{Element, Error, Mismatch, Result, Tensor};

/// A sample type whose lists can become one batch; see [`Graph::collate`](crate::Graph::collate).
///
/// | samples | batch |
/// |---|---|
/// | numbers, `bool` | [`Tensor`] of shape `[n]` |
/// | `Vec` or array of numbers, of equal lengths | [`Tensor`] of shape `[n, length]` |
/// | [`Tensor`]s of one shape | [`Tensor`] with a new first axis |
/// | `String`, `&str` | `Vec` of them |
/// | tuples | tuple of batches |
/// | maps with the same keys | map of batches |
/// | `Option`s, all of them `Some` or all `None` | `Option` of a batch |
///
/// `usize` and `isize` are not among the numbers, since their width is not the same everywhere:
/// make them `i64` or `u32`. A `Vec` of `Vec`s is a [`Tensor::from_vec`] with a shape. Lists of
/// different lengths need [`padded_batch`](crate::Graph::padded_batch), or, in an implementation of
/// your own, [`Padding::pad`].
///
/// With the feature `derive`, `#[derive(Collate)]` implements the trait for a struct: `Sample {
/// image, label }` becomes `SampleBatch { image, label }`.
///
/// # Examples
/// ```
/// use datapipes::{Collate, Result, Tensor};
///
/// struct Word(String);
///
/// impl Collate for Word {
///     type Batch = Tensor;
///     fn collate(items: Vec<Self>) -> Result<Tensor> {
///         Collate::collate(items.iter().map(|word| word.0.len() as u32).collect::<Vec<u32>>())
///     }
/// }
///
/// let batch = Word::collate(vec![Word("a".into()), Word("bcd".into())])?;
/// assert_eq!(batch.as_slice::<u32>()?, [1, 3]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a list of `{Self}` cannot be made into a batch",
    note = "derive `Collate` for a struct (feature `derive`), implement it, or use `collate_with`"
)]
pub trait Collate: Sized {
    /// Type of the batch.
    type Batch;

    /// Makes one batch of the samples.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape), best made from a [`Mismatch`], if they do not
    /// fit together.
    fn collate(items: Vec<Self>) -> Result<Self::Batch>;

    /// Returns about how many bytes a batch keeps alive, for queues with a length in bytes; `None`
    /// for the size of its type.
    fn weigh(_batch: &Self::Batch) -> Option<usize> {
        None
    }
}

/// Returns the bytes that a tensor keeps alive.
fn weigh_tensor(batch: &Tensor) -> Option<usize> {
    Some(size_of::<Tensor>() + batch.byte_len())
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Collate for $type {
            type Batch = Tensor;
            fn collate(items: Vec<Self>) -> Result<Tensor> {
                Ok(Tensor::list(items))
            }
            fn weigh(batch: &Tensor) -> Option<usize> {
                weigh_tensor(batch)
            }
        }
    )*};
}

numbers!(u8 i8 u16 i16 u32 i32 u64 i64 half::f16 half::bf16 f32 f64 bool);

macro_rules! texts {
    ($($type:ty)*) => {$(
        impl Collate for $type {
            type Batch = Vec<$type>;
            fn collate(items: Vec<Self>) -> Result<Vec<Self>> {
                Ok(items)
            }
        }
    )*};
}

texts!(String &'static str);

impl Collate for Tensor {
    type Batch = Tensor;
    fn collate(items: Vec<Self>) -> Result<Tensor> {
        Tensor::stack_rows(items)
    }
    fn weigh(batch: &Tensor) -> Option<usize> {
        weigh_tensor(batch)
    }
}

impl<E: Element> Collate for Vec<E> {
    type Batch = Tensor;
    fn collate(items: Vec<Self>) -> Result<Tensor> {
        rows(&items)
    }
    fn weigh(batch: &Tensor) -> Option<usize> {
        weigh_tensor(batch)
    }
}

impl<E: Element, const N: usize> Collate for [E; N] {
    type Batch = Tensor;
    fn collate(items: Vec<Self>) -> Result<Tensor> {
        // With no samples there is no row to learn the length from.
        checked_len(&[items.len(), N], E::DTYPE)?;
        let len = items.len();
        Tensor::from_vec(items.into_iter().flatten().collect::<Vec<E>>(), [len, N])
    }
    fn weigh(batch: &Tensor) -> Option<usize> {
        weigh_tensor(batch)
    }
}

fn rows<E: Element>(items: &[impl AsRef<[E]>]) -> Result<Tensor> {
    let length = items.first().map_or(0, |row| row.as_ref().len());
    let lengths = items.iter().map(|row| row.as_ref().len());
    if let Some((place, other)) = lengths.enumerate().find(|(_, other)| *other != length) {
        let has = |length: usize| format!("length {length}");
        return Err(Mismatch::new((0, has(length)), (place, has(other)))
            .ragged(true)
            .into());
    }
    Tensor::from_fill([items.len(), length], |values| {
        items
            .iter()
            .for_each(|row| values.extend_from_slice(row.as_ref()));
        Ok(())
    })
}

impl<T: Collate> Collate for Option<T> {
    type Batch = Option<T::Batch>;
    fn collate(items: Vec<Self>) -> Result<Self::Batch> {
        all_or_none(items)?.map(T::collate).transpose()
    }
    fn weigh(batch: &Self::Batch) -> Option<usize> {
        batch.as_ref().and_then(T::weigh)
    }
}

/// Returns the values if none is missing, `None` if all are.
fn all_or_none<T>(items: Vec<Option<T>>) -> Result<Option<Vec<T>>> {
    let has = |there: bool| if there { "a value" } else { "none" };
    let first = items.first().is_some_and(Option::is_some);
    if let Some(place) = items.iter().position(|item| item.is_some() != first) {
        return Err(Mismatch::new((0, has(first)), (place, has(!first))).into());
    }
    Ok(first.then(|| items.into_iter().flatten().collect()))
}

macro_rules! tuples {
    ($($name:ident $place:tt $column:ident),*) => {
        impl<$($name: Collate),*> Collate for ($($name,)*) {
            type Batch = ($($name::Batch,)*);
            fn collate(items: Vec<Self>) -> Result<Self::Batch> {
                $(let mut $column = Vec::with_capacity(items.len());)*
                for item in items {
                    $($column.push(item.$place);)*
                }
                Ok(($(field($place, $column)?,)*))
            }
            fn weigh(batch: &Self::Batch) -> Option<usize> {
                Some(0 $(+ $name::weigh(&batch.$place).unwrap_or(size_of::<$name::Batch>()))*)
            }
        }
    };
}

tuples!(A 0 a);
tuples!(A 0 a, B 1 b);
tuples!(A 0 a, B 1 b, C 2 c);
tuples!(A 0 a, B 1 b, C 2 c, D 3 d);
tuples!(A 0 a, B 1 b, C 2 c, D 3 d, E 4 e);
tuples!(A 0 a, B 1 b, C 2 c, D 3 d, E 4 e, F 5 f);

macro_rules! maps {
    ($([$($param:tt)*] $map:ty => $batch:ty;)*) => {$(
        impl<$($param)*> Collate for $map {
            type Batch = $batch;
            fn collate(items: Vec<Self>) -> Result<Self::Batch> {
                columns(items, |map, key| map.remove(key), |_, column| V::collate(column))
            }
            fn weigh(batch: &Self::Batch) -> Option<usize> {
                let weight = |column| V::weigh(column).unwrap_or(size_of_val(column));
                Some(batch.values().map(weight).sum())
            }
        }
    )*};
}

maps! {
    [K: Eq + Hash + fmt::Debug, V: Collate, S: BuildHasher + Default]
        HashMap<K, V, S> => HashMap<K, V::Batch, S>;
    [K: Ord + fmt::Debug, V: Collate] BTreeMap<K, V> => BTreeMap<K, V::Batch>;
}

/// Splits maps into a column for each key of the first map, and passes each column to `batch`. All
/// maps must have the same keys.
fn columns<M, K, V, B, C>(
    mut items: Vec<M>,
    remove: impl Fn(&mut M, &K) -> Option<V>,
    batch: impl Fn(&K, Vec<V>) -> Result<B>,
) -> Result<C>
where
    M: IntoIterator<Item = (K, V)> + Default,
    K: fmt::Debug,
    C: FromIterator<(K, B)>,
{
    let first = items.first_mut().map(std::mem::take).unwrap_or_default();
    let (has, lacks) = (
        |key: &K| format!("key {key:?}"),
        |key: &K| format!("no key {key:?}"),
    );
    let mut columns = Vec::new();
    for (key, value) in first {
        let mut column = Vec::with_capacity(items.len());
        column.push(value);
        for (place, map) in items.iter_mut().enumerate().skip(1) {
            let Some(value) = remove(map, &key) else {
                return Err(Mismatch::new((0, has(&key)), (place, lacks(&key))).into());
            };
            column.push(value);
        }
        columns.push((key, column));
    }
    // The remaining entries have keys that the first map does not have.
    for (place, map) in items.into_iter().enumerate().skip(1) {
        if let Some((key, _)) = map.into_iter().next() {
            return Err(Mismatch::new((0, lacks(&key)), (place, has(&key))).into());
        }
    }
    let batches = columns.into_iter().map(|(key, column)| {
        let batch = named(format_args!("{key:?}"), batch(&key, column))?;
        Ok((key, batch))
    });
    batches.collect()
}

/// Collates one field of a struct or tuple; a mismatch names the field.
#[doc(hidden)]
pub fn field<T: Collate>(name: impl fmt::Display, column: Vec<T>) -> Result<T::Batch> {
    named(name, T::collate(column))
}

/// Pads one field of a struct; a mismatch names the field.
#[doc(hidden)]
pub fn padded<T: Ragged>(
    name: impl fmt::Display,
    column: Vec<T>,
    padding: Padding,
) -> Result<(T::Values, T::Lengths)> {
    named(name, T::pad(column, &padding))
}

/// Adds the field to a mismatch.
#[doc(hidden)]
pub fn named<B>(name: impl fmt::Display, result: Result<B>) -> Result<B> {
    result.map_err(|error| match mismatch(&error) {
        Some(mismatch) => Error::from(mismatch.clone().in_field(name)),
        None => error,
    })
}

/// Returns the mismatch that is the cause of an error.
fn mismatch(error: &Error) -> Option<&Mismatch> {
    std::error::Error::source(error)?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<B: fmt::Debug>(result: Result<B>) -> String {
        result
            .unwrap_err()
            .to_string()
            .replace("shape mismatch: ", "")
    }

    #[test]
    fn numbers_lists_and_tensors() {
        assert_eq!(
            f32::collate(vec![1.0, 2.0]).unwrap(),
            Tensor::list(vec![1f32, 2.0])
        );
        assert_eq!(bool::collate(vec![]).unwrap().shape(), [0]);
        assert_eq!(
            Collate::collate(vec![[1u8, 2], [3, 4], [5, 6]])
                .unwrap()
                .shape(),
            [3, 2]
        );
        assert_eq!(<[u8; 2]>::collate(vec![]).unwrap().shape(), [0, 2]);
        assert_eq!(
            Collate::collate(vec![vec![1u8, 2], vec![3, 4]])
                .unwrap()
                .as_bytes(),
            [1, 2, 3, 4]
        );
        assert_eq!(
            said(Collate::collate(vec![vec![1u8], vec![]])),
            "item 0 has length 1, item 1 has length 0"
        );
        assert_eq!(Collate::collate(vec!["a", "b"]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn structures_name_the_field() {
        let (a, b) = Collate::collate(vec![(1u8, "x".to_owned()), (2, "y".to_owned())]).unwrap();
        assert_eq!(
            (a.as_bytes(), &b[..]),
            (&[1, 2][..], &["x".to_owned(), "y".to_owned()][..])
        );
        let nested = vec![(1u8, (2u8, vec![1u8])), (1, (2, vec![]))];
        assert_eq!(
            said(Collate::collate(nested)),
            "1.1: item 0 has length 1, item 1 has length 0"
        );
    }

    #[test]
    fn options_are_all_or_none() {
        assert!(
            Collate::collate(vec![Some(1u8), Some(2)])
                .unwrap()
                .is_some()
        );
        assert!(Collate::collate(vec![None::<u8>, None]).unwrap().is_none());
        assert_eq!(
            said(Collate::collate(vec![Some(1u8), Some(1), None])),
            "item 0 has a value, item 2 has none"
        );
    }

    #[test]
    fn maps_need_the_same_keys() {
        let map = |keys: &[&'static str]| {
            keys.iter()
                .map(|&key| (key, key.len() as u8))
                .collect::<BTreeMap<_, _>>()
        };
        let batch = Collate::collate(vec![map(&["a", "bb"]), map(&["bb", "a"])]).unwrap();
        assert_eq!(
            (batch["a"].as_bytes(), batch["bb"].as_bytes()),
            (&[1, 1][..], &[2, 2][..])
        );
        let error = said(Collate::collate(vec![map(&["a"]), map(&["a"]), map(&[])]));
        assert_eq!(error, "item 0 has key \"a\", item 2 has no key \"a\"");
        let error = said(Collate::collate(vec![map(&["a"]), map(&["a", "b"])]));
        assert_eq!(error, "item 0 has no key \"b\", item 1 has key \"b\"");
        let rows = vec![
            HashMap::from([("x", vec![1u8])]),
            HashMap::from([("x", vec![])]),
        ];
        assert_eq!(
            said(Collate::collate(rows)),
            "\"x\": item 0 has length 1, item 1 has length 0"
        );
        assert_eq!(
            Collate::collate(Vec::<BTreeMap<u8, u8>>::new())
                .unwrap()
                .len(),
            0
        );
    }
}
