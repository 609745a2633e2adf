//! Lists of files with sizes, versions and hashes, to recognize the same files later.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use datapipes::whole_file::read_text;
use datapipes::{Error, Graph, Result};
use futures::future::ready;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::{Get, Meta, Store};
use crate::replace::{MOST, replace};

const FORMAT: &str = "datapipes lock";
const VERSION: u64 = 1;
/// Number of files that are asked for, or read, at once.
const IN_FLIGHT: usize = 32;

/// The files of a listing: names, sizes, versions where the store has them, and hashes if they were
/// asked for. A store that is [locked](crate::StoreExt::locked) to it gives these files only.
///
/// In its file each object has a line of JSON, after a line with the format, its version and the
/// number of files. Lines are in the order of the listing, so the same data give the same file, and
/// two files are compared by `diff`. All is held in memory, some hundred bytes for each file.
///
/// A file has changed if its size is another, or its hash. If the lock has no hash of it, it has
/// changed if its [version](Meta::version) is another. The version of a local file holds its
/// modification time: to lock data that are copied to other machines, ask for hashes. A copied file
/// is then read once more, before its first range is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lockfile {
    /// Pattern of the names.
    pattern: String,
    files: Arc<[LockedFile]>,
}

/// A file of a [`Lockfile`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LockedFile {
    /// Name of the file: its key in the store.
    pub name: String,
    /// Size in bytes, if the store tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Version, if the store has versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// BLAKE3 hash of the content, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
}

/// A difference from a lock.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    /// Name of the file; empty if it is about none.
    pub name: String,
    /// The difference in words, with the name.
    pub text: String,
    /// True if the lock does not have the file.
    pub is_new: bool,
}

/// The first line of a lock file.
#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u64,
    pattern: String,
    files: usize,
}

impl Lockfile {
    /// Lists the files whose names match `pattern`, and asks for sizes and versions where the
    /// listing does not tell them. With `hash` every file is read. Blocks; many requests are in
    /// flight.
    ///
    /// Patterns have the syntax of [`list_files`](crate::list_files()).
    ///
    /// # Errors
    /// `Config` for an invalid pattern, `NotFound` if nothing matches; the errors of the store.
    pub fn of(store: impl Store, pattern: &str, hash: bool) -> Result<Lockfile> {
        let (store, pattern_text) = (Arc::new(store), pattern.to_owned());
        let (from, pattern) = (store.clone(), parse(pattern)?);
        let listed = Graph::from_vec(vec![()]).map_async(move |()| {
            let (store, pattern) = (from.clone(), pattern.clone());
            async move {
                let is_in = |meta: &Meta| pattern.accepts(Path::new(&meta.key));
                let listed = store.list(&pattern.prefix());
                let matching = listed.try_filter(|meta| ready(is_in(meta)));
                let completed = matching.map_ok(|meta| complete(&*store, meta, hash));
                let files = completed.try_buffered(IN_FLIGHT);
                // As a value: the error needs no place in this graph.
                Ok::<_, Error>(files.try_collect::<Vec<LockedFile>>().await)
            }
        });
        let failed = |error: Error| {
            error.within(format_args!(
                "a lock of {pattern_text:?} under {}",
                store.url()
            ))
        };
        let files = listed.collect()?.remove(0).map_err(failed)?;
        if files.is_empty() {
            let message = format!("no object matches {pattern_text:?} under {}", store.url());
            return Err(Error::not_found(message));
        }
        Ok(Lockfile {
            pattern: pattern_text,
            files: files.into(),
        })
    }

    /// Returns true if a lock of the files that match `pattern` would hold a file of this name.
    ///
    /// # Errors
    /// `Config` for an invalid pattern.
    pub fn would_hold(pattern: &str, name: &str) -> Result<bool> {
        Ok(parse(pattern)?.accepts(Path::new(name)))
    }

    /// Returns the pattern of the names.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns the files, in the order of the listing.
    pub fn files(&self) -> &[LockedFile] {
        &self.files
    }

