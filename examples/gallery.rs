//! The image steps side by side: what each makes of one photo-like image.
//!
//! `cargo run --release --example gallery -- --out docs/src/gallery` writes a PNG for each step, and
//! `gallery.md` beside that folder, the page of the guide that shows them.
//!
//! Options: `--out DIR` (a new folder of the system's otherwise), `--seed N`.

mod support;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use datapipes::{BoxError, DataLoader, Graph};
use datapipes_image::prelude::*;
use datapipes_image::{Fill, PadMode};
use support::args::Args;
use support::png;

const USAGE: &str = "gallery [--out DIR] [--seed N]";
const SIZE: (u32, u32) = (160, 120);

/// A step, as one writes it after a graph of images, and the graph that ends with it.
type Step = (&'static str, Graph<Image>);

/// Makes a step of the code that is shown beside its image.
macro_rules! steps {
    ($photo:ident: $($name:literal => [$($step:tt)+],)+) => {
        vec![$(($name, $photo.clone()$($step)+)),+]
    };
}

fn steps(photo: &Graph<Image>) -> Vec<Step> {
    let (width, height) = SIZE;
    steps! { photo:
        "resize(80, 60, ResizeFilter::Bilinear)" => [.resize(80, 60, ResizeFilter::Bilinear)],
        "resize_shorter(60, ResizeFilter::Lanczos3)" => [.resize_shorter(60, ResizeFilter::Lanczos3)],
        "center_crop(100, 100)" => [.center_crop(100, 100)],
        "crop(Rect { .. })" => [.crop(Rect { x: 60, y: 10, width: 80, height: 80 })],
        "random_crop(RandomCrop::new(100, 100))" => [.random_crop(RandomCrop::new(100, 100))],
        "random_resized_crop(RandomResizedCrop::new(100, 100))" => [.random_resized_crop(RandomResizedCrop::new(100, 100))],
        "hflip()" => [.hflip()],
        "vflip()" => [.vflip()],
        "pad(Border::new(20, 10, 20, 10).mode(PadMode::Reflect))" => [.pad(Border::new(20, 10, 20, 10).mode(PadMode::Reflect))],
        "rotate(Rotation::new(30.0).fill(Fill::from(0)))" => [.rotate(Rotation::new(30.0).fill(Fill::from(0)))],
        "random_rotation(RandomRotation::new(45.0))" => [.random_rotation(RandomRotation::new(45.0))],
        "affine(Affine::new().shear(20.0, 0.0).scale(0.8))" => [.affine(Affine::new().shear(20.0, 0.0).scale(0.8))],
        "random_affine(RandomAffine::new(20.0))" => [.random_affine(RandomAffine::new(20.0))],
        "gaussian_blur(9, 2.0)" => [.gaussian_blur(9, 2.0)],
        "random_gaussian_blur(RandomGaussianBlur::new(9))" => [.random_gaussian_blur(RandomGaussianBlur::new(9))],
        "color_jitter(ColorJitter::new().brightness(0.4).hue(0.3))" => [.color_jitter(ColorJitter::new().brightness(0.4).hue(0.3))],
        "grayscale(3)" => [.grayscale(3)],
        "random_erasing(RandomErasing::new(1.0))" => [.random_erasing(RandomErasing::new(1.0))],
        "rand_augment(RandAugment::new(2, 9))" => [.rand_augment(RandAugment::new(2, 9))],
        "trivial_augment(TrivialAugmentWide::new())" => [.trivial_augment(TrivialAugmentWide::new())],
        "five_crop(80, 60), the second of the five" => [.five_crop(width / 2, height / 2).map(|[_, second, ..]| second)],
    }
}

/// Paints a landscape: something of each color, edges in all directions, and text-like detail.
fn photo() -> datapipes::Result<Image> {
    let (width, height) = SIZE;
    let mut pixels = Vec::with_capacity((width * height * 3) as usize);
    for y in 0..height {
        for x in 0..width {
            let (fx, fy) = (
                f64::from(x) / f64::from(width),
                f64::from(y) / f64::from(height),
            );
            let from_sun = ((fx - 0.75) / 0.75).hypot(fy - 0.22);
            let hill = 0.55 + 0.12 * (fx * 7.0).sin() + 0.03 * (fx * 23.0).cos();
            let in_house = (0.2..0.42).contains(&fx) && (0.5..0.8).contains(&fy);
            let in_roof = fy > 0.34 && fy < 0.5 && (fx - 0.31).abs() < (fy - 0.34) * 0.9;
            let rgb = if from_sun < 0.1 {
                [255, 214, 80]
            } else if in_roof {
                [170, 50, 40]
            } else if in_house {
                let is_window =
                    ((fx - 0.2) * 20.0) as u32 % 2 == 1 && ((fy - 0.5) * 14.0) as u32 % 2 == 1;
                if is_window {
                    [60, 90, 150]
                } else {
                    [235, 220, 190]
                }
            } else if fy > hill {
                let stripe = if (fx * 40.0 + fy * 30.0).sin() > 0.0 {
                    20
                } else {
                    0
                };
                [60 + stripe, 140 - (60.0 * (fy - hill)) as u8 + stripe, 50]
            } else {
                [110 + (90.0 * fy) as u8, 165 + (60.0 * fy) as u8, 235]
            };
            pixels.extend(rgb);
        }
    }
    Image::new(width, height, 3, pixels)
}

fn run(args: &Args) -> Result<(), BoxError> {
    let kept;
    let out = match args.get::<PathBuf>("out") {
        Some(out) => out,
        None => {
            kept = tempfile::tempdir()?;
            kept.path().join("gallery")
        }
    };
    std::fs::create_dir_all(&out)?;
    let seed = args.get("seed").unwrap_or(7);
    let photo = Graph::from_vec(vec![photo()?]);
    let mut page = String::from(
        "# Image steps\n\n\
         Each step is a method of a graph of images. The random ones draw by the loader's seed and the\n\
         image, so a run repeats itself. `cargo run --release --example gallery` makes this page.\n\n\
         | step | of this | makes this |\n|---|---|---|\n",
    );
    let mut steps = steps(&photo);
    steps.insert(0, ("the picture", photo));
    for (number, (step, graph)) in steps.into_iter().enumerate() {
        let loader = DataLoader::builder(graph).seed(seed).build()?;
        let image = loader.epoch(0).blocking().next().ok_or("no picture")??;
        let name: String = step
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ' ')
            .collect();
        let name = name.replace(' ', "_");
        let file = format!("{name}.png");
        std::fs::write(out.join(&file), png::encode(&image))?;
        println!("{name}: {} x {}", image.width(), image.height());
        if number > 0 {
            writeln!(
                page,
                "| `{step}` | ![](gallery/the_picture.png) | ![](gallery/{file}) |"
            )?;
        }
    }
    std::fs::write(out.with_extension("md"), page)?;
    println!("written to {}", out.display());
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse("", "out seed", USAGE)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gallery: {error}");
            ExitCode::FAILURE
        }
    }
}
