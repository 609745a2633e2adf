//! A file written by Python's sqlite3.

use std::path::PathBuf;

use bytes::Bytes;
use datapipes::Indexed;
use tempfile::TempDir;

use super::*;
use datapipes::ErrorKind;

const THINGS: &[u8] = include_bytes!("../../../tests/data/things.db");

fn things() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("things.db");
    std::fs::write(&path, THINGS).unwrap();
    (dir, path)
}

fn all(rows: &SqliteRows) -> Vec<SqliteRow> {
    Indexed::new(rows.clone()).fetch().collect().unwrap()
}

#[test]
fn rows_of_a_table_have_the_values_that_were_written() {
    let (_dir, path) = things();
    let rows = SqliteRows::table(&path, "things", &[], "").unwrap();
    assert_eq!(rows.columns(), ["id", "name", "score", "data", "any"]);
    let read = all(&rows);
    assert_eq!(
        (read.len(), datapipes::testing::sent(&read).unwrap()),
        (7, read.clone())
    );
    for (index, row) in read.iter().enumerate() {
        let i = index as i64;
        assert_eq!(row.get("id").unwrap().as_i64(), Some(10 * i));
        assert_eq!(
            row.get("name").unwrap().as_str(),
            Some(&*format!("thing {i}"))
        );
        assert_eq!(row.get("score").unwrap().as_f64(), Some(i as f64 / 4.0));
        assert_eq!(
            row.get("data").unwrap().as_bytes().unwrap()[..],
            [i as u8, 255]
        );
    }
    let any: Vec<_> = read
        .iter()
        .map(|row| row.get("any").unwrap().clone())
        .collect();
    let expected = [
        Cell::Null,
        Cell::Int(1),
        Cell::Text("x".into()),
        Cell::Real(0.5),
    ];
    assert_eq!(
        (&any[..4], &any[4]),
        (&expected[..], &Cell::Blob(Bytes::from_static(&[0])))
    );
    let json = r#"{"any":1,"data":"01ff","id":10,"name":"thing 1","score":0.25}"#;
    assert_eq!(
        serde_json::Value::from(read[1].to_json()),
        serde_json::from_str::<serde_json::Value>(json).unwrap()
    );
    let mut row = read[1].clone();
    assert_eq!(
        (row.take("any").unwrap(), row.get("any").unwrap()),
        (Cell::Int(1), &Cell::Null)
    );
    assert_eq!(
        row.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        rows.columns()
    );
    let error = row.get("nam").unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"not found: no column "nam", but "id", "name", "score", "data", "any""#
    );
    assert_eq!(std::fs::read(path).unwrap(), THINGS);
}

#[test]
fn columns_and_rows_are_chosen() {
    let (_dir, path) = things();
    let rows =
        SqliteRows::table(&path, "things", &["score", "name"], "id >= 30 -- and more").unwrap();
    let read = all(&rows);
    assert_eq!(
        (read.len(), rows.columns()),
        (4, &["score".to_owned(), "name".to_owned()][..])
    );
    assert_eq!(
        read[0].cells,
        [Cell::Real(0.75), Cell::Text("thing 3".into())]
    );
    let mut shuffled = Indexed::new(rows).shuffle().fetch().collect().unwrap();
    shuffled.sort_by(|a, b| {
        a.get("score")
            .unwrap()
            .as_f64()
            .partial_cmp(&b.get("score").unwrap().as_f64())
            .unwrap()
    });
    assert_eq!(shuffled, read);
}

#[test]
fn tables_without_a_rowid_are_in_the_order_of_their_primary_key() {
    let (_dir, path) = things();
    let rows = SqliteRows::table(&path, "odd \"name", &["a b"], "").unwrap();
    let read: Vec<_> = all(&rows)
        .into_iter()
        .map(|row| row.cells[0].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(read, ["v3", "v2", "v1"]);
}

#[test]
fn rows_of_a_query_come_in_its_order() {
    let (_dir, path) = things();
    let query = "SELECT name, id, id / 20 AS half FROM things WHERE id > 0 ORDER BY id DESC; ";
    for key in ["id", "name"] {
        let rows = SqliteRows::query(&path, query, key).unwrap();
        let ids: Vec<_> = all(&rows)
            .iter()
            .map(|row| row.get("id").unwrap().as_i64().unwrap())
            .collect();
        assert_eq!(ids, [60, 50, 40, 30, 20, 10]);
    }
    let view = SqliteRows::query(&path, "SELECT * FROM big", "id").unwrap();
    assert_eq!(all(&view).len(), 3);
    let kind = |query, key| SqliteRows::query(&path, query, key).unwrap_err();
    let twice = kind(query, "half");
    assert!(
        twice.kind() == ErrorKind::Config && twice.to_string().ends_with("the key 2 comes twice"),
        "{twice}"
    );
    assert_eq!(
        kind("SELECT any FROM things", "any").kind(),
        ErrorKind::Config
    );
    assert_eq!(kind(query, "key").kind(), ErrorKind::NotFound);
    assert_eq!(kind("SELEKT 1", "a").kind(), ErrorKind::Config);
    // A query for reading must not write.
    assert!(SqliteRows::query(&path, "DELETE FROM things RETURNING id", "id").is_err());
    assert_eq!(
        all(&SqliteRows::table(&path, "things", &[], "").unwrap()).len(),
        7
    );
}

/// Two columns of one name are refused: SQLite would return the first one for both.
#[test]
fn two_columns_of_one_name_are_refused() {
    let (_dir, path) = things();
    let twice = "SELECT a.id, a.name, b.name FROM things AS a JOIN things AS b ON b.id = a.id + 10";
    let error = SqliteRows::query(&path, twice, "id").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error
            .to_string()
            .contains("two columns are called \"name\""),
        "{error}"
    );
    let named = twice.replace("b.name", "b.name AS next");
    assert_eq!(
        all(&SqliteRows::query(&path, &named, "id").unwrap()).len(),
        6
    );
}

