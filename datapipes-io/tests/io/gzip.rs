use std::io::Write;

use datapipes::{Error, ErrorKind};
use datapipes_io::{Decompress, File, Untar};

use crate::{apply, kinds, names, parts, tar_of};

fn pack(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn gunzip(data: Vec<u8>) -> (Vec<File>, Vec<Error>) {
    parts(apply(&Decompress::new(), vec![File::new("a.txt.gz", data)]))
}

fn untar(data: Vec<u8>) -> (Vec<File>, Vec<Error>) {
    parts(apply(&Untar::new(), vec![File::new("a.tgz", data)]))
}

#[test]
fn names_lose_their_ending() {
    let input = ["a.gz", "b.tgz", "c"]
        .map(|name| File::new(name, pack(b"x")))
        .to_vec();
    let (files, errors) = parts(apply(&Decompress::new(), input));
    assert!(errors.is_empty());
    assert_eq!(names(&files), ["a", "b.tar", "c"]);
}

#[test]
fn a_packed_archive_is_opened_whatever_its_name() {
    let (files, errors) = untar(pack(&tar_of(&[("a", b"one"), ("b", b"two")])));
    assert!(errors.is_empty());
    assert_eq!(names(&files), ["a", "b"]);
}

#[test]
fn row_96_all_members_are_read() {
    let (files, errors) = gunzip([pack(b"one"), pack(b""), pack(b"two")].concat());
    assert!(errors.is_empty());
    assert_eq!(files[0].data, "onetwo");
}

#[test]
fn row_96_cut_at_every_byte() {
    let first = pack(b"some text, some more text").len();
    let data = [
        pack(b"some text, some more text"),
        pack(b"and a second member"),
    ]
    .concat();
    for cut in 0..data.len() {
        let (files, errors) = gunzip(data[..cut].to_vec());
        // A cut between two members cannot be detected.
        if cut == first {
            assert_eq!(files.len(), 1);
        } else {
            assert_eq!((files.len(), errors.len()), (0, 1), "cut at {cut}");
        }
    }
}

#[test]
fn row_96_cut_at_every_byte_of_a_packed_archive() {
    let data = pack(&tar_of(&[("a", b"one"), ("b", &[3; 700])]));
    let (whole, _) = untar(data.clone());
    for cut in 0..data.len() {
        let (files, errors) = untar(data[..cut].to_vec());
        // Archive members that were inflated before the cut come before the error.
        assert!(whole.starts_with(&files), "cut at {cut}");
        assert_eq!(errors.len(), 1, "cut at {cut}");
    }
}

#[test]
fn row_96_a_wrong_checksum_is_found_behind_the_end_of_the_tar() {
    let mut data = pack(&tar_of(&[("a", b"one")]));
    let (whole, _) = untar(data.clone());
    let crc = data.len() - 8;
    for byte in crc..data.len() {
        data[byte] ^= 1;
        let (files, errors) = untar(data.clone());
        // A gzip member's checksum comes after its data, so that files are delivered before it is
        // checked.
        assert!(whole.starts_with(&files));
        assert_eq!(kinds(&errors), [ErrorKind::Corrupt]);
        data[byte] ^= 1;
    }
}

#[test]
fn row_96_no_flipped_bit_changes_the_content() {
    let data = pack(b"some text that matters, and some more of it");
    let (whole, _) = gunzip(data.clone());
    for byte in 0..data.len() {
        for bit in 0..8 {
            let mut flipped = data.clone();
            flipped[byte] ^= 1 << bit;
            let (files, errors) = gunzip(flipped);
            assert!(files == whole || errors.len() == 1, "byte {byte} bit {bit}");
        }
    }
}

#[test]
fn row_96_what_follows_the_end_is_an_error() {
    for trailing in [&b"x"[..], b"garbage after the end", &[0; 512], b"\x1f\x8b"] {
        let (files, errors) = gunzip([&pack(b"one"), trailing].concat());
        assert_eq!((files.len(), errors.len()), (0, 1), "{trailing:?}");
    }
}

#[test]
fn row_98_bombs_are_refused() {
    let bomb = pack(&vec![0; 8 << 20]);
    let refused =
        |pipe: Decompress| kinds(&parts(apply(&pipe, vec![File::new("b.gz", bomb.clone())])).1);
    assert_eq!(refused(Decompress::new()), []);
    assert_eq!(
        refused(Decompress::new().max_expansion(4 << 20, 2000)),
        [ErrorKind::Limit]
    );
    assert_eq!(
        refused(Decompress::new().max_expansion(1 << 30, 100)),
        [ErrorKind::Limit]
    );
    let pipe = Untar::new().max_expansion(1 << 20, 2000);
    assert_eq!(
        kinds(&parts(apply(&pipe, vec![File::new("b.tgz", bomb.clone())])).1),
        [ErrorKind::Limit]
    );
}

#[test]
fn row_98_many_empty_members_end() {
    let (files, errors) = gunzip(pack(b"").repeat(100_000));
    assert!(errors.is_empty());
    assert_eq!(files[0].data, "");
}

#[test]
fn row_106_other_content_is_refused() {
    assert_eq!(
        kinds(&gunzip(b"plain text".to_vec()).1),
        [ErrorKind::Corrupt]
    );
    assert_eq!(kinds(&gunzip(Vec::new()).1), [ErrorKind::Truncated]);
}
