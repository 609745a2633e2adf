//! An item: a value on its way through the graph, and its origin.

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

    /// Returns the origin of child `index` of this item.
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
