//! The supported encodings of columns, and their decoders.

use bytes::{Buf, Bytes};
use datapipes::{DType, Error, Result, Tensor};
use half::f16;

use super::{MdsImage, MdsValue};

/// Encoding of the values of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Bytes,
    Str,
    Int {
        bytes: u8,
    },
    UInt {
        bytes: u8,
    },
    Float {
        bytes: u8,
    },
    StrInt,
    StrFloat,
    StrDecimal,
    Json,
    Pil,
    Array {
        dtype: Option<DType>,
        shape: Option<Vec<usize>>,
    },
    JpegArray,
    List(Box<Encoding>),
}

/// NumPy's names of the types of arrays, and the byte for each type.
const DTYPES: [(&str, u8, DType); 11] = [
    ("uint8", 8, DType::U8),
    ("int8", 9, DType::I8),
    ("uint16", 16, DType::U16),
    ("int16", 17, DType::I16),
    ("float16", 18, DType::F16),
    ("uint32", 32, DType::U32),
    ("int32", 33, DType::I32),
    ("float32", 34, DType::F32),
    ("uint64", 64, DType::U64),
    ("int64", 65, DType::I64),
    ("float64", 66, DType::F64),
];

impl Encoding {
    /// Parses the name in an index.
    pub(super) fn parse(name: &str) -> Result<Encoding> {
        let unsupported = |why: &str| Err(Error::unsupported(format!("encoding {name:?} {why}")));
        let (base, settings) = name
            .split_once(':')
            .map_or((name, None), |(base, rest)| (base, Some(rest)));
        if base == "pkl" {
            return unsupported("is refused: to unpickle data runs what code is in it");
        }
        if base == "ndarray" {
            return match array(settings) {
                Some(encoding) => Ok(encoding),
                None => unsupported("names no type and shape of an array"),
            };
        }
        Ok(match name {
            "bytes" | "jpeg" | "png" => Encoding::Bytes,
            "str" => Encoding::Str,
            "int8" => Encoding::Int { bytes: 1 },
            "int16" => Encoding::Int { bytes: 2 },
            "int32" => Encoding::Int { bytes: 4 },
            "int" | "int64" => Encoding::Int { bytes: 8 },
            "uint8" => Encoding::UInt { bytes: 1 },
            "uint16" => Encoding::UInt { bytes: 2 },
            "uint32" => Encoding::UInt { bytes: 4 },
            "uint64" => Encoding::UInt { bytes: 8 },
            "float16" => Encoding::Float { bytes: 2 },
            "float32" => Encoding::Float { bytes: 4 },
            "float64" => Encoding::Float { bytes: 8 },
            "str_int" => Encoding::StrInt,
            "str_float" => Encoding::StrFloat,
            "str_decimal" => Encoding::StrDecimal,
            "json" => Encoding::Json,
            "pil" => Encoding::Pil,
            "jpeg_array" | "jpegarray" => Encoding::JpegArray,
            "list[pil]" => Encoding::List(Box::new(Encoding::Pil)),
            "list[jpeg]" | "list[png]" => Encoding::List(Box::new(Encoding::Bytes)),
            _ => return unsupported("is not known"),
        })
    }

