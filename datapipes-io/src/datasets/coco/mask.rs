//! Outlines of COCO's objects: polygons, or runs of pixels.

use std::fmt;

use datapipes::{Error, Result, Tensor, wire_enum, wire_struct};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

/// Default maximum number of pixels of a mask: that of an image.
const MOST: u64 = 178_956_970;

/// The outline of an object.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Segmentation {
    /// Polygons: the corners of each, x and y alternating, in pixels.
    Polygons(Vec<Vec<f64>>),
    /// Runs of pixels.
    Rle(Rle),
}

wire_enum!(Segmentation { 0 Polygons(polygons), 1 Rle(rle) });

impl Segmentation {
    /// Returns the runs, if the outline has this form.
    pub fn rle(&self) -> Option<&Rle> {
        datapipes::matching!(self, Segmentation::Rle(rle) => rle)
    }

    /// Returns the polygons, if the outline has this form.
    pub fn polygons(&self) -> Option<&[Vec<f64>]> {
        datapipes::matching!(self, Segmentation::Polygons(polygons) => polygons)
    }
}

/// A mask as lengths of runs, column by column from the left: alternately the number of pixels
/// outside and inside.
///
/// ```
/// use datapipes_io::datasets::coco::Rle;
/// let mask = Rle::packed(2, 4, "233").mask()?;
/// assert_eq!(mask.as_slice::<u8>()?, [0, 1, 1, 0, 0, 1, 0, 0]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rle {
    /// Height in pixels.
    pub height: u32,
    /// Width in pixels.
    pub width: u32,
    /// Lengths of the runs.
    pub counts: Counts,
}

wire_struct! { Rle { height, width, counts } }

/// Encoding of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Runs as numbers.
    Runs(Vec<u32>),
    /// Text of pycocotools: five bits in a letter, numbers from the fourth on as differences.
    Packed(String),
}

wire_enum!(Counts { 0 Runs(runs), 1 Packed(text) });

impl Rle {
    /// Returns a mask with runs as numbers.
    pub fn runs_of(height: u32, width: u32, runs: impl Into<Vec<u32>>) -> Rle {
        Rle {
            height,
            width,
            counts: Counts::Runs(runs.into()),
        }
    }

    /// Returns a mask with runs in the text form of pycocotools.
    pub fn packed(height: u32, width: u32, text: impl Into<String>) -> Rle {
        Rle {
            height,
            width,
            counts: Counts::Packed(text.into()),
        }
    }

    /// Returns the lengths of the runs: outside, inside, outside, and so on.
    ///
    /// # Errors
    /// `Corrupt` if the text is not in the form of pycocotools, with the position; or if the total
    /// length of the runs differs from the number of pixels.
    pub fn runs(&self) -> Result<Vec<u32>> {
        let runs = match &self.counts {
            Counts::Runs(runs) => runs.clone(),
            Counts::Packed(text) => unpack(text.as_bytes())?,
        };
        let (sum, pixels) = (
            runs.iter().map(|&run| u128::from(run)).sum::<u128>(),
            u128::from(self.pixels()),
        );
        match sum == pixels {
            true => Ok(runs),
            false => {
                let Rle { height, width, .. } = self;
                Err(Error::corrupt(format!(
                    "runs of {sum} pixels for a mask of {height}x{width}, which has {pixels}"
                )))
            }
        }
    }

    fn pixels(&self) -> u64 {
        u64::from(self.height) * u64::from(self.width)
    }

    /// Returns the mask: `u8`, `[height, width]`, 1 inside and 0 outside. At most 178,956,970
    /// pixels.
    ///
    /// # Errors
    /// The errors of [`runs`](Rle::runs); `Limit` if the mask has too many pixels, before anything
    /// is allocated.
    pub fn mask(&self) -> Result<Tensor> {
        self.mask_to(MOST)
    }

