//! Erasing, for a graph of images or tensors.

use datapipes::{Graph, Tensor};

use super::{Step, sealed};
use crate::{Image, RandomErasing};

/// Erasing, for a graph of tensors, with a label or without, or images. Import it with the
/// [`prelude`](crate::prelude).
///
/// # Examples
/// ```
/// use datapipes::{Graph, Tensor};
/// use datapipes_image::prelude::*;
///
/// let white = Tensor::from_vec(vec![1.0f32; 3 * 32 * 32], [3, 32, 32])?;
/// let erased = Graph::from_vec(vec![white]).random_erasing(RandomErasing::new(1.0)).collect()?;
/// assert!(erased[0].as_slice::<f32>()?.contains(&0.0));
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait EraseGraphExt: sealed::Sealed {
    /// Erases a random rectangle; see [`RandomErasing`].
    ///
    /// # Errors
    /// An item that cannot be erased is replaced by an error; see [`RandomErasing::apply_tensor`].
    fn random_erasing(self, erasing: RandomErasing) -> Self;
}

impl EraseGraphExt for Graph<Tensor> {
    fn random_erasing(self, erasing: RandomErasing) -> Self {
        let step = Step::over("random_erasing", move |mut tensor: Tensor, rng| {
            erasing.apply_tensor(&mut tensor, rng)?;
            Ok(tensor)
        });
        self.pipe(step.settings(erasing.settings()).check(erasing.check()))
    }
}

impl<L: Send + 'static> EraseGraphExt for Graph<(Tensor, L)> {
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

impl EraseGraphExt for Graph<Image> {
    fn random_erasing(self, erasing: RandomErasing) -> Self {
        let step = Step::new("random_erasing", move |mut image, rng| {
            erasing.apply(&mut image, rng)?;
            Ok(image)
        });
        self.pipe(step.settings(erasing.settings()).check(erasing.check()))
    }
}