    /// Returns the size of every value, if it is fixed.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Encoding::Int { bytes } | Encoding::UInt { bytes } | Encoding::Float { bytes } => {
                Some((*bytes).into())
            }
            Encoding::Array {
                dtype: Some(dtype),
                shape: Some(shape),
            } => {
                let dims = shape.iter().map(|&dim| dim as u64);
                Some(dims.fold(dtype.size() as u64, u64::saturating_mul))
            }
            _ => None,
        }
    }

    /// Decodes a value from its bytes.
    pub(super) fn decode(&self, data: Bytes) -> Result<MdsValue> {
        Ok(match self {
            Encoding::Bytes => MdsValue::Bytes(data),
            Encoding::Str => MdsValue::Text(text(&data)?.to_owned()),
            Encoding::Int { bytes } => {
                let word = word(&data, *bytes)?;
                let unused = 64 - 8 * u32::from(*bytes);
                // Shifted up and down again to extend the sign.
                MdsValue::Int(((word << unused) as i64) >> unused)
            }
            Encoding::UInt { bytes } => MdsValue::UInt(word(&data, *bytes)?),
            Encoding::Float { bytes } => MdsValue::Float(match (bytes, word(&data, *bytes)?) {
                (2, word) => f16::from_bits(word as u16).into(),
                (4, word) => f32::from_bits(word as u32).into(),
                (_, word) => f64::from_bits(word),
            }),
            Encoding::StrInt => {
                let text = text(&data)?;
                match text.parse() {
                    Ok(number) => MdsValue::Int(number),
                    Err(error)
                        if matches!(
                            error.kind(),
                            std::num::IntErrorKind::PosOverflow
                                | std::num::IntErrorKind::NegOverflow
                        ) =>
                    {
                        return Err(Error::unsupported(format!(
                            "a number of {} digits does not fit into 64 bits",
                            text.len()
                        )));
                    }
                    Err(error) => {
                        return Err(Error::corrupt("a whole number is due").with_source(error));
                    }
                }
            }
            Encoding::StrFloat => match text(&data)?.parse() {
                Ok(number) => MdsValue::Float(number),
                Err(error) => return Err(Error::corrupt("a number is due").with_source(error)),
            },
            Encoding::StrDecimal => {
                let text = text(&data)?;
                text.parse::<f64>()
                    .map_err(|error| Error::corrupt("a number is due").with_source(error))?;
                MdsValue::Decimal(text.to_owned())
            }
            Encoding::Json => match serde_json::from_slice(&data) {
                Ok(value) => MdsValue::Json(value),
                Err(error) => return Err(Error::corrupt("JSON is due").with_source(error)),
            },
            Encoding::Pil => MdsValue::Image(image(data)?),
            Encoding::Array { dtype, shape } => {
                MdsValue::Array(tensor(data, *dtype, shape.as_deref())?)
            }
            Encoding::JpegArray => MdsValue::List(list(data, &Encoding::Bytes)?),
            Encoding::List(inner) => {
                let mut data = data;
                // Reserved bytes.
                take(&mut data, 4)?;
                MdsValue::List(list(data, inner)?)
            }
        })
    }
}

/// Parses `type:2,3`, without the shape, or without both.
fn array(settings: Option<&str>) -> Option<Encoding> {
    let Some(settings) = settings.filter(|settings| !settings.is_empty()) else {
        return Some(Encoding::Array {
            dtype: None,
            shape: None,
        });
    };
    let (dtype, shape) = settings
        .split_once(':')
        .map_or((settings, None), |(dtype, shape)| (dtype, Some(shape)));
    let &(.., dtype) = DTYPES.iter().find(|(name, ..)| *name == dtype)?;
    let dim = |dim: &str| dim.trim().parse().ok().filter(|&dim| dim > 0);
    let shape = match shape {
        None => None,
        Some(shape) => Some(shape.split(',').map(dim).collect::<Option<Vec<usize>>>()?),
    };
    Some(Encoding::Array {
        dtype: Some(dtype),
        shape,
    })
}

fn text(data: &[u8]) -> Result<&str> {
    std::str::from_utf8(data).map_err(|error| Error::corrupt("text is due").with_source(error))
}

/// Reads a little-endian number of this size.
fn word(data: &[u8], bytes: u8) -> Result<u64> {
    let mut word = [0; 8];
    match word.get_mut(..data.len()) {
        Some(place) if data.len() == usize::from(bytes) => place.copy_from_slice(data),
        _ => {
            return Err(Error::corrupt(format!(
                "{} bytes for a number of {bytes}",
                data.len()
            )));
        }
    }
    Ok(u64::from_le_bytes(word))
}

fn take(data: &mut Bytes, bytes: u64) -> Result<Bytes> {
    let there = data.len();
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= there => Ok(data.split_to(bytes)),
        _ => Err(Error::corrupt(format!(
            "{bytes} bytes stated, {there} there"
        ))),
    }
}

fn take_u32(data: &mut Bytes) -> Result<u32> {
    Ok(take(data, 4)?.get_u32_le())
}

