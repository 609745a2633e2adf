//! The index of Megatron's indexed data sets.
//!
//! The layout, little-endian:
//!
//! - `MMIDIDX\0\0`, version 1 (u64), and a code for the type of the tokens (u8);
//! - the number of sequences, and the length of the list of documents (u64);
//! - for each sequence, its number of tokens (i32); then for each its first byte (i64);
//! - the list of documents: the first sequence of each, and the number of sequences at its end
//!   (i64);
//! - optionally a mode of each sequence (i8).

use bytes::Bytes;
use datapipes::{Error, ErrorKind, Result};

use super::TokenWidth;
use super::documents::{Bounds, Table};

pub(super) const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
pub(super) const VERSION: u64 = 1;
/// Bytes before the lengths.
pub(super) const HEADER: usize = 34;

/// Codes of the numbers.
pub(super) const CODES: [(u8, TokenWidth); 4] = [
    (1, TokenWidth::U8),
    (4, TokenWidth::I32),
    (5, TokenWidth::I64),
    (8, TokenWidth::U16),
];

pub(super) fn parse(name: String, idx: Bytes) -> Result<(TokenWidth, Bounds)> {
    let error =
        |kind, byte: usize, what: String| Error::new(kind, format!("{name}: byte {byte}: {what}"));
    if idx.len() < HEADER {
        let what = format!("a header of {HEADER} bytes in a file of {}", idx.len());
        return Err(error(ErrorKind::Truncated, idx.len(), what));
    }
    if &idx[..9] != MAGIC {
        return Err(error(
            ErrorKind::Corrupt,
            0,
            "no index of Megatron's".to_owned(),
        ));
    }
    let number = |at: usize| u64::from_le_bytes(idx[at..at + 8].try_into().expect("eight bytes"));
    if number(9) != VERSION {
        let what = format!("version {}, not {VERSION}", number(9));
        return Err(error(ErrorKind::Unsupported, 9, what));
    }
    let code = idx[17];
    let Some(&(_, width)) = CODES.iter().find(|(known, _)| *known == code) else {
        let what = format!("numbers of code {code}, where tokens are 1, 4, 5 or 8");
        return Err(error(ErrorKind::Unsupported, 17, what));
    };
    let (sequences, documents) = (number(18), number(26));
    let needed = sequences
        .checked_mul(12)
        .and_then(|bytes| documents.checked_mul(8)?.checked_add(bytes))
        .and_then(|bytes| bytes.checked_add(HEADER as u64));
    if needed.is_none_or(|needed| needed > idx.len() as u64) {
        let what = format!(
            "{sequences} sequences and {documents} documents in a file of {} bytes",
            idx.len()
        );
        return Err(error(ErrorKind::Truncated, 18, what));
    }
    let modes = idx.len() as u64 - needed.expect("it was looked at");
    if modes != 0 && modes != sequences {
        let what = format!(
            "{modes} bytes more than the counts say, and {sequences} for modes of sequences are possible"
        );
        return Err(error(ErrorKind::Corrupt, idx.len() - modes as usize, what));
    }
    let table = |begin: u64, size: usize, len: u64| Table {
        name: name.clone(),
        bytes: idx.clone(),
        begin: begin as usize,
        size,
        len,
    };
    let bounds = Bounds::Sequences {
        lengths: table(HEADER as u64, 4, sequences),
        pointers: table(HEADER as u64 + 4 * sequences, 8, sequences),
        documents: table(HEADER as u64 + 12 * sequences, 8, documents),
    };
    Ok((width, bounds))
}
