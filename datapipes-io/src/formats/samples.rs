//! Groups files into samples, by WebDataset's rules.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Children, Context, Error, Hints, Item, Items, Origin, Pipe, Result, wire_struct};
use futures::StreamExt;
use serde::de::DeserializeOwned;

use super::Codec;
use super::missing::missing;
use crate::File;

/// A group of files that belong together: a key, and the content of each file by suffix.
///
/// ```
/// use datapipes_io::Sample;
/// let mut sample = Sample::new("train/17").with("jpg", vec![0xff, 0xd8]).with("cls", "3\n");
/// assert_eq!(sample.parse::<u32>("cls")?, 3);
/// assert_eq!(sample.take("jpg")?.len(), 2);
/// let error = sample.get("jpg").unwrap_err();
/// assert_eq!(error.to_string(), r#"not found: sample "train/17" has no field "jpg", but "cls""#);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Sample {
    key: Arc<str>,
    fields: Vec<(Arc<str>, Bytes)>,
}

impl Sample {
    /// Returns a sample without fields.
    pub fn new(key: impl Into<Arc<str>>) -> Self {
        Sample {
            key: key.into(),
            fields: Vec::new(),
        }
    }

    /// Adds a field, or replaces the content of an existing field.
    pub fn with(mut self, field: impl Into<Arc<str>>, data: impl Into<Bytes>) -> Self {
        let (field, data) = (field.into(), data.into());
        match self.fields.iter_mut().find(|(name, _)| *name == field) {
            Some((_, old)) => *old = data,
            None => self.fields.push((field, data)),
        }
        self
    }

    /// Returns the common part of the file names: folder and name up to the first dot.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the fields in the order of the archive.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = (&str, &Bytes)> {
        self.fields.iter().map(|(name, data)| (&**name, data))
    }

    /// Returns true if the sample has the field.
    pub fn has(&self, field: &str) -> bool {
        self.fields.iter().any(|(name, _)| **name == *field)
    }

    /// Returns the content of a field.
    ///
    /// # Errors
    /// `NotFound`, naming the existing fields.
    pub fn get(&self, field: &str) -> Result<&Bytes> {
        self.fields
            .iter()
            .find(|(name, _)| **name == *field)
            .map(|(_, data)| data)
            .ok_or_else(|| self.lacks(field))
    }

    /// Removes a field and returns its content.
    ///
    /// # Errors
    /// `NotFound`, naming the existing fields.
    pub fn take(&mut self, field: &str) -> Result<Bytes> {
        match self.fields.iter().position(|(name, _)| **name == *field) {
            Some(place) => Ok(self.fields.remove(place).1),
            None => Err(self.lacks(field)),
        }
    }

    /// Returns a field as text, without a byte order mark.
    ///
    /// # Errors
    /// The error of [`get`](Sample::get); `Corrupt` if the field is not UTF-8, with the position.
    pub fn text(&self, field: &str) -> Result<&str> {
        let text =
            std::str::from_utf8(self.get(field)?).map_err(|error| self.wrong(field, error))?;
        Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
    }

    /// Parses a field as a value that has a text form, such as the number of a class. Surrounding
    /// white space is ignored.
    ///
    /// # Errors
    /// The errors of [`text`](Sample::text); `Corrupt` if the text cannot be parsed.
    pub fn parse<T>(&self, field: &str) -> Result<T>
    where
        T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        self.text(field)?
            .trim()
            .parse()
            .map_err(|error: T::Err| self.wrong(field, error))
    }

    /// Reads a field as JSON, into a type that implements `Deserialize`.
    ///
    /// # Errors
    /// The errors of [`text`](Sample::text); `Corrupt` if it is no JSON of this type, with line and column.
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::Sample;
    /// #[derive(serde::Deserialize)]
    /// struct Size { width: u32, height: u32 }
    /// let sample = Sample::new("17").with("json", r#"{"width": 4, "height": 3}"#);
    /// let size: Size = sample.json("json")?;
    /// assert_eq!((size.width, size.height), (4, 3));
    /// let error = sample.json::<Vec<u32>>("json").unwrap_err().to_string();
    /// assert!(error.starts_with(r#"corrupt: field "json" of sample "17": invalid type: map"#), "{error}");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn json<T: DeserializeOwned>(&self, field: &str) -> Result<T> {
        serde_json::from_str(self.text(field)?).map_err(|error| self.wrong(field, error))
    }

    /// Returns the size in bytes.
    pub(super) fn weight(&self) -> usize {
        let fields = self
            .fields
            .iter()
            .map(|(_, data)| data.len() + size_of::<(Arc<str>, Bytes)>());
        size_of::<Sample>() + self.key.len() + fields.sum::<usize>()
    }

    fn wrong(&self, field: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::corrupt(format!("field {field:?} of sample {:?}", self.key)).with_source(source)
    }

    fn lacks(&self, field: &str) -> Error {
        lacks(&self.key, field, self.fields().map(|(name, _)| name))
    }

    pub(super) fn into_parts(self) -> (Arc<str>, Vec<(Arc<str>, Bytes)>) {
        (self.key, self.fields)
    }
}

