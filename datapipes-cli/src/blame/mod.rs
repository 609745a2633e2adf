//! Asks a program which samples made the batches of some steps. Only the program has the graph, so
//! the command runs it, with the question in environment variables that
//! [`DataLoader::answer_blame`](datapipes::DataLoader::answer_blame) reads.

use std::ffi::OsString;
use std::path::{PathBuf, absolute};
use std::process::ExitCode;

use datapipes::{BoxError, Checkpoint};

use crate::args::refuse;
use crate::ask::{Question, ask, parse, required};

const USAGE: &str = "datapipes blame CHECKPOINT --steps A..B [--out DIR] -- PROGRAM [ARGUMENT…]

Prints which samples made the batches of the steps A to B - 1 of an epoch, and what each node made
of each sample: computed again, from a checkpoint of that epoch. Steps count from 0.

PROGRAM is the program that trains, with its arguments. It has the graph, and answers instead of
training, by one line after the loader is built:

    if loader.answer_blame()? { return Ok(()) }

What it prints otherwise goes to standard error. A program without this line ends with an error
before its first epoch.

  --steps A..B  steps of the epoch, before or after the checkpoint
  --out DIR     also writes each output of a node that is an image to DIR, as a PNG file";

/// Runs the command with these arguments.
pub fn main(given: impl Iterator<Item = OsString>) -> Result<ExitCode, BoxError> {
    let (args, program) = parse(given, "--", "", "steps out", USAGE);
    let args = args.at_most(1, USAGE);
    let Some(state) = args.words.first() else {
        refuse("the checkpoint is missing", USAGE)
    };
    let steps: String = args.required("steps", USAGE);
    let program = required(program, "--", USAGE);
    // A damaged checkpoint is reported before anything runs.
    Checkpoint::load(state)?;
    let out = args.get::<PathBuf>("out").map(absolute).transpose()?;
    let question = Question {
        name: "DATAPIPES_BLAME",
        value: absolute(state)?.into(),
        more: vec![
            ("STEPS", Some(steps.into())),
            ("OUT", out.map(OsString::from)),
        ],
        method: "answer_blame",
    };
    ask(program, question)
}
