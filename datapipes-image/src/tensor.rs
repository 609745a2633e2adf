//! Conversion of images to tensors.

use std::any::Any;

use datapipes::{Element, Error, Result, Tensor, labelled};

use crate::layout::{Number, RowWriter};
use crate::{Image, Layout};

/// Mean and standard deviation of each channel, on a scale from 0 to 1. A gray image uses the first
/// of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    mean: [f32; 3],
    std: [f32; 3],
}

impl Normalize {
    /// Values of ImageNet, which most pretrained models expect.
    pub const IMAGENET: Normalize = Normalize {
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
    };
    /// Values from 0 to 1, without normalisation.
    pub const UNIT: Normalize = Normalize {
        mean: [0.0; 3],
        std: [1.0; 3],
    };

    /// Subtracts `mean` and divides by `std`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a value is not finite or a standard deviation is not positive.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_image::{Image, Normalize, to_tensor};
    /// let image = Image::new(3, 1, 1, vec![0, 51, 102])?;
    /// let normalize = Normalize::new([0.2; 3], [0.1; 3])?;
    /// let tensor = to_tensor(&image, &normalize)?;
    /// let values = tensor.as_slice::<f32>()?.iter().map(|value| value.round());
    /// assert_eq!(Vec::from_iter(values), [-2.0, 0.0, 2.0]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Result<Normalize> {
        // The reciprocal of a tiny number is infinite.
        let fine = mean.iter().all(|m| m.is_finite())
            && std.iter().all(|&s| s > 0.0 && (1.0 / s).is_normal());
        if !fine {
            return Err(Error::config(format!(
                "cannot normalise by mean {mean:?}, std {std:?}"
            )));
        }
        Ok(Normalize { mean, std })
    }

    /// Returns the factor and the summand for a value of a channel.
    pub(crate) fn line(&self, channel: usize) -> (f32, f32) {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        (1.0 / (255.0 * std), -mean / std)
    }
}

/// Makes a tensor of `f32`, `[channels, height, width]`: pixels divided by 255 and normalised, in
/// one pass.
///
/// A value may differ in its last bit from dividing, subtracting and dividing, since it is computed
/// as one multiplication and one addition.
///
/// # Errors
/// None that the types do not rule out.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, Normalize, to_tensor};
/// let image = Image::new(2, 1, 3, vec![0, 0, 255, 255, 0, 0])?;
/// let tensor = to_tensor(&image, &Normalize::UNIT)?;
/// assert_eq!(tensor.shape(), [3, 1, 2]);
/// assert_eq!(tensor.as_slice::<f32>()?, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn to_tensor(image: &Image, normalize: &Normalize) -> Result<Tensor> {
    tensor_of::<f32>(image, normalize)
}

/// Makes a tensor of `u8`, `[channels, height, width]`: a quarter of the memory, for a model that
/// normalises by itself.
///
/// # Errors
/// None that the types do not rule out.
///
/// # Examples
/// ```
/// # use datapipes_image::{Image, to_tensor_u8};
/// let image = Image::new(2, 1, 3, vec![1, 2, 3, 4, 5, 6])?;
/// let tensor = to_tensor_u8(&image)?;
/// assert_eq!(tensor.shape(), [3, 1, 2]);
/// assert_eq!(tensor.as_slice::<u8>()?, [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn to_tensor_u8(image: &Image) -> Result<Tensor> {
    tensor_of::<u8>(image, &Normalize::UNIT)
}

/// Returns the pixels of an [`Image`], alone or with a label, as `[height, width, channels]`;
/// `None` for any other value. For values whose type is known only at run time:
/// [`answer_blame_with`](datapipes::DataLoader::answer_blame_with) draws images by this function.
///
/// # Examples
/// ```
/// use datapipes_image::{Image, picture};
/// let image = Image::new(2, 1, 3, vec![1, 2, 3, 4, 5, 6])?;
/// assert_eq!(picture(&(image, 7_u64)).unwrap().shape(), [1, 2, 3]);
/// assert!(picture(&7_u64).is_none());
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn picture(value: &dyn Any) -> Option<Tensor> {
    let image = labelled::<Image>(value)?;
    let shape = [
        image.height() as usize,
        image.width() as usize,
        image.channels().into(),
    ];
    Tensor::from_vec(image.data().to_vec(), shape).ok()
}

