//! FileEntries of a file, and the place of each.

use std::sync::Arc;

use datapipes::{Children, Context, Error, Item, Origin, Result};

/// An iterator over the entries of a file. It is not polled again after an [`FileEntry::Broken`].
pub type FileEntries<T> = Box<dyn Iterator<Item = FileEntry<T>> + Send>;

/// An entry of a file.
#[derive(Debug)]
pub enum FileEntry<T> {
    /// An item, and its name if it has one.
    Item(Option<Arc<str>>, T),
    /// An item that cannot be read; others may follow.
    Bad(Option<Arc<str>>, Error),
    /// An error after which nothing more can be read.
    Broken(Error),
    /// A number of items that are left out on purpose: they are counted as dropped, and the items
    /// after them have the origins that they would have with them.
    Skip(u64),
}

impl<T> FileEntry<T> {
    /// Returns an item without a name.
    pub fn item(value: T) -> Self {
        FileEntry::Item(None, value)
    }

    /// Converts a result into an item without a name, or an item that cannot be read, after which
    /// others may follow.
    pub fn from_result(result: Result<T>) -> Self {
        match result {
            Ok(value) => FileEntry::item(value),
            Err(error) => FileEntry::Bad(None, error),
        }
    }

    /// Adds the origin: entry `next` of a file, which is then that of the next one. `None` if it
    /// has no item; items left out are counted.
    pub(super) fn placed(
        self,
        file: &Origin,
        children: &Children,
        next: &mut u64,
        cx: &Context,
    ) -> Option<Result<Item<T>>> {
        let index = *next;
        *next = index.saturating_add(if let FileEntry::Skip(items) = self {
            items
        } else {
            1
        });
        let place = |name: Option<Arc<str>>| match name {
            Some(name) => children.at(index).named(name),
            None => children.at(index),
        };
        Some(match self {
            FileEntry::Item(name, value) => Ok(Item::new(value, place(name))),
            FileEntry::Bad(name, error) => Err(error.of(&place(name))),
            FileEntry::Broken(error) => Err(error.of(file)),
            FileEntry::Skip(items) => {
                cx.count_dropped(items);
                return None;
            }
        })
    }
}
