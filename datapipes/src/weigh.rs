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

impl<T: Weigh> Weigh for Vec<T> {
    fn weigh(&self) -> usize {
        size_of::<Self>() + (self.capacity() - self.len()) * size_of::<T>() + all(self)
    }
}

impl<T: Weigh, const N: usize> Weigh for [T; N] {
    fn weigh(&self) -> usize {
        all(self)
    }
}

impl<T: Weigh> Weigh for Box<[T]> {
    fn weigh(&self) -> usize {
        size_of::<Self>() + all(self)
    }
}

impl<T: Weigh> Weigh for Arc<[T]> {
    fn weigh(&self) -> usize {
        size_of::<Self>() + all(self)
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn weigh(&self) -> usize {
        self.as_ref().map_or(size_of::<Self>(), Weigh::weigh)
    }
}

impl<K: Weigh, V: Weigh, S> Weigh for HashMap<K, V, S> {
    fn weigh(&self) -> usize {
        size_of::<Self>()
            + self
                .iter()
                .map(|(key, value)| key.weigh() + value.weigh())
                .sum::<usize>()
    }
}

impl<K: Weigh, V: Weigh> Weigh for BTreeMap<K, V> {
    fn weigh(&self) -> usize {
        size_of::<Self>()
            + self
                .iter()
                .map(|(key, value)| key.weigh() + value.weigh())
                .sum::<usize>()
    }
}

impl Weigh for String {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.capacity()
    }
}

impl Weigh for Bytes {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.len()
    }
}

impl Weigh for Tensor {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.byte_len()
    }
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
mod tests {
    use super::*;
    use crate::{Context, DataLoader, Graph, Hints, Items, Pipe};

    fn weight<T: Send + 'static>(graph: Graph<T>) -> usize {
        let items = graph.clone().collect().unwrap();
        graph.weigher()(&items)
    }

    #[test]
    fn values_that_tell_by_their_type_are_weighed_without_a_word() {
        let one = Graph::range(0..1);
        assert!(weight(one.clone().map(|_| vec![0u8; 5000])) >= 5000);
        assert!(weight(one.clone().map(|_| "x".repeat(5000))) >= 5000);
        assert!(weight(one.clone().map(|_| Bytes::from(vec![0; 5000]))) >= 5000);
        assert!(weight(one.clone().map(|n| (vec![0f32; 5000], n))) >= 20_000);
        assert!(weight(one.clone().map(|n| (n as i64, vec![0u8; 5000]))) >= 5000);
        assert!(
            weight(
                one.clone()
                    .map(|_| vec![0u8; 5000])
                    .filter(|_| true)
                    .batch(2)
                    .map(|batch| batch)
            ) >= 5000
        );
        assert_eq!(weight(one.clone().map(|n| [n; 4])), 32);
        assert!(weight(Graph::from_vec(vec![vec![0u8; 5000]])) >= 5000);
    }

    #[test]
    fn explain_names_steps_whose_bytes_are_unknown() {
        let graph = Graph::range(0..9)
            .map(|n| Mine(Box::new(n)))
            .named("mine")
            .shuffle(3);
        let explain = |graph| {
            DataLoader::builder(graph)
                .workers(2)
                .build()
                .unwrap()
                .explain()
        };
        let said = explain(graph.clone());
        let line = said.lines().find(|line| line.contains("mine")).unwrap();
        assert!(
            line.contains("bytes unknown: `weighed` tells them"),
            "{said}"
        );
        let said = explain(graph.weighed(|_| 8).map(|mine| mine).weighed(|_| 8));
        assert!(
            said.lines()
                .find(|line| line.contains("map"))
                .is_some_and(|line| !line.contains("unknown")),
            "{said}"
        );
        let known = DataLoader::builder(Graph::range(0..9).map(|n| vec![n]))
            .workers(2)
            .build()
            .unwrap();
        assert!(!known.explain().contains("unknown"), "{}", known.explain());
    }

    struct Mine(#[expect(dead_code, reason = "it only has to own something")] Box<u64>);

    /// Returns true if the plan says that bytes are unknown: before the first epoch, and after it.
    fn says(graph: Graph<Mine>) -> [bool; 2] {
        let loader = DataLoader::builder(graph.named("step")).workers(2);
        let loader = loader.build().unwrap();
        let says = || {
            loader
                .explain()
                .lines()
                .any(|line| line.contains("bytes unknown"))
        };
        let before = says();
        assert!(loader.epoch(0).blocking().all(|item| item.is_ok()));
        [before, says()]
    }

    #[test]
    fn explain_names_every_step_of_a_function_whose_bytes_are_unknown() {
        let mine = |n| Mine(Box::new(n));
        let numbers = || Graph::range(0..9);
        assert_eq!(
            says(numbers().map_init(|| (), move |(), n| mine(n))),
            [true; 2]
        );
        assert_eq!(
            says(numbers().scan(0, move |_, n| Some(mine(n)))),
            [true; 2]
        );
        assert_eq!(says(numbers().flat_map(move |n| [mine(n)])), [true; 2]);
        assert_eq!(
            says(numbers().map_async(move |n| async move { crate::Ok(mine(n)) })),
            [true; 2]
        );
        assert_eq!(
            says(Graph::from_iter_with(move || (0..9).map(mine))),
            [true; 2]
        );
        let collated = numbers()
            .batch(3)
            .collate_with(move |all| crate::Ok(mine(all[0])));
        assert_eq!(says(collated), [true; 2]);
        // A batch of items whose weight is unknown, all in one segment.
        let batches = numbers().map_init(|| (), move |(), n| mine(n)).batch(3);
        let plan = DataLoader::builder(batches)
            .workers(2)
            .build()
            .unwrap()
            .explain();
        assert!(plan.contains("bytes unknown"), "{plan}");
    }

    /// Makes items that own something; `WEIGHS` if it tells their weight.
    struct Own<const WEIGHS: bool>;

    impl<const WEIGHS: bool> Pipe<u64> for Own<WEIGHS> {
        type Out = Mine;

        fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Mine> {
            input.each(cx, |item| Some(Ok(item.map(|n| Mine(Box::new(n))))))
        }
        fn hints(&self) -> Hints {
            Hints::shardable()
        }
        fn weigh(&self, _: &Mine) -> Option<usize> {
            WEIGHS.then_some(16)
        }
    }

    #[test]
    fn explain_finds_that_a_pipe_of_ones_own_does_not_weigh() {
        assert_eq!(says(Graph::range(0..9).pipe(Own::<false>)), [false, true]);
        assert_eq!(says(Graph::range(0..9).pipe(Own::<true>)), [false; 2]);
    }

    #[test]
    fn joined_items_weigh_what_their_parts_do() {
        let heavy = || {
            Graph::range(0..1)
                .map(|n| Mine(Box::new(n)))
                .weighed(|_| 5000)
        };
        let plain = || Graph::range(0..1);
        assert!(weight(heavy().zip(plain())) >= 5000);
        assert!(weight(plain().zip3(heavy(), heavy())) >= 10_000);
        assert!(weight(heavy().enumerate()) >= 5000);
        assert!(weight(Graph::concat([heavy(), heavy()])) >= 10_000);
        assert!(weight(Graph::mux([heavy(), heavy()])) >= 10_000);
    }
}
