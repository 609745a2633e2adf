//! A data set in a table: written once, split by its metadata, and read by key for training, in a
//! global random order.
//!
//! `cargo run --release --features sqlite --example cassandra` makes 1000 photo-like images of
//! made-up patients, writes them into an SQLite file in the cache folder (a second run writes only
//! missing rows), splits them so that no patient is in two parts, and reads them as training would.
//! With `--features cassandra` and `--url cassandra://HOST/KEYSPACE.TABLE` the table is on a
//! server, and nothing else changes.
//!
//! Options: `--url URL`, `--folder PATH` (a folder of images for each class, instead of made-up
//! ones), `--images N`, `--where FILTER` (such as `'age >= 40 and sex = "f"'`), `--epochs N`,
//! `--batch N`, `--size PIXELS`, `--seed N`.

mod support;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use datapipes::index::Indexed;
use datapipes::index::split::Splitter;
use datapipes::{BoxError, DataLoader, Graph};
use datapipes_io::prelude::*;
use datapipes_tables::prelude::*;
use datapipes_tables::{
    ColumnType, Filter, Ingest, Label, NewRow, Row, RowsByIndex, Schema, Table, Written, key,
};
use indicatif::ProgressBar;
use support::args::Args;
use support::{bar_style, images, shards};

const USAGE: &str = "cassandra [--url URL] [--folder PATH] [--images N] [--where FILTER] [--epochs N] [--batch N] \
                     [--size PIXELS] [--seed N]";

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let known = "url folder images where epochs batch size seed";
    let args = Args::parse("", known, USAGE);
    let (count, seed) = (
        args.get("images").unwrap_or(1000),
        args.get("seed").unwrap_or(42),
    );
    let filter: Filter = args.get("where").unwrap_or_else(Filter::all);
    let folder: Option<String> = args.get("folder");
    let schema = if folder.is_some() {
        Ingest::folder_schema()
    } else {
        made_up_schema()
    };
    let url = match args.get("url") {
        Some(url) => url,
        None => sqlite_url(folder.as_deref())?,
    };

    // A driver belongs to the runtime in which it was made; the loader uses the same runtime.
    let runtime = tokio::runtime::Runtime::new()?;
    let _entered = runtime.enter();
    let table = runtime.block_on(datapipes_tables::create(&url, &schema))?;
    println!("table {}", table.url());

    // Write: rows that exist already are not even read.
    let ingest = Ingest::new(table.clone());
    let (writing, total) = match &folder {
        Some(folder) => (ingest.folder(folder, folder)?, None),
        None => (made_up(&ingest, count), Some(count)),
    };
    write(writing, total, &ingest)?;

    // Select and split, by metadata alone.
    let mut splitter = Splitter::fractions([("train", 0.8), ("val", 0.1), ("test", 0.1)])
        .balance_classes()
        .seed(seed);
    if folder.is_none() {
        splitter = splitter.group_by("patient");
    }
    let begun = Instant::now();
    let splits = runtime.block_on(table.select(&[]).filter(filter).split(&splitter))?;
    println!(
        "\nsplits, in {:.0} ms:\n{splits}",
        begun.elapsed().as_secs_f64() * 1e3
    );
    let file = shards::cache_folder().join("splits.json");
    splits.save(&file)?;
    println!("saved as {}\n", file.display());

    // Read by key, in another random order in each epoch, label and image together.
    let keys = splits.keys("train")?.to_vec();
    let samples = Indexed::new(RowsByIndex::new(table, keys))
        .shuffle()
        .shard()
        .fetch();
    let bytes = samples.clone().map(|row| row.data.len()).batch(64);
    measure("reading alone", bytes, seed, 1, |sizes| {
        (sizes.len(), sizes.iter().sum())
    })?;
    let labelled = samples.map(|row| {
        let class = if let Label::Class(class) = row.label {
            class as u32
        } else {
            0
        };
        (row.data, class)
    });
    let (size, batch) = (
        args.get("size").unwrap_or(224),
        args.get("batch").unwrap_or(64),
    );
    let batches = images::training_batches(labelled.named("label"), size, batch);
    // A training step would be here.
    measure(
        "reading, decoding, augmenting",
        batches,
        seed,
        args.get("epochs").unwrap_or(2),
        |(images, _)| (images.shape()[0], 0),
    )
}

