//! Errors of failed answers and connections: their kind, if they are transient, and their messages
//! without secrets.

use std::error::Error as _;
use std::io;
use std::time::{Duration, SystemTime};

use datapipes::{Error, ErrorKind};
use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};

use crate::stores::retry_after::{LONGEST_PAUSE, retry_after};

/// Maximum number of bytes shown of the body of a refusal.
const EXCERPT: usize = 1024;

/// Texts that must not be shown, and the removal of these texts from foreign text.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    pub fn add(&mut self, text: &str) {
        // A shorter secret would remove harmless words as well.
        if text.len() >= 4 && !self.0.iter().any(|known| known == text) {
            self.0.push(text.to_owned());
            self.0.sort_by_key(|text| std::cmp::Reverse(text.len()));
        }
    }

    /// Adds the query of a URL, as a whole and in its parts.
    pub fn add_query(&mut self, url: &Url) {
        let query = url.query().unwrap_or("");
        self.add(query);
        query
            .split('&')
            .filter_map(|pair| Some(pair.split_once('=')?.1))
            .for_each(|value| self.add(value));
        url.query_pairs().for_each(|(_, value)| self.add(&value));
    }

    /// Returns the number of bytes of a body that are read for its excerpt.
    pub fn excerpt_reads(&self) -> usize {
        EXCERPT + self.0.first().map_or(0, String::len)
    }

    /// Returns the beginning of a text, without secrets, on one line.
    pub fn excerpt(&self, body: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(body).into_owned();
        for secret in &self.0 {
            text = text.replace(secret, "[secret]");
        }
        // The bytes that were read may end within a secret.
        if let Some(at) = self
            .0
            .iter()
            .filter_map(|secret| begun(&text, secret))
            .min()
        {
            text.truncate(at);
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let text: String = words.join(" ").escape_debug().collect();
        head(&text, EXCERPT).to_owned()
    }
}

/// Returns the beginning of a text, of at most the given number of bytes.
pub(super) fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Returns the position at which the end of a text is the beginning of a secret.
fn begun(text: &str, secret: &str) -> Option<usize> {
    (4..secret.len().min(text.len() + 1))
        .rev()
        .find_map(|length| {
            let head = secret.get(..length)?;
            text.ends_with(head).then(|| text.len() - length)
        })
}

/// Returns the error of an unexpected status.
pub(super) fn status(name: &str, status: StatusCode, headers: &HeaderMap, excerpt: &str) -> Error {
    let code = status.as_u16();
    let (kind, transient) = match code {
        404 | 410 => (ErrorKind::NotFound, false),
        401 | 403 | 407 | 511 => (ErrorKind::Denied, false),
        412 => (ErrorKind::Changed, false),
        408 | 429 => (ErrorKind::Unavailable, true),
        501 | 505 => (ErrorKind::Unsupported, false),
        500..600 => (ErrorKind::Unavailable, true),
        _ => (ErrorKind::Protocol, false),
    };
    let colon = if excerpt.is_empty() { "" } else { ": " };
    let error = Error::new(kind, format!("{name}: status {code}{colon}{excerpt}"));
    let pause = retry_after(headers, SystemTime::now());
    let pause = pause.or_else(|| (code == 429).then(|| window_ends(headers))?);
    match (transient, pause) {
        (true, Some(pause)) => error.with_retry_after(pause),
        (true, None) => error.transient(),
        (false, _) => error,
    }
}

/// Returns the time until the requests of a window are counted anew: `t` of
/// `RateLimit: "api";r=0;t=55`.
fn window_ends(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("ratelimit")?.to_str().ok()?;
    let mut parts = text.split([';', ',']).map(str::trim);
    let seconds = parts
        .find_map(|part| part.strip_prefix("t="))?
        .parse()
        .ok()?;
    // Rounded down by the service.
    Some(
        Duration::from_secs(seconds)
            .saturating_add(Duration::from_secs(1))
            .min(LONGEST_PAUSE),
    )
}

/// The root cause of an error of the transport.
enum Cause {
    /// The connection ended too early.
    Cut,
    /// The host name has no address now.
    NoAddress,
    /// The certificate of the server is not trusted.
    Certificate,
    /// The two sides do not agree on encryption.
    Tls,
    /// The answer is not valid HTTP.
    Malformed,
    /// The request took too long.
    Slow,
    Other,
}

fn cause(error: &reqwest::Error) -> Cause {
    let mut next = error.source();
    let mut found = Cause::Other;
    while let Some(error) = next {
        if error.to_string() == "dns error" {
            // Its type is private.
            return Cause::NoAddress;
        } else if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return match tls {
                rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                    Cause::Certificate
                }
                _ => Cause::Tls,
            };
        } else if let Some(hyper) = error.downcast_ref::<hyper::Error>() {
            if hyper.is_parse() {
                return Cause::Malformed;
            } else if hyper.is_incomplete_message() || hyper.is_canceled() || hyper.is_closed() {
                found = Cause::Cut;
            }
        }
        let io = error.downcast_ref::<io::Error>();
        match io.map(io::Error::kind) {
            Some(
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected,
            ) => found = Cause::Cut,
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                found = Cause::Malformed
            }
            Some(io::ErrorKind::TimedOut) => found = Cause::Slow,
            _ => {}
        }
        // An I/O error hides the error that it wraps: its `source` is the cause of the wrapped
        // error.
        let inner = io.and_then(io::Error::get_ref);
        next = inner.map_or(error.source(), |inner| {
            Some(inner as &(dyn std::error::Error + 'static))
        });
    }
    if error.is_timeout() && matches!(found, Cause::Other) {
        Cause::Slow
    } else {
        found
    }
}

