//! Writes which files a data set has, and compares it with that later.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use datapipes::BoxError;
use datapipes_io::stores::{self, Lockfile, Store, StoreExt};

use crate::args::{Args, print, refuse};

const USAGE: &str = "datapipes lock URL_OR_PATH LOCK [--pattern PATTERN] [--digest] [--check]

Writes the names, sizes and versions of the files of a folder, bucket, web folder or repository to
the file LOCK: a line of JSON for each, in the order of the listing, after a line for all. The same
files give the same lock. A program that opens the data by `store.locked(&Lockfile::load(LOCK)?)`, and
the commands with --locked LOCK, refuse files that are missing, new or changed since.

  --pattern PATTERN  only files with these names ['**'], such as 'train/**/*.tar'
  --digest           reads each file, for its BLAKE3 hash; without hashes a local file that is
                     copied counts as changed
  --check            writes nothing; prints the differences from LOCK, and exits with 1 if there are
                     any. Files are read if LOCK has their hashes";

/// Opens the store that a URL or path names; with a lock, as it was when it was locked.
///
/// # Errors
/// The errors of [`stores::open`].
pub fn open(place: &str, lock: Option<&Lockfile>) -> datapipes::Result<Arc<dyn Store>> {
    let store = stores::open(place)?;
    Ok(match lock {
        Some(lock) => Arc::new(store.locked(lock)),
        None => store,
    })
}

/// Returns the lock that `--locked` names, if it was given.
///
/// # Errors
/// The errors of [`Lockfile::load`].
pub fn locked(args: &Args) -> datapipes::Result<Option<Lockfile>> {
    args.get::<PathBuf>("locked")
        .map(Lockfile::load)
        .transpose()
}

/// Runs the command with these arguments.
pub fn main(given: impl Iterator<Item = OsString>) -> Result<ExitCode, BoxError> {
    let args = Args::of(given, "digest check", "pattern", USAGE);
    let [place, path] = &args.words[..] else {
        refuse("a folder and a lock file are needed", USAGE)
    };
    let path = PathBuf::from(path);
    if args.has("check") && (args.has("digest") || args.has("pattern")) {
        refuse("--check takes pattern and hashes from the lock", USAGE)
    }
    let done = match args.has("check") {
        true => check(place, &path),
        false => write(place, &path, args.get("pattern"), args.has("digest")),
    };
    Ok(if done? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn write(place: &str, path: &Path, pattern: Option<String>, hash: bool) -> Result<bool, BoxError> {
    let pattern = pattern.unwrap_or_else(|| "**".to_owned());
    // Before the data are read, which may take hours.
    probe(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let store = stores::open(place)?;
    if let Some(name) = name_in(&*store, path)
        && Lockfile::would_hold(&pattern, &name)?
    {
        let path = path.display();
        return Err(format!(
            "{path} would be one of the files that it locks: write it to a place outside of {place}, or \
             give a --pattern that leaves it out"
        )
        .into());
    }
    let lock = Lockfile::of(store, &pattern, hash)?;
    lock.save(path)?;
    print(format!(
        "{} files in {}\n",
        lock.files().len(),
        path.display()
    ))?;
    Ok(true)
}

/// Fails if no file can be written to the path.
fn probe(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    let folder = folder_of(path);
    // The error of the file would name it.
    std::fs::metadata(folder)?;
    tempfile::NamedTempFile::new_in(folder).map(drop)
}

/// Returns the name that a file at the path has in the store, if the store is a folder above it.
fn name_in(store: &dyn Store, path: &Path) -> Option<String> {
    let folder = store.folder()?.canonicalize().ok()?;
    let path = folder_of(path).canonicalize().ok()?.join(path.file_name()?);
    let name = path.strip_prefix(folder).ok()?.to_str()?;
    Some(name.replace(std::path::MAIN_SEPARATOR, "/"))
}

pub fn folder_of(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Prints the differences; returns true if there are none.
fn check(place: &str, path: &Path) -> Result<bool, BoxError> {
    let lock = Lockfile::load(path)?;
    let hash = lock.files().iter().any(|file| file.blake3.is_some());
    let now = Lockfile::of(stores::open(place)?, lock.pattern(), hash)?;
    let differences = lock.differences(now.files());
    let lines = differences
        .iter()
        .map(|difference| format!("{difference}\n"));
    print(lines.collect::<String>())?;
    Ok(differences.is_empty())
}
