//! Graphs from files of a kind to the printed objects.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, Error, Graph, Origin, Result, Tensor};
use datapipes_image::{ImageFormat, decode};
use datapipes_io::formats::{
    Array, ArrowIpc, ArrowRows, Codec, Csv, Example, Feature, FileEntries, FileEntry, Format, Idx,
    JsonLines, Lines, MsgPack, Npy, Npz, Parquet, ParquetRows, RecordIo, SafeTensors, Sample,
    TfRecords, Unzip,
};
use datapipes_io::prelude::*;
use datapipes_io::{File, FileRef, Untar};
use datapipes_text::HfTokenizer;
use serde_json::{Value, json};

use super::files::Found;
use super::kind::{As, Kind};
use super::sets;
use super::shown::{Shown, dtype, sha256, show, size_and_hash};

/// Returns the graph of the files in the requested view; with arrays and pictures as files, if they
/// are to be dumped. Tokens are shown as the text that a tokenizer makes of them, if there is one.
///
/// # Errors
/// Returns an error for an unsupported view, or if there is a tokenizer and no token store.
pub fn graph(
    found: Found,
    seen_as: As,
    dump: bool,
    tokenizer: Option<HfTokenizer>,
) -> Result<Graph<Shown>> {
    if tokenizer.is_some() && !matches!(found, Found::Tokens(_)) {
        let message = "--tokenizer is for a token store, and there is none";
        return Err(Error::unsupported(message));
    }
    match found {
        Found::Files(store, groups) => {
            let one = |(kind, names): (Kind, Vec<String>)| {
                let seen_as = if seen_as == As::Auto {
                    kind.usual()
                } else {
                    seen_as
                };
                files(store.clone().files(names), kind, seen_as, dump)
            };
            let mut graphs = groups.into_iter().map(one).collect::<Result<Vec<_>>>()?;
            Ok(if graphs.len() == 1 {
                graphs.remove(0)
            } else {
                Graph::concat(graphs)
            })
        }
        Found::Mds(store) => sets::mds(store, seen_as),
        Found::Lmdb(path) => sets::lmdb(&path, seen_as),
        Found::Tokens(store) => sets::documents(store, tokenizer),
    }
}

/// Loads files whole, and decompresses them.
fn whole(files: Graph<FileRef>) -> Graph<File> {
    files.load_files().decompress()
}

fn files(files: Graph<FileRef>, kind: Kind, seen_as: As, dump: bool) -> Result<Graph<Shown>> {
    let members = |files: Graph<FileRef>| match kind {
        // A possible cut is reported; for samples it would drop the last one.
        Kind::Tar if seen_as == As::Members => {
            Some(files.load_files().pipe(Untar::new().require_end()))
        }
        Kind::Tar => Some(files.load_files().untar()),
        Kind::Zip | Kind::Npz => Some(whole(files).read_as(Unzip::new())),
        _ => None,
    };
    let opened = |files: Graph<FileRef>| match kind {
        Kind::Tar | Kind::Zip => members(files).expect("both are archives"),
        _ => whole(files),
    };
    Ok(match seen_as {
        As::Auto => unreachable!("each kind has its usual form"),
        As::Bytes => show(whole(files), |_, file: File| {
            Ok(size_and_hash(&file.data).into())
        }),
        As::Members => {
            match members(files.clone()) {
                Some(members) => show(members, |_, file: File| {
                    let (size, sha256) = (file.data.len(), sha256(&file.data));
                    Ok(json!({ "name": &*file.name, "type": "file", "size": size, "sha256": sha256 }).into())
                }),
                None => return Ok(refused(files, kind, "members")),
            }
        }
        As::Samples => show(opened(files).samples(), |_, sample: Sample| {
            Ok(Shown::sample(sample))
        }),
        As::Lines => show(
            opened(files).read_as(Lines::new()),
            |origin, text: String| Ok(json!({ "index": origin.index(), "text": text }).into()),
        ),
        As::Records => match kind {
            Kind::RecordIo => show(files.read_as(RecordIo::new()), |origin, data: Bytes| {
                Ok(record(origin, &data, Value::Null).into())
            }),
            _ => show(files.read_as(TfRecords::new()), |origin, data: Bytes| {
                let features =
                    Example::parse(data.clone()).map_or(Value::Null, |example| features(&example));
                Ok(record(origin, &data, features).into())
            }),
        },
        As::Arrays => match kind {
            Kind::Npy => show_arrays(files.load_files().read_as(Npy::new()), dump),
            Kind::Npz => show_arrays(whole(files).read_as(Npz::new()), dump),
            Kind::SafeTensors => show_tensors(
                whole(files).read_as(SafeTensors::new()),
                |(name, tensor)| (Some(name), tensor),
                dump,
            ),
            Kind::Idx => show_tensors(
                files.load_files().read_as(Idx::new()),
                |tensor| (None, tensor),
                dump,
            ),
            Kind::Tar | Kind::Zip => show_arrays(opened(files).read_as(Arrays), dump),
            _ => refused(files, kind, "arrays"),
        },
        As::Rows => rows(files, kind)?,
        As::Images => {
            let pictures = opened(files).filter(move |file| {
                // For an archive the pictures; else the requested view.
                !matches!(kind, Kind::Tar | Kind::Zip)
                    || Kind::of(&file.name, &file.data) == Kind::Image
            });
            show(pictures, move |_, file: File| picture(&file, dump))
        }
    })
}

