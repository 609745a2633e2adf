//! From encoded pictures straight into the rows of a batch.

use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, ErrorKind, Facts, Graph, Items, Pipe, Result, Rng, Tensor};

use crate::decode::{Memory, Wanted};
use crate::image::{check_probability, check_size};
use crate::layout::{Number, RowWriter};
use crate::resize::{Resampler, shorter_size};
use crate::{DecodeImage, Filter, Layout, Normalize, RandomResizedCrop, Rect};

/// Decodes pictures, cuts, scales, mirrors and normalises them, and writes the result to where the
/// batch has it, in one step that makes no picture in between: what [`decode`](crate::decode()),
/// [`random_resized_crop`](crate::random_resized_crop()), [`hflip`](crate::hflip()) and
/// [`to_tensor`](crate::to_tensor()) do one after the other, with the same draws and the same
/// numbers, to the last bit.
///
/// - Of a JPEG only what a random crop needs is decoded: rows below it not at all. With
///   [`scaled`](ImageRows::scaled) it is decoded at a half, a quarter or an eighth of its size
///   where that is enough.
/// - Pixels in between are kept by each thread for its next picture: up to 16 MiB in each of some
///   buffers, or what the last picture took. So for JPEGs nothing is allocated once they are large
///   enough, but for parts of over 5 megapixels.
/// - What opens archives is best parted from this by a shuffle: in one piece of work with it,
///   nobody knows which row of which batch a picture will be, and batches are copied together.
/// - In a graph of samples of your own, `map` one to a pair of its file and the rest before, and
///   back behind: such steps are one-in-one-out. The rows of one batch are written where the batch
///   has them, if only steps of one-in-one-out lie between this and [`batch`](Graph::batch): see
///   [`Context::row`]. The memory of a batch returns to the loader when it is dropped.
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
pub struct ImageRows {
    decode: DecodeImage,
    geometry: Geometry,
    hflip: f64,
    normalize: Option<Normalize>,
    layout: Layout,
    scaled: bool,
}

/// Which part of a picture becomes the row, and of which size.
#[derive(Clone, Copy, Debug)]
enum Geometry {
    Random(RandomResizedCrop),
    /// All of it.
    Whole {
        width: u32,
        height: u32,
        filter: Filter,
    },
    /// The middle, once the shorter edge has a length.
    Center {
        shorter: u32,
        width: u32,
        height: u32,
        filter: Filter,
    },
}

/// The part that is scaled, to which size, and what of the result is the row.
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

    /// A random part, scaled: for training. See [`RandomResizedCrop`].
    pub fn random_resized_crop(settings: impl Into<RandomResizedCrop>) -> Self {
        ImageRows::new(Geometry::Random(settings.into()))
    }

    /// All of the picture, scaled to this width and height, whatever its shape.
    pub fn resize(width: u32, height: u32) -> Self {
        ImageRows::new(Geometry::Whole {
            width,
            height,
            filter: Filter::Bilinear,
        })
    }

    /// The middle of this width and height, once the shorter edge was scaled to `shorter`: for
    /// validation.
    pub fn resize_center_crop(shorter: u32, width: u32, height: u32) -> Self {
        ImageRows::new(Geometry::Center {
            shorter,
            width,
            height,
            filter: Filter::Bilinear,
        })
    }

    /// How pixels are weighed when they are scaled. By default [`Filter::Bilinear`].
    pub fn filter(mut self, with: Filter) -> Self {
        match &mut self.geometry {
            Geometry::Random(crop) => *crop = crop.filter(with),
            Geometry::Whole { filter, .. } | Geometry::Center { filter, .. } => *filter = with,
        }
        self
    }

    /// Mirrors left and right with probability `p`.
    pub fn random_hflip(self, p: f64) -> Self {
        ImageRows { hflip: p, ..self }
    }

    /// Makes `f32`, normalised. Without, rows are `u8`, 0 to 255.
    pub fn normalize(self, normalize: Normalize) -> Self {
        ImageRows {
            normalize: Some(normalize),
            ..self
        }
    }

    /// The order of the axes. By default [`Layout::Chw`].
    pub fn layout(self, layout: Layout) -> Self {
        ImageRows { layout, ..self }
    }

    /// Decodes JPEGs at the least of 1/1, 1/2, 1/4 and 1/8 of their size at which the part is not
    /// smaller than the row, as Pillow's `draft` does. That takes less time for pictures much
    /// larger than the row, and gives other numbers: the decoder's average over blocks comes before
    /// the filter. By default not.
    pub fn scaled(self) -> Self {
        ImageRows {
            scaled: true,
            ..self
        }
    }

    /// Settings of the decoder: limits, orientation.
    pub fn decoder(self, decode: DecodeImage) -> Self {
        ImageRows { decode, ..self }
    }

    /// The shape of a row: `[3, height, width]`, or `[height, width, 3]`.
    pub fn shape(&self) -> [usize; 3] {
        let (width, height) = self.size();
        let (width, height) = (width as usize, height as usize);
        match self.layout {
            Layout::Chw => [3, height, width],
            Layout::Hwc => [height, width, 3],
        }
    }

    /// Makes a tensor of its own of one file; in a graph [`ImageRowsGraph::image_rows`] writes into
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

    /// Fills a tensor from one file. Draws first the part and then whether to mirror it.
    ///
    /// # Errors
    /// - What [`DecodeImage::decode`] says of the file. Damage below the part is not found, since
    ///   it is not looked at.
    /// - [`ErrorKind::Shape`] if the tensor is not of this shape and type, or a scaled picture is
    ///   smaller than its crop.
    /// - [`ErrorKind::Config`] if a setting makes no sense.
    pub fn fill(&self, file: &[u8], rng: &mut Rng, row: &mut Tensor) -> Result<()> {
        self.check()?;
        if row.shape() != self.shape() {
            let message = format!(
                "a row of shape {:?} for pictures of {:?}",
                row.shape(),
                self.shape()
            );
            return Err(Error::new(ErrorKind::Shape, message));
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

    fn resampling(&self) -> Filter {
        match self.geometry {
            Geometry::Random(crop) => crop.resampling(),
            Geometry::Whole { filter, .. } | Geometry::Center { filter, .. } => filter,
        }
    }

    /// [`ErrorKind::Config`] if a setting makes no sense.
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
                    let message = format!(
                        "a crop of {width}x{height} of pictures whose shorter edge is {shorter}"
                    );
                    return Err(Error::new(ErrorKind::Config, message));
                }
                check_size(shorter, shorter)?;
            }
        }
        check_probability(self.hflip)
    }

    /// A row for the next item of a graph.
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

