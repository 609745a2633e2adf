//! CutMix: a rectangle of another image.

use datapipes::{DType, Element, Error, Result, Rng, Tensor};

use super::{Batch, OneHot, check_alpha, check_batch, mix_labels, with_previous};
use crate::layout::picture_size;
use crate::portable::beta;
use crate::{Layout, Rect};

/// Puts a rectangle of the previous image into each image of a batch (Yun et al. 2019), the same
/// rectangle for the whole batch. The labels are mixed by its area.
///
/// This is torchvision's `CutMix`. The rectangle has `1 - λ` of the area, with λ from the
/// distribution Beta(α, α), unless it reaches over the edge, where it is cut off.
///
/// # Examples
/// ```
/// # use datapipes::{Rng, Tensor};
/// # use datapipes_image::CutMix;
/// let images = Tensor::from_vec([[0u8; 64], [255; 64]].concat(), [2, 1, 8, 8])?;
/// let labels = Tensor::from_vec(vec![0i64, 1], [2])?;
/// let (images, labels) = CutMix::new(1.0, 2).apply((images, labels), &mut Rng::from_key([1, 0, 0, 0]))?;
/// let black = images.as_slice::<u8>()?[..64].iter().filter(|&&value| value == 0).count();
/// assert_eq!(labels.as_slice::<f32>()?[0], black as f32 / 64.0); // the share of its own class
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct CutMix {
    alpha: f64,
    classes: usize,
    /// Layout that was set, if any.
    layout: Option<Layout>,
}

impl CutMix {
    /// Sets α and the number of classes of the labels, for images of `[N, channels, height,
    /// width]`.
    pub fn new(alpha: f64, classes: usize) -> Self {
        CutMix {
            alpha,
            classes,
            layout: None,
        }
    }

    /// Sets the order of the axes of each image. Defaults to [`Layout::Chw`], and images whose
    /// channels seem to come last (1 or 3 there, and not in the place of `Chw`) are refused. A
    /// layout that is set here is not checked that way.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Draws the part that comes from the other image, for images of this size, which is not 0.
    /// Draws λ, then column and row of the middle.
    pub(crate) fn part(&self, width: u32, height: u32, rng: &mut Rng) -> Rect {
        let own = beta(self.alpha, rng);
        let (x, y) = (
            rng.below(u64::from(width)) as u32,
            rng.below(u64::from(height)) as u32,
        );
        around(x, y, own, width, height)
    }

    /// Mixes a batch: images of `f32` or `u8`, and labels as [`OneHot::encode`] takes them. The
    /// images are changed in place, except for a shared tensor, which is copied; labels become
    /// `f32`, `[N, classes]`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if α is not positive or there are no classes; [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if
    /// the numbers of images and labels differ, a label is none of the classes, or the images are
    /// not of rank 4, are empty, or seem to have another layout; [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) for
    /// images of another type.
    pub fn apply(&self, (mut images, labels): Batch, rng: &mut Rng) -> Result<Batch> {
        self.check()?;
        check_batch("cutmix", &images, &labels)?;
        let (width, height, channels) = self.size(&images)?;
        let labels = OneHot::new(self.classes).encode(labels)?;
        let part = self.part(width, height, rng);
        // Contiguous runs in memory: of a row, or of a row of all channels.
        let runs = match self.layout.unwrap_or_default() {
            Layout::Chw => Runs::new(part, width, height, channels, 1),
            Layout::Hwc => Runs::new(part, width, height, 1, channels),
        };
        match images.dtype() {
            DType::F32 => runs.paste(images.as_mut_slice::<f32>()?, labels.shape()[0]),
            DType::U8 => runs.paste(images.as_mut_slice::<u8>()?, labels.shape()[0]),
            other => {
                let message = format!("CutMix takes tensors of f32 or u8, not {other}");
                return Err(Error::unsupported(message));
            }
        }
        Ok((images, mix_labels(labels, outside(part, width, height))?))
    }

