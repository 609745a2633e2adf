//! Listings of objects: row 66.

use datapipes_io::stores::http::Listing;

use super::*;

fn html(title: &str, links: &[&str]) -> Act {
    let links: String = links
        .iter()
        .map(|href| format!("<a href=\"{href}\">x</a>  01-Jan-2026 10:00  12\n"))
        .collect();
    page(
        "text/html",
        &format!("<html><head><title>{title}</title></head><body><pre>{links}</pre></body></html>"),
    )
}

/// Serves folders in nginx's format: a link to the parent, folders first, names encoded.
fn folders(server: &BadHttp) {
    server.on(
        "/d/",
        [html(
            "Index of /d/",
            &[
                "../",
                "a/",
                "b%20c/",
                "a.txt",
                "a0",
                "%F0%9F%98%80",
                "x&amp;y%3F",
            ],
        )],
    );
    server.on(
        "/d/a/",
        [html("Index of /d/a/", &["../", "deep/", "1", "10", "2"])],
    );
    server.on(
        "/d/a/deep/",
        [html("Index of", &["../", "%252F", "line%0Aend"])],
    );
    server.on("/d/b%20c/", [html("Index of", &["../"])]);
}

const ALL: [&str; 9] = [
    "a.txt",
    "a/1",
    "a/10",
    "a/2",
    "a/deep/%2F",
    "a/deep/line\nend",
    "a0",
    "x&y?",
    "\u{1f600}",
];

fn below(server: &BadHttp, folder: &str, listing: Listing) -> Http {
    Http::builder(&format!("{}{folder}", server.url()))
        .listing(listing)
        .build()
        .unwrap()
}

#[tokio::test]
async fn row_66_pages_are_walked_in_order_of_bytes_and_every_key_comes_once() {
    let server = BadHttp::start();
    folders(&server);
    for listing in [Listing::Auto, Listing::Pages] {
        let store = below(&server, "d", listing);
        assert_eq!(keys(&store, "").await, ALL);
        for prefix in ["a", "a/", "a/1", "a/deep/l", "a.", "b c/", "zzz", "x&"] {
            let expected: Vec<_> = ALL
                .into_iter()
                .filter(|key| key.starts_with(prefix))
                .collect();
            assert_eq!(keys(&store, prefix).await, expected, "{prefix}");
        }
    }
    // Listed keys can be read.
    let store = below(&server, "d", Listing::Auto);
    for (key, path) in [
        ("a/deep/%2F", "/d/a/deep/%252F"),
        ("x&y?", "/d/x&y%3F"),
        ("a/deep/line\nend", "/d/a/deep/line%0Aend"),
    ] {
        server.on(path, [object(key)]);
        assert_eq!(store.read(key).await.unwrap(), key.as_bytes());
    }
}

#[tokio::test]
async fn row_66_folders_are_asked_for_as_the_listing_is_polled() {
    let server = BadHttp::start();
    folders(&server);
    let store = below(&server, "d", Listing::Pages);
    let mut listing = store.list("");
    assert_eq!(server.requests().len(), 0);
    assert_eq!(listing.next().await.unwrap().unwrap().key, "a.txt");
    assert_eq!(server.requests().len(), 1);
    assert_eq!(listing.next().await.unwrap().unwrap().key, "a/1");
    assert_eq!(server.requests().len(), 2);
    drop(listing);
    let mut within = store.list("a/deep/");
    assert_eq!(within.next().await.unwrap().unwrap().key, "a/deep/%2F");
    assert_eq!(server.requests().last().unwrap().path, "/d/a/deep/");
}

#[tokio::test]
async fn row_66_folders_in_json_tell_sizes() {
    let nginx = r#"[
        { "name":"sub", "type":"directory", "mtime":"Wed, 19 Nov 2026 10:00:00 GMT" },
        { "name":"b#\u000A", "type":"file", "mtime":"x", "size":7 },
        { "name":"a", "type":"file", "size":0 }, { "name":"pipe", "type":"other" }
    ]"#;
    let caddy = r#"[{"name":"deep/","size":4096,"url":"./deep/","is_dir":true},{"name":"x","size":9,"is_dir":false}]"#;
    let server = BadHttp::start();
    server.on("/", [page("application/json", nginx)]);
    server.on("/sub/", [page("application/json; charset=utf-8", caddy)]);
    server.on("/sub/deep/", [page("application/json", "[]")]);
    for listing in [Listing::Auto, Listing::Pages] {
        let found = metas(&below(&server, "", listing), "").await;
        let found: Vec<_> = found.iter().map(|meta| (&*meta.key, meta.size)).collect();
        assert_eq!(
            found,
            [("a", Some(0)), ("b#\n", Some(7)), ("sub/x", Some(9))]
        );
    }
}

#[tokio::test]
async fn row_66_names_that_are_no_keys_are_errors_in_their_places() {
    let server = BadHttp::start();
    server.on(
        "/",
        [html(
            "Index of /",
            &["a", "b%2Fc", "%ff", "z", "z", "z/", "%00"],
        )],
    );
    server.on(
        "/z/",
        [html(
            "Index of /",
            &["../", "../y", "/z/x", "//else.example/z/w"],
        )],
    );
    let found: Vec<_> = below(&server, "", Listing::Pages).list("").collect().await;
    let good: Vec<_> = found.iter().flatten().map(|meta| &*meta.key).collect();
    assert_eq!(good, ["\0", "a", "z", "z/x"]);
    assert_eq!(found.len(), 6);
    for error in found.iter().filter_map(|found| found.as_ref().err()) {
        is(error, ErrorKind::Corrupt, false);
    }
}

