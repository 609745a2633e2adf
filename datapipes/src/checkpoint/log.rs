//! Logs of the events at a node, kept short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells the consumer that logs have become long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trim(Arc<AtomicBool>);

impl Trim {
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn done(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A log that asks to be trimmed when it is long, and seldom if that does not help.
#[derive(Debug)]
pub(super) struct Log<T> {
    entries: VecDeque<T>,
    most: usize,
    trim: Trim,
}

pub(super) const LONG: usize = 256;
/// Maximum number of entries of a log.
const LONGEST: usize = 1 << 14;

impl<T> Log<T> {
    pub(super) fn new(trim: Trim) -> Self {
        Log {
            entries: VecDeque::new(),
            most: LONG,
            trim,
        }
    }

    /// Appends an entry. If the log has become too long, `join` merges each entry with the next
    /// one, which makes it coarser. It becomes long if nothing was delivered for a while, or old
    /// entries are still held, so that none could be forgotten.
    pub(super) fn push(&mut self, entry: T, join: impl Fn(&mut T, T)) {
        if self.entries.len() >= LONGEST {
            let mut entries = std::mem::take(&mut self.entries).into_iter();
            while let Some(mut entry) = entries.next() {
                if let Some(next) = entries.next() {
                    join(&mut entry, next);
                }
                self.entries.push_back(entry);
            }
        }
        self.entries.push_back(entry);
        if self.entries.len() > self.most {
            self.most = 2 * self.entries.len();
            self.trim.ask();
        }
    }

    /// Removes entries from the front while `old` returns true.
    pub(super) fn trim(&mut self, mut old: impl FnMut(&VecDeque<T>) -> bool) {
        while old(&self.entries) {
            self.entries.pop_front();
        }
        self.most = (2 * self.entries.len()).max(LONG);
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut T> {
        self.entries.front_mut()
    }

    pub(super) fn iter(&self) -> std::collections::vec_deque::Iter<'_, T> {
        self.entries.iter()
    }
}
