//! Members and samples by index.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{DataLoader, ErrorKind, Graph, Indexed, MapPipe, Result};
use futures::executor::block_on;
use futures::stream::BoxStream;
use proptest::prelude::*;

use super::super::{IndexedTar, TarIndex};
use super::{files, gzip, member, real, tar_of, untar};
use crate::formats::{Sample, Samples};
use crate::stores::{Get, InMemory, Meta, Object, Store};
use crate::{File, FileGraphExt};

fn of(archive: &[u8]) -> Result<TarIndex> {
    TarIndex::of(&Bytes::copy_from_slice(archive))
}

/// A store that records the size of its reads.
#[derive(Clone, Debug)]
struct Reads(InMemory, Arc<Mutex<Vec<u64>>>);

impl Reads {
    fn new(archive: impl Into<Bytes>) -> Self {
        Reads(InMemory::from_iter([("x.tar", archive)]), Arc::default())
    }
    fn taken(&self) -> Vec<u64> {
        std::mem::take(&mut self.1.lock().unwrap())
    }
}

#[async_trait]
impl Store for Reads {
    fn url(&self) -> &str {
        self.0.url()
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let object = self.0.get(key, get).await?;
        self.1.lock().unwrap().push(object.len().unwrap());
        Ok(object)
    }
    async fn head(&self, key: &str) -> Result<Meta> {
        self.0.head(key).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.0.list(prefix)
    }
}

fn scan(archive: &[u8]) -> Result<TarIndex> {
    block_on(TarIndex::scan(
        &InMemory::from_iter([("x.tar", archive.to_vec())]),
        "x.tar",
    ))
}

fn all<M: MapPipe>(data: &M) -> Vec<Result<M::Out>> {
    block_on(async { data.get_many(&Vec::from_iter(0..data.len())).await })
}

#[test]
fn an_index_has_what_is_streamed() {
    let mut archives: Vec<_> = real()
        .into_iter()
        .filter(|(tool, _)| !tool.starts_with("tar-sparse"))
        .collect();
    archives.push(("empty", vec![0; 1024]));
    for (tool, archive) in archives {
        let index = of(&archive).unwrap();
        let streamed = files(untar(archive.clone()));
        let found: Vec<_> = index
            .iter()
            .map(|member| {
                File::new(
                    member.name,
                    archive[member.data.start as usize..member.data.end as usize].to_vec(),
                )
            })
            .collect();
        assert_eq!(found, streamed, "{tool}");
        assert_eq!(scan(&archive).unwrap(), index, "{tool}");
        assert_eq!(
            TarIndex::from_json(index.to_json()).unwrap(),
            index,
            "{tool}"
        );
        assert_eq!(
            (index.len(), index.archive_size()),
            (streamed.len(), archive.len() as u64)
        );

        let members = IndexedTar::new(InMemory::from_iter([("x.tar", archive)]), "x.tar", index);
        let read: Vec<_> = all(&members).into_iter().map(Result::unwrap).collect();
        assert_eq!(read, streamed, "{tool}");
    }
}

#[test]
fn a_scan_reads_headers_and_a_member_is_one_request() {
    let long = "n".repeat(200);
    let data = vec![7; 1_000_000];
    let store = Reads::new(tar_of(&[
        ("a", &data),
        ("b", b"1"),
        ("c", b"2"),
        (&long, &data),
        ("d", &data),
    ]));
    let members = block_on(IndexedTar::open(store.clone(), "x.tar")).unwrap();
    assert_eq!(members.len(), 5);
    let read = store.taken();
    assert!(
        read.len() <= 5 && read.iter().sum::<u64>() <= 5 << 14,
        "{read:?}"
    );
    for (index, bytes) in [(1, 513), (3, 1_001_536), (0, 1_000_512)] {
        let file = block_on(members.get(index)).unwrap();
        assert_eq!(
            (file.data.len() as u64 + 512, store.taken()),
            (if index == 3 { 1_000_512 } else { bytes }, vec![bytes])
        );
    }
}

