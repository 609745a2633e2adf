//! Photo-like images from a seed, in WebDataset shards. No download, no image library.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use datapipes::Rng;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::archive::write_tar;

/// Number of classes of [`photo`]; picture `index` is of class `index % CLASSES`.
pub const CLASSES: u64 = 20;

/// Makes a photo-like JPEG, the same for the same numbers: about 455x380 pixels and 110 kB on
/// average, like those of ImageNet.
///
/// The image has a few regions with hard edges, each with its own color (the first by class) and
/// texture, with noise over all.
pub fn photo(index: u64, seed: u64) -> Vec<u8> {
    let mut rng = Rng::from_key([seed, index, 0, 0x0070_686f_746f]);
    let (width, height) = size(&mut rng);
    let mut view = || View::random(&mut rng, width, height);
    let (depth, light, fine, tint) = (view(), view(), view(), view());

    let regions = 3 + rng.below(4) as usize;
    let mut levels: Vec<i32> = (1..regions)
        .map(|_| rng.range(-70.0, 70.0) as i32)
        .collect();
    levels.sort_unstable();
    let colour = |rng: &mut Rng| [0; 3].map(|_: i32| rng.range(40.0, 215.0) as i32);
    let mut colours: Vec<[i32; 3]> = (0..regions).map(|_| colour(&mut rng)).collect();
    let class = index % CLASSES;
    let hue = class as f64 / CLASSES as f64 * std::f64::consts::TAU;
    colours[regions / 2] = [0.0, 2.1, 4.2].map(|third| (128.0 + 80.0 * (hue + third).cos()) as i32);
    let texture: Vec<i32> = (0..regions).map(|_| rng.range(4.0, 26.0) as i32).collect();
    let grain = rng.range(GRAIN.0, GRAIN.1) as i32;
    let chroma = rng.range(1.0, 8.0) as i32;

    let mut pixels = Vec::with_capacity(width * height * 3);
    let mut noise = u64::from(rng.next_u32()) | 1;
    for y in 0..height {
        let rows = [depth.row(y), light.row(y), fine.row(y), tint.row(y)];
        for x in 0..width {
            let [depth, light, fine, tint] = rows.map(|row| i32::from(row[x]));
            let region = levels.iter().filter(|&&level| depth >= level).count();
            // xorshift; the sum of four bytes is nearly normal.
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            let sum: i32 = (noise as u32)
                .to_le_bytes()
                .into_iter()
                .map(i32::from)
                .sum();
            let value = (texture[region] * (3 * light + fine) + grain * (sum - 510)) >> 7;
            let tint = (chroma * tint) >> 5;
            let [r, g, b] = colours[region];
            pixels.extend(
                [r + value + tint, g + value - tint / 2, b + value + tint]
                    .map(|v| v.clamp(0, 255) as u8),
            );
        }
    }

    let mut jpeg = Vec::with_capacity(128 << 10);
    let mut encoder = Encoder::new(&mut jpeg, 95);
    // Two in three are subsampled, as images of the web are.
    let sampling = if index.is_multiple_of(3) {
        SamplingFactor::F_1_1
    } else {
        SamplingFactor::F_2_2
    };
    encoder.set_sampling_factor(sampling);
    encoder
        .encode(&pixels, width as u16, height as u16, ColorType::Rgb)
        .expect("the pixels fit the size, and memory does not fail");
    jpeg
}

/// Minimum and maximum noise, tuned for the mean size of a file.
const GRAIN: (f64, f64) = (5.0, 14.0);

fn size(rng: &mut Rng) -> (usize, usize) {
    match rng.below(100) {
        0..36 => (500, 375),
        36..52 => (500, 333),
        52..64 => (375, 500),
        64..70 => (333, 500),
        70..76 => (400, 300),
        76..81 => (320, 240),
        81..85 => (256, 256),
        85..88 => (640, 480),
        88 => (800, 600),
        89 => (1024, 768),
        _ => (220 + rng.below(420) as usize, 200 + rng.below(320) as usize),
    }
}

/// Edge of a [`FIELDS`] field.
const FIELD: usize = 1024;

/// Random fields with about a 1/f spectrum, as in natural images: value noise, twice as fine and
/// about half as strong in each octave. Their values are from -128 to 127. Made once in a process.
static FIELDS: LazyLock<Vec<Vec<i8>>> = LazyLock::new(|| {
    (0..6)
        .map(|field| {
            let mut sum = vec![0.0f32; FIELD * FIELD];
            for octave in 0..9 {
                let cell = FIELD >> (octave + 1);
                let strength = (0.5 + 0.02 * field as f32).powi(octave);
                add_noise(
                    &mut sum,
                    cell,
                    strength,
                    &mut Rng::from_key([field, octave as u64, 0, 0x0066_6965_6c64]),
                );
            }
            let mean = sum.iter().sum::<f32>() / sum.len() as f32;
            let deviation =
                (sum.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / sum.len() as f32).sqrt();
            sum.iter()
                .map(|v| ((v - mean) / deviation * 45.0).clamp(-128.0, 127.0) as i8)
                .collect()
        })
        .collect()
});

