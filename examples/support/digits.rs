//! Small pictures of ten classes to train with: digits drawn here, or MNIST or CIFAR-10 from files.

use std::fs;
use std::path::{Path, PathBuf};

use datapipes::pipes::Batch;
use datapipes::{BoxError, Error, Graph, Indexed, Result, Rng, Tensor};
use datapipes_image::{Image, Normalize, decode, hflip, to_tensor};
use datapipes_io::datasets::{Subset, cifar10, mnist};
use datapipes_io::formats::ShardWriter;
use datapipes_io::prelude::*;
use datapipes_io::{Sample, list_files};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// Edge of every image in the graphs.
pub const SIZE: usize = 32;
/// Number of classes.
pub const CLASSES: usize = 10;

/// A data set: graphs of batches, and properties that a model needs.
pub struct Pictures {
    /// Name of the data set.
    pub name: &'static str,
    /// Number of channels: 3, or 1 for MNIST.
    pub channels: usize,
    /// Number of images for training, and for testing.
    pub train: usize,
    pub test: usize,
    normalize: Normalize,
    /// True if a mirrored image is of the same class.
    mirror: bool,
    data: Data,
}

enum Data {
    /// Shards `train-NNNN.tar` and `test-NNNN.tar` in a folder.
    Shards(PathBuf),
    /// Samples for training and for testing.
    Indexed([Indexed<(Tensor, u8)>; 2]),
}

impl Pictures {
    /// Opens MNIST or CIFAR-10, by the files below `path`; without a path, digits, which are drawn
    /// now if they are not in the cache folder: 20 000 for training and 2000 for testing, or few if
    /// `small`.
    pub fn open(path: Option<&Path>, small: bool) -> Result<Pictures, BoxError> {
        let Some(path) = path else {
            let (train, test) = if small { (640, 200) } else { (20_000, 2000) };
            let folder = digit_shards(train, test)?;
            let normalize = Normalize::new([0.5; 3], [0.25; 3])?;
            let data = Data::Shards(folder);
            return Ok(Pictures {
                name: "digits",
                channels: 3,
                train,
                test,
                normalize,
                mirror: false,
                data,
            });
        };
        let (name, sets) = match mnist(path, Subset::Train) {
            Ok(train) => ("MNIST", [train, mnist(path, Subset::Test)?]),
            Err(no_mnist) => match cifar10(path, Subset::Train) {
                Ok(train) => ("CIFAR-10", [train, cifar10(path, Subset::Test)?]),
                Err(no_cifar) => return Err(format!("{no_mnist}; {no_cifar}").into()),
            },
        };
        let few = |len: usize, most: usize| if small { len.min(most) } else { len };
        let (train, test) = (
            few(sets[0].labels.len(), 640),
            few(sets[1].labels.len(), 200),
        );
        let [all_train, all_test] = sets.map(|set| set.samples);
        let data = Data::Indexed([
            all_train.subset(0..train as u64),
            all_test.subset(0..test as u64),
        ]);
        let (channels, normalize) = match name {
            "MNIST" => (1, Normalize::new([0.1307; 3], [0.3081; 3])?),
            _ => (
                3,
                Normalize::new([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616])?,
            ),
        };
        Ok(Pictures {
            name,
            channels,
            train,
            test,
            normalize,
            mirror: name == "CIFAR-10",
            data,
        })
    }

    /// Returns batches for training: shuffled, moved by up to 2 pixels, normalized. `[n, channels,
    /// 32, 32]` of `f32` and `[n]` of `i64`. The last, partial batch is left out.
    pub fn training_batches(&self, batch: usize) -> Graph<(Tensor, Tensor)> {
        let images = match &self.data {
            Data::Shards(folder) => decoded(
                list_files(folder, "train-*.tar")
                    .shuffle(100)
                    .sharding_filter()
                    .stream_untar()
                    .samples()
                    .shuffle(2000)
                    .named("shuffle samples"),
            ),
            Data::Indexed([train, _]) => unpacked(train.clone().shuffle().shard().fetch()),
        };
        let (normalize, mirror) = (self.normalize, self.mirror);
        images
            .try_map_with_rng(move |(image, label), rng| {
                let mut shift = || rng.below(5) as i64 - 2;
                let mut image = framed(&image, shift(), shift())?;
                if mirror && rng.chance(0.5) {
                    hflip(&mut image);
                }
                Ok::<_, Error>((to_tensor(&image, &normalize)?, label))
            })
            .named("augment")
            .weighed(|(tensor, _)| tensor.byte_len())
            .batch(Batch::new(batch).drop_last())
            .collate()
    }

