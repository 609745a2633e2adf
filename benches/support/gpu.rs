//! Benches that feed a GPU: their JPEG shards, the loader over these, and how a step on its batches
//! is measured.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use datapipes::{DataLoader, Graph, Rng, Tensor};
use datapipes_image::{ImageRows, Normalize, prelude::*};
use datapipes_io::{Sample, formats::ShardWriter, list_files, prelude::*};

use super::Lines;
use super::pictures::picture;

pub const SIZE: usize = 224;
/// Number of images in the shards.
pub const IMAGES: usize = 8192;
/// Images per second of PyTorch 2.11's ResNet-50 on random data on an H100, in bf16, channels last,
/// 256 per batch.
pub const FAST_STEP: f64 = 4000.0;

/// Type of the pixels that are uploaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pixels {
    Bytes,
    Floats,
}

/// Batches of so many images with pixels of a type.
pub type Batches = (usize, Pixels);

/// Images with a photograph's spectrum, in shards of 512.
pub struct Shards {
    folder: tempfile::TempDir,
    cores: usize,
    only: Option<String>,
}

impl Shards {
    /// Writes the shards.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let graph = Graph::range(0..IMAGES as u64)
            .map_with_rng(|number, rng: &mut Rng| (number, picture(rng, 500, 375)));
        let mut shards = ShardWriter::new(folder.path().join("%04d.tar"))?.max_count(512);
        for picture in DataLoader::builder(graph).build()?.epoch(0).blocking() {
            let (number, jpeg) = picture?;
            let class = (number % 1000).to_string();
            shards.write(
                &Sample::new(format!("{number:06}"))
                    .with("jpg", jpeg)
                    .with("cls", class),
            )?;
        }
        shards.finish()?;
        Ok(Shards {
            folder,
            cores: std::thread::available_parallelism()?.get(),
            only: std::env::args().skip(1).find(|arg| !arg.starts_with('-')),
        })
    }

    /// Returns whether a part of the bench was asked for: by its name, or all of them.
    pub fn wanted(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part)
    }

    /// Builds a loader of batches: `[n, 3, 224, 224]` of bytes, or of `f32` from 0 to 1, and `[n]`
    /// of `i64`.
    pub fn loader(
        &self,
        (batch, pixels): Batches,
        workers: usize,
    ) -> Result<DataLoader<(Tensor, Tensor)>, Box<dyn Error>> {
        let rows = ImageRows::random_resized_crop(SIZE as u32).random_hflip(0.5);
        let rows = match pixels {
            Pixels::Bytes => rows,
            Pixels::Floats => rows.normalize(Normalize::UNIT),
        };
        let graph = list_files(self.folder.path(), "*.tar")
            .shuffle(1000)
            .stream_untar()
            .samples()
            .shuffle(1000)
            .named("shuffle samples")
            .try_map(|sample| {
                datapipes::Ok((sample.get("jpg")?.clone(), sample.parse::<i64>("cls")?))
            })
            .image_rows(rows)
            .batch(batch)
            .collate();
        Ok(DataLoader::builder(graph).workers(workers).build()?)
    }

    /// Prints how fast batches arrive where no step follows, with increasing numbers of workers.
    /// `rate` returns images per second with so many workers, and the share of time that was waited.
    pub fn alone(&self, rate: impl Fn(Batches, usize) -> Rate) -> Result<(), Box<dyn Error>> {
        let lines = Lines::new("no step, batches of 256 bytes", "images/s");
        let mut one = None;
        for workers in self.workers() {
            let (rate, _) = rate((256, Pixels::Bytes), workers)?;
            let one = *one.get_or_insert(rate);
            let case = format!("no step, {workers} workers");
            lines.print(&case, rate, ("1 worker", one), rate / one, 0.0);
        }
        Ok(())
    }

    /// Prints the rate of a step on a batch that stays on the device, and on fed batches with
    /// increasing numbers of workers.
    pub fn beside(
        &self,
        name: &str,
        batches: Batches,
        mut resident: impl FnMut() -> Result<(), Box<dyn Error>>,
        rate: impl Fn(Batches, usize) -> Rate,
    ) -> Result<(), Box<dyn Error>> {
        let (batch, pixels) = batches;
        let steps = (IMAGES / batch).min(64);
        (0..3).try_for_each(|_| resident())?;
        let begun = Instant::now();
        (0..steps).try_for_each(|_| resident())?;
        let floor = (steps * batch) as f64 / begun.elapsed().as_secs_f64();
        let title = format!("{name}, {batch} {pixels:?}");
        let lines = Lines::new(&title, "images/s");
        let mut best = 0f64;
        for workers in self.workers() {
            let (rate, waited) = rate(batches, workers)?;
            best = best.max(rate);
            let beside = format!("stays; {:.1} % waiting", 100.0 * waited);
            let case = format!("{title}, {workers} workers");
            lines.print(&case, rate, (&beside, floor), rate / floor, 0.0);
        }
        let case = format!("{title}, best");
        lines.print(&case, best, ("stays (floor)", floor), best / floor, 0.98);
        Ok(())
    }

    /// Returns 1, 2, 4, … up to the number of cores.
    fn workers(&self) -> impl Iterator<Item = usize> {
        let cores = self.cores;
        std::iter::successors(Some(1), |n| Some(2 * n)).take_while(move |&n| n <= cores)
    }
}

/// Makes twelve batches of so many numbers, to see whether they arrive as they were made.
pub fn numbered(len: usize) -> Result<DataLoader<Tensor>, Box<dyn Error>> {
    let batch = move |n| Tensor::from_vec((0..len).map(|i| number(n, i)).collect(), [len]);
    let batches = Graph::range(0..12).try_map(batch);
    Ok(DataLoader::builder(batches).workers(2).build()?)
}

/// Asserts that this batch of [`numbered`] has arrived as it was made.
pub fn assert_numbered(n: u64, batch: &[f32]) {
    let is_right = |(i, &got): (usize, &f32)| got == number(n, i);
    let len = batch.len();
    assert!(batch.iter().enumerate().all(is_right), "batch {n} of {len}");
}

fn number(n: u64, i: usize) -> f32 {
    ((n as usize * 1_000_003 + i) % 16_777_213) as f32
}

/// Images per second, and the share of the time that the consumer waited for data.
pub type Rate = Result<(f64, f64), Box<dyn Error>>;

/// Measures the second epoch. `step` returns the number of its images.
pub fn run<I: Iterator>(
    epoch: impl Fn() -> I,
    mut step: impl FnMut(I::Item) -> Result<usize, Box<dyn Error>>,
) -> Rate {
    for batch in epoch().take(4) {
        step(batch)?;
    }
    let (begun, mut waited, mut count) = (Instant::now(), 0.0, 0);
    let mut epoch = epoch();
    loop {
        let asked = Instant::now();
        let Some(batch) = epoch.next() else {
            break;
        };
        waited += asked.elapsed().as_secs_f64();
        count += step(batch)?;
    }
    let wall = begun.elapsed().as_secs_f64();
    Ok((count as f64 / wall, waited / wall))
}
