//! Batches whose images are mixed with each other, and whose labels give the share of each image.
//!
//! Image `i` is mixed with image `i - 1`, the first with the last, as torchvision does. A batch of
//! one image is mixed with itself and does not change. The images are changed in place, with a copy
//! of one of them.

mod cutmix;
mod labels;
mod mixup;

pub use cutmix::CutMix;
pub use labels::{OneHot, one_hot};
pub use mixup::MixUp;

use datapipes::{Element, Error, Result, Rng, Tensor};

use crate::image::check_probability;

/// Images and labels.
type Batch = (Tensor, Tensor);

/// Applies either [`MixUp`] or [`CutMix`], chosen for each batch: torchvision's `RandomChoice` of
/// both.
///
/// Draws one number, then the numbers of the chosen one.
///
/// # Examples
/// ```
/// # use datapipes::{Rng, Tensor};
/// # use datapipes_image::{CutMix, MixUp, RandomMix};
/// let images = Tensor::from_vec(vec![0u8; 4 * 3 * 8 * 8], [4, 3, 8, 8])?;
/// let labels = Tensor::from_vec(vec![0i64, 1, 2, 1], [4])?;
/// let mix = RandomMix::new(MixUp::new(0.2, 3), CutMix::new(1.0, 3));
/// let (images, labels) = mix.apply((images, labels), &mut Rng::from_key([1, 0, 0, 0]))?;
/// assert_eq!((images.shape(), labels.shape()), (&[4, 3, 8, 8][..], &[4, 3][..]));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandomMix {
    mixup: MixUp,
    cutmix: CutMix,
    p: f64,
}

impl RandomMix {
    /// Chooses either with the same probability.
    pub fn new(mixup: MixUp, cutmix: CutMix) -> Self {
        RandomMix {
            mixup,
            cutmix,
            p: 0.5,
        }
    }

    /// Sets the probability of [`MixUp`].
    pub fn mixup_probability(self, p: f64) -> Self {
        RandomMix { p, ..self }
    }

    /// Mixes a batch; see [`MixUp::apply`] and [`CutMix::apply`].
    ///
    /// # Errors
    /// The errors of both, and [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the probability is not from 0 to 1.
    pub fn apply(&self, batch: Batch, rng: &mut Rng) -> Result<Batch> {
        self.check()?;
        match rng.chance(self.p) {
            true => self.mixup.apply(batch, rng),
            false => self.cutmix.apply(batch, rng),
        }
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_probability(self.p)
            .and(self.mixup.check())
            .and(self.cutmix.check())
    }

    pub(crate) fn settings(&self) -> String {
        let RandomMix { mixup, cutmix, p } = self;
        format!(
            "mixup p {p}, {}; cutmix {}",
            mixup.settings(),
            cutmix.settings()
        )
    }
}

fn check_alpha(alpha: f64) -> Result<()> {
    if alpha > 0.0 && alpha <= 1e6 {
        return Ok(());
    }
    Err(Error::config(format!(
        "an alpha of {alpha}: it has to be positive, and 1000000 at most"
    )))
}

/// Returns the number of images in a batch.
fn check_batch(what: &str, images: &Tensor, labels: &Tensor) -> Result<usize> {
    match (images.shape(), labels.shape()) {
        ([n, _, ..], [m, ..]) if n == m => Ok(*n),
        (images, labels) => {
            let message = format!("{what} of images {images:?} and labels {labels:?}");
            Err(Error::shape(message))
        }
    }
}

/// Calls a function for each row and the original previous row; the last row precedes the first.
fn with_previous<T: Element + Copy>(
    values: &mut [T],
    rows: usize,
    mut f: impl FnMut(&mut [T], &[T]),
) {
    if rows < 2 || values.is_empty() {
        return; // mixed with itself
    }
    let len = values.len() / rows;
    let last = values[values.len() - len..].to_vec();
    for row in (1..rows).rev() {
        let (before, here) = values.split_at_mut(row * len);
        f(&mut here[..len], &before[(row - 1) * len..]);
    }
    f(&mut values[..len], &last);
}