    /// Returns batches for testing: all, in order, unchanged. Otherwise like
    /// [`training_batches`](Images::training_batches).
    pub fn test_batches(&self, batch: usize) -> Graph<(Tensor, Tensor)> {
        let images = match &self.data {
            Data::Shards(folder) => {
                decoded(list_files(folder, "test-*.tar").stream_untar().samples())
            }
            Data::Indexed([_, test]) => unpacked(test.clone().fetch()),
        };
        let normalize = self.normalize;
        images
            .try_map(move |(image, label)| {
                Ok::<_, Error>((to_tensor(&framed(&image, 0, 0)?, &normalize)?, label))
            })
            .named("normalise")
            .batch(batch)
            .collate()
    }
}

/// Decodes samples of a shard to images with labels.
fn decoded(samples: Graph<Sample>) -> Graph<(Image, i64)> {
    samples
        .try_map(|sample| Ok::<_, Error>((decode(sample.get("jpg")?)?, sample.parse("cls")?)))
        .named("decode")
        .weighed(|(image, _)| image.data().len())
}

/// Converts rows of an array to images with labels: `[height, width]`, or three planes.
fn unpacked(rows: Graph<(Tensor, u8)>) -> Graph<(Image, i64)> {
    let image = |(tensor, label): (Tensor, u8)| {
        let pixels = tensor.as_slice::<u8>()?;
        let image = match *tensor.shape() {
            [height, width] => Image::new(width as u32, height as u32, 1, pixels.to_vec())?,
            [3, height, width] => {
                let plane = height * width;
                let place = |index: usize| pixels[index % 3 * plane + index / 3];
                Image::new(
                    width as u32,
                    height as u32,
                    3,
                    (0..3 * plane).map(place).collect(),
                )?
            }
            ref shape => return Err(format!("a picture of shape {shape:?}").into()),
        };
        Ok::<_, BoxError>((image, i64::from(label)))
    };
    rows.try_map(image).named("unpack")
}

/// Places the image in the middle of one of 32x32, moved right and down; its edge pixels are
/// repeated around it.
fn framed(image: &Image, right: i64, down: i64) -> Result<Image> {
    let place = |at: usize, edge: u32, shift: i64| {
        let start = (SIZE as i64 - i64::from(edge)) / 2 + shift;
        (at as i64 - start).clamp(0, i64::from(edge) - 1) as u32
    };
    let mut data = Vec::with_capacity(SIZE * SIZE * usize::from(image.channels()));
    for y in 0..SIZE {
        for x in 0..SIZE {
            let (x, y) = (
                place(x, image.width(), right),
                place(y, image.height(), down),
            );
            data.extend_from_slice(image.pixel(x, y));
        }
    }
    Image::new(SIZE as u32, SIZE as u32, image.channels(), data)
}

/// Returns the folder of the digits, in the cache folder. Draws them, with a progress bar, if they
/// do not exist yet: shards of 1000, with `000123.jpg` and `000123.cls` for each.
pub fn digit_shards(train: usize, test: usize) -> Result<PathBuf, BoxError> {
    let folder = super::shards::cache_folder().join(format!("digits-{train}-{test}"));
    let (done, made_with) = (folder.join("done"), "version 1\n");
    if fs::read_to_string(&done).is_ok_and(|text| text == made_with) {
        return Ok(folder);
    }
    let bar = super::making(&folder, (train + test) as u64, "pictures");
    fs::create_dir_all(&folder)?;
    for (split, count, seed) in [("train", train, 1), ("test", test, 2)] {
        let mut shards =
            ShardWriter::new(folder.join(format!("{split}-%04d.tar")))?.max_count(1000);
        for index in 0..count {
            let class = index % CLASSES;
            let mut jpeg = Vec::new();
            let mut encoder = Encoder::new(&mut jpeg, 90);
            encoder.set_sampling_factor(SamplingFactor::F_1_1);
            encoder.encode(
                &digit(class, index as u64, seed),
                SIZE as u16,
                SIZE as u16,
                ColorType::Rgb,
            )?;
            let name = format!("{index:06}");
            shards.write(
                &Sample::new(name)
                    .with("jpg", jpeg)
                    .with("cls", class.to_string()),
            )?;
            bar.inc(1);
        }
        shards.finish()?;
    }
    bar.finish_and_clear();
    fs::write(&done, made_with)?;
    Ok(folder)
}

