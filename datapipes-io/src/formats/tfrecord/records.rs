//! Reads the records of TFRecord files.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use datapipes::{Context, Error, ErrorKind, Result};

use super::{FOOT, HEAD, check_data, place, stated_len, zlib};
use crate::File;
use crate::formats::compression::{self, Codec, Expansion};
use crate::formats::{Entries, Entry, Format};

/// Reads the records of TFRecord files; what is in a record is up to you, or to [`TfExamples`](crate::formats::TfExamples).
///
/// - The checksums of length and data are both checked; [`unchecked`](TfRecords::unchecked) leaves out that of the data.
/// - Wrong data is an error in its place, and the next record follows. A wrong length ends the file, since nobody knows
///   where the next record begins. So does a cut, wherever it is, and so do zeros behind the last record.
/// - An empty file has no records. A file cut exactly between two records cannot be told from a whole one.
/// - Records are slices of the file, and keep it in memory. Of a compressed file they are copies of their own; it is
///   inflated piece by piece as records are wanted. It is known by its first bytes, if those are not a good head of a record:
///   gzip and zlib, as TensorFlow writes them, and the other codecs of [`Codec`].
///
/// Errors name the record, from 0, and the byte where it begins, in a compressed file that of its content.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::{File, formats::{TfRecordWriter, TfRecords}, prelude::*};
///
/// let mut writer = TfRecordWriter::new(Vec::new());
/// writer.write(b"one")?;
/// writer.write(b"two")?;
/// let (mut data, _) = writer.finish()?;
/// data[12] = b'X';
/// let records = Graph::from_vec(vec![File::new("a.tfrecord", data)]).read_as(TfRecords::new());
/// let error = records.collect().unwrap_err().to_string();
/// assert!(error.starts_with("tf_records: 0:0/0: corrupt: record 0 at byte 0: the checksum of its 3 bytes is"), "{error}");
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TfRecords {
    most: u64,
    unchecked: bool,
    expansion: Expansion,
}

impl Default for TfRecords {
    fn default() -> Self {
        TfRecords { most: 2 << 30, unchecked: false, expansion: Expansion::default() }
    }
}

impl TfRecords {
    /// With the default limits of [`max_record`](TfRecords::max_record) and [`max_expansion`](TfRecords::max_expansion).
    pub fn new() -> Self {
        TfRecords::default()
    }

    /// Refuses records of more than `bytes` in their place (`Limit`). By default 2 GiB.
    pub fn max_record(self, bytes: u64) -> Self {
        TfRecords { most: bytes, ..self }
    }

    /// Refuses a compressed file that inflates to more than `bytes`, or to more than `ratio` times its own size once it is
    /// past 1 MiB. By default 8 GiB, and 1100 times, which is more than gzip can reach.
    pub fn max_expansion(mut self, bytes: u64, ratio: u64) -> Self {
        (self.expansion.bytes, self.expansion.ratio) = (bytes, ratio);
        self
    }

    /// Does not check the data of records, only their lengths: for data that something else has checked.
    pub fn unchecked(self) -> Self {
        TfRecords { unchecked: true, ..self }
    }

    pub(super) fn records(&self, file: File, cx: &Context) -> Records {
        let data = file.data;
        // A record of 559903 bytes begins as gzip does; its checksum tells.
        let is_record = data.first_chunk::<HEAD>().is_some_and(|head| stated_len(*head).is_ok());
        let input = match Codec::of_magic(&data).filter(|_| !is_record) {
            Some(codec) => Input::Stream(compression::reader(codec, data, self.expansion, cx)),
            None if !is_record && zlib::is_zlib(&data) => Input::Stream(zlib::reader(data, self.expansion)),
            None => Input::Whole(data),
        };
        Records { input, settings: self.clone(), number: 0, offset: 0, broken: false }
    }
}

impl Format for TfRecords {
    type Item = Bytes;

    fn open(&self, file: File, cx: &Context) -> Result<Entries<Bytes>> {
        Ok(Box::new(self.records(file, cx).map(|found| match found {
            Found::Record(data, ..) => Entry::item(data),
            Found::Bad(error) => Entry::Bad(None, error),
            Found::Broken(error) => Entry::Broken(error),
        })))
    }
    fn settings(&self) -> String {
        if self.unchecked { "unchecked".to_owned() } else { String::new() }
    }
    fn weigh(&self, record: &Bytes) -> Option<usize> {
        Some(record.len() + size_of::<Bytes>())
    }
}

/// What is found in a file.
pub(super) enum Found {
    /// A record, its number, and where it begins.
    Record(Bytes, u64, u64),
    Bad(Error),
    Broken(Error),
}

