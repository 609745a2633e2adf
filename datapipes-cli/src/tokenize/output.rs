//! The folder with the token store, and with what a stopped run leaves for the next one.
//!
//! All documents go to one store, since training opens one: a corpus of many small files would
//! otherwise become as many stores. A run saves the loader's checkpoint from time to time, each time
//! after the documents up to it are on the disk. The next run cuts off what was written after the
//! checkpoint, and the loader goes on there: in the middle of a file, with any number of workers.
//! Stores of single files, renamed when they are complete, would lose up to a whole file.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use datapipes::loader::Checkpoint;
use datapipes::{BoxError, ErrorKind};
use datapipes_text::{TokenStore, TokenWidth, TokenWriter};
use serde_json::{Map, Value};

use crate::words::words;

words! {
    /// Format of the token store.
    pub enum Format {
        Megatron = "megatron",
        Datatrove = "datatrove",
    }
}

/// Settings that decide which tokens are written, by name.
pub type Settings = Map<String, Value>;

/// A folder of which no other run writes.
#[derive(Debug)]
pub struct Output {
    folder: PathBuf,
    format: Format,
    width: TokenWidth,
    /// Name of the tokenizer in the metadata of datatrove.
    tokenizer: String,
    /// Holds the lock.
    _lock: File,
}

impl Output {
    /// Opens the folder, which is made if it is not there, for a run with these settings.
    ///
    /// # Errors
    /// Errors of the file system; a folder with a store of other settings, with the differences, or
    /// of another program; a folder in which another run writes.
    pub fn open(
        folder: &Path,
        format: Format,
        vocab: usize,
        tokenizer: &str,
        settings: &Settings,
    ) -> Result<Output, BoxError> {
        let small = vocab <= TokenWidth::U16.max_id() as usize + 1;
        fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
        Ok(Output {
            folder: folder.to_owned(),
            format,
            width: match format {
                _ if small => TokenWidth::U16,
                Format::Megatron => TokenWidth::I32,
                Format::Datatrove => TokenWidth::U32,
            },
            tokenizer: tokenizer.to_owned(),
            _lock: locked(folder, settings)?,
        })
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("corpus.{ending}"))
    }

    /// Returns the name that opens the store.
    pub fn store(&self) -> PathBuf {
        match self.format {
            Format::Megatron => self.folder.join("corpus"),
            Format::Datatrove => self.file("ds"),
        }
    }

    /// Returns the store, if a run has finished it; removes what that run had no time to remove.
    ///
    /// # Errors
    /// Errors of opening and removing.
    pub fn finished(&self) -> Result<Option<TokenStore>, BoxError> {
        let store = match self.format {
            Format::Megatron if self.file("idx").exists() => {
                Some(TokenStore::megatron(self.store())?)
            }
            Format::Datatrove if self.file("ds.index").exists() => {
                Some(TokenStore::datatrove(self.store())?)
            }
            _ => None,
        };
        if store.is_some() {
            remove(&self.file("checkpoint"))?;
            remove(&self.file("bin.ends"))?;
        }
        Ok(store)
    }

    /// Returns the checkpoint of the run before, if it saved one.
    ///
    /// # Errors
    /// Errors of reading it.
    pub fn checkpoint(&self) -> datapipes::Result<Option<Checkpoint>> {
        match Checkpoint::load(self.file("checkpoint")) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            checkpoint => checkpoint.map(Some),
        }
    }

    /// Returns a writer that continues after the first `documents` documents.
    ///
    /// # Errors
    /// Errors of the files, also if they have fewer documents.
    pub fn writer(&self, documents: u64) -> datapipes::Result<TokenWriter> {
        let (store, width) = (self.store(), self.width);
        match self.format {
            Format::Megatron => TokenWriter::resume_megatron(store, width, documents),
            Format::Datatrove => {
                TokenWriter::resume_datatrove(store, width, &*self.tokenizer, documents)
            }
        }
    }

    /// Saves a checkpoint, after the documents before it.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn save(&self, writer: &mut TokenWriter, checkpoint: &Checkpoint) -> datapipes::Result<()> {
        writer.sync()?;
        checkpoint.save(self.file("checkpoint"))
    }

    /// Ends the store; from then on it is [finished](Output::finished).
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(&self, writer: TokenWriter) -> Result<(), BoxError> {
        writer.finish()?;
        remove(&self.file("checkpoint"))
    }
}

