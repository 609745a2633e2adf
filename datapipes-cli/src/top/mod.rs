//! Watches a running loader from outside: its rates, queues, memory, and what it waits for.

mod draw;
mod find;
mod format;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use datapipes::BoxError;

use self::view::View;
use crate::args::{Args, print, refuse};

const USAGE: &str = "datapipes top [PID|PID-LOADER|PATH] [OPTIONS]

Shows what a running loader does: the rate of each node, and how long an item takes there; its
workers, queues and memory; how long the consumer waits, and for what. Without an argument it takes
the loader that runs, or lists them if they are of several processes.

A loader can be watched if its program says so by `Builder::monitor()`, or is started with
DATAPIPES_MONITOR=1; its crate `datapipes` needs the feature `monitor`. Nothing that happens here
slows it down. PATH is that of its socket.

  --once        prints one page and ends, as it does when the output is no terminal
  --json        prints the figures as they come from each loader, a line of JSON, and ends

Keys: q ends, p pauses, s sorts the nodes, r counts from now on, e counts from the begin of the epoch,
l counts the last ten seconds, Tab goes to the next loader of the process, arrows scroll.";

/// Runs the command with these arguments.
pub fn main(given: impl Iterator<Item = OsString>) -> Result<ExitCode, BoxError> {
    let args = Args::of(given, "once json", "", USAGE).at_most(1, USAGE);
    if args.has("once") && args.has("json") {
        refuse("--once and --json are two ways of printing", USAGE);
    }
    run(&args).map(|()| ExitCode::SUCCESS)
}

fn run(args: &Args) -> Result<(), BoxError> {
    let sockets = find::sockets(args.words.first().map(String::as_str))?;
    if args.has("json") {
        return print(find::lines(&sockets)?);
    }
    if let Some(list) = find::list_of_several(&sockets) {
        return print(list);
    }
    let (at, first) = find::first_running(&sockets)?;
    if args.has("once") || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let view = View::new(&sockets[at], Some(first), sockets.len());
        print(draw::page(&view))
    } else {
        screen::watch(&sockets, at)
    }
}
