//! The command `blame`, run as a program over a program that trains: a test of this file.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use datapipes::{BoxError, DataLoader, Graph, Tensor};

/// A training that answers, and writes to the file `trained` when it trains. It is started by the
/// other tests, and does nothing as a test.
#[test]
fn training() -> Result<(), BoxError> {
    let Ok(kind) = std::env::var("TEST_TRAINING") else {
        return Ok(());
    };
    let graph = Graph::range(0..40)
        .try_map(|n| Tensor::from_vec(vec![n as u8; 12], [2, 2, 3]))
        .named("picture")
        .shuffle(20)
        .batch(4);
    let seed = if kind == "another" { 8 } else { 7 };
    let loader = DataLoader::builder(graph).seed(seed).resumable().build()?;
    println!("the program prints this");
    if kind == "ends" || kind != "mute" && loader.answer_blame()? {
        return Ok(());
    }
    let mut epoch = loader.epoch(0).blocking();
    for _ in 0..5 {
        epoch.next().ok_or("no batch")??;
    }
    epoch.checkpoint()?.save("train.state")?;
    fs::write("trained", "")?;
    Ok(())
}

/// Returns the program that trains.
fn program() -> [String; 4] {
    let this = std::env::current_exe().unwrap();
    [this.to_str().unwrap(), "--exact", "training", "--nocapture"].map(str::to_owned)
}

/// Returns a folder with a checkpoint after 5 steps.
fn trained() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let [program, args @ ..] = program();
    let status = Command::new(program)
        .args(args)
        .env("TEST_TRAINING", "trains")
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
    fs::remove_file(folder.path().join("trained")).unwrap();
    folder
}

fn blame(folder: &Path, kind: &str, args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .arg("blame")
        .args(args)
        .arg("--")
        .args(program())
        .env("TEST_TRAINING", kind)
        .current_dir(folder)
        .output()
        .expect("the program runs");
    assert!(!folder.join("trained").exists(), "it did not train");
    output
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_program_answers_and_does_not_train() {
    let folder = trained();
    for steps in ["6..8", "1..3"] {
        let output = blame(folder.path(), "trains", &["train.state", "--steps", steps]);
        let answer = text(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(answer.starts_with("epoch 0, seed 7\nstep "), "{answer}");
        assert_eq!(answer.matches("U8 [2, 2, 3]").count(), 8, "{answer}");
        // Only the answer is on standard output.
        assert!(!answer.contains("the program prints this"));
        assert!(text(&output.stderr).contains("the program prints this"));
    }
    let args = ["train.state", "--steps", "6..7", "--out", "pictures"];
    assert!(blame(folder.path(), "trains", &args).status.success());
    let files = fs::read_dir(folder.path().join("pictures/step-6")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 4);
    for file in files {
        let image = datapipes_image::decode(&fs::read(file).unwrap()).unwrap();
        assert_eq!((image.width(), image.height(), image.channels()), (2, 2, 3));
        assert!(image.data().iter().all(|shade| *shade == image.data()[0]));
    }
}

#[test]
fn a_question_without_an_answer_says_why_and_nothing_is_trained() {
    let folder = trained();
    let state = folder.path().join("train.state");
    let bytes = fs::read(&state).unwrap();
    fs::write(folder.path().join("cut.state"), &bytes[..bytes.len() / 2]).unwrap();
    for (kind, state, steps, what) in [
        (
            "mute",
            "train.state",
            "6..8",
            "no loader answered before this epoch",
        ),
        ("ends", "train.state", "6..8", "ended without an answer"),
        ("another", "train.state", "6..8", "seed 7, and 8 now"),
        ("trains", "train.state", "9..20", "epoch 0 has 10 steps"),
        ("trains", "train.state", "8", "range of steps"),
        ("trains", "cut.state", "6..8", "cut.state"),
        ("trains", "no.state", "6..8", "no.state"),
    ] {
        let output = blame(folder.path(), kind, &[state, "--steps", steps]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains(what) && output.stdout.is_empty(), "{said}");
    }
}

#[test]
fn a_wrong_command_line_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_datapipes"))
            .arg("blame")
            .args(args)
            .current_dir(&folder)
            .output()
            .unwrap();
        (output.status.code(), text(&output.stderr).to_owned())
    };
    for (args, what) in [
        (&["--steps", "1..2"][..], "the checkpoint is missing"),
        (&["a.state"], "--steps is missing"),
        (&["a.state", "--steps", "1..2"], "the program is missing"),
        (&["a.state", "--fast"], "there is no option --fast"),
    ] {
        let (status, said) = run(args);
        assert!(status == Some(2) && said.starts_with(what), "{said}");
    }
}