/// The digits 0 to 9, 5 bits wide and 7 high.
const FONT: [[u8; 7]; CLASSES] = [
    [
        0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110,
    ],
    [
        0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110,
    ],
    [
        0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111,
    ],
    [
        0b01110, 0b10001, 0b00001, 0b00110, 0b00001, 0b10001, 0b01110,
    ],
    [
        0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010,
    ],
    [
        0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110,
    ],
    [
        0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110,
    ],
    [
        0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000,
    ],
    [
        0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110,
    ],
    [
        0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100,
    ],
];

/// Draws a digit in 32x32 RGB pixels, the same for the same numbers: with random place, size, slant
/// and color, over a gradient with bars and noise.
fn digit(class: usize, index: u64, seed: u64) -> Vec<u8> {
    let mut rng = Rng::from_key([seed, index, 0, 0x6469_6769_7473]);
    let mut colour = |low: f64, high: f64| [0; 3].map(|_: i32| rng.range(low, high));
    // Paper and ink differ in brightness; the darker one is chosen at random.
    let (paper, other, ink) = (
        colour(10.0, 110.0),
        colour(10.0, 110.0),
        colour(145.0, 245.0),
    );
    let (dark_ink, (gx, gy)) = (
        rng.chance(0.5),
        (rng.range(-1.0, 1.0), rng.range(-1.0, 1.0)),
    );

    // From a pixel to the glyph: a rotation by up to 20 degrees (by the half angle's tangent), a
    // shear, a scale.
    let half = rng.range(-0.176, 0.176);
    let (cos, sin) = (
        (1.0 - half * half) / (1.0 + half * half),
        2.0 * half / (1.0 + half * half),
    );
    let (shear, wide, high) = (
        rng.range(-0.25, 0.25),
        rng.range(2.2, 3.6),
        rng.range(2.2, 3.4),
    );
    let middle = SIZE as f64 / 2.0;
    let (cx, cy) = (middle + rng.range(-4.0, 4.0), middle + rng.range(-3.0, 3.0));
    let glyph = |x: f64, y: f64| {
        let (x, y) = (x - cx, y - cy);
        let (x, y) = (cos * x + sin * y, cos * y - sin * x);
        let (column, row) = ((x + shear * y) / wide + 2.5, y / high + 3.5);
        let inside = (0.0..5.0).contains(&column) && (0.0..7.0).contains(&row);
        inside && (FONT[class][row as usize] >> (4 - column as usize)) & 1 == 1
    };

    // Clutter: bars across the paper, below the digit, half as bright.
    let bars: Vec<[f64; 4]> = (0..2 + rng.below(3))
        .map(|_| {
            let (a, b) = (rng.range(-1.0, 1.0), rng.range(-1.0, 1.0));
            let through = (rng.range(0.0, SIZE as f64), rng.range(0.0, SIZE as f64));
            [a, b, -(a * through.0 + b * through.1), rng.range(0.3, 0.8)]
        })
        .collect();
    let noise = rng.range(4.0, 16.0);

    let mut pixels = Vec::with_capacity(SIZE * SIZE * 3);
    for y in 0..SIZE {
        for x in 0..SIZE {
            // Four points in each pixel, for smooth edges.
            let points = [(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)];
            let cover = points
                .iter()
                .filter(|(dx, dy)| glyph(x as f64 + dx, y as f64 + dy))
                .count() as f64
                / 4.0;
            let (fx, fy) = (x as f64 + 0.5, y as f64 + 0.5);
            let tone = (0.5 + (gx * (fx - middle) + gy * (fy - middle)) / SIZE as f64 / 2.0)
                .clamp(0.0, 1.0);
            let bar = bars
                .iter()
                .any(|[a, b, c, thick]| (a * fx + b * fy + c).abs() < *thick);
            for channel in 0..3 {
                let back = paper[channel] + (other[channel] - paper[channel]) * tone;
                let back = if bar {
                    (back + ink[channel]) / 2.0
                } else {
                    back
                };
                let value = back + (ink[channel] - back) * cover;
                let value = if dark_ink { 255.0 - value } else { value };
                pixels.push((value + noise * (2.0 * f64::from(rng.f32()) - 1.0)) as u8);
            }
        }
    }
    pixels
}
