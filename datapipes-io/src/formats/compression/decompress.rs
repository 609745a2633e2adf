//! Decompresses files of any codec.

use datapipes::{Arity, Context, Error, Hints, Items, Pipe, Result};

use super::codecs::whole;
use super::reader::Packing;
use super::{Codec, Expansion};
use crate::File;

/// Decompresses files of any [`Codec`]; see
/// [`FileGraphExt::decompress`](crate::FileGraphExt::decompress).
///
/// - The codec is recognized by a file's first bytes. A file without a codec is passed on
///   unchanged, and is not copied, unless its name says that it is compressed: then it is an error.
/// - The whole file is decompressed at once, with all its members, frames or streams if it has
///   several, and their checksums and lengths are checked if they have them.
/// - The name loses the ending of the codec: `a.txt.zst` becomes `a.txt`, and `a.tgz` becomes
///   `a.tar`. See [`Codec::of_name`].
/// - Data after the last member, frame or stream are an error; zeros too, except multiples of four
///   after xz. A file cut exactly between two of them cannot be told from a whole file.
/// - The decompressed content is not examined again: a compressed file in a compressed file needs
///   two of these pipes.
#[derive(Clone, Debug)]
#[must_use]
pub struct Decompress {
    expansion: Expansion,
}

impl Default for Decompress {
    fn default() -> Self {
        Decompress {
            expansion: Expansion::whole(),
        }
    }
}

impl Decompress {
    /// Returns the pipe with the default limits of [`max_expansion`](Decompress::max_expansion) and
    /// [`max_window`](Decompress::max_window).
    pub fn new() -> Self {
        Decompress::default()
    }

    datapipes::setters! {
        /// Refuses a file that decompresses to more than `bytes`, all of which is in memory at once, or
        /// to more than `ratio` times its own size once it is past 1 MiB. Defaults to 1 GiB and 1100
        /// times, which is more than gzip can reach. The other codecs can reach more with repetitive
        /// content.
        max_expansion(bytes: u64, ratio: u64) => expansion.limit(bytes, ratio);

        /// Refuses a Zstandard or xz file that needs a window or dictionary of more than `bytes`.
        /// Defaults to 128 MiB; files written with `zstd --long=31` need 2 GiB.
        max_window(bytes: u64) => expansion.window = bytes;
    }
}

impl Pipe<File> for Decompress {
    type Out = File;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<File> {
        let (expansion, context) = (self.expansion, cx.clone());
        input.each(cx, move |item| {
            Some(item.try_map(|file| decompress(file, expansion, &context)))
        })
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One)
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

/// Decompresses a file, if it has a codec.
pub(super) fn decompress(file: File, expansion: Expansion, cx: &Context) -> Result<File> {
    let Some(codec) = codec_of(&file.data, &file.name)? else {
        return Ok(file);
    };
    let name = Codec::of_name(&file.name).map_or(file.name, |(_, name)| name.into());
    Ok(File {
        name,
        data: whole(codec, file.data, expansion, cx)?,
    })
}

/// Returns the codec of a file by its first bytes; an error if only its name says that there is
/// one.
fn codec_of(data: &[u8], name: &str) -> Result<Option<Codec>> {
    match (Codec::of_magic(data), Codec::of_name(name)) {
        (Some(codec), _) => Ok(Some(codec)),
        (None, None) => Ok(None),
        (None, Some((codec, _))) if data.is_empty() => {
            let what = format!("an empty file where {codec} data is due");
            Err(Error::truncated(what))
        }
        (None, Some((codec, _))) => {
            let what = format!("its name says {codec}, and its first bytes are of no codec");
            Err(Error::corrupt(what))
        }
    }
}

/// Returns the compression of a file, if there is one, by its first bytes and its name, with the
/// rules of [`Decompress`].
pub(in crate::formats) fn packing_of(data: &[u8], name: &str) -> Result<Option<Packing>> {
    Ok(codec_of(data, name)?.map(Codec::packing))
}
