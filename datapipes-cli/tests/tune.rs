//! The command `tune`, run as a program over a program that trains: a test of this file.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use datapipes::{BoxError, DataLoader, Graph};

fn graph() -> Graph<Vec<u64>> {
    Graph::range(0..40).map(|n| n * n).named("square").batch(4)
}

/// A training that answers, and writes to the file `trained` when it trains. It is started by the
/// other tests, and does nothing as a test.
#[test]
fn training() -> Result<(), BoxError> {
    let Ok(kind) = std::env::var("TEST_TRAINING") else {
        return Ok(());
    };
    // A program may read names or labels before it has a loader.
    assert_eq!(Graph::range(0..3).collect()?, [0, 1, 2]);
    let loader = DataLoader::builder(graph())
        .autosave("train.state", 1)
        .build()?;
    println!("the program prints this");
    let ended = match &*kind {
        "ends" => true,
        "blame only" => loader.answer_blame()?,
        "bad step" => loader.answer_tune_with(|_| Err("the step is broken"))?,
        _ => loader.answer_tune()?,
    };
    if ended {
        return Ok(());
    }
    for batch in loader.epoch(0).blocking() {
        batch?;
        fs::write("trained", "")?;
    }
    Ok(())
}

fn tune(folder: &Path, kind: &str, args: &[&str]) -> Output {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .arg("tune")
        .args(args)
        .arg("--")
        .arg(this)
        .args(["--exact", "training", "--nocapture"])
        .env("TEST_TRAINING", kind)
        .current_dir(folder)
        .output()
        .expect("the program runs");
    for file in ["trained", "train.state"] {
        assert!(!folder.join(file).exists(), "it did not train");
    }
    output
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const SMALL: [&str; 8] = [
    "--cores",
    "2",
    "--prefetch",
    "2",
    "--batches",
    "12",
    "--out",
    "settings.json",
];

#[test]
fn the_program_answers_with_settings_that_a_builder_takes_and_does_not_train() {
    let folder = tempfile::tempdir().unwrap();
    for method in ["grid", "search"] {
        let mut args = SMALL.to_vec();
        if method == "grid" {
            args.extend(["--grid", "--svg", "heat.svg"]);
        }
        let output = tune(folder.path(), "trains", &args);
        assert!(output.status.success(), "{output:?}");
        let answer = text(&output.stdout);
        assert!(answer.starts_with("ms a batch"), "{answer}");
        assert!(answer.contains(&format!("best by {method}: ")), "{answer}");
        assert!(answer.contains("of 12 batches for 4 points"), "{answer}");
        // Only the answer is on standard output.
        assert!(!answer.contains("the program prints this"));
        assert!(text(&output.stderr).contains("the program prints this"));
        let settings = folder.path().join("settings.json");
        let builder = DataLoader::builder(graph()).settings_from(&settings);
        assert_eq!(
            builder
                .unwrap()
                .build()
                .unwrap()
                .epoch(0)
                .blocking()
                .count(),
            10
        );
        fs::remove_file(settings).unwrap();
    }
    let picture = fs::read_to_string(folder.path().join("heat.svg")).unwrap();
    assert!(picture.contains("prefetch 2"), "{picture}");
}

#[test]
fn a_question_without_an_answer_says_why_and_nothing_is_trained() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, more, what) in [
        (
            "blame only",
            &[][..],
            "if loader.answer_tune()? { return Ok(()) }",
        ),
        (
            "ends",
            &[],
            "ended without an answer: add `if loader.answer_tune()?",
        ),
        ("bad step", &[], "the step is broken"),
        ("trains", &["--batches", "0"], "a run has no batches"),
        ("trains", &["--out", "no/settings.json"], "no/settings.json"),
    ] {
        let output = tune(folder.path(), kind, &[&SMALL[..], more].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains(what) && output.stdout.is_empty(), "{said}");
        assert!(!folder.path().join("settings.json").exists());
    }
}

#[test]
fn a_path_that_cannot_be_written_is_an_error_before_the_first_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for (option, path) in [
        ("--out", "no/settings.json"),
        ("--out", "folder"),
        ("--svg", "no/heat.svg"),
        ("--svg", "folder"),
    ] {
        // The step would fail, if it ran.
        let output = tune(
            folder.path(),
            "bad step",
            &[&SMALL[..], &[option, path]].concat(),
        );
        let said = text(&output.stderr);
        assert!(said.contains(path) && !said.contains("broken"), "{said}");
        assert!(!folder.path().join("settings.json").exists());
    }
}

#[test]
fn a_wrong_command_line_is_refused() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_datapipes"));
        let output = command.arg("tune").args(args).output().unwrap();
        (output.status.code(), text(&output.stderr).to_owned())
    };
    for (args, what) in [
        (&["--", "train"][..], "--out is missing"),
        (&["--out", "a.json"], "the program is missing"),
        (&["--out", "a.json", "--fast"], "there is no option --fast"),
        (
            &["a.state", "--out", "a.json", "--", "train"],
            "one word too many",
        ),
        (
            &["--out", "a.json", "--cores", "many", "--", "train"],
            "--cores many",
        ),
    ] {
        let (status, said) = run(args);
        assert!(status == Some(2) && said.starts_with(what), "{said}");
    }
}
