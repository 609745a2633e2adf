//! Written rows are read back, in order, for any size and any way of reading.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use datapipes::ErrorKind;
use datapipes_tables::cassandra::{Cassandra, Replication};
use datapipes_tables::{ColumnType, Label, Metadata, NewRow, Row, Schema, Table, Value, col};
use futures::{StreamExt, TryStreamExt};
use uuid::Uuid;

use crate::support::{
    Mode, Proxy, address, admin, bytes, cql, fresh, key, number, row, schema, server, through,
    url_of,
};

async fn scanned(table: &dyn Table, columns: &[&str]) -> Vec<Metadata> {
    table.scan(columns).try_collect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_label_and_value_comes_back_as_it_went() {
    let Some(server) = server() else { return };
    let table = fresh(&server, "values", "").await;
    assert_eq!(table.schema(), &schema());
    assert_eq!(
        table.url(),
        format!("cassandra://{}/datapipes_tests.values", address(&server))
    );

    let labels = [
        Label::None,
        Label::Class(i64::MIN),
        Label::Class(0),
        Label::Blob(bytes("")),
        Label::Blob(bytes("mask")),
    ];
    let text = |text: &str| Value::Text(text.to_owned());
    let values = [
        vec![
            Value::Null,
            Value::Null,
            Value::Null,
            Value::Null,
            Value::Null,
        ],
        vec![
            text(""),
            Value::Int(i64::MAX),
            Value::Float(f64::MIN_POSITIVE),
            text("it's; \"ß\""),
            Value::Bool(false),
        ],
        vec![
            text("a\0b"),
            Value::Int(-1),
            Value::Float(f64::INFINITY),
            Value::Null,
            Value::Bool(true),
        ],
        vec![
            Value::Null,
            Value::Int(0),
            Value::Float(-0.0),
            text("?"),
            Value::Null,
        ],
        vec![text("x"), Value::Null, Value::Null, text("y"), Value::Null],
    ];
    let rows: Vec<NewRow> = (0..5)
        .map(|n| NewRow {
            row: Row {
                key: key(n),
                label: labels[n as usize].clone(),
                data: vec![n as u8; n as usize].into(),
            },
            values: values[n as usize].clone(),
        })
        .collect();
    table.put(rows.clone()).await.unwrap();
    // Another handle reads the schema from the database.
    let again = Cassandra::connect(&url_of(&server, "values", ""))
        .await
        .unwrap();
    assert_eq!(again.schema(), &schema());
    for expected in &rows {
        assert_eq!(again.get(expected.row.key).await.unwrap(), expected.row);
    }
    let names: Vec<_> = schema().columns.into_iter().map(|(name, _)| name).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let found: BTreeMap<Uuid, Metadata> = scanned(&again, &names)
        .await
        .into_iter()
        .map(|row| (row.key, row))
        .collect();
    assert_eq!(found.len(), rows.len());
    for expected in &rows {
        let found = &found[&expected.row.key];
        assert_eq!(found.values, expected.values);
        let class = if let Label::Class(class) = expected.row.label {
            Some(class)
        } else {
            None
        };
        assert_eq!(found.class, class);
    }
    // Reads only some columns, in the requested order.
    let some = scanned(&again, &["class", "age"]).await;
    assert!(some.iter().all(|row| row.values
        == [
            found[&row.key].values[3].clone(),
            found[&row.key].values[1].clone()
        ]));
    let adults: Vec<_> = again
        .find(&["age"], &col("age").gt(0))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(adults.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_written_again_is_put_in_place_of_itself() {
    let Some(server) = server() else { return };
    let table = fresh(&server, "again", "").await;
    table.put(vec![row(1, 100)]).await.unwrap();
    let other = NewRow {
        row: Row {
            key: key(1),
            label: Label::Blob(bytes("new")),
            data: bytes("other"),
        },
        values: vec![
            Value::Null,
            Value::Int(2),
            Value::Null,
            Value::Null,
            Value::Null,
        ],
    };
    table.put(vec![other.clone()]).await.unwrap();
    table.put(vec![other.clone()]).await.unwrap();
    assert_eq!(table.get(key(1)).await.unwrap(), other.row);
    let metadata = scanned(&table, &["patient", "age"]).await;
    let expected = Metadata {
        key: key(1),
        class: None,
        values: vec![Value::Null, Value::Int(2)],
    };
    assert_eq!(metadata, [expected]);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_keys_are_answered_in_their_order() {
    let Some(server) = server() else { return };
    let table = fresh(&server, "many", "connections=4").await;
    table
        .put((0..5000).map(|n| row(n, 100 + n as usize % 300)).collect())
        .await
        .unwrap();
    // Some keys twice, a missing one, and in reverse order.
    let mut wanted: Vec<u64> = (0..5000).rev().collect();
    wanted.insert(77, 9999);
    wanted.extend([0, 0, 4999]);
    let keys: Vec<Uuid> = wanted.iter().map(|n| key(*n)).collect();
    let rows = table.get_many(&keys).await;
    assert_eq!(rows.len(), wanted.len());
    for (n, row) in wanted.iter().zip(rows) {
        match row {
            Ok(row) => assert_eq!(number(&row), *n),
            Err(error) => {
                assert_eq!((*n, error.kind()), (9999, ErrorKind::NotFound));
                assert!(
                    error.to_string().contains(&key(9999).to_string()),
                    "{error}"
                );
                assert!(
                    error.to_string().contains("datapipes_tests.many") && !error.is_transient(),
                    "{error}"
                );
            }
        }
    }
    let known = table.contains(&[key(3), key(9999), key(4)]).await.unwrap();
    assert_eq!(known, [true, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_rows_arrive_whole() {
    let Some(server) = server() else { return };
    for options in ["", "compression=lz4", "compression=snappy"] {
        let table = fresh(&server, "large", options).await;
        table
            .put((0..8).map(|n| row(n, 1 << 20)).collect())
            .await
            .unwrap();
        let keys: Vec<_> = (0..8).map(key).collect();
        for (n, row) in table.get_many(&keys).await.into_iter().enumerate() {
            let row = row.unwrap();
            assert_eq!((number(&row), row.data.len()), (n as u64, 1 << 20));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_rows_are_scanned_in_pages_in_an_order_that_stays() {
    let Some(server) = server() else { return };
    let table = fresh(&server, "scan", "page=300").await;
    assert_eq!(scanned(&table, &[]).await, []);
    table
        .put((0..10_000).map(|n| row(n, 8)).collect())
        .await
        .unwrap();
    let rows = scanned(&table, &["age"]).await;
    assert_eq!(rows.len(), 10_000);
    for row in &rows {
        let Value::Int(n) = row.values[0] else {
            panic!("{row:?}")
        };
        assert_eq!((row.key, row.class), (key(n as u64), Some(n % 10)));
    }
    assert_eq!(
        rows.iter()
            .map(|row| row.key)
            .collect::<BTreeSet<_>>()
            .len(),
        10_000
    );
    // Other page sizes, in the server's order.
    for page in ["page=1000", "page=9999", "page=10000", "page=100000"] {
        let other = Cassandra::connect(&url_of(&server, "scan", page))
            .await
            .unwrap();
        assert!(scanned(&other, &["age"]).await == rows, "{page}");
    }
    let order = admin(&server).await;
    let order = order
        .query_unpaged("SELECT key FROM datapipes_tests.scan_metadata", ())
        .await
        .unwrap();
    let order = order.into_rows_result().unwrap();
    let order: Vec<Uuid> = order
        .rows::<(Uuid,)>()
        .unwrap()
        .map(|row| row.unwrap().0)
        .collect();
    assert!(rows.iter().map(|row| row.key).eq(order));
    // A scan that is dropped early requests only a few pages.
    let proxy = Proxy::to(address(&server)).await;
    let far = Cassandra::connect(&url_of(&through(&server, &proxy), "scan", "page=100"))
        .await
        .unwrap();
    let before = proxy.faults.answers.load(Ordering::Relaxed);
    let few: Vec<_> = far.scan(&[]).take(150).try_collect().await.unwrap();
    assert!(
        few.iter()
            .map(|row| row.key)
            .eq(rows.iter().take(150).map(|row| row.key))
    );
    assert!(proxy.faults.answers.load(Ordering::Relaxed) - before <= 12);
    proxy.set(Mode::Refusing);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_and_metadata_are_written_together_or_not_at_all() {
    let Some(server) = server() else { return };
    let table = fresh(&server, "atomic", "").await;
    let error = table.put(vec![row(1, 20 << 20)]).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Limit && !error.is_transient(),
        "{error}"
    );
    assert!(error.to_string().contains(&key(1).to_string()), "{error}");
    assert_eq!(
        table.get(key(1)).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(scanned(&table, &[]).await, []);

    // Values of a wrong type are refused before anything is written.
    let wrong = |values: Vec<Value>| NewRow {
        values,
        ..row(2, 8)
    };
    let mut narrow = row(2, 8).values;
    narrow[1] = Value::Text("old".to_owned());
    for values in [Vec::new(), row(2, 8).values[..4].to_vec(), narrow] {
        let error = table.put(vec![row(1, 8), wrong(values)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        assert!(error.to_string().contains(&key(2).to_string()), "{error}");
    }
    assert_eq!(scanned(&table, &[]).await, []);
    table.put(Vec::new()).await.unwrap();
    assert!(table.get_many(&[]).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_somebody_else_is_read_if_it_fits() {
    let Some(server) = server() else { return };
    fresh(&server, "foreign", "").await;
    let admin = admin(&server).await;
    for change in [
        "DROP TABLE datapipes_tests.foreign_metadata",
        "CREATE TABLE datapipes_tests.foreign_metadata (key uuid PRIMARY KEY, label bigint, z int, a smallint, f float, \
         ascii ascii, seen timestamp)",
    ] {
        cql(&admin, change).await;
    }
    let table = Cassandra::connect(&url_of(&server, "foreign", ""))
        .await
        .unwrap();
    let expected = [
        ("a", ColumnType::Int),
        ("ascii", ColumnType::Text),
        ("f", ColumnType::Float),
        ("z", ColumnType::Int),
    ];
    assert_eq!(table.schema(), &Schema::new(expected));
    let values = vec![
        Value::Int(-3),
        Value::Text("x".into()),
        Value::Float(0.5),
        Value::Int(70_000),
    ];
    table
        .put(vec![NewRow {
            values: values.clone(),
            ..row(1, 8)
        }])
        .await
        .unwrap();
    assert_eq!(
        scanned(&table, &["a", "ascii", "f", "z"]).await[0].values,
        values
    );
    let wide = vec![Value::Int(70_000), Value::Null, Value::Null, Value::Null];
    let error = table
        .put(vec![NewRow {
            values: wide,
            ..row(2, 8)
        }])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");

    // An existing table is not created again with other columns.
    let url = url_of(&server, "foreign", "");
    let error = Cassandra::create(&url, &schema(), &Replication::Copies(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    let bad = Schema::new([("label", ColumnType::Int)]);
    let error = Cassandra::create(&url, &bad, &Replication::Copies(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[test]
fn a_handle_outlives_the_runtime_it_was_made_on() {
    let Some(server) = server() else { return };
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let table = first.block_on(async {
        let table = fresh(&server, "runtimes", "connections=2").await;
        table
            .put((0..50).map(|n| row(n, 100)).collect())
            .await
            .unwrap();
        table
    });
    let keys: Vec<_> = (0..50).map(key).collect();
    // The runtime of the handle is shut down; many others are used, and then none.
    first.shutdown_background();
    for _ in 0..6 {
        let rows = runtime().block_on(table.get_many(&keys));
        assert!(
            rows.iter()
                .enumerate()
                .all(|(n, row)| number(row.as_ref().unwrap()) == n as u64)
        );
    }
    let error = futures::executor::block_on(table.get(keys[0])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let graph = datapipes::Graph::from_vec(keys).map_async(move |key| {
        let table = table.clone();
        async move { table.get(key).await }
    });
    let loader = datapipes::DataLoader::builder(graph).build().unwrap();
    for epoch in 0..2 {
        let rows: Vec<_> = loader
            .epoch(epoch)
            .blocking()
            .map(|row| number(&row.unwrap()))
            .collect();
        assert!(rows.into_iter().eq(0..50));
    }
}
