//! Tests specific to SQLite: files, locks, damage, and filters that it evaluates.

use std::sync::Arc;

use datapipes::index::{Lookup, MapPipe};
use datapipes::{DataLoader, Graph, OnError};
use futures::TryStreamExt;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::testing::{check_table, sample, schema};
use crate::{
    Column, ColumnType, Compare, Label, RetryTable, RowsByIndex, TableExt, col, create, key, open,
    rows,
};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

fn table(folder: &TempDir) -> Sqlite {
    Sqlite::create(folder.path().join("a.db"), "photos", &schema()).expect("a table can be made")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_the_contract() {
    let folder = folder();
    check_table(&table(&folder)).await;
}

#[tokio::test]
async fn keeps_the_contract_with_one_connection_and_behind_an_arc() {
    let folder = folder();
    let shared: Arc<dyn Table> = Arc::new(table(&folder).readers(1));
    check_table(&shared).await;
}

#[test]
fn works_without_a_runtime() {
    let folder = folder();
    futures::executor::block_on(check_table(&table(&folder)));
}

#[tokio::test]
async fn a_file_is_opened_again_by_path_and_by_url() {
    let folder = TempDir::with_prefix("a b%ü?#").unwrap();
    let made = table(&folder);
    made.put(vec![sample(1, "one")]).await.unwrap();
    assert!(
        made.url().starts_with("sqlite:///") && made.url().ends_with("/a.db?table=photos"),
        "{}",
        made.url()
    );
    let path = folder.path().join("a.db");
    let again = [
        Sqlite::open(&path).unwrap(),
        Sqlite::open_table(&path, "photos").unwrap(),
        Sqlite::open_url(made.url()).unwrap(),
        Sqlite::open_url(made.url().split_once('?').unwrap().0).unwrap(),
        Sqlite::create(&path, "photos", &schema()).unwrap(),
        Sqlite::create_url(made.url(), &schema()).unwrap(),
        Sqlite::open_url(&sqlite_url(&path, "photos").unwrap()).unwrap(),
    ];
    for table in again {
        assert_eq!((table.url(), table.schema()), (made.url(), &schema()));
        assert_eq!(table.get(sample(1, "").row.key).await.unwrap().data, "one");
    }
    assert_eq!(open(made.url()).await.unwrap().url(), made.url());
    assert_eq!(
        create(made.url(), &schema()).await.unwrap().url(),
        made.url()
    );
    assert_eq!(
        create(made.url(), &Schema::default())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Shape
    );
    // A second data set in the file.
    Sqlite::create(&path, "masks", &Schema::default()).unwrap();
    let error = Sqlite::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error
            .to_string()
            .ends_with("say which table: masks, photos"),
        "{error}"
    );
}

#[tokio::test]
async fn a_wrong_url_is_refused_and_not_repeated() {
    for url in [
        "sqlite://user:hunter2@host/a.db",
        "sqlite://host/a.db",
        "sqlite:///a.db?password=hunter2",
        "sqlite:///",
        "file:///a.db?table=hunter2",
        "hunter2",
    ] {
        for error in [
            Sqlite::open_url(url).unwrap_err(),
            open(url).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
            assert!(
                !format!("{error} {error:#?}").contains("hunter2"),
                "{error}"
            );
        }
    }
}

