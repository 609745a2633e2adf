//! Connections to a database file: several to read, one to write, opened when needed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapipes::{Error, ErrorKind, Result, lock};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::Semaphore;
use url::Url;

/// A database file and the connections to it. Its errors do not name the file: the callers add more
/// context.
#[derive(Debug)]
pub(super) struct Connections {
    pub path: PathBuf,
    /// URL without the table's name.
    pub url: String,
    pub readers: usize,
    /// Time for which a query waits for the locks of others.
    pub busy_timeout: Duration,
    may_read: Arc<Semaphore>,
    may_write: Arc<Semaphore>,
    /// Closed before the connection that writes, which then removes the log.
    idle: Mutex<Vec<Connection>>,
    writer: Mutex<Option<Connection>>,
}

impl Connections {
    pub(super) fn new(path: PathBuf, url: String, readers: usize, busy_timeout: Duration) -> Self {
        let readers = readers.max(1);
        Connections {
            path,
            url,
            readers,
            busy_timeout,
            may_read: Arc::new(Semaphore::new(readers)),
            may_write: Arc::new(Semaphore::new(1)),
            idle: Mutex::default(),
            writer: Mutex::default(),
        }
    }

    /// Reads, on a blocking thread, as soon as a connection is free.
    pub(super) async fn read<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let this = self.clone();
        blocking_with_permit(&self.may_read, move || {
            let idle = lock(&this.idle).pop();
            let connection = idle.map_or_else(|| this.open_to_read(), Ok)?;
            let outcome = work(&connection);
            // A connection that failed may be unusable.
            if outcome.is_ok() {
                lock(&this.idle).push(connection);
            }
            outcome
        })
        .await
    }

    /// Writes, on a blocking thread, one after another.
    pub(super) async fn write<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Connection) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let this = self.clone();
        blocking_with_permit(&self.may_write, move || {
            let mut writer = lock(&this.writer);
            if writer.is_none() {
                *writer = Some(this.open(OpenFlags::SQLITE_OPEN_READ_WRITE)?);
            }
            work(writer.as_mut().expect("opened above"))
        })
        .await
    }

    /// Opens a connection for reading. If the folder is read-only, SQLite cannot create the files
    /// that its log needs; if there is no log, the file is complete without it, and is opened as
    /// immutable.
    pub(super) fn open_to_read(&self) -> Result<Connection> {
        let connection = self.open(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let look = |connection: &Connection| {
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
        };
        match look(&connection) {
            Ok(()) => Ok(connection),
            Err(error)
                if matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)
                ) && !self.has_log() =>
            {
                let url = Url::from_file_path(&self.path).map_err(|()| failed(error))?;
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
                    | OpenFlags::SQLITE_OPEN_URI
                    | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let connection = Connection::open_with_flags(format!("{url}?immutable=1"), flags)
                    .and_then(|connection| look(&connection).map(|()| connection))
                    .map_err(failed)?;
                Ok(connection)
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn has_log(&self) -> bool {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        std::fs::metadata(log).is_ok_and(|log| log.len() > 0)
    }

    pub(super) fn open(&self, flags: OpenFlags) -> Result<Connection> {
        if !flags.contains(OpenFlags::SQLITE_OPEN_CREATE) {
            // This error is more specific than that of SQLite.
            let file = std::fs::metadata(&self.path).map_err(Error::io)?;
            if !file.is_file() {
                return Err(Error::unsupported("not a file"));
            }
        }
        let open = || {
            let connection =
                Connection::open_with_flags(&self.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
            connection.busy_timeout(self.busy_timeout)?;
            connection.set_prepared_statement_cache_capacity(32);
            // After a power failure the last writes may be missing, but the remaining data are
            // consistent.
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            Ok(connection)
        };
        open().map_err(failed)
    }

    #[cfg(test)]
    pub(super) fn with_writer(&self, f: impl FnOnce(&Connection)) {
        let mut writer = lock(&self.writer);
        if writer.is_none() {
            *writer = Some(self.open(OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap());
        }
        f(writer.as_ref().unwrap());
    }
}

/// Runs work on a blocking thread, as soon as there is a permit.
async fn blocking_with_permit<R: Send + 'static>(
    permits: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<R> {
    let permit = permits
        .clone()
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    datapipes::blocking(move || {
        let _permit = permit;
        work()
    })
    .await?
}

/// Converts an error of SQLite by its code.
pub(super) fn failed(error: rusqlite::Error) -> Error {
    let words = error.to_string();
    let (kind, transient) = match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed,
        ) => (ErrorKind::Unavailable, true),
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => (ErrorKind::Denied, false),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (ErrorKind::Corrupt, false),
        Some(ErrorCode::TooBig) => (ErrorKind::Limit, false),
        Some(ErrorCode::TypeMismatch | ErrorCode::ConstraintViolation) => (ErrorKind::Shape, false),
        Some(ErrorCode::SchemaChanged) => (ErrorKind::Changed, false),
        Some(_) if words.contains("no such table") || words.contains("no such column") => {
            (ErrorKind::NotFound, false)
        }
        Some(_) => (ErrorKind::Io, false),
        None => (ErrorKind::Shape, false),
    };
    let error = Error::new(kind, "").with_source(error);
    if transient { error.transient() } else { error }
}
