//! Decoding of images straight into the rows of a batch.

use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, Graph, Hints, Items, Pipe, Result, Rng, Tensor};

use crate::decode::{Memory, Wanted};
use crate::image::{check_probability, check_size};
use crate::layout::{Number, RowWriter};
use crate::resize::{Resampler, shorter_size};
use crate::{DecodeImage, Layout, Normalize, RandomResizedCrop, Rect, ResizeFilter};

/// Decodes, crops, scales, mirrors and normalises images, and writes the result into the batch, in
/// one step without intermediate images. It draws the same random numbers as
/// [`decode`](crate::decode()), [`random_resized_crop`](crate::random_resized_crop()),
/// [`hflip`](crate::hflip()) and [`to_tensor`](crate::to_tensor()) in sequence, and returns the
/// same values, to the last bit.
///
/// - Of a JPEG, only the part that a random crop needs is decoded: rows below the part are not
///   decoded at all. With [`scaled`](ImageRows::scaled) the JPEG is decoded at a half, a quarter or
///   an eighth of its size if that is enough.
/// - Each thread keeps its intermediate pixels for its next image: up to 16 MiB in each of some
///   buffers, or as much as the last image took. JPEGs therefore cause no allocations once the
///   buffers are large enough, except for parts of over 5 megapixels.
/// - Put a shuffle between a step that opens archives and this step. If both are in one segment,
///   the row and the batch of an image are not known in advance, and batches are copied together.
/// - In a graph of your own samples, use `map` before this step to make a pair of the file and the
///   rest, and `map` after it to convert back: such steps are one-to-one. The rows of one batch are
///   written in place if only one-to-one steps are between this step and [`batch`](Graph::batch);
///   see [`Context::row`]. The memory of a batch returns to the loader when the batch is dropped.
///
/// # Examples
/// ```
/// use bytes::Bytes;
/// use datapipes::{DataLoader, Graph};
/// use datapipes_image::{ImageRows, Normalize, prelude::*};
///
/// # let mut file = Vec::new();
/// # jpeg_encoder::Encoder::new(&mut file, 90).encode(&[99; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
/// let files: Graph<(Bytes, u32)> = Graph::from_vec(vec![(Bytes::from(file), 7); 10]);
/// let rows = ImageRows::random_resized_crop(32).random_hflip(0.5).normalize(Normalize::IMAGENET);
/// let loader = DataLoader::builder(files.image_rows(rows).batch(4).collate()).build()?;
/// for batch in loader.epoch(0).blocking() {
///     let (images, labels) = batch?;
///     assert_eq!(images.shape()[1..], [3, 32, 32]);
///     assert_eq!(images.shape()[0], labels.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ImageRows {
    decode: DecodeImage,
    geometry: Geometry,
    hflip: f64,
    normalize: Option<Normalize>,
    layout: Layout,
    scaled: bool,
}

/// Part of an image that becomes the row, and its size.
#[derive(Clone, Copy, Debug)]
enum Geometry {
    Random(RandomResizedCrop),
    /// The whole image.
    Whole {
        width: u32,
        height: u32,
        filter: ResizeFilter,
    },
    /// The middle, after the shorter edge was scaled to a length.
    Center {
        shorter: u32,
        width: u32,
        height: u32,
        filter: ResizeFilter,
    },
}

/// Part that is scaled, its new size, and the part of the result that becomes the row.
struct Cut {
    part: Rect,
    target: (u32, u32),
    window: Rect,
}

impl ImageRows {
    fn new(geometry: Geometry) -> Self {
        let (decode, layout) = (DecodeImage::new(), Layout::Chw);
        ImageRows {
            decode,
            geometry,
            hflip: 0.0,
            normalize: None,
            layout,
            scaled: false,
        }
    }

    /// Takes a random part and scales it: for training. See [`RandomResizedCrop`].
    pub fn random_resized_crop(settings: impl Into<RandomResizedCrop>) -> Self {
        ImageRows::new(Geometry::Random(settings.into()))
    }

