//! The HTTP store, against nginx.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use datapipes::{Error, ErrorKind};
use datapipes_io::prelude::*;
use datapipes_io::stores::http::Listing;
use datapipes_io::stores::{self, Get, Http, Store};
use futures::{StreamExt, TryStreamExt};

/// A folder of the server, for one test.
struct Place {
    folder: PathBuf,
    name: &'static str,
    plain: String,
    tls: String,
    ca: Vec<u8>,
}

impl Place {
    fn new(name: &'static str) -> Option<Place> {
        let [plain, tls, ca, folder] = ["", "_TLS", "_CA", "_FOLDER"]
            .map(|variable| super::server(&format!("DATAPIPES_TEST_NGINX{variable}")));
        let folder = Path::new(&folder?).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Some(Place {
            folder,
            name,
            plain: plain?,
            tls: tls?,
            ca: fs::read(ca?).unwrap(),
        })
    }

    fn put(&self, key: &str, data: impl AsRef<[u8]>) {
        let path = self.folder.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }

    /// URL of the folder below one of the server's locations.
    fn at(&self, location: &str) -> String {
        format!("{}{location}/{}/", self.plain, self.name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[track_caller]
fn is(error: &Error, kind: ErrorKind) {
    assert!(
        error.kind() == kind && !error.is_transient(),
        "{:?} {error:#?}",
        error.kind()
    );
}

/// Names that are hard on pages, on URLs and on JSON.
const AWKWARD: [&str; 19] = [
    "a b.txt",
    "a+b.txt",
    "a%20b.txt",
    "100%.txt",
    "x%2Fy.txt",
    "#hash.txt",
    "q?x=1&y=2.txt",
    "\u{fc}/\u{65e5}\u{672c}.txt",
    "u\u{308}.txt",
    "\u{1f600}.txt",
    "<b>&amp;\"quoted\"'.txt",
    "back\\slash.txt",
    "c:d.txt",
    "line\nend.txt",
    "~tilde;semi=colon,comma@at!$.txt",
    "dots...",
    "d e/f g/(1)[2]{3}.txt",
    "d e/+%#/deep",
    "a_name_that_is_longer_than_what_the_column_of_a_page_shows_of_it_and_is_cut_there.txt",
];

#[tokio::test]
async fn row_66_awkward_names_are_listed_by_pages_and_json_and_read() {
    let Some(place) = Place::new("awkward") else {
        return;
    };
    let objects: BTreeMap<_, _> = AWKWARD
        .into_iter()
        .map(|key| (key.to_owned(), format!("<{key}>")))
        .collect();
    objects.iter().for_each(|(key, data)| place.put(key, data));
    fs::create_dir(place.folder.join("empty folder")).unwrap();
    for location in ["html", "json"] {
        // As a user opens it: by URL.
        let store = stores::open(&place.at(location)).unwrap();
        let metas: Vec<_> = store.list("").try_collect().await.unwrap();
        let keys: Vec<_> = metas.iter().map(|meta| meta.key.clone()).collect();
        assert_eq!(
            keys,
            objects.keys().cloned().collect::<Vec<_>>(),
            "{location}"
        );
        for meta in &metas {
            let data = &objects[&meta.key];
            assert!(
                meta.size.is_none_or(|size| size == data.len() as u64),
                "{meta:?}"
            );
            assert_eq!(meta.size.is_some(), location == "json");
            assert_eq!(store.read(&meta.key).await.unwrap(), *data, "{}", meta.key);
            let ranged = store.get(&meta.key, Get::range(1..4)).await.unwrap();
            assert_eq!(
                ranged.bytes().await.unwrap(),
                data.as_bytes()[1..4],
                "{}",
                meta.key
            );
        }
        for prefix in [
            "d e/",
            "d e/f",
            "d e/+%",
            "a",
            "\u{fc}/",
            "\u{fc}/\u{65e5}",
            "...",
            "empty folder/",
            "x%",
        ] {
            let found: Vec<_> = store
                .list(prefix)
                .map_ok(|meta| meta.key)
                .try_collect()
                .await
                .unwrap();
            let want: Vec<_> = objects
                .keys()
                .filter(|key| key.starts_with(prefix))
                .cloned()
                .collect();
            assert_eq!(found, want, "{location} {prefix:?}");
        }
        // And through a graph, many at once.
        let collect = move || store.list_files("**").load_files().collect();
        let read = datapipes::blocking(collect).await.unwrap().unwrap();
        let read: BTreeMap<_, _> = read
            .into_iter()
            .map(|file| (file.name.to_string(), file.data))
            .collect();
        let want: BTreeMap<_, _> = objects
            .iter()
            .map(|(k, v)| (k.clone(), Bytes::from(v.clone())))
            .collect();
        assert_eq!(read, want);
    }
    let first = Http::builder(&place.at("files"))
        .listing(Listing::Pages)
        .build()
        .unwrap();
    let error = first.list("").try_collect::<Vec<_>>().await.unwrap_err();
    is(&error, ErrorKind::Denied);
}

#[tokio::test]
async fn a_folder_is_no_object() {
    let Some(place) = Place::new("folder") else {
        return;
    };
    place.put("d/k", "x");
    for location in ["files", "html", "json"] {
        let store = Http::new(&place.at(location)).unwrap();
        is(&store.read("d").await.unwrap_err(), ErrorKind::NotFound);
        is(&store.head("d").await.unwrap_err(), ErrorKind::NotFound);
        is(&store.read("d/").await.unwrap_err(), ErrorKind::Denied);
        assert_eq!(store.read("d/k").await.unwrap(), "x");
    }
}

#[tokio::test]
async fn row_59_a_file_that_was_replaced_is_changed() {
    let Some(place) = Place::new("changed") else {
        return;
    };
    place.put("k", "old content");
    let store = Http::new(&place.at("files")).unwrap();
    let old = store.head("k").await.unwrap().version;
    assert!(
        old.as_ref().is_some_and(|etag| etag.starts_with('"')),
        "{old:?}"
    );
    place.put("k", "new content, longer");
    is(
        &store
            .get("k", Get::range(2..5).of_version(old))
            .await
            .unwrap_err(),
        ErrorKind::Changed,
    );
}

#[tokio::test]
async fn row_64_a_redirect_to_another_port_is_refused_unless_it_is_allowed() {
    let Some(place) = Place::new("moved") else {
        return;
    };
    place.put("k", "x");
    let secret = "m0ved-s3cret";
    let url = place
        .at("moved")
        .replace("http://", &format!("http://user:{secret}@"));
    let error = Http::new(&url).unwrap().read("k").await.unwrap_err();
    is(&error, ErrorKind::Denied);
    assert!(
        error.to_string().contains("localhost") && !error.to_string().contains(secret),
        "{error}"
    );
    // The port is in the words, and nowhere else.
    let words = error.to_string();
    let port = words
        .split("localhost:")
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    let allowed = Http::builder(&url)
        .allow_redirects_to(&format!("localhost:{port}"))
        .build()
        .unwrap();
    assert_eq!(allowed.read("k").await.unwrap(), "x");
    let elsewhere = Http::builder(&url)
        .allow_redirects_to("localhost:1")
        .build()
        .unwrap();
    is(&elsewhere.read("k").await.unwrap_err(), ErrorKind::Denied);
}

#[tokio::test]
async fn row_54_a_password_opens_what_is_private_and_a_wrong_one_is_not_shown() {
    let Some(place) = Place::new("private") else {
        return;
    };
    place.put("k", "x");
    let with = |user: &str| {
        place
            .at("private")
            .replace("http://", &format!("http://{user}@"))
    };
    assert_eq!(
        Http::new(&with("datapipes:only-for-tests"))
            .unwrap()
            .read("k")
            .await
            .unwrap(),
        "x"
    );
    let builder = Http::builder(&place.at("private")).basic("datapipes", "only-for-tests");
    assert_eq!(builder.build().unwrap().read("k").await.unwrap(), "x");
    for url in [
        place.at("private"),
        with("datapipes:wr0ng-s3cret"),
        with("nobody:wr0ng-s3cret"),
    ] {
        let store = Http::new(&url).unwrap();
        let errors = [
            store.read("k").await.err(),
            store.list("").next().await.and_then(Result::err),
        ];
        for error in errors.map(Option::unwrap) {
            is(&error, ErrorKind::Denied);
            assert!(
                !format!("{error} {error:#?} {store:?}").contains("s3cret"),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn row_51_over_tls_only_who_is_vouched_for_is_believed() {
    let Some(place) = Place::new("tls") else {
        return;
    };
    let data = vec![7; 1 << 20];
    (0..8).for_each(|n| place.put(&n.to_string(), &data));
    let url = format!("{}files/tls", place.tls);
    let error = Http::new(&url).unwrap().read("0").await.unwrap_err();
    is(&error, ErrorKind::Denied);
    for negotiated in [false, true] {
        let builder = Http::builder(&url).root_certificates(&place.ca);
        let builder = if negotiated { builder.http2() } else { builder };
        let store = builder.build().unwrap();
        let reads = futures::stream::iter(0..200).map(|n| {
            let store = store.clone();
            async move { store.read(&(n % 8).to_string()).await }
        });
        let read: Vec<Bytes> = reads.buffer_unordered(64).try_collect().await.unwrap();
        assert!(read.len() == 200 && read.iter().all(|read| *read == data));
    }
    // It vouches for the name, not for any other that leads there.
    let port = place.tls.rsplit_once(':').unwrap().1;
    let other = Http::builder(&format!("https://127.0.0.2:{port}"))
        .root_certificates(&place.ca)
        .build()
        .unwrap();
    let error = other.read("files/tls/0").await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable),
        "{error}"
    );
}