    /// Writes the lock to a file. A concurrent reader sees either the old or the new content.
    /// Blocks.
    ///
    /// # Errors
    /// The errors of the file system, with the path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        replace(path.as_ref(), &self.to_string())
    }

    /// Reads the lock that was [saved](Lockfile::save) to a file. Blocks.
    ///
    /// # Errors
    /// The errors of the file system; `Corrupt` with the number of the line if the file holds no
    /// lock, `Truncated` if it was cut, `Unsupported` for a later version; with the path.
    pub fn load(path: impl AsRef<Path>) -> Result<Lockfile> {
        let path = path.as_ref();
        let text = read_text(path, MOST).map_err(Error::io);
        let lock = text.and_then(|text| Lockfile::from_text(&text));
        lock.map_err(|error| error.within(path.display()))
    }

    fn from_text(text: &str) -> Result<Lockfile> {
        let corrupt = |line: usize, what: String| Error::corrupt(format!("line {line}: {what}"));
        let mut lines = text.lines().zip(1..);
        let (first, _) = lines.next().unwrap_or_default();
        let header: serde_json::Value =
            serde_json::from_str(first).map_err(|_| corrupt(1, "no lock".to_owned()))?;
        if header["format"] != FORMAT {
            return Err(corrupt(1, "no lock".to_owned()));
        }
        if header["version"]
            .as_u64()
            .is_some_and(|version| version > VERSION)
        {
            let what = format!(
                "a lock of version {}; this library reads version {VERSION}",
                header["version"]
            );
            return Err(Error::unsupported(what));
        }
        let header: Header =
            serde_json::from_value(header).map_err(|error| corrupt(1, error.to_string()))?;
        parse(&header.pattern)?;
        let mut files: Vec<LockedFile> = Vec::new();
        let mut names = std::collections::HashSet::new();
        for (line, number) in lines {
            let file: LockedFile = match serde_json::from_str(line) {
                Ok(file) => file,
                Err(_) if files.len() < header.files && !text.ends_with('\n') => break,
                Err(error) => return Err(corrupt(number, error.to_string())),
            };
            let is_hash = |hash: &String| blake3::Hash::from_hex(hash).is_ok();
            if file.blake3.as_ref().is_some_and(|hash| !is_hash(hash)) {
                return Err(corrupt(number, "\"blake3\" is no hash".to_owned()));
            }
            if !names.insert(file.name.clone()) {
                return Err(corrupt(number, format!("{} comes twice", file.name)));
            }
            files.push(file);
        }
        if files.len() != header.files {
            let what = format!("{} of {} files", files.len(), header.files);
            return Err(Error::truncated(what));
        }
        Ok(Lockfile {
            pattern: header.pattern,
            files: files.into(),
        })
    }

    /// Compares the lock with the current files; `files` are in the order of their listing. Returns
    /// each difference in words, by name: files that are missing or have changed, in the order of
    /// the lock, with their places in it, and then files that are new, with their places now.
    pub fn differences(&self, files: &[LockedFile]) -> Vec<String> {
        let differences = self.compare(files).into_iter();
        differences.map(|difference| difference.text).collect()
    }

    /// Compares the lock with the current files.
    pub(super) fn compare(&self, files: &[LockedFile]) -> Vec<Difference> {
        let now: HashMap<&str, &LockedFile> =
            files.iter().map(|file| (&*file.name, file)).collect();
        let then = self.by_name();
        let mut differences = Vec::new();
        for (place, file) in self.files.iter().enumerate() {
            let what = match now.get(&*file.name) {
                None => Some("is missing".to_owned()),
                Some(now) => file.changed(now),
            };
            differences.extend(what.map(|what| Difference {
                name: file.name.clone(),
                text: format!("{} (file {place}) {what}", file.name),
                is_new: false,
            }));
        }
        for (place, file) in files.iter().enumerate() {
            if !then.contains_key(&*file.name) {
                differences.push(Difference {
                    name: file.name.clone(),
                    text: format!("{} (file {place} now) is new", file.name),
                    is_new: true,
                });
            }
        }
        let same_order = || files.iter().map(|file| &file.name).eq(self.names());
        if differences.is_empty() && !same_order() {
            differences.push(Difference {
                name: String::new(),
                text: "the files are listed in another order".to_owned(),
                is_new: false,
            });
        }
        differences
    }

    /// Returns the lock of the files whose names begin with `prefix`.
    pub(super) fn below(&self, prefix: &str) -> Lockfile {
        let files = self
            .files
            .iter()
            .filter(|file| file.name.starts_with(prefix));
        Lockfile {
            pattern: self.pattern.clone(),
            files: files.cloned().collect(),
        }
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.files.iter().map(|file| &file.name)
    }

    /// Returns the files by their names, with their places.
    pub(super) fn by_name(&self) -> HashMap<&str, (usize, &LockedFile)> {
        let files = self.files.iter().enumerate();
        files
            .map(|(place, file)| (&*file.name, (place, file)))
            .collect()
    }
}

