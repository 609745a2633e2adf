//! Archives that arrive from a store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::testing::check_pipe;
use datapipes::{Context, DataLoader, Error, ErrorKind, Graph, Item, Items, Origin, Pipe, Result};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};

use super::super::StreamUntar;
use super::{apply, gzip, mixed, real, shown, tar_of, untar};
use crate::stores::{Body, Get, InMemory, Meta, Object, Store};
use crate::{FileGraphExt, FileRef, StoreExt};

/// A store of one object, in pieces, with faults.
#[derive(Clone)]
pub(super) struct Arrives {
    data: Bytes,
    piece: usize,
    announced: Option<u64>,
    /// Number of pieces after which the body fails, or stalls without an error.
    stops: Option<(usize, Option<ErrorKind>)>,
    given: Arc<AtomicUsize>,
    alive: Arc<AtomicUsize>,
    most_alive: Arc<AtomicUsize>,
}

impl Arrives {
    pub(super) fn new(data: impl Into<Bytes>, piece: usize) -> Self {
        let data = data.into();
        let announced = Some(data.len() as u64);
        let counter = Arc::<AtomicUsize>::default;
        let (given, alive, most_alive) = (counter(), counter(), counter());
        Arrives {
            data,
            piece,
            announced,
            stops: None,
            given,
            alive,
            most_alive,
        }
    }
}

impl Arrives {
    pub(super) fn announced(mut self, len: Option<u64>) -> Self {
        self.announced = len;
        self
    }
}

impl fmt::Debug for Arrives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Arrives")
    }
}

/// A piece whose memory is counted.
struct Counted(Bytes, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Relaxed);
    }
}

#[async_trait]
impl Store for Arrives {
    fn url(&self) -> &str {
        "arrives:///"
    }
    async fn get(&self, key: &str, _: Get) -> Result<Object> {
        let own = self.clone();
        let mut left = self.data.clone();
        let pieces = std::iter::from_fn(move || {
            if left.is_empty() {
                return None;
            }
            let piece = left.split_to(own.piece.min(left.len()));
            own.most_alive
                .fetch_max(own.alive.fetch_add(1, Relaxed) + 1, Relaxed);
            own.given.fetch_add(1, Relaxed);
            Some(Ok(Bytes::from_owner(Counted(piece, own.alive.clone()))))
        });
        let pieces = futures::stream::iter(pieces);
        let body = match self.stops {
            None => Body::stream(pieces),
            Some((after, None)) => {
                Body::stream(pieces.take(after).chain(futures::stream::pending()))
            }
            Some((after, Some(kind))) => {
                let error = Error::new(kind, "arrives:///k: it stopped");
                Body::stream(
                    pieces
                        .take(after)
                        .chain(futures::stream::iter([Err(error)])),
                )
            }
        };
        let meta = Meta {
            size: self.announced,
            ..Meta::new(key)
        };
        let range = 0..self.announced.unwrap_or(u64::MAX);
        Ok(Object {
            meta,
            range,
            body,
            url: self.url_of(key),
        })
    }
    fn list(&self, _: &str) -> BoxStream<'static, Result<Meta>> {
        futures::stream::empty().boxed()
    }
}

fn refer(store: &Arrives) -> FileRef {
    FileRef::stored(Arc::new(store.clone()), "k", None)
}

/// Returns the items of one archive, as they come.
fn begin(store: &Arrives) -> Items<crate::File> {
    let file = Item::new(refer(store), Origin::root(0, 0).named("in0"));
    StreamUntar::new().apply(Items::from_results([Ok(file)]), &Context::default())
}

fn stream(store: &Arrives) -> Vec<Result<(String, crate::File), String>> {
    shown(&apply(&StreamUntar::new(), vec![refer(store)]))
}

/// Returns an archive of 20 MB.
fn large() -> Bytes {
    let data: Vec<u8> = (0..100_000u32).map(|n| (n / 7) as u8).collect();
    let names: Vec<_> = (0..200).map(|n| format!("{n:03}.bin")).collect();
    let members: Vec<_> = names.iter().map(|name| (&**name, &data[..])).collect();
    tar_of(&members).into()
}

