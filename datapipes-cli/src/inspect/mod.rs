//! Prints the content of files, one JSON object for each item: of an archive, a shard of samples,
//! records, arrays, rows, pictures, documents of a token store.
//!
//! `datapipes inspect URL_OR_PATH` recognizes files by name and content; a
//! folder is read file by file, or as a data set if it is one. `--as` selects the view: `bytes`,
//! `members`, `samples`, `lines`, `records`, `arrays`, `rows` or `images`. `--limit N` ends after N
//! items. An item that cannot be read is an object with `error` in its place, and the exit status
//! is 1; with `--skip-errors` the program continues after it. `--dump DIR` writes each array or
//! picture as an `.npy` file, `--pack OUT.tar` the samples as a new shard.

pub mod files;
mod graphs;
pub mod kind;
mod sets;
pub mod shown;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use datapipes::whole_file::check_regular;
use datapipes::{BoxError, DataLoader, OnError};
use datapipes_io::formats::SampleWriter;
use datapipes_io::stores::Lockfile;
use serde_json::json;
use tempfile::NamedTempFile;

use self::kind::As;
use self::shown::with_errors;
use crate::args::{Args, refuse};
use crate::lock::{folder_of, locked};

const USAGE: &str = "datapipes inspect URL_OR_PATH [--as auto|bytes|members|samples|lines|records|arrays|rows|images] [--limit N] \
                     [--skip-errors] [--tokenizer FILE] [--dump DIR] [--pack OUT.tar] [--locked LOCK]

Prints a JSON object for each item of a file, or of all files of a folder. Names and first bytes tell
what a file is; of unknown files it prints size and hash.

  --as VIEW       another view of the files
  --limit N       ends after N items
  --skip-errors   continues after an item that cannot be read, and exits with 0
  --tokenizer FILE
                  of a token store, shows the text of documents instead of their ids
  --dump DIR      also writes each array or picture to DIR as an .npy file
  --pack OUT.tar  also writes the samples as a new shard
  --locked LOCK   refuses files that are missing, new or changed since `datapipes lock` wrote LOCK;
                  names are compared below the folder that is inspected, or that holds the file";

/// Runs the command with these arguments.
pub fn main(given: impl Iterator<Item = OsString>) -> Result<ExitCode, BoxError> {
    let args = Args::of(
        given,
        "skip-errors",
        "as limit dump pack locked tokenizer",
        USAGE,
    )
    .at_most(1, USAGE);
    let Some(place) = args.words.first() else {
        refuse("what is to be inspected is missing", USAGE)
    };
    let seen_as = args.get("as").unwrap_or(As::Auto);
    if args.has("pack") && !matches!(seen_as, As::Auto | As::Samples) {
        refuse("only samples are packed", USAGE)
    }
    let limit = args.get("limit").unwrap_or(u64::MAX);
    let outputs = Outputs {
        dump: args.get("dump"),
        pack: args.get("pack"),
    };
    let lock = locked(&args)?;
    let skips = args.has("skip-errors");
    let tokenizer: Option<String> = args.get("tokenizer");
    match run(
        place,
        lock.as_ref(),
        seen_as,
        limit,
        skips,
        tokenizer,
        &outputs,
    ) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(error) => Err(error),
    }
}

/// Additional outputs.
struct Outputs {
    dump: Option<PathBuf>,
    pack: Option<PathBuf>,
}

