//! Asks a program that has the graph: runs it with a question in environment variables, and prints
//! the answer, which it writes to a file.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode, Stdio};

use datapipes::BoxError;

use crate::args::{Args, print, refuse};

/// Question of a command.
pub struct Question {
    /// Name of the variables, such as `DATAPIPES_BLAME`, with the value of the one that asks.
    pub name: &'static str,
    pub value: OsString,
    /// Ends of the names of further variables, such as `STEPS`, with their values. A variable
    /// without one is removed, so that none is inherited.
    pub more: Vec<(&'static str, Option<OsString>)>,
    /// Method of the loader that answers.
    pub method: &'static str,
}

/// Reads the arguments before `end`, and the program after it with its own.
pub fn parse(
    given: impl Iterator<Item = OsString>,
    end: &str,
    flags: &str,
    known: &str,
    usage: &str,
) -> (Args, Option<Command>) {
    let mut given = given.collect::<Vec<_>>().into_iter();
    let own: Vec<OsString> = given.by_ref().take_while(|arg| arg != end).collect();
    let args = Args::of(own.into_iter(), flags, known, usage);
    let program = given.next().map(|program| {
        let mut program = Command::new(program);
        program.args(given);
        program
    });
    (args, program)
}

/// Returns the program, or ends with the usage.
pub fn required(program: Option<Command>, end: &str, usage: &str) -> Command {
    program.unwrap_or_else(|| refuse(&format!("the program is missing: {end} PROGRAM"), usage))
}

/// Runs the program with a question, and prints its answer. What it prints otherwise goes to
/// standard error.
pub fn ask(mut program: Command, question: Question) -> Result<ExitCode, BoxError> {
    let Question {
        name: variable,
        value,
        more,
        method,
    } = question;
    let folder = tempfile::tempdir()?;
    let answer = folder.path().join("answer");
    program
        .env(variable, value)
        .env(format!("{variable}_ANSWER"), &answer)
        .stdout(Stdio::from(std::io::stderr()));
    for (end, value) in more {
        let variable = format!("{variable}_{end}");
        match value {
            Some(value) => program.env(variable, value),
            None => program.env_remove(variable),
        };
    }
    let name = program.get_program().display().to_string();
    let status = program
        .status()
        .map_err(|error| format!("{name}: {error}"))?;
    match fs::read(&answer) {
        Ok(text) => print(text)?,
        Err(_) if status.success() => {
            let help = format!("add `if loader.{method}()? {{ return Ok(()) }}` after `build`");
            return Err(format!("{name} ended without an answer: {help}").into());
        }
        Err(_) => {}
    }
    if !status.success() {
        return Err(format!("{name}: {status}").into());
    }
    Ok(ExitCode::SUCCESS)
}
