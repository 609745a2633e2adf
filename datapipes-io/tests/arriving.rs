//! Memory needed to read files that are much larger than it: their bytes are generated on demand.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{DataLoader, Graph, Result};
use datapipes_io::formats::{Format, JsonLines, Lines};
use datapipes_io::prelude::*;
use datapipes_io::stores::{Body, Get, Meta, Object, Store};
use futures::stream::{self, BoxStream};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grown(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a closure and returns the peak of allocated bytes above the level before it. Tests that
/// measure run one at a time.
fn peak<R>(run: impl FnOnce() -> R) -> (usize, R) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone: MutexGuard<'_, ()> = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = run();
    (PEAK.load(Ordering::Relaxed).saturating_sub(before), result)
}

const MIB: usize = 1 << 20;

/// A store of generated objects, which repeat one line after a head; they arrive in pieces of up to
/// 256 KiB.
#[derive(Debug)]
struct Made {
    head: Bytes,
    /// The line, repeated.
    block: Bytes,
    size: u64,
}

impl Made {
    fn of(line: &[u8], size: u64) -> Arc<Self> {
        Made::after(Vec::new(), line, size)
    }

    fn after(head: Vec<u8>, line: &[u8], size: u64) -> Arc<Self> {
        let times = (1 << 20) / line.len() + 1;
        Arc::new(Made {
            size: head.len() as u64 + size - size % line.len() as u64,
            head: head.into(),
            block: line.repeat(times).into(),
        })
    }

    /// Returns the bytes from a position on, as many as there are in one piece.
    fn piece(&self, at: u64) -> &[u8] {
        match at.checked_sub(self.head.len() as u64) {
            None => &self.head[at as usize..],
            Some(at) => &self.block[(at % self.block.len() as u64) as usize..],
        }
    }
}

#[async_trait]
impl Store for Made {
    fn url(&self) -> &str {
        "made:///"
    }
    async fn get(&self, key: &str, get: Get) -> Result<Object> {
        let range = get.range.unwrap_or(0..self.size);
        let range = range.start..range.end.min(self.size);
        let (head, block, size) = (self.head.clone(), self.block.clone(), self.size);
        let (made, end) = (Made { head, block, size }, range.end);
        let pieces = stream::unfold(range.start, move |at| {
            let piece = made.piece(at);
            let len = piece.len().min(256 << 10).min((end - at) as usize);
            // A copy, since bytes from a network have memory of their own.
            let piece = Bytes::copy_from_slice(&piece[..len]);
            async move { (len > 0).then_some((Ok(piece), at + len as u64)) }
        });
        let meta = Meta {
            size: Some(self.size),
            version: Some("1".into()),
            ..Meta::new(key)
        };
        Ok(Object {
            meta,
            range,
            body: Body::stream(pieces),
            url: self.url_of(key),
        })
    }
    fn list(&self, _: &str) -> BoxStream<'static, Result<Meta>> {
        Box::pin(stream::empty())
    }
}

/// Reads up to `items` items of an epoch, and returns how many arrived.
fn read<T: Send + 'static>(graph: Graph<T>, items: usize) -> usize {
    let loader = DataLoader::builder(graph)
        .workers(2)
        .memory(16 * MIB)
        .build()
        .unwrap();
    loader
        .epoch(0)
        .blocking()
        .take(items)
        .map(Result::unwrap)
        .count()
}

/// Makes a line of 4 KiB.
fn line() -> Vec<u8> {
    let mut line: Vec<u8> = (0..4095u32).map(|n| b'a' + (n * n % 23) as u8).collect();
    line.push(b'\n');
    line
}

#[test]
fn a_shard_of_ten_gigabytes_is_read_in_constant_memory() {
    let store = Made::of(&line(), 10 << 30);
    let lines = || store.clone().files(["shard"]).read_as(Lines::new());
    for workers in [0, 2] {
        let (peak, read) = peak(|| {
            let loader = DataLoader::builder(lines())
                .workers(workers)
                .memory(16 * MIB)
                .build()
                .unwrap();
            loader
                .epoch(0)
                .blocking()
                .take(200 * MIB / 4096)
                .map(Result::unwrap)
                .count()
        });
        assert_eq!(read, 200 * MIB / 4096);
        assert!(peak < 40 * MIB, "{workers} workers: {} MiB", peak / MIB);
    }
}

