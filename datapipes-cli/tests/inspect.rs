//! The command `inspect`, run as a program.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use datapipes::Tensor;
use datapipes_io::Sample;
use datapipes_io::formats::{Array, Example, NpzWriter, SampleWriter, TfRecordWriter};
use serde_json::{Value, json};

fn inspect(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .arg("inspect")
        .args(args)
        .output()
        .expect("the program runs")
}

/// Runs the program; returns the lines that it printed, and its exit status.
fn lines(place: &Path, args: &[&str]) -> (Vec<Value>, i32) {
    let output = inspect(&[&[place.to_str().unwrap()], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let values = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    (values, output.status.code().unwrap())
}

fn write(folder: &tempfile::TempDir, name: &str, data: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, data).unwrap();
    path
}

const A: &str = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";

fn shard() -> Vec<u8> {
    let mut writer = SampleWriter::new(Vec::new());
    for key in ["x/1", "x/2", "x/3"] {
        writer
            .write(&Sample::new(key).with("txt", "a").with("cls", "7"))
            .unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn an_index_of_records_is_no_array_in_a_folder_either() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "train.idx", "0\t0\n1\t24\n");
    assert_eq!(lines(folder.path(), &[]), lines(&path, &[]));
    assert_eq!(lines(&path, &[]).1, 0);
}

#[test]
fn members_samples_and_bytes_of_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "s.tar", shard());
    let (members, status) = lines(&path, &[]);
    assert_eq!((members.len(), status), (6, 0));
    assert_eq!(
        members[0],
        json!({ "name": "x/1.txt", "type": "file", "size": 1, "sha256": A })
    );
    let (samples, _) = lines(&path, &["--as", "samples", "--limit", "2"]);
    assert_eq!(samples.len(), 2);
    assert_eq!(samples[1]["key"], "x/2");
    assert_eq!(
        samples[1]["fields"]["txt"],
        json!({ "size": 1, "sha256": A })
    );
    let (bytes, _) = lines(&path, &["--as", "bytes"]);
    assert_eq!((bytes.len(), &bytes[0]["size"]), (1, &json!(shard().len())));
    // A compressed one is the same.
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &shard()).unwrap();
    let packed = write(&folder, "packed.tar.gz", gzip.finish().unwrap());
    assert_eq!(lines(&packed, &[]), (members, 0));
    assert_eq!(lines(&packed, &["--as", "bytes"]), (bytes, 0));
}

#[test]
fn how_an_archive_ends_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let whole = shard();
    let second = (whole.len() - 1024) / 2;
    for (name, archive, members, says) in [
        (
            "cut.tar",
            whole[..second].to_vec(),
            3,
            "no end marker, so that members may be missing; at byte",
        ),
        ("twice.tar", whole.repeat(2), 6, "data after the end"),
    ] {
        let (lines, status) = lines(&write(&folder, name, archive), &["--as", "members"]);
        assert_eq!((lines.len(), status), (members + 1, 1), "{lines:?}");
        assert!(
            lines[members]["cause"].as_str().unwrap().contains(says),
            "{lines:?}"
        );
    }
}

#[test]
fn what_is_packed_again_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "s.tar", shard());
    let again = folder.path().join("again.tar");
    let (samples, status) = lines(&path, &["--pack", again.to_str().unwrap()]);
    assert_eq!((samples.len(), status), (3, 0));
    assert!(std::fs::read(&again).unwrap() == shard());
    // Onto itself, too; and what fails takes the place of nothing.
    assert_eq!(lines(&again, &["--pack", again.to_str().unwrap()]).1, 0);
    assert!(std::fs::read(&again).unwrap() == shard());
    let cut = write(&folder, "cut.tar", &shard()[..1700]);
    assert_eq!(lines(&cut, &["--pack", again.to_str().unwrap()]).1, 1);
    assert!(std::fs::read(&again).unwrap() == shard());
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_listed_costs_itself_only() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "a.txt", "one");
    std::os::unix::fs::symlink("nowhere", folder.path().join("broken")).unwrap();
    let output = inspect(&[folder.path().to_str().unwrap(), "--skip-errors"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && shown.ends_with("{\"index\":0,\"text\":\"one\"}\n"),
        "{shown}"
    );
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "1 could not be read\n"
    );
}

#[test]
fn a_url_of_a_file_is_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "a b.txt", "one");
    let url = format!("file://{}", path.display().to_string().replace(' ', "%20"));
    assert_eq!(lines(Path::new(&url), &[]), lines(&path, &[]));
}

