//! What is in the bytes: archives, compression, records, arrays, rows, samples.
//!
//! A format reads a [`File`](crate::File) and yields what is in it, one by one, through one door: [`Format`]. So
//! `files.read_as(format)` is a pipe like any other, with origins, errors that name their place, and spread over workers; a
//! format of your own is one `impl` in a file of yours.

mod aligned;
#[cfg(feature = "arrow")]
pub mod arrow;
mod compression;
#[cfg(feature = "csv")]
mod csv;
mod format;
mod json_lines;
mod lines;
mod mds;
#[cfg(feature = "msgpack")]
mod msgpack;
mod recordio;
#[cfg(feature = "safetensors")]
mod safetensors;
mod npy;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
mod samples;
mod tar;
#[cfg(feature = "tfrecord")]
mod tfrecord;
#[cfg(feature = "zip")]
mod zip;
mod fields;
mod format;
mod idx;
mod samples;
mod tar;
mod untar;
mod value;

pub use compression::{Codec, Decompress, Expansion, Gunzip};
#[cfg(feature = "csv")]
pub use csv::{Csv, Row};
pub use format::{Entries, Entry, Format, ReadAs};
pub use json_lines::JsonLines;
pub use lines::{ByteLines, Lines};
pub use mds::{Mds, MdsImage, MdsIndex, MdsSample, MdsShards, MdsValue};
#[cfg(feature = "msgpack")]
pub use msgpack::MsgPack;
pub use recordio::{ImageRecord, IndexedRecordIo, RecordIo, RecordIoIndex, RecordIoWriter};
#[cfg(feature = "safetensors")]
pub use safetensors::{SafeTensors, write_safetensors};
pub use npy::{Array, Npy, NpyType};
#[cfg(feature = "zip")]
pub use npy::{Arrays, Npz, NpzMap, NpzMember, NpzMembers, NpzWriter};
#[cfg(feature = "parquet")]
pub use self::parquet::{Parquet, ParquetFile, ParquetRows};
#[cfg(feature = "arrow")]
pub use arrow::{ArrowIpc, ArrowRows};
pub use compression::{Codec, Expansion, Gunzip};
pub use fields::{Decoded, FieldDecoder};
pub use format::{Entries, Entry, Format, ReadAs};
#[cfg(feature = "lmdb")]
pub use lmdb::{Lmdb, LmdbItems};
pub use rows::Row;
pub use samples::{Sample, Samples};
#[cfg(feature = "tfrecord")]
pub use tfrecord::{
    Example, Feature, IndexedTfRecords, SequenceExample, TfExamples, TfRecordIndex, TfRecordWriter, TfRecords,
};
#[cfg(feature = "zip")]
pub use zip::Unzip;
pub use tar::{
    IndexedSamples, IndexedTar, SampleWriter, Shard, ShardWriter, StreamUntar, Tar, TarIndex, TarMember,
    TarWriter, Untar,
};
pub use idx::Idx;
pub use samples::{Sample, Samples};
pub use untar::Untar;
pub use value::Value;
pub(crate) use value::offset as json_offset;
