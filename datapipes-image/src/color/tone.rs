//! Changes of tone: each new value depends on the old value, and at most on the whole image. All
//! work in place.

use datapipes::{Error, Result};

use crate::Image;

/// Makes the negative, in place: 255 minus each value.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, invert};
/// let mut image = Image::new(2, 1, 1, vec![10, 200])?;
/// invert(&mut image);
/// assert_eq!(image.data(), [245, 55]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn invert(image: &mut Image) {
    for value in image.data_mut() {
        *value = !*value;
    }
}

/// Keeps the upper `bits` bits of each value, in place: 8 change nothing, 0 leave black.
///
/// # Errors
/// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if `bits` is more than 8.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, posterize};
/// let mut image = Image::new(2, 1, 1, vec![10, 200])?;
/// posterize(&mut image, 2)?;
/// assert_eq!(image.data(), [0, 192]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn posterize(image: &mut Image, bits: u8) -> Result<()> {
    if bits > 8 {
        return Err(Error::config(format!(
            "posterize to {bits} bits: from 0 to 8"
        )));
    }
    let mask = !(0xff_u16 >> bits) as u8;
    for value in image.data_mut() {
        *value &= mask;
    }
    Ok(())
}

/// Inverts the values from `threshold` on, in place; 0 inverts all.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, solarize};
/// let mut image = Image::new(2, 1, 1, vec![10, 200])?;
/// solarize(&mut image, 128);
/// assert_eq!(image.data(), [10, 55]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn solarize(image: &mut Image, threshold: u8) {
    for value in image.data_mut() {
        *value = if *value >= threshold { !*value } else { *value };
    }
}

/// Stretches each channel such that its least value becomes 0 and its largest 255, in place. A
/// channel of one value does not change.
///
/// This is torchvision's `autocontrast` on `uint8` tensors, which truncates fractions, so that the
/// largest value may become 254. Pillow does the same in `f64`.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, autocontrast};
/// let mut image = Image::new(3, 1, 1, vec![100, 150, 200])?;
/// autocontrast(&mut image);
/// assert_eq!(image.data(), [0, 127, 254]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn autocontrast(image: &mut Image) {
    let ends = match image.channels() {
        1 => {
            let ends = |(low, high): (u8, u8), &v: &u8| (low.min(v), high.max(v));
            let (low, high) = image.data().iter().fold((255, 0), ends);
            ([low; 3], [high; 3])
        }
        _ => {
            let pixels = image.data().as_chunks::<3>().0;
            let least = |low: [u8; 3], p: &[u8; 3]| std::array::from_fn(|c| low[c].min(p[c]));
            let most = |high: [u8; 3], p: &[u8; 3]| std::array::from_fn(|c| high[c].max(p[c]));
            (
                pixels.iter().fold([255; 3], least),
                pixels.iter().fold([0; 3], most),
            )
        }
    };
    let table = |c: usize| {
        let (low, high) = (ends.0[c], ends.1[c]);
        let scale = f32::from(high - low) * (1.0 / 255.0);
        table(|value| match high > low {
            true => (f32::from(value.saturating_sub(low)) / scale) as u8,
            false => value,
        })
    };
    by_tables(image, [table(0), table(1), table(2)]);
}

/// Spreads the values of each channel such that all are about equally frequent, in place. A channel
/// of one value, or of fewer than 255 pixels besides those of the largest value, does not change.
///
/// This is torchvision's and Pillow's `equalize`.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, equalize};
/// let mut image = Image::new(2, 256, 1, [100, 101].repeat(256))?;
/// equalize(&mut image);
/// assert_eq!(image.pixel(0, 0), [0]);
/// assert_eq!(image.pixel(1, 0), [255]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn equalize(image: &mut Image) {
    let channels = usize::from(image.channels());
    let mut counts = [[0u64; 256]; 3];
    for pixel in image.data().chunks_exact(channels) {
        for (counts, &value) in counts.iter_mut().zip(pixel) {
            counts[usize::from(value)] += 1;
        }
    }
    by_tables(image, counts.map(|counts| equalizing(&counts)));
}

fn equalizing(counts: &[u64; 256]) -> [u8; 256] {
    let pixels: u64 = counts.iter().sum();
    let largest = counts
        .iter()
        .rev()
        .find(|&&count| count > 0)
        .copied()
        .unwrap_or(0);
    let step = (pixels - largest) / 255;
    if step == 0 {
        return table(|value| value);
    }
    let (mut below, mut table) = (step / 2, [0; 256]);
    for (place, count) in table.iter_mut().zip(counts) {
        *place = (below / step).min(255) as u8;
        below += count;
    }
    table
}

fn table(f: impl Fn(u8) -> u8) -> [u8; 256] {
    // A loop: `array::from_fn` would be unrolled 256 times.
    let mut table = [0; 256];
    for (place, value) in table.iter_mut().zip(0..=255) {
        *place = f(value);
    }
    table
}

/// Maps each value by a function, which is called once for each of the 256 values.
pub(crate) fn map(image: &mut Image, f: impl Fn(u8) -> u8) {
    let table = table(f);
    for value in image.data_mut() {
        *value = table[usize::from(*value)];
    }
}

/// Maps each value by its channel's table.
fn by_tables(image: &mut Image, tables: [[u8; 256]; 3]) {
    if image.channels() == 1 {
        return map(image, |value| tables[0][usize::from(value)]);
    }
    for pixel in image.data_mut().as_chunks_mut::<3>().0 {
        *pixel = std::array::from_fn(|c| tables[c][usize::from(pixel[c])]);
    }
}