#[test]
fn names_that_cannot_be_are_refused() {
    let folder = folder();
    let path = folder.path().join("a.db");
    for name in ["", "a b", "1a", "a\"; DROP TABLE x", "ü", &"x".repeat(49)] {
        assert_eq!(
            Sqlite::create(&path, name, &schema()).unwrap_err().kind(),
            ErrorKind::Config,
            "{name}"
        );
        assert_eq!(
            Sqlite::open_table(&path, name).unwrap_err().kind() == ErrorKind::NotFound,
            !path.exists()
        );
        let columns = Schema::new([(name, ColumnType::Int)]);
        assert_eq!(
            Sqlite::create(&path, "t", &columns).unwrap_err().kind(),
            ErrorKind::Config,
            "{name}"
        );
    }
    for columns in [vec!["Key"], vec!["label"], vec!["age", "AGE"]] {
        let columns = Schema::new(columns.into_iter().map(|name| (name, ColumnType::Int)));
        assert_eq!(
            Sqlite::create(&path, "t", &columns).unwrap_err().kind(),
            ErrorKind::Config
        );
    }
    // SQL keywords are valid names.
    let words = Schema::new([
        ("select", ColumnType::Int),
        ("order", ColumnType::Text),
        ("rowid", ColumnType::Bool),
    ]);
    let table = Sqlite::create(&path, "table", &words).unwrap();
    futures::executor::block_on(async {
        let row = sample(1, "x").row;
        table
            .put(vec![NewRow {
                row,
                values: vec![1.into(), "b".into(), true.into()],
            }])
            .await
            .unwrap();
        let filter = col("select")
            .eq(1)
            .and(col("order").gt("a"))
            .and(col("rowid").eq(true));
        assert_eq!(
            table
                .select(&["order"])
                .filter(filter)
                .all()
                .await
                .unwrap()
                .len(),
            1
        );
    });
}

#[tokio::test]
async fn row_72_what_is_wrong_with_a_file_is_said() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let kind = |name: &str| {
        let error = Sqlite::open(at(name)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("sqlite://{}", at(name).display())),
            "{error}"
        );
        (error.kind(), error.is_transient())
    };
    assert_eq!(kind("none.db"), (ErrorKind::NotFound, false));
    std::fs::create_dir(at("folder.db")).unwrap();
    assert_eq!(kind("folder.db"), (ErrorKind::Unsupported, false));
    std::fs::write(
        at("text.db"),
        "this is no database, but a text of more than some hundred bytes. ".repeat(20),
    )
    .unwrap();
    assert_eq!(kind("text.db"), (ErrorKind::Corrupt, false));
    std::fs::write(at("empty.db"), "").unwrap();
    assert_eq!(kind("empty.db"), (ErrorKind::NotFound, false));

    let foreign = |name: &str, sql: &str| {
        Connection::open(at(name))
            .unwrap()
            .execute_batch(sql)
            .unwrap()
    };
    foreign(
        "type.db",
        "CREATE TABLE t_data (key, label, data); CREATE TABLE t_metadata (key, label, day DATE);",
    );
    assert_eq!(kind("type.db"), (ErrorKind::Shape, false));
    foreign(
        "order.db",
        "CREATE TABLE t_data (data, key); CREATE TABLE t_metadata (key, label);",
    );
    assert_eq!(kind("order.db"), (ErrorKind::Shape, false));
    foreign("half.db", "CREATE TABLE t_data (key, label, data);");
    assert_eq!(kind("half.db"), (ErrorKind::NotFound, false));
    assert_eq!(
        Sqlite::open_table(at("type.db"), "other")
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );

    table(&folder);
    let other = Schema::new([("count", ColumnType::Text)]);
    assert_eq!(
        Sqlite::create(at("a.db"), "photos", &other)
            .unwrap_err()
            .kind(),
        ErrorKind::Shape
    );
}

