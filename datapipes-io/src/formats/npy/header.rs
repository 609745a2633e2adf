//! The header of an `.npy` file: a Python literal, read by a parser for exactly this dictionary.

use datapipes::{Error, Result};

use super::dtype::NpyType;
use crate::file::readable;

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum number of axes in NumPy.
const MAX_AXES: usize = 64;
/// Alignment of the values in the file.
const ALIGN: usize = 64;
/// Space for the maximum length of an axis, so that the header can be rewritten in place as the
/// array grows.
const GROWTH: usize = 21;

/// Content of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: NpyType,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<usize>,
    /// Size of the values in bytes; checked for overflow.
    pub(super) values: usize,
}

impl Header {
    /// Parses the header, and returns the position of the values.
    pub(super) fn parse(file: &[u8]) -> Result<(Header, usize)> {
        let (text, at, utf8) = text(file)?;
        if utf8 && std::str::from_utf8(text).is_err() {
            return Err(Error::corrupt("the header is not UTF-8"));
        }
        let header = Literal {
            text,
            at: 0,
            base: at,
        }
        .dictionary()?;
        Ok((header, at + text.len()))
    }

    pub(super) fn new(dtype: NpyType, fortran_order: bool, shape: Vec<usize>) -> Result<Header> {
        // An axis of length zero must not hide an overflow of the others.
        let values = shape
            .iter()
            .try_fold(dtype.size(), |size, &axis| size.checked_mul(axis.max(1)))
            .filter(|&size| size <= isize::MAX as usize)
            .ok_or_else(|| {
                Error::corrupt(format!("field 'shape': {shape:?} of {dtype} is too large"))
            })?;
        let values = if shape.contains(&0) { 0 } else { values };
        Ok(Header {
            dtype,
            fortran_order,
            shape,
            values,
        })
    }

    /// Returns the header as NumPy writes it, padded so that values are aligned.
    pub(super) fn write(&self) -> Vec<u8> {
        let Header {
            dtype,
            fortran_order,
            shape,
            ..
        } = self;
        let axes: Vec<String> = shape.iter().map(usize::to_string).collect();
        let comma = if axes.len() == 1 { "," } else { "" };
        let order = if *fortran_order { "True" } else { "False" };
        let mut text = format!(
            "{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': ({}{comma}), }}",
            axes.join(", ")
        );
        let grows = if *fortran_order {
            axes.last()
        } else {
            axes.first()
        };
        if let Some(axis) = grows {
            text += &" ".repeat(GROWTH.saturating_sub(axis.len()));
        }
        let begin = MAGIC.len() + 4;
        // NumPy always adds some padding.
        text += &" ".repeat(ALIGN - (begin + text.len() + 1) % ALIGN);
        text += "\n";
        // With at most 64 axes the header is far shorter than 64 KiB.
        let len = (text.len() as u16).to_le_bytes();
        [MAGIC, &[1, 0], &len, text.as_bytes()].concat()
    }
}

/// Returns the text of the header, its position, and true if it is UTF-8.
fn text(file: &[u8]) -> Result<(&[u8], usize, bool)> {
    let Some(rest) = file.strip_prefix(MAGIC) else {
        return Err(match file {
            _ if MAGIC.starts_with(file) => {
                Error::truncated(format!("{} bytes, no header", file.len()))
            }
            [b'P', b'K', 3 | 5, ..] => {
                Error::unsupported("a zip archive, not an array; read it as NPZ")
            }
            [0x80, 2..=9, ..] => {
                Error::unsupported("a pickle is refused: reading one can run code")
            }
            _ => {
                let first = &file[..file.len().min(6)];
                Error::corrupt(format!(
                    "no npy file: it begins with \"{}\"",
                    first.escape_ascii()
                ))
            }
        });
    };
    let Some((version, rest)) = rest.split_first_chunk::<2>() else {
        return Err(Error::truncated(format!("{} bytes, no header", file.len())));
    };
    let len = match version {
        [1, 0] => rest
            .first_chunk()
            .map(|len| (usize::from(u16::from_le_bytes(*len)), 2)),
        [2 | 3, 0] => rest
            .first_chunk()
            .map(|len| (u32::from_le_bytes(*len) as usize, 4)),
        [major, minor] => return Err(Error::unsupported(format!("npy version {major}.{minor}"))),
    };
    let Some((len, taken)) = len else {
        return Err(Error::truncated(format!("{} bytes, no header", file.len())));
    };
    let text = &rest[taken..];
    let there = text.len();
    let text = text
        .get(..len)
        .ok_or_else(|| Error::truncated(format!("the header has {there} of {len} bytes")))?;
    Ok((text, MAGIC.len() + 2 + taken, version[0] == 3))
}

/// A parser at a position in the text.
struct Literal<'a> {
    text: &'a [u8],
    at: usize,
    /// Position of the text in the file.
    base: usize,
}

