//! Decompresses gzip files.

use datapipes::{Arity, Context, Error, Hints, Items, Pipe};

use super::Expansion;
use super::decompress::decompress;
use super::gzip::is_gzip;
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
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.expansion.limit(bytes, ratio);
        self
    }
}

impl Pipe<File> for Gunzip {
    type Out = File;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<File> {
        let (expansion, context) = (self.expansion, cx.clone());
        input.each(cx, move |item| {
            Some(item.try_map(|file| {
                if !is_gzip(&file.data) {
                    return Err(Error::corrupt("this is not a gzip file"));
                }
                decompress(file, expansion, &context)
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
