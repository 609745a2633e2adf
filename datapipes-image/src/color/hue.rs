//! Changes of the hue, in HSV.

use datapipes::{Error, Result};

use super::planes::{Block, by_blocks};
use crate::Image;

/// Rotates the hue of each pixel, in place: 0 changes nothing, 0.5 or -0.5 is half around the
/// circle, to the complement. A gray image does not change.
///
/// This is torchvision's `adjust_hue` on `uint8` tensors: to HSV and back in `f32`, in the order of
/// its operations. A value may differ by 1 level, since torchvision rounds some sums of products
/// once, and this function twice. On PIL images torchvision rotates a hue of 8 bits instead, which
/// differs in a third of the values, by up to 12 levels.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if the turn is not from -0.5 to 0.5.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, adjust_hue};
/// let mut red = Image::new(1, 1, 3, vec![255, 0, 0])?;
/// adjust_hue(&mut red, 0.5)?;
/// assert_eq!(red.data(), [0, 255, 255]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn adjust_hue(image: &mut Image, turn: f64) -> Result<()> {
    if !(-0.5..=0.5).contains(&turn) {
        return Err(Error::config(format!(
            "a turn of the hue of {turn}: from -0.5 to 0.5"
        )));
    }
    if image.channels() == 3 && turn != 0.0 {
        by_blocks(image, |block| rotate(block, turn as f32));
    }
    Ok(())
}

/// Rotates a block without branches, so that several pixels are computed at once.
fn rotate([r, g, b]: &mut Block, turn: f32) {
    for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
        let unit = |value: f32| value * (1.0 / 255.0);
        let (red, green, blue) = (unit(*r), unit(*g), unit(*b));
        let max = larger(larger(red, green), blue);
        let range = max + larger(larger(-red, -green), -blue);
        let flat = range == 0.0;
        let saturation = range / if flat { 1.0 } else { max };
        let divisor = if flat { 1.0 } else { range };
        let [rc, gc, bc] = [red, green, blue].map(|value| (max - value) / divisor);
        let sixths = if max == red {
            bc - gc
        } else if max == green {
            rc + 2.0 - bc
        } else {
            gc + 4.0 - rc
        };
        let hue = sixths * (1.0 / 6.0) + 1.0;
        let hue = if hue >= 1.0 { hue - 1.0 } else { hue } + turn;
        let hue = if hue >= 1.0 { hue - 1.0 } else { hue };
        let hue = if hue < 0.0 { hue + 1.0 } else { hue } * 6.0;
        // Rounding may make it 6, which is 0.
        let sector = hue as i32;
        let part = saturation * (hue - sector as f32);
        let rest = 1.0 - saturation;
        // The original clamps the last step of each value except the largest to 1, which it cannot
        // exceed.
        let [v, q, t, p] =
            [max, (1.0 - part) * max, (part + rest) * max, rest * max].map(|x| x * 255.999);
        let pick = |at: [f32; 6]| {
            let of = |n: usize, other: f32| if sector == n as i32 { at[n] } else { other };
            of(1, of(2, of(3, of(4, of(5, at[0])))))
        };
        (*r, *g, *b) = (
            pick([v, q, p, p, t, v]),
            pick([t, v, v, q, p, p]),
            pick([p, p, t, v, v, q]),
        );
    }
}

/// Returns the larger of two numbers that are not NaN.
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
