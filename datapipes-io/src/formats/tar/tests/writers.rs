//! Written archives are read back unchanged, by this library and by other tools.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;

use datapipes::{ErrorKind, Graph, Result};
use proptest::prelude::*;

use super::super::walk::{Step, Walker};
use super::super::writer::{Attributes, headers};
use super::super::{SampleWriter, ShardWriter, TarIndex, TarWriter};
use super::{files, gunzip, tar_of, untar};
use crate::formats::Sample;
use crate::{File, FileGraphExt};

/// Returns names that do not fit, just fit, or are ambiguous.
fn names() -> Vec<String> {
    let mut names = vec![
        "a".to_owned(),
        "/abs".into(),
        "../up".into(),
        "./here".into(),
        "a b\n\t\"c\\x41".into(),
    ];
    names.extend(
        [
            "é/ü.txt",
            "日本語.jpg",
            "🦀",
            " ",
            "-",
            "9 path=a",
            "dir.with.dots/b.c.d",
        ]
        .map(String::from),
    );
    names.extend([99, 100, 101, 155, 156, 255, 256, 257, 300].map(|len| "n".repeat(len)));
    names.extend(
        [1, 54, 55, 99, 100, 101, 154, 155, 156, 157]
            .map(|len| format!("{}/{}", "p".repeat(len), "n".repeat(100))),
    );
    names.extend([
        format!("{}/{}", "p".repeat(155), "n".repeat(101)),
        format!("/{}", "n".repeat(100)),
    ]);
    names.extend([
        format!("{}.txt", "ü".repeat(148)),
        format!("{}x", "/".repeat(120)),
        "d/".repeat(140) + "x",
    ]);
    names
}

fn archive() -> (Vec<(String, Vec<u8>)>, Vec<u8>) {
    let sizes = [0, 1, 511, 512, 513, 1024, 5000];
    let members: Vec<_> = names()
        .into_iter()
        .enumerate()
        .map(|(n, name)| (name, vec![n as u8; sizes[n % sizes.len()]]))
        .collect();
    let slices: Vec<_> = members
        .iter()
        .map(|(name, data)| (&**name, &**data))
        .collect();
    let archive = tar_of(&slices);
    (members, archive)
}

/// Returns the members that the `tar` crate reads.
fn by_crate(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut reader = tar::Archive::new(archive);
    let entries = reader.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        assert_eq!(
            (
                entry.header().mtime().unwrap(),
                entry.header().mode().unwrap()
            ),
            (0, 0o644)
        );
        let mut data = Vec::new();
        entry.read_to_end(&mut data).unwrap();
        (
            String::from_utf8(entry.path_bytes().into_owned()).unwrap(),
            data,
        )
    });
    entries.collect()
}

fn as_files(members: &[(String, Vec<u8>)]) -> Vec<File> {
    members
        .iter()
        .map(|(name, data)| File::new(&**name, data.clone()))
        .collect()
}

#[test]
fn archives_are_read_back_here_and_by_the_tar_crate() {
    let (members, archive) = archive();
    assert_eq!(files(untar(archive.clone())), as_files(&members));
    assert_eq!(by_crate(&archive), members);
    assert_eq!(TarIndex::of(&archive.into()).unwrap().len(), members.len());
}

/// Runs a command if it exists.
fn run(command: &str, args: &[&str], folder: &Path) -> Option<Vec<u8>> {
    let there = Command::new(command)
        .arg("--version")
        .output()
        .is_ok_and(|out| out.status.success());
    let mut command = there.then(|| Command::new(command))?;
    let out = command
        .args(args)
        .current_dir(folder)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Some(out.stdout)
}

