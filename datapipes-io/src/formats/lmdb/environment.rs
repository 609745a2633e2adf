//! Environments of LMDB: each is open once in a process, with any number of handles.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use datapipes::{Error, ErrorKind, Result, lock};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, WithoutTls};
use tokio::sync::Semaphore;

/// A database with keys and values of bytes.
pub(super) type Values = Database<'static, Bytes, Bytes>;

/// Maximum number of concurrent reads. LMDB has slots for 126 readers, of all processes together.
const READERS: usize = 32;
/// Maximum number of open named databases.
const NAMED: u32 = 128;

/// An open environment. LMDB must not open a file twice in one process, so all handles share it.
pub(super) struct Environment {
    pub path: PathBuf,
    /// `None` only during drop.
    env: Option<Env<WithoutTls>>,
    may_read: Arc<Semaphore>,
}

/// The open environments, with their numbers of handles.
struct Shared {
    env: Env<WithoutTls>,
    may_read: Arc<Semaphore>,
    handles: usize,
}

static OPEN: Mutex<BTreeMap<PathBuf, Shared>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<PathBuf, Shared>> {
    lock(&OPEN)
}

impl Environment {
    /// Opens a file, or a folder with a file `data.mdb`.
    pub fn open(path: &Path) -> Result<Self> {
        let path = std::fs::canonicalize(path).map_err(Error::io)?;
        let data = if path.is_dir() {
            path.join("data.mdb")
        } else {
            path.clone()
        };
        // LMDB's message would be less specific, and a file that is too short would end the process
        // when it is read.
        let size = std::fs::metadata(&data).map_err(Error::io)?.len();
        if size == 0 {
            return Err(Error::truncated(
                "an empty file where an LMDB database is due",
            ));
        }
        let mut shared = open();
        let found = match shared.remove(&path) {
            Some(found) => found,
            None => {
                let env = open_env(&path, &data)?;
                let info = env.info();
                let page = u64::from(env.unnamed_database_stat().page_size);
                let want = (info.last_page_number as u64)
                    .saturating_add(1)
                    .saturating_mul(page);
                if size < want {
                    return Err(Error::truncated(format!(
                        "the file has {size} of {want} bytes"
                    )));
                }
                Shared {
                    env,
                    may_read: Arc::new(Semaphore::new(READERS)),
                    handles: 0,
                }
            }
        };
        let (env, may_read) = (Some(found.env.clone()), found.may_read.clone());
        shared.insert(
            path.clone(),
            Shared {
                handles: found.handles + 1,
                ..found
            },
        );
        Ok(Environment {
            path,
            env,
            may_read,
        })
    }

    fn env(&self) -> &Env<WithoutTls> {
        self.env.as_ref().expect("there until it is dropped")
    }

    /// Returns the database of a name, or the unnamed one.
    pub fn database(&self, name: Option<&str>) -> Result<Values> {
        let transaction = self.env().read_txn().map_err(failed)?;
        let found = self
            .env()
            .open_databases_and_commit(transaction, |opener, transaction| {
                let database = opener.open_database::<Bytes, Bytes>(transaction, name)?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(database))
            });
        found.map_err(failed)?.commit().flatten().ok_or_else(|| {
            let name = name.unwrap_or_default();
            Error::not_found(format!("no database is called {name:?}"))
        })
    }

    /// Reads in one transaction, on a blocking thread, as soon as there is a free slot.
    pub async fn read<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&RoTxn<'_, WithoutTls>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let permit = self
            .may_read
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let this = self.clone();
        datapipes::blocking(move || {
            let _permit = permit;
            this.read_here(work)
        })
        .await?
    }

    /// Reads in one transaction, on this thread.
    pub fn read_here<R>(
        &self,
        work: impl FnOnce(&RoTxn<'_, WithoutTls>) -> Result<R>,
    ) -> Result<R> {
        work(&self.env().read_txn().map_err(failed)?)
    }
}

/// The last handle closes the environment, and nobody opens it meanwhile.
impl Drop for Environment {
    fn drop(&mut self) {
        let mut shared = open();
        drop(self.env.take());
        if let Some(found) = shared.get_mut(&self.path) {
            found.handles -= 1;
            if found.handles == 0 {
                shared.remove(&self.path);
            }
        }
    }
}

fn open_env(path: &Path, data: &Path) -> Result<Env<WithoutTls>> {
    let with = |more: EnvFlags| {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.max_dbs(NAMED);
        let mut flags = EnvFlags::READ_ONLY | more;
        if path == data {
            flags |= EnvFlags::NO_SUB_DIR;
        }
        // SAFETY: The file is opened read-only, by nobody else in this process, and the mapping is
        // never written to. The documentation of `Lmdb` requires that other processes change the
        // file by LMDB's own rules only, and that it is valid.
        unsafe {
            options.flags(flags);
            options.open(path)
        }
    };
    let opened = match with(EnvFlags::empty()) {
        // The lock file cannot be created. LMDB works without one on a read-only file system.
        Err(heed::Error::Io(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            with(EnvFlags::NO_LOCK)
        }
        opened => opened,
    };
    opened.map_err(failed)
}

/// Converts an error of LMDB.
pub(super) fn failed(error: heed::Error) -> Error {
    let (kind, transient) = match &error {
        heed::Error::Io(_) => match error {
            heed::Error::Io(error) => return Error::io(error),
            _ => unreachable!("matched above"),
        },
        heed::Error::EnvAlreadyOpened => (ErrorKind::Config, false),
        heed::Error::Mdb(MdbError::ReadersFull) => (ErrorKind::Unavailable, true),
        heed::Error::Mdb(MdbError::NotFound) => (ErrorKind::NotFound, false),
        heed::Error::Mdb(MdbError::VersionMismatch | MdbError::Incompatible) => {
            (ErrorKind::Unsupported, false)
        }
        heed::Error::Mdb(MdbError::MapResized) => (ErrorKind::Changed, false),
        heed::Error::Mdb(MdbError::DbsFull) => (ErrorKind::Limit, false),
        heed::Error::Mdb(_) => (ErrorKind::Corrupt, false),
        _ => (ErrorKind::Io, false),
    };
    let error = Error::new(kind, "").with_source(error.to_string());
    if transient { error.transient() } else { error }
}
