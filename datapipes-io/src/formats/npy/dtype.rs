//! The types of numbers in `.npy` files.

use std::fmt;

use datapipes::{DType, Error, Result};

/// The type of an [`Array`](super::Array)'s values, and their byte order.
///
/// It is displayed as NumPy's `descr`: `<f4`, `>i2`, `|u1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NpyType {
    pub(super) kind: Kind,
    /// Size of one value in bytes.
    size: u8,
    big_endian: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Bool,
    Signed,
    Unsigned,
    Float,
    Complex,
}

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
        let (kind, size) = match rest {
            b"b1" => (Kind::Bool, 1),
            b"i1" => (Kind::Signed, 1),
            b"i2" => (Kind::Signed, 2),
            b"i4" => (Kind::Signed, 4),
            b"i8" => (Kind::Signed, 8),
            b"u1" => (Kind::Unsigned, 1),
            b"u2" => (Kind::Unsigned, 2),
            b"u4" => (Kind::Unsigned, 4),
            b"u8" => (Kind::Unsigned, 8),
            b"f2" => (Kind::Float, 2),
            b"f4" => (Kind::Float, 4),
            b"f8" => (Kind::Float, 8),
            b"c8" => (Kind::Complex, 8),
            b"c16" => (Kind::Complex, 16),
            [b'O', ..] => {
                return refused(
                    "objects are refused: their values are a pickle, which can run code when read",
                );
            }
            [b'M' | b'm', ..] => return refused("times are not supported"),
            [b'S' | b'U' | b'a', ..] => return refused("strings are not supported"),
            [b'V', ..] => return refused("raw bytes and structures are not supported"),
            [b'f' | b'c', ..] => {
                return refused("floats of this size differ from machine to machine");
            }
            _ => return refused("no known type"),
        };
        if size > 1 && !matches!(order, b'<' | b'>') {
            return refused("the order of its bytes is not stated");
        }
        Ok(NpyType {
            kind,
            size,
            big_endian: size > 1 && order == b'>',
        })
    }

    /// Returns the type of a tensor's elements in memory.
    pub(super) fn of(dtype: DType) -> Result<NpyType> {
        let kind = match dtype {
            DType::Bool => Kind::Bool,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Kind::Signed,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Kind::Unsigned,
            DType::F16 | DType::F32 | DType::F64 => Kind::Float,
            other => {
                let what = format!("NumPy has no type for {other}");
                return Err(Error::unsupported(what));
            }
        };
        let size = dtype.size() as u8;
        Ok(NpyType {
            kind,
            size,
            big_endian: size > 1 && cfg!(target_endian = "big"),
        })
    }

    /// Returns NumPy's name of the type, without the byte order: `float32`.
    pub fn name(&self) -> &'static str {
        match (self.kind, self.size) {
            (Kind::Bool, _) => "bool",
            (Kind::Signed, 1) => "int8",
            (Kind::Signed, 2) => "int16",
            (Kind::Signed, 4) => "int32",
            (Kind::Signed, _) => "int64",
            (Kind::Unsigned, 1) => "uint8",
            (Kind::Unsigned, 2) => "uint16",
            (Kind::Unsigned, 4) => "uint32",
            (Kind::Unsigned, _) => "uint64",
            (Kind::Float, 2) => "float16",
            (Kind::Float, 4) => "float32",
            (Kind::Float, _) => "float64",
            (Kind::Complex, 8) => "complex64",
            (Kind::Complex, _) => "complex128",
        }
    }

    /// Returns the size of one value in bytes.
    pub fn size(&self) -> usize {
        usize::from(self.size)
    }

    /// Returns true if the most significant byte comes first. False for types of one byte.
    pub fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// Returns the size of one number in bytes: half a value for complex ones.
    pub(super) fn unit(&self) -> usize {
        if self.kind == Kind::Complex {
            self.size() / 2
        } else {
            self.size()
        }
    }

    /// Returns the element type of the tensor that holds such values.
    pub(super) fn element(&self) -> DType {
        match (self.kind, self.unit()) {
            (Kind::Bool, _) => DType::Bool,
            (Kind::Signed, 1) => DType::I8,
            (Kind::Signed, 2) => DType::I16,
            (Kind::Signed, 4) => DType::I32,
            (Kind::Signed, _) => DType::I64,
            (Kind::Unsigned, 1) => DType::U8,
            (Kind::Unsigned, 2) => DType::U16,
            (Kind::Unsigned, 4) => DType::U32,
            (Kind::Unsigned, _) => DType::U64,
            (Kind::Float | Kind::Complex, 2) => DType::F16,
            (Kind::Float | Kind::Complex, 4) => DType::F32,
            (Kind::Float | Kind::Complex, _) => DType::F64,
        }
    }
}

impl fmt::Display for NpyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match (self.size, self.big_endian) {
            (1, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        let kind = match self.kind {
            Kind::Bool => 'b',
            Kind::Signed => 'i',
            Kind::Unsigned => 'u',
            Kind::Float => 'f',
            Kind::Complex => 'c',
        };
        write!(f, "{order}{kind}{}", self.size)
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
