//! IDX arrays, the format of MNIST.

use bytes::Bytes;
use datapipes::{Context, DType, Error, Result, Tensor};

use super::compression::{Expansion, content};
use super::{FileEntries, FileEntry, Format};
use crate::File;

/// Reads IDX arrays, the format of MNIST's files, gzipped or not: one tensor for each file, or one
/// for each [row](Idx::rows).
///
/// The layout (<http://yann.lecun.com/exdb/mnist/>) is two zeros, a byte for the type of the
/// numbers (`u8`, `i8`, `i16`, `i32`, `f32` or `f64`), one for the number of axes, the length of
/// each axis as a `u32`, and the numbers, row-major; all of it big endian.
///
/// Tensors of one-byte numbers are slices of the file, or of its decompressed content; others are
/// copied once, into the machine's byte order. The header alone causes no allocation: memory grows
/// with the bytes that exist.
///
/// # Errors
/// `Corrupt` if the file is no IDX file, or has bytes after its end; `Truncated` with the expected
/// and the actual number of bytes.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::{File, formats::Idx, prelude::*};
/// let file = File::new("x-idx2-ubyte", b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03abcdef".to_vec());
/// let files = Graph::from_vec(vec![file]);
/// assert_eq!(files.clone().read_as(Idx::new()).collect()?[0].shape(), [2, 3]);
/// assert_eq!(files.read_as(Idx::new().rows()).collect()?[1].as_slice::<u8>()?, b"def");
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Idx {
    expansion: Expansion,
    rows: bool,
}

impl Idx {
    /// Reads one tensor for each file.
    pub fn new() -> Self {
        Idx::default()
    }

    datapipes::setters! {
        /// Reads one tensor for each element of the first axis: each image of many.
        rows() => rows = true;

        /// Refuses a gzipped file that decompresses to more than `bytes`, or to more than `ratio` times
        /// its own size once it is past 1 MiB. Defaults to 8 GiB and 1100 times, which is more than
        /// gzip can reach.
        max_expansion(bytes: u64, ratio: u64) => expansion.limit(bytes, ratio);
    }

    /// Parses the array in a file, which may be gzipped.
    ///
    /// # Errors
    /// The errors of [`Idx`].
    pub fn parse(data: Bytes) -> Result<Tensor> {
        parse(content(data, Expansion::default(), &Context::default())?)
    }
}

impl Format for Idx {
    type Item = Tensor;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Tensor>> {
        let array = parse(content(file.data, self.expansion, cx)?)?;
        if !self.rows {
            return Ok(Box::new(std::iter::once(FileEntry::item(array))));
        }
        let rows = array.shape()[0];
        if array.is_empty() && rows > 0 {
            return Err(Error::corrupt(format!(
                "{rows} rows of shape {:?} have nothing in them",
                &array.shape()[1..]
            )));
        }
        Ok(Box::new(
            (0..rows).map(move |row| FileEntry::from_result(array.row(row))),
        ))
    }
    fn settings(&self) -> String {
        if self.rows {
            "rows".to_owned()
        } else {
            String::new()
        }
    }
}

fn parse(mut data: Bytes) -> Result<Tensor> {
    let there = data.len();
    let short =
        |want: u128| Error::truncated(format!("an IDX file of {there} bytes, {want} wanted"));
    let Some(&[zero, zero_too, code, axes]) = data.first_chunk::<4>() else {
        return Err(short(4));
    };
    if (zero, zero_too) != (0, 0) {
        return Err(Error::corrupt(format!(
            "no IDX file: it begins with {:02x?}, not with two zeros",
            &data[..2]
        )));
    }
    let dtype = match code {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0b => DType::I16,
        0x0c => DType::I32,
        0x0d => DType::F32,
        0x0e => DType::F64,
        _ => {
            return Err(Error::corrupt(format!(
                "byte 2: 0x{code:02x} is no type of IDX numbers"
            )));
        }
    };
    if axes == 0 {
        return Err(Error::corrupt("byte 3: an IDX array without axes"));
    }
    let header = 4 + 4 * usize::from(axes);
    if there < header {
        return Err(short(header as u128));
    }
    let lengths = data[4..header]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&length| u32::from_be_bytes(length));
    let shape: Vec<usize> = lengths.map(|length| length as usize).collect();
    let count = match shape.contains(&0) {
        true => 0,
        false => shape.iter().fold(1, |count: u128, &length| {
            count.saturating_mul(length as u128)
        }),
    };
    let want = count
        .saturating_mul(dtype.size() as u128)
        .saturating_add(header as u128);
    if (there as u128) < want {
        return Err(short(want));
    }
    if there as u128 > want {
        return Err(Error::corrupt(format!(
            "{} bytes after an IDX array of shape {shape:?}, at byte {want}",
            there as u128 - want
        )));
    }
    let numbers = data.split_off(header);
    match dtype {
        DType::I16 => Tensor::from_vec(swapped(&numbers, i16::from_be_bytes), shape),
        DType::I32 => Tensor::from_vec(swapped(&numbers, i32::from_be_bytes), shape),
        DType::F32 => Tensor::from_vec(swapped(&numbers, f32::from_be_bytes), shape),
        DType::F64 => Tensor::from_vec(swapped(&numbers, f64::from_be_bytes), shape),
        _ => Tensor::from_bytes(numbers, dtype, shape),
    }
}

