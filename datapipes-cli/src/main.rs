//! The program `datapipes`: looks into data sets, makes token stores of texts, watches running
//! loaders.

mod args;
mod inspect;
mod tokenize;
#[cfg(unix)]
mod top;

use std::process::ExitCode;

const USAGE: &str = "datapipes COMMAND …

Commands:
  inspect   prints the content of files: members, samples, records, arrays, rows, pictures
  tokenize  makes a token store of a corpus of texts
  top       shows what a running loader does, and what holds it up

`datapipes COMMAND --help` lists the options of a command. Exit status: 0 success, 1 failure, 2 wrong usage.";

fn main() -> ExitCode {
    let mut given = std::env::args_os().skip(1);
    let Some(command) = given.next() else {
        args::refuse("a command is missing", USAGE)
    };
    match &*command.to_string_lossy() {
        "inspect" => inspect::main(given),
        "tokenize" => tokenize::main(given),
        #[cfg(unix)]
        "top" => top::main(given),
        #[cfg(not(unix))]
        "top" => args::refuse(
            "top needs Unix domain sockets, which this system has not",
            USAGE,
        ),
        "-h" | "--help" => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        "-V" | "--version" => {
            println!("datapipes {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        other => args::refuse(
            &format!("there is no command {other}; there are inspect, tokenize and top"),
            USAGE,
        ),
    }
}
