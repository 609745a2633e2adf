//! NumPy arrays: `.npy` files, and `.npz` archives of them.

mod array;
mod dtype;
mod header;
#[cfg(feature = "zip")]
mod npz;
#[cfg(feature = "zip")]
mod npz_write;
#[cfg(test)]
mod tests;
mod values;

use datapipes::{Context, Result};

pub use array::Array;
pub use dtype::NpyType;
#[cfg(feature = "zip")]
pub use npz::{Arrays, Npz, NpzMap, NpzMember, NpzMembers};
#[cfg(feature = "zip")]
pub use npz_write::NpzWriter;

use super::compression::{Expansion, content};
use super::{FileEntries, FileEntry, Format};
use crate::File;

/// Reads `.npy` files; each is one [`Array`].
///
/// - Format versions 1.0, 2.0 and 3.0; `bool`, signed and unsigned integers of 8 to 64 bits, floats
///   of 16 to 64 bits and complex numbers of two floats; either order of bytes; C and Fortran
///   order.
/// - The array's values are a slice of the file: reading takes the same time whatever its size.
/// - A compressed file, recognized by its first bytes, is decompressed first, as a whole; see
///   [`Codec`](super::Codec).
/// - The header is read by a parser for exactly this dictionary. Nothing is evaluated.
/// - Objects are refused: their values are a pickle, which can run code when read. Structures,
///   strings, times and floats of 80 or 128 bits are not supported.
/// - Bytes after the values are an error. NumPy ignores them, since several arrays may be saved one
///   after the other into one open file; here they would be lost silently.
///
/// The format is that of
/// [`numpy.lib.format`](https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
///
/// # Errors
/// `Truncated` if header or values are cut; `Corrupt` for an invalid header, or bytes after the
/// values; `Unsupported` for another type or version. The header alone causes no allocation.
///
/// # Examples
/// ```
/// use datapipes::{Graph, Tensor};
/// use datapipes_io::formats::{Array, Npy};
/// use datapipes_io::{File, prelude::*};
///
/// let file = Array::from_tensor(&Tensor::from_vec(vec![1u16, 2, 3, 4, 5, 6], [2, 3])?)?.to_npy();
/// let arrays = Graph::from_vec(vec![File::new("a.npy", file)]).read_as(Npy::new());
/// let tensors = arrays.try_map(|array| array.tensor()).collect()?;
/// assert_eq!(tensors[0].row(1)?.as_slice::<u16>()?, [4, 5, 6]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Npy {
    expansion: Expansion,
}

impl Npy {
    /// Returns the format with the default limits of [`max_expansion`](Npy::max_expansion).
    pub fn new() -> Self {
        Npy::default()
    }

    /// Refuses a compressed file that decompresses to more than `bytes`, or to more than `ratio`
    /// times its own size once it is past 1 MiB. Defaults to 8 GiB and 1100 times.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.expansion.limit(bytes, ratio);
        self
    }
}

impl Format for Npy {
    type Item = Array;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Array>> {
        let array = Array::parse(content(file.data, self.expansion, cx)?)?;
        Ok(Box::new(std::iter::once(FileEntry::item(array))))
    }
}
