//! Memory of a plan of rows over more documents than it holds.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use datapipes::DataLoader;
use datapipes_text::{PackPlan, TokenStore, TokenWidth};

/// Bytes of memory that are no pages of files.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    1024 * kib.parse::<u64>().unwrap()
}

/// Makes a store of as many documents of so many tokens of 8 bits, which are not on the disk.
fn store(dir: &Path, documents: u64, tokens: u64) -> TokenStore {
    let path = |name| dir.join(format!("{name}-{documents}"));
    let (all, ends) = (path("tokens"), path("ends"));
    let file = File::create(&all).unwrap();
    file.set_len(documents * tokens).unwrap();
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&ends).unwrap());
    for document in 1..=documents {
        file.write_all(&(document * tokens).to_le_bytes()).unwrap();
    }
    drop(file);
    TokenStore::flat(&all, TokenWidth::U8, Some(&ends)).unwrap()
}

#[test]
fn rows_of_many_or_long_documents_take_the_memory_of_a_window() {
    let dir = tempfile::tempdir().unwrap();
    for (documents, tokens) in [(20_000, 100_000), (5_000_000, 1)] {
        let store = store(dir.path(), documents, tokens);
        assert_eq!(store.document_count(), documents);
        let loader = DataLoader::builder(PackPlan::new(store, 2048).graph())
            .workers(0)
            .resumable();
        let loader = loader.build().unwrap();
        let before = anonymous();
        let (mut read, mut most) = (0, 0);
        // Those of some windows, where documents are short.
        for row in loader.epoch(0).blocking().take(200) {
            let row = row.unwrap();
            assert_eq!(row.read().unwrap().tokens() as u64, row.tokens());
            read += row.tokens();
            most = most.max(anonymous());
        }
        assert!(read > 3 * 65_536);
        let grown = most.saturating_sub(before);
        println!("{documents} documents of {tokens} tokens: {grown} bytes more");
        // One number of 64 bits for each document, or 30 bytes for each row, would be more.
        assert!(grown < 24 << 20, "{grown} bytes");
    }
}
