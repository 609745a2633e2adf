//! Trains a small convolutional net with candle on the CPU, from tar shards of digits that it makes
//! itself.
//!
//! `cargo run --release --no-default-features --features candle --example train_candle` draws 22
//! 000 images (once, some 70 MB in a cache folder), trains for some 80 s of CPU time, and prints
//! the number of test images that it classifies correctly, and the time that the training waited
//! for data. With a PATH it uses MNIST or CIFAR-10 from the files there.
//!
//! Options: `--epochs N`, `--batch N`, `--workers N`, `--small` (a few seconds, to see that it
//! runs), `--trace FILE` (a timeline of the training's loader for `ui.perfetto.dev`).

mod support;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Tensor};
use candle_nn::{
    AdamW, Conv2d, Conv2dConfig, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap,
    conv2d, linear, loss,
};
use datapipes::{BoxError, DataLoader};
use datapipes_candle::CandleLoader;
use indicatif::ProgressBar;
use support::args::Args;
use support::bar_style;
use support::digits::{CLASSES, Pictures, SIZE};
use support::trace::Trace;

const USAGE: &str =
    "train_candle [PATH] [--epochs N] [--batch N] [--workers N] [--small] [--trace FILE]";
/// Learning rate of the first step; it falls to zero.
const RATE: f64 = 3e-3;

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let args = Args::parse("small", "epochs batch workers trace", USAGE);
    let small = args.has("small");
    let epochs: u64 = args.get("epochs").unwrap_or(if small { 1 } else { 2 });
    let batch = args.get("batch").unwrap_or(64);
    let device = Device::cuda_if_available(0)?;

    // The data: two graphs of batches, each run by a loader that yields candle's tensors.
    let pictures = Pictures::open(args.words.first().map(Path::new), small)?;
    let run_on = |graph| -> Result<_, BoxError> {
        let mut builder = DataLoader::builder(graph).seed(42);
        if let Some(workers) = args.get("workers") {
            builder = builder.workers(workers);
        }
        Ok(CandleLoader::new(&builder.build()?, &device))
    };
    let (train, test) = (
        run_on(pictures.training_batches(batch))?,
        run_on(pictures.test_batches(4 * batch))?,
    );

    // The model.
    let variables = VarMap::new();
    let net = Net::new(
        pictures.channels,
        VarBuilder::from_varmap(&variables, DType::F32, &device),
    )?;
    let mut optimizer = AdamW::new(
        variables.all_vars(),
        ParamsAdamW {
            lr: RATE,
            weight_decay: 1e-3,
            ..Default::default()
        },
    )?;

    let trace = Trace::begin(args.get("trace"), train.loader())?;
    // The last, partial batch of an epoch is left out.
    let (begun, steps) = (Instant::now(), (pictures.train / batch.max(1)) as u64);
    let (mut trained, mut waited) = (Duration::ZERO, Duration::ZERO);
    println!(
        "{}: {} pictures, {epochs} epochs of {steps} steps",
        pictures.name, pictures.train
    );
    for epoch in 0..epochs {
        let bar = ProgressBar::new(steps)
            .with_style(bar_style(
                "{prefix} {wide_bar} {pos}/{len} steps, {elapsed}, {msg}",
            ))
            .with_prefix(format!("epoch {epoch}"));
        for (step, batch) in train.epoch(epoch).blocking().enumerate() {
            let (images, labels) = batch?;
            let loss = loss::cross_entropy(&net.forward(&images)?, &labels)?;
            let done = (epoch * steps + step as u64) as f64 / (epochs * steps) as f64;
            optimizer.set_learning_rate(RATE * (1.0 - done).max(0.0));
            optimizer.backward_step(&loss)?;
            if step % 20 == 0 {
                bar.set_message(format!("loss {:.3}", loss.to_scalar::<f32>()?));
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let stats = train.loader().stats().ok_or("the epoch has run")?;
        (trained, waited) = (trained + stats.wall, waited + stats.waited);
        println!(
            "epoch {epoch}: {:.1} s, {:.1} % of the test pictures are right",
            stats.wall.as_secs_f64(),
            100.0 * accuracy(&net, &test)?
        );
    }

    trace.finish()?;
    println!("\n{}\n", train.loader().stats().ok_or("an epoch has run")?);
    println!(
        "accuracy {:.1} % on {} test pictures; {:.1} s in all, {:.1} s of it training, which waited {:.3} s for data ({:.2} %)",
        100.0 * accuracy(&net, &test)?,
        pictures.test,
        begun.elapsed().as_secs_f64(),
        trained.as_secs_f64(),
        waited.as_secs_f64(),
        100.0 * waited.as_secs_f64() / trained.as_secs_f64().max(1e-9)
    );
    Ok(())
}

/// Returns the accuracy of the net.
fn accuracy(net: &Net, test: &CandleLoader<(Tensor, Tensor)>) -> Result<f64, BoxError> {
    let (mut right, mut all) = (0.0, 0);
    for batch in test.epoch(0).blocking() {
        let (images, labels) = batch?;
        let said = net
            .forward(&images)?
            .argmax(D::Minus1)?
            .to_dtype(DType::I64)?;
        right += f64::from(
            said.eq(&labels)?
                .to_dtype(DType::F32)?
                .sum_all()?
                .to_scalar::<f32>()?,
        );
        all += labels.elem_count();
    }
    Ok(right / f64::max(all as f64, 1.0))
}

/// Three convolutions, each halving the edges, and a linear layer.
struct Net {
    convolutions: [Conv2d; 3],
    head: Linear,
}

impl Net {
    fn new(channels: usize, variables: VarBuilder<'_>) -> candle_core::Result<Self> {
        let halving = |from, to, kernel: usize, name| {
            let config = Conv2dConfig {
                padding: kernel / 2,
                stride: 2,
                ..Default::default()
            };
            conv2d(from, to, kernel, config, variables.pp(name))
        };
        let convolutions = [
            halving(channels, 16, 5, "c1")?,
            halving(16, 32, 3, "c2")?,
            halving(32, 64, 3, "c3")?,
        ];
        let edge = SIZE / 8;
        let head = linear(64 * edge * edge, CLASSES, variables.pp("head"))?;
        Ok(Net { convolutions, head })
    }
}

impl Module for Net {
    /// Maps `[n, channels, 32, 32]` to `[n, 10]`.
    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = images.clone();
        for convolution in &self.convolutions {
            x = convolution.forward(&x)?.relu()?;
        }
        self.head.forward(&x.flatten_from(1)?)
    }
}
