//! Inflates files of any codec.

use std::io::Read;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, ErrorKind, Facts, Items, Pipe, Result};

use super::{Codec, Expansion, reader};
use crate::File;

/// Inflates compressed files of any [`Codec`]; see [`FileGraph::decompress`](crate::FileGraph::decompress).
///
/// - The codec is told by a file's first bytes. A file of no codec passes as it is, and is not copied, unless its name says
///   that it is compressed: then it is an error.
/// - The whole file is inflated at once, all its members, frames or streams if it has several, and their checksums and
///   lengths are checked where they have them.
/// - The name loses the ending that tells a codec: `a.txt.zst` becomes `a.txt`, and `a.tgz` becomes `a.tar`. See
///   [`Codec::of_name`].
/// - What follows the last member, frame or stream is an error; zeros too, but for multiples of four behind xz. A file cut
///   exactly between two of them cannot be told from a whole one.
/// - What is inflated is not looked into again: a compressed file in a compressed file takes two of these.
#[derive(Clone, Debug, Default)]
pub struct Decompress {
    expansion: Expansion,
}

impl Decompress {
    /// With the default limits of [`max_expansion`](Decompress::max_expansion) and [`max_window`](Decompress::max_window).
    pub fn new() -> Self {
        Decompress::default()
    }

    /// Refuses a file that inflates to more than `bytes`, or to more than `ratio` times its own size once it is past
    /// 1 MiB. By default 8 GiB, and 1100 times, which is more than gzip can reach. The other codecs can reach more with
    /// content that repeats itself.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        Decompress { expansion: Expansion { bytes, ratio, ..self.expansion } }
    }

    /// Refuses a Zstandard or xz file that needs a window or dictionary of more than `bytes`. By default 128 MiB; files
    /// written with `zstd --long=31` need 2 GiB.
    pub fn max_window(self, bytes: u64) -> Self {
        Decompress { expansion: Expansion { window: bytes, ..self.expansion } }
    }
}

impl Pipe<File> for Decompress {
    type Out = File;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<File> {
        let (expansion, context) = (self.expansion, cx.clone());
        input.each(cx, move |item| Some(item.try_map(|file| decompress(file, expansion, &context))))
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

fn decompress(file: File, expansion: Expansion, cx: &Context) -> Result<File> {
    let Some(codec) = codec_of(&file)? else { return Ok(file) };
    let name = Codec::of_name(&file.name).map_or(file.name, |(_, name)| name.into());
    Ok(File { name, data: reader::whole(codec, file.data, expansion, cx)? })
}

/// The codec of a file by its first bytes; an error if only its name says that there is one.
fn codec_of(file: &File) -> Result<Option<Codec>> {
    match (Codec::of_magic(&file.data), Codec::of_name(&file.name)) {
        (Some(codec), _) => Ok(Some(codec)),
        (None, None) => Ok(None),
        (None, Some((codec, _))) if file.data.is_empty() => {
            let what = format!("an empty file where {codec} data is due");
            Err(Error::new(ErrorKind::Truncated, what))
        }
        (None, Some((codec, _))) => {
            let what = format!("its name says {codec}, and its first bytes are of no codec");
            Err(Error::new(ErrorKind::Corrupt, what))
        }
    }
}

/// A file that may be compressed, to be read from its beginning to its end.
pub(in crate::formats) enum Opened {
    /// It is not: its own bytes.
    Plain(Bytes),
    /// It is: what [`reader`](super::reader) gives.
    Packed(Box<dyn Read + Send>),
}

/// Opens a file that is read as a stream, by its first bytes as [`Decompress`] does.
pub(in crate::formats) fn open(file: File, expansion: Expansion, cx: &Context) -> Result<Opened> {
    Ok(match codec_of(&file)? {
        None => Opened::Plain(file.data),
        Some(codec) => Opened::Packed(reader(codec, file.data, expansion, cx)),
    })
}
