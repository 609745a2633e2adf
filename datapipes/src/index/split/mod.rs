//! Splits of a data set, such as training, validation and test parts.
//!
//! The code is pure: it maps columns of keys, classes and entities to lists of keys. It does not
//! depend on the source of the columns (a table, a file, a listing) or on how the samples are read
//! by their keys.

mod assign;
mod report;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::{Error, Result, mix_bits, stable_hash};

/// Key, class and entity of a sample to be split.
///
/// # Examples
/// ```
/// use datapipes::index::split::SplitSample;
/// let sample = SplitSample::new("scan-17.png").class(3).entity("patient 5");
/// assert_eq!(sample.class.as_deref(), Some("3"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitSample<K> {
    /// Key of the sample.
    pub key: K,
    /// Class of the sample, if it has one.
    pub class: Option<String>,
    /// Subject of the sample (a patient, a session, a camera), of which there may be several
    /// samples. Samples of one entity are never in different parts. A sample without an entity
    /// stands for itself.
    pub entity: Option<String>,
}

impl<K> SplitSample<K> {
    /// Makes a sample without class and entity.
    pub fn new(key: K) -> Self {
        SplitSample {
            key,
            class: None,
            entity: None,
        }
    }

    setters! {
        /// Sets the class.
        class(class: impl fmt::Display) => class = Some(class.to_string());

        /// Sets the entity.
        entity(entity: impl fmt::Display) => entity = Some(entity.to_string());
    }
}

/// Divides samples into parts.
///
/// - The same samples, settings and seed give the same parts, in whatever order the samples come.
///   This never changes. What follows holds without [`stable`](Splitter::stable).
/// - Samples of one [entity](SplitSample::entity) stay together. The fractions are then met as nearly as
///   whole entities allow: without [`balance_classes`](Splitter::balance_classes), the size of a
///   part is off by at most the size of the largest entity (but no part is empty).
/// - Without entities each part has its fraction of the samples, rounded, and its fraction of each
///   class if that was asked for.
/// - Entities are placed as by scikit-learn's `StratifiedGroupKFold`: from the largest on, each
///   goes to the part where it adds least to the sum of squared deviations (sizes, and class counts
///   if asked for). Then single entities are moved, and up to 500 also swapped, as long as that
///   helps.
///
/// # Examples
/// ```
/// use datapipes::index::split::{SplitSample, Splitter};
///
/// let scans = (0..1000).map(|n| SplitSample::new(n).class(n % 2).entity(format!("patient {}", n / 10)));
/// let splits = Splitter::fractions([("train", 0.8), ("val", 0.1), ("test", 0.1)])
///     .balance_classes()
///     .group_by("patient")
///     .seed(42)
///     .split(scans)?;
/// assert_eq!(splits.keys("train")?.len(), 800);
/// println!("{splits}"); // a table of what each part holds
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Splitter {
    parts: Vec<(String, f64)>,
    seed: u64,
    balanced: bool,
    stable: bool,
    mix: Mix,
    most_per_class: Option<usize>,
    class_column: String,
    entity_column: Option<String>,
}

/// Limit on the samples of each class.
#[derive(Clone, Debug, PartialEq)]
enum Mix {
    All,
    Equal,
    Shares(BTreeMap<String, f64>),
}

impl Splitter {
    /// Makes parts with names, each with a fraction of the samples. If the fractions add up to less
    /// than 1, the rest is left out.
    pub fn fractions<N: Into<String>>(parts: impl IntoIterator<Item = (N, f64)>) -> Self {
        Splitter {
            parts: parts
                .into_iter()
                .map(|(name, fraction)| (name.into(), fraction))
                .collect(),
            seed: 0,
            balanced: false,
            stable: false,
            mix: Mix::All,
            most_per_class: None,
            class_column: "label".to_owned(),
            entity_column: None,
        }
    }

    /// Makes equal parts for cross-validation, named `fold 0` and so on; see [`Splits::fold`].
    pub fn k_fold(folds: usize) -> Self {
        Splitter::fractions((0..folds).map(|fold| (format!("fold {fold}"), 1.0 / folds as f64)))
    }

