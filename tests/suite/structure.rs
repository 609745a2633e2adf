//! The dependencies between the folders of the library point in one direction. These tests read the
//! sources and check it.
//!
//! The rules are the tables below; `ARCHITECTURE.md` explains them. A violation is reported with
//! file, line and rule. Test code (`#[cfg(test)]`, and files that only such a line includes) may
//! use anything, but has a fixed place: `mod tests`, inline if it is short, otherwise `tests.rs` or
//! `tests/mod.rs` in the module's folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// The rooms of the contract, in order: each may know those before it, so that there is no circle.
const CONTRACT: &[&str] = &[
    "sync",
    "rng",
    "origin",
    "error",
    "caught",
    "backoff",
    "rank",
    "histogram",
    "dtype",
    "batch_buffer",
    "tensor",
    "ndarray",
    "weigh",
    "collate",
    "item",
    "chunk",
    "codec",
    "checkpoint",
    "context",
    "budget",
    "items",
    "pipe",
    "whole_file",
];

/// The modules of `run`, in order, likewise.
const RUN: &[&str] = &[
    "block_on",
    "scope",
    "runtime",
    "pinned_thread",
    "observer_thread",
    "timeline",
    "gauge",
    "chain",
    "pool",
    "near",
    "blocking",
    "morsel",
    "spawn",
    "concurrency",
    "segment",
    "child",
    "prefetch",
    "io_driver",
    "device_prefetch",
    "memory_watch",
    "deadlock",
    "engine",
    "replay",
];

/// Parts of `datapipes/src` that a part may know besides itself.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("contract", &[]),
    // A macro stands for the code that it becomes; some use themselves.
    (
        "macros",
        &["contract", "wire_enum", "wire_struct", "opaque_debug"],
    ),
    ("settings", &["contract", "processes"]),
    // Settings of the processes of a part: plain data.
    ("processes", &["contract"]),
    ("graph", &["contract", "settings", "processes"]),
    ("pipes", &["contract", "graph"]),
    // A step by index has the settings of the pipe of the same name.
    ("index", &["contract", "graph", "pipes"]),
    ("plan", &["contract", "settings", "processes", "graph"]),
    // Bytes, slices and errors travel between processes, so a queue knows no graph.
    ("queue", &["contract"]),
    (
        "run",
        &[
            "contract",
            "settings",
            "processes",
            "graph",
            "plan",
            "queue",
        ],
    ),
    // The first line of `main` in programs with child processes.
    ("worker", &["run"]),
    (
        "loader",
        &[
            "contract",
            "settings",
            "processes",
            "graph",
            "pipes",
            "index",
            "plan",
            "queue",
            "run",
        ],
    ),
    (
        "testing",
        &[
            "contract",
            "settings",
            "processes",
            "graph",
            "pipes",
            "index",
            "plan",
            "queue",
            "run",
            "loader",
        ],
    ),
];

/// Names in `datapipes` that the other crates may use, besides the exports of its root from the
/// contract, `graph`, `pipes` and `index`. An entry is the beginning of the user's path, and a
/// module or a single name.
const MODULES_FOR_CRATES: &[(&str, &str)] = &[
    ("datapipes-", "pipes"),
    ("datapipes-", "index"),
    ("datapipes-derive/", "derived"),
    ("datapipes-", "wire_struct"),
    ("datapipes-", "wire_enum"),
    ("datapipes-", "opaque_debug"),
    ("datapipes-", "formatted"),
    ("datapipes-", "words"),
    ("datapipes-", "clone_fields"),
    ("datapipes-", "matching"),
    ("datapipes-", "setters"),
    ("datapipes-", "forward"),
    ("datapipes-", "or_fail"),
    ("datapipes-", "conversions"),
    // Locks, splits, credentials and others are small files of their own.
    ("datapipes-", "whole_file"),
    // An adapter to a framework is a loader of its own kind.
    ("datapipes-candle/", "loader"),
    // Stores and tables may have to block, and may not start work.
    ("datapipes-io/", "run::blocking"),
    // A test kit builds on the other.
    ("datapipes-io/src/testing/", "testing"),
    ("datapipes-tables/", "run::blocking"),
    // A framework's loader is one of ours, and its data sets may block.
    ("datapipes-burn/", "loader"),
    ("datapipes-burn/", "run::blocking"),
    ("datapipes-burn/", "async_trait"),
    // A program runs loaders.
    ("datapipes-cli/", "loader"),
];

/// Functions that start work.
const STARTS_WORK: &[&str] = &[
    "thread::spawn",
    "thread::scope",
    "thread::Builder",
    "spawn_blocking",
    "spawn_local",
    "tokio::spawn",
    "task::spawn",
    ".spawn(",
    "Command::new",
    "runtime::Builder",
    "Runtime::new",
];

/// The lines that an inline `mod tests` may have.
const INLINE_TESTS: usize = 150;

/// Modules for tests that are not called `tests`: what tests of several modules share.
const SHARED_BY_TESTS: &[&str] = &[
    "datapipes/src/queue/conformance.rs",
    "datapipes/src/queue/process/typed.rs",
];

fn assert_none(broken: &[String]) {
    let all = broken.join("\n");
    assert!(broken.is_empty(), "{} broken rules:\n{all}", broken.len());
}

#[test]
fn the_library_keeps_its_structure() {
    let broken = check(&workspace());
    assert_none(&broken);
}

