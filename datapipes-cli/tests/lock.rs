//! The command `lock`, run as a program.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn lock(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .arg("lock")
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("data/train")).unwrap();
    for name in ["train/1.txt", "train/2.txt", "notes"] {
        fs::write(folder.path().join("data").join(name), name).unwrap();
    }
    folder
}

#[test]
fn a_lock_is_written_and_differences_are_printed() {
    let folder = data();
    let at = |name: &str| folder.path().join(name);
    let written = lock(folder.path(), &["data", "data.lock", "--digest"]);
    assert_eq!(
        text(&written.stdout),
        "3 files in data.lock\n",
        "{written:?}"
    );
    let first = fs::read_to_string(at("data.lock")).unwrap();
    assert_eq!(first.lines().count(), 4);
    assert!(
        first.contains("\"name\":\"train/2.txt\",\"size\":11,"),
        "{first}"
    );
    lock(folder.path(), &["data", "data.lock", "--digest"]);
    assert_eq!(fs::read_to_string(at("data.lock")).unwrap(), first);

    let check = || lock(folder.path(), &["data", "data.lock", "--check"]);
    assert!(check().status.success() && check().stdout.is_empty());
    fs::write(at("data/train/1.txt"), "TRAIN/1.TXT").unwrap();
    fs::remove_file(at("data/notes")).unwrap();
    fs::write(at("data/train/3.txt"), "").unwrap();
    let found = check();
    assert_eq!(found.status.code(), Some(1));
    let lines: Vec<_> = text(&found.stdout).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], "notes (file 0) is missing");
    assert!(lines[1].starts_with("train/1.txt (file 1) has the hash "));
    assert_eq!(lines[2], "train/3.txt (file 2 now) is new");
}

#[test]
fn a_pattern_limits_the_files() {
    let folder = data();
    let written = lock(folder.path(), &["data", "t.lock", "--pattern", "train/*"]);
    assert_eq!(text(&written.stdout), "2 files in t.lock\n");
    fs::write(folder.path().join("data/more"), "").unwrap();
    assert!(
        lock(folder.path(), &["data", "t.lock", "--check"])
            .status
            .success()
    );
}

#[test]
fn a_lock_that_would_lock_itself_is_refused() {
    let folder = data();
    let inside = lock(folder.path(), &["data", "data/train/../data.lock"]);
    assert!(!inside.status.success(), "{inside:?}");
    let said = text(&inside.stderr);
    assert!(said.contains("would be one of the files"), "{said}");
    assert!(!folder.path().join("data/data.lock").exists());
    for more in [&["--pattern", "train/*"][..], &["--check"]] {
        let args = [&["data", "data/data.lock"], more].concat();
        let done = lock(folder.path(), &args);
        assert!(done.status.success(), "{done:?}");
    }
}

#[test]
fn a_lock_that_cannot_be_written_is_refused_before_the_data_are_read() {
    let folder = data();
    // An error of the data would come first if they were read first.
    for args in [
        ["nowhere", "no/x.lock", "--digest"],
        ["nowhere", "data", "--digest"],
    ] {
        let output = lock(folder.path(), &args);
        assert!(!output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        assert!(
            said.contains(args[1]) && !said.contains("nowhere"),
            "{said}"
        );
    }
}

#[test]
fn what_cannot_be_locked_says_why() {
    let folder = data();
    let failed = |args: &[&str]| {
        let output = lock(folder.path(), args);
        assert!(!output.status.success(), "{output:?}");
        text(&output.stderr).to_owned()
    };
    assert!(failed(&["data"]).starts_with("a folder and a lock file are needed"));
    assert!(failed(&["nowhere", "x.lock"]).contains("nowhere"));
    let missing = failed(&["data", "no/x.lock"]);
    assert!(
        missing.ends_with("no/x.lock: No such file or directory (os error 2)\n"),
        "{missing}"
    );
    assert!(failed(&["data", "x.lock", "--pattern", "*.jpg"]).contains("no object matches"));
    assert!(failed(&["data", "none.lock", "--check"]).contains("none.lock"));
    assert!(failed(&["data", "x.lock", "--check", "--digest"]).starts_with("--check takes"));
    let notes = "data/notes";
    assert!(failed(&["data", notes, "--check"]).contains("line 1: no lock"));
}

#[test]
fn inspect_and_tokenize_refuse_what_has_changed_since() {
    let folder = data();
    fs::write(
        folder.path().join("data/train/3.jsonl"),
        "{\"text\":\"a\"}\n",
    )
    .unwrap();
    lock(folder.path(), &["data", "data.lock"]);
    let run = |command: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_datapipes"))
            .args(command)
            .args(["--locked", "data.lock"])
            .current_dir(&folder)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), text(&said).to_owned())
    };
    let (passed, said) = run(&["inspect", "data"]);
    assert!(passed && said.lines().count() == 4, "{said}");
    fs::write(folder.path().join("data/train/4.txt"), "").unwrap();
    let (passed, said) = run(&["inspect", "data"]);
    assert!(
        !passed && said.contains("train/4.txt (file 4 now) is new"),
        "{said}"
    );
    let tokenizer = folder.path().join("tokenizer.json");
    let model = r#"{"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#;
    fs::write(tokenizer, model).unwrap();
    let tokenize = [
        "tokenize",
        "data",
        "--tokenizer",
        "tokenizer.json",
        "--out",
        "out",
    ];
    let (passed, said) = run(&tokenize);
    assert!(
        !passed && said.contains("train/4.txt (file 4 now) is new"),
        "{said}"
    );
    let (passed, said) = run(&["inspect", "data", "--limit", "1", "--as", "bytes"]);
    assert!(!passed, "{said}");
}

#[test]
fn a_reader_that_has_gone_does_not_change_the_exit_status_and_a_full_disk_is_named() {
    let folder = data();
    let run = |args: &[&str], to: std::process::Stdio| {
        Command::new(env!("CARGO_BIN_EXE_datapipes"))
            .args(args)
            .current_dir(folder.path())
            .stdout(to)
            .output()
            .unwrap()
    };
    let gone = || std::io::pipe().unwrap().1.into();
    let written = run(&["lock", "data", "data.lock"], gone());
    assert_eq!(written.status.code(), Some(0), "{written:?}");
    fs::remove_file(folder.path().join("data/notes")).unwrap();
    let checked = run(&["lock", "data", "data.lock", "--check"], gone());
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    assert!(checked.stderr.is_empty(), "{checked:?}");
    let wrong = Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .arg("unlock")
        .stderr(std::io::pipe().unwrap().1)
        .status();
    assert_eq!(wrong.unwrap().code(), Some(2));
    if !cfg!(target_os = "linux") {
        return;
    }
    let full = || {
        let full = fs::File::options().write(true).open("/dev/full");
        full.unwrap().into()
    };
    for args in [
        &["lock", "data", "data.lock", "--check"][..],
        &["lock", "data", "data.lock"],
        &["inspect", "data"],
        &["--help"],
    ] {
        let refused = run(args, full());
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let said = text(&refused.stderr);
        assert!(said.starts_with("error: standard output: "), "{said}");
    }
}
