//! Members and samples of a tar archive, by index.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, ErrorKind, MapPipe, Result};

use super::index::TarIndex;
use super::walk::{Step, Walker};
use crate::File;
use crate::formats::{Sample, Samples};
use crate::stores::{Get, Store, reads_store};

/// The members of a tar archive in a store, by index: each is read by one request for its range.
///
/// - The range begins with the member's headers, which are parsed like those of any archive. A
///   member whose name or size differs from the index is therefore `Changed`, and so is an archive
///   of another size. Data that were changed in place are not detected.
/// - A member is a slice of the bytes read for it. It keeps its headers in memory, and nothing
///   else.
///
/// [`Indexed::concat`](datapipes::Indexed::concat) joins many archives to one data set.
///
/// # Examples
/// ```
/// use datapipes::{DataLoader, Indexed};
/// use datapipes_io::formats::{IndexedTar, TarWriter};
/// use datapipes_io::stores::InMemory;
///
/// let mut archive = TarWriter::new(Vec::new());
/// for n in 0..100 {
///     archive.append(&format!("{n}.txt"), n.to_string().as_bytes())?;
/// }
/// let store = InMemory::from_iter([("x.tar", archive.finish()?)]);
/// let members = futures::executor::block_on(IndexedTar::open(store, "x.tar"))?;
/// let files = Indexed::new(members).shuffle().fetch().collect()?;
/// assert_eq!(files.len(), 100);
/// assert_ne!(&*files[0].name, "0.txt");
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone)]
pub struct IndexedTar {
    store: Arc<dyn Store>,
    key: String,
    index: Arc<TarIndex>,
}

impl IndexedTar {
    /// Suffix that is added to the key of an archive to get the key of its index.
    pub const SUFFIX: &'static str = ".idx";

    /// Returns an archive with a known index.
    pub fn new(store: impl Store, key: impl Into<String>, index: TarIndex) -> Self {
        IndexedTar {
            store: Arc::new(store),
            key: key.into(),
            index: Arc::new(index),
        }
    }

    /// Opens an archive whose index is beside it, in the [form of `TarIndex`](TarIndex) under its
    /// key and [`SUFFIX`](IndexedTar::SUFFIX); if there is none, the archive is
    /// [scanned](TarIndex::scan).
    ///
    /// # Errors
    /// The errors of the store, of an index that cannot be parsed, and of the scan.
    pub async fn open(store: impl Store, key: impl Into<String>) -> Result<Self> {
        let key = key.into();
        let beside = format!("{key}{}", IndexedTar::SUFFIX);
        let index = match store.read(&beside).await {
            Ok(text) => {
                TarIndex::from_json(text).map_err(|error| error.within(store.url_of(&beside)))?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                TarIndex::scan(&store, &key).await?
            }
            Err(error) => return Err(error),
        };
        Ok(IndexedTar::new(store, key, index))
    }

    /// Returns the index.
    pub fn index(&self) -> &TarIndex {
        &self.index
    }

    /// Returns the samples by index, with all fields, grouped as by [`Samples::new`].
    pub fn samples(&self) -> IndexedSamples {
        self.samples_by(&Samples::new())
    }

    /// Returns the samples by index, grouped by the rules and with the fields of `samples`.
    pub fn samples_by(&self, samples: &Samples) -> IndexedSamples {
        IndexedSamples {
            archive: self.clone(),
            groups: group(&self.index, samples).into(),
        }
    }

    /// Reads a range of the archive.
    async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let object = self.store.get(&self.key, Get::range(range.clone())).await?;
        let (url, has, want) = (
            object.url.clone(),
            object.meta.size,
            self.index.archive_size(),
        );
        if let Some(has) = has.filter(|has| *has != want) {
            let what = format!("{url}: it has {has} bytes, in its index {want}");
            return Err(Error::changed(what));
        }
        let data = object.bytes().await?;
        let want = range.end - range.start;
        if data.len() as u64 != want {
            let what = format!("{url}: {} of {want} bytes at {}", data.len(), range.start);
            return Err(Error::changed(what));
        }
        Ok(data)
    }

    /// Returns a member from bytes of the archive that begin at `from`, if it matches the index.
    fn member(&self, index: usize, data: &Bytes, from: u64) -> Result<File> {
        let member = self.index.get(index).expect("an index below the length");
        let all = (member.all.start - from) as usize..(member.all.end - from) as usize;
        let mut walker = Walker::whole(data.slice(all));
        let size = member.data.end - member.data.start;
        let offset = member.data.start - member.all.start;
        let found = match walker.next() {
            Step::File(file, place)
                if *file.name == *member.name && (place.offset, place.size) == (offset, size) =>
            {
                return Ok(File {
                    name: self.index.name(index).clone(),
                    ..file
                });
            }
            Step::File(file, place) => format!("{:?} of {} bytes", file.name, place.size),
            Step::Refused(name, error) => format!("{name:?}: {error}"),
            Step::Broken(error) => error.to_string(),
            Step::More | Step::End => "no member".to_owned(),
        };
        let url = self.store.url_of(&self.key);
        Err(Error::changed(format!(
            "{url}: not as in its index: {:?} of {size} bytes is due at byte {}, there is {found}",
            member.name, member.all.start
        )))
    }
}

datapipes::formatted! {
    Debug |tar: IndexedTar|
        "IndexedTar({:?}, {} members)", tar.store.url_of(&tar.key), tar.index.len();
}

