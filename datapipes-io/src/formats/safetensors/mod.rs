//! Reads and writes named tensors in safetensors files.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, DType, Error, Result, Tensor};
use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::compression::{Expansion, content};
use super::json_lines::shortened;
use super::{FileEntries, FileEntry, Format};
use crate::File;

/// Maximum size of a header in bytes, as in the Python package.
const MAX_HEADER: u64 = 100_000_000;
/// Key in the header for data that are no tensors.
const METADATA: &str = "__metadata__";

const TYPES: [(Dtype, DType); 13] = [
    (Dtype::U8, DType::U8),
    (Dtype::I8, DType::I8),
    (Dtype::U16, DType::U16),
    (Dtype::I16, DType::I16),
    (Dtype::U32, DType::U32),
    (Dtype::I32, DType::I32),
    (Dtype::U64, DType::U64),
    (Dtype::I64, DType::I64),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
    (Dtype::BOOL, DType::Bool),
];

/// Reads the tensors of [safetensors](https://huggingface.co/docs/safetensors) files, each with its
/// name, in the order in which their numbers are in the file.
///
/// - A tensor whose numbers are aligned in memory is a slice of its file: nothing is copied, and
///   the tensor keeps the file in memory. Writers align the numbers within the file, so the
///   alignment of the file's first byte decides; see [`Tensor::from_bytes`]. Other tensors are
///   copied once.
/// - The supported types are the variants of [`DType`]: unsigned and signed integers, `F16`,
///   `BF16`, `F32`, `F64` and `BOOL`. The metadata of the file (`__metadata__`) are not returned.
/// - A compressed file is recognized by its first bytes and decompressed whole.
///
/// # Errors
/// A file that is shorter than its header states is `Truncated`. A header is `Corrupt` if it is no
/// JSON, or if its tensors overlap, leave holes, do not fill the file, or have shapes that do not
/// match their sizes; a header may have 100 MB. A tensor of another type (`F8_E4M3`, `C64` and
/// others) is `Unsupported` in its place, and the other tensors follow.
///
/// # Examples
/// ```
/// use datapipes::{Graph, Tensor};
/// use datapipes_io::formats::{SafeTensors, write_safetensors};
/// use datapipes_io::{File, prelude::*};
///
/// let bias = Tensor::from_vec(vec![1.0f32, 2.0], [2])?;
/// let file = File::new("a.safetensors", write_safetensors([("bias", bias.clone())])?);
/// let read = Graph::from_vec(vec![file]).read_as(SafeTensors::new()).collect()?;
/// assert_eq!(read, [("bias".into(), bias)]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct SafeTensors {
    expansion: Expansion,
}

impl SafeTensors {
    /// Returns the format with the default limits.
    pub fn new() -> Self {
        SafeTensors::default()
    }

    /// Refuses a compressed file that decompresses to more than `bytes`, or to more than `ratio`
    /// times its own size once it is past 1 MiB. Defaults to 8 GiB and 1100 times.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.expansion.limit(bytes, ratio);
        self
    }
}

impl Format for SafeTensors {
    type Item = (Arc<str>, Tensor);

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<(Arc<str>, Tensor)>> {
        let data = content(file.data, self.expansion, cx)?;
        let (header, tensors) = read_header(&data)?;
        // After the length and the header.
        let numbers = data.slice(8 + header..);
        Ok(Box::new(tensors.into_iter().map(move |(name, info)| {
            let name: Arc<str> = name.into();
            match tensor(&info, &numbers) {
                Ok(tensor) => FileEntry::Item(Some(name.clone()), (name, tensor)),
                Err(error) => FileEntry::Bad(Some(name), error),
            }
        })))
    }

    fn name(&self) -> String {
        "safetensors".to_owned()
    }

    fn weigh(&self, (name, tensor): &(Arc<str>, Tensor)) -> Option<usize> {
        Some(name.len() + tensor.byte_len() + size_of::<Tensor>())
    }
}

