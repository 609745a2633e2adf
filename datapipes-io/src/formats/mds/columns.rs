//! The columns of a shard.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result};
use serde::Deserialize;

use super::MdsSample;
use super::encoding::Encoding;

/// The columns as stated by an index and a shard.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Said {
    pub(super) column_names: Vec<String>,
    pub(super) column_encodings: Vec<String>,
    pub(super) column_sizes: Vec<Option<u64>>,
}

/// The columns of a shard, in order.
#[derive(Debug)]
pub(super) struct Columns {
    list: Vec<Column>,
    /// Names of the columns, shared by the samples.
    names: Arc<[String]>,
}

#[derive(Debug)]
struct Column {
    name: String,
    encoding: Encoding,
    size: Option<u64>,
}

impl Columns {
    pub(super) fn new(said: Said) -> Result<Columns> {
        let corrupt = |what: String| Err(Error::corrupt(what));
        let (names, encodings, sizes) = (
            said.column_names.len(),
            said.column_encodings.len(),
            said.column_sizes.len(),
        );
        if names == 0 || names != encodings || names != sizes {
            return corrupt(format!(
                "{names} names, {encodings} encodings and {sizes} sizes of columns"
            ));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = said.column_names.iter().find(|name| !seen.insert(&**name)) {
            return corrupt(format!("two columns {twice:?}"));
        }
        let mut columns = Vec::with_capacity(names);
        let said = said
            .column_names
            .into_iter()
            .zip(said.column_encodings)
            .zip(said.column_sizes);
        for ((name, encoding), size) in said {
            let encoding = Encoding::parse(&encoding)
                .map_err(|error| error.within(format!("column {name:?}")))?;
            if size != encoding.size() {
                let words = |size: Option<u64>| {
                    size.map_or("no fixed size".to_owned(), |size| format!("{size} bytes"))
                };
                let (said, due) = (words(size), words(encoding.size()));
                return corrupt(format!(
                    "column {name:?}: {said} stated, its encoding has {due}"
                ));
            }
            columns.push(Column {
                name,
                size: encoding.size(),
                encoding,
            });
        }
        let names = columns.iter().map(|column| column.name.clone()).collect();
        Ok(Columns {
            list: columns,
            names,
        })
    }

    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.list.iter().map(|column| &*column.name)
    }

    /// Decodes a sample from its bytes.
    pub(super) fn decode(&self, sample: Bytes) -> Result<MdsSample> {
        let there = sample.len() as u64;
        let unsized_columns = self
            .list
            .iter()
            .filter(|column| column.size.is_none())
            .count() as u64;
        let body = unsized_columns * 4;
        if body > there {
            let what = format!("it has {there} bytes, the sizes of its columns {body}");
            return Err(Error::corrupt(what));
        }
        let mut stated = sample[..body as usize].as_chunks::<4>().0.iter();
        let sizes: Vec<u64> = self
            .list
            .iter()
            .map(|column| match column.size {
                Some(size) => size,
                None => stated
                    .next()
                    .map_or(0, |size| u32::from_le_bytes(*size).into()),
            })
            .collect();
        let whole = sizes
            .iter()
            .fold(body, |sum, size| sum.saturating_add(*size));
        if whole != there {
            let what = format!("it has {there} bytes, its columns {whole}");
            return Err(Error::corrupt(what));
        }
        let mut rest = sample.slice(body as usize..);
        let values = self.list.iter().zip(sizes).map(|(column, size)| {
            // The sizes add up to the available bytes.
            let data = rest.split_to(size as usize);
            column
                .encoding
                .decode(data)
                .map_err(|error| error.within(format!("column {:?}", column.name)))
        });
        let values = values.collect::<Result<_>>()?;
        Ok(MdsSample {
            names: self.names.clone(),
            values,
        })
    }
}