    setters! {
        /// Sets the seed. Another seed gives another split. Defaults to 0.
        seed(seed: u64) => seed = seed;

        /// Gives every part the class mix of the whole, as nearly as entities allow.
        balance_classes() => balanced = true;

        /// Keeps each sample in its part when others are added or removed: for a data set that grows,
        /// where a sample of the training part must not be in the test part of the next split.
        ///
        /// The part follows from the seed, the fractions, and the entity, or of a sample without one
        /// its key. Sizes and class mixes are therefore right on average alone, to some per cent for
        /// some thousand samples; [`balance_classes`](Splitter::balance_classes) has no effect, and a
        /// part of few samples may be empty. Keys must be names that stay, such as paths or UUIDs, not
        /// positions. With a limit on classes, such as [`max_per_class`](Splitter::max_per_class), a sample
        /// may be left out or taken in when others come, but never goes to another part.
        ///
        /// # Examples
        /// ```
        /// use datapipes::index::split::{SplitSample, Splitter};
        /// let splitter = Splitter::fractions([("train", 0.8), ("val", 0.2)]).stable();
        /// let split = |files: u32| splitter.split((0..files).map(|n| SplitSample::new(format!("{n}.jpg"))));
        /// let (before, after) = (split(900)?, split(1000)?);
        /// assert!(before.keys("val")?.iter().all(|file| after.keys("val").unwrap().contains(file)));
        /// # Ok::<(), datapipes::Error>(())
        /// ```
        stable() => stable = true;
    }

    /// Returns true if [`stable`](Splitter::stable) was set.
    pub fn is_stable(&self) -> bool {
        self.stable
    }

    /// Leaves out samples until all classes have equally many, and
    /// [balances](Splitter::balance_classes). Samples without a class are left out.
    pub fn equal_classes(mut self) -> Self {
        self.mix = Mix::Equal;
        self.balanced = true;
        self
    }

    /// Leaves out as few samples as are needed for this mix of classes, given by their shares, and
    /// [balances](Splitter::balance_classes). Classes that are not named are left out.
    pub fn class_mix<C: fmt::Display>(self, shares: impl IntoIterator<Item = (C, f64)>) -> Self {
        let shares = shares
            .into_iter()
            .map(|(class, share)| (class.to_string(), share))
            .collect();
        Splitter {
            mix: Mix::Shares(shares),
            balanced: true,
            ..self
        }
    }

    setters! {
        /// Leaves out samples until no class has more than `samples`.
        max_per_class(samples: usize) => most_per_class = Some(samples);

        /// Sets the metadata column of the class. Defaults to `label`. Used by the reader of the
        /// columns, and in the record.
        class_column(column: impl Into<String>) => class_column = column.into();

        /// Sets the metadata column of the entity, such as `patient`. Used by the reader of the
        /// columns, and in the record. Samples that have an [entity](SplitSample::entity) are kept together
        /// in any case.
        group_by(column: impl Into<String>) => entity_column = Some(column.into());
    }

    /// Returns the metadata columns of class and entity.
    pub fn columns(&self) -> (&str, Option<&str>) {
        (&self.class_column, self.entity_column.as_deref())
    }

    /// Divides the samples.
    ///
    /// Takes time in proportion to n log n of the samples, and holds all of them.
    ///
    /// # Errors
    /// `Config` if there are no parts, if two have one name, if fractions are not above 0 or add up
    /// to more than 1, if two samples have one key, if there are fewer entities than parts, or if a
    /// share is given for a class without samples.
    pub fn split<K: Clone + Ord + fmt::Display>(
        &self,
        samples: impl IntoIterator<Item = SplitSample<K>>,
    ) -> Result<Splits<K>> {
        self.check()?;
        let mut samples: Vec<SplitSample<K>> = samples.into_iter().collect();
        samples.sort_by(|a, b| a.key.cmp(&b.key));
        if let Some(twice) = samples.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(config(format!("two samples have the key {}", twice[0].key)));
        }
        let (names, classes) = classes(&samples);
        let texts = samples.iter().map(|sample| sample.key.to_string());
        let texts: Vec<String> = texts.collect();
        let salt = mix_bits(self.seed ^ 0x7370_6c69_7473);
        let rank = |text: &str| mix_bits(salt ^ mix_bits(stable_hash(text.as_bytes())));

