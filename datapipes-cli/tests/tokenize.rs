//! The command `tokenize`, run as a program.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datapipes_text::{HfTokenizer, TokenStore, TokenWidth, Tokenize};
use flate2::{Compression, write::GzEncoder};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};
use tempfile::TempDir;

const WORDS: [&str; 5] = ["hello", "good", "day", "the", "fox"];

/// Returns a tokenizer of the words, and of more that no text has; `<eos>` is 0.
fn tokenizer_of(more: usize) -> String {
    let known = WORDS.iter().map(|word| (*word).to_owned());
    let words = ["<eos>", "[unk]"].iter().map(|word| (*word).to_owned());
    let words = words
        .chain(known)
        .chain((0..more).map(|number| format!("more{number}")));
    let vocab: serde_json::Map<_, _> = words.zip((0..).map(Value::from)).collect();
    let special = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        })
    };
    let piece = |kind: &str, id: &str| json!({ kind: { "id": id, "type_id": 0 } });
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "normalizer": null,
        "decoder": null,
        "added_tokens": [special(0, "<eos>")],
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("Sequence", "A"), piece("SpecialToken", "<eos>")],
            "pair": [piece("Sequence", "A"), piece("Sequence", "B")],
            "special_tokens": { "<eos>": { "id": "<eos>", "ids": [0], "tokens": ["<eos>"] } },
        },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[unk]" },
    });
    tokenizer.to_string()
}