    /// Scales the whole image to this width and height, whatever its aspect ratio.
    pub fn resize(width: u32, height: u32) -> Self {
        ImageRows::new(Geometry::Whole {
            width,
            height,
            filter: ResizeFilter::Bilinear,
        })
    }

    /// Scales the shorter edge to `shorter` and takes the middle of this width and height: for
    /// validation.
    pub fn resize_center_crop(shorter: u32, width: u32, height: u32) -> Self {
        ImageRows::new(Geometry::Center {
            shorter,
            width,
            height,
            filter: ResizeFilter::Bilinear,
        })
    }

    /// Sets the filter for scaling. Defaults to [`ResizeFilter::Bilinear`].
    pub fn filter(mut self, with: ResizeFilter) -> Self {
        match &mut self.geometry {
            Geometry::Random(crop) => *crop = crop.filter(with),
            Geometry::Whole { filter, .. } | Geometry::Center { filter, .. } => *filter = with,
        }
        self
    }

    datapipes::setters! {
        /// Mirrors left and right with probability `p`.
        random_hflip(p: f64) => hflip = p;

        /// Makes normalised `f32` rows. Without this setting, rows are `u8`, 0 to 255.
        normalize(normalize: Normalize) => normalize = Some(normalize);

        /// Sets the order of the axes. Defaults to [`Layout::Chw`].
        layout(layout: Layout) => layout = layout;

        /// Decodes JPEGs at the least of 1/1, 1/2, 1/4 and 1/8 of their size at which the part is not
        /// smaller than the row, as Pillow's `draft` does. That takes less time for images much larger
        /// than the row, and returns other values: the decoder averages over blocks before the filter
        /// is applied. Off by default.
        scaled() => scaled = true;

        /// Sets the options of the decoder: limits, orientation.
        decoder(decode: DecodeImage) => decode = decode;
    }

    /// Returns the shape of a row: `[3, height, width]`, or `[height, width, 3]`.
    pub fn shape(&self) -> [usize; 3] {
        let (width, height) = self.size();
        let (width, height) = (width as usize, height as usize);
        match self.layout {
            Layout::Chw => [3, height, width],
            Layout::Hwc => [height, width, 3],
        }
    }

    /// Makes a separate tensor of one file. In a graph, [`ImageRowsGraphExt::image_rows`] writes into
    /// batches.
    ///
    /// # Errors
    /// As [`fill`](ImageRows::fill).
    pub fn tensor(&self, file: &[u8], rng: &mut Rng) -> Result<Tensor> {
        let dtype = if self.normalize.is_some() {
            datapipes::DType::F32
        } else {
            datapipes::DType::U8
        };
        let mut tensor = Tensor::zeros(dtype, self.shape())?;
        self.fill(file, rng, &mut tensor)?;
        Ok(tensor)
    }

