//! A GPU fed from JPEG shards through burn: a step as long as that of other frameworks' ResNet-50,
//! and one of many short kernels. The bench `gpu` is the same for candle.
//!
//! The floor is the same step on one batch that stays on the device. Where there is no GPU the
//! bench says so and ends; with one it is run by `cargo bench --features burn-cuda --bench gpu_burn
//! [-- --json]`; `-- upload`, `-- fixed` and `-- short` run a part. It checks first that batches
//! arrive as they were made.

mod support;

use support::Lines;

#[cfg(not(feature = "burn-cuda"))]
fn main() {
    Lines::skip("built without the feature `burn-cuda`");
}

#[cfg(feature = "burn-cuda")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::panic::catch_unwind(|| burn::tensor::Device::cuda(0).sync()) {
        Ok(Ok(())) => on_gpu::measure(&burn::tensor::Device::cuda(0)),
        _ => {
            Lines::skip("no GPU");
            Ok(())
        }
    }
}

#[cfg(feature = "burn-cuda")]
mod on_gpu {
    use std::error::Error;
    use std::time::Instant;

    use burn::data::dataloader::DataLoader as _;
    use burn::tensor::{DType, Device, Distribution, Int, Tensor};
    use datapipes_burn::{BurnLoader, IntoBurn};

    use super::support::gpu::{
        Batches, FAST_STEP, IMAGES, Pixels, Rate, SIZE, Shards, assert_numbered, numbered, run,
    };

    type Batch = (Tensor<4>, Tensor<1, Int>);
    type Step = dyn Fn(&Tensor<4>) -> Result<(), Box<dyn Error>>;

    /// Reads the mean of the images, so that they have to be there.
    fn look(images: &Tensor<4>) -> Result<(), Box<dyn Error>> {
        let mean = images.clone().mean().into_scalar::<f32>();
        assert!((0.0..=1.0).contains(&mean), "a mean of {mean}");
        Ok(())
    }

    pub fn measure(device: &Device) -> Result<(), Box<dyn Error>> {
        check(device)?;
        let shards = Shards::new()?;
        if shards.wanted("upload") {
            shards.alone(|batches, workers| fed(&shards, batches, workers, device, &look))?;
        }
        // A product of the second kind takes less time than its start.
        for (part, name, width) in [
            ("fixed", "a step of fixed length", 4096),
            ("short", "a step of short kernels", 512),
        ] {
            for batch in [64, 256].into_iter().filter(|_| shards.wanted(part)) {
                let step = products(batch, width, device)?;
                let shape = [batch, 3, SIZE, SIZE];
                let resident = Tensor::random(shape, Distribution::Default, device);
                for pixels in [Pixels::Bytes, Pixels::Floats] {
                    let stays = || step(&resident);
                    shards.beside(name, (batch, pixels), stays, |batches, workers| {
                        fed(&shards, batches, workers, device, &step)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Asserts that batches arrive as they were made while the device computes.
    fn check(device: &Device) -> Result<(), Box<dyn Error>> {
        let a = Tensor::<2>::random([2048, 2048], Distribution::Default, device);
        for len in [1, 1000, 1 << 20, 3_333_333] {
            let loader = numbered(len)?;
            let loader: BurnLoader<_, Tensor<1>> = BurnLoader::new(loader, device);
            for (n, batch) in (0..).zip(loader.prefetch_to_device(1).iter()) {
                for _ in 0..5 {
                    let _ = a.clone().matmul(a.clone());
                }
                let got = batch?.into_data().try_into_vec::<f32>()?;
                assert_eq!(got.len(), len);
                assert_numbered(n, &got);
            }
        }
        Ok(())
    }

    /// Measures a step beside batches that are fed: `[n, 3, 224, 224]` of `f32`, 0 to 1, and `[n]`
    /// of integers.
    fn fed(
        shards: &Shards,
        batches: Batches,
        workers: usize,
        device: &Device,
        step: &Step,
    ) -> Rate {
        let loader = shards.loader(batches, workers)?;
        let loader = BurnLoader::with(
            loader,
            device,
            move |(images, labels): (datapipes::Tensor, datapipes::Tensor), device: &Device| {
                let images = match batches.1 {
                    Pixels::Bytes => {
                        let images: Tensor<4, Int> = images.into_burn(device)?;
                        images.float() / 255.0
                    }
                    Pixels::Floats => images.into_burn(device)?,
                };
                datapipes::Ok::<Batch>((images, labels.into_burn(device)?))
            },
        );
        let loader = loader
            .items(IMAGES)
            .batch_size(batches.0)
            .prefetch_to_device(1);
        run(
            || loader.iter(),
            |batch| {
                let (images, _labels): Batch = batch?;
                step(&images)?;
                Ok(images.dims()[0])
            },
        )
    }

    /// Returns a step that looks at the images and keeps the device busy as long as [`FAST_STEP`]
    /// says, with matrix products in bf16.
    fn products(
        batch: usize,
        width: usize,
        device: &Device,
    ) -> Result<impl Fn(&Tensor<4>) -> Result<(), Box<dyn Error>> + use<>, Box<dyn Error>> {
        let a = Tensor::<2>::random([width, width], Distribution::Default, device);
        let a = a.cast(DType::BF16);
        let device = device.clone();
        let products = move |count: usize| {
            (0..count).for_each(|_| drop(a.clone().matmul(a.clone())));
            device.sync()
        };
        products(200)?;
        let begun = Instant::now();
        products(1000)?;
        let each = begun.elapsed().as_secs_f64() / 1000.0;
        let count = (batch as f64 / FAST_STEP / each).round() as usize;
        Ok(move |images: &Tensor<4>| {
            products(count)?;
            look(images)
        })
    }
}