/// Returns the names of the files of the run before in a folder, and their revisions, of those that
/// have any. A folder of no run has none.
pub fn revisions(folder: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(folder.join("corpus.json")).unwrap_or_default();
    // Settings that cannot be read are an error where the folder is opened.
    let settings: Settings = serde_json::from_str(&text).unwrap_or_default();
    let files = settings.get("files").and_then(Value::as_array);
    let text = |file: &Value, key: &str| Some(file.get(key)?.as_str()?.to_owned());
    let of = |file| Some((text(file, "name")?, text(file, "revision")?));
    files.into_iter().flatten().filter_map(of).collect()
}

fn remove(path: &Path) -> Result<(), BoxError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(named(path, error)),
        _ => Ok(()),
    }
}

/// Endings of all files of a store and its run, but for those of the settings.
const FILES: [&str; 8] = [
    "bin",
    "bin.ends",
    "idx",
    "ds",
    "ds.ends",
    "ds.index",
    "ds.metadata",
    "checkpoint",
];

/// Opens the file of the settings, which a run locks; compares its own with those of the run
/// before, or saves them.
fn locked(folder: &Path, settings: &Settings) -> Result<File, BoxError> {
    let path = folder.join("corpus.json");
    let help = "choose another --out, or remove the files of corpus there";
    // The settings are the first file that a run writes.
    let mut files = FILES
        .iter()
        .map(|ending| folder.join(format!("corpus.{ending}")));
    let other = files.find(|file| file.exists());
    if let Some(other) = other.as_ref().filter(|_| !path.exists()) {
        let what = "it was not made by this command";
        return Err(format!("{}: {what}; {help}", other.display()).into());
    }
    let mut file = open_locked(folder, &path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)
        .map_err(|error| named(&path, error))?;
    let before: Settings = match serde_json::from_str(&text) {
        Ok(before) => before,
        // New, or of a run that was stopped while it wrote them.
        Err(error) if error.is_eof() && other.is_none() => {
            let text = serde_json::to_vec_pretty(settings)?;
            replace(&mut file, &text).map_err(|error| named(&path, error))?;
            return Ok(file);
        }
        Err(error) => return Err(named(&path, format!("{error}; {help}"))),
    };
    let differences = differences(&before, settings);
    if differences.is_empty() {
        return Ok(file);
    }
    let (folder, what) = (folder.display(), differences.join("\n  "));
    Err(format!("{folder} has a store of other settings; {help}\n  {what}").into())
}

/// Opens a file, which is made if it is not there, and locks it.
fn open_locked(folder: &Path, path: &Path) -> Result<File, BoxError> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).map_err(|error| named(path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(format!("{}: another run writes here", folder.display()).into())
        }
        Err(TryLockError::Error(error)) => Err(named(path, error)),
    }
}

/// Replaces what is in a file, and waits until it is on the disk.
fn replace(file: &mut File, text: &[u8]) -> std::io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(text)?;
    file.sync_all()
}

fn named(path: &Path, error: impl std::fmt::Display) -> BoxError {
    format!("{}: {error}", path.display()).into()
}

/// Returns a line for each setting that differs.
fn differences(before: &Settings, now: &Settings) -> Vec<String> {
    let names = before
        .keys()
        .chain(now.keys().filter(|name| !before.contains_key(*name)));
    let differ = names.filter(|name| before.get(*name) != now.get(*name));
    differ
        .map(|name| match (before.get(name), now.get(name)) {
            // The first file that differs says enough.
            (Some(Value::Array(before)), Some(Value::Array(now))) => {
                let same = before.iter().zip(now).take_while(|(a, b)| a == b).count();
                let number = same + 1;
                difference(
                    &format!("{name}, number {number}"),
                    before.get(same),
                    now.get(same),
                )
            }
            (before, now) => difference(name, before, now),
        })
        .collect()
}

fn difference(name: &str, before: Option<&Value>, now: Option<&Value>) -> String {
    let shown = |value: Option<&Value>| value.map_or("none".to_owned(), Value::to_string);
    format!("{name}: {} then, {} now", shown(before), shown(now))
}
