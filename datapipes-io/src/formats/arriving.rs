//! The bytes of a file as they arrive from a store or from memory.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result};
use futures::stream::Fuse;
use futures::{FutureExt, StreamExt};

use crate::FileRef;
use crate::file::readable;
use crate::stores::local::{Buffers, MOST_IDLE, open_file};
use crate::stores::{Body, Get, Object};

/// Size below which a piece is copied: it may be a slice of a network buffer, which would stay in
/// memory as long as any part of it.
const LARGE: usize = 256 << 10;
/// Maximum number of bytes collected from small pieces.
const GATHERED: usize = 1 << 20;

/// The body of an object, or the rest of it from a position on.
pub(super) struct Arriving {
    body: Fuse<Body>,
    url: String,
    version: Option<String>,
    /// Length if it was announced, and number of bytes that have arrived.
    len: Option<u64>,
    got: u64,
    /// Error that came while pieces were collected; it is returned after them.
    failed: Option<Error>,
}

impl Arriving {
    pub(super) async fn open(file: &FileRef, get: Get) -> Result<Arriving> {
        Arriving::open_into(&Buffers::new(MOST_IDLE), file, get).await
    }

    /// Opens a file, whose pieces are read into memory of earlier ones if it is a local one.
    pub(super) async fn open_into(
        buffers: &Arc<Buffers>,
        file: &FileRef,
        get: Get,
    ) -> Result<Arriving> {
        let is_part = get.range.is_some();
        let object = match file.store() {
            Some(store) => store.get(&file.name(), get).await?,
            None => {
                let url = readable(file.path.as_os_str().as_encoded_bytes()).into_owned();
                open_file(file.path.clone(), &file.name(), url, get, buffers.clone()).await?
            }
        };
        let len = object.len();
        let Object {
            body, url, meta, ..
        } = object;
        let whole = if is_part { meta.size } else { len };
        match (file.size, whole) {
            (Some(listed), Some(len)) if listed != len => {
                let what = format!("{url}: listed with {listed} bytes, has {len}");
                Err(Error::changed(what))
            }
            _ => Ok(Arriving {
                body: body.fuse(),
                url,
                version: meta.version,
                len,
                got: 0,
                failed: None,
            }),
        }
    }

    /// Returns the length, if it was announced.
    pub(super) fn len(&self) -> Option<u64> {
        self.len
    }

    /// Returns the version of the content.
    pub(super) fn version(&self) -> Option<&String> {
        self.version.as_ref()
    }

    /// Takes the error of the body, if there was one.
    pub(super) fn failed(&mut self) -> Option<Error> {
        self.failed.take()
    }

    /// Returns the beginning, at least `least` bytes of it if there are that many; `None` if the
    /// body is empty.
    pub(super) async fn first(&mut self, least: usize) -> Result<Option<Bytes>> {
        let Some(mut first) = self.piece().await? else {
            return Ok(None);
        };
        while first.len() < least
            && let Some(piece) = self.piece().await?
        {
            first = [first, piece].concat().into();
        }
        Ok(Some(first))
    }

    /// Returns the next piece, large enough to be kept; `None` at the end, if the length is right.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let first = loop {
            match self.body.next().await.transpose()? {
                Some(piece) if piece.is_empty() => {}
                Some(piece) => break piece,
                None => return self.ended().map(|()| None),
            }
        };
        self.count(&first)?;
        if first.len() >= LARGE {
            return Ok(Some(first));
        }
        let mut gathered = Vec::from(first);
        while gathered.len() < GATHERED {
            let Some(Some(next)) = self.body.next().now_or_never() else {
                break;
            };
            match next.and_then(|piece| self.count(&piece).map(|()| piece)) {
                Ok(piece) => gathered.extend_from_slice(&piece),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        gathered.shrink_to_fit();
        Ok(Some(gathered.into()))
    }

    fn count(&mut self, piece: &Bytes) -> Result<()> {
        self.got += piece.len() as u64;
        match self.len {
            Some(len) if self.got > len => {
                let what = format!("{}: more than the {len} bytes announced", self.url);
                Err(Error::protocol(what))
            }
            _ => Ok(()),
        }
    }

    fn ended(&self) -> Result<()> {
        match self.len {
            Some(len) if self.got < len => {
                let what = format!("{}: {} of {len} bytes", self.url, self.got);
                Err(Error::truncated(what).transient())
            }
            _ => Ok(()),
        }
    }

    /// Returns the whole body, after the beginning.
    pub(super) async fn all(mut self, first: Bytes) -> Result<Bytes> {
        let mut data = Vec::from(first);
        while let Some(piece) = self.piece().await? {
            data.try_reserve(piece.len()).map_err(|_| {
                Error::limit(format!("{}: no memory for {} bytes", self.url, self.got))
            })?;
            data.extend_from_slice(&piece);
        }
        Ok(data.into())
    }
}
