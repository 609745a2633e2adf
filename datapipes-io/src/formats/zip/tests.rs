//! Archives of Python's zipfile and of Info-ZIP, and errors in archives.

use std::io::{Cursor, Write};

use datapipes::{ErrorKind, Graph};
use flate2::Crc;

use super::*;
use crate::FileGraphExt;
use crate::formats::compression::tests::refused;
use crate::testing::{check_format, read_all};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/data/zip-", $name, ".zip")) as &[u8]
    };
}

const PYTHON: &[u8] = data!("python");

fn text() -> Vec<u8> {
    b"some text, and some text again. ".repeat(40)
}

/// Returns the files that all archives contain.
fn files() -> [(&'static str, Vec<u8>); 4] {
    let all = (0..=255).collect();
    [
        ("folder/a.txt", b"one".to_vec()),
        ("folder/empty.cls", vec![]),
        ("long.txt", text()),
        ("é/ü.bin", all),
    ]
}

fn read(archive: &[u8]) -> Vec<Result<File>> {
    read_all(Unzip::new(), archive.to_vec())
}

fn error(archive: &[u8]) -> String {
    let read = read(archive);
    assert_eq!(read.len(), 1);
    read[0].as_ref().unwrap_err().to_string()
}

/// A member, written by hand so that each field can be wrong.
#[derive(Clone)]
struct Made {
    name: &'static str,
    data: Vec<u8>,
    method: u16,
    flags: u16,
    size: u32,
    crc: u32,
    /// Bytes after the data.
    behind: Vec<u8>,
    local_name: Option<&'static str>,
    local_size: Option<u32>,
    extra: Vec<u8>,
    at: Option<u32>,
}

fn made(name: &'static str, data: &[u8]) -> Made {
    Made {
        name,
        data: data.to_vec(),
        method: 0,
        flags: 0x800,
        size: data.len() as u32,
        crc: crc(data),
        behind: vec![],
        local_name: None,
        local_size: None,
        extra: vec![],
        at: None,
    }
}

fn crc(data: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(data);
    crc.sum()
}

fn deflate(data: &[u8]) -> Vec<u8> {
    let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    deflate.write_all(data).unwrap();
    deflate.finish().unwrap()
}

fn deflated(name: &'static str, data: &[u8]) -> Made {
    Made {
        method: 8,
        data: deflate(data),
        ..Made {
            size: data.len() as u32,
            ..made(name, data)
        }
    }
}

fn pack(members: &[Made]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let u16s = |to: &mut Vec<u8>, all: &[u16]| all.iter().for_each(|n| to.extend(n.to_le_bytes()));
    let u32s = |to: &mut Vec<u8>, all: &[u32]| all.iter().for_each(|n| to.extend(n.to_le_bytes()));
    for member in members {
        let (at, packed) = (out.len() as u32, member.data.len() as u32);
        let local_name = member.local_name.unwrap_or(member.name);
        out.extend(b"PK\x03\x04");
        u16s(&mut out, &[20, member.flags, member.method, 0, 0x21]);
        u32s(
            &mut out,
            &[member.crc, packed, member.local_size.unwrap_or(member.size)],
        );
        u16s(&mut out, &[local_name.len() as u16, 0]);
        out.extend(local_name.as_bytes());
        out.extend(&member.data);
        out.extend(&member.behind);
        directory.extend(b"PK\x01\x02");
        u16s(
            &mut directory,
            &[20, 20, member.flags, member.method, 0, 0x21],
        );
        u32s(&mut directory, &[member.crc, packed, member.size]);
        u16s(
            &mut directory,
            &[member.name.len() as u16, member.extra.len() as u16, 0, 0, 0],
        );
        u32s(&mut directory, &[0, member.at.unwrap_or(at)]);
        directory.extend(member.name.as_bytes());
        directory.extend(&member.extra);
    }
    let begin = out.len() as u32;
    out.extend(&directory);
    out.extend(b"PK\x05\x06");
    u16s(
        &mut out,
        &[0, 0, members.len() as u16, members.len() as u16],
    );
    u32s(&mut out, &[directory.len() as u32, begin]);
    u16s(&mut out, &[0]);
    out
}

#[test]
fn row_100_pythons_archives() {
    for archive in [
        PYTHON,
        data!("python-zip64"),
        data!("python-stream"),
        data!("python-stream-zip64"),
    ] {
        let read: Vec<File> = read(archive).into_iter().map(Result::unwrap).collect();
        let expected = ["stored/", "deflated/"]
            .map(|prefix| files().map(|(name, data)| File::new(format!("{prefix}{name}"), data)));
        assert_eq!(read, expected.concat());
    }
}

#[test]
fn row_100_info_zips_archives() {
    for archive in [data!("info-deflated"), data!("info-stored")] {
        let mut read: Vec<File> = read(archive).into_iter().map(Result::unwrap).collect();
        read.sort_by(|a, b| a.name.cmp(&b.name));
        // The link is left out.
        assert_eq!(read, files().map(|(name, data)| File::new(name, data)));
    }
    for archive in [data!("info-stream"), data!("info-stream-zip64")] {
        let read: Vec<File> = read(archive).into_iter().map(Result::unwrap).collect();
        assert_eq!(read, [File::new("-", text())]);
    }
}

#[test]
fn row_100_encrypted_and_other_methods_are_unsupported_and_the_next_follow() {
    let read_it = read(data!("info-encrypted"));
    assert_eq!(read_it.len(), 4);
    let empty = |file: &File| file.data.is_empty();
    for file in read_it {
        match file {
            Ok(file) => assert!(
                empty(&file),
                "only what is empty is not encrypted: {file:?}"
            ),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().contains("encrypted"), "{error}");
            }
        }
    }
    for (archive, method) in [
        (data!("python-bzip2"), "12, bzip2"),
        (data!("python-lzma"), "14, lzma"),
    ] {
        let read = read(archive);
        assert_eq!(
            read.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true]
        );
        let error = read[1].as_ref().unwrap_err().to_string();
        assert!(
            error.contains("0:0/other.txt: unsupported: compressed by method"),
            "{error}"
        );
        assert!(error.contains(method), "{error}");
    }
}

