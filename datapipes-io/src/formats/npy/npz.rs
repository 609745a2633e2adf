//! Reads `.npz` archives: zip archives of `.npy` files.

use std::sync::Arc;

use datapipes::{Context, Error, Result, wire_struct};

use super::Array;
use crate::File;
use crate::formats::zip::{Member, Members, Options};
use crate::formats::{FileEntries, FileEntry, Format};

/// Reads `.npz` archives, and yields their arrays one by one, named without `.npy`, in the order of
/// the directory.
///
/// - Members are found and checked as by [`Unzip`](crate::formats::Unzip), and read as by
///   [`Npy`](super::Npy). A member that is no `.npy` file is `Unsupported` in its place.
/// - A stored array (`numpy.savez`) is a slice of the archive if it is aligned, as the arrays of
///   [`NpzWriter`](super::NpzWriter) are. NumPy does not align members: their arrays are copied
///   once, while their checksum is computed; or, if [`unchecked`](Npz::unchecked), by
///   [`Array::tensor`].
/// - A compressed array (`numpy.savez_compressed`) is decompressed into aligned memory, in one
///   pass.
/// - [`map`](Npz::map) yields all arrays of an archive as one item. [`members`](Npz::members)
///   yields arrays before they are decompressed, so that several workers decompress the arrays of
///   one large archive.
///
/// # Errors
/// The errors of [`Unzip`](crate::formats::Unzip) and [`Npy`](super::Npy).
///
/// # Examples
/// ```
/// use datapipes::{Graph, Tensor};
/// use datapipes_io::formats::{Array, Npz, NpzWriter};
/// use datapipes_io::{File, prelude::*};
///
/// let array = Array::from_tensor(&Tensor::from_vec(vec![1i32, 2], [2])?)?;
/// let mut npz = NpzWriter::new(std::io::Cursor::new(Vec::new()));
/// npz.add("x", &array)?;
/// npz.add("y", &array)?;
/// let files = Graph::from_vec(vec![File::new("a.npz", npz.finish()?.into_inner())]);
///
/// assert_eq!(files.clone().read_as(Npz::new()).collect()?, [array.clone(), array]);
/// let maps = files.read_as(Npz::new().map()).collect()?;
/// assert_eq!(maps[0].get("y")?.tensor()?.as_slice::<i32>()?, [1, 2]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Npz {
    options: Options,
}

impl Npz {
    /// Returns the format with the default limits of [`max_expansion`](Npz::max_expansion).
    pub fn new() -> Self {
        Npz::default()
    }

    datapipes::setters! {
        /// Sets the limits, as [`Unzip::max_expansion`](crate::formats::Unzip::max_expansion).
        max_expansion(bytes: u64, ratio: u64) => options.expansion.limit(bytes, ratio);

        /// Disables the check of the CRC of stored arrays, whose values are then not read.
        unchecked() => options.unchecked = true;
    }

    /// Yields all arrays of an archive as one item.
    pub fn map(self) -> NpzMap {
        NpzMap {
            options: self.options,
        }
    }

    /// Yields the arrays as they are in the archive, to be [decoded](NpzMember::decode) by the
    /// receiver.
    pub fn members(self) -> NpzMembers {
        NpzMembers {
            options: self.options,
        }
    }
}

impl Format for Npz {
    type Item = Array;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Array>> {
        let (arrays, cx) = (arrays(file, self.options, cx)?, cx.clone());
        Ok(Box::new(arrays.map(move |(name, member)| {
            match member.and_then(|member| member.read(&|| cx.is_cancelled())) {
                Ok(array) => FileEntry::Item(Some(name), array),
                Err(error) => FileEntry::Bad(Some(name), error),
            }
        })))
    }
}

/// Reads `.npz` archives, one item each; see [`Npz::map`].
///
/// # Errors
/// The errors of [`Npz`], naming the array: an array that cannot be read is an error of its
/// archive.
#[derive(Clone, Debug, Default)]
pub struct NpzMap {
    options: Options,
}

impl Format for NpzMap {
    type Item = Arrays;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<Arrays>> {
        // All arrays are one item.
        let options = Options {
            expansion: self.options.expansion.allowed(cx),
            ..self.options
        };
        let mut all = Vec::new();
        for (name, member) in arrays(file, options, cx)? {
            let array = member.and_then(|member| member.read(&|| cx.is_cancelled()));
            let array = array.map_err(|error| error.within(format!("array {name:?}")))?;
            all.push((name, array));
        }
        Ok(Box::new(std::iter::once(FileEntry::item(Arrays { all }))))
    }
    fn weigh(&self, arrays: &Arrays) -> Option<usize> {
        Some(
            arrays
                .all
                .iter()
                .map(|(name, array)| name.len() + array.weight())
                .sum(),
        )
    }
}

