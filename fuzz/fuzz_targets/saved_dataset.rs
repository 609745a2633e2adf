//! Any bytes as the `state.json` of a folder that Hugging Face `datasets` saved; after a zero byte, as
//! the list of the splits of a folder.
#![no_main]

use std::fs;

use datapipes_io::formats::ArrowIpc;

const SHARD: &[u8] = include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../datapipes-io/tests/data/saved-dataset/data-00000-of-00002.arrow"
));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = std::env::temp_dir().join(format!("saved_dataset-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, data: &[u8]| fs::write(folder.join(name), data).expect("a file");
    write("data-00000-of-00002.arrow", SHARD);
    match data.strip_prefix(b"\0") {
        Some(splits) => write("dataset_dict.json", splits),
        None => write("state.json", data),
    }
    if let Ok(rows) = ArrowIpc::new().saved_dataset(&folder) {
        rows.fetch().collect().expect("rows of the shard");
    }
    fs::remove_dir_all(&folder).expect("the folder");
});
