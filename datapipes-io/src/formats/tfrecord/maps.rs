//! Maps of protocol buffers: from names to messages, in order.

use std::collections::HashMap;

use datapipes::{Error, Result};

use super::Feature;
use super::wire::{Fields, Wire};

/// Adds the features of a message.
pub(super) fn features(message: Fields, named: &mut Named<Feature>) -> Result<()> {
    entries(message, named, "feature", |feature: &mut Feature, value| {
        feature.merge(value)
    })
}

/// Adds the entries of a map from names to messages.
pub(super) fn entries<T: Default>(
    mut message: Fields,
    named: &mut Named<T>,
    what: &str,
    merge: impl Fn(&mut T, Fields) -> Result<()>,
) -> Result<()> {
    while let Some((number, wire)) = message.next()? {
        if number != 1 {
            message.skip(number, wire)?;
            continue;
        }
        let mut entry = message.message(wire, what)?;
        let mut name = String::new();
        let mut values = Vec::new();
        while let Some((number, wire)) = entry.next()? {
            match number {
                1 => {
                    entry.expect(wire, Wire::Len, "a name")?;
                    let bytes = entry.len()?;
                    name = std::str::from_utf8(&bytes)
                        .map_err(|error| {
                            entry.wrong(format!("the name of a {what} is not UTF-8: {error}"))
                        })?
                        .to_owned();
                }
                2 => values.push(
                    entry
                        .message(wire, what)
                        .map_err(|error| within(error, what, &name))?,
                ),
                _ => entry.skip(number, wire)?,
            }
        }
        let mut value = T::default();
        // The name may come after the value.
        values
            .into_iter()
            .try_for_each(|part| merge(&mut value, part))
            .map_err(|error| within(error, what, &name))?;
        named.insert(name, value);
    }
    Ok(())
}

fn within(error: Error, what: &str, name: &str) -> Error {
    error.within(format!("{what} {name:?}"))
}

/// Values by name, in order; a few values are found by a linear search.
#[derive(Default)]
pub(super) struct Named<T> {
    pub(super) values: Vec<(String, T)>,
    places: HashMap<String, usize>,
}

const FEW: usize = 32;

impl<T> Named<T> {
    fn insert(&mut self, name: String, value: T) {
        let place = match self.values.len() {
            0..FEW => self.values.iter().position(|(other, _)| *other == name),
            _ => {
                if self.places.is_empty() {
                    self.places = self
                        .values
                        .iter()
                        .enumerate()
                        .map(|(at, (name, _))| (name.clone(), at))
                        .collect();
                }
                self.places.get(&name).copied()
            }
        };
        match place {
            Some(place) => self.values[place].1 = value,
            None => {
                if !self.places.is_empty() {
                    self.places.insert(name.clone(), self.values.len());
                }
                self.values.push((name, value));
            }
        }
    }
}
