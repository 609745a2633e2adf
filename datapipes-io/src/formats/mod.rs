//! File formats: archives, compression, records, arrays, rows, samples.
//!
//! A format reads a [`File`](crate::File) and yields its items, one by one, through the trait
//! [`Format`]. `files.read_as(format)` is a pipe like any other, with origins, errors that contain
//! their position, and parallel workers; a user's format is one `impl` of the trait.
//!
//! Lines, JSON lines, CSV, TFRecord, RecordIO, MessagePack and Arrow streams are read as their
//! bytes arrive, in constant memory, by [`read_as`](crate::FileGraphExt::read_as) of file references
//! (`list_files(…).read_as(format)`), and Parquet row group by row group if it is told to; after
//! `load_files()` files are whole.
//!
//! | format | reads | writes | without a copy | parts of a file in parallel | by index | feature |
//! |---|---|---|---|---|---|---|
//! | tar (v7, ustar, GNU, pax; sparse refused) | [`Untar`], [`Tar`]; as it arrives [`StreamUntar`] | [`TarWriter`], [`ShardWriter`] | members are slices | by [`TarIndex`] | [`IndexedTar`] | |
//! | WebDataset samples | [`Samples`], fields by [`FieldDecoder`] | [`SampleWriter`], [`ShardWriter`] | fields are slices | by [`TarIndex`] | [`IndexedTar::samples`] | |
//! | gzip, Zstandard, LZ4, bzip2, xz | [`Decompress`]; most formats below by themselves | gzip by [`ShardWriter`] | – | no | no | `zstd`, `lz4`, `bzip2`, `xz` |
//! | zip | [`Unzip`] | – | stored members are slices | no | no | `zip` |
//! | NPY | [`Npy`] | [`Array::write_npy`] | native, C order, aligned; else one copy | – | – | |
//! | NPZ | [`Npz`], [`NpzMap`] | [`NpzWriter`] | stored and aligned; else one copy | [`NpzMembers`] | no | `zip` |
//! | TFRecord, `tf.train.Example` | [`TfRecords`], [`TfExamples`] | [`TfRecordWriter`] | records and bytes are slices | by [`TfRecordIndex`] | [`IndexedTfRecords`] | `tfrecord` |
//! | RecordIO (MXNet) | [`RecordIo`], [`ImageRecord`] | [`RecordIoWriter`] | records of one part are slices | by [`RecordIoIndex`] | [`IndexedRecordIo`] | |
//! | MDS (MosaicML) | [`MdsShards`] | – | bytes are slices | by `index.json` | [`Mds`] | `zstd` for packed shards |
//! | Parquet | [`Parquet`], [`ParquetRows`] | – | no, it is decoded | row groups | [`ParquetFile`], [`ParquetFile::rows`] | `parquet` |
//! | Arrow IPC, files and streams | [`ArrowIpc`], [`ArrowRows`] | – | columns are slices | no | [`IndexedArrowRows`] | `arrow` |
//! | text, by lines | [`Lines`], [`ByteLines`] | – | [`ByteLines`] | no | no | |
//! | JSON lines | [`JsonLines`] | – | no | by [`LineIndex`] | [`IndexedJsonLines`] | |
//! | CSV, TSV | [`Csv`] | – | no | no | no | `csv` |
//! | MessagePack | [`MsgPack`] | – | no | no | no | `msgpack` |
//! | safetensors | [`SafeTensors`] | [`write_safetensors`] | aligned; else one copy | no | no | `safetensors` |
//! | IDX (MNIST) | [`Idx`] | – | bytes; else one copy | no | [`datasets`](crate::datasets) | |
//! | LMDB | – | – | one copy | – | [`Lmdb`] | `lmdb` |
//! | Beton (FFCV) | out of scope | | | | | |
//!
//! Data sets with a known folder layout (MNIST, CIFAR, COCO, a folder of images) are in
//! [`datasets`](crate::datasets); tables of databases are in the crate `datapipes-tables`.

mod aligned;
mod arriving;
#[cfg(feature = "arrow")]
pub mod arrow;
mod compression;
#[cfg(feature = "csv")]
mod csv;
mod entry;
mod fields;
mod format;
mod framing;
mod idx;
mod json_lines;
mod json_row;
mod lines;
#[cfg(feature = "lmdb")]
mod lmdb;
mod mds;
mod missing;
#[cfg(feature = "msgpack")]
mod msgpack;
mod npy;
#[cfg(feature = "parquet")]
mod parquet;
mod parts;
mod recordio;
#[cfg(feature = "safetensors")]
mod safetensors;
mod samples;
mod stream;
mod tar;
#[cfg(feature = "tfrecord")]
mod tfrecord;
mod value;
#[cfg(feature = "zip")]
mod zip;

#[cfg(feature = "parquet")]
pub use self::parquet::{IndexedParquetRows, Parquet, ParquetFile, ParquetRows};
#[cfg(feature = "arrow")]
pub use arrow::{ArrowIpc, ArrowRows, IndexedArrowRows};
pub use compression::{Codec, Decompress};
#[cfg(feature = "csv")]
pub use csv::Csv;
pub use entry::{FileEntries, FileEntry};
pub use fields::{Decoded, FieldDecoder};
pub use format::{Format, ReadAs};
pub use framing::{Frame, FrameKind, Framing, RecordPosition, RecordSplitter, batches, records};
pub use idx::Idx;
pub use json_lines::{IndexedJsonLines, JsonLines, LineIndex};
pub use json_row::Row;
pub use lines::{ByteLines, Lines};
#[cfg(feature = "lmdb")]
pub use lmdb::{Lmdb, LmdbItems};
pub use mds::{Mds, MdsImage, MdsIndex, MdsSample, MdsShards, MdsValue};
#[cfg(feature = "msgpack")]
pub use msgpack::MsgPack;
pub use npy::{Array, Npy, NpyType};
#[cfg(feature = "zip")]
pub use npy::{Arrays, Npz, NpzMap, NpzMember, NpzMembers, NpzWriter};
pub use recordio::{ImageRecord, IndexedRecordIo, RecordIo, RecordIoIndex, RecordIoWriter};
#[cfg(feature = "safetensors")]
pub use safetensors::{SafeTensors, write_safetensors};
pub use samples::{Sample, Samples};
pub(crate) use stream::SplitRecords;
pub use tar::{
    IndexedSamples, IndexedTar, SampleWriter, Shard, ShardWriter, StreamUntar, Tar, TarIndex,
    TarMember, TarWriter, Trailing, Untar,
};
#[cfg(feature = "tfrecord")]
pub use tfrecord::{
    Example, Feature, IndexedTfRecords, SequenceExample, TfExamples, TfRecordIndex, TfRecordWriter,
    TfRecords,
};
pub use value::Value;
pub(crate) use value::offset as json_offset;
#[cfg(feature = "zip")]
pub use zip::Unzip;
