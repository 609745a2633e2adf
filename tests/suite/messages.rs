//! Advice in error messages: code in backticks is code that the reader of the message can write.

use std::collections::{BTreeMap, BTreeSet};

use crate::structure::{Source, closing, ident, product, words, workspace};

/// Names in messages that are not names of the library: Rust's own, words of filter and launcher
/// languages, and parameters of user functions.
const OTHERS: &[&str] = &[
    "main",
    "unsafe",
    "and",
    "or",
    "agree",
    "f32",
    "Vec",
    "Ok",
    "Fn",
    "lengths",
    "tokio::task::spawn_blocking",
];

/// Names that the library declares.
#[derive(Default)]
struct Names {
    /// Functions of a type or trait, by its name.
    methods: BTreeMap<String, BTreeSet<String>>,
    /// Types, traits, modules, macros, functions that stand by themselves, and features.
    others: BTreeSet<String>,
}

impl Names {
    fn of(files: &[Source]) -> Names {
        let mut names = Names::default();
        for Source { code, .. } in files {
            for word in ["impl", "trait"] {
                for at in words(code, word) {
                    names.add_block(&code[at + word.len()..]);
                }
            }
            for at in words(code, "enum") {
                names.add_variants(&code[at + 4..]);
            }
            for at in words(code, "struct") {
                names.add_fields(&code[at + 6..]);
            }
            for word in [
                "struct",
                "enum",
                "trait",
                "mod",
                "macro_rules!",
                "fn",
                "type",
            ] {
                for at in words(code, word) {
                    names
                        .others
                        .insert(ident(code[at + word.len()..].trim_start()).to_owned());
                }
            }
            // Methods that a macro declares for several types.
            for at in words(code, "datapipes") {
                names.others.insert(ident(&code[at..]).to_owned());
            }
        }
        for krate in [
            "datapipes",
            "datapipes-io",
            "datapipes-image",
            "datapipes-burn",
            "datapipes-candle",
        ] {
            let manifest = format!("{}/{krate}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
            let manifest = std::fs::read_to_string(manifest).unwrap();
            let features = manifest.split("[features]").nth(1).unwrap_or_default();
            let features = features.split("\n[").next().unwrap_or_default();
            names.others.extend(
                features
                    .lines()
                    .filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())),
            );
        }
        names
    }

    /// Adds the functions of a block, for each name in its head. `code` begins after `impl` or
    /// `trait`.
    fn add_block(&mut self, code: &str) {
        let Some(open) = code
            .find(['{', ';'])
            .filter(|&open| code[open..].starts_with('{'))
        else {
            return;
        };
        let mut depth = 0;
        let end = code[open..].char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0).then_some(open + at)
        });
        let (head, body) = (&code[..open], &code[open..end.unwrap_or(code.len())]);
        let functions = words(body, "fn").map(|at| ident(body[at + 2..].trim_start()));
        let setters = body.split("setters! {").skip(1).flat_map(|setters| {
            let setters = setters.split("\n    }").next().unwrap_or_default();
            setters.lines().map(|line| ident(line.trim_start()))
        });
        let functions: Vec<&str> = functions.chain(setters).collect();
        for name in head
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|name| !name.is_empty())
        {
            self.methods
                .entry(name.to_owned())
                .or_default()
                .extend(functions.iter().map(|f| (*f).to_owned()));
        }
    }

    /// Adds the public fields of a struct. `code` begins after `struct`.
    fn add_fields(&mut self, code: &str) {
        let (Some(open), Some(close)) = (code.find('{'), code.find('}')) else {
            return;
        };
        let fields = code[open..close.max(open)].split("pub ").skip(1);
        self.methods
            .entry(ident(code.trim_start()).to_owned())
            .or_default()
            .extend(fields.map(|field| ident(field).to_owned()));
    }

    /// Adds the variants of an enum. `code` begins after `enum`.
    fn add_variants(&mut self, code: &str) {
        let (Some(open), Some(close)) = (code.find('{'), code.find('}')) else {
            return;
        };
        let variants = code[open..close.max(open)]
            .split(|c: char| !c.is_alphanumeric())
            .filter(|name| name.starts_with(char::is_uppercase));
        self.methods
            .entry(ident(code.trim_start()).to_owned())
            .or_default()
            .extend(variants.map(str::to_owned));
    }

    /// Returns true if a reader of the message finds the name. A method without a type must be a
    /// method of the types with which graphs and loaders are written.
    fn know(&self, said: &str) -> bool {
        // A value that is filled in is a name of the user's or of the code; any other is an
        // example.
        let name = said
            .trim_start_matches('.')
            .split(['(', '!'])
            .next()
            .unwrap_or_default();
        if name.contains(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
            || OTHERS.contains(&name)
        {
            return true;
        }
        let methods = |of: &str, name: &str| {
            self.methods
                .get(of)
                .is_some_and(|methods| methods.contains(name))
        };
        match name.rsplit_once("::") {
            Some((of, name)) if of.starts_with("datapipes") => self.others.contains(name),
            Some((of, name)) => {
                let of = of.rsplit("::").next().unwrap_or(of);
                methods(of, name)
                    || self.others.contains(of)
                        && !self.methods.contains_key(of)
                        && self.others.contains(name)
            }
            None if name.starts_with(char::is_uppercase) => self.others.contains(name),
            None => {
                let chains = [
                    "Graph",
                    "FileGraphExt",
                    "Indexed",
                    "Builder",
                    "DataLoader",
                    "BurnLoader",
                    "Count",
                    "Pipe",
                    "Store",
                    "MapPipe",
                    "Wire",
                    "Epoch",
                    "Blocking",
                    // Formats and paddings, whose limits and settings are named by themselves.
                    "Lines",
                    "Csv",
                    "TfRecords",
                    "RecordIo",
                    "MsgPack",
                    "ArrowIpc",
                    "Decompress",
                    "Padding",
                ];
                chains.iter().any(|of| methods(of, name))
                    || self.others.contains(name) && !self.is_method(name)
            }
        }
    }

    fn is_method(&self, name: &str) -> bool {
        self.methods.values().any(|methods| methods.contains(name))
    }
}

