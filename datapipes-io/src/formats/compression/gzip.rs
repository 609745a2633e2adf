//! Inflates gzip files.

use std::io::{ErrorKind as Io, Read};

use bytes::Bytes;
use datapipes::{Arity, Context, Error, ErrorKind, Facts, Items, Pipe, Result};
use flate2::bufread::MultiGzDecoder;

use super::Expansion;
use crate::File;

/// Inflates gzip files; see [`FileGraph::gunzip`](crate::FileGraph::gunzip).
///
/// - The whole file is inflated at once, all its members if it has several (as pigz and bgzip write), and the
///   checksum and length of each are checked.
/// - A name ending in `.gz` loses that ending, and `.tgz` becomes `.tar`.
/// - What follows the last member is an error, zeros too. A file cut exactly between two of its members cannot be
///   told from a whole one.
#[derive(Clone, Debug, Default)]
pub struct Gunzip {
    expansion: Expansion,
}

impl Gunzip {
    /// With the default limits of [`max_expansion`](Gunzip::max_expansion).
    pub fn new() -> Self {
        Gunzip::default()
    }

    /// Refuses a file that inflates to more than `bytes`, or to more than `ratio` times its own size once it is past
    /// 1 MiB. By default 8 GiB, and 1100 times, which is more than gzip can reach.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        Gunzip { expansion: Expansion { bytes, ratio } }
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
                let name = match file.name.strip_suffix(".gz") {
                    Some(name) => name.into(),
                    None => file
                        .name
                        .strip_suffix(".tgz")
                        .map_or(file.name.clone(), |name| format!("{name}.tar").into()),
                };
                Ok(File { name, data: inflate(&file.data, expansion, &context)? })
            }))
        })
    }
    fn is_shardable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::One
    }
    fn facts(&self) -> Facts {
        Facts::any_order()
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

/// Deflate cannot do better.
const DEFLATE_RATIO: u64 = 1032;
/// After so many bytes, a dropped epoch is noticed.
const STEP: u64 = 4 << 20;

pub(in crate::formats) fn is_gzip(data: &[u8]) -> bool {
    data.starts_with(&[0x1f, 0x8b])
}

/// The content of a gzip file, all of it or an error.
pub(in crate::formats) fn inflate(data: &Bytes, expansion: Expansion, cx: &Context) -> Result<Bytes> {
    let own = data.len() as u64;
    let most = expansion.most(own);
    let mut decoder = MultiGzDecoder::new(&data[..]);
    let mut out = Vec::new();
    out.try_reserve_exact(likely_len(data).min(most) as usize).map_err(|_| too_large(out.len()))?;
    loop {
        if cx.is_cancelled() {
            return Err(Error::new(ErrorKind::Io, "the epoch was dropped"));
        }
        match decoder.by_ref().take(STEP).read_to_end(&mut out) {
            Ok(0) => break,
            Ok(_) if out.len() as u64 > most => {
                let message = format!(
                    "{own} bytes inflate to more than {most}; the limits are {} bytes and {} times the size",
                    expansion.bytes, expansion.ratio
                );
                return Err(Error::new(ErrorKind::Limit, message));
            }
            Ok(_) => {}
            Err(error) => {
                let kind = match error.kind() {
                    Io::UnexpectedEof => ErrorKind::Truncated,
                    Io::OutOfMemory => return Err(too_large(out.len())),
                    _ => ErrorKind::Corrupt,
                };
                return Err(Error::new(kind, format!("gzip, after {} bytes of content", out.len()))
                    .with_source(error));
            }
        }
    }
    Ok(out.into())
}

fn too_large(reached: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("no memory for more than {reached} inflated bytes"))
}

/// What the trailer of the last member says, as far as that can be true.
fn likely_len(data: &[u8]) -> u64 {
    let trailer = data.last_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    u64::from(trailer).min(data.len() as u64 * DEFLATE_RATIO)
}
