use std::fs;
use std::path::Path;

use datapipes::{DataLoader, ErrorKind, OnError};
use datapipes_io::{FileRef, ListFiles, list_files};

use crate::{kinds, on_workers, open, parts};

fn tree(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    dir
}

fn names(root: &Path, pattern: &str) -> Vec<String> {
    let (files, errors) = parts(open(&ListFiles::new(root, pattern).allow_empty()));
    assert!(errors.is_empty(), "{errors:?}");
    files
        .iter()
        .map(|file: &FileRef| file.name().into_owned())
        .collect()
}

#[test]
fn row_82_sorted_by_the_bytes_of_whole_paths() {
    let dir = tree(&["a/x", "a-b", "a.c/y", "a0", "B", "z/1/2", "z/10", "é"]);
    let expected = ["B", "a-b", "a.c/y", "a/x", "a0", "z/1/2", "z/10", "é"];
    assert!(expected.is_sorted());
    assert_eq!(names(dir.path(), "**"), expected);
}

#[test]
fn row_82_a_folder_of_many_files_is_sorted() {
    // A memory disk, since making so many files takes seconds on some disks.
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    for n in 0..20_000u32 {
        fs::write(
            dir.path().join(format!(
                "img_{}.jpg",
                n.wrapping_mul(2_654_435_761) % 1_000_003
            )),
            "",
        )
        .unwrap();
    }
    let files = on_workers(list_files(dir.path(), "*.jpg"));
    assert_eq!(files.len(), 20_000);
    assert!(files.is_sorted_by_key(|file| file.path.as_os_str().as_encoded_bytes()));
}

#[test]
fn wildcards() {
    let dir = tree(&[
        "t/a.tar",
        "t/b.tar",
        "t/c.txt",
        "t/u/d.tar",
        "v/a.tar",
        ".h/.e.tar",
        "top.tar",
    ]);
    let root = dir.path();
    assert_eq!(names(root, "t/*.tar"), ["t/a.tar", "t/b.tar"]);
    assert_eq!(names(root, "{t,v}/a.tar"), ["t/a.tar", "v/a.tar"]);
    assert_eq!(
        names(root, "**/*.tar"),
        [
            ".h/.e.tar",
            "t/a.tar",
            "t/b.tar",
            "t/u/d.tar",
            "top.tar",
            "v/a.tar"
        ]
    );
    assert_eq!(names(root, "t/**/d.tar"), ["t/u/d.tar"]);
    assert_eq!(names(root, "{t/u,v}/?.tar"), ["t/u/d.tar", "v/a.tar"]);
    assert_eq!(names(root, "t/c.txt"), ["t/c.txt"]);
    assert_eq!(names(root, "t"), [""; 0]);
    assert_eq!(names(root, "no/such/*"), [""; 0]);
    assert_eq!(names(&root.join("t/a.tar"), "*.tar"), ["a.tar"]);
}

#[test]
fn origins_are_named_by_the_relative_path() {
    let dir = tree(&["a/b.txt"]);
    let items = open(&ListFiles::new(dir.path(), "**/*"));
    let item = items[0].as_ref().unwrap();
    assert_eq!(item.origin().to_string(), "a/b.txt");
    assert_eq!((&item.path, item.size), (&dir.path().join("a/b.txt"), None));
}

#[test]
fn a_missing_root_and_an_empty_match_are_errors() {
    let dir = tree(&["a.txt"]);
    let missing = dir.path().join("none");
    let error = list_files(&missing, "*").collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // The root is not to be taken for that of the file system.
    let begin = format!("list_files: ./: not found: {}: ", missing.display());
    assert!(error.to_string().starts_with(&begin), "{error}");
    let error = list_files(dir.path(), "*.jpg")
        .collect()
        .unwrap_err()
        .to_string();
    assert!(error.contains("no file matches \"*.jpg\" under"), "{error}");
    assert!(open(&ListFiles::new(dir.path(), "*.jpg").allow_empty()).is_empty());
}

#[test]
fn a_policy_skips_a_folder_and_not_a_whole_listing() {
    let dir = tree(&["a.txt", "b/c.txt"]);
    let run = |root: &Path, pattern: &str| {
        let files = list_files(root, pattern);
        let loader = DataLoader::builder(files).on_error(OnError::skip(100));
        let epoch = loader.build().unwrap().epoch(0).blocking();
        epoch.collect::<datapipes::Result<Vec<_>>>()
    };
    let missing = dir.path().join("none");
    for (root, pattern) in [(&*missing, "*"), (dir.path(), "*.jpg")] {
        let error = run(root, pattern).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    // One link that leads nowhere is one item.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&missing, dir.path().join("broken.txt")).unwrap();
        assert_eq!(run(dir.path(), "**/*.txt").unwrap().len(), 2);
    }
}

