//! Lists files that match a pattern.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, FileType};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes::{Context, Error, Hints, Item, Items, Result, Source};
use futures::future::maybe_done;
use futures::poll;

use super::{failed, retried};
use crate::FileRef;
use crate::file::readable;
use crate::stores::names::Listed;
use crate::stores::pattern::Pattern;

/// Lists files that match a pattern; see [`list_files`](crate::list_files()).
#[derive(Clone, Debug)]
#[must_use]
pub struct ListFiles {
    root: PathBuf,
    text: String,
    pattern: Result<Arc<Pattern>, String>,
    allow_empty: bool,
}

impl ListFiles {
    /// Returns a source of the files below `root` that match `pattern`.
    pub fn new(root: impl AsRef<Path>, pattern: &str) -> Self {
        let root = match root.as_ref() {
            root if root.as_os_str().is_empty() => Path::new("."),
            root => root,
        };
        let parsed = Pattern::parse(pattern).map(Arc::new);
        ListFiles {
            root: root.to_owned(),
            text: pattern.to_owned(),
            pattern: parsed,
            allow_empty: false,
        }
    }

    /// Makes an empty result no error.
    pub fn allow_empty(self) -> Self {
        ListFiles {
            allow_empty: true,
            ..self
        }
    }
}

/// Number of files after which a step on a blocking thread enters no other folder, in the first step.
pub(super) const FIRST_STEP: usize = 16;
/// The same at most: it grows by a factor of four from step to step.
pub(super) const MAX_STEP: usize = 1024;
/// Number of names that are looked at after that in a folder that has been read: a step more costs two
/// threads more time than these.
const AT_HAND: usize = 256;
/// Maximum time for which a file waits for others to be found with it; checked after each folder.
const MAX_WAIT: Duration = Duration::from_millis(20);

impl Source for ListFiles {
    type Out = FileRef;

    fn open(&self, cx: &Context) -> Items<FileRef> {
        let pattern = match &self.pattern {
            Ok(pattern) => pattern.clone(),
            Err(problem) => return Items::fail(Error::config(problem.clone())),
        };
        let walk = Walk::new(self.root.clone(), pattern, cx.clone());
        let nothing = format!("no file matches {:?} under {:?}", self.text, self.root);
        let (cx, allow_empty) = (cx.clone(), self.allow_empty);
        let mut given = datapipes::or_fail!(Listed::of(&cx));
        Items::generate(async move |out| {
            let find = |mut walk: Walk, step: usize| {
                let found = cx.blocking(move || {
                    let found = walk.step(step);
                    (walk, found)
                });
                Box::pin(maybe_done(found))
            };
            let mut step = FIRST_STEP;
            let mut index = 0;
            let mut finding = find(walk, step);
            loop {
                finding.as_mut().await;
                let found = finding.as_mut().take_output();
                let (walk, found) = match found.expect("it was waited for") {
                    Ok(walked) => walked,
                    Err(error) => return out.emit(Err(error.fatal())).await,
                };
                if found.is_empty() {
                    break;
                }
                step = (step * 4).min(MAX_STEP);
                finding = find(walk, step);
                if step == MAX_STEP {
                    // The next files are found while these are given.
                    let _ = poll!(&mut finding);
                }
                for found in found {
                    let origin = cx.origin(index);
                    index += 1;
                    let found = match found {
                        Ok(file) => {
                            let origin = origin.named(file.name());
                            Ok(Item::new(file, origin))
                        }
                        Err(Missed { name, error }) => Err(error.of(&origin.named(name))),
                    };
                    match given.next(&found) {
                        Ok(true) => out.emit(found).await,
                        Ok(false) => continue,
                        Err(error) => return out.emit(Err(error)).await,
                    }
                    out.snapshot(&cx, || given.kept());
                }
            }
            if cx.is_cancelled() {
                return;
            }
            if let Err(error) = given.end() {
                out.emit(Err(error)).await;
            } else if index == 0 && !allow_empty {
                out.emit(Err(Error::not_found(nothing).fatal())).await;
            }
        })
    }
    /// The snapshot is a digest of the names that were given.
    fn hints(&self) -> Hints {
        let problem = self.pattern.as_ref().err().map(String::as_str);
        let settings = self.root.join(&self.text);
        Hints::any_order()
            .is_resumable(true)
            .never_blocks(true)
            .settings(settings.display())
            .problem(problem)
    }
    fn weigh(&self, file: &FileRef) -> Option<usize> {
        Some(size_of::<FileRef>() + file.path.as_os_str().len())
    }
}

