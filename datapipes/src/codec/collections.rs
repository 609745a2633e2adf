//! [`Wire`] for lists, arrays, tuples, sets and maps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::{Reader, Wire, Writer, damaged};
use crate::Result;

fn encode_list<'a, T: Wire>(values: &'a [T], to: &mut Writer<'a>) -> Result<()> {
    to.number(values.len() as u64);
    to.inside(|to| T::encode_all(values, to))
}

fn decode_list<T: Wire>(from: &mut Reader<'_>) -> Result<Vec<T>> {
    let count = from.many()?;
    from.inside(|from| T::decode_all(count, from))
}

impl<T: Wire> Wire for Vec<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_list(self, to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_list(from)
    }
}

impl<T: Wire> Wire for Box<[T]> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_list(self, to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_list(from).map(Into::into)
    }
}

impl<T: Wire + Sync> Wire for Arc<[T]> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_list(self, to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_list(from).map(Into::into)
    }
}

/// Encodes the two slices that it is made of.
impl<T: Wire> Wire for VecDeque<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        let (front, back) = self.as_slices();
        encode_list(front, to)?;
        encode_list(back, to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let mut values = VecDeque::from(decode_list(from)?);
        values.extend(decode_list(from)?);
        Ok(values)
    }
}

/// Encodes its values; if there are none, a byte. Decodes into a `Vec` first.
impl<T: Wire, const N: usize> Wire for [T; N] {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        Self::encode_all(std::slice::from_ref(self), to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        if N == 0 {
            <()>::decode(from)?;
        }
        let values = from.inside(|from| T::decode_all(N, from))?;
        values
            .try_into()
            .map_err(|_| damaged(format_args!("less than {N} values")))
    }
    fn encode_all<'a>(values: &'a [Self], to: &mut Writer<'a>) -> Result<()> {
        if N == 0 {
            values.iter().for_each(|_| to.raw(&[0]));
        }
        to.inside(|to| T::encode_all(values.as_flattened(), to))
    }
    fn decode_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>> {
        if N == 0 {
            return (0..count).map(|_| Self::decode(from)).collect();
        }
        let all = count
            .checked_mul(N)
            .ok_or_else(|| damaged(format_args!("{count} arrays of {N} values")))?;
        let mut values = from.inside(|from| T::decode_all(all, from))?.into_iter();
        let mut arrays = Vec::with_capacity(values.len() / N);
        while values.len() >= N {
            arrays.push(std::array::from_fn(|_| {
                values.next().expect("so many are left")
            }));
        }
        Ok(arrays)
    }
}

macro_rules! tuples {
    ($($name:ident $place:tt),*) => {
        impl<$($name: Wire),*> Wire for ($($name,)*) {
            fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
                $(self.$place.encode(to)?;)*
                Ok(())
            }
            fn decode(from: &mut Reader<'_>) -> Result<Self> {
                Ok(($($name::decode(from)?,)*))
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
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

/// Writes the number of entries, and each as a tuple. A key that comes twice is an error when read.
fn encode_map<'a, K: Wire, V: Wire>(
    entries: impl ExactSizeIterator<Item = (&'a K, &'a V)>,
    to: &mut Writer<'a>,
) -> Result<()> {
    to.number(entries.len() as u64);
    to.inside(|to| {
        for (key, value) in entries {
            key.encode(to)?;
            value.encode(to)?;
        }
        Ok(())
    })
}

fn encode_set<'a, T: Wire>(
    values: impl ExactSizeIterator<Item = &'a T>,
    to: &mut Writer<'a>,
) -> Result<()> {
    to.number(values.len() as u64);
    to.inside(|to| values.into_iter().try_for_each(|value| value.encode(to)))
}

/// Reads entries one by one into a collection; the insertion reports an entry that is there
/// already.
fn decode_into<C, T: Wire>(
    from: &mut Reader<'_>,
    make: impl FnOnce(usize) -> C,
    insert: impl Fn(&mut C, T) -> bool,
) -> Result<C> {
    let count = from.count()?;
    // No more is reserved than the bytes could contain: an entry in memory may be much larger than
    // encoded.
    let mut all = make(count.min(from.left() / size_of::<T>().max(1) + 1));
    from.inside(|from| {
        for _ in 0..count {
            if !insert(&mut all, T::decode(from)?) {
                return Err(damaged("a key comes twice"));
            }
        }
        Ok(all)
    })
}

impl<K, V, S> Wire for HashMap<K, V, S>
where
    K: Wire + Eq + Hash,
    V: Wire,
    S: BuildHasher + Default + Send + 'static,
{
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_map(self.iter(), to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let make = |count| HashMap::with_capacity_and_hasher(count, S::default());
        decode_into(from, make, |map, (key, value)| {
            map.insert(key, value).is_none()
        })
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_map(self.iter(), to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_into(
            from,
            |_| BTreeMap::new(),
            |map, (key, value)| map.insert(key, value).is_none(),
        )
    }
}

impl<T, S> Wire for HashSet<T, S>
where
    T: Wire + Eq + Hash,
    S: BuildHasher + Default + Send + 'static,
{
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_set(self.iter(), to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let make = |count| HashSet::with_capacity_and_hasher(count, S::default());
        decode_into(from, make, HashSet::insert)
    }
}

impl<T: Wire + Ord> Wire for BTreeSet<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_set(self.iter(), to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_into(from, |_| BTreeSet::new(), BTreeSet::insert)
    }
}
