//! Finds a bad sample that was planted into a data set: the loss of a batch is NaN, `bisect` finds
//! the sample of the batch, and `blame` shows what each node made of it, from a checkpoint.
//!
//! `cargo run --release --no-default-features --example blame` makes 200 small images in tar
//! shards (once, in a cache folder). One of them has a single color, and scaling an image by its
//! standard deviation then divides by zero.
//!
//! The program also answers
//! `datapipes blame CHECKPOINT --steps A..B --out DIR -- target/release/examples/blame`; it prints the
//! command with the paths.
//!
//! `--trace FILE` writes a timeline of the training, for `ui.perfetto.dev`.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use datapipes::loader::Cause;
use datapipes::{BoxError, Checkpoint, DataLoader, Graph, Result, Rng, Tensor};
use datapipes_image::{Image, decode, hflip, random_crop, to_tensor_u8};
use datapipes_io::formats::ShardWriter;
use datapipes_io::{Sample, list_files, prelude::*};
use support::args::Args;
use support::trace::Trace;
use support::{png, shards};

/// Number of the image that is bad.
const PLANTED: u64 = 123;

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let folder = pictures()?;
    let path = folder.join("train.checkpoint");
    let loader = DataLoader::builder(graph(&folder))
        .seed(7)
        .autosave(&path, 2)
        .build()?;
    if loader.answer_blame_with(datapipes_image::picture)? {
        return Ok(());
    }

    let args = Args::parse("", "trace", "blame [--trace FILE]");
    let trace = Trace::begin(args.get("trace"), &loader)?;

    // Trains until the loss is NaN.
    let mut bad = None;
    for (step, batch) in (0..).zip(loader.epoch(0).blocking().items()) {
        let (batch, origin) = batch?.into_parts();
        let loss = loss(&batch);
        println!("step {step}: loss {loss:.3}");
        if loss.is_nan() {
            bad = Some((step, origin));
            break;
        }
    }
    trace.finish()?;
    let (step, batch) = bad.ok_or("no batch was bad")?;

    // Finds the sample that makes the batch bad.
    let found = loader.bisect(0, &batch, |part| loss(&part).is_nan())?;
    println!("\n{found}");
    let Cause::Sample { replay, .. } = &found.cause else {
        return Err("the planted sample was not found".into());
    };
    let name = replay.origin().to_string();
    assert!(name.ends_with(&key(PLANTED)) && found.tries <= 5, "{found}");

    // The same from the checkpoint alone, as it is possible days later.
    loader.flush_autosave()?;
    let checkpoint = Checkpoint::load(&path)?;
    let mut shades = Vec::new();
    let blame = loader.blame_with(&checkpoint, step..step + 1, |_, node, values| {
        let value = values.first().and_then(|value| value.downcast_ref());
        if let (Some(image), true) = (value, node.part() == replay.origin()) {
            shades = Image::data(image).to_vec();
        }
    })?;
    let samples = blame.batches[0].replay.origin().parts().len();
    println!("\nblame: step {step} has {samples} samples, {name} among them");
    assert_eq!(blame.batches[0].replay.origin(), &batch);
    assert!(shades.iter().all(|shade| *shade == shades[0]));
    println!("every number of the cropped picture is {}", shades[0]);
    println!(
        "\nby the program: datapipes blame {} --steps {step}..{} --out blamed -- {}",
        path.display(),
        step + 1,
        std::env::current_exe()?.display()
    );
    Ok(())
}

fn graph(folder: &Path) -> Graph<Tensor> {
    list_files(folder, "*.tar")
        .shuffle(4)
        .stream_untar()
        .samples()
        .shuffle(64)
        .try_map(|sample| decode(sample.get("png")?))
        .named("decode")
        .try_map_with_rng(|image, rng| {
            let mut image = random_crop(&image, 40, rng)?;
            if rng.chance(0.5) {
                hflip(&mut image);
            }
            datapipes::Ok(image)
        })
        .named("augment")
        .try_map(|image| standardize(&image))
        .named("standardize")
        .batch(16)
        .collate()
}

/// Scales an image to the mean 0 and the standard deviation 1.
fn standardize(image: &Image) -> Result<Tensor> {
    let tensor = to_tensor_u8(image)?;
    let shades: Vec<f32> = tensor.as_slice::<u8>()?.iter().map(|&n| n.into()).collect();
    let mean = |numbers: &[f32]| numbers.iter().sum::<f32>() / numbers.len() as f32;
    let middle = mean(&shades);
    let squares: Vec<f32> = shades.iter().map(|n| (n - middle).powi(2)).collect();
    let scaled = shades.iter().map(|n| (n - middle) / mean(&squares).sqrt());
    Tensor::from_vec(scaled.collect(), tensor.shape().to_vec())
}

/// Stands for a training step.
fn loss(batch: &Tensor) -> f32 {
    let numbers = batch.as_slice::<f32>().expect("a batch of floats");
    numbers.iter().map(|n| n * n).sum::<f32>() / numbers.len() as f32
}

fn key(number: u64) -> String {
    format!("{number:06}")
}

/// Returns the folder of the shards, which are made if they do not exist yet.
fn pictures() -> Result<PathBuf, BoxError> {
    let folder = shards::cache_folder().join("blame-1");
    if folder.join("done").is_file() {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    let mut shards = ShardWriter::new(folder.join("pictures-%04d.tar"))?.max_count(50);
    for number in 0..200 {
        let mut rng = Rng::from_key([number, 0, 0, 0x0062_6c61_6d65]);
        let (color, grain) = match number {
            PLANTED => ([99; 3], 1),
            _ => ([0; 3].map(|_| rng.below(200) as u8), 40),
        };
        let pixels = (0..48 * 48).flat_map(|_| color.map(|shade| shade + rng.below(grain) as u8));
        let image = Image::new(48, 48, 3, pixels.collect())?;
        shards.write(&Sample::new(key(number)).with("png", png::encode(&image)))?;
    }
    shards.finish()?;
    fs::write(folder.join("done"), "")?;
    Ok(folder)
}