        let kept = kept(self.room(&names, &classes)?, &classes, |at| {
            rank(&texts[at])
        });
        let units = units(&samples, &kept, &rank);
        if units.len() < self.parts.len() {
            let what = format!(
                "{} parts of {} that must not be divided",
                self.parts.len(),
                units.len()
            );
            return Err(config(format!(
                "{what}: samples, or entities with all of theirs"
            )));
        }
        let fractions: Vec<f64> = self.parts.iter().map(|(_, fraction)| *fraction).collect();
        let part_of = if self.stable {
            let part_of = |unit: &Vec<usize>| {
                let first = unit[0];
                let rank = rank(samples[first].entity.as_ref().unwrap_or(&texts[first]));
                // Samples that a limit on their class has kept are those of low ranks.
                part_at(mix_bits(rank), &fractions)
            };
            units.iter().map(part_of).collect()
        } else {
            assign::assign(&units, &classes, names.len(), &fractions, self.balanced)
        };

        let part = |(name, fraction): &(String, f64)| SplitPart {
            name: name.clone(),
            fraction: *fraction,
            keys: Vec::new(),
            entities: 0,
            classes: vec![0; names.len()],
        };
        let mut parts: Vec<SplitPart<K>> = self.parts.iter().map(part).collect();
        let mut chosen = vec![None; samples.len()];
        for (unit, part) in units.iter().zip(part_of) {
            let Some(part) = part else { continue };
            parts[part].entities += 1;
            unit.iter().for_each(|&at| chosen[at] = Some(part));
        }
        let mut left_out = Vec::new();
        for (at, sample) in samples.iter().enumerate() {
            match chosen[at] {
                Some(part) => {
                    parts[part].keys.push(sample.key.clone());
                    parts[part].classes[classes[at]] += 1;
                }
                None => left_out.push(sample.key.clone()),
            }
        }
        let classes = names
            .into_iter()
            .map(|class| class.0.map(|class| class.1))
            .collect();
        Ok(Splits {
            parts,
            left_out,
            considered: kept.len(),
            seed: self.seed,
            classes,
            class_column: self.class_column.clone(),
            entity_column: self.entity_column.clone(),
            digest: digest(&texts),
        })
    }

    fn check(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for (name, fraction) in &self.parts {
            if !names.insert(name) {
                return Err(config(format!("two parts are called {name:?}")));
            }
            if !(fraction.is_finite() && *fraction > 0.0) {
                return Err(config(format!(
                    "the part {name:?} has a fraction of {fraction}"
                )));
            }
        }
        let sum: f64 = self.parts.iter().map(|(_, fraction)| fraction).sum();
        if self.parts.is_empty() || sum > 1.0 + 1e-9 {
            let what = if self.parts.is_empty() {
                "no parts".into()
            } else {
                format!("fractions of {sum} in all")
            };
            return Err(config(what));
        }
        Ok(())
    }

    /// Returns the number of samples of each class that may be kept.
    fn room(&self, names: &[Class], classes: &[usize]) -> Result<Vec<usize>> {
        let mut counts = vec![0usize; names.len()];
        classes.iter().for_each(|&class| counts[class] += 1);
        let cap = self.most_per_class.unwrap_or(usize::MAX);
        counts
            .iter_mut()
            .for_each(|count| *count = (*count).min(cap));
        let shares: Vec<f64> = match &self.mix {
            Mix::All => return Ok(counts),
            Mix::Equal => names
                .iter()
                .map(|class| f64::from(u8::from(class.0.is_some())))
                .collect(),
            Mix::Shares(shares) => {
                if let Some((class, share)) = shares
                    .iter()
                    .find(|(_, share)| !(share.is_finite() && **share >= 0.0))
                {
                    return Err(config(format!(
                        "the class {class:?} has a share of {share}"
                    )));
                }
                fn named(class: &Class) -> Option<&str> {
                    class.0.as_ref().map(|class| class.1.as_str())
                }
                let lacks = |class: &str| !names.iter().any(|name| named(name) == Some(class));
                if let Some((class, _)) = shares
                    .iter()
                    .find(|(class, share)| **share > 0.0 && lacks(class))
                {
                    return Err(config(format!("no sample is of class {class:?}")));
                }
                names
                    .iter()
                    .map(|class| {
                        named(class)
                            .and_then(|class| shares.get(class))
                            .copied()
                            .unwrap_or(0.0)
                    })
                    .collect()
            }
        };
        let scale = |(count, share): (&usize, &f64)| (*share > 0.0).then(|| *count as f64 / share);
        let Some(scale) = counts
            .iter()
            .zip(&shares)
            .filter_map(scale)
            .min_by(f64::total_cmp)
        else {
            return Err(config("no sample is of a class that is kept".to_owned()));
        };
        // A value that is a whole number but for rounding errors counts as whole.
        Ok(shares
            .iter()
            .map(|share| (share * scale + 1e-9).floor() as usize)
            .collect())
    }
}

