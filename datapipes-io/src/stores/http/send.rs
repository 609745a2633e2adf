//! Sends a request and returns the head of its answer: time limits, redirects, stale connections.

use std::time::Duration;

use datapipes::{Error, Result};
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Request, Response, Url};
use tokio::time::timeout;

use super::Inner;
use super::address::{is_as_public, same_origin, shown};
use super::options::is_listed;
use super::{answer, fault};

/// Maximum number of consecutive redirects.
const HOPS: usize = 5;

/// Maximum total size of the headers of an answer, and of the body of a redirect that is read.
/// Typical answers have a few hundred bytes.
const HEAD: usize = 64 << 10;

/// Maximum time to wait for that body, which mostly comes with the headers. A new connection takes
/// about as long.
const BODY_TIME: Duration = Duration::from_millis(100);

impl Inner {
    /// Sends a request, follows allowed redirects, and returns the answer once it has begun,
    /// whatever its status. `name` is the name for errors.
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
            answer::beginning(found, HEAD, BODY_TIME).await;
        }
        Err(Error::protocol(format!(
            "{name}: more than {HOPS} redirects in a row"
        )))
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
                // The server may close an idle connection while the request is on its way. The
                // request is sent again once.
                Ok(Err(error)) if !stale && fault::is_stale(&error) => stale = true,
                Ok(Err(error)) => return Err(fault::transport(name, error)),
                Err(_) => {
                    let words = format!("{name}: no answer in {:?}", self.first_byte);
                    return Err(Error::unavailable(words).transient());
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
            return Err(Error::protocol(words));
        }
        let framing = self.clients.check_framing(found.headers());
        framing.map_err(|why| Error::protocol(format!("{name}: {why}")))?;
        Ok(found)
    }

    /// Returns the target of a redirect, if it is allowed.
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
            Error::protocol(words)
        })?;
        // The server must not choose the credentials. A URL without a host has no user.
        let _ = to.set_username("").and_then(|()| to.set_password(None));
        let no = |why: &str| Error::denied(format!("{name}: redirected to {}: {why}", shown(&to)));
        if !matches!(to.scheme(), "http" | "https") {
            // Only the scheme of such a URL is shown.
            let words = format!("{name}: redirected to {}:, which is not HTTP", to.scheme());
            Err(Error::denied(words))
        } else if from.scheme() == "https" && to.scheme() == "http" {
            Err(no("https does not lead to http"))
        } else if same_origin(&to, from) && to.path().strip_suffix('/') == Some(from.path()) {
            // The target is the page of the folder, not an object.
            Err(Error::not_found(format!("{name}: a folder, not a file")))
        } else if same_origin(&to, self.address.base())
            || is_listed(&self.follow, &to)
            || self.as_public && is_as_public(&to, self.address.base())
        {
            Ok(to)
        } else if self.as_public {
            Err(no("not https to a host that anybody may reach"))
        } else {
            Err(no("another host, which allow_redirects_to does not name"))
        }
    }
}