#[test]
fn what_arrives_is_what_is_in_the_whole() {
    for archive in
        real()
            .into_iter()
            .map(|(_, archive)| archive)
            .chain([mixed(), vec![0; 3000], vec![]])
    {
        let whole = shown(&untar(archive.clone()));
        for piece in [1, 100, 512, 5000, 1 << 20] {
            let store = Arrives::new(archive.clone(), piece);
            assert_eq!(stream(&store), whole, "in pieces of {piece}");
            assert_eq!(
                stream(&Arrives {
                    announced: None,
                    ..store
                }),
                whole,
                "in pieces of {piece}"
            );
        }
    }
}

#[test]
fn row_91_cut_at_every_byte_and_announced_so() {
    let archive = mixed();
    for cut in (0..archive.len()).step_by(13) {
        let whole = shown(&untar(archive[..cut].to_vec()));
        assert_eq!(
            stream(&Arrives::new(archive[..cut].to_vec(), 1000)),
            whole,
            "cut at {cut}"
        );
    }
}

#[test]
fn row_90_errors_name_the_place_and_the_next_archive_follows() {
    let mut bad = tar_of(&[("a.txt", b"one"), ("b.txt", b"two")]);
    let good = Arrives::new(bad.clone(), 700);
    bad[1024 + 20] ^= 1;
    let items = shown(&apply(
        &StreamUntar::new(),
        vec![refer(&Arrives::new(bad, 700)), refer(&good), refer(&good)],
    ));
    let error = "in0: corrupt: a header whose checksum is wrong; at byte 1024 of 3072, after member \"a.txt\"";
    assert_eq!(items[1].as_ref().unwrap_err(), error);
    let origins: Vec<_> = items
        .iter()
        .flatten()
        .map(|(origin, _)| &**origin)
        .collect();
    assert_eq!(
        origins,
        [
            "in0/a.txt 0",
            "in1/a.txt 0",
            "in1/b.txt 1",
            "in2/a.txt 0",
            "in2/b.txt 1"
        ]
    );
}

#[test]
fn the_first_member_comes_before_the_rest_is_read() {
    for (piece, most) in [(300 << 10, 1), (16 << 10, 64), (1000, 1049)] {
        let store = Arrives::new(large(), piece);
        let mut items = begin(&store);
        let first = items.next().now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(&*first.name, "000.bin");
        assert!(
            store.given.load(Relaxed) <= most,
            "{} pieces",
            store.given.load(Relaxed)
        );
    }
    // The member does not wait for bytes that it does not need.
    let store = Arrives {
        stops: Some((101, None)),
        ..Arrives::new(large(), 1000)
    };
    let mut items = begin(&store);
    assert!(items.next().now_or_never().is_some());
    assert!(items.next().now_or_never().is_none());
}

#[test]
fn a_few_pieces_are_in_memory_whatever_the_archive() {
    for piece in [300 << 10, 16 << 10] {
        let store = Arrives::new(large(), piece);
        let mut items = begin(&store);
        let (mut members, mut last) = (0, None);
        while let Some(item) = items.next().now_or_never().unwrap() {
            // One member is held while the next is read.
            last = Some(item.unwrap());
            members += 1;
        }
        assert_eq!((members, last.is_some()), (200, true));
        assert!(
            store.most_alive.load(Relaxed) <= 3,
            "{}",
            store.most_alive.load(Relaxed)
        );
        drop((items, last));
        assert_eq!(store.alive.load(Relaxed), 0);
    }
}

#[test]
fn a_body_that_fails_or_has_another_length_is_an_error_behind_what_arrived() {
    let archive = tar_of(&[("a.txt", &[1; 600]), ("b.txt", &[2; 600])]);
    let store = Arrives::new(archive.clone(), 1600);
    let cases = [
        (
            Arrives {
                stops: Some((1, Some(ErrorKind::Unavailable))),
                ..store.clone()
            },
            "unavailable: arrives:///k: it stopped",
        ),
        (
            Arrives {
                announced: Some(5000),
                ..store.clone()
            },
            "truncated: arrives:///k: 4096 of 5000 bytes",
        ),
        (
            Arrives {
                announced: Some(2000),
                ..store.clone()
            },
            "against the protocol: arrives:///k: more than the 2000 bytes announced",
        ),
    ];
    for (store, error) in cases {
        let items = stream(&store);
        assert_eq!(&*items[0].as_ref().unwrap().1.name, "a.txt");
        assert_eq!(
            items.last().unwrap().as_ref().unwrap_err(),
            &format!("in0: {error}")
        );
    }
    let listed = FileRef::stored(Arc::new(store), "k", Some(7));
    let items = shown(&apply(&StreamUntar::new(), vec![listed]));
    let error = "in0: changed: arrives:///k: listed with 7 bytes, has 4096";
    assert_eq!(items, [Err(error.to_owned())]);
}

