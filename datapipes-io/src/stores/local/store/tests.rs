use super::*;
use crate::stores::StoreExt;
use crate::stores::wrappers::Evict;

fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Local) {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let store = Local::new(dir.path());
    (dir, store)
}

async fn keys(store: &Local, prefix: &str) -> Vec<String> {
    store
        .list(prefix)
        .map_ok(|meta| meta.key)
        .try_collect()
        .await
        .unwrap()
}

#[tokio::test]
async fn files_are_read_whole_and_in_ranges() {
    let (_dir, store) = folder(&[("d/a b+%ü.txt", "0123456789"), ("empty", "")]);
    let key = "d/a b+%ü.txt";
    let object = store.get(key, Get::default()).await.unwrap();
    assert_eq!((object.range.clone(), object.meta.size), (0..10, Some(10)));
    assert_eq!(object.url, format!("{}{key}", store.url()));
    let version = object.meta.version.clone();
    assert_eq!(object.bytes().await.unwrap(), "0123456789");
    for (range, read) in [
        (2..5, "234"),
        (8..u64::MAX, "89"),
        (0..0, ""),
        (10..10, ""),
        (10..20, ""),
    ] {
        let get = Get::range(range).of_version(version.clone());
        assert_eq!(
            store.get(key, get).await.unwrap().bytes().await.unwrap(),
            read
        );
    }
    assert_eq!(
        store.get(key, Get::range(11..12)).await.unwrap_err().kind(),
        ErrorKind::Protocol
    );
    assert_eq!(store.head(key).await.unwrap().version, version);
    assert_eq!(store.read(key).await.unwrap(), "0123456789");
    assert_eq!(store.read("empty").await.unwrap(), "");
    assert_eq!(
        store
            .get("empty", Get::default())
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        ""
    );
}

#[tokio::test]
async fn a_large_file_comes_in_pieces() {
    let (dir, store) = folder(&[]);
    let data: Vec<u8> = (0..3 * PIECE).map(|n| (n / 100) as u8).collect();
    fs::write(dir.path().join("large"), &data).unwrap();
    let object = store.get("large", Get::range(1..u64::MAX)).await.unwrap();
    let pieces: Vec<Bytes> = object.body.try_collect().await.unwrap();
    let sizes = pieces.iter().map(|piece| piece.len() as u64);
    // The first ones are short, so that they are there soon.
    assert_eq!(
        sizes.collect::<Vec<_>>(),
        [FIRST, 2 * FIRST, 4 * FIRST, PIECE, PIECE, FIRST - 1]
    );
    assert_eq!(pieces.concat(), data[1..]);
}

#[tokio::test]
async fn row_59_and_75_a_file_that_changes_is_not_mixed() {
    let (dir, store) = folder(&[]);
    let path = dir.path().join("k");
    fs::write(&path, vec![1; 2 * PIECE as usize]).unwrap();
    let old = store.head("k").await.unwrap().version;
    let object = store.get("k", Get::default()).await.unwrap();
    fs::write(&path, vec![2; PIECE as usize + 5]).unwrap();
    let error = object.bytes().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    let error = store
        .get("k", Get::default().of_version(old))
        .await
        .unwrap_err();
    assert!(
        error.kind() == ErrorKind::Changed && !error.is_transient(),
        "{error}"
    );

    // A file that is replaced is read to its end as it was.
    let object = store.get("k", Get::default()).await.unwrap();
    fs::write(dir.path().join("new"), "3").unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    assert_eq!(object.bytes().await.unwrap(), vec![2; PIECE as usize + 5]);
}

#[tokio::test]
async fn row_82_keys_are_sorted_by_their_bytes() {
    let (_dir, store) = folder(&[
        ("a/b", ""),
        ("a-c", ""),
        ("a.d", ""),
        ("ab/x", ""),
        ("b[1]/x", ""),
        ("b1/x", ""),
    ]);
    assert_eq!(
        keys(&store, "").await,
        ["a-c", "a.d", "a/b", "ab/x", "b1/x", "b[1]/x"]
    );
    assert_eq!(keys(&store, "a").await, ["a-c", "a.d", "a/b", "ab/x"]);
    assert_eq!(keys(&store, "a/").await, ["a/b"]);
    assert_eq!(keys(&store, "b[").await, ["b[1]/x"]);
    for prefix in [
        "none", "none/", "a/b/c", "/", "../", "a/../", "a//b", "a/./b",
    ] {
        assert_eq!(keys(&store, prefix).await, [""; 0], "{prefix}");
    }
}

#[tokio::test]
async fn row_89_keys_stay_in_the_root() {
    let (_dir, store) = folder(&[("in/k", "x")]);
    let inner = Local::new(store.root.join("in"));
    for key in [
        "",
        "/k",
        "../in/k",
        "a/../k",
        "./k",
        "a//k",
        "k/",
        "/etc/passwd",
        "k\0",
    ] {
        for error in [
            inner.get(key, Get::default()).await.err(),
            inner.head(key).await.err(),
        ] {
            assert_eq!(error.unwrap().kind(), ErrorKind::Unsupported, "{key:?}");
        }
        assert!(inner.read(key).await.is_err());
    }
}

#[tokio::test]
async fn row_74_what_is_not_there_is_not_found() {
    let (dir, store) = folder(&[("d/k", "x")]);
    for key in ["none", "d", "d/k/more"] {
        for error in [
            store.get(key, Get::default()).await.err(),
            store.head(key).await.err(),
            store.read(key).await.err(),
        ] {
            let error = error.unwrap();
            assert!(
                error.kind() == ErrorKind::NotFound && !error.is_transient(),
                "{error}"
            );
            assert!(error.to_string().contains(&store.url_of(key)), "{error}");
        }
    }
    drop(dir);
    let error = store.list("").try_collect::<Vec<_>>().await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains(store.url()),
        "{error}"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn row_79_and_81_special_files_and_awkward_names() {
    use std::os::unix::ffi::OsStrExt;
    let (dir, store) = folder(&[("a", "x"), ("z", "x")]);
    let name = std::ffi::OsStr::from_bytes(b"b\xff");
    fs::write(dir.path().join(name), "x").unwrap();
    let path = std::ffi::CString::new(dir.path().join("c").as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends in a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let found: Vec<_> = store.list("").collect().await;
    assert_eq!(found.len(), 3);
    let error = found[1].as_ref().unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("b\\xff"),
        "{error}"
    );
    assert_eq!(
        store.get("c", Get::default()).await.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[tokio::test]
async fn the_buffer_of_what_a_cache_keeps_comes_back() {
    let content = "7".repeat(300_000);
    let (_dir, store) = folder(&[("k", &content)]);
    let has_old_content = || {
        let mut stock = Stock::new(&store.buffers);
        let mut buffer = stock.get(content.len(), 0).unwrap();
        std::mem::replace(&mut buffer.space()[0], 0) == b'7'
    };
    let cached = store.clone().cache_in_memory(8 << 20, Evict::Oldest);
    assert_eq!(cached.read("k").await.unwrap(), content);
    assert_eq!(cached.bytes(), content.len() as u64);
    assert!(has_old_content());
    // Without the cache it is there as long as the body.
    let object = store.get("k", Get::default()).await.unwrap();
    let body = object.bytes().await.unwrap();
    assert!(!has_old_content());
    drop(body);
    assert!(has_old_content());
}