#[test]
fn stored_members_are_slices() {
    let archive = Bytes::from_static(PYTHON);
    let inside = |file: &File| archive.as_ptr_range().contains(&file.data.as_ptr());
    let read = read_all(Unzip::new(), archive.clone());
    assert!(inside(read[0].as_ref().unwrap()) && !inside(read[6].as_ref().unwrap()));
}

#[test]
fn row_100_cut_at_every_byte() {
    for archive in [data!("python-stream-zip64"), data!("info-stored")] {
        for cut in 0..archive.len() {
            let read = read(&archive[..cut]);
            assert!(read.len() == 1 && read[0].is_err(), "cut at {cut}");
        }
    }
    assert!(error(&PYTHON[..2000]).contains("truncated: no end of the directory"));
    assert!(error(b"").contains("truncated: no end of the directory"));
    assert!(error(&[7; 100]).contains("corrupt: no zip archive: it begins with \"\\x07"));
}

#[test]
fn row_100_a_flipped_bit_is_seen_or_harmless() {
    let whole: Vec<File> = read(PYTHON).into_iter().map(Result::unwrap).collect();
    for at in 0..PYTHON.len() {
        let mut data = PYTHON.to_vec();
        data[at] ^= 1 << (at % 8);
        let read = read(&data);
        if read.iter().all(Result::is_ok) {
            let read: Vec<File> = read.into_iter().map(Result::unwrap).collect();
            assert!(read == whole, "byte {at}");
        }
    }
}

#[test]
fn row_100_wrong_sizes_and_sums() {
    let long = text();
    let good = [made("a", b"one"), deflated("b", &long)];
    assert!(read(&pack(&good)).iter().all(Result::is_ok));
    let says = |bad: Made, what: &str| {
        let read = read(&pack(&[made("first", b"1"), bad, made("last", b"2")]));
        assert_eq!(
            read.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true],
            "{what}"
        );
        let error = read[1].as_ref().unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    };
    let [stored, packed] = good;
    says(
        Made {
            crc: 7,
            ..stored.clone()
        },
        "its CRC is 7a6c86f1, not 00000007",
    );
    says(
        Made {
            crc: 7,
            ..packed.clone()
        },
        "its CRC is",
    );
    says(
        Made {
            size: 4,
            ..stored.clone()
        },
        "stored as 4 bytes, and as 3",
    );
    says(
        Made {
            size: 1279,
            ..packed.clone()
        },
        "inflates to more than the 1279 bytes",
    );
    says(
        Made {
            size: 1281,
            ..packed.clone()
        },
        "inflates to 1280 bytes, not the 1281",
    );
    says(
        Made {
            size: u32::MAX - 1,
            ..packed.clone()
        },
        "more than the",
    );
    says(
        Made {
            local_size: Some(9),
            ..stored.clone()
        },
        "3 bytes of 9",
    );
    says(
        Made {
            local_name: Some("x"),
            ..stored.clone()
        },
        "it is called \"x\" there",
    );
    says(
        Made {
            flags: 1,
            ..stored.clone()
        },
        "encrypted",
    );
    says(
        Made {
            method: 93,
            ..stored.clone()
        },
        "93, zstd",
    );
    says(
        Made {
            name: "a\0b",
            ..stored.clone()
        },
        "zero byte",
    );
    let cut = Made {
        data: packed.data[..packed.data.len() - 3].to_vec(),
        ..packed.clone()
    };
    says(cut, "its deflated data ends early");
    let more = Made {
        data: [&packed.data[..], b"more"].concat(),
        ..packed.clone()
    };
    says(more, "4 bytes after its deflated data");
    says(
        Made {
            data: vec![0xff; 9],
            ..packed.clone()
        },
        "deflated data at byte 0 of 9",
    );
    // A data descriptor contains the values of the directory, in one of its four forms.
    let sums =
        |crc: u32, packed: u32, size: u32| [crc, packed, size].map(u32::to_le_bytes).concat();
    let right = sums(packed.crc, packed.data.len() as u32, packed.size);
    for behind in [right.clone(), [b"PK\x07\x08", &right[..]].concat()] {
        let with = Made {
            flags: 0x808,
            behind,
            ..packed.clone()
        };
        assert!(read(&pack(&[with])).iter().all(Result::is_ok));
    }
    says(
        Made {
            flags: 0x808,
            behind: sums(packed.crc, 1, packed.size),
            ..packed.clone()
        },
        "after its data",
    );
    says(
        Made {
            flags: 0x808,
            ..packed
        },
        "after its data",
    );
}