/// Code in backticks in a file's literals, outside of its tests, with the line.
fn said(file: &Source) -> Vec<(usize, String)> {
    let text = file
        .text
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("'\"'") {
            at += 3;
        } else if c == '"' {
            let end = 1 + closing(&rest[1..], '"');
            let pieces: Vec<&str> = rest[1..end.max(2) - 1].split('`').collect();
            let line = 1 + text[..at].matches('\n').count();
            found.extend(
                pieces
                    .iter()
                    .skip(1)
                    .step_by(2)
                    .map(|piece| (line, (*piece).to_owned())),
            );
            at += end;
        } else {
            at += c.len_utf8();
        }
    }
    found
}

#[test]
fn every_method_that_a_message_names_exists() {
    let files = workspace();
    let names = Names::of(&files);
    let mut count = 0;
    let mut wrong = Vec::new();
    for file in product(&files) {
        for (line, piece) in said(file) {
            count += 1;
            if !names.know(&piece) {
                wrong.push(format!(
                    "{}:{line}: `{piece}` is nothing that can be written there",
                    file.path
                ));
            }
        }
    }
    assert!(count > 60, "only {count} found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A method of a type that one does not have at hand needs its name.
    for (piece, known) in [
        ("within_rank", false),
        ("Random::within_rank", true),
        ("Random::within_ranks", false),
        ("Shuffle::within_rank", true),
        ("padded_batch", true),
        ("sharding_filters", false),
        ("Layout::Hwc", true),
        ("stores::open", true),
        ("workers(0)", true),
        ("Wirred", false),
        ("datapipes::worker::init()", true),
    ] {
        assert_eq!(names.know(piece), known, "{piece}");
    }
}
