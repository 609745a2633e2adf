//! [`Wire`] for single values of the standard library.

use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Reader, Wire, Writer, damaged};
use crate::{ErrorKind, Result};

impl Wire for () {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[0]);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        match u8::decode(from)? {
            0 => Ok(()),
            other => Err(damaged(format_args!("{other} instead of nothing"))),
        }
    }
}

impl<T: Send + 'static> Wire for PhantomData<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        ().encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        <()>::decode(from).map(|()| PhantomData)
    }
}

/// Reads text. It is copied before it is checked: in shared memory, the writer might change it in
/// between.
fn text(from: &mut Reader<'_>) -> Result<String> {
    String::from_utf8(from.slice()?.to_vec()).map_err(|_| damaged("text that is not UTF-8"))
}

/// Encodes text as UTF-8.
macro_rules! texts {
    ($($type:ty)*) => {$(
        impl Wire for $type {
            fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
                to.payload(self.as_bytes());
                Ok(())
            }
            fn decode(from: &mut Reader<'_>) -> Result<Self> {
                text(from).map(Into::into)
            }
        }
    )*};
}

texts!(String Box<str> Arc<str>);

/// Bytes that are 64 KiB or more are not copied when they are read.
impl Wire for Bytes {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.payload(self);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        from.payload()
    }
}

/// Writes the text unchanged, UTF-8 or not.
#[cfg(unix)]
fn encode_os<'a>(text: &'a OsStr, to: &mut Writer<'a>) {
    to.payload(std::os::unix::ffi::OsStrExt::as_bytes(text));
}

#[cfg(unix)]
fn decode_os(from: &mut Reader<'_>) -> Result<OsString> {
    Ok(std::os::unix::ffi::OsStringExt::from_vec(
        from.slice()?.to_vec(),
    ))
}

/// Writes the text unchanged, well-formed or not.
#[cfg(windows)]
fn encode_os<'a>(text: &'a OsStr, to: &mut Writer<'a>) {
    let units: Vec<u16> = std::os::windows::ffi::OsStrExt::encode_wide(text).collect();
    to.number(units.len() as u64);
    units.iter().for_each(|unit| to.raw(&unit.to_ne_bytes()));
}

#[cfg(windows)]
fn decode_os(from: &mut Reader<'_>) -> Result<OsString> {
    let count = from.count()?;
    let units = (0..count)
        .map(|_| u16::decode(from))
        .collect::<Result<Vec<_>>>()?;
    Ok(std::os::windows::ffi::OsStringExt::from_wide(&units))
}

#[cfg(any(unix, windows))]
impl Wire for OsString {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_os(self, to);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_os(from)
    }
}

#[cfg(any(unix, windows))]
impl Wire for PathBuf {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_os(self.as_os_str(), to);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_os(from).map(PathBuf::from)
    }
}

impl Wire for Duration {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.number(self.as_secs());
        to.number(u64::from(self.subsec_nanos()));
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let (secs, nanos) = (from.number()?, from.number()?);
        match u32::try_from(nanos) {
            Ok(nanos @ ..1_000_000_000) => Ok(Duration::new(secs, nanos)),
            _ => Err(damaged(format_args!("{nanos} nanoseconds of one second"))),
        }
    }
}

impl Wire for ErrorKind {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[self.number()]);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let kind = u8::decode(from)?;
        ErrorKind::from_number(kind)
            .ok_or_else(|| damaged(format_args!("{kind} is no kind of error")))
    }
}

impl<T: Wire> Wire for Range<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.start.encode(to)?;
        self.end.encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        Ok(T::decode(from)?..T::decode(from)?)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[u8::from(self.is_some())]);
        self.as_ref().map_or(Ok(()), |value| value.encode(to))
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        bool::decode(from)?.then(|| T::decode(from)).transpose()
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[u8::from(self.is_err())]);
        match self {
            Ok(value) => value.encode(to),
            Err(error) => error.encode(to),
        }
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        Ok(if bool::decode(from)? {
            Err(E::decode(from)?)
        } else {
            Ok(T::decode(from)?)
        })
    }
}

impl<T: Wire> Wire for Box<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.inside(|to| (**self).encode(to))
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        from.inside(T::decode).map(Box::new)
    }
}

/// Writes a shared value once for each owner; it is no longer shared when it is read.
impl<T: Wire + Sync> Wire for Arc<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.inside(|to| (**self).encode(to))
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        from.inside(T::decode).map(Arc::new)
    }
}
