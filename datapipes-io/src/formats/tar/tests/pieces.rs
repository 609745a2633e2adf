//! Archives in pieces of any size yield the same as whole archives.

use bytes::Bytes;
use proptest::prelude::*;

use super::super::walk::{Step, Walker};
use super::{Untar, apply, gunzip, gzip, mixed, real, shown, tar_of, untar};
use crate::File;
use crate::formats::Codec;

/// Runs a walker over an archive in pieces of these sizes, repeated, and returns its output.
fn walk(
    archive: &[u8],
    sizes: &[usize],
    len: Option<u64>,
) -> Vec<Result<(File, u64, u64), String>> {
    let archive = Bytes::copy_from_slice(archive);
    let (mut walker, mut rest, mut sizes) =
        (Walker::new(len), archive.clone(), sizes.iter().cycle());
    let mut found = Vec::new();
    loop {
        match walker.next() {
            Step::File(file, place) => {
                assert_eq!(place.size, file.data.len() as u64);
                assert_eq!(
                    archive[place.offset as usize..][..file.data.len()],
                    file.data
                );
                found.push(Ok((file, place.start, place.offset)));
            }
            Step::Refused(name, error) => found.push(Err(format!("{name}: {error}"))),
            Step::Broken(error) => {
                found.push(Err(error.to_string()));
                assert!(matches!(walker.next(), Step::End), "it is asked again");
                return found;
            }
            Step::More if rest.is_empty() => walker.end(),
            Step::More => {
                let size = sizes
                    .next()
                    .map_or(rest.len(), |&size| size.min(rest.len()));
                walker.push(rest.split_to(size));
            }
            Step::End => return found,
        }
    }
}

fn whole(archive: &[u8]) -> Vec<Result<(File, u64, u64), String>> {
    let found = walk(archive, &[], Some(archive.len() as u64));
    // In the form of the pipe.
    let of_pipe = shown(&untar(archive.to_vec()));
    assert_eq!(found.len(), of_pipe.len());
    for (found, of_pipe) in found.iter().zip(of_pipe) {
        match (found, of_pipe) {
            (Ok((file, ..)), Ok((_, other))) => assert_eq!(*file, other),
            (Err(own), Err(other)) => {
                let cause = own.split_once(": ").map_or(&**own, |(_, cause)| cause);
                assert!(other.ends_with(cause), "{own} and {other}");
            }
            other => panic!("{other:?}"),
        }
    }
    found
}

#[test]
fn pieces_of_every_size_give_what_the_whole_gives() {
    let archives =
        real()
            .into_iter()
            .map(|(_, archive)| archive)
            .chain([mixed(), vec![], vec![0; 3000]]);
    for archive in archives {
        let whole = whole(&archive);
        for size in [1, 2, 7, 100, 511, 512, 513, 1000, 1024, 4096] {
            for len in [None, Some(archive.len() as u64)] {
                assert_eq!(walk(&archive, &[size], len), whole, "in pieces of {size}");
            }
        }
    }
    assert_eq!(whole(&mixed()).len(), 6);
}

#[test]
fn row_91_cut_at_every_byte_in_pieces() {
    let small = tar_of(&[("a.txt", &[1; 600]), (&"n".repeat(150), b"two")]);
    let cuts = |archive: &[u8], step| {
        (0..archive.len())
            .step_by(step)
            .map(|cut| archive[..cut].to_vec())
            .collect()
    };
    let all: [Vec<Vec<u8>>; 2] = [cuts(&small, 1), cuts(&mixed(), 11)];
    for cut in all.iter().flatten() {
        let whole = whole(cut);
        let few = if cut.len() % 64 < 2 { 3 } else { 300 };
        for size in [1000, 512, few] {
            assert_eq!(
                walk(cut, &[size], Some(cut.len() as u64)),
                whole,
                "cut at {}",
                cut.len()
            );
        }
        assert_eq!(walk(cut, &[777], None), whole, "cut at {}", cut.len());
    }
}

#[test]
fn row_96_a_packed_archive_cut_at_every_byte() {
    let packed = gzip(&tar_of(&[("a", b"one"), ("b", &[3; 700])]));
    let whole = shown(&untar(packed.clone()));
    assert_eq!(whole.len(), 2);
    for cut in 0..packed.len() {
        let mut cut_off = shown(&untar(packed[..cut].to_vec()));
        let error = cut_off.pop().unwrap().unwrap_err();
        assert!(error.starts_with("in0: "), "{error}");
        assert!(whole.starts_with(&cut_off), "cut at {cut}");
    }
}

#[test]
fn row_96_what_is_wrong_behind_the_end_of_a_packed_archive_is_an_error() {
    let packed = gzip(&tar_of(&[("a", b"one")]));
    let check = |data: Vec<u8>, what: &str| {
        let found = shown(&untar(data));
        let error = found.last().unwrap().as_ref().unwrap_err();
        assert!(
            error.starts_with("in0: ") && error.contains("gzip"),
            "{what}: {error}"
        );
    };
    for byte in packed.len() - 8..packed.len() {
        let mut wrong = packed.clone();
        wrong[byte] ^= 1;
        check(wrong, "a wrong checksum");
    }
    check([&packed[..], b"more"].concat(), "trailing bytes");
    check([&packed[..], &packed[..20]].concat(), "half a member");
    let twice = [gzip(&gunzip(&packed)[..700]), gzip(&gunzip(&packed)[700..])].concat();
    assert_eq!(shown(&untar(twice)), shown(&untar(packed)));
}

