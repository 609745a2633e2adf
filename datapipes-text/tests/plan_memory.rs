//! Memory of a plan of rows over more documents than it holds.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufWriter, Write};

use datapipes::DataLoader;
use datapipes_text::{PackPlan, TokenStore, TokenWidth};

const DOCUMENTS: u64 = 5_000_000;

/// Bytes of memory that are no pages of files.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    1024 * kib.parse::<u64>().unwrap()
}

#[test]
fn rows_of_many_documents_take_the_memory_of_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let [tokens, ends] = ["tokens", "ends"].map(|name| dir.path().join(name));
    File::create(&tokens).unwrap().set_len(DOCUMENTS).unwrap();
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&ends).unwrap());
    for end in 1..=DOCUMENTS {
        file.write_all(&end.to_le_bytes()).unwrap();
    }
    drop(file);
    let store = TokenStore::flat(&tokens, TokenWidth::U8, Some(&ends)).unwrap();
    assert_eq!(store.document_count(), DOCUMENTS);
    let loader = DataLoader::builder(PackPlan::new(store, 2048).graph())
        .workers(0)
        .resumable();
    let loader = loader.build().unwrap();
    let before = anonymous();
    let (mut tokens, mut most) = (0, 0);
    // Those of some windows of 65,536 documents.
    for row in loader.epoch(0).blocking().take(200) {
        let row = row.unwrap();
        assert_eq!(row.read().unwrap().tokens() as u64, row.tokens());
        tokens += row.tokens();
        most = most.max(anonymous());
    }
    assert!(tokens > 3 * 65_536);
    let grown = most.saturating_sub(before);
    println!("{DOCUMENTS} documents: {grown} bytes more");
    // One number of 64 bits for each document would be more.
    assert!(grown < 24 << 20, "{grown} bytes");
}
