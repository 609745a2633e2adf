//! A sample of MDS: values by the names of their columns.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result, Tensor, wire_enum, wire_struct};

use crate::codec::{decode_json, encode_json};
use crate::formats::missing::missing;

/// A value of a column.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MdsValue {
    /// `bytes`, `jpeg` and `png`: a slice of the sample, not decoded.
    Bytes(Bytes),
    /// `str`.
    Text(String),
    /// `int`, `int8` to `int64`, and `str_int`.
    Int(i64),
    /// `uint8` to `uint64`.
    UInt(u64),
    /// `float16` to `float64`, and `str_float`.
    Float(f64),
    /// `str_decimal`, as it is written.
    Decimal(String),
    /// `json`.
    Json(serde_json::Value),
    /// `ndarray`: a slice of the sample if it is aligned there, else a copy.
    Array(Tensor),
    /// `pil`.
    Image(MdsImage),
    /// `jpeg_array` and `list[…]`: pictures of one kind.
    List(Vec<MdsValue>),
}

/// The pixels of a picture, in Pillow's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdsImage {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Pillow's name for the type of a pixel: `L`, `RGB`, `RGBA`, …
    pub mode: String,
    /// The pixels, row by row: a slice of the sample. Their number matches size and mode.
    pub pixels: Bytes,
}

wire_struct! { MdsImage { width, height, mode, pixels } }

wire_enum!(MdsValue {
    0 Bytes(bytes),
    1 Text(text),
    2 Int(number),
    3 UInt(number),
    4 Float(number),
    5 Decimal(text),
    6 Json(json: encode_json, decode_json),
    7 Array(tensor),
    8 Image(image),
    9 List(values),
});

impl MdsValue {
    fn kind(&self) -> &'static str {
        match self {
            MdsValue::Bytes(_) => "bytes",
            MdsValue::Text(_) => "text",
            MdsValue::Int(_) => "an int",
            MdsValue::UInt(_) => "an unsigned int",
            MdsValue::Float(_) => "a float",
            MdsValue::Decimal(_) => "a decimal",
            MdsValue::Json(_) => "JSON",
            MdsValue::Array(_) => "an array",
            MdsValue::Image(_) => "a picture",
            MdsValue::List(_) => "a list",
        }
    }

    fn weight(&self) -> usize {
        let own = match self {
            MdsValue::Bytes(bytes) => bytes.len(),
            MdsValue::Text(text) | MdsValue::Decimal(text) => text.len(),
            MdsValue::Array(tensor) => tensor.byte_len(),
            MdsValue::Image(image) => image.pixels.len(),
            MdsValue::List(values) => values.iter().map(MdsValue::weight).sum(),
            MdsValue::Json(_) | MdsValue::Int(_) | MdsValue::UInt(_) | MdsValue::Float(_) => 0,
        };
        own + size_of::<MdsValue>()
    }
}

/// A sample: a value for each column, in the order of the shard.
#[derive(Clone)]
pub struct MdsSample {
    pub(super) names: Arc<[String]>,
    pub(super) values: Vec<MdsValue>,
}

wire_struct!(MdsSample { names, values } by MdsSample::new);

impl MdsSample {
    fn new(names: Arc<[String]>, values: Vec<MdsValue>) -> Result<Self, String> {
        match values.len() == names.len() {
            true => Ok(MdsSample { names, values }),
            false => Err(format!(
                "{} values of {} columns",
                values.len(),
                names.len()
            )),
        }
    }

    /// Returns the values with the names of their columns.
    pub fn values(&self) -> impl ExactSizeIterator<Item = (&str, &MdsValue)> {
        self.names.iter().map(String::as_str).zip(&self.values)
    }

    /// Returns true if the sample has the column.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }

    /// Returns the value of a column.
    ///
    /// # Errors
    /// `NotFound`, naming the existing columns.
    pub fn get(&self, name: &str) -> Result<&MdsValue> {
        let value = self.values().find(|(other, _)| *other == name);
        value.map(|(_, value)| value).ok_or_else(|| {
            let names = self.names.iter().map(String::as_str);
            missing("the sample", "column", name, names)
        })
    }

    fn of<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        value: impl Fn(&'a MdsValue) -> Option<T>,
    ) -> Result<T> {
        let found = self.get(name)?;
        value(found).ok_or_else(|| {
            let what = format!("column {name:?} holds {}, not {wanted}", found.kind());
            Error::corrupt(what)
        })
    }

    /// Returns the value of a column of bytes, or of an encoded picture.
    ///
    /// # Errors
    /// The error of [`get`](MdsSample::get); `Corrupt` if the column has another type.
    pub fn bytes(&self, name: &str) -> Result<&Bytes> {
        self.of(
            name,
            "bytes",
            |value| datapipes::matching!(value, MdsValue::Bytes(bytes) => bytes),
        )
    }

    /// Returns the value of a column of text.
    ///
    /// # Errors
    /// The errors of [`bytes`](MdsSample::bytes).
    pub fn text(&self, name: &str) -> Result<&str> {
        self.of(
            name,
            "text",
            |value| datapipes::matching!(value, MdsValue::Text(text) => &**text),
        )
    }

    /// Returns the value of a column of integers, signed or not.
    ///
    /// # Errors
    /// The errors of [`bytes`](MdsSample::bytes); `Corrupt` also for a value of 2⁶³ or more.
    pub fn int(&self, name: &str) -> Result<i64> {
        self.of(name, "an int of 64 bits with a sign", |value| match value {
            MdsValue::Int(number) => Some(*number),
            MdsValue::UInt(number) => (*number).try_into().ok(),
            _ => None,
        })
    }

    /// Returns the value of a column of floats.
    ///
    /// # Errors
    /// The errors of [`bytes`](MdsSample::bytes).
    pub fn float(&self, name: &str) -> Result<f64> {
        self.of(
            name,
            "a float",
            |value| datapipes::matching!(value, MdsValue::Float(number) => *number),
        )
    }

    /// Returns the value of a column of arrays.
    ///
    /// # Errors
    /// The errors of [`bytes`](MdsSample::bytes).
    pub fn array(&self, name: &str) -> Result<&Tensor> {
        self.of(
            name,
            "an array",
            |value| datapipes::matching!(value, MdsValue::Array(array) => array),
        )
    }

    /// Returns the value of a column of JSON.
    ///
    /// # Errors
    /// The errors of [`bytes`](MdsSample::bytes).
    pub fn json(&self, name: &str) -> Result<&serde_json::Value> {
        self.of(
            name,
            "JSON",
            |value| datapipes::matching!(value, MdsValue::Json(json) => json),
        )
    }

    pub(super) fn weight(&self) -> usize {
        size_of::<Self>() + self.values.iter().map(MdsValue::weight).sum::<usize>()
    }
}

impl fmt::Debug for MdsSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.values()).finish()
    }
}
