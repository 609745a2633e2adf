//! A rectangle of each picture is hidden from the model.

use datapipes::{DType, Error, ErrorKind, Result, Rng, Tensor};

use crate::image::check_probability;
use crate::layout::picture_size;
use crate::portable::{exp, ln, two_normals};
use crate::{Image, Layout, Rect};

/// Erases a random rectangle: torchvision's `RandomErasing` (Zhong et al. 2017).
///
/// Usually on tensors, after normalisation, so that 0 is the mean; also on pictures. Drawn are:
/// whether to erase; if so, up to ten times an area, uniformly, and a ratio of height and width,
/// uniformly in its logarithm, until the rectangle is smaller than the picture both ways; then its
/// row and column. If none fits, nothing is erased. With [`noise`](RandomErasing::noise), the
/// values follow.
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
pub struct RandomErasing {
    p: f64,
    scale: (f64, f64),
    ratio: (f64, f64),
    value: Value,
    /// As was said, or none.
    layout: Option<Layout>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    /// The same in all channels.
    One(f32),
    Rgb([f32; 3]),
    Noise,
}

impl RandomErasing {
    /// With probability `p` it sets 2 % to 33 % of the area, of a ratio of height and width from
    /// 0.3 to 3.3, to 0.
    pub fn new(p: f64) -> Self {
        RandomErasing {
            p,
            scale: (0.02, 0.33),
            ratio: (0.3, 3.3),
            value: Value::One(0.0),
            layout: None,
        }
    }

    /// The least and the largest part of the area.
    pub fn scale(self, least: f64, most: f64) -> Self {
        RandomErasing {
            scale: (least, most),
            ..self
        }
    }

    /// The least and the largest height divided by width.
    pub fn ratio(self, least: f64, most: f64) -> Self {
        RandomErasing {
            ratio: (least, most),
            ..self
        }
    }

    /// What is written, into all channels.
    pub fn value(self, value: f32) -> Self {
        RandomErasing {
            value: Value::One(value),
            ..self
        }
    }

    /// What is written, for each of three channels.
    pub fn rgb(self, values: [f32; 3]) -> Self {
        RandomErasing {
            value: Value::Rgb(values),
            ..self
        }
    }

    /// Writes noise: normal with mean 0 and deviation 1 into tensors of `f32`, as torchvision does,
    /// uniform bytes into pictures and tensors of `u8`, as the paper does.
    pub fn noise(self) -> Self {
        RandomErasing {
            value: Value::Noise,
            ..self
        }
    }

    /// The order of a tensor's axes. By default [`Layout::Chw`], where tensors whose channels seem
    /// to come last (1 or 3 there, and not where they should be) are refused; what is said here is
    /// not doubted.
    pub fn layout(self, layout: Layout) -> Self {
        RandomErasing {
            layout: Some(layout),
            ..self
        }
    }

    /// Which part of a picture of this size is erased, if any.
    pub(crate) fn part(&self, width: u32, height: u32, rng: &mut Rng) -> Option<Rect> {
        if !rng.chance(self.p) {
            return None;
        }
        let area = f64::from(width) * f64::from(height);
        for _ in 0..10 {
            let erased = area * rng.range(self.scale.0, self.scale.1);
            let ratio = exp(rng.range(ln(self.ratio.0), ln(self.ratio.1)));
            // Python's `round`. The conversion saturates.
            let part_h = (erased * ratio).sqrt().round_ties_even() as u32;
            let part_w = (erased / ratio).sqrt().round_ties_even() as u32;
            if part_h < height && part_w < width {
                let y = rng.below(u64::from(height - part_h) + 1) as u32;
                let x = rng.below(u64::from(width - part_w) + 1) as u32;
                return Some(Rect {
                    x,
                    y,
                    width: part_w,
                    height: part_h,
                });
            }
        }
        None
    }

    /// Erases a part of a picture, in place.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if a setting makes no sense, or a value is not a whole number from 0
    /// to 255; [`ErrorKind::Shape`] if three values were given for a gray picture.
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

