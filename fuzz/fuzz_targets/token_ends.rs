//! Any bytes as the ends of documents in a flat token store.
#![no_main]

use bytes::Bytes;
use datapipes_text::{TokenStore, TokenWidth};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let tokens = Bytes::from_static(&[7; 64]);
    let ends = ("a.index".to_owned(), Bytes::copy_from_slice(data));
    let Ok(store) = TokenStore::from_flat("a.ds", tokens, TokenWidth::U16, Some(ends)) else {
        return;
    };
    for number in 0..store.document_count().min(64) {
        drop(store.document(number));
    }
    if let Ok(windows) = store.windows(5) {
        for window in windows.fetch().collect().expect("a window is a position") {
            drop(window.row());
        }
    }
});