/// Finds the arrays of `.npz` archives; see [`Npz::members`].
///
/// # Errors
/// The errors of [`Npz`], except errors of the array itself, which [`NpzMember::decode`] returns.
///
/// # Examples
/// ```
/// use datapipes_io::formats::{Npz, NpzMember};
/// use datapipes_io::prelude::*;
/// # use datapipes_io::formats::{Array, NpzWriter};
/// # let mut npz = NpzWriter::new(std::io::Cursor::new(Vec::new())).deflated();
/// # npz.add("x", &Array::from_tensor(&datapipes::Tensor::scalar(1.5f32))?)?;
/// # let file = datapipes_io::File::new("a.npz", npz.finish()?.into_inner());
/// # let files = datapipes::Graph::from_vec(vec![file]);
/// // The arrays of one archive, inflated by all workers.
/// let arrays = files.read_as(Npz::new().members()).try_map(|member: NpzMember| member.decode());
/// assert_eq!(arrays.collect()?.len(), 1);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct NpzMembers {
    options: Options,
}

impl Format for NpzMembers {
    type Item = NpzMember;

    fn open(&self, file: File, cx: &Context) -> Result<FileEntries<NpzMember>> {
        Ok(Box::new(arrays(file, self.options, cx)?.map(
            |(name, member)| match member {
                Ok(member) => FileEntry::Item(Some(name), member),
                Err(error) => FileEntry::Bad(Some(name), error),
            },
        )))
    }
    fn weigh(&self, member: &NpzMember) -> Option<usize> {
        Some(member.member.weight())
    }
}

/// An array of an `.npz` archive that was found, and not yet decompressed or checked. Keeps the
/// archive in memory.
#[derive(Clone)]
pub struct NpzMember {
    name: Arc<str>,
    member: Member,
}

impl NpzMember {
    /// Returns the array's name, without `.npy`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Decodes the array.
    ///
    /// # Errors
    /// The errors of [`Npz`].
    pub fn decode(&self) -> Result<Array> {
        self.read(&|| false)
    }

    fn read(&self, stopped: &dyn Fn() -> bool) -> Result<Array> {
        // The widest numbers have 8 bytes, and the size of a header is a multiple of that.
        Array::parse(self.member.aligned(8, stopped)?)
    }
}

datapipes::formatted! { Debug |member: NpzMember| "NpzMember({:?})", member.name; }

/// The named arrays of an `.npz` archive, in its order. A clone copies only the names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrays {
    all: Vec<(Arc<str>, Array)>,
}

wire_struct!(Arrays { all });

impl Arrays {
    /// Returns the number of arrays.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns true if there are no arrays.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns names and arrays.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Array)> {
        self.all.iter().map(|(name, array)| (&**name, array))
    }

    /// Returns an array by its name.
    ///
    /// # Errors
    /// `NotFound`, naming the existing arrays.
    pub fn get(&self, name: &str) -> Result<&Array> {
        Ok(&self.all[self.place(name)?].1)
    }

    /// Removes an array and returns it.
    ///
    /// # Errors
    /// `NotFound`, naming the existing arrays.
    pub fn take(&mut self, name: &str) -> Result<Array> {
        let place = self.place(name)?;
        Ok(self.all.remove(place).1)
    }

    fn place(&self, name: &str) -> Result<usize> {
        self.all
            .iter()
            .position(|(own, _)| **own == *name)
            .ok_or_else(|| {
                let names: Vec<&str> = self.all.iter().map(|(name, _)| &**name).take(20).collect();
                Error::not_found(format!("no array {name:?}; there are {names:?}"))
            })
    }
}

impl IntoIterator for Arrays {
    type Item = (Arc<str>, Array);
    type IntoIter = std::vec::IntoIter<(Arc<str>, Array)>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.into_iter()
    }
}

/// Returns the arrays of an archive with their names, or errors in their places.
fn arrays(
    file: File,
    options: Options,
    cx: &Context,
) -> Result<impl Iterator<Item = (Arc<str>, Result<NpzMember>)> + Send + use<>> {
    let members = Members::open(file.data, options, cx)?;
    Ok(
        members.map(|(full, member)| match full.strip_suffix(".npy") {
            Some(name) => {
                let name: Arc<str> = name.into();
                (
                    name.clone(),
                    member.map(|member| NpzMember { name, member }),
                )
            }
            None => {
                let what = format!("member {full:?} of an npz archive is no .npy file");
                (full, Err(Error::unsupported(what)))
            }
        }),
    )
}