/// Returns the error of a missing field.
pub(super) fn lacks<'a>(
    key: &str,
    field: &str,
    there: impl ExactSizeIterator<Item = &'a str>,
) -> Error {
    missing(format_args!("sample {key:?}"), "field", field, there)
}

fn names(fields: &[(Arc<str>, Bytes)]) -> String {
    fields
        .iter()
        .map(|(name, _)| format!("{name:?}"))
        .collect::<Vec<_>>()
        .join(", ")
}

wire_struct!(Sample { key, fields });

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sample({:?}", self.key)?;
        self.fields
            .iter()
            .try_for_each(|(name, data)| write!(f, ", {name}: {} bytes", data.len()))?;
        f.write_str(")")
    }
}

/// Groups consecutive files into samples; see [`FileGraphExt::samples`](crate::FileGraphExt::samples).
///
/// The rules are WebDataset's, so that shards written for it give the same samples here:
///
/// - The key is the folder and the name up to the first dot of its last part, the field is the rest
///   after that dot: `a/b.seg.png` is field `seg.png` of sample `a/b`. Fields are converted to
///   lower case, keys are not. A file without a dot is left out, and so is a file whose name begins
///   with a dot unless it is in a folder, which then is its key.
/// - Names that begin with a part such as `__meta__` are left out.
/// - Only neighbors belong together: shuffle, shard and mix after this step, or archives before
///   they are taken apart; a loader does not build otherwise. A key that comes again later is
///   another sample. A sample never spans two archives, or two rounds of a
///   [`repeat`](datapipes::Graph::repeat). If archives have no names (made in memory) and members are
///   left out before this step, members of equal key and number of two archives may be joined.
/// - Two files for one field are an error, as is a field named `__key__` or `__url__`; the sample
///   keeps the first file. If the second is of another source (after a
///   [`concat`](datapipes::Graph::concat)), it begins another sample.
/// - A sample with a field `__bad__` that is not empty is left out.
///
/// One rule is stricter: a sample is also left out if one of its members could not be read, because
/// the file is gone, the member was refused, or the archive ends there with an error. No sample
/// therefore lacks a failed member. Errors are passed on in their places, and contain the key as
/// the name of their [item](Error::item). If an error names no file, as an error of a user's pipe
/// may, the samples before and after it are left out. All files and samples that are left out are
/// counted as dropped.
///
/// A sample has the [origin](datapipes::Origin) of its first member, named by the key.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Samples {
    only: Option<Arc<[String]>>,
    keep_case: bool,
}

impl Samples {
    /// Groups files into samples with all fields, in lower case.
    pub fn new() -> Self {
        Samples::default()
    }

    /// Keeps only these fields. A sample that has none of them is still yielded, without fields.
    pub fn only<S: Into<String>>(mut self, fields: impl IntoIterator<Item = S>) -> Self {
        self.only = Some(fields.into_iter().map(Into::into).collect());
        self
    }

    /// Preserves the case of field names.
    pub fn keep_case(mut self) -> Self {
        self.keep_case = true;
        self
    }

    /// Returns the key and the field of a file, or `None` if the file is left out.
    pub(super) fn place<'a>(&self, name: &'a str) -> Option<(&'a str, Cow<'a, str>)> {
        let (key, suffix) = if is_meta(name) { None } else { split(name) }?;
        Some((
            key,
            if self.keep_case {
                Cow::Borrowed(suffix)
            } else {
                lower(suffix)
            },
        ))
    }

    /// Returns true if a field is wanted.
    pub(super) fn wants(&self, field: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| only.iter().any(|name| *name == *field))
    }

    /// Returns true if WebDataset uses this name for something else.
    pub(super) fn is_reserved(field: &str) -> bool {
        matches!(field, "__key__" | "__url__")
    }
}

impl Pipe<File> for Samples {
    type Out = Sample;

