//! MixUp: weighted sums of whole images.

use datapipes::{DType, Error, Result, Rng, Tensor};

use super::{Batch, OneHot, check_alpha, check_batch, mix_labels, with_previous};
use crate::portable::beta;

/// Mixes each image of a batch with the previous one (Zhang et al. 2018): `λ · own + (1 - λ) ·
/// other`, with one λ for the batch from the distribution Beta(α, α). The labels are mixed
/// likewise.
///
/// This is torchvision's `MixUp`.
///
/// ```
/// # use datapipes::{Rng, Tensor};
/// # use datapipes_image::MixUp;
/// let images = Tensor::from_vec(vec![0.0f32; 4 * 3 * 8 * 8], [4, 3, 8, 8])?;
/// let labels = Tensor::from_vec(vec![0i64, 1, 2, 1], [4])?;
/// let (images, labels) = MixUp::new(0.2, 3).apply((images, labels), &mut Rng::from_key([1, 0, 0, 0]))?;
/// assert_eq!((images.shape(), labels.shape()), (&[4, 3, 8, 8][..], &[4, 3][..]));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixUp {
    alpha: f64,
    classes: usize,
}

impl MixUp {
    /// Sets α and the number of classes of the labels. With a small α (0.2) one image dominates in
    /// most cases; 1 is uniform.
    pub fn new(alpha: f64, classes: usize) -> Self {
        MixUp { alpha, classes }
    }

    /// Mixes a batch: images of `f32` or `u8` in any layout, `[N, ..]`, and labels as
    /// [`OneHot::encode`] takes them. The images are changed in place, except for a shared tensor,
    /// which is copied; labels become `f32`, `[N, classes]`.
    ///
    /// Bytes are rounded to nearest; torchvision mixes only floats. Draws one λ.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if α is not positive or there are no classes; [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if
    /// the numbers of images and labels differ, or a label is none of the classes;
    /// [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) for images of another type.
    pub fn apply(&self, (mut images, labels): Batch, rng: &mut Rng) -> Result<Batch> {
        self.check()?;
        check_batch("mixup", &images, &labels)?;
        let labels = OneHot::new(self.classes).encode(labels)?;
        let own = beta(self.alpha, rng);
        mix(&mut images, own)?;
        Ok((images, mix_labels(labels, own)?))
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_alpha(self.alpha).and(OneHot::new(self.classes).check())
    }

    pub(crate) fn settings(&self) -> String {
        format!("alpha {}, {} classes", self.alpha, self.classes)
    }
}

fn mix(images: &mut Tensor, own: f64) -> Result<()> {
    let rows = images.shape()[0];
    let (own, other) = (own as f32, (1.0 - own) as f32);
    match images.dtype() {
        DType::F32 => with_previous(images.as_mut_slice::<f32>()?, rows, |row, before| {
            for (to, before) in row.iter_mut().zip(before) {
                *to = before * other + *to * own;
            }
        }),
        DType::U8 => with_previous(images.as_mut_slice::<u8>()?, rows, |row, before| {
            for (to, &before) in row.iter_mut().zip(before) {
                // At most 255, as the parts sum to 1 but for a rounding.
                *to = (f32::from(before) * other + f32::from(*to) * own + 0.5) as i32 as u8;
            }
        }),
        other => {
            let message = format!("MixUp takes tensors of f32 or u8, not {other}");
            return Err(Error::unsupported(message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_torchvisions() {
        let mut lines = include_str!("../../tests/data/colour.mixup.txt")
            .lines()
            .map(|line| {
                line.split(' ')
                    .map(|word| word.parse::<f32>().unwrap())
                    .collect::<Vec<_>>()
            });
        let mut next = || lines.next().unwrap();
        let mut images = Tensor::from_vec(next(), [4, 1, 2, 2]).unwrap();
        let own = f64::from(0.7123f32);
        mix(&mut images, own).unwrap();
        assert_eq!(images.as_slice::<f32>().unwrap(), next());
        let labels = Tensor::from_vec(vec![2i64, 0, 1, 1], [4]).unwrap();
        let labels = mix_labels(OneHot::new(3).encode(labels).unwrap(), own).unwrap();
        assert_eq!(labels.as_slice::<f32>().unwrap(), next());
    }

    #[test]
    fn golden_lambdas() {
        let mut rng = Rng::from_key([1, 2, 3, 4]);
        let draw = |alpha, rng: &mut Rng| {
            let images = Tensor::from_vec(vec![0.0f32, 1.0], [2, 1]).unwrap();
            let labels = Tensor::from_vec(vec![0i32, 1], [2]).unwrap();
            let (images, _) = MixUp::new(alpha, 2).apply((images, labels), rng).unwrap();
            images.as_slice::<f32>().unwrap()[1]
        };
        let draws = [0.2, 0.2, 1.0, 1.0, 4.0, 4.0].map(|alpha| draw(alpha, &mut rng));
        assert_eq!(draws, GOLDEN, "{draws:?}");
    }

    const GOLDEN: [f32; 6] = [
        0.00026194315,
        0.39851186,
        0.5523824,
        0.5799326,
        0.24291125,
        0.42901483,
    ];

    #[test]
    fn neighbours_are_mixed_and_the_first_with_the_last() {
        // As `x.roll(1, 0) * 0.25 + x * 0.75`.
        let mut images =
            Tensor::from_vec(vec![0.0f32, 4.0, 8.0, 16.0, 32.0, 64.0], [3, 2]).unwrap();
        mix(&mut images, 0.75).unwrap();
        assert_eq!(
            images.as_slice::<f32>().unwrap(),
            [8.0, 19.0, 6.0, 13.0, 26.0, 52.0]
        );
        let mut bytes = Tensor::from_vec(vec![0u8, 255, 10, 255, 21, 0], [3, 2]).unwrap();
        mix(&mut bytes, 0.75).unwrap();
        assert_eq!(bytes.as_slice::<u8>().unwrap(), [5, 191, 8, 255, 18, 64]);
        let mut full = Tensor::from_vec(vec![255u8; 512], [2, 256]).unwrap();
        for step in 0..=1000 {
            mix(&mut full, f64::from(step) / 1000.0).unwrap();
        }
        assert!(
            full.as_slice::<u8>()
                .unwrap()
                .iter()
                .all(|&value| value == 255)
        );
    }

    #[test]
    fn nothing_is_copied_but_one_picture() {
        let images = Tensor::from_vec(vec![1.0f32; 24], [4, 1, 2, 3]).unwrap();
        let place = images.as_slice::<f32>().unwrap().as_ptr();
        let labels = Tensor::from_vec(vec![0u8, 1, 2, 0], [4]).unwrap();
        let (images, _) = MixUp::new(1.0, 3)
            .apply((images, labels), &mut Rng::from_key([0; 4]))
            .unwrap();
        assert_eq!(images.as_slice::<f32>().unwrap().as_ptr(), place);
    }
}
