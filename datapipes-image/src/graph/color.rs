//! Colours, policies and erasing, for a graph of images or tensors.

use datapipes::{Graph, Tensor};

use super::{Step, sealed};
use crate::color::check_channels;
use crate::image::check_probability;
use crate::{
    ColorJitter, Image, RandAugment, RandomErasing, TrivialAugmentWide, grayscale, random_grayscale,
};

/// Changes of colour, and policies, for a graph of images. Import it with the
/// [`prelude`](crate::prelude).
///
/// The rules of [`ImageGraph`](crate::ImageGraph) apply.
pub trait ColorGraph: sealed::Sealed {
    /// Changes brightness, contrast, saturation and hue at random; see [`ColorJitter`].
    fn color_jitter(self, jitter: ColorJitter) -> Graph<Image>;

    /// Makes all images gray, with 1 or 3 channels; see [`grayscale`].
    fn grayscale(self, channels: u8) -> Graph<Image>;

    /// Makes images gray with probability `p`; see [`random_grayscale`].
    fn random_grayscale(self, p: f64) -> Graph<Image>;

    /// Applies some augmentations of one strength; see [`RandAugment`].
    fn rand_augment(self, policy: RandAugment) -> Graph<Image>;

    /// Applies one augmentation of a random strength; see [`TrivialAugmentWide`].
    fn trivial_augment(self, policy: TrivialAugmentWide) -> Graph<Image>;
}

impl ColorGraph for Graph<Image> {
    fn color_jitter(self, jitter: ColorJitter) -> Graph<Image> {
        let step = Step::new("color_jitter", move |mut image, rng| {
            jitter.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(jitter.settings()).check(jitter.check()))
    }

    fn grayscale(self, channels: u8) -> Graph<Image> {
        let step = Step::new("grayscale", move |image, _| grayscale(&image, channels));
        self.pipe(
            step.settings(format!("channels {channels}"))
                .check(check_channels(channels)),
        )
    }

    fn random_grayscale(self, p: f64) -> Graph<Image> {
        let step = Step::new("random_grayscale", move |mut image, rng| {
            random_grayscale(&mut image, p, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(format!("p {p}")).check(check_probability(p)))
    }

    fn rand_augment(self, policy: RandAugment) -> Graph<Image> {
        let step = Step::new("rand_augment", move |mut image, rng| {
            policy.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(policy.settings()).check(policy.check()))
    }

    fn trivial_augment(self, policy: TrivialAugmentWide) -> Graph<Image> {
        let step = Step::new("trivial_augment", move |mut image, rng| {
            policy.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(policy.settings()).check(policy.check()))
    }
}

/// Erasing, for a graph of tensors, with a label or without, or images. Import it with the
/// [`prelude`](crate::prelude).
pub trait EraseGraph: sealed::Sealed {
    /// Erases a random rectangle; see [`RandomErasing`].
    ///
    /// # Errors
    /// An item that cannot be erased is replaced by an error; see [`RandomErasing::apply_tensor`].
    fn random_erasing(self, erasing: RandomErasing) -> Self;
}

impl EraseGraph for Graph<Tensor> {
    fn random_erasing(self, erasing: RandomErasing) -> Self {
        let step = Step::over("random_erasing", move |mut tensor: Tensor, rng| {
            erasing.apply_tensor(&mut tensor, rng)?;
            Ok(tensor)
        });
        self.pipe(step.settings(erasing.settings()).check(erasing.check()))
    }
}

impl<L: Send + 'static> EraseGraph for Graph<(Tensor, L)> {
    fn random_erasing(self, erasing: RandomErasing) -> Self {
        let step = Step::over(
            "random_erasing",
            move |(mut tensor, label): (Tensor, L), rng| {
                erasing.apply_tensor(&mut tensor, rng)?;
                Ok((tensor, label))
            },
        );
        self.pipe(step.settings(erasing.settings()).check(erasing.check()))
    }
}

impl EraseGraph for Graph<Image> {
    fn random_erasing(self, erasing: RandomErasing) -> Self {
        let step = Step::new("random_erasing", move |mut image, rng| {
            erasing.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(erasing.settings()).check(erasing.check()))
    }
}
