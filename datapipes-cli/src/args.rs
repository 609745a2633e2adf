//! Command lines of the program, and of the examples: `--key value`, `--flag`, `key=value`, and
//! words.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::str::FromStr;

use datapipes::BoxError;

/// Prints a text. A reader that has gone is no failure.
///
/// # Errors
/// Other errors of standard output, which they name.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), BoxError> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Arguments of a command.
#[derive(Debug, Default)]
pub struct Args {
    pub words: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Args {
    /// Reads a command line; the words of `flags` take no value, those of `known` do. Anything else
    /// ends the program with the first paragraph of `usage`, `--help` with all of it.
    pub fn of(
        given: impl Iterator<Item = OsString>,
        flags: &str,
        known: &str,
        usage: &str,
    ) -> Args {
        let is_in = |words: &str, key: &str| words.split_ascii_whitespace().any(|word| word == key);
        let mut args = Args::default();
        let text = |arg: OsString| {
            arg.into_string()
                .unwrap_or_else(|arg| refuse(&format!("{} is not UTF-8", arg.display()), usage))
        };
        let mut given = given.map(text);
        while let Some(arg) = given.next() {
            if ["-h", "--help"].contains(&&*arg) {
                let printed = print(format!("{usage}\n"));
                std::process::exit(i32::from(printed.is_err()));
            }
            let (key, value) = match (arg.strip_prefix("--"), arg.split_once('=')) {
                (Some(key), None) if is_in(flags, key) => (key.to_owned(), String::new()),
                (Some(key), None) if is_in(known, key) => match given.next() {
                    Some(value) => (key.to_owned(), value),
                    None => refuse(&format!("--{key} needs a value"), usage),
                },
                (Some(key), None) => refuse(&format!("there is no option --{key}"), usage),
                (_, Some((key, value))) if is_in(known, key.trim_start_matches('-')) => {
                    (key.trim_start_matches('-').to_owned(), value.to_owned())
                }
                (None, _) if arg.starts_with('-') => {
                    refuse(&format!("there is no option {arg}"), usage)
                }
                (None, _) => {
                    args.words.push(arg);
                    continue;
                }
                (Some(key), Some(_)) => refuse(&format!("there is no option --{key}"), usage),
            };
            args.options.insert(key, value);
        }
        args
    }

    /// Ends the program if there are more words.
    pub fn at_most(self, words: usize, usage: &str) -> Args {
        match self.words.get(words) {
            Some(word) => refuse(&format!("one word too many: {word}"), usage),
            None => self,
        }
    }

    /// Returns true if an option was given.
    pub fn has(&self, key: &str) -> bool {
        self.options.contains_key(key)
    }

    /// Returns the value of an option, if it was given; a value that does not parse ends the
    /// program.
    pub fn get<T: FromStr<Err: std::fmt::Display>>(&self, key: &str) -> Option<T> {
        let text = self.options.get(key)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => refuse(
                &format!("--{key} {text}: {error}"),
                "--help lists the options",
            ),
        }
    }

    /// Returns the value of an option; without one the program ends.
    pub fn required<T: FromStr<Err: std::fmt::Display>>(&self, key: &str, usage: &str) -> T {
        self.get(key)
            .unwrap_or_else(|| refuse(&format!("--{key} is missing"), usage))
    }
}

/// Ends the program, with what is wrong in its command line.
pub fn refuse(problem: &str, usage: &str) -> ! {
    let first = usage.split("\n\n").next().unwrap_or_default();
    let _ = writeln!(std::io::stderr(), "{problem}\n{first}");
    std::process::exit(2)
}
