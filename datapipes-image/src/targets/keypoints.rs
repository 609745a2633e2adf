//! Keypoints, such as joints.

use datapipes::{Error, Result, Tensor, wire_enum, wire_struct};

use super::boxes::refuse_mirrors;
use crate::geometry::{Geometry, Op, Spatial};
use crate::image::check_edges;

/// A point of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keypoint {
    /// Pixels from the left.
    pub x: f32,
    /// Pixels from the top.
    pub y: f32,
    /// Visibility of the point.
    pub visibility: Visibility,
}

/// Visibility of a [`Keypoint`], with COCO's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visibility {
    /// Unknown, or not in the image. Its coordinates have no meaning.
    Absent = 0,
    /// Occluded, but in the image.
    Hidden = 1,
    /// Visible.
    Visible = 2,
}

/// Points of the objects in an image, in an order that has a meaning.
///
/// - A geometry **never drops one**, so that the n-th stays the n-th. A point that leaves the image
///   (`x` not in `0..width`, or `y` not in `0..height`, as in torchvision's `SanitizeKeyPoints`)
///   becomes [`Absent`](Visibility::Absent). It stays absent even if a later transform moves it
///   back, since the pixels at the point are lost.
/// - Coordinates follow torchvision, which counts in two ways. A flip treats them as indices of
///   pixels: `x' = width - 1 - x`. Every other operation treats them as positions between pixels,
///   like boxes: a rotation by 180 degrees results in `x' = width - x`. A point in the right part
///   of the last column, beyond `width - 1`, therefore leaves the image in a flip.
/// - After a horizontal flip, the point of the left hand is still in the left hand's place: only
///   the user knows which pairs to exchange.
///
/// ```
/// # use datapipes_image::{Geometry, Keypoints, Rect, Visibility};
/// let points = Keypoints::from_coco(10, 8, &[2.0, 3.0, 2.0, 0.0, 0.0, 0.0])?;
/// let points = Geometry::new(10, 8).hflip().apply(points)?;
/// assert_eq!((points.points()[0].x, points.points()[1].visibility), (7.0, Visibility::Absent));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Keypoints {
    width: u32,
    height: u32,
    points: Vec<Keypoint>,
}

impl Keypoints {
    /// Makes points in an image of this size. Points outside become [`Absent`](Visibility::Absent).
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](datapipes::ErrorKind::Corrupt), naming the point, if a number is not finite; [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if
    /// an edge of the image is zero.
    pub fn new(width: u32, height: u32, points: Vec<Keypoint>) -> Result<Self> {
        check_edges("key points in an image", width, height)?;
        if let Some(index) = points
            .iter()
            .position(|point| !(point.x.is_finite() && point.y.is_finite()))
        {
            return Err(Error::corrupt(format!(
                "key point {index} is at ({}, {})",
                points[index].x, points[index].y
            )));
        }
        let mut points = Keypoints {
            width,
            height,
            points,
        };
        points.mark();
        Ok(points)
    }

    /// Makes points from COCO's numbers: x, y, and a visibility of 0, 1 or 2 for each.
    ///
    /// # Errors
    /// As [`new`](Keypoints::new); also if there are not three numbers for each point, or the third
    /// is another number.
    pub fn from_coco(width: u32, height: u32, numbers: &[f64]) -> Result<Self> {
        let (triples, rest) = numbers.as_chunks::<3>();
        if !rest.is_empty() {
            return Err(Error::corrupt(format!(
                "{} numbers for key points, which have 3 each",
                numbers.len()
            )));
        }
        let point = |(index, &[x, y, visibility]): (usize, &[f64; 3])| {
            let visibility = match visibility {
                0.0 => Visibility::Absent,
                1.0 => Visibility::Hidden,
                2.0 => Visibility::Visible,
                _ => {
                    let message =
                        format!("key point {index} has the visibility {visibility}, not 0, 1 or 2");
                    return Err(Error::corrupt(message));
                }
            };
            Ok(Keypoint {
                x: x as f32,
                y: y as f32,
                visibility,
            })
        };
        Keypoints::new(
            width,
            height,
            triples
                .iter()
                .enumerate()
                .map(point)
                .collect::<Result<_>>()?,
        )
    }

    /// Returns the number of pixels in a row of the image.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the number of rows of the image.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the points.
    pub fn points(&self) -> &[Keypoint] {
        &self.points
    }

    /// Makes a tensor of `f32`, `[points, 3]`: x, y, and a visibility of 0, 1 or 2, as COCO's.
    ///
    /// # Errors
    /// None that the types do not rule out.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let numbers = |point: &Keypoint| [point.x, point.y, point.visibility as u8 as f32];
        Tensor::from_vec(
            self.points.iter().flat_map(numbers).collect(),
            [self.points.len(), 3],
        )
    }

    /// Marks points outside as absent.
    fn mark(&mut self) {
        let (width, height) = (self.width as f32, self.height as f32);
        for point in &mut self.points {
            if !((0.0..width).contains(&point.x) && (0.0..height).contains(&point.y)) {
                point.visibility = Visibility::Absent;
            }
        }
    }
}

wire_enum!(Visibility { 0 Absent, 1 Hidden, 2 Visible });

wire_struct!(Keypoint { x, y, visibility });

wire_struct!(Keypoints { width, height, points } by Keypoints::new);

impl Spatial for Keypoints {
    fn place(mut self, geometry: &Geometry) -> Result<Self> {
        geometry.check("key points", (self.width, self.height))?;
        for (op, from, to) in geometry.steps() {
            refuse_mirrors("key points", op)?;
            for point in &mut self.points {
                let [x, y] = op.point(from, [f64::from(point.x), f64::from(point.y)]);
                let [x, y] = match op {
                    Op::HFlip => [x - 1.0, y],
                    Op::VFlip => [x, y - 1.0],
                    _ => [x, y],
                };
                (point.x, point.y) = (x as f32, y as f32);
            }
            (self.width, self.height) = to;
            self.mark();
        }
        Ok(self)
    }
}
