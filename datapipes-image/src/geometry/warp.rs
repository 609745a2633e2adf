//! Positions of pixels and points in an image that is rotated, moved, scaled or sheared.
//!
//! The matrix is made with `f64` and rounded to multiples of 2⁻³². From there on, the choice of
//! pixels and their weights are computed in whole numbers. Platforms differ in the last bit of a
//! sine. The rounding hides that bit, except if the value is next to a tie, which happens for one
//! random angle in a million. Quarter turns are not computed, so their sines are exact.

use datapipes::{Error, Result};

use super::pad::Fill;
use super::raster::Raster;
use crate::image::{MAX_PIXELS, check_edges};
use crate::{Image, ResizeFilter};

/// Half a pixel is `1 << 32`, a pixel `1 << 33`: the middles of pixels are at multiples of half a
/// pixel.
const PIXEL: u32 = 33;

/// Maximum distance of a corner, in pixels, so that no position overflows.
const FARTHEST: f64 = (1 << 28) as f64;

/// An affine map of an image, resolved for its size. [`Affine`](crate::Affine) and
/// [`Rotation`](crate::Rotation) make one.
#[derive(Clone, Debug, PartialEq)]
pub struct Warp {
    from: (u32, u32),
    to: (u32, u32),
    /// Map from the image's middle to that of the result.
    forward: [f64; 6],
    /// Inverse map, in units of 2⁻³².
    back: [i64; 6],
    filter: ResizeFilter,
    fill: Fill,
}

/// A linear map and an offset: `x' = m[0] x + m[1] y + m[2]`, `y' = m[3] x + m[4] y + m[5]`.
pub(crate) type Matrix = [f64; 6];

impl Warp {
    /// Makes a map from `forward` and `back`, which are inverse to each other and relative to the
    /// middles of the images.
    pub(crate) fn new(
        from: (u32, u32),
        to: (u32, u32),
        [forward, back]: [Matrix; 2],
        filter: ResizeFilter,
        fill: Fill,
    ) -> Result<Warp> {
        check_edges("a turn of an image", from.0, from.1)?;
        if !matches!(filter, ResizeFilter::Nearest | ResizeFilter::Bilinear) {
            let message =
                format!("{filter:?} cannot turn or shear an image: Nearest and Bilinear can");
            return Err(Error::config(message));
        }
        if u64::from(to.0) * u64::from(to.1) > MAX_PIXELS {
            return Err(Error::limit(format!(
                "a turned image of {}x{} has more than {MAX_PIXELS} pixels",
                to.0, to.1
            )));
        }
        let farthest = |m: &Matrix, size: (u32, u32)| {
            let reach = |m: &[f64]| {
                (m[0] * f64::from(size.0)).abs() + (m[1] * f64::from(size.1)).abs() + m[2].abs()
            };
            reach(&m[..3]).max(reach(&m[3..]))
        };
        let farthest = farthest(&forward, from).max(farthest(&back, to));
        // NaN is refused, too.
        if !(farthest < FARTHEST && to.0 > 0 && to.1 > 0) {
            return Err(Error::shape(format!(
                "the matrix {forward:?} moves an image of {}x{} out of reach",
                from.0, from.1
            )));
        }
        let back = back.map(|value| (value * 2f64.powi(32)).round() as i64);
        Ok(Warp {
            from,
            to,
            forward,
            back,
            filter,
            fill,
        })
    }

    /// Returns the width and height of the result.
    pub fn size(&self) -> (u32, u32) {
        self.to
    }

    /// Fails if the map was resolved for another size.
    pub(crate) fn check(&self, (width, height): (u32, u32)) -> Result<()> {
        if (width, height) == self.from {
            return Ok(());
        }
        Err(Error::shape(format!(
            "an image of {width}x{height} in a map for {}x{}",
            self.from.0, self.from.1
        )))
    }

    /// Maps a point, in pixels from the upper left corner of the first pixel.
    pub fn point(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let (x, y) = (
            x - f64::from(self.from.0) / 2.0,
            y - f64::from(self.from.1) / 2.0,
        );
        let to = |m: &[f64], edge: u32| m[0] * x + m[1] * y + m[2] + f64::from(edge) / 2.0;
        [
            to(&self.forward[..3], self.to.0),
            to(&self.forward[3..], self.to.1),
        ]
    }

