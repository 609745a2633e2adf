//! Finds the files of a path or URL: one file, the files of a folder, or a data set that is a
//! folder.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::whole_file::read;
use datapipes::{Error, ErrorKind, Graph, Result};
use datapipes_io::prelude::*;
use datapipes_io::stores::{Get, Lockfile, Store, redacted};
use datapipes_text::{HfTokenizer, TokenStore};
use futures::StreamExt;
use percent_encoding::percent_decode_str;

use super::kind::{As, Kind};
use super::sets;
use super::shown::with_errors;
use crate::lock::{folder_of, open};

/// Content of a path or URL.
pub enum Found {
    /// Files of a store, with their kinds: consecutive files of one kind together.
    Files(Arc<dyn Store>, Vec<(Kind, Vec<String>)>),
    /// A folder with MosaicML's `index.json`.
    Mds(Arc<dyn Store>),
    /// An LMDB database: a folder with a `data.mdb`, or such a file.
    Lmdb(std::path::PathBuf),
    /// A token store.
    Tokens(TokenStore),
}

/// Number of bytes read to recognize the kind of a file.
const HEAD: u64 = 512;

/// Returns the content of a path or URL, and the errors of its listing. With a lock, files that are
/// missing, new or changed since are refused. A token store is one unless it is seen as something
/// else than rows.
///
/// # Errors
/// `NotFound` if there is nothing; the errors of the store.
pub fn find(place: &str, lock: Option<&Lockfile>, seen_as: As) -> Result<(Found, Vec<Error>)> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    if let Some(rest) = place.strip_prefix("file://") {
        // After the host, which is empty or this machine.
        let path = &rest[rest.find('/').unwrap_or(rest.len())..];
        return find(&decoded(path), lock, seen_as);
    }
    let local = Path::new(place);
    if !place.contains("://") {
        if local.join("data.mdb").is_file() || place.ends_with(".mdb") || place.ends_with(".lmdb") {
            if lock.is_some() {
                let message = "an LMDB database is not read by a store, and cannot be locked";
                return Err(Error::unsupported(message));
            }
            return Ok((Found::Lmdb(local.to_owned()), Vec::new()));
        }
        if lock.is_none()
            && matches!(seen_as, As::Auto | As::Rows)
            && let Some(store) = sets::token_store(local)?
        {
            return Ok((Found::Tokens(store), Vec::new()));
        }
        if let (false, Some(name)) = (local.is_dir(), local.file_name()) {
            let (Some(folder), Some(name)) = (folder_of(local).to_str(), name.to_str()) else {
                return Err(Error::unsupported("a path that is not UTF-8"));
            };
            return single(open(folder, lock)?, name);
        }
        return folder(open(place, lock)?);
    }
    match place.rsplit_once('/').filter(|_| !is_repository(place)) {
        Some((parent, name)) if !name.is_empty() && !parent.ends_with('/') => {
            single(open(parent, lock)?, &decoded(name))
        }
        _ => folder(open(place, lock)?),
    }
}

/// Returns true if a URL names a whole repository of the hub, which is a folder also without a `/` at
/// its end.
pub fn is_repository(place: &str) -> bool {
    #[cfg(feature = "http")]
    {
        datapipes_io::stores::Hub::is_repository(place)
    }
    #[cfg(not(feature = "http"))]
    {
        let _ = place;
        false
    }
}

/// Returns the content of a `tokenizer.json` by its path or URL, and the tokenizer.
///
/// # Errors
/// The errors of the store; `Config` for a URL with a query; `Corrupt` if it is no tokenizer.
pub fn tokenizer(place: &str) -> Result<(Bytes, HfTokenizer)> {
    let within = |error: Error| error.within(shown(place));
    if place.contains("://") && place.contains(['?', '#']) {
        let message = "the URL of a tokenizer has no query: download the file, and give its path";
        return Err(within(Error::config(message)));
    }
    let json = match place.rsplit_once('/').filter(|_| place.contains("://")) {
        Some((parent, name)) => {
            let name = percent_decode_str(name).decode_utf8_lossy().into_owned();
            let files = open(parent, None)?.files([name]).load_files();
            files.collect()?.remove(0).data
        }
        None => read(Path::new(place), 1 << 30)
            .map_err(|error| within(Error::io(error)))?
            .into(),
    };
    let tokenizer = HfTokenizer::from_bytes(&json).map_err(within)?;
    Ok((json, tokenizer))
}

