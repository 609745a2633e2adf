//! The pages that servers make of folders, entered one by one.

use std::vec;

use datapipes::{Error, ErrorKind, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use percent_encoding::percent_decode_str;
use reqwest::Url;

use super::json::{Element, Elements, Named};
use super::{Http, Meta, ask, corrupt, no_key, shown};
use crate::stores::http::address::{check_key, same_origin};

/// Maximum nesting depth of folders; a link to a parent folder would otherwise never end.
const DEPTH: usize = 64;

/// Maximum length of an HTML tag in bytes.
const TAG: usize = 64 << 10;

/// Maximum number of names in one folder.
const NAMES: usize = 4_000_000;

/// The names in a folder, sorted.
type Entries = Vec<(String, Result<Meta>)>;

/// Returns the deepest folder that holds all keys that begin with a prefix.
pub(in crate::stores::http) fn folder_of(prefix: &str) -> &str {
    &prefix[..prefix.rfind('/').map_or(0, |at| at + 1)]
}

pub(super) async fn open(http: &Http, prefix: String) -> Result<BoxStream<'static, Result<Meta>>> {
    let folder = folder_of(&prefix);
    match entries(http, folder, false).await {
        Err(error) if error.kind() == ErrorKind::NotFound && !folder.is_empty() => {
            Ok(stream::empty().boxed())
        }
        entries => Ok(walk(http, prefix, entries?)),
    }
}

/// Lists a folder and its subfolders.
pub(super) fn walk(
    http: &Http,
    prefix: String,
    entries: Entries,
) -> BoxStream<'static, Result<Meta>> {
    let walk = Walk {
        http: http.clone(),
        prefix,
        stack: vec![entries.into_iter()],
    };
    stream::unfold(walk, |mut walk| async move {
        let found = walk.next().await?;
        Some((found, walk))
    })
    .boxed()
}

struct Walk {
    http: Http,
    prefix: String,
    /// The folders that are open, each with its remaining entries.
    stack: Vec<vec::IntoIter<(String, Result<Meta>)>>,
}

