//! Asks a program which samples made the batches of some steps. Only the program has the graph, so
//! the command runs it, with the question in environment variables that
//! [`DataLoader::answer_blame`](datapipes::DataLoader::answer_blame) reads.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, ExitCode, Stdio};

use datapipes::{BoxError, Checkpoint};

use crate::args::{Args, refuse};

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
pub fn main(given: impl Iterator<Item = OsString>) -> ExitCode {
    let mut given = given.collect::<Vec<_>>().into_iter();
    let own: Vec<OsString> = given.by_ref().take_while(|arg| arg != "--").collect();
    let args = Args::of(own.into_iter(), &[], &["steps", "out"], USAGE).one_word(USAGE);
    let Some(state) = args.words.first() else {
        refuse("the checkpoint is missing", USAGE)
    };
    let Some(steps) = args.get::<String>("steps") else {
        refuse("--steps is missing", USAGE)
    };
    let Some(program) = given.next() else {
        refuse("the program is missing: -- PROGRAM", USAGE)
    };
    let mut program = Command::new(program);
    program.args(given);
    match run(program, Path::new(state), &steps, args.get("out")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    mut program: Command,
    state: &Path,
    steps: &str,
    out: Option<PathBuf>,
) -> Result<(), BoxError> {
    // A damaged checkpoint is reported before anything runs.
    Checkpoint::load(state)?;
    let folder = tempfile::tempdir()?;
    let answer = folder.path().join("answer");
    program
        .env("DATAPIPES_BLAME", absolute(state)?)
        .env("DATAPIPES_BLAME_STEPS", steps)
        .env("DATAPIPES_BLAME_ANSWER", &answer)
        .env_remove("DATAPIPES_BLAME_OUT")
        .stdout(Stdio::from(std::io::stderr()));
    if let Some(out) = &out {
        program.env("DATAPIPES_BLAME_OUT", absolute(out)?);
    }
    let name = program.get_program().display().to_string();
    let status = program
        .status()
        .map_err(|error| format!("{name}: {error}"))?;
    match fs::read(&answer) {
        Ok(text) => std::io::stdout().write_all(&text)?,
        Err(_) if status.success() => {
            let help = "add `if loader.answer_blame()? { return Ok(()) }` after `build`";
            return Err(format!("{name} ended without an answer: {help}").into());
        }
        Err(_) => {}
    }
    if !status.success() {
        return Err(format!("{name}: {status}").into());
    }
    Ok(())
}
