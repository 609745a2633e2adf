use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::loader::Skipped;
use datapipes::{DataLoader, ErrorKind, Graph, OnError, Result};
use datapipes_io::{File, FileRef, LoadFiles, list_files, prelude::*};

use crate::{apply, kinds, on_workers, parts};

#[test]
fn files_of_all_sizes_are_read_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [
        0,
        1,
        8191,
        8192,
        262_143,
        262_144,
        262_145,
        1 << 20,
        9_000_001,
    ];
    let mut expected = Vec::new();
    for (n, size) in sizes.into_iter().enumerate() {
        let data: Vec<u8> = (0..size).map(|k: usize| (k * (n + 3)) as u8).collect();
        let name = format!("{n}.bin");
        fs::write(dir.path().join(&name), &data).unwrap();
        expected.push(File::new(name, data));
    }
    let graph = list_files(dir.path(), "*.bin").load_files();
    assert_eq!(graph.clone().collect().unwrap(), expected);
    assert_eq!(on_workers(graph), expected);
}

#[test]
fn buffers_are_used_again_once_nothing_refers_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bin");
    fs::write(&path, vec![1; 3 << 20]).unwrap();
    let pipe = LoadFiles::new();
    let read = || {
        apply(&pipe, vec![FileRef::new(&path)])
            .pop()
            .unwrap()
            .unwrap()
            .into_inner()
            .data
    };
    let first = read();
    let place = first.as_ptr();
    let slice = first.slice(5..6);
    drop(first);
    let second = read();
    assert_ne!(second.as_ptr(), place);
    drop(slice);
    assert_eq!(read().as_ptr(), place);
}

#[test]
fn a_slice_outlives_the_graph() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.bin"), vec![7; 1 << 20]).unwrap();
    let data: Bytes = list_files(dir.path(), "*")
        .load_files()
        .collect()
        .unwrap()
        .pop()
        .unwrap()
        .data;
    assert!(data.iter().all(|&byte| byte == 7));
}

#[test]
fn row_74_a_file_that_vanished_is_named_and_the_next_follows() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let listed = list_files(dir.path(), "*").collect().unwrap();
    fs::remove_file(dir.path().join("b")).unwrap();
    let (files, errors) = parts(apply(&LoadFiles::new(), listed));
    assert_eq!(
        (files.len(), kinds(&errors)),
        (2, vec![ErrorKind::NotFound])
    );
    assert!(
        errors[0]
            .to_string()
            .contains(dir.path().join("b").to_str().unwrap()),
        "{}",
        errors[0]
    );
}

/// Files in a row are opened in their folder.
#[test]
fn row_74_files_of_a_folder_that_vanished_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["a", "b", "c"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
        for n in 10..20 {
            fs::write(dir.path().join(format!("{folder}/{n}")), folder).unwrap();
        }
    }
    let listed = list_files(dir.path(), "**/*").collect().unwrap();
    fs::rename(dir.path().join("b"), dir.path().join("gone")).unwrap();
    fs::remove_file(dir.path().join("c/15")).unwrap();
    let (files, errors) = parts(apply(&LoadFiles::new(), listed.clone()));
    let names: Vec<_> = files.iter().map(|file| &*file.name).collect();
    let is_left = |name: &&str| !name.starts_with('b') && *name != "c/15";
    let all: Vec<_> = listed.iter().map(FileRef::name).collect();
    let left: Vec<_> = all.iter().map(|name| &**name).filter(is_left).collect();
    assert_eq!((all.len(), names), (30, left));
    assert!(
        files
            .iter()
            .all(|file| file.name.as_bytes()[..1] == file.data)
    );
    assert_eq!(kinds(&errors), [ErrorKind::NotFound; 11]);
    for (error, name) in errors.iter().zip((10..20).map(|n| format!("b/{n}"))) {
        let path = dir.path().join(name);
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}

#[test]
fn row_76_a_folder_and_a_name_that_is_too_long_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("x.jpg");
    fs::create_dir(&folder).unwrap();
    let long = dir.path().join("n".repeat(300));
    let below = dir.path().join("f").join("below");
    fs::write(dir.path().join("f"), "").unwrap();
    let input = [&folder, &long, &below].map(FileRef::new).to_vec();
    let (_, errors) = parts(apply(&LoadFiles::new(), input));
    assert_eq!(
        kinds(&errors),
        [ErrorKind::Unsupported, ErrorKind::Io, ErrorKind::NotFound]
    );
    assert_eq!(
        errors[0].to_string(),
        format!(
            "in0: unsupported: {}: a folder, not a file",
            folder.display()
        )
    );
}

#[cfg(unix)]
#[test]
fn row_79_pipes_and_devices_are_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("p.jpg");
    std::process::Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .unwrap();
    let socket = dir.path().join("s.jpg");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let input = vec![
        FileRef::new(pipe),
        FileRef::new("/dev/zero"),
        FileRef::new(socket),
    ];
    let (_, errors) = parts(apply(&LoadFiles::new(), input));
    assert_eq!(
        kinds(&errors),
        [
            ErrorKind::Unsupported,
            ErrorKind::Unsupported,
            ErrorKind::Io
        ]
    );
}

#[cfg(target_os = "linux")]
#[test]
fn row_79_files_of_proc_are_read_though_they_say_that_they_are_empty() {
    let files = apply(&LoadFiles::new(), vec![FileRef::new("/proc/self/status")]);
    assert!(files[0].as_ref().unwrap().data.starts_with(b"Name:"));
}

