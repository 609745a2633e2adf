//! Makes this machine a worker of a trainer: sets the variables that the library reads, and becomes
//! the program, which is the one that trains.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use datapipes::BoxError;
use datapipes::whole_file::read_text;

use crate::args::refuse;
use crate::ask::{parse, required};

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
pub fn main(given: impl Iterator<Item = OsString>) -> Result<ExitCode, BoxError> {
    let known = "trainer token-file ca processes idle";
    let (args, program) = parse(given, "--exec", "", known, USAGE);
    let args = args.at_most(0, USAGE);
    let trainer: String = args.required("trainer", USAGE);
    if !trainer.starts_with("tcp://") && !trainer.starts_with("tls://") {
        refuse(
            &format!("--trainer {trainer}: neither tcp://HOST:PORT nor tls://HOST:PORT"),
            USAGE,
        )
    }
    let mut command = required(program, "--exec", USAGE);
    command.env("DATAPIPES_WORKER", trainer);
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
        let token = token(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        command.env("DATAPIPES_TOKEN", token);
    }
    let error = command.exec();
    Err(format!("{}: {error}", command.get_program().display()).into())
}

/// Reads the token of a file, whose last line may end.
fn token(file: &Path) -> Result<String, BoxError> {
    let text = read_text(file, 1 << 20)?;
    match text.trim_end() {
        "" => Err("the file is empty".into()),
        token => Ok(token.to_owned()),
    }
}