fn rows(files: Graph<FileRef>, kind: Kind) -> Result<Graph<Shown>> {
    fn row<T: serde::Serialize>(origin: &Origin, row: T) -> Result<Shown> {
        let row = serde_json::to_value(row).map_err(Error::user)?;
        Ok(json!({ "index": origin.index(), "row": row }).into())
    }
    Ok(match kind {
        Kind::Csv => show(files.read_as(Csv::rows()), row),
        Kind::Tsv => show(files.read_as(Csv::rows().tsv()), row),
        Kind::Parquet => show(whole(files).read_as(ParquetRows::new(Parquet::new())), row),
        Kind::Arrow => show(whole(files).read_as(ArrowRows::new(ArrowIpc::new())), row),
        Kind::MsgPack => show(files.read_as(MsgPack::values()), |origin, value| {
            Ok(json!({ "index": origin.index(), "row": message_pack(&value) }).into())
        }),
        Kind::JsonLines | Kind::Text | Kind::Other => show(files.read_as(JsonLines::values()), row),
        _ => return Ok(refused(files, kind, "rows")),
    })
}

/// Converts a value to JSON: bytes to size and hash, extensions also to their number.
fn message_pack(value: &rmpv::Value) -> Value {
    let key = |key: &rmpv::Value| key.as_str().map_or_else(|| key.to_string(), str::to_owned);
    match value {
        rmpv::Value::Nil => Value::Null,
        rmpv::Value::Boolean(value) => (*value).into(),
        rmpv::Value::Integer(value) => value
            .as_i64()
            .map(Value::from)
            .or_else(|| value.as_u64().map(Value::from))
            .unwrap_or(Value::Null),
        rmpv::Value::F32(value) => (*value).into(),
        rmpv::Value::F64(value) => (*value).into(),
        rmpv::Value::String(text) => text
            .as_str()
            .map_or_else(|| size_and_hash(text.as_bytes()), Value::from),
        rmpv::Value::Binary(data) => size_and_hash(data),
        rmpv::Value::Array(values) => values.iter().map(message_pack).collect(),
        rmpv::Value::Map(pairs) => pairs
            .iter()
            .map(|(name, value)| (key(name), message_pack(value)))
            .collect(),
        rmpv::Value::Ext(kind, data) => {
            json!({ "ext": kind, "size": data.len(), "sha256": sha256(data) })
        }
    }
}

/// Returns an error for each file.
fn refused(files: Graph<FileRef>, kind: Kind, what: &'static str) -> Graph<Shown> {
    show(files, move |_, _: FileRef| {
        Err(Error::unsupported(format!(
            "a file of kind {kind:?} has no {what}"
        )))
    })
}

fn record(origin: &Origin, data: &[u8], features: Value) -> Value {
    json!({ "index": origin.index(), "size": data.len(), "sha256": sha256(data), "features": features })
}

