//! The folder of the cache: its owner, its entries, its size, and the insertion and removal of
//! entries.
//!
//! Files: `e-HASH` are entries; `t-NUMBER` are files in progress, each locked by its writer; `used`
//! holds the number of bytes that entries take or will take, and is locked while that number
//! changes; `open` is locked (shared) by all users of the folder. Locks are those of the operating
//! system and end with their process.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use datapipes::lock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

use super::super::Evict;
use super::entry::{Entry, Id};

/// Maximum time for which another process may hold the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which the access time of an entry is stored on disk.
const TOUCH: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    limit: u64,
    /// The file with the number of bytes; `None` if the folder is not writable.
    used: Option<tokio::sync::Mutex<File>>,
    index: Mutex<Index>,
    /// Bytes that were reserved or freed, and are still counted.
    owed: AtomicU64,
    temps: AtomicU64,
    _open: Option<File>,
    #[cfg(test)]
    pub(super) fail: AtomicU64,
}

/// Known entries of the folder. Other processes may have added or removed some.
#[derive(Debug, Default)]
struct Index {
    entries: HashMap<Id, Known>,
    order: BTreeMap<u64, Id>,
    clock: u64,
}

#[derive(Debug)]
struct Known {
    used: u64,
    size: u64,
    touched: SystemTime,
}

impl Index {
    fn put(&mut self, id: Id, size: u64, touched: SystemTime) {
        self.remove(&id);
        self.clock += 1;
        self.order.insert(self.clock, id);
        self.entries.insert(
            id,
            Known {
                used: self.clock,
                size,
                touched,
            },
        );
    }

    fn remove(&mut self, id: &Id) -> Option<Known> {
        let known = self.entries.remove(id)?;
        self.order.remove(&known.used);
        Some(known)
    }

    fn oldest(&self) -> Option<Id> {
        self.order.first_key_value().map(|(_, id)| *id)
    }
}

fn lock_at_once(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Returns options that follow no link and create files for this user alone.
fn private() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "more to set on Unix"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    }
    options
}

/// Creates the folder if it does not exist; fails if other users may write to it.
fn private_folder(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let meta = fs::symlink_metadata(path)?;
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !meta.is_dir() {
        return refuse("not a folder, or a link to one");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if meta.mode() & 0o022 != 0 {
            return refuse("others may write into it");
        }
        // SAFETY: the function has no arguments and cannot fail.
        if meta.uid() != unsafe { libc::geteuid() } {
            return refuse("it belongs to another user");
        }
    }
    Ok(())
}

