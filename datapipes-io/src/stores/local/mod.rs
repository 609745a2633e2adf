//! The local file system: lists files, reads them, and is a store.

pub(super) mod buffers;
mod folder;
mod list;
#[cfg(feature = "mmap")]
mod map;
pub(super) mod read;
mod state;
mod store;

pub(crate) use buffers::{Buffers, MOST_IDLE};
pub use list::ListFiles;
pub(crate) use list::is_absent;
#[cfg(feature = "mmap")]
pub use map::MapFiles;
#[cfg(all(feature = "arrow", feature = "mmap"))]
pub(crate) use map::map_file;
pub use store::Local;
pub(crate) use store::{is_inside, open_file};

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use datapipes::{Context, Error};

/// Returns an error of the operating system that names the path.
pub(super) fn failed(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotADirectory => datapipes::ErrorKind::NotFound,
        kind => Error::io(kind.into()).kind(),
    };
    Error::new(
        kind,
        crate::file::readable(path.as_os_str().as_encoded_bytes()),
    )
    .with_source(error)
}

/// Maximum time to wait for a free file descriptor.
const MAX_DESCRIPTOR_WAIT: Duration = Duration::from_secs(10);

/// Retries an operation that may succeed the second time: once and immediately if the device or a
/// network file system failed, and for some seconds while too many files are open.
pub(super) fn retried<T>(
    cx: &Context,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    // The clock is read only after an error: small files are read in as little time as it takes.
    let mut begun = None;
    let (mut again, mut pause) = (true, Duration::from_millis(1));
    loop {
        match attempt() {
            Err(error) if is_interrupted(&error) => {}
            Err(error)
                if is_crowded(&error)
                    && begun.get_or_insert_with(Instant::now).elapsed() < MAX_DESCRIPTOR_WAIT
                    && !cx.is_cancelled() =>
            {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            Err(error) if is_transient(&error) && std::mem::take(&mut again) => {}
            outcome => return outcome,
        }
    }
}

pub(super) fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

#[cfg(unix)]
fn is_crowded(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(unix)]
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ESTALE))
}

#[cfg(not(unix))]
fn is_crowded(_: &io::Error) -> bool {
    false
}

#[cfg(not(unix))]
fn is_transient(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StaleNetworkFileHandle
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn run(errors: &[i32]) -> (usize, Option<i32>) {
        let mut calls = 0;
        let outcome = retried(&Context::default(), || {
            calls += 1;
            errors
                .get(calls - 1)
                .map_or(Ok(()), |&code| Err(io::Error::from_raw_os_error(code)))
        });
        (calls, outcome.err().and_then(|error| error.raw_os_error()))
    }

    #[test]
    fn row_76_a_failing_device_is_tried_once_more() {
        assert_eq!(run(&[libc::EIO]), (2, None));
        assert_eq!(run(&[libc::ESTALE, libc::EIO]), (2, Some(libc::EIO)));
        assert_eq!(run(&[libc::ENAMETOOLONG]), (1, Some(libc::ENAMETOOLONG)));
    }

    #[test]
    fn row_77_too_many_open_files_are_waited_for() {
        assert_eq!(run(&[libc::EMFILE, libc::ENFILE, libc::EMFILE]), (4, None));
    }

    #[test]
    fn row_78_interruptions_are_invisible() {
        assert_eq!(run(&[libc::EINTR; 5]), (6, None));
    }
}
