//! Data sets that are folders, databases or several files: MDS, LMDB and token stores.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::index::Indexed;
use datapipes::{Error, Graph, Result};
use datapipes_io::formats::{Lmdb, Mds, MdsIndex, MdsSample, MdsValue, Sample};
use datapipes_io::prelude::*;
use datapipes_io::stores::Store;
use datapipes_text::{HfTokenizer, TokenStore, Tokenizer};
use serde_json::{Map, Value, json};

use super::kind::As;
use super::shown::{Shown, dtype, sha256, show, size_and_hash};

/// Opens a data set of MosaicML's, as rows or as samples.
///
/// # Errors
/// Returns an error for an index that cannot be read, and for an unsupported view.
pub fn mds(store: Arc<dyn Store>, seen_as: As) -> Result<Graph<Shown>> {
    let index = store
        .clone()
        .files(["index.json"])
        .load_files()
        .named("index")
        .collect()?
        .remove(0);
    let samples = Indexed::new(Mds::new(store, "", MdsIndex::parse(&index.data)?))
        .fetch()
        .named("mds");
    match seen_as {
        As::Auto | As::Rows => Ok(show(samples, |origin, sample: MdsSample| {
            let row: Map<_, _> = sample
                .values()
                .map(|(name, value)| (name.to_owned(), shown(value)))
                .collect();
            Ok(json!({ "index": origin.index(), "row": row }).into())
        })),
        As::Samples => Ok(show(samples, |origin, sample: MdsSample| {
            let key = format!("{:08}", origin.index());
            let fields = sample
                .values()
                .map(|(name, value)| (name.to_owned(), stored(value)));
            let sample = fields.fold(Sample::new(key), |sample, (name, data)| {
                sample.with(name, data)
            });
            Ok(Shown::sample(sample))
        })),
        _ => Err(Error::unsupported(
            "an MDS data set is seen as rows or samples",
        )),
    }
}

/// Converts a value to JSON; a value that is neither text nor number to size and hash.
fn shown(value: &MdsValue) -> Value {
    match value {
        MdsValue::Bytes(data) => size_and_hash(data),
        MdsValue::Text(text) | MdsValue::Decimal(text) => text.as_str().into(),
        MdsValue::Int(number) => (*number).into(),
        MdsValue::UInt(number) => (*number).into(),
        MdsValue::Float(number) => (*number).into(),
        MdsValue::Json(json) => json.clone(),
        MdsValue::Array(tensor) => {
            json!({ "dtype": dtype(tensor), "shape": tensor.shape(), "sha256": sha256(tensor.as_bytes()) })
        }
        MdsValue::Image(image) => json!({
            "width": image.width, "height": image.height, "mode": image.mode, "sha256": sha256(&image.pixels),
        }),
        MdsValue::List(values) => values.iter().map(shown).collect(),
        _ => Value::Null,
    }
}

/// Converts a value to the content of a file.
fn stored(value: &MdsValue) -> Bytes {
    match value {
        MdsValue::Bytes(data) => data.clone(),
        MdsValue::Array(tensor) => Bytes::copy_from_slice(tensor.as_bytes()),
        MdsValue::Image(image) => image.pixels.clone(),
        MdsValue::Text(text) | MdsValue::Decimal(text) => text.clone().into(),
        value => shown(value).to_string().into(),
    }
}

/// Opens an LMDB database as records, in the order of the keys.
///
/// # Errors
/// Returns an error for a database that cannot be opened, and for an unsupported view.
pub fn lmdb(path: &Path, seen_as: As) -> Result<Graph<Shown>> {
    if !matches!(seen_as, As::Auto | As::Records) {
        return Err(Error::unsupported("an LMDB database is seen as records"));
    }
    let items = Indexed::new(Lmdb::open(path)?.items()?)
        .fetch()
        .named("lmdb");
    Ok(show(items, |origin, (key, value): (Bytes, Bytes)| {
        let key = String::from_utf8_lossy(&key).into_owned();
        let (size, sha256) = (value.len(), sha256(&value));
        Ok(json!({ "index": origin.index(), "key": key, "size": size, "sha256": sha256, "features": null })
            .into())
    }))
}

/// Opens the token store that a path names, by one of its files or by the folder that `datapipes
/// tokenize` made; `None` if it names none.
///
/// # Errors
/// Those of the store.
pub fn token_store(path: &Path) -> Result<Option<TokenStore>> {
    let named = |ending| path.join("corpus").with_extension(ending);
    let path = match path.is_dir() {
        false => path.to_owned(),
        true if named("ds").is_file() => named("ds"),
        true => named("idx"),
    };
    let mut index = path.clone().into_os_string();
    index.push(".idx");
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending {
        Some("bin" | "idx") if is_megatron(&path.with_extension("idx")) => {
            TokenStore::megatron(path.with_extension("")).map(Some)
        }
        Some("ds") if path.with_extension("ds.index").is_file() => {
            TokenStore::datatrove(path).map(Some)
        }
        // The name that Megatron's stores are opened by.
        _ if !path.exists() && is_megatron(Path::new(&index)) => {
            TokenStore::megatron(path).map(Some)
        }
        _ => Ok(None),
    }
}

/// Returns true for an index of Megatron's; others have the same ending.
fn is_megatron(index: &Path) -> bool {
    let mut magic = [0; 9];
    let read = File::open(index).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"MMIDIDX\0\0"
}

/// Shows the documents of a token store, as text if there is a tokenizer.
///
/// # Errors
/// Returns an error for another tokenizer than that of the store.
pub fn documents(mut store: TokenStore, tokenizer: Option<HfTokenizer>) -> Result<Graph<Shown>> {
    if let Some(tokenizer) = &tokenizer {
        store = store.for_tokenizer(tokenizer)?;
    }
    let documents = store.documents().fetch().named("tokens");
    Ok(show(documents, move |origin, ids: Vec<u32>| {
        let (index, tokens) = (origin.index(), ids.len());
        Ok(match &tokenizer {
            Some(tokenizer) => {
                json!({ "index": index, "tokens": tokens, "text": tokenizer.decode(&ids)? }).into()
            }
            None => json!({ "index": index, "tokens": tokens, "ids": ids }).into(),
        })
    }))
}