#[tokio::test]
async fn row_72_what_is_wrong_with_a_row_costs_that_row() {
    let folder = folder();
    let path = folder.path().join("foreign.db");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t_data (key BLOB PRIMARY KEY, label, data);
             CREATE TABLE t_metadata (key BLOB PRIMARY KEY, label, age INTEGER, name TEXT, good BOOL);",
        )
        .unwrap();
    let put = |number: u8, label: &dyn rusqlite::ToSql, data: &dyn rusqlite::ToSql| {
        let key = key("t", [number]);
        connection
            .execute(
                "INSERT INTO t_data VALUES (?, ?, ?)",
                (&key.as_bytes()[..], label, data),
            )
            .unwrap();
        key
    };
    let keys = [
        put(0, &1, &b"good".as_slice()),
        put(1, &1, &rusqlite::types::Null),
        put(2, &"a label", &b"x".as_slice()),
        put(3, &1, &"text"),
        put(4, &rusqlite::types::Null, &b"".as_slice()),
    ];
    let table = Sqlite::open(&path).unwrap();
    let found = table.get_many(&keys).await;
    assert_eq!(found[0].as_ref().unwrap().data, "good");
    assert_eq!(found[4].as_ref().unwrap().label, Label::None);
    for place in [1, 2, 3] {
        let error = found[place].as_ref().unwrap_err();
        let begins = format!("shape mismatch: {}: {}: ", table.url(), keys[place]);
        assert!(
            error.kind() == ErrorKind::Shape && error.to_string().starts_with(&begins),
            "{error}"
        );
    }
    assert!(
        found[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .ends_with("nothing where the data of a sample should be")
    );

    // Metadata of another type than was declared.
    for (column, value, says) in [
        (
            "age",
            "'old'",
            "column \"age\": text where whole numbers should be",
        ),
        (
            "good",
            "7",
            "column \"good\": a whole number where true and false should be",
        ),
        (
            "name",
            "CAST(x'ff' AS TEXT)",
            "column \"name\" is not UTF-8",
        ),
    ] {
        connection.execute("DELETE FROM t_metadata", []).unwrap();
        let sql = format!("INSERT INTO t_metadata (key, {column}) VALUES (?, {value})");
        connection.execute(&sql, [&keys[0].as_bytes()[..]]).unwrap();
        let error = table.select(&[column]).all().await.unwrap_err();
        assert!(
            error.to_string().contains(says) && error.to_string().contains(&keys[0].to_string()),
            "{error}"
        );
        assert_eq!(table.select(&[]).keys().await.unwrap(), [keys[0]]);
    }
    connection
        .execute("INSERT INTO t_metadata (key) VALUES ('a')", [])
        .unwrap();
    let error = table.select(&[]).keys().await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("text where a key of 16 bytes should be"),
        "{error}"
    );

    // A table that is dropped.
    connection.execute_batch("DROP TABLE t_data").unwrap();
    assert_eq!(
        table.get(keys[0]).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn row_72_a_lock_is_waited_for_and_then_passing() {
    let folder = folder();
    let table = table(&folder).busy_timeout(Duration::from_millis(1));
    table.put(vec![sample(1, "one")]).await.unwrap();
    let other = Connection::open(folder.path().join("a.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = table.put(vec![sample(2, "two")]).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.is_transient(),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .starts_with(&format!("unavailable: {}: ", table.url())),
        "{error}"
    );
    // Readers are not blocked.
    assert_eq!(table.get(sample(1, "").row.key).await.unwrap().data, "one");
    other.execute_batch("ROLLBACK").unwrap();
    table.put(vec![sample(2, "two")]).await.unwrap();
    // A lock that is released in time is waited for.
    let patient = Sqlite::open(folder.path().join("a.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        other.execute_batch("COMMIT").unwrap();
    });
    patient.put(vec![sample(3, "three")]).await.unwrap();
    ends.join().unwrap();
}

#[tokio::test]
async fn row_83_a_full_disk_and_a_file_that_may_not_be_written_leave_no_half_rows() {
    let folder = folder();
    let table = table(&folder);
    table.put(vec![sample(1, "one")]).await.unwrap();
    table.connections.with_writer(|writer| {
        let pages: i64 = writer
            .query_row("PRAGMA page_count", [], |row| row.get(0))
            .unwrap();
        writer
            .pragma_update(None, "max_page_count", pages + 3)
            .unwrap();
    });
    let big = vec![sample(2, "two"), sample(3, vec![7; 1 << 20])];
    let error = table.put(big).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Io && error.to_string().contains("full"),
        "{error}"
    );
    table.connections.with_writer(|writer| {
        writer
            .pragma_update(None, "max_page_count", 1 << 30)
            .unwrap();
        writer.pragma_update(None, "query_only", true).unwrap();
    });
    let error = table.put(vec![sample(2, "two")]).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.is_transient()),
        (ErrorKind::Denied, false),
        "{error}"
    );
    table
        .connections
        .with_writer(|writer| writer.pragma_update(None, "query_only", false).unwrap());
    // Neither left a row, in neither table, and the connection still works.
    assert_eq!(
        table.select(&[]).keys().await.unwrap(),
        [sample(1, "").row.key]
    );
    assert_eq!(
        table.get(sample(2, "").row.key).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    table.put(vec![sample(2, "two")]).await.unwrap();
    assert_eq!(table.get(sample(2, "").row.key).await.unwrap().data, "two");
}