#[test]
fn row_96_a_packed_archive_is_inflated_when_it_is_there() {
    let packed = gzip(&tar_of(&[("a.txt", &[1; 600]), ("b.txt", &[2; 600])]));
    let whole = shown(&untar(packed.clone()));
    assert_eq!(whole.len(), 2);
    for piece in [1, 50, 10_000] {
        assert_eq!(stream(&Arrives::new(packed.clone(), piece)), whole);
    }
    for cut in 1..packed.len() {
        let cut = packed[..cut].to_vec();
        assert_eq!(stream(&Arrives::new(cut.clone(), 50)), shown(&untar(cut)));
    }
}

#[test]
fn row_98_members_are_limited() {
    let store = Arrives::new(tar_of(&[("a.txt", b"1"), ("b.txt", &[2; 6000])]), 1000);
    let items = shown(&apply(
        &StreamUntar::new().max_member(5000),
        vec![refer(&store)],
    ));
    let error = items[1].as_ref().unwrap_err();
    assert!(
        error.starts_with("in0: limit reached: member \"b.txt\" has 6000 bytes; 5000 are allowed"),
        "{error}"
    );
    let bomb = gzip(&tar_of(&[("a.txt", &vec![0; 8 << 20])]));
    let pipe = StreamUntar::new().max_expansion(2 << 20, 5000);
    let items = apply(&pipe, vec![refer(&Arrives::new(bomb, 1000))]);
    assert_eq!(
        items.last().unwrap().as_ref().unwrap_err().kind(),
        ErrorKind::Limit
    );
}

#[test]
fn row_105_an_empty_object_is_an_error() {
    let items = stream(&Arrives::new(vec![], 10));
    assert_eq!(
        items,
        [Err(
            "in0: truncated: an empty file where an archive is due".to_owned()
        )]
    );
}

#[test]
fn files_of_this_machine_are_read_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.tar");
    std::fs::write(&path, large()).unwrap();
    let whole = shown(&untar(large()));
    assert_eq!(
        shown(&apply(&StreamUntar::new(), vec![FileRef::new(&path)])),
        whole
    );
    // No slices of 20 MB: a member keeps its piece in memory.
    let missing = folder.path().join("none.tar");
    let items = apply(
        &StreamUntar::new(),
        vec![FileRef::new(&missing), FileRef::new(folder.path())],
    );
    let errors: Vec<_> = items
        .iter()
        .map(|item| item.as_ref().unwrap_err())
        .collect();
    assert_eq!(
        errors.iter().map(|error| error.kind()).collect::<Vec<_>>(),
        [ErrorKind::NotFound; 2]
    );
    assert!(errors[0].to_string().contains("none.tar"), "{}", errors[0]);
}

#[test]
fn the_contract_is_kept_and_workers_give_the_same() {
    let archives: Vec<_> = (0..12)
        .map(|k| {
            let names: Vec<_> = (0..40).map(|n| format!("{k}/{n}.txt")).collect();
            let members: Vec<_> = names
                .iter()
                .map(|name| (&**name, name.as_bytes()))
                .collect();
            (format!("{k}.tar"), tar_of(&members))
        })
        .collect();
    let keys: Vec<_> = archives.iter().map(|(key, _)| key.clone()).collect();
    let store = InMemory::from_iter(archives);
    let small = InMemory::from_iter([
        ("a", tar_of(&[("1", b"one"), ("2", b"two")])),
        ("b", vec![0; 1024]),
    ]);
    let files = ["a", "b", "a"].map(|key| FileRef::stored(Arc::new(small.clone()), key, None));
    check_pipe(&StreamUntar::new(), files.to_vec());
    let graph: Graph<crate::File> = store.clone().files(keys.clone()).stream_untar();
    let expected = store
        .files(keys)
        .load_files()
        .pipe(super::Untar::new())
        .collect()
        .unwrap();
    assert_eq!(
        (expected.len(), graph.clone().collect().unwrap()),
        (480, expected.clone())
    );
    for workers in [1, 2] {
        let loader = DataLoader::builder(graph.clone())
            .workers(workers)
            .build()
            .unwrap();
        assert_eq!(
            loader
                .epoch(0)
                .blocking()
                .collect::<Result<Vec<_>>>()
                .unwrap(),
            expected
        );
    }
}
