//! Makes this machine a worker of a trainer: sets the variables that the library reads, and becomes
//! the program, which is the one that trains.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use datapipes::BoxError;

use crate::args::{Args, refuse};

const USAGE: &str = "datapipes worker --trainer URL [--token-file FILE] [--ca FILE] [--processes N] [--idle SECONDS] --exec PROGRAM [ARGUMENT…]

Works for a trainer on another machine, which has a part of its graph `on_workers`. PROGRAM is a copy
of the trainer's executable, whose `main` begins with `datapipes::worker::init()`; everything after
--exec is its own. It goes on until it is ended: SIGTERM ends it after the pieces of work that it has.

  --trainer URL      tcp://HOST:PORT of the trainer, or tls://HOST:PORT
  --token-file FILE  file with the secret that both sides know [the variable DATAPIPES_TOKEN]
  --ca FILE          PEM file with the certificates that it trusts, for tls://
                     [the variable DATAPIPES_WORKER_CA]
  --processes N      number of worker processes [the number of CPUs]
  --idle SECONDS     ends once no trainer was there for so long [never]";

/// Runs the command with these arguments. It returns only if the program cannot be started.
pub fn main(given: impl Iterator<Item = OsString>) -> ExitCode {
    let mut given = given.collect::<Vec<_>>().into_iter();
    let own: Vec<OsString> = given.by_ref().take_while(|arg| arg != "--exec").collect();
    let known = ["trainer", "token-file", "ca", "processes", "idle"];
    let args = Args::of(own.into_iter(), &[], &known, USAGE);
    if let Some(word) = args.words.first() {
        refuse(&format!("one word too many: {word}"), USAGE)
    }
    let Some(trainer) = args.get::<String>("trainer") else {
        refuse("--trainer is missing", USAGE)
    };
    if !trainer.starts_with("tcp://") && !trainer.starts_with("tls://") {
        refuse(
            &format!("--trainer {trainer}: neither tcp://HOST:PORT nor tls://HOST:PORT"),
            USAGE,
        )
    }
    let Some(program) = given.next() else {
        refuse("the program is missing: --exec PROGRAM", USAGE)
    };
    let mut command = Command::new(&program);
    command.args(given).env("DATAPIPES_WORKER", trainer);
    if let Some(ca) = args.get::<PathBuf>("ca") {
        command.env("DATAPIPES_WORKER_CA", ca);
    }
    if let Some(processes) = args.get::<std::num::NonZeroUsize>("processes") {
        command.env("DATAPIPES_WORKER_PROCESSES", processes.to_string());
    }
    if let Some(idle) = args.get::<u64>("idle") {
        command.env("DATAPIPES_WORKER_IDLE", idle.to_string());
    }
    if let Some(file) = args.get::<PathBuf>("token-file") {
        match token(&file) {
            Ok(token) => command.env("DATAPIPES_TOKEN", token),
            Err(error) => {
                eprintln!("error: {}: {error}", file.display());
                return ExitCode::FAILURE;
            }
        };
    }
    let error = command.exec();
    eprintln!("error: {}: {error}", program.display());
    ExitCode::FAILURE
}

/// Reads the token of a file, whose last line may end.
fn token(file: &Path) -> Result<String, BoxError> {
    let text = std::fs::read_to_string(file)?;
    match text.trim_end() {
        "" => Err("the file is empty".into()),
        token => Ok(token.to_owned()),
    }
}