/// Files of one folder, too, know each other in one direction; names that are re-exported lead to the
/// file that defines them. Those inside a folder may use what its own file (`mod.rs`) defines.
#[test]
fn no_circle_of_files() {
    let files = workspace();
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for file in product(&files) {
        let name = file.path.split('/').next().expect("a path has a beginning");
        crates.entry(name).or_default().push(file);
    }
    let broken = crates.into_values().map(|files| circles(files.into_iter()));
    assert_none(&broken.flatten().collect::<Vec<_>>());
}

#[test]
fn doc_comments_begin_with_a_verb_or_a_name() {
    let sources = tests_of_the_workspace();
    let broken: Vec<String> = sources.iter().flat_map(check_first_words).collect();
    assert_none(&broken);
}

/// Files of examples in documents.
const MADE_UP: &[&str] = &[
    "datapipes/src/pipes/dedup.rs",
    "foo/tests.rs",
    "fuzz/fuzz_targets/NAME.rs",
];

/// A renamed file is renamed in the documents, too.
#[test]
fn documents_name_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for entry in fs::read_dir(root).expect("the root can be read").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && name != "target" {
            list(root, &name, &mut paths);
        }
    }
    let internals = fs::read_dir(root.join("docs/src/internals")).expect("the guide has internals");
    let internals = internals.map(|entry| entry.unwrap().path());
    let documents = ["ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    let mut missing = Vec::new();
    for document in documents.into_iter().chain(internals) {
        let text = fs::read_to_string(&document).unwrap();
        // Every second part is between backticks. Blocks of code have paths that are made up.
        let prose: String = text.split("```").step_by(2).collect();
        for name in prose.split('`').skip(1).step_by(2) {
            let is_path = name.ends_with(".rs")
                && !name.contains([' ', '{', '*', '<'])
                && !MADE_UP.contains(&name);
            let ends = |path: &String| path.ends_with(&format!("/{name}")) || path == name;
            if is_path && !paths.iter().any(ends) {
                missing.push(format!("{}: there is no `{name}`", document.display()));
            }
        }
    }
    assert_none(&missing);
}

/// Examples of nodes are copied, so each shows that it keeps its contract.
#[test]
fn documented_nodes_are_checked_by_the_kit() {
    const KINDS: [(&str, &str); 4] = [
        (" Pipe<", "check_pipe("),
        (" Source for ", "check_source("),
        (" Join<", "check_join("),
        (" Split<", "check_split("),
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    list(root, "docs/src", &mut paths);
    let pages = paths.into_iter().filter(|path| path.ends_with(".md"));
    let pages = pages.map(|path| {
        let text = fs::read_to_string(root.join(&path)).unwrap();
        (path, text)
    });
    let comments = workspace().into_iter().map(|file| {
        let lines = file.text.lines().map(str::trim_start);
        let lines = lines.filter_map(|line| {
            line.strip_prefix("///")
                .or_else(|| line.strip_prefix("//!"))
        });
        let lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line));
        (file.path, lines.collect::<Vec<_>>().join("\n"))
    });
    let (mut seen, mut broken) = (0, Vec::new());
    for (path, text) in pages.chain(comments) {
        // A fence that is itself part of an example does not begin its line.
        for block in text.split("\n```").skip(1).step_by(2) {
            for line in block.lines().map(|line| line.trim_start_matches("# ")) {
                for (kind, check) in KINDS {
                    if line.starts_with("impl") && line.contains(kind) {
                        seen += 1;
                        if !block.contains(check) {
                            broken.push(format!("{path}: no `{check}..)` beside `{line}`"));
                        }
                    }
                }
            }
        }
    }
    assert!(seen >= 15, "only {seen} examples were found");
    assert_none(&broken);
}

/// Appends the paths of all files below a folder, from the root.
fn list(root: &Path, folder: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(folder))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            list(root, &path, paths);
        } else {
            paths.push(path);
        }
    }
}

#[test]
fn every_unsafe_says_why_it_is_sound() {
    let broken: Vec<String> = workspace().iter().flat_map(check_unsafe).collect();
    assert_none(&broken);
}

#[test]
fn unit_tests_stand_where_one_looks_for_them() {
    let files = workspace();
    let broken = check_tests(&files);
    assert_none(&broken);
    for shared in SHARED_BY_TESTS {
        assert!(
            files.iter().any(|file| file.path == *shared),
            "{shared} is no longer needed in the list"
        );
    }
}

/// Doc tests are compiled as one program, elsewhere; one that does not compile there has each
/// compiled by itself, which takes minutes.
#[test]
fn doc_tests_include_files_by_whole_paths() {
    let relative = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("//")
            && (line.contains("include_bytes!(\"") || line.contains("include_str!(\""))
    };
    for file in workspace() {
        let found = file.text.lines().find(relative);
        assert_eq!(
            found, None,
            "{}: begin with `concat!(env!(\"CARGO_MANIFEST_DIR\"), …`",
            file.path
        );
    }
}

/// Imports are one way; a method that only this crate may call is another.
#[test]
fn built_in_nodes_call_public_methods() {
    let broken = check_methods(&workspace());
    assert_none(&broken);
}

#[test]
fn a_private_method_of_a_pipe_is_named() {
    let graph = "pub struct Graph; impl Graph { pub(crate) fn hidden(&self) {} pub fn shown(&self) {} \
                 pub(crate) fn each(&self) {} }";
    let items = "impl Items { pub fn each(self) {} }";
    let pipe = "fn f(graph: Graph) {\n graph.shown();\n graph\n .hidden();\n graph.each();\n}";
    let files = [
        Source::new("datapipes/src/graph/mod.rs", graph),
        Source::new("datapipes/src/items.rs", items),
        Source::new("datapipes/src/pipes/own.rs", pipe),
        Source::new("datapipes/src/plan/mod.rs", pipe),
    ];
    assert_eq!(
        check_methods(&files),
        ["datapipes/src/pipes/own.rs:4: a built-in node calls public methods (`hidden`)"]
    );
}

