//! Length, times and kind of an open file.

use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// Seconds after its last change from which a file is at rest, by the clock of this machine, which
/// also stamps the files of its devices. The time that counts is that of the inode, too, which no
/// program can set back.
#[cfg(target_os = "linux")]
const REST: i64 = 5;
/// The same where a server may stamp the files by its own clock, which may be late.
#[cfg(target_os = "linux")]
const DISTANT_REST: i64 = 600;

/// Returns the time in seconds, by the clock that stamps files of this machine. Those may be stamped
/// some milliseconds earlier, which [`REST`] exceeds by far.
pub(super) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() as i64)
}

/// Length, time and kind of an open file, as the system tells them.
pub(super) struct State {
    pub size: u64,
    /// Seconds and nanoseconds.
    #[cfg(target_os = "linux")]
    pub modified: (i64, u64),
    #[cfg(not(target_os = "linux"))]
    pub modified: SystemTime,
    /// Second after which it is at rest.
    #[cfg(target_os = "linux")]
    rests: i64,
    /// Reason why the file cannot be read.
    pub wrong: Option<&'static str>,
}

impl State {
    /// Asks by `fstat`, which for a small file in the page cache is noticeably less work than the
    /// `statx` of [`fs::File::metadata`].
    #[cfg(target_os = "linux")]
    pub(super) fn of(handle: &fs::File) -> io::Result<State> {
        use rustix::fs::FileType;
        let stat = rustix::fs::fstat(handle)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let changed = (stat.st_mtime as i64).max(stat.st_ctime as i64);
        let is_on_device = rustix::fs::major(stat.st_dev) != 0;
        let rest = if is_on_device { REST } else { DISTANT_REST };
        Ok(State {
            size: stat.st_size as u64,
            rests: changed.saturating_add(rest),
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            wrong: wrong(kind == FileType::RegularFile, kind == FileType::Directory),
        })
    }

    /// Returns true if nobody has changed the file for some time before `now`, which is a time before it
    /// was opened. It has then not changed since.
    #[cfg(target_os = "linux")]
    pub(super) fn is_at_rest(&self, now: i64) -> bool {
        self.rests < now
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn is_at_rest(&self, _: i64) -> bool {
        false
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn of(handle: &fs::File) -> io::Result<State> {
        let known = handle.metadata()?;
        Ok(State {
            size: known.len(),
            modified: known.modified()?,
            wrong: wrong(known.is_file(), known.is_dir()),
        })
    }
}

fn wrong(is_file: bool, is_folder: bool) -> Option<&'static str> {
    match () {
        () if is_file => None,
        () if is_folder => Some("a folder, not a file"),
        () => Some("not a regular file"),
    }
}