    /// Returns width, height and channels.
    fn size(&self, images: &Tensor) -> Result<(u32, u32, usize)> {
        let &[_, a, b, c] = images.shape() else {
            let message = format!("cutmix of images {:?}: not of rank 4", images.shape());
            return Err(Error::shape(message));
        };
        picture_size("cutmix of images", images.shape(), [a, b, c], self.layout)
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_alpha(self.alpha).and(OneHot::new(self.classes).check())
    }

    pub(crate) fn settings(&self) -> String {
        let last = if self.layout == Some(Layout::Hwc) {
            ", channels last"
        } else {
            ""
        };
        format!("alpha {}, {} classes{last}", self.alpha, self.classes)
    }
}

/// Returns a part of the image's shape with `1 - own` of its area, around a pixel.
fn around(x: u32, y: u32, own: f64, width: u32, height: u32) -> Rect {
    let reach = 0.5 * (1.0 - own).sqrt();
    let along = |middle: u32, edge: u32| {
        let half = (reach * f64::from(edge)) as u32;
        (
            middle.saturating_sub(half),
            middle.saturating_add(half).min(edge),
        )
    };
    let ((left, right), (top, bottom)) = (along(x, width), along(y, height));
    Rect {
        x: left,
        y: top,
        width: right - left,
        height: bottom - top,
    }
}

/// Returns the fraction of the area that is not in a part.
fn outside(part: Rect, width: u32, height: u32) -> f64 {
    let area = |width: u32, height: u32| f64::from(width) * f64::from(height);
    1.0 - area(part.width, part.height) / area(width, height)
}

/// Places of a part's values in an image.
struct Runs {
    planes: usize,
    plane: usize,
    stride: usize,
    rows: std::ops::Range<usize>,
    row: std::ops::Range<usize>,
}

impl Runs {
    fn new(part: Rect, width: u32, height: u32, planes: usize, pixel: usize) -> Self {
        let stride = width as usize * pixel;
        let (x, y) = (part.x as usize, part.y as usize);
        Runs {
            planes,
            plane: stride * height as usize,
            stride,
            rows: y..y + part.height as usize,
            row: x * pixel..(x + part.width as usize) * pixel,
        }
    }

