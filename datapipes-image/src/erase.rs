//! Random erasing of a rectangle of each image.

use datapipes::{DType, Error, Result, Rng, Tensor};

use crate::image::check_probability;
use crate::layout::picture_size;
use crate::portable::{exp, ln, two_normals};
use crate::{Image, Layout, Rect};

/// Erases a random rectangle: torchvision's `RandomErasing` (Zhong et al. 2017).
///
/// Usually applied to tensors after normalisation, so that 0 is the mean; also works on images.
/// First draws if anything is erased. If so, draws an area, uniformly, and a ratio of height to
/// width, uniformly in its logarithm, up to ten times until the rectangle is smaller than the image
/// in both directions. Then draws its row and column. If no rectangle fits, nothing is erased. With
/// [`noise`](RandomErasing::noise), the values are drawn last.
///
/// ```
/// # use datapipes::{DType, Rng, Tensor};
/// # use datapipes_image::RandomErasing;
/// let mut tensor = Tensor::from_vec(vec![1.0f32; 3 * 32 * 32], [3, 32, 32])?;
/// RandomErasing::new(1.0).apply_tensor(&mut tensor, &mut Rng::from_key([1, 0, 0, 0]))?;
/// assert!(tensor.as_slice::<f32>()?.contains(&0.0));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandomErasing {
    p: f64,
    scale: (f64, f64),
    ratio: (f64, f64),
    value: Value,
    /// Layout that was set, if any.
    layout: Option<Layout>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    /// One value for all channels.
    One(f32),
    Rgb([f32; 3]),
    Noise,
}

impl RandomErasing {
    /// Erases with probability `p`: sets 2 % to 33 % of the area, with a ratio of height to width
    /// from 0.3 to 3.3, to 0.
    pub fn new(p: f64) -> Self {
        RandomErasing {
            p,
            scale: (0.02, 0.33),
            ratio: (0.3, 3.3),
            value: Value::One(0.0),
            layout: None,
        }
    }

    datapipes::setters! {
        /// Sets the least and the largest part of the area.
        scale(least: f64, most: f64) => scale = (least, most);

        /// Sets the least and the largest ratio of height to width.
        ratio(least: f64, most: f64) => ratio = (least, most);

        /// Sets the value that is written, for all channels.
        value(value: f32) => value = Value::One(value);

        /// Sets the value that is written, for each of three channels.
        rgb(values: [f32; 3]) => value = Value::Rgb(values);

        /// Writes noise: normal with mean 0 and standard deviation 1 into tensors of `f32`, as
        /// torchvision does; uniform bytes into images and tensors of `u8`, as the paper does.
        noise() => value = Value::Noise;

        /// Sets the order of a tensor's axes. Defaults to [`Layout::Chw`], and tensors whose channels
        /// seem to come last (1 or 3 there, and not in the place of `Chw`) are refused. A layout that
        /// is set here is not checked that way.
        layout(layout: Layout) => layout = Some(layout);
    }

    /// Returns the part of an image of this size to erase, if any.
    pub(crate) fn part(&self, width: u32, height: u32, rng: &mut Rng) -> Option<Rect> {
        if !rng.chance(self.p) {
            return None;
        }
        let area = f64::from(width) * f64::from(height);
        for _ in 0..10 {
            let erased = area * rng.range(self.scale.0, self.scale.1);
            let ratio = exp(rng.range(ln(self.ratio.0), ln(self.ratio.1)));
            // Rounds as Python's `round` does. The conversion saturates.
            let part_h = (erased * ratio).sqrt().round_ties_even() as u32;
            let part_w = (erased / ratio).sqrt().round_ties_even() as u32;
            if part_h < height && part_w < width {
                return Some(Rect::draw((width, height), (part_w, part_h), rng));
            }
        }
        None
    }

    /// Erases a part of an image, in place.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid, or a value is not a whole number from 0 to
    /// 255; [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if three values were given for a gray image.
    pub fn apply(&self, image: &mut Image, rng: &mut Rng) -> Result<()> {
        self.check()?;
        let channels = usize::from(image.channels());
        let values = self.values(channels)?;
        check_bytes(values.as_deref())?;
        let Some(part) = self.part(image.width(), image.height(), rng) else {
            return Ok(());
        };
        let (width, height) = (image.width() as usize, image.height() as usize);
        let bytes =
            values.map(|values| values.iter().map(|&value| value as u8).collect::<Vec<_>>());
        let place = Place {
            part,
            width,
            height,
            channels,
        };
        place.erase(image.data_mut(), Layout::Hwc, bytes.as_deref(), || {
            rng.next_u32() as u8
        });
        Ok(())
    }