/// Pages that have to fit on a screen or two.
#[test]
fn the_first_pages_stay_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (page, most, width) in [("README.md", 200, 160), ("ARCHITECTURE.md", 100, 120)] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let lines = text.lines().count();
        assert!(
            lines <= most,
            "{page} has {lines} lines, and may have {most}"
        );
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(
            longest <= Some(width),
            "{page} has a line of {longest:?} characters, and may have {width}"
        );
    }
}

#[test]
fn a_broken_rule_is_named_with_file_and_line() {
    let lib = "//! The library.\nmod item;\nmod run;\npub mod pipes;\npub mod loader;\n\
               pub use item::Item;\npub use loader::{DataLoader, Epoch};\npub use run::blocking;\n";
    let planted = [
        ("datapipes/src/lib.rs", lib),
        (
            "datapipes/src/item.rs",
            "//! Items.\n\n// use crate::run;\nuse crate::pipes::Map; // \"\nuse crate::context::Context;\nuse crate::rng::Rng;\n",
        ),
        (
            "datapipes/src/pipes/map.rs",
            "//! Maps.\nuse std::{a, b};\nuse crate::{\n    Item,\n    DataLoader,\n};\nuse crate::sync::lock;\nuse crate::items::each;\n",
        ),
        (
            "datapipes/src/pipes/bare.rs",
            "use crate::Item;\n#[cfg(test)]\nmod tests {\n use crate::{Epoch};\n}\n",
        ),
        (
            "datapipes/src/pipes/up.rs",
            "//! Up.\nuse super::super::run::{self, pool};\nstatic A: &str = \"crate::run\";\n",
        ),
        (
            "datapipes/src/pipes/go.rs",
            "//! Go.\nfn f<'a>() { let c = '\"'; std::thread::spawn(|| \"'\"); }\n",
        ),
        (
            "datapipes/src/run/pool.rs",
            "//! Pool.\nuse super::{engine, may_wait, scope};\nfn f() { std::thread::spawn(|| ()); }\n",
        ),
        (
            "datapipes/src/run/new.rs",
            "//! New.\nuse crate::run::scope;\n",
        ),
        (
            "datapipes/src/run/mod.rs",
            "//! Run.\npub use engine::Engine;\nmod engine;\n",
        ),
        (
            "datapipes/src/run/chain.rs",
            "//! Chain.\nuse crate::run::Engine;\n",
        ),
        (
            "datapipes/src/queue/mod.rs",
            "//! Queue.\nuse std::mem;\nuse tokio::sync;\n",
        ),
        ("datapipes/src/magic/mod.rs", "//! Magic.\n"),
        (
            "datapipes-io/src/lib.rs",
            "//! I/O.\nuse datapipes::{Item, pipes::Map, loader::Epoch};\nuse datapipes::{Epoch, derived::f, blocking};\n",
        ),
    ];
    let files: Vec<Source> = planted
        .iter()
        .map(|(path, text)| Source::new(path, text))
        .collect();
    let broken = check(&files);
    let expected = [
        "datapipes/src/item.rs:4: the contract does not know pipes (`pipes::Map`)",
        "datapipes/src/item.rs:5: item comes before context (`context::Context`)",
        "datapipes/src/pipes/map.rs:5: pipes does not know loader (`loader::DataLoader`)",
        "datapipes/src/pipes/map.rs:7: a built-in node uses what the root exports (`sync::lock`)",
        "datapipes/src/pipes/map.rs:8: a built-in node uses what the root exports (`items::each`)",
        "datapipes/src/pipes/bare.rs:1: a file begins with a line of documentation (`//! …`)",
        "datapipes/src/pipes/up.rs:2: pipes does not know run (`run`)",
        "datapipes/src/pipes/up.rs:2: pipes does not know run (`run::pool`)",
        "datapipes/src/pipes/go.rs:2: work is started in run/ only (`thread::spawn`)",
        "datapipes/src/run/pool.rs:2: pool comes before engine (`run::engine`)",
        "datapipes/src/run/new.rs:2: `new` has no place in the order; say in tests/suite/structure.rs which",
        "datapipes/src/run/chain.rs:2: chain comes before engine (`run::engine::Engine`)",
        "datapipes/src/queue/mod.rs:3: queue uses nothing but std (`tokio::sync`)",
        "datapipes/src/magic/mod.rs:1: `magic` is no part that the rules know; say in tests/suite/structure.rs what it may know",
        "datapipes-io/src/lib.rs:2: other crates know the contract, graph, pipes and index only (`loader::Epoch`)",
        "datapipes-io/src/lib.rs:3: other crates know the contract, graph, pipes and index only (`loader::Epoch`)",
        "datapipes-io/src/lib.rs:3: other crates know the contract, graph, pipes and index only (`derived::f`)",
    ];
    assert_eq!(broken, expected);

    let long = format!(
        "//! L.\n#[cfg(test)]\nmod tests {{\n{}}}\n",
        "// No test.\n".repeat(INLINE_TESTS)
    );
    let planted = [
        ("x/src/long.rs", &*long),
        (
            "x/src/odd.rs",
            "//! O.\n#[cfg(test)]\nmod odd_tests;\n#[cfg(test)]\nmod checks {\n}\n",
        ),
        ("x/src/good.rs", "//! G.\n#[cfg(test)]\nmod tests;\n"),
        ("x/src/good/tests.rs", "mod more;\n"),
        (
            "x/src/good/tests/more.rs",
            "fn f() { std::thread::spawn(|| ()); }\n",
        ),
    ];
    let files: Vec<Source> = planted
        .iter()
        .map(|(path, text)| Source::new(path, text))
        .collect();
    assert_eq!(
        check_tests(&files),
        [
            "x/src/long.rs:2: tests of more than 150 lines stand in a file, `tests.rs` in the module's folder",
            "x/src/odd.rs:2: a module for tests is called `tests`, not `odd_tests`",
            "x/src/odd.rs:4: a module for tests is called `tests`, not `checks`",
            "x/src/good/tests.rs:1: where there is a folder `tests/`, this file is its `mod.rs`",
        ]
    );
    assert!(product(&files).all(|file| !file.path.contains("/tests")));

    let words = Source::new(
        "x.rs",
        "//! X.\n\n/// Whether it is.\n/// How.\nfn f() {}\n",
    );
    assert_eq!(
        check_first_words(&words),
        ["x.rs:3: a doc comment begins with a verb or a name, not with `Whether`"]
    );

    let round = [
        ("datapipes/src/a/mod.rs", "//! A.\nmod b;\nmod c;\n"),
        ("datapipes/src/a/b.rs", "//! B.\nuse super::c::C;\n"),
        (
            "datapipes/src/a/c.rs",
            "//! C.\nuse super::A;\nuse crate::{a::b::B, d};\n",
        ),
        ("datapipes/src/d.rs", "//! D.\nuse crate::e::E;\n"),
        ("datapipes/src/e.rs", "//! E.\n"),
    ]
    .map(|(path, text)| Source::new(path, text));
    assert_eq!(
        circles(round.iter()),
        [
            "datapipes/src/a/b.rs:2: a circle leads through `a::c`",
            "datapipes/src/a/c.rs:3: a circle leads through `a::b`",
        ]
    );

    // Through a name that a folder shows, a path of a declared module, and one that a file imported.
    let shown = [
        ("datapipes/src/lib.rs", "mod a;\nmod f;\npub use a::C;\n"),
        (
            "datapipes/src/a/mod.rs",
            "//! A.\nmod b;\nmod c;\npub use self::c::{C, D as E};\nfn f() { b::g() }\n",
        ),
        ("datapipes/src/a/b.rs", "//! B.\nuse super::E;\n"),
        (
            "datapipes/src/a/c.rs",
            "//! C.\nuse crate::f;\nfn g() { f::h::<u8>() }\n",
        ),
        ("datapipes/src/f.rs", "//! F.\nuse crate::{C, a::X};\n"),
    ]
    .map(|(path, text)| Source::new(path, text));
    assert_eq!(
        circles(shown.iter()),
        [
            "datapipes/src/a/mod.rs:5: a circle leads through `a::b`",
            "datapipes/src/a/b.rs:2: a circle leads through `a::c`",
            "datapipes/src/a/c.rs:2: a circle leads through `f`",
            "datapipes/src/f.rs:2: a circle leads through `a`",
            "datapipes/src/f.rs:2: a circle leads through `a::c`",
        ]
    );
    let careless = "//! X.\nfn f() {\n    unsafe { g() }\n}\n\n\n\n\n\n\n// SAFETY: ours alone.\nunsafe impl Send for X {}\n";
    let broken = check_unsafe(&Source::new("x.rs", careless));
    assert_eq!(
        broken,
        ["x.rs:3: `unsafe` has a comment above that begins with SAFETY and says why it is sound"]
    );
}

