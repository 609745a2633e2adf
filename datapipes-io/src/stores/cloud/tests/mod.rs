//! Tests against a local service that gives the answers of each test.

mod faults;
mod secrets;
mod service;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datapipes::{ErrorKind, Result};
use futures::{StreamExt, TryStreamExt};

use self::service::{Reply, Request, Service};
use super::{Cloud, CloudBuilder};
use crate::stores::{Get, Meta, Store};

/// Returns a bucket of the service, used with keys, and without the real environment.
fn s3(service: &Service) -> CloudBuilder {
    alone(Cloud::s3("bucket"))
        .endpoint(service.url())
        .keys("id", "key")
}

fn alone(builder: CloudBuilder) -> CloudBuilder {
    builder.in_environment(&[])
}

/// Formats a page of a listing, in the XML of S3.
fn page(keys: &[&str], next: Option<&str>) -> Reply {
    let mut xml = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
    for key in keys {
        xml += &format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>&quot;e&quot;</ETag><Size>0</Size></Contents>"
        );
    }
    if let Some(next) = next {
        xml += &format!("<NextContinuationToken>{next}</NextContinuationToken>");
    }
    Reply::ok(xml + "</ListBucketResult>")
}

async fn keys(store: &Cloud, prefix: &str) -> Result<Vec<String>> {
    store
        .list(prefix)
        .map_ok(|meta| meta.key)
        .try_collect()
        .await
}

