//! Any bytes as the metadata of a datatrove token store, and, after a zero byte, as the mask of the
//! tokens that are trained.
#![no_main]

use std::fs;

use datapipes_text::TokenStore;

/// Bytes of the tokens: some of 16 or 32 bits.
const TOKENS: [u8; 64] = [7; 64];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (metadata, mask) = match data.iter().position(|&byte| byte == 0) {
        Some(end) => (&data[..end], Some(&data[end + 1..])),
        None => (data, None),
    };
    let folder = std::env::temp_dir().join(format!("token_metadata-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, data: &[u8]| fs::write(folder.join(name), data).expect("a file");
    write("a.ds", &TOKENS);
    write("a.ds.index", &[5u64, 16].map(u64::to_le_bytes).concat());
    write("a.ds.metadata", metadata);
    if let Some(mask) = mask {
        write("a.ds.loss", mask);
    }
    if let Ok(store) = TokenStore::datatrove(folder.join("a.ds")) {
        assert_eq!(store.len() * store.width().size() as u64, 64);
        for number in 0..store.document_count() {
            if let Ok(document) = store.labelled_document(number) {
                let labels = document.labels.map_or(0, |labels| labels.len());
                assert_eq!(labels, mask.map_or(0, |_| document.ids.len()));
            }
        }
    }
    fs::remove_dir_all(&folder).expect("the folder");
});
