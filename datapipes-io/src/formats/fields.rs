//! Decoding of the fields of samples by their extensions.

use std::any::{Any, TypeId};
use std::fmt;
use std::mem::needs_drop;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Arity, BoxError, Context, Error, Hints, Items, Pipe, Result};

use super::Sample;
use super::compression::{Expansion, content};
use super::value::{Rule, Value};

/// Decoder of the fields of a sample by their extensions, as WebDataset's `decode()` does; see
/// [`FileGraphExt::decode_fields`](crate::FileGraphExt::decode_fields).
///
/// | Extension | Result |
/// |---|---|
/// | `cls`, `cls2`, `class`, `count`, `index`, `inx`, `id` | [`Value::Int`]: a decimal number; surrounding white space is ignored |
/// | `txt`, `text`, `transcript` | [`Value::Text`] |
/// | `json`, `jsn` | [`Value::Json`], at most 128 levels deep |
/// | `mp`, `msg`, `msgpack` | [`Value::MessagePack`] with the feature `msgpack`, at most 128 levels deep |
/// | `npy` | [`Value::Tensor`], a slice of the archive if it is aligned, native and in C order, else a copy |
/// | others | [`Value::Bytes`], a slice of the archive |
///
/// - The last part of a compound extension counts: `seg.json` is JSON. A field that ends in `.gz`
///   is decompressed first, and the part before counts. Fields keep their names and their order.
/// - Text is UTF-8; a byte order mark at its start is removed. JSON is strict: no `NaN`.
/// - [`with`](FieldDecoder::with) adds decoders or replaces the built-in ones. For images as
///   tensors, with the crate `datapipes-image`: `.with(datapipes_image::EXTENSIONS,
///   datapipes_image::decode_tensor)`.
/// - Numbers and texts are copied from the sample; bytes keep the archive in memory.
///
/// `V` is the type of decoded fields: [`Value`], or a user's type that can be made of a [`Value`].
///
/// ```
/// use datapipes_io::formats::{FieldDecoder, Value};
/// use datapipes_io::Sample;
///
/// let sample = Sample::new("7").with("cls", "3\n").with("meta.json", r#"{"a": [1]}"#).with("raw", "\0");
/// let sample = FieldDecoder::new().decode(sample)?;
/// assert_eq!(sample.get("cls")?, &Value::Int(3));
/// assert_eq!(sample.get("meta.json")?.as_json().unwrap()["a"][0], 1);
/// assert_eq!(sample.get("raw")?, &Value::Bytes("\0".into()));
///
/// let error = FieldDecoder::new().decode(Sample::new("8").with("cls", "x")).unwrap_err();
/// assert_eq!(error.to_string(), r#"corrupt: field "cls" of sample "8": byte 0: "x" is no whole number"#);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[must_use]
pub struct FieldDecoder<V = Value> {
    /// User's decoders; the last one takes precedence.
    own: Vec<Own<V>>,
    expansion: Expansion,
}

type Decode<V> = Arc<dyn Fn(Bytes) -> Result<V> + Send + Sync>;

struct Own<V> {
    extension: String,
    decode: Decode<V>,
}

impl<V> Clone for FieldDecoder<V> {
    fn clone(&self) -> Self {
        let own = |own: &Own<V>| Own {
            extension: own.extension.clone(),
            decode: own.decode.clone(),
        };
        FieldDecoder {
            own: self.own.iter().map(own).collect(),
            expansion: self.expansion,
        }
    }
}

impl<V> fmt::Debug for FieldDecoder<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own: Vec<&str> = self.own.iter().map(|own| &*own.extension).collect();
        f.debug_struct("FieldDecoder")
            .field("own", &own)
            .finish_non_exhaustive()
    }
}

impl Default for FieldDecoder {
    fn default() -> Self {
        FieldDecoder::new()
    }
}

impl FieldDecoder {
    /// Returns a decoder with the rules of the table above.
    pub fn new() -> Self {
        FieldDecoder::into_values()
    }
}