#[test]
#[ignore = "reads 10 GB"]
fn a_shard_of_ten_gigabytes_is_read_to_its_end_in_constant_memory() {
    let store = Made::of(&line(), 10 << 30);
    let (peak, read) = peak(|| read(store.files(["shard"]).read_as(Lines::new()), usize::MAX));
    assert_eq!(read, (10usize << 30) / 4096);
    assert!(peak < 40 * MIB, "{} MiB", peak / MIB);
}

#[test]
fn a_local_shard_is_read_to_its_end_in_constant_memory() {
    use std::io::Write;
    const SIZE: usize = 128 * MIB;
    let folder = tempfile::tempdir().unwrap();
    let mut file = std::fs::File::create(folder.path().join("shard.txt")).unwrap();
    let block = line().repeat(MIB / 4096);
    (0..SIZE / MIB).for_each(|_| file.write_all(&block).unwrap());
    drop((file, block));
    let lines = datapipes_io::list_files(folder.path(), "*.txt").read_as(Lines::new());
    let (peak, read) = peak(|| read(lines, usize::MAX));
    assert_eq!(read, SIZE / 4096);
    assert!(peak < 40 * MIB, "{} MiB", peak / MIB);
}

/// Serves an object by HTTP, whole or a range of it, to one connection after another.
#[cfg(feature = "http")]
fn serve(made: Arc<Made>) -> String {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    fn answer(made: &Made, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut out = stream;
        while let Some(asked) = lines.next().transpose()? {
            let mut range = None;
            for line in lines.by_ref() {
                let line = line?.to_ascii_lowercase();
                if let Some(stated) = line.strip_prefix("range: bytes=") {
                    let (begin, end) = stated.split_once('-').expect("a range");
                    let end = end.parse().map_or(made.size, |last: u64| last + 1);
                    range = Some(begin.parse().unwrap()..end.min(made.size));
                }
                if line.is_empty() {
                    break;
                }
            }
            let status = match &range {
                Some(range) => format!(
                    "206 Partial Content\r\nContent-Range: bytes {}-{}/{}",
                    range.start,
                    range.end - 1,
                    made.size
                ),
                None => "200 OK".to_owned(),
            };
            let mut range = range.unwrap_or(0..made.size);
            let len = range.end - range.start;
            write!(
                out,
                "HTTP/1.1 {status}\r\nETag: \"1\"\r\nContent-Length: {len}\r\n\r\n"
            )?;
            while !asked.starts_with("HEAD") && !range.is_empty() {
                let piece = made.piece(range.start);
                let len = piece.len().min((range.end - range.start) as usize);
                out.write_all(&piece[..len])?;
                range.start += len as u64;
            }
        }
        Ok(())
    }

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let made = made.clone();
            // A client that has enough closes the connection, which is an error here.
            std::thread::spawn(move || answer(&made, stream).ok());
        }
    });
    url
}

#[cfg(feature = "http")]
#[test]
fn a_shard_of_a_web_server_is_read_to_its_end_in_constant_memory() {
    const SIZE: usize = 128 * MIB;
    let url = serve(Made::of(&line(), SIZE as u64));
    let store = datapipes_io::stores::Http::builder(&url).build().unwrap();
    let lines = store.files(["shard"]).read_as(Lines::new());
    let (peak, read) = peak(|| read(lines, usize::MAX));
    assert_eq!(read, SIZE / 4096);
    assert!(peak < 40 * MIB, "{} MiB", peak / MIB);
}

/// Returns a file of row groups of 1 MiB, of 16 texts each.
#[cfg(all(feature = "http", feature = "parquet"))]
fn parquet(groups: usize) -> Vec<u8> {
    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

    let text = "x".repeat(64 << 10);
    let texts = std::iter::repeat_n(text, 16 * groups);
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(16))
        .set_dictionary_enabled(false);
    let (mut data, properties) = (Vec::new(), Some(properties.build()));
    let mut writer = ArrowWriter::try_new(&mut data, batch.schema(), properties).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    data
}

