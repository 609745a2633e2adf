//! The connection of a cloud store: plain HTTP that follows no redirect, and records answers.
//!
//! `object_store` signs requests and reads answers; [`Link`] is between it and the network.
//! [`Link`] records the facts that an error of `object_store` no longer contains (status, error
//! code, requested pause), and removes the text that must not be shown: error documents, in which
//! services quote the request.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::lock;
use futures::StreamExt;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, HeaderMap};
use reqwest::StatusCode;
use reqwest::header::RANGE;

use crate::stores::clients::Clients;
use crate::stores::retry_after::retry_after;

/// Failed answer to a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Status, unless it was a success.
    pub status: Option<u16>,
    /// Error code of the service: `SlowDown`, `AccessDenied`.
    pub code: Option<String>,
    /// Pause that the service asked for.
    pub pause: Option<Duration>,
    /// Region of the bucket, if it is another one.
    pub region: Option<String>,
    /// Reason for a missing or incomplete answer.
    pub fault: Option<Fault>,
}

/// Reason for a missing or incomplete answer.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub what: What,
    /// Message of the deepest cause.
    pub words: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A timeout.
    Late,
    /// Connection refused, or cut.
    Cut,
    /// The certificate of the other side is not valid.
    Certificate,
    /// The answer was cut.
    Short,
    /// The answer does not match the request.
    Strange,
}

impl Fault {
    pub(super) fn of(error: &HttpError) -> Self {
        let what = match error.kind() {
            _ if is_about_certificates(error) => What::Certificate,
            HttpErrorKind::Timeout => What::Late,
            HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Interrupted => {
                What::Cut
            }
            _ => What::Strange,
        };
        Fault {
            what,
            words: deepest(error),
        }
    }
}

/// Recorder of an [`Answer`]: an extension of the request that it belongs to.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<Answer>>);

impl Seen {
    pub(super) fn take(&self) -> Answer {
        std::mem::take(&mut *lock(&self.0))
    }
    fn keep(&self, answer: Answer) {
        *lock(&self.0) = answer;
    }
}

/// Settings of connections.
#[derive(Clone)]
pub(super) struct Settings {
    pub connect: Duration,
    pub stall: Duration,
    pub proxies: bool,
    pub roots: Vec<reqwest::Certificate>,
}

/// Properties by which clients differ: true if plain HTTP is allowed, and true if they are for this
/// machine's own services.
type Kind = (bool, bool);

/// A maker of connections, which later clients share.
#[derive(Clone)]
pub(super) struct Connector(Arc<Shared>);

struct Shared {
    settings: Settings,
    clients: Mutex<Vec<(Kind, Arc<Clients>)>>,
    tokens: Seen,
}

impl Connector {
    pub(super) fn new(settings: Settings) -> Self {
        Connector(Arc::new(Shared {
            settings,
            clients: Mutex::default(),
            tokens: Seen::default(),
        }))
    }

    /// Returns the options for `object_store`. There is no limit for a whole answer, however large
    /// and however slowly it is read; an answer that stalls is ended by [`Settings::stall`].
    pub(super) fn options(&self, allow_http: bool) -> ClientOptions {
        ClientOptions::new()
            .with_allow_http(allow_http)
            .with_timeout_disabled()
            .with_connect_timeout(self.0.settings.connect)
    }

    /// Returns the answer to the last request for credentials.
    pub(super) fn tokens(&self) -> &Seen {
        &self.0.tokens
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let value = |options: &ClientOptions, key| options.get_config_value(&key);
        let allow_http = value(options, ClientConfigKey::AllowHttp).as_deref() == Some("true");
        // Requests to a machine's own metadata service time out after one second, as `object_store`
        // wants it: on other machines there is no such service, and nothing would answer.
        let ours = value(&self.options(true), ClientConfigKey::ConnectTimeout);
        let near = value(options, ClientConfigKey::ConnectTimeout) != ours;
        let mut clients = lock(&self.0.clients);
        let known = clients
            .iter()
            .find(|(kind, _)| *kind == (allow_http, near))
            .map(|(_, client)| client.clone());
        let made = match known {
            Some(made) => made,
            None => {
                let settings = self.0.settings.clone();
                let made =
                    Clients::new(move || settings.client(allow_http, near)).map_err(|error| {
                        object_store::Error::Generic {
                            store: "HTTP",
                            source: deepest(&error).into(),
                        }
                    })?;
                let made = Arc::new(made);
                clients.push(((allow_http, near), made.clone()));
                made
            }
        };
        Ok(HttpClient::new(Link {
            clients: made,
            tokens: self.0.tokens.clone(),
        }))
    }
}