impl<V: From<Value> + Send + 'static> FieldDecoder<V> {
    /// Returns a decoder with the rules of the table above, into a user's type.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::formats::{FieldDecoder, Value};
    /// enum Field { Usual(Value), Reversed(Vec<u8>) }
    /// impl From<Value> for Field {
    ///     fn from(value: Value) -> Self { Field::Usual(value) }
    /// }
    /// let decoder = FieldDecoder::<Field>::into_values()
    ///     .with("rev", |data| datapipes::Ok(Field::Reversed(data.iter().rev().copied().collect())));
    /// # let sample = decoder.decode(datapipes_io::Sample::new("1").with("rev", "ab").with("txt", "x"))?;
    /// # assert!(matches!(sample.get("rev")?, Field::Reversed(data) if data == b"ba"));
    /// # assert!(matches!(sample.get("txt")?, Field::Usual(Value::Text(text)) if text == "x"));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn into_values() -> Self {
        FieldDecoder {
            own: Vec::new(),
            expansion: Expansion::default(),
        }
    }

    /// Decodes fields with one of these extensions, separated by spaces, by a function. An
    /// extension with a dot must match as a whole: `seg.png` matches fields `seg.png` and
    /// `a.seg.png`, not `png`. If several match, the last added decoder is used. Case does not
    /// matter.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Tensor;
    /// use datapipes_io::{Sample, formats::FieldDecoder};
    /// let decoder = FieldDecoder::new().with("u8 raw", |data| Tensor::from_vec(data.to_vec(), [data.len()]));
    /// let sample = decoder.decode(Sample::new("1").with("a.raw", vec![1, 2]))?;
    /// assert_eq!(sample.get("a.raw")?.as_tensor().unwrap().shape(), [2]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn with<T, E, F>(mut self, extensions: &str, decode: F) -> Self
    where
        T: Into<V>,
        E: Into<BoxError>, // With `?` in it a closure ends in `datapipes::Ok(..)`, or `Ok::<_, BoxError>(..)`.
        F: Fn(Bytes) -> Result<T, E> + Send + Sync + 'static,
    {
        let decode: Decode<V> =
            Arc::new(move |data| decode(data).map(T::into).map_err(Error::user));
        for extension in extensions.split_whitespace() {
            self.own.insert(
                0,
                Own {
                    extension: extension.to_lowercase(),
                    decode: decode.clone(),
                },
            );
        }
        self
    }

    /// Refuses a field ending in `.gz` that decompresses to more than `bytes`, or to more than
    /// `ratio` times its own size once it is past 1 MiB. Defaults to 8 GiB and 1100 times, which is
    /// more than gzip can reach.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        self.expansion.limit(bytes, ratio);
        self
    }

    /// Decodes all fields of a sample.
    ///
    /// # Errors
    /// `Corrupt` for a field that does not match its extension, naming the sample, the field and
    /// the byte. Errors of a user's function, with the field's name.
    pub fn decode(&self, sample: Sample) -> Result<Decoded<V>> {
        self.decode_in(sample, &Context::default())
    }

    fn decode_in(&self, sample: Sample, cx: &Context) -> Result<Decoded<V>> {
        let (key, fields) = sample.into_parts();
        let decode = |(name, data): (Arc<str>, Bytes)| {
            let value = self.field(&name, data, cx);
            match value {
                Ok(value) => Ok((name, value)),
                Err(error) => Err(error.within(format!("field {name:?} of sample {key:?}"))),
            }
        };
        let fields = fields.into_iter().map(decode).collect::<Result<_>>()?;
        Ok(Decoded { key, fields })
    }

    fn field(&self, name: &str, data: Bytes, cx: &Context) -> Result<V> {
        let lower = name.to_lowercase();
        if let Some(own) = self
            .own
            .iter()
            .find(|own| has_extension(&lower, &own.extension))
        {
            return (own.decode)(data);
        }
        match lower.strip_suffix(".gz") {
            Some(inner) => self.field(inner, content(data, self.expansion, cx)?, cx),
            None => Rule::of(&lower).apply(data).map(V::from),
        }
    }
}

/// Returns true if a field ends in these whole parts.
fn has_extension(field: &str, extension: &str) -> bool {
    field
        .strip_suffix(extension)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

impl<V: From<Value> + Send + 'static> Pipe<Sample> for FieldDecoder<V> {
    type Out = Decoded<V>;

    fn apply(&self, input: Items<Sample>, cx: &Context) -> Items<Decoded<V>> {
        let (decoder, context) = (self.clone(), cx.clone());
        input.each(cx, move |item| {
            Some(item.try_map(|sample| decoder.decode_in(sample, &context)))
        })
    }
    fn name(&self) -> String {
        "decode_fields".to_owned()
    }
    fn hints(&self) -> Hints {
        let own: Vec<&str> = self.own.iter().rev().map(|own| &*own.extension).collect();
        let own = if own.is_empty() {
            String::new()
        } else {
            format!("with {}", own.join(", "))
        };
        Hints::shardable()
            .arity(Arity::One)
            .settings(own)
            .weighs_by_type(needs_drop::<V>() && TypeId::of::<V>() != TypeId::of::<Value>())
    }
    fn weigh(&self, sample: &Decoded<V>) -> Option<usize> {
        // A value of another type may own anything.
        let weight = |value: &V| match (value as &dyn Any).downcast_ref::<Value>() {
            Some(value) => Some(value.weight()),
            None => (!needs_drop::<V>()).then_some(size_of::<V>()),
        };
        let fields: Option<usize> = sample.fields.iter().map(|(_, value)| weight(value)).sum();
        Some(sample.key.len() + fields?)
    }
}

/// A sample whose fields are decoded: a key, and named values.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<V = Value> {
    key: Arc<str>,
    fields: Vec<(Arc<str>, V)>,
}

datapipes::wire_struct!(Decoded<V> { key, fields });

impl<V> Decoded<V> {
    /// Returns the common part of the file names; see [`Sample::key`].
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the fields in the order of the archive.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = (&str, &V)> {
        self.fields.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns a field.
    ///
    /// # Errors
    /// `NotFound`, naming the existing fields.
    pub fn get(&self, field: &str) -> Result<&V> {
        let found = self.fields.iter().find(|(name, _)| **name == *field);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| self.lacks(field))
    }

    /// Removes a field and returns it.
    ///
    /// # Errors
    /// The errors of [`get`](Decoded::get).
    pub fn take(&mut self, field: &str) -> Result<V> {
        match self.fields.iter().position(|(name, _)| **name == *field) {
            Some(place) => Ok(self.fields.remove(place).1),
            None => Err(self.lacks(field)),
        }
    }

    fn lacks(&self, field: &str) -> Error {
        super::samples::lacks(&self.key, field, self.fields().map(|(name, _)| name))
    }
}

#[cfg(test)]
mod tests;
