//! A GPU fed from JPEG shards through candle: training of a ResNet-50, and a step as long as that
//! of other frameworks' ResNet-50. The bench `gpu_burn` is the same for burn.
//!
//! The floor is the same step on one batch that stays on the device. Where there is no GPU the
//! bench says so and ends; with one it is run by `cargo bench --features cudnn --bench gpu
//! [-- --json]`, which needs CUDA's compiler and cuDNN to build; `-- upload`, `-- fixed` and
//! `-- resnet` run a part. It checks first that batches arrive as they were made.

mod support;

use candle_core::{D, DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{
    BatchNorm, Conv2d, Conv2dConfig, Linear, Optimizer, SGD, VarBuilder, VarMap, batch_norm,
    conv2d_no_bias, linear, loss,
};
use datapipes_candle::{CandleLoader, to_candle};
use support::Lines;
use support::gpu::{Batches, Pixels, Rate, SIZE, Shards, assert_numbered, numbered, run};

type Batch = (Tensor, Tensor);

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = Device::cuda_if_available(0)?;
    if !device.is_cuda() {
        Lines::skip("no GPU, or built without the feature `cuda`");
        return Ok(());
    }
    check(&device)?;
    let shards = Shards::new()?;
    if shards.wanted("upload") {
        shards.alone(|batches, workers| fed(&shards, batches, workers, &device, &|_| Ok(())))?;
    }
    let beside = |name: &str, batches: Batches, step: &dyn Fn(&Batch) -> Result<()>| {
        let images = Tensor::rand(0f32, 1f32, (batches.0, 3, SIZE, SIZE), &device)?;
        let resident = (images, Tensor::zeros(batches.0, DType::I64, &device)?);
        shards.beside(
            name,
            batches,
            || Ok(step(&resident)?),
            |batches, workers| fed(&shards, batches, workers, &device, step),
        )
    };
    for batch in [64, 256].into_iter().filter(|_| shards.wanted("fixed")) {
        let step = matmuls(batch, &device)?;
        for pixels in [Pixels::Bytes, Pixels::Floats] {
            beside("a step of fixed length", (batch, pixels), &step)?;
        }
    }
    if !shards.wanted("resnet") {
        return Ok(());
    }
    let variables = VarMap::new();
    let net = ResNet::new(VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    let mut optimizer = SGD::new(variables.all_vars(), 0.01)?;
    let optimizer = std::cell::RefCell::new(&mut optimizer);
    beside("ResNet-50 by candle, f32", (64, Pixels::Bytes), &|(
        images,
        labels,
    )| {
        let loss = loss::cross_entropy(&net.forward_t(images, true)?, labels)?;
        optimizer.borrow_mut().backward_step(&loss)?;
        loss.to_scalar::<f32>().map(drop)
    })
}

/// Asserts that batches arrive as they were made while the device computes: of fewer bytes than are
/// copied at once, of as many, and of more.
fn check(device: &Device) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let a = Tensor::rand(0f32, 1f32, (2048, 2048), device)?;
    for len in [1, 1 << 20, (1 << 20) + 1, 3_333_333] {
        let loader = numbered(len)?;
        let batches = CandleLoader::new(&loader, device).epoch(0).blocking();
        for (n, batch) in (0..).zip(batches) {
            for _ in 0..5 {
                a.matmul(&a)?;
            }
            let got: Vec<f32> = batch?.to_vec1()?;
            assert_eq!(got.len(), len);
            assert_numbered(n, &got);
        }
    }
    Ok(())
}

/// Measures a step on batches that are fed: `[n, 3, 224, 224]` of `f32`, 0 to 1, and `[n]` of `i64`.
fn fed(
    shards: &Shards,
    batches: Batches,
    workers: usize,
    device: &Device,
    step: &dyn Fn(&Batch) -> Result<()>,
) -> Rate {
    let loader = CandleLoader::with(
        &shards.loader(batches, workers)?,
        device,
        move |(images, labels), device| {
            let images = to_candle(images, device)?;
            let images = match batches.1 {
                Pixels::Bytes => (images.to_dtype(DType::F32)? / 255.0)?,
                Pixels::Floats => images,
            };
            Ok((images, to_candle(labels, device)?))
        },
    );
    run(
        || loader.epoch(0).blocking(),
        |batch: Result<Batch>| {
            let batch = batch?;
            step(&batch)?;
            Ok(batch.1.elem_count())
        },
    )
}

/// Returns a step that keeps the device busy as long as [`FAST_STEP`](support::gpu::FAST_STEP) says, with matrix products in
/// bf16.
fn matmuls(batch: usize, device: &Device) -> Result<impl Fn(&Batch) -> Result<()> + use<>> {
    let a = Tensor::rand(0f32, 1f32, (4096, 4096), device)?.to_dtype(DType::BF16)?;
    let device = device.clone();
    let products = move |count: usize| {
        (0..count).try_for_each(|_| a.matmul(&a).map(drop))?;
        device.synchronize()
    };
    products(200)?;
    let begun = std::time::Instant::now();
    products(1000)?;
    let each = begun.elapsed().as_secs_f64() / 1000.0;
    let count = (batch as f64 / support::gpu::FAST_STEP / each).round() as usize;
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
