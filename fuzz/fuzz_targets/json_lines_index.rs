//! JSON lines by index, from a store: each line is what it is where the file is read from its
//! beginning.

#![no_main]

use datapipes::{Graph, MapPipe};
use datapipes_io::formats::{IndexedJsonLines, LineIndex};
use datapipes_io::stores::InMemory;
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let index = LineIndex::of(data);
    let store = InMemory::from_iter([("file", data.to_vec())]);
    let lines = IndexedJsonLines::<Value>::new(store, "file", index);
    let read = |lines: IndexedJsonLines<Value>| async move {
        let mut read = Vec::new();
        for index in 0..lines.len() {
            read.push(lines.get(index).await.ok());
        }
        datapipes::Ok(read)
    };
    let read = Graph::from_vec(vec![lines]).map_async(read).collect();
    let read = read.expect("errors are items").concat();
    let text = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data);
    let texts = text.split(|&byte| byte == b'\n');
    let texts = texts.filter(|text| !text.iter().all(|byte| b" \t\r".contains(byte)));
    let parsed: Vec<_> = texts
        .map(|text| serde_json::from_slice(text).ok())
        .collect();
    assert_eq!(read, parsed);
});
