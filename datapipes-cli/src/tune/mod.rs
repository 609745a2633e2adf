//! Asks a program for the settings with which its loader is fastest. Only the program has the graph,
//! so the command runs it, with the question in environment variables that
//! [`DataLoader::answer_tune`](datapipes::DataLoader::answer_tune) reads.

use std::ffi::OsString;
use std::path::{PathBuf, absolute};
use std::process::ExitCode;

use datapipes::BoxError;

use crate::ask::{Question, ask, parse, required};

const USAGE: &str = "datapipes tune --out SETTINGS [OPTIONS] -- PROGRAM [ARGUMENT…]

Finds the number of workers and the length of the queue with which a loader is fastest, prints the
table of times, and writes the settings to a file that `Builder::settings_from` reads.

PROGRAM is the program that trains, with its arguments. It has the graph, and answers instead of
training, by one line after the loader is built (feature `tune` of the library):

    if loader.answer_tune()? { return Ok(()) }

What it prints otherwise goes to standard error. A program without this line ends with an error
before its first epoch.

  --out SETTINGS  file for the settings
  --svg FILE      also writes the times as a heat map
  --grid          runs all settings once each, instead of a search
  --cores N       most workers; the number of cores if not given
  --gpus N        step in which the number of workers grows (1)
  --prefetch N    longest queue, in batches (4)
  --batches N     batches of each run (100)
  --memory MIB    bound of the items that the loader holds";

/// Runs the command with these arguments.
pub fn main(given: impl Iterator<Item = OsString>) -> Result<ExitCode, BoxError> {
    let known = "out svg cores gpus prefetch batches memory";
    let (args, program) = parse(given, "--", "grid", known, USAGE);
    let args = args.at_most(0, USAGE);
    let out: PathBuf = args.required("out", USAGE);
    let program = required(program, "--", USAGE);
    let number = |key: &str| {
        let value = args.get::<u32>(key);
        value.map(|value| OsString::from(value.to_string()))
    };
    let picture = args.get::<PathBuf>("svg").map(absolute).transpose()?;
    let method = if args.has("grid") { "grid" } else { "search" };
    let question = Question {
        name: "DATAPIPES_TUNE",
        value: absolute(out)?.into(),
        more: vec![
            ("METHOD", Some(method.into())),
            ("CORES", number("cores")),
            ("GPUS", number("gpus")),
            ("PREFETCH", number("prefetch")),
            ("BATCHES", number("batches")),
            ("MEMORY", number("memory")),
            ("SVG", picture.map(OsString::from)),
        ],
        method: "answer_tune",
    };
    ask(program, question)
}