    /// Collects the pixels of the result, row by row, from their source positions.
    pub(crate) fn collect<P>(&self, row: impl Fn(Row, &mut Vec<P>)) -> Vec<P> {
        let (width, height) = (i64::from(self.to.0), i64::from(self.to.1));
        let mut out = Vec::with_capacity((width * height) as usize);
        // The middle of the first pixel, in half pixels from the middle of the image.
        let x = 1 - width;
        // `FARTHEST` bounds the sum; partial sums may wrap, which cancels out.
        let start = |m: &[i64], y: i64, edge: u32| {
            let here = m[0]
                .wrapping_mul(x)
                .wrapping_add(m[1].wrapping_mul(y))
                .wrapping_add(2 * m[2]);
            here.wrapping_add((i64::from(edge) - 1) << (PIXEL - 1))
        };
        for y in 0..height {
            let y = 2 * y + 1 - height;
            let place = Place {
                x: start(&self.back[..3], y, self.from.0),
                y: start(&self.back[3..], y, self.from.1),
            };
            row(
                Row {
                    place,
                    step: [2 * self.back[0], 2 * self.back[3]],
                    left: self.to.0,
                },
                &mut out,
            );
        }
        out
    }
}

/// Source positions of one row of the result.
pub(crate) struct Row {
    place: Place,
    step: [i64; 2],
    left: u32,
}

impl Iterator for Row {
    type Item = Place;

    #[inline]
    fn next(&mut self) -> Option<Place> {
        let left = self.left.checked_sub(1)?;
        let place = self.place;
        self.left = left;
        self.place = Place {
            x: place.x.wrapping_add(self.step[0]),
            y: place.y.wrapping_add(self.step[1]),
        };
        Some(place)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

/// A position in the source, from the middle of its first pixel.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    x: i64,
    y: i64,
}

impl Place {
    /// Returns the nearest pixel. Of two equally near pixels, takes the one on the right or below:
    /// an image that is rotated by a quarter about a middle between two pixels keeps all pixels.
    #[inline]
    pub(crate) fn nearest(self) -> (i64, i64) {
        let nearest = |at: i64| (at + (1 << (PIXEL - 1))) >> PIXEL;
        (nearest(self.x), nearest(self.y))
    }

    /// Returns the pixel above and to the left, and the distance from it, in parts of 2048.
    #[inline]
    fn square(self) -> ([i64; 2], [u32; 2]) {
        let fine = |at: i64| (at + (1 << (PIXEL - 12))) >> (PIXEL - 11);
        let (x, y) = (fine(self.x), fine(self.y));
        ([x >> 11, y >> 11], [x as u32 & 2047, y as u32 & 2047])
    }
}

/// Makes the warped image.
pub(crate) fn warp_image(image: &Image, warp: &Warp) -> Result<Image> {
    let (width, height) = warp.size();
    let data = match image.channels() {
        1 => warped(
            Raster::new(image.width(), image.data()),
            warp,
            warp.fill.gray()?,
        ),
        _ => {
            let pixels = image.data().as_chunks::<3>().0;
            warped(Raster::new(image.width(), pixels), warp, warp.fill.rgb()).into_flattened()
        }
    };
    Image::new(width, height, image.channels(), data)
}

impl<P: Copy> Raster<'_, P> {
    /// Warps by taking the nearest pixel of each source position.
    pub(crate) fn warp(&self, warp: &Warp, fill: P) -> Vec<P> {
        let (width, height) = (self.width as u64, self.height() as u64);
        warp.collect(|places, out| {
            out.extend(places.map(|place| {
                // Positions to the left of the image or above it become huge.
                let (x, y) = place.nearest();
                let is_inside = (x as u64) < width && (y as u64) < height;
                if is_inside {
                    self.pixels[y as usize * self.width + x as usize]
                } else {
                    fill
                }
            }));
        })
    }
}

fn warped<P: Blend>(source: Raster<'_, P>, warp: &Warp, fill: P) -> Vec<P> {
    if warp.filter == ResizeFilter::Nearest {
        return source.warp(warp, fill);
    }
    warp.collect(|places, out| {
        out.extend(places.map(|place| {
            let ([x, y], [right, below]) = place.square();
            let (left, above) = (2048 - right, 2048 - below);
            let pixels = source.square(x, y).unwrap_or_else(|| {
                let around = [(x, y), (x + 1, y), (x, y + 1), (x + 1, y + 1)];
                around.map(|(x, y)| source.get(x, y).unwrap_or(fill))
            });
            P::blend(
                pixels,
                [left * above, right * above, left * below, right * below],
            )
        }));
    })
}

/// A pixel that can be interpolated.
trait Blend: Copy {
    /// Returns the sum of four pixels, whose weights add up to 2²².
    fn blend(pixels: [Self; 4], weights: [u32; 4]) -> Self;
}

impl Blend for u8 {
    #[inline]
    fn blend(pixels: [u8; 4], weights: [u32; 4]) -> u8 {
        let sum: u32 = pixels
            .into_iter()
            .zip(weights)
            .map(|(pixel, weight)| u32::from(pixel) * weight)
            .sum();
        ((sum + (1 << 21)) >> 22) as u8
    }
}

impl Blend for [u8; 3] {
    #[inline]
    fn blend(pixels: [[u8; 3]; 4], weights: [u32; 4]) -> [u8; 3] {
        [0, 1, 2].map(|channel| u8::blend(pixels.map(|pixel| pixel[channel]), weights))
    }
}