/// All sources of the library's crates.
pub fn workspace() -> Vec<Source> {
    let files = sources(&["src"]);
    assert!(files.len() > 30, "only {} sources found", files.len());
    files
}

/// All sources that have tests: the library's, and those that are nothing else.
pub fn tests_of_the_workspace() -> Vec<Source> {
    let mut files = sources(&["src", "tests"]);
    read(Path::new(env!("CARGO_MANIFEST_DIR")), "tests", &mut files);
    files
}

/// The sources in these folders of the library's crates.
fn sources(folders: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for entry in fs::read_dir(root)
        .expect("the workspace can be read")
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "datapipes" || name.starts_with("datapipes-") {
            folders
                .iter()
                .for_each(|folder| read(root, &format!("{name}/{folder}"), &mut files));
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn read(root: &Path, folder: &str, files: &mut Vec<Source>) {
    for entry in fs::read_dir(root.join(folder))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            read(root, &path, files);
        } else if path.ends_with(".rs") {
            files.push(Source::new(
                &path,
                &fs::read_to_string(entry.path()).expect("sources are text"),
            ));
        }
    }
}

pub struct Source {
    /// From the root of the workspace, with `/`.
    pub path: String,
    pub text: String,
    /// The text with comments, literals and test code blanked out, so that places stay the same.
    pub code: String,
    tests: Vec<TestModule>,
}