#[cfg(unix)]
#[test]
fn row_76_a_file_that_may_not_be_read_is_denied() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "a").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // Permissions do not apply to root, so that the error is checked for other users only.
    if fs::read(&path).is_err() {
        assert_eq!(
            kinds(&parts(apply(&LoadFiles::new(), vec![FileRef::new(path)])).1),
            [ErrorKind::Denied]
        );
    }
}

/// Changes the lengths of files, one after another, until the result is dropped.
#[cfg(target_os = "linux")]
fn keep_changing(files: Vec<fs::File>, lengths: [u64; 2]) -> Arc<()> {
    let alive = Arc::new(());
    let until = Arc::downgrade(&alive);
    std::thread::spawn(move || {
        while until.strong_count() > 0 {
            for file in &files {
                lengths.iter().for_each(|&len| file.set_len(len).unwrap());
            }
        }
    });
    alive
}

#[cfg(target_os = "linux")]
#[test]
fn row_75_a_file_that_changes_while_it_is_read_is_no_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bin");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let _changing = keep_changing(vec![file], [3 << 20, 1 << 20]);
    let pipe = LoadFiles::new();
    for _ in 0..300 {
        match apply(&pipe, vec![FileRef::new(&path)]).pop().unwrap() {
            Ok(file) => assert!([1 << 20, 3 << 20].contains(&file.data.len())),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
}

/// Reads files with so many workers, and returns what came, and what was left out.
fn load_with(files: Vec<FileRef>, workers: usize) -> (Vec<File>, Vec<Skipped>) {
    let graph = Graph::from_vec(files).load_files();
    let builder = DataLoader::builder(graph).workers(workers);
    let loader = builder.on_error(OnError::skip(1000)).build().unwrap();
    let files = loader.epoch(0).blocking().collect::<Result<_>>().unwrap();
    (files, loader.stats().unwrap().skipped_items)
}

#[cfg(target_os = "linux")]
#[test]
fn row_75_files_that_shrink_while_they_are_read_cost_no_others() {
    const LEN: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = |n: usize| dir.path().join(format!("{n:02}"));
    for n in 0..40 {
        fs::write(path(n), vec![n as u8; LEN]).unwrap();
    }
    let listed = list_files(dir.path(), "*").collect().unwrap();
    let odd = || (1..40).step_by(2).map(path);
    let open = |path| fs::OpenOptions::new().write(true).open(path).unwrap();
    let _changing = keep_changing(odd().map(open).collect(), [LEN as u64 / 2, LEN as u64]);
    for workers in [0, 2] {
        let begun = std::time::Instant::now();
        let mut seen = false;
        while !seen {
            let (files, skipped) = load_with(listed.clone(), workers);
            assert_eq!(files.len() + skipped.len(), 40);
            assert!(files.is_sorted_by_key(|file| &file.name));
            let numbered = files.iter().map(|file| (file.name.parse().unwrap(), file));
            let (even, odd_ones): (Vec<(u8, _)>, Vec<_>) = numbered.partition(|(n, _)| n % 2 == 0);
            assert_eq!(even.len(), 20);
            assert!(even.iter().all(|(n, file)| file.data == vec![*n; LEN]));
            let lengths = [LEN / 2, LEN];
            assert!(
                odd_ones
                    .iter()
                    .all(|(_, file)| lengths.contains(&file.data.len()))
            );
            for Skipped { kind, error, .. } in &skipped {
                let is_named = odd().any(|path| error.contains(path.to_str().unwrap()));
                assert!(*kind == ErrorKind::Corrupt && is_named, "{error}");
            }
            seen = !skipped.is_empty();
            assert!(
                begun.elapsed().as_secs() < 60,
                "{workers}: none was seen to change"
            );
        }
    }
}

#[test]
fn row_74_a_folder_that_vanishes_costs_its_own_files() {
    for workers in [0, 2] {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
            for n in 10..40 {
                fs::write(
                    dir.path().join(format!("{folder}/{n}")),
                    folder.repeat(2000),
                )
                .unwrap();
            }
        }
        let listed = list_files(dir.path(), "**/*").collect().unwrap();
        let (whole, errors) = load_with(listed.clone(), workers);
        assert_eq!((whole.len(), errors.len()), (90, 0));
        fs::rename(dir.path().join("b"), dir.path().join("gone")).unwrap();
        let (files, errors) = load_with(listed, workers);
        assert_eq!(files, [&whole[..30], &whole[60..]].concat());
        assert_eq!(errors.len(), 30);
        for (Skipped { kind, error, .. }, n) in errors.iter().zip(10..40) {
            let path = dir.path().join(format!("b/{n}"));
            assert_eq!(*kind, ErrorKind::NotFound);
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn no_descriptor_stays_open() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..50 {
        fs::write(dir.path().join(n.to_string()), "x").unwrap();
    }
    let own = || {
        let links = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        links.filter(|link| link.starts_with(dir.path())).count()
    };
    let loader = DataLoader::builder(list_files(dir.path(), "*").load_files())
        .workers(2)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).blocking();
    assert!(epoch.next().is_some());
    drop(epoch);
    drop(loader);
    let begun = std::time::Instant::now();
    while own() > 0 {
        assert!(
            begun.elapsed().as_secs() < 30,
            "descriptors stay open after the end"
        );
        std::thread::yield_now();
    }
}
