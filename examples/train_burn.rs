//! Trains a small convolutional net on digits with burn's own learner, from tar shards of JPEGs.
//!
//! `cargo run --release --no-default-features --features burn --example train_burn` makes the
//! shards (once, in a cache folder), trains on the CPU for one to two minutes, and prints the
//! accuracy of the net on test images, and the time that the training waited for data. In a
//! terminal it shows burn's dashboard. `… -- PATH` trains on MNIST or CIFAR-10, by the files below
//! the path.
//!
//! Options: `--small` (a few hundred pictures, one epoch), `--epochs N`, `--batch N`, `--workers
//! N`, `--seed N`, `--trace FILE` (a timeline of the training's loader for `ui.perfetto.dev`).

mod support;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use burn::data::dataloader::DataLoader as _;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::optim::AdamConfig;
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::prelude::*;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};
use datapipes::{BoxError, DataLoader, Graph};
use datapipes_burn::{BurnLoader, IntoBurn};
use support::args::Args;
use support::digits::{CLASSES, Pictures};
use support::trace::Trace;

const USAGE: &str =
    "train_burn [PATH] [--small] [--epochs N] [--batch N] [--workers N] [--seed N] [--trace FILE]";

/// Images `[n, channels, 32, 32]` and their classes.
type Batch = (Tensor<4>, Tensor<1, Int>);

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let known = "epochs batch workers seed trace";
    let args = Args::parse("small", known, USAGE);
    let (small, path) = (args.has("small"), args.words.first().map(Path::new));
    let (batch, seed) = (
        args.get("batch").unwrap_or(64),
        args.get("seed").unwrap_or(42),
    );
    let epochs = args.get("epochs").unwrap_or(if small { 1 } else { 3 });
    let pictures = Pictures::open(path, small)?;
    let steps = pictures.train / batch;
    if steps == 0 {
        return Err(format!(
            "{} pictures are less than a batch of {batch}",
            pictures.train
        )
        .into());
    }

    let device = Device::flex();
    device.seed(seed);
    let load = |graph: Graph<_>, items: usize| {
        let mut loader = DataLoader::builder(graph).seed(seed);
        if let Some(workers) = args.get("workers") {
            loader = loader.workers(workers);
        }
        // Burn's metrics compare classes with predictions, which are integers of the type that the
        // device prefers.
        let into_burn = |batch: (datapipes::Tensor, datapipes::Tensor), device: &Device| {
            let (pictures, classes): Batch = batch.into_burn(device)?;
            datapipes::Ok((pictures, classes.cast(device.settings().int_dtype)))
        };
        let loader = BurnLoader::with(loader.build()?, &device, into_burn);
        Ok::<_, BoxError>(loader.items(items).batch_size(batch))
    };
    let training = load(pictures.training_batches(batch), steps * batch)?;
    let test = load(pictures.test_batches(batch), pictures.test)?;
    let trace = Trace::begin(args.get("trace"), training.inner())?;

    let net = Net::new(pictures.channels, &device.clone().autodiff());
    let rate = CosineAnnealingLrSchedulerConfig::new(4e-3, steps * epochs).init()?;
    let folder = tempfile::tempdir()?; // for what burn writes down
    let outcome = SupervisedTraining::new(
        folder.path(),
        Arc::new(training.clone()),
        Arc::new(test.clone()),
    )
    .metrics((AccuracyMetric::new(), LossMetric::new()))
    .num_epochs(epochs)
    .with_application_logger(None)
    .launch(Learner::new(net, AdamConfig::new().init(), rate));
    drop(outcome.renderer); // gives the terminal back
    trace.finish()?;
    if let Some(error) = outcome.error {
        return Err(error.to_string().into());
    }

    let right = accuracy(&outcome.model, &test)?;
    println!(
        "{}: {} pictures, {epochs} epochs of {steps} steps",
        pictures.name, pictures.train
    );
    println!("training: {}", training.waits());
    if let Some(stats) = training.inner().stats() {
        println!("its last epoch: {stats}");
    }
    println!(
        "accuracy on {} test pictures: {:.2} %",
        pictures.test,
        100.0 * right
    );
    if path.is_none() && !small && right < 0.9 {
        return Err("that is less than 90 %".into());
    }
    Ok(())
}

/// Returns the accuracy of a net.
fn accuracy(
    net: &Net,
    test: &BurnLoader<(datapipes::Tensor, datapipes::Tensor), Batch>,
) -> Result<f64, BoxError> {
    let (mut right, mut all) = (0, 0);
    for batch in test.iter() {
        let (pictures, classes) = batch?;
        all += classes.dims()[0];
        let guesses = net.forward(pictures).argmax(1).flatten::<1>(0, 1);
        right += guesses.equal(classes).int().sum().into_scalar::<i64>() as usize;
    }
    Ok(right as f64 / all.max(1) as f64)
}

/// Four convolutions, each with a norm and a ReLU, the first three with a pool; then a linear
/// decision on the mean of each channel.
#[derive(Module, Debug)]
struct Net {
    convs: Vec<Conv2d>,
    norms: Vec<BatchNorm>,
    relu: Relu,
    pool: MaxPool2d,
    mean: AdaptiveAvgPool2d,
    decide: Linear,
}

impl Net {
    fn new(channels: usize, device: &Device) -> Net {
        let widths = [channels, 16, 32, 64, 64];
        let conv = |pair: &[usize]| {
            Conv2dConfig::new([pair[0], pair[1]], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .with_bias(false)
                .init(device)
        };
        Net {
            convs: widths.windows(2).map(conv).collect(),
            norms: widths[1..]
                .iter()
                .map(|&width| BatchNormConfig::new(width).init(device))
                .collect(),
            relu: Relu::new(),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            decide: LinearConfig::new(widths[4], CLASSES).init(device),
        }
    }

    /// Maps images to the logits of their classes.
    fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let mut x = pictures;
        for (place, (conv, norm)) in self.convs.iter().zip(&self.norms).enumerate() {
            x = self.relu.forward(norm.forward(conv.forward(x)));
            if place < 3 {
                x = self.pool.forward(x);
            }
        }
        self.decide.forward(self.mean.forward(x).flatten(1, 3))
    }

    fn judge(&self, (pictures, classes): Batch) -> ClassificationOutput {
        let logits = self.forward(pictures);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), classes.clone());
        ClassificationOutput::new(loss, logits, classes)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.judge(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.judge(batch)
    }
}
