//! A Parquet file with a page index, in the page cache: random rows in batches, and the rows that
//! match a filter, beside the `parquet` crate alone, which is told which rows to read, and pyarrow.
//!
//! `cargo bench --bench parquet [-- --json]`. Peers run with the interpreter that `DATAPIPES_PEERS`
//! names.

mod support;

use std::fs::File;
use std::hint::black_box;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use datapipes::index::Permutation;
use datapipes::{BoxError, DataLoader, Indexed, Rng};
use datapipes_io::formats::ParquetFile;
use datapipes_io::stores::local::Local;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection,
};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::Compression;
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::WriterProperties;
use support::{Lines, case, peer_case};

/// Row groups, rows of one, and rows of a page.
const GROUPS: usize = 20;
const GROUP: usize = 10_000;
const PAGE: usize = 500;
const ROWS: usize = GROUPS * GROUP;
const LANGUAGES: [&str; 5] = ["de", "en", "fr", "ja", "sw"];
/// Batches of random rows in a round, and rows of one.
const BATCHES: usize = 20;
const BATCH: usize = 32;
const ROUNDS: usize = 9;
const FILTER: &str = "lang = 'en' AND score > 0.8";

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("texts.parquet");
    let matching = write(&path)?;
    let count = matching.iter().map(Range::len).sum::<usize>();
    let alone = Alone::open(&path)?;
    let peer = |what: &str, rows: usize| {
        let args = [what, &path.display().to_string(), &rows.to_string()];
        peer_case("pyarrow", "parquet.py", args.map(str::to_owned).into())
    };

    let lines = Lines::new("Parquet, 200,000 rows of some 300 bytes", "rows/s");
    let file = ParquetFile::open(Arc::new(Local::new(folder.path())), "texts.parquet");
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let rows = runtime.block_on(async { file.await?.columns(["text"])?.rows().await })?;
    // As many rows as are counted: an epoch that is left early has read more.
    let some = Permutation::new(ROWS as u64, 0).iter();
    let some = Indexed::new(rows).subset(some.take(BATCHES * BATCH).collect::<Vec<u64>>());
    let loader = DataLoader::builder(some.shuffle().batch(BATCH).fetch()).build()?;
    let mut seed = 0;
    let mut cases = vec![
        case("parquet crate", || {
            seed += 1;
            let order = Permutation::new(ROWS as u64, seed);
            for batch in 0..BATCHES {
                let places = (batch * BATCH)..(batch + 1) * BATCH;
                let rows = places.map(|place| order.get(place as u64) as usize);
                let mut rows: Vec<_> = rows.map(|row| row..row + 1).collect();
                rows.sort_unstable_by_key(|row| row.start);
                assert_eq!(alone.read(Some(rows), ["text"]), BATCH);
            }
        }),
        case("random rows", {
            let mut epoch = 0;
            move || {
                epoch += 1;
                let batches = loader.epoch(epoch).blocking();
                let rows = batches.map(|batch| batch.expect("a good file").len());
                assert_eq!(rows.sum::<usize>(), BATCHES * BATCH);
            }
        }),
    ];
    cases.extend(peer("rows", BATCHES * BATCH));
    let read = (BATCHES * BATCH) as f64;
    let goals = (0.8, 2.0);
    lines.beside(
        "random rows, in batches of 32",
        read,
        ROUNDS,
        &mut cases,
        goals,
    );

    let file = ParquetFile::open(Arc::new(Local::new(folder.path())), "texts.parquet");
    let file = runtime.block_on(file)?.columns(["text"])?;
    let groups = Indexed::new(file.filter(FILTER.parse()?)?).fetch();
    let loader = DataLoader::builder(groups).build()?;
    let mut cases = vec![
        case("parquet crate, those rows", || {
            assert_eq!(alone.read(Some(matching.clone()), ["text"]), count);
        }),
        case("filtered", || {
            let groups = loader.epoch(0).blocking();
            let rows = groups.map(|rows| rows.expect("a good file").num_rows());
            assert_eq!(rows.sum::<usize>(), count);
        }),
        case("parquet crate, all rows", || {
            assert_eq!(alone.read(None, ["lang", "score", "text"]), ROWS);
        }),
    ];
    cases.extend(peer("filter", count));
    lines.beside(FILTER, count as f64, ROUNDS, &mut cases, goals);
    Ok(())
}

/// The file, read by the `parquet` crate alone.
struct Alone {
    file: File,
    metadata: ArrowReaderMetadata,
}

impl Alone {
    fn open(path: &Path) -> Result<Alone, BoxError> {
        let file = File::open(path)?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
        let metadata = ArrowReaderMetadata::load(&file, options)?;
        Ok(Alone { file, metadata })
    }

    /// Reads columns of these rows, in ascending order, or of all; returns the number of rows.
    fn read<const N: usize>(&self, rows: Option<Vec<Range<usize>>>, columns: [&str; N]) -> usize {
        let file = self.file.try_clone().expect("a handle");
        let mut reader =
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        let columns = ProjectionMask::columns(reader.parquet_schema(), columns);
        if let Some(rows) = rows {
            let rows = RowSelection::from_consecutive_ranges(rows.into_iter(), ROWS);
            reader = reader.with_row_selection(rows);
        }
        let batches = reader
            .with_projection(columns)
            .build()
            .expect("a good file");
        batches
            .map(|batch| black_box(batch.expect("a good file")).num_rows())
            .sum()
    }
}

/// Writes the file; returns the ranges of the rows that match the filter.
fn write(path: &Path) -> Result<Vec<Range<usize>>, BoxError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(GROUP))
        .set_data_page_row_count_limit(PAGE)
        .set_write_batch_size(PAGE)
        .build();
    let mut rng = Rng::from_key([3; 4]);
    let mut writer = None;
    let mut matching = Vec::new();
    for group in 0..GROUPS {
        let language = LANGUAGES[group % LANGUAGES.len()];
        // Sorted, as by a job that ranked them: a filter excludes pages.
        let scores = (0..GROUP).map(|row| row as f64 / GROUP as f64);
        if language == "en" {
            let first = scores.clone().take_while(|&score| score <= 0.8).count();
            matching.push(group * GROUP + first..(group + 1) * GROUP);
        }
        let texts = (0..GROUP).map(|_| {
            let words = (0..40 + rng.below(20)).map(|_| format!("w{} ", rng.below(10_000)));
            words.collect::<String>()
        });
        let columns: [(&str, ArrayRef); 3] = [
            (
                "lang",
                Arc::new(StringArray::from_iter_values((0..GROUP).map(|_| language))),
            ),
            ("score", Arc::new(Float64Array::from_iter_values(scores))),
            ("text", Arc::new(StringArray::from_iter_values(texts))),
        ];
        let batch = RecordBatch::try_from_iter(columns)?;
        let writer = match &mut writer {
            Some(writer) => writer,
            None => {
                let (file, properties) = (File::create(path)?, Some(properties.clone()));
                writer.insert(ArrowWriter::try_new(file, batch.schema(), properties)?)
            }
        };
        writer.write(&batch)?;
    }
    writer.expect("there are row groups").close()?;
    Ok(matching)
}
