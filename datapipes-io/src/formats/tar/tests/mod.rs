//! Archives in pieces, by index, from stores and written; whole archives are in `tests/io/tar.rs`.

mod ends;
mod index;
mod pieces;
mod stream;
mod writers;

use std::io::Read;

use bytes::Bytes;
use datapipes::{Context, Error, Item, Items, Origin, Pipe, Result};
use futures::StreamExt;
use futures::executor::block_on;

use super::writer::TarWriter;
use super::{Tar, Untar};
use crate::File;
use crate::testing::gzip;

/// Returns an archive of some members.
fn tar_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = TarWriter::new(Vec::new());
    members
        .iter()
        .for_each(|(name, data)| archive.append(name, data).unwrap());
    archive.finish().unwrap()
}

/// Returns a header with the right checksum, and data.
fn member(kind: u8, name: &str, data: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sign(&mut block);
    block.extend(data);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn sign(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block[..512].iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn gunzip(data: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(data)
        .read_to_end(&mut plain)
        .unwrap();
    plain
}

/// Returns archives of other tools, made by `tests/data/make.py` and `make_tar.py`, decompressed.
fn real() -> Vec<(&'static str, Vec<u8>)> {
    macro_rules! real {
        ($($name:literal),*) => {
            [$(($name, &include_bytes!(concat!("../../../../tests/data/", $name, ".tar.gz"))[..])),*]
        };
    }
    let packed = real![
        "python-ustar",
        "python-gnu",
        "python-pax",
        "tar-tar-v7",
        "tar-tar-oldgnu",
        "tar-tar-gnu",
        "tar-tar-ustar",
        "tar-tar-posix",
        "tar-bsdtar-v7",
        "tar-bsdtar-gnutar",
        "tar-bsdtar-ustar",
        "tar-bsdtar-pax",
        "tar-sparse-gnu",
        "tar-sparse-posix"
    ];
    packed
        .into_iter()
        .map(|(name, data)| (name, gunzip(data)))
        .collect()
}

/// Runs a pipe inline and returns its output. Items of the input are named `in0`, `in1`, …
fn apply<In: Send + 'static, P: Pipe<In>>(pipe: &P, input: Vec<In>) -> Vec<Result<Item<P::Out>>> {
    let named = |(index, value)| {
        Ok(Item::new(
            value,
            Origin::root(0, index as u64).named(format!("in{index}")),
        ))
    };
    let input: Vec<_> = input.into_iter().enumerate().map(named).collect();
    block_on(
        pipe.apply(Items::from_results(input), &Context::default())
            .collect(),
    )
}

fn untar(archive: impl Into<Bytes>) -> Vec<Result<Item<File>>> {
    apply(&Untar::new(), vec![File::new("x.tar", archive)])
}

/// Returns items with their origins, and errors, in a form that can be compared.
fn shown(items: &[Result<Item<File>>]) -> Vec<Result<(String, File), String>> {
    let show = |item: &Item<File>| {
        (
            format!("{} {}", item.origin(), item.origin().index()),
            (**item).clone(),
        )
    };
    items
        .iter()
        .map(|item| item.as_ref().map(show).map_err(Error::to_string))
        .collect()
}

fn files(items: Vec<Result<Item<File>>>) -> Vec<File> {
    items
        .into_iter()
        .map(|item| item.unwrap().into_inner())
        .collect()
}

/// Returns an archive with all features that readers know: extensions, other types, refused
/// members.
fn mixed() -> Vec<u8> {
    let mut sparse = member(b'S', "s.bin", b"condensed");
    sparse[482] = 1;
    sign(&mut sparse[..512]);
    sparse.splice(512..512, vec![0; 512]);
    let long = "n".repeat(150);
    let parts = [
        member(b'g', "g", b"11 note=hi\n"),
        tar_of(&[("a.txt", &[1; 600]), (&long, b"two"), ("é", b"")]),
        vec![],
        sparse,
        member(b'L', "././@LongLink", b"longer\0"),
        member(b'0', "b.txt", &[5; 512]),
        member(b'5', "folder/", b""),
        member(b'X', "other", &[7; 1300]),
        member(b'x', "pax", b"12 size=600\n"),
        member(b'0', "c.txt", &[6; 600]),
        vec![0; 1024],
    ];
    let end = parts[1].len() - 1024;
    parts
        .iter()
        .enumerate()
        .flat_map(|(n, part)| if n == 1 { &part[..end] } else { part })
        .copied()
        .collect()
}

#[test]
fn whatever_the_bytes_the_format_survives() {
    let seeds = [
        tar_of(&[("a.txt", &[1; 600]), (&"n".repeat(150), b"two")]),
        gzip(&tar_of(&[("a.txt", b"one"), ("b.txt", &[2; 700])])),
    ];
    for seed in &seeds {
        assert_eq!(crate::testing::check_format(Tar::new, seed), 2);
    }
}

#[test]
fn archives_of_other_tools_are_read() {
    let long = format!("d/{}/{}.txt", "n".repeat(120), "m".repeat(60));
    let bin: Vec<u8> = (0..768).map(|n| n as u8).collect();
    for (tool, archive) in real() {
        let items = untar(archive);
        if tool.starts_with("tar-sparse") {
            let shown = shown(&items);
            assert_eq!(
                shown[0],
                Err("in0/hole.bin: unsupported: a sparse member".to_owned()),
                "{tool}"
            );
            assert_eq!(
                shown[1].as_ref().unwrap().1,
                File::new("z.txt", "behind"),
                "{tool}"
            );
            assert_eq!(shown.len(), 2, "{tool}");
        } else if tool.starts_with("tar-") {
            let mut expected = vec![
                ("d/a.txt", &b"one"[..]),
                ("d/b.bin", &bin),
                ("d/c.cls", b""),
                (&long, b"two"),
            ];
            if tool.ends_with("v7") {
                expected.pop();
            }
            expected.push(("d/ü-é.txt", b"three"));
            let files = files(items);
            let found: Vec<_> = files
                .iter()
                .map(|file| (file.name.trim_start_matches("./"), &file.data[..]))
                .collect();
            assert_eq!(found, expected, "{tool}");
        }
    }
}
