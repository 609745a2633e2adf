//! Splits in a file, so that all programs that train and evaluate a model use the same samples.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use datapipes::index::split::{Record, SplitPart, Splits};
use datapipes::whole_file::read_text;
use datapipes::{Error, Result};
use serde_json::{Value, json};

use crate::replace::{MOST, replace};

const FORMAT: &str = "datapipes splits";
const VERSION: u64 = 1;

/// Methods that write splits to a file and read them back.
///
/// # Examples
/// ```
/// use datapipes::index::split::{SplitSample, Splits, Splitter};
/// use datapipes_io::prelude::*;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("splits.json");
/// let keys: Vec<u64> = (0..100).collect();
/// let splits = Splitter::fractions([("train", 0.9), ("test", 0.1)]).split(keys.iter().copied().map(SplitSample::new))?;
/// splits.save(&path)?;
/// assert_eq!(Splits::load(&path, &keys)?, splits);
/// assert_eq!(Splits::<u64>::load_unchecked(&path)?, splits);
///
/// let other: Vec<u64> = (0..90).collect();
/// assert!(Splits::load(&path, &other).unwrap_err().to_string().ends_with("10 of its samples are gone, 0 are new"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait SplitsExt<K>: Sized {
    /// Writes the splits as JSON: keys, seed, columns, and a digest of all keys. Blocks. A
    /// concurrent reader of the file sees either the old or the new content. [`SplitsExt`] has an
    /// example of this method and the next two.
    ///
    /// # Errors
    /// The errors of the file system, with the name of the file.
    fn save(&self, path: impl AsRef<Path>) -> Result<()>;

    /// Reads the splits that [`save`](SplitsExt::save) wrote. Blocks.
    ///
    /// `keys` are the keys of the current data set: splits of another data set are refused.
    ///
    /// # Errors
    /// The errors of the file system; `Corrupt` if the file does not hold splits or is
    /// inconsistent; `Unsupported` for a later version; `Changed` as in [`Splits::check_keys`]. All
    /// errors name the file.
    fn load<'a>(path: impl AsRef<Path>, keys: impl IntoIterator<Item = &'a K>) -> Result<Self>
    where
        K: 'a;

    /// Reads the splits that [`save`](SplitsExt::save) wrote, without a check of the data set.
    /// Blocks.
    ///
    /// # Errors
    /// The errors of [`load`](SplitsExt::load).
    fn load_unchecked(path: impl AsRef<Path>) -> Result<Self>;
}

impl<K: Ord + Clone + fmt::Display + FromStr> SplitsExt<K> for Splits<K> {
    fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let record = self.to_record();
        let part = |part: &SplitPart<String>| {
            json!({
                "name": part.name, "fraction": part.fraction, "entities": part.entities,
                "classes": part.classes, "keys": part.keys,
            })
        };
        let whole = json!({
            "format": FORMAT, "version": VERSION, "seed": record.seed,
            "class_column": record.class_column, "entity_column": record.entity_column,
            "classes": record.classes, "considered": record.considered, "digest": record.digest,
            "parts": record.parts.iter().map(part).collect::<Vec<_>>(),
            "left_out": record.left_out,
        });
        replace(path.as_ref(), &format!("{whole:#}\n"))
    }

    fn load<'a>(path: impl AsRef<Path>, keys: impl IntoIterator<Item = &'a K>) -> Result<Self>
    where
        K: 'a,
    {
        let path = path.as_ref();
        let splits = Self::load_unchecked(path)?;
        splits
            .check_keys(keys)
            .map_err(|error| error.within(path.display()))?;
        Ok(splits)
    }

    fn load_unchecked(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let load = || Splits::from_record(read(&read_text(path, MOST)?)?);
        load().map_err(|error: Error| error.within(path.display()))
    }
}

