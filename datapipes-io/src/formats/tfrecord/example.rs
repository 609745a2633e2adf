//! `tf.train.Example`: features by name.

use std::fmt;

use bytes::Bytes;
use datapipes::{Error, Result, wire_struct};

use super::Feature;
use super::maps::{Named, features};
use super::wire::{Fields, Wire, put_len};
use crate::formats::missing::missing;

/// `tf.train.Example`: features by name, in the order of the record.
///
/// - Of duplicate names the last one counts, as protocol buffers specify; it keeps the place of the
///   first.
/// - Values of bytes are slices of the record; numbers and names are copied.
/// - Lists may be packed or not. Fields that are not in TensorFlow's `example.proto` are ignored.
///
/// # Examples
/// ```
/// use datapipes_io::formats::{Example, Feature};
/// let example = Example::new().with("label", 3).with("box", vec![0.5, 1.0]).with("image", "jpeg bytes");
/// let read = Example::parse(example.encode().into())?;
/// assert_eq!((read.int("label")?, read.floats("box")?, read.text("image")?), (3, &[0.5, 1.0][..], "jpeg bytes"));
/// let error = read.ints("image").unwrap_err().to_string();
/// assert_eq!(error, r#"corrupt: feature "image" holds bytes, not ints"#);
/// let error = read.int("name").unwrap_err().to_string();
/// assert_eq!(error, r#"not found: the example has no feature "name", but "label", "box", "image""#);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, PartialEq, Default)]
pub struct Example {
    features: Vec<(String, Feature)>,
}

wire_struct!(Example { features });

impl Example {
    /// Returns an example without features.
    pub fn new() -> Self {
        Example::default()
    }

    /// Adds a feature, or replaces the values of an existing one.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, feature: impl Into<Feature>) -> Self {
        let (name, feature) = (name.into(), feature.into());
        match self.features.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = feature,
            None => self.features.push((name, feature)),
        }
        self
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// `Corrupt` if the record is no `tf.train.Example`, with the feature and the position in the
    /// message. `Unsupported` for a `tf.train.SequenceExample`, of which only the context would be
    /// decoded; see [`SequenceExample`](super::SequenceExample).
    pub fn parse(record: Bytes) -> Result<Example> {
        let mut message = Fields::of(record);
        let mut named = Named::default();
        while let Some((number, wire)) = message.next()? {
            match (number, wire) {
                (1, _) => features(message.message(wire, "the features")?, &mut named)?,
                (2, Wire::Len) => {
                    let what = "the record is a tf.train.SequenceExample: decode it by SequenceExample::parse";
                    return Err(Error::unsupported(what));
                }
                _ => message.skip(number, wire)?,
            }
        }
        Ok(Example {
            features: named.values,
        })
    }

    /// Encodes the example as a record, features and values in their order: always the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.features.is_empty() {
            put_len(&mut out, 1, &self.encode_features());
        }
        out
    }

    pub(super) fn encode_features(&self) -> Vec<u8> {
        let mut features = Vec::new();
        let (mut entry, mut value) = (Vec::new(), Vec::new());
        for (name, feature) in &self.features {
            entry.clear();
            value.clear();
            put_len(&mut entry, 1, name.as_bytes());
            feature.encode(&mut value);
            put_len(&mut entry, 2, &value);
            put_len(&mut features, 1, &entry);
        }
        features
    }

    pub(super) fn of(features: Vec<(String, Feature)>) -> Self {
        Example { features }
    }

    /// Returns the features, in the order of the record.
    pub fn features(&self) -> impl ExactSizeIterator<Item = (&str, &Feature)> {
        self.features
            .iter()
            .map(|(name, feature)| (&**name, feature))
    }

    /// Returns true if the example has the feature.
    pub fn has(&self, name: &str) -> bool {
        self.features.iter().any(|(other, _)| other == name)
    }

    /// Returns a feature.
    ///
    /// # Errors
    /// `NotFound`, naming the existing features.
    pub fn get(&self, name: &str) -> Result<&Feature> {
        let found = self.features().find(|(other, _)| *other == name);
        found.map(|(_, feature)| feature).ok_or_else(|| {
            let names = self.features().map(|(name, _)| name);
            missing("the example", "feature", name, names)
        })
    }

    /// Returns the values of a feature of bytes. A feature without a type has none.
    ///
    /// # Errors
    /// The error of [`get`](Example::get); `Corrupt` if the feature has values of another type.
    pub fn bytes(&self, name: &str) -> Result<&[Bytes]> {
        match self.get(name)? {
            Feature::Bytes(values) => Ok(values),
            other => other.lacks(name, "bytes"),
        }
    }

    /// Returns the values of a feature of floats. A feature without a type has none.
    ///
    /// # Errors
    /// The errors of [`bytes`](Example::bytes).
    pub fn floats(&self, name: &str) -> Result<&[f32]> {
        match self.get(name)? {
            Feature::Floats(values) => Ok(values),
            other => other.lacks(name, "floats"),
        }
    }

    /// Returns the values of a feature of ints. A feature without a type has none.
    ///
    /// # Errors
    /// The errors of [`bytes`](Example::bytes).
    pub fn ints(&self, name: &str) -> Result<&[i64]> {
        match self.get(name)? {
            Feature::Ints(values) => Ok(values),
            other => other.lacks(name, "ints"),
        }
    }

    /// Returns the single value of a feature of bytes.
    ///
    /// # Errors
    /// The errors of [`bytes`](Example::bytes); `Shape` if the feature has another number of
    /// values.
    pub fn blob(&self, name: &str) -> Result<&Bytes> {
        one(name, self.bytes(name)?)
    }

    /// Returns the single value of a feature of floats.
    ///
    /// # Errors
    /// The errors of [`blob`](Example::blob).
    pub fn float(&self, name: &str) -> Result<f32> {
        one(name, self.floats(name)?).copied()
    }

    /// Returns the single value of a feature of ints.
    ///
    /// # Errors
    /// The errors of [`blob`](Example::blob).
    pub fn int(&self, name: &str) -> Result<i64> {
        one(name, self.ints(name)?).copied()
    }

    /// Returns the single value of a feature of bytes, as text.
    ///
    /// # Errors
    /// The errors of [`blob`](Example::blob); `Corrupt` if the value is not UTF-8, with the
    /// position.
    pub fn text(&self, name: &str) -> Result<&str> {
        std::str::from_utf8(self.blob(name)?)
            .map_err(|error| Error::corrupt(format!("feature {name:?}")).with_source(error))
    }

    pub(super) fn weight(&self) -> usize {
        let features = self
            .features
            .iter()
            .map(|(name, feature)| name.len() + feature.weight());
        size_of::<Self>() + features.sum::<usize>()
    }
}

fn one<'a, T>(name: &str, values: &'a [T]) -> Result<&'a T> {
    match values {
        [value] => Ok(value),
        _ => Err(Error::shape(format!(
            "feature {name:?} has {} values where one is due",
            values.len()
        ))),
    }
}

impl fmt::Debug for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Example(")?;
        for (at, (name, feature)) in self.features.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name:?}: {} {}", feature.len(), feature.kind())?;
        }
        f.write_str(")")
    }
}
