//! Any bytes as the index of a Megatron token store.
#![no_main]

use bytes::Bytes;
use datapipes_text::{GptOrder, TokenStore};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (tokens, index) = (Bytes::from_static(&[7; 64]), Bytes::copy_from_slice(data));
    let Ok(store) = TokenStore::from_megatron("a.bin", tokens, "a.idx", index) else {
        return;
    };
    read(&store.vocab(8));
});

/// Reads documents, samples and windows, as many as the tokens could be in.
fn read(store: &TokenStore) {
    for number in 0..store.document_count().min(64) {
        drop(store.document(number));
    }
    if let Ok(samples) = store.gpt(&GptOrder::new(3)) {
        for sample in samples.fetch().collect().expect("a sample is a position") {
            drop(sample.ids());
        }
    }
    let Ok(windows) = store.windows(3) else {
        return;
    };
    for window in windows.fetch().collect().expect("a window is a position") {
        drop(window.row());
        drop(window.ids());
    }
}
