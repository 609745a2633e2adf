//! The files of a corpus, as one store that counts what is read of them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use datapipes::{Error, Graph, Result};
use datapipes_io::stores::{Body, Get, ListStore, Lockfile, Meta, Object, Store};
use futures::StreamExt;
use futures::stream::BoxStream;
use percent_encoding::percent_decode_str;

use crate::inspect::files::is_repository;
use crate::inspect::kind::Kind;
use crate::lock::open;
use crate::words::words;

words! {
    /// Layout of documents in files.
    pub enum Layout {
        /// A JSON object on each line.
        JsonLines = "jsonl",
        /// A row of a table for each.
        Parquet = "parquet",
        /// Each file is a document.
        Text = "text",
    }
}

impl Layout {
    fn of_name(name: &str) -> Option<Layout> {
        match Kind::of(name, &[]) {
            Kind::JsonLines => Some(Layout::JsonLines),
            Kind::Parquet => Some(Layout::Parquet),
            Kind::Text => Some(Layout::Text),
            _ => None,
        }
    }
}

/// Files of several stores, under the names that the user wrote.
#[derive(Debug)]
pub struct Corpus {
    pub layout: Layout,
    pub files: Vec<CorpusFile>,
    by_name: HashMap<String, usize>,
    /// Bytes of all files, and those up to the furthest one that was read.
    pub bytes: u64,
    read: Arc<AtomicU64>,
}

/// A file of a corpus.
#[derive(Debug)]
pub struct CorpusFile {
    /// Path as the user wrote it, or URL.
    pub name: String,
    pub size: u64,
    /// Revision of its store that is read, if there are any.
    pub revision: Option<String>,
    /// Sizes of the files before it.
    begin: u64,
    store: Arc<dyn Store>,
    key: String,
}

impl Corpus {
    /// Finds the files of paths, folders, patterns and URLs, in the order in which they are given;
    /// those of a folder or pattern sorted by name. A store with revisions is read at that of its
    /// files in `before`, names with their revisions.
    ///
    /// # Errors
    /// `NotFound` for a place with no files; `Config` if names do not say how documents lie in the
    /// files, or not the same for all; the errors of stores.
    pub fn find(
        places: &[String],
        layout: Option<Layout>,
        lock: Option<&Lockfile>,
        before: &[(String, String)],
    ) -> Result<Corpus> {
        let mut found = Vec::new();
        for place in places {
            found.extend(list(place, layout, lock, before)?);
        }
        let layout = match layout {
            Some(layout) => layout,
            None => layout_of(&found)?,
        };
        let sized = Graph::from_vec(found)
            .named("list")
            .map_async(|one: Found| async move {
                let size = one.store.head(&one.key).await?.size;
                let revision = one.store.revision().await?;
                datapipes::Ok((one, size.unwrap_or(0), revision))
            });
        let mut bytes = 0;
        let place = |(Found { name, store, key }, size, revision)| {
            let begin = bytes;
            bytes += size;
            CorpusFile {
                name,
                size,
                revision,
                begin,
                store,
                key,
            }
        };
        let files: Vec<CorpusFile> = sized.collect()?.into_iter().map(place).collect();
        let by_name = files.iter().enumerate();
        Ok(Corpus {
            layout,
            by_name: by_name.map(|(at, file)| (file.name.clone(), at)).collect(),
            files,
            bytes,
            read: Arc::default(),
        })
    }

