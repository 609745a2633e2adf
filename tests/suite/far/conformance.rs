//! The contract of stores, checked on every store: alone, within the usual stack of wrappers, and
//! within all wrappers at once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use datapipes::Backoff;
use datapipes_io::stores::local::Local;
use datapipes_io::stores::wrappers::{Evict, HedgePolicy, InFlight, PerSecond, TimeLimits};
use datapipes_io::stores::{Store, StoreExt, resilient};
use datapipes_io::testing::{check_store, fixtures};

/// All of them, in the order that their documentation advises.
fn stack<S: Store>(store: S, cache: &Path) -> impl Store + use<S> {
    store
        .timeout(TimeLimits::default())
        .rate(PerSecond {
            requests: 1e5,
            bytes: 1e9,
        })
        .limit(InFlight::Adaptive { most: 100 })
        .retry(Backoff::default())
        .hedge(HedgePolicy::default())
        .verify(HashMap::new())
        .cache_on_disk(cache.join("cache"), 1 << 22)
        .expect("a new folder")
        .cache_in_memory(1 << 20, Evict::Oldest)
}

async fn check(store: impl Store) {
    println!("{store:?}");
    let (store, cache) = (Arc::new(store), tempfile::tempdir().expect("a folder"));
    check_store(&store).await;
    check_store(&resilient(store.clone())).await;
    // The second time the objects are in the cache, where the next process also finds them.
    let all = stack(store.clone(), cache.path());
    check_store(&all).await;
    check_store(&all).await;
    check_store(&stack(store.clone(), cache.path())).await;
    check_store(&store.prefix("")).await;
}

/// Makes a folder hold the fixtures and no more.
fn fill(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    for (key, data) in fixtures() {
        let path = folder.join(key);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
        std::fs::write(path, data).expect("a new file");
    }
}

#[tokio::test]
async fn local_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    check(Local::new(folder.path())).await;
}

#[cfg(all(feature = "http", unix))]
#[tokio::test]
async fn the_hub_keeps_the_contract() {
    use super::hub::{FakeHub, OLD};
    let hub = FakeHub::start();
    hub.point("main", OLD);
    let fixtures = fixtures();
    let below = |key: &str| format!("some folder/{key}");
    let files: Vec<_> = fixtures
        .iter()
        .map(|(key, data)| (below(key), &data[..]))
        .collect();
    let files: Vec<_> = files.iter().map(|(path, data)| (&**path, *data)).collect();
    hub.commit(OLD, &files, 3);
    check(hub.open("hf://datasets/org/name/some%20folder")).await;
    assert_eq!(
        hub.hub.requests_to(&FakeHub::revision_path("main")).len(),
        1
    );
}

#[cfg(feature = "cloud")]
#[tokio::test]
async fn s3_keeps_the_contract() {
    use datapipes_io::stores::cloud::Cloud;
    let (Some(url), Some(folder)) = (
        super::server("DATAPIPES_TEST_S3"),
        super::server("DATAPIPES_TEST_S3_FOLDER"),
    ) else {
        return;
    };
    // A bucket of its own: listing goes through all of one, and stumbles over what others remove.
    let bucket = Path::new(&folder).with_file_name("contract-of-stores");
    fill(&bucket.join("data"));
    let (_, endpoint) = url
        .split_once("?endpoint=")
        .expect("s3://bucket?endpoint=...");
    check(Cloud::open(&format!("s3://contract-of-stores/data?endpoint={endpoint}")).unwrap()).await;
    std::fs::remove_dir_all(bucket).unwrap();
}

#[cfg(all(feature = "http", unix))]
mod web {
    use super::super::bad_http::{BadHttp, object, page};
    use super::*;
    use datapipes_io::stores::Http;
    use datapipes_io::stores::http::Listing;

    /// An entry of a folder: the link to it, its name, and the size if it is not a folder.
    type Entry = (&'static str, &'static str, Option<usize>);