/// A walk through a tree of folders in the order of their paths' bytes.
pub(super) struct Walk {
    root: PathBuf,
    pattern: Arc<Pattern>,
    cx: Context,
    begun: bool,
    /// The open folders, the deepest last.
    folders: Vec<Folder>,
    /// Path of the deepest folder, relative to the root.
    path: PathBuf,
}

struct Folder {
    id: Identity,
    /// Error of reading the folder; comes before its entries.
    error: Option<Error>,
    entries: VecDeque<Name>,
}

pub(super) type Found = Vec<Result<FileRef, Missed>>;

/// A file or a folder that could not be listed.
pub(super) struct Missed {
    /// Name as of [`FileRef::name`]; the name of a folder ends in a slash.
    name: String,
    pub(super) error: Error,
}

impl Walk {
    pub(super) fn new(root: PathBuf, pattern: Arc<Pattern>, cx: Context) -> Self {
        Walk {
            root,
            pattern,
            cx,
            begun: false,
            folders: Vec::new(),
            path: PathBuf::new(),
        }
    }

    /// Returns the next files; none at the end. Once there are `enough`, it enters no other folder, but
    /// adds files that are at hand.
    pub(super) fn step(&mut self, enough: usize) -> Found {
        let mut found = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            self.begin(&mut found);
        }
        let (begun, mut at_hand) = (Instant::now(), AT_HAND);
        while !self.cx.is_cancelled() {
            let Some(folder) = self.folders.last_mut() else {
                break;
            };
            if found.len() >= enough {
                let ends = |entry: &Name| entry.kind == Kind::Folder;
                if at_hand == 0 || folder.entries.front().is_none_or(ends) {
                    break;
                }
                at_hand -= 1;
            }
            let (error, entry) = (folder.error.take(), folder.entries.pop_front());
            found.extend(error.map(|error| Err(self.missed(error))));
            let Some(entry) = entry else {
                self.folders.pop();
                self.path.pop();
                // If matches are rare, they do not wait for each other.
                if !found.is_empty() && begun.elapsed() > MAX_WAIT {
                    break;
                }
                continue;
            };
            match entry.kind {
                Kind::File | Kind::Broken => {
                    self.path.push(&*entry.name);
                    if self.pattern.accepts(&self.path) {
                        found.push(self.file(entry.kind));
                    }
                    self.path.pop();
                }
                Kind::Folder => {
                    if self
                        .pattern
                        .enters(Path::new(&entry.name), self.folders.len() - 1)
                    {
                        self.path.push(&*entry.name);
                        self.enter(&mut found);
                    }
                }
            }
        }
        found
    }

    fn begin(&mut self, found: &mut Found) {
        match retried(&self.cx, || fs::metadata(&self.root)) {
            Err(error) => found.push(Err(self.missed(failed(&self.root, error)))),
            Ok(root) if root.is_dir() => {
                self.path = self.pattern.start.clone();
                // Nothing can match below a folder that does not exist.
                match retried(&self.cx, || fs::metadata(self.root.join(&self.path))) {
                    Err(error) if is_absent(&error) => {}
                    Err(error) => {
                        found.push(Err(self.missed(failed(&self.root.join(&self.path), error))))
                    }
                    Ok(start) if start.is_dir() => self.enter(found),
                    Ok(_) => {}
                }
            }
            Ok(root) if root.is_file() => {
                let name = self.root.file_name().map(Path::new);
                if name.is_some_and(|name| self.pattern.accepts(name)) {
                    found.push(Ok(FileRef::below(&self.root, Path::new(""))));
                }
            }
            Ok(_) => {
                let message = format!("{:?} is neither a folder nor a file", self.root);
                found.push(Err(self.missed(Error::unsupported(message))));
            }
        }
    }

    /// Returns the file at `path`, or the error in its place.
    fn file(&self, kind: Kind) -> Result<FileRef, Missed> {
        let file = FileRef::below(&self.root, &self.path);
        match kind {
            Kind::Broken => match fs::metadata(&file.path) {
                Err(error) => Err(Missed {
                    name: file.name().into_owned(),
                    error: failed(&file.path, error),
                }),
                Ok(_) => Ok(file),
            },
            _ => Ok(file),
        }
    }

    /// Returns the error of the folder at `path`.
    fn missed(&self, error: Error) -> Missed {
        // Without the outermost folder there is no file.
        let error = if self.folders.is_empty() {
            error.fatal()
        } else {
            error
        };
        let folder = match self.path.as_os_str().as_encoded_bytes() {
            b"" => ".".into(),
            folder => readable(folder),
        };
        Missed {
            name: format!("{folder}/"),
            error,
        }
    }

    /// Reads the folder at `path`, and makes it the deepest.
    fn enter(&mut self, found: &mut Found) {
        let path = match self.path.as_os_str().len() {
            0 => self.root.clone(),
            _ => self.root.join(&self.path),
        };
        let folder = match Identity::of(&path) {
            // A link led back to a folder that is being read.
            Ok(id) if self.folders.iter().any(|folder| folder.id == id) => None,
            Ok(id) => match self.read(&path) {
                Ok((entries, error)) => {
                    let error = error.map(|error| failed(&path, error));
                    Some(Folder { id, error, entries })
                }
                Err(error) => {
                    found.push(Err(self.missed(failed(&path, error))));
                    None
                }
            },
            Err(error) => {
                found.push(Err(self.missed(failed(&path, error))));
                None
            }
        };
        match folder {
            Some(folder) => self.folders.push(folder),
            None => {
                self.path.pop();
            }
        }
    }

    /// Returns the entries of a folder, sorted, and the error that ended the reading.
    fn read(&self, path: &Path) -> io::Result<(VecDeque<Name>, Option<io::Error>)> {
        if let Some(name) = &self.pattern.name {
            // Only one name can match, so the folder need not be read.
            let name: &OsStr = name.as_ref();
            let found = retried(&self.cx, || literal(path, name))?;
            let found = found.map(|kind| Name {
                sort: 0,
                name: name.into(),
                kind,
            });
            return Ok((VecDeque::from_iter(found), None));
        }
        let mut names = Vec::new();
        let failure = retried(&self.cx, || {
            each_entry(path, |name, kind| {
                names.extend(kind.map(|kind| Name {
                    sort: 0,
                    name: name.into(),
                    kind,
                }));
                names.len() % 1024 != 0 || !self.cx.is_cancelled()
            })
        })?;
        sort(&mut names);
        Ok((names.into(), failure))
    }
}