    fn apply(&self, mut input: Items<File>, cx: &Context) -> Items<Sample> {
        let (mut grouper, cx) = (Grouper::new(self.clone(), cx.clone()), cx.clone());
        Items::generate(async move |out| {
            let mut ready = Vec::new();
            loop {
                if let Some(files) = grouper.begun() {
                    out.snapshot_with(&cx, |held| {
                        let next = cx.position(0);
                        held.hold(next.saturating_sub(files)..next);
                    });
                }
                let Some(item) = input.next().await else {
                    break;
                };
                match item {
                    Ok(file) => grouper.add(file, &mut ready),
                    Err(error) => grouper.pass(error, &mut ready),
                }
                for item in ready.drain(..) {
                    out.emit(item).await;
                }
            }
            grouper.close(&mut ready);
            for item in ready.drain(..) {
                out.emit(item).await;
            }
        })
    }
    fn hints(&self) -> Hints {
        let mut settings = Vec::from_iter(
            self.only
                .as_ref()
                .map(|only| format!("only {}", only.join(", "))),
        );
        settings.extend(self.keep_case.then(|| "keep_case".to_owned()));
        Hints::default()
            .is_shardable_by_parent(true)
            .is_resumable(true)
            .buffered(1)
            .settings(settings.join(", "))
    }
    fn weigh(&self, sample: &Sample) -> Option<usize> {
        Some(sample.weight())
    }
}

/// Maximum number of field names that are remembered, so that samples share them.
const REMEMBERED: usize = 32;

struct Grouper {
    settings: Samples,
    cx: Context,
    /// The last file.
    last: Option<Origin>,
    /// The factory of origins below its archive.
    children: Option<Children>,
    open: Option<Open>,
    /// A file that failed and whose sample is not known; it may belong to the next sample.
    lost: Option<Lost>,
    suffixes: Vec<Arc<str>>,
}

/// The sample that is being assembled.
struct Open {
    sample: Sample,
    origin: Origin,
    /// Key by the names of origins, which errors contain: an upstream step may have renamed its
    /// files.
    known: Option<Arc<str>>,
    /// True if one of its members failed.
    broken: bool,
    /// True if only errors of it were seen.
    unseen: bool,
    /// Number of input items taken since it began.
    taken: u64,
    /// True if an error of it was passed on.
    reported: bool,
}

/// A file that failed, with its origin if it is known.
struct Lost(Option<Origin>);

impl Lost {
    /// Returns true if the sample with this file and key may lack the lost one: nothing rules it out.
    fn may_be_of(&self, file: &Origin, known: Option<&str>) -> bool {
        let Lost(Some(item)) = self else { return true };
        are_siblings(item, file) && (item.name().is_none() || known.is_none())
    }
}

/// Returns true if two files that follow each other are members of one archive, or plain files of
/// one round of a repeat. In a later round a plain file is a child of the file of the first round,
/// and has the number of the round. A member of another archive with the same number looks the same
/// if its archive has no name; it is told apart once a field comes again.
fn are_siblings(a: &Origin, b: &Origin) -> bool {
    match (a.parent(), b.parent()) {
        (None, None) => true,
        (Some(above), Some(other)) => {
            let is_round = a.index() > 0 && (a.name().is_none() || above.name().is_none());
            above == other || is_round && a.index() == b.index() && are_siblings(above, other)
        }
        _ => false,
    }
}

type Ready = Vec<Result<Item<Sample>>>;

impl Grouper {
    fn new(settings: Samples, cx: Context) -> Self {
        Grouper {
            settings,
            cx,
            last: None,
            children: None,
            open: None,
            lost: None,
            suffixes: Vec::new(),
        }
    }

    /// Returns the number of input items to take again for the current sample, if they have
    /// produced no output yet.
    fn begun(&self) -> Option<u64> {
        match &self.open {
            _ if self.lost.is_some() => None,
            None => Some(0),
            Some(open) => (!open.reported).then_some(open.taken),
        }
    }

    fn add(&mut self, item: Item<File>, ready: &mut Ready) {
        self.group(item, ready);
        if let Some(open) = &mut self.open {
            open.taken += 1;
        }
    }