/// A module that follows `#[cfg(test)]`.
struct TestModule {
    line: usize,
    name: String,
    /// Number of lines, if the module is not a file of its own.
    inline: Option<usize>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let mut code = blank_comments_and_literals(text);
        let tests = blank_tests(&mut code);
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            tests,
        }
    }

    /// The file of a module that this one declares.
    fn beside(&self, module: &str) -> String {
        let folder = self
            .path
            .strip_suffix("/mod.rs")
            .or(self.path.strip_suffix("/lib.rs"));
        format!(
            "{}/{module}.rs",
            folder.unwrap_or(self.path.trim_end_matches(".rs"))
        )
    }

    /// The modules that this file declares.
    fn modules(&self) -> impl Iterator<Item = &str> {
        words(&self.code, "mod").map(|at| ident(self.code[at + 3..].trim_start()))
    }

    fn line(&self, at: usize) -> usize {
        1 + self.code[..at].matches('\n').count()
    }

    /// The module that this file is, below the crate's root.
    fn module(&self) -> Vec<&str> {
        let inner = self
            .path
            .split_once("/src/")
            .map_or(&*self.path, |(_, inner)| inner)
            .trim_end_matches(".rs");
        let mut parts: Vec<&str> = inner.split('/').collect();
        if matches!(parts.last(), Some(&("mod" | "lib"))) {
            parts.pop();
        }
        parts
    }

    fn broken(&self, at: usize, rule: &str) -> String {
        format!("{}:{}: {rule}", self.path, self.line(at))
    }
}