#[tokio::test]
async fn a_failure_in_the_second_sql_table_takes_the_first_back() {
    let folder = folder();
    let table = table(&folder);
    table.connections.with_writer(|writer| {
        writer
            .execute_batch(
                "CREATE TRIGGER no BEFORE INSERT ON photos_metadata WHEN NEW.count = 3 \
                 BEGIN SELECT RAISE(ABORT, 'not three'); END",
            )
            .unwrap();
    });
    let error = table
        .put((1..5).map(|number| sample(number, "x")).collect())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not three"), "{error}");
    let keys: Vec<_> = (1..5).map(|number| sample(number, "").row.key).collect();
    assert!(table.get_many(&keys).await.iter().all(Result::is_err));
    assert_eq!(table.contains(&keys).await.unwrap(), [false; 4]);
}

#[tokio::test]
async fn row_72_a_damaged_file_is_corrupt_and_never_a_wrong_sample() {
    let folder = folder();
    let path = folder.path().join("a.db");
    {
        let table = table(&folder);
        let rows = (0..40)
            .map(|number| sample(number, vec![number as u8; 30_000]))
            .collect();
        table.put(rows).await.unwrap();
    }
    let whole = std::fs::read(&path).unwrap();
    assert!(
        !path.with_file_name("a.db-wal").exists(),
        "the last connection clears the log away"
    );
    // The pages exist, but their headers are wrong.
    let mut bytes = whole.clone();
    for page in bytes.chunks_mut(PAGE as usize).skip(1) {
        page[..64].fill(0xee);
    }
    std::fs::write(&path, &bytes).unwrap();
    let table = Sqlite::open(&path).unwrap();
    let keys: Vec<_> = (0..40).map(|number| sample(number, "").row.key).collect();
    for row in table.get_many(&keys).await {
        let error = row.unwrap_err();
        assert_eq!(
            (error.kind(), error.is_transient()),
            (ErrorKind::Corrupt, false),
            "{error}"
        );
    }
    assert_eq!(
        table.select(&["name"]).all().await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    // A file that was cut.
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let outcome = Sqlite::open(&path);
    let failed = match outcome {
        Err(error) => vec![error],
        Ok(table) => table
            .get_many(&keys)
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect(),
    };
    assert!(
        !failed.is_empty()
            && failed
                .iter()
                .all(|error| error.kind() == ErrorKind::Corrupt),
        "{failed:?}"
    );
}

#[tokio::test]
async fn keys_are_joined_to_rows_by_lookup_and_by_index() {
    let folder = folder();
    let table = table(&folder);
    table
        .put(
            (0..5)
                .map(|number| sample(number, number.to_string()))
                .collect(),
        )
        .await
        .unwrap();
    let keys: Vec<_> = (0..6).map(|number| sample(number, "").row.key).collect();
    let lookup = rows(table.clone());
    assert_eq!(Lookup::get(&lookup, keys[3]).await.unwrap().data, "3");
    let found = Lookup::get_many(&lookup, keys.clone()).await;
    assert!(found[..5].iter().all(Result::is_ok) && found[5].is_err());
    let row = found[2].as_ref().unwrap();
    assert_eq!(lookup.weigh(row), Some(row.data.len() + size_of::<Row>()));

    let by_index = RowsByIndex::new(table.clone(), keys);
    assert_eq!(
        (by_index.len(), MapPipe::name(&by_index).as_str()),
        (6, "rows")
    );
    assert_eq!(MapPipe::get(&by_index, 4).await.unwrap().data, "4");
    let name = format!("{}: {}", table.url(), by_index.keys()[4]);
    assert_eq!(MapPipe::sample_name(&by_index, 4).as_deref(), Some(&*name));
    let found = MapPipe::get_many(&by_index, &[2, 9, 0, 5]).await;
    let kinds: Vec<_> = found
        .iter()
        .map(|row| row.as_ref().map(|row| &row.data[..]).map_err(Error::kind))
        .collect();
    assert_eq!(
        kinds,
        [
            Ok(&b"2"[..]),
            Err(ErrorKind::NotFound),
            Ok(b"0"),
            Err(ErrorKind::NotFound)
        ]
    );
}

#[tokio::test]
async fn a_scan_goes_over_pages_and_can_be_dropped() {
    let folder = folder();
    let table = table(&folder);
    let count = 2 * PAGE_ROWS as u64 + 1;
    table
        .put((0..count).map(|number| sample(number, "")).collect())
        .await
        .unwrap();
    let found = table.select(&["count"]).keys().await.unwrap();
    assert_eq!(found.len() as u64, count);
    assert!(found.is_sorted());
    let mut stream = table.scan(&["count"]);
    assert!(stream.try_next().await.unwrap().is_some());
    drop(stream);
    // A filter of more values than SQLite accepts is applied in this process instead.
    let filter = col("count").is_in((0..=MOST_VALUES as i64).map(|n| n * 2));
    let even = table.select(&["count"]).filter(filter).all().await.unwrap();
    let wanted = (0..count).filter(|n| n % 2 == 0 && n % 5 != 0).count();
    assert_eq!(even.len(), wanted);
    // Thousands of terms, and dozens of levels.
    let many = (0..5000).fold(Filter::Or(vec![]), |filter, n| {
        filter.or(col("count").eq(n))
    });
    let deep = (0..60).fold(col("count").eq(1), |filter, _| filter.not());
    assert!(table.select(&[]).filter(many).keys().await.unwrap().len() > 1000);
    assert_eq!(
        table.select(&[]).filter(deep).keys().await.unwrap().len(),
        1
    );
}

#[tokio::test]
async fn no_policy_skips_the_rest_of_a_scan() {
    let folder = folder();
    let table = table(&folder);
    let rows = (0..2 * PAGE_ROWS as u64 + 1).map(|number| sample(number, ""));
    table.put(rows.collect()).await.unwrap();
    let run = |table: &Sqlite| {
        let table = RetryTable::new(table.clone(), Default::default());
        let stream =
            move |filter: &Filter| table.select(&["count"]).filter(filter.clone()).stream();
        let graph = Graph::from_stream_with(move || Ok(stream(&col("count").is_null().not())));
        let loader = DataLoader::builder(graph).on_error(OnError::skip(100));
        let epoch = loader.build().unwrap().epoch(0).blocking();
        epoch.collect::<Result<Vec<_>>>()
    };
    assert!(run(&table).unwrap().len() > PAGE_ROWS);
    // A row of the second page or the third is damaged.
    let connection = Connection::open(folder.path().join("a.db")).unwrap();
    let damage =
        "UPDATE photos_metadata SET count = 'x' WHERE key = (SELECT max(key) FROM photos_metadata)";
    assert_eq!(connection.execute(damage, ()).unwrap(), 1);
    let error = run(&table).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
}

/// Returns values that are often equal to each other, and unusual values.
fn value(kind: ColumnType) -> BoxedStrategy<Value> {
    let ints = prop_oneof![
        -3..3i64,
        Just(i64::MIN),
        Just(i64::MAX),
        Just((1 << 53) + 1),
        Just(1 << 53)
    ];
    let floats = prop_oneof![
        (-6..6i64).prop_map(|n| n as f64 / 2.0),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just((1i64 << 53) as f64),
        Just(9_223_372_036_854_775_808.0),
        Just(-9_223_372_036_854_775_808.0),
        Just(f64::MIN_POSITIVE),
        Just(-0.0)
    ];
    let texts = prop_oneof![
        "[abAB]{0,2}",
        Just("1".to_owned()),
        Just("a\0".to_owned()),
        Just("ü".to_owned())
    ];
    match kind {
        ColumnType::Int => ints.prop_map(Value::Int).boxed(),
        ColumnType::Float => floats.prop_map(Value::Float).boxed(),
        ColumnType::Text => texts.prop_map(Value::Text).boxed(),
        ColumnType::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
    }
}

fn or_null(value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop_oneof![4 => value, 1 => Just(Value::Null)].boxed()
}

fn filter() -> impl Strategy<Value = Filter> {
    use ColumnType::{Bool, Float, Int, Text};
    let columns = [
        ("count", Int),
        ("size", Float),
        ("name", Text),
        ("good", Bool),
        ("label", Int),
    ];
    let leaf = prop::sample::select(columns.to_vec()).prop_flat_map(|(name, kind)| {
        let number = prop_oneof![value(Int), value(Float)].boxed();
        let value = or_null(if matches!(kind, Int | Float) { number } else { value(kind) });
        let how = prop::sample::select(vec![
            Compare::Eq,
            Compare::Ne,
            Compare::Lt,
            Compare::Le,
            Compare::Gt,
            Compare::Ge,
        ]);
        let column = move || -> Column { col(name) };
        prop_oneof![
            6 => (how, value.clone()).prop_map(move |(how, value)| Filter::Compare(name.to_owned(), how, value)),
            2 => prop::collection::vec(value, 0..4).prop_map(move |values| column().is_in(values)),
            1 => Just(col(name).is_null()),
        ]
    });
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(Filter::not),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Filter::And),
            prop::collection::vec(inner, 0..4).prop_map(Filter::Or),
        ]
    })
}

