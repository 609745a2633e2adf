//! An item: a value on its way through the graph, and its origin.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::Origin;

/// A value on its way through the graph, with its [`Origin`]. Derefs to the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<T> {
    value: T,
    origin: Origin,
}

impl<T> Item<T> {
    /// Makes an item of a value and its origin.
    #[inline]
    pub fn new(value: T, origin: Origin) -> Self {
        Item { value, origin }
    }

    /// Returns the origin of the value.
    #[inline]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the value alone.
    #[inline]
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Returns the value and its origin.
    #[inline]
    pub fn into_parts(self) -> (T, Origin) {
        (self.value, self.origin)
    }

    /// Replaces the value and keeps the origin.
    #[inline]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Item<U> {
        Item {
            value: f(self.value),
            origin: self.origin,
        }
    }

    /// Replaces the value and keeps the origin, or returns an error that names the origin.
    #[inline]
    pub fn try_map<U>(self, f: impl FnOnce(T) -> crate::Result<U>) -> crate::Result<Item<U>> {
        match f(self.value) {
            Ok(value) => Ok(Item {
                value,
                origin: self.origin,
            }),
            Err(error) => Err(error.of(&self.origin)),
        }
    }

    /// Makes an item of another value: child `index` of this item.
    pub fn child<U>(&self, index: u64, value: U) -> Item<U> {
        Item {
            value,
            origin: self.origin.child(index),
        }
    }

    /// Gives the item a readable name.
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        Item {
            origin: self.origin.named(name),
            value: self.value,
        }
    }

    /// Joins several items into one that has the origins of all; `index` counts the groups of a
    /// stream.
    pub fn gather(items: Vec<Item<T>>, index: u64) -> Item<Vec<T>> {
        let mut parts = Vec::with_capacity(items.len());
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            values.push(item.value);
            parts.push(item.origin);
        }
        Item {
            value: values,
            origin: Origin::joined(parts, index),
        }
    }
}

impl<T> Deref for Item<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Item<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Returns a value of type `A`, if a node made one alone or with a label: `A` or `(A, label)`,
/// where the label is a number, a `bool` or a `String`. For values whose type is known only at run
/// time, as in [`replay_with`](crate::DataLoader::replay_with).
///
/// ```
/// use datapipes::labelled;
///
/// assert_eq!(labelled::<f32>(&0.5_f32), Some(&0.5));
/// assert_eq!(labelled::<f32>(&(0.5_f32, 3_u64)), Some(&0.5));
/// assert_eq!(labelled::<f32>(&0.5_f64), None);
/// ```
pub fn labelled<A: Any>(value: &dyn Any) -> Option<&A> {
    value
        .downcast_ref()
        .or_else(|| pair(value).map(|(first, _)| first))
}

/// Returns the fields of a pair of a value and a label.
pub(crate) fn pair<A: Any>(value: &dyn Any) -> Option<(&A, &dyn Any)> {
    macro_rules! with {
        ($($label:ty)*) => {
            $(if let Some((first, label)) = value.downcast_ref::<(A, $label)>() {
                return Some((first, label));
            })*
        };
    }
    with!(u8 u16 u32 u64 usize i8 i16 i32 i64 f32 f64 bool String);
    None
}
