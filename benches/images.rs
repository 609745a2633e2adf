//! W2: JPEGs from files, decoded, cropped at random, scaled to 224, mirrored, normalised to f32
//! CHW, in batches.
//!
//! The floor is a bare loop of the same decoder and resizer over files in memory, on one thread and
//! on two. Peers are those of `benches/peers/images_w2.py` that are installed. Images are those
//! of `$BENCH_DATA/img/train/CLASS/*.jpg`, or, if that is not set, 300 of about 500x375 made for
//! the run; and the same four times as wide and high.

mod support;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use datapipes::{DataLoader, Graph, Rng, Tensor};
use datapipes_image::prelude::*;
use datapipes_image::{decode, random_resized_crop};
use datapipes_io::{list_files, prelude::*};
use support::pictures::{picture, rows};
use support::{bar, case, compare, cpu_seconds, median, memory_mb, peer_figures};

const SIZE: u32 = 224;
const BATCH: usize = 64;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LARGE: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LARGE.fetch_add(u64::from(layout.size() >= 4096), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Memory) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Writes images of about 500x375, times `scale`.
fn make(dir: &Path, count: usize, scale: u32) -> std::io::Result<()> {
    let mut rng = Rng::from_key([7; 4]);
    std::fs::create_dir_all(dir.join("class"))?;
    for number in 0..count {
        let file = picture(&mut rng, 500 * scale, 375 * scale);
        std::fs::write(dir.join(format!("class/{number:04}.jpg")), file)?;
    }
    Ok(())
}

fn files(dir: &Path) -> std::io::Result<Vec<Bytes>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for class in std::fs::read_dir(dir)? {
        for file in std::fs::read_dir(class?.path())? {
            paths.push(file?.path());
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).map(Bytes::from))
        .collect()
}

/// Runs the bare loop: each thread decodes its share of the files into the rows of a batch.
fn bare(rows: &ImageRows, files: &[Bytes], threads: usize) {
    std::thread::scope(|scope| {
        for part in files.chunks(files.len().div_ceil(threads)) {
            scope.spawn(move || {
                let mut batch: Vec<Tensor> = (0..BATCH)
                    .map(|_| {
                        Tensor::zeros(datapipes::DType::F32, rows.shape()).expect("a fine size")
                    })
                    .collect();
                for (number, file) in part.iter().enumerate() {
                    let mut rng = Rng::from_key([number as u64; 4]);
                    rows.fill(file, &mut rng, &mut batch[number % BATCH])
                        .expect("a fine picture");
                }
            });
        }
    });
}

/// Decodes the files in separate steps: a whole image, a crop, a tensor.
fn steps(files: &[Bytes]) {
    for (number, file) in files.iter().enumerate() {
        let mut rng = Rng::from_key([number as u64; 4]);
        let image = decode(file).expect("a fine picture");
        let mut crop = random_resized_crop(&image, SIZE, &mut rng).expect("a fine size");
        if rng.chance(0.5) {
            datapipes_image::hflip(&mut crop);
        }
        std::hint::black_box(
            datapipes_image::to_tensor(&crop, &Normalize::IMAGENET).expect("a fine size"),
        );
    }
}

fn loader(graph: Graph<Bytes>, rows: ImageRows, workers: usize) -> DataLoader<Tensor> {
    DataLoader::builder(graph.image_rows(rows).batch(BATCH).collate())
        .workers(workers)
        .build()
        .expect("a right graph")
}