    /// Returns the mask as [`mask`](Rle::mask) does, with another limit on the number of pixels.
    ///
    /// # Errors
    /// The errors of [`mask`](Rle::mask).
    pub fn mask_to(&self, most: u64) -> Result<Tensor> {
        let Rle { height, width, .. } = self;
        if self.pixels() > most {
            let what = format!("a mask of {height}x{width} has more than {most} pixels");
            return Err(Error::limit(what));
        }
        let runs = self.runs()?;
        let (height, width) = (*height as usize, *width as usize);
        let mut mask = vec![0u8; height * width];
        // The total length of the runs is that of the mask, so all positions are inside.
        let mut at = 0;
        for (number, run) in runs.into_iter().enumerate() {
            let end = at + run as usize;
            let inside = number % 2 == 1;
            while inside && at < end {
                let (x, y) = (at / height, at % height);
                let rows = (end - at).min(height - y);
                (y..y + rows).for_each(|y| mask[y * width + x] = 1);
                at += rows;
            }
            at = end;
        }
        Tensor::from_vec(mask, [height, width])
    }
}

/// Decodes the numbers in a text of pycocotools: least significant digit first, five bits in a
/// letter from `0` on, with a sixth bit that marks continuation; the last digit has the sign. From
/// the fourth number on, a number is the difference to the last but one.
fn unpack(text: &[u8]) -> Result<Vec<u32>> {
    let mut runs: Vec<u32> = Vec::new();
    let (mut number, mut bits, mut begin) = (0i64, 0, 0);
    for (at, &letter) in text.iter().enumerate() {
        let value = i64::from(letter.wrapping_sub(b'0'));
        if value > 0x3f || bits > 35 {
            return Err(Error::corrupt(format!(
                "byte {at} of packed runs: {:?} is not expected",
                char::from(letter)
            )));
        }
        number |= (value & 0x1f) << bits;
        bits += 5;
        if value & 0x20 != 0 {
            continue;
        }
        if value & 0x10 != 0 {
            number |= -1 << bits;
        }
        if runs.len() > 2 {
            number += i64::from(runs[runs.len() - 2]);
        }
        let run = u32::try_from(number);
        runs.push(run.map_err(|_| {
            Error::corrupt(format!(
                "byte {begin} of packed runs: a run of {number} pixels"
            ))
        })?);
        (number, bits, begin) = (0, 0, at + 1);
    }
    match bits {
        0 => Ok(runs),
        _ => Err(Error::corrupt(format!(
            "byte {begin} of packed runs: a number without an end"
        ))),
    }
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Outline)
    }
}

struct Outline;

impl<'de> Visitor<'de> for Outline {
    type Value = Segmentation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("polygons, or an object with size and counts")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Segmentation, A::Error> {
        let mut polygons = Vec::new();
        while let Some(polygon) = from.next_element()? {
            polygons.push(polygon);
        }
        Ok(Segmentation::Polygons(polygons))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Segmentation, A::Error> {
        let (mut size, mut counts) = (None::<[u32; 2]>, None);
        while let Some(name) = from.next_key::<String>()? {
            match &*name {
                "size" => size = Some(from.next_value()?),
                "counts" => counts = Some(from.next_value()?),
                _ => drop(from.next_value::<de::IgnoredAny>()?),
            }
        }
        let [height, width] = size.ok_or_else(|| de::Error::missing_field("size"))?;
        let counts = counts.ok_or_else(|| de::Error::missing_field("counts"))?;
        Ok(Segmentation::Rle(Rle {
            height,
            width,
            counts,
        }))
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Runs)
    }
}

struct Runs;

impl<'de> Visitor<'de> for Runs {
    type Value = Counts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers, or a text")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Counts, E> {
        Ok(Counts::Packed(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Counts, A::Error> {
        let mut runs = Vec::new();
        while let Some(run) = from.next_element()? {
            runs.push(run);
        }
        Ok(Counts::Runs(runs))
    }
}
