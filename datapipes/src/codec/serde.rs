//! [`Wire`] for types that serde can write and read.

use std::any::type_name;
use std::ops::{Deref, DerefMut};

use serde::de::{Deserialize, DeserializeOwned, IgnoredAny};
use serde::ser::Serialize;

use super::{DEEPEST, Reader, Wire, Writer, damaged};
use crate::{BoxError, Error, Result};

/// A value of a type that serde can write and read, and that therefore is [`Wire`]. Needs the
/// feature `serde`.
///
/// It derefs to the value. `#[wire(serde)]` wraps a field of a struct for sending, without changing
/// the struct.
///
/// The encoding is MessagePack, fields with their names, so that fields which serde leaves out or
/// fills in find their place. It is slower than a [`Wire`] implementation of the type itself, and
/// always a copy: bytes are numbers one by one, unless the type is declared otherwise
/// (`serde_bytes`). Values that MessagePack cannot tell apart are read as the simpler one:
/// `Some(None)` and `Some(())` as `None`.
///
/// Lists and maps may be nested 128 deep.
///
/// # Examples
/// ```
/// use datapipes::{Graph, Serde, Wire};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Caption { text: String, votes: Option<u32> }
///
/// fn can_travel<T: Wire>(graph: Graph<T>) -> Graph<T> { graph }
///
/// let captions = Graph::range(0..3).map(|n| Serde(Caption { text: format!("picture {n}"), votes: None }));
/// let texts = can_travel(captions).map(|caption| caption.text.len());
/// assert_eq!(texts.collect()?, [9, 9, 9]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serde<T>(pub T);

impl<T> Serde<T> {
    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> From<T> for Serde<T> {
    fn from(value: T) -> Self {
        Serde(value)
    }
}

impl<T> Deref for Serde<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Serde<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Wire for Serde<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode(&self.0, to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode(from).map(Serde)
    }
}

/// The requirements of the feature's bridge, for derived code.
#[doc(hidden)]
pub trait Serial: Serialize + DeserializeOwned + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Serial for T {}

/// Writes the length, which is known only afterwards, and MessagePack.
#[doc(hidden)]
pub fn encode<T: Serialize>(value: &T, to: &mut Writer<'_>) -> Result<()> {
    let bytes = to.bytes();
    let begun = bytes.len();
    bytes.extend([0; 8]);
    let refused = |error: BoxError| {
        Error::user(error).within(format_args!("serde cannot write this {}", type_name::<T>()))
    };
    let mut serializer = rmp_serde::Serializer::new(&mut *bytes).with_struct_map();
    value
        .serialize(&mut serializer)
        .map_err(|error| refused(error.into()))?;
    // A value too deep to be read is refused here, where it costs one item.
    let mut depth = rmp_serde::Deserializer::from_read_ref(&bytes[begun + 8..]);
    depth.set_max_depth(DEEPEST);
    IgnoredAny::deserialize(&mut depth).map_err(|error| refused(error.into()))?;
    let len = bytes.len() - begun - 8;
    bytes[begun..begun + 8].copy_from_slice(&(len as u64).to_ne_bytes());
    Ok(())
}

/// Reads a value that [`encode`] wrote.
#[doc(hidden)]
pub fn decode<T: DeserializeOwned>(from: &mut Reader<'_>) -> Result<T> {
    let len = u64::decode(from)?;
    let bytes = from.raw(usize::try_from(len).unwrap_or(usize::MAX))?;
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.set_max_depth(DEEPEST);
    T::deserialize(&mut deserializer).map_err(|error| {
        damaged(format_args!(
            "serde cannot read a {}: {error}",
            type_name::<T>()
        ))
    })
}