/// Mixes labels as the images were: `own` of each label, the rest of the previous one.
fn mix_labels(mut labels: Tensor, own: f64) -> Result<Tensor> {
    let rows = labels.shape()[0];
    let (own, other) = (own as f32, (1.0 - own) as f32);
    with_previous(labels.as_mut_slice::<f32>()?, rows, |row, before| {
        for (to, before) in row.iter_mut().zip(before) {
            *to = before * other + *to * own;
        }
    });
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    fn batch(images: Vec<usize>, labels: Vec<i64>) -> Batch {
        let len = images.iter().product();
        let images =
            Tensor::from_vec((0..len).map(|i| i as f32).collect::<Vec<_>>(), images).unwrap();
        let n = labels.len();
        (images, Tensor::from_vec(labels, [n]).unwrap())
    }

    fn rng(key: u64) -> Rng {
        Rng::from_key([key, 0, 0, 0])
    }

    #[test]
    fn one_picture_stays_as_it_is() {
        let (before, _) = batch(vec![1, 3, 4, 4], vec![1]);
        let (images, labels) = MixUp::new(1.0, 2)
            .apply((before.clone(), batch(vec![1, 1], vec![1]).1), &mut rng(1))
            .unwrap();
        assert_eq!(
            (&images, labels.as_slice::<f32>().unwrap()),
            (&before, &[0.0, 1.0][..])
        );
        let (images, labels) = CutMix::new(1.0, 2)
            .apply((images, labels), &mut rng(1))
            .unwrap();
        assert_eq!(
            (&images, labels.as_slice::<f32>().unwrap()),
            (&before, &[0.0, 1.0][..])
        );
    }

    #[test]
    fn labels_sum_to_one_and_may_be_mixed_twice() {
        let (images, labels) = batch(vec![4, 1, 8, 8], vec![0, 2, 1, 1]);
        let once = MixUp::new(0.7, 3)
            .apply((images, labels), &mut rng(2))
            .unwrap();
        let (_, labels) = CutMix::new(0.7, 3).apply(once, &mut rng(3)).unwrap();
        for row in labels.as_slice::<f32>().unwrap().chunks(3) {
            assert!(
                (row.iter().sum::<f32>() - 1.0).abs() < 1e-5 && row.iter().all(|&v| v >= 0.0),
                "{row:?}"
            );
        }
    }

    #[test]
    fn either_is_chosen_by_its_probability() {
        let labels = |p: f64, key| {
            let mix = RandomMix::new(MixUp::new(1.0, 2), CutMix::new(1.0, 2)).mixup_probability(p);
            let (images, _) = mix
                .apply(batch(vec![2, 1, 8, 8], vec![0, 1]), &mut rng(key))
                .unwrap();
            // A cut leaves whole numbers.
            images
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .all(|value| value.fract() == 0.0)
        };
        assert!((0..20).all(|key| labels(0.0, key)));
        assert!((0..20).all(|key| !labels(1.0, key)));
        let cuts = (0..200).filter(|&key| labels(0.5, key)).count();
        assert!((70..130).contains(&cuts), "{cuts}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let mut rng = rng(1);
        let (mixup, cutmix) = (MixUp::new(1.0, 3), CutMix::new(1.0, 3));
        for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e7] {
            let error = MixUp::new(alpha, 3)
                .apply(batch(vec![2, 1, 2, 2], vec![0, 1]), &mut rng)
                .unwrap_err();
            assert!(
                error.to_string().contains(&format!("an alpha of {alpha}")),
                "{error}"
            );
            let mix = RandomMix::new(mixup, CutMix::new(alpha, 3));
            assert_eq!(
                mix.apply(batch(vec![2, 1, 2, 2], vec![0, 1]), &mut rng)
                    .unwrap_err()
                    .kind(),
                ErrorKind::Config
            );
        }
        let error = RandomMix::new(mixup, cutmix)
            .mixup_probability(2.0)
            .check()
            .unwrap_err();
        assert!(
            error.to_string().contains("the probability is 2"),
            "{error}"
        );
        let error = mixup
            .apply(batch(vec![3, 4], vec![0, 1]), &mut rng)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "shape mismatch: mixup of images [3, 4] and labels [2]"
        );
        let error = mixup
            .apply(batch(vec![2, 4], vec![0, 3]), &mut rng)
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("label 3, at 1 of 2, is none of 3 classes"),
            "{error}"
        );
        for (shape, text) in [
            (vec![2, 4], "not of rank 4"),
            (vec![2, 3, 0, 5], "no pixels"),
            (vec![2, 8, 9, 3], "the channels seem to come last"),
        ] {
            let error = cutmix
                .apply(batch(shape, vec![0, 1]), &mut rng)
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains(text), "{error}");
        }
        let (_, labels) = batch(vec![2, 1], vec![0, 1]);
        let doubles = Tensor::from_vec(vec![0f64; 8], [2, 1, 2, 2]).unwrap();
        let error = mixup
            .apply((doubles.clone(), labels.clone()), &mut rng)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "unsupported: MixUp takes tensors of f32 or u8, not f64"
        );
        assert_eq!(
            cutmix
                .apply((doubles, labels), &mut rng)
                .unwrap_err()
                .kind(),
            ErrorKind::Unsupported
        );
    }
}
