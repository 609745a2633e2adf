//! Contract tests for stores, and for wrappers around stores.

use bytes::Bytes;
use datapipes::ErrorKind;
use futures::{StreamExt, TryStreamExt};

use crate::stores::{Get, Store};

/// Returns keys and contents of the objects that a store must hold, and no others, to be checked by
/// [`check_store`].
pub fn fixtures() -> Vec<(String, Bytes)> {
    let noise = |seed: u32, len: usize| {
        let step = |x: &mut u32| {
            *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some((*x >> 24) as u8)
        };
        std::iter::repeat_n((), len)
            .scan(seed, |x, ()| step(x))
            .collect::<Bytes>()
    };
    let objects = [
        ("a.txt", Bytes::from_static(b"hello")),
        ("big.bin", noise(1, 300_000)),
        ("empty", Bytes::new()),
        (
            "names/p%41 q+r&s=t;\u{e9}.txt",
            Bytes::from_static(b"awkward"),
        ),
        ("train-2/0001.bin", noise(2, 10)),
        ("train/0001.bin", noise(3, 1000)),
        ("train/0002.bin", noise(4, 1001)),
        ("train/deep/0003.bin", noise(5, 1)),
    ];
    objects
        .into_iter()
        .map(|(key, data)| (key.to_owned(), data))
        .collect()
}

/// Checks that a store that holds the [`fixtures`] keeps the contract of [`Store`]: all of
/// [`check_reads`], and
///
/// - *listings*: all objects, a prefix (also one that ends within a name), and nothing; the same
///   order each time; sizes and versions are those of `head`; a listing may be dropped half-way.
///
/// # Panics
/// Panics if a check fails, with a message.
pub async fn check_store(store: &impl Store) {
    check_reads(store).await;

    let fixtures = fixtures();
    let list = async |prefix: &str| {
        let found: Vec<_> = store.list(prefix).try_collect().await.expect("list");
        found
    };
    let all = list("").await;
    for prefix in [
        "",
        "train",
        "train/",
        "train/0",
        "train/deep/",
        "a.txt",
        "names/p%41 ",
    ] {
        let found = list(prefix).await;
        let mut keys: Vec<_> = found.iter().map(|meta| meta.key.clone()).collect();
        let mut want: Vec<_> = fixtures
            .iter()
            .map(|(key, _)| key.clone())
            .filter(|key| key.starts_with(prefix))
            .collect();
        let order: Vec<_> = all
            .iter()
            .map(|meta| meta.key.clone())
            .filter(|key| key.starts_with(prefix))
            .collect();
        assert_eq!(
            keys, order,
            "the order below {prefix:?} is that of the whole listing"
        );
        keys.sort();
        want.sort();
        assert_eq!(keys, want, "the keys below {prefix:?}");
    }
    assert_eq!(list("").await, all, "a second listing is as the first");
    for prefix in ["nothing/", "trains", "train/0001.bin/"] {
        assert_eq!(list(prefix).await, [], "nothing below {prefix:?}");
    }
    for meta in &all {
        let head = store
            .head(&meta.key)
            .await
            .expect("head of what was listed");
        if meta.size.is_some() && head.size.is_some() {
            assert_eq!(
                meta.size, head.size,
                "the size of {}, listed and by head",
                meta.key
            );
        }
        if meta.version.is_some() && head.version.is_some() {
            assert_eq!(
                meta.version, head.version,
                "the version of {}, listed and by head",
                meta.key
            );
        }
    }
    let mut half = store.list("");
    assert!(half.next().await.is_some_and(|first| first.is_ok()));
    drop(half);
}

/// Checks that a store that holds the [`fixtures`] keeps the contract of [`Store`], except for
/// listing, which some systems do not support:
///
/// - whole objects, including empty ones and awkward names, by `get` and by `read`; many at once;
/// - ranges: inside, to the end, past the end, empty, at the end, of an empty object; the announced
///   range is that of the body;
/// - a range that begins after the end, or ends before it begins, is `Protocol`;
/// - `head`: key and size, and the same version as `get`;
/// - a missing key is `NotFound`, with its URL; a version that does not exist is `Changed`, the
///   right version is returned;
/// - invalid keys (empty, absolute, with `..` in it or `/` at its end) are a final error;
/// - a body that is dropped half-way does no harm.
///
/// # Panics
/// Panics if a check fails, with a message.
pub async fn check_reads(store: &impl Store) {
    let fixtures = fixtures();
    assert!(
        store.url().ends_with('/'),
        "the URL {} ends in /",
        store.url()
    );
    for (key, data) in &fixtures {
        check_whole(store, key, data).await;
    }
    let (key, data) = &fixtures[1];
    let version = store.head(key).await.expect("head").version;
    check_ranges(store, key, data, &version).await;
    check_wrong_ranges(store, key, data.len() as u64).await;
    if version.is_some() {
        check_another_version(store, key, data.len() as u64).await;
    }
    check_wrong_keys(store).await;
    check_missing_keys(store).await;

    let mut half = store.get(key, Get::default()).await.expect("get");
    assert!(half.body.next().await.is_some_and(|piece| piece.is_ok()));
    drop(half);
    drop(store.get(key, Get::default()).await.expect("get"));

    let many = futures::stream::iter((0..64).map(|n| &fixtures[n % fixtures.len()]));
    let read = many.map(async |(key, data)| store.read(key).await.expect("read") == *data);
    assert!(
        read.buffer_unordered(64).all(async |same| same).await,
        "64 reads at once"
    );
}

fn no_such_version() -> Option<String> {
    Some("\"no such version\"".to_owned())
}

