//! Bounding boxes.

use datapipes::{Error, Result, Tensor, wire_struct};

use super::KeptBoxes;
use crate::geometry::{Geometry, Op, PadMode, Spatial};
use crate::image::check_edges;

/// Bounding boxes in an image: left, top, right and bottom of each, in pixels from the image's
/// upper left corner, so that a box around everything is `[0, 0, width, height]`.
///
/// - They lie in the image, and their right and bottom are not less than their left and top:
///   [`new`](Boxes::new) checks this, and every geometry preserves it.
/// - A geometry clips boxes at the border, as torchvision's does, and **never drops one**, so that
///   labels keep their places. A box outside keeps no area. [`sanitize`](Boxes::sanitize) at the
///   end drops such boxes, and returns which ones are kept.
/// - A box that is rotated or sheared becomes the box around its four corners, which may be larger
///   than a box around the object.
///
/// For COCO's `[left, top, width, height]`, see [`from_xywh`](Boxes::from_xywh).
///
/// ```
/// # use datapipes_image::{Boxes, Geometry, Rect};
/// let boxes = Boxes::new(100, 80, vec![[10.0, 10.0, 30.0, 40.0], [90.0, 0.0, 100.0, 8.0]])?;
/// let geometry = Geometry::new(100, 80).hflip().crop(Rect { x: 50, y: 0, width: 50, height: 80 })?;
/// let (boxes, kept) = geometry.apply(boxes)?.sanitize(1.0, 1.0)?;
/// assert_eq!(boxes.corners(), [[20.0, 10.0, 40.0, 40.0]]);
/// assert_eq!(kept.select(vec!["dog", "cat"])?, ["dog"]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Boxes {
    width: u32,
    height: u32,
    corners: Vec<[f32; 4]>,
}

impl Boxes {
    /// Makes boxes in an image of this size: left, top, right, bottom.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](datapipes::ErrorKind::Corrupt), naming the box, if one is not in the image, its right or bottom is
    /// less than its left or top, or a number is not finite; [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if an edge of the
    /// image is zero.
    pub fn new(width: u32, height: u32, corners: Vec<[f32; 4]>) -> Result<Self> {
        check_edges("boxes in an image", width, height)?;
        for (index, corner) in corners.iter().enumerate() {
            check(index, *corner)?;
            let [left, top, right, bottom] = *corner;
            if !(left >= 0.0 && top >= 0.0 && right <= width as f32 && bottom <= height as f32) {
                let message =
                    format!("box {index} is {corner:?}, outside of an image of {width}x{height}");
                return Err(Error::corrupt(message));
            }
        }
        Ok(Boxes {
            width,
            height,
            corners,
        })
    }

    /// Makes boxes as [`new`](Boxes::new) does, but clips them at the border of the image: for
    /// annotations that are rounded, or reach beyond it.
    ///
    /// # Errors
    /// As [`new`](Boxes::new), except for boxes that are not in the image.
    pub fn clamped(width: u32, height: u32, mut corners: Vec<[f32; 4]>) -> Result<Self> {
        check_edges("boxes in an image", width, height)?;
        for (index, corner) in corners.iter_mut().enumerate() {
            check(index, *corner)?;
            *corner = clamp(corner.map(f64::from), (width, height));
        }
        Ok(Boxes {
            width,
            height,
            corners,
        })
    }

    /// Makes boxes as [`clamped`](Boxes::clamped) does, from left, top, width and height: COCO's.
    ///
    /// # Errors
    /// As [`clamped`](Boxes::clamped).
    pub fn from_xywh(
        width: u32,
        height: u32,
        boxes: impl IntoIterator<Item = [f64; 4]>,
    ) -> Result<Self> {
        let corners = boxes
            .into_iter()
            .map(|[x, y, w, h]| [x, y, x + w, y + h].map(|value| value as f32));
        Boxes::clamped(width, height, corners.collect())
    }

    /// Returns the number of pixels in a row of the image.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the number of rows of the image.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the number of boxes.
    pub fn len(&self) -> usize {
        self.corners.len()
    }