/// Decodes `u32` n | `u32` size of each | elements.
fn list(mut data: Bytes, inner: &Encoding) -> Result<Vec<MdsValue>> {
    let count = take_u32(&mut data)?;
    let sizes = take(&mut data, u64::from(count) * 4)?;
    let sizes = sizes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|size| u32::from_le_bytes(*size));
    let element = |(at, size): (usize, u32)| {
        take(&mut data, size.into())
            .and_then(|element| inner.decode(element))
            .map_err(|error| error.within(format!("element {at}")))
    };
    let elements = sizes.enumerate().map(element).collect::<Result<_>>()?;
    match data.len() {
        0 => Ok(elements),
        more => Err(Error::corrupt(format!(
            "{more} bytes after the last of {count} elements"
        ))),
    }
}

/// Decodes `u32` width | `u32` height | `u32` length of the mode | mode | pixels.
fn image(mut data: Bytes) -> Result<MdsImage> {
    let (width, height) = (take_u32(&mut data)?, take_u32(&mut data)?);
    let mode = take_u32(&mut data)?;
    let mode = take(&mut data, mode.into())?;
    let mode = text(&mode)?.to_owned();
    let (w, h) = (u64::from(width), u64::from(height));
    let row = match &*mode {
        "1" => w.div_ceil(8),
        "L" | "P" => w,
        "LA" | "La" | "PA" | "I;16" | "I;16B" | "I;16L" => 2 * w,
        "RGB" | "YCbCr" | "LAB" | "HSV" => 3 * w,
        "RGBA" | "RGBa" | "RGBX" | "CMYK" | "I" | "F" => 4 * w,
        _ => {
            return Err(Error::unsupported(format!("a picture of mode {mode:?}")));
        }
    };
    if u128::from(row) * u128::from(h) != data.len() as u128 {
        return Err(Error::corrupt(format!(
            "{} bytes for a picture of {w} x {h} pixels of mode {mode:?}",
            data.len()
        )));
    }
    Ok(MdsImage {
        width,
        height,
        mode,
        pixels: data,
    })
}

/// Decodes the type and the shape, as far as the encoding does not contain them, and the values.
fn tensor(mut data: Bytes, dtype: Option<DType>, shape: Option<&[usize]>) -> Result<Tensor> {
    let dtype = match dtype {
        Some(dtype) => dtype,
        None => {
            let byte = take(&mut data, 1)?[0];
            let known = DTYPES.iter().find(|(_, other, _)| *other == byte);
            known
                .ok_or_else(|| Error::corrupt(format!("byte {byte} stands for no type of array")))?
                .2
        }
    };
    let shape = match shape {
        Some(shape) => shape.to_vec(),
        None => {
            let byte = take(&mut data, 1)?[0];
            let (dims, width) = (byte >> 2, 1u8 << (byte & 3));
            let dims = take(&mut data, u64::from(dims) * u64::from(width))?;
            let dim = |dim: &[u8]| {
                let dim = word(dim, width)?;
                usize::try_from(dim).map_err(|_| Error::corrupt(format!("a side of {dim}")))
            };
            dims.chunks_exact(width.into())
                .map(dim)
                .collect::<Result<_>>()?
        }
    };
    let data = if cfg!(target_endian = "big") {
        swapped(&data, dtype.size())
    } else {
        data
    };
    Tensor::from_bytes(data, dtype, shape)
        .map_err(|error| Error::corrupt("an array").with_source(error))
}

fn swapped(data: &[u8], size: usize) -> Bytes {
    data.chunks(size)
        .flat_map(|number| number.iter().rev().copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves() {
        let cases = [
            (0x3c00u16, 1.0),
            (0xc000, -2.0),
            (0x0001, 2f64.powi(-24)),
            (0x7bff, 65504.0),
            (0x7c00, f64::INFINITY),
        ];
        for (half, value) in cases {
            let data = Bytes::copy_from_slice(&half.to_le_bytes());
            let read = Encoding::Float { bytes: 2 }.decode(data).unwrap();
            assert!(matches!(read, MdsValue::Float(read) if read == value));
        }
    }
}
