//! Options of an HTTP store.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use datapipes::{Error, Result};
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, ClientBuilder, Proxy};

use super::address::{Address, literal};
use super::body::Rate;
use super::fault::Secrets;
use super::{Http, Inner, Listing, Refused};
use crate::stores::clients::Clients;

/// Options of an [`Http`] store; made by [`Http::builder`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use datapipes_io::stores::{Http, Store, http::Listing};
/// let store = Http::builder("https://data.example.org/train")
///     .basic("reader", "pass")
///     .first_byte_timeout(Duration::from_secs(60))
///     .allow_redirects_to("cdn.example.org")
///     .listing(Listing::Manifest("keys.txt".into()))
///     .build()?;
/// assert_eq!(format!("{store:?}"), r#"Http { url: "https://data.example.org/train/", .. }"#);
/// # datapipes::Ok(())
/// ```
#[must_use = "it does nothing until `build`"]
pub struct HttpBuilder {
    url: String,
    headers: HeaderMap,
    secrets: Secrets,
    roots: Vec<Certificate>,
    proxies: Option<Vec<Proxy>>,
    user_agent: String,
    connect: Duration,
    idle: Duration,
    first_byte: Duration,
    rate: Rate,
    version: Version,
    follow: Vec<String>,
    as_public: bool,
    refused: Option<Refused>,
    unknown_length: bool,
    listing: Listing,
    problem: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
enum Version {
    One,
    Negotiated,
    Two,
}

/// Headers that the store sets itself, or that would change the meaning of an answer.
const RESERVED: &[HeaderName] = &[
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::RANGE,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

impl HttpBuilder {
    pub(super) fn new(url: &str) -> Self {
        HttpBuilder {
            url: url.to_owned(),
            headers: HeaderMap::new(),
            secrets: Secrets::default(),
            roots: Vec::new(),
            proxies: Some(Vec::new()),
            user_agent: concat!("datapipes/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            first_byte: Duration::from_secs(30),
            rate: Rate {
                bytes: 1024,
                over: Duration::from_secs(10),
            },
            version: Version::One,
            follow: Vec::new(),
            as_public: false,
            refused: None,
            unknown_length: false,
            listing: Listing::Auto,
            problem: None,
        }
    }

    /// Sends a user and a password (basic authentication). A URL with `user:password@` does the
    /// same.
    pub fn basic(mut self, user: &str, password: &str) -> Self {
        let pair = self.secret_pair(user, password);
        self.secret_header(header::AUTHORIZATION, &format!("Basic {pair}"))
    }

    /// Sends a token (`Authorization: Bearer`).
    pub fn bearer(mut self, token: &str) -> Self {
        self.secrets.add(token);
        self.secret_header(header::AUTHORIZATION, &format!("Bearer {token}"))
    }

    /// Sends a header with every request to the store's own host. Its value is treated as a secret.
    ///
    /// Headers that select a part of an object, or the encoding of the answer, are reserved for the
    /// store: setting one is an error of [`build`](Self::build).
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) if !RESERVED.contains(&name) => self.secret_header(name, value),
            Ok(name) => {
                self.fail(format!("the header {name} is set by the store itself"));
                self
            }
            Err(_) => {
                self.fail("a header has a name that is none".into());
                self
            }
        }
    }

    fn secret_header(mut self, name: HeaderName, value: &str) -> Self {
        match HeaderValue::from_str(value) {
            Ok(mut header) => {
                header.set_sensitive(true);
                self.secrets.add(value);
                self.headers.insert(name, header);
            }
            Err(_) => self.fail(format!(
                "the value of the header {name} has characters that none may have"
            )),
        }
        self
    }

    /// Trusts the certificates in a PEM text, in addition to those that this machine trusts.
    pub fn root_certificates(mut self, pem: impl AsRef<[u8]>) -> Self {
        match Certificate::from_pem_bundle(pem.as_ref()) {
            Ok(roots) if !roots.is_empty() => self.roots.extend(roots),
            _ => self.fail("no certificate in what was given as PEM".into()),
        }
        self
    }

    /// Uses the proxies that the environment names (`HTTPS_PROXY` and so on). By default the
    /// environment is ignored.
    pub fn proxy_from_environment(mut self) -> Self {
        self.proxies = None;
        self
    }