/// Decodes an image to a tensor of `u8`, `[height, width, 3]`, in the layout of its memory: a
/// decoder of a sample's fields, for the extensions in [`EXTENSIONS`]. The pixels are not copied.
///
/// With `datapipes-io`: `FieldDecoder::new().with(datapipes_image::EXTENSIONS,
/// datapipes_image::decode_tensor)`.
///
/// # Errors
/// As [`DecodeImage::decode`](crate::DecodeImage::decode).
///
/// # Examples
/// ```
/// # let mut file = Vec::new();
/// # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
/// assert_eq!(datapipes_image::decode_tensor(&file)?.shape(), [48, 64, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn decode_tensor(bytes: impl AsRef<[u8]>) -> Result<Tensor> {
    let image = crate::decode(bytes.as_ref())?;
    let shape = [
        image.height() as usize,
        image.width() as usize,
        usize::from(image.channels()),
    ];
    Tensor::from_vec(image.into_data(), shape)
}

/// Extensions of the files that [`decode`](crate::decode()) reads, separated by spaces.
pub const EXTENSIONS: &str = "jpg jpeg jpe jfif png apng webp gif bmp dib tif tiff";

/// Makes a tensor of one plane after another.
fn tensor_of<T: Number + Element>(image: &Image, normalize: &Normalize) -> Result<Tensor> {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let mut values = vec![T::default(); image.data().len()];
    if image.channels() == 1 {
        let (scale, shift) = normalize.line(0);
        values
            .iter_mut()
            .zip(image.data())
            .for_each(|(to, &value)| *to = T::of(value, scale, shift));
    } else {
        let writer = RowWriter {
            width,
            height,
            layout: Layout::Chw,
            flip: false,
        };
        for (y, row) in image.data().chunks_exact(width * 3).enumerate() {
            writer.write(y as u32, row, normalize, &mut values);
        }
    }
    Tensor::from_vec(values, [usize::from(image.channels()), height, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn channels_become_planes() {
        let image = Image::new(2, 2, 3, vec![0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23]).unwrap();
        let tensor = to_tensor_u8(&image).unwrap();
        assert_eq!(tensor.shape(), [3, 2, 2]);
        assert_eq!(
            tensor.as_slice::<u8>().unwrap(),
            [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
        );
        let gray = Image::new(3, 1, 1, vec![0, 255, 0]).unwrap();
        let tensor = to_tensor(&gray, &Normalize::UNIT).unwrap();
        assert_eq!(tensor.shape(), [1, 1, 3]);
        assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.0, 1.0, 0.0]);
    }

    #[test]
    fn values_are_those_of_three_passes() {
        let image = Image::new(16, 16, 3, (0..768).map(|i| (i / 3) as u8).collect()).unwrap();
        let tensor = to_tensor(&image, &Normalize::IMAGENET).unwrap();
        for (i, &value) in tensor.as_slice::<f32>().unwrap().iter().enumerate() {
            let (c, pixel) = (i / 256, (i % 256) as f32 / 255.0);
            let wanted = (pixel - Normalize::IMAGENET.mean[c]) / Normalize::IMAGENET.std[c];
            assert!((value - wanted).abs() < 1e-6, "{i}: {value} {wanted}");
        }
    }

    #[test]
    fn a_deviation_that_makes_infinities_is_refused() {
        for std in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45] {
            let error = Normalize::new([0.5; 3], [0.2, std, 0.2]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
        }
        assert!(Normalize::new([f32::NAN, 0.0, 0.0], [1.0; 3]).is_err());
        assert!(Normalize::new([0.5; 3], [0.5; 3]).is_ok());
    }
}