/// A folder with a tokenizer.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.write("tokenizer.json", tokenizer_of(0));
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, data: impl AsRef<[u8]>) -> String {
        let path = PathBuf::from(self.path(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, data).unwrap();
        self.path(name)
    }

    /// Returns the command for a corpus, which ends with the name of the output.
    fn command(&self, inputs: &[&str], out: &str, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_datapipes"));
        command
            .arg("tokenize")
            .args(inputs.iter().map(|name| self.path(name)));
        command.args(["--tokenizer", &self.path("tokenizer.json")]);
        command.args(options).args(["--out", &self.path(out)]);
        command
    }

    fn run(&self, inputs: &[&str], out: &str, options: &[&str]) -> Output {
        self.command(inputs, out, options).output().unwrap()
    }

    /// Runs the command, which succeeds; returns what it printed.
    fn succeeds(&self, inputs: &[&str], out: &str, options: &[&str]) -> (String, String) {
        let output = self.run(inputs, out, options);
        let said = (text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{said:?}");
        said
    }

    /// Runs the command, which fails; returns why.
    fn fails(&self, inputs: &[&str], out: &str, options: &[&str]) -> String {
        let output = self.run(inputs, out, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        text(output.stderr)
    }

    /// Returns all files of a finished store.
    fn files(&self, out: &str) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(self.path(out)).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                (
                    path.file_name().unwrap().to_str().unwrap().to_owned(),
                    fs::read(path).unwrap(),
                )
            })
            .collect();
        files.sort();
        files
    }

    fn megatron(&self, out: &str) -> TokenStore {
        TokenStore::megatron(self.path(&format!("{out}/corpus"))).unwrap()
    }

    /// Returns the tokens of texts, one by one.
    fn encode(&self, texts: &[String]) -> Vec<Vec<u32>> {
        let tokenizer = HfTokenizer::from_file(self.path("tokenizer.json")).unwrap();
        let tokenize = Tokenize::new(tokenizer).end("<eos>");
        texts
            .iter()
            .map(|text| tokenize.tokens(text).unwrap().ids)
            .collect()
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn documents(store: &TokenStore) -> Vec<Vec<u32>> {
    let numbers = 0..store.document_count();
    numbers
        .map(|number| store.document(number).unwrap())
        .collect()
}

/// Returns texts of up to `longest` words.
fn texts(count: usize, longest: usize) -> Vec<String> {
    let word = |n: usize| WORDS[n * n % 7 % 5];
    let text = |n: usize| {
        (0..n * 31 % longest)
            .map(|at| word(n + at))
            .collect::<Vec<_>>()
            .join(" ")
    };
    (0..count).map(text).collect()
}

fn json_lines(texts: &[String]) -> String {
    let line = |(id, text)| json!({ "id": id, "text": text }).to_string() + "\n";
    texts.iter().enumerate().map(line).collect()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_store_has_the_tokens_of_each_document_in_order() {
    let place = Place::new();
    let all = texts(90, 20);
    place.write("in/a.jsonl", json_lines(&all[..30]));
    place.write(
        "in/b/b.jsonl.gz",
        gzip(json_lines(&all[30..60]).replace('\n', "\r\n\n").as_bytes()),
    );
    let last = json_lines(&all[60..]);
    place.write("in/c.ndjson", last.trim_end());
    place.write("in/notes.bin", "not of the corpus");
    let expected = place.encode(&all);
    let tokens: usize = expected.iter().map(Vec::len).sum();
    let (said, _) = place.succeeds(&["in"], "out", &["--end", "<eos>"]);
    let line = format!(
        "{}: 90 documents, {tokens} tokens, ",
        place.path("out/corpus")
    );
    assert!(
        said.starts_with(&line) && said.ends_with(" tokens/s\n"),
        "{said}"
    );
    let store = place.megatron("out");
    assert_eq!(
        (store.width(), documents(&store)),
        (TokenWidth::U16, expected.clone())
    );

    place.succeeds(
        &["in"],
        "other",
        &["--end", "<eos>", "--format", "datatrove"],
    );
    let store = TokenStore::datatrove(place.path("other/corpus.ds")).unwrap();
    assert_eq!(documents(&store), expected);

    // By name, in the order given; by a pattern, sorted; by a URL.
    place.succeeds(&["in/c.ndjson", "in/a.jsonl"], "named", &["--end", "<eos>"]);
    assert_eq!(
        documents(&place.megatron("named")),
        [&expected[60..], &expected[..30]].concat()
    );
    place.succeeds(&["in/**/*.json[l]*"], "globbed", &["--end", "<eos>"]);
    assert_eq!(documents(&place.megatron("globbed")), expected[..60]);
    for (name, documents_there) in [("in/a.jsonl", 30), ("in/", 90), ("in/*.ndjson", 30)] {
        let url = format!("file://{}", place.path(name));
        let mut run = place.command(&[], "url", &["--end", "<eos>", &url]);
        let output = run.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(place.megatron("url").document_count(), documents_there);
        fs::remove_dir_all(place.path("url")).unwrap();
    }
}

#[test]
fn a_text_file_is_a_document() {
    let place = Place::new();
    let all = ["hello good day", "the fox\nthe fox\n", ""].map(str::to_owned);
    place.write("in/1.txt", &all[0]);
    place.write("in/2.txt.gz", gzip(all[1].as_bytes()));
    place.write("in/3.txt", &all[2]);
    let (said, _) = place.succeeds(&["in"], "out", &["--end", "<eos>"]);
    assert!(said.contains("3 documents, 10 tokens"), "{said}");
    assert_eq!(documents(&place.megatron("out")), place.encode(&all));
    place.write("in/4.txt", b"hello \xff");
    let said = place.fails(&["in"], "bad", &[]);
    assert!(
        said.contains("in/4.txt: corrupt: byte 6 of the text is no UTF-8"),
        "{said}"
    );
}

#[test]
fn any_number_of_workers_writes_the_same() {
    let place = Place::new();
    // One file is cut into pieces, and there are small ones.
    let all = texts(6000, 40);
    place.write("in/1.jsonl", json_lines(&all[..4000]));
    place.write("in/2.jsonl.gz", gzip(json_lines(&all[4000..]).as_bytes()));
    for name in ["in/3.jsonl", "in/4.jsonl"] {
        place.write(name, json_lines(&all[..10]));
    }
    place.succeeds(&["in"], "one", &["--workers", "1"]);
    let often = ["--workers", "3", "--checkpoint-every", "10000"];
    let (_, said) = place.succeeds(&["in"], "three", &often);
    // There is no terminal for a bar.
    assert!(said.contains(" tokens/s, "), "{said}");
    place.succeeds(&["in"], "none", &["--workers", "0"]);
    let one = place.files("one");
    let names: Vec<_> = one.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["corpus.bin", "corpus.idx", "corpus.json"]);
    assert!(one == place.files("three") && one == place.files("none"));
}

/// The system kills a process that makes a file larger than it may be: a kill at a place in the
/// data.
#[cfg(unix)]
#[test]
fn a_killed_run_is_resumed_exactly() {
    use std::os::unix::process::ExitStatusExt;
    let place = Place::new();
    let all = texts(5000, 40);
    // The first error comes before the first kill.
    place.write("in/1.jsonl", format!("{}no JSON\n", json_lines(&all[..10])));
    place.write("in/2.jsonl", json_lines(&all[10..3000]));
    place.write("in/3.jsonl.gz", gzip(json_lines(&all[3000..]).as_bytes()));
    for format in ["megatron", "datatrove"] {
        let whole = format!("whole-{format}");
        let options = ["--skip-errors", "--format", format];
        let (_, said) = place.succeeds(&["in"], &whole, &options);
        assert!(
            said.ends_with("\n1 could not be read and were skipped\n"),
            "{said}"
        );
        let options = [&options[..], &["--checkpoint-every", "7000"]].concat();
        // Blocks of 512 or 1024 bytes.
        for (limit, workers, resumes) in [("50", "3", false), ("90", "1", true), ("150", "2", true)]
        {
            let options = [&options[..], &["--workers", workers]].concat();
            let run = place.command(&["in"], format, &options);
            let output = Command::new("sh")
                .args(["-c", r#"ulimit -c 0; ulimit -f "$0"; exec "$@""#, limit])
                .arg(run.get_program())
                .args(run.get_args())
                .output()
                .unwrap();
            assert!(output.status.signal().is_some(), "{output:?}");
            assert_eq!(text(output.stderr).contains("resumed after"), resumes);
        }
        let (_, said) = place.succeeds(&["in"], format, &options);
        assert!(said.starts_with("resumed after "), "{said}");
        assert!(
            said.ends_with("\n1 could not be read and were skipped\n"),
            "{said}"
        );
        assert!(place.files(&whole) == place.files(format));
        // A finished store is not written again.
        let before = place.files(format);
        let (said, _) = place.succeeds(&["in"], format, &options);
        assert!(
            said.contains(": finished before, 5000 documents, "),
            "{said}"
        );
        assert!(place.files(format) == before);
    }
}

#[test]
fn a_resumed_run_has_the_same_settings() {
    let place = Place::new();
    let all = texts(20, 20);
    place.write("in/1.jsonl", json_lines(&all));
    place.write("in/2.jsonl", json_lines(&all));
    place.succeeds(&["in"], "out", &[]);
    let before = place.files("out");
    let differs = |options: &[&str], what: &str| {
        let said = place.fails(&["in"], "out", options);
        assert!(
            said.contains("has a store of other settings; choose another --out"),
            "{said}"
        );
        assert!(
            said.contains(what) && said.matches("then").count() == 1,
            "{said}"
        );
        assert!(place.files("out") == before);
    };
    differs(&["--field", "body"], "field: \"text\" then, \"body\" now");
    differs(&["--end", "<eos>"], "end: null then, \"<eos>\" now");
    differs(
        &["--format", "datatrove"],
        "format: \"megatron\" then, \"datatrove\" now",
    );
    differs(
        &["--add-special-tokens"],
        "add-special-tokens: false then, true now",
    );
    place.write("in/3.jsonl", "");
    differs(&[], "files, number 3: none then, {\"name\":");
    fs::remove_file(place.path("in/3.jsonl")).unwrap();
    place.write("in/2.jsonl", "");
    differs(&[], "files, number 2: {\"name\":");
    place.write("in/2.jsonl", json_lines(&all));
    place.write("tokenizer.json", tokenizer_of(1));
    differs(&[], "tokenizer (SHA-256): ");
    place.write("tokenizer.json", tokenizer_of(0));
    // Settings that only change the speed, or what is skipped, may differ.
    place.succeeds(
        &["in"],
        "out",
        &["--workers", "1", "--checkpoint-every", "5", "--skip-errors"],
    );

    place.write("foreign/corpus.bin", "");
    let said = place.fails(&["in"], "foreign", &[]);
    assert!(
        said.contains("corpus.bin: it was not made by this command; choose another --out"),
        "{said}"
    );
    // A file of another program is left alone; one that was cut off in the writing is written anew.
    place.write("named/corpus.json", "[1, 2]\n");
    let said = place.fails(&["in"], "named", &[]);
    assert!(
        said.contains("corpus.json: ") && said.contains("choose another --out"),
        "{said}"
    );
    assert_eq!(
        fs::read(place.path("named/corpus.json")).unwrap(),
        b"[1, 2]\n"
    );
    place.write("cut/corpus.json", "{\n  \"tokenizer (SHA");
    place.succeeds(&["in"], "cut", &[]);
    let folder = fs::File::open(place.path("out/corpus.json")).unwrap();
    folder.lock().unwrap();
    let said = place.fails(&["in"], "out", &[]);
    assert!(said.contains(": another run writes here"), "{said}");
}

#[test]
fn what_cannot_be_read_is_named() {
    let place = Place::new();
    let one = |line: &str| {
        let place = Place::new();
        place.write(
            "in.jsonl",
            format!("{{\"text\": \"hello\"}}\n\n{line}\n{{\"text\": \"day\"}}\n"),
        );
        let said = place.fails(&["in.jsonl"], "out", &[]);
        // A wrong line costs no other document.
        let (_, skipped) = place.succeeds(&["in.jsonl"], "out", &["--skip-errors"]);
        assert!(
            skipped.ends_with("\n1 could not be read and were skipped\n"),
            "{skipped}"
        );
        assert_eq!(documents(&place.megatron("out")), [[2], [4]]);
        let prefix = format!(
            "error: field: {}/2: corrupt: line 3, ",
            place.path("in.jsonl")
        );
        let (what, help) = said
            .strip_prefix(&prefix)
            .and_then(|said| said.split_once('\n'))
            .unwrap_or_else(|| panic!("{said}"));
        assert!(help.contains("with --skip-errors goes on"), "{said}");
        assert!(skipped.contains(what), "{skipped}");
        assert!(!skipped.contains(help), "{skipped}");
        what.to_owned()
    };
    assert_eq!(one(r#"{"text": "a", }"#), "column 15: trailing comma");
    assert_eq!(
        one(r#"{"text": 3}"#),
        "field \"text\" is a number, not a string"
    );
    assert_eq!(one("[1]"), "an array, not an object");
    assert_eq!(
        one(r#"{"id": 1, "body": "a"}"#),
        "no field \"text\", which --field names; there are: \"body\", \"id\""
    );
    let says = |inputs: &[&str], options: &[&str], what: &str| {
        let said = place.fails(inputs, "out", options);
        assert!(said.contains(what), "{said}");
        assert!(!Path::new(&place.path("out")).exists(), "nothing was begun");
    };
    place.write("a.jsonl", "");
    place.write("b.txt", "");
    place.write("c.json", "");
    place.write("empty/notes", "");
    says(&["gone.jsonl"], &[], "gone.jsonl: no such file or folder");
    says(&["gone/*.jsonl"], &[], "/gone/: No such file");
    says(&["empty/*.jsonl"], &[], "empty/*.jsonl: no file matches");
    says(
        &["empty"],
        &[],
        "empty: no files of JSON lines, Parquet or text, by their names",
    );
    says(&["a.jsonl", "b.txt"], &[], "a.jsonl is jsonl and ");
    says(
        &["c.json"],
        &[],
        "c.json: its name does not say what it holds; --as jsonl reads",
    );
    says(
        &["a.jsonl"],
        &["--begin", "<s>"],
        "the tokenizer has no token \"<s>\"",
    );
    place.succeeds(&["c.json"], "as", &["--as", "jsonl"]);
    place.write("tokenizer.json", "{}");
    says(&["a.jsonl"], &[], "/tokenizer.json: no tokenizer");
    fs::remove_file(place.path("tokenizer.json")).unwrap();
    says(&["a.jsonl"], &[], "tokenizer.json: No such file");
}

#[test]
fn a_store_knows_its_tokenizer() {
    let place = Place::new();
    place.write("in.txt", "hello");
    let named = ["--format", "datatrove", "--tokenizer-name", "my/words"];
    place.succeeds(&["in.txt"], "named", &named);
    let metadata = fs::read_to_string(place.path("named/corpus.ds.metadata")).unwrap();
    assert_eq!(metadata.lines().next(), Some("my/words|2"));
    for (options, what) in [
        (&named[..2], "tokenizer-name: \"my/words\" then, none now"),
        (
            &["--format", "datatrove", "--tokenizer-name", "other"][..],
            "tokenizer-name: \"my/words\" then, \"other\" now",
        ),
    ] {
        let said = place.fails(&["in.txt"], "named", options);
        assert!(said.contains(what), "{said}");
    }
    place.succeeds(&["in.txt"], "named", &named);

    place.succeeds(&["in.txt"], "out", &[]);
    let tokenizer = || HfTokenizer::from_file(place.path("tokenizer.json")).unwrap();
    place.megatron("out").for_tokenizer(&tokenizer()).unwrap();
    place.write("tokenizer.json", tokenizer_of(1));
    let error = place.megatron("out").for_tokenizer(&tokenizer());
    let said = error.unwrap_err().to_string();
    assert!(
        said.contains("made with the tokenizer of SHA-256 "),
        "{said}"
    );
}

#[test]
fn a_document_that_is_too_large_is_named_with_its_size() {
    let place = Place::new();
    place.write(
        "in.jsonl",
        json_lines(&["hello".into(), "hello day".into()]),
    );
    let said = place.fails(&["in.jsonl"], "out", &["--max-bytes", "8"]);
    let what = "in.jsonl/1: limit reached: a text of 9 bytes, where at most 8 are allowed";
    assert!(said.contains(what), "{said}");
    let options = ["--max-bytes", "8", "--skip-errors"];
    let (said, skipped) = place.succeeds(&["in.jsonl"], "skipped", &options);
    assert!(said.contains("1 documents, 1 tokens"), "{said}");
    assert!(skipped.contains(what), "{skipped}");
    let said = place.fails(&["in.jsonl"], "skipped", &["--max-bytes", "9"]);
    assert!(said.contains("max-bytes: 8 then, 9 now"), "{said}");
}

#[test]
fn special_tokens_and_large_vocabularies() {
    let place = Place::new();
    place.write("in.txt", "hello <eos>");
    let tokens = |out: &str, options: &[&str]| {
        place.succeeds(&["in.txt"], out, options);
        let store = place.megatron(out);
        (store.width(), store.document(0).unwrap())
    };
    assert_eq!(tokens("plain", &[]), (TokenWidth::U16, vec![2, 0]));
    assert_eq!(tokens("added", &["--add-special-tokens"]).1, [2, 0, 0]);
    assert_eq!(
        tokens("around", &["--begin", "fox", "--end", "day"]).1,
        [6, 2, 0, 4]
    );
    // `<`, `eos` and `>` are words of their own.
    assert_eq!(
        tokens("as-text", &["--special-tokens-as-text"]).1,
        [2, 1, 1, 1]
    );
    place.write("tokenizer.json", tokenizer_of(70_000));
    assert_eq!(tokens("large", &[]), (TokenWidth::I32, vec![2, 0]));
    place.succeeds(&["in.txt"], "datatrove", &["--format", "datatrove"]);
    let store = TokenStore::datatrove(place.path("datatrove/corpus.ds")).unwrap();
    assert_eq!(
        (store.width(), documents(&store)),
        (TokenWidth::U32, vec![vec![2, 0]])
    );
}

#[test]
fn wrong_usage_is_told_from_failure() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_datapipes"))
            .args(args)
            .output()
            .unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    for (args, what) in [
        (&[][..], "a command is missing\ndatapipes COMMAND"),
        (
            &["eat"],
            "there is no command eat; there are blame, inspect, lock, tokenize, top, tune and worker",
        ),
        (
            &["tokenize"],
            "the files to tokenize are missing\ndatapipes tokenize IN…",
        ),
        (&["tokenize", "a", "--out", "b"], "--tokenizer is missing"),
        (&["tokenize", "a", "--tokenizer", "b"], "--out is missing"),
        (&["tokenize", "a", "--fast"], "there is no option --fast"),
    ] {
        let (status, _, said) = run(args);
        assert!(status == 2 && said.starts_with(what), "{said}");
    }
    let needed = ["tokenize", "a", "--tokenizer", "b", "--out", "c"];
    for (option, value) in [
        ("--format", "x"),
        ("--as", "x"),
        ("--workers", "x"),
        ("--checkpoint-every", "0"),
    ] {
        let (status, _, said) = run(&[&needed[..], &[option, value]].concat());
        assert!(
            status == 2 && said.starts_with(&format!("{option} {value}: ")),
            "{said}"
        );
    }
    let (status, help, _) = run(&["tokenize", "--help"]);
    assert!(
        status == 0 && help.contains("\n  --checkpoint-every TOKENS "),
        "{help}"
    );
    let (status, help, _) = run(&["--help"]);
    assert!(status == 0 && help.contains("\n  tokenize "), "{help}");
    // `--help | head` ends the reader first.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut help = Command::new(env!("CARGO_BIN_EXE_datapipes"));
    let help = help.args(["tokenize", "--help"]).stdout(writer).status();
    assert!(help.unwrap().success());
    assert_eq!(
        run(&["--version"]).1,
        format!("datapipes {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_row_of_parquet_is_a_document() {
    let place = Place::new();
    let table = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../datapipes-io/tests/data/table.parquet"
    );
    place.write("in/a.parquet", fs::read(table).unwrap());
    let said = place.fails(&["in"], "out", &["--end", "<eos>"]);
    let what = "a.parquet/3: corrupt: row 4, field \"text\" is null, not a string";
    assert!(
        said.starts_with("error: field: ") && said.contains(what),
        "{said}"
    );
    let (_, said) = place.succeeds(&["in"], "out", &["--end", "<eos>", "--skip-errors"]);
    assert!(said.contains(what), "{said}");
    let rows = [
        "one", "", "zwei ü", "", "zwei ü", "one", "", "zwei ü", "one",
    ];
    let rows = rows.map(str::to_owned);
    assert_eq!(documents(&place.megatron("out")), place.encode(&rows));
    let said = place.fails(&["in/*.parquet"], "none", &["--field", "body"]);
    assert!(
        said.contains("a.parquet: not found: ") && said.contains("body"),
        "{said}"
    );
}

#[test]
fn a_store_is_looked_into() {
    let place = Place::new();
    place.write(
        "in.jsonl",
        json_lines(&["hello", "good day"].map(str::to_owned)),
    );
    let look = |what: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_datapipes"));
        let output = command
            .arg("inspect")
            .arg(place.path(what))
            .args(more)
            .output();
        let lines = text(output.unwrap().stdout);
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<serde_json::Value>>()
    };
    let tokenizer = place.path("tokenizer.json");
    let words = ["--tokenizer", &*tokenizer];
    for (format, files) in [
        (
            "megatron",
            &["", "/corpus", "/corpus.bin", "/corpus.idx"][..],
        ),
        ("datatrove", &["", "/corpus.ds", "/"]),
    ] {
        place.succeeds(
            &["in.jsonl"],
            format,
            &["--format", format, "--end", "<eos>"],
        );
        let ids = place.encode(&["hello", "good day"].map(str::to_owned));
        for file in files {
            let shown = look(&format!("{format}{file}"), &[]);
            assert_eq!(shown[0], json!({ "index": 0, "tokens": 2, "ids": ids[0] }));
            assert_eq!(shown[1]["ids"], json!(ids[1]), "{format}{file}");
        }
        let shown = look(format, &words);
        assert_eq!(
            shown[1],
            json!({ "index": 1, "tokens": 3, "text": "good day <eos>" })
        );
    }
    let shown = look("datatrove/corpus.ds", &["--as", "bytes"]);
    assert_eq!(shown[0]["size"], 10);
    place.write("other/corpus.ds", "not of datatrove");
    assert_eq!(look("other/corpus.ds", &[])[0]["size"], 16);
    let shown = look("in.jsonl", &words);
    assert_eq!(
        shown[0]["cause"],
        "unsupported: --tokenizer is for a token store, and there is none"
    );
}

/// Returns a Parquet file of texts, in row groups of 500, with a column that nobody reads.
fn parquet_of(texts: &[String]) -> Vec<u8> {
    let numbers = (0..texts.len() as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64);
    let columns: [(&str, ArrayRef); 2] = [
        ("text", Arc::new(StringArray::from_iter_values(texts))),
        ("number", Arc::new(Int64Array::from_iter_values(numbers))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(500));
    let (mut data, properties) = (Vec::new(), Some(properties.build()));
    let mut writer = ArrowWriter::try_new(&mut data, batch.schema(), properties).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    data
}

#[test]
fn a_tokenizer_is_read_from_the_hub() {
    let place = Place::new();
    place.write("in.txt", "hello day");
    let commit = "1".repeat(40);
    let answers = [
        (
            "/api/models/org/model/revision/main?expand=sha",
            json!({ "sha": commit }).to_string(),
        ),
        (
            &*format!("/org/model/resolve/{commit}/tokenizer.json"),
            tokenizer_of(0),
        ),
    ];
    let answers = answers.map(|(path, body)| (path.to_owned(), body.into_bytes()));
    let hub = serve(Arc::new(Mutex::new(HashMap::from(answers))));
    let run = |file: &str| {
        let url = format!("hf://org/model/{file}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_datapipes"));
        command.args(["tokenize", &place.path("in.txt"), "--tokenizer", &url]);
        command
            .args(["--out", &place.path("out")])
            .env("HF_ENDPOINT", &hub);
        text(command.output().unwrap().stderr)
    };
    let said = run("tokeniser.json");
    assert!(
        said.contains("not found: hf://org/model/tokeniser.json"),
        "{said}"
    );
    for query in ["?token=marker", "#marker"] {
        let said = run(&format!("tokenizer.json{query}"));
        let what =
            "hf://org/model/tokenizer.json: the URL of a tokenizer has no query: download the file";
        assert!(said.contains(what) && !said.contains("marker"), "{said}");
    }
    assert_eq!(run("tokenizer.json"), "");
    assert_eq!(documents(&place.megatron("out")), [[2, 4]]);
}

/// The system kills the first run; see [`a_killed_run_is_resumed_exactly`].
#[cfg(unix)]
#[test]
fn a_large_file_of_parquet_is_read_by_row_groups() {
    let place = Place::new();
    let all = texts(20_000, 40);
    let data = parquet_of(&all);
    assert!(
        data.len() > 512 << 10,
        "{} bytes are read as a whole",
        data.len()
    );
    place.write("in/a.parquet", &data);
    place.write("in/b.parquet.gz", gzip(&parquet_of(&all[..50])));
    let options = ["--end", "<eos>", "--checkpoint-every", "7000"];
    let in_names = ["in/a.parquet", "in/b.parquet.gz"];
    place.succeeds(&in_names, "whole", &options);
    let store = place.megatron("whole");
    let expected = place.encode(&all);
    assert_eq!(documents(&store), [&expected[..], &expected[..50]].concat());

    let run = place.command(&in_names, "killed", &options);
    let output = Command::new("sh")
        .args(["-c", r#"ulimit -c 0; ulimit -f "$0"; exec "$@""#, "400"])
        .arg(run.get_program())
        .args(run.get_args())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    let (_, said) = place.succeeds(
        &in_names,
        "killed",
        &[&options[..], &["--workers", "1"]].concat(),
    );
    assert!(said.starts_with("resumed after "), "{said}");
    assert!(place.files("whole") == place.files("killed"));
}

/// Serves answers by path, each `Connection: close`, until the process ends; returns its address.
fn serve(answers: Arc<Mutex<HashMap<String, Vec<u8>>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = BufReader::new(socket.unwrap());
            let (mut head, mut line) = (String::new(), String::new());
            while socket.read_line(&mut line).unwrap() > 2 {
                head += &std::mem::take(&mut line);
            }
            let path = head.split(' ').nth(1).unwrap_or_default();
            let found = answers.lock().unwrap().get(path).cloned();
            let (line, body) = match found {
                Some(body) => ("200 OK", body),
                None => ("404 Not Found", Vec::new()),
            };
            let size = body.len();
            let answer =
                format!("HTTP/1.1 {line}\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n");
            let mut answer = answer.into_bytes();
            if !head.starts_with("HEAD ") {
                answer.extend(body);
            }
            let _ = socket.get_mut().write_all(&answer);
        }
    });
    url
}

/// The system kills the first run; see [`a_killed_run_is_resumed_exactly`].
#[cfg(unix)]
#[test]
fn a_run_over_the_hub_goes_on_at_its_commit_where_the_branch_has_moved() {
    let place = Place::new();
    let answers = Arc::new(Mutex::new(HashMap::new()));
    let answer = |path: &str, body: &[u8]| {
        let path = format!("/{path}");
        answers.lock().unwrap().insert(path, body.to_vec());
    };
    let point = |commit: &str| {
        let body = json!({ "sha": commit }).to_string();
        answer(
            "api/datasets/org/name/revision/main?expand=sha",
            body.as_bytes(),
        );
    };
    let (old, new) = ("1".repeat(40), "2".repeat(40));
    let all = texts(3000, 40);
    for (commit, texts) in [(&old, &all[..]), (&new, &all[1500..])] {
        let body = json_lines(texts);
        let tree = json!([{ "type": "file", "path": "x/a.jsonl", "size": body.len() }]);
        let tree = tree.to_string();
        for folder in ["", "/x"] {
            let path =
                format!("api/datasets/org/name/tree/{commit}{folder}?recursive=true&expand=false");
            answer(&path, tree.as_bytes());
        }
        let path = format!("datasets/org/name/resolve/{commit}/x/a.jsonl");
        answer(&path, body.as_bytes());
    }
    let hub = serve(answers.clone());
    for url in ["hf://datasets/org/name", "hf://datasets/org/name/x/*.jsonl"] {
        point(&old);
        let out = format!("out{}", url.len());
        let options = ["--end", "<eos>", "--checkpoint-every", "7000", url];
        let mut run = place.command(&[], &out, &options);
        run.env("HF_ENDPOINT", &hub);
        let killed = Command::new("sh")
            .args(["-c", r#"ulimit -c 0; ulimit -f "$0"; exec "$@""#, "90"])
            .arg(run.get_program())
            .args(run.get_args())
            .env("HF_ENDPOINT", &hub)
            .output()
            .unwrap();
        assert!(!killed.status.success(), "{killed:?}");
        point(&new);
        let output = run.output().unwrap();
        let said = text(output.stderr);
        assert!(said.starts_with("resumed after "), "{said}");
        assert_eq!(documents(&place.megatron(&out)), place.encode(&all));
        // Another folder has the newest.
        let mut other = place.command(&[], &format!("new-{out}"), &options);
        assert!(other.env("HF_ENDPOINT", &hub).status().unwrap().success());
        let store = place.megatron(&format!("new-{out}"));
        assert_eq!(store.document_count(), 1500);
    }
}
