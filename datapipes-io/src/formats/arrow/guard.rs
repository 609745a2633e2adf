//! Guards against panics of the underlying readers at hostile bytes.

use arrow_schema::ArrowError;
use datapipes::{Error, ErrorKind, Result, catch_panic};

/// Runs work of a reader that may panic at malformed files. The panic becomes an error of the file,
/// and nothing is printed. It cannot be caught if panics abort.
pub(in crate::formats) fn guarded<T>(reader: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_panic(work).unwrap_or_else(|panic| {
        let what = format!("the reader of {reader}");
        Err(Error::corrupt(what).with_source(panic))
    })
}

/// Converts an error of Arrow's readers.
pub(super) fn arrow_error(error: ArrowError) -> Error {
    let kind = match &error {
        ArrowError::NotYetImplemented(_) => ErrorKind::Unsupported,
        ArrowError::MemoryError(_) => ErrorKind::Limit,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, "").with_source(error)
}