    /// Returns true if there are no boxes.
    pub fn is_empty(&self) -> bool {
        self.corners.is_empty()
    }

    /// Returns left, top, right and bottom of each.
    pub fn corners(&self) -> &[[f32; 4]] {
        &self.corners
    }

    /// Makes a tensor of `f32`, `[boxes, 4]`, without a copy.
    ///
    /// # Errors
    /// None that the types do not rule out.
    pub fn into_tensor(self) -> Result<Tensor> {
        let count = self.corners.len();
        Tensor::from_vec(self.corners.into_flattened(), [count, 4])
    }

    /// Drops boxes whose width or height is less than `min_size`, or whose area is less than
    /// `min_area`: torchvision's `SanitizeBoundingBoxes`, whose defaults are 1 and 1. Apply the
    /// returned [`KeptBoxes`] to the labels.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a limit is negative or not a number.
    pub fn sanitize(self, min_size: f32, min_area: f32) -> Result<(Boxes, KeptBoxes)> {
        if !(min_size >= 0.0 && min_area >= 0.0) {
            let message =
                format!("cannot drop boxes below a size of {min_size} and an area of {min_area}");
            return Err(Error::config(message));
        }
        let is_kept = |[left, top, right, bottom]: [f32; 4]| {
            let (width, height) = (right - left, bottom - top);
            width >= min_size && height >= min_size && width * height >= min_area
        };
        let indices: Vec<usize> = (0..self.len())
            .filter(|&index| is_kept(self.corners[index]))
            .collect();
        let corners = indices.iter().map(|&index| self.corners[index]).collect();
        let kept = KeptBoxes {
            indices,
            of: self.corners.len(),
        };
        Ok((Boxes { corners, ..self }, kept))
    }
}

wire_struct!(Boxes { width, height, corners } by Boxes::new);

/// Fails unless the numbers are finite and in order.
fn check(index: usize, corner: [f32; 4]) -> Result<()> {
    let [left, top, right, bottom] = corner;
    if corner.iter().all(|value| value.is_finite()) && left <= right && top <= bottom {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "box {index} is {corner:?}: left, top, right and bottom have to be numbers in order"
    )))
}

fn clamp([left, top, right, bottom]: [f64; 4], (width, height): (u32, u32)) -> [f32; 4] {
    // The size as an `f32` may be less; clamping makes the result valid for `new`.
    let to = |value: f64, edge: u32| (value as f32).clamp(0.0, edge as f32);
    [
        to(left, width),
        to(top, height),
        to(right, width),
        to(bottom, height),
    ]
}

impl Spatial for Boxes {
    fn place(mut self, geometry: &Geometry) -> Result<Self> {
        geometry.check("boxes", (self.width, self.height))?;
        for (op, from, to) in geometry.steps() {
            refuse_mirrors("boxes", op)?;
            for corner in &mut self.corners {
                let [left, top, right, bottom] = corner.map(f64::from);
                let corners = [[left, top], [right, top], [right, bottom], [left, bottom]];
                let corners = corners.map(|corner| op.point(from, corner));
                let least = |axis: usize| {
                    corners
                        .iter()
                        .map(|corner| corner[axis])
                        .fold(f64::INFINITY, f64::min)
                };
                let most = |axis: usize| {
                    corners
                        .iter()
                        .map(|corner| corner[axis])
                        .fold(f64::NEG_INFINITY, f64::max)
                };
                *corner = clamp([least(0), least(1), most(0), most(1)], to);
            }
            (self.width, self.height) = to;
        }
        Ok(self)
    }
}

/// Fails with [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) for a border that repeats objects.
pub(super) fn refuse_mirrors(what: &str, op: &Op) -> Result<()> {
    match op {
        Op::Pad(padding) if !matches!(padding.shows(), PadMode::Constant(_)) => {
            Err(Error::unsupported(format!(
                "{what} in a border that repeats the image: {:?}",
                padding.shows()
            )))
        }
        _ => Ok(()),
    }
}
