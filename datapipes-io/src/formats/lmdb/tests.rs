//! Files written by Python's lmdb.

use std::path::PathBuf;

use datapipes::{Graph, Indexed};
use tempfile::TempDir;

use super::*;

const PLAIN: &[u8] = include_bytes!("../../../tests/data/plain.mdb");
const NAMED: &[u8] = include_bytes!("../../../tests/data/named.mdb");

fn file(data: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.mdb");
    std::fs::write(&path, data).unwrap();
    (dir, path)
}

#[tokio::test]
async fn values_are_found_by_key() {
    let (_dir, path) = file(PLAIN);
    let database = Lmdb::open(&path).unwrap();
    assert_eq!(database.get("image-0003").await.unwrap(), vec![3; 21]);
    assert_eq!(
        database.get(b"big".to_vec()).await.unwrap(),
        (0..=255).collect::<Vec<u8>>().repeat(20)
    );
    let values = database
        .get_many(
            ["image-0000", "none", "image-0001"]
                .map(Bytes::from)
                .to_vec(),
        )
        .await;
    assert_eq!(
        (
            values[0].as_ref().unwrap().len(),
            values[2].as_ref().unwrap().len()
        ),
        (0, 7)
    );
    let error = values[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error
            .to_string()
            .ends_with(r#"a.mdb: key "none": nothing is there"#),
        "{error}"
    );
    for key in [vec![], vec![b'x'; 10_000]] {
        let kind = database.get(key.clone()).await.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::NotFound, "a key of {} bytes", key.len());
    }
}

#[test]
fn items_come_by_index_in_the_order_of_their_keys() {
    let (dir, path) = file(PLAIN);
    let items = Lmdb::open(&path).unwrap().items().unwrap();
    assert_eq!(
        (items.key(0).unwrap(), items.key(12).unwrap(), items.key(13)),
        ("big".into(), "image-0011".into(), None)
    );
    let read = Indexed::new(items.clone()).fetch().collect().unwrap();
    assert_eq!(read.len(), 13);
    for (index, (key, value)) in read.iter().enumerate().skip(1) {
        assert_eq!(
            (key, value.len()),
            (
                &Bytes::from(format!("image-{:04}", index - 1)),
                (index - 1) * 7
            )
        );
    }
    let mut shuffled = Indexed::new(items.clone())
        .shuffle()
        .fetch()
        .collect()
        .unwrap();
    assert_ne!(shuffled, read);
    shuffled.sort();
    assert_eq!(shuffled, read);
    datapipes::testing::check_map_pipe(&items);
    let behind = futures::executor::block_on(MapPipe::get_many(&items, &[1, 13, 2]));
    assert_eq!(
        behind.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, true]
    );
    // The data was not changed.
    assert_eq!(std::fs::read(dir.path().join("a.mdb")).unwrap(), PLAIN);
}

#[tokio::test]
async fn databases_of_a_name_are_apart() {
    let (_dir, path) = file(NAMED);
    let images = Lmdb::open_named(&path, "images").unwrap();
    let labels = Lmdb::open_named(&path, "labels").unwrap();
    assert_eq!(images.get("1").await.unwrap(), "images1");
    assert_eq!(labels.get("2").await.unwrap(), "labels2");
    let unnamed = Lmdb::open(&path).unwrap().items().unwrap();
    assert_eq!(
        (unnamed.key(0).unwrap(), MapPipe::len(&unnamed)),
        ("images".into(), 2)
    );
    let error = Lmdb::open_named(&path, "masks").unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains(r#""masks""#),
        "{error}"
    );
    let zipped =
        Indexed::new(images.clone().items().unwrap()).zip(Indexed::new(labels.items().unwrap()));
    assert_eq!(
        MapPipe::get(&images.items().unwrap(), 0).await.unwrap().1,
        "images0"
    );
    let read = datapipes::blocking(|| zipped.fetch().collect())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        read[2],
        (
            ("2".into(), "images2".into()),
            ("2".into(), "labels2".into())
        )
    );
}

#[test]
fn folders_are_opened_too() {
    let (dir, path) = file(PLAIN);
    std::fs::rename(path, dir.path().join("data.mdb")).unwrap();
    let keys = Graph::from_vec(vec!["image-0004"]);
    assert_eq!(
        keys.fetch(Lmdb::open(dir.path()).unwrap())
            .collect()
            .unwrap(),
        [vec![4; 28]]
    );
}

#[cfg(unix)]
#[test]
fn one_file_is_opened_once_and_closed_by_the_last_handle() {
    let (dir, path) = file(PLAIN);
    let link = dir.path().join("link.mdb");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    std::thread::scope(|scope| {
        for path in [&path, &link, &path, &link] {
            scope.spawn(move || {
                for _ in 0..20 {
                    let database = Lmdb::open(path).unwrap();
                    let clone = database.clone();
                    drop(database);
                    let value = futures::executor::block_on(clone.get("image-0001")).unwrap();
                    assert_eq!(value, vec![1; 7]);
                }
            });
        }
    });
    // Nobody else has it open.
    let mut options = heed::EnvOpenOptions::new();
    // SAFETY: The file is used by this test alone.
    let env = unsafe { options.flags(heed::EnvFlags::NO_SUB_DIR).open(&path) }.unwrap();
    assert_eq!(Lmdb::open(&path).unwrap_err().kind(), ErrorKind::Config);
    drop(env);
    assert!(Lmdb::open(&path).is_ok());
}

#[tokio::test]
async fn a_key_that_was_taken_away_is_a_change() {
    let (_dir, path) = file(PLAIN);
    let items = Lmdb::open(&path).unwrap().items().unwrap();
    // Through the open handle, since one process can open the file only once.
    let gone = LmdbItems {
        keys: Bytes::from("nothing"),
        ends: [7].into(),
        ..items
    };
    assert_eq!(
        MapPipe::get(&gone, 0).await.unwrap_err().kind(),
        ErrorKind::Changed
    );
}

#[test]
fn row_105_what_is_no_database_is_an_error() {
    let (dir, path) = file(PLAIN);
    assert_eq!(
        Lmdb::open(dir.path().join("none.mdb")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        Lmdb::open(dir.path()).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let opened = |data: &[u8]| {
        std::fs::write(&path, data).unwrap();
        Lmdb::open(&path).map(drop)
    };
    assert_eq!(opened(b"").unwrap_err().kind(), ErrorKind::Truncated);
    assert_eq!(opened(&[7; 8192]).unwrap_err().kind(), ErrorKind::Corrupt);
    for cut in [8192, 12288, PLAIN.len() - 4096, PLAIN.len() - 1] {
        assert_eq!(
            opened(&PLAIN[..cut]).unwrap_err().kind(),
            ErrorKind::Truncated,
            "cut at {cut}"
        );
    }
    for cut in [1, 100, 4095, 4096, 5000] {
        assert!(opened(&PLAIN[..cut]).is_err(), "cut at {cut}");
    }
    assert!(opened(PLAIN).is_ok());
}
