//! What the readers underneath do with hostile bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_schema::ArrowError;
use datapipes::{Error, ErrorKind, Result};

/// Work of a reader that may panic at what a file says. Such a panic is an error about the file; the program's panic hook
/// has told it by then. Where panics abort, it cannot be caught.
pub(in crate::formats) fn guarded<T>(reader: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let what = format!("the reader of {reader}");
        Err(Error::new(ErrorKind::Corrupt, what).with_source(Error::panic(payload)))
    })
}

/// An error of Arrow's readers, sorted.
pub(super) fn arrow_error(error: ArrowError) -> Error {
    let kind = match &error {
        ArrowError::NotYetImplemented(_) => ErrorKind::Unsupported,
        ArrowError::MemoryError(_) => ErrorKind::Limit,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, "").with_source(error)
}