impl<'a> Literal<'a> {
    fn dictionary(mut self) -> Result<Header> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.skip(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let again = match key {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => order.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.tuple()?).is_some(),
                other => {
                    return Err(Error::corrupt(format!(
                        "the header has an unknown field {other:?}"
                    )));
                }
            };
            if again {
                return Err(Error::corrupt(format!(
                    "the header has field '{key}' twice"
                )));
            }
            if !self.skip(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        if self.peek().is_some() {
            return Err(self.unexpected("the end of the header"));
        }
        let missing = |field: &str| Error::corrupt(format!("the header has no field '{field}'"));
        let descr = descr.ok_or_else(|| missing("descr"))?;
        let order = order.ok_or_else(|| missing("fortran_order"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        Header::new(NpyType::parse(descr)?, order, shape)
    }

    /// Returns the next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn skip(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.skip(byte) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("'{}'", char::from(byte))))
        }
    }

    fn string(&mut self) -> Result<&'a str> {
        let Some(quote @ (b'\'' | b'"')) = self.peek() else {
            return Err(self.unexpected("a string"));
        };
        let begin = self.at + 1;
        let len = self.text[begin..]
            .iter()
            .position(|&byte| byte == quote || byte == b'\\' || byte == b'\n');
        match len {
            Some(len) if self.text[begin + len] == quote => {
                self.at = begin + len + 1;
                std::str::from_utf8(&self.text[begin..begin + len]).map_err(|_| {
                    Error::corrupt(format!(
                        "a string that is not UTF-8, at byte {}",
                        self.base + begin
                    ))
                })
            }
            _ => Err(self.unexpected("a string that ends")),
        }
    }

    fn descr(&mut self) -> Result<&'a str> {
        match self.peek() {
            Some(b'[' | b'(') => {
                let shown = &self.text[self.at..self.text.len().min(self.at + 60)];
                let why = "structures are not supported";
                Err(Error::unsupported(format!(
                    "descr {}: {why}",
                    readable(shown.trim_ascii_end())
                )))
            }
            _ => self.string().map_err(|error| error.within("field 'descr'")),
        }
    }

    fn boolean(&mut self) -> Result<bool> {
        match self.word() {
            b"True" => Ok(true),
            b"False" => Ok(false),
            word => Err(self.unexpected_word("fortran_order", "True or False", word)),
        }
    }

    fn tuple(&mut self) -> Result<Vec<usize>> {
        let mut axes = Vec::new();
        self.expect(b'(')
            .map_err(|error| error.within("field 'shape'"))?;
        while !self.skip(b')') {
            let word = self.word();
            // Python 2 wrote some integers with an `L`.
            let digits = word.strip_suffix(b"L").unwrap_or(word);
            let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            if !plain || digits.len() > 1 && digits[0] == b'0' {
                return Err(self.unexpected_word("shape", "a length", word));
            }
            let axis = std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse().ok());
            let Some(axis) = axis else {
                return Err(Error::corrupt(format!(
                    "field 'shape': an axis of {} digits",
                    digits.len()
                )));
            };
            if axes.len() == MAX_AXES {
                return Err(Error::corrupt(format!(
                    "field 'shape': more than {MAX_AXES} axes"
                )));
            }
            axes.push(axis);
            if !self.skip(b',') {
                self.expect(b')')
                    .map_err(|error| error.within("field 'shape'"))?;
                if axes.len() == 1 {
                    return Err(Error::corrupt(
                        "field 'shape': a number in brackets, not a tuple",
                    ));
                }
                break;
            }
        }
        Ok(axes)
    }

    /// Returns the text up to the next space or punctuation mark.
    fn word(&mut self) -> &'a [u8] {
        self.peek();
        let rest = &self.text[self.at..];
        let ends = |&byte: &u8| byte.is_ascii_whitespace() || b",:(){}[]'\"".contains(&byte);
        let word = &rest[..rest.iter().position(ends).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn unexpected_word(&self, field: &str, wanted: &str, word: &[u8]) -> Error {
        let shown = readable(&word[..word.len().min(40)]).into_owned();
        Error::corrupt(format!(
            "field '{field}': {shown:?} is not {wanted}; at byte {}",
            self.base + self.at - word.len()
        ))
    }

    fn unexpected(&mut self, wanted: &str) -> Error {
        self.peek();
        let rest = &self.text[self.at..];
        let at = self.base + self.at;
        Error::corrupt(match rest {
            [] => format!("the header ends at byte {at} where {wanted} should be"),
            rest => {
                let shown = readable(&rest[..rest.len().min(20)]).into_owned();
                format!("{shown:?} at byte {at}, where {wanted} should be")
            }
        })
    }
}

#[cfg(test)]
mod tests;
