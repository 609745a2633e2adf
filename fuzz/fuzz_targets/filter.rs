//! Any bytes as the text of a filter of rows: as it is shown, it is the same filter, and it has one
//! truth for a row, alone or among others.
#![no_main]

use datapipes::index::filter::{Filter, Value};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = std::str::from_utf8(data).unwrap_or_default();
    let Ok(filter) = text.parse::<Filter>() else {
        return;
    };
    // It may be shown with more levels than a text may have.
    if let Ok(again) = filter.to_string().parse::<Filter>() {
        // NaN does not equal itself.
        assert_eq!(format!("{again:?}"), format!("{filter:?}"));
    }
    let value = |column: &str| match column.len() {
        1 => Value::Null,
        2 => Value::Text(column.to_owned()),
        length => Value::Int(length as i64),
    };
    let truth = filter.matches(&value);
    let truths = filter.evaluate(2, &mut |leaf| Ok(vec![leaf.matches(&value); 2]));
    assert_eq!(truths.expect("no leaf fails"), [truth; 2]);
});