#[test]
fn rows_90_to_93_and_105_what_cannot_be_streamed_has_no_index() {
    let archive = tar_of(&[
        ("a.txt", &[1; 600]),
        (&"n".repeat(150), b"two"),
        ("c.txt", b""),
    ]);
    for cut in 0..archive.len() {
        let (cut, streamed) = (&archive[..cut], untar(archive[..cut].to_vec()));
        let error = streamed.iter().find_map(|item| item.as_ref().err());
        let error = error.map(|error| error.to_string().replace("in0: ", ""));
        assert_eq!(
            of(cut).err().map(|error| error.to_string()),
            error,
            "cut at {}",
            cut.len()
        );
        let scanned = scan(cut)
            .err()
            .map(|error| error.to_string().replace("memory:///x.tar: ", ""));
        assert_eq!(scanned, error, "cut at {}", cut.len());
    }
    for byte in 0..512 {
        let mut flipped = archive.clone();
        flipped[byte] ^= 4;
        let streamed = untar(flipped.clone());
        assert_eq!(
            of(&flipped).is_ok(),
            streamed.iter().all(Result::is_ok),
            "byte {byte}"
        );
    }
    let sparse = [
        member(b'x', "pax", b"22 GNU.sparse.major=1\n"),
        member(b'0', "t.bin", b"map"),
    ]
    .concat();
    let global = [member(b'g', "g", b"9 path=a\n"), member(b'0', "b", b"1")].concat();
    let cases: [(&[u8], ErrorKind, &str); 5] = [
        (b"", ErrorKind::Truncated, "an empty file"),
        (
            &gzip(&tar_of(&[(
                "a",
                &(0..9000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>(),
            )])),
            ErrorKind::Unsupported,
            "gzip",
        ),
        (
            &sparse,
            ErrorKind::Unsupported,
            "member \"t.bin\": a sparse member",
        ),
        (
            &global,
            ErrorKind::Unsupported,
            "a global header gives \"a\"",
        ),
        (
            &[archive.clone(), archive.clone()].concat(),
            ErrorKind::Corrupt,
            "data after the end",
        ),
    ];
    for (archive, kind, text) in cases {
        for error in [of(archive).unwrap_err(), scan(archive).unwrap_err()] {
            assert!(
                error.kind() == kind && error.to_string().contains(text),
                "{error}"
            );
        }
    }
    assert_eq!(
        block_on(TarIndex::scan(&InMemory::new(), "x"))
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn an_archive_that_is_not_what_the_index_says_is_an_error() {
    let archive = tar_of(&[("a.txt", b"one"), ("b.txt", b"two"), ("c.txt", b"three")]);
    let index = of(&archive).unwrap();
    let read = |archive: Vec<u8>| {
        let store = InMemory::from_iter([("x.tar", archive)]);
        all(&IndexedTar::new(store, "x.tar", index.clone()))
            .into_iter()
            .map(|file| {
                file.map_err(|error| {
                    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
                    error.to_string()
                })
            })
            .collect::<Vec<_>>()
    };
    let shorter = read(tar_of(&[("a.txt", b"one"), ("b.txt", b"two")]));
    let error = "changed: memory:///x.tar: it has 3072 bytes, in its index 4096";
    assert!(
        shorter
            .iter()
            .all(|file| file.as_ref().is_err_and(|found| found == error)),
        "{shorter:?}"
    );
    // An archive of the same size with other members.
    let other = read(tar_of(&[
        ("a.txt", b"one"),
        ("x.txt", b"two"),
        ("c.txt", b"four"),
    ]));
    let expected = [
        None,
        Some(
            "changed: memory:///x.tar: not as in its index: \"b.txt\" of 3 bytes is due at byte 1024, there is \"x.txt\" of 3 bytes",
        ),
        Some(
            "changed: memory:///x.tar: not as in its index: \"c.txt\" of 5 bytes is due at byte 2048, there is \"c.txt\" of 4 bytes",
        ),
    ];
    assert_eq!(
        other
            .iter()
            .map(|file| file.as_ref().err().map(|error| &**error))
            .collect::<Vec<_>>(),
        expected
    );
    let zeros = read(vec![0; 4096]);
    assert!(zeros.iter().all(|file| {
        file.as_ref()
            .is_err_and(|error| error.ends_with("there is no member"))
    }));
    // Every flipped bit of a header is detected, unless it changes nothing.
    let whole = read(archive.clone());
    for byte in 1024..1536 {
        let mut flipped = archive.clone();
        flipped[byte] ^= 2;
        let found = read(flipped);
        assert!(found[1].is_err() || found[1] == whole[1], "byte {byte}");
    }
}

#[test]
fn text_of_an_index_is_checked() {
    let text =
        |members: &str| format!("{{\"tar_index\": 1, \"size\": 4096, \"members\": [{members}]}}");
    for good in [
        "",
        "[\"a\", 0, 512, 3]",
        "[\"a\", 0, 512, 3], [\"a\", 1024, 2560, 0]",
        "[\"a\\nb\", 0, 512, 3584]",
    ] {
        let index = TarIndex::from_json(text(good)).unwrap();
        assert_eq!(TarIndex::from_json(index.to_json()).unwrap(), index);
    }
    let bad = [
        "[\"a\", 0, 512, 3585]",
        "[\"a\", 0, 0, 3]",
        "[\"a\", 512, 0, 3]",
        "[\"a\", 1, 513, 3]",
        "[\"a\", 0, 513, 3]",
        "[\"a\", 0, 512, 18446744073709551615]",
        "[\"a\", 0, 18446744073709551104, 600]",
        "[\"a\", 0, 512, 513], [\"b\", 1024, 1536, 0]",
        "[\"a\", 1024, 1536, 0], [\"b\", 0, 512, 0]",
        "[\"a\", 0, 512, -1]",
        "[\"a\", 0, 512, 1.5]",
        "[\"a\", 0, 512]",
        "[\"a\", 0, 512, 3, 4]",
        "[7, 0, 512, 3]",
    ];
    for bad in bad {
        let error = TarIndex::from_json(text(bad)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{bad}: {error}");
    }
    for bad in [
        "",
        "{",
        "[]",
        "v1.2 3\ncls 512 1 0",
        "{\"tar_index\": 1, \"size\": 1}",
        &"[".repeat(100_000),
    ] {
        assert_eq!(
            TarIndex::from_json(bad).unwrap_err().kind(),
            ErrorKind::Corrupt,
            "{bad:.20}"
        );
    }
    let later = text("").replace("\": 1,", "\": 2,");
    assert_eq!(
        TarIndex::from_json(later).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    let error = TarIndex::from_json(text("[\"a\", 0, 512, 3585]"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "corrupt: member 0 of an index, \"a\": 3585 bytes at 512, headers at 0, after 0 of 4096"
    );
}

#[test]
fn an_index_beside_the_archive_is_used() {
    let archive = tar_of(&[("a.txt", b"one"), ("b.txt", b"two")]);
    let store = InMemory::from_iter([("x.tar", archive.clone())]);
    let open = || block_on(IndexedTar::open(store.clone(), "x.tar"));
    let scanned = open().unwrap();
    assert_eq!(scanned.len(), 2);
    let first = "{\"tar_index\": 1, \"size\": 3072, \"members\": [[\"b.txt\", 1024, 1536, 3]]}";
    store.put("x.tar.idx", first);
    assert_eq!(
        block_on(open().unwrap().get(0)).unwrap(),
        File::new("b.txt", "two")
    );
    store.put("x.tar.idx", scanned.index().to_json());
    assert_eq!(open().unwrap().index(), scanned.index());
    store.put("x.tar.idx", "some other tool's");
    let error = open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error
            .to_string()
            .contains("memory:///x.tar.idx: no index of a tar archive"),
        "{error}"
    );
}

#[test]
fn members_and_samples_are_shuffled_as_a_whole() {
    let names: Vec<_> = (0..50)
        .flat_map(|n| [format!("{n:02}.jpg"), format!("{n:02}.cls")])
        .collect();
    let shard: Vec<_> = names
        .iter()
        .map(|name| (&**name, name.as_bytes()))
        .collect();
    let store = InMemory::from_iter([("x.tar", tar_of(&shard))]);
    let members = block_on(IndexedTar::open(store, "x.tar")).unwrap();
    let samples = members.samples();
    assert_eq!(
        (samples.len(), samples.key(7), samples.key(50)),
        (50, Some("07"), None)
    );
    let read = |workers| {
        let graph = Indexed::new(samples.clone()).shuffle().fetch();
        let loader = DataLoader::builder(graph)
            .workers(workers)
            .seed(3)
            .build()
            .unwrap();
        let keys = loader
            .epoch(0)
            .blocking()
            .map(|sample| sample.unwrap().key().to_owned());
        keys.collect::<Vec<_>>()
    };
    let (once, again) = (read(0), read(2));
    assert_eq!(once, again);
    let mut sorted = once.clone();
    sorted.sort();
    assert!(
        sorted != once
            && sorted
                .iter()
                .enumerate()
                .all(|(n, key)| *key == format!("{n:02}"))
    );
    assert_eq!(Indexed::new(members).fetch().collect().unwrap().len(), 100);
}

/// Returns the results of the stream and of the index, with errors as their kinds.
fn both(archive: &[u8], rules: &Samples) -> (Vec<Sample>, Vec<Result<Sample, ErrorKind>>) {
    let mut streamed = Vec::new();
    let graph = Graph::from_vec(vec![File::new("x.tar", archive.to_vec())])
        .untar()
        .pipe(rules.clone());
    let loader = DataLoader::builder(graph)
        .on_error(datapipes::OnError::skip(1000))
        .build()
        .unwrap();
    streamed.extend(loader.epoch(0).blocking().map(Result::unwrap));
    let store = InMemory::from_iter([("x.tar", archive.to_vec())]);
    let samples = IndexedTar::new(store, "x.tar", of(archive).unwrap()).samples_by(rules);
    (
        streamed,
        all(&samples)
            .into_iter()
            .map(|sample| sample.map_err(|error| error.kind()))
            .collect(),
    )
}

#[test]
fn row_95_samples_by_index_are_those_of_the_stream() {
    let names = [
        "a/b.seg.png",
        "a/b.cls",
        "./x.jpg",
        "a.b/c",
        "a/.b.jpg",
        ".b.jpg",
        "a/b.",
        "__x__.json",
        "__x__",
        "__x__/y.json",
        "d/__x__/y.json",
        "A.JPG",
        "y.jpg",
        "__meta__/z.cls",
        "README",
        "y.cls",
    ];
    let members: Vec<_> = names.iter().map(|name| (*name, name.as_bytes())).collect();
    let archive = tar_of(&members);
    for rules in [
        Samples::new(),
        Samples::new().keep_case(),
        Samples::new().only(["jpg", "cls"]),
    ] {
        let (streamed, indexed) = both(&archive, &rules);
        assert_eq!(
            indexed.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
            streamed,
            "{rules:?}"
        );
        assert_eq!(streamed.len(), 8);
    }
    let bad = tar_of(&[
        ("a.jpg", b"1"),
        ("b.jpg", b"1"),
        ("b.__bad__", b"1"),
        ("a.jpg", b"2"),
        ("c.__bad__", b""),
    ]);
    let (streamed, indexed) = both(&bad, &Samples::new());
    assert_eq!(
        indexed.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
        streamed
    );
    assert_eq!(
        streamed.iter().map(Sample::key).collect::<Vec<_>>(),
        ["a", "a", "c"]
    );
}

#[test]
fn row_95_a_duplicate_makes_the_sample_an_error() {
    let archive = tar_of(&[
        ("a.jpg", b"1"),
        ("a.JPG", b"2"),
        ("b.jpg", b"3"),
        ("c.__key__", b"4"),
    ]);
    let (streamed, indexed) = both(&archive, &Samples::new());
    assert_eq!(streamed.len(), 3);
    assert_eq!(
        indexed,
        [
            Err(ErrorKind::Corrupt),
            Ok(streamed[1].clone()),
            Err(ErrorKind::Corrupt)
        ]
    );
}

#[test]
fn a_sample_is_one_request_for_its_fields() {
    let store = Reads::new(tar_of(&[
        ("a.jpg", &[1; 5000]),
        ("a.cls", b"1"),
        ("a.txt", &[2; 3000]),
        ("b.jpg", b"2"),
    ]));
    let members = block_on(IndexedTar::open(store.clone(), "x.tar")).unwrap();
    store.taken();
    let sizes = |rules: &Samples| {
        block_on(members.samples_by(rules).get(0)).unwrap();
        store.taken()
    };
    assert_eq!(sizes(&Samples::new()), [5632 + 1024 + 3512]);
    assert_eq!(sizes(&Samples::new().only(["cls"])), [513]);
    assert_eq!(sizes(&Samples::new().only(["none"])), [0u64; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn row_95_any_names_are_grouped_alike(names in prop::collection::vec("[ab/_.J]{1,5}", 1..12)) {
        let names: Vec<_> = names.iter().filter(|name| !name.ends_with('/')).collect();
        let members: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
        let (streamed, indexed) = both(&tar_of(&members), &Samples::new());
        // For a sample with a second file for a field, the stream yields an error and the first
        // file.
        prop_assert_eq!(streamed.len(), indexed.len());
        for (streamed, indexed) in streamed.iter().zip(indexed) {
            match indexed {
                Ok(sample) => prop_assert_eq!(streamed, &sample),
                Err(kind) => prop_assert_eq!(kind, ErrorKind::Corrupt),
            }
        }
    }

    #[test]
    fn text_of_an_index_damaged_anywhere_is_an_index_or_an_error(
        places in prop::collection::vec((0usize..10_000, any::<u8>()), 1..4),
    ) {
        let archive = tar_of(&[("a.txt", b"one"), ("b\"\n.txt", b"two"), (&"n".repeat(150), b"3")]);
        let mut text = of(&archive).unwrap().to_json().into_bytes();
        for (place, value) in places {
            let len = text.len();
            text[place % len] = value;
        }
        if let Ok(index) = TarIndex::from_json(&text) {
            prop_assert!(index.iter().all(|member| member.all.end <= index.archive_size()));
            let members = IndexedTar::new(InMemory::from_iter([("x.tar", archive)]), "x.tar", index);
            drop(all(&members));
        }
    }
}
