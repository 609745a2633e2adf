//! Any bytes as the pages of a listing of the Hugging Face Hub, divided at zero bytes. The files are
//! those that a reader of whole pages finds.
#![no_main]

use std::collections::BTreeMap;

use datapipes_io::stores::Hub;
use serde_json::{Map, Value};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let pages: Vec<&[u8]> = data.split(|&byte| byte == 0).collect();
    let Ok(files) = Hub::parse_listing(&pages) else {
        return;
    };
    assert!(files.is_sorted_by(|(a, _), (b, _)| a < b));
    // An element may also be an array of the three values; the hub sends none.
    let whole = |page: &&[u8]| serde_json::from_slice::<Vec<Map<String, Value>>>(page).ok();
    if let Some(pages) = pages.iter().map(whole).collect::<Option<Vec<_>>>() {
        let found = pages.concat().into_iter().filter_map(|found| {
            let path = found["path"].as_str().expect("a text").into();
            (found["type"] == "file").then(|| (path, found.get("size").and_then(Value::as_u64)))
        });
        let found: BTreeMap<Box<str>, Option<u64>> = found.collect();
        assert_eq!(files, Vec::from_iter(found));
    }
});