    fn group(&mut self, item: Item<File>, ready: &mut Ready) {
        let (File { name, data }, origin) = item.into_parts();
        self.enter(&origin, ready);
        let Some((key, suffix)) = self.settings.place(&name) else {
            return self.cx.count_dropped(1);
        };
        let known = match origin.name() {
            Some(known) if *known == *name => Some(key),
            known => known.and_then(|known| self.key(known)),
        };
        let suffix = self.remember(&suffix);
        let wanted = self.settings.wants(&suffix);
        // A field comes again in another archive, or in another data set of a `concat`.
        let is_elsewhere =
            |of: &Origin| of.source() != origin.source() || of.parent() != origin.parent();
        // An error may have come first, which contains only the key by the names of origins.
        let is_same = |open: &Open| match open.unseen {
            true => open.known.as_deref() == known.or(Some(key)),
            false => {
                *open.sample.key == *key
                    && !(open.sample.has(&suffix) && is_elsewhere(&open.origin))
            }
        };
        let open = self.open(is_same, key, known, &origin, ready);
        if std::mem::take(&mut open.unseen) && *open.sample.key != *key {
            open.sample.key = key.into();
        }
        let fields = &mut open.sample.fields;
        if Samples::is_reserved(&suffix) || fields.iter().any(|(name, _)| *name == suffix) {
            let there = match &fields[..] {
                [] => "no field yet".to_owned(),
                fields => format!("{} already", names(fields)),
            };
            let message =
                format!("{name:?} is a second {suffix:?} of its sample, which has {there}");
            ready.push(Err(Error::corrupt(message).of(&origin)));
            self.open.iter_mut().for_each(|open| open.reported = true);
        } else if wanted {
            fields.push((suffix, data));
        } else {
            self.cx.count_dropped(1);
        }
    }

    /// Passes an error on, and drops the sample that lacks the failed file.
    fn pass(&mut self, error: Error, ready: &mut Ready) {
        let here = self.last.as_ref().and_then(Origin::parent);
        match error.item() {
            Some(archive) if Some(archive) == here => {
                if let Some(open) = &mut self.open {
                    open.broken = true;
                }
                self.close(ready);
            }
            Some(file) => {
                self.enter(file, ready);
                match file.name().and_then(|name| self.key(name)) {
                    Some(key) => {
                        let is_same =
                            |open: &Open| **open.known.as_ref().unwrap_or(&open.sample.key) == *key;
                        self.open(is_same, key, Some(key), file, ready).broken = true;
                    }
                    None => self.lose(Some(file.clone())),
                }
            }
            None => self.lose(None),
        }
        ready.push(Err(error));
        self.open.iter_mut().for_each(|open| open.reported = true);
    }

    /// Handles a failure without a key: the current sample and the next one may lack the file, and
    /// are dropped.
    fn lose(&mut self, file: Option<Origin>) {
        let lost = Lost(file);
        if let Some(open) = &mut self.open {
            open.broken |= lost.may_be_of(&open.origin, open.known.as_deref());
        }
        match self.lost {
            Some(Lost(None)) => {}
            _ => self.lost = Some(lost),
        }
    }

    /// Returns the key in the name of an origin.
    fn key<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.settings.place(name).map(|(key, _)| key)
    }

    /// Ends the sample of another archive or round.
    fn enter(&mut self, file: &Origin, ready: &mut Ready) {
        let last = self.last.replace(file.clone());
        if last.as_ref().and_then(Origin::parent) != file.parent() {
            if !last.is_some_and(|last| are_siblings(&last, file)) {
                self.close(ready);
            }
            self.children = file.parent().map(Origin::children);
        }
    }

    /// Returns the current sample if it has this key, else a new one.
    fn open(
        &mut self,
        is_same: impl FnOnce(&Open) -> bool,
        key: &str,
        known: Option<&str>,
        origin: &Origin,
        ready: &mut Ready,
    ) -> &mut Open {
        let lost = self.lost.take();
        if !self.open.as_ref().is_some_and(is_same) {
            self.close(ready);
            let broken = lost.is_some_and(|lost| lost.may_be_of(origin, known));
            let origin = match &self.children {
                Some(children) => children.at(origin.index()),
                None => origin.clone(),
            };
            let key: Arc<str> = key.into();
            let known = known.map(|known| {
                if *known == *key {
                    key.clone()
                } else {
                    known.into()
                }
            });
            let sample = Sample {
                key,
                fields: Vec::with_capacity(2),
            };
            self.open = Some(Open {
                sample,
                origin,
                known,
                broken,
                unseen: true,
                taken: 0,
                reported: broken,
            });
        }
        self.open.as_mut().expect("opened above")
    }

    /// Ends the current sample.
    fn close(&mut self, ready: &mut Ready) {
        let Some(Open {
            sample,
            origin,
            broken,
            unseen,
            ..
        }) = self.open.take()
        else {
            return;
        };
        let bad = sample
            .fields
            .iter()
            .any(|(name, data)| &**name == "__bad__" && !data.is_empty());
        if unseen && origin.name().is_some_and(is_archive) {
            // The number of lost samples is unknown.
        } else if broken || bad {
            self.cx.count_dropped(1);
        } else {
            let origin = origin.named(sample.key.clone());
            ready.push(Ok(Item::new(sample, origin)));
        }
    }

    fn remember(&mut self, suffix: &str) -> Arc<str> {
        if let Some(known) = self.suffixes.iter().find(|known| ***known == *suffix) {
            return known.clone();
        }
        let suffix: Arc<str> = suffix.into();
        if self.suffixes.len() < REMEMBERED {
            self.suffixes.push(suffix.clone());
        }
        suffix
    }
}