/// Parses the header: its length, and its tensors in the order of their numbers.
fn read_header(data: &[u8]) -> Result<(usize, Vec<(String, TensorInfo)>)> {
    let Some((stated, rest)) = data.split_first_chunk::<8>() else {
        let what = format!("{} bytes where a header is due", data.len());
        return Err(Error::truncated(what));
    };
    let stated = u64::from_le_bytes(*stated);
    if stated > MAX_HEADER {
        let what = format!("a header of {stated} bytes, and {MAX_HEADER} are allowed");
        return Err(Error::limit(what));
    }
    let len = stated as usize;
    let Some(header) = rest.get(..len) else {
        let what = format!("a header of {stated} bytes stated, {} there", rest.len());
        return Err(Error::truncated(what));
    };
    let refused = |what: String| Error::corrupt(format!("the header: {}", shortened(&what)));
    let Header(mut tensors) =
        serde_json::from_slice(header).map_err(|error| refused(error.to_string()))?;
    // Tensors without numbers stay in the order of the header.
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    // Checks that the tensors follow each other without holes, and that sizes match shapes.
    let metadata =
        Metadata::new(None, tensors.clone()).map_err(|error| refused(error.to_string()))?;
    let (due, there) = (metadata.data_len(), rest.len() - len);
    match due.cmp(&there) {
        Ordering::Greater => {
            let what = format!("{due} bytes of numbers stated, {there} there");
            Err(Error::truncated(what))
        }
        Ordering::Less => Err(Error::corrupt(format!(
            "{} bytes after the last tensor",
            there - due
        ))),
        Ordering::Equal => Ok((len, tensors)),
    }
}

/// The tensors of a header in its order; the type of the crate preserves neither the order nor
/// duplicate names.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut tensors, mut names) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("'{name}' is there twice")));
                    }
                    match &*name {
                        METADATA => drop(map.next_value::<HashMap<String, String>>()?),
                        _ => tensors.push((name, map.next_value()?)),
                    }
                }
                Ok(Header(tensors))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Returns a tensor of the numbers of a file.
fn tensor(info: &TensorInfo, numbers: &Bytes) -> Result<Tensor> {
    let Some((_, dtype)) = TYPES.into_iter().find(|(theirs, _)| *theirs == info.dtype) else {
        let what = format!("a tensor of {}, which is not read", info.dtype);
        return Err(Error::unsupported(what));
    };
    let (begin, end) = info.data_offsets;
    let own = native(numbers.slice(begin..end), dtype);
    Tensor::from_bytes(own, dtype, info.shape.clone())
}

/// Converts little-endian numbers to this machine's byte order, or back.
fn native(numbers: Bytes, dtype: DType) -> Bytes {
    if cfg!(target_endian = "little") {
        return numbers;
    }
    let mut swapped = numbers.to_vec();
    swapped
        .chunks_exact_mut(dtype.size())
        .for_each(<[u8]>::reverse);
    swapped.into()
}

/// Returns tensors with their names as a safetensors file. The format sorts tensors by their types,
/// largest first, and by their names. Copies each once.
///
/// # Errors
/// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if two tensors have the same name, or a tensor is called `__metadata__`;
/// [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if their names and shapes take more than 100 MB.
///
/// # Examples
/// See [`SafeTensors`].
pub fn write_safetensors<N: Into<String>>(
    tensors: impl IntoIterator<Item = (N, Tensor)>,
) -> Result<Vec<u8>> {
    let mut named = BTreeMap::new();
    for (name, tensor) in tensors {
        let name = name.into();
        if name == METADATA || named.contains_key(&name) {
            return Err(Error::shape(format!(
                "a second tensor '{name}', or one of a name that the format keeps for itself"
            )));
        }
        let (dtype, _) = TYPES
            .into_iter()
            .find(|(_, ours)| *ours == tensor.dtype())
            .ok_or_else(|| {
                Error::unsupported(format!(
                    "a tensor of {}, for which there is no type",
                    tensor.dtype()
                ))
            })?;
        named.insert(name, Numbers { tensor, dtype });
    }
    safetensors::serialize(named, None)
        .map_err(|error| Error::limit("names and shapes of the tensors").with_source(error))
}

struct Numbers {
    tensor: Tensor,
    dtype: Dtype,
}

impl View for Numbers {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }
    fn data(&self) -> Cow<'_, [u8]> {
        if cfg!(target_endian = "little") {
            return self.tensor.as_bytes().into();
        }
        native(
            Bytes::copy_from_slice(self.tensor.as_bytes()),
            self.tensor.dtype(),
        )
        .to_vec()
        .into()
    }
    fn data_len(&self) -> usize {
        self.tensor.byte_len()
    }
}

#[cfg(test)]
mod tests;