impl LockedFile {
    pub(super) fn of(meta: Meta) -> LockedFile {
        LockedFile {
            name: meta.key,
            size: meta.size,
            version: meta.version,
            blake3: None,
        }
    }

    /// Describes how the file has changed; `None` if it has not, as far as both tell.
    pub(super) fn changed(&self, now: &LockedFile) -> Option<String> {
        fn differ<T: PartialEq>(then: &Option<T>, now: &Option<T>) -> bool {
            matches!((then, now), (Some(then), Some(now)) if then != now)
        }
        let shown = |value: &Option<String>| value.clone().unwrap_or_default();
        if differ(&self.size, &now.size) {
            let size = |size: Option<u64>| size.unwrap_or_default();
            let (then, now) = (size(self.size), size(now.size));
            return Some(format!("has {now} bytes, and had {then}"));
        }
        if differ(&self.blake3, &now.blake3) {
            let (then, now) = (shown(&self.blake3), shown(&now.blake3));
            return Some(format!("has the hash {now}, and had {then}"));
        }
        // With a hash the content tells, whenever it was copied.
        (self.blake3.is_none() && differ(&self.version, &now.version)).then(|| {
            let (then, now) = (shown(&self.version), shown(&now.version));
            format!("has the version {now}, and had {then}")
        })
    }
}

/// Prints the content of the lock's file.
impl fmt::Display for Lockfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            pattern: self.pattern.clone(),
            files: self.files.len(),
        };
        let json = |line: serde_json::Result<String>| line.map_err(|_| fmt::Error);
        writeln!(f, "{}", json(serde_json::to_string(&header))?)?;
        for file in &*self.files {
            writeln!(f, "{}", json(serde_json::to_string(file))?)?;
        }
        Ok(())
    }
}

pub(super) fn parse(pattern: &str) -> Result<Arc<Pattern>> {
    let parsed = Pattern::parse(pattern).map(Arc::new);
    parsed.map_err(Error::config)
}

