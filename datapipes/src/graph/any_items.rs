//! A stream of items whose type only its edge knows.

use std::any::Any;

use crate::Items;

/// An `Items<T>` whose `T` only the edge knows.
pub(crate) type AnyItems = Box<dyn Any + Send>;

/// Returns the stream with its type.
pub(crate) fn typed<T: Send + 'static>(items: AnyItems) -> Items<T> {
    *items
        .downcast::<Items<T>>()
        .expect("edges are wired by type")
}