/// Returns the classes in order, and the number of the class of each sample.
fn classes<K>(samples: &[SplitSample<K>]) -> (Vec<Class>, Vec<usize>) {
    let of = |sample: &SplitSample<K>| Class::of(sample.class.as_deref());
    let names: BTreeSet<Class> = samples.iter().map(of).collect();
    let names: Vec<Class> = names.into_iter().collect();
    let number = |sample: &SplitSample<K>| names.binary_search(&of(sample));
    let numbers = samples
        .iter()
        .map(|sample| number(sample).expect("it is one of them"));
    let numbers = numbers.collect();
    (names, numbers)
}

/// Returns the samples that are kept, by a hash of the key: few change when few samples come or go.
/// `room` is how many of each class may be.
fn kept(mut room: Vec<usize>, classes: &[usize], rank: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..classes.len()).collect();
    order.sort_by_cached_key(|&at| (rank(at), at));
    order.retain(|&at| {
        let room = &mut room[classes[at]];
        let has_room = *room > 0;
        *room -= usize::from(has_room);
        has_room
    });
    order
}

/// Returns the part that holds a number of 64 bits, if the parts follow each other and are as large as
/// their fractions.
fn part_at(number: u64, fractions: &[f64]) -> Option<usize> {
    let place = number as f64 / 2f64.powi(64);
    let mut end = 0.0;
    fractions.iter().position(|fraction| {
        end += fraction;
        // Fractions whose sum is 1 but for rounding errors leave out nothing.
        place < end || (end > 1.0 - 1e-9)
    })
}

/// Returns the units that are never divided: the kept samples of an entity, or one sample without
/// an entity. Their order depends on seed and names alone.
fn units<K>(
    samples: &[SplitSample<K>],
    kept: &[usize],
    rank: &dyn Fn(&str) -> u64,
) -> Vec<Vec<usize>> {
    let mut of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut single = Vec::new();
    for &at in kept {
        match &samples[at].entity {
            Some(entity) => of.entry(entity).or_default().push(at),
            None => single.push(vec![at]),
        }
    }
    let mut together: Vec<(&str, Vec<usize>)> = of.into_iter().collect();
    together.sort_by_cached_key(|(entity, _)| (rank(entity), *entity));
    // Single samples are in the order of their own hashes already.
    together
        .into_iter()
        .map(|(_, unit)| unit)
        .chain(single)
        .collect()
}

/// Class names in order: numbers by value, then other names, then samples without a class.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class(Option<(Option<i64>, String)>);

impl Class {
    fn of(class: Option<&str>) -> Class {
        Class(class.map(|class| (class.parse().ok(), class.to_owned())))
    }
    fn order(&self) -> (bool, bool, Option<i64>, &str) {
        match &self.0 {
            Some((number, name)) => (false, number.is_none(), *number, name),
            None => (true, true, None, ""),
        }
    }
}