    /// Fills a tensor from one file. Draws the part first, and then if it is mirrored.
    ///
    /// # Errors
    /// - Errors of [`DecodeImage::decode`] for the file. Damage below the part is not found, since
    ///   that data is not read.
    /// - [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the tensor is not of this shape and type, or a scaled image is
    ///   smaller than its crop.
    /// - [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub fn fill(&self, file: &[u8], rng: &mut Rng, row: &mut Tensor) -> Result<()> {
        self.check()?;
        if row.shape() != self.shape() {
            return Err(Error::shape(format!(
                "a row of shape {:?} for images of {:?}",
                row.shape(),
                self.shape()
            )));
        }
        match &self.normalize {
            Some(normalize) => self.fill_with(file, rng, normalize, row.as_mut_slice::<f32>()?),
            None => self.fill_with(file, rng, &Normalize::UNIT, row.as_mut_slice::<u8>()?),
        }
    }

    fn fill_with<T: Number>(
        &self,
        file: &[u8],
        rng: &mut Rng,
        normalize: &Normalize,
        out: &mut [T],
    ) -> Result<()> {
        thread_local!(static SCRATCH: RefCell<(Memory, Resampler)> = RefCell::default());

        SCRATCH.with_borrow_mut(|(memory, resampler)| {
            let (mut cut, mut flip) = (None, false);
            let decoded = self.decode.decode_part(file, memory, |width, height| {
                let chosen = self.cut(width, height, rng)?;
                flip = rng.chance(self.hflip);
                let wanted = Wanted {
                    part: chosen.part,
                    least: self.scaled.then_some(chosen.target),
                };
                cut = Some(chosen);
                Ok(wanted)
            })?;
            let Cut {
                target: (width, height),
                window,
                ..
            } = cut.expect("chosen before anything was decoded");
            let writer = RowWriter {
                width: window.width as usize,
                height: window.height as usize,
                layout: self.layout,
                flip,
            };
            let (left, right) = (
                window.x as usize * 3,
                (window.x + window.width) as usize * 3,
            );
            resampler.resize_rows(
                decoded.view,
                decoded.part,
                width,
                height,
                self.resampling(),
                |y, pixels| {
                    if (window.y..window.y + window.height).contains(&y) {
                        writer.write(y - window.y, &pixels[left..right], normalize, out);
                    }
                },
            )
        })
    }

    fn cut(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Cut> {
        let whole = |width, height| Rect {
            x: 0,
            y: 0,
            width,
            height,
        };
        Ok(match self.geometry {
            Geometry::Random(crop) => {
                let (w, h) = crop.size();
                Cut {
                    part: crop.part(width, height, rng),
                    target: (w, h),
                    window: whole(w, h),
                }
            }
            Geometry::Whole {
                width: w,
                height: h,
                ..
            } => Cut {
                part: whole(width, height),
                target: (w, h),
                window: whole(w, h),
            },
            Geometry::Center {
                shorter,
                width: w,
                height: h,
                ..
            } => {
                let target = shorter_size(width, height, shorter)?;
                let window = Rect::middle(target, w, h);
                window.check_within(target.0, target.1)?;
                Cut {
                    part: whole(width, height),
                    target,
                    window,
                }
            }
        })
    }

    fn size(&self) -> (u32, u32) {
        match self.geometry {
            Geometry::Random(crop) => crop.size(),
            Geometry::Whole { width, height, .. } | Geometry::Center { width, height, .. } => {
                (width, height)
            }
        }
    }

    fn resampling(&self) -> ResizeFilter {
        match self.geometry {
            Geometry::Random(crop) => crop.resampling(),
            Geometry::Whole { filter, .. } | Geometry::Center { filter, .. } => filter,
        }
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    fn check(&self) -> Result<()> {
        match self.geometry {
            Geometry::Random(crop) => crop.check()?,
            Geometry::Whole { width, height, .. } => check_size(width, height)?,
            Geometry::Center {
                shorter,
                width,
                height,
                ..
            } => {
                check_size(width, height)?;
                if width.max(height) > shorter && width.min(height) > shorter {
                    return Err(Error::config(format!(
                        "a crop of {width}x{height} of images whose shorter edge is {shorter}"
                    )));
                }
                check_size(shorter, shorter)?;
            }
        }
        check_probability(self.hflip)
    }

    /// Returns a row for the next item of a graph.
    fn row(&self, cx: &Context) -> Result<Tensor> {
        match self.normalize {
            Some(_) => cx.row::<f32>(self.shape()),
            None => cx.row::<u8>(self.shape()),
        }
    }
}

impl fmt::Display for ImageRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.geometry {
            Geometry::Random(crop) => write!(f, "random_resized_crop {}", crop.settings())?,
            Geometry::Whole {
                width,
                height,
                filter,
            } => write!(f, "resize {width}x{height}, {filter:?}")?,
            Geometry::Center {
                shorter,
                width,
                height,
                filter,
            } => {
                write!(
                    f,
                    "resize_shorter {shorter}, {filter:?}, center_crop {width}x{height}"
                )?;
            }
        }
        if self.hflip > 0.0 {
            write!(f, ", hflip {}", self.hflip)?;
        }
        let numbers = if self.normalize.is_some() {
            "f32"
        } else {
            "u8"
        };
        write!(
            f,
            ", {numbers} {:?}{}",
            self.layout,
            if self.scaled { ", scaled" } else { "" }
        )
    }
}

