//! `tf.train.SequenceExample`: features, and lists of features, by name.

use bytes::Bytes;
use datapipes::{Result, wire_struct};

use super::maps::{Named, entries, features};
use super::wire::{Fields, put_len};
use super::{Example, Feature};
use crate::formats::missing::missing;

/// `tf.train.SequenceExample`: a context, and lists of features by name, such as the frames of a
/// film.
///
/// # Examples
/// ```
/// use datapipes_io::formats::{Example, SequenceExample};
/// let walk = SequenceExample::new(Example::new().with("id", 7)).with("times", vec![0.5.into(), 1.5.into()]);
/// let read = SequenceExample::parse(walk.encode().into())?;
/// assert_eq!((read.context().int("id")?, read.get("times")?.len()), (7, 2));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SequenceExample {
    context: Example,
    lists: Vec<(String, Vec<Feature>)>,
}

wire_struct!(SequenceExample { context, lists });

impl SequenceExample {
    /// Returns an example with a context and no lists.
    pub fn new(context: Example) -> Self {
        SequenceExample {
            context,
            lists: Vec::new(),
        }
    }

    /// Adds a list, or replaces the list of an existing name.
    pub fn with(mut self, name: impl Into<String>, list: Vec<Feature>) -> Self {
        let name = name.into();
        match self.lists.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = list,
            None => self.lists.push((name, list)),
        }
        self
    }

    /// Decodes a record: `files.read_as(TfRecords::new()).try_map(SequenceExample::parse)`. Values
    /// of bytes are slices of the record.
    ///
    /// # Errors
    /// `Corrupt` if the record is no `tf.train.SequenceExample`, with the feature and the position
    /// in the message.
    pub fn parse(record: Bytes) -> Result<SequenceExample> {
        let mut message = Fields::of(record);
        let (mut context, mut lists) = (Named::default(), Named::default());
        while let Some((number, wire)) = message.next()? {
            match number {
                1 => features(message.message(wire, "the context")?, &mut context)?,
                2 => entries(
                    message.message(wire, "the lists")?,
                    &mut lists,
                    "list",
                    list,
                )?,
                _ => message.skip(number, wire)?,
            }
        }
        Ok(SequenceExample {
            context: Example::of(context.values),
            lists: lists.values,
        })
    }

    /// Encodes the example as a record: always the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut lists = Vec::new();
        for (name, list) in &self.lists {
            let (mut entry, mut values) = (Vec::new(), Vec::new());
            for feature in list {
                let mut value = Vec::new();
                feature.encode(&mut value);
                put_len(&mut values, 1, &value);
            }
            put_len(&mut entry, 1, name.as_bytes());
            put_len(&mut entry, 2, &values);
            put_len(&mut lists, 1, &entry);
        }
        let mut out = Vec::new();
        let context = self.context.encode_features();
        for (number, part) in [(1, context), (2, lists)] {
            if !part.is_empty() {
                put_len(&mut out, number, &part);
            }
        }
        out
    }

    /// Returns the features that do not repeat.
    pub fn context(&self) -> &Example {
        &self.context
    }

    /// Returns the lists, in the order of the record.
    pub fn lists(&self) -> impl ExactSizeIterator<Item = (&str, &[Feature])> {
        self.lists.iter().map(|(name, list)| (&**name, &**list))
    }

    /// Returns a list.
    ///
    /// # Errors
    /// `NotFound`, naming the existing lists.
    pub fn get(&self, name: &str) -> Result<&[Feature]> {
        let found = self.lists().find(|(other, _)| *other == name);
        found.map(|(_, list)| list).ok_or_else(|| {
            let names = self.lists().map(|(name, _)| name);
            missing("the example", "list", name, names)
        })
    }
}

fn list(features: &mut Vec<Feature>, mut message: Fields) -> Result<()> {
    while let Some((number, wire)) = message.next()? {
        match number {
            1 => {
                let mut feature = Feature::default();
                let at = features.len();
                message
                    .message(wire, "a feature")
                    .and_then(|value| feature.merge(value))
                    .map_err(|error| error.within(format!("feature {at}")))?;
                features.push(feature);
            }
            _ => message.skip(number, wire)?,
        }
    }
    Ok(())
}