#[test]
fn row_100_unchecked_leaves_out_the_sums_of_stored_members_only() {
    let long = text();
    let bad = [
        Made {
            crc: 7,
            ..made("a", b"one")
        },
        Made {
            crc: 7,
            ..deflated("b", &long)
        },
    ];
    let read = read_all(Unzip::new().unchecked(), pack(&bad));
    assert_eq!(
        read.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false]
    );
}

#[test]
fn row_100_duplicates_overlaps_and_lying_directories() {
    let (a, b) = (made("a", b"one"), made("b", b"two"));
    let twice = read(&pack(&[a.clone(), b.clone(), made("a", b"three")]));
    assert_eq!(
        twice.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert!(
        twice[2]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("member 2 has the name of member 0")
    );

    // Two members share their data, as in a bomb.
    let shared = pack(&[
        a.clone(),
        Made {
            at: Some(0),
            ..b.clone()
        },
    ]);
    assert!(
        error(&shared).contains("reaches into what begins at byte"),
        "{}",
        error(&shared)
    );
    let behind = pack(&[
        a.clone(),
        Made {
            at: Some(60_000),
            ..b.clone()
        },
    ]);
    assert!(error(&behind).contains("member \"b\": it begins after the directory"));
    let elsewhere = [
        a.clone(),
        Made {
            at: Some(38),
            behind: vec![0; 10],
            ..b.clone()
        },
    ];
    assert!(
        read(&pack(&elsewhere))[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("no member begins at byte 38")
    );

    let good = pack(&[a.clone(), b.clone()]);
    let end = good.len() - 22;
    let with = |at: usize, value: &[u8]| {
        let mut data = good.clone();
        data[end + at..][..value.len()].copy_from_slice(value);
        error(&data)
    };
    assert!(with(8, &[255, 255, 255, 255]).contains("65535 members stated, in a directory of"));
    assert!(with(8, &[1, 0, 1, 0]).contains("bytes after the last of 1 entries"));
    assert!(with(8, &[1, 0]).contains("several volumes"));
    assert!(with(4, &[1, 0]).contains("several volumes"));
    assert!(with(12, &[1]).contains("its directory of 1 bytes should begin at"));
    assert!(with(16, &[1, 0, 0, 0]).contains("should begin at byte 1"));
    assert!(error(&[b"before", &good[..]].concat()).contains("something was put before"));
    assert!(error(&[&good[..], b"after"].concat()).contains("something was put after"));

    let no_wide = Made {
        extra: vec![1, 0, 9, 0, 1],
        ..a.clone()
    };
    assert!(error(&pack(&[no_wide])).contains("extra field longer than"));
    let field = [1, 0, 0, 0];
    assert!(
        error(&pack(&[Made {
            extra: [field, field].concat(),
            ..a.clone()
        }]))
        .contains("two zip64")
    );
    assert!(
        error(&pack(&[Made {
            size: u32::MAX,
            ..a
        }]))
        .contains("zip64 field that is not there")
    );
}

#[test]
fn row_100_two_ends_of_the_directory() {
    // The second end is in the comment of the first.
    let mut data = pack(&[made("a", b"one")]);
    let len = data.len();
    data[len - 2] = 22;
    data.extend(b"PK\x05\x06");
    data.extend([0; 18]);
    assert!(error(&data).contains("two ends of the directory"));
    // The end at any position, with a comment of any length.
    for len in [
        0, 1, 1000, 1001, 1002, 1003, 1004, 1023, 1024, 1025, 2046, 65_534, 65_535,
    ] {
        let mut data = pack(&[made("a", b"one")]);
        let at = data.len() - 2;
        data[at..].copy_from_slice(&(len as u16).to_le_bytes());
        data.resize(at + 2 + len, 7);
        assert!(read(&data).iter().all(Result::is_ok), "{len}");
        data.push(7);
        assert!(read(&data)[0].is_err(), "{len}");
    }
    // A signature in a comment, with another length, is a part of the comment.
    let mut data = pack(&[made("a", b"one")]);
    data[len - 2] = 22;
    data.extend(b"PK\x05\x06");
    data.extend([1; 18]);
    assert!(read(&data).iter().all(Result::is_ok));
}

#[test]
fn row_98_bombs() {
    let zeros = vec![0; 3 << 20];
    let archive = pack(&[deflated("a", &zeros), deflated("b", &zeros)]);
    assert!(archive.len() < 10_000);
    let read = |bytes: u64, ratio: u64| {
        read_all(Unzip::new().max_expansion(bytes, ratio), archive.clone())
            .into_iter()
            .map(|file| file.map(drop).map_err(|error| error.kind()))
            .collect::<Vec<_>>()
    };
    assert_eq!(read(6 << 20, 1100), [Ok(()), Ok(())]);
    assert_eq!(read(5 << 20, 1100), [Ok(()), Err(ErrorKind::Limit)]);
    assert_eq!(read(6 << 20, 500), [Err(ErrorKind::Limit); 2]);
}

#[test]
fn row_98_what_a_member_inflates_to_is_limited_for_the_loader() {
    let zeros = vec![0; 3 << 20];
    let archive = pack(&[deflated("a", &zeros), deflated("b", &zeros)]);
    let files = || Graph::from_vec(vec![File::new("a.zip", archive.clone())]);
    // Members are items of their own: their sum has only the limits of the format.
    assert_eq!(refused(files().read_as(Unzip::new()), 3 << 20), "");
    let error = refused(files().read_as(Unzip::new()), 2 << 20);
    assert!(
        error.ends_with("the loader allows 2097152 (`max_inflated`)"),
        "{error}"
    );
}

#[test]
fn archives_of_archives_and_empty_ones() {
    let empty = pack(&[]);
    assert!(read(&empty).is_empty());
    let inner = pack(&[made("a", b"one")]);
    let outer = pack(&[
        made("inner.zip", &inner),
        made("../../etc/passwd", b"x"),
        made("/root", b"y"),
    ]);
    let names: Vec<_> = read(&outer)
        .into_iter()
        .map(|file| file.unwrap().name)
        .collect();
    assert_eq!(
        names.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["inner.zip", "../../etc/passwd", "/root"]
    );
}

#[test]
fn many_members_are_found_quickly() {
    let members: Vec<Made> = vec![made("a", b""); 30_000];
    let read = read(&pack(&members));
    assert_eq!(read.iter().filter(|file| file.is_err()).count(), 29_999);
}

#[test]
fn another_writers_archive_is_read_as_by_its_own_reader() {
    let mut zip = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    for n in 0..20u32 {
        let method = [
            ::zip::CompressionMethod::Stored,
            ::zip::CompressionMethod::Deflated,
        ][n as usize % 2];
        let options = ::zip::write::SimpleFileOptions::default()
            .compression_method(method)
            .large_file(n % 3 == 0)
            .with_alignment(1 << (n % 7));
        zip.start_file(format!("{n}"), options).unwrap();
        zip.write_all(&n.to_le_bytes().repeat(n as usize * 100))
            .unwrap();
    }
    let data = zip.finish().unwrap().into_inner();
    let mut other = ::zip::ZipArchive::new(Cursor::new(&data)).unwrap();
    let ours = read(&data);
    assert_eq!(ours.len(), other.len());
    for (n, file) in ours.into_iter().enumerate() {
        let (file, mut content) = (file.unwrap(), Vec::new());
        std::io::Read::read_to_end(&mut other.by_index(n).unwrap(), &mut content).unwrap();
        assert_eq!(
            (&*file.name, &file.data[..]),
            (&*n.to_string(), &content[..])
        );
    }
}

#[test]
fn survives_what_may_be_in_an_archive() {
    assert_eq!(check_format(Unzip::new, PYTHON), 8);
    assert_eq!(check_format(Unzip::new, data!("info-deflated")), 4);
}
