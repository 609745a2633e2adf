//! Images of shapes, with the class of each pixel and boxes around the shapes, in WebDataset
//! shards. No download.

use std::fs;
use std::path::PathBuf;

use datapipes::{BoxError, Rng};
use datapipes_image::Image;
use datapipes_io::Sample;
use datapipes_io::formats::ShardWriter;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::{png, shards};

/// Color of each class: background, disks, rectangles, triangles.
pub const COLOURS: [[u8; 3]; 4] = [[128, 128, 120], [205, 60, 50], [60, 175, 70], [60, 80, 205]];

/// Returns the class of a color: that of the most similar one of [`COLOURS`].
pub fn class_of(rgb: [f32; 3]) -> u8 {
    let distance = |class: &u8| {
        let colour = COLOURS[usize::from(*class)];
        rgb.iter()
            .zip(colour)
            .map(|(a, b)| (a - f32::from(b)).powi(2))
            .sum::<f32>()
    };
    (0..4)
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .unwrap_or(0)
}

/// Returns the folder of shards with this number of images: `x.jpg`, `x.mask.png` (gray, the
/// class of each pixel) and `x.boxes.json` (`[[class, left, top, right, bottom], …]`). They are
/// made if they do not exist yet.
pub fn make(pictures: u64) -> Result<PathBuf, BoxError> {
    let folder = shards::cache_folder().join(format!("shapes-1-{pictures}"));
    let done = folder.join("done");
    if done.is_file() {
        return Ok(folder);
    }
    println!("making {}", folder.display());
    fs::create_dir_all(&folder)?;
    let mut shards = ShardWriter::new(folder.join("shapes-%04d.tar"))?.max_count(50);
    for index in 0..pictures {
        shards.write(&sample(index)?)?;
    }
    shards.finish()?;
    fs::write(done, "")?;
    Ok(folder)
}

fn sample(index: u64) -> Result<Sample, BoxError> {
    let mut rng = Rng::from_key([index, 0, 0, 0x0073_6861_7065]);
    let (width, height) = (200 + rng.below(120) as u32, 180 + rng.below(100) as u32);
    let shapes: Vec<Shape> = (0..2 + rng.below(3))
        .map(|_| Shape::random(width, height, &mut rng))
        .collect();
    let light = [rng.range(-25.0, 25.0), rng.range(-25.0, 25.0)];

    let (mut pixels, mut classes) = (Vec::new(), Vec::new());
    let mut boxes = vec![None; shapes.len()];
    for y in 0..height {
        for x in 0..width {
            let top = shapes
                .iter()
                .rposition(|shape| shape.covers(f64::from(x) + 0.5, f64::from(y) + 0.5));
            let class = top.map_or(0, |top| shapes[top].class);
            if let Some(top) = top {
                let [left, above, right, below] = boxes[top].get_or_insert([x, y, x + 1, y + 1]);
                (*left, *above, *right, *below) =
                    (x.min(*left), y.min(*above), (x + 1).max(*right), y + 1);
            }
            let light = light[0] * f64::from(x) / f64::from(width)
                + light[1] * f64::from(y) / f64::from(height);
            let grain = rng.range(-9.0, 9.0);
            let shade = |value: u8| (f64::from(value) + light + grain) as u8;
            pixels.extend(COLOURS[usize::from(class)].map(shade));
            classes.push(class);
        }
    }
    let boxes = shapes.iter().zip(boxes).filter_map(|(shape, corners)| {
        let [left, top, right, bottom] = corners?;
        Some([u32::from(shape.class), left, top, right, bottom])
    });
    let boxes: Vec<[u32; 5]> = boxes.collect();
    let mut jpeg = Vec::new();
    let mut encoder = Encoder::new(&mut jpeg, 92);
    encoder.set_sampling_factor(SamplingFactor::F_1_1);
    encoder.encode(&pixels, width as u16, height as u16, ColorType::Rgb)?;
    Ok(Sample::new(format!("{index:05}"))
        .with("jpg", jpeg)
        .with(
            "mask.png",
            png::encode(&Image::new(width, height, 1, classes)?),
        )
        .with("boxes.json", serde_json::to_vec(&boxes)?))
}

struct Shape {
    class: u8,
    middle: [f64; 2],
    radius: f64,
    turn: [f64; 2],
}

impl Shape {
    fn random(width: u32, height: u32, rng: &mut Rng) -> Shape {
        let class = 1 + rng.below(3) as u8;
        let middle = [width, height].map(|edge| f64::from(edge) * rng.range(0.1, 0.9));
        let (sin, cos) = rng.range(0.0, std::f64::consts::TAU).sin_cos();
        Shape {
            class,
            middle,
            radius: f64::from(height) * rng.range(0.12, 0.3),
            turn: [cos, sin],
        }
    }

    fn covers(&self, x: f64, y: f64) -> bool {
        let [cos, sin] = self.turn;
        let (x, y) = (
            (x - self.middle[0]) / self.radius,
            (y - self.middle[1]) / self.radius,
        );
        let (x, y) = (cos * x + sin * y, cos * y - sin * x);
        match self.class {
            1 => x * x + y * y < 1.0,
            2 => x.abs() < 1.0 && y.abs() < 0.6,
            _ => y < 0.6 && y > 1.8 * x.abs() - 1.0,
        }
    }
}