/// Adds random values at the corners of cells, blended between.
fn add_noise(sum: &mut [f32], cell: usize, strength: f32, rng: &mut Rng) {
    let corners = FIELD / cell;
    let values: Vec<f32> = (0..corners * corners)
        .map(|_| strength * (2.0 * rng.f32() - 1.0))
        .collect();
    let blend: Vec<f32> = (0..cell)
        .map(|i| i as f32 / cell as f32)
        .map(|t| t * t * (3.0 - 2.0 * t))
        .collect();
    for (y, row) in sum.chunks_exact_mut(FIELD).enumerate() {
        let (top, bottom) = (y / cell * corners, (y / cell + 1) % corners * corners);
        for (x, cells) in row.chunks_exact_mut(cell).enumerate() {
            let next = (x + 1) % corners;
            let down = |x: usize| {
                values[top + x] + (values[bottom + x] - values[top + x]) * blend[y % cell]
            };
            let (left, right) = (down(x), down(next));
            for (value, t) in cells.iter_mut().zip(&blend) {
                *value += left + (right - left) * t;
            }
        }
    }
}

/// A part of a field.
struct View {
    field: &'static [i8],
    x: usize,
    y: usize,
}

impl View {
    fn random(rng: &mut Rng, width: usize, height: usize) -> View {
        let field = &FIELDS[rng.below(FIELDS.len() as u64) as usize];
        let mut start = |len: usize| rng.below((FIELD - len) as u64 + 1) as usize;
        View {
            field,
            x: start(width),
            y: start(height),
        }
    }

    fn row(&self, y: usize) -> &'static [i8] {
        &self.field[(self.y + y) * FIELD + self.x..]
    }
}

/// Returns the folder for files that examples make: `$DATAPIPES_CACHE`, or the user's cache folder.
pub fn cache_folder() -> PathBuf {
    let from = |name| std::env::var_os(name).map(PathBuf::from);
    from("DATAPIPES_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|dir| dir.join("datapipes")))
        .or_else(|| from("HOME").map(|dir| dir.join(".cache/datapipes")))
        .unwrap_or_else(|| std::env::temp_dir().join("datapipes"))
}

/// Returns the folder of the shards that the quickstart example makes: in `$DATAPIPES_CACHE`, or in
/// the user's cache folder. Makes them, with a progress bar, if they do not exist yet.
pub fn quickstart_shards(images: usize) -> io::Result<PathBuf> {
    let dir = cache_folder().join(format!("photos-{images}"));
    let bar = super::making(&dir, images as u64, "images");
    make_shards(&dir, images, 250, |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    Ok(dir)
}

/// Writes images 0 to `images` as WebDataset shards, `per_shard` in each; see [`make_files`].
/// `progress` receives the number of images so far.
///
/// A shard holds `000123.jpg` and `000123.cls`.
pub fn make_shards(
    dir: &Path,
    images: usize,
    per_shard: usize,
    progress: impl Fn(usize) + Sync,
) -> io::Result<Vec<PathBuf>> {
    let per_shard = per_shard.max(1);
    let names = (0..images.div_ceil(per_shard)).map(|shard| format!("shard-{shard:06}.tar"));
    let names: Vec<String> = names.collect();
    let written = AtomicUsize::new(0);
    let made_with = format!("version 1, {images} images, {per_shard} in a shard\n");
    make_files(dir, &made_with, &names, |shard, path| {
        let first = shard * per_shard;
        write_shard(path, first..images.min(first + per_shard), || {
            progress(written.fetch_add(1, Ordering::Relaxed) + 1);
        })
    })
}

/// Writes files of these names to a folder, on all cores, and returns their paths in order; `write`
/// receives the number and the path of a file.
///
/// Files that an earlier run made with the same words are reused. If one of them is missing, or it
/// made them with other words, all files with the same beginning and ending are made again.
pub fn make_files(
    dir: &Path,
    made_with: &str,
    names: &[String],
    write: impl Fn(usize, &Path) -> io::Result<()> + Sync,
) -> io::Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
    let done = dir.join("done");
    if fs::read_to_string(&done).is_ok_and(|text| text == made_with)
        && paths.iter().all(|path| path.is_file())
    {
        return Ok(paths);
    }
    fs::create_dir_all(dir)?;
    match fs::remove_file(&done) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // A program that lists the folder would read files of other numbers.
    let (begin, end) = names.first().map_or(("", ""), |name| {
        let begin = name.find('-').map_or(0, |at| at + 1);
        name.split_at(begin)
    });
    let end = end.trim_start_matches(|letter: char| letter.is_ascii_digit());
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(begin) && (name.ends_with(end) || name.ends_with(".tmp")) {
            fs::remove_file(dir.join(&*name))?;
        }
    }

    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        loop {
            let file = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(file) else { break };
            if let Err(error) = write(file, path) {
                next.store(paths.len(), Ordering::Relaxed);
                failed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(paths.len()) {
            scope.spawn(work);
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    write_whole(&done, |file| {
        io::Write::write_all(file, made_with.as_bytes())
    })?;
    Ok(paths)
}

fn write_shard(path: &Path, images: std::ops::Range<usize>, made: impl Fn()) -> io::Result<()> {
    let members = images.flat_map(|image| {
        let class = image as u64 % CLASSES;
        made();
        [
            (format!("{image:06}.jpg"), photo(image as u64, 0)),
            (format!("{image:06}.cls"), class.to_string().into_bytes()),
        ]
    });
    write_whole(path, |file| write_tar(file, members).map(drop))
}

/// Writes a file under a temporary name, and renames it when it is complete.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&temporary)?);
    write(&mut file)?;
    file.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    fs::rename(&temporary, path)
}
