//! Ends of archives: with a marker or without, and with data after it.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::testing::some_of;
use datapipes::{ErrorKind, Indexed};
use futures::executor::block_on;

use super::super::{IndexedTar, StreamUntar, Tar, TarIndex, Trailing, Untar};
use super::{apply, gzip, tar_of};
use crate::stores::InMemory;
use crate::{File, FileRef};

const KINDS: [Trailing; 3] = [Trailing::Refuse, Trailing::Ignore, Trailing::Read];

/// An archive with the numbers of members before and after its end, and its error.
struct Case {
    archive: Vec<u8>,
    members: usize,
    /// Number of zeros at the end, before the data after it.
    zeros: usize,
    /// Data after the archive.
    behind: Behind,
}

#[derive(Clone, Copy, PartialEq)]
enum Behind {
    Nothing,
    /// An archive with this number of members, followed by this number of zeros.
    Members(usize, usize),
    Rubbish,
}

fn cases() -> Vec<Case> {
    let members: Vec<(String, Vec<u8>)> = (0..3)
        .map(|n| (format!("{n}.txt"), vec![n as u8 + 1; 700]))
        .collect();
    let members: Vec<(&str, &[u8])> = members
        .iter()
        .map(|(name, data)| (&**name, &data[..]))
        .collect();
    let of = |count: usize, zeros: usize| {
        let mut archive = tar_of(&members[..count]);
        archive.truncate(archive.len() - 1024);
        archive.resize(archive.len() + zeros, 0);
        archive
    };
    let mut cases = Vec::new();
    for zeros in [0, 1, 511, 512, 513, 1023, 1024, 1025, 1536, 10_240] {
        for count in 1..=2 {
            let case = |behind, more: Vec<u8>| Case {
                archive: [of(count, zeros), more].concat(),
                members: count,
                zeros,
                behind,
            };
            cases.push(case(Behind::Nothing, Vec::new()));
            if zeros >= 512 {
                for end in [0, 512, 1024, 2048] {
                    cases.push(case(Behind::Members(3, end), of(3, end)));
                }
                cases.push(case(Behind::Rubbish, vec![b'r'; 100]));
                cases.push(case(Behind::Rubbish, vec![b'r'; 5000]));
            }
        }
    }
    cases
}

/// Returns the number of yielded members, and the error after them.
fn expected(case: &Case, marked: bool, trailing: Trailing) -> (usize, Option<ErrorKind>) {
    let end = |zeros| (marked && zeros < 1024).then_some(ErrorKind::Truncated);
    match (case.behind, trailing) {
        // A part of a block may be that of a header.
        (Behind::Nothing, _) if (1..512).contains(&case.zeros) => {
            (case.members, Some(ErrorKind::Truncated))
        }
        (Behind::Nothing, _) => (case.members, end(case.zeros)),
        (_, Trailing::Refuse) => (case.members, Some(ErrorKind::Corrupt)),
        // A single block is no marker.
        _ if case.zeros < 1024 => (case.members, Some(ErrorKind::Corrupt)),
        (_, Trailing::Ignore) => (case.members, None),
        // Archives begin with a block.
        (Behind::Members(more, zeros), _) if case.zeros.is_multiple_of(512) => {
            (case.members + more, end(zeros))
        }
        _ => (case.members, Some(ErrorKind::Corrupt)),
    }
}

fn counted(items: Vec<datapipes::Result<datapipes::Item<File>>>) -> (usize, Option<ErrorKind>) {
    let errors: Vec<_> = items
        .iter()
        .filter_map(|item| item.as_ref().err().map(|error| error.kind()))
        .collect();
    assert!(errors.len() <= 1);
    (items.len() - errors.len(), errors.first().copied())
}