fn epoch(loader: &DataLoader<Tensor>, number: u64) -> usize {
    loader
        .epoch(number)
        .blocking()
        .map(|batch| batch.expect("fine pictures").shape()[0])
        .sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, numbers, dir] = &args[..]
        && flag == "--memory"
    {
        return memory(numbers, Path::new(dir));
    }
    let made = tempfile::tempdir()?;
    let dir = match std::env::var_os("BENCH_DATA") {
        Some(data) => PathBuf::from(data).join("img/train"),
        None => {
            make(&made.path().join("small"), 300, 1)?;
            made.path().join("small")
        }
    };
    let small = files(&dir)?;
    let count = small.len();
    println!(
        "{count} pictures, {:.1} MB",
        small.iter().map(Bytes::len).sum::<usize>() as f64 / 1e6
    );
    let in_memory = || Graph::from_vec(small.clone());

    // Files in memory: the loader compared with the bare loop.
    let (one, two) = (
        loader(in_memory(), rows(), 1),
        loader(in_memory(), rows(), 2),
    );
    let ratios = compare(
        "from bytes in memory to batches",
        count as f64,
        "images",
        5,
        vec![
            case("bare loop, one thread", || bare(&rows(), &small, 1)),
            case("bare loop, two threads", || bare(&rows(), &small, 2)),
            case("loader, 1 worker", || epoch(&one, 0)),
            case("loader, 2 workers", || epoch(&two, 0)),
            case("in steps, one thread", || steps(&small)),
        ],
    );
    bar("1 worker beside the bare loop", 1.0 / ratios[2], 0.9, true);
    bar(
        "2 workers beside the bare loop on two threads",
        ratios[1] / ratios[3],
        0.9,
        true,
    );
    bar("2 workers beside 1", ratios[2] / ratios[3], 1.9, true);

    // Allocations.
    let before = [&ALLOCATIONS, &LARGE].map(|counter| counter.load(Ordering::Relaxed));
    bare(&rows(), &small, 1);
    let after = [&ALLOCATIONS, &LARGE].map(|counter| counter.load(Ordering::Relaxed));
    // The rows of the thread's batch and the thread itself are allocated once.
    let once = 3 * BATCH as u64 + 100;
    bar(
        "allocations a picture, bare",
        (after[0] - before[0]).saturating_sub(once) as f64 / count as f64,
        0.0,
        false,
    );
    epoch(&two, 1);
    let before = [&ALLOCATIONS, &LARGE].map(|counter| counter.load(Ordering::Relaxed));
    epoch(&two, 2);
    let after = [&ALLOCATIONS, &LARGE].map(|counter| counter.load(Ordering::Relaxed));
    println!(
        "allocations a picture, loader: {:.1}, of 4 kB and more: {:.3}",
        (after[0] - before[0]) as f64 / count as f64,
        (after[1] - before[1]) as f64 / count as f64
    );

    let beside = peers_beside(
        &dir,
        count,
        &[
            ("datapipes", rows()),
            ("datapipes, scaled", rows().scaled()),
        ],
    )?;
    let wanted = if cfg!(feature = "turbo") {
        [1.4, 1.7]
    } else {
        [1.1, 1.1]
    };
    for (ratio, wanted) in beside.into_iter().zip(wanted) {
        bar(
            "images a CPU second, beside the best peer",
            ratio,
            wanted,
            true,
        );
    }

    // Large photographs, of which only a part at a reduced scale is needed.
    let large_dir = made.path().join("large");
    make(&large_dir, 40, 4)?;
    let large = files(&large_dir)?;
    let draw = |rows: ImageRows, files: Vec<Bytes>| move || bare(&rows, &files, 1);
    let ratios = compare(
        "one thread, 2000x1500 pictures",
        large.len() as f64,
        "images",
        5,
        vec![
            case("in steps: all of it decoded", || steps(&large)),
            case("only what the crop needs", draw(rows(), large.clone())),
            case("and scaled", draw(rows().scaled(), large.clone())),
        ],
    );
    println!("scaled: {:.2} times as many", 1.0 / ratios[2]);
    let beside = peers_beside(
        &large_dir,
        large.len(),
        &[("datapipes, scaled", rows().scaled())],
    )?;
    beside.into_iter().for_each(|ratio| {
        bar(
            "images a CPU second, beside the best peer",
            ratio,
            4.0,
            true,
        )
    });
    let ratios = compare(
        "one thread, the small pictures",
        count as f64,
        "images",
        3,
        vec![
            case("in steps: all of it decoded", || steps(&small)),
            case("only what the crop needs", draw(rows(), small.clone())),
            case("and scaled", draw(rows().scaled(), small.clone())),
        ],
    );
    println!("scaled: {:.2} times as many", 1.0 / ratios[2]);

    // Peak memory, measured in a process of its own.
    for numbers in ["u8", "f32"] {
        let peak = Command::new(std::env::current_exe()?)
            .args(["--memory", numbers])
            .arg(&dir)
            .output()?;
        let peak: f64 = String::from_utf8(peak.stdout)?.trim().parse()?;
        bar(
            &format!("peak MB of batches of 256 {numbers}"),
            peak,
            300.0,
            false,
        );
    }
    Ok(())
}