/// The modules of a crate, and what each calls by a name of its own, so that a path can be followed
/// through re-exports to the file that defines what it names.
struct Modules<'a> {
    files: BTreeMap<String, &'a Source>,
    /// Names of each module, with their paths from the crate's root.
    imports: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl<'a> Modules<'a> {
    fn of(files: impl Iterator<Item = &'a Source>) -> Modules<'a> {
        let files: BTreeMap<String, &Source> =
            files.map(|file| (file.module().join("::"), file)).collect();
        let mut modules = Modules {
            files,
            imports: BTreeMap::new(),
        };
        for (module, file) in &modules.files {
            let imports = use_trees(file).flat_map(|(path, at)| {
                let path = modules.path_of(file, &path, &BTreeMap::new())?;
                let last = path.last()?;
                let renamed = file.code[at..].strip_prefix(last.as_str());
                let renamed = renamed
                    .and_then(|rest| rest.strip_prefix(" as "))
                    .map(ident);
                Some((renamed.unwrap_or(last).to_owned(), path))
            });
            let imports = imports.collect();
            modules.imports.insert(module.clone(), imports);
        }
        modules
    }

    /// Returns a path that a file uses as one from the crate's root, unless it leads to another crate.
    fn path_of(
        &self,
        file: &Source,
        path: &[String],
        imports: &BTreeMap<String, Vec<String>>,
    ) -> Option<Vec<String>> {
        let module = file.module();
        let ups = path.iter().take_while(|part| *part == "super").count();
        let (above, rest) = match &*path[0] {
            "crate" => (&[][..], &path[1..]),
            "self" => (&module[..], &path[1..]),
            "super" => (&module[..module.len().saturating_sub(ups)], &path[ups..]),
            name if file.modules().any(|child| child == name) => (&module[..], path),
            name => {
                let whole = [imports.get(name)?, &path[1..]].concat();
                return Some(whole);
            }
        };
        let above = above.iter().map(|part| (*part).to_owned());
        Some(above.chain(rest.iter().cloned()).collect())
    }

    /// Returns all paths from the crate's root that a file names, with their places.
    fn paths(&self, file: &Source) -> Vec<(Vec<String>, usize)> {
        let none = BTreeMap::new();
        let imports = self.imports.get(&file.module().join("::"));
        let used = use_trees(file).chain(expressions(file));
        let used = used.filter_map(|(path, at)| {
            let path = self.path_of(file, &path, imports.unwrap_or(&none))?;
            (!path.is_empty()).then_some((path, at))
        });
        used.collect()
    }

    /// Returns the number of parts of a path that are modules with a file.
    fn known(&self, path: &[String]) -> usize {
        let is_known = |len: &usize| self.files.contains_key(&path[..*len].join("::"));
        (1..=path.len()).rev().find(is_known).unwrap_or(0)
    }

    /// Follows a path through re-exports: `Graph` → `graph::Graph`.
    fn follow(&self, path: &[String]) -> Vec<String> {
        let mut path = path.to_vec();
        // No name has more doors than that.
        for _ in 0..10 {
            let known = self.known(&path);
            let target = path
                .get(known)
                .and_then(|name| self.imports.get(&path[..known].join("::"))?.get(name));
            let Some(target) = target else { break };
            path = [target, &path[known + 1..]].concat();
        }
        path
    }
}

fn part_of(module: &str) -> &str {
    if CONTRACT.contains(&module) {
        "contract"
    } else {
        module
    }
}

fn check(files: &[Source]) -> Vec<String> {
    let core = product(files).filter(|file| file.path.starts_with("datapipes/"));
    let modules = Modules::of(core);
    let mut broken = Vec::new();
    for file in product(files) {
        if !file.text.starts_with("//!") {
            broken.push(file.broken(0, "a file begins with a line of documentation (`//! …`)"));
        }
        let module = file.module();
        if file.path.starts_with("datapipes/") {
            if let Some(first) = module.first() {
                check_core(file, part_of(first), &modules, &mut broken);
            }
        } else {
            check_crate(file, &modules, &mut broken);
        }
        // These run the user's program.
        let may_start = file.path.starts_with("datapipes/src/run/")
            || file.path == "datapipes/src/testing.rs"
            || ["ask.rs", "blame/mod.rs", "tune/mod.rs", "worker/mod.rs"]
                .iter()
                .any(|command| file.path == format!("datapipes-cli/src/{command}"));
        for pattern in STARTS_WORK.iter().filter(|_| !may_start) {
            for (at, _) in file.code.match_indices(pattern) {
                broken
                    .push(file.broken(at, &format!("work is started in run/ only (`{pattern}`)")));
            }
        }
    }
    broken
}

/// The sources that are not for tests only.
pub fn product(files: &[Source]) -> impl Iterator<Item = &Source> {
    let modules = files
        .iter()
        .flat_map(|file| file.tests.iter().map(|module| file.beside(&module.name)));
    let for_tests: BTreeSet<String> = modules.collect();
    files.iter().filter(move |file| {
        let tests = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
        !tests && !for_tests.contains(&file.path)
    })
}

fn check_tests(files: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files {
        for module in &file.tests {
            let place = format!("{}:{}", file.path, module.line);
            let shared =
                module.inline.is_none() && SHARED_BY_TESTS.contains(&&*file.beside(&module.name));
            if module.name != "tests" && !shared {
                broken.push(format!(
                    "{place}: a module for tests is called `tests`, not `{}`",
                    module.name
                ));
            } else if module.inline.is_some_and(|lines| lines > INLINE_TESTS) {
                let rule = "stand in a file, `tests.rs` in the module's folder";
                broken.push(format!(
                    "{place}: tests of more than {INLINE_TESTS} lines {rule}"
                ));
            }
        }
        let folder = file
            .path
            .strip_suffix("tests.rs")
            .filter(|folder| folder.ends_with('/'));
        if let Some(folder) = folder
            && files
                .iter()
                .any(|other| other.path.starts_with(&format!("{folder}tests/")))
        {
            broken.push(file.broken(
                0,
                "where there is a folder `tests/`, this file is its `mod.rs`",
            ));
        }
    }
    broken
}

fn check_core(file: &Source, part: &str, modules: &Modules<'_>, broken: &mut Vec<String>) {
    let Some((_, may_know)) = MAY_KNOW.iter().find(|(name, _)| *name == part) else {
        let say =
            "is no part that the rules know; say in tests/suite/structure.rs what it may know";
        broken.push(file.broken(0, &format!("`{part}` {say}")));
        return;
    };
    for (path, at) in modules.paths(file) {
        // A user's crate can name nothing else of the contract, and built-in nodes have no advantage.
        if matches!(part, "pipes" | "index") && CONTRACT.contains(&&*path[0]) {
            let rule = "a built-in node uses what the root exports";
            broken.push(file.broken(at, &format!("{rule} (`{}`)", path.join("::"))));
        }
        let path = modules.follow(&path).join("::");
        let module = path.split("::").next().unwrap_or_default();
        let to = part_of(module);
        if module.is_empty() {
            continue;
        }
        if to == "contract" && part == "contract" {
            check_order(file, at, CONTRACT, file.module()[0], module, &path, broken);
        } else if to == "run" && part == "run" {
            // All modules of `run` may use the items of `run/mod.rs`.
            if let (Some(room), Some(to)) = (file.module().get(1), path.split("::").nth(1)) {
                check_order(file, at, RUN, room, to, &path, broken);
            }
        } else if to != part && !may_know.contains(&to) {
            let part = if part == "contract" {
                "the contract"
            } else {
                part
            };
            broken.push(file.broken(at, &format!("{part} does not know {to} (`{path}`)")));
        }
    }
    // Between processes and machines there are the system and a runtime to wait with.
    let is_apart = |apart| {
        file.path
            .starts_with(&format!("datapipes/src/queue/{apart}/"))
    };
    if part == "queue" && !["process", "remote"].into_iter().any(is_apart) {
        for at in words(&file.code, "use") {
            for (path, at) in paths(&file.code, at + 3) {
                if !matches!(
                    &*path[0],
                    "std" | "core" | "alloc" | "crate" | "super" | "self"
                ) && !matches!(&*path[0], "thread" | "process" | "remote")
                {
                    broken.push(file.broken(
                        at,
                        &format!("queue uses nothing but std (`{}`)", path.join("::")),
                    ));
                }
            }
        }
    }
}

/// Reports methods that built-in nodes call, and that only this crate can.
///
/// Goes by names: a method counts as private if no function of its name is public, belongs to a
/// trait, or is the node's own. `by_ref` is also a method of the standard library.
fn check_methods(files: &[Source]) -> Vec<String> {
    let (mut inner, mut others) = (BTreeSet::new(), BTreeSet::from(["by_ref"]));
    let core = product(files).filter(|file| file.path.starts_with("datapipes/src/"));
    let core: Vec<&Source> = core.collect();
    let part = |file: &Source| {
        let module = file.module();
        part_of(module.first().unwrap_or(&"")).to_owned()
    };
    let is_node = |file: &Source| matches!(&*part(file), "pipes" | "index");
    for file in &core {
        for at in words(&file.code, "fn") {
            let name = ident(file.code[at + 2..].trim_start());
            let line = file.code[..at]
                .rsplit(['\n', ';', '{', '}'])
                .next()
                .unwrap_or_default();
            if is_node(file) || !line.contains("pub(crate)") {
                others.insert(name);
            } else if matches!(&*part(file), "contract" | "graph") {
                inner.insert(name);
            }
        }
    }
    let mut broken = Vec::new();
    for file in core.iter().filter(|file| is_node(file)) {
        for (at, _) in file.code.match_indices('.') {
            let name = ident(&file.code[at + 1..]);
            let after = &file.code[at + 1 + name.len()..];
            let is_call = after.starts_with('(') || after.starts_with("::<");
            if is_call && inner.contains(name) && !others.contains(name) {
                let rule = format!("a built-in node calls public methods (`{name}`)");
                broken.push(file.broken(at, &rule));
            }
        }
    }
    broken
}

/// Names the arrows between files that are part of a circle, with the place of each.
fn circles<'a>(files: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let modules = Modules::of(files);
    let mut arrows: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    for (from, file) in modules.files.iter().filter(|(from, _)| !from.is_empty()) {
        for (path, at) in modules.paths(file) {
            let path = modules.follow(&path);
            let to = path[..modules.known(&path)].join("::");
            let is_own = format!("{from}::").starts_with(&format!("{to}::"));
            if !to.is_empty() && !is_own && !is_only_shown(file, at) {
                arrows.entry(from).or_default().entry(to).or_insert(at);
            }
        }
    }
    let reached = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from.to_owned()];
        while let Some(from) = next.pop() {
            let targets = arrows.get(&*from).into_iter().flat_map(BTreeMap::keys);
            next.extend(targets.filter(|to| reached.insert((*to).clone())).cloned());
        }
        reached
    };
    let mut broken = Vec::new();
    for (from, targets) in &arrows {
        for (to, at) in targets {
            if reached(to).contains(*from) {
                let circle = format!("a circle leads through `{to}`");
                broken.push(modules.files[*from].broken(*at, &circle));
            }
        }
    }
    broken
}