/// Calls `give` with each entry of a folder and its kind, `None` for one that is not listed, while it
/// returns true. Returns the error that ended the reading.
///
/// # Errors
/// Fails if the folder cannot be opened.
#[cfg(target_os = "linux")]
fn each_entry(
    folder: &Path,
    mut give: impl FnMut(&OsStr, Option<Kind>) -> bool,
) -> io::Result<Option<io::Error>> {
    use std::mem::MaybeUninit;
    use std::os::unix::ffi::OsStrExt;

    use rustix::fs::{FileType, Mode, OFlags, RawDir, open};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let handle = open(folder, flags, Mode::empty())?;
    // The names are used where the system puts them: `fs::read_dir` makes three allocations for each.
    let mut space = [const { MaybeUninit::uninit() }; 32 << 10];
    let mut entries = RawDir::new(handle, &mut space);
    while let Some(entry) = entries.next() {
        let entry = match entry.map_err(io::Error::from) {
            // Nothing comes from a folder that was removed.
            Err(error) if is_absent(&error) => break,
            Err(error) => return Ok(Some(error)),
            Ok(entry) => entry,
        };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::RegularFile => Some(Kind::File),
            FileType::Directory => Some(Kind::Folder),
            FileType::Symlink => Kind::of_target(&folder.join(name)),
            // Some file systems do not tell.
            FileType::Unknown => match literal(folder, name) {
                Ok(kind) => kind,
                Err(error) => return Ok(Some(error)),
            },
            _ => None,
        };
        if !give(name, kind) {
            break;
        }
    }
    Ok(None)
}