#[async_trait]
impl MapPipe for IndexedTar {
    type Out = File;

    fn len(&self) -> u64 {
        self.index.len() as u64
    }
    async fn get(&self, index: u64) -> Result<File> {
        let index = index as usize;
        let range = self
            .index
            .get(index)
            .expect("an index below the length")
            .all;
        let data = self.read(range.clone()).await?;
        self.member(index, &data, range.start)
    }
    reads_store!(store);
    fn name(&self) -> String {
        "indexed_tar".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{}", self.key, self.index.name(index as usize)).into())
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

/// The samples of a tar archive in a store, by index: each is read by one request, for the range
/// that covers its fields.
///
/// Samples are grouped by the rules of [`Samples`], from the names in the index: nothing is read
/// for it. Files between the fields of a sample that are left out are read with it. A sample
/// without fields, because none is wanted, is not read.
///
/// There is one difference: a second file for one field makes the sample an error, `Corrupt`, when
/// it is read, since an index has either a sample or an error. A difference from the index is an
/// error as with [`IndexedTar`].
///
/// # Examples
/// ```
/// use datapipes::Indexed;
/// use datapipes_io::Sample;
/// use datapipes_io::formats::{IndexedTar, SampleWriter, TarIndex};
/// use datapipes_io::stores::InMemory;
///
/// let mut shard = SampleWriter::new(Vec::new());
/// for n in 0..10 {
///     shard.write(&Sample::new(format!("{n}")).with("jpg", vec![n; 1000]).with("cls", n.to_string()))?;
/// }
/// let shard = bytes::Bytes::from(shard.finish()?);
/// let index = TarIndex::of(&shard)?;
/// let samples = IndexedTar::new(InMemory::from_iter([("0.tar", shard)]), "0.tar", index).samples();
/// let some = Indexed::new(samples).subset(vec![7, 3]).fetch().collect()?;
/// assert_eq!((some[0].key(), some[1].parse::<u8>("cls")?), ("7", 3));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexedSamples {
    archive: IndexedTar,
    groups: Arc<[Group]>,
}

/// The members of a sample.
#[derive(Debug)]
struct Group {
    key: Arc<str>,
    /// Fields, and the numbers of their members.
    fields: Vec<(Arc<str>, usize)>,
    /// The reason if the sample cannot be read.
    wrong: Option<String>,
}

impl IndexedSamples {
    /// Returns the key of a sample; `None` after the last.
    pub fn key(&self, index: u64) -> Option<&str> {
        Some(&self.groups.get(usize::try_from(index).ok()?)?.key)
    }
}

#[async_trait]
impl MapPipe for IndexedSamples {
    type Out = Sample;

    fn len(&self) -> u64 {
        self.groups.len() as u64
    }
    async fn get(&self, index: u64) -> Result<Sample> {
        let Group { key, fields, wrong } = &self.groups[index as usize];
        if let Some(what) = wrong {
            let url = self.archive.store.url_of(&self.archive.key);
            return Err(Error::corrupt(format!("{url}: {what}")));
        }
        let mut sample = Sample::new(key.clone());
        let place =
            |field: &(Arc<str>, usize)| self.archive.index.get(field.1).map(|member| member.all);
        let (Some(first), Some(last)) = (
            fields.first().and_then(place),
            fields.last().and_then(place),
        ) else {
            return Ok(sample);
        };
        let data = self.archive.read(first.start..last.end).await?;
        for (field, member) in fields {
            let file = self.archive.member(*member, &data, first.start)?;
            sample = sample.with(field.clone(), file.data);
        }
        Ok(sample)
    }
    reads_store!(archive.store);
    fn name(&self) -> String {
        "indexed_samples".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{}", self.archive.key, self.groups[index as usize].key).into())
    }
    fn weigh(&self, sample: &Sample) -> Option<usize> {
        Some(sample.weight())
    }
}

/// Groups members as [`Samples`] does.
fn group(index: &TarIndex, samples: &Samples) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    // Names of fields, which samples share.
    let mut known: Vec<Arc<str>> = Vec::new();
    // True if there are duplicate fields, wanted or not.
    let is_bad = |group: &Group| {
        group.fields.iter().any(|(field, member)| {
            let data = index
                .get(*member)
                .map(|member| member.data)
                .unwrap_or_default();
            &**field == "__bad__" && !data.is_empty()
        })
    };
    for (number, member) in index.iter().enumerate() {
        let Some((key, field)) = samples.place(member.name) else {
            continue;
        };
        if groups.last().is_none_or(|group| *group.key != *key) {
            groups.pop_if(|group| is_bad(group));
            groups.push(Group {
                key: key.into(),
                fields: Vec::with_capacity(2),
                wrong: None,
            });
        }
        let group = groups.last_mut().expect("pushed above");
        if Samples::is_reserved(&field) || group.fields.iter().any(|(there, _)| **there == *field) {
            let what = format!("{:?} is a second {field:?} of its sample", member.name);
            group.wrong.get_or_insert(what);
        } else if samples.wants(&field) {
            let field = match known.iter().find(|known| ***known == *field) {
                Some(known) => known.clone(),
                None => {
                    let field: Arc<str> = field.into();
                    if known.len() < 32 {
                        known.push(field.clone());
                    }
                    field
                }
            };
            group.fields.push((field, number));
        }
    }
    groups.pop_if(|group| is_bad(group));
    groups
}
