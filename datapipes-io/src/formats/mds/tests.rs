use std::sync::Arc;

use bytes::Bytes;
use datapipes::index::{Indexed, MapPipe};
use datapipes::{DType, ErrorKind, Graph, Result};
use futures::future::join_all;
use serde_json::{Value, json};

use super::*;
use crate::stores::InMemory;
use crate::testing::{Scripted, check_format, read_all};
use crate::{File, FileGraphExt};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/data/", $name)).as_slice()
    };
}

const KINDS: &[u8] = data!("mds-kinds/shard.00000.mds");
const RAW: [&[u8]; 5] = [
    data!("mds-raw/index.json"),
    data!("mds-raw/shard.00000.mds"),
    data!("mds-raw/shard.00001.mds"),
    data!("mds-raw/shard.00002.mds"),
    data!("mds-raw/shard.00003.mds"),
];
const GZ: [&[u8]; 3] = [
    data!("mds-gz/index.json"),
    data!("mds-gz/shard.00000.mds.gz"),
    data!("mds-gz/shard.00001.mds.gz"),
];
const ZSTD: [&[u8]; 3] = [
    data!("mds-zstd/index.json"),
    data!("mds-zstd/shard.00000.mds.zstd"),
    data!("mds-zstd/shard.00001.mds.zstd"),
];

/// Returns the data sets of `make_mds.py`.
fn store() -> Arc<Scripted> {
    let store = Scripted::new();
    store.put("kinds/index.json", data!("mds-kinds/index.json"));
    store.put("kinds/shard.00000.mds", KINDS);
    store.put("raw/index.json", RAW[0]);
    for (n, shard) in RAW[1..].iter().enumerate() {
        store.put(format!("raw/shard.0000{n}.mds"), *shard);
    }
    store.put("zstd/index.json", ZSTD[0]);
    store.put("zstd/shard.00000.mds.zstd", ZSTD[1]);
    store.put("zstd/shard.00001.mds.zstd", ZSTD[2]);
    store.put("gz/index.json", GZ[0]);
    store.put("gz/shard.00000.mds.gz", GZ[1]);
    store.put("gz/shard.00001.mds.gz", GZ[2]);
    Arc::new(store)
}

