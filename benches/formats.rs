//! Formats read from memory, compared with the speed of the checksum, of the crate underneath, and
//! of one copy of the bytes; and allocations per member, counted by the allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datapipes::{DataLoader, Graph, Rng};
use datapipes_io::formats::{Csv, Format, JsonLines, Lines, TarWriter, TfRecordWriter, TfRecords};
use datapipes_io::{File, prelude::*};
use serde::Deserialize;
use support::{bar, case, compare};

/// An allocator that counts allocations.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: usize = 11;

/// Reads one epoch over files on the consumer's thread, in batches as training takes them, and
/// returns the number of items.
fn read<F: Format + Clone>(files: &[File], format: F) -> usize {
    let graph = Graph::from_vec(files.to_vec()).read_as(format).batch(256);
    let loader = DataLoader::builder(graph)
        .workers(0)
        .build()
        .expect("a right graph");
    loader
        .epoch(0)
        .blocking()
        .map(|batch| batch.expect("the files are good").len())
        .sum()
}

#[derive(Clone, Deserialize)]
#[allow(dead_code, reason = "it is read, not used")]
struct Row {
    id: u64,
    name: String,
    score: f64,
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut rng = Rng::from_key([7; 4]);
    (0..bytes).map(|_| rng.next_u32() as u8).collect()
}

fn tfrecord() -> Result<(), Box<dyn std::error::Error>> {
    let noise = noise(1 << 20);
    let mut writer = TfRecordWriter::new(Vec::new());
    for at in 0..400 {
        writer.write(&noise[at * 1000..][..100_000])?;
    }
    let files = [File::new("a.tfrecord", writer.finish()?.0)];
    let data = files[0].data.clone();
    let cases = vec![
        case("CRC-32C of the file (floor)", || crc32c::crc32c(&data)),
        case("TfRecords", || read(&files, TfRecords::new())),
    ];
    let ratios = compare(
        "TFRecord, records of 100 kB",
        data.len() as f64 / 1e6,
        "MB",
        ROUNDS,
        cases,
    );
    bar("rate over the checksum's own", 1.0 / ratios[1], 0.8, true);
    Ok(())
}

fn json_lines() {
    let mut text = String::new();
    for id in 0..50_000 {
        text += &format!(
            "{{\"id\": {id}, \"name\": \"sample number {id}\", \"score\": {}.25}}\n",
            id % 100
        );
    }
    let files = [File::new("a.jsonl", text)];
    let data = files[0].data.clone();
    let cases = vec![
        case("serde_json over the lines (floor)", || {
            let lines = data
                .split(|&byte| byte == b'\n')
                .filter(|line| !line.is_empty());
            lines
                .inspect(|line| {
                    drop(black_box(
                        serde_json::from_slice::<Row>(line).expect("good"),
                    ))
                })
                .count()
        }),
        case("JsonLines", || read(&files, JsonLines::<Row>::new())),
        case("lines alone", || read(&files, Lines::new())),
    ];
    let ratios = compare(
        "JSON lines, 50 000 of some 60 bytes",
        50_000.0,
        "lines",
        ROUNDS,
        cases,
    );
    bar("time over serde_json's own", ratios[1], 1.1, false);
}

fn csv() {
    let mut text = "id,name,score\n".to_owned();
    for id in 0..50_000 {
        text += &format!("{id},sample number {id},{}.25\n", id % 100);
    }
    let files = [File::new("a.csv", text)];
    let data = files[0].data.clone();
    let cases = vec![
        case("the csv crate (floor)", || {
            let mut reader = csv::Reader::from_reader(&data[..]);
            reader
                .deserialize::<Row>()
                .inspect(|row| _ = black_box(row.as_ref().expect("good")))
                .count()
        }),
        case("Csv", || read(&files, Csv::<Row>::new())),
    ];
    let ratios = compare(
        "CSV, 50 000 rows of some 30 bytes",
        50_000.0,
        "rows",
        ROUNDS,
        cases,
    );
    bar("time over the csv crate's own", ratios[1], 1.1, false);
}

/// Prints allocations per member: they depend neither on the archive's size nor on the member's.
fn allocations() -> Result<(), Box<dyn std::error::Error>> {
    println!("\nallocations a member of a tar archive");
    let noise = noise(1 << 20);
    let mut each = Vec::new();
    for (members, size) in [(1000, 1000), (1000, 100_000), (5000, 1000), (20_000, 100)] {
        let mut tar = TarWriter::new(Vec::new());
        for number in 0..members {
            tar.append(&format!("folder/{number:06}.jpg"), &noise[..size])?;
        }
        let files = vec![File::new("a.tar", Bytes::from(tar.finish()?))];
        let loader = DataLoader::builder(Graph::from_vec(files).untar())
            .workers(0)
            .build()
            .expect("a right graph");
        let mut epoch = loader.epoch(0).blocking();
        // Allocations at the start of an epoch do not count as a member's.
        let skipped = epoch
            .by_ref()
            .take(members / 2)
            .inspect(|file| assert!(file.is_ok()))
            .count();
        let before = ALLOCATED.load(Ordering::Relaxed);
        let rest = epoch.inspect(|file| assert!(file.is_ok())).count();
        let per_member = (ALLOCATED.load(Ordering::Relaxed) - before) as f64 / rest as f64;
        assert_eq!(skipped + rest, members);
        println!("{members:>6} members of {size:>7} bytes: {per_member:.2}");
        each.push(per_member);
    }
    let spread =
        each.iter().copied().fold(0.0, f64::max) - each.iter().copied().fold(f64::MAX, f64::min);
    bar("difference between sizes", spread, 0.5, false);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tfrecord()?;
    json_lines();
    csv();
    allocations()
}