#[tokio::test]
async fn objects_are_read_whole_and_in_ranges() {
    let service = Service::new(|request| request.object(b"0123456789", "\"v\""));
    let store = alone(Cloud::s3("bucket/a b"))
        .endpoint(service.url())
        .keys("id", "key")
        .build()
        .unwrap();
    let object = store.get("x+y%2F ü.bin", Get::default()).await.unwrap();
    assert_eq!(
        (
            object.len(),
            object.meta.size,
            object.meta.version.as_deref()
        ),
        (Some(10), Some(10), Some("\"v\""))
    );
    assert_eq!(
        (&*object.meta.key, &*object.url),
        ("x+y%2F ü.bin", "s3://bucket/a b/x+y%2F ü.bin")
    );
    assert_eq!(object.bytes().await.unwrap(), "0123456789");
    assert_eq!(
        service.requests()[0].target,
        "/bucket/a%20b/x%2By%252F%20%C3%BC.bin"
    );
    assert!(
        service.requests()[0]
            .header("authorization")
            .unwrap()
            .starts_with("AWS4-HMAC-SHA256 ")
    );

    for (range, read) in [
        (2..5, "234"),
        (2..u64::MAX, "23456789"),
        (8..99, "89"),
        (0..u64::MAX, "0123456789"),
    ] {
        let object = store.get("k", Get::range(range.clone())).await.unwrap();
        assert_eq!(object.range, range.start..range.end.min(10));
        assert_eq!(object.bytes().await.unwrap(), read);
    }
    for range in [3..3, 10..10, 10..12, 10..u64::MAX] {
        let object = store.get("k", Get::range(range.clone())).await.unwrap();
        assert_eq!(object.range, range.start..range.start);
        assert_eq!(object.bytes().await.unwrap(), "");
    }
    for range in [11..12, 11..11, 11..u64::MAX] {
        let error = store.get("k", Get::range(range)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert_eq!(
            error.to_string(),
            "against the protocol: s3://bucket/a b/k: it has 10 bytes, none at 11"
        );
    }
    assert_eq!(store.head("k").await.unwrap().size, Some(10));
    assert_eq!(service.requests().last().unwrap().method, "HEAD");
}

#[tokio::test]
async fn an_empty_object_is_read_by_any_range_from_its_start() {
    let service = Service::new(|request| request.object(b"", "\"v\""));
    let store = s3(&service).build().unwrap();
    for get in [
        Get::default(),
        Get::range(0..0),
        Get::range(0..9),
        Get::range(0..u64::MAX),
    ] {
        assert_eq!(
            store.get("k", get).await.unwrap().bytes().await.unwrap(),
            ""
        );
    }
}

#[tokio::test]
async fn row_66_pages_are_asked_for_as_they_are_wanted() {
    let service = Service::new(|request| {
        let query = request.query();
        assert_eq!(query.get("prefix").map(String::as_str), Some("in/tra"));
        match query.get("continuation-token").map(String::as_str) {
            None => page(
                &["in/tra", "in/train/1", "in/train/2", "in/train/"],
                Some("t+/=1"),
            ),
            Some("t+/=1") => page(&[], Some("two")),
            Some("two") => page(&["in/train/&amp;&lt;ü +%2F"], None),
            other => panic!("{other:?}"),
        }
    });
    let store = alone(Cloud::s3("bucket/in/"))
        .endpoint(service.url())
        .anonymous()
        .build()
        .unwrap();
    let mut found = store.list("tra");
    assert!(service.requests().is_empty());
    let first = found.next().await.unwrap().unwrap();
    assert_eq!(
        first,
        Meta {
            key: "tra".into(),
            size: Some(0),
            version: Some("\"e\"".into())
        }
    );
    assert_eq!(service.requests().len(), 1);
    let rest: Vec<_> = found.map_ok(|meta| meta.key).try_collect().await.unwrap();
    assert_eq!(rest, ["train/1", "train/2", "train/&<ü +%2F"]);
    assert_eq!(service.requests().len(), 3);
    assert_eq!(service.requests()[0].header("authorization"), None);
}

#[tokio::test]
async fn row_66_listings_that_make_no_sense() {
    for (xml, kind) in [
        (page(&["a"], Some("again")), ErrorKind::Protocol),
        (page(&["a", "b//c"], None), ErrorKind::Unsupported),
        (page(&["a/../b"], None), ErrorKind::Unsupported),
        (Reply::ok("<html>log in</html>"), ErrorKind::Protocol),
        (Reply::ok(""), ErrorKind::Protocol),
        (
            Reply::ok("<ListBucketResult><Contents>"),
            ErrorKind::Protocol,
        ),
    ] {
        let service = Service::new(move |_| xml.clone());
        let error = keys(&s3(&service).build().unwrap(), "").await.unwrap_err();
        assert!(error.kind() == kind && !error.is_transient(), "{error:#?}");
        assert!(error.to_string().contains("s3://bucket/: "), "{error}");
        assert!(service.requests().len() <= 2, "{error}");
    }
    let nothing = Service::new(|_| page(&[], None));
    assert_eq!(
        keys(&s3(&nothing).build().unwrap(), "").await.unwrap(),
        [""; 0]
    );
}

#[tokio::test]
async fn keys_that_cannot_be_read_here_are_refused_without_asking() {
    let service = Service::new(|_| panic!("asked"));
    let store = s3(&service).build().unwrap();
    for key in ["", "/a", "a/", "a//b", "../a", "a/./b", "a\nb"] {
        assert_eq!(
            store.get(key, Get::default()).await.unwrap_err().kind(),
            ErrorKind::Unsupported,
            "{key}"
        );
    }
    assert!(service.requests().is_empty());
}

#[tokio::test]
async fn google_is_asked_with_a_bearer_token() {
    let service = Service::new(|request| match request.query().contains_key("list-type") {
        true => page(&["p/a", "p/b"], None),
        false => request.object(b"abc", "\"v\""),
    });
    let store = alone(Cloud::gcs("bucket/p"))
        .endpoint(service.url())
        .token("the-token")
        .build()
        .unwrap();
    assert_eq!(store.url(), "gs://bucket/p/");
    assert_eq!(
        store
            .get("a", Get::range(1..3))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        "bc"
    );
    assert_eq!(keys(&store, "").await.unwrap(), ["a", "b"]);
    let requests = service.requests();
    assert_eq!(requests[0].target, "/bucket/p%2Fa");
    assert!(
        requests
            .iter()
            .all(|request| request.header("authorization") == Some("Bearer the-token"))
    );
}

#[tokio::test]
async fn azure_is_asked_with_a_key_or_a_signed_query() {
    let blobs = "<?xml version=\"1.0\"?><EnumerationResults><Blobs><Blob><Name>p/a</Name><Properties>\
        <Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Etag>0x8D</Etag><Content-Length>3</Content-Length>\
        <Content-Type>x</Content-Type></Properties></Blob></Blobs><NextMarker/></EnumerationResults>";
    let service = Service::new(move |request| match request.query().contains_key("comp") {
        true => Reply::ok(blobs),
        false => request.object(b"abc", "\"0x8D\""),
    });
    let builder = alone(Cloud::azure("box/p")).endpoint(service.url());
    let keyed = builder.clone().keys("account", "a2V5").build().unwrap();
    let listed: Vec<_> = keyed.list("").try_collect().await.unwrap();
    // The tag is the same in a listing, where it has no quotes, and in an answer.
    let get = Get::range(0..2).of_version(listed[0].version.clone());
    assert_eq!(
        keyed.get("a", get).await.unwrap().bytes().await.unwrap(),
        "ab"
    );
    assert!(
        service.requests()[1]
            .header("authorization")
            .unwrap()
            .starts_with("SharedKey account:")
    );
    assert_eq!(service.requests()[1].header("if-match"), Some("\"0x8D\""));

    let signed = builder
        .account("account")
        .option("sas_token", "sv=1&sig=SIGNED")
        .build()
        .unwrap();
    assert_eq!(signed.read("a").await.unwrap(), "abc");
    assert_eq!(service.requests()[2].query()["sig"], "SIGNED");
}

#[tokio::test]
async fn urls_say_where_it_is() {
    let service = Service::new(|request| request.object(b"x", "\"v\""));
    let url = format!(
        "s3://bucket/a%20b/c?endpoint={}&anonymous=true&region=eu-west-1",
        service.url()
    );
    let store = alone(CloudBuilder::parse(&url).unwrap()).build().unwrap();
    assert_eq!(store.url(), "s3://bucket/a b/c/");
    store.read("k").await.unwrap();
    assert_eq!(service.requests()[0].target, "/bucket/a%20b/c/k");

    let place = "abfss://box@account.dfs.core.windows.net/p";
    let azure = alone(CloudBuilder::parse(place).unwrap())
        .keys("account", "a2V5")
        .build()
        .unwrap();
    assert_eq!(azure.url(), format!("{place}/"));
    for url in [
        "s3://",
        "ftp://bucket",
        "s3://bucket?x=1",
        "s3://a:b@bucket/",
        "s3://a@bucket/",
        "s3://bucket:80/",
        "s3://bucket/#a",
        "not a url",
        "s3://bucket?anonymous=maybe",
    ] {
        let error = CloudBuilder::parse(url)
            .and_then(|builder| alone(builder).build())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
    }
}

#[tokio::test]
async fn buckets_of_one_name_at_two_places_are_told_apart() {
    let s3 = |url: &str| {
        alone(CloudBuilder::parse(url).unwrap())
            .keys("id", "secret")
            .build()
            .unwrap()
    };
    let here = s3("s3://bucket/p?region=r");
    let there = s3("s3://bucket/p?region=r&endpoint=http://127.0.0.1:9000");
    assert_eq!(here.url(), there.url());
    assert_ne!(here.identity(), there.identity());
    assert_eq!(here.identity(), s3("s3://bucket/p?region=r").identity());
    let azure = |account| {
        alone(Cloud::azure("c"))
            .account(account)
            .token("secret")
            .build()
            .unwrap()
    };
    assert_ne!(azure("one").identity(), azure("two").identity());
    assert!(!azure("one").identity().contains("secret"));
}

#[tokio::test]
async fn http_without_tls_is_spoken_with_endpoints_that_say_so() {
    // The environment's permission for other tools does not apply here: the address of the provider
    // has TLS, and so has any endpoint that does not begin with `http://`.
    let variables = [
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ENDPOINT_URL", "https://127.0.0.1:1"),
    ];
    let store = Cloud::s3("bucket")
        .anonymous()
        .in_environment(&variables)
        .build()
        .unwrap();
    let error = store.read("k").await.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("refused"),
        "{error}"
    );
    for endpoint in [
        "ftp://x",
        "x",
        "http://user:SECRET@host",
        "http://host?sig=SECRET",
    ] {
        let error = alone(Cloud::s3("bucket"))
            .endpoint(endpoint)
            .anonymous()
            .build()
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::Config && !error.to_string().contains("SECRET"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_environment_says_what_the_builder_does_not() {
    let service = Service::new(|request| request.object(b"x", "\"v\""));
    let variables = [
        ("AWS_ACCESS_KEY_ID", "ENVID"),
        ("AWS_SECRET_ACCESS_KEY", "ENVSECRET"),
        ("AWS_SESSION_TOKEN", "ENVTOKEN"),
        ("AWS_REGION", "eu-north-1"),
        ("AWS_ENDPOINT_URL", service.url()),
    ];
    let with = |builder: CloudBuilder| builder.in_environment(&variables);
    with(Cloud::s3("bucket"))
        .build()
        .unwrap()
        .read("k")
        .await
        .unwrap();
    let own = with(Cloud::s3("bucket"))
        .keys("OWNID", "OWNSECRET")
        .region("eu-south-2");
    own.build().unwrap().read("k").await.unwrap();
    with(Cloud::s3("bucket"))
        .anonymous()
        .build()
        .unwrap()
        .read("k")
        .await
        .unwrap();
    let [environment, own, none] = &service.requests()[..] else {
        panic!("three requests")
    };
    let signed = |request: &Request| {
        request
            .header("authorization")
            .unwrap_or_default()
            .to_owned()
    };
    assert!(signed(environment).contains("ENVID/") && signed(environment).contains("/eu-north-1/"));
    assert_eq!(environment.header("x-amz-security-token"), Some("ENVTOKEN"));
    assert!(signed(own).contains("OWNID/") && signed(own).contains("/eu-south-2/"));
    assert_eq!(own.header("x-amz-security-token"), None);
    assert_eq!(
        (signed(none), none.header("x-amz-security-token")),
        (String::new(), None)
    );
}

#[tokio::test]
async fn row_56_expired_credentials_are_renewed_once_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("credentials");
    let write = |token: &str| {
        let text = format!(
            "[default]\naws_access_key_id=ID\naws_secret_access_key=S\naws_session_token={token}\n"
        );
        std::fs::write(&path, text).unwrap();
    };
    let valid = Arc::new(std::sync::Mutex::new("one"));
    let accepted = valid.clone();
    let service = Service::new(move |request| {
        match request.header("x-amz-security-token") == Some(*accepted.lock().unwrap()) {
            true => request.object(b"x", "\"v\""),
            false => Reply::status(400, "<Error><Code>ExpiredToken</Code></Error>"),
        }
    });
    let builder = Cloud::s3("bucket").endpoint(service.url());
    write("one");
    let builder =
        builder.in_environment(&[("AWS_SHARED_CREDENTIALS_FILE", path.to_str().unwrap())]);
    let store = builder.build().unwrap();
    let all = || async {
        let read = futures::stream::iter(0..64).map(|n| {
            let store = &store;
            async move { store.read(&n.to_string()).await.map(drop) }
        });
        read.buffer_unordered(64).collect::<Vec<Result<()>>>().await
    };
    assert!(all().await.iter().all(Result::is_ok));

    // A tool wrote new credentials meanwhile.
    write("two");
    *valid.lock().unwrap() = "two";
    let (before, first) = (service.requests().len(), store.client());
    assert!(all().await.iter().all(Result::is_ok));
    assert!((65..=128).contains(&(service.requests().len() - before)));
    let second = store.client();
    assert!(!Arc::ptr_eq(&first, &second));

    // No tool did.
    *valid.lock().unwrap() = "three";
    let before = service.requests().len();
    for outcome in all().await {
        let error = outcome.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Denied && !error.is_transient(),
            "{error}"
        );
        assert!(error.to_string().contains("ExpiredToken"), "{error}");
    }
    assert!(service.requests().len() - before <= 128);
    let third = store.client();
    assert!(!Arc::ptr_eq(&second, &third));
    // The credentials are not requested again at once.
    assert!(store.read("k").await.is_err());
    assert!(Arc::ptr_eq(&third, &store.client()));
}

#[tokio::test]
async fn keys_of_a_profile_that_come_from_elsewhere_are_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    std::fs::write(&path, "[profile corp]\nsso_session = corp\n").unwrap();
    let with = |builder: CloudBuilder| {
        builder.in_environment(&[("AWS_CONFIG_FILE", path.to_str().unwrap())])
    };
    let error = with(Cloud::s3("bucket").profile("corp"))
        .build()
        .unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("sso_session"),
        "{error}"
    );
    let error = with(Cloud::s3("bucket").profile("other"))
        .build()
        .unwrap_err();
    assert!(
        error.kind() == ErrorKind::Config && error.to_string().contains("\"other\""),
        "{error}"
    );
}

