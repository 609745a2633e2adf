//! [`Wire`] for values of the standard library.

use super::{Reader, Wire, Writer, damaged};
use crate::Result;

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Wire for $type {
            #[inline]
            fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
                to.raw(&self.to_le_bytes());
                Ok(())
            }
            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self> {
                let bytes = from.raw(size_of::<$type>())?;
                Ok(<$type>::from_le_bytes(bytes.try_into().expect("so many were asked for")))
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

impl Wire for usize {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.number(*self as u64);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let number = from.number()?;
        usize::try_from(number).map_err(|_| damaged(format_args!("{number} is no size")))
    }
}

impl Wire for bool {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[u8::from(*self)]);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(damaged(format_args!("{other} is no bool"))),
        }
    }
}

impl Wire for () {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[0]);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        u8::decode(from).map(|_| ())
    }
}

impl Wire for String {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.payload(self.as_bytes());
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        String::from_utf8(from.payload()?.into()).map_err(|_| damaged("text that is not UTF-8"))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.number(self.len() as u64);
        T::encode_all(self, to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let count = from.count()?;
        T::decode_all(count, from)
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
