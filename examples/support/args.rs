//! Command lines of the examples: `--key value`, `--flag`, `key=value`, and words.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Arguments of the program; at most one word.
#[derive(Debug, Default)]
pub struct Args {
    pub words: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Args {
    /// Reads the command line; `flags` take no value, `known` do. Anything else ends the program
    /// with `usage`.
    pub fn parse(flags: &[&str], known: &[&str], usage: &str) -> Args {
        let mut args = Args::default();
        let text = |arg: std::ffi::OsString| {
            arg.into_string()
                .unwrap_or_else(|arg| refuse(&format!("{} is not UTF-8", arg.display()), usage))
        };
        let mut given = std::env::args_os().skip(1).map(text);
        while let Some(arg) = given.next() {
            if ["-h", "--help"].contains(&&*arg) {
                println!("{usage}");
                std::process::exit(0);
            }
            let (key, value) = match (arg.strip_prefix("--"), arg.split_once('=')) {
                (Some(key), None) if flags.contains(&key) => (key.to_owned(), String::new()),
                (Some(key), None) if known.contains(&key) => match given.next() {
                    Some(value) => (key.to_owned(), value),
                    None => refuse(&format!("--{key} needs a value"), usage),
                },
                (Some(key), None) => refuse(&format!("there is no option --{key}"), usage),
                (_, Some((key, value))) if known.contains(&key.trim_start_matches('-')) => {
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
        if let Some(second) = args.words.get(1) {
            refuse(&format!("one word too many: {second}"), usage);
        }
        args
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
}

fn refuse(problem: &str, usage: &str) -> ! {
    eprintln!("{problem}\n{usage}");
    std::process::exit(2)
}