#[test]
fn an_error_comes_in_its_place_and_may_be_skipped() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "1.tar", shard());
    write(&folder, "2.tar", &shard()[..1700]);
    write(&folder, "3.tar", shard());
    let (shown, status) = lines(folder.path(), &["--as", "samples"]);
    assert_eq!((shown.len(), status), (4, 1), "{shown:?}");
    let error = &shown[3];
    assert_eq!(
        (&error["error"], &error["node"]),
        (&json!("Truncated"), &json!("untar"))
    );
    assert!(
        error["item"].as_str().unwrap().ends_with("2.tar"),
        "{error}"
    );
    let output = inspect(&[
        folder.path().to_str().unwrap(),
        "--as",
        "samples",
        "--skip-errors",
    ]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 7);
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "1 could not be read\n"
    );
}

#[test]
fn arrays_with_their_values_in_one_order_and_dumped() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap();
    let array = Array::from_tensor(&tensor).unwrap();
    let single = write(&folder, "single.npy", array.to_npy());
    let mut npz = NpzWriter::new(std::io::Cursor::new(Vec::new())).deflated();
    npz.add("a", &array).unwrap();
    npz.add("b", &array).unwrap();
    let several = write(&folder, "several.npz", npz.finish().unwrap().into_inner());
    let (shown, _) = lines(&single, &[]);
    let expected = &shown[0];
    assert_eq!(expected["name"], "single");
    assert_eq!(
        (&expected["dtype"], &expected["shape"]),
        (&json!("float32"), &json!([2, 3]))
    );
    assert_eq!(expected["fortran_order"], false);
    let out = folder.path().join("out");
    let (shown, status) = lines(&several, &["--dump", out.to_str().unwrap()]);
    assert_eq!(
        (shown.len(), status, &shown[1]["name"]),
        (2, 0, &json!("b"))
    );
    assert_eq!(shown[0]["sha256"], expected["sha256"]);
    assert_eq!(std::fs::read(out.join("a.npy")).unwrap(), array.to_npy());
    // Names that are the same as files each get one.
    let mut zip = NpzWriter::new(std::io::Cursor::new(Vec::new()));
    for name in ["x/a", "x_a", "x_a-2"] {
        zip.add(name, &array).unwrap();
    }
    let same = write(&folder, "same.npz", zip.finish().unwrap().into_inner());
    let out = folder.path().join("same");
    assert_eq!(lines(&same, &["--dump", out.to_str().unwrap()]).0.len(), 3);
    assert_eq!(std::fs::read_dir(out).unwrap().count(), 3);
    // A file without arrays is reported as such.
    let (shown, status) = lines(&write(&folder, "t.txt", "one"), &["--as", "arrays"]);
    assert_eq!((status, &shown[0]["error"]), (1, &json!("Unsupported")));
}

#[test]
fn lines_rows_and_records() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(&folder, "t.txt", "one\ntwo\n");
    assert_eq!(lines(&text, &[]).0[1], json!({ "index": 1, "text": "two" }));
    let table = write(&folder, "t.csv", "id,name\n1,a\n2,\"b, c\"\n");
    assert_eq!(
        lines(&table, &[]).0[1],
        json!({ "index": 1, "row": { "id": "2", "name": "b, c" } })
    );
    let json = write(&folder, "t.jsonl", "{\"a\": 1}\n[0.1]\n");
    assert_eq!(lines(&json, &[]).0[1], json!({ "index": 1, "row": [0.1] }));
    let mut records = TfRecordWriter::new(Vec::new());
    records
        .write(&Example::new().with("label", vec![3_i64]).encode())
        .unwrap();
    records.write(b"a").unwrap();
    let records = write(&folder, "t.tfrecord", records.finish().unwrap().0);
    let (shown, status) = lines(&records, &[]);
    assert_eq!(
        (shown.len(), status, &shown[0]["features"]["label"]),
        (2, 0, &json!([3]))
    );
    assert_eq!(
        shown[1],
        json!({ "index": 1, "size": 1, "sha256": A, "features": null })
    );
}

