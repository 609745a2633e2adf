//! The store of the Hugging Face Hub against a server that answers as it does.

use std::io::Write;
use std::sync::Arc;

use datapipes::{Backoff, DataLoader, Graph, Indexed, OnError};
use datapipes_io::formats::{IndexedJsonLines, JsonLines};
use datapipes_io::prelude::*;
use datapipes_io::stores::{Hub, resilient};
use datapipes_io::{File, list_files};

use super::*;
use crate::support::hub::*;

const URL: &str = "hf://datasets/org/name";
const BIG: &[u8] = b"0123456789 is in a large file";

/// A hub with a commit of four files, on its main branch.
fn hub() -> FakeHub {
    let hub = FakeHub::start();
    hub.point("main", OLD);
    let files: [(&str, &[u8]); 4] = [
        ("README.md", b"read me"),
        ("a/1.bin", BIG),
        ("a/b/x y%.txt", b"deep"),
        ("a0", b""),
    ];
    hub.commit(OLD, &files, 3);
    hub
}

async fn listed(store: &impl Store, prefix: &str) -> Vec<String> {
    let metas: Vec<Meta> = store.list(prefix).try_collect().await.expect("a listing");
    metas.into_iter().map(|meta| meta.key).collect()
}

/// Returns the error of reading a file from a hub that gives these acts for it.
async fn refused(act: Act, token: Option<&str>) -> Error {
    let hub = hub();
    hub.hub.on(&FakeHub::resolve_path(OLD, "k"), [act]);
    let store = match token {
        Some(token) => hub.builder(URL).token(token).build().unwrap(),
        None => hub.open(URL),
    };
    let error = store.read("k").await.unwrap_err();
    assert!(
        error.to_string().contains("hf://datasets/org/name/k: "),
        "{error}"
    );
    error
}

#[tokio::test]
async fn files_are_read_at_one_commit_and_the_branch_is_asked_for_once() {
    let hub = hub();
    let store = hub.open(URL);
    assert_eq!(hub.hub.requests().len(), 0);
    let reads = (0..8).map(|_| store.read("a/1.bin"));
    for data in futures::future::join_all(reads).await {
        assert_eq!(data.unwrap(), BIG);
    }
    assert_eq!(store.read("README.md").await.unwrap(), "read me");
    assert_eq!(store.read("a/b/x y%.txt").await.unwrap(), "deep");
    let head = store.head("a/1.bin").await.unwrap();
    assert_eq!(
        (head.size, head.version.as_deref()),
        (Some(BIG.len() as u64), Some(OLD))
    );
    let part = store.get("a/1.bin", Get::range(3..7)).await.unwrap();
    assert_eq!(part.url, "hf://datasets/org/name/a/1.bin");
    assert_eq!(part.bytes().await.unwrap(), "3456");
    let empty = store.get("a0", Get::range(0..5)).await.unwrap();
    assert_eq!(
        (empty.meta.size, empty.bytes().await.unwrap().len()),
        (Some(0), 0)
    );
    // The branch moves; the store and what was made of it do not notice.
    hub.point("main", NEW);
    assert_eq!(store.clone().read("README.md").await.unwrap(), "read me");
    assert_eq!(store.revision().await.unwrap().as_deref(), Some(OLD));
    assert_eq!(
        hub.hub.requests_to(&FakeHub::revision_path("main")).len(),
        1
    );
    // A version is a commit.
    let get = |commit: &str| Get::default().of_version(commit.to_owned());
    assert!(store.get("README.md", get(OLD)).await.is_ok());
    let error = store.get("README.md", get(NEW)).await.unwrap_err();
    is(&error, ErrorKind::Changed, false);
    assert!(
        error.to_string().contains(OLD) && error.to_string().contains(NEW),
        "{error}"
    );
    // A run that begins now reads the new commit.
    assert_eq!(
        hub.open(URL).revision().await.unwrap().as_deref(),
        Some(NEW)
    );
}