/// Converts features: numbers unchanged; bytes to text if they are text, else to size and hash.
fn features(example: &Example) -> Value {
    let shown = |feature: &Feature| match feature {
        Feature::Floats(values) => json!(values),
        Feature::Ints(values) => json!(values),
        Feature::Bytes(values) => values.iter().map(text_or_hash).collect(),
        _ => Value::Array(Vec::new()),
    };
    example
        .features()
        .map(|(name, feature)| (name.to_owned(), shown(feature)))
        .collect()
}

fn text_or_hash(data: &Bytes) -> Value {
    let text = std::str::from_utf8(data)
        .ok()
        .filter(|text| !text.chars().any(|c| c.is_control() && c != '\n'));
    text.map_or_else(|| size_and_hash(data), Value::from)
}

fn show_arrays(arrays: Graph<Array>, dump: bool) -> Graph<Shown> {
    show(arrays, move |origin, array: Array| {
        let name = array_name(origin);
        let json = json!({
            "name": name,
            "dtype": array.dtype().name(),
            "shape": array.shape(),
            "fortran_order": array.fortran_order(),
            "sha256": sha256(&array.values_le()?),
        });
        let npy = dump.then(|| array.to_npy());
        Ok(Shown::array(json, name, npy))
    })
}

/// Shows tensors; `parts` returns the name, if the item has one, and the tensor.
fn show_tensors<T: Send + 'static>(
    tensors: Graph<T>,
    parts: fn(T) -> (Option<Arc<str>>, Tensor),
    dump: bool,
) -> Graph<Shown> {
    show(tensors, move |origin, item: T| {
        let (name, tensor) = parts(item);
        let name = name.map_or_else(|| array_name(origin), |name| name.to_string());
        // Some types, such as bfloat16, have no NPY form.
        let array = if dump {
            Array::from_tensor(&tensor).ok()
        } else {
            None
        };
        let json = json!({
            "name": name,
            "dtype": dtype(&tensor),
            "shape": tensor.shape(),
            "fortran_order": false,
            "sha256": sha256(tensor.as_bytes()),
        });
        Ok(Shown::array(json, name, array.map(|array| array.to_npy())))
    })
}

/// Returns the member's name; for a file that is one array, the file's name without its ending.
fn array_name(origin: &Origin) -> String {
    if let Some(name) = origin.name() {
        return name.to_owned();
    }
    let file = origin
        .parent()
        .map(|file| file.name().map_or_else(|| file.to_string(), str::to_owned));
    let file = file.unwrap_or_default();
    let file = Codec::of_name(&file).map_or(file.clone(), |(_, bare)| bare);
    let base = file.rsplit('/').next().unwrap_or(&file);
    base.rsplit_once('.')
        .map_or(base, |(stem, _)| stem)
        .to_owned()
}

fn picture(file: &File, dump: bool) -> Result<Shown> {
    let image = decode(&file.data)?;
    let format = ImageFormat::of(&file.data).map(|format| format.to_string());
    let (width, height, channels) = (image.width(), image.height(), image.channels());
    let json = json!({
        "name": &*file.name, "format": format, "width": width, "height": height, "channels": channels,
        "dtype": "uint8", "sha256": sha256(image.data()),
    });
    let npy = if dump {
        let shape = [height as usize, width as usize, usize::from(channels)];
        let tensor = Tensor::from_vec(image.into_data(), shape)?;
        Some(Array::from_tensor(&tensor)?.to_npy())
    } else {
        None
    };
    Ok(Shown::array(json, file.name.to_string(), npy))
}

/// A format for the arrays among the members of an archive, `.npy` and `.npz`, made of other
/// formats.
struct Arrays;

impl Format for Arrays {
    type Item = Array;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Array>> {
        let stem = |name: &str| Arc::from(name.strip_suffix(".npy").unwrap_or(name));
        match Kind::of(&file.name, &file.data) {
            Kind::Npy => {
                let name = stem(&file.name);
                let entries = Npy::new().open(file, cx)?;
                Ok(Box::new(entries.map(move |entry| match entry {
                    FileEntry::Item(_, array) => FileEntry::Item(Some(Arc::clone(&name)), array),
                    entry => entry,
                })))
            }
            Kind::Npz => Npz::new().open(file, cx),
            _ => Ok(Box::new(std::iter::empty())),
        }
    }
}
