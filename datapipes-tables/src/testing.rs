//! Contract tests for tables, of this crate and of users.

use std::collections::BTreeMap;

use bytes::Bytes;
use datapipes::ErrorKind;
use futures::TryStreamExt;
use futures::future::join_all;
use uuid::Uuid;

use super::{
    ColumnType, Filter, Label, Metadata, NewRow, Row, Schema, Table, TableExt, Value, col, key,
};

/// Returns the schema that [`check_table`] needs: a column of each type.
pub fn schema() -> Schema {
    Schema::new([
        ("count", ColumnType::Int),
        ("size", ColumnType::Float),
        ("name", ColumnType::Text),
        ("good", ColumnType::Bool),
    ])
}

/// Returns a sample with this key and data, and metadata that depend on the number.
pub fn sample(number: u64, data: impl Into<Bytes>) -> NewRow {
    let row = Row {
        key: key("testing", number.to_le_bytes()),
        label: Label::Class(number as i64 % 3),
        data: data.into(),
    };
    let known = !number.is_multiple_of(5);
    let values = vec![
        Some(number as i64).filter(|_| known).into(),
        (number as f64 / 4.0).into(),
        format!("sample {number}").into(),
        (number % 2 == 1).into(),
    ];
    NewRow { row, values }
}

/// Checks an empty table of [`schema`]: reading written rows, in order, with missing ones; all
/// types with their extremes; atomic and repeated writing; filters; many concurrent operations.
/// Leaves some hundred rows in the table.
///
/// # Panics
/// Panics if the table does not keep the contract.
pub async fn check_table(table: &dyn Table) {
    assert_eq!(table.schema(), &schema(), "the table is of another schema");
    assert_eq!(scan(table, &[]).await.len(), 0, "the table is not empty");
    let nobody = table.get(Uuid::nil()).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::NotFound, "{nobody}");
    assert!(!nobody.is_transient(), "{nobody}");
    for part in [table.url(), "00000000-0000-0000-0000-000000000000"] {
        assert!(
            nobody.to_string().contains(part),
            "the error does not name {part}: {nobody}"
        );
    }
    table.put(Vec::new()).await.expect("nothing can be written");
    assert!(table.get_many(&[]).await.is_empty());
    assert!(table.contains(&[]).await.unwrap().is_empty());

    values_come_back(table).await;
    order_is_that_of_the_keys(table).await;
    writing_again_replaces(table).await;
    what_does_not_fit_is_not_written(table).await;
    much_at_once(table).await;
    questions(table).await;
}

async fn scan(table: &dyn Table, columns: &[&str]) -> Vec<Metadata> {
    table
        .scan(columns)
        .try_collect()
        .await
        .expect("a scan works")
}

async fn values_come_back(table: &dyn Table) {
    let megabyte: Bytes = (0..1 << 20)
        .map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let texts = [
        "",
        "ü € 𝄞 \u{202e}x",
        "it's \"so\"; DROP TABLE x -- %_\\\n\r\t",
        "a\0b",
    ];
    let floats = [
        0.0,
        -1.5,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        f64::from_bits(1),
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e15 + 0.3,
        9_007_199_254_740_993.0,
    ];
    let ints = [0, 1, -1, i64::MAX, i64::MIN, (1 << 53) + 1];
    let labels = [
        Label::None,
        Label::Class(0),
        Label::Class(i64::MIN),
        Label::Class(i64::MAX),
        Label::Blob(Bytes::new()),
        Label::Blob(megabyte.slice(..4000)),
    ];
    let blobs = [
        Bytes::new(),
        Bytes::from_static(&[0]),
        Bytes::from_static(b"\xff\0'\""),
        megabyte,
    ];
    let mut all = Vec::new();
    for number in 0..10 {
        let row = Row {
            key: key("testing values", [number as u8]),
            label: labels[number % labels.len()].clone(),
            data: blobs[number % blobs.len()].clone(),
        };
        let values = vec![
            ints[number % ints.len()].into(),
            floats[number].into(),
            texts[number % texts.len()].into(),
            (number % 2 == 0).into(),
        ];
        all.push(NewRow { row, values });
    }
    all[9].values = vec![Value::Null; 4];
    table
        .put(all.clone())
        .await
        .expect("all values can be written");
    for new in &all {
        assert_eq!(
            table.get(new.row.key).await.expect("it was written"),
            new.row
        );
    }
    let mut found: BTreeMap<Uuid, Metadata> = scan(table, &["count", "size", "name", "good"])
        .await
        .into_iter()
        .map(|found| (found.key, found))
        .collect();
    for new in all {
        let class = if let Label::Class(class) = new.row.label {
            Some(class)
        } else {
            None
        };
        let wanted = Metadata {
            key: new.row.key,
            class,
            values: new.values,
        };
        assert_eq!(found.remove(&new.row.key), Some(wanted));
    }
    assert!(found.is_empty(), "rows that nobody wrote: {found:?}");
    // Some columns, in another order.
    for found in scan(table, &["good", "count"]).await {
        assert!(
            matches!(
                &found.values[..],
                [Value::Bool(_), Value::Int(_)] | [Value::Null, Value::Null]
            ),
            "{found:?}"
        );
    }
    let error = table
        .scan(&["none"])
        .try_collect::<Vec<_>>()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(
        !error.is_about_an_item(),
        "a policy would skip a scan that failed: {error}"
    );
}

