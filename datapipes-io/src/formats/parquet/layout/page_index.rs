//! The page index of a file: the places of the pages of each column, and their rows.
//!
//! Layout: <https://parquet.apache.org/docs/file-format/pageindex/>.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::metadata::page_index::PageIndexBuilder;
use parquet::file::page_index::index_reader::{decode_column_index, decode_offset_index};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::ChunkReader;

use super::{Layout, column};
use crate::formats::arrow::guarded;
use crate::formats::parquet::pages::Pages;
use crate::formats::parquet::parquet_error;
use crate::formats::parquet::thrift::Reader;

/// Maximum size in bytes of a dictionary that is read with any page.
const SMALL_DICTIONARY: u64 = 64 << 10;

/// The pages of a column with some rows of a row group.
pub(in crate::formats::parquet) struct ColumnPages {
    pub leaf: usize,
    /// The bytes before the first page; there may be none.
    pub(super) dictionary: Range<u64>,
    pub pages: Vec<PagePlace>,
}

/// Place of a page in the file, and its rows in the row group.
#[derive(Clone)]
pub(in crate::formats::parquet) struct PagePlace {
    pub(super) bytes: Range<u64>,
    pub rows: Range<usize>,
}

impl ColumnPages {
    /// Returns the ranges of the pages, in their order. That of a large dictionary is among them only
    /// with the first page of the column: writers give it up once it is large, so that most pages do
    /// not refer to it.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let first = self.pages.first().map(|page| page.bytes.start);
        let is_read = |range: &Range<u64>| {
            !range.is_empty()
                && (first == Some(range.end) || range.end - range.start <= SMALL_DICTIONARY)
        };
        let dictionary = Some(self.dictionary.clone()).filter(is_read);
        let pages = self.pages.iter().map(|page| page.bytes.clone());
        dictionary.into_iter().chain(pages)
    }

    /// Returns the range of the dictionary, if one of the pages that were read refers to it.
    pub fn needed_dictionary<R: ChunkReader>(&self, read: &R) -> Option<Range<u64>> {
        let refers = |page: &PagePlace| {
            let length = (page.bytes.end - page.bytes.start) as usize;
            let data = read.get_bytes(page.bytes.start, length).ok()?;
            Some(Pages::of(&data).ok()?.by_dictionary)
        };
        // A page that cannot be read refers to nothing here: its error comes when it is decoded.
        let is_needed = self.pages.iter().any(|page| refers(page) == Some(true));
        (is_needed && !self.dictionary.is_empty()).then(|| self.dictionary.clone())
    }
}