/// The records of a file.
pub(super) struct Records {
    input: Input,
    settings: TfRecords,
    number: u64,
    offset: u64,
    broken: bool,
}

impl Records {
    fn next_record(&mut self) -> Result<Option<(u64, Result<Bytes>)>> {
        let cut = |what: &str, got: u64, want: u64| {
            let what = format!("its {what} has {got} of {want} bytes");
            Err(Error::new(ErrorKind::Truncated, what))
        };
        let head = match self.input.array::<HEAD>()? {
            Ok(head) => head,
            Err(0) => return Ok(None),
            Err(there) => return cut("head", there as u64, HEAD as u64),
        };
        let length = stated_len(head)?;
        if let Some(there) = self.input.left().filter(|&left| length > left) {
            return cut("data", there, length);
        }
        let data = if length > self.settings.most {
            let skipped = self.input.skip(length)?;
            if skipped < length {
                return cut("data", skipped, length);
            }
            let what = format!("it has {length} bytes, at most {} are allowed", self.settings.most);
            Err(Error::new(ErrorKind::Limit, what))
        } else {
            let data = self.input.take(length)?;
            if (data.len() as u64) < length {
                return cut("data", data.len() as u64, length);
            }
            Ok(data)
        };
        let foot = match self.input.array::<FOOT>()? {
            Ok(foot) => foot,
            Err(there) => return cut("checksum", there as u64, FOOT as u64),
        };
        let checked = data.and_then(|data| {
            if !self.settings.unchecked {
                check_data(&data, foot)?;
            }
            Ok(data)
        });
        Ok(Some((length, checked)))
    }
}

impl Iterator for Records {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        if self.broken {
            return None;
        }
        let (number, offset) = (self.number, self.offset);
        let named = |error: Error| error.within(place(number, offset));
        match self.next_record() {
            Err(error) => {
                self.broken = true;
                Some(Found::Broken(named(error)))
            }
            Ok(None) => None,
            Ok(Some((length, record))) => {
                self.number += 1;
                self.offset = offset.saturating_add(length).saturating_add((HEAD + FOOT) as u64);
                Some(match record {
                    Ok(data) => Found::Record(data, number, offset),
                    Err(error) => Found::Bad(named(error)),
                })
            }
        }
    }
}

/// The bytes of a file, or of what it inflates to.
enum Input {
    Whole(Bytes),
    Stream(Box<dyn Read + Send>),
}

/// So many bytes are asked for before there is anything to show for it.
const TRUSTED: u64 = 1 << 20;

impl Input {
    /// The next bytes, or how many there still are.
    fn array<const N: usize>(&mut self) -> Result<Result<[u8; N], usize>> {
        let mut array = [0; N];
        let there = match self {
            Input::Whole(data) => match data.first_chunk() {
                Some(bytes) => {
                    array = *bytes;
                    data.advance(N);
                    N
                }
                None => data.len(),
            },
            Input::Stream(reader) => {
                let mut there = 0;
                while there < N {
                    match reader.read(&mut array[there..]) {
                        Ok(0) => break,
                        Ok(more) => there += more,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(unpack(error)),
                    }
                }
                there
            }
        };
        Ok(if there == N { Ok(array) } else { Err(there) })
    }

    /// The next bytes: a slice, or a buffer. Fewer if there are no more.
    fn take(&mut self, most: u64) -> Result<Bytes> {
        match self {
            Input::Whole(data) => {
                Ok(data.split_to(usize::try_from(most).unwrap_or(usize::MAX).min(data.len())))
            }
            Input::Stream(reader) => {
                let mut taken = Vec::with_capacity(most.min(TRUSTED) as usize);
                reader.by_ref().take(most).read_to_end(&mut taken).map_err(unpack)?;
                Ok(taken.into())
            }
        }
    }

    /// Passes by the next bytes; fewer if there are no more.
    fn skip(&mut self, most: u64) -> Result<u64> {
        match self {
            Input::Whole(data) => {
                let skipped = usize::try_from(most).unwrap_or(usize::MAX).min(data.len());
                data.advance(skipped);
                Ok(skipped as u64)
            }
            Input::Stream(reader) => {
                io::copy(&mut reader.by_ref().take(most), &mut io::sink()).map_err(unpack)
            }
        }
    }

    /// How many bytes follow, where that is known.
    fn left(&self) -> Option<u64> {
        match self {
            Input::Whole(data) => Some(data.len() as u64),
            Input::Stream(_) => None,
        }
    }
}

fn unpack(error: io::Error) -> Error {
    compression::unpack(error, ErrorKind::Corrupt, "while it was inflated")
}