#[test]
fn what_is_not_there_is_named() {
    let (dir, path) = things();
    let table = |table, columns: &[&str], condition| {
        SqliteRows::table(&path, table, columns, condition).unwrap_err()
    };
    let error = table("thing", &[], "");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error
            .to_string()
            .ends_with(r#"no table "thing", but "big", "odd \"name", "things""#),
        "{error}"
    );
    assert_eq!(table("things", &["nam"], "").kind(), ErrorKind::NotFound);
    assert_eq!(table("things", &[], "nam = 1").kind(), ErrorKind::Config);
    assert_eq!(table("big", &[], "").kind(), ErrorKind::Config);
    let missing = SqliteRows::table(dir.path().join("none.db"), "things", &[], "").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    std::fs::write(&path, "no database, and long enough to be none".repeat(100)).unwrap();
    assert_eq!(table("things", &[], "").kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn a_row_that_was_taken_away_is_a_change() {
    let (_dir, path) = things();
    let rows = SqliteRows::table(&path, "things", &["id"], "").unwrap();
    let by_name = SqliteRows::query(&path, "SELECT name FROM things", "name").unwrap();
    Connection::open(&path)
        .unwrap()
        .execute("DELETE FROM things WHERE id = 20", [])
        .unwrap();
    for rows in [&rows, &by_name] {
        let read = MapPipe::get_many(rows, &[1, 2, 7, 3, 1]).await;
        let kinds: Vec<_> = read
            .iter()
            .map(|row| row.as_ref().err().map(Error::kind))
            .collect();
        assert_eq!(
            kinds,
            [
                None,
                Some(ErrorKind::Changed),
                Some(ErrorKind::NotFound),
                None,
                None
            ]
        );
    }
    let name = MapPipe::sample_name(&rows, 2).unwrap();
    assert!(
        name.ends_with(r#"things.db: table "things": key 20"#),
        "{name}"
    );
    let name = MapPipe::sample_name(&by_name, 2).unwrap();
    assert!(name.ends_with(r#"key "thing 2""#), "{name}");
    let error = MapPipe::get(&rows, 2).await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with(r#"things.db: table "things": key 20: it was taken away"#),
        "{error}"
    );
}

#[tokio::test]
async fn row_107_text_that_is_none_is_an_error_of_its_row() {
    let (_dir, path) = things();
    let update = "UPDATE things SET name = CAST(x'6162ff' AS TEXT) WHERE id = 10";
    Connection::open(&path)
        .unwrap()
        .execute(update, [])
        .unwrap();
    let rows = SqliteRows::table(&path, "things", &[], "").unwrap();
    let read = MapPipe::get_many(&rows, &[0, 1, 2]).await;
    assert_eq!(
        read.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, true]
    );
    let error = read[1].as_ref().unwrap_err();
    let words = r#"key 10: column "name": text that is not UTF-8 at byte 2"#;
    assert!(
        error.kind() == ErrorKind::Corrupt && error.to_string().ends_with(words),
        "{error}"
    );
}

#[tokio::test]
async fn many_rows_are_read_by_few_queries() {
    let (_dir, path) = things();
    let connection = Connection::open(&path).unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n LIMIT 1000)
                INSERT INTO things (id, name) SELECT i, 'n' || i FROM n";
    connection.execute(fill, []).unwrap();
    let rows = SqliteRows::table(&path, "things", &["name"], "id >= 100").unwrap();
    let indices: Vec<u64> = (0..1000).rev().collect();
    let read = MapPipe::get_many(&rows, &indices).await;
    for (index, row) in indices.iter().zip(read) {
        assert_eq!(
            row.unwrap().cells,
            [Cell::Text(format!("n{}", index + 100))]
        );
    }
}

#[test]
fn cells_travel_to_other_processes() {
    let cells = [
        Cell::Null,
        Cell::Int(1),
        Cell::Real(0.5),
        Cell::Text("t".into()),
        Cell::Blob("b".into()),
    ];
    datapipes::testing::check_wire(&cells.to_vec());
}