    fn paste<T: Element + Copy>(&self, values: &mut [T], images: usize) {
        with_previous(values, images, |image, before| {
            for plane in 0..self.planes {
                for row in self.rows.clone() {
                    let start = plane * self.plane + row * self.stride;
                    let run = start + self.row.start..start + self.row.end;
                    image[run.clone()].copy_from_slice(&before[run]);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn parts_are_torchvisions() {
        for line in include_str!("../../tests/data/colour.cutmix.txt").lines() {
            let numbers: Vec<f64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let [w, h, own, x, y, x1, y1, x2, y2, area] = numbers[..] else {
                panic!("{line}")
            };
            let part = around(x as u32, y as u32, own, w as u32, h as u32);
            assert_eq!(
                [part.x, part.y, part.x + part.width, part.y + part.height],
                [x1, y1, x2, y2].map(|v| v as u32)
            );
            assert!(
                (outside(part, w as u32, h as u32) - area).abs() < 1e-12,
                "{line}"
            );
        }
    }

    #[test]
    fn golden_parts() {
        let mut rng = Rng::from_key([1, 2, 3, 4]);
        let parts: Vec<_> = (0..3)
            .map(|_| CutMix::new(1.0, 2).part(224, 160, &mut rng))
            .collect();
        let parts: Vec<_> = parts
            .iter()
            .map(|part| [part.x, part.y, part.width, part.height])
            .collect();
        assert_eq!(parts, GOLDEN, "{parts:?}");
    }

    const GOLDEN: [[u32; 4]; 3] = [[100, 0, 124, 113], [73, 0, 151, 84], [0, 0, 123, 58]];

    #[test]
    fn the_part_and_only_it_is_pasted_in_both_layouts() {
        let (n, c, h, w) = (3, 3, 6, 5);
        let mut rng = Rng::from_key([3, 0, 0, 0]);
        let part = CutMix::new(1.0, 3).part(w as u32, h as u32, &mut Rng::from_key([3, 0, 0, 0]));
        assert!(
            part.width > 0 && part.height > 0 && part.width < w as u32,
            "{part:?}"
        );
        let value = |i: usize, c: usize, y: usize, x: usize| (i * 90 + c * 30 + y * 5 + x) as f32;
        let labels = || Tensor::from_vec(vec![0u8, 1, 2], [3]).unwrap();
        let inside = |y: usize, x: usize| {
            (part.x..part.x + part.width).contains(&(x as u32))
                && (part.y..part.y + part.height).contains(&(y as u32))
        };
        let from = |i: usize, y: usize, x: usize| if inside(y, x) { (i + n - 1) % n } else { i };

        let (mut first, mut wanted) = (Vec::new(), Vec::new());
        let (mut last, mut wanted_last) = (Vec::new(), Vec::new());
        for i in 0..n {
            for (c, y, x) in
                (0..c).flat_map(|c| (0..h).flat_map(move |y| (0..w).map(move |x| (c, y, x))))
            {
                first.push(value(i, c, y, x));
                wanted.push(value(from(i, y, x), c, y, x));
            }
            for (y, x, c) in
                (0..h).flat_map(|y| (0..w).flat_map(move |x| (0..c).map(move |c| (y, x, c))))
            {
                last.push(value(i, c, y, x) as u8);
                wanted_last.push(value(from(i, y, x), c, y, x) as u8);
            }
        }
        let images = Tensor::from_vec(first, [n, c, h, w]).unwrap();
        let (images, soft) = CutMix::new(1.0, 3)
            .apply((images, labels()), &mut rng)
            .unwrap();
        assert_eq!(images.as_slice::<f32>().unwrap(), wanted);
        let own = outside(part, w as u32, h as u32) as f32;
        let soft = soft.as_slice::<f32>().unwrap();
        for (is, should) in soft.iter().zip([
            own,
            0.0,
            1.0 - own,
            1.0 - own,
            own,
            0.0,
            0.0,
            1.0 - own,
            own,
        ]) {
            assert!((is - should).abs() < 1e-6, "{soft:?}");
        }

        let images = Tensor::from_vec(last, [n, h, w, c]).unwrap();
        let rng = &mut Rng::from_key([3, 0, 0, 0]);
        let (images, _) = CutMix::new(1.0, 3)
            .layout(Layout::Hwc)
            .apply((images, labels()), rng)
            .unwrap();
        assert_eq!(images.as_slice::<u8>().unwrap(), wanted_last);
    }

    #[test]
    fn a_layout_that_was_said_is_not_doubted() {
        let mix = |cutmix: CutMix, shape: [usize; 4]| {
            let values: Vec<f32> = (0..shape.iter().product())
                .map(|n: usize| n as f32)
                .collect();
            let batch = (
                Tensor::from_vec(values, shape).unwrap(),
                Tensor::from_vec(vec![0u8, 1], [2]).unwrap(),
            );
            cutmix
                .apply(batch, &mut Rng::from_key([3, 0, 0, 0]))
                .map(drop)
        };
        let new = || CutMix::new(1.0, 2);
        for shape in [[2, 6, 5, 3], [2, 4, 4, 1]] {
            let error = mix(new(), shape).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(
                error.to_string().contains("the channels seem to come last"),
                "{error}"
            );
            assert!(mix(new().layout(Layout::Chw), shape).is_ok());
            assert!(mix(new().layout(Layout::Hwc), shape).is_ok());
        }
        // A multispectral image, and an image that is 3 pixels high.
        assert!(mix(new(), [2, 12, 6, 5]).is_ok());
        assert!(mix(new().layout(Layout::Hwc), [2, 3, 6, 12]).is_ok());
    }
}
