//! Images, masks and boxes together: the same random crop, flip and rotation for all three, then
//! batches.
//!
//! `cargo run --release --example segmentation` makes 120 images of shapes (once, in a cache
//! folder), runs an epoch over them, and checks for every pixel of every batch that its color still
//! matches its class in the mask.
//!
//! Options: `--out DIR` (writes a sheet of pictures and masks there), `--pictures N`, `--batch N`,
//! `--size PIXELS`, `--workers N`, `--seed N`, `--epochs N`.

mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use datapipes::{BoxError, Collate, DataLoader, Graph, Result, Rng, Tensor};
use datapipes_image::{
    Boxes, Geometry, Image, Mask, Normalize, RandomFlip, RandomResizedCrop, RandomRotation, Rect,
    ResizeFilter, Spatial, decode, to_tensor,
};
use datapipes_io::prelude::*;
use datapipes_io::{Sample, list_files};
use support::args::Args;
use support::{png, shapes};

const USAGE: &str = "segmentation [--out DIR] [--pictures N] [--batch N] [--size PIXELS] [--workers N] [--seed N] \
                     [--epochs N]";

/// Class of pixels outside of an image, which training ignores.
const IGNORE: u8 = 255;

/// An image, the class of each of its pixels, and the boxes of its objects.
struct Scene {
    image: Image,
    mask: Mask,
    boxes: Boxes,
    labels: Vec<u8>,
}

impl Scene {
    /// Reads `x.jpg`, `x.mask.png` and `x.boxes.json`.
    fn read(sample: Sample) -> Result<Scene> {
        let image = decode(sample.get("jpg")?)?;
        let mask = Mask::<u8>::decode(sample.get("mask.png")?)?.outside(IGNORE);
        let things: Vec<(u8, f32, f32, f32, f32)> =
            serde_json::from_slice(sample.get("boxes.json")?).map_err(datapipes::Error::user)?;
        let corners = things
            .iter()
            .map(|&(_, left, top, right, bottom)| [left, top, right, bottom])
            .collect();
        let boxes = Boxes::new(image.width(), image.height(), corners)?;
        Ok(Scene {
            image,
            mask,
            boxes,
            labels: things.iter().map(|thing| thing.0).collect(),
        })
    }

    /// Draws one geometry, and applies it to all parts.
    fn augment(self, size: u32, rng: &mut Rng) -> Result<Scene> {
        let geometry = Geometry::of(&self.image)
            .draw(&RandomResizedCrop::new(size, size).scale(0.3, 1.0), rng)?
            .draw(&RandomFlip::horizontal(0.5), rng)?
            .draw(
                &RandomRotation::new(15.0).filter(ResizeFilter::Bilinear),
                rng,
            )?;
        geometry.apply(self)
    }

    /// Returns tensors, and the boxes that are still visible, with their labels.
    fn into_item(self) -> Result<Item> {
        let (boxes, kept) = self.boxes.sanitize(1.0, 1.0)?;
        let labels = kept.select(self.labels)?;
        let image = to_tensor(&self.image, &Normalize::UNIT)?;
        Ok(Item {
            image,
            mask: self.mask.into_tensor()?,
            things: Things { boxes, labels },
        })
    }
}

impl Spatial for Scene {
    fn place(self, geometry: &Geometry) -> Result<Scene> {
        let Scene {
            image,
            mask,
            boxes,
            labels,
        } = self;
        let (image, mask, boxes) = geometry.apply((image, mask, boxes))?;
        Ok(Scene {
            image,
            mask,
            boxes,
            labels,
        })
    }
}

/// Input of a model. A batch has the fields `image`, `[n, 3, size, size]` of `f32`; `mask`, `[n,
/// size, size]` of `u8`; and a list of `things`, of which each picture has its own number.
#[derive(Collate)]
struct Item {
    image: Tensor,
    mask: Tensor,
    #[collate(with = Ok, batch = Vec<Things>)]
    things: Things,
}

#[derive(Clone, Debug)]
struct Things {
    boxes: Boxes,
    labels: Vec<u8>,
}

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let args = Args::parse("", "out pictures batch size workers seed epochs", USAGE);
    let (batch, size) = (
        args.get("batch").unwrap_or(16),
        args.get("size").unwrap_or(128),
    );
    let folder = shapes::make(args.get("pictures").unwrap_or(120).max(1))?;

    let graph: Graph<ItemBatch> = list_files(folder, "**/*.tar")
        .shuffle(100)
        .stream_untar()
        .samples()
        .shuffle(100)
        .named("shuffle samples")
        .try_map(Scene::read)
        .named("decode")
        .try_map_with_rng(move |scene, rng| scene.augment(size, rng))
        .named("augment")
        .try_map(Scene::into_item)
        .named("to_tensor")
        .batch(batch)
        .collate();
    let mut builder = DataLoader::builder(graph).seed(args.get("seed").unwrap_or(42));
    if let Some(workers) = args.get("workers") {
        builder = builder.workers(workers);
    }
    let loader = builder.build()?;

    let mut sheet = Vec::new();
    for epoch in 0..args.get("epochs").unwrap_or(1) {
        let begun = Instant::now();
        let (mut pictures, mut aligned, mut mirrored) = (0, Share::default(), Share::default());
        let mut boxed = Share::default();
        for batch in loader.epoch(epoch).blocking() {
            let batch = batch?;
            // A training step would be here. The example checks that images, masks and boxes
            // still match.
            for (index, things) in batch.things.iter().enumerate() {
                let image = picture(&batch.image.row(index)?)?;
                let mask = Mask::<u8>::from_tensor(batch.mask.row(index)?)?;
                aligned.count(&image, &mask);
                mirrored.count(&image, &Geometry::of(&image).hflip().apply(mask.clone())?);
                boxed.count_boxed(&mask, things);
                if sheet.len() < 12 {
                    sheet.push((image, mask, things.boxes.clone()));
                }
                pictures += 1;
            }
        }
        let wall = begun.elapsed().as_secs_f64();
        println!(
            "epoch {epoch}: {pictures} pictures in {wall:.2} s, {:.0}/s",
            f64::from(pictures) / wall
        );
        println!(
            "  {:.2} % of the pixels have the colour of their class",
            aligned.percent()
        );
        println!(
            "  {:.2} % would, were the masks mirrored",
            mirrored.percent()
        );
        println!(
            "  {:.2} % of the pixels of shapes are in a box of their class",
            boxed.percent()
        );
        if aligned.percent() < 98.0 || boxed.percent() < 98.0 {
            return Err("pictures, masks and boxes do not belong together any more".into());
        }
    }
    println!("\n{}", loader.explain());
    if let Some(stats) = loader.stats() {
        println!("{stats}");
    }
    if let Some(folder) = args.get::<PathBuf>("out") {
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("segmentation.png");
        std::fs::write(&path, png::encode(&draw(&sheet)?))?;
        println!("pictures with boxes, and masks: {}", path.display());
    }
    Ok(())
}

