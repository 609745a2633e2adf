//! Data by index: names of samples in errors of later steps, and whether reading waits.

use std::sync::Arc;

use datapipes::{DataLoader, Graph, Indexed, MapPipe};
use datapipes_io::File;
use datapipes_io::datasets::{coco, image_folder};
use datapipes_io::formats::{
    ArrowIpc, IndexedJsonLines, IndexedRecordIo, IndexedTfRecords, LineIndex, Lmdb, Mds,
    ParquetFile, RecordIoIndex, TfRecordIndex,
};
use datapipes_io::stores::InMemory;
use datapipes_io::stores::local::Local;
use futures::executor::block_on;
use serde_json::Value;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

fn read(file: &str) -> bytes::Bytes {
    std::fs::read(format!("{DATA}/{file}")).unwrap().into()
}

/// Returns the name of a sample in the error of a step after the read.
fn name_of<M: MapPipe>(data: M, index: u64) -> String {
    let samples = Indexed::new(data).subset(vec![index]).fetch();
    let error = samples.try_map(|_| Err::<(), _>("bad")).collect();
    let error = error.unwrap_err().to_string();
    let name = error.strip_prefix("try_map: ").unwrap();
    name.strip_suffix(": bad").unwrap().to_owned()
}

#[test]
fn errors_of_later_steps_have_file_and_record() {
    let local = || Arc::new(Local::new(DATA));

    let file = || block_on(ParquetFile::open(local(), "table.parquet")).unwrap();
    assert_eq!(name_of(file(), 0), "table.parquet/0");
    assert_eq!(
        name_of(block_on(file().rows()).unwrap(), 3),
        "table.parquet/3"
    );
    let some = file().filter("index > 6".parse().unwrap()).unwrap();
    assert_eq!(
        name_of(block_on(some.rows()).unwrap(), 0),
        "table.parquet/7"
    );

    let lines = LineIndex::of(&read("unicode.jsonl"));
    let lines = IndexedJsonLines::<Value>::new(local(), "unicode.jsonl", lines);
    assert_eq!(name_of(lines, 1), "unicode.jsonl/1");

    let records = TfRecordIndex::of(&read("package.tfrecord")).unwrap();
    let records = IndexedTfRecords::new(local(), "package.tfrecord", records);
    assert_eq!(name_of(records, 2), "package.tfrecord/2");
    let records = RecordIoIndex::of(&read("mxnet.rec")).unwrap();
    let records = IndexedRecordIo::new(local(), "mxnet.rec", records);
    assert_eq!(name_of(records, 2), "mxnet.rec/2");

    let table = File::new("table.arrow", read("table.arrow"));
    let rows = ArrowIpc::new().index(table).unwrap();
    assert_eq!(name_of(rows, 4), "table.arrow/4");

    // Three shards have 13 samples each.
    let shards = block_on(Mds::open(local(), "mds-raw")).unwrap();
    assert_eq!(name_of(shards, 27), "mds-raw/shard.00002.mds/1");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.mdb");
    std::fs::write(&path, read("plain.mdb")).unwrap();
    let items = Lmdb::open(&path).unwrap().items().unwrap();
    assert_eq!(name_of(items, 1), format!("{}/image-0000", path.display()));
}

/// Returns true if the workers read, as long as that does not wait.
fn seldom_waits<T: Send + 'static>(graph: Graph<T>) -> bool {
    let loader = DataLoader::builder(graph).workers(2).build().unwrap();
    loader
        .explain()
        .to_string()
        .contains("I/O by the 2 workers")
}

#[test]
fn data_in_local_files_seldom_waits() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("dog")).unwrap();
    std::fs::write(dir.path().join("dog/1.jpg"), "x").unwrap();
    let json = r#"{"images": [{"id": 1, "file_name": "dog/1.jpg", "width": 1, "height": 1}], "annotations": [], "categories": []}"#;
    std::fs::write(dir.path().join("coco.json"), json).unwrap();
    let images = image_folder(dir.path()).unwrap().samples;
    assert!(seldom_waits(images.fetch()));
    let images = coco(dir.path(), dir.path().join("coco.json")).unwrap();
    assert!(seldom_waits(images.samples.fetch()));
    let shards = block_on(Mds::open(Local::new(DATA), "mds-raw")).unwrap();
    assert!(seldom_waits(Indexed::new(shards).fetch()));
    let far = InMemory::from_iter([("index.json", read("mds-raw/index.json"))]);
    let shards = block_on(Mds::open(far, "")).unwrap();
    assert!(!seldom_waits(Indexed::new(shards).fetch()));
}
