//! The types of numbers in `.npy` files.

use std::fmt;

use datapipes::{DType, Error, Result};

/// The type of an [`Array`](super::Array)'s values, and their byte order.
///
/// It is displayed as NumPy's `descr`: `<f4`, `>i2`, `|u1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NpyType {
    known: &'static Known,
    big_endian: bool,
}

/// A type of numbers: its code, NumPy's name of it, and the numbers that a value has, two of them if
/// it is complex.
type Known = (&'static str, &'static str, DType, usize);

static TYPES: [Known; 14] = [
    ("b1", "bool", DType::Bool, 1),
    ("i1", "int8", DType::I8, 1),
    ("i2", "int16", DType::I16, 1),
    ("i4", "int32", DType::I32, 1),
    ("i8", "int64", DType::I64, 1),
    ("u1", "uint8", DType::U8, 1),
    ("u2", "uint16", DType::U16, 1),
    ("u4", "uint32", DType::U32, 1),
    ("u8", "uint64", DType::U64, 1),
    ("f2", "float16", DType::F16, 1),
    ("f4", "float32", DType::F32, 1),
    ("f8", "float64", DType::F64, 1),
    ("c8", "complex64", DType::F32, 2),
    ("c16", "complex128", DType::F64, 2),
];

impl NpyType {
    /// Parses a `descr` in text form.
    ///
    /// # Errors
    /// `Unsupported` if the type is not a number, with the reason.
    pub(super) fn parse(descr: &str) -> Result<NpyType> {
        let refused = |why: &str| Err(Error::unsupported(format!("descr '{descr}': {why}")));
        let (order, rest) = match descr.as_bytes() {
            [order @ (b'<' | b'>' | b'|' | b'='), rest @ ..] => (*order, rest),
            rest => (b'=', rest),
        };
        let Some(known) = TYPES.iter().find(|known| known.0.as_bytes() == rest) else {
            return refused(match rest {
                [b'O', ..] => {
                    "objects are refused: their values are a pickle, which can run code when read"
                }
                [b'M' | b'm', ..] => "times are not supported",
                [b'S' | b'U' | b'a', ..] => "strings are not supported",
                [b'V', ..] => "raw bytes and structures are not supported",
                [b'f' | b'c', ..] => "floats of this size differ from machine to machine",
                _ => "no known type",
            });
        };
        let mut dtype = NpyType {
            known,
            big_endian: false,
        };
        if dtype.size() > 1 {
            dtype.big_endian = order == b'>';
            if !matches!(order, b'<' | b'>') {
                return refused("the order of its bytes is not stated");
            }
        }
        Ok(dtype)
    }

    /// Returns the type of a tensor's elements in memory.
    pub(super) fn of(dtype: DType) -> Result<NpyType> {
        let Some(known) = TYPES.iter().find(|known| known.2 == dtype) else {
            return Err(Error::unsupported(format!("NumPy has no type for {dtype}")));
        };
        Ok(NpyType {
            known,
            big_endian: dtype.size() > 1 && cfg!(target_endian = "big"),
        })
    }

    /// Returns NumPy's name of the type, without the byte order: `float32`.
    pub fn name(&self) -> &'static str {
        self.known.1
    }

    /// Returns the size of one value in bytes.
    pub fn size(&self) -> usize {
        self.unit() * self.known.3
    }

    /// Returns true if the most significant byte comes first. False for types of one byte.
    pub fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// Returns the size of one number in bytes: half a value for complex ones.
    pub(super) fn unit(&self) -> usize {
        self.element().size()
    }

    /// Returns the element type of the tensor that holds such values.
    pub(super) fn element(&self) -> DType {
        self.known.2
    }
}

impl fmt::Display for NpyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match (self.size(), self.big_endian) {
            (1, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        write!(f, "{order}{}", self.known.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn numbers_are_read_and_print_as_they_were() {
        for descr in [
            "|b1", "|i1", "|u1", "<i2", ">i4", "<i8", ">u2", "<u4", ">u8", "<f2", ">f4", "<f8",
        ] {
            let dtype = NpyType::parse(descr).unwrap();
            assert_eq!(dtype.to_string(), descr);
            assert_eq!(
                (dtype.size(), dtype.unit()),
                (dtype.element().size(), dtype.size())
            );
        }
        for (descr, name) in [("<c8", "complex64"), (">c16", "complex128")] {
            let dtype = NpyType::parse(descr).unwrap();
            assert_eq!((&*dtype.to_string(), dtype.name()), (descr, name));
            assert_eq!(dtype.unit() * 2, dtype.size());
        }
        // A single byte has no order.
        assert_eq!(
            NpyType::parse(">u1").unwrap(),
            NpyType::parse("u1").unwrap()
        );
    }

    #[test]
    fn row_99_what_is_no_number_is_unsupported_by_name() {
        for (descr, why) in [
            ("|O", "a pickle, which can run code"),
            ("O8", "a pickle"),
            ("<M8[ns]", "times"),
            ("<m8", "times"),
            ("|S5", "strings"),
            ("<U12", "strings"),
            ("|V8", "structures"),
            ("<f16", "differ from machine"),
            ("<c32", "differ from machine"),
            ("f4", "order of its bytes"),
            ("=f4", "order of its bytes"),
            ("|i8", "order of its bytes"),
            ("<f3", "differ"),
            ("<i16", "no known type"),
            ("", "no known type"),
        ] {
            let error = NpyType::parse(descr).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{descr}");
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(
            NpyType::of(DType::BF16).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
    }
}
