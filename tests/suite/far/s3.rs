//! S3, against a real server.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;

use datapipes::ErrorKind;
use datapipes_io::stores::cloud::{Cloud, CloudBuilder};
use datapipes_io::stores::local::Local;
use datapipes_io::stores::{self, Get, Store};
use futures::{StreamExt, TryStreamExt};

/// A folder in a bucket of its own, for one test: where it is on disk, and by URL. The server looks
/// through the whole bucket to list some of it, and stumbles over what another test removes
/// meanwhile.
struct Place {
    folder: PathBuf,
    bucket: String,
    endpoint: String,
    name: &'static str,
}

impl Place {
    fn new(name: &'static str) -> Option<Place> {
        let url = super::server("DATAPIPES_TEST_S3")?;
        let bucket = PathBuf::from(super::server("DATAPIPES_TEST_S3_FOLDER")?).with_file_name(name);
        let (_, endpoint) = url
            .split_once("?endpoint=")
            .expect("s3://bucket?endpoint=...");
        let _ = fs::remove_dir_all(&bucket);
        let folder = bucket.join(name);
        fs::create_dir_all(&folder).unwrap();
        Some(Place {
            folder,
            bucket: format!("s3://{name}"),
            endpoint: endpoint.to_owned(),
            name,
        })
    }

    fn put(&self, key: &str, data: impl AsRef<[u8]>) {
        let path = self.folder.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }

    fn builder(&self) -> CloudBuilder {
        CloudBuilder::parse(&format!(
            "{}/{}?endpoint={}",
            self.bucket, self.name, self.endpoint
        ))
        .unwrap()
    }

    fn store(&self) -> Cloud {
        self.builder().build().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.folder.parent().unwrap());
    }
}

async fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    store
        .list(prefix)
        .map_ok(|meta| meta.key)
        .try_collect()
        .await
        .unwrap()
}

/// Bytes that differ from place to place.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

#[tokio::test]
async fn objects_of_a_real_server_are_read_whole_in_ranges_and_by_awkward_keys() {
    let Some(place) = Place::new("read") else {
        return;
    };
    let large = noise(3 << 20);
    let objects: &[(&str, &[u8])] = &[
        ("a b.txt", b"space"),
        ("a+b.txt", b"plus"),
        ("100%.txt", b"percent"),
        ("x%2Fy.txt", b"encoded twice"),
        ("\u{fc}/\u{65e5}\u{672c}.txt", "\u{e9}".as_bytes()),
        ("d/e/f/g(1)[2]{3}&'=@~!$,;.txt", b"signs"),
        ("empty", b""),
        ("large", &large),
    ];
    objects.iter().for_each(|(key, data)| place.put(key, data));
    // As a user opens it: by URL, with keys of the environment.
    let store = stores::open(&format!(
        "{}/read/?endpoint={}",
        place.bucket, place.endpoint
    ))
    .unwrap();
    assert_eq!(store.url(), format!("{}/read/", place.bucket));
    for (key, data) in objects {
        let meta = store.head(key).await.unwrap();
        assert_eq!(
            (meta.key.as_str(), meta.size),
            (*key, Some(data.len() as u64))
        );
        assert_eq!(store.read(key).await.unwrap(), *data, "{key}");
        let get = Get::range(0..u64::MAX).of_version(meta.version.clone());
        assert_eq!(
            store.get(key, get).await.unwrap().bytes().await.unwrap(),
            *data,
            "{key}"
        );
    }
    for range in [
        0..1,
        1000..70_000,
        3_000_000..3_145_728,
        3_145_727..9_999_999,
        3_145_728..3_145_729,
    ] {
        let read = store
            .get("large", Get::range(range.clone()))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        assert_eq!(
            read,
            large[range.start as usize..large.len().min(range.end as usize)]
        );
    }
    let error = store
        .get("large", Get::range(3_145_729..3_145_730))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    let wanted: BTreeSet<_> = objects.iter().map(|(key, _)| (*key).to_owned()).collect();
    assert_eq!(
        keys(&*store, "").await.into_iter().collect::<BTreeSet<_>>(),
        wanted
    );
}

