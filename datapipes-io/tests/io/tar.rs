use std::process::Command;

use bytes::Bytes;
use datapipes::{ErrorKind, Graph};
use datapipes_io::{File, Untar, prelude::*};

use crate::{all, apply, has, kinds, names, on_workers, parts, tar_of};

fn untar(archive: impl Into<Bytes>) -> (Vec<File>, Vec<datapipes::Error>) {
    parts(apply(&Untar::new(), vec![File::new("x.tar", archive)]))
}

/// Updates a header's checksum.
fn sign(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..512].iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Makes a header and its data.
fn member(kind: u8, name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sign(&mut block);
    block.extend(data);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

#[test]
fn members_are_slices_of_the_archive() {
    let archive = Bytes::from(tar_of(&[("a", b"one"), ("b", &[7; 5000])]));
    let range = archive.as_ptr_range();
    let (files, errors) = untar(archive.clone());
    assert!(errors.is_empty());
    assert_eq!(
        files,
        [File::new("a", "one"), File::new("b", vec![7; 5000])]
    );
    for file in files {
        let own = file.data.as_ptr_range();
        assert!(range.start <= own.start && own.end <= range.end);
    }
}

#[test]
fn origins_are_children_of_the_archive_with_the_members_names() {
    let archive = tar_of(&[("d/a", b"1"), ("d/b", b"2")]);
    let items = apply(&Untar::new(), vec![File::new("x.tar", archive)]);
    let origins: Vec<_> = items
        .into_iter()
        .map(|item| item.unwrap().origin().clone())
        .collect();
    assert_eq!(origins[1].to_string(), "in0/d/b");
    assert_eq!((origins[0].index(), origins[1].index()), (0, 1));
}

#[test]
fn what_workers_give_is_what_one_thread_gives() {
    let archives: Vec<_> = (0..20u8)
        .map(|k| {
            let members: Vec<_> = (0..50).map(|n| format!("{k}-{n}.txt")).collect();
            let members: Vec<_> = members
                .iter()
                .map(|name| (name.as_str(), name.as_bytes()))
                .collect();
            File::new(format!("{k}.tar"), tar_of(&members))
        })
        .collect();
    let graph = Graph::from_vec(archives).untar();
    let inline = graph.clone().collect().unwrap();
    assert_eq!(inline.len(), 1000);
    assert_eq!(on_workers(graph), inline);
}

#[test]
fn archives_of_pythons_tarfile_are_read() {
    let long = format!("folder-{}/{}.txt", "x".repeat(120), "y".repeat(90));
    let archives: [(&str, &[u8]); 3] = [
        ("ustar", include_bytes!("../data/python-ustar.tar.gz")),
        ("gnu", include_bytes!("../data/python-gnu.tar.gz")),
        ("pax", include_bytes!("../data/python-pax.tar.gz")),
    ];
    for (format, archive) in archives {
        let (files, errors) = untar(Bytes::from_static(archive));
        assert!(errors.is_empty(), "{format}: {errors:?}");
        let mut expected = vec![("folder/a.txt", &b"one"[..]), ("folder/empty.cls", b"")];
        if format != "ustar" {
            expected.extend([(long.as_str(), &b"two"[..]), ("é/ü.txt", b"three")]);
        }
        let last: Vec<u8> = (0..768).map(|n| n as u8).collect();
        expected.push(("last.bin", &last));
        let found: Vec<_> = files
            .iter()
            .map(|file| (&*file.name, &file.data[..]))
            .collect();
        assert_eq!(found, expected, "{format}");
    }
}

#[test]
fn archives_of_gnu_tar_are_read() {
    if !has("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = format!("d/{}", "n".repeat(120));
    let long = format!("{folder}/{}.txt", "m".repeat(60));
    std::fs::create_dir_all(dir.path().join(&folder)).unwrap();
    std::fs::write(dir.path().join("d/a.txt"), "one").unwrap();
    std::fs::write(dir.path().join(&long), vec![3; 70_000]).unwrap();
    for format in ["v7", "oldgnu", "gnu", "ustar", "posix"] {
        let archive = dir.path().join("out.tar");
        let ran = Command::new("tar")
            .args([&format!("--format={format}"), "--sort=name", "-cf"])
            .arg(&archive)
            .args(["-C".as_ref(), dir.path().as_os_str(), "d".as_ref()])
            .output()
            .unwrap();
        let (files, errors) = untar(std::fs::read(&archive).unwrap());
        assert!(errors.is_empty(), "{format}: {errors:?}");
        // The oldest format has no room for the long name, and tar reports that.
        let expected = if ran.status.success() {
            vec!["d/a.txt", &long]
        } else {
            vec!["d/a.txt"]
        };
        assert_eq!(names(&files), expected, "{format}");
        assert_eq!(
            files.last().unwrap().data.len(),
            if ran.status.success() { 70_000 } else { 3 }
        );
    }
}

#[test]
fn row_90_a_bit_flip_in_any_header_byte_is_no_quiet_change() {
    let archive = tar_of(&[("a.txt", b"one"), ("b.txt", b"two"), ("c.txt", b"three")]);
    let (whole, _) = untar(archive.clone());
    for header in [0, 1024, 2048] {
        for byte in header..header + 512 {
            for bit in 0..8 {
                let mut flipped = archive.clone();
                flipped[byte] ^= 1 << bit;
                let (files, errors) = untar(flipped);
                // A flipped bit in the padding of the checksum field changes nothing.
                assert!(
                    files == whole || errors.len() == 1,
                    "byte {byte} bit {bit}: {files:?}"
                );
                assert!(whole.starts_with(&files) || errors.is_empty());
            }
        }
    }
}

#[test]
fn row_90_an_error_tells_the_place_and_the_next_archive_follows() {
    let good = tar_of(&[("a.txt", b"one"), ("b.txt", b"two")]);
    let mut bad = good.clone();
    bad[1024 + 20] ^= 1;
    let input = vec![File::new("bad.tar", bad), File::new("good.tar", good)];
    let (files, errors) = parts(apply(&Untar::new(), input));
    assert_eq!(names(&files), ["a.txt", "a.txt", "b.txt"]);
    assert_eq!(
        errors[0].to_string(),
        "in0: corrupt: a header whose checksum is wrong; at byte 1024 of 3072, after member \"a.txt\""
    );
}

#[test]
fn row_90_a_header_turned_to_zeros_is_no_end() {
    let mut archive = tar_of(&[("a.txt", b"one"), ("b.txt", b"two"), ("c.txt", b"three")]);
    archive[1024..1536].fill(0);
    let (files, errors) = untar(archive);
    assert_eq!(
        (names(&files), kinds(&errors)),
        (vec!["a.txt"], vec![ErrorKind::Corrupt])
    );
}

#[test]
fn row_91_cut_at_every_byte() {
    let archive = tar_of(&[
        ("a.txt", &[1; 600]),
        ("b.txt", b"two"),
        ("c.txt", &[3; 512]),
    ]);
    let (whole, _) = untar(archive.clone());
    let ends = [1536, 2560, 3584];
    assert_eq!((whole.len(), archive.len()), (3, 4608));
    for cut in 0..archive.len() {
        let (files, errors) = untar(archive[..cut].to_vec());
        // Only whole members are delivered; the last one may lack its padding.
        assert!(whole.starts_with(&files), "cut at {cut}");
        let between = ends.contains(&cut) || cut >= 4096;
        assert_eq!(
            kinds(&errors),
            vec![ErrorKind::Truncated; usize::from(!between)],
            "cut at {cut}"
        );
        if between {
            assert_eq!(files.len(), ends.iter().filter(|&&end| end <= cut).count());
        }
    }
}

#[test]
fn row_91_cut_at_every_byte_between_a_long_name_and_its_member() {
    let archive = tar_of(&[(&"n".repeat(200), b"one")]);
    for cut in 0..archive.len() - 1024 {
        let (files, errors) = untar(archive[..cut].to_vec());
        let data_is_there = cut >= 3 * 512 + 3;
        assert_eq!(
            (files.len(), errors.len()),
            (usize::from(data_is_there), 1),
            "cut at {cut}"
        );
    }
}

#[test]
fn row_92_extensions_that_readers_disagree_on_are_errors() {
    let file = member(b'0', b"a.txt", b"one");
    let pax = |records: &[u8]| member(b'x', b"pax", records);
    let long = member(b'L', b"././@LongLink", b"other\0");
    let cases: [(&str, Vec<Vec<u8>>, ErrorKind); 8] = [
        (
            "two pax headers",
            vec![pax(b"9 path=a\n"), pax(b"9 path=b\n"), file.clone()],
            ErrorKind::Corrupt,
        ),
        (
            "two long names",
            vec![long.clone(), long.clone(), file.clone()],
            ErrorKind::Corrupt,
        ),
        (
            "two names",
            vec![long.clone(), pax(b"9 path=a\n"), file.clone()],
            ErrorKind::Corrupt,
        ),
        (
            "no record",
            vec![pax(b"path=a\n"), file.clone()],
            ErrorKind::Corrupt,
        ),
        (
            "a size past the end",
            vec![pax(b"14 size=99999\n"), file.clone()],
            ErrorKind::Truncated,
        ),
        (
            "a header of 2 MiB",
            vec![pax(&vec![b'x'; 2 << 20]), file.clone()],
            ErrorKind::Limit,
        ),
        (
            "65 in a row",
            vec![member(b'g', b"g", b"9 note=a\n"); 65],
            ErrorKind::Limit,
        ),
        (
            "no member",
            vec![pax(b"9 path=a\n"), vec![0; 1024]],
            ErrorKind::Corrupt,
        ),
    ];
    for (case, blocks, kind) in cases {
        let (files, errors) = untar(blocks.concat());
        assert_eq!((files.len(), kinds(&errors)), (0, vec![kind]), "{case}");
    }
}

#[test]
fn row_92_one_size_for_data_and_skipping() {
    // The header says 3 bytes, the extension 600: a reader that uses one size to read and the other
    // to skip finds a member less.
    let mut file = member(b'0', b"a.txt", &[5; 600]);
    file[124..136].copy_from_slice(b"00000000003\0");
    sign(&mut file);
    let archive = [
        member(b'x', b"pax", b"12 size=600\n"),
        file,
        member(b'0', b"b.txt", b"two"),
    ]
    .concat();
    let (files, errors) = untar(archive);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        files,
        [File::new("a.txt", vec![5; 600]), File::new("b.txt", "two")]
    );
}

#[test]
fn row_92_extensions_belong_to_the_next_member_only() {
    let archive = [
        member(b'g', b"g", b"11 note=hi\n"),
        member(b'x', b"pax", b"9 path=p\n"),
        member(b'0', b"a.txt", b"one"),
        member(b'L', b"././@LongLink", b"longer\0"),
        member(b'0', b"b.txt", b"two"),
        member(b'0', b"c.txt", b"three"),
    ];
    let (files, errors) = untar(archive.concat());
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(names(&files), ["p", "longer", "c.txt"]);
}

#[test]
fn row_93_a_sparse_member_is_refused_by_name_and_the_next_follows() {
    let mut sparse = member(b'S', b"s.bin", b"condensed");
    sparse[482] = 1;
    sign(&mut sparse[..512]);
    sparse.splice(512..512, vec![0; 512]);
    let by_pax = [
        member(b'x', b"pax", b"22 GNU.sparse.major=1\n"),
        member(b'0', b"t.bin", b"map"),
    ]
    .concat();
    let archive = [sparse, by_pax, member(b'0', b"b.txt", b"two")].concat();
    let (files, errors) = untar(archive);
    assert_eq!((names(&files), errors.len()), (vec!["b.txt"], 2));
    assert_eq!(
        errors[0].to_string(),
        "in0/s.bin: unsupported: a sparse member"
    );
    assert_eq!(
        errors[1].to_string(),
        "in0/t.bin: unsupported: a sparse member"
    );
}

#[test]
fn row_93_only_regular_files_come_out() {
    let kinds = b"0\x0071234560XV";
    let blocks: Vec<_> = kinds
        .iter()
        .enumerate()
        .map(|(n, &kind)| member(kind, format!("m{n}").as_bytes(), b""))
        .collect();
    let (files, errors) = untar(blocks.concat());
    assert!(errors.is_empty());
    assert_eq!(names(&files), ["m0", "m1", "m2", "m9"]);
    let (files, _) = untar(member(0, b"folder/", b""));
    assert!(files.is_empty());
}

#[test]
fn row_94_names_are_names() {
    let archive = [
        member(b'0', b"../../etc/passwd", b"1"),
        member(b'0', b"/abs\xff", b"2"),
    ]
    .concat();
    assert_eq!(names(&untar(archive).0), ["../../etc/passwd", "/abs\\xff"]);
}

#[test]
fn row_105_an_empty_file_is_no_archive_but_an_empty_archive_is_one() {
    let (files, errors) = untar(Bytes::new());
    assert_eq!(
        (files.len(), kinds(&errors)),
        (0, vec![ErrorKind::Truncated])
    );
    let (files, errors) = untar(vec![0; 10240]);
    assert_eq!((files.len(), errors.len()), (0, 0));
}

#[test]
fn row_106_other_content_is_named() {
    let (_, errors) = untar([&b"\x28\xb5\x2f\xfd"[..], &[9; 600]].concat());
    // Depending on the features, the error is that zstd is not supported, or that the data is
    // damaged.
    assert!(
        errors.len() == 1 && errors[0].to_string().contains("zstd"),
        "{errors:?}"
    );
    assert_eq!(kinds(&untar(vec![b'?'; 600]).1), [ErrorKind::Corrupt]);
}

#[test]
fn the_tar_crate_sees_the_same_members() {
    let members: Vec<(String, Vec<u8>)> = (0..300)
        .map(|n| (format!("p{}/{n}", "p".repeat(n)), vec![n as u8; n * 7]))
        .collect();
    let members: Vec<_> = members
        .iter()
        .map(|(name, data)| (name.as_str(), data.as_slice()))
        .collect();
    let archive = tar_of(&members);
    let mut reader = tar::Archive::new(&archive[..]);
    let theirs: Vec<_> = (reader.entries().unwrap())
        .map(|entry| {
            let mut entry = entry.unwrap();
            let mut data = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut data).unwrap();
            File::new(entry.path().unwrap().to_str().unwrap(), data)
        })
        .collect();
    assert_eq!(untar(archive).0, theirs);
}