/// Encoded pictures, alone or with something that stays with them.
trait Encoded: Send + 'static {
    type Row: Send + 'static;

    /// Makes a row of the picture.
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

/// A picture that a row was made of.
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

/// The pipe of [`ImageRowsGraph::image_rows`].
struct RowPipe(ImageRows);

impl<In: Encoded<Row: RowOf>> Pipe<In> for RowPipe {
    type Out = In::Row;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<In::Row> {
        let (this, context) = (self.0.clone(), cx.clone());
        input.each(cx, move |item| {
            // The row is asked for before anything can fail.
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
    fn is_shardable(&self) -> bool {
        true
    }
    fn arity(&self) -> Arity {
        Arity::One
    }
    fn facts(&self) -> Facts {
        let problem = self.0.check().err().map(|error| error.to_string());
        Facts::any_order()
            .with_rows()
            .with_settings(&self.0)
            .with_problem(problem.as_deref())
    }
    fn weigh(&self, item: &In::Row) -> Option<usize> {
        Some(item.row().byte_len())
    }
}

/// [`ImageRows`] for a graph of files, alone or each with a label or anything else. Bring it into
/// scope by the [`prelude`](crate::prelude).
pub trait ImageRowsGraph: sealed::Sealed {
    /// The same with rows in place of files.
    type Rows;

    /// Makes a row of each file; see [`ImageRows`]. It runs on the CPU workers, on many files at
    /// once; order is kept.
    ///
    /// # Errors
    /// What is wrong with a file takes the item's place; see [`ImageRows::fill`]. Settings without
    /// sense are found when the loader is built.
    fn image_rows(self, rows: ImageRows) -> Self::Rows;
}

impl ImageRowsGraph for Graph<Bytes> {
    type Rows = Graph<Tensor>;

    fn image_rows(self, rows: ImageRows) -> Graph<Tensor> {
        self.pipe(RowPipe(rows))
    }
}

impl<L: Send + 'static> ImageRowsGraph for Graph<(Bytes, L)> {
    type Rows = Graph<(Tensor, L)>;

    fn image_rows(self, rows: ImageRows) -> Graph<(Tensor, L)> {
        self.pipe(RowPipe(rows))
    }
}

mod sealed {
    /// The graphs that have this method; more may be added to the trait.
    pub trait Sealed {}

    impl Sealed for datapipes::Graph<bytes::Bytes> {}
    impl<L: Send + 'static> Sealed for datapipes::Graph<(bytes::Bytes, L)> {}
}
