//! The layout of an image in a tensor, and the writing of rows into it.

use datapipes::{Error, Result};

use crate::Normalize;

/// The order of an image's axes in a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[channels, height, width]`, one plane for each channel: the layout of burn, candle and
    /// PyTorch. A batch is `NCHW`.
    #[default]
    Chw,
    /// `[height, width, channels]`, the layout of pixels in an image. A batch is `NHWC`.
    Hwc,
}

/// Returns width, height and channels of an image with these axes. Without a layout it is
/// [`Layout::Chw`], unless the channels seem to come last.
pub(crate) fn picture_size(
    what: &str,
    shape: &[usize],
    axes: [usize; 3],
    layout: Option<Layout>,
) -> Result<(u32, u32, usize)> {
    let refused = |why: &str| Error::shape(format!("{what} {shape:?}: {why}"));
    let [a, b, c] = axes;
    let (channels, height, width) = if layout == Some(Layout::Hwc) {
        (c, a, b)
    } else {
        (a, b, c)
    };
    if layout.is_none() && !matches!(a, 1 | 3) && matches!(c, 1 | 3) {
        return Err(refused(
            "the channels seem to come last; if so, say `Layout::Hwc`",
        ));
    }
    match (u32::try_from(width), u32::try_from(height)) {
        (Ok(width), Ok(height)) if width > 0 && height > 0 => Ok((width, height, channels)),
        _ => Err(refused("no pixels, or too many")),
    }
}

/// Writes rows of RGB pixels in the layout of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowWriter {
    pub width: usize,
    pub height: usize,
    pub layout: Layout,
    /// True to mirror left and right.
    pub flip: bool,
}

/// A number of a tensor, made from a value of a channel.
pub(crate) trait Number: Copy + 'static {
    fn of(value: u8, scale: f32, shift: f32) -> Self;
}

impl Number for u8 {
    #[inline(always)]
    fn of(value: u8, _: f32, _: f32) -> u8 {
        value
    }
}

impl Number for f32 {
    #[inline(always)]
    fn of(value: u8, scale: f32, shift: f32) -> f32 {
        f32::from(value) * scale + shift
    }
}

impl RowWriter {
    /// Writes row `y`. `pixels` are RGB, `out` has the numbers of the whole image.
    pub(crate) fn write<T: Number>(
        self,
        y: u32,
        pixels: &[u8],
        normalize: &Normalize,
        out: &mut [T],
    ) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.write_avx2(y, pixels, normalize, out) };
        }
        self.write_any(y, pixels, normalize, out);
    }

    /// Writes row `y`, compiled to wider instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn write_avx2<T: Number>(self, y: u32, pixels: &[u8], normalize: &Normalize, out: &mut [T]) {
        self.write_any(y, pixels, normalize, out);
    }

    #[inline(always)]
    fn write_any<T: Number>(self, y: u32, pixels: &[u8], normalize: &Normalize, out: &mut [T]) {
        let (width, pixels) = (self.width, pixels.as_chunks::<3>().0);
        match self.layout {
            Layout::Chw => {
                for (c, plane) in out
                    .chunks_exact_mut(width * self.height)
                    .take(3)
                    .enumerate()
                {
                    let (scale, shift) = normalize.line(c);
                    let row = &mut plane[y as usize * width..][..width];
                    let number = |pixel: &[u8; 3]| T::of(pixel[c], scale, shift);
                    match self.flip {
                        false => row
                            .iter_mut()
                            .zip(pixels)
                            .for_each(|(to, pixel)| *to = number(pixel)),
                        true => row
                            .iter_mut()
                            .rev()
                            .zip(pixels)
                            .for_each(|(to, pixel)| *to = number(pixel)),
                    }
                }
            }
            Layout::Hwc => {
                let [r, g, b] = [0, 1, 2].map(|c| normalize.line(c));
                let row = out[y as usize * width * 3..][..width * 3]
                    .as_chunks_mut::<3>()
                    .0;
                let numbers = |p: &[u8; 3]| {
                    [
                        T::of(p[0], r.0, r.1),
                        T::of(p[1], g.0, g.1),
                        T::of(p[2], b.0, b.1),
                    ]
                };
                match self.flip {
                    false => row
                        .iter_mut()
                        .zip(pixels)
                        .for_each(|(to, pixel)| *to = numbers(pixel)),
                    true => row
                        .iter_mut()
                        .rev()
                        .zip(pixels)
                        .for_each(|(to, pixel)| *to = numbers(pixel)),
                }
            }
        }
    }
}
