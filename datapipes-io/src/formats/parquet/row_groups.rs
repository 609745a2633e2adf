//! Files of a list, read row group by row group.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::{Context, ErrorKind, Result};

use super::file::{ParquetFile, Pieces};
use super::layout::Layout;
use super::row_filter::RowFilter;
use super::{Batches, Parquet};
use crate::FileRef;
use crate::formats::entry::FileEntries;
use crate::formats::framing::Block;
use crate::formats::parts::{ByParts, Parted, Parts};
use crate::stores::Store;
use crate::stores::local::Local;

/// Reads the row groups of files.
pub(super) struct RowGroups<T> {
    settings: Parquet,
    items: Items<T>,
}

/// Makes items of row groups: rows or batches.
pub(super) struct Items<T> {
    /// Returns how many there are in a row group, without a filter, for a number of rows a batch.
    pub count: fn(&Layout, usize, usize) -> u64,
    /// Returns those of batches, with the most bytes that a row may have.
    pub entries: fn(Batches<Pieces>, u64) -> FileEntries<T>,
}

impl<T> Clone for Items<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Items<T> {}

impl<T: Send + 'static> RowGroups<T> {
    pub fn by_parts(settings: &Parquet, items: Items<T>) -> ByParts<T> {
        let settings = settings.clone();
        ByParts::new(RowGroups { settings, items })
    }
}

#[async_trait]
impl<T: Send + 'static> Parted<T> for RowGroups<T> {
    async fn open(&self, file: &FileRef, cx: &Context) -> Result<Option<Arc<dyn Parts<T>>>> {
        let (Some(size), Some((store, key))) = (file.size, place(file)) else {
            return Ok(None);
        };
        let opened = match ParquetFile::open_sized(store, key, size).await {
            // A file that is compressed as a whole, or no Parquet, or a server that has no ranges.
            // Read whole, it gives its error if it has one.
            Err(error) if error.kind() != ErrorKind::Changed && !error.is_transient() => {
                return Ok(None);
            }
            opened => opened?,
        };
        let file = opened.with_settings(&self.settings, cx)?;
        let (layout, filter) = file.layouts().await;
        let groups = 0..file.groups();
        Ok(Some(Arc::new(Opened {
            ranges: groups.map(|group| file.ranges(group)).collect(),
            file,
            layout,
            filter,
            settings: self.settings.clone(),
            items: self.items,
        })))
    }
}

/// Returns the store of a file and its key there; `None` for a local file whose name is no text.
fn place(file: &FileRef) -> Option<(Arc<dyn Store>, String)> {
    match file.store() {
        Some(store) => Some((store.clone(), file.name().into_owned())),
        None => {
            let key = file.path.file_name()?.to_str()?.to_owned();
            Some((Arc::new(Local::new(file.path.parent()?)), key))
        }
    }
}

/// A file whose footer was read.
struct Opened<T> {
    file: ParquetFile,
    layout: Layout,
    filter: Option<RowFilter>,
    /// Ranges that are read for each row group.
    ranges: Vec<Vec<Range<u64>>>,
    settings: Parquet,
    items: Items<T>,
}

#[async_trait]
impl<T: Send + 'static> Parts<T> for Opened<T> {
    fn version(&self) -> Option<&String> {
        self.file.version()
    }
    fn len(&self) -> usize {
        self.ranges.len()
    }
    fn size(&self, part: usize) -> u64 {
        let ranges = self.ranges[part].iter();
        ranges.map(|range| range.end - range.start).sum()
    }
    async fn read(self: Arc<Self>, part: usize) -> Result<Block<T>> {
        let pieces = self.file.read_ranges(self.ranges[part].clone()).await?;
        let (layout, filter) = (self.layout.clone(), self.filter.clone());
        let rows = self.settings.batch_rows;
        let before = (0..part).map(|group| (self.items.count)(&layout, group, rows));
        let (first, weight) = (before.sum(), pieces.weight());
        let (settings, entries) = (self.settings.clone(), self.items.entries);
        let open = move |cx: &Context| {
            let most = layout.most(settings.expansion.allowed(cx));
            let batches = settings.batches_of(pieces, layout, filter, part..part + 1, cx);
            Ok(entries(batches, most))
        };
        Ok(Block::new(first, weight, open))
    }
}

#[cfg(test)]
mod tests;
