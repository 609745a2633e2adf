//! The program `datapipes`: looks into data sets and past batches, locks data sets, makes token stores
//! of texts, watches running loaders, tunes them, makes workers of other machines.

mod args;
mod ask;
mod blame;
mod inspect;
mod lock;
mod tokenize;
#[cfg(unix)]
mod top;
mod tune;
mod words;
#[cfg(unix)]
mod worker;

use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "datapipes COMMAND …

Commands:
  blame     prints which samples made the batches of past steps, computed by your program
  inspect   prints the content of files: members, samples, records, arrays, rows, pictures
  lock      writes which files a data set has, or checks that they are the same
  tokenize  makes a token store of a corpus of texts
  top       shows what a running loader does, and what holds it up
  tune      finds the settings with which the loader of your program is fastest
  worker    works for a trainer on another machine

`datapipes COMMAND --help` lists the options of a command. Exit status: 0 success, 1 failure, 2 wrong usage.";

fn main() -> ExitCode {
    let mut given = std::env::args_os().skip(1);
    let Some(command) = given.next() else {
        args::refuse("a command is missing", USAGE)
    };
    let outcome = match &*command.to_string_lossy() {
        "blame" => blame::main(given),
        "inspect" => inspect::main(given),
        "lock" => lock::main(given),
        "tokenize" => tokenize::main(given),
        #[cfg(unix)]
        "top" => top::main(given),
        #[cfg(not(unix))]
        "top" => args::refuse(
            "top needs Unix domain sockets, which this system has not",
            USAGE,
        ),
        "tune" => tune::main(given),
        #[cfg(unix)]
        "worker" => worker::main(given),
        #[cfg(not(unix))]
        "worker" => args::refuse("worker needs Linux", USAGE),
        "-h" | "--help" => args::print(format!("{USAGE}\n")).map(|()| ExitCode::SUCCESS),
        "-V" | "--version" => args::print(concat!("datapipes ", env!("CARGO_PKG_VERSION"), "\n"))
            .map(|()| ExitCode::SUCCESS),
        other => args::refuse(
            &format!(
                "there is no command {other}; there are blame, inspect, lock, tokenize, top, tune and worker"
            ),
            USAGE,
        ),
    };
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error}");
        ExitCode::FAILURE
    })
}