fn made_up_schema() -> Schema {
    Schema::new([
        ("patient", ColumnType::Text),
        ("age", ColumnType::Int),
        ("sex", ColumnType::Text),
        ("weight", ColumnType::Float),
    ])
}

/// Returns images of made-up patients, several of each, by number. Some patients have no known
/// weight.
fn made_up(ingest: &Ingest, count: u64) -> Graph<Written> {
    let key_of = |number: u64| key("made up", number.to_le_bytes());
    let numbers = ingest.unknown(Graph::range(0..count), move |number| key_of(*number));
    let rows = numbers.map(move |number| {
        let patient = number / 7;
        let class = (number % shards::CLASSES) as i64;
        let row = Row {
            key: key_of(number),
            label: Label::Class(class),
            data: shards::photo(number, 0).into(),
        };
        let weight = (patient % 3 > 0).then_some(50.0 + (patient % 40) as f64);
        let sex = if patient.is_multiple_of(2) { "f" } else { "m" };
        let values = vec![
            format!("patient {patient}").into(),
            (20 + patient as i64 * 13 % 60).into(),
            sex.into(),
            weight.into(),
        ];
        NewRow { row, values }
    });
    ingest.rows(rows.named("photo"))
}

fn write(writing: Graph<Written>, total: Option<u64>, ingest: &Ingest) -> Result<(), BoxError> {
    let style = "{msg} {wide_bar} {pos}/{len} images, {per_sec}";
    let bar = match total {
        Some(total) => ProgressBar::new(total).with_style(bar_style(style)),
        None => ProgressBar::no_length()
            .with_style(bar_style("{msg} {spinner} {pos} images, {per_sec}")),
    };
    bar.set_message("writing");
    let begun = Instant::now();
    for written in DataLoader::builder(writing).build()?.epoch(0).blocking() {
        written?;
        let done = ingest.report();
        bar.set_position(done.written + done.known);
    }
    bar.finish_and_clear();
    let (done, wall) = (ingest.report(), begun.elapsed().as_secs_f64());
    println!(
        "written {} images, {:.1} MB, in {wall:.2} s ({:.0} images/s); {} were there",
        done.written,
        done.bytes as f64 / 1e6,
        done.written as f64 / wall,
        done.known
    );
    Ok(())
}

/// Runs epochs over a graph; `count` returns the number of images in a batch, and their size in
/// bytes.
fn measure<T: Send + 'static>(
    what: &str,
    graph: Graph<T>,
    seed: u64,
    epochs: u64,
    count: impl Fn(&T) -> (usize, usize),
) -> Result<(), BoxError> {
    let loader = DataLoader::builder(graph).seed(seed).build()?;
    for epoch in 0..epochs {
        let (begun, mut first) = (Instant::now(), None);
        let (mut images, mut bytes) = (0, 0);
        for batch in loader.epoch(epoch).blocking() {
            let batch = batch?;
            first.get_or_insert_with(|| begun.elapsed());
            let (more, size) = count(&batch);
            images += more;
            bytes += size;
        }
        let wall = begun.elapsed().as_secs_f64();
        let rate = if bytes > 0 {
            format!(", {:.0} MB/s", bytes as f64 / wall / 1e6)
        } else {
            String::new()
        };
        println!(
            "{what}, epoch {epoch}: {images} images in {wall:.2} s, {:.0} images/s{rate}; first batch after {:.0} ms",
            images as f64 / wall,
            first.unwrap_or_default().as_secs_f64() * 1e3
        );
    }
    Ok(())
}

/// Returns the URL of a file in the cache folder: one for made-up images, and one for each
/// folder's name.
fn sqlite_url(folder: Option<&str>) -> Result<String, BoxError> {
    let cache = shards::cache_folder();
    std::fs::create_dir_all(&cache)?;
    let name = folder
        .and_then(|folder| Path::new(folder).file_name())
        .map(|name| name.to_string_lossy());
    let file = cache.join(format!("{}.db", name.as_deref().unwrap_or("patients")));
    Ok(datapipes_tables::sqlite_url(file, "images")?)
}