    /// Returns how many of the bytes lie before the furthest one that was read.
    pub fn read_up_to(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn file(&self, name: &str) -> Result<&CorpusFile> {
        let at = self.by_name.get(name);
        at.map(|&at| &self.files[at])
            .ok_or_else(|| Error::not_found(name))
    }
}

#[async_trait]
impl Store for Corpus {
    fn url(&self) -> &str {
        ""
    }
    fn url_of(&self, name: &str) -> String {
        self.file(name)
            .map_or_else(|_| name.to_owned(), |file| file.store.url_of(&file.key))
    }
    async fn get(&self, name: &str, get: Get) -> Result<Object> {
        let file = self.file(name)?;
        let object = file.store.get(&file.key, get).await?;
        // The index of a Parquet file is at its end, and is read first.
        let is_index = self.layout == Layout::Parquet && object.range.end == file.size;
        if is_index && object.range.start > 0 {
            return Ok(object);
        }
        let (read, mut at) = (self.read.clone(), file.begin + object.range.start);
        let body = object.body.inspect(move |piece| {
            at += piece.as_ref().map_or(0, |piece| piece.len() as u64);
            read.fetch_max(at, Ordering::Relaxed);
        });
        Ok(Object {
            body: Body::stream(body),
            ..object
        })
    }
    async fn head(&self, name: &str) -> Result<Meta> {
        let file = self.file(name)?;
        file.store.head(&file.key).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
        let names = self.files.iter().map(|file| &file.name);
        let below = names.filter(|name| name.starts_with(prefix));
        let metas: Vec<_> = below.map(|name| Ok(Meta::new(name))).collect();
        futures::stream::iter(metas).boxed()
    }
}

/// A file whose size is not known.
#[derive(Clone)]
struct Found {
    name: String,
    store: Arc<dyn Store>,
    key: String,
}

/// Returns the files of a place. Of a folder these are the files of the layout, by their names.
fn list(
    place: &str,
    layout: Option<Layout>,
    lock: Option<&Lockfile>,
    before: &[(String, String)],
) -> Result<Vec<Found>> {
    let is_url = place.contains("://");
    let local = Path::new(place);
    // In a URL a question mark is no wildcard.
    let wildcards = if is_url { "*[{" } else { "*?[{" };
    let wild = place.find(|letter| wildcards.contains(letter));
    let is_folder = if is_url {
        place.ends_with('/') || is_repository(place)
    } else {
        local.is_dir()
    };
    let nothing = |what: &str| Err(Error::not_found(format!("{place}: {what}")));
    let (base, pattern) = match wild {
        _ if is_folder => (place, Some("**")),
        Some(at) if is_url || !local.exists() => {
            let (base, pattern) = split(place, at);
            (base, Some(pattern))
        }
        _ if !is_url && !local.is_file() => return nothing("no such file or folder"),
        _ => (split(place, place.len()).0, None),
    };
    let store = open(if base.is_empty() { "." } else { base }, lock)?;
    let of_store = |(name, _): &&(String, String)| name.starts_with(store.url());
    if let Some((_, revision)) = before.iter().find(of_store) {
        store.pin_revision(revision)?;
    }
    let keys = match pattern {
        None => {
            let key = &place[base.len()..];
            vec![match is_url {
                true => percent_decode_str(key).decode_utf8_lossy().into_owned(),
                false => key.to_owned(),
            }]
        }
        Some(pattern) => {
            let listed = Graph::source(ListStore::new(store.clone(), pattern).allow_empty());
            let names = listed.map(|file| file.name().into_owned()).collect()?;
            let fits = |name: &String| match Layout::of_name(name) {
                of_name @ Some(_) => layout.is_none() || layout == of_name,
                None => false,
            };
            names
                .into_iter()
                .filter(|name| !is_folder || fits(name))
                .collect()
        }
    };
    if keys.is_empty() {
        return nothing(match is_folder {
            true => "no files of JSON lines, Parquet or text, by their names",
            false => "no file matches",
        });
    }
    let slash = if is_folder && !place.ends_with('/') {
        "/"
    } else {
        ""
    };
    let found = |key: String| Found {
        name: match is_url {
            true => store.url_of(&key),
            false => format!("{base}{slash}{key}"),
        },
        store: store.clone(),
        key,
    };
    Ok(keys.into_iter().map(found).collect())
}

/// Splits after the last slash before a position.
fn split(place: &str, at: usize) -> (&str, &str) {
    place.split_at(place[..at].rfind('/').map_or(0, |slash| slash + 1))
}

/// Returns the layout that the names of all files say.
fn layout_of(found: &[Found]) -> Result<Layout> {
    let mut first: Option<(Layout, &str)> = None;
    for Found { name, .. } in found {
        let problem = match (Layout::of_name(name), first) {
            (Some(layout), None) => {
                first = Some((layout, name));
                continue;
            }
            (Some(layout), Some((before, _))) if layout == before => continue,
            (Some(layout), Some((before, other))) => {
                format!("{other} is {before} and {name} is {layout}, by their names")
            }
            (None, _) => format!("{name}: its name does not say what it holds"),
        };
        let help = "--as jsonl reads JSON lines, --as parquet rows of Parquet, --as text each file as a document";
        return Err(Error::config(format!("{problem}; {help}")));
    }
    Ok(first.expect("each place has files").0)
}
