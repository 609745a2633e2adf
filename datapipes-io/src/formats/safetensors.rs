//! Named tensors in a safetensors file, read and written.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Context, DType, Error, ErrorKind, Result, Tensor};
use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::compression::{Expansion, content};
use super::json_lines::shortened;
use super::{Entries, Entry, Format};
use crate::File;

/// As in the package of Python.
const MAX_HEADER: u64 = 100_000_000;
/// What the header calls what is no tensor.
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

/// The tensors of [safetensors](https://huggingface.co/docs/safetensors) files, each with its name, in the order in which
/// their numbers are in the file.
///
/// - A tensor whose numbers are aligned in memory is a slice of its file: nothing is copied, and it keeps the file in
///   memory. Writers align them within the file, so it is the beginning of the file that matters; see
///   [`Tensor::from_bytes`]. Others are copied once.
/// - Types are those of [`DType`]: unsigned and signed integers, `F16`, `BF16`, `F32`, `F64` and `BOOL`. The file's own
///   metadata (`__metadata__`) is not given.
/// - A compressed file is inflated whole, by its first bytes.
///
/// # Errors
/// A file that is shorter than its header says is `Truncated`. `Corrupt` is a header that is no JSON, and one whose tensors
/// overlap, leave holes, do not fill the file, or have shapes that do not fit their sizes; a header may have 100 MB. A tensor
/// of another type (`F8_E4M3`, `C64` and such) is `Unsupported` in its place, and the others follow.
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
pub struct SafeTensors {
    expansion: Expansion,
}

impl SafeTensors {
    /// With the default limits.
    pub fn new() -> Self {
        SafeTensors::default()
    }

    /// Refuses a compressed file that inflates to more than `bytes`, or to more than `ratio` times its own size once it is
    /// past 1 MiB. By default 8 GiB, and 1100 times.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        SafeTensors { expansion: Expansion { bytes, ratio, ..self.expansion } }
    }
}

impl Format for SafeTensors {
    type Item = (Arc<str>, Tensor);