fn new_row() -> impl Strategy<Value = (Option<i64>, Vec<Value>)> {
    use ColumnType::{Bool, Float, Int, Text};
    let class = prop::option::of(-2..3i64);
    (
        class,
        [Int, Float, Text, Bool]
            .map(|kind| or_null(value(kind)))
            .prop_map(|values| values.to_vec()),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn sqlite_understands_a_filter_as_we_do(
        rows in prop::collection::vec(new_row(), 1..60),
        filters in prop::collection::vec(filter(), 24),
    ) {
        let folder = folder();
        let table = table(&folder);
        let new = |(number, (class, values)): (usize, (Option<i64>, Vec<Value>))| {
            let label = class.map_or(Label::None, Label::Class);
            NewRow { row: Row { label, ..sample(number as u64, "").row }, values }
        };
        futures::executor::block_on(async {
            table.put(rows.into_iter().enumerate().map(new).collect()).await.unwrap();
            for filter in filters {
                let found: Vec<_> = table.find(&["name"], &filter).try_collect().await.unwrap();
                let wanted: Vec<_> =
                    crate::filter::scan_and_filter(&table, &["name"], &filter).try_collect().await.unwrap();
                assert_eq!(found, wanted, "{filter}");
                // The printed filter has the same meaning.
                let read: Filter = filter.to_string().parse().unwrap();
                let again: Vec<_> = table.find(&["name"], &read).try_collect().await.unwrap();
                assert_eq!(again, wanted, "{filter} was read as {read}");
            }
        });
    }
}