fn read(text: &str) -> Result<Record> {
    let whole: Value =
        serde_json::from_str(text).map_err(|error| Error::corrupt("no JSON").with_source(error))?;
    if whole["format"] != FORMAT {
        return Err(Error::corrupt("no splits"));
    }
    match number(&whole, "version")? {
        VERSION => {}
        version => {
            let what = format!("splits of version {version}; this library reads version {VERSION}");
            return Err(Error::unsupported(what));
        }
    }
    let part = |part: &Value| {
        let counts = list(part, "classes")?
            .iter()
            .map(|count| count.as_u64().map(|count| count as usize));
        Ok(SplitPart {
            name: text_of(part, "name")?,
            fraction: part["fraction"]
                .as_f64()
                .ok_or_else(|| Error::corrupt("a part without \"fraction\""))?,
            keys: keys(part, "keys")?,
            entities: number(part, "entities")? as usize,
            classes: counts
                .collect::<Option<_>>()
                .ok_or_else(|| Error::corrupt("\"classes\" of a part"))?,
        })
    };
    Ok(Record {
        parts: list(&whole, "parts")?
            .iter()
            .map(part)
            .collect::<Result<_>>()?,
        left_out: keys(&whole, "left_out")?,
        considered: number(&whole, "considered")? as usize,
        seed: number(&whole, "seed")?,
        classes: list(&whole, "classes")?
            .iter()
            .map(|class| class.as_str().map(str::to_owned))
            .collect(),
        class_column: text_of(&whole, "class_column")?,
        entity_column: whole["entity_column"].as_str().map(str::to_owned),
        digest: text_of(&whole, "digest")?,
    })
}

fn list<'a>(of: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    of[field]
        .as_array()
        .ok_or_else(|| Error::corrupt(format!("no list {field:?}")))
}

fn number(of: &Value, field: &str) -> Result<u64> {
    of[field]
        .as_u64()
        .ok_or_else(|| Error::corrupt(format!("no number {field:?}")))
}

fn text_of(of: &Value, field: &str) -> Result<String> {
    of[field]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::corrupt(format!("no text {field:?}")))
}

fn keys(of: &Value, field: &str) -> Result<Vec<String>> {
    let key = |key: &Value| key.as_str().map(str::to_owned);
    let keys = list(of, field)?.iter().map(key).collect::<Option<_>>();
    keys.ok_or_else(|| Error::corrupt(format!("a key in {field:?} is no text")))
}

#[cfg(test)]
mod tests {
    use datapipes::index::split::{SplitSample, Splitter};

    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn a_file_gives_back_what_was_saved_and_only_for_its_data_set() {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("splits.json");
        {
            let keys: Vec<u64> = (0..50).collect();
            let samples = keys
                .iter()
                .map(|&n| SplitSample::new(n).class(n % 3).entity(n / 2));
            let splits = Splitter::fractions([("train", 0.8), ("val", 0.1), ("test", 0.1)])
                .equal_classes()
                .group_by("patient")
                .seed(u64::MAX)
                .split(samples)
                .unwrap();
            splits.save(path).unwrap();
            splits.save(path).unwrap();
            assert_eq!(
                std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
                1,
                "no temporary file stays"
            );
            let read = Splits::load(path, &keys).unwrap();
            assert_eq!(read, splits);
            assert_eq!(read.to_string(), splits.to_string());
            assert_eq!(read.columns(), ("label", Some("patient")));

            let other: Vec<u64> = (2..51).collect();
            let error = Splits::load(path, &other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Changed);
            assert!(
                error
                    .to_string()
                    .ends_with("2 of its samples are gone, 1 are new"),
                "{error}"
            );
            assert!(error.to_string().contains("splits.json"), "{error}");

            let text = std::fs::read_to_string(path).unwrap();
            let damage = [
                (
                    text.replace("\"version\": 1", "\"version\": 2"),
                    ErrorKind::Unsupported,
                ),
                (text.replace("datapipes splits", "else"), ErrorKind::Corrupt),
                (text[..text.len() / 2].to_owned(), ErrorKind::Corrupt),
                (text.replacen("\"1\"", "\"one\"", 2), ErrorKind::Corrupt),
                (
                    text.replace("\"digest\": \"", "\"digest\": \"0"),
                    ErrorKind::Corrupt,
                ),
                (text.replace("\"seed\"", "\"speed\""), ErrorKind::Corrupt),
                ("[1, 2]".to_owned(), ErrorKind::Corrupt),
                (String::new(), ErrorKind::Corrupt),
            ];
            for (number, (text, kind)) in damage.into_iter().enumerate() {
                std::fs::write(path, text).unwrap();
                let error = Splits::<u64>::load_unchecked(path).unwrap_err();
                assert_eq!(error.kind(), kind, "{number}: {error}");
            }
            std::fs::remove_file(path).unwrap();
            assert_eq!(
                Splits::load(path, &keys).unwrap_err().kind(),
                ErrorKind::NotFound
            );
            let nowhere = path.with_file_name("none").join("x.json");
            assert_eq!(
                splits.save(&nowhere).unwrap_err().kind(),
                ErrorKind::NotFound
            );
        }
    }
}
