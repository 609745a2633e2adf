//! Affine maps of images: each pixel of the result is looked up at its source position.

use crate::Image;
use crate::portable::sin_cos_degrees;

/// Source position of a pixel, in coordinates of the middles of pixels: a matrix about a fixed
/// point, then a shift.
#[derive(Clone, Copy, Debug)]
pub(super) struct Warp {
    matrix: [[f64; 2]; 2],
    shift: [f64; 2],
    /// True if the matrix keeps the middle of the image in place, false if the upper left corner.
    about_middle: bool,
}

impl Warp {
    /// Makes a shear: column `x` comes from `x + along_x * y`, row `y` from `y + along_y * x`; the
    /// upper left corner stays in place.
    pub(super) fn shear(along_x: f64, along_y: f64) -> Self {
        Warp {
            matrix: [[1.0, along_x], [along_y, 1.0]],
            shift: [0.0; 2],
            about_middle: false,
        }
    }

    /// Moves to the right and down.
    pub(super) fn translate(x: f64, y: f64) -> Self {
        Warp {
            matrix: [[1.0, 0.0], [0.0, 1.0]],
            shift: [-x, -y],
            about_middle: false,
        }
    }

    /// Rotates counter-clockwise, in degrees, about the middle.
    pub(super) fn rotate(degrees: f64) -> Self {
        let (sin, cos) = sin_cos_degrees(degrees);
        Warp {
            matrix: [[cos, -sin], [sin, cos]],
            shift: [0.0; 2],
            about_middle: true,
        }
    }
}

/// Number of fraction bits of a position. Edges are below 2³², and matrices and shifts of this
/// module have no number above 1 or the edge: sums stay below 2⁶³.
const POINT: u32 = 28;
const ONE: i64 = 1 << POINT;

/// Warps an image; new areas get the colour `fill`. Positions are computed in whole numbers, so
/// that the result is the same on every machine.
pub(super) fn warp(image: &mut Image, how: Warp, bilinear: bool, fill: [u8; 3]) {
    match image.channels() {
        1 => warp_pixels(image, how, bilinear, [fill[0]]),
        _ => warp_pixels(image, how, bilinear, fill),
    }
}

fn warp_pixels<const C: usize>(image: &mut Image, how: Warp, bilinear: bool, fill: [u8; C]) {
    let fixed = |value: f64| (value * ONE as f64).round_ties_even() as i64;
    let (width, height) = (image.width() as usize, image.height() as usize);
    let [[xx, xy], [yx, yy]] = how.matrix.map(|row| row.map(fixed));
    // In half pixels, which are whole numbers, until the end.
    let middle = |edge: usize| if how.about_middle { edge as i64 } else { 0 };
    let (cx, cy) = (middle(width), middle(height));
    let place = |x: usize, y: usize| {
        let (x, y) = (2 * x as i64 + 1 - cx, 2 * y as i64 + 1 - cy);
        let half = |sum: i64, center: i64, shift: f64| {
            (sum >> 1) + (center - 1) * (ONE / 2) + fixed(shift)
        };
        (
            half(xx * x + xy * y, cx, how.shift[0]),
            half(yx * x + yy * y, cy, how.shift[1]),
        )
    };
    let mut out = Image::black(image.width(), image.height(), C as u8);
    let (from, _) = image.data().as_chunks::<C>();
    let at = |x: i64, y: i64| match (usize::try_from(x), usize::try_from(y)) {
        (Ok(x), Ok(y)) if x < width && y < height => from[y * width + x],
        _ => fill,
    };
    let (to, _) = out.data_mut().as_chunks_mut::<C>();
    for (y, row) in to.chunks_exact_mut(width).enumerate() {
        let (mut px, mut py) = place(0, y);
        for pixel in row {
            *pixel = match bilinear {
                false => at((px + ONE / 2) >> POINT, (py + ONE / 2) >> POINT),
                true => between(px, py, at),
            };
            px += xx;
            py += yx;
        }
    }
    *image = out;
}

