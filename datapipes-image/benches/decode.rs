//! JPEGs decoded per second of CPU time: whole, in part, scaled, and by zune-jpeg for comparison.
//!
//! `BENCH_DATA=folder cargo bench -p datapipes-image --bench decode` reads the JPEGs of that folder
//! and of its subfolders; without it, a few are made. The ways to decode take turns, so that a
//! change of the machine's speed affects all of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes::Rng;
use datapipes_image::{RandomResizedCrop, Rect, decode, decode_jpeg_part, dimensions};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;

/// An allocator that counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Photo {
    bytes: Vec<u8>,
    size: (u32, u32),
    crop: Rect,
}

type Way<'a> = (&'a str, &'a dyn Fn(&Photo));

fn main() {
    let files = match std::env::var_os("BENCH_DATA") {
        Some(folder) => read(Path::new(&folder), 200),
        None => (0..8).map(made).collect(),
    };
    let photos: Vec<Photo> = files
        .into_iter()
        .enumerate()
        .filter_map(|(n, bytes)| {
            let size = dimensions(&bytes).ok()?;
            let crop = RandomResizedCrop::new(224, 224).part(
                size.0,
                size.1,
                &mut Rng::from_key([n as u64, 0, 0, 0]),
            );
            let whole = Rect {
                x: 0,
                y: 0,
                width: size.0,
                height: size.1,
            };
            // Images with an orientation are left out: their crops would be of different parts.
            decode_jpeg_part(&bytes, 1, whole)
                .is_ok()
                .then_some(Photo { bytes, size, crop })
        })
        .collect();
    assert!(!photos.is_empty(), "no JPEGs in BENCH_DATA");
    let bytes: usize = photos.iter().map(|photo| photo.bytes.len()).sum();
    println!(
        "{} JPEGs, {} kB each",
        photos.len(),
        bytes / photos.len() / 1000
    );

    let scaled = |photo: &Photo, scale: u32| {
        let (width, height) = (photo.size.0.div_ceil(scale), photo.size.1.div_ceil(scale));
        drop(decode_jpeg_part(
            &photo.bytes,
            scale,
            Rect {
                x: 0,
                y: 0,
                width,
                height,
            },
        ));
    };
    let ways: [Way<'_>; 6] = [
        ("whole", &|photo| drop(decode(&photo.bytes))),
        ("the part of a random resized crop", &|photo| {
            drop(decode_jpeg_part(&photo.bytes, 1, photo.crop));
        }),
        ("1/2", &|photo| scaled(photo, 2)),
        ("1/4", &|photo| scaled(photo, 4)),
        ("1/8", &|photo| scaled(photo, 8)),
        ("zune-jpeg, whole", &|photo| {
            drop(JpegDecoder::new(ZCursor::new(&photo.bytes)).decode())
        }),
    ];
    let mut times = vec![Vec::new(); ways.len()];
    let mut allocations = vec![0; ways.len()];
    for round in 0..8 {
        for (n, (_, way)) in ways.iter().enumerate() {
            let (begun, before) = (now(), ALLOCATIONS.load(Ordering::Relaxed));
            photos.iter().for_each(way);
            // The first round fills caches and buffers.
            if round > 0 {
                times[n].push(now() - begun);
                allocations[n] = ALLOCATIONS.load(Ordering::Relaxed) - before;
            }
        }
    }
    for ((name, _), (mut times, allocations)) in ways.iter().zip(times.into_iter().zip(allocations))
    {
        times.sort();
        let rate = |time: Duration| photos.len() as f64 / time.as_secs_f64();
        println!(
            "{name:34} {:6.0} images per CPU second (median), {:6.0} (best), {:.1} allocations each",
            rate(times[times.len() / 2]),
            rate(times[0]),
            allocations as f64 / photos.len() as f64
        );
    }
}

/// Returns the CPU time of this thread where Linux reports it, and wall time elsewhere.
fn now() -> Duration {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|told| told.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| BEGUN.elapsed(), Duration::from_nanos)
}

/// Reads the first files of a folder and of its subfolders.
fn read(folder: &Path, most: usize) -> Vec<Vec<u8>> {
    let (mut folders, mut files) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).expect("BENCH_DATA is a folder that can be read");
        let mut paths: Vec<_> = entries
            .map(|entry| entry.expect("its entries can be read").path())
            .collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|ext| ext == "jpg" || ext == "jpeg")
                && files.len() < most
            {
                files.push(std::fs::read(&path).expect("its files can be read"));
            }
        }
    }
    files
}

/// Makes a photo-like JPEG: soft waves, edges and grain.
fn made(n: u32) -> Vec<u8> {
    let (width, height) = (500u16, 375u16);
    let pixel = |x: u32, y: u32| {
        let grain = ((x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503_123)).wrapping_mul(97)
            >> 27) as f32;
        let wave = ((x + n * 31) as f32 / 23.0).sin() + (y as f32 / 17.0).cos();
        let edge = if (x / 60 + y / 45 + n).is_multiple_of(3) {
            60.0
        } else {
            0.0
        };
        [
            wave * 40.0 + edge + grain,
            wave * 30.0 + 20.0 + grain,
            60.0 - wave * 25.0 + edge,
        ]
        .map(|value| (value + 80.0) as u8)
    };
    let data: Vec<u8> = (0..u32::from(height))
        .flat_map(|y| (0..u32::from(width)).flat_map(move |x| pixel(x, y)))
        .collect();
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 90);
    encoder.set_sampling_factor(if n.is_multiple_of(3) {
        SamplingFactor::F_1_1
    } else {
        SamplingFactor::F_2_2
    });
    encoder
        .encode(&data, width, height, ColorType::Rgb)
        .expect("it has its size");
    file
}
