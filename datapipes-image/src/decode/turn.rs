//! Orientation: the eight ways in which a camera may have stored an image.

use image::metadata::Orientation;

use super::pixels::Pixels;
use crate::Rect;
use crate::resize::Part;

/// Transformation of stored pixels to the upright image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// True if columns become rows.
    transpose: bool,
    /// True if stored columns count from the right.
    flip_x: bool,
    /// True if stored rows count from the bottom.
    flip_y: bool,
}

impl From<Orientation> for Turn {
    fn from(orientation: Orientation) -> Self {
        use Orientation::*;
        let (transpose, flip_x, flip_y) = match orientation {
            NoTransforms => (false, false, false),
            FlipHorizontal => (false, true, false),
            Rotate180 => (false, true, true),
            FlipVertical => (false, false, true),
            Rotate90FlipH => (true, false, false),
            Rotate90 => (true, false, true),
            Rotate270FlipH => (true, true, true),
            Rotate270 => (true, true, false),
        };
        Turn {
            transpose,
            flip_x,
            flip_y,
        }
    }
}

impl Turn {
    /// Returns true if there is nothing to do.
    pub(super) fn is_none(self) -> bool {
        self == Turn::default()
    }

    /// Returns the upright size of an image that is stored with this size, and the reverse.
    pub(super) fn size(self, width: u32, height: u32) -> (u32, u32) {
        if self.transpose {
            (height, width)
        } else {
            (width, height)
        }
    }

    /// Converts a part of the upright image to a part of the image stored with this size.
    pub(super) fn stored(self, part: Rect, width: u32, height: u32) -> Rect {
        let Rect {
            x,
            y,
            width: w,
            height: h,
        } = part;
        let (x, y, w, h) = if self.transpose {
            (y, x, h, w)
        } else {
            (x, y, w, h)
        };
        let x = if self.flip_x { width - x - w } else { x };
        let y = if self.flip_y { height - y - h } else { y };
        Rect {
            x,
            y,
            width: w,
            height: h,
        }
    }

    /// Converts a part of stored pixels of this width and height to the upright image.
    pub(super) fn upright(self, part: Part, width: f64, height: f64) -> Part {
        let Part {
            left,
            top,
            width: w,
            height: h,
        } = part;
        let left = if self.flip_x { width - left - w } else { left };
        let top = if self.flip_y { height - top - h } else { top };
        match self.transpose {
            true => Part {
                left: top,
                top: left,
                width: h,
                height: w,
            },
            false => Part {
                left,
                top,
                width: w,
                height: h,
            },
        }
    }

    /// Turns RGB pixels upright.
    pub(super) fn apply(self, from: &Pixels, to: &mut Pixels) {
        let (width, height) = self.size(from.width, from.height);
        to.set_size(width, height);
        let (w, h) = (from.width as usize, from.height as usize);
        let source = from.data.as_chunks::<3>().0;
        let rows = to
            .data
            .as_chunks_mut::<3>()
            .0
            .chunks_exact_mut(width as usize);
        for (y, row) in rows.enumerate() {
            for (x, pixel) in row.iter_mut().enumerate() {
                let (sx, sy) = if self.transpose { (y, x) } else { (x, y) };
                let sx = if self.flip_x { w - 1 - sx } else { sx };
                let sy = if self.flip_y { h - 1 - sy } else { sy };
                *pixel = source[sy * w + sx];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use image::{DynamicImage, RgbImage};

    use super::*;

    #[test]
    fn it_turns_as_the_image_crate_and_parts_are_parts_of_the_whole() {
        let (width, height) = (5u32, 3u32);
        let data: Vec<u8> = (0..width * height * 3).map(|n| n as u8).collect();
        let stored = Pixels {
            width,
            height,
            data: data.clone(),
        };
        for exif in 1..=8 {
            let orientation = Orientation::from_exif(exif).unwrap();
            let mut expected =
                DynamicImage::ImageRgb8(RgbImage::from_raw(width, height, data.clone()).unwrap());
            expected.apply_orientation(orientation);
            let (turn, mut upright) = (Turn::from(orientation), Pixels::default());
            turn.apply(&stored, &mut upright);
            assert_eq!(
                (upright.width, upright.height),
                (expected.width(), expected.height()),
                "{exif}"
            );
            assert_eq!(upright.data, expected.to_rgb8().into_raw(), "{exif}");
            assert_eq!(turn.size(width, height), (upright.width, upright.height));

            let part = Rect {
                x: 1,
                y: 0,
                width: 2,
                height: 2,
            };
            let place = turn.stored(part, width, height);
            let pixel = |x: u32, y: u32| data[((y * width + x) * 3) as usize..][..3].to_vec();
            let cut: Vec<u8> = (place.y..place.y + place.height)
                .flat_map(|y| {
                    (place.x..place.x + place.width)
                        .flat_map(move |x| pixel(x, y))
                        .collect::<Vec<_>>()
                })
                .collect();
            let mut turned = Pixels::default();
            turn.apply(
                &Pixels {
                    width: place.width,
                    height: place.height,
                    data: cut,
                },
                &mut turned,
            );
            let expected = expected.crop_imm(part.x, part.y, part.width, part.height);
            assert_eq!(turned.data, expected.to_rgb8().into_raw(), "{exif}");

            // The reverse direction: the part as stored is mapped back to the upright part.
            let as_part = |r: Rect| Part {
                left: r.x.into(),
                top: r.y.into(),
                width: r.width.into(),
                height: r.height.into(),
            };
            assert_eq!(
                turn.upright(as_part(place), width.into(), height.into()),
                as_part(part),
                "{exif}"
            );
        }
    }
}
