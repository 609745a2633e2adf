//! Data sets and caches that the Hugging Face library `datasets` wrote; `tests/data/make_datasets.py`
//! made them.

use std::fs;

use datapipes::{ErrorKind, Indexed};
use datapipes_io::formats::{ArrowIpc, Row};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/saved-dataset");

/// The rows that `make_datasets.py` gave to `datasets`.
fn row(number: i64) -> Row {
    let text = match number {
        3 => serde_json::Value::Null,
        _ => format!("text {number} \u{fc}").into(),
    };
    let numbers: Vec<i64> = (0..number % 3).collect();
    let row = serde_json::json!({ "text": text, "number": number, "list": numbers });
    match row {
        serde_json::Value::Object(row) => row,
        _ => unreachable!("it is an object"),
    }
}

#[test]
fn rows_are_those_of_all_shards_in_their_order() {
    let rows = ArrowIpc::new().saved_dataset(DATA).unwrap();
    assert_eq!(rows.len(), 7);
    assert_eq!(
        rows.fetch().collect().unwrap(),
        Vec::from_iter((0..7).map(row))
    );
}

#[test]
fn the_cache_file_of_a_map_is_read_by_index() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cache-mapped.arrow");
    let rows = Indexed::new(ArrowIpc::new().index_mapped(path).unwrap());
    let rows = rows.fetch().collect().unwrap();
    let expected = (0..7).map(|number| {
        let mut row = row(number);
        row.insert("double".to_owned(), (number * 2).into());
        row
    });
    assert_eq!(rows, Vec::from_iter(expected));
}

#[test]
fn a_folder_that_is_no_data_set_is_refused_with_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        let error = ArrowIpc::new().saved_dataset(folder.path()).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, said) = refused("dataset_dict.json", r#"{"splits": ["train", "test"]}"#);
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(
        said.ends_with("has splits, a folder each: train, test"),
        "{said}"
    );
    let (kind, said) = refused("state.json", "{}");
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(said.contains("state.json: "), "{said}");
    let (kind, said) = refused("state.json", r#"{"_data_files": []}"#);
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(
        said.ends_with("state.json: it lists no files of rows"),
        "{said}"
    );
    let indices = r#"{"_data_files": [], "_indices_files": [{"filename": "indices.arrow"}]}"#;
    let (kind, said) = refused("state.json", indices);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(said.contains("_indices_files"), "{said}");
    let (kind, said) = refused(
        "state.json",
        r#"{"_data_files": [{"filename": "../a.arrow"}]}"#,
    );
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(
        said.contains("\"../a.arrow\" is not of this folder"),
        "{said}"
    );
    let (kind, said) = refused(
        "state.json",
        r#"{"_data_files": [{"filename": "a.arrow"}]}"#,
    );
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(said.contains("a.arrow"), "{said}");
}
