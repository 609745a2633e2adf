//! Finds the loaders that can be watched.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use datapipes::BoxError;
use datapipes::loader::monitor::{self, Client, Figures};

use super::format::{clean, rate};

/// Returns the sockets that an argument names, at least one: of a process, of a loader in it, or of
/// all.
pub fn sockets(named: Option<&str>) -> Result<Vec<PathBuf>, BoxError> {
    if let Some(path) = named.filter(|name| name.contains('/') || name.ends_with(".sock")) {
        return Ok(vec![PathBuf::from(path)]);
    }
    let mut sockets = monitor::sockets()?;
    if let Some(name) = named {
        if !name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!(
                "{name}: neither the number of a process nor the path of a socket"
            )
            .into());
        }
        sockets.retain(|socket| stem(socket) == name || process(socket) == name);
    }
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let what = match named {
        Some(name) => format!("process {name} has no loader that can be watched"),
        None => "no loader runs that can be watched".to_owned(),
    };
    let remedy = "a program allows it by `Builder::monitor()`, or when it is started with DATAPIPES_MONITOR=1 (and with \
                  the feature `monitor` of datapipes), for programs of the same user";
    Err(format!("{what}; {remedy}").into())
}

/// Returns the name of a socket, `PROCESS-LOADER`.
pub fn stem(socket: &Path) -> &str {
    let stem = socket.file_stem().and_then(|stem| stem.to_str());
    stem.unwrap_or_default()
}

fn process(socket: &Path) -> &str {
    let stem = stem(socket);
    stem.split_once('-').map_or(stem, |(process, _)| process)
}

/// Returns the place and the first answer of the first loader that runs an epoch; if none does, of the
/// first that answers. A loader for validation mostly does not.
pub fn first_running(sockets: &[PathBuf]) -> Result<(usize, Figures), BoxError> {
    let mut first = Err("no loader answers".into());
    for (place, socket) in sockets.iter().enumerate() {
        match Client::connect(socket).and_then(|mut client| client.figures()) {
            Ok(shown) if shown.running => return Ok((place, shown)),
            Ok(shown) if first.is_err() => first = Ok((place, shown)),
            Ok(_) => {}
            Err(error) if place == 0 => first = Err(error.into()),
            Err(_) => {}
        }
    }
    first
}

/// Returns an answer of each loader, a line each; fails if none answers.
pub fn lines(sockets: &[PathBuf]) -> Result<String, BoxError> {
    let mut lines = String::new();
    let mut problem = None;
    for socket in sockets {
        match Client::connect(socket).and_then(|mut client| client.line()) {
            Ok(line) => lines += &format!("{line}\n"),
            Err(error) => problem = Some(error),
        }
    }
    match problem {
        Some(problem) if lines.is_empty() => Err(problem.into()),
        _ => Ok(lines),
    }
}

/// Returns a list of loaders if they are of several processes.
pub fn list_of_several(sockets: &[PathBuf]) -> Option<String> {
    let first = process(&sockets[0]);
    if sockets.iter().all(|socket| process(socket) == first) {
        return None;
    }
    let mut list = format!("{:<16} {:<24} {:>8}  rate\n", "loader", "program", "epoch");
    for socket in sockets {
        let answer = Client::connect(socket).and_then(|mut client| client.figures());
        let name = clean(stem(socket));
        let _ = match answer {
            Ok(shown) => {
                let epoch = shown
                    .epoch
                    .map_or("none".to_owned(), |epoch| epoch.to_string());
                let pace = match &shown.stats {
                    Some(stats) if shown.running => format!("{}/s", rate(stats.items_per_second())),
                    Some(_) => "ended".to_owned(),
                    None => "not begun".to_owned(),
                };
                let program = clean(&shown.program);
                writeln!(list, "{name:<16} {program:<24} {epoch:>8}  {pace}")
            }
            Err(error) => writeln!(list, "{name:<16} {}", clean(&error.to_string())),
        };
    }
    list.push_str("\n`datapipes top` with the name of one shows it\n");
    Some(list)
}