#[test]
fn nothing_is_read_before_the_first_poll_and_errors_pass() {
    use datapipes::{Context, Error, Items, Pipe};
    let input = Items::from_results([Err(Error::not_found("gone"))]);
    let out = Untar::new().apply(input, &Context::default());
    assert_eq!(kinds(&parts(all(out)).1), [ErrorKind::NotFound]);
}

#[test]
fn row_135_whatever_the_bytes_there_is_no_panic_and_no_byte_from_elsewhere() {
    let seeds: [&[u8]; 3] = [
        &tar_of(&[
            ("a.txt", &[1; 600]),
            (&"n".repeat(200), b"two"),
            ("c.txt", b""),
        ]),
        &[
            member(b'x', b"pax", b"12 size=600\n"),
            member(b'0', b"a", &[5; 600]),
        ]
        .concat(),
        &[
            member(b'S', b"s", b"condensed"),
            member(b'g', b"g", b"9 path=p\n"),
            member(b'0', b"a", b"one"),
        ]
        .concat(),
    ];
    // An xorshift generator, from a fixed seed.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..3000 {
        let mut archive = seeds[round % seeds.len()].to_vec();
        for _ in 0..1 + random(6) {
            let place = random(archive.len());
            archive[place] = [0, 0xff, b'0', b'7', b'x', b'L', b'\n', b' '][random(8)];
        }
        // Otherwise the checksum would reveal most of the damage.
        archive
            .chunks_exact_mut(512)
            .filter(|block| block[257..262] == *b"ustar")
            .for_each(sign);
        archive.truncate(archive.len() - random(2) * random(archive.len()));
        let archive = Bytes::from(archive);
        let (files, errors) = untar(archive.clone());
        assert!(
            errors.iter().all(|error| error.kind() != ErrorKind::Panic),
            "{errors:?}"
        );
        assert!(files.iter().map(|file| file.data.len()).sum::<usize>() <= archive.len());
    }
}
