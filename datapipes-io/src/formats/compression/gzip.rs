//! Decompresses gzip files.

use std::io::{self, Read};

use bytes::Bytes;
use datapipes::{Arity, Context, Error, ErrorKind, Hints, Items, Pipe, Result};
use flate2::bufread::GzDecoder;

use super::input::{Input, Turn};
use super::reader::{self, fault};
use super::{Codec, Expansion};
use crate::File;

/// Decompresses gzip files; see [`FileGraphExt::gunzip`](crate::FileGraphExt::gunzip).
/// [`Decompress`](crate::Decompress) handles every codec.
///
/// - The whole file is decompressed at once, with all its members if it has several (as pigz and
///   bgzip write), and the checksum and length of each are checked.
/// - A name ending in `.gz` loses that ending, and `.tgz` becomes `.tar`.
/// - Data after the last member are an error, zeros too. A file cut exactly between two of its
///   members cannot be told from a whole file.
#[derive(Clone, Debug)]
#[must_use]
pub struct Gunzip {
    expansion: Expansion,
}

impl Default for Gunzip {
    fn default() -> Self {
        Gunzip {
            expansion: Expansion::whole(),
        }
    }
}

impl Gunzip {
    /// Returns the pipe with the default limits of [`max_expansion`](Gunzip::max_expansion).
    pub fn new() -> Self {
        Gunzip::default()
    }

    /// Refuses a file that decompresses to more than `bytes`, all of which is in memory at once, or
    /// to more than `ratio` times its own size once it is past 1 MiB. Defaults to 1 GiB and 1100
    /// times, which is more than gzip can reach.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        Gunzip {
            expansion: Expansion {
                bytes,
                ratio,
                ..self.expansion
            },
        }
    }
}

impl Pipe<File> for Gunzip {
    type Out = File;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<File> {
        let (expansion, context) = (self.expansion, cx.clone());
        input.each(cx, move |item| {
            Some(item.try_map(|file| {
                if !is_gzip(&file.data) {
                    return Err(Error::new(ErrorKind::Corrupt, "this is not a gzip file"));
                }
                let name = match Codec::of_name(&file.name) {
                    Some((Codec::Gzip, name)) => name.into(),
                    _ => file.name,
                };
                Ok(File {
                    name,
                    data: inflate(&file.data, expansion, &context)?,
                })
            }))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One)
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

/// Maximum compression ratio of deflate.
const DEFLATE_RATIO: u64 = 1032;

pub(in crate::formats) fn is_gzip(data: &[u8]) -> bool {
    data.starts_with(&[0x1f, 0x8b])
}

/// Returns the content of a gzip file, all of it or an error.
fn inflate(data: &Bytes, expansion: Expansion, cx: &Context) -> Result<Bytes> {
    reader::whole(Codec::Gzip, data.clone(), expansion, cx)
}

/// A reader of all members of a file, which checks the checksum and length of each; data after the
/// last are an error.
pub(super) struct Members(Turn<GzDecoder<Input>>);

impl Members {
    pub(super) fn new(input: Input) -> Self {
        Members(Turn::Between(input))
    }
}

/// Returns true if a member begins here; false at the end.
fn begins(input: &mut Input) -> io::Result<bool> {
    let at = input.at();
    match input.peek(2)? {
        [] => Ok(false),
        head if is_gzip(head) => Ok(true),
        [0x1f] => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(fault(
            ErrorKind::Corrupt,
            format!("gzip, what is at byte {at} begins no member"),
        )),
    }
}

impl Read for Members {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0
            .read(out, begins, GzDecoder::new, GzDecoder::into_inner)
    }
}

/// Returns the length in the trailer of the last member, limited to possible values.
pub(super) fn likely_len(data: &[u8]) -> u64 {
    let trailer = data
        .last_chunk::<4>()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    u64::from(trailer).min(data.len() as u64 * DEFLATE_RATIO)
}
