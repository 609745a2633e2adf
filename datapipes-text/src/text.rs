//! Texts: what can be tokenized.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, Result};

/// A value that is, or has, a text.
///
/// Implement it for a sample type of your own to tokenize one of its fields.
pub trait Text: Send + 'static {
    /// Returns the text.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are no UTF-8, with the position of the first that is not.
    fn text(&self) -> Result<&str>;
}

macro_rules! texts {
    ($($text:ty)*) => {$(
        impl Text for $text {
            fn text(&self) -> Result<&str> {
                Ok(self)
            }
        }
    )*};
}

texts!(String &'static str Arc<str> Box<str>);

macro_rules! bytes {
    ($($bytes:ty)*) => {$(
        impl Text for $bytes {
            fn text(&self) -> Result<&str> {
                std::str::from_utf8(self).map_err(|error| {
                    let message = format!("byte {} of the text is no UTF-8", error.valid_up_to());
                    Error::corrupt(message)
                })
            }
        }
    )*};
}

bytes!(Bytes Vec<u8>);