#[test]
fn a_pattern_that_makes_no_sense_does_not_start() {
    for pattern in ["a[", "/abs", "../x"] {
        assert!(
            DataLoader::builder(list_files("/", pattern))
                .build()
                .is_err(),
            "{pattern}"
        );
    }
}

#[test]
fn nothing_is_opened_before_the_first_poll() {
    let dir = tempfile::tempdir().unwrap();
    let loader = DataLoader::builder(list_files(dir.path(), "*"))
        .workers(0)
        .build()
        .unwrap();
    let epoch = loader.epoch(0);
    fs::write(dir.path().join("late"), "").unwrap();
    assert_eq!(epoch.blocking().count(), 1);
}

#[cfg(unix)]
mod unix {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    #[test]
    fn row_79_special_files_are_left_out() {
        let dir = tree(&["a.jpg"]);
        fs::create_dir(dir.path().join("folder.jpg")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s.jpg")).unwrap();
        Command::new("mkfifo")
            .arg(dir.path().join("p.jpg"))
            .status()
            .unwrap();
        symlink("p.jpg", dir.path().join("to_p.jpg")).unwrap();
        assert_eq!(names(dir.path(), "*.jpg"), ["a.jpg"]);
    }

    #[test]
    fn row_80_loops_of_links_end() {
        let dir = tree(&["d/a.txt", "e/b.txt"]);
        symlink("..", dir.path().join("d/up")).unwrap();
        symlink("../e", dir.path().join("d/side")).unwrap();
        symlink(".", dir.path().join("e/self")).unwrap();
        symlink("d/a.txt", dir.path().join("link.txt")).unwrap();
        assert_eq!(
            names(dir.path(), "**/*.txt"),
            ["d/a.txt", "d/side/b.txt", "e/b.txt", "link.txt"]
        );
    }

    #[test]
    fn row_80_a_broken_link_is_not_found_if_it_matches() {
        let dir = tree(&["a.txt", "c.txt"]);
        symlink("nowhere", dir.path().join("b.txt")).unwrap();
        symlink("nowhere", dir.path().join("b.other")).unwrap();
        symlink("loop.txt", dir.path().join("loop.txt")).unwrap();
        let (files, errors) = parts(open(&ListFiles::new(dir.path(), "*.txt")));
        assert_eq!(
            (files.len(), kinds(&errors)),
            (2, vec![ErrorKind::NotFound, ErrorKind::Io])
        );
        assert!(errors[0].to_string().contains("b.txt"), "{}", errors[0]);
    }

    #[test]
    fn row_81_awkward_names_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let long = "n".repeat(255);
        let awkward: [&[u8]; 8] = [
            b"a\xff",
            b"a\xfe",
            b"line\nfeed",
            b"\x1b[31m",
            b"*",
            b"-dash",
            long.as_bytes(),
            b"A\xff",
        ];
        for name in awkward {
            fs::write(dir.path().join(OsStr::from_bytes(name)), "").unwrap();
        }
        let files = list_files(dir.path(), "*").collect().unwrap();
        let mut expected = awkward.to_vec();
        expected.sort();
        let found: Vec<_> = files
            .iter()
            .map(|file| file.path.file_name().unwrap().as_bytes())
            .collect();
        assert_eq!(found, expected);
        assert_eq!(files[4].name(), "a\\xfe");
    }

    #[test]
    fn row_76_a_file_that_cannot_be_looked_for_is_not_taken_for_absent() {
        let dir = tree(&["a/1"]);
        // Longer than a name can be.
        let long = "n".repeat(300);
        let (_, errors) = parts(open(&ListFiles::new(dir.path(), &long)));
        assert_eq!(kinds(&errors), [ErrorKind::Io]);
        // Permissions do not apply to root.
        let closed = dir.path().join("a");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o400)).unwrap();
        if fs::metadata(closed.join("1")).is_err() {
            let (_, errors) = parts(open(&ListFiles::new(dir.path(), "a/1")));
            assert_eq!(kinds(&errors), [ErrorKind::Denied]);
        }
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn row_76_a_folder_that_may_not_be_read_is_an_error_and_the_rest_follows() {
        let dir = tree(&["a/1", "b/1", "c/1"]);
        let closed = dir.path().join("b");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        // Permissions do not apply to root, so that the error is checked for other users only.
        if fs::read_dir(&closed).is_err() {
            let (files, errors) = parts(open(&ListFiles::new(dir.path(), "**")));
            assert_eq!((files.len(), kinds(&errors)), (2, vec![ErrorKind::Denied]));
        }
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    }
}