impl Settings {
    fn client(&self, allow_http: bool, near: bool) -> reqwest::Result<reqwest::Client> {
        // A provider that was set before stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connect = if near {
            self.connect.min(Duration::from_secs(1))
        } else {
            self.connect
        };
        let mut client = reqwest::Client::builder()
            .user_agent(concat!("datapipes/", env!("CARGO_PKG_VERSION")))
            .https_only(!allow_http)
            // A redirect would send session tokens, which are in headers, to another host.
            .redirect(reqwest::redirect::Policy::none())
            // Many connections are faster than many streams in one.
            .http1_only()
            .connect_timeout(connect)
            .read_timeout(self.stall)
            .tls_certs_merge(self.roots.iter().cloned());
        if !self.proxies || near {
            client = client.no_proxy();
        }
        client.build()
    }
}

datapipes::opaque_debug!(Connector {});

struct Link {
    clients: Arc<Clients>,
    tokens: Seen,
}

datapipes::opaque_debug!(Link {});

/// Maximum number of bytes read of an error document.
const ERROR: usize = 64 << 10;
/// Maximum number of bytes read of one page of a listing.
const PAGE: usize = 64 << 20;

#[async_trait]
impl HttpService for Link {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let seen = request
            .extensions()
            .get::<Seen>()
            .unwrap_or(&self.tokens)
            .clone();
        let query = request.uri().query().unwrap_or_default();
        let lists = query
            .split('&')
            .any(|part| part == "list-type=2" || part == "comp=list");
        // Requests for credentials have no recorder.
        let is_ours = request.extensions().get::<Seen>().is_some();
        let in_part = request.headers().contains_key(RANGE);
        let again = request.body().is_empty().then(|| request.clone());
        let mut response = HttpService::call(&self.clients.here(), request).await;
        if let (Err(error), Some(again)) = (&response, again)
            && matches!(
                error.kind(),
                HttpErrorKind::Request | HttpErrorKind::Interrupted
            )
        {
            // Most likely the other side had closed the connection while it was idle. A new
            // connection shows if that was the cause.
            response = HttpService::call(&self.clients.here(), again).await;
        }
        let response = response.inspect_err(|error| {
            seen.keep(Answer {
                fault: Some(Fault::of(error)),
                ..Answer::default()
            });
        })?;
        let (mut parts, body) = response.into_parts();
        if let Err(why) = self.clients.check_framing(&parts.headers) {
            return Err(strange(&seen, why.to_owned()));
        }
        if !parts.status.is_success() {
            let mut answer = answer(parts.status, &parts.headers);
            answer.code = read(body, ERROR).await.ok().and_then(|text| code(&text));
            seen.keep(answer);
            return Ok(HttpResponse::from_parts(parts, Bytes::new().into()));
        }
        let is_expected = parts.status == StatusCode::OK
            || in_part && parts.status == StatusCode::PARTIAL_CONTENT;
        if is_ours && !is_expected {
            // Empty or partial content would be taken for the whole.
            return Err(strange(
                &seen,
                format!("status {}, which is not asked for", parts.status.as_u16()),
            ));
        }
        if !lists {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let page = read(body, PAGE).await.inspect_err(|error| {
            let fault = Fault::of(error);
            let what = if fault.what == What::Late {
                What::Late
            } else {
                What::Short
            };
            seen.keep(Answer {
                fault: Some(Fault { what, ..fault }),
                ..Answer::default()
            });
        })?;
        match root(&page) {
            Some(b"ListBucketResult" | b"EnumerationResults") => Ok(HttpResponse::from_parts(
                parts,
                without_markers(page).into(),
            )),
            Some(b"Error") => {
                // The page would be taken for an empty listing.
                let status = parts.status;
                parts.status = StatusCode::SERVICE_UNAVAILABLE;
                seen.keep(Answer {
                    code: code(&page),
                    ..answer(status, &parts.headers)
                });
                Ok(HttpResponse::from_parts(parts, Bytes::new().into()))
            }
            _ => Err(strange(&seen, "the answer is no listing".to_owned())),
        }
    }
}