impl Layout {
    /// Returns the ranges of the page index: the places of all pages of the wanted columns, and
    /// their statistics if these of whole columns were parsed. `None` if the places are not
    /// complete, or not between the data and the footer.
    pub fn index_ranges(&self) -> Option<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        for group in self.metadata().row_groups() {
            for &leaf in &*self.leaves {
                let chunk = group.column(leaf);
                let data = self.range(chunk).ok()?.end;
                let is_index = |range: &Range<u64>| data <= range.start && range.start < range.end;
                let index = chunk.offset_index_range().filter(is_index)?;
                ranges.push(index);
                ranges.extend(self.statistics_range(chunk).filter(is_index));
            }
        }
        let ends = ranges.iter().map(|range| range.end);
        (ends.max()? <= self.end).then_some(ranges)
    }

    fn statistics_range(&self, chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
        let range = chunk.column_index_range().filter(|_| self.has_statistics);
        range.filter(|range| range.end <= self.end)
    }

    /// Returns the layout with the page index, from its [ranges](Layout::index_ranges). Statistics
    /// that cannot be read are left out.
    pub fn with_index<R: ChunkReader>(&self, source: &R) -> Result<Layout> {
        let metadata = self.metadata();
        let mut pages = PageIndexBuilder::default();
        let columns = self.schema().num_columns();
        pages.allocate_offset_indexes(self.groups(), columns);
        if self.has_statistics {
            pages.allocate_column_indexes(self.groups(), columns);
        }
        for (at, group) in metadata.row_groups().iter().enumerate() {
            for &leaf in &*self.leaves {
                self.add_index(source, group.column(leaf), (at, leaf), &mut pages)?;
            }
        }
        let metadata = metadata.clone().into_builder();
        let metadata = metadata.set_page_index(Some(Arc::new(pages.build())));
        let within = |error| parquet_error(error).within("the page index");
        let reader = guarded("Parquet", || {
            ArrowReaderMetadata::try_new(Arc::new(metadata.build()), ArrowReaderOptions::new())
                .map_err(within)
        })?;
        Ok(Layout {
            reader,
            has_pages: true,
            ..self.clone()
        })
    }

    /// Adds the index of a column of a row group to these pages.
    fn add_index<R: ChunkReader>(
        &self,
        source: &R,
        chunk: &ColumnChunkMetaData,
        (group, leaf): (usize, usize),
        pages: &mut PageIndexBuilder,
    ) -> Result<()> {
        let read = |range: Range<u64>| {
            let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
            let data = source.get_bytes(range.start, length).ok()?;
            check_index(&data)?;
            Some(data)
        };
        let places = chunk.offset_index_range().and_then(read);
        let places = places.ok_or_else(|| wrong_index(chunk))?;
        let places = guarded("Parquet", || {
            decode_offset_index(&places).map_err(parquet_error)
        })
        .map_err(|error| error.within("its page index").within(column(chunk)))?;
        let count = places.page_locations().len() as u64;
        pages.put_offset_index(places, group, leaf);
        let decode = |data: Bytes| {
            let decode = || decode_column_index(&data, chunk.column_type()).map_err(parquet_error);
            guarded("Parquet", decode).ok()
        };
        let statistics = self.statistics_range(chunk).and_then(read).and_then(decode);
        if let Some(known) = statistics.filter(|known| known.num_pages() == count) {
            pages.put_column_index(known, group, leaf);
        }
        Ok(())
    }

    /// Returns the pages with some rows of a row group, for each wanted column. Ranges of rows are
    /// in ascending order.
    pub fn pages(&self, group: usize, rows: &[Range<usize>]) -> Result<Vec<ColumnPages>> {
        let metadata = self.reader.metadata();
        let (all, index) = (self.rows(group), metadata.page_index_for_row_group(group));
        let pages = |&leaf: &usize| {
            let chunk = metadata.row_group(group).column(leaf);
            let range = self.range(chunk)?;
            let places = index.page_locations(leaf);
            let known = places.and_then(|places| checked_places(places, &range, all));
            let known = known.ok_or_else(|| wrong_index(chunk))?;
            let first = known.first().map_or(range.start, |page| page.bytes.start);
            Ok(ColumnPages {
                leaf,
                dictionary: range.start..first,
                pages: with_rows(&known, rows),
            })
        };
        self.leaves.iter().map(pages).collect()
    }
}

/// Returns the stated places of the pages of a column with so many rows, if they are one after another
/// in its range, and have all rows.
fn checked_places(
    places: &[PageLocation],
    range: &Range<u64>,
    rows: usize,
) -> Option<Vec<PagePlace>> {
    let mut known = Vec::with_capacity(places.len());
    let (mut begin, mut first) = (range.start, 0);
    for (at, place) in places.iter().enumerate() {
        let start = u64::try_from(place.offset).ok()?;
        let length = u64::try_from(place.compressed_page_size).ok()?;
        let next = match places.get(at + 1) {
            Some(next) => usize::try_from(next.first_row_index).ok()?,
            None => rows,
        };
        let end = start.checked_add(length).filter(|&end| end <= range.end)?;
        let row = usize::try_from(place.first_row_index).ok()?;
        (start >= begin && row == first && next > first).then_some(())?;
        known.push(PagePlace {
            bytes: start..end,
            rows: first..next,
        });
        (begin, first) = (end, next);
    }
    (first == rows).then_some(known)
}

/// Returns the pages with some of these rows, which are in ascending order, as pages are.
fn with_rows(pages: &[PagePlace], rows: &[Range<usize>]) -> Vec<PagePlace> {
    let mut wanted: Vec<PagePlace> = Vec::new();
    let mut next = 0;
    for rows in rows {
        // A page with rows of several ranges is wanted once.
        let first = pages.partition_point(|page| page.rows.end <= rows.start);
        let end = pages.partition_point(|page| page.rows.start < rows.end);
        wanted.extend_from_slice(&pages[first.max(next)..end.max(next)]);
        next = end.max(next);
    }
    wanted
}

fn wrong_index(chunk: &ColumnChunkMetaData) -> Error {
    Error::corrupt("its page index").within(column(chunk))
}

/// Checks that the lists of a page index are as long as they state: the underlying reader allocates
/// room for the stated number.
fn check_index(index: &[u8]) -> Option<()> {
    Reader::new(index).fields(|_, _, _| Some(false))
}
