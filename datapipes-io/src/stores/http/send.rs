//! Sends a request and gets the head of its answer: time limits, redirects, connections that had
//! ended.

use datapipes::{Error, ErrorKind, Result};
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Request, Response, Url};
use tokio::time::timeout;

use super::Inner;
use super::address::{same_origin, shown};
use super::fault;
use super::options::is_listed;

/// How many redirects in a row are followed.
const HOPS: usize = 5;

/// How large all headers of an answer may be together. An answer has a few hundred bytes of them.
const HEAD: usize = 64 << 10;

impl Inner {
    /// Sends a request, follows redirects as far as they are allowed, and returns the answer once
    /// it has begun, whatever its status. `name` is what errors call it.
    pub async fn send(
        &self,
        method: Method,
        url: Url,
        headers: HeaderMap,
        name: &str,
    ) -> Result<Response> {
        let mut url = url;
        for _ in 0..=HOPS {
            let found = self.hop(method.clone(), &url, &headers, name).await?;
            if !matches!(found.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(found);
            }
            url = self.follow(&url, &found, name)?;
        }
        Err(Error::new(
            ErrorKind::Protocol,
            format!("{name}: more than {HOPS} redirects in a row"),
        ))
    }

    async fn hop(
        &self,
        method: Method,
        url: &Url,
        headers: &HeaderMap,
        name: &str,
    ) -> Result<Response> {
        let mut stale = false;
        loop {
            let mut request = Request::new(method.clone(), url.clone());
            let sent = request.headers_mut();
            sent.reserve(headers.len() + self.headers.len() + 1);
            if same_origin(url, self.address.base()) {
                sent.extend(
                    self.headers
                        .iter()
                        .map(|(name, value)| (name.clone(), value.clone())),
                );
            }
            sent.extend(
                headers
                    .iter()
                    .map(|(name, value)| (name.clone(), value.clone())),
            );
            sent.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            match timeout(self.first_byte, self.clients.here().execute(request)).await {
                Ok(Ok(found)) => return self.check_head(found, name),
                // The server may close a kept connection while the request is on its way. That is
                // nobody's fault.
                Ok(Err(error)) if !stale && fault::is_stale(&error) => stale = true,
                Ok(Err(error)) => return Err(fault::transport(name, error)),
                Err(_) => {
                    let words = format!("{name}: no answer in {:?}", self.first_byte);
                    return Err(Error::new(ErrorKind::Unavailable, words).transient());
                }
            }
        }
    }

    fn check_head(&self, found: Response, name: &str) -> Result<Response> {
        let size: usize = found
            .headers()
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 4)
            .sum();
        if size > HEAD {
            let words = format!("{name}: headers of {size} bytes, of at most {HEAD}");
            return Err(Error::new(ErrorKind::Protocol, words));
        }
        let framing = self.clients.check_framing(found.headers());
        framing.map_err(|why| Error::new(ErrorKind::Protocol, format!("{name}: {why}")))?;
        Ok(found)
    }

    /// Where a redirect leads, if it may.
    fn follow(&self, from: &Url, found: &Response, name: &str) -> Result<Url> {
        let location = found
            .headers()
            .get(LOCATION)
            .and_then(|to| to.to_str().ok());
        let mut to = location.and_then(|to| from.join(to).ok()).ok_or_else(|| {
            let words = format!(
                "{name}: status {} without a place to go",
                found.status().as_u16()
            );
            Error::new(ErrorKind::Protocol, words)
        })?;
        // Who we are is not for the server to say. A URL without a host has no user.
        let _ = to.set_username("").and_then(|()| to.set_password(None));
        let no = |why: &str| {
            Error::new(
                ErrorKind::Denied,
                format!("{name}: redirected to {}: {why}", shown(&to)),
            )
        };
        if !matches!(to.scheme(), "http" | "https") {
            // What such a URL says is shown no further than its scheme.
            let words = format!("{name}: redirected to {}:, which is not HTTP", to.scheme());
            Err(Error::new(ErrorKind::Denied, words))
        } else if from.scheme() == "https" && to.scheme() == "http" {
            Err(no("https does not lead to http"))
        } else if same_origin(&to, from) && to.path().strip_suffix('/') == Some(from.path()) {
            // What is there is the page of the folder, or none.
            Err(Error::new(
                ErrorKind::NotFound,
                format!("{name}: a folder, not a file"),
            ))
        } else if same_origin(&to, self.address.base()) {
            Ok(to)
        } else if !is_listed(&self.follow, &to) {
            Err(no("another host, which allow_redirects_to does not name"))
        } else {
            Ok(to)
        }
    }
}
