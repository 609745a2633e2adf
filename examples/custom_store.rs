//! A user's store: its objects are computed. Like any other store it gets retries, limits, caches,
//! listing by pattern and reading by index from the library.
//!
//! `cargo run --example custom_store`

use bytes::Bytes;
use datapipes::{Backoff, BoxError, DataLoader, Error, Result, async_trait};
use datapipes_io::prelude::*;
use datapipes_io::stores::wrappers::Evict;
use datapipes_io::stores::{Get, Meta, Object, Store, StoreExt};
use futures::StreamExt;
use futures::stream::BoxStream;

/// A store of the squares of the first numbers, as texts: `squares/7.txt` holds `49`.
#[derive(Clone, Debug)]
struct Squares {
    many: u64,
}

impl Squares {
    fn meta(&self, n: u64) -> Meta {
        // With a strong version, a cut body can be resumed by range, and a cache can detect new
        // content.
        Meta {
            key: format!("squares/{n}.txt"),
            size: Some((n * n).to_string().len() as u64),
            version: Some("1".into()),
        }
    }
}

#[async_trait]
impl Store for Squares {
    fn url(&self) -> &str {
        "squares:///"
    }

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let number = key
            .strip_prefix("squares/")
            .and_then(|rest| rest.strip_suffix(".txt"));
        let number = number
            .and_then(|number| number.parse::<u64>().ok())
            .filter(|&n| n < self.many);
        // Errors begin with the URL of the object. An error marked `.transient()` is retried.
        let n = number.ok_or_else(|| Error::not_found(self.url_of(key)))?;
        if get.version.is_some_and(|version| version != "1") {
            return Err(Error::changed(self.url_of(key)));
        }
        let whole = Object::whole(
            self.url_of(key),
            self.meta(n),
            Bytes::from((n * n).to_string()),
        );
        whole.part(get.range)
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let (store, prefix) = (self.clone(), prefix.to_owned());
        let all = (0..self.many).map(move |n| store.meta(n));
        futures::stream::iter(
            all.filter(move |meta| meta.key.starts_with(&prefix))
                .map(Ok),
        )
        .boxed()
    }
}

fn main() -> Result<(), BoxError> {
    let store = Squares { many: 1000 }
        .retry(Backoff::default())
        .cache_in_memory(1 << 20, Evict::Oldest);

    // Reads by pattern, as a stream.
    let graph = store
        .clone()
        .list_files("squares/*.txt")
        .load_files()
        .batch(100);
    let loader = DataLoader::builder(graph).build()?;
    for batch in loader.epoch(0).blocking() {
        let batch = batch?;
        println!(
            "{} … {}: {:?}",
            batch[0].name, batch[99].name, batch[99].data
        );
    }

    // Reads by index: shuffled as a whole, then read.
    let keys = (0..1000).map(|n| format!("squares/{n}.txt"));
    let graph = store.clone().index(keys).shuffle().subset(0..5).fetch();
    for file in DataLoader::builder(graph)
        .seed(7)
        .build()?
        .epoch(0)
        .blocking()
    {
        let file = file?;
        println!("{} is {:?}", file.name, file.data);
    }

    // An error names node and object.
    let error = store
        .files(["squares/1000.txt"])
        .load_files()
        .collect()
        .unwrap_err();
    println!("{error}");
    Ok(())
}