impl PartialOrd for Class {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Class {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

fn config(what: String) -> Error {
    Error::config(format!("split: {what}"))
}

/// Returns 128 bits of a data set's keys in order. It tells data sets apart and is not meant to
/// resist an attacker. It never changes.
fn digest(texts: &[String]) -> String {
    let mut lanes = [0x6b65_7973u64, 0x6469_6765u64];
    for text in texts {
        let hash = stable_hash(text.as_bytes());
        lanes[0] = mix_bits(lanes[0] ^ hash);
        lanes[1] = mix_bits(lanes[1].rotate_left(17) ^ mix_bits(hash ^ text.len() as u64));
    }
    format!("{:016x}{:016x}", lanes[0], lanes[1])
}

/// The parts of a data set. Displayed, it is a table of the contents of each part.
#[derive(Clone, Debug, PartialEq)]
pub struct Splits<K> {
    parts: Vec<SplitPart<K>>,
    left_out: Vec<K>,
    /// Number of samples to be divided, without those left out for the sake of classes.
    considered: usize,
    seed: u64,
    classes: Vec<Option<String>>,
    class_column: String,
    entity_column: Option<String>,
    digest: String,
}

/// One part of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitPart<K> {
    /// Name of the part.
    pub name: String,
    /// Fraction of the samples that was asked for.
    pub fraction: f64,
    /// Keys of the samples, in their order.
    pub keys: Vec<K>,
    /// Number of entities; a sample without an entity counts by itself.
    pub entities: usize,
    /// Number of samples of each class, in the order of [`Splits::classes`].
    pub classes: Vec<usize>,
}

impl<K> SplitPart<K> {
    /// Returns the part with other keys.
    fn with_keys<L>(&self, keys: Vec<L>) -> SplitPart<L> {
        SplitPart {
            name: self.name.clone(),
            fraction: self.fraction,
            keys,
            entities: self.entities,
            classes: self.classes.clone(),
        }
    }
}

impl<K> Splits<K> {
    /// Returns the keys of all parts, and those that were left out.
    fn all_keys(&self) -> impl Iterator<Item = &K> {
        let of_parts = self.parts.iter().flat_map(|part| &part.keys);
        of_parts.chain(&self.left_out)
    }

    /// Returns the parts, in the order in which they were asked for.
    pub fn parts(&self) -> &[SplitPart<K>] {
        &self.parts
    }

    /// Returns the keys of a part, in their order: shuffle them.
    ///
    /// # Errors
    /// `NotFound`, with the names of the parts.
    pub fn keys(&self, part: &str) -> Result<&[K]> {
        self.parts
            .iter()
            .find(|found| found.name == part)
            .map(|part| &*part.keys)
            .ok_or_else(|| {
                let names: Vec<_> = self.parts.iter().map(|part| &*part.name).collect();
                let what = format!("no part {part:?} of the splits, but {}", names.join(", "));
                Error::not_found(what)
            })
    }

    /// Returns the keys to train and to validate with, if part `fold` is held back.
    ///
    /// # Errors
    /// `NotFound` if there is no such part.
    pub fn fold(&self, fold: usize) -> Result<(Vec<K>, &[K])>
    where
        K: Clone + Ord,
    {
        let Some(held_back) = self.parts.get(fold) else {
            let what = format!("no fold {fold} of {}", self.parts.len());
            return Err(Error::not_found(what));
        };
        let others = self.parts.iter().enumerate().filter(|(at, _)| *at != fold);
        let mut train: Vec<K> = others
            .flat_map(|(_, part)| part.keys.iter().cloned())
            .collect();
        train.sort();
        Ok((train, &held_back.keys))
    }

    /// Returns the keys that are in no part, because the fractions add up to less than 1 or samples
    /// of a class were left out.
    pub fn left_out(&self) -> &[K] {
        &self.left_out
    }

    /// Returns the classes, numbers first; `None` stands for samples without a class.
    pub fn classes(&self) -> &[Option<String>] {
        &self.classes
    }

