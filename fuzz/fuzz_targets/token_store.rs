//! Any bytes as the index of a Megatron token store.
#![no_main]

use bytes::Bytes;
use datapipes_text::{GptOrder, PackPlan, TokenStore};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (tokens, index) = (Bytes::from_static(&[7; 64]), Bytes::copy_from_slice(data));
    let Ok(store) = TokenStore::from_megatron("a.bin", tokens, "a.idx", index) else {
        return;
    };
    read(&store.vocab(8));
});

/// Reads documents, plans, samples and windows, as many as the tokens could be in.
fn read(store: &TokenStore) {
    let plan = PackPlan::new(store.clone(), 3).step(2);
    let rows = plan.graph().collect().unwrap_or_default();
    // An index may name the same tokens many times.
    let tokens: u64 = rows.iter().map(|row| row.tokens()).sum();
    assert!(tokens <= store.len());
    for row in rows {
        drop(row.read());
    }
    let batches = store.token_batches(8).step(2).graph();
    for batch in batches.collect().unwrap_or_default() {
        drop(batch.read());
    }
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
    drop(store.row_batch(3, &[1, 0]));
    for window in windows.fetch().collect().expect("a window is a position") {
        drop(window.row());
        drop(window.ids());
    }
}