    /// A server that holds the fixtures, and knows each of the ways to list them: pages below /,
    /// JSON below /json/.
    fn server() -> BadHttp {
        let server = BadHttp::start();
        let (mut lines, mut rows) = (String::new(), Vec::new());
        for (key, data) in fixtures() {
            let path = key
                .replace("%", "%25")
                .replace(' ', "%20")
                .replace('\u{e9}', "%C3%A9");
            for root in ["", "json/"] {
                server.on(&format!("/{root}{path}"), [object(data.to_vec())]);
            }
            lines += &format!("{key}\n");
            rows.push(serde_json::json!({ "name": key, "size": data.len() }));
        }
        server.on("/keys.txt", [page("text/plain", &lines)]);
        server.on(
            "/keys.json",
            [page(
                "application/json",
                &serde_json::json!(rows).to_string(),
            )],
        );
        let folders: [(&str, &[Entry]); 5] = [
            (
                "",
                &[
                    ("names/", "names/", None),
                    ("train/", "train/", None),
                    ("train-2/", "train-2/", None),
                    ("a.txt", "a.txt", Some(5)),
                    ("big.bin", "big.bin", Some(300_000)),
                    ("empty", "empty", Some(0)),
                ],
            ),
            (
                "names/",
                &[(
                    "p%2541%20q+r&amp;s=t;%C3%A9.txt",
                    "p%41 q+r&s=t;\u{e9}.txt",
                    Some(7),
                )],
            ),
            (
                "train/",
                &[
                    ("deep/", "deep/", None),
                    ("0001.bin", "0001.bin", Some(1000)),
                    ("0002.bin", "0002.bin", Some(1001)),
                ],
            ),
            ("train/deep/", &[("0003.bin", "0003.bin", Some(1))]),
            ("train-2/", &[("0001.bin", "0001.bin", Some(10))]),
        ];
        for (folder, entries) in folders {
            let links = entries
                .iter()
                .map(|(link, _, _)| format!("<a href=\"{link}\">x</a>\n"));
            let html = format!(
                "<title>Index of /</title><a href=\"../\">..</a>{}",
                links.collect::<String>()
            );
            server.on(&format!("/{folder}"), [page("text/html", &html)]);
            let entries = entries.iter().map(|(_, name, size)| match size {
                None => {
                    serde_json::json!({ "name": name.trim_end_matches('/'), "type": "directory" })
                }
                Some(size) => serde_json::json!({ "name": name, "type": "file", "size": size }),
            });
            let json = serde_json::Value::from_iter(entries).to_string();
            server.on(
                &format!("/json/{folder}"),
                [page("application/json", &json)],
            );
        }
        server
    }

    #[tokio::test]
    async fn http_keeps_the_contract() {
        let server = server();
        check(Http::new(&server.url()).unwrap()).await;
        check(Http::new(&format!("{}json", server.url())).unwrap()).await;
        for manifest in ["keys.txt", "keys.json"] {
            let http = Http::builder(&server.url()).listing(Listing::Manifest(manifest.into()));
            check(http.build().unwrap()).await;
        }
    }

    #[tokio::test]
    async fn nginx_keeps_the_contract() {
        use super::super::server as place;
        let (Some(plain), Some(tls), Some(ca), Some(folder)) = (
            place("DATAPIPES_TEST_NGINX"),
            place("DATAPIPES_TEST_NGINX_TLS"),
            place("DATAPIPES_TEST_NGINX_CA"),
            place("DATAPIPES_TEST_NGINX_FOLDER"),
        ) else {
            return;
        };
        let folder = Path::new(&folder).join("contract");
        fill(&folder);
        let ca = std::fs::read(ca).unwrap();
        for place in ["html", "json"] {
            check(Http::new(&format!("{plain}{place}/contract")).unwrap()).await;
            let tls = || Http::builder(&format!("{tls}{place}/contract")).root_certificates(&ca);
            check(tls().build().unwrap()).await;
            check(tls().http2().build().unwrap()).await;
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
