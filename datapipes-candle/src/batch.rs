//! Conversion of batches: tensors in tuples, vectors, maps, and structs of a user's own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, Hash};

use candle_core::{Device, Error, Result, Tensor};

use crate::to_candle;

/// A batch that can be moved to candle.
///
/// A [`Tensor`](datapipes::Tensor) is moved by [`to_candle`]. Tuples of up to six, arrays, `Vec`s,
/// `Option`s and maps are moved element by element; text does not change.
///
/// # Examples
/// For a struct of your own:
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use datapipes_candle::IntoCandle;
///
/// struct Batch {
///     images: datapipes::Tensor,
///     names: Vec<String>,
/// }
///
/// struct CandleBatch {
///     images: Tensor,
///     names: Vec<String>,
/// }
///
/// impl IntoCandle for Batch {
///     type Batch = CandleBatch;
///     fn into_candle(self, device: &Device) -> Result<CandleBatch> {
///         Ok(CandleBatch { images: self.images.into_candle(device)?, names: self.names })
///     }
/// }
///
/// let images = datapipes::Tensor::from_vec(vec![0f32; 12], [1, 3, 2, 2])?;
/// let batch = Batch { images, names: vec!["a".to_owned()] }.into_candle(&Device::Cpu)?;
/// assert_eq!((batch.images.dims(), &*batch.names[0]), (&[1, 3, 2, 2][..], "a"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be moved to candle",
    note = "implement `IntoCandle` for it, or give `CandleLoader::with` a function"
)]
pub trait IntoCandle {
    /// Type of the batch in candle.
    type Batch;

    /// Moves the batch to a device.
    ///
    /// # Errors
    /// As [`to_candle`], naming the field.
    fn into_candle(self, device: &Device) -> Result<Self::Batch>;
}

impl IntoCandle for datapipes::Tensor {
    type Batch = Tensor;
    fn into_candle(self, device: &Device) -> Result<Tensor> {
        to_candle(self, device)
    }
}

macro_rules! texts {
    ($($type:ty)*) => {$(
        impl IntoCandle for $type {
            type Batch = $type;
            fn into_candle(self, _: &Device) -> Result<$type> {
                Ok(self)
            }
        }
    )*};
}

texts!(String &'static str);

/// Moves one element; an error names it.
fn piece<T: IntoCandle>(name: impl fmt::Display, value: T, device: &Device) -> Result<T::Batch> {
    value
        .into_candle(device)
        .map_err(|error| Error::Msg(format!("{name}: {error}")))
}

macro_rules! tuples {
    ($($name:ident $place:tt),*) => {
        impl<$($name: IntoCandle),*> IntoCandle for ($($name,)*) {
            type Batch = ($($name::Batch,)*);
            fn into_candle(self, device: &Device) -> Result<Self::Batch> {
                Ok(($(piece($place, self.$place, device)?,)*))
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);

impl<T: IntoCandle> IntoCandle for Vec<T> {
    type Batch = Vec<T::Batch>;
    fn into_candle(self, device: &Device) -> Result<Self::Batch> {
        self.into_iter()
            .enumerate()
            .map(|(place, value)| piece(place, value, device))
            .collect()
    }
}

impl<T: IntoCandle, const N: usize> IntoCandle for [T; N] {
    type Batch = [T::Batch; N];
    fn into_candle(self, device: &Device) -> Result<Self::Batch> {
        let moved = Vec::from(self).into_candle(device)?;
        Ok(moved
            .try_into()
            .unwrap_or_else(|_| unreachable!("as many as there were")))
    }
}

impl<T: IntoCandle> IntoCandle for Option<T> {
    type Batch = Option<T::Batch>;
    fn into_candle(self, device: &Device) -> Result<Self::Batch> {
        self.map(|value| value.into_candle(device)).transpose()
    }
}

impl<K, V, S> IntoCandle for HashMap<K, V, S>
where
    K: Eq + Hash + fmt::Debug,
    V: IntoCandle,
    S: BuildHasher + Default,
{
    type Batch = HashMap<K, V::Batch, S>;
    fn into_candle(self, device: &Device) -> Result<Self::Batch> {
        columns(self, device)
    }
}

impl<K: Ord + fmt::Debug, V: IntoCandle> IntoCandle for BTreeMap<K, V> {
    type Batch = BTreeMap<K, V::Batch>;
    fn into_candle(self, device: &Device) -> Result<Self::Batch> {
        columns(self, device)
    }
}

fn columns<K, V, B>(map: impl IntoIterator<Item = (K, V)>, device: &Device) -> Result<B>
where
    K: fmt::Debug,
    V: IntoCandle,
    B: FromIterator<(K, V::Batch)>,
{
    map.into_iter()
        .map(|(key, value)| {
            let moved = piece(format_args!("{key:?}"), value, device)?;
            Ok((key, moved))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(len: usize) -> datapipes::Tensor {
        datapipes::Tensor::from_vec(vec![1.0f32; len], [len]).unwrap()
    }

    #[test]
    fn structures_are_moved_piece_by_piece() {
        let names = vec!["a".to_owned(), "b".to_owned()];
        let batch = (
            tensor(1),
            [tensor(2), tensor(3)],
            (vec![tensor(4)], names.clone()),
            Some(tensor(5)),
        );
        let (a, [b, c], (d, same), e) = batch.into_candle(&Device::Cpu).unwrap();
        let lens = [&a, &b, &c, &d[0], &e.unwrap()].map(Tensor::elem_count);
        assert_eq!((lens, same), ([1, 2, 3, 4, 5], names));
        assert!(
            None::<datapipes::Tensor>
                .into_candle(&Device::Cpu)
                .unwrap()
                .is_none()
        );

        let map = BTreeMap::from([("x".to_owned(), tensor(2))]);
        assert_eq!(map.into_candle(&Device::Cpu).unwrap()["x"].elem_count(), 2);
        let map = HashMap::from([("y", tensor(3))]);
        assert_eq!(map.into_candle(&Device::Cpu).unwrap()["y"].elem_count(), 3);
    }

    #[test]
    fn an_error_names_the_field() {
        let bad = || datapipes::Tensor::zeros(datapipes::DType::I8, [1]).unwrap();
        let said = |error: Error| {
            error
                .to_string()
                .split(';')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let batch = (tensor(1), (tensor(1), vec![tensor(1), bad()]));
        assert_eq!(
            batch.into_candle(&Device::Cpu).map_err(said).unwrap_err(),
            "1: 1: 1: candle has no tensors of i8"
        );
        let map = BTreeMap::from([("mask", bad())]);
        assert_eq!(
            map.into_candle(&Device::Cpu).map_err(said).unwrap_err(),
            "\"mask\": candle has no tensors of i8"
        );
    }
}