#[tokio::test]
async fn row_66_a_listing_of_many_pages_has_every_key_once() {
    let Some(place) = Place::new("pages") else {
        return;
    };
    for n in 0..2500 {
        place.put(&format!("{:02}/{n:05}.jpg", n % 7), "");
    }
    place.put("02-not-a-folder", "");
    let (far, near) = (place.store(), Local::new(&place.folder));
    for (prefix, count) in [
        ("", 2501),
        ("03/", 357),
        ("03", 357),
        ("03/000", 14),
        ("02", 358),
        ("none", 0),
    ] {
        let found = keys(&far, prefix).await;
        assert_eq!(found.len(), count, "{prefix:?}");
        assert_eq!(found, keys(&near, prefix).await, "{prefix:?}");
    }
    assert_eq!(far.list("").take(5).count().await, 5);
}

#[tokio::test]
async fn row_54_what_is_not_there_and_who_may_not() {
    let Some(place) = Place::new("denied") else {
        return;
    };
    place.put("k", "x");
    let error = place.store().read("none").await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && !error.is_transient(),
        "{error}"
    );
    let elsewhere = Cloud::s3("no-such-bucket")
        .endpoint(&place.endpoint)
        .build()
        .unwrap();
    let error = elsewhere.read("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = elsewhere
        .list("")
        .try_collect::<Vec<_>>()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");

    let id = std::env::var("AWS_ACCESS_KEY_ID").unwrap();
    for (id, secret) in [(id.as_str(), "wrong-sEcReT"), ("nobody", "wrong-sEcReT")] {
        let store = place.builder().keys(id, secret).build().unwrap();
        for error in [
            store.read("k").await.err(),
            store.list("").try_collect::<Vec<_>>().await.err(),
        ] {
            let error = error.unwrap();
            assert!(
                error.kind() == ErrorKind::Denied && !error.is_transient(),
                "{error}"
            );
            assert!(
                !format!("{error} {error:#?} {store:?}").contains("sEcReT"),
                "{error}"
            );
        }
    }
    let error = place
        .builder()
        .anonymous()
        .build()
        .unwrap()
        .read("k")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn row_59_an_object_that_was_replaced_is_changed() {
    let Some(place) = Place::new("changed") else {
        return;
    };
    place.put("k", "old content");
    let store = place.store();
    let old = store.head("k").await.unwrap().version;
    assert!(old.is_some(), "the server gives no ETag");
    place.put("k", "new content, longer");
    let error = store
        .get("k", Get::range(2..5).of_version(old))
        .await
        .unwrap_err();
    assert!(
        error.kind() == ErrorKind::Changed && !error.is_transient(),
        "{error}"
    );
}

#[tokio::test]
async fn row_57_connections_that_are_cut_lose_and_double_nothing() {
    let Some(place) = Place::new("cut") else {
        return;
    };
    let data = noise(1 << 20);
    place.put("k", &data);
    let proxy = cutting(
        place.endpoint.trim_start_matches("http://").to_owned(),
        100_000,
    );
    // The server checks the signature of the host it is called by, which is the proxy.
    let store = place.builder().endpoint(proxy).build().unwrap();
    let (mut read, mut version, mut tries) = (Vec::new(), None, 0);
    while read.len() < data.len() {
        tries += 1;
        assert!(tries < 100, "no progress at {}", read.len());
        let get = Get::range(read.len() as u64..u64::MAX).of_version(version.clone());
        let mut object = match store.get("k", get).await {
            Ok(object) => object,
            Err(error) => {
                assert!(error.is_transient(), "{error:#?}");
                continue;
            }
        };
        version = object.meta.version.clone();
        while let Some(piece) = object.body.next().await {
            match piece {
                Ok(piece) => read.extend_from_slice(&piece),
                Err(error) => {
                    assert!(
                        error.kind() == ErrorKind::Truncated && error.is_transient(),
                        "{error:#?}"
                    );
                    break;
                }
            }
        }
    }
    assert!(tries > 5 && read == data);
}

/// Starts a proxy whose connections send back at most `most` bytes and are then cut. Returns its
/// URL.
fn cutting(target: String, most: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&target).unwrap());
            let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = up.read(&mut piece) {
                    if down.write_all(&piece[..read]).is_err() {
                        break;
                    }
                }
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut (&mut server).take(most), &mut client);
                let _ = client.shutdown(Shutdown::Both);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    url
}