/// Prints the peak memory of a process for some batches of 256, in MB. The consumer drops each
/// batch before it asks for the next.
fn memory(numbers: &str, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let rows = if numbers == "u8" {
        ImageRows::random_resized_crop(SIZE)
    } else {
        rows()
    };
    let graph = list_files(dir, "*/*.jpg")
        .load_files()
        .map(|file| file.data)
        .image_rows(rows)
        .batch(256)
        .collate();
    let loader = DataLoader::builder(graph)
        .workers(2)
        .prefetch(1)
        .memory(100 << 20)
        .build()?;
    for batch in loader.epoch(0).blocking() {
        drop(batch?);
    }
    println!("{}", memory_mb("VmHWM"));
    Ok(())
}

/// Compares our rows from files with those of peers: images per CPU second, ours relative to the
/// best peer.
fn peers_beside(
    dir: &Path,
    count: usize,
    ours: &[(&str, ImageRows)],
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let folder = dir.to_string_lossy().into_owned();
    let peers: Vec<&str> = ["dali", "torchvision", "pillow"]
        .into_iter()
        .filter(|peer| peer_figures("images_w2.py", &[peer, &folder, "2"]).is_some())
        .collect();
    let mut loaders = Vec::new();
    for (name, rows) in ours {
        let graph = list_files(dir, "*/*.jpg")
            .shuffle(count)
            .load_files()
            .map(|file| file.data);
        let graph = graph.image_rows(rows.clone()).batch(BATCH).collate();
        loaders.push((name, DataLoader::builder(graph).workers(2).build()?));
    }
    let mut figures: Vec<Vec<(f64, f64)>> = vec![Vec::new(); loaders.len() + peers.len()];
    for number in 0..3 {
        for ((_, loader), figures) in loaders.iter().zip(&mut figures) {
            let (begun, before) = (Instant::now(), cpu_seconds());
            epoch(loader, number);
            figures.push((begun.elapsed().as_secs_f64(), cpu_seconds() - before));
        }
        for (peer, figures) in peers.iter().zip(&mut figures[loaders.len()..]) {
            figures.extend(peer_figures("images_w2.py", &[peer, &folder, "2"]));
        }
    }
    println!("\nfrom {count} files, two threads (medians of 3 rounds in turn)");
    println!(
        "{:<20} {:>12} {:>22}",
        "", "images/s", "images a CPU second"
    );
    let by = |figures: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| {
        count as f64 / median(figures.iter().map(pick).collect())
    };
    let names = loaders.iter().map(|(name, _)| **name).chain(peers);
    let mut rates = Vec::new();
    for (name, figures) in names.zip(&figures) {
        rates.push(by(figures, |f| f.1));
        println!(
            "{name:<20} {:>12.0} {:>22.0}",
            by(figures, |f| f.0),
            by(figures, |f| f.1)
        );
    }
    let best = rates[loaders.len()..].iter().copied().fold(0.0, f64::max);
    Ok(rates[..loaders.len()]
        .iter()
        .filter(|_| best > 0.0)
        .map(|rate| rate / best)
        .collect())
}