/// Runs the graph; returns true if everything could be read.
fn run(
    place: &str,
    lock: Option<&Lockfile>,
    seen_as: As,
    limit: u64,
    skips: bool,
    tokenizer: Option<String>,
    outputs: &Outputs,
) -> Result<bool, BoxError> {
    let mut printed = Printed::new();
    let seen_as = if outputs.pack.is_some() && seen_as == As::Auto {
        As::Samples
    } else {
        seen_as
    };
    let found = files::find(place, lock, seen_as).and_then(|(found, errors)| {
        let tokenizer = tokenizer
            .map(|place| files::tokenizer(&place))
            .transpose()?;
        let tokenizer = tokenizer.map(|(_, tokenizer)| tokenizer);
        graphs::graph(found, seen_as, outputs.dump.is_some(), tokenizer)
            .map(|graph| (graph, errors))
    });
    let (graph, unlisted) = match found {
        Ok(found) => found,
        Err(error) => {
            printed.line(&failure(&error, place))?;
            printed.end()?;
            return Ok(false);
        }
    };
    let mut dump = outputs.dump.as_deref().map(Dump::new).transpose()?;
    let mut pack = outputs.pack.as_deref().map(Pack::new).transpose()?;

    // An error is an item here, so that it is printed in its place.
    let loader = DataLoader::builder(graph.through(with_errors))
        .on_error(OnError::fail())
        .build()?;
    let (mut shown, mut failed) = (0, 0_u64);
    for item in unlisted
        .into_iter()
        .map(|error| Ok(Err(error)))
        .chain(loader.epoch(0).blocking())
    {
        let is_wanted = printed.is_read || dump.is_some() || pack.is_some();
        if shown == limit || !is_wanted {
            break;
        }
        match item? {
            Ok(item) => {
                printed.line(&item.json)?;
                if let (Some(dump), Some(array)) = (&mut dump, &item.array) {
                    dump.write(&array.name, &array.npy)?;
                }
                if let (Some(pack), Some(sample)) = (&mut pack, &item.sample) {
                    pack.shard.write(sample)?;
                }
            }
            Err(error) => {
                printed.line(&failure(&error, place))?;
                failed += 1;
                if !skips {
                    break;
                }
            }
        }
        shown += 1;
    }
    printed.end()?;
    if let Some(pack) = pack.filter(|_| skips || failed == 0) {
        pack.publish()?;
    }
    if skips && failed > 0 {
        let _ = writeln!(io::stderr(), "{failed} could not be read");
    }
    Ok(skips || failed == 0)
}

/// Formats an error as an object; an error before the first item concerns the whole input.
fn failure(error: &datapipes::Error, place: &str) -> serde_json::Value {
    let item = error
        .item()
        .map_or_else(|| place.to_owned(), ToString::to_string);
    let node = error.node().unwrap_or("inspect");
    json!({ "error": format!("{:?}", error.kind()), "node": node, "item": item, "cause": error.cause() })
}

/// Lines of standard output, as long as somebody reads them.
struct Printed {
    out: BufWriter<StdoutLock<'static>>,
    is_read: bool,
}

impl Printed {
    fn new() -> Printed {
        Printed {
            out: BufWriter::new(io::stdout().lock()),
            is_read: true,
        }
    }

    fn line(&mut self, item: &serde_json::Value) -> Result<(), BoxError> {
        if !self.is_read {
            return Ok(());
        }
        let written = writeln!(self.out, "{item}");
        self.after(written)
    }

    fn end(&mut self) -> Result<(), BoxError> {
        let written = self.out.flush();
        self.after(written)
    }

    /// Notes that the reader has gone, which is no failure.
    fn after(&mut self, written: io::Result<()>) -> Result<(), BoxError> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.is_read = false,
            written => written.map_err(|error| format!("standard output: {error}"))?,
        }
        Ok(())
    }
}

/// A shard that appears when it is complete, since it may replace one of its own inputs.
struct Pack<'a> {
    path: &'a Path,
    shard: SampleWriter<BufWriter<NamedTempFile>>,
}

impl<'a> Pack<'a> {
    fn new(path: &'a Path) -> Result<Pack<'a>, BoxError> {
        // Before the data are read, which may take hours.
        let file = check_regular(path).and_then(|()| NamedTempFile::new_in(folder_of(path)));
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Pack {
            path,
            shard: SampleWriter::new(BufWriter::new(file)),
        })
    }

    fn publish(self) -> Result<(), BoxError> {
        let file = self
            .shard
            .finish()?
            .into_inner()
            .map_err(|error| error.into_error())?;
        file.persist(self.path)
            .map_err(|error| format!("{}: {}", self.path.display(), error.error))?;
        Ok(())
    }
}

/// A folder of `.npy` files.
struct Dump {
    folder: PathBuf,
    /// Names that were used.
    names: HashSet<String>,
}

impl Dump {
    fn new(folder: &Path) -> Result<Dump, BoxError> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Dump {
            folder: folder.to_owned(),
            names: HashSet::new(),
        })
    }

    /// Writes an array under its name, which cannot leave the folder; a duplicate name gets a
    /// number.
    fn write(&mut self, name: &str, npy: &[u8]) -> Result<(), BoxError> {
        // Names of files have a maximum length in bytes.
        let plain: String = name
            .chars()
            .take(50)
            .map(|c| {
                if c.is_alphanumeric() || "-_.".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let plain = plain.trim_start_matches('.');
        let plain = if plain.is_empty() { "array" } else { plain };
        let mut file = format!("{plain}.npy");
        let mut times = 1;
        while !self.names.insert(file.clone()) {
            times += 1;
            file = format!("{plain}-{times}.npy");
        }
        let path = self.folder.join(file);
        fs::write(&path, npy).map_err(|error| format!("{}: {error}", path.display()).into())
    }
}