/// Returns true for a name that a file re-exports and does not use: those who use it know its file.
fn is_only_shown(file: &Source, at: usize) -> bool {
    let imports = imports(&file.code);
    let Some(import) = imports.iter().find(|import| import.contains(&at)) else {
        return false;
    };
    let before = file.code[..import.start].trim_end();
    let is_shown = before.ends_with("pub") || before.ends_with(')');
    let mut uses = words(&file.code, ident(&file.code[at..])).filter(|use_at| {
        let declares = file.code[..*use_at].trim_end().ends_with("mod");
        !declares && !imports.iter().any(|import| import.contains(use_at))
    });
    is_shown && uses.next().is_none()
}

/// Reports a module of an ordered list that names one after it.
fn check_order(
    file: &Source,
    at: usize,
    order: &[&str],
    room: &str,
    to: &str,
    path: &str,
    broken: &mut Vec<String>,
) {
    let place = |name| order.iter().position(|other| *other == name);
    match (place(room), place(to)) {
        (None, _) => {
            let rule = format!(
                "`{room}` has no place in the order; say in tests/suite/structure.rs which"
            );
            broken.push(file.broken(at, &rule));
        }
        (own, to_place) if to_place > own => {
            broken.push(file.broken(at, &format!("{room} comes before {to} (`{path}`)")));
        }
        _ => {}
    }
}

fn check_crate(file: &Source, modules: &Modules<'_>, broken: &mut Vec<String>) {
    let root = modules.imports.get("");
    for at in words(&file.code, "datapipes") {
        let Some(rest) = file.code[at..].strip_prefix("datapipes::") else {
            continue;
        };
        for (path, at) in paths(&file.code, file.code.len() - rest.len()) {
            let export = root.and_then(|root| root.get(&path[0]));
            let exported = export.is_some();
            let home = match export {
                Some(home) => [home, &path[1..]].concat().join("::"),
                None => path.join("::"),
            };
            let module = home.split("::").next().unwrap_or_default();
            let known = matches!(part_of(module), "contract" | "graph" | "pipes" | "index");
            let named = |(who, what): &(&str, &str)| {
                file.path.starts_with(who) && (module == *what || home == *what)
            };
            if !(exported && known || MODULES_FOR_CRATES.iter().any(named)) {
                let rule = "other crates know the contract, graph, pipes and index only";
                broken.push(file.broken(at, &format!("{rule} (`{home}`)")));
            }
        }
    }
}

/// Words that a doc comment does not begin with: a reader looks for what the thing does or is.
const NO_FIRST_WORDS: &[&str] = &[
    "What", "How", "Whether", "Which", "Where", "Who", "Whose", "Whom", "Why", "When", "Of",
    "That", "As", "Says", "So", "And", "Or", "But", "By", "If", "For", "It", "Its", "This",
    "There", "These", "No", "Not", "In", "With", "Without", "Since", "Never", "After",
];

fn check_first_words(file: &Source) -> Vec<String> {
    let mut broken = Vec::new();
    let mut before = "";
    for (number, line) in file.text.lines().enumerate() {
        let mark = ["///", "//!"]
            .into_iter()
            .find(|mark| line.trim_start().starts_with(mark))
            .unwrap_or_default();
        let text = line.trim_start().strip_prefix(mark).unwrap_or_default();
        let first = text.split_whitespace().next().unwrap_or_default();
        if !mark.is_empty() && before != mark && NO_FIRST_WORDS.contains(&first) {
            let rule = format!("a doc comment begins with a verb or a name, not with `{first}`");
            broken.push(format!("{}:{}: {rule}", file.path, number + 1));
        }
        before = mark;
    }
    broken
}

fn check_unsafe(file: &Source) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let careless = words(&file.code, "unsafe").filter(|&at| {
        let line = file.line(at);
        let near = &lines[line.saturating_sub(8)..line];
        !near
            .iter()
            .any(|line| line.contains("SAFETY") || line.contains("# Safety"))
    });
    let rule = "`unsafe` has a comment above that begins with SAFETY and says why it is sound";
    careless.map(|at| file.broken(at, rule)).collect()
}