#[tokio::test]
async fn any_object_store_is_a_store() {
    use object_store::ObjectStoreExt;
    let theirs = object_store::memory::InMemory::new();
    for key in ["a/1", "a/2", "ab/1", "b", "c #1 [100%]/~x", "c #1 [100%]/y"] {
        let path = object_store::path::Path::parse(key).unwrap();
        theirs.put(&path, key.into()).await.unwrap();
    }
    let store = Cloud::from_object_store("mem://user:SECRET@place?SECRET", Arc::new(theirs));
    assert_eq!(store.url(), "mem://place/");
    assert_eq!(keys(&store, "a").await.unwrap(), ["a/1", "a/2", "ab/1"]);
    assert_eq!(keys(&store, "a/").await.unwrap(), ["a/1", "a/2"]);
    let below = keys(&store, "c #1 [100%]/~").await.unwrap();
    assert_eq!(below, ["c #1 [100%]/~x"]);
    assert_eq!(store.read(&below[0]).await.unwrap(), below[0]);
    assert_eq!(keys(&store, "a//").await.unwrap(), [""; 0]);
    let object = store.get("a/1", Get::range(1..9)).await.unwrap();
    let version = object.meta.version.clone();
    assert_eq!(object.bytes().await.unwrap(), "/1");
    let error = store
        .get("a/1", Get::default().of_version("\"other\"".to_owned()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert!(
        version.is_some()
            && store
                .get("a/1", Get::default().of_version(version))
                .await
                .is_ok()
    );
    assert_eq!(
        store.read("none").await.unwrap_err().to_string(),
        "not found: mem://place/none"
    );
}

#[tokio::test]
async fn connections_are_used_again_and_there_may_be_many() {
    let service = Service::new(|request| request.object(b"x", "\"v\""));
    let store = s3(&service).build().unwrap();
    for _ in 0..5 {
        store.read("k").await.unwrap();
    }
    assert_eq!(service.connections(), 1);
    let done = AtomicUsize::new(0);
    futures::stream::iter(0..100)
        .for_each_concurrent(100, |n| {
            let (store, done) = (&store, &done);
            async move {
                store.read(&n.to_string()).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
        .await;
    assert!(done.into_inner() == 100 && service.connections() > 8);
}

/// The variables are read by another process, which runs this test again.
#[tokio::test]
async fn proxies_of_the_environment_are_used_only_if_asked_for() {
    const CHILD: &str = "DATAPIPES_TEST_PROXY_CHILD";
    if let Ok(url) = std::env::var(CHILD) {
        let bucket = || alone(Cloud::s3("bucket")).endpoint(&url).keys("id", "key");
        let direct = bucket().build().unwrap();
        assert_eq!(direct.read("k").await.unwrap(), "direct");
        let proxied = bucket().proxies_of_environment().build().unwrap();
        assert_eq!(proxied.read("k").await.unwrap(), "by proxy");
        return;
    }
    let server = Service::new(|request| request.object(b"direct", "\"v\""));
    let proxy = Service::new(|request| request.object(b"by proxy", "\"v\""));
    let name = "stores::cloud::tests::proxies_of_the_environment_are_used_only_if_asked_for";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", name])
        .env(CHILD, server.url())
        .env_remove("NO_PROXY")
        .env_remove("no_proxy");
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(variable, proxy.url());
    }
    let output = child.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert_eq!((server.requests().len(), proxy.requests().len()), (1, 1));
    assert!(proxy.requests()[0].target.starts_with(server.url()));
}
