//! Single files on this machine, of 4 kB, 115 kB and 4 MB: read whole, in batches of 256, beside a
//! loop on one thread that opens and reads them into a ring of buffers.
//!
//! `cargo bench --bench near [-- --json] [4kB] [115kB] [4MB]`. One line a case: files a second, those
//! of the floor in the same run, the ratio and its goal. Files are in the page cache unless a case says cold; two
//! cases add to the time of each open.

#[path = "support/slowly.rs"]
mod slowly;
mod support;

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use datapipes::{DataLoader, Graph};
use datapipes_io::{FileGraphExt, FileRef, list_files};
use slowly::OpenSlowly;
use support::{Lines, median, peer};

const BATCH: usize = 256;
const ROUNDS: usize = 9;
/// Bytes of the floor's ring of buffers.
const RING: usize = 147 << 20;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let lines = Lines::new("", "files/s");
    let sizes = [
        ("4kB", 4 << 10, 4096),
        ("115kB", 115_000, 2048),
        ("4MB", 4 << 20, 64),
    ];
    let asked = |name: &str| std::env::args().any(|arg| arg == name);
    let is_any_asked = sizes.iter().any(|(name, ..)| asked(name));
    for (name, size, count) in sizes {
        if asked(name) || !is_any_asked {
            Files::new(size, count)?.measure(&lines)?;
        }
    }
    Ok(())
}

/// Equal files in a folder with subfolders.
struct Files {
    dir: tempfile::TempDir,
    size: usize,
    paths: Vec<PathBuf>,
    ring: Vec<Vec<u8>>,
}

/// Time to the first batch, and to the end.
#[derive(Clone, Copy)]
struct Times {
    first: Duration,
    all: Duration,
}

impl Files {
    fn new(size: usize, count: usize) -> Result<Files, Error> {
        let dir = tempfile::tempdir()?;
        let mut paths = Vec::new();
        for number in 0..count {
            let folder = dir.path().join(format!("{:02}", number * 16 / count));
            std::fs::create_dir_all(&folder)?;
            let path = folder.join(format!("{number:05}.bin"));
            std::fs::write(&path, vec![number as u8; size])?;
            File::open(&path)?.sync_all()?;
            paths.push(path);
        }
        // Small files that were changed just now are read with more care.
        std::thread::sleep(Duration::from_secs(7));
        Ok(Files {
            dir,
            size,
            paths,
            ring: vec![vec![1; size]; (RING / size).clamp(1, 1280)],
        })
    }

    fn measure(&mut self, lines: &Lines) -> Result<(), Error> {
        let root = self.dir.path().to_owned();
        let listed = || list_files(&root, "**/*.bin");
        let files: Vec<FileRef> = listed().collect()?;
        let loader = |graph: Graph<FileRef>, workers: usize| {
            DataLoader::builder(graph.load_files().batch(BATCH))
                .workers(workers)
                .build()
        };
        let mut loaders = Vec::new();
        for workers in [0, 1, 2] {
            let goal = if workers == 2 { 1.5 } else { 0.9 };
            for (name, graph) in [
                ("named", Graph::from_vec(files.clone())),
                ("listed", listed()),
            ] {
                let name = format!("{workers} workers, {name}");
                loaders.push((name, loader(graph, workers)?, goal));
            }
        }
        let mut floors = Vec::new();
        let mut times = vec![Vec::new(); loaders.len()];
        let (mut fresh, mut fresh_floors, mut cold) = (Vec::new(), Vec::new(), Vec::new());
        let mut pairs = Vec::new();
        // Cases take turns, so that all see the same machine; the first round warms up.
        for round in 0..=ROUNDS as u64 {
            floors.push(read(&self.paths, &mut self.ring)?);
            pairs.push(self.read_by_two()?);
            fresh_floors.push(self.read_new()?);
            for ((_, loader, _), times) in loaders.iter().zip(&mut times) {
                times.push(epoch(loader, round)?);
            }
            fresh.push(epoch(&loader(listed(), 2)?, 0)?);
        }
        for times in [&mut floors, &mut pairs, &mut fresh_floors, &mut fresh] {
            times.remove(0);
        }
        let case = Case {
            lines,
            size: self.size,
            count: self.paths.len(),
        };
        case.print("the floor on 2 threads", &pairs, &floors, |t| t.all, 0.0);
        for ((name, _, goal), times) in loaders.iter().zip(&mut times) {
            times.remove(0);
            case.print(name, times, &floors, |t| t.all, *goal);
        }
        for workers in ["1", "2"] {
            let args = [
                root.to_str().unwrap_or_default(),
                workers,
                &BATCH.to_string(),
            ];
            if let Some(seconds) = peer("torch_files.py", &args) {
                let all = Duration::from_secs_f64(seconds);
                let times = [Times { first: all, all }];
                let name = format!("PyTorch, {workers} processes");
                case.print(&name, &times, &floors, |times| times.all, 0.0);
            }
        }
        if self.paths.len() > BATCH {
            let case = Case {
                count: BATCH,
                ..case
            };
            let first = |times: &Times| times.first;
            // The goal is 1.3 times the time of the floor.
            let goal = 1.0 / 1.3;
            for ((name, ..), times) in loaders.iter().zip(&times).skip(4) {
                case.print(&format!("first batch, {name}"), times, &floors, first, goal);
            }
            let name = "first batch of a new loader, new memory";
            case.print(name, &fresh, &fresh_floors, first, goal);
        }
        let mut floors = Vec::new();
        for round in 0..3 {
            self.evict()?;
            floors.push(read(&self.paths, &mut self.ring)?);
            self.evict()?;
            cold.push(epoch(&loaders[loaders.len() - 1].1, 100 + round)?);
        }
        self.open_slowly(lines)?;
        case.print("2 workers, listed, cold", &cold, &floors, |t| t.all, 1.0);
        Ok(())
    }