/// Returns the four pixels around a position, weighted by their nearness.
fn between<const C: usize>(px: i64, py: i64, at: impl Fn(i64, i64) -> [u8; C]) -> [u8; C] {
    let (x, y) = (px >> POINT, py >> POINT);
    let part = |p: i64| ((p & (ONE - 1)) >> (POINT - 16)) as u64;
    let (right, down) = (part(px), part(py));
    let (left, up) = ((1 << 16) - right, (1 << 16) - down);
    let (a, b, c, d) = (at(x, y), at(x + 1, y), at(x, y + 1), at(x + 1, y + 1));
    std::array::from_fn(|i| {
        let of = |values: [u8; C]| u64::from(values[i]);
        let sum = (of(a) * left + of(b) * right) * up + (of(c) * left + of(d) * right) * down;
        ((sum + (1 << 31)) >> 32) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Image {
        crate::decode(include_bytes!("../../tests/data/colour.source.png")).unwrap()
    }

    fn moves() -> [Warp; 10] {
        [
            Warp::shear(0.09, 0.0),
            Warp::shear(-0.99, 0.0),
            Warp::shear(0.0, 0.3),
            Warp::translate(7.0, 0.0),
            Warp::translate(0.0, -5.0),
            Warp::rotate(9.0),
            Warp::rotate(-30.0),
            Warp::rotate(135.0),
            Warp::rotate(90.0),
            Warp::rotate(0.0),
        ]
    }

    /// Warped images below each other.
    fn all(bilinear: bool, fill: [u8; 3]) -> Vec<u8> {
        let moved = |how| {
            let mut image = source();
            warp(&mut image, how, bilinear, fill);
            image.into_data()
        };
        moves().into_iter().flat_map(moved).collect()
    }

    #[test]
    fn nearest_is_torchvisions_but_for_ties() {
        let wanted =
            crate::decode(include_bytes!("../../tests/data/colour.warp_nearest.png")).unwrap();
        let (is, wanted) = (all(false, [10, 200, 90]), wanted.into_data());
        assert_eq!(is.len(), wanted.len());
        let pixels = source().data().len();
        for (n, (is, should)) in is
            .chunks_exact(pixels)
            .zip(wanted.chunks_exact(pixels))
            .enumerate()
        {
            let pairs = is.as_chunks::<3>().0.iter().zip(should.as_chunks::<3>().0);
            for (place, _) in pairs.enumerate().filter(|(_, (a, b))| a != b) {
                // After a rotation by 135 degrees, the diagonals through the middle are half-way
                // between pixels.
                let (x, y) = (
                    2 * (place as i32 % 28) + 1 - 28,
                    2 * (place as i32 / 28) + 1 - 22,
                );
                assert!(
                    n == 7 && x.abs() == y.abs(),
                    "move {n}, ({x}, {y}) / 2 from the middle"
                );
            }
        }
    }

    #[test]
    fn bilinear_is_torchvisions_within_a_level() {
        let wanted =
            crate::decode(include_bytes!("../../tests/data/colour.warp_bilinear.png")).unwrap();
        let (is, wanted) = (all(true, [0; 3]), wanted.into_data());
        assert_eq!(is.len(), wanted.len());
        let differences: Vec<u8> = is
            .iter()
            .zip(&wanted)
            .map(|(a, b)| a.abs_diff(*b))
            .collect();
        assert!(
            differences.iter().all(|&d| d <= 1),
            "{:?}",
            differences.iter().max()
        );
        let ones = differences.iter().filter(|&&d| d > 0).count();
        // Sums half-way between two levels, which the original rounds to even, and this crate
        // rounds up.
        assert!(
            ones * 200 < differences.len(),
            "{ones} of {}",
            differences.len()
        );
    }

    #[test]
    fn what_comes_into_view_is_filled_and_blended_once() {
        let mut image = Image::new(4, 1, 1, vec![100; 4]).unwrap();
        warp(&mut image, Warp::translate(1.25, 0.0), true, [20, 0, 0]);
        assert_eq!(image.data(), [20, 80, 100, 100]);
    }

    #[test]
    fn edges_of_any_length_neither_panic_nor_overflow() {
        for (width, height) in [(1, 1), (1, 5), (300_000, 1), (2, 70_000)] {
            for how in moves() {
                for bilinear in [false, true] {
                    let mut gray = Image::black(width, height, 1);
                    warp(&mut gray, how, bilinear, [7; 3]);
                    assert!(gray.data().iter().all(|&value| value <= 7));
                }
            }
        }
        let mut image = source();
        for _ in 0..4 {
            warp(&mut image, Warp::rotate(180.0), false, [0; 3]);
        }
        assert_eq!(image, source());
    }
}
