//! Addresses of objects: keys below a base URL, and URLs without secrets.

use std::net::IpAddr;

use datapipes::{Error, Result};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use reqwest::Url;

/// Characters that must be escaped in a part of a path. `/` between the parts stays.
pub(super) const IN_PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A base URL. Its query, for example of a signed URL, is sent with every request and is never
/// shown.
pub(super) struct Address {
    base: Url,
    shown: String,
}

/// User and password from a URL.
pub(super) type User = (String, String);

impl Address {
    /// Parses a URL. The error never contains the URL, which may hold secrets.
    pub fn parse(url: &str) -> Result<(Address, Option<User>)> {
        let wrong = |why: String| Error::config(format!("an HTTP store: {why}"));
        let mut base =
            Url::parse(url).map_err(|error| wrong(format!("its URL cannot be read: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong(
                "its URL begins with neither http:// nor https://".into(),
            ));
        }
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = (!base.username().is_empty() || base.password().is_some()).then(|| {
            (
                decoded(base.username()),
                decoded(base.password().unwrap_or("")),
            )
        });
        let cleared = base.set_username("").and_then(|()| base.set_password(None));
        cleared.map_err(|()| wrong("its URL has no room for a user".into()))?;
        base.set_fragment(None);
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let shown = shown(&base);
        Ok((Address { base, shown }, user))
    }

    /// Returns the base URL without secrets.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Returns the URL of an object.
    pub fn of(&self, key: &str) -> Result<Url> {
        check_key(key).map_err(|why| Error::denied(format!("{}{key}: {why}", self.shown)))?;
        Ok(self.below(key))
    }

    /// Returns the URL of a folder: `""`, or a key with `/` at its end.
    pub fn folder(&self, folder: &str) -> Result<Url> {
        let Some(name) = folder.strip_suffix('/') else {
            return Ok(self.base.clone());
        };
        self.of(name)?;
        Ok(self.below(folder))
    }

    pub fn below(&self, key: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!(
            "{}{}",
            self.base.path(),
            utf8_percent_encode(key, IN_PATH)
        ));
        url
    }
}

/// Returns an error if the key is not valid.
pub(super) fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() || key.starts_with('/') {
        Err("a key is a relative path")
    } else if key.split('/').any(|part| part == "." || part == "..") {
        Err("a key does not lead out of its store")
    } else if key.ends_with('/') {
        Err("a key names no folder")
    } else {
        Ok(())
    }
}

/// Returns a URL without user, password, query and fragment.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // A URL without a host has no user either.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// Returns true if scheme, host and port are equal; credentials are sent to the same origin only.
pub(super) fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme()
        && a.host_str() == b.host_str()
        && a.port_or_known_default() == b.port_or_known_default()
}

/// Returns the IP address that a URL contains instead of a host name.
pub(super) fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Returns true if a URL may be followed from the base: a public base (https, public host) leads to
/// public URLs only. Link-local addresses, where clouds serve a machine's credentials
/// (169.254.169.254), are never allowed from another host.
///
/// Host names are not resolved. Names without a dot, and those of private networks, are not public.
pub(super) fn is_as_public(url: &Url, base: &Url) -> bool {
    let public = |url: &Url| url.scheme() == "https" && is_public(url);
    let own = match literal(url) {
        Some(IpAddr::V4(address)) => address.is_link_local(),
        Some(IpAddr::V6(address)) => {
            let mapped = address.to_ipv4_mapped();
            address.is_unicast_link_local() || mapped.is_some_and(|v4| v4.is_link_local())
        }
        None => false,
    };
    public(url) || !is_public(base) && !own
}

fn is_public(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_end_matches('.');
    let (_, last) = host.rsplit_once('.').unwrap_or(("", ""));
    literal(url).is_none()
        && !matches!(
            last,
            "" | "home" | "internal" | "lan" | "local" | "localhost"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn a_key_is_one_path_whatever_stands_in_it() {
        let (address, _) = Address::parse("https://host/da%20ta?sig=x").unwrap();
        for (key, path) in [
            ("a/b.jpg", "/da%20ta/a/b.jpg"),
            ("a b#c?d%e", "/da%20ta/a%20b%23c%3Fd%25e"),
            ("a%2Fb", "/da%20ta/a%252Fb"),
            ("%2e%2e/x", "/da%20ta/%252e%252e/x"),
            ("ü/\u{1f600}", "/da%20ta/%C3%BC/%F0%9F%98%80"),
            ("a\\..\\b", "/da%20ta/a%5C..%5Cb"),
            ("line\nend\t ", "/da%20ta/line%0Aend%09%20"),
            ("a//b+c&d=e;f", "/da%20ta/a//b+c&d=e;f"),
            ("http://x", "/da%20ta/http://x"),
        ] {
            let url = address.of(key).unwrap();
            assert_eq!((url.path(), url.query()), (path, Some("sig=x")), "{key}");
        }
        for key in ["", "/a", "..", "a/../b", "./a", "a/.", "a/", "/"] {
            assert_eq!(
                address.of(key).unwrap_err().kind(),
                ErrorKind::Denied,
                "{key}"
            );
        }
        assert_eq!(address.folder("").unwrap().path(), "/da%20ta/");
        assert_eq!(address.folder("x y/").unwrap().path(), "/da%20ta/x%20y/");
    }

    #[test]
    fn row_64_a_public_host_leads_to_public_hosts_by_https_only() {
        let leads =
            |base: &str, to: &str| is_as_public(&to.parse().unwrap(), &base.parse().unwrap());
        let hub = "https://huggingface.co/";
        for to in [
            "https://cas-bridge.xethub.hf.co/a?X-Amz-Signature=1",
            "https://us.aws.cdn.hf.co:8443/a",
        ] {
            assert!(
                leads(hub, to) && leads("http://127.0.0.1:8080/", to),
                "{to}"
            );
        }
        for to in [
            "http://cdn-lfs.hf.co/a",
            "https://10.0.0.1/",
            "https://8.8.8.8/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://2130706433/",
            "https://localhost/",
            "https://metadata/",
            "https://metadata.google.internal./",
            "https://printer.local/",
        ] {
            assert!(!leads(hub, to) && leads("http://10.0.0.2/", to), "{to}");
        }
        for to in [
            "http://169.254.169.254/latest/meta-data/",
            "http://[::ffff:169.254.169.254]/",
            "http://[fe80::1]/",
        ] {
            assert!(!leads(hub, to) && !leads("http://127.0.0.1/", to), "{to}");
        }
    }

    #[test]
    fn what_is_secret_is_not_shown() {
        let (address, user) =
            Address::parse("https://us%40er:p%2Fw@host:8443/data?sig=x#f").unwrap();
        assert_eq!(address.shown(), "https://host:8443/data/");
        assert_eq!(user, Some(("us@er".into(), "p/w".into())));
        for wrong in ["ftp://marker@x/", "marker", "http://marker:marker@"] {
            let error = Address::parse(wrong).err().unwrap();
            assert!(
                error.kind() == ErrorKind::Config && !error.to_string().contains("marker"),
                "{error}"
            );
        }
    }
}