#[test]
fn row_91_how_an_archive_must_end_means_the_same_wherever_it_is_read() {
    for (number, case) in some_of(cases().into_iter().enumerate()) {
        for (marked, trailing) in [false, true]
            .into_iter()
            .flat_map(|marked| KINDS.map(|kind| (marked, kind)))
        {
            let expected = expected(&case, marked, trailing);
            let what = format!("case {number}, {} zeros, {marked} {trailing:?}", case.zeros);
            let (mut tar, mut untar, mut stream) = (Tar::new(), Untar::new(), StreamUntar::new());
            if marked {
                (tar, untar, stream) =
                    (tar.require_end(), untar.require_end(), stream.require_end());
            }
            let tar = tar.trailing(trailing);
            let (untar, stream) = (untar.trailing(trailing), stream.trailing(trailing));

            let archive = Bytes::from(case.archive.clone());
            let whole = counted(apply(&untar, vec![File::new("x.tar", archive.clone())]));
            assert_eq!(whole, expected, "{what}");
            let packed = File::new("x.tar.gz", gzip(&archive));
            assert_eq!(
                counted(apply(&untar, vec![packed])),
                expected,
                "packed, {what}"
            );
            for piece in [1, 100, 512, 5000] {
                for len in [Some(archive.len() as u64), None] {
                    let store = super::stream::Arrives::new(archive.clone(), piece).announced(len);
                    let refer = FileRef::stored(Arc::new(store), "k", None);
                    assert_eq!(
                        counted(apply(&stream, vec![refer])),
                        expected,
                        "in pieces of {piece}, {what}"
                    );
                }
            }

            let store = InMemory::from_iter([("x.tar", archive.clone())]);
            let indices = [
                TarIndex::of_with(&archive, &tar),
                block_on(TarIndex::scan_with(&store, "x.tar", &tar)),
            ];
            for index in indices {
                match expected {
                    (_, Some(kind)) => assert_eq!(index.unwrap_err().kind(), kind, "{what}"),
                    (members, None) => {
                        let index = index.unwrap();
                        assert_eq!(TarIndex::from_json(index.to_json()).unwrap(), index);
                        let archive = IndexedTar::new(store.clone(), "x.tar", index);
                        let files = Indexed::new(archive).fetch().collect().unwrap();
                        let read = apply(&untar, vec![File::new("x.tar", case.archive.clone())]);
                        let read: Vec<File> = read
                            .into_iter()
                            .map(|file| file.unwrap().into_inner())
                            .collect();
                        assert_eq!((files.len(), &files), (members, &read), "{what}");
                    }
                }
            }
        }
    }
}

/// Checks that global headers of an archive do not affect the next one.
#[test]
fn global_headers_end_with_their_archive() {
    let one = [
        super::member(b'g', "g", b"9 path=p\n"),
        tar_of(&[("a.txt", b"one")]),
    ]
    .concat();
    let both = [one, tar_of(&[("b.txt", b"two")])].concat();
    let items = apply(
        &Untar::new().trailing(Trailing::Read),
        vec![File::new("x.tar", both)],
    );
    let names: Vec<_> = items
        .into_iter()
        .map(|item| item.unwrap().into_inner().name)
        .collect();
    assert_eq!(
        names.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["p", "b.txt"]
    );
}

/// Checks that data after the ignored part are not yielded, but that errors of the stream around
/// them are.
#[test]
fn row_96_a_damaged_stream_is_an_error_behind_what_is_ignored() {
    let long = [tar_of(&[("a.txt", b"one")]), vec![b'r'; 3 << 20]].concat();
    let mut packed = gzip(&long);
    let reads = |packed: &[u8]| {
        let pipe = Untar::new().trailing(Trailing::Ignore);
        counted(apply(&pipe, vec![File::new("x.tar.gz", packed.to_vec())]))
    };
    assert_eq!(reads(&packed), (1, None));
    *packed.last_mut().unwrap() ^= 1;
    assert_eq!(reads(&packed), (1, Some(ErrorKind::Corrupt)));
}
