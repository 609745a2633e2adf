//! What the readers underneath do with hostile bytes.

use arrow_schema::ArrowError;
use datapipes::{Error, ErrorKind, Result, catch_panic};

/// Work of a reader that may panic at what a file says. Such a panic is an error about the file,
/// and nothing is printed. Where panics abort, it cannot be caught.
pub(in crate::formats) fn guarded<T>(reader: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_panic(work).unwrap_or_else(|panic| {
        let what = format!("the reader of {reader}");
        Err(Error::new(ErrorKind::Corrupt, what).with_source(panic))
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