#[cfg(all(feature = "http", feature = "parquet"))]
#[test]
fn a_parquet_file_of_a_web_server_is_read_by_row_groups_in_constant_memory() {
    use datapipes_io::FileRef;
    use datapipes_io::formats::{Parquet, ParquetRows};
    const GROUPS: usize = 96;
    // Tests that measure wait until it is made.
    let (_, made) = peak(|| Made::after(parquet(GROUPS), b"x", 0));
    let size = Some(made.size);
    let store = datapipes_io::stores::Http::builder(&serve(made)).build();
    let store: Arc<dyn Store> = Arc::new(store.unwrap());
    let read_as = |format| {
        let files = vec![FileRef::stored(store.clone(), "shard", size)];
        let rows = Graph::from_vec(files).stream_as(ParquetRows::new(format), 0);
        let (peak, read) = peak(|| read(rows, usize::MAX));
        assert_eq!(read, 16 * GROUPS);
        peak
    };
    let whole = read_as(Parquet::new());
    assert!(whole > GROUPS * MIB, "{} MiB of a whole file", whole / MIB);
    let parts = read_as(Parquet::new().by_row_group());
    assert!(parts < 40 * MIB, "{} MiB", parts / MIB);
}

#[test]
fn a_compressed_shard_is_read_in_constant_memory() {
    use std::io::Write;
    let text = random_text();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&text).unwrap();
    repeats_in_constant_memory("shard.gz", &packer.finish().unwrap());
    #[cfg(feature = "zstd")]
    repeats_in_constant_memory("shard.zst", &zstd::stream::encode_all(&*text, 1).unwrap());
}

/// Makes random text, so that a compressed file is not small.
fn random_text() -> Vec<u8> {
    let mut state = 1u64;
    (0..512 << 10)
        .map(|n| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            if n % 4096 == 4095 {
                b'\n'
            } else {
                b'a' + (state >> 59) as u8 % 26
            }
        })
        .collect()
}

/// Reads the beginning of 10 GB of compressed members in sequence.
fn repeats_in_constant_memory(name: &str, member: &[u8]) {
    let store = Made::of(member, 10 << 30);
    let lines = store.files([name]).read_as(Lines::new());
    let (peak, read) = peak(|| read(lines, 64 * MIB / 4096));
    assert_eq!(read, 64 * MIB / 4096, "{name}");
    assert!(peak < 40 * MIB, "{name}: {} MiB", peak / MIB);
}

/// Reads the first 100 MiB of 10 GB: a head, and a record that is repeated.
fn reads_in_constant_memory<F: Format>(what: &str, format: F, head: Vec<u8>, record: &[u8]) {
    let store = Made::after(head, record, 10 << 30);
    let items = 100 * MIB / record.len();
    let (peak, read) = peak(|| read(store.files(["shard"]).read_as(format), items));
    assert_eq!(read, items, "{what}");
    assert!(peak < 40 * MIB, "{what}: {} MiB", peak / MIB);
}

#[cfg(all(
    feature = "csv",
    feature = "msgpack",
    feature = "tfrecord",
    feature = "arrow"
))]
#[test]
fn every_format_of_records_is_read_in_constant_memory() {
    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use datapipes_io::formats::{
        ArrowIpc, Csv, MsgPack, RecordIo, RecordIoWriter, TfRecordWriter, TfRecords,
    };

    let text = "x".repeat(4000);
    let row = format!("{text},7\n").into_bytes();
    let csv = Csv::<(String, u8)>::new();
    reads_in_constant_memory("CSV", csv, b"text,n\n".to_vec(), &row);

    let mut writer = TfRecordWriter::new(Vec::new());
    writer.write(text.as_bytes()).unwrap();
    let (record, _) = writer.finish().unwrap();
    reads_in_constant_memory("TFRecord", TfRecords::new(), Vec::new(), &record);

    let mut writer = RecordIoWriter::new(Vec::new());
    writer.write(text.as_bytes()).unwrap();
    let (record, _) = writer.finish().unwrap();
    reads_in_constant_memory("RecordIO", RecordIo::new(), Vec::new(), &record);

    // A string of up to 65,535 bytes.
    let mut record = vec![0xda];
    record.extend((text.len() as u16).to_be_bytes());
    record.extend(text.as_bytes());
    reads_in_constant_memory("MessagePack", MsgPack::values(), Vec::new(), &record);

    let texts: ArrayRef = Arc::new(StringArray::from_iter_values([&text; 16]));
    let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    let head = writer.get_ref().clone();
    writer.write(&batch).unwrap();
    let record = writer.get_ref()[head.len()..].to_vec();
    reads_in_constant_memory("Arrow", ArrowIpc::new(), head, &record);
}