impl Folder {
    /// Opens the folder: removes stale files, and lists its entries.
    pub(super) fn open(path: &Path, limit: u64) -> io::Result<Folder> {
        private_folder(path)?;
        let lock_file = |name: &str| {
            private()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path.join(name))
        };
        let mut folder = Folder {
            path: path.to_owned(),
            limit,
            used: None,
            index: Mutex::default(),
            owed: AtomicU64::new(0),
            temps: AtomicU64::new(0),
            _open: None,
            #[cfg(test)]
            fail: AtomicU64::new(u64::MAX),
        };
        let (Ok(mut used), Ok(open)) = (lock_file("used"), lock_file("open")) else {
            // Existing entries can be used even if none can be added.
            folder.scan()?;
            return Ok(folder);
        };
        let begun = std::time::Instant::now();
        while !lock_at_once(&used)? {
            if begun.elapsed() > LOCK_TIMEOUT {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "another process holds its lock",
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = folder.scan()?;
        if lock_at_once(&open)? && write_number(&mut used, bytes).is_err() {
            // The disk is full: the next writer counts.
            used.set_len(0)?;
        }
        // The exclusive lock becomes shared; nobody changes anything before `used` is free.
        open.lock_shared()?;
        used.unlock()?;
        folder.used = Some(tokio::sync::Mutex::new(used));
        folder._open = Some(open);
        Ok(folder)
    }

    /// Lists the entries of the folder, oldest first, and returns the bytes of entries and files in
    /// progress. Removes the files in progress of processes that have ended.
    fn scan(&self) -> io::Result<u64> {
        let (mut found, mut writing) = (Vec::new(), 0);
        for file in fs::read_dir(&self.path)? {
            let file = file?;
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(Ok(id)) = name.strip_prefix("e-").map(Id::from_hex) {
                let Ok(meta) = file.metadata() else { continue };
                if meta.is_file() {
                    found.push((
                        meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                        id,
                        meta.len(),
                    ));
                }
            } else if name.starts_with("t-") {
                let stale = private().write(true).open(file.path());
                if stale.is_ok_and(|stale| lock_at_once(&stale).unwrap_or(false)) {
                    let _ = fs::remove_file(file.path());
                } else {
                    writing += file.metadata().map_or(0, |meta| meta.len());
                }
            }
        }
        found.sort_unstable_by_key(|(modified, _, _)| *modified);
        let mut index = lock(&self.index);
        *index = Index::default();
        for (modified, id, size) in &found {
            index.put(*id, *size, *modified);
        }
        Ok(writing + found.iter().map(|(_, _, size)| size).sum::<u64>())
    }

    fn file(&self, id: &Id) -> PathBuf {
        self.path.join(format!("e-{}", id.to_hex()))
    }

    /// Lets a test make the n-th call fail.
    fn step(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.fail.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Loads an entry that is complete and correct. A damaged entry is removed.
    pub(super) async fn load(&self, id: &Id) -> Option<Entry> {
        let path = self.file(id);
        let file = tokio::fs::OpenOptions::from(private().read(true).clone())
            .open(&path)
            .await;
        let mut file = match file {
            Ok(file) => file,
            Err(_) => {
                // Another process may have removed the entry.
                lock(&self.index).remove(id);
                return None;
            }
        };
        let read = self.read(&mut file).await;
        let Some((entry, size)) = read
            .ok()
            .and_then(|(data, size)| Some((Entry::parse(id, data)?, size)))
        else {
            self.remove(id);
            return None;
        };
        let now = SystemTime::now();
        let touched = lock(&self.index)
            .entries
            .get(id)
            .map_or(SystemTime::UNIX_EPOCH, |known| known.touched);
        let due = now.duration_since(touched).is_ok_and(|since| since > TOUCH);
        if due {
            // The next process then knows the access time, too.
            let _ = file.into_std().await.set_modified(now);
        }
        lock(&self.index).put(*id, size, if due { now } else { touched });
        Some(entry)
    }

    async fn read(&self, file: &mut tokio::fs::File) -> io::Result<(Bytes, u64)> {
        let size = file.metadata().await?.len();
        if size > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut data = Vec::with_capacity(size as usize + 1);
        // Reads in one go, not in steps of 2 MiB.
        file.set_max_buf_size(size as usize + 1);
        file.take(size + 1).read_to_end(&mut data).await?;
        Ok((data.into(), size))
    }

    /// Removes an entry.
    pub(super) fn remove(&self, id: &Id) {
        let path = self.file(id);
        // Subtracts the size that was counted, even if somebody truncated the file since.
        let known = lock(&self.index).remove(id).map(|known| known.size);
        let size =
            known.unwrap_or_else(|| fs::symlink_metadata(&path).map_or(0, |meta| meta.len()));
        if fs::remove_file(path).is_ok() {
            self.owed.fetch_add(size, Ordering::Relaxed);
        }
    }

    /// Locks the count of bytes.
    async fn used(&self) -> io::Result<Used<'_>> {
        let read_only = || io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        let file = self.used.as_ref().ok_or_else(read_only)?.lock().await;
        let begun = Instant::now();
        while !lock_at_once(&file)? {
            if begun.elapsed() > LOCK_TIMEOUT {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "another process holds its lock",
                ));
            }
            sleep(Duration::from_millis(1)).await;
        }
        let mut used = Used {
            file,
            bytes: 0,
            written: None,
        };
        let mut number = [0; 8];
        used.file.rewind()?;
        let known = used.file.read_exact(&mut number).is_ok();
        // A scan counts what is there, without what was freed.
        let freed = self.owed.swap(0, Ordering::Relaxed);
        if known {
            let bytes = u64::from_le_bytes(number);
            used.written = Some(bytes);
            used.bytes = bytes.saturating_sub(freed);
        } else {
            used.bytes = self.scan()?;
        }
        Ok(used)
    }

    /// Frees and counts the given number of bytes, and creates a file for them; returns `None` if
    /// no room can be made.
    async fn reserve(
        &self,
        size: u64,
        evict: Evict,
    ) -> io::Result<Option<(Reserved<'_>, Temp, File)>> {
        let mut used = self.used().await?;
        let mut scanned = false;
        while evict == Evict::Oldest && used.bytes + size > self.limit {
            let oldest = lock(&self.index).oldest();
            match oldest {
                Some(id) => {
                    let known = lock(&self.index).remove(&id);
                    // Only entries that existed, and were removed by this process, make room.
                    if fs::remove_file(self.file(&id)).is_ok() {
                        used.bytes = used
                            .bytes
                            .saturating_sub(known.map_or(0, |known| known.size));
                    }
                }
                None if !scanned => {
                    // All entries belong to other processes, or another process has cleaned up.
                    used.bytes = self.scan()?;
                    scanned = true;
                }
                None => break,
            }
        }
        if used
            .bytes
            .checked_add(size)
            .is_none_or(|bytes| bytes > self.limit)
        {
            used.write()?;
            return Ok(None);
        }
        // Nobody looks for stale files while the file is created and locked, since that takes the
        // same lock.
        self.step()?;
        let temp = Temp(self.temp());
        let file = private().write(true).create_new(true).open(&temp.0)?;
        file.lock()?;
        // The file gets its final length, so that processes that count the files include it.
        file.set_len(size)?;
        used.bytes += size;
        let reserved = Reserved { folder: self, size };
        used.write()?;
        Ok(Some((reserved, temp, file)))
    }

    /// Inserts an entry, and replaces the previous one. Returns `false` if there is no room.
    pub(super) async fn store(
        &self,
        id: &Id,
        entry: &Entry,
        evict: Evict,
        sync: bool,
    ) -> io::Result<bool> {
        let head = entry.head(id);
        let size = (head.len() + entry.data.len()) as u64;
        let Some((reserved, temp, file)) = self.reserve(size, evict).await? else {
            return Ok(false);
        };
        let mut file = tokio::fs::File::from_std(file);
        file.set_max_buf_size(8 << 20);
        self.step()?;
        file.write_all(&head).await?;
        file.flush().await?;
        self.step()?;
        file.write_all(&entry.data).await?;
        file.flush().await?;
        self.step()?;
        if sync {
            file.sync_all().await?;
        }
        self.step()?;
        let path = self.file(id);
        let mut used = self.used().await?;
        let before = fs::symlink_metadata(&path).map_or(0, |meta| meta.len());
        fs::rename(&temp.0, &path)?;
        std::mem::forget(reserved);
        lock(&self.index).put(*id, size, SystemTime::now());
        used.bytes = used.bytes.saturating_sub(before);
        used.write()?;
        Ok(true)
    }

    fn temp(&self) -> PathBuf {
        let number = self.temps.fetch_add(1, Ordering::Relaxed);
        let random = RandomState::new().build_hasher().finish();
        self.path
            .join(format!("t-{}-{random:016x}-{number}", std::process::id()))
    }
}

/// The count of bytes, while no other process may change it.
struct Used<'a> {
    file: tokio::sync::MutexGuard<'a, File>,
    bytes: u64,
    /// The number in the file, if it is known.
    written: Option<u64>,
}

impl Used<'_> {
    fn write(&mut self) -> io::Result<()> {
        write_number(&mut self.file, self.bytes)?;
        self.written = Some(self.bytes);
        Ok(())
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        // Room that was made is counted as free, although the write that needed it has failed.
        if self.written.is_some_and(|written| written != self.bytes) {
            let _ = self.write();
        }
        let _ = self.file.unlock();
    }
}

fn write_number(file: &mut File, number: u64) -> io::Result<()> {
    file.rewind()?;
    file.write_all(&number.to_le_bytes())
}

/// Counted room for an entry that is not written yet.
struct Reserved<'a> {
    folder: &'a Folder,
    size: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.folder.owed.fetch_add(self.size, Ordering::Relaxed);
    }
}

/// A file that is removed on drop, unless it was renamed.
struct Temp(PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