/// Returns a path, or a URL without what must not be shown.
pub fn shown(place: &str) -> String {
    match place.contains("://") {
        true => redacted(place),
        false => place.to_owned(),
    }
}

fn single(store: Arc<dyn Store>, name: &str) -> Result<(Found, Vec<Error>)> {
    let head = heads(&store, vec![name.to_owned()])?.remove(0);
    let kind = kind(&store, name, &head);
    Ok((
        Found::Files(store, vec![(kind, vec![name.to_owned()])]),
        Vec::new(),
    ))
}

/// Reads the first bytes of some files; returns none for a file that cannot be read, which is
/// reported when it is loaded.
fn heads(store: &Arc<dyn Store>, names: Vec<String>) -> Result<Vec<Bytes>> {
    let store = store.clone();
    let heads = Graph::from_vec(names).map_async(move |name| {
        let store = store.clone();
        async move { Ok::<_, Error>(head(&*store, &name).await.unwrap_or_default()) }
    });
    heads.named("head").collect()
}

async fn head(store: &dyn Store, name: &str) -> Result<Bytes> {
    match store.get(name, Get::range(0..HEAD)).await {
        Ok(object) => object.bytes().await,
        // A server without ranges: the first piece of the whole file.
        Err(error) if error.kind() == ErrorKind::Protocol => {
            let mut object = store.get(name, Get::default()).await?;
            object.body.next().await.unwrap_or_else(|| Ok(Bytes::new()))
        }
        Err(error) => Err(error),
    }
}

/// Returns the kind of a file; for a compressed file with an ambiguous name, by its content.
fn kind(store: &Arc<dyn Store>, name: &str, head: &[u8]) -> Kind {
    if !Kind::is_hidden(name, head) {
        return Kind::of(name, head);
    }
    let files = store
        .clone()
        .files([name])
        .load_files()
        .decompress()
        .collect()
        .unwrap_or_default();
    files
        .first()
        .map_or(Kind::Other, |file| Kind::of(&file.name, &file.data))
}

fn folder(store: Arc<dyn Store>) -> Result<(Found, Vec<Error>)> {
    // Files are read by their names, and such a name stands for other bytes.
    let listed = store
        .clone()
        .list_files("**")
        .try_map(|file| match file.path.to_str() {
            Some(_) => Ok(file.name().into_owned()),
            None => Err(Error::unsupported("the name is not UTF-8")),
        });
    let (mut names, mut errors) = (Vec::new(), Vec::new());
    for entry in listed.through(with_errors).collect()? {
        match entry {
            Ok(name) => names.push(name),
            Err(error) => errors.push(error),
        }
    }
    // Without any file there is nothing to show but the reason.
    if names.is_empty() && !errors.is_empty() {
        return Err(errors.remove(0));
    }
    names.sort();
    if names.iter().any(|name| name == "index.json")
        && names.iter().any(|name| name.contains(".mds"))
    {
        return Ok((Found::Mds(store), errors));
    }
    // Most files are recognized by their names; the others are opened.
    let is_unknown = |name: &&String| matches!(Kind::of(name, &[]), Kind::Other | Kind::Idx);
    let unknown: Vec<String> = names.iter().filter(is_unknown).cloned().collect();
    let mut looked = unknown
        .clone()
        .into_iter()
        .zip(heads(&store, unknown)?)
        .peekable();
    let mut groups: Vec<(Kind, Vec<String>)> = Vec::new();
    for name in names {
        let head = looked
            .next_if(|(unknown, _)| *unknown == name)
            .map(|(_, head)| head)
            .unwrap_or_default();
        let kind = kind(&store, &name, &head);
        match groups.last_mut() {
            Some((last, names)) if *last == kind => names.push(name),
            _ => groups.push((kind, vec![name])),
        }
    }
    Ok((Found::Files(store, groups), errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_a_folder_and_a_file_of_it_is_not() {
        for place in [
            "hf://datasets/org/name",
            "hf://datasets/name",
            "hf://org/model",
            "hf://datasets/org/name@main",
            "hf://datasets/org/name@refs/convert/parquet",
            "hf://spaces/org/name@refs%2Fpr%2F1",
        ] {
            assert!(is_repository(place), "{place}");
        }
        for place in [
            "hf://datasets/org/name/a.txt",
            "hf://datasets/org/name@main/a.txt",
            "hf://datasets/org/name/a@b.txt",
            "hf://datasets/org/name@refs/convert/parquet/a.parquet",
            "hf://org/model/a.bin",
            "https://host/a",
        ] {
            assert!(!is_repository(place), "{place}");
        }
    }
}
