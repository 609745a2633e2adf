//! Mixing, for a graph of batches.

use datapipes::{Graph, Tensor};

use super::{sealed, step};
use crate::{CutMix, MixUp, OneHot, RandomMix};

/// Mixing steps for batches of images and labels. Import it with the [`prelude`](crate::prelude).
///
/// All run on the CPU workers, on many batches at once, and keep order. Random numbers depend on
/// seed, epoch, node and batch alone.
///
/// ```
/// use datapipes::{Graph, Tensor};
/// use datapipes_image::prelude::*;
///
/// let samples: Graph<(Tensor, u32)> = Graph::range(0..8).map(|n| {
///     (Tensor::from_vec(vec![n as f32; 3 * 4 * 4], [3, 4, 4]).expect("it fits"), n as u32)
/// });
/// let batches = samples.batch(4).collate();
/// for mixed in [
///     batches.clone().mixup(MixUp::new(0.2, 8)),
///     batches.clone().cutmix(CutMix::new(1.0, 8)),
///     batches.clone().random_mix(RandomMix::new(MixUp::new(0.2, 8), CutMix::new(1.0, 8))),
///     batches.one_hot(OneHot::new(8)),
/// ] {
///     let (images, labels) = &mixed.collect()?[0];
///     assert_eq!((images.shape(), labels.shape()), (&[4, 3, 4, 4][..], &[4, 8][..]));
/// }
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait BatchGraphExt: sealed::Sealed {
    /// Mixes each image with another of its batch; see [`MixUp`].
    fn mixup(self, mixup: MixUp) -> Self;

    /// Puts a part of another image of the batch into each; see [`CutMix`].
    fn cutmix(self, cutmix: CutMix) -> Self;

    /// Applies one of the two to each batch; see [`RandomMix`].
    fn random_mix(self, mix: RandomMix) -> Self;

    /// Makes probabilities of the labels; see [`OneHot`].
    fn one_hot(self, one_hot: OneHot) -> Self;
}

type Batch = (Tensor, Tensor);

impl BatchGraphExt for Graph<Batch> {
    fn mixup(self, mixup: MixUp) -> Self {
        let step = step("mixup", move |batch, rng| mixup.apply(batch, rng));
        let step = step.settings(mixup.settings());
        self.pipe(step.problem(mixup.check().err()))
    }

    fn cutmix(self, cutmix: CutMix) -> Self {
        let step = step("cutmix", move |batch, rng| cutmix.apply(batch, rng));
        let step = step.settings(cutmix.settings());
        self.pipe(step.problem(cutmix.check().err()))
    }

    fn random_mix(self, mix: RandomMix) -> Self {
        let step = step("random_mix", move |batch, rng| mix.apply(batch, rng));
        let step = step.settings(mix.settings());
        self.pipe(step.problem(mix.check().err()))
    }

    fn one_hot(self, one_hot: OneHot) -> Self {
        let step = step("one_hot", move |(images, labels): Batch, _| {
            Ok((images, one_hot.encode(labels)?))
        });
        let step = step.settings(one_hot.settings());
        self.pipe(step.problem(one_hot.check().err()))
    }
}