    /// Uses a proxy, `http://[user:password@]host:port`.
    pub fn proxy(mut self, url: &str) -> Self {
        if let Ok((_, Some((user, password)))) = Address::parse(url) {
            self.secret_pair(&user, &password);
        }
        match Proxy::all(url) {
            Ok(proxy) => self.proxies.get_or_insert_default().push(proxy),
            Err(_) => self.fail("the URL of the proxy cannot be read".into()),
        }
        self
    }

    /// Sets the user agent; by default `datapipes/` and the version.
    pub fn user_agent(mut self, name: &str) -> Self {
        name.clone_into(&mut self.user_agent);
        self
    }

    datapipes::setters! {
        /// Sets the maximum time to make a connection, TLS included. Defaults to 5 seconds.
        connect_timeout(limit: Duration) => connect = limit;

        /// Sets the maximum time until an answer begins, connecting included. Defaults to 30 seconds.
        first_byte_timeout(limit: Duration) => first_byte = limit;

        /// Sets the time for which an idle connection is kept open. Defaults to 60 seconds.
        idle_timeout(limit: Duration) => idle = limit;
    }

    /// Sets the minimum rate of a body in bytes per second, averaged over a time. Defaults to 1024
    /// over 10 seconds. Only the time in which the consumer waits for bytes counts; a rate of 0 is
    /// no limit. There is no limit for the duration of a whole body.
    pub fn minimum_rate(mut self, bytes_a_second: u64, over: Duration) -> Self {
        self.rate = Rate {
            bytes: bytes_a_second,
            over,
        };
        self
    }

    datapipes::setters! {
        /// Offers HTTP/2 to `https://` hosts, which choose. By default all requests use HTTP/1.1.
        ///
        /// With HTTP/1.1 there are as many connections as requests in flight, each with its own
        /// flow-control window. Over long distances that is faster than HTTP/2, whose requests share
        /// one connection, so that one lost packet delays all of them. HTTP/2 helps if a host allows
        /// few connections, or if connections are slow to make.
        http2() => version = Version::Negotiated;

        /// Uses HTTP/2 without negotiation, for `http://` hosts that are known to support it.
        http2_prior_knowledge() => version = Version::Two;

        /// Follows redirects to another host, `host` or `host:port`, too. Redirects within scheme, host
        /// and port of the store are always followed, up to 5 in a row; redirects from `https` to
        /// `http` never are. Credentials, headers and the query of the store's URL are not sent to
        /// another host, port or scheme. The addresses of a host named here are not checked: they may
        /// be those of this machine or a private network.
        allow_redirects_to(host: &str) => follow.push(host.to_ascii_lowercase());

        /// Accepts a body without a length or chunks, which ends where its connection ends. Such a body
        /// may be cut without notice.
        allow_unknown_length() => unknown_length = true;

        /// Sets the source of the names of objects; see [`Listing`].
        listing(listing: Listing) => listing = listing;
    }

    /// Sets another URL; follows redirects to hosts of the same kind, and explains refusals.
    pub(super) fn for_hub(mut self, url: &str, refused: Refused) -> Self {
        self.url = url.to_owned();
        self.as_public = true;
        self.refused = Some(refused);
        self
    }

    /// Returns a user and a password as basic authentication sends them, and keeps all three secret.
    fn secret_pair(&mut self, user: &str, password: &str) -> String {
        let pair = BASE64_STANDARD.encode(format!("{user}:{password}"));
        for secret in [user, password, &pair] {
            self.secrets.add(secret);
        }
        pair
    }

    fn fail(&mut self, why: String) {
        self.problem
            .get_or_insert_with(|| Error::config(format!("an HTTP store: {why}")));
    }