/// Checks an object that is read whole, its head, and its versions.
async fn check_whole(store: &impl Store, key: &str, data: &Bytes) {
    let object = store
        .get(key, Get::default())
        .await
        .unwrap_or_else(|error| panic!("{key}: {error}"));
    assert_eq!(object.meta.key, *key, "the key of {key}");
    assert_eq!(object.url, store.url_of(key), "the URL of {key}");
    assert_eq!(object.range.start, 0, "a whole object begins at 0: {key}");
    if let Some(len) = object.len() {
        assert_eq!(len, data.len() as u64, "the announced length of {key}");
    }
    let version = object.meta.version.clone();
    assert!(
        object.bytes().await.expect("body") == *data,
        "the content of {key}"
    );
    assert!(
        store.read(key).await.expect("read") == *data,
        "the content of {key} by `read`"
    );

    let head = store.head(key).await.expect("head");
    assert_eq!(head.key, *key, "the key of the head of {key}");
    assert_eq!(
        head.version, version,
        "the version of {key}, by head and by get"
    );
    if let Some(size) = head.size {
        assert_eq!(size, data.len() as u64, "the size of {key}, by head");
    }
    if version.is_some() {
        let same = store
            .get(key, Get::default().of_version(version.clone()))
            .await
            .expect("same version");
        assert!(
            same.bytes().await.expect("body") == *data,
            "the content of {key} by its version"
        );
        let other = Get::default().of_version(no_such_version());
        let error = store
            .get(key, other)
            .await
            .expect_err("another version")
            .kind();
        assert_eq!(error, ErrorKind::Changed, "another version of {key}");
    }
}

/// Checks ranges of an object, and of the empty one.
async fn check_ranges(store: &impl Store, key: &str, data: &Bytes, version: &Option<String>) {
    let size = data.len() as u64;
    let ends = [size..size, size..size + 5, size..u64::MAX];
    for range in [
        0..size,
        0..1,
        7..1000,
        100_000..u64::MAX,
        size - 1..size,
        size - 5..size + 100,
        7..7,
        0..0,
    ]
    .into_iter()
    .chain(ends)
    {
        let get = Get::range(range.clone()).of_version(version.clone());
        let object = store
            .get(key, get)
            .await
            .unwrap_or_else(|error| panic!("{range:?}: {error}"));
        let want = data.slice(range.start as usize..range.end.min(size) as usize);
        assert_eq!(object.range.start, range.start, "where {range:?} begins");
        if let Some(len) = object.len() {
            assert_eq!(len, want.len() as u64, "the announced length of {range:?}");
        }
        if let Some(whole) = object.meta.size {
            assert_eq!(
                whole, size,
                "the size of the whole, in the answer to {range:?}"
            );
        }
        assert!(
            object.bytes().await.expect("body") == want,
            "the bytes of {range:?}"
        );
    }
    for range in [0..0, 0..1, 0..u64::MAX] {
        let object = store.get("empty", Get::range(range.clone())).await;
        let object = object.unwrap_or_else(|error| panic!("{range:?} of nothing: {error}"));
        assert!(
            object.bytes().await.expect("body").is_empty(),
            "{range:?} of nothing"
        );
    }
}

/// Checks that ranges that an object does not have are refused.
async fn check_wrong_ranges(store: &impl Store, key: &str, size: u64) {
    #[expect(clippy::reversed_empty_ranges, reason = "it must be refused")]
    for (key, range) in [
        (key, size + 1..size + 2),
        (key, size + 1..u64::MAX),
        (key, size + 1..size + 1),
        (key, 9..7),
        ("empty", 1..2),
    ] {
        let error = store.get(key, Get::range(range.clone())).await.err();
        let error = error.unwrap_or_else(|| panic!("{range:?} of {key} is none of its ranges"));
        assert!(
            error.kind() == ErrorKind::Protocol && !error.is_transient(),
            "{range:?} of {key}: {error}"
        );
        assert!(
            error.to_string().contains(&store.url_of(key)),
            "{error} names {}",
            store.url_of(key)
        );
    }
}

/// Checks that a version that does not exist is refused in ranges, too.
async fn check_another_version(store: &impl Store, key: &str, size: u64) {
    for range in [0..1, 0..0, size..u64::MAX] {
        let other = Get::range(range.clone()).of_version(no_such_version());
        let error = store.get(key, other).await.expect_err("another version");
        assert!(
            error.kind() == ErrorKind::Changed && !error.is_transient(),
            "{range:?} of another version: {error}"
        );
    }
}

async fn check_wrong_keys(store: &impl Store) {
    for key in [
        "",
        "/a.txt",
        "./a.txt",
        "train/../a.txt",
        "a.txt/",
        "train/",
    ] {
        let error = store.get(key, Get::default()).await.err();
        let error = error.unwrap_or_else(|| panic!("{key:?} is no key of the store"));
        assert!(!error.is_transient(), "{key:?}: {error}");
    }
}

async fn check_missing_keys(store: &impl Store) {
    for key in ["missing", "train/missing.bin", "a.txt/below"] {
        let errors = [
            store.get(key, Get::default()).await.err(),
            store.get(key, Get::range(0..1)).await.err(),
            store.get(key, Get::range(0..0)).await.err(),
            store.head(key).await.err(),
            store.read(key).await.err(),
        ];
        for error in errors {
            let error = error.unwrap_or_else(|| panic!("{key} is there"));
            assert!(
                error.kind() == ErrorKind::NotFound && !error.is_transient(),
                "{key}: {error}"
            );
            assert!(
                error.to_string().contains(&store.url_of(key)),
                "{error} names {}",
                store.url_of(key)
            );
        }
    }
}
