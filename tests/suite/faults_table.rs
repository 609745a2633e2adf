//! The table of faults, `tests/FAULTS.md`, agrees with the tests: each entry is a test, and each
//! test of a row is listed.

use std::collections::{BTreeMap, BTreeSet};

use crate::structure::{Source, ident, tests_of_the_workspace};

#[test]
fn the_table_of_faults_lists_the_tests_that_there_are() {
    let broken = check(include_str!("../FAULTS.md"), &tests_of_the_workspace());
    assert!(
        broken.is_empty(),
        "{} problems of tests/FAULTS.md:\n{}",
        broken.len(),
        broken.join("\n")
    );
}

#[test]
fn what_the_table_says_wrongly_is_named() {
    let table = "\
        | row | fault | promise | shown by |\n|---|---|---|---|\n\
        | 1 | a panic | an error | `a.rs::row_1_*`, `a.rs::gone`, `b.rs::row_1_*` |\n\
        | 2 | a kill | the rest | |\n\
        | 3 | a clock | nothing | not held: no test moves it |\n\
        | 3 | a clock | nothing | `a.rs::plain` |\n\
        | 4 | a cut | an error | `a.rs::row_1_*` |\n";
    let a = "#[test]\nfn row_1_a_panic() {}\n#[test]\nfn rows_4_to_6_are_more() {}\n#[test]\nfn plain() {}\n#[tokio::test]\n\
             async fn row_3_and_4_are_slow() {}\nfn row_1_no_test() {}\n";
    let broken = check(table, &[Source::new("a.rs", a)]);
    assert_eq!(
        broken,
        [
            "row 1: there is no test `a.rs::gone`",
            "row 1: there is no test `b.rs::row_1_*`",
            "row 2: neither a test nor a reason (`not held: …`)",
            "row 3 is there twice",
            "row 3: `a.rs::row_3_and_4_*` is missing, for the test `row_3_and_4_are_slow`",
            "row 4: `a.rs::row_3_and_4_*` is missing, for the test `row_3_and_4_are_slow`",
            "row 4: `a.rs::rows_4_to_6_*` is missing, for the test `rows_4_to_6_are_more`",
            "`a.rs::rows_4_to_6_are_more` is of row 5, which is not in the table",
            "`a.rs::rows_4_to_6_are_more` is of row 6, which is not in the table",
        ]
    );
}

fn check(table: &str, sources: &[Source]) -> Vec<String> {
    let tests: BTreeSet<(&str, &str)> = sources
        .iter()
        .flat_map(|file| names(&file.text).map(|name| (&*file.path, name)))
        .collect();
    let mut broken = Vec::new();
    let mut rows: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (Some(Ok(row)), Some(shown)) = (cells.first().map(|cell| cell.parse()), cells.get(3))
        else {
            continue;
        };
        let entries: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        for entry in entries
            .iter()
            .filter(|entry| !tests.iter().any(|test| is_named_by(*test, entry)))
        {
            broken.push(format!("row {row}: there is no test `{entry}`"));
        }
        if entries.is_empty() && !shown.contains("not held: ") {
            broken.push(format!(
                "row {row}: neither a test nor a reason (`not held: …`)"
            ));
        }
        if rows.insert(row, entries).is_some() {
            broken.push(format!("row {row} is there twice"));
        }
    }
    for test @ (path, name) in tests {
        let (of, prefix) = rows_of(name);
        for row in of {
            match rows.get(&row) {
                None => broken.push(format!(
                    "`{path}::{name}` is of row {row}, which is not in the table"
                )),
                Some(entries) if !entries.iter().any(|entry| is_named_by(test, entry)) => {
                    broken.push(format!(
                        "row {row}: `{path}::{prefix}_*` is missing, for the test `{name}`"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    broken
}

/// Returns true if an entry, `path::name` or `path::beginning_*`, names the test.
fn is_named_by((path, name): (&str, &str), entry: &str) -> bool {
    entry
        .strip_prefix(path)
        .and_then(|rest| rest.strip_prefix("::"))
        .is_some_and(|entry| {
            entry
                .strip_suffix('*')
                .map_or(entry == name, |beginning| name.starts_with(beginning))
        })
}

/// The functions that are tests.
fn names(text: &str) -> impl Iterator<Item = &str> {
    // Attributes and comments may stand between, and tests of proptest have arguments.
    text.match_indices("#[test]")
        .chain(text.match_indices("#[tokio::test"))
        .filter_map(|(at, _)| {
            let (_, name) = text[at..].split_once("fn ")?;
            Some(ident(name))
        })
}

/// The rows that a name says the test is of, `rows_4_to_6_and_9_…`, and the part of the name that
/// says so.
fn rows_of(name: &str) -> (BTreeSet<u32>, String) {
    let words: Vec<&str> = name.split('_').collect();
    let mut rows = BTreeSet::new();
    let mut prefix = words.len();
    let mut counting = false;
    for (at, word) in words
        .iter()
        .enumerate()
        .filter(|_| matches!(words[0], "row" | "rows"))
    {
        let row = word.parse::<u32>();
        match row {
            Ok(row) if counting && words[at - 1] == "to" => {
                let first = rows.last().map_or(row, |first| *first);
                rows.extend(first..=row);
            }
            Ok(row) if counting => _ = rows.insert(row),
            _ if matches!(*word, "row" | "rows") => counting = true,
            _ if counting && matches!(*word, "and" | "to") => {}
            _ => {
                counting = false;
                prefix = prefix.min(at);
            }
        }
    }
    (rows, words[..prefix].join("_"))
}