#[test]
fn archives_are_read_by_other_tools_that_are_here() {
    let (members, archive) = archive();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.tar"), archive).unwrap();
    let all: Vec<u8> = members.iter().flat_map(|(_, data)| data.clone()).collect();
    for tool in ["tar", "bsdtar"] {
        let Some(data) = run(tool, &["-xPOf", "x.tar"], folder.path()) else {
            continue;
        };
        assert_eq!(data, all, "{tool}");
        let listed = run(tool, &["-tPf", "x.tar"], folder.path()).unwrap();
        let listed = String::from_utf8(listed).unwrap();
        let plain = |name: &&str| name.is_ascii() && !name.contains(['\n', '\t', '\\', '"']);
        let listed: Vec<_> = listed.lines().filter(plain).collect();
        let expected: Vec<_> = members
            .iter()
            .map(|(name, _)| &**name)
            .filter(plain)
            .collect();
        assert_eq!(listed.len(), expected.len(), "{tool}");
        for (listed, expected) in listed.iter().zip(expected) {
            assert_eq!(*listed, expected, "{tool}");
        }
    }
    let script = "import json, tarfile\n\
                  t = tarfile.open('x.tar')\n\
                  print(json.dumps([[m.name, t.extractfile(m).read().hex(), m.mtime, m.mode, m.uid] for m in t]))";
    if let Some(found) = run("python3", &["-c", script], folder.path()) {
        let found: Vec<(String, String, u64, u32, u32)> = serde_json::from_slice(&found).unwrap();
        let hex = |data: &[u8]| {
            data.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let expected: Vec<_> = members
            .iter()
            .map(|(name, data)| (name.clone(), hex(data), 0, 0o644, 0))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn the_same_members_are_the_same_bytes() {
    let archive = tar_of(&[("a.txt", b"hello")]);
    let mut header = tar::Header::new_ustar();
    header.set_path("a.txt").unwrap();
    header.set_size(5);
    header.set_mode(0o644);
    for set in [
        tar::Header::set_mtime,
        tar::Header::set_uid,
        tar::Header::set_gid,
    ] {
        set(&mut header, 0);
    }
    header.set_entry_type(tar::EntryType::Regular);
    header.set_device_major(0).unwrap();
    header.set_device_minor(0).unwrap();
    header.set_cksum();
    let theirs = tar::Header::as_bytes(&header);
    assert_eq!(
        (&archive[..148], &archive[156..512]),
        (&theirs[..148], &theirs[156..])
    );
    assert_eq!(
        tar::Header::from_byte_slice(&archive[..512])
            .cksum()
            .unwrap(),
        header.cksum().unwrap()
    );
    assert_eq!(
        (archive.len(), archive[1024..].iter().all(|byte| *byte == 0)),
        (2048, true)
    );
    assert_eq!(archive, tar_of(&[("a.txt", b"hello")]));
}

#[test]
fn attributes_are_written_also_large_ones() {
    let mut archive = TarWriter::new(Vec::new())
        .mode(0o755)
        .owner(1000, 3_000_000_000)
        .mtime(1_700_000_000);
    archive.append("a", b"1").unwrap();
    let archive = archive.mtime(1 << 40).finish().unwrap();
    let header = tar::Header::from_byte_slice(&archive[..512]);
    assert_eq!(
        (header.mode().unwrap(), header.uid().unwrap()),
        (0o755, 1000)
    );
    assert_eq!(
        (header.gid().unwrap(), header.mtime().unwrap()),
        (3_000_000_000, 1_700_000_000)
    );
    assert_eq!(files(untar(archive)), [File::new("a", "1")]);
}

#[test]
fn sizes_from_8_gib_on_are_in_a_pax_header() {
    for (size, len) in [((8u64 << 30) - 1, 512), (8 << 30, 1536), (1 << 40, 1536)] {
        let header = headers("big", size, Attributes::default()).unwrap();
        assert_eq!(header.len() as u64, len);
        let mut walker = Walker::new(Some(len + size.next_multiple_of(512))).headers_only();
        walker.push(header.clone().into());
        match walker.next() {
            Step::More => {}
            _ => panic!("the data is due"),
        }
        assert_eq!(walker.jump(), len + size);
        let mut reader = tar::Archive::new(&header[..]);
        assert_eq!(
            reader.entries().unwrap().next().unwrap().unwrap().size(),
            size
        );
    }
}

#[test]
fn names_that_would_not_be_read_as_they_are_are_refused_and_nothing_written() {
    let mut archive = TarWriter::new(Vec::new());
    for name in ["", "a\0b", "folder/", "/"] {
        assert_eq!(
            archive.append(name, b"").unwrap_err().kind(),
            ErrorKind::Unsupported,
            "{name:?}"
        );
    }
    assert_eq!(
        archive
            .append(&"x".repeat(2 << 20), b"")
            .unwrap_err()
            .kind(),
        ErrorKind::Limit
    );
    assert!(archive.is_empty());
    let longest = "x".repeat((1 << 20) - 20);
    archive.append(&longest, b"1").unwrap();
    assert_eq!(
        files(untar(archive.finish().unwrap())),
        [File::new(longest, "1")]
    );
}

/// A writer that accepts a limited number of bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.0 {
            0 => Err(io::ErrorKind::StorageFull.into()),
            left => {
                let taken = left.min(data.len());
                self.0 -= taken;
                Ok(taken)
            }
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_archive_that_was_not_written_is_not_finished() {
    for room in [0, 100, 512, 600, 1024, 2000] {
        let mut archive = TarWriter::new(Full(room));
        let first = archive.append("a", &[1; 300]);
        assert_eq!(first.is_ok(), room >= 1024);
        assert!(archive.finish().is_err(), "{room}");
    }
    assert!(TarWriter::new(Full(1024)).finish().is_ok());
}

fn sample(key: &str, fields: &[(&str, &str)]) -> Sample {
    fields
        .iter()
        .fold(Sample::new(key), |sample, (field, data)| {
            sample.with(*field, data.to_string())
        })
}

fn samples_of(archive: Vec<u8>) -> Vec<Sample> {
    Graph::from_vec(vec![File::new("x.tar", archive)])
        .untar()
        .samples()
        .collect()
        .unwrap()
}

#[test]
fn row_95_samples_are_read_back_or_refused() {
    let good = [
        sample("a", &[("jpg", "1"), ("cls", "2")]),
        sample("d.e/b", &[("seg.png", "1"), ("jpg", "")]),
        sample("é/ü", &[("txt", "1")]),
        sample("d/", &[("jpg", "1")]),
        sample("__x__", &[("jpg", "1")]),
        sample("c", &[("__bad__", ""), ("jpg", "1")]),
        sample(&"k".repeat(280), &[("jpg", "1")]),
    ];
    let bad = [
        (sample("x", &[]), "it has no fields"),
        (
            sample("a.b", &[("jpg", "1")]),
            "\"a.b.jpg\" is read as field \"b.jpg\" of sample \"a\"",
        ),
        (sample("x", &[("", "1")]), "a field without a name"),
        (
            sample("x", &[("a/b", "1")]),
            "\"x.a/b\" is left out by readers",
        ),
        (
            sample("x", &[("a/b.c", "1")]),
            "\"x.a/b.c\" is read as field \"c\" of sample \"x.a/b\"",
        ),
        (
            sample("x", &[("JPG", "1")]),
            "\"x.JPG\" is read as field \"jpg\" of sample \"x\"",
        ),
        (
            sample("", &[("jpg", "1")]),
            "\".jpg\" is left out by readers",
        ),
        (
            sample("__m__/x", &[("jpg", "1")]),
            "\"__m__/x.jpg\" is left out by readers",
        ),
        (
            sample("x", &[("__key__", "1")]),
            "a field named \"__key__\", which readers make",
        ),
        (
            sample("x", &[("jpg", "1"), ("__bad__", "1")]),
            "readers leave out what has a \"__bad__\"",
        ),
        (sample("a", &[("txt", "1")]), "its key was there before"),
        (
            sample("x", &[("jpg", "1"), ("a\0", "1")]),
            "a NUL ends a name",
        ),
    ];
    let mut shard = SampleWriter::new(Vec::new());
    good.iter().for_each(|sample| shard.write(sample).unwrap());
    let len = shard.len();
    for (sample, why) in &bad {
        let error = shard.write(sample).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().ends_with(why), "{error}");
    }
    assert_eq!((shard.len(), shard.count()), (len, 7));
    assert_eq!(samples_of(shard.finish().unwrap()), good);
}

fn listed(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn write_shards(mut shards: ShardWriter, samples: &[Sample]) -> Vec<super::super::Shard> {
    samples
        .iter()
        .for_each(|sample| shards.write(sample).unwrap());
    shards.finish().unwrap()
}

#[test]
fn shards_are_full_by_count_or_bytes_and_hold_all_samples_in_order() {
    let samples: Vec<_> = (0..25)
        .map(|n| sample(&format!("{n:03}"), &[("txt", &"x".repeat(n * 100))]))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let new = |name: &str| ShardWriter::new(folder.path().join(name)).unwrap();
    let cases = [
        (new("a-%03d.tar").max_count(10), vec![10, 10, 5]),
        (new("b-{:03}.tar").max_count(1), vec![1; 25]),
        (new("c-{}.tar"), vec![25]),
        (new("d-%d.tar.gz").max_count(20), vec![20, 5]),
        (new("e-%d.tgz").max_count(20), vec![20, 5]),
        (new("f-%d.tar").max_count(0), vec![1; 25]),
    ];
    for (writer, counts) in cases {
        let shards = write_shards(writer, &samples);
        assert_eq!(
            shards.iter().map(|shard| shard.samples).collect::<Vec<_>>(),
            counts
        );
        let mut found = Vec::new();
        for shard in &shards {
            let data = std::fs::read(&shard.path).unwrap();
            assert_eq!(shard.bytes, data.len() as u64);
            let is_packed = shard.path.extension().is_none_or(|ending| ending != "tar");
            assert_eq!(data.starts_with(b"\x1f\x8b"), is_packed);
            found.extend(samples_of(if is_packed { gunzip(&data) } else { data }));
        }
        assert_eq!(found, samples);
    }
    let names = listed(folder.path());
    assert!(
        names.contains(&"a-002.tar".into())
            && names.contains(&"b-024.tar".into())
            && names.contains(&"c-0.tar".into())
    );
    assert!(names.iter().all(|name| !name.contains("tmp")), "{names:?}");

    // By bytes: as many samples as fit, and a sample that is too large alone.
    for most in [2048, 5000, 8192, 20_000] {
        let shards = write_shards(new("g-%d.tar").max_bytes(most), &samples);
        assert!(
            shards
                .iter()
                .all(|shard| shard.bytes <= most || shard.samples == 1),
            "{shards:?}"
        );
        for pair in shards.windows(2) {
            let next = samples_of(std::fs::read(&pair[1].path).unwrap())[0]
                .get("txt")
                .unwrap()
                .len() as u64;
            assert!(
                pair[0].bytes + 512 + next.next_multiple_of(512) > most,
                "{pair:?}"
            );
        }
    }
}

#[test]
fn a_writer_that_is_dropped_leaves_whole_shards_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut shards = ShardWriter::new(folder.path().join("%d.tar"))
        .unwrap()
        .max_count(2);
    for n in 0..5 {
        shards
            .write(&sample(&format!("{n}"), &[("txt", "1")]))
            .unwrap();
        let names = listed(folder.path());
        assert_eq!(
            names.iter().filter(|name| name.ends_with(".tmp")).count(),
            1,
            "{names:?}"
        );
    }
    assert_eq!(shards.shards().len(), 2);
    drop(shards);
    assert_eq!(listed(folder.path()), ["0.tar", "1.tar"]);
    // No samples make no shards; existing shards are replaced.
    assert_eq!(
        write_shards(
            ShardWriter::new(folder.path().join("none-%d.tar")).unwrap(),
            &[]
        ),
        []
    );
    let again = write_shards(
        ShardWriter::new(folder.path().join("%d.tar")).unwrap(),
        &[sample("x", &[("txt", "2")])],
    );
    assert_eq!((again[0].samples, listed(folder.path()).len()), (1, 2));
    assert_eq!(
        samples_of(std::fs::read(&again[0].path).unwrap())[0].key(),
        "x"
    );
    // A refused sample must not leave an open shard behind.
    let mut shards = ShardWriter::new(folder.path().join("no-%d.tar")).unwrap();
    assert!(shards.write(&sample("a.b", &[("txt", "1")])).is_err());
    assert_eq!(
        (shards.finish().unwrap().len(), listed(folder.path()).len()),
        (0, 2)
    );
    let gone = ShardWriter::new(folder.path().join("none/%d.tar"))
        .unwrap()
        .write(&sample("a", &[("txt", "1")]));
    let error = gone.unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("none/0.tar"),
        "{error}"
    );
}

#[test]
fn patterns_have_one_number() {
    let good = [
        "%d.tar",
        "a/%06d.tar",
        "{}.tar",
        "x-{:4}.tar",
        "{:04}.tar.gz",
        "100%-{}.tar",
        "{a}-%d",
    ];
    for pattern in good {
        assert!(ShardWriter::new(pattern).is_ok(), "{pattern}");
    }
    let bad = [
        "a.tar",
        "%d-%d.tar",
        "{}-%06d.tar",
        "%d/x.tar",
        "%d/%d.tar",
        "%x.tar",
        "%d.tar.zst",
        "%d.tar.xz",
        "%999d.tar",
        "",
    ];
    for pattern in bad {
        assert_eq!(
            ShardWriter::new(pattern).unwrap_err().kind(),
            ErrorKind::Config,
            "{pattern}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_names_and_sizes_archives_are_read_back_equal(
        members in prop::collection::vec(("[a-z/.é\n]{1,300}|\\PC{1,40}|[a-z]{90,110}/[a-z]{90,110}", 0usize..1100), 0..5),
    ) {
        let members: Vec<_> = members.into_iter()
            .map(|(name, size)| (name.trim_end_matches('/').to_owned(), vec![size as u8; size]))
            .filter(|(name, _)| !name.is_empty())
            .collect();
        let slices: Vec<_> = members.iter().map(|(name, data)| (&**name, &**data)).collect();
        let archive = tar_of(&slices);
        prop_assert_eq!(files(untar(archive.clone())), as_files(&members));
        // The crate takes a line feed in a pax header for the end of a record.
        if members.iter().all(|(name, _)| !name.contains('\n')) {
            prop_assert_eq!(by_crate(&archive), members);
        }
    }

    #[test]
    fn row_95_samples_are_read_back_equal_or_refused(
        samples in prop::collection::vec(("[ab_./J]{0,4}", prop::collection::btree_map("[ab_./J]{0,3}", "[x]{0,2}", 0..3)), 0..6),
    ) {
        let mut shard = SampleWriter::new(Vec::new());
        let all = samples.into_iter().map(|(key, fields): (String, BTreeMap<String, String>)| {
            fields.into_iter().fold(Sample::new(key), |sample, (field, data)| sample.with(field, data))
        });
        let written: Vec<_> = all.filter(|sample| shard.write(sample).is_ok()).collect();
        let archive = shard.finish().unwrap();
        prop_assert_eq!(samples_of(archive), written);
    }
}

#[test]
fn a_refused_sample_leaves_the_shard_as_it_was() -> Result<()> {
    let mut shard = SampleWriter::new(Vec::new());
    shard.write(&sample("a", &[("txt", "1")]))?;
    let len = shard.len();
    let half_good = sample("b", &[("txt", "1"), ("CLS", "2")]);
    assert!(shard.write(&half_good).is_err());
    assert_eq!(shard.len(), len);
    assert_eq!(samples_of(shard.finish()?).len(), 1);
    Ok(())
}