/// Returns the error of an answer that does not match the request.
fn strange(seen: &Seen, words: String) -> HttpError {
    let fault = Fault {
        what: What::Strange,
        words: words.clone(),
    };
    seen.keep(Answer {
        fault: Some(fault),
        ..Answer::default()
    });
    HttpError::new(
        HttpErrorKind::Decode,
        io::Error::new(io::ErrorKind::InvalidData, words),
    )
}

fn answer(status: StatusCode, headers: &HeaderMap) -> Answer {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_name = |text: &&str| {
        text.len() <= 64
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let region = header("x-amz-bucket-region")
        .filter(is_name)
        .map(str::to_owned);
    Answer {
        status: Some(status.as_u16()),
        pause: retry_after(headers, SystemTime::now()),
        region,
        code: None,
        fault: None,
    }
}

async fn read(body: HttpResponseBody, most: usize) -> Result<Bytes, HttpError> {
    let mut stream = body.bytes_stream();
    let mut data = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        if data.len() + piece.len() > most {
            let words = format!("more than {most} bytes");
            return Err(HttpError::new(
                HttpErrorKind::Decode,
                io::Error::new(io::ErrorKind::InvalidData, words),
            ));
        }
        data.extend_from_slice(&piece);
    }
    Ok(data.into())
}

/// Returns the error code in an error document: `<Code>` in XML, `"error"` in JSON. The rest of the
/// document is never shown.
fn code(document: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(document).ok()?;
    let code = match text.split_once("<Code>") {
        Some((_, rest)) => rest.split_once("</Code>")?.0.to_owned(),
        None => match serde_json::from_str::<serde_json::Value>(text)
            .ok()?
            .get("error")?
        {
            serde_json::Value::String(code) => code.clone(),
            error => error.get("status")?.as_str()?.to_owned(),
        },
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (!code.is_empty() && code.len() <= 64 && code.chars().all(is_plain)).then_some(code)
}

/// Returns the name of the outermost element.
fn root(document: &[u8]) -> Option<&[u8]> {
    let mut rest = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document);
    loop {
        rest = rest.trim_ascii_start().strip_prefix(b"<")?;
        if rest.starts_with(b"?") || rest.starts_with(b"!") {
            let end = rest.iter().position(|&byte| byte == b'>')?;
            rest = &rest[end + 1..];
            continue;
        }
        let end = rest.iter().position(|byte| b" \t\r\n/>".contains(byte))?;
        return Some(&rest[..end]);
    }
}

/// Removes from a listing the empty objects whose keys end in `/`, which tools use to mark folders.
/// `object_store` would drop the `/` and list an object that does not exist.
fn without_markers(page: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&page) else {
        return page;
    };
    if !text.contains("/</Key>") && !text.contains("/</Name>") {
        return page;
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((begin, end)) = element(rest, "Contents").or_else(|| element(rest, "Blob")) {
        let entry = &rest[begin..end];
        let is_marker = entry.contains("/</Key>") && entry.contains("<Size>0</Size>")
            || entry.contains("/</Name>") && entry.contains("<Content-Length>0</Content-Length>");
        kept += &rest[..if is_marker { begin } else { end }];
        rest = &rest[end..];
    }
    kept += rest;
    kept.into()
}