async fn order_is_that_of_the_keys(table: &dyn Table) {
    let rows: Vec<_> = (0..300)
        .map(|number| sample(number, number.to_string()))
        .collect();
    table
        .put(rows.clone())
        .await
        .expect("300 rows can be written");
    // In reverse order, each third missing, and some twice.
    let numbers: Vec<u64> = (0..300).rev().chain([7, 7, 7]).collect();
    let key_of = |number: u64| match number % 3 {
        0 => key("testing missing", number.to_le_bytes()),
        _ => key("testing", number.to_le_bytes()),
    };
    let keys: Vec<Uuid> = numbers.iter().map(|&number| key_of(number)).collect();
    let answers = table.get_many(&keys).await;
    assert_eq!(answers.len(), keys.len());
    for ((number, key), answer) in numbers.iter().zip(&keys).zip(answers) {
        match (number % 3, answer) {
            (0, Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(
                    error.to_string().contains(&key.to_string()),
                    "the error does not name {key}: {error}"
                );
            }
            (0, Ok(row)) => panic!("row {} of nobody", row.key),
            (_, answer) => assert_eq!(answer.expect("it was written"), rows[*number as usize].row),
        }
    }
    let there = table.contains(&keys).await.expect("keys can be looked for");
    assert_eq!(
        there,
        numbers
            .iter()
            .map(|number| number % 3 != 0)
            .collect::<Vec<_>>()
    );
    let (once, twice) = (scan(table, &["name"]).await, scan(table, &["name"]).await);
    assert_eq!(once, twice, "the order of a scan is not always the same");
}

async fn writing_again_replaces(table: &dyn Table) {
    let before = scan(table, &["count"]).await.len();
    let mut new = sample(1, "another");
    new.row.label = Label::Blob("mask".into());
    new.values = vec![Value::Null, 2.5.into(), "another name".into(), Value::Null];
    for _ in 0..2 {
        table
            .put(vec![new.clone()])
            .await
            .expect("a row can be written again");
    }
    assert_eq!(table.get(new.row.key).await.unwrap(), new.row);
    let found = scan(table, &["count", "size", "name", "good"]).await;
    assert_eq!(found.len(), before, "a row that is written again is one");
    let found = found
        .into_iter()
        .find(|found| found.key == new.row.key)
        .expect("it is there");
    assert_eq!(
        (found.class, found.values),
        (None, new.values),
        "metadata of before are gone"
    );
    table.put(vec![sample(1, "1")]).await.unwrap();
}

async fn what_does_not_fit_is_not_written(table: &dyn Table) {
    let fits = sample(1000, "x");
    let wrong: [Vec<Value>; 5] = [
        vec![],
        vec![Value::Null; 5],
        vec!["text".into(), Value::Null, Value::Null, Value::Null],
        vec![Value::Null, 1.into(), Value::Null, Value::Null],
        vec![Value::Null, f64::NAN.into(), Value::Null, Value::Null],
    ];
    for values in wrong {
        let bad = NewRow {
            values,
            ..sample(1001, "y")
        };
        let error = table
            .put(vec![fits.clone(), bad.clone()])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        assert!(
            error.to_string().contains(&bad.row.key.to_string()),
            "the error does not name the row: {error}"
        );
    }
    assert_eq!(
        table
            .contains(&[fits.row.key, sample(1001, "").row.key])
            .await
            .unwrap(),
        [false, false]
    );
}

async fn much_at_once(table: &dyn Table) {
    let puts = (0..20).map(|part| {
        let rows = (0..10)
            .map(|n| sample(2000 + part * 10 + n, vec![n as u8; 1000]))
            .collect();
        table.put(rows)
    });
    let gets = (0..20).map(|part| async move {
        let keys: Vec<_> = (0..15).map(|n| sample(part * 15 + n, "").row.key).collect();
        table.get_many(&keys).await
    });
    let (puts, gets) = futures::future::join(join_all(puts), join_all(gets)).await;
    puts.into_iter()
        .for_each(|put| put.expect("many can write at once"));
    for (number, row) in gets.into_iter().flatten().enumerate() {
        assert_eq!(row.expect("many can read at once").data, number.to_string());
    }
    let keys: Vec<_> = (2000..2200)
        .map(|number| sample(number, "").row.key)
        .collect();
    assert!(table.get_many(&keys).await.iter().all(Result::is_ok));
}

async fn questions(table: &dyn Table) {
    let filters = [
        Filter::all(),
        col("count").gt(50),
        col("count").ne(50).not(),
        col("count").is_null().not().and(col("good").eq(true)),
        col("size")
            .le(10)
            .or(col("name").is_in(["sample 77", "sample 78", "nobody"])),
        col("label").eq(2).and(col("name").ge("sample 2")),
        col("count")
            .lt(50.5)
            .and(col("size").gt(3).or(col("good").eq(false))),
        col("label").is_null(),
        col("count").eq(-1),
    ];
    for filter in filters {
        let mut found = table
            .select(&["name"])
            .filter(filter.clone())
            .all()
            .await
            .expect("a filter works");
        let mut wanted: Vec<_> = super::filter::scan_and_filter(table, &["name"], &filter)
            .try_collect()
            .await
            .unwrap();
        found.sort_by_key(|found| found.key);
        wanted.sort_by_key(|found| found.key);
        assert_eq!(found, wanted, "{filter}");
        let mut keys = table
            .select(&[])
            .filter(filter.clone())
            .keys()
            .await
            .unwrap();
        keys.sort();
        assert_eq!(
            keys,
            wanted.iter().map(|found| found.key).collect::<Vec<_>>(),
            "{filter}"
        );
    }
    for (filter, kind) in [
        (col("none").eq(1), ErrorKind::NotFound),
        (col("name").eq(1), ErrorKind::Shape),
    ] {
        let error = table.select(&[]).filter(filter).all().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}
