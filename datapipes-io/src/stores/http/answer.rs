//! Checks of an answer: its status, range, length, version.

use std::ops::Range;
use std::time::Duration;

use datapipes::{Error, Result};
use futures::StreamExt;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, TRANSFER_ENCODING,
};
use reqwest::{Method, Response, Version};
use tokio::time::timeout;

use super::address::same_origin;
use super::body::Watched;
use super::{Asked, Body, Inner, Meta, Object, fault};

/// Maximum time to wait for the body of a refusal.
const EXCERPT_TIME: Duration = Duration::from_secs(2);

/// A valid answer to a request.
pub(super) struct Answer {
    response: Response,
    /// Size of the whole object.
    size: Option<u64>,
    /// Range of the object that the body holds; ends at `u64::MAX` if no length is announced.
    range: Range<u64>,
    pub version: Option<String>,
}

impl Answer {
    /// Checks the answer to HEAD, which equals the answer to GET without its body.
    pub async fn check_head(
        http: &Inner,
        object: &Asked<'_>,
        response: Response,
    ) -> Result<Answer> {
        Answer::check_method(http, object, response, &Method::HEAD, None).await
    }

    /// Checks the answer to GET, for a range or for the whole object.
    pub async fn check(
        http: &Inner,
        object: &Asked<'_>,
        response: Response,
        asked: Option<&Range<u64>>,
    ) -> Result<Answer> {
        Answer::check_method(http, object, response, &Method::GET, asked).await
    }

    async fn check_method(
        http: &Inner,
        object: &Asked<'_>,
        response: Response,
        method: &Method,
        asked: Option<&Range<u64>>,
    ) -> Result<Answer> {
        let name = &*object.name;
        let wrong = |why: String| Error::protocol(format!("{name}: {why}"));
        let status = response.status();
        if !matches!(status.as_u16(), 200 | 206) {
            return Err(refusal(http, name, response).await);
        }
        let headers = response.headers();
        if let Some(encoding) = headers
            .get(CONTENT_ENCODING)
            .filter(|encoding| *encoding != "identity")
        {
            return Err(wrong(format!(
                "in an encoding that was not asked for ({encoding:?})"
            )));
        }
        let length = length(&response).map_err(|why| wrong(why.into()))?;
        let open = length.is_none() && *method != Method::HEAD;
        if open && !http.unknown_length && !ends_visibly(&response) {
            return Err(wrong(
                "neither a length nor chunks, so that nobody could tell if it were cut".into(),
            ));
        }
        let version = match object.version {
            Some(version) => Some(version.to_owned()),
            None => version(headers),
        };
        let whole = 0..length.unwrap_or(u64::MAX);
        let (size, range) = match (status.as_u16(), asked) {
            (200, None) => (length, whole),
            (200, Some(asked))
                if asked.start == 0 && (asked.end == u64::MAX || asked.end >= whole.end) =>
            {
                (length, whole)
            }
            (200, Some(_)) => return Err(wrong("the whole where a range was asked for".into())),
            (_, None) => return Err(wrong("a range where the whole was asked for".into())),
            (_, Some(asked)) => {
                let said = headers
                    .get(CONTENT_RANGE)
                    .and_then(|range| range.to_str().ok());
                let (range, size) = said
                    .and_then(content_range)
                    .ok_or_else(|| wrong("a range that does not say which".into()))?;
                let end = size.map_or(asked.end, |size| asked.end.min(size));
                if range != (asked.start..end) {
                    let text = said.unwrap_or_default();
                    return Err(wrong(format!(
                        "asked for {}, answered {text:?}",
                        bytes_of(asked)
                    )));
                }
                if length.is_some_and(|length| length != range.end - range.start) {
                    return Err(wrong(format!(
                        "{} bytes announced for {said:?}",
                        length.unwrap_or(0)
                    )));
                }
                (size, range)
            }
        };
        Ok(Answer {
            size,
            range,
            version,
            response,
        })
    }

    pub fn meta(&self, key: &str) -> Meta {
        Meta {
            key: key.to_owned(),
            size: self.size,
            version: self.version.clone(),
        }
    }

    pub fn open(self, http: &Inner, asked: &Asked<'_>) -> Object {
        let (meta, url) = (self.meta(asked.key), asked.name.clone());
        let range = self.range;
        let want = (range.end != u64::MAX).then(|| range.end - range.start);
        let body = Body::stream(Watched::new(
            self.response.bytes_stream(),
            url.clone(),
            want,
            http.rate,
        ));
        Object {
            meta,
            range,
            body,
            url,
        }
    }

    /// Returns the body as a stream that checks its length.
    pub fn into_stream(
        self,
        http: &Inner,
        name: String,
    ) -> (
        HeaderMap,
        Watched<impl futures::Stream<Item = reqwest::Result<bytes::Bytes>> + Unpin + use<>>,
    ) {
        let want = (self.range.end != u64::MAX).then_some(self.range.end);
        let headers = self.response.headers().clone();
        (
            headers,
            Watched::new(
                Box::pin(self.response.bytes_stream()),
                name,
                want,
                http.rate,
            ),
        )
    }
}

