//! Stated sizes of the pages of a column, before memory is allocated for them.
//!
//! Layout: <https://parquet.apache.org/docs/file-format/data-pages/>.

use std::sync::Arc;

use datapipes::{Error, Result};
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;

use super::thrift::{I32, Reader, STRUCT};

/// Totals of the pages of a column of a row group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pages {
    /// Size in bytes of all pages, uncompressed.
    pub bytes: u64,
    /// Number of values and nulls, except those of dictionaries.
    pub values: u64,
    /// Number of pages with values.
    pub count: u64,
    /// True if a page has an encoding that stores its number of values inside.
    pub delta: bool,
    /// True if a page has values of the dictionary.
    pub by_dictionary: bool,
}

/// Kinds of pages.
const DATA: i32 = 0;
const DICTIONARY: i32 = 2;
const DATA_V2: i32 = 3;

impl Pages {
    /// Reads the headers of all pages of a column.
    pub fn of(data: &[u8]) -> Result<Pages> {
        let mut pages = Pages::default();
        let mut at = 0;
        for index in 0_u64.. {
            let Some(rest) = data.get(at..).filter(|rest| !rest.is_empty()) else {
                break;
            };
            let corrupt = |what: &str| Error::corrupt(format!("page {index} at byte {at}: {what}"));
            let (header, length) = Header::read(rest).ok_or_else(|| corrupt("its header"))?;
            let sizes = [header.bytes, header.compressed, header.values].map(u64::try_from);
            let [Ok(bytes), Ok(compressed), Ok(values)] = sizes else {
                return Err(corrupt("a negative size"));
            };
            let there = (rest.len() - length) as u64;
            if compressed > there {
                let what = format!("page {index} at byte {at}: {there} of {compressed} bytes");
                return Err(Error::truncated(what));
            }
            match header.kind {
                DATA | DATA_V2 => {
                    pages.values += values;
                    pages.count += 1;
                    pages.by_dictionary |=
                        matches!(header.encoding, PLAIN_DICTIONARY | RLE_DICTIONARY);
                }
                // Each entry takes at least one byte.
                DICTIONARY if values > bytes => {
                    return Err(corrupt(&format!(
                        "a dictionary of {values} values in {bytes} bytes"
                    )));
                }
                _ => (),
            }
            pages.bytes += bytes;
            pages.delta |= matches!(header.encoding, DELTA_LENGTH | DELTA_TEXT);
            at += length + compressed as usize;
        }
        Ok(pages)
    }
}

/// Encodings by numbers of values in the dictionary.
const PLAIN_DICTIONARY: i32 = 2;
const RLE_DICTIONARY: i32 = 8;

/// `DELTA_LENGTH_BYTE_ARRAY` and `DELTA_BYTE_ARRAY`.
const DELTA_LENGTH: i32 = 6;
const DELTA_TEXT: i32 = 7;

#[derive(Default)]
struct Header {
    kind: i32,
    bytes: i32,
    compressed: i32,
    values: i32,
    encoding: i32,
}

impl Header {
    fn read(data: &[u8]) -> Option<(Header, usize)> {
        let mut reader = Reader::new(data);
        let mut header = Header {
            kind: -1,
            bytes: -1,
            compressed: -1,
            ..Header::default()
        };
        reader.fields(|reader, field, kind| {
            let number = match field {
                1 => &mut header.kind,
                2 => &mut header.bytes,
                3 => &mut header.compressed,
                // Data, dictionary, data in the second version.
                5 | 7 | 8 => {
                    let place_of_encoding = if field == 8 { 4 } else { 2 };
                    (kind == STRUCT).then_some(())?;
                    reader.fields(|reader, field, kind| {
                        let number = match field {
                            1 => &mut header.values,
                            field if field == place_of_encoding => &mut header.encoding,
                            _ => return Some(false),
                        };
                        (kind == I32).then_some(())?;
                        *number = reader.i32()?;
                        Some(true)
                    })?;
                    return Some(true);
                }
                _ => return Some(false),
            };
            (kind == I32).then_some(())?;
            *number = reader.i32()?;
            Some(true)
        })?;
        (header.kind >= 0).then(|| (header, reader.at()))
    }
}

/// Checks the encodings that store their number of values inside a page, after its compression: the
/// underlying reader allocates memory for that number at once. Such pages are decompressed twice.
pub(super) fn check_deltas<R: ChunkReader + Clone + 'static>(
    source: &R,
    chunk: &ColumnChunkMetaData,
    column: &ColumnDescriptor,
    rows: usize,
) -> Result<()> {
    let failed = super::parquet_error;
    let mut pages =
        SerializedPageReader::new(Arc::new(source.clone()), chunk, rows, None).map_err(failed)?;
    while let Some(page) = pages.get_next_page().map_err(failed)? {
        if !matches!(
            page.encoding(),
            Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY
        ) {
            continue;
        }
        let values = u64::from(page.num_values());
        let twice = page.encoding() == Encoding::DELTA_BYTE_ARRAY;
        let fits = values_of(&page, column).and_then(|data| {
            let (count, behind) = deltas(data)?;
            let second = if twice {
                deltas(data.get(behind..)?)?.0
            } else {
                0
            };
            Some(count.max(second))
        });
        if fits.is_none_or(|count| count > values) {
            let said = fits.map_or_else(
                || "cannot be read".to_owned(),
                |count| format!("says {count}"),
            );
            let what = format!("a page of {values} values in {} {said}", page.encoding());
            return Err(Error::corrupt(what));
        }
    }
    // The check ensures that the type is a text type where these are allowed.
    match column.physical_type() {
        Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => Ok(()),
        other => Err(Error::corrupt(format!(
            "a column of {other} encoded as texts"
        ))),
    }
}

/// Returns the part of a page after the levels.
fn values_of<'a>(page: &'a Page, column: &ColumnDescriptor) -> Option<&'a [u8]> {
    match page {
        Page::DataPage { buf, .. } => {
            let mut data: &[u8] = buf;
            for level in [column.max_rep_level(), column.max_def_level()] {
                if level > 0 {
                    let length = u32::from_le_bytes(*data.first_chunk()?);
                    data = data.get(4..)?.get(length as usize..)?;
                }
            }
            Some(data)
        }
        Page::DataPageV2 {
            buf,
            def_levels_byte_len,
            rep_levels_byte_len,
            ..
        } => buf
            .get(*def_levels_byte_len as usize..)?
            .get(*rep_levels_byte_len as usize..),
        Page::DictionaryPage { .. } => None,
    }
}

/// Returns the number of values that a `DELTA_BINARY_PACKED` run states, and the position of its
/// end.
fn deltas(data: &[u8]) -> Option<(u64, usize)> {
    let mut reader = Reader::new(data);
    let (block, minis, count) = (reader.varint()?, reader.varint()?, reader.varint()?);
    reader.varint()?;
    let each = block
        .checked_div(minis)
        .filter(|&each| each > 0 && each % 8 == 0)?;
    let mut at = reader.at();
    let mut left = count.saturating_sub(1);
    while left > 0 {
        let rest = data.get(at..)?;
        let mut reader = Reader::new(rest);
        reader.varint()?;
        let widths = rest
            .get(reader.at()..)?
            .get(..usize::try_from(minis).ok()?)?;
        at += reader.at() + widths.len();
        for &width in widths {
            if left == 0 {
                break;
            }
            at = at.checked_add(usize::try_from(each / 8).ok()?.checked_mul(width.into())?)?;
            left = left.saturating_sub(each);
        }
        // The last block may end early; the next check reads the bytes after it.
        (at <= data.len()).then_some(())?;
    }
    Some((count, at))
}