fn written() -> Vec<(i64, String)> {
    let rows: Vec<Value> = serde_json::from_slice(data!("mds-values.json")).unwrap();
    rows.iter()
        .map(|row| {
            (
                row["id"].as_i64().unwrap(),
                row["text"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

fn row(sample: &MdsSample) -> (i64, String) {
    (
        sample.int("id").unwrap(),
        sample.text("text").unwrap().to_owned(),
    )
}

fn check_kinds(n: usize, sample: &MdsSample) {
    let i = n as i64;
    assert_eq!(sample.values().len(), 26);
    assert_eq!(sample.bytes("bytes").unwrap(), &[n as u8, 0, 255][..]);
    assert_eq!(sample.text("str").unwrap(), format!("naïve {n}"));
    let ints = ["int", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "sint"]
        .map(|name| sample.int(name).unwrap());
    let bounds = [-128 + i, i16::MIN.into(), i32::MIN.into(), i64::MIN];
    assert_eq!(ints[0], -i);
    assert_eq!(ints[1..5], bounds);
    assert_eq!(
        ints[5..],
        [255 - i, 65535, u32::MAX.into(), -123_456_789 * i]
    );
    assert!(matches!(
        sample.get("u64").unwrap(),
        MdsValue::UInt(u64::MAX)
    ));
    let error = sample.int("u64").unwrap_err().to_string();
    assert_eq!(
        error,
        r#"corrupt: column "u64" holds an unsigned int, not an int of 64 bits with a sign"#
    );
    assert_eq!(
        sample.float("f16").unwrap(),
        [0.0, 0.333_007_812_5, 0.666_015_625][n]
    );
    assert_eq!(sample.float("f32").unwrap(), f64::from(0.1f32));
    assert_eq!(
        (
            sample.float("f64").unwrap(),
            sample.float("sfloat").unwrap()
        ),
        (0.1, 1e-300)
    );
    let decimal = sample.get("sdec").unwrap();
    assert!(
        matches!(decimal, MdsValue::Decimal(text) if text == "3.14159265358979323846264338327950288")
    );
    assert_eq!(
        sample.json("json").unwrap(),
        &json!({"n": n, "list": [1, 2.5, null, "x"]})
    );

    let array = sample.array("arr").unwrap();
    assert_eq!(
        (array.dtype(), array.shape()),
        (DType::F64, &[1, 6 + n][..])
    );
    assert_eq!(
        array.as_slice::<f64>().unwrap(),
        (0..6 + n).map(|n| n as f64).collect::<Vec<_>>()
    );
    let array = sample.array("arr_t").unwrap();
    assert_eq!(array.shape(), if n == 1 { [300, 1] } else { [2, 2] });
    assert!(
        array
            .as_slice::<f32>()
            .unwrap()
            .iter()
            .all(|value| *value == 1.0)
    );
    let array = sample.array("arr_ts").unwrap();
    assert_eq!((array.dtype(), array.shape()), (DType::I16, &[2, 3][..]));
    assert_eq!(
        array.as_slice::<i16>().unwrap(),
        (0..6).map(|k| k - n as i16).collect::<Vec<_>>()
    );

    let MdsValue::Image(image) = sample.get("pil").unwrap() else {
        panic!("{sample:?}")
    };
    assert_eq!((image.width, image.height, &*image.mode), (2, 1, "RGB"));
    assert_eq!(image.pixels, [n as u8, 1, 2, 3, 4, 5][..]);
    assert!(sample.bytes("png").unwrap().starts_with(b"\x89PNG"));
    assert!(sample.bytes("jpeg").unwrap().starts_with(b"\xff\xd8"));
    let list = |name: &str| match sample.get(name).unwrap() {
        MdsValue::List(values) => values.clone(),
        other => panic!("{other:?}"),
    };
    let bytes = |value: &MdsValue| {
        if let MdsValue::Bytes(bytes) = value {
            bytes.clone()
        } else {
            panic!("{value:?}")
        }
    };
    assert_eq!(
        list("jpegs").iter().map(bytes).collect::<Vec<_>>(),
        [&b"\xff\xd8first"[..], b"\xff\xd8second!"]
    );
    assert_eq!(list("pngs").len(), 2);
    assert!(
        list("pngs")
            .iter()
            .all(|png| bytes(png).starts_with(b"\x89PNG"))
    );
    let error = sample.get("x").unwrap_err().to_string();
    assert!(
        error.starts_with(r#"not found: the sample has no column "x", but "arr", "arr_t""#),
        "{error}"
    );
}

#[tokio::test]
async fn every_encoding_of_the_writer_is_read_by_index_and_as_a_stream() {
    let data = Mds::open(store(), "kinds").await.unwrap();
    assert_eq!(data.len(), 3);
    for n in 0..3 {
        let sample = MapPipe::get(&data, n as u64).await.unwrap();
        check_kinds(n, &sample);
        check_kinds(n, &datapipes::testing::sent(&sample).unwrap());
    }
    let read = read_all(MdsShards::new(), KINDS);
    assert_eq!(read.len(), 3);
    read.iter()
        .enumerate()
        .for_each(|(n, sample)| check_kinds(n, sample.as_ref().unwrap()));
    // Slices of the shard, for values without alignment.
    let whole = Bytes::from(KINDS);
    let read = read_all(MdsShards::new(), whole.clone()).remove(0).unwrap();
    assert!(
        whole
            .as_ptr_range()
            .contains(&read.bytes("jpeg").unwrap().as_ptr())
    );
}

#[tokio::test]
async fn shards_are_read_by_index_raw_and_compressed() {
    for folder in ["raw", "raw/", "zstd", "gz"] {
        let data = Mds::open(store(), folder).await.unwrap();
        let read = join_all((0..40).map(|n| MapPipe::get(&data, n))).await;
        assert_eq!(
            read.iter()
                .map(|sample| row(sample.as_ref().unwrap()))
                .collect::<Vec<_>>(),
            written()
        );
        let error = MapPipe::get(&data, 40).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::NotFound && error.to_string().contains("no sample 40 of 40"),
            "{error}"
        );
    }
}

#[test]
fn data_by_index_is_shuffled_and_split() {
    let data = futures::executor::block_on(Mds::open(store(), "raw")).unwrap();
    let data = Indexed::new(data);
    let (train, rest) = (data.clone().subset(0..30).shuffle(), data.subset(30..40));
    let ids = |data: Indexed<MdsSample>| {
        data.fetch()
            .try_map(|sample| sample.int("id"))
            .collect()
            .unwrap()
    };
    let mut train = ids(train);
    assert_ne!(train, (0..30).collect::<Vec<_>>());
    train.sort_unstable();
    assert_eq!((train, ids(rest)), ((0..30).collect(), (30..40).collect()));
}

#[test]
fn whole_shards_are_read_as_a_stream_raw_and_compressed() {
    for shards in [&RAW[1..], &GZ[1..]] {
        let read = shards
            .iter()
            .flat_map(|shard| read_all(MdsShards::new(), *shard));
        assert_eq!(
            read.map(|sample| row(&sample.unwrap())).collect::<Vec<_>>(),
            written()
        );
    }
    #[cfg(feature = "zstd")]
    {
        let read = ZSTD[1..]
            .iter()
            .flat_map(|shard| read_all(MdsShards::new(), *shard));
        assert_eq!(
            read.map(|sample| row(&sample.unwrap())).collect::<Vec<_>>(),
            written()
        );
    }
    let read = read_all(MdsShards::new().max_expansion(100, 2), GZ[1]);
    assert_eq!(read[0].as_ref().unwrap_err().kind(), ErrorKind::Limit);
}

/// Uses the form that `merge_index` writes for parts that several processes made.
#[tokio::test]
async fn indexes_that_were_merged_name_the_folders_of_their_parts() {
    let merged = String::from_utf8(RAW[0].to_vec())
        .unwrap()
        .replace("shard.", "part-0/shard.");
    let store = InMemory::from_iter([("index.json".to_owned(), merged.clone().into_bytes())]);
    for (number, shard) in RAW[1..].iter().enumerate() {
        store.put(format!("part-0/shard.{number:05}.mds"), *shard);
    }
    let data = Mds::open(store, "").await.unwrap();
    assert_eq!(row(&MapPipe::get(&data, 3).await.unwrap()), written()[3]);
    let index = MdsIndex::parse(merged.as_bytes()).unwrap();
    let files = Graph::from_vec(vec![File::new("x/part-0/shard.00000.mds", RAW[1])]);
    assert_eq!(
        files
            .read_as(MdsShards::of(&index))
            .collect()
            .unwrap()
            .len(),
        13
    );
    for outside in ["/shard.", "../shard.", "a//shard.", "a/../shard."] {
        let wrong = String::from_utf8(RAW[0].to_vec())
            .unwrap()
            .replace("shard.", outside);
        assert_eq!(
            MdsIndex::parse(wrong.as_bytes()).unwrap_err().kind(),
            ErrorKind::Corrupt,
            "{outside}"
        );
    }
}

#[tokio::test]
async fn what_is_read_of_a_shard_is_read_once_and_kept_as_far_as_it_fits() {
    let requests = |store: &Scripted, key: &str| {
        store
            .requests()
            .iter()
            .filter(|request| request.key == key)
            .count()
    };
    let scripted = store();
    let data = Mds::open(scripted.clone(), "zstd").await.unwrap();
    assert!(
        join_all((0..40).map(|n| MapPipe::get(&data, n)))
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(requests(&scripted, "zstd/shard.00000.mds.zstd"), 1);
    assert_eq!(requests(&scripted, "zstd/shard.00001.mds.zstd"), 1);
    assert_eq!(data.cache.held(), (2, 881 + 723));

    let scripted = store();
    let data = Mds::open(scripted.clone(), "zstd")
        .await
        .unwrap()
        .cache(1000);
    for n in [0, 39, 1, 38] {
        MapPipe::get(&data, n).await.unwrap();
        assert_eq!(data.cache.held().0, 1);
    }
    assert_eq!(requests(&scripted, "zstd/shard.00000.mds.zstd"), 2);

    // The head, and each sample.
    let scripted = store();
    let data = Mds::open(scripted.clone(), "raw").await.unwrap();
    for _ in 0..3 {
        MapPipe::get(&data, 2).await.unwrap();
    }
    assert_eq!(requests(&scripted, "raw/shard.00000.mds"), 1 + 3);
}

#[tokio::test]
async fn a_shard_that_could_not_be_read_is_tried_again() {
    let scripted = store();
    let data = Mds::open(scripted.clone(), "gz").await.unwrap();
    let down = crate::testing::Reaction::default().unavailable();
    scripted.script("gz/shard.00000.mds.gz", [down]);
    assert_eq!(
        MapPipe::get(&data, 0).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(row(&MapPipe::get(&data, 0).await.unwrap()).0, 0);
}

fn edited(index: &[u8], edit: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(index).unwrap();
    edit(&mut value);
    value.to_string().into_bytes()
}

#[test]
fn row_103_an_index_that_is_wrong_is_refused_and_says_why() {
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            "/version",
            json!(1),
            "unsupported: version 1 of the index, not 2",
        ),
        (
            "/shards/1/version",
            json!(3),
            "unsupported: shard 1: version 3 of format \"mds\"",
        ),
        (
            "/shards/1/format",
            json!("csv"),
            "unsupported: shard 1: version 2 of format \"csv\"",
        ),
        (
            "/shards/0/compression",
            json!("br:11"),
            "unsupported: shard 0: compression \"br:11\" is not known",
        ),
        (
            "/shards/0/compression",
            json!(null),
            "corrupt: shard 0: zip_data without a compression",
        ),
        (
            "/shards/0/zip_data",
            json!(null),
            "corrupt: shard 0: compression \"zstd:7\" without zip_data",
        ),
        (
            "/shards/0/raw_data",
            json!(null),
            "corrupt: shard 0: it has no raw_data",
        ),
        (
            "/shards/0/zip_data/basename",
            json!("../a"),
            "corrupt: shard 0: \"../a\" is not a plain file name",
        ),
        (
            "/shards/0/zip_data/basename",
            json!("a\\b"),
            "corrupt: shard 0: \"a\\\\b\" is not a plain file name",
        ),
        (
            "/shards/0/zip_data/basename",
            json!(".."),
            "corrupt: shard 0: \"..\" is not a plain file name",
        ),
        (
            "/shards/0/zip_data/basename",
            json!(""),
            "corrupt: shard 0: \"\" is not a plain file name",
        ),
        (
            "/shards/0/zip_data/hashes/xxh64",
            json!("x"),
            "corrupt: shard 0: its xxh64 is no number of 64 bits",
        ),
        (
            "/shards/1/samples",
            json!(u64::MAX),
            "corrupt: shard 1: 18446744073709551615 samples in 723 bytes",
        ),
        (
            "/shards/1/samples",
            json!(200),
            "corrupt: shard 1: 200 samples in 723 bytes",
        ),
        (
            "/shards/0/raw_data/bytes",
            json!(1u64 << 40),
            "corrupt: shard 0: 23 samples in 1099511627776 bytes",
        ),
        (
            "/shards/1/column_encodings/1",
            json!("pkl"),
            "unsupported: shard 1: column \"text\": encoding \"pkl\" is refused: to unpickle data runs what code is in it",
        ),
        (
            "/shards/0/column_encodings/1",
            json!("pkl:4"),
            "column \"text\": encoding \"pkl:4\" is refused",
        ),
        (
            "/shards/0/column_encodings/1",
            json!("list[pkl]"),
            "encoding \"list[pkl]\" is not known",
        ),
        (
            "/shards/0/column_encodings/1",
            json!("int:8"),
            "encoding \"int:8\" is not known",
        ),
        (
            "/shards/0/column_encodings/1",
            json!("ndarray:object"),
            "names no type and shape of an array",
        ),
        (
            "/shards/0/column_encodings/1",
            json!("ndarray:int8:0"),
            "names no type and shape of an array",
        ),
        (
            "/shards/0/column_encodings/1",
            json!("int"),
            "\"text\": no fixed size stated, its encoding has 8 bytes",
        ),
        (
            "/shards/0/column_sizes/0",
            json!(4),
            "column \"id\": 4 bytes stated, its encoding has 8 bytes",
        ),
        (
            "/shards/0/column_sizes/1",
            json!(4),
            "column \"text\": 4 bytes stated, its encoding has no fixed size",
        ),
        (
            "/shards/0/column_sizes",
            json!([8]),
            "corrupt: shard 0: 2 names, 2 encodings and 1 sizes of columns",
        ),
        (
            "/shards/0/column_names",
            json!(["a", "a"]),
            "corrupt: shard 0: two columns \"a\"",
        ),
    ];
    for (place, value, said) in cases {
        let index = edited(ZSTD[0], |index| *index.pointer_mut(place).unwrap() = value);
        let error = MdsIndex::parse(&index).unwrap_err().to_string();
        assert!(error.contains(said), "{place}: {error}");
    }
    for json in [
        &b""[..],
        b"{}",
        b"[]",
        b"{\"version\": 2, \"shards\": [{}]}",
        b"\xff",
    ] {
        assert_eq!(
            MdsIndex::parse(json).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }
    let pickle = MdsIndex::parse(data!("mds-pkl/index.json")).unwrap_err();
    assert_eq!(pickle.kind(), ErrorKind::Unsupported);
    let read = read_all(MdsShards::new(), data!("mds-pkl/shard.00000.mds"));
    assert_eq!(read[0].as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(
        MdsIndex::parse(b"{\"version\": 2, \"shards\": []}")
            .unwrap()
            .is_empty()
    );
    // An array of an absurd fixed shape has an absurd fixed size, and therefore no sample.
    let huge = edited(RAW[0], |index| {
        index["shards"][0]["column_encodings"][0] =
            json!("ndarray:int8:4294967296,4294967296,4294967296");
        index["shards"][0]["column_sizes"][0] = json!(u64::MAX);
    });
    let store = InMemory::from_iter([("index.json", huge), ("shard.00000.mds", RAW[1].to_vec())]);
    let data = futures::executor::block_on(Mds::open(store, "")).unwrap();
    let error = futures::executor::block_on(MapPipe::get(&data, 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test]
async fn row_103_shards_that_are_not_what_the_index_says_are_errors_that_name_them() {
    let get = async |folder: &str, key: &str, shard: Option<Vec<u8>>| {
        let store = store();
        let data = Mds::open(store.clone(), folder).await.unwrap();
        store.put(format!("{folder}/{key}"), shard.unwrap_or_default());
        MapPipe::get(&data, 0).await.unwrap_err()
    };
    for cut in [0, 3, 4, 40] {
        let error = get("raw", "shard.00000.mds", Some(RAW[1][..cut].to_vec())).await;
        assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
        assert!(error.to_string().contains("raw/shard.00000.mds"), "{error}");
    }
    let store_without = InMemory::from_iter([("index.json", RAW[0])]);
    let data = Mds::open(store_without.clone(), "").await.unwrap();
    let error = MapPipe::get(&data, 0).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("shard.00000.mds"),
        "{error}"
    );
    // Everything except the end exists.
    store_without.put("shard.00000.mds", &RAW[1][..RAW[1].len() - 1]);
    let last = MdsIndex::parse(RAW[0]).unwrap().starts[1] - 1;
    let error = MapPipe::get(&data, last).await.unwrap_err().to_string();
    assert!(
        error.starts_with("truncated: memory:///shard.00000.mds: sample "),
        "{error}"
    );

    let error = get("raw", "shard.00000.mds", Some(RAW[4].to_vec())).await;
    assert!(
        error.to_string().contains("samples, the index says"),
        "{error}"
    );
    let shard = GZ[1];
    let error = get(
        "gz",
        "shard.00000.mds.gz",
        Some(shard[..shard.len() - 1].to_vec()),
    )
    .await;
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
    let error = get("gz", "shard.00000.mds.gz", Some([shard, b"x"].concat())).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    for at in [5, 100, shard.len() - 6] {
        let mut flipped = shard.to_vec();
        flipped[at] ^= 0x10;
        let store = store();
        let data = Mds::open(store.clone(), "gz").await.unwrap();
        store.put("gz/shard.00000.mds.gz", flipped);
        let read = MapPipe::get(&data, 0).await;
        assert!(at == 5 || read.is_err(), "byte {at}");
    }
    for (bytes, said) in [
        (600, "more than the 600 bytes stated"),
        (2000, "bytes, 2000 stated"),
    ] {
        let index = edited(ZSTD[0], |index| {
            index["shards"][0]["raw_data"]["bytes"] = json!(bytes)
        });
        let store = store();
        store.put("zstd/index.json", index);
        let data = Mds::open(store, "zstd").await.unwrap();
        let error = MapPipe::get(&data, 0).await.unwrap_err().to_string();
        assert!(
            error.starts_with("corrupt: ") && error.contains(said),
            "{error}"
        );
    }
    let data = Mds::open(store(), "zstd").await.unwrap().max_shard(800);
    let error = MapPipe::get(&data, 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(MapPipe::get(&data, 39).await.is_ok());
}

#[test]
fn row_103_whole_shards_are_compared_with_their_index() {
    let index = MdsIndex::parse(RAW[0]).unwrap();
    let read = |name: &str, data: &[u8]| {
        let files = Graph::from_vec(vec![File::new(name, data.to_vec())]);
        files
            .read_as(MdsShards::of(&index))
            .collect()
            .map(|samples| samples.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(read("train/shard.00000.mds", RAW[1]), Ok(13));
    assert_eq!(read("shard.00003.mds", RAW[4]), Ok(1));
    let said = |read: std::result::Result<usize, String>| read.unwrap_err();
    assert!(
        said(read("shard.9.mds", RAW[1]))
            .ends_with("not found: no shard \"shard.9.mds\" in the index")
    );
    assert!(
        said(read("shard.00001.mds", RAW[1]))
            .ends_with("truncated: the file has 577 bytes, the index says 595")
    );
    let mut flipped = RAW[1].to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    let error = said(read("shard.00000.mds", &flipped));
    assert!(
        error.contains("corrupt: the xxh64 of the file is "),
        "{error}"
    );
    // Without the index, a changed character cannot be detected.
    assert!(
        read_all(MdsShards::new(), flipped)
            .iter()
            .all(Result::is_ok)
    );
}

#[tokio::test]
async fn row_103_a_compressed_shard_with_a_wrong_hash_is_an_error() {
    let store = store();
    let mut flipped = ZSTD[1].to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    store.put("zstd/shard.00000.mds.zstd", flipped);
    let error = MapPipe::get(&Mds::open(store, "zstd").await.unwrap(), 0)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("zstd/shard.00000.mds.zstd: the xxh64 of the file is "),
        "{error}"
    );
}

#[test]
fn row_103_a_shard_that_is_cut_anywhere_is_an_error() {
    for cut in 0..RAW[1].len() {
        let read = read_all(MdsShards::new(), &RAW[1][..cut]);
        assert_eq!(read.len(), 1, "cut at {cut}");
        assert_eq!(
            read[0].as_ref().unwrap_err().kind(),
            ErrorKind::Truncated,
            "cut at {cut}"
        );
    }
    let read = read_all(MdsShards::new(), [RAW[1], b"x"].concat());
    assert!(
        read[0]
            .as_ref()
            .unwrap_err()
            .to_string()
            .ends_with("1 bytes follow")
    );
}

#[test]
fn row_103_offsets_that_go_backwards_or_outside_are_errors() {
    let set = |at: usize, value: u32| {
        let mut shard = RAW[1].to_vec();
        shard[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let read = read_all(MdsShards::new(), shard);
        read[0]
            .as_ref()
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let samples = u32::from_le_bytes(*RAW[1].first_chunk().unwrap());
    assert_eq!(set(0, samples), Ok(()));
    assert!(
        set(0, u32::MAX)
            .unwrap_err()
            .contains("of 17179869188 bytes")
    );
    assert!(
        set(4, 3)
            .unwrap_err()
            .contains("sample 0 begins at byte 3, before byte")
    );
    assert!(
        set(8, u32::MAX)
            .unwrap_err()
            .contains("sample 2 begins at byte")
    );
    assert!(
        set(4 + 4 * samples as usize, u32::MAX)
            .unwrap_err()
            .contains("end at byte 4294967295")
    );
    assert!(set(4 + 4 * samples as usize, 577).is_ok());
    assert!(set(0, 0).is_err());
}

/// Returns a shard of one column, with these samples.
fn shard(encoding: &str, size: Option<u64>, samples: &[&[u8]]) -> Vec<u8> {
    let config = json!({
        "version": 2, "format": "mds",
        "column_names": ["x"], "column_encodings": [encoding], "column_sizes": [size],
    });
    let config = config.to_string().into_bytes();
    let mut offset = 4 * (samples.len() + 2) + config.len();
    let mut head = (samples.len() as u32).to_le_bytes().to_vec();
    let mut body = Vec::new();
    for sample in samples {
        head.extend((offset as u32).to_le_bytes());
        if size.is_none() {
            body.extend((sample.len() as u32).to_le_bytes());
        }
        body.extend(*sample);
        offset += sample.len() + if size.is_none() { 4 } else { 0 };
    }
    head.extend((offset as u32).to_le_bytes());
    [head, config, body].concat()
}

#[test]
fn row_103_values_that_are_wrong_are_errors_in_their_places() {
    let u32s = |values: &[u32]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("str", b"\xff".to_vec(), "text is due: invalid utf-8"),
        ("str_int", b"1.5".to_vec(), "a whole number is due"),
        (
            "str_int",
            b"9223372036854775808".to_vec(),
            "a number of 19 digits does not fit into 64 bits",
        ),
        ("str_float", b"x".to_vec(), "a number is due"),
        ("str_decimal", b"1x".to_vec(), "a number is due"),
        ("json", b"{".to_vec(), "JSON is due"),
        ("json", [b'['; 100_000].to_vec(), "recursion limit"),
        ("ndarray", vec![], "1 bytes stated, 0 there"),
        ("ndarray", vec![7], "byte 7 stands for no type of array"),
        ("ndarray", vec![8, 8 | 3], "16 bytes stated, 0 there"),
        (
            "ndarray:int16",
            vec![4, 2, 0],
            "an array: shape mismatch: 1 bytes for shape [2] of i16",
        ),
        (
            "ndarray:int16",
            [&[8 | 3][..], &[0xff; 16]].concat(),
            "an array: ",
        ),
        ("pil", u32s(&[1, 1]), "4 bytes stated, 0 there"),
        (
            "pil",
            [u32s(&[1, 1, 3]), b"RGB12".to_vec()].concat(),
            "2 bytes for a picture of 1 x 1 pixels of mode \"RGB\"",
        ),
        (
            "pil",
            [u32s(&[u32::MAX, u32::MAX, 4]), b"RGBA".to_vec()].concat(),
            "0 bytes for a picture of 4294967295",
        ),
        (
            "pil",
            [u32s(&[1, 1, 3]), b"XYZ".to_vec()].concat(),
            "a picture of mode \"XYZ\"",
        ),
        (
            "jpeg_array",
            u32s(&[u32::MAX]),
            "17179869180 bytes stated, 0 there",
        ),
        (
            "jpeg_array",
            u32s(&[1, 5]),
            "element 0: 5 bytes stated, 0 there",
        ),
        (
            "list[png]",
            u32s(&[0, 0, 0]),
            "4 bytes after the last of 0 elements",
        ),
    ];
    for (encoding, value, said) in cases {
        let read = read_all(MdsShards::new(), shard(encoding, None, &[&value]));
        let error = read[0].as_ref().unwrap_err().to_string();
        assert!(
            error.contains("sample 0 at byte ") && error.contains("column \"x\": "),
            "{encoding}: {error}"
        );
        assert!(error.contains(said), "{encoding}: {error}");
    }
    let read = read_all(MdsShards::new(), shard("str", None, &[b"a", b"\xff", b"c"]));
    assert_eq!(
        read.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, true]
    );
    let read = read_all(
        MdsShards::new(),
        shard("int", Some(8), &[&[1; 8], &[1; 7], &[1; 9]]),
    );
    assert_eq!(
        read.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, false]
    );
    let error = read[2].as_ref().unwrap_err().to_string();
    assert!(error.ends_with("it has 9 bytes, its columns 8"), "{error}");
    let none = shard("int", Some(8), &[]);
    assert!(read_all(MdsShards::new(), none).is_empty());
}

#[test]
fn row_106_a_raw_shard_whose_number_of_samples_looks_like_gzip_is_read() {
    let samples = vec![&b"z"[..]; 0x0008_8b1f];
    let shard = shard("bytes", None, &samples);
    assert!(shard.starts_with(&[0x1f, 0x8b, 8]));
    assert_eq!(read_all(MdsShards::new(), shard).len(), samples.len());
}

#[test]
fn any_bytes_are_survived() {
    assert_eq!(check_format(MdsShards::new, RAW[4]), 1);
    assert_eq!(check_format(MdsShards::new, KINDS), 3);
    for at in 0..RAW[0].len() {
        let mut index = RAW[0].to_vec();
        for byte in [b'9', b'"', b'}', 0xff] {
            index[at] = byte;
            let _ = MdsIndex::parse(&index);
        }
    }
}