#[test]
fn wrong_usage_is_told_from_what_is_not_there() {
    assert_eq!(inspect(&[]).status.code(), Some(2));
    assert_eq!(inspect(&["x", "--as", "pictures"]).status.code(), Some(2));
    assert_eq!(inspect(&["x", "--deep"]).status.code(), Some(2));
    assert_eq!(
        inspect(&["x", "--as", "lines", "--pack", "y"])
            .status
            .code(),
        Some(2)
    );
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (write(&folder, "s.tar", shard()), folder.path());
    let refused = lines(&path, &["--pack", to.to_str().unwrap()]);
    assert_eq!(refused, (vec![], 1), "nothing is read in vain");
    let (shown, status) = lines(Path::new("/no/such/file.tar"), &[]);
    assert_eq!(
        (shown.len(), status, &shown[0]["error"]),
        (1, 1, &json!("NotFound"))
    );
}

#[cfg(unix)]
#[test]
fn a_shard_replaces_nothing_but_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (
        write(&folder, "s.tar", shard()),
        folder.path().join("socket"),
    );
    let _listener = std::os::unix::net::UnixListener::bind(&to).unwrap();
    let refused = lines(&path, &["--pack", to.to_str().unwrap()]);
    assert_eq!(refused, (vec![], 1), "nothing is read in vain");
    assert!(!to.metadata().unwrap().is_file());
}

/// Answers requests by their path, a connection each, and returns the URL of the server.
fn serve(answers: Vec<(String, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = BufReader::new(socket.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && socket.read_line(&mut head).unwrap() > 0 {}
            let path = head.split(' ').nth(1).unwrap_or_default();
            let found = answers.iter().find(|(known, _)| known == path);
            let (line, text) = match found {
                Some((_, text)) => ("200 OK", &**text),
                None => ("404 Not Found", ""),
            };
            let size = text.len();
            let answer = format!(
                "HTTP/1.1 {line}\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n{text}"
            );
            let _ = socket.get_mut().write_all(answer.as_bytes());
        }
    });
    url
}

#[cfg(feature = "http")]
#[test]
fn a_repository_of_the_hub_is_listed_and_its_files_are_read() {
    let sha = "1".repeat(40);
    let hub = serve(vec![
        (
            "/api/datasets/org/name/revision/main?expand=sha".into(),
            json!({ "sha": sha }).to_string(),
        ),
        (
            format!("/api/datasets/org/name/tree/{sha}?recursive=true&expand=false"),
            r#"[{"type":"file","path":"x/a.txt","size":1}]"#.into(),
        ),
        (
            format!("/datasets/org/name/resolve/{sha}/x/a.txt"),
            "a".into(),
        ),
    ]);
    for place in ["hf://datasets/org/name", "hf://datasets/org/name/x/a.txt"] {
        let output = Command::new(env!("CARGO_BIN_EXE_datapipes"))
            .args(["inspect", place])
            .env("HF_ENDPOINT", &hub)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text} {:?}", output.stderr);
        let line: Value = serde_json::from_str(&text).unwrap();
        assert!(line.to_string().contains("a"), "{line}");
    }
    // Nothing is requested.
    let output = Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .args(["inspect", "hf://datasets/org/name"])
        .envs([("HF_ENDPOINT", &*hub), ("HF_HUB_OFFLINE", "1")])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("HF_HUB_OFFLINE is set"), "{said}");
}

#[test]
fn a_shard_is_packed_although_the_reader_of_the_lines_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    // More lines than are buffered.
    let mut writer = SampleWriter::new(Vec::new());
    for key in 0..500 {
        let sample = Sample::new(format!("{key:03}")).with("txt", "a");
        writer.write(&sample).unwrap();
    }
    let path = write(&folder, "s.tar", writer.finish().unwrap());
    let (reader, gone) = std::io::pipe().unwrap();
    drop(reader);
    let again = folder.path().join("again.tar");
    let status = Command::new(env!("CARGO_BIN_EXE_datapipes"))
        .args(["inspect", path.to_str().unwrap()])
        .args(["--pack", again.to_str().unwrap()])
        .stdout(gone)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(lines(&again, &["--as", "samples"]).0.len(), 500);
}

#[test]
#[cfg(target_os = "linux")]
fn a_name_that_is_no_text_is_not_said_to_be_missing() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "b.txt", "a");
    let name = std::ffi::OsStr::from_bytes(b"a\xff.txt");
    std::fs::write(folder.path().join(name), "a").unwrap();
    let (printed, status) = lines(folder.path(), &["--skip-errors"]);
    assert_eq!((printed.len(), status), (2, 0), "{printed:?}");
    assert_eq!(printed[0]["error"], "Unsupported", "{printed:?}");
    assert_eq!(printed[1]["text"], "a");
}