fn lower(text: &str) -> Cow<'_, str> {
    match text
        .bytes()
        .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii())
    {
        true => text.to_lowercase().into(),
        false => text.into(),
    }
}

/// Returns true if the name of a failed file, of which nothing else is known, is that of an
/// archive.
fn is_archive(name: &str) -> bool {
    let plain = Codec::of_name(name).map(|(_, plain)| plain);
    let ending = plain
        .as_deref()
        .unwrap_or(name)
        .rsplit_once('.')
        .map(|(_, ending)| ending);
    ending.is_some_and(|ending| {
        ending.eq_ignore_ascii_case("tar") || ending.eq_ignore_ascii_case("zip")
    })
}

/// Returns true if WebDataset leaves a name out: at the top `__name__`, and any name that matches
/// `__[^/]*__($|/)` at its start. As in Python, `$` is also true before a line feed at the end.
fn is_meta(name: &str) -> bool {
    if !name.starts_with("__") {
        return false;
    }
    match name.split_once('/') {
        Some((first, _)) => first.len() >= 4 && first.ends_with("__"),
        None => {
            let line = name.strip_suffix('\n').unwrap_or(name);
            name.ends_with("__") || line.len() >= 4 && line.ends_with("__")
        }
    }
}

/// Splits a name into key and suffix, by `^((?:.*/|)[^.]+)[.]([^/]*)$`. As in Python, `.` is not a
/// line feed.
fn split(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    let key = &name[..dot];
    // `.*/` matches up to a slash of the first line, and leaves at least one character to `[^.]+`.
    let line = key.split('\n').next().unwrap_or(key).as_bytes();
    let line = &line[..line.len().min(dot.saturating_sub(1))];
    let rest = line
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |slash| slash + 1);
    let rest = &key.as_bytes()[rest..];
    (!rest.is_empty() && !rest.contains(&b'.')).then(|| (key, &name[dot + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_95_names_are_split_as_in_the_reference_table() {
        assert_eq!(split("a/b.seg.png"), Some(("a/b", "seg.png")));
        assert_eq!(split("./x.jpg"), Some(("./x", "jpg")));
        assert_eq!(split("a.b/c"), None);
        assert_eq!(split("a/.b.jpg"), Some(("a/", "b.jpg")));
        assert_eq!(split(".b.jpg"), None);
        assert_eq!(split("a/b."), Some(("a/b", "")));
        assert_eq!(split("x.__key__"), Some(("x", "__key__")));
        assert_eq!(split(""), None);
    }

    #[test]
    fn row_95_names_are_skipped_as_in_the_reference_table() {
        assert!(!is_meta("__x__.json"));
        assert!(is_meta("__x__"));
        assert!(is_meta("__x__/y.json"));
        assert!(!is_meta("d/__x__/y.json"));
    }

    /// The table is made by `tests/data/make.py` with the regular expressions themselves.
    #[test]
    fn row_95_names_are_read_as_by_the_reference_expressions() {
        let table = include_str!("../../tests/data/names.tsv");
        assert!(table.lines().count() > 200);
        for line in table.lines() {
            let fields: Vec<String> = line
                .split('\t')
                .map(|field| field.replace("\\n", "\n"))
                .collect();
            let [name, meta, key, suffix] = &fields[..] else {
                panic!("{line:?}")
            };
            assert_eq!(is_meta(name), meta == "skip", "{name:?}");
            let expected = (key != "-").then_some((&**key, &**suffix));
            assert_eq!(split(name), expected, "{name:?}");
        }
    }
}
