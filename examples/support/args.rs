//! Command lines of the examples, which are read as those of the program `datapipes`.

#[path = "../../datapipes-cli/src/args.rs"]
mod command_line;

pub use self::command_line::Args;

impl Args {
    /// Reads the command line of a program with at most one word; see [`Args::of`].
    pub fn parse(flags: &str, known: &str, usage: &str) -> Args {
        Args::of(std::env::args_os().skip(1), flags, known, usage).at_most(1, usage)
    }
}