/// Returns the announced length. The answer to HEAD has a length and no body.
fn length(response: &Response) -> Result<Option<u64>, &'static str> {
    if let Some(length) = response.content_length().filter(|length| *length > 0) {
        return Ok(Some(length));
    }
    if response.headers().contains_key(TRANSFER_ENCODING) {
        return Ok(None);
    }
    match response.headers().get(CONTENT_LENGTH) {
        None => Ok(None),
        Some(length) => {
            let digits = length
                .to_str()
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            digits
                .and_then(|text| text.parse().ok())
                .map(Some)
                .ok_or("a length that is no number")
        }
    }
}

/// Returns true if the end of a body without a length can be told from a cut.
fn ends_visibly(response: &Response) -> bool {
    let chunked = || {
        let mut codings = response.headers().get_all(TRANSFER_ENCODING).iter();
        matches!((codings.next(), codings.next()), (Some(coding), None) if coding == "chunked")
    };
    response.version() >= Version::HTTP_2 || chunked()
}

/// Returns the ETag, if it is strong.
fn version(headers: &HeaderMap) -> Option<String> {
    let tag = headers.get(ETAG)?.to_str().ok()?;
    is_strong(tag).then(|| tag.to_owned())
}

/// Returns true if a text is a strong ETag: quoted and without `W/`.
pub(super) fn is_strong(tag: &str) -> bool {
    let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.is_empty() && !inner.contains('"'))
}

/// Checks that an answer has the requested version.
pub(super) fn check_version(name: &str, asked: Option<&str>, found: Option<&str>) -> Result<()> {
    match (asked, found) {
        (Some(asked), Some(found)) if asked != found => Err(Error::changed(format!(
            "{name}: it was {asked} and is {found}"
        ))),
        (Some(asked), None) => {
            let words =
                format!("{name}: asked for version {asked}, and the answer does not say its own");
            Err(Error::protocol(words))
        }
        _ => Ok(()),
    }
}

/// Parses `bytes 2-5/10` and `bytes 2-5/*`.
fn content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse::<u64>().ok())?
    };
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    let size = if size == "*" {
        None
    } else {
        Some(number(size)?)
    };
    (first <= last && last < u64::MAX && size.is_none_or(|size| last < size))
        .then(|| (first..last + 1, size))
}

/// Returns the size in the refusal of a range: `bytes */10`.
pub(super) fn size_in_416(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(CONTENT_RANGE)?
        .to_str()
        .ok()?
        .strip_prefix("bytes */")?
        .parse()
        .ok()
}

fn bytes_of(range: &Range<u64>) -> String {
    match range.end {
        u64::MAX => format!("bytes {}-", range.start),
        end => format!("bytes {}-{}", range.start, end - 1),
    }
}

/// Reads the body of an answer that is no object, up to a number of bytes and for a time at most. It is
/// read even if nobody looks at it: a connection can be used again only after its answer was read.
pub(super) async fn beginning(response: Response, wanted: usize, most: Duration) -> Vec<u8> {
    let mut body = response.bytes_stream();
    let mut head = Vec::new();
    let reading = async {
        while let Some(Ok(piece)) = body.next().await {
            head.extend_from_slice(&piece[..piece.len().min(wanted - head.len())]);
            if head.len() == wanted {
                break;
            }
        }
    };
    let _ = timeout(most, reading).await;
    head
}

/// Returns the error of an answer with an unexpected status, with the beginning of its body.
async fn refusal(http: &Inner, name: &str, response: Response) -> Error {
    let (status, headers) = (response.status(), response.headers().clone());
    let size = (status.as_u16() == 416)
        .then(|| size_in_416(&headers))
        .flatten();
    let own = same_origin(response.url(), http.address.base());
    let refused = http.refused.as_ref().filter(|_| own);
    let known = refused.and_then(|refused| refused(status, &headers));
    let mut secrets = http.secrets.clone();
    // A redirect may have led to a signed URL.
    secrets.add_query(response.url());
    let time = http.first_byte.min(EXCERPT_TIME);
    let head = beginning(response, secrets.excerpt_reads(), time).await;
    let excerpt = match size {
        Some(size) => format!("it has {size} bytes"),
        // The status says enough.
        None if matches!(status.as_u16(), 404 | 410) => String::new(),
        None => secrets.excerpt(&head),
    };
    match known {
        Some((kind, what)) => Error::new(kind, format!("{name}: {what}")),
        None => fault::status(name, status, &headers, &excerpt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_read_strictly() {
        assert_eq!(content_range("bytes 2-5/10"), Some((2..6, Some(10))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0..1, None)));
        let wrong = [
            "",
            "bytes",
            "bytes 2-5",
            "bytes 5-2/10",
            "bytes 2-10/10",
            "bytes */10",
            "bytes +2-5/10",
            "items 2-5/10",
            "bytes 2-18446744073709551615/*",
            "bytes 2-5/-1",
            "bytes 2-5/",
            "bytes -/10",
        ];
        for text in wrong {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn only_a_strong_etag_is_a_version() {
        assert!(is_strong("\"abc-12\""));
        for tag in ["W/\"abc\"", "abc", "\"\"", "\"", "", "\"a\"b\""] {
            assert!(!is_strong(tag), "{tag}");
        }
    }
}