/// Converts a tensor `[3, height, width]` back to an image.
fn picture(tensor: &Tensor) -> Result<Image> {
    let (height, width) = (tensor.shape()[1], tensor.shape()[2]);
    let values = tensor.as_slice::<f32>()?;
    let plane = width * height;
    let pixels = (0..plane)
        .flat_map(|at| [0, 1, 2].map(|channel| (values[channel * plane + at] * 255.0) as u8));
    Image::new(width as u32, height as u32, 3, pixels.collect())
}

/// Number of matching pixels, and total number.
#[derive(Default)]
struct Share {
    right: u64,
    all: u64,
}

impl Share {
    /// Counts pixels whose color is that of their class; pixels without a class are left out.
    fn count(&mut self, image: &Image, mask: &Mask) {
        for (rgb, class) in image.data().as_chunks::<3>().0.iter().zip(mask.values()) {
            if *class != IGNORE {
                self.all += 1;
                self.right += u64::from(shapes::class_of(rgb.map(f32::from)) == *class);
            }
        }
    }

    /// Counts pixels of things whose center is in a box of their class.
    fn count_boxed(&mut self, mask: &Mask, things: &Things) {
        for (at, class) in mask
            .values()
            .iter()
            .enumerate()
            .filter(|(_, class)| ![0, IGNORE].contains(class))
        {
            let (x, y) = (at as u32 % mask.width(), at as u32 / mask.width());
            let (x, y) = (x as f32 + 0.5, y as f32 + 0.5);
            let is_in = |[left, top, right, bottom]: [f32; 4]| {
                x > left && x < right && y > top && y < bottom
            };
            let mut pairs = things.boxes.corners().iter().zip(&things.labels);
            self.all += 1;
            self.right +=
                u64::from(pairs.any(|(corners, label)| label == class && is_in(*corners)));
        }
    }

    fn percent(&self) -> f64 {
        100.0 * self.right as f64 / self.all.max(1) as f64
    }
}

/// Draws three columns of images with their boxes, each with its mask beside it.
fn draw(sheet: &[(Image, Mask, Boxes)]) -> Result<Image, BoxError> {
    let (image, ..) = sheet.first().ok_or("no pictures")?;
    let (width, height) = (image.width(), image.height());
    let rows = sheet.len().div_ceil(3) as u32;
    let stride = (6 * width * 3) as usize;
    let mut pixels = vec![255; stride * (rows * height) as usize];
    for (number, (image, mask, boxes)) in sheet.iter().enumerate() {
        let (column, row) = (number as u32 % 3, number as u32 / 3);
        let mut put = |x: u32, y: u32, rgb: &[u8]| {
            let at = (row * height + y) as usize * stride + (2 * column * width + x) as usize * 3;
            pixels[at..at + 3].copy_from_slice(rgb);
        };
        for (at, class) in mask.values().iter().enumerate() {
            let (x, y) = (at as u32 % width, at as u32 / width);
            let colour = shapes::COLOURS
                .get(usize::from(*class))
                .copied()
                .unwrap_or([255; 3]);
            put(x, y, image.pixel(x, y));
            // The mask over the image, so that a mismatch is visible.
            let over: Vec<u8> = image
                .pixel(x, y)
                .iter()
                .zip(colour)
                .map(|(a, b)| a / 3 + b / 3 * 2)
                .collect();
            put(width + x, y, &over);
        }
        for corners in boxes.corners() {
            let [left, top, right, bottom] = corners.map(|value| value as u32);
            let part = Rect {
                x: left,
                y: top,
                width: right - left,
                height: bottom - top,
            };
            for x in part.x..(part.x + part.width).min(width) {
                put(x, part.y.min(height - 1), &[255, 255, 0]);
                put(x, (part.y + part.height).min(height - 1), &[255, 255, 0]);
            }
            for y in part.y..(part.y + part.height).min(height) {
                put(part.x.min(width - 1), y, &[255, 255, 0]);
                put((part.x + part.width).min(width - 1), y, &[255, 255, 0]);
            }
        }
    }
    Ok(Image::new(6 * width, rows * height, 3, pixels)?)
}