/// Encoded images, alone or with other data.
trait Encoded: Send + 'static {
    type Row: Send + 'static;

    /// Replaces the image by a row.
    fn to_row(self, make: impl FnOnce(&[u8]) -> Result<Tensor>) -> Result<Self::Row>;
}

impl Encoded for Bytes {
    type Row = Tensor;

    fn to_row(self, make: impl FnOnce(&[u8]) -> Result<Tensor>) -> Result<Tensor> {
        make(&self)
    }
}

impl<L: Send + 'static> Encoded for (Bytes, L) {
    type Row = (Tensor, L);

    fn to_row(self, make: impl FnOnce(&[u8]) -> Result<Tensor>) -> Result<(Tensor, L)> {
        Ok((make(&self.0)?, self.1))
    }
}

/// An image that a row was made from.
trait RowOf {
    fn row(&self) -> &Tensor;
}

impl RowOf for Tensor {
    fn row(&self) -> &Tensor {
        self
    }
}

impl<L> RowOf for (Tensor, L) {
    fn row(&self) -> &Tensor {
        &self.0
    }
}

/// The pipe of [`ImageRowsGraphExt::image_rows`].
struct RowPipe(ImageRows);

impl<In: Encoded<Row: RowOf>> Pipe<In> for RowPipe {
    type Out = In::Row;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<In::Row> {
        let (this, context) = (self.0.clone(), cx.clone());
        input.each(cx, move |item| {
            // The row is requested before anything can fail.
            let row = this.row(&context);
            let mut rng = context.rng(item.origin());
            Some(item.try_map(|encoded| {
                encoded.to_row(|file| {
                    let mut row = row?;
                    this.fill(file, &mut rng, &mut row)?;
                    Ok(row)
                })
            }))
        })
    }
    fn name(&self) -> String {
        "image_rows".to_owned()
    }
    fn hints(&self) -> Hints {
        let problem = self.0.check().err().map(|error| error.to_string());
        Hints::shardable()
            .arity(Arity::One)
            .rows(true)
            .settings(&self.0)
            .problem(problem.as_deref())
    }
    fn weigh(&self, item: &In::Row) -> Option<usize> {
        Some(item.row().byte_len())
    }
}

/// [`ImageRows`] for a graph of the bytes of files, alone or each with a label or other data:
/// `.map(|(file, class)| (file.data, class))` makes them of files. Import it with the
/// [`prelude`](crate::prelude).
pub trait ImageRowsGraphExt: sealed::Sealed {
    /// Graph with rows in place of files.
    type Rows;

    /// Makes a row of each file; see [`ImageRows`]. Runs on the CPU workers, on many files at once;
    /// order is kept.
    ///
    /// # Errors
    /// An error of a file takes the item's place; see [`ImageRows::fill`]. Invalid settings are
    /// reported when the loader is built.
    fn image_rows(self, rows: ImageRows) -> Self::Rows;
}

impl ImageRowsGraphExt for Graph<Bytes> {
    type Rows = Graph<Tensor>;

    fn image_rows(self, rows: ImageRows) -> Graph<Tensor> {
        self.pipe(RowPipe(rows))
    }
}

impl<L: Send + 'static> ImageRowsGraphExt for Graph<(Bytes, L)> {
    type Rows = Graph<(Tensor, L)>;

    fn image_rows(self, rows: ImageRows) -> Graph<(Tensor, L)> {
        self.pipe(RowPipe(rows))
    }
}

mod sealed {
    /// Graphs that have this method; more may be added to the trait.
    pub trait Sealed {}

    impl Sealed for datapipes::Graph<bytes::Bytes> {}
    impl<L: Send + 'static> Sealed for datapipes::Graph<(bytes::Bytes, L)> {}
}