    /// Erases a part of a tensor of `f32` or `u8`, in place; a shared tensor is copied first. Its
    /// axes are `[channels, height, width]`, or those set by [`layout`](RandomErasing::layout). The
    /// limits for the values of an image apply to `u8`.
    ///
    /// # Errors
    /// As [`apply`](RandomErasing::apply); [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the tensor is not of rank 3, is
    /// empty, seems to have another layout, or does not have three channels for three values;
    /// [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) for another type.
    pub fn apply_tensor(&self, tensor: &mut Tensor, rng: &mut Rng) -> Result<()> {
        self.check()?;
        let &[a, b, c] = tensor.shape() else {
            let message = format!("erasing in a tensor {:?}: not of rank 3", tensor.shape());
            return Err(Error::shape(message));
        };
        let (width, height, channels) = picture_size(
            "erasing in a tensor",
            tensor.shape(),
            [a, b, c],
            self.layout,
        )?;
        let values = self.values(channels)?;
        let dtype = tensor.dtype();
        match dtype {
            DType::F32 => {}
            DType::U8 => check_bytes(values.as_deref())?,
            other => {
                let message = format!("erasing takes tensors of f32 or u8, not {other}");
                return Err(Error::unsupported(message));
            }
        }
        let Some(part) = self.part(width, height, rng) else {
            return Ok(());
        };
        let place = Place {
            part,
            width: width as usize,
            height: height as usize,
            channels,
        };
        let layout = self.layout.unwrap_or_default();
        if dtype == DType::U8 {
            let bytes =
                values.map(|values| values.iter().map(|&value| value as u8).collect::<Vec<_>>());
            place.erase(
                tensor.as_mut_slice::<u8>()?,
                layout,
                bytes.as_deref(),
                || rng.next_u32() as u8,
            );
            return Ok(());
        }
        let mut spare = None;
        let normal = || {
            spare.take().unwrap_or_else(|| {
                let [now, later] = two_normals(rng);
                spare = Some(later as f32);
                now as f32
            })
        };
        place.erase(
            tensor.as_mut_slice::<f32>()?,
            layout,
            values.as_deref(),
            normal,
        );
        Ok(())
    }

    /// Returns one value for each channel, or none for noise.
    fn values(&self, channels: usize) -> Result<Option<Vec<f32>>> {
        match self.value {
            Value::Noise => Ok(None),
            Value::One(value) => Ok(Some(vec![value; channels])),
            Value::Rgb(values) if channels == 3 => Ok(Some(values.to_vec())),
            Value::Rgb(_) => {
                let message = format!("3 values to erase an image of {channels} channels with");
                Err(Error::shape(message))
            }
        }
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_probability(self.p)?;
        let ((least, most), (flat, tall)) = (self.scale, self.ratio);
        let fault = if !(least >= 0.0 && least <= most && most <= 1.0) {
            format!("a scale from {least} to {most}: it has to lie in 0 to 1, in order")
        } else if !(flat.is_normal() && flat > 0.0 && flat <= tall && tall.is_finite()) {
            format!("a ratio from {flat} to {tall}: it has to be positive and in order")
        } else {
            return Ok(());
        };
        Err(Error::config(fault))
    }

    pub(crate) fn settings(&self) -> String {
        let RandomErasing {
            p,
            scale,
            ratio,
            value,
            layout,
        } = self;
        let last = if *layout == Some(Layout::Hwc) {
            ", channels last"
        } else {
            ""
        };
        format!("p {p}, scale {scale:?}, ratio {ratio:?}, {value:?}{last}")
    }
}

/// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) unless the values are bytes.
fn check_bytes(values: Option<&[f32]>) -> Result<()> {
    let mut values = values.into_iter().flatten();
    match values.find(|value| !(0.0..=255.0).contains(*value) || value.fract() != 0.0) {
        None => Ok(()),
        Some(value) => {
            let message = format!("erase 8-bit pixels with {value}: a whole number from 0 to 255");
            Err(Error::config(message))
        }
    }
}

/// A part of an image of this size.
struct Place {
    part: Rect,
    width: usize,
    height: usize,
    channels: usize,
}

impl Place {
    /// Writes a value for each channel into the part, or noise.
    fn erase<T: Copy>(
        &self,
        data: &mut [T],
        layout: Layout,
        values: Option<&[T]>,
        mut noise: impl FnMut() -> T,
    ) {
        let Place {
            part,
            width,
            height,
            channels,
        } = *self;
        let (top, rows) = (part.y as usize, part.height as usize);
        let (start, end) = (part.x as usize, (part.x + part.width) as usize);
        // Number of values of a pixel within a plane.
        let pixel = if layout == Layout::Hwc { channels } else { 1 };
        for (c, plane) in data
            .chunks_exact_mut((width * height * pixel).max(1))
            .enumerate()
        {
            for row in plane.chunks_exact_mut(width * pixel).skip(top).take(rows) {
                let row = &mut row[start * pixel..end * pixel];
                match (values, layout) {
                    (None, _) => row.iter_mut().for_each(|to| *to = noise()),
                    (Some(values), Layout::Chw) => row.fill(values[c]),
                    (Some(values), Layout::Hwc) => {
                        row.chunks_exact_mut(pixel)
                            .for_each(|to| to.copy_from_slice(values));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