fn swapped<const N: usize, T>(numbers: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    numbers
        .as_chunks::<N>()
        .0
        .iter()
        .map(|&number| from(number))
        .collect()
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::testing::{check_format, gzip, read_all};
    use datapipes::ErrorKind;

    fn idx(code: u8, shape: &[u32], numbers: &[u8]) -> Vec<u8> {
        let mut data = vec![0, 0, code, shape.len() as u8];
        shape
            .iter()
            .for_each(|length| data.extend(length.to_be_bytes()));
        data.extend(numbers);
        data
    }

    #[test]
    fn numbers_of_all_types_are_read() {
        let i16s = idx(0x0b, &[2], &[0x01, 0x02, 0xff, 0xfe]);
        assert_eq!(
            Idx::parse(i16s.into()).unwrap().as_slice::<i16>().unwrap(),
            [0x0102, -2]
        );
        let i32s = idx(0x0c, &[1, 1], &[0xff, 0xff, 0xff, 0xfd]);
        assert_eq!(
            Idx::parse(i32s.into()).unwrap().as_slice::<i32>().unwrap(),
            [-3]
        );
        let f32s = idx(
            0x0d,
            &[2],
            &[1.5f32.to_be_bytes(), (-2f32).to_be_bytes()].concat(),
        );
        assert_eq!(
            Idx::parse(f32s.into()).unwrap().as_slice::<f32>().unwrap(),
            [1.5, -2.0]
        );
        let f64s = idx(0x0e, &[1], &0.1f64.to_be_bytes());
        assert_eq!(
            Idx::parse(f64s.into()).unwrap().as_slice::<f64>().unwrap(),
            [0.1]
        );
        let i8s = idx(0x09, &[2], &[0x7f, 0x80]);
        assert_eq!(
            Idx::parse(i8s.into()).unwrap().as_slice::<i8>().unwrap(),
            [127, -128]
        );
        let none = Idx::parse(idx(0x08, &[3, 0], b"").into()).unwrap();
        assert_eq!((none.shape(), none.len()), (&[3, 0][..], 0));
    }

    #[test]
    fn bytes_are_slices_of_the_file_and_gzip_is_inflated() {
        let file = Bytes::from(idx(0x08, &[2, 2, 2], b"abcdefgh"));
        let array = Idx::parse(file.clone()).unwrap();
        assert_eq!(array.as_bytes().as_ptr(), file[16..].as_ptr());
        assert_eq!(
            Idx::parse(gzip(&file).into()).unwrap().as_bytes(),
            b"abcdefgh"
        );
        let rows = read_all(Idx::new().rows(), file.clone());
        let row = rows[1].as_ref().unwrap();
        assert_eq!(
            (rows.len(), row.shape(), row.as_bytes()),
            (2, &[2, 2][..], &b"efgh"[..])
        );
        assert_eq!(row.as_bytes().as_ptr(), file[20..].as_ptr());
        let bomb = gzip(&vec![0; 5 << 20]);
        let read = read_all(Idx::new().max_expansion(1 << 20, 1100), bomb);
        assert_eq!(read[0].as_ref().unwrap_err().kind(), ErrorKind::Limit);
    }

    #[test]
    fn what_does_not_fit_is_told_with_numbers() {
        let kind_and_text = |data: Vec<u8>| {
            let error = Idx::parse(data.into()).unwrap_err();
            (error.kind(), error.to_string())
        };
        let huge = idx(0x0e, &[u32::MAX; 255], b"");
        for (data, kind, what) in [
            (vec![], ErrorKind::Truncated, "of 0 bytes, 4 wanted"),
            (
                idx(0x08, &[2], b"")[..7].to_vec(),
                ErrorKind::Truncated,
                "of 7 bytes, 8 wanted",
            ),
            (
                idx(0x08, &[2, 3], b"abcde"),
                ErrorKind::Truncated,
                "of 17 bytes, 18 wanted",
            ),
            (
                idx(0x08, &[2, 3], b"abcdefg"),
                ErrorKind::Corrupt,
                "1 bytes after",
            ),
            (
                idx(0x0c, &[0xffff_ffff], b"abcd"),
                ErrorKind::Truncated,
                "of 12 bytes, 17179869188 wanted",
            ),
            (huge, ErrorKind::Truncated, "of 1024 bytes"),
            (idx(0x0a, &[1], b"a"), ErrorKind::Corrupt, "byte 2: 0x0a"),
            (idx(0x08, &[], b"a"), ErrorKind::Corrupt, "without axes"),
            (
                b"\x89PNG".to_vec(),
                ErrorKind::Corrupt,
                "no IDX file: it begins with [89, 50]",
            ),
        ] {
            let (got, text) = kind_and_text(data);
            assert!(got == kind && text.contains(what), "{text}, not {what}");
        }
        // An array of 2³² empty rows must not yield that many rows.
        let rows = read_all(Idx::new().rows(), idx(0x08, &[u32::MAX, 0], b""));
        assert!(rows.len() == 1 && rows[0].is_err());
    }

    #[test]
    fn row_105_damage_and_cuts_are_errors() {
        let whole = idx(0x08, &[3, 4], b"abcdefghijkl");
        for cut in 0..whole.len() {
            assert_eq!(
                Idx::parse(whole[..cut].to_vec().into()).unwrap_err().kind(),
                ErrorKind::Truncated
            );
        }
        assert_eq!(check_format(Idx::new, &whole), 1);
        assert_eq!(check_format(|| Idx::new().rows(), &whole), 3);
        assert_eq!(check_format(Idx::new, &idx(0x0d, &[2, 2], &[7; 16])), 1);
        assert_eq!(check_format(Idx::new, &gzip(&whole)), 1);
    }
}