    /// Reads half of the files on this thread, and half on another.
    fn read_by_two(&mut self) -> Result<Times, Error> {
        let begun = Instant::now();
        let (paths, rest) = self.paths.split_at(self.paths.len() / 2);
        let half = self.ring.len() / 2;
        let (ring, other) = self.ring.split_at_mut(half);
        std::thread::scope(|scope| {
            let read_rest = scope.spawn(|| read(rest, other));
            read(paths, ring).and(read_rest.join().expect("a thread that reads"))
        })?;
        let all = begun.elapsed();
        Ok(Times { first: all, all })
    }

    /// Reads the first batch on this thread, into new memory.
    fn read_new(&self) -> Result<Times, Error> {
        let begun = Instant::now();
        let paths = self.paths.iter().take(BATCH);
        let read: Result<Vec<Vec<u8>>, _> = paths.map(std::fs::read).collect();
        let all = begun.elapsed();
        drop(read?);
        Ok(Times { first: all, all })
    }

    /// Reads some of the files where each open takes some time more, as on a network file system.
    fn open_slowly(&mut self, lines: &Lines) -> Result<(), Error> {
        let count = self.paths.len().min(BATCH);
        let case = Case {
            lines,
            size: self.size,
            count,
        };
        let files: Vec<FileRef> = self.paths[..count].iter().map(FileRef::new).collect();
        // As many at once as there are workers, at least; far more where an open takes long.
        for (micros, goal) in [(200, 1.8), (5000, 16.0)] {
            let wait = Duration::from_micros(micros);
            let graph = Graph::from_vec(files.clone()).pipe(OpenSlowly(wait));
            let loader = DataLoader::builder(graph.load_files().batch(BATCH))
                .workers(2)
                .build()?;
            let (mut floors, mut times) = (Vec::new(), Vec::new());
            for round in 0..4 {
                let begun = Instant::now();
                (0..count).for_each(|_| std::thread::sleep(wait));
                let waited = begun.elapsed();
                let read = read(&self.paths[..count], &mut self.ring)?;
                let all = waited + read.all;
                floors.push(Times { first: all, all });
                times.push(epoch(&loader, round)?);
            }
            let name = format!("2 workers, opened in {} ms", micros as f64 / 1e3);
            case.print(&name, &times[1..], &floors[1..], |t| t.all, goal);
        }
        Ok(())
    }

    /// Asks the system to forget the files' content.
    fn evict(&self) -> Result<(), Error> {
        #[cfg(target_os = "linux")]
        for path in &self.paths {
            let file = File::open(path)?;
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            // SAFETY: the descriptor is open, and the call touches no memory of this process.
            unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        Ok(())
    }
}

/// Opens and reads files on this thread.
fn read(paths: &[PathBuf], ring: &mut [Vec<u8>]) -> Result<Times, Error> {
    let begun = Instant::now();
    let mut first = None;
    let places = ring.len();
    for (number, path) in paths.iter().enumerate() {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len() as usize;
        file.read_exact(&mut ring[number % places][..len])?;
        if number + 1 == BATCH {
            first = Some(begun.elapsed());
        }
    }
    let all = begun.elapsed();
    let first = first.unwrap_or(all);
    Ok(Times { first, all })
}

fn epoch(loader: &DataLoader<Vec<datapipes_io::File>>, number: u64) -> Result<Times, Error> {
    let begun = Instant::now();
    let mut first = None;
    for batch in loader.epoch(number).blocking() {
        std::hint::black_box(batch?);
        first.get_or_insert_with(|| begun.elapsed());
    }
    let all = begun.elapsed();
    let first = first.unwrap_or(all);
    Ok(Times { first, all })
}

struct Case<'a> {
    lines: &'a Lines,
    size: usize,
    count: usize,
}

impl Case<'_> {
    /// Prints the medians of a case and its floor, and the median of the ratios of paired runs.
    fn print(
        &self,
        name: &str,
        times: &[Times],
        floors: &[Times],
        part: impl Fn(&Times) -> Duration,
        goal: f64,
    ) {
        let rates = |times: &[Times]| -> Vec<f64> {
            let rate = |times| self.count as f64 / part(times).as_secs_f64();
            times.iter().map(rate).collect()
        };
        let (rates, floors) = (rates(times), rates(floors));
        let ratio = median(rates.iter().zip(&floors).map(|(a, b)| a / b).collect());
        let (rate, floor) = (median(rates), median(floors));
        let name = format!("{} kB: {name}", self.size / 1000);
        self.lines.print(&name, rate, ("floor", floor), ratio, goal);
    }
}