/// Batches of a file, and of streams that are read whole or as they arrive.
#[cfg(feature = "arrow")]
#[test]
fn a_record_batch_inflates_to_no_more_than_the_loader_allows() {
    use datapipes_io::formats::{ArrowIpc, ArrowRows};
    use datapipes_io::stores::InMemory;

    fn refused<T: Send + 'static>(graph: Graph<T>, most: u64) -> String {
        let builder = DataLoader::builder(graph).workers(2).max_inflated(most);
        let error = builder
            .build()
            .unwrap()
            .epoch(0)
            .blocking()
            .find_map(Result::err);
        error.map_or(String::new(), |error| error.to_string())
    }
    let file: &[u8] = include_bytes!("data/zstd.arrow");
    let stream: &[u8] = include_bytes!("data/lz4.arrows");
    for (name, data) in [("file", file), ("stream", stream)] {
        let store = InMemory::from_iter([(name, data)]);
        let files = || store.clone().files([name]);
        let rows = || ArrowRows::new(ArrowIpc::new());
        for most in [100, 1 << 20] {
            let all = [
                refused(files().load_files().read_as(ArrowIpc::new()), most),
                refused(files().stream_as(ArrowIpc::new(), 0), most),
                refused(files().load_files().read_as(rows()), most),
                refused(files().stream_as(rows(), 0), most),
            ];
            for said in all {
                let is_refused =
                    said.contains("at most 100 are allowed (`max_expansion`, `max_inflated`)");
                assert_eq!(is_refused, most == 100, "{name}, {most}: {said}");
                assert!(is_refused || said.is_empty(), "{name}: {said}");
            }
        }
    }
}

/// Files that are read whole are as large as their bytes: at most as many as fit.
#[test]
fn files_that_are_read_whole_stay_within_the_memory_of_the_loader() {
    let store = Made::of(&line(), 8 << 20);
    let files = store.files((0..24).map(|n| format!("{n}.txt")));
    let graph = files.load_files().read_as(Lines::new());
    let (peak, read) = peak(|| {
        let loader = DataLoader::builder(graph)
            .workers(2)
            .memory(48 * MIB)
            .build()
            .unwrap();
        loader.epoch(0).blocking().map(Result::unwrap).count()
    });
    assert_eq!(read, 24 * (8 << 20) / 4096);
    assert!(peak < 80 * MIB, "{} MiB", peak / MIB);
}

#[test]
fn six_files_of_json_stay_within_the_memory_of_the_loader() {
    let mut line = format!("{{\"text\": \"{}\", \"n\": 7}}", "x".repeat(4000)).into_bytes();
    line.push(b'\n');
    let store = Made::of(&line, 137 << 20);
    let files = store.files((0..6).map(|n| format!("{n}.jsonl")));
    let graph = files.read_as(JsonLines::values());
    let (peak, read) = peak(|| {
        let loader = DataLoader::builder(graph)
            .workers(2)
            .memory(64 * MIB)
            .build()
            .unwrap();
        // The reader reaches the second file; by then the other files have been requested.
        loader
            .epoch(0)
            .blocking()
            .take((150 << 20) / line.len())
            .map(Result::unwrap)
            .count()
    });
    assert_eq!(read, (150 << 20) / line.len());
    assert!(peak < 80 * MIB, "{} MiB", peak / MIB);
}