/// Adds what a listing does not tell about a file.
pub(super) async fn complete(store: &dyn Store, mut meta: Meta, hash: bool) -> Result<LockedFile> {
    let mut blake3 = None;
    if hash {
        let object = store.get(&meta.key, Get::default()).await?;
        let key = std::mem::take(&mut meta.key);
        meta = Meta { key, ..object.meta };
        let mut body = object.body;
        let (mut hasher, mut size) = (blake3::Hasher::new(), 0);
        while let Some(piece) = body.next().await.transpose()? {
            hasher.update(&piece);
            size += piece.len() as u64;
        }
        if let Some(told) = meta.size.filter(|&told| told != size) {
            let what = format!("{}: {size} of {told} bytes", store.url_of(&meta.key));
            return Err(Error::changed(what));
        }
        meta.size = Some(size);
        blake3 = Some(hasher.finalize().to_hex().to_string());
    } else if meta.size.is_none() || meta.version.is_none() {
        let key = std::mem::take(&mut meta.key);
        let known = store.head(&key).await?;
        meta = Meta { key, ..known };
    }
    Ok(LockedFile {
        blake3,
        ..LockedFile::of(meta)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::{InMemory, StoreExt};
    use datapipes::ErrorKind;
    use std::fs;

    fn store() -> InMemory {
        InMemory::from_iter([("a/1.tar", "one"), ("a/2.tar", "four"), ("notes", "")])
    }

    #[test]
    fn a_lock_is_the_same_for_the_same_data_and_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.lock");
        for hash in [false, true] {
            let lock = Lockfile::of(store(), "a/*", hash).unwrap();
            assert_eq!(lock.files().len(), 2);
            lock.save(&path).unwrap();
            assert_eq!(Lockfile::load(&path).unwrap(), lock);
            assert_eq!(fs::read_to_string(&path).unwrap(), lock.to_string());
        }
        // The format is kept.
        let text = "{\"format\":\"datapipes lock\",\"version\":1,\"pattern\":\"**\",\"files\":1}\n\
                    {\"name\":\"a\",\"size\":3,\"version\":\"v\"}\n";
        assert_eq!(Lockfile::from_text(text).unwrap().to_string(), text);
    }

    #[test]
    fn a_damaged_file_is_no_lock() {
        let text = Lockfile::of(store(), "**", true).unwrap().to_string();
        for end in 0..text.len() - 1 {
            let error = Lockfile::from_text(&text[..end]).unwrap_err();
            let kinds = [ErrorKind::Corrupt, ErrorKind::Truncated];
            assert!(kinds.contains(&error.kind()), "{end}: {error}");
        }
        let twice = format!("{text}{}\n", text.lines().last().unwrap());
        let error = Lockfile::from_text(&twice).unwrap_err().to_string();
        assert!(error.contains("line 5: notes comes twice"), "{error}");
        let later = text.replacen("\"version\":1", "\"version\":2", 1);
        let error = Lockfile::from_text(&later).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let missing = Lockfile::load("no/such/data.lock").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.to_string().contains("no/such/data.lock"));
    }

    #[test]
    fn row_136_differences_name_the_files_and_their_places() {
        let then = store();
        let lock = Lockfile::of(then.clone(), "**", true).unwrap();
        let differences =
            || lock.differences(Lockfile::of(then.clone(), "**", true).unwrap().files());
        assert!(differences().is_empty());
        then.put("a/1.tar", "ONE");
        then.put("a/0.tar", "");
        then.remove("notes");
        let found = differences();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("a/1.tar (file 0) has the hash "));
        assert_eq!(found[1], "notes (file 2) is missing");
        assert_eq!(found[2], "a/0.tar (file 0 now) is new");
    }

    #[test]
    fn a_copied_folder_is_the_same_by_its_hashes_only() {
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for (name, text) in [("1.txt", "one"), ("2.txt", "two")] {
            fs::write(one.path().join(name), text).unwrap();
            fs::write(two.path().join(name), text).unwrap();
        }
        let open = |dir: &tempfile::TempDir| crate::stores::open(dir.path().to_str().unwrap());
        let lock = |dir, hash| Lockfile::of(open(dir).unwrap(), "*.txt", hash).unwrap();
        assert!(
            lock(&one, true)
                .differences(lock(&two, true).files())
                .is_empty()
        );
        let changed = lock(&one, false).differences(lock(&two, false).files());
        assert!(
            changed[0].starts_with("1.txt (file 0) has the version"),
            "{changed:?}"
        );
        let texts = open(&two).unwrap().locked(&lock(&one, true));
        assert_eq!(texts.list_files("*.txt").collect().unwrap().len(), 2);
    }

    #[test]
    fn nothing_to_lock_is_an_error() {
        let error = Lockfile::of(store(), "b/*", false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let nowhere = crate::stores::open("/nowhere").unwrap();
        let error = Lockfile::of(nowhere, "*", false).unwrap_err().to_string();
        assert!(
            error.starts_with("not found: a lock of \"*\" under file:///nowhere/: "),
            "{error}"
        );
        assert_eq!(
            Lockfile::of(store(), "/b", false).unwrap_err().kind(),
            ErrorKind::Config
        );
    }
}
