//! The number of bytes that a value keeps alive.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use half::{bf16, f16};

use crate::Tensor;

/// A type whose values know about how many bytes they keep alive: their own and those that they
/// own.
///
/// Queues with a length in bytes count by this weight; see
/// [`Builder::memory`](crate::loader::Builder::memory). The weight is known without an
/// implementation for values without a destructor, `Vec`s and slices of numbers, text, [`Bytes`],
/// [`Tensor`]s, batches of these, and pairs of these and a number, text or tensor. For a type of
/// your own, implement the trait and call [`weighed`](crate::Graph::weighed) at the step that makes
/// it; [`explain`](crate::DataLoader::explain) names the steps where the weight is missing: those
/// of the library at once, others after their first item.
///
/// # Examples
/// ```
/// use datapipes::{Graph, Weigh};
///
/// struct Scan { voxels: Vec<f32>, patient: String }
///
/// impl Weigh for Scan {
///     fn weigh(&self) -> usize {
///         self.voxels.weigh() + self.patient.weigh()
///     }
/// }
///
/// let scans = Graph::range(0..3)
///     .map(|n| Scan { voxels: vec![0.0; 1000], patient: n.to_string() })
///     .weighed(Weigh::weigh);
/// # let _ = scans;
/// assert_eq!(vec![0f32; 1000].weigh(), size_of::<Vec<f32>>() + 4000);
/// ```
pub trait Weigh {
    /// Returns the number of bytes, including `size_of_val(self)`.
    fn weigh(&self) -> usize;
}

/// Weighs many values in one call.
pub(crate) type Weigher<T> = Arc<dyn Fn(&[T]) -> usize + Send + Sync>;

/// Returns the function that weighs values of a type, if the type tells the weight.
pub(crate) fn weigher<T: 'static>() -> Option<Weigher<T>> {
    KNOWN.get(&TypeId::of::<T>())?.downcast_ref().cloned()
}

type Weighers = HashMap<TypeId, Box<dyn Any + Send + Sync>>;

static KNOWN: LazyLock<Weighers> = LazyLock::new(|| {
    let mut known = Weighers::new();
    fn add<T: Weigh + 'static>(known: &mut Weighers) {
        let weigher: Weigher<T> = Arc::new(all::<T>);
        known.insert(TypeId::of::<T>(), Box::new(weigher));
    }
    macro_rules! lists {
        ($($type:ty)*) => {$(
            add::<Vec<$type>>(&mut known);
            add::<Vec<Vec<$type>>>(&mut known);
            add::<Box<[$type]>>(&mut known);
            add::<Arc<[$type]>>(&mut known);
        )*};
    }
    macro_rules! pairs {
        ($($first:ty),*) => {$(
            add::<$first>(&mut known);
            add::<Vec<$first>>(&mut known);
            pairs!($first; u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool String Tensor);
        )*};
        ($first:ty; $($second:ty)*) => {$(
            add::<($first, $second)>(&mut known);
            add::<Vec<($first, $second)>>(&mut known);
            add::<($second, $first)>(&mut known);
            add::<Vec<($second, $first)>>(&mut known);
        )*};
    }
    lists!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f16 bf16 f32 f64 bool char);
    pairs!(
        Vec<u8>,
        Vec<u32>,
        Vec<u64>,
        Vec<i64>,
        Vec<f32>,
        Vec<f64>,
        String,
        Bytes,
        Tensor
    );
    known
});

/// Weighs values, without looking at types that own nothing.
fn all<T: Weigh>(values: &[T]) -> usize {
    if std::mem::needs_drop::<T>() {
        values.iter().map(Weigh::weigh).sum()
    } else {
        size_of_val(values)
    }
}

macro_rules! plain {
    ($($type:ty)*) => {$(
        impl Weigh for $type {
            fn weigh(&self) -> usize {
                size_of::<Self>()
            }
        }
    )*};
}

plain!(() u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f16 bf16 f32 f64 bool char &'static str);

macro_rules! weighs {
    ($([$($param:tt)*] $value:ident: $type:ty => $bytes:expr;)*) => {$(
        impl<$($param)*> Weigh for $type {
            fn weigh(&self) -> usize {
                let $value = self;
                $bytes
            }
        }
    )*};
}

weighs! {
    [] text: String => size_of::<Self>() + text.capacity();
    [] bytes: Bytes => size_of::<Self>() + bytes.len();
    [] tensor: Tensor => size_of::<Self>() + tensor.byte_len();
    [T: Weigh] item: Option<T> => item.as_ref().map_or(size_of::<Self>(), Weigh::weigh);
    [T: Weigh, const N: usize] items: [T; N] => all(items);
    [T: Weigh] items: Box<[T]> => size_of::<Self>() + all(items);
    [T: Weigh] items: Arc<[T]> => size_of::<Self>() + all(items);
    [T: Weigh] items: Vec<T> =>
        size_of::<Self>() + (items.capacity() - items.len()) * size_of::<T>() + all(items);
    [K: Weigh, V: Weigh, S] map: HashMap<K, V, S> => size_of::<Self>() + entries(map.iter());
    [K: Weigh, V: Weigh] map: BTreeMap<K, V> => size_of::<Self>() + entries(map.iter());
}

fn entries<'a, K: Weigh + 'a, V: Weigh + 'a>(
    entries: impl Iterator<Item = (&'a K, &'a V)>,
) -> usize {
    entries
        .map(|(key, value)| key.weigh() + value.weigh())
        .sum()
}

macro_rules! tuples {
    ($($name:ident $place:tt),*) => {
        impl<$($name: Weigh),*> Weigh for ($($name,)*) {
            fn weigh(&self) -> usize {
                0 $(+ self.$place.weigh())*
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests;