/// Returns the range of the first element of that name. Names and values are escaped, so no tag is
/// inside another.
fn element(text: &str, name: &str) -> Option<(usize, usize)> {
    let begin = text.find(&format!("<{name}>"))?;
    let close = format!("</{name}>");
    let end = begin + text[begin..].find(&close)? + close.len();
    Some((begin, end))
}

/// Returns the message of the deepest cause, cut to a line. URLs are removed from an error before
/// it comes here.
pub(super) fn deepest(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(next) = behind(last) {
        last = next;
    }
    last.to_string().chars().take(256).collect()
}

/// Returns the next cause. The cause of an [`io::Error`] is inside it, not its `source`.
pub(super) fn behind<'a>(
    error: &'a (dyn StdError + 'static),
) -> Option<&'a (dyn StdError + 'static)> {
    match error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
    {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

fn is_about_certificates(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if matches!(
            error.downcast_ref(),
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
        ) {
            return true;
        }
        next = behind(error);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::retry_after::LONGEST_PAUSE;

    #[test]
    fn of_an_error_document_only_the_code_is_kept() {
        let document =
            b"<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>no</Message></Error>";
        assert_eq!(code(document).as_deref(), Some("SlowDown"));
        assert_eq!(
            code(br#"{"error": "invalid_grant", "x": 1}"#).as_deref(),
            Some("invalid_grant")
        );
        assert_eq!(
            code(br#"{"error": {"code": 403, "status": "DENIED"}}"#).as_deref(),
            Some("DENIED")
        );
        for document in [
            &b"<Code>a b</Code>"[..],
            b"<Code></Code>",
            b"<html>",
            b"\xff",
            b"<Code>x",
        ] {
            assert_eq!(code(document), None);
        }
    }

    #[test]
    fn the_outermost_element_says_whether_it_is_a_listing() {
        assert_eq!(
            root(b"<?xml version='1.0'?>\n<ListBucketResult xmlns='x'>"),
            Some(&b"ListBucketResult"[..])
        );
        assert_eq!(
            root(b"\xef\xbb\xbf<?xml?><EnumerationResults>"),
            Some(&b"EnumerationResults"[..])
        );
        assert_eq!(root(b"<!DOCTYPE html><html>"), Some(&b"html"[..]));
        assert_eq!(
            (root(b""), root(b"{}"), root(b"<unfinished")),
            (None, None, None)
        );
    }

    #[test]
    fn row_66_markers_of_folders_are_no_objects() {
        let page = "<ListBucketResult><Contents><Key>a/</Key><Size>0</Size></Contents>\
                    <Contents><Key>a/b</Key><Size>0</Size></Contents>\
                    <Contents><Key>c/</Key><Size>7</Size></Contents><X/></ListBucketResult>";
        let kept = "<ListBucketResult><Contents><Key>a/b</Key><Size>0</Size></Contents>\
                    <Contents><Key>c/</Key><Size>7</Size></Contents><X/></ListBucketResult>";
        assert_eq!(without_markers(page.into()), kept);
        assert_eq!(without_markers(kept.into()), kept);
        let blobs = "<Blobs><Blob><Name>a/</Name><Properties><Content-Length>0</Content-Length></Properties></Blob></Blobs>";
        assert_eq!(without_markers(blobs.into()), "<Blobs></Blobs>");
    }

    #[test]
    fn row_53_how_long_to_wait_may_be_seconds_a_date_or_nonsense() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", value.parse().unwrap());
            answer(StatusCode::TOO_MANY_REQUESTS, &headers).pause
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(of(&date).is_some_and(|pause| (90..=100).contains(&pause.as_secs())));
        assert_eq!(of("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        for nonsense in ["-1", "soon", ""] {
            assert_eq!(of(nonsense), None, "{nonsense}");
        }
        for absurd in ["1000000000", "99999999999999999999999"] {
            assert_eq!(of(absurd), Some(LONGEST_PAUSE), "{absurd}");
        }
    }
}