#[tokio::test]
async fn a_commit_in_the_url_and_revisions_of_all_forms_are_asked_for_as_they_are_named() {
    let hub = hub();
    let store = hub.open(&format!("{URL}@{OLD}"));
    assert_eq!(store.read("README.md").await.unwrap(), "read me");
    assert!(
        hub.hub
            .requests()
            .iter()
            .all(|asked| !asked.path.contains("/revision/"))
    );
    for (revision, path) in [
        ("@v1.0_x", "v1.0_x"),
        ("@refs/convert/parquet", "refs%2Fconvert%2Fparquet"),
        ("@refs%2Fpr%2F7", "refs%2Fpr%2F7"),
    ] {
        hub.point(path, OLD);
        let store = hub.open(&format!("{URL}{revision}/a/b"));
        assert_eq!(store.read("x y%.txt").await.unwrap(), "deep", "{revision}");
    }
    let store = hub
        .builder(&format!("{URL}@v1.0_x"))
        .revision("refs/pr/7")
        .build()
        .unwrap();
    assert_eq!(store.read("README.md").await.unwrap(), "read me");
    // A model has no folder of its own.
    let said = format!(r#"{{"sha":"{OLD}"}}"#);
    hub.hub.on(
        "/api/models/org/m/revision/main?expand=sha",
        [page("application/json", &said)],
    );
    hub.hub
        .on(&format!("/org/m/resolve/{OLD}/k"), [object("weights")]);
    assert_eq!(hub.open("hf://org/m").read("k").await.unwrap(), "weights");
}

#[tokio::test]
async fn row_66_pages_of_a_listing_are_followed_and_listed_once_in_order_of_bytes() {
    let hub = hub();
    let store = hub.open(URL);
    let all = ["README.md", "a/1.bin", "a/b/x y%.txt", "a0"];
    let (one, two) = futures::join!(listed(&store, ""), listed(&store, ""));
    assert_eq!(
        (one, two),
        (all.map(str::to_owned).into(), all.map(str::to_owned).into())
    );
    let asked = hub.hub.requests().len();
    assert_eq!(
        asked,
        3,
        "the revision and two pages: {:?}",
        hub.hub.requests()
    );
    for prefix in ["a", "a/", "a/b", "a/1.bin", "a0", "nothing/"] {
        let expected: Vec<_> = all
            .into_iter()
            .filter(|key| key.starts_with(prefix))
            .collect();
        assert_eq!(listed(&store, prefix).await, expected, "{prefix}");
    }
    assert_eq!(hub.hub.requests().len(), asked);
    let metas: Vec<Meta> = store.list("a/1").try_collect().await.unwrap();
    assert_eq!(metas[0], store.head("a/1.bin").await.unwrap());
    assert_eq!(
        hub.hub.requests().len(),
        asked,
        "what is listed is not asked for"
    );
    let fresh = hub.open(URL).head("a/1.bin").await.unwrap();
    assert_eq!(metas[0], fresh);
    assert!(listed(&store, "../").await.is_empty());
    // A folder alone is listed alone.
    let store = hub.open(&format!("{URL}/a"));
    assert_eq!(listed(&store, "").await, ["1.bin", "b/x y%.txt"]);
    assert_eq!(
        hub.hub.requests().last().unwrap().path,
        FakeHub::tree_path(OLD, "a")
    );
    hub.hub.on(
        &FakeHub::tree_path(OLD, "none"),
        [FakeHub::refuse(404, "EntryNotFound")],
    );
    assert!(
        listed(&hub.open(&format!("{URL}/none")), "")
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn row_66_listings_that_lie_are_named_and_end() {
    let file = |path: &str, more: &str| format!(r#"{{"type":"file","path":"{path}"{more}}}"#);
    let hub = hub();
    let tree = FakeHub::tree_path(OLD, "");
    let names = [
        "../up",
        "/etc/passwd",
        "a/../b",
        "ok",
        "ok/",
        "",
        "size",
        "ok",
    ];
    let entries: Vec<String> = names
        .iter()
        .map(|path| file(path, if *path == "size" { "" } else { r#","size":1"# }))
        .collect();
    hub.pages(&tree, &entries, 3);
    let found: Vec<_> = hub.open(URL).list("").collect().await;
    let (good, bad): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
    let good: Vec<_> = good
        .into_iter()
        .map(Result::unwrap)
        .map(|meta| (meta.key, meta.size))
        .collect();
    assert_eq!(good, [("ok".into(), Some(1)), ("size".into(), None)]);
    assert_eq!(bad.len(), 5);
    bad.iter()
        .for_each(|error| is(error.as_ref().unwrap_err(), ErrorKind::Corrupt, false));

    let link = |to: &str| format!("Link: <{to}>; rel=\"next\"\r\n");
    let one = format!("[{}]", file("k", ""));
    let other = BadHttp::start();
    let acts = [
        (
            page("text/html", "<html>sign in</html>"),
            ErrorKind::Corrupt,
        ),
        (status(200, r#"{"error":"no"}"#), ErrorKind::Corrupt),
        (
            status(200, &format!("[{}]", file("k", r#","size":"9""#))),
            ErrorKind::Corrupt,
        ),
        (
            status(200, &format!("[{}]", file("k", r#","size":-1"#))),
            ErrorKind::Corrupt,
        ),
        (
            status(200, r#"[{"type":"file","path":7,"size":1}]"#),
            ErrorKind::Corrupt,
        ),
        (
            status(200, r#"[{"path":"k","size":1}]"#),
            ErrorKind::Corrupt,
        ),
        (
            status(
                200,
                &format!(
                    "[{},{}]",
                    file("k", r#","size":1"#),
                    file("k", r#","size":2"#)
                ),
            ),
            ErrorKind::Corrupt,
        ),
        (status(200, "[1"), ErrorKind::Corrupt),
        // Pages without end.
        (status_with(200, &link(&tree), &one), ErrorKind::Corrupt),
        (
            status_with(200, &link("?cursor=1"), "[]"),
            ErrorKind::Corrupt,
        ),
        (
            status_with(200, &link(&format!("{}api", other.url())), &one),
            ErrorKind::Denied,
        ),
        (
            status_with(200, &link("http://169.254.169.254/"), &one),
            ErrorKind::Denied,
        ),
    ];
    for (act, kind) in acts {
        hub.hub.on(&tree, [act.clone()]);
        let store = hub.builder(URL).token("hf_marker").build().unwrap();
        let found: Vec<_> = store.list("").collect().await;
        assert_eq!(found.len(), 1, "{act:?}");
        is(found[0].as_ref().unwrap_err(), kind, false);
    }
    assert_eq!(other.connections(), 0);
    // A page that is cut is requested again, from the first one on.
    let entries = [file("a", ""), file("b", "")];
    hub.pages(&tree, &entries, 1);
    let text = format!("[{}]", entries[1]);
    let whole = status_with(200, "", &text);
    hub.hub.on(
        &format!("{tree}&cursor=1"),
        [cut_body(text.as_bytes(), 9), whole],
    );
    let store = hub.open(URL);
    is(
        store.list("").next().await.unwrap().as_ref().unwrap_err(),
        ErrorKind::Truncated,
        true,
    );
    assert_eq!(listed(&store, "").await, ["a", "b"]);
}

#[test]
fn row_66_no_policy_skips_the_rest_of_a_listing() {
    let hub = hub();
    let files = || {
        let graph = hub.open(URL).list_files("**");
        let loader = DataLoader::builder(graph).on_error(OnError::skip(100));
        let epoch = loader.build().unwrap().epoch(0).blocking();
        epoch
            .map(|file| Ok(file?.name().into_owned()))
            .collect::<datapipes::Result<Vec<_>>>()
    };
    assert_eq!(files().unwrap().len(), 4);
    // The second page is refused.
    let second = format!("{}&cursor=1", FakeHub::tree_path(OLD, ""));
    hub.hub.on(&second, [status(500, "no")]);
    let error = files().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn row_64_the_token_goes_to_the_hub_alone() {
    let hub = hub();
    let store = hub.builder(URL).token("hf_marker").build().unwrap();
    assert_eq!(listed(&store, "").await.len(), 4);
    assert_eq!(store.read("a/1.bin").await.unwrap(), BIG);
    assert_eq!(store.read("README.md").await.unwrap(), "read me");
    for asked in hub.hub.requests() {
        assert_eq!(
            asked.header("authorization"),
            Some("Bearer hf_marker"),
            "{asked:?}"
        );
    }
    let heard = hub.files.requests();
    assert_eq!(heard.len(), 1);
    for asked in heard {
        assert!(
            asked
                .headers
                .iter()
                .all(|(_, value)| !value.contains("marker")),
            "{asked:?}"
        );
        assert!(asked.header("authorization").is_none(), "{asked:?}");
    }
    // Redirects that lead nowhere, and where none may.
    for (to, kind) in [
        (FakeHub::resolve_path(OLD, "k"), ErrorKind::Protocol),
        (
            "http://169.254.169.254/marker".to_owned(),
            ErrorKind::Denied,
        ),
        ("ftp://cdn.example/marker".to_owned(), ErrorKind::Denied),
    ] {
        let error = refused(redirect(&to), Some("hf_marker")).await;
        is(&error, kind, false);
        assert!(!format!("{error} {error:#?}").contains("hf_marker"));
    }
}

#[tokio::test]
async fn a_signed_url_is_used_again_until_it_is_refused() {
    let hub = hub();
    let store = hub.open(URL);
    let resolve = FakeHub::resolve_path(OLD, "a/1.bin");
    let read = async |from: u64| {
        let object = store
            .get("a/1.bin", Get::range(from..from + 2))
            .await
            .unwrap();
        assert_eq!(
            object.bytes().await.unwrap(),
            BIG[from as usize..from as usize + 2]
        );
        hub.hub.requests_to(&resolve).len()
    };
    assert_eq!([read(0).await, read(2).await, read(4).await], [1, 1, 1]);
    let signed = hub.files.requests()[0].path.clone();
    hub.files
        .on(&signed, [status(403, "Request has expired"), object(BIG)]);
    assert_eq!([read(6).await, read(8).await], [2, 2]);
    // A file that the hub serves without a redirect is requested from the hub each time.
    for _ in 0..2 {
        store.get("README.md", Get::range(0..2)).await.unwrap();
    }
    assert_eq!(
        hub.hub
            .requests_to(&FakeHub::resolve_path(OLD, "README.md"))
            .len(),
        2
    );
}

#[tokio::test]
async fn ranges_are_asked_for_by_resolve_alone() {
    let hub = hub();
    let store = hub.open(URL);
    check_ranges_of(&store, "a/1.bin", BIG).await;
    check_ranges_of(&store, "README.md", b"read me").await;
    // Some files of `/api` answer 416 to ranges; the cache is where `resolve` leads to.
    let requests = hub.hub.requests();
    let ranged = requests
        .iter()
        .filter(|request| request.header("range").is_some());
    let resolved = FakeHub::resolve_path(OLD, "");
    let is_of_resolve =
        |path: &str| path.starts_with(&resolved) || path.starts_with("/api/resolve-cache/");
    let elsewhere = ranged.clone().find(|request| !is_of_resolve(&request.path));
    assert!(elsewhere.is_none(), "{}", elsewhere.unwrap().path);
    assert!(ranged.count() > 6);
}

async fn check_ranges_of(store: &Hub, key: &str, data: &[u8]) {
    let size = data.len() as u64;
    for (start, end) in [
        (0, size),
        (3, 7),
        (3, u64::MAX),
        (4, 4),
        (size, size + 5),
        (0, size + 1),
    ] {
        let object = store.get(key, Get::range(start..end)).await.unwrap();
        assert_eq!(
            (object.range.clone(), object.meta.size),
            (start..end.min(size), Some(size))
        );
        assert_eq!(
            object.bytes().await.unwrap(),
            data[start as usize..end.min(size) as usize]
        );
    }
    is(
        &store
            .get(key, Get::range(size + 1..size + 2))
            .await
            .unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
}

#[tokio::test]
async fn row_54_what_the_hub_refuses_is_said_with_what_to_do() {
    let with = Some("hf_marker");
    for (status, code, token, kind, words) in [
        (
            401,
            "GatedRepo",
            None,
            ErrorKind::Denied,
            "/datasets/org/name, and set HF_TOKEN",
        ),
        (
            403,
            "GatedRepo",
            with,
            ErrorKind::Denied,
            "the account of the token has not accepted",
        ),
        (
            401,
            "RepoNotFound",
            None,
            ErrorKind::NotFound,
            "org/name, or it is private: set HF_TOKEN",
        ),
        (
            404,
            "RepoNotFound",
            with,
            ErrorKind::NotFound,
            "no data set org/name",
        ),
        (
            404,
            "RevisionNotFound",
            None,
            ErrorKind::NotFound,
            "no branch, tag or commit main",
        ),
        (
            404,
            "EntryNotFound",
            None,
            ErrorKind::NotFound,
            "no such file in the data set",
        ),
        (401, "", with, ErrorKind::Denied, "does not know the token"),
        (401, "", None, ErrorKind::Denied, "set HF_TOKEN"),
        (403, "", with, ErrorKind::Denied, "it is so"),
    ] {
        let error = refused(FakeHub::refuse(status, code), token).await;
        is(&error, kind, false);
        assert!(error.to_string().contains(words), "{error}");
        assert!(!format!("{error:#?}").contains("hf_marker"));
    }
    // The same holds for the requests of the revision and of the listing.
    let hub = FakeHub::start();
    hub.hub.on(
        &FakeHub::revision_path("main"),
        [FakeHub::refuse(401, "GatedRepo")],
    );
    for error in [
        hub.open(URL).read("k").await.err(),
        hub.open(URL).list("").next().await.unwrap().err(),
    ] {
        assert!(error.unwrap().to_string().contains("accept them at"));
    }
    for lie in [
        "",
        "[]",
        "{}",
        r#"{"sha":7}"#,
        r#"{"sha":"main"}"#,
        r#"{"sha":"../../etc"}"#,
    ] {
        hub.hub
            .on(&FakeHub::revision_path("main"), [status(200, lie)]);
        is(
            &hub.open(URL).read("k").await.unwrap_err(),
            ErrorKind::Protocol,
            false,
        );
    }
}

#[tokio::test]
async fn row_53_the_hub_is_given_the_time_that_it_asks_for() {
    let asks = async |header: &str| {
        let error = refused(status_with(429, header, ""), None).await;
        is(&error, ErrorKind::Unavailable, true);
        error.retry_after().map(|pause| pause.as_secs())
    };
    assert_eq!(asks("Retry-After: 3\r\n").await, Some(3));
    assert_eq!(asks("RateLimit: \"resolvers\";r=0;t=4\r\n").await, Some(5));
    let hub = hub();
    let quick = Backoff {
        first: Duration::from_millis(1),
        ..Backoff::default()
    };
    let busy = [
        status_with(429, "Retry-After: 0\r\n", ""),
        status(503, ""),
        status(504, ""),
    ];
    let answers = |good: Act| busy.clone().into_iter().chain([good]);
    let path = FakeHub::resolve_path(OLD, "k");
    hub.hub.on(&path, answers(object("data")));
    let said = format!(r#"{{"sha":"{OLD}"}}"#);
    hub.hub
        .on(&FakeHub::revision_path("main"), answers(status(200, &said)));
    hub.hub
        .on(&FakeHub::tree_path(OLD, ""), answers(status(200, "[]")));
    let store = hub.open(URL).retry(quick);
    assert_eq!(store.revision().await.unwrap().as_deref(), Some(OLD));
    assert_eq!(store.read("k").await.unwrap(), "data");
    assert!(listed(&store, "").await.is_empty());
}

#[tokio::test]
async fn a_renamed_repository_is_found_and_named_anew_once() {
    let hub = hub();
    let said = format!(r#"{{"id":"org/name","sha":"{OLD}"}}"#);
    let moved = FakeHub::revision_path("main");
    hub.hub.on(&moved, [page("application/json", &said)]);
    let headers = format!("Location: {moved}\r\n");
    hub.hub.on(
        "/api/datasets/before/was/revision/main?expand=sha",
        [status_with(307, &headers, "")],
    );
    let store = hub
        .builder("hf://datasets/before/was")
        .token("hf_marker")
        .build()
        .unwrap();
    assert_eq!(store.read("README.md").await.unwrap(), "read me");
    assert_eq!(listed(&store, "").await.len(), 4);
    assert_eq!(store.url_of("k"), "hf://datasets/before/was/k");
    let old = hub
        .hub
        .requests()
        .iter()
        .filter(|asked| asked.path.contains("before"))
        .count();
    assert_eq!(old, 1);
    // By a commit nothing is asked beforehand: the hub redirects each request.
    let path = format!("/datasets/before/was/resolve/{OLD}/README.md");
    let headers = format!("Location: {}\r\n", FakeHub::resolve_path(OLD, "README.md"));
    hub.hub.on(&path, [status_with(307, &headers, "")]);
    let store = hub.open(&format!("hf://datasets/before/was@{OLD}"));
    assert_eq!(store.read("README.md").await.unwrap(), "read me");
    let lie = format!(r#"{{"id":"../../api","sha":"{OLD}"}}"#);
    hub.hub.on(&moved, [page("application/json", &lie)]);
    is(
        &hub.open(URL).read("k").await.unwrap_err(),
        ErrorKind::Protocol,
        false,
    );
}

#[tokio::test]
async fn row_59_a_cache_on_disk_is_of_one_commit() {
    let (hub, folder) = (hub(), tempfile::tempdir().unwrap());
    let cached = |url: &str| {
        hub.open(url)
            .cache_on_disk(folder.path().join("c"), 1 << 20)
            .unwrap()
    };
    assert_eq!(cached(URL).read("README.md").await.unwrap(), "read me");
    let asked = hub.hub.requests().len();
    assert_eq!(cached(URL).read("README.md").await.unwrap(), "read me");
    assert_eq!(
        hub.hub.requests().len(),
        asked + 1,
        "the commit of the branch"
    );
    // The same by the name of the commit, from the disk alone.
    assert_eq!(
        cached(&format!("{URL}@{OLD}"))
            .read("README.md")
            .await
            .unwrap(),
        "read me"
    );
    assert_eq!(hub.hub.requests().len(), asked + 1);
    hub.point("main", NEW);
    hub.commit(NEW, &[("README.md", b"read it")], 9);
    assert_eq!(cached(URL).read("README.md").await.unwrap(), "read it");
}

/// Shards of JSON lines, compressed.
fn shards(count: usize, mark: &str) -> Vec<(String, Vec<u8>)> {
    let shard = |n: usize| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        (0..20).for_each(|line| writeln!(gzip, "\"{mark}{n}.{line}\"").unwrap());
        (format!("train/{n}.jsonl.gz"), gzip.finish().unwrap())
    };
    (0..count).map(shard).collect()
}

fn serve(hub: &FakeHub, commit: &str, mark: &str) {
    let shards = shards(5, mark);
    let files: Vec<_> = shards
        .iter()
        .map(|(path, data)| (&**path, &**data))
        .collect();
    hub.commit(commit, &files, 2);
}

fn texts(store: impl Store) -> DataLoader<String> {
    let texts = store
        .list_files("train/*.jsonl.gz")
        .load_files()
        .decompress()
        .read_as(JsonLines::<String>::new())
        .shuffle(30);
    DataLoader::builder(texts)
        .seed(7)
        .workers(2)
        .resumable()
        .build()
        .expect("a loader")
}

#[test]
fn row_59_an_epoch_that_is_resumed_goes_on_with_its_commit() {
    let hub = FakeHub::start();
    hub.point("main", OLD);
    serve(&hub, OLD, "old");
    let store = || Arc::new(resilient(hub.open(URL)));
    let all: Vec<String> = texts(store())
        .epoch(0)
        .blocking()
        .map(Result::unwrap)
        .collect();
    assert_eq!(all.len(), 100);
    for stop in [1, 33, 70] {
        hub.point("main", OLD);
        let first = texts(store());
        let mut epoch = first.epoch(0).blocking();
        let before: Vec<String> = epoch.by_ref().take(stop).map(Result::unwrap).collect();
        let state = epoch.checkpoint().unwrap();
        drop(epoch);
        // Files of the same names and sizes, with other content.
        hub.point("main", NEW);
        serve(&hub, NEW, "new");
        let rest = texts(store())
            .resume(&state)
            .unwrap()
            .blocking()
            .map(Result::unwrap);
        assert_eq!(
            before.into_iter().chain(rest).collect::<Vec<_>>(),
            all,
            "{stop}"
        );

        // A store that has read another commit does not go back.
        let (store, runtime) = (store(), tokio::runtime::Runtime::new().unwrap());
        let read = runtime.block_on(store.revision()).unwrap();
        assert_eq!(read.as_deref(), Some(NEW));
        let mut rest = texts(store).resume(&state).unwrap().blocking();
        let error = rest.next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(
            error.to_string().contains(OLD) && error.to_string().contains(NEW),
            "{error}"
        );
    }
}

#[test]
fn row_59_an_epoch_by_key_or_index_goes_on_with_its_commit_or_is_refused() {
    let hub = FakeHub::start();
    for (commit, mark) in [(OLD, "old"), (NEW, "new")] {
        let lines: String = (0..9).map(|n| format!("\"{mark}{n}\"\n")).collect();
        hub.commit(commit, &[("a.jsonl", lines.as_bytes())], 9);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let loader = |url: &str| {
        let lines = IndexedJsonLines::<String>::open(hub.open(url), "a.jsonl");
        let lines = Indexed::new(runtime.block_on(lines).unwrap());
        let loader = DataLoader::builder(lines.shuffle().fetch()).resumable();
        loader.build().unwrap()
    };
    hub.point("main", OLD);
    let first = loader(URL);
    let mut epoch = first.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let state = epoch.checkpoint().unwrap();
    let rest: Vec<String> = epoch.map(Result::unwrap).collect();
    // Lines of the same numbers and lengths, of other content.
    hub.point("main", NEW);
    let error = loader(URL).resume(&state).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let said = error.to_string();
    assert!(said.contains(OLD) && said.contains(NEW), "{said}");
    let pinned = format!("{URL}@{OLD}");
    let resumed = loader(&pinned).resume(&state).unwrap().blocking();
    assert_eq!(resumed.map(Result::unwrap).collect::<Vec<_>>(), rest);

    // The commit of a branch is not known before something is read.
    let graphs: [fn(Hub) -> Graph<File>; 2] = [
        |hub| hub.index(["a.jsonl"]).fetch(),
        |hub| resilient(hub).prefix("").files(["a.jsonl"]).load_files(),
    ];
    for graph in graphs {
        let build = |url: &str| {
            DataLoader::builder(graph(hub.open(url)))
                .resumable()
                .build()
        };
        let said = build(URL).unwrap_err().to_string();
        assert!(said.contains("the full name of the commit"), "{said}");
        let explained = build(&pinned).unwrap().explain().to_string();
        assert!(explained.contains(OLD), "{explained}");
        assert_eq!(graph(hub.open(URL)).collect().unwrap().len(), 1);
    }
}

#[test]
fn a_url_is_listed_as_a_folder_is() {
    let graph = list_files("hf://datasets/org/name?x", "*").load_files();
    let error = DataLoader::builder(graph).build().unwrap_err().to_string();
    assert!(
        error.contains("hf://datasets/org/name: a ? or # is percent-encoded"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a b.txt"), "text").unwrap();
    let url = format!("file://{}", folder.path().display());
    let files = list_files(url, "*.txt").load_files().collect().unwrap();
    assert_eq!(
        (&*files[0].name, &files[0].data[..]),
        ("a b.txt", &b"text"[..])
    );
}
