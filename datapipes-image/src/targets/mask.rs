//! Segmentation masks: a class for each pixel.

use datapipes::{Element, Error, Result, Tensor, wire_struct};

use crate::Image;
use crate::decode::{Classes, classes};
use crate::geometry::raster::{Raster, hflip, vflip};
use crate::geometry::{Geometry, Op, Spatial};

/// The class of each pixel of an image, as `u8`, `u16` or `u32`; rows from the top.
///
/// - Its width and height are at least 1, and it has `width * height` values.
/// - Values are never mixed: whatever filter a geometry has for the image, the mask takes the
///   nearest value, the one under the middle of the new pixel (torchvision's `NEAREST_EXACT`. Its
///   plain `NEAREST` shifts a mask against its image by up to half a pixel of the larger one).
/// - Areas outside of the image get the value [`outside`](Mask::outside).
///
/// From a PNG: [`Mask::<u8>::decode`](Mask::decode), which reads a palette's indices, as in Pascal
/// VOC's masks. From COCO's runs: `Mask::<u8>::from_tensor(rle.mask()?)`.
///
/// ```
/// # use datapipes_image::{Geometry, Mask, Border};
/// let mask = Mask::new(2, 1, vec![7_u8, 8])?.outside(255);
/// let geometry = Geometry::new(2, 1).hflip().pad(Border::new(1, 0, 0, 0))?;
/// assert_eq!(geometry.apply(mask)?.values(), [255, 8, 7]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask<T = u8> {
    width: u32,
    height: u32,
    values: Vec<T>,
    outside: T,
}

/// Types of a [`Mask`]'s values: `u8`, `u16` and `u32`.
pub trait MaskValue: Element + Copy + sealed::Sealed {}

impl MaskValue for u8 {}
impl MaskValue for u16 {}
impl MaskValue for u32 {}

mod sealed {
    pub trait Sealed {}

    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
}

impl<T: MaskValue> Mask<T> {
    /// Makes a mask of these values, which are not copied. The value outside is 0.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if an edge is zero or the length does not fit.
    pub fn new(width: u32, height: u32, values: Vec<T>) -> Result<Self> {
        let wanted = u128::from(width) * u128::from(height);
        if wanted == 0 || wanted != values.len() as u128 {
            let message = format!("{} values for a mask of {width}x{height}", values.len());
            return Err(Error::shape(message));
        }
        Ok(Mask {
            width,
            height,
            values,
            outside: T::default(),
        })
    }

    /// Makes a mask of a tensor, `[height, width]`; copied only if the tensor shares its memory.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) for another shape or type.
    pub fn from_tensor(tensor: Tensor) -> Result<Self> {
        let edges = match *tensor.shape() {
            [height, width] => u32::try_from(width).ok().zip(u32::try_from(height).ok()),
            _ => None,
        };
        let Some((width, height)) = edges else {
            let message = format!("a mask is [height, width], not {:?}", tensor.shape());
            return Err(Error::shape(message));
        };
        Mask::new(width, height, tensor.into_vec()?)
    }

    /// Sets the value of areas outside of the image, such as 255 for "ignore". Defaults to 0.
    #[must_use]
    pub fn outside(mut self, value: T) -> Self {
        self.outside = value;
        self
    }

    /// Returns the number of values in a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the number of rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the values.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Makes a tensor, `[height, width]`, without a copy.
    ///
    /// # Errors
    /// None that the types do not rule out.
    pub fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_vec(self.values, [self.height as usize, self.width as usize])
    }

    fn with(&self, width: u32, height: u32, values: Vec<T>) -> Self {
        Mask {
            width,
            height,
            values,
            outside: self.outside,
        }
    }
}

wire_struct!(Mask<T: MaskValue> { width, height, outside, values } by
    |width, height, outside, values| Mask::new(width, height, values).map(|mask| mask.outside(outside)));

impl Mask<u8> {
    /// Reads the values in a PNG, as they are stored. They are gray of up to 8 bits, not spread
    /// over 0 to 255, or indices of a palette. The palette's colours are ignored, and an index may
    /// be outside of it. Transparency and gamma are ignored.
    ///
    /// Limits are as for [`DecodeImage::new`](crate::DecodeImage::new). Allocates the values and
    /// a copy of the file.
    ///
    /// ```no_run
    /// # use datapipes_image::Mask;
    /// let voc = Mask::<u8>::decode(&std::fs::read("SegmentationClass/2007_000032.png")?)?.outside(255);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`DecodeImage::decode`](crate::DecodeImage::decode). [`ErrorKind::Unsupported`](datapipes::ErrorKind::Unsupported) also for
    /// other formats, and for PNGs with colours, an alpha channel, an EXIF orientation, or 16 bits,
    /// for which there is `Mask::<u16>::decode`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        match classes(bytes)? {
            (width, height, Classes::Bytes(values)) => Mask::new(width, height, values),
            (width, height, Classes::Words(_)) => Err(Error::unsupported(format!(
                "a PNG of {width}x{height} with 16 bits for a mask of u8: decode a `Mask<u16>`"
            ))),
        }
    }

    /// Makes a mask of a gray image of one channel or three equal ones, such as
    /// [`decode`](crate::decode()) makes of a gray file. `decode` spreads gray of less than 8 bits,
    /// and a palette's colours are not its indices: for masks in PNGs, see [`Mask::decode`].
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if a pixel has a colour.
    pub fn from_image(image: Image) -> Result<Self> {
        let (width, height) = (image.width(), image.height());
        if image.channels() == 1 {
            return Mask::new(width, height, image.into_data());
        }
        let pixels = image.data().as_chunks::<3>().0;
        if let Some(at) = pixels.iter().position(|[r, g, b]| r != g || g != b) {
            let (x, y) = (at % width as usize, at / width as usize);
            return Err(Error::shape(format!(
                "a mask is gray, and the pixel at ({x}, {y}) is {:?}",
                pixels[at]
            )));
        }
        Mask::new(width, height, pixels.iter().map(|pixel| pixel[0]).collect())
    }
}

impl Mask<u16> {
    /// Reads the values in a PNG, as they are stored: gray of up to 16 bits, or the indices of a
    /// palette.
    ///
    /// Otherwise as for a mask of `u8`. Values of 16 bits take twice their memory during decoding.
    ///
    /// # Errors
    /// As for a mask of `u8`, except for 16 bits.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (width, height, values) = classes(bytes)?;
        let values = match values {
            Classes::Bytes(values) => values.into_iter().map(u16::from).collect(),
            Classes::Words(values) => values,
        };
        Mask::new(width, height, values)
    }
}

impl<T: MaskValue> Spatial for Mask<T> {
    fn place(mut self, geometry: &Geometry) -> Result<Self> {
        geometry.check("a mask", (self.width, self.height))?;
        for (op, _, (width, height)) in geometry.steps() {
            let raster = Raster::new(self.width, &self.values);
            let values = match op {
                Op::HFlip => {
                    hflip(self.width, &mut self.values);
                    continue;
                }
                Op::VFlip => {
                    vflip(self.width, &mut self.values);
                    continue;
                }
                Op::Crop(part) => raster.crop(*part),
                Op::Resize { .. } => raster.resize(width, height),
                Op::ResizedCrop { part, .. } => {
                    Raster::new(part.width, &raster.crop(*part)).resize(width, height)
                }
                Op::Pad(padding) => raster.pad(padding, self.outside),
                Op::Warp(warp) => raster.warp(warp, self.outside),
            };
            self = self.with(width, height, values);
        }
        Ok(self)
    }
}
