//! Arrow IPC files and streams, as record batches or rows; feature `arrow`.
//!
//! The buffers of a column are not copied: [`column_tensor`] makes a [`Tensor`](datapipes::Tensor)
//! of a column of numbers without a copy.

mod decode;
mod framing;
mod guard;
mod ipc;
mod rows;
mod tensor;

#[cfg(test)]
mod tests;

pub use arrow_array::RecordBatch;
pub use ipc::{ArrowIpc, ArrowRows, IndexedArrowRows};
pub use tensor::column_tensor;

#[cfg(feature = "parquet")]
pub(in crate::formats) use guard::guarded;
pub(in crate::formats) use rows::{row, rows, unique_names};

use std::sync::Arc;

use datapipes::Error;

/// Returns the approximate number of bytes that a batch keeps in memory.
pub(in crate::formats) fn weight(batch: &RecordBatch) -> usize {
    let bytes = |column: &Arc<dyn arrow_array::Array>| {
        column
            .to_data()
            .get_slice_memory_size()
            .unwrap_or_else(|_| column.get_array_memory_size())
    };
    batch.columns().iter().map(bytes).sum::<usize>() + size_of::<RecordBatch>()
}

/// Returns the error of a missing column, which names the existing ones.
pub(in crate::formats) fn no_column<'a>(
    name: &str,
    there: impl IntoIterator<Item = &'a str>,
) -> Error {
    const SHOWN: usize = 32;
    let mut there = there.into_iter();
    let mut names: Vec<String> = there
        .by_ref()
        .take(SHOWN)
        .map(|name| format!("{name:?}"))
        .collect();
    let more = there.count();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    let but = if names.is_empty() {
        "none at all".to_owned()
    } else {
        names.join(", ")
    };
    Error::not_found(format!("no column {name:?}, but {but}"))
}

/// Returns an error in a choice of columns that is independent of the file.
pub(in crate::formats) fn wrong_columns(columns: Option<&[String]>) -> Option<String> {
    columns
        .is_some_and(<[String]>::is_empty)
        .then(|| "columns: none are chosen".to_owned())
}
