//! Folders of images, and the order and classes of their files.

use super::*;
use datapipes::ErrorKind;
use datapipes::index::split::Splitter;

fn tree(files: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    dir
}

fn names(root: &Path) -> Vec<(String, u32)> {
    let read = image_folder(root)
        .unwrap()
        .samples
        .fetch()
        .collect()
        .unwrap();
    read.into_iter()
        .map(|(file, class)| {
            assert_eq!(file.data, file.name.as_bytes());
            (file.name.to_string(), class)
        })
        .collect()
}

/// The order is that of torchvision's `make_dataset` for this tree: `sorted(os.walk(…))`, then
/// sorted names.
#[test]
fn order_and_numbers_are_torchvisions() {
    let dir = tree(&[
        "b/z.png",
        "b/Y.JPEG",
        "b/s/1.webp",
        "b/s-t/2.bmp",
        "b/s/t/3.tif",
        "B/1.ppm",
        "é/1.pgm",
        "b/x.gif",
        "b/notes.txt",
        "top.jpg",
        "b/10.jpg",
        "b/9.jpg",
        "b/.h.jpg",
        "b/jpg",
    ]);
    let expected = [
        ("B/1.ppm", 0),
        ("b/.h.jpg", 1),
        ("b/10.jpg", 1),
        ("b/9.jpg", 1),
        ("b/Y.JPEG", 1),
        ("b/z.png", 1),
        ("b/s/1.webp", 1),
        ("b/s-t/2.bmp", 1),
        ("b/s/t/3.tif", 1),
        ("é/1.pgm", 2),
    ];
    assert_eq!(
        names(dir.path()),
        expected.map(|(name, class)| (name.to_owned(), class))
    );
    let set = image_folder(dir.path()).unwrap();
    assert_eq!(
        (&set.classes[..], set.labels.len()),
        (&["B", "b", "é"].map(str::to_owned)[..], 10)
    );
    let gifs = image_folder_of(
        dir.path().join("b").parent().unwrap(),
        &["GIF", "ppm", "pgm"],
    )
    .unwrap();
    assert_eq!(gifs.labels, [0, 1, 2]);
}

#[test]
fn classes_without_images_and_folders_without_classes_are_errors() {
    let dir = tree(&["a/1.jpg", "b/notes.txt", ".c/x"]);
    let error = image_folder(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().ends_with("for the classes .c, b"),
        "{error}"
    );
    let error = image_folder(dir.path().join("a")).unwrap_err();
    assert!(error.to_string().contains("no folder in it"), "{error}");
    let error = image_folder(dir.path().join("none")).unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("none"),
        "{error}"
    );
}

#[test]
fn a_stable_split_keeps_files_in_their_parts_when_others_are_added() {
    let files: Vec<String> = (0..40).map(|n| format!("{}/{n}.jpg", n % 2)).collect();
    let dir = tree(&files.iter().map(String::as_str).collect::<Vec<_>>());
    let splitter = Splitter::fractions([("train", 0.7), ("val", 0.3)]).stable();
    let validation = || {
        let set = image_folder(dir.path()).unwrap();
        let splits = set.split(&splitter).unwrap();
        let keys = splits.keys("val").unwrap().iter();
        keys.map(|&key| set.names[key as usize].clone())
            .collect::<Vec<_>>()
    };
    let before = validation();
    fs::write(dir.path().join("0/0a.jpg"), "").unwrap();
    let after: Vec<String> = validation()
        .into_iter()
        .filter(|name| name != "0/0a.jpg")
        .collect();
    assert_eq!(before, after);
    assert!((5..20).contains(&before.len()), "{before:?}");
}

#[test]
fn a_file_that_is_gone_is_an_error_of_its_sample() {
    let dir = tree(&["a/1.jpg", "a/2.jpg"]);
    let set = image_folder(dir.path()).unwrap();
    fs::remove_file(dir.path().join("a/1.jpg")).unwrap();
    let error = set.samples.clone().fetch().collect().unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("a/1.jpg"),
        "{error}"
    );
    assert_eq!(set.samples.subset(1..2).fetch().collect().unwrap().len(), 1);
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_not_for_ever() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tree(&["in/a/1.jpg", "other/2.jpg"]);
    let link = |to: &str, at: &str| {
        std::os::unix::fs::symlink(dir.path().join(to), dir.path().join(at)).unwrap();
    };
    link("other", "in/b");
    link("in/a", "in/a/again");
    link("in", "in/a/up");
    link("nowhere", "in/a/0.jpg");
    link("other/2.jpg/below", "in/a/through-a-file");
    link("in/a/itself", "in/a/itself");
    let samples = image_folder(dir.path().join("in")).unwrap().samples;
    let error = samples.clone().fetch().collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("a/0.jpg"), "{error}");
    let read = samples.subset(1..4).fetch().collect().unwrap();
    let names: Vec<&str> = read.iter().map(|(file, _)| &*file.name).collect();
    // `up` links to the root, whose `a` encloses it and whose `b` does not.
    assert_eq!(names, ["a/1.jpg", "a/up/b/2.jpg", "b/2.jpg"]);

    let odd = std::ffi::OsStr::from_bytes(b"\xff.jpg");
    fs::write(dir.path().join("in/a").join(odd), "").unwrap();
    let error = image_folder(dir.path().join("in")).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("\\xff.jpg"),
        "{error}"
    );
}
