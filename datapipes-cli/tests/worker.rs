//! The command `worker`, run as a program.

#![cfg(unix)]

use std::fs;
use std::process::{Command, Output};

/// Runs the command in a folder with a token and an empty file.
fn worker(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("token"), "a secret\n").unwrap();
    fs::write(folder.path().join("empty"), "\n").unwrap();
    Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .arg("worker")
        .args(args)
        .current_dir(&folder)
        .env("DATAPIPES_TOKEN", "of the environment")
        .env_remove("DATAPIPES_WORKER_CA")
        .env_remove("DATAPIPES_WORKER_IDLE")
        .output()
        .unwrap()
}

/// A program that prints the variables of a worker, and its arguments.
const PRINTS: &str = "echo $DATAPIPES_WORKER, $DATAPIPES_WORKER_CA, $DATAPIPES_WORKER_PROCESSES, \
                      $DATAPIPES_WORKER_IDLE, $DATAPIPES_TOKEN: $*; exit 7";

#[test]
fn the_program_gets_the_variables_and_the_rest_of_the_line() {
    let command = "--trainer tls://trainer:7070 --token-file token --ca ca.pem --processes 3 --idle 60 --exec sh -c";
    let mut args: Vec<&str> = command.split(' ').collect();
    args.extend([PRINTS, "sh", "--trainer", "its own", "--exec"]);
    let output = worker(&args);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "tls://trainer:7070, ca.pem, 3, 60, a secret: --trainer its own --exec\n"
    );
    // It has become the program, so that signals and the exit status are those of it.
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn what_is_not_said_stays_as_it_is() {
    let output = worker(&["--trainer", "tcp://trainer:1", "--exec", "sh", "-c", PRINTS]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.starts_with("tcp://trainer:1, , "), "{printed}");
    assert!(printed.ends_with(", of the environment:\n"), "{printed}");
}

#[test]
fn wrong_lines_are_refused_without_a_start() {
    for (args, code, why) in [
        (&["--exec", "true"][..], 2, "--trainer is missing"),
        (&["--trainer", "tcp://a:1"], 2, "the program is missing"),
        (
            &["--trainer", "a:1", "--exec", "true"],
            2,
            "neither tcp://HOST:PORT nor",
        ),
        (
            &["--trainer", "tcp://a:1", "more", "--exec", "true"],
            2,
            "one word too many: more",
        ),
        (
            &[
                "--trainer",
                "tcp://a:1",
                "--processes",
                "0",
                "--exec",
                "true",
            ],
            2,
            "--processes 0",
        ),
        (
            &[
                "--trainer",
                "tcp://a:1",
                "--token-file",
                "empty",
                "--exec",
                "true",
            ],
            1,
            "empty: the file is empty",
        ),
        (
            &[
                "--trainer",
                "tcp://a:1",
                "--token-file",
                "gone",
                "--exec",
                "true",
            ],
            1,
            "gone: ",
        ),
        (
            &["--trainer", "tcp://a:1", "--exec", "./no-program"],
            1,
            "./no-program: ",
        ),
    ] {
        let output = worker(args);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {printed}");
        assert!(printed.contains(why), "{args:?}: {printed}");
    }
}
