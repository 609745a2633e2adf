//! Listings: the files of a folder of a repository, page by page.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use datapipes::{Error, Result};
use futures::StreamExt;
use reqwest::header::{HeaderMap, LINK};
use reqwest::{Method, Url};
use serde::Deserialize;

use crate::stores::http::address::same_origin;
use crate::stores::http::answer::Answer;
use crate::stores::http::list::corrupt;
use crate::stores::http::list::json::Elements;
use crate::stores::http::{Asked, Http};

/// Maximum number of files and folders in one listing.
const MOST: usize = 4_000_000;

/// Files by their paths, with their sizes.
pub type Files = Arc<[(Box<str>, Option<u64>)]>;

/// An element of a page.
#[derive(Deserialize)]
struct Found {
    #[serde(rename = "type")]
    kind: String,
    path: Box<str>,
    size: Option<u64>,
}

/// A file with its size, or a folder.
type Entries = BTreeMap<Box<str>, Option<Option<u64>>>;

/// A listing of all pages that have arrived.
#[derive(Default)]
pub struct Pages {
    entries: Entries,
    page: Elements,
}

impl Pages {
    /// Adds the next bytes of a page. An error says what is wrong with it.
    pub fn feed(&mut self, data: &[u8]) -> Result<(), &'static str> {
        let entries = &mut self.entries;
        self.page.feed(data, &mut |element| add(entries, element))
    }

    /// Ends a page. An error says what is wrong with it.
    pub fn end(&mut self) -> Result<(), &'static str> {
        std::mem::take(&mut self.page).end()
    }

    /// Returns the files in ascending order of the bytes of their paths.
    pub fn into_files(self) -> Files {
        let file = |(path, file): (Box<str>, Option<Option<u64>>)| Some((path, file?));
        self.entries.into_iter().filter_map(file).collect()
    }
}

/// Reads all pages of a listing, and returns the files in ascending order of the bytes of their
/// paths; none if there is no such folder.
///
/// # Errors
/// `Corrupt` for a page that is no list of files, or that repeats earlier files only, so that the
/// pages would never end; `Denied` for a next page on another host; `Limit`.
pub async fn list(http: &Http, first: Url, name: String) -> Result<Files> {
    let mut pages = Pages::default();
    let mut next = Some(first);
    let mut asked = Asked::page(name, http.0.address.base().clone());
    while let Some(url) = next {
        asked.url = url.clone();
        let found = http
            .0
            .send(Method::GET, url, HeaderMap::new(), &asked.name)
            .await?;
        let missing = found
            .headers()
            .get("x-error-code")
            .is_some_and(|code| code == "EntryNotFound");
        if missing && pages.entries.is_empty() {
            break;
        }
        let from = found.url().clone();
        let answer = Answer::check(&http.0, &asked, found, None).await?;
        let (headers, mut body) = answer.into_stream(&http.0, asked.name.clone());
        next = next_page(http, &headers, &from, &asked.name)?;
        let known = pages.entries.len();
        let wrong = |why| corrupt(&asked.name, why);
        while let Some(data) = body.next().await {
            pages.feed(&data?).map_err(wrong)?;
            if pages.entries.len() > MOST {
                let words = format!("{}: more than {MOST} files and folders", asked.name);
                return Err(Error::limit(words));
            }
        }
        pages.end().map_err(wrong)?;
        if next.is_some() && pages.entries.len() == known {
            return Err(wrong("a page with nothing new on it and another after it"));
        }
    }
    Ok(pages.into_files())
}

fn add(entries: &mut Entries, element: &[u8]) -> Result<(), &'static str> {
    let found: Found = serde_json::from_slice(element)
        .map_err(|_| "an element that is not a file or folder with its path and size")?;
    let file = match &*found.kind {
        "file" => Some(found.size),
        "directory" => None,
        // A later version of the hub may list more than files and folders.
        _ => return Ok(()),
    };
    match entries.entry(found.path) {
        Entry::Vacant(place) => {
            place.insert(file);
        }
        Entry::Occupied(known) if *known.get() != file => {
            return Err("a path twice, with different sizes");
        }
        Entry::Occupied(_) => {}
    }
    Ok(())
}

/// Returns the URL of the next page: `Link: <URL>; rel="next"`.
fn next_page(http: &Http, headers: &HeaderMap, from: &Url, name: &str) -> Result<Option<Url>> {
    let links = headers
        .get_all(LINK)
        .iter()
        .filter_map(|link| link.to_str().ok());
    let mut links = links.flat_map(|text| text.split('<').skip(1));
    let Some(next) = links.find_map(|link| {
        let (url, parameters) = link.split_once('>')?;
        let mut parameters = parameters.split([';', ',']).map(str::trim);
        parameters
            .any(|parameter| matches!(parameter, "rel=\"next\"" | "rel=next"))
            .then_some(url)
    }) else {
        return Ok(None);
    };
    let url = from.join(next);
    let url = url.map_err(|_| corrupt(name, "a next page without a place"))?;
    if same_origin(&url, http.0.address.base()) {
        return Ok(Some(url));
    }
    let host = url.host_str().unwrap_or_default();
    let words = format!("{name}: its next page is on another host ({host})");
    Err(Error::denied(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn the_next_page_is_that_of_its_link() {
        let http = Http::new("https://hub.example/").unwrap();
        let from = Url::parse("https://hub.example/api/tree?a=1").unwrap();
        let next = |text: &str| {
            let headers = HeaderMap::from_iter([(LINK, text.parse().unwrap())]);
            next_page(&http, &headers, &from, "u").map(|url| url.map(String::from))
        };
        for text in [
            r#"<https://hub.example/api/tree?cursor=x>; rel="next""#,
            r#"<https://hub.example/x>; rel="prev", </api/tree?cursor=x>; rel="next""#,
            r#"<?cursor=x>;rel=next"#,
        ] {
            let expected = "https://hub.example/api/tree?cursor=x";
            assert_eq!(next(text).unwrap().as_deref(), Some(expected), "{text}");
        }
        for text in ["", r#"<https://hub.example/x>; rel="prev""#, "next"] {
            assert_eq!(next(text).unwrap(), None, "{text}");
        }
        for text in [
            "<https://other.example/x>; rel=next",
            "<http://hub.example/>; rel=next",
        ] {
            assert_eq!(next(text).unwrap_err().kind(), ErrorKind::Denied);
        }
        assert_eq!(
            next("<http://[>; rel=next").unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }
}
