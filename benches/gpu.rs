//! A GPU fed from JPEG shards through candle: training of a ResNet-50, and a step as long as that
//! of other frameworks' ResNet-50.
//!
//! The floor is the same step on one batch that stays on the device. Where there is no GPU the
//! bench says so and ends; with one it is run by `cargo bench --features cudnn --bench gpu
//! [-- --json]`, which needs CUDA's compiler and cuDNN to build; `-- upload`, `-- fixed` and
//! `-- resnet` run a part. It checks first that batches arrive as they were made.

mod support;

use std::path::Path;
use std::time::Instant;

use candle_core::{D, DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{
    BatchNorm, Conv2d, Conv2dConfig, Linear, Optimizer, SGD, VarBuilder, VarMap, batch_norm,
    conv2d_no_bias, linear, loss,
};
use datapipes::{DataLoader, Graph, Rng};
use datapipes_candle::{CandleLoader, to_candle};
use datapipes_image::{ImageRows, Normalize, prelude::*};
use datapipes_io::{Sample, formats::ShardWriter, list_files, prelude::*};
use support::Lines;
use support::pictures::picture;

const SIZE: usize = 224;
const IMAGES: u64 = 8192;
/// Images per second of PyTorch 2.11's ResNet-50 on random data on an H100, in bf16, channels last,
/// 256 per batch.
const FAST_STEP: f64 = 4000.0;

type Batch = (Tensor, Tensor);

/// Type of the pixels that are uploaded.
#[derive(Clone, Copy, Debug)]
enum Pixels {
    Bytes,
    Floats,
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = Device::cuda_if_available(0)?;
    if !device.is_cuda() {
        Lines::skip("no GPU, or built without the feature `cuda`");
        return Ok(());
    }
    check(&device)?;
    let cores = std::thread::available_parallelism()?.get();
    let shards = tempfile::tempdir()?;
    make(shards.path())?;
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    if wanted("upload") {
        let lines = Lines::new("no step, batches of 256 bytes", "images/s");
        let mut one = None;
        for workers in steps_up_to(cores) {
            let loader = feed(shards.path(), (256, Pixels::Bytes), workers, &device)?;
            let (rate, _) = run(&loader, |_| Ok(()))?;
            let one = *one.get_or_insert(rate);
            let case = format!("no step, {workers} workers");
            lines.print(&case, rate, ("1 worker", one), rate / one, 0.0);
        }
    }
    for batch in [64, 256].into_iter().filter(|_| wanted("fixed")) {
        let step = matmuls(batch, &device)?;
        for pixels in [Pixels::Bytes, Pixels::Floats] {
            let name = "a step of fixed length";
            let batches = (batch, pixels);
            beside(name, batches, &step, (shards.path(), &device, cores))?;
        }
    }
    if !wanted("resnet") {
        return Ok(());
    }
    let variables = VarMap::new();
    let net = ResNet::new(VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    let mut optimizer = SGD::new(variables.all_vars(), 0.01)?;
    let optimizer = std::cell::RefCell::new(&mut optimizer);
    let train = |(images, labels): &Batch| {
        let loss = loss::cross_entropy(&net.forward_t(images, true)?, labels)?;
        optimizer.borrow_mut().backward_step(&loss)?;
        loss.to_scalar::<f32>().map(drop)
    };
    beside(
        "ResNet-50 by candle, f32",
        (64, Pixels::Bytes),
        &train,
        (shards.path(), &device, cores),
    )
}

/// Asserts that batches arrive as they were made while the device computes: of fewer bytes than are
/// copied at once, of as many, and of more.
fn check(device: &Device) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let number = |n: u64, i: usize| ((n as usize * 1_000_003 + i) % 16_777_213) as f32;
    let a = Tensor::rand(0f32, 1f32, (2048, 2048), device)?;
    for len in [1, 1 << 20, (1 << 20) + 1, 3_333_333] {
        let batches = Graph::range(0..12).try_map(move |n| {
            datapipes::Tensor::from_vec((0..len).map(|i| number(n, i)).collect(), [len])
        });
        let loader = DataLoader::builder(batches).workers(2).build()?;
        let batches = CandleLoader::new(&loader, device).epoch(0).blocking();
        for (n, batch) in (0..).zip(batches) {
            for _ in 0..5 {
                a.matmul(&a)?;
            }
            let got: Vec<f32> = batch?.to_vec1()?;
            assert!(
                (0..len).all(|i| got[i] == number(n, i)),
                "batch {n} of {len}"
            );
        }
    }
    Ok(())
}

/// Prints the rate of a step on a batch that stays on the device, and on fed batches with
/// increasing numbers of workers.
fn beside(
    name: &str,
    (batch, pixels): (usize, Pixels),
    step: &dyn Fn(&Batch) -> Result<()>,
    (shards, device, cores): (&Path, &Device, usize),
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let images = Tensor::rand(0f32, 1f32, (batch, 3, SIZE, SIZE), device)?;
    let resident = (images, Tensor::zeros(batch, DType::I64, device)?);
    let steps = (IMAGES as usize / batch).min(64);
    (0..3).try_for_each(|_| step(&resident))?;
    let begun = Instant::now();
    (0..steps).try_for_each(|_| step(&resident))?;
    let floor = (steps * batch) as f64 / begun.elapsed().as_secs_f64();
    let title = format!("{name}, {batch} {pixels:?}");
    let lines = Lines::new(&title, "images/s");
    let mut best = 0f64;
    for workers in steps_up_to(cores) {
        let (rate, waited) = run(&feed(shards, (batch, pixels), workers, device)?, step)?;
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
fn steps_up_to(cores: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |n| Some(2 * n)).take_while(move |&n| n <= cores)
}

/// Returns the images per second of a second epoch, and the share of its time that the consumer
/// waited.
fn run(loader: &CandleLoader<Batch>, step: impl Fn(&Batch) -> Result<()>) -> Result<(f64, f64)> {
    for batch in loader.epoch(0).blocking().take(4) {
        step(&batch?)?;
    }
    let (begun, mut waited, mut count) = (Instant::now(), 0.0, 0);
    let mut epoch = loader.epoch(1).blocking();
    loop {
        let asked = Instant::now();
        let Some(batch) = epoch.next().transpose()? else {
            break;
        };
        waited += asked.elapsed().as_secs_f64();
        count += batch.1.elem_count();
        step(&batch)?;
    }
    let wall = begun.elapsed().as_secs_f64();
    Ok((count as f64 / wall, waited / wall))
}

/// Builds a loader from shards to batches on the device: `[n, 3, 224, 224]` of `f32`, 0 to 1, and
/// `[n]` of `i64`.
fn feed(
    shards: &Path,
    (batch, pixels): (usize, Pixels),
    workers: usize,
    device: &Device,
) -> std::result::Result<CandleLoader<Batch>, Box<dyn std::error::Error>> {
    let rows = ImageRows::random_resized_crop(SIZE as u32).random_hflip(0.5);
    let rows = match pixels {
        Pixels::Bytes => rows,
        Pixels::Floats => rows.normalize(Normalize::UNIT),
    };
    let graph = list_files(shards, "*.tar")
        .shuffle(1000)
        .load_files()
        .untar()
        .samples()
        .shuffle(1000)
        .named("shuffle samples")
        .try_map(|sample| datapipes::Ok((sample.get("jpg")?.clone(), sample.parse::<i64>("cls")?)))
        .image_rows(rows)
        .batch(batch)
        .collate();
    let loader = DataLoader::builder(graph).workers(workers).build()?;
    Ok(CandleLoader::with(
        &loader,
        device,
        move |(images, labels), device| {
            let images = to_candle(images, device)?;
            let images = match pixels {
                Pixels::Bytes => (images.to_dtype(DType::F32)? / 255.0)?,
                Pixels::Floats => images,
            };
            Ok((images, to_candle(labels, device)?))
        },
    ))
}

/// Writes images with a photograph's spectrum, in shards of 512.
fn make(folder: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let graph = Graph::range(0..IMAGES)
        .map_with_rng(|number, rng: &mut Rng| (number, picture(rng, 500, 375)));
    let mut shards = ShardWriter::new(folder.join("%04d.tar"))?.max_count(512);
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
    Ok(())
}

/// Returns a step that keeps the device busy as long as [`FAST_STEP`] says, with matrix products in
/// bf16.
fn matmuls(batch: usize, device: &Device) -> Result<impl Fn(&Batch) -> Result<()> + use<>> {
    let a = Tensor::rand(0f32, 1f32, (4096, 4096), device)?.to_dtype(DType::BF16)?;
    let device = device.clone();
    let products = move |count: usize| {
        (0..count).try_for_each(|_| a.matmul(&a).map(drop))?;
        device.synchronize()
    };
    products(200)?;
    let begun = Instant::now();
    products(1000)?;
    let each = begun.elapsed().as_secs_f64() / 1000.0;
    let count = (batch as f64 / FAST_STEP / each).round() as usize;
    Ok(move |_: &Batch| products(count))
}

/// A ResNet-50 (He et al., arXiv 1512.03385), for images of 224 x 224 and 1000 classes.
struct ResNet {
    stem: (Conv2d, BatchNorm),
    blocks: Vec<Bottleneck>,
    head: Linear,
}

struct Bottleneck {
    convolutions: [(Conv2d, BatchNorm); 3],
    shortcut: Option<(Conv2d, BatchNorm)>,
}

fn unit(
    (from, to): (usize, usize),
    kernel: usize,
    stride: usize,
    variables: VarBuilder<'_>,
) -> Result<(Conv2d, BatchNorm)> {
    let config = Conv2dConfig {
        padding: kernel / 2,
        stride,
        ..Default::default()
    };
    Ok((
        conv2d_no_bias(from, to, kernel, config, variables.pp("conv"))?,
        batch_norm(to, 1e-5, variables.pp("norm"))?,
    ))
}

fn through((convolution, norm): &(Conv2d, BatchNorm), x: &Tensor, train: bool) -> Result<Tensor> {
    norm.forward_t(&convolution.forward(x)?, train)
}

impl ResNet {
    fn new(variables: VarBuilder<'_>) -> Result<Self> {
        let (mut blocks, mut from) = (Vec::new(), 64);
        for (stage, (count, width)) in [(3, 64), (4, 128), (6, 256), (3, 512)]
            .into_iter()
            .enumerate()
        {
            for number in 0..count {
                let variables = variables.pp(format!("block{stage}.{number}"));
                let (to, stride) = (4 * width, if number == 0 && stage > 0 { 2 } else { 1 });
                let convolutions = [
                    unit((from, width), 1, 1, variables.pp("1"))?,
                    unit((width, width), 3, stride, variables.pp("2"))?,
                    unit((width, to), 1, 1, variables.pp("3"))?,
                ];
                let shortcut = (number == 0)
                    .then(|| unit((from, to), 1, stride, variables.pp("shortcut")))
                    .transpose()?;
                blocks.push(Bottleneck {
                    convolutions,
                    shortcut,
                });
                from = to;
            }
        }
        let stem = unit((3, 64), 7, 2, variables.pp("stem"))?;
        Ok(ResNet {
            stem,
            blocks,
            head: linear(2048, 1000, variables.pp("head"))?,
        })
    }
}

impl ModuleT for ResNet {
    /// Maps `[n, 3, 224, 224]` to `[n, 1000]`.
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        let x = through(&self.stem, images, train)?.relu()?;
        // candle has no gradient of a pool whose windows overlap.
        let mut x = x.avg_pool2d(2)?;
        for Bottleneck {
            convolutions: [one, two, three],
            shortcut,
        } in &self.blocks
        {
            let y = through(one, &x, train)?.relu()?;
            let y = through(three, &through(two, &y, train)?.relu()?, train)?;
            let kept = match shortcut {
                Some(shortcut) => through(shortcut, &x, train)?,
                None => x,
            };
            x = (y + kept)?.relu()?;
        }
        self.head.forward(&x.mean(D::Minus1)?.mean(D::Minus1)?)
    }
}