#[cfg(not(target_os = "linux"))]
fn each_entry(
    folder: &Path,
    mut give: impl FnMut(&OsStr, Option<Kind>) -> bool,
) -> io::Result<Option<io::Error>> {
    for entry in fs::read_dir(folder)? {
        match entry.and_then(|entry| Ok((entry.file_type()?, entry))) {
            Ok((kind, entry)) => {
                if !give(&entry.file_name(), Kind::of(kind, || entry.path())) {
                    break;
                }
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Ok(Some(error)),
        }
    }
    Ok(None)
}

/// Returns the kind of the entry of a folder that has this name, if there is one that is listed.
fn literal(folder: &Path, name: &OsStr) -> io::Result<Option<Kind>> {
    let path = folder.join(name);
    match fs::symlink_metadata(&path) {
        Err(error) if is_absent(&error) => Ok(None),
        known => Ok(Kind::of(known?.file_type(), || path)),
    }
}

/// Returns true if there is nothing at a path, or a file where it has a folder.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

struct Name {
    /// Eight bytes of the name after the common prefix of all names in the folder.
    sort: u64,
    name: Box<OsStr>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    File,
    Folder,
    /// A broken link.
    Broken,
}

impl Kind {
    /// Returns `None` for entries that are not listed. Only links need another look.
    fn of(kind: FileType, path: impl FnOnce() -> PathBuf) -> Option<Kind> {
        match () {
            () if kind.is_symlink() => Kind::of_target(&path()),
            () if kind.is_file() => Some(Kind::File),
            () if kind.is_dir() => Some(Kind::Folder),
            () => None,
        }
    }

    /// Returns the kind of what a link leads to.
    fn of_target(link: &Path) -> Option<Kind> {
        match fs::metadata(link) {
            Ok(target) => Kind::of(target.file_type(), || link.to_owned()),
            Err(_) => Some(Kind::Broken),
        }
    }
}

impl Name {
    /// Returns the bytes of the name as in a path: the name of a folder ends in a slash.
    fn bytes(&self) -> impl Iterator<Item = u8> {
        let slash = (self.kind == Kind::Folder).then_some(b'/');
        self.name.as_encoded_bytes().iter().copied().chain(slash)
    }
}

/// Sorts by bytes. Most comparisons compare one number only.
fn sort(names: &mut [Name]) {
    let Some((first, rest)) = names.split_first() else {
        return;
    };
    let first = first.name.as_encoded_bytes();
    let mut common = first.len();
    for name in rest {
        let bytes = name.name.as_encoded_bytes();
        common = first[..common]
            .iter()
            .zip(bytes)
            .take_while(|(a, b)| a == b)
            .count();
    }
    for name in &mut *names {
        name.sort = name
            .bytes()
            .skip(common)
            .chain(std::iter::repeat(0))
            .take(8)
            .fold(0, |n, b| n << 8 | u64::from(b));
    }
    names.sort_unstable_by(|a, b| a.sort.cmp(&b.sort).then_with(|| a.bytes().cmp(b.bytes())));
}

/// Identity of a folder among all others.
#[derive(PartialEq)]
struct Identity(#[cfg(unix)] (u64, u64), #[cfg(not(unix))] PathBuf);

impl Identity {
    #[cfg(unix)]
    fn of(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).map(|folder| Identity((folder.dev(), folder.ino())))
    }

    #[cfg(not(unix))]
    fn of(path: &Path) -> io::Result<Self> {
        fs::canonicalize(path).map(Identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn row_74_a_folder_that_vanishes_is_named_and_the_next_follows() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(folder).join("1"), "").unwrap();
        }
        let pattern = Arc::new(Pattern::parse("**/*").unwrap());
        let mut walk = Walk::new(dir.path().to_owned(), pattern, Context::default());
        assert_eq!(walk.step(1).len(), 1);
        fs::remove_dir_all(dir.path().join("b")).unwrap();
        let found = walk.step(10);
        let Some((Err(Missed { name, error }), [Ok(next)])) = found.split_first() else {
            panic!("{} found", found.len());
        };
        assert_eq!((&**name, &*next.name()), ("b/", "c/1"));
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error
                .to_string()
                .contains(dir.path().join("b").to_str().unwrap())
        );
    }

    #[test]
    fn a_first_step_gives_what_is_at_hand_and_enters_no_other_folder() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, files) in [("a", 300), ("b", 20), ("c", 20)] {
            let folder = dir.path().join(folder);
            fs::create_dir(&folder).unwrap();
            (0..files).for_each(|n| fs::write(folder.join(format!("{n:03}")), "").unwrap());
        }
        let pattern = Arc::new(Pattern::parse("**/*").unwrap());
        let mut walk = Walk::new(dir.path().to_owned(), pattern, Context::default());
        let mut steps = Vec::new();
        loop {
            let found = walk.step(FIRST_STEP);
            if found.is_empty() {
                break;
            }
            steps.push(found.len());
        }
        assert_eq!(steps, [FIRST_STEP + AT_HAND, 28, 20, 20]);
    }
}