    /// Returns the store. Makes no request yet.
    ///
    /// # Errors
    /// `Config` for invalid options.
    pub fn build(mut self) -> Result<Http> {
        let (address, user) = Address::parse(&self.url)?;
        if let Some((user, password)) = user {
            self = self.basic(&user, &password);
        }
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let mut secrets = self.secrets;
        secrets.add_query(address.base());
        install_provider();
        // Without TLS no certificates are needed, and reading those of this machine takes time.
        let trusts_none = address.base().scheme() == "http"
            && self.follow.is_empty()
            && !self.as_public
            && self.proxies.is_some();
        let (user_agent, connect, idle) = (self.user_agent, self.connect, self.idle);
        let (version, roots, proxies) = (self.version, self.roots, self.proxies);
        let make = move || {
            let mut client = ClientBuilder::new()
                .user_agent(&user_agent)
                .redirect(reqwest::redirect::Policy::none())
                .referer(false)
                .connect_timeout(connect)
                .pool_idle_timeout(idle)
                .tcp_nodelay(true);
            client = match version {
                Version::One => client.http1_only().retry(reqwest::retry::never()),
                Version::Negotiated => client,
                Version::Two => client.http2_prior_knowledge(),
            };
            // All requests to a host share one connection: its window bounds the bytes in flight.
            client = client
                .http2_initial_connection_window_size(32 << 20)
                .http2_initial_stream_window_size(2 << 20)
                .http2_max_frame_size(64 << 10)
                .http2_max_header_list_size(64 << 10);
            let roots = roots.iter().cloned();
            client = if trusts_none {
                client.tls_certs_only(roots)
            } else {
                client.tls_certs_merge(roots)
            };
            if let Some(proxies) = &proxies {
                client = proxies
                    .iter()
                    .cloned()
                    .fold(client.no_proxy(), ClientBuilder::proxy);
            }
            client.build()
        };
        let clients = Clients::new(make).map_err(|error| {
            Error::config("an HTTP store: no client can be made").with_source(error.without_url())
        })?;
        Ok(Http(Arc::new(Inner {
            address,
            clients,
            headers: self.headers,
            secrets,
            first_byte: self.first_byte,
            rate: self.rate,
            follow: self.follow,
            as_public: self.as_public,
            refused: self.refused,
            unknown_length: self.unknown_length,
            listing: self.listing,
        })))
    }
}

/// Installs a provider, without which making a client panics. A provider that the user installed
/// before stays.
fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Returns true if a host and port are on a list of `host` and `host:port`.
pub(super) fn is_listed(list: &[String], url: &reqwest::Url) -> bool {
    let Some(host) = url.host_str() else {
        return false;
    };
    let port = url.port_or_known_default().unwrap_or(0);
    list.iter().any(|entry| {
        // An IPv6 address has colons of its own, and brackets.
        let bare = entry
            .parse::<IpAddr>()
            .is_ok_and(|address| literal(url) == Some(address));
        (url.port().is_none() && (bare || entry == host)) || *entry == format!("{host}:{port}")
    })
}

/// Shows nothing secret: neither the URL's user and query, nor headers and proxies.
impl fmt::Debug for HttpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = Address::parse(&self.url)
            .map_or_else(|_| "..".into(), |(address, _)| address.shown().to_owned());
        f.debug_struct("HttpBuilder")
            .field("url", &url)
            .field("connect_timeout", &self.connect)
            .field("first_byte_timeout", &self.first_byte)
            .field("minimum_rate", &self.rate)
            .field("version", &self.version)
            .field("redirects_to", &self.follow)
            .field("listing", &self.listing)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn a_list_of_hosts_may_name_ports() {
        let listed = |list: &[&str], url: &str| {
            let list: Vec<_> = list.iter().map(|host| (*host).to_owned()).collect();
            is_listed(&list, &url.parse().unwrap())
        };
        assert!(listed(&["a.org"], "https://a.org/x"));
        assert!(listed(&["a.org:443"], "https://a.org/x"));
        assert!(listed(&["a.org:8080"], "http://a.org:8080/x"));
        assert!(listed(&["::1"], "http://[::1]/x"));
        assert!(listed(&["[::1]:81"], "http://[::1]:81/x"));
        for url in [
            "https://b.a.org/",
            "https://a.org:8443/",
            "https://a.org.b/",
            "https://b.org/a.org",
        ] {
            assert!(!listed(&["a.org"], url), "{url}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said_at_build_and_without_secrets() {
        let wrong = [
            Http::builder("http://h/").header("Range", "marker"),
            Http::builder("http://h/").header("a b", "marker"),
            Http::builder("http://h/").bearer("marker\n"),
            Http::builder("http://h/").root_certificates("marker"),
            Http::builder("http://h/").proxy("marker://marker@marker:marker"),
            Http::builder("http//marker"),
        ];
        for builder in wrong {
            assert!(!format!("{builder:?}").contains("marker"));
            let error = builder.build().unwrap_err();
            assert!(
                error.kind() == ErrorKind::Config && !format!("{error:#?}").contains("marker"),
                "{error}"
            );
        }
    }
}
