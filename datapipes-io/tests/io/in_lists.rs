//! Lists of values in filters of Parquet.

use datapipes::Graph;
use datapipes::index::filter::{Filter, Value, col};
use datapipes_io::formats::{Parquet, ParquetRows};
use datapipes_io::{File, prelude::*};

/// Returns the rows of a file of pyarrow that match.
fn rows(data: &'static [u8], filter: Filter) -> Vec<datapipes_io::formats::Row> {
    let file = Graph::from_vec(vec![File::new("a.parquet", data)]);
    let rows = file.read_as(ParquetRows::new(Parquet::new().filter(filter)));
    rows.collect().unwrap()
}

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/", $name))
    };
}

#[test]
fn a_row_is_in_a_list_if_it_equals_one_of_its_values() {
    let ints = |values: &[i64]| Vec::from_iter(values.iter().map(|&value| Value::from(value)));
    let texts = |values: &[&str]| Vec::from_iter(values.iter().map(|&value| Value::from(value)));
    let mut large = ints(&[
        7,
        0,
        255,
        -128,
        127,
        65535,
        -1,
        9,
        3,
        i32::MAX.into(),
        i32::MIN.into(),
        i16::MIN.into(),
        u32::MAX.into(),
        i16::MAX.into(),
    ]);
    large.extend([
        u64::MAX.into(),
        i64::MIN.into(),
        i64::MAX.into(),
        2.5.into(),
    ]);
    let floats = [9.5, 0.25, -2.0, 0.5, f64::INFINITY, -3.5, 0.1, -1e300].map(Value::from);
    let texts_of = texts(&[
        "zwei ü",
        "bc",
        "",
        "short",
        "b",
        "one",
        "longer than twelve bytes",
    ]);
    let decimals = texts(&["7", "-0.05", "1234567.89"]);
    let scaled = texts(&["-0.05", "0.05", "1234567.89"]);
    let dates = texts(&["2024-02-29", "1969-12-31", "2001-01-01"]);
    let columns: [(&str, Vec<Value>); 17] = [
        ("index", large.clone()),
        ("i8", large.clone()),
        ("i16", large.clone()),
        ("i32", large.clone()),
        ("i64", large.clone()),
        ("u8", large.clone()),
        ("u16", large.clone()),
        ("u32", large.clone()),
        ("u64", large),
        ("f16", floats.to_vec()),
        ("f32", floats.to_vec()),
        ("f64", floats.to_vec()),
        ("text", texts_of.clone()),
        ("large_text", texts_of.clone()),
        ("view", texts_of),
        ("decimal", decimals),
        ("date", dates),
    ];
    let scaled = ("decimal", scaled);
    for (column, values) in columns.into_iter().chain([scaled]) {
        let with_null = [&values[..], &[Value::Null]].concat();
        for values in [values, with_null, Vec::new(), vec![Value::Null]] {
            let equal = |value: &Value| col(column).eq(value.clone());
            let each = Filter::Or(values.iter().map(equal).collect());
            let list = col(column).is_in(values.clone());
            let found = rows(data!("table.parquet"), list.clone());
            assert_eq!(found, rows(data!("table.parquet"), each.clone()), "{list}");
            assert_eq!(found.is_empty(), values.len() < 2, "{list}");
            let not = rows(data!("table.parquet"), list.clone().not());
            assert_eq!(not, rows(data!("table.parquet"), each.not()), "not {list}");
        }
    }
}

#[test]
fn a_long_list_finds_its_rows_in_a_file_with_pages() {
    // Odd numbers, from the last to the first.
    let odd = (0..20_000).rev().map(|number| 2 * number + 1);
    let list = col("index").is_in(odd.map(i64::from));
    let found = rows(data!("paged-v2.parquet"), list);
    let found: Vec<_> = found
        .iter()
        .map(|row| row["index"].as_i64().unwrap())
        .collect();
    assert_eq!(found, Vec::from_iter((0..150).map(|number| 2 * number + 1)));
}