/// The places of the statements that import.
fn imports(code: &str) -> Vec<Range<usize>> {
    let imports = words(code, "use").filter(|at| !code[at + 3..].starts_with('<'));
    let imports = imports.map(|at| at..at + code[at..].find(';').unwrap_or_default());
    imports.collect()
}

/// The paths that a file imports, as they are written.
fn use_trees(file: &Source) -> impl Iterator<Item = (Vec<String>, usize)> {
    words(&file.code, "use").flat_map(|at| paths(&file.code, at + 3))
}

/// The paths outside of imports that have several parts, as they are written.
fn expressions(file: &Source) -> impl Iterator<Item = (Vec<String>, usize)> {
    let code = &file.code;
    let imports = imports(code);
    code.match_indices("::").filter_map(move |(at, _)| {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        let begin = code[..at].trim_end_matches(part).len();
        let begins = begin < at && !code[..begin].ends_with("::");
        if !begins || imports.iter().any(|import| import.contains(&begin)) {
            return None;
        }
        paths(code, begin).into_iter().next()
    })
}

/// The paths of a use tree: `a::{b, c::*}` → `a::b`, `a::c`.
fn paths(code: &str, from: usize) -> Vec<(Vec<String>, usize)> {
    let mut found = Vec::new();
    tree(code, from, &mut Vec::new(), &mut found);
    found
}

/// Returns where the tree ends.
fn tree(
    code: &str,
    from: usize,
    above: &mut Vec<String>,
    found: &mut Vec<(Vec<String>, usize)>,
) -> usize {
    let at = code.len() - code[from..].trim_start().len();
    let rest = &code[at..];
    let depth = above.len();
    if rest.starts_with('{') {
        let mut at = at + 1;
        loop {
            at = code.len()
                - code[at..]
                    .trim_start_matches(|c: char| c.is_whitespace() || c == ',')
                    .len();
            if code[at..].starts_with('}') || at >= code.len() {
                return at + 1;
            }
            let end = tree(code, at, above, found);
            at = if end > at { end } else { at + 1 };
        }
    }
    let name = ident(rest);
    if name.is_empty() || name == "self" && !rest.starts_with("self::") {
        if depth > 0 {
            found.push((above.clone(), at));
        }
        return at + name.len().max(usize::from(rest.starts_with('*')));
    }
    above.push(name.to_owned());
    let mut end = at + name.len();
    if let Some(below) = code[end..].strip_prefix("::") {
        let below = code.len() - below.len();
        if below == code.len() || code[below..].starts_with('<') {
            found.push((above.clone(), at));
        } else {
            end = tree(code, below, above, found);
        }
    } else {
        found.push((above.clone(), at));
        if let Some(renamed) = code[end..].strip_prefix(" as ") {
            end = code.len() - renamed.len() + ident(renamed).len();
        }
    }
    above.truncate(depth);
    end
}

pub fn ident(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    &text[..end]
}

/// Finds the places where `word` is a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part)
        })
}

/// Puts spaces where comments, strings and characters are.
fn blank_comments_and_literals(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = out.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if !word
            && rest.starts_with('r')
            && rest[1..].trim_start_matches('#').starts_with('"')
        {
            let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
            let open = 2 + hashes;
            let close = format!("\"{}", "#".repeat(hashes));
            rest[open..]
                .find(&close)
                .map_or(rest.len(), |end| open + end + close.len())
        } else if c == '"' {
            1 + closing(&rest[1..], '"')
        } else if c == '\'' {
            let mut next = rest[1..].chars();
            match (next.next(), next.next()) {
                (Some('\\'), _) | (Some(_), Some('\'')) => 1 + closing(&rest[1..], '\''),
                // A lifetime.
                _ => 0,
            }
        } else {
            0
        };
        if skip == 0 {
            out.push(c);
            at += c.len_utf8();
        } else {
            // Byte for byte, so that places stay the same.
            out.extend(
                rest[..skip]
                    .bytes()
                    .map(|b| if b == b'\n' { '\n' } else { ' ' }),
            );
            at += skip;
        }
    }
    out
}

/// Returns the place after the quote that closes a literal.
pub fn closing(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Puts spaces where an item is for tests only, and returns those that are modules.
fn blank_tests(code: &mut String) -> Vec<TestModule> {
    const MARK: &str = "#[cfg(test)]";
    let mut modules = Vec::new();
    while let Some(begin) = code.find(MARK) {
        let item = &code[begin + MARK.len()..];
        let mut depth = 0;
        let end = item.char_indices().find_map(|(at, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (depth == 0 && matches!(c, ';' | '}')).then_some(at + 1)
        });
        let end = end.unwrap_or(item.len());
        let head = item[..end].split(['{', ';']).next().unwrap_or_default();
        if let Some(at) = words(head, "mod").next() {
            modules.push(TestModule {
                line: 1 + code[..begin].matches('\n').count(),
                name: ident(head[at + 3..].trim_start()).to_owned(),
                inline: item[..end]
                    .ends_with('}')
                    .then(|| item[..end].matches('\n').count()),
            });
        }
        let end = begin + MARK.len() + end;
        let blank: String = code[begin..end]
            .bytes()
            .map(|b| if b == b'\n' { '\n' } else { ' ' })
            .collect();
        code.replace_range(begin..end, &blank);
    }
    modules
}