#[tokio::test]
async fn row_66_a_page_that_is_no_folder_is_not_taken_for_one() {
    let server = BadHttp::start();
    server.on("/", [html("Welcome", &["a", "b"])]);
    let error = below(&server, "", Listing::Auto)
        .list("")
        .next()
        .await
        .unwrap()
        .unwrap_err();
    is(&error, ErrorKind::Corrupt, false);
    assert!(
        error.to_string().contains("no manifest, and no listing"),
        "{error}"
    );
    // A caller that states the format overrides detection.
    assert_eq!(
        keys(&below(&server, "", Listing::Pages), "").await,
        ["a", "b"]
    );
    server.on("/", [page("text/plain", "a")]);
    is(
        &below(&server, "", Listing::Pages)
            .list("")
            .next()
            .await
            .unwrap()
            .unwrap_err(),
        ErrorKind::Corrupt,
        false,
    );
}

#[tokio::test]
async fn row_66_folders_without_an_end_have_one() {
    let server = BadHttp::start();
    let mut path = "/".to_owned();
    for _ in 0..80 {
        server.on(&path, [html("Index of", &["loop/"])]);
        path += "loop/";
    }
    let found: Vec<_> = below(&server, "", Listing::Pages).list("").collect().await;
    assert_eq!(found.len(), 1);
    is(found[0].as_ref().unwrap_err(), ErrorKind::Limit, false);
}

#[tokio::test]
async fn a_listing_ends_at_an_error() {
    let server = BadHttp::start();
    server
        .on("/", [html("Index of", &["a", "b/", "c"])])
        .on("/b/", [status(503, "busy")]);
    let found: Vec<_> = below(&server, "", Listing::Pages).list("").collect().await;
    assert_eq!(found.len(), 2);
    is(found[1].as_ref().unwrap_err(), ErrorKind::Unavailable, true);
    for listing in [
        Listing::Pages,
        Listing::Auto,
        Listing::Manifest("none".into()),
    ] {
        let empty = BadHttp::start();
        let found: Vec<_> = below(&empty, "", listing).list("").collect().await;
        assert_eq!(found.len(), 1);
        is(found[0].as_ref().unwrap_err(), ErrorKind::NotFound, false);
    }
}

#[tokio::test]
async fn row_66_a_manifest_is_found_or_named() {
    let server = BadHttp::start();
    server.on(
        "/index.txt",
        [page(
            "text/plain",
            "./a/1\t5\r\na/2\t\t\"v\"\na/2\nb\n../up\n",
        )],
    );
    server.on(
        "/lists/all",
        [page(
            "application/json",
            r#"["x", {"name": "y", "size": 3}, ["train/z.jpg", 3, 21896]]"#,
        )],
    );
    let auto = below(&server, "", Listing::Auto);
    let found: Vec<_> = auto.list("a/").collect().await;
    let metas: Vec<_> = found
        .iter()
        .flatten()
        .map(|meta| (&*meta.key, meta.size, meta.version.as_deref()))
        .collect();
    assert_eq!(
        metas,
        [("a/1", Some(5), None), ("a/2", None, Some("\"v\""))]
    );
    is(found[2].as_ref().unwrap_err(), ErrorKind::Corrupt, false);
    let named = below(&server, "", Listing::Manifest("lists/all".into()));
    assert_eq!(keys(&named, "").await, ["x", "y", "train/z.jpg"]);
    assert_eq!(keys(&named, "y").await, ["y"]);
}

#[tokio::test]
async fn row_66_a_manifest_that_is_cut_is_not_taken_for_the_whole() {
    let server = BadHttp::start();
    server.on("/index.txt", [cut_body(b"a\nb\nc\n", 3)]);
    let found: Vec<_> = below(&server, "", Listing::Manifest("index.txt".into()))
        .list("")
        .collect()
        .await;
    assert_eq!(
        found
            .iter()
            .flatten()
            .map(|meta| &*meta.key)
            .collect::<Vec<_>>(),
        ["a"]
    );
    is(found[1].as_ref().unwrap_err(), ErrorKind::Truncated, true);
    server.on("/all.json", [page("text/plain", "[\"a\", \"b\"")]);
    let found: Vec<_> = below(&server, "", Listing::Manifest("all.json".into()))
        .list("")
        .collect()
        .await;
    is(
        found.last().unwrap().as_ref().unwrap_err(),
        ErrorKind::Corrupt,
        false,
    );
}

#[tokio::test]
async fn row_66_a_million_keys_come_line_by_line() {
    let server = BadHttp::start();
    let lines: String = (0..1_000_000)
        .map(|n| format!("train/{n:07}.jpg\t115000\n"))
        .collect();
    server.on("/index.txt", [page("text/plain", &lines)]);
    drop(lines);
    let store = below(&server, "", Listing::Manifest("index.txt".into()));
    let mut listing = store.list("train/");
    // The first key arrives before the last one has been sent.
    assert_eq!(
        listing.next().await.unwrap().unwrap().key,
        "train/0000000.jpg"
    );
    let mut at = 1;
    while let Some(meta) = listing.next().await {
        let meta = meta.unwrap();
        assert!(
            meta.size == Some(115_000) && meta.key[6..13].parse() == Ok(at),
            "{meta:?}"
        );
        at += 1;
    }
    assert_eq!(at, 1_000_000);
}
