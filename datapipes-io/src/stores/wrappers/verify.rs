//! Verification of objects by size and hash.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tracing::debug;

use crate::stores::{Body, Get, Meta, Object, Store};

/// Expected properties of an object, from a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Size in bytes.
    pub size: Option<u64>,
    /// BLAKE3 hash of the content.
    pub blake3: Option<[u8; 32]>,
}

/// A store that returns only objects with the expected size and hash; see
/// [`StoreExt::verify`](crate::StoreExt::verify).
///
/// - Objects that are not in the manifest, and ranges, are passed on unchecked.
/// - Wrong content is `Corrupt`, a wrong size `Truncated` or `Corrupt`; neither is transient.
///   [`read`](Store::read) makes a second request before it fails, since the error may have
///   happened on the way.
/// - The last piece of a body is held back until all was checked. If the object turns out to be
///   wrong, an error takes the place of the last piece; earlier pieces may have been returned by
///   then.
///
/// Memory holds the manifest and one piece of each body. The hash is computed on the thread that
/// reads: some gigabytes a second.
#[derive(Clone, Debug)]
pub struct Verify<S> {
    inner: Arc<S>,
    expected: Arc<HashMap<String, Expected>>,
}

impl<S> Verify<S> {
    /// Wraps a store.
    pub fn new(inner: S, expected: HashMap<String, Expected>) -> Self {
        Verify {
            inner: Arc::new(inner),
            expected: Arc::new(expected),
        }
    }
}

/// Progress of a check: the bytes that arrived, and the expected properties.
struct Check {
    url: String,
    expected: Expected,
    hash: blake3::Hasher,
    size: u64,
}

impl Check {
    fn new(url: String, expected: Expected) -> Self {
        Check {
            url,
            expected,
            hash: blake3::Hasher::new(),
            size: 0,
        }
    }

    fn push(&mut self, piece: &[u8]) {
        self.size += piece.len() as u64;
        if self.expected.blake3.is_some() {
            self.hash.update(piece);
        }
    }

    fn end(&self) -> Result<()> {
        let (url, got) = (&self.url, self.size);
        if let Some(size) = self.expected.size.filter(|&size| size != got) {
            let kind = if got < size {
                ErrorKind::Truncated
            } else {
                ErrorKind::Corrupt
            };
            return Err(Error::new(
                kind,
                format!("{url}: {got} bytes, {size} in the manifest"),
            ));
        }
        if let Some(want) = self.expected.blake3 {
            let (want, got) = (blake3::Hash::from_bytes(want), self.hash.finalize());
            if want != got {
                let words = format!("{url}: its BLAKE3 hash is {got}, {want} in the manifest");
                return Err(Error::corrupt(words));
            }
        }
        Ok(())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Verify<S> {
    names_of!(inner);
    revision_of!(inner);

    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let expected = self
            .expected
            .get(key)
            .filter(|_| get.range.is_none())
            .cloned();
        let object = self.inner.get(key, get).await?;
        let Some(expected) = expected else {
            return Ok(object);
        };
        let check = Check::new(object.url.clone(), expected);
        let next = |state: Option<(Body, Check, Bytes)>| async {
            let (mut body, mut check, mut held) = state?;
            loop {
                match body.next().await {
                    Some(Ok(piece)) if piece.is_empty() => {}
                    Some(Ok(piece)) => {
                        check.push(&piece);
                        let before = std::mem::replace(&mut held, piece);
                        if !before.is_empty() {
                            return Some((Ok(before), Some((body, check, held))));
                        }
                    }
                    Some(Err(error)) => return Some((Err(error), None)),
                    None => match check.end() {
                        Err(error) => return Some((Err(error), None)),
                        Ok(()) if held.is_empty() => return None,
                        Ok(()) => return Some((Ok(held), None)),
                    },
                }
            }
        };
        let body = Body::stream(stream::unfold(
            Some((object.body, check, Bytes::new())),
            next,
        ));
        Ok(Object { body, ..object })
    }

    async fn head(&self, key: &str) -> Result<Meta> {
        self.inner.head(key).await
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        let Some(expected) = self.expected.get(key) else {
            return self.inner.read(key).await;
        };
        let mut again = true;
        loop {
            let data = self.inner.read(key).await?;
            let mut check = Check::new(self.url_of(key), expected.clone());
            check.push(&data);
            match check.end() {
                Ok(()) => return Ok(data),
                Err(error) if again => debug!(%error, "reads again"),
                Err(error) => return Err(error),
            }
            again = false;
        }
    }

    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        self.inner.list(prefix)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stores::{InMemory, StoreExt};
    use crate::testing::{Reaction, Scripted, check_store, fixtures};

    fn of(data: &[u8]) -> Expected {
        Expected {
            size: Some(data.len() as u64),
            blake3: Some(*blake3::hash(data).as_bytes()),
        }
    }

    #[tokio::test]
    async fn keeps_the_contract_of_a_store() {
        let manifest = fixtures()
            .into_iter()
            .map(|(key, data)| (key, of(&data)))
            .collect();
        check_store(&InMemory::from_iter(fixtures()).verify(manifest)).await;
    }

    #[tokio::test]
    async fn row_61_a_flipped_bit_is_read_again_and_never_given_out_whole() {
        let script = Scripted::from_iter([("k", "content")]);
        let store = script
            .clone()
            .verify([("k".to_owned(), of(b"content"))].into());
        for at in 0..7 {
            let flip = Reaction::default().pieces(2, Duration::ZERO).flip(at);
            script.script("k", [flip.clone()]);
            assert_eq!(store.read("k").await.unwrap(), "content");
            script.script("k", [flip.clone(), flip.clone()]);
            let error = store.read("k").await.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Corrupt && !error.is_transient(),
                "{error}"
            );

            script.script("k", [flip]);
            let mut body = store.get("k", Get::default()).await.unwrap().body;
            let mut got = 0;
            let error = loop {
                match body.next().await.unwrap() {
                    Ok(piece) => got += piece.len(),
                    Err(error) => break error,
                }
            };
            assert_eq!(
                (got, error.kind()),
                (6, ErrorKind::Corrupt),
                "without its last piece"
            );
        }
    }

    #[tokio::test]
    async fn row_67_a_size_that_is_not_that_of_the_manifest_is_an_error() {
        let script = Scripted::from_iter([("k", "content")]);
        for (size, kind) in [(6, ErrorKind::Corrupt), (8, ErrorKind::Truncated)] {
            let expected = Expected {
                size: Some(size),
                blake3: None,
            };
            let store = script.clone().verify([("k".to_owned(), expected)].into());
            let before = script.requests().len();
            assert_eq!(store.read("k").await.unwrap_err().kind(), kind);
            assert_eq!(script.requests().len() - before, 2, "asked once more");
        }
    }
}