impl Walk {
    async fn next(&mut self) -> Option<Result<Meta>> {
        while let Some(folder) = self.stack.last_mut() {
            let Some((key, entry)) = folder.next() else {
                self.stack.pop();
                continue;
            };
            if entry.is_ok() && !key.starts_with(&self.prefix) {
                continue;
            }
            if !key.ends_with('/') || entry.is_err() {
                return Some(entry);
            }
            let inner = if self.stack.len() < DEPTH {
                entries(&self.http, &key, false).await
            } else {
                let words = format!("{}: {DEPTH} folders in each other", shown(&self.http, &key));
                Err(Error::limit(words))
            };
            match inner {
                Ok(inner) => self.stack.push(inner.into_iter()),
                Err(error) => {
                    self.stack.clear();
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Returns the entries of a folder, in order of the bytes of keys. If `strict`, the error is
/// `Corrupt` unless the page says that it lists a folder.
pub(super) async fn entries(http: &Http, folder: &str, strict: bool) -> Result<Entries> {
    let mut text = ask(http, http.0.address.folder(folder)?, shown(http, folder)).await?;
    let mut page = Page {
        folder,
        name: &text.name,
        found: Vec::new(),
    };
    if text.kind == "application/json" {
        let mut elements = Elements::default();
        while let Some(data) = text.body.next().await {
            elements
                .feed(&data?, &mut |element| page.element(element))
                .map_err(|why| corrupt(&text.name, why))?;
            page.check_size()?;
        }
        elements.end().map_err(|why| corrupt(&text.name, why))?;
    } else if matches!(&*text.kind, "text/html" | "application/xhtml+xml") {
        let mut links = Links::default();
        while let Some(data) = text.body.next().await {
            links
                .feed(&data?, &mut |href| page.link(&text.url, href))
                .map_err(|why| corrupt(&text.name, why))?;
            page.check_size()?;
        }
        if strict && !links.says_it_lists() {
            return Err(corrupt(&text.name, "a page that is not of a folder"));
        }
    } else {
        return Err(corrupt(
            &text.name,
            &format!("{:?} is not the listing of a folder", text.kind),
        ));
    }
    let mut found = page.found;
    // A folder ends in `/`, so that the order of names is the order of keys.
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found.dedup_by(|(a, _), (b, _)| a == b);
    Ok(found)
}

/// Entries found on a page.
struct Page<'a> {
    folder: &'a str,
    name: &'a str,
    found: Entries,
}

impl Page<'_> {
    fn check_size(&self) -> Result<()> {
        if self.found.len() <= NAMES {
            return Ok(());
        }
        Err(Error::limit(format!(
            "{}: more than {NAMES} names in one folder",
            self.name
        )))
    }

    fn add(&mut self, name: &str, size: Option<u64>) {
        let key = format!("{}{name}", self.folder);
        let inner = name.strip_suffix('/').unwrap_or(name);
        let entry = if inner.contains('/') {
            Err(no_key(self.name, name, "it has a slash in it"))
        } else if let Err(why) = check_key(key.strip_suffix('/').unwrap_or(&key)) {
            Err(no_key(self.name, name, why))
        } else {
            Ok(Meta {
                key: key.clone(),
                size,
                version: None,
            })
        };
        self.found.push((key, entry));
    }

    /// Adds an element of nginx or Caddy.
    fn element(&mut self, element: &[u8]) -> Result<(), &'static str> {
        let Ok(Element::Named(Named {
            name,
            size,
            kind,
            is_dir,
            ..
        })) = serde_json::from_slice(element)
        else {
            return Err("an array that does not list a folder");
        };
        let bare = name.strip_suffix('/').unwrap_or(&name);
        match (kind.as_deref(), is_dir) {
            (Some("directory"), _) | (_, Some(true)) => self.add(&format!("{bare}/"), None),
            (Some("file"), _) | (_, Some(false)) => self.add(&name, size),
            // Sockets and devices are left out.
            (Some(_), _) => {}
            (None, None) => return Err("an array that does not list a folder"),
        }
        Ok(())
    }

    /// Adds a link, if it leads to an entry directly below the page.
    fn link(&mut self, page: &Url, href: &str) {
        let Ok(to) = page.join(href) else { return };
        let Some(inner) = to.path().strip_prefix(page.path()) else {
            return;
        };
        let bare = inner.strip_suffix('/').unwrap_or(inner);
        // Links to other hosts, sort orders, the page itself, and entries further below are left
        // out.
        if !same_origin(&to, page)
            || href.starts_with(['?', '#'])
            || bare.is_empty()
            || bare.contains('/')
        {
            return;
        }
        if to.query().is_some() || to.fragment().is_some() {
            return;
        }
        match percent_decode_str(inner).decode_utf8() {
            Ok(name) => self.add(&name, None),
            Err(_) => {
                let error = no_key(self.name, inner, "it is not UTF-8");
                self.found
                    .push((format!("{}{inner}", self.folder), Err(error)));
            }
        }
    }
}

/// A parser that finds links in HTML as it arrives. Holds one tag.
#[derive(Default)]
struct Links {
    held: Vec<u8>,
    in_tag: bool,
    /// The beginning of the page, in lower case.
    head: Vec<u8>,
}

impl Links {
    fn feed(&mut self, data: &[u8], found: &mut impl FnMut(&str)) -> Result<(), &'static str> {
        let room = 2048 - self.head.len();
        self.head.extend(
            data[..data.len().min(room)]
                .iter()
                .map(u8::to_ascii_lowercase),
        );
        let mut rest = data;
        while !rest.is_empty() {
            let stop = if self.in_tag { b'>' } else { b'<' };
            let end = rest.iter().position(|byte| *byte == stop);
            let piece = &rest[..end.unwrap_or(rest.len())];
            if self.in_tag {
                self.held.extend_from_slice(piece);
            }
            if self.held.len() > TAG {
                return Err("a tag of more than 64 KiB");
            }
            let Some(end) = end else { break };
            if self.in_tag {
                if let Some(href) = href(&self.held) {
                    found(&href);
                }
                self.held.clear();
            }
            self.in_tag = !self.in_tag;
            rest = &rest[end + 1..];
        }
        Ok(())
    }

    /// Returns true if the page has the title of a listing, as the pages of nginx, Apache and
    /// lighttpd ("Index of"), and of Python and Tomcat have.
    fn says_it_lists(&self) -> bool {
        let has = |words: &[u8]| self.head.windows(words.len()).any(|window| window == words);
        has(b"index of") || has(b"directory listing")
    }
}

/// Returns the target of a tag, if it is a link.
fn href(tag: &[u8]) -> Option<String> {
    let tag = std::str::from_utf8(tag).ok()?;
    let mut rest = tag
        .strip_prefix(['a', 'A'])?
        .strip_prefix(|c: char| c.is_ascii_whitespace())?;
    loop {
        rest = rest.trim_start();
        let end = rest.find(|c: char| c == '=' || c.is_ascii_whitespace())?;
        let name = &rest[..end];
        rest = rest[end..].trim_start();
        let Some(value) = rest.strip_prefix('=') else {
            continue;
        };
        let value = value.trim_start();
        let (value, next) = match value.chars().next()? {
            quote @ ('"' | '\'') => value[1..].split_once(quote)?,
            _ => value
                .split_once(|c: char| c.is_ascii_whitespace())
                .unwrap_or((value, "")),
        };
        if name.eq_ignore_ascii_case("href") {
            return Some(unescape(value));
        }
        rest = next;
    }
}

/// Replaces the HTML character references that occur in links.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let known = rest
            .find(';')
            .filter(|end| *end < 12)
            .and_then(|end| Some((reference(&rest[1..end])?, end)));
        match known {
            Some((c, end)) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out + rest
}

fn reference(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(html: &str, step: usize) -> Vec<String> {
        let (mut links, mut found) = (Links::default(), Vec::new());
        for piece in html.as_bytes().chunks(step) {
            links
                .feed(piece, &mut |href| found.push(href.to_owned()))
                .unwrap();
        }
        found
    }

    #[test]
    fn links_are_found_whatever_pieces_the_page_comes_in() {
        let html = "<h1>Index of /</h1><A class='x' HREF='a&amp;b'>a</A><a name=q><a\n href = c%20d >\
                    <abbr href=\"no\"><a data-href=\"no\" href=\"e&#x27;&#233;&nbsp&bogus;\">";
        for step in 1..html.len() {
            assert_eq!(links(html, step), ["a&b", "c%20d", "e'é&nbsp&bogus;"]);
        }
    }

    #[test]
    fn row_66_of_links_only_those_right_below_the_page_are_names() {
        let url: Url = "http://h/d%20d/".parse().unwrap();
        let mut page = Page {
            folder: "d d/",
            name: "u",
            found: Vec::new(),
        };
        for href in [
            "../",
            "/",
            "?C=N;O=D",
            "#top",
            "",
            ".",
            "./",
            "/d%20d/",
            "http://other/d%20d/x",
            "mailto:x",
            "a/b",
            "/d%20d/b%20c",
            "./e:f",
            "g/",
            "%2E%2E",
            "h?x",
            "%F0%9F%98%80%0A",
            "a%2Fb",
            "%ff",
            "k%252Fl",
            "https://h/d%20d/z",
        ] {
            page.link(&url, href);
        }
        let found: Vec<_> = page
            .found
            .iter()
            .map(|(key, entry)| (&**key, entry.is_ok()))
            .collect();
        let expected = [
            ("d d/b c", true),
            ("d d/e:f", true),
            ("d d/g/", true),
            ("d d/\u{1f600}\n", true),
            ("d d/a/b", false),
            ("d d/%ff", false),
            ("d d/k%2Fl", true),
        ];
        assert_eq!(found, expected);
    }
}
