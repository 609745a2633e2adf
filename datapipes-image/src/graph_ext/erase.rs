//! Erasing, for a graph of images or tensors.

use std::any::Any;

use datapipes::{Graph, Result, Rng, Tensor, Weigh};

use super::{in_place, sealed, step};
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
        add(self, erasing, |tensor, erasing, rng| {
            erasing.apply_tensor(tensor, rng)
        })
    }
}

impl<L: Send + 'static> EraseGraphExt for Graph<(Tensor, L)> {
    fn random_erasing(self, erasing: RandomErasing) -> Self {
        let erased = add(self, erasing, |(tensor, _), erasing, rng| {
            erasing.apply_tensor(tensor, rng)
        });
        // The bytes of a label are known only if it is a tensor.
        erased.weighed(|(tensor, label): &(Tensor, L)| {
            let label = (label as &dyn Any).downcast_ref::<Tensor>();
            tensor.byte_len() + label.map_or(0, Tensor::byte_len)
        })
    }
}

impl EraseGraphExt for Graph<Image> {
    fn random_erasing(self, erasing: RandomErasing) -> Self {
        add(self, erasing, |image, erasing, rng| {
            erasing.apply(image, rng)
        })
        .weighed(Weigh::weigh)
    }
}

fn add<T: Send + 'static>(
    graph: Graph<T>,
    erasing: RandomErasing,
    erase: fn(&mut T, &RandomErasing, &mut Rng) -> Result<()>,
) -> Graph<T> {
    let erase = in_place(move |item, rng| erase(item, &erasing, rng));
    let step = step("random_erasing", erase).settings(erasing.settings());
    graph.pipe(step.problem(erasing.check().err()))
}