    /// Returns the metadata columns of class and entity.
    pub fn columns(&self) -> (&str, Option<&str>) {
        (&self.class_column, self.entity_column.as_deref())
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns warnings: classes without a sample in some part.
    pub fn warnings(&self) -> Vec<String> {
        let whole: Vec<usize> = (0..self.classes.len())
            .map(|class| self.parts.iter().map(|part| part.classes[class]).sum())
            .collect();
        let mut warnings = Vec::new();
        for part in &self.parts {
            let missing: Vec<&str> = (0..whole.len())
                .filter(|&class| whole[class] > 0 && part.classes[class] == 0)
                .map(|class| self.classes[class].as_deref().unwrap_or("none"))
                .collect();
            if !missing.is_empty() {
                let more = missing.len().saturating_sub(8);
                let named = missing[..missing.len() - more].join(", ");
                let more = if more > 0 {
                    format!(" and {more} more")
                } else {
                    String::new()
                };
                warnings.push(format!(
                    "{} has no sample of class {named}{more}",
                    part.name
                ));
            }
        }
        warnings
    }

    /// Checks that the split was made for this data set.
    ///
    /// # Errors
    /// `Changed`, with the number of samples that are gone and of those that are new.
    pub fn check_keys<'a>(&self, keys: impl IntoIterator<Item = &'a K>) -> Result<()>
    where
        K: Ord + fmt::Display + 'a,
    {
        let now: BTreeSet<&K> = keys.into_iter().collect();
        let texts: Vec<String> = now.iter().map(|key| key.to_string()).collect();
        if digest(&texts) == self.digest {
            return Ok(());
        }
        let then: BTreeSet<&K> = self.all_keys().collect();
        let (gone, new) = (then.difference(&now).count(), now.difference(&then).count());
        Err(Error::changed(format!(
            "the splits were made for another data set: {gone} of its samples are gone, {new} are new"
        )))
    }

    /// Returns the split as plain data, with keys as text, to be written to a file: `datapipes-io`
    /// does that.
    pub fn to_record(&self) -> Record
    where
        K: fmt::Display,
    {
        let words = |keys: &[K]| keys.iter().map(K::to_string).collect();
        let part = |part: &SplitPart<K>| part.with_keys(words(&part.keys));
        Record {
            parts: self.parts.iter().map(part).collect(),
            left_out: words(&self.left_out),
            considered: self.considered,
            seed: self.seed,
            classes: self.classes.clone(),
            class_column: self.class_column.clone(),
            entity_column: self.entity_column.clone(),
            digest: self.digest.clone(),
        }
    }

    /// Reads a split from plain data.
    ///
    /// # Errors
    /// `Corrupt` if the record contradicts itself, or if a key cannot be parsed.
    pub fn from_record(record: Record) -> Result<Self>
    where
        K: Ord + fmt::Display + FromStr,
    {
        let parse = |keys: Vec<String>| -> Result<Vec<K>> {
            let key = |key: String| {
                key.parse()
                    .map_err(|_| Error::corrupt(format!("{key:?} is no key")))
            };
            keys.into_iter().map(key).collect()
        };
        let mut parts = Vec::new();
        for mut part in record.parts {
            let mut counts = part.classes.iter();
            let counted = counts.try_fold(0usize, |sum, count| sum.checked_add(*count));
            if part.classes.len() != record.classes.len() || counted != Some(part.keys.len()) {
                let what = format!("part {:?} has other counts than keys", part.name);
                return Err(Error::corrupt(what));
            }
            let keys = parse(std::mem::take(&mut part.keys))?;
            parts.push(part.with_keys(keys));
        }
        let splits = Splits {
            parts,
            left_out: parse(record.left_out)?,
            considered: record.considered,
            seed: record.seed,
            classes: record.classes,
            class_column: record.class_column,
            entity_column: record.entity_column,
            digest: record.digest,
        };
        let distinct: BTreeSet<&K> = splits.all_keys().collect();
        if distinct.len() != splits.all_keys().count() {
            return Err(Error::corrupt("a key is there twice"));
        }
        let texts: Vec<String> = distinct.into_iter().map(K::to_string).collect();
        if digest(&texts) != splits.digest {
            return Err(Error::corrupt("the keys are not those of the digest"));
        }
        Ok(splits)
    }
}

/// [`Splits`] as plain data, with keys as text.
#[expect(
    missing_docs,
    reason = "they are the fields of `Splits`, documented at its methods"
)]
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub parts: Vec<SplitPart<String>>,
    pub left_out: Vec<String>,
    pub considered: usize,
    pub seed: u64,
    pub classes: Vec<Option<String>>,
    pub class_column: String,
    pub entity_column: Option<String>,
    pub digest: String,
}
