//! Finds what a path or URL names: one file, the files of a folder, or a data set that is a folder.

use std::path::Path;
use std::sync::Arc;

use datapipes::{Error, ErrorKind, Graph, Result};
use datapipes_io::prelude::*;
use datapipes_io::stores::{self, Get, Store};

use crate::kind::Kind;

/// What there is to see.
pub enum Found {
    /// Files of a store, with what they are: neighbours of one kind together.
    Files(Arc<dyn Store>, Vec<(Kind, Vec<String>)>),
    /// A folder with MosaicML's `index.json`.
    Mds(Arc<dyn Store>),
    /// An LMDB database, a folder with a `data.mdb` or such a file.
    Lmdb(std::path::PathBuf),
}

/// Bytes looked at to see what a file is.
const HEAD: u64 = 512;

/// Finds what a path or URL names.
///
/// # Errors
/// `NotFound` if there is nothing; what the store says.
pub fn find(place: &str) -> Result<Found> {
    let local = Path::new(place);
    if !place.contains("://") {
        if local.join("data.mdb").is_file() || place.ends_with(".mdb") || place.ends_with(".lmdb") {
            return Ok(Found::Lmdb(local.to_owned()));
        }
        if let (false, Some(name)) = (local.is_dir(), local.file_name()) {
            let folder = local.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let (Some(folder), Some(name)) = (folder.to_str(), name.to_str()) else {
                return Err(Error::new(ErrorKind::Unsupported, "a path that is not UTF-8"));
            };
            return single(stores::open(folder)?, name);
        }
        return folder(stores::open(place)?);
    }
    match place.rsplit_once('/') {
        Some((parent, name)) if !name.is_empty() && !parent.ends_with('/') => {
            single(stores::open(parent)?, name)
        }
        _ => folder(stores::open(place)?),
    }
}

fn single(store: Arc<dyn Store>, name: &str) -> Result<Found> {
    let head = heads(&store, vec![name.to_owned()])?.remove(0);
    let kind = if Kind::is_hidden(name, &head) { unpacked(&store, name)? } else { Kind::of(name, &head) };
    Ok(Found::Files(store, vec![(kind, vec![name.to_owned()])]))
}

/// The first bytes of some files.
fn heads(store: &Arc<dyn Store>, names: Vec<String>) -> Result<Vec<bytes::Bytes>> {
    let store = store.clone();
    let heads = Graph::from_vec(names).map_async(move |name| {
        let store = store.clone();
        async move { store.get(&name, Get::range(0..HEAD)).await?.bytes().await }
    });
    heads.named("head").collect()
}

/// What a compressed file holds whose name does not tell.
fn unpacked(store: &Arc<dyn Store>, name: &str) -> Result<Kind> {
    let files = store.clone().files([name]).load_files().decompress().collect()?;
    Ok(files.first().map_or(Kind::Other, |file| Kind::of(&file.name, &file.data)))
}

fn folder(store: Arc<dyn Store>) -> Result<Found> {
    let listed = store.clone().list_files("**").map(|file| file.name().into_owned());
    let mut names = listed.collect()?;
    names.sort();
    if names.iter().any(|name| name == "index.json") && names.iter().any(|name| name.contains(".mds")) {
        return Ok(Found::Mds(store));
    }
    // Most tell by their names; the others are looked into.
    let unknown: Vec<String> =
        names.iter().filter(|name| Kind::of(name, &[]) == Kind::Other).cloned().collect();
    let mut looked = unknown.clone().into_iter().zip(heads(&store, unknown)?).peekable();
    let mut groups: Vec<(Kind, Vec<String>)> = Vec::new();
    for name in names {
        let head = looked.next_if(|(unknown, _)| *unknown == name).map(|(_, head)| head).unwrap_or_default();
        let kind = Kind::of(&name, &head);
        match groups.last_mut() {
            Some((last, names)) if *last == kind => names.push(name),
            _ => groups.push((kind, vec![name])),
        }
    }
    Ok(Found::Files(store, groups))
}
