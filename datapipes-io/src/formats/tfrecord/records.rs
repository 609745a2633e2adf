//! Reads the records of TFRecord files.

use bytes::Bytes;
use datapipes::{Error, Result};

use super::{FOOT, HEAD, check_data, place, stated_len, zlib};
use crate::formats::compression::{Codec, Expansion};
use crate::formats::framing::{Frame, FrameKind, Framing, RecordPosition, RecordSplitter, records};
use crate::formats::{FileEntries, Format};

/// Reads the records of TFRecord files without decoding them; see
/// [`TfExamples`](crate::formats::TfExamples) for records of `tf.train.Example`.
///
/// - The checksums of length and data are both checked; [`unchecked`](TfRecords::unchecked)
///   disables the check of the data.
/// - Wrong data are an error in their place, and the next record follows. A wrong length ends the
///   file, since the begin of the next record is unknown. So does a cut at any position, and so do
///   zeros after the last record.
/// - An empty file has no records. A file cut exactly between two records cannot be told from a
///   whole file.
/// - Records are slices of the file, and keep it in memory; of a file that is read as it arrives,
///   or compressed, slices of the piece that they came in. A compressed file is decompressed piece
///   by piece as records are requested. It is recognized by its first bytes, if these are not a
///   valid head of a record: gzip and zlib, as TensorFlow writes them, and the other codecs of
///   [`Codec`].
///
/// Errors contain the number of the record, from 0, and the position at which it begins; in a
/// compressed file, the position in its decompressed content.
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
#[must_use]
pub struct TfRecords {
    most: u64,
    unchecked: bool,
    expansion: Expansion,
}

impl Default for TfRecords {
    fn default() -> Self {
        TfRecords {
            most: 2 << 30,
            unchecked: false,
            expansion: Expansion::streamed(),
        }
    }
}

impl TfRecords {
    /// Returns the format with the default limits of [`max_record`](TfRecords::max_record) and
    /// [`max_expansion`](TfRecords::max_expansion).
    pub fn new() -> Self {
        TfRecords::default()
    }

    datapipes::setters! {
        /// Refuses records of more than `bytes` in their place (`Limit`). Defaults to 2 GiB.
        max_record(bytes: u64) => most = bytes;

        /// Refuses a compressed file that decompresses to more than `bytes`, or to more than `ratio`
        /// times its own size once it is past 1 MiB. Defaults to any number of bytes, which are never
        /// in memory together, and 1100 times, which is more than gzip can reach.
        max_expansion(bytes: u64, ratio: u64) => expansion.limit(bytes, ratio);

        /// Checks only the lengths of records and not their data: for data that were checked in another
        /// way.
        unchecked() => unchecked = true;
    }

    /// Returns the splitter of a file into records, with a function of each record.
    pub(super) fn splitter_by<T: Send + 'static>(&self, read: ReadRecord<T>) -> RecordSplitter<T> {
        let framing = Records {
            most: self.most,
            unchecked: self.unchecked,
            read,
            refused: None,
        };
        RecordSplitter::new(framing)
            .expansion(self.expansion)
            .packing(|data, _| {
                // A record of 559903 bytes begins like a gzip file; its checksum tells the
                // difference.
                let is_record = data
                    .first_chunk::<HEAD>()
                    .is_some_and(|head| stated_len(*head).is_ok());
                Ok(match Codec::of_magic(data) {
                    _ if is_record => None,
                    Some(codec) => Some(codec.packing()),
                    None => zlib::is_zlib(data).then_some(zlib::ZLIB),
                })
            })
    }
}

impl Format for TfRecords {
    type Item = Bytes;

    fn splitter(&self) -> Option<RecordSplitter<Bytes>> {
        Some(self.splitter_by(|data, _| Ok(data)))
    }
    fn settings(&self) -> String {
        if self.unchecked {
            "unchecked".to_owned()
        } else {
            String::new()
        }
    }
}

/// Function that makes an item of a record and its position.
pub(super) type ReadRecord<T> = fn(Bytes, RecordPosition) -> Result<T>;

/// A framing that finds records.
struct Records<T> {
    most: u64,
    unchecked: bool,
    read: ReadRecord<T>,
    refused: Option<Refused>,
}

/// A record that is too large; its beginning was skipped.
#[derive(Clone, Copy)]
struct Refused {
    at: RecordPosition,
    length: u64,
    /// Number of its bytes, including head and checksums, that were skipped.
    done: u64,
}

datapipes::clone_fields!(Records<T> { most, unchecked, read, refused });

fn named(at: RecordPosition, error: Error) -> Error {
    error.within(place(at.record, at.offset))
}

/// Returns the error of a file that ends within a record of this length, after `there` bytes of the
/// record.
fn cut(at: RecordPosition, length: u64, there: u64) -> Error {
    let (head, data) = (HEAD as u64, length.saturating_add(HEAD as u64));
    let (what, got, want) = match there {
        _ if there < head => ("head", there, head),
        _ if there < data => ("data", there - head, length),
        _ => ("checksum", there - data, FOOT as u64),
    };
    named(
        at,
        Error::truncated(format!("its {what} has {got} of {want} bytes")),
    )
}

impl<T: Send + 'static> Framing for Records<T> {
    type Item = T;

    fn frame(&mut self, data: &[u8], at: RecordPosition, ended: bool) -> Result<Frame> {
        let there = data.len() as u64;
        let Refused { at, length, done } = match self.refused.take() {
            Some(refused) => refused,
            None => match data.first_chunk::<HEAD>() {
                Some(head) => {
                    let length = stated_len(*head).map_err(|error| named(at, error))?;
                    Refused {
                        at,
                        length,
                        done: 0,
                    }
                }
                None if ended => return Err(cut(at, u64::MAX, there)),
                None => return Ok(Frame::More(HEAD)),
            },
        };
        let left = length.saturating_add((HEAD + FOOT) as u64) - done;
        let is_large = length > self.most;
        match () {
            () if left <= there && is_large => {
                let most = self.most;
                let what =
                    format!("it has {length} bytes, at most {most} are allowed (`max_record`)");
                let error = named(at, Error::limit(what));
                Ok(Frame::cut(left as usize, FrameKind::Bad(error)))
            }
            () if left <= there => Ok(Frame::cut(left as usize, FrameKind::Record)),
            () if ended => Err(cut(at, length, done + there)),
            () if is_large && there > 1 => {
                // A byte is kept, to detect that the file ends before the record does.
                self.refused = Some(Refused {
                    at,
                    length,
                    done: done + there - 1,
                });
                Ok(Frame::cut(data.len() - 1, FrameKind::Refused))
            }
            () if is_large => {
                self.refused = Some(Refused { at, length, done });
                Ok(Frame::More(2))
            }
            () => Ok(Frame::More(usize::try_from(left).unwrap_or(usize::MAX))),
        }
    }

    fn entries(self, data: Bytes, at: RecordPosition) -> FileEntries<T> {
        records(
            Records {
                refused: None,
                ..self
            },
            data,
            at,
            |framing, data, range, at| {
                let record = data.slice(range.start + HEAD..range.end - FOOT);
                if !framing.unchecked {
                    let foot = data[range.end - FOOT..range.end]
                        .try_into()
                        .expect("it has this length");
                    check_data(&record, foot).map_err(|error| named(at, error))?;
                }
                (framing.read)(record, at)
            },
        )
    }
}