    /// Erases a part of a tensor of `f32` or `u8`, in place; one that is shared is copied first.
    /// Its axes are `[channels, height, width]`, or as [`layout`](RandomErasing::layout) says. What
    /// holds for the values of a picture holds for `u8`.
    ///
    /// # Errors
    /// As [`apply`](RandomErasing::apply); [`ErrorKind::Shape`] if it is not of rank 3, empty,
    /// seems to have another layout, or has not three channels for three values;
    /// [`ErrorKind::Unsupported`] for another type.
    pub fn apply_tensor(&self, tensor: &mut Tensor, rng: &mut Rng) -> Result<()> {
        self.check()?;
        let &[a, b, c] = tensor.shape() else {
            let message = format!("erasing in a tensor {:?}: not of rank 3", tensor.shape());
            return Err(Error::new(ErrorKind::Shape, message));
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
                let message = format!("erasing in a tensor of {other}: f32 or u8");
                return Err(Error::new(ErrorKind::Unsupported, message));
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

    /// One value for each channel, or none for noise.
    fn values(&self, channels: usize) -> Result<Option<Vec<f32>>> {
        match self.value {
            Value::Noise => Ok(None),
            Value::One(value) => Ok(Some(vec![value; channels])),
            Value::Rgb(values) if channels == 3 => Ok(Some(values.to_vec())),
            Value::Rgb(_) => {
                let message = format!("3 values to erase a picture of {channels} channels with");
                Err(Error::new(ErrorKind::Shape, message))
            }
        }
    }

    /// [`ErrorKind::Config`] if a setting makes no sense.
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
        Err(Error::new(ErrorKind::Config, fault))
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

/// [`ErrorKind::Config`] unless they are bytes.
fn check_bytes(values: Option<&[f32]>) -> Result<()> {
    let mut values = values.into_iter().flatten();
    match values.find(|value| !(0.0..=255.0).contains(*value) || value.fract() != 0.0) {
        None => Ok(()),
        Some(value) => {
            let message = format!("erase 8-bit pixels with {value}: a whole number from 0 to 255");
            Err(Error::new(ErrorKind::Config, message))
        }
    }
}

/// A part of a picture of this size.
struct Place {
    part: Rect,
    width: usize,
    height: usize,
    channels: usize,
}

impl Place {
    /// Writes a value for each channel into the part, or else noise.
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
        // Planes of pixels that have so many values each.
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
mod tests {
    use super::*;

    fn rng(key: u64) -> Rng {
        Rng::from_key([key, 0, 0, 0])
    }

    #[test]
    fn golden_parts() {
        let (erasing, mut rng) = (RandomErasing::new(0.9), Rng::from_key([1, 2, 3, 4]));
        let parts: Vec<_> = (0..4).map(|_| erasing.part(224, 160, &mut rng)).collect();
        let parts: Vec<_> = parts
            .iter()
            .map(|part| part.map(|p| [p.x, p.y, p.width, p.height]))
            .collect();
        assert_eq!(parts, GOLDEN, "{parts:?}");
    }

    const GOLDEN: [Option<[u32; 4]>; 4] = [
        Some([36, 109, 91, 50]),
        Some([121, 90, 55, 52]),
        Some([38, 77, 80, 58]),
        Some([16, 43, 163, 61]),
    ];

    #[test]
    fn parts_have_the_distribution_asked_for() {
        let (erasing, mut rng) = (RandomErasing::new(0.5), rng(1));
        let (mut areas, mut log_ratios, mut erased) = (0.0, 0.0, 0);
        for _ in 0..8000 {
            let Some(part) = erasing.part(320, 240, &mut rng) else {
                continue;
            };
            assert!(part.x + part.width <= 320 && part.y + part.height <= 240);
            assert!(part.width < 320 && part.height < 240);
            erased += 1;
            areas += f64::from(part.width * part.height) / f64::from(320 * 240);
            log_ratios += (f64::from(part.height) / f64::from(part.width)).ln();
        }
        assert!((3850..4150).contains(&erased), "{erased}");
        // What Python gives for torchvision's algorithm, over 400000 draws; upright parts fit less
        // often.
        let mean = |sum: f64| sum / f64::from(erased);
        assert!((mean(areas) - AREA).abs() < 0.006, "{}", mean(areas));
        assert!(
            (mean(log_ratios) - LOG_RATIO).abs() < 0.04,
            "{}",
            mean(log_ratios)
        );
    }

    const AREA: f64 = 0.1716;
    const LOG_RATIO: f64 = -0.0345;

    #[test]
    fn the_part_and_only_it_is_erased() {
        let part = RandomErasing::new(1.0).part(30, 20, &mut rng(4)).unwrap();
        let inside = |x: u32, y: u32| {
            (part.x..part.x + part.width).contains(&x)
                && (part.y..part.y + part.height).contains(&y)
        };
        let places = || (0..20).flat_map(|y| (0..30).map(move |x| (x, y)));
        assert!(part.width > 1 && part.height > 1, "{part:?}");

        let mut image = Image::new(30, 20, 3, vec![9; 1800]).unwrap();
        RandomErasing::new(1.0)
            .rgb([1.0, 2.0, 255.0])
            .apply(&mut image, &mut rng(4))
            .unwrap();
        assert!(
            places()
                .all(|(x, y)| image.pixel(x, y) == if inside(x, y) { [1, 2, 255] } else { [9; 3] })
        );

        let mut tensor = Tensor::from_vec(vec![9.0f32; 1800], [3, 20, 30]).unwrap();
        RandomErasing::new(1.0)
            .rgb([-1.5, 2.0, 0.0])
            .apply_tensor(&mut tensor, &mut rng(4))
            .unwrap();
        let values = tensor.as_slice::<f32>().unwrap();
        for (c, value) in [-1.5, 2.0, 0.0].into_iter().enumerate() {
            let plane = &values[c * 600..][..600];
            assert!(
                places()
                    .zip(plane)
                    .all(|((x, y), &v)| v == if inside(x, y) { value } else { 9.0 })
            );
        }

        let mut tensor = Tensor::from_vec(vec![9.0f32; 4 * 600], [4, 20, 30]).unwrap();
        RandomErasing::new(1.0)
            .noise()
            .apply_tensor(&mut tensor, &mut rng(4))
            .unwrap();
        let values = tensor.as_slice::<f32>().unwrap();
        let kept = values.iter().filter(|&&value| value == 9.0).count();
        assert_eq!(kept, 4 * (600 - (part.width * part.height) as usize));
        let noise: Vec<f32> = values
            .iter()
            .copied()
            .filter(|&value| value != 9.0)
            .collect();
        let square = noise.iter().map(|value| value * value).sum::<f32>() / noise.len() as f32;
        assert!((square - 1.0).abs() < 0.3, "{square}");

        let mut image = Image::new(30, 20, 1, vec![9; 600]).unwrap();
        RandomErasing::new(1.0)
            .noise()
            .apply(&mut image, &mut rng(4))
            .unwrap();
        assert!(places().all(|(x, y)| inside(x, y) || image.pixel(x, y) == [9]));
        let other = places().filter(|&(x, y)| image.pixel(x, y) != [9]).count();
        assert!(other * 10 > (part.width * part.height * 9) as usize);
    }

    #[test]
    fn without_chance_or_room_nothing_is_erased() {
        let before = Image::new(6, 5, 3, (0..90).collect()).unwrap();
        let mut image = before.clone();
        RandomErasing::new(0.0)
            .apply(&mut image, &mut rng(1))
            .unwrap();
        RandomErasing::new(1.0)
            .scale(1.0, 1.0)
            .apply(&mut image, &mut rng(1))
            .unwrap();
        assert_eq!(image, before);
        let mut pixel = Image::new(1, 1, 1, vec![7]).unwrap();
        RandomErasing::new(1.0)
            .apply(&mut pixel, &mut rng(1))
            .unwrap();
        assert_eq!(pixel.data(), [7]);
    }

    #[test]
    fn settings_without_sense_are_refused_with_their_numbers() {
        let mut image = Image::new(4, 4, 1, vec![0; 16]).unwrap();
        let new = || RandomErasing::new(1.0);
        for (erasing, kind, text) in [
            (RandomErasing::new(1.5), ErrorKind::Config, "1.5"),
            (RandomErasing::new(f64::NAN), ErrorKind::Config, "NaN"),
            (new().scale(-0.1, 0.5), ErrorKind::Config, "-0.1 to 0.5"),
            (new().scale(0.5, 1.1), ErrorKind::Config, "0.5 to 1.1"),
            (new().scale(0.5, 0.4), ErrorKind::Config, "0.5 to 0.4"),
            (new().ratio(0.0, 1.0), ErrorKind::Config, "0 to 1"),
            (
                new().ratio(1.0, f64::INFINITY),
                ErrorKind::Config,
                "1 to inf",
            ),
            (new().ratio(f64::NAN, 1.0), ErrorKind::Config, "NaN to 1"),
            (new().value(-1.0), ErrorKind::Config, "with -1"),
            (new().value(0.5), ErrorKind::Config, "with 0.5"),
            (new().value(f32::NAN), ErrorKind::Config, "with NaN"),
            (new().rgb([0.0; 3]), ErrorKind::Shape, "1 channels"),
        ] {
            let error = erasing.apply(&mut image, &mut rng(1)).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(text), "{error}");
        }
        let mut bytes = Tensor::from_vec(vec![0u8; 12], [3, 2, 2]).unwrap();
        for value in [256.0, -1.0, 0.5] {
            let error = new()
                .value(value)
                .apply_tensor(&mut bytes, &mut rng(1))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
        }
        let mut wide = Tensor::from_vec(vec![0i64; 12], [3, 2, 2]).unwrap();
        let error = new().apply_tensor(&mut wide, &mut rng(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("of i64"), "{error}");
        for shape in [[3, 0, 5], [3, 5, 0]] {
            let mut empty = Tensor::from_vec(Vec::<f32>::new(), shape).unwrap();
            let error = new().apply_tensor(&mut empty, &mut rng(1)).unwrap_err();
            assert!(error.to_string().contains("no pixels"), "{error}");
        }
        let mut flat = Tensor::from_vec(vec![0f32; 12], [12]).unwrap();
        assert!(
            new()
                .apply_tensor(&mut flat, &mut rng(1))
                .unwrap_err()
                .to_string()
                .contains("[12]")
        );
        let mut gray = Tensor::from_vec(vec![0f32; 4], [1, 2, 2]).unwrap();
        assert_eq!(
            new()
                .rgb([0.0; 3])
                .apply_tensor(&mut gray, &mut rng(1))
                .unwrap_err()
                .kind(),
            ErrorKind::Shape
        );
    }

    #[test]
    fn both_layouts_and_bytes_are_erased_alike() {
        let part = RandomErasing::new(1.0).part(30, 20, &mut rng(4)).unwrap();
        let inside = |place: usize| {
            let (x, y) = ((place % 30) as u32, (place / 30) as u32);
            (part.x..part.x + part.width).contains(&x)
                && (part.y..part.y + part.height).contains(&y)
        };
        let erasing = RandomErasing::new(1.0).rgb([1.0, 2.0, 255.0]);
        let mut first = Tensor::from_vec(vec![9u8; 1800], [3, 20, 30]).unwrap();
        erasing.apply_tensor(&mut first, &mut rng(4)).unwrap();
        let mut last = Tensor::from_vec(vec![9u8; 1800], [20, 30, 3]).unwrap();
        erasing
            .layout(Layout::Hwc)
            .apply_tensor(&mut last, &mut rng(4))
            .unwrap();
        let mut numbers = Tensor::from_vec(vec![9f32; 1800], [20, 30, 3]).unwrap();
        erasing
            .layout(Layout::Hwc)
            .apply_tensor(&mut numbers, &mut rng(4))
            .unwrap();
        let (first, last) = (
            first.as_slice::<u8>().unwrap(),
            last.as_slice::<u8>().unwrap(),
        );
        let numbers = numbers.as_slice::<f32>().unwrap();
        for place in 0..600 {
            for (c, value) in [1, 2, 255].into_iter().enumerate() {
                let wanted = if inside(place) { value } else { 9 };
                assert_eq!(
                    (first[c * 600 + place], last[place * 3 + c]),
                    (wanted, wanted)
                );
                assert_eq!(numbers[place * 3 + c], f32::from(wanted));
            }
        }

        // Noise in bytes is a picture's.
        let mut image = Image::new(30, 20, 3, vec![9; 1800]).unwrap();
        RandomErasing::new(1.0)
            .noise()
            .apply(&mut image, &mut rng(4))
            .unwrap();
        let mut tensor = Tensor::from_vec(vec![9u8; 1800], [20, 30, 3]).unwrap();
        RandomErasing::new(1.0)
            .noise()
            .layout(Layout::Hwc)
            .apply_tensor(&mut tensor, &mut rng(4))
            .unwrap();
        assert_eq!(tensor.as_slice::<u8>().unwrap(), image.data());
        assert_ne!(image.data(), [9; 1800]);
    }

    #[test]
    fn channels_that_seem_to_come_last_are_refused_unless_the_layout_was_said() {
        let tensor = || Tensor::from_vec(vec![9f32; 1800], [20, 30, 3]).unwrap();
        let error = RandomErasing::new(0.0)
            .apply_tensor(&mut tensor(), &mut rng(1))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(
            error
                .to_string()
                .contains("[20, 30, 3]: the channels seem to come last"),
            "{error}"
        );
        for layout in [Layout::Chw, Layout::Hwc] {
            RandomErasing::new(1.0)
                .layout(layout)
                .apply_tensor(&mut tensor(), &mut rng(1))
                .unwrap();
        }
    }
}
