//! Compiler messages for graphs that do not compile: they tell the user what to do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Libraries of a name that were built beside this test, the newest first, with their times.
fn built(name: &str) -> Vec<(SystemTime, PathBuf)> {
    let folder = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned();
    let of = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let file = path.file_name()?.to_str()?;
        let is_it = file
            .strip_prefix("lib")?
            .strip_prefix(name)?
            .starts_with('-')
            && file.ends_with(".rmeta");
        is_it.then(|| {
            (
                entry
                    .metadata()
                    .and_then(|data| data.modified())
                    .unwrap_or(SystemTime::UNIX_EPOCH),
                path,
            )
        })
    };
    let mut found: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .filter_map(of)
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

/// Compiles a file against these libraries. Returns true if it compiles, and the compiler's
/// messages.
fn compiled(code: &str, [core, io]: &[PathBuf; 2]) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snippets.rs");
    std::fs::write(&file, code).unwrap();
    let deps = io.parent().unwrap_or(Path::new(".")).display();
    let command = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
            "--color",
            "never",
        ])
        .arg("-L")
        .arg(format!("dependency={deps}"))
        .arg("--extern")
        .arg(format!("datapipes={}", core.display()))
        .arg("--extern")
        .arg(format!("datapipes_io={}", io.display()))
        .arg("--out-dir")
        .arg(folder.path())
        .arg(&file)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    (
        command.status.success(),
        String::from_utf8_lossy(&command.stderr).into_owned(),
    )
}

/// A function each, so that all of them are judged in one run.
fn code(snippets: &[(&str, &str)]) -> String {
    let head = "use datapipes::{Graph, DataLoader};\nuse datapipes_io::prelude::*;\nuse datapipes_io::FileRef;\n\
                pub struct Own;\nfn listed() -> Graph<FileRef> { Graph::from_vec(vec![]) }\n";
    let functions = snippets
        .iter()
        .map(|(name, body)| format!("pub fn {name}() {{ let _ = {body}; }}\n"));
    head.to_owned() + &functions.collect::<String>()
}

#[test]
fn what_does_not_compile_says_how_to_go_on() {
    let texts = r#"Graph::from_vec(vec!["1"])"#;
    let with_ok = format!(
        "{texts}.try_map(|t| {{ let n: u64 = t.parse().map_err(datapipes::Error::user)?; datapipes::Ok(n) }})"
    );
    let fine = [
        ("question", &*with_ok),
        ("batch", "Graph::range(0..3).batch(2).collate()"),
        ("files", "listed().load_files().untar().samples()"),
        (
            "epochs",
            "|loader: DataLoader<u64>| for item in loader.epoch(0) { let _ = item; }",
        ),
    ];
    // Others may lie there: of other features, and older ones. A library goes with one of the cores
    // that were built last before it.
    let (cores, ios) = (built("datapipes"), built("datapipes_io"));
    let cores = &cores;
    let pairs = (0..4).flat_map(|back| {
        ios.iter().filter_map(move |(built, io)| {
            let (_, core) = cores.iter().filter(|core| core.0 <= *built).nth(back)?;
            Some([core.clone(), io.clone()])
        })
    });
    let mut first = None;
    let libraries = pairs.take(200).find(|libraries| {
        let (compiles, said) = compiled(&code(&fine), libraries);
        first.get_or_insert(said);
        compiles
    });
    let libraries =
        libraries.unwrap_or_else(|| panic!("{}", first.unwrap_or("nothing is built".to_owned())));

    let question = format!("{texts}.try_map(|t| {{ let n: u64 = t.parse()?; Ok(n) }})");
    let awaited = format!("{texts}.map_async(|t| async move {{ let n: u64 = t.parse()?; Ok(n) }})");
    let cases = [
        (
            "question",
            &*question,
            "E0283",
            "ends in `datapipes::Ok(..)`",
        ),
        ("awaited", &*awaited, "E0283", "ends in `datapipes::Ok(..)`"),
        (
            "without_batch",
            "Graph::range(0..3).collate()",
            "E0277",
            "put `.batch(n)` before it",
        ),
        (
            "without_batch_to_unbatch",
            "Graph::range(0..3).unbatch()",
            "E0277",
            "put `.batch(n)` before it",
        ),
        (
            "no_collate",
            "Graph::range(0..3).map(|_| Own).batch(2).collate()",
            "E0277",
            "derive `Collate` for a struct",
        ),
        (
            "not_loaded",
            "listed().untar()",
            "E0277",
            "put `.load_files()` before what takes `File`s",
        ),
        (
            "read_as",
            "Graph::range(0..3).read_as(datapipes_io::formats::Lines::new())",
            "E0277",
            "`read_as` takes a graph of `File`s or `FileRef`s",
        ),
        (
            "no_files",
            "Graph::range(0..3).load_files()",
            "E0277",
            "`list_files`",
        ),
        (
            "no_samples",
            "listed().load_files().decode_fields(datapipes_io::formats::FieldDecoder::<datapipes_io::formats::Value>::new())",
            "E0277",
            "`.samples()` before what takes `Sample`s",
        ),
    ];
    for (name, body, error, words) in cases {
        let (compiles, said) = compiled(&code(&[(name, body)]), &libraries);
        assert!(!compiles, "{name} compiles");
        assert!(
            said.contains(&format!("error[{error}]")) && said.contains(words),
            "{name}:\n{said}"
        );
    }
}
