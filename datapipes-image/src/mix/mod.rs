//! Batches whose pictures are mixed with each other, and whose labels say how much of what is in them.
//!
//! Picture `i` is mixed with picture `i - 1`, the first with the last, as torchvision does; a batch of one picture is
//! mixed with itself, so that it stays as it is. The pictures are changed in place, with one of them copied aside.

mod cutmix;
mod labels;
mod mixup;

pub use cutmix::CutMix;
pub use labels::{OneHot, one_hot};
pub use mixup::MixUp;

use datapipes::{Element, Error, ErrorKind, Result, Rng, Tensor};

use crate::adjust::check_probability;

/// Pictures and labels.
type Batch = (Tensor, Tensor);

/// Either [`MixUp`] or [`CutMix`], decided for each batch: torchvision's `RandomChoice` of both.
///
/// One number is drawn, then what the chosen one draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomMix {
    mixup: MixUp,
    cutmix: CutMix,
    p: f64,
}

impl RandomMix {
    /// Either with the same probability.
    pub fn new(mixup: MixUp, cutmix: CutMix) -> Self {
        RandomMix { mixup, cutmix, p: 0.5 }
    }

    /// The probability of [`MixUp`].
    pub fn mixup_probability(self, p: f64) -> Self {
        RandomMix { p, ..self }
    }

    /// Mixes a batch; see [`MixUp::apply`] and [`CutMix::apply`].
    ///
    /// # Errors
    /// As theirs, and [`ErrorKind::Config`] if the probability is not from 0 to 1.
    pub fn apply(&self, batch: Batch, rng: &mut Rng) -> Result<Batch> {
        self.check()?;
        match rng.chance(self.p) {
            true => self.mixup.apply(batch, rng),
            false => self.cutmix.apply(batch, rng),
        }
    }

    /// [`ErrorKind::Config`] if a setting makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        check_probability(self.p).and(self.mixup.check()).and(self.cutmix.check())
    }

    pub(crate) fn settings(&self) -> String {
        let RandomMix { mixup, cutmix, p } = self;
        format!("mixup p {p}, {}; cutmix {}", mixup.settings(), cutmix.settings())
    }
}

fn check_alpha(alpha: f64) -> Result<()> {
    if alpha > 0.0 && alpha <= 1e6 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        format!("an alpha of {alpha}: it has to be positive, and 1000000 at most"),
    ))
}

/// How many pictures a batch has.
fn check_batch(what: &str, images: &Tensor, labels: &Tensor) -> Result<usize> {
    match (images.shape(), labels.shape()) {
        ([n, _, ..], [m, ..]) if n == m => Ok(*n),
        (images, labels) => {
            let message = format!("{what} of images {images:?} and labels {labels:?}");
            Err(Error::new(ErrorKind::Shape, message))
        }
    }
}

/// Runs a function over each row and the row before it as it was, the first and the last being neighbours.
fn with_previous<T: Element + Copy>(values: &mut [T], rows: usize, mut f: impl FnMut(&mut [T], &[T])) {
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

/// Labels mixed as the pictures were: this much of their own, the rest of the one before.
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
