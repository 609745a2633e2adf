//! Locks without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is behind a lock, also where one who held it panicked: that is told as an error, and the
/// lock has nothing to add.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