/// Covers every codec that is recognized.
#[test]
fn row_96_to_98_packed_archives_of_several_pieces_are_read_to_their_ends() {
    let archive = tar_of(&[("a", &[1; 3_000_000]), ("b", b"x"), ("c", &[2; 200_000])]);
    let mut packed = vec![gzip(&archive)];
    #[cfg(feature = "zstd")]
    packed.push(zstd::encode_all(&archive[..], 3).unwrap());
    #[cfg(feature = "bzip2")]
    {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &archive).unwrap();
        packed.push(encoder.finish().unwrap());
    }
    assert_eq!(Codec::of_magic(&packed[0]), Some(Codec::Gzip));
    for packed in packed
        .iter()
        .filter(|packed| Codec::of_magic(packed).is_some())
    {
        let pipe = Untar::new().max_expansion(1 << 30, 1 << 20);
        let read = |packed: &[u8]| shown(&apply(&pipe, vec![File::new("x", packed.to_vec())]));
        let whole = read(packed);
        assert_eq!(whole, shown(&untar(archive.clone())));
        let mut cut = read(&packed[..packed.len() - 3]);
        assert!(
            cut.pop()
                .unwrap()
                .unwrap_err()
                .starts_with("in0: truncated: ")
        );
        assert!(whole.starts_with(&cut));
        let limit = Untar::new().max_expansion(2 << 20, 1 << 20);
        let bomb = shown(&apply(&limit, vec![File::new("x", packed.clone())]));
        assert!(
            bomb.last()
                .unwrap()
                .as_ref()
                .unwrap_err()
                .starts_with("in0: limit reached: "),
            "{bomb:?}"
        );
    }
}

#[test]
fn row_106_a_first_name_that_looks_compressed_is_a_name() {
    for name in ["BZh9.txt", "PK\u{3}\u{4}"] {
        let found = shown(&untar(tar_of(&[(name, b"one")])));
        assert_eq!(found[0].as_ref().unwrap().1, File::new(name, "one"));
    }
    // The name begins with the first bytes of gzip, and is not UTF-8.
    let mut archive = tar_of(&[("12.txt", b"one")]);
    archive[..2].copy_from_slice(b"\x1f\x8b");
    super::sign(&mut archive[..512]);
    assert_eq!(
        &*shown(&untar(archive))[0].as_ref().unwrap().1.name,
        "\x1f\\x8b.txt"
    );
}

#[test]
fn row_98_many_empty_members_and_lying_sizes_take_no_memory() {
    let empty = [super::member(b'0', "a", b"").repeat(100_000), vec![0; 1024]].concat();
    assert_eq!(walk(&empty, &[1 << 20], None).len(), 100_000);
    // A header of 1 TiB is trusted only as far as there are bytes.
    let mut lying = super::member(b'0', "a", b"");
    lying[124..136].copy_from_slice(b"\x80\0\0\0\0\0\x01\0\0\0\0\0");
    super::sign(&mut lying);
    lying.extend([7; 5000]);
    let expected = "truncated: member \"a\" has 5000 of 1099511627776 bytes; at byte 512 of 5512, before the first member";
    for len in [None, Some(5512)] {
        let found = walk(&lying, &[700], len);
        assert_eq!(found, [Err(expected.to_owned())]);
    }
}

#[test]
fn a_member_in_one_piece_is_a_slice_of_it_and_another_is_copied_once() {
    let archive = tar_of(&[("a", &[1; 100]), ("b", &[2; 100]), ("c", &[3; 100])]);
    let pieces = [
        Bytes::copy_from_slice(&archive[..1600]),
        Bytes::copy_from_slice(&archive[1600..]),
    ];
    let is_slice = |data: &Bytes| {
        pieces
            .iter()
            .any(|piece| piece.as_ptr_range().contains(&data.as_ptr()))
    };
    let (mut walker, mut left, mut found) = (Walker::new(None), pieces.iter(), Vec::new());
    loop {
        match walker.next() {
            Step::File(file, _) => found.push(is_slice(&file.data)),
            Step::More => match left.next() {
                Some(piece) => walker.push(piece.clone()),
                None => walker.end(),
            },
            Step::End => break,
            _ => panic!(),
        }
    }
    // The data of `b` begin at byte 1536.
    assert_eq!(found, [true, false, true]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_of_any_size_give_what_the_whole_gives_also_of_damaged_archives(
        sizes in prop::collection::vec(1usize..2000, 1..6),
        places in prop::collection::vec((0usize..100_000, any::<u8>()), 0..4),
        is_signed in any::<bool>(),
    ) {
        let mut archive = mixed();
        for (place, value) in places {
            let len = archive.len();
            archive[place % len] = value;
        }
        if is_signed {
            archive.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar").for_each(super::sign);
        }
        let whole = whole(&archive);
        prop_assert_eq!(&walk(&archive, &sizes, Some(archive.len() as u64)), &whole);
        // If the length is unknown, it is not in the messages.
        let unknown = walk(&archive, &sizes, None);
        prop_assert_eq!(unknown.len(), whole.len());
        for (own, other) in unknown.iter().zip(&whole) {
            prop_assert!(own == other || own.is_err() && other.is_err());
        }
    }
}