    fn open(&self, file: File, cx: &Context) -> Result<Entries<(Arc<str>, Tensor)>> {
        let data = content(file.data, self.expansion, cx)?;
        let (header, tensors) = read_header(&data)?;
        // Behind the length and the header.
        let numbers = data.slice(8 + header..);
        Ok(Box::new(tensors.into_iter().map(move |(name, info)| {
            let name: Arc<str> = name.into();
            match tensor(&info, &numbers) {
                Ok(tensor) => Entry::Item(Some(name.clone()), (name, tensor)),
                Err(error) => Entry::Bad(Some(name), error),
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

/// How long the header is, and what it says of the tensors, in the order of their numbers.
fn read_header(data: &[u8]) -> Result<(usize, Vec<(String, TensorInfo)>)> {
    let Some((stated, rest)) = data.split_first_chunk::<8>() else {
        let what = format!("{} bytes where a header is due", data.len());
        return Err(Error::new(ErrorKind::Truncated, what));
    };
    let stated = u64::from_le_bytes(*stated);
    if stated > MAX_HEADER {
        let what = format!("a header of {stated} bytes, and {MAX_HEADER} are allowed");
        return Err(Error::new(ErrorKind::Limit, what));
    }
    let len = stated as usize;
    let Some(header) = rest.get(..len) else {
        let what = format!("a header of {stated} bytes stated, {} there", rest.len());
        return Err(Error::new(ErrorKind::Truncated, what));
    };
    let refused = |what: String| Error::new(ErrorKind::Corrupt, format!("the header: {}", shortened(&what)));
    let Header(mut tensors) = serde_json::from_slice(header).map_err(|error| refused(error.to_string()))?;
    // Those without numbers stay in the order of the header.
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    // Checks that they follow each other without holes, and that sizes fit shapes.
    let metadata = Metadata::new(None, tensors.clone()).map_err(|error| refused(error.to_string()))?;
    let (due, there) = (metadata.data_len(), rest.len() - len);
    match due.cmp(&there) {
        Ordering::Greater => {
            let what = format!("{due} bytes of numbers stated, {there} there");
            Err(Error::new(ErrorKind::Truncated, what))
        }
        Ordering::Less => {
            Err(Error::new(ErrorKind::Corrupt, format!("{} bytes behind the last tensor", there - due)))
        }
        Ordering::Equal => Ok((len, tensors)),
    }
}

/// The tensors of a header in its order; the crate's own type forgets that, and names that are there twice.
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

/// A tensor of the numbers of a file.
fn tensor(info: &TensorInfo, numbers: &Bytes) -> Result<Tensor> {
    let Some((_, dtype)) = TYPES.into_iter().find(|(theirs, _)| *theirs == info.dtype) else {
        let what = format!("a tensor of {}, which is not read", info.dtype);
        return Err(Error::new(ErrorKind::Unsupported, what));
    };
    let (begin, end) = info.data_offsets;
    let own = native(numbers.slice(begin..end), dtype);
    Tensor::from_bytes(own, dtype, info.shape.clone())
}

/// Little endian numbers as this machine has them, and the other way round.
fn native(numbers: Bytes, dtype: DType) -> Bytes {
    if cfg!(target_endian = "little") {
        return numbers;
    }
    let mut swapped = numbers.to_vec();
    swapped.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    swapped.into()
}

/// A safetensors file of tensors with their names. The format has them in the order of their types, largest first, and of
/// their names. Copies each once.
///
/// # Errors
/// [`ErrorKind::Shape`] if two tensors have one name, or one is called `__metadata__`; [`ErrorKind::Limit`] if their names and
/// shapes take more than 100 MB.
///
/// # Examples
/// See [`SafeTensors`].
pub fn write_safetensors<N: Into<String>>(tensors: impl IntoIterator<Item = (N, Tensor)>) -> Result<Vec<u8>> {
    let mut named = BTreeMap::new();
    for (name, tensor) in tensors {
        let name = name.into();
        if name == METADATA || named.contains_key(&name) {
            let what = format!("a second tensor '{name}', or one of a name that the format keeps for itself");
            return Err(Error::new(ErrorKind::Shape, what));
        }
        let (dtype, _) = TYPES.into_iter().find(|(_, ours)| *ours == tensor.dtype()).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("a tensor of {}, for which there is no type", tensor.dtype()),
            )
        })?;
        named.insert(name, Numbers { tensor, dtype });
    }
    safetensors::serialize(named, None)
        .map_err(|error| Error::new(ErrorKind::Limit, "names and shapes of the tensors").with_source(error))
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
        native(Bytes::copy_from_slice(self.tensor.as_bytes()), self.tensor.dtype()).to_vec().into()
    }
    fn data_len(&self) -> usize {
        self.tensor.byte_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_format, read_all};

    const REAL: &[u8] = include_bytes!("../../tests/data/types.safetensors");
    const EIGHT_BITS: &[u8] = include_bytes!("../../tests/data/float8.safetensors");

    fn tensors(data: &[u8]) -> Vec<(Arc<str>, Tensor)> {
        let read = read_all(SafeTensors::new(), data.to_vec());
        read.into_iter().map(Result::unwrap).collect()
    }

    fn with_header(header: &str, numbers: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), numbers].concat()
    }

    fn error(data: impl Into<Bytes>) -> Error {
        let mut read = read_all(SafeTensors::new(), data);
        assert_eq!(read.len(), 1);
        read.remove(0).unwrap_err()
    }

    #[test]
    fn a_file_of_python_is_read_and_written() {
        let read = tensors(REAL);
        let get = |name: &str| &read.iter().find(|(own, _)| &**own == name).unwrap().1;
        assert_eq!(read.len(), 15);
        assert_eq!(get("f64"), &Tensor::from_vec((0..6).map(f64::from).collect(), [2, 3]).unwrap());
        assert_eq!(get("i64").as_slice::<i64>().unwrap(), [-3, -2, -1, 0, 1, 2]);
        assert_eq!(get("u16").as_slice::<u16>().unwrap(), [0, 1, 2, 3, 4, 65535]);
        assert_eq!(get("bool").as_slice::<bool>().unwrap(), [true, false, true]);
        assert_eq!((get("f16").dtype(), get("bf16").dtype()), (DType::F16, DType::BF16));
        assert_eq!(get("bf16").as_bytes(), [0x80, 0x3f, 0x00, 0xc0]);
        assert_eq!((get("scalar ü").shape(), get("empty").shape()), (&[][..], &[0, 3][..]));
        // Aligned as they are in any file, they are slices.
        assert!(get("f64").is_shared());
        let named = read.into_iter().map(|(name, own)| (name.to_string(), own));
        assert_eq!(write_safetensors(named).unwrap(), REAL);
    }

    #[test]
    fn types_that_no_tensor_has_are_refused_by_name_and_others_follow() {
        let read = read_all(SafeTensors::new(), EIGHT_BITS);
        let said: Vec<String> = read
            .iter()
            .map(|item| match item {
                Ok((name, _)) => name.to_string(),
                Err(error) => error.to_string(),
            })
            .collect();
        let expected = "safetensors: 0:0/narrow: unsupported: a tensor of F8_E4M3, which is not read";
        assert_eq!(said, ["plain", expected]);
    }

    #[test]
    fn misaligned_numbers_are_copied_once() {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        for spaces in 0..8 {
            let data =
                with_header(&(header.to_owned() + &" ".repeat(spaces)), &[0, 0, 128, 63, 0, 0, 0, 192]);
            let read = tensors(&data);
            assert_eq!(read[0].1, Tensor::from_vec(vec![1.0f32, -2.0], [2]).unwrap());
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let one = |shape: &str, offsets: &str, numbers: usize| {
            let header = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
            error(with_header(&header, &vec![0; numbers])).kind()
        };
        assert_eq!(one("[2]", "[0,8]", 7), ErrorKind::Truncated);
        assert_eq!(one("[2]", "[0,8]", 9), ErrorKind::Corrupt);
        assert_eq!(one("[3]", "[0,8]", 8), ErrorKind::Corrupt);
        assert_eq!(one("[2]", "[1,9]", 9), ErrorKind::Corrupt);
        assert_eq!(one("[2]", "[8,0]", 8), ErrorKind::Corrupt);
        assert_eq!(one("[-2]", "[0,8]", 8), ErrorKind::Corrupt);
        assert_eq!(one("[4294967296,4294967296]", "[0,0]", 0), ErrorKind::Corrupt);
        let huge = format!("[0,{}]", 1u64 << 60);
        assert_eq!(one(&format!("[{}]", 1u64 << 58), &huge, 8), ErrorKind::Truncated);
        let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}"#;
        let said = error(with_header(twice, &[1])).to_string();
        assert!(said.contains("corrupt: the header: 'a' is there twice"), "{said}");
        assert_eq!(error(with_header("[1]", b"")).kind(), ErrorKind::Corrupt);
        assert_eq!(error(with_header("{\"a\":", b"")).kind(), ErrorKind::Corrupt);
        assert_eq!(error(&b"\xff\0\0\0\0\0\0\0{}"[..]).kind(), ErrorKind::Truncated);
        assert_eq!(error(u64::MAX.to_le_bytes().to_vec()).kind(), ErrorKind::Limit);
        assert_eq!(error("").kind(), ErrorKind::Truncated);
        let bool = r#"{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#;
        assert_eq!(error(with_header(bool, &[2])).kind(), ErrorKind::Corrupt);
        assert!(tensors(&with_header("{}", b"")).is_empty());
    }

    #[test]
    fn tensors_without_numbers_come_in_the_order_of_the_header() {
        let one = |name: &str| format!(r#""{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        let names = ["q", "a", "z", "b", "y", "c"];
        let header = format!("{{{}}}", names.map(one).join(","));
        for _ in 0..3 {
            let read = tensors(&with_header(&header, b""));
            assert_eq!(read.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), names);
        }
    }

    #[test]
    fn one_name_is_written_once() {
        let one = Tensor::scalar(1u8);
        for names in [["a", "a"], ["a", "__metadata__"]] {
            let refused = write_safetensors(names.map(|name| (name, one.clone()))).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Shape);
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        assert_eq!(check_format(SafeTensors::new, REAL), 15);
        for cut in 0..REAL.len() {
            assert_eq!(error(REAL[..cut].to_vec()).kind(), ErrorKind::Truncated, "cut at {cut}");
        }
    }
}