/// Returns true if a request without an answer may simply be sent again: its connection had ended
/// before.
pub(super) fn is_stale(error: &reqwest::Error) -> bool {
    !error.is_connect() && matches!(cause(error), Cause::Cut)
}

/// Returns the error of a request that got no answer.
pub(super) fn transport(name: &str, error: reqwest::Error) -> Error {
    let connect = error.is_connect();
    let (kind, what, transient) = match cause(&error) {
        Cause::Certificate => (ErrorKind::Denied, "the certificate is not trusted", false),
        Cause::Tls => (ErrorKind::Protocol, "no agreement on encryption", false),
        Cause::Malformed => (ErrorKind::Protocol, "not an answer of HTTP", false),
        Cause::NoAddress => (ErrorKind::Unavailable, "no such host", true),
        Cause::Slow if connect => (ErrorKind::Unavailable, "no connection in time", true),
        Cause::Cut | Cause::Other if connect => (ErrorKind::Unavailable, "no connection", true),
        Cause::Cut => (
            ErrorKind::Unavailable,
            "the connection ended without an answer",
            true,
        ),
        Cause::Slow => (ErrorKind::Unavailable, "no answer in time", true),
        Cause::Other if error.is_builder() => {
            (ErrorKind::Config, "no request can be made of it", false)
        }
        Cause::Other => (ErrorKind::Io, "the request failed", true),
    };
    finish(
        Error::new(kind, format!("{name}: {what}")),
        transient,
        error,
    )
}

/// Returns the error of a body that broke off after `got` bytes.
pub(super) fn body(name: &str, got: u64, want: Option<u64>, error: reqwest::Error) -> Error {
    let so_far = so_far(got, want);
    let (kind, what, transient) = match cause(&error) {
        Cause::Malformed => (ErrorKind::Protocol, "wrong chunks", false),
        Cause::Slow => (ErrorKind::Unavailable, "no more in time", true),
        _ => (ErrorKind::Truncated, "cut", true),
    };
    finish(
        Error::new(kind, format!("{name}: {what} after {so_far}")),
        transient,
        error,
    )
}

/// Formats a progress such as `3 of 7 bytes`.
pub(super) fn so_far(got: u64, want: Option<u64>) -> String {
    match want {
        Some(want) => format!("{got} of {want} bytes"),
        None => format!("{got} bytes"),
    }
}

fn finish(error: Error, transient: bool, source: reqwest::Error) -> Error {
    let error = error.with_source(source.without_url());
    if transient { error.transient() } else { error }
}

#[cfg(test)]
mod tests {
    use reqwest::header::RETRY_AFTER;

    use super::*;

    fn pause(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().unwrap());
        retry_after(
            &headers,
            httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap(),
        )
    }

    #[test]
    fn row_53_a_pause_is_seconds_or_a_date_and_never_absurd() {
        assert_eq!(pause("2"), Some(Duration::from_secs(2)));
        assert_eq!(
            pause("Sun, 06 Nov 1994 08:49:47 GMT"),
            Some(Duration::from_secs(10))
        );
        assert_eq!(pause("Sun, 06 Nov 1994 08:49:27 GMT"), Some(Duration::ZERO));
        for absurd in [
            "1000000000",
            "99999999999999999999999",
            "Sat, 06 Nov 2094 08:49:37 GMT",
        ] {
            assert_eq!(pause(absurd), Some(LONGEST_PAUSE));
        }
        for nonsense in ["-1", "soon", "1.5", ""] {
            assert_eq!(pause(nonsense), None);
        }
    }

    #[test]
    fn row_53_a_window_of_requests_is_waited_for() {
        let ends = |text: &str| {
            let headers =
                HeaderMap::from_iter([("ratelimit".parse().unwrap(), text.parse().unwrap())]);
            let error = status("u", StatusCode::TOO_MANY_REQUESTS, &headers, "");
            assert!(error.is_transient(), "{error}");
            error.retry_after().map(|pause| pause.as_secs())
        };
        assert_eq!(ends(r#""resolvers";r=0;t=55"#), Some(56));
        assert_eq!(ends(r#""api"; r=0; t=18446744073709551615"#), Some(86400));
        for nonsense in ["", "t", "t=-1", r#""api";r=0;t=soon"#] {
            assert_eq!(ends(nonsense), None);
        }
    }

    #[test]
    fn row_73_an_excerpt_holds_no_secret_not_even_a_part_at_its_end() {
        let mut secrets = Secrets::default();
        secrets.add("marker-0123456789");
        secrets.add("abc");
        assert_eq!(
            secrets.excerpt(b"a\n marker-0123456789\x07b abc"),
            "a [secret]\\u{7}b abc"
        );
        assert_eq!(secrets.excerpt(b"said marker-01234"), "said");
        let mut long = vec![b'x'; EXCERPT - 3];
        long.extend_from_slice(b"marker-0123456789");
        assert_eq!(long.len().min(secrets.excerpt_reads()), long.len());
        assert!(
            !secrets
                .excerpt(&long[..secrets.excerpt_reads().min(long.len())])
                .contains("mark")
        );
        assert!(secrets.excerpt(&vec![0xff; 5000]).len() <= EXCERPT);
    }
}
