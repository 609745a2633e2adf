//! Answers of stores: an object, its metadata, and its body.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::task::{self, Poll};

use bytes::Bytes;
use datapipes::{Error, Result};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use super::pieces::Pieces;

/// The part of an object to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Get {
    /// Range of bytes; the whole object if `None`. An end of `u64::MAX` is the end of the object.
    pub range: Option<Range<u64>>,
    /// Version that the object must still have ([`Meta::version`]); otherwise the error is
    /// `Changed`.
    pub version: Option<String>,
}

impl Get {
    /// Requests a range of bytes.
    pub fn range(range: Range<u64>) -> Self {
        Get {
            range: Some(range),
            version: None,
        }
    }

    /// Requests only this version.
    pub fn of_version(mut self, version: impl Into<Option<String>>) -> Self {
        self.version = version.into();
        self
    }
}

/// Metadata of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Key of the object.
    pub key: String,
    /// Size in bytes, if it is known.
    pub size: Option<u64>,
    /// Identifier of this content among earlier and later contents under the same key, if the store
    /// has one: an ETag, a modification time. It is strong: equal versions have equal bytes.
    pub version: Option<String>,
}

impl Meta {
    /// Returns the metadata of an object with a known key, and nothing else known.
    pub fn new(key: impl Into<String>) -> Self {
        Meta {
            key: key.into(),
            size: None,
            version: None,
        }
    }
}

/// An open object: its metadata, and its body or a range of the body.
#[derive(Debug)]
pub struct Object {
    /// Metadata of the whole object.
    pub meta: Meta,
    /// Range of the object that the body holds. Its end is `u64::MAX` if the length was not
    /// announced.
    pub range: Range<u64>,
    /// Body of the object.
    pub body: Body,
    /// URL for messages.
    pub url: String,
}

impl Object {
    /// Returns a whole object from memory.
    pub fn whole(url: String, meta: Meta, data: Bytes) -> Self {
        let range = 0..data.len() as u64;
        Object {
            meta,
            range,
            body: Body::once(data),
            url,
        }
    }

    /// Returns a part of an object that is whole and in memory, as requested by [`Get::range`].
    ///
    /// # Errors
    /// `Protocol` if the range begins after the end of the object, or ends before it begins.
    ///
    /// # Panics
    /// Panics if the body is not complete: the method is for stores that have the whole object in
    /// memory ([`Object::whole`]).
    pub fn part(self, range: Option<Range<u64>>) -> Result<Self> {
        let Some(range) = range else { return Ok(self) };
        let Inner::Once(data) = &self.body.0 else {
            panic!("a body that is still to come has no parts")
        };
        let size = data.len() as u64;
        let range = range.start..range.end.min(size);
        if range.start > range.end {
            let what = format!("{}: it has {size} bytes, none at {}", self.url, range.start);
            return Err(Error::protocol(what));
        }
        let body = Body::once(data.slice(range.start as usize..range.end as usize));
        Ok(Object {
            body,
            range,
            ..self
        })
    }

    /// Returns an object whose body has arrived in pieces.
    pub(super) fn joined(url: String, meta: Meta, range: Range<u64>, pieces: Pieces) -> Self {
        Object {
            meta,
            range,
            body: Body::once(pieces.into_bytes()),
            url,
        }
    }

    /// Returns the size of the body in bytes, if it was announced.
    pub fn len(&self) -> Option<u64> {
        (self.range.end != u64::MAX).then(|| self.range.end.saturating_sub(self.range.start))
    }

    /// Returns true if the body is known to be empty.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Reads the body to its end, into one contiguous buffer.
    ///
    /// # Errors
    /// The errors of the body. `Truncated` (transient) if the body ends before the announced
    /// length, `Protocol` if it continues after it.
    pub async fn bytes(self) -> Result<Bytes> {
        let want = self.len();
        let url = self.url;
        let cut = |got: u64, want: u64| {
            Error::truncated(format!("{url}: {got} of {want} bytes")).transient()
        };
        let long =
            |want: u64| Error::protocol(format!("{url}: more than the {want} bytes announced"));
        match self.body.0 {
            Inner::Once(data) => match want {
                Some(want) if (data.len() as u64) < want => Err(cut(data.len() as u64, want)),
                Some(want) if data.len() as u64 > want => Err(long(want)),
                _ => Ok(data),
            },
            Inner::Stream(mut stream) => {
                let mut pieces = Pieces::of(&self.range);
                while let Some(piece) = stream.next().await.transpose()? {
                    if let Some(want) =
                        want.filter(|want| pieces.len() + piece.len() as u64 > *want)
                    {
                        return Err(long(want));
                    }
                    pieces.push(piece);
                }
                match want {
                    Some(want) if pieces.len() < want => Err(cut(pieces.len(), want)),
                    _ => Ok(pieces.into_bytes()),
                }
            }
        }
    }
}

/// The bytes of an object, available at once or as they arrive. Dropping the body ends the
/// transfer.
pub struct Body(Inner);

enum Inner {
    Once(Bytes),
    Stream(BoxStream<'static, Result<Bytes>>),
}

impl Body {
    /// Returns a body of bytes that are in memory.
    pub fn once(data: Bytes) -> Self {
        Body(Inner::Once(data))
    }

    /// Returns a body of bytes that arrive in pieces. An error ends the body.
    pub fn stream(stream: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Self {
        Body(Inner::Stream(stream.boxed()))
    }
}

impl Stream for Body {
    type Item = Result<Bytes>;
    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Bytes>>> {
        match &mut self.0 {
            Inner::Once(data) if data.is_empty() => Poll::Ready(None),
            Inner::Once(data) => Poll::Ready(Some(Ok(std::mem::take(data)))),
            Inner::Stream(stream) => stream.poll_next_unpin(cx),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Once(data) => write!(f, "Body({} bytes)", data.len()),
            Inner::Stream(_) => f.write_str("Body(..)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    fn object(pieces: &[&'static str], announced: u64) -> Object {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from(*piece))).collect();
        Object {
            meta: Meta::new("k"),
            range: 0..announced,
            body: Body::stream(futures::stream::iter(pieces)),
            url: "mem://k".into(),
        }
    }

    #[tokio::test]
    async fn a_body_has_exactly_the_length_announced() {
        assert_eq!(object(&["ab", "c"], 3).bytes().await.unwrap(), "abc");
        assert_eq!(object(&["ab", "c"], u64::MAX).bytes().await.unwrap(), "abc");
        assert_eq!(object(&[], 0).bytes().await.unwrap(), "");
        for (pieces, announced) in [(&["ab"][..], 3), (&[], 1), (&["a", "b"], 3)] {
            let error = object(pieces, announced).bytes().await.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Truncated && error.is_transient(),
                "{error}"
            );
        }
        for pieces in [&["abcd"][..], &["ab", "cd"]] {
            let error = object(pieces, 3).bytes().await.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Protocol && !error.is_transient(),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn an_absurd_length_takes_no_memory() {
        let error = object(&["ab", "cd"], 1 << 60).bytes().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated);
    }
}
